"""Tables and rows of every SQLite database, by the sqlite3 module."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.truth.oracle.tree import Tree

_MAGIC = b"SQLite format 3\0"

Row = tuple[Any, ...]


@dataclass
class Table:
    """A table: its definition, and its rows by primary key, or by number where none is declared."""

    definition: str
    columns: tuple[str, ...]
    keyed: bool
    rows: dict[Row, Row] = field(default_factory=dict)

    @property
    def contents(self) -> Counter[Row]:
        return Counter(self.rows.values())


@dataclass
class Database:
    """A database at one moment. `damage`: why it cannot be read."""

    objects: dict[tuple[str, str], str] = field(default_factory=dict)
    """Kind and name to definition: tables, indexes, views, triggers."""
    tables: dict[str, Table] = field(default_factory=dict)
    damage: str = ""


def find_databases(root: str, tree: Tree) -> list[bytes]:
    """Files that begin as SQLite's do."""
    found = []
    for path, entry in tree.items():
        if entry.kind == "file" and entry.size >= 100 and not path.startswith(b"/usr/"):
            with contextlib.suppress(OSError), open(os.fsencode(root) + path, "rb") as file:
                if file.read(16) == _MAGIC:
                    found.append(path)
    return found


class Snapshot(NamedTuple):
    """A snapshot of redis."""

    keys: int
    spaces: tuple[str, ...]


def read_snapshot(path: bytes) -> Snapshot | None:
    """What redis' own tool says of a snapshot."""
    done = subprocess.run(["redis-check-rdb", path], capture_output=True, text=True, check=False)
    counted = re.search(r"(\d+) keys read", done.stdout)
    spaces = tuple(f"db{number}" for number in re.findall(r"Selecting DB ID (\d+)", done.stdout))
    return Snapshot(int(counted[1]), spaces) if counted else None


def fingerprint(tree: Tree, path: bytes) -> int:
    """Changes whenever the database or what lies beside it does."""
    return hash(tuple(tree.get(path + suffix) for suffix in (b"", b"-wal", b"-journal")))


def read_database(root: str, path: bytes) -> Database:
    """All of a database, from a copy of its files."""
    with tempfile.TemporaryDirectory(prefix="truth-sqlite-") as folder:
        copy = Path(folder) / "copy"
        for suffix in ("", "-wal", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(os.fsencode(root) + path + suffix.encode(), os.fsencode(f"{copy}{suffix}"))
        connection = sqlite3.connect(copy)
        connection.text_factory = bytes
        try:
            return _read(connection)
        except sqlite3.DatabaseError as error:
            return Database(damage=str(error))
        finally:
            connection.close()


def _read(connection: sqlite3.Connection) -> Database:
    [complaint] = connection.execute("PRAGMA integrity_check(1)").fetchone()
    found = Database(damage="" if complaint in (b"ok", "ok") else str(complaint))
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
        shown = name.decode()
        if shown.startswith("sqlite_"):
            continue
        found.objects[kind.decode(), shown] = " ".join((sql or b"").decode().split())
        if kind == b"table":
            found.tables[shown] = _table(connection, shown, found.objects["table", shown])
    return found


def _table(connection: sqlite3.Connection, name: str, definition: str) -> Table:
    quoted = '"' + name.replace('"', '""') + '"'
    listed = connection.execute(f"PRAGMA table_info({quoted})").fetchall()
    columns = tuple(str(column[1], "utf-8") for column in listed)
    key = [index for index, column in enumerate(listed) if column[5]]
    key.sort(key=lambda index: listed[index][5])
    table = Table(definition, columns, keyed=bool(key))
    try:
        rows = connection.execute(f"SELECT rowid, * FROM {quoted}")
        hidden = 1
    except sqlite3.OperationalError:  # a table without row numbers
        rows, hidden = connection.execute(f"SELECT * FROM {quoted}"), 0
    for row in rows:
        own = tuple(row[hidden:])
        table.rows[tuple(own[index] for index in key) if key else (row[0],)] = own
    return table
