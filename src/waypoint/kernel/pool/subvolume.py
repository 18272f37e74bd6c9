"""<linux/btrfs.h>: what the kernel says about one subvolume, by a descriptor of its root."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from waypoint.kernel.pool.protocol import opened
from waypoint.kernel.syscalls import ioctl_number

BTRFS_IOC_TREE_SEARCH_V2 = ioctl_number(3, 0x94, 17, 112)
BTRFS_IOC_INO_LOOKUP = ioctl_number(3, 0x94, 18, 4096)
BTRFS_IOC_SUBVOL_GETFLAGS = ioctl_number(2, 0x94, 25, 8)
BTRFS_IOC_SUBVOL_SETFLAGS = ioctl_number(1, 0x94, 26, 8)
BTRFS_IOC_FS_INFO = ioctl_number(2, 0x94, 31, 1024)
BTRFS_IOC_GET_SUBVOL_INFO = ioctl_number(2, 0x94, 60, 504)
BTRFS_SUBVOL_RDONLY = 1 << 1
BTRFS_INODE_REF_KEY = 12
BTRFS_INODE_EXTREF_KEY = 13
BTRFS_FIRST_FREE_OBJECTID = 256
"""The inode number of the root of every subvolume."""

TOP = (1 << 64) - 1
"""The highest inode number, offset and transaction."""
_OTRANSID_AT = 352
_OTIME_AT = 392
_SEARCH = struct.Struct("=7Q4I32xQ")
_ITEM_HEADER = struct.Struct("=QQQII")
_SEARCH_BYTES = 1 << 20
_ROOT_TREE, _ROOT_REF_KEY = 1, 156
_ORPHAN_OBJECTID, _ORPHAN_ITEM_KEY = TOP - 4, 48
_MOST_NESTED = 64


class Key(NamedTuple):
    """The key of an item in a tree of btrfs."""

    inode: int
    kind: int
    offset: int


class Item(NamedTuple):
    """An item of a subvolume."""

    key: Key
    transaction: int
    """Which wrote the leaf that it is in."""
    data: memoryview
    """Valid until the next item."""


def is_root(status: os.stat_result) -> bool:
    """Whether a folder on btrfs is the root of a subvolume."""
    return status.st_ino == BTRFS_FIRST_FREE_OBJECTID


def is_readonly(fd: int) -> bool:
    return bool(_flags(fd) & BTRFS_SUBVOL_RDONLY)


def set_readonly(fd: int, *, readonly: bool) -> None:
    flags = _flags(fd) & ~BTRFS_SUBVOL_RDONLY | (BTRFS_SUBVOL_RDONLY if readonly else 0)
    fcntl.ioctl(fd, BTRFS_IOC_SUBVOL_SETFLAGS, struct.pack("=Q", flags))


def _flags(fd: int) -> int:
    flags: int = struct.unpack("=Q", fcntl.ioctl(fd, BTRFS_IOC_SUBVOL_GETFLAGS, bytes(8)))[0]
    return flags


def file_system_id(fd: int) -> bytes:
    """The UUID of the file system; OSError (ENOTTY, …) when it is not btrfs."""
    return fcntl.ioctl(fd, BTRFS_IOC_FS_INFO, bytes(1024))[16:32]


def tree_id(fd: int) -> int:
    """The number of the subvolume."""
    number: int = struct.unpack_from("=Q", _lookup(fd, BTRFS_FIRST_FREE_OBJECTID))[0]
    return number


def folder_path(fd: int, inode: int) -> str:
    """The path of a folder in the subvolume."""
    return os.fsdecode(bytes(_lookup(fd, inode)[16:]).partition(b"\0")[0]).rstrip("/")


def _lookup(fd: int, inode: int) -> bytearray:
    request = bytearray(struct.pack("=QQ4080x", 0, inode))
    fcntl.ioctl(fd, BTRFS_IOC_INO_LOOKUP, request)
    return request


def names_of(fd: int, inode: int) -> Iterator[str]:
    """The paths of a file in the subvolume, one after the other: a caller that needs one reads no more."""
    folders: dict[int, str] = {}
    first, last = Key(inode, BTRFS_INODE_REF_KEY, 0), Key(inode, BTRFS_INODE_EXTREF_KEY, TOP)
    for item in items(fd, first, last):
        for folder, name in _references(item.key, bytes(item.data)):
            if folder not in folders:
                folders[folder] = folder_path(fd, folder)
            above = folders[folder]
            yield f"{above}/{name}" if above else name


def _references(key: Key, item: bytes) -> Iterator[tuple[int, str]]:
    """The names in an INODE_REF or INODE_EXTREF item, each with its folder's inode."""
    at = 0
    while key.kind in (BTRFS_INODE_REF_KEY, BTRFS_INODE_EXTREF_KEY) and at < len(item):
        folder = key.offset
        if key.kind == BTRFS_INODE_EXTREF_KEY:
            folder = struct.unpack_from("<Q", item, at)[0]
            at += 8
        count = struct.unpack_from("<QH", item, at)[1]
        yield folder, os.fsdecode(item[at + 10 : at + 10 + count])
        at += 10 + count


def made_in(fd: int) -> int:
    """The transaction that made it. What it shares with its origin was written in that one or before."""
    transaction: int = struct.unpack_from("=Q", _info(fd), _OTRANSID_AT)[0]
    return transaction


def made_at_ns(fd: int) -> int:
    """When it was made."""
    seconds, nanoseconds = struct.unpack_from("=QI", _info(fd), _OTIME_AT)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def _info(fd: int) -> bytes:
    return fcntl.ioctl(fd, BTRFS_IOC_GET_SUBVOL_INFO, bytes(504))


def items(
    fd: int, first: Key, last: Key, *, newer_than: int = 0, size_bytes: int = _SEARCH_BYTES
) -> Iterator[Item]:
    """The items between two keys, in leaves that were written after a transaction. `size_bytes`: how much is
    asked for at once; fresh memory for a megabyte can take longer than the search for a few items."""
    request = bytearray(_SEARCH.size + size_bytes)
    key = first
    while count := _search(fd, request, key, last, newer_than=newer_than, limit=0xFFFFFFFF):
        for item in _unpack(request, count):
            key = item.key
            yield item
        is_last = key.offset == TOP
        key = Key(key.inode, key.kind + 1, 0) if is_last else key._replace(offset=key.offset + 1)


def item_at(fd: int, key: Key) -> Item | None:
    """The item with a key."""
    request = bytearray(_SEARCH.size + 4096)
    count = _search(fd, request, key, key, newer_than=0, limit=1)
    return next(_unpack(request, count), None)


def nested_names(path: Path) -> list[str]:
    """The names of subvolumes that were made in this one: no snapshot of it holds them. Empty where there are
    no subvolumes."""
    names: list[str] = []
    with contextlib.suppress(OSError), opened(path) as fd:
        tree, request = tree_id(fd), bytearray(_SEARCH.size + _SEARCH_BYTES)
        first, last = Key(tree, _ROOT_REF_KEY, 0), Key(tree, _ROOT_REF_KEY, TOP)
        count = _search(fd, request, first, last, newer_than=0, limit=_MOST_NESTED, tree=_ROOT_TREE)
        for item in _unpack(request, count):
            (length,) = struct.unpack_from("=H", item.data, 16)
            names.append(os.fsdecode(bytes(item.data[18 : 18 + length])))
    return names


def has_dead_trees(fd: int) -> bool:
    """Whether subvolumes were deleted that the kernel has not freed yet: until it has, there is an orphan
    item for each in the tree of trees."""
    first, last = (Key(_ORPHAN_OBJECTID, _ORPHAN_ITEM_KEY, offset) for offset in (0, TOP))
    request = bytearray(_SEARCH.size + 4096)
    return _search(fd, request, first, last, newer_than=0, limit=1, tree=_ROOT_TREE) > 0


def _search(
    fd: int, request: bytearray, first: Key, last: Key, *, newer_than: int, limit: int, tree: int = 0
) -> int:
    """BTRFS_IOC_TREE_SEARCH_V2. Returns how many items are in the request now. `tree` 0: that of the
    descriptor."""
    oldest = newer_than + 1 if newer_than else 0
    room = len(request) - _SEARCH.size
    inodes, offsets = (first.inode, last.inode), (first.offset, last.offset)
    kinds = (first.kind, last.kind)
    _SEARCH.pack_into(request, 0, tree, *inodes, *offsets, oldest, TOP, *kinds, limit, 0, room)
    fcntl.ioctl(fd, BTRFS_IOC_TREE_SEARCH_V2, request)
    count: int = struct.unpack_from("=I", request, 64)[0]
    return count


def _unpack(request: bytearray, count: int) -> Iterator[Item]:
    at = _SEARCH.size
    view = memoryview(request)
    for _ in range(count):
        transaction, inode, offset, kind, length = _ITEM_HEADER.unpack_from(request, at)
        at += _ITEM_HEADER.size
        yield Item(Key(inode, kind, offset), transaction, view[at : at + length])
        at += length
