"""What a verb of the daemon is: a function of its arguments that answers to its name on the socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from waypoint.api import wire
from waypoint.errors import UsageError
from waypoint.model import Actor

Verb = Callable[..., Any]
"""Given the daemon, the connection and the arguments; returns the result."""

VERBS: dict[str, Verb] = {}


def verb(function: Verb) -> Verb:
    """Makes a function answer to its name (a trailing underscore aside)."""
    VERBS[function.__name__.rstrip("_")] = function
    return function


def actor_of(args: dict[str, Any]) -> Actor:
    """Who asks: a person, unless it is said."""
    given = args.get("actor") or "person"
    try:
        found: Actor = msgspec.convert(given, Actor)
    except msgspec.ValidationError:
        raise UsageError(
            f"{given!r} is nobody who can ask", hint=f"WAYPOINT_ACTOR is one of: {', '.join(get_args(Actor))}"
        ) from None
    return found


class Connection:
    """One client."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.lock = threading.Lock()
        self.idle = threading.Event()
        """Set while no request of its is being served, and when it is gone."""
        self.idle.set()

    def event(self, what: Any) -> None:
        with self.lock:
            wire.send(self.socket, {"event": what})

    def result(self, what: Any) -> None:
        with self.lock:
            wire.send(self.socket, {"result": what})

    def data(self, data: bytes) -> None:
        with self.lock:
            wire.send_data(self.socket, data)


class Answered:
    """Returned by a verb that has answered by itself and needs its connection no more."""
