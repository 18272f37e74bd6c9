"""What a box may use: what its session's options say, else as much as leaves something to the others.

Memory, processors and processes are limited by control groups (kernel/cgroups.py), what is written to the
pool by the pool (kernel/pool/quota.py), open files by the limit that each process has inherited: the kernel
has none for a group of processes.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waypoint.kernel import cgroups

if TYPE_CHECKING:
    from waypoint.model import BoxOptions

_FEWEST_FILES = 4096
_FILE_SHARE = 1 / 16
"""Of the files that all processes of the machine may have open: for one process."""
_DISK_SHARE = 3 / 4


@dataclass(frozen=True)
class BoxLimits:
    """None means no limit."""

    groups: cgroups.Limits
    open_files: tuple[int, int]
    """What a process may have open, and to what it may raise that."""
    disk_bytes: int | None = None


def usual_limits(
    *,
    pool_bytes: int,
    inherited: tuple[int, int] | None = None,
    memory_bytes: int | None = None,
    pids: int | None = None,
    open_files: int | None = None,
    disk_bytes: int | None = None,
) -> BoxLimits:
    """The limits of a session that was given none, on this machine. What is given is used instead; 0 means no
    limit. `pool_bytes`: the size of the pool, 0 if it cannot be shared out. `inherited`: what a process may
    have open without a limit of ours."""
    soft, hard = inherited or resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files is None:
        open_files = max(_FEWEST_FILES, int(_machine_files() * _FILE_SHARE))
    hard = min(hard, open_files or hard)
    if disk_bytes is None:
        disk_bytes = int(pool_bytes * _DISK_SHARE)
    return BoxLimits(
        groups=cgroups.usual_limits(memory_bytes, pids),
        open_files=(min(soft, hard), hard),
        disk_bytes=disk_bytes or None if pool_bytes else None,
    )


def limits_of(options: BoxOptions, usual: BoxLimits) -> BoxLimits:
    """Those of a session. Where its options ask for more open files than this machine gives it, it gets
    those."""
    files = min(options.open_files, usual.open_files[1]) if options.open_files else None
    return BoxLimits(
        groups=cgroups.Limits(
            memory_bytes=options.memory_bytes or usual.groups.memory_bytes,
            cpus=options.cpus,
            pids=options.pids or usual.groups.pids,
        ),
        open_files=(files, files) if files else usual.open_files,
        disk_bytes=options.disk_bytes or usual.disk_bytes,
    )


def _machine_files() -> int:
    return int(Path("/proc/sys/fs/file-max").read_text())
