"""A repository with failing tests is repaired by a search over forks, and the same trials are made from
scratch.

    sudo .venv/bin/python docs/examples/explore_repair.py

The repository has three bugs. A candidate changes one place of it; nothing knows which change is right. The
search keeps the best of each generation and goes on from its live fork. From scratch, the same trial is a
clone, a virtual environment, all changes on the way to it, and the tests: what retrying an agent costs.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import waypoint
from waypoint.explore import Budget, Result, explore

MODULE = '''\
"""Half-open intervals of whole numbers."""


def merge(intervals):
    """The same numbers in as few intervals as possible, sorted."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def gaps(intervals):
    """What lies between them."""
    merged = merge(intervals)
    return [(left[1], right[0]) for left, right in zip(merged, merged[1:])]


def total(intervals):
    """How many numbers they hold."""
    return sum(end - start for start, end in merge(intervals)) + 1
'''
TESTS = """\
import unittest

from intervals import gaps, merge, total


class Intervals(unittest.TestCase):
    def test_nothing(self):
        self.assertEqual(merge([]), [])

    def test_one(self):
        self.assertEqual(merge([(1, 4)]), [(1, 4)])

    def test_apart(self):
        self.assertEqual(merge([(5, 7), (1, 3)]), [(1, 3), (5, 7)])

    def test_overlapping(self):
        self.assertEqual(merge([(1, 4), (3, 6)]), [(1, 6)])

    def test_touching(self):
        self.assertEqual(merge([(1, 3), (3, 6)]), [(1, 6)])

    def test_one_in_another(self):
        self.assertEqual(merge([(1, 9), (3, 4)]), [(1, 9)])

    def test_gaps(self):
        self.assertEqual(gaps([(1, 2), (4, 6)]), [(2, 4)])

    def test_no_gap_where_they_touch(self):
        self.assertEqual(gaps([(1, 2), (2, 6)]), [])

    def test_total_of_nothing(self):
        self.assertEqual(total([]), 0)

    def test_total_counts_each_once(self):
        self.assertEqual(total([(1, 9), (3, 4)]), 8)


if __name__ == "__main__":
    unittest.main()
"""
SCORE = """\
import sys
import unittest

import test_intervals

result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromModule(test_intervals).run(result)
print(1 - (len(result.failures) + len(result.errors)) / result.testsRun)
"""
SET_UP = "git clone -q /srv/origin app && cd app && python3 -m venv env"


def change(old: str, new: str) -> str:
    """A command that changes one place, and fails where it is not there."""
    return (
        f'python3 -c \'p="intervals.py"; s=open(p).read(); assert "{old}" in s; '
        f'open(p,"w").write(s.replace("{old}", "{new}", 1))\''
    )


CHANGES = [
    change(old, new)
    for old, new in (
        ("sorted(intervals)", "intervals"),
        ("start < merged", "start <= merged"),
        ("start < merged", "start > merged"),
        ("[0], end)", "[0], max(end, merged[-1][1]))"),
        ("[0], end)", "[1], end)"),
        ("end - start", "start - end"),
        (")) + 1", "))"),
        ("merged[1:]", "merged[2:]"),
    )
]
EVALUATE = "env/bin/python score.py >&3"


class Side(NamedTuple):
    """One of the two ways, measured."""

    way: str
    trials: int
    set_ups: int
    seconds: float
    best: float


def origin(folder: Path) -> None:
    """The repository."""
    folder.mkdir(parents=True)
    for name, text in (("intervals.py", MODULE), ("test_intervals.py", TESTS), ("score.py", SCORE)):
        (folder / name).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "intervals"]):
        subprocess.run([*git, *words], check=True, timeout=60)


def by_forks(folder: Path, set_up: str = SET_UP) -> tuple[Side, Result]:
    """The search. Its first point is taken after the set-up."""
    with waypoint.session(temporary=True) as session:
        session.copy_in(folder, "/srv")
        began = time.monotonic()
        session.run(f"cd /srv && {set_up}").check()
        found = explore(
            session.checkpoint("set up"),
            CHANGES,
            EVALUATE,
            strategy="beam",
            budget=Budget(depth=4, nodes=100),
            goal=1.0,
            name=f"repair-{time.time_ns():x}",
            runners_up=0,
        )
        side = Side("search over forks", len(found.nodes), 1, time.monotonic() - began, _best(found))
        for other in waypoint.sessions():
            if other.name.startswith(f"{found.name}-"):
                other.remove()
    return side, found


def from_scratch(folder: Path, found: Result, set_up: str = SET_UP) -> Side:
    """The same trials, as many side by side, each in a new folder of this machine."""
    began = time.monotonic()
    with ThreadPoolExecutor(2) as workers:
        scores = list(workers.map(lambda path: _one(folder, path, set_up), _commands(found)))
    return Side("each from scratch", len(scores), len(scores), time.monotonic() - began, max(scores))


def _commands(found: Result) -> Iterator[list[str]]:
    """The changes that lead to each trial, its own last."""
    for node in found.nodes:
        line = list(reversed(found.tree.line(node.id)))[1:]
        yield [CHANGES[one.index] for one in line]


def _one(origin: Path, commands: Sequence[str], set_up: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        here = set_up.replace("/srv/origin", str(origin))
        script = " && ".join([here, *commands, EVALUATE.replace(">&3", "")])
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=600, check=False
        )
        return float(done.stdout) if done.returncode == 0 else 0.0


def _best(found: Result) -> float:
    return found.winner.score or 0.0 if found.winner else 0.0


def table(sides: Sequence[Side]) -> str:
    """Both, side by side, as Markdown."""
    rows = [
        f"| {side.way} | {side.trials} | {side.set_ups} | {side.seconds:.1f} s | {side.best:.0%} |"
        for side in sides
    ]
    return "\n".join(["| | trials | set-ups | time | tests passed |", "|---|---|---|---|---|", *rows])


def measure() -> list[Side]:
    """Both ways, in one run."""
    with tempfile.TemporaryDirectory() as below:
        folder = Path(below) / "origin"
        origin(folder)
        forks, found = by_forks(folder)
        return [forks, from_scratch(folder, found)]


if __name__ == "__main__":
    print(table(measure()))
