"""A pool that has stopped writing, because the host's disk ran full below it, and how it goes on.

btrfs takes no writes after a commit that failed, until it is unmounted and mounted again. What was written
since its last commit is lost, and so are the files of every session that runs: their boxes are ended, and a
restore takes them to their last point. While the disk is full nothing is ended: there is nothing to gain.
"""

from __future__ import annotations

import logging
import time

from waypoint.core.adoption import Adoption
from waypoint.core.live import Twin
from waypoint.core.registry import Registry
from waypoint.core.sessions import Sessions
from waypoint.core.space import DiskSpace
from waypoint.core.spares import Spares
from waypoint.errors import MachineError
from waypoint.kernel import locks
from waypoint.kernel.pool.lifecycle import reopen_pool, require_room_to_reopen
from waypoint.kernel.pool.protocol import Pool

log = logging.getLogger("waypoint")

_SECONDS = 10.0
_POLL_SECONDS = 0.05


class Reopening:
    """Opens the pool of one home again when it has stopped writing."""

    def __init__(
        self,
        registry: Registry,
        pool: Pool,
        sessions: Sessions,
        spares: Spares[Twin],
        space: DiskSpace,
        adoption: Adoption,
    ) -> None:
        self._registry, self._home, self._pool = registry, registry.home, pool
        self._sessions, self._spares, self._space, self._adoption = sessions, spares, space, adoption
        self._turn = locks.lock("pool reopening")

    def require_writable_pool(self) -> None:
        """Before a verb that writes to the pool. NoSpace, naming the host's disk, while that is full."""
        if not self._pool.has_stopped():
            return
        with self._turn:
            if not self._pool.has_stopped():
                return
            require_room_to_reopen(self._home.path)
            ended = len(self._registry.lives())
            log.warning("the pool has stopped writing and is opened again; %s boxes end", ended)
            self._spares.drop_all()
            self._sessions.stop_all()
            self._reopen()
            self._adoption.run(writes_lost=True)
            self._space.notify(
                f"the pool had stopped writing and was opened again; {ended} sessions had to be ended,"
                " a restore takes each to its last point"
            )

    def _reopen(self) -> None:
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                return reopen_pool(self._home.path)
            except MachineError:  # the kernel lets go of the mounts of an ended box in its own time
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_SECONDS)
