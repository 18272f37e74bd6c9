"""Writes tests/unit/schemas/N.sql: a small database of the present schema, as this version makes it.

To be run before a new migration is added, so that tests/unit/test_upgrades.py opens what this version has
left. The files of earlier schemas were made in the same way by the code of their time. (There is none of
schema 3: no version ever had it.)
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import time
from pathlib import Path

from waypoint.model import BoxOptions, Platform
from waypoint.store import Store
from waypoint.store.database import SCHEMA_VERSION
from waypoint.store.points import NewPoint

FOLDER = Path(__file__).parent / "unit" / "schemas"
_WORK, _START, _SECOND = "aaaaaaaaaaaa", "c00000000001", "c00000000002"


def point(number: int, point_id: str, name: str | None, parent: str | None, intent: str) -> NewPoint:
    return NewPoint(
        id=point_id,
        session=_WORK,
        number=number,
        name=name,
        intent=intent,
        kind="manual",
        parent=parent,
        created_at=time.time(),
        pause_ms=4.2,
        total_ms=31.0,
        size_bytes=866304,
        processes=2,
        files_only=False,
        coverage=(),
        platform=Platform(architecture="x86_64", kernel="6.18.0", criu="4.2.1"),
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "waypoint.db"
        store = Store(path)
        store.sessions.add(_WORK, "work", BoxOptions(net="none"), box="b00000000001")
        store.points.add(point(1, _START, "start", None, "because"))
        store.points.add(point(2, _SECOND, None, _START, "and on"))
        verdict = store.points.add_verdict(_START, "true")
        store.points.finish_verdict(verdict, "passed", exit_code=0, duration_ms=1.0, output="")
        store.points.set_tag(_WORK, "best", _START)
        store.points.add_note(_START, "a note")
        store.points.set_card(_START, b'{"summary": "+1 file"}', "+1 file")
        store.sessions.add("bbbbbbbbbbbb", "other", BoxOptions(net="none"), box="b00000000002", head=_START)
        store.operations.record_move(_WORK, "restore", box="b00000000003", target=_START, before=_SECOND)
        store.close()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            lines = [line for line in connection.iterdump() if "sqlite_sequence" not in line]
    text = "\n".join([*lines, f"PRAGMA user_version={SCHEMA_VERSION};", ""])
    (FOLDER / f"{SCHEMA_VERSION}.sql").write_text(text)


if __name__ == "__main__":
    main()
