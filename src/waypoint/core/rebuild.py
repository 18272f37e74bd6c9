"""A database that cannot be read is made again, from what is whole of it and from the folders of the points.

No daemon runs meanwhile. The damaged files are kept beside the new ones. A table is taken over when SQLite
finds no fault in it; from any other not one row is believed. Then every complete folder of a point that has
no row gets one. A session whose row is lost comes back with its points; it runs on if its box does. All of
that happens in another file, which takes the place of the damaged one at the end: whatever fails before that
has changed nothing, and what is left of the exchange is done by the next process that opens the database.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from waypoint.core import pointfile
from waypoint.core.adoption import Adoption
from waypoint.core.pointfile import PointFile
from waypoint.core.remains import Remains
from waypoint.errors import DaemonError, DatabaseDamaged, translated
from waypoint.home import Home
from waypoint.kernel import atomic, faults
from waypoint.kernel.pool.protocol import Pool
from waypoint.kernel.seals import Key
from waypoint.model import Recovered, Repair, Violation
from waypoint.store import Store
from waypoint.store.database import SCHEMA_VERSION
from waypoint.store.exchange import exchange, finish_exchange
from waypoint.store.pending import read_pending
from waypoint.store.points import read_point
from waypoint.store.sessions import read_session

log = logging.getLogger("waypoint")

_SUFFIXES = ("", "-wal", "-shm")
_BOXES_RULE = 21


class Rebuild:
    """One rebuilding of the database of a home."""

    def __init__(self, home: Home, pool: Pool, standing: Mapping[str, int]) -> None:
        self._home, self._pool, self._standing = home, pool, standing
        self._work = home.path / ".rebuild"
        self._done: list[Repair] = []

    def run(self) -> Recovered:
        """Afterwards the home has a database that can be opened."""
        with translated("rebuild the database of", self._home.path):
            finish_exchange(self._home.database)
            kept = self._keep()
            faults.reach("rebuild.kept")
            shutil.rmtree(self._work, ignore_errors=True)
            self._work.mkdir(mode=0o700)
            try:
                fresh = self._work / "new.db"
                store = Store(fresh)
                try:
                    self._take_over(store)
                    faults.reach("rebuild.read")
                    left = self._adopt(store)
                    faults.reach("rebuild.adopted")
                finally:
                    store.close()
                if Path(f"{fresh}-wal").exists():
                    raise OSError(errno.EIO, "the log of the new database could not be written back")
                exchange(fresh, self._home.database)
            finally:
                shutil.rmtree(self._work, ignore_errors=True)
        return Recovered(repaired=tuple(self._done), left=tuple(left), kept=str(kept))

    def _note(self, what: str, where: str = "waypoint.db") -> None:
        log.warning("%s (%s)", what, where)
        self._done.append(Repair(what=what, where=where))

    def _keep(self) -> Path:
        """A copy of the files as they are, on the disk."""
        name = f"damaged-{time.strftime('%Y%m%d-%H%M%S')}"
        folder = next(
            path
            for path in (
                self._home.path / f"{name}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 99)))
            )
            if not path.exists()
        )
        folder.mkdir(mode=0o700)
        for suffix in _SUFFIXES:
            source = Path(f"{self._home.database}{suffix}")
            if source.exists():
                shutil.copy2(source, folder / source.name)
                atomic.sync(folder / source.name)
        atomic.sync(folder)
        atomic.sync(self._home.path)
        return folder

    # ---- what is whole of the old one --------------------------------------------------------

    def _take_over(self, store: Store) -> None:
        old = self._open_copy()
        if old is None:
            self._note("nothing of the database can be read: it is made from the points alone")
            return
        with contextlib.closing(old), store.database.transaction() as new:
            new.execute("PRAGMA defer_foreign_keys=ON")
            for table in _tables(new):
                self._take_table(old, new, table)
            self._drop_unreadable(new)
            self._drop_orphans(new)

    def _open_copy(self) -> sqlite3.Connection | None:
        """A copy of the old database with the schema of this version; None when that cannot be had."""
        path = self._work / "old.db"
        for suffix in _SUFFIXES[:2]:
            source = Path(f"{self._home.database}{suffix}")
            if source.exists():
                shutil.copy2(source, f"{path}{suffix}")
        try:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version == 0:
                return None
            Store(path).close()  # brings an earlier schema up to date, and refuses a newer one
            return sqlite3.connect(path)
        except (sqlite3.DatabaseError, UnicodeDecodeError, DatabaseDamaged):
            return None

    def _take_table(self, old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> None:
        try:
            faults = [words for (words,) in old.execute(f"PRAGMA integrity_check({table})") if words != "ok"]
            if not faults:
                columns = [row[1] for row in new.execute(f"PRAGMA table_info({table})")]
                names = ", ".join(columns)
                rows = old.execute(f"SELECT {names} FROM {table}").fetchall()
                new.execute(f"DELETE FROM {table}")
                marks = ", ".join("?" * len(columns))
                new.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)
                if rows:
                    self._note(f"{len(rows)} rows of {table} are taken over")
                return
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            faults = [str(error)]
            new.execute(f"DELETE FROM {table}")
        self._note(f"no row of {table} is taken over: {faults[0]}")

    def _drop_unreadable(self, new: sqlite3.Connection) -> None:
        """Rows of points and sessions that are not what they should be: their folders say it better."""
        new.row_factory = sqlite3.Row
        queries = (
            ("sessions", read_session, "SELECT * FROM sessions"),
            (
                "checkpoints",
                read_point,
                "SELECT c.*, '' AS session_name, '[]' AS verdicts, NULL AS tags FROM checkpoints c",
            ),
            ("pending", read_pending, "SELECT p.*, p.checkpoint AS id FROM pending p"),
        )
        for table, read, query in queries:
            key = "checkpoint" if table == "pending" else "id"
            for row in new.execute(query).fetchall():
                try:
                    read(row)
                except DatabaseDamaged as error:
                    new.execute(f"DELETE FROM {table} WHERE {key} = ?", (row["id"],))
                    self._note(f"a row is not taken over: {error.message}")

    def _drop_orphans(self, new: sqlite3.Connection) -> None:
        new.execute("DELETE FROM pending WHERE session NOT IN (SELECT id FROM sessions)")  # it has no rowids
        for table, rowid, *_ in map(tuple, new.execute("PRAGMA foreign_key_check").fetchall()):
            if rowid is not None:
                new.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
                self._note(f"row {rowid} of {table} is not taken over: what it belongs to is gone")
        new.execute("UPDATE sessions SET tip = NULL WHERE tip NOT IN (SELECT id FROM events)")
        new.execute("UPDATE checkpoints SET position = NULL WHERE position NOT IN (SELECT id FROM events)")
        new.execute(
            "UPDATE events SET parent = NULL"
            " WHERE parent IS NOT NULL AND parent NOT IN (SELECT id FROM events)"
        )

    # ---- from the folders --------------------------------------------------------------------

    def _adopt(self, store: Store) -> list[Violation]:
        remains = Remains(self._home, self._pool, store)
        adoption = Adoption(self._home, store, self._pool, remains, Key.of(self._home.path))
        contents = [pointfile.read(path) for path in remains.without_row() if adoption.is_own(path)]
        lost = [one for one in contents if one and store.sessions.find(one.session.id) is None]
        adoption.run()
        self._done += adoption.done
        self._wake(store, lost)
        store.sync()
        owned = {row.box for row in store.sessions.all()} | store.pending.boxes()
        return [
            Violation(
                rule=_BOXES_RULE,
                what=f"box {box} runs and no point says which session it is of: the next daemon ends it",
                where=f"pool/sessions/{box}",
                remedy="none",
            )
            for box in self._standing
            if box not in owned
        ]

    def _wake(self, store: Store, lost: list[PointFile]) -> None:
        """Sessions whose rows were lost, and whose boxes stand. A restore builds another box: so the last
        point that was taken in this one is where the session stands."""
        for content in sorted(lost, key=lambda content: content.point.created_at):
            box = content.session.box
            if box in self._standing and store.points.find(content.point.id):
                store.sessions.set_state(content.session.id, "live", box=box)
                store.sessions.set_head(content.session.id, content.point.id)
                self._note(f"session {content.session.name!r} runs on in box {box}", "waypoint.db")


def _tables(connection: sqlite3.Connection) -> list[str]:
    """All tables of the schema, those first that others refer to."""
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    first = [name for name in ("sessions", "blobs", "checkpoints") if name in names]
    return [*first, *sorted(name for name in names - {*first} if not name.startswith("sqlite_"))]


def refuse_newer(home: Home) -> None:
    """DaemonError for a database of a newer version: it is not damaged, and is left alone."""
    with (
        contextlib.suppress(sqlite3.DatabaseError, UnicodeDecodeError),
        contextlib.closing(sqlite3.connect(home.database)) as connection,
    ):
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise DaemonError(
                f"the database was written by a newer Waypoint (schema {version}): it is left as it is",
                hint="use that version",
            )
