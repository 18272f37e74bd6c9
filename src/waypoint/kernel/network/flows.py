"""What leaves boxes, counted by the kernel for each destination in sets of the firewall.

No process has to watch, an idle box costs nothing, and nothing is lost while no daemon runs. The sets are
part of the table of a home (firewall.py); their rules are written and their elements are read here.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from waypoint.kernel.network.netlink import (
    NETLINK_NETFILTER,
    NFNL_SUBSYS_NFTABLES,
    NLA_F_NESTED,
    Netlink,
    Request,
    attribute,
    attributes,
    entries,
    nested,
    text,
)

# From linux/netfilter/nf_tables.h
NFPROTO_INET = 1
NFT_MSG_GETSETELEM = NFNL_SUBSYS_NFTABLES << 8 | 13
NFT_MSG_DELSETELEM = NFNL_SUBSYS_NFTABLES << 8 | 14
NFTA_SET_ELEM_LIST_TABLE = 1
NFTA_SET_ELEM_LIST_SET = 2
NFTA_SET_ELEM_LIST_ELEMENTS = 3
NFTA_LIST_ELEM = 1
NFTA_SET_ELEM_KEY = 1
NFTA_SET_ELEM_TIMEOUT = 4
NFTA_SET_ELEM_EXPIRATION = 5
NFTA_SET_ELEM_EXPR = 7
NFTA_DATA_VALUE = 1
NFTA_EXPR_DATA = 2
NFTA_COUNTER_BYTES = 1

OTHER_DESTINATIONS = "other destinations"
"""In the place of an address: what is in `Flows.missed`."""
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 33: "dccp", 47: "gre", 50: "esp", 132: "sctp", 136: "udplite"}
_MAX_FLOWS = 65536
_KEPT_MS = 30 * 86400 * 1000
_NEW_FLOWS_PER_SECOND, _NEW_FLOWS_AT_ONCE = 100, 2000
_FLOWS_OF_A_BOX, _FLOWS_PER_DAY = 4096, 100
"""How many destinations of one box have room at once, and how many more for each day after that."""
_SETS = ("said", "heard", "said-other", "heard-other", "missed", "pace", "share")


@dataclass(frozen=True)
class Flow:
    """What went from a box to one destination and came back: whole packets, with their headers."""

    interface: str
    address: str
    protocol: str
    port: int
    """0 for protocols that have none."""
    bytes_out: int
    bytes_in: int
    first_seconds_ago: float
    last_seconds_ago: float


@dataclass(frozen=True)
class Flows:
    """Everything that was counted, of all boxes."""

    flows: tuple[Flow, ...] = ()
    missed: dict[str, int] = field(default_factory=dict)
    """How many bytes went to more destinations than are counted one by one, by interface."""


def rules(pattern: str) -> str:
    """The sets that the kernel fills with what leaves boxes, and the chain that makes it do so.

    `add` leaves the age of an element alone and `update` renews it: one set knows when something was first
    sent, the other when something was last received. The rate at which a box adds destinations is limited,
    and their number (the counting, not the sending), so that there is room for the other boxes. What is not
    counted by destination is counted in `missed`. All protocols have the same limits. A look-up of an
    existing element would count it once more: hence every test is whether it is *not* there.
    """
    where = "type ifname . ipv4_addr . inet_proto . inet_service"
    kept = "flags dynamic,timeout; timeout 30d; gc-interval 1h; counter;"
    leaves, comes = f'iifname "{pattern}"', f'oifname "{pattern}"'
    ports, others = "meta l4proto { tcp, udp }", "meta l4proto != { tcp, udp }"
    out, back = "iifname . ip daddr . meta l4proto . th dport", "oifname . ip saddr . meta l4proto . th sport"
    other_out, other_back = "iifname . ip daddr . meta l4proto", "oifname . ip saddr . meta l4proto"
    pace = f"limit rate over {_NEW_FLOWS_PER_SECOND}/second burst {_NEW_FLOWS_AT_ONCE} packets"
    too_fast = f"update @pace {{ iifname {pace} }} add @missed {{ iifname }} accept"
    all_of_it = f"limit rate over {_FLOWS_PER_DAY}/day burst {_FLOWS_OF_A_BOX} packets"
    too_many = f"update @share {{ iifname {all_of_it} }} add @missed {{ iifname }} accept"
    return f"""
    set said {{ {where}; size {_MAX_FLOWS}; {kept} }}
    set heard {{ {where}; size {_MAX_FLOWS}; {kept} }}
    set said-other {{ type ifname . ipv4_addr . inet_proto; size {_MAX_FLOWS}; {kept} }}
    set heard-other {{ type ifname . ipv4_addr . inet_proto; size {_MAX_FLOWS}; {kept} }}
    set missed {{ type ifname; size {_MAX_FLOWS}; {kept} }}
    set pace {{ type ifname; size {_MAX_FLOWS}; flags dynamic,timeout; timeout 1h; }}
    set share {{ type ifname; size {_MAX_FLOWS}; flags dynamic,timeout; timeout 30d; }}
    chain count {{
        type filter hook forward priority filter + 100;
        {leaves} {ports} {out} != @said {too_fast}
        {leaves} {ports} {out} != @said {too_many}
        {leaves} {ports} add @said {{ {out} }}
        {leaves} {ports} {out} != @said add @missed {{ iifname }}
        {leaves} {others} {other_out} != @said-other {too_fast}
        {leaves} {others} {other_out} != @said-other {too_many}
        {leaves} {others} add @said-other {{ {other_out} }}
        {leaves} {others} {other_out} != @said-other add @missed {{ iifname }}
        {comes} {others} {other_back} != @said-other accept
        {comes} {others} update @heard-other {{ {other_back} }}
        {comes} {ports} {back} != @said accept
        {comes} {ports} update @heard {{ {back} }}
    }}"""


def read(table: str) -> Flows:
    """What was counted so far. It only grows, until the table is loaded again or `reset_counters`."""
    flows = []
    with Netlink(NETLINK_NETFILTER) as netfilter:
        for said, heard in (("said", "heard"), ("said-other", "heard-other")):
            answers = {element.key: element for element in _elements(netfilter, table, heard)}
            for out in _elements(netfilter, table, said):
                answer = answers.get(out.key)
                interface, address, protocol, port = _flow_key(out.key)
                last = min(answer.age_seconds, out.age_seconds) if answer else out.age_seconds
                flows.append(
                    Flow(
                        interface=interface,
                        address=address,
                        protocol=_PROTOCOLS.get(protocol, str(protocol)),
                        port=port,
                        bytes_out=out.bytes,
                        bytes_in=answer.bytes if answer else 0,
                        first_seconds_ago=out.age_seconds,
                        last_seconds_ago=last,
                    )
                )
        missed = {_interface(e.key): e.bytes for e in _elements(netfilter, table, "missed")}
    return Flows(tuple(flows), missed)


def reset_counters(table: str, interface: str) -> None:
    """Deletes what was counted of a box that has ended."""
    name = interface.encode().ljust(16, b"\0")
    with Netlink(NETLINK_NETFILTER) as netfilter:
        for which in _SETS:
            keys = [e.key for e in _elements(netfilter, table, which) if e.key.startswith(name)]
            for at in range(0, len(keys), 256):
                _delete(netfilter, table, which, keys[at : at + 256])


@dataclass(frozen=True)
class _Element:
    """An element of a set, with its counter."""

    key: bytes
    bytes: int
    age_seconds: float


def _set(table: str, name: str, *attributes: bytes) -> bytes:
    head = struct.pack("=BBH", NFPROTO_INET, 0, 0)
    return (
        head
        + text(NFTA_SET_ELEM_LIST_TABLE, table)
        + text(NFTA_SET_ELEM_LIST_SET, name)
        + b"".join(attributes)
    )


def _elements(netfilter: Netlink, table: str, name: str) -> Iterator[_Element]:
    try:
        for body in netfilter.dump(f"list {name}", NFT_MSG_GETSETELEM, _set(table, name)):
            for entry in entries(attributes(body[4:]).get(NFTA_SET_ELEM_LIST_ELEMENTS, b""), NFTA_LIST_ELEM):
                element = attributes(entry)
                expression = attributes(element.get(NFTA_SET_ELEM_EXPR, b""))
                counter = attributes(expression.get(NFTA_EXPR_DATA, b""))
                timeout_ms = int.from_bytes(element.get(NFTA_SET_ELEM_TIMEOUT, b""), "big")
                left_ms = int.from_bytes(element.get(NFTA_SET_ELEM_EXPIRATION, b""), "big")
                yield _Element(
                    key=attributes(element.get(NFTA_SET_ELEM_KEY, b"")).get(NFTA_DATA_VALUE, b""),
                    bytes=int.from_bytes(counter.get(NFTA_COUNTER_BYTES, b""), "big"),
                    age_seconds=max(0, (timeout_ms or _KEPT_MS) - left_ms) / 1000,
                )
    except OSError as error:
        if error.errno != errno.ENOENT:  # no table, or one without sets
            raise


def _delete(netfilter: Netlink, table: str, name: str, keys: Sequence[bytes]) -> None:
    """In one transaction, as the kernel demands of every change of a table."""
    elements = (
        nested(
            NFTA_LIST_ELEM | NLA_F_NESTED,
            nested(NFTA_SET_ELEM_KEY | NLA_F_NESTED, attribute(NFTA_DATA_VALUE, key)),
        )
        for key in keys
    )
    delete = _set(table, name, nested(NFTA_SET_ELEM_LIST_ELEMENTS | NLA_F_NESTED, *elements))
    netfilter.transact(Request(f"delete from {name}", NFT_MSG_DELSETELEM, delete))


def _interface(key: bytes) -> str:
    return key[:16].rstrip(b"\0").decode(errors="replace")


def _flow_key(key: bytes) -> tuple[str, str, int, int]:
    """Interface, address, protocol and port: each part of a key is filled up to four bytes."""
    port = struct.unpack_from("!H", key, 24)[0] if len(key) >= 26 else 0
    return _interface(key), socket.inet_ntoa(key[16:20]), key[20], port
