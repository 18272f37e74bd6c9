"""Lineage: which points lead to which, across sessions and forks."""

from __future__ import annotations

from collections.abc import Sequence

from waypoint.errors import UsageError
from waypoint.model import Checkpoint


def ancestors(points: Sequence[Checkpoint], start: str | None) -> list[Checkpoint]:
    """A point and all that led to it, newest first, through the sessions that its own was forked from."""
    by_id = {point.id: point for point in points}
    line: list[Checkpoint] = []
    point = by_id.get(start or "")
    while point and len(line) <= len(by_id):
        line.append(point)
        point = by_id.get(point.parent or "")
    return line


def line_between(points: Sequence[Checkpoint], good: Checkpoint, bad: Checkpoint) -> list[Checkpoint]:
    """The points after `good` up to and including `bad`, oldest first, along the parents of `bad`."""
    line = ancestors(points, bad.id)
    for index, point in enumerate(line):
        if point.id == good.id:
            return line[:index][::-1]
    raise UsageError(
        f"{good.name or good.label} is not in the history of {bad.name or bad.label}",
        hint="bisect walks from BAD back along its parents to GOOD",
    )


def family(
    points: Sequence[Checkpoint], session: str, head: str | None, how: str | None = None
) -> list[Checkpoint]:
    """The points of a session out of all points, oldest first, and more of their family on request.

    `tips`: the line that leads to them, in whichever session, and the last point of each fork that grew from
    its own points. `whole`: everything that shares a beginning with them.
    """
    own = {point.id for point in points if point.session == session}
    if not how:
        return [point for point in points if point.id in own]
    by_id = {point.id: point for point in points}
    line: set[str] = set()
    for start in (*own, head):
        point = by_id.get(start or "")
        while point and point.id not in line:
            line.add(point.id)
            point = by_id.get(point.parent or "")
    roots = line if how == "whole" else own
    descendants: dict[str, Checkpoint] = {}
    for point in points:  # parents come before their children
        if point.id not in own and (point.parent in roots or point.parent in descendants):
            descendants[point.id] = point
    if how == "whole":
        members = line | own | descendants.keys()
    else:
        tips = {point.session: point.id for point in descendants.values()}
        members = line | own | set(tips.values())
    return [point for point in points if point.id in members]
