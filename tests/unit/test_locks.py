"""Locks are taken in one order; the debug mode says when they are not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from waypoint.kernel import locks


@pytest.fixture(autouse=True)
def checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYPOINT_DEBUG_LOCKS", "1")
    monkeypatch.setattr(locks, "ORDER", ("outer", "middle", "inner"))


def test_locks_in_order_are_taken() -> None:
    outer, inner = locks.lock("outer"), locks.rlock("inner")
    with outer, inner, inner:
        pass
    with inner:
        pass


def test_a_lock_out_of_order_is_refused_before_it_blocks() -> None:
    outer, inner = locks.lock("outer"), locks.lock("inner")
    with inner, pytest.raises(locks.OutOfOrder, match=r"takes 'outer' and holds \['inner'\]"):
        outer.acquire()
    assert outer.acquire(timeout=0)
    outer.release()


def test_two_locks_of_one_name_are_not_held_together() -> None:
    one, other = locks.rlock("middle"), locks.rlock("middle")
    with one, pytest.raises(locks.OutOfOrder), other:
        pass


def test_a_try_that_does_not_wait_is_free() -> None:
    outer, inner = locks.lock("outer"), locks.lock("inner")
    with inner:
        assert outer.acquire(blocking=False)
        outer.release()


def test_a_condition_lets_go_of_its_lock_while_it_waits() -> None:
    condition, outer = locks.condition("inner"), locks.lock("outer")
    ready = threading.Event()

    def wait() -> bool:
        with condition, condition:
            ready.set()
            return condition.wait(5)

    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(wait)
        assert ready.wait(5)
        with condition:
            condition.notify_all()
        assert waiting.result(5)
        assert beside.submit(lambda: outer.acquire(timeout=1)).result(5)


def test_a_lock_released_by_another_thread_is_forgotten_by_its_own() -> None:
    inner, outer = locks.lock("inner"), locks.lock("outer")
    inner.acquire()
    with ThreadPoolExecutor(1) as beside:
        beside.submit(inner.release).result(5)
    with outer:
        pass


def test_without_the_debug_mode_they_are_plain_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAYPOINT_DEBUG_LOCKS")
    assert type(locks.lock("outer")) is type(threading.Lock())
    assert type(locks.rlock("outer")) is type(threading.RLock())
