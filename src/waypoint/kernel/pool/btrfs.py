"""A pool on btrfs: trees are subvolumes, snapshots are one ioctl."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from pathlib import Path

from waypoint.api.hints import Do, Hint
from waypoint.errors import NoSpace, translated
from waypoint.kernel import copytree
from waypoint.kernel.pool import quota, subvolume
from waypoint.kernel.pool.protocol import (
    TREE_MODE,
    Share,
    Usage,
    check_inside,
    no_shares,
    opened,
    scratch_path,
)
from waypoint.kernel.syscalls import ioctl_number, syncfs

FITRIM = ioctl_number(3, ord("X"), 121, 24)

# <linux/btrfs.h>
BTRFS_IOC_SYNC = ioctl_number(0, 0x94, 8, 0)
BTRFS_IOC_SUBVOL_CREATE = ioctl_number(1, 0x94, 14, 4096)
BTRFS_IOC_SNAP_DESTROY = ioctl_number(1, 0x94, 15, 4096)
BTRFS_IOC_SPACE_INFO = ioctl_number(3, 0x94, 20, 16)
BTRFS_IOC_SNAP_CREATE_V2 = ioctl_number(1, 0x94, 23, 4096)
BTRFS_BLOCK_GROUP_COPIES = {1 << 4: 2, 1 << 5: 2, 1 << 6: 2, 1 << 9: 3, 1 << 10: 4}
BTRFS_SPACE_INFO_GLOBAL_RSV = 1 << 49

REOPEN_BYTES = 32 << 20
"""With less room on the disk under a sparse pool that has stopped it is not opened again: it would stop at
its first commit."""
_SETTLE_SECONDS = 30.0
DISK_RESERVE_BYTES = 256 << 20
"""Below this much room on the disk under a sparse pool nothing new is begun: a disk that runs full
under btrfs looks like a broken disk to it, and it stops all writing."""


def is_btrfs(path: Path) -> bool:
    with opened(path) as fd:
        try:
            subvolume.file_system_id(fd)
        except OSError as error:
            if error.errno in {errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP}:
                return False
            raise
    return True


def volume_request(name: str, fd: int = 0) -> bytearray:
    """struct btrfs_ioctl_vol_args. A bytearray, since Python passes no more than 1 KiB of bytes."""
    return bytearray(struct.pack("=q4088s", fd, os.fsencode(name)))


class BtrfsPool:
    """Trees are subvolumes. `image` is the sparse file below, None on a btrfs that was there before."""

    kind = "btrfs"
    reason = ""

    def __init__(self, root: Path, image: Path | None) -> None:
        self.root = root
        self.image = image

    def create(self, path: Path) -> None:
        check_inside(self.root, path)
        self._check_disk()
        with translated("create the tree", path), opened(path.parent) as parent:
            fcntl.ioctl(parent, BTRFS_IOC_SUBVOL_CREATE, volume_request(path.name))
            os.chmod(path, TREE_MODE)
            with contextlib.suppress(OSError):
                os.removexattr(path, "btrfs.compression")

    def snapshot(self, source: Path, target: Path, *, readonly: bool) -> None:
        check_inside(self.root, target)
        self._check_disk()
        with translated("make the snapshot", target):
            self._snapshot(source, target, readonly=readonly)

    def _snapshot(self, source: Path, target: Path, *, readonly: bool) -> None:
        flags = subvolume.BTRFS_SUBVOL_RDONLY if readonly else 0
        with opened(source) as fd, opened(target.parent) as parent:
            request = struct.pack("=qQQ32s4040s", fd, 0, flags, b"", os.fsencode(target.name))
            fcntl.ioctl(parent, BTRFS_IOC_SNAP_CREATE_V2, bytearray(request))

    def seal(self, path: Path) -> None:
        with translated("seal", path), opened(path) as fd:
            subvolume.set_readonly(fd, readonly=True)

    def is_readonly(self, path: Path) -> bool:
        with translated("read the flags of", path), opened(path) as fd:
            return subvolume.is_readonly(fd)

    def delete(self, path: Path) -> None:
        check_inside(self.root, path)
        with (
            translated("delete", path),
            contextlib.suppress(FileNotFoundError),
            opened(path.parent) as parent,
        ):
            copytree.remove_tree(parent, path.name, destroy=self._destroy)

    def _destroy(self, parent: int, name: str, status: os.stat_result) -> bool:
        if not subvolume.is_root(status):
            return False
        try:
            fcntl.ioctl(parent, BTRFS_IOC_SNAP_DESTROY, volume_request(name))
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        else:
            return True
        # Other trees lie inside it. They have to be removed first, which takes a writable tree.
        with opened(copytree.below(parent, name)) as fd:
            subvolume.set_readonly(fd, readonly=False)
        return False

    def flush(self, path: Path) -> None:
        """A temporary snapshot: the one call that writes the data of this tree and of no other.

        syncfs and BTRFS_IOC_SYNC wait for the data of all sessions, START_SYNC leaves the data of
        this one to the snapshot that follows; docs/storage.md has the measurements.
        """
        temporary = scratch_path(self.root)
        with translated("flush", path):
            self._snapshot(path, temporary, readonly=True)
            with opened(temporary.parent) as parent, contextlib.suppress(FileNotFoundError):
                fcntl.ioctl(parent, BTRFS_IOC_SNAP_DESTROY, volume_request(temporary.name))

    def sync(self) -> None:
        with translated("sync", self.root), opened(self.root) as fd:
            syncfs(fd)

    def has_stopped(self) -> bool:
        return bool(os.statvfs(self.root).f_flag & os.ST_RDONLY)

    def settle(self) -> None:
        with translated("free what was deleted in", self.root), opened(self.root) as fd:
            deadline = time.monotonic() + _SETTLE_SECONDS
            fcntl.ioctl(fd, BTRFS_IOC_SYNC)  # this also wakes the kernel's thread that frees subvolumes
            lowest, unchanged = self._used_bytes(), 0
            # One that a process has open is freed later: it is not waited for.
            while subvolume.has_dead_trees(fd) and unchanged < 5 and time.monotonic() < deadline:
                time.sleep(0.02)
                fcntl.ioctl(fd, BTRFS_IOC_SYNC)
                used = self._used_bytes()
                unchanged = 0 if used < lowest else unchanged + 1
                lowest = min(lowest, used)
            fcntl.ioctl(fd, BTRFS_IOC_SYNC)  # what was freed can be used, and given back, after a commit

    def reclaim(self) -> None:
        """Most blocks are given back by the time they are free, one by one (discard=async). Those that were
        still waiting when the pool was last unmounted are only found by FITRIM, which looks at all that is
        free."""
        self.settle()
        if self.image:
            with opened(self.root) as fd, contextlib.suppress(OSError):  # not every file can be made smaller
                fcntl.ioctl(fd, FITRIM, struct.pack("=QQQ", 0, (1 << 64) - 1, 0))

    def usage(self) -> Usage:
        with translated("measure", self.root):
            status = os.statvfs(self.root)
            free = status.f_bavail * status.f_frsize
            if self.image:
                free = min(free, disk_room(self.image)[0])
            return Usage(status.f_blocks * status.f_frsize, self._used_bytes(), free)

    def limit(self, path: Path, size_bytes: int | None) -> None:
        with translated("limit", path), opened(path) as fd:
            if quota.share(fd) is not None:
                quota.limit(fd, size_bytes)
            elif size_bytes is not None:
                raise no_shares()

    def share(self, path: Path) -> Share | None:
        with translated("measure", path), opened(path) as fd:
            return quota.share(fd)

    def _used_bytes(self) -> int:
        with opened(self.root) as fd:
            count = struct.unpack("=QQ", fcntl.ioctl(fd, BTRFS_IOC_SPACE_INFO, bytes(16)))[1]
            request = bytearray(struct.pack("=QQ", count, 0) + bytes(24 * count))
            fcntl.ioctl(fd, BTRFS_IOC_SPACE_INFO, request)
        used = 0
        for flags, _, used_bytes in struct.iter_unpack("=QQQ", request[16:]):
            if not flags & BTRFS_SPACE_INFO_GLOBAL_RSV:
                copies = [n for profile, n in BTRFS_BLOCK_GROUP_COPIES.items() if flags & profile]
                used += used_bytes * (copies[0] if copies else 1)
        return used

    def _check_disk(self) -> None:
        if self.image:
            free, growth = disk_room(self.image)
            if free < min(growth, DISK_RESERVE_BYTES):
                raise NoSpace(
                    f"the host's disk is almost full: {free >> 20} MiB left for {self.image}",
                    hint=Hint("make room on that disk, or free some with ", Do("prune")),
                    path=str(self.image),
                )

    def dedupe(self, source: Path, target: Path) -> int:
        with translated("share blocks with", source):
            return copytree.share_blocks(source, target, rewrite_rest=True)


def disk_room(image: Path) -> tuple[int, int]:
    """How many bytes the disk below a sparse file has left, and by how many the file may still grow."""
    file, disk = os.stat(image), os.statvfs(image)
    return disk.f_bavail * disk.f_frsize, max(0, file.st_size - file.st_blocks * 512)
