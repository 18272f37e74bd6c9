"""Safety points that are saved behind the answer.

A restore does not wait until the present is saved. The tree of the present is frozen, which takes a fraction
of a millisecond, and stays as it is, in its box, while the session goes on in another one. Its point is
*pending* from then on (store/pending.py). When the daemon is idle it is saved, and the box ends. An undo that
comes before lets the frozen tree run again: nothing is restored then.

What stands still survives the daemon: its box is frozen by a file of the kernel, and the row says which box
it is and what has to be known to save it. The next daemon saves it. If that fails, nothing runs and nothing
ends: the row says why, the next answers of the daemon do, and `undo` lets it run again.

Not every tree may wait. One that cannot be saved has to be refused before anything moves, and one that shares
a network, a folder or most of the memory with what comes after it must not stand beside it. Those are saved
first, as any other point is.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from waypoint.box.box import Box
from waypoint.box.volume import note_moved_mounts
from waypoint.core import pointfile
from waypoint.core.adoption import BOOT_FILE
from waypoint.core.background import Background
from waypoint.core.boxes import Boxes
from waypoint.core.builder import BoxBuilder
from waypoint.core.capture import Capture, FrozenTree, Wish
from waypoint.core.engine import Engine, TrackedMemory
from waypoint.core.forwards import Forwards
from waypoint.core.live import Doors, Live, new_id
from waypoint.core.observe import ShellPlace
from waypoint.core.registry import DYING_SECONDS, Registry
from waypoint.core.remains import Remains
from waypoint.core.space import DiskSpace
from waypoint.errors import MachineError, WaypointError
from waypoint.kernel import faults, processes
from waypoint.kernel.memory import machine_bytes
from waypoint.model import MALFORMED, Actor, Checkpoint, from_json
from waypoint.store.pending import PendingRow
from waypoint.store.points import NewPoint
from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")

_FREEZE_SECONDS = 0.1
"""A tree that does not stand still so soon is saved first."""
_RETRY_SECONDS = (0.1, 1.0)
"""The pauses between attempts to save one. After the last it is tried every minute."""
_AGAIN_SECONDS = 60.0
_MOST_PENDING = 8
"""Frozen boxes of one home: each holds memory. More restores than this in a row save the present first."""
_MEMORY_SHARE = 4
"""A tree waits only if this part of the free memory holds it."""


@dataclass(frozen=True)
class _Standing:
    """A frozen box of this daemon."""

    box: Box
    memory: TrackedMemory


class Present:
    """The present of a session, standing still. At the end of the block it runs on, unless the session has
    moved (`moved`)."""

    def __init__(self, live: Live, new: NewPoint, tree: FrozenTree, holds: contextlib.ExitStack) -> None:
        self.live, self.new, self.tree, self._holds = live, new, tree, holds
        self.moved = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._holds:
            if not self.moved:
                self.live.box.thaw()


class Safety:
    """The pending safety points of one home."""

    def __init__(
        self,
        registry: Registry,
        builder: BoxBuilder,
        boxes: Boxes,
        capture: Capture,
        engine: Engine,
        doors: Doors,
        forwards: Forwards,
        space: DiskSpace,
        remains: Remains,
        background: Background,
        *,
        may_wait: bool = True,
    ) -> None:
        self._registry, self._store, self._home = registry, registry.store, registry.home
        self._builder, self._boxes, self._capture, self._engine = builder, boxes, capture, engine
        self._doors, self._forwards = doors, forwards
        self._space, self._remains, self._background = space, remains, background
        self._may_wait = may_wait
        """Whether a point may be saved after an answer at all."""
        self._standing: dict[str, _Standing] = {}
        """The boxes of pending points."""
        background.run_every(_AGAIN_SECONDS, self._save_failed, "safety")

    # ---- before a restore --------------------------------------------------------------------

    def freeze(self, row: SessionRow, live: Live, wish: Wish) -> Present | None:
        """Stops the present of a session. None when it has to be saved first. The caller holds
        `live.state`."""
        if not self._can_wait(row, live):
            return None
        self._space.require_room(live.box)
        live.terminal.wait_prompt()
        live.terminal.settle()
        with contextlib.ExitStack() as holds:
            live.terminal.stop_input()
            holds.callback(live.terminal.take_input)
            tickets = holds.enter_context(self._doors.closed_for_dump(live))
            forwarded = holds.enter_context(self._forwards.closed_for_dump(live))
            if not live.box.freeze(_FREEZE_SECONDS):
                return None
            with contextlib.ExitStack() as undo:
                undo.callback(live.box.thaw)
                faults.reach("restore.frozen")
                if not self._engine.is_savable(live.box, forwarded):
                    return None
                note_moved_mounts(live.box.volume, live.box.pid)
                programs = list(live.programs.values())
                tree = FrozenTree(
                    terminal=live.terminal.freeze(),
                    shell=ShellPlace.of(live.terminal),
                    outside_pipes=tuple(inode for program in programs for inode in program.pipes),
                    forwarded=tuple(sorted(forwarded)),
                    tickets=tickets,
                )
                new = self._capture.new_point(row, wish, new_id())
                undo.pop_all()
            return Present(live, new, tree, holds.pop_all())

    def _can_wait(self, row: SessionRow, live: Live) -> bool:
        options = row.options
        if not self._may_wait or live.box.group is None or not options.confined:
            return False
        if options.net == "host" or options.binds:
            return False
        if len(self._store.pending.boxes()) >= _MOST_PENDING:
            return False
        if any(pending.problem for pending in self._store.pending.all(row.id)):
            return False
        rss_bytes = sum(process.rss_bytes for process in processes.below(live.box.pid))
        return rss_bytes <= machine_bytes().get("MemAvailable", 0) // _MEMORY_SHARE

    def record_move(
        self,
        row: SessionRow,
        verb: str,
        *,
        box: str,
        target: Checkpoint,
        before: str | None,
        present: Present | None,
        returning: PendingRow | None,
        undoes: int | None,
        actor: Actor,
    ) -> None:
        """The transaction of a restore. `present`: is pending from here on. `returning`: the session goes
        back into this frozen box, so that its point is none any more: for the history it was gone to and
        then forgotten."""
        with self._store.database.transaction():
            if present:
                tree = msgspec.json.encode(present.tree).decode()
                self._store.pending.add(present.new, present.live.box.id, tree)
                self._store.contacts.assign(row.id, present.new.id)
            if returning:
                self._store.pending.complete(returning.point)
            self._store.operations.record_move(
                row.id, verb, box=box, target=target.id, before=before, undoes=undoes, actor=actor
            )
            if returning:
                self._store.points.remove(returning.point.id)
                self._store.contacts.release(returning.point.id)
        if present:
            self._standing[present.new.id] = _Standing(present.live.box, present.live.memory)
            present.moved = True

    # ---- undo --------------------------------------------------------------------------------

    def stands(self, pending: PendingRow) -> bool:
        """Whether its box is there, and can be run in again."""
        standing = self._standing.get(pending.point.id)
        return standing is not None and standing.box.alive

    def take_back(self, row: SessionRow, pending: PendingRow) -> Live:
        """A session in a frozen box, before it runs again."""
        standing = self._standing[pending.point.id]
        tree = from_json(pending.tree.encode(), FrozenTree)
        return self._boxes.take_back(row, standing.box, tree.terminal, standing.memory)

    def let_run(self, live: Live, point: Checkpoint, pending: PendingRow) -> None:
        """The session has been moved into the box: it runs."""
        del self._standing[point.id]
        tree = from_json(pending.tree.encode(), FrozenTree)
        if tree.tickets:
            self._doors.answer(live, point, tree.tickets)
        live.box.thaw()

    # ---- behind the answer -------------------------------------------------------------------

    def save_when_idle(self, point_id: str) -> Future[None]:
        """Saves a pending point behind the answer; at once when a verb needs it."""
        return self._background.clear_when_idle(
            lambda: self.save(point_id), lambda: self._registry.pending.wanted
        )

    def save(self, point_id: str) -> None:
        """Saves a pending point and ends its box. Nothing happens when a session is in the box again."""
        with self._registry.pending.taken(point_id) as pending:
            row = self._store.sessions.find(pending.point.session) if pending else None
            if pending is None or row is None:
                return
            for pause in (*_RETRY_SECONDS, None):
                try:
                    faults.reach("pending.begun")
                    self._save(row, pending)
                except Exception as error:  # noqa: BLE001 - whatever it is, the box must not be ended
                    if pause is None:
                        self._fail(row, pending, error)
                        return
                    log.warning("a safety point is not saved yet: %s", error)
                    time.sleep(pause)
                else:
                    break
            try:
                faults.reach("pending.saved")
            finally:
                self._end(pending)

    def _save_failed(self) -> None:
        """Tries again what could not be saved: there may be room by now."""
        for pending in self._store.pending.all():
            if pending.problem:
                self.save(pending.point.id)

    def _save(self, row: SessionRow, pending: PendingRow) -> None:
        standing = self._find(pending)
        tree = from_json(pending.tree.encode(), FrozenTree)
        if standing is None or not standing.box.alive:
            self._save_files(row, pending)
            return
        try:
            self._capture.save_frozen(row, pending.point, standing.box, tree, standing.memory)
        except Exception:
            if not standing.box.ends_within(DYING_SECONDS):
                raise
            self._save_files(row, pending)

    def _find(self, pending: PendingRow) -> _Standing | None:
        """Its frozen box; None when that has ended. OSError or MachineError when it cannot be used now."""
        point_id = pending.point.id
        if point_id not in self._standing and pending.box in self._builder.standing():
            found = self._boxes.find_frozen(pending.box)
            if found and not found[0].freeze(_FREEZE_SECONDS):  # a CRIU that was killed has let it run
                raise MachineError("its processes do not stand still")
            if found:
                self._standing[point_id] = _Standing(*found)
        return self._standing.get(point_id)

    def _save_files(self, row: SessionRow, pending: PendingRow) -> None:
        """Its box has ended: its processes are lost, and the files are what they were."""
        point = self._capture.save_files_of(row, pending.point, pending.box)
        self._space.notify(
            f"the processes of {point.label} of session {point.session!r} were lost before they were saved"
            " (their box has ended): it holds the files alone"
        )

    def _fail(self, row: SessionRow, pending: PendingRow, error: Exception) -> None:
        if not isinstance(error, (OSError, WaypointError)):
            log.error("a safety point could not be saved", exc_info=error)
        why = str(error) or repr(error)
        self._store.pending.set_problem(pending.point.id, why)
        if why == pending.problem:
            return
        self._space.notify(
            f"c{pending.point.number} of session {row.name!r} ({pending.point.intent}) could not be saved:"
            f" {why}; its processes stand still, an undo lets them run again"
        )

    def _end(self, pending: PendingRow) -> None:
        """Its point is saved, or wanted no more."""
        standing = self._standing.pop(pending.point.id, None)
        try:
            if standing:
                self._boxes.end_frozen(standing.box, standing.memory)
            elif pid := self._builder.standing().get(pending.box):
                self._builder.remove_unowned(pending.box, pid)
        finally:
            self._remains.delete(self._home.sessions / pending.box)

    # ---- the end of sessions and daemons -----------------------------------------------------

    def drop(self, session_id: str) -> None:
        """A session is removed: its pending points go with it."""
        for known in self._store.pending.all(session_id):
            with self._registry.pending.taken(known.point.id) as pending:
                if pending:
                    self._store.pending.remove(pending.point.id)
                    self._end(pending)

    def save_all(self) -> None:
        """Before all boxes end. Of one that cannot be saved the files are kept, if they can be."""
        for known in self._store.pending.all():
            self.save(known.point.id)
            with self._registry.pending.taken(known.point.id) as pending:
                row = self._store.sessions.find(pending.point.session) if pending else None
                if pending and row:
                    self._give_up(row, pending)

    def _give_up(self, row: SessionRow, pending: PendingRow) -> None:
        if standing := self._standing.pop(pending.point.id, None):
            self._boxes.end_frozen(standing.box, standing.memory)
        try:
            self._save_files(row, pending)
        except (OSError, WaypointError) as error:
            self._lose(row, pending, f"it could not be saved: {error}")
        else:
            self._end(pending)

    def _lose(self, row: SessionRow, pending: PendingRow, why: str) -> None:
        self._store.pending.remove(pending.point.id)
        self._remains.delete(self._home.sessions / pending.box)
        self._space.notify(
            f"c{pending.point.number} of session {row.name!r} ({pending.point.intent}) is lost: {why}"
        )

    def recover(self, standing: Collection[str]) -> None:
        """What an earlier daemon has left pending."""
        for pending in self._store.pending.all():
            row = self._store.sessions.find(pending.point.session)
            if row is None:
                continue
            try:
                self._recover(row, pending, standing)
            except (OSError, WaypointError, *MALFORMED) as error:
                self._fail(row, pending, error)

    def start(self) -> None:
        """Saves what was left pending. To be called when everything else of an earlier daemon is in order."""
        for pending in self._store.pending.all():
            self.save_when_idle(pending.point.id)

    def _recover(self, row: SessionRow, pending: PendingRow, standing: Collection[str]) -> None:
        point_id = pending.point.id
        content = pointfile.read(self._home.checkpoints / point_id)
        if content and content.point.id == point_id:
            # The daemon ended between the rename and the row.
            point = self._store.pending.complete(content.point)
            self._capture.tell_saved(row, pending.box, point)
            self._end(pending)
            return
        if pending.box in standing:
            self._find(pending)
        elif not (self._home.run / BOOT_FILE).exists() or not (self._home.sessions / pending.box).is_dir():
            self._lose(row, pending, "the machine went down before it was saved")
            return
        self._store.pending.set_problem(point_id, None)
