"""When background work begins: when the daemon is idle, or when it has waited long enough."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from waypoint.core.background import AFTER_AN_ANSWER, Background, Patience


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    made.close()


def test_an_idle_daemon_begins_at_once(background: Background) -> None:
    assert background.seconds_until_idle(Patience(10, 60), time.monotonic()) == 0


def test_work_waits_for_a_foreground_verb_and_a_moment_after_it(background: Background) -> None:
    patience = Patience(quiet_seconds=10, most_seconds=60)
    with background.foreground():
        assert background.seconds_until_idle(patience, time.monotonic()) == pytest.approx(10, abs=1)
    assert background.seconds_until_idle(patience, time.monotonic()) == pytest.approx(10, abs=1)


def test_work_does_not_wait_longer_than_its_patience(background: Background) -> None:
    patience = Patience(quiet_seconds=10, most_seconds=60)
    with background.foreground():
        assert background.seconds_until_idle(patience, time.monotonic() - 55) == pytest.approx(5, abs=1)
        assert background.seconds_until_idle(patience, time.monotonic() - 60) == 0
        begun = time.monotonic()
        background.run_when_idle(lambda: None).result()
        assert time.monotonic() - begun >= AFTER_AN_ANSWER.most_seconds / 2


def test_a_failure_is_logged_and_stops_nothing(
    background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    background.run(lambda: 1 // 0).result()
    assert "background work failed" in caplog.text
    done = threading.Event()
    background.run(done.set).result()
    assert done.is_set()


def test_work_that_piles_up_begins_at_once(background: Background) -> None:
    begun = time.monotonic()
    with background.foreground():
        futures = [background.run_when_idle(lambda: None) for _ in range(40)]
        for future in futures:
            future.result()
    assert time.monotonic() - begun < 5
