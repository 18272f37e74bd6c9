"""The database: which sessions and checkpoints exist, and what moved them.

SQLite in WAL mode. A row here is what makes a checkpoint exist: its folder is in place before the row is
written and goes only after the row is gone, so a crash leaves at worst a folder that nobody knows
(swept at start-up), never a row without its bytes. Schema and rules: docs/storage.md.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from waypoint.errors import AlreadyExists, DaemonError
from waypoint.history.facts import ShellFact
from waypoint.model import (
    Actor,
    BoxOptions,
    Checkpoint,
    IntentFrom,
    Kind,
    Note,
    Record,
    State,
    Verdict,
)

_MIGRATIONS = (
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
)
SCHEMA = len(_MIGRATIONS)


class SessionRow(Record, frozen=True):
    """A session as the database knows it."""

    id: str
    name: str
    state: State
    created_at: float
    options: BoxOptions
    head: str | None
    forked_from: str | None
    box: str | None
    auto: bool = False
    """Whether a point is taken after each command that changed something."""
    began: ShellFact | None = None
    """Its shell at the first prompt: what everybody's start-up files set is nothing that happened in it."""


UNDOABLE = ("restore", "restore_files", "redo")
"""Operations that `undo` takes back."""


class OperationRow(Record, frozen=True):
    """Something that moved a session: `before` is the point that leads back."""

    id: int
    session: str
    at: float
    verb: str
    target: str | None
    before: str | None
    undone: bool


def iso(seconds: float) -> str:
    """A time as it travels: UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Store:
    """One connection, one lock: every statement takes microseconds, so nobody waits for long."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        path.chmod(0o600)
        self._db.row_factory = sqlite3.Row
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=5000"):
            self._db.execute(f"PRAGMA {pragma}")
        self._migrate()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _migrate(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA:
            raise DaemonError(
                f"the database was written by a newer Waypoint (schema {version}, this one knows {SCHEMA})",
                hint="use that version, or another WAYPOINT_HOME",
            )
        for number, script in enumerate(_MIGRATIONS[version:], start=version + 1):
            self._db.executescript(f"BEGIN; {script} PRAGMA user_version={number}; COMMIT;")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    # ---- sessions ----------------------------------------------------------------------------

    def _session(self, row: sqlite3.Row) -> SessionRow:
        return SessionRow(
            id=row["id"],
            name=row["name"],
            state=row["state"],
            created_at=row["created_at"],
            options=msgspec.json.decode(row["options"], type=BoxOptions),
            head=row["head"],
            forked_from=row["forked_from"],
            box=row["box"],
            auto=bool(row["auto"]),
            began=msgspec.json.decode(row["began"], type=ShellFact) if row["began"] else None,
        )

    def sessions(self) -> list[SessionRow]:
        return [self._session(row) for row in self._rows("SELECT * FROM sessions ORDER BY created_at, name")]

    def session(self, name: str) -> SessionRow | None:
        """By name, or by id."""
        rows = self._rows("SELECT * FROM sessions WHERE name = ? OR id = ?", name, name)
        return self._session(rows[0]) if rows else None

    def add_session(
        self,
        session_id: str,
        name: str,
        options: BoxOptions,
        *,
        box: str,
        head: str | None = None,
        began: ShellFact | None = None,
    ) -> SessionRow:
        """A new session, which exists from here on. `head`: the checkpoint it is forked from."""
        packed = msgspec.json.encode(options).decode()
        shell = msgspec.json.encode(began).decode() if began else None
        try:
            with self._transaction():
                self._db.execute(
                    "INSERT INTO sessions"
                    " (id, name, state, created_at, options, head, forked_from, box, began)"
                    " VALUES (?, ?, 'live', ?, ?, ?, ?, ?, ?)",
                    (session_id, name, time.time(), packed, head, head, box, shell),
                )
        except sqlite3.IntegrityError as error:
            raise AlreadyExists(f"there is a session {name!r} already", hint="choose another name") from error
        found = self.session(session_id)
        assert found
        return found

    def set_state(self, session_id: str, state: State, *, box: str | None) -> None:
        with self._transaction():
            self._db.execute("UPDATE sessions SET state = ?, box = ? WHERE id = ?", (state, box, session_id))

    def set_auto(self, session_id: str, *, auto: bool) -> None:
        with self._transaction():
            self._db.execute("UPDATE sessions SET auto = ? WHERE id = ?", (int(auto), session_id))

    def remove_session(self, session_id: str) -> None:
        """The session, its checkpoints and its operations."""
        with self._transaction():
            self._db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    # ---- checkpoints -------------------------------------------------------------------------

    def _checkpoint(self, row: sqlite3.Row) -> Checkpoint:
        return Checkpoint(
            id=row["id"],
            name=row["name"],
            intent=row["intent"],
            session=row["session_name"],
            label=f"c{row['number']}",
            parent=row["parent"],
            created_at=iso(row["created_at"]),
            kind=row["kind"],
            pause_ms=row["pause_ms"],
            total_ms=row["total_ms"],
            size_bytes=row["size_bytes"],
            processes=row["processes"],
            files_only=bool(row["files_only"]),
            coverage=tuple(msgspec.json.decode(row["coverage"])),
            actor=row["actor"],
            intent_from=row["intent_from"],
            pinned=bool(row["pinned"]),
            tags=tuple(row["tags"].split(" ")) if row["tags"] else (),
            verdict=self._verdict(row, "v_") if row["v_id"] is not None else None,
            summary=row["summary"],
        )

    def _verdict(self, row: sqlite3.Row, prefix: str = "") -> Verdict:
        return Verdict(
            id=row[f"{prefix}id"],
            command=row[f"{prefix}command"],
            state=row[f"{prefix}state"],
            at=iso(row[f"{prefix}at"]),
            exit_code=row[f"{prefix}exit_code"],
            duration_ms=row[f"{prefix}duration_ms"],
            output=row[f"{prefix}output"],
        )

    # The last verdict and the card's line come along, so that a log of a thousand points is one question.
    _POINTS = """
        SELECT c.*, s.name AS session_name,
               v.id AS v_id, v.command AS v_command, v.state AS v_state, v.at AS v_at,
               v.exit_code AS v_exit_code, v.duration_ms AS v_duration_ms, v.output AS v_output,
               (SELECT group_concat(t.name, ' ') FROM tags t WHERE t.checkpoint = c.id) AS tags
        FROM checkpoints c
        JOIN sessions s ON s.id = c.session
        LEFT JOIN verdicts v ON v.id = (SELECT max(id) FROM verdicts WHERE checkpoint = c.id)
    """

    def checkpoints(self, session_id: str | None = None) -> list[Checkpoint]:
        """Those of a session, or all; oldest first."""
        where = " WHERE c.session = ?" if session_id else ""
        rows = self._rows(
            f"{self._POINTS}{where} ORDER BY c.created_at, c.number", *filter(None, (session_id,))
        )
        return [self._checkpoint(row) for row in rows]

    def checkpoint(self, checkpoint_id: str) -> Checkpoint | None:
        rows = self._rows(f"{self._POINTS} WHERE c.id = ?", checkpoint_id)
        return self._checkpoint(rows[0]) if rows else None

    def checkpoint_ids(self) -> set[str]:
        return {row["id"] for row in self._rows("SELECT id FROM checkpoints")}

    def name_taken(self, session_id: str, name: str) -> bool:
        return bool(self._rows("SELECT 1 FROM checkpoints WHERE session = ? AND name = ?", session_id, name))

    def next_number(self, session_id: str) -> int:
        """The one that the session's next checkpoint will have."""
        rows = self._rows("SELECT points + 1 AS number FROM sessions WHERE id = ?", session_id)
        return int(rows[0]["number"]) if rows else 1

    def add_checkpoint(
        self,
        checkpoint_id: str,
        session_id: str,
        *,
        name: str | None,
        intent: str,
        kind: Kind,
        parent: str | None,
        pause_ms: float,
        total_ms: float,
        size_bytes: int,
        processes: int,
        files_only: bool,
        coverage: tuple[str, ...],
        actor: Actor = "person",
        intent_from: IntentFrom = "given",
    ) -> Checkpoint:
        """The row that makes a checkpoint exist; it becomes the session's head in the same transaction."""
        try:
            with self._transaction():
                self._db.execute(
                    "UPDATE sessions SET points = points + 1, head = ? WHERE id = ?",
                    (checkpoint_id, session_id),
                )
                self._db.execute(
                    "INSERT INTO checkpoints (id, session, number, name, intent, kind, parent, created_at,"
                    " pause_ms, total_ms, size_bytes, processes, files_only, coverage, actor, intent_from)"
                    " VALUES (?, ?, (SELECT points FROM sessions WHERE id = ?),"
                    " ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(
                            checkpoint_id,
                            session_id,
                            session_id,
                            name,
                            intent,
                            kind,
                            parent,
                            time.time(),
                            pause_ms,
                        ),
                        *(
                            total_ms,
                            size_bytes,
                            processes,
                            int(files_only),
                            msgspec.json.encode(coverage).decode(),
                            actor,
                            intent_from,
                        ),
                    ),
                )
        except sqlite3.IntegrityError as error:
            raise AlreadyExists(
                f"the session has a checkpoint {name!r} already", hint="choose another name"
            ) from error
        found = self.checkpoint(checkpoint_id)
        assert found
        return found

    # ---- cards, verdicts, tags, notes ---------------------------------------------------------

    def set_card(self, checkpoint_id: str, card: bytes, summary: str) -> None:
        """A card, computed or computed again; nothing when its checkpoint has gone meanwhile."""
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO cards (checkpoint, at, card)"
                " SELECT id, ?, ? FROM checkpoints WHERE id = ?",
                (time.time(), card.decode(), checkpoint_id),
            )
            # Beside the point, where a log finds it without touching the cards, which may be large.
            self._db.execute("UPDATE checkpoints SET summary = ? WHERE id = ?", (summary, checkpoint_id))

    def card(self, checkpoint_id: str) -> bytes | None:
        rows = self._rows("SELECT card FROM cards WHERE checkpoint = ?", checkpoint_id)
        return str(rows[0]["card"]).encode() if rows else None

    def without_card(self) -> list[str]:
        """Checkpoints whose card was never finished: a daemon ended before it could."""
        rows = self._rows(
            "SELECT id FROM checkpoints WHERE id NOT IN (SELECT checkpoint FROM cards) ORDER BY created_at"
        )
        return [row["id"] for row in rows]

    def add_verdict(self, checkpoint_id: str, command: str) -> int:
        """A verification that starts now."""
        with self._transaction():
            cursor = self._db.execute(
                "INSERT INTO verdicts (checkpoint, at, command, state) VALUES (?, ?, ?, 'running')",
                (checkpoint_id, time.time(), command),
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def finish_verdict(
        self, verdict_id: int, state: str, *, exit_code: int | None, duration_ms: float | None, output: str
    ) -> None:
        with self._transaction():
            self._db.execute(
                "UPDATE verdicts SET state = ?, exit_code = ?, duration_ms = ?, output = ? WHERE id = ?",
                (state, exit_code, duration_ms, output, verdict_id),
            )

    def drop_running_verdicts(self) -> None:
        """Those a daemon did not live to finish say nothing about their checkpoint."""
        with self._transaction():
            self._db.execute(
                "UPDATE verdicts SET state = 'error', output = 'the daemon ended during the verification'"
                " WHERE state = 'running'"
            )

    def being_verified(self) -> set[str]:
        """Checkpoints with a verification under way."""
        return {
            row["checkpoint"] for row in self._rows("SELECT checkpoint FROM verdicts WHERE state = 'running'")
        }

    def verdicts(self, checkpoint_id: str) -> list[Verdict]:
        """All of a checkpoint, oldest first."""
        rows = self._rows("SELECT * FROM verdicts WHERE checkpoint = ? ORDER BY id", checkpoint_id)
        return [self._verdict(row) for row in rows]

    def set_tag(self, session_id: str, name: str, checkpoint_id: str | None) -> bool:
        """Another name for a point; None takes it away. False when there was none to take."""
        with self._transaction():
            gone = self._db.execute(
                "DELETE FROM tags WHERE session = ? AND name = ?", (session_id, name)
            ).rowcount
            if checkpoint_id is not None:
                self._db.execute("INSERT INTO tags VALUES (?, ?, ?)", (session_id, name, checkpoint_id))
            return bool(gone)

    def tags(self, session_id: str) -> dict[str, str]:
        """The tags of a session and the points they name, which may be another session's."""
        rows = self._rows("SELECT name, checkpoint FROM tags WHERE session = ? ORDER BY name", session_id)
        return {row["name"]: row["checkpoint"] for row in rows}

    def add_note(self, checkpoint_id: str, text: str) -> None:
        with self._transaction():
            self._db.execute(
                "INSERT INTO notes (checkpoint, at, text) VALUES (?, ?, ?)",
                (checkpoint_id, time.time(), text),
            )

    def notes(self, checkpoint_id: str) -> list[Note]:
        rows = self._rows("SELECT * FROM notes WHERE checkpoint = ? ORDER BY id", checkpoint_id)
        return [Note(at=iso(row["at"]), text=row["text"]) for row in rows]

    def set_pinned(self, checkpoint_id: str, *, pinned: bool) -> None:
        with self._transaction():
            self._db.execute("UPDATE checkpoints SET pinned = ? WHERE id = ?", (int(pinned), checkpoint_id))

    def set_intent(self, checkpoint_id: str, intent: str, source: IntentFrom) -> None:
        with self._transaction():
            self._db.execute(
                "UPDATE checkpoints SET intent = ?, intent_from = ? WHERE id = ?",
                (intent, source, checkpoint_id),
            )

    def remove_checkpoint(self, checkpoint_id: str) -> None:
        """Its children are told its parent: the line of history closes over the gap."""
        with self._transaction():
            self._db.execute(
                "UPDATE checkpoints SET parent = (SELECT parent FROM checkpoints WHERE id = ?1)"
                " WHERE parent = ?1",
                (checkpoint_id,),
            )
            self._db.execute("DELETE FROM checkpoints WHERE id = ?", (checkpoint_id,))

    # ---- plans -------------------------------------------------------------------------------

    def add_plan(self, plan_id: str, session_id: str, target: str, ground: str) -> None:
        """What was promised to somebody: valid until the ground moves. Old ones go."""
        with self._transaction():
            self._db.execute("DELETE FROM plans WHERE at < ?", (time.time() - 86400,))
            self._db.execute(
                "INSERT INTO plans VALUES (?, ?, ?, ?, ?)", (plan_id, session_id, target, time.time(), ground)
            )

    def plan(self, plan_id: str) -> tuple[str, str, str] | None:
        """Session, target and ground of a plan."""
        rows = self._rows("SELECT * FROM plans WHERE id = ?", plan_id)
        return (rows[0]["session"], rows[0]["target"], rows[0]["ground"]) if rows else None

    # ---- operations --------------------------------------------------------------------------

    def moved(
        self,
        session_id: str,
        verb: str,
        *,
        box: str,
        target: str,
        before: str | None,
        undoes: int | None = None,
    ) -> None:
        """A session stands at another point now: the one transaction that makes a restore true."""
        with self._transaction():
            self._db.execute(
                "UPDATE sessions SET state = 'live', box = ?, head = ? WHERE id = ?",
                (box, target, session_id),
            )
            self._db.execute(
                "INSERT INTO operations (session, at, verb, target, before) VALUES (?, ?, ?, ?, ?)",
                (session_id, time.time(), verb, target, before),
            )
            if undoes is not None:
                self._db.execute("UPDATE operations SET undone = 1 WHERE id = ?", (undoes,))

    def changed(self, session_id: str, verb: str, *, target: str, before: str | None) -> None:
        """Something of a point was brought into a session, which stands where it stood."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO operations (session, at, verb, target, before) VALUES (?, ?, ?, ?, ?)",
                (session_id, time.time(), verb, target, before),
            )

    def operations(self, session_id: str) -> list[OperationRow]:
        """What moved a session, oldest first."""
        rows = self._rows("SELECT * FROM operations WHERE session = ? ORDER BY id", session_id)
        return [
            OperationRow(
                id=row["id"],
                session=row["session"],
                at=row["at"],
                verb=row["verb"],
                target=row["target"],
                before=row["before"],
                undone=bool(row["undone"]),
            )
            for row in rows
        ]

    # ---- landings ----------------------------------------------------------------------------

    def landed(self, session_id: str) -> dict[bytes, str]:
        """What a session has landed on this machine: which path was given which file."""
        rows = self._rows("SELECT path, stamp FROM landed WHERE session = ?", session_id)
        return {row["path"]: row["stamp"] for row in rows}

    def set_landed(self, session_id: str, stamps: Mapping[bytes, str]) -> None:
        """Nothing when the session has gone meanwhile."""
        with self._transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO landed SELECT id, ?, ? FROM sessions WHERE id = ?",
                [(path, stamp, session_id) for path, stamp in stamps.items()],
            )
