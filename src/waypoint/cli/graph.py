"""The history as lines and dots: newest first, one column for each line of descent.

A branch is drawn into the line it grew from as soon as its last point is drawn:

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
    """What stands before the text of a point: on its first line around its sign, on further lines, and the
    lines below it where branches join."""

    left: str
    right: str
    below: str
    joins: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.below)


def place(dots: Sequence[Dot]) -> Iterator[Placed]:
    """Where each point stands. Every point comes before the one it descends from; what descends from a point
    that is not among them has nothing below it."""
    known = {dot.id for dot in dots}
    lanes: list[str | None] = []
    """The point that each column leads down to."""
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
    """Two columns that lead down to the same point become one."""
    target = lanes[column]
    both = [number for number, lane in enumerate(lanes) if lane and lane == target]
    if len(both) < 2:
        return ()
    low, high = both
    drawn = ""
    for number, lane in enumerate(lanes):
        if number == low:
            drawn += "├─"
        elif number == high:
            drawn += "╯ "
        elif low < number < high:
            drawn += "┼─" if lane else "──"
        else:
            drawn += "│ " if lane else "  "
    lanes[high] = None
    return (drawn.rstrip(),)
