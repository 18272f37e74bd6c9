"""The network of a box: its own namespace, a cable to the host, and a way out that hides who is asking.

Branches of one session all listen on the same ports and all want to install software, so every box has a
network namespace of its own, joined to the host by a veth pair and to the world by masquerading. A fork
storm makes dozens of them at once, therefore nothing is executed per box: this module speaks rtnetlink
itself, a few batches of messages per cable. The firewall, the same for all boxes of a home, is loaded once
with `nft` and knows the boxes by the beginning of their interfaces' names.

What a box sees is the same in every incarnation: `eth0` with index 100, the gateway 169.254.77.1, no IPv6
beyond `::1`. Only its address differs. The route to that address on the host is made with NLM_F_EXCL and so
is also the claim to it: the kernel grants it once, whoever asks, from whichever thread, process or home.

What leaves a box is counted, destination by destination (flows.py).

Sockets are restored with the addresses they had, so an earlier address can be kept on `eth0` beside the
new one. The firewall lets a box send from its new address only: what a fork says on a connection that it
inherited would otherwise reach the other end as if its origin had said it.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import hashlib
import ipaddress
import itertools
import json
import os
import secrets
import shutil
import socket
import struct
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waypoint.errors import AlreadyExists, MachineError, MissingFeature, NotRoot, UsageError
from waypoint.kernel.network import flows
from waypoint.kernel.network.netlink import (
    NETLINK_ROUTE,
    NETLINK_SOCK_DIAG,
    NLM_F_CREATE,
    NLM_F_EXCL,
    Netlink,
    Request,
    attribute,
    attributes,
    in_netns,
    nested,
    text,
    u32,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# From rtnetlink(7)
RTM_NEWLINK = 16
RTM_DELLINK = 17
RTM_GETLINK = 18
RTM_SETLINK = 19
RTM_NEWADDR = 20
RTM_GETADDR = 22
RTM_NEWROUTE = 24
RTM_GETROUTE = 26
RTM_NEWNEIGH = 28
IFLA_ADDRESS = 1
IFLA_IFNAME = 3
IFLA_MTU = 4
IFLA_LINKINFO = 18
IFLA_IFALIAS = 20
IFLA_AF_SPEC = 26
IFLA_GROUP = 27
IFLA_NET_NS_FD = 28
IFLA_NUM_TX_QUEUES = 31
IFLA_NUM_RX_QUEUES = 32
IFLA_INFO_KIND = 1
IFLA_INFO_DATA = 2
VETH_INFO_PEER = 1
IFLA_INET_CONF = 1
IPV4_DEVCONF_ROUTE_LOCALNET = 26
IFLA_INET6_ADDR_GEN_MODE = 8
IN6_ADDR_GEN_MODE_NONE = 1
IFA_ADDRESS = 1
IFA_LOCAL = 2
RTA_DST = 1
RTA_OIF = 4
RTA_GATEWAY = 5
RTA_PREFSRC = 7
NDA_DST = 1
NDA_LLADDR = 2
NUD_PERMANENT = 0x80
RT_TABLE_MAIN = 254
RTPROT_STATIC = 4
RT_SCOPE_UNIVERSE = 0
RT_SCOPE_LINK = 253
RTN_UNICAST = 1
RTNH_F_ONLINK = 4
IFF_UP = 0x1

# From sock_diag(7)
SOCK_DIAG_BY_FAMILY = 20
SOCK_DESTROY = 21
TCP_CLOSE = 7
TCP_LISTEN = 10
CONNECTED = (1, 2, 3, 4, 5, 8, 9, 11)
"""The states from TCP_ESTABLISHED to TCP_CLOSING, without those of sockets that have no other end and
without TCP_TIME_WAIT, in which there is no socket any more."""

GATEWAY = "169.254.77.1"
"""The host, as every box sees it. Link-local and constant: a program that was told its gateway or its
name server before a checkpoint still has it right after the restore."""

LOOPBACK_IFINDEX = 1
BOX_INTERFACE = "eth0"
BOX_IFINDEX = 100
"""Above what the tunnel drivers put into each new namespace by themselves."""

RANGES = (
    *(f"10.{second}.0.0/16" for second in range(213, 250)),
    *(f"172.{second}.0.0/16" for second in range(20, 32)),
    *(f"192.168.{third}.0/24" for third in range(213, 250)),
)
"""Where the addresses of boxes come from: the first of these that nothing on this machine uses."""

HOST_RESOLV_CONF = Path("/etc/resolv.conf")
UPSTREAM_RESOLV_CONFS = (
    Path("/run/systemd/resolve/resolv.conf"),
    Path("/run/NetworkManager/no-stub-resolv.conf"),
)
"""Where the resolvers that listen on a loopback address keep the servers they themselves ask."""

_IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_FORWARDING_MARK = "turned-on-ip-forward"
_PREFIX = "wp-"
_CRIU_MARK = 0xC114
_LOCK = "waypoint-lock"


@dataclass(frozen=True)
class Lease:
    """The cable between one box and the host."""

    index: int
    host_address: str
    box_address: str
    interface: str


@dataclass(frozen=True)
class Listener:
    """A socket that waits for others: `tcp`, `tcp6`, `udp` or `udp6`."""

    protocol: str
    address: str
    port: int
    inode: int


@dataclass(frozen=True)
class Resolver:
    """How names are looked up in a box."""

    text: str
    """The box's /etc/resolv.conf."""
    nameservers: tuple[str, ...]
    forwarded_to: str | None = None
    """The loopback address of the host that port 53 of the gateway leads to."""
    problem: str = ""
    """Why names cannot be looked up in a box, if so."""


# ---- cables -------------------------------------------------------------------------------------


def _ifinfomsg(index: int = 0, *, flags: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, flags)


def _cable(interface: str, index: int, digest: bytes, netns_fd: int, *, group: int, mtu: int) -> Request:
    """Both ends at once, the far one born inside the box, each with one queue (the default is one per
    processor) and an address of ours: udev gives another one to an interface that chose its own. The
    kernel lets us choose the index of the far end only if we choose that of the near one too."""
    queues = u32(IFLA_NUM_TX_QUEUES, 1) + u32(IFLA_NUM_RX_QUEUES, 1) + u32(IFLA_MTU, mtu)
    peer = attribute(
        VETH_INFO_PEER,
        _ifinfomsg(BOX_IFINDEX)
        + text(IFLA_IFNAME, BOX_INTERFACE)
        + attribute(IFLA_ADDRESS, _mac(digest, host=False))
        + queues
        + u32(IFLA_NET_NS_FD, netns_fd),
    )
    veth = nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, "veth"), nested(IFLA_INFO_DATA, peer))
    near = (
        _ifinfomsg(index)
        + text(IFLA_IFNAME, interface)
        + attribute(IFLA_ADDRESS, _mac(digest, host=True))
        + u32(IFLA_GROUP, group)
        + queues
    )
    return Request("create veth", RTM_NEWLINK, near + veth, NLM_F_CREATE | NLM_F_EXCL)


def _mac(digest: bytes, *, host: bool) -> bytes:
    """Locally administered, unicast, and the same for a box of the same id."""
    return bytes((0x02, 0x57 if host else 0x58)) + digest[:4]


def _set_link(what: str, index: int, *attributes: bytes, flags: int = 0) -> Request:
    return Request(what, RTM_SETLINK, _ifinfomsg(index, flags=flags) + b"".join(attributes))


def _up(index: int) -> Request:
    return _set_link("set the interface up", index, flags=IFF_UP)


def _families(*, localnet: bool = False) -> bytes:
    """Of IPv6 no link-local address, hence nothing at all and no chatter when the interface comes up; of
    IPv4, if asked, that what arrives here may be led to a loopback address."""
    specs = []
    if localnet:
        specs.append(nested(socket.AF_INET, nested(IFLA_INET_CONF, u32(IPV4_DEVCONF_ROUTE_LOCALNET, 1))))
    if os.path.exists("/proc/sys/net/ipv6"):
        mode = attribute(IFLA_INET6_ADDR_GEN_MODE, bytes((IN6_ADDR_GEN_MODE_NONE,)))
        specs.append(nested(socket.AF_INET6, mode))
    return nested(IFLA_AF_SPEC, *specs) if specs else b""


def _address(index: int, address: str, scope: int) -> Request:
    packed = socket.inet_aton(address)
    payload = struct.pack("=BBBBI", socket.AF_INET, 32, 0, scope, index)
    return Request(
        f"add address {address}",
        RTM_NEWADDR,
        payload + attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed),
        NLM_F_CREATE | NLM_F_EXCL,
    )


def _route(
    what: str, index: int, source: str, *, to: str | None = None, gateway: str | None = None
) -> Request:
    scope = RT_SCOPE_UNIVERSE if gateway else RT_SCOPE_LINK
    flags = RTNH_F_ONLINK if gateway else 0
    length = 32 if to else 0
    return Request(
        what,
        RTM_NEWROUTE,
        struct.pack(
            "=BBBBBBBBI",
            *(socket.AF_INET, length, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, scope, RTN_UNICAST, flags),
        )
        + (attribute(RTA_DST, socket.inet_aton(to)) if to else b"")
        + (attribute(RTA_GATEWAY, socket.inet_aton(gateway)) if gateway else b"")
        + attribute(RTA_PREFSRC, socket.inet_aton(source))
        + u32(RTA_OIF, index),
        NLM_F_CREATE | NLM_F_EXCL,
    )


def _neighbour(index: int, address: str, mac: bytes) -> Request:
    """There is one other station on the cable and we have just made it: nobody needs to ask who it is."""
    payload = struct.pack("=BxHiHBB", socket.AF_INET, 0, index, NUD_PERMANENT, 0, RTN_UNICAST)
    return Request(
        f"add neighbour {address}",
        RTM_NEWNEIGH,
        payload + attribute(NDA_DST, socket.inet_aton(address)) + attribute(NDA_LLADDR, mac),
        NLM_F_CREATE,
    )


def _forget(host: Netlink, which: bytes) -> None:
    """Deletes an interface by its name, or all of a group in the time that one takes."""
    try:
        host.run(Request("delete veth", RTM_DELLINK, _ifinfomsg() + which))
    except OSError as failure:
        if failure.errno != errno.ENODEV:
            raise


@dataclass(frozen=True)
class _Link:
    index: int
    name: str
    alias: str
    group: int
    mtu: int
    kind: str


def _links(netlink: Netlink) -> Iterator[_Link]:
    for body in netlink.dump("list interfaces", RTM_GETLINK, _ifinfomsg()):
        found = attributes(body[16:])
        kind = attributes(found.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_KIND, b"")
        yield _Link(
            index=struct.unpack_from("=i", body, 4)[0],
            name=found[IFLA_IFNAME].rstrip(b"\0").decode(errors="replace"),
            alias=found.get(IFLA_IFALIAS, b"").rstrip(b"\0").decode(errors="replace"),
            group=struct.unpack("=I", found[IFLA_GROUP])[0],
            mtu=struct.unpack("=I", found[IFLA_MTU])[0],
            kind=kind.rstrip(b"\0").decode(errors="replace"),
        )


def _addresses(netlink: Netlink) -> Iterator[tuple[int, str]]:
    for body in netlink.dump("list addresses", RTM_GETADDR, struct.pack("=BBBBI", 0, 0, 0, 0, 0)):
        found = attributes(body[8:])
        packed = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS)
        if packed:
            yield struct.unpack_from("=I", body, 4)[0], str(ipaddress.ip_address(packed))


def _routes(netlink: Netlink) -> Iterator[tuple[int, ipaddress.IPv4Network]]:
    """The IPv4 routes of all tables, as the interface and what lies behind it."""
    payload = struct.pack("=BBBBBBBBI", socket.AF_INET, *(0,) * 8)
    for body in netlink.dump("list routes", RTM_GETROUTE, payload):
        found = attributes(body[12:])
        destination = found.get(RTA_DST, bytes(4))
        interface = struct.unpack("=I", found[RTA_OIF])[0] if RTA_OIF in found else 0
        yield interface, ipaddress.IPv4Network((destination, body[1]), strict=False)


# ---- the firewall -------------------------------------------------------------------------------


def _nft(*arguments: str, script: str | None = None) -> str:
    program = shutil.which("nft", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not program:
        raise MissingFeature(
            "the program `nft` is not installed: boxes cannot reach the network without it",
            hint="apt-get install nftables, or start the session with --net none",
        )
    done = subprocess.run([program, *arguments], input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingFeature(
            f"the kernel refused the firewall rules of the boxes: {done.stderr.strip()}",
            hint="a kernel with nf_tables, nft_nat, nft_masq, nft_fib and nft_reject is needed; "
            "sessions with --net none or --net host work without",
        )
    return done.stdout


def _nft_objects(kind: str, *arguments: str) -> list[dict[str, Any]]:
    listed = json.loads(_nft("-j", "-a", "list", *arguments))["nftables"]
    return [entry[kind] for entry in listed if kind in entry]


def _ruleset(
    table: str,
    pattern: str,
    *,
    mark: bool,
    bridges: Sequence[str],
    forwarded_to: str | None,
    counting: bool = True,
) -> str:
    """The one table of a home, as a script that replaces it in one step.

    Other firewalls on the machine keep their say: a packet has to pass all of them.
    """
    refuse = "reject with icmpx admin-prohibited"
    others = f"oifname != {{ {', '.join(json.dumps(name) for name in bridges)} }} " if bridges else ""
    dns = "meta l4proto { tcp, udp } th dport 53"
    to_host = f"""
    chain dns-to-host {{
        type nat hook prerouting priority dstnat - 10;
        iifname "{pattern}" ip daddr {GATEWAY} {dns} dnat ip to {forwarded_to}
    }}
    # To the resolver it is somebody on this machine: many answer nobody else.
    chain dns-from-host {{
        type nat hook input priority 90;
        iifname "{pattern}" ip daddr 127.0.0.0/8 {dns} snat ip to 127.0.0.1
    }}"""
    return f"""
add table inet {table}
delete table inet {table}
table inet {table} {{
    {f"chain {_FORWARDING_MARK} {{ }}" if mark else ""}
    # Before connection tracking: a packet of a fork on its origin's connection must not touch its record.
    chain own-address {{
        type filter hook prerouting priority raw - 10;
        iifname != "{pattern}" accept
        meta nfproto ipv6 drop
        fib saddr . iif oif missing drop
    }}
    chain forward {{
        type filter hook forward priority filter - 10;
        iifname "{pattern}" oifname "{_PREFIX}*" {refuse}
        iifname "{_PREFIX}*" oifname "{pattern}" {refuse}
        oifname "{pattern}" ct state established,related accept
        oifname "{pattern}" drop
        iifname != "{pattern}" accept
        ct state established,related accept
        ct status dnat {refuse}
        meta oifkind "bridge" {others}{refuse}
        ip daddr 169.254.0.0/16 {dns} accept
        ip daddr 169.254.0.0/16 {refuse}
        tcp flags & (syn|rst) == syn tcp option maxseg size set rt mtu
    }}
    chain input {{
        type filter hook input priority filter - 10;
        iifname != "{pattern}" accept
        ct state established,related accept
        {dns} accept
        {refuse}
    }}
    chain way-out {{
        type nat hook postrouting priority srcnat - 10;
        iifname "{pattern}" oifname != "{_PREFIX}*" masquerade
    }}{to_host if forwarded_to else ""}{flows.rules(pattern) if counting else ""}
}}
"""


class Network:
    """The cables of one home's boxes, and the firewall they share.

    Nothing of it is kept in memory only: interfaces carry the home's tag and the box's id as their alias,
    the table says whether forwarding was off before, and all of it is gone after a reboot.
    """

    def __init__(self, tag: str) -> None:
        if not tag.isalnum() or not tag.isascii():
            raise UsageError(f"a tag is made of letters and digits: {tag!r}")
        self.tag = tag
        self.table = f"waypoint-{tag}"
        self._prefix = _PREFIX + _short(tag, 4)
        self._group = int.from_bytes(hashlib.sha256(tag.encode()).digest()[:3]) | 0x57000000
        self._lock = threading.Lock()
        self._range: ipaddress.IPv4Network | None = None
        self._mtu = 1500
        self._forwarded_to: str | None = None
        self._indices: Iterator[int] = iter(())
        self.nameservers: tuple[str, ...] = ()
        """Whom boxes ask for names."""
        self.not_counting = ""
        """Why what leaves boxes is not counted, if so."""

    def prepare(self, resolver: Resolver | None = None) -> None:
        """Makes the host ready for boxes. Asked again, it adapts to what has changed since."""
        resolver = resolver or resolver_config()
        with self._lock:
            with _translated("prepare the network"), Netlink(NETLINK_ROUTE) as host:
                links = {link.index: link for link in _links(host)}
                routes = list(_routes(host))
                addresses = [address for _, address in _addresses(host)]
            uplinks = {links[index] for index, to in routes if index in links and not to.prefixlen}
            addresses_from = _free_range(links, routes, [*addresses, *resolver.nameservers])
            chains = _nft_objects("chain", "chains")
            forwarding = _IP_FORWARD.read_text().strip() != "0"
            rules = functools.partial(
                _ruleset,
                self.table,
                self._prefix + "*",
                mark=not forwarding or _has_mark(chains, self.table),
                bridges=sorted(link.name for link in uplinks if link.kind == "bridge"),
                forwarded_to=resolver.forwarded_to,
            )
            self.not_counting = ""
            try:
                _nft("-f", "-", script=rules())
            except MissingFeature as failure:
                _nft("-f", "-", script=rules(counting=False))
                self.not_counting = failure.message
            self.nameservers = resolver.nameservers
            self._pass_other_firewalls(chains)
            if not forwarding:
                with _translated("turn on IPv4 forwarding"):
                    _IP_FORWARD.write_text("1")
            size = addresses_from.num_addresses - 2
            start = secrets.randbelow(size)
            self._indices = (1 + (start + step) % size for step in itertools.count())
            self._mtu = min((link.mtu for link in uplinks), default=1500)
            self._forwarded_to = resolver.forwarded_to
            self._range = addresses_from

    def attach(self, box_id: str, netns_fd: int, *, keep: Sequence[str] = ()) -> Lease:
        """Joins a box to the host and to the world.

        `keep` are the addresses that sockets of this session are bound to: they
        are this box's own too, so that the sockets can be restored, but lead nowhere outside it.
        """
        try:
            kept = [str(ipaddress.IPv4Address(address)) for address in dict.fromkeys(keep)]
        except ValueError as failure:
            raise UsageError(f"cannot keep an address: {failure}") from failure
        if self._range is None:
            self.prepare()
        interface = self.interface(box_id)
        digest = hashlib.sha256(f"{self.tag}/{box_id}".encode()).digest()
        alias = text(IFLA_IFALIAS, f"{self.table} {box_id}")
        with contextlib.ExitStack() as undo, _translated(f"attach box {box_id} to the network"):
            host = undo.enter_context(Netlink(NETLINK_ROUTE))
            box = undo.enter_context(Netlink(NETLINK_ROUTE, netns_fd))
            index = self._lay_cable(host, box_id, digest, netns_fd)
            failed = undo.enter_context(contextlib.ExitStack())
            failed.callback(_forget, host, text(IFLA_IFNAME, interface))
            host.run(
                _set_link("describe veth", index, alias, _families(localnet=bool(self._forwarded_to))),
                _up(index),
                _address(index, GATEWAY, RT_SCOPE_LINK),
            )
            number, address = self._claim(host, index)
            host.run(_neighbour(index, address, _mac(digest, host=False)))
            box.run(
                _up(LOOPBACK_IFINDEX),
                _set_link("no IPv6 on eth0", BOX_IFINDEX, _families()),
                _up(BOX_IFINDEX),
                _address(BOX_IFINDEX, address, RT_SCOPE_UNIVERSE),
                *(_address(BOX_IFINDEX, old, RT_SCOPE_UNIVERSE) for old in kept if old != address),
                _route("add default route", BOX_IFINDEX, address, gateway=GATEWAY),
                _neighbour(BOX_IFINDEX, GATEWAY, _mac(digest, host=True)),
            )
            # The host's end was up before the other one: the kernel notices in its own time that it has a
            # carrier now, and drops what is sent until then. To be asked about it makes it look.
            host.run(Request("look at veth", RTM_GETLINK, _ifinfomsg(index)))
            failed.pop_all()
        return Lease(index=number, host_address=GATEWAY, box_address=address, interface=interface)

    def _lay_cable(self, host: Netlink, box_id: str, digest: bytes, netns_fd: int) -> int:
        interface = self.interface(box_id)
        for _ in range(8):
            index = secrets.randbelow(1 << 30) + (1 << 30)
            try:
                host.run(_cable(interface, index, digest, netns_fd, group=self._group, mtu=self._mtu))
                return index
            except FileExistsError:
                raise AlreadyExists(f"box {box_id} has a network already", hint="detach it first") from None
            except OSError as failure:
                if failure.errno != errno.EBUSY:
                    raise
        raise OSError(errno.EBUSY, "no index is free for an interface")

    def _claim(self, host: Netlink, index: int) -> tuple[int, str]:
        """An address nobody has, and from now on nobody else gets."""
        assert self._range is not None
        for _ in range(self._range.num_addresses):
            with self._lock:
                number = next(self._indices)
                address = str(self._range[number])
            try:
                host.run(_route(f"claim {address}", index, GATEWAY, to=address))
            except FileExistsError:
                continue
            return number, address
        raise MachineError(f"all addresses of {self._range} are taken", hint="end some sessions")

    def interface(self, box_id: str) -> str:
        """The host's end of a box's cable."""
        return self._prefix + _short(box_id, 8)

    def detach(self, lease_or_box_id: Lease | str) -> None:
        """Takes the cable away, if it is still there.

        The kernel waits for a grace period with its network lock held (10 to 30 ms). It is for boxes that
        go on living: when a namespace dies its cable goes by itself, and many together go as fast as one.
        """
        if isinstance(lease_or_box_id, Lease):
            interface = lease_or_box_id.interface
        elif lease_or_box_id.startswith(self._prefix):
            interface = lease_or_box_id
        else:
            interface = self.interface(lease_or_box_id)
        with _translated(f"detach {interface}"), Netlink(NETLINK_ROUTE) as host:
            _forget(host, text(IFLA_IFNAME, interface))

    def leases(self) -> list[str]:
        """The boxes that have a cable now; its name in place of the id where a crash came in between."""
        with _translated("list the boxes' interfaces"), Netlink(NETLINK_ROUTE) as host:
            own = [link for link in _links(host) if link.group == self._group]
        return [link.alias.removeprefix(self.table + " ") or link.name for link in own]

    def flows(self) -> flows.Flows:
        """What has left the boxes so far."""
        with _translated("read what was counted"):
            return flows.read(self.table)

    def forget_flows(self, box_id: str) -> None:
        """Of a box that has ended."""
        with _translated("forget what was counted"):
            flows.forget(self.table, self.interface(box_id))

    def teardown(self) -> None:
        """Undoes `prepare` and every `attach`: the host is as it was."""
        with self._lock:
            with _translated("remove the boxes' interfaces"), Netlink(NETLINK_ROUTE) as host:
                _forget(host, u32(IFLA_GROUP, self._group))
            chains = _nft_objects("chain", "chains")
            script = [
                f"delete rule {chain['family']} {chain['table']} {chain['name']} handle {rule['handle']}"
                for chain in _base_chains(chains)
                for rule in self._rules_in(chain)
            ]
            if any(chain["table"] == self.table for chain in chains):
                script.append(f"delete table inet {self.table}")
            others = sorted({c["table"] for c in chains if c["table"].startswith("waypoint-")} - {self.table})
            marked = _has_mark(chains, self.table)
            if marked and others:
                script.append(f"add chain inet {others[0]} {_FORWARDING_MARK}")
            if script:
                _nft("-f", "-", script="\n".join(script) + "\n")
            needed = any(
                c.get("type") == "nat" and c.get("hook") == "postrouting" for c in _base_chains(chains)
            )
            if marked and not others and not needed:
                with _translated("turn off IPv4 forwarding"):
                    _IP_FORWARD.write_text("0")
            self._range = None

    def _pass_other_firewalls(self, chains: list[dict[str, Any]]) -> None:
        """Adds exceptions to chains that drop what they do not know, as Docker's and ufw's do.

        They are of the form that iptables can read back. What a box may do is said by our own table alone.
        """
        directions = {"forward": ("iifname", "oifname"), "input": ("iifname",)}
        script = [
            f"insert rule {chain['family']} {chain['table']} {chain['name']} "
            f'{direction} "{self._prefix}*" counter accept comment "{self.table}"'
            for chain in _base_chains(chains)
            if chain.get("policy") == "drop" and chain["hook"] in directions and not self._rules_in(chain)
            for direction in directions[chain["hook"]]
        ]
        if script:
            _nft("-f", "-", script="\n".join(script) + "\n")

    def _rules_in(self, chain: dict[str, Any]) -> list[dict[str, Any]]:
        rules = _nft_objects("rule", "chain", chain["family"], chain["table"], chain["name"])
        return [rule for rule in rules if rule.get("comment") == self.table]


def _base_chains(chains: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entrances of everybody else's IPv4 firewalls."""
    return [
        chain
        for chain in chains
        if chain["family"] in ("ip", "inet")
        and "hook" in chain
        and not chain["table"].startswith("waypoint-")
    ]


def _has_mark(chains: list[dict[str, Any]], table: str) -> bool:
    """Whether forwarding was off before this home was prepared: an empty chain in its table says so."""
    return any(chain["table"] == table and chain["name"] == _FORWARDING_MARK for chain in chains)


def _short(name: str, width: int) -> str:
    return base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().lower()[:width]


def _free_range(
    links: dict[int, _Link], routes: Iterable[tuple[int, ipaddress.IPv4Network]], addresses: Iterable[str]
) -> ipaddress.IPv4Network:
    taken = [
        to
        for index, to in routes
        if to.prefixlen and not (index in links and links[index].name.startswith(_PREFIX))
    ]
    taken += [ipaddress.IPv4Network(address) for address in addresses if ":" not in address]
    for candidate in map(ipaddress.IPv4Network, RANGES):
        if not any(candidate.overlaps(other) for other in taken):
            return candidate
    raise MachineError(
        "every private range of addresses is in use on this machine",
        hint="`ip route` shows by whom; sessions with --net none or --net host work without",
    )


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Turns what the kernel says into what a user can act on."""
    try:
        yield
    except PermissionError as failure:
        raise NotRoot(f"cannot {doing}: {failure}", hint="run Waypoint as root") from failure
    except OSError as failure:
        if failure.errno in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EROFS):
            raise MissingFeature(
                f"cannot {doing}: {failure}", hint="sessions with --net none or --net host work without"
            ) from failure
        raise MachineError(f"cannot {doing}: {failure}", hint="`waypoint doctor` may know more") from failure


# ---- inside one namespace -----------------------------------------------------------------------


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class _Socket:
    protocol: str
    family: int
    state: int
    source: _Address
    port: int
    peer: _Address
    device: int
    inode: int
    identity: bytes
    """struct inet_diag_sockid, the name the kernel knows it by."""


def _sockets(diag: Netlink, protocols: Sequence[str], states: Iterable[int]) -> Iterator[_Socket]:
    """CRIU asks the same way, so a kernel that can save a box can answer."""
    wanted = sum(1 << state for state in states)
    for protocol in protocols:
        family = socket.AF_INET6 if protocol.endswith("6") else socket.AF_INET
        number = socket.IPPROTO_TCP if protocol.startswith("tcp") else socket.IPPROTO_UDP
        asked = struct.pack("=BBBxI", family, number, 0, wanted) + bytes(48)
        try:
            for body in diag.dump(f"list {protocol} sockets", SOCK_DIAG_BY_FAMILY, asked):
                yield _Socket(
                    protocol=protocol,
                    family=family,
                    state=body[1],
                    source=_unpacked(family, body[8:24]),
                    port=struct.unpack_from("!H", body, 4)[0],
                    peer=_unpacked(family, body[24:40]),
                    device=struct.unpack_from("=I", body, 40)[0],
                    inode=struct.unpack_from("=I", body, 68)[0],
                    identity=body[4:52],
                )
        except OSError as failure:
            if failure.errno not in (errno.ENOENT, errno.EAFNOSUPPORT):
                raise


def _unpacked(family: int, packed: bytes) -> _Address:
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(packed[:4])
    address = ipaddress.IPv6Address(packed)
    return address.ipv4_mapped or address


def loopback_up(netns_fd: int) -> None:
    """127.0.0.1 and ::1: all the network that a box with `--net none` has."""
    with _translated("set the loopback interface up"), Netlink(NETLINK_ROUTE, netns_fd) as box:
        box.run(_up(LOOPBACK_IFINDEX))


def addresses(netns_fd: int) -> list[str]:
    """The IPv4 addresses of a box that are not loopback ones, its own first, then those it kept."""
    with _translated("list the addresses of a box"), Netlink(NETLINK_ROUTE, netns_fd) as box:
        return [address for index, address in _addresses(box) if index == BOX_IFINDEX and ":" not in address]


def abort_outside_connections(netns_fd: int) -> int:
    """Ends the TCP connections that leave the box, and says how many there were.

    After a restore their other ends are gone or belong to somebody else. Whoever waits on one is told now
    (ECONNABORTED) and not after a quarter of an hour. Connections between the box's own addresses stay.
    """
    with (
        _translated("end the outside connections of a box"),
        Netlink(NETLINK_ROUTE, netns_fd) as box,
        Netlink(NETLINK_SOCK_DIAG, netns_fd) as diag,
    ):
        inside = {ipaddress.ip_address(address) for _, address in _addresses(box)}
        outside = [
            found
            for found in _sockets(diag, ("tcp", "tcp6"), CONNECTED)
            if found.peer not in inside and not found.peer.is_loopback
        ]
        ended = 0
        for found in outside:
            asked = struct.pack("=BBBxI", found.family, socket.IPPROTO_TCP, 0, 1 << found.state)
            try:
                diag.run(Request("end a connection", SOCK_DESTROY, asked + found.identity))
            except OSError as failure:
                if failure.errno == errno.EOPNOTSUPP:  # CONFIG_INET_DIAG_DESTROY is off
                    return ended
                if failure.errno != errno.ENOENT:
                    raise
            else:
                ended += 1
        return ended


def lock(netns_fd: int) -> None:
    """Lets no packet through in a box, loopback included, until `unlock`.

    While connections are restored one end is there before the other: what it sends would be answered with
    a reset. CRIU's own packets carry a mark.
    """
    chains = "".join(
        f"chain {hook} {{ type filter hook {hook} priority 0; policy drop; mark {_CRIU_MARK} accept; }}\n"
        for hook in ("input", "output")
    )
    in_netns(netns_fd, lambda: _nft("-f", "-", script=f"table inet {_LOCK} {{\n{chains}}}\n"))


def unlock(netns_fd: int) -> None:
    """Ends what `lock` began."""
    in_netns(netns_fd, lambda: _nft("delete", "table", "inet", _LOCK))


def connected(netns_fd: int) -> bool:
    """Whether any TCP connection has data that could be on its way."""
    with _translated("list the sockets of a box"), Netlink(NETLINK_SOCK_DIAG, netns_fd) as diag:
        return any(True for _ in _sockets(diag, ("tcp", "tcp6"), CONNECTED))


def listening(netns_fd: int) -> list[Listener]:
    """The ports that wait for somebody, ordered by protocol and number."""
    with _translated("list the sockets of a box"), Netlink(NETLINK_SOCK_DIAG, netns_fd) as diag:
        found = [
            *_sockets(diag, ("tcp", "tcp6"), (TCP_LISTEN,)),
            *_sockets(diag, ("udp", "udp6"), (TCP_CLOSE,)),
        ]
    listeners = {Listener(s.protocol, str(s.source), s.port, s.inode) for s in found if s.port}
    return sorted(listeners, key=lambda one: (one.protocol, one.port, one.address, one.inode))


# ---- names --------------------------------------------------------------------------------------


def _nameservers(text: str) -> list[_Address]:
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                found.append(ipaddress.ip_address(words[1].partition("%")[0]))
    return found


def _answers_boxes(address: str) -> bool:
    """Whether something on the host listens for questions on this loopback address, and not, as
    systemd's stub does, only for those that come in through `lo`."""
    with Netlink(NETLINK_SOCK_DIAG) as diag:
        return any(
            found.port == 53
            and not found.device
            and (found.source.is_unspecified or str(found.source) == address)
            for found in _sockets(diag, ("udp", "udp6"), (TCP_CLOSE,))
        )


def resolver_config(host_resolv_conf: Path = HOST_RESOLV_CONF) -> Resolver:
    """What a box's /etc/resolv.conf has to say so that names resolve behind the masquerade.

    The host's own file will do if its servers can be reached from elsewhere. A server on a loopback
    address cannot: in its place stand the servers it asks, where it says which, or else the gateway, from
    where the firewall leads questions back to it.
    """
    try:
        text = host_resolv_conf.read_text(errors="replace")
    except OSError:
        text = ""
    named = _nameservers(text)
    rest = [line for line in text.splitlines() if line.split()[:1] in (["search"], ["domain"], ["options"])]
    usable = [str(a) for a in named if a.version == 4 and not a.is_loopback]
    forwarded_to = None
    problem = ""
    local = [str(a) for a in named if a.version == 4 and a.is_loopback] or ([] if named else ["127.0.0.1"])
    if not usable:
        for path in UPSTREAM_RESOLV_CONFS:
            with contextlib.suppress(OSError):
                upstream = _nameservers(path.read_text(errors="replace"))
                usable = usable or [str(a) for a in upstream if a.version == 4 and not a.is_loopback]
    if not usable:
        with contextlib.suppress(OSError):
            forwarded_to = next((address for address in local if _answers_boxes(address)), None)
        usable = [GATEWAY] if forwarded_to else []
    if not usable:
        asked = ", ".join(map(str, named)) or "none"
        problem = f"the host's name servers ({asked}) cannot be reached from a box over IPv4"
    lines = [*rest, *(f"nameserver {address}" for address in usable)]
    return Resolver(
        text="".join(line + "\n" for line in lines),
        nameservers=tuple(usable),
        forwarded_to=forwarded_to,
        problem=problem,
    )
