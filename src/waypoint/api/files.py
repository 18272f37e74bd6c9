"""Requests that carry files between sessions, their points and this machine.

The handlers are in daemon/verbs/files.py.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from waypoint import model
from waypoint.api.request import Path, Request, Result


class Applied(Result, frozen=True):
    """What was brought to this machine, or would be."""

    landing: model.Landing


class Exported(Result, frozen=True):
    """What the tar or the patch holds."""

    exported: model.Exported


class CopyDone(Result, frozen=True):
    """What was copied."""

    copied: model.Copied


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


class RestoreFiles(Request[model.FilesRestored], frozen=True):
    """Brings single files and folders of a point back into a live session."""

    ref: str
    paths: tuple[Path, ...]
    session: str | None = None
    delete: bool = False
    safety: bool = True
    dry_run: bool = False
