"""The verbs that carry files between sessions, their points and this machine."""

from __future__ import annotations

import base64
import os
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waypoint.core.transfer import Request
from waypoint.daemon.service import Connection, verb
from waypoint.errors import UsageError
from waypoint.kernel.placement import Folder

if TYPE_CHECKING:
    from waypoint.daemon.app import App

_PIECE_BYTES = 1 << 18


def _outside(connection: Connection) -> Folder:
    """The root that the client sees: its paths mean what they mean to it."""
    credentials = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", credentials)[0]
    try:
        return Folder.root_of(pid)
    except OSError:
        return Folder.open("/")


def _path(given: Any) -> str:
    """A path as it was sent: text, or its bytes in base64 where they are no text."""
    if isinstance(given, dict):
        return os.fsdecode(base64.b64decode(given["base64"]))
    if not isinstance(given, str) or "\0" in given:
        raise UsageError(f"{given!r} is no path")
    return given


def _paths(given: Any) -> list[str]:
    return [_path(one) for one in given or ()]


def _outside_path(given: Any) -> str:
    path = _path(given)
    if not path.startswith("/"):
        raise UsageError(f"{path!r} is no path from the root of this machine")
    return path


def _request(args: dict[str, Any]) -> Request:
    source = args.get("source")
    return Request(
        ref=args.get("ref"),
        since=args.get("since"),
        source=None if source is None else _path(source),
        paths=_paths(args.get("paths")),
    )


@verb
def apply(app: App, connection: Connection, args: dict[str, Any]) -> Any:
    """What changed in a session, onto a folder of this machine."""
    row = app.registry.find(args.get("session"))
    with _outside(connection) as outside:
        found = app.transfer.apply(
            row,
            outside,
            _outside_path(args["to"]),
            _request(args),
            delete=bool(args.get("delete")),
            force=bool(args.get("force")),
            dry_run=bool(args.get("dry_run")),
        )
    return {"landing": found}


@verb
def export(app: App, connection: Connection, args: dict[str, Any]) -> Any:
    """The same as a tar or a patch, in data frames before the result."""
    row = app.registry.find(args.get("session"))
    waiting = bytearray()

    def write(data: bytes) -> None:
        waiting.extend(data)
        while len(waiting) >= _PIECE_BYTES:
            connection.data(bytes(waiting[:_PIECE_BYTES]))
            del waiting[:_PIECE_BYTES]

    found = app.transfer.export(
        row,
        write,
        _request(args),
        patch=bool(args.get("patch")),
        whiteouts=bool(args.get("whiteouts")),
    )
    if waiting:
        connection.data(bytes(waiting))
    return {"exported": found}


@verb
def copy_in(app: App, connection: Connection, args: dict[str, Any]) -> Any:
    """Files and folders of this machine into a live session."""
    row = app.registry.find(args.get("session"))
    sources = _some([_outside_path(one) for one in args["sources"]])
    with _outside(connection) as outside:
        found = app.transfer.copy_in(
            row, outside, sources, _path(args["target"]), follow=bool(args.get("follow"))
        )
    return {"copied": found}


@verb
def copy_out(app: App, connection: Connection, args: dict[str, Any]) -> Any:
    """Files and folders of a session, or of one of its points, to this machine."""
    row = app.registry.find(args.get("session"))
    with _outside(connection) as outside:
        found = app.transfer.copy_out(
            row,
            outside,
            _some(_paths(args["sources"])),
            _outside_path(args["target"]),
            ref=args.get("ref"),
            follow=bool(args.get("follow")),
        )
    return {"copied": found}


def _some(paths: Sequence[str]) -> Sequence[str]:
    if not paths:
        raise UsageError("what is to be copied?")
    return paths


@verb
def restore_files(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Single files and folders of a point, back in the live session."""
    return app.transfer.restore_files(
        app.registry.find(args.get("session")),
        args["ref"],
        _paths(args["paths"]),
        delete=bool(args.get("delete")),
        safety=bool(args.get("safety", True)),
        dry_run=bool(args.get("dry_run")),
    )
