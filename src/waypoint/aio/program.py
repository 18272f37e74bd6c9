"""Programs outside the shell, and the terminal of a session: connections that stay open."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

from waypoint import errors
from waypoint.aio.connection import Connection
from waypoint.api import wire
from waypoint.client import protocol


class Program:
    """A program outside the shell, with pipes of its own. Made by `Session.spawn`."""

    def __init__(self, connection: Connection, pid: int, warnings: tuple[str, ...] = ()) -> None:
        self._connection = connection
        self.pid = pid
        self.warnings = warnings
        self.exit_code: int | None = None

    async def write(self, data: bytes) -> None:
        """Writes to its standard input."""
        await self._connection.write(data)

    async def close_stdin(self) -> None:
        """Closes its standard input."""
        await self._connection.write(b"")

    async def events(self) -> AsyncIterator[tuple[str, bytes]]:
        """What it prints, as it comes: ("stdout" | "stderr", data)."""
        while self.exit_code is None:
            try:
                message = await self._connection.receive()
            except wire.Closed:
                raise errors.SessionDead("the program's session was restored or ended") from None
            match message:
                case protocol.Data(data):
                    yield ("stderr" if data[:1] == b"2" else "stdout"), data[1:]
                case protocol.Refusal(error):
                    raise error
                case protocol.Answer(result):
                    self.exit_code = protocol.exit_code(result)

    async def communicate(self, stdin: bytes = b"") -> tuple[bytes, bytes]:
        """Feeds it, waits for its end; returns all of its stdout and stderr."""
        feeder = asyncio.create_task(self._feed(stdin))
        outputs = {"stdout": bytearray(), "stderr": bytearray()}
        try:
            async for stream, data in self.events():
                outputs[stream] += data
        finally:
            feeder.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeder
            await self.close()
        return bytes(outputs["stdout"]), bytes(outputs["stderr"])

    async def _feed(self, stdin: bytes) -> None:
        with contextlib.suppress(wire.Closed):
            for piece in protocol.pieces(stdin):
                await self.write(piece)
            await self.close_stdin()

    async def close(self) -> None:
        """Stops listening. The program goes on; what it prints from now on is discarded."""
        self._connection.close()


class Terminal:
    """The terminal of a session, as a person at a screen has it. Made by `Session.attach`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def write(self, keys: bytes) -> None:
        """Types."""
        await self._connection.write(b"i" + keys)

    async def resize(self, rows: int, columns: int) -> None:
        """The screen has another size now."""
        await self._connection.write(b"r" + struct.pack(">HH", rows, columns))

    async def output(self) -> AsyncIterator[bytes]:
        """What it shows, as it comes, until it is detached or its session ends."""
        with contextlib.suppress(wire.Closed):
            while True:
                match await self._connection.receive():
                    case protocol.Data(data):
                        yield data
                    case protocol.Event():
                        return

    async def detach(self) -> None:
        """Ends `output`. The session goes on."""
        with contextlib.suppress(wire.Closed):
            await self._connection.write(b"d")

    async def close(self) -> None:
        """Goes away without a word; the session goes on."""
        self._connection.close()
