"""When points are safe from a power cut.

The order on the disk is: the data of a point, then its row, then the mark that says so. The pool is synced
first, the database after it. What was written meanwhile belongs to the next round.
"""

from __future__ import annotations

from waypoint.core.background import Background
from waypoint.kernel import faults, locks
from waypoint.kernel.pool.protocol import Pool
from waypoint.store import Store


class Durability:
    """Brings the points of one home to the disk."""

    def __init__(self, pool: Pool, store: Store, background: Background) -> None:
        self._pool, self._store, self._background = pool, store, background
        self._turn = locks.lock("durability")

    def reach(self) -> None:
        """Returns when every point that has a row by now is durable."""
        with self._turn:
            points = self._store.points.not_durable()
            if not points:
                return  # another thread has done it
            faults.reach("durable.begun")
            self._pool.sync()
            faults.reach("durable.data")
            self._store.sync()
            faults.reach("durable.rows")
            self._store.points.set_durable(points)
            faults.reach("durable.marked")

    def reach_soon(self) -> None:
        """Does that after the answer: at the latest 0.3 s after it the data begins to be written."""
        self._background.sync_when_idle(self.reach)
