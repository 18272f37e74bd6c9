"""Cards: a checkpoint's story, and the difference of any two points.

Everything a card says carries where it comes from: **derived** from the snapshots, **observed** by Waypoint
while it looked, **claimed** by whoever wrote it. A claim never looks like a fact. A card is computed after
the pause and may fail in parts: what is missing is in `gaps`, with the reason, and the checkpoint stands.
"""

from __future__ import annotations

from typing import Literal

from waypoint.history.analyzers import Analysis
from waypoint.history.changes import Changes
from waypoint.history.contacts import Contact
from waypoint.history.facts import LiveDifference
from waypoint.model import IntentFrom, Record

Source = Literal["derived", "observed", "claimed"]


class Line(Record, frozen=True):
    """One thing a card says, and how it knows."""

    topic: str
    text: str
    source: Source


class Difference(Record, frozen=True):
    """What changed from one point to another: files, what they mean, and the live side."""

    files: Changes
    analysis: Analysis
    live: LiveDifference
    gaps: tuple[str, ...] = ()
    redacted: int = 0
    contacts: tuple[Contact, ...] = ()
    """What has left the session on the way from the one to the other."""

    @property
    def empty(self) -> bool:
        return not self.files.changes and self.live.empty


class Card(Record, frozen=True):
    """The story of one checkpoint."""

    intent: str
    intent_from: IntentFrom
    summary: str
    lines: tuple[Line, ...]
    difference: Difference
    coverage: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    redacted: int = 0
