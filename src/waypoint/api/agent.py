"""Requests about what an agent did, knows and has still to do.

The handlers are in daemon/verbs/agent.py.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from waypoint import model
from waypoint.api.request import Count, EventNumber, Request, Result, Some


class Recorded(Result, frozen=True):
    """The number of the event."""

    event: int
    session: str


class TraceResult(Result, frozen=True):
    """Events, and each in a few words (empty for what only the terminal showed)."""

    session: str
    events: tuple[model.Event, ...]
    lines: tuple[str, ...]


class Events(Result, frozen=True):
    """Events."""

    events: tuple[model.Event, ...]


class OneEvent(Result, frozen=True):
    """An event."""

    event: model.Event


class CastWritten(Result, frozen=True):
    """How large the asciicast is."""

    session: str
    bytes: int


class AgentStateResult(Result, frozen=True):
    """What an agent left with a point: `text` (JSON) or `base64`, neither when there is nothing."""

    checkpoint: model.Checkpoint | None
    agent_version: str | None
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET


class TasksResult(Result, frozen=True):
    """The tasks of a session."""

    session: str
    tasks: tuple[model.Task, ...]


class TasksAdded(Result, frozen=True):
    """The tasks that were added, and all there are."""

    session: str
    added: tuple[model.Task, ...]
    tasks: tuple[model.Task, ...]


class TaskChanged(Result, frozen=True):
    """A task, the point that was taken for it, and all tasks."""

    session: str
    task: model.Task
    checkpoint: model.Checkpoint | None
    tasks: tuple[model.Task, ...]


class Record(Request[Recorded], frozen=True):
    """Adds to the trajectory: `what` is a role, `tool_call`, `tool_result` or `note`. `name`, `call`,
    `error`: of tools."""

    what: str
    session: str | None = None
    content: Any = None
    name: str | None = None
    call: str | None = None
    error: bool = False
    actor: model.Actor = "person"


class Trace(Request[TraceResult], frozen=True):
    """What led to `ref`, or to the present. `all`: everything that ever happened in the session. `limit`: the
    last so many; `after`: later than that event; `full`: with the contents that are stored apart."""

    session: str | None = None
    ref: str | None = None
    all: bool = False
    kinds: tuple[model.EventKind, ...] = ()
    limit: Count | None = None
    after: EventNumber | None = None
    full: bool = False


class Event(Request[OneEvent], frozen=True):
    """One event with all that belongs to it."""

    event: EventNumber


class Cast(Request[CastWritten], frozen=True):
    """What the terminal showed up to `ref` or now, as an asciicast in data frames."""

    session: str | None = None
    ref: str | None = None


class Messages(Request[Events], frozen=True):
    """Messages, tool calls and tool results up to `ref` or now."""

    session: str | None = None
    ref: str | None = None


class AgentState(Request[AgentStateResult], frozen=True):
    """What an agent left with `ref`; without one, with the last point on the way here that has any."""

    session: str | None = None
    ref: str | None = None


class Tasks(Request[TasksResult], frozen=True):
    """The tasks of a session now, or as they were at `ref`."""

    session: str | None = None
    ref: str | None = None


class TaskAdd(Request[TasksAdded], frozen=True):
    """Adds tasks, all or none. `under`: the task they are part of. `once`: those that exist stay."""

    titles: Some
    session: str | None = None
    under: str | None = None
    once: bool = False
    actor: model.Actor = "person"


class TaskSet(Request[TaskChanged], frozen=True):
    """Changes the state of a task. `evidence`: the point that shows it; `checkpoint`: one is taken for it."""

    task: str
    state: model.TaskState
    session: str | None = None
    note: str = ""
    evidence: str | None = None
    checkpoint: bool = False
    intent: str = ""
    actor: model.Actor = "person"


class Resume(Request[model.Resumption], frozen=True):
    """Where work stands and what comes next. A session that does not run is brought back first."""

    session: str | None = None
    actor: model.Actor = "person"
