"""Which names a box was given addresses for: its name servers' answers, read as they pass by.

People know `api.stripe.com`, the firewall counts 18.66.2.14. A packet socket on the host's end of a box's
cable sees the answers on their way in. A filter in the kernel drops everything else, so a cable without
questions costs nothing. Only packets that go *to* the box count, because a box must not answer itself. It can
still ask a server that lies, so `Answer` names the server, and a caller should believe only the name servers
that boxes are given.

What is parsed here comes from outside: every length is checked, and a malformed packet is no answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import socket
import struct
from dataclasses import dataclass

# From packet(7) and linux/filter.h
ETH_P_ALL = 0x0003
SO_ATTACH_FILTER = 26
PACKET_OUTGOING = 4
SKF_AD_PKTTYPE = 0xFFFFF000 + 4
BPF_LD_B_ABS, BPF_LD_H_ABS, BPF_LD_H_IND = 0x30, 0x28, 0x48
BPF_LDX_MSH = 0xB1
BPF_JEQ, BPF_JSET, BPF_AND, BPF_RET = 0x15, 0x45, 0x54, 0x06

_DNS_PORT = 53
_MAX_BYTES = 4096
_BUFFER_BYTES = 1 << 18
_MAX_RECORDS = 64
_MAX_JUMPS = 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
CUT_OFF = (struct.error, IndexError, ValueError)
"""What `parse` raises for a packet that is no whole answer."""


@dataclass(frozen=True)
class Answer:
    """A name server says which addresses a name has."""

    server: str
    name: str
    addresses: tuple[str, ...]


def _filter() -> bytes:
    """UDP over IPv4 from port 53, unfragmented, on its way out of this interface."""
    steps = [
        (BPF_LD_B_ABS, 0, 0, SKF_AD_PKTTYPE),
        (BPF_JEQ, 0, None, PACKET_OUTGOING),
        (BPF_LD_B_ABS, 0, 0, 0),
        (BPF_AND, 0, 0, 0xF0),
        (BPF_JEQ, 0, None, 0x40),
        (BPF_LD_B_ABS, 0, 0, 9),
        (BPF_JEQ, 0, None, socket.IPPROTO_UDP),
        (BPF_LD_H_ABS, 0, 0, 6),
        (BPF_JSET, None, 0, 0x1FFF),
        (BPF_LDX_MSH, 0, 0, 0),
        (BPF_LD_H_IND, 0, 0, 0),
        (BPF_JEQ, 0, None, _DNS_PORT),
        (BPF_RET, 0, 0, _MAX_BYTES),
        (BPF_RET, 0, 0, 0),
    ]
    drop = len(steps) - 1

    def jump(number: int, to: int | None) -> int:
        return drop - number - 1 if to is None else to

    return b"".join(
        struct.pack("=HBBI", code, jump(number, yes), jump(number, no), value)
        for number, (code, yes, no, value) in enumerate(steps)
    )


def listen(interface: str) -> socket.socket:
    """A socket that receives the answers on their way to the box behind this interface. Never blocks."""
    code = _filter()
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    # With protocol 0 it receives nothing until it is bound, and by then the filter is there.
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
    try:
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        listener.setblocking(False)
        listener.bind((interface, ETH_P_ALL))
    except BaseException:
        listener.close()
        raise
    return listener


def receive(listener: socket.socket) -> Answer | None:
    """The next answer; None for a malformed one. BlockingIOError when there is none."""
    try:
        packet = listener.recv(_MAX_BYTES)
    except OSError as error:
        if error.errno == errno.ENETDOWN:  # reported once when the interface is deleted
            raise BlockingIOError(error.errno, os.strerror(errno.ENETDOWN)) from error
        raise
    with contextlib.suppress(*CUT_OFF):
        return parse(packet)
    return None


def parse(packet: bytes) -> Answer | None:
    """An IPv4 packet with an answer in it; `CUT_OFF` when it is cut off or no name can be read."""
    start = (packet[0] & 0x0F) * 4 + 8
    message = packet[start:]
    _, flags, questions, answers, _, _ = struct.unpack_from("!6H", message)
    is_answer, error_code = flags & 0x8000, flags & 0x000F
    if not is_answer or error_code or questions != 1:
        return None
    name, at = _read_name(message, 12)
    at += 4
    addresses = []
    for _ in range(min(answers, _MAX_RECORDS)):
        at = _skip_name(message, at)
        kind, space, _, length = struct.unpack_from("!HHIH", message, at)
        at += 10
        if (kind, space, length) == (1, 1, 4):
            addresses.append(".".join(map(str, struct.unpack_from("4B", message, at))))
        at += length
    if not addresses or not _NAME.fullmatch(name) or len(name) > 253:
        return None
    return Answer(socket.inet_ntoa(packet[12:16]), name.lower(), tuple(dict.fromkeys(addresses)))


def _read_name(message: bytes, at: int) -> tuple[str, int]:
    """The name of the question: it is the first in a message, so it refers to no other."""
    parts: list[str] = []
    for _ in range(_MAX_JUMPS * 2):
        length = message[at]
        at += 1
        if not length:
            return ".".join(parts), at
        if length > 63 or at + length > len(message):
            break
        parts.append(message[at : at + length].decode("ascii"))
        at += length
    raise ValueError("no name")


def _skip_name(message: bytes, at: int) -> int:
    for _ in range(_MAX_JUMPS * 2):
        length = message[at]
        if length & 0xC0 == 0xC0:
            return at + 2
        if not length:
            return at + 1
        at += 1 + length
    raise ValueError("no name")
