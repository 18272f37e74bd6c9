"""Connections to the daemon of one home, with sockets and threads; and how a daemon is started.

Each thread has a connection of its own, so a client may be used from several threads at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from waypoint import errors, model
from waypoint.api import wire
from waypoint.api.hints import Do, Hint
from waypoint.client import protocol
from waypoint.home import Home, locate
from waypoint.model import from_plain

if TYPE_CHECKING:
    import subprocess

    from waypoint.api.request import Request

R = TypeVar("R")

OnApproval = Callable[[model.Approval], bool | None]
"""Called when a command waits for approval: whether it may run; None leaves it to others. `Client.asked_on`
tells meanwhile that the decision has come from elsewhere."""
OnEvent = Callable[[Any], None]
OnData = Callable[[bytes], object]

_START_SECONDS = 120.0
_REBUILD_SECONDS = 3600.0
"""It reads every point of the home."""


def needs_root(why: str = "Waypoint needs root") -> errors.NotRoot:
    """What a user who is not root is told."""
    return errors.NotRoot(
        why, hint=Hint("run it with sudo, or as root; a group can be let in: ", Do("setup", group="NAME"))
    )


def _run(home: Home, module: str, seconds: float, too_late: str) -> subprocess.CompletedProcess[str]:
    """Runs a program for a home to its end. DaemonUnreachable when it takes longer than that."""
    import subprocess  # here: a verb that finds a daemon does not pay for it

    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", module],  # -P: nothing is imported from the current folder
            env={**os.environ, "WAYPOINT_HOME": str(home.path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise errors.DaemonUnreachable(too_late, hint=f"its log is {home.log}") from error


def start_daemon(home: Home) -> None:
    """Starts the daemon of a home and returns when it serves."""
    if os.geteuid() != 0:
        raise needs_root("no daemon runs, and only root can start it")
    too_late = f"the daemon has not started within {_START_SECONDS:g} s; it may still come"
    started = _run(home, "waypoint.daemon.main", _START_SECONDS, too_late)
    if started.returncode:
        with contextlib.suppress(ValueError, KeyError, IndexError):
            raise errors.from_dict(wire.decode(started.stdout.splitlines()[-1].encode())["error"])
        raise errors.DaemonUnreachable(
            f"the daemon did not start: {started.stderr.strip()[-500:]}", hint=f"its log is {home.log}"
        )


def rebuild_database(home: Home) -> model.Recovered:
    """Rebuilds a damaged database, with which no daemon can start. A daemon that runs is stopped; sessions
    live on."""
    from waypoint.api.machine import DaemonStop

    with contextlib.suppress(errors.WaypointError):
        Transport(home.path, start=False).ask(DaemonStop())
    too_late = f"the database was not rebuilt within {_REBUILD_SECONDS / 60:g} minutes"
    done = _run(home, "waypoint.daemon.rebuild", _REBUILD_SECONDS, too_late)
    try:
        answer = wire.decode(done.stdout.splitlines()[-1].encode())
    except (ValueError, IndexError):
        raise errors.DaemonError(
            f"the database was not rebuilt: the process that does it has ended: {done.stderr.strip()[-500:]}",
            hint=f"ask again; the log is {home.log}",
        ) from None
    if "error" in answer:
        raise errors.from_dict(answer["error"])
    return from_plain(answer, model.Recovered)


def connection_error(home: Home, error: OSError) -> errors.WaypointError:
    """Why the socket of a home cannot be used."""
    if isinstance(error, PermissionError):
        return needs_root(f"no permission to talk to the daemon at {home.socket}")
    return errors.DaemonUnreachable(f"the daemon does not answer: {error}", hint=f"its log is {home.log}")


NO_DAEMON = (FileNotFoundError, ConnectionRefusedError, NotADirectoryError)
"""What connecting raises when no daemon runs."""


class Connection(socket.socket):
    """One connection. It is closed with the thread or the client that has it."""

    _path: str
    _protocol: protocol.Protocol

    @classmethod
    def open(cls, path: str) -> Connection:
        connection = cls(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection._path, connection._protocol = path, protocol.Protocol()
        try:
            connection.settimeout(protocol.GREETING_SECONDS)
            connection.connect(path)
            # A daemon greets. One that is about to end may accept without ever reading a request.
            while (
                connection._protocol.feed(wire.receive_exactly(connection, connection._protocol.wanted))
                is None
            ):
                pass
            connection.settimeout(None)
        except wire.Closed as error:
            connection.close()
            raise ConnectionRefusedError("the daemon is about to end") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def __del__(self) -> None:
        self.close()

    def receive(self) -> protocol.Message:
        """The next message."""
        while True:
            data = wire.receive_exactly(self, self._protocol.wanted, lambda: self._wait(select.POLLIN))
            if (message := self._protocol.feed(data)) is not None:
                return message

    def has_data(self, seconds: float) -> bool:
        """Whether something comes, or the other side closes, within that time."""
        return self._is_ready(select.POLLIN, seconds)

    def _is_ready(self, event: int, seconds: float) -> bool:
        if self.fileno() < 0:
            raise wire.Closed
        poll = select.poll()
        poll.register(self, event)
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def _wait(self, event: int) -> None:
        """Returns when the connection is ready, however late, as long as the daemon greets new clients."""
        while not self._is_ready(event, protocol.SILENT_SECONDS):
            try:
                # One that is about to end has no socket any more; this connection ends with it.
                with contextlib.suppress(*NO_DAEMON):
                    Connection.open(self._path).close()
            except TimeoutError as error:
                pid = wire.peer_of(self)
                self.close()
                raise protocol.not_answering(pid) from error

    def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                self._wait(select.POLLOUT)
                with contextlib.suppress(BlockingIOError):
                    view = view[self.send(view, socket.MSG_DONTWAIT) :]
        except OSError as error:
            raise wire.Closed from error

    def write(self, data: bytes) -> None:
        """Sends data: the input of a program or a terminal."""
        self.send_bytes(protocol.data_bytes(data))


class _AskAgain(Exception):
    """Raised when the daemon has not begun the request: it is about to end, or ended before it read it."""


class Transport:
    """Asks the daemon of one home. A daemon is started by the first request, and again when it is gone."""

    def __init__(self, home: str | os.PathLike[str] | None = None, *, start: bool = True) -> None:
        self.home: Home = locate(home)
        self._start = start
        self._local = threading.local()

    # ---- connections -------------------------------------------------------------------------

    def connect(self) -> Connection:
        """A new connection. Starts the daemon if none runs."""
        path = str(self.home.socket)
        try:
            return Connection.open(path)
        except NO_DAEMON:
            pass
        except (PermissionError, TimeoutError) as error:
            raise connection_error(self.home, error) from error
        if not self._start:
            raise errors.DaemonUnreachable("no daemon runs", hint="any other verb starts it")
        start_daemon(self.home)
        try:
            return Connection.open(path)
        except OSError as error:
            raise connection_error(self.home, error) from error

    def close(self) -> None:
        """Closes its connections. The next request opens one again."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    # ---- requests ----------------------------------------------------------------------------

    def ask(
        self,
        request: Request[R],
        *,
        on_event: OnEvent | None = None,
        on_data: OnData | None = None,
        on_approval: OnApproval | None = None,
    ) -> R:
        """One request and its result. Raises what the daemon raised."""
        on_event = self._with_decisions(on_event, on_approval)
        answer = self._ask(protocol.ask_request(request), on_event, on_data)
        return protocol.decode(request, answer)

    def ask_plain(
        self, request: Request[Any], *, on_event: OnEvent | None = None, on_data: OnData | None = None
    ) -> Any:
        """The same, with the result as it travelled: dictionaries and lists, as `--json` prints them."""
        return msgspec.json.decode(self._ask(protocol.ask_request(request), on_event, on_data))

    def call(
        self,
        verb: str,
        args: Mapping[str, Any] | None = None,
        *,
        on_event: OnEvent | None = None,
        on_data: OnData | None = None,
    ) -> Any:
        """A request by the name of its verb, with plain values. What is None is left to its default."""
        ask = protocol.ask_by_name(verb, args or {})
        return msgspec.json.decode(self._ask(ask, on_event, on_data))

    def _ask(self, ask: protocol.Ask, on_event: OnEvent | None, on_data: OnData | None) -> msgspec.Raw:
        connection = self._local.answering = self._send(ask)
        try:
            return _answer(connection, on_event, on_data)
        except _AskAgain:
            self.close()
            return self._ask(ask, on_event, on_data)
        except wire.Closed as error:
            self.close()
            raise protocol.ended_during(ask.verb) from error
        except errors.WaypointError:
            raise
        except BaseException:
            # Its answer is still on the way: no other request may read it.
            self.close()
            raise

    def _send(self, ask: protocol.Ask) -> Connection:
        """Sends on this thread's connection. One whose daemon has gone refuses at once, before the request
        has arrived: then, and only then, it is safe to ask a new daemon."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            try:
                connection.send_bytes(ask.data)
            except wire.Closed:
                self.close()
            else:
                return connection
        connection = self._local.connection = self.connect()
        try:
            connection.send_bytes(ask.data)
        except wire.Closed as error:
            self.close()
            raise errors.DaemonUnreachable(
                "the daemon closed the connection", hint=f"its log is {self.home.log}"
            ) from error
        return connection

    def open(self, request: Request[R], *, on_approval: OnApproval | None = None) -> tuple[Connection, R]:
        """A request whose connection stays open for data: attach, spawn."""
        ask = protocol.ask_request(request)
        connection = self._local.answering = self.connect()
        try:
            connection.send_bytes(ask.data)
            on_event = self._with_decisions(None, on_approval)
            return connection, protocol.decode(request, _answer(connection, on_event, None))
        except _AskAgain:
            connection.close()
            return self.open(request, on_approval=on_approval)
        except wire.Closed as error:
            connection.close()
            raise protocol.ended_during(ask.verb) from error
        except BaseException:
            connection.close()
            raise

    # ---- approvals ---------------------------------------------------------------------------

    @property
    def asked_on(self) -> Connection | None:
        """The connection on which this thread waits for an answer. In an `on_approval` it becomes readable
        when the decision has come from elsewhere: then its own would come too late."""
        connection: Connection | None = getattr(self._local, "answering", None)
        return connection

    def _with_decisions(self, on_event: OnEvent | None, on_approval: OnApproval | None) -> OnEvent | None:
        """`on_event`, and `on_approval` when a command waits."""
        if on_approval is None:
            return on_event

        def handle(event: Any) -> None:
            if on_event:
                on_event(event)
            if "approval" in event:
                self._decide(event["approval"], on_approval)

        return handle

    def _decide(self, approval: Mapping[str, Any], on_approval: OnApproval) -> None:
        """Asks `on_approval` about a command that waits, and passes the decision on. Without a decision the
        command waits for another one."""
        if approval["state"] != "waiting":
            return
        decision = on_approval(from_plain(approval, model.Approval))
        if decision is None:
            return
        other = Transport(self.home.path, start=False)
        try:
            # Another client may have decided, or the approval has expired: then that counts.
            with contextlib.suppress(errors.UsageError):
                other.call("approve" if decision else "deny", {"id": approval["id"]})
        finally:
            other.close()


def _answer(connection: Connection, on_event: OnEvent | None, on_data: OnData | None) -> msgspec.Raw:
    """Reads until the request is answered."""
    while True:
        try:
            message = connection.receive()
        except wire.Unread as unread:
            raise _AskAgain from unread
        match message:
            case protocol.Data(data):
                _notify(connection, on_data, data)
            case protocol.Event(body):
                _notify(connection, on_event, body)
            case protocol.Refusal(error):
                raise error
            case protocol.Answer(result):
                return result
            case protocol.Again():
                raise _AskAgain


def _notify(connection: Connection, callback: Callable[[Any], object] | None, value: Any) -> None:
    """Calls a callback of the user. If it raises, the rest of the answer is still on the way, so that no
    other request may use the connection."""
    if callback is None:
        return
    try:
        callback(value)
    except BaseException:
        connection.close()
        raise
