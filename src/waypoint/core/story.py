"""What can be told about points: cards, differences, plans.

The snapshot is sacred, the story is best effort: nothing here may fail, delay or damage a checkpoint. A card
is computed in the background after its checkpoint exists; what could not be found out is in its gaps, and it
can be computed again at any time, because everything it is derived from is in the checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets as randomness
import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

from waypoint.agent import tasks
from waypoint.api.difference import (
    Card,
    Change,
    Changes,
    Contact,
    Difference,
    LiveDifference,
    PlanWords,
    ProcessFact,
    RestorePlan,
)
from waypoint.api.findings import Analysis, RepositoryChange
from waypoint.box.plan import coverage
from waypoint.box.volume import hidden_paths
from waypoint.core.contacts import Outbound
from waypoint.core.observe import observe
from waypoint.core.sessions import Sessions, new_id
from waypoint.errors import GroundMoved, NotFound, SessionDead, UsageError, WaypointError
from waypoint.history import facts as live_facts
from waypoint.history.analyzers import analyze
from waypoint.history.changes import compare_views, is_noise
from waypoint.history.facts import Facts, ShellFact
from waypoint.history.redaction import MASK, Redactor
from waypoint.history.view import PointView
from waypoint.kernel import processes
from waypoint.kernel.pool.deltas import differences
from waypoint.model import Checkpoint, Effect
from waypoint.store.sessions import SessionRow
from waypoint.text.cards import write_card
from waypoint.text.effects import describe_contacts, known_effects
from waypoint.text.plan import describe_plan

log = logging.getLogger("waypoint")

Outside = Callable[[SessionRow, Checkpoint], tuple[Sequence[str], Sequence[str]]]

BASE = "base"
NOW = "now"


class Moment:
    """A point as it can be compared: a checkpoint, the present, or the base."""

    def __init__(
        self,
        view: PointView,
        facts: Facts,
        label: str,
        point: Checkpoint | None,
        present_of: SessionRow | None = None,
    ) -> None:
        self.view, self.facts, self.label, self.point = view, facts, label, point
        self.present_of = present_of
        """Whose present it is, if it is one."""


class Story:
    """The stories of one home."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._card_written = threading.Condition()
        self.outbound = Outbound(sessions)
        self._ledger = sessions.store.ledger
        self.outside: Outside = lambda _row, _since: ((), ())
        """What was done outside since a point, and what could not be looked into; whoever keeps the gate
        puts it here."""
        for checkpoint_id in sessions.store.points.without_card():
            self.write_later(checkpoint_id)

    # ---- moments -----------------------------------------------------------------------------

    def _hidden(self, row: SessionRow) -> list[str]:
        return hidden_paths(row.options, self._sessions.base_of(row.options), self._sessions.home)

    @contextlib.contextmanager
    def moment(self, row: SessionRow, ref: str | None) -> Iterator[Moment]:
        """A ref, `now` (or None) or `base`, seen from a session."""
        base = self._sessions.base_of(row.options)
        if ref == BASE:
            # What every session starts with is nothing that happened in it.
            start = row.began or self._fresh_shell()
            yield Moment(PointView(None, base, hide=self._hidden(row)), Facts(shell=start), "the base", None)
        elif ref in (None, NOW):
            with self._present(row) as present:
                yield present
        else:
            yield self._past(self._sessions.point(row, ref))

    def _past(self, point: Checkpoint) -> Moment:
        row = self._sessions.find(point.session)
        volume = self._sessions.home.checkpoints / point.id / "files"
        view = PointView(volume, self._sessions.base_of(row.options), hide=self._hidden(row))
        return Moment(view, self._sessions.facts(point), point.name or point.label, point)

    @contextlib.contextmanager
    def _present(self, row: SessionRow) -> Iterator[Moment]:
        """A throwaway read-only snapshot of the volume, and a look at what runs. Where nothing runs any more
        the files may be there still; a parked session is where it was parked."""
        base, volume = self._sessions.base_of(row.options), self._sessions.home.staging / new_id()
        try:
            live = self._sessions.live(row)
        except SessionDead:
            left = self._sessions.home.sessions / (row.box or "")
            if not row.box or not left.is_dir():
                head = self._sessions.store.points.find(row.head) if row.head else None
                if head is None:
                    raise
                yield self._past(head)
                return
            self._sessions.pool.snapshot(left, volume, readonly=True)
            # Of its shell nobody knows more than its last point does.
            head = self._sessions.store.points.find(row.head) if row.head else None
            seen = Facts(shell=self._sessions.facts(head).shell if head else row.began or self._fresh_shell())
        else:
            live.terminal.wait_prompt()
            with live.state:
                self._sessions.pool.snapshot(live.box.volume, volume, readonly=True)
                members = [one for one in processes.below(live.box.pid) if one.comm != "waypoint-anchor"]
                seen = observe(live.box, live.terminal, members, own_network=row.options.net != "host")
        try:
            yield Moment(PointView(volume, base, hide=self._hidden(row)), seen, "now", None, row)
        finally:
            self._sessions.pool.delete(volume)

    def _fresh_shell(self) -> ShellFact:
        return ShellFact(cwd="/root", exported=self._sessions.environment())

    def _coverage(self, row: SessionRow) -> tuple[str, ...]:
        held = coverage(row.options, self._sessions.base_of(row.options), self._sessions.home)
        return (*held, *self.outbound.not_watched(row.options.net))

    # ---- differences -------------------------------------------------------------------------

    def changes(self, old: Moment, new: Moment) -> Changes:
        """What changed in the files, exactly; for eyes there is `difference`."""
        if new.view.volume is None:
            raise UsageError("the base is where everything starts", hint="give it as the first of the two")
        if old.view.volume is None:
            return compare_views(None, new.view)
        return compare_views(old.view, new.view, differences(old.view.volume, new.view.volume, skip=is_noise))

    def difference(self, old: Moment, new: Moment) -> Difference:
        """Everything that changed, redacted. A part that fails is a gap, not a failure."""
        gaps: list[str] = []
        redactor = Redactor.for_variables({**old.facts.shell.exported, **new.facts.shell.exported})
        files, analysis = Changes(), Analysis()
        try:
            files = self.changes(old, new)
        except UsageError:
            raise
        except (OSError, WaypointError, ValueError) as error:
            gaps.append(f"files: {error}")
        else:
            touched = [path for change in files for path in {change.real_path, change.real_old_path}]
            # Folders that went or came as a whole: what was in them is not listed file by file.
            moved = [one for one in files if one.entry == "folder" and (one.files or one.old_path)]
            folders = [path for change in moved for path in {change.real_path, change.real_old_path}]
            analysis = analyze(old.view, new.view, touched, folders=folders)
            gaps += [f"{gap.analyzer}: {gap.reason}" for gap in analysis.gaps]
        live = live_facts.compare_facts(old.facts, new.facts)
        plain, hidden_live = redactor.redact_json(msgspec.to_builtins(live))
        plain_analysis, hidden_analysis = redactor.redact_json(msgspec.to_builtins(analysis))
        talk, hidden_talk = redactor.redact_json(msgspec.to_builtins(self._contacts(old, new)))
        return Difference(
            files=files,
            analysis=msgspec.convert(plain_analysis, Analysis),
            live=msgspec.convert(plain, LiveDifference),
            gaps=tuple(gaps),
            redacted=hidden_live + hidden_analysis + hidden_talk,
            contacts=msgspec.convert(talk, tuple[Contact, ...]),
        )

    def _contacts(self, old: Moment, new: Moment) -> list[Contact]:
        """What left on the way from the one to the other; nothing where no way leads."""
        row = new.present_of
        at = row.head if row else new.point.id if new.point else None
        parents, steps = self._sessions.store.points.parents(), []
        while at and not (old.point and at == old.point.id):
            steps.append(at)
            at = parents.get(at)
        if old.point and not at:
            return []
        return self.outbound.between(steps, present_of=row.id if row else None)

    def diff(self, row: SessionRow, old: str | None, new: str | None) -> tuple[Moment, Moment, Difference]:
        """Between two refs; the second is the present when not given."""
        with self.moment(row, old or "@") as before, self.moment(row, new) as after:
            return before, after, self.difference(before, after)

    # ---- cards -------------------------------------------------------------------------------

    def write_later(self, checkpoint_id: str) -> None:
        self._sessions.when_calm(lambda: self.write(checkpoint_id))

    def write(self, checkpoint_id: str) -> None:
        """Computes a card, be it there already, and keeps it."""
        point = self._sessions.store.points.find(checkpoint_id)
        if point is None:
            return
        card = self.compute(point)
        self._sessions.store.points.set_card(point.id, msgspec.json.encode(card), card.summary)
        if (card.intent, card.intent_from) != (point.intent, point.intent_from):
            self._sessions.store.points.set_intent(point.id, card.intent, card.intent_from)
        with self._card_written:
            self._card_written.notify_all()

    def compute(self, point: Checkpoint) -> Card:
        """The card of a checkpoint, from the checkpoint itself and its parent (or the base)."""
        row = self._sessions.find(point.session)
        covered = self._coverage(row)
        parent = self._sessions.store.points.find(point.parent) if point.parent else None
        try:
            with self.moment(row, BASE) as base:
                found = self.difference(self._past(parent) if parent else base, self._past(point))
        except Exception as error:
            log.exception("the card of %s", point.id)
            found = Difference(
                files=Changes(),
                analysis=Analysis(),
                live=LiveDifference(),
                gaps=(f"all of it: {error}",),
            )
        intent, source = point.intent, point.intent_from
        if not intent:
            commits = [
                one for one in found.analysis.findings if isinstance(one, RepositoryChange) and one.commits
            ]
            intent, source = (commits[0].commits[0].subject, "git") if commits else ("", "none")
        whole = tuple(dict.fromkeys((*covered, *point.coverage)))
        before = tasks.load(self._sessions.store.points.tasks(point.parent)) if point.parent else ()
        done = tasks.differences(before, tasks.load(self._sessions.store.points.tasks(point.id)))
        own = point.kind in ("safety", "park")
        card = write_card(
            *(intent, source, found, whole), own_words=own, tasks=done, outside=self.effects(point, parent)
        )
        # What was taken out of the intent was taken out before it was kept.
        return msgspec.structs.replace(card, redacted=card.redacted + intent.count(MASK))

    def effects(self, point: Checkpoint, parent: Checkpoint | None) -> list[Effect]:
        """What was done outside between a point and the one before it."""
        return known_effects(self._ledger.between(parent.position if parent else None, point.position))

    def card(self, point: Checkpoint, *, wait: float = 10.0) -> Card | None:
        """The card of a point, if it is there or comes within `wait` seconds."""
        with self._card_written:
            self._card_written.wait_for(lambda: self._sessions.store.points.card(point.id) is not None, wait)
        text = self._sessions.store.points.card(point.id)
        return msgspec.json.decode(text, type=Card) if text else None

    # ---- automatic points --------------------------------------------------------------------

    def auto_point(self, row: SessionRow, command: str | None) -> Checkpoint | None:
        """A point after a command, if the session wants that and anything changed since the last one."""
        row = self._sessions.find(row.id)
        if not row.auto:
            return None
        try:
            with self.moment(row, row.head or BASE) as before, self.moment(row, None) as now:
                if self._same(before, now):
                    return None
            return self._sessions.checkpoint(row, command or "", kind="auto", actor="automatic")
        except WaypointError as error:
            log.warning("no automatic point of %s: %s", row.name, error)
            return None

    def has_changed(self, row: SessionRow, besides: Sequence[str] = ()) -> bool:
        """Whether anything is different from the last point. `besides`: files at or below these paths do not
        count, and of what lives only ports do (whoever writes there also runs there, and starts things)."""
        with self.moment(row, row.head or BASE) as before, self.moment(row, None) as now:
            if not besides:
                return not self._same(before, now)
            live = live_facts.compare_facts(before.facts, now.facts)
            return bool(live.opened or live.closed) or any(
                not any(change.path == path or change.path.startswith(f"{path}/") for path in besides)
                for change in self.changes(before, now)
            )

    def _same(self, before: Moment, now: Moment) -> bool:
        return live_facts.compare_facts(before.facts, now.facts).empty and not self.changes(before, now)

    # ---- plans -------------------------------------------------------------------------------

    def plan(self, row: SessionRow, ref: str, *, files_only: bool = False) -> tuple[RestorePlan, PlanWords]:
        """What a restore would do, computed from the live state against the target."""
        plan, words, ground = self._plan(row, ref, files_only=files_only)
        self._sessions.store.operations.add_plan(plan.id, row.id, plan.target.id, ground)
        return plan, words

    def _plan(self, row: SessionRow, ref: str, *, files_only: bool) -> tuple[RestorePlan, PlanWords, str]:
        target = self._sessions.point(row, ref)
        then = self._past(target)
        if files_only or target.files_only:
            then.facts = Facts(shell=self._fresh_shell())
        head = self._sessions.store.points.find(row.head) if row.head else None
        with self.moment(row, None) as now:
            lost = self.difference(then, now)
            since = self.difference(self._past(head), now) if head else self._since_base(row, now)
            planned = self._sessions.store.sessions.tasks(row.id)
            ground = _ground(row, lost, now.view, planned)
        not_undone, unseen = self.outside(row, target)
        # An effect that somebody has not seen in the plan is nothing that they agreed to leave.
        ground = hashlib.sha256("\0".join((ground, *not_undone)).encode()).hexdigest()
        contacts = self.outbound.since(row, target)
        # Where nothing has left the session, what could not be looked into has done nothing outside.
        watched = row.options.net != "host" and not self.outbound.not_watched(row.options.net)
        if watched and not contacts and not row.options.binds:
            unseen = ()
        plan = RestorePlan(
            id=randomness.token_hex(4),
            session=row.name,
            target=target,
            head=head,
            lost=lost,
            uncheckpointed=since,
            tasks=tasks.differences(
                tasks.load(planned), tasks.load(self._sessions.store.points.tasks(target.id))
            ),
            contacts=tuple(contacts),
            not_undone=tuple(filter(None, (*not_undone, describe_contacts(contacts, amounts=True)))),
            unseen=tuple(unseen),
            not_covered=tuple(dict.fromkeys((*self._coverage(row), *target.coverage))),
        )
        state = self._sessions.describe(row).state
        label = f"c{self._sessions.store.points.next_number(row.id)}"
        return plan, describe_plan(plan, self._redacted(then.facts), state=state, next_label=label), ground

    def _since_base(self, row: SessionRow, now: Moment) -> Difference:
        with self.moment(row, BASE) as base:
            return self.difference(base, now)

    def _redacted(self, facts: Facts) -> Facts:
        clean, _ = Redactor.for_variables(facts.shell.exported).redact_json(
            msgspec.to_builtins(facts.processes)
        )
        return msgspec.structs.replace(facts, processes=msgspec.convert(clean, tuple[ProcessFact, ...]))

    def check_plan(self, row: SessionRow, plan_id: str, *, files_only: bool = False) -> str:
        """The target of a plan whose ground has not moved."""
        kept = self._sessions.store.operations.plan(plan_id)
        if kept is None or kept[0] != row.id:
            raise NotFound(
                f"session {row.name!r} has no plan {plan_id!r}", hint="`waypoint preview REF` makes one"
            )
        _, target, promised = kept
        if self._plan(row, target, files_only=files_only)[2] != promised:
            raise GroundMoved(
                "the ground has moved since that plan was made",
                hint="look again: `waypoint preview` makes a new plan",
            )
        return target


def _ground(row: SessionRow, lost: Difference, now: PointView, planned: bytes) -> str:
    """What a plan is made on, in short: where the session stands, and what would go. A file that somebody has
    gone on writing is not the one that was agreed to lose."""

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
        *(f"{v.name}={v.after}" for v in lost.live.variables),
        str(lost.live.cwd),
        planned.decode(),
    ]
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()


Progress = Callable[[str], None]


def line_between(points: Sequence[Checkpoint], good: Checkpoint, bad: Checkpoint) -> list[Checkpoint]:
    """The points after `good` up to and including `bad`, oldest first, along the parents of `bad`."""
    by_id = {point.id: point for point in points}
    line: list[Checkpoint] = []
    point: Checkpoint | None = bad
    while point and point.id != good.id:
        line.append(point)
        point = by_id.get(point.parent or "")
    if point is None:
        raise UsageError(
            f"{good.name or good.label} is not in the history of {bad.name or bad.label}",
            hint="bisect walks from BAD back along its parents to GOOD",
        )
    return line[::-1]
