"""Faults below root: every call of every verb fails or is the last one, on a machine without root and CRIU.

The machine is that of tests/fakes.py: a home in a folder, whose boxes outlive the process that built them. A
case is a verb and what happens at its calls, each named by the call and by how often it was made: an error,
or the death of the process (`kill`: it ends at once and nothing is unwound). Each case runs in a process of
its own on a copy of a prepared home. After a death another process starts a daemon on what is left.

`singles`, `pairs` and `deaths` make the cases: one fault at each call; a second fault after the first, so
that undoing fails too; a death in the recovery after a death.
"""

from __future__ import annotations

import errno
import functools
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self, cast

import msgspec
from tests.fakes import Faults, Injected, World, finish
from tests.torture import scene

from waypoint.errors import WaypointError, of_the_machine
from waypoint.kernel import faults
from waypoint.model import Record

Kind = Literal["error", "EIO", "ENOSPC", "timeout", "kill"]
ERRORS: tuple[Kind, ...] = ("error", "EIO", "ENOSPC", "timeout")
_HANGS_SECONDS = 120.0
_DIED = 9


class Fault(Record, frozen=True):
    """What happens at a call."""

    call: str
    """`NAME#N`: the Nth call of that name."""
    kind: Kind

    def __str__(self) -> str:
        return f"{self.call}:{self.kind}"


class Case(Record, frozen=True):
    """A verb, and what happens at its calls. `recovery`: what happens to the daemons that come after a death,
    one after the other."""

    verb: str
    faults: tuple[Fault, ...] = ()
    recovery: tuple[Fault, ...] = ()

    @property
    def name(self) -> str:
        """By which a single case can be run again."""
        steps = [self.verb, ",".join(map(str, self.faults)), *map(str, self.recovery)]
        return "/".join(steps)

    @classmethod
    def parse(cls, name: str) -> Case:
        verb, during, *recovery = name.split("/")

        def fault(text: str) -> Fault:
            call, _, kind = text.partition(":")
            return Fault(call, cast("Kind", kind))

        return cls(verb, tuple(map(fault, filter(None, during.split(",")))), tuple(map(fault, recovery)))


class Outcome(Record, frozen=True):
    """What became of a case."""

    happened: tuple[str, ...] = ()
    """The faults that were reached."""
    calls: tuple[str, ...] = ()
    """All calls of the verb; those that were made after its first fault, if it has one."""
    recovery_calls: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()


class PlannedFaults(Faults):
    """Faults that are named by their call and its number. Every fault point is a call too."""

    def __init__(self) -> None:
        super().__init__()
        self._planned: dict[str, Kind] = {}
        self._counts: Counter[str] = Counter()
        self.happened: list[str] = []
        self.on_death: Callable[[], None] = lambda: None
        self.after_first = 0
        """How many calls had been made when the first fault happened."""

    def plan(self, planned: Sequence[Fault]) -> None:
        with self._lock:
            self.calls.clear()
            self._counts.clear()
            self.happened.clear()
            self._planned = {fault.call: fault.kind for fault in planned}

    def call(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
            call = f"{name}#{self._counts[name]}"
            self.calls.append(call)
            kind = self._planned.get(call)
            if kind is None:
                return
            if not self.happened:
                self.after_first = len(self.calls)
            self.happened.append(f"{call}:{kind}")
        match kind:
            case "kill":
                self.on_death()
                os._exit(_DIED)
            case "error":
                raise Injected(f"{call} was made to fail")
            case "EIO" | "ENOSPC":
                number = errno.EIO if kind == "EIO" else errno.ENOSPC
                raise OSError(number, os.strerror(number), call)
            case "timeout":
                raise TimeoutError(f"{call} took too long")


def can_fail(call: str) -> bool:
    """Whether anything can fail at this call; else a process can only die there."""
    return call.partition("#")[0] not in faults.ONLY_DEATH


# ---- one case ------------------------------------------------------------------------------------


@dataclass
class _Report:
    """What a process of a case writes down for the one that waits for it, also just before it dies."""

    path: Path
    happened: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    recovery_calls: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def write(self) -> None:
        self.path.write_bytes(
            msgspec.json.encode(
                Outcome(
                    happened=tuple(self.happened),
                    calls=tuple(self.calls),
                    recovery_calls=tuple(self.recovery_calls),
                    violations=tuple(self.violations),
                )
            )
        )


def _in_a_process(work: Callable[[_Report], None], report: Path) -> Outcome:
    """Runs it in a process of its own, which may die; a hang is a violation."""
    pid = os.fork()
    if not pid:
        mine = _Report(report)
        try:
            work(mine)
        except BaseException:  # noqa: BLE001 - whatever it is, it is a finding
            mine.violations.append(traceback.format_exc())
        mine.write()
        os._exit(0)
    deadline = time.monotonic() + _HANGS_SECONDS
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return Outcome(violations=("it hangs",))
        time.sleep(0.002)
    try:
        return msgspec.json.decode(report.read_bytes(), type=Outcome)
    except FileNotFoundError:
        return Outcome(violations=("the process has left no report",))
    finally:
        report.unlink(missing_ok=True)


def _start(folder: Path, planned: PlannedFaults, *faults_at_start: Fault) -> World:
    """A daemon on that folder. It is not closed: its boxes live on when its process ends."""
    faults.control(planned.call)
    planned.plan(faults_at_start)
    return World(folder, planned)


def prepare(folder: Path, verb: scene.Verb) -> tuple[str, ...]:
    """Makes the home on which the cases of a verb run. Returns what went wrong."""

    def work(_: _Report) -> None:
        scene.without_processes()
        world = World(folder)
        known = scene.begin(world, verb)
        (folder / "known.json").write_bytes(msgspec.json.encode(known))
        world.lose_daemon()  # its boxes stay

    (folder / "boxes").mkdir(parents=True)
    return _in_a_process(work, folder.parent / f"{folder.name}.report").violations


def run_case(case: Case, prepared: Path, place: Path) -> Outcome:
    """One case, on a copy of a prepared home."""
    verb = scene.VERBS[case.verb]
    shutil.copytree(prepared, place, symlinks=True)
    report = place.parent / f"{place.name}.report"
    known = msgspec.json.decode((place / "known.json").read_bytes(), type=scene.Known)
    try:
        return _run(case, verb, known, place, report)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _run(case: Case, verb: scene.Verb, known: scene.Known, place: Path, report: Path) -> Outcome:
    def perform(mine: _Report) -> None:
        scene.without_processes()
        planned = PlannedFaults()

        def note() -> None:
            mine.happened = list(planned.happened)
            mine.calls = planned.calls[planned.after_first :] if case.faults else list(planned.calls)

        def die() -> None:
            note()
            mine.write()

        planned.on_death = die
        starts = verb.at_start
        done: WaypointError | None
        try:
            world = _start(place, planned, *(case.faults if starts else ()))
            verb.arrange(world)
            if not starts:
                world.settle()
                planned.plan(case.faults)
            done = _ask(world, verb)
        except (WaypointError, OSError) as error:
            done = error if isinstance(error, WaypointError) else of_the_machine(error, "start")
            if not starts or not done:
                raise
            note()
            world = _start(place, planned)
        world.settle()
        if not mine.happened:
            note()
        planned.plan(())
        if done and not case.faults:
            mine.violations.append(f"it fails without a fault: {done}")
        verb.again(world)
        several = len(case.faults) > 1
        mine.violations += scene.judge(world, verb, known, done, undone_whole=not several)
        if not mine.violations and (several or _is_chosen(case)):
            _restart(world)
            mine.violations += scene.judge(world, verb, known, done, undone_whole=True)
            mine.violations += scene.go_on(world, known)

    def recover(fault: Fault | None) -> Callable[[_Report], None]:
        def work(mine: _Report) -> None:
            scene.without_processes()
            planned = PlannedFaults()

            def die() -> None:
                mine.happened = list(planned.happened)
                mine.write()

            planned.on_death = die
            try:
                world = _start(place, planned, *([fault] if fault else []))
                world.settle()
                mine.happened, mine.recovery_calls = list(planned.happened), list(planned.calls)
                planned.plan(())
                verb.again(world)
                mine.violations += scene.judge(world, verb, known, "killed", undone_whole=not fault)
                if _is_chosen(case) and not fault:
                    mine.violations += scene.go_on(world, known)
            except (WaypointError, OSError) as error:
                if not planned.happened or (
                    isinstance(error, OSError) and not of_the_machine(error, "start")
                ):
                    raise
                mine.happened = list(planned.happened)  # this daemon could not start, the next one can

        return work

    outcome = _in_a_process(perform, report)
    if any(fault.kind == "kill" for fault in case.faults) and any(
        happened.endswith(":kill") for happened in outcome.happened
    ):
        steps: tuple[Fault | None, ...] = (*case.recovery, None)
        for number, step in enumerate(steps):
            after = _in_a_process(recover(step), report)
            outcome = msgspec.structs.replace(
                outcome,
                happened=outcome.happened + after.happened,
                recovery_calls=after.recovery_calls if number == 0 else outcome.recovery_calls,
                violations=outcome.violations + after.violations,
            )
    return outcome


def _is_chosen(case: Case) -> bool:
    """Whether further verbs are tried after a case: after one of three."""
    return not case.faults or zlib.crc32(case.name.encode()) % 3 == 0


def _ask(world: World, verb: scene.Verb) -> WaypointError | None:
    """The error of the verb, if it failed. One that is no error of Waypoint's, nor one of the machine, is a
    finding."""
    try:
        with world.app.background.foreground():
            verb.run(world)
    except WaypointError as error:
        return error
    except OSError as error:
        if known := of_the_machine(error, "do this"):
            return known
        raise
    return None


def _restart(world: World) -> None:
    world.lose_daemon()
    world.start()
    finish(world.app.background)


# ---- cases ---------------------------------------------------------------------------------------


def singles(verb: str, calls: Sequence[str], chance: random.Random) -> Iterator[Case]:
    """At each call an error and a death."""
    for call in calls:
        if can_fail(call):
            yield Case(verb, (Fault(call, chance.choice(ERRORS)),))
        yield Case(verb, (Fault(call, "kill"),))


def pairs(case: Case, calls: Sequence[str], chance: random.Random) -> Iterator[Case]:
    """A second fault at each call that was made after the first one."""
    for call in calls:
        kind = chance.choice((*ERRORS, "kill"))
        if kind == "kill" or can_fail(call):
            yield msgspec.structs.replace(case, faults=(*case.faults, Fault(call, kind)))


def deaths(case: Case, calls: Sequence[str], chance: random.Random) -> Iterator[Case]:
    """A fault at each call of the recovery after a death, and for some another one in the recovery after
    that."""
    for call in calls:
        kind: Kind = chance.choice(("kill", "kill", "EIO", "error"))
        again = (Fault(chance.choice(calls), "kill"),) if chance.random() < 0.25 else ()
        yield msgspec.structs.replace(case, recovery=(Fault(call, kind), *again))


@functools.cache
def _warm_up(place: Path) -> None:
    """What verbs load and compile when they are first used: once in each worker, not in each of thousands of
    processes that it forks."""
    place = Path(tempfile.mkdtemp(dir=place))
    scene.without_processes()
    world = _start(place, PlannedFaults())
    for verb in scene.VERBS.values():
        if verb.name in ("checkpoint", "restore", "task_set", "apply"):
            known = scene.begin(world, verb)
            verb.run(world)
            scene.judge(world, verb, known, None, undone_whole=True)
            world.app.removals.remove([scene.row_of(world)])
    world.close()
    faults.control(None)
    shutil.rmtree(place)


def _run_warm(case: Case, prepared: Path, place: Path) -> Outcome:
    """A case in a worker."""
    _warm_up(place.parent)
    return run_case(case, prepared, place)


@dataclass(frozen=True)
class Extent:
    """How many cases of each sort a verb gets at most, chosen by the seed. None: all there are."""

    singles: int | None = None
    pairs: int | None = None
    deaths: int | None = None


class Campaign:
    """Cases below root, run side by side by `workers` processes."""

    def __init__(self, place: Path, seed: int, workers: int) -> None:
        self._place, self._chance = place, random.Random(seed)
        self._workers = multiprocessing.get_context("fork").Pool(workers)
        self._numbers = itertools.count()
        self.outcomes: dict[str, Outcome] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.terminate()
        self._workers.join()
        del self._workers  # and with it its pipes

    def run_verb(self, name: str, extent: Extent) -> None:
        prepared = self._place / "prepared"
        if violations := prepare(prepared, scene.VERBS[name]):
            self.outcomes[name] = Outcome(violations=violations)
            return
        try:
            calls = self._run_cases(prepared, [Case(name)])[0].calls
            first = self._choose([*singles(name, calls, self._chance)], extent.singles)
            outcomes = list(zip(first, self._run_cases(prepared, first), strict=True))
            second: list[Case] = []
            last: list[Case] = []
            for case, outcome in outcomes:
                if case.faults[0].kind == "kill":
                    last += deaths(case, outcome.recovery_calls, self._chance)
                else:
                    second += pairs(case, outcome.calls, self._chance)
            self._run_cases(prepared, self._choose(second, extent.pairs))
            self._run_cases(prepared, self._choose(last, extent.deaths))
        finally:
            shutil.rmtree(prepared)

    def _choose(self, cases: list[Case], most: int | None) -> list[Case]:
        return cases if most is None or len(cases) <= most else self._chance.sample(cases, most)

    def _run_cases(self, prepared: Path, cases: Sequence[Case]) -> list[Outcome]:
        places = [(case, prepared, self._place / f"case-{next(self._numbers)}") for case in cases]
        outcomes = self._workers.starmap(_run_warm, places, chunksize=1)
        self.outcomes |= {case.name: outcome for case, outcome in zip(cases, outcomes, strict=True)}
        return outcomes
