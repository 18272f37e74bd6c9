"""Answers of name servers, as they come from a network that nobody has to trust."""

from __future__ import annotations

import random
import socket
import struct

import pytest

from waypoint.kernel.network.dns import parse

HEADER = bytes((0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 53, 10, 0, 0, 2)) + bytes(8)


def name(text: str) -> bytes:
    return b"".join(bytes((len(part),)) + part.encode() for part in text.split(".")) + b"\0"


def answer(asked: str, *records: bytes, flags: int = 0x8180, count: int | None = None) -> bytes:
    head = struct.pack("!6H", 1, flags, 1, len(records) if count is None else count, 0, 0)
    return HEADER + head + name(asked) + struct.pack("!HH", 1, 1) + b"".join(records)


def record(data: bytes, kind: int = 1, owner: bytes = b"\xc0\x0c") -> bytes:
    return owner + struct.pack("!HHIH", kind, 1, 60, len(data)) + data


def a(address: str) -> bytes:
    return record(socket.inet_aton(address))


def test_the_name_that_was_asked_for_has_the_addresses() -> None:
    cname = record(name("edge.cdn.example"), kind=5)
    found = parse(answer("API.example.com", cname, a("198.51.100.7"), a("198.51.100.8"), a("198.51.100.7")))
    assert found is not None
    assert (found.server, found.name) == ("192.0.2.53", "api.example.com")
    assert found.addresses == ("198.51.100.7", "198.51.100.8")


@pytest.mark.parametrize(
    "packet",
    [
        answer("a.example", a("192.0.2.1"), flags=0x0100),
        answer("a.example", a("192.0.2.1"), flags=0x8183),
        answer("a.example"),
        answer("a.example", record(bytes(16), kind=28)),
        answer("a\x1b[31m.example", a("192.0.2.1")),
        answer("a b.example", a("192.0.2.1")),
        answer(".".join(["x" * 60] * 5), a("192.0.2.1")),
    ],
    ids=["a question", "no such name", "nothing", "IPv6 only", "escape codes", "a blank", "too long"],
)
def test_what_says_nothing_about_a_name_is_no_answer(packet: bytes) -> None:
    assert parse(packet) is None


def test_garbage_is_refused_in_one_of_three_ways() -> None:
    chance = random.Random(7)
    good = answer("api.example.com", a("198.51.100.7"), a("198.51.100.8"))
    for _ in range(5000):
        packet = bytearray(good[: chance.randrange(28, len(good) + 1)])
        for _ in range(chance.randrange(6)):
            packet[chance.randrange(28, len(packet)) if len(packet) > 28 else 0] = chance.randrange(256)
        try:
            found = parse(bytes(packet))
        except (struct.error, IndexError, ValueError):
            continue
        assert found is None or (found.name.isprintable() and len(found.addresses) <= 64)


def test_names_that_go_round_in_circles_end() -> None:
    loop = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 65535)
    with pytest.raises((struct.error, IndexError, ValueError)):
        parse(answer("a.example", loop, count=9))
