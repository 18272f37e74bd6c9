"""Removing sessions: what goes with them, and what is handed over to sessions that need it.

The boxes end first. Then one transaction removes the rows and gives every point that another session needs
to that session (history/handover.py): whatever happens in between, no session loses the point that it stands
on. Bytes go last. The folders of points that were handed over name their new session some moments later; the
table `handed_over` remembers which still have to be written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from waypoint.core.background import Background
from waypoint.core.boxes import Boxes
from waypoint.core.digests import Digests
from waypoint.core.forwards import Forwards
from waypoint.core.live import Twin
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.core.restore import Restore
from waypoint.core.safety import Safety
from waypoint.core.spares import Spares
from waypoint.history import handover
from waypoint.history.handover import Handover, Owner
from waypoint.kernel import faults
from waypoint.model import Checkpoint, HandedOver, Removal
from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")


class Removals:
    """Removes the sessions of one home."""

    def __init__(
        self,
        registry: Registry,
        boxes: Boxes,
        restore: Restore,
        safety: Safety,
        remains: Remains,
        forwards: Forwards,
        spares: Spares[Twin],
        digests: Digests,
        background: Background,
    ) -> None:
        self._registry, self._store, self._home = registry, registry.store, registry.home
        self._boxes, self._restore, self._safety, self._remains = boxes, restore, safety, remains
        self._forwards, self._spares, self._digests = forwards, spares, digests
        self._background = background

    def plan(self, rows: Sequence[SessionRow]) -> Removal:
        """What removing these sessions would do."""
        rows = list({row.id: row for row in rows}.values())
        with self._store.database.transaction():
            return self._described(rows, self._plan(rows), self._points_of(rows))

    def remove(self, rows: Sequence[SessionRow]) -> Removal:
        """Ends sessions and forgets them with their points, all of them at once, but for the points that
        other sessions need."""
        rows = list({row.id: row for row in rows}.values())
        with self._registry.removing([row.id for row in rows]):
            for row in rows:
                self._end(row)
            with self._registry.settled(rows), self._store.database.transaction():
                rows = [self._registry.find(row.id) for row in rows]
                points, plans = self._points_of(rows), self._plan(rows)
                removal = self._described(rows, plans, points)
                self._store.sessions.remove(*(row.id for row in rows), handed_over=plans)
            stay = {plan.point.id for plan in plans}
            going = [point for point in points if point.id not in stay]
            with self._remains.going(self._trees_of(rows, going)):
                faults.reach("rm.removed")
                self._store.sync()  # before the first byte goes: after a power cut no point of it comes back
                faults.reach("rm.synced")
                for row in rows:
                    self._restore.wait_cleared(row.id)
                    self._spares.want(row.id, ())
                self._spares.drop([point.id for point in going])
        for row in rows:
            self._registry.drop_turn(row.id)
        for receiver in {plan.to for plan in plans}:
            self._spares.update(receiver)
        if plans:
            self._background.run_when_idle(self.finish)
        self._background.run(lambda: log.debug("%s bytes of blobs went", self._store.events.sweep_blobs()))
        return removal

    def _end(self, row: SessionRow) -> None:
        with self._registry.moving(row.id, removing=True):
            self._forwards.end_all(row.id)
            if live := self._registry.running(row.id):
                with live.ending():
                    self._boxes.end(live, "the session was removed")
                    faults.reach("rm.ended")
            self._safety.drop(row.id)

    # ---- what is handed over -----------------------------------------------------------------

    def _points_of(self, rows: Sequence[SessionRow]) -> list[Checkpoint]:
        return [point for row in rows for point in self._store.points.all(row.id)]

    def _plan(self, rows: Sequence[SessionRow]) -> list[Handover]:
        owners = [
            Owner(
                id=row.id,
                name=row.name,
                options=row.options,
                beginning=row.beginning,
                head=row.head,
                forked_from=row.forked_from,
                next_number=self._store.points.next_number(row.id),
                tags=self._store.points.tags(row.id),
            )
            for row in self._store.sessions.all()
        ]
        return handover.plan(owners, self._store.points.all(), {row.id for row in rows})

    def _described(
        self, rows: Sequence[SessionRow], plans: Sequence[Handover], points: Sequence[Checkpoint]
    ) -> Removal:
        """The same in the words of the API."""
        return Removal(
            removed=tuple(row.name for row in rows),
            handed_over=tuple(
                HandedOver(
                    was=plan.was,
                    why=plan.why,
                    checkpoint=msgspec.structs.replace(
                        plan.point, session=plan.session, label=f"c{plan.number}", name=plan.name
                    ),
                )
                for plan in plans
            ),
            forgotten=len(points) - len(plans),
        )

    def _trees_of(self, rows: Sequence[SessionRow], points: Sequence[Checkpoint]) -> Iterator[Path]:
        """What only sessions that were removed have used."""
        for row in rows:
            if row.box:
                yield self._home.sessions / row.box
        for point in points:
            yield self._home.checkpoints / point.id
        others = {other.beginning for other in self._store.sessions.all()}
        for beginning in dict.fromkeys(row.beginning for row in rows):
            if beginning and beginning not in others:
                yield self._home.beginnings / beginning

    # ---- what their folders say --------------------------------------------------------------

    def finish(self) -> None:
        """The folders of points that were handed over, perhaps by an earlier daemon, name their session.
        Until then the row counts."""
        written = [
            (point_id, session_id)
            for point_id in self._store.points.handed_over()
            if (session_id := self._digests.write_point_file(point_id))
        ]
        if written:
            faults.reach("rm.named")
            self._registry.pool.sync()
            self._store.points.drop_handed_over(written)
