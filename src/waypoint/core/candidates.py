"""Candidates: several sessions or points side by side. What did each change since they parted, does a command
pass in it, what does it cost? So that one of them can be chosen.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from waypoint.api.difference import CommandOutcome, Difference
from waypoint.core.capture import Capture, Wish
from waypoint.core.comparison import BASE, NOW, Comparison, Moment
from waypoint.core.gate import Gate
from waypoint.core.registry import Registry
from waypoint.core.space import DiskSpace
from waypoint.core.trials import Trials
from waypoint.errors import WaypointError
from waypoint.model import Actor, Checkpoint, Effect
from waypoint.store.sessions import SessionRow
from waypoint.text.commands import outcomes
from waypoint.text.effects import known_effects


@dataclass(frozen=True)
class Candidate:
    """A session as it is now, or a point."""

    name: str
    """As the caller named it."""
    row: SessionRow
    point: Checkpoint | None
    """The point, or the last one of the session; None for a session that has none."""
    live: bool
    """Whether the session as it is now is meant."""


@dataclass(frozen=True)
class Assessment:
    """What is known about a candidate, from the point on where all of them were the same."""

    candidate: Candidate
    difference: Difference
    commands: int
    """How many commands were run on the way, and how long they took."""
    commands_ms: float
    outcomes: tuple[CommandOutcome, ...]
    effects: tuple[Effect, ...]
    """What was done outside on the way: no choice takes that back."""
    unique_bytes: int | None
    """What the point, and what the session wrote since, take on disk; None when it was not measured."""

    @property
    def files(self) -> dict[str, int]:
        return dict(Counter(change.kind for change in self.difference.files))


class Candidates:
    """Compares sessions and points of one home."""

    def __init__(
        self,
        registry: Registry,
        comparison: Comparison,
        capture: Capture,
        trials: Trials,
        gate: Gate,
        space: DiskSpace,
    ) -> None:
        self._registry, self._store, self._comparison = registry, registry.store, comparison
        self._capture, self._trials, self._gate, self._space = capture, trials, gate, space

    def find(
        self, names: Sequence[str], session: str | None, *, with_point: bool, actor: Actor
    ) -> list[Candidate]:
        """What the names mean: sessions, or refs of points, of `session` if they name no other. `with_point`:
        a session that has changed since its last point gets one first."""
        sessions = {row.name: row for row in self._store.sessions.all()}
        candidates = []
        for name in names:
            row = self._registry.find(session) if name == NOW else sessions.get(name)
            if row is None:
                point: Checkpoint | None = self._registry.point(self._registry.find_for(session, name), name)
                row = self._registry.find(point.session) if point else None
                assert row
                candidates.append(Candidate(name, row, point, live=False))
                continue
            point = self._registry.head(row)
            if with_point and (point is None or self._comparison.has_changed(row)):
                point = self._capture.checkpoint(row, Wish("compared with others", actor=actor))
            candidates.append(Candidate(name, row, point, live=True))
        return candidates

    def verify(self, candidates: Sequence[Candidate], command: str, *, timeout: float) -> None:
        """Runs a command in a throwaway copy of each; the verdict is stored with its point."""
        points = {candidate.point.id: candidate for candidate in candidates if candidate.point}
        for candidate in points.values():
            self._gate.check_trial(candidate.row, command)
        for candidate in points.values():
            assert candidate.point
            number = self._trials.verify(candidate.point, command, timeout=timeout)
            self._trials.wait(candidate.point, number)

    def common_base(self, candidates: Sequence[Candidate]) -> Checkpoint | None:
        """The last point that all of them grew from; None when that is the base."""
        points = {point.id: point for point in self._store.points.all()}
        ids = [candidate.point.id for candidate in candidates if candidate.point]
        lines = [_line(point_id, points) for point_id in ids]
        if not lines:
            return None
        common = set(lines[0]).intersection(*lines[1:])
        ancestors = lines[0][1:] if len(set(ids)) == 1 else lines[0]
        return next((points[point_id] for point_id in ancestors if point_id in common), None)

    def assess(
        self, candidates: Sequence[Candidate], base: Checkpoint | None
    ) -> tuple[list[Assessment], set[str] | None]:
        """What each of them did since `base`, and the paths that are not alike in all of them (None: not
        known)."""
        point_bytes, session_bytes = self._costs()
        with contextlib.ExitStack() as moments:
            after = [moments.enter_context(self._moment(candidate)) for candidate in candidates]
            assessments = [
                self._assess(candidate, base, moment, point_bytes, session_bytes)
                for candidate, moment in zip(candidates, after, strict=True)
            ]
            return assessments, self._apart(after)

    def _moment(self, candidate: Candidate) -> contextlib.AbstractContextManager[Moment]:
        to = None if candidate.live or candidate.point is None else candidate.point.id
        return self._comparison.moment(candidate.row, to)

    def _apart(self, moments: Sequence[Moment]) -> set[str] | None:
        """The paths at which not all of these moments have the same."""
        try:
            differences = [self._comparison.changes(moments[0], moment) for moment in moments[1:]]
        except (OSError, WaypointError, ValueError):  # of different bases, say
            return None
        changes = [change for found in differences for change in found]
        return {path for change in changes for path in (change.path, change.old_path) if path}

    def _assess(
        self,
        candidate: Candidate,
        base: Checkpoint | None,
        after: Moment,
        point_bytes: Mapping[str, int],
        session_bytes: Mapping[str, int],
    ) -> Assessment:
        row, point = candidate.row, candidate.point
        with self._comparison.moment(row, base.id if base else BASE) as before:
            difference = self._comparison.difference(before, after)
        if candidate.live:
            self._registry.settle(row)
        position = self._registry.find(row.id).tip if candidate.live else point.position if point else None
        start = base.position if base else None
        commands = self._store.events.trace(position, kinds=("command",), after=start)
        own = point_bytes.get(point.id) if point and point.session == row.name else None
        volume = session_bytes.get(row.name) if candidate.live else None
        sizes = [size for size in (own, volume) if size is not None]
        return Assessment(
            candidate,
            difference,
            commands=len(commands),
            commands_ms=sum(event.body.get("duration_ms") or 0.0 for event in commands),
            outcomes=outcomes(commands),
            effects=tuple(known_effects(self._store.ledger.between(start, position))),
            unique_bytes=sum(sizes) if sizes else None,
        )

    def _costs(self) -> tuple[dict[str, int], dict[str, int]]:
        """What each point and each session takes on disk. Without it the rest is still worth knowing."""
        try:
            use = self._space.du()
        except WaypointError:
            return {}, {}
        return (
            {cost.id: cost.unique_bytes for cost in use.checkpoints},
            {volume.session: volume.unique_bytes for volume in use.sessions},
        )


def _line(point_id: str, points: Mapping[str, Checkpoint]) -> list[str]:
    """A point and those before it, back to the first."""
    line: list[str] = []
    at: str | None = point_id
    while at is not None and at in points:
        line.append(at)
        at = points[at].parent
    return line
