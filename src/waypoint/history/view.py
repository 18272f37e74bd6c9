"""The file system of a box as it was at a point, read without mounting anything.

A box sees one tree; a point holds layers. The session's own layer says what it wrote (files and folders as
they are) and what it took away (a whiteout: a character device 0:0), which of its folders have nothing below
them (`trusted.overlay.opaque`) and which have another folder of the base below them than their name says
(`trusted.overlay.redirect`: the folder was renamed). Here the two are put together again by the rules that
overlayfs follows, path by path, as far as somebody asks.

A file of the base that has several names and was changed under one of them is changed under that one alone: a
running overlay shows it under the others too, but its index of such files does not outlive the box, and what
is seen here is what a restore of the point brings.

A path is one of the box: links in it are followed inside the view and never out of it. Whatever cannot be
reached is not there: the questions of the lower half raise FileNotFoundError with the box's path, those of
the upper half (for `changes` and `patches`) answer None.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterable, Iterator
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
ORIGIN = "trusted.overlay.origin"
_PRIVATE = "trusted.overlay."
_ESCAPED = "trusted.overlay.overlay."
_FOREIGN = ("btrfs.", "trusted.waypoint.")
"""Of the pool, not of the box."""

_OWN_MOUNTS = ("/dev", "/proc", "/sys")
_SHM = "/dev/shm"
_MOST_LINKS = 40
_MOST_REMEMBERED = 20_000
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
    """A path of the box, and where its parts lie. A folder may have two, everything else has one.

    Neither: it is there and empty, because what the box has there is not part of a point.
    """

    path: str
    region: Region
    upper: str | None
    lower: str | None
    entry: Entry


def below(folder: str, name: str) -> str:
    """The path of a name in a folder."""
    return f"/{name}" if folder == "/" else f"{folder}/{name}"


def joined(folder: str, name: str) -> str:
    """The same for paths relative to a layer."""
    return f"{folder}/{name}" if folder else name


class PointView:
    """The merged tree of a volume (a snapshot, or a live one) over its base.

    `volume` None is the base alone, with what is mounted on it. `hide` names paths of the box that are
    covered there, like Waypoint's own home: they are empty folders here too. Places are remembered: a view
    of something that changes gets old.
    """

    def __init__(self, volume: Path | None, base: Path, *, hide: Iterable[str] = ()) -> None:
        self.volume, self.base = volume, base
        self._volume = None if volume is None else str(volume)
        self._base = str(base).rstrip("/")
        self.regions = {"/": Region("/", "upper", "")}
        for name in files.names(f"{self._volume}/mounts") if self._volume else ():
            path = unquote(name)
            if path.startswith("/") and posixpath.normpath(path) == path != "/":
                self.regions[path] = Region(path, f"mounts/{name}", path.lstrip("/"))
        self.regions[_SHM] = Region(_SHM, "shm", None)
        self.hidden = frozenset({*_OWN_MOUNTS, *map(posixpath.normpath, hide)})
        self._sees_mounts = volume is None
        self._places: dict[str, Place | None] = {}

    @classmethod
    def bare(cls, view: PointView) -> PointView:
        """The base alone, with the same mounts below it as another view of it."""
        found = cls(None, view.base, hide=view.hidden)
        found.regions = dict(view.regions)
        found._sees_mounts = False
        return found

    @property
    def boundaries(self) -> frozenset[str]:
        """Where one overlay ends: the roots of the others, and what is not part of a point."""
        return self.hidden | self.regions.keys()

    # ---- the rules of an overlay -------------------------------------------------------------

    def upper_path(self, upper: str) -> str:
        return f"{self._volume}/{upper}"

    def lower_path(self, lower: str) -> str:
        return f"{self._base}/{lower}"

    def place(self, path: str) -> Place | None:
        """What a path of the box is, no link followed anywhere. It has to be absolute and normal."""
        if path in self._places:
            return self._places[path]
        if path in self.regions or path in self.hidden:
            found: Place | None = self._boundary(path)
        else:
            found = self.place("/")
            for name in path.split("/")[1:]:
                found = self._remembered_child(found, name) if found else None
        self._remember(path, found)
        return found

    def _remember(self, path: str, place: Place | None) -> None:
        if len(self._places) >= _MOST_REMEMBERED:
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
            *(path, region, region.upper if upper else None, region.lower if lower else None),
            upper or lower or _EMPTY_FOLDER,
        )

    def child(self, folder: Place, name: str) -> Place | None:
        """What a folder has under a name."""
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
        # The other form, for overlays in overlays: an empty file that is marked, in a folder that is marked.
        return (
            entry.is_file
            and entry.size == 0
            and files.attribute(self.upper_path(path), WHITEOUT) is not None
            and files.attribute(self.upper_path(folder), OPAQUE) == b"x"
        )

    def _lower_of(self, folder: Place, upper: str, name: str) -> str | None:
        """The folder of the base that is below a folder of the layer."""
        where = self.upper_path(upper)
        if files.attribute(where, OPAQUE) == b"y":
            return None
        redirect = os.fsdecode(files.attribute(where, REDIRECT) or b"")
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
        found = {
            path.rpartition("/")[2] for path in self.regions if posixpath.dirname(path) == folder.path != path
        }
        taken = set()
        if folder.upper is not None:
            taken = set(self.upper_names(folder.upper))
            found |= {name for name in taken if self._shows(folder.upper, joined(folder.upper, name))}
        if folder.lower is not None:
            for name in self.lower_names(folder.lower):
                if name not in taken:
                    found.add(name)
        return sorted(found)

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
        if place.upper is None or files.attribute(where, METACOPY) is None:
            return where
        # Only its metadata was copied up: the bytes are still the base's.
        folder = self.place(posixpath.dirname(place.path))
        redirect = os.fsdecode(files.attribute(where, REDIRECT) or b"") or posixpath.basename(place.path)
        root = place.region.lower if redirect.startswith("/") else folder.lower if folder else None
        steps = redirect.strip("/").split("/")
        above = None if root is None else self._folder_below(root, steps[:-1])
        return None if above is None else self.lower_path(joined(above, steps[-1]))

    def attributes(self, place: Place) -> dict[str, bytes]:
        """The extended attributes that the box sees."""
        where = self.host_path(place)
        found = {}
        for name, value in (files.attributes(where) if where else {}).items():
            if name.startswith(_ESCAPED):
                found[_PRIVATE + name[len(_ESCAPED) :]] = value
            elif not name.startswith((_PRIVATE, *_FOREIGN)):
                found[name] = value
        return found

    # ---- what others ask ---------------------------------------------------------------------

    def resolve(self, path: str, *, follow: bool = True) -> Place | None:
        """What a path leads to, by way of the links in it; with `follow`, the last one too."""
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
            found = self._remembered_child(here, name)
            if found is None:
                return None
            if not found.entry.is_link or (not waiting and not follow):
                trail.append(found)
                continue
            links += 1
            where = self.host_path(found)
            target = files.target(where) if where else None
            if target is None or links > _MOST_LINKS:
                return None
            if target.startswith("/"):
                del trail[1:]
            waiting += [step for step in reversed(target.split("/")) if step not in ("", ".")]
        return trail[-1]

    def _remembered_child(self, folder: Place, name: str) -> Place | None:
        path = below(folder.path, name)
        if path in self._places:
            return self._places[path]
        found = self.child(folder, name)
        if found and found.entry.is_folder:
            self._remember(path, found)
        return found

    def lstat(self, path: str) -> os.stat_result:
        """What is at a path itself, be it a link."""
        return self._status(path, follow=False)

    def stat(self, path: str) -> os.stat_result:
        """What a path leads to."""
        return self._status(path, follow=True)

    def _status(self, path: str, *, follow: bool) -> os.stat_result:
        found = self._found(path, follow=follow)
        where = self.host_path(found)
        if where is None:
            about = found.entry
            return os.stat_result((about.mode, 0, 0, about.links, about.uid, about.gid, about.size, 0, 0, 0))
        try:
            return os.lstat(where)
        except OSError as error:
            raise _absent(path) from error

    def _found(self, path: str, *, follow: bool = True) -> Place:
        found = self.resolve(path, follow=follow)
        if found is None:
            raise _absent(path)
        return found

    def exists(self, path: str) -> bool:
        """Whether a path leads to something."""
        return self.resolve(path) is not None

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        """The first bytes of a regular file; FileNotFoundError for anything else."""
        content = files.read(self.file(path), limit)
        if content is None:
            raise _absent(path)
        return content

    def open(self, path: str) -> BinaryIO:
        """A regular file, to be read at any place; FileNotFoundError for anything else."""
        return os.fdopen(files.open_file(self.file(path)), "rb")

    def file(self, path: str) -> str:
        """Where the host has the bytes of a regular file of the box, to be read only: for those who need a
        real file."""
        where = self.data_path(self._found(path))
        if where is None:
            raise _absent(path)
        return where

    def readlink(self, path: str) -> str:
        """Where a symbolic link points, as it is written in it."""
        where = self.host_path(self._found(path, follow=False))
        target = files.target(where) if where else None
        if target is None:
            raise _absent(path)
        return target

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        found = self._found(path)
        if not found.entry.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return self.children(found)

    def walk(self, path: str = "/") -> Iterator[tuple[str, Entry]]:
        """Everything below a folder, the folder itself aside, parents first, each folder's names in order.

        No link is followed, and what is deeper than a path can name is left out.
        """
        top = self.resolve(path)
        waiting = [top] if top else []
        while waiting:
            folder = waiting.pop()
            deeper = []
            for name in self.children(folder):
                if found := self.child(folder, name):
                    yield found.path, found.entry
                    if found.entry.is_folder:
                        deeper.append(found)
            waiting += reversed(deeper)


def _absent(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _is_device_whiteout(entry: Entry) -> bool:
    return stat.S_ISCHR(entry.mode) and entry.rdev == 0


def _is_listed_whiteout(entry: os.DirEntry[str]) -> bool:
    try:
        # A listing knows files, folders and links by itself: only what is none of them has to be looked at.
        if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
            return False
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return True
    return stat.S_ISCHR(about.st_mode) and about.st_rdev == 0
