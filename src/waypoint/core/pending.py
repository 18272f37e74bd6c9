"""Which safety points are still pending, and which thread has one.

A pending point is a box that stands still (core/safety.py). One thread at a time may save it or let it run
again. A verb that needs it as a point waits here until it is one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from waypoint.api.hints import Do, Hint
from waypoint.errors import NotFound, NotSaved, SessionBusy
from waypoint.kernel import faults, locks
from waypoint.model import Checkpoint
from waypoint.store import Store
from waypoint.store.pending import PendingRow

_SECONDS = 120.0
"""How long a verb waits for another thread that saves one: longer than CRIU may do nothing."""


class PendingPoints:
    """The pending points of one home."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = locks.condition("pending points")
        self._taken: set[str] = set()
        self._waiters = 0

    @property
    def wanted(self) -> bool:
        """Whether a verb waits for one to be saved."""
        return self._waiters > 0

    @contextlib.contextmanager
    def taken(self, point_id: str) -> Iterator[PendingRow | None]:
        """It belongs to this thread alone, to be saved or to be let run again. None when it is not pending
        (any more)."""
        with self._changed:
            free = self._changed.wait_for(lambda: point_id not in self._taken, faults.limit(_SECONDS))
            row = self._store.pending.find(point_id)
            if row and not free:
                raise SessionBusy("the safety checkpoint is being saved", hint="try again in a moment")
            if row:
                self._taken.add(point_id)
        try:
            yield row
        finally:
            if row:
                with self._changed:
                    self._taken.discard(point_id)
                    self._changed.notify_all()

    def saved(self, point: Checkpoint) -> Checkpoint:
        """The same point as soon as it is saved. NotSaved when it cannot be."""
        with self._changed:
            self._waiters += 1
            try:
                self._changed.wait_for(lambda: self._is_settled(point.id), faults.limit(_SECONDS))
            finally:
                self._waiters -= 1
            row = self._store.pending.find(point.id)
        if row:
            why = row.problem or "it takes longer than it should"
            raise NotSaved(
                f"{point.label} of session {point.session!r} is not saved: {why}",
                hint=Hint("its processes stand still; ", Do("undo", session=point.session), " may go there"),
            )
        if saved := self._store.points.find(point.id):
            return saved
        raise NotFound(f"{point.label} is no point any more", hint="the session has gone back there itself")

    def _is_settled(self, point_id: str) -> bool:
        row = self._store.pending.find(point_id)
        return row is None or (row.problem is not None and point_id not in self._taken)
