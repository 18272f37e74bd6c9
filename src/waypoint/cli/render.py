"""How output looks: colours, columns, tables, points. These functions return text; none of them prints.

A `Paint` adds colours, unless the output does not go to a terminal or NO_COLOR is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

import msgspec

from waypoint.text.units import age, clock, milliseconds, plural, shown, size

if TYPE_CHECKING:
    from waypoint.model import Checkpoint

__all__ = [
    "Paint",
    "age",
    "clock",
    "cut",
    "milliseconds",
    "plural",
    "point_facts",
    "point_title",
    "shown",
    "size",
    "styled",
    "table",
    "width",
]


class Paint:
    """Adds colours, or (`on` false) leaves the text unchanged."""

    def __init__(self, *, on: bool) -> None:
        self.on = on

    @classmethod
    def of(cls, stream: TextIO) -> Paint:
        return cls(on=stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")

    def _apply(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text

    def bold(self, text: str) -> str:
        return self._apply("1", text)

    def dim(self, text: str) -> str:
        return self._apply("2", text)

    def good(self, text: str) -> str:
        return self._apply("32", text)

    def bad(self, text: str) -> str:
        return self._apply("31", text)

    def warn(self, text: str) -> str:
        return self._apply("33", text)

    def name(self, text: str) -> str:
        return self._apply("36", text)


# Columns ------------------------------------------------------------------------------------------------

_ONE_CELL_EACH = re.compile(r"[ -~\u00a0-\u02ff…·→←–×✔✖✗●○│├─╯┼]*")


def width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if _ONE_CELL_EACH.fullmatch(text):
        return len(text)
    from wcwidth import wcswidth  # 20 ms: only for text with other characters

    return max(0, wcswidth(text))


def cut(text: str, room: int) -> str:
    """The text, shortened so that it fits into that many columns."""
    if len(text) <= room and width(text) <= room:
        return text
    if room < 1:
        return ""
    end = min(len(text), room)
    while end and width(text[:end]) > room - 1:
        end -= 1
    return f"{text[:end].rstrip()}…"


def styled(lines: Iterable[tuple[str, str]], paint: Paint) -> str:
    """Lines of `waypoint.text.views`, each painted in its style."""
    return "\n".join(text if style == "plain" else getattr(paint, style)(text) for style, text in lines)


# Tables and points ----------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]], paint: Paint) -> str:
    """Columns as wide as their widest cell."""
    cells = [[shown(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in [head, *cells]) for at in range(len(head))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

    return "\n".join([paint.dim(line(head)), *(line(row) for row in cells)])


def point_title(point: Checkpoint, paint: Paint) -> str:
    """A point in one phrase: `c5 up "server up"`."""
    parts = [paint.bold(point.label)]
    if point.name:
        parts.append(paint.name(shown(point.name)))
    if point.intent:
        from waypoint.text.views import title

        words = cut(title(msgspec.to_builtins(point)), 72)
        parts.append(f'"{words}"' if point.intent_from == "given" else words)
    return " ".join(parts)


def point_facts(point: Checkpoint) -> str:
    """What it contains and how long the session was paused."""
    content = "files only" if point.files_only else plural(point.processes, "process")
    return f"{content} · {size(point.size_bytes)} · paused {milliseconds(point.pause_ms)}"
