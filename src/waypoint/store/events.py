"""Events and blobs: the trajectories of sessions, and the bytes that were too large for a row.

Events form a tree, like commits. Each has a parent; a session's `tip` is its last event, a checkpoint's
`position` is the event it stands at. Every transaction that moves a session moves its tip too.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from waypoint.model import Actor, Event, EventKind, Record
from waypoint.store.database import Database, iso


class Blob(Record, frozen=True):
    """Bytes that are stored once, however many rows refer to them."""

    hash: str
    size: int
    data: bytes
    """Compressed."""


class NewEvent(Record, frozen=True):
    """An event to be added."""

    kind: EventKind
    body: Mapping[str, Any]
    actor: Actor = "person"
    at: float | None = None
    blob: Blob | None = None


def make_blob(data: bytes) -> Blob:
    """Bytes as they are stored: named by their hash, and compressed."""
    import zstandard  # here: only a daemon needs it

    digest = hashlib.sha256(data).hexdigest()
    return Blob(hash=digest, size=len(data), data=zstandard.ZstdCompressor().compress(data))


_EVENTS = """
    SELECT e.*, coalesce(s.name, e.session) AS session_name
    FROM events e LEFT JOIN sessions s ON s.id = e.session
"""


class EventTable:
    """The events and blobs of one home."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, session_id: str, events: Iterable[NewEvent]) -> list[int]:
        """Adds to the end of a session's trajectory; nothing when the session is gone. The events are durable
        when the transaction ends."""
        with self._database.transaction() as connection:
            session = self._database.row("SELECT tip FROM sessions WHERE id = ?", session_id)
            if session is None:
                return []
            ids: list[int] = []
            tip: int | None = session["tip"]
            for event in events:
                if event.blob:
                    self.keep_blob(event.blob)
                values = {
                    "session": session_id,
                    "parent": tip,
                    "at": event.at or time.time(),
                    "kind": event.kind,
                    "actor": event.actor,
                    "body": msgspec.json.encode(event.body).decode(),
                    "blob": event.blob.hash if event.blob else None,
                }
                tip = connection.execute(
                    "INSERT INTO events (session, parent, at, kind, actor, body, blob)"
                    " VALUES (:session, :parent, :at, :kind, :actor, :body, :blob)",
                    values,
                ).lastrowid
                assert tip is not None
                ids.append(tip)
            if ids:
                connection.execute("UPDATE sessions SET tip = ? WHERE id = ?", (tip, session_id))
            return ids

    def go_to(
        self, session_id: str, checkpoint_id: str, kind: EventKind, body: Mapping[str, Any], actor: Actor
    ) -> None:
        """Gives a session the trajectory and the tasks of a point, and adds the event that says so."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE sessions SET (tip, tasks) = (SELECT position, tasks FROM checkpoints WHERE id = ?1)"
                " WHERE id = ?2 AND EXISTS (SELECT 1 FROM checkpoints WHERE id = ?1)",
                (checkpoint_id, session_id),
            )
            event = NewEvent(kind=kind, body={**body, **self.point_names(checkpoint_id)}, actor=actor)
            self.append(session_id, [event])

    def point_names(self, checkpoint_id: str) -> dict[str, Any]:
        """What a point is called now, for the body of an event: the event outlives the names."""
        row = self._database.row(
            "SELECT c.id, s.name AS session, c.number, c.name"
            " FROM checkpoints c JOIN sessions s ON s.id = c.session WHERE c.id = ?",
            checkpoint_id,
        )
        if row is None:
            return {"checkpoint": checkpoint_id}
        return {
            "checkpoint": row["id"],
            "session": row["session"],
            "label": f"c{row['number']}",
            "name": row["name"],
        }

    def trace(
        self,
        position: int | None,
        *,
        kinds: Sequence[EventKind] = (),
        after: int | None = None,
        limit: int | None = None,
    ) -> list[Event]:
        """The events that led to a position, oldest first. `after`: only those after that event; `limit`: the
        last so many."""
        of_kinds = f" AND e.kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        start = after or 0
        most = -1 if limit is None else limit
        rows = self._database.rows(
            "WITH RECURSIVE line(id, parent) AS ("
            " SELECT id, parent FROM events WHERE id = ?"
            " UNION ALL SELECT e.id, e.parent FROM line JOIN events e ON e.id = line.parent WHERE e.id > ?"
            " LIMIT ?"  # without it the last few of a long line would cost the whole walk
            f") {_EVENTS} WHERE e.id IN (SELECT id FROM line) AND e.id > ?{of_kinds}"
            " ORDER BY e.id DESC LIMIT ?",
            position,
            start,
            -1 if kinds else most,
            start,
            *kinds,
            most,
        )
        return [_event(row) for row in reversed(rows)]

    def all(
        self,
        session_id: str,
        *,
        kinds: Sequence[EventKind] = (),
        after: int | None = None,
        limit: int | None = None,
    ) -> list[Event]:
        """Every event of a session, oldest first: also those that it went back from."""
        of_kinds = f" AND e.kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        rows = self._database.rows(
            f"{_EVENTS} WHERE e.session = ? AND e.id > ?{of_kinds} ORDER BY e.id DESC LIMIT ?",
            session_id,
            after or 0,
            *kinds,
            -1 if limit is None else limit,
        )
        return [_event(row) for row in reversed(rows)]

    def find(self, number: int) -> Event | None:
        row = self._database.row(f"{_EVENTS} WHERE e.id = ?", number)
        return _event(row) if row else None

    def sweep(self) -> None:
        """Removes the events of sessions that are gone, except where another trajectory leads through
        them. What a live session has abandoned (a fork that went back) may have begun on a removed event:
        it begins there without a parent then."""
        self._database.execute(
            "DELETE FROM events WHERE session NOT IN (SELECT id FROM sessions) AND id NOT IN ("
            "WITH RECURSIVE line(id) AS ("
            " SELECT tip FROM sessions WHERE tip IS NOT NULL"
            " UNION SELECT position FROM checkpoints WHERE position IS NOT NULL"
            " UNION SELECT e.parent FROM line JOIN events e ON e.id = line.id WHERE e.parent IS NOT NULL"
            ") SELECT id FROM line)"
        )
        self._database.execute(
            "UPDATE events SET parent = NULL WHERE parent IS NOT NULL"
            " AND NOT EXISTS (SELECT 1 FROM events p WHERE p.id = events.parent)"
        )

    def give_line(self, checkpoint_id: str, session_id: str) -> None:
        """The events that led to a point, as far as they are of the point's own session, become those of
        another session, which gets the point."""
        self._database.execute(
            "UPDATE events SET session = ?2 WHERE id IN ("
            "WITH RECURSIVE line(id, parent, session) AS ("
            " SELECT e.id, e.parent, e.session FROM checkpoints c JOIN events e ON e.id = c.position"
            " WHERE c.id = ?1"
            " UNION ALL SELECT e.id, e.parent, e.session FROM line JOIN events e ON e.id = line.parent"
            " WHERE e.session = line.session"
            ") SELECT id FROM line)",
            checkpoint_id,
            session_id,
        )

    def keep_blob(self, blob: Blob) -> None:
        """Has to be in the transaction that adds the row which refers to it: an unreferenced blob may be
        swept."""
        self._database.execute(
            "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", blob.hash, blob.size, blob.data
        )

    def blob(self, digest: str) -> bytes | None:
        """The bytes with this hash."""
        import zstandard

        row = self._database.row("SELECT size, data FROM blobs WHERE hash = ?", digest)
        if row is None:
            return None
        return zstandard.ZstdDecompressor().decompress(row["data"], max_output_size=row["size"])

    def sweep_blobs(self) -> int:
        """Removes blobs that neither an event nor a checkpoint refers to; returns how many bytes that
        frees."""
        with self._database.transaction() as connection:
            self.sweep()
            rows = self._database.rows(
                "SELECT hash, length(data) AS size FROM blobs b"
                " WHERE NOT EXISTS (SELECT 1 FROM events WHERE blob = b.hash)"
                " AND NOT EXISTS (SELECT 1 FROM checkpoints WHERE agent_state = b.hash)"
            )
            connection.executemany("DELETE FROM blobs WHERE hash = ?", [(row["hash"],) for row in rows])
            return sum(row["size"] for row in rows)


def _event(row: sqlite3.Row) -> Event:
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
