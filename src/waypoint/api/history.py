"""Requests that tell what points are and what changed between them.

The handlers are in daemon/verbs/history.py.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from waypoint import model
from waypoint.api.difference import (
    Card,
    CommandOutcome,
    Difference,
    PlanWords,
    RestorePlan,
    Section,
    SectionLine,
)
from waypoint.api.request import Request, Result, Seconds, Several


class SessionHead(Result, frozen=True):
    """Where a session stands."""

    name: str
    state: model.State
    head: str | None


class LogResult(Result, frozen=True):
    """Points, the sessions they are of, and the last good point of each."""

    checkpoints: tuple[model.Checkpoint, ...]
    sessions: tuple[SessionHead, ...]
    good: dict[str, str]


class Shown(Result, frozen=True):
    """One point in full. `card` is None until it is computed."""

    checkpoint: model.Checkpoint
    parent: str | None
    card: Card | None
    sections: tuple[Section, ...]
    verdicts: tuple[model.Verdict, ...]
    notes: tuple[model.Note, ...]


class StatusResult(Result, frozen=True):
    """Where a session stands. `missing`: why the difference could not be computed."""

    session: model.Session
    head: model.Checkpoint | None
    head_called: str | None
    missing: str | None
    summary: str | None
    sections: tuple[Section, ...]
    difference: Difference | None


class ChangedResult(Result, frozen=True):
    """Whether anything differs."""

    changed: bool


class DiffResult(Result, frozen=True):
    """What changed from one point to another. `from`, `to`: a point, or `now` or `base`."""

    from_: model.Checkpoint | str = msgspec.field(name="from")
    to: model.Checkpoint | str
    different: bool
    summary: str
    sections: tuple[Section, ...]
    difference: Difference
    patch: str | UnsetType = UNSET
    patch_redacted: int | UnsetType = UNSET


class PreviewResult(Result, frozen=True):
    """A plan, as data and in words."""

    plan: RestorePlan
    words: PlanWords


class Operation(Result, frozen=True):
    """Something that moved a session. `to`, `back_to`: what the points are called."""

    id: int
    at: str
    verb: str
    target: str | None
    to: str | None
    before: str | None
    back_to: str | None
    undone: bool


class Operations(Result, frozen=True):
    """What moved a session."""

    operations: tuple[Operation, ...]


class Trial(Result, frozen=True):
    """A point that was tried."""

    checkpoint: str
    label: str
    passed: bool
    state: model.VerdictState
    """`timeout` and `unclear`: the point is neither good nor bad."""


class Bisection(Result, frozen=True):
    """The first bad point, the last good one, and what changed between them. `unclear`: the points between
    the two at which the command could not tell; it may have broken at one of these."""

    culprit: model.Checkpoint
    unclear: tuple[model.Checkpoint, ...]
    parent: str | None
    last_good: model.Checkpoint
    card: Card | None
    summary: str
    sections: tuple[Section, ...]
    difference: Difference
    steps: tuple[Trial, ...]


class Compared(Result, frozen=True):
    """One candidate, and what it did since the base of the comparison. `live`: the session as it is now."""

    name: str
    session: str
    point: model.Checkpoint | None
    live: bool
    summary: str
    files: dict[str, int]
    """How many files were created, modified, deleted, renamed."""
    sections: tuple[Section, ...]
    unique_bytes: int | None
    commands: int
    commands_ms: float
    """How long these commands took together."""
    effects: int
    outcomes: tuple[CommandOutcome, ...]
    """How each command line that was run ended; what ended last is the last."""


class ComparedRow(Result, frozen=True):
    """One thing that at least one candidate changed. `cells`: what each candidate did to it, in their order;
    None: nothing. `same`: whether all candidates have it alike; None: that is not known."""

    section: str
    text: str
    cells: tuple[SectionLine | None, ...]
    same: bool | None


class CompareResult(Result, frozen=True):
    """Candidates side by side. `base`: the point they are compared with; None: the base of the session.
    `rows`: everything that they changed, one row for each thing."""

    base: model.Checkpoint | None
    candidates: tuple[Compared, ...]
    rows: tuple[ComparedRow, ...]


class Compare(Request[CompareResult], frozen=True):
    """Several sessions or points side by side: what each changed since they parted, its verdict, its cost.
    `candidates`: names of sessions, as they are now, or points: `SESSION:REF`, or refs of `session`; `now` is
    `session` as it is now. `base`: compared with that point. `verify`: a command that is run in a throwaway
    fork of each."""

    candidates: Several
    session: str | None = None
    base: str | None = None
    verify: str | None = None
    timeout: Seconds | None = None
    actor: model.Actor = "person"


class Log(Request[LogResult], frozen=True):
    """The points of a session, oldest first, or with `all` of every session. `family`: with the line they
    grew from and the last point of each fork ("tips"), or all points of those ("whole"). `since`: no older
    ones."""

    session: str | None = None
    all: bool = False
    family: Literal["tips", "whole"] | None = None
    since: str | None = None


class Show(Request[Shown], frozen=True):
    """One point: its card, verdicts and notes. `again`: the card is computed again."""

    ref: str
    session: str | None = None
    again: bool = False


class Status(Request[StatusResult], frozen=True):
    """Where a session stands and what has changed since its last point."""

    session: str | None = None


class Changed(Request[ChangedResult], frozen=True):
    """Whether anything differs from the last point. `besides`: files at or below these paths do not count."""

    session: str | None = None
    besides: tuple[str, ...] = ()


class Diff(Request[DiffResult], frozen=True):
    """What changed from point `a` (the last one) to point `b` (now). `paths`: only there. `only`: these
    sections. `patch`: with the changed text."""

    session: str | None = None
    a: str | None = None
    b: str | None = None
    paths: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    patch: bool = False


class Preview(Request[PreviewResult], frozen=True):
    """What a restore would do. The id of the plan can be given to `restore`."""

    ref: str
    session: str | None = None
    files_only: bool = False


class Ops(Request[Operations], frozen=True):
    """What moved a session, oldest first."""

    session: str | None = None


class Bisect(Request[Bisection], frozen=True):
    """The first point at which a command fails, between a good and a bad one. Each trial is an event."""

    good: str
    bad: str
    command: str
    session: str | None = None
    timeout: Seconds | None = None
