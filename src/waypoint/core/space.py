"""Disk space: what takes it, what may be forgotten, and what happens before it runs out.

Forgetting removes a point's row, and after the answer its bytes. Which points a policy means is decided in
history/retention.py, what they would give back is known to core/costs.py. Here both meet what is protected:
where sessions stand, what they were forked from, what `undo` and `redo` go back to, what is being verified.

The pool is watched at every checkpoint. From 80% on every answer carries a warning. From 90% on the oldest
points that Waypoint took by itself are forgotten, until it is less full again. A checkpoint that would not
fit is refused before anything is frozen: the session does not notice.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from waypoint.api.hints import Arg, Do, Hint
from waypoint.bases import store
from waypoint.box.box import Box, keepers
from waypoint.core.background import TRIMMING, Background
from waypoint.core.costs import Costs
from waypoint.core.live import Live, Twin
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.core.spares import Spares
from waypoint.errors import MachineError, NoSpace, UsageError, WaypointError
from waypoint.history.retention import (
    AUTOMATIC,
    RetentionPolicy,
    apply_policy,
    reasons_to_keep,
)
from waypoint.kernel import faults, locks, processes
from waypoint.kernel.memory import machine_bytes
from waypoint.kernel.pool.btrfs import BtrfsPool, disk_room
from waypoint.kernel.pool.lifecycle import require_room_to_reopen
from waypoint.kernel.pool.protocol import Pool
from waypoint.model import (
    BaseUse,
    Checkpoint,
    DiskUse,
    Forgotten,
    KeptPoint,
    PoolUse,
    Pruned,
)
from waypoint.store.operations import UNDOABLE
from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")

WARN_PERCENT = 80.0
THIN_PERCENT = 90.0
THIN_UNTIL_PERCENT = 85.0
AUTOMATIC_KEPT = 5
"""Of the points that Waypoint took by itself, so many of each session stay when room is made."""
MARGIN_BYTES = 32 << 20
"""What a checkpoint needs beside its memory images: file system metadata, and room to give it up again."""
PLENTY_BYTES = 8 << 30
"""With so much free there is no warning and no thinning, however full the disk is: others use it too."""
_BATCH = 8
_MIB = 1 << 20
_MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
_FORGET_SECONDS = 2.0
_MAKE_ROOM = Hint(
    Do("forget", policy={"keep_last": 10}),
    " forgets old points, ",
    Do("prune", auto=True),
    " those taken automatically; ",
    Do("du"),
    " shows what takes the room",
)


class DiskSpace:
    """The disk space of one home."""

    def __init__(
        self,
        registry: Registry,
        pool: Pool,
        remains: Remains,
        spares: Spares[Twin],
        costs: Costs,
        background: Background,
    ) -> None:
        self._registry, self._home, self._store, self._pool = registry, registry.home, registry.store, pool
        self._remains, self._spares, self._background = remains, spares, background
        self._costs = costs
        self._turn = locks.lock("disk space")
        """Forgetting and thinning: one at a time."""
        self._deleting = locks.lock("deletions")
        self._removed: deque[str] = deque()
        """Points that have lost their rows, and whose spares and folders are still to go."""
        self._trim_waits = False
        self._notices: deque[str] = deque(maxlen=5)
        self._watch_waits = False

    # ---- how full it is ----------------------------------------------------------------------

    def use(self) -> PoolUse:
        usage = self._pool.usage()
        reachable = usage.used_bytes + usage.free_bytes
        return PoolUse(
            kind=self._pool.kind,
            total_bytes=usage.total_bytes,
            used_bytes=usage.used_bytes,
            free_bytes=usage.free_bytes,
            percent=round(100 * usage.used_bytes / reachable, 1) if reachable else 100.0,
        )

    def warnings(self, *, telling: bool) -> list[str]:
        """What a user should know. `telling`: it is shown now, so what was done is not reported again."""
        warnings = list(self._notices)
        if telling:
            self._notices.clear()
        if self._pool.has_stopped():
            warnings.append(
                f"the pool has stopped writing ({self._narrow_place()}): no point can be taken;"
                " with room on that disk the next request opens the pool again"
            )
            return warnings
        pool = self.use()
        if pool.percent >= WARN_PERCENT and not self._has_plenty(pool):
            left = f"{pool.free_bytes // _MIB:,} MiB left in {self._narrow_place()}"
            warnings.append(
                f"the pool is {pool.percent:.0f}% full ({left}):"
                " forgetting old points or pruning those taken automatically makes room"
            )
        return warnings

    def _narrow_place(self) -> str:
        """What runs out first: the pool, or the disk of the host that its file grows on."""
        image = self._pool.image if isinstance(self._pool, BtrfsPool) else None
        if image and disk_room(image)[0] <= self._pool.usage().free_bytes:
            return f"the host's disk, on which {image} grows"
        return "the pool"

    def notify(self, text: str) -> None:
        """Something that the next answer reports."""
        log.warning("%s", text)
        self._notices.append(text)

    def _has_plenty(self, pool: PoolUse) -> bool:
        """For a disk that others fill too, the percentage says little: what counts is what is left."""
        has_own_size = isinstance(self._pool, BtrfsPool) and self._pool.image is not None
        return not has_own_size and pool.free_bytes >= PLENTY_BYTES

    # ---- what stays --------------------------------------------------------------------------

    def protected(self) -> dict[str, str]:
        """The points that nothing may forget, each with the reason."""
        reasons = dict.fromkeys(self._store.points.being_verified(), "it is being verified")
        for row in self._store.sessions.all():
            done = [op for op in self._store.operations.all(row.id) if not op.undone]
            for op in done[-1:] + [op for op in done if op.verb in UNDOABLE][-1:]:
                if op.before:
                    verb = "redo" if op.verb == "undo" else "undo"
                    reasons[op.before] = f"{verb} of session {row.name!r} goes back to it"
            if row.forked_from:
                reasons[row.forked_from] = f"session {row.name!r} was forked from it"
        reasons.update(self._instead_of_failed())
        for row in self._store.sessions.all():
            if row.head:
                reasons[row.head] = f"session {row.name!r} stands on it"
        return reasons

    def _instead_of_failed(self) -> dict[str, str]:
        """Where a session stands on a point that cannot be restored: the newest one before it that can be, as
        far as is known, with the reason."""
        find = self._store.points.find
        reasons = {}
        for row in self._store.sessions.all():
            head = point = find(row.head) if row.head else None
            while point and point.restorable == "failed":
                point = find(point.parent) if point.parent else None
            if head and point and point is not head:
                reasons[point.id] = f"{head.label} of session {row.name!r} cannot be restored"
        return reasons

    def pin(self, point: Checkpoint, *, pinned: bool) -> Checkpoint:
        """Protects a point from every policy, or no longer."""
        self._store.points.set_pinned(point.id, pinned=pinned)
        return self._store.points.find(point.id) or point

    # ---- forgetting --------------------------------------------------------------------------

    def forget(
        self,
        row: SessionRow | None,
        policy: RetentionPolicy,
        *,
        dry_run: bool = False,
        only: Collection[str] | None = None,
    ) -> Forgotten:
        """What a policy does not keep, of a session or of all. `only`: nothing but what was shown before."""
        policy.check()
        with self._turn:
            points = self._store.points.all(row.id if row else None)
            decision = apply_policy(
                points, policy, protected=self.protected(), now=datetime.now().astimezone()
            )
            by_id = {point.id: point for point in points}
            going = [by_id[name] for name in decision.forget if only is None or name in only]
            staying = [_kept(by_id[name], reasons) for name, reasons in decision.keep.items()]
            return self._forget(going, staying, dry_run=dry_run)

    def forget_points(
        self, points: Sequence[Checkpoint], *, force: bool = False, dry_run: bool = False
    ) -> Forgotten:
        """These very points: all of them, or none and the reason. `force`: also what is named or pinned."""
        with self._turn:
            protected = self.protected()
            for point in points:
                if why := protected.get(point.id):
                    raise UsageError(
                        f"{point.label} cannot be forgotten: {why}", hint=_how_to_release(why, point)
                    )
                reasons = [] if force else reasons_to_keep(point, RetentionPolicy(keep_good=False))
                if reasons:
                    raise UsageError(
                        f"{point.label} is kept: {', '.join(reasons)}",
                        hint=Hint(Arg("forget", force=True), " forgets it all the same"),
                    )
            return self._forget(list(dict.fromkeys(points)), [], dry_run=dry_run)

    def _forget(self, points: Sequence[Checkpoint], staying: list[KeptPoint], *, dry_run: bool) -> Forgotten:
        if dry_run:
            space = self._costs.freed(points, seconds=_FORGET_SECONDS)
            return Forgotten(
                forgotten=tuple(points),
                kept=tuple(staying),
                frees_bytes=space.total_bytes,
                exact=space.exact,
                dry_run=True,
            )
        frees_bytes = self._costs.remembered(points)
        try:
            gone = self._remove(points)
        finally:
            self._background.clear_when_idle(self._delete_removed)
        staying.extend(
            _kept(point, ("a session has just gone there",)) for point in points if point not in gone
        )
        if gone:
            log.info("forgot %s", ", ".join(f"{point.session}:{point.label}" for point in gone))
        return Forgotten(forgotten=tuple(gone), kept=tuple(staying), frees_bytes=frees_bytes, exact=False)

    def _remove(self, points: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Removes the rows of points; `_delete_removed` has to follow. Returns those that went: not the ones
        on which a session stands or is about to.

        The rows are gone from the disk when this returns: after a power cut no forgotten point comes back.
        """
        gone = []
        for point in points:
            if self._registry.remove_point(point.id):
                self._remains.expect([self._home.checkpoints / point.id])
                self._removed.append(point.id)
                gone.append(point)
        if gone:
            faults.reach("forget.removed")
            self._store.sync()
            faults.reach("forget.synced")
        return gone

    def _delete_removed(self) -> None:
        """Deletes what the removed points have left: spares and folders. After an answer; a daemon that dies
        before that leaves it to the next one, which knows them by the table `forgotten`."""
        with self._deleting:
            points = [self._removed.popleft() for _ in range(len(self._removed))]
            if not points:
                return
            self._store.sync()  # the rows first, also where `_remove` was interrupted
            self._spares.drop(points)
            self._remains.delete_all(self._home.checkpoints / point_id for point_id in points)
            faults.reach("forget.deleted")
        if not self._trim_waits:
            self._trim_waits = True
            self._background.run_when_calm(self._trim, TRIMMING)
        self._costs.measure_when_idle()

    def _trim(self) -> None:
        """Gives the space of what was deleted back to the disk below."""
        self._trim_waits = False
        self._pool.reclaim()

    def close(self) -> None:
        """Does what waits for a calm daemon and must not wait for the next one."""
        if self._trim_waits:
            self._trim()

    # ---- what takes how much -----------------------------------------------------------------

    def du(self, row: SessionRow | None = None) -> DiskUse:
        """What each point (of a session, or of all) and each session uniquely costs."""
        costs, volumes = self._costs.measure(row)
        bases = [BaseUse(name=base.name, size_bytes=base.size_bytes) for base in store.list_bases(self._pool)]
        use = self.use()
        known = [cost.unique_bytes for cost in costs] + [volume.unique_bytes for volume in volumes]
        known += [base.size_bytes for base in bases]
        return DiskUse(
            checkpoints=tuple(costs),
            sessions=tuple(volumes),
            bases=tuple(bases),
            other_bytes=max(0, use.used_bytes - sum(known)),
            pool=use,
        )

    # ---- making room -------------------------------------------------------------------------

    def prune(self, *, automatic: bool = False, dry_run: bool = False) -> Pruned:
        """Frees bytes now: what belongs to nothing, what was deleted and is not given back yet and, if asked
        for, old points that Waypoint took by itself."""
        pool, before = self._pool, self.use()
        with self._turn:
            points = self._thinnable() if automatic else []
            remains = self._remains.abandoned(keepers(self._home))
            faults.reach("prune.begun")
            if dry_run:
                freed = self._costs.freed(points, seconds=_FORGET_SECONDS).total_bytes
                gone = points
            else:
                gone = self._remove(points)
                self._delete_removed()
                self._remains.delete_all(remains)
                faults.reach("prune.deleted")
                self._store.events.sweep_blobs()
                self._store.database.empty_wal()
                pool.sync()
                pool.reclaim()
                freed = max(0, before.used_bytes - pool.usage().used_bytes)
        return Pruned(
            removed=tuple(str(path.relative_to(self._home.pool)) for path in remains),
            forgotten=tuple(gone),
            freed_bytes=freed,
            pool=self.use(),
            dry_run=dry_run,
        )

    def _thinnable(self) -> list[Checkpoint]:
        """Points that Waypoint took by itself and that nothing keeps, oldest first."""
        points = self._store.points.all()
        policy = RetentionPolicy(keep_last=AUTOMATIC_KEPT, kinds=AUTOMATIC)
        # `points` are in order of time: of each session, the newest that was shown to be restorable stays.
        proven = {point.session: point.id for point in points if point.restorable == "proven"}
        protected = dict.fromkeys(proven.values(), "its restore was tried and succeeded") | self.protected()
        decision = apply_policy(points, policy, protected=protected, now=datetime.now().astimezone())
        by_id = {point.id: point for point in points}
        return [by_id[name] for name in decision.forget]

    def watch_when_idle(self) -> None:
        """After a checkpoint. One look is enough, however many points were taken before it."""
        if not self._watch_waits:
            self._watch_waits = True
            self._background.run_when_idle(self.watch)

    def watch(self) -> None:
        """What could not be deleted before is tried again, and a pool that fills up is thinned."""
        self._watch_waits = False
        self._remains.retry()
        self._costs.measure_when_idle()
        pool = self.use()
        if pool.percent >= THIN_PERCENT and not self._has_plenty(pool):
            self._thin(lambda: self.use().percent < THIN_UNTIL_PERCENT, "the pool was nearly full")
        for live in self._registry.lives():
            self._watch_share(live)

    def _watch_share(self, live: Live) -> None:
        """A session that has taken most of what it may take of the pool loses its own automatic points: what
        they hold counts."""
        row = self._store.sessions.find(live.session_id)
        if row is None or self._share_percent(live) < WARN_PERCENT:
            return
        if self._share_percent(live) >= THIN_PERCENT:
            why = f"session {row.name!r} had nearly taken its share of the pool"
            self._thin(lambda: self._share_percent(live) < THIN_UNTIL_PERCENT, why, of=row.name)
        if (percent := self._share_percent(live)) >= WARN_PERCENT:
            self.notify(
                f"session {row.name!r} has taken {percent:.0f}% of what it may take of the pool since its"
                " last restore: deleting files and forgetting its points makes room"
            )

    def _share_percent(self, live: Live) -> float:
        with contextlib.suppress(WaypointError):  # its box has ended
            if (share := self._pool.share(live.box.volume)) and share.limit_bytes:
                return 100 * share.used_bytes / share.limit_bytes
        return 0.0

    def _thin(self, enough: Callable[[], bool], why: str, *, of: str | None = None) -> None:
        """Forgets automatic points, the oldest first, a few at a time, until it is enough. `of`: those of one
        session."""
        with self._turn:
            waiting, gone = [point for point in self._thinnable() if of in (None, point.session)], 0
            while waiting and not enough():
                gone += len(self._remove(waiting[:_BATCH]))
                del waiting[:_BATCH]
                self._delete_removed()
                self._pool.reclaim()
        if gone:
            self.notify(f"{why}: {gone} old automatic points were forgotten to make room")

    def require_room(self, box: Box | None) -> None:
        """Before a checkpoint: NoSpace unless there is room for it, after thinning if need be."""
        pool = self._pool
        if pool.has_stopped():
            require_room_to_reopen(self._home.path)
            raise MachineError(
                "the pool has stopped writing", hint="the next request from outside opens it again"
            )
        free = pool.usage().free_bytes
        if free >= MARGIN_BYTES + 2 * _MEMORY_BYTES:  # no need to look
            return
        need = MARGIN_BYTES + (_dump_bytes(box) if box else 0)
        if free >= need + _unwritten_bytes():
            return
        free = self._make_room(need)
        if free < need:
            raise self._no_room(need, free)

    @contextlib.contextmanager
    def room_named(self, box: Box | None) -> Iterator[None]:
        """Around a checkpoint. Its need was an estimate, and others write to the pool as well: where a step
        finds the pool full after all, the error is that of `require_room`. An error that names another place
        (the host's disk, the database) stays what it is."""
        try:
            yield
        except (OSError, NoSpace) as error:
            if not self._is_about_pool(error):
                raise
            need = MARGIN_BYTES + (_dump_bytes(box) if box else 0)
            raise self._no_room(need, self._make_room(need)) from error

    def _is_about_pool(self, error: OSError | NoSpace) -> bool:
        if isinstance(error, OSError):
            return error.errno in (errno.ENOSPC, errno.EDQUOT)
        path = error.details.get("path")
        return path is None or Path(path).is_relative_to(self._home.pool)

    def _make_room(self, need: int) -> int:
        """Forgets automatic points until so much is free. Returns what is."""
        self._pool.sync()
        self._thin(lambda: self._pool.usage().free_bytes >= need, "the pool was nearly full")
        return self._pool.usage().free_bytes

    def _no_room(self, need: int, free: int) -> NoSpace:
        return NoSpace(
            f"there is no room for a checkpoint: it may need {need // _MIB:,} MiB"
            f" and {self._narrow_place()} has {free // _MIB:,} MiB left; the session goes on untouched",
            hint=_MAKE_ROOM,
            need_bytes=need,
            free_bytes=free,
        )


def _dump_bytes(box: Box) -> int:
    """The most its memory images may take: they are compressed, but only once room was claimed for all of it.
    Memory that processes share is written once."""
    sizes = [processes.memory_bytes(process.host_pid) for process in processes.below(box.pid)]
    return sum(own for own, _ in sizes) + max((shared for _, shared in sizes), default=0)


def _unwritten_bytes() -> int:
    """What of all files on this machine is only in memory yet and will want room."""
    sizes = machine_bytes()
    return sizes.get("Dirty", 0) + sizes.get("Writeback", 0)


def _kept(point: Checkpoint, reasons: tuple[str, ...]) -> KeptPoint:
    return KeptPoint(id=point.id, session=point.session, label=point.label, reasons=reasons)


def _how_to_release(why: str, point: Checkpoint) -> Hint:
    if "stands on it" in why:
        return Hint("take another checkpoint first, or remove the session")
    if "forked from" in why:
        return Hint("remove that session first: ", Do("rm", "sessions"))
    return Hint(Do("show", session=point.session, ref=point.label), " tells more")
