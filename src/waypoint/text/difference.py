"""A difference in words, section by section; and a plan.

Cards, differences and plans are data. Here they become what people read: the faces lay it out and colour it,
but what is said, and in which words, is the same in a terminal, in Python and wherever else. What stands in a
section is *derived* from the snapshots or *observed* by Waypoint; effects that somebody claims are in one of
their own.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from waypoint.api.difference import (
    Change,
    Changes,
    Contact,
    Difference,
    LiveDifference,
    PlanWords,
    PortFact,
    ProcessFact,
    RestorePlan,
    Section,
    SectionLine,
    Sign,
    Source,
)
from waypoint.api.findings import (
    AccountChange,
    Analysis,
    CronChange,
    DatabaseChange,
    Finding,
    PackageChange,
    RepositoryChange,
)
from waypoint.history import changes
from waypoint.history.changes import Fold
from waypoint.history.contacts import join
from waypoint.history.facts import OWN_SHELL, Facts
from waypoint.history.redaction import MASK
from waypoint.model import Checkpoint, Effect, State, TaskChange
from waypoint.text.cards import program_name
from waypoint.text.effects import amount, phrase, words
from waypoint.text.findings import headline
from waypoint.text.units import plural, shown, size

SECTIONS = ("files", "packages", "git", "databases", "system", "processes", "ports", "shell", "network")

_SIGNS: dict[str, Sign] = {
    "created": "+", "added": "+", "modified": "~", "changed": "~", "upgraded": "~", "downgraded": "~",
    "deleted": "-", "removed": "-", "renamed": "→",
}  # fmt: skip
_NOUNS = {"packages": "package", "git": "repository", "databases": "database", "system": "entry"}
_MOST_NAMED = 2
_MOST_TASKS = 3
_MOST_PROGRAMS = 3
_MOST_ALONG = 5
_VALUE_WIDTH = 60


def tell(difference: Difference, only: Collection[str] = ()) -> tuple[Section, ...]:
    """All sections that have something to say, or those of these names among them."""
    findings = difference.analysis.findings
    live = difference.live
    told = (
        _section("files", "derived", changes.headline(difference.files), _files(difference.files)),
        _found("packages", findings, (PackageChange,), _packages),
        _found("git", findings, (RepositoryChange,), _repositories),
        _found("databases", findings, (DatabaseChange,), _databases),
        _found("system", findings, (AccountChange, CronChange), _system),
        _section("processes", "observed", _process_summary(live), _processes(live)),
        _section("ports", "observed", _port_summary(live), _ports(live)),
        _section("shell", "observed", _shell_summary(live), _shell(live)),
        _section("network", "observed", phrase(difference.contacts), _contacts(difference.contacts)),
    )
    return tuple(one for one in told if one.lines and (not only or one.name in only))


def outside(effects: Sequence[Effect]) -> tuple[Section, ...]:
    """What was done outside: what is known, and apart from it what somebody says."""
    observed = [one for one in effects if one.source != "claimed"]
    claimed = [one for one in effects if one.source == "claimed"]
    told = (_outside("observed", observed), _outside("claimed", claimed))
    return tuple(one for one in told if one.lines)


def _outside(source: Source, effects: Sequence[Effect]) -> Section:
    them = "it" if len(effects) == 1 else "them"
    summary = f"{plural(len(effects), 'effect')}, no restore undoes {them}"
    return _section("outside", source, summary, (_effect(one) for one in effects))


def _effect(effect: Effect) -> SectionLine:
    said = [effect.class_, effect.target if effect.target not in effect.command else ""]
    return SectionLine(sign="→", text=words(effect), detail=" · ".join(filter(None, said)))


def _section(name: str, source: Source, summary: str, lines: Iterable[SectionLine]) -> Section:
    clean = (SectionLine(sign=line.sign, text=shown(line.text), detail=shown(line.detail)) for line in lines)
    return Section(name=name, source=source, summary=shown(summary), lines=tuple(clean))


# ---- files ---------------------------------------------------------------------------------------


def _files(files: Changes) -> Iterator[SectionLine]:
    folded = changes.fold(files)
    parents = {posixpath.dirname(change.path) for change in folded.changes}
    parents |= {posixpath.dirname(fold.path) for fold in folded.folds}
    entries: list[tuple[str, SectionLine]] = []
    for change in folded.changes:
        # A folder goes without saying where something in it is said.
        if change.entry == "folder" and change.kind in ("created", "deleted") and change.path in parents:
            continue
        entries.append((change.path, _file(change)))
    entries += [(fold.path, _fold(fold)) for fold in folded.folds]
    return (line for _, line in sorted(entries, key=lambda entry: entry[0]))


def _file(change: Change) -> SectionLine:
    path = f"{change.path}/" if change.entry == "folder" and change.path != "/" else change.path
    said = []
    if change.files:
        said.append(f"{'at least ' if change.at_least else ''}{plural(change.files, 'file')}")
    if "type" in change.what and change.entry_before:
        said.append(f"was a {change.entry_before}, is a {change.entry}")
    elif "content" in change.what and change.size_before is not None and change.size_after is not None:
        before, after = size(change.size_before), size(change.size_after)
        said.append(f"{before} → {after}" if before != after else after)
    elif change.kind == "created" and change.entry == "file" and change.size_after is not None:
        said.append(size(change.size_after))
    elif change.kind == "created" and change.entry not in ("file", "folder"):
        said.append(change.entry)
    if "mode" in change.what and change.mode_before is not None and change.mode_after is not None:
        said.append(f"mode {change.mode_before & 0o7777:o} → {change.mode_after & 0o7777:o}")
    if "owner" in change.what:
        said.append(f"owner {change.owner_before} → {change.owner_after}")
    if "xattr" in change.what:
        said.append("attributes")
    text = f"{change.old_path} → {path}" if change.kind == "renamed" and change.old_path else path
    return SectionLine(sign=_SIGNS[change.kind], text=text, detail=" · ".join(said))


def _fold(fold: Fold) -> SectionLine:
    numbers: dict[Sign, int] = {
        "+": fold.created,
        "~": fold.modified,
        "-": fold.deleted,
        "→": fold.renamed,
    }
    there: list[tuple[Sign, int]] = [(sign, number) for sign, number in numbers.items() if number]
    counts = " ".join(f"{sign}{number:,}" for sign, number in there)
    total = sum(number for _, number in there)
    said = f"{counts} file{'s' * (total != 1)}" if there else "folders only"
    return SectionLine(
        sign=there[0][0] if len(there) == 1 else "~",
        text=f"{fold.path}/",
        detail=f"{said} · {size(fold.bytes)}" if fold.bytes else said,
    )


# ---- what files mean -----------------------------------------------------------------------------


_Lines = Callable[[Sequence[Finding]], Iterator[SectionLine]]


def _found(
    name: str, findings: Sequence[Finding], kinds: tuple[type[Finding], ...], lines: _Lines
) -> Section:
    mine = [one for one in findings if isinstance(one, kinds)]
    summary = " · ".join(headline(Analysis(findings=tuple(mine)))) or plural(len(mine), _NOUNS[name])
    return _section(name, "derived", summary, lines(mine))


def _packages(found: Sequence[Finding]) -> Iterator[SectionLine]:
    changes = [one for one in found if isinstance(one, PackageChange)]
    along = [one for one in changes if not one.direct]
    listed = changes if len(along) <= _MOST_ALONG else [one for one in changes if one.direct]
    for change in listed:
        where = "" if change.environment in ("/", "/usr", "/usr/local") else f"in {change.environment}"
        version = change.after or change.before or ""
        if change.before and change.after:
            version = f"{change.before} → {change.after}"
        said = [version, where, "" if change.direct else "came along"]
        said.append("" if change.installed else "in the lock file only")
        text = f"{change.ecosystem} {change.name}"
        yield SectionLine(sign=_SIGNS[change.change], text=text, detail=" · ".join(filter(None, said)))
    if len(listed) < len(changes):
        for (ecosystem, sign), number in Counter(
            (one.ecosystem, _SIGNS[one.change]) for one in along
        ).items():
            yield SectionLine(sign=sign, text=f"{ecosystem} {number:,} more", detail="came along")


def _repositories(found: Sequence[Finding]) -> Iterator[SectionLine]:
    for change in (one for one in found if isinstance(one, RepositoryChange)):
        where = change.branch_after or change.branch_before or "no branch"
        if change.branch_before and change.branch_after and change.branch_before != change.branch_after:
            where = f"{change.branch_before} → {change.branch_after}"
        said = [f"on {where}"]
        if change.moved_from:
            said.append(f"was {change.moved_from}")
        for number, word in (
            (change.committed, "committed"),
            (change.staged, "staged"),
            (change.modified, "changed and not committed"),
            (change.untracked + change.untracked_folded, "untracked"),
        ):
            if number:
                said.append(f"{plural(number, 'file')} {word}")
        if change.in_progress:
            said.append(f"{change.in_progress} unfinished")
        yield SectionLine(sign=_SIGNS[change.change], text=change.path, detail=" · ".join(said))
        for commit in change.commits:
            yield SectionLine(sign="+", text=f'{commit.id[:7]} "{commit.subject}"', detail="commit")
        if change.commit_count > len(change.commits):
            yield SectionLine(sign="+", text=f"{change.commit_count - len(change.commits):,} more commits")
        for branch in change.branches:
            sign: Sign = "+" if branch.before is None else "-" if branch.after is None else "~"
            moved = " → ".join(one[:7] for one in (branch.before, branch.after) if one)
            yield SectionLine(sign=sign, text=f"branch {branch.branch}", detail=moved)
        for move in change.moves:
            yield SectionLine(sign="~", text=move)


def _databases(found: Sequence[Finding]) -> Iterator[SectionLine]:
    for change in (one for one in found if isinstance(one, DatabaseChange)):
        [phrase] = headline(Analysis(findings=(change,))) or [""]
        # `sqlite app.db: orders +12 rows`: the path is said already.
        said = phrase.partition(": ")[2] or phrase.partition("(")[2].rstrip(")")
        yield SectionLine(sign=_SIGNS[change.change], text=change.path, detail=said)
        for entry in change.schema:
            marks: dict[str, Sign] = {"+": "+", "-": "-"}
            yield SectionLine(sign=marks.get(entry[:1], "~"), text=entry[1:], detail="schema")


def _system(found: Sequence[Finding]) -> Iterator[SectionLine]:
    for change in found:
        if isinstance(change, AccountChange):
            detail = "" if change.uid is None else f"uid {change.uid}"
            yield SectionLine(sign=_SIGNS[change.change], text=f"user {change.name}", detail=detail)
        elif isinstance(change, CronChange):
            yield SectionLine(sign=_SIGNS[change.change], text=f"cron {change.path}")
            yield from (SectionLine(sign="+", text=line, detail="cron") for line in change.added)
            yield from (SectionLine(sign="-", text=line, detail="cron") for line in change.removed)


# ---- the live side -------------------------------------------------------------------------------


def _programs(processes: Sequence[ProcessFact], ports: Sequence[PortFact]) -> list[str]:
    """`node :8080`, `postgres ×7`: each program once."""
    listening: dict[str, set[int]] = {}
    count: Counter[str] = Counter()
    for process in processes:
        name = program_name(process.command)
        count[name] += 1
        listening.setdefault(name, set()).update(port.port for port in ports if port.pid == process.pid)
    return [
        name
        + (f" ×{number}" if number > 1 else "")
        + "".join(f" :{port}" for port in sorted(listening[name]))
        for name, number in count.items()
    ]


def _process_summary(live: LiveDifference) -> str:
    said = []
    for word, members, ports in (("started", live.started, live.opened), ("ended", live.ended, live.closed)):
        names = _programs(members, ports)
        if names:
            more = f" and {len(names) - _MOST_PROGRAMS} more" if len(names) > _MOST_PROGRAMS else ""
            said.append(f"{', '.join(names[:_MOST_PROGRAMS])}{more} {word}")
    if live.kept:
        said.append(f"{live.kept:,} still there")
    before, after = live.memory_bytes
    if said and size(before) != size(after):
        said.append(f"memory {size(before)} → {size(after)}")
    return " · ".join(said)


def _processes(live: LiveDifference) -> Iterator[SectionLine]:
    signs: tuple[tuple[Sign, Sequence[ProcessFact], Sequence[PortFact]], ...] = (
        ("+", live.started, live.opened),
        ("-", live.ended, live.closed),
    )
    for sign, members, ports in signs:
        for process in members:
            [name] = _programs([process], ports)
            said = f"pid {process.pid} · {_cut(process.command)}"
            yield SectionLine(sign=sign, text=name, detail=f"{said} · stopped" if process.stopped else said)


def _port_summary(live: LiveDifference) -> str:
    said = []
    for word, ports in (("opened", live.opened), ("closed", live.closed)):
        if ports:
            said.append(f"{', '.join(f':{port}' for port in sorted({one.port for one in ports}))} {word}")
    return " · ".join(said)


def _ports(live: LiveDifference) -> Iterator[SectionLine]:
    signs: tuple[tuple[Sign, Sequence[PortFact]], ...] = (("+", live.opened), ("-", live.closed))
    for sign, ports in signs:
        for port in ports:
            address = f"[{port.address}]" if ":" in port.address else port.address
            who = program_name(port.command) if port.command else ""
            yield SectionLine(sign=sign, text=f"{port.protocol} {address}:{port.port}", detail=who)


def _shell_summary(live: LiveDifference) -> str:
    said = []
    if live.cwd:
        said.append(f"cwd {live.cwd[0]} → {live.cwd[1]}")
    if live.variables:
        said.append(plural(len(live.variables), "variable"))
    if functions := len(live.functions_added) + len(live.functions_removed):
        said.append(plural(functions, "function"))
    return " · ".join(said)


def _shell(live: LiveDifference) -> Iterator[SectionLine]:
    if live.cwd:
        yield SectionLine(sign="~", text=f"cwd {live.cwd[0]} → {live.cwd[1]}")
    for variable in live.variables:
        sign: Sign = "+" if variable.before is None else "-" if variable.after is None else "~"
        values = [_cut(value) for value in (variable.before, variable.after) if value is not None]
        yield SectionLine(sign=sign, text=variable.name, detail=" → ".join(values) if sign != "-" else "")
    yield from (SectionLine(sign="+", text=f"{name}()") for name in live.functions_added)
    yield from (SectionLine(sign="-", text=f"{name}()") for name in live.functions_removed)


def _contacts(contacts: Sequence[Contact]) -> Iterator[SectionLine]:
    for contact in join(contacts):
        address = f" · {contact.address}" if contact.names else ""
        yield SectionLine(sign="→", text=contact.where, detail=f"{amount(contact)}{address}")


def _cut(value: str) -> str:
    return value if len(value) <= _VALUE_WIDTH else f"{value[: _VALUE_WIDTH - 1]}…"


# ---- a part of a difference ----------------------------------------------------------------------


def within(difference: Difference, paths: Sequence[str], cwd: str) -> Difference:
    """What of a difference is about these paths, below them, or matches them as patterns. One that does not
    start at the root is seen from `cwd`. The live side is in no path."""
    wanted = [posixpath.normpath(posixpath.join(cwd, path)) for path in paths]

    def is_wanted(path: str | None) -> bool:
        return path is not None and any(_is_within(path, one) for one in wanted)

    files = Changes(
        changes=tuple(one for one in difference.files if is_wanted(one.path) or is_wanted(one.old_path))
    )
    findings = tuple(
        one
        for one in difference.analysis.findings
        if is_wanted(
            one.environment
            if isinstance(one, PackageChange)
            else None
            if isinstance(one, AccountChange)
            else one.path
        )
    )
    return msgspec.structs.replace(
        difference,
        files=files,
        analysis=msgspec.structs.replace(difference.analysis, findings=findings),
        live=LiveDifference(),
        contacts=(),
        redacted=msgspec.json.encode(findings).decode().count(MASK),
    )


def _is_within(path: str, wanted: str) -> bool:
    if any(letter in wanted for letter in "*?["):
        return fnmatch.fnmatchcase(path, wanted) or fnmatch.fnmatchcase(path, f"{wanted}/*")
    return wanted in ("/", path) or path.startswith(f"{wanted}/")


# ---- plans ---------------------------------------------------------------------------------------


def tell_plan(plan: RestorePlan, target: Facts, *, state: State, next_label: str) -> PlanWords:
    """`target`: what runs at the point that the plan leads to."""
    lost = plan.lost
    forward = plan.head is not None and plan.target.created_at > plan.head.created_at
    running = [process for process in target.processes if OWN_SHELL not in process.command]
    shell = [f"cwd {lost.live.cwd[1]} → {lost.live.cwd[0]}"] if lost.live.cwd else []
    if lost.live.variables:
        shell.append(plural(len(lost.live.variables), "variable"))
    if functions := len(lost.live.functions_added) + len(lost.live.functions_removed):
        shell.append(plural(functions, "function"))
    return PlanWords(
        here=_here(plan),
        state=state,
        forward=forward,
        files=tuple(_going(lost.files, target.shell.cwd, forward=forward)),
        ends=tuple(_programs(lost.live.started, lost.live.opened)),
        resumes=tuple(_programs(running, target.ports)),
        shell=tuple(shown(one) for one in shell),
        tasks=tuple(tell_tasks(plan.tasks)),
        safety=next_label if state == "live" else None,
    )


def tell_tasks(changes: Sequence[TaskChange]) -> Iterator[str]:
    """Tasks that stand otherwise, those together that change in the same way."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        states = (change.before or "not planned", change.after or "not planned")
        groups.setdefault((states[0].replace("_", " "), states[1].replace("_", " ")), []).append(change.title)
    for (before, after), titles in groups.items():
        named = ", ".join(f'"{shown(title)}"' for title in titles[:_MOST_TASKS])
        more = f", … ({len(titles) - _MOST_TASKS:,} more)" if len(titles) > _MOST_TASKS else ""
        way = before if before == after else f"{before} → {after}"
        yield f"{len(titles):,} {way}: {named}{more}"


def _here(plan: RestorePlan) -> str:
    since = plan.uncheckpointed
    count = changes.total(since.files)
    files = count.created + count.modified + count.deleted + count.renamed
    processes = len(since.live.started) + len(since.live.ended)
    more = plural(files, "file") if files else plural(processes, "process") if processes else ""
    if not more and not since.empty:
        more = "what came after it"
    where = called(plan.head, plan.session) if plan.head else "the base"
    return f"{where} + {more}" if more else where


def called(point: Checkpoint, session: str) -> str:
    """A point by its label, with its session where that is another."""
    return point.label if point.session == session else f"{point.session}:{point.label}"


def _going(files: Changes, cwd: str, *, forward: bool) -> Iterator[str]:
    folded = changes.fold(files)
    plain = [change for change in folded.changes if change.entry != "folder" or change.files]
    for kinds, back, ahead in (
        (("created", "modified"), "written since will go", "as they are now will go"),
        (("deleted",), "deleted since will be back", "not there now will be"),
        (("renamed",), "renamed since will have the old name", "will have another name"),
    ):
        words = ahead if forward else back
        mine = [change for change in plain if change.kind in kinds]
        number = sum(change.files or 1 for change in mine)
        if mine:
            yield f"{number:,} {words}: {_named([change.path for change in mine], cwd)}"
    for fold in folded.folds:
        number = fold.created + fold.modified + fold.deleted + fold.renamed
        if number:
            yield f"{number:,} changed in {_near(fold.path, cwd)}"


def _named(paths: Sequence[str], cwd: str) -> str:
    names = [shown(_near(path, cwd)) for path in paths[:_MOST_NAMED]]
    more = f", … ({len(paths) - _MOST_NAMED:,} more)" if len(paths) > _MOST_NAMED else ""
    return ", ".join(names) + more


def _near(path: str, cwd: str) -> str:
    """A path as somebody in that folder would say it."""
    return path.removeprefix(f"{cwd}/") if cwd != "/" else path
