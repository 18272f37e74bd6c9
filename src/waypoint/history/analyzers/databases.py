"""SQLite databases, known by their first bytes whatever their name: tables, rows, schema before and after.

The files are copied to a private folder together with their write-ahead log or rollback journal, so SQLite
recovers what was committed and forgets what was not, as it would after a crash. Originals are never opened. A
database from a session is not trusted: only reads are authorised, its schema may call nothing but harmless
functions, time and sizes are bounded, and a journal that names another file is refused: rolling it back would
make SQLite delete the file it names.
"""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from waypoint.api.findings import DatabaseChange, Fate, Gap, TableChange
from waypoint.history.analyzers.reading import (
    MIB,
    Outcome,
    View,
    beginning,
    content,
    deadline_of,
    guarded,
    shown,
    status,
)
from waypoint.history.changes import NOISY_NAMES

MAGIC = b"SQLite format 3\0"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_LARGEST = 64 * MIB
_DATABASES = 20
_PROBES = 2000
_TABLES = 200
_COMPARED_ROWS = 200_000

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
    candidates = _candidates(touched)
    probed = candidates[:_PROBES]
    found = [path for path in probed if _is_database(old, path) or _is_database(new, path)]
    for path in found[:_DATABASES]:
        yield from guarded(path, _examine(old, new, path))
    if len(found) > _DATABASES:
        yield Gap(analyzer="", reason=f"{len(found) - _DATABASES} more databases were not looked into")
    if len(candidates) > _PROBES:
        yield Gap(analyzer="", reason=f"{len(candidates) - _PROBES:,} more files were not tried as databases")


def _candidates(touched: Sequence[str]) -> list[str]:
    """Files that may be one: those that look it first."""
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
    found = status(view, path)
    if found is None or not stat.S_ISREG(found.st_mode) or found.st_size < 512 or found.st_size % 512:
        return False
    return beginning(view, path, len(MAGIC)) == MAGIC


def _examine(old: View, new: View, path: str) -> Iterator[Outcome]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="waypoint-sqlite-")))
        before = stack.enter_context(_opened(old, path, folder / "before"))
        after = stack.enter_context(_opened(new, path, folder / "after"))
        change: Fate = "created" if before is None else "removed" if after is None else "changed"
        tables = tuple(_tables(before, after))
        schema = tuple(_schema_changes(before, after)) if change == "changed" else ()
        if change != "changed" or tables or schema:
            yield DatabaseChange(
                path=shown(path),
                change=change,
                size_before=before.size_bytes if before else None,
                size_after=after.size_bytes if after else None,
                tables=tables,
                schema=schema,
            )


class _Database:
    """A private copy, open for reading."""

    def __init__(self, connection: sqlite3.Connection, size_bytes: int) -> None:
        self._connection = connection
        self.size_bytes = size_bytes
        listed = connection.execute("SELECT type, name, rootpage, sql FROM sqlite_master").fetchall()
        self.objects: dict[tuple[str, str], str] = {}
        self._countable: set[str] = set()
        virtual = [_word(name) for kind, name, page, _ in listed if kind == b"table" and not page]
        shadows = {f"{name}_{part}" for name in virtual for part in _SHADOWS}
        for kind, raw, page, sql in listed:
            name = _word(raw)
            if name.startswith("sqlite_") or name in shadows:
                continue
            self.objects[_word(kind), name] = " ".join(_word(sql).split())
            if kind == b"table" and page:
                self._countable.add(name)
        self.tables = sorted(name for kind, name in self.objects if kind == "table")

    def rows(self, table: str) -> int | None:
        """None when it cannot be counted, or not in time."""
        if table not in self._countable:
            return None
        with contextlib.suppress(sqlite3.Error):
            return int(self._connection.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0])
        return None

    def each(self, table: str) -> Iterator[tuple[object, ...]]:
        cursor = self._connection.execute(f"SELECT * FROM {_quoted(table)} LIMIT {_COMPARED_ROWS + 1}")
        yield from cursor


def _word(raw: object) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw or "")


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


@contextlib.contextmanager
def _opened(view: View, path: str, folder: Path) -> Iterator[_Database | None]:
    """None where there is no database."""
    if not _is_database(view, path):
        yield None
        return
    folder.mkdir()
    size_bytes = 0
    for suffix in ("", "-wal", "-journal"):
        data = content(view, path + suffix, _LARGEST)
        if suffix == "-journal" and data and data.endswith(_JOURNAL_MAGIC):
            raise ValueError("in the middle of a transaction over several databases")
        if data:
            (folder / f"copy{suffix}").write_bytes(data)
            size_bytes += len(data)
    deadline = deadline_of(view)
    with contextlib.closing(sqlite3.connect(folder / "copy", isolation_level=None, timeout=0)) as connection:
        connection.text_factory = bytes
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 16 * MIB)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 1000)
        for setting in (
            "trusted_schema=OFF",
            "cell_size_check=ON",
            "mmap_size=0",
            "temp_store=MEMORY",
            "query_only=ON",
        ):
            connection.execute(f"PRAGMA {setting}")
        connection.set_authorizer(lambda action, *_: _permit(action))
        yield _Database(connection, size_bytes)


def _permit(action: int) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def _tables(before: _Database | None, after: _Database | None) -> Iterator[TableChange]:
    """Tables that came, went, or have other rows now."""
    mine = set(before.tables) if before else set()
    theirs = set(after.tables) if after else set()
    for name in sorted(mine | theirs)[:_TABLES]:
        rows_before = before.rows(name) if before and name in mine else None
        rows_after = after.rows(name) if after and name in theirs else None
        if before is None or name not in mine:
            yield TableChange(name=name, change="created", rows_after=rows_after)
        elif after is None or name not in theirs:
            yield TableChange(name=name, change="removed", rows_before=rows_before)
        else:
            altered = before.objects["table", name] != after.objects["table", name]
            rewritten = None
            if rows_before == rows_after and rows_before is not None and not altered:
                rewritten = _differs(before, after, name, rows_before)
            if altered or rows_before != rows_after or rewritten:
                yield TableChange(
                    name=name,
                    change="changed",
                    rows_before=rows_before,
                    rows_after=rows_after,
                    rewritten=rewritten,
                )


def _differs(before: _Database, after: _Database, table: str, rows: int) -> bool | None:
    """Row by row. None when there are too many, or the time is up."""
    if rows > _COMPARED_ROWS:
        return None
    try:
        return any(mine != theirs for mine, theirs in zip_longest(before.each(table), after.each(table)))
    except sqlite3.Error:
        return None


def _schema_changes(before: _Database | None, after: _Database | None) -> Iterator[str]:
    mine = before.objects if before else {}
    theirs = after.objects if after else {}
    for kind, name in sorted(mine.keys() | theirs.keys()):
        if (kind, name) not in mine:
            yield f"+{kind} {name}"
        elif (kind, name) not in theirs:
            yield f"-{kind} {name}"
        elif mine[kind, name] != theirs[kind, name]:
            yield f"~{kind} {name}"
