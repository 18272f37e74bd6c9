"""Where Waypoint keeps things, and what the environment sets.

One home folder, and one run folder that a reboot empties. Two homes on one machine do not see each other:
everything that lives outside the home (the run folder, network interfaces, firewall table, cgroups) carries
the home's tag in its name.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar, cast, get_args

from waypoint.errors import UsageError
from waypoint.model import Actor

T = TypeVar("T")

DEFAULT_HOME = "/var/lib/waypoint"
SPARES = 2
"""How many spares a session has by default: for the point it stands on, and for its newest named one."""
MOST_SPARES = 16
"""How many spares there are at once, whatever the sessions want."""
SPARE_SECONDS = 60.0
LAZY_BYTES: int | None = 64 << 20
"""How long a spare is held. Its monotonic clock runs meanwhile and cannot be set back: its processes see what
they would see after being stopped for so long. So it is made anew, until its session has been idle for
long."""


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
    def beginnings(self) -> Path:
        """Files of sessions as they were at their first prompt."""
        return self.pool / "beginnings"

    @property
    def staging(self) -> Path:
        return self.pool / "staging"

    @property
    def database(self) -> Path:
        return self.path / "waypoint.db"

    @property
    def log(self) -> Path:
        return self.path / "daemon.log"


class Settings(NamedTuple):
    """What the WAYPOINT_* variables set, read once when a process starts."""

    home: str = DEFAULT_HOME
    """WAYPOINT_HOME: where Waypoint keeps things."""
    engine: str | None = None
    """WAYPOINT_ENGINE: the folder of the engine, if it is not in the home."""
    session: str | None = None
    """WAYPOINT_SESSION: the session that a command means when it names none."""
    actor: Actor | None = None
    """WAYPOINT_ACTOR: who asks; a person when it is not set."""
    pool_size_bytes: int | None = None
    """WAYPOINT_POOL_SIZE: the size of a pool that is about to be made (`20G`)."""
    spares: int = SPARES
    """WAYPOINT_SPARES: how many points of a session have a spare (`off`, or a number)."""
    spare_bytes: int | None = None
    """WAYPOINT_SPARE_BYTES: how much memory all spares may hold."""
    spare_seconds: float = SPARE_SECONDS
    """WAYPOINT_SPARE_SECONDS: how long a spare is held."""
    durable: bool = False
    """WAYPOINT_DURABLE: whether a point is answered only when it is on the disk (`1`)."""
    faults: str | None = None
    """WAYPOINT_FAULTS: for tests, the socket of the process that decides what happens at fault points."""
    digests: bool = True
    """WAYPOINT_DIGESTS: whether points are read once when idle, so that damage is noticed later (`off`)."""
    prove: bool = True
    """WAYPOINT_PROVE: whether the newest point of a session is restored when idle, as a proof (`off`)."""
    box_memory_bytes: int | None = None
    """WAYPOINT_BOX_MEMORY: the most memory of a session that has no limit of its own; 0: no limit (`off`)."""
    box_pids: int | None = None
    """WAYPOINT_BOX_PIDS: how many processes and threads such a session may have; 0: no limit (`off`)."""
    box_open_files: int | None = None
    """WAYPOINT_BOX_OPEN_FILES: how many files one process of it may have open; 0: as many as the client that
    has started the daemon (`off`)."""
    box_disk_bytes: int | None = None
    """WAYPOINT_BOX_DISK: how much of the pool it may take between two restores; 0: no limit (`off`)."""
    lazy_bytes: int | None = LAZY_BYTES
    """WAYPOINT_LAZY_BYTES: a tree with so much memory is restored without it, and gets it when it uses it
    (`off`: none is)."""
    userns: bool = False
    """WAYPOINT_USERNS: whether new sessions are in a user namespace that do not say so themselves (`on`)."""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings of this process; UsageError naming the variable that is malformed."""

        def read(name: str, parse: Callable[[str], T], default: T, example: str) -> T:
            text = environment.get(name)
            if not text:
                return default
            try:
                return parse(text)
            except ValueError as error:
                raise UsageError(f"{name} is {text!r}: {error}", hint=f"write {example}") from error

        return cls(
            home=environment.get("WAYPOINT_HOME") or DEFAULT_HOME,
            engine=environment.get("WAYPOINT_ENGINE") or None,
            session=environment.get("WAYPOINT_SESSION") or None,
            actor=read("WAYPOINT_ACTOR", _actor, None, f"one of: {', '.join(get_args(Actor))}"),
            pool_size_bytes=read("WAYPOINT_POOL_SIZE", _size, None, "512M or 20G"),
            spares=read("WAYPOINT_SPARES", _spares, SPARES, "`off` or a number"),
            spare_bytes=read("WAYPOINT_SPARE_BYTES", _size, None, "512M or a number of bytes"),
            spare_seconds=read("WAYPOINT_SPARE_SECONDS", _seconds, SPARE_SECONDS, "a number of seconds"),
            faults=environment.get("WAYPOINT_FAULTS") or None,
            durable=read("WAYPOINT_DURABLE", _switch, False, "1 or 0"),
            digests=read("WAYPOINT_DIGESTS", _switch, True, "`on` or `off`"),
            prove=read("WAYPOINT_PROVE", _switch, True, "`on` or `off`"),
            box_memory_bytes=read("WAYPOINT_BOX_MEMORY", _limit, None, "`off`, 512M or 20G"),
            box_pids=read("WAYPOINT_BOX_PIDS", _most, None, "`off` or a number"),
            box_open_files=read("WAYPOINT_BOX_OPEN_FILES", _most, None, "`off` or a number"),
            box_disk_bytes=read("WAYPOINT_BOX_DISK", _limit, None, "`off`, 512M or 20G"),
            lazy_bytes=read("WAYPOINT_LAZY_BYTES", _lazy_bytes, LAZY_BYTES, "`off`, 64M or 1G"),
            userns=read("WAYPOINT_USERNS", _switch, False, "`on` or `off`"),
        )


def _actor(text: str) -> Actor | None:
    if text not in get_args(Actor):
        raise ValueError("there is no such actor")
    return cast("Actor", text)


def _size(text: str) -> int | None:
    from waypoint.api.sizes import parse_size

    return parse_size(text)


def _limit(text: str) -> int | None:
    return 0 if text == "off" else _size(text)


def _lazy_bytes(text: str) -> int | None:
    return None if text == "off" else 0 if text == "0" else _size(text)


def _most(text: str) -> int | None:
    if text != "off" and not text.isdecimal():
        raise ValueError("that is no number")
    return 0 if text == "off" else int(text)


def _spares(text: str) -> int:
    if text != "off" and not text.isdecimal():
        raise ValueError("that is no number of spares")
    return 0 if text == "off" else min(int(text), MOST_SPARES)


def _switch(text: str) -> bool:
    if text not in ("0", "1", "off", "on"):
        raise ValueError("that is neither on nor off")
    return text in ("1", "on")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError("that is no length of time")
    return seconds


def locate(path: str | os.PathLike[str] | None = None) -> Home:
    """The home in this folder, else in WAYPOINT_HOME, else the default one."""
    return Home(Path(os.path.realpath(path or os.environ.get("WAYPOINT_HOME") or DEFAULT_HOME)))
