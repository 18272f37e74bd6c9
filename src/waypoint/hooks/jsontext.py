"""Adding members to the text of a JSON file and taking them out again, with every other byte as it was.

A member is added behind the last one of its container, and cutting it takes the comma before it along, so
what is left are the bytes of before. A container that was made for our members holds a line break when they
are gone, and goes with them; an empty one of the user's own (`{}`, `[ ]`) stays. (Of an empty container
with a line break inside, which no program writes, it cannot be told whose it was: it goes.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple

_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r"[^\s,\]}]+")
_INDENT = re.compile(r"\n([ \t]+)\S")

Path = Sequence[str | int]
"""Keys and positions that lead to a value."""


class Member(NamedTuple):
    """One entry of an object or a list. `start` is where it begins, with its key."""

    key: str | int
    start: int
    value: Value


class Value(NamedTuple):
    """A value, and where it stands in the text."""

    start: int
    end: int
    members: tuple[Member, ...] = ()

    def at(self, key: str | int) -> Member | None:
        """Of several members with one key the last: JSON readers take that one."""
        return next((member for member in reversed(self.members) if member.key == key), None)


def scan(text: str, at: int = 0) -> Value:
    """The value at a place in a text that is valid JSON."""
    start = _skip(text, at)
    if text[start] == '"':
        return Value(start, scanstring(text, start + 1)[1])
    if text[start] not in "{[":
        scalar = _SCALAR.match(text, start)
        assert scalar
        return Value(start, scalar.end())
    members: list[Member] = []
    at = _skip(text, start + 1)
    while text[at] not in "}]":
        begin, key = at, len(members)
        name: str | int = key
        if text[start] == "{":
            name, at = scanstring(text, at + 1)
            at = _skip(text, at) + 1  # the colon
        value = scan(text, at)
        members.append(Member(name, begin, value))
        at = _skip(text, value.end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return Value(start, at + 1, tuple(members))


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space
    return space.end()


def add(text: str, path: Path, value: Any, key: str | None = None) -> str:
    """Adds a value to the container that the path leads to: a list, or with a `key` an object."""
    container = _follow(scan(text), path)[-1]
    newline = "\r\n" if "\r\n" in text else "\n"
    found = _INDENT.search(text)
    unit = found[1] if found else "  "
    indent = f"{newline}{unit * (len(path) + 1)}"
    if container.members:
        lead = text[container.start + 1 : container.members[0].start]
        at, before = container.members[-1].value.end, f",{lead or ' '}"
    else:
        at, before = container.start + 1, indent
    written = json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", indent)
    name = f"{json.dumps(key, ensure_ascii=False)}: " if key is not None else ""
    return f"{text[:at]}{before}{name}{written}{text[at:]}"


def cut(text: str, path: Path) -> str | None:
    """Takes a value out, and the containers that were made for it. None: nothing is left of the file."""
    values = _follow(scan(text), path[:-1])
    container = values[-1]
    member = container.at(path[-1])
    assert member
    place = container.members.index(member)
    if place:
        start, end = container.members[place - 1].value.end, member.value.end
    elif len(container.members) > 1:
        start, end = member.start, container.members[1].start
    else:
        start, end = container.start + 1, member.value.end
        if "\n" in text[end : container.end]:  # it was made for this member
            return cut(text, path[:-1]) if len(path) > 1 else None
    return text[:start] + text[end:]


def _follow(value: Value, path: Path) -> list[Value]:
    """The values on the path, from the outermost on."""
    values = [value]
    for key in path:
        member = values[-1].at(key)
        assert member, f"no {key!r}"
        values.append(member.value)
    return values


def entries(content: Any, *path: str) -> Iterator[tuple[int, Any]]:
    """The entries of the list that keys lead to, last first, with their positions."""
    for key in path:
        content = content.get(key, {})
    return ((place, content[place]) for place in reversed(range(len(content))))
