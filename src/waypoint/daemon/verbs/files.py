"""Files between sessions, their points and this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from waypoint.api import files as api
from waypoint.api.request import Path, path_from_wire
from waypoint.core.transfer import Progress, Request
from waypoint.daemon.connection import Connection
from waypoint.errors import UsageError
from waypoint.kernel.placement import Folder
from waypoint.model import FilesRestored, FileWritten
from waypoint.text.units import size

if TYPE_CHECKING:
    from waypoint.daemon.app import App

_PIECE_BYTES = 1 << 18
_REPORT_SECONDS = 0.25


def client_root(connection: Connection) -> Folder:
    """The root that the client sees: its paths mean what they mean to it."""
    try:
        return Folder.root_of(connection.peer.pid)
    except OSError:
        return Folder.open("/")


def local_path(path: Path) -> str:
    name = path_from_wire(path)
    if not name.startswith("/"):
        raise UsageError(f"{name!r} is no path from the root of this machine")
    return name


def _selection(request: api.Apply | api.Export) -> Request:
    return Request(
        ref=request.ref,
        since=request.since,
        source=None if request.source is None else path_from_wire(request.source),
        paths=[path_from_wire(path) for path in request.paths],
    )


def _reports(connection: Connection) -> Progress:
    """Sends what is said to the client, at most four times a second."""
    sent_at = 0.0

    def report(text: str) -> None:
        nonlocal sent_at
        if time.monotonic() - sent_at >= _REPORT_SECONDS:
            connection.progress(text)
            sent_at = time.monotonic()

    return report


def apply(app: App, connection: Connection, request: api.Apply) -> api.Applied:
    row = app.registry.find(request.session)
    with client_root(connection) as root:
        landing = app.transfer.apply(
            row,
            root,
            local_path(request.to),
            _selection(request),
            delete=request.delete,
            force=request.force,
            allow_executed=request.allow_executed,
            dry_run=request.dry_run,
            progress=_reports(connection),
        )
    return api.Applied(landing=landing)


def export(app: App, connection: Connection, request: api.Export) -> api.Exported:
    row = app.registry.find(request.session)
    unsent, written, report = bytearray(), 0, _reports(connection)

    def write(data: bytes) -> None:
        nonlocal written
        written += len(data)
        report(f"{size(written)} written")
        unsent.extend(data)
        while len(unsent) >= _PIECE_BYTES:
            connection.data(bytes(unsent[:_PIECE_BYTES]))
            del unsent[:_PIECE_BYTES]

    exported = app.transfer.export(
        row, write, _selection(request), patch=request.patch, whiteouts=request.whiteouts
    )
    if unsent:
        connection.data(bytes(unsent))
    return api.Exported(exported=exported)


def copy_in(app: App, connection: Connection, request: api.CopyIn) -> api.CopyDone:
    row = app.registry.find(request.session)
    sources = [local_path(path) for path in request.sources]
    with client_root(connection) as root:
        copied = app.transfer.copy_in(
            row,
            root,
            sources,
            path_from_wire(request.target),
            follow=request.follow,
            progress=_reports(connection),
        )
    return api.CopyDone(copied=copied)


def copy_out(app: App, connection: Connection, request: api.CopyOut) -> api.CopyDone:
    row = app.registry.find(request.session)
    sources = [path_from_wire(path) for path in request.sources]
    with client_root(connection) as root:
        copied = app.transfer.copy_out(
            row,
            root,
            sources,
            local_path(request.target),
            ref=request.ref,
            follow=request.follow,
            progress=_reports(connection),
        )
    return api.CopyDone(copied=copied)


def read_file(app: App, connection: Connection, request: api.ReadFile) -> api.FileRead:
    size = app.transfer.read_file(
        app.registry.find(request.session),
        path_from_wire(request.path),
        connection.data,
        ref=request.ref,
        limit=request.limit,
    )
    return api.FileRead(bytes=size)


def write_file(app: App, _: Connection, request: api.WriteFile) -> FileWritten:
    row, path = app.registry.find(request.session), path_from_wire(request.path)
    return app.transfer.write_file(row, path, request.data, mode=request.mode, parents=request.parents)


def restore_files(app: App, _: Connection, request: api.RestoreFiles) -> FilesRestored:
    return app.transfer.restore_files(
        app.registry.find(request.session),
        request.ref,
        [path_from_wire(path) for path in request.paths],
        delete=request.delete,
        safety=request.safety,
        dry_run=request.dry_run,
    )
