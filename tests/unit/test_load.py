"""The checker of `make load` itself: it accepts what can have happened, and finds what cannot."""

from __future__ import annotations

import pytest
from tests.load.linearizable import (
    Operation,
    State,
    Step,
    become,
    explain,
    file_is,
    is_in,
    keep,
    memory_is,
    run_again,
    set_file,
    set_memory,
)


def operation(begin: float, end: float, *steps: Step, certain: bool = True) -> Operation:
    return Operation(begin, end, f"{begin:g}-{end:g}", steps, certain)


def write(begin: float, end: float, value: int, *, certain: bool = True) -> Operation:
    return operation(begin, end, set_memory(value), set_file(value), certain=certain)


def read(begin: float, end: float, memory: int, file: int | None = None) -> Operation:
    return operation(begin, end, memory_is(memory), file_is(memory if file is None else file))


def take(begin: float, end: float, memory: int, file: int | None = None) -> Operation:
    return operation(begin, end, is_in(State(memory, memory if file is None else file)))


RESTORE = operation(7, 8, become(State(1, 1)))


@pytest.mark.parametrize(
    "history",
    [
        [],
        [write(0, 1, 1), read(2, 3, 1)],
        [write(0, 5, 1), read(1, 2, 0), read(3, 4, 1)],
        [write(1, 2, 1), take(3, 4, 1), write(5, 6, 2), RESTORE, read(9, 10, 1)],
        [write(1, 2, 1), write(2.5, 5, 2), take(3, 4, 2, 1), RESTORE, read(9, 10, 1)],
        [write(0, 1, 1), write(2, 3, 2, certain=False), read(4, 5, 1)],
        [write(0, 1, 1), write(2, 3, 2, certain=False), read(4, 5, 2, 1)],
    ],
)
def test_what_fits_an_order_is_accepted(history: list[Operation]) -> None:
    assert explain(history) is None


@pytest.mark.parametrize(
    ("history", "wrong"),
    [
        ([write(0, 1, 1), read(2, 3, 0)], "2-3"),
        ([write(0, 5, 1), read(1, 2, 1), read(3, 4, 0)], "3-4"),
        ([write(1, 2, 1), take(3, 4, 1), write(5, 6, 2), RESTORE, read(9, 10, 2)], "9-10"),
        ([write(1, 2, 1), read(3, 4, 1, 0)], "3-4"),
        ([write(1, 2, 2), take(3, 4, 1)], "3-4"),
        ([write(1, 2, 1), write(2.5, 5, 2), take(3, 4, 1, 2)], "3-4"),
        ([RESTORE, read(9, 10, 2)], "9-10"),
    ],
)
def test_what_fits_none_is_found(history: list[Operation], wrong: str) -> None:
    assert (explain(history) or "").startswith(f"{wrong} fits no order")


def test_a_present_that_runs_again_holds_what_it_held_when_it_was_stopped() -> None:
    def told(at: int, text: str, *steps: Step) -> Operation:
        return Operation(at, at + 0.5, text, steps)

    history = [
        told(0, "write 1", set_memory(1), set_file(1)),
        told(1, "restore", keep("safety"), become(State(0, 0))),
        told(2, "undo", run_again("safety")),
    ]
    assert explain([*history, told(3, "read 1", memory_is(1), file_is(1))]) is None
    assert (explain([*history, told(3, "read 0", memory_is(0))]) or "").startswith("read 0 fits no order")
