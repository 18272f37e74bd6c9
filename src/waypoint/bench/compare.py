"""`make bench-check`: does it still cost what it did, compared with what else runs on this machine?

Milliseconds of two machines say nothing about each other, those of one machine little about its next hour.
So ratios are compared, of two figures of one run each, with those of a recorded run, and the bounds are wide:
this finds what became several times as slow, not what became a tenth slower. What looks slower is measured
again before it is called so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from waypoint import errors
from waypoint.bench import runner
from waypoint.bench.peers import COLD
from waypoint.bench.results import OURS, TREE, Report, Window
from waypoint.home import locate
from waypoint.machine import setup
from waypoint.model import Record

BASELINE = Path(__file__).parents[3] / "docs" / "performance-baseline.json"
BOUND = 2.5
"""How many times its recorded value a ratio may be."""


class Side(NamedTuple):
    """One figure of a run."""

    workload: str
    case: str
    what: str
    window: Window
    who: str = OURS

    def p50(self, report: Report) -> float | None:
        found = report.find(*self)
        return found.p50 if found else None


class Ratio(NamedTuple):
    """One figure over another."""

    name: str
    above: Side
    below: Side

    def of(self, report: Report) -> float | None:
        above, below = self.above.p50(report), self.below.p50(report)
        return above / below if above is not None and below else None


def _beside_criu(name: str, case: str, what: str, window: Window, who: str = OURS) -> Ratio:
    ours, theirs = Side("peers", case, what, window, who), Side("peers", case, what, window, "criu")
    return Ratio(name, ours, theirs)


RATIOS = (
    _beside_criu("pause of a checkpoint / CRIU's dump and restore", "tree", "checkpoint", "pause"),
    _beside_criu("checkpoint / CRIU's dump and restore", "tree", "checkpoint", "until"),
    _beside_criu("rollback with a spare / CRIU's restore", "tree", "rollback", "until"),
    _beside_criu("rollback without / CRIU's restore", "tree", "rollback", "until", COLD),
    _beside_criu("pause with 64 MB / CRIU's dump and restore", "memory 64 MB", "checkpoint", "pause"),
    _beside_criu("rollback with 64 MB, spare / CRIU's restore", "memory 64 MB", "rollback", "until"),
    _beside_criu("rollback with 64 MB, cold / CRIU's restore", "memory 64 MB", "rollback", "until", COLD),
    Ratio(
        "pause of 32 processes / of one",
        Side("processes", "32 processes", "checkpoint", "pause"),
        Side("processes", "1 process", "checkpoint", "pause"),
    ),
    Ratio(
        "16 forks / one",
        Side("fan-out", "16 forks", "fork", "until"),
        Side("fan-out", "1 fork", "fork", "until"),
    ),
    Ratio(
        "checkpoint with 10,000 files / with 1,000",
        Side("files", "10,000 files", "checkpoint", "api"),
        Side("files", "1,000 files", "checkpoint", "api"),
    ),
    Ratio(
        "comparing with 10,000 files / with 1,000",
        Side("files", "10,000 files", "diff", "api"),
        Side("files", "1,000 files", "diff", "api"),
    ),
    Ratio(
        "the last point / the first",
        Side("depth", "last", "checkpoint", "api"),
        Side("depth", "first", "checkpoint", "api"),
    ),
    Ratio(
        "a command through the shell / bash -c true",
        Side("api", "run true", "run", "api"),
        Side("api", "bash -c true", "run", "api", "bash"),
    ),
    Ratio(
        "waypoint ls / python -c pass",
        Side("api", "ls", "cli", "api"),
        Side("api", "python -c pass", "cli", "api", "python"),
    ),
    Ratio(
        "the pause seen from inside / the one told",
        Side(
            "tree",
            "the same, with a process that watches the clock",
            "checkpoint, seen from inside",
            "pause",
        ),
        Side("tree", "the same, with a process that watches the clock", "checkpoint", "pause"),
    ),
    Ratio(
        "pause of the tree / of one process",
        Side("tree", TREE, "checkpoint", "pause"),
        Side("processes", "1 process", "checkpoint", "pause"),
    ),
)


class Baseline(Record, frozen=True):
    """The ratios of a recorded run."""

    at: str
    machine: str
    ratios: dict[str, float]


class Outcome(NamedTuple):
    """One ratio, then and now. None: it was not measured."""

    name: str
    then: float | None
    now: float | None

    @property
    def worse(self) -> bool:
        return self.then is not None and self.now is not None and self.now > self.then * BOUND

    @property
    def lost(self) -> bool:
        """Recorded, and not measured any more: that is no success."""
        return self.then is not None and self.now is None


def ratios(report: Report) -> dict[str, float]:
    found = {one.name: one.of(report) for one in RATIOS}
    return {name: round(value, 3) for name, value in found.items() if value is not None}


def record(report: Report) -> bytes:
    """A baseline, as it is kept."""
    machine = f"{report.machine.cpu}, {report.machine.cores} cores, Linux {report.machine.kernel}"
    kept = Baseline(at=report.at, machine=machine, ratios=ratios(report))
    return msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n"


def compare(now: Mapping[str, float], then: Mapping[str, float]) -> list[Outcome]:
    """All ratios of either, in the order of the recorded ones."""
    names = dict.fromkeys([*then, *now])
    return [Outcome(name, then.get(name), now.get(name)) for name in names]


def again(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """What was measured twice counts as it was at its best: other people's load only ever adds."""
    return {name: min(value, second.get(name, value)) for name, value in {**second, **first}.items()}


def table(outcomes: Sequence[Outcome]) -> str:
    """Ratio by ratio, and what became of it."""
    wide = max((len(one.name) for one in outcomes), default=0)
    lines = [f"{'ratio'.ljust(wide)}  recorded     now   bound"]
    for one in outcomes:
        bound = f"{one.then * BOUND:.2f}" if one.then is not None else "–"
        then, now = (f"{value:.2f}" if value is not None else "–" for value in (one.then, one.now))
        mark = "✖ slower" if one.worse else "✖ not measured" if one.lost else "✔" if one.then else "new"
        lines.append(f"{one.name.ljust(wide)}  {then:>8}  {now:>6}  {bound:>6}  {mark}")
    return "\n".join(lines)


def workloads_of(names: Sequence[str]) -> list[str]:
    """The workloads that these ratios come from."""
    return list(dict.fromkeys(side.workload for one in RATIOS if one.name in names for side in one[1:]))


def measure(names: Sequence[str], say: runner.Say) -> Report:
    """A quick run of what these ratios need, and nothing else."""
    engine = setup.engine_dir(locate().path)
    return runner.run(engine, quick=True, only=workloads_of(names), peers=["criu"], say=say)


def main() -> int:
    """Measures, compares, says so. 1 when something became slower, or is not measured any more."""

    def say(words: str) -> None:
        sys.stderr.write(f"  {words}\n")

    try:
        then = msgspec.json.decode(BASELINE.read_bytes(), type=Baseline)
        now = ratios(measure(list(then.ratios), say))
        doubtful = [one.name for one in compare(now, then.ratios) if one.worse]
        if doubtful:
            say(f"again, to be sure: {', '.join(doubtful)}")
            now = again(now, ratios(measure(doubtful, say)))
    except (OSError, msgspec.DecodeError) as error:
        sys.stderr.write(f"the recorded ratios cannot be read: {error}\n")
        return 2
    except errors.WaypointError as error:
        sys.stderr.write(f"waypoint: {error.message}\n  {error.hint}\n")
        return error.exit_status
    outcomes = compare(now, then.ratios)
    sys.stdout.write(f"{table(outcomes)}\n")
    return 1 if any(one.worse or one.lost for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
