"""Quantities, times and words from a session, the way a person reads them.

Used by the other modules of this room and by the faces, so that a size is written in one way everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

_PLURALS = {
    "alias": "aliases",
    "entry": "entries",
    "process": "processes",
    "repository": "repositories",
    "stash entry": "stash entries",
}


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
    """`1 file`, `1,842 files`."""
    return f"{number:,} {noun_of(number, thing)}"


def noun_of(number: int, thing: str) -> str:
    """The word for so many: `file`, `entries`."""
    return thing if number == 1 else _PLURALS.get(thing, f"{thing}s")


def some(names: Sequence[str], most: int) -> str:
    """`a, b, c and 2 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def cut(text: str, width: int) -> str:
    """At most so many characters, with `…` for the rest."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def cut_around(before: str, after: str, width: int) -> tuple[str, str]:
    """Two long texts, each at most so wide, cut so that the place where they differ can be seen."""
    if len(before) <= width and len(after) <= width:
        return before, after
    same = next(
        (place for place, (old, new) in enumerate(zip(before, after, strict=False)) if old != new),
        min(len(before), len(after)),
    )
    start = max(0, same - width // 3)
    return _window(before, start, width), _window(after, start, width)


def _window(text: str, start: int, width: int) -> str:
    start = min(start, max(0, len(text) - width))
    head = f"…{text[start + 1 :]}" if start else text
    return cut(head, width)


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


def shown(text: str) -> str:
    """Text from a session, on one line and without control characters that a terminal would obey."""
    if text.isprintable():
        return text.strip()
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()
