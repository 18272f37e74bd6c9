"""Database servers, known by their data folders: PostgreSQL, MariaDB (and MySQL), redis.

Their rows can be read by the server alone, and no server is started for a card. What the folder itself says
is told: which databases there are, which of them were written to, how many tables or keys. What cannot be
told is a gap. Of redis its snapshot is read, its append-only file is not; what it has not saved is in its
memory.
"""

from __future__ import annotations

import posixpath
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from waypoint.api.findings import Fate, Gap, Keyspace, ServerChange
from waypoint.history.analyzers.reading import (
    MIB,
    Outcome,
    View,
    beginning,
    content,
    guarded,
    is_file,
    is_folder,
    names,
    status,
)
from waypoint.history.view import printable

_POSTGRES = re.compile(r"^(/.*)/(?:base/\d+|global|pg_[a-z_]+)(?:/|$)")
_MARIADB = re.compile(
    r"^(/.*)/(?:ibdata\d|ib_logfile\d|aria_log[._][^/]*|undo\d+|[^/]+/[^/]+\.(?:ibd|frm|MYD|MAD))$"
)
_REDIS = re.compile(r"^(/.*\.rdb)$")
_REDIS_LOGS = re.compile(r"^(/.*)/[^/]+\.aof\.(?:manifest|\d+\.(?:base|incr)\.(?:aof|rdb))$")
_REDIS_LOG = re.compile(r"^(/.*\.aof)$")
_SNAPSHOT_BYTES = 64 * MIB
_AFTER_A_RESTORE = "a restore brings all of them back as they were"


def servers(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Each data folder in which something was written."""
    for (folder, sort), paths in _kept_by_servers(old, new, touched).items():
        yield from guarded(folder, sort.examine(old, new, folder, paths))


def of_servers(old: View, new: View, touched: Sequence[str]) -> set[str]:
    """Those of the paths that only a server can read."""
    return {path for paths in _kept_by_servers(old, new, touched).values() for path in paths}


def _kept_by_servers(old: View, new: View, touched: Sequence[str]) -> dict[tuple[str, _Sort], list[str]]:
    """By data folder and sort of server, the paths in it."""
    found: dict[tuple[str, _Sort], list[str]] = {}
    asked: dict[tuple[str, _Sort], bool] = {}
    for path in touched:
        for sort in _SORTS:
            if match := sort.paths.match(path):
                place = match[1], sort
                if place not in asked:
                    asked[place] = sort.is_one(new, match[1]) or sort.is_one(old, match[1])
                if asked[place]:
                    found.setdefault(place, []).append(path)
                    break
    return found


def _fate(old: View, new: View, path: str, is_one: Callable[[View, str], bool]) -> Fate:
    if not is_one(old, path):
        return "created"
    return "changed" if is_one(new, path) else "removed"


def _compare(
    before: Mapping[str, int | None], after: Mapping[str, int | None], written: frozenset[str]
) -> tuple[Keyspace, ...]:
    """The databases that came, went or were written to."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or name in written or before[name] != after[name]:
            change: Fate = "created" if name not in before else "changed" if name in after else "removed"
            space = Keyspace(
                name=printable(name), change=change, before=before.get(name), after=after.get(name)
            )
            found.append(space)
    return tuple(found)


# PostgreSQL

_PG_DATABASE = 1262
"""The number of the catalog of databases, and the name of its file in `global`."""
_PG_PAGE = 8192
_OWN_DATABASES = frozenset({"template0", "template1"})


def _is_postgres(view: View, folder: str) -> bool:
    return is_file(view, f"{folder}/global/pg_control") and is_file(view, f"{folder}/PG_VERSION")


def _postgres(old: View, new: View, folder: str, paths: Sequence[str]) -> Iterator[Outcome]:
    before, after = _postgres_databases(old, folder), _postgres_databases(new, folder)
    top = f"{folder}/base/"
    numbers = {path[len(top) :].partition("/")[0] for path in paths if path.startswith(top)}
    version = (beginning(new, f"{folder}/PG_VERSION", 16) or b"").decode(errors="replace").strip()
    change = _fate(old, new, folder, _is_postgres)
    spaces = []
    for number in sorted(before.keys() | after.keys(), key=int):
        was, now = before.get(number), after.get(number)
        fate: Fate = "created" if number not in before else "changed" if number in after else "removed"
        renamed_from = was if was and now and was != now else None
        if fate != "changed" or renamed_from or number in numbers:
            # Until its server has written it to disk, a name is not known.
            name = printable(now or was or f"database {number}")
            spaces.append(Keyspace(name=name, change=fate, renamed_from=renamed_from))
    yield ServerChange(
        path=printable(folder),
        server="postgresql",
        change=change,
        version=version,
        databases=tuple(sorted((one for one in spaces if one.name not in _OWN_DATABASES), key=_by_name)),
    )
    if change != "removed":
        yield _rows_gap(folder)


def _by_name(space: Keyspace) -> str:
    return space.name


def _postgres_databases(view: View, folder: str) -> dict[str, str | None]:
    """By the number of its folder, the name of each database; None where no name is on disk yet."""
    named = _postgres_names(content(view, f"{folder}/global/{_PG_DATABASE}", 4 * MIB) or b"")
    numbers = [number for number in names(view, f"{folder}/base") if number.isdecimal()]
    return {number: named.get(int(number)) for number in numbers}


def _postgres_names(catalog: bytes) -> dict[int, str]:
    """The rows of the catalog: the number and the name of each database. Rows of databases that were dropped
    may still be in it: their folders are gone."""
    found: dict[int, str] = {}
    for start in range(0, len(catalog) - _PG_PAGE + 1, _PG_PAGE):
        page = catalog[start : start + _PG_PAGE]
        lower = int.from_bytes(page[12:14], "little")
        for at in range(24, min(lower, _PG_PAGE - 4), 4):
            pointer = int.from_bytes(page[at : at + 4], "little")
            offset, state = pointer & 0x7FFF, pointer >> 15 & 3
            if state != 1 or offset + 24 > _PG_PAGE:
                continue
            data = offset + page[offset + 22]
            number, raw = int.from_bytes(page[data : data + 4], "little"), page[data + 4 : data + 68]
            name = raw.split(b"\0")[0].decode(errors="replace")
            if number and name:
                found[number] = name
    return found


def _rows_gap(folder: str) -> Gap:
    return Gap(
        analyzer="",
        path=printable(folder),
        reason="only its server can read them: ask it in a fork of the point",
        meaning=f"which tables, rows and users changed in it is not told, {_AFTER_A_RESTORE}",
    )


# MariaDB and MySQL

_MARIADB_OWN = frozenset({"mysql", "performance_schema", "sys"})


def _is_mariadb(view: View, folder: str) -> bool:
    return is_file(view, f"{folder}/ibdata1") and is_folder(view, f"{folder}/mysql")


def _mariadb(old: View, new: View, folder: str, paths: Sequence[str]) -> Iterator[Outcome]:
    before, after = _mariadb_databases(old, folder), _mariadb_databases(new, folder)
    written = frozenset(posixpath.basename(posixpath.dirname(path)) for path in paths)
    change = _fate(old, new, folder, _is_mariadb)
    spaces = _compare(before, after, written & (before.keys() | after.keys()))
    yield ServerChange(
        path=printable(folder), server="mariadb", change=change, databases=spaces, unit="table"
    )
    if change != "removed":
        yield _rows_gap(folder)


def _mariadb_databases(view: View, folder: str) -> dict[str, int | None]:
    """Each database with the number of its tables."""
    found: dict[str, int | None] = {}
    for name in names(view, folder):
        if name in _MARIADB_OWN or name.startswith(("#", ".")) or not is_folder(view, f"{folder}/{name}"):
            continue
        tables = {table.rpartition(".")[0] for table in names(view, f"{folder}/{name}") if table != "db.opt"}
        found[name] = len(tables)
    return found


# redis


def _is_redis(view: View, path: str) -> bool:
    return (beginning(view, path, 5) or b"") == b"REDIS"


def _redis(old: View, new: View, path: str, _: Sequence[str]) -> Iterator[Outcome]:
    before, after = _snapshot(old, path), _snapshot(new, path)
    spaces = []
    for number in sorted(before.keys() | after.keys()):
        was, now = before.get(number, {}), after.get(number, {})
        rewritten = sum(1 for key in was.keys() & now.keys() if was[key] != now[key])
        if was == now:
            continue
        change: Fate = "created" if number not in before else "changed" if number in after else "removed"
        spaces.append(
            Keyspace(
                name=f"db{number}",
                change=change,
                before=len(was),
                after=len(now),
                added=len(now.keys() - was.keys()),
                removed=len(was.keys() - now.keys()),
                rewritten=rewritten,
            )
        )
    change = _fate(old, new, path, _is_redis)
    if spaces or change != "changed":
        yield ServerChange(
            path=printable(path), server="redis", change=change, databases=tuple(spaces), unit="key"
        )


def _has_redis_logs(view: View, folder: str) -> bool:
    return any(name.endswith(".aof.manifest") for name in names(view, folder))


def _is_redis_log(view: View, path: str) -> bool:
    return (beginning(view, path, 5) or b"").startswith((b"REDIS", b"*"))


def _redis_log(old: View, new: View, path: str, _: Sequence[str]) -> Iterator[Outcome]:
    """What a redis with `appendonly yes` writes: in versions before 7 a file, then a folder."""
    is_one = _has_redis_logs if is_folder(new, path) or is_folder(old, path) else _is_redis_log
    change = _fate(old, new, path, is_one)
    yield ServerChange(path=printable(path), server="redis", change=change, unit="key")
    if change != "removed":
        yield Gap(
            analyzer="",
            path=printable(path),
            reason="an append-only file is not read: ask its server in a fork of the point",
            meaning=f"which keys changed in it is not told, {_AFTER_A_RESTORE}",
        )


def _snapshot(view: View, path: str) -> dict[int, dict[bytes, int]]:
    """By database, the keys of a snapshot and a checksum of what each holds, whatever the order."""
    about = status(view, path)
    if about is None or not _is_redis(view, path):
        return {}
    return _Snapshot(content(view, path, _SNAPSHOT_BYTES) or b"").read()


class _Length(NamedTuple):
    value: int
    encoded: bool
    """Whether it is not a length but the number of a special encoding."""


class _Snapshot:
    """A snapshot of redis (RDB, versions 6 to 12), read as far as needed to find where each value ends."""

    _ONE_STRING = frozenset({0, 9, 10, 11, 12, 13, 16, 17, 20})
    _STRINGS_PER_ITEM: Mapping[int, int] = {1: 1, 2: 1, 4: 2, 14: 1}
    """A list, a set, a hash, a list in pieces."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 9

    def read(self) -> dict[int, dict[bytes, int]]:
        found: dict[int, dict[bytes, int]] = {}
        keys = found.setdefault(0, {})
        while (code := self._byte()) != 0xFF:
            if code == 0xFE:
                keys = found.setdefault(self._length().value, {})
            elif code == 0xFA:
                self._string()
                self._string()
            elif code in (0xFB, 0xF4):
                for _ in range(2 if code == 0xFB else 3):
                    self._length()
            elif code in (0xFC, 0xFD):
                self._skip(8 if code == 0xFC else 4)
            elif code == 0xF5:
                self._string()
            elif code in (0xF8, 0xF9):
                self._length() if code == 0xF8 else self._skip(1)
            else:
                key = self._string()
                keys[key] = sum(map(zlib.crc32, self._parts(code)))
        return {number: keys for number, keys in found.items() if keys}

    def _parts(self, kind: int) -> Iterator[bytes]:
        """The parts of a value as they are stored. Those of a set or a hash come in any order."""
        if kind in self._ONE_STRING:
            yield self._string()
        elif kind in self._STRINGS_PER_ITEM:
            for _ in range(self._length().value):
                yield b"".join(self._string() for _ in range(self._STRINGS_PER_ITEM[kind]))
        elif kind == 5:  # a sorted set: each member with its score
            for _ in range(self._length().value):
                yield self._string() + self._skip(8)
        elif kind == 18:  # a list in pieces: each with the way it is stored
            for place in range(self._length().value):
                yield bytes([place & 0xFF, self._length().value]) + self._string()
        else:
            raise ValueError(f"values of kind {kind} are not understood")

    def _skip(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) < size:
            raise ValueError("it ends in the middle of a value")
        self._at += size
        return part

    def _byte(self) -> int:
        return self._skip(1)[0]

    def _length(self) -> _Length:
        first = self._byte()
        match first >> 6:
            case 0:
                return _Length(first & 0x3F, encoded=False)
            case 1:
                return _Length((first & 0x3F) << 8 | self._byte(), encoded=False)
            case 2:
                return _Length(int.from_bytes(self._skip(8 if first == 0x81 else 4)), encoded=False)
        return _Length(first & 0x3F, encoded=True)

    def _string(self) -> bytes:
        length = self._length()
        if not length.encoded:
            return self._skip(length.value)
        if length.value < 3:
            return self._skip(1 << length.value)
        packed = self._length().value
        self._length()
        return self._skip(packed)


class _Sort(NamedTuple):
    """A sort of server: the paths that it writes, with its data folder or file as their first group."""

    paths: re.Pattern[str]
    is_one: Callable[[View, str], bool]
    examine: Callable[[View, View, str, Sequence[str]], Iterator[Outcome]]


_SORTS = (
    _Sort(_POSTGRES, _is_postgres, _postgres),
    _Sort(_MARIADB, _is_mariadb, _mariadb),
    _Sort(_REDIS_LOGS, _has_redis_logs, _redis_log),
    _Sort(_REDIS_LOG, _is_redis_log, _redis_log),
    _Sort(_REDIS, _is_redis, _redis),
)
