"""What a session's agent did, knows and has still to do: its trajectory, its state, its tasks; and resuming.

An agent's own process may die at any moment, and so may its session. Everything that it records is in the
database when the call returns. The next agent asks `resume`.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from waypoint.agent import tasks as plan
from waypoint.agent.asciicast import KINDS, cast
from waypoint.agent.tasks import Tasks
from waypoint.agent.trajectory import agent_event, with_blob
from waypoint.api.agent import AgentStateResult
from waypoint.api.difference import Card
from waypoint.api.hints import Do, Hint
from waypoint.api.request import StatePayload
from waypoint.core.capture import Capture, Wish
from waypoint.core.cards import Cards
from waypoint.core.gate import Gate
from waypoint.core.registry import Registry
from waypoint.core.restore import Restore
from waypoint.errors import NotFound, SessionDead, UsageError, WaypointError
from waypoint.model import (
    Actor,
    Checkpoint,
    Event,
    EventKind,
    Resumption,
    Task,
    TaskState,
)
from waypoint.store.database import iso
from waypoint.store.events import NewEvent, make_blob
from waypoint.store.points import AgentState
from waypoint.store.sessions import SessionRow
from waypoint.text.resume import SessionStatus, write_prompt

MOST_STATE_BYTES = 64 << 20
_MOST_CONTENT_BYTES = 16 << 20
_MOST_SINCE = 500
"""How many events since the last point `resume` returns; `trace` has the rest."""
CONVERSATION: tuple[EventKind, ...] = ("message", "tool_call", "tool_result")


def pack_state(state: StatePayload | None, version: str | None) -> AgentState | None:
    """Agent state as it came over the wire, ready to be stored."""
    if state is None:
        if version is not None:
            raise UsageError("a version without a state", hint="agent_version goes with agent_state")
        return None
    if state.base64 is not None:
        data, is_json = state.base64, False
    else:
        text = state.text or ""
        try:
            json.loads(text)
        except ValueError as error:
            raise UsageError(f"the agent state is not JSON: {error}", hint="give it as base64") from error
        data, is_json = text.encode(), True
    if len(data) > MOST_STATE_BYTES:
        raise UsageError(
            f"the agent state has {len(data) >> 20} MiB, and the limit is {MOST_STATE_BYTES >> 20} MiB",
            hint="keep large data in a file of the session: it is part of the point too",
        )
    return AgentState(kind="json" if is_json else "bytes", blob=make_blob(data), version=version)


class Journal:
    """The journals of one home."""

    def __init__(
        self, registry: Registry, capture: Capture, restore: Restore, cards: Cards, gate: Gate
    ) -> None:
        self._registry, self._store = registry, registry.store
        self._capture, self._restore, self._cards, self._gate = capture, restore, cards, gate

    # ---- trajectory --------------------------------------------------------------------------

    def record(
        self, row: SessionRow, what: str, content: Any, *, actor: Actor, more: Mapping[str, Any]
    ) -> int:
        """A message, a tool call or its result. It is stored when this returns."""
        kind, body = agent_event(what, content, more)
        if len(msgspec.json.encode(body)) > _MOST_CONTENT_BYTES:
            raise UsageError(
                f"at most {_MOST_CONTENT_BYTES >> 20} MiB can be recorded at once", hint="give it in parts"
            )
        return self._registry.record(row, kind, body, actor=actor)

    def position(self, row: SessionRow, ref: str | None) -> int | None:
        """Where a ref stands in the trajectory; without one, where the session is now."""
        if ref in (None, "now"):
            self._registry.settle(row)
            return self._registry.find(row.id).tip
        return self._registry.point(row, ref or "@").position

    def trace(
        self,
        row: SessionRow,
        ref: str | None = None,
        *,
        kinds: Sequence[EventKind] = (),
        limit: int | None = None,
        after: int | None = None,
        everything: bool = False,
        full: bool = False,
    ) -> list[Event]:
        """What led to a point, or to the present, oldest first. `everything`: all that ever happened in the
        session, also in lines of history that it has left. `full`: with data that is stored separately."""
        if everything:
            self._registry.settle(row)
            events = self._store.events.all(row.id, kinds=kinds, limit=limit, after=after)
        else:
            events = self._store.events.trace(self.position(row, ref), kinds=kinds, limit=limit, after=after)
        return [self._whole(event) for event in events] if full else events

    def _whole(self, event: Event) -> Event:
        return with_blob(event, self._store.events.blob(event.blob)) if event.blob else event

    def event(self, number: int) -> Event:
        """One event, with all that belongs to it."""
        event = self._store.events.find(number)
        if event is None:
            raise NotFound(f"there is no event {number}", hint=Hint(Do("trace"), " lists them"))
        return self._whole(event)

    def cast(self, row: SessionRow, ref: str | None) -> Iterator[str]:
        """What the terminal showed on the way to a point, as an asciicast."""
        events = self.trace(row, ref, kinds=KINDS)
        return cast((self._whole(event) for event in events), title=row.name)

    def conversation(self, position: int | None) -> list[Event]:
        """The messages and tool calls on the way to a position."""
        return [self._whole(event) for event in self._store.events.trace(position, kinds=CONVERSATION)]

    # ---- state -------------------------------------------------------------------------------

    def with_state(self, row: SessionRow) -> Checkpoint | None:
        """The last point on the way to where a session stands that has agent state."""
        point = self._registry.head(row)
        while point and not point.agent_state_kind:
            point = self._store.points.find(point.parent) if point.parent else None
        return point

    def agent_state(self, point: Checkpoint | None) -> AgentStateResult:
        """What an agent left with a point."""
        stored = self._store.points.agent_state(point.id) if point else None
        kind, data = stored or (None, b"")
        return AgentStateResult(
            checkpoint=point,
            agent_version=point.agent_version if point else None,
            text=data.decode() if kind == "json" else UNSET,
            base64=base64.b64encode(data).decode() if kind == "bytes" else UNSET,
        )

    # ---- tasks -------------------------------------------------------------------------------

    def tasks(self, row: SessionRow, ref: str | None = None) -> Tasks:
        """Those of a session, or as they stood at a point."""
        if ref:
            return plan.load(self._store.points.tasks(self._registry.point(row, ref).id))
        return plan.load(self._store.sessions.tasks(row.id))

    def add_tasks(
        self, row: SessionRow, titles: Sequence[str], *, parent: str | None, once: bool, actor: Actor
    ) -> list[Task]:
        """Adds tasks, all or none. `once`: a task of that title that exists stays as it is."""
        redactor = self._registry.redactor(row)
        words = [redactor.redact(title).text for title in titles]
        with self._registry.trajectory.paused(row.id):
            now = self.tasks(row)
            above = plan.find(now, parent).id if parent else None
            added: list[Task] = []
            events: list[NewEvent] = []
            for title in words:
                known = [task for task in plan.children(now, above) if task.title == " ".join(title.split())]
                if once and known:
                    added.append(known[0])
                    continue
                now, task = plan.add(now, title, above)
                added.append(task)
                events.append(_task_event(task, None, actor))
            if events:
                self._store.sessions.set_tasks(row.id, plan.dump(now), events)
        return added

    def set_task(
        self,
        row: SessionRow,
        name: str,
        state: TaskState,
        *,
        note: str,
        evidence: str | None,
        actor: Actor,
    ) -> Task:
        """Changes the state of a task. `evidence`: the point that shows it; by default the one that the
        session stands on, if that was taken since the task was begun."""
        point = self._registry.point(row, evidence) if evidence else None
        note = self._registry.redactor(row).redact(" ".join(note.split())).text
        with self._registry.trajectory.paused(row.id):
            row = self._registry.find(row.id)
            now = self.tasks(row)
            task = plan.find(now, name)
            if point is None and state == "completed" and row.head and task.started_at:
                head = self._store.points.find(row.head)
                point = head if head and head.created_at >= task.started_at else None
            evidence = point.id if point else None
            now, before, after = plan.change(
                now, name, state, now=iso(time.time()), note=note, checkpoint=evidence
            )
            self._store.sessions.set_tasks(row.id, plan.dump(now), [_task_event(after, before, actor)])
        return after

    def done_with_point(
        self, row: SessionRow, name: str, *, note: str, actor: Actor, intent: str
    ) -> tuple[Task, Checkpoint]:
        """Completes a task and takes a point that shows it: in that point it is completed too."""
        before = plan.find(self.tasks(row), name)
        task = self.set_task(row, name, "completed", note=note, evidence=None, actor=actor)
        try:
            point = self._capture.checkpoint(row, Wish(intent or task.title, actor=actor))
        except BaseException:
            with self._registry.trajectory.paused(row.id):
                events = [_task_event(before, task, "automatic")]
                self._store.sessions.set_tasks(row.id, plan.dump(_with(self.tasks(row), before)), events)
            raise
        shown = msgspec.structs.replace(task, checkpoint=point.id)
        with self._registry.trajectory.paused(row.id):
            self._store.sessions.set_tasks(row.id, plan.dump(_with(self.tasks(row), shown)), [])
        at_point = plan.load(self._store.points.tasks(point.id))
        self._store.points.set_tasks(point.id, plan.dump(_with(at_point, shown)))
        return shown, point

    # ---- going on ----------------------------------------------------------------------------

    def resume(self, row: SessionRow, *, actor: Actor = "agent") -> Resumption:
        """What is to be done next, and what the agent has to know for it. A session that does not run is
        restored to its last point first."""
        restored, left_behind = False, []
        state = self._registry.describe(row).state
        if state != "live":
            row = self._registry.find(row.id)
            if row.head is None:
                raise SessionDead(
                    f"session {row.name!r} does not run and has no point to go back to",
                    hint=Hint(Do("new"), " starts another"),
                )
            head = self._registry.head(row)
            left_behind = self._store.events.trace(
                row.tip, after=head.position if head else None, limit=_MOST_SINCE
            )
            self._restore.to(row, row.head, actor=actor)
            restored = state != "parked"
        row = self._registry.find(row.id)
        point = self._registry.head(row)
        session = self._registry.describe(row)
        since = self.trace(row, after=point.position if point else None, limit=_MOST_SINCE)
        tasks = self.tasks(row)
        effects = tuple(self._gate.done_since(row, point))
        task = plan.next_open(tasks)
        standing = SessionStatus(
            session=row.name,
            task=task,
            tasks=tasks,
            point=point,
            card=self._card(point),
            foreground=session.foreground,
            restored=restored,
            left_behind=[event for event in left_behind if event.kind not in ("checkpoint", "restored")],
            since=[event for event in since if event.kind != "restored"],
            effects=effects,
            labels=self._labels(tasks, row.name),
        )
        return Resumption(
            session=session,
            task=task,
            tasks=tasks,
            checkpoint=point,
            text=write_prompt(standing),
            restored=restored,
            left_behind=tuple(standing.left_behind),
            since=tuple(standing.since),
            effects=effects,
        )

    def _card(self, point: Checkpoint | None) -> Card | None:
        if point is None:
            return None
        try:
            return self._cards.card(point, wait=3.0)
        except WaypointError:
            return None

    def _labels(self, tasks: Tasks, session: str) -> dict[str, str]:
        """The labels of the points that tasks refer to."""
        labels = {}
        for name in {task.checkpoint for task in tasks if task.checkpoint}:
            if point := self._store.points.find(name):
                labels[name] = point.label if point.session == session else f"{point.session}:{point.label}"
        return labels


def _with(tasks: Tasks, changed: Task) -> Tasks:
    return tuple(changed if task.id == changed.id else task for task in tasks)


def _task_event(task: Task, before: Task | None, actor: Actor) -> NewEvent:
    body = {
        "task": task.id,
        "title": task.title,
        "state": task.state,
        "was": before.state if before else None,
    }
    more = {"note": task.note, "checkpoint": task.checkpoint}
    return NewEvent(kind="task", body=body | {k: v for k, v in more.items() if v}, actor=actor)
