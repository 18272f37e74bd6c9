"""Waiting in tests: until a condition holds, with a limit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Literal, TypeVar

import waypoint

T = TypeVar("T")
Revive = Callable[[waypoint.Session, waypoint.Checkpoint], waypoint.Session]
"""Restores a point, as the session itself or as a fork; returns the session to look at."""


def until(condition: Callable[[], T | Literal[False] | None], seconds: float = 60.0) -> T:
    """Waits until the condition holds. Returns what it returned; fails after the limit."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds:g} s"
        time.sleep(0.02)
    return value


def shows(session: waypoint.Session, pattern: str, seconds: float = 20.0) -> None:
    """Waits until the screen shows a pattern."""
    deadline = time.monotonic() + seconds
    while not re.search(pattern, screen := session.screen(), re.MULTILINE):
        assert time.monotonic() < deadline, f"the screen shows no {pattern!r}:\n{screen}"
        time.sleep(0.02)
