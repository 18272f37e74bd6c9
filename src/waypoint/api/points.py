"""Requests that take, name, verify and go to points.

The handlers are in daemon/verbs/points.py.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from waypoint import model
from waypoint.api.request import Count, Request, Result, Seconds, StatePayload


class OnePoint(Result, frozen=True):
    """A point."""

    checkpoint: model.Checkpoint


class CheckpointTaken(Result, frozen=True):
    """A point that was taken. `verdict`: when it was waited for."""

    checkpoint: model.Checkpoint
    verdict: model.Verdict | None = None
    warnings: tuple[str, ...] = ()


class Forks(Result, frozen=True):
    """The sessions that were grown from a point."""

    sessions: tuple[model.Forked, ...]


class Verified(Result, frozen=True):
    """A point and, when it was waited for, the verdict."""

    checkpoint: model.Checkpoint
    verdict: model.Verdict | None = None


class Tagged(Result, frozen=True):
    """A tag, and the point that has it now."""

    tag: str
    checkpoint: model.Checkpoint | UnsetType = UNSET


class TagsResult(Result, frozen=True):
    """The tags of a session."""

    tags: tuple[Tagged, ...]


class Noted(Result, frozen=True):
    """A point and all notes about it."""

    checkpoint: model.Checkpoint
    notes: tuple[model.Note, ...]


class Checkpoint(Request[CheckpointTaken], frozen=True):
    """Captures a session. `verify`: a command to run in a throwaway fork of it; `wait`: for its verdict.
    `durable`: answered when a power cut would not take the point any more."""

    session: str | None = None
    intent: str = ""
    name: str | None = None
    files_only: bool = False
    verify: str | None = None
    wait: bool = False
    actor: model.Actor = "person"
    agent_state: StatePayload | None = None
    agent_version: str | None = None
    durable: bool = False


class Restore(Request[model.Restored], frozen=True):
    """Takes a session back to a point, or carries out a plan from `preview`."""

    session: str | None = None
    ref: str | None = None
    plan: str | None = None
    safety: bool = True
    files_only: bool = False
    actor: model.Actor = "person"


class Undo(Request[model.Restored], frozen=True):
    """Takes the last restore back."""

    session: str | None = None
    actor: model.Actor = "person"


class Redo(Request[model.Restored], frozen=True):
    """Takes the last undo back."""

    session: str | None = None
    actor: model.Actor = "person"


class Fork(Request[Forks], frozen=True):
    """Grows `n` new sessions from a point; without `ref` from the session as it is now, of which a point is
    taken. `names`: one name for each, instead of `n` and `name`. `hook_timeout`: how long the hooks of each
    may take together (10 s)."""

    ref: str | None = None
    session: str | None = None
    n: Count = 1
    name: str | None = None
    names: tuple[str, ...] = ()
    hook_timeout: Seconds | None = None
    actor: model.Actor = "person"


class Verify(Request[Verified], frozen=True):
    """Runs a command in a throwaway fork of a point and keeps the verdict with it."""

    ref: str
    command: str
    session: str | None = None
    timeout: Seconds | None = None
    wait: bool = True


class Tag(Request[Tagged], frozen=True):
    """Gives a point another name (the last point without `ref`), or takes that name away."""

    name: str
    session: str | None = None
    ref: str | None = None
    delete: bool = False


class Tags(Request[TagsResult], frozen=True):
    """The tags of a session."""

    session: str | None = None


class Note(Request[Noted], frozen=True):
    """Adds words to a point, marked as added later."""

    ref: str
    text: str
    session: str | None = None


class Pin(Request[OnePoint], frozen=True):
    """Keeps a point whatever a retention policy says; `off`: no longer."""

    ref: str
    session: str | None = None
    off: bool = False
