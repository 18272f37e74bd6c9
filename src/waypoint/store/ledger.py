"""The ledger: what was done outside, and the approvals that were asked for.

Neither is ever rolled back: a restore takes a session to an earlier point, the outside stays as it is. A row
is written before its command runs, so that a daemon that dies in between leaves a row too many rather than
one too few. An event of kind `effect`, written when the command has ended, says where the effect stands in
the trajectory; an effect without such an event counts as done after every point. What is known to have acted
outside outlives its session.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from waypoint.model import Actor, Approval, ApprovalState, Effect, EffectClass, EffectSource, EffectState
from waypoint.store.database import Database, iso


class NewEffect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect to be added."""

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


_EFFECTS = """
    SELECT f.*, coalesce(s.name, f.name) AS session_name,
           (SELECT max(e.id) FROM events e
            WHERE e.kind = 'effect' AND json_extract(e.body, '$.effect') = f.id) AS event
    FROM effects f LEFT JOIN sessions s ON s.id = f.session
"""
_APPROVALS = """
    SELECT a.*, coalesce(s.name, a.name) AS session_name
    FROM approvals a LEFT JOIN sessions s ON s.id = a.session
"""
_EVENTS_ON_LINE = """
    WITH RECURSIVE line(id, parent) AS (
        SELECT id, parent FROM events WHERE id = ?
        UNION ALL SELECT e.id, e.parent FROM line JOIN events e ON e.id = line.parent
    )
    SELECT e.id, json_extract(e.body, '$.effect') AS effect
    FROM line JOIN events e ON e.id = line.id WHERE e.kind = 'effect'
"""
"""The events about effects that led to a position of a trajectory."""


class Ledger:
    """The effects and approvals of one home."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ---- effects -----------------------------------------------------------------------------

    def add(self, session_id: str, name: str, effects: Iterable[NewEffect]) -> list[int]:
        """Durable when this returns."""
        with self._database.transaction() as connection:
            return [self._insert(connection, session_id, name, effect) for effect in effects]

    def _insert(self, connection: sqlite3.Connection, session_id: str, name: str, effect: NewEffect) -> int:
        values = msgspec.structs.asdict(effect)
        values["class"] = values.pop("class_")
        values |= {"session": session_id, "name": name, "at": effect.at or time.time()}
        values["details"] = msgspec.json.encode(effect.details).decode()
        columns, marks = ", ".join(values), ", ".join(f":{column}" for column in values)
        number = connection.execute(f"INSERT INTO effects ({columns}) VALUES ({marks})", values).lastrowid
        assert number is not None
        return number

    def finish(self, numbers: Iterable[int], state: EffectState, exit_code: int | None) -> None:
        """How they ended."""
        with self._database.transaction() as connection:
            connection.executemany(
                "UPDATE effects SET state = ?, exit_code = ? WHERE id = ?",
                [(state, exit_code, number) for number in numbers],
            )

    def effect(self, number: int) -> Effect:
        [effect] = self._effects("WHERE f.id = ?", number)
        return effect

    def effects(self, session_id: str | None = None) -> list[Effect]:
        """Those of a session, or all that there ever were; oldest first."""
        if session_id:
            return self._effects("WHERE f.session = ? ORDER BY f.id", session_id)
        return self._effects("ORDER BY f.id")

    def leading_to(self, session_id: str, tip: int | None) -> list[Effect]:
        """Those of a session on every line of its history, and those of other sessions that led to its
        tip."""
        numbers = set(self._on_line(tip).values())
        condition = f"f.session = ? OR f.id IN ({', '.join('?' * len(numbers))})"
        return self._effects(f"WHERE {condition} ORDER BY f.id", session_id, *sorted(numbers))

    def since(self, session_id: str, tip: int | None, position: int | None) -> list[Effect]:
        """Of these, what was not yet done at a position of the trajectory."""
        before = self._on_line(position)
        effects = self.leading_to(session_id, tip)
        return [effect for effect in effects if effect.event is None or effect.event not in before]

    def between(self, old: int | None, new: int | None) -> list[Effect]:
        """What was done on the way from one position to another."""
        events = self._on_line(new).keys() - self._on_line(old).keys()
        marks = ", ".join("?" * len(events))
        return self._effects(f"WHERE event IN ({marks}) ORDER BY f.id", *sorted(events)) if events else []

    def _on_line(self, position: int | None) -> dict[int, int]:
        """The events about effects that led to a position, and the effect of each."""
        return {row["id"]: row["effect"] for row in self._database.rows(_EVENTS_ON_LINE, position)}

    def _effects(self, condition: str, *values: Any) -> list[Effect]:
        return [_effect(row) for row in self._database.rows(f"{_EFFECTS} {condition}", *values)]

    def last_success(self, key: str) -> Effect | None:
        """The last effect with this key that did not fail."""
        effects = self._effects("WHERE f.key = ? AND f.state != 'failed' ORDER BY f.id DESC LIMIT 1", key)
        return effects[0] if effects else None

    def unfinished(self) -> list[tuple[str, int]]:
        """Session and number of each effect that a daemon left running or without its event when it ended."""
        rows = self._database.rows(
            f"SELECT session, id FROM ({_EFFECTS}) WHERE (state = 'running' OR event IS NULL)"
            " AND session IN (SELECT id FROM sessions)"
        )
        return [(row["session"], row["id"]) for row in rows]

    def interrupt(self) -> None:
        """It is not known how those ended that were running."""
        self._database.execute("UPDATE effects SET state = 'interrupted' WHERE state = 'running'")

    # ---- approvals ---------------------------------------------------------------------------

    def ask(self, approval: Approval, session_id: str, created_at: float, expires_at: float) -> None:
        """The times are those in `approval`: the requester and later readers see the same."""
        self._database.execute(
            "INSERT INTO approvals (id, session, name, digest, command, class, why, actor, created_at,"
            " expires_at, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting')",
            approval.id,
            session_id,
            approval.session,
            approval.digest,
            approval.command,
            approval.class_,
            approval.why,
            approval.actor,
            created_at,
            expires_at,
        )

    def decide(self, approval_id: str, state: ApprovalState, note: str = "") -> bool:
        """An approval is decided once: returns False when it had been decided already."""
        changed = self._database.execute(
            "UPDATE approvals SET state = ?, decided_at = ?, note = ? WHERE id = ? AND state = 'waiting'",
            state,
            time.time(),
            note,
            approval_id,
        )
        return changed == 1

    def withdraw(self, approval_id: str, note: str) -> None:
        """One that was granted was not used, and cannot be any more."""
        self._database.execute(
            "UPDATE approvals SET state = 'gone', note = ? WHERE id = ? AND state = 'approved'",
            note,
            approval_id,
        )

    def abandon(self) -> None:
        """For a daemon that starts: no requester waits any more, so what waits is over and not granted."""
        self._database.execute(
            "UPDATE approvals SET state = 'gone', decided_at = ?, note = 'the daemon ended'"
            " WHERE state = 'waiting'",
            time.time(),
        )

    def approval(self, approval_id: str) -> Approval | None:
        """By its id, or by the beginning of the id of one that waits."""
        rows = self._database.rows(f"{_APPROVALS} WHERE a.id = ?", approval_id)
        if not rows and approval_id:
            rows = self._database.rows(
                f"{_APPROVALS} WHERE a.state = 'waiting' AND substr(a.id, 1, ?) = ?",
                len(approval_id),
                approval_id,
            )
        return _approval(rows[0]) if len(rows) == 1 else None

    def approvals(self, *, waiting: bool = True, session_id: str | None = None) -> list[Approval]:
        """Oldest first; `waiting`: only those that are still to be decided."""
        state = "a.state = 'waiting'" if waiting else "true"
        rows = self._database.rows(
            f"{_APPROVALS} WHERE {state} AND (a.session = ?1 OR ?1 IS NULL) ORDER BY a.created_at", session_id
        )
        return [_approval(row) for row in rows]


def _effect(row: sqlite3.Row) -> Effect:
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


def _approval(row: sqlite3.Row) -> Approval:
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
