"""Requests that carry files between sessions, their points and this machine.

The handlers are in daemon/verbs/files.py.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from waypoint import model
from waypoint.api.request import Count, Path, Request, Result


class Applied(Result, frozen=True):
    """What was brought to this machine, or would be."""

    landing: model.Landing


class Exported(Result, frozen=True):
    """What the tar or the patch holds."""

    exported: model.Exported


class CopyDone(Result, frozen=True):
    """What was copied."""

    copied: model.Copied


class FileRead(Result, frozen=True):
    """How much was in the file."""

    bytes: int


MOST_WRITTEN_BYTES = 128 << 20
"""What one `write_file` takes: it travels in one frame."""


class Apply(Request[Applied], frozen=True):
    """Brings what changed in a session onto a folder of this machine. `source`: the folder of the session
    that stands for `to`. `allow_executed`: also what this machine runs by itself, such as git hooks."""

    to: Path
    session: str | None = None
    paths: tuple[Path, ...] = ()
    source: Path | None = None
    ref: str | None = None
    since: str | None = None
    delete: bool = False
    force: bool = False
    allow_executed: bool = False
    dry_run: bool = False


class Export(Request[Exported], frozen=True):
    """The same changes as a tar or a patch, in data frames."""

    session: str | None = None
    paths: tuple[Path, ...] = ()
    source: Path | None = None
    ref: str | None = None
    since: str | None = None
    patch: bool = False
    whiteouts: bool = False


class CopyIn(Request[CopyDone], frozen=True):
    """Copies files and folders of this machine into a session."""

    sources: Annotated[tuple[Path, ...], msgspec.Meta(min_length=1)]
    target: Path
    session: str | None = None
    follow: bool = False


class CopyOut(Request[CopyDone], frozen=True):
    """Copies files and folders of a session, or of one of its points, to this machine."""

    sources: Annotated[tuple[Path, ...], msgspec.Meta(min_length=1)]
    target: Path
    session: str | None = None
    ref: str | None = None
    follow: bool = False


class ReadFile(Request[FileRead], frozen=True):
    """The bytes of one file of a session, or of one of its points, in data frames. `limit`: a file that is
    larger is refused."""

    path: Path
    session: str | None = None
    ref: str | None = None
    limit: Count | None = None


class WriteFile(Request[model.FileWritten], frozen=True):
    """Writes one file of a live session. One that exists keeps its owner, and its mode unless `mode` is
    given. `parents`: folders that are missing are made."""

    path: Path
    data: bytes
    session: str | None = None
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o7777)] | None = None
    parents: bool = True


class RestoreFiles(Request[model.FilesRestored], frozen=True):
    """Brings single files and folders of a point back into a live session."""

    ref: str
    paths: tuple[Path, ...]
    session: str | None = None
    delete: bool = False
    safety: bool = True
    dry_run: bool = False
