"""The process that reads files of sessions for cards. It takes jobs on its standard input and answers.

Everything that it will need is loaded first. Then it gives up what it does not need: its user is
`nobody`, it can read any file and write only to its own temporary folder, starts no process, opens no
socket, and has limits of memory, time and descriptors. The daemon takes its answers for what they are: data
from outside.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from functools import lru_cache
from pathlib import Path

import msgspec

from waypoint.api.findings import Analysis, Gap
from waypoint.core.analyst import ANSWER, HEADER, IDLE_SECONDS, QUESTION, Job, ViewOf
from waypoint.history.analyzers import analyze
from waypoint.history.view import MARKS, PointView
from waypoint.kernel import readiness, sandbox
from waypoint.model import from_msgpack

_LENGTH = struct.Struct("<I")
_MEMORY_BYTES = 1 << 30


def main() -> None:
    sandbox.enter("wp-analyst", memory_bytes=_MEMORY_BYTES)
    while readiness.readable(0, IDLE_SECONDS):
        data = _read()
        if data is None:
            return
        job: Job = pickle.loads(data)  # noqa: S301 - the daemon's
        _marks_of.cache_clear()
        _write(ANSWER, msgspec.msgpack.encode(_analyze(job)))


def _read() -> bytes | None:
    """One message of the daemon; None when it has closed the pipe."""
    header = sys.stdin.buffer.read(_LENGTH.size)
    return sys.stdin.buffer.read(_LENGTH.unpack(header)[0]) if len(header) == _LENGTH.size else None


def _write(kind: bytes, data: bytes) -> None:
    view = memoryview(HEADER.pack(kind, len(data)) + data)
    while view:
        view = view[os.write(1, view) :]


def _analyze(job: Job) -> Analysis:
    try:
        return analyze(_view(job.old), _view(job.new), job.touched, folders=job.folders, moved=job.moved)
    except MemoryError:
        return Analysis(
            gaps=(Gap(analyzer="files", reason=f"more than {_MEMORY_BYTES >> 20} MB were needed"),)
        )


def _view(view: ViewOf) -> PointView:
    return PointView(Path(view.volume) if view.volume else None, Path(view.base), hide=view.hide, mark=_mark)


def _mark(path: str, name: str) -> bytes | None:
    """Only a process with CAP_SYS_ADMIN can read it: the daemon is asked."""
    return _marks_of(path)[MARKS.index(name)]


@lru_cache(maxsize=20_000)
def _marks_of(path: str) -> list[bytes | None]:
    question = os.fsencode(path)
    try:
        _write(QUESTION, question)
        return from_msgpack(_read() or b"", list[bytes | None])
    except BaseException:  # noqa: BLE001 - a question half asked: later answers would be of another path
        os._exit(1)


if __name__ == "__main__":
    main()
