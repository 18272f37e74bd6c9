"""Which points have a spare, decided without any: what is made and ended here only says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.core import spares
from waypoint.core.background import Background, Patience
from waypoint.core.spares import Spares, Wanted
from waypoint.errors import NotFound
from waypoint.home import Settings
from waypoint.store import Store

MEGABYTE = 1 << 20


class Twin:
    def __init__(self, point: str) -> None:
        self.point = point
        self.alive = True


class World:
    """Who makes and ends, and how long that takes."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.ended: list[str] = []
        self.go = threading.Event()
        self.go.set()
        self.broken: set[str] = set()

    def make(self, point: str) -> Twin:
        self.made.append(point)
        assert self.go.wait(10)
        if point in self.broken:
            raise NotFound(point)
        return Twin(point)

    def end(self, twin: Twin) -> None:
        self.ended.append(twin.point)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def made(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Spares[Twin]]:
    settings = Settings(spare_bytes=10 * MEGABYTE)
    store = Store(tmp_path / "db")
    found: Spares[Twin] = Spares(store, Background(), settings)
    found.start(world.make, world.end)
    yield found
    world.go.set()
    found.close()
    store.close()
    assert sorted(world.made) == sorted([*world.ended, *world.broken]), "each is ended in the end"


def until(happened: object, *args: object) -> None:
    assert callable(happened)
    deadline = time.monotonic() + 10
    while not happened(*args):
        assert time.monotonic() < deadline, "never happens"
        time.sleep(0.002)


def want(made: Spares[Twin], session: str, *points: str, size_bytes: int = MEGABYTE) -> None:
    made.want(session, [Wanted(point, size_bytes) for point in points])


def test_a_point_without_a_spare_is_proven_when_idle_and_the_copy_ends(
    made: Spares[Twin], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "PROOFS", Patience(0.0, 0.0))
    made.want_proof("a", Wanted("p1", MEGABYTE))
    until(lambda: world.ended == ["p1"])
    assert made.held() == []
    want(made, "a", "p2")
    until(lambda: made.held() == ["p2"])
    made.want_proof("a", Wanted("p2", MEGABYTE))
    made.want_proof("b", Wanted("p3", MEGABYTE))
    until(lambda: world.ended == ["p1", "p3"])
    assert world.made == ["p1", "p2", "p3"], "the spare of p2 is its proof"


def test_what_is_wanted_is_made_and_what_is_no_longer_wanted_ends(made: Spares[Twin], world: World) -> None:
    want(made, "a", "p1", "p2")
    until(lambda: sorted(made.held()) == ["p1", "p2"])
    assert world.made == ["p1", "p2"], "the most important first"
    want(made, "a", "p3", "p1")
    until(lambda: sorted(made.held()) == ["p1", "p3"])
    assert world.ended == ["p2"]


def test_one_that_is_taken_is_made_again(made: Spares[Twin], world: World) -> None:
    want(made, "a", "p1")
    until(lambda: made.held() == ["p1"])
    taken = made.take("p1")
    assert taken is not None
    assert taken.point == "p1"
    until(lambda: made.held() == ["p1"])
    assert world.made == ["p1", "p1"]
    world.ended.append("p1")  # the taken one is the caller's to end
    assert made.take("nothing of the kind") is None


def test_one_that_is_being_made_is_waited_for(made: Spares[Twin], world: World) -> None:
    world.go.clear()
    want(made, "a", "p1")
    until(lambda: world.made == ["p1"])
    threading.Timer(0.05, world.go.set).start()
    taken = made.take("p1")
    assert taken is not None
    assert taken.point == "p1"
    world.ended.append("p1")


def test_one_whose_making_hangs_blocks_no_verb(
    made: Spares[Twin], world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spares, "_TAKE_SECONDS", 0.05)
    monkeypatch.setattr(spares, "_DROP_SECONDS", 0.05)
    world.go.clear()
    want(made, "a", "p1")
    until(lambda: world.made == ["p1"])
    assert made.take("p1") is None, "the verb makes a copy of its own"
    made.drop(["p1"])
    assert "does not come to an end" in caplog.text
    world.go.set()
    until(lambda: world.ended == ["p1"])
    assert made.held() == []


def test_the_first_wish_of_each_session_comes_before_the_second_of_any(
    made: Spares[Twin], world: World
) -> None:
    world.go.clear()
    want(made, "a", "a1", "a2", size_bytes=4 * MEGABYTE)
    until(lambda: world.made == ["a1"])
    want(made, "b", "b1", "b2", size_bytes=4 * MEGABYTE)
    world.go.set()
    until(lambda: sorted(made.held()) == ["a1", "b1"])
    time.sleep(0.02)
    assert sorted(made.held()) == ["a1", "b1"], "no room for a third"


def test_a_point_larger_than_the_budget_has_none(made: Spares[Twin]) -> None:
    want(made, "a", "huge", size_bytes=11 * MEGABYTE)
    want(made, "b", "small")
    until(lambda: made.held() == ["small"])


def test_a_point_that_several_want_has_one(made: Spares[Twin], world: World) -> None:
    for session in "abc":
        want(made, session, "p1")
    until(lambda: made.held() == ["p1"])
    assert world.made == ["p1"]


def test_a_failure_is_not_tried_for_ever(made: Spares[Twin], world: World) -> None:
    world.broken.add("bad")
    want(made, "a", "bad", "good")
    until(lambda: made.held() == ["good"])
    assert world.made == ["bad", "good"]
    assert made.take("bad") is None


def test_one_is_gone_with_its_point(made: Spares[Twin], world: World) -> None:
    want(made, "a", "p1", "p2")
    until(lambda: len(made.held()) == 2)
    made.drop(["p1"])
    assert world.ended == ["p1"], "and that is over when drop returns"
    assert made.held() == ["p2"]


def test_one_that_is_being_made_is_gone_with_its_point_too(made: Spares[Twin], world: World) -> None:
    world.go.clear()
    want(made, "a", "p1")
    until(lambda: world.made == ["p1"])
    threading.Timer(0.05, world.go.set).start()
    made.drop(["p1"])
    assert world.ended == ["p1"]
    assert made.held() == []


def test_one_that_died_is_not_given_away(made: Spares[Twin], world: World) -> None:
    world.go.clear()
    want(made, "a", "p1")
    world.go.set()
    until(lambda: made.held() == ["p1"])
    made._held["p1"].spare.alive = False
    assert made.take("p1") is None
    until(lambda: made.held() == ["p1"])


def test_one_that_was_held_for_long_is_made_anew(
    made: Spares[Twin], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.settings = made.settings._replace(spare_seconds=0.05)
    want(made, "a", "p1")
    until(lambda: len(world.made) > 2)
    made.settings = made.settings._replace(spare_seconds=60)


def test_an_idle_session_keeps_none(
    made: Spares[Twin], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.settings = made.settings._replace(spare_seconds=0.05)
    monkeypatch.setattr(spares, "_IDLE_SECONDS", 0.2)
    want(made, "a", "p1")
    until(lambda: made.held() == ["p1"])
    until(lambda: made.held() == [])


def test_one_that_just_fits_is_not_thrown_away_for_the_memory_it_takes_itself(
    made: Spares[Twin], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    size_bytes = 22 * MEGABYTE

    def machine_bytes() -> tuple[int, int]:
        return 1000 * MEGABYTE, 100 * MEGABYTE - size_bytes * (len(world.made) - len(world.ended))

    made.settings = made.settings._replace(spare_bytes=None)
    monkeypatch.setattr(spares, "_machine_bytes", machine_bytes)
    want(made, "a", "p1", size_bytes=size_bytes)
    until(lambda: made.held() == ["p1"])
    for _ in range(20):  # the worker looks again each time
        want(made, "a", "p1", size_bytes=size_bytes)
        time.sleep(0.002)
    assert world.made == ["p1"]
    assert world.ended == []
