"""`waypoint shell`: shows a session's terminal in the local terminal.

Keys go to the daemon unchanged, and the output of the session's terminal comes back unchanged. Only C-] is
handled here: it opens the menu (menu.py). The daemon first sends a redraw of the screen, and another one when
something was drawn over it. If the daemon dies, the client attaches to the next one, which sends a redraw
too: the user sees at most a flicker.

The local terminal is left in the state it was in before, however the attachment ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from waypoint import errors, model
from waypoint.api import wire
from waypoint.api.sessions import Attach, Session
from waypoint.cli.console import terminal_size
from waypoint.cli.menu import MODES_OFF, PREFIX, Choice, Decided, Menu, Overlay
from waypoint.cli.render import cut, shown, width
from waypoint.model import from_plain

if TYPE_CHECKING:
    from types import FrameType

    from waypoint.cli.console import Console

_READ_BYTES = 1 << 16
_BANNER_SECONDS = 4.0
_COVERED_SECONDS = 0.2
"""After output: when the banner about an approval is drawn again."""
_LEAVE_SECONDS = 0.3
"""How long the client waits for the sequence that resets the local terminal."""
_ATTEMPTS, _RETRY_SECONDS = 5, 0.2

_RESET = MODES_OFF + b"\x1b[999;1H\r\n"
"""If the daemon does not reply."""
_KEEP_TITLE, _OLD_TITLE = b"\x1b[22;0t", b"\x1b[23;0t"
"""The title of the window is the session's meanwhile: these save it and bring it back, where the local
terminal can do that."""


class _Terminated(Exception):
    """Raised when a signal ends this process."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class End(NamedTuple):
    """How an attachment ended: the user detached, or the session ended (`why`)."""

    detached: bool
    why: str = ""


class _Ended(Exception):
    """Raised when the session ends while the menu is open."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end = end


def attach(console: Console) -> int:
    """Attaches until the user detaches or the session ends. Returns the exit status."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise errors.UsageError(
            "`waypoint shell` needs a terminal",
            hint="without a terminal use `waypoint exec`, `waypoint type` and `waypoint screen`",
        )
    session = console.send(Session(session=console.session), "waiting for the daemon").session
    name = session.name
    end = Attachment(console, session).run_to_end()
    if isinstance(end, int):
        return end
    if end.detached:
        console.aside(f"[detached from {name}; `waypoint shell {name}` attaches again]")
    else:
        console.aside(f"[{name}: {end.why}]")
    return 0


class Attachment:
    """The local terminal while it shows a session."""

    def __init__(
        self,
        console: Console,
        session: model.Session,
        *,
        until: int | None = None,
        on_attached: Callable[[], object] = lambda: None,
        ends_with_shell: bool = False,
    ) -> None:
        """It also ends when the descriptor `until` becomes readable, and (`ends_with_shell`) with the shell.
        `on_attached` is called once, when the session is shown."""
        self._until = [] if until is None else [until]
        self._on_attached, self._ends_with_shell = on_attached, ends_with_shell
        self._transport = console.transport
        self._session, self._name = session.id, session.name
        self._menu = Menu(self._transport, session.id, session.name, console.actor, console.paint)
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._unsent = b""
        self._resized = False
        self._waiting: dict[str, model.Approval] = {}
        """Commands of the session that wait for approval."""
        self._overlay: Overlay | None = None
        """The menu, while it is open."""
        self._notice = f"{self._name}: C-] d detaches, C-] ? helps"
        """What the banner says when the screen was drawn next; empty for no banner."""
        self._notice_until: float | None = None
        """How long the notice is shown, once it was: output that covers it does not take it away."""
        self._banner_until: float | None = None
        """How long the banner is shown, while there is one."""
        self._redraw_at: float | None = None
        """When a redraw is to be requested, because output may have covered the banner."""
        self._redraw_comes = False
        """Whether the next data is a redraw."""

    def run_to_end(self) -> End | int:
        """Returns how it has ended, or the exit status after a signal that ends this process."""
        try:
            return self._run()
        except _Terminated as termination:
            return 128 + termination.number

    def _run(self) -> End:
        """Returns when the user detaches, when the session ends, or when it is told to."""
        with _signals(self._on_resize) as wakeup:
            connection = self._attach()
            self._on_attached()
            is_reset = False
            with _raw(self._in):
                self._write(_KEEP_TITLE)
                try:
                    while True:
                        try:
                            with connection:
                                end = self._exchange(connection, wakeup)
                                is_reset = not end.why and self._detach(connection)
                                return end
                        except wire.Closed:
                            connection = self._attach()
                finally:
                    if not is_reset:
                        self._write(_RESET)
                    self._write(_OLD_TITLE)

    # ---- the daemon --------------------------------------------------------------------------

    def _attach(self) -> socket.socket:
        """Attaches. If the daemon has died, attaches to the next one."""
        for attempt in range(_ATTEMPTS):
            size = terminal_size()
            request = Attach(session=self._session, rows=size.lines, columns=size.columns)
            try:
                connection, answer = self._transport.open(request)
            except errors.DaemonUnreachable:
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                self._resized = False
                self._banner_until = self._redraw_at = None
                self._redraw_comes = True
                self._waiting = {approval.id: approval for approval in answer.session.approvals}
                return connection
        raise AssertionError

    def _exchange(self, connection: socket.socket, wakeup: int) -> End:
        while True:
            self._send_keys(connection)
            times = [at for at in (self._banner_until, self._redraw_at) if at is not None and at != math.inf]
            timeout = max(0.0, min(times) - time.monotonic()) if times else None
            watched = [self._in, connection, wakeup, *self._until]
            ready, _, _ = select.select(watched, [], [], timeout)
            if self._until and self._until[0] in ready:
                self._show_end(connection)
                return End(detached=False)
            if times and time.monotonic() >= min(times):
                self._request_redraw(connection)
            self._forward_size(connection, wakeup)
            if connection in ready and (end := self._receive(connection)):
                return end
            if self._in in ready:
                data = os.read(self._in, _READ_BYTES)
                if not data:
                    return End(detached=True)
                while match := PREFIX.search(data):
                    self._unsent += data[: match.start()]
                    try:
                        choice, data = self._open_menu(connection, wakeup, match[0], data[match.end() :])
                    except _Ended as ended:
                        return ended.end
                    self._unsent += choice.keys
                    if choice.detach:
                        self._send_keys(connection)
                        return End(detached=True)
                self._unsent += data

    def _open_menu(
        self, connection: socket.socket, wakeup: int, prefix: bytes, rest: bytes
    ) -> tuple[Choice, bytes]:
        """Shows the menu; returns the user's choice, and the input that came after it."""
        self._send_keys(connection)

        def read(seconds: float | None) -> bytes:
            while True:
                ready, _, _ = select.select([self._in, connection, wakeup], [], [], seconds)
                self._forward_size(connection, wakeup)
                if connection in ready and (end := self._receive(connection, shown=False)):
                    raise _Ended(end)
                if self._in in ready:
                    if data := os.read(self._in, _READ_BYTES):
                        return data
                    raise _Ended(End(detached=True))
                if not ready:
                    return b""

        overlay = self._overlay = Overlay(read, self._write, rest)
        try:
            choice = self._menu.run(overlay, prefix)
        finally:
            self._overlay = None
        if overlay.is_drawn or choice.notice:
            self._set_notice(choice.notice)
            self._request_redraw(connection)
        return choice, overlay.rest

    def _forward_size(self, connection: socket.socket, wakeup: int) -> None:
        """Tells the daemon when the window has another size."""
        with contextlib.suppress(BlockingIOError):
            os.read(wakeup, _READ_BYTES)
        if self._resized:
            self._resized = False
            self._remove_banner(connection)
            size = terminal_size()
            wire.send_data(connection, b"r" + struct.pack(">HH", size.lines, size.columns))

    def _send_keys(self, connection: socket.socket) -> None:
        """Sends the input. It is kept until it was sent: if the daemon dies, the next one gets it."""
        if self._unsent:
            if self._banner_until is not None and self._banner_until != math.inf:
                self._set_notice("")
                self._remove_banner(connection)
            wire.send_data(connection, b"i" + self._unsent)
            self._unsent = b""

    def _receive(self, connection: socket.socket, *, shown: bool = True) -> End | None:
        """Handles one frame of the daemon. `shown`: whether the session is to be seen; else all of its screen
        will be drawn later."""
        kind, body = wire.receive(connection)
        if kind == wire.DATA:
            if shown:
                self._write(body)
                if self._redraw_comes:
                    self._show_banner()
                elif self._banner_until is not None and self._redraw_at is None:
                    self._redraw_at = time.monotonic() + _COVERED_SECONDS
            self._redraw_comes = False
            return None
        message = wire.decode(body)
        if "error" in message:
            raise errors.from_dict(message["error"])
        event = message.get("event", {})
        if "redraw" in event:
            self._redraw_comes = True
        elif "approval" in event:
            self._note_approval(connection, from_plain(event["approval"], model.Approval))
        elif "shell_ended" in event and self._ends_with_shell:
            return End(detached=False)
        elif "shell_ended" in event:
            self._set_notice("the shell ended, a new one was started; C-] d detaches")
            self._request_redraw(connection)
        ended = event.get("ended")
        return End(detached=False, why=str(ended)) if ended else None

    def _note_approval(self, connection: socket.socket, approval: model.Approval) -> None:
        """A command has begun to wait for approval, or does not wait any more."""
        if approval.state == "waiting":
            self._waiting[approval.id] = approval
        else:
            self._waiting.pop(approval.id, None)
        self._request_redraw(connection)
        if self._overlay and self._overlay.about == approval.id and approval.state != "waiting":
            raise Decided

    def _request_redraw(self, connection: socket.socket) -> None:
        """Has the daemon draw the whole screen again."""
        self._banner_until = self._redraw_at = None
        wire.send_data(connection, b"s")

    def _show_end(self, connection: socket.socket) -> None:
        """What was printed last may still be on its way."""
        with contextlib.suppress(wire.Closed, TimeoutError):
            connection.settimeout(_LEAVE_SECONDS)
            self._set_notice("")
            self._waiting = {}
            self._request_redraw(connection)
            comes = False
            while not comes:
                comes = self._redraw_comes
                self._receive(connection)

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

    def _set_notice(self, text: str) -> None:
        self._notice, self._notice_until = text, None

    def _show_banner(self) -> None:
        """After a redraw: shows the notice in the upper right corner, for a while; without one the command
        that waits for approval, as long as it waits. A redraw removes it, or draws it again."""
        now = time.monotonic()
        if self._notice and self._notice_until is None:
            self._notice_until = now + _BANNER_SECONDS
        elif self._notice_until is not None and now >= self._notice_until:
            self._set_notice("")
        if self._notice:
            words, self._banner_until = self._notice, self._notice_until
        elif self._waiting:
            words = f"C-] a approves: {shown(next(iter(self._waiting.values())).command)}"
            self._banner_until = math.inf
        else:
            return
        columns = terminal_size().columns
        text = cut(f" {words} ", columns)
        place = f"\x1b[1;{columns - width(text) + 1}H"
        self._write(f"\x18\x1b\\\x1b7\x1b[?6l{place}\x1b[0;7m{text}\x1b8".encode())

    def _remove_banner(self, connection: socket.socket) -> None:
        if self._banner_until is not None:
            self._request_redraw(connection)

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
