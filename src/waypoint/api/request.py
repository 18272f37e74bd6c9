"""What a request is: a frozen struct with the type of its result. The requests themselves stand by subject in
sessions.py, ports.py, points.py, history.py, files.py, agent.py, effects.py and machine.py, each with its
results.

    class Exec(Request[RunResult], frozen=True): …

A request is decoded and validated once, at the socket; a handler takes the struct (daemon/verbs/). The name
of a verb is the name of its struct: `TaskAdd` is `task_add`. From these structs come the client, the grammar
from inside a session, the JSON reference and the schemas of MCP.

In all of them `session` is the name or id of a session; without one the only session there is. `ref` names a
point: a name, a tag, its number (`c5`), its id, `@` for the last one, a time of day, `good`. `actor` is who
asks.
"""

from __future__ import annotations

import os
from typing import Annotated, Generic, TypeVar

import msgspec

from waypoint.errors import UsageError
from waypoint.model import Record

R = TypeVar("R")

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e8)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
EventNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Some = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
Several = Annotated[tuple[str, ...], msgspec.Meta(min_length=2)]


class Request(
    msgspec.Struct, Generic[R], frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What a client asks for; `R` is the type of the answer."""


class Result(Record, frozen=True):
    """What a request is answered with. Its fields are those that `--json` prints."""


class Nothing(Result, frozen=True):
    """It was done, and there is nothing to tell."""


class PathBytes(msgspec.Struct, frozen=True):
    """A path that is no valid UTF-8, as its bytes."""

    base64: bytes


Path = str | PathBytes
"""A path as it travels."""


def path_to_wire(path: str) -> Path:
    """A path as it can be sent: one that is no text goes as its bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return PathBytes(os.fsencode(path))
    return path


def path_from_wire(path: Path) -> str:
    """The path for the file system."""
    name = os.fsdecode(path.base64) if isinstance(path, PathBytes) else path
    if "\0" in name or not name:
        raise UsageError(f"{name!r} is no path")
    return name


class StatePayload(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent leaves with a point: the text of its JSON, or bytes."""

    text: str | None = None
    base64: bytes | None = None
