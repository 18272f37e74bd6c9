"""Effects and contacts in words: for plans, cards, prompts and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from waypoint.api.difference import Contact, Source
from waypoint.history.contacts import merge_contacts
from waypoint.model import Effect
from waypoint.text.units import clock, cut, shown, size, some

_WIDTH = 60
_NAMED = 3


def effect_name(effect: Effect) -> str:
    """What was done, in a few words: `git push origin fix-auth`, `POST https://api.example.com/charges`."""
    is_request = effect.rule == "HTTP write" and effect.target
    return cut(shown(effect.target if is_request else effect.command), _WIDTH)


def effect_source(effect: Effect) -> Source:
    """How an effect is known. That a command ran was seen; that it acted outside is judged by words."""
    match effect.source:
        case "observed" | "claimed":
            return effect.source
    return "judged"


def describe_effect(effect: Effect, now: datetime | None = None) -> str:
    """What was done, when, and how it ended unless that was a success."""
    remarks = [clock(effect.at, now)]
    if effect.source == "claimed":
        remarks.append("claimed")
    if effect.state == "running":
        remarks.append("under way")
    elif effect.state == "interrupted":
        remarks.append("outcome unknown")
    elif effect.exit_code:
        remarks.append(f"exit {effect.exit_code}")
    return f"{effect_name(effect)} ({', '.join(remarks)})"


def known_effects(effects: Sequence[Effect]) -> list[Effect]:
    """Those that are known to act outside. Observed connections are not among them: they are contacts."""
    return [effect for effect in effects if effect.class_ != "unknown" and effect.source != "observed"]


def unknown_effects(effects: Sequence[Effect]) -> list[Effect]:
    """Commands that could not be analyzed: they may have acted outside or not."""
    return [effect for effect in effects if effect.class_ == "unknown" and effect.source != "observed"]


def list_effects(effects: Sequence[Effect], most: int = 6) -> list[str]:
    """One sentence each; only the last of them when there are many."""
    sentences = [describe_effect(effect) for effect in effects]
    if len(sentences) <= most:
        return sentences
    return [f"{len(sentences) - most} more before", *sentences[-most:]]


def repeat_warning(before: Effect, session: str) -> str:
    """For a command that has the same effect as an earlier one."""
    where = "" if before.session == session else f" in {before.session}"
    return (
        f"this has happened before{where}: {describe_effect(before)}, key {before.key};"
        " a restore does not undo it"
    )


def traffic(contact: Contact) -> str:
    """`12 KB out, 3.4 KB in`."""
    answer = f"{size(contact.bytes_in)} in" if contact.bytes_in else "no answer"
    return f"{size(contact.bytes_out)} out, {answer}"


def describe_contacts(contacts: Sequence[Contact], *, amounts: bool = False) -> str:
    """`talked to example.org:443, api.stripe.com:443 and 2 more`; empty when there are none."""
    # The place that most bytes went to comes first: it matters most to a user who fears that data has left.
    places = sorted(merge_contacts(contacts), key=lambda contact: -contact.bytes_out)
    names = [f"{place.where} ({traffic(place)})" if amounts else place.where for place in places]
    return f"talked to {some(names, _NAMED)}" if names else ""
