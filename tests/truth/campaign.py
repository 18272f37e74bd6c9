"""`make truth`: every written story, then random ones, and what was told of them in one table.

    python -m tests.truth.campaign [--stories N] [--seed N] [--only WORDS] [--workers N] [--minutes N]
        [--write]

There are so many stories in all, and all of them are played, unless `--minutes` ends it earlier. A random
one is repeated by its number: `--seed 17 --stories 1 --only random`.
Workers play stories side by side, each in a home of its own; the first one also falsifies answers.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.truth.base import make_base
from tests.truth.judge.ledger import Fault, Ledger, Sort
from tests.truth.mutations import Mutator
from tests.truth.player import Player
from tests.truth.stories import WRITTEN
from tests.truth.stories.generated import random_story
from tests.truth.story import Story

_REPOSITORY = Path(__file__).parents[2]
_PAGE = _REPOSITORY / "docs/history.md"
_BEGIN, _END = "<!-- truth -->", "<!-- /truth -->"
_SORTS: tuple[Sort, ...] = ("wrong", "missing", "misleading")
_SHOWN_FAULTS = 200


def main() -> int:
    """Exit status 1 if anything told was not true."""
    parser = argparse.ArgumentParser(prog="truth")
    parser.add_argument("--stories", type=int, default=120)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("WAYPOINT_SEED", "1")))
    parser.add_argument("--only", default="", help="stories whose names contain one of these, separated by |")
    parser.add_argument("--minutes", type=float, default=0.0, help="no story begins later; 0: all are played")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="the table goes into docs/history.md")
    arguments = parser.parse_args()
    began, workers, result = time.monotonic(), arguments.workers, Result()
    stories = _stories(arguments)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        end = began + arguments.minutes * 60 if arguments.minutes else math.inf
        parts = [(stories[number::workers], number == 0, end) for number in range(workers)]
        for part in pool.imap_unordered(_play, parts, chunksize=1):
            result.add(part)
        # Workers that are signalled while they wait for each other's lock may never end.
        pool.close()
        pool.join()
    result.minutes = (time.monotonic() - began) / 60
    print(result.report())
    if arguments.write:
        _write(result.table())
    return 1 if result.ledger.faults or result.unnoticed or result.failed else 0


def _stories(arguments: argparse.Namespace) -> list[Story]:
    words = arguments.only.split("|")
    stories = [story for story in WRITTEN if any(word in story.name for word in words)]
    if any(word in "random" for word in words):
        stories += [random_story(arguments.seed + n) for n in range(arguments.stories - len(stories))]
    return stories


def _play(part: tuple[list[Story], bool, float]) -> Result:
    """Plays some of the stories in a home of its own."""
    stories, falsify, end = part
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a pool that is interrupted ends its workers so
    with _own_home() as base:
        campaign = Campaign(base, falsify=falsify)
        for story in stories:
            if time.monotonic() < end:
                campaign.play(story)
    return campaign.result


@contextlib.contextmanager
def _own_home() -> Iterator[Path]:
    """A home for the campaign, and the root file system of its sessions; both are removed."""
    folder = Path(tempfile.mkdtemp(prefix="waypoint-truth-", dir="/var/tmp"))
    settings = {"WAYPOINT_HOME": str(folder / "home"), "PYTHONPATH": str(_REPOSITORY / "src")}
    os.environ.update(settings, WAYPOINT_SPARES="off", WAYPOINT_PROVE="off")
    os.environ.setdefault("WAYPOINT_ENGINE", str(_REPOSITORY / ".cache/engine"))
    os.environ.pop("WAYPOINT_SESSION", None)
    base = folder / "base"
    try:
        base.mkdir()
        make_base(base)
        yield base
    finally:
        program = [sys.executable, "-P", "-m", "waypoint", "uninstall", "--yes"]
        subprocess.run(program, stdout=subprocess.DEVNULL, check=False)
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Result:
    """Everything that was said of the stories that were played."""

    ledger: Ledger = field(default_factory=Ledger)
    stories: int = 0
    random_stories: int = 0
    falsified: Counter[str] = field(default_factory=Counter)
    unnoticed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    minutes: float = 0.0

    def add(self, other: Result) -> None:
        """What another worker found."""
        self.ledger.add(other.ledger)
        self.stories += other.stories
        self.random_stories += other.random_stories
        self.falsified.update(other.falsified)
        self.unnoticed += other.unnoticed
        self.failed += other.failed

    def report(self) -> str:
        """The table, and everything that was not true."""
        lines = [self.table(), *map(str, _distinct(self.ledger.faults)[:_SHOWN_FAULTS])]
        lines += [f"not noticed: {entry}" for entry in self.unnoticed]
        lines += [f"not played: {entry}" for entry in self.failed]
        return "\n".join(lines)

    def table(self) -> str:
        """What docs/history.md shows."""
        faults = Counter((fault.sort, fault.kind) for fault in self.ledger.faults)
        rows = [
            f"| {kind} | {number:,} | " + " | ".join(str(faults[sort, kind]) for sort in _SORTS) + " |"
            for kind, number in sorted(self.ledger.statements.items())
        ]
        totals = Counter(fault.sort for fault in self.ledger.faults)
        tried = self.falsified.total()
        words = (
            f"{self.stories} stories, {self.random_stories} of them random, in {self.minutes:.0f} minutes;"
            f" {tried:,} falsehoods of {len(self.falsified)} kinds were put into true answers, and"
            f" {tried - len(self.unnoticed):,} of them noticed."
        )
        return "\n".join(
            (
                words,
                "",
                "| statements about | number | wrong | missing | misleading |",
                "|---|---|---|---|---|",
                *rows,
                f"| **all** | **{self.ledger.statements.total():,}** | "
                + " | ".join(f"**{totals[sort]}**" for sort in _SORTS)
                + " |",
            )
        )


class Campaign:
    """Plays stories one after the other."""

    def __init__(self, base: Path, *, falsify: bool) -> None:
        self._player = Player(base)
        self._mutator = Mutator() if falsify else None
        self.result = Result()

    def play(self, story: Story) -> None:
        """One story; what came of it is printed."""
        result = self.result
        if not self._player.can_play(story):
            print(f"- {story.name}: skipped, it needs {', '.join(story.needs)}", flush=True)
            return
        began = time.monotonic()
        try:
            played = self._player.play(story)
        except Exception as error:  # noqa: BLE001 - the other stories are played all the same
            result.failed.append(f"{story.name}: {error!r}")
            print(f"! {story.name}: {traceback.format_exc()}", flush=True)
            return
        result.stories += 1
        result.random_stories += story.seed is not None
        result.ledger.add(played.ledger)
        if self._mutator:
            for told in played.told:
                self._mutator.check(told)
            result.falsified, result.unnoticed = self._mutator.tried, self._mutator.unnoticed
        number, faults = played.ledger.statements.total(), len(played.ledger.faults)
        took = time.monotonic() - began
        lines = [
            f"{'✖' if faults else '✔'} {story.name}: {number:,} statements, {faults} faults, {took:.1f} s"
        ]
        lines += [f"    {fault}" for fault in _distinct(played.ledger.faults)[:10]]
        print("\n".join(lines), flush=True)


def _distinct(faults: list[Fault]) -> list[Fault]:
    """Each text once."""
    return list({(fault.sort, fault.kind, fault.text): fault for fault in faults}.values())


def _write(table: str) -> None:
    text = _PAGE.read_text()
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    _PAGE.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}")


if __name__ == "__main__":
    sys.exit(main())
