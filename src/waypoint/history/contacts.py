"""Contacts: the places outside that a session has talked to, as the host's firewall counted them.

They are observed, not claimed: these bytes left the session, whatever the command was, and no restore takes
them back. Names come from the answers of the session's name servers; the address is what was counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from waypoint.api.difference import Contact


def merge_contacts(contacts: Iterable[Contact]) -> list[Contact]:
    """Each place once, ordered by the first contact: a name may have many addresses."""
    places: dict[str, Contact] = {}
    for contact in sorted(contacts, key=lambda contact: contact.first_at):
        before = places.get(contact.where)
        places[contact.where] = contact if before is None else _merge(before, contact)
    return list(places.values())


def _merge(first: Contact, second: Contact) -> Contact:
    return msgspec.structs.replace(
        first,
        last_at=max(first.last_at, second.last_at),
        bytes_out=first.bytes_out + second.bytes_out,
        bytes_in=first.bytes_in + second.bytes_in,
        names=tuple(dict.fromkeys((*first.names, *second.names))),
    )
