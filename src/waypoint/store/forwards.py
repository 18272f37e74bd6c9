"""Forwards: the ports of this machine that lead into sessions. The next daemon serves them again."""

from __future__ import annotations

import sqlite3

from waypoint.errors import NotFound
from waypoint.model import Forward
from waypoint.store.database import Database, readable


class ForwardTable:
    """The forwards of one home."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[tuple[str, Forward]]:
        """Every forward, with the id of its session."""
        rows = self._database.rows("SELECT * FROM forwards ORDER BY session, port, address, local_port")
        return [(row["session"], _forward(row)) for row in rows]

    def of(self, session_id: str) -> list[Forward]:
        """Those of one session, by port."""
        query = "SELECT * FROM forwards WHERE session = ? ORDER BY port, address, local_port"
        return [_forward(row) for row in self._database.rows(query, session_id)]

    def add(self, session_id: str, forward: Forward) -> None:
        """NotFound when the session is gone."""
        added = self._database.execute(
            "INSERT INTO forwards SELECT id, ?, ?, ?, ? FROM sessions WHERE id = ?",
            forward.port,
            forward.address,
            forward.local_port,
            forward.problem,
            session_id,
        )
        if not added:
            raise NotFound("this session has just been removed")

    def set_problem(self, forward: Forward, problem: str) -> None:
        self._database.execute(
            "UPDATE forwards SET problem = ? WHERE address = ? AND local_port = ?",
            problem,
            forward.address,
            forward.local_port,
        )

    def remove(self, forward: Forward) -> None:
        self._database.execute(
            "DELETE FROM forwards WHERE address = ? AND local_port = ?", forward.address, forward.local_port
        )


def _forward(row: sqlite3.Row) -> Forward:
    with readable(f"the forward {row['address']}:{row['local_port']}"):
        return Forward(
            port=row["port"], address=row["address"], local_port=row["local_port"], problem=row["problem"]
        )
