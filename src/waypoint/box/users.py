"""The users of a box, as its own /etc/passwd and /etc/group name them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.errors import NotFound, UsageError
from waypoint.kernel.placement import Folder

_MOST_BYTES = 4 << 20
_MOST_ID = 2**32 - 2
_MOST_GROUPS = 65536
_LONGEST_ID = len(str(_MOST_ID))
_NAME = re.compile(r"[^:,\s\0]+")


class User(NamedTuple):
    """A user of a box."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    """All of its groups."""
    home: str

    @property
    def is_root(self) -> bool:
        return self.uid == 0 and self.gid == 0

    @property
    def environment(self) -> dict[str, str]:
        """The variables that name it."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


ROOT = User("root", 0, 0, (0,), "/root")


def check_user(text: str) -> None:
    """UsageError for what names no user in any box: a name or a number, and after a colon a group."""
    parts = text.split(":")
    numbers = [part for part in parts if part.isdecimal()]
    if len(parts) > 2 or not all(map(_NAME.fullmatch, parts)) or not all(map(_is_id, numbers)):
        raise UsageError(
            f"{text!r} names no user", hint="give a name or a number: `alice`, `1000`, `1000:100`"
        )


def find_user(root: Folder, text: str) -> User:
    """The user that a text means in the box with this root: a name or a number, and after a colon a group. A
    number needs no entry in the box; NotFound for a name that has none."""
    check_user(text)
    if text in ("root", "0"):
        return ROOT
    who, _, group = text.partition(":")
    groups = [entry for entry in _entries(root, "etc/group") if len(entry) >= 3 and _is_id(entry[2])]
    found = next(
        (
            entry
            for entry in _entries(root, "etc/passwd")
            if len(entry) >= 6 and who in (entry[0], entry[2]) and _is_id(entry[2]) and _is_id(entry[3])
        ),
        None,
    )
    if found is None and not who.isdecimal():
        raise NotFound(f"there is no user {who!r} in the session", hint="make it there, or give a number")
    if found:
        name, uid, gid, home = found[0], int(found[2]), int(found[3]), found[5] or "/"
    else:
        name, uid, gid, home = who, int(who), int(who), "/"
    more = {int(entry[2]) for entry in groups if len(entry) >= 4 and name in entry[3].split(",")}
    if len(more) >= _MOST_GROUPS:
        raise UsageError(
            f"user {name!r} of the session is in {len(more):,} groups",
            hint=f"Linux knows {_MOST_GROUPS:,} of a process: see /etc/group in the session",
        )
    if group:
        given = next((int(entry[2]) for entry in groups if group == entry[0]), None)
        if given is None and not group.isdecimal():
            raise NotFound(
                f"there is no group {group!r} in the session", hint="make it there, or give a number"
            )
        gid = int(group) if given is None else given
        more.clear()
    return User(name, uid, gid, (gid, *sorted(more - {gid})), home)


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) <= _LONGEST_ID and int(text) <= _MOST_ID


def _entries(root: Folder, path: str) -> Iterator[list[str]]:
    with contextlib.suppress(OSError):
        fd = root.open_file(path)
        try:
            text = os.read(fd, _MOST_BYTES).decode(errors="replace")
        finally:
            os.close(fd)
        yield from (line.split(":") for line in text.splitlines())
