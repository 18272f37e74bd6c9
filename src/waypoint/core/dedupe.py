"""Points that hold the same memory share it on disk.

Images of large memory share their blocks with the point before from the start (engine/memory.py). What was
dumped in full does not: small processes, the first dump of a large one. When the daemon has been idle for a
while, the two images are compared page by page and the kernel is told what is the same. The images stay
complete, and any can be deleted. A checkpoint interrupts this at once: it is tried again later.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

from waypoint.core.background import SHARING, Background
from waypoint.home import Home
from waypoint.kernel import faults, locks
from waypoint.kernel.pool.protocol import Pool
from waypoint.kernel.syscalls import set_io_priority
from waypoint.model import Checkpoint

log = logging.getLogger("waypoint")

_MOST_WAITING = 1024
_SHARE_SECONDS = 600.0
_CLOSE_SECONDS = 30.0
_LOWEST_PRIORITY = 19
_IDLE_IO = 3 << 13  # IOPRIO_CLASS_IDLE


class Dedupe:
    """What is still to be shared, and the thread that does it."""

    def __init__(self, home: Home, engine: Path, pool: Pool, background: Background) -> None:
        self._home, self._engine, self._background = home, engine, background
        self._possible = pool.kind == "btrfs"
        self._waiting: deque[tuple[str, str]] = deque(maxlen=_MOST_WAITING)
        """Points, each with the one before it. What does not fit any more stays unshared."""
        self._changed = locks.condition("dedupe")
        self._waiting_since = time.monotonic()
        self._helper: subprocess.Popen[str] | None = None
        self._interrupted = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def interrupt(self) -> None:
        """A point is about to be taken."""
        with self._changed:
            self._waiting_since = time.monotonic()
            if self._helper:
                self._interrupted = True
                self._helper.kill()

    def add(self, point: Checkpoint) -> None:
        """A point was taken."""
        if not self._possible or point.files_only or point.parent is None:
            return
        with self._changed:
            self._waiting.append((point.id, point.parent))
            self._waiting_since = time.monotonic()
            self._changed.notify()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="dedupe", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                if left := self._background.seconds_until_idle(SHARING, self._waiting_since):
                    self._changed.wait(left)
                    continue
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
        """False when it was interrupted."""
        with ExitStack() as opened:
            folders = []
            for name in (point_id, parent_id):
                images = self._home.checkpoints / name / "images"
                folders.append(os.open(images, os.O_RDONLY | os.O_DIRECTORY))
                opened.callback(os.close, folders[-1])
            faults.reach("share.begun")
            words = [str(self._engine / "bin" / "flatten"), *map(str, folders)]
            with self._changed:
                if self._closed:
                    return True
                helper = subprocess.Popen(words, pass_fds=folders, stdout=subprocess.PIPE, text=True)
                self._helper, self._interrupted = helper, False
        try:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, helper.pid, _LOWEST_PRIORITY)
                set_io_priority(helper.pid, _IDLE_IO)
            faults.reach("share.started")
            output, _ = helper.communicate(timeout=_SHARE_SECONDS)
        except subprocess.TimeoutExpired:
            output = f"it takes longer than {_SHARE_SECONDS:g} s"
            helper.kill()
            with suppress(subprocess.TimeoutExpired):
                helper.communicate(timeout=_CLOSE_SECONDS)
        finally:
            with self._changed:
                self._helper = None
        interrupted = helper.returncode != 0 and self._interrupted
        if helper.returncode != 0 and not interrupted:  # and it would fail the same way the next time
            log.info("%s shares nothing with %s: %s", point_id, parent_id, output.strip())
        return not interrupted

    def close(self) -> None:
        """Nothing of it uses the pool any more."""
        with self._changed:
            self._closed = True
            if self._helper:
                self._helper.kill()
            self._changed.notify()
        if self._thread:
            self._thread.join(_CLOSE_SECONDS)
