"""Programs outside the shell, and the terminal of a session: connections that stay open."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator

from waypoint import errors
from waypoint.api import wire
from waypoint.client import protocol
from waypoint.client.connection import Connection


class Program:
    """A program outside the shell, with pipes of its own. Made by `Session.spawn`."""

    def __init__(self, connection: Connection, pid: int, warnings: tuple[str, ...] = ()) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.pid = pid
        self.warnings = warnings
        self.exit_code: int | None = None

    def write(self, data: bytes) -> None:
        """Writes to its standard input."""
        with self._lock:
            self._connection.write(data)

    def close_stdin(self) -> None:
        """Closes its standard input."""
        with self._lock:
            self._connection.write(b"")

    def events(self) -> Iterator[tuple[str, bytes]]:
        """What it prints, as it comes: ("stdout" | "stderr", data)."""
        while self.exit_code is None:
            try:
                message = self._connection.receive()
            except wire.Closed:
                raise errors.SessionDead("the program's session was restored or ended") from None
            match message:
                case protocol.Data(data):
                    yield ("stderr" if data[:1] == b"2" else "stdout"), data[1:]
                case protocol.Refusal(error):
                    raise error
                case protocol.Answer(result):
                    self.exit_code = protocol.exit_code(result)

    def communicate(self, stdin: bytes = b"") -> tuple[bytes, bytes]:
        """Feeds it, waits for its end; returns all of its stdout and stderr."""
        feeder = threading.Thread(target=self._feed, args=(stdin,), daemon=True)
        feeder.start()
        outputs = {"stdout": bytearray(), "stderr": bytearray()}
        for stream, data in self.events():
            outputs[stream] += data
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
