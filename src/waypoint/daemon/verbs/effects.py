"""The daemon's verbs about effects, policies and approvals (core/gate.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from waypoint.core.gate import Asker
from waypoint.daemon.service import Connection, actor_of, verb
from waypoint.errors import UsageError
from waypoint.model import EffectClass
from waypoint.policy.rules import built_in_text
from waypoint.text.effects import describe_contacts

if TYPE_CHECKING:
    from waypoint.daemon.app import App


def asker_of(connection: Connection, args: dict[str, Any]) -> Asker:
    """Whoever is at the other end: told when a command has to wait, and not waited for when they go."""
    return Asker(
        actor=actor_of(args),
        socket=connection.socket.fileno(),
        announce=lambda approval: connection.event({"approval": approval}),
    )


@verb
def effects(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """What was done outside, and which places were talked to; `ref`: since that point. `all`: the effects of
    every session that ever was."""
    if args.get("all"):
        return {"session": None, "since": None, "effects": app.gate.ledger.effects(), "contacts": []}
    row = app.registry.find_for(args.get("session"), args.get("ref"))
    point = app.registry.point(row, args["ref"]) if args.get("ref") else None
    contacts = app.contacts.since(row, point)
    return {
        "session": row.name,
        "since": point,
        "effects": app.gate.effects(row, point),
        "contacts": contacts,
        "talked_to": describe_contacts(contacts, amounts=True),
    }


@verb
def effect(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """An effect that somebody says they had: `what`, `class`, `target`, `key`, `compensate`."""
    row = app.registry.find(args.get("session"))
    made = app.gate.claim(
        row,
        args["what"],
        class_=msgspec.convert(args.get("class") or "irreversible", EffectClass),
        target=args.get("target") or "",
        key=args.get("key") or "",
        compensate=args.get("compensate") or "",
        actor=actor_of(args),
    )
    return {"effect": made}


@verb
def classify(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """What the policy of a session says about `command`. Nothing is run, asked or written down."""
    row = app.registry.find(args.get("session"))
    judgement = app.gate.judge(row, args["command"])
    redactor = app.registry.redactor(row)
    clean, _count = redactor.redact_json(msgspec.to_builtins(judgement))
    for shown, part in zip(clean["parts"], judgement.parts, strict=True):
        shown["key"] = redactor.redact(part.key).text  # what makes it the same effect again: it opens nothing
    reason = judgement.why or (f"it is {judgement.class_}")
    return {
        "session": row.name,
        "ruling": judgement.decision,
        "reason": redactor.redact(reason).text,
        "judgement": clean,
    }


@verb
def policy(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """The files that hold for a session, as they were written, and what they come to."""
    row = app.registry.find(args.get("session"))
    found = app.gate.policy(row)
    return {
        "session": row.name,
        "decisions": found.decisions,
        "expires_seconds": found.expires_seconds,
        "own": row.policy,
        "home": app.gate.home_text(),
        "built_in": built_in_text() if args.get("built_in") else None,
    }


@verb
def policy_set(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Rules of its own for a session, or with `everywhere` for all of this home; without `text`: none."""
    text = args.get("text")
    if text is not None and not isinstance(text, str):
        raise UsageError("a policy is a text")
    row = None if args.get("everywhere") else app.registry.find(args.get("session"))
    app.gate.set_policy(row, text)
    return {"session": row.name if row else None, "set": text is not None}


@verb
def approvals(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """What waits for somebody's word; `all`: what was decided, too."""
    session_id = app.registry.find(args["session"]).id if args.get("session") else None
    return {"approvals": app.gate.ledger.approvals(waiting=not args.get("all"), session_id=session_id)}


@verb
def approve(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Lets the one command run that waits as `id`, once."""
    return {"approval": app.gate.approvals.decide(args["id"], granted=True, note=args.get("note") or "")}


@verb
def deny(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """It does not run; `note`: why, for whoever asked."""
    return {"approval": app.gate.approvals.decide(args["id"], granted=False, note=args.get("note") or "")}
