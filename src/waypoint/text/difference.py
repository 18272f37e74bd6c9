"""A difference in words, section by section.

Differences are data. Here they become what people read: the faces lay the sections out and colour them, the
words are the same in a terminal, in Python and everywhere else. A section is *derived* from the snapshots or
*observed* by Waypoint; effects that are *judged* from the words of a command, or that a user or an agent only
*claims*, have sections of their own.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from waypoint.api.difference import (
    Change,
    Changes,
    Contact,
    Difference,
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
    ServerChange,
    SystemChange,
)
from waypoint.history.changes import Fold
from waypoint.history.contacts import merge_contacts
from waypoint.model import Effect
from waypoint.text.effects import describe_contacts, describe_effect, effect_source, traffic
from waypoint.text.files import NOUNS, count_files, fold_files, is_told_by_its_files, summarize_files
from waypoint.text.findings import (
    describe_former_head,
    describe_head,
    describe_server,
    quoted,
    summarize_findings,
)
from waypoint.text.live import (
    port_lines,
    port_summary,
    process_lines,
    process_summary,
    shell_lines,
    shell_summary,
)
from waypoint.text.units import plural, shown, size, some

SECTIONS = ("files", "packages", "git", "databases", "system", "processes", "ports", "shell", "network")

_SIGNS: dict[str, Sign] = {
    "created": "+", "added": "+", "modified": "~", "changed": "~", "upgraded": "~", "downgraded": "~",
    "deleted": "-", "removed": "-", "renamed": "→",
}  # fmt: skip
_NOUNS = {"packages": "package", "git": "repository", "databases": "database", "system": "entry"}
_NAMED_PROGRAMS = 3
_LISTED_DEPENDENCIES = 5
_AS_DEPENDENCY = {
    "added": "as a dependency",
    "removed": "was a dependency",
    "upgraded": "a dependency",
    "downgraded": "a dependency",
}
_VALUE_WIDTH = 60


def describe_difference(difference: Difference, only: Collection[str] = ()) -> tuple[Section, ...]:
    """All sections that are not empty; `only`: of these, the ones with these names."""
    findings = difference.analysis.findings
    live = difference.live
    sections = (
        _section(
            "files",
            "derived",
            summarize_files(difference.files, difference.analysis),
            _files(difference.files, difference.analysis),
        ),
        _findings("packages", findings, (PackageChange,), _packages),
        _findings("git", findings, (RepositoryChange,), _repositories),
        _findings("databases", findings, (DatabaseChange, ServerChange), _databases),
        _findings("system", findings, (AccountChange, CronChange, SystemChange), _system),
        _section("processes", "observed", process_summary(live), process_lines(live)),
        _section("ports", "observed", port_summary(live), port_lines(live)),
        _section("shell", "observed", shell_summary(live), shell_lines(live)),
        _section(
            "network", "observed", describe_contacts(difference.contacts), _contacts(difference.contacts)
        ),
    )
    return tuple(section for section in sections if section.lines and (not only or section.name in only))


def describe_effects(effects: Sequence[Effect]) -> tuple[Section, ...]:
    """What was done outside: a section for each way in which it is known."""
    sources: tuple[Source, ...] = ("observed", "judged", "claimed")
    sections = (
        _outside(source, [effect for effect in effects if effect_source(effect) == source])
        for source in sources
    )
    return tuple(section for section in sections if section.lines)


def _outside(source: Source, effects: Sequence[Effect]) -> Section:
    them = "it" if len(effects) == 1 else "them"
    summary = f"{plural(len(effects), 'effect')}, no restore undoes {them}"
    return _section("outside", source, summary, map(_effect, effects))


def _effect(effect: Effect) -> SectionLine:
    target = effect.target if effect.target not in effect.command else ""
    return SectionLine(sign="→", text=describe_effect(effect), detail=_join(effect.class_, target))


def _join(*phrases: str) -> str:
    return " · ".join(filter(None, phrases))


def _section(name: str, source: Source, summary: str, lines: Iterable[SectionLine]) -> Section:
    clean = (SectionLine(sign=line.sign, text=shown(line.text), detail=shown(line.detail)) for line in lines)
    return Section(name=name, source=source, summary=shown(summary), lines=tuple(clean))


# ---- files ---------------------------------------------------------------------------------------


def _files(changes: Changes, analysis: Analysis) -> Iterator[SectionLine]:
    folded = fold_files(changes, analysis)
    parents = {posixpath.dirname(change.path) for change in folded.changes}
    parents |= {posixpath.dirname(fold.path) for fold in folded.folds}
    entries = [
        (change.path, _file(change)) for change in folded.changes if not is_told_by_its_files(change, parents)
    ]
    entries += [(fold.path, _fold(fold)) for fold in folded.folds]
    return (line for _, line in sorted(entries, key=lambda entry: entry[0]))


def _file(change: Change) -> SectionLine:
    path = f"{change.path}/" if change.entry == "folder" and change.path != "/" else change.path
    phrases = []
    if change.files:
        phrases.append(f"{'at least ' if change.at_least else ''}{plural(change.files, 'file')}")
    if "type" in change.what and change.entry_before:
        phrases.append(f"was a {NOUNS[change.entry_before]}, is a {NOUNS[change.entry]}")
    elif "content" in change.what and change.entry == "link":
        phrases.append("symlink with another target")
    elif "content" in change.what and change.size_before is not None and change.size_after is not None:
        before, after = size(change.size_before), size(change.size_after)
        phrases.append(f"{before} → {after}" if before != after else after)
    elif change.links_to is not None:
        phrases.append(f"{'was a ' * (change.kind == 'deleted')}hard link of {change.links_to}")
    elif change.kind == "created" and change.entry == "file" and change.size_after is not None:
        phrases.append(size(change.size_after))
    elif change.kind == "created" and change.entry not in ("file", "folder"):
        phrases.append(NOUNS[change.entry])
    if "mode" in change.what and change.mode_before is not None and change.mode_after is not None:
        phrases.append(f"mode {change.mode_before & 0o7777:o} → {change.mode_after & 0o7777:o}")
    if "owner" in change.what:
        phrases.append(f"owner {change.owner_before} → {change.owner_after}")
    if "xattr" in change.what:
        phrases.append("attributes")
    text = f"{change.old_path} → {path}" if change.kind == "renamed" and change.old_path else path
    return SectionLine(sign=_SIGNS[change.kind], text=text, detail=_join(*phrases))


def _fold(fold: Fold) -> SectionLine:
    numbers: dict[Sign, int] = {
        "+": fold.created,
        "~": fold.modified,
        "-": fold.deleted,
        "→": fold.renamed,
    }
    signs: list[Sign] = [sign for sign, number in numbers.items() if number]
    counts = count_files(fold) or "folders only"
    return SectionLine(
        sign=signs[0] if len(signs) == 1 else "~",
        text=f"{fold.path}/",
        detail=_join(counts, size(fold.bytes) if fold.bytes else ""),
    )


# ---- what files mean -----------------------------------------------------------------------------


_Lines = Callable[[Sequence[Finding]], Iterator[SectionLine]]


def _findings(
    name: str, findings: Sequence[Finding], kinds: tuple[type[Finding], ...], lines: _Lines
) -> Section:
    of_kind = [finding for finding in findings if isinstance(finding, kinds)]
    phrases = summarize_findings(Analysis(findings=tuple(of_kind)))
    places = [
        finding.path for finding in of_kind if isinstance(finding, RepositoryChange) and _waits(finding)
    ]
    other = f"not committed: {some(places, 2)}" if places else plural(len(of_kind), _NOUNS[name])
    return _section(name, "derived", _join(*phrases) or other, lines(of_kind))


def _waits(change: RepositoryChange) -> bool:
    """Whether files that changed are not committed."""
    return bool(change.staged or change.modified or change.untracked or change.untracked_folded)


def _packages(findings: Sequence[Finding]) -> Iterator[SectionLine]:
    changes = [finding for finding in findings if isinstance(finding, PackageChange)]
    direct = [change for change in changes if change.direct]
    dependencies = [change for change in changes if not change.direct]
    listed = changes if len(dependencies) <= _LISTED_DEPENDENCIES else direct
    for change in listed:
        where = "" if change.environment in ("/", "/usr", "/usr/local") else f"in {change.environment}"
        version = change.after or change.before or ""
        if change.before and change.after:
            version = f"{change.before} → {change.after}"
        how = "" if change.direct else _AS_DEPENDENCY[change.change]
        lock = "" if change.installed else "in the lock file only"
        yield SectionLine(
            sign=_SIGNS[change.change],
            text=f"{change.ecosystem} {change.name}",
            detail=_join(version, where, how, lock),
        )
    if len(listed) < len(changes):
        counts = Counter((change.ecosystem, _SIGNS[change.change]) for change in dependencies)
        for (ecosystem, sign), number in counts.items():
            yield SectionLine(sign=sign, text=f"{ecosystem} {number:,} more", detail=_as_dependencies(number))


def _as_dependencies(number: int) -> str:
    return "as a dependency" if number == 1 else "as dependencies"


def _repositories(findings: Sequence[Finding]) -> Iterator[SectionLine]:
    for change in (finding for finding in findings if isinstance(finding, RepositoryChange)):
        where = describe_head(change)
        if change.branch_before and change.branch_after and change.branch_before != change.branch_after:
            where = f"{describe_former_head(change).removeprefix('on ')} → {where.removeprefix('on ')}"
        phrases = [where if change.change != "removed" else ""]
        if change.moved_from:
            phrases.append(f"was {change.moved_from}")
        for number, word in (
            (change.committed, "committed"),
            (change.staged, "staged"),
            (change.modified, "changed and not committed"),
            (change.untracked + change.untracked_folded, "untracked"),
        ):
            if number:
                phrases.append(f"{plural(number, 'file')} {word}")
        if change.in_progress:
            phrases.append(f"{change.in_progress} unfinished")
        yield SectionLine(sign=_SIGNS[change.change], text=change.path, detail=_join(*phrases))
        for commit in change.commits:
            detail = "merge" if commit.merge else "commit"
            yield SectionLine(sign="+", text=f'{commit.id[:7]} "{commit.subject}"', detail=detail)
        if change.commit_count > len(change.commits):
            more = change.commit_count - len(change.commits)
            yield SectionLine(sign="+", text=plural(more, "more commit"))
        for commit in change.lost:
            yield SectionLine(sign="-", text=f'{commit.id[:7]} "{commit.subject}"', detail="lost commit")
        if change.lost_count > len(change.lost):
            more = change.lost_count - len(change.lost)
            yield SectionLine(sign="-", text=plural(more, "more lost commit"))
        for branch in change.branches:
            sign: Sign = "+" if branch.before is None else "-" if branch.after is None else "~"
            moved = " → ".join(commit[:7] for commit in (branch.before, branch.after) if commit)
            lost = f"lost {quoted(branch.lost_subjects, branch.lost)}" if branch.lost else ""
            yield SectionLine(sign=sign, text=f"branch {branch.branch}", detail=_join(moved, lost))
        for ref in change.refs:
            sign = "+" if ref.before is None else "-" if ref.after is None else "~"
            moved = " → ".join(commit[:7] for commit in (ref.before, ref.after) if commit)
            yield SectionLine(sign=sign, text=f"{ref.kind} {ref.name}", detail=moved)
        if change.stashed:
            yield SectionLine(sign="+", text=plural(change.stashed, "stash entry"))
        if change.unstashed:
            yield SectionLine(sign="-", text=plural(change.unstashed, "stash entry"))
        for move in change.moves:
            yield SectionLine(sign="~", text=move)


def _databases(findings: Sequence[Finding]) -> Iterator[SectionLine]:
    for server in (finding for finding in findings if isinstance(finding, ServerChange)):
        detail = _join(
            f"{server.server} {server.version}".rstrip(), describe_server(server).partition(": ")[2]
        )
        yield SectionLine(sign=_SIGNS[server.change], text=server.path, detail=detail)
        if server.change == "created":
            for space in server.databases:
                counted = plural(space.after, server.unit) if space.after and server.unit else ""
                yield SectionLine(sign="+", text=space.name, detail=counted)
    for change in (finding for finding in findings if isinstance(finding, DatabaseChange)):
        [phrase] = summarize_findings(Analysis(findings=(change,))) or [""]
        # Of `sqlite app.db: orders +12 rows` only the second half: the path is in the line already.
        detail = phrase.partition(": ")[2] or phrase.partition("(")[2].removesuffix(")")
        if change.change == "changed" and (change.damage_before or change.damage):
            detail = f"damaged: {change.damage}" if change.damage else "whole again"
        if change.renamed_from:
            detail = _join(f"was {change.renamed_from}", detail)
        yield SectionLine(sign=_SIGNS[change.change], text=change.path, detail=detail)
        for entry in change.schema:
            marks: dict[str, Sign] = {"+": "+", "-": "-"}
            yield SectionLine(sign=marks.get(entry[:1], "~"), text=entry[1:], detail="schema")


def _system(findings: Sequence[Finding]) -> Iterator[SectionLine]:
    for change in findings:
        if isinstance(change, AccountChange):
            detail = "" if change.uid is None else f"uid {change.uid}"
            yield SectionLine(sign=_SIGNS[change.change], text=f"user {change.name}", detail=detail)
        elif isinstance(change, CronChange):
            yield SectionLine(sign=_SIGNS[change.change], text=f"cron {change.path}")
            yield from (SectionLine(sign="+", text=line, detail="cron") for line in change.added)
            yield from (SectionLine(sign="-", text=line, detail="cron") for line in change.removed)
        elif isinstance(change, SystemChange):
            if change.subject == "keys":
                yield SectionLine(sign=_SIGNS[change.change], text=change.name, detail="may log in")
                for key in change.details:
                    yield SectionLine(sign="+" if key.startswith("+") else "-", text=key[1:], detail="key")
            else:
                text = f"{'password of' if change.subject == 'password' else change.subject} {change.name}"
                yield SectionLine(sign=_SIGNS[change.change], text=text, detail=", ".join(change.details))


# ---- the live side -------------------------------------------------------------------------------


def _contacts(contacts: Sequence[Contact]) -> Iterator[SectionLine]:
    for contact in merge_contacts(contacts):
        detail = _join(traffic(contact), contact.address if contact.names else "")
        yield SectionLine(sign="→", text=contact.where, detail=detail)
