"""What every pool can do, whatever file system it is on."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from waypoint.errors import MissingFeature, UsageError

TREE_MODE = 0o755
SCRATCH = ".scratch"
"""Where a pool makes its temporary trees."""


@dataclass(frozen=True)
class Usage:
    """How full a pool is. `free_bytes` is what can really be written, the disk below included."""

    total_bytes: int
    used_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Share:
    """What one tree has taken of a pool, and what it may take."""

    used_bytes: int
    limit_bytes: int | None


class Pool(Protocol):
    """Trees that can be snapshotted. All paths are below `root`; all failures are WaypointErrors."""

    kind: str
    root: Path
    reason: str
    """Why it is not btrfs; empty when it is."""

    def create(self, path: Path) -> None:
        """An empty writable tree, mode 0755."""

    def snapshot(self, source: Path, target: Path, *, readonly: bool) -> None:
        """Make `target` a tree with all that `source` holds now. Later changes of one do not affect the
        other.

        It exists completely or not at all. A tree that lies inside `source` is not part of it.
        """

    def seal(self, path: Path) -> None:
        """Make a tree read-only."""

    def is_readonly(self, path: Path) -> bool:
        """Whether a tree is read-only."""

    def delete(self, path: Path) -> None:
        """Remove a tree or a folder of trees, with those inside; read-only ones too.

        Absence is no error. The space may come back later: see `settle` and `reclaim`.
        """

    def flush(self, path: Path) -> None:
        """Write what is dirty of a tree, so that the next snapshot of it has little to do."""

    def sync(self) -> None:
        """Return when everything in the pool is on the disk and would survive a power cut."""

    def has_stopped(self) -> bool:
        """Whether it takes no writes any more: the disk below has failed or is full. A sparse pool can then
        be opened again (lifecycle.reopen_pool)."""

    def settle(self) -> None:
        """Return when what was deleted is free: it counts in no `usage` and shares no blocks any more."""

    def reclaim(self) -> None:
        """`settle`, and return when the disk below has the space back. Seconds: for the background."""

    def usage(self) -> Usage:
        """How full it is."""

    def limit(self, path: Path, size_bytes: int | None) -> None:
        """The most that a writable tree may take of the pool; None: no limit. MissingFeature where nothing is
        counted."""

    def share(self, path: Path) -> Share | None:
        """What a tree has taken of the pool, and may take; None where nothing is counted."""

    def dedupe(self, source: Path, target: Path) -> int:
        """Share the blocks that two files have in common. Returns the bytes shared, 0 where it is
        impossible."""


def check_inside(root: Path, path: Path) -> None:
    """UsageError for a path that is not below the pool's root."""
    if root not in path.parents or ".." in path.parts:
        raise UsageError(f"{path} is not in the pool {root}")


def no_shares() -> MissingFeature:
    """The error of a pool in which nothing is counted."""
    return MissingFeature(
        "this pool cannot limit what one session writes",
        hint="leave the limit out; a pool that is a file of its own can, from Linux 6.7 on: one that was made"
        " earlier begins with it when the daemon is started with WAYPOINT_BOX_DISK set to a size",
    )


def scratch_path(root: Path) -> Path:
    """A new name for something temporary. `lifecycle.open_pool` removes those whose process has ended."""
    return root / SCRATCH / f"{os.getpid()}.{secrets.token_hex(6)}"


@contextlib.contextmanager
def opened(path: Path | str, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> Iterator[int]:
    """A descriptor, closed after the block."""
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
