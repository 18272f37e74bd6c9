"""A session's screen, kept on the daemon's side.

A session's terminal is a stream of bytes; a user sees what a terminal emulator makes of it. `Screen` is fed
every byte the session prints, so that a client that attaches, or stays attached across a restore, can be
shown the same picture, and so that a checkpoint can hold the screen and its text.

The emulator (emulator.py) interprets the bytes; this module gets the state out: as text, as escape
sequences for a client's terminal, and in a compact form for a checkpoint.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, TypeVar

from waypoint.terminal.cells import Line, checked_pen, select
from waypoint.terminal.emulator import (
    MAX_SIDE,
    MIRRORED_MODES,
    MOUSE_MODES,
    SCROLLBACK_LINES,
    Emulator,
    Saved,
    default_tabs,
)

DUMP_MAGIC = b"waypoint-screen 1\n"
MAX_DUMP_BYTES = 128 * 1024 * 1024  # of a dump when it is decompressed

_CANCEL = "\x18\x1b\\"  # ends any sequence that a terminal is in the middle of
_PLAIN = "\x1b(B\x1b)B\x0f\x1b[m"
_KEYBOARD_OFF = "\x1b[<99u\x1b[>4m"
_FLAGS = ("autowrap", "insert", "origin", "newline", "visible", "keypad")

_T = TypeVar("_T")


class Screen(Emulator):
    """What a terminal of `rows` x `columns` cells shows after the bytes it was fed."""

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column, from 0."""
        self._catch_up()
        return self._row, self._column

    @property
    def alternate(self) -> bool:
        """Whether the alternate buffer is shown, as full-screen programs do."""
        self._catch_up()
        return self._main is not None

    @property
    def title(self) -> str:
        """The window title the session has set, "" if none."""
        self._catch_up()
        return self._title

    def cells(self) -> tuple[Line, ...]:
        """The lines that are shown, cell by cell. They are those of the screen: not to be changed."""
        self._catch_up()
        return tuple(self._lines)

    def text(self) -> str:
        """The visible text, without trailing blanks in the lines or empty lines at the end."""
        self._catch_up()
        return "\n".join(line.text() for line in self._lines).rstrip("\n")

    def scrollback_text(self, n: int = SCROLLBACK_LINES) -> str:
        """The last `n` lines that scrolled off the top of the main buffer."""
        self._catch_up()
        return "\n".join(list(self._scrollback)[-n:] if n > 0 else [])

    # For a client's terminal

    def redraw(self, untitled: str = "") -> bytes:
        """The bytes that make any terminal like xterm, of this size and in any state, show this screen.
        `untitled`: the title of the window where the session has set none.

        If the stream is in the middle of a sequence, they end with the beginning of it, so that the
        terminal can be sent the rest of the stream afterwards.
        """
        self._catch_up()
        modes = "".join(f"\x1b[?{mode}{'h' if mode in self._modes else 'l'}" for mode in MIRRORED_MODES)
        out = [
            _CANCEL,
            "\x1b[?2026h\x1b[?25l",  # where the terminal supports it, nothing is shown before the end
            "\x1b[?69l\x1b[?6l\x1b[r\x1b[?7l\x1b[4l\x1b[20l",
            f"{_KEYBOARD_OFF}\x1b[?1049l\x1b[?6l{_KEYBOARD_OFF}",
            "".join(f"\x1b[?{mode}l" for mode in MOUSE_MODES),
            modes,
            f"\x1b[?{self._mouse}h" if self._mouse else "",
            "\x1b=" if self._keypad else "\x1b>",
            f"\x1b[>4;{self._modify_other_keys}m" if self._modify_other_keys else "",
            f"\x1b]2;{self._title or untitled}\x07",
            self._tab_stops(self._tabs),
        ]
        if self._main is not None:
            out += (
                self._drawn(self._main, self._main_keyboard),
                self._placed_to_save(self._main, self._main_saved),
                "\x1b[?1049h\x1b[?6l\x1b[?7l",
            )
        out += (
            self._drawn(self._lines, self._keyboard),
            self._placed_to_save(self._lines, self._saved),
            "\x1b7\x1b[?6l",
            f"\x1b[{self._top + 1};{self._bottom + 1}r" if self._top < self._bottom else "",
            "\x1b[?6h" if self._origin else "",
            _PLAIN,
            self._placed(
                self._lines[self._row],
                self._row - (self._top if self._origin else 0),
                self._column,
                wrap_next=self._wrap_next,
            ),
            self._styled(self._pen, self._charsets, self._shift),
            "" if self._autowrap else "\x1b[?7l",
            "\x1b[4h" if self._insert else "",
            "\x1b[20h" if self._newline else "",
            f"\x1b[{self._cursor_shape} q",
            "\x1b[?25h" if self._visible else "",
            "\x1b[?2026l",
            {"": "", "]": "\x1b]9999;", "^": "\x1b^"}[self._swallowing],
            self._partial,
        )
        undecoded, _ = self._decoder.getstate()
        return "".join(out).encode() + undecoded

    def leave(self) -> bytes:
        """The bytes that reset a client's terminal: no mode of the session stays in effect.

        The text of the main buffer stays visible. The cursor goes to the start of the line below the line
        of the session's shell.
        """
        self._catch_up()
        row = self._row if self._main is None else self._main_saved.row
        tabs = default_tabs(self.columns)
        out = [
            _CANCEL,
            "".join(f"\x1b[?{mode}l" for mode in (*MOUSE_MODES, *MIRRORED_MODES, 6, 69, 2026)),
            "\x1b>\x1b[4l\x1b[20l\x1b[?7h\x1b[r",
            _KEYBOARD_OFF,
            f"\x1b[?1049l\x1b[?6l{_KEYBOARD_OFF}" if self._main is not None else "",
            self._tab_stops(tabs) if tabs != self._tabs else "",
            f"{_PLAIN}\x1b[0 q\x1b[?25h",
            f"\x1b[{row + 1}H\r\n",
        ]
        return "".join(out).encode()

    @staticmethod
    def _tab_stops(tabs: list[int]) -> str:
        return "\x1b[3g" + "".join(f"\x1b[{tab + 1}G\x1bH" for tab in tabs)

    @staticmethod
    def _drawn(lines: list[Line], keyboard: list[int]) -> str:
        out = [_PLAIN, "\x1b[H\x1b[2J", *(f"\x1b[>{flags}u" for flags in keyboard)]
        out += (f"\x1b[{row}H{drawn}" for row, line in enumerate(lines, 1) if (drawn := line.drawn()))
        return "".join(out)

    def _placed_to_save(self, lines: list[Line], saved: Saved) -> str:
        """Brings a terminal whose whole screen scrolls into the state in which DECSC saves `saved`."""
        return "".join(
            (
                "\x1b[?7h",
                "\x1b[?6h" if saved.origin else "",
                self._placed(lines[saved.row], saved.row, saved.column, wrap_next=saved.wrap_next),
                self._styled(saved.pen, saved.charsets, saved.shift),
            )
        )

    @staticmethod
    def _placed(line: Line, row: int, column: int, *, wrap_next: bool) -> str:
        """Moves the cursor. A pending wrap can only be produced by filling the last column."""
        if wrap_next and not line.chars[column]:
            column -= 1
        place = f"\x1b[{row + 1};{column + 1}H"
        return f"{place}{select(line.pens[column])}{line.chars[column]}" if wrap_next else place

    @staticmethod
    def _styled(pen: str, charsets: tuple[str, str], shift: int) -> str:
        g0, g1 = charsets
        return f"\x1b({g0}\x1b){g1}{chr(15 - shift)}{select(pen)}"

    # For a checkpoint

    def dump(self) -> bytes:
        """The whole state, for `load`."""
        self._catch_up()
        undecoded, _ = self._decoder.getstate()
        state = {
            "size": [self.rows, self.columns],
            "lines": [line.packed() for line in self._lines],
            "main": None if self._main is None else [line.packed() for line in self._main],
            "scrollback": list(self._scrollback),
            "cursor": [self._row, self._column, self._wrap_next],
            "pen": self._pen,
            "saved": self._saved,
            "main_saved": self._main_saved,
            "region": [self._top, self._bottom],
            "tabs": self._tabs,
            "charsets": self._charsets,
            "shift": self._shift,
            "flags": {name: getattr(self, "_" + name) for name in _FLAGS},
            "modes": sorted(self._modes),
            "mouse": self._mouse,
            "cursor_shape": self._cursor_shape,
            "modify_other_keys": self._modify_other_keys,
            "keyboard": self._keyboard,
            "main_keyboard": self._main_keyboard,
            "title": self._title,
            "titles": self._titles,
            "last": self._last,
            "partial": self._partial,
            "swallowing": self._swallowing,
            "undecoded": undecoded.hex(),
        }
        text = json.dumps(state, ensure_ascii=False, separators=(",", ":"))
        return DUMP_MAGIC + zlib.compress(text.encode(), 1)

    @classmethod
    def load(cls, data: bytes) -> Screen:
        """The screen that `dump` was called on. Raises ValueError for anything else."""
        if not data.startswith(DUMP_MAGIC):
            raise ValueError("not a screen, or one of a later version")
        try:
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(data[len(DUMP_MAGIC) :], MAX_DUMP_BYTES)
            if not unpacker.eof or unpacker.unused_data:
                raise ValueError("a screen that is cut off, or has more data after it")
            return cls._from_state(json.loads(text))
        except (zlib.error, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"a damaged screen: {error}") from error

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Screen:
        rows, columns = (_number(side, 1, MAX_SIDE) for side in state["size"])
        screen = cls(rows, columns)
        screen._lines = _lines(state["lines"], rows, columns)
        screen._main = None if state["main"] is None else _lines(state["main"], rows, columns)
        screen._scrollback.extend(map(_string, state["scrollback"]))
        row, column, wrap_next = state["cursor"]
        screen._row, screen._column = _number(row, 0, rows - 1), _number(column, 0, columns - 1)
        screen._wrap_next = wrap_next is True
        screen._pen = checked_pen(state["pen"])
        screen._saved = _saved(state["saved"], rows, columns)
        screen._main_saved = _saved(state["main_saved"], rows, columns)
        top, bottom = state["region"]
        screen._top, screen._bottom = _number(top, 0, rows - 1), _number(bottom, top, rows - 1)
        screen._tabs = sorted({_number(tab, 0, columns - 1) for tab in state["tabs"]})
        screen._charsets = _charsets(state["charsets"])
        screen._shift = _number(state["shift"], 0, 1)
        for name in _FLAGS:
            setattr(screen, "_" + name, state["flags"][name] is True)
        screen._modes = {_one_of(mode, MIRRORED_MODES) for mode in state["modes"]}
        screen._mouse = _one_of(state["mouse"], (0, *MOUSE_MODES))
        screen._cursor_shape = _number(state["cursor_shape"], 0, 6)
        screen._modify_other_keys = _number(state["modify_other_keys"], 0, 3)
        screen._keyboard = [_number(flags, 0, 31) for flags in state["keyboard"]]
        screen._main_keyboard = [_number(flags, 0, 31) for flags in state["main_keyboard"]]
        screen._title = _string(state["title"])
        screen._titles = list(map(_string, state["titles"]))
        screen._last = _string(state["last"])[:1]
        screen._partial = _string(state["partial"])
        screen._swallowing = _one_of(state["swallowing"], ("", "]", "^"))
        screen._decoder.setstate((bytes.fromhex(state["undecoded"])[:3], 0))
        if screen._wrap_next and column != columns - 1:
            raise ValueError("a pending wrap in the middle of a line")
        return screen


def _number(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"not a number from {low} to {high}: {value!r}")
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not a string: {value!r}")
    return value


def _one_of(value: Any, choices: tuple[_T, ...]) -> _T:
    return choices[choices.index(value)]


def _charsets(value: Any) -> tuple[str, str]:
    g0, g1 = value
    return _one_of(g0, ("0", "B")), _one_of(g1, ("0", "B"))


def _lines(packed: Any, rows: int, columns: int) -> list[Line]:
    lines = [Line.unpacked(line, columns) for line in packed]
    if len(lines) != rows:
        raise ValueError("not as many lines as the screen has rows")
    return lines


def _saved(packed: Any, rows: int, columns: int) -> Saved:
    row, column, wrap_next, pen, origin, charsets, shift = packed
    return Saved(
        _number(row, 0, rows - 1),
        _number(column, 0, columns - 1),
        wrap_next is True and column == columns - 1,
        checked_pen(pen),
        origin is True,
        _charsets(charsets),
        _number(shift, 0, 1),
    )
