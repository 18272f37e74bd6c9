"""Where Waypoint keeps things: one home folder, and one run folder that a reboot empties.

Two homes on one machine do not see each other: everything that lives outside the home (the run folder,
network interfaces, firewall table, cgroups) carries the home's tag in its name.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import NamedTuple

DEFAULT_HOME = "/var/lib/waypoint"


class Home(NamedTuple):
    """The folders of one Waypoint."""

    path: Path

    @property
    def tag(self) -> str:
        """Eight letters that stand for this home wherever a path does not fit."""
        return f"{zlib.crc32(os.fsencode(self.path)):08x}"

    @property
    def run(self) -> Path:
        """Sockets and mount points: on /run, gone after a reboot as the boxes are."""
        return Path("/run/waypoint") / self.tag

    @property
    def socket(self) -> Path:
        return self.run / "daemon.sock"

    @property
    def pool(self) -> Path:
        return self.path / "pool"

    @property
    def sessions(self) -> Path:
        return self.pool / "sessions"

    @property
    def checkpoints(self) -> Path:
        return self.pool / "checkpoints"

    @property
    def staging(self) -> Path:
        return self.pool / "staging"

    @property
    def database(self) -> Path:
        return self.path / "waypoint.db"

    @property
    def log(self) -> Path:
        return self.path / "daemon.log"


def locate(path: str | os.PathLike[str] | None = None) -> Home:
    """The home that was asked for, else WAYPOINT_HOME, else the default one."""
    chosen = path or os.environ.get("WAYPOINT_HOME") or DEFAULT_HOME
    return Home(Path(os.path.realpath(chosen)))
