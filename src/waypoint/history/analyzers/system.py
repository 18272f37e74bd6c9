"""The system: user accounts and cron."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from waypoint.api.findings import AccountChange, CronChange, Fate
from waypoint.history.analyzers.reading import Outcome, View, guarded, text
from waypoint.history.view import printable

_CRON = re.compile(
    r"^(?:/etc/crontab|/etc/cron\.(?:d|hourly|daily|weekly|monthly)/[^/]+|/var/spool/cron/(?:crontabs/)?[^/]+)$"
)
_LINES = 10


def accounts(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Users that were added or removed, or that have another number, home or shell."""
    if "/etc/passwd" not in touched:
        return
    before, after = _users(old), _users(new)
    for name in sorted(before.keys() | after.keys()):
        user_before, user_after = before.get(name), after.get(name)
        if user_before != user_after:
            change: Fate = (
                "created" if user_before is None else "removed" if user_after is None else "changed"
            )
            number = (user_after or user_before or [""])[0]
            yield AccountChange(name=name, change=change, uid=int(number) if number.isdecimal() else None)


def _users(view: View) -> dict[str, list[str]]:
    """Name to number, group, home and shell."""
    users: dict[str, list[str]] = {}
    for line in (text(view, "/etc/passwd") or "").splitlines():
        name, *fields = line.split(":")
        if len(fields) == 6:
            users[name] = [fields[1], fields[2], *fields[4:]]
    return users


def cron(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Files that schedule commands."""
    for path in touched:
        if path.startswith(("/etc/cron", "/var/spool/cron")) and _CRON.match(path):
            yield from guarded(path, _cron(old, new, path))


def _cron(old: View, new: View, path: str) -> Iterator[Outcome]:
    before, after = text(old, path), text(new, path)
    lines_before, lines_after = _lines(before), _lines(after)
    if before == after or (lines_before == lines_after and before is not None and after is not None):
        return
    yield CronChange(
        path=printable(path),
        change="created" if before is None else "removed" if after is None else "changed",
        added=tuple(line[:200] for line in lines_after if line not in lines_before)[:_LINES],
        removed=tuple(line[:200] for line in lines_before if line not in lines_after)[:_LINES],
    )


def _lines(script: str | None) -> list[str]:
    stripped = (line.strip() for line in (script or "").splitlines())
    return [line for line in stripped if line and not line.startswith("#")]
