"""Live copies of points: for a restore, a fork, a trial or a spare.

A copy is held in a box of its own up to the moment before its first instruction, then it is released. A spare
is a copy left at that moment. Each step undoes itself when it fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waypoint.box.volume import drop_old_work
from waypoint.core.background import Background
from waypoint.core.boxes import Boxes
from waypoint.core.builder import BoxFacts
from waypoint.core.capture import BOX_FILE, TERMINAL_FILE
from waypoint.core.engine import Engine
from waypoint.core.live import Doors, Live, Twin, new_id
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.core.spares import Spares
from waypoint.engine.images import check_sizes
from waypoint.errors import CannotRestore, NotFound, WaypointError
from waypoint.kernel import processes
from waypoint.kernel.network.sockets import abort_outside_connections
from waypoint.kernel.pool.protocol import Pool
from waypoint.model import BoxOptions, Checkpoint, Size
from waypoint.terminal.terminal import TerminalState

log = logging.getLogger("waypoint")


class Copies:
    """Brings points of one home to life."""

    def __init__(
        self,
        registry: Registry,
        pool: Pool,
        engine: Engine,
        boxes: Boxes,
        remains: Remains,
        doors: Doors,
        spares: Spares[Twin],
        background: Background,
    ) -> None:
        self._registry, self._home, self._pool, self._engine = registry, registry.home, pool, engine
        self._boxes, self._remains, self._doors = boxes, remains, doors
        self._spares, self._background = spares, background

    def bring_up(
        self,
        name: str,
        options: BoxOptions,
        point: Checkpoint,
        session_id: str,
        *,
        files_only: bool = False,
        size: Size | None = None,
        use_spare: bool = True,
    ) -> tuple[Live, bool]:
        """A live copy of a point that runs, and whether it was a spare."""
        if files_only or point.files_only:
            return self._start_anew(name, options, point, session_id, size or Size()), False
        twin = self._spares.take(point.id, lambda twin: twin.suits(options)) if use_spare else None
        if twin is not None:
            try:
                self._release(twin, point, name, session_id, size)
                return twin.live, True
            except (OSError, WaypointError) as error:
                if twin.held.released:
                    raise
                log.warning("a spare of %s was of no use: %s", point.id, error)
        twin = self._hold(name, options, point)
        self._release(twin, point, name, session_id, size)
        return twin.live, False

    def _start_anew(
        self, name: str, options: BoxOptions, point: Checkpoint, session_id: str, size: Size
    ) -> Live:
        """The files of a point with a fresh shell."""
        with self._volume_of(point) as volume, contextlib.ExitStack() as undo:
            live = self._boxes.build(session_id, volume, name, options, size)
            undo.callback(self._boxes.end, live, "the restore failed")
            live.box.keeper.start_anchor()
            self._boxes.start_shell(live, "/root")
            undo.pop_all()
        return live

    @contextlib.contextmanager
    def _volume_of(self, point: Checkpoint) -> Iterator[Path]:
        """A writable volume with the files of a point; gone again when the block fails."""
        volume = self._home.sessions / new_id()
        try:
            self._pool.snapshot(self._home.checkpoints / point.id / "files", volume, readonly=False)
            yield volume
        except BaseException:
            self._remains.delete(volume)
            raise

    def _hold(self, name: str, options: BoxOptions, point: Checkpoint) -> Twin:
        """A copy of a whole point, up to the moment before its first instruction."""
        images = self._home.checkpoints / point.id / "images"
        with self._shows_restorable(point), self._volume_of(point) as volume, contextlib.ExitStack() as undo:
            check_sizes(images)
            state = msgspec.json.decode((images / TERMINAL_FILE).read_bytes(), type=TerminalState)
            facts = msgspec.json.decode((images / BOX_FILE).read_bytes(), type=BoxFacts)
            live = self._boxes.build("", volume, name, options, state.size, facts)
            undo.callback(self._boxes.end, live, "the restore failed")
            held = self._engine.hold(live.box, images)
            live.memory.track_from(processes.host_pids(live.box.pid), images)
            if state.shell and not held.runs(state.shell.pid):
                # It ended just before the freeze, and the terminal had not been told yet.
                state = msgspec.structs.replace(state, shell=None)
            live.terminal.thaw(state)
            live.terminal.find_shell()
            self._boxes.remember_terminal(live)
            undo.pop_all()
        return Twin(live, held, name, options)

    @contextlib.contextmanager
    def _shows_restorable(self, point: Checkpoint) -> Iterator[None]:
        """Every attempt to bring a point back is a proof, or the opposite of one."""
        try:
            yield
        except CannotRestore as error:
            log.warning("%s of session %s cannot be restored: %s", point.label, point.session, error)
            self._registry.store.points.set_restorable(point.id, error.message)
            raise
        if point.restorable != "proven":
            self._registry.store.points.set_restorable(point.id, None)

    def prove(self, point_id: str) -> None:
        """Restores a point up to the moment before its first instruction, and ends that copy. CannotRestore
        when it cannot be done."""
        self.end_spare(self.make_spare(point_id))

    def _release(self, twin: Twin, point: Checkpoint, name: str, session_id: str, size: Size | None) -> None:
        """Makes a held copy the session's and lets it run; ends it when that fails."""
        live = twin.live
        try:
            live.session_id = live.stream.session_id = session_id
            if name != twin.name and self._registry.base_of(twin.options) != Path("/"):  # there: the host's
                live.box.keeper.set_hostname(name)
            self._doors.answer_waiters(live, point)
            twin.held.release()
            if twin.options.net == "nat" and twin.held.state.network_locked:
                space = live.box.open_namespace("net")
                try:
                    abort_outside_connections(space)
                finally:
                    os.close(space)
            if size:
                live.terminal.resize(size)
            if live.terminal.shell is None:  # the point was taken between the end of a shell and the next one
                self._boxes.start_shell(live, self._registry.facts(point).shell.cwd)
        except BaseException:
            self.end_spare(twin)
            raise
        self._background.run_when_idle(lambda: drop_old_work(live.box.volume))

    # ---- throwaways --------------------------------------------------------------------------

    @contextlib.contextmanager
    def throwaway(self, point: Checkpoint) -> Iterator[Live]:
        """A live copy of a point that is not a session and ends with the block. It uses up no spare."""
        origin, copy_id = self._registry.find(point.session), new_id()
        self._registry.throwaways[copy_id] = origin.id
        try:
            with self._registry.using(point):
                live, _ = self.bring_up(origin.name, origin.options, point, copy_id, use_spare=False)
            try:
                yield live
            finally:
                with live.state:
                    self._boxes.end(live, "it was only a trial")
                self._remains.delete(live.box.volume)
        finally:
            self._registry.throwaways.pop(copy_id, None)

    # ---- spares ------------------------------------------------------------------------------

    def make_spare(self, point_id: str) -> Twin:
        """A held copy for core/spares.py to keep. CannotRestore when two attempts have failed: some failures
        of CRIU are a matter of chance, and a point is called unrestorable only when it is."""
        try:
            return self._make_spare(point_id)
        except CannotRestore:
            return self._make_spare(point_id)

    def _make_spare(self, point_id: str) -> Twin:
        point = self._registry.store.points.find(point_id)
        if point is None:
            raise NotFound(f"point {point_id} is gone")
        origin = self._registry.find(point.session)
        with self._registry.using(point):
            twin = self._hold(origin.name, origin.options, point)
        try:
            twin.held.stop_timers()
        except BaseException:
            self.end_spare(twin)
            raise
        return twin

    def end_spare(self, twin: Twin) -> None:
        """A held copy that will never run, or one that could not be released."""
        twin.held.close()
        self._boxes.end(twin.live, "it was never used")
        self._remains.delete(twin.live.box.volume)
