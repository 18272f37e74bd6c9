"""Pending points: safety points whose processes are still a frozen box (core/safety.py).

A pending point is in no other table, so a verb that works with points cannot meet one that has no data yet.
It becomes a row of `checkpoints` when it is saved.
"""

from __future__ import annotations

import sqlite3

import msgspec

from waypoint.model import Checkpoint, Record, from_json
from waypoint.store.database import Database, iso, readable
from waypoint.store.events import EventTable
from waypoint.store.points import NewPoint, PointTable, event_of


class PendingRow(Record, frozen=True):
    """A pending point, and the box that holds its processes."""

    point: NewPoint
    box: str
    tree: str
    """What has to be known to save it, as the core has written it."""
    position: int | None
    problem: str | None
    """Why it could not be saved, if that was tried."""


class PendingTable:
    """The pending points of one home."""

    def __init__(self, database: Database, events: EventTable, points: PointTable) -> None:
        self._database, self._events, self._points = database, events, points

    def add(self, new: NewPoint, box: str, tree: str) -> None:
        """In the same transaction it gets its number and its position in the trajectory."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE sessions SET points = max(points, ?) WHERE id = ?", (new.number, new.session)
            )
            positions = self._events.append(new.session, [event_of(new)])
            connection.execute(
                "INSERT INTO pending (checkpoint, session, box, parent, position, point, tree)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    new.id,
                    new.session,
                    box,
                    new.parent,
                    positions[0] if positions else None,
                    msgspec.json.encode(new).decode(),
                    tree,
                ),
            )

    def complete(self, new: NewPoint) -> Checkpoint:
        """It is saved: a point like any other from here on. `new`: with what is known now."""
        with self._database.transaction() as connection:
            row = self.find(new.id)
            assert row
            connection.execute("DELETE FROM pending WHERE checkpoint = ?", (new.id,))
            return self._points.add_at(msgspec.structs.replace(new, parent=row.point.parent), row.position)

    def set_problem(self, checkpoint_id: str, problem: str | None) -> None:
        self._database.execute("UPDATE pending SET problem = ? WHERE checkpoint = ?", problem, checkpoint_id)

    def remove(self, checkpoint_id: str) -> None:
        self._database.execute("DELETE FROM pending WHERE checkpoint = ?", checkpoint_id)

    def boxes(self) -> set[str]:
        """The boxes that hold one."""
        return {row["box"] for row in self._database.rows("SELECT box FROM pending")}

    def find(self, checkpoint_id: str) -> PendingRow | None:
        row = self._database.row("SELECT * FROM pending WHERE checkpoint = ?", checkpoint_id)
        return read_pending(row) if row else None

    def all(self, session_id: str | None = None) -> list[PendingRow]:
        """Those of a session, or of all sessions."""
        where, values = ("WHERE session = ?", [session_id]) if session_id else ("", [])
        return [read_pending(row) for row in self._database.rows(f"SELECT * FROM pending {where}", *values)]

    def points(self, session_id: str | None = None) -> list[Checkpoint]:
        """The same as clients see them."""
        where, values = ("WHERE p.session = ?", [session_id]) if session_id else ("", [])
        rows = self._database.rows(
            f"SELECT p.*, s.name AS session_name FROM pending p JOIN sessions s ON s.id = p.session {where}",
            *values,
        )
        return [_checkpoint(read_pending(row), row["session_name"]) for row in rows]

    def as_point(self, checkpoint_id: str) -> Checkpoint | None:
        return next((point for point in self.points() if point.id == checkpoint_id), None)


def read_pending(row: sqlite3.Row) -> PendingRow:
    with readable(f"pending checkpoint {row['checkpoint']}"):
        point = msgspec.structs.replace(from_json(row["point"], NewPoint), parent=row["parent"])
    return PendingRow(
        point=point, box=row["box"], tree=row["tree"], position=row["position"], problem=row["problem"]
    )


def _checkpoint(row: PendingRow, session_name: str) -> Checkpoint:
    new = row.point
    return Checkpoint(
        id=new.id,
        name=new.name,
        intent=new.intent,
        session=session_name,
        label=f"c{new.number}",
        parent=new.parent,
        created_at=iso(new.created_at),
        kind=new.kind,
        pause_ms=new.pause_ms,
        total_ms=new.total_ms,
        size_bytes=new.size_bytes,
        processes=new.processes,
        coverage=new.coverage,
        actor=new.actor,
        intent_from=new.intent_from,
        position=row.position,
        platform=new.platform,
        pending=True,
        problem=row.problem,
    )
