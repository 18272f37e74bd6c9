"""`waypoint shell`: a session's terminal in this one.

Keys go to the daemon as they are, what the session's terminal prints comes back as it is: the terminal a
person sits at does the work of one. Only the detach key is ours. The daemon begins with a redraw of the
present screen and, when it dies, the next one does again; so losing it costs a person nothing but a flicker.

Whatever happens, the local terminal is left as it was found.
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

if TYPE_CHECKING:
    from types import FrameType

    from waypoint.cli.console import Console
    from waypoint.client.session import Client

_READ_BYTES = 1 << 16
_BANNER_SECONDS = 4.0
_LEAVE_SECONDS = 0.3
"""How long the daemon has to say how this terminal is left clean."""
_TRIES, _TRY_SECONDS = 5, 0.2

# C-] as terminals send it: plain, and in the two ways in which a program may have asked for keys.
_PREFIX = re.compile(rb"\x1d|\x1b\[93;5u|\x1b\[27;5;93~")
_DETACH = re.compile(rb"[dD]|\x1b\[100(?:;1)?u")

# For when the daemon cannot say what is left in force: everything a program may have switched on, off.
_LEAVE = (
    b"\x18\x1b\\"  # whatever sequence was under way is none now
    b"\x1b[?1049l\x1b[r\x1b[?6l\x1b[4l\x1b[20l\x1b[?7h\x1b>"
    b"\x1b[?1l\x1b[?9l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[?2026l"
    b"\x1b[<99u\x1b[>4m\x1b(B\x1b)B\x0f\x1b[m\x1b[0 q\x1b[?25h\x1b[999;1H\r\n"
)


class _Terminated(Exception):
    """Raised when a signal tells this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class End(NamedTuple):
    """How an attachment ended."""

    detached: bool
    why: str = ""


def shell(console: Console) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise errors.UsageError(
            "`waypoint shell` needs a terminal",
            hint="without one: `waypoint exec` runs commands, `waypoint type` types, `waypoint screen` looks",
        )
    session = console.session
    found = console.call("session", {"session": session}, "asking the daemon")["session"]
    try:
        end = Attachment(console.client, found["id"], found["name"]).run()
    except _Terminated as told:
        return 128 + told.number
    name = found["name"]
    if end.detached:
        console.aside(f"[detached from {name}; `waypoint shell {name}` comes back]")
    else:
        console.aside(f"[{name}: {end.why}]")
    return 0


class Keys:
    """Finds the detach key in what is typed: C-] d. C-] C-] is one C-]; before any other key it is itself."""

    def __init__(self) -> None:
        self._prefix = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """What the session is to get, and whether to detach after it."""
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
    """This terminal, while it shows a session."""

    def __init__(self, client: Client, session: str, name: str) -> None:
        self._client = client
        self._session, self._name = session, name
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._keys = Keys()
        self._unsent = b""
        self._resized = False
        self._shown: bytes | None = None
        """The redraw that the banner was laid over."""
        self._banner_until = 0.0

    def run(self) -> End:
        """Until somebody detaches or the session ends."""
        with _signals(self._on_resize) as woken:
            connection = self._attach()
            left = False
            with _raw(self._in):
                try:
                    while True:
                        try:
                            with connection:
                                end = self._converse(connection, woken)
                                left = end.detached and self._take_leave(connection)
                                return end
                        except wire.Closed:
                            connection = self._attach()
                finally:
                    if not left:
                        self._write(_LEAVE)

    # ---- the daemon --------------------------------------------------------------------------

    def _attach(self) -> socket.socket:
        """Attaches, if need be to the daemon that comes after the one that died."""
        for attempt in range(_TRIES):
            rows, columns = self._size()
            args = {"session": self._session, "rows": rows, "columns": columns}
            try:
                connection, _ = self._client.open("attach", args)
            except errors.DaemonUnreachable:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(_TRY_SECONDS)
            else:
                self._resized = False
                self._shown = None
                return connection
        raise AssertionError

    def _converse(self, connection: socket.socket, woken: int) -> End:
        while True:
            self._send_keys(connection)
            quiet = None if self._shown is None else max(0.0, self._banner_until - time.monotonic())
            ready, _, _ = select.select([self._in, connection, woken], [], [], quiet)
            if not ready:
                self._uncover()
            if woken in ready:
                os.read(woken, _READ_BYTES)
            if self._resized:
                self._resized = False
                self._uncover()
                wire.send_data(connection, b"r" + struct.pack(">HH", *self._size()))
            if connection in ready and (end := self._hear(connection)):
                return end
            if self._in in ready:
                typed = os.read(self._in, _READ_BYTES)
                if not typed:
                    return End(detached=True)
                keys, detach = self._keys.feed(typed)
                self._unsent += keys
                if detach:
                    self._send_keys(connection)
                    return End(detached=True)

    def _send_keys(self, connection: socket.socket) -> None:
        """What was typed, which a daemon that has just died must not take with it."""
        if self._unsent:
            self._uncover()
            wire.send_data(connection, b"i" + self._unsent)
            self._unsent = b""

    def _hear(self, connection: socket.socket) -> End | None:
        """One frame of the daemon's."""
        kind, body = wire.receive(connection)
        if kind == wire.DATA:
            if self._banner_until == 0.0:
                self._write(body)
                self._lay_banner(body)
            else:
                self._uncover()
                self._write(body)
            return None
        message = wire.decode(body)
        if "error" in message:
            raise errors.from_dict(message["error"])
        ended = message.get("event", {}).get("ended")
        return End(detached=False, why=str(ended)) if ended else None

    def _take_leave(self, connection: socket.socket) -> bool:
        """Asks the daemon what sets this terminal straight: it knows what is in force. False if it does
        not say."""
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

    def _lay_banner(self, redraw: bytes) -> None:
        """Says once how to get out, in the upper right corner, until anything else happens. What it covers
        comes back with the redraw that is kept for that."""
        self._banner_until = time.monotonic() + _BANNER_SECONDS
        self._shown = redraw
        _, columns = self._size()
        text = f" {self._name}: C-] d detaches "[:columns]
        self._write(f"\x18\x1b\\\x1b7\x1b[?6l\x1b[1;{columns - len(text) + 1}H\x1b[0;7m{text}\x1b8".encode())

    def _uncover(self) -> None:
        if self._shown is not None:
            shown, self._shown = self._shown, None
            self._write(shown)

    def _size(self) -> tuple[int, int]:
        """Rows and columns."""
        try:
            columns, rows = os.get_terminal_size(self._out)
        except OSError:
            columns = rows = 0
        return rows or 24, columns or 80

    def _on_resize(self) -> None:
        self._resized = True

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        with contextlib.suppress(OSError):  # a terminal that is gone hangs up, and that ends us
            while view:
                view = view[os.write(self._out, view) :]


@contextlib.contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """The local terminal passes every key on; afterwards it is as it was."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSANOW)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            # What this terminal still answers to the session's questions is nobody's input.
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def _signals(on_resize: Any) -> Iterator[int]:
    """A descriptor that can be read from when a signal came. Those that end a process are raised."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    ending = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def end(number: int, _frame: FrameType | None) -> None:
        for other in ending:  # a second one must not stop what the first has started
            signal.signal(other, signal.SIG_IGN)
        raise _Terminated(number)

    wanted: dict[int, Any] = dict.fromkeys(ending, end)
    wanted[signal.SIGWINCH] = lambda *_: on_resize()
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
