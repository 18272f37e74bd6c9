"""netlink(7): the messages by which the kernel is asked about its networks and its firewall.

A library would cost more import time and memory than it saves lines: this is all that is needed of it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self, TypeVar

from waypoint.kernel.syscalls import CLONE_NEWNET, setns

_ANSWER_SECONDS = 30.0

T = TypeVar("T")

# From netlink(7)
NETLINK_ROUTE = 0
NETLINK_SOCK_DIAG = 4
NLMSG_ERROR = 2
NLMSG_DONE = 3
NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_DUMP = 0x300
NETLINK_NETFILTER = 12
NLA_F_NESTED = 0x8000

# From linux/netfilter/nfnetlink.h
NFNL_MSG_BATCH_BEGIN = 16
NFNL_MSG_BATCH_END = 17
NFNL_SUBSYS_NFTABLES = 10


def attribute(kind: int, payload: bytes) -> bytes:
    size = 4 + len(payload)
    return struct.pack("=HH", size, kind) + payload + bytes(-size % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def attributes(payload: bytes) -> dict[int, bytes]:
    fields, position = {}, 0
    while position + 4 <= len(payload):
        size, kind = struct.unpack_from("=HH", payload, position)
        if size < 4:
            break
        fields[kind & 0x3FFF] = payload[position + 4 : position + size]
        position += size + -size % 4
    return fields


def entries(payload: bytes, kind: int) -> Iterator[bytes]:
    """The entries of a nested attribute that are all of one kind."""
    position = 0
    while position + 4 <= len(payload):
        size, its_kind = struct.unpack_from("=HH", payload, position)
        if size < 4:
            return
        if its_kind & 0x3FFF == kind:
            yield payload[position + 4 : position + size]
        position += size + -size % 4


@dataclass(frozen=True)
class Request:
    what: str
    kind: int
    payload: bytes
    flags: int = 0


def in_netns(netns_fd: int, act: Callable[[], T]) -> T:
    """Calls `act` inside another network namespace, in a thread that ends with it, and returns its result."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            setns(netns_fd, CLONE_NEWNET)
            results.append(act())
        except BaseException as error:  # noqa: BLE001 (raised again by the waiting thread)
            failures.append(error)

    thread = threading.Thread(target=run, name="waypoint-netns")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


class Netlink:
    """A conversation with the kernel about one network namespace: this one, or that of `netns_fd`.

    A socket belongs to the namespace it was opened in, whichever thread uses it later.
    """

    def __init__(self, protocol: int, netns_fd: int | None = None) -> None:
        def connect() -> socket.socket:
            return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)

        self._socket = connect() if netns_fd is None else in_netns(netns_fd, connect)
        self._socket.settimeout(_ANSWER_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _messages(self) -> Iterator[tuple[int, int, bytes]]:
        answer = self._socket.recv(1 << 16)
        position = 0
        while position + 16 <= len(answer):
            size, kind, _, sequence, _ = struct.unpack_from("=IHHII", answer, position)
            yield kind, sequence, answer[position + 16 : position + size]
            position += size + -size % 4

    def run(self, *requests: Request) -> None:
        """Sends all requests, in order, with one system call. Raises the error of the first that failed.

        The kernel does not stop at an error: it tries the later requests in any case.
        """
        batch = b"".join(
            struct.pack("=IHHII", 16 + len(r.payload), r.kind, NLM_F_REQUEST | NLM_F_ACK | r.flags, number, 0)
            + r.payload
            for number, r in enumerate(requests)
        )
        self._socket.send(batch)
        results: dict[int, int] = {}
        while len(results) < len(requests):
            for kind, sequence, payload in self._messages():
                if kind == NLMSG_ERROR:
                    results[sequence] = -struct.unpack_from("=i", payload)[0]
        for number, request in enumerate(requests):
            if results[number]:
                raise OSError(results[number], f"{request.what}: {os.strerror(results[number])}")

    def transact(self, request: Request) -> None:
        """Sends one request to nftables, as a batch of its own. ENOENT is no error."""
        header = struct.pack("=BBH", socket.AF_UNSPEC, 0, socket.htons(NFNL_SUBSYS_NFTABLES))
        messages = (
            (NFNL_MSG_BATCH_BEGIN, 0, header),
            (request.kind, NLM_F_ACK | request.flags, request.payload),
            (NFNL_MSG_BATCH_END, 0, header),
        )
        self._socket.send(
            b"".join(
                struct.pack("=IHHII", 16 + len(payload), kind, NLM_F_REQUEST | flags, number, 0) + payload
                for number, (kind, flags, payload) in enumerate(messages)
            )
        )
        while True:
            for kind, _, payload in self._messages():
                if kind == NLMSG_ERROR:
                    number = -struct.unpack_from("=i", payload)[0]
                    if number and number != errno.ENOENT:
                        raise OSError(number, f"{request.what}: {os.strerror(number)}")
                    return

    def dump(self, what: str, kind: int, payload: bytes) -> Iterator[bytes]:
        """Everything of one kind that the namespace has."""
        self._socket.send(
            struct.pack("=IHHII", 16 + len(payload), kind, NLM_F_REQUEST | NLM_F_DUMP, 0, 0) + payload
        )
        while True:
            for answer, _, body in self._messages():
                if answer in (NLMSG_DONE, NLMSG_ERROR):
                    number = -struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
                    if number:
                        raise OSError(number, f"{what}: {os.strerror(number)}")
                    return
                yield body
