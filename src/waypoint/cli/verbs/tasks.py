"""The tasks of an agent, and where it continues after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waypoint.api.agent import Resume, TaskAdd, Tasks, TaskSet
from waypoint.cli import render
from waypoint.cli.spec import SESSION, SESSION_FIRST, argument, flag, verb

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.cli.render import Paint
    from waypoint.model import Task, TaskState

_SIGNS = {"pending": "○", "in_progress": "▸", "completed": "✔", "failed": "✖", "skipped": "–"}
_STYLES = {"in_progress": "bold", "completed": "good", "failed": "bad", "skipped": "dim"}

_TASK = argument("task", metavar="TASK", help="its number (2.1), or its title")
_NOTE = argument("note", metavar="NOTE", nargs="*", default=[], help="the result, or the reason")
_EVIDENCE = argument("--evidence", metavar="REF", help="the point that shows the result")


@verb(
    "task add",
    "add tasks to the plan",
    SESSION,
    argument("--under", metavar="TASK", help="the task that they are part of"),
    flag("--once", help="skip tasks that exist already"),
    argument("titles", metavar="TITLE", nargs="+", help="what is to be done, one task each"),
    examples=("waypoint task add 'add payments' 'wire webhook'", "waypoint task add --under 1 'write tests'"),
    about="Tasks are part of every checkpoint: a restore takes progress back with the machine.",
)
def task_add(console: Console) -> int:
    arguments = console.arguments
    request = TaskAdd(
        session=console.session,
        titles=tuple(arguments.titles),
        under=arguments.under,
        once=arguments.once,
        actor=console.actor,
    )
    result = console.send(request, "waiting for the daemon")
    console.result(result, _listing(result.added, console.paint))
    return 0


@verb(
    "task start",
    "mark a task as in progress",
    SESSION,
    _TASK,
    examples=("waypoint task start 1",),
    json="task_set",
)
def task_start(console: Console) -> int:
    return _set_state(console, "in_progress")


@verb(
    "task done",
    "mark a task as completed",
    SESSION,
    _TASK,
    _EVIDENCE,
    flag("--checkpoint", help="take a point as evidence"),
    _NOTE,
    examples=("waypoint task done 1.2", "waypoint task done 'add payments' --checkpoint"),
    about="The evidence is the point the session is at, if it was taken since the task was started;"
    " --evidence names another point, --checkpoint takes one.",
    json="task_set",
)
def task_done(console: Console) -> int:
    arguments = console.arguments
    return _set_state(console, "completed", evidence=arguments.evidence, checkpoint=arguments.checkpoint)


@verb(
    "task fail",
    "mark a task as failed",
    SESSION,
    _TASK,
    _EVIDENCE,
    _NOTE,
    examples=("waypoint task fail 2 'the API is gone'",),
    about="`task start` tries it again.",
    json="task_set",
)
def task_fail(console: Console) -> int:
    return _set_state(console, "failed", evidence=console.arguments.evidence)


@verb(
    "task skip",
    "mark a task as skipped: it will not be done",
    SESSION,
    _TASK,
    _NOTE,
    examples=("waypoint task skip 3 'not needed any more'",),
    json="task_set",
)
def task_skip(console: Console) -> int:
    return _set_state(console, "skipped")


def _set_state(
    console: Console, state: TaskState, *, evidence: str | None = None, checkpoint: bool = False
) -> int:
    arguments = console.arguments
    request = TaskSet(
        session=console.session,
        task=arguments.task,
        state=state,
        note=" ".join(getattr(arguments, "note", ())),
        evidence=evidence,
        checkpoint=checkpoint,
        actor=console.actor,
    )
    result = console.send(request, "taking a checkpoint" if checkpoint else "waiting for the daemon")
    lines = [_line(result.task, console.paint)]
    if result.checkpoint:
        lines.append(render.point_title(result.checkpoint, console.paint))
    console.result(result, "\n".join(lines))
    return 0


@verb(
    "task ls",
    "list the tasks, now or at a point",
    SESSION,
    argument("ref", metavar="REF", nargs="?", help="as they were at this point"),
    examples=("waypoint task ls", "waypoint task ls c3"),
    json="tasks",
)
def task_ls(console: Console) -> int:
    request = Tasks(session=console.session, ref=console.arguments.ref)
    result = console.send(request, "waiting for the daemon")
    console.result(result, _listing(result.tasks, console.paint))
    if not result.tasks:
        console.hint("there are no tasks: `waypoint task add` adds one")
    return 0


def _listing(tasks: Sequence[Task], paint: Paint) -> str:
    return "\n".join(_line(task, paint) for task in tasks)


def _line(task: Task, paint: Paint) -> str:
    note = f"  ({render.shown(task.note)})" if task.note else ""
    text = f"{_SIGNS[task.state]} {task.id}  {render.shown(task.title)}"
    if style := _STYLES.get(task.state):
        text = getattr(paint, style)(text)
    return f"{'  ' * task.id.count('.')}{text}{paint.dim(note)}"


@verb(
    "resume",
    "print where the work is and what comes next, as text for a prompt",
    *SESSION_FIRST,
    examples=("waypoint resume work", "waypoint resume --json"),
    about="A session that does not run is restored from its last point first.",
)
def resume(console: Console) -> int:
    result = console.send(Resume(session=console.session, actor=console.actor), "reading the history")
    console.result(result, result.text.rstrip("\n"))
    return 0
