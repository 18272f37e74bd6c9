"""The composition root: every object of the daemon, built here in order, with what it needs passed in.

The verbs reach everything through one `App`. Nothing else in the daemon constructs an object of the core.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from waypoint.api.sizes import parse_size
from waypoint.core.dedupe import Sharing
from waypoint.core.gate import Gate
from waypoint.core.journal import Journal
from waypoint.core.sessions import Sessions
from waypoint.core.space import Upkeep
from waypoint.core.story import Story
from waypoint.core.transfer import Transfers
from waypoint.core.trials import Trials
from waypoint.daemon.inside.grammar import Inside
from waypoint.engine import probe
from waypoint.errors import MissingFeature, UsageError
from waypoint.home import Home
from waypoint.kernel import atomic
from waypoint.kernel.pool.lifecycle import open_pool
from waypoint.kernel.pool.protocol import Pool
from waypoint.machine import setup
from waypoint.store import Store

if TYPE_CHECKING:
    from waypoint.daemon.main import Daemon


class App:
    """Everything behind the socket of one home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.started_at = time.time()
        self.server: Daemon | None = None
        """The socket in front of it, once there is one."""
        self.sessions = Sessions(*_prepare(home))
        self.story = Story(self.sessions)
        self.trials = Trials(self.sessions)
        self.upkeep = Upkeep(self.sessions)
        self.sharing = Sharing(self.sessions)
        self.transfers = Transfers(self.sessions, self.story)
        self.inside = Inside(self)
        self.journal = Journal(self.sessions, self.story)
        self.gate = Gate(self.sessions)
        self.story.outside = self.gate.outside
        self.journal.effects = self.gate.done_since
        self.sessions.after_checkpoint.append(lambda _, point: self.story.write_later(point.id))
        self.sessions.after_typing.append(self._after_typing)

    def _after_typing(self, session_id: str) -> None:
        row = self.sessions.store.sessions.find(session_id)
        if row:
            self.story.auto_point(row, None)


def _pool_size() -> int | None:
    """The cap of a pool that is about to be made, from the environment; None for the usual one."""
    given = os.environ.get("WAYPOINT_POOL_SIZE")
    if not given:
        return None
    try:
        return parse_size(given)
    except ValueError as error:
        raise UsageError(f"WAYPOINT_POOL_SIZE: {error}", hint="write 512M or 20G") from error


def _prepare(home: Home) -> tuple[Home, Path, Pool, Store, Path]:
    """What the machine has to provide, or an error that says what is missing."""
    engine = setup.engine_dir(home.path)
    if setup.current_engine(engine) is None:
        raise MissingFeature("this machine is not set up yet", hint="run `waypoint setup`")
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.path.chmod(0o700)
    home.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    pool = open_pool(home.path, size_bytes=_pool_size())
    kdat = home.run / "criu.kdat"
    # It belongs to one engine: another may know more of the kernel, or show CRIU more (native/shim.c).
    if not kdat.exists() or kdat.stat().st_mtime < (engine / "engine.json").stat().st_mtime:
        atomic.write(kdat, probe.kernel_data(engine))
    return home, engine, pool, Store(home.database), kdat
