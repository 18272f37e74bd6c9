"""rtnetlink(7): interfaces, addresses, routes and neighbours, as requests to the kernel and as listings.

Nothing is sent here: each function makes one request, so that a caller can send several in one batch.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from waypoint.kernel.network.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    Netlink,
    Request,
    attribute,
    attributes,
    nested,
    text,
    u32,
)

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


@dataclass(frozen=True)
class Link:
    """An interface."""

    index: int
    name: str
    alias: str
    group: int
    mtu: int
    kind: str
    """The driver: `veth`, `bridge`; empty for a real device."""


@dataclass(frozen=True)
class End:
    """One end of a veth pair."""

    name: str
    index: int
    mac: bytes


# ---- requests -----------------------------------------------------------------------------------


def _ifinfomsg(index: int = 0, *, flags: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, flags)


def create_veth(host: End, box: End, netns_fd: int, *, group: int, mtu: int) -> Request:
    """Both ends at once, the box's created inside its namespace.

    Each has one queue (the default is one per processor) and a MAC address of ours, because udev changes one
    that the kernel chose. The kernel accepts an index for the far end only together with one for the near
    end.
    """
    settings = u32(IFLA_NUM_TX_QUEUES, 1) + u32(IFLA_NUM_RX_QUEUES, 1) + u32(IFLA_MTU, mtu)
    peer = attribute(VETH_INFO_PEER, _veth_end(box) + settings + u32(IFLA_NET_NS_FD, netns_fd))
    veth = nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, "veth"), nested(IFLA_INFO_DATA, peer))
    payload = _veth_end(host) + u32(IFLA_GROUP, group) + settings + veth
    return Request("create veth", RTM_NEWLINK, payload, NLM_F_CREATE | NLM_F_EXCL)


def _veth_end(end: End) -> bytes:
    return _ifinfomsg(end.index) + text(IFLA_IFNAME, end.name) + attribute(IFLA_ADDRESS, end.mac)


def get_link(index: int) -> Request:
    """Makes the kernel look at an interface."""
    return Request("look at an interface", RTM_GETLINK, _ifinfomsg(index))


def set_link(what: str, index: int, *attributes: bytes, flags: int = 0) -> Request:
    return Request(what, RTM_SETLINK, _ifinfomsg(index, flags=flags) + b"".join(attributes))


def set_up(index: int) -> Request:
    return set_link("set the interface up", index, flags=IFF_UP)


def protocols(*, route_localnet: bool = False) -> bytes:
    """An attribute of `set_link`: no link-local IPv6 address, hence no IPv6 and no packets of its own when
    the interface comes up. `route_localnet`: packets that arrive here may be routed to a loopback
    address."""
    families = []
    if route_localnet:
        conf = nested(IFLA_INET_CONF, u32(IPV4_DEVCONF_ROUTE_LOCALNET, 1))
        families.append(nested(socket.AF_INET, conf))
    if os.path.exists("/proc/sys/net/ipv6"):
        mode = attribute(IFLA_INET6_ADDR_GEN_MODE, bytes((IN6_ADDR_GEN_MODE_NONE,)))
        families.append(nested(socket.AF_INET6, mode))
    return nested(IFLA_AF_SPEC, *families) if families else b""


def add_address(index: int, address: str, scope: int = RT_SCOPE_UNIVERSE) -> Request:
    packed = socket.inet_aton(address)
    payload = struct.pack("=BBBBI", socket.AF_INET, 32, 0, scope, index)
    return Request(
        f"add address {address}",
        RTM_NEWADDR,
        payload + attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed),
        NLM_F_CREATE | NLM_F_EXCL,
    )


def add_route(index: int, source: str, destination: str) -> Request:
    """To one address that is reached directly."""
    return _add_route(f"claim {destination}", index, source, destination=destination)


def add_default_route(index: int, source: str, gateway: str) -> Request:
    return _add_route("add default route", index, source, gateway=gateway)


def _add_route(what: str, index: int, source: str, *, destination: str = "", gateway: str = "") -> Request:
    length = 32 if destination else 0
    scope = RT_SCOPE_UNIVERSE if gateway else RT_SCOPE_LINK
    flags = RTNH_F_ONLINK if gateway else 0
    origin = (RT_TABLE_MAIN, RTPROT_STATIC, scope, RTN_UNICAST)
    payload = struct.pack("=BBBB4BI", socket.AF_INET, length, 0, 0, *origin, flags)
    if destination:
        payload += attribute(RTA_DST, socket.inet_aton(destination))
    if gateway:
        payload += attribute(RTA_GATEWAY, socket.inet_aton(gateway))
    payload += attribute(RTA_PREFSRC, socket.inet_aton(source)) + u32(RTA_OIF, index)
    return Request(what, RTM_NEWROUTE, payload, NLM_F_CREATE | NLM_F_EXCL)


def add_neighbour(index: int, address: str, mac: bytes) -> Request:
    """A permanent entry: the station at the other end of a cable is known, so no ARP is needed."""
    payload = struct.pack("=BxHiHBB", socket.AF_INET, 0, index, NUD_PERMANENT, 0, RTN_UNICAST)
    return Request(
        f"add neighbour {address}",
        RTM_NEWNEIGH,
        payload + attribute(NDA_DST, socket.inet_aton(address)) + attribute(NDA_LLADDR, mac),
        NLM_F_CREATE,
    )


def delete_links(host: Netlink, selector: bytes) -> None:
    """Deletes an interface by its name, or all of a group in the time that one takes. Absence is no error."""
    try:
        host.run(Request("delete veth", RTM_DELLINK, _ifinfomsg() + selector))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise


# ---- listings -----------------------------------------------------------------------------------


def links(netlink: Netlink) -> Iterator[Link]:
    for body in netlink.dump("list interfaces", RTM_GETLINK, _ifinfomsg()):
        fields = attributes(body[16:])
        kind = attributes(fields.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_KIND, b"")
        yield Link(
            index=struct.unpack_from("=i", body, 4)[0],
            name=_text(fields[IFLA_IFNAME]),
            alias=_text(fields.get(IFLA_IFALIAS, b"")),
            group=struct.unpack("=I", fields[IFLA_GROUP])[0],
            mtu=struct.unpack("=I", fields[IFLA_MTU])[0],
            kind=_text(kind),
        )


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


def addresses(netlink: Netlink) -> Iterator[tuple[int, str]]:
    """The index of each interface, and an address it has."""
    for body in netlink.dump("list addresses", RTM_GETADDR, struct.pack("=BBBBI", 0, 0, 0, 0, 0)):
        fields = attributes(body[8:])
        packed = fields.get(IFA_LOCAL) or fields.get(IFA_ADDRESS)
        if packed:
            yield struct.unpack_from("=I", body, 4)[0], str(ipaddress.ip_address(packed))


def routes(netlink: Netlink) -> Iterator[tuple[int, ipaddress.IPv4Network]]:
    """The IPv4 routes of all tables: the index of the interface, and what it leads to."""
    payload = struct.pack("=B11x", socket.AF_INET)
    for body in netlink.dump("list routes", RTM_GETROUTE, payload):
        fields = attributes(body[12:])
        destination = fields.get(RTA_DST, bytes(4))
        index = struct.unpack("=I", fields[RTA_OIF])[0] if RTA_OIF in fields else 0
        yield index, ipaddress.IPv4Network((destination, body[1]), strict=False)
