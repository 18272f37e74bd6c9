"""When the processes of a box have come to rest."""

from __future__ import annotations

import os
import time

from waypoint.kernel import processes

_SETTLE_SECONDS = 20.0


def tasks(host_pid: int) -> list[int]:
    """The threads of a process; none of one that is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{host_pid}/task")]
    except OSError:
        return []


def is_settled(keeper: int) -> bool:
    """Whether no task of a box runs at this moment."""
    return not any(
        _state(task) in "RD" for host_pid in processes.host_pids(keeper) for task in tasks(host_pid)
    )


def settle(keeper: int) -> None:
    """Waits until no task of a box runs. (A program that never rests is looked at as it is.)"""
    deadline = time.monotonic() + _SETTLE_SECONDS
    quiet = 0
    while quiet < 2 and time.monotonic() < deadline:
        quiet = quiet + 1 if is_settled(keeper) else 0
        time.sleep(0.005)


def _state(task: int) -> str:
    try:
        with open(f"/proc/{task}/stat", "rb") as file:
            return chr(file.read().rpartition(b")")[2].split()[0][0])
    except OSError:
        return "X"
