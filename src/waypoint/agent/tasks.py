"""Tasks: what has to be done, their states, and the points where they ended. Pure functions on lists.

In the list a task comes before its subtasks (`2` before `2.1`). The list belongs to its session and to every
checkpoint: a restore brings it back with the machine, and a fork copies it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from waypoint.api.hints import Do, Hint
from waypoint.errors import NotFound, UsageError
from waypoint.model import Task, TaskChange, TaskState, json_decoder

MAX_TASKS = 10_000
MAX_TITLE_CHARACTERS = 500
_decoder = json_decoder(tuple[Task, ...])

Tasks = tuple[Task, ...]


def load(text: bytes) -> Tasks:
    return _decoder.decode(text)


def dump(tasks: Tasks) -> bytes:
    return msgspec.json.encode(tasks)


def find(tasks: Tasks, name: str) -> Task:
    """A task by its number, or by its title if that is unique."""
    name = name.strip()
    for task in tasks:
        if task.id == name:
            return task
    matches = [task for task in tasks if task.title == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        numbers = ", ".join(task.id for task in matches)
        raise UsageError(f"{len(matches)} tasks are called {name!r}", hint=f"give the number: {numbers}")
    names = ", ".join(f'{task.id} "{task.title}"' for task in tasks[:10])
    hint = f"there are: {names}" if tasks else Hint("there are none: ", Do("task_add", "titles"), " adds one")
    raise NotFound(f"there is no task {name!r}", hint=hint)


def children(tasks: Tasks, parent: str | None) -> Tasks:
    """The subtasks right below a task; without one, the tasks of the highest level."""
    return tuple(task for task in tasks if task.parent == parent)


def add(tasks: Tasks, title: str, parent: str | None = None) -> tuple[Tasks, Task]:
    """The tasks with a new one after its siblings, and the new one."""
    title = " ".join(title.split())
    if not title:
        raise UsageError("a task needs a title", hint="say what has to be done")
    if len(title) > MAX_TITLE_CHARACTERS:
        raise UsageError(
            f"a title has at most {MAX_TITLE_CHARACTERS} characters", hint="put the rest into a note"
        )
    if len(tasks) >= MAX_TASKS:
        raise UsageError(f"a session has at most {MAX_TASKS:,} tasks", hint="put several things into one")
    parent_id = find(tasks, parent).id if parent else None
    if parent_id and parent_id.count(".") >= 9:
        raise UsageError("tasks can be nested ten levels deep at most", hint="add it on a higher level")
    prefix = f"{parent_id}." if parent_id else ""
    numbers = [int(task.id.rpartition(".")[2]) for task in children(tasks, parent_id)]
    new = Task(id=f"{prefix}{max(numbers, default=0) + 1}", title=title)
    at = len(tasks)
    if parent_id:
        at = max(n for n, task in enumerate(tasks) if task.id == parent_id or task.id.startswith(prefix)) + 1
    return (*tasks[:at], new, *tasks[at:]), new


def change(
    tasks: Tasks, name: str, state: TaskState, *, now: str, note: str = "", checkpoint: str | None = None
) -> tuple[Tasks, Task, Task]:
    """Changes the state of a task. Returns the tasks, and that task before and after. With a task its parents
    are started. A task cannot be completed while one of its subtasks is open."""
    task = find(tasks, name)
    if state == "completed":
        subtasks = [other for other in tasks if other.id.startswith(f"{task.id}.") and other.open]
        if subtasks:
            names = ", ".join(f'{other.id} "{other.title}"' for other in subtasks[:3])
            raise UsageError(
                f"task {task.id} is not done: {names} {'is' if len(subtasks) == 1 else 'are'} open",
                hint="finish or skip its subtasks first",
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
        for parent in ancestors(tasks, task):
            if parent.state != "in_progress":
                started = parent.started_at or now
                changed[parent.id] = msgspec.structs.replace(
                    parent, state="in_progress", started_at=started, ended_at=None, checkpoint=None
                )
    return tuple(changed.get(other.id, other) for other in tasks), task, new


def next_open(tasks: Tasks) -> Task | None:
    """The task to work on next: the first open one without open subtasks. Started ones come first, then
    those whose parent is started."""
    leaves = [
        task
        for task in tasks
        if task.open and not any(other.open for other in tasks if other.id.startswith(f"{task.id}."))
    ]
    started = [task for task in leaves if task.state == "in_progress"]
    parent_started = [
        task for task in leaves if any(other.state == "in_progress" for other in ancestors(tasks, task))
    ]
    return next(iter((*started, *parent_started, *leaves)), None)


def ancestors(tasks: Tasks, task: Task) -> Tasks:
    """The tasks that a task is part of, outermost first."""
    return tuple(other for other in tasks if task.id.startswith(f"{other.id}."))


def differences(now: Tasks, then: Tasks) -> tuple[TaskChange, ...]:
    """The tasks whose state or title is different in `then`."""
    tasks_now, tasks_then = {task.id: task for task in now}, {task.id: task for task in then}
    changes = []
    for number in dict.fromkeys((*tasks_now, *tasks_then)):
        before, after = tasks_now.get(number), tasks_then.get(number)
        states = (before.state if before else None, after.state if after else None)
        if states[0] != states[1] or (before and after and before.title != after.title):
            title = before.title if before else tasks_then[number].title
            changes.append(TaskChange(id=number, title=title, before=states[0], after=states[1]))
    return tuple(changes)


def listing(tasks: Sequence[Task]) -> list[str]:
    """One line for each task: `✔ 1 set up the database`."""
    signs = {"pending": "○", "in_progress": "▸", "completed": "✔", "failed": "✖", "skipped": "–"}
    lines = []
    for task in tasks:
        note = f" ({task.note})" if task.note else ""
        lines.append(f"{'  ' * task.id.count('.')}{signs[task.state]} {task.id} {task.title}{note}")
    return lines
