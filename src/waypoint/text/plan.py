"""A restore plan in words: what goes, what comes back, what ends and what resumes.

The words follow the way. A way back undoes what came since; a way on leads to what came after; a point on
another line has not lost anything, it has always been different.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from waypoint.api.difference import Change, Changes, PlanWords, RestorePlan, Way
from waypoint.api.findings import (
    AccountChange,
    Analysis,
    BranchMove,
    CronChange,
    DatabaseChange,
    Fate,
    Finding,
    PackageChange,
    RepositoryChange,
    ServerChange,
    SystemChange,
    TableChange,
)
from waypoint.history.changes import Fold, total
from waypoint.history.facts import OWN_SHELL, Facts
from waypoint.model import Checkpoint, State, TaskChange, TaskState
from waypoint.text.files import by_interest, fold_files, is_told_by_its_files, noun_of
from waypoint.text.findings import describe_former_head, describe_head, program_names, quoted
from waypoint.text.live import name_shell
from waypoint.text.units import plural, shown, some

_NAMED_FILES = 2
_NAMED_TASKS = 3
_NAMED_PACKAGES = 3
_NAMED_FOLDERS = 3


class _Wording(NamedTuple):
    """How a file that differs is told, by where it is. After `|` the same of several."""

    only_now: str
    other: str
    only_then: str
    renamed: str


_WORDS: dict[Way, _Wording] = {
    "back": _Wording(
        only_now="made since, will go",
        other="will lose its edits since|will lose their edits since",
        only_then="deleted since, will be back",
        renamed="renamed since, will have its old name|renamed since, will have their old names",
    ),
    "on": _Wording(
        only_now="not there then, will go",
        other="will be as it was then|will be as they were then",
        only_then="made by then, will come",
        renamed="will have the name it had then|will have the names they had then",
    ),
    "across": _Wording(
        only_now="not on that line, will go",
        other="differs on that line, will be replaced|differ on that line, will be replaced",
        only_then="only on that line, will come",
        renamed="will have the name it has on that line|will have the names they have on that line",
    ),
}
_METADATA = "will have the mode, owner or attributes of then"
_RETURNS: dict[Way, str] = {"back": "will be back", "on": "will come", "across": "will come"}


def describe_plan(plan: RestorePlan, target: Facts, *, state: State, way: Way, next_label: str) -> PlanWords:
    """`target`: what was observed at the point that the plan leads to; `way`: how it lies to the point that
    the session stands on."""
    live = plan.lost.live
    running = [process for process in target.processes if OWN_SHELL not in process.command]
    shell = [f"cwd {live.cwd[1]} → {live.cwd[0]}"] if live.cwd else []
    shell += name_shell(live)
    shell += [f"umask {one.after} → {one.before}" for one in live.settings if one.kind == "umask"]
    findings = plan.lost.analysis.findings
    return PlanWords(
        here=_here(plan),
        state=state,
        way=way,
        files=tuple(_files(plan.lost.files, plan.lost.analysis, target.shell.cwd, way)),
        packages=tuple(map(shown, _packages(findings, way))),
        git=tuple(map(shown, _repositories(findings, way))),
        databases=tuple(map(shown, _databases(findings, way))),
        system=tuple(map(shown, _system(findings, way))),
        ends=tuple(program_names((*live.started, *(one.after for one in live.restarted)), live.opened)),
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
        quoted_titles = [f'"{shown(title)}"' for title in titles]
        yield f"{len(titles):,} {way}: {some(quoted_titles, _NAMED_TASKS)}"


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
    more = f"{files:,} {noun_of(count)}" if files else plural(processes, "process") if processes else ""
    if not more and not since.empty:
        more = "what came after it"
    start = point_label(plan.head, plan.session) if plan.head else "the base"
    return f"{start} + {more}" if more else start


# ---- files ---------------------------------------------------------------------------------------


def _files(changes: Changes, analysis: Analysis, cwd: str, way: Way) -> Iterator[str]:
    folded = fold_files(changes, analysis)
    parents = {posixpath.dirname(change.path) for change in folded.changes}
    listed = [change for change in by_interest(folded.changes) if not is_told_by_its_files(change, parents)]
    words = _WORDS[way]
    groups: dict[str, list[Change]] = {
        words.only_now: [change for change in listed if change.kind == "created"],
        words.other: [change for change in listed if change.kind == "modified" and _is_edited(change)],
        _METADATA: [change for change in listed if change.kind == "modified" and not _is_edited(change)],
        words.only_then: [change for change in listed if change.kind == "deleted"],
        words.renamed: [change for change in listed if change.kind == "renamed"],
    }
    for wording, members in groups.items():
        if members:
            number = sum(change.files or 1 for change in members)
            at_least = "at least " * any(change.at_least for change in members)
            of_one, _, of_several = wording.partition("|")
            told = of_several if of_several and number > 1 else of_one
            names = [shown(_name(change, cwd)) for change in members]
            yield f"{at_least}{number:,} {told}: {some(names, _NAMED_FILES)}"
    yield from _folds(folded.folds, analysis.findings, way, cwd)


def _is_edited(change: Change) -> bool:
    return "content" in change.what or "type" in change.what


def _name(change: Change, cwd: str) -> str:
    name = _relative(change.path, cwd) + ("/" if change.entry == "folder" else "")
    if change.kind == "renamed" and change.old_path:
        return f"{name} → {_relative(change.old_path, cwd)}"
    return name


def _folds(folds: Sequence[Fold], findings: Sequence[Finding], way: Way, cwd: str) -> Iterator[str]:
    """Folders that programs fill: caches in one phrase; those of git only when nothing is told of it."""
    told = {
        finding.path
        for finding in findings
        if isinstance(finding, ServerChange)
        or (isinstance(finding, RepositoryChange) and any(_repositories([finding], way)))
    }
    sums = [(fold, fold.created + fold.modified + fold.deleted + fold.renamed) for fold in folds]
    caches = [(fold, number) for fold, number in sums if number and fold.is_cache]
    others = [
        f"{number:,} in {_relative(fold.path, cwd)}"
        for fold, number in sums
        if number and not fold.is_cache and fold.path.removesuffix("/.git") not in told
    ]
    if others:
        yield f"also changed: {some(others, _NAMED_FOLDERS)}"
    if folds and not any(number for _, number in sums):
        names = [_relative(fold.path, cwd) for fold in folds]
        yield f"also changed: folders in {some(names, _NAMED_FOLDERS)}"
    if caches:
        names = [_relative(fold.path, cwd) for fold, _ in caches]
        number = sum(number for _, number in caches)
        noun = noun_of(*(fold for fold, _ in caches))
        yield f"caches: {number:,} {noun} in {some(names, 1)}"


def _relative(path: str, cwd: str) -> str:
    """A path as a user in that folder would write it."""
    return path.removeprefix(f"{cwd}/") if cwd != "/" else path


# ---- what files mean -----------------------------------------------------------------------------


def _packages(findings: Iterable[Finding], way: Way) -> Iterator[str]:
    """Packages that go, that come back, and that get another version; dependencies are counted with them."""
    groups: dict[tuple[str, str], list[PackageChange]] = {}
    for change in findings:
        if isinstance(change, PackageChange):
            kind: str = change.change if change.change in ("added", "removed") else "other"
            groups.setdefault((change.ecosystem, kind), []).append(change)
    for (ecosystem, kind), members in groups.items():
        direct = [change for change in members if change.direct] or members
        if kind == "other":
            names = [f"{change.name} {change.after} → {change.before}" for change in direct]
        else:
            names = [f"{change.name} {change.after or change.before}" for change in direct]
        told = {"added": "will be lost", "removed": _RETURNS[way], "other": ""}[kind]
        more = len(members) - min(len(direct), _NAMED_PACKAGES)
        rest = f" and {more:,} more" if more else ""
        yield f"{ecosystem} {', '.join(names[:_NAMED_PACKAGES])}{rest} {told}".rstrip()


def _repositories(findings: Sequence[Finding], way: Way) -> Iterator[str]:
    changes = [finding for finding in findings if isinstance(finding, RepositoryChange)]
    for change in changes:
        where = posixpath.basename(change.path) or "/"
        noun = "worktree" if change.worktree_of else "repository"
        if change.change == "created":
            yield f"{noun} {where} will be lost{_its_commits(change)}"
            continue
        if change.change == "removed":
            yield f"{noun} {where} {_RETURNS[way]}"
            continue
        which = f" of {where}" if len(changes) > 1 or change.bare else ""
        at = describe_head(change) + which
        if change.commit_count:
            subjects = quoted([commit.subject for commit in change.commits], change.commit_count)
            yield f"{plural(change.commit_count, 'commit')} {at} will be lost: {subjects}"
        if change.lost_count:
            subjects = quoted([commit.subject for commit in change.lost], change.lost_count)
            yield f"{plural(change.lost_count, 'commit')} {at} {_RETURNS[way]}: {subjects}"
        if change.branch_before != change.branch_after:
            now, then = describe_head(change), describe_former_head(change)
            yield f"{where} will be {then}, not {now.removeprefix('on ') if then.startswith('on ') else now}"
        for move in change.branches:
            if move.branch != change.branch_after or (move.before is None and not change.commit_count):
                yield f"branch {move.branch}{which} {_fate_of_branch(move, way)}"
        yield from (f"{words}{which} {fate}" for words, fate in _tags(change, way))
        if change.stashed:
            yield f"{plural(change.stashed, 'stash entry')}{which} will be lost"
        if change.unstashed:
            yield f"{plural(change.unstashed, 'stash entry')}{which} {_RETURNS[way]}"
        if change.in_progress and change.in_progress != change.in_progress_before:
            yield f"unfinished {change.in_progress}{which} will be lost"
        if change.in_progress_before and change.in_progress != change.in_progress_before:
            yield f"unfinished {change.in_progress_before}{which} {_RETURNS[way]}"


def _fate_of_branch(move: BranchMove, way: Way) -> str:
    if move.before is None:
        return f"will be lost{_with(move.gained)}"
    if move.after is None:
        return f"{_RETURNS[way]}{_with(move.lost)}"
    changes = [
        f"{verb} {plural(number, 'commit')}"
        for verb, number in (("lose", move.gained), ("gain", move.lost))
        if number
    ]
    return f"will {' and '.join(changes) or 'be as it was then'}"


def _tags(change: RepositoryChange, way: Way) -> Iterator[tuple[str, str]]:
    tags = [ref for ref in change.refs if ref.kind == "tag"]
    for names, fate in (
        ([ref.name for ref in tags if ref.before is None], "will be lost"),
        ([ref.name for ref in tags if ref.after is None], _RETURNS[way]),
        (
            [ref.name for ref in tags if ref.before and ref.after],
            "will be as it was then|will be as they were then",
        ),
    ):
        of_one, _, of_several = fate.partition("|")
        if len(names) == 1:
            yield f"tag {names[0]}", of_one
        elif names:
            yield f"tags {some(names, _NAMED_PACKAGES)}", of_several or fate


def _its_commits(change: RepositoryChange) -> str:
    return f" with its {plural(change.commit_count, 'commit')}" if change.commit_count else ""


def _with(commits: int) -> str:
    return f" with {plural(commits, 'commit')}" if commits else ""


def _databases(findings: Iterable[Finding], way: Way) -> Iterator[str]:
    for change in findings:
        if isinstance(change, ServerChange):
            yield _server(change, way)
        if not isinstance(change, DatabaseChange):
            continue
        name = posixpath.basename(change.path)
        if change.change == "created":
            rows = sum(table.rows_after or 0 for table in change.tables)
            held = f" with {plural(rows, 'row')}" if rows else ""
            yield f"{name} will be lost{held}"
        elif change.change == "removed":
            yield f"{name} {_RETURNS[way]}"
        elif change.damage_before:
            yield f"{name} will be damaged, as it was then"
        elif change.damage:
            yield f"{name} will be whole{' again' * (way == 'back')}"
        else:
            words = [word for table in change.tables for word in _table(table, way)]
            yield f"{name}: {', '.join(words) or 'its schema will be as it was then'}"


def _system(findings: Iterable[Finding], way: Way) -> Iterator[str]:
    """Users, groups, passwords, keys, cron, units, capabilities: each that is another one then."""
    for change in findings:
        if isinstance(change, AccountChange):
            yield f"user {change.name} {_fate(change.change, way)}"
        elif isinstance(change, CronChange):
            yield f"cron {posixpath.basename(change.path)} {_fate(change.change, way)}"
        elif isinstance(change, SystemChange) and change.subject == "keys":
            for mark, fate in (("+", "will be lost"), ("-", _RETURNS[way])):
                if number := sum(detail.startswith(mark) for detail in change.details):
                    yield f"{plural(number, 'key')} in {change.name} {fate}"
        elif isinstance(change, SystemChange) and change.subject == "capability":
            yield f"capabilities of {change.name} will be as they were then"
        elif isinstance(change, SystemChange) and change.details in (("enabled",), ("disabled",)):
            yield f"unit {change.name} will be {'disabled' if change.details == ('enabled',) else 'enabled'}"
        elif isinstance(change, SystemChange):
            what = "password of" if change.subject == "password" else change.subject
            yield f"{what} {change.name} {_fate(change.change, way)}"


def _fate(change: Fate, way: Way) -> str:
    return {"created": "will be lost", "removed": _RETURNS[way], "changed": "will be as it was then"}[change]


def _server(change: ServerChange, way: Way) -> str:
    name = f"{change.server} {posixpath.basename(change.path)}"
    if change.change != "changed":
        return f"{name} {'will be lost' if change.change == 'created' else _RETURNS[way]}"
    words = []
    for space in change.databases:
        fate = f"will be {space.renamed_from}" if space.renamed_from else _fate(space.change, way)
        words.append(f"{space.name} {fate}")
    return f"{name}: {', '.join(words) or 'will be as it was then'}"


def _table(table: TableChange, way: Way) -> Iterator[str]:
    if table.change == "created":
        held = f" with {plural(table.rows_after, 'row')}" if table.rows_after else ""
        yield f"table {table.name} will be lost{held}"
    elif table.change == "removed":
        held = f" with {plural(table.rows_before, 'row')}" if table.rows_before else ""
        yield f"table {table.name} {_RETURNS[way]}{held}"
    elif table.inserted is None:
        before, after = table.rows_before, table.rows_after
        is_counted = before is not None and after is not None and before != after
        counts = f" ({after:,} → {plural(before or 0, 'row')})" if is_counted else ""
        yield f"{table.name} will be as it was then{counts}"
    else:
        if table.renamed_from:
            yield f"{table.name} will be {table.renamed_from}"
        if table.altered:
            yield f"{table.name} will have its definition of then"
        if table.inserted:
            yield f"{plural(table.inserted, 'row')} of {table.name} will be lost"
        if table.deleted:
            yield f"{plural(table.deleted, 'row')} of {table.name} {_RETURNS[way]}"
        if table.updated:
            yield f"{plural(table.updated, 'row')} of {table.name} will have other values"
