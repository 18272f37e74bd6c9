"""The system: users, groups, passwords, keys that may log in, cron, units of systemd."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence

from waypoint.api.findings import AccountChange, CronChange, Fate, SystemChange
from waypoint.history.analyzers.reading import Outcome, View, guarded, status, text
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


def _fate(before: object, after: object) -> Fate:
    return "created" if before is None else "removed" if after is None else "changed"


# ---- groups and passwords ------------------------------------------------------------------------


def groups(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Groups that were added or removed, and who joined or left one."""
    if "/etc/group" not in touched:
        return
    before, after = _entries(old, "/etc/group"), _entries(new, "/etc/group")
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was == now:
            continue
        members = _members(was), _members(now)
        details = [f"+{member}" for member in sorted(members[1] - members[0])]
        details += [f"-{member}" for member in sorted(members[0] - members[1])]
        if was and now and was[1:2] != now[1:2]:
            details.append(f"gid {was[1]} → {now[1]}")
        if details or was is None or now is None:
            yield SystemChange(subject="group", name=name, change=_fate(was, now), details=tuple(details))


def passwords(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Users whose password is another one, was locked or removed. The hash is compared and goes nowhere."""
    if "/etc/shadow" not in touched:
        return
    before, after = _entries(old, "/etc/shadow"), _entries(new, "/etc/shadow")
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name][:1], after[name][:1]
        if was == now:
            continue
        yield SystemChange(
            subject="password", name=name, change="changed", details=(_password_change(was[0], now[0]),)
        )
    for name in sorted(after.keys() - before.keys()):
        if after[name][0].startswith("$"):
            yield SystemChange(subject="password", name=name, change="created", details=("set",))


def _password_change(was: str, now: str) -> str:
    """In a word. `!` before a hash locks it, `*` and `!` alone fit none; an empty one asks for none."""
    if not now:
        return "removed: none is needed"
    if now.lstrip("!") == was.lstrip("!"):
        return "locked" if now.startswith("!") else "unlocked"
    return "locked" if now[0] in "!*" else "changed" if was.startswith("$") else "set"


def _entries(view: View, path: str) -> dict[str, list[str]]:
    """The lines of a file like /etc/group: the first field, and the others."""
    lines = ((text(view, path) or "").splitlines()) if status(view, path) else []
    split = (line.split(":") for line in lines)
    return {name: fields for name, *fields in split if name and fields}


def _members(fields: Sequence[str] | None) -> set[str]:
    return set(filter(None, fields[2].split(","))) if fields and len(fields) > 2 else set()


# ---- keys that may log in ------------------------------------------------------------------------

_KEYS = re.compile(r"/\.ssh/authorized_keys2?$|^/etc/ssh/authorized_keys/[^/]+$")
_KEY = re.compile(r"(?:^|[\s,])((?:ssh|ecdsa|sk)-[a-z0-9@.-]+)\s+([A-Za-z0-9+/=]{20,})(?:\s+(.*))?$")


def keys(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Keys that may log in as a user, by their fingerprints."""
    for path in touched:
        if _KEYS.search(path):
            yield from guarded(path, _keys_of(old, new, path))


def _keys_of(old: View, new: View, path: str) -> Iterator[Outcome]:
    before, after = _keys(text(old, path)), _keys(text(new, path))
    details = [f"+{after[key]}" for key in after if key not in before]
    details += [f"-{before[key]}" for key in before if key not in after]
    if details:
        was, now = (None if not view.exists(path) else True for view in (old, new))
        fate = _fate(was, now)
        yield SystemChange(
            subject="keys", name=printable(path), change=fate, details=tuple(details[: 2 * _LINES])
        )


def _keys(listed: str | None) -> Mapping[str, str]:
    """What identifies each key, and how it is shown."""
    found = {}
    for line in (listed or "").splitlines():
        match = None if line.lstrip().startswith("#") else _KEY.search(line.strip())
        if match is None:
            continue
        try:
            digest = hashlib.sha256(base64.b64decode(match[2], validate=True)).digest()
        except binascii.Error:
            continue
        fingerprint = base64.b64encode(digest).decode().rstrip("=")
        found[match[2]] = " ".join(filter(None, (match[1], f"SHA256:{fingerprint}", (match[3] or "")[:80])))
    return found


# ---- units of systemd ----------------------------------------------------------------------------

_UNIT = re.compile(
    r"^(/etc/systemd/(?:system|user)|/usr/local/lib/systemd/(?:system|user)|.*/\.config/systemd/user)/"
    r"([^/]+\.(?:service|timer|socket|path|mount|target))(?:\.d/([^/]+\.conf))?$"
)
_ENABLED = re.compile(
    r"^(?:/etc/systemd/(?:system|user)|.*/\.config/systemd/user)/[^/]+\.(?:wants|requires)/([^/]+)$"
)


def units(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Units that the administrator or a user wrote, and what was enabled or disabled. (Those of packages come
    with their package.)"""
    for path in touched:
        if "/systemd/" in path:
            # The link that enables a unit is there also while its unit is not.
            was, now = (True if status(view, path) else None for view in (old, new))
            if enabled := _ENABLED.match(path):
                if was != now:
                    word = "enabled" if now else "disabled"
                    yield SystemChange(subject="unit", name=enabled[1], change="changed", details=(word,))
            elif (unit := _UNIT.match(path)) and (was, text(old, path)) != (now, text(new, path)):
                details = (f"{_SIGN[_fate(was, now)]}{unit[3]}",) if unit[3] else ()
                fate = "changed" if unit[3] else _fate(was, now)
                yield SystemChange(subject="unit", name=unit[2], change=fate, details=details)


_SIGN: Mapping[Fate, str] = {"created": "+", "removed": "-", "changed": "~"}
