"""Requests about what was done outside, about policies and approvals.

The handlers are in daemon/verbs/effects.py.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from waypoint import model
from waypoint.api.difference import Contact
from waypoint.api.request import Request, Result


class EffectsResult(Result, frozen=True):
    """What was done outside, and which places were talked to."""

    session: str | None
    since: model.Checkpoint | None
    effects: tuple[model.Effect, ...]
    contacts: tuple[Contact, ...]
    talked_to: str | UnsetType = UNSET


class OneEffect(Result, frozen=True):
    """An effect."""

    effect: model.Effect


class Classified(Result, frozen=True):
    """What a policy says about a command."""

    session: str
    ruling: model.Decision
    reason: str
    judgement: model.Judgement
    review: tuple[str, ...] = ()
    """Of a command that needs approval: what the person who decides has to read."""


class PolicyFiles(Result, frozen=True):
    """The policy of a session: what its files come to, and the files as they were written."""

    session: str
    decisions: dict[model.EffectClass, model.Decision]
    expires_seconds: float
    own: str | None
    home: str | None
    built_in: str | None


class PolicyChanged(Result, frozen=True):
    """For which session (None: for all) rules are set now, and whether there are any."""

    session: str | None
    set: bool


class ApprovalsResult(Result, frozen=True):
    """Commands that wait, or waited."""

    approvals: tuple[model.Approval, ...]


class OneApproval(Result, frozen=True):
    """A command that waited, and what was decided."""

    approval: model.Approval


class Effects(Request[EffectsResult], frozen=True):
    """What was done outside, since `ref` if given. `all`: by every session that ever was."""

    session: str | None = None
    ref: str | None = None
    all: bool = False


class Effect(Request[OneEffect], frozen=True):
    """Writes down an effect that the caller says it had."""

    what: str
    session: str | None = None
    class_: model.EffectClass = msgspec.field(default="irreversible", name="class")
    target: str = ""
    key: str = ""
    compensate: str = ""
    actor: model.Actor = "person"


class Classify(Request[Classified], frozen=True):
    """What the policy of a session says about a command. Nothing is run or written down."""

    command: str
    session: str | None = None


class Policy(Request[PolicyFiles], frozen=True):
    """The policy files that apply to a session, and what they come to."""

    session: str | None = None
    built_in: bool = False


class PolicySet(Request[PolicyChanged], frozen=True):
    """Sets the rules of a session, or with `everywhere` of this home; without `text`: none."""

    session: str | None = None
    text: str | None = None
    everywhere: bool = False


class Approvals(Request[ApprovalsResult], frozen=True):
    """Commands that wait for approval, of one session or of all. `all`: also those that were decided."""

    session: str | None = None
    all: bool = False


class Approve(Request[OneApproval], frozen=True):
    """Lets the command run that waits as `id`, once."""

    id: str
    note: str = ""


class Deny(Request[OneApproval], frozen=True):
    """The command that waits as `id` does not run; `note`: why."""

    id: str
    note: str = ""
