"""Spares: which points have a twin that was restored ahead of time and waits for its first instruction.

A rollback to such a point is a matter of letting go. Here is the policy, and the one thread that carries
it out while nobody waits: what is wanted is said by the sessions (the point each stands on, then its named
ones), how many there may be and how much memory they may hold is limited, and when memory gets short all of
them go. A spare is worth something only if making it costs nobody anything: one is made at a time, and
after others' work.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from waypoint.errors import WaypointError
from waypoint.kernel.memory import machine_bytes

log = logging.getLogger("waypoint")

PER_SESSION = 2
"""How many a session has by default: the point it stands on, and its newest named one."""
_MOST = 16
"""How many there are at once, whatever the sessions want."""
_CALM_MOST_SECONDS = 1.0
_CALM_SECONDS = 0.05
"""How long nobody must have asked for anything before one is made: whoever asks next comes first."""
_FRESH_SECONDS = 60.0
"""How long one is held. Its monotonic clock runs meanwhile and cannot be set back: who gets it sees what he
would see if he had been stopped for so long. So it is made anew, until its session has long been idle."""
_IDLE_SECONDS = 600.0
"""When nobody has moved in a session for so long, its spares go."""
_PRESSURE = b"some 150000 1000000"
"""The kernel tells when tasks have waited for memory for 150 ms within a second."""


class Twin(Protocol):
    """What is held."""

    @property
    def alive(self) -> bool: ...


T = TypeVar("T", bound=Twin)


@dataclass(frozen=True)
class Wanted:
    """A point that should have a spare, and about how much memory that takes."""

    point: str
    size_bytes: int


def per_session() -> int:
    """How many a session has that does not say: WAYPOINT_SPARES (`off`, or a number), or the usual number."""
    given = os.environ.get("WAYPOINT_SPARES") or str(PER_SESSION)
    return min(int(given), _MOST) if given.isdecimal() else 0


def _machine_bytes() -> tuple[int, int]:
    """How much memory the machine has, and how much of it is free."""
    try:
        told = machine_bytes()
    except OSError:  # too many open files, say: then this is no time for spares
        return 0, 0
    return told["MemTotal"], told.get("MemAvailable", 0)


def budget_bytes(held_bytes: int = 0) -> int:
    """How much memory all of them may hold: WAYPOINT_SPARE_BYTES, or an eighth of what the machine has, but
    no more than a quarter of what would be free without those that are held now. (Else one that just fits
    would be too large as soon as it is there, and be thrown away and made again for ever.)"""
    given = os.environ.get("WAYPOINT_SPARE_BYTES")
    if given:
        return int(given) if given.isdecimal() else 0
    total, free = _machine_bytes()
    return min(total // 8, (free + held_bytes) // 4)


@dataclass(frozen=True)
class _Held(Generic[T]):
    twin: T
    until: float


def fresh_seconds() -> float:
    """How long one may be held: WAYPOINT_SPARE_SECONDS, or a minute."""
    given = os.environ.get("WAYPOINT_SPARE_SECONDS") or ""
    return float(given) if given.replace(".", "", 1).isdecimal() else _FRESH_SECONDS


class Spares(Generic[T]):
    """The spares of one home. `make` restores and holds a twin of a point, `end` throws one away."""

    def __init__(self, make: Callable[[str], T], end: Callable[[T], None]) -> None:
        self._make, self._end = make, end
        self._changed = threading.Condition()
        self._wanted: dict[str, tuple[float, Sequence[Wanted]]] = {}
        """By session, with when it said so; the most recent last."""
        self._held: dict[str, _Held[T]] = {}
        self._making: str | None = None
        self._failed: set[str] = set()
        self._calm_at = self._calm_by = 0.0
        self._closed = False
        self._worker: threading.Thread | None = None

    # ---- what sessions say -------------------------------------------------------------------

    def want(self, session_id: str, points: Sequence[Wanted]) -> None:
        """The points of a session that should have a spare, the most important first. None: nothing any
        more."""
        with self._changed:
            self._wanted.pop(session_id, None)
            if points and not self._closed:
                self._wanted[session_id] = (time.monotonic(), points)
                if self._worker is None:
                    self._worker = threading.Thread(target=self._work, name="spares", daemon=True)
                    self._worker.start()
                    threading.Thread(target=self._watch_memory, name="memory", daemon=True).start()
            self._calm_at = time.monotonic() + _CALM_SECONDS
            self._calm_by = time.monotonic() + _CALM_MOST_SECONDS
            self._changed.notify_all()

    def busy(self, seconds: float = _CALM_SECONDS) -> None:
        """Somebody waits for something: what is made for later can wait, but not for ever."""
        self._calm_at = min(time.monotonic() + seconds, self._calm_by)

    def take(self, point_id: str, suits: Callable[[T], bool] = lambda _: True) -> T | None:
        """The spare of a point, the caller's from now on, if it suits. One that is being made is waited for:
        it will be there sooner than another."""
        with self._changed:
            while self._making == point_id:
                self._changed.wait()
            found = self._held.get(point_id)
            if found and not suits(found.twin):
                return None
            self._held.pop(point_id, None)
            self._calm_at = time.monotonic() + _CALM_SECONDS
            self._calm_by = time.monotonic() + _CALM_MOST_SECONDS
            self._changed.notify_all()
        if found is None:
            return None
        if found.twin.alive and time.monotonic() < found.until:
            return found.twin
        self._throw_away(found.twin)
        return None

    def drop(self, points: Sequence[str]) -> None:
        """Throws the spares of these points away, and waits until they are gone."""
        with self._changed:
            for session_id, (at, wanted) in self._wanted.items():
                kept = [one for one in wanted if one.point not in points]
                self._wanted[session_id] = (at, kept)
            while self._making in points:
                self._changed.wait()
            dropped = [self._held.pop(point) for point in points if point in self._held]
            self._failed.difference_update(points)
        for one in dropped:
            self._throw_away(one.twin)

    def drop_all(self) -> None:
        """Under pressure, or at the end."""
        with self._changed:
            points = [*self._held, *([self._making] if self._making else [])]
        self.drop(points)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._changed.notify_all()
        self.drop_all()
        if self._worker:
            self._worker.join()  # it may be throwing one away

    def held(self) -> list[str]:
        """The points that have one now."""
        with self._changed:
            return list(self._held)

    # ---- the thread that makes them ----------------------------------------------------------

    def _chosen(self) -> list[str]:
        """What should be held now: the first wish of every session before anybody's second, of sessions that
        asked last before others, as long as there is room."""
        now = time.monotonic()
        sizes = {one.point: one.size_bytes for _, points in self._wanted.values() for one in points}
        left = budget_bytes(sum(sizes.get(point, 0) for point in self._held))
        found: list[str] = []
        recent = [points for at, points in reversed(self._wanted.values()) if now < at + _IDLE_SECONDS]
        for rank in range(max(map(len, recent), default=0)):
            for points in recent:
                if rank >= len(points) or points[rank].point in found or len(found) == _MOST:
                    continue
                if points[rank].size_bytes <= left and points[rank].point not in self._failed:
                    left -= points[rank].size_bytes
                    found.append(points[rank].point)
        return found

    def _next(self) -> tuple[list[T], str | None]:
        """Waits until there is something to do: what to throw away, then what to make. Neither at the end."""
        with self._changed:
            while True:
                now, chosen = time.monotonic(), self._chosen()
                over = [point for point, one in self._held.items() if point not in chosen or one.until <= now]
                if over:
                    return [self._held.pop(point).twin for point in over], None
                if self._closed:
                    return [], None
                missing = next((point for point in chosen if point not in self._held), None)
                if missing is None:
                    stale_in = min((one.until - now for one in self._held.values()), default=None)
                    self._changed.wait(stale_in)
                elif now < self._calm_at:
                    self._changed.wait(self._calm_at - now)
                else:
                    self._making = missing
                    return [], missing

    def _work(self) -> None:
        while True:
            over, missing = self._next()
            if not over and missing is None:
                return
            for one in over:
                self._throw_away(one)
            if missing is not None:
                self._hold(missing)

    def _hold(self, point: str) -> None:
        made = None
        try:
            made = self._make(point)
        except (OSError, WaypointError) as error:
            # A spare is best effort. The restore itself will say what is wrong, if somebody asks for it.
            log.warning("no spare for %s: %s", point, error)
        except Exception:
            log.exception("no spare for %s", point)
        with self._changed:
            self._making = None
            if made is not None:
                self._held[point] = _Held(made, time.monotonic() + fresh_seconds())
            else:
                self._failed.add(point)
            self._changed.notify_all()

    def _throw_away(self, one: T) -> None:
        try:
            self._end(one)
        except Exception:
            log.exception("a spare could not be ended")

    def _watch_memory(self) -> None:
        """Sleeps in the kernel until memory gets short. Where that cannot tell, the budget has to do."""
        try:
            pressure = os.open("/proc/pressure/memory", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(pressure, _PRESSURE)
        except OSError:
            return
        poll = select.poll()
        poll.register(pressure, select.POLLPRI)
        while not self._closed:
            for _, event in poll.poll(60_000):
                if event & select.POLLERR:
                    return
                if self.held():
                    log.info("memory is short: spares are dropped")
                with self._changed:
                    self._wanted.clear()
                self.drop_all()
        with contextlib.suppress(OSError):
            os.close(pressure)
