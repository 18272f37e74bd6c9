"""Who descends from whom: which points belong to the story of a session."""

from __future__ import annotations

from collections.abc import Sequence

from waypoint.model import Checkpoint


def family(
    points: Sequence[Checkpoint], session: str, head: str | None, how: str | None = None
) -> list[Checkpoint]:
    """Of all points, oldest first, those of a session; with more of their family if asked for.

    `tips`: the line that leads to them, in whichever session, and the last point of each fork that grew from
    its own points. `whole`: everything that shares a beginning with them.
    """
    own = {point.id for point in points if point.session == session}
    if not how:
        return [point for point in points if point.id in own]
    by_id = {point.id: point for point in points}
    line: set[str] = set()
    for start in (*own, head):
        above = by_id.get(start or "")
        while above and above.id not in line:
            line.add(above.id)
            above = by_id.get(above.parent or "")
    start_ids = line if how == "whole" else own
    grown: dict[str, Checkpoint] = {}
    for point in points:  # parents come before their children
        if point.id not in own and (point.parent in start_ids or point.parent in grown):
            grown[point.id] = point
    if how == "whole":
        shown = line | own | grown.keys()
    else:
        tips = {point.session: point.id for point in grown.values()}
        shown = line | own | set(tips.values())
    return [point for point in points if point.id in shown]
