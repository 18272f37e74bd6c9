"""What the machine has left, and what a box takes of its memory: read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def memory() -> tuple[int, int]:
    """The machine's memory, and how much of it programs can still have."""
    sizes = {}
    for line in (_PROC / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0]) * 1024
    return sizes["MemTotal"], sizes.get("MemAvailable", sizes["MemFree"])


def memory_of(pid: int) -> int:
    """What a process and all below it have of their own. Those that have just ended count nothing."""
    return sum(_own_memory(one) for one in _tree(pid))


def _tree(pid: int) -> Iterator[int]:
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        try:
            for task in os.listdir(_PROC / str(one) / "task"):
                children = (_PROC / str(one) / "task" / task / "children").read_text()
                waiting += [int(child) for child in children.split()]
        except OSError:
            continue


def _own_memory(pid: int) -> int:
    try:
        resident, shared = (_PROC / str(pid) / "statm").read_text().split()[1:3]
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES
