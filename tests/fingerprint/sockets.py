"""Sockets: addresses, peers, options, and what waits to be read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import struct
import termios
from dataclasses import dataclass, field

from tests.fingerprint.facts import Recorder

from waypoint.kernel.network.netlink import NETLINK_SOCK_DIAG, Netlink, attributes
from waypoint.kernel.network.sockets import SOCK_DIAG_BY_FAMILY, abstract_names_in_use

_SHOW_NAME, _SHOW_PEER, _SHOW_RQLEN = 0x1, 0x4, 0x20
_PEER, _RQLEN, _SHUTDOWN = 2, 4, 6  # UNIX_DIAG_*
_MOST_BYTES = 1 << 18
_MOST_MESSAGES = 32

_ANY = {
    "SO_TYPE": 3,
    "SO_PROTOCOL": 38,
    "SO_DOMAIN": 39,
    "SO_ACCEPTCONN": 30,
    "SO_REUSEADDR": 2,
    "SO_REUSEPORT": 15,
    "SO_KEEPALIVE": 9,
    "SO_BROADCAST": 6,
    "SO_LINGER": 13,
    "SO_OOBINLINE": 10,
    "SO_SNDBUF": 7,
    "SO_RCVBUF": 8,
    "SO_RCVLOWAT": 18,
    "SO_RCVTIMEO": 20,
    "SO_SNDTIMEO": 21,
    "SO_PASSCRED": 16,
    "SO_PASSSEC": 34,
    "SO_PRIORITY": 12,
    "SO_MARK": 36,
    "SO_BINDTODEVICE": 25,
    "SO_TIMESTAMP": 29,
    "SO_TIMESTAMPNS": 35,
    "SO_NO_CHECK": 11,
    "SO_DONTROUTE": 5,
    "SO_PEEK_OFF": 42,
    "SO_LOCK_FILTER": 44,
    "SO_BUSY_POLL": 46,
    "SO_BUF_LOCK": 72,
    "SO_PASSPIDFD": 76,
    "SO_DEBUG": 1,
    "SO_GET_FILTER": 26,
    "SO_ZEROCOPY": 60,
    "SO_TXREHASH": 74,
    "SO_SELECT_ERR_QUEUE": 45,
}
_IP = {
    "IP_TOS": 1,
    "IP_TTL": 2,
    "IP_PKTINFO": 8,
    "IP_MTU_DISCOVER": 10,
    "IP_RECVERR": 11,
    "IP_RECVTTL": 12,
    "IP_RECVTOS": 13,
    "IP_FREEBIND": 15,
    "IP_TRANSPARENT": 19,
    "IP_MINTTL": 21,
    "IP_NODEFRAG": 22,
    "IP_BIND_ADDRESS_NO_PORT": 24,
    "IP_HDRINCL": 3,
}
_IPV6 = {
    "IPV6_V6ONLY": 26,
    "IPV6_TCLASS": 67,
    "IPV6_UNICAST_HOPS": 16,
    "IPV6_RECVPKTINFO": 49,
    "IPV6_MTU_DISCOVER": 23,
    "IPV6_RECVERR": 25,
    "IPV6_FREEBIND": 78,
}
_TCP = {
    "TCP_NODELAY": 1,
    "TCP_CORK": 3,
    "TCP_KEEPIDLE": 4,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 6,
    "TCP_SYNCNT": 7,
    "TCP_LINGER2": 8,
    "TCP_DEFER_ACCEPT": 9,
    "TCP_WINDOW_CLAMP": 10,
    "TCP_CONGESTION": 13,
    "TCP_USER_TIMEOUT": 18,
    "TCP_FASTOPEN": 23,
    "TCP_NOTSENT_LOWAT": 25,
    "TCP_SAVE_SYN": 27,
    "TCP_INQ": 36,
    "TCP_THIN_LINEAR_TIMEOUTS": 16,
    "TCP_FASTOPEN_CONNECT": 30,
}
_IP_OF_DATAGRAMS = {"IP_MULTICAST_TTL": 33, "IP_MULTICAST_LOOP": 34}
_IPV6_OF_DATAGRAMS = {"IPV6_MULTICAST_HOPS": 18, "IPV6_MULTICAST_LOOP": 19}
_SO_PEERCRED, _SO_PEERGROUPS = 17, 59


@dataclass(frozen=True)
class _Unix:
    peer: int
    shutdown: int
    queue: tuple[int, ...]


@dataclass
class Connections:
    """What the kernel knows of the unix sockets of a network namespace, by inode."""

    unix: dict[int, _Unix] = field(default_factory=dict)
    names: set[tuple[int, bytes]] = field(default_factory=set)
    """The abstract ones that were met, with the type of socket."""

    @classmethod
    def of(cls, netns: int) -> Connections:
        result = cls()
        request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x2F, 0, 0)
        with Netlink(NETLINK_SOCK_DIAG, netns) as diag:
            for body in diag.dump("list unix sockets", SOCK_DIAG_BY_FAMILY, request):
                (inode,) = struct.unpack_from("=I", body, 4)
                more = attributes(body[16:])
                result.unix[inode] = _Unix(
                    peer=struct.unpack("=I", more[_PEER])[0] if _PEER in more else 0,
                    shutdown=more[_SHUTDOWN][0] if _SHUTDOWN in more else 0,
                    queue=struct.unpack("=II", more[_RQLEN]) if _RQLEN in more else (),
                )
        return result


def record_socket(recorder: Recorder, connections: Connections, fd: int, place: str, inode: int) -> None:
    with socket.socket(fileno=os.dup(fd)) as own:
        tables = [(socket.SOL_SOCKET, _ANY)]
        if own.family in (socket.AF_INET, socket.AF_INET6):
            tables.append((socket.IPPROTO_IP, _IP))
            tables += [(socket.IPPROTO_IPV6, _IPV6)] if own.family == socket.AF_INET6 else []
            if own.type == socket.SOCK_STREAM:
                tables.append((socket.IPPROTO_TCP, _TCP))
            else:
                tables.append((socket.IPPROTO_IP, _IP_OF_DATAGRAMS))
            if own.type != socket.SOCK_STREAM and own.family == socket.AF_INET6:
                tables.append((socket.IPPROTO_IPV6, _IPV6_OF_DATAGRAMS))
        for level, names in tables:
            for name, number in names.items():
                with contextlib.suppress(OSError):
                    recorder.add(name, place, own.getsockopt(level, number, 16).hex())
        for name, ask in (("address", own.getsockname), ("peer's address", own.getpeername)):
            try:
                recorder.add(name, place, ask())
            except OSError as error:
                recorder.add(name, place, errno.errorcode[error.errno or 0])
        listens = bool(own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        if own.family == socket.AF_UNIX:
            _record_unix(recorder, connections, own, place, inode, listens=listens)
        elif own.type == socket.SOCK_STREAM:
            recorder.add("TCP state", place, own.getsockopt(socket.IPPROTO_TCP, 11, 1)[0])
        if listens:
            return
        requests = {"unread": termios.FIONREAD, "unsent": termios.TIOCOUTQ}
        if own.family not in (socket.AF_INET, socket.AF_INET6) or own.type != socket.SOCK_STREAM:
            del requests["unsent"]  # the kernel's own size of what is queued
        for name, request in requests.items():
            with contextlib.suppress(OSError):
                (count,) = struct.unpack("i", fcntl.ioctl(fd, request, bytes(4)))
                is_udp = own.family != socket.AF_UNIX and own.type == socket.SOCK_DGRAM
                recorder.add(f"{name} {'datagrams' if is_udp else 'in a socket'}", place, count)
        kind = "datagrams" if own.family != socket.AF_UNIX and own.type == socket.SOCK_DGRAM else "messages"
        content, senders = _peek(own)
        recorder.add(kind, place, content)
        recorder.add("senders", place, senders)


def record_names(recorder: Recorder, connections: Connections, netns: int) -> None:
    """Which abstract names a socket is bound to. (An accepted end has its listener's, and is not.)"""
    in_use = abstract_names_in_use(netns, connections.names)
    for kind, name in connections.names:
        recorder.add("name in use", f"{kind} {name!r}", (kind, name) in in_use)


def _record_unix(
    recorder: Recorder, connections: Connections, own: socket.socket, place: str, inode: int, *, listens: bool
) -> None:
    name = own.getsockname()
    if isinstance(name, bytes) and name:
        connections.names.add((own.type, name))
    known = connections.unix.get(inode)
    if known:
        recorder.add("peer", place, recorder.object(f"socket:[{known.peer}]") if known.peer else "none")
        recorder.add("shutdown", place, known.shutdown)
        recorder.add("queue", place, known.queue)
    pid, uid, gid = struct.unpack("iII", own.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, 12))
    if pid or listens:
        recorder.add("SO_PEERCRED user", place, f"{uid} {gid}")
        recorder.add("SO_PEERCRED process", place, recorder.pids.get(pid, "ended") if pid else "0")


def _peek(own: socket.socket) -> tuple[str, str]:
    """What waits to be read, without taking it: a digest of it, and who sent it."""
    digest = hashlib.blake2b(digest_size=8)
    senders: list[object] = []
    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
    # An error that waits (the other end was closed before it had read everything) would be all that is read.
    own.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if own.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            data, address = own.recvfrom(_MOST_BYTES, flags)
            digest.update(data)
            senders.append(address)
        return digest.hexdigest(), str(senders)
    offset = own.getsockopt(socket.SOL_SOCKET, _ANY["SO_PEEK_OFF"])
    own.setsockopt(socket.SOL_SOCKET, _ANY["SO_PEEK_OFF"], 0)
    try:
        with contextlib.suppress(OSError):
            for _ in range(_MOST_MESSAGES):
                data, address = own.recvfrom(_MOST_BYTES, flags)
                if not data:
                    break
                digest.update(data)
                if own.type == socket.SOCK_DGRAM:
                    senders.append(address)
    finally:
        own.setsockopt(socket.SOL_SOCKET, _ANY["SO_PEEK_OFF"], offset)
    return digest.hexdigest(), str(senders)
