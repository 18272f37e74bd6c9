"""Contacts: the places outside that a session has talked to, as the host's firewall counted it.

Observed, not claimed: whatever a command was called and whoever ran it, this left the session. No restore
takes it back. Names are what the session's name servers said when it asked; the address is what counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from waypoint.api.difference import Contact


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
