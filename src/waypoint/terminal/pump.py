"""The pump: one thread that reads all terminals and all keepers' events."""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections.abc import Callable

from waypoint.kernel import locks

log = logging.getLogger("waypoint")

_IDLE_SECONDS = 0.1


class Pump:
    """Calls an action whenever a descriptor can be read. No action may block."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._lock = locks.lock("pump")
        self._actions: dict[int, Callable[[], None]] = {}
        self._when_idle: dict[object, Callable[[], None]] = {}
        self._resting: dict[int, float] = {}
        """Descriptors that are not looked at, each until when."""
        threading.Thread(target=self._work, name="pump", daemon=True).start()

    def add(self, fd: int, action: Callable[[], None]) -> None:
        with self._lock:
            self._actions[fd] = action
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        with self._lock:
            self._actions.pop(fd, None)
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(fd)

    def rest(self, fd: int, seconds: float) -> None:
        """Looks at a descriptor again only after some time: the others, and the other threads of the daemon,
        have their turn meanwhile. For the pump's own thread only."""
        with contextlib.suppress(OSError, ValueError):  # it was removed meanwhile
            self._epoll.unregister(fd)
            self._resting[fd] = time.monotonic() + seconds

    def _wake_rested(self) -> bool:
        """Whether there were any."""
        now = time.monotonic()
        rested = [fd for fd, until in self._resting.items() if until <= now]
        for fd in rested:
            del self._resting[fd]
            with self._lock:
                known = fd in self._actions
            if known:
                with contextlib.suppress(OSError, ValueError):  # removed, or another one by now
                    self._epoll.register(fd, select.EPOLLIN)
        return bool(rested)

    def _patience(self) -> float | None:
        """How long to wait for something to read."""
        times = [_IDLE_SECONDS] if self._when_idle else []
        if self._resting:
            times.append(max(0.0, min(self._resting.values()) - time.monotonic()))
        return min(times, default=None)

    def run_when_idle(self, key: object, action: Callable[[], None]) -> None:
        """Runs an action once nothing could be read for a moment; for each key only the last action. For
        the pump's own thread only."""
        self._when_idle[key] = action

    @staticmethod
    def _run(action: Callable[[], None]) -> bool:
        """False when it failed: an error of one session must not end the thread that serves all of them."""
        try:
            action()
        except Exception:
            log.exception("an action of the pump failed")
            return False
        return True

    def _work(self) -> None:
        while True:
            events = self._epoll.poll(self._patience())
            rested = self._wake_rested()
            if not events and not rested:
                idle_actions, self._when_idle = self._when_idle, {}
                for idle_action in idle_actions.values():
                    self._run(idle_action)
            for fd, event in events:
                with self._lock:
                    action = self._actions.get(fd)
                if action is None:
                    continue
                if not self._run(action):
                    self.remove(fd)
                if event & select.EPOLLHUP and not event & select.EPOLLIN:
                    self.remove(fd)
