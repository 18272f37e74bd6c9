"""Runs targets: so many cases, each with a seed of its own, so that any one can be repeated alone."""

from __future__ import annotations

import contextlib
import shutil
import signal
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from tests.fuzz.readers import Target

LIMIT_SECONDS = 10.0
"""How long one case may take. It bounds a reader that does not return; no case comes near it."""


class Hangs(BaseException):
    """Raised in a reader that does not return."""


@dataclass
class Tally:
    """What a target did."""

    cases: int = 0
    refused: int = 0
    findings: list[str] = field(default_factory=list)


def run(targets: Iterable[Target], cases: int, seed: int, folder: Path) -> dict[str, Tally]:
    """Runs about `cases` cases in all, divided by the targets' weights."""
    all_targets = list(targets)
    total = sum(target.weight for target in all_targets)
    return {
        target.name: run_target(target, max(1, round(cases * target.weight / total)), seed, folder)
        for target in all_targets
    }


def run_target(
    target: Target, cases: int, seed: int, folder: Path, limit_seconds: float = LIMIT_SECONDS
) -> Tally:
    """Runs so many cases of one target."""
    tally = Tally()
    for number in range(cases):
        tally.cases += 1
        try:
            with _time_limit(limit_seconds):
                run_case(target, seed, number, folder)
        except target.errors:
            tally.refused += 1
        except (Exception, Hangs):  # noqa: BLE001 - whatever it is, it is the finding
            tally.findings.append(
                f"{target.name} seed {seed} case {number}\n{traceback.format_exc(limit=-6)}"
            )
    return tally


def run_case(target: Target, seed: int, number: int, folder: Path) -> None:
    """One case; raises what its reader raises."""
    case = folder / "case"
    case.mkdir(parents=True)
    try:
        target.run(Random(f"{seed} {target.name} {number}"), case)
    finally:
        shutil.rmtree(case)


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def end(_signal: int, _frame: FrameType | None) -> None:
        raise Hangs(f"did not return within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, remaining, interval)
        signal.signal(signal.SIGALRM, before)
