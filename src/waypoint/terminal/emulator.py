"""A terminal emulator: it reads a stream of text, controls and escape sequences and keeps the resulting state
of a terminal: lines, cursor, modes.

`screen.Screen` adds the ways to get that state out: as text, as escape sequences, as a file. Where
terminals differ, the emulator behaves like xterm, because that is the value of `TERM` in a session.

    bytes ──feed──> waiting ──_catch_up──> decoded ──_parse──> lines, cursor, modes
                    (at most a batch)                text goes in by slices

Every byte of every session passes through here, so four things keep it cheap:

* Text is written by runs, not by characters (see `cells`).
* Output that only scrolls is not parsed until the state is needed or a batch of it has come together. Output
  that moves the cursor is parsed at once, so catching up takes milliseconds.
* A sequence of a few bytes can rewrite a whole screen. So parsing stops after a turn (TURN_SECONDS), and
  goes on in the next one; the terminal is not read meanwhile, and the program that prints has to wait.
* Of scrolling output, lines that are gone from screen and scrollback by the end are skipped. See
  `_fast_forward` and `_without_lost_lines` for why the result is exactly the same.

A sequence that is cut off at the end of the input is kept (`_partial`) and read again with what
follows, which makes the result independent of how the stream was cut into pieces.
"""

from __future__ import annotations

import codecs
import re
import time
from bisect import bisect_left, bisect_right
from collections import deque
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from wcwidth import wcwidth

from waypoint.terminal.cells import Line, changed_pen, erasing_pen

if TYPE_CHECKING:
    from collections.abc import Callable

SCROLLBACK_LINES = 500
BATCH_BYTES = 256 * 1024
BATCH_CONTROLS = 20_000  # they cost the most, about a microsecond each
TURN_SECONDS = 0.003  # what one piece of input may take before other sessions get their turn
LONGEST_SECONDS = 0.5  # of a processor, for all that a caller waits for; honest output takes milliseconds
MAX_SIDE = 1000  # rows or columns; a larger window is a mistake
MAX_OSC_CHARS = 4096  # a longer OSC string is ignored
MAX_CELL_CHARS = 9  # a character and at most eight that combine with it
MAX_TITLES = 10
MAX_KEYBOARD_STACK = 8

MOUSE_MODES = (9, 1000, 1002, 1003)  # each replaces the others
MIRRORED_MODES = (1, 5, 12, 1004, 1005, 1006, 1015, 2004)  # they have an effect only in a client's terminal

_TOKEN = re.compile(
    r"([^\x00-\x1f\x7f]+)(\r\n)?"
    r"|(\r\n)"
    r"|\x1b\[([<-?]?)([0-9:;]{0,256})([ -/]{0,2})([@-~])"
    r"|([\x00-\x1a\x1c-\x1f\x7f])"
    r"|\x1b"
)
_TEXT, _TEXT_CRLF, _CRLF, _CSI_TOKEN, _CONTROL = 1, 2, 3, 7, 8  # the last group that took part
_TEXT_KINDS = frozenset((_TEXT, _TEXT_CRLF, _CRLF))

_CSI = re.compile(r"\x1b\[([<-?]?)([0-9:;]{0,256})([ -/]{0,2})([@-~])")
_CSI_LIKE = re.compile(r"\x1b\[[ -?]*[@-~]")
_ESCAPE = re.compile(r"\x1b(?:[ -/]{1,2}[0-~]|[0-OQ-WYZ\\`-~])")
_ESCAPE_LIKE = re.compile(r"\x1b[ -/]+[0-~]")
_STRING_OPENERS = frozenset(("\x1b]", "\x1bP", "\x1bX", "\x1b^", "\x1b_"))
_STRING_END = re.compile(r"[\x18\x1a\x1b]")
_OSC_END = re.compile(r"[\x07\x18\x1a\x1b]")
# Sequences longer than any valid one are replaced by these, which are invalid with every final byte: a
# parameter after an intermediate byte, and too many intermediate bytes.
_MAX_SEQUENCE = 264
_MALFORMED_CSI = "\x1b[ 0"
_MALFORMED_ESCAPE = "\x1b   "

# SGR and EL change only the pen and the line they are on: text with no other sequences scrolls.
_NOT_SCROLLING = re.compile(r"\x1b(?!\[[0-9:;]{0,256}[mK])")
_NOT_SCROLLING_BYTES = re.compile(rb"\x1b(?!\[[0-9:;]*(?:[mK]|\Z)|\Z)")
_CONTROLS = bytes(code for code in (*range(32), 127) if code not in b"\r\n")
_SGR = re.compile(r"\x1b\[([0-9:;]{0,256})m")

# Most text consists of characters that always take one cell, so that their width need not be looked up.
_MAYBE_NOT_NARROW = re.compile(
    "[^ -~\u00a1-\u00ac\u00ae-\u02ff\u0370-\u0377\u037a-\u037f\u0384-\u038a\u038e-\u03a1\u03a3-\u0482"
    "\u048a-\u052f\u2010-\u2027\u2030-\u205e\u2190-\u2319\u2500-\u25fc\u2800-\u28ff\ue0a0-\ue0d7\ufffd]"
)

_LINE_DRAWING = str.maketrans(
    "_`abcdefghijklmnopqrstuvwxyz{|}~",
    "\u00a0◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·",
)


@lru_cache(maxsize=8192)
def _width(char: str) -> int:
    return wcwidth(char)


@lru_cache(maxsize=4096)
def _numbers(params: str) -> tuple[int, ...]:
    return tuple(min(int(param), 65535) if param else 0 for param in params.split(";"))


def within(value: int, low: int, high: int) -> int:
    """`value`, or the nearest to it from `low` to `high`."""
    return max(low, min(value, high))


def default_tabs(columns: int) -> list[int]:
    """The tab stops of a new terminal."""
    return list(range(8, columns, 8))


class Saved(NamedTuple):
    """What DECSC saves. The row is counted from the top of the screen."""

    row: int = 0
    column: int = 0
    wrap_next: bool = False
    pen: str = ""
    origin: bool = False
    charsets: tuple[str, str] = ("B", "B")
    shift: int = 0


HOME = Saved()


class Emulator:
    """The state of a terminal of `rows` x `columns` cells."""

    def __init__(self, rows: int = 24, columns: int = 80) -> None:
        self.rows = within(rows, 1, MAX_SIDE)
        self.columns = within(columns, 1, MAX_SIDE)
        self._waiting: list[bytes] = []
        self._waiting_bytes = self._waiting_controls = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""  # decoded, for the next turn
        self._partial = ""  # the start of a sequence that is not complete yet
        self._swallowing = ""  # "]" inside an OSC string that is ignored, "^" inside another kind of string
        self._scrollback: deque[str] = deque(maxlen=SCROLLBACK_LINES)
        self._title = ""
        self._titles: list[str] = []  # those that CSI 22 t has saved
        self._reset()

    def _reset(self) -> None:
        """Sets the state of a new terminal; the title stays."""
        self._lines = self._blank_lines(self.rows, "")
        self._main: list[Line] | None = None  # the main buffer's lines while the alternate one is shown
        self._row = self._column = 0
        self._wrap_next = False  # the last column is filled: with autowrap the next character wraps
        self._pen = ""
        self._saved = HOME  # by DECSC, in the buffer that is shown
        self._main_saved = HOME  # the same of the main buffer while the alternate one is shown
        self._top, self._bottom = 0, self.rows - 1
        self._tabs = default_tabs(self.columns)
        self._charsets = ("B", "B")  # G0 and G1: "B" is ASCII, "0" is line drawing
        self._shift = 0  # which of them is in use
        self._autowrap = True
        self._insert = self._origin = self._newline = False
        self._visible = True
        self._keypad = False
        self._modes: set[int] = set()  # of MIRRORED_MODES
        self._mouse = 0  # one of MOUSE_MODES
        self._cursor_shape = 0
        self._modify_other_keys = 0
        self._keyboard: list[int] = []  # the kitty protocol's stack of flags, one for each buffer
        self._main_keyboard: list[int] = []
        self._last = ""  # the character that REP repeats

    # Reading the stream

    def feed(self, data: bytes) -> None:
        """Takes what the session printed, in pieces of any size. No input is an error."""
        self._waiting.append(bytes(data))
        self._waiting_bytes += len(data)
        self._waiting_controls += len(data) - len(data.translate(None, _CONTROLS))
        full = self._waiting_bytes >= BATCH_BYTES or self._waiting_controls >= BATCH_CONTROLS
        if full or self._rest or _NOT_SCROLLING_BYTES.search(data):
            self._work()

    @property
    def busy(self) -> bool:
        """Whether the last turn was too short for what it had to read. `feed` with no input continues it."""
        return bool(self._rest)

    def _work(self) -> None:
        """One turn: reads what was fed, for TURN_SECONDS at most."""
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = self._waiting_controls = 0
        stream = self._rest + self._partial + self._decoder.decode(data)
        self._rest = self._partial = ""
        self._parse(stream, time.perf_counter() + TURN_SECONDS)

    def _catch_up(self) -> None:
        """Reads everything that was fed. What would take longer than all honest output does is left out."""
        spent = 0.0
        while self._waiting or self._rest:
            began = time.thread_time()
            self._work()
            spent += time.thread_time() - began
            if self._rest and spent > LONGEST_SECONDS:
                self._rest = ""

    def _parse(self, stream: str, end_at: float) -> None:
        at, end = 0, len(stream)
        if self._swallowing:
            at = self._swallow(stream, 0)
        at = self._fast_forward(stream, at)
        match, began_at = _TOKEN.match, at
        while at < end:
            token = match(stream, at)
            assert token is not None, "every character is the start of a token"
            kind = token.lastindex
            # The cost of a sequence has nothing to do with its length.
            if kind not in _TEXT_KINDS and at > began_at and time.perf_counter() > end_at:
                self._rest = stream[at:]
                return
            if kind == _TEXT:
                self._print(token[1])
            elif kind == _TEXT_CRLF:
                self._print(token[1])
                self._column = 0
                self._line_feed()
            elif kind == _CSI_TOKEN:
                self._control_sequence(*token.group(4, 5, 6, 7))
            elif kind == _CRLF:
                self._column = 0
                self._line_feed()
            elif kind == _CONTROL:
                self._control(token[8])
            else:
                at = self._escape(stream, at)
                continue
            at = token.end()

    def _kept_lines(self) -> int:
        """The number of lines above the last row of the screen, including the scrollback."""
        return self.rows - 1 + (SCROLLBACK_LINES if self._main is None else 0)

    def _fast_forward(self, stream: str, at: int) -> int:
        """Skips lines that the end result does not contain; returns where to go on reading.

        As long as the whole screen scrolls and there is nothing but text, SGR, EL and C0 controls
        other than SO and SI, the cursor never moves up. Cut such a stream after a CR LF that has at
        least as many line feeds up to it as the screen has rows, and after it as many as there are
        `_kept_lines`. At the cut the cursor stands in the first column of the last row; that row
        has just scrolled in, so it is blank, in the background of the pen; and every other line
        there is will have left the scrollback by the end. So all that the part before the cut is
        needed for is the pen, which is what its SGR sequences make of it, from the last on that
        resets it.
        """
        kept = self._kept_lines()
        if self._top or self._bottom != self.rows - 1 or len(stream) - at < 2 * (kept + self.rows):
            return at
        match = _NOT_SCROLLING.search(stream, at)
        end = match.start() if match else len(stream)
        for shift in "\x0e\x0f":
            position = stream.find(shift, at, end)
            end = position if position >= 0 else end
        cut = stream.rfind("\r\n", at, at + self._scrolled_by(stream[at:end], kept)) + 2
        if cut < at + 2 or stream.count("\n", at, cut) < self.rows:
            return at
        reset = max(stream.rfind("\x1b[m", at, cut), stream.rfind("\x1b[0m", at, cut), at)
        for params in _SGR.findall(stream, reset, cut):
            self._pen = changed_pen(self._pen, params)
        self._row, self._column, self._wrap_next, self._last = self.rows - 1, 0, False, ""
        self._lines[-1] = Line(self.columns, erasing_pen(self._pen))
        return cut

    def _scrolled_by(self, text: str, count: int) -> int:
        """The end of a line in `text`, as near to the last as `count` line feeds after it allow, or 0."""
        parts = text.rsplit("\n", count + 1)
        if len(parts) == count + 2:
            return len(parts[0]) + 1
        feeds, start = 0, len(text)
        for part in reversed(parts[1:]):
            start -= len(part)
            line = part.removesuffix("\r")
            if self._autowrap and line.isascii() and line.isprintable():
                feeds += max(0, len(line) - 1) // self.columns
            if feeds >= count:
                return start
            start -= 1
            feeds += 1
        return 0

    # Sequences that are interrupted or incomplete

    def _escape(self, stream: str, at: int) -> int:
        """Reads the escape sequence at `at`, which is not a complete CSI; returns where to go on reading.

        Controls inside a sequence take effect at once, CAN and SUB end it, ESC starts another.
        """
        last, self._last = self._last, ""
        sequence = "\x1b"
        here, end = at + 1, len(stream)
        while here < end:
            char = stream[here]
            if char == "\x1b" or char > "\x7f":
                return here
            here += 1
            if char in "\x18\x1a":
                return here
            if char < " " or char == "\x7f":
                self._control(char)
                last = ""
                continue
            sequence += char
            if sequence in _STRING_OPENERS:
                return self._string(stream, here, char)
            if csi := _CSI.fullmatch(sequence):
                self._last = last
                self._control_sequence(*csi.groups())
                return here
            if _ESCAPE.fullmatch(sequence):
                self._escape_sequence(sequence[1:])
                return here
            if _CSI_LIKE.fullmatch(sequence) or _ESCAPE_LIKE.fullmatch(sequence):
                return here
            if sequence.startswith("\x1b["):
                if len(sequence) > _MAX_SEQUENCE:
                    sequence = _MALFORMED_CSI
            elif len(sequence) > len(_MALFORMED_ESCAPE):
                sequence = _MALFORMED_ESCAPE
        self._partial, self._last = sequence, last
        return end

    def _string(self, stream: str, start: int, kind: str) -> int:
        """Reads the string whose content starts at `start`. Only OSC strings have an effect."""
        if kind != "]":
            self._swallowing = "^"
            return self._swallow(stream, start)
        match = _OSC_END.search(stream, start)
        stop = match.start() if match else len(stream)
        if stop - start > MAX_OSC_CHARS:
            self._swallowing = "]"
            return self._swallow(stream, start)
        if match is None or (match[0] == "\x1b" and match.end() == len(stream)):
            self._partial = "\x1b]" + stream[start:]
            return len(stream)
        if match[0] == "\x07" or stream.startswith("\x1b\\", stop):
            self._operating_system_command(stream[start:stop])
        return self._string_end(stream, stop)

    def _swallow(self, stream: str, at: int) -> int:
        """Skips the rest of a string that is ignored."""
        match = (_OSC_END if self._swallowing == "]" else _STRING_END).search(stream, at)
        if match is None:
            return len(stream)
        if match[0] == "\x1b" and match.end() == len(stream):
            self._partial = "\x1b"
            return len(stream)
        self._swallowing = ""
        return self._string_end(stream, match.start())

    @staticmethod
    def _string_end(stream: str, stop: int) -> int:
        if stream[stop] != "\x1b":
            return stop + 1
        return stop + 2 if stream[stop + 1] == "\\" else stop

    # Text

    def _print(self, run: str) -> None:
        if self._charsets[self._shift] == "0":
            run = run.translate(_LINE_DRAWING)
        if run.isascii() or not _MAYBE_NOT_NARROW.search(run):
            self._print_narrow(run)
        else:
            for width, chars in groupby(run, _width):
                if width == 1:
                    self._print_narrow("".join(chars))
                elif width == 2:
                    self._print_wide("".join(chars))
                elif width == 0:
                    self._combine("".join(chars))
        self._last = run[-1]

    def _print_narrow(self, run: str) -> None:
        columns = self.columns
        if len(run) > columns * self.rows:
            run = self._without_lost_lines(run)
        while run:
            if self._wrap_next and self._autowrap:
                self._column = 0
                self._line_feed()
            column = self._column
            room = columns - column
            if len(run) < room:
                piece, run = run, ""
                self._column = column + len(piece)
            else:
                if not self._autowrap:
                    run = run[: room - 1] + run[-1]  # the rest overwrite each other in the last column
                piece, run = run[:room], run[room:]
                self._column = columns - 1
                self._wrap_next = True
            if self._insert:
                self._lines[self._row].insert(column, piece, self._pen)
            else:
                self._lines[self._row].write(column, piece, self._pen)

    def _without_lost_lines(self, run: str) -> str:
        """Removes from a run that fills many lines those that the end result does not contain.

        One line more at its end than there are `_kept_lines` pushes out all that was before. So the
        run may lose any number of characters before these, as long as they are whole lines: the
        rest then wraps in the same places.
        """
        if not self._autowrap or self._top or self._bottom != self.rows - 1:
            return run
        lost = (len(run) - 1) // self.columns - self._kept_lines() - 1
        return run[max(0, lost) * self.columns :]

    def _print_wide(self, run: str) -> None:
        if self.columns < 2:
            return
        while run:
            room = self.columns - self._column
            if self._wrap_next or room < 2:
                if not self._autowrap:
                    return
                self._column, room = 0, self.columns
                self._line_feed()
            column = self._column
            piece, run = run[: room // 2], run[room // 2 :]
            cells = [""] * (2 * len(piece))
            cells[::2] = piece
            if self._insert:
                self._lines[self._row].insert(column, cells, self._pen)
            else:
                self._lines[self._row].write(column, cells, self._pen)
            column += len(cells)
            self._wrap_next = column == self.columns
            self._column = min(column, self.columns - 1)

    def _combine(self, marks: str) -> None:
        """Adds characters without a width to the one before the cursor."""
        column = self._column if self._wrap_next else self._column - 1
        chars = self._lines[self._row].chars
        if column > 0 and not chars[column]:
            column -= 1
        if column >= 0:
            chars[column] = (chars[column] + marks)[:MAX_CELL_CHARS]

    # C0

    def _control(self, char: str) -> None:
        self._last = ""
        if char == "\r":
            self._column = 0
            self._wrap_next = False
        elif char in "\n\v\f":
            if self._newline:
                self._column = 0
            self._line_feed()
        elif char == "\b":
            self._move_column(self._column - 1)
        elif char == "\t":
            self._tab_forward((1,))
        elif char == "\x0e":
            self._shift = 1
        elif char == "\x0f":
            self._shift = 0

    def _line_feed(self) -> None:
        self._last = ""
        self._wrap_next = False
        if self._row == self._bottom:
            self._scroll_up(self._top, 1)
        elif self._row < self.rows - 1:
            self._row += 1

    def _reverse_line_feed(self) -> None:
        self._wrap_next = False
        if self._row == self._top:
            self._scroll_down(self._top, 1)
        elif self._row:
            self._row -= 1

    # Moving lines and the cursor

    def _blank_lines(self, count: int, pen: str) -> list[Line]:
        return [Line(self.columns, pen) for _ in range(count)]

    def _scroll_up(self, top: int, count: int) -> None:
        """Removes `count` lines at `top`, and adds blank ones at the bottom of the scroll region."""
        lines, end = self._lines, self._bottom + 1
        count = min(count, end - top)
        if top == 0 and self._main is None:
            self._scrollback.extend([line.text() for line in lines[:count]])
        del lines[top : top + count]
        lines[end - count : end - count] = self._blank_lines(count, erasing_pen(self._pen))

    def _scroll_down(self, top: int, count: int) -> None:
        """Inserts `count` blank lines at `top`, and removes as many at the bottom of the scroll region."""
        lines, end = self._lines, self._bottom + 1
        count = min(count, end - top)
        del lines[end - count : end]
        lines[top:top] = self._blank_lines(count, erasing_pen(self._pen))

    def _move(self, row: int, column: int) -> None:
        """Moves the cursor, as far as the screen and the origin mode allow."""
        top, bottom = (self._top, self._bottom) if self._origin else (0, self.rows - 1)
        self._row = within(row, top, bottom)
        self._move_column(column)

    def _move_column(self, column: int) -> None:
        self._column = within(column, 0, self.columns - 1)
        self._wrap_next = False

    def _save_cursor(self, _params: tuple[int, ...] = ()) -> None:
        where = self._row, self._column, self._wrap_next
        self._saved = Saved(*where, self._pen, self._origin, self._charsets, self._shift)

    def _restore_cursor(self, _params: tuple[int, ...] = ()) -> None:
        row, column, wrap_next, self._pen, self._origin, self._charsets, self._shift = self._saved
        self._move(row, column)
        self._wrap_next = wrap_next

    # ESC

    def _escape_sequence(self, sequence: str) -> None:
        if sequence == "7":
            self._save_cursor()
        elif sequence == "8":
            self._restore_cursor()
        elif sequence == "D":
            self._line_feed()
        elif sequence == "E":
            self._column = 0
            self._line_feed()
        elif sequence == "M":
            self._reverse_line_feed()
        elif sequence == "H":
            self._tabs = sorted({*self._tabs, self._column})
        elif sequence == "c":
            self._reset()
            self._scrollback.clear()
        elif sequence in "=>":
            self._keypad = sequence == "="
        elif sequence == "#8":
            self._align()
        elif sequence[0] in "()" and len(sequence) == 2:
            charset = "0" if sequence[1] == "0" else "B"
            g0, g1 = self._charsets
            self._charsets = (charset, g1) if sequence[0] == "(" else (g0, charset)

    def _align(self) -> None:
        """DECALN: fills the screen with the letter E."""
        self._top, self._bottom, self._origin = 0, self.rows - 1, False
        self._move(0, 0)
        for line in self._lines:
            line.write(0, "E" * self.columns, "")

    # OSC

    def _operating_system_command(self, content: str) -> None:
        number, _, value = content.partition(";")
        if number in ("0", "2"):
            self._title = "".join(char for char in value if char.isprintable())

    # CSI

    def _control_sequence(self, private: str, params: str, intermediate: str, final: str) -> None:
        function = private + intermediate + final
        if function == "m":
            self._pen = changed_pen(self._pen, params)
            self._last = ""
            return
        handler = self._HANDLERS.get(function)
        if handler is not None and ":" not in params:
            handler(self, _numbers(params))
        self._last = ""

    def _cursor_up(self, params: tuple[int, ...]) -> None:
        low = self._top if self._row >= self._top else 0
        self._row = max(low, self._row - (params[0] or 1))
        self._wrap_next = False

    def _cursor_down(self, params: tuple[int, ...]) -> None:
        high = self._bottom if self._row <= self._bottom else self.rows - 1
        self._row = min(high, self._row + (params[0] or 1))
        self._wrap_next = False

    def _cursor_next_line(self, params: tuple[int, ...]) -> None:
        self._cursor_down(params)
        self._column = 0

    def _cursor_previous_line(self, params: tuple[int, ...]) -> None:
        self._cursor_up(params)
        self._column = 0

    def _cursor_forward(self, params: tuple[int, ...]) -> None:
        self._move_column(self._column + (params[0] or 1))

    def _cursor_back(self, params: tuple[int, ...]) -> None:
        self._move_column(self._column - (params[0] or 1))

    def _cursor_column(self, params: tuple[int, ...]) -> None:
        self._move_column((params[0] or 1) - 1)

    def _cursor_row(self, params: tuple[int, ...]) -> None:
        self._move((self._top if self._origin else 0) + (params[0] or 1) - 1, self._column)

    def _cursor_row_relative(self, params: tuple[int, ...]) -> None:
        self._move(self._row + (params[0] or 1), self._column)

    def _cursor_position(self, params: tuple[int, ...]) -> None:
        row, column = (*params, 0)[:2]
        self._move((self._top if self._origin else 0) + (row or 1) - 1, (column or 1) - 1)

    def _tab_forward(self, params: tuple[int, ...]) -> None:
        stop = bisect_right(self._tabs, self._column) + (params[0] or 1) - 1
        self._column = self._tabs[stop] if stop < len(self._tabs) else self.columns - 1

    def _tab_backward(self, params: tuple[int, ...]) -> None:
        stop = bisect_left(self._tabs, self._column) - (params[0] or 1)
        self._move_column(self._tabs[stop] if stop >= 0 else 0)

    def _clear_tabs(self, params: tuple[int, ...]) -> None:
        if params[0] == 0:
            self._tabs = [tab for tab in self._tabs if tab != self._column]
        elif params[0] == 3:
            self._tabs = []

    def _erase_display(self, params: tuple[int, ...]) -> None:
        if params[0] == 3:
            self._scrollback.clear()
            return
        self._erase_line(params)
        below, above = (self._row + 1, self.rows), (0, self._row)
        first, end = {0: below, 1: above, 2: (0, self.rows)}.get(params[0], (0, 0))
        self._lines[first:end] = self._blank_lines(end - first, erasing_pen(self._pen))

    def _erase_line(self, params: tuple[int, ...]) -> None:
        if params[0] == 0:
            self._erase(self._column, self.columns)
        elif params[0] == 1:
            self._erase(0, self._column + 1)
        elif params[0] == 2:
            self._erase(0, self.columns)

    def _erase_chars(self, params: tuple[int, ...]) -> None:
        self._erase(self._column, min(self._column + (params[0] or 1), self.columns))

    def _erase(self, first: int, end: int) -> None:
        self._lines[self._row].write(first, " " * (end - first), erasing_pen(self._pen))
        self._wrap_next = False

    def _insert_chars(self, params: tuple[int, ...]) -> None:
        count = min(params[0] or 1, self.columns - self._column)
        self._lines[self._row].insert(self._column, " " * count, erasing_pen(self._pen))
        self._wrap_next = False

    def _delete_chars(self, params: tuple[int, ...]) -> None:
        count = min(params[0] or 1, self.columns - self._column)
        self._lines[self._row].delete(self._column, count, erasing_pen(self._pen))
        self._wrap_next = False

    def _insert_lines(self, params: tuple[int, ...]) -> None:
        if self._top <= self._row <= self._bottom:
            self._scroll_down(self._row, params[0] or 1)
            self._move_column(0)

    def _delete_lines(self, params: tuple[int, ...]) -> None:
        if self._top <= self._row <= self._bottom:
            self._scroll_up(self._row, params[0] or 1)
            self._move_column(0)

    def _scroll_up_by(self, params: tuple[int, ...]) -> None:
        self._scroll_up(self._top, params[0] or 1)

    def _scroll_down_by(self, params: tuple[int, ...]) -> None:
        if len(params) == 1:  # with more parameters it is a mouse sequence
            self._scroll_down(self._top, params[0] or 1)

    def _repeat(self, params: tuple[int, ...]) -> None:
        if self._last and _width(self._last) > 0:
            self._print(self._last * min(params[0] or 1, self.rows * self.columns))

    def _set_region(self, params: tuple[int, ...]) -> None:
        top, bottom = (*params, 0)[:2]
        top, bottom = (top or 1) - 1, min(bottom or self.rows, self.rows) - 1
        if top < bottom:
            self._top, self._bottom = top, bottom
            self._move(top if self._origin else 0, 0)

    def _set_cursor_shape(self, params: tuple[int, ...]) -> None:
        if params[0] <= 6:
            self._cursor_shape = params[0]

    def _soft_reset(self, _params: tuple[int, ...]) -> None:
        self._visible = self._autowrap = True
        self._insert = self._origin = self._keypad = False
        self._modes -= {1, 12}
        self._top, self._bottom = 0, self.rows - 1
        self._pen, self._charsets, self._shift = "", ("B", "B"), 0
        self._cursor_shape = self._modify_other_keys = 0
        self._saved = HOME

    def _window_operation(self, params: tuple[int, ...]) -> None:
        operation, which = (*params, 0)[:2]
        if which not in (0, 2):
            return
        if operation == 22:
            self._titles = [*self._titles, self._title][-MAX_TITLES:]
        elif operation == 23 and self._titles:
            self._title = self._titles.pop()

    # Modes

    def _set_modes(self, params: tuple[int, ...]) -> None:
        self._switch_modes(params, on=True)

    def _reset_modes(self, params: tuple[int, ...]) -> None:
        self._switch_modes(params, on=False)

    def _switch_modes(self, params: tuple[int, ...], *, on: bool) -> None:
        if 4 in params:
            self._insert = on
        if 20 in params:
            self._newline = on

    def _set_private_modes(self, params: tuple[int, ...]) -> None:
        for mode in params:
            self._switch_private_mode(mode, on=True)

    def _reset_private_modes(self, params: tuple[int, ...]) -> None:
        for mode in params:
            self._switch_private_mode(mode, on=False)

    def _switch_private_mode(self, mode: int, *, on: bool) -> None:
        if mode in MIRRORED_MODES:
            self._modes = self._modes | {mode} if on else self._modes - {mode}
        elif mode in MOUSE_MODES:
            self._mouse = mode if on else 0
        elif mode == 6:
            self._origin = on
            self._move(self._top if on else 0, 0)
        elif mode == 7:
            self._autowrap = on
        elif mode == 25:
            self._visible = on
        elif mode == 66:
            self._keypad = on
        elif mode in (47, 1047):
            self._show_alternate(on=on)
        elif mode in (1048, 1049):
            if on:
                self._save_cursor()
            if mode == 1049:
                self._show_alternate(on=on)
            if not on:
                self._restore_cursor()

    def _show_alternate(self, *, on: bool) -> None:
        """Switches to a blank alternate buffer, or back to the main one."""
        if on:
            if self._main is None:
                self._main = self._lines
                self._main_saved, self._saved = self._saved, HOME
                self._main_keyboard, self._keyboard = self._keyboard, []
            self._lines = self._blank_lines(self.rows, erasing_pen(self._pen))
        elif self._main is not None:
            self._lines, self._main = self._main, None
            self._saved, self._main_saved = self._main_saved, HOME
            self._keyboard, self._main_keyboard = self._main_keyboard, []

    def _set_key_modifiers(self, params: tuple[int, ...]) -> None:
        if params[0] == 4:
            self._modify_other_keys = params[1] if len(params) > 1 and params[1] <= 3 else 0

    def _reset_key_modifiers(self, params: tuple[int, ...]) -> None:
        if params[0] == 4:
            self._modify_other_keys = 0

    def _push_keyboard(self, params: tuple[int, ...]) -> None:
        self._keyboard = [*self._keyboard, params[0] & 31][-MAX_KEYBOARD_STACK:]

    def _pop_keyboard(self, params: tuple[int, ...]) -> None:
        del self._keyboard[-(params[0] or 1) :]

    def _set_keyboard(self, params: tuple[int, ...]) -> None:
        flags, how = (*params, 1)[:2]
        before = self._keyboard[-1] if self._keyboard else 0
        after = {1: flags, 2: before | flags, 3: before & ~flags}.get(how or 1, before) & 31
        self._keyboard[-1:] = [after]

    _HANDLERS: ClassVar[dict[str, Callable[[Emulator, tuple[int, ...]], None]]] = {
        "@": _insert_chars,
        "A": _cursor_up,
        "B": _cursor_down,
        "C": _cursor_forward,
        "D": _cursor_back,
        "E": _cursor_next_line,
        "F": _cursor_previous_line,
        "G": _cursor_column,
        "H": _cursor_position,
        "I": _tab_forward,
        "J": _erase_display,
        "?J": _erase_display,
        "K": _erase_line,
        "?K": _erase_line,
        "L": _insert_lines,
        "M": _delete_lines,
        "P": _delete_chars,
        "S": _scroll_up_by,
        "T": _scroll_down_by,
        "X": _erase_chars,
        "Z": _tab_backward,
        "`": _cursor_column,
        "a": _cursor_forward,
        "b": _repeat,
        "d": _cursor_row,
        "e": _cursor_row_relative,
        "f": _cursor_position,
        "g": _clear_tabs,
        "h": _set_modes,
        "?h": _set_private_modes,
        "l": _reset_modes,
        "?l": _reset_private_modes,
        ">m": _set_key_modifiers,
        ">n": _reset_key_modifiers,
        "!p": _soft_reset,
        " q": _set_cursor_shape,
        "r": _set_region,
        "s": _save_cursor,
        "t": _window_operation,
        "u": _restore_cursor,
        "<u": _pop_keyboard,
        "=u": _set_keyboard,
        ">u": _push_keyboard,
    }

    # Size

    def resize(self, rows: int, columns: int) -> None:
        """Changes the size as xterm does: lines are not wrapped again, and the cursor's line stays
        visible."""
        self._catch_up()
        rows, columns = within(rows, 1, MAX_SIDE), within(columns, 1, MAX_SIDE)
        if (rows, columns) == (self.rows, self.columns):
            return
        more_tabs = (tab for tab in default_tabs(columns) if tab >= self.columns)
        self._tabs = [*(tab for tab in self._tabs if tab < columns), *more_tabs]
        self.rows, self.columns = rows, columns
        if self._main is not None:
            gone = self._resize_lines(self._main, self._main_saved.row)
            self._scrollback.extend(gone)
            self._main_saved = self._moved(self._main_saved, len(gone))
        gone = self._resize_lines(self._lines, self._row)
        if self._main is None:
            self._scrollback.extend(gone)
        self._saved = self._moved(self._saved, len(gone))
        self._top, self._bottom = 0, rows - 1
        self._move(self._row - len(gone), self._column)

    def _resize_lines(self, lines: list[Line], row: int) -> list[str]:
        """Brings a buffer to the new size; returns the text of the lines removed at the top."""
        gone = [line.text() for line in lines[: max(0, row - self.rows + 1)]]
        del lines[: len(gone)]
        del lines[self.rows :]
        for line in lines:
            line.resize(self.columns)
        lines += self._blank_lines(self.rows - len(lines), "")
        return gone

    def _moved(self, saved: Saved, gone: int) -> Saved:
        row = within(saved.row - gone, 0, self.rows - 1)
        return saved._replace(row=row, column=min(saved.column, self.columns - 1), wrap_next=False)
