"""How analyzers read a point: a few read operations with limits.

Everything read here was written inside the session and is not trusted: regular files only, never through a
symbolic link, never more than a stated number of bytes, and never beyond the deadline.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, Protocol

from waypoint.api.findings import Finding, Gap
from waypoint.history.view import printable

MIB = 1 << 20


class View(Protocol):
    """The file system of a point. Paths are the box's own, from `/`."""

    def exists(self, path: str) -> bool:
        """Whether there is anything at this path."""

    def lstat(self, path: str) -> os.stat_result:
        """Raises FileNotFoundError."""

    def read(self, path: str, limit: int = ..., /) -> bytes:
        """The first `limit` bytes."""

    def listdir(self, path: str) -> list[str]:
        """The names in a folder."""

    def attributes_of(self, path: str) -> dict[str, bytes]:
        """The extended attributes of what is at a path."""

    def open(self, path: str) -> BinaryIO:
        """A plain file, to be read at any place."""


Outcome = Finding | Gap
Analyzer = Callable[[View, View, Sequence[str]], Iterator[Outcome]]
"""A function of the point before, the point after and the paths that differ. A generator: what it has found
when it fails or runs out of time is kept."""


class OutOfTime(Exception):
    """Raised when an analyzer has used up its time."""


class TooLarge(Exception):
    """Raised when a file has too many bytes to be parsed for a card."""


class Nothing:
    """An empty view: the first point is compared with it."""

    def exists(self, path: str) -> bool:
        return False

    def lstat(self, path: str) -> os.stat_result:
        raise FileNotFoundError(path)

    def read(self, path: str, limit: int = 0, /) -> bytes:
        raise FileNotFoundError(path)

    def listdir(self, path: str) -> list[str]:
        raise FileNotFoundError(path)

    def attributes_of(self, path: str) -> dict[str, bytes]:
        raise FileNotFoundError(path)

    def open(self, path: str) -> BinaryIO:
        raise FileNotFoundError(path)


class Timed:
    """A view that raises OutOfTime after the deadline."""

    def __init__(self, view: View, deadline: float, moved: Mapping[str, str] | None = None) -> None:
        """`moved`: the new paths of files and folders with another name, and their old ones."""
        self._view = view
        self.deadline = deadline
        self.moved = moved or {}

    def _tick(self) -> None:
        if time.monotonic() > self.deadline:
            raise OutOfTime("the time was up")

    def exists(self, path: str) -> bool:
        self._tick()
        return self._view.exists(path)

    def lstat(self, path: str) -> os.stat_result:
        self._tick()
        return self._view.lstat(path)

    def read(self, path: str, limit: int = MIB, /) -> bytes:
        self._tick()
        return self._view.read(path, limit)

    def listdir(self, path: str) -> list[str]:
        self._tick()
        return self._view.listdir(path)

    def attributes_of(self, path: str) -> dict[str, bytes]:
        self._tick()
        return self._view.attributes_of(path)

    def open(self, path: str) -> BinaryIO:
        self._tick()
        return self._view.open(path)


def deadline_of(view: View) -> float:
    """The deadline, for work that does not go through the view."""
    return view.deadline if isinstance(view, Timed) else time.monotonic() + 10


def former_path(view: View, path: str) -> str:
    """Where a path of the new tree was in the old one."""
    moved = view.moved if isinstance(view, Timed) else {}
    top, rest = path, ""
    while moved and top and top not in moved:
        top, _, name = top.rpartition("/")
        rest = f"/{name}{rest}"
    return moved[top] + rest if top in moved else path


def status(view: View, path: str) -> os.stat_result | None:
    """None if the path does not exist."""
    try:
        return view.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_file(view: View, path: str) -> bool:
    entry = status(view, path)
    return entry is not None and stat.S_ISREG(entry.st_mode)


def is_folder(view: View, path: str) -> bool:
    entry = status(view, path)
    return entry is not None and stat.S_ISDIR(entry.st_mode)


def content(view: View, path: str, limit: int = MIB) -> bytes | None:
    """A whole regular file. None if there is none; raises TooLarge."""
    entry = status(view, path)
    if entry is None or not stat.S_ISREG(entry.st_mode):
        return None
    if entry.st_size > limit:
        raise TooLarge(f"{entry.st_size:,} bytes, more than the limit of {limit:,}")
    return view.read(path, limit)


def beginning(view: View, path: str, size: int) -> bytes | None:
    """The first bytes of a regular file. None if there is none."""
    return view.read(path, size) if is_file(view, path) else None


def text(view: View, path: str, limit: int = MIB) -> str | None:
    raw = content(view, path, limit)
    return None if raw is None else raw.decode(errors="replace")


def names(view: View, path: str) -> list[str]:
    """The names in a folder, sorted; empty if it is not a folder."""
    return sorted(view.listdir(path)) if is_folder(view, path) else []


def guarded(path: str, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """One subject among several: if it fails, the others are still analyzed."""
    try:
        yield from outcomes
    except OutOfTime:
        raise
    except Exception as error:  # noqa: BLE001 - files from a session can break a parser in any way
        yield Gap(analyzer="", path=printable(path), reason=describe(error))


_MAX_FILES = 20_000
_SKIPPED_FOLDERS = ("/.git/objects", "/__pycache__")


def contents(view: View, folder: str) -> Iterator[str]:
    """All files below a folder that can matter to an analyzer. Raises TooLarge when there are too many."""
    waiting = [folder]
    seen = 0
    while waiting:
        here = waiting.pop()
        for name in names(view, here):
            path = f"{here.rstrip('/')}/{name}"
            if is_folder(view, path):
                if not path.endswith(_SKIPPED_FOLDERS):
                    waiting.append(path)
            else:
                yield path
            seen += 1
            if seen > _MAX_FILES:
                raise TooLarge(f"more than {_MAX_FILES:,} files in it: not all were analyzed")


def describe(error: BaseException) -> str:
    """An error in a few words."""
    message = " ".join(str(error).split())[:200]
    if isinstance(error, TooLarge | OutOfTime):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
