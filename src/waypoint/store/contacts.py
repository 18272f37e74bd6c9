"""Contacts: the places outside that sessions have talked to, as the host's firewall counted them.

A contact belongs to the next point of its session. Until that point is taken its column `point` is NULL; it
is empty for contacts that will never belong to a point.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime

from waypoint.api.difference import Contact
from waypoint.model import Checkpoint, Record
from waypoint.store.database import Database, iso


class TrafficCount(Record, frozen=True):
    """What the kernel has counted between a box and one place outside since it started to count."""

    address: str
    protocol: str
    port: int
    bytes_out: int
    bytes_in: int
    first_at: float
    last_at: float
    names: tuple[str, ...] = ()


class ContactTable:
    """The contacts of one home, and the counters as they were read last."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def count(
        self, session_id: str, box: str, counts: Sequence[TrafficCount], now: float, *, apart: bool = False
    ) -> None:
        """Adds what is new since the last count to the session's contacts that are in no point yet. `apart`:
        the box is a throwaway copy, so its contacts will be in no point. Does nothing for a session that does
        not exist (yet): its traffic is counted later."""
        with self._database.transaction():
            if not self._database.row("SELECT 1 FROM sessions WHERE id = ?", session_id):
                return
            for count in counts:
                self._count_one(session_id, box, count, now, point="" if apart else None)

    def _count_one(
        self, session_id: str, box: str, count: TrafficCount, now: float, *, point: str | None
    ) -> None:
        key = (box, count.address, count.protocol, count.port)
        bytes_out, bytes_in, since = count.bytes_out, count.bytes_in, count.first_at
        before = self._database.row(
            "SELECT * FROM counted WHERE box = ? AND address = ? AND protocol = ? AND port = ?", *key
        )
        if before and before["bytes_out"] <= bytes_out:  # else the kernel has started anew
            bytes_out -= before["bytes_out"]
            bytes_in = max(0, bytes_in - before["bytes_in"])
            since = before["at"]
        if not bytes_out and not bytes_in:
            return
        self._database.execute(
            "INSERT OR REPLACE INTO counted VALUES (?, ?, ?, ?, ?, ?, ?)",
            *key,
            count.bytes_out,
            count.bytes_in,
            now,
        )
        # Without an answer it is not known when the last packet left.
        last = count.last_at if count.last_at > since else now
        names = " ".join(count.names)
        changed = self._database.execute(
            "UPDATE contacts SET bytes_out = bytes_out + ?, bytes_in = bytes_in + ?, last_at = ?,"
            " names = CASE WHEN ? = '' THEN names ELSE ? END WHERE session = ? AND point IS ?"
            " AND box = ? AND address = ? AND protocol = ? AND port = ?",
            bytes_out,
            bytes_in,
            last,
            names,
            names,
            session_id,
            point,
            *key,
        )
        if not changed:
            self._database.execute(
                "INSERT INTO contacts (session, box, address, protocol, port, point, names, first_at,"
                " last_at, bytes_out, bytes_in) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                session_id,
                *key,
                point,
                names,
                since,
                last,
                bytes_out,
                bytes_in,
            )

    def assign(self, session_id: str, point_id: str, box: str | None = None) -> None:
        """The session's contacts until a point was taken belong to that point. `box`: only those of it."""
        self._database.execute(
            "UPDATE contacts SET point = ?1"
            " WHERE session = ?2 AND point IS NULL AND (?3 IS NULL OR box = ?3)",
            point_id,
            session_id,
            box,
        )

    def release(self, point_id: str) -> None:
        """Its contacts are in no point again: it never came to be."""
        self._database.execute("UPDATE contacts SET point = NULL WHERE point = ?", point_id)

    def close(self, box: str) -> None:
        """The box has ended: its contacts that are in no point will be in none."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE contacts SET point = '' WHERE box = ? AND point IS NULL", (box,))
            connection.execute("DELETE FROM counted WHERE box = ?", (box,))

    def open_boxes(self) -> dict[str, str]:
        """The boxes with contacts that are in no point yet, each with its session."""
        rows = self._database.rows("SELECT DISTINCT box, session FROM contacts WHERE point IS NULL")
        return {row["box"]: row["session"] for row in rows}

    def reset_counters(self) -> None:
        """The kernel starts to count anew."""
        self._database.execute("DELETE FROM counted")

    def of_points(self, points: Sequence[str], open_of: str | None = None) -> list[Contact]:
        """Those that belong to these points, and those of a session that are in no point yet."""
        marks = ", ".join("?" * len(points))
        condition = f"point IN ({marks}) OR (point IS NULL AND session = ?)"
        return self._select(condition, *points, open_of or "")

    def of_session(self, session_id: str) -> list[Contact]:
        """All that a session ever had."""
        return self._select("session = ?", session_id)

    def since(self, session_id: str, point: Checkpoint) -> list[Contact]:
        """All of a session since a point began to be taken, whichever point they belong to."""
        began = datetime.fromisoformat(point.created_at).timestamp() - point.total_ms / 1000
        return self._select("session = ? AND last_at >= ? AND point IS NOT ?", session_id, began, point.id)

    def _select(self, condition: str, *values: str | float) -> list[Contact]:
        rows = self._database.rows(f"SELECT * FROM contacts WHERE {condition} ORDER BY first_at", *values)
        return [_contact(row) for row in rows]


def _contact(row: sqlite3.Row) -> Contact:
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
