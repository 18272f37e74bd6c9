"""Automatic points: after each command that changed something, for sessions that want it."""

from __future__ import annotations

import logging

from waypoint.core.background import Background
from waypoint.core.capture import Capture, Wish
from waypoint.core.comparison import Comparison
from waypoint.core.registry import Registry
from waypoint.errors import WaypointError
from waypoint.model import Checkpoint
from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")


class AutoPoints:
    """Takes the automatic points of one home."""

    def __init__(
        self, registry: Registry, comparison: Comparison, capture: Capture, background: Background
    ) -> None:
        self._registry, self._comparison, self._capture = registry, comparison, capture
        self._background = background

    def after_command(self, row: SessionRow, command: str | None) -> Checkpoint | None:
        """A point, if the session wants that and anything has changed since the last one."""
        row = self._registry.find(row.id)
        if not row.auto:
            return None
        try:
            if not self._comparison.has_changed(row):
                return None
            return self._capture.checkpoint(row, Wish(command or "", kind="auto", actor="automatic"))
        except WaypointError as error:
            log.warning("no automatic point of %s: %s", row.name, error)
            return None

    def after_typing(self, session_id: str) -> None:
        """The same, in the background, when a command that a person typed has ended."""

        def take() -> None:
            if row := self._registry.store.sessions.find(session_id):
                self.after_command(row, None)

        self._background.run(take)
