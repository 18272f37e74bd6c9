"""Traces: what was done is run again and compared, and handed to others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from waypoint.agent import traces
from waypoint.api import traces as api
from waypoint.core.replays import Limits
from waypoint.daemon.connection import Connection
from waypoint.daemon.verbs.files import client_root, local_path
from waypoint.errors import NotFound, UsageError, translated

if TYPE_CHECKING:
    from waypoint.daemon.app import App

_PIECE_BYTES = 1 << 18


class _Frames:
    """A file that goes to the client, in data frames."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._unsent, self.bytes = connection, bytearray(), 0

    def write(self, data: bytes) -> int:
        self._unsent += data
        self.bytes += len(data)
        while len(self._unsent) >= _PIECE_BYTES:
            self._connection.data(bytes(self._unsent[:_PIECE_BYTES]))
            del self._unsent[:_PIECE_BYTES]
        return len(data)

    def finish(self) -> None:
        if self._unsent:
            self._connection.data(bytes(self._unsent))


def export_trace(app: App, connection: Connection, request: api.ExportTrace) -> api.TraceExported:
    row = app.registry.find_for(request.session, request.start, request.ref)
    trace, out = app.replays.record(row, request.start, request.ref), _Frames(connection)
    number = app.replays.write(row, trace, out)
    out.finish()
    return api.TraceExported(trace=number, steps=len(trace.steps), bytes=out.bytes)


def replay(app: App, connection: Connection, request: api.Replay) -> api.ReplayResult:
    limits = Limits(
        outside=request.outside, seconds=request.timeout, everything=request.all, keep=request.keep
    )

    def report(step: api.ReplayStep) -> None:
        connection.event({"step": msgspec.to_builtins(step)})

    if request.trace is not None:
        if request.start or request.ref or request.session:
            raise UsageError("a trace is run as a whole", hint="leave out the session and the points")
        trace, start_files = _read(connection, local_path(request.trace))
        outcome = app.replays.of_file(trace, start_files, request.base, limits, report)
    else:
        if request.base:
            raise UsageError("a session is run again over its own base", hint="leave the base out")
        row = app.registry.find_for(request.session, request.start, request.ref)
        trace = app.replays.record(row, request.start, request.ref)
        outcome = app.replays.of_session(row, trace, limits, report)
    return api.ReplayResult(
        same=not any(step.state == "different" for step in outcome.steps),
        start=outcome.start,
        steps=tuple(outcome.steps),
        left=len(trace.steps) - len(outcome.steps),
        not_run=sum(step.state == "not run" for step in outcome.steps),
        trace=trace.id or None,
        kept=outcome.kept,
        remarks=tuple(outcome.remarks),
    )


def _read(connection: Connection, path: str) -> tuple[traces.Trace, bytes | None]:
    try:
        with client_root(connection) as root:
            fd = root.open_file(path)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="name a trace") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="name a trace") from error
    with open(fd, "rb") as file, translated(f"read {path}"):
        return traces.read_trace(file, os.path.basename(path))
