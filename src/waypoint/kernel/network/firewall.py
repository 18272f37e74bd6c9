"""nftables: the one table of a home that all its boxes share, and the lock of a box that is being restored.

The rules know boxes by the beginning of their interfaces' names, so the table is loaded once with `nft` and
nothing is executed for each box. What the table says:

- a box reaches the world behind the host's address (masquerade), and answers come back;
- a box reaches no other box, no other home's box, no bridge of the host and no service of the host, except
  name servers;
- a box sends from its own address only. Sockets are restored with the addresses they had, so an earlier
  address can be on `eth0` beside the new one: what a fork sends on a connection that it inherited would
  otherwise reach the other end as if its origin had sent it.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waypoint.api.hints import Arg, Hint
from waypoint.errors import MachineError, MissingFeature, translated
from waypoint.kernel.network import GATEWAY, INTERFACE_PREFIX, flows
from waypoint.kernel.network.netlink import in_netns

_IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_FORWARDING_MARK = "turned-on-ip-forward"
_TABLES = "waypoint-"
_LOCK_TABLE = "waypoint-lock"
_CRIU_MARK = 0xC114

WITHOUT_NAT = Hint(
    "sessions with ", Arg("new", net="none"), " or ", Arg("new", net="host"), " work without it"
)

_NFT_SECONDS = 30.0

_MOST_BOXES = 65536
_MOST_CONNECTIONS = 16384
_CONNECTIONS_SHARE = 8
"""One box has at most so many connections at once, and at most this part of all that the machine tracks."""

_Chain = dict[str, Any]
"""A chain of nftables, as `nft -j` lists it."""


def _nft(*arguments: str, script: str | None = None) -> str:
    program = shutil.which("nft", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not program:
        raise MissingFeature(
            "the program `nft` is not installed: boxes cannot reach the network without it",
            hint=Hint("apt-get install nftables; ", WITHOUT_NAT),
        )
    try:
        done = subprocess.run(
            [program, *arguments],
            input=script,
            capture_output=True,
            text=True,
            check=False,
            timeout=_NFT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            f"`nft` did not answer within {_NFT_SECONDS:g} s",
            hint=Hint("another program may hold the firewall of this machine; ", WITHOUT_NAT),
        ) from error
    if done.returncode:
        raise MissingFeature(
            f"the kernel refused the firewall rules of the boxes: {done.stderr.strip()}",
            hint=Hint(
                "a kernel with nf_tables, nft_nat, nft_masq, nft_fib and nft_reject is needed; ", WITHOUT_NAT
            ),
        )
    return done.stdout


def _run_script(lines: Sequence[str]) -> None:
    if lines:
        _nft("-f", "-", script="\n".join(lines) + "\n")


def _list(kind: str, *arguments: str) -> list[dict[str, Any]]:
    entries = json.loads(_nft("-j", "-a", "list", *arguments))["nftables"]
    return [entry[kind] for entry in entries if kind in entry]


def _ruleset(
    table: str,
    pattern: str,
    *,
    forwarding_mark: bool,
    bridges: Sequence[str],
    dns_server: str | None,
    counting: bool = True,
    most_connections: int = 0,
) -> str:
    """The table of a home, as a script that replaces it in one step.

    Other firewalls on the machine still decide too: a packet has to pass all of them.
    """
    refuse = "reject with icmpx admin-prohibited"
    others = f"oifname != {{ {', '.join(json.dumps(name) for name in bridges)} }} " if bridges else ""
    dns = "meta l4proto { tcp, udp } th dport 53"
    per_box = (
        f"add @connections {{ iifname ct count over {most_connections} }} {refuse}"
        if most_connections
        else ""
    )
    connections = f"set connections {{ type ifname; size {_MOST_BOXES}; flags dynamic; }}" if per_box else ""
    dns_chains = f"""
    chain dns-to-host {{
        type nat hook prerouting priority dstnat - 10;
        iifname "{pattern}" ip daddr {GATEWAY} {dns} dnat ip to {dns_server}
    }}
    # For the resolver the question comes from this machine: many answer no other.
    chain dns-from-host {{
        type nat hook input priority 90;
        iifname "{pattern}" ip daddr 127.0.0.0/8 {dns} snat ip to 127.0.0.1
    }}"""
    return f"""
add table inet {table}
delete table inet {table}
table inet {table} {{
    {f"chain {_FORWARDING_MARK} {{ }}" if forwarding_mark else ""}
    {connections}
    # Before connection tracking: a packet of a fork on its origin's connection must not touch its record.
    chain own-address {{
        type filter hook prerouting priority raw - 10;
        iifname != "{pattern}" accept
        meta nfproto ipv6 drop
        fib saddr . iif oif missing drop
    }}
    chain forward {{
        type filter hook forward priority filter - 10;
        iifname "{pattern}" oifname "{INTERFACE_PREFIX}*" {refuse}
        iifname "{INTERFACE_PREFIX}*" oifname "{pattern}" {refuse}
        oifname "{pattern}" ct state established,related accept
        oifname "{pattern}" drop
        iifname != "{pattern}" accept
        ct state established,related accept
        {per_box}
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
        {per_box}
        {dns} accept
        {refuse}
    }}
    chain way-out {{
        type nat hook postrouting priority srcnat - 10;
        iifname "{pattern}" oifname != "{INTERFACE_PREFIX}*" masquerade
    }}{dns_chains if dns_server else ""}{flows.rules(pattern) if counting else ""}
}}
"""


def _connections_of_a_box() -> int:
    """The machine tracks the connections of all boxes, and its own, in one table: a box that fills it would
    cut off the others."""
    try:
        tracked = int(Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text())
    except (OSError, ValueError):  # not loaded yet
        return _MOST_CONNECTIONS
    return min(_MOST_CONNECTIONS, max(1, tracked // _CONNECTIONS_SHARE))


@dataclass(frozen=True)
class Firewall:
    """The table of a home, its exceptions in the tables of other programs, and IPv4 forwarding.

    Nothing of it is kept in memory: an empty chain in the table says that forwarding was off before.
    """

    table: str
    interfaces: str
    """The pattern of the names of this home's interfaces on the host."""

    def load(self, *, bridges: Sequence[str], dns_server: str | None) -> str:
        """Puts everything in force, in place of what an earlier call did. Returns why the kernel does not
        count what leaves boxes; empty when it does.

        `bridges`: those of the host that lead to the world. `dns_server`: a loopback address of the host that
        questions to the gateway's port 53 are led to.
        """
        chains = _list("chain", "chains")
        was_forwarding = _IP_FORWARD.read_text().strip() != "0"
        ruleset = functools.partial(
            _ruleset,
            self.table,
            self.interfaces,
            forwarding_mark=not was_forwarding or self._has_mark(chains),
            bridges=bridges,
            dns_server=dns_server,
        )
        not_counting = ""
        try:
            _nft("-f", "-", script=ruleset(most_connections=_connections_of_a_box()))
        except MissingFeature:  # the kernel may lack nft_connlimit alone
            try:
                _nft("-f", "-", script=ruleset())
            except MissingFeature as error:
                _nft("-f", "-", script=ruleset(counting=False))
                not_counting = error.message
        self._pass_other_firewalls(chains)
        if not was_forwarding:
            with translated("turn on IPv4 forwarding", hint=WITHOUT_NAT):
                _IP_FORWARD.write_text("1")
        return not_counting

    def remove(self) -> None:
        """Undoes `load`. Forwarding is turned off again when no other program needs it."""
        chains = _list("chain", "chains")
        script = [
            f"delete rule {chain['family']} {chain['table']} {chain['name']} handle {rule['handle']}"
            for chain in _base_chains(chains)
            for rule in self._rules_in(chain)
        ]
        if any(chain["table"] == self.table for chain in chains):
            script.append(f"delete table inet {self.table}")
        other_homes = sorted({c["table"] for c in chains if c["table"].startswith(_TABLES)} - {self.table})
        turned_on = self._has_mark(chains)
        if turned_on and other_homes:
            script.append(f"add chain inet {other_homes[0]} {_FORWARDING_MARK}")
        _run_script(script)
        is_needed = any(
            chain.get("type") == "nat" and chain.get("hook") == "postrouting"
            for chain in _base_chains(chains)
        )
        if turned_on and not other_homes and not is_needed:
            with translated("turn off IPv4 forwarding"):
                _IP_FORWARD.write_text("0")

    def _has_mark(self, chains: list[_Chain]) -> bool:
        return any(c["table"] == self.table and c["name"] == _FORWARDING_MARK for c in chains)

    def _pass_other_firewalls(self, chains: list[_Chain]) -> None:
        """Adds exceptions to chains that drop what they do not know, as Docker's and ufw's do.

        They are of the form that iptables can read back. What a box may do is decided by our own table alone.
        """
        directions = {"forward": ("iifname", "oifname"), "input": ("iifname",)}
        _run_script(
            [
                f"insert rule {chain['family']} {chain['table']} {chain['name']} "
                f'{direction} "{self.interfaces}" counter accept comment "{self.table}"'
                for chain in _base_chains(chains)
                if chain.get("policy") == "drop" and chain["hook"] in directions
                if not self._rules_in(chain)
                for direction in directions[chain["hook"]]
            ]
        )

    def _rules_in(self, chain: _Chain) -> list[dict[str, Any]]:
        rules = _list("rule", "chain", chain["family"], chain["table"], chain["name"])
        return [rule for rule in rules if rule.get("comment") == self.table]


def _base_chains(chains: list[_Chain]) -> list[_Chain]:
    """The chains where packets enter the IPv4 firewalls of other programs."""
    return [
        chain
        for chain in chains
        if chain["family"] in ("ip", "inet") and "hook" in chain and not chain["table"].startswith(_TABLES)
    ]


def lock(netns_fd: int) -> None:
    """Lets no packet through in a box, loopback included, until `unlock`.

    While connections are restored, one end exists before the other: what it sends would be answered with a
    reset. CRIU's own packets carry a mark.
    """
    chains = "".join(
        f"chain {hook} {{ type filter hook {hook} priority 0; policy drop; mark {_CRIU_MARK} accept; }}\n"
        for hook in ("input", "output")
    )
    in_netns(netns_fd, lambda: _nft("-f", "-", script=f"table inet {_LOCK_TABLE} {{\n{chains}}}\n"))


def unlock(netns_fd: int) -> None:
    """Ends what `lock` began."""
    in_netns(netns_fd, lambda: _nft("delete", "table", "inet", _LOCK_TABLE))
