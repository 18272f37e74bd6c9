"""Starting, parking, stopping and removing sessions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from waypoint.api.hints import Do, Hint
from waypoint.box.plan import check_options, resolve_binds
from waypoint.core.background import Background
from waypoint.core.boxes import Boxes
from waypoint.core.builder import BoxBuilder
from waypoint.core.capture import Capture, Wish
from waypoint.core.copies import Copies
from waypoint.core.live import Twin, new_id
from waypoint.core.observe import look_at_shell
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.core.restore import Restore
from waypoint.core.spares import Spares
from waypoint.errors import AlreadyExists, CannotRestore
from waypoint.history import refs
from waypoint.kernel import faults
from waypoint.kernel.memory import machine_bytes
from waypoint.model import BoxOptions, Checkpoint, Session, Size
from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")


class Sessions:
    """Begins and ends the sessions of one home."""

    def __init__(
        self,
        registry: Registry,
        builder: BoxBuilder,
        boxes: Boxes,
        capture: Capture,
        copies: Copies,
        restore: Restore,
        remains: Remains,
        spares: Spares[Twin],
        background: Background,
    ) -> None:
        self._registry, self._store, self._home = registry, registry.store, registry.home
        self._builder, self._boxes, self._capture, self._restore = builder, boxes, capture, restore
        self._copies = copies
        self._remains, self._spares, self._background = remains, spares, background

    def new(self, name: str | None, options: BoxOptions, size: Size, *, join: bool = False) -> Session:
        """Starts a session: a box over its base with a shell at its prompt. `join`: one of that name that
        exists is returned as it is."""
        if name and join and (row := self._store.sessions.find(name)):
            return self._registry.describe(row)
        if name is None:
            taken = {row.name for row in self._store.sessions.all()}
            name = next(f"s{n}" for n in range(1, len(taken) + 2) if f"s{n}" not in taken)
        refs.check_name(name, "session")
        if self._store.sessions.find(name):
            raise AlreadyExists(
                f"there is a session {name!r} already",
                hint=Hint("attach to it with ", Do("attach", session=name), ", or choose another name"),
            )
        base = self._registry.base_of(options)
        check_options(options, base, self._home)
        options = resolve_binds(options)
        volume = self._home.sessions / new_id()
        with contextlib.ExitStack() as undo:
            undo.callback(self._remains.delete, volume)
            self._builder.make_volume(volume, name, options, base)
            faults.reach("new.volume")
            live = self._boxes.build(new_id(), volume, name, options, size)
            undo.callback(self._boxes.end, live, "the session could not be started")
            live.box.keeper.start_anchor()
            faults.reach("new.anchored")
            self._boxes.start_shell(live, "/root" if (base / "root").is_dir() else "/")
            faults.reach("new.shell")
            live.terminal.wait_ready()
            faults.reach("new.ready")
            beginning = self._home.beginnings / live.session_id
            undo.callback(self._remains.delete, beginning)
            self._registry.pool.snapshot(volume, beginning, readonly=True)
            faults.reach("new.beginning")
            row = self._store.sessions.add(
                live.session_id,
                name,
                options,
                box=live.box.id,
                first_shell=look_at_shell(live.box, live.terminal),
                beginning=beginning.name,
            )
            faults.reach("new.stored")
            self._registry.add(live)
            self._registry.trajectory.adopt(live.stream)
            undo.pop_all()
        return self._registry.describe(row)

    def park(self, row: SessionRow) -> tuple[Session, Checkpoint]:
        """A checkpoint, and when that is durable the processes end: memory is free, a restore brings it
        back."""
        with self._registry.moving(row.id), self._registry.steady(row) as live:
            row = self._registry.find(row.id)
            point = self._capture.take(
                row, live, Wish("parked", kind="park", actor="automatic", durable=True)
            )
            faults.reach("park.taken")
            self._prove(point)
            faults.reach("park.proven")
            self._boxes.end(live, "the session was parked")
            faults.reach("park.ended")
            self._store.sessions.set_state(row.id, "parked", box=None)
            with self._remains.going([self._home.sessions / row.box] if row.box else []):
                faults.reach("park.stored")
                self._spares.update(row.id)
        return self._registry.describe(self._registry.find(row.id)), point

    def _prove(self, point: Checkpoint) -> None:
        """Before processes end, their point must be known to come back. Where memory does not suffice for
        both at once, the point stays unproven, and `show` says so."""
        if point.size_bytes > machine_bytes().get("MemAvailable", 0) // 2:
            log.warning("%s of session %s is too large to be proven", point.label, point.session)
            return
        try:
            self._copies.prove(point.id)
        except CannotRestore as error:
            raise CannotRestore(
                f"session {point.session!r} was not parked: {error.message}",
                hint=Hint("its processes run on; end the one that cannot be restored, and park again"),
                **error.details,
            ) from error

    def remove(self, row: SessionRow) -> None:
        """Ends a session and forgets it, with its points."""
        with self._registry.moving(row.id):
            row = self._registry.find(row.id)
            points = self._store.points.all(row.id)
            if live := self._registry.running(row.id):
                with live.state:
                    self._boxes.end(live, "the session was removed")
                    faults.reach("rm.ended")
            self._store.sessions.remove(row.id)
            with self._remains.going(self._trees_of(row, points)):
                faults.reach("rm.removed")
                self._store.sync()  # before the first byte goes: after a power cut no point of it comes back
                faults.reach("rm.synced")
                self._restore.wait_cleared(row.id)
                self._spares.want(row.id, ())
                self._spares.drop([point.id for point in points])
        self._registry.drop_turn(row.id)
        self._background.run(lambda: log.debug("%s bytes of blobs went", self._store.events.sweep_blobs()))

    def _trees_of(self, row: SessionRow, points: Sequence[Checkpoint]) -> Iterator[Path]:
        """What only a session that was removed has used."""
        if row.box:
            yield self._home.sessions / row.box
        for point in points:
            yield self._home.checkpoints / point.id
        others = self._store.sessions.all()
        if row.beginning and not any(other.beginning == row.beginning for other in others):
            yield self._home.beginnings / row.beginning

    def stop_all(self) -> None:
        """Ends every box; what was live is dead afterwards and can be restored."""
        for session_id, alone in [*self._registry.left_alone.items()]:
            self._builder.remove_unowned(alone.box, alone.pid)
            del self._registry.left_alone[session_id]
            self._store.sessions.set_state(session_id, "dead", box=alone.box)
        for known in self._store.sessions.all():
            with self._registry.moving(known.id):
                row, live = self._store.sessions.find(known.id), self._registry.running(known.id)
                if row and live:
                    with live.state:
                        self._boxes.end(live, "the session was stopped")
                        faults.reach("stop.ended")
                        self._store.sessions.set_state(row.id, "dead", box=row.box)
