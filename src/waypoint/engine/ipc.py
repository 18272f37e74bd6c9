"""System V shared memory that was removed (IPC_RMID) while processes use it: it goes with its last user.

CRIU brings such a segment back as one that stays: the mark is not in its images. It is put on again while the
restored tree is held, when every process has the segment attached.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from waypoint.kernel.syscalls import CLONE_NEWIPC, remove_shared_memory, setns

_SHM_DEST = 0o1000


def _enter(host_pid: int) -> None:
    """Moves the calling thread, and no other, into the IPC namespace of a process."""
    namespace = os.open(f"/proc/{host_pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(namespace, CLONE_NEWIPC)
    finally:
        os.close(namespace)


def removed_segments(host_pid: int) -> tuple[int, ...]:
    """In the namespace of a process: those that have no key any more. In a thread of its own."""
    _enter(host_pid)
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return tuple(int(row[1]) for row in rows if int(row[2], 8) & _SHM_DEST)


def remove_segments(host_pid: int, segments: Sequence[int]) -> None:
    """Removes them again. In a thread of its own."""
    _enter(host_pid)
    for segment in segments:
        remove_shared_memory(segment)
