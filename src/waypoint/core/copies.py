"""Live copies of points: for a restore, a fork, a trial or a spare.

A copy is held in a box of its own up to the moment before its first instruction, then it is released. A spare
is a copy left at that moment. Each step undoes itself when it fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waypoint.api.hints import Do, Hint
from waypoint.box.plan import inside_path, tell_id, tell_name
from waypoint.box.volume import drop_old_work
from waypoint.core.background import Background
from waypoint.core.boxes import Boxes
from waypoint.core.builder import BoxFacts
from waypoint.core.capture import BOX_FILE, TERMINAL_FILE
from waypoint.core.digests import Digests
from waypoint.core.engine import Engine
from waypoint.core.kept import KeptFiles
from waypoint.core.live import Doors, Live, Twin, new_id
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.core.spares import Spares
from waypoint.engine.images import RESTORE_FILES_ONLY
from waypoint.engine.lazy import LazyFailed
from waypoint.errors import BaseChanged, CannotRestore, NotFound, PointDamaged, UsageError, WaypointError
from waypoint.kernel import faults, processes
from waypoint.kernel.network.sockets import abort_outside_connections
from waypoint.kernel.pool.protocol import Pool
from waypoint.model import BoxOptions, Checkpoint, Platform, Size, from_json
from waypoint.terminal.terminal import TerminalState

log = logging.getLogger("waypoint")


@dataclass(frozen=True)
class Copy:
    """A copy of a point that runs."""

    live: Live
    base_changes: tuple[str, ...] = ()
    """What of its base is not as it was, for the user to know."""
    spare: bool = False


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
        digests: Digests,
        kept: KeptFiles,
        background: Background,
    ) -> None:
        self._registry, self._home, self._pool, self._engine = registry, registry.home, pool, engine
        self._boxes, self._remains, self._doors = boxes, remains, doors
        self._spares, self._digests, self._kept = spares, digests, kept
        self._background = background

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
    ) -> Copy:
        """A live copy of a point that runs."""
        if files_only or point.files_only:
            return self._start_anew(name, options, point, session_id, size or Size())
        self._require_same_kind(point, options)
        twin = self._spares.take(point.id, lambda twin: twin.suits(options)) if use_spare else None
        if twin is not None and self._kept.describe(point, options) != twin.prepared.changes:
            # Its box still shows files of the base that were replaced since, among new ones.
            self.end_spare(twin)
            twin = None
        if twin is not None:
            try:
                faults.reach("spare.taken")
                self._release(twin, point, name, session_id, size)
                return Copy(twin.live, twin.prepared.changes, spare=True)
            except (OSError, WaypointError) as error:
                if twin.held.released:
                    raise
                log.warning("a spare of %s was of no use: %s", point.id, error)
        twin = self._hold_lazily(name, options, point)
        self._release(twin, point, name, session_id, size)
        return Copy(twin.live, twin.prepared.changes)

    def _require_same_kind(self, point: Checkpoint, options: BoxOptions) -> None:
        """Refuses processes of a box in a user namespace for one that is in none, and the other way round:
        their ids would be others."""
        owner = self._registry.store.sessions.find(point.session)
        if owner and bool(owner.options.userns) != bool(options.userns):
            there, here = ("a", "no") if owner.options.userns else ("no", "a")
            raise UsageError(
                f"{point.label} was taken in {there} user namespace, and this session is in {here} such one",
                hint=Hint("fork it: ", Do("fork", ref=point.id), "; or take its files alone"),
            )

    def _start_anew(
        self, name: str, options: BoxOptions, point: Checkpoint, session_id: str, size: Size
    ) -> Copy:
        """The files of a point with a fresh shell."""
        with self._volume_of(point) as volume, contextlib.ExitStack() as undo:
            changes = self._kept.file_systems(volume, options)
            live = self._boxes.build(session_id, volume, name, options, size)
            undo.callback(self._boxes.end, live, "the restore failed")
            undo.enter_context(live.box.end_named(_bring_back(point)))
            faults.reach("copy.fresh")
            live.box.start_tree()
            faults.reach("copy.anchored")
            self._boxes.start_shell(live)
            undo.pop_all()
        return Copy(live, changes)

    @contextlib.contextmanager
    def _volume_of(self, point: Checkpoint) -> Iterator[Path]:
        """A writable volume with the files of a point; gone again when the block fails."""
        volume = self._home.sessions / new_id()
        try:
            faults.reach("copy.begun")
            self._pool.snapshot(self._home.checkpoints / point.id / "files", volume, readonly=False)
            faults.reach("copy.volume")
            yield volume
        except BaseException:
            self._remains.delete(volume)
            raise

    def _hold_lazily(self, name: str, options: BoxOptions, point: Checkpoint) -> Twin:
        """A copy that runs soon: much memory may come later, if that can be done here."""
        try:
            return self._hold(name, options, point, lazy=True)
        except LazyFailed as error:
            log.warning(
                "%s of session %s is restored with all its memory: %s", point.label, point.session, error
            )
            return self._hold(name, options, point)

    def _hold(
        self,
        name: str,
        options: BoxOptions,
        point: Checkpoint,
        *,
        compare_memory: bool = False,
        lazy: bool = False,
    ) -> Twin:
        """A copy of a whole point, up to the moment before its first instruction. `compare_memory`: all of
        its memory is compared with what was written, which takes time. `lazy`: it may come later."""
        images = self._home.checkpoints / point.id / "images"
        require_platform(point, self._engine.platform)
        self._digests.require_sound(point, with_memory=compare_memory)
        with self._records_failure(point), self._volume_of(point) as volume, contextlib.ExitStack() as undo:
            state = from_json((images / TERMINAL_FILE).read_bytes(), TerminalState)
            facts = from_json((images / BOX_FILE).read_bytes(), BoxFacts)
            faults.reach("copy.read")
            prepared = self._kept.prepare(point, options, volume)
            undo.callback(prepared.discard)
            live = self._boxes.build("", volume, name, options, state.size, facts)
            undo.callback(self._boxes.end, live, "the restore failed")
            undo.enter_context(live.box.end_named(_bring_back(point)))
            faults.reach("copy.box")
            held = self._engine.hold(live.box, prepared.images, images if lazy else None)
            faults.reach("copy.held")
            live.memory.track_from(processes.host_pids(live.box.pid), images)
            faults.reach("copy.tracked")
            if state.shell and not held.runs(state.shell.pid):
                # It ended just before the freeze, and the terminal had not been told yet.
                state = msgspec.structs.replace(state, shell=None)
            live.terminal.thaw(state)
            live.terminal.find_shell()
            self._boxes.remember_terminal(live)
            faults.reach("copy.thawed")
            if point.restorable != "proven":
                self._registry.store.points.set_restorable(point.id, None)
            undo.pop_all()
        return Twin(live, held, name, options, prepared, facts.forwarded)

    @contextlib.contextmanager
    def _records_failure(self, point: Checkpoint) -> Iterator[None]:
        """Every attempt to bring a point back is a proof, or the opposite of one."""
        try:
            yield
        except LazyFailed:
            raise  # it is tried again with all of its memory
        except BaseChanged as error:
            log.warning("%s of session %s: %s", point.label, point.session, error)
            raise  # the point is whole: with the base of then it can be restored
        except CannotRestore as error:
            if differences := platform_differences(point, self._engine.platform):
                error.message += f" (it was taken with {' and '.join(differences)})"
                error.args = (error.message,)
            log.warning("%s of session %s cannot be restored: %s", point.label, point.session, error)
            self._registry.store.points.set_restorable(point.id, error.message)
            raise

    def prove(self, point_id: str) -> None:
        """Restores a point up to the moment before its first instruction, and ends that copy. CannotRestore
        when it cannot be done."""
        self.end_spare(self.make_spare(point_id))

    def _release(self, twin: Twin, point: Checkpoint, name: str, session_id: str, size: Size | None) -> None:
        """Makes a held copy the session's and lets it run; ends it when that fails."""
        try:
            with twin.live.box.end_named(_bring_back(point)):
                self._let_run(twin, point, name, session_id, size)
        except BaseException:
            self.end_spare(twin)
            raise
        volume = twin.live.box.volume
        self._background.clear_when_idle(lambda: drop_old_work(volume))

    def _let_run(self, twin: Twin, point: Checkpoint, name: str, session_id: str, size: Size | None) -> None:
        live = twin.live
        live.session_id = live.stream.session_id = session_id
        inside = inside_path(self._home, live.box.id)
        with contextlib.suppress(FileNotFoundError):  # a box that an older Waypoint built
            tell_id(inside, session_id)
        if name != twin.name:
            with contextlib.suppress(FileNotFoundError):
                tell_name(inside, name)
            if self._registry.base_of(twin.options) != Path("/"):  # there: the host's
                live.box.keeper.set_hostname(name)
        faults.reach("copy.claimed")
        self._doors.answer_waiters(live, point)
        faults.reach("copy.answered")
        twin.held.release()
        twin.prepared.discard()
        self._boxes.follow_memory(live)
        faults.reach("copy.released")
        if (twin.options.net == "nat" or twin.forwarded) and twin.held.state.network_locked:
            space = live.box.open_namespace("net")
            try:
                abort_outside_connections(space, twin.forwarded)
            finally:
                os.close(space)
        faults.reach("copy.connected")
        if size:
            live.terminal.resize(size)
        if live.terminal.shell is None:  # the point was taken between the end of a shell and the next one
            self._boxes.start_shell(live, self._registry.facts(point).shell.cwd)

    # ---- throwaways --------------------------------------------------------------------------

    @contextlib.contextmanager
    def throwaway(self, point: Checkpoint) -> Iterator[Live]:
        """A live copy of a point that is not a session and ends with the block. It uses up no spare."""
        origin, copy_id = self._registry.find(point.session), new_id()
        self._registry.throwaways[copy_id] = origin.id
        try:
            with self._registry.using(point):
                live = self.bring_up(origin.name, origin.options, point, copy_id, use_spare=False).live
            try:
                faults.reach("trial.copied")
                yield live
                faults.reach("trial.ran")
            finally:
                with live.state:
                    self._end_copy(live, "it was only a trial")
        finally:
            self._registry.throwaways.pop(copy_id, None)

    # ---- spares ------------------------------------------------------------------------------

    def make_spare(self, point_id: str) -> Twin:
        """A held copy for core/spares.py to keep. CannotRestore when two attempts have failed: some failures
        of CRIU are a matter of chance, and a point is called unrestorable only when it is."""
        try:
            return self._make_spare(point_id)
        except (BaseChanged, PointDamaged):
            raise
        except CannotRestore:
            return self._make_spare(point_id)

    def _make_spare(self, point_id: str) -> Twin:
        point = self._registry.store.points.find(point_id)
        if point is None:
            raise NotFound(f"point {point_id} is gone")
        origin = self._registry.find(point.session)
        with self._registry.using(point):
            twin = self._hold(origin.name, origin.options, point, compare_memory=True)
        try:
            faults.reach("spare.held")
            twin.held.stop_timers()
        except BaseException:
            self.end_spare(twin)
            raise
        return twin

    def end_spare(self, twin: Twin) -> None:
        """A held copy that will never run, or one that could not be released."""
        try:
            twin.held.close()
            twin.prepared.discard()
            faults.reach("spare.ended")
        finally:
            self._end_copy(twin.live, "it was never used")

    def _end_copy(self, live: Live, why: str) -> None:
        try:
            self._boxes.end(live, why)
        finally:
            self._remains.delete(live.box.volume)


def _bring_back(point: Checkpoint) -> str:
    return f"bring back {point.label} of session {point.session!r}"


# ---- the machine ---------------------------------------------------------------------------------


def platform_differences(point: Checkpoint, here: Platform) -> list[str]:
    """What a point was taken with, where this machine has something else. Images of another kernel or another
    CRIU can usually be restored. Where that fails, this may be why."""
    then = point.platform
    if then is None:
        return []
    pairs = (("CRIU", then.criu, here.criu), ("Linux", then.kernel, here.kernel))
    return [f"{name} {old}, here is {new}" for name, old, new in pairs if old != new]


def require_platform(point: Checkpoint, here: Platform) -> None:
    """CannotRestore for the processes of a machine whose programs do not run here at all."""
    if point.platform and point.platform.architecture != here.architecture:
        raise CannotRestore(
            f"{point.label} of session {point.session!r} was taken on {point.platform.architecture},"
            f" and this machine is {here.architecture}",
            hint=RESTORE_FILES_ONLY,
        )
