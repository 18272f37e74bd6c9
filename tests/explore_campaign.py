"""A search that is killed again and again ends with the tree of one that was not; and the examples, measured.

    python -m tests.explore_campaign --trials 100 --kills 5 --write       (`make explore`)

Both searches start from the same point and try the same. One runs through. The process of the other is killed
with SIGKILL at random moments, and started again each time; a daemon and the forks of trials that were under
way stay behind each time. `--write` puts the result into docs/explore.md.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import waypoint
from waypoint.explore import Budget, Result, explore
from waypoint.explore.journal import read
from waypoint.explore.search import journal_path
from waypoint.explore.tree import Told

PAGE = Path(__file__).parents[1] / "docs" / "explore.md"
MOVES = (
    "echo $(( ($(cat n) * 2) % 1009 )) > n",
    "echo $(( ($(cat n) + 7) % 1009 )) > n",
    "echo $(( ($(cat n) * 3 + 1) % 1009 )) > n; test $(( $(cat n) % 5 )) != 0",
)
"""Candidates at each place: they go back and forth, meet each other, and some fail."""
SCORE = "cat n >&3"


class Killed(NamedTuple):
    """What a search that was killed has come to, beside one that was not."""

    trials: int
    kills: int
    different: tuple[str, ...]
    """Nodes that are not what they are in the search that ran through."""
    seconds: float
    seconds_killed: float
    lost: int
    """Trials that were under way when the process was killed, and were done again."""
    left: tuple[str, ...]
    """Sessions that should not be there at the end."""


def search(point: str, name: str, trials: int) -> Result:
    """The search, from a point of the session "start"."""
    return explore(
        f"start:{point}",
        list(MOVES),
        SCORE,
        strategy="mcts",
        budget=Budget(nodes=trials, depth=8),
        name=name,
        timeout=60,
    )


def run(trials: int, kills: int, seed: int) -> Killed:
    """Both searches, in the home of this process."""
    chance = random.Random(seed)
    with waypoint.session("start") as start:
        start.run("mkdir -p /srv/search && cd /srv/search && echo 1 > n").check()
        point = start.checkpoint("the start").id
    began = time.monotonic()
    whole = search(point, "whole", trials)
    seconds = time.monotonic() - began
    journal = journal_path("killed")
    began = time.monotonic()
    # Each kill comes a random moment after a number of trials; these are spread over the whole search.
    for number in range(kills):
        _until_told(journal, point, trials, (number + chance.random()) * trials / (kills + 1), chance)
    killed = search(point, "killed", trials)
    asked = sum(line.count(b'"id"') for line in journal.read_bytes().splitlines() if b'"asked"' in line)
    assert asked == trials, "no trial was given out twice"
    kept = {node.outcome.session for found in (whole, killed) for node in found.nodes if node.outcome}
    names = [session.name for session in waypoint.sessions()]
    return Killed(
        trials,
        kills,
        tuple(
            f"{left} {whole[left['id']].outcome} / {right} {killed[right['id']].outcome}"
            for left, right in zip(whole.tree.shape(), killed.tree.shape(), strict=True)
            if left != right
        ),
        seconds,
        time.monotonic() - began,
        _lost(journal),
        tuple(name for name in names if name != "start" and name not in kept),
    )


def _until_told(journal: Path, point: str, trials: int, told: float, chance: random.Random) -> None:
    """A process that searches until so many trials were told of, and is killed a moment later."""
    words = [sys.executable, "-m", "tests.explore_campaign", "--search", point, "--trials", str(trials)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60 + 5 * trials
    while process.poll() is None and time.monotonic() < deadline:
        if journal.exists() and sum(isinstance(event, Told) for event in read(journal)) >= told:
            break
        time.sleep(0.01)
    time.sleep(chance.uniform(0, 0.5))
    assert process.poll() is None, "it has ended before it was killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)


def _lost(journal: Path) -> int:
    """How many trials an opened search has found under way."""
    lost, open_trials = 0, set[int]()
    for event in read(journal):
        match type(event).__name__:
            case "Opened":
                lost += len(open_trials)
            case "Given":
                open_trials |= {trial.id for trial in event.trials}  # type: ignore[union-attr]
            case "Told":
                open_trials.discard(event.id)  # type: ignore[union-attr]
    return lost


def sentence(found: Killed) -> str:
    """The result, for the page."""
    tree = "NOT the same tree" if found.different else "the same tree"
    return (
        f"{found.trials} trials of `mcts`, killed {found.kills} times: {tree};"
        f" {found.lost} trials were under way at a kill and were done again;"
        f" {found.seconds_killed:.0f} s with the kills, {found.seconds:.0f} s without;"
        f" {len(found.left)} sessions left over."
    )


def example(name: str) -> str:
    """The table of an example of docs/examples, measured now."""
    path = PAGE.parent / "examples" / f"explore_{name}.py"
    done = subprocess.run([sys.executable, path], stdout=subprocess.PIPE, text=True, timeout=3600, check=True)
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("WAYPOINT_SEED", "1")))
    parser.add_argument("--only", choices=("killed", "repair", "setup"))
    parser.add_argument("--write", action="store_true", help="into docs/explore.md")
    parser.add_argument("--search", metavar="POINT", help="the search that is killed")
    arguments = parser.parse_args()
    if arguments.search:
        search(arguments.search, "killed", arguments.trials)
        return 0
    failed = False
    with tempfile.TemporaryDirectory(prefix="waypoint-explore-", dir="/var/tmp") as home:
        os.environ["WAYPOINT_HOME"] = home
        try:
            for name in ("killed", "setup", "repair"):
                if arguments.only in (None, name):
                    if name == "killed":
                        found = run(arguments.trials, arguments.kills, arguments.seed)
                        failed, text = bool(found.different or found.left), sentence(found)
                    else:
                        text = example(name)
                    print(text, flush=True)
                    if arguments.write:
                        _write(name, text)
        finally:
            uninstall = [sys.executable, "-m", "waypoint", "uninstall", "--yes"]
            subprocess.run(uninstall, check=False, stdout=subprocess.DEVNULL, timeout=300)
    return int(failed)


def _write(name: str, text: str) -> None:
    marked = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end of {name} -->)", re.DOTALL)
    PAGE.write_text(marked.sub(lambda match: match[1] + text + match[2], PAGE.read_text()))


if __name__ == "__main__":
    raise SystemExit(main())
