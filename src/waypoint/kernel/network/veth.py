"""The cables between boxes and the host: veth pairs, their addresses, and which box has which.

Branches of one session all listen on the same ports and all want to install software, so every box has a
network namespace of its own, joined to the host by a veth pair and to the world by masquerading. Many forks
can be made at once, therefore no program is executed for a box: a cable is a few batches of rtnetlink
messages.

What a box sees is the same after every restore: `eth0` with index 100, the gateway 169.254.77.1, no IPv6
beyond `::1`. Only its address differs. The route to that address on the host is made with NLM_F_EXCL and so
is also the claim to it: the kernel grants it once, whichever thread, process or home asks.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import ipaddress
import itertools
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from waypoint.api.hints import Hint
from waypoint.errors import AlreadyExists, MachineError, UsageError, translated
from waypoint.kernel import locks
from waypoint.kernel.network import GATEWAY, INTERFACE_PREFIX, flows, rtnetlink
from waypoint.kernel.network.firewall import WITHOUT_NAT, Firewall
from waypoint.kernel.network.netlink import NETLINK_ROUTE, Netlink, text, u32
from waypoint.kernel.network.resolver import Resolver, resolver_config
from waypoint.kernel.network.rtnetlink import IFLA_GROUP, IFLA_IFALIAS, IFLA_IFNAME, RT_SCOPE_LINK, End, Link

LOOPBACK_IFINDEX = 1
BOX_INTERFACE = "eth0"
BOX_IFINDEX = 100
"""Above the indices of the interfaces that tunnel drivers create in each new namespace."""

RANGES = (
    *(f"10.{second}.0.0/16" for second in range(213, 250)),
    *(f"172.{second}.0.0/16" for second in range(20, 32)),
    *(f"192.168.{third}.0/24" for third in range(213, 250)),
)
"""Where the addresses of boxes come from: the first of these that nothing on this machine uses."""


@dataclass(frozen=True)
class Lease:
    """What one box got: its cable to the host and its address."""

    box_address: str
    interface: str
    """The name of the host's end."""


class Network:
    """The cables of one home's boxes, and the firewall they share.

    The kernel keeps all of it: interfaces carry the home's tag and the box's id as their alias, and all of it
    is gone after a reboot.
    """

    def __init__(self, tag: str) -> None:
        if not tag.isalnum() or not tag.isascii():
            raise UsageError(f"a tag is made of letters and digits: {tag!r}")
        self.tag = tag
        self.table = f"waypoint-{tag}"
        self._prefix = INTERFACE_PREFIX + _short(tag, 4)
        self._group = int.from_bytes(hashlib.sha256(tag.encode()).digest()[:3]) | 0x57000000
        self._firewall = Firewall(self.table, self._prefix + "*")
        self._lock = locks.lock("network")
        self._range: ipaddress.IPv4Network | None = None
        self._mtu = 1500
        self._forwarded_to: str | None = None
        self._indices: Iterator[int] = iter(())
        self.nameservers: tuple[str, ...] = ()
        """The name servers of boxes."""
        self.not_counting = ""
        """Why what leaves boxes is not counted, if so."""

    def prepare(self, resolver: Resolver | None = None) -> None:
        """Makes the host ready for boxes. A later call adapts to what has changed since."""
        resolver = resolver or resolver_config()
        with self._lock, _translated("prepare the network"):
            with Netlink(NETLINK_ROUTE) as host:
                links = {link.index: link for link in rtnetlink.links(host)}
                routes = list(rtnetlink.routes(host))
                addresses = [address for _, address in rtnetlink.addresses(host)]
            uplinks = {links[index] for index, to in routes if index in links and not to.prefixlen}
            free_range = _free_range(links, routes, [*addresses, *resolver.nameservers])
            self.not_counting = self._firewall.load(
                bridges=sorted(link.name for link in uplinks if link.kind == "bridge"),
                dns_server=resolver.forwarded_to,
            )
            self.nameservers = resolver.nameservers
            size = free_range.num_addresses - 2
            start = secrets.randbelow(size)
            self._indices = (1 + (start + step) % size for step in itertools.count())
            self._mtu = min((link.mtu for link in uplinks), default=1500)
            self._forwarded_to = resolver.forwarded_to
            self._range = free_range

    def attach(self, box_id: str, netns_fd: int, *, keep: Sequence[str] = ()) -> Lease:
        """Joins a box to the host and to the world.

        `keep` are the addresses that sockets of this session are bound to: they are this box's own too, so
        that the sockets can be restored, but they lead nowhere outside it.
        """
        try:
            earlier = [str(ipaddress.IPv4Address(address)) for address in dict.fromkeys(keep)]
        except ValueError as error:
            raise UsageError(f"cannot keep an address: {error}") from error
        if self._range is None:
            self.prepare()
        interface = self.interface(box_id)
        digest = hashlib.sha256(f"{self.tag}/{box_id}".encode()).digest()
        host_mac, box_mac = _mac(digest, host=True), _mac(digest, host=False)
        alias = text(IFLA_IFALIAS, f"{self.table} {box_id}")
        settings = rtnetlink.protocols(route_localnet=bool(self._forwarded_to))
        with contextlib.ExitStack() as stack, _translated(f"attach box {box_id} to the network"):
            host = stack.enter_context(Netlink(NETLINK_ROUTE))
            box = stack.enter_context(Netlink(NETLINK_ROUTE, netns_fd))
            index = self._create_cable(host, box_id, host_mac, box_mac, netns_fd)
            undo = stack.enter_context(contextlib.ExitStack())
            undo.callback(rtnetlink.delete_links, host, text(IFLA_IFNAME, interface))
            host.run(
                rtnetlink.set_link("describe veth", index, alias, settings),
                rtnetlink.set_up(index),
                rtnetlink.add_address(index, GATEWAY, RT_SCOPE_LINK),
            )
            address = self._claim_address(host, index)
            host.run(rtnetlink.add_neighbour(index, address, box_mac))
            box.run(
                rtnetlink.set_up(LOOPBACK_IFINDEX),
                rtnetlink.set_link("no IPv6 on eth0", BOX_IFINDEX, rtnetlink.protocols()),
                rtnetlink.set_up(BOX_IFINDEX),
                rtnetlink.add_address(BOX_IFINDEX, address),
                *(rtnetlink.add_address(BOX_IFINDEX, old) for old in earlier if old != address),
                rtnetlink.add_default_route(BOX_IFINDEX, address, GATEWAY),
                rtnetlink.add_neighbour(BOX_IFINDEX, GATEWAY, host_mac),
            )
            # The host's end was up before the other one. The kernel drops what is sent until it notices that
            # there is a carrier now; a question about the interface makes it notice at once.
            host.run(rtnetlink.get_link(index))
            undo.pop_all()
        return Lease(address, interface)

    def _create_cable(
        self, host: Netlink, box_id: str, host_mac: bytes, box_mac: bytes, netns_fd: int
    ) -> int:
        interface = self.interface(box_id)
        far = End(BOX_INTERFACE, BOX_IFINDEX, box_mac)
        for _ in range(8):
            index = secrets.randbelow(1 << 30) + (1 << 30)
            near = End(interface, index, host_mac)
            try:
                host.run(rtnetlink.create_veth(near, far, netns_fd, group=self._group, mtu=self._mtu))
                return index
            except FileExistsError:
                raise AlreadyExists(f"box {box_id} has a network already", hint="detach it first") from None
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
        raise OSError(errno.EBUSY, "no index is free for an interface")

    def _claim_address(self, host: Netlink, index: int) -> str:
        """An address that no box has, and that no other box gets from now on."""
        assert self._range is not None
        for _ in range(self._range.num_addresses):
            with self._lock:
                address = str(self._range[next(self._indices)])
            try:
                host.run(rtnetlink.add_route(index, GATEWAY, address))
            except FileExistsError:
                continue
            return address
        raise MachineError(f"all addresses of {self._range} are taken", hint="end some sessions")

    def interface(self, box_id: str) -> str:
        """The name of the host's end of a box's cable."""
        return self._prefix + _short(box_id, 8)

    def detach(self, box_id: str) -> None:
        """Removes the cable of a box, if it still exists.

        The kernel waits for a grace period with its network lock held (10 to 30 ms). It is for boxes that
        go on living: when a namespace dies its cable goes with it, and many together go as fast as one.
        """
        interface = self.interface(box_id)
        with _translated(f"detach {interface}"), Netlink(NETLINK_ROUTE) as host:
            rtnetlink.delete_links(host, text(IFLA_IFNAME, interface))

    def flows(self) -> flows.Flows:
        """What has left the boxes so far."""
        with _translated("read what was counted"):
            return flows.read(self.table)

    def reset_counters(self, box_id: str) -> None:
        """Forgets what was counted of a box that has ended."""
        with _translated("reset what was counted"):
            flows.reset_counters(self.table, self.interface(box_id))

    def teardown(self) -> None:
        """Undoes `prepare` and every `attach`: the host is as it was."""
        with self._lock:
            with _translated("remove the boxes' interfaces"), Netlink(NETLINK_ROUTE) as host:
                rtnetlink.delete_links(host, u32(IFLA_GROUP, self._group))
            self._firewall.remove()
            self._range = None


def _translated(doing: str) -> contextlib.AbstractContextManager[None]:
    return translated(doing, hint=WITHOUT_NAT)


def _short(name: str, width: int) -> str:
    return base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().lower()[:width]


def _mac(digest: bytes, *, host: bool) -> bytes:
    """Locally administered, unicast, and the same for a box of the same id."""
    return bytes((0x02, 0x57 if host else 0x58)) + digest[:4]


def _free_range(
    links: dict[int, Link], routes: Iterable[tuple[int, ipaddress.IPv4Network]], addresses: Iterable[str]
) -> ipaddress.IPv4Network:
    taken = [
        to
        for index, to in routes
        if to.prefixlen and not (index in links and links[index].name.startswith(INTERFACE_PREFIX))
    ]
    taken += [ipaddress.IPv4Network(address) for address in addresses if ":" not in address]
    for candidate in map(ipaddress.IPv4Network, RANGES):
        if not any(candidate.overlaps(other) for other in taken):
            return candidate
    raise MachineError(
        "every private range of addresses is in use on this machine",
        hint=Hint("`ip route` shows by what; ", WITHOUT_NAT),
    )
