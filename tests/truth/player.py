"""Plays a story in a real session, looks at each point, and hands every answer to the judge."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.truth.base import has_program
from tests.truth.judge.ledger import Ledger
from tests.truth.judge.whole import judge_card, judge_diff, judge_plan, judge_status
from tests.truth.oracle.live import ShellFacts
from tests.truth.oracle.look import Look, Oracle
from tests.truth.oracle.work import Outside, Work
from tests.truth.story import Act, Step, Story
from tests.waiting import until

import waypoint

_ALL_PAIRS = 7
"""Up to so many points, each is compared with each other; beyond it the neighbours and some more."""
_MORE_PAIRS = 30


class StoryFailed(Exception):
    """A command of a story has failed: nothing can be judged."""


@dataclass
class Told:
    """One answer, with what was there before and after: what the judge was given."""

    what: str
    """`card`, `diff`, `plan` or `status`."""
    old: Look
    new: Look
    answer: dict[str, Any]
    expected: Mapping[str, str] = field(default_factory=dict)
    """Of a plan: the session's state, how the target lies to the point it stands on, and the next label."""


@dataclass
class Played:
    """A story that was played, and what came of it."""

    story: Story
    ledger: Ledger = field(default_factory=Ledger)
    told: list[Told] = field(default_factory=list)
    log: str = ""


class Player:
    """Plays stories in forks of one point."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._oracle = Oracle()
        self._number = itertools.count(1)
        first = waypoint.session("truth", base=str(base), net="none")
        self._seed = first.checkpoint("nothing was done yet")
        self._seed_look = self._look(first)

    def can_play(self, story: Story) -> bool:
        return all(has_program(self._base, name) for name in story.needs)

    def play(self, story: Story) -> Played:
        """Everything that Waypoint says of the story, judged."""
        played = Played(story)
        _Performance(self, story, played).run()
        return played

    def fork(self) -> waypoint.Session:
        return self._seed.fork(name=f"story{next(self._number)}")[0]

    def _look(self, session: waypoint.Session, shell: ShellFacts | None = None) -> Look:
        def run(command: str) -> str:
            return session.run(command).check().output

        pid = session.info.pid
        assert pid
        return self._oracle.look(pid, run if shell is None else shell)


class _Performance:
    """One story under way."""

    def __init__(self, player: Player, story: Story, played: Played) -> None:
        self._player, self._story, self._played = player, story, played
        self._session = player.fork()
        self._sessions = [self._session]
        self._looks: dict[str, Look] = {player._seed.id: player._seed_look}
        self._points: list[waypoint.Checkpoint] = [player._seed]
        self._names: dict[str, waypoint.Checkpoint] = {"start": player._seed}
        self._effects = itertools.count(1)
        self._asleep: ShellFacts | None = None
        """What is known of the session's shell while a shell inside it waits for commands."""
        self._work = self._left = Work()
        """What stands written now, and what stood before the last restore."""

    def run(self) -> None:
        try:
            for number, step in enumerate(self._story.steps):
                self._play(number, step)
            self._judge_cards()
            self._judge_diffs()
            self._judge_plans()
        finally:
            for session in reversed(self._sessions):
                session.remove()

    def _play(self, number: int, step: Step) -> None:
        if step.fork:
            before = self._looks[self._names[step.fork].id].work
            self._work = dataclasses.replace(before, ever=before.done)
            self._session = self._names[step.fork].fork(name=f"{self._session.name}-{number}")[0]
            self._sessions.append(self._session)
        if step.restore:
            target = self._names[step.restore]
            self._go_back(lambda: self._session.restore(target), self._looks[target.id].work)
        if step.undo:
            self._go_back(self._session.undo, self._left)
        if step.command:
            began = time.strftime("%H:%M")
            result = self._session.run(step.command, timeout=60, on_approval=lambda _: True)
            if not result.ok and not step.fails:
                raise StoryFailed(f"{self._story.name}, step {number}: {step.command}\n{result.output}")
            if step.outside:
                self._done_outside(step.command, step.outside, began, claimed=False)
        if step.types:
            self._type(step)
        for act in step.acts:
            self._act(act)
        self._record(number, step)

    def _type(self, step: Step) -> None:
        """Types lines, and waits until the last one has run. What the session's own shell knows stays."""
        shell = self._looks[self._points[-1].id].shell
        if step.restore:
            shell = self._looks[self._names[step.restore].id].shell
        typed = Path(f"/proc/{self._session.info.pid}/root/tmp/typed")
        self._session.type(step.types)
        until(typed.exists, 30)
        typed.unlink()
        self._asleep = shell if step.nested else None

    def _act(self, act: Act) -> None:
        """Writes something down, in Waypoint and here."""
        tasks, words = self._session.tasks, act.words
        match act.verb:
            case "plan":
                tasks.add(words)
                self._work = dataclasses.replace(self._work, tasks=(*self._work.tasks, (words, "pending")))
            case "start":
                tasks.start(words)
                self._set_task(words, "in_progress")
            case "done":
                tasks.done(words)
                self._set_task(words, "completed")
            case "fail":
                tasks.fail(words)
                self._set_task(words, "failed")
            case "skip":
                tasks.skip(words)
                self._set_task(words, "skipped")
            case "claim":
                began = time.strftime("%H:%M")
                self._session.effect(words)
                self._done_outside(words, "irreversible", began, claimed=True)
            case "say":
                self._session.record("assistant", words)
            case "call":
                self._session.record("tool_call", {"command": words}, name="shell", call=words)
            case "result":
                self._session.record("tool_result", "done", name="shell", call=words)

    def _set_task(self, title: str, state: str) -> None:
        tasks = tuple((one, state if one == title else was) for one, was in self._work.tasks)
        self._work = dataclasses.replace(self._work, tasks=tasks)

    def _done_outside(self, words: str, effect_class: str, began: str, *, claimed: bool) -> None:
        clock = frozenset((began, time.strftime("%H:%M")))
        effect, work = Outside(words, effect_class, clock, claimed, next(self._effects)), self._work
        self._work = dataclasses.replace(work, done=(*work.done, effect), ever=(*work.ever, effect))

    def _look(self) -> Look:
        return dataclasses.replace(self._player._look(self._session, self._asleep), work=self._work)

    def _go_back(self, go: Any, to: Work) -> None:
        look = self._look()
        known = {point.id for point in self._session.checkpoints()}
        go()
        for point in self._session.checkpoints():
            if point.id not in known:
                self._keep(point, look)
        self._left = self._work
        # What was done outside stays done, and a plan has to say so.
        self._work = dataclasses.replace(to, ever=self._work.ever)

    def _keep(self, point: waypoint.Checkpoint, look: Look) -> None:
        self._looks[point.id] = look
        self._points.append(point)

    def _record(self, number: int, step: Step) -> None:
        look = self._look()
        head = self._session.info.head
        assert head
        self._judge("status", "status", self._looks[head], look, self._session.status().data)
        intent = step.command.partition("\n")[0] if step.intent is None else step.intent
        point = self._session.checkpoint(intent or f"step {number}")
        self._keep(point, look)
        if step.name:
            self._names[step.name] = point

    # ---- what is said ------------------------------------------------------------------------

    def _judge(self, what: str, where: str, old: Look, new: Look, answer: Any, **expected: str) -> None:
        ledger = self._played.ledger
        ledger.where = f"{self._story.name} · {where}"
        told = Told(what, old, new, answer, expected)
        judge_told(ledger, told)
        self._played.told.append(told)

    def _judge_cards(self) -> None:
        for point in self._points[1:]:
            card = point.card()
            assert point.info.parent
            where = f"card of {point.info.session}:{point.info.label}"
            self._judge("card", where, self._looks[point.info.parent], self._looks[point.id], card.data)

    def _judge_diffs(self) -> None:
        pairs = list(itertools.permutations(self._points, 2))
        if len(self._points) > _ALL_PAIRS:
            chosen = random.Random(self._story.name)
            near = list(itertools.pairwise(self._points))
            pairs = [*near, *((b, a) for a, b in near), *chosen.sample(pairs, _MORE_PAIRS)]
        for old, new in pairs:
            where = f"diff {old.info.session}:{old.info.label} {new.info.session}:{new.info.label}"
            answer = old.diff(new).data
            self._judge("diff", where, self._looks[old.id], self._looks[new.id], answer)

    def _judge_plans(self) -> None:
        now = self._look()
        for point in self._points:
            where = f"preview of {point.info.session}:{point.info.label}"
            answer = self._session.preview(point).data
            own = [int(one.info.label[1:]) for one in self._session.checkpoints()]
            expected = {"state": "live", "way": self._way(point.id), "safety": f"c{max(own, default=0) + 1}"}
            self._judge("plan", where, self._looks[point.id], now, answer, **expected)

    def _way(self, target: str) -> str:
        """How a point lies to the one that the session stands on."""
        parents = {point.id: point.info.parent for point in self._points}

        def is_above(one: str | None, other: str | None) -> bool:
            while other and other != one:
                other = parents.get(other)
            return other == one

        head = self._session.info.head
        if is_above(target, head):
            return "back"
        return "on" if is_above(head, target) else "across"


def judge_told(ledger: Ledger, told: Told) -> None:
    """One answer against what was there."""
    if told.what == "plan":
        judge_plan(ledger, told.old, told.new, told.answer, told.expected)
        return
    judges = {"card": judge_card, "diff": judge_diff, "status": judge_status}
    judges[told.what](ledger, told.old, told.new, told.answer)
