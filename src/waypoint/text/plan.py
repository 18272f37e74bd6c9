"""A restore plan in words: what goes, what comes back, what ends and what resumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from waypoint.api.difference import Changes, PlanWords, RestorePlan
from waypoint.history.changes import fold_noisy, total
from waypoint.history.facts import OWN_SHELL, Facts
from waypoint.model import Checkpoint, State, TaskChange, TaskState
from waypoint.text.findings import program_names
from waypoint.text.units import plural, shown

_NAMED_FILES = 2
_NAMED_TASKS = 3


def describe_plan(plan: RestorePlan, target: Facts, *, state: State, next_label: str) -> PlanWords:
    """`target`: what was observed at the point that the plan leads to."""
    live = plan.lost.live
    forward = plan.head is not None and plan.target.created_at > plan.head.created_at
    running = [process for process in target.processes if OWN_SHELL not in process.command]
    shell = [f"cwd {live.cwd[1]} → {live.cwd[0]}"] if live.cwd else []
    if live.variables:
        shell.append(plural(len(live.variables), "variable"))
    if functions := len(live.functions_added) + len(live.functions_removed):
        shell.append(plural(functions, "function"))
    return PlanWords(
        here=_here(plan),
        state=state,
        forward=forward,
        files=tuple(_files(plan.lost.files, target.shell.cwd, forward=forward)),
        ends=tuple(program_names(live.started, live.opened)),
        resumes=tuple(program_names(running, target.ports)),
        shell=tuple(shown(phrase) for phrase in shell),
        tasks=tuple(describe_tasks(plan.tasks)),
        safety=next_label if state == "live" else None,
    )


def describe_tasks(changes: Sequence[TaskChange]) -> Iterator[str]:
    """Tasks whose state changes, one line for those that change in the same way."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        states = (_state(change.before), _state(change.after))
        groups.setdefault(states, []).append(change.title)
    for (before, after), titles in groups.items():
        way = before if before == after else f"{before} → {after}"
        quoted = [f'"{shown(title)}"' for title in titles]
        yield f"{len(titles):,} {way}: {_some(quoted, _NAMED_TASKS)}"


def _state(state: TaskState | None) -> str:
    return (state or "not planned").replace("_", " ")


def point_label(point: Checkpoint, session: str) -> str:
    """The label of a point, with its session unless that is the given one."""
    return point.label if point.session == session else f"{point.session}:{point.label}"


def _here(plan: RestorePlan) -> str:
    """What the plan starts from: the point that the session stands on, and what was added since."""
    since = plan.uncheckpointed
    count = total(since.files)
    files = count.created + count.modified + count.deleted + count.renamed
    processes = len(since.live.started) + len(since.live.ended)
    more = plural(files, "file") if files else plural(processes, "process") if processes else ""
    if not more and not since.empty:
        more = "what came after it"
    start = point_label(plan.head, plan.session) if plan.head else "the base"
    return f"{start} + {more}" if more else start


def _files(changes: Changes, cwd: str, *, forward: bool) -> Iterator[str]:
    folded = fold_noisy(changes)
    listed = [change for change in folded.changes if change.entry != "folder" or change.files]
    for kinds, back, ahead in (
        (("created", "modified"), "written since will go", "as they are now will go"),
        (("deleted",), "deleted since will be back", "not there now will be"),
        (("renamed",), "renamed since will have the old name", "will have another name"),
    ):
        of_kind = [change for change in listed if change.kind in kinds]
        if of_kind:
            number = sum(change.files or 1 for change in of_kind)
            names = [shown(_relative(change.path, cwd)) for change in of_kind]
            yield f"{number:,} {ahead if forward else back}: {_some(names, _NAMED_FILES)}"
    for fold in folded.folds:
        number = fold.created + fold.modified + fold.deleted + fold.renamed
        if number:
            yield f"{number:,} changed in {_relative(fold.path, cwd)}"


def _some(names: Sequence[str], most: int) -> str:
    more = f", … ({len(names) - most:,} more)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _relative(path: str, cwd: str) -> str:
    """A path as a user in that folder would write it."""
    return path.removeprefix(f"{cwd}/") if cwd != "/" else path
