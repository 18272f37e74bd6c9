"""Verdicts: what the end of a command says about a point, which points are good, and what broke it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from waypoint.core.bisect import Bisect, Culprit
from waypoint.errors import UsageError
from waypoint.history import refs
from waypoint.history.verdicts import deciding, standing, state_of
from waypoint.model import Checkpoint, RunResult, Verdict, VerdictState
from waypoint.store import Store
from waypoint.text import views


@pytest.mark.parametrize(
    ("code", "timed_out", "state"),
    [(0, False, "passed"), (1, False, "failed"), (126, False, "failed"), (125, False, "unclear"),
     (None, False, "failed"), (None, True, "timeout"), (0, True, "timeout"), (130, True, "timeout")],
)  # fmt: skip
def test_what_the_end_of_a_command_says(code: int | None, timed_out: bool, state: str) -> None:
    assert state_of(code, timed_out=timed_out) == state


def said(*words: str) -> list[Verdict]:
    """`pytest failed`, one after the other."""
    return [
        Verdict(id=number, command=word.split()[0], state=cast(VerdictState, word.split()[1]), at="")
        for number, word in enumerate(words)
    ]


@pytest.mark.parametrize(
    ("words", "left", "state"),
    [
        (["pytest failed", "true passed"], ["pytest failed", "true passed"], "failed"),
        (["pytest failed", "pytest passed"], ["pytest passed"], "passed"),
        (["pytest passed", "pytest failed"], ["pytest failed"], "failed"),
        (["pytest passed", "pytest timeout", "pytest unclear"], ["pytest passed"], "passed"),
        (["pytest timeout", "pytest error"], ["pytest error"], "error"),
        (["pytest timeout", "true passed"], ["pytest timeout", "true passed"], "passed"),
        (["pytest failed", "pytest running"], ["pytest failed"], "failed"),
        ([], [], None),
    ],
)
def test_another_command_that_passes_does_not_hide_a_failure(
    words: list[str], left: list[str], state: str | None
) -> None:
    found = standing(said(*words))
    assert [f"{verdict.command} {verdict.state}" for verdict in found] == left
    decides = deciding(found)
    assert (decides.state if decides else None) == state


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path / "waypoint.db")
    with found.database.transaction() as connection:
        connection.execute(
            "INSERT INTO sessions (id, name, state, created_at, options, head, points)"
            " VALUES ('s1', 'work', 'dead', 1, '{}', 'p6', 6)"
        )
        connection.executemany(
            "INSERT INTO checkpoints (id, session, number, intent, kind, parent, created_at, pause_ms,"
            " total_ms, size_bytes, processes, files_only, coverage)"
            " VALUES (?, 's1', ?, '', 'manual', ?, ?, 1, 1, 1, 1, 0, '[]')",
            [(f"p{n}", n, f"p{n - 1}" if n > 1 else None, n) for n in range(1, 7)],
        )
    yield found
    found.close()


def verify(store: Store, point: str, command: str, state: VerdictState, code: int | None = None) -> None:
    number = store.points.add_verdict(point, command)
    store.points.finish_verdict(number, state, exit_code=code, duration_ms=2000.0, output="")


def test_the_log_shows_both_commands_and_good_is_where_none_failed(store: Store) -> None:
    verify(store, "p1", "pytest", "passed", 0)
    verify(store, "p2", "pytest", "failed", 1)
    verify(store, "p2", "true", "passed", 0)
    verify(store, "p3", "pytest", "timeout")
    verify(store, "p4", "pytest", "unclear", 125)
    points = store.points.all("s1")
    plain = msgspec.to_builtins(points)
    assert [views.verdicts(point) for point in plain[:4]] == [
        "✔ pytest (in a fork, 2.0 s)",
        "✖ pytest exit 1 · ✔ true",
        "? pytest took longer than 2.0 s",
        "? pytest cannot tell (exit 125)",
    ]
    good = refs.resolve("good", points, points, "p6", now=cast(Any, None))
    assert good.id == "p1"
    verify(store, "p2", "pytest", "passed", 0)
    points = store.points.all("s1")
    assert refs.resolve("good", points, points, "p6", now=cast(Any, None)).id == "p2"


# ---- bisect ----------------------------------------------------------------------------------------------


class FakeTrials:
    """At each point the command ends as it is told to."""

    def __init__(self, ends: dict[str, int | None]) -> None:
        self.ends, self.tried = ends, list[str]()

    def run(self, point: Checkpoint, command: str, *, timeout: float) -> RunResult:
        self.tried.append(point.id)
        code = self.ends[point.id]
        return RunResult(exit_code=code, output="", duration_ms=1.0, timed_out=code is None)


def search(store: Store, ends: str) -> Culprit:
    """One letter for each point: . passes, x fails, ? ends with 125, t takes too long."""
    codes: dict[str, int | None] = {".": 0, "x": 1, "?": 125, "t": None}
    trials = FakeTrials({f"p{number}": codes[letter] for number, letter in enumerate(ends, 1)})
    registry = SimpleNamespace(store=store)
    gate = SimpleNamespace(check_trial=lambda *_: None)
    bisect = Bisect(cast(Any, registry), cast(Any, trials), cast(Any, gate))
    points = {point.id: point for point in store.points.all("s1")}
    found = bisect.search(
        cast(Any, None), points["p1"], points["p6"], "make", timeout=1, on_step=lambda step: None
    )
    assert len(set(trials.tried)) == len(trials.tried), "no point is tried twice"
    return found


@pytest.mark.parametrize(
    ("ends", "last_good", "culprit", "unclear"),
    [
        ("...xxx", "p3", "p4", []),
        (".xxxxx", "p1", "p2", []),
        (".....x", "p5", "p6", []),
        ("..?xxx", "p2", "p4", ["p3"]),
        ("..t?xx", "p2", "p5", ["p3", "p4"]),
        (".????x", "p1", "p6", ["p2", "p3", "p4", "p5"]),
        (".?..?x", "p4", "p6", ["p5"]),
        (".?x?xx", "p1", "p3", ["p2"]),
    ],
)
def test_what_cannot_tell_is_left_out(
    store: Store, ends: str, last_good: str, culprit: str, unclear: list[str]
) -> None:
    found = search(store, ends)
    assert (found.last_good.id, found.point.id) == (last_good, culprit)
    assert [point.id for point in found.unclear] == unclear


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ("t....x", "takes too long at c1"),
        ("?....x", r"cannot tell \(exit 125\) at c1"),
        (".....t", "takes too long at c6"),
        ("x....x", "fails at c1"),
        ("......", "passes at c6"),
    ],
)
def test_both_ends_must_be_clear(store: Store, ends: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        search(store, ends)
