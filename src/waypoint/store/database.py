"""The database: which sessions and checkpoints exist, and what moved them.

SQLite in WAL mode. A row here is what makes a checkpoint exist: its folder is in place before the row is
written and goes only after the row is gone, so a crash leaves at worst a folder that nobody knows
(swept at start-up), never a row without its bytes. Schema and rules: docs/storage.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from waypoint.errors import AlreadyExists, DaemonError
from waypoint.history.contacts import Contact
from waypoint.history.facts import ShellFact
from waypoint.model import (
    Actor,
    BoxOptions,
    Checkpoint,
    Event,
    EventKind,
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
    policy: str | None = None
    """Rules of its own about commands: the text of a policy file."""
    began: ShellFact | None = None
    """Its shell at the first prompt: what everybody's start-up files set is nothing that happened in it."""
    tip: int | None = None
    """The last event of its trajectory."""


class Blob(Record, frozen=True):
    """Bytes that are kept once, however often they are meant."""

    hash: str
    size: int
    data: bytes
    """Compressed."""


class NewEvent(Record, frozen=True):
    """An event that is about to become one."""

    kind: EventKind
    body: Mapping[str, Any]
    actor: Actor = "person"
    at: float | None = None
    blob: Blob | None = None


class AgentState(Record, frozen=True):
    """What an agent leaves with a checkpoint, to go on from there."""

    kind: Literal["json", "bytes"]
    blob: Blob
    version: str | None = None


class Counted(Record, frozen=True):
    """What the kernel has counted between a box and one place outside, since it began to count."""

    address: str
    protocol: str
    port: int
    bytes_out: int
    bytes_in: int
    first_at: float
    last_at: float
    names: tuple[str, ...] = ()


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


def pack(data: bytes) -> Blob:
    """Bytes as they are kept: named by what they are, and compressed."""
    import zstandard  # here: only a daemon needs it

    digest = hashlib.sha256(data).hexdigest()
    return Blob(hash=digest, size=len(data), data=zstandard.ZstdCompressor().compress(data))


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

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """For what is kept beside sessions and points (ledger.py)."""
        with self._transaction():
            yield self._db

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        return self._rows(query, *values)

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
            policy=row["policy"],
            began=msgspec.json.decode(row["began"], type=ShellFact) if row["began"] else None,
            tip=row["tip"],
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
        actor: Actor = "person",
        policy: str | None = None,
    ) -> SessionRow:
        """A new session, which exists from here on. `head`: the checkpoint it is forked from; what led there
        is the beginning of its trajectory too, and the tasks stand as they stood."""
        packed = msgspec.json.encode(options).decode()
        shell = msgspec.json.encode(began).decode() if began else None
        try:
            with self._transaction():
                self._db.execute(
                    "INSERT INTO sessions"
                    " (id, name, state, created_at, options, head, forked_from, box, began, policy)"
                    " VALUES (?, ?, 'live', ?, ?, ?, ?, ?, ?, ?)",
                    (session_id, name, time.time(), packed, head, head, box, shell, policy),
                )
                if head is not None:
                    self._go_to(session_id, head, "forked", {}, actor)
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

    def set_policy(self, session_id: str, policy: str | None) -> None:
        with self._transaction():
            self._db.execute("UPDATE sessions SET policy = ? WHERE id = ?", (policy, session_id))

    def remove_session(self, session_id: str) -> None:
        """The session, its checkpoints and its operations; of its trajectory what no other builds on."""
        with self._transaction():
            self._db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            # What is known to have acted on the outside stays on record, what may have does not.
            self._db.execute("DELETE FROM effects WHERE session = ? AND class = 'unknown'", (session_id,))
            self._sweep_events()

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
            position=row["position"],
            agent_state_kind=row["agent_state_kind"],
            agent_version=row["agent_version"],
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

    def likely_targets(self, session_id: str, most: int) -> list[tuple[str, int]]:
        """The whole points somebody may soon want to be back at, and what they weigh: where the session
        stands, then the newest ones that were given a name or pinned."""
        rows = self._rows(
            "SELECT c.id, c.size_bytes FROM sessions s JOIN checkpoints c"
            " ON c.id = s.head OR (c.session = s.id AND (c.name IS NOT NULL OR c.pinned))"
            " WHERE s.id = ? AND NOT c.files_only ORDER BY c.id = s.head DESC, c.created_at DESC LIMIT ?",
            *(session_id, most),
        )
        return [(row["id"], row["size_bytes"]) for row in rows]

    def parents(self) -> dict[str, str | None]:
        """Which point each point follows."""
        return {row["id"]: row["parent"] for row in self._rows("SELECT id, parent FROM checkpoints")}

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
        state: AgentState | None = None,
    ) -> Checkpoint:
        """The row that makes a checkpoint exist; in the same transaction it becomes the session's head and
        pins where its trajectory has come to."""
        try:
            with self._transaction():
                if state:
                    self._keep_blob(state.blob)
                self._db.execute(
                    "UPDATE sessions SET points = points + 1, head = ? WHERE id = ?",
                    (checkpoint_id, session_id),
                )
                self._db.execute(
                    "INSERT INTO checkpoints (id, session, number, name, intent, kind, parent, created_at,"
                    " pause_ms, total_ms, size_bytes, processes, files_only, coverage, actor, intent_from,"
                    " agent_state, agent_state_kind, agent_version, tasks)"
                    " VALUES (?1, ?2, (SELECT points FROM sessions WHERE id = ?2),"
                    " ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,"
                    " (SELECT tasks FROM sessions WHERE id = ?2))",
                    (
                        *(
                            checkpoint_id,
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
                        *(
                            state.blob.hash if state else None,
                            state.kind if state else None,
                            state.version if state else None,
                        ),
                    ),
                )
                number = self._rows("SELECT points FROM sessions WHERE id = ?", session_id)[0]["points"]
                told: dict[str, Any] = {"checkpoint": checkpoint_id, "label": f"c{number}", "name": name}
                told |= {"intent": intent, "kind": kind, "agent_state": bool(state)}
                [position] = self._append(session_id, [NewEvent(kind="checkpoint", body=told, actor=actor)])
                self._db.execute(
                    "UPDATE checkpoints SET position = ? WHERE id = ?", (position, checkpoint_id)
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
        actor: Actor = "person",
    ) -> None:
        """A session stands at another point now: the one transaction that makes a restore true. Trajectory
        and tasks go there with it; what it leaves behind stays readable."""
        with self._transaction():
            self._db.execute(
                "UPDATE sessions SET state = 'live', box = ?, head = ? WHERE id = ?",
                (box, target, session_id),
            )
            self._db.execute(
                "INSERT INTO operations (session, at, verb, target, before) VALUES (?, ?, ?, ?, ?)",
                (session_id, time.time(), verb, target, before),
            )
            self._go_to(session_id, target, "restored", {"verb": verb, "before": before}, actor)
            if undoes is not None:
                self._db.execute("UPDATE operations SET undone = 1 WHERE id = ?", (undoes,))

    def changed(self, session_id: str, verb: str, *, target: str, before: str | None) -> None:
        """Something of a point was brought into a session, which stands where it stood."""
        with self._transaction():
            told = {"verb": verb, "before": before, **self._called(target)}
            self._append(session_id, [NewEvent(kind="restored", body=told)])
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

    # ---- trajectory --------------------------------------------------------------------------
    #
    # Events form a tree, like commits: each knows its parent, a session's `tip` is the last of its own, a
    # checkpoint's `position` the one it stands at. Whatever moves a session moves its tip in the same
    # transaction.

    def append(self, session_id: str, events: Sequence[NewEvent]) -> list[int]:
        """Adds to the end of a session's trajectory; nothing when the session has gone meanwhile. The events
        survive the death of every process from here on."""
        with self._transaction():
            return self._append(session_id, events)

    def _append(self, session_id: str, events: Iterable[NewEvent]) -> list[int]:
        found = self._rows("SELECT tip FROM sessions WHERE id = ?", session_id)
        if not found:
            return []
        made: list[int] = []
        tip: int | None = found[0]["tip"]
        for event in events:
            if event.blob:
                self._keep_blob(event.blob)
            tip = self._db.execute(
                "INSERT INTO events (session, parent, at, kind, actor, body, blob)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *(session_id, tip, event.at or time.time(), event.kind, event.actor),
                    *(msgspec.json.encode(event.body).decode(), event.blob.hash if event.blob else None),
                ),
            ).lastrowid
            assert tip is not None
            made.append(tip)
        if made:
            self._db.execute("UPDATE sessions SET tip = ? WHERE id = ?", (tip, session_id))
        return made

    def _go_to(
        self, session_id: str, checkpoint_id: str, kind: EventKind, told: Mapping[str, Any], actor: Actor
    ) -> None:
        """Trajectory and tasks of a session are those of a point; that it was taken there comes next."""
        self._db.execute(
            "UPDATE sessions SET (tip, tasks) = (SELECT position, tasks FROM checkpoints WHERE id = ?1)"
            " WHERE id = ?2 AND EXISTS (SELECT 1 FROM checkpoints WHERE id = ?1)",
            (checkpoint_id, session_id),
        )
        body = {**told, **self._called(checkpoint_id)}
        self._append(session_id, [NewEvent(kind=kind, body=body, actor=actor)])

    def _called(self, checkpoint_id: str) -> dict[str, Any]:
        """What a point was called when something was done with it: names go, the event stays."""
        point = self.checkpoint(checkpoint_id)
        if point is None:
            return {"checkpoint": checkpoint_id}
        return {"checkpoint": point.id, "session": point.session, "label": point.label, "name": point.name}

    _EVENTS = """
        SELECT e.*, coalesce(s.name, e.session) AS session_name
        FROM events e LEFT JOIN sessions s ON s.id = e.session
    """

    def _event(self, row: sqlite3.Row) -> Event:
        return Event(
            id=row["id"],
            session=row["session_name"],
            parent=row["parent"],
            at=iso(row["at"]),
            kind=row["kind"],
            actor=row["actor"],
            body=msgspec.json.decode(row["body"]),
            blob=row["blob"],
        )

    def trace(
        self,
        position: int | None,
        *,
        kinds: Sequence[EventKind] = (),
        after: int | None = None,
        limit: int | None = None,
    ) -> list[Event]:
        """What led to a position, oldest first. `after`: only what came after that event; `limit`: the last
        so many."""
        chosen = f" AND e.kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        most = -1 if limit is None else limit
        rows = self._rows(
            "WITH RECURSIVE line(id, parent) AS ("
            " SELECT id, parent FROM events WHERE id = ?"
            " UNION ALL SELECT e.id, e.parent FROM line JOIN events e ON e.id = line.parent WHERE e.id > ?"
            " LIMIT ?"  # without it the last few of a long line would cost the whole walk
            f") {self._EVENTS} WHERE e.id IN (SELECT id FROM line) AND e.id > ?{chosen}"
            " ORDER BY e.id DESC LIMIT ?",
            *(position, after or 0, -1 if kinds else most, after or 0, *kinds, most),
        )
        return [self._event(row) for row in reversed(rows)]

    def events(
        self,
        session_id: str,
        *,
        kinds: Sequence[EventKind] = (),
        after: int | None = None,
        limit: int | None = None,
    ) -> list[Event]:
        """Everything that ever happened in a session, oldest first: what it went back from too."""
        chosen = f" AND e.kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        rows = self._rows(
            f"{self._EVENTS} WHERE e.session = ? AND e.id > ?{chosen} ORDER BY e.id DESC LIMIT ?",
            *(session_id, after or 0, *kinds, -1 if limit is None else limit),
        )
        return [self._event(row) for row in reversed(rows)]

    def event(self, number: int) -> Event | None:
        rows = self._rows(f"{self._EVENTS} WHERE e.id = ?", number)
        return self._event(rows[0]) if rows else None

    def _sweep_events(self) -> int:
        """Events of sessions that are gone stay only where another's trajectory leads through them."""
        return self._db.execute(
            "DELETE FROM events WHERE session NOT IN (SELECT id FROM sessions) AND id NOT IN ("
            "WITH RECURSIVE line(id) AS ("
            " SELECT tip FROM sessions WHERE tip IS NOT NULL"
            " UNION SELECT position FROM checkpoints WHERE position IS NOT NULL"
            " UNION SELECT e.parent FROM line JOIN events e ON e.id = line.id WHERE e.parent IS NOT NULL"
            ") SELECT id FROM line)"
        ).rowcount

    # ---- blobs -------------------------------------------------------------------------------

    def _keep_blob(self, blob: Blob) -> None:
        """In the transaction of whoever means it: what nobody means may go at any moment."""
        self._db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", (blob.hash, blob.size, blob.data))

    def blob(self, digest: str) -> bytes | None:
        """What was kept under a hash."""
        import zstandard

        rows = self._rows("SELECT size, data FROM blobs WHERE hash = ?", digest)
        if not rows:
            return None
        return zstandard.ZstdDecompressor().decompress(rows[0]["data"], max_output_size=rows[0]["size"])

    def sweep_blobs(self) -> int:
        """Removes what neither an event nor a checkpoint means; returns how many bytes that gives back."""
        with self._transaction():
            self._sweep_events()
            rows = self._rows(
                "SELECT hash, length(data) AS size FROM blobs b"
                " WHERE NOT EXISTS (SELECT 1 FROM events WHERE blob = b.hash)"
                " AND NOT EXISTS (SELECT 1 FROM checkpoints WHERE agent_state = b.hash)"
            )
            self._db.executemany("DELETE FROM blobs WHERE hash = ?", [(row["hash"],) for row in rows])
            return sum(row["size"] for row in rows)

    # ---- what the agent keeps ----------------------------------------------------------------

    def agent_state(self, checkpoint_id: str) -> tuple[str, bytes] | None:
        """What an agent left with a checkpoint: `json` or `bytes`, and the thing itself."""
        rows = self._rows("SELECT agent_state, agent_state_kind FROM checkpoints WHERE id = ?", checkpoint_id)
        data = self.blob(rows[0]["agent_state"]) if rows and rows[0]["agent_state"] else None
        return None if data is None else (rows[0]["agent_state_kind"], data)

    def tasks(self, owner: str) -> bytes:
        """The tasks of a session, or as they stood at a checkpoint, by id: JSON."""
        rows = self._rows(
            "SELECT tasks FROM sessions WHERE id = ?1 UNION ALL SELECT tasks FROM checkpoints WHERE id = ?1",
            owner,
        )
        return str(rows[0]["tasks"]).encode() if rows else b"[]"

    def set_tasks(self, session_id: str, tasks: bytes, events: Sequence[NewEvent]) -> None:
        """The tasks of a session, and in the same transaction what happened to them."""
        with self._transaction():
            self._db.execute("UPDATE sessions SET tasks = ? WHERE id = ?", (tasks.decode(), session_id))
            self._append(session_id, events)

    def set_point_tasks(self, checkpoint_id: str, tasks: bytes) -> None:
        """For a point that has just become the evidence of one of its own tasks."""
        with self._transaction():
            self._db.execute("UPDATE checkpoints SET tasks = ? WHERE id = ?", (tasks.decode(), checkpoint_id))

    # ---- contacts ----------------------------------------------------------------------------

    def count_contacts(
        self, session_id: str, box: str, counted: Sequence[Counted], now: float, *, apart: bool = False
    ) -> None:
        """What is new since the last count, added to the contacts of the session that are in no point yet.
        `apart`: it happened in a throwaway copy, so it will be in none. Nothing for a session that is not
        there (yet): it is counted later."""
        with self._transaction():
            if not self._rows("SELECT 1 FROM sessions WHERE id = ?", session_id):
                return
            for one in counted:
                key = (box, one.address, one.protocol, one.port)
                before = self._rows(
                    "SELECT * FROM counted WHERE box = ? AND address = ? AND protocol = ? AND port = ?", *key
                )
                out, back, since = one.bytes_out, one.bytes_in, one.first_at
                if before and before[0]["bytes_out"] <= out:  # else the kernel has begun anew
                    out, back = out - before[0]["bytes_out"], max(0, back - before[0]["bytes_in"])
                    since = before[0]["at"]
                if not out and not back:
                    continue
                self._db.execute(
                    "INSERT OR REPLACE INTO counted VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (*key, one.bytes_out, one.bytes_in, now),
                )
                # Without an answer it is not known when the last packet left.
                last = one.last_at if one.last_at > since else now
                names, point = " ".join(one.names), "" if apart else None
                changed = self._db.execute(
                    "UPDATE contacts SET bytes_out = bytes_out + ?, bytes_in = bytes_in + ?, last_at = ?,"
                    " names = CASE WHEN ? = '' THEN names ELSE ? END WHERE session = ? AND point IS ?"
                    " AND box = ? AND address = ? AND protocol = ? AND port = ?",
                    (out, back, last, names, names, session_id, point, *key),
                ).rowcount
                if not changed:
                    self._db.execute(
                        "INSERT INTO contacts (session, box, address, protocol, port, point, names, first_at,"
                        " last_at, bytes_out, bytes_in) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (session_id, *key, point, names, since, last, out, back),
                    )

    def settle_contacts(self, session_id: str, point_id: str) -> None:
        """What left the session until a point was taken belongs to that point."""
        with self._transaction():
            self._db.execute(
                "UPDATE contacts SET point = ? WHERE session = ? AND point IS NULL", (point_id, session_id)
            )

    def leave_contacts(self, box: str) -> None:
        """The box has ended: what left it and is in no point will be in none."""
        with self._transaction():
            self._db.execute("UPDATE contacts SET point = '' WHERE box = ? AND point IS NULL", (box,))
            self._db.execute("DELETE FROM counted WHERE box = ?", (box,))

    def uncount(self) -> None:
        """The kernel begins to count anew."""
        with self._transaction():
            self._db.execute("DELETE FROM counted")

    def contacts(self, points: Sequence[str], open_of: str | None = None) -> list[Contact]:
        """Those that belong to these points, and the open ones of a session."""
        marks = ", ".join("?" * len(points))
        rows = self._rows(
            f"SELECT * FROM contacts WHERE point IN ({marks}) OR (point IS NULL AND session = ?)"
            " ORDER BY first_at",
            *points,
            open_of or "",
        )
        return [self._contact(row) for row in rows]

    def contacts_of(self, session_id: str) -> list[Contact]:
        """All that a session ever had."""
        rows = self._rows("SELECT * FROM contacts WHERE session = ? ORDER BY first_at", session_id)
        return [self._contact(row) for row in rows]

    def contacts_since(self, session_id: str, point: Checkpoint) -> list[Contact]:
        """All of a session's since a point began to be taken, wherever they belong."""
        began = datetime.fromisoformat(point.created_at).timestamp() - point.total_ms / 1000
        rows = self._rows(
            "SELECT * FROM contacts WHERE session = ? AND last_at >= ? AND point IS NOT ? ORDER BY first_at",
            session_id,
            began,
            point.id,
        )
        return [self._contact(row) for row in rows]

    def _contact(self, row: sqlite3.Row) -> Contact:
        return Contact(
            address=row["address"],
            protocol=row["protocol"],
            port=row["port"],
            first_at=iso(row["first_at"]),
            last_at=iso(row["last_at"]),
            bytes_out=row["bytes_out"],
            bytes_in=row["bytes_in"],
            names=tuple(row["names"].split()),
        )

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
