"""Many repetitions of checkpoint, change and restore. What the daemon holds must not grow with them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import waypoint
from waypoint.home import Home
from waypoint.kernel import cgroups, mounts

KEPT_POINTS = 4
_MOST_BYTES_PER_CYCLE = 2048
"""How fast the memory of the daemon and the pool may seem to grow: allocators and btrfs round up. A leak of
one point or one box a cycle is a hundred times as much."""


@dataclass(frozen=True)
class Held:
    """What the daemon and the machine hold for one home."""

    descriptors: int
    threads: int
    mounts: int
    links: int
    groups: int
    run_entries: int
    folders: int
    memory_bytes: int
    pool_bytes: int


COUNTS = ("descriptors", "threads", "mounts", "links", "groups", "run_entries", "folders")


def look(home: Home, client: waypoint.Client) -> Held:
    status = client.daemon.status()
    table = mounts.mounts()
    prefix = f"waypoint-{home.tag}-"
    return Held(
        descriptors=len(os.listdir(f"/proc/{status.pid}/fd")),
        threads=len(os.listdir(f"/proc/{status.pid}/task")),
        mounts=len([mount for mount in table if mount.path.startswith((str(home.path), str(home.run)))]),
        links=len([name for name in os.listdir("/sys/class/net") if home.tag[:4] in name]),
        groups=sum(
            name.startswith(prefix) for tree in cgroups.hierarchies() for name in os.listdir(tree.path)
        ),
        run_entries=len(os.listdir(home.run)),
        folders=sum(len(os.listdir(folder)) for folder in (home.sessions, home.checkpoints, home.staging)),
        memory_bytes=status.rss_bytes,
        pool_bytes=status.pool.used_bytes,
    )


@dataclass
class Outcome:
    """What was held after each part of the repetitions."""

    cycles: int = 0
    held: dict[int, Held] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


def run(folder: Path, cycles: int, wait: Callable[[], None]) -> Outcome:
    """`wait` lets the daemon finish what it does in the background."""
    outcome, home = Outcome(), Home(folder)
    marks = {cycles * part // 10 for part in range(1, 11)}
    with contextlib.closing(waypoint.Client(folder)) as client:
        session = client.new("cycles", options=waypoint.BoxOptions(net="none"))
        session.run("mkdir -p /srv; sleep 100000 &").check()
        for number in range(1, cycles + 1):
            session.run(
                f"V={number}; head -c 65536 /dev/urandom >/srv/data; echo {number} >/srv/value"
            ).check()
            point = session.checkpoint()
            session.run("V=lost; echo lost >/srv/value; rm /srv/data").check()
            session.restore(point, safety=False)
            told = (
                session.run("echo $V $(cat /srv/value) $(stat -c %s /srv/data); jobs | wc -l").check().output
            )
            if told.split() != [str(number), str(number), "65536", "1"]:
                outcome.violations.append(f"cycle {number}: {told!r}")
            if number % KEPT_POINTS == 0:
                session.forget(keep_last=KEPT_POINTS, keep_named=False)
            outcome.cycles = number
            if number in marks:
                session.forget(keep_last=KEPT_POINTS, keep_named=False)
                client.prune()
                wait()
                outcome.held[number] = look(home, client)
        session.remove()
    outcome.violations += _growth(outcome.held)
    return outcome


def _growth(held: dict[int, Held]) -> list[str]:
    """What grew in the second half: before that caches fill."""
    marks = sorted(held)
    if len(marks) < 4:
        return []
    first, last = held[marks[len(marks) // 2]], held[marks[-1]]
    grown = [
        f"{name} grew from {getattr(first, name)} to {getattr(last, name)}"
        for name in COUNTS
        if getattr(last, name) > getattr(first, name)
    ]
    between = marks[-1] - marks[len(marks) // 2]
    for name in ("memory_bytes", "pool_bytes"):
        per_cycle = (getattr(last, name) - getattr(first, name)) / between
        if per_cycle > _MOST_BYTES_PER_CYCLE:
            grown.append(f"{name} grew by {per_cycle:.0f} a cycle")
    return grown
