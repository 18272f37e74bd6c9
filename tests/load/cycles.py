"""Many repetitions of checkpoint, change and restore. What the daemon holds must not grow with them."""

from __future__ import annotations

import contextlib
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import waypoint
from waypoint.home import Home
from waypoint.kernel import cgroups, mounts

KEPT_POINTS = 4
_FORGET_EVERY = 20
"""cycles; to forget takes longer than a cycle"""
PARTS = 20
"""After each of so many parts the daemon and the machine are looked at."""
_CALM_SECONDS = 3.0
_SETTLE_SECONDS = 60.0
_LOOK_SECONDS = 0.5
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


def run(
    folder: Path, cycles: int, *, sessions: int = 4, parts: int = PARTS, seconds: float = math.inf
) -> Outcome:
    """So many cycles, divided among a few sessions that go on side by side. After so many seconds the part
    that has begun is the last one."""
    outcome, home, deadline = Outcome(), Home(folder), time.monotonic() + seconds
    with contextlib.closing(waypoint.Client(folder)) as client, contextlib.ExitStack() as stack:
        lines = [_Line(folder, f"cycles-{number}") for number in range(sessions)]
        for line in lines:
            stack.callback(line.close)
        # A thread for each: a client has a connection for each thread that uses it, and the daemon a thread
        # for each connection.
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in lines]
        for part in range(1, parts + 1):
            goal = cycles * part // parts // sessions
            working = [
                thread.submit(line.go_on_to, goal) for thread, line in zip(threads, lines, strict=True)
            ]
            for work in working:
                outcome.violations += work.result()
            outcome.cycles = goal * sessions
            client.prune()
            outcome.held[outcome.cycles] = settled(home, client)
            print(f"cycles: {outcome.cycles}, {outcome.held[outcome.cycles]}", flush=True)
            if time.monotonic() > deadline:
                break
    outcome.violations += _growth(outcome.held)
    return outcome


class _Line:
    """The cycles of one session."""

    def __init__(self, folder: Path, name: str) -> None:
        self._client = waypoint.Client(folder)
        self._session = self._client.new(name, options=waypoint.BoxOptions(net="none"))
        self._session.run("mkdir -p /srv; sleep 100000 &").check()
        self._done = 0

    def close(self) -> None:
        self._session.remove()
        self._client.close()

    def go_on_to(self, goal: int) -> list[str]:
        """Cycles up to this number; what was wrong in them."""
        violations = []
        while self._done < goal:
            self._done += 1
            told = self._cycle(self._done)
            if told != [str(self._done), str(self._done), "65536", "1"]:
                violations.append(f"{self._session.name}, cycle {self._done}: {told}")
            if self._done % _FORGET_EVERY == 0 or self._done == goal:
                self._session.forget(keep_last=KEPT_POINTS, keep_named=False)
        return violations

    def _cycle(self, number: int) -> list[str]:
        run = self._session.run
        run(f"V={number}; head -c 65536 /dev/urandom >/srv/data; echo {number} >/srv/value").check()
        point = self._session.checkpoint()
        run("V=lost; echo lost >/srv/value; rm /srv/data").check()
        self._session.restore(point, safety=False)
        told = run("echo $V $(cat /srv/value) $(stat -c %s /srv/data); jobs | wc -l").check().output
        return told.split()


def settled(home: Home, client: waypoint.Client) -> Held:
    """What is held when the daemon has finished what it does in the background: nothing has changed for a
    moment."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    held, since = look(home, client), time.monotonic()
    while time.monotonic() < min(since + _CALM_SECONDS, deadline):
        time.sleep(_LOOK_SECONDS)
        now = look(home, client)
        if any(getattr(now, name) != getattr(held, name) for name in COUNTS):
            since = time.monotonic()
        held = now
    return held


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
