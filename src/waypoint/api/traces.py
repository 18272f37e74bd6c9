"""Requests about traces: what was done is run again and compared, and handed to others.

The handlers are in daemon/verbs/traces.py.
"""

from __future__ import annotations

from typing import Literal

from waypoint.api.request import Path, Request, Result, Seconds

What = Literal["exit status", "time limit", "output", "files", "packages", "verdict"]


class ReplayDifference(Result, frozen=True):
    """One thing that is not as it was recorded. `where`: the path, package or command."""

    what: What
    expected: str
    actual: str
    where: str = ""


class ReplayStep(Result, frozen=True):
    """What came of one step of a trace."""

    number: int
    kind: Literal["command", "point"]
    text: str
    """The command, or the name or label of the point."""
    state: Literal["same", "different", "not run"]
    differences: tuple[ReplayDifference, ...] = ()
    remark: str = ""
    """Why it was not run, or what of it was not compared."""
    was_ms: float | None = None
    duration_ms: float | None = None


class ReplayResult(Result, frozen=True):
    """Whether a trace holds. It was run again up to the first difference, unless more was asked for."""

    same: bool
    start: str
    """Where it began, in words."""
    steps: tuple[ReplayStep, ...]
    left: int
    """How many steps were not reached."""
    not_run: int
    trace: str | None = None
    """The id of the trace, if it came from a file."""
    kept: str | None = None
    """The session in which it ran, if that was kept."""
    remarks: tuple[str, ...] = ()


class TraceExported(Result, frozen=True):
    """What the trace holds."""

    trace: str
    """Its id."""
    steps: int
    bytes: int


class Replay(Request[ReplayResult], frozen=True):
    """Runs again what was recorded, in a session of its own, and compares. `trace`: a file that `ExportTrace`
    has written; without one what `session` has done. `start`, `ref`: from one point of it up to another.
    `outside`: also commands that act outside. `timeout`: of one command, if not ten times as long as it took.
    `all`: go on after a difference. `keep`: the session stays. `base`: over this one, whatever the trace
    says. Each step is an event."""

    session: str | None = None
    trace: Path | None = None
    start: str | None = None
    ref: str | None = None
    outside: bool = False
    timeout: Seconds | None = None
    all: bool = False
    keep: bool = False
    base: str | None = None


class ExportTrace(Request[TraceExported], frozen=True):
    """What a session has done from `start` to `ref`, as a file that others can check, in data frames."""

    session: str | None = None
    start: str | None = None
    ref: str | None = None
