"""The graph of `waypoint log`: newest first, one column for each line of descent.

A branch joins the line it was forked from right below its first point:

    ●  c5
    │ ○  try/c1
    ├─╯
    ○  c2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Dot(NamedTuple):
    """A point, and the one it descends from."""

    id: str
    parent: str | None


class Placed(NamedTuple):
    """The graph beside one point: left and right of its sign, beside its further lines (`below`), and the
    lines below it where branches join."""

    left: str
    right: str
    below: str
    joins: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.below)


def place(dots: Sequence[Dot]) -> Iterator[Placed]:
    """Places the points in columns. A point must come before the one it descends from. If its parent is not
    among the points, no line is drawn below it."""
    known = {dot.id for dot in dots}
    lanes: list[str | None] = []
    """The point that each column leads to."""
    for dot in dots:
        if dot.id in lanes:
            column = lanes.index(dot.id)
        elif None in lanes:
            column = lanes.index(None)
        else:
            column = len(lanes)
            lanes.append(None)
        before, after = _bars(lanes[:column]), _bars(lanes[column + 1 :])
        lanes[column] = dot.parent if dot.parent in known else None
        below = _bars(lanes)
        joins = _join(lanes, column)
        while lanes and lanes[-1] is None:
            lanes.pop()
        yield Placed(
            "".join(f"{bar} " for bar in before), "".join(f" {bar}" for bar in after), " ".join(below), joins
        )


def _bars(lanes: Sequence[str | None]) -> list[str]:
    return ["│" if lane else " " for lane in lanes]


def _join(lanes: list[str | None], column: int) -> tuple[str, ...]:
    """Joins two columns that lead to the same point."""
    target = lanes[column]
    columns = [number for number, lane in enumerate(lanes) if lane and lane == target]
    if len(columns) < 2:
        return ()
    low, high = columns
    line = ""
    for number, lane in enumerate(lanes):
        if number == low:
            line += "├─"
        elif number == high:
            line += "╯ "
        elif low < number < high:
            line += "┼─" if lane else "──"
        else:
            line += "│ " if lane else "  "
    lanes[high] = None
    return (line.rstrip(),)
