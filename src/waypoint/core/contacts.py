"""What leaves sessions over the network: the firewall counts it, and name servers' answers name it.

The kernel counts by itself (kernel/network/flows.py). Its counters are read when they are needed (a point is
taken, a plan is made), when a box ends, and every few minutes so that nothing piles up. What was read is a
*contact* in the database: open until the next point, which it then belongs to. A contact of a box that ended
before the next point belongs to no point. No restore takes back what has left.

Sessions on the host's network have no counters of their own; their coverage says so.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from waypoint.api.difference import Contact
from waypoint.core.background import Background
from waypoint.core.live import Live
from waypoint.core.registry import Registry
from waypoint.errors import WaypointError
from waypoint.kernel import locks
from waypoint.kernel.network import dns
from waypoint.kernel.network.flows import OTHER_DESTINATIONS, Flow
from waypoint.kernel.network.resolver import resolver_config
from waypoint.kernel.network.veth import Network
from waypoint.model import Checkpoint
from waypoint.store.contacts import TrafficCount
from waypoint.store.sessions import SessionRow
from waypoint.terminal.pump import Pump

log = logging.getLogger("waypoint")

_MOST_ADDRESSES = 4096
_MOST_NAMES = 4
_ANSWERS_AT_ONCE = 64
_ANSWERS_PER_SECOND = 200
_DNS_PORT = 53
_EVERY_SECONDS = 120.0


@dataclass
class _Names:
    """What name servers have told a box about addresses."""

    listener: socket.socket
    known: OrderedDict[str, tuple[str, ...]] = field(default_factory=OrderedDict)
    second: int = 0
    answers: int = 0
    """How many answers were read in that second."""

    def learn(self, address: str, name: str) -> None:
        before = self.known.pop(address, ())
        self.known[address] = tuple(dict.fromkeys((name, *before)))[:_MOST_NAMES]
        while len(self.known) > _MOST_ADDRESSES:
            self.known.popitem(last=False)


class Contacts:
    """The contacts of all sessions of a home."""

    def __init__(self, registry: Registry, network: Network, background: Background) -> None:
        self._registry, self._store, self._network = registry, registry.store, network
        self._pump = Pump()
        self._lock = locks.lock("contacts")
        self._watched: set[str] = set()
        """The boxes that have a cable."""
        self._names: dict[str, _Names] = {}
        self._nameservers: frozenset[str] = frozenset()
        self._cut: set[str] = set()
        """Sessions that are being saved: everything that left before the freeze has been counted."""
        background.run_every(_EVERY_SECONDS, self._collect_logged, "contacts")

    # ---- names -------------------------------------------------------------------------------

    def watch(self, live: Live) -> None:
        """From now on what leaves this box is counted, and the names of places are learned."""
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
        names = _Names(listener)
        with self._lock:
            self._names[live.box.id] = names
        self._pump.add(listener.fileno(), lambda: self._read_answers(names))

    def _read_answers(self, names: _Names) -> None:
        now = int(time.monotonic())
        if now != names.second:
            names.second, names.answers = now, 0
        for _ in range(_ANSWERS_AT_ONCE):
            if names.answers >= _ANSWERS_PER_SECOND:
                # More than is needed: the kernel drops what is not read in time.
                self._pump.remove(names.listener.fileno())
                timer = threading.Timer(1.0, self._read_on, (names,))
                timer.daemon = True
                timer.start()
                return
            try:
                answer = dns.receive(names.listener)
            except BlockingIOError:
                return
            names.answers += 1
            if answer and answer.server in self.nameservers:
                with self._lock:
                    for address in answer.addresses:
                        names.learn(address, answer.name)

    def _read_on(self, names: _Names) -> None:
        with self._lock:
            if names in self._names.values():
                self._pump.add(names.listener.fileno(), lambda: self._read_answers(names))

    @property
    def nameservers(self) -> frozenset[str]:
        """The servers that boxes are configured to ask."""
        if not self._nameservers:
            self._nameservers = frozenset(self._network.nameservers or resolver_config().nameservers)
        return self._nameservers

    # ---- counting ----------------------------------------------------------------------------

    def collect(self, lives: Iterable[Live] | None = None) -> None:
        """Reads what the kernel has counted of these boxes, or of all that run."""
        lives = self._registry.lives() if lives is None else lives
        # A spare that was never used has no session.
        self._count({live.box.id: live.session_id for live in lives if live.session_id}, self._watched)

    def _count(self, sessions: Mapping[str, str], boxes: Collection[str]) -> None:
        """Stores the kernel's counters of these boxes. `sessions`: by box, whose it is."""
        wanted = {box: session for box, session in sessions.items() if box in boxes}
        if not wanted:
            return
        by_interface: dict[str, list[Flow]] = {}
        counted = self._network.flows()
        for flow in counted.flows:
            by_interface.setdefault(flow.interface, []).append(flow)
        for interface, bytes_out in counted.missed.items():
            rest = Flow(interface, OTHER_DESTINATIONS, "any", 0, bytes_out, 0, 0.0, 0.0)
            by_interface.setdefault(interface, []).append(rest)
        for box_id, session_id in wanted.items():
            if flows := by_interface.get(self._network.interface(box_id)):
                self._store_flows(box_id, session_id, flows)

    def _store_flows(self, box_id: str, session_id: str, flows: Sequence[Flow]) -> None:
        now = time.time()
        with self._lock:
            names = self._names.get(box_id)
            known = dict(names.known) if names else {}
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
        origin = self._registry.throwaways.get(session_id)
        self._store.contacts.count(origin or session_id, box_id, counted, now, apart=origin is not None)

    def _collect_logged(self, lives: Iterable[Live] | None = None) -> None:
        """Where nothing may fail because of it."""
        with _logged():
            self.collect(lives)

    def _collect_of(self, session_id: str) -> None:
        live = self._registry.running(session_id)
        self._collect_logged([live] if live else [])

    @contextlib.contextmanager
    def counted_until_freeze(self, live: Live) -> Iterator[None]:
        """What left until here belongs to the point. What leaves between here and the freeze is counted as
        having left after it: rather a contact too many in a plan than one too few."""
        self._collect_logged([live])
        self._cut.add(live.session_id)
        try:
            yield
        except BaseException:
            self._cut.discard(live.session_id)
            raise

    def assign(self, live: Live, point: Checkpoint) -> None:
        """A point was taken: what left before belongs to it."""
        if live.session_id not in self._cut:  # files only: nothing stood still
            self._collect_logged([live])
        self._store.contacts.assign(live.session_id, point.id)
        self._cut.discard(live.session_id)

    def assign_ended(self, session_id: str, box_id: str, point: Checkpoint) -> None:
        """A pending point was saved: what has left its box belongs to it. Its session has another box."""
        with _logged(), self._store.database.transaction():
            self._count({box_id: session_id}, (box_id,))
            self._store.contacts.assign(session_id, point.id, box_id)
        with _logged():
            self._close(box_id, session_id)
        self.unwatch(box_id)

    def box_ended(self, session_id: str, box_id: str) -> None:
        """A box is gone. What left it after the last point belongs to no point."""
        if box_id not in self._watched:
            return
        self._cut.discard(session_id)
        self._close(box_id, session_id)
        self.unwatch(box_id)

    def unwatch(self, box_id: str) -> None:
        """Undoes `watch`. The kernel goes on counting."""
        self._watched.discard(box_id)
        with self._lock:
            names = self._names.pop(box_id, None)
        if names:
            self._pump.remove(names.listener.fileno())
            names.listener.close()

    def close_lost(self, owned: Collection[str], dead: Mapping[str, str]) -> None:
        """The same for boxes that ended while no daemon ran: those of sessions that died (`dead`: by box),
        and those of which a contact is still open. `owned`: the boxes that stand."""
        for box_id, session_id in {**self._store.contacts.open_boxes(), **dead}.items():
            if box_id not in owned:
                self._close(box_id, session_id)

    def _close(self, box_id: str, session_id: str) -> None:
        with _logged():
            self._count({box_id: session_id}, (box_id,))
        self._store.contacts.close(box_id)
        with contextlib.suppress(WaypointError, OSError):
            self._network.reset_counters(box_id)

    @contextlib.contextmanager
    def counters_replaced(self) -> Iterator[None]:
        """While the firewall's table is made anew, and its counters with it."""
        self._collect_logged()
        yield
        self._store.contacts.reset_counters()
        self._nameservers = frozenset()

    # ---- telling -----------------------------------------------------------------------------

    def between(self, points: Sequence[str], *, present_of: str | None = None) -> list[Contact]:
        """What left in the steps that ended with these points; `present_of`: and since the last of them."""
        if present_of is not None:
            self._collect_of(present_of)
        return self._store.contacts.of_points(points, present_of)

    def since(self, row: SessionRow, point: Checkpoint | None) -> list[Contact]:
        """What has left a session since a point was taken, in any line of its history; or ever."""
        self._collect_of(row.id)
        if point is None:
            return self._store.contacts.of_session(row.id)
        return self._store.contacts.since(row.id, point)

    def not_watched(self, net: str) -> tuple[str, ...]:
        """Why nothing can be said about what leaves such sessions, if so."""
        if net == "nat" and self._network.not_counting:
            return ("what it says to the outside is not observed: this kernel cannot count it",)
        return ()


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Where nothing may fail because the counters cannot be read."""
    try:
        yield
    except (WaypointError, OSError) as error:
        log.warning("what left the sessions could not be read: %s", error)
