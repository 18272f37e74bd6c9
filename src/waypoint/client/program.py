"""Programs outside the shell, and the terminal of a session: connections that stay open."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from waypoint import errors
from waypoint.api import wire
from waypoint.client import protocol
from waypoint.client.connection import Connection

if TYPE_CHECKING:
    from waypoint.client.session import Session


class Program:
    """A program outside the shell, with pipes of its own. Made by `Session.spawn`.

    >>> import waypoint
    >>> with waypoint.session(temporary=True) as s:
    ...     server = s.spawn(["sleep", "1000"])
    ...     server.kill()
    ...     server.wait(timeout=10)
    True
    137
    """

    def __init__(
        self, connection: Connection, pid: int, warnings: tuple[str, ...] = (), session: Session | None = None
    ) -> None:
        self._connection, self._session = connection, session
        self._lock = threading.Lock()
        self._unread: deque[tuple[str, bytes]] = deque()
        self.pid = pid
        """Its number in the session."""
        self.warnings = warnings
        self.exit_code: int | None = None
        """None until its end was read; 128 plus the signal that has ended it, as of a shell."""
        self.timed_out = False
        """Whether it was ended because of the `timeout` of `spawn`."""

    def write(self, data: bytes) -> None:
        """Writes to its standard input."""
        with self._lock:
            self._connection.write(data)

    def close_stdin(self) -> None:
        """Closes its standard input."""
        with self._lock:
            self._connection.write(b"")

    def events(self) -> Iterator[tuple[str, bytes]]:
        """What it prints, as it comes: ("stdout" | "stderr", data). It ends with the program."""
        return self._events(None)

    def _events(self, timeout: float | None) -> Iterator[tuple[str, bytes]]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._unread:
            yield self._unread.popleft()
        while self.exit_code is None:
            if deadline is not None and not self._connection.has_data(deadline - time.monotonic()):
                raise errors.TimedOut(
                    f"program {self.pid} takes longer than {timeout:g} s", hint="wait again, or `kill` it"
                )
            if piece := self._receive():
                yield piece

    def _receive(self) -> tuple[str, bytes] | None:
        """The next piece of output; None when something else came."""
        try:
            message = self._connection.receive()
        except wire.Closed:
            raise errors.SessionDead("the program's session was restored or ended") from None
        match message:
            case protocol.Data(data):
                return ("stderr" if data[:1] == b"2" else "stdout"), data[1:]
            case protocol.Refusal(error):
                raise error
            case protocol.Answer(result):
                exited = protocol.exited(result)
                self.exit_code, self.timed_out = exited.exit_code, exited.timed_out
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; returns its exit code. What it prints meanwhile is kept for `events` and
        `communicate`. TimedOut after `timeout` seconds; the program goes on."""
        read: list[tuple[str, bytes]] = []
        try:
            read.extend(self._events(timeout))
        finally:
            self._unread.extend(read)
        assert self.exit_code is not None
        return self.exit_code

    def signal(self, signal: int | str) -> bool:
        """Sends it a signal (`"TERM"`, `15`), and to what it has started in its process group. False when it
        has ended."""
        if self._session is None:
            raise errors.UsageError("this program does not know its session", hint="use the one of `spawn`")
        return self._session.signal(self.pid, signal)

    def kill(self) -> bool:
        """Ends it at once, with its process group. False when it has ended before."""
        return self.signal("KILL")

    def communicate(
        self,
        stdin: bytes = b"",
        *,
        timeout: float | None = None,
        on_output: Callable[[str, bytes], object] | None = None,
    ) -> tuple[bytes, bytes]:
        """Feeds it, waits for its end; returns all of its stdout and stderr. `on_output` is called with each
        piece as it comes ("stdout" or "stderr", data). TimedOut after `timeout` seconds: the program goes on,
        and what was read is kept."""
        feeder = threading.Thread(target=self._feed, args=(stdin,), daemon=True)
        feeder.start()
        outputs = {"stdout": bytearray(), "stderr": bytearray()}
        read: list[tuple[str, bytes]] = []
        try:
            for stream, data in self._events(timeout):
                read.append((stream, data))
                outputs[stream] += data
                if on_output:
                    on_output(stream, data)
        except errors.TimedOut:
            self._unread.extend(read)
            raise
        feeder.join()
        self.close()
        return bytes(outputs["stdout"]), bytes(outputs["stderr"])

    def _feed(self, stdin: bytes) -> None:
        with contextlib.suppress(wire.Closed):
            for piece in protocol.pieces(stdin):
                self.write(piece)
            self.close_stdin()

    def close(self) -> None:
        """Stops listening. The program goes on; what it prints from now on is discarded."""
        self._connection.close()


class Terminal:
    """The terminal of a session, as a person at a screen has it. Made by `Session.attach`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def write(self, keys: bytes) -> None:
        """Types."""
        self._connection.write(b"i" + keys)

    def resize(self, rows: int, columns: int) -> None:
        """The screen has another size now."""
        self._connection.write(b"r" + struct.pack(">HH", rows, columns))

    def output(self) -> Iterator[bytes]:
        """What it shows, as it comes, until it is detached or its session ends."""
        with contextlib.suppress(wire.Closed):
            while True:
                match self._connection.receive():
                    case protocol.Data(data):
                        yield data
                    case protocol.Event():
                        return

    def detach(self) -> None:
        """Ends `output`. The session goes on."""
        with contextlib.suppress(wire.Closed):
            self._connection.write(b"d")

    def close(self) -> None:
        """Goes away without a word; the session goes on."""
        self._connection.close()
