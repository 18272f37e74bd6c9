"""Effects and contacts in words: for plans, cards, prompts and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from waypoint.api.difference import Contact
from waypoint.history.contacts import join
from waypoint.model import Effect
from waypoint.text.units import clock, shown, size

_MOST = 60
_MOST_NAMES = 3


def what(effect: Effect) -> str:
    """What was done, in a few words: `git push origin fix-auth`, `POST https://api.example.com/charges`."""
    text = shown(effect.target if effect.rule == "HTTP write" and effect.target else effect.command)
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


def words(effect: Effect, now: datetime | None = None) -> str:
    """The same with when, and with what came of it if that was not a success."""
    said = [clock(effect.at, now)]
    if effect.source == "claimed":
        said.append("claimed")
    if effect.state == "running":
        said.append("under way")
    elif effect.state == "interrupted":
        said.append("outcome unknown")
    elif effect.exit_code:
        said.append(f"exit {effect.exit_code}")
    return f"{what(effect)} ({', '.join(said)})"


def known(effects: Sequence[Effect]) -> list[Effect]:
    """Those that are known to act on the outside. Observed connections are told apart."""
    return [one for one in effects if one.class_ != "unknown" and one.source != "observed"]


def unseen(effects: Sequence[Effect]) -> list[Effect]:
    """Commands that could not be looked into: they may have, or not."""
    return [one for one in effects if one.class_ == "unknown" and one.source != "observed"]


def listed(effects: Sequence[Effect], most: int = 6) -> list[str]:
    """In words, the last of them if there are many."""
    told = [words(one) for one in effects]
    if len(told) <= most:
        return told
    return [f"{len(told) - most} more before", *told[-most:]]


def warning(before: Effect, session: str) -> str:
    """For whoever does it again."""
    where = "" if before.session == session else f" in {before.session}"
    return f"this has happened before{where}: {words(before)}, key {before.key}; a restore does not undo it"


def amount(contact: Contact) -> str:
    """`12 KB out, 3.4 KB in`."""
    back = f"{size(contact.bytes_in)} in" if contact.bytes_in else "no answer"
    return f"{size(contact.bytes_out)} out, {back}"


def phrase(contacts: Sequence[Contact], *, amounts: bool = False) -> str:
    """`talked to example.org:443, api.stripe.com:443 and 2 more`; nothing when there are none."""
    places = join(contacts)
    if not places:
        return ""
    # Where most went is said first: that is what somebody looks for who fears that something has left.
    places.sort(key=lambda one: -one.bytes_out)
    said = [f"{one.where} ({amount(one)})" if amounts else one.where for one in places[:_MOST_NAMES]]
    more = f" and {len(places) - _MOST_NAMES} more" if len(places) > _MOST_NAMES else ""
    return f"talked to {', '.join(said)}{more}"
