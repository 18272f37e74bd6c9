"""How much space would come back if trees and files of the pool were deleted.

Snapshots share what they have in common, so the size of a checkpoint says nothing about its cost. A
checkpoint costs what nothing else refers to. btrfs counts that itself only with quotas, which would slow
down every snapshot and every deletion for a number that is needed now and then. So it is computed on demand,
at a cost that depends on what changed and not on what exists:

1. Only leaves newer than the tree that it was made from are read (`Growth.since`): that tree has the others
too.
2. What a tree that was made from it still holds at the same key is shared (`Growth.later`): one look-up each.
   So is what the folders of points beside it hold (`staying`). An extent that a thousand points share is
   found this way; the kernel would walk through all of them.
3. For each remaining extent the kernel is asked what refers to any byte of it (BTRFS_IOC_LOGICAL_INO_V2).
   btrfs frees an extent as a whole or not at all.

The first two only save work, the third decides, so clones and shared memory images are counted correctly.
Data is exact, compressed as it is on the disk. Metadata (names, attributes, files small enough to be stored
with them) is a lower bound: leaves of its own as far as they can be distinguished, and its root. When the
time limit ends the search, the largest extents have been checked and the rest is counted in proportion:
`exact` is false.

On other file systems blocks are counted, less what the file system reports as shared (FIEMAP).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from waypoint.kernel.pool import subvolume
from waypoint.kernel.pool.subvolume import TOP, Item, Key
from waypoint.kernel.syscalls import ioctl_number

# <linux/btrfs.h>, <linux/btrfs_tree.h>
BTRFS_IOC_LOGICAL_INO_V2 = ioctl_number(3, 0x94, 59, 56)
BTRFS_LOGICAL_INO_ARGS_IGNORE_OFFSET = 1
BTRFS_EXTENT_DATA_KEY = 108
BTRFS_FILE_EXTENT_INLINE = 0

# <linux/fiemap.h>
FS_IOC_FIEMAP = ioctl_number(3, ord("f"), 11, 32)
FIEMAP_EXTENT_LAST = 0x1
FIEMAP_EXTENT_UNKNOWN = 0x2
FIEMAP_EXTENT_SHARED = 0x2000

METADATA_COPIES = 2
"""The metadata of a pool is written twice; see docs/storage.md."""
_NODE_BYTES = 16384
_ITEM_BYTES = 25
_OWNERS_BYTES = 1 << 16
_FIEMAP_EXTENTS = 256
_EXTENTS_BYTES = 1 << 14
"""For some two hundred extents of a file, or one that is stored in the tree itself."""

_EXTENT = struct.Struct("<20xBQQ")
_FIRST_KEY, _LAST_KEY = Key(0, 0, 0), Key(TOP, 0xFFFFFFFF, TOP)


class Growth(NamedTuple):
    """A tree to be deleted, between trees that stay (or are deleted with it)."""

    path: Path
    since: Path | None = None
    """The tree that it was made from: it also has everything that did not change since."""
    later: tuple[Path, ...] = ()
    """Trees that were made from it and stay."""


class Space(NamedTuple):
    """What a deletion would free."""

    data_bytes: int = 0
    metadata_bytes: int = 0
    exact: bool = True
    """Whether every extent was checked."""

    @property
    def total_bytes(self) -> int:
        return self.data_bytes + self.metadata_bytes


def freed(
    trees: Sequence[Growth],
    folders: Sequence[Path] = (),
    *,
    staying: Sequence[Path] = (),
    seconds: float = 2.0,
) -> Space:
    """What would come back if all these were deleted together: subvolumes, and folders of plain files.

    `staying`: folders of plain files that probably share much with these, and stay. Dirty data has no place
    on the disk yet: sync before, if it is to count. What does not exist counts nothing.
    """
    with ExitStack() as opened:
        return _Search(opened, trees, folders, staying, time.monotonic() + seconds).run()


def made_at(path: Path) -> float:
    """When a subvolume was made, or a folder last changed. (The root of a snapshot has the times of the tree
    that it was made from.)"""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if subvolume.is_root(status):
            with suppress(OSError):
                return float(subvolume.made_at_ns(fd) // 1_000_000_000)
        return status.st_ctime
    finally:
        os.close(fd)


# ---- btrfs --------------------------------------------------------------------------------------


class _Tree:
    """An open subvolume."""

    def __init__(self, opened: ExitStack, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, self.fd)
        self.id = subvolume.tree_id(self.fd)


class _Extent(NamedTuple):
    address: int
    size_bytes: int


class _Search:
    """The extents of some trees and folders, and which of them nothing else refers to."""

    def __init__(
        self,
        opened: ExitStack,
        trees: Sequence[Growth],
        folders: Sequence[Path],
        staying: Sequence[Path],
        deadline: float,
    ) -> None:
        self._opened, self._folders, self._staying, self._deadline = opened, folders, staying, deadline
        self._known: dict[Path, _Tree | None] = {}
        self._trees = [(tree, growth) for growth in trees if (tree := self._tree(growth.path))]
        self._roots = {tree.id for tree, _ in self._trees}
        self._inodes: set[tuple[int, int]] = set()
        self._candidates: set[_Extent] = set()
        self._owners = ctypes.create_string_buffer(_OWNERS_BYTES)
        self._where = ctypes.addressof(self._owners)

    def _tree(self, path: Path) -> _Tree | None:
        if path not in self._known:
            try:
                self._known[path] = _Tree(self._opened, path)
            except FileNotFoundError:
                self._known[path] = None
        return self._known[path]

    def run(self) -> Space:
        metadata = sum(self._read(tree, growth) for tree, growth in self._trees)
        place = self._read_folders()
        if place is None and self._trees:
            place = self._trees[0][0].fd
        if place is None:
            return Space()
        data, exact = self._own_bytes(place)
        return Space(data, metadata, exact)

    def _read(self, tree: _Tree, growth: Growth) -> int:
        """Collects the extents of a tree that may be its own. Returns the bytes of its own leaves and its
        root."""
        since = self._tree(growth.since) if growth.since else None
        later = [other for path in growth.later if (other := self._tree(path))]
        own, leaf, filled = 1, -1, _NODE_BYTES
        newer_than = subvolume.made_in(since.fd) if since else 0
        for item in subvolume.items(tree.fd, _FIRST_KEY, _LAST_KEY, newer_than=newer_than):
            size = _ITEM_BYTES + len(item.data)
            # Where a leaf ends is not shown: it does at another transaction, or when it has no more room.
            if item.transaction != leaf or filled + size > _NODE_BYTES:
                leaf, filled = item.transaction, 0
                others = (subvolume.item_at(other.fd, item.key) for other in later)
                own += all(other is None or other.transaction != leaf for other in others)
            filled += size
            if item.key.kind == BTRFS_EXTENT_DATA_KEY:
                self._consider(item, later)
        return own * _NODE_BYTES * METADATA_COPIES

    def _consider(self, item: Item, later: Sequence[_Tree]) -> None:
        extent = _extent(item.data)
        if extent is None or extent in self._candidates:
            return
        for other in later:
            same_key = subvolume.item_at(other.fd, item.key)
            if same_key and _extent(same_key.data) == extent:
                return
        self._candidates.add(extent)

    def _read_folders(self) -> int | None:
        place: _Tree | None = None
        for folder in self._folders:
            for inode in _files_in(folder):
                place = place or _Tree(self._opened, folder)
                self._inodes.add((place.id, inode))
                self._candidates.update(_extents_of(place, inode))
        for folder in self._staying:
            for inode in _files_in(folder) if self._candidates else ():
                place = place or _Tree(self._opened, folder)
                self._candidates.difference_update(_extents_of(place, inode))
        return place.fd if place else None

    def _own_bytes(self, fd: int) -> tuple[int, bool]:
        """The bytes of the extents that nothing else refers to, and whether there was time to check all."""
        checked = own = 0
        waiting = sorted(self._candidates, key=lambda extent: -extent.size_bytes)
        for number, extent in enumerate(waiting):
            if number and time.monotonic() > self._deadline:
                rest = sum(extent.size_bytes for extent in waiting[number:])
                return own + (rest * own // checked if checked else 0), False
            checked += extent.size_bytes
            if self._is_own(fd, extent):
                own += extent.size_bytes
        return own, True

    def _is_own(self, fd: int, extent: _Extent) -> bool:
        request = struct.pack(
            "=QQ24xQQ", extent.address, _OWNERS_BYTES, BTRFS_LOGICAL_INO_ARGS_IGNORE_OFFSET, self._where
        )
        try:
            fcntl.ioctl(fd, BTRFS_IOC_LOGICAL_INO_V2, request)
        except FileNotFoundError:
            return False  # freed meanwhile
        count, missed = struct.unpack_from("=8xII", self._owners)
        if missed:
            return False
        owners = struct.iter_unpack("=Q8xQ", self._owners.raw[16 : 16 + 8 * count])
        return all(root in self._roots or (root, inode) in self._inodes for inode, root in owners)


def _files_in(folder: Path) -> list[int]:
    """The inodes of the plain files in a folder. They are all in the subvolume of the folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.inode() for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _extents_of(tree: _Tree, inode: int) -> Iterator[_Extent]:
    first, last = Key(inode, BTRFS_EXTENT_DATA_KEY, 0), Key(inode, BTRFS_EXTENT_DATA_KEY, TOP)
    found = subvolume.items(tree.fd, first, last, size_bytes=_EXTENTS_BYTES)
    extents = (_extent(item.data) for item in found)
    return (extent for extent in extents if extent)


def _extent(item: memoryview) -> _Extent | None:
    """The part of the disk that an EXTENT_DATA item refers to; None for a hole or for inline data."""
    if len(item) < _EXTENT.size:
        return None
    kind, address, size = _EXTENT.unpack_from(item)
    return None if kind == BTRFS_FILE_EXTENT_INLINE or not address else _Extent(address, size)


# ---- any other file system ----------------------------------------------------------------------


def freed_by_walk(paths: Iterable[Path], *, seconds: float = 2.0) -> Space:
    """Blocks of all files below, without those that files share. When the time is over: what was counted so
    far."""
    own, exact, deadline = 0, True, time.monotonic() + seconds
    seen: set[tuple[int, int]] = set()
    waiting = [os.fspath(path) for path in paths]
    while waiting:
        if time.monotonic() > deadline:
            exact = False
            break
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if (status.st_dev, status.st_ino) in seen:
                continue
            if status.st_nlink > 1:
                seen.add((status.st_dev, status.st_ino))
            blocks = status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                waiting.append(entry.path)
            elif stat.S_ISREG(status.st_mode) and blocks:
                blocks = max(0, blocks - _shared_bytes(entry.path))
            own += blocks
    return Space(own, 0, exact)


def _shared_bytes(path: str) -> int:
    """How many bytes of a file the file system reports as shared with other files."""
    shared, start = 0, 0
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NOATIME | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        while True:
            request = bytearray(struct.pack("=QQIII4x", start, TOP - start, 0, 0, _FIEMAP_EXTENTS))
            request += bytes(56 * _FIEMAP_EXTENTS)
            fcntl.ioctl(fd, FS_IOC_FIEMAP, request)
            count = struct.unpack_from("=20xI", request)[0]
            flags = 0
            for number in range(count):
                at, _, length, flags = struct.unpack_from("=QQQ16xI", request, 32 + 56 * number)
                start = at + length
                shared += length if flags & FIEMAP_EXTENT_SHARED and not flags & FIEMAP_EXTENT_UNKNOWN else 0
            if not count or flags & FIEMAP_EXTENT_LAST:
                return shared
    except OSError:
        return shared
    finally:
        os.close(fd)
