"""What changed in a few words each, for the one line that a log has room for: files, findings, programs."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from waypoint.api.difference import Changes, PortFact, ProcessFact
from waypoint.api.findings import (
    AccountChange,
    Analysis,
    CronChange,
    DatabaseChange,
    PackageChange,
    RepositoryChange,
    TableChange,
)
from waypoint.history.changes import Fold, Summary, fold_noisy, total
from waypoint.text.units import cut

_SIGNS = {"added": "+", "created": "+", "upgraded": "~", "downgraded": "~", "changed": "~", "removed": "-"}
_NAMED = 3
_NAMED_FOLDERS = 2
_SYSTEM = {"/", "/usr", "/usr/local"}


def summarize_files(changes: Changes) -> str:
    """All changed files in a few words: `+7 ~3 files, +1,842 in node_modules`; empty when nothing changed."""
    folded = fold_noisy(changes)
    listed = total(folded.changes)
    words = count_files(listed)
    folds = [(fold.path.rpartition("/")[2], count_files(fold)) for fold in folded.folds]
    # What git wrote for itself is not worth a word beside other changes.
    folds = [(name, counts) for name, counts in folds if counts and not (words and name == ".git")]
    named = folds[:_NAMED_FOLDERS]
    if not words and folds:
        more = ", …" if len(folds) > _NAMED_FOLDERS else ""
        names = ", ".join(dict.fromkeys(name for name, _ in named))
        return f"{count_files(total(changes))} ({names}{more})"
    phrases = [
        words or (f"{listed.folders:,} folder{'s' * (listed.folders != 1)}" if listed.folders else ""),
        *(f"{counts.rpartition(' ')[0]} in {name}" for name, counts in named),
        "…" if len(folds) > _NAMED_FOLDERS else "",
    ]
    return ", ".join(filter(None, phrases))


def count_files(count: Summary | Fold) -> str:
    """`+7 ~3 files`; empty when there are none."""
    numbers = {"+": count.created, "~": count.modified, "-": count.deleted, "→": count.renamed}
    words = [f"{sign}{number:,}" for sign, number in numbers.items() if number]
    return f"{' '.join(words)} file{'s' * (sum(numbers.values()) != 1)}" if words else ""


def program_name(command: str) -> str:
    """The name a person would use for a process: `node`, `http.server`, `redis-server`."""
    words = command.split()
    if not words:
        return "?"
    name = posixpath.basename(words[0].strip("[]-")).rstrip(":")  # `nginx: worker process`
    if name.startswith("python") and "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    if name.startswith(("python", "node", "ruby", "perl", "bash", "sh")):
        for word in words[1:]:
            if not word.startswith("-"):
                return posixpath.basename(word)
    return name


def program_names(processes: Sequence[ProcessFact], ports: Sequence[PortFact]) -> list[str]:
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


def summarize_findings(analysis: Analysis) -> list[str]:
    """One phrase for each thing that happened, the most informative first."""
    findings = analysis.findings
    phrases = [
        *_packages([finding for finding in findings if isinstance(finding, PackageChange)]),
        *(
            phrase
            for finding in findings
            if isinstance(finding, RepositoryChange)
            for phrase in _repository(finding)
        ),
        *(
            phrase
            for finding in findings
            if isinstance(finding, DatabaseChange)
            for phrase in _database(finding)
        ),
        *_counted("user", [finding for finding in findings if isinstance(finding, AccountChange)]),
        *_counted("cron", [finding for finding in findings if isinstance(finding, CronChange)]),
    ]
    return [_printable(phrase, 120) for phrase in phrases]


def _printable(words: str, width: int) -> str:
    """Words from a session, fit for a terminal: no control characters, one line, at most `width` letters."""
    return cut("".join(letter if letter.isprintable() else " " for letter in words), width)


def _packages(changes: list[PackageChange]) -> Iterator[str]:
    environments = {(change.ecosystem, change.environment) for change in changes}
    for (ecosystem, environment), group in groupby(
        changes, lambda change: (change.ecosystem, change.environment)
    ):
        members = list(group)
        several = sum(1 for other, _ in environments if other == ecosystem) > 1
        direct = [change for change in members if change.direct] or members
        rest = len(members) - len(direct)
        if len(direct) <= _NAMED:
            words = ", ".join(_package(change, versions=len(direct) == 1) for change in direct)
            if rest:
                words += f" (and {rest} with it)" if len(direct) == 1 else f" (and {rest} with them)"
            where = f" in {environment}" if several else ""
        else:
            words = _signs([change.change for change in members])
            where = (
                f" in {environment}" if several or (ecosystem == "pip" and environment not in _SYSTEM) else ""
            )
        lock = "" if all(change.installed for change in members) else " locked"
        yield f"{ecosystem}{lock} {words}{where}"


def _package(change: PackageChange, *, versions: bool) -> str:
    name = f"{_SIGNS[change.change]}{change.name}"
    if not versions:
        return name
    if change.change in {"upgraded", "downgraded"}:
        return f"{name} {change.before} → {change.after}"
    return f"{name} {change.after}" if change.after else name


def _signs(changes: list[str]) -> str:
    signs = [_SIGNS[change] for change in changes]
    return " ".join(f"{sign}{signs.count(sign):,}" for sign in "+~-" if sign in signs)


def _repository(change: RepositoryChange) -> Iterator[str]:
    where = change.path.rpartition("/")[2] or "/"
    if change.change == "removed":
        yield f"git -{where}"
        return
    branch = change.branch_after or "no branch"
    if change.commit_count:
        noun = "commit" if change.commit_count == 1 else "commits"
        words = (
            f'git {change.commit_count:,} {noun} on {branch} "{_printable(change.commits[0].subject, 50)}"'
        )
        yield f"{words}, {change.untracked:,} untracked" if change.untracked else words
    elif change.moved_from:
        yield f"git {change.moved_from} → {change.path}"
    elif change.change == "created":
        yield f"git +{where} on {branch}"
    elif change.branch_before != change.branch_after:
        yield f"git {change.branch_before} → {branch}"
    elif change.head_before != change.head_after:
        yield f"git {branch} moved to {(change.head_after or 'nothing')[:7]}"
    if change.in_progress:
        yield f"git {change.in_progress} unfinished"


def _database(change: DatabaseChange) -> Iterator[str]:
    name = change.path.rpartition("/")[2]
    if change.change == "created":
        noun = "table" if len(change.tables) == 1 else "tables"
        yield f"sqlite +{name} ({len(change.tables):,} {noun})"
    elif change.change == "removed":
        yield f"sqlite -{name}"
    elif change.damage:
        yield f"sqlite {name} damaged: {change.damage}"
    else:
        shown = sorted(change.tables, key=_weight, reverse=True)
        words = [_table(table) for table in shown[:2]]
        if len(shown) > 2:
            words.append(f"{len(shown) - 2:,} more")
        listed = {table.name for table in change.tables}
        other = [entry for entry in change.schema if entry.partition(" ")[2] not in listed]
        yield f"sqlite {name}: {', '.join(words or other[:2])}"


def _weight(table: TableChange) -> tuple[bool, int]:
    rows = (table.inserted or 0) + (table.deleted or 0) + (table.updated or 0)
    return table.change != "changed", rows or abs((table.rows_after or 0) - (table.rows_before or 0))


def _table(table: TableChange) -> str:
    if table.change == "created":
        rows = f" ({table.rows_after:,} rows)" if table.rows_after else ""
        return f"+{table.name}{rows}"
    if table.change == "removed":
        return f"-{table.name}"
    name = f"{table.renamed_from} → {table.name}" if table.renamed_from else table.name
    if table.inserted is None:
        difference = (table.rows_after or 0) - (table.rows_before or 0)
        if difference:
            return f"{name} {difference:+,} {'row' if abs(difference) == 1 else 'rows'}"
        return f"{name} altered" if table.altered else f"{name} not compared"
    signed = [f"{sign}{number:,}" for sign, number in (("+", table.inserted), ("-", table.deleted)) if number]
    words = []
    if signed:
        words.append(f"{' '.join(signed)} {'row' if signed in (['+1'], ['-1']) else 'rows'}")
    if table.updated:
        words.append(f"{table.updated:,} updated")
    if not words and table.altered:
        words.append("altered")
    return f"{name} {', '.join(words)}".rstrip()


def _counted(word: str, changes: list[AccountChange] | list[CronChange]) -> Iterator[str]:
    if not changes:
        return
    if len(changes) <= _NAMED:
        yield f"{word} " + ", ".join(_sign(change) for change in changes)
    else:
        yield f"{word} {_signs([change.change for change in changes])}"


def _sign(change: AccountChange | CronChange) -> str:
    name = change.name if isinstance(change, AccountChange) else change.path.rpartition("/")[2]
    return f"{_SIGNS[change.change]}{name}"
