"""Operations: what moved a session, what undo goes back to, and the plans that a user was shown before."""

from __future__ import annotations

import time

from waypoint.model import Actor, Record
from waypoint.store.database import Database
from waypoint.store.events import EventTable, NewEvent

UNDOABLE = ("restore", "restore_files", "redo")
"""The verbs that `undo` takes back."""

_PLAN_SECONDS = 86400


class OperationRow(Record, frozen=True):
    """Something that moved a session: `before` is the point that leads back."""

    id: int
    session: str
    at: float
    verb: str
    target: str | None
    before: str | None
    undone: bool


class OperationTable:
    """The operations and plans of one home."""

    def __init__(self, database: Database, events: EventTable) -> None:
        self._database = database
        self._events = events

    def record_move(
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
        """A session stands at another point now: the one transaction that completes a restore. It moves
        trajectory and tasks too; the events after the target stay readable."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE sessions SET state = 'live', box = ?, head = ? WHERE id = ?",
                (box, target, session_id),
            )
            self._add(session_id, verb, target, before)
            self._events.go_to(session_id, target, "restored", {"verb": verb, "before": before}, actor)
            if undoes is not None:
                connection.execute("UPDATE operations SET undone = 1 WHERE id = ?", (undoes,))

    def record_change(self, session_id: str, verb: str, *, target: str, before: str | None) -> None:
        """Something of a point was brought into a session, which still stands at the same point."""
        with self._database.transaction():
            body = {"verb": verb, "before": before, **self._events.point_names(target)}
            self._events.append(session_id, [NewEvent(kind="restored", body=body)])
            self._add(session_id, verb, target, before)

    def _add(self, session_id: str, verb: str, target: str, before: str | None) -> None:
        self._database.execute(
            "INSERT INTO operations (session, at, verb, target, before) VALUES (?, ?, ?, ?, ?)",
            session_id,
            time.time(),
            verb,
            target,
            before,
        )

    def all(self, session_id: str) -> list[OperationRow]:
        """What moved a session, oldest first."""
        rows = self._database.rows("SELECT * FROM operations WHERE session = ? ORDER BY id", session_id)
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

    def add_plan(self, plan_id: str, session_id: str, target: str, ground: str) -> None:
        """A plan that was shown to a user. `ground` is the state it was made for. Plans of more than a day
        ago go."""
        now = time.time()
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM plans WHERE at < ?", (now - _PLAN_SECONDS,))
            connection.execute(
                "INSERT INTO plans VALUES (?, ?, ?, ?, ?)", (plan_id, session_id, target, now, ground)
            )

    def plan(self, plan_id: str) -> tuple[str, str, str] | None:
        """Session, target and ground of a plan."""
        row = self._database.row("SELECT session, target, ground FROM plans WHERE id = ?", plan_id)
        return (row["session"], row["target"], row["ground"]) if row else None
