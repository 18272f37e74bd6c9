"""Whether a database keeps the rules of docs/storage.md, and what SQLite itself finds wrong with it.

Everything here works on a plain connection and on rows that may be broken: also on a database that `Store`
cannot open. Nothing is changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from waypoint.errors import DatabaseDamaged
from waypoint.store.points import read_point
from waypoint.store.sessions import read_session


class Fault(NamedTuple):
    """A rule that is broken: its number, what is wrong, and in which table or row."""

    rule: int
    what: str
    where: str


_MOST_LISTED = 100
_EVENTS, _POSITIONS, _BLOBS, _DATABASE, _REFERENCES, _ROWS = 16, 17, 18, 20, 21, 22

_QUERIES = (
    (
        _EVENTS,
        "event {0} names {1} as the event before it, which is not there or not older",
        "events",
        (
            "SELECT e.id, e.parent FROM events e LEFT JOIN events p ON p.id = e.parent"
            " WHERE e.parent IS NOT NULL AND (p.id IS NULL OR p.id >= e.id)"
        ),
    ),
    (
        _EVENTS,
        "the trajectory of session {0} ends at event {1}, which is not there",
        "sessions",
        (
            "SELECT s.name, s.tip FROM sessions s LEFT JOIN events e ON e.id = s.tip"
            " WHERE s.tip IS NOT NULL AND e.id IS NULL"
        ),
    ),
    (
        _POSITIONS,
        "checkpoint {0} stands at event {1}, which is not its own",
        "checkpoints",
        (
            "SELECT c.id, c.position FROM checkpoints c LEFT JOIN events e ON e.id = c.position"
            " WHERE c.position IS NOT NULL AND (e.id IS NULL OR e.session != c.session)"
        ),
    ),
    (
        _BLOBS,
        "event {0} refers to blob {1}, which is not there",
        "events",
        (
            "SELECT e.id, e.blob FROM events e LEFT JOIN blobs b ON b.hash = e.blob"
            " WHERE e.blob IS NOT NULL AND b.hash IS NULL"
        ),
    ),
    (
        _BLOBS,
        "checkpoint {0} refers to agent state {1}, which is not there",
        "checkpoints",
        (
            "SELECT c.id, c.agent_state FROM checkpoints c LEFT JOIN blobs b ON b.hash = c.agent_state"
            " WHERE c.agent_state IS NOT NULL AND b.hash IS NULL"
        ),
    ),
    (
        _REFERENCES,
        "session {0} is at checkpoint {1}, which is not there",
        "sessions",
        (
            "SELECT s.name, s.head FROM sessions s LEFT JOIN checkpoints c ON c.id = s.head"
            " WHERE s.head IS NOT NULL AND c.id IS NULL"
        ),
    ),
    (
        _REFERENCES,
        "session {0} was forked from checkpoint {1}, which is not there",
        "sessions",
        (
            "SELECT s.name, s.forked_from FROM sessions s LEFT JOIN checkpoints c ON c.id = s.forked_from"
            " WHERE s.forked_from IS NOT NULL AND c.id IS NULL"
        ),
    ),
    (
        _REFERENCES,
        "checkpoint {0} follows {1}, which is not there",
        "checkpoints",
        (
            "SELECT c.id, c.parent FROM checkpoints c LEFT JOIN checkpoints p ON p.id = c.parent"
            " WHERE c.parent IS NOT NULL AND p.id IS NULL"
        ),
    ),
    (
        _REFERENCES,
        "checkpoint {0} has number {1}, which session {2} has not given out yet",
        "checkpoints",
        (
            "SELECT c.id, c.number, s.name FROM checkpoints c JOIN sessions s ON s.id = c.session"
            " WHERE c.number > s.points"
        ),
    ),
    (
        7,
        "checkpoint {0} is noted as forgotten and has a row",
        "forgotten",
        "SELECT f.checkpoint FROM forgotten f JOIN checkpoints c ON c.id = f.checkpoint",
    ),
)


def check_file(database: Path, *, deep: bool) -> list[Fault]:
    """The same of a file, over a connection of its own that only reads: other threads go on meanwhile."""
    uri = f"file:{quote(str(database))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            return list(check(connection, deep=deep))
    except sqlite3.DatabaseError as error:
        return [Fault(_DATABASE, f"the database cannot be read: {error}", database.name)]


def check(connection: sqlite3.Connection, *, deep: bool) -> Iterator[Fault]:
    """Every rule about rows. `deep`: the contents of all blobs too."""
    sound = True
    for fault in _integrity(connection):
        sound = False
        yield fault
    for run in (_references, _rules, _rows):
        yield from _readable(connection, run, sound=sound)
    if deep:
        yield from _readable(connection, _blobs, sound=sound)


def _readable(
    connection: sqlite3.Connection, run: Callable[[sqlite3.Connection], Iterator[Fault]], *, sound: bool
) -> Iterator[Fault]:
    """The faults that a reader finds. What it cannot read was reported before, unless nothing was."""
    try:
        yield from run(connection)
    except (sqlite3.DatabaseError, sqlite3.InterfaceError, UnicodeDecodeError) as error:
        if sound:
            yield Fault(_DATABASE, f"the database cannot be read: {error}", "waypoint.db")


def _any_text(data: bytes) -> str:
    return data.decode(errors="replace")


def _integrity(connection: sqlite3.Connection) -> Iterator[Fault]:
    texts = connection.text_factory
    connection.text_factory = _any_text  # it may name an index by a damaged name
    try:
        rows = connection.execute(f"PRAGMA integrity_check({_MOST_LISTED})").fetchall()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # so may SQLite's message
        yield Fault(_DATABASE, f"the database cannot be read: {error}", "waypoint.db")
        return
    finally:
        connection.text_factory = texts
    for (words,) in map(tuple, rows):
        if words != "ok":
            yield Fault(_DATABASE, f"SQLite: {words}", "waypoint.db")


def _references(connection: sqlite3.Connection) -> Iterator[Fault]:
    """Rows that name a session or a checkpoint that is not there."""
    for table, rowid, target, _ in map(tuple, connection.execute("PRAGMA foreign_key_check")):
        row = "a row" if rowid is None else f"row {rowid}"
        yield Fault(_REFERENCES, f"{row} of {table} belongs to a row of {target} that is not there", table)


def _rules(connection: sqlite3.Connection) -> Iterator[Fault]:
    for rule, words, table, query in _QUERIES:
        for row in connection.execute(f"{query} LIMIT {_MOST_LISTED}"):
            yield Fault(rule, words.format(*tuple(row)), table)


_JSON_COLUMNS = (
    ("cards", "checkpoint", "card"),
    ("events", "id", "body"),
    ("checkpoints", "id", "tasks"),
    ("sessions", "id", "tasks"),
    ("effects", "id", "details"),
)


def _rows(connection: sqlite3.Connection) -> Iterator[Fault]:
    """Rows that can be read as what they are: the types of their columns, and the JSON in them."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    for row in cursor.execute("SELECT * FROM sessions"):
        try:
            read_session(row)
        except DatabaseDamaged as error:
            yield Fault(_ROWS, error.message.partition(": ")[2], "sessions")
    points = "SELECT c.*, '' AS session_name, '[]' AS verdicts, NULL AS tags FROM checkpoints c"
    for row in cursor.execute(points):
        try:
            read_point(row)
        except DatabaseDamaged as error:
            yield Fault(_ROWS, error.message.partition(": ")[2], "checkpoints")
    for table, key, column in _JSON_COLUMNS:
        query = f"SELECT {key} FROM {table} WHERE NOT json_valid({column}) LIMIT {_MOST_LISTED}"
        for row in cursor.execute(query):
            yield Fault(_ROWS, f"{column} of row {row[key]} of {table} is no JSON", table)


def _blobs(connection: sqlite3.Connection) -> Iterator[Fault]:
    """The content of every blob has the digest that it is named after."""
    import zstandard  # here: only a deep check needs it

    decompressor = zstandard.ZstdDecompressor()
    for name, size, data in map(tuple, connection.execute("SELECT hash, size, data FROM blobs")):
        try:
            content = decompressor.decompress(data, max_output_size=max(size, 1))
        except (zstandard.ZstdError, TypeError, ValueError, OverflowError, MemoryError):
            content = None
        if content is None or len(content) != size or hashlib.sha256(content).hexdigest() != name:
            yield Fault(_BLOBS, f"blob {name} is not what was written", "blobs")
