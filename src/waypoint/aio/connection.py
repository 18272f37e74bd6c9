"""Connections to the daemon of one home, with asyncio.

A request that finds no idle connection opens another, so a client may be used by many tasks at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from waypoint import errors, model
from waypoint.api import wire
from waypoint.client import protocol
from waypoint.client.connection import NO_DAEMON, connection_error, start_daemon
from waypoint.home import Home, locate
from waypoint.model import from_plain

if TYPE_CHECKING:
    from waypoint.api.request import Request

R = TypeVar("R")

OnApproval = Callable[[model.Approval], bool | Awaitable[bool | None] | None]
"""Called when a command waits for approval: whether it may run; None leaves it to others. What it returns is
awaited, and cancelled when the decision has come from elsewhere."""
OnEvent = Callable[[Any], Awaitable[None] | None]
OnData = Callable[[bytes], object]


class Connection(socket.socket):
    """One connection. It is closed with the client that has it."""

    _path: str
    _protocol: protocol.Protocol
    _partial: bytearray
    """What has been read of the next message: a task that reads may be cancelled."""

    @classmethod
    async def open(cls, path: str) -> Connection:
        connection = cls(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        connection._path, connection._protocol = path, protocol.Protocol()
        connection._partial = bytearray()
        try:
            async with asyncio.timeout(protocol.GREETING_SECONDS):
                await asyncio.get_running_loop().sock_connect(connection, path)
                # A daemon greets. One that is about to end may accept without ever reading a request.
                await connection.receive()
        except wire.Closed as error:
            connection.close()
            raise ConnectionRefusedError("the daemon is about to end") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def __del__(self) -> None:
        self.close()

    async def receive(self) -> protocol.Message:
        """The next message."""
        while True:
            message = self._protocol.feed(await self._receive_exactly(self._protocol.wanted))
            if message is not None:
                return message

    async def _receive_exactly(self, wanted: int) -> bytes:
        loop, parts = asyncio.get_running_loop(), self._partial
        while len(parts) < wanted:
            try:
                async with asyncio.timeout(protocol.SILENT_SECONDS):
                    part = await loop.sock_recv(self, min(wanted - len(parts), 1 << 20))
            except TimeoutError:
                await self._require_greeting()
                continue
            except ConnectionResetError as error:
                raise wire.Unread from error
            except OSError as error:
                raise wire.Closed from error
            if not part:
                raise wire.Closed
            parts += part
        self._partial = bytearray()
        return bytes(parts)

    async def _require_greeting(self) -> None:
        """DaemonUnreachable when the daemon does not even greet a new client any more."""
        try:
            # One that is about to end has no socket any more; this connection ends with it.
            with contextlib.suppress(*NO_DAEMON):
                (await Connection.open(self._path)).close()
        except TimeoutError as error:
            raise protocol.not_answering(wire.peer_of(self)) from error

    async def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            with contextlib.suppress(BlockingIOError):
                view = view[self.send(view) :]
        except OSError as error:
            raise wire.Closed from error
        if not view:
            return
        sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(self, view))
        try:
            while not (await asyncio.wait([sending], timeout=protocol.SILENT_SECONDS))[0]:
                await self._require_greeting()
            await sending
        except OSError as error:
            raise wire.Closed from error
        finally:
            sending.cancel()
            await asyncio.wait([sending])  # it watches the descriptor until then

    async def write(self, data: bytes) -> None:
        """Sends data: the input of a program or a terminal."""
        await self.send_bytes(protocol.data_bytes(data))


class _AskAgain(Exception):
    """Raised when the daemon has not begun the request: it is about to end, or ended before it read it."""


class Transport:
    """Asks the daemon of one home. A daemon is started by the first request, and again when it is gone."""

    def __init__(self, home: str | os.PathLike[str] | None = None, *, start: bool = True) -> None:
        self.home: Home = locate(home)
        self._start = start
        self._idle: list[Connection] = []

    # ---- connections -------------------------------------------------------------------------

    async def connect(self) -> Connection:
        """A new connection. Starts the daemon if none runs."""
        path = str(self.home.socket)
        try:
            return await Connection.open(path)
        except NO_DAEMON:
            pass
        except (PermissionError, TimeoutError) as error:
            raise connection_error(self.home, error) from error
        if not self._start:
            raise errors.DaemonUnreachable("no daemon runs", hint="any other verb starts it")
        await asyncio.to_thread(start_daemon, self.home)
        try:
            return await Connection.open(path)
        except OSError as error:
            raise connection_error(self.home, error) from error

    async def close(self) -> None:
        """Closes its connections. The next request opens one again."""
        while self._idle:
            self._idle.pop().close()

    # ---- requests ----------------------------------------------------------------------------

    async def ask(
        self,
        request: Request[R],
        *,
        on_event: OnEvent | None = None,
        on_data: OnData | None = None,
        on_approval: OnApproval | None = None,
    ) -> R:
        """One request and its result. Raises what the daemon raised."""
        answer = await self._ask(protocol.ask_request(request), on_event, on_data, on_approval)
        return protocol.decode(request, answer)

    async def ask_plain(
        self, request: Request[Any], *, on_event: OnEvent | None = None, on_data: OnData | None = None
    ) -> Any:
        """The same, with the result as it travelled: dictionaries and lists, as `--json` prints them."""
        return msgspec.json.decode(await self._ask(protocol.ask_request(request), on_event, on_data))

    async def call(
        self,
        verb: str,
        args: Mapping[str, Any] | None = None,
        *,
        on_event: OnEvent | None = None,
        on_data: OnData | None = None,
    ) -> Any:
        """A request by the name of its verb, with plain values. What is None is left to its default."""
        ask = protocol.ask_by_name(verb, args or {})
        return msgspec.json.decode(await self._ask(ask, on_event, on_data))

    async def _ask(
        self,
        ask: protocol.Ask,
        on_event: OnEvent | None,
        on_data: OnData | None,
        on_approval: OnApproval | None = None,
    ) -> msgspec.Raw:
        connection = await self._send(ask)
        try:
            result = await self._answer(connection, on_event, on_data, on_approval)
        except _AskAgain:
            connection.close()
            await self.close()
            return await self._ask(ask, on_event, on_data, on_approval)
        except wire.Closed as error:
            connection.close()
            raise protocol.ended_during(ask.verb) from error
        except _Refused as refused:
            self._idle.append(connection)
            raise refused.error from None
        except BaseException:
            # Its answer is still on the way: no other request may read it.
            connection.close()
            raise
        self._idle.append(connection)
        return result

    async def _send(self, ask: protocol.Ask) -> Connection:
        """Sends on an idle connection. One whose daemon has gone refuses at once, before the request has
        arrived: then, and only then, it is safe to ask a new daemon."""
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.send_bytes(ask.data)
            except wire.Closed:
                connection.close()
            else:
                return connection
        connection = await self.connect()
        try:
            await connection.send_bytes(ask.data)
        except wire.Closed as error:
            connection.close()
            raise errors.DaemonUnreachable(
                "the daemon closed the connection", hint=f"its log is {self.home.log}"
            ) from error
        return connection

    async def open(
        self, request: Request[R], *, on_approval: OnApproval | None = None
    ) -> tuple[Connection, R]:
        """A request whose connection stays open for data: attach, spawn."""
        ask, connection = protocol.ask_request(request), await self.connect()
        try:
            await connection.send_bytes(ask.data)
            answer = await self._answer(connection, None, None, on_approval)
            return connection, protocol.decode(request, answer)
        except _AskAgain:
            connection.close()
            return await self.open(request, on_approval=on_approval)
        except wire.Closed as error:
            connection.close()
            raise protocol.ended_during(ask.verb) from error
        except _Refused as refused:
            connection.close()
            raise refused.error from None
        except BaseException:
            connection.close()
            raise

    async def _answer(
        self,
        connection: Connection,
        on_event: OnEvent | None,
        on_data: OnData | None,
        on_approval: OnApproval | None,
    ) -> msgspec.Raw:
        """Reads until the request is answered."""
        while True:
            try:
                message = await connection.receive()
            except wire.Unread as unread:
                raise _AskAgain from unread
            match message:
                case protocol.Data(data):
                    if on_data:
                        on_data(data)
                case protocol.Event(body):
                    if on_event and inspect.isawaitable(waiting := on_event(body)):
                        await waiting
                    if on_approval and "approval" in body:
                        await self._decide(connection, body["approval"], on_approval)
                case protocol.Refusal(error):
                    raise _Refused(error)
                case protocol.Answer(result):
                    return result
                case protocol.Again():
                    raise _AskAgain

    async def _decide(
        self, connection: Connection, approval: Mapping[str, Any], on_approval: OnApproval
    ) -> None:
        """Asks `on_approval` about a command that waits, and passes the decision on. Without a decision the
        command waits for another one."""
        if approval["state"] != "waiting":
            return
        decision = on_approval(from_plain(approval, model.Approval))
        if inspect.isawaitable(decision):
            decision = await _unless_readable(connection, decision)
        if decision is None:
            return
        # Another client may have decided, or the approval has expired: then that counts.
        with contextlib.suppress(errors.UsageError):
            await self.call("approve" if decision else "deny", {"id": approval["id"]})


class _Refused(Exception):
    """Raised when the daemon answered with an error: the connection is free again."""

    def __init__(self, error: errors.WaypointError) -> None:
        self.error = error


async def _unless_readable(connection: Connection, decision: Awaitable[bool | None]) -> bool | None:
    """The decision; None, and it is cancelled, if the daemon sends something first: then the command has been
    decided elsewhere."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    deciding, other = asyncio.ensure_future(decision), asyncio.ensure_future(readable.wait())
    loop.add_reader(connection, readable.set)
    try:
        await asyncio.wait((deciding, other), return_when=asyncio.FIRST_COMPLETED)
        return await deciding if deciding.done() else None
    finally:
        loop.remove_reader(connection)
        for task in (deciding, other):
            task.cancel()
        await asyncio.gather(deciding, other, return_exceptions=True)
