"""The process that decides what happens at fault points of a real daemon (kernel/faults.py).

A daemon that was started with WAYPOINT_FAULTS asks at each point and waits for the answer. Meanwhile the
tester can kill the daemon, a keeper or CRIU, or stop one of the latter two, which then hang; the answer may
be an error number. One fault is planned at a time, and it happens once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Literal, Self

from waypoint.box.box import keepers
from waypoint.home import Home
from waypoint.kernel import processes

RealKind = Literal[
    "kill daemon",
    "kill keeper",
    "kill new keeper",
    "kill CRIU",
    "EIO",
    "ENOSPC",
    "ETIMEDOUT",
    "hang keeper",
    "hang CRIU",
]
ERRORS: dict[RealKind, int] = {
    "EIO": errno.EIO,
    "ENOSPC": errno.ENOSPC,
    "ETIMEDOUT": errno.ETIMEDOUT,
}
WITH_CRIU = frozenset(
    (
        *("dump.started", "dump.frozen", "dump.written", "capture.held", "capture.snapshotted"),
        *(
            "capture.observed",
            "revive.started",
            "revive.held",
            "revive.armed",
            "revive.relocked",
            "revive.completed",
        ),
        *("copy.held", "copy.tracked", "copy.thawed", "copy.claimed", "copy.answered", "revive.releasing"),
        *("spare.held", "spare.taken"),
    )
)
"""The points at which a CRIU runs."""
_GONE_SECONDS = 20.0


class Tester:
    """Listens on a socket for the daemons of a home. To be used as a context."""

    def __init__(self, path: Path, home: Home) -> None:
        self._home = home
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._lock = threading.Lock()
        self._plan: tuple[str, RealKind] | None = None
        self._stopped: list[int] = []
        self._killed: list[int] = []
        self.happened = threading.Event()
        """Set when the fault that was planned has happened."""
        self.reached: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._serve, name="tester", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def plan(self, point: str, kind: RealKind) -> None:
        """The next time that this point is reached, this happens."""
        with self._lock:
            self.happened.clear()
            self._plan = (point, kind)

    def cancel(self) -> None:
        """Nothing more happens, and what was stopped runs on."""
        with self._lock:
            self._plan = None
            while self._stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._stopped.pop(), signal.SIGCONT)

    def wait_gone(self) -> None:
        """Until nothing is left of what was killed: a daemon closes its connections one by one, and a keeper
        goes when all other processes of its box have gone."""
        deadline = time.monotonic() + _GONE_SECONDS
        while left := [pid for pid in self._killed if Path("/proc", str(pid)).exists()]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"what was killed does not go: {left}")
            time.sleep(0.005)
        self._killed.clear()

    def _serve(self) -> None:
        while True:
            try:
                asking, _ = self._listener.accept()
            except OSError:
                return
            with asking, contextlib.suppress(ConnectionError):
                point = asking.recv(64).decode()
                credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                daemon = struct.unpack("3i", credentials)[0]
                asking.send(str(self._decide(point, daemon)).encode())

    def _decide(self, point: str, daemon: int) -> int:
        with self._lock:
            self.reached[point] += 1
            if self._plan is None or self._plan[0] != point:
                return 0
            kind = self._plan[1]
            if not self._do(kind, daemon):
                return 0
            self._plan = None
            self.happened.set()
            return ERRORS.get(kind, 0)

    def _do(self, kind: RealKind, daemon: int) -> bool:
        """False when there is no such process now."""
        if kind in ERRORS:
            return True
        if kind == "kill daemon":
            os.kill(daemon, signal.SIGKILL)
            self._killed.append(daemon)
            return True
        boxes = sorted(keepers(self._home).values(), key=_started_at)
        if kind in ("kill CRIU", "hang CRIU"):
            victims = [pid for box in boxes for pid in processes.host_pids(box) if _is_criu(pid)]
        else:
            victims = boxes[-1:] if kind == "kill new keeper" else boxes[:1]
        if not victims:
            return False
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                hangs = kind.startswith("hang")
                os.kill(pid, signal.SIGSTOP if hangs else signal.SIGKILL)
                (self._stopped if hangs else self._killed).append(pid)
        return True


def _started_at(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return 0


def _is_criu(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "ld.so"
    return False
