"""Requests about ports: what listens in a session, and the ports of this machine that lead there.

The handlers are in daemon/verbs/ports.py.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from waypoint import model
from waypoint.api.difference import PortFact
from waypoint.api.request import Request, Result


class PortsResult(Result, frozen=True):
    """What listens in a session. `point`: it was so at that point."""

    session: str
    ports: tuple[PortFact, ...]
    forwards: tuple[model.Forward, ...]
    point: str | None = None


class Forwarded(Result, frozen=True):
    """A port that is forwarded. `listening`: whether something listens at it in the session."""

    session: str
    forward: model.Forward
    listening: bool
    warnings: tuple[str, ...] = ()


class Unforwarded(Result, frozen=True):
    """What is forwarded no more."""

    session: str
    ended: tuple[model.Forward, ...]


class Ports(Request[PortsResult], frozen=True):
    """What listens in a session now, or what did at a point."""

    session: str | None = None
    ref: str | None = None


class Forward(Request[Forwarded], frozen=True):
    """Lets connections to a port of this machine reach a TCP port of a session. `local_port`: that of this
    machine; 0 for any that is free, without it the same number if that is free. `bind`: the address of this
    machine at which it listens."""

    port: model.Port
    session: str | None = None
    local_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    bind: str = "127.0.0.1"


class Unforward(Request[Unforwarded], frozen=True):
    """Ends the forwards of a port of a session, and their connections; without a port all of them."""

    session: str | None = None
    port: model.Port | None = None
