"""Points: checkpoints, with their cards, verdicts, tags, notes, and what an agent left with them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from waypoint.errors import AlreadyExists
from waypoint.history.verdicts import deciding, standing
from waypoint.model import (
    Actor,
    Checkpoint,
    IntentFrom,
    Kind,
    Note,
    Platform,
    Record,
    Verdict,
    VerdictState,
    from_json,
)
from waypoint.store.database import Database, iso, readable
from waypoint.store.events import Blob, EventTable, NewEvent


class AgentState(Record, frozen=True):
    """What an agent leaves with a checkpoint, to go on from there."""

    kind: Literal["json", "bytes"]
    blob: Blob
    version: str | None = None


class NewPoint(Record, frozen=True):
    """What the row of a checkpoint is made from. It is also in the folder of the checkpoint, from which the
    row can be made again (core/pointfile.py)."""

    id: str
    session: str
    number: int
    name: str | None
    intent: str
    kind: Kind
    parent: str | None
    created_at: float
    pause_ms: float
    total_ms: float
    size_bytes: int
    processes: int
    files_only: bool
    coverage: tuple[str, ...]
    actor: Actor = "person"
    intent_from: IntentFrom = "given"
    state: AgentState | None = None
    tasks: str = "[]"
    """The session's tasks as JSON."""
    platform: Platform | None = None


# The verdicts and the card's summary are part of it: a log of a thousand points is one query.
_POINTS = """
    SELECT c.*, s.name AS session_name,
           (SELECT json_group_array(json_object('id', v.id, 'command', v.command, 'state', v.state,
                'at', v.at, 'exit_code', v.exit_code, 'duration_ms', v.duration_ms, 'output', v.output))
            FROM (SELECT * FROM verdicts WHERE checkpoint = c.id ORDER BY id) v) AS verdicts,
           (SELECT group_concat(t.name, ' ') FROM tags t WHERE t.checkpoint = c.id) AS tags
    FROM checkpoints c
    JOIN sessions s ON s.id = c.session
"""


class PointTable:
    """The checkpoints of one home."""

    def __init__(self, database: Database, events: EventTable) -> None:
        self._database = database
        self._events = events

    def all(self, session_id: str | None = None) -> list[Checkpoint]:
        """Those of a session, or of all sessions; oldest first."""
        where, values = ("WHERE c.session = ?", [session_id]) if session_id else ("", [])
        rows = self._database.rows(f"{_POINTS} {where} ORDER BY c.created_at, c.number", *values)
        return [read_point(row) for row in rows]

    def find(self, checkpoint_id: str) -> Checkpoint | None:
        row = self._database.row(f"{_POINTS} WHERE c.id = ?", checkpoint_id)
        return read_point(row) if row else None

    def numbered(self, session_id: str, number: int) -> Checkpoint | None:
        """The point of a session with that label."""
        row = self._database.row(f"{_POINTS} WHERE c.session = ? AND c.number = ?", session_id, number)
        return read_point(row) if row else None

    def likely_targets(self, session_id: str, most: int) -> list[tuple[str, int]]:
        """The whole points that the session is most likely restored to next, with their sizes: the one it
        stands on, then the newest that have a name or are pinned."""
        rows = self._database.rows(
            "SELECT c.id, c.size_bytes FROM sessions s JOIN checkpoints c"
            " ON c.id = s.head OR (c.session = s.id AND (c.name IS NOT NULL OR c.pinned))"
            " WHERE s.id = ? AND NOT c.files_only ORDER BY c.id = s.head DESC, c.created_at DESC LIMIT ?",
            session_id,
            most,
        )
        return [(row["id"], row["size_bytes"]) for row in rows]

    def parents(self) -> dict[str, str | None]:
        """The parent of each point."""
        return {row["id"]: row["parent"] for row in self._database.rows("SELECT id, parent FROM checkpoints")}

    def ids(self) -> set[str]:
        return {row["id"] for row in self._database.rows("SELECT id FROM checkpoints")}

    def name_taken(self, session_id: str, name: str) -> bool:
        query = "SELECT 1 FROM checkpoints WHERE session = ? AND name = ?"
        return self._database.row(query, session_id, name) is not None

    def next_number(self, session_id: str) -> int:
        """The number of the session's next checkpoint."""
        row = self._database.row("SELECT points + 1 AS number FROM sessions WHERE id = ?", session_id)
        return int(row["number"]) if row else 1

    def add(self, new: NewPoint) -> Checkpoint:
        """The row that makes a checkpoint exist. In the same transaction it becomes the session's head and
        gets its position in the trajectory, and the tasks that the session has there."""
        try:
            with self._database.transaction() as connection:
                if new.state:
                    self._events.keep_blob(new.state.blob)
                connection.execute(
                    "UPDATE sessions SET points = max(points, ?), head = ? WHERE id = ?",
                    (new.number, new.id, new.session),
                )
                self._insert(connection, new, self._session_tasks(new.session))
                [position] = self._events.append(new.session, [event_of(new)])
                connection.execute("UPDATE checkpoints SET position = ? WHERE id = ?", (position, new.id))
        except sqlite3.IntegrityError as error:
            raise AlreadyExists(
                f"the session has a checkpoint {new.name!r} already", hint="choose another name"
            ) from error
        point = self.find(new.id)
        assert point
        return point

    @staticmethod
    def _insert(connection: sqlite3.Connection, new: NewPoint, tasks: str) -> None:
        values = {
            "id": new.id,
            "session": new.session,
            "number": new.number,
            "name": new.name,
            "intent": new.intent,
            "kind": new.kind,
            "parent": new.parent,
            "created_at": new.created_at,
            "pause_ms": new.pause_ms,
            "total_ms": new.total_ms,
            "size_bytes": new.size_bytes,
            "processes": new.processes,
            "files_only": int(new.files_only),
            "coverage": msgspec.json.encode(new.coverage).decode(),
            "actor": new.actor,
            "intent_from": new.intent_from,
            "agent_state": new.state.blob.hash if new.state else None,
            "agent_state_kind": new.state.kind if new.state else None,
            "agent_version": new.state.version if new.state else None,
            "tasks": tasks,
            "platform": msgspec.json.encode(new.platform).decode() if new.platform else None,
        }
        connection.execute("UPDATE checkpoints SET cost_stale = 1 WHERE id = ?", (new.parent,))
        columns, marks = ", ".join(values), ", ".join(f":{column}" for column in values)
        connection.execute(f"INSERT INTO checkpoints ({columns}) VALUES ({marks})", values)

    def add_at(self, new: NewPoint, position: int | None) -> Checkpoint:
        """The row of a checkpoint that got its place in the trajectory earlier (store/pending.py). No session
        goes there."""
        with self._database.transaction() as connection:
            self._insert(connection, new, new.tasks)
            connection.execute("UPDATE checkpoints SET position = ? WHERE id = ?", (position, new.id))
        point = self.find(new.id)
        assert point
        return point

    def adopt(self, new: NewPoint, *, head: str | None, digest: str | None) -> Checkpoint:
        """The row of a checkpoint that has lost it, or had none. `head`: where the session stands then.
        `digest`: as in `set_digest`."""
        with self._database.transaction() as connection:
            point = self.add(new)
            connection.execute(
                "UPDATE checkpoints SET tasks = ?, digest = ? WHERE id = ?", (new.tasks, digest, new.id)
            )
            connection.execute("UPDATE sessions SET head = ? WHERE id = ?", (head, new.session))
        return point

    def _session_tasks(self, session_id: str) -> str:
        row = self._database.row("SELECT tasks FROM sessions WHERE id = ?", session_id)
        return str(row["tasks"]) if row else "[]"

    # ---- what would survive a power cut --------------------------------------------------------

    def not_durable(self) -> list[str]:
        """Points that a power cut might still take."""
        return [row["id"] for row in self._database.rows("SELECT id FROM checkpoints WHERE NOT durable")]

    def set_durable(self, checkpoint_ids: Sequence[str]) -> None:
        with self._database.transaction() as connection:
            connection.executemany(
                "UPDATE checkpoints SET durable = 1 WHERE id = ?", [(name,) for name in checkpoint_ids]
            )

    def forgotten(self) -> set[str]:
        """Points whose rows were removed, and whose folders may still be there."""
        return {row["checkpoint"] for row in self._database.rows("SELECT checkpoint FROM forgotten")}

    def handed_over(self) -> list[str]:
        """Points that have gone to another session, and whose folders may still name the old one."""
        return [row["checkpoint"] for row in self._database.rows("SELECT checkpoint FROM handed_over")]

    def drop_handed_over(self, written: Collection[tuple[str, str]]) -> None:
        """Their folders name these sessions now, and would after a power cut too. A point that has gone on to
        yet another session stays noted."""
        with self._database.transaction() as connection:
            connection.executemany(
                "DELETE FROM handed_over WHERE checkpoint = ?1"
                " AND ?2 = (SELECT session FROM checkpoints WHERE id = ?1)",
                written,
            )

    def drop_forgotten(self, checkpoint_ids: Collection[str]) -> None:
        """Their folders are gone, and would be gone after a power cut too."""
        with self._database.transaction() as connection:
            connection.executemany(
                "DELETE FROM forgotten WHERE checkpoint = ?", [(name,) for name in checkpoint_ids]
            )

    def number_taken(self, session_id: str, number: int) -> bool:
        query = "SELECT 1 FROM checkpoints WHERE session = ? AND number = ?"
        return self._database.row(query, session_id, number) is not None

    def set_pinned(self, checkpoint_id: str, *, pinned: bool) -> None:
        self._database.execute("UPDATE checkpoints SET pinned = ? WHERE id = ?", int(pinned), checkpoint_id)

    def set_restorable(self, checkpoint_id: str, error: str | None) -> None:
        """What a restore has shown of it: `error` says why it failed, None that it succeeded. A point that is
        damaged stays failed."""
        self._database.execute(
            "UPDATE checkpoints SET restorable = ?, restore_error = ? WHERE id = ? AND damage IS NULL",
            "proven" if error is None else "failed",
            error,
            checkpoint_id,
        )

    # ---- what it held when it was made ---------------------------------------------------------

    def set_digest(self, checkpoint_id: str, digest: str | None) -> None:
        """The digest of the list of its digests (core/manifest.py); None: they are to be made again."""
        self._database.execute("UPDATE checkpoints SET digest = ? WHERE id = ?", digest, checkpoint_id)

    def digest(self, checkpoint_id: str) -> str | None:
        row = self._database.row("SELECT digest FROM checkpoints WHERE id = ?", checkpoint_id)
        return row["digest"] if row else None

    def as_new(self, checkpoint_id: str) -> NewPoint:
        """What its row was made from, for its folder (core/pointfile.py)."""
        point = self.find(checkpoint_id)
        row = self._database.row(
            "SELECT c.session, c.number, c.tasks, c.created_at, b.hash, b.size, b.data FROM checkpoints c"
            " LEFT JOIN blobs b ON b.hash = c.agent_state WHERE c.id = ?",
            checkpoint_id,
        )
        assert point
        assert row
        state = None
        if row["hash"] and point.agent_state_kind:
            blob = Blob(hash=row["hash"], size=row["size"], data=row["data"])
            state = AgentState(kind=point.agent_state_kind, blob=blob, version=point.agent_version)
        return NewPoint(
            id=point.id,
            session=row["session"],
            number=row["number"],
            name=point.name,
            intent=point.intent,
            kind=point.kind,
            parent=point.parent,
            created_at=row["created_at"],
            pause_ms=point.pause_ms,
            total_ms=point.total_ms,
            size_bytes=point.size_bytes,
            processes=point.processes,
            files_only=point.files_only,
            coverage=point.coverage,
            actor=point.actor,
            intent_from=point.intent_from,
            state=state,
            tasks=row["tasks"],
            platform=point.platform,
        )

    def without_digest(self) -> list[str]:
        """Points of which no digests were made yet, the newest first."""
        rows = self._database.rows(
            "SELECT id FROM checkpoints WHERE digest IS NULL AND damage IS NULL ORDER BY created_at DESC"
        )
        return [row["id"] for row in rows]

    def set_damage(self, checkpoint_id: str, damage: str) -> None:
        """It is not what was written. Nothing relies on it from now on."""
        self._database.execute(
            "UPDATE checkpoints SET damage = ?, restorable = 'failed', restore_error = ? WHERE id = ?",
            damage,
            f"it is damaged: {damage}",
            checkpoint_id,
        )

    def clear_damage(self, checkpoint_id: str) -> None:
        """It is what was written again. Whether it can be restored has to be shown anew."""
        self._database.execute(
            "UPDATE checkpoints SET damage = NULL, restorable = 'unproven', restore_error = NULL"
            " WHERE id = ? AND damage IS NOT NULL",
            checkpoint_id,
        )

    def set_intent(self, checkpoint_id: str, intent: str, source: IntentFrom) -> None:
        self._database.execute(
            "UPDATE checkpoints SET intent = ?, intent_from = ? WHERE id = ?", intent, source, checkpoint_id
        )

    def remove(self, checkpoint_id: str) -> None:
        """Its children get its parent, so that the line of history stays connected. It is noted as forgotten:
        no later daemon makes a row from what is left of its folder. A session that stands on it (only when
        its data was lost) stands on its parent then."""
        with self._database.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO forgotten VALUES (?, ?)", (checkpoint_id, time.time()))
            connection.execute(
                "UPDATE sessions SET head = (SELECT parent FROM checkpoints WHERE id = ?1) WHERE head = ?1",
                (checkpoint_id,),
            )
            connection.execute(
                "UPDATE checkpoints SET cost_stale = 1 WHERE parent = ?1"
                " OR id = (SELECT parent FROM checkpoints WHERE id = ?1)",
                (checkpoint_id,),
            )
            connection.execute(
                "UPDATE checkpoints SET parent = (SELECT parent FROM checkpoints WHERE id = ?1)"
                " WHERE parent = ?1",
                (checkpoint_id,),
            )
            connection.execute(
                "UPDATE pending SET parent = (SELECT parent FROM checkpoints WHERE id = ?1)"
                " WHERE parent = ?1",
                (checkpoint_id,),
            )
            connection.execute("DELETE FROM checkpoints WHERE id = ?", (checkpoint_id,))

    # ---- what it costs -------------------------------------------------------------------------

    def set_cost(self, checkpoint_id: str, cost_bytes: int) -> None:
        """What would come back with this point alone gone, as it was measured now. It is measured again when
        a neighbour of it has come or gone."""
        self._database.execute(
            "UPDATE checkpoints SET cost = ?, cost_stale = 0 WHERE id = ?", cost_bytes, checkpoint_id
        )

    def costs(self, checkpoint_ids: Sequence[str]) -> dict[str, int]:
        """What is known of these, perhaps from before a neighbour came or went."""
        rows = self._database.rows(
            "SELECT id, cost FROM checkpoints"
            " WHERE cost IS NOT NULL AND id IN (SELECT value FROM json_each(?))",
            msgspec.json.encode(checkpoint_ids).decode(),
        )
        return {row["id"]: row["cost"] for row in rows}

    def without_cost(self) -> list[str]:
        """Points that are still to be measured, or to be measured again; the newest first."""
        rows = self._database.rows(
            "SELECT id FROM checkpoints WHERE cost_stale AND damage IS NULL ORDER BY created_at DESC"
        )
        return [row["id"] for row in rows]

    # ---- cards -------------------------------------------------------------------------------

    def set_card(self, checkpoint_id: str, card: bytes, summary: str) -> None:
        """A card, computed for the first time or again; nothing when its checkpoint is gone."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO cards (checkpoint, at, card)"
                " SELECT id, ?, ? FROM checkpoints WHERE id = ?",
                (time.time(), card.decode(), checkpoint_id),
            )
            # In the point's own row, where a log reads it without the cards, which may be large.
            connection.execute("UPDATE checkpoints SET summary = ? WHERE id = ?", (summary, checkpoint_id))

    def card(self, checkpoint_id: str) -> bytes | None:
        row = self._database.row("SELECT card FROM cards WHERE checkpoint = ?", checkpoint_id)
        return str(row["card"]).encode() if row else None

    def without_card(self) -> list[str]:
        """Checkpoints whose card was never finished: the daemon ended before."""
        rows = self._database.rows(
            "SELECT id FROM checkpoints WHERE id NOT IN (SELECT checkpoint FROM cards) ORDER BY created_at"
        )
        return [row["id"] for row in rows]

    # ---- verdicts ----------------------------------------------------------------------------

    def add_verdict(self, checkpoint_id: str, command: str) -> int:
        """A verification that starts now."""
        with self._database.transaction() as connection:
            number = connection.execute(
                "INSERT INTO verdicts (checkpoint, at, command, state) VALUES (?, ?, ?, 'running')",
                (checkpoint_id, time.time(), command),
            ).lastrowid
            assert number is not None
            return number

    def finish_verdict(
        self,
        verdict_id: int,
        state: VerdictState,
        *,
        exit_code: int | None,
        duration_ms: float | None,
        output: str,
    ) -> None:
        self._database.execute(
            "UPDATE verdicts SET state = ?, exit_code = ?, duration_ms = ?, output = ? WHERE id = ?",
            state,
            exit_code,
            duration_ms,
            output,
            verdict_id,
        )

    def drop_running_verdicts(self) -> None:
        """A verification that a daemon did not finish says nothing about its checkpoint."""
        self._database.execute(
            "UPDATE verdicts SET state = 'error', output = 'the daemon ended during the verification'"
            " WHERE state = 'running'"
        )

    def being_verified(self) -> set[str]:
        """Checkpoints with a verification under way."""
        rows = self._database.rows("SELECT checkpoint FROM verdicts WHERE state = 'running'")
        return {row["checkpoint"] for row in rows}

    def verdicts(self, checkpoint_id: str) -> list[Verdict]:
        """All of a checkpoint, oldest first."""
        rows = self._database.rows("SELECT * FROM verdicts WHERE checkpoint = ? ORDER BY id", checkpoint_id)
        return [_verdict(dict(row)) for row in rows]

    # ---- tags and notes ----------------------------------------------------------------------

    def set_tag(self, session_id: str, name: str, checkpoint_id: str | None) -> bool:
        """Another name for a point; None removes it. Returns whether the session had this tag before."""
        with self._database.transaction() as connection:
            removed = connection.execute(
                "DELETE FROM tags WHERE session = ? AND name = ?", (session_id, name)
            ).rowcount
            if checkpoint_id is not None:
                connection.execute("INSERT INTO tags VALUES (?, ?, ?)", (session_id, name, checkpoint_id))
            return bool(removed)

    def tags(self, session_id: str) -> dict[str, str]:
        """The tags of a session and the points they name, which may be another session's."""
        rows = self._database.rows(
            "SELECT name, checkpoint FROM tags WHERE session = ? ORDER BY name", session_id
        )
        return {row["name"]: row["checkpoint"] for row in rows}

    def add_note(self, checkpoint_id: str, text: str) -> None:
        self._database.execute(
            "INSERT INTO notes (checkpoint, at, text) VALUES (?, ?, ?)", checkpoint_id, time.time(), text
        )

    def notes(self, checkpoint_id: str) -> list[Note]:
        rows = self._database.rows("SELECT * FROM notes WHERE checkpoint = ? ORDER BY id", checkpoint_id)
        return [Note(at=iso(row["at"]), text=row["text"]) for row in rows]

    # ---- what the agent left -----------------------------------------------------------------

    def agent_state(self, checkpoint_id: str) -> tuple[str, bytes] | None:
        """What an agent left with a checkpoint: `json` or `bytes`, and the data."""
        row = self._database.row(
            "SELECT agent_state, agent_state_kind FROM checkpoints WHERE id = ?", checkpoint_id
        )
        data = self._events.blob(row["agent_state"]) if row and row["agent_state"] else None
        return None if row is None or data is None else (row["agent_state_kind"], data)

    def tasks(self, checkpoint_id: str) -> bytes:
        """The tasks as they were at a checkpoint: JSON."""
        row = self._database.row("SELECT tasks FROM checkpoints WHERE id = ?", checkpoint_id)
        return str(row["tasks"]).encode() if row else b"[]"

    def set_tasks(self, checkpoint_id: str, tasks: bytes) -> None:
        """For a point that has just become the evidence of one of its own tasks."""
        self._database.execute("UPDATE checkpoints SET tasks = ? WHERE id = ?", tasks.decode(), checkpoint_id)


def event_of(new: NewPoint) -> NewEvent:
    """The event of the trajectory that says that a checkpoint was taken."""
    body = {
        "checkpoint": new.id,
        "label": f"c{new.number}",
        "name": new.name,
        "intent": new.intent,
        "intent_from": new.intent_from,
        "kind": new.kind,
        "agent_state": bool(new.state),
    }
    return NewEvent(kind="checkpoint", body=body, actor=new.actor)


def read_point(row: sqlite3.Row) -> Checkpoint:
    with readable(f"checkpoint {row['id']}"):
        return _checkpoint(row)


def _checkpoint(row: sqlite3.Row) -> Checkpoint:
    verdicts = standing([_verdict(fields) for fields in msgspec.json.decode(row["verdicts"])])
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
        verdict=deciding(verdicts),
        verdicts=verdicts,
        summary=row["summary"],
        position=row["position"],
        agent_state_kind=row["agent_state_kind"],
        agent_version=row["agent_version"],
        durable=bool(row["durable"]),
        restorable=row["restorable"],
        restore_error=row["restore_error"],
        digested=row["digest"] is not None,
        damage=row["damage"],
        platform=from_json(row["platform"], Platform) if row["platform"] else None,
    )


def _verdict(fields: Mapping[str, Any]) -> Verdict:
    return Verdict(
        id=fields["id"],
        command=fields["command"],
        state=fields["state"],
        at=iso(fields["at"]),
        exit_code=fields["exit_code"],
        duration_ms=fields["duration_ms"],
        output=fields["output"],
    )
