"""The pump: one thread that reads all terminals and all keepers' events."""

from __future__ import annotations

import contextlib
import logging
import select
import threading
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
            events = self._epoll.poll(_IDLE_SECONDS if self._when_idle else None)
            if not events:
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
