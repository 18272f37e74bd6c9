"""Contacts: the places outside that a session has talked to, as the host's firewall counted it.

Observed, not claimed: whatever a command was called and whoever ran it, this left the session. No restore
takes it back. Names are what the session's name servers said when it asked; the address is what counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from waypoint.model import Record


class Contact(Record, frozen=True):
    """One place, and how much went there and came back: whole packets, with their headers."""

    address: str
    protocol: str
    port: int
    """0 for a protocol that has none."""
    first_at: str
    last_at: str
    bytes_out: int = 0
    bytes_in: int = 0
    names: tuple[str, ...] = ()
    """What the address was called, the last name first."""

    @property
    def where(self) -> str:
        """`api.stripe.com:443`."""
        host = self.names[0] if self.names else self.address
        place = f"{host}:{self.port}" if self.port else host
        return place if self.protocol == "tcp" else f"{place}/{self.protocol}"


def join(contacts: Iterable[Contact]) -> list[Contact]:
    """Each place once, in the order of their beginnings: a name may have many addresses."""
    found: dict[str, Contact] = {}
    for one in sorted(contacts, key=lambda contact: contact.first_at):
        before = found.get(one.where)
        if before is None:
            found[one.where] = one
            continue
        found[one.where] = msgspec.structs.replace(
            before,
            last_at=max(before.last_at, one.last_at),
            bytes_out=before.bytes_out + one.bytes_out,
            bytes_in=before.bytes_in + one.bytes_in,
            names=tuple(dict.fromkeys((*before.names, *one.names))),
        )
    return list(found.values())
