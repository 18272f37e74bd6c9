"""What a daemon does first: it takes over the boxes that stand, and clears away what an earlier one left.

A daemon may die at any moment. Boxes live on under their keepers; everything else is in the pool and in the
database. By the time this runs every observer exists: what happened while no daemon ran is judged, counted
and written down like everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from waypoint.box.box import drop_inside
from waypoint.box.keeper import OtherProtocol
from waypoint.core.adoption import Adoption
from waypoint.core.background import Background
from waypoint.core.boxes import Boxes
from waypoint.core.builder import BoxBuilder
from waypoint.core.cards import Cards
from waypoint.core.contacts import Contacts
from waypoint.core.durability import Durability
from waypoint.core.gate import Gate
from waypoint.core.registry import LeftAlone, Registry
from waypoint.core.remains import Remains
from waypoint.core.removal import Removals
from waypoint.core.safety import Safety
from waypoint.errors import WaypointError
from waypoint.kernel import faults
from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")

_AGAIN_SECONDS = 0.5


class Recovery:
    """Brings the home of a daemon that died, or was stopped, into order."""

    def __init__(
        self,
        registry: Registry,
        builder: BoxBuilder,
        boxes: Boxes,
        contacts: Contacts,
        gate: Gate,
        cards: Cards,
        remains: Remains,
        safety: Safety,
        adoption: Adoption,
        removals: Removals,
        durability: Durability,
        background: Background,
    ) -> None:
        self._registry, self._store, self._home = registry, registry.store, registry.home
        self._builder, self._boxes, self._contacts = builder, boxes, contacts
        self._gate, self._cards, self._remains = gate, cards, remains
        self._safety = safety
        self._adoption, self._removals, self._durability = adoption, removals, durability
        self._background = background

    def run(self) -> None:
        """All of it, before the first request is served."""
        self._gate.close_interrupted()  # before new effects come: those of commands that ended meanwhile
        faults.reach("start.closed")
        standing = self._builder.standing()
        faults.reach("start.listed")
        live_rows = [row for row in self._store.sessions.all() if row.state == "live"]
        dead = [row for row in live_rows if not self._take_over(row, standing)]
        owned = {live.box.id for live in self._registry.lives()}
        owned |= {alone.box for alone in self._registry.left_alone.values()}
        self._safety.recover(standing)
        faults.reach("start.pending")
        owned |= self._store.pending.boxes()
        self._contacts.close_lost(owned, {row.box: row.id for row in dead if row.box})
        for box_id, pid in standing.items():
            if box_id not in owned:
                log.info("ending box %s, which belongs to no session", box_id)
                self._builder.remove_unowned(box_id, pid)
                faults.reach("start.unowned")
        self._builder.remove_groups(owned)
        self._clear_run_folder(owned)
        faults.reach("start.cleared")
        self._adoption.run()
        faults.reach("start.adopted")
        self._removals.finish()
        self._remains.delete_all(self._remains.unknown())
        faults.reach("start.deleted")
        self._durability.reach_soon()
        self._store.points.drop_running_verdicts()
        self._cards.write_missing()
        if self._awaited():
            self._background.run_until_done(_AGAIN_SECONDS, self._try_again, "take-over")

    def _take_over(self, row: SessionRow, standing: Mapping[str, int]) -> bool:
        """False when its box is gone: then the session is dead and can be restored. A box that stands holds
        what is in no point, so it is left alone whatever fails."""
        if row.box and row.box in standing:
            pid = standing[row.box]
            try:
                if box := self._builder.find(row.box):
                    self._boxes.take_over(row, box)
                    return True
            except OtherProtocol as error:
                log.warning("session %s is left alone: %s", row.name, error.strerror)
                self._registry.left_alone[row.id] = LeftAlone(row.box, pid, str(error.strerror), again=False)
                return True
            except (OSError, WaypointError) as error:
                if row.id not in self._registry.left_alone:
                    log.exception("session %s could not be taken over and is left alone", row.name)
                if row.box in self._builder.standing():
                    self._registry.left_alone[row.id] = LeftAlone(row.box, pid, str(error), again=True)
                    return True
        self._store.sessions.set_state(row.id, "dead", box=row.box)
        return False

    def _awaited(self) -> list[str]:
        """The sessions whose boxes are still to be taken over."""
        return [session for session, alone in self._registry.left_alone.items() if alone.again]

    def _try_again(self) -> bool:
        """True when no box is left to be taken over: each was, or has ended."""
        for session_id in self._awaited():
            with self._registry.moving(session_id, alone=True):
                alone = self._registry.left_alone.get(session_id)
                row = self._store.sessions.find(session_id)
                if not alone or not row:
                    continue  # it was ended meanwhile
                standing = self._builder.standing()
                if not self._take_over(row, standing):
                    self._contacts.close_lost(standing, {alone.box: row.id})
                    self._boxes.end_left_alone(alone.box, alone.pid)
                    row = self._registry.find(session_id)
                elif not self._registry.running(session_id):
                    continue
                self._registry.leave_alone_no_more(session_id)
                log.info("session %s is %s", row.name, self._registry.describe(row).state)
        return not self._awaited()

    def _clear_run_folder(self, owned: set[str]) -> None:
        run = self._home.run
        for path in (*run.glob("*.sock"), *run.glob("*.terminal"), *run.glob(".*.terminal.*")):
            if path != self._home.socket and path.stem not in owned:
                path.unlink(missing_ok=True)
        # (A daemon that was killed while it wrote a mount table has left `.BOX.mounts.XXXXXXXX`.)
        tables = (*run.glob("*.mounts"), *run.glob(".*.mounts.*"))
        for path in (*run.glob("*.inside"), *tables, *run.glob("*.pages*")):
            box_id = path.name.removeprefix(".").partition(".")[0]
            if box_id not in owned:
                drop_inside(self._home, box_id)
