"""What points cost: the space that would come back with them gone.

Snapshots and images share what they have in common, so a cost depends on the points around it. It is
computed in kernel/pool/extents.py, which takes some milliseconds for a point and needs everything on the
disk. `du` and a dry run wait for that. Forgetting does not: what each point costs is measured when the daemon
is idle and kept in its row, and measured again when a point beside it has come or gone (store/points.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from waypoint.core.background import COSTS, Background
from waypoint.core.registry import Registry
from waypoint.kernel import locks
from waypoint.kernel.pool import extents
from waypoint.kernel.pool.extents import Growth, Space
from waypoint.kernel.pool.protocol import Pool
from waypoint.model import Checkpoint, Cost, VolumeUse
from waypoint.store.sessions import SessionRow

_MEASURE_SECONDS = 20.0
_IDLE_SECONDS = 0.5
"""For one point that is measured when the daemon is idle."""
_MOST_BESIDE = 8
"""With so many points that share what a point has, most of it is found to be shared."""
_BATCH = 16
"""So many are measured before other background work has its turn."""


class Costs:
    """What the points of one home cost, measured and remembered."""

    def __init__(self, registry: Registry, pool: Pool, background: Background) -> None:
        self._registry, self._home, self._store, self._pool = registry, registry.home, registry.store, pool
        self._background = background
        self._lock = locks.lock("costs")
        self._waits = False

    # ---- measured now ------------------------------------------------------------------------

    def freed(self, points: Sequence[Checkpoint], *, seconds: float) -> Space:
        """What would come back with all these points gone."""
        if not points:
            return Space()
        self._settle()
        return self._freed([point.id for point in points], self._lines(), seconds)

    def measure(self, row: SessionRow | None) -> tuple[list[Cost], list[VolumeUse]]:
        """What each point and each session (of one, or of all) uniquely costs."""
        self._settle()
        left, lines = _countdown(_MEASURE_SECONDS), self._lines()
        costs, volumes = [], []
        for point in self._store.points.all(row.id if row else None):
            files = self._tree(lines.growth(point.id, {point.id}), left())
            beside = lines.beside(point.id, {point.id})
            memory = self._folder(self._images(point.id), beside, left())
            costs.append(_cost(point, files, memory))
        for session in self._store.sessions.all():
            if session.box and (row is None or session.id == row.id):
                head = self._files(session.head) if session.head else None
                space = self._tree(Growth(self._home.sessions / session.box, head), left())
                volumes.append(
                    VolumeUse(session=session.name, unique_bytes=space.total_bytes, exact=space.exact)
                )
        return costs, volumes

    def _settle(self) -> None:
        """What was written just now has no place on the disk yet, what was deleted has not left it yet."""
        self._pool.sync()
        self._pool.settle()

    def _freed(self, point_ids: Sequence[str], lines: _Lines, seconds: float) -> Space:
        images = [self._images(point_id) for point_id in point_ids]
        if self._pool.kind != "btrfs":
            trees = [self._files(point_id) for point_id in point_ids]
            return extents.freed_by_walk([*trees, *images], seconds=seconds)
        group = set(point_ids)
        growths = [lines.growth(point_id, group) for point_id in point_ids]
        beside = dict.fromkeys(other for point_id in point_ids for other in lines.beside(point_id, group))
        staying = [self._images(other) for other in beside]
        return extents.freed(growths, images, staying=staying, seconds=seconds)

    def _tree(self, growth: Growth, seconds: float) -> Space:
        if self._pool.kind == "btrfs":
            return extents.freed([growth], seconds=seconds)
        return extents.freed_by_walk([growth.path], seconds=seconds)

    def _folder(self, folder: Path, beside: Sequence[str], seconds: float) -> Space:
        if self._pool.kind == "btrfs":
            staying = [self._images(other) for other in beside]
            return extents.freed((), [folder], staying=staying, seconds=seconds)
        return extents.freed_by_walk([folder], seconds=seconds)

    def _files(self, point_id: str) -> Path:
        return self._home.checkpoints / point_id / "files"

    def _images(self, point_id: str) -> Path:
        return self._home.checkpoints / point_id / "images"

    def _lines(self) -> _Lines:
        return _Lines(
            self._store.points.parents(), self._store.sessions.all(), self._files, self._home.sessions
        )

    # ---- remembered --------------------------------------------------------------------------

    def remembered(self, points: Sequence[Checkpoint]) -> int:
        """The sum of what these points cost when they were measured last; 0 for one that never was. At least
        so much comes back with all of them gone, unless a neighbour has come since."""
        known = self._store.points.costs([point.id for point in points])
        return sum(known.values())

    def measure_when_idle(self) -> None:
        """Measures, when the daemon is idle, the points that are not measured as they are now."""
        with self._lock:
            if self._waits:
                return
            self._waits = True
        self._background.run_when_calm(self._measure_some, COSTS)

    def _measure_some(self) -> None:
        with self._lock:
            self._waits = False
        # A session still writes over what it shares with the point that it stands on: that point comes later.
        heads = {row.head for row in self._store.sessions.all()}
        waiting = [point_id for point_id in self._store.points.without_cost() if point_id not in heads]
        lines = self._lines()
        for point_id in waiting[:_BATCH]:
            if self._background.busy:
                break
            space = self._freed([point_id], lines, _IDLE_SECONDS)
            self._store.points.set_cost(point_id, space.total_bytes)
        if waiting[_BATCH:] or (waiting and self._background.busy):
            self.measure_when_idle()


def _countdown(seconds: float) -> Callable[[], float]:
    """For several questions that share a time limit: how long the next may take."""
    deadline = time.monotonic() + seconds
    return lambda: max(0.02, min(2.0, deadline - time.monotonic()))


def _cost(point: Checkpoint, files: Space, memory: Space) -> Cost:
    return Cost(
        id=point.id,
        session=point.session,
        label=point.label,
        name=point.name,
        kind=point.kind,
        created_at=point.created_at,
        pinned=point.pinned,
        unique_bytes=files.total_bytes + memory.total_bytes,
        files_bytes=files.total_bytes,
        processes_bytes=memory.total_bytes,
        exact=files.exact and memory.exact,
    )


class _Lines:
    """Which tree grew from which: checkpoints from their parents, sessions from where they stand."""

    def __init__(
        self,
        parents: Mapping[str, str | None],
        rows: Sequence[SessionRow],
        files: Callable[[str], Path],
        volumes: Path,
    ) -> None:
        self._files, self._parents = files, parents
        self._children: dict[str, list[str]] = {}
        self._volumes: dict[str, list[Path]] = {}
        for point_id, parent in parents.items():
            if parent:
                self._children.setdefault(parent, []).append(point_id)
        for row in rows:
            if row.head and row.box:
                self._volumes.setdefault(row.head, []).append(volumes / row.box)

    def growth(self, point_id: str, going: Collection[str]) -> Growth:
        """A point between its parent and the nearest that grew from it and stay when `going` go."""
        parent = self._parents.get(point_id)
        since = self._files(parent) if parent and parent in self._parents else None
        return Growth(self._files(point_id), since, tuple(self._later(point_id, going)))

    def beside(self, point_id: str, going: Collection[str]) -> list[str]:
        """The points next to it that stay when `going` go."""
        parent = self._parents.get(point_id)
        before = [parent] if parent and parent in self._parents and parent not in going else []
        return [*before, *self._children_staying(point_id, going)][:_MOST_BESIDE]

    def _later(self, point_id: str, going: Collection[str]) -> Iterator[Path]:
        line = [point_id, *self._line_going(point_id, going)]
        yield from (volume for going_id in line for volume in self._volumes.get(going_id, ()))
        yield from map(self._files, self._children_staying(point_id, going))

    def _line_going(self, point_id: str, going: Collection[str]) -> Iterator[str]:
        """The points that grew from it, one from the other, as far as they go too."""
        waiting = [point_id]
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child in going:
                    waiting.append(child)
                    yield child

    def _children_staying(self, point_id: str, going: Collection[str]) -> Iterator[str]:
        for parent in (point_id, *self._line_going(point_id, going)):
            yield from (child for child in self._children.get(parent, ()) if child not in going)
