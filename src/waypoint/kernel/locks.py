"""Locks with a name and a place in one order, so that two threads cannot wait for each other.

A thread that holds a lock may take only locks that stand after it in `ORDER`. docs/threads.md says which
thread takes which. Usually these are the plain locks of `threading` and nothing is checked; with
WAYPOINT_DEBUG_LOCKS=1 (the tests run like that) a lock that is taken out of order raises `OutOfOrder` at
once, in the thread that would sooner or later have been part of a deadlock.

`lock_file` is for processes: a lock on a file, with a time limit; `holders_of` tells who has it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from types import TracebackType

ORDER: tuple[str, ...] = (
    "repairs",
    "pool reopening",
    "session move",
    "terminal turn",
    "session state",
    "disk space",
    "deletions",
    "costs",
    "durability",
    "cards",
    "trials",
    "dedupe",
    "digests",
    "kept files",
    "gate",
    "analyst",
    "terminal typing",
    "network preparation",
    "doors",
    "door",
    "forwards",
    "terminal",
    "approvals",
    "spares",
    "exits",
    "keeper",
    "background",
    "network",
    "connections",
    "connection",
    "registry",
    "pending points",
    "contacts",
    "watcher",
    "program output",
    "trajectory",
    "pump",
    "store",
)
"""From the outermost to the innermost."""


_POLL_SECONDS = 0.002


class OutOfOrder(AssertionError):
    """Raised in the debug mode when a thread takes a lock that stands before one it holds."""


class _Held(threading.local):
    def __init__(self) -> None:
        self.locks: list[_Checked] = []


_held = _Held()


class _Checked:
    """A lock that checks the order before it blocks. Offers what `threading.Condition` needs of an RLock."""

    def __init__(self, name: str, *, reentrant: bool) -> None:
        self.name = name
        self.rank = ORDER.index(name)
        self._reentrant = reentrant
        self._lock = threading.RLock() if reentrant else threading.Lock()
        self._holder: list[_Checked] = []
        """The list of the thread that holds it: another thread may release it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as threading's
        self._check(waits=blocking)
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._holder = _held.locks
            self._holder.append(self)
        return taken

    def release(self) -> None:
        self._forget()
        self._lock.release()

    def _check(self, *, waits: bool) -> None:
        if not waits or (self._reentrant and self in _held.locks):
            return
        if outer := [lock.name for lock in _held.locks if lock.rank >= self.rank]:
            raise OutOfOrder(f"{threading.current_thread().name} takes {self.name!r} and holds {outer}")

    def _forget(self) -> None:
        for index in range(len(self._holder) - 1, -1, -1):
            if self._holder[index] is self:
                del self._holder[index]
                return

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()

    def locked(self) -> bool:
        return self in _held.locks if self._reentrant else self._lock.locked()  # type: ignore[union-attr]

    # What a condition variable does around its wait.

    def _is_owned(self) -> bool:
        return self in _held.locks

    def _release_save(self) -> tuple[object, int]:
        depth = _held.locks.count(self)
        for _ in range(depth):
            self._forget()
        if self._reentrant:
            return self._lock._release_save(), depth  # type: ignore[union-attr]
        self._lock.release()
        return None, depth

    def _acquire_restore(self, state: tuple[object, int]) -> None:
        inner, depth = state
        if self._reentrant:
            self._lock._acquire_restore(inner)  # type: ignore[union-attr]
        else:
            self._lock.acquire()
        self._holder = _held.locks
        self._holder += [self] * depth


def _checking() -> bool:
    return os.environ.get("WAYPOINT_DEBUG_LOCKS") == "1"


def lock(name: str) -> threading.Lock:
    """A lock that its owner takes once at a time."""
    assert name in ORDER, name
    return _Checked(name, reentrant=False) if _checking() else threading.Lock()  # type: ignore[return-value]


def rlock(name: str) -> threading.RLock:
    """A lock that its owner may take again."""
    assert name in ORDER, name
    return _Checked(name, reentrant=True) if _checking() else threading.RLock()  # type: ignore[return-value]


def condition(name: str) -> threading.Condition:
    """A condition variable over a lock of its own."""
    return threading.Condition(rlock(name))


def lock_file(fd: int, mode: int, seconds: float) -> bool:
    """Takes a lock with flock(2); False when another process holds it all that time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        else:
            return True
        time.sleep(_POLL_SECONDS)


def holders_of(fd: int) -> list[tuple[int, bool]]:
    """The processes that hold a lock of flock(2) on a file: their pids, and whether each holds it alone."""
    status = os.fstat(fd)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    # 1: FLOCK  ADVISORY  WRITE 4711 00:1a:1234 0 EOF (with an arrow behind the number: it waits)
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return [
        (int(words[4]), words[3] == "WRITE") for words in lines if words[1] == "FLOCK" and words[5] == file
    ]
