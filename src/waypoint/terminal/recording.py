"""What a terminal shows, cut into events: commands with their output, and what was printed between them.

The terminal reports what it shows, when the prompt is there, when a command begins and ends, and when a
user types. What comes out are `TerminalEvent`s, in order; all of them together are everything that was ever
shown, so they can be played again. Everything is bounded: of a program that prints for hours the beginning
and the end are kept, and the number of bytes that are missing.

Called under the terminal's lock; costs microseconds.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from waypoint.kernel import locks
from waypoint.model import Actor, Record, Size

_SHOWN_BYTES = 16 << 10
_HALF_BYTES = 256 << 10
_MAX_MARKS = 512
_MAX_PAUSES = 20
_PAUSE_SECONDS = 10.0
"""Background output is an event at each of this many pauses, then only once in this many seconds."""
_MARK_SECONDS = 0.02
"""Bytes that come within this time are one step when the output is played again."""


class TimedOutput(Record, frozen=True):
    """Bytes that a terminal was given, and when."""

    data: bytes = b""
    left_out: int = 0
    """How many bytes are missing in the middle."""
    marks: tuple[tuple[int, int], ...] = ()
    """Milliseconds since the first byte, and how much had been printed by then."""
    age_ms: int = 0
    """How long ago the first byte came."""


class TerminalEvent(Record, frozen=True):
    """A command that ended; or, where `ended` is not set, output that no command's end covers (`command`:
    the one that was running then)."""

    at: float
    """Seconds since the epoch."""
    shown: bytes
    """What the terminal showed before: the prompt, and what was typed at it."""
    output: TimedOutput
    size: Size
    ended: bool = False
    command: str | None = None
    typed: bool = False
    actor: Actor = "person"
    cwd: str | None = None
    """The shell's folder when the command began."""
    given: Mapping[str, Any] | None = None
    """What belongs to the command beside its text (`given_to`)."""
    exit_code: int | None = None
    duration_ms: float | None = None
    timed_out: bool = False


class Excerpt:
    """The beginning and the end of a stream of bytes, each of at most `half_bytes`; the rest is counted."""

    def __init__(self, half_bytes: int) -> None:
        self.total = 0
        self.head = bytearray()
        self._tail = bytearray()
        self._half_bytes = half_bytes

    def add(self, data: bytes) -> bytes:
        """Appends. Returns the part that belongs to the beginning."""
        self.total += len(data)
        first = data[: max(0, self._half_bytes - len(self.head))]
        self.head += first
        self._tail += data[len(first) :]
        if len(self._tail) > 2 * self._half_bytes:
            del self._tail[: len(self._tail) - self._half_bytes]
        return first

    @property
    def tail(self) -> bytes:
        return bytes(self._tail[max(0, len(self._tail) - self._half_bytes) :])

    @property
    def left_out_bytes(self) -> int:
        """How many bytes are missing between the two."""
        return self.total - len(self.head) - min(len(self._tail), self._half_bytes)


@dataclass
class _Tape:
    """Bytes as they come, bounded, with the times at which they came."""

    excerpt: Excerpt = field(default_factory=lambda: Excerpt(_HALF_BYTES))
    marks: list[tuple[int, int]] = field(default_factory=list)
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def total(self) -> int:
        return self.excerpt.total

    def add(self, data: bytes) -> None:
        now = time.monotonic()
        self.first_at = self.first_at or now
        head = self.excerpt.head
        in_head = 0 < len(head) < _HALF_BYTES
        if in_head and now - self.last_at > _MARK_SECONDS and len(self.marks) < _MAX_MARKS:
            self.marks.append(self._mark())
        self.last_at = now
        self.excerpt.add(data)

    def _mark(self) -> tuple[int, int]:
        return round((self.last_at - self.first_at) * 1000), len(self.excerpt.head)

    def output(self) -> TimedOutput:
        head, tail, left_out = bytes(self.excerpt.head), self.excerpt.tail, self.excerpt.left_out_bytes
        marks = (*self.marks, self._mark()) if head else ()
        age_ms = round((time.monotonic() - self.first_at) * 1000) if self.first_at else 0
        if not left_out:
            return TimedOutput(data=head + tail, marks=marks, age_ms=age_ms)
        # The tail starts with a whole line where it has one: half a character or half a sequence would spoil
        # what follows.
        start = tail.find(b"\n", 0, 4096) + 1
        notice = f"\r\n[waypoint: {left_out + start:,} bytes left out here]\r\n".encode()
        data = head + notice + tail[start:]
        return TimedOutput(data=data, left_out=left_out + start, marks=marks, age_ms=age_ms)


class Recording:
    """Cuts what one terminal shows into events, and calls `emit` with each of them."""

    def __init__(self, emit: Callable[[TerminalEvent], None], size: Size) -> None:
        self._emit = emit
        self.size = size
        self._shown = bytearray()
        """Since the last event: the prompt and what was typed."""
        self._tape = _Tape()
        """Output of the command; or, between commands, what was printed after the prompt."""
        self.running = False
        """Whether a command runs."""
        self._command: str | None = None
        self._typed = False
        """Whether a user typed the command that runs."""
        self._actor: Actor = "person"
        self._cwd: str | None = None
        self._given: Mapping[str, Any] | None = None
        self._started_at: float | None = None
        self._has_prompt = False
        self._typing = False
        """Whether what is shown now is the echo of a user's typing."""
        self._typed_ahead = False
        """Whether a user typed before the prompt was there."""
        self._pauses, self._last_pause_at = 0, 0.0

    def show(self, data: bytes) -> None:
        """The terminal shows this."""
        if not self.running and (self._typing or not self._has_prompt):
            self._shown += data
            if len(self._shown) > _SHOWN_BYTES:
                del self._shown[: -_SHOWN_BYTES // 2]
            return
        self._tape.add(data)

    def begin_prompt(self) -> None:
        """The prompt is about to be drawn."""
        if not self.running:
            self.flush_background()
            self._has_prompt = False

    def end_prompt(self) -> None:
        """The prompt is there: what is shown next comes from background jobs, unless a user types."""
        if not self.running and self._tape.total:
            # readline has drawn the prompt again without a mark, as it does when the window changes.
            self._shown += self._tape.output().data
            self._tape = _Tape()
        self._has_prompt, self._typing, self._typed_ahead = True, self._typed_ahead, False

    def note_typing(self) -> None:
        """A user types: what is shown next is the echo of that."""
        if self.running:
            return
        if not self._has_prompt:
            self._typed_ahead = True
        elif not self._typing:
            self.flush_background()
            self._typing = True

    def begin_command(
        self,
        command: str | None,
        cwd: str | None,
        *,
        typed: bool,
        actor: Actor = "person",
        already: bool = False,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        """A command starts, or runs `already` when this recording begins. `command`: None when it is not
        known. `given`: what belongs to it beside its text (`given_to`)."""
        if typed:
            # The user may have typed it before the prompt was there: what was printed is the echo of that.
            self._shown += self._tape.output().data
        elif not self._typing:
            self.flush_background()
        self.running, self._has_prompt, self._typing = True, False, False
        self._command, self._typed, self._actor, self._cwd = command, typed, actor, cwd
        self._given = given
        self._tape, self._started_at = _Tape(), None if already else time.monotonic()

    def end_command(
        self, exit_code: int | None, command: str | None = None, *, timed_out: bool = False
    ) -> None:
        """The command ended. `command`: what it was, if that has become known meanwhile."""
        if not self.running:
            if command is None:
                return
            # It began before this recording did.
            self._typed, self._started_at, self._cwd, self.running = True, None, None, True
            self._given = None
        duration_ms = None
        if self._started_at is not None:
            duration_ms = round((time.monotonic() - self._started_at) * 1000, 3)
        self._emit_event(
            ended=True,
            command=self._command if self._command is not None else command,
            exit_code=exit_code,
            duration_ms=duration_ms,
            timed_out=timed_out,
        )
        self.running, self._has_prompt, self._typing = False, False, False
        self._pauses = 0

    @property
    def echo(self) -> bytes:
        """What was shown before the command that runs: its prompt, and what was typed."""
        return bytes(self._shown)

    def flush_background(self, *, paused: bool = False) -> None:
        """Makes an event of what was printed at the prompt without a command. `paused`: because nothing was
        printed for a moment; where that happens often, several pauses make one event."""
        if self.running or not self._tape.total:
            return
        now = time.monotonic()
        if paused and self._pauses >= _MAX_PAUSES and now - self._last_pause_at < _PAUSE_SECONDS:
            return
        self._pauses, self._last_pause_at = self._pauses + 1, now
        self._emit_event()

    def flush(self) -> None:
        """Makes an event of everything so far: another recording, or none, will see the rest."""
        if self._shown or self._tape.total:
            self._emit_event(command=self._command if self.running else None)

    def _emit_event(
        self,
        *,
        ended: bool = False,
        command: str | None = None,
        exit_code: int | None = None,
        duration_ms: float | None = None,
        timed_out: bool = False,
    ) -> None:
        event = TerminalEvent(
            at=time.time(),
            shown=bytes(self._shown),
            output=self._tape.output(),
            size=self.size,
            ended=ended,
            command=command,
            typed=self.running and self._typed,
            actor=self._actor if self.running else "automatic",
            cwd=self._cwd if self.running else None,
            given=self._given if ended else None,
            exit_code=exit_code,
            duration_ms=duration_ms,
            timed_out=timed_out,
        )
        self._shown.clear()
        self._tape = _Tape()
        self._emit(event)


# ---- for the trajectory ---------------------------------------------------------------------------

_INLINE_BYTES = 4096
"""Larger output is stored outside the event: compressed, and once for equal content."""


class EventBody(Record, frozen=True):
    """An event as the trajectory keeps it."""

    kind: Literal["command", "output"]
    body: dict[str, Any]
    data: bytes | None = None


def record(event: TerminalEvent) -> EventBody:
    """`output` has the same line ends as the answer of `exec`; `raw` says that it is as the terminal was
    given it, because a program drew on the screen. Output that is long, or not text, is `data`."""
    output, raw, marks = _with_plain_line_ends(event.output)
    body: dict[str, Any] = {}
    if event.command is not None or event.ended:
        body["command" if event.ended else "during"] = event.command
    if event.ended:
        body["cwd"] = event.cwd
        body["exit_code"] = event.exit_code
        body["duration_ms"] = event.duration_ms
    optional = {
        "typed": event.typed,
        "given": event.given,
        "timed_out": event.timed_out,
        "raw": raw,
        "left_out": event.output.left_out,
        "shown": event.shown.decode(errors="replace"),
        "timing": marks if len(marks) > 1 else None,
        "age_ms": event.output.age_ms,
    }
    body |= {name: value for name, value in optional.items() if value}
    body["size"] = [event.size.columns, event.size.rows]
    return EventBody(kind="command" if event.ended else "output", body=body, data=_add_output(body, output))


def given_to(
    cwd: str | None, env: Mapping[str, str] | None, stdin: bytes | None, user: str | None = None
) -> dict[str, Any]:
    """What a command was given beside its text, as the trajectory keeps it. Of its input only the size: what
    is given that way may be a secret of no known form."""
    return {
        **({"cwd": cwd} if cwd is not None else {}),
        **({"env": dict(env)} if env else {}),
        **({"user": user} if user is not None else {}),
        **({"stdin_bytes": len(stdin)} if stdin else {}),
    }


def _add_output(body: dict[str, Any], output: bytes) -> bytes | None:
    """Puts output into a body, or returns it when it has to be stored outside."""
    try:
        if len(output) <= _INLINE_BYTES:
            body.update({"output": output.decode()} if output else {})
            return None
    except UnicodeDecodeError:
        pass
    body["output_bytes"] = len(output)
    return output


def _with_plain_line_ends(output: TimedOutput) -> tuple[bytes, bool, list[tuple[int, int]]]:
    """Output with "\\n" for "\\r\\n", if that can be reversed; whether it could not; and its marks."""
    data = output.data
    plain = data.replace(b"\r\n", b"\n")
    if plain.replace(b"\n", b"\r\n") != data or b"\x1b[?1049h" in data:
        return data, True, list(output.marks)
    marks = [(ms, position - data.count(b"\r\n", 0, position)) for ms, position in output.marks]
    return plain, False, marks


class ProgramOutput:
    """What a program beside the shell prints, on both its streams as it comes. For several threads."""

    def __init__(self, argv: Sequence[str], cwd: str | None, given: Mapping[str, Any] | None = None) -> None:
        """`given`: what belongs to it beside its words (`given_to`)."""
        self._command, self._cwd, self._given = shlex.join(argv), cwd, given
        self._tape, self._lock, self._started_at = _Tape(), locks.lock("program output"), time.monotonic()

    def add(self, data: bytes) -> None:
        with self._lock:
            self._tape.add(data)

    def record(self, exit_code: int | None, *, timed_out: bool = False) -> EventBody:
        """The program as a command that ended. It had no terminal, so there is nothing to play again."""
        with self._lock:
            output = self._tape.output()
        body: dict[str, Any] = {"command": self._command, "cwd": self._cwd, "exit_code": exit_code}
        body["duration_ms"] = round((time.monotonic() - self._started_at) * 1000, 3)
        body |= {"beside": True, **({"given": self._given} if self._given else {})}
        if timed_out:
            body["timed_out"] = True
        data = _add_output(body, output.data)
        return EventBody(kind="command", body=body, data=data)
