"""What an agent did, knows and has still to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waypoint.api import agent as api
from waypoint.api.hints import Arg, Hint
from waypoint.daemon.connection import Connection
from waypoint.daemon.verbs.points import as_stored
from waypoint.errors import UsageError
from waypoint.model import Resumption
from waypoint.text.resume import describe_event

if TYPE_CHECKING:
    from waypoint.daemon.app import App

_PIECE_BYTES = 1 << 16


def record(app: App, _: Connection, request: api.Record) -> api.Recorded:
    row = app.registry.find(request.session)
    more = {"name": request.name, "call": request.call, "error": request.error}
    number = app.journal.record(row, request.what, request.content, actor=request.actor, more=more)
    return api.Recorded(event=number, session=row.name)


def trace(app: App, _: Connection, request: api.Trace) -> api.TraceResult:
    row = app.registry.find_for(request.session, request.ref)
    if request.all and request.ref:
        raise UsageError("either a point or everything", hint="leave the one or the other out")
    events = app.journal.trace(
        row,
        request.ref,
        kinds=request.kinds,
        limit=request.limit,
        after=request.after,
        everything=request.all,
        full=request.full,
    )
    lines = tuple(describe_event(event) for event in events)
    return api.TraceResult(session=row.name, events=tuple(events), lines=lines)


def event(app: App, _: Connection, request: api.Event) -> api.OneEvent:
    return api.OneEvent(event=app.journal.event(request.event))


def cast(app: App, connection: Connection, request: api.Cast) -> api.CastWritten:
    row = app.registry.find_for(request.session, request.ref)
    piece, size = bytearray(), 0
    for line in app.journal.cast(row, request.ref):
        piece += line.encode()
        if len(piece) >= _PIECE_BYTES:
            connection.data(bytes(piece))
            size += len(piece)
            piece.clear()
    connection.data(bytes(piece))
    return api.CastWritten(session=row.name, bytes=size + len(piece))


def messages(app: App, _: Connection, request: api.Messages) -> api.Events:
    row = app.registry.find_for(request.session, request.ref)
    return api.Events(events=tuple(app.journal.conversation(app.journal.position(row, request.ref))))


def agent_state(app: App, _: Connection, request: api.AgentState) -> api.AgentStateResult:
    row = app.registry.find_for(request.session, request.ref)
    point = app.registry.point(row, request.ref) if request.ref else app.journal.with_state(row)
    return app.journal.agent_state(point)


def tasks(app: App, _: Connection, request: api.Tasks) -> api.TasksResult:
    row = app.registry.find_for(request.session, request.ref)
    return api.TasksResult(session=row.name, tasks=tuple(app.journal.tasks(row, request.ref)))


def task_add(app: App, _: Connection, request: api.TaskAdd) -> api.TasksAdded:
    row = app.registry.find(request.session)
    added = app.journal.add_tasks(
        row, request.titles, parent=request.under, once=request.once, actor=request.actor
    )
    return api.TasksAdded(session=row.name, added=tuple(added), tasks=tuple(app.journal.tasks(row)))


def task_set(app: App, _: Connection, request: api.TaskSet) -> api.TaskChanged:
    row = app.registry.find(request.session)
    point = None
    if request.checkpoint:
        if request.state != "completed" or request.evidence:
            hint = Hint("leave ", Arg("task_set", "checkpoint"), " out")
            raise UsageError("a point is taken for a task that is done, without other evidence", hint=hint)
        task, point = app.journal.done_with_point(
            row, request.task, note=request.note, actor=request.actor, intent=request.intent
        )
    else:
        task = app.journal.set_task(
            row,
            request.task,
            request.state,
            note=request.note,
            evidence=request.evidence,
            actor=request.actor,
        )
    return api.TaskChanged(
        session=row.name,
        task=task,
        checkpoint=as_stored(app, point) if point else None,
        tasks=tuple(app.journal.tasks(row)),
    )


def resume(app: App, _: Connection, request: api.Resume) -> Resumption:
    return app.journal.resume(app.registry.find(request.session), actor=request.actor)
