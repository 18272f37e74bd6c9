"""Programs outside the shell, and the terminal of a session: connections that stay open."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from waypoint import errors
from waypoint.aio.connection import Connection
from waypoint.api import wire
from waypoint.client import protocol

if TYPE_CHECKING:
    from waypoint.aio.session import Session


@contextlib.asynccontextmanager
async def _limit(seconds: float | None, pid: int) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise errors.TimedOut(
            f"program {pid} takes longer than {seconds:g} s", hint="wait again, or `kill` it"
        ) from error


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
        self._unread: deque[tuple[str, bytes]] = deque()
        self.pid = pid
        """Its number in the session."""
        self.warnings = warnings
        self.exit_code: int | None = None
        """None until its end was read; 128 plus the signal that has ended it, as of a shell."""
        self.timed_out = False
        """Whether it was ended because of the `timeout` of `spawn`."""

    async def write(self, data: bytes) -> None:
        """Writes to its standard input."""
        await self._connection.write(data)

    async def close_stdin(self) -> None:
        """Closes its standard input."""
        await self._connection.write(b"")

    async def events(self) -> AsyncIterator[tuple[str, bytes]]:
        """What it prints, as it comes: ("stdout" | "stderr", data). It ends with the program."""
        while self._unread:
            yield self._unread.popleft()
        while self.exit_code is None:
            if piece := await self._receive():
                yield piece

    async def _receive(self) -> tuple[str, bytes] | None:
        """The next piece of output; None when something else came."""
        try:
            message = await self._connection.receive()
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

    async def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; returns its exit code. What it prints meanwhile is kept for `events` and
        `communicate`. TimedOut after `timeout` seconds; the program goes on."""
        async with _limit(timeout, self.pid):
            while self.exit_code is None:
                if piece := await self._receive():
                    self._unread.append(piece)
        assert self.exit_code is not None
        return self.exit_code

    async def signal(self, signal: int | str) -> bool:
        """Sends it a signal (`"TERM"`, `15`), and to what it has started in its process group. False when it
        has ended."""
        if self._session is None:
            raise errors.UsageError("this program does not know its session", hint="use the one of `spawn`")
        return await self._session.signal(self.pid, signal)

    async def kill(self) -> bool:
        """Ends it at once, with its process group. False when it has ended before."""
        return await self.signal("KILL")

    async def communicate(
        self,
        stdin: bytes = b"",
        *,
        timeout: float | None = None,
        on_output: Callable[[str, bytes], object] | None = None,
    ) -> tuple[bytes, bytes]:
        """Feeds it, waits for its end; returns all of its stdout and stderr. `on_output` is called with each
        piece as it comes ("stdout" or "stderr", data). TimedOut after `timeout` seconds: the program goes on,
        and what was read is kept."""
        feeder = asyncio.create_task(self._feed(stdin))
        outputs = {"stdout": bytearray(), "stderr": bytearray()}
        read: list[tuple[str, bytes]] = []
        try:
            async with _limit(timeout, self.pid):
                async for stream, data in self.events():
                    read.append((stream, data))
                    outputs[stream] += data
                    if on_output:
                        on_output(stream, data)
        except errors.TimedOut:
            self._unread.extend(read)
            raise
        finally:
            feeder.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeder
            if self.exit_code is not None:
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
