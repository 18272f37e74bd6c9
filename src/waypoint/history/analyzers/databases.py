"""SQLite databases, known by their first bytes whatever their name: tables, rows, schema before and after.

Rows are compared by their keys, inside SQLite, so that fifty deleted and fifty-two inserted rows are told
as such.

The files are copied to a private folder together with their write-ahead log or rollback journal, so
SQLite recovers what was committed and forgets what was not, as it would after a crash. Originals are
never opened. A database from a session is not trusted: only reads are authorised, its schema may call
nothing but harmless functions, time and sizes are bounded, and a journal that names another file is
refused: rolling it back would make SQLite delete the file it names.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from waypoint.api.findings import DatabaseChange, Fate, Gap, TableChange
from waypoint.history.analyzers.reading import (
    MIB,
    Outcome,
    View,
    beginning,
    content,
    deadline_of,
    former_path,
    guarded,
    status,
)
from waypoint.history.analyzers.servers import of_servers
from waypoint.history.changes import NOISY_NAMES
from waypoint.history.view import printable

MAGIC = b"SQLite format 3\0"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_LARGEST = 64 * MIB
_DATABASES = 20
_NAMED_GAPS = 3
_PROBES = 2000
_TABLES = 200

_ASIDE = ("-wal", "-journal", "-shm")
_LIKELY = frozenset({"db", "sqlite", "sqlite3", "db3", "s3db", "sqlitedb", "gpkg", "mbtiles"})
_NEVER = frozenset({
    "py", "pyc", "pyi", "pth", "js", "mjs", "cjs", "ts", "tsx", "jsx", "map", "json", "jsonl", "md",
    "rst", "txt", "html", "htm", "css", "scss", "xml", "svg", "yml", "yaml", "toml", "ini", "cfg",
    "conf", "lock", "log", "csv", "sh", "c", "h", "cc", "cpp", "hpp", "rs", "go", "rb", "java",
    "class", "jar", "so", "a", "o", "png", "jpg", "jpeg", "gif", "webp", "ico", "woff", "woff2",
    "ttf", "pdf", "zip", "gz", "xz", "bz2", "zst", "tar", "whl", "deb", "list", "md5sums", "po",
    "mo", "patch", "diff", "swp", "pid", "sock",
})  # fmt: skip
_SHADOWS = (
    "data",
    "idx",
    "content",
    "docsize",
    "config",
    "segments",
    "segdir",
    "stat",
    "node",
    "parent",
    "rowid",
)
_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}


def sqlite(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Every database among the touched files, small or not so small."""
    served = of_servers(old, new, touched)
    candidates = _candidates([path for path in touched if path not in served])
    probed = candidates[:_PROBES]
    databases = [path for path in probed if _was_one(old, path) or _was_one(new, path)]
    moved = {path: former for path in databases if (former := former_path(new, path)) != path}
    gone = {former for former in moved.values() if not new.exists(former)}
    for path in databases[:_DATABASES]:
        if path not in gone:
            yield from guarded(path, _examine(old, new, path, moved.get(path, path)))
    if len(databases) > _DATABASES:
        for path in databases[_DATABASES : _DATABASES + _NAMED_GAPS]:
            yield Gap(analyzer="", path=printable(path), reason=f"one of more than {_DATABASES} databases")
        if (left := len(databases) - _DATABASES - _NAMED_GAPS) > 0:
            reason = f"{left} more of more than {_DATABASES} databases"
            yield Gap(analyzer="", path=printable(posixpath.dirname(databases[-1])), reason=reason)
    if len(candidates) > _PROBES:
        yield Gap(analyzer="", reason=f"{len(candidates) - _PROBES:,} more files were not tried as databases")


def _candidates(touched: Sequence[str]) -> list[str]:
    """Files that may be databases, the likely ones first."""
    likely: dict[str, None] = {}
    possible: dict[str, None] = {}
    for path in touched:
        name = path.rpartition("/")[2]
        suffix = name.rpartition(".")[2].lower() if "." in name else ""
        if suffix in _NEVER:
            continue
        if name.endswith(_ASIDE):
            likely[path.rpartition("-")[0]] = None
        elif suffix in _LIKELY:
            likely[path] = None
        elif "/.git/" not in path and NOISY_NAMES.isdisjoint(path.split("/")):
            possible[path] = None
    return list(likely | possible)


def _is_database(view: View, path: str) -> bool:
    entry = status(view, path)
    if entry is None or not stat.S_ISREG(entry.st_mode) or entry.st_size < 512 or entry.st_size % 512:
        return False
    return beginning(view, path, len(MAGIC)) == MAGIC


def _was_one(view: View, path: str) -> bool:
    """Whether it is a database, or the beginning of one."""
    return _is_database(view, path) or _is_truncated(view, path)


def _is_truncated(view: View, path: str) -> bool:
    about = status(view, path)
    return about is not None and about.st_size < (_whole_size(view, path) or 0)


def _examine(old: View, new: View, path: str, former: str) -> Iterator[Outcome]:
    """One database. `former`: where it was before."""
    with tempfile.TemporaryDirectory(prefix="waypoint-sqlite-") as folder:
        before = _copy(old, former, Path(folder) / "before")
        after = _copy(new, path, Path(folder) / "after")
        change: Fate = "changed"
        if before is None and not _is_truncated(old, former):
            change = "created"
        elif after is None and not new.exists(path):
            change = "removed"
        damage = _damage(new, path, after)
        if damage and change == "created":  # it never was one
            yield Gap(analyzer="", path=printable(path), reason=damage)
            return
        damage_before = None if change == "created" else _damage(old, former, before)
        if damage and damage_before and _same_bytes(before, after):
            return
        tables: tuple[TableChange, ...] = ()
        schema: tuple[str, ...] = ()
        if not damage and not damage_before:
            with _opened(before, after, deadline_of(new)) as pair:
                tables = tuple(_tables(pair))
                schema = tuple(_schema_changes(pair)) if change == "changed" else ()
            yield from _not_told(new, path, tables)
        if change != "changed" or tables or schema or damage or damage_before:
            yield DatabaseChange(
                path=printable(path),
                change=change,
                size_before=before.size_bytes if before else None,
                size_after=after.size_bytes if after else None,
                tables=tables,
                schema=schema,
                damage=damage,
                damage_before=damage_before,
                renamed_from=printable(former) if former != path else None,
            )


def _same_bytes(before: _Copy | None, after: _Copy | None) -> bool:
    return before is not None and after is not None and before.path.read_bytes() == after.path.read_bytes()


def _not_told(new: View, path: str, tables: Sequence[TableChange]) -> Iterator[Gap]:
    """Tables of which the rows could not be compared."""
    for table in tables:
        if table.change != "changed" or table.inserted is not None:
            continue
        meaning = f"which rows of {table.name} changed is not told"
        if table.rows_after is None:
            reason = "it is a virtual table"
        else:
            meaning = f"the rows of {table.name} were counted, which of them changed is not told"
            reason = "not enough time" if time.monotonic() > deadline_of(new) else "they cannot be compared"
        yield Gap(analyzer="", path=printable(path), reason=reason, meaning=meaning)


@dataclass(frozen=True)
class _Copy:
    """A private copy of a database with its log."""

    path: Path
    size_bytes: int


def _copy(view: View, path: str, folder: Path) -> _Copy | None:
    """None where there is no database."""
    if not _is_database(view, path):
        return None
    folder.mkdir()
    size_bytes = 0
    for suffix in ("", "-wal", "-journal"):
        data = content(view, path + suffix, _LARGEST)
        if suffix == "-journal" and data and data.endswith(_JOURNAL_MAGIC):
            raise ValueError("in the middle of a transaction over several databases")
        if data:
            (folder / f"copy{suffix}").write_bytes(data)
            size_bytes += len(data)
    return _Copy(folder / "copy", size_bytes)


def _damage(new: View, path: str, after: _Copy | None) -> str | None:
    """What is wrong with the file now; None when it is a whole database or is not there."""
    about = status(new, path)
    if about and (whole := _whole_size(new, path)) and about.st_size < whole:
        return f"truncated, {about.st_size:,} of {whole:,} bytes"
    if after is None:
        if about is None:
            return None
        return f"no longer a SQLite database ({about.st_size:,} bytes)" if about.st_size else "empty now"
    with contextlib.closing(_connect(after.path, deadline_of(new))) as connection:
        try:
            complaint = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError:  # out of time: not known to be damaged
            return None
        except sqlite3.DatabaseError as error:
            return str(error)
    complaint = _word(complaint)
    return None if complaint == "ok" else complaint.partition("\n")[2] or complaint


def _whole_size(view: View, path: str) -> int | None:
    """How many bytes a database has by its own header, unless a log may hold the rest."""
    head = beginning(view, path, 100) or b""
    if not head.startswith(MAGIC) or len(head) < 100 or status(view, f"{path}-wal"):
        return None
    page = int.from_bytes(head[16:18])
    # Programs older than 2010 leave the number of pages as it was.
    is_known = head[24:28] == head[92:96]
    return (65536 if page == 1 else page) * int.from_bytes(head[28:32]) if is_known else None


def _connect(path: Path, deadline: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    connection.text_factory = bytes
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 16 * MIB)
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 1000)
    for setting in (
        "trusted_schema=OFF",
        "cell_size_check=ON",
        "mmap_size=0",
        "temp_store=MEMORY",
        "query_only=ON",
    ):
        connection.execute(f"PRAGMA {setting}")
    return connection


@contextlib.contextmanager
def _opened(before: _Copy | None, after: _Copy | None, deadline: float) -> Iterator[_Pair]:
    """Both copies in one connection, as `old` and `main`."""
    main = after or before
    assert main is not None
    with contextlib.closing(_connect(main.path, deadline)) as connection:
        if before and after:
            connection.execute("ATTACH ? AS old", (str(before.path),))
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        columns = {
            (side, table): _columns(connection, side, table)
            for side in ("old", "main")
            if side == "main" or (before and after)
            for table in _Listing.read(connection, side).stored
        }
        connection.set_authorizer(lambda action, *_: _permit(action))
        listing = _Listing.read(connection, "main")
        if before and after:
            yield _Pair(connection, _Listing.read(connection, "old"), listing, columns)
        elif after:
            yield _Pair(connection, None, listing, columns)
        else:
            yield _Pair(connection, listing, None, columns)


@dataclass(frozen=True)
class _Columns:
    names: tuple[str, ...]
    key: tuple[str, ...]
    """The primary key; empty where none is declared."""


def _columns(connection: sqlite3.Connection, side: str, table: str) -> _Columns:
    listed = connection.execute(f"PRAGMA {side}.table_info({_quoted(table)})").fetchall()
    key = sorted((place, _word(name)) for _, name, _, _, _, place in listed if place)
    return _Columns(tuple(_word(name) for _, name, *_ in listed), tuple(name for _, name in key))


@dataclass(frozen=True)
class _Listing:
    """What a database has, by its own word."""

    objects: dict[tuple[str, str], str]
    countable: frozenset[str]
    """The tables that have rows of their own: no virtual ones."""
    parts: Mapping[str, frozenset[str]]
    """Of each virtual table, the tables in which its module keeps it."""

    @property
    def stored(self) -> frozenset[str]:
        """Every table of the file."""
        return self.countable.union(*self.parts.values())

    @property
    def tables(self) -> list[str]:
        return sorted(name for kind, name in self.objects if kind == "table")

    @classmethod
    def read(cls, connection: sqlite3.Connection, side: str) -> _Listing:
        listed = connection.execute(f"SELECT type, name, rootpage, sql FROM {side}.sqlite_master").fetchall()
        objects: dict[tuple[str, str], str] = {}
        countable = set()
        virtual = [name for kind, name, page, _ in listed if kind == b"table" and not page]
        stored = {_word(name) for kind, name, page, _ in listed if kind == b"table" and page}
        parts = {
            name: frozenset(f"{name}_{part}" for part in _SHADOWS if f"{name}_{part}" in stored)
            for name in map(_word, virtual)
        }
        shadows = frozenset[str]().union(*parts.values())
        for kind, raw, page, sql in listed:
            name = _word(raw)
            if name.startswith("sqlite_") or name in shadows:
                continue
            objects[_word(kind), name] = " ".join(_word(sql).split())
            if kind == b"table" and page:
                countable.add(name)
        return cls(objects, frozenset(countable), parts)


@dataclass(frozen=True)
class _Rows:
    """How the rows of one table changed. None: not compared."""

    inserted: int | None = None
    deleted: int | None = None
    updated: int | None = None

    @property
    def any(self) -> bool:
        return bool(self.inserted or self.deleted or self.updated)


@dataclass(frozen=True)
class _Pair:
    """A database at two points. `before` or `after` is None where it is not there."""

    connection: sqlite3.Connection
    before: _Listing | None
    after: _Listing | None
    columns: dict[tuple[str, str], _Columns]

    def count(self, side: str, table: str) -> int | None:
        """None when it cannot be counted, or not in time."""
        listing = self.before if side == "old" else self.after
        if listing is None or table not in listing.countable:
            return None
        side = side if self.before and self.after else "main"
        return self._number(f"SELECT count(*) FROM {side}.{_quoted(table)}")

    def _number(self, query: str) -> int | None:
        with contextlib.suppress(sqlite3.Error):
            return int(self.connection.execute(query).fetchone()[0] or 0)
        return None

    def compare(self, was: str, now: str) -> _Rows:
        """A table with itself, by its primary key; by the number of each row where it has none."""
        old, new = self.columns[("old", was)], self.columns[("main", now)]
        shared = [name for name in new.names if name in old.names]
        key = new.key if new.key == old.key else ()
        if not shared:
            return _Rows()
        a, b = f"main.{_quoted(now)}", f"old.{_quoted(was)}"
        on = (
            " AND ".join(f"o.{_quoted(name)} IS n.{_quoted(name)}" for name in key) or "o._rowid_ = n._rowid_"
        )
        missing = f"o.{_quoted(key[0])} IS NULL" if key else "o._rowid_ IS NULL"
        same = " AND ".join(f"n.{_quoted(name)} IS o.{_quoted(name)} COLLATE BINARY" for name in shared)
        inserted = self._number(f"SELECT count(*) FROM {a} n LEFT JOIN {b} o ON {on} WHERE {missing}")
        deleted = self._number(f"SELECT count(*) FROM {b} n LEFT JOIN {a} o ON {on} WHERE {missing}")
        updated = self._number(f"SELECT count(*) FROM {a} n JOIN {b} o ON {on} WHERE NOT ({same})")
        if inserted is None or deleted is None or updated is None:
            return _Rows()  # what is known of a part is not known of the table
        rows = _Rows(inserted, deleted, updated)
        if rows.any and not key:
            is_same = self._same_rows(a, b, shared)
            if is_same is not False:  # VACUUM gives rows without a key other numbers
                return _Rows(0, 0, 0) if is_same else _Rows()
        return rows

    def has_other_parts(self, virtual: str) -> bool:
        """Whether the tables in which a virtual table is kept are others, or hold something else."""
        assert self.before
        assert self.after
        was, now = self.before.parts.get(virtual), self.after.parts.get(virtual)
        if was != now or not was:
            return was != now
        compared = [self.compare(part, part) for part in sorted(was)]
        return any(rows.any or rows.inserted is None for rows in compared)

    def _same_rows(self, a: str, b: str, columns: Sequence[str]) -> bool | None:
        listed = ", ".join(map(_quoted, columns))
        counted = f"SELECT {listed}, count(*) AS times_ FROM %s GROUP BY {listed}"
        ways = ((a, b), (b, a))
        differences = [
            self._number(f"SELECT count(*) FROM ({counted % one} EXCEPT {counted % other})")
            for one, other in ways
        ]
        return None if None in differences else not any(differences)


def _word(raw: object) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw or "")


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _permit(action: int) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def _tables(pair: _Pair) -> Iterator[TableChange]:
    """Tables that came, went, have another name, or have other rows now."""
    mine = pair.before.tables if pair.before else []
    theirs = pair.after.tables if pair.after else []
    renamed = _renamed(pair)
    names = sorted({*mine, *theirs} - set(renamed.values()))
    for name in names[:_TABLES]:
        was = renamed.get(name, name)
        rows_before, rows_after = pair.count("old", was), pair.count("main", name)
        if was not in mine:
            yield TableChange(name=name, change="created", rows_after=rows_after)
        elif name not in theirs:
            yield TableChange(name=name, change="removed", rows_before=rows_before)
        else:
            yield from _changed(pair, was, name, rows_before, rows_after)


def _changed(
    pair: _Pair, was: str, name: str, rows_before: int | None, rows_after: int | None
) -> Iterator[TableChange]:
    assert pair.before
    assert pair.after
    altered = was == name and pair.before.objects["table", was] != pair.after.objects["table", name]
    counted = rows_before is not None and rows_after is not None
    rows = pair.compare(was, name) if counted else _Rows()
    is_other = rows.any or rows_before != rows_after or (counted and rows.inserted is None)
    if was != name or altered or is_other or pair.has_other_parts(name):
        yield TableChange(
            name=name,
            change="changed",
            rows_before=rows_before,
            rows_after=rows_after,
            rewritten=None if rows.updated is None else rows_before == rows_after and rows.any,
            inserted=rows.inserted,
            deleted=rows.deleted,
            updated=rows.updated,
            renamed_from=was if was != name else None,
            altered=altered,
        )


def _renamed(pair: _Pair) -> dict[str, str]:
    """By its new name, the old name of each table that differs from one that is gone in nothing else."""
    if not (pair.before and pair.after):
        return {}

    def unnamed(listing: _Listing, table: str) -> str:
        definition = listing.objects["table", table]
        return re.sub(
            rf"(?i)^(CREATE TABLE )(?:\"{re.escape(table)}\"|{re.escape(table)})", r"\1", definition
        )

    gone = {unnamed(pair.before, name): name for name in pair.before.tables if name not in pair.after.tables}
    return {
        name: former
        for name in pair.after.tables
        if name not in pair.before.tables and (former := gone.pop(unnamed(pair.after, name), None))
    }


def _schema_changes(pair: _Pair) -> Iterator[str]:
    renamed = _renamed(pair)
    mine = dict(pair.before.objects) if pair.before else {}
    theirs = dict(pair.after.objects) if pair.after else {}
    for name, former in renamed.items():
        yield f"→table {former} → {name}"
        mine.pop(("table", former), None)
        theirs.pop(("table", name), None)
    for kind, name in sorted(mine.keys() | theirs.keys()):
        if (kind, name) not in mine:
            yield f"+{kind} {name}"
        elif (kind, name) not in theirs:
            yield f"-{kind} {name}"
        elif mine[kind, name] != theirs[kind, name]:
            yield f"~{kind} {name}"
