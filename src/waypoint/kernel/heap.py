"""The C library's heap, set for a process that runs for months and has many threads.

glibc gives threads heaps of their own, up to eight for each processor, so that they need not wait for each
other. Python's lock lets one thread allocate at a time anyway. What such a heap once held it keeps: it
returns memory only from its end, and after one large read not even that, because glibc then raises the size
from which it returns anything, to 64 MB for each heap.
"""

from __future__ import annotations

from waypoint.kernel.syscalls import libc

# mallopt(3)
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

_KEPT_BYTES = 1 << 20
"""Buffers from this size on are returned as soon as they are free."""


def use_one_heap() -> None:
    """One heap for all threads of this process, from which free memory is returned. To be called before the
    first thread starts. Other C libraries than glibc have no such heaps and no mallopt(3)."""
    mallopt = getattr(libc, "mallopt", None)
    if mallopt:
        for parameter, value in (
            (M_ARENA_MAX, 1),
            (M_MMAP_THRESHOLD, _KEPT_BYTES),
            (M_TRIM_THRESHOLD, _KEPT_BYTES),
        ):
            mallopt(parameter, value)
