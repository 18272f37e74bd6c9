"""Making database and pool agree again after a daemon that died or a power cut.

A complete folder without a row becomes a point again: the daemon died before it wrote the row, or a power cut
took the row. One that this installation has not made is left alone until the user says that it may be used:
what is in its images would run as root. A row without its data is removed when a power cut may have taken the
data, and marked as damaged when the data was on the disk. What `forgotten` names is left to be deleted.
Nothing is guessed: what is not certainly complete after a power cut is no point.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from waypoint.core import manifest, pointfile
from waypoint.core.pointfile import PointFile
from waypoint.core.remains import Remains
from waypoint.home import Home
from waypoint.kernel import faults
from waypoint.kernel.pool.protocol import Pool
from waypoint.kernel.seals import Key
from waypoint.model import Repair
from waypoint.store import Store
from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")

BOOT_FILE = "boot"
"""In the run folder, which a reboot empties: with it, nothing that was written can have been lost since."""


def is_unreadable(folder: Path) -> bool:
    """Whether a folder without a row was a point, and what it was cannot be read: a newer version has written
    it, or its point.json is damaged. (It has digests only if it had a row once.)"""
    if pointfile.is_newer(folder):
        return True
    return pointfile.read(folder) is None and (folder / manifest.MANIFEST_FILE).exists()


class Adoption:
    """Rows for data, and no rows without data. To be run before the first request is served."""

    def __init__(self, home: Home, store: Store, pool: Pool, remains: Remains, key: Key) -> None:
        self._home, self._store, self._pool, self._remains = home, store, pool, remains
        self._key = key
        self.done: list[Repair] = []
        """What was put in order since the daemon has started."""

    def run(self, *, writes_lost: bool = False) -> None:
        """`writes_lost`: what was not synced may be gone, although the machine has not been rebooted."""
        boot = self._home.run / BOOT_FILE
        rebooted = writes_lost or not boot.exists()
        self._drop_rows_without_data(rebooted=rebooted)
        faults.reach("adopt.dropped")
        self._adopt(rebooted=rebooted)
        self._drop_notes_of_forgotten()
        faults.reach("adopt.cleared")
        boot.touch(mode=0o600)

    def _damage(self, point_id: str, *, files_only: bool, rebooted: bool) -> str | None:
        """What is missing of a point that had not been marked as durable."""
        if rebooted and self._pool.kind != "btrfs":
            # The copy of a file may have its size and not its content: nothing there tells.
            return "the machine went down before its files were on the disk"
        return pointfile.damage(self._home.checkpoints / point_id, files_only=files_only)

    def _drop_rows_without_data(self, *, rebooted: bool) -> None:
        for point in self._store.points.all():
            folder = self._home.checkpoints / point.id
            if point.durable:
                damage = None if (folder / "files").is_dir() else "its files are gone"
            else:
                damage = self._damage(point.id, files_only=point.files_only, rebooted=rebooted)
            if not damage or point.damage:
                continue
            name = f"{point.label} of session {point.session!r}"
            if point.durable:
                self._store.points.set_damage(point.id, damage)
                self._note(f"{name} is marked as damaged: {damage}", folder)
            else:
                self._store.points.remove(point.id)
                self._note(f"{name} was not durable and is no point any more: {damage}", folder)

    def _note(self, what: str, folder: Path) -> None:
        log.warning("%s (%s)", what, folder.name)
        self.done.append(Repair(what=what, where=str(folder.relative_to(self._home.path))))

    def _adopt(self, *, rebooted: bool) -> None:
        self.adopt(self._remains.without_row(), rebooted=rebooted)

    def is_own(self, folder: Path) -> bool:
        """Whether this installation has made the point in a folder."""
        return pointfile.is_own(folder, self._key) and manifest.is_own(folder, self._key)

    def adopt(self, folders: Iterable[Path], *, rebooted: bool = False, foreign: bool = False) -> None:
        """Makes points of complete folders without a row, and deletes those that were being made. A folder
        that was a point once, and cannot be read now, is left as it is; so is one that this installation has
        not made, unless `foreign`."""
        contents = [(path, pointfile.read(path)) for path in folders if not is_unreadable(path)]
        faults.reach("adopt.read")
        complete: list[PointFile] = []
        for path, content in contents:
            damage = (
                self._damage(path.name, files_only=content.point.files_only, rebooted=rebooted)
                if content and content.point.id == path.name
                else "what it is was not written to its end"
            )
            if content is None or damage:
                self._remains.delete(path)
                self._note(f"the remains of a point that was being made are deleted: {damage}", path)
            elif not (foreign or self.is_own(path)):
                log.warning("a point that this installation has not made is left alone (%s)", path.name)
            else:
                complete.append(content)
        for content in sorted(complete, key=lambda content: content.point.created_at):
            self._adopt_one(content)

    def _adopt_one(self, content: PointFile) -> None:
        store, new = self._store, content.point
        row = store.sessions.find(new.session) or self._add_session(content.session)
        if store.points.number_taken(row.id, new.number):
            new = msgspec.structs.replace(new, number=store.points.next_number(row.id))
        if new.name is not None and store.points.name_taken(row.id, new.name):
            new = msgspec.structs.replace(new, name=None)
        if new.parent is not None and store.points.find(new.parent) is None:
            new = msgspec.structs.replace(new, parent=None)
        head = store.points.find(row.head) if row.head else None
        # A session that runs stands where it stood, unless this point was its next. One that does not run
        # stands on its last point.
        follows = head is None or new.parent == head.id
        stands_at = new.id if follows or row.state != "live" else row.head
        folder = self._home.checkpoints / new.id
        point = store.points.adopt(new, head=stands_at, digest=manifest.digest_of(folder))
        faults.reach("adopt.added")
        self._note(f"{point.label} of session {point.session!r} had no row in the database: adopted", folder)

    def _add_session(self, row: SessionRow) -> SessionRow:
        taken = {other.name for other in self._store.sessions.all()}
        names = (row.name, *(f"{row.name}-{number}" for number in range(2, len(taken) + 3)))
        name = next(name for name in names if name not in taken)
        self._store.sessions.add_lost(msgspec.structs.replace(row, name=name))
        words = f"session {name!r} had no row in the database: it is there again, and does not run"
        self._note(words, self._home.database)
        added = self._store.sessions.find(row.id)
        assert added
        return added

    def _drop_notes_of_forgotten(self) -> None:
        """Once folders are gone from the disk too, nothing has to be remembered of them."""
        gone = [
            name for name in self._store.points.forgotten() if not (self._home.checkpoints / name).exists()
        ]
        if gone:
            self._pool.sync()
            self._store.points.drop_forgotten(gone)
