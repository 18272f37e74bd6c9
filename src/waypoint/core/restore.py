"""Taking a session back to a point, and taking that back: restore, undo, redo.

The old tree ends only when the new one runs, and one transaction moves the session: a restore that fails has
changed nothing. What is left of the old box is saved and cleared away after the answer (core/safety.py).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path

from waypoint.api.hints import Arg, Do, Hint
from waypoint.core.background import Background
from waypoint.core.boxes import Boxes
from waypoint.core.capture import Capture, Wish
from waypoint.core.copies import Copies, Copy
from waypoint.core.forwards import Forwards
from waypoint.core.live import Live, Twin
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.core.safety import Present, Safety
from waypoint.core.spares import Spares
from waypoint.errors import CannotCheckpoint, NotFound
from waypoint.kernel import faults
from waypoint.model import Actor, Checkpoint, Restored
from waypoint.store.operations import UNDOABLE
from waypoint.store.pending import PendingRow
from waypoint.store.sessions import SessionRow

_MOST_UNCLEARED = 8
"""How many ended boxes of one session may wait until they are cleared away."""
_CLEARING_SECONDS = 60.0
_ELSEWHERE = "the session was restored to another point meanwhile"


class Restore:
    """Moves the sessions of one home between their points."""

    def __init__(
        self,
        registry: Registry,
        boxes: Boxes,
        copies: Copies,
        capture: Capture,
        safety: Safety,
        remains: Remains,
        forwards: Forwards,
        spares: Spares[Twin],
        background: Background,
    ) -> None:
        self._registry, self._store, self._boxes = registry, registry.store, boxes
        self._copies, self._capture, self._safety, self._remains = copies, capture, safety, remains
        self._forwards, self._spares, self._background = forwards, spares, background
        self._clearing: dict[str, deque[Future[None]]] = {}
        """By session, the clearing away of the boxes it was in before its last restores."""

    def to(
        self,
        row: SessionRow,
        ref: str,
        *,
        safety: bool = True,
        files_only: bool = False,
        verb: str = "restore",
        undoes: int | None = None,
        actor: Actor = "person",
    ) -> Restored:
        """The walk of a restore. `safety`: the present is kept, so that it can be undone."""
        point = self._registry.point(row, ref)
        with self._registry.moving(row.id), self._registry.using(point, arriving=True) as point:
            return self._move(
                row.id,
                point,
                None,
                safety=safety,
                files_only=files_only,
                verb=verb,
                undoes=undoes,
                actor=actor,
            )

    def _move(
        self,
        session_id: str,
        point: Checkpoint,
        returning: PendingRow | None,
        *,
        safety: bool = True,
        files_only: bool = False,
        verb: str,
        undoes: int | None,
        actor: Actor,
    ) -> Restored:
        """`returning`: the point is pending, and belongs to this thread: its frozen box runs again."""
        started = time.perf_counter()
        with self._present(session_id) as old, contextlib.ExitStack() as still:
            row = self._registry.find(session_id)
            self._keep_pace(row.id)
            present, kept = None, None
            if old and safety:
                wish = Wish(f"before {verb} to {point.name or point.label}", kind="safety", actor="automatic")
                present = self._freeze(row, old, wish)
                if present:
                    still.enter_context(present)
                else:
                    kept = self._keep_present(row, old, wish)
            faults.reach("restore.kept")
            copy = self._bring_up(row, point, returning, files_only=files_only, old=old)
            live = copy.live
            try:
                faults.reach("restore.copied")
                with self._registry.trajectory.handover(live.stream):
                    self._safety.record_move(  # from here on the session is in the new box
                        row,
                        verb,
                        box=live.box.id,
                        target=point,
                        before=present.new.id if present else kept.id if kept else None,
                        present=present,
                        returning=returning,
                        undoes=undoes,
                        actor=actor,
                    )
            except BaseException:
                if returning:
                    self._boxes.leave_frozen(live, "the session could not be moved")
                else:
                    self._boxes.end(live, "the session could not be moved")
                    self._remains.delete(live.box.volume)
                raise
            faults.reach("restore.moved")
            self._registry.add(live)
            if returning:
                self._safety.let_run(live, point, returning)
            if old:
                live.terminal.take_watchers(old.terminal)
            if present:
                kept = self._store.pending.as_point(present.new.id)
            ready_ms = (time.perf_counter() - started) * 1000
            self._leave(row, old, present)
        self._background.run(lambda: self._spares.update(row.id))
        return Restored(
            session=self._registry.describe(self._registry.find(row.id)),
            checkpoint=point,
            ready_ms=round(ready_ms, 3),
            safety=kept,
            spare=copy.spare,
            base_changes=copy.base_changes,
        )

    def _bring_up(
        self,
        row: SessionRow,
        point: Checkpoint,
        returning: PendingRow | None,
        *,
        files_only: bool,
        old: Live | None,
    ) -> Copy:
        size = old.terminal.size if old else None
        if not returning:
            return self._copies.bring_up(
                row.name, row.options, point, row.id, files_only=files_only, size=size
            )
        live = self._safety.take_back(row, returning)
        if size:
            live.terminal.resize(size)
        return Copy(live)

    @contextlib.contextmanager
    def _present(self, session_id: str) -> Iterator[Live | None]:
        """The session as it runs, if it does; no other verb changes it meanwhile."""
        live = self._registry.running(session_id)
        if live and not live.box.alive:
            self._boxes.record_death(live)
            live = None
        if live is None:
            yield None
            return
        with live.state:
            yield None if live.ended.is_set() else live  # it may have ended while this waited

    def _freeze(self, row: SessionRow, live: Live, wish: Wish) -> Present | None:
        with self._registry.death_named(row, live):
            return self._safety.freeze(row, live, wish)

    def _keep_present(self, row: SessionRow, live: Live, wish: Wish) -> Checkpoint:
        try:
            with self._registry.death_named(row, live):
                return self._capture.take(row, live, wish)
        except CannotCheckpoint as error:
            error.hint = Hint(
                "the present could not be saved first: ",
                Arg("restore", safety=False),
                " restores without, and it is lost",
            )
            raise

    def _leave(self, row: SessionRow, old: Live | None, present: Present | None) -> None:
        """Nothing of the old box runs from here on. What is left of it is saved and cleared away after the
        answer."""
        if present:
            self._boxes.leave_frozen(present.live, _ELSEWHERE)
        elif old:
            self._forwards.cut(old)
            old.box.signal_end()
            old.ended.set()
        if old:
            faults.reach("restore.left")
        clearing = self._clearing.setdefault(row.id, deque())
        if present:
            clearing.append(self._safety.save_when_idle(present.new.id))
            return
        before = clearing[-1] if clearing else None
        volume = self._registry.home.sessions / row.box if row.box else None
        clearing.append(self._background.clear_when_idle(lambda: self._clear(old, volume, before)))

    def _clear(self, old: Live | None, volume: Path | None, before: Future[None] | None) -> None:
        """When this is done, so is everything that was to be cleared away `before`."""
        if before:
            wait((before,))
        try:
            if old:
                with old.state:
                    self._boxes.end(old, _ELSEWHERE)
            faults.reach("clear.box")
        finally:
            if volume:
                self._remains.delete(volume)

    def _keep_pace(self, session_id: str) -> None:
        """A session that is restored faster than its boxes are cleared away has to wait: each of them holds
        memory, descriptors and disk space."""
        clearing = self._clearing.get(session_id)
        while clearing and (clearing[0].done() or len(clearing) >= _MOST_UNCLEARED):
            wait((clearing.popleft(),), faults.limit(_CLEARING_SECONDS))

    def wait_cleared(self, session_id: str) -> None:
        """For a session that is removed: until nothing is left of the boxes it was in."""
        if clearing := self._clearing.pop(session_id, None):
            wait(clearing, faults.limit(_CLEARING_SECONDS))

    # ---- undo, redo --------------------------------------------------------------------------

    def undo(self, row: SessionRow, actor: Actor = "person") -> Restored:
        """Takes the last restore (of everything or of files, or redo) back."""
        with self._registry.moving(row.id):
            done = [op for op in self._store.operations.all(row.id) if op.verb in UNDOABLE and not op.undone]
            if not done:
                raise NotFound(
                    "there is nothing to undo",
                    hint=Hint(
                        "only a restore can be undone; ", Do("log", session=row.name), " lists the points"
                    ),
                )
            last = done[-1]
            if last.before is None:
                raise NotFound(
                    "the last restore took no safety checkpoint",
                    hint=Hint("choose a point from ", Do("log", session=row.name)),
                )
            return self._go_back(row, last.before, "undo", last.id, actor)

    def redo(self, row: SessionRow, actor: Actor = "person") -> Restored:
        """Takes the last undo back, if nothing else has moved the session since."""
        with self._registry.moving(row.id):
            done = [op for op in self._store.operations.all(row.id) if not op.undone]
            if not done or done[-1].verb != "undo" or done[-1].before is None:
                raise NotFound(
                    "there is nothing to redo", hint="only an undo can be redone, and only right after it"
                )
            return self._go_back(row, done[-1].before, "redo", done[-1].id, actor)

    def _go_back(self, row: SessionRow, point_id: str, verb: str, undoes: int, actor: Actor) -> Restored:
        """To a safety point. If it is still pending, its frozen box runs again, and nothing is restored."""
        with self._registry.pending.taken(point_id) as pending:
            point = self._store.pending.as_point(point_id)
            if pending and point and pending.point.session == row.id and self._safety.stands(pending):
                return self._move(row.id, point, pending, verb=verb, undoes=undoes, actor=actor)
        return self.to(row, point_id, verb=verb, undoes=undoes, actor=actor)
