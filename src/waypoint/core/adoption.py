"""Making database and pool agree again after a daemon that died or a power cut.

A complete folder without a row becomes a point again: the daemon died before it wrote the row, or a power cut
took the row. A row without its data is removed. What `forgotten` names is left to be deleted. Nothing is
guessed: what is not certainly complete after a power cut is no point.
"""

from __future__ import annotations

import logging

import msgspec

from waypoint.core import pointfile
from waypoint.core.pointfile import PointFile
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.kernel.pool.protocol import Pool
from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")

BOOT_FILE = "boot"
"""In the run folder, which a reboot empties: with it, nothing that was written can have been lost since."""


class Adoption:
    """Rows for data, and no rows without data. To be run before the first request is served."""

    def __init__(self, registry: Registry, pool: Pool, remains: Remains) -> None:
        self._store, self._home, self._pool, self._remains = registry.store, registry.home, pool, remains

    def run(self, *, writes_lost: bool = False) -> None:
        """`writes_lost`: what was not synced may be gone, although the machine has not been rebooted."""
        boot = self._home.run / BOOT_FILE
        rebooted = writes_lost or not boot.exists()
        self._drop_rows_without_data(rebooted=rebooted)
        self._adopt(rebooted=rebooted)
        self._drop_notes_of_forgotten()
        boot.touch()

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
            if damage:
                log.warning(
                    "%s:%s (%s) is no point any more: %s", point.session, point.label, point.id, damage
                )
                self._store.points.remove(point.id)

    def _adopt(self, *, rebooted: bool) -> None:
        contents = [(path, pointfile.read(path)) for path in self._remains.without_row()]
        complete: list[PointFile] = []
        for path, content in contents:
            damage = (
                self._damage(path.name, files_only=content.point.files_only, rebooted=rebooted)
                if content and content.point.id == path.name
                else "what it is was not written to its end"
            )
            if content is None or damage:
                log.warning("deleting %s, a point that was being made: %s", path.name, damage)
                self._remains.delete(path)
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
        point = store.points.adopt(new, head=new.id if follows or row.state != "live" else row.head)
        log.warning("%s:%s (%s) had no row in the database: adopted", point.session, point.label, point.id)

    def _add_session(self, row: SessionRow) -> SessionRow:
        taken = {other.name for other in self._store.sessions.all()}
        names = (row.name, *(f"{row.name}-{number}" for number in range(2, len(taken) + 3)))
        name = next(name for name in names if name not in taken)
        self._store.sessions.add_lost(msgspec.structs.replace(row, name=name))
        log.warning("session %s had no row in the database: it is there again, and does not run", name)
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
