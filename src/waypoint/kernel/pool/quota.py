"""Simple quotas of btrfs: how much a tree may take of the pool.

Blocks count for the tree that wrote them, for as long as any tree has them: a snapshot costs nothing, and a
program that deletes what a point still holds gets nothing back. Making a snapshot takes as long as without
(the other kind of quota of btrfs counts all shared blocks again). A kernel before 6.7 has no simple quotas,
and cannot mount a file system that has ever had them.
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
import uuid
from pathlib import Path

from waypoint.kernel.pool import subvolume
from waypoint.kernel.pool.protocol import Share
from waypoint.kernel.syscalls import ioctl_number

BTRFS_IOC_QUOTA_CTL = ioctl_number(3, 0x94, 40, 16)
BTRFS_IOC_QGROUP_LIMIT = ioctl_number(2, 0x94, 43, 48)
BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA = 4
BTRFS_QGROUP_LIMIT_MAX_RFER = 1 << 0
_ENDLESS = (1 << 64) - 1
_SYSFS = Path("/sys/fs/btrfs")


def is_known() -> bool:
    """Whether this kernel has simple quotas."""
    return (_SYSFS / "features" / "simple_quota").exists()


def enable(fd: int) -> None:
    """Counts from now on, in the file system of a descriptor. It cannot be taken back: see above."""
    fcntl.ioctl(fd, BTRFS_IOC_QUOTA_CTL, struct.pack("=QQ", BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA, 0))


def is_enabled(fd: int) -> bool:
    with contextlib.suppress(OSError):
        return (_groups(fd) / "mode").read_text().strip() == "squota"
    return False


def limit(fd: int, size_bytes: int | None) -> None:
    """The most that a tree may take, by a descriptor of its root; None: no limit. Its next write over that
    fails with EDQUOT."""
    wanted = _ENDLESS if size_bytes is None else size_bytes
    fcntl.ioctl(
        fd, BTRFS_IOC_QGROUP_LIMIT, struct.pack("=QQQQQQ", 0, BTRFS_QGROUP_LIMIT_MAX_RFER, wanted, 0, 0, 0)
    )


def share(fd: int) -> Share | None:
    """What a tree has taken and may take; None where nothing is counted."""
    with contextlib.suppress(OSError, ValueError):
        group = _groups(fd) / f"0_{subvolume.tree_id(fd)}"
        flags = int((group / "limit_flags").read_text(), 0)
        most = int((group / "max_referenced").read_text())
        limited = flags & BTRFS_QGROUP_LIMIT_MAX_RFER and most != _ENDLESS
        return Share(int((group / "referenced").read_text()), most if limited else None)
    return None


def _groups(fd: int) -> Path:
    return _SYSFS / str(uuid.UUID(bytes=subvolume.file_system_id(fd))) / "qgroups"
