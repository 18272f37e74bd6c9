"""Plans: what a restore would do, before it does it.

A plan is computed from the live state against the target. It has an id, and a restore by that id is refused
when the session has changed since: the user agreed to what the plan showed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Mapping

import msgspec

from waypoint.agent import tasks
from waypoint.api.difference import Change, Difference, PlanWords, ProcessFact, RestorePlan, Way
from waypoint.api.hints import Do, Hint
from waypoint.core.comparison import Comparison, fresh_shell
from waypoint.core.contacts import Contacts
from waypoint.core.gate import Gate
from waypoint.core.kept import KeptFiles
from waypoint.core.registry import Registry
from waypoint.errors import GroundMoved, NotFound
from waypoint.history.facts import Facts
from waypoint.history.redaction import Redactor
from waypoint.history.view import PointView
from waypoint.model import Checkpoint, from_plain
from waypoint.store.sessions import SessionRow
from waypoint.text.effects import describe_contacts
from waypoint.text.plan import describe_plan


class Plans:
    """The plans of one home."""

    def __init__(
        self, registry: Registry, comparison: Comparison, kept: KeptFiles, contacts: Contacts, gate: Gate
    ) -> None:
        self._registry, self._store, self._comparison = registry, registry.store, comparison
        self._kept, self._contacts, self._gate = kept, contacts, gate

    def make(self, row: SessionRow, ref: str, *, files_only: bool = False) -> tuple[RestorePlan, PlanWords]:
        """A plan for a restore to a point, stored so that the restore can refer to it."""
        plan, words, digest = self._compute(row, ref, files_only=files_only)
        self._store.operations.add_plan(plan.id, row.id, plan.target.id, digest)
        return plan, words

    def check(self, row: SessionRow, plan_id: str, *, files_only: bool = False) -> str:
        """The target of a plan, if the session has not changed since it was made."""
        stored = self._store.operations.plan(plan_id)
        if stored is None or stored[0] != row.id:
            raise NotFound(
                f"session {row.name!r} has no plan {plan_id!r}",
                hint=Hint(Do("preview", "ref", session=row.name), " makes one"),
            )
        _, target, digest = stored
        if self._compute(row, target, files_only=files_only)[2] != digest:
            raise GroundMoved(
                "the session has changed since the plan was made",
                hint=Hint("look again: ", Do("preview", "ref", session=row.name), " makes a new plan"),
            )
        return target

    def _compute(self, row: SessionRow, ref: str, *, files_only: bool) -> tuple[RestorePlan, PlanWords, str]:
        """Also a digest of what the plan was computed from."""
        target = self._registry.point(row, ref)
        then = self._comparison.past(target)
        if files_only or target.files_only:
            then = dataclasses.replace(then, facts=Facts(shell=fresh_shell()))
        planned_tasks = self._store.sessions.tasks(row.id)
        with self._comparison.moment(row, None) as now:
            lost = self._comparison.difference(then, now)
            since = self._comparison.since_last_point(row, now)
            digest = _digest(row, lost, now.view, planned_tasks)
        not_undone, unseen = self._gate.outside(row, target)
        # An effect that the plan does not show is not one that the user agreed to leave behind.
        digest = hashlib.sha256("\0".join((digest, *not_undone)).encode()).hexdigest()
        contacts = self._contacts.since(row, target)
        base_changes = () if files_only else self._kept.describe(target, row.options)
        # Where nothing has left the session, commands that could not be looked into did nothing outside.
        watched = row.options.net != "host" and not self._contacts.not_watched(row.options.net)
        if watched and not contacts and not row.options.binds:
            unseen = []
        plan = RestorePlan(
            id=secrets.token_hex(4),
            session=row.name,
            target=target,
            head=self._registry.head(row),
            lost=lost,
            uncheckpointed=since,
            tasks=tasks.differences(
                tasks.load(planned_tasks), tasks.load(self._store.points.tasks(target.id))
            ),
            contacts=tuple(contacts),
            not_undone=tuple(filter(None, (*not_undone, describe_contacts(contacts, amounts=True)))),
            unseen=tuple(unseen),
            not_covered=tuple(dict.fromkeys((*self._comparison.coverage(row), *target.coverage))),
            base_changes=base_changes,
        )
        state = self._registry.describe(row).state
        label = f"c{self._store.points.next_number(row.id)}"
        words = describe_plan(
            plan, _redacted(then.facts), state=state, way=self._way(row, target), next_label=label
        )
        return plan, words, digest

    def _way(self, row: SessionRow, target: Checkpoint) -> Way:
        """How a point lies to the one a session stands on."""
        parents = self._store.points.parents()
        if target.id == row.head or target.id in _line(parents, row.head):
            return "back"
        return "on" if row.head in _line(parents, target.id) else "across"


def _line(parents: Mapping[str, str | None], start: str | None) -> set[str]:
    """A point and all that led to it."""
    line: set[str] = set()
    while start and start not in line:
        line.add(start)
        start = parents.get(start)
    return line


def _redacted(facts: Facts) -> Facts:
    clean, _ = Redactor.for_variables(facts.shell.exported).redact_json(msgspec.to_builtins(facts.processes))
    return msgspec.structs.replace(facts, processes=from_plain(clean, tuple[ProcessFact, ...]))


def _digest(row: SessionRow, lost: Difference, now: PointView, planned_tasks: bytes) -> str:
    """What a plan was computed from, in short: where the session stands, and what would be lost. A file that
    was written to since is not the one that the user agreed to lose."""

    def written_at(change: Change) -> str:
        if change.kind == "deleted":
            return ""
        try:
            return str(now.lstat(change.real_path).st_mtime_ns)
        except OSError:
            return ""

    words = [
        row.head or "",
        row.box or "",
        *(f"{change.kind} {change.path} {written_at(change)}" for change in lost.files),
        *(f"{p.pid} {p.command}" for p in (*lost.live.started, *lost.live.ended)),
        *(f"{one.before.pid} {one.after.pid}" for one in lost.live.restarted),
        *(f"{p.pid} {p.stopped}" for p in (*lost.live.stopped, *lost.live.continued)),
        *(f"{v.name}={v.after}" for v in lost.live.variables),
        *(f"{s.kind} {s.name}={s.after}" for s in lost.live.settings),
        str(lost.live.cwd),
        planned_tasks.decode(),
    ]
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()
