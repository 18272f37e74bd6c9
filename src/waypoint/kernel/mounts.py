"""/proc/PID/mountinfo: what is mounted where.

A box is layered over a base folder. An overlay does not see what is mounted below its lower layer, so each of
those mounts has to be layered on its own. This module lists them and says which file systems can be layered.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

LAYERED = frozenset(
    {
        "bcachefs",
        "btrfs",
        "erofs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "iso9660",
        "jfs",
        "overlay",
        "reiserfs",
        "squashfs",
        "udf",
        "xfs",
        "zfs",
    }
)
"""File systems that make a good lower layer."""

READ_ONLY = frozenset({"exfat", "msdos", "ntfs", "ntfs3", "vfat"})
"""File systems that overlayfs refuses as a layer, because they ignore case. A box sees them read-only."""


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    mount_id: int
    device: str
    root: str
    path: str
    fstype: str
    source: str
    options: str
    super_options: str
    """Of the file system, not of this mount of it: an overlay's layers, the controllers of a cgroup tree."""


def unescape(word: str) -> str:
    """A path of the mount table without the kernel's escapes (`\\040`)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), word)


def parse_mountinfo(text: str) -> list[Mount]:
    """The table, in the kernel's order: a later mount on the same path covers an earlier one."""
    table = []
    for line in filter(None, text.split("\n")):
        left, _, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ", 2)
        table.append(
            Mount(
                mount_id=int(before[0]),
                device=before[2],
                root=unescape(before[3]),
                path=unescape(before[4]),
                fstype=after[0],
                source=unescape(after[1]),
                options=before[5],
                super_options=unescape(after[2]),
            )
        )
    return table


def mounts(pid: int | str = "self") -> list[Mount]:
    """What is mounted in the mount namespace of a process."""
    return parse_mountinfo(os.fsdecode(Path(f"/proc/{pid}/mountinfo").read_bytes()))


def mount_at(path: Path, table: list[Mount] | None = None) -> Mount | None:
    """What is mounted at a path and not covered by another mount; None when nothing is."""
    table = mounts() if table is None else table
    return next((mount for mount in reversed(table) if mount.path == str(path)), None)


def mount_of(path: str, table: list[Mount]) -> Mount | None:
    """What a path is on: the mount at the nearest folder above it, or at itself."""
    while True:
        mount = mount_at(Path(path), table)
        if mount or path == "/":
            return mount
        path = os.path.dirname(path)


def mounts_below(folder: str, table: list[Mount]) -> list[Mount]:
    """The mounts strictly below a folder that are reachable (not covered by another), outermost first."""
    prefix = folder.rstrip("/") + "/"
    visible: dict[str, Mount] = {}
    for mount in table:
        for path in [p for p in visible if p == mount.path or p.startswith(mount.path.rstrip("/") + "/")]:
            del visible[path]
        if mount.path.startswith(prefix) and mount.path != prefix:
            visible[mount.path] = mount
    return sorted(visible.values(), key=lambda mount: mount.path)
