"""What earlier versions have stored is opened; what a newer one has stored is refused and not changed."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from waypoint import errors
from waypoint.store import Store, soundness
from waypoint.store.database import SCHEMA_VERSION

SCHEMAS = Path(__file__).parent / "schemas"
NEVER_RELEASED = {3}


def version_of(dump: Path) -> int:
    """`4-early` is schema 4 as its first commit had it."""
    return int(dump.stem.partition("-")[0])


DUMPS = sorted(SCHEMAS.glob("*.sql"), key=lambda path: (version_of(path), path.stem))


def load(path: Path, dump: Path) -> None:
    """A database as the code of that time has left it."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump.read_text())


def columns(path: Path) -> dict[str, set[str]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
            for name in tables
            if not name.startswith("sqlite_")
        }


def test_there_is_a_database_of_every_earlier_schema() -> None:
    there = {version_of(path) for path in DUMPS}
    missing = set(range(1, SCHEMA_VERSION)) - there - NEVER_RELEASED
    assert not missing, "run `python tests/generate_schema.py` before the migration is added"


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.stem)
def test_a_database_that_an_earlier_version_made_is_opened_and_keeps_the_rules(
    tmp_path: Path, dump: Path
) -> None:
    path, version = tmp_path / "waypoint.db", version_of(dump)
    load(path, dump)
    store = Store(path)
    work, other = store.sessions.all()
    assert (work.name, work.head, work.options.net) == ("work", "c00000000001", "none")
    assert (other.name, other.forked_from) == ("other", "c00000000001")
    start, second = store.points.all()
    assert (start.label, start.name, start.intent) == ("c1", "start", "because")
    assert (second.label, second.parent, second.intent) == ("c2", start.id, "and on")
    assert not start.digested
    assert start.damage is None
    assert [op.verb for op in store.operations.all(work.id)] == ["restore"]
    if version >= 2:
        assert (start.tags, start.verdict and start.verdict.state) == (("best",), "passed")
        assert [note.text for note in store.points.notes(start.id)] == ["a note"]
        assert start.summary == "+1 file"
    store.points.set_damage(start.id, "gone")
    store.points.remove(second.id)
    store.close()
    assert soundness.check_file(path, deep=True) == []
    fresh = tmp_path / "fresh.db"
    Store(fresh).close()
    assert columns(path) == columns(fresh)


def test_a_database_of_a_newer_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "waypoint.db"
    load(path, DUMPS[-1])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
        connection.execute("PRAGMA journal_mode=WAL")
    before = path.read_bytes()
    with pytest.raises(errors.DaemonError, match="newer Waypoint"):
        Store(path)
    assert path.read_bytes() == before
