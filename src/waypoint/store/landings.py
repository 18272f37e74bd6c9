"""Landings: the files that sessions have brought to this machine, so that a later landing knows its own."""

from __future__ import annotations

from collections.abc import Mapping

from waypoint.store.database import Database


class LandingTable:
    """For each session, the paths of this machine that it has written and the stamp of each file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def stamps(self, session_id: str) -> dict[bytes, str]:
        """The path and the stamp of every file that a session has landed."""
        rows = self._database.rows("SELECT path, stamp FROM landed WHERE session = ?", session_id)
        return {row["path"]: row["stamp"] for row in rows}

    def add(self, session_id: str, stamps: Mapping[bytes, str]) -> None:
        """Does nothing when the session is gone."""
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO landed SELECT id, ?, ? FROM sessions WHERE id = ?",
                [(path, stamp, session_id) for path, stamp in stamps.items()],
            )
