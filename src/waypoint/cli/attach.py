"""`waypoint shell`: shows a session's terminal in the local terminal.

Keys go to the daemon unchanged, and the output of the session's terminal comes back unchanged. Only the
detach key is handled here. The daemon first sends a redraw of the screen. If the daemon dies, the client
attaches to the next one, which sends a redraw too: the user sees at most a flicker.

The local terminal is left in the state it was in before, however the attachment ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import struct
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from waypoint import errors
from waypoint.api import wire
from waypoint.api.sessions import Attach, Session
from waypoint.cli.console import terminal_size

if TYPE_CHECKING:
    from types import FrameType

    from waypoint.cli.console import Console
    from waypoint.client.connection import Transport

_READ_BYTES = 1 << 16
_BANNER_SECONDS = 4.0
_LEAVE_SECONDS = 0.3
"""How long the client waits for the sequence that resets the local terminal."""
_ATTEMPTS, _RETRY_SECONDS = 5, 0.2

# C-] as terminals send it: plain, and in the two encodings that a program may have switched on.
_PREFIX = re.compile(rb"\x1d|\x1b\[93;5u|\x1b\[27;5;93~")
_DETACH = re.compile(rb"[dD]|\x1b\[100(?:;1)?u")

# If the daemon does not reply: switches off everything that a program may have switched on.
_RESET = (
    b"\x18\x1b\\"  # cancels an unfinished sequence
    b"\x1b[?1049l\x1b[r\x1b[?6l\x1b[4l\x1b[20l\x1b[?7h\x1b>"
    b"\x1b[?1l\x1b[?9l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[?2026l"
    b"\x1b[<99u\x1b[>4m\x1b(B\x1b)B\x0f\x1b[m\x1b[0 q\x1b[?25h\x1b[999;1H\r\n"
)


class _Terminated(Exception):
    """Raised when a signal ends this process."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class End(NamedTuple):
    """How an attachment ended: the user detached, or the session ended (`why`)."""

    detached: bool
    why: str = ""


def attach(console: Console) -> int:
    """Attaches until the user detaches or the session ends. Returns the exit status."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise errors.UsageError(
            "`waypoint shell` needs a terminal",
            hint="without a terminal use `waypoint exec`, `waypoint type` and `waypoint screen`",
        )
    session = console.send(Session(session=console.session), "waiting for the daemon").session
    name = session.name
    try:
        end = Attachment(console.transport, session.id, name).run()
    except _Terminated as termination:
        return 128 + termination.number
    if end.detached:
        console.aside(f"[detached from {name}; `waypoint shell {name}` attaches again]")
    else:
        console.aside(f"[{name}: {end.why}]")
    return 0


class KeyFilter:
    """Finds the detach key, C-] d, in the input. C-] C-] sends one C-]; before any other key C-] is sent."""

    def __init__(self) -> None:
        self._prefix = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """The input to send to the session, and whether to detach after that."""
        out = bytearray()
        while data:
            if self._prefix:
                if match := _DETACH.match(data):
                    return bytes(out), True
                match = _PREFIX.match(data)
                out += self._prefix if match else self._prefix + data[:1]
                data = data[match.end() if match else 1 :]
                self._prefix = b""
            elif match := _PREFIX.search(data):
                out += data[: match.start()]
                self._prefix, data = match[0], data[match.end() :]
            else:
                out += data
                break
        return bytes(out), False


class Attachment:
    """The local terminal while it shows a session."""

    def __init__(self, transport: Transport, session: str, name: str) -> None:
        self._transport = transport
        self._session, self._name = session, name
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._keys = KeyFilter()
        self._unsent = b""
        self._resized = False
        self._covered: bytes | None = None
        """The redraw that is below the banner, while the banner is shown."""
        self._banner_until = 0.0

    def run(self) -> End:
        """Returns when the user detaches or the session ends."""
        with _signals(self._on_resize) as wakeup:
            connection = self._attach()
            is_reset = False
            with _raw(self._in):
                try:
                    while True:
                        try:
                            with connection:
                                end = self._exchange(connection, wakeup)
                                is_reset = end.detached and self._detach(connection)
                                return end
                        except wire.Closed:
                            connection = self._attach()
                finally:
                    if not is_reset:
                        self._write(_RESET)

    # ---- the daemon --------------------------------------------------------------------------

    def _attach(self) -> socket.socket:
        """Attaches. If the daemon has died, attaches to the next one."""
        for attempt in range(_ATTEMPTS):
            size = terminal_size()
            request = Attach(session=self._session, rows=size.lines, columns=size.columns)
            try:
                connection, _ = self._transport.open(request)
            except errors.DaemonUnreachable:
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                self._resized = False
                self._covered = None
                return connection
        raise AssertionError

    def _exchange(self, connection: socket.socket, wakeup: int) -> End:
        while True:
            self._send_keys(connection)
            timeout = None if self._covered is None else max(0.0, self._banner_until - time.monotonic())
            ready, _, _ = select.select([self._in, connection, wakeup], [], [], timeout)
            if not ready:
                self._remove_banner()
            if wakeup in ready:
                os.read(wakeup, _READ_BYTES)
            if self._resized:
                self._resized = False
                self._remove_banner()
                size = terminal_size()
                wire.send_data(connection, b"r" + struct.pack(">HH", size.lines, size.columns))
            if connection in ready and (end := self._receive(connection)):
                return end
            if self._in in ready:
                data = os.read(self._in, _READ_BYTES)
                if not data:
                    return End(detached=True)
                keys, detach = self._keys.feed(data)
                self._unsent += keys
                if detach:
                    self._send_keys(connection)
                    return End(detached=True)

    def _send_keys(self, connection: socket.socket) -> None:
        """Sends the input. It is kept until it was sent: if the daemon dies, the next one gets it."""
        if self._unsent:
            self._remove_banner()
            wire.send_data(connection, b"i" + self._unsent)
            self._unsent = b""

    def _receive(self, connection: socket.socket) -> End | None:
        """Handles one frame of the daemon."""
        kind, body = wire.receive(connection)
        if kind == wire.DATA:
            if self._banner_until == 0.0:
                self._write(body)
                self._show_banner(body)
            else:
                self._remove_banner()
                self._write(body)
            return None
        message = wire.decode(body)
        if "error" in message:
            raise errors.from_dict(message["error"])
        ended = message.get("event", {}).get("ended")
        return End(detached=False, why=str(ended)) if ended else None

    def _detach(self, connection: socket.socket) -> bool:
        """Gets from the daemon the sequence that resets the local terminal. False if there was no reply."""
        try:
            connection.settimeout(_LEAVE_SECONDS)
            wire.send_data(connection, b"d")
            deadline = time.monotonic() + _LEAVE_SECONDS
            while time.monotonic() < deadline:
                kind, body = wire.receive(connection)
                if kind == wire.DATA:
                    self._write(body)
                elif "detached" in wire.decode(body).get("event", {}):
                    return True
        except (wire.Closed, TimeoutError):
            pass
        return False

    # ---- the local terminal ------------------------------------------------------------------

    def _show_banner(self, redraw: bytes) -> None:
        """Shows how to detach, in the upper right corner, until something else happens. `redraw` brings back
        what the banner covers."""
        self._banner_until = time.monotonic() + _BANNER_SECONDS
        self._covered = redraw
        columns = terminal_size().columns
        text = f" {self._name}: C-] d detaches "[:columns]
        self._write(f"\x18\x1b\\\x1b7\x1b[?6l\x1b[1;{columns - len(text) + 1}H\x1b[0;7m{text}\x1b8".encode())

    def _remove_banner(self) -> None:
        if self._covered is not None:
            redraw, self._covered = self._covered, None
            self._write(redraw)

    def _on_resize(self) -> None:
        self._resized = True

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        with contextlib.suppress(OSError):  # the terminal is gone; SIGHUP will end this process
            while view:
                view = view[os.write(self._out, view) :]


@contextlib.contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """The local terminal is in raw mode; afterwards it is as before."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSANOW)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            # Discards late replies of this terminal to queries of the session.
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def _signals(on_resize: Any) -> Iterator[int]:
    """Yields a descriptor that becomes readable when a signal arrives. SIGTERM, SIGHUP and SIGINT raise
    `_Terminated`."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    ending = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def end(number: int, _frame: FrameType | None) -> None:
        for other in ending:  # a second signal must not interrupt the clean-up
            signal.signal(other, signal.SIG_IGN)
        raise _Terminated(number)

    handlers: dict[int, Any] = dict.fromkeys(ending, end)
    handlers[signal.SIGWINCH] = lambda *_: on_resize()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
