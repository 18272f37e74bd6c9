"""The SQLite file: opening it, its schema, and transactions.

WAL mode, one connection and one lock for all threads. The other modules of this room hold one group of tables
each and are put together in `Store`. Schema and rules: docs/storage.md.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from waypoint.api.hints import Do, Hint
from waypoint.errors import DaemonError, DatabaseDamaged, MachineError, NoSpace, translated
from waypoint.kernel import atomic, faults, locks

MIGRATIONS = (
    """
    CREATE TABLE sessions (
        id          TEXT PRIMARY KEY,
        name        TEXT NOT NULL UNIQUE,
        state       TEXT NOT NULL CHECK (state IN ('live', 'parked', 'dead')),
        created_at  REAL NOT NULL,
        options     TEXT NOT NULL,
        head        TEXT,
        forked_from TEXT,
        box         TEXT,
        points      INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE checkpoints (
        id          TEXT PRIMARY KEY,
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        number      INTEGER NOT NULL,
        name        TEXT,
        intent      TEXT NOT NULL,
        kind        TEXT NOT NULL CHECK (kind IN ('manual', 'safety', 'park', 'auto')),
        parent      TEXT,
        created_at  REAL NOT NULL,
        pause_ms    REAL NOT NULL,
        total_ms    REAL NOT NULL,
        size_bytes  INTEGER NOT NULL,
        processes   INTEGER NOT NULL,
        files_only  INTEGER NOT NULL,
        coverage    TEXT NOT NULL,
        UNIQUE (session, number),
        UNIQUE (session, name)
    );
    CREATE TABLE operations (
        id          INTEGER PRIMARY KEY,
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        verb        TEXT NOT NULL,
        target      TEXT,
        before      TEXT,
        undone      INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX operations_by_session ON operations (session, id);
    """,
    """
    ALTER TABLE checkpoints ADD COLUMN actor TEXT NOT NULL DEFAULT 'person';
    ALTER TABLE checkpoints ADD COLUMN intent_from TEXT NOT NULL DEFAULT 'given';
    ALTER TABLE checkpoints ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN auto INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE operations ADD COLUMN head TEXT;
    CREATE TABLE cards (
        checkpoint  TEXT PRIMARY KEY REFERENCES checkpoints(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        card        TEXT NOT NULL
    );
    CREATE TABLE verdicts (
        id          INTEGER PRIMARY KEY,
        checkpoint  TEXT NOT NULL REFERENCES checkpoints(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        command     TEXT NOT NULL,
        state       TEXT NOT NULL CHECK (state IN ('running', 'passed', 'failed', 'error')),
        exit_code   INTEGER,
        duration_ms REAL,
        output      TEXT NOT NULL DEFAULT ''
    );
    CREATE INDEX verdicts_by_checkpoint ON verdicts (checkpoint, id);
    CREATE TABLE tags (
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        name        TEXT NOT NULL,
        checkpoint  TEXT NOT NULL REFERENCES checkpoints(id) ON DELETE CASCADE,
        PRIMARY KEY (session, name)
    );
    CREATE TABLE notes (
        id          INTEGER PRIMARY KEY,
        checkpoint  TEXT NOT NULL REFERENCES checkpoints(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        text        TEXT NOT NULL
    );
    CREATE TABLE plans (
        id          TEXT PRIMARY KEY,
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        target      TEXT NOT NULL REFERENCES checkpoints(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        ground      TEXT NOT NULL
    );
    """,
    """
    CREATE TABLE landed (
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        path        BLOB NOT NULL,
        stamp       TEXT NOT NULL,
        PRIMARY KEY (session, path)
    );
    """,
    """
    ALTER TABLE sessions ADD COLUMN began TEXT;
    ALTER TABLE checkpoints ADD COLUMN summary TEXT;
    UPDATE checkpoints SET summary =
        (SELECT json_extract(card, '$.summary') FROM cards WHERE checkpoint = checkpoints.id);
    CREATE INDEX tags_by_checkpoint ON tags (checkpoint);
    """,
    """
    CREATE TABLE blobs (
        hash        TEXT PRIMARY KEY,
        size        INTEGER NOT NULL,
        data        BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE events (
        id          INTEGER PRIMARY KEY AUTOINCREMENT,
        session     TEXT NOT NULL,
        parent      INTEGER,
        at          REAL NOT NULL,
        kind        TEXT NOT NULL,
        actor       TEXT NOT NULL DEFAULT 'person',
        body        TEXT NOT NULL,
        blob        TEXT REFERENCES blobs(hash)
    );
    CREATE INDEX events_by_session ON events (session, id);
    CREATE INDEX events_by_blob ON events (blob) WHERE blob IS NOT NULL;
    ALTER TABLE sessions ADD COLUMN tip INTEGER;
    ALTER TABLE sessions ADD COLUMN tasks TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE checkpoints ADD COLUMN position INTEGER;
    ALTER TABLE checkpoints ADD COLUMN tasks TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE checkpoints ADD COLUMN agent_state TEXT REFERENCES blobs(hash);
    ALTER TABLE checkpoints ADD COLUMN agent_state_kind TEXT;
    ALTER TABLE checkpoints ADD COLUMN agent_version TEXT;
    CREATE INDEX checkpoints_by_state ON checkpoints (agent_state) WHERE agent_state IS NOT NULL;
    """,
    """
    CREATE TABLE contacts (
        id          INTEGER PRIMARY KEY,
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        box         TEXT NOT NULL,
        point       TEXT,
        address     TEXT NOT NULL,
        protocol    TEXT NOT NULL,
        port        INTEGER NOT NULL,
        names       TEXT NOT NULL,
        first_at    REAL NOT NULL,
        last_at     REAL NOT NULL,
        bytes_out   INTEGER NOT NULL,
        bytes_in    INTEGER NOT NULL
    );
    CREATE INDEX contacts_by_session ON contacts (session, last_at);
    CREATE INDEX contacts_by_point ON contacts (point);
    CREATE TABLE counted (
        box         TEXT NOT NULL,
        address     TEXT NOT NULL,
        protocol    TEXT NOT NULL,
        port        INTEGER NOT NULL,
        bytes_out   INTEGER NOT NULL,
        bytes_in    INTEGER NOT NULL,
        at          REAL NOT NULL,
        PRIMARY KEY (box, address, protocol, port)
    ) WITHOUT ROWID;
    """,
    """
    ALTER TABLE sessions ADD COLUMN policy TEXT;
    CREATE TABLE effects (
        id          INTEGER PRIMARY KEY AUTOINCREMENT,
        session     TEXT NOT NULL,
        name        TEXT NOT NULL,
        at          REAL NOT NULL,
        command     TEXT NOT NULL,
        class       TEXT NOT NULL,
        rule        TEXT NOT NULL DEFAULT '',
        target      TEXT NOT NULL DEFAULT '',
        key         TEXT NOT NULL DEFAULT '',
        compensate  TEXT NOT NULL DEFAULT '',
        source      TEXT NOT NULL,
        state       TEXT NOT NULL,
        exit_code   INTEGER,
        actor       TEXT NOT NULL DEFAULT 'person',
        approval    TEXT,
        details     TEXT NOT NULL DEFAULT '{}'
    );
    CREATE INDEX effects_by_session ON effects (session, id);
    CREATE INDEX effects_by_key ON effects (key, id) WHERE key != '';
    CREATE INDEX events_of_effects ON events (json_extract(body, '$.effect')) WHERE kind = 'effect';
    CREATE TABLE approvals (
        id          TEXT PRIMARY KEY,
        session     TEXT NOT NULL,
        name        TEXT NOT NULL,
        digest      TEXT NOT NULL,
        command     TEXT NOT NULL,
        class       TEXT NOT NULL,
        why         TEXT NOT NULL,
        actor       TEXT NOT NULL,
        created_at  REAL NOT NULL,
        expires_at  REAL NOT NULL,
        state       TEXT NOT NULL,
        decided_at  REAL,
        note        TEXT NOT NULL DEFAULT ''
    );
    CREATE INDEX approvals_by_state ON approvals (state, created_at);
    """,
    """
    ALTER TABLE sessions ADD COLUMN beginning TEXT;
    """,
    """
    ALTER TABLE checkpoints ADD COLUMN durable INTEGER NOT NULL DEFAULT 0;
    UPDATE checkpoints SET durable = 1;
    CREATE TABLE forgotten (
        checkpoint  TEXT PRIMARY KEY,
        at          REAL NOT NULL
    ) WITHOUT ROWID;
    """,
    """
    ALTER TABLE checkpoints ADD COLUMN restorable TEXT NOT NULL DEFAULT 'unproven';
    ALTER TABLE checkpoints ADD COLUMN restore_error TEXT;
    """,
    # A command that took too long, or that ended with 125 (it cannot tell), has not failed.
    """
    ALTER TABLE verdicts RENAME TO old_verdicts;
    CREATE TABLE verdicts (
        id          INTEGER PRIMARY KEY,
        checkpoint  TEXT NOT NULL REFERENCES checkpoints(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        command     TEXT NOT NULL,
        state       TEXT NOT NULL,
        exit_code   INTEGER,
        duration_ms REAL,
        output      TEXT NOT NULL DEFAULT ''
    );
    INSERT INTO verdicts (id, checkpoint, at, command, state, exit_code, duration_ms, output)
        SELECT id, checkpoint, at, command,
            CASE WHEN state != 'failed' THEN state
                WHEN output LIKE '%[waypoint: it took longer than % s]' THEN 'timeout'
                WHEN exit_code = 125 THEN 'unclear' ELSE state END,
            exit_code, duration_ms, output FROM old_verdicts;
    DROP TABLE old_verdicts;
    CREATE INDEX verdicts_by_checkpoint ON verdicts (checkpoint, id);
    """,
    """
    ALTER TABLE checkpoints ADD COLUMN digest TEXT;
    ALTER TABLE checkpoints ADD COLUMN damage TEXT;
    ALTER TABLE checkpoints ADD COLUMN platform TEXT;
    """,
    # Older versions removed sessions without a look at those that were forked from their points.
    """
    CREATE TABLE handed_over (
        checkpoint  TEXT PRIMARY KEY REFERENCES checkpoints(id) ON DELETE CASCADE
    ) WITHOUT ROWID;
    UPDATE sessions SET forked_from = NULL WHERE forked_from NOT IN (SELECT id FROM checkpoints);
    UPDATE sessions SET head = NULL WHERE head NOT IN (SELECT id FROM checkpoints);
    UPDATE checkpoints SET parent = NULL WHERE parent NOT IN (SELECT id FROM checkpoints);
    """,
    """
    CREATE TABLE forwards (
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        port        INTEGER NOT NULL,
        address     TEXT NOT NULL,
        local_port  INTEGER NOT NULL,
        problem     TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (address, local_port)
    ) WITHOUT ROWID;
    CREATE INDEX forwards_by_session ON forwards (session, port);
    """,
    """
    ALTER TABLE checkpoints ADD COLUMN cost INTEGER;
    ALTER TABLE checkpoints ADD COLUMN cost_stale INTEGER NOT NULL DEFAULT 1;
    """,
    """
    CREATE TABLE pending (
        checkpoint  TEXT PRIMARY KEY,
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        box         TEXT NOT NULL,
        parent      TEXT,
        position    INTEGER,
        point       TEXT NOT NULL,
        tree        TEXT NOT NULL,
        problem     TEXT
    ) WITHOUT ROWID;
    CREATE INDEX pending_by_session ON pending (session);
    """,
)
"""One script for each version of the schema. A script is never changed once it was released: homes that were
made with it exist."""
SCHEMA_VERSION = len(MIGRATIONS)
_SUMMARY = """
    ALTER TABLE checkpoints ADD COLUMN summary TEXT;
    UPDATE checkpoints SET summary =
        (SELECT json_extract(card, '$.summary') FROM cards WHERE checkpoint = checkpoints.id);
    CREATE INDEX IF NOT EXISTS tags_by_checkpoint ON tags (checkpoint);
    ALTER TABLE cards DROP COLUMN summary;
"""
"""The first form of schema 4 had the summaries beside the cards."""


def iso(seconds: float) -> str:
    """A time as it is sent: UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What reading raises. SQLite's message may name a table by a damaged name, which is then no text."""


def damaged(path: Path, why: object) -> DatabaseDamaged:
    """The error for a database that cannot be read."""
    return DatabaseDamaged(
        f"the database {path} is damaged: {why}",
        hint=Hint(Do("recover"), " rebuilds it from the points, beside a copy of the damaged one"),
        path=str(path),
    )


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """Turns what a broken row raises when it is decoded into DatabaseDamaged."""
    try:
        yield
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise DatabaseDamaged(
            f"the database is damaged: {what} cannot be read: {error}",
            hint=Hint(Do("check"), " lists what is damaged, ", Do("recover"), " repairs what can be"),
        ) from error


class Database:
    """One connection and one lock: every statement takes microseconds, so no thread waits for long."""

    def __init__(self, path: Path) -> None:
        self._lock = locks.rlock("store")
        self._path, self._names_synced = path, False
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            path.chmod(0o600)
            self._connection.row_factory = sqlite3.Row
            # What is deleted is overwritten: it may have been a secret.
            pragmas = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=5000")
            for pragma in (*pragmas, "secure_delete=ON"):
                self._connection.execute(f"PRAGMA {pragma}")
            self._migrate()
        except _UNREADABLE as error:
            self._connection.close()
            raise self._meaning(error) from error
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def empty_wal(self) -> None:
        """What was deleted is in no file any more: not in the write-ahead log either."""
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def sync(self) -> None:
        """Returns when every transaction that has ended before this call would survive a power cut.

        A commit itself does not wait for the disk (synchronous=NORMAL). SQLite appends commits to the WAL in
        order, and syncs the database file before it begins the WAL anew, so one fsync of the WAL is enough.
        It needs no lock: other threads read and write meanwhile. (The database file must not be opened here:
        closing it would drop SQLite's POSIX locks on it.)
        """
        with translated("sync", self._path):
            atomic.sync(f"{self._path}-wal")
            if not self._names_synced:
                atomic.sync(self._path.parent)
                self._names_synced = True

    def _migrate(self) -> None:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise DaemonError(
                f"the database was written by a newer Waypoint (schema {version},"
                f" this one knows {SCHEMA_VERSION})",
                hint="use that version, or another WAYPOINT_HOME",
            )
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
            self._connection.executescript(f"BEGIN; {script} PRAGMA user_version={number}; COMMIT;")
        if version and "summary" not in {
            row["name"] for row in self._connection.execute("PRAGMA table_info(checkpoints)")
        }:
            self._connection.executescript(f"BEGIN; {_SUMMARY} COMMIT;")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing. One that is opened inside another is a part of the outer one."""
        with self._lock:
            if self._connection.in_transaction:
                yield self._connection
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                faults.reach("store.begun")
                yield self._connection
                faults.reach("store.written")
                self._connection.execute("COMMIT")
            except _UNREADABLE as error:
                self._roll_back()
                raise self._meaning(error) from error
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # SQLite may have ended it by itself
            self._connection.execute("ROLLBACK")

    def _meaning(self, error: sqlite3.DatabaseError | UnicodeDecodeError) -> Exception:
        """An error of the disk below, or of what is on it, as an error of Waypoint's."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return damaged(self._path, error)
        if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode to UTF-8"):
            return damaged(self._path, "a text in it is none")
        name = getattr(error, "sqlite_errorname", "")  # none when it is Python's own error
        if name == "SQLITE_FULL":
            return NoSpace(
                f"the host's disk is full: nothing can be stored in {self._path}",
                hint="make room on that disk",
                path=str(self._path),
            )
        if name.startswith("SQLITE_IOERR"):
            return MachineError(
                f"the host's disk fails: nothing can be stored in {self._path} ({error})",
                path=str(self._path),
            )
        return error

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except _UNREADABLE as error:
                raise self._meaning(error) from error

    def row(self, query: str, *values: Any) -> sqlite3.Row | None:
        """The first row of the result."""
        rows = self.rows(query, *values)
        return rows[0] if rows else None

    def execute(self, statement: str, *values: Any) -> int:
        """One statement as a transaction; returns how many rows it changed."""
        with self.transaction() as connection:
            return connection.execute(statement, values).rowcount
