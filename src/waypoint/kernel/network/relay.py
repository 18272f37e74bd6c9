"""Carrying bytes between pairs of connections: one thread for any number of pairs.

All sockets are non-blocking. Of each direction at most one piece (`_PIECE_BYTES`) is held: nothing more is
read from one side before the other has taken it, so a slow reader slows down its writer and costs no memory.
The end of one direction is passed on, and the other one goes on. A pair whose other direction then carries
nothing for a while is ended, and so is one whose connection is not made in time.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from waypoint.kernel import locks

log = logging.getLogger("waypoint")

K = TypeVar("K")

_PIECE_BYTES = 64 << 10
_CONNECT_SECONDS = 10.0
_HALF_CLOSED_SECONDS = 300.0
"""A pair of which one direction has ended ends when the other one carries nothing for so long."""
_FULL_SECONDS, _FAILED_SECONDS = 0.2, 1.0
_RESET = struct.pack("ii", 1, 0)
"""struct linger: close(2) then sends a reset, and no end of file that would make cut data look whole."""


def reset(sock: socket.socket) -> None:
    """Closes a connection so that its other end gets ECONNRESET."""
    with contextlib.suppress(OSError):  # it is closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


@dataclass(eq=False)
class _Side:
    """One connection of a pair: what it has still to be sent, and which of its directions have ended."""

    sock: socket.socket
    unsent: bytes = b""
    read_all: bool = False
    """Whether nothing more will come from it."""
    sent_all: bool = False
    """Whether it was told that nothing more will come."""
    watched: int | None = None
    """For which events epoll watches it; None when it does not."""

    @property
    def done(self) -> bool:
        return self.read_all and self.sent_all


@dataclass(eq=False)
class _Pair(Generic[K]):
    near: _Side
    far: _Side
    key: K
    connecting: bool = True
    used_at: float = field(default_factory=time.monotonic)

    def other(self, side: _Side) -> _Side:
        return self.far if side is self.near else self.near


@dataclass(frozen=True, eq=False)
class Door:
    """A socket that listens, and what becomes of the connections that come."""

    listener: socket.socket
    accepted: Callable[[socket.socket], None]
    """Owns the socket that it is called with."""
    has_room: Callable[[], bool]
    """Whether another connection may come now. Until then they wait in the kernel's queue."""


class Relay(Generic[K]):
    """Listening sockets, and pairs of connections between which bytes are carried.

    `lock` protects all of it. Every action runs while it is held, in the thread of the relay, so actions must
    not block. The thread exists from the first use on.
    """

    def __init__(self) -> None:
        self.lock = locks.rlock("forwards")
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._actions: dict[int, Callable[[int], None]] = {self._wake: lambda _: self._woken()}
        self._new: set[int] = set()
        """Descriptors that were registered since the last poll: an event of it is of an earlier socket that
        had the same number."""
        self._pairs: dict[_Pair[K], None] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    # ---- for callers -------------------------------------------------------------------------

    def listen(self, door: Door) -> None:
        """Accepts what comes there from now on."""
        door.listener.setblocking(False)
        with self.lock:
            self._register(door.listener.fileno(), select.EPOLLIN, lambda _: self._accept(door))
            self._start()

    def stop_listening(self, door: Door) -> None:
        """Accepts nothing more there, and closes the socket."""
        with self.lock:
            self._unregister(door.listener.fileno())
            door.listener.close()

    def carry(self, near: socket.socket, far: socket.socket, key: K) -> None:
        """Carries bytes between two connections until both have ended. It owns the sockets from here on.
        `far` may still be connecting."""
        pair = _Pair(_Side(near), _Side(far), key)
        for side in (pair.near, pair.far):
            side.sock.setblocking(False)
            side.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if side.sock.family != socket.AF_UNIX:
                side.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.lock:
            self._pairs[pair] = None
            self._watch(pair)
            self.call_later(_CONNECT_SECONDS, lambda: self._end(pair) if pair.connecting else None)

    def carried(self) -> list[K]:
        """The keys of all pairs."""
        with self.lock:
            return [pair.key for pair in self._pairs]

    def cut(self, concerns: Callable[[K], bool]) -> None:
        """Ends the pairs whose key it concerns: both ends get a reset."""
        with self.lock:
            for pair in [pair for pair in self._pairs if concerns(pair.key)]:
                self._end(pair)

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Runs an action in the thread of the relay, after so many seconds."""
        with self.lock:
            if not self._closed:
                heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), action))
                self._start()
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Ends all pairs and the thread. Listening sockets are the caller's."""
        with self.lock:
            self._closed = True
            for pair in list(self._pairs):
                self._end(pair)
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        with self.lock:
            self._epoll.close()
            os.close(self._wake)

    # ---- the thread --------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._work, name="forwards", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self.lock:
                first = self._timers[0][0] if self._timers else None
                self._new.clear()
            timeout = None if first is None else max(0.0, first - time.monotonic())
            events = self._epoll.poll(timeout)
            with self.lock:
                if self._closed:
                    return
                for fd, event in events:
                    if fd not in self._new and (action := self._actions.get(fd)):
                        _run_logged(lambda action=action, event=event: action(event))  # type: ignore[misc]
                now = time.monotonic()
                while self._timers and self._timers[0][0] <= now:
                    _run_logged(heapq.heappop(self._timers)[2])

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _register(self, fd: int, events: int, action: Callable[[int], None]) -> None:
        self._actions[fd] = action
        self._new.add(fd)
        self._epoll.register(fd, events)

    def _unregister(self, fd: int) -> None:
        if self._actions.pop(fd, None) and not self._closed:
            self._epoll.unregister(fd)

    def _accept(self, door: Door) -> None:
        if not door.has_room():
            self._pause(door, _FULL_SECONDS)
            return
        try:
            sock, _ = door.listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # the client has gone already; or too many files are open, and it passes
            log.warning("a connection to a forwarded port could not be accepted: %s", error)
            self._pause(door, _FAILED_SECONDS)
            return
        door.accepted(sock)

    def _pause(self, door: Door, seconds: float) -> None:
        """Leaves connections in the kernel's queue for a while."""
        self._unregister(door.listener.fileno())

        def go_on() -> None:
            if door.listener.fileno() >= 0:
                self.listen(door)

        self.call_later(seconds, go_on)

    # ---- pairs -------------------------------------------------------------------------------

    def _watch(self, pair: _Pair[K]) -> None:
        """Has epoll watch for what each side can do next."""
        for side in (pair.near, pair.far):
            events = 0
            if not pair.connecting and not side.read_all and not pair.other(side).unsent:
                events |= select.EPOLLIN
            if side.unsent or (pair.connecting and side is pair.far):
                events |= select.EPOLLOUT
            fd = side.sock.fileno()
            if side.done and not events:  # else its EPOLLHUP would come again and again
                if side.watched is not None:
                    self._unregister(fd)
                side.watched = None
            elif side.watched is None:
                self._register(fd, events, lambda event, side=side: self._serve(pair, side, event))  # type: ignore[misc]
                side.watched = events
            elif side.watched != events:
                self._epoll.modify(fd, events)
                side.watched = events

    def _serve(self, pair: _Pair[K], side: _Side, event: int) -> None:
        try:
            if pair.connecting and side is pair.far:
                if error := side.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(error, os.strerror(error))
                pair.connecting = False
            elif event & select.EPOLLERR or (event & select.EPOLLHUP and not side.watched):
                raise ConnectionResetError
            elif event & (select.EPOLLOUT | select.EPOLLHUP) and side.unsent:
                self._send(pair, side)
            if event & (select.EPOLLIN | select.EPOLLHUP) and (side.watched or 0) & select.EPOLLIN:
                self._receive(pair, side)
        except BlockingIOError:
            pass
        except OSError:
            self._end(pair)
            return
        if pair.near.done and pair.far.done:
            self._end(pair, cleanly=True)
        else:
            self._watch(pair)

    def _receive(self, pair: _Pair[K], side: _Side) -> None:
        other = pair.other(side)
        data = side.sock.recv(_PIECE_BYTES)
        pair.used_at = time.monotonic()
        if data:
            other.unsent = data
        else:
            side.read_all = True
            self.call_later(_HALF_CLOSED_SECONDS, lambda: self._end_if_unused(pair))
        self._send(pair, other)

    def _send(self, pair: _Pair[K], side: _Side) -> None:
        """Sends what there is. At the end of what the other side has sent, so is this one's."""
        if side.unsent:
            try:
                side.unsent = side.unsent[side.sock.send(side.unsent) :]
                pair.used_at = time.monotonic()
            except BlockingIOError:
                return
        if not side.unsent and pair.other(side).read_all and not side.sent_all:
            side.sent_all = True
            side.sock.shutdown(socket.SHUT_WR)

    def _end_if_unused(self, pair: _Pair[K]) -> None:
        if pair in self._pairs:
            left = pair.used_at + _HALF_CLOSED_SECONDS - time.monotonic()
            if left <= 0:
                self._end(pair)
            else:
                self.call_later(left, lambda: self._end_if_unused(pair))

    def _end(self, pair: _Pair[K], *, cleanly: bool = False) -> None:
        if pair not in self._pairs:
            return
        del self._pairs[pair]
        for side in (pair.near, pair.far):
            if side.watched is not None:
                self._unregister(side.sock.fileno())
            if cleanly:
                side.sock.close()
            else:
                reset(side.sock)


def _run_logged(action: Callable[[], None]) -> None:
    """An error of one connection must not end the thread that serves all of them."""
    try:
        action()
    except Exception:
        log.exception("a forwarded connection failed")
