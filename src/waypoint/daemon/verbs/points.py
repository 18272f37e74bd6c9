"""Taking, naming and verifying points, and going to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waypoint.api import points as api
from waypoint.api.hints import Do, Hint
from waypoint.core.capture import Wish
from waypoint.core.forkhooks import DEFAULT_SECONDS
from waypoint.core.journal import pack_state
from waypoint.core.trials import DEFAULT_TIMEOUT, check_trial
from waypoint.daemon.connection import Connection
from waypoint.errors import NotFound, UsageError
from waypoint.history import refs
from waypoint.history.redaction import Redactor
from waypoint.model import Checkpoint, Restored

if TYPE_CHECKING:
    from waypoint.daemon.app import App


def find_point(app: App, session: str | None, ref: str) -> Checkpoint:
    """The point that a ref means. `SESSION:REF` names the session by itself."""
    return app.registry.point(app.registry.find_for(session, ref), ref)


def as_stored(app: App, point: Checkpoint) -> Checkpoint:
    """A point as it is in the database now: with its verdicts, tags and summary."""
    return app.store.points.find(point.id) or point


def checkpoint(app: App, _: Connection, request: api.Checkpoint) -> api.CheckpointTaken:
    row = app.registry.find(request.session)
    if request.verify is not None:
        check_trial(request.verify, files_only=request.files_only)
        app.gate.check_trial(row, request.verify)
    wish = Wish(
        intent=request.intent,
        name=request.name,
        files_only=request.files_only,
        actor=request.actor,
        state=pack_state(request.agent_state, request.agent_version),
        durable=request.durable,
    )
    point = app.capture.checkpoint(row, wish)
    verdict = None
    if request.verify is not None:
        number = app.trials.verify(point, request.verify)
        verdict = app.trials.wait(point, number) if request.wait else None
    return api.CheckpointTaken(
        checkpoint=as_stored(app, point),
        verdict=verdict,
        warnings=tuple(app.space.warnings(telling=True)),
    )


def restore(app: App, _: Connection, request: api.Restore) -> Restored:
    row, ref = app.registry.find_for(request.session, request.ref), request.ref
    if request.plan:
        ref = app.plans.check(row, request.plan, files_only=request.files_only)
    if not ref:
        raise UsageError("no point given", hint="give a point, or the plan that leads to one")
    return app.restore.to(row, ref, safety=request.safety, files_only=request.files_only, actor=request.actor)


def undo(app: App, _: Connection, request: api.Undo) -> Restored:
    return app.restore.undo(app.registry.find(request.session), request.actor)


def redo(app: App, _: Connection, request: api.Redo) -> Restored:
    return app.restore.redo(app.registry.find(request.session), request.actor)


def fork(app: App, _: Connection, request: api.Fork) -> api.Forks:
    row = app.registry.find_for(request.session, request.ref)
    forks = app.fork.grow(
        row,
        request.ref,
        request.n,
        request.name,
        request.names,
        request.actor,
        hook_seconds=request.hook_timeout or DEFAULT_SECONDS,
    )
    return api.Forks(sessions=tuple(forks))


def verify(app: App, _: Connection, request: api.Verify) -> api.Verified:
    row = app.registry.find_for(request.session, request.ref)
    point = app.registry.point(row, request.ref)
    app.gate.check_trial(row, request.command)
    number = app.trials.verify(point, request.command, timeout=request.timeout or DEFAULT_TIMEOUT)
    verdict = app.trials.wait(point, number) if request.wait else None
    return api.Verified(checkpoint=as_stored(app, point), verdict=verdict)


def tag(app: App, _: Connection, request: api.Tag) -> api.Tagged:
    row, points = app.registry.find_for(request.session, request.ref), app.store.points
    name = refs.check_name(request.name, "checkpoint")
    if request.delete:
        if not points.set_tag(row.id, name, None):
            tags = points.tags(row.id)
            listing = (
                f"there are: {', '.join(tags)}" if tags else Hint(Do("tag", "name", "ref"), " makes one")
            )
            raise NotFound(f"session {row.name!r} has no tag {name!r}", hint=listing)
        return api.Tagged(tag=name)
    if points.name_taken(row.id, name):
        raise UsageError(f"{name!r} is the name of a checkpoint", hint="choose another tag")
    point = app.registry.point(row, request.ref or "@")
    points.set_tag(row.id, name, point.id)
    return api.Tagged(tag=name, checkpoint=as_stored(app, point))


def tags(app: App, _: Connection, request: api.Tags) -> api.TagsResult:
    points = app.store.points
    tagged = points.tags(app.registry.find(request.session).id)
    named = [(name, points.find(point_id)) for name, point_id in tagged.items()]
    return api.TagsResult(
        tags=tuple(api.Tagged(tag=name, checkpoint=point) for name, point in named if point)
    )


def note(app: App, _: Connection, request: api.Note) -> api.Noted:
    point = find_point(app, request.session, request.ref)
    redactor = Redactor.for_variables(app.registry.facts(point).shell.values)
    text = redactor.redact(request.text.strip()).text
    if not text:
        raise UsageError("a note needs words", hint="give what you know about the point now")
    app.store.points.add_note(point.id, text)
    return api.Noted(checkpoint=point, notes=tuple(app.store.points.notes(point.id)))


def pin(app: App, _: Connection, request: api.Pin) -> api.OnePoint:
    point = find_point(app, request.session, request.ref)
    return api.OnePoint(checkpoint=app.space.pin(point, pinned=not request.off))
