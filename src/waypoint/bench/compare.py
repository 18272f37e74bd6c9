"""`make bench-check`: has an operation become slower since the recorded run?

Times measured on two machines, or at two hours on one machine, cannot be compared. Ratios of two figures of
the same run can. They are compared with the ratios of a recorded run, with a wide bound: the check finds
what became several times slower, not ten percent. A ratio that looks worse is measured a second time.
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
from waypoint.model import MALFORMED, Record, from_json

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
        figure = report.find(*self)
        return figure.p50 if figure else None


class Ratio(NamedTuple):
    """One figure over another."""

    name: str
    above: Side
    below: Side

    def of(self, report: Report) -> float | None:
        above, below = self.above.p50(report), self.below.p50(report)
        return above / below if above is not None and below else None


def _against_criu(name: str, case: str, what: str, window: Window, who: str = OURS) -> Ratio:
    ours, theirs = Side("peers", case, what, window, who), Side("peers", case, what, window, "criu")
    return Ratio(name, ours, theirs)


RATIOS = (
    _against_criu("pause of a checkpoint / CRIU's dump and restore", "tree", "checkpoint", "pause"),
    _against_criu("checkpoint / CRIU's dump and restore", "tree", "checkpoint", "until"),
    _against_criu("rollback with a spare / CRIU's restore", "tree", "rollback", "until"),
    _against_criu("rollback without / CRIU's restore", "tree", "rollback", "until", COLD),
    _against_criu("pause with 64 MB / CRIU's dump and restore", "memory 64 MB", "checkpoint", "pause"),
    _against_criu("rollback with 64 MB, spare / CRIU's restore", "memory 64 MB", "rollback", "until"),
    _against_criu("rollback with 64 MB, cold / CRIU's restore", "memory 64 MB", "rollback", "until", COLD),
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
        "forgetting a point / taking one",
        Side("depth", "any", "forget", "api"),
        Side("depth", "first", "checkpoint", "api"),
    ),
    Ratio(
        "4 forks with 64 MB each / 4 forks",
        Side("fan-out", "4 forks with 64 MB each", "fork", "until"),
        Side("fan-out", "4 forks", "fork", "until"),
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
        "pause as a process in the session sees it / pause as reported",
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
    """One ratio, as recorded (`then`) and as measured (`now`). None: it was not measured."""

    name: str
    then: float | None
    now: float | None

    @property
    def worse(self) -> bool:
        return self.then is not None and self.now is not None and self.now > self.then * BOUND

    @property
    def lost(self) -> bool:
        """Recorded, but not measured any more, which counts as a failure."""
        return self.then is not None and self.now is None


def ratios(report: Report) -> dict[str, float]:
    values = {ratio.name: ratio.of(report) for ratio in RATIOS}
    return {name: round(value, 3) for name, value in values.items() if value is not None}


def record(report: Report) -> bytes:
    """The ratios of a run as the JSON of a baseline."""
    machine = f"{report.machine.cpu}, {report.machine.cores} cores, Linux {report.machine.kernel}"
    baseline = Baseline(at=report.at, machine=machine, ratios=ratios(report))
    return msgspec.json.format(msgspec.json.encode(baseline), indent=1) + b"\n"


def compare(now: Mapping[str, float], then: Mapping[str, float]) -> list[Outcome]:
    """All ratios of both, in the order of the recorded ones."""
    names = dict.fromkeys([*then, *now])
    return [Outcome(name, then.get(name), now.get(name)) for name in names]


def best(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The smaller value of each ratio that was measured twice: other load on the machine only adds time."""
    return {name: min(value, second.get(name, value)) for name, value in {**second, **first}.items()}


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a text table."""
    wide = max((len(outcome.name) for outcome in outcomes), default=0)
    lines = [f"{'ratio'.ljust(wide)}  recorded     now   bound"]
    for outcome in outcomes:
        bound = f"{outcome.then * BOUND:.2f}" if outcome.then is not None else "–"
        then, now = (f"{value:.2f}" if value is not None else "–" for value in (outcome.then, outcome.now))
        mark = (
            "✖ slower"
            if outcome.worse
            else "✖ not measured"
            if outcome.lost
            else "✔"
            if outcome.then
            else "new"
        )
        lines.append(f"{outcome.name.ljust(wide)}  {then:>8}  {now:>6}  {bound:>6}  {mark}")
    return "\n".join(lines)


def workloads_of(names: Sequence[str]) -> list[str]:
    """The workloads that these ratios come from."""
    sides = (side for ratio in RATIOS if ratio.name in names for side in (ratio.above, ratio.below))
    return list(dict.fromkeys(side.workload for side in sides))


def measure(names: Sequence[str], say: runner.Say) -> Report:
    """A quick run of only the workloads that these ratios need."""
    engine = setup.engine_dir(locate().path)
    return runner.run(engine, quick=True, only=workloads_of(names), peers=["criu"], say=say)


def main() -> int:
    """Measures, compares and prints. Exits with 1 if a ratio became worse or is not measured any more."""

    def say(text: str) -> None:
        sys.stderr.write(f"  {text}\n")

    try:
        then = from_json(BASELINE.read_bytes(), Baseline)
        now = ratios(measure(list(then.ratios), say))
        worse = [outcome.name for outcome in compare(now, then.ratios) if outcome.worse]
        if worse:
            say(f"measured a second time: {', '.join(worse)}")
            now = best(now, ratios(measure(worse, say)))
    except (OSError, *MALFORMED) as error:
        sys.stderr.write(f"the recorded ratios cannot be read: {error}\n")
        return 2
    except errors.WaypointError as error:
        sys.stderr.write(f"waypoint: {error.message}\n  {error.hint}\n")
        return error.exit_status
    outcomes = compare(now, then.ratios)
    sys.stdout.write(f"{table(outcomes)}\n")
    return 1 if any(outcome.worse or outcome.lost for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
