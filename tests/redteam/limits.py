"""What one box may take from the others and from the machine, without any option."""

from __future__ import annotations

import statistics
import time

from tests.redteam.attacks import Scene, attack, hostile, printed
from tests.waiting import until

import waypoint

_LINE = "A session without options cannot take the machine from the others"

FORK_BOMB = r"""
import os, time
os.write(1, b"ready\n")
while True:
    try:
        os.fork()
    except OSError:
        os.write(1, b"refused\n")
        time.sleep(1000)
"""

MEMORY_HOG = r"""
import mmap, os
os.write(1, b"ready\n")
kept = []
for _ in range(64):
    kept.append(mmap.mmap(-1, 32 << 20))
    for at in range(0, 32 << 20, 4096): kept[-1][at] = 1
    os.write(1, b"32 MiB\n")
os.write(1, b"all of it\n")
"""


def _latency(session: waypoint.Session, times: int = 5) -> float:
    """How long a command of an honest session takes, in ms."""

    def once() -> float:
        started = time.perf_counter()
        session.run("true").check()
        return (time.perf_counter() - started) * 1000

    return statistics.median(once() for _ in range(times))


@attack("a fork bomb", _LINE, quick=True)
def fork_bomb(scene: Scene) -> str:
    session, honest = scene.limited("hostile"), scene.session("honest")
    limit = session.info.pids_limit
    assert limit, "there is no limit"
    fork = session
    for name, copy in scene.lives(session):
        assert copy.info.pids_limit == limit, f"{name}: the limit is {copy.info.pids_limit}"
        fork = copy
    hostile(fork, FORK_BOMB)
    until(lambda: b"refused" in printed(fork))
    taken = _latency(honest)
    point = fork.checkpoint("full of processes")
    assert point.info.processes <= limit
    assert fork.info.pids_limit == limit
    return (
        f"{point.info.processes} processes of {limit}, saved all the same; `true` beside it in {taken:.0f} ms"
    )


@attack("a memory hog", _LINE, quick=True)
def memory_hog(scene: Scene) -> str:
    session, honest = scene.limited("hostile"), scene.session("honest")
    limit = session.info.memory_limit_bytes
    assert limit, "there is no limit"
    for name, copy in scene.lives(session):
        assert copy.info.memory_limit_bytes == limit, f"{name}: {copy.info.memory_limit_bytes}"
        hostile(copy, MEMORY_HOG)
        until(lambda: not int(copy.run("pgrep -fc attack.py").output))  # noqa: B023 - called at once
        output = printed(copy)
        assert b"all of it" not in output, f"{name}: it got all of it"
        assert output.count(b"32 MiB") * (32 << 20) <= limit
        assert copy.run("echo alive").output == "alive\n"
    return f"ended at {limit >> 20} MiB; `true` beside it in {_latency(honest):.0f} ms"
