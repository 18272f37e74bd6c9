"""resolv.conf(5): how names are looked up in a box."""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.network import GATEWAY, sockets

HOST_RESOLV_CONF = Path("/etc/resolv.conf")
UPSTREAM_RESOLV_CONFS = (
    Path("/run/systemd/resolve/resolv.conf"),
    Path("/run/NetworkManager/no-stub-resolv.conf"),
)
"""Where resolvers that listen on a loopback address write the servers that they ask themselves."""


@dataclass(frozen=True)
class Resolver:
    """How names are looked up in a box."""

    text: str
    """The box's /etc/resolv.conf."""
    nameservers: tuple[str, ...]
    """None when the host's cannot be reached from a box over IPv4."""
    forwarded_to: str | None = None
    """The loopback address of the host that port 53 of the gateway leads to."""


def _nameservers(text: str) -> list[sockets.Address]:
    servers = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                servers.append(ipaddress.ip_address(words[1].partition("%")[0]))
    return servers


def _reachable(servers: list[sockets.Address]) -> list[str]:
    return [str(server) for server in servers if server.version == 4 and not server.is_loopback]


def resolver_config(host_resolv_conf: Path = HOST_RESOLV_CONF) -> Resolver:
    """What a box's /etc/resolv.conf has to say so that names resolve behind the masquerade.

    The host's own file is good if its servers can be reached from elsewhere. A server on a loopback address
    cannot: it is replaced by the servers that it asks, if they are known, or else by the gateway, from where
    the firewall leads questions back to it.
    """
    try:
        text = host_resolv_conf.read_text(errors="replace")
    except OSError:
        text = ""
    servers = _nameservers(text)
    options = [
        line for line in text.splitlines() if line.split()[:1] in (["search"], ["domain"], ["options"])
    ]
    usable = _reachable(servers)
    for path in UPSTREAM_RESOLV_CONFS:
        if not usable:
            with contextlib.suppress(OSError):
                usable = _reachable(_nameservers(path.read_text(errors="replace")))
    forwarded_to = None
    if not usable:
        local = [str(a) for a in servers if a.version == 4 and a.is_loopback]
        local = local or ([] if servers else ["127.0.0.1"])
        with contextlib.suppress(OSError):
            forwarded_to = next(filter(sockets.answers_dns_from_boxes, local), None)
        usable = [GATEWAY] if forwarded_to else []
    lines = [*options, *(f"nameserver {address}" for address in usable)]
    return Resolver(
        text="".join(line + "\n" for line in lines),
        nameservers=tuple(usable),
        forwarded_to=forwarded_to,
    )
