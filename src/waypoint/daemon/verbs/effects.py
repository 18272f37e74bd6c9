"""What was done outside, policies and approvals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waypoint.api import effects as api
from waypoint.core.gate import Asked
from waypoint.daemon.connection import Connection
from waypoint.model import Judgement, from_plain
from waypoint.policy.rules import built_in_text
from waypoint.text.effects import describe_contacts

if TYPE_CHECKING:
    from waypoint.daemon.app import App


def effects(app: App, _: Connection, request: api.Effects) -> api.EffectsResult:
    if request.all:
        ledger = tuple(app.gate.ledger.effects())
        return api.EffectsResult(session=None, since=None, effects=ledger, contacts=())
    row = app.registry.find_for(request.session, request.ref)
    point = app.registry.point(row, request.ref) if request.ref else None
    contacts = tuple(app.contacts.since(row, point))
    return api.EffectsResult(
        session=row.name,
        since=point,
        effects=tuple(app.gate.effects(row, point)),
        contacts=contacts,
        talked_to=describe_contacts(contacts, amounts=True),
    )


def effect(app: App, _: Connection, request: api.Effect) -> api.OneEffect:
    claimed = app.gate.claim(
        app.registry.find(request.session),
        request.what,
        class_=request.class_,
        target=request.target,
        key=request.key,
        compensate=request.compensate,
        actor=request.actor,
    )
    return api.OneEffect(effect=claimed)


def classify(app: App, _: Connection, request: api.Classify) -> api.Classified:
    row = app.registry.find(request.session)
    judgement = app.gate.judge(row, request.command)
    redactor = app.registry.redactor(row).knowing(request.command)
    clean, _count = redactor.redact_json(msgspec.to_builtins(judgement))
    for shown, part in zip(clean["parts"], judgement.parts, strict=True):
        # A key says whether two effects are the same. It opens nothing, so it is redacted like text.
        shown["key"] = redactor.redact(part.key).text
    reason = judgement.why or f"it is {judgement.class_}"
    asked = Asked(request.command, request.command, "", judgement)
    return api.Classified(
        session=row.name,
        ruling=judgement.decision,
        reason=redactor.redact(reason).text,
        judgement=from_plain(clean, Judgement),
        review=app.gate.review(row, asked) if judgement.decision == "ask" else (),
    )


def policy(app: App, _: Connection, request: api.Policy) -> api.PolicyFiles:
    row = app.registry.find(request.session)
    combined = app.gate.policy(row)
    return api.PolicyFiles(
        session=row.name,
        decisions=combined.decisions,
        expires_seconds=combined.expires_seconds,
        own=row.policy,
        home=app.gate.home_text(),
        built_in=built_in_text() if request.built_in else None,
    )


def policy_set(app: App, _: Connection, request: api.PolicySet) -> api.PolicyChanged:
    row = None if request.everywhere else app.registry.find(request.session)
    app.gate.set_policy(row, request.text)
    return api.PolicyChanged(session=row.name if row else None, set=request.text is not None)


def approvals(app: App, _: Connection, request: api.Approvals) -> api.ApprovalsResult:
    session_id = app.registry.find(request.session).id if request.session else None
    waiting = app.gate.approvals.approvals(waiting=not request.all, session_id=session_id)
    return api.ApprovalsResult(approvals=tuple(waiting))


def approve(app: App, _: Connection, request: api.Approve) -> api.OneApproval:
    return api.OneApproval(approval=app.gate.approvals.decide(request.id, granted=True, note=request.note))


def deny(app: App, _: Connection, request: api.Deny) -> api.OneApproval:
    return api.OneApproval(approval=app.gate.approvals.decide(request.id, granted=False, note=request.note))
