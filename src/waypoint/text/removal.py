"""What removing sessions takes away, and what goes to other sessions, in words."""

from __future__ import annotations

from collections.abc import Sequence

from waypoint.model import HandedOver, Removal
from waypoint.text.units import plural

_MOST_LISTED = 12


def describe_removal(plan: Removal) -> list[str]:
    """What would go and what would stay."""
    whose = "its" if len(plan.removed) == 1 else "their"
    points = plural(plan.forgotten, "point") if plan.forgotten else "no point"
    what = f"{', '.join(plan.removed)}: {whose} processes end, {points} "
    goes = "goes" if plan.forgotten <= 1 else "go"
    return [f"{what}{goes}", *describe_handed_over(plan)]


def describe_handed_over(removal: Removal, *, done: bool = False) -> list[str]:
    """One line for each point that another session gets."""
    verb = "went" if done else "goes"
    lines = [
        f"  {one.was}{_called(one)} {verb} to {one.checkpoint.session}"
        f" as {one.checkpoint.label}{_renamed(one)}: {one.why}"
        for one in _newest(removal.handed_over)
    ]
    if more := len(removal.handed_over) - len(lines):
        lines.insert(0, f"  … and {plural(more, 'point')} before {'it' if len(lines) == 1 else 'them'}")
    return lines


def _newest(handed_over: Sequence[HandedOver]) -> Sequence[HandedOver]:
    return handed_over[-_MOST_LISTED:]


def _called(one: HandedOver) -> str:
    words = one.checkpoint.intent
    return f' "{words}"' if words else ""


def _renamed(one: HandedOver) -> str:
    return f" ({one.checkpoint.name})" if one.checkpoint.name else ""
