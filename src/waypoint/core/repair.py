"""`recover`: puts in order what a check finds, as far as nothing has to be guessed, and says what it did.

A complete point without a row is adopted, remains are deleted, what a row and a folder say twice is written
again from the one that is whole. A point that is not what was written is marked, and the mark goes only when
all of it is compared and is what was written. Rows that belong to rows that are gone are deleted. A repair
that fails does not prevent the others. A database that cannot be read is another matter: core/rebuild.py.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from waypoint.bases import store as bases
from waypoint.core import pointfile
from waypoint.core.adoption import Adoption, is_unreadable
from waypoint.core.check import Check, Progress
from waypoint.core.digests import Digests
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.errors import DatabaseDamaged, WaypointError
from waypoint.kernel import faults, locks
from waypoint.kernel.pool.protocol import SCRATCH, Pool
from waypoint.kernel.seals import Key
from waypoint.model import Checkpoint, Recovered, Repair, Violation
from waypoint.store.database import damaged

log = logging.getLogger("waypoint")


class Repairs:
    """Puts one home in order."""

    def __init__(
        self,
        registry: Registry,
        pool: Pool,
        remains: Remains,
        digests: Digests,
        adoption: Adoption,
        check: Check,
        key: Key,
    ) -> None:
        self._registry, self._store, self._home = registry, registry.store, registry.home
        self._pool, self._remains, self._digests = pool, remains, digests
        self._adoption, self._check, self._key = adoption, check, key
        self._lock = locks.lock("repairs")
        self._done: list[Repair] = []
        self._foreign = False

    def run(self, progress: Progress = lambda _: None, *, foreign: bool = False) -> Recovered:
        """Checks everything, repairs, and checks again. `foreign`: what this installation has not made
        becomes its own."""
        with self._lock:
            self._foreign = foreign
            return self._run(progress)

    def _run(self, progress: Progress) -> Recovered:
        self._done = []
        adopted_before = len(self._adoption.done)
        found = self._check.run(deep=True, progress=progress).violations
        faults.reach("recover.checked")
        failed = list(self._repair_all(found))
        self._clear_marks()
        faults.reach("recover.repaired")
        self._digests.make_missing()  # also of points whose repair was interrupted once
        self._done += self._adoption.done[adopted_before:]
        explained = {(violation.rule, violation.where) for violation in failed}
        again = self._check.run(deep=False, progress=progress).violations
        left = [*failed, *(one for one in again if (one.rule, one.where) not in explained)]
        listed = {violation.point for violation in left}
        known = [one for one in found if one.remedy == "forget" and one.point not in listed]
        marked = [one for one in known if self._is_marked(one)]
        return Recovered(repaired=tuple(self._done), left=(*left, *marked))

    def _note(self, what: str, where: str) -> None:
        log.warning("%s (%s)", what, where)
        self._done.append(Repair(what=what, where=where))

    def _is_marked(self, violation: Violation) -> bool:
        point = self._store.points.find(violation.point or "")
        return point is not None and point.damage is not None

    def _repair_all(self, violations: Sequence[Violation]) -> Iterator[Violation]:
        """Yields those whose repair has failed, with the reason."""
        for violation in violations:
            try:
                self._repair(violation)
            except DatabaseDamaged:
                raise  # it has to be rebuilt, and everything else is repaired after that
            except (OSError, WaypointError) as error:
                log.exception("could not repair %s (%s)", violation.what, violation.where)
                what = f"{violation.what}; its repair has failed: {error}"
                yield msgspec.structs.replace(violation, what=what)

    def _repair(self, violation: Violation) -> None:
        if violation.remedy == "forget":
            self._note(f"marked as damaged: {violation.what}", violation.where)
        if violation.remedy == "foreign" and self._foreign:
            self._take_over(self._home.path / violation.where)
        if violation.remedy != "recover":
            return
        path = self._home.path / violation.where
        match violation.rule:
            case 2 if path.parent == self._home.checkpoints and path in self._remains.without_row():
                if not is_unreadable(path):
                    self._adoption.adopt([path])
            case 2 | 3:
                self._delete(path)
            case 4:
                self._seal(path, violation)
            case 10:
                point = self._store.points.find(violation.point or "")
                if point:
                    self._write_point_file(point)
            case 7 | 20 | 21 | 22:
                self._repair_rows()

    def _take_over(self, path: Path) -> None:
        """A point or a base of another installation, from now on this one's."""
        if path.parent == self._home.checkpoints:
            self._adoption.adopt([path], foreign=True)
            self._digests.write_point_file(path.name)
        else:
            bases.seal(path, self._key)
            where = str(path.relative_to(self._home.path))
            self._note(f"the base {path.name!r} was made elsewhere, and can be used now", where)

    def _delete(self, path: Path) -> None:
        if path.parent == self._home.pool / SCRATCH:
            faults.reach("recover.scratch")
            self._pool.delete(path)
        else:
            self._remains.delete(path)
        if not path.exists():
            self._note("remains that belonged to nothing are deleted", str(path.relative_to(self._home.path)))

    def _seal(self, path: Path, violation: Violation) -> None:
        """Its content was compared in the same run, if there was something to compare it with."""
        faults.reach("recover.sealing")
        self._pool.seal(path)
        faults.reach("recover.sealed")
        self._note(f"made read-only again: {violation.what}", violation.where)

    def _write_point_file(self, point: Checkpoint) -> None:
        """point.json from the row of the point and of its session. The digests get that of the new file."""
        folder = self._home.checkpoints / point.id
        if not self._digests.write_point_file(point.id):
            return  # reported as damage already
        self._note(
            f"point.json of {point.label} of session {point.session!r} is written again from its row",
            str((folder / pointfile.POINT_FILE).relative_to(self._home.path)),
        )

    def _clear_marks(self) -> None:
        """Points that are marked, and are what was written."""
        for point in self._store.points.all():
            if point.damage and point.digested and not any(self._check.point(point, deep=True)):
                faults.reach("recover.compared")
                self._store.points.clear_damage(point.id)
                faults.reach("recover.unmarked")
                self._note(
                    f"{point.label} of session {point.session!r} is what was written: it is no longer marked",
                    str((self._home.checkpoints / point.id).relative_to(self._home.path)),
                )

    # ---- rows --------------------------------------------------------------------------------

    def _repair_rows(self) -> None:
        """Rows that belong to nothing, and what points nowhere: all of them at once."""
        with self._store.database.transaction() as connection:
            repaired = [*self._rebuild_indexes(connection), *_delete_orphans(connection)]
            for words, table, statement in _POINTERS:
                if number := connection.execute(statement).rowcount:
                    repaired.append((f"{words} ({number})", table))
            faults.reach("recover.rows")
        for what, table in repaired:  # now it is committed
            self._note(what, table)

    def _rebuild_indexes(self, connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
        words = [row[0] for row in connection.execute("PRAGMA integrity_check").fetchall()]
        wrong = [text for text in words if text != "ok"]
        if not wrong:
            return
        if not all(" index " in text for text in wrong):
            raise damaged(self._home.database, wrong[0])  # rebuilt while no daemon runs (core/rebuild.py)
        connection.execute("REINDEX")
        yield f"the indexes of the database are made again: {wrong[0]}", "waypoint.db"


def _delete_orphans(connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Deletes rows that belong to rows which are gone."""
    for table, rowid, *_ in map(tuple, connection.execute("PRAGMA foreign_key_check").fetchall()):
        if rowid is not None:
            connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
            yield f"row {rowid} of {table} is deleted: it belonged to nothing", table


_POINTERS = (
    (
        "notes of forgotten points are deleted: the points have rows",
        "forgotten",
        "DELETE FROM forgotten WHERE checkpoint IN (SELECT id FROM checkpoints)",
    ),
    (
        "sessions that were at a point that is not there are at none",
        "sessions",
        "UPDATE sessions SET head = NULL WHERE head IS NOT NULL AND head NOT IN (SELECT id FROM checkpoints)",
    ),
    (
        "sessions that were forked from a point that is not there were forked from none",
        "sessions",
        (
            "UPDATE sessions SET forked_from = NULL"
            " WHERE forked_from IS NOT NULL AND forked_from NOT IN (SELECT id FROM checkpoints)"
        ),
    ),
    (
        "points that followed one that is not there follow none",
        "checkpoints",
        (
            "UPDATE checkpoints SET parent = NULL"
            " WHERE parent IS NOT NULL AND parent NOT IN (SELECT id FROM checkpoints)"
        ),
    ),
    (
        "sessions count their points from their highest number on",
        "sessions",
        (
            "UPDATE sessions SET points = (SELECT max(number) FROM checkpoints WHERE session = sessions.id)"
            " WHERE points < (SELECT max(number) FROM checkpoints WHERE session = sessions.id)"
        ),
    ),
)
