"""What flows while a request is under way: the output of a command, the pipes of a program, a terminal.

A slow client is never waited for by a terminal, and a client that goes away stops no program.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import os
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from waypoint.api import wire
from waypoint.core.live import Live
from waypoint.daemon.connection import Connection
from waypoint.errors import UsageError, WaypointError
from waypoint.kernel import locks
from waypoint.model import Size
from waypoint.terminal.recording import ProgramOutput
from waypoint.terminal.terminal import Watcher

if TYPE_CHECKING:
    from waypoint.daemon.app import App
    from waypoint.store.sessions import SessionRow

_WATCHER_LIMIT_BYTES = 4 << 20
_READ_BYTES = 1 << 16
_MOST_TERMINAL_LENGTH = 1000
_REDRAW_SECONDS = 0.02
"""The least time between two redraws of a client."""


# ---- the output of a command ---------------------------------------------------------------------


@contextlib.contextmanager
def forward_output(connection: Connection) -> Iterator[Callable[[bytes], None]]:
    """A function that takes pieces of output; a thread of its own sends them to the client as events."""
    pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    forwarder = threading.Thread(target=_forward, args=(connection, pieces), daemon=True)
    forwarder.start()
    try:
        yield pieces.put
    finally:
        pieces.put(None)
        forwarder.join()


def _forward(connection: Connection, pieces: queue.SimpleQueue[bytes | None]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    binary = False
    with contextlib.suppress(wire.Closed):
        while (piece := pieces.get()) is not None:
            if not binary:
                incomplete, _ = decoder.getstate()
                try:
                    if text := decoder.decode(piece):
                        connection.event({"output": text})
                    continue
                except UnicodeDecodeError:
                    binary, piece = True, incomplete + piece
            connection.event(
                {"output": piece.decode(errors="replace"), "base64": base64.b64encode(piece).decode()}
            )
        return
    while pieces.get() is not None:
        pass


# ---- the pipes of a program ----------------------------------------------------------------------


class ProgramStreams:
    """Carries the pipes of a program over a connection, and records what it prints."""

    def __init__(self, connection: Connection, pipes: tuple[int, int, int], output: ProgramOutput) -> None:
        self._connection, self._output = connection, output
        self._ended = os.eventfd(0, os.EFD_CLOEXEC)
        self._caught_up = (threading.Event(), threading.Event())
        stdin, stdout, stderr = pipes
        threading.Thread(target=self._feed, args=(stdin,), daemon=True).start()
        for pipe, mark, caught_up in zip((stdout, stderr), (b"1", b"2"), self._caught_up, strict=True):
            threading.Thread(target=self._read, args=(pipe, mark, caught_up), daemon=True).start()

    def finish(self) -> None:
        """The program has ended: returns when all that it wrote is on its way."""
        os.eventfd_write(self._ended, 1)
        for caught_up in self._caught_up:
            caught_up.wait()
        os.close(self._ended)

    def _feed(self, stdin: int) -> None:
        with os.fdopen(stdin, "wb", buffering=0) as pipe, contextlib.suppress(wire.Closed, OSError):
            while True:
                kind, body = wire.receive(self._connection.socket)
                if kind != wire.DATA or not body:
                    return
                pipe.write(body)

    def _read(self, fd: int, mark: bytes, caught_up: threading.Event) -> None:
        """`caught_up` is set once the program has ended and all it wrote is on its way. Children of the
        program may still hold the pipe, and the client may be gone: then it is read on and discarded."""
        sending = True
        ready = select.poll()
        ready.register(fd, select.POLLIN)
        ready.register(self._ended, select.POLLIN)
        with os.fdopen(fd, "rb", buffering=0) as pipe:
            while True:
                if all(which == self._ended for which, _ in ready.poll()):
                    sending = False
                    ready.unregister(self._ended)
                    caught_up.set()
                elif not (data := pipe.read(_READ_BYTES)):
                    break
                elif sending:
                    self._output.add(data)
                    try:
                        self._connection.data(mark + data)
                    except wire.Closed:
                        sending = False
        caught_up.set()


# ---- the terminal of a session -------------------------------------------------------------------


def serve_terminal(app: App, connection: Connection, row: SessionRow, live: Live, size: Size) -> None:
    """Shows a terminal to a client and types what it sends, until either of them goes away. A restore puts
    another terminal in its place; the client stays."""
    session_id = row.id
    screen = _Screen(connection, size, f"waypoint: {row.name}", lambda: _current(app, session_id))
    live.terminal.watch(screen.watcher)
    screen.start()
    try:
        while True:
            kind, body = wire.receive(connection.socket)
            current = _current(app, session_id)
            if kind != wire.DATA or current is None:
                return
            command, rest = body[:1], body[1:]
            if command == b"i":
                current.terminal.write(rest)
            elif command == b"r" and len(rest) == 4:
                current.terminal.resize_watcher(screen.watcher, _terminal_size(rest))
            elif command == b"s":
                screen.watcher.redraw()
            elif command == b"d":
                screen.stop()
                with current.terminal.lock:
                    farewell = current.terminal.screen.leave()
                connection.data(farewell)
                connection.event({"detached": True})
                return
    finally:
        screen.stop()
        if current := _current(app, session_id):
            current.terminal.unwatch(screen.watcher)


def _terminal_size(packed: bytes) -> Size:
    rows, columns = struct.unpack(">HH", packed)
    if not (1 <= rows <= _MOST_TERMINAL_LENGTH and 1 <= columns <= _MOST_TERMINAL_LENGTH):
        raise UsageError(f"a terminal cannot have {rows} rows and {columns} columns")
    return Size(rows=rows, columns=columns)


def _current(app: App, session_id: str) -> Live | None:
    """The session as it runs now; None when it does not."""
    with contextlib.suppress(WaypointError):
        return app.registry.live(app.registry.find(session_id))
    return None


class _Screen:
    """What an attached client is still to be sent. A client that cannot keep up gets the screen redrawn."""

    def __init__(
        self, connection: Connection, size: Size, untitled: str, current: Callable[[], Live | None]
    ) -> None:
        self._connection, self._current = connection, current
        self._ready = locks.condition("watcher")
        self._unsent = bytearray()
        self._news: list[Any] = []
        self._stale = False
        self._stopped = False
        self.watcher = Watcher(self._add, self._redraw, self._notify, self._end, size, untitled)

    def _add(self, data: bytes) -> None:
        with self._ready:
            if len(self._unsent) + len(data) > _WATCHER_LIMIT_BYTES:
                self._unsent.clear()
                self._stale = True
            else:
                self._unsent += data
            self._ready.notify()

    def _redraw(self) -> None:
        with self._ready:
            self._unsent.clear()
            self._stale = True
            self._ready.notify()

    def _notify(self, body: Any) -> None:
        with self._ready:
            self._news.append(body)
            self._ready.notify()

    def _end(self, why: str) -> None:
        with contextlib.suppress(wire.Closed):
            self._connection.event({"ended": why})
        with contextlib.suppress(OSError):
            self._connection.socket.shutdown(socket.SHUT_RDWR)

    def start(self) -> None:
        threading.Thread(target=self._send, daemon=True).start()

    def stop(self) -> None:
        with self._ready:
            self._stopped = True
            self._ready.notify()

    def _send(self) -> None:
        with contextlib.suppress(wire.Closed):
            while True:
                with self._ready:
                    while not (self._unsent or self._stale or self._news or self._stopped):
                        self._ready.wait()
                    if self._stopped:
                        return
                    data, self._unsent = bytes(self._unsent), bytearray()
                    stale, self._stale = self._stale, False
                    news, self._news = self._news, []
                for body in news:
                    self._connection.event(body)
                if stale and (live := self._current()):
                    # What came before `redraw` was taken is in it; what comes after it follows it.
                    with live.terminal.lock:
                        with self._ready:
                            self._unsent.clear()
                        data = live.terminal.screen.redraw(self.watcher.untitled)
                    self._connection.event({"redraw": True})
                if data:
                    self._connection.data(data)
                if stale:
                    time.sleep(_REDRAW_SECONDS)
