"""Many clients at once: random operations on a few sessions, compared with a model of a session.

What a point holds is found out at the end: each point that a client went to or copied is forked once more,
and the fork is asked. So every point has to hold then what it held when it was taken.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.load import linearizable as model
from tests.load.linearizable import Operation, State, Step

import waypoint

_WEIGHTS = {
    "write": 40,
    "read": 28,
    "checkpoint": 11,
    "restore": 7,
    "undo": 4,
    "fork": 2,
    "look": 6,
    "tag": 2,
}
_REFUSALS = ("busy", "dead", "usage", "not_found", "already_exists")
"""Errors that a client may get because of what other clients do at the same time. They change nothing."""
_MOST_POINTS = 12
_COMPARED_AT_ONCE = 4


@dataclass(frozen=True)
class _Done:
    """An operation that was answered. `took`, `went_to`: points. `ran_again`: the latter was
    pending, and is none any more."""

    called_at: float
    answered_at: float
    text: str
    steps: tuple[Step, ...] = ()
    took: str = ""
    went_to: str = ""
    certain: bool = True
    ran_again: bool = False

    def operation(self, held: Mapping[str, State], ran_again: Collection[str]) -> Operation:
        """With what its points were found to hold. It is not known of points that no client went to.
        `ran_again`: the points that were pending and are none any more."""
        steps = [model.is_in(held[self.took])] if self.took in held else []
        steps += [model.keep(self.took)] if self.took in ran_again else []
        if self.ran_again:
            steps.append(model.run_again(self.went_to))
        elif self.went_to:
            steps.append(model.become(held[self.went_to]))
        return Operation(
            self.called_at, self.answered_at, self.text, (*self.steps, *steps), certain=self.certain
        )


@dataclass
class _Shared:
    """What the clients of one session know in common."""

    name: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    points: list[str] = field(default_factory=list)
    copied: dict[str, State] = field(default_factory=dict)
    """What forks of points were found to hold."""
    history: list[_Done] = field(default_factory=list)

    def remember(self, point: str) -> None:
        with self.lock:
            self.points = [*self.points, point][-_MOST_POINTS:]


@dataclass
class Outcome:
    """What a campaign did, and what was wrong."""

    operations: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    points: int = 0
    """Points that were looked at once more at the end."""
    violations: list[str] = field(default_factory=list)


class _Client:
    """One client: a thread with connections of its own."""

    def __init__(
        self, home: Path, shared: _Shared, random: Random, values: Callable[[], int], outcome: Outcome
    ) -> None:
        self._client = waypoint.Client(home)
        self._shared, self._random, self._values, self._outcome = shared, random, values, outcome
        self._session = self._client.session(shared.name)

    def work(self, count: int) -> None:
        try:
            for _ in range(count):
                kind = self._random.choices([*_WEIGHTS], [*_WEIGHTS.values()])[0]
                done = self._do(kind)
                self._outcome.operations[kind] += 1
                with self._shared.lock:
                    self._shared.history.append(done)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            self._outcome.violations.append(f"{self._shared.name}: {type(error).__name__}: {error}")
        finally:
            self._client.close()

    def _do(self, kind: str) -> _Done:
        begun = time.monotonic()
        target = self._random.choice(self._shared.points) if self._shared.points else ""
        value = self._values()
        told, took, went_to, certain, ran_again = "", "", "", True, False
        steps: tuple[Step, ...] = ()
        try:
            match kind:
                case "write":
                    told, steps = str(value), (model.set_memory(value), model.set_file(value))
                    command = f"V={value}; echo {value} >/srv/value.new; mv /srv/value.new /srv/value"
                    self._session.run(command, timeout=60).check()
                case "read":
                    state = read(self._session)
                    told, steps = str(state), (model.memory_is(state.memory), model.file_is(state.file))
                case "checkpoint":
                    took = self._session.checkpoint().id
                case "restore" if target:
                    took, went_to, ran_again = _moved(self._session.restore(target))
                case "undo":
                    took, went_to, ran_again = _moved(self._session.undo())
                case "fork" if target:
                    self._shared.copied[target] = _copied(self._session, target, f"copy-{value}")
                case "look":
                    self._session.log()
                    self._session.status()
                    self._client.sessions()
                case "tag" if target:
                    named = {"name": f"t{value}", "session": self._shared.name, "ref": target}
                    self._client.call("tag", named)
        except waypoint.WaypointError as error:
            if error.code not in _REFUSALS:
                raise
            self._outcome.refused[f"{kind}: {error.code}"] += 1
            certain = kind != "write"  # its shell may have ended at any step
            steps = () if certain else steps
        if took:
            self._shared.remember(took)
        text = f"{kind} {told or took} {went_to} ({begun:.3f})"
        return _Done(begun, time.monotonic(), text, steps, took, went_to, certain, ran_again)


def read(session: waypoint.Session) -> State:
    memory, file = session.run('echo "$V" "$(cat /srv/value)"', timeout=60).check().output.split()
    return State(int(memory), int(file))


def _moved(restored: waypoint.Restored) -> tuple[str, str, bool]:
    """The point that was taken, the one that was gone to, and whether that was still pending."""
    point = restored.checkpoint
    return restored.safety.id if restored.safety else "", point.id, point.pending


def _copied(session: waypoint.Session, point: str, name: str) -> State:
    (copy,) = session.fork(ref=point, name=name)
    try:
        return read(copy)
    finally:
        copy.remove()


def run(home: Path, operations: int, seed: int, *, sessions: int = 8, clients: int = 32) -> Outcome:
    """Has so many clients carry out so many operations, and compares all answers with the model."""
    outcome, numbers = Outcome(), itertools.count(1)
    with contextlib.closing(waypoint.Client(home)) as client:
        all_shared = [_Shared(f"load-{number}") for number in range(sessions)]
        for shared in all_shared:
            session = client.new(shared.name, options=waypoint.BoxOptions(net="none"))
            session.run("V=0; mkdir -p /srv; echo 0 >/srv/value").check()
        workers = [
            _Client(
                home,
                all_shared[number % sessions],
                Random(f"{seed} {number}"),
                lambda: next(numbers),
                outcome,
            )
            for number in range(clients)
        ]
        threads = [threading.Thread(target=worker.work, args=(operations // clients,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with ThreadPoolExecutor(_COMPARED_AT_ONCE) as comparing:
            for points, violations in comparing.map(lambda shared: _compare(home, shared), all_shared):
                outcome.points += points
                outcome.violations += violations
    return outcome


def _compare(home: Path, shared: _Shared) -> tuple[int, list[str]]:
    """How many points of a session were looked at once more, and what was wrong. The session is removed."""
    ran_again = {done.went_to for done in shared.history if done.ran_again}
    used = {done.went_to for done in shared.history if done.went_to} - ran_again | shared.copied.keys()
    with contextlib.closing(waypoint.Client(home)) as client:
        session = client.session(shared.name)
        held = {point: _copied(session, point, f"{shared.name}-end") for point in sorted(used)}
        session.remove()
    wrong = [
        f"{shared.name}: {point} held {before} and holds {held[point]}"
        for point, before in shared.copied.items()
        if before != held[point]
    ]
    if problem := model.explain(done.operation(held, ran_again) for done in shared.history):
        wrong.append(f"{shared.name}: {problem}")
    return len(held), wrong
