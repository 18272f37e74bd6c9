"""Spares: which points have a copy that was restored ahead of time and waits for its first instruction.

A restore to such a point only has to release it. Here is the policy, and the one thread that carries it out
when the daemon is idle. Each session wants some: for the point it stands on, then for its named ones. How
many there may be and how much memory they may hold is limited, and when memory gets short all of them go. A
spare is worth something only if making it delays no verb: one is made at a time, after other work.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from waypoint.core.background import PROOFS, SPARES, Background
from waypoint.errors import WaypointError
from waypoint.home import MOST_SPARES, Settings
from waypoint.kernel import faults, locks
from waypoint.kernel.memory import machine_bytes
from waypoint.store import Store

log = logging.getLogger("waypoint")

_IDLE_SECONDS = 600.0
"""The spares of a session that has taken no point and made no restore for so long go."""
_TAKE_SECONDS = 5.0
"""How long a verb waits for a spare that is being made, before it makes a copy of its own."""
_DROP_SECONDS = 90.0
"""How long the end of a spare that is being made is waited for: longer than CRIU may do nothing."""
_PRESSURE = b"some 150000 1000000"
"""The kernel tells when tasks have waited for memory for 150 ms within a second."""


class Spare(Protocol):
    """What is held."""

    @property
    def alive(self) -> bool: ...


T = TypeVar("T", bound=Spare)


@dataclass(frozen=True)
class Wanted:
    """A point that should have a spare, and about how much memory that takes."""

    point: str
    size_bytes: int


def _machine_bytes() -> tuple[int, int]:
    """How much memory the machine has, and how much of it is free."""
    try:
        sizes = machine_bytes()
    except OSError:  # too many open files, say: then this is no time for spares
        return 0, 0
    return sizes["MemTotal"], sizes.get("MemAvailable", 0)


def budget_bytes(held_bytes: int = 0) -> int:
    """How much memory all of them may hold when nothing is set: an eighth of what the machine has, but no
    more than a quarter of what would be free without those that are held now. (Else one that just fits would
    be too large as soon as it is there, and be thrown away and made again for ever.)"""
    total, free = _machine_bytes()
    return min(total // 8, (free + held_bytes) // 4)


@dataclass(frozen=True)
class _Held(Generic[T]):
    spare: T
    until: float


class Spares(Generic[T]):
    """The spares of one home. None is made before `start`."""

    def __init__(self, store: Store, background: Background, settings: Settings) -> None:
        self._store, self._background, self.settings = store, background, settings
        self._make: Callable[[str], T] | None = None
        self._end: Callable[[T], None] = lambda _: None
        self._changed = locks.condition("spares")
        self._wanted: dict[str, tuple[float, Sequence[Wanted]]] = {}
        """By session, with the time of the wish; the most recent last."""
        self._unproven: dict[str, Wanted] = {}
        """By session, its newest point, as long as no restore has shown that it can be restored."""
        self._held: dict[str, _Held[T]] = {}
        self._making: str | None = None
        self._proving = False
        """Whether what is being made is a proof, and ends at once."""
        self._failed: set[str] = set()
        self._waiting_since = 0.0
        self._closed = False
        self._worker: threading.Thread | None = None

    def start(self, make: Callable[[str], T], end: Callable[[T], None]) -> None:
        """`make` restores and holds a copy of a point, `end` throws one away."""
        with self._changed:
            self._make, self._end = make, end
            self._wake()

    # ---- what sessions want ------------------------------------------------------------------

    def update(self, session_id: str) -> None:
        """Chooses which points of a session should have one: where it stands, then its newest named ones."""
        row = self._store.sessions.find(session_id)
        number = 0
        if row and row.state == "live":
            number = self.settings.spares if row.options.spares is None else row.options.spares
        points = self._store.points.likely_targets(session_id, number) if number else []
        self.want(session_id, [Wanted(point, size_bytes) for point, size_bytes in points])
        self.update_proof(session_id)

    def update_proof(self, session_id: str) -> None:
        """Whether the point that a session stands on has still to be proven."""
        row = self._store.sessions.find(session_id)
        head = self._store.points.find(row.head) if row and row.head and self.settings.prove else None
        needs_proof = head is not None and not head.files_only and head.restorable == "unproven"
        self.want_proof(session_id, Wanted(head.id, head.size_bytes) if head and needs_proof else None)

    def want_proof(self, session_id: str, point: Wanted | None) -> None:
        """The newest point of a session that no restore has tried yet. If it gets no spare, a copy of it is
        made when the daemon is idle, and thrown away: that shows whether it can be restored."""
        with self._changed:
            self._unproven.pop(session_id, None)
            if point and not self._closed:
                self._unproven[session_id] = point
            self._wake()

    def want(self, session_id: str, points: Sequence[Wanted]) -> None:
        """The points of a session that should have a spare, the most important first."""
        with self._changed:
            self._wanted.pop(session_id, None)
            if points and not self._closed:
                self._wanted[session_id] = (time.monotonic(), points)
            self._wake()

    def _wake(self) -> None:
        """Lets the thread look again; starts it when it has something to do for the first time."""
        if self._worker is None and (self._wanted or self._unproven) and self._make:
            self._worker = threading.Thread(target=self._work, name="spares", daemon=True)
            self._worker.start()
            threading.Thread(target=self._watch_memory, name="memory", daemon=True).start()
        self._waiting_since = time.monotonic()
        self._changed.notify_all()

    def take(self, point_id: str, suits: Callable[[T], bool] = lambda _: True) -> T | None:
        """The spare of a point, if it suits; it is the caller's from now on. One that is being made is waited
        for: it will be there sooner than another copy, unless something hangs. (Not a proof: that one
        ends.)"""
        with self._changed:
            self._changed.wait_for(lambda: self._making != point_id or self._proving, _TAKE_SECONDS)
            held = self._held.get(point_id)
            if held and not suits(held.spare):
                return None
            self._held.pop(point_id, None)
            self._wake()
        if held is None:
            return None
        if held.spare.alive and time.monotonic() < held.until:
            return held.spare
        self._throw_away(held.spare)
        return None

    def drop(self, points: Sequence[str]) -> None:
        """Throws the spares of these points away, and waits until they are gone, up to a limit. One that is
        ready only after that is thrown away then."""
        with self._changed:
            for session_id, (at, wanted) in self._wanted.items():
                self._wanted[session_id] = (at, [wish for wish in wanted if wish.point not in points])
            self._unproven = {key: wish for key, wish in self._unproven.items() if wish.point not in points}
            if not self._changed.wait_for(lambda: self._making not in points, _DROP_SECONDS):
                log.warning("a spare is being made that does not come to an end; it is not waited for")
            dropped = [self._held.pop(point) for point in points if point in self._held]
            self._failed.difference_update(points)
        for held in dropped:
            self._throw_away(held.spare)

    def drop_all(self) -> None:
        """Under pressure, or at the end."""
        with self._changed:
            points = [*self._held, *([self._making] if self._making else [])]
        self.drop(points)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._unproven.clear()
            self._changed.notify_all()
        self.drop_all()
        if self._worker:
            self._worker.join(_DROP_SECONDS)  # it may be throwing one away

    def held(self) -> list[str]:
        """The points that have one now."""
        with self._changed:
            return list(self._held)

    # ---- the thread that makes them ----------------------------------------------------------

    def _chosen(self) -> list[str]:
        """What should be held now, as far as there is room: the first wish of every session before the second
        of any, and those of sessions that were used last before others."""
        now = time.monotonic()
        sizes = {wish.point: wish.size_bytes for _, points in self._wanted.values() for wish in points}
        held_bytes = sum(sizes.get(point, 0) for point in self._held)
        limit = self.settings.spare_bytes
        left = budget_bytes(held_bytes) if limit is None else limit
        chosen: list[str] = []
        recent = [points for at, points in reversed(self._wanted.values()) if now < at + _IDLE_SECONDS]
        for rank in range(max(map(len, recent), default=0)):
            for points in recent:
                if rank >= len(points) or points[rank].point in chosen or len(chosen) == MOST_SPARES:
                    continue
                if points[rank].size_bytes <= left and points[rank].point not in self._failed:
                    left -= points[rank].size_bytes
                    chosen.append(points[rank].point)
        return chosen

    def _next(self) -> tuple[list[T], str | None]:
        """Waits until there is something to do: what to throw away, then what to make. Neither at the end."""
        with self._changed:
            while True:
                now, chosen = time.monotonic(), self._chosen()
                over = [
                    point for point, held in self._held.items() if point not in chosen or held.until <= now
                ]
                if over:
                    return [self._held.pop(point).spare for point in over], None
                if self._closed:
                    return [], None
                missing = next((point for point in chosen if point not in self._held), None)
                if missing is None:
                    stale_in = min((held.until - now for held in self._held.values()), default=None)
                    proof_in = self._seconds_until_proof()
                    if proof_in == 0:
                        return [], self._begin_proof()
                    self._changed.wait(min(filter(None, (stale_in, proof_in)), default=None))
                elif left := self._background.seconds_until_idle(SPARES, self._waiting_since):
                    self._changed.wait(left)
                else:
                    self._making = missing
                    return [], missing

    def _seconds_until_proof(self) -> float | None:
        """None when no point waits for a proof that memory allows."""
        # A spare that is held, or failed, has shown it already.
        shown = self._failed.union(self._held)
        free = _machine_bytes()[1]
        self._unproven = {
            session_id: wish
            for session_id, wish in self._unproven.items()
            if wish.point not in shown and wish.size_bytes <= free // 2
        }
        return self._background.seconds_until_idle(PROOFS, self._waiting_since) if self._unproven else None

    def _begin_proof(self) -> str:
        _, wish = self._unproven.popitem()
        self._making, self._proving = wish.point, True
        return wish.point

    def _work(self) -> None:
        while True:
            over, missing = self._next()
            if not over and missing is None:
                return
            for spare in over:
                self._throw_away(spare)
            if missing is not None:
                self._hold(missing)

    def _hold(self, point: str) -> None:
        spare, proving = None, self._proving
        try:
            faults.reach("spare.chosen")
            spare = self._make(point) if self._make else None
        except (OSError, WaypointError) as error:
            # A spare is best effort. A restore to the point will report what is wrong.
            log.warning("no spare for %s: %s", point, error)
        except Exception:
            log.exception("no spare for %s", point)
        with self._changed:
            self._making, self._proving = None, False
            if spare is not None and not proving:
                self._held[point] = _Held(spare, time.monotonic() + self.settings.spare_seconds)
            elif spare is None:
                self._failed.add(point)
            self._changed.notify_all()
        if spare is not None and proving:
            self._throw_away(spare)

    def _throw_away(self, spare: T) -> None:
        try:
            self._end(spare)
        except Exception:
            log.exception("a spare could not be ended")

    def _watch_memory(self) -> None:
        """Sleeps in the kernel until memory gets short. Where that cannot tell, the budget has to do."""
        with contextlib.suppress(OSError), open("/proc/pressure/memory", "r+b", buffering=0) as pressure:
            pressure.write(_PRESSURE)
            poll = select.poll()
            poll.register(pressure, select.POLLPRI)
            while not self._closed:
                for _, event in poll.poll(2_000):
                    if event & select.POLLERR:
                        return
                    if self.held():
                        log.info("memory is short: spares are dropped")
                    with self._changed:
                        self._wanted.clear()
                        self._unproven.clear()
                    self.drop_all()
