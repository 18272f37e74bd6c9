"""Tasks: what is to be done, how far it is, and the point that shows it. Pure: tasks in, tasks out.

They are a list in which a task stands before those below it (`2` before `2.1`). It belongs to its session
and to every checkpoint, so a restore takes it back with the machine and a fork takes it along.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from waypoint.errors import NotFound, UsageError
from waypoint.model import Task, TaskChange, TaskState

MOST_TASKS = 10_000
MOST_TITLE = 500
_decoder = msgspec.json.Decoder(tuple[Task, ...])

Tasks = tuple[Task, ...]


def load(text: bytes) -> Tasks:
    return _decoder.decode(text)


def dump(tasks: Tasks) -> bytes:
    return msgspec.json.encode(tasks)


def find(tasks: Tasks, given: str) -> Task:
    """A task by its number, or by its title where only one has it."""
    wanted = given.strip()
    for task in tasks:
        if task.id == wanted:
            return task
    named = [task for task in tasks if task.title == wanted]
    if len(named) == 1:
        return named[0]
    if named:
        numbers = ", ".join(task.id for task in named)
        raise UsageError(f"{len(named)} tasks are called {wanted!r}", hint=f"give the number: {numbers}")
    listing = ", ".join(f'{task.id} "{task.title}"' for task in tasks[:10])
    hint = f"there are: {listing}" if tasks else "there are none: `waypoint task add` makes one"
    raise NotFound(f"there is no task {wanted!r}", hint=hint)


def below(tasks: Tasks, parent: str | None) -> Tasks:
    """Those right below a task; without one, those below nothing."""
    return tuple(task for task in tasks if task.parent == parent)


def add(tasks: Tasks, title: str, parent: str | None = None) -> tuple[Tasks, Task]:
    """The tasks with one more, after those that are beside it."""
    title = " ".join(title.split())
    if not title:
        raise UsageError("a task needs a title", hint="say what is to be done")
    if len(title) > MOST_TITLE:
        raise UsageError(f"a title has at most {MOST_TITLE} letters", hint="put the rest into a note")
    if len(tasks) >= MOST_TASKS:
        raise UsageError(f"a session has at most {MOST_TASKS:,} tasks", hint="put several things into one")
    above = find(tasks, parent).id if parent else None
    if above and above.count(".") >= 9:
        raise UsageError("tasks are nested at most ten deep", hint="put it beside the others")
    prefix = f"{above}." if above else ""
    numbers = [int(task.id.rpartition(".")[2]) for task in below(tasks, above)]
    made = Task(id=f"{prefix}{max(numbers, default=0) + 1}", title=title)
    at = len(tasks)
    if above:
        at = max(n for n, task in enumerate(tasks) if task.id == above or task.id.startswith(prefix)) + 1
    return (*tasks[:at], made, *tasks[at:]), made


def change(
    tasks: Tasks, given: str, state: TaskState, *, now: str, note: str = "", checkpoint: str | None = None
) -> tuple[Tasks, Task, Task]:
    """The tasks, one of which stands otherwise; that one before, and as it is then. What it is a part of is
    begun with it. A task is not done while something below it is not."""
    task = find(tasks, given)
    if state == "completed":
        left = [one for one in tasks if one.id.startswith(f"{task.id}.") and one.open]
        if left:
            named = ", ".join(f'{one.id} "{one.title}"' for one in left[:3])
            raise UsageError(
                f"task {task.id} is not done: {named} {'is' if len(left) == 1 else 'are'} open",
                hint="finish or skip what is below it first",
            )
    ended = state in ("completed", "failed", "skipped")
    new = msgspec.structs.replace(
        task,
        state=state,
        note=note or ("" if state == "in_progress" else task.note),
        checkpoint=checkpoint if ended else None,
        started_at=now if state == "in_progress" or not task.started_at else task.started_at,
        ended_at=now if ended else None,
    )
    changed = {new.id: new}
    if state == "in_progress":
        for one in tasks:
            if task.id.startswith(f"{one.id}.") and one.state != "in_progress":
                started = one.started_at or now
                changed[one.id] = msgspec.structs.replace(
                    one, state="in_progress", started_at=started, ended_at=None, checkpoint=None
                )
    return tuple(changed.get(one.id, one) for one in tasks), task, new


def next_open(tasks: Tasks) -> Task | None:
    """The first task that is not done: one that was begun before any that was not, and of several inside each
    other the innermost."""
    leaves = [
        task
        for task in tasks
        if task.open and not any(one.open for one in tasks if one.id.startswith(f"{task.id}."))
    ]
    begun = [task for task in leaves if task.state == "in_progress"]
    # What was begun and has parts left is under way in its parts.
    within = [task for task in leaves if any(one.state == "in_progress" for one in ancestors(tasks, task))]
    return next(iter((*begun, *within, *leaves)), None)


def ancestors(tasks: Tasks, task: Task) -> Tasks:
    """What a task is a part of, outermost first."""
    return tuple(one for one in tasks if task.id.startswith(f"{one.id}."))


def differences(now: Tasks, then: Tasks) -> tuple[TaskChange, ...]:
    """What stands otherwise `then` than it does `now`."""
    known, wanted = {task.id: task for task in now}, {task.id: task for task in then}
    found = []
    for number in dict.fromkeys((*known, *wanted)):
        before, after = known.get(number), wanted.get(number)
        states = (before.state if before else None, after.state if after else None)
        if states[0] != states[1] or (before and after and before.title != after.title):
            title = before.title if before else wanted[number].title
            found.append(TaskChange(id=number, title=title, before=states[0], after=states[1]))
    return tuple(found)


def listing(tasks: Sequence[Task]) -> list[str]:
    """Tasks in lines: `✔ 1 set up the database`."""
    signs = {"pending": "○", "in_progress": "▸", "completed": "✔", "failed": "✖", "skipped": "–"}
    lines = []
    for task in tasks:
        note = f" ({task.note})" if task.note else ""
        lines.append(f"{'  ' * task.id.count('.')}{signs[task.state]} {task.id} {task.title}{note}")
    return lines
