"""Watching what leaves sessions: the firewall counts, name servers' answers pass by, and both are kept here.

The kernel counts by itself (kernel/network/flows.py). It is read when it is needed (a point is taken, a plan
is made), when a box ends, and every few minutes so that nothing piles up. What was read is a *contact*
in the database: open until the next point, which it then belongs to. A line of history that is left behind
keeps its contacts: no restore takes back what has left.

Sessions on the host's network have none of their own to watch; their coverage says so.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from waypoint.api.difference import Contact
from waypoint.errors import WaypointError
from waypoint.kernel.network import dns
from waypoint.kernel.network.flows import Flow
from waypoint.kernel.network.resolver import resolver_config
from waypoint.store.contacts import TrafficCount
from waypoint.terminal.pump import Pump

if TYPE_CHECKING:
    from pathlib import Path

    from waypoint.core.sessions import Live, Sessions
    from waypoint.model import Checkpoint
    from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")

_MOST_ADDRESSES = 4096
_MOST_NAMES = 4
_ANSWERS_AT_ONCE = 64
_ANSWERS_PER_SECOND = 200
_DNS_PORT = 53
_EVERY_SECONDS = 120.0
_SAVING_SECONDS = 60.0
"""How long saving a session may take; one that failed in the middle is counted again after that."""


@dataclass
class _Names:
    """What a box was told about addresses."""

    listener: socket.socket
    known: OrderedDict[str, tuple[str, ...]] = field(default_factory=OrderedDict)
    second: int = 0
    heard: int = 0
    """How many answers were read in that second."""

    def learn(self, address: str, name: str) -> None:
        before = self.known.pop(address, ())
        self.known[address] = tuple(dict.fromkeys((name, *before)))[:_MOST_NAMES]
        while len(self.known) > _MOST_ADDRESSES:
            self.known.popitem(last=False)


class Outbound:
    """The contacts of all sessions of a home."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._network = sessions.network
        self._pump = Pump()
        self._lock = threading.Lock()
        self._watched: set[str] = set()
        """The boxes that have a cable."""
        self._names: dict[str, _Names] = {}
        self._nameservers: frozenset[str] = frozenset()
        self._counted: dict[str, float] = {}
        """Sessions that are being saved, and since when: all that left before has been counted."""
        sessions.box_began.append(self._listen)
        sessions.box_ended.append(self._ended)
        sessions.during_dump.append(self._before_freeze)
        sessions.after_checkpoint.append(self._taken)
        sessions.during_prepare.append(self._made_anew)
        for live in sessions.lives():
            self._listen(live)
        threading.Thread(target=self._now_and_then, name="outbound", daemon=True).start()

    # ---- names -------------------------------------------------------------------------------

    def _listen(self, live: Live) -> None:
        interface = self._network.interface(live.box.id)
        try:
            socket.if_nametoindex(interface)
        except OSError:
            return  # it has no network, or the host's
        self._watched.add(live.box.id)
        try:
            listener = dns.listen(interface)
        except OSError as error:
            log.warning("box %s: names cannot be read: %s", live.box.id, error)
            return
        found = _Names(listener)
        with self._lock:
            self._names[live.box.id] = found
        self._pump.add(listener.fileno(), lambda: self._answered(found))

    def _answered(self, box: _Names) -> None:
        now = int(time.monotonic())
        if now != box.second:
            box.second, box.heard = now, 0
        for _ in range(_ANSWERS_AT_ONCE):
            if box.heard >= _ANSWERS_PER_SECOND:
                # More than anybody needs: the kernel throws away what is not read in time.
                self._pump.remove(box.listener.fileno())
                timer = threading.Timer(1.0, self._go_on, (box,))
                timer.daemon = True
                timer.start()
                return
            try:
                answer = dns.receive(box.listener)
            except BlockingIOError:
                return
            box.heard += 1
            if answer and answer.server in self.nameservers:
                with self._lock:
                    for address in answer.addresses:
                        box.learn(address, answer.name)

    def _go_on(self, box: _Names) -> None:
        with self._lock:
            if box in self._names.values():
                self._pump.add(box.listener.fileno(), lambda: self._answered(box))

    @property
    def nameservers(self) -> frozenset[str]:
        """Whom boxes are told to ask."""
        if not self._nameservers:
            self._nameservers = frozenset(self._network.nameservers or resolver_config().nameservers)
        return self._nameservers

    # ---- counting ----------------------------------------------------------------------------

    def collect(self, lives: Sequence[Live] | None = None) -> None:
        """Reads what the kernel has counted of these boxes, or of all."""
        wanted = [
            one
            for one in (self._sessions.lives() if lives is None else lives)
            if one.box.id in self._watched and one.session_id  # a spare that was never used has none
        ]
        if not wanted:
            return
        found = self._network.flows()
        by_interface: dict[str, list[Flow]] = {}
        for flow in found.flows:
            by_interface.setdefault(flow.interface, []).append(flow)
        for live in wanted:
            flows = by_interface.get(self._network.interface(live.box.id), [])
            if flows:
                self._keep(live, flows)

    def _keep(self, live: Live, flows: Sequence[Flow]) -> None:
        now = time.time()
        with self._lock:
            box = self._names.get(live.box.id)
            known = dict(box.known) if box else {}
        counted = [
            TrafficCount(
                address=flow.address,
                protocol=flow.protocol,
                port=flow.port,
                bytes_out=flow.bytes_out,
                bytes_in=flow.bytes_in,
                first_at=now - flow.first_seconds_ago,
                last_at=now - flow.last_seconds_ago,
                names=known.get(flow.address, ()),
            )
            for flow in flows
            if not (flow.port == _DNS_PORT and flow.address in self.nameservers)
        ]
        origin = self._sessions.apart.get(live.session_id)
        self._sessions.store.contacts.count(
            origin or live.session_id, live.box.id, counted, now, apart=origin is not None
        )

    def _careful(self, lives: Sequence[Live] | None = None) -> None:
        """Where nothing may fail because of it."""
        try:
            self.collect(lives)
        except (WaypointError, OSError) as error:
            log.warning("what left the sessions could not be read: %s", error)

    @contextlib.contextmanager
    def _before_freeze(self, live: Live, _: Path) -> Iterator[None]:
        """What left until here belongs to the point; what leaves until the tree stands still, and after, is
        counted as having left after it: rather a contact too many in a plan than one too few."""
        self._counted.pop(live.session_id, None)
        self._careful([live])
        self._counted[live.session_id] = time.monotonic()
        try:
            yield
        except BaseException:
            self._counted.pop(live.session_id, None)
            raise

    def _taken(self, row: SessionRow, point: Checkpoint) -> None:
        """A point was taken, and has what left before."""
        if row.id not in self._counted:  # files only: nothing stood still
            self._careful([one for one in self._sessions.lives() if one.session_id == row.id])
        self._sessions.store.contacts.assign(row.id, point.id)
        self._counted.pop(row.id, None)

    def _ended(self, live: Live) -> None:
        """A box is gone. What left it is in no point if it was not by now."""
        if live.box.id not in self._watched:
            return
        self._counted.pop(live.session_id, None)
        self._careful([live])
        self._watched.discard(live.box.id)
        with self._lock:
            box = self._names.pop(live.box.id, None)
        if box:
            self._pump.remove(box.listener.fileno())
            box.listener.close()
        self._sessions.store.contacts.close(live.box.id)
        with contextlib.suppress(WaypointError, OSError):
            self._network.reset_counters(live.box.id)

    @contextlib.contextmanager
    def _made_anew(self) -> Iterator[None]:
        """While the firewall's table is made anew, and its counters with it."""
        self._careful()
        yield
        self._sessions.store.contacts.reset_counters()
        self._nameservers = frozenset()

    def _now_and_then(self) -> None:
        while True:
            time.sleep(_EVERY_SECONDS)
            self._careful()

    # ---- telling -----------------------------------------------------------------------------

    def between(self, points: Sequence[str], *, present_of: str | None = None) -> list[Contact]:
        """What left in the steps that ended with these points; `present_of`: and since the last of them."""
        if present_of is not None:
            self._careful([one for one in self._sessions.lives() if one.session_id == present_of])
        return self._sessions.store.contacts.of_points(points, present_of)

    def since(self, row: SessionRow, point: Checkpoint | None) -> list[Contact]:
        """What has left a session since a point was taken, in whichever line of its history; or ever."""
        self._careful([one for one in self._sessions.lives() if one.session_id == row.id])
        if point is None:
            return self._sessions.store.contacts.of_session(row.id)
        return self._sessions.store.contacts.since(row.id, point)

    def not_watched(self, net: str) -> tuple[str, ...]:
        """Why nothing can be said about what leaves such sessions, if so."""
        if net == "nat" and self._network.not_counting:
            return ("what it says to the outside is not observed: this kernel cannot count it",)
        return ()
