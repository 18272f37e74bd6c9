"""Injected damage: what is stored is changed in one place by seed, and `check --deep` has to name it.

`stored` damages real points in a pool; `database` damages the database of a machine without processes
(tests/fakes.py). Each damage is undone before the next. A report counts what was done and what was found, by
kind. The same seed makes the same decisions.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes import World

import waypoint
from waypoint.engine.images import WRITTEN_BY_RESTORES
from waypoint.kernel.pool import subvolume
from waypoint.kernel.pool.protocol import opened
from waypoint.store import soundness, wal


@dataclass
class Report:
    """What a campaign did and found, by kind."""

    seed: int
    done: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    def count(self, kind: str, where: str, *, found: bool) -> None:
        self.done[kind] += 1
        if not found:
            self.missed.append(f"{kind}: {where}")

    def __str__(self) -> str:
        missed = Counter(line.partition(":")[0] for line in self.missed)
        lines = [f"seed {self.seed}", "| damage | times | found |", "|---|---|---|"]
        lines += [f"| {kind} | {n} | {n - missed[kind]} |" for kind, n in sorted(self.done.items())]
        lines.append(f"| all | {self.done.total()} | {self.done.total() - len(self.missed)} |")
        return "\n".join(lines)


# ---- points --------------------------------------------------------------------------------------


@contextlib.contextmanager
def writable(tree: Path) -> Iterator[None]:
    """A read-only tree of the pool that can be written to meanwhile, as by a fault of the machine."""
    with opened(tree) as fd:
        subvolume.set_readonly(fd, readonly=False)
    try:
        yield
    finally:
        with opened(tree) as fd:
            subvolume.set_readonly(fd, readonly=True)


def flip(path: Path, chance: random.Random) -> str:
    """One bit. The times stay as they were."""
    status, data = path.stat(), bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return f"{path.name} at {at}"


def truncate(path: Path, chance: random.Random) -> str:
    size = chance.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.name} to {size}"


def extend(path: Path, chance: random.Random) -> str:
    with open(path, "ab") as file:
        file.write(chance.randbytes(chance.randrange(1, 4096)))
    return path.name


def remove(path: Path, _: random.Random) -> str:
    path.unlink()
    return path.name


def replace(path: Path, _: random.Random) -> str:
    path.unlink()
    path.symlink_to("/etc/passwd")
    return path.name


def add(path: Path, chance: random.Random) -> str:
    new = path.with_name(f"foreign-{chance.randrange(1 << 32)}")
    new.write_text("foreign")
    return new.name


def change_mode(path: Path, _: random.Random) -> str:
    path.chmod(stat.S_IMODE(path.stat().st_mode) ^ 0o4001)
    return path.name


def touch(path: Path, _: random.Random) -> str:
    os.utime(path, ns=(0, 1))
    return path.name


Harm = Callable[[Path, random.Random], str]
_ANY: dict[str, Harm] = {
    "flipped bit": flip,
    "truncated": truncate,
    "extended": extend,
    "missing": remove,
    "replaced by a link": replace,
}
_IN_FOLDER: dict[str, Harm] = {**_ANY, "foreign file": add}
_IN_TREE: dict[str, Harm] = {**_IN_FOLDER, "other mode": change_mode, "other time": touch}


def _places(folder: Path) -> dict[str, tuple[list[Path], dict[str, Harm]]]:
    images = [
        path
        for path in sorted((folder / "images").iterdir())
        if path.stat().st_size and path.name not in WRITTEN_BY_RESTORES
    ]
    files = [
        path
        for path in sorted((folder / "files").rglob("*"))
        if path.is_file() and not path.is_symlink() and path.stat().st_size
    ]
    return {
        "image": ([path for path in images if not path.name.startswith("pages-")], _IN_FOLDER),
        "memory": ([path for path in images if path.name.startswith("pages-")], _IN_FOLDER),
        "file": (files, _IN_TREE),
        "point.json": ([folder / "point.json"], _ANY),
        "digests": ([folder / "digests", folder / "digests.files"], _ANY),
    }


def stored(client: waypoint.Client, points: list[waypoint.CheckpointInfo], seed: int, rounds: int) -> Report:
    """Damages points of the pool of a client's home. Every point is whole again afterwards."""
    chance, report = random.Random(seed), Report(seed)
    checkpoints = client.home.checkpoints
    kinds = [
        (place, kind)
        for place, (paths, harms) in _places(checkpoints / points[0].id).items()
        if paths
        for kind in harms
    ]
    for number in range(rounds):
        place, kind = kinds[number % len(kinds)]
        point = chance.choice(points)
        folder = checkpoints / point.id
        paths, harms = _places(folder)[place]
        path = chance.choice(paths)
        with _undone(folder, path):
            with writable(folder / "files") if place == "file" else contextlib.nullcontext():
                where = harms[kind](path, chance)
            result = client.check(point.id, deep=True)
            found = any(one.point == point.id for one in result.violations)
            report.count(f"{place}: {kind}".replace(": ", ", "), f"{point.label} {where}", found=found)
    return report


@contextlib.contextmanager
def _undone(folder: Path, path: Path) -> Iterator[None]:
    """Puts a file and its folder back as they were: content, mode, owner and times."""
    saved = folder.parent.parent / "staging" / f"saved-{folder.name}"
    in_tree = folder / "files" in path.parents
    above = path.parent.stat()
    names = set(os.listdir(path.parent))
    shutil.copy2(path, saved)
    owner = path.stat()
    try:
        yield
    finally:
        with writable(folder / "files") if in_tree else contextlib.nullcontext():
            for name in set(os.listdir(path.parent)) - names:
                (path.parent / name).unlink()
            path.unlink(missing_ok=True)
            shutil.copy2(saved, path)
            os.chown(path, owner.st_uid, owner.st_gid)
            path.chmod(stat.S_IMODE(owner.st_mode))
            os.utime(path, ns=(owner.st_atime_ns, owner.st_mtime_ns))
            os.utime(path.parent, ns=(above.st_atime_ns, above.st_mtime_ns))
        saved.unlink()


# ---- the database --------------------------------------------------------------------------------


def database(world: World, seed: int, rounds: int) -> Report:
    """Damages copies of the files of a database. A damage counts as found when the database cannot be opened,
    or its log or its rows are named."""
    chance, report = random.Random(seed), Report(seed)
    saved, work = world.home.path / "saved", world.home.path / "work"
    saved.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{world.home.database}{suffix}", saved / f"db{suffix}")
    with contextlib.closing(sqlite3.connect(saved / "db")) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        [page_bytes] = connection.execute("PRAGMA page_size").fetchone()
    kinds = (*_OF_DATABASE, *_OF_LOG)
    for number in range(rounds):
        kind = kinds[number % len(kinds)]
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(saved, work, ignore=shutil.ignore_patterns("*-shm"))
        if kind in _OF_DATABASE:
            with contextlib.closing(sqlite3.connect(work / "db")) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            where = _OF_DATABASE[kind](work / "db", page_bytes, chance)
        else:
            where = _OF_LOG[kind](work / "db-wal", page_bytes, chance)
        found = bool(wal.damage(work / "db") or soundness.check_file(work / "db", deep=True))
        report.count(f"database, {kind}", where, found=found)
    shutil.rmtree(work)
    shutil.rmtree(saved)
    return report


def _write(path: Path, at: int, data: bytes) -> str:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)
    return f"{len(data)} bytes at {at}"


def _used_pages(path: Path, page_bytes: int) -> list[int]:
    """Pages that hold something, from 0 on."""
    data = path.read_bytes()
    return [
        at for at in range(1, len(data) // page_bytes) if any(data[at * page_bytes : (at + 1) * page_bytes])
    ]


def _overwrite_page(path: Path, page_bytes: int, chance: random.Random) -> str:
    return _write(
        path, chance.choice(_used_pages(path, page_bytes)) * page_bytes, chance.randbytes(page_bytes)
    )


def _zero_page(path: Path, page_bytes: int, chance: random.Random) -> str:
    return _write(path, chance.choice(_used_pages(path, page_bytes)) * page_bytes, bytes(page_bytes))


def _cut_pages(path: Path, page_bytes: int, chance: random.Random) -> str:
    pages = chance.randrange(1, path.stat().st_size // page_bytes)
    os.truncate(path, pages * page_bytes)
    return f"to {pages} pages"


def _break_row(path: Path, _: int, chance: random.Random) -> str:
    """A value that no verb would write."""
    statement = chance.choice(_BROKEN_ROWS)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    return statement


def _flip_in_log(path: Path, page_bytes: int, chance: random.Random) -> str:
    """Any bit of any frame that SQLite would take."""
    data = bytearray(path.read_bytes())
    salts = [int.from_bytes(data[16:20]), int.from_bytes(data[20:24])]
    fd = os.open(path, os.O_RDONLY)
    try:
        frames = wal._last_commit(fd, page_bytes, salts)
    finally:
        os.close(fd)
    at = chance.randrange(32, 32 + frames * (page_bytes + 24))
    return _write(path, at, bytes([data[at] ^ 1 << chance.randrange(8)]))


def _zero_frame(path: Path, page_bytes: int, chance: random.Random) -> str:
    """A frame is zeros, as lost sectors leave it."""
    size = path.stat().st_size
    frames = (size - 32) // (page_bytes + 24)
    frame = chance.randrange(max(1, frames // 3))
    return _write(path, 32 + frame * (page_bytes + 24), bytes(page_bytes + 24))


_BROKEN_ROWS = (
    "UPDATE checkpoints SET coverage = '[' WHERE number = 1",
    "UPDATE checkpoints SET position = 4711 WHERE number = 1",
    "UPDATE checkpoints SET parent = 'gone' WHERE number = 2",
    "UPDATE checkpoints SET platform = 'x' WHERE number = 2",
    'UPDATE sessions SET options = \'{"net": "x"}\'',
    "UPDATE sessions SET head = 'gone'",
    "UPDATE sessions SET tip = 4711",
    "UPDATE sessions SET points = 0",
    "UPDATE sessions SET tasks = '['",
    "UPDATE events SET parent = 4711 WHERE id = 2",
    "UPDATE events SET body = '{' WHERE id = 1",
    "DELETE FROM sessions",
    "DELETE FROM blobs",
    "UPDATE blobs SET data = x'00'",
    "INSERT INTO forgotten SELECT id, 1 FROM checkpoints",
    "INSERT INTO tags VALUES ('gone', 'x', 'gone')",
)
_OF_DATABASE: dict[str, Callable[[Path, int, random.Random], str]] = {
    "header overwritten": lambda path, _, chance: _write(path, 0, chance.randbytes(100)),
    "magic with a flipped bit": lambda path, _, chance: flip_at(path, chance.randrange(16), chance),
    "page overwritten": _overwrite_page,
    "page of zeros": _zero_page,
    "pages cut off": _cut_pages,
    "broken row": _break_row,
}
_OF_LOG: dict[str, Callable[[Path, int, random.Random], str]] = {
    "log, flipped bit in a frame": _flip_in_log,
    "log, flipped bit in the header": lambda path, _, chance: flip_at(path, chance.randrange(32), chance),
    "log, frame of zeros": _zero_frame,
}


def flip_at(path: Path, at: int, chance: random.Random) -> str:
    byte = path.read_bytes()[at]
    return _write(path, at, bytes([byte ^ 1 << chance.randrange(8)]))
