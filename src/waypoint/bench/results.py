"""The results of a run: figures with all their rounds, the machine they come from, and the targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from waypoint.model import Record, from_json

Window = Literal["pause", "api", "until", ""]
Unit = Literal["ms", "bytes", "count"]
OURS = "waypoint"
FORMAT = 1


def percentile(samples: Sequence[float], share: float) -> float:
    """The value that `share` of the samples do not exceed, interpolated between two samples."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


class Figure(Record, frozen=True):
    """One measured quantity, with the value of each round."""

    workload: str
    case: str
    """One of the workload's cases: `64 MB, 1% dirty`."""
    what: str
    """`checkpoint`, `rollback`, `fork`, …"""
    window: Window
    samples: tuple[float, ...]
    who: str = OURS
    unit: Unit = "ms"

    @property
    def rounds(self) -> int:
        return len(self.samples)

    @property
    def p50(self) -> float:
        return percentile(self.samples, 0.5)

    @property
    def p95(self) -> float:
        return percentile(self.samples, 0.95)

    @property
    def max(self) -> float:
        return max(self.samples)


class Skipped(Record, frozen=True):
    """Something that was not measured, and why."""

    what: str
    why: str


class Machine(Record, frozen=True):
    """The machine the figures come from."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    system: str
    disk: str
    """The file system below the throwaway home."""
    versions: dict[str, str]
    load: float
    """The load average of the last minute before the first round."""
    floor_ms_per_mb: float
    """What the first write to a megabyte of fresh memory costs on this machine: no restore is faster."""


class Report(Record, frozen=True):
    """A whole run."""

    at: str
    quick: bool
    seconds: float
    machine: Machine
    figures: tuple[Figure, ...]
    skipped: tuple[Skipped, ...] = ()
    failed: tuple[Skipped, ...] = ()
    """Workloads that found a wrong state and stopped; what they had measured before is in the figures."""
    covers: dict[str, str] = msgspec.field(default_factory=dict)
    """What each measured tool restores, in a phrase."""
    format: int = FORMAT

    def find(
        self, workload: str, case: str, what: str, window: Window = "", who: str = OURS
    ) -> Figure | None:
        name = (workload, case, what, window, who)
        for figure in self.figures:
            if (figure.workload, figure.case, figure.what, figure.window, figure.who) == name:
                return figure
        return None

    def cases(self, workload: str) -> list[str]:
        """The cases of a workload, in the order in which they were measured."""
        return list(dict.fromkeys(figure.case for figure in self.figures if figure.workload == workload))

    def encode(self) -> bytes:
        """As JSON, each figure with its p50, p95 and max beside the rounds."""
        fields = msgspec.to_builtins(self)
        for row, figure in zip(fields["figures"], self.figures, strict=True):
            row["samples"] = [round(sample, 3) for sample in figure.samples]
            numbers = {"p50": figure.p50, "p95": figure.p95, "max": figure.max}
            row.update({name: round(value, 3) for name, value in numbers.items()}, rounds=figure.rounds)
        return msgspec.json.format(msgspec.json.encode(fields), indent=1) + b"\n"

    @classmethod
    def decode(cls, text: bytes) -> Report:
        return from_json(text, cls)


class Target(Record, frozen=True):
    """A value to reach, and the figure that shows whether it is reached."""

    label: str
    reach: float
    workload: str
    case: str
    what: str
    window: Window = ""
    unit: Unit = "ms"
    elsewhere: str = "–"
    """The best value published for another system."""

    def figure(self, report: Report) -> Figure | None:
        return report.find(self.workload, self.case, self.what, self.window)

    def reached(self, report: Report) -> bool | None:
        """None if it was not measured."""
        figure = self.figure(report)
        if figure is None:
            return None
        return figure.p50 >= self.reach if self.unit == "count" else figure.p50 <= self.reach


TREE = "bash, sleep, http.server"
TARGETS = (
    Target(
        label="checkpoint: pause seen by the processes",
        reach=20,
        workload="tree",
        case=TREE,
        what="checkpoint",
        window="pause",
        elsewhere="12.5 ms (DeltaBox: one cooperating single-threaded process, no terminal)",
    ),
    Target(
        label="rollback to a point with a spare, until a command has run",
        reach=5,
        workload="tree",
        case=TREE,
        what="rollback, spare",
        window="until",
        elsewhere="7.6 ms (DeltaBox, same limits)",
    ),
    Target(
        label="the same with 256 MB of memory",
        reach=5,
        workload="memory",
        case="256 MB",
        what="rollback, spare",
        window="until",
    ),
    Target(
        label="rollback without a spare, until a command has run",
        reach=45,
        workload="tree",
        case=TREE,
        what="rollback, cold",
        window="until",
        elsewhere="35 ms (DeltaBox, cold)",
    ),
    Target(
        label="1 GB of memory, 1% of it written since: pause",
        reach=60,
        workload="memory",
        case="1024 MB, 1% dirty",
        what="checkpoint",
        window="pause",
    ),
    Target(
        label="1 GB of memory: rollback without a spare, until a command has run",
        reach=60,
        workload="memory",
        case="1024 MB",
        what="rollback, cold",
        window="until",
    ),
    Target(
        label="1 GB of memory: 16 forks, all verified to run",
        reach=1000,
        workload="memory",
        case="1024 MB",
        what="16 forks",
        window="until",
    ),
    Target(
        label="16 forks of one point, all verified to run",
        reach=500,
        workload="fan-out",
        case="16 forks",
        what="fork",
        window="until",
        elsewhere="54 ms on 96 cores",
    ),
    Target(
        label="a trivial command through the persistent shell",
        reach=3,
        workload="api",
        case="run true",
        what="run",
        window="api",
    ),
    Target(label="socket round trip", reach=0.5, workload="api", case="ping", what="ping", window="api"),
    Target(
        label="checkpoints in one line of history",
        reach=1000,
        workload="depth",
        case="all",
        what="checkpoints",
        unit="count",
        elsewhere="58 (overlay mounts stacked: mount option limit)",
    ),
    Target(
        label="change list of two points, 100,000 files, 10 changed",
        reach=50,
        workload="files",
        case="100,000 files",
        what="diff",
        window="api",
    ),
    Target(
        label="command line: --version",
        reach=80,
        workload="api",
        case="--version",
        what="cli",
        window="api",
    ),
    Target(label="command line: ls", reach=45, workload="api", case="ls", what="cli", window="api"),
    Target(
        label="forgetting one point among 1,000",
        reach=30,
        workload="depth",
        case="any",
        what="forget",
        window="api",
    ),
    Target(
        label="16 forks of a session with 1 GB of memory, all verified to run",
        reach=1000,
        workload="fan-out",
        case="16 forks with 1024 MB each",
        what="fork",
        window="until",
    ),
)
