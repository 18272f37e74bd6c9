"""How things look: plain functions from facts to text. None of them prints.

Colour is a matter of the `Paint` that is handed in, which leaves everything as it is when the output goes
to no terminal or when NO_COLOR is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TextIO


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


# Quantities -----------------------------------------------------------------------------------------


def milliseconds(value: float) -> str:
    """`4.2 ms`, `183 ms`, `2.1 s`, `3 min 20 s`."""
    if value < 10:
        return f"{value:.1f} ms"
    if value < 1000:
        return f"{value:.0f} ms"
    if value < 60_000:
        return f"{value / 1000:.1f} s"
    minutes, seconds = divmod(round(value / 1000), 60)
    return f"{minutes} min {seconds} s"


def size(value: int) -> str:
    """`812 B`, `4.3 KB`, `12 MB`: powers of 1024, two digits."""
    amount, units = float(value), ["B", "KB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.1f} {units[0]}" if amount < 9.95 and units[0] != "B" else f"{amount:.0f} {units[0]}"


def plural(number: int, thing: str) -> str:
    many = {"entry": "entries", "process": "processes"}.get(thing, f"{thing}s")
    return f"{number:,} {thing if number == 1 else many}"


def age(moment: str, now: datetime | None = None) -> str:
    """`12 s ago`, `16 min ago`, `3 h ago`, `5 days ago`."""
    then = datetime.fromisoformat(moment).astimezone()
    seconds = max(0, ((now or datetime.now().astimezone()) - then).total_seconds())
    for limit, unit, length in ((60, "s", 1), (3600, "min", 60), (86400, "h", 3600)):
        if seconds < limit:
            return f"{int(seconds // length)} {unit} ago"
    return f"{plural(int(seconds // 86400), 'day')} ago"


def clock(moment: str, now: datetime | None = None) -> str:
    """`10:27` today, `16 Nov 10:27` before."""
    then = datetime.fromisoformat(moment).astimezone()
    today = (now or datetime.now().astimezone()).date()
    if then.date() == today:
        return f"{then:%H:%M}"
    return f"{then:%-d %b %H:%M}" if then.year == today.year else f"{then:%-d %b %Y}"


# Rows -------------------------------------------------------------------------------------------------


def shown(text: str) -> str:
    """A text of somebody else's, on one line and without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


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
        parts.append(f'"{shown(point["intent"])}"')
    return " ".join(parts)


def point_facts(point: Mapping[str, Any]) -> str:
    """What it took and what it holds."""
    held = "files only" if point.get("files_only") else plural(point["processes"], "process")
    return f"{held} · {size(point['size_bytes'])} · paused {milliseconds(point['pause_ms'])}"


_KINDS = {"safety": "before a restore", "park": "parked", "auto": "automatic"}


def timeline(
    points: Sequence[Mapping[str, Any]],
    heads: Sequence[str],
    paint: Paint,
    *,
    with_session: bool = False,
    now: datetime | None = None,
) -> str:
    """`waypoint log`: the last point first. `heads`: where sessions stand. What a point leaves out is said
    where it begins and not again at every point after it."""
    labels = [f"{point['session']}:{point['label']}" if with_session else point["label"] for point in points]
    times = [clock(point["created_at"], now) for point in points]
    wide, late = max(map(len, labels), default=0), max(map(len, times), default=0)
    lines: list[str] = []
    oldest, known = True, ()
    for point, label, when in zip(points, labels, times, strict=True):
        here = point["id"] in heads
        title = shown(point["intent"]) or paint.dim(_KINDS.get(point["kind"], "no words given"))
        if point.get("name"):
            title = f"{paint.name(shown(point['name']))}  {title}"
        if here:
            title += paint.good("  ← here")
        mark = paint.good("●") if here else paint.dim("○")
        below = f"{' ' if oldest else paint.dim('│')}  {' ' * (wide + late + 2)}  "
        lines[:0] = [
            f"{mark}  {paint.bold(label)}{' ' * (wide - len(label))}  {when.rjust(late)}  {title}",
            below + paint.dim(point_facts(point)),
            *(below + paint.warn(shown(one)) for one in point.get("coverage", ()) if one not in known),
        ]
        oldest, known = False, tuple(point.get("coverage", ()))
    return "\n".join(lines)
