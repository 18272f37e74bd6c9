"""The database file itself: earlier schemas open, a newer one is refused, transactions are whole."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from waypoint.errors import AlreadyExists, DaemonError, NoSpace
from waypoint.model import BoxOptions
from waypoint.store import Store
from waypoint.store.database import MIGRATIONS, SCHEMA_VERSION
from waypoint.store.events import NewEvent


def make_file(path: Path, version: int) -> None:
    """A database as this version of the schema left it: two sessions, points, and what moved a session."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for script in MIGRATIONS[:version]:
            connection.executescript(script)
        connection.execute(f"PRAGMA user_version={version}")
        connection.executemany(
            "INSERT INTO sessions (id, name, state, created_at, options, head, forked_from, points)"
            " VALUES (?, ?, 'dead', ?, '{}', ?, ?, ?)",
            [("s1", "work", 1, "p2", None, 2), ("s2", "other", 2, "p1", "p1", 0)],
        )
        connection.executemany(
            "INSERT INTO checkpoints (id, session, number, name, intent, kind, parent, created_at, pause_ms,"
            " total_ms, size_bytes, processes, files_only, coverage)"
            " VALUES (?, 's1', ?, ?, 'because', 'manual', ?, ?, 1, 1, 1, 1, 0, '[]')",
            [("p1", 1, "start", None, 1), ("p2", 2, None, "p1", 2)],
        )
        connection.execute(
            "INSERT INTO operations (session, at, verb, target, before)"
            " VALUES ('s1', 3, 'restore', 'p1', 'p2')"
        )
        if version >= 2:
            connection.execute("INSERT INTO tags VALUES ('s1', 'best', 'p1')")
            connection.execute(
                "INSERT INTO verdicts (checkpoint, at, command, state) VALUES ('p1', 1, 'true', 'passed')"
            )
            connection.execute("INSERT INTO cards VALUES ('p1', 1, '{\"summary\": \"+1 file\"}')")
        if version >= 3:
            connection.execute("INSERT INTO landed VALUES ('s1', X'2F61', 'stamp')")
        if version >= 5:
            connection.execute(
                "INSERT INTO events (session, at, kind, body) VALUES ('s1', 1, 'note', '{\"text\": \"old\"}')"
            )
            connection.execute("UPDATE sessions SET tip = 1 WHERE id = 's1'")
        if version >= 7:
            connection.execute(
                "INSERT INTO effects (session, name, at, command, class, source, state)"
                " VALUES ('s1', 'work', 1, 'git push', 'irreversible', 'rule', 'done')"
            )


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_a_database_of_every_earlier_version_opens(tmp_path: Path, version: int) -> None:
    make_file(tmp_path / "waypoint.db", version)
    store = Store(tmp_path / "waypoint.db")
    work = store.sessions.find("work")
    assert work
    assert (work.head, work.auto, work.policy, work.first_shell) == ("p2", False, None, None)
    assert [row.name for row in store.sessions.all()] == ["work", "other"]
    [start, second] = store.points.all("s1")
    assert (start.name, start.label, start.actor, start.pinned) == ("start", "c1", "person", False)
    assert (start.restorable, start.restore_error) == ("unproven", None)
    assert second.parent == start.id
    assert [operation.verb for operation in store.operations.all("s1")] == ["restore"]
    assert store.sessions.tasks("s1") == store.points.tasks("p1") == b"[]"
    if version >= 2:
        assert (start.tags, start.verdict and start.verdict.state) == (("best",), "passed")
    if 2 <= version < 4:
        assert start.summary == "+1 file", "the summary has moved from the card into the point's row"
    assert store.landings.stamps("s1") == ({b"/a": "stamp"} if version >= 3 else {})
    assert len(store.ledger.effects("s1")) == (version >= 7)

    # What is written from here on goes beside what was there.
    store.events.append("s1", [NewEvent(kind="note", body={"text": "new"})])
    tip = store.sessions.find("s1")
    assert tip
    texts = [event.body["text"] for event in store.events.trace(tip.tip)]
    assert texts == (["old", "new"] if version >= 5 else ["new"])
    store.operations.record_move("s1", "restore", box="b", target="p1", before="p2")
    moved = store.sessions.find("s1")
    assert moved
    assert (moved.state, moved.head) == ("live", "p1")
    assert [event.kind for event in store.events.trace(moved.tip)] == ["restored"]
    store.close()
    reopened = Store(tmp_path / "waypoint.db")
    assert reopened.database.rows("PRAGMA user_version")[0][0] == SCHEMA_VERSION
    reopened.close()


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "waypoint.db")) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(DaemonError, match="newer Waypoint"):
        Store(tmp_path / "waypoint.db")


def test_a_transaction_inside_another_is_a_part_of_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "waypoint.db")
    store.sessions.add("s1", "work", BoxOptions(), box="b")

    def fail_half_way() -> None:
        with store.database.transaction():
            store.sessions.set_auto("s1", auto=True)
            store.sessions.add("s2", "work", BoxOptions(), box="b2")

    with pytest.raises(AlreadyExists):
        fail_half_way()
    row = store.sessions.find("work")
    assert row
    assert not row.auto, "the outer transaction was rolled back"
    store.close()


def test_after_a_commit_that_failed_the_next_transaction_is_committed(tmp_path: Path) -> None:
    store = Store(tmp_path / "waypoint.db")

    def fail_at_commit() -> None:
        with store.database.transaction() as connection:
            connection.execute("PRAGMA defer_foreign_keys=ON")
            connection.execute("INSERT INTO tags VALUES ('no session', 'tag', 'no point')")

    with pytest.raises(sqlite3.IntegrityError):
        fail_at_commit()
    store.sessions.add("s", "work", BoxOptions(), box="b")
    with contextlib.closing(sqlite3.connect(tmp_path / "waypoint.db")) as other:
        assert other.execute("SELECT name FROM sessions").fetchall() == [("work",)]
    store.close()


def test_a_full_disk_below_the_database_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "waypoint.db")
    with store.database.transaction() as connection:
        connection.execute("PRAGMA max_page_count=1")
    with pytest.raises(NoSpace, match="host's disk is full"):
        store.sessions.add("large", "large", BoxOptions(), box="b", policy="x" * 1_000_000)
    with store.database.transaction() as connection:
        connection.execute("PRAGMA max_page_count=100000")
    store.sessions.add("s", "after", BoxOptions(), box="b")
    assert store.sessions.find("after")
    store.close()
