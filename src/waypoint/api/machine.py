"""Requests about space, imported bases and the daemon itself.

The handlers are in daemon/verbs/machine.py.
"""

from __future__ import annotations

import msgspec

from waypoint import model
from waypoint.api.request import Count, Nothing, Request, Result


class BaseImported(Result, frozen=True):
    """A root file system that was imported."""

    base: model.Base


class Bases(Result, frozen=True):
    """The root file systems that were imported."""

    bases: tuple[model.Base, ...]


class OneBase(Result, frozen=True):
    """An imported root file system, and the sessions over it."""

    base: model.Base
    sessions: tuple[str, ...] = ()


class Pong(Result, frozen=True):
    """The daemon that answered."""

    version: str
    api: int
    pid: int
    started_at: str


class PoolStatus(Result, frozen=True):
    """How full the pool is."""

    kind: str
    total_bytes: int
    used_bytes: int
    free_bytes: int


class DaemonStatusResult(Result, frozen=True):
    """What the daemon is doing. `spares`: the points that have a copy restored ahead of time."""

    pid: int
    version: str
    started_at: str
    sessions: int
    home: str
    pool: PoolStatus
    warnings: tuple[str, ...]
    spares: tuple[str, ...]
    rss_bytes: int


class DaemonStopped(Result, frozen=True):
    """The daemon that ends, and whether it closed the pool."""

    pid: int
    pool_closed: bool


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to keep: see history/retention.py. `older_than`: seconds, or `30d`; nothing younger goes."""

    keep_last: Count | None = None
    keep_hourly: Count | None = None
    keep_daily: Count | None = None
    keep_weekly: Count | None = None
    older_than: float | str | None = None
    kinds: tuple[model.Kind, ...] = ()
    keep_good: bool = True
    keep_named: bool = True


class Forget(Request[model.Forgotten], frozen=True):
    """Deletes the points in `refs`, or those that a `policy` does not keep. `only`: none but these."""

    session: str | None = None
    refs: tuple[str, ...] = ()
    policy: Retention | None = None
    all: bool = False
    only: tuple[str, ...] | None = None
    force: bool = False
    dry_run: bool = False


class Prune(Request[model.Pruned], frozen=True):
    """Removes what belongs to nothing; `auto`: also points that were taken automatically."""

    auto: bool = False
    dry_run: bool = False


class Du(Request[model.DiskUse], frozen=True):
    """What takes how much space, for all sessions or for one."""

    session: str | None = None


class Check(Request[model.Checked], frozen=True):
    """Whether everything keeps the rules of docs/storage.md: all of the home, or the points in `refs`, or
    those of a session. `deep`: all memory and all files are compared with their digests. Progress comes in
    events."""

    session: str | None = None
    refs: tuple[str, ...] = ()
    deep: bool = False


class Recover(Request[model.Recovered], frozen=True):
    """Repairs what a check finds, as far as nothing has to be guessed. Progress comes in events. `foreign`:
    it also takes over points and bases that this installation has not made; what is in them will run as
    root."""

    foreign: bool = False


class BaseImport(Request[BaseImported], frozen=True):
    """Imports a root file system: a tar, an image (an archive or an OCI folder), a folder or a Dockerfile.
    Progress comes in events. For a Dockerfile: `context` is the folder of its files (by default the one it is
    in), `arguments` are values of its ARGs. `builder` carries it out: buildah or podman if one is installed,
    else Waypoint itself, and always Waypoint where a file begins with an imported base."""

    name: str
    file: str
    context: str | None = None
    arguments: dict[str, str] = msgspec.field(default_factory=dict)
    builder: model.Builder = "auto"
    actor: model.Actor = "person"


class BaseLs(Request[Bases], frozen=True):
    """The imported root file systems."""


class BaseInfo(Request[OneBase], frozen=True):
    """One imported root file system: where it came from, what its image says, who uses it. Values of
    variables that look like secrets are masked."""

    name: str


class BaseRm(Request[Nothing], frozen=True):
    """Deletes an imported root file system."""

    name: str


class Ping(Request[Pong], frozen=True):
    """Whether the daemon answers, and which one it is."""


class DaemonStatus(Request[DaemonStatusResult], frozen=True):
    """What the daemon is doing."""


class DaemonStop(Request[DaemonStopped], frozen=True):
    """Ends the daemon. `sessions`: and every session with it."""

    sessions: bool = False
