"""The daemon's side of one client's connection."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import socket
import struct
import threading
from typing import Any, NamedTuple

import msgspec

from waypoint.api import wire
from waypoint.errors import WaypointError
from waypoint.kernel import locks

_SO_PEERGROUPS = 59
_GROUPS_BYTES = 1024
"""The most that getsockopt(2) of Python takes."""


class Peer(NamedTuple):
    """A process that is connected."""

    pid: int
    uid: int
    groups: frozenset[int]
    """Its own group and the additional ones."""


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

    def progress(self, text: str) -> None:
        """How far a request is. A client that has gone or does not read does not hold the request up."""
        poll = select.poll()
        poll.register(self.socket, select.POLLOUT)
        if poll.poll(0):
            with contextlib.suppress(wire.Closed):
                self.event({"progress": text})

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
    def peer(self) -> Peer:
        """The process at the other end, as the kernel knew it when it connected."""
        form, level = struct.Struct("iII"), socket.SOL_SOCKET
        pid, uid, gid = form.unpack(self.socket.getsockopt(level, socket.SO_PEERCRED, form.size))
        try:
            groups = self.socket.getsockopt(level, _SO_PEERGROUPS, _GROUPS_BYTES)
        except OSError:  # there are more than fit: the machine's files have to do
            try:
                known = os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
            except KeyError:
                known = []
        else:
            known = [number for (number,) in struct.iter_unpack("I", groups)]
        return Peer(pid, uid, frozenset((gid, *known)))

    def is_gone(self) -> bool:
        """Whether the client has closed its end: it waits for no answer any more."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))


class Answered:
    """Returned by a verb that has sent its result by itself and ends with its connection."""
