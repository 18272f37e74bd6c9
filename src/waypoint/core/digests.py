"""Whether points are still what they were when they were made.

A thread reads each new point once, when the daemon is idle, and stores what it holds (core/manifest.py).
Every restore, fork, trial and spare compares before CRIU sees an image:

- all images but memory, always: all files of a dump up to 1 MiB, and the sizes of all. A millisecond or two.
- memory, when a spare or a proof is made, at most once in an hour: those are made when the daemon is idle.
  In a restore that a client waits for, reading it once more would take as long as the restore itself.
- files, by `check --deep` alone: a restore is a snapshot of them and reads nothing.

Where the pool is btrfs, the kernel compares every block with its checksum when it is read: a block that has
changed on the disk is an error and never data. What is found here in addition is what was written through the
file system, and what changed on pools of other kinds.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waypoint.api.hints import Arg, Do, Hint
from waypoint.core import manifest, pointfile
from waypoint.core.background import DIGESTS, Background
from waypoint.core.manifest import Files, Manifest, ManifestError
from waypoint.core.pointfile import PointFile
from waypoint.engine.images import check_sizes
from waypoint.errors import CannotRestore, PointDamaged
from waypoint.home import Home
from waypoint.kernel import digests as contents
from waypoint.kernel import faults, locks
from waypoint.kernel.digests import Pause
from waypoint.kernel.pool.extents import made_at
from waypoint.kernel.pool.protocol import Pool
from waypoint.kernel.seals import Key
from waypoint.kernel.syscalls import set_io_priority
from waypoint.model import Checkpoint
from waypoint.store import Store

log = logging.getLogger("waypoint")

_IDLE_IO = 3 << 13  # IOPRIO_CLASS_IDLE
_MEMORY_SECONDS = 3600.0
"""How long a comparison of memory is taken as good for the next spare of the point."""
_PAUSE_SECONDS = 0.02
_CLOSE_SECONDS = 30.0
_RACE_NS = 2_000_000_000
"""A file that was changed so shortly before a snapshot may have been changed again with the same time."""


class _Closed(Exception):
    """Raised in the thread when the daemon ends."""


class _Interrupted(Exception):
    """Raised in a comparison of memory when a verb has come."""


def _no_pause() -> None:
    """For a caller that waits."""


class Digests:
    """Makes the manifests of one home's points, and compares points with them."""

    def __init__(
        self, home: Home, pool: Pool, store: Store, background: Background, key: Key, *, by_itself: bool
    ) -> None:
        self._home, self._pool, self._store, self._background = home, pool, store, background
        self._key = key
        self._by_itself = by_itself
        """Whether new points are read without being asked for."""
        self._waiting: deque[str] = deque()
        self._changed = locks.condition("digests")
        self._compared_at: dict[str, float] = {}
        """When the memory of a point was compared last."""
        self._closed = False
        self._thread: threading.Thread | None = None

    # ---- making ------------------------------------------------------------------------------

    def add(self, point: Checkpoint) -> None:
        """A point was taken."""
        if self._by_itself:
            self._enqueue([point.id])

    def make_missing(self) -> None:
        """For points that have none: an earlier daemon ended before it had made them, or made none. Points of
        an older version get a seal too."""
        if self._by_itself:
            missing = self._store.points.without_digest()
            self._enqueue([*missing, *(self._without_seal(set(missing)) if self._key.new else ())])

    def _without_seal(self, besides: set[str]) -> Iterator[str]:
        """Points that have a row are this installation's: no other writes rows."""
        for point_id in self._store.points.ids() - besides:
            if not pointfile.has_seal(self._home.checkpoints / point_id):
                yield point_id

    def _enqueue(self, points: list[str]) -> None:
        with self._changed:
            if self._closed or not points:
                return
            self._waiting.extend(points)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="digests", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Nothing of it uses the pool any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            # Only its reading gives way. With a lower priority for the processor it might hold Python's lock
            # and not run, and every other thread of the daemon would wait for it.
            set_io_priority(threading.get_native_id(), _IDLE_IO)
        with contextlib.suppress(_Closed):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._closed)
                    if self._closed:
                        return
                    point_id = self._waiting.popleft()
                self._make_logged(point_id)

    def _make_logged(self, point_id: str) -> None:
        try:
            pause = self._pause_from(time.monotonic())
            if not pointfile.has_seal(self._home.checkpoints / point_id):
                self.write_point_file(point_id)
            if self._store.points.digest(point_id) is None:
                self.make(point_id, pause)
        except _Closed:
            raise
        except Exception:
            if self._store.points.find(point_id):  # else it was forgotten meanwhile
                log.exception("no digests of %s", point_id)

    def _pause_from(self, since: float) -> Pause:
        """Waits as long as the daemon is busy; raises _Closed when it ends."""

        def pause() -> None:
            while True:
                if self._closed:
                    raise _Closed
                left = self._background.seconds_until_idle(DIGESTS, since)
                if not left:
                    return
                time.sleep(min(left, _PAUSE_SECONDS))

        pause()
        return pause

    def make(self, point_id: str, pause: Pause = _no_pause) -> None:
        """Reads a point and stores what it holds. A point that is not whole is marked as damaged instead."""
        point = self._store.points.find(point_id)
        folder = self._home.checkpoints / point_id
        if point is None or point.damage:
            return
        if damage := pointfile.damage(folder, files_only=point.files_only):
            if self._store.points.find(point_id):
                self.mark(point, [damage.removeprefix("the checkpoint is damaged: ")])
            return
        earlier = self._earlier(point)
        made, files = manifest.make(folder, time.time(), pause, *earlier)
        faults.reach("digest.read")
        with self._changed:  # point.json may have been written again meanwhile
            made = _with_point_file(made, folder)
            digest = manifest.write(folder, made, self._key, files)
            faults.reach("digest.written")
            self._store.points.set_digest(point_id, digest)

    def write_point_file(self, point_id: str) -> str | None:
        """point.json from the row of a point and of its session; the digests get that of the new file.
        Returns the id of the session; None when its digests are damaged: then nothing is changed."""
        folder = self._home.checkpoints / point_id
        with self._changed:
            point = self._store.points.find(point_id)
            row = self._store.sessions.find(point.session) if point else None
            if point is None or row is None:
                return None
            digest = self._store.points.digest(point_id)
            made = None
            if digest is not None or (folder / manifest.MANIFEST_FILE).exists():
                try:
                    made = manifest.read(folder, digest)
                except ManifestError:
                    if digest is not None:
                        return None  # a check reports it as damage
            # While the two files change the row names no digest: after a crash in between nothing is called
            # damaged, and this is done again.
            self._store.points.set_digest(point_id, None)
            faults.reach("name.begun")
            pointfile.write(folder, PointFile(self._store.points.as_new(point_id), row), self._key)
            faults.reach("name.written")
            if made:
                changed = _with_point_file(made, folder)
                self._store.points.set_digest(point_id, manifest.write(folder, changed, self._key))
        return row.id

    def _earlier(self, point: Checkpoint) -> tuple[Files | None, int]:
        """What the tree of the point before held, and before which time it is to be believed. A snapshot on
        btrfs keeps the number and the change time of every file: what has both was not written in between."""
        if self._pool.kind != "btrfs" or point.parent is None:
            return None, 0
        folder = self._home.checkpoints / point.parent
        try:
            digest = self._store.points.digest(point.parent)
            if digest is None:
                return None, 0
            files = manifest.read_files(folder, manifest.read(folder, digest))
            return files, int(made_at(folder / "files") * 1e9) - _RACE_NS
        except (OSError, ManifestError):
            return None, 0

    # ---- comparing ---------------------------------------------------------------------------

    def require_sound(self, point: Checkpoint, *, with_memory: bool = False) -> None:
        """PointDamaged unless the images of a point are what was written. Without a manifest only their sizes
        are compared. `with_memory`: also all memory, unless that was done within the last hour."""
        folder = self._home.checkpoints / point.id
        digest = self._store.points.digest(point.id)
        if point.damage:
            raise _error(point, point.damage)
        try:
            check_sizes(folder / "images")
        except CannotRestore as error:
            damage = [error.message.removeprefix("the checkpoint is damaged: ")]
            raise self._damaged(point, damage) from error
        if digest is None:
            return
        if damage := self._compare_images(folder, digest, _no_pause, deep=False):
            raise self._damaged(point, damage)
        now = time.monotonic()
        if with_memory and now - self._compared_at.get(point.id, -_MEMORY_SECONDS) >= _MEMORY_SECONDS:
            with contextlib.suppress(_Interrupted):
                if damage := self._compare_images(folder, digest, self._give_way, deep=True):
                    raise self._damaged(point, damage)
                self._compared_at[point.id] = now

    def _give_way(self) -> None:
        """A verb has come. It may be a restore that waits for this very spare: memory is compared the next
        time that one is made."""
        if self._closed or self._background.busy:
            raise _Interrupted

    def _compare_images(self, folder: Path, digest: str, pause: Pause, *, deep: bool) -> list[str]:
        try:
            made = manifest.read(folder, digest)
        except ManifestError as error:
            return [str(error)]
        return list(manifest.damaged_images(folder, made, pause, deep=deep))

    def compare(self, point: Checkpoint, *, deep: bool, pause: Pause = _no_pause) -> list[str]:
        """What of a point is not what was written. `deep`: with its memory and all its files."""
        folder = self._home.checkpoints / point.id
        if damage := pointfile.damage(folder, files_only=point.files_only):
            return [damage.removeprefix("the checkpoint is damaged: ")]
        if (digest := self._store.points.digest(point.id)) is None:
            return []
        try:
            made = manifest.read(folder, digest)
        except ManifestError as error:
            return [str(error)]
        damage_found = list(manifest.damaged_images(folder, made, pause, deep=deep))
        if wrong := manifest.damage_of_point_file(folder, made):
            damage_found.append(wrong)
        if deep:
            damage_found += manifest.damaged_files(folder, made, pause)
        return damage_found

    def _damaged(self, point: Checkpoint, damage: list[str]) -> PointDamaged:
        self.mark(point, damage)
        return _error(point, manifest.summary(damage))

    def mark(self, point: Checkpoint, damage: list[str]) -> None:
        """From now on nothing relies on the point."""
        words = manifest.summary(damage)
        log.error(
            "%s:%s (%s) is damaged and cannot be restored: %s", point.session, point.label, point.id, words
        )
        self._store.points.set_damage(point.id, words)


def _with_point_file(made: Manifest, folder: Path) -> Manifest:
    """A manifest with the digest of point.json as it is now."""
    try:
        data = (folder / pointfile.POINT_FILE).read_bytes()
    except FileNotFoundError:
        return made  # points of older versions have none
    return msgspec.structs.replace(made, point=contents.of_bytes(data))


def _error(point: Checkpoint, damage: str) -> PointDamaged:
    return PointDamaged(
        f"{point.label} of session {point.session!r} is damaged: {damage}",
        hint=Hint(
            "nothing has changed; ",
            Arg("restore", files_only=True),
            " brings back the files with a fresh shell, ",
            Do("check", deep=True),
            " compares all points",
        ),
        point=point.id,
    )
