"""What C-] offers in an attached terminal: a checkpoint, the log, a restore, an approval, without leaving.

While the menu is open the session is not shown, and runs on. What it prints meanwhile is not lost: the caller
has the whole screen drawn again afterwards, so everything may be drawn over here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from waypoint.api import hints
from waypoint.api.effects import Approvals, Approve, Deny
from waypoint.api.history import Preview
from waypoint.api.points import Checkpoint, Restore
from waypoint.cli import render
from waypoint.cli.console import terminal_size
from waypoint.errors import PlanStale, WaypointError
from waypoint.home import Settings
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.render import Paint
    from waypoint.client.connection import Transport
    from waypoint.model import Actor, Approval

PREFIX = re.compile(rb"\x1d|\x1b\[93;5u|\x1b\[27;5;93~")
"""C-] as terminals send it: plain, and in the two encodings that a program may have switched on."""
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|[^\[O])", re.DOTALL)
_ENCODED = re.compile(rb"\x1b\[(\d+)(?:;1)?u")
_REST_SECONDS = 0.05
"""How long the rest of an escape sequence may take. After that it was the Escape key."""
_ENTER, _ESCAPE, _CTRL_C, _BACKSPACE = "\r", "\x1b", "\x03", ("\x7f", "\x08")
MODES_OFF = (
    b"\x18\x1b\\"  # cancels an unfinished sequence
    b"\x1b[?1049l\x1b[r\x1b[?6l\x1b[4l\x1b[20l\x1b[?7h\x1b>"
    b"\x1b[?1l\x1b[?9l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[?2026l"
    b"\x1b[<99u\x1b[>4m\x1b(B\x1b)B\x0f\x1b[m\x1b[0 q\x1b[?25h"
)
"""Switches off everything that a program may have switched on."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MENU = "c checkpoint · l log · r restore · a approve · ? help · d detach · C-] itself"
_HELP = """\
C-] c   take a checkpoint, with a few words about it if you like
C-] l   the log: the points of this session
C-] r   restore: choose a point, read the plan, confirm; C-] r again goes back with the point it took before
C-] a   approve or deny a command that waits
C-] d   detach: the session goes on, `waypoint shell {name}` attaches again
C-] C-] types C-]; any other key is typed with C-] before it; Esc closes the menu

`exit` ends the shell, and the session goes on with a new one. To leave, detach.
Several clients may be attached: the terminal has the size of the smallest one.
`waypoint stop {name}` ends the session and keeps its points, `waypoint rm {name}` removes both.
From another terminal: `waypoint log -s {name}`, `waypoint diff -s {name}`, `waypoint apply -s {name}`."""


class Decided(Exception):
    """Raised when the command that the menu asks about was decided about by another client."""


class Choice(NamedTuple):
    """What is to be done after the menu."""

    keys: bytes = b""
    """To be typed into the session."""
    detach: bool = False
    notice: str = ""
    """To be shown for a moment."""


class Overlay:
    """The local terminal while it does not show the session. `read` waits for input, up to a time; `rest` is
    input that has come already."""

    def __init__(
        self, read: Callable[[float | None], bytes], write: Callable[[bytes], None], rest: bytes
    ) -> None:
        self._read, self._write, self.rest = read, write, rest
        self.is_drawn = False
        """Whether anything of the session was drawn over."""
        self.about: str | None = None
        """The id of the approval that is asked about. `read` raises `Decided` when another client decides."""

    def key(self) -> str:
        """The next key: a character, or the escape sequence of another key."""
        data = self.rest or self._read(None)
        while data == b"\x1b" or (_is_incomplete(data) and not _SEQUENCE.match(data)):
            more = self._read(_REST_SECONDS)
            if not more:
                break
            data += more
        if match := PREFIX.match(data) or _SEQUENCE.match(data):
            self.rest = data[match.end() :]
            if PREFIX.fullmatch(match[0]):
                return "\x1d"
            encoded = _ENCODED.fullmatch(match[0])
            return chr(int(encoded[1])) if encoded and int(encoded[1]) < 0x110000 else match[0].decode()
        text = data.decode(errors="replace")
        self.rest = text[1:].encode()
        return text[0]

    def line(self, text: str) -> None:
        """Draws one line at the bottom. The beginning of a text that is too long is cut."""
        self.is_drawn = True
        size = terminal_size()
        while render.width(text) > size.columns - 2:
            text = f"…{text[2:]}"
        self._write(f"\x18\x1b\\\x1b[r\x1b[?6l\x1b[{size.lines};1H\x1b[0;7m {text}\x1b[K\x1b[?25h".encode())

    def page(self, lines: Sequence[str]) -> int:
        """Draws a page in place of the session, and returns how many of the lines fit on it."""
        self.is_drawn = True
        size, fitting, rows = terminal_size(), list[str](), 2
        for line in lines:
            rows += 1 + max(0, render.width(_COLOUR.sub("", line)) - 1) // size.columns
            if rows > size.lines:
                break
            fitting.append(line)
        text = "\r\n".join(fitting)
        self._write(MODES_OFF + f"\x1b[?1049h\x1b[H\x1b[2J{text}".encode(errors="replace"))
        return len(fitting)

    def read(self, lines: Sequence[str], question: str) -> str:
        """All of the lines, page by page; the question is asked with the last page. A key before that goes to
        the next page and answers nothing. Escape leaves it."""
        width = terminal_size().columns
        rest = [line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)]
        while True:
            shown = self.page(rest)
            rest = rest[shown:]
            if not shown:
                self.line("this window is too small to read it")
                self.key()
                return _ESCAPE
            if not rest:
                self.line(question)
                return self.key()
            self.line(f"{len(rest)} more lines · space shows them · Esc leaves it waiting")
            if self.key() in (_ESCAPE, _CTRL_C):
                return _ESCAPE

    def ask(self, question: str, text: str = "") -> str | None:
        """A line that is typed at the bottom; None after Escape."""
        while True:
            self.line(f"{question}{text}")
            key = self.key()
            if key == _ENTER:
                return text.strip()
            if key in (_ESCAPE, _CTRL_C):
                return None
            if key in _BACKSPACE:
                text = text[:-1]
            elif key == "\x15":
                text = ""
            elif len(key) == 1 and key.isprintable():
                text += key

    def confirm(self, question: str) -> bool:
        self.line(f"{question} [y/N]")
        return self.key() in ("y", "Y")


def _is_incomplete(data: bytes) -> bool:
    """Whether it ends in the middle of a sequence or a character."""
    if data[:1] == b"\x1b":
        return True
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


class Menu:
    """The menu of one attachment."""

    def __init__(self, transport: Transport, session: str, name: str, actor: Actor, paint: Paint) -> None:
        self._transport, self._session, self._name = transport, session, name
        self._actor, self._paint = actor, paint

    def run(self, overlay: Overlay, prefix: bytes) -> Choice:
        """Waits for a key after C-] (`prefix`, as it came) and does what it asks for."""
        if not overlay.rest:
            overlay.line(_MENU)
        key = overlay.key()
        dialogs = {
            "c": self._checkpoint,
            "l": self._log,
            "r": self._restore,
            "a": self._approve,
            "?": self._help,
        }
        if key in ("d", "D"):
            return Choice(detach=True)
        if key == "\x1d":
            return Choice(keys=prefix)
        if dialog := dialogs.get(key):
            try:
                return Choice(notice=dialog(overlay))
            except WaypointError as error:
                lines = [self._paint.bad(error.message), hints.word(error.hint, hints.in_command)]
                self._read_page(overlay, lines)
                return Choice()
        return Choice() if key in (_ESCAPE, _ENTER, _CTRL_C) else Choice(keys=prefix + key.encode())

    # ---- what it offers ----------------------------------------------------------------------

    def _checkpoint(self, overlay: Overlay) -> str:
        intent = overlay.ask("checkpoint, in a few words (Enter: without, Esc: none): ")
        if intent is None:
            return ""
        overlay.line("taking a checkpoint")
        request = Checkpoint(
            session=self._session, intent=intent, actor=self._actor, durable=Settings.read().durable
        )
        point = self._transport.ask(request).checkpoint
        return f"{render.point_title(point, render.Paint(on=False))}, taken in {point.pause_ms:.0f} ms"

    def _log(self, overlay: Overlay) -> str:
        self._read_page(overlay, self._timeline(terminal_size().lines - 2))
        return ""

    def _restore(self, overlay: Overlay) -> str:
        overlay.page(self._timeline(terminal_size().lines - 2))
        ref = overlay.ask("restore to which point? c3, a name, 10:27 (Enter: to none): ")
        while ref:
            plan = views.Plan(
                msgspec.to_builtins(self._transport.ask(Preview(session=self._session, ref=ref)))
            )
            overlay.page(render.styled(plan.lines(wording=hints.in_command), self._paint).splitlines())
            if not overlay.confirm("Restore?"):
                return ""
            overlay.line("restoring")
            try:
                request = Restore(session=self._session, ref=ref, plan=plan.id, actor=self._actor)
                restored = self._transport.ask(request)
            except PlanStale:
                continue  # it has gone on meanwhile: the plan as it is now
            back = f"; C-] r {restored.safety.label} goes back" if restored.safety else ""
            return f"restored to {restored.checkpoint.label}{back}"
        return ""

    def _approve(self, overlay: Overlay) -> str:
        waiting = self._transport.ask(Approvals(session=self._session)).approvals
        if not waiting:
            return "no command waits for approval"
        notice = ""
        for approval in waiting:
            overlay.about = approval.id
            try:
                answer = overlay.read(
                    describe_approval(approval, self._paint),
                    "y runs it once · n refuses it · any other key leaves it waiting",
                )
            except Decided:
                notice = "decided elsewhere"
                continue
            finally:
                overlay.about = None
            if answer in ("y", "Y"):
                self._transport.ask(Approve(id=approval.id))
            elif answer in ("n", "N"):
                self._transport.ask(Deny(id=approval.id))
        return notice

    def _help(self, overlay: Overlay) -> str:
        self._read_page(
            overlay, [self._paint.bold(self._name), "", *_HELP.format(name=self._name).splitlines()]
        )
        return ""

    def _read_page(self, overlay: Overlay, lines: Sequence[str]) -> None:
        overlay.page(lines)
        overlay.line("any key goes back to the session")
        overlay.key()

    def _timeline(self, room: int) -> list[str]:
        from waypoint.cli.timeline import read_timeline

        width = terminal_size().columns
        return (
            read_timeline(self._transport, self._session, self._paint, width, limit=room).text().splitlines()
        )


def describe_approval(approval: Approval, paint: Paint) -> list[str]:
    """A command that waits, for the user who decides about it."""
    return [*approval.review, paint.dim(f"waits until {render.clock(approval.expires_at)}")]
