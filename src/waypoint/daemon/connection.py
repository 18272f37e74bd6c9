"""The daemon's side of one client's connection."""

from __future__ import annotations

import select
import socket
import struct
import threading
from typing import Any

import msgspec

from waypoint.api import wire
from waypoint.errors import WaypointError
from waypoint.kernel import locks


class Connection:
    """One client. Threads of a verb may send on it at the same time."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.lock = locks.lock("connection")
        self.idle = threading.Event()
        """Set while no request of this client is being served, and when it is gone."""
        self.idle.set()

    def event(self, body: Any) -> None:
        """Something that happened while a request is under way."""
        self._send({"event": body})

    def result(self, result: msgspec.Struct) -> None:
        self._send({"result": result})

    def error(self, error: WaypointError) -> None:
        self._send({"error": error.to_wire()})

    def _send(self, message: Any) -> None:
        with self.lock:
            wire.send(self.socket, message)

    def data(self, data: bytes) -> None:
        with self.lock:
            wire.send_data(self.socket, data)

    @property
    def peer(self) -> int:
        """The process at the other end."""
        size = struct.calcsize("3i")
        pid, _, _ = struct.unpack("3i", self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return int(pid)

    def is_gone(self) -> bool:
        """Whether the client has closed its end: it waits for no answer any more."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))


class Answered:
    """Returned by a verb that has sent its result by itself and ends with its connection."""
