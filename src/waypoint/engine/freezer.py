"""Stopping the whole tree of a box while CRIU works, so that nothing in the box can reach CRIU.

CRIU runs inside the box. A process there that is root may send it signals and take its limits away; it
could prevent every checkpoint, or keep the daemon waiting. So the tree's control group is frozen before CRIU
begins. CRIU thaws it when it holds every process by itself (a stopped process cannot be seized otherwise),
and freezes it again before it lets them go. A process does not notice the difference to being held by CRIU.

Where the machine has no such group nothing is frozen: CRIU may be disturbed then, within the time limits of
engine/criu.py.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import time

from waypoint.box.box import Box
from waypoint.kernel import cgroups

log = logging.getLogger("waypoint")

CRIU_PROCESSES = 64
"""More than CRIU and its helpers are: so many processes a box may have for them above its limit."""
_FREEZE_SECONDS = 2.0
"""How long the processes may take until they stand still: one may be in a long call of the kernel."""
_LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))


class Disturbed(Exception):
    """Raised when CRIU was ended or restrained before the tree stood still."""


class Freezer:
    """The tree of one box, to be stopped as a whole."""

    def __init__(self, box: Box, *, stays_frozen: bool = False) -> None:
        """`stays_frozen`: the tree was stopped by the caller, and is not to run when CRIU has let go."""
        self._box = box
        self.available = box.group is not None
        self._frozen = self._stays_frozen = stays_frozen
        self._frozen_at = 0.0
        self.pause_ms = 0.0
        """How long the processes have stood still; 0 when they were not frozen here."""

    def freeze(self) -> None:
        """Returns when every process stands still."""
        group = self._box.group
        if not self.available or group is None or self._frozen:
            return
        try:
            self._begin()
            deadline = time.monotonic() + _FREEZE_SECONDS
            while not cgroups.is_frozen(group) and time.monotonic() < deadline:
                time.sleep(0.0002)
        except OSError as error:  # a keeper of an earlier version
            log.warning("the tree of box %s cannot be frozen: %s", self._box.id, error)
            self.thaw()
            self.available = False

    def check(self, criu_pid: int | None) -> None:
        """Raises Disturbed when a process of the box has taken something away from CRIU before it was frozen:
        CRIU may then do less than the keeper, which has started it."""
        if not self.available or criu_pid is None:
            return
        with contextlib.suppress(OSError):
            for limit in _LIMITS:
                now = map(_or_endless, resource.prlimit(criu_pid, limit))
                first = map(_or_endless, resource.prlimit(self._box.pid, limit))
                if any(one < other for one, other in zip(now, first, strict=True)):
                    raise Disturbed("its limits were lowered")

    def require_calm(self, failure: Exception, *, began: bool) -> None:
        """Raises Disturbed for a failure of CRIU while the tree ran: it is worth another try."""
        if not began and self.available and self._box.alive:
            raise Disturbed(str(failure)) from failure

    def freeze_held(self) -> None:
        """For a tree of which CRIU holds every process: it stands still when CRIU lets go of it."""
        if self.available:
            with contextlib.suppress(OSError):
                self._begin()

    def _begin(self) -> None:
        self._frozen_at = time.perf_counter()
        self._box.keeper.freeze()
        self._frozen = True

    def thaw(self) -> None:
        if self._stays_frozen:
            # CRIU freezes it again before it lets go. It has not when it was killed: the kernel has let them
            # run then.
            if not self._box.freeze(_FREEZE_SECONDS):
                log.error("the tree of box %s was to stand still, and runs", self._box.id)
        elif self._frozen:
            self._frozen = False
            self.pause_ms = (time.perf_counter() - self._frozen_at) * 1000
            with contextlib.suppress(OSError):  # the box has ended
                self._box.keeper.thaw()


def _or_endless(value: int) -> float:
    return float("inf") if value == resource.RLIM_INFINITY else value
