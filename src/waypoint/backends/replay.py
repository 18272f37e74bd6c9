"""The backend `replay`: over any other one, with points that cost nothing.

A physical point is one of the backend below. A virtual point is the list of commands that led to it: it is
made again by going back to the nearest physical point and running them. A decider chooses between the two.

A virtual point holds what running the commands again brings about, which may differ: a clock, a random
number, the network. So each command that is run again has to exit as it did; where one does not, the restore
fails and nothing has changed. What cannot be run again makes the next point physical, whatever the decider
says: files that were put in, a command that took too long, and a command that acts outside (only `live` can
tell that).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from waypoint import errors
from waypoint.backends.environment import (
    Capabilities,
    Difference,
    Environment,
    Kept,
    Lineage,
    Point,
    Restored,
    RunResult,
    check_name_free,
    checked_count,
    new_name,
    require,
)

_FILES: frozenset[Kept] = frozenset({"files"})


@dataclass(frozen=True)
class Moment:
    """What a decider knows when a point is asked for."""

    seconds: float
    """How long the commands took since the last physical point: running them again takes about that."""
    commands: int
    """How many there were."""


Decider = Callable[[Moment], bool]
"""Whether the point is to be physical."""


def physical(_moment: Moment) -> bool:
    """Each point is physical."""
    return True


def virtual(_moment: Moment) -> bool:
    """Only the points are physical that must be."""
    return False


def after(seconds: float) -> Decider:
    """A point is physical when running the commands again would take at least that long."""
    return lambda moment: moment.seconds >= seconds


def at_random(share: float = 0.5, seed: int | None = None) -> Decider:
    """A share of the points is physical, for measurements."""
    choose = random.Random(seed)
    return lambda _moment: choose.random() < share


_DECIDERS: Mapping[str, Decider] = {"physical": physical, "virtual": virtual}
_DEFAULT_SECONDS = 5.0
_PATIENCE, _PATIENCE_SECONDS = 10, 60.0
"""A command that is run again may take so many times as long as before, and this longer."""


@dataclass(frozen=True)
class _Step:
    """A command that was run, and how it ended."""

    command: str
    exit_code: int
    cwd: str | None
    env: Mapping[str, str]
    stdin: bytes | None
    seconds: float


@dataclass(frozen=True)
class _Stored:
    """What a point is made of: a physical one, and the steps from there."""

    base: Point
    steps: tuple[_Step, ...] = ()


@dataclass
class _Since:
    """What has happened since the last physical point."""

    base: Point | None = None
    steps: list[_Step] = field(default_factory=list)
    cannot_repeat: str = ""
    """Why the present cannot be made again by running commands, if so."""


class ReplayEnvironment(Environment):
    """An environment of another backend (`over`), with virtual points."""

    backend = "replay"

    def __init__(
        self,
        over: Environment,
        decider: Decider,
        lineage: Lineage,
        stored: dict[str, _Stored],
        since: _Since,
    ) -> None:
        self.over = over
        """The environment in which the commands run."""
        self.name = over.name
        self._decider, self._lineage, self._stored, self._since = decider, lineage, stored, since

    @classmethod
    def start(
        cls,
        over: str = "live",
        *,
        decider: Decider | Literal["physical", "virtual"] | float = _DEFAULT_SECONDS,
        **options: Any,
    ) -> Self:
        """`over`: the backend below, which gets the options. `decider`: "physical", "virtual", seconds (a
        point is physical when running the commands again would take that long), or a function of a
        `Moment`."""
        from waypoint import backends

        if over == cls.backend:
            raise errors.UsageError(
                "replay cannot be over itself", hint="name the backend below: over='files'"
            )
        chosen = _decider(decider)
        return cls(backends.open(over, **options), chosen, Lineage(), {}, _Since())

    @property
    def capabilities(self) -> Capabilities:
        below = self.over.capabilities
        if self._decider is physical:
            return below
        return replace(
            below,
            processes=False,
            memory=False,
            terminal=False,
            notes=(
                *below.notes,
                "a virtual point holds what running its commands again brings about",
                "a point that `needs` more than files is physical",
            ),
        )

    def park(self) -> Point:
        """A physical point is taken: nothing runs from which a virtual one could be made."""
        point = self._lineage.add(self._kept(self.over.park(), None))
        self._since = _Since(self._stored[point.id].base)
        return point

    def stop(self) -> None:
        self.over.stop()

    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> RunResult:
        result = self.over.run(command, timeout=timeout, cwd=cwd, env=env, stdin=stdin)
        step = _Step(command, result.exit_code, cwd, {**(env or {})}, stdin, result.seconds)
        self._since.steps.append(step)
        if result.timed_out:
            self._since.cannot_repeat = f"`{command}` took too long and was ended somewhere in between"
        return result

    def put(self, source: str | os.PathLike[str], target: str) -> None:
        self._since.cannot_repeat = f"files were put to {target}"
        self.over.put(source, target)

    def get(self, source: str, target: str | os.PathLike[str]) -> None:
        self.over.get(source, target)

    # ---- points ------------------------------------------------------------------------------

    def checkpoint(self, name: str | None = None, *, needs: Collection[Kept] = ()) -> Point:
        """`needs`: a point that has to hold more than files is physical."""
        require(f"replay over {self.over.backend}", self.over.capabilities.keeps, needs)
        check_name_free(name, self._lineage.points)
        since = self._since
        if since.base is not None and set(needs) <= _FILES and not self._must_be_physical():
            point = Point(new_name("v"), self.name, name, self._lineage.head, _FILES, virtual=True)
            self._stored[point.id] = _Stored(since.base, tuple(since.steps))
            return self._lineage.add(point)
        point = self._kept(self.over.checkpoint(needs=needs), name)
        self._since = _Since(self._stored[point.id].base)
        return self._lineage.add(point)

    def _must_be_physical(self) -> bool:
        since = self._since
        if since.cannot_repeat:
            return True
        moment = Moment(sum(step.seconds for step in since.steps), len(since.steps))
        if self._decider(moment):
            return True
        return any(self.over.acts_outside(step.command) for step in since.steps)

    def _kept(self, below: Point, name: str | None) -> Point:
        """A physical point, as this environment names it."""
        point = replace(below, environment=self.name, name=name, parent=self._lineage.head)
        self._stored[point.id] = _Stored(below)
        return point

    def points(self) -> list[Point]:
        return [*self._lineage.points]

    def restore(self, point: Point | str | None = None, *, needs: Collection[Kept] = ()) -> Restored:
        """CannotRestore, and nothing has changed, when a command that is run again ends in another way."""
        found = self._lineage.find(point)
        require(f"the point {found.name or found.id}", found.keeps, needs)
        stored = self._stored[found.id]
        safety = self.over.checkpoint() if stored.steps else None
        restored = self.over.restore(stored.base)
        try:
            self._run_again(self.over, found, stored.steps)
        except BaseException:
            if safety is not None:
                self.over.restore(safety)
            raise
        self._stand_on(found)
        return Restored(found, restored.lost, restored.started, tuple(step.command for step in stored.steps))

    def fork(self, point: Point | str | None = None, n: int = 1) -> list[Self]:
        checked_count(n)
        found = self.checkpoint() if point is None else self._lineage.find(point)
        stored = self._stored[found.id]
        forks = [
            type(self)(below, self._decider, self._lineage.until(found), {**self._stored}, _Since())
            for below in self.over.fork(stored.base, n)
        ]
        try:
            for fork in forks:
                fork._run_again(fork.over, found, stored.steps)
                fork._stand_on(found)
        except BaseException:
            for fork in forks:
                fork.stop()
            raise
        return forks

    def _stand_on(self, point: Point) -> None:
        stored = self._stored[point.id]
        self._lineage.head = point.id
        self._since = _Since(stored.base, [*stored.steps])

    @staticmethod
    def _run_again(over: Environment, point: Point, steps: Sequence[_Step]) -> None:
        for step in steps:
            limit = _PATIENCE_SECONDS + _PATIENCE * step.seconds
            result = over.run(step.command, cwd=step.cwd, env=step.env, stdin=step.stdin, timeout=limit)
            if result.exit_code != step.exit_code:
                raise errors.CannotRestore(
                    f"the point {point.name or point.id} cannot be made again: `{step.command}` exited with "
                    f"{result.exit_code}, and with {step.exit_code} before",
                    hint="go back to a physical point (`Point.virtual` is False)",
                )

    def diff(self, old: Point | str | None = None, new: Point | str | None = None) -> Difference:
        """Only a physical point has files that can be looked at: for a virtual one a fork is made that runs
        its commands again, and is stopped."""
        before = self._lineage.find(old)
        after = None if new is None else self._lineage.find(new)
        stored, target = self._stored[before.id], after and self._stored[after.id]
        if not stored.steps and not (target and target.steps):
            return self.over.diff(stored.base, target.base if target else None)
        return self._diff_of_forks(before, after)

    def _diff_of_forks(self, before: Point, after: Point | None) -> Difference:
        """In one environment, so that one backend compares its own points: the earlier state is made, kept,
        and then the later one."""
        now = self.over.checkpoint() if after is None else None
        fork = self.fork(before)[0]
        try:
            then = fork.over.checkpoint()
            if now is not None:
                fork.over.restore(now)
            else:
                assert after is not None
                fork.restore(after)
            return fork.over.diff(then)
        finally:
            fork.stop()

    def acts_outside(self, command: str) -> bool | None:
        return self.over.acts_outside(command)


def _decider(wanted: object) -> Decider:
    if isinstance(wanted, str) and wanted in _DECIDERS:
        return _DECIDERS[wanted]
    if isinstance(wanted, int | float) and not isinstance(wanted, bool) and wanted >= 0:
        return after(float(wanted))
    if callable(wanted):
        return wanted
    raise errors.UsageError(
        f"{wanted!r} decides nothing",
        hint='"physical", "virtual", a number of seconds, or a function of a Moment',
    )
