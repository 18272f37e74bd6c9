"""Rows of character cells, the parts of a terminal's screen, and the pens they are written with.

A line is two parallel lists, one string per cell in each: the characters and the pens. That makes
writing a run of text two slice assignments, which is what `emulator` does most of the time. A wide
character takes two cells, the second of which holds ""; combining characters are in the cell of the
character they combine with.

A pen is how text looks (bold, red on blue, ...), written as the parameters of the escape sequence that
selects it: SGR parameters in a canonical order, "" for plain text. So pens can be compared as strings, need
no table, and can be sent to a terminal or written to a file as they are.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any

# Pens

_BOLD, _DIM, _ITALIC, _UNDERLINE, _BLINK, _REVERSE, _HIDDEN, _STRIKE, _OVERLINE = range(9)
_FOREGROUND, _BACKGROUND, _UNDERLINE_COLOUR = 9, 10, 11
_SLOTS = 12

_ON = {
    1: (_BOLD, "1"),
    2: (_DIM, "2"),
    3: (_ITALIC, "3"),
    4: (_UNDERLINE, "4"),
    5: (_BLINK, "5"),
    6: (_BLINK, "5"),
    7: (_REVERSE, "7"),
    8: (_HIDDEN, "8"),
    9: (_STRIKE, "9"),
    21: (_UNDERLINE, "21"),
    53: (_OVERLINE, "53"),
}
_OFF = {
    22: (_BOLD, _DIM),
    23: (_ITALIC,),
    24: (_UNDERLINE,),
    25: (_BLINK,),
    27: (_REVERSE,),
    28: (_HIDDEN,),
    29: (_STRIKE,),
    39: (_FOREGROUND,),
    49: (_BACKGROUND,),
    55: (_OVERLINE,),
    59: (_UNDERLINE_COLOUR,),
}
_UNDERLINES = {"0": "", "": "4", "1": "4", "2": "21", "3": "4:3", "4": "4:4", "5": "4:5"}
_COLOURS = {38: _FOREGROUND, 48: _BACKGROUND, 58: _UNDERLINE_COLOUR}
_PEN = re.compile(r"[0-9:;]{0,256}")


def _colour(code: int, values: list[str]) -> str:
    """The canonical form of one of 256 or of 16 million colours, "" if it is not valid."""
    numbers = [int(value or 0) for value in values[1:]]
    if (values[0], len(numbers)) not in (("5", 1), ("2", 3)) or max(numbers) > 255:
        return ""
    if code == 58:  # only this form is ignored by terminals that do not know it
        return ":".join(["58", "5" if len(numbers) == 1 else "2:", *map(str, numbers)])
    return ";".join([str(code), values[0], *map(str, numbers)])


def _apply(slots: list[str], params: str) -> None:
    items = params.split(";")
    at = 0
    while at < len(items):
        head, *rest = items[at].split(":")
        at += 1
        code = int(head or 0)
        if code in _COLOURS:
            if not rest:
                size = {"5": 2, "2": 4}.get(items[at] if at < len(items) else "", 0)
                rest = items[at : at + size]
                at += size
                if not size or len(rest) < size or ":" in "".join(rest):
                    return  # its end cannot be found
            elif rest[0] == "2" and len(rest) > 4:
                rest = ["2", *rest[2:5]]  # without colour space and tolerance
            slots[_COLOURS[code]] = _colour(code, rest) or slots[_COLOURS[code]]
        elif rest:
            if code == 4 and len(rest) == 1:
                slots[_UNDERLINE] = _UNDERLINES.get(rest[0], slots[_UNDERLINE])
        elif code == 0:
            slots[:] = [""] * _SLOTS
        elif code in _ON:
            slot, value = _ON[code]
            slots[slot] = value
        elif code in _OFF:
            for slot in _OFF[code]:
                slots[slot] = ""
        elif 30 <= code <= 37 or 90 <= code <= 97:
            slots[_FOREGROUND] = str(code)
        elif 40 <= code <= 47 or 100 <= code <= 107:
            slots[_BACKGROUND] = str(code)


@lru_cache(maxsize=4096)
def changed_pen(pen: str, params: str) -> str:
    """The pen after the SGR parameters `params` are applied to `pen`."""
    slots = [""] * _SLOTS
    _apply(slots, pen)
    _apply(slots, params)
    return ";".join(filter(None, slots))


@lru_cache(maxsize=4096)
def erasing_pen(pen: str) -> str:
    """The pen of cells that are erased while `pen` is in use: its background and nothing else."""
    slots = [""] * _SLOTS
    _apply(slots, pen)
    return slots[_BACKGROUND]


def checked_pen(value: Any) -> str:
    """Checks a pen that was read from a file. Raises ValueError if it is not valid."""
    if not isinstance(value, str) or not _PEN.fullmatch(value):
        raise ValueError(f"not a pen: {value!r}")
    return changed_pen("", value)


def select(pen: str) -> str:
    """The sequence that makes a terminal write with `pen`, whatever its pen was before."""
    return f"\x1b[0;{pen}m" if pen else "\x1b[m"


# Lines

_PACKED_CELL = re.compile(r"\0|[^\x00-\x1f\x7f](?:\x01[^\x00-\x1f\x7f])*")


class Line:
    """One row of cells. Both halves of a wide character are always there."""

    __slots__ = ("chars", "pens")

    def __init__(self, columns: int, pen: str = "") -> None:
        self.chars = [" "] * columns
        self.pens = [pen] * columns

    def text(self) -> str:
        """Its text without trailing blanks."""
        return "".join(self.chars).rstrip(" ")

    def write(self, column: int, cells: list[str] | str, pen: str) -> None:
        chars, end = self.chars, column + len(cells)
        if not chars[column]:
            self.split(column)
        if end < len(chars) and not chars[end]:
            self.split(end)
        chars[column:end] = cells
        self.pens[column:end] = [pen] * len(cells)

    def split(self, column: int) -> None:
        """Prepares a cut before `column`: a wide character across it becomes two blanks."""
        chars = self.chars
        if 0 < column < len(chars) and not chars[column]:
            chars[column - 1] = chars[column] = " "

    def insert(self, column: int, cells: list[str] | str, pen: str) -> None:
        """Inserts `cells` before `column`; cells beyond the right edge are lost."""
        columns = len(self.chars)
        self.split(column)
        self.split(columns - len(cells))
        self.chars[column:column] = cells
        self.pens[column:column] = [pen] * len(cells)
        del self.chars[columns:], self.pens[columns:]

    def delete(self, column: int, count: int, pen: str) -> None:
        """Removes `count` cells at `column`, and adds blank ones at the right edge."""
        self.split(column)
        self.split(column + count)
        del self.chars[column : column + count], self.pens[column : column + count]
        self.chars += " " * count
        self.pens += [pen] * count

    def resize(self, columns: int) -> None:
        self.split(columns)
        missing = max(0, columns - len(self.chars))
        self.chars[columns:] = " " * missing
        self.pens[columns:] = [""] * missing

    def _used(self) -> int:
        """The number of cells up to the last one that is not blank."""
        count = len(self.chars)
        while count and self.chars[count - 1] == " " and not self.pens[count - 1]:
            count -= 1
        return count

    def drawn(self) -> str:
        """The sequences that draw it on a blank line of a terminal, which has the plain pen before and
        after."""
        used = self._used()
        out: list[str] = []
        current = ""
        for column, (char, pen) in enumerate(zip(self.chars[:used], self.pens[:used], strict=True)):
            if char and pen != current:
                out.append(select(pen))
                current = pen
            out.append(char)
            if len(char) != 1:  # terminals disagree about how wide some characters are
                out.append(f"\x1b[{column + 2}G")
        if current:
            out.append("\x1b[m")
        return "".join(out)

    def packed(self) -> Any:
        """For a file: its text, or [its text, [count, pen, count, pen, ...]]."""
        used = self._used()
        text = "".join("\x01".join(char) or "\0" for char in self.chars[:used])
        if not any(self.pens[:used]):
            return text
        runs: list[int | str] = []
        for pen, cells in groupby(self.pens[:used]):
            runs += (len(list(cells)), pen)
        return [text, runs]

    @classmethod
    def unpacked(cls, packed: Any, columns: int) -> Line:
        """The line that `packed` was called on. Raises ValueError or TypeError for anything else."""
        text, runs = (packed, []) if isinstance(packed, str) else packed
        line = cls(columns)
        chars = ["" if cell == "\0" else cell.replace("\x01", "") for cell in _PACKED_CELL.findall(text)]
        if len(chars) > columns:
            raise ValueError("a line longer than the screen is wide")
        line.chars[: len(chars)] = chars
        at = 0
        for count, pen in zip(runs[::2], runs[1::2], strict=True):
            if not 0 < count <= columns - at:
                raise ValueError("a pen beyond the right edge")
            line.pens[at : at + count] = [checked_pen(pen)] * count
            at += count
        if any(not char and not before for before, char in pairwise(["", *line.chars])):
            raise ValueError("half of a wide character")
        return line
