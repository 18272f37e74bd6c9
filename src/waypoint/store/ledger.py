"""The ledger: what was done outside, and what somebody was asked to agree to.

Neither is ever rolled back: a restore takes a session to an earlier point, the outside stays where it is. A
row is written before its command runs, so that a daemon that dies in the middle leaves a row too many rather
than one too few. Where an effect stands in the trajectory is said by an event that names it (kind `effect`,
told when the command has ended); one that has none yet counts as done after every point. What is known to
have acted on the outside outlives its session.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from waypoint.model import Actor, Approval, ApprovalState, Effect, EffectClass, EffectSource, EffectState
from waypoint.store.database import Store, iso


class NewEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is about to be done outside, or was."""

    command: str
    class_: EffectClass
    source: EffectSource
    rule: str = ""
    target: str = ""
    key: str = ""
    compensate: str = ""
    state: EffectState = "running"
    exit_code: int | None = None
    actor: Actor = "person"
    approval: str | None = None
    at: float | None = None
    details: dict[str, Any] = msgspec.field(default_factory=dict)


class Ledger:
    """The effects and approvals of one home."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # ---- effects -----------------------------------------------------------------------------

    def add(self, session_id: str, name: str, effects: Iterable[NewEffect]) -> list[int]:
        """Kept when this returns."""
        with self._store.transaction() as db:
            return [self._insert(db, session_id, name, one) for one in effects]

    def _insert(self, db: sqlite3.Connection, session_id: str, name: str, one: NewEffect) -> int:
        made = db.execute(
            "INSERT INTO effects (session, name, at, command, class, rule, target, key, compensate, source,"
            " state, exit_code, actor, approval, details)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(session_id, name, one.at or time.time(), one.command, one.class_, one.rule, one.target),
                *(one.key, one.compensate, one.source, one.state, one.exit_code, one.actor, one.approval),
                msgspec.json.encode(one.details).decode(),
            ),
        ).lastrowid
        assert made is not None
        return made

    def finish(self, numbers: Iterable[int], state: EffectState, exit_code: int | None) -> None:
        """What became of them."""
        with self._store.transaction() as db:
            db.executemany(
                "UPDATE effects SET state = ?, exit_code = ? WHERE id = ?",
                [(state, exit_code, number) for number in numbers],
            )

    def update(self, number: int, details: dict[str, Any]) -> None:
        """More has become known about it."""
        with self._store.transaction() as db:
            db.execute(
                "UPDATE effects SET details = ? WHERE id = ?", (msgspec.json.encode(details).decode(), number)
            )

    _EFFECTS = """
        SELECT f.*, coalesce(s.name, f.name) AS session_name,
               (SELECT max(e.id) FROM events e
                WHERE e.kind = 'effect' AND json_extract(e.body, '$.effect') = f.id) AS event
        FROM effects f LEFT JOIN sessions s ON s.id = f.session
    """

    def _effect(self, row: sqlite3.Row) -> Effect:
        return Effect(
            id=row["id"],
            session=row["session_name"],
            at=iso(row["at"]),
            event=row["event"],
            command=row["command"],
            class_=row["class"],
            rule=row["rule"],
            target=row["target"],
            key=row["key"],
            reversible=row["class"] == "external-reversible",
            compensate=row["compensate"],
            source=row["source"],
            state=row["state"],
            exit_code=row["exit_code"],
            actor=row["actor"],
            approval=row["approval"],
            details=msgspec.json.decode(row["details"]),
        )

    def effect(self, number: int) -> Effect:
        (row,) = self._store.rows(f"{self._EFFECTS} WHERE f.id = ?", number)
        return self._effect(row)

    def effects(self, session_id: str | None = None) -> list[Effect]:
        """Those of a session, or all that there ever were; oldest first."""
        where = "WHERE f.session = ?" if session_id else ""
        rows = self._store.rows(
            f"{self._EFFECTS} {where} ORDER BY f.id", *([session_id] if session_id else [])
        )
        return [self._effect(row) for row in rows]

    def on_the_way(self, session_id: str, tip: int | None) -> list[Effect]:
        """Those of a session, on whatever line of its history, and those that led to where it stands."""
        return self._lined(
            "WITH RECURSIVE line(id, parent) AS (SELECT id, parent FROM events WHERE id = ?2"
            " UNION ALL SELECT e.id, e.parent FROM line JOIN events e ON e.id = line.parent)"
            f" {self._EFFECTS} WHERE f.session = ?1 OR f.id IN (SELECT json_extract(e.body, '$.effect')"
            " FROM events e WHERE e.kind = 'effect' AND e.id IN (SELECT id FROM line)) ORDER BY f.id",
            session_id,
            tip,
        )

    def since(self, session_id: str, tip: int | None, position: int | None) -> list[Effect]:
        """Of these, what was not yet done at a position of the trajectory."""
        before = set(self._line(position)) if position else set()
        return [
            one for one in self.on_the_way(session_id, tip) if one.event is None or one.event not in before
        ]

    def between(self, old: int | None, new: int | None) -> list[Effect]:
        """What was done on the way from one position to another."""
        mine = set(self._line(new or 0)) - set(self._line(old or 0))
        return self._by_event(mine)

    def _by_event(self, events: set[int]) -> list[Effect]:
        if not events:
            return []
        marks = ", ".join("?" * len(events))
        return self._lined(
            f"SELECT * FROM ({self._EFFECTS}) WHERE event IN ({marks}) ORDER BY id", *sorted(events)
        )

    def _line(self, position: int) -> list[int]:
        rows = self._store.rows(
            "WITH RECURSIVE line(id, parent) AS (SELECT id, parent FROM events WHERE id = ?"
            " UNION ALL SELECT e.id, e.parent FROM line JOIN events e ON e.id = line.parent)"
            " SELECT line.id FROM line JOIN events e ON e.id = line.id WHERE e.kind = 'effect'",
            position,
        )
        return [row["id"] for row in rows]

    def _lined(self, query: str, *values: Any) -> list[Effect]:
        return [self._effect(row) for row in self._store.rows(query, *values)]

    def done_before(self, key: str) -> Effect | None:
        """The last time that the same effect was had, if it was not a failure."""
        found = self._lined(
            f"{self._EFFECTS} WHERE f.key = ? AND f.state != 'failed' ORDER BY f.id DESC LIMIT 1", key
        )
        return found[0] if found else None

    def left_over(self) -> list[tuple[str, int]]:
        """Session and number of what a daemon that ended left running, or without its event."""
        rows = self._store.rows(
            f"SELECT session, id FROM ({self._EFFECTS}) WHERE (state = 'running' OR event IS NULL)"
            " AND session IN (SELECT id FROM sessions)"
        )
        return [(row["session"], row["id"]) for row in rows]

    def interrupt(self) -> None:
        """Nobody knows any more what became of those that were running."""
        with self._store.transaction() as db:
            db.execute("UPDATE effects SET state = 'interrupted' WHERE state = 'running'")

    # ---- approvals ---------------------------------------------------------------------------

    def ask(self, approval: Approval, session_id: str, created_at: float, expires_at: float) -> None:
        """The times are those that `approval` tells: who asked and who looks it up hear the same."""
        with self._store.transaction() as db:
            db.execute(
                "INSERT INTO approvals (id, session, name, digest, command, class, why, actor, created_at,"
                " expires_at, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting')",
                (
                    *(approval.id, session_id, approval.session, approval.digest, approval.command),
                    *(approval.class_, approval.why, approval.actor, created_at, expires_at),
                ),
            )

    def decide(self, approval_id: str, state: ApprovalState, note: str = "") -> bool:
        """Once only: False when it had been decided already."""
        with self._store.transaction() as db:
            changed = db.execute(
                "UPDATE approvals SET state = ?, decided_at = ?, note = ? WHERE id = ? AND state = 'waiting'",
                (state, time.time(), note, approval_id),
            )
            return changed.rowcount == 1

    def abandon(self) -> None:
        """A daemon that starts knows of nobody who waits: what waits is over, and not granted."""
        with self._store.transaction() as db:
            db.execute(
                "UPDATE approvals SET state = 'gone', decided_at = ?, note = 'the daemon ended'"
                " WHERE state = 'waiting'",
                (time.time(),),
            )

    _APPROVALS = """
        SELECT a.*, coalesce(s.name, a.name) AS session_name
        FROM approvals a LEFT JOIN sessions s ON s.id = a.session
    """

    def _approval(self, row: sqlite3.Row) -> Approval:
        return Approval(
            id=row["id"],
            session=row["session_name"],
            command=row["command"],
            digest=row["digest"],
            class_=row["class"],
            why=row["why"],
            actor=row["actor"],
            created_at=iso(row["created_at"]),
            expires_at=iso(row["expires_at"]),
            state=row["state"],
            decided_at=iso(row["decided_at"]) if row["decided_at"] else None,
            note=row["note"],
        )

    def approval(self, approval_id: str) -> Approval | None:
        """By its id, or by the beginning of one that waits."""
        rows = self._store.rows(f"{self._APPROVALS} WHERE a.id = ?", approval_id)
        if not rows and approval_id:
            rows = self._store.rows(
                f"{self._APPROVALS} WHERE a.state = 'waiting' AND substr(a.id, 1, ?) = ?",
                len(approval_id),
                approval_id,
            )
        return self._approval(rows[0]) if len(rows) == 1 else None

    def approvals(self, *, waiting: bool = True, session_id: str | None = None) -> list[Approval]:
        """Oldest first; `waiting`: only those that are still to be decided."""
        conditions = ["a.state = 'waiting'"] if waiting else []
        if session_id:
            conditions.append("a.session = ?")
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        rows = self._store.rows(
            f"{self._APPROVALS} {where} ORDER BY a.created_at", *([session_id] if session_id else [])
        )
        return [self._approval(row) for row in rows]
