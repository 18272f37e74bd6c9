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
from pathlib import Path

import msgspec

from waypoint.api.findings import Analysis, Gap
from waypoint.core.analyst import IDLE_SECONDS, Job, ViewOf
from waypoint.history.analyzers import analyze
from waypoint.history.view import PointView
from waypoint.kernel import readiness, sandbox

_LENGTH = struct.Struct("<I")
_MEMORY_BYTES = 1 << 30


def main() -> None:
    sandbox.enter("wp-analyst", memory_bytes=_MEMORY_BYTES)
    while readiness.readable(0, IDLE_SECONDS):
        header = sys.stdin.buffer.read(_LENGTH.size)
        if len(header) < _LENGTH.size:
            return
        job: Job = pickle.loads(sys.stdin.buffer.read(_LENGTH.unpack(header)[0]))  # noqa: S301 - the daemon's
        answer = msgspec.msgpack.encode(_analyze(job))
        view = memoryview(_LENGTH.pack(len(answer)) + answer)
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
    return PointView(Path(view.volume) if view.volume else None, Path(view.base), hide=view.hide)


if __name__ == "__main__":
    main()
