"""The file system of a box as it was at a point, read without mounting anything.

A box sees one tree; a point holds layers. The session's own layer contains what it wrote (files and folders
as they are) and what it deleted (a whiteout: a character device 0:0). It also marks folders that have nothing
below them (`trusted.overlay.opaque`) and folders that have another folder of the base below them than their
name says (`trusted.overlay.redirect`: the folder was renamed). This module merges the layers by the rules of
overlayfs, path by path, as far as a caller asks.

A file of the base with several names that was changed under one of them is changed under that name alone. A
running overlay shows the change under the other names too, but its index of such files does not outlive the
box, and this view shows what a restore of the point brings.

Paths are those of the box: links in them are followed inside the view and never out of it. What cannot be
reached does not exist: the methods of the lower half raise FileNotFoundError with the box's path, those of
the upper half (for `changes` and `diff`) return None.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote

from waypoint.kernel import files
from waypoint.kernel.files import Entry
from waypoint.kernel.pool.deltas import LONGEST_PATH

OPAQUE = "trusted.overlay.opaque"
REDIRECT = "trusted.overlay.redirect"
WHITEOUT = "trusted.overlay.whiteout"
METACOPY = "trusted.overlay.metacopy"
MARKS = (OPAQUE, REDIRECT, WHITEOUT, METACOPY)
"""What a view has to know of a layer besides its files. Only a process with CAP_SYS_ADMIN can read them: for
any other one they do not exist, and it would merge the layers wrongly."""
ORIGIN = "trusted.overlay.origin"
_PRIVATE = "trusted.overlay."
_ESCAPED = "trusted.overlay.overlay."
_FOREIGN = ("btrfs.", "trusted.waypoint.")
"""Attributes of the pool, which the box does not see."""

_OWN_MOUNTS = ("/dev", "/proc", "/sys")
_SHM = "/dev/shm"
_MAX_LINKS = 40
_CACHE_SIZE = 20_000
_EMPTY_FOLDER = Entry(stat.S_IFDIR | 0o755, 0, 0, 0, 0, 0, 0, 2, 0)

READ_LIMIT = 16 << 20


class Region(NamedTuple):
    """One overlay of the box: the root, or a mount below the base that is layered on its own."""

    path: str
    upper: str | None
    """Its layer, relative to the volume."""
    lower: str | None
    """What is below it, relative to the base; None for what has nothing below it."""


class Place(NamedTuple):
    """A path of the box, and where its parts are stored. A folder may have both parts, everything else has
    one.

    Without parts it is an empty folder: what the box has there is not part of a point.
    """

    path: str
    region: Region
    upper: str | None
    lower: str | None
    entry: Entry


def printable(path: str) -> str:
    """A path that can be printed and sent: bytes that are not valid UTF-8 become `\\xNN`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def below(folder: str, name: str) -> str:
    """The path of a name in a folder."""
    return f"/{name}" if folder == "/" else f"{folder}/{name}"


def joined(folder: str, name: str) -> str:
    """The same for paths relative to a layer."""
    return f"{folder}/{name}" if folder else name


class PointView:
    """The merged tree of a volume (a snapshot or a live one) over its base.

    `volume` None is the base alone, with what is mounted on it. `hide` names paths that are covered in the
    box, such as Waypoint's own home: they are empty folders here too. Places are cached, so a view of a tree
    that changes becomes stale.
    """

    def __init__(
        self,
        volume: Path | None,
        base: Path,
        *,
        hide: Iterable[str] = (),
        mark: Callable[[str, str], bytes | None] = files.attribute,
    ) -> None:
        """`mark`: how one of `MARKS` is read, for a process that may not read them itself."""
        self.volume, self.base = volume, base
        self._mark = mark
        self._volume = None if volume is None else str(volume)
        self._base = str(base).rstrip("/")
        self.regions = {"/": Region("/", "upper", "")}
        for name in files.names(f"{self._volume}/mounts") if self._volume else ():
            path = unquote(name)
            if path.startswith("/") and posixpath.normpath(path) == path != "/":
                self.regions[path] = Region(path, f"mounts/{name}", path.lstrip("/"))
        self.regions[_SHM] = Region(_SHM, "shm", None)
        self.masked = frozenset(map(posixpath.normpath, hide))
        self.hidden = self.masked.union(_OWN_MOUNTS)
        self._sees_mounts = volume is None
        self._places: dict[str, Place | None] = {}

    @classmethod
    def bare(cls, view: PointView) -> PointView:
        """The base alone, with the same mounts below it as another view of it."""
        bare = cls(None, view.base, hide=view.masked)
        bare.regions = dict(view.regions)
        bare._sees_mounts = False
        return bare

    @property
    def boundaries(self) -> frozenset[str]:
        """Where one overlay ends: the roots of the other ones, and paths that are not part of a point."""
        return self.hidden | self.regions.keys()

    # ---- the rules of an overlay -------------------------------------------------------------

    def upper_path(self, upper: str) -> str:
        return f"{self._volume}/{upper}"

    def lower_path(self, lower: str) -> str:
        return f"{self._base}/{lower}"

    def place(self, path: str) -> Place | None:
        """What is at a path of the box; no link is followed. The path has to be absolute and normal."""
        if path in self._places:
            return self._places[path]
        if path in self.regions or path in self.hidden:
            place: Place | None = self._boundary(path)
        else:
            place = self.place("/")
            for name in path.split("/")[1:]:
                place = self._cached_child(place, name) if place else None
        self._cache(path, place)
        return place

    def _cache(self, path: str, place: Place | None) -> None:
        if len(self._places) >= _CACHE_SIZE:
            self._places.clear()
        self._places[path] = place

    def _boundary(self, path: str) -> Place:
        if path in self.hidden:
            return Place(path, self.regions["/"], None, None, _EMPTY_FOLDER)
        region = self.regions[path]
        upper = lower = None
        if self._volume and region.upper and (entry := files.look(self.upper_path(region.upper))):
            upper = entry if entry.is_folder else None
        if region.lower is not None and (entry := files.look(self.lower_path(region.lower))):
            lower = entry if entry.is_folder else None
        return Place(
            path=path,
            region=region,
            upper=region.upper if upper else None,
            lower=region.lower if lower else None,
            entry=upper or lower or _EMPTY_FOLDER,
        )

    def child(self, folder: Place, name: str) -> Place | None:
        """What a folder contains under a name."""
        path = below(folder.path, name)
        if path in self.regions or path in self.hidden:
            return self.place(path)
        if not folder.entry.is_folder or len(os.fsencode(path)) > LONGEST_PATH:
            return None
        if folder.upper is not None:
            upper = joined(folder.upper, name)
            if entry := files.look(self.upper_path(upper)):
                if self._is_whiteout(folder.upper, upper, entry):
                    return None
                lower = self._lower_of(folder, upper, name) if entry.is_folder else None
                return Place(path, folder.region, upper, lower, entry)
        if folder.lower is not None:
            lower = joined(folder.lower, name)
            entry = files.look(self.lower_path(lower))
            if entry and not _is_device_whiteout(entry):
                return Place(path, folder.region, None, None if self._is_covered(lower) else lower, entry)
        return None

    def _is_whiteout(self, folder: str, path: str, entry: Entry) -> bool:
        if _is_device_whiteout(entry):
            return True
        # The other form, for overlays in overlays: an empty file with a mark, in a folder with a mark.
        return (
            entry.is_file
            and entry.size == 0
            and self._mark(self.upper_path(folder), OPAQUE) == b"x"
            and self._mark(self.upper_path(path), WHITEOUT) is not None
        )

    def _lower_of(self, folder: Place, upper: str, name: str) -> str | None:
        """The folder of the base that is below a folder of the layer."""
        where = self.upper_path(upper)
        if self._mark(where, OPAQUE) == b"y":
            return None
        redirect = os.fsdecode(self._mark(where, REDIRECT) or b"")
        if redirect.startswith("/"):
            root = folder.region.lower
            return None if root is None else self._folder_below(root, redirect.strip("/").split("/"))
        if folder.lower is None:
            return None
        return self._folder_below(folder.lower, [redirect or name])

    def _is_covered(self, lower: str) -> bool:
        """Whether the host has mounted something there: an overlay does not see it, nor what is below it."""
        return not self._sees_mounts and files.is_mount_point(self.lower_path(lower))

    def _folder_below(self, lower: str, names: list[str]) -> str | None:
        """A folder of the base, reached through folders alone."""
        for name in names:
            lower = joined(lower, name)
            entry = None if name in ("", ".", "..") or "/" in name else files.look(self.lower_path(lower))
            if entry is None or not entry.is_folder or self._is_covered(lower):
                return None
        return lower

    def children(self, folder: Place) -> list[str]:
        """The names in a folder, sorted."""
        if not folder.entry.is_folder:
            return []
        names = {
            path.rpartition("/")[2] for path in self.regions if posixpath.dirname(path) == folder.path != path
        }
        own_names = set()
        if folder.upper is not None:
            own_names = set(self.upper_names(folder.upper))
            names |= {name for name in own_names if self._shows(folder.upper, joined(folder.upper, name))}
        if folder.lower is not None:
            for name in self.lower_names(folder.lower):
                if name not in own_names:
                    names.add(name)
        return sorted(names)

    def _shows(self, folder: str, path: str) -> bool:
        entry = files.look(self.upper_path(path))
        return entry is not None and not self._is_whiteout(folder, path, entry)

    def upper_names(self, upper: str) -> list[str]:
        """What the layer itself has in a folder, whiteouts included."""
        return files.names(self.upper_path(upper))

    def lower_names(self, lower: str) -> list[str]:
        """What the base has in a folder."""
        try:
            with os.scandir(self.lower_path(lower)) as entries:
                return sorted(entry.name for entry in entries if not _is_listed_whiteout(entry))
        except OSError:
            return []

    def host_path(self, place: Place) -> str | None:
        """Where the host has what is at a place: its metadata, and its bytes (see `data_path`)."""
        if place.upper is not None:
            return self.upper_path(place.upper)
        return None if place.lower is None else self.lower_path(place.lower)

    def data_path(self, place: Place) -> str | None:
        """Where the host has the bytes of a regular file."""
        where = self.host_path(place)
        if where is None or not place.entry.is_file:
            return None
        if place.upper is None or self._mark(where, METACOPY) is None:
            return where
        # Only its metadata was copied up: the bytes are still the base's.
        folder = self.place(posixpath.dirname(place.path))
        redirect = os.fsdecode(self._mark(where, REDIRECT) or b"") or posixpath.basename(place.path)
        root = place.region.lower if redirect.startswith("/") else folder.lower if folder else None
        steps = redirect.strip("/").split("/")
        above = None if root is None else self._folder_below(root, steps[:-1])
        return None if above is None else self.lower_path(joined(above, steps[-1]))

    def attributes(self, place: Place) -> dict[str, bytes]:
        """The extended attributes that the box sees."""
        where = self.host_path(place)
        visible = {}
        for name, value in (files.attributes(where) if where else {}).items():
            if name.startswith(_ESCAPED):
                visible[_PRIVATE + name[len(_ESCAPED) :]] = value
            elif not name.startswith((_PRIVATE, *_FOREIGN)):
                visible[name] = value
        return visible

    def attributes_of(self, path: str) -> dict[str, bytes]:
        """The extended attributes of what is at a path."""
        return self.attributes(self._existing(path, follow=False))

    # ---- reading -----------------------------------------------------------------------------

    def resolve(self, path: str, *, follow: bool = True) -> Place | None:
        """What a path leads to when links in it are followed; with `follow`, also a link at its end."""
        trail = [self.place("/")]
        waiting = [name for name in reversed(path.split("/")) if name not in ("", ".")]
        links = 0
        while waiting:
            name, here = waiting.pop(), trail[-1]
            if here is None:
                return None
            if name == "..":
                if len(trail) > 1:
                    trail.pop()
                continue
            place = self._cached_child(here, name)
            if place is None:
                return None
            if not place.entry.is_link or (not waiting and not follow):
                trail.append(place)
                continue
            links += 1
            where = self.host_path(place)
            target = files.target(where) if where else None
            if target is None or links > _MAX_LINKS:
                return None
            if target.startswith("/"):
                del trail[1:]
            waiting += [step for step in reversed(target.split("/")) if step not in ("", ".")]
        return trail[-1]

    def _cached_child(self, folder: Place, name: str) -> Place | None:
        path = below(folder.path, name)
        if path in self._places:
            return self._places[path]
        place = self.child(folder, name)
        if place and place.entry.is_folder:
            self._cache(path, place)
        return place

    def lstat(self, path: str) -> os.stat_result:
        """What is at a path; a link is not followed."""
        return self._status(path, follow=False)

    def stat(self, path: str) -> os.stat_result:
        """What a path leads to."""
        return self._status(path, follow=True)

    def _status(self, path: str, *, follow: bool) -> os.stat_result:
        place = self._existing(path, follow=follow)
        where = self.host_path(place)
        if where is None:
            about = place.entry
            return os.stat_result((about.mode, 0, 0, about.links, about.uid, about.gid, about.size, 0, 0, 0))
        try:
            return os.lstat(where)
        except OSError as error:
            raise _not_found(path) from error

    def _existing(self, path: str, *, follow: bool = True) -> Place:
        place = self.resolve(path, follow=follow)
        if place is None:
            raise _not_found(path)
        return place

    def exists(self, path: str) -> bool:
        """Whether a path leads to something."""
        return self.resolve(path) is not None

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        """The first bytes of a regular file; FileNotFoundError for anything else."""
        content = files.read(self.file(path), limit)
        if content is None:
            raise _not_found(path)
        return content

    def open(self, path: str) -> BinaryIO:
        """A regular file, to be read at any place; FileNotFoundError for anything else."""
        return os.fdopen(files.open_file(self.file(path)), "rb")

    def file(self, path: str) -> str:
        """Where the host has the bytes of a regular file of the box, for callers that need a real file. They
        may only read it."""
        where = self.data_path(self._existing(path))
        if where is None:
            raise _not_found(path)
        return where

    def readlink(self, path: str) -> str:
        """Where a symbolic link points, as it is written in it."""
        where = self.host_path(self._existing(path, follow=False))
        target = files.target(where) if where else None
        if target is None:
            raise _not_found(path)
        return target

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        folder = self._existing(path)
        if not folder.entry.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return self.children(folder)

    def walk(self, path: str = "/") -> Iterator[tuple[str, Entry]]:
        """Everything below a folder, without the folder itself; parents first, names in order.

        No link is followed, and what is too deep for a path is left out.
        """
        top = self.resolve(path)
        waiting = [top] if top else []
        while waiting:
            folder = waiting.pop()
            deeper = []
            for name in self.children(folder):
                if place := self.child(folder, name):
                    yield place.path, place.entry
                    if place.entry.is_folder:
                        deeper.append(place)
            waiting += reversed(deeper)


def _not_found(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _is_device_whiteout(entry: Entry) -> bool:
    return stat.S_ISCHR(entry.mode) and entry.rdev == 0


def _is_listed_whiteout(entry: os.DirEntry[str]) -> bool:
    try:
        # The listing already tells files, folders and links: only other kinds need a stat.
        if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
            return False
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return True
    return stat.S_ISCHR(about.st_mode) and about.st_rdev == 0
