"""Putting a database in the place of a damaged one, in steps that the next process finishes if one dies."""

from __future__ import annotations

import os
from pathlib import Path

from waypoint.kernel import atomic, faults


def exchange(fresh: Path, database: Path) -> None:
    """`fresh` is closed and has no log. From the first rename on the old database counts no more."""
    atomic.sync(fresh)
    os.rename(fresh, _ready(database))
    atomic.sync(database.parent)
    faults.reach("rebuild.ready")
    finish_exchange(database)


def finish_exchange(database: Path) -> None:
    """What is left to do of an exchange, if there is one. To be called before a database is opened."""
    if not _ready(database).exists():
        return
    # The log goes first: SQLite would apply it to any database of that name.
    for suffix in ("-wal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)
    atomic.sync(database.parent)
    faults.reach("rebuild.unlogged")
    os.rename(_ready(database), database)
    atomic.sync(database.parent)


def _ready(database: Path) -> Path:
    return Path(f"{database}.rebuilt")
