"""Bisection: the first point at which a command fails, between one where it passes and one where it does not.

The command is tried in throwaway copies, two at a time: each round tries two points and keeps a third of the
line between them. A point at which the command takes too long or ends with 125 is neither good nor bad: it is
left out, and the result names those that stand next to the place where it broke.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType

from waypoint.core.gate import Gate
from waypoint.core.registry import Registry
from waypoint.core.trials import AT_ONCE, Trials, check_trial
from waypoint.errors import UsageError, WaypointError
from waypoint.history.lineage import line_between
from waypoint.history.verdicts import state_of
from waypoint.model import Checkpoint, VerdictState
from waypoint.store.sessions import SessionRow

_ENDS: tuple[VerdictState, VerdictState] = ("passed", "failed")
_WORDS: Mapping[VerdictState, str] = MappingProxyType({
    "passed": "passes",
    "failed": "fails",
    "timeout": "takes too long",
    "unclear": "cannot tell (exit 125)",
})  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A point that was tried."""

    point: Checkpoint
    state: VerdictState

    @property
    def passed(self) -> bool:
        return self.state == "passed"


@dataclass(frozen=True)
class Culprit:
    """The first point at which the command fails, the last before it at which it passes, those between the
    two at which it could not tell, and all that were tried."""

    point: Checkpoint
    last_good: Checkpoint
    unclear: tuple[Checkpoint, ...]
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

        def try_points(points: Sequence[Checkpoint]) -> list[VerdictState]:
            with ThreadPoolExecutor(max_workers=AT_ONCE) as workers:
                results = list(workers.map(lambda point: self._state_at(point, command, timeout), points))
            for point, state in zip(points, results, strict=True):
                steps.append(Step(point, state))
                on_step(steps[-1])
            return results

        for point, state, wanted in zip((good, bad), try_points((good, bad)), _ENDS, strict=True):
            if state != wanted:
                raise UsageError(
                    f"the command {_WORDS[state]} at {point.name or point.label}",
                    hint="it must pass at GOOD and fail at BAD",
                )
        last_good, left_out = good, set[str]()
        while candidates := [number for number, point in enumerate(line[:-1]) if point.id not in left_out]:
            middle = sorted({len(candidates) // 3, len(candidates) * 2 // 3})
            tried = [candidates[place] for place in middle]
            states = dict(zip(tried, try_points([line[number] for number in tried]), strict=True))
            passes = [number for number, state in states.items() if state == "passed"]
            fails = [number for number, state in states.items() if state == "failed"]
            left_out |= {line[number].id for number in states if number not in (*passes, *fails)}
            last_pass, first_bad = max(passes, default=-1), min(fails, default=len(line) - 1)
            if last_pass > first_bad:
                raise UsageError(
                    f"it fails at {line[first_bad].label} and passes again at {line[last_pass].label}",
                    hint="there is more than one culprit: choose a shorter stretch",
                )
            if last_pass >= 0:
                last_good = line[last_pass]
            line = line[last_pass + 1 : first_bad + 1]
        return Culprit(line[-1], last_good, tuple(line[:-1]), tuple(steps))

    def _state_at(self, point: Checkpoint, command: str, timeout: float) -> VerdictState:
        """No verdict is stored: a question that was asked once must not move `good`."""
        check_trial(command, files_only=point.files_only)
        try:
            result = self._trials.run(point, command, timeout=timeout)
        except (WaypointError, OSError) as error:
            raise UsageError(
                f"{point.label} could not be tried: {error}", hint="leave it out: bisect a shorter stretch"
            ) from error
        return state_of(result.exit_code, timed_out=result.timed_out)
