"""The verbs that tell: log, show, status, diff, preview, verify, bisect, and the words added to points."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from waypoint.api.difference import Section
from waypoint.core.bisect import Step
from waypoint.core.comparison import BASE
from waypoint.daemon.service import Connection, actor_of, verb
from waypoint.errors import NotFound, UsageError, WaypointError
from waypoint.history import lineage, refs
from waypoint.history.difference import select_paths
from waypoint.history.redaction import Redactor
from waypoint.model import Checkpoint
from waypoint.store.database import iso
from waypoint.store.sessions import SessionRow
from waypoint.text.cards import summarize
from waypoint.text.difference import SECTIONS, describe_difference, describe_effects
from waypoint.text.plan import point_label

if TYPE_CHECKING:
    from waypoint.daemon.app import App


@verb
def log_(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """The points of a session, oldest first; of all with `all`. `family`: with the line they grew from and
    the last point of each fork of theirs ("tips"), or with all of those ("whole"). `since`: no older ones."""
    rows = app.store.sessions.all() if args.get("all") else [app.registry.find(args.get("session"))]
    everything = app.store.points.all()
    points = everything
    if not args.get("all"):
        points = lineage.family(everything, rows[0].name, rows[0].head, args.get("family"))
    if args.get("since"):
        now = datetime.now().astimezone()
        start = refs.parse_moment(args["since"], now)
        points = [point for point in points if datetime.fromisoformat(point.created_at) >= start]
    return {
        "checkpoints": points,
        "sessions": [{"name": row.name, "state": row.state, "head": row.head} for row in rows],
        "good": {row.name: point.id for row in rows if (point := _good(row, everything))},
    }


def _good(row: SessionRow, everything: Sequence[Checkpoint]) -> Checkpoint | None:
    own = [point for point in everything if point.session == row.name]
    with contextlib.suppress(NotFound):
        return refs.resolve("good", own, everything, row.head, datetime.now().astimezone())
    return None


@verb
def show(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """One point: its card (computed `again` if asked for), its verdicts, its notes."""
    row = app.registry.find_for(args.get("session"), args["ref"])
    point = app.registry.point(row, args["ref"])
    if args.get("again"):
        app.cards.write(point.id)
    card = app.cards.card(point)
    store = app.store
    return {
        "checkpoint": store.points.find(point.id),
        "parent": _parent(app, point),
        "card": card,
        "sections": (*describe_difference(card.difference), *_outside(app, point)) if card else (),
        "verdicts": store.points.verdicts(point.id),
        "notes": store.points.notes(point.id),
    }


def _outside(app: App, point: Checkpoint) -> tuple[Section, ...]:
    parent = app.store.points.find(point.parent) if point.parent else None
    return describe_effects(app.cards.effects(point, parent))


def _parent(app: App, point: Checkpoint) -> str | None:
    """What the point before it is called."""
    parent = app.store.points.find(point.parent) if point.parent else None
    return point_label(parent, point.session) if parent else None


@verb
def diff(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Two points; the second is now when not given. `paths`: only what is there. `only`: these sections. With
    `patch`: the text of what changed in files."""
    row = app.registry.find_for(args.get("session"), args.get("a"), args.get("b"))
    only = args.get("only") or ()
    if unknown := [name for name in only if name not in SECTIONS]:
        raise UsageError(f"there is no section {unknown[0]!r}", hint=f"there are: {', '.join(SECTIONS)}")
    compare = app.comparison
    with compare.moment(row, args.get("a") or "@") as old, compare.moment(row, args.get("b")) as new:
        found = compare.difference(old, new)
        if args.get("paths"):
            found = select_paths(found, args["paths"], new.facts.shell.cwd)
        sections = describe_difference(found, only)
        result: dict[str, Any] = {
            "from": old.point or old.label,
            "to": new.point or new.label,
            "different": bool(sections),
            "summary": summarize(found),
            "sections": sections,
            "difference": found,
        }
        if args.get("patch"):
            from waypoint.history.diff import patch

            redactor = Redactor.for_variables({**old.facts.shell.exported, **new.facts.shell.exported})
            pieces = patch(old.view, new.view, found.files)
            clean = redactor.redact_patch("".join(piece.text for piece in pieces))
            result["patch"] = clean.text
            result["patch_redacted"] = clean.count
        return result


@verb
def status(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Where a session stands: its last point, and what has changed since."""
    row = app.registry.find(args.get("session"))
    described = app.registry.describe(row)
    head = app.store.points.find(row.head) if row.head else None
    found, missing = None, None
    try:
        before = head.id if head else BASE
        with app.comparison.moment(row, before) as old, app.comparison.moment(row, None) as now:
            found = app.comparison.difference(old, now)
    except (WaypointError, OSError) as error:
        missing = str(error)
    return {
        "session": described,
        "head": head,
        "head_called": point_label(head, row.name) if head else None,
        "missing": missing,
        "summary": summarize(found) if found else None,
        "sections": describe_difference(found) if found else (),
        "difference": found,
    }


@verb
def changed(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Whether anything is different from a session's last point; `besides`: files there do not count."""
    row = app.registry.find(args.get("session"))
    return {"changed": app.comparison.has_changed(row, args.get("besides") or ())}


@verb
def preview(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """What a restore would do. The plan's id can be given to `restore`."""
    row = app.registry.find_for(args.get("session"), args["ref"])
    plan, words = app.plans.make(row, args["ref"], files_only=bool(args.get("files_only")))
    return {"plan": plan, "words": words}


@verb
def verify(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """A command in a throwaway fork of a point; the verdict is kept with it."""
    row = app.registry.find_for(args.get("session"), args["ref"])
    point = app.registry.point(row, args["ref"])
    timeout = float(args.get("timeout") or 600)
    app.gate.check_trial(row, args["command"])
    number = app.trials.verify(point, args["command"], timeout=timeout)
    found = app.trials.wait(point, number) if args.get("wait", True) else None
    return {"checkpoint": app.store.points.find(point.id), "verdict": found}


@verb
def tag(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Another name for a point, or (with `delete`) one taken away."""
    row = app.registry.find_for(args.get("session"), args.get("ref"))
    name = refs.check_name(args["name"], "checkpoint")
    store = app.store
    if args.get("delete"):
        if not store.points.set_tag(row.id, name, None):
            raise NotFound(
                f"session {row.name!r} has no tag {name!r}", hint=_tag_listing(store.points.tags(row.id))
            )
        return {"tag": name}
    if store.points.name_taken(row.id, name):
        raise UsageError(f"{name!r} is the name of a checkpoint", hint="choose another tag")
    point = app.registry.point(row, args.get("ref") or "@")
    store.points.set_tag(row.id, name, point.id)
    return {"tag": name, "checkpoint": store.points.find(point.id)}


def _tag_listing(tags: dict[str, str]) -> str:
    return f"there are: {', '.join(tags)}" if tags else "`waypoint tag NAME REF` makes one"


@verb
def tags(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """The tags of a session."""
    row, store = app.registry.find(args.get("session")), app.store
    found = store.points.tags(row.id)
    return {"tags": [{"tag": name, "checkpoint": store.points.find(point)} for name, point in found.items()]}


@verb
def note(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Words added to a point later, marked as such."""
    row = app.registry.find_for(args.get("session"), args["ref"])
    point = app.registry.point(row, args["ref"])
    words = Redactor.for_variables(app.registry.facts(point).shell.exported).redact(args["text"].strip()).text
    if not words:
        raise UsageError("a note needs words", hint="waypoint note REF 'what you know now'")
    app.store.points.add_note(point.id, words)
    return {"checkpoint": point, "notes": app.store.points.notes(point.id)}


@verb
def ops(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Everything that moved a session, oldest first. `to` and `back_to`: what the points are called."""
    row = app.registry.find(args.get("session"))
    points = {point.id: point_label(point, row.name) for point in app.store.points.all()}
    return {
        "operations": [
            {
                "id": op.id,
                "at": iso(op.at),
                "verb": op.verb,
                "target": op.target,
                "to": points.get(op.target or ""),
                "before": op.before,
                "back_to": points.get(op.before or ""),
                "undone": op.undone,
            }
            for op in app.store.operations.all(row.id)
        ]
    }


@verb
def auto(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Points after each command that changed something: on or off."""
    row = app.registry.find(args.get("session"))
    app.store.sessions.set_auto(row.id, auto=bool(args["on"]))
    return {"session": app.registry.describe(app.registry.find(row.id))}


@verb
def redo(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Takes the last undo back."""
    return app.restore.redo(app.registry.find(args.get("session")), actor_of(args))


@verb
def bisect(app: App, connection: Connection, args: dict[str, Any]) -> Any:
    """The first point at which a command fails, between one where it passes and one where it does not.

    Verified in throwaway forks, two at a time: each round asks about two points and keeps a third.
    """
    row = app.registry.find_for(args.get("session"), args["good"], args["bad"])
    good, bad = app.registry.point(row, args["good"]), app.registry.point(row, args["bad"])

    def describe(step: Step) -> dict[str, Any]:
        return {
            "checkpoint": step.point.id,
            "label": point_label(step.point, row.name),
            "passed": step.passed,
        }

    def report(step: Step) -> None:
        intent = {"intent": step.point.intent, "intent_from": step.point.intent_from}
        connection.event({"tried": {**describe(step), **intent}})

    timeout = float(args.get("timeout") or 600)
    culprit = app.bisect.search(row, good, bad, args["command"], timeout=timeout, on_step=report)
    with (
        app.comparison.moment(row, culprit.last_good.id) as old,
        app.comparison.moment(row, culprit.point.id) as new,
    ):
        difference = app.comparison.difference(old, new)
    return {
        "culprit": culprit.point,
        "parent": _parent(app, culprit.point),
        "last_good": culprit.last_good,
        "card": app.cards.card(culprit.point),
        "summary": summarize(difference),
        "sections": describe_difference(difference),
        "difference": difference,
        "steps": [describe(step) for step in culprit.steps],
    }
