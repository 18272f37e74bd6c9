"""Forwarded ports: connections to ports of this machine, carried into the boxes of sessions.

A forward belongs to its session and not to a box: each connection goes to the box that the session is in when
it comes, so a forward follows a restore, and a fork has none. The far end of a connection is a socket that
the daemon makes in the network namespace of the box. No process of the box runs for it, and nothing of it is
in the tree that is saved. What a checkpoint has to know of it:

    no connection begins while a tree is saved: it waits until that is done
    the connections that are open go on; which they are is kept with the point (core/builder.BoxFacts), and in
    a copy of the point the program's ends are reset, as those of connections to the outside are
    one that the program has not accepted yet is left out of the point

Forwards are rows of the database: the next daemon listens again. They end with `unforward`, and with `stop`,
`park` and `rm` of their session.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from waypoint.api.hints import Arg, Do, Hint
from waypoint.core.live import Live
from waypoint.core.registry import Registry
from waypoint.errors import AlreadyExists, MachineError, NotFound, UsageError, WaypointError
from waypoint.kernel import faults
from waypoint.kernel.network import sockets
from waypoint.kernel.network.relay import Door, Relay, reset
from waypoint.kernel.network.sockets import Connection
from waypoint.model import Forward
from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")

_MOST_FORWARDS = 64
"""Of one session."""
_MOST_CONNECTIONS = 256
"""Into one box at a time. More wait in the kernel's queue."""
_BACKLOG = 128
_FULL_SECONDS = 0.2
_HELD_SECONDS = 60.0
"""How long a connection waits for the end of a dump."""
_AGAIN_SECONDS = 1.0
"""How often a port is tried again that another program has."""
_LOWEST_UNPRIVILEGED = 1024


@dataclass(eq=False)
class _Served:
    """A forward that the daemon listens for."""

    session_id: str
    forward: Forward
    door: Door | None = None


class _Carried(NamedTuple):
    """A connection that is carried into a box."""

    served: _Served
    box: str
    connection: Connection


@dataclass
class _Dump:
    """The box is being saved: by how many callers, and the connections that wait for the end of it."""

    callers: int = 0
    held: list[tuple[_Served, socket.socket]] = field(default_factory=list)


class Forwards:
    """The forwards of one home."""

    def __init__(self, registry: Registry) -> None:
        self._registry, self._table = registry, registry.store.forwards
        self._relay: Relay[_Carried] = Relay()
        self._served: dict[tuple[str, int], _Served] = {}
        """By address and port of this machine."""
        self._dumps: dict[str, _Dump] = {}

    # ---- forwards ----------------------------------------------------------------------------

    def add(
        self, row: SessionRow, port: int, local_port: int | None = None, address: str = "127.0.0.1"
    ) -> Forward:
        """Forwards a port of this machine from now on. `local_port`: 0 for any that is free; without one the
        same number, if that is free."""
        address = _check_address(address)
        self._registry.live(row)
        if row.options.net == "host":
            raise UsageError(
                f"session {row.name!r} is on this machine's own network",
                hint=f"nothing needs to be forwarded: what listens there at port {port} listens here",
            )
        with self._registry.moving(row.id), self._relay.lock:
            own = self._table.of(row.id)
            for known in own:
                if (known.port, known.address) == (port, address) and local_port in (None, known.local_port):
                    return known
            if len(own) >= _MOST_FORWARDS:
                raise UsageError(
                    f"session {row.name!r} has {len(own)} forwards",
                    hint=Hint("end some with ", Do("unforward")),
                )
            listener = self._bind(row, port, address, local_port)
            try:
                faults.reach("forward.bound")
                forward = Forward(port=port, address=address, local_port=listener.getsockname()[1])
                self._table.add(row.id, forward)
            except BaseException:
                listener.close()
                raise
            self._serve(row.id, forward, listener)
        return forward

    def remove(self, row: SessionRow, port: int | None = None) -> list[Forward]:
        """Ends the forwards of a port of a session; without a port all of them. Connections that are open end
        too."""
        with self._relay.lock:
            going = [known for known in self._table.of(row.id) if port in (None, known.port)]
            if not going:
                what = f"port {port}" if port else "no port"
                raise NotFound(
                    f"{what} of session {row.name!r} is {'not ' if port else ''}forwarded",
                    hint=Hint(Do("ports", session=row.name), " lists what is"),
                )
            for forward in going:
                self._end(forward)
        return going

    def end_all(self, session_id: str) -> None:
        """The session was ended by its user: so are its forwards."""
        with self._relay.lock:
            for forward in self._table.of(session_id):
                self._end(forward)

    def start(self) -> None:
        """Serves what an earlier daemon has served."""
        for session_id, forward in self._table.all():
            self._resume(session_id, forward)

    def close(self) -> None:
        """The daemon ends, the forwards do not."""
        with self._relay.lock:
            for served in self._served.values():
                if served.door:
                    self._relay.stop_listening(served.door)
            self._served.clear()
            for dump in self._dumps.values():
                for _, near in dump.held:
                    reset(near)
                dump.held.clear()
        self._relay.close()

    def _resume(self, session_id: str, forward: Forward) -> None:
        """Listens again, or tries it again a little later: another program may have the port meanwhile."""
        with self._relay.lock:
            if (session_id, forward) not in self._table.all():
                return  # it was ended meanwhile
            try:
                listener = _listen(forward.address, forward.local_port)
            except OSError as error:
                problem = _problem(error)
                if problem != forward.problem:
                    log.warning("%s is not forwarded: %s", forward.endpoint, problem)
                    self._table.set_problem(forward, problem)
                again = msgspec.structs.replace(forward, problem=problem)
                self._relay.call_later(_AGAIN_SECONDS, lambda: self._resume(session_id, again))
                return
            if forward.problem:
                self._table.set_problem(forward, "")
            self._serve(session_id, forward, listener)

    def _serve(self, session_id: str, forward: Forward, listener: socket.socket) -> None:
        served = self._served[forward.address, forward.local_port] = _Served(session_id, forward)
        served.door = Door(
            listener, lambda near: self._accept(served, near), lambda: self._has_room(session_id)
        )
        self._relay.listen(served.door)

    def _end(self, forward: Forward) -> None:
        self._table.remove(forward)
        served = self._served.pop((forward.address, forward.local_port), None)
        if served and served.door:
            self._relay.stop_listening(served.door)
            self._relay.cut(lambda carried: carried.served is served)

    def _bind(self, row: SessionRow, port: int, address: str, local_port: int | None) -> socket.socket:
        if local_port is None:
            if port >= _LOWEST_UNPRIVILEGED:
                with contextlib.suppress(OSError):
                    return _listen(address, port)
            local_port = 0
        try:
            return _listen(address, local_port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AlreadyExists(
                    f"port {local_port} of {address} is in use: {self._user_of(address, local_port)}",
                    hint=Hint("choose another one, or leave it out: then a free one is chosen"),
                ) from error
            if error.errno == errno.EADDRNOTAVAIL:
                raise UsageError(
                    f"this machine has no address {address}",
                    hint=Hint(Arg("forward", bind="0.0.0.0"), " listens on all of them"),  # noqa: S104
                ) from error
            raise MachineError(f"cannot listen on {address}: {error.strerror}") from error

    def _user_of(self, address: str, local_port: int) -> str:
        for session_id, known in self._table.all():
            if known.local_port == local_port:
                name = self._registry.find(session_id).name
                return f"it leads to port {known.port} of session {name!r}"
        return "another program listens there"

    # ---- connections -------------------------------------------------------------------------

    def _accept(self, served: _Served, near: socket.socket) -> None:
        live = self._registry.running(served.session_id)
        if live is None:
            reset(near)
        elif dump := self._dumps.get(live.box.id):
            held = (served, near)
            dump.held.append(held)
            self._relay.call_later(_HELD_SECONDS, lambda: _give_up(dump, held))
        else:
            self._connect(served, near, live)

    def _connect(self, served: _Served, near: socket.socket, live: Live) -> None:
        try:
            made = _connect(live, served.forward.port)
        except (OSError, WaypointError) as error:
            log.warning("%s leads nowhere: %s", served.forward.endpoint, error)
            made = None
        if made is None:
            reset(near)
        else:
            far, connection = made
            self._relay.carry(near, far, _Carried(served, live.box.id, connection))

    def _has_room(self, session_id: str) -> bool:
        live = self._registry.running(session_id)
        if live is None:
            return True
        dump = self._dumps.get(live.box.id)
        return len(self._into(live)) + (len(dump.held) if dump else 0) < _MOST_CONNECTIONS

    def _into(self, live: Live) -> list[Connection]:
        return [carried.connection for carried in self._relay.carried() if carried.box == live.box.id]

    def cut(self, live: Live) -> None:
        """The session leaves this box, or the box ends: so do the connections into it."""
        self._relay.cut(lambda carried: carried.box == live.box.id)

    @contextlib.contextmanager
    def closed_for_dump(self, live: Live) -> Iterator[frozenset[Connection]]:
        """While a tree is saved no connection begins in it. Yields those that are there."""
        with self._relay.lock:
            dump = self._dumps.setdefault(live.box.id, _Dump())
            dump.callers += 1
            there = frozenset(self._into(live))
        try:
            yield there
        finally:
            with self._relay.lock:
                dump.callers -= 1
                if not dump.callers:
                    del self._dumps[live.box.id]
                    # In the thread of the relay: no failure of theirs is one of the checkpoint. The session
                    # may be in another box by now.
                    for served, near in dump.held:
                        self._relay.call_later(0, functools.partial(self._accept, served, near))
                    dump.held.clear()


def _give_up(dump: _Dump, held: tuple[_Served, socket.socket]) -> None:
    if held in dump.held:
        dump.held.remove(held)
        reset(held[1])


def _connect(live: Live, port: int) -> tuple[socket.socket, Connection] | None:
    """A connection to what listens at a port of a box; None when nothing does."""
    with live.exits:  # while it is held the box is not closed, and its process number means no other process
        if live.cleared:
            return None
        namespace = live.box.open_namespace("net")
        is_own = live.box.alive
    try:
        return sockets.connect_to(namespace, port) if is_own else None
    finally:
        os.close(namespace)


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _problem(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program has this port"
    return os.strerror(error.errno or 0)


def _check_address(address: str) -> str:
    """The address as the kernel writes it; UsageError for what is none."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        raise UsageError(
            f"{address!r} is no address of this machine", hint="127.0.0.1 is the default; a name is none"
        ) from None
