"""Points that an agent keeps under a label of its own, as `keep_point` and `go_back` of the adapters do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from waypoint import model

KEEP_POINT, GO_BACK = "keep_point", "go_back"
"""The tools."""
_INTENT = "kept by the agent: "


class _Point(Protocol):
    """A checkpoint of the SDK, or of the SDK for asyncio."""

    @property
    def id(self) -> str: ...

    info: model.Checkpoint


def intent(label: str) -> str:
    """The intent of the point for a label."""
    return f"{_INTENT}{label}"


def kept(points: Iterable[_Point]) -> dict[str, str]:
    """The ids of the points that an agent has kept, by label; of two with one label the last."""
    found = (point for point in points if point.info.intent.startswith(_INTENT))
    return {point.info.intent.removeprefix(_INTENT): point.id for point in found}


def missing(label: str, known: Iterable[str]) -> str:
    """What an agent is told when it asks for a label that no point has."""
    return f"No point {label!r} was kept. Kept: {', '.join(map(repr, known)) or 'none'}."
