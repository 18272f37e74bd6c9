"""Whether the write-ahead log of a database is whole.

SQLite takes a log up to the first frame whose checksum is wrong, and says nothing of what follows: after a
process was killed only an unfinished transaction is there. A transaction that was committed and is not taken
was damaged on the disk. That has to be asked before the database is opened to be written: SQLite then writes
over what it did not take. (After a power cut such frames are ordinary: the disk writes in any order.)
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
from pathlib import Path
from urllib.parse import quote

_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_MAGIC = 0x377F0682
"""The last bit says in which byte order the checksums are."""
_MAX_FRAME_AT = 16
"""In the index (-shm): how many frames SQLite has taken."""


def damage(database: Path) -> str | None:
    """What of the log cannot be read; None when all that was committed can be."""
    try:
        fd = os.open(f"{database}-wal", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _damage(database, fd)
    except sqlite3.DatabaseError:
        return None  # the database itself: opening it says so
    finally:
        os.close(fd)


def _damage(database: Path, fd: int) -> str | None:
    if os.fstat(fd).st_size < _HEADER_BYTES + _FRAME_HEADER_BYTES:
        return None
    header = os.pread(fd, _HEADER_BYTES, 0)
    magic, _, page_bytes, _, *salts, first, second = struct.unpack(">8I", header)
    order = ">" if magic & 1 else "<"
    if magic & ~1 != _MAGIC or _checksum(header[:24], order) != (first, second):
        return "the header of its write-ahead log is not what was written"
    last = _last_commit(fd, page_bytes, salts)
    if last and (taken := _taken(database)) < last:
        return (
            f"frame {taken + 1} of its write-ahead log is not what was written; transactions up to frame"
            f" {last} are behind it"
        )
    return None


def _checksum(data: bytes, order: str) -> tuple[int, int]:
    first = second = 0
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second


def _last_commit(fd: int, page_bytes: int, salts: list[int]) -> int:
    """The number of the last frame that ends a transaction, whatever else it holds. Frames of an earlier use
    of the file have other salts, both of them."""
    size_bytes, step = os.fstat(fd).st_size, page_bytes + _FRAME_HEADER_BYTES
    last = 0
    for number, at in enumerate(range(_HEADER_BYTES, size_bytes - _FRAME_HEADER_BYTES + 1, step), start=1):
        _, pages, *own, _, _ = struct.unpack(">6I", os.pread(fd, _FRAME_HEADER_BYTES, at))
        if pages and (own[0] == salts[0] or own[1] == salts[1]):
            last = number
    return last


def _taken(database: Path) -> int:
    """How many frames SQLite takes. A connection that only reads leaves the log as it is."""
    uri = f"file:{quote(os.fspath(database))}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        with open(f"{database}-shm", "rb") as index:
            index.seek(_MAX_FRAME_AT)
            (taken,) = struct.unpack("=I", index.read(4))
    return int(taken)
