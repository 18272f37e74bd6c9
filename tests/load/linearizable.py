"""Whether what clients were told fits one order of what they did.

Each operation on a session takes effect in one or more steps between its call and its answer. A history is
linearizable if the steps of all operations can be put into one order in which every answer is right. The
check goes through the calls and answers in the order of time and keeps every state that the session can be
in (the algorithm of Lowe, "Testing for linearizability", 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

MOST_STATES = 200_000


class State(NamedTuple):
    """A session: the value in its shell's memory, and the value in its file. `kept`: presents that stand
    still, each with both values: no client can look into one before an undo lets it run again."""

    memory: int = 0
    file: int = 0
    kept: tuple[tuple[str, int, int], ...] = ()


Step = Callable[[State], State | None]
"""What an operation does to a session; None when its answer would be wrong."""


@dataclass(frozen=True)
class Operation:
    """One request. `certain` is False when it failed in a way that leaves open how much of it was done."""

    called_at: float
    answered_at: float
    text: str
    steps: tuple[Step, ...]
    certain: bool = True


def set_memory(value: int) -> Step:
    return lambda state: state._replace(memory=value)


def set_file(value: int) -> Step:
    return lambda state: state._replace(file=value)


def memory_is(value: int) -> Step:
    return lambda state: state if state.memory == value else None


def file_is(value: int) -> Step:
    return lambda state: state if state.file == value else None


def is_in(held: State) -> Step:
    """A point is taken that was found to hold this."""
    return lambda state: state if (state.memory, state.file) == (held.memory, held.file) else None


def become(held: State) -> Step:
    """The session goes to a point that was found to hold this."""
    return lambda state: state._replace(memory=held.memory, file=held.file)


def keep(present: str) -> Step:
    """A present begins to stand still."""
    return lambda state: state._replace(kept=(*state.kept, (present, state.memory, state.file)))


def run_again(present: str) -> Step:
    """The session goes back into a present that stands still."""

    def step(state: State) -> State | None:
        for one in state.kept:
            if one[0] == present:
                return State(one[1], one[2], tuple(other for other in state.kept if other != one))
        return None

    return step


class _Configuration(NamedTuple):
    """A state that the session may be in, and how many steps of each open operation it includes."""

    state: State
    done: tuple[tuple[int, int], ...]


def explain(history: Iterable[Operation]) -> str | None:
    """None when the history is linearizable, else the first answer that fits no order."""
    operations = sorted(history, key=lambda operation: operation.called_at)
    configurations = {_Configuration(State(), ())}
    opened: set[int] = set()
    for is_answer, number in _events(operations):
        operation = operations[number]
        if not is_answer:
            opened.add(number)
            continue
        reached = _expand(configurations, operations, opened)
        if operation.certain:
            steps = len(operation.steps)
            reached = {one for one in reached if dict(one.done).get(number, 0) == steps}
        if not reached:
            near = [operations[other].text for other in sorted(opened)]
            return f"{operation.text} fits no order of {near}"
        opened.remove(number)
        configurations = {
            one._replace(done=tuple(pair for pair in one.done if pair[0] != number)) for one in reached
        }
    return None


def _events(operations: list[Operation]) -> Iterator[tuple[bool, int]]:
    moments = [(operation.called_at, False, number) for number, operation in enumerate(operations)]
    moments += [(operation.answered_at, True, number) for number, operation in enumerate(operations)]
    for _, is_answer, number in sorted(moments):
        yield is_answer, number


def _expand(
    configurations: set[_Configuration], operations: list[Operation], opened: set[int]
) -> set[_Configuration]:
    """Everything that can be reached by further steps of the operations that are open."""
    reached, waiting = set(configurations), list(configurations)
    while waiting:
        state, done = waiting.pop()
        counts = dict(done)
        for number in opened:
            count = counts.get(number, 0)
            if count == len(operations[number].steps):
                continue
            after = operations[number].steps[count](state)
            if after is None:
                continue
            new = _Configuration(after, tuple(sorted({**counts, number: count + 1}.items())))
            if new not in reached:
                reached.add(new)
                waiting.append(new)
        assert len(reached) <= MOST_STATES, "too many operations at the same time to be checked"
    return reached
