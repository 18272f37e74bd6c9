"""Sessions: which exist, where they stand, and the tasks they have now."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

import msgspec

from waypoint.errors import AlreadyExists
from waypoint.history.handover import Handover
from waypoint.history.shell import ShellFact
from waypoint.model import Actor, BoxOptions, Record, State, from_json
from waypoint.store.database import Database, readable
from waypoint.store.events import EventTable, NewEvent


class SessionRow(Record, frozen=True):
    """A session as it is stored."""

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
    """The session's own rules about commands: the text of a policy file."""
    first_shell: ShellFact | None = None
    """Its shell at the first prompt. What the start-up files of every shell set is not a change of the
    session."""
    beginning: str | None = None
    """Its files at the first prompt: the name of a tree in the pool. What start-up files of the shell wrote
    before is not a change of the session. Forks name the same tree; sessions of older versions have none."""
    tip: int | None = None
    """The last event of its trajectory."""


class SessionTable:
    """The sessions of one home."""

    def __init__(self, database: Database, events: EventTable) -> None:
        self._database = database
        self._events = events

    def all(self) -> list[SessionRow]:
        """Oldest first."""
        rows = self._database.rows("SELECT * FROM sessions ORDER BY created_at, name")
        return [read_session(row) for row in rows]

    def find(self, name: str) -> SessionRow | None:
        """By name or by id."""
        row = self._database.row("SELECT * FROM sessions WHERE name = ? OR id = ?", name, name)
        return read_session(row) if row else None

    def add(
        self,
        session_id: str,
        name: str,
        options: BoxOptions,
        *,
        box: str,
        head: str | None = None,
        first_shell: ShellFact | None = None,
        beginning: str | None = None,
        actor: Actor = "person",
        policy: str | None = None,
    ) -> SessionRow:
        """A new session, which exists from here on. `head`: the checkpoint it is forked from. Its trajectory
        begins with the events that led to that point, and its tasks are those of that point."""
        values = {
            "id": session_id,
            "name": name,
            "created_at": time.time(),
            "options": msgspec.json.encode(options).decode(),
            "head": head,
            "box": box,
            "began": msgspec.json.encode(first_shell).decode() if first_shell else None,
            "policy": policy,
            "beginning": beginning,
        }
        try:
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT INTO sessions"
                    " (id, name, state, created_at, options, head, forked_from, box, began, policy,"
                    " beginning)"
                    " VALUES (:id, :name, 'live', :created_at, :options, :head, :head, :box, :began,"
                    " :policy, :beginning)",
                    values,
                )
                if head is not None:
                    self._events.go_to(session_id, head, "forked", {}, actor)
        except sqlite3.IntegrityError as error:
            raise AlreadyExists(f"there is a session {name!r} already", hint="choose another name") from error
        row = self.find(session_id)
        assert row
        return row

    def add_lost(self, row: SessionRow) -> None:
        """A session whose row was lost, as the folder of one of its points describes it. It does not run."""
        self._database.execute(
            "INSERT INTO sessions (id, name, state, created_at, options, forked_from, auto, policy, began,"
            " beginning) VALUES (?, ?, 'dead', ?, ?, ?, ?, ?, ?, ?)",
            row.id,
            row.name,
            row.created_at,
            msgspec.json.encode(row.options).decode(),
            row.forked_from,
            int(row.auto),
            row.policy,
            msgspec.json.encode(row.first_shell).decode() if row.first_shell else None,
            row.beginning,
        )

    def set_state(self, session_id: str, state: State, *, box: str | None) -> None:
        stored = "dead" if state == "stopped" else state
        self._database.execute("UPDATE sessions SET state = ?, box = ? WHERE id = ?", stored, box, session_id)

    def set_head(self, session_id: str, checkpoint_id: str) -> None:
        """For a session that was brought back from its points: where it stands."""
        self._database.execute("UPDATE sessions SET head = ? WHERE id = ?", checkpoint_id, session_id)

    def set_auto(self, session_id: str, *, auto: bool) -> None:
        self._database.execute("UPDATE sessions SET auto = ? WHERE id = ?", int(auto), session_id)

    def set_policy(self, session_id: str, policy: str | None) -> None:
        self._database.execute("UPDATE sessions SET policy = ? WHERE id = ?", policy, session_id)

    def tasks(self, session_id: str) -> bytes:
        """The tasks of a session: JSON."""
        row = self._database.row("SELECT tasks FROM sessions WHERE id = ?", session_id)
        return str(row["tasks"]).encode() if row else b"[]"

    def set_tasks(self, session_id: str, tasks: bytes, events: Sequence[NewEvent]) -> None:
        """The tasks of a session, and in the same transaction the events about them."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE sessions SET tasks = ? WHERE id = ?", (tasks.decode(), session_id))
            self._events.append(session_id, events)

    def remove(self, *session_ids: str, handed_over: Sequence[Handover] = ()) -> None:
        """Sessions with their checkpoints and operations, and the events that no other trajectory leads
        through. Points that are handed over stay: with their cards, verdicts, notes, tags and contacts, and
        with the events that led to them."""
        with self._database.transaction() as connection:
            for handover in handed_over:
                self._hand_over(connection, handover)
            for session_id in session_ids:
                connection.execute(
                    "INSERT OR IGNORE INTO forgotten SELECT id, ? FROM checkpoints WHERE session = ?",
                    (time.time(), session_id),
                )
            for session_id in session_ids:
                connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            self._events.sweep()
            for session_id in session_ids:
                # Effects that are known to have acted outside stay on record, and those of a trajectory that
                # stays. Others that only may have acted do not.
                connection.execute(
                    "DELETE FROM effects WHERE session = ? AND class = 'unknown' AND id NOT IN"
                    " (SELECT json_extract(body, '$.effect') FROM events WHERE kind = 'effect')",
                    (session_id,),
                )

    def _hand_over(self, connection: sqlite3.Connection, handover: Handover) -> None:
        point_id, number, words = handover.point.id, handover.number, f"was {handover.was}"
        if handover.point.name and handover.point.name != handover.name:
            words += f" ({handover.point.name})"
        self._events.give_line(point_id, handover.to)
        connection.execute(
            "UPDATE checkpoints SET session = ?, number = ?, name = ? WHERE id = ?",
            (handover.to, number, handover.name, point_id),
        )
        connection.execute("UPDATE sessions SET points = max(points, ?) WHERE id = ?", (number, handover.to))
        connection.execute("UPDATE contacts SET session = ? WHERE point = ?", (handover.to, point_id))
        for tag in handover.tags:
            connection.execute(
                "UPDATE tags SET session = ?, name = ? WHERE session = ? AND name = ?",
                (handover.to, tag.becomes, tag.owner, tag.name),
            )
        connection.execute(
            "INSERT INTO notes (checkpoint, at, text) VALUES (?, ?, ?)", (point_id, time.time(), words)
        )
        connection.execute("INSERT OR IGNORE INTO handed_over VALUES (?)", (point_id,))


def read_session(row: sqlite3.Row) -> SessionRow:
    with readable(f"session {row['id']}"):
        return _session(row)


def _session(row: sqlite3.Row) -> SessionRow:
    return SessionRow(
        id=row["id"],
        name=row["name"],
        # The first schema knows no "stopped": it is a dead session that has left no tree.
        state="stopped" if row["state"] == "dead" and row["box"] is None else row["state"],
        created_at=row["created_at"],
        options=from_json(row["options"], BoxOptions),
        head=row["head"],
        forked_from=row["forked_from"],
        box=row["box"],
        auto=bool(row["auto"]),
        policy=row["policy"],
        beginning=row["beginning"],
        first_shell=from_json(row["began"], ShellFact) if row["began"] else None,
        tip=row["tip"],
    )
