"""A long set-up is paid once instead of n times: an environment, a database, a server that has read it.

    sudo .venv/bin/python docs/examples/explore_setup.py

Eight settings of the server are compared. By forks, the server is set up once and each setting is tried in a
fork, in which it runs on with what it has in memory. From scratch, each setting needs the whole set-up again.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import waypoint
from waypoint.explore import explore

FILL = """\
import random
import sqlite3

random.seed(1)
database = sqlite3.connect("sales.db")
database.execute("CREATE TABLE sale (place INTEGER, day INTEGER, cents INTEGER)")
rows = ((random.randrange(500), random.randrange(3650), random.randrange(10000)) for _ in range(400_000))
database.executemany("INSERT INTO sale VALUES (?, ?, ?)", rows)
database.execute("CREATE INDEX by_place ON sale (place, day)")
database.commit()
"""
SERVER = '''\
"""Answers questions about sales from memory. `tune N`: forecasts look back over N days. `error`: how bad they
are."""

import collections
import socketserver
import sqlite3

sales = collections.defaultdict(int)
for place, day, cents in sqlite3.connect("sales.db").execute("SELECT place, day, cents FROM sale"):
    sales[place, day // 30] += cents
averages = {}
for place in range(500):  # the warm-up: every answer that may be asked for
    for month in range(121):
        averages[place, month] = sum(sales.get((place, month - back), 0) for back in range(24)) / 24
window = [1]


def error():
    wrong = 0
    for place in range(500):
        for month in range(60, 120):
            seen = [sales.get((place, month - back - 1), 0) for back in range(window[0])]
            wrong += abs(sum(seen) / len(seen) - sales.get((place, month), 0))
    return wrong / 500 / 60


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        verb, *words = self.rfile.readline().decode().split()
        if verb == "tune":
            window[0] = int(words[0])
        self.wfile.write(f"{error() if verb == 'error' else 'ok'}\\n".encode())


with socketserver.UnixStreamServer("server.sock", Handler) as server:
    server.serve_forever()
'''
ASK = """\
import socket
import sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect("server.sock")
    server.sendall((" ".join(sys.argv[1:]) + "\\n").encode())
    print(server.makefile().readline().strip())
"""
SET_UP = (
    "python3 -m venv env && env/bin/python fill.py"
    " && { env/bin/python server.py > log 2>&1 & echo $! > pid; }"
    " && until env/bin/python ask.py hello > /dev/null 2>&1; do sleep 0.1; done"
)
SETTINGS = (1, 2, 3, 6, 9, 12, 18, 24)


def tune(window: int) -> str:
    """A candidate: the server looks back over so many months."""
    return f"env/bin/python ask.py tune {window}"


EVALUATE = "echo -$(env/bin/python ask.py error) >&3"


class Side(NamedTuple):
    """One of the two ways, measured."""

    way: str
    trials: int
    set_ups: int
    set_up_seconds: float
    seconds: float
    best: int


def by_forks(folder: Path) -> Side:
    """One set-up, and a fork for each setting."""
    began = time.monotonic()
    with waypoint.session(temporary=True) as session:
        session.copy_in(folder, "/srv")
        session.run(f"cd /srv/{folder.name} && {SET_UP}").check()
        ready = time.monotonic() - began
        name = f"set-up-{time.time_ns():x}"
        found = explore(
            session.checkpoint("set up"),
            [tune(window) for window in SETTINGS],
            EVALUATE,
            name=name,
            runners_up=0,
        )
        assert found.winner, found
        side = Side(
            "forks of one set-up",
            len(found.nodes),
            1,
            ready,
            time.monotonic() - began,
            SETTINGS[found.winner.index],
        )
        for other in waypoint.sessions():
            if other.name.startswith(f"{name}-"):
                other.remove()
    return side


def from_scratch(folder: Path) -> Side:
    """A set-up for each setting, as many side by side, in new folders of this machine."""
    began = time.monotonic()
    with ThreadPoolExecutor(2) as workers:
        scores = list(workers.map(lambda window: _one(folder, window), SETTINGS))
    seconds = time.monotonic() - began
    best = SETTINGS[scores.index(max(scores))]
    return Side("each from scratch", len(scores), len(scores), 2 * seconds / len(scores), seconds, best)


def _one(source: Path, window: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cp", "-r", f"{source}/.", folder], check=True, timeout=60)
        evaluate = EVALUATE.replace(" >&3", "")
        script = f"{SET_UP} && {tune(window)} >/dev/null && {evaluate}; kill $(cat pid)"
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=600, check=True
        )
        return float(done.stdout.split()[-1])


def table(sides: Sequence[Side]) -> str:
    """Both, side by side, as Markdown."""
    rows = [
        f"| {side.way} | {side.trials} | {side.set_ups} | {side.set_up_seconds:.1f} s"
        f" | {side.seconds:.1f} s | {side.best} months |"
        for side in sides
    ]
    head = ["| | trials | set-ups | a set-up | time | best |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def measure() -> list[Side]:
    """Both ways, in one run."""
    with tempfile.TemporaryDirectory() as below:
        folder = Path(below) / "forecast"
        folder.mkdir()
        for name, text in (("fill.py", FILL), ("server.py", SERVER), ("ask.py", ASK)):
            (folder / name).write_text(text)
        return [by_forks(folder), from_scratch(folder)]


if __name__ == "__main__":
    print(table(measure()))
