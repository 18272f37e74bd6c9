"""What the folder of a point says of the point: enough to make its row again.

The file is written before the folder gets its place among the points, and it is the first thing that a
deletion removes. So a folder with this file was complete once and was never given up. Whether a power cut has
left it complete is what `damage` finds out.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from waypoint.engine.images import check_sizes
from waypoint.errors import CannotRestore
from waypoint.kernel import atomic
from waypoint.kernel.seals import Key, is_sealed
from waypoint.model import MALFORMED, Record, from_json
from waypoint.store.points import NewPoint
from waypoint.store.sessions import SessionRow

POINT_FILE = "point.json"
VERSION = 1


class PointFile(Record, frozen=True):
    """A point and its session, as they were when the point was taken."""

    point: NewPoint
    session: SessionRow
    version: int = VERSION


def write(folder: Path, content: PointFile, key: Key) -> None:
    atomic.write(folder / POINT_FILE, key.seal_document(msgspec.json.encode(content)), mode=0o600)


def is_own(folder: Path, key: Key) -> bool:
    """Whether this installation has written it, and it is what was written."""
    try:
        return key.has_sealed_document((folder / POINT_FILE).read_bytes())
    except OSError:
        return False


def has_seal(folder: Path) -> bool:
    """False for those of older versions."""
    try:
        return is_sealed((folder / POINT_FILE).read_bytes())
    except OSError:
        return False


def read(folder: Path) -> PointFile | None:
    """None when the folder has no such file, or a power cut has left only a part of it."""
    try:
        content = from_json((folder / POINT_FILE).read_bytes(), PointFile)
    except (OSError, *MALFORMED):
        return None
    return content if content.version == VERSION else None


class _Version(msgspec.Struct):
    version: int = VERSION


def is_newer(folder: Path) -> bool:
    """Whether a newer version has written it, in a way that this one does not know."""
    try:
        return from_json((folder / POINT_FILE).read_bytes(), _Version).version > VERSION
    except (OSError, msgspec.DecodeError):
        return False


def damage(folder: Path, *, files_only: bool) -> str | None:
    """What of a point is missing; None when all of it is there.

    A file of a dump that had not been written to the disk when the power was cut is shorter than it was.
    Where pages were cloned from an earlier point it may have its length and a hole: a dump has no holes
    otherwise.
    """
    if not (folder / "files").is_dir():
        return "its files are gone"
    if files_only:
        return None
    images = folder / "images"
    try:
        check_sizes(images)
        holed = [path.name for path in images.glob("pages-*.img") if _has_hole(path)]
    except CannotRestore as error:
        return error.message
    except OSError as error:
        return str(error)
    return f"{holed[0]} was not written to its end" if holed else None


def _has_hole(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size_bytes = os.fstat(fd).st_size
        return size_bytes > 0 and os.lseek(fd, 0, os.SEEK_HOLE) != size_bytes
    finally:
        os.close(fd)
