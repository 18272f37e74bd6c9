"""Work that no caller waits for: when it may begin, and what happens when it fails.

One policy for all of it. A *foreground verb* is one that a client waits for. Two processors are soon taken,
and a client that has just got an answer usually sends its next request at once, so work that can wait begins
when no foreground verb has run for a moment. `Patience` says how long that moment is, and after how long the
work begins in any case. A failure is logged and never raised: no verb fails because of background work.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from waypoint.kernel import locks

log = logging.getLogger("waypoint")

_MOST_WAITING = 6
"""With more work than this waiting, it begins at once: it must not pile up behind a busy client."""
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Patience:
    """How long work waits for an idle daemon."""

    quiet_seconds: float
    """How long no foreground verb must have run."""
    most_seconds: float
    """After this time the work begins even if the daemon is busy."""


AFTER_AN_ANSWER = Patience(0.03, 0.3)
"""Cards, clearing away, syncing, watching the pool."""
SPARES = Patience(0.05, 1.0)
PROOFS = Patience(2.0, 60.0)
"""Restoring a point only to see that it can be."""
DIGESTS = Patience(1.0, 120.0)
"""Reading points once, to be able to tell later whether they have changed."""
TRIMMING = Patience(1.0, 10.0)
"""Giving the space of what was deleted back to the disk below the pool."""
COSTS = Patience(2.0, 300.0)
"""Measuring what points cost."""
SHARING = Patience(3.0, 10.0)
"""Comparing images page by page: the most expensive work, and the least urgent."""


class Background:
    """The threads for background work, and the record of foreground verbs."""

    def __init__(self) -> None:
        self._lock = locks.lock("background")
        self._now = ThreadPoolExecutor(max_workers=2, thread_name_prefix="background")
        self._idle = ThreadPoolExecutor(max_workers=2, thread_name_prefix="idle")
        self._clearing = ThreadPoolExecutor(max_workers=2, thread_name_prefix="clearing")
        """What a restore leaves holds memory, descriptors and disk space until it is cleared away: that does
        not wait for cards, of which a busy daemon may have hundreds to write."""
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")
        """Syncing has a thread of its own: it does not wait for the cards of other points."""
        self._calm = ThreadPoolExecutor(max_workers=1, thread_name_prefix="calm")
        """The least urgent: it may wait for minutes, so it holds up no other thread."""
        self._waiting = 0
        self._foreground = 0
        self._foreground_ended_at = 0.0
        self._closed = threading.Event()

    def run(self, work: Callable[[], object]) -> Future[None]:
        """Runs it as soon as a thread is free."""
        return self._now.submit(_run_logged, work)

    def run_when_idle(self, work: Callable[[], object]) -> Future[None]:
        """Runs it when the daemon is idle (`AFTER_AN_ANSWER`)."""
        return self._wait_and_run(self._idle, work)

    def clear_when_idle(
        self, work: Callable[[], object], hurry: Callable[[], bool] = lambda: False
    ) -> Future[None]:
        """The same for clearing away what is not needed any more. It does not wait for other work. `hurry`:
        whether a caller waits for it after all."""
        return self._wait_and_run(self._clearing, work, hurry)

    def sync_when_idle(self, work: Callable[[], object]) -> Future[None]:
        """The same for work that waits for the disk. It does not wait for other work."""
        return self._wait_and_run(self._disk, work)

    def _wait_and_run(
        self,
        threads: ThreadPoolExecutor,
        work: Callable[[], object],
        hurry: Callable[[], bool] = lambda: False,
    ) -> Future[None]:
        submitted_at = time.monotonic()

        def wait_and_run() -> None:
            while (
                self._waiting <= _MOST_WAITING
                and not hurry()
                and (left := self.seconds_until_idle(AFTER_AN_ANSWER, submitted_at))
            ):
                time.sleep(min(left, _POLL_SECONDS))
            with self._lock:
                self._waiting -= 1
            _run_logged(work)

        with self._lock:
            self._waiting += 1
        return threads.submit(wait_and_run)

    def run_when_calm(self, work: Callable[[], object], patience: Patience) -> None:
        """Runs it when the daemon has been idle for as long as `patience` says, after what waits already.
        What has not begun when the daemon ends is not run."""
        submitted_at = time.monotonic()

        def wait_and_run() -> None:
            while left := self.seconds_until_idle(patience, submitted_at):
                if self._closed.wait(left):
                    return
            _run_logged(work)

        with contextlib.suppress(RuntimeError):  # the daemon ends
            self._calm.submit(wait_and_run)

    def run_every(self, seconds: float, work: Callable[[], object], name: str) -> None:
        """Runs it again and again, in a thread of its own, until `close`."""

        def repeat() -> None:
            while not self._closed.wait(seconds):
                _run_logged(work)

        threading.Thread(target=repeat, name=name, daemon=True).start()

    def run_until_done(self, seconds: float, work: Callable[[], bool], name: str) -> None:
        """The same until it returns True."""
        done = threading.Event()

        def attempt() -> None:
            if work():
                done.set()

        def repeat() -> None:
            while not done.is_set() and not self._closed.wait(seconds):
                _run_logged(attempt)

        threading.Thread(target=repeat, name=name, daemon=True).start()

    @contextlib.contextmanager
    def foreground(self) -> Iterator[None]:
        """While a foreground verb runs."""
        with self._lock:
            self._foreground += 1
        try:
            yield
        finally:
            with self._lock:
                self._foreground -= 1
                self._foreground_ended_at = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether a foreground verb runs now."""
        return self._foreground > 0

    def seconds_until_idle(self, patience: Patience, since: float) -> float:
        """How long work that waits `since` then has still to wait; 0 when it may begin. To be asked again
        after that time: another verb may have come."""
        now = time.monotonic()
        idle_since = now if self._foreground else self._foreground_ended_at
        return max(0.0, min(idle_since + patience.quiet_seconds, since + patience.most_seconds) - now)

    def close(self) -> None:
        """Runs what was submitted, and takes no more. What waits for a calm daemon is not run."""
        self._closed.set()
        self._calm.shutdown(wait=True, cancel_futures=True)
        self._now.shutdown(wait=True)
        self._idle.shutdown(wait=True)
        self._clearing.shutdown(wait=True)
        self._disk.shutdown(wait=True)


def _run_logged(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:
        log.exception("background work failed")
