"""What points are, and what changed between them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import UNSET

from waypoint.api import history as api
from waypoint.api.difference import Card, Section
from waypoint.core.bisect import Step
from waypoint.core.candidates import Assessment
from waypoint.core.comparison import BASE
from waypoint.core.trials import DEFAULT_TIMEOUT
from waypoint.daemon.connection import Connection
from waypoint.daemon.verbs.points import as_stored, find_point
from waypoint.errors import NotFound, UsageError, WaypointError
from waypoint.history import lineage, refs
from waypoint.history.difference import select_paths
from waypoint.history.redaction import Redactor
from waypoint.model import Checkpoint
from waypoint.store.database import iso
from waypoint.store.sessions import SessionRow
from waypoint.text.cards import summarize
from waypoint.text.commands import describe_outcomes
from waypoint.text.comparison import Column, side_by_side
from waypoint.text.difference import SECTIONS, describe_difference, describe_effects
from waypoint.text.plan import point_label

if TYPE_CHECKING:
    from waypoint.daemon.app import App


def log(app: App, _: Connection, request: api.Log) -> api.LogResult:
    rows = app.store.sessions.all() if request.all else [app.registry.find(request.session)]
    points = everything = app.registry.all_points()
    if not request.all:
        points = lineage.family(everything, rows[0].name, rows[0].head, request.family)
    if request.since:
        start = refs.parse_moment(request.since, datetime.now().astimezone())
        points = [point for point in points if datetime.fromisoformat(point.created_at) >= start]
    good = {row.name: _last_good(row, everything) for row in rows}
    return api.LogResult(
        checkpoints=tuple(points),
        sessions=tuple(api.SessionHead(name=row.name, state=row.state, head=row.head) for row in rows),
        good={name: point.id for name, point in good.items() if point},
    )


def _last_good(row: SessionRow, everything: Sequence[Checkpoint]) -> Checkpoint | None:
    own = [point for point in everything if point.session == row.name]
    with contextlib.suppress(NotFound):
        return refs.resolve("good", own, everything, row.head, datetime.now().astimezone())
    return None


def show(app: App, _: Connection, request: api.Show) -> api.Shown:
    row = app.registry.find_for(request.session, request.ref)
    point = app.registry.point(row, request.ref, saved=False)
    if point.pending:
        return api.Shown(
            checkpoint=point, parent=_parent_label(app, point), card=None, sections=(), verdicts=(), notes=()
        )
    if request.again:
        app.cards.write(point.id)
    card = app.cards.card(point)
    return api.Shown(
        checkpoint=as_stored(app, point),
        parent=_parent_label(app, point),
        card=card,
        sections=_sections(app, point, card) if card else (),
        verdicts=tuple(app.store.points.verdicts(point.id)),
        notes=tuple(app.store.points.notes(point.id)),
    )


def _parent(app: App, point: Checkpoint) -> Checkpoint | None:
    return app.store.points.find(point.parent) if point.parent else None


def _sections(app: App, point: Checkpoint, card: Card) -> tuple[Section, ...]:
    commands = describe_outcomes(card.commands)
    return (*describe_difference(card.difference), *commands, *_effects(app, point))


def _effects(app: App, point: Checkpoint) -> tuple[Section, ...]:
    return describe_effects(app.cards.effects(point, _parent(app, point)))


def _parent_label(app: App, point: Checkpoint) -> str | None:
    parent = _parent(app, point)
    return point_label(parent, point.session) if parent else None


def status(app: App, _: Connection, request: api.Status) -> api.StatusResult:
    row = app.registry.find(request.session)
    session = app.registry.describe(row)
    head = app.store.points.find(row.head) if row.head else None
    difference, missing = None, None
    try:
        before = head.id if head else BASE
        with app.comparison.moment(row, before) as old, app.comparison.moment(row, None) as now:
            difference = app.comparison.difference(old, now)
    except (WaypointError, OSError) as error:
        missing = str(error)
    return api.StatusResult(
        session=session,
        head=head,
        head_called=point_label(head, row.name) if head else None,
        missing=missing,
        summary=summarize(difference) if difference else None,
        sections=describe_difference(difference) if difference else (),
        difference=difference,
    )


def changed(app: App, _: Connection, request: api.Changed) -> api.ChangedResult:
    row = app.registry.find(request.session)
    return api.ChangedResult(changed=app.comparison.has_changed(row, request.besides))


def diff(app: App, _: Connection, request: api.Diff) -> api.DiffResult:
    row = app.registry.find_for(request.session, request.a, request.b)
    if unknown := [name for name in request.only if name not in SECTIONS]:
        raise UsageError(f"there is no section {unknown[0]!r}", hint=f"there are: {', '.join(SECTIONS)}")
    compare = app.comparison
    with compare.moment(row, request.a or "@") as old, compare.moment(row, request.b) as new:
        difference = compare.difference(old, new)
        if request.paths:
            difference = select_paths(difference, request.paths, new.facts.shell.cwd)
        sections = describe_difference(difference, request.only)
        patch = None
        if request.patch:
            from waypoint.history.diff import patch as make_patch

            redactor = Redactor.for_variables({**old.facts.shell.values, **new.facts.shell.values})
            pieces = make_patch(old.view, new.view, difference.files)
            patch = redactor.redact_patch("".join(piece.text for piece in pieces))
        return api.DiffResult(
            from_=old.point or old.label,
            to=new.point or new.label,
            different=bool(sections),
            summary=summarize(difference),
            sections=sections,
            difference=difference,
            patch=patch.text if patch else UNSET,
            patch_redacted=patch.count if patch else UNSET,
        )


def preview(app: App, _: Connection, request: api.Preview) -> api.PreviewResult:
    row = app.registry.find_for(request.session, request.ref)
    plan, words = app.plans.make(row, request.ref, files_only=request.files_only)
    return api.PreviewResult(plan=plan, words=words)


def ops(app: App, _: Connection, request: api.Ops) -> api.Operations:
    row = app.registry.find(request.session)
    labels = {point.id: point_label(point, row.name) for point in app.store.points.all()}
    return api.Operations(
        operations=tuple(
            api.Operation(
                id=op.id,
                at=iso(op.at),
                verb=op.verb,
                target=op.target,
                to=labels.get(op.target or ""),
                before=op.before,
                back_to=labels.get(op.before or ""),
                undone=op.undone,
            )
            for op in app.store.operations.all(row.id)
        )
    )


def bisect(app: App, connection: Connection, request: api.Bisect) -> api.Bisection:
    row = app.registry.find_for(request.session, request.good, request.bad)
    good, bad = app.registry.point(row, request.good), app.registry.point(row, request.bad)

    def trial(step: Step) -> api.Trial:
        return api.Trial(
            checkpoint=step.point.id,
            label=point_label(step.point, row.name),
            passed=step.passed,
            state=step.state,
        )

    def report(step: Step) -> None:
        tried = trial(step)
        connection.event(
            {
                "tried": {
                    "checkpoint": tried.checkpoint,
                    "label": tried.label,
                    "passed": tried.passed,
                    "state": tried.state,
                    "intent": step.point.intent,
                    "intent_from": step.point.intent_from,
                }
            }
        )

    timeout = request.timeout or DEFAULT_TIMEOUT
    culprit = app.bisect.search(row, good, bad, request.command, timeout=timeout, on_step=report)
    compare = app.comparison
    with compare.moment(row, culprit.last_good.id) as old, compare.moment(row, culprit.point.id) as new:
        difference = compare.difference(old, new)
    return api.Bisection(
        culprit=culprit.point,
        unclear=culprit.unclear,
        parent=_parent_label(app, culprit.point),
        last_good=culprit.last_good,
        card=app.cards.card(culprit.point),
        summary=summarize(difference),
        sections=describe_difference(difference),
        difference=difference,
        steps=tuple(map(trial, culprit.steps)),
    )


def compare(app: App, _: Connection, request: api.Compare) -> api.CompareResult:
    candidates = app.candidates.find(
        request.candidates, request.session, with_point=request.verify is not None, actor=request.actor
    )
    if request.verify is not None:
        app.candidates.verify(candidates, request.verify, timeout=request.timeout or DEFAULT_TIMEOUT)
    base = (
        find_point(app, request.session, request.base)
        if request.base
        else app.candidates.common_base(candidates)
    )
    assessments, apart = app.candidates.assess(candidates, base)
    columns = [Column(one.difference, one.outcomes, one.effects) for one in assessments]
    return api.CompareResult(
        base=as_stored(app, base) if base else None,
        candidates=tuple(_compared(app, assessment) for assessment in assessments),
        rows=side_by_side(columns, apart),
    )


def _compared(app: App, assessment: Assessment) -> api.Compared:
    candidate = assessment.candidate
    return api.Compared(
        name=candidate.name,
        session=candidate.row.name,
        point=as_stored(app, candidate.point) if candidate.point else None,
        live=candidate.live,
        summary=summarize(assessment.difference),
        files=assessment.files,
        sections=(
            *describe_difference(assessment.difference),
            *describe_outcomes(assessment.outcomes),
            *describe_effects(assessment.effects),
        ),
        unique_bytes=assessment.unique_bytes,
        commands=assessment.commands,
        commands_ms=assessment.commands_ms,
        effects=len(assessment.effects),
        outcomes=assessment.outcomes,
    )
