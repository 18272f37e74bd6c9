"""The work of an agent, as the story itself has done it: tasks, and what was done outside."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outside:
    """Something that no restore takes back."""

    words: str
    effect_class: str
    clock: frozenset[str]
    """The times of day at which it may have begun, to the minute."""
    claimed: bool
    number: int
    """Of two with the same words each is one of its own."""


@dataclass(frozen=True)
class Work:
    """What stands written at one moment."""

    tasks: tuple[tuple[str, str], ...] = ()
    """Title and state. The first task has number 1."""
    done: tuple[Outside, ...] = ()
    """Outside, on the way to this moment."""
    ever: tuple[Outside, ...] = ()
    """Outside, also on ways that the session has left."""
