"""The daemon's verbs about what an agent did, knows and has still to do (core/journal.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from waypoint.daemon.service import Connection, actor_of, verb
from waypoint.errors import UsageError
from waypoint.model import EventKind, TaskState
from waypoint.text.resume import describe_event

if TYPE_CHECKING:
    from waypoint.daemon.app import App

_PIECE = 1 << 16


@verb
def record(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Something the agent's side said or did: `what` is a role, tool_call, tool_result or note. `name`,
    `call`, `error`: of tools. Kept when it is answered."""
    row = app.registry.find(args.get("session"))
    more = {name: args.get(name) for name in ("name", "call", "error")}
    number = app.journal.record(row, args["what"], args.get("content"), actor=actor_of(args), more=more)
    return {"event": number, "session": row.name}


@verb
def trace(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """What led to `ref`, or to the present. `all`: everything that ever happened in the session; `kinds`,
    `limit` (the last so many), `after` (an event); `full`: with what is kept apart. `lines`: each event in
    a few words, "" for what only the terminal showed."""
    row = app.registry.find_for(args.get("session"), args.get("ref"))
    if args.get("all") and args.get("ref"):
        raise UsageError("either a point or everything", hint="leave the one or the other out")
    limit = args.get("limit")
    if limit is not None and limit < 1:
        raise UsageError("how many events? At least 1")
    events = app.journal.trace(
        *(row, args.get("ref")),
        kinds=msgspec.convert(args.get("kinds") or [], list[EventKind]),
        limit=limit,
        after=args.get("after"),
        everything=bool(args.get("all")),
        full=bool(args.get("full")),
    )
    return {"session": row.name, "events": events, "lines": [describe_event(event) for event in events]}


@verb
def event(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """One event, with all that belongs to it."""
    return {"event": app.journal.event(int(args["event"]))}


@verb
def cast(app: App, connection: Connection, args: dict[str, Any]) -> Any:
    """What the terminal showed on the way to `ref`, or to the present: an asciicast, as data."""
    row = app.registry.find_for(args.get("session"), args.get("ref"))
    piece, size = bytearray(), 0
    for line in app.journal.cast(row, args.get("ref")):
        piece += line.encode()
        if len(piece) >= _PIECE:
            connection.data(bytes(piece))
            size += len(piece)
            piece.clear()
    connection.data(bytes(piece))
    return {"session": row.name, "bytes": size + len(piece)}


@verb
def messages(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """What was said on the way to `ref`, or to the present: messages, tool calls and results."""
    row = app.registry.find_for(args.get("session"), args.get("ref"))
    return {"events": app.journal.conversation(app.journal.position(row, args.get("ref")))}


@verb
def agent_state(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """What an agent left with `ref`; without one, with the last point on the way here that has something."""
    row = app.registry.find_for(args.get("session"), args.get("ref"))
    if args.get("ref"):
        return app.journal.agent_state(app.registry.point(row, args["ref"]))
    point = app.journal.with_state(row)
    return app.journal.agent_state(point) if point else {"checkpoint": None, "agent_version": None}


@verb
def tasks(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """The tasks of a session, or as they stood at `ref`."""
    row = app.registry.find_for(args.get("session"), args.get("ref"))
    return {"session": row.name, "tasks": app.journal.tasks(row, args.get("ref"))}


@verb
def task_add(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Adds tasks, all or none. `under`: what they are a part of; `once`: those that are there stay."""
    row = app.registry.find(args.get("session"))
    titles = msgspec.convert(args["titles"], list[str])
    if not titles:
        raise UsageError("which tasks?", hint="give a title for each")
    made = app.journal.add_tasks(
        row, titles, parent=args.get("under"), once=bool(args.get("once")), actor=actor_of(args)
    )
    return {"session": row.name, "added": made, "tasks": app.journal.tasks(row)}


@verb
def task_set(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """A task stands otherwise. `evidence`: the point that shows it; `checkpoint`: one is taken for that."""
    row = app.registry.find(args.get("session"))
    state, note = msgspec.convert(args["state"], TaskState), args.get("note") or ""
    point = None
    if args.get("checkpoint"):
        if state != "completed" or args.get("evidence"):
            raise UsageError("a point is taken for a task that is done", hint="leave --checkpoint out")
        task, point = app.journal.done_with_point(
            row, args["task"], note=note, actor=actor_of(args), intent=args.get("intent") or ""
        )
    else:
        task = app.journal.set_task(
            row, args["task"], state, note=note, evidence=args.get("evidence"), actor=actor_of(args)
        )
    return {
        "session": row.name,
        "task": task,
        "checkpoint": app.store.points.find(point.id) if point else None,
        "tasks": app.journal.tasks(row),
    }


@verb
def resume(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Where things stand and what comes next. A session that does not run is brought back first."""
    return app.journal.resume(app.registry.find(args.get("session")), actor=actor_of(args))
