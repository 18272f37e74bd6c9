"""Deleting what sessions and points leave in the pool, and finding what no row of the database names.

A row goes first and its bytes after it. A deletion that fails (a snapshot that is being compared cannot go
yet) is remembered and tried again; what a daemon left that died is found by its name, which no row has.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from waypoint.core.pointfile import POINT_FILE
from waypoint.errors import WaypointError
from waypoint.home import Home
from waypoint.kernel import faults
from waypoint.kernel.pool.extents import made_at
from waypoint.kernel.pool.protocol import Pool
from waypoint.store import Store

log = logging.getLogger("waypoint")

_ABANDONED_SECONDS = 3600
_ATTEMPTS = 5
_ID = re.compile(r"[0-9a-f]{12}")


def _is_ours(path: Path) -> bool:
    return _ID.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def _remove_folder(path: Path) -> None:
    """Removes what is left of a folder. Its digests may be written into it at this very moment: that is over
    after three files at most."""
    for attempt in range(_ATTEMPTS):
        if not path.exists():
            return
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass  # another thread deletes it too
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or attempt == _ATTEMPTS - 1:
                raise


class Remains:
    """The volumes, folders of points and staging folders of one home that are to go."""

    def __init__(self, home: Home, pool: Pool, store: Store) -> None:
        self._home, self._pool, self._store = home, pool, store
        self._leftovers: set[Path] = set()
        """What could not be deleted when its time had come."""
        self._expected: set[Path] = set()
        """What is about to be deleted."""

    def expect(self, paths: Iterable[Path]) -> None:
        """These are deleted in a moment: until then they are no remains."""
        self._expected.update(paths)

    def delete(self, path: Path) -> None:
        """A volume, the folder of a point, or a part of one."""
        try:
            faults.reach("delete.begun")
            if path.parent == self._home.checkpoints:
                (path / POINT_FILE).unlink(missing_ok=True)  # from here on no daemon makes a row from it
                faults.reach("delete.named")
            if (path / "files").is_dir():
                self._pool.delete(path / "files")
                faults.reach("delete.files")
                _remove_folder(path)
            elif path.is_dir():
                self._pool.delete(path)
                _remove_folder(path)
            else:
                path.unlink(missing_ok=True)
        except (OSError, WaypointError):
            log.exception("could not delete %s", path)
            self._leftovers.add(path)
        else:
            self._leftovers.discard(path)
        self._expected.discard(path)

    def delete_all(self, paths: Iterable[Path]) -> None:
        for path in list(paths):
            self.delete(path)

    @contextlib.contextmanager
    def going(self, paths: Iterable[Path]) -> Iterator[None]:
        """Around what has to happen before these are deleted. They have no row any more: if that fails, they
        are deleted later."""
        going = list(paths)
        self._leftovers.update(going)
        yield
        self.delete_all(going)

    def retry(self) -> None:
        """Deletes what could not be deleted before."""
        self.delete_all(self._leftovers)

    def unknown(self) -> list[Path]:
        """What is in the pool and in no row, and is no point either: remains, or about to become one. Not
        what was put there by another program (`foreign`)."""
        points = self._store.points.ids() | {path.name for path in self.without_row()}
        rows = self._store.sessions.all()
        return [
            path
            for folder, names in (
                (self._home.staging, set()),
                (self._home.checkpoints, points),
                (self._home.sessions, {row.box for row in rows} | self._store.pending.boxes()),
                (self._home.beginnings, {row.beginning for row in rows}),
            )
            for path in folder.iterdir()
            if path.name not in names and (folder == self._home.staging or _is_ours(path))
        ]

    def foreign(self) -> list[Path]:
        """What no version of Waypoint has put there. It is left alone."""
        folders = (self._home.checkpoints, self._home.sessions, self._home.beginnings)
        return [path for folder in folders for path in folder.iterdir() if not _is_ours(path)]

    def without_row(self) -> list[Path]:
        """Folders of points that have lost their row, or have none yet; not of those that were forgotten."""
        known = self._store.points.ids() | self._store.points.forgotten()
        return [
            path
            for path in self._home.checkpoints.iterdir()
            if path.name not in known and (path / POINT_FILE).exists()
        ]

    def abandoned(self, standing: Collection[str]) -> list[Path]:
        """What a deletion or an attempt has left behind. `standing`: the boxes that run, whose volumes are in
        use whether a row names them or not."""
        before = time.time() - _ABANDONED_SECONDS
        paths = []
        for path in self.unknown():
            with contextlib.suppress(OSError):
                if path in self._leftovers or (
                    path.name not in standing and path not in self._expected and made_at(path) < before
                ):
                    paths.append(path)
        return paths
