"""Findings in a few words each, for the one line a log has room for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from waypoint.api.findings import (
    AccountChange,
    Analysis,
    CronChange,
    DatabaseChange,
    PackageChange,
    RepositoryChange,
    TableChange,
)

_SIGNS = {"added": "+", "created": "+", "upgraded": "~", "downgraded": "~", "changed": "~", "removed": "-"}
_NAMED = 3
_SYSTEM = {"/", "/usr", "/usr/local"}


def headline(analysis: Analysis) -> list[str]:
    """One phrase per thing that happened. Most telling first."""
    found = analysis.findings
    phrases = [
        *_packages([finding for finding in found if isinstance(finding, PackageChange)]),
        *(
            phrase
            for finding in found
            if isinstance(finding, RepositoryChange)
            for phrase in _repository(finding)
        ),
        *(
            phrase
            for finding in found
            if isinstance(finding, DatabaseChange)
            for phrase in _database(finding)
        ),
        *_counted("user", [finding for finding in found if isinstance(finding, AccountChange)]),
        *_counted("cron", [finding for finding in found if isinstance(finding, CronChange)]),
    ]
    return [_plain(phrase, 120) for phrase in phrases]


def _plain(words: str, width: int) -> str:
    """Words from a session, fit for a terminal: no control characters, one line, not endless."""
    clean = "".join(letter if letter.isprintable() else " " for letter in words)
    return clean if len(clean) <= width else f"{clean[: width - 1]}…"


def _packages(changes: list[PackageChange]) -> Iterator[str]:
    environments = {(change.ecosystem, change.environment) for change in changes}
    for (ecosystem, environment), group in groupby(
        changes, lambda change: (change.ecosystem, change.environment)
    ):
        members = list(group)
        several = sum(1 for other, _ in environments if other == ecosystem) > 1
        asked = [change for change in members if change.direct] or members
        rest = len(members) - len(asked)
        if len(asked) <= _NAMED:
            words = ", ".join(_package(change, versions=len(asked) == 1) for change in asked)
            if rest:
                words += f" (and {rest} with it)" if len(asked) == 1 else f" (and {rest} with them)"
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
        words = f'git {change.commit_count:,} {noun} on {branch} "{_plain(change.commits[0].subject, 50)}"'
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
    else:
        shown = sorted(change.tables, key=_weight, reverse=True)
        words = [_table(table) for table in shown[:2]]
        if len(shown) > 2:
            words.append(f"{len(shown) - 2:,} more")
        listed = {table.name for table in change.tables}
        other = [entry for entry in change.schema if entry.partition(" ")[2] not in listed]
        yield f"sqlite {name}: {', '.join(words or other[:2])}"


def _weight(table: TableChange) -> tuple[bool, int]:
    return table.change != "changed", abs((table.rows_after or 0) - (table.rows_before or 0))


def _table(table: TableChange) -> str:
    if table.change == "created":
        rows = f" ({table.rows_after:,} rows)" if table.rows_after else ""
        return f"+{table.name}{rows}"
    if table.change == "removed":
        return f"-{table.name}"
    if table.rows_before is not None and table.rows_after is not None:
        difference = table.rows_after - table.rows_before
        if difference:
            return f"{table.name} {difference:+,} {'row' if abs(difference) == 1 else 'rows'}"
    return f"{table.name} rewritten" if table.rewritten else f"{table.name} altered"


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
