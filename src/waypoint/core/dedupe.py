"""Points that hold the same memory share it on disk.

Images of large memory share their blocks with the point before from the start (engine/memory.py). What
was dumped in full does not: small processes, the first dump of a large one. When nothing has been asked for
a while, the two images are compared page by page and the kernel is told what is the same; the images stay
whole, and any can be deleted. A checkpoint that is asked for meanwhile ends it at once: it is tried again
later.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress

from waypoint.core.sessions import Live, Sessions
from waypoint.kernel.syscalls import set_io_priority
from waypoint.model import Checkpoint
from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")

_QUIET_SECONDS = 3.0
_MOST_WAITING = 1024
_LOWEST_PRIORITY = 19
_IDLE_IO = 3 << 13  # IOPRIO_CLASS_IDLE


class Sharing:
    """What is still to be shared, and who does it. One of these lives in the daemon."""

    def __init__(self, sessions: Sessions, quiet_seconds: float = _QUIET_SECONDS) -> None:
        self._home, self._engine = sessions.home, sessions.engine
        self._quiet_seconds = quiet_seconds
        self._waiting: deque[tuple[str, str]] = deque(maxlen=_MOST_WAITING)
        """Points, each with the one before it. What does not fit any more stays unshared."""
        self._changed = threading.Condition()
        self._busy_at = time.monotonic()
        self._at_work: subprocess.Popen[str] | None = None
        self._disturbed = False
        self._closed = False
        self._thread: threading.Thread | None = None
        if sessions.pool.kind == "btrfs":
            sessions.before_checkpoint.append(self._asked)
            sessions.after_checkpoint.append(self._taken)

    def _asked(self, _live: Live | None) -> None:
        with self._changed:
            self._busy_at = time.monotonic()
            if self._at_work:
                self._disturbed = True
                self._at_work.kill()

    def _taken(self, _row: SessionRow, point: Checkpoint) -> None:
        if point.files_only or point.parent is None:
            return
        with self._changed:
            self._waiting.append((point.id, point.parent))
            self._changed.notify()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="sharing", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                quiet_at = self._busy_at + self._quiet_seconds
                if not self._closed and time.monotonic() < quiet_at:
                    self._changed.wait(quiet_at - time.monotonic())
                    continue
                if self._closed:
                    return
                pair = self._waiting.popleft()
            try:
                done = self._share(*pair)
            except OSError as error:  # forgotten meanwhile
                log.debug("%s shares nothing with %s: %s", *pair, error)
                done = True
            if not done:
                with self._changed:
                    self._waiting.appendleft(pair)

    def _share(self, point_id: str, parent_id: str) -> bool:
        """False when it was ended half way."""
        with ExitStack() as opened:
            folders = []
            for one in (point_id, parent_id):
                folders.append(os.open(self._home.checkpoints / one / "images", os.O_RDONLY | os.O_DIRECTORY))
                opened.callback(os.close, folders[-1])
            words = [str(self._engine / "bin" / "flatten"), *map(str, folders)]
            with self._changed:
                if self._closed:
                    return True
                helper = subprocess.Popen(words, pass_fds=folders, stdout=subprocess.PIPE, text=True)
                self._at_work, self._disturbed = helper, False
        try:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, helper.pid, _LOWEST_PRIORITY)
                set_io_priority(helper.pid, _IDLE_IO)
            said, _ = helper.communicate()
        finally:
            with self._changed:
                self._at_work = None
        disturbed = helper.returncode < 0 and self._disturbed
        if helper.returncode and not disturbed:  # and it would be so the next time
            log.info("%s shares nothing with %s: %s", point_id, parent_id, said.strip())
        return not disturbed

    def close(self) -> None:
        """Nothing of it uses the pool any more."""
        with self._changed:
            self._closed = True
            if self._at_work:
                self._at_work.kill()
            self._changed.notify()
        if self._thread:
            self._thread.join()
