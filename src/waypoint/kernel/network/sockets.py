"""sock_diag(7): the sockets of a network namespace. What listens, what is connected, how to end it, and how
to connect to it from outside.

CRIU asks in the same way, so a kernel that can save a box can answer here.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from waypoint.errors import translated
from waypoint.kernel.network import rtnetlink
from waypoint.kernel.network.netlink import NETLINK_ROUTE, NETLINK_SOCK_DIAG, Netlink, Request, in_netns

SOCK_DIAG_BY_FAMILY = 20
SOCK_DESTROY = 21
TCP_ESTABLISHED = 1
TCP_CLOSE = 7
TCP_LISTEN = 10
CONNECTED = (1, 2, 3, 4, 5, 8, 9, 11)
"""The states from TCP_ESTABLISHED to TCP_CLOSING, without those of sockets that have no other end and
without TCP_TIME_WAIT, in which there is no socket any more."""
_TCP, _UDP = ("tcp", "tcp6"), ("udp", "udp6")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Listener:
    """A socket that waits for others: `tcp`, `tcp6`, `udp` or `udp6`."""

    protocol: str
    address: str
    port: int
    inode: int


class Connection(NamedTuple):
    """A TCP connection, as the end that has accepted it sees it."""

    address: str
    port: int
    peer_address: str
    peer_port: int


@dataclass(frozen=True)
class _Socket:
    protocol: str
    family: int
    state: int
    source: Address
    port: int
    peer: Address
    peer_port: int
    device: int
    inode: int
    unread_bytes: int
    """Of one that listens: how many connections wait to be accepted."""
    unsent_bytes: int
    """With what the kernel adds to them."""
    identity: bytes
    """struct inet_diag_sockid, by which the kernel knows it."""

    @property
    def connection(self) -> Connection:
        return Connection(str(self.source), self.port, str(self.peer), self.peer_port)


def _list(diag: Netlink, protocols: Sequence[str], states: Iterable[int]) -> Iterator[_Socket]:
    mask = sum(1 << state for state in states)
    for protocol in protocols:
        family = socket.AF_INET6 if protocol.endswith("6") else socket.AF_INET
        number = socket.IPPROTO_TCP if protocol.startswith("tcp") else socket.IPPROTO_UDP
        request = struct.pack("=BBBxI", family, number, 0, mask) + bytes(48)
        try:
            for body in diag.dump(f"list {protocol} sockets", SOCK_DIAG_BY_FAMILY, request):
                yield _Socket(
                    protocol=protocol,
                    family=family,
                    state=body[1],
                    source=_unpack_address(family, body[8:24]),
                    port=struct.unpack_from("!H", body, 4)[0],
                    peer=_unpack_address(family, body[24:40]),
                    peer_port=struct.unpack_from("!H", body, 6)[0],
                    device=struct.unpack_from("=I", body, 40)[0],
                    inode=struct.unpack_from("=I", body, 68)[0],
                    unread_bytes=struct.unpack_from("=I", body, 56)[0],
                    unsent_bytes=struct.unpack_from("=I", body, 60)[0],
                    identity=body[4:52],
                )
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EAFNOSUPPORT):
                raise


def _unpack_address(family: int, packed: bytes) -> Address:
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(packed[:4])
    address = ipaddress.IPv6Address(packed)
    return address.ipv4_mapped or address


def listening(netns_fd: int) -> list[Listener]:
    """The ports that wait for a peer, ordered by protocol and number."""
    with translated("list the sockets of a box"), Netlink(NETLINK_SOCK_DIAG, netns_fd) as diag:
        open_sockets = [*_list(diag, _TCP, (TCP_LISTEN,)), *_list(diag, _UDP, (TCP_CLOSE,))]
    listeners = {Listener(s.protocol, str(s.source), s.port, s.inode) for s in open_sockets if s.port}
    return sorted(listeners, key=lambda entry: (entry.protocol, entry.port, entry.address, entry.inode))


def connected(netns_fd: int) -> bool:
    """Whether any TCP connection has data that could be on its way."""
    with translated("list the sockets of a box"), Netlink(NETLINK_SOCK_DIAG, netns_fd) as diag:
        return any(True for _ in _list(diag, _TCP, CONNECTED))


class Waiting(NamedTuple):
    """The connections that wait to be accepted."""

    listeners: frozenset[int]
    """The inodes of the sockets at which they wait."""
    only_outside: bool
    """Whether all of them come from outside. True when there are none."""


def waiting(netns_fd: int, outside: Collection[Connection]) -> Waiting:
    """What waits to be accepted. `outside`: the connections that come from outside."""
    with translated("list the sockets of a box"), Netlink(NETLINK_SOCK_DIAG, netns_fd) as diag:
        listeners = [entry for entry in _list(diag, _TCP, (TCP_LISTEN,)) if entry.unread_bytes]
        # Such a connection has no descriptor yet, and so no inode.
        ours = sum(
            not entry.inode and entry.connection in outside
            for entry in (_list(diag, _TCP, CONNECTED) if listeners and outside else ())
        )
    total = sum(entry.unread_bytes for entry in listeners)
    return Waiting(frozenset(entry.inode for entry in listeners), total <= ours)


def connect_to(netns_fd: int, port: int) -> tuple[socket.socket, Connection] | None:
    """A connection to what listens at a port of another network namespace; None when nothing does. It is
    non-blocking and may still be under way."""

    def act() -> tuple[socket.socket, Connection] | None:
        with Netlink(NETLINK_SOCK_DIAG) as diag:
            found = {entry.source for entry in _list(diag, _TCP, (TCP_LISTEN,)) if entry.port == port}
        if not found:
            return None
        address = min(found, key=_preference)
        if address.is_unspecified:
            address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            number = sock.connect_ex((str(address), port))
            if number not in (0, errno.EINPROGRESS):
                raise OSError(number, f"connect to {address}: {os.strerror(number)}")
            own_address, own_port = sock.getsockname()[:2]
        except BaseException:
            sock.close()
            raise
        return sock, Connection(str(address), port, own_address, own_port)

    return in_netns(netns_fd, act)


def _preference(address: Address) -> tuple[bool, int, str]:
    """Loopback before an interface, the version 4 before 6."""
    return not (address.is_unspecified or address.is_loopback), address.version, str(address)


def unsent_datagrams(netns_fd: int) -> frozenset[int]:
    """The inodes of UDP sockets with a datagram that has not left: it is still being collected (UDP_CORK,
    MSG_MORE), or it waits for the interface."""
    with translated("list the sockets of a box"), Netlink(NETLINK_SOCK_DIAG, netns_fd) as diag:
        open_sockets = _list(diag, _UDP, (TCP_ESTABLISHED, TCP_CLOSE))
        return frozenset(entry.inode for entry in open_sockets if entry.unsent_bytes)


def unread_datagrams(netns_fd: int) -> frozenset[int]:
    """The inodes of UDP sockets with datagrams that wait to be read."""
    with translated("list the sockets of a box"), Netlink(NETLINK_SOCK_DIAG, netns_fd) as diag:
        open_sockets = _list(diag, _UDP, (TCP_ESTABLISHED, TCP_CLOSE))
        return frozenset(entry.inode for entry in open_sockets if entry.unread_bytes)


def abstract_names_in_use(netns_fd: int, names: Iterable[tuple[int, bytes]]) -> frozenset[tuple[int, bytes]]:
    """Those of some names of unix sockets (type, name) that a socket is bound to. The end that accept() has
    made has the name of its listener, and is not bound to it: only bind(2) tells."""

    def find() -> frozenset[tuple[int, bytes]]:
        return frozenset(name for name in names if _is_in_use(*name))

    return in_netns(netns_fd, find)


def _is_in_use(kind: int, name: bytes) -> bool:
    with socket.socket(socket.AF_UNIX, kind) as trial:
        try:
            trial.bind(name)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False


def abort_outside_connections(netns_fd: int, outside: Collection[Connection] = ()) -> int:
    """Ends the TCP connections that leave the box, and those of `outside`. Returns how many there were.

    After a restore their other ends are gone or belong to another box. A program that waits on one gets
    ECONNABORTED now instead of a timeout after a quarter of an hour, or never. Other connections between the
    box's own addresses stay.
    """
    with (
        translated("end the outside connections of a box"),
        Netlink(NETLINK_ROUTE, netns_fd) as box,
        Netlink(NETLINK_SOCK_DIAG, netns_fd) as diag,
    ):
        inside = {ipaddress.ip_address(address) for _, address in rtnetlink.addresses(box)}
        left = [
            connection
            for connection in _list(diag, _TCP, CONNECTED)
            if connection.connection in outside
            or (connection.peer not in inside and not connection.peer.is_loopback)
        ]
        aborted = 0
        for connection in left:
            request = struct.pack("=BBBxI", connection.family, socket.IPPROTO_TCP, 0, 1 << connection.state)
            try:
                diag.run(Request("end a connection", SOCK_DESTROY, request + connection.identity))
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:  # CONFIG_INET_DIAG_DESTROY is off
                    return aborted
                if error.errno != errno.ENOENT:
                    raise
            else:
                aborted += 1
        return aborted


def answers_dns_from_boxes(address: str) -> bool:
    """Whether a program of the host takes questions on a loopback address, and not, as systemd's stub does,
    only those that come in through `lo`."""
    with Netlink(NETLINK_SOCK_DIAG) as diag:
        return any(
            entry.port == 53
            and not entry.device
            and (entry.source.is_unspecified or str(entry.source) == address)
            for entry in _list(diag, _UDP, (TCP_CLOSE,))
        )
