"""How things look: plain functions from facts to text. None of them prints.

Colour is a matter of the `Paint` that is handed in, which leaves everything as it is when the output goes
to no terminal or when NO_COLOR is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from waypoint.text.units import age, clock, milliseconds, plural, shown, size
from waypoint.text.views import title

__all__ = [
    "Paint",
    "age",
    "clock",
    "cut",
    "milliseconds",
    "plural",
    "point_facts",
    "point_title",
    "sessions",
    "shown",
    "size",
    "styled",
    "table",
    "wide",
]


class Paint:
    """Colours, or none."""

    def __init__(self, *, on: bool) -> None:
        self.on = on

    @classmethod
    def of(cls, stream: TextIO) -> Paint:
        return cls(on=stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text

    def bold(self, text: str) -> str:
        return self._in("1", text)

    def dim(self, text: str) -> str:
        return self._in("2", text)

    def good(self, text: str) -> str:
        return self._in("32", text)

    def bad(self, text: str) -> str:
        return self._in("31", text)

    def warn(self, text: str) -> str:
        return self._in("33", text)

    def name(self, text: str) -> str:
        return self._in("36", text)


# Room -------------------------------------------------------------------------------------------------

_ONE_CELL_EACH = re.compile(r"[ -~\u00a0-\u02ff…·→←–×✔✖✗●○│├─╯┼]*")


def wide(text: str) -> int:
    """How many columns of a terminal it takes."""
    if _ONE_CELL_EACH.fullmatch(text):
        return len(text)
    from wcwidth import wcswidth  # only for those who write more than what is drawn here

    return max(0, wcswidth(text))


def cut(text: str, room: int) -> str:
    """The text, or as much of its beginning as there is room for."""
    if len(text) <= room and wide(text) <= room:
        return text
    if room < 1:
        return ""
    end = min(len(text), room)
    while end and wide(text[:end]) > room - 1:
        end -= 1
    return f"{text[:end].rstrip()}…"


def styled(lines: Iterable[tuple[str, str]], paint: Paint) -> str:
    """Lines in the manner that each has (see waypoint.answers)."""
    return "\n".join(text if manner == "plain" else getattr(paint, manner)(text) for manner, text in lines)


# Rows -------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]], paint: Paint) -> str:
    """Columns as wide as they need to be; the last one is left as it is."""
    cells = [[shown(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in [head, *cells]) for at in range(len(head))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip()

    return "\n".join([paint.dim(line(head)), *(line(row) for row in cells)])


def sessions(found: Sequence[Mapping[str, Any]], points: Mapping[str, str], paint: Paint) -> str:
    """`waypoint ls`. `points`: the label of each checkpoint that a session may stand on."""
    rows = []
    for session in found:
        doing = session.get("foreground") or ("at its prompt" if session["state"] == "live" else "")
        head = session.get("head")
        rows.append(
            (
                session["name"],
                session["state"],
                age(session["created_at"]),
                points.get(head, head) if head else "-",
                doing if len(doing) <= 60 else f"{doing[:59]}…",
            )
        )
    return table(("NAME", "STATE", "STARTED", "AT", "DOING"), rows, paint)


def point_title(point: Mapping[str, Any], paint: Paint) -> str:
    """`c5 up "server up"`: a point in one phrase."""
    parts = [paint.bold(point["label"])]
    if point.get("name"):
        parts.append(paint.name(shown(point["name"])))
    if point.get("intent"):
        words = cut(title(point), 72)
        parts.append(f'"{words}"' if point["intent_from"] == "given" else words)
    return " ".join(parts)


def point_facts(point: Mapping[str, Any]) -> str:
    """What it took and what it holds."""
    held = "files only" if point.get("files_only") else plural(point["processes"], "process")
    return f"{held} · {size(point['size_bytes'])} · paused {milliseconds(point['pause_ms'])}"
