"""The processes that read files of sessions for cards: without privileges, with limits, away from the daemon.

What a repository or a database of a session contains was chosen by code that is not trusted, and is read by
parsers of some size (dulwich, SQLite). So that is done in a process that can only read and answer
(core/analyst_process.py). It is started when there is something to analyze and serves until it is idle for a
while, so that a card does not pay for its start. One that takes too long, takes too much memory or breaks is
ended, and the card says what it lacks.

What it may not read itself are the marks of a layer (history/view.py `MARKS`): the kernel shows them to
CAP_SYS_ADMIN alone. It asks the daemon for them, which answers with those attributes of a path and nothing
else.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from waypoint.api.findings import Analysis, Gap
from waypoint.history.view import MARKS, PointView
from waypoint.home import Home
from waypoint.kernel import files, locks, readiness
from waypoint.kernel.sandbox import NOBODY
from waypoint.model import from_msgpack

IDLE_SECONDS = 600.0
_SECONDS = 30.0
"""For one job: each analyzer ends by itself long before that."""
_NOT_DONE = f"it was not done after {_SECONDS:g} s"
_MOST_ANSWERED = 64 << 20
ANSWER, QUESTION = b"a", b"q"
"""What a message of the process is: the answer to its job, or a path whose marks it asks for."""
HEADER = struct.Struct("<cI")
_LENGTH = struct.Struct("<I")


class ViewOf(NamedTuple):
    """What a PointView is made of."""

    volume: str | None
    base: str
    hide: frozenset[str]


class Job(NamedTuple):
    """The arguments of `analyze`."""

    old: ViewOf
    new: ViewOf
    touched: Sequence[str]
    folders: Sequence[str]
    moved: Mapping[str, str]


class Analyst:
    """The analyst processes of one home: as many as are at work, and one that is idle."""

    def __init__(self, home: Home) -> None:
        self._folder = home.run / "analyst"
        """Where copies of databases are made: in memory, and gone with the run folder."""
        self._lock = locks.lock("analyst")
        self._idle: _Process | None = None
        self._closed = False

    def analyze(
        self,
        old: PointView,
        new: PointView,
        touched: Sequence[str],
        *,
        folders: Sequence[str] = (),
        moved: Mapping[str, str] | None = None,
    ) -> Analysis:
        """What the touched paths mean. It never raises because of what is read."""
        if not touched and not folders:
            return Analysis()
        job = Job(_view_of(old), _view_of(new), list(touched), list(folders), dict(moved or {}))
        try:
            return self._ask(pickle.dumps(job))
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
            reason = str(error) or type(error).__name__
            return Analysis(
                gaps=(Gap(analyzer="files", reason=f"the process that reads them ended: {reason}"),)
            )

    def _ask(self, job: bytes) -> Analysis:
        with self._lock:
            idle, self._idle = self._idle, None
        if idle:
            try:
                return self._ask_one(idle, job)
            except (EOFError, BrokenPipeError):
                pass  # it has ended since its last job
        return self._ask_one(_Process(self._folder), job)

    def _ask_one(self, process: _Process, job: bytes) -> Analysis:
        """Asks a process, and keeps it for the next job if there is no other."""
        keep = False
        try:
            answer = process.ask(job)
            with self._lock:
                if keep := self._idle is None and not self._closed:
                    self._idle = process
        finally:
            if not keep:
                process.end()
        return answer

    def close(self) -> None:
        """The daemon ends."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, None
        if idle:
            idle.end()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Process:
    def __init__(self, folder: Path) -> None:
        self._temporary = folder / f"{time.monotonic_ns():x}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._temporary.mkdir(mode=0o700)
        os.chown(self._temporary, NOBODY, NOBODY)
        source = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "waypoint.core.analyst_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": str(source), "TMPDIR": str(self._temporary), "LANG": "C.UTF-8"},
            cwd="/",
            bufsize=0,
        )
        assert self._process.stdin
        os.set_blocking(self._process.stdin.fileno(), False)

    def ask(self, job: bytes) -> Analysis:
        out, answers = self._process.stdin, self._process.stdout
        assert out
        assert answers
        deadline = time.monotonic() + _SECONDS
        _write(out.fileno(), _LENGTH.pack(len(job)) + job, deadline)
        while True:
            kind, length = HEADER.unpack(_read(answers.fileno(), HEADER.size, deadline))
            if length > _MOST_ANSWERED:
                raise ValueError("its answer is too long")
            data = _read(answers.fileno(), length, deadline)
            if kind == ANSWER:
                return from_msgpack(data, Analysis)
            if time.monotonic() > deadline:  # it may ask without end
                raise TimeoutError(_NOT_DONE)
            _write(out.fileno(), _marks_of(data), deadline)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        shutil.rmtree(self._temporary, ignore_errors=True)


def _view_of(view: PointView) -> ViewOf:
    return ViewOf(str(view.volume) if view.volume else None, str(view.base), view.masked)


def _marks_of(path: bytes) -> bytes:
    """The marks of a path of a layer, as they are sent."""
    values = [files.attribute(os.fsdecode(path), name) for name in MARKS]
    data = msgspec.msgpack.encode(values)
    return _LENGTH.pack(len(data)) + data


def _write(fd: int, data: bytes, deadline: float) -> None:
    """Writes everything, or ends when the process does not read in time."""
    view = memoryview(data)
    while view:
        if not readiness.writable(fd, max(0.0, deadline - time.monotonic())):
            raise TimeoutError(_NOT_DONE)
        with contextlib.suppress(BlockingIOError):
            view = view[os.write(fd, view) :]


def _read(fd: int, length: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < length:
        if not readiness.readable(fd, max(0.0, deadline - time.monotonic())):
            raise TimeoutError(_NOT_DONE)
        piece = os.read(fd, length - len(data))
        if not piece:
            raise EOFError("it took too much memory, or broke")
        data += piece
    return bytes(data)
