"""Bisection: the first point at which a command fails, between one where it passes and one where it does not.

The command is tried in throwaway copies, two at a time: each round tries two points and keeps a third of the
line between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from waypoint.core.gate import Gate
from waypoint.core.registry import Registry
from waypoint.core.trials import AT_ONCE, Trials, check_trial
from waypoint.errors import UsageError, WaypointError
from waypoint.history.lineage import line_between
from waypoint.model import Checkpoint
from waypoint.store.sessions import SessionRow


@dataclass(frozen=True)
class Step:
    """A point that was tried."""

    point: Checkpoint
    passed: bool


@dataclass(frozen=True)
class Culprit:
    """The first point at which the command fails, the one before it, and all that were tried."""

    point: Checkpoint
    last_good: Checkpoint
    steps: tuple[Step, ...]


class Bisect:
    """Searches the histories of one home."""

    def __init__(self, registry: Registry, trials: Trials, gate: Gate) -> None:
        self._registry, self._trials, self._gate = registry, trials, gate

    def search(
        self,
        row: SessionRow,
        good: Checkpoint,
        bad: Checkpoint,
        command: str,
        *,
        timeout: float,
        on_step: Callable[[Step], None],
    ) -> Culprit:
        """`on_step` is called for each point that was tried."""
        line = [
            point
            for point in line_between(self._registry.store.points.all(), good, bad)
            if not point.files_only
        ]
        self._gate.check_trial(row, command)
        steps: list[Step] = []

        def try_points(points: Sequence[Checkpoint]) -> list[bool]:
            with ThreadPoolExecutor(max_workers=AT_ONCE) as workers:
                results = list(workers.map(lambda point: self._passes(point, command, timeout), points))
            for point, passed in zip(points, results, strict=True):
                steps.append(Step(point, passed))
                on_step(steps[-1])
            return results

        good_passes, bad_passes = try_points((good, bad))
        if not good_passes or bad_passes:
            which, word = (good, "fails") if not good_passes else (bad, "passes")
            raise UsageError(
                f"the command {word} at {which.name or which.label}",
                hint="it must pass at GOOD and fail at BAD",
            )
        last_good = good
        while len(line) > 1:
            middle = sorted({(len(line) - 1) // 3, (len(line) - 1) * 2 // 3} - {len(line) - 1})
            points = [line[number] for number in middle]
            results = try_points(points)
            if results == [False, True]:
                raise UsageError(
                    f"it fails at {points[0].label} and passes again at {points[1].label}",
                    hint="there is more than one culprit: choose a shorter stretch",
                )
            first_bad = middle[results.index(False)] if False in results else len(line) - 1
            last_pass = (
                middle[max(n for n, passed in enumerate(results) if passed)] if True in results else -1
            )
            if last_pass >= 0:
                last_good = line[last_pass]
            line = line[last_pass + 1 : first_bad + 1]
        return Culprit(line[0], last_good, tuple(steps))

    def _passes(self, point: Checkpoint, command: str, timeout: float) -> bool:
        """No verdict is stored: a question that was asked once must not move `good`."""
        check_trial(command, files_only=point.files_only)
        try:
            result = self._trials.run(point, command, timeout=timeout)
        except (WaypointError, OSError) as error:
            raise UsageError(
                f"{point.label} could not be tried: {error}", hint="leave it out: bisect a shorter stretch"
            ) from error
        return result.exit_code == 0 and not result.timed_out
