"""Waypoint: a live computer gets what git gave source code."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from waypoint.client.migrations import migration
    from waypoint.client.session import Checkpoint, Client, Program, Result, Session, session, sessions
    from waypoint.errors import WaypointError

__all__ = [
    "Checkpoint",
    "Client",
    "Program",
    "Result",
    "Session",
    "WaypointError",
    "__version__",
    "migration",
    "session",
    "sessions",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # On first use: `waypoint --version` and the daemon's own start need none of it.
    if name == "WaypointError":
        from waypoint import errors

        return errors.WaypointError
    if name == "migration":
        from waypoint.client import migrations

        return migrations.migration
    if name in __all__:
        from waypoint.client import session

        return getattr(session, name)
    raise AttributeError(f"module 'waypoint' has no attribute {name!r}")
