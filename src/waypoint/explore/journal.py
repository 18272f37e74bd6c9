"""The journal of a search: an append-only file with one event as JSON on each line.

A line is written with one write and is on the disk when `append` returns, so whatever was told of a trial
survives the process that was told. A line that was being written when the process was killed has no end; it
is cut off when the file is opened again, and what it would have said is done again. Nothing else is ever
changed.

The file holds the commands that were tried as they were given: only its owner can read it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from waypoint import errors
from waypoint.api.hints import Hint
from waypoint.explore.tree import Begun, Event
from waypoint.model import MALFORMED, from_json

VERSION = 1


class JournalDamaged(errors.UsageError):
    """Raised when a line of a journal other than the last cannot be read."""


class Journal:
    """An open journal. Only one process has it at a time. `events`: what was in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with errors.translated("open the journal", path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise errors.SessionBusy(
                    f"another process works on this search: {path}", hint="end that one, or wait for it"
                ) from None
            whole = os.pread(self._file, os.fstat(self._file).st_size, 0)
            end = whole.rfind(b"\n") + 1
            self.events = list(_decode(path, whole[:end]))
            if end < len(whole):
                os.ftruncate(self._file, end)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, *events: Event) -> None:
        """Adds events. They are on the disk when this returns."""
        if not events:
            return
        data = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        with errors.translated("write to the journal", self.path):
            start = os.fstat(self._file).st_size
            try:
                written = os.write(self._file, data)
                if written < len(data):
                    raise OSError(28, os.strerror(28), os.fspath(self.path))  # the disk is full
                os.fdatasync(self._file)
            except OSError:
                os.ftruncate(self._file, start)
                raise

    def close(self) -> None:
        """Lets another process have it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read(path: Path) -> list[Event]:
    """The events of a journal, whether or not a process works on it."""
    with errors.translated("read the journal", path):
        whole = path.read_bytes()
    return list(_decode(path, whole[: whole.rfind(b"\n") + 1]))


def _decode(path: Path, data: bytes) -> Iterator[Event]:
    for number, line in enumerate(data.splitlines(), 1):
        try:
            event: Event = from_json(line, Event)
        except MALFORMED as error:
            raise JournalDamaged(
                f"{path}, line {number}: {error}",
                hint="it was changed by something else; start a search of another name",
            ) from error
        if isinstance(event, Begun) != (number == 1):
            raise JournalDamaged(f"{path}, line {number}: a journal begins with how it was begun, once")
        if isinstance(event, Begun) and event.version != VERSION:
            raise errors.VersionMismatch(
                f"{path} was written by another version of Waypoint ({event.version}, not {VERSION})",
                hint=Hint("go on with that version, or start a search of another name"),
            )
        yield event
