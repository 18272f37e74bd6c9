"""Socket options that CRIU does not save, and some that it leaves switched on where it needs them itself.

They are read from every socket while the tree stands still, and set again while the restored tree is held.
What is recorded is only what differs from a fresh socket of that kind.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from waypoint.kernel import processes
from waypoint.kernel.processes import Process
from waypoint.model import Record

_ANY = {
    "SO_REUSEADDR": 2,
    "SO_REUSEPORT": 15,
    "SO_TIMESTAMP": 29,
    "SO_TIMESTAMPNS": 35,
    "SO_PEEK_OFF": 42,
}
_IP = {
    "IP_TOS": 1,
    "IP_TTL": 2,
    "IP_RECVOPTS": 6,
    "IP_RETOPTS": 7,
    "IP_PKTINFO": 8,
    "IP_MTU_DISCOVER": 10,
    "IP_RECVERR": 11,
    "IP_RECVTTL": 12,
    "IP_RECVTOS": 13,
    "IP_FREEBIND": 15,
    "IP_MINTTL": 21,
    "IP_BIND_ADDRESS_NO_PORT": 24,
}
_IP_OF_DATAGRAMS = {"IP_MULTICAST_TTL": 33, "IP_MULTICAST_LOOP": 34}
_IPV6 = {
    "IPV6_UNICAST_HOPS": 16,
    "IPV6_MTU_DISCOVER": 23,
    "IPV6_RECVERR": 25,
    "IPV6_RECVPKTINFO": 49,
    "IPV6_RECVHOPLIMIT": 51,
    "IPV6_RECVTCLASS": 66,
    "IPV6_TCLASS": 67,
}
_IPV6_OF_DATAGRAMS = {"IPV6_MULTICAST_HOPS": 18, "IPV6_MULTICAST_LOOP": 19}
_TCP = {
    "TCP_SYNCNT": 7,
    "TCP_LINGER2": 8,
    "TCP_DEFER_ACCEPT": 9,
    "TCP_USER_TIMEOUT": 18,
    "TCP_FASTOPEN": 23,
    "TCP_NOTSENT_LOWAT": 25,
    "TCP_SAVE_SYN": 27,
    "TCP_INQ": 36,
}
_CONGESTION = (socket.IPPROTO_TCP, 13)
"""TCP_CONGESTION: the name of an algorithm. CRIU saves that of connections, not that of other sockets."""
_NAME_BYTES = 16
_SO_PRIORITY = 12
"""Set last: the kernel derives it from IP_TOS."""
_INET = (socket.AF_INET, socket.AF_INET6)


class SocketOptions(Record, frozen=True):
    """Those of one socket, by a descriptor that leads to it: level, option, value."""

    pid: int
    fd: int
    values: tuple[tuple[int, int, int | str], ...] = ()


def _options(end: socket.socket) -> Iterator[tuple[int, int]]:
    tables = [(socket.SOL_SOCKET, _ANY)]
    if end.family in _INET:
        if end.type == socket.SOCK_STREAM:
            tables += [(socket.IPPROTO_IP, _IP), (socket.IPPROTO_TCP, _TCP)]
        else:
            tables.append((socket.IPPROTO_IP, _IP | _IP_OF_DATAGRAMS))
    if end.family == socket.AF_INET6:
        more = {} if end.type == socket.SOCK_STREAM else _IPV6_OF_DATAGRAMS
        tables.append((socket.IPPROTO_IPV6, _IPV6 | more))
    for level, names in tables:
        yield from ((level, number) for number in names.values())
    if end.family in _INET and end.type == socket.SOCK_STREAM:
        yield _CONGESTION
    yield socket.SOL_SOCKET, _SO_PRIORITY


def _read(end: socket.socket) -> dict[tuple[int, int], int | str]:
    values: dict[tuple[int, int], int | str] = {}
    for level, number in _options(end):
        with contextlib.suppress(OSError):
            values[level, number] = _read_one(end, level, number)
    return values


def _read_one(end: socket.socket, level: int, number: int) -> int | str:
    if (level, number) == _CONGESTION:
        return end.getsockopt(level, number, _NAME_BYTES).rstrip(b"\0").decode()
    return end.getsockopt(level, number)


def _usual(end: socket.socket) -> dict[tuple[int, int], int | str]:
    """What a fresh socket of its kind has."""
    # For raw and netlink sockets the protocol is part of the kind. Of the others it decides no option here.
    is_raw = end.type == socket.SOCK_RAW
    protocol = end.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) if is_raw else 0
    return _read_fresh(end.family, end.type, protocol)


@cache
def _read_fresh(family: int, kind: int, protocol: int) -> dict[tuple[int, int], int | str]:
    with socket.socket(family, kind, protocol) as fresh:
        return _read(fresh)


def read(tree: Sequence[tuple[Process, Mapping[int, str]]]) -> tuple[SocketOptions, ...]:
    """The options of a tree's sockets. `tree`: each process with the targets of its descriptors."""
    result = []
    seen: set[str] = set()
    for process, targets in tree:
        for fd, target in targets.items():
            if not target.startswith("socket:[") or target in seen:
                continue
            seen.add(target)
            with (
                contextlib.suppress(OSError),
                socket.socket(fileno=processes.duplicate(process.host_pid, fd)) as end,
            ):
                usual = _usual(end)
                values = tuple(
                    (level, number, value)
                    for (level, number), value in _read(end).items()
                    if usual.get((level, number)) != value
                )
                # An internet socket is listed in any case: for what CRIU leaves switched on.
                if values or end.family in _INET:
                    result.append(SocketOptions(pid=process.pid, fd=fd, values=values))
    return tuple(result)


def apply(tree: Sequence[Process], options: Sequence[SocketOptions]) -> None:
    """Sets what is not as it was."""
    host_pids = {process.pid: process.host_pid for process in tree}
    for one in options:
        with (
            contextlib.suppress(OSError, KeyError),
            socket.socket(fileno=processes.duplicate(host_pids[one.pid], one.fd)) as end,
        ):
            wanted = _usual(end) | {(level, number): value for level, number, value in one.values}
            for (level, number), value in wanted.items():
                with contextlib.suppress(OSError):
                    if _read_one(end, level, number) != value:
                        end.setsockopt(level, number, value.encode() if isinstance(value, str) else value)
