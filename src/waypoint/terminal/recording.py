"""What a terminal shows, cut into what happened: commands with their output, and what was printed between.

The terminal tells when something is shown, when the prompt stands, when a command begins and ends, and when
somebody types. What comes out are `Happened`s, in order; all of them together are everything that was ever
shown, so they can be played again. Everything is bounded: of a program that prints for hours the beginning
and the end are kept, and how much is missing.

Called under the terminal's lock; costs microseconds.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from waypoint.model import Actor, Record, Size

_SHOWN_BYTES = 16 << 10
_HALF_BYTES = 256 << 10
_MOST_MARKS = 512
_MOST_PAUSES = 20
_PAUSE_SECONDS = 10.0
"""A job that prints a line now and then is heard at each pause so often, then only every so many seconds."""
_MARK_SECONDS = 0.02
"""What is printed within so short a time is shown at once."""


class Printed(Record, frozen=True):
    """Bytes that a terminal was given, and when."""

    data: bytes = b""
    left_out: int = 0
    """How many bytes are missing in the middle."""
    marks: tuple[tuple[int, int], ...] = ()
    """Milliseconds since the first byte, and how much had been printed by then."""
    age_ms: int = 0
    """How long ago the first byte came."""


class Happened(Record, frozen=True):
    """A command that ended; or, where `ended` is not set, something that was printed without one (`command`:
    while that was running)."""

    at: float
    """When it had happened, as the clock on the wall says."""
    shown: bytes
    """What the terminal showed before: the prompt, and what was typed at it."""
    output: Printed
    size: Size
    ended: bool = False
    command: str | None = None
    typed: bool = False
    actor: Actor = "person"
    cwd: str | None = None
    """Where the command was given."""
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

    began: float = 0.0
    excerpt: Excerpt = field(default_factory=lambda: Excerpt(_HALF_BYTES))
    marks: list[tuple[int, int]] = field(default_factory=list)
    last: float = 0.0

    @property
    def total(self) -> int:
        return self.excerpt.total

    def take(self, data: bytes) -> None:
        now = time.monotonic()
        self.began = self.began or now
        head = self.excerpt.head
        in_head = 0 < len(head) < _HALF_BYTES
        if in_head and now - self.last > _MARK_SECONDS and len(self.marks) < _MOST_MARKS:
            self.marks.append((round((self.last - self.began) * 1000), len(head)))
        self.last = now
        self.excerpt.add(data)

    def printed(self) -> Printed:
        head, tail, left_out = bytes(self.excerpt.head), self.excerpt.tail, self.excerpt.left_out_bytes
        marks = [*self.marks, (round((self.last - self.began) * 1000), len(head))] if head else []
        age_ms = round((time.monotonic() - self.began) * 1000) if self.began else 0
        if not left_out:
            return Printed(data=head + tail, marks=tuple(marks), age_ms=age_ms)
        # Whole lines, where there are any: half a letter or half a sequence would spoil what follows.
        start = tail.find(b"\n", 0, 4096) + 1
        notice = f"\r\n[waypoint: {left_out + start:,} bytes left out here]\r\n".encode()
        return Printed(
            data=head + notice + tail[start:],
            left_out=left_out + start,
            marks=tuple(marks),
            age_ms=age_ms,
        )


class Recording:
    """What is happening in one terminal."""

    def __init__(self, tell: Callable[[Happened], None], size: Size) -> None:
        self._tell = tell
        self.size = size
        self._shown = bytearray()
        """Since the last thing that happened: the prompt and what was typed."""
        self._tape = _Tape()
        """Output of the command; or, between commands, what was printed after the prompt."""
        self.running = False
        self._command: str | None = None
        self._prompted = self._typed = self._typing = self._ahead = False
        self._actor: Actor = "person"
        self._cwd: str | None = None
        self._started: float | None = None
        self._pauses, self._last_pause = 0, 0.0

    def show(self, data: bytes) -> None:
        """The terminal was given this."""
        if not self.running and (self._typing or not self._prompted):
            self._shown += data
            if len(self._shown) > _SHOWN_BYTES:
                del self._shown[: -_SHOWN_BYTES // 2]
            return
        self._tape.take(data)

    def prompting(self) -> None:
        """The prompt is about to be drawn."""
        if not self.running:
            self.between()
            self._prompted = False

    def prompt(self) -> None:
        """The prompt stands: what comes now nobody has asked for, unless somebody types."""
        if not self.running and self._tape.total:
            # It was drawn again without a word, as readline does when the window changes.
            self._shown += self._tape.printed().data
            self._tape = _Tape()
        self._prompted, self._typing, self._ahead = True, self._ahead, False

    def typing(self) -> None:
        """Somebody types: what comes now is what they see of it."""
        if self.running:
            return
        if not self._prompted:
            self._ahead = True
        elif not self._typing:
            self.between()
            self._typing = True

    def began(
        self,
        command: str | None,
        cwd: str | None,
        *,
        typed: bool,
        actor: Actor = "person",
        already: bool = False,
    ) -> None:
        """A command starts, or runs `already` when this recording begins. `command`: None when it is not
        known."""
        if typed:
            # Who typed it may have done so before the prompt stood: what is there is what they saw of it.
            self._shown += self._tape.printed().data
        elif not self._typing:
            self.between()
        self.running, self._prompted, self._typing = True, False, False
        self._command, self._typed, self._actor, self._cwd = command, typed, actor, cwd
        self._tape, self._started = _Tape(), None if already else time.monotonic()

    def ended(self, exit_code: int | None, command: str | None = None, *, timed_out: bool = False) -> None:
        """It ended. `command`: what it was, if that has become known meanwhile."""
        if not self.running:
            if command is None:
                return
            # It began before there was anybody to see it.
            self._typed, self._started, self._cwd, self.running = True, None, None, True
        self._emit(
            ended=True,
            command=self._command if self._command is not None else command,
            exit_code=exit_code,
            duration_ms=None
            if self._started is None
            else round((time.monotonic() - self._started) * 1000, 3),
            timed_out=timed_out,
        )
        self.running, self._prompted, self._typing = False, False, False
        self._pauses = 0

    @property
    def echo(self) -> bytes:
        """What was shown before the command that runs: its prompt, and what was typed."""
        return bytes(self._shown)

    def between(self, *, quiet: bool = False) -> None:
        """What was printed at the prompt, without anybody having asked, is something that happened. `quiet`:
        for a moment nothing was printed; where that happens all the time, several are one."""
        if self.running or not self._tape.total:
            return
        now = time.monotonic()
        if quiet and self._pauses >= _MOST_PAUSES and now - self._last_pause < _PAUSE_SECONDS:
            return
        self._pauses, self._last_pause = self._pauses + 1, now
        self._emit()

    def cut(self) -> None:
        """Everything so far is something that happened: what comes next may never be seen."""
        if self._shown or self._tape.total:
            self._emit(command=self._command if self.running else None)

    def _emit(
        self,
        *,
        ended: bool = False,
        command: str | None = None,
        exit_code: int | None = None,
        duration_ms: float | None = None,
        timed_out: bool = False,
    ) -> None:
        happened = Happened(
            at=time.time(),
            shown=bytes(self._shown),
            output=self._tape.printed(),
            size=self.size,
            ended=ended,
            command=command,
            typed=self.running and self._typed,
            actor=self._actor if self.running else "automatic",
            cwd=self._cwd if self.running else None,
            exit_code=exit_code,
            duration_ms=duration_ms,
            timed_out=timed_out,
        )
        self._shown.clear()
        self._tape = _Tape()
        self._tell(happened)


# ---- as events -----------------------------------------------------------------------------------

_INLINE_BYTES = 4096
"""Larger output is kept apart, compressed and once."""


class Told(Record, frozen=True):
    """Something that happened, as the trajectory keeps it."""

    kind: Literal["command", "output"]
    body: dict[str, Any]
    data: bytes | None = None


def tell(happened: Happened) -> Told:
    """`output` ends its lines like the answer of `exec`; `raw` says that it is as the terminal was given it,
    because a program drew on the screen. What is long, or no text, is `data`."""
    output, raw, marks = _cooked(happened.output)
    body: dict[str, Any] = {}
    if happened.command is not None or happened.ended:
        body["command" if happened.ended else "during"] = happened.command
    if happened.ended:
        body["cwd"] = happened.cwd
        body["exit_code"] = happened.exit_code
        body["duration_ms"] = happened.duration_ms
    more = {
        "typed": happened.typed,
        "timed_out": happened.timed_out,
        "raw": raw,
        "left_out": happened.output.left_out,
        "shown": happened.shown.decode(errors="replace"),
        "timing": marks if len(marks) > 1 else None,
        "age_ms": happened.output.age_ms,
    }
    body |= {name: value for name, value in more.items() if value}
    body["size"] = [happened.size.columns, happened.size.rows]
    return Told(kind="command" if happened.ended else "output", body=body, data=_put(body, output))


def _put(body: dict[str, Any], output: bytes) -> bytes | None:
    """Puts output into a body; or gives back what has to be kept apart."""
    try:
        if len(output) <= _INLINE_BYTES:
            body.update({"output": output.decode()} if output else {})
            return None
    except UnicodeDecodeError:
        pass
    body["output_bytes"] = len(output)
    return output


def _cooked(printed: Printed) -> tuple[bytes, bool, list[tuple[int, int]]]:
    """Output with plain ends of lines, if that can be turned back; and how much of it was printed when."""
    data = printed.data
    cooked = data.replace(b"\r\n", b"\n")
    if cooked.replace(b"\n", b"\r\n") != data or b"\x1b[?1049h" in data:
        return data, True, list(printed.marks)
    marks = [(ms, at - data.count(b"\r\n", 0, at)) for ms, at in printed.marks]
    return cooked, False, marks


class Heard:
    """What a program beside the shell prints, on both its streams as it comes. For several threads."""

    def __init__(self, argv: Sequence[str], cwd: str | None) -> None:
        self._command, self._cwd = shlex.join(argv), cwd
        self._tape, self._lock, self._started = _Tape(), threading.Lock(), time.monotonic()

    def take(self, data: bytes) -> None:
        with self._lock:
            self._tape.take(data)

    def told(self, exit_code: int | None) -> Told:
        """As a command that ended. It had no terminal: there is nothing to be played."""
        with self._lock:
            printed = self._tape.printed()
        body: dict[str, Any] = {"command": self._command, "cwd": self._cwd, "exit_code": exit_code}
        body["duration_ms"] = round((time.monotonic() - self._started) * 1000, 3)
        body["beside"] = True
        data = _put(body, printed.data)
        return Told(kind="command", body=body, data=data)
