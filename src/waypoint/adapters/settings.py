"""What the session of an adapter is made of, and how long it lives."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from pydantic import BaseModel

import waypoint
import waypoint.aio
from waypoint import errors, model


class SessionConfig(BaseModel):
    """The options of `waypoint.session`, as frameworks keep them: in a pydantic model."""

    session: str | None = None
    """The session of this name is joined, or started, and stays. Without a name: a new one, which is removed
    with its points at the end."""
    base: str = "/"
    net: model.Net = "nat"
    user: str | None = None
    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None

    def open(self, prefix: str) -> waypoint.Session:
        """The session. `prefix`: how the name of a new one begins."""
        return waypoint.session(self._name(prefix), **self._options(), actor="agent")

    async def open_async(self, prefix: str) -> waypoint.aio.Session:
        """The same with asyncio."""
        return await waypoint.aio.session(self._name(prefix), **self._options(), actor="agent")

    def _name(self, prefix: str) -> str:
        return self.session or f"{prefix}{secrets.token_hex(6)}"

    def _options(self) -> dict[str, Any]:
        names = ("base", "net", "user", "memory_bytes", "cpus", "pids")
        return {name: getattr(self, name) for name in names}


def remove(session: waypoint.Session) -> None:
    """Removes a session with its points. It may be gone already."""
    with contextlib.suppress(errors.NotFound):
        session.remove()
