"""What StateFork's managers keep: nodes of the snapshot tree, branches, deciders, and how long things took.

Names and fields are those of StateFork, since programs that were written for it read them.
"""

from __future__ import annotations

import random
import statistics
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Command = list[str] | str
"""The words of a program, or a line of the shell."""


# ---- the tree ------------------------------------------------------------------------------------


@dataclass
class SnapshotNode:
    """A snapshot in the tree. A virtual one is made again by running `replay_commands` at its parent."""

    snapshot_id: str
    parent_id: str | None
    children: list[str] = field(default_factory=list)
    is_virtual: bool = False
    replay_commands: list[Command] = field(default_factory=list)
    replay_exit_codes: list[int] = field(default_factory=list)
    """How each of them ended."""


@dataclass
class BranchState:
    """What a manager knows of an environment that advances by itself."""

    branch_id: str
    current_snapshot_id: str | None = None
    last_snapshot_id: str | None = None
    command_log: list[Command] = field(default_factory=list)
    """What was run since the last snapshot."""
    exit_codes: list[int] = field(default_factory=list)
    cumulative_exec_time: float = 0.0
    """Seconds that commands took since the last physical snapshot."""
    active: bool = True
    operation_lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)
    """One operation at a time."""

    def stand_at(self, snapshot_id: str | None) -> None:
        """Nothing has happened since this snapshot."""
        self.current_snapshot_id = self.last_snapshot_id = snapshot_id
        self.command_log, self.exit_codes = [], []


@dataclass
class EnvironmentBranch:
    """A live environment."""

    id: str
    base_snapshot_id: str
    status: str = "running"


# ---- deciders ------------------------------------------------------------------------------------


@dataclass
class DecisionContext:
    """What a decider knows."""

    cumulative_exec_time: float


class Decider(ABC):
    """Chooses between a physical snapshot and a virtual one."""

    @abstractmethod
    def decide(self, context: DecisionContext) -> bool:
        """True: a physical one."""


class AlwaysTrueDecider(Decider):
    """Each snapshot is physical."""

    def decide(self, context: DecisionContext) -> bool:
        return True


class AlwaysFalseDecider(Decider):
    """No snapshot is physical but the first."""

    def decide(self, context: DecisionContext) -> bool:
        return False


class RandomDecider(Decider):
    """Half of them are."""

    def decide(self, context: DecisionContext) -> bool:
        return random.random() < 0.5


class ThresholdDecider(Decider):
    """One is physical when running the commands again would take so many seconds."""

    DEFAULT_THRESHOLD = 5.0

    def __init__(self, threshold: float | None = None) -> None:
        self.threshold = self.DEFAULT_THRESHOLD if threshold is None else threshold

    def decide(self, context: DecisionContext) -> bool:
        return context.cumulative_exec_time >= self.threshold


# ---- how long things took ------------------------------------------------------------------------


@dataclass
class Statistics:
    """Of times or of sizes."""

    count: int
    total: float
    mean: float
    median: float
    min: float
    max: float
    unit: str = "unknown"

    @classmethod
    def of(cls, values: Iterable[float], unit: str) -> Statistics:
        numbers = [*values] or [0.0]
        return cls(
            count=len(numbers),
            total=sum(numbers),
            mean=statistics.mean(numbers),
            median=statistics.median(numbers),
            min=min(numbers),
            max=max(numbers),
            unit=unit,
        )


@dataclass
class BenchmarkEntry:
    """One operation."""

    sequence: int
    operation: str
    target_id: str
    elapsed_time: float
    branch_id: str = ""


@dataclass
class BenchmarkResult:
    """Times by operation, sizes by what was measured."""

    time: dict[str, Statistics]
    size: dict[str, Statistics]


Sizes = Callable[[], dict[str, int]]
"""Bytes on disk, by snapshot."""


class BenchmarkStats:
    """Keeps what was done, in order. For several threads."""

    def __init__(self, sizes: Sizes | None = None) -> None:
        self.log: list[BenchmarkEntry] = []
        self.sizes = sizes
        self._lock = threading.Lock()

    def add_entry(self, operation: str, target_id: str, elapsed_time: float, branch_id: str = "") -> None:
        with self._lock:
            number = len(self.log) + 1
            self.log.append(BenchmarkEntry(number, operation, target_id, elapsed_time, branch_id))

    def get_all_statistics(self) -> BenchmarkResult:
        with self._lock:
            entries = [*self.log]
        times: dict[str, list[float]] = {}
        for entry in entries:
            times.setdefault(entry.operation, []).append(entry.elapsed_time)
        sizes = self.sizes() if self.sizes else {}
        return BenchmarkResult(
            time={operation: Statistics.of(seconds, "seconds") for operation, seconds in times.items()},
            size={"SNAPSHOTS": Statistics.of(sizes.values(), "bytes")} if sizes else {},
        )

    def print_stats(self) -> str:
        result = self.get_all_statistics()
        lines = [
            f"[{operation.upper():<10}] mean={one.mean:.6f}s median={one.median:.6f}s"
            f" min={one.min:.6f}s max={one.max:.6f}s\n"
            for operation, one in result.time.items()
        ]
        lines += [
            f"[{name}] mean={one.mean:.0f} B median={one.median:.0f} B"
            f" min={one.min:.0f} B max={one.max:.0f} B\n"
            for name, one in result.size.items()
        ]
        return "".join(lines)

    def print_history(self) -> str:
        return "".join(
            f"#{entry.sequence:<4d} [{entry.operation.upper():<10}] -> {entry.target_id:<8}"
            f" took {entry.elapsed_time:.6f}s\n"
            for entry in self.log
        )

    def print_size_details(self) -> str:
        sizes = self.sizes() if self.sizes else {}
        largest_first = sorted(sizes.items(), key=lambda one: one[1], reverse=True)
        return "\n".join(f">> {name}: {size} B" for name, size in largest_first) or "No sizes are known."
