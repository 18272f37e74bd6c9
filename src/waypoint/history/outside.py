"""Effects in words: for plans, cards, prompts and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from waypoint.model import Effect
from waypoint.words import clock, shown

_MOST = 60


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
