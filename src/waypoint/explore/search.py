"""A search over live forks, for loops of one's own: `ask` for trials, do them, `tell` what came of them.

    search = Search(point, ["make fix-a", "make fix-b"], "pytest -q", name="repair")
    while trials := search.ask(2):
        for trial in trials:
            search.tell(trial, search.attempt(trial))
    print(search.result())

Everything that was asked and told is in the journal before the call returns. A search of the same name goes
on where it was: what was asked and not told of is asked again, first.
"""

from __future__ import annotations

import datetime as dt
import re
import secrets
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

from waypoint import errors
from waypoint.api import requests
from waypoint.client.checkpoint import Checkpoint
from waypoint.client.client import Client
from waypoint.client.session import Session
from waypoint.explore import journal as journals
from waypoint.explore import strategies
from waypoint.explore.budget import Budget
from waypoint.explore.candidates import Candidate, Place, Propose, Work, candidates_of, proposed_by
from waypoint.explore.forks import Fork, Forks, find_point
from waypoint.explore.journal import Journal
from waypoint.explore.result import Result
from waypoint.explore.scores import Command, Evaluate, Pairwise, score_of
from waypoint.explore.strategies import Expand, Play, Strategy
from waypoint.explore.tree import (
    ROOT,
    Asked,
    Begun,
    Ended,
    Given,
    Node,
    Opened,
    Outcome,
    Played,
    Proposed,
    Told,
    Tree,
)
from waypoint.home import locate

DEFAULT_TIMEOUT = 600.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}")
RUNNERS_UP = 2
"""How many nodes are kept beside the winner."""


class Trial(NamedTuple):
    """Something to be tried: a candidate, and the node from whose point it starts."""

    id: int
    node: Node
    candidate: Candidate
    parent: Node


class Match(NamedTuple):
    """Two nodes to be compared."""

    left: Node
    right: Node

    @property
    def id(self) -> str:
        return f"{self.left.id}-{self.right.id}"


class Search:
    """A search: its tree, its journal, its forks. Only one process has it at a time.

    `point`: where it starts; a session means a point of it as it is now. `propose`, `evaluate`: see
    candidates.py and scores.py. `strategy`: a name, or an object of strategies.py; None: the caller chooses
    (`trial`). `goal`: a score at which the search is over. `timeout`: seconds that a candidate, and then its
    evaluation, may take. `name`: of the search, by which it is gone on with; its sessions are NAME-1, NAME-2,
    …. `journal`: the file; without it one in the home. `merge`: whether duplicates are found and not gone on
    from.
    """

    def __init__(
        self,
        point: Checkpoint | Session | str,
        propose: Propose = (),
        evaluate: Evaluate = None,
        *,
        strategy: str | Strategy | None = "best-of-n",
        budget: Budget | None = None,
        goal: float | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        runners_up: int = RUNNERS_UP,
        name: str | None = None,
        journal: str | Path | None = None,
        merge: bool = True,
        home: str | Path | None = None,
    ) -> None:
        self.budget = budget or Budget()
        self._strategy = _strategy(strategy, self.budget, goal)
        self._propose, self._evaluate = propose, evaluate
        self._goal, self._runners_up = goal, runners_up
        if not timeout > 0:
            raise errors.UsageError(f"a timeout is a number of seconds above 0, not {timeout!r}")
        if isinstance(evaluate, Pairwise) and getattr(self._strategy, "name", "") != "tournament":
            raise errors.UsageError(
                "a judge of two needs the strategy tournament", hint="or an evaluation that gives numbers"
            )
        if isinstance(evaluate, str):
            self._evaluate = Command(evaluate)
        if runners_up < 0:
            raise errors.UsageError(f"runners-up are 0 or more, not {runners_up}")
        self._require_bounds()
        self._home = home
        self._client = Client(home)
        if name is not None and not _NAME.fullmatch(name):
            raise errors.InvalidName(
                f"{name!r} cannot be the name of a search", hint="letters, digits, _ and -, at most 40"
            )
        self._lock = threading.RLock()
        self._work: dict[tuple[int, int], Candidate] = {}
        self._began = time.monotonic()
        self._given: set[int] = set()
        """Trials that this process has given out and that nothing was told of."""
        self._points: dict[str, Checkpoint] = {}
        own = name or f"search-{secrets.token_hex(3)}"
        self.path = Path(journal) if journal else journal_path(own, home)
        self._journal = Journal(self.path)
        begun = next(iter(self._journal.events), None)
        self.name: str = begun.name if name is None and isinstance(begun, Begun) else own
        """Of the search; without one given, that of the journal."""
        try:
            self._open(point, timeout, merge=merge)
        except BaseException:
            self.close()
            raise

    def _require_bounds(self) -> None:
        deep = self._strategy is not None and self._strategy.deep
        limits = (self.budget.nodes, self.budget.depth, self.budget.seconds, self.budget.cost, self._goal)
        if deep and all(limit is None for limit in limits):
            raise errors.UsageError(
                "this search would never end", hint="give its budget nodes, a depth, seconds or a cost"
            )

    def _open(self, point: Checkpoint | Session | str, timeout: float, *, merge: bool) -> None:
        events = self._journal.events
        begun = events[0] if events else None
        assert begun is None or isinstance(begun, Begun)
        self.start = self._start(point, begun)
        self.forks = Forks(
            self._client,
            self.name,
            self._evaluate,
            self.budget,
            timeout=timeout,
            merge=merge,
            turn=sum(isinstance(event, Opened) for event in events),
        )
        name = self._strategy.name if self._strategy else "none"
        now = Begun(
            version=journals.VERSION,
            name=self.name,
            point=self.start.id,
            strategy=name,
            settings=strategies.settings_of(self._strategy) if self._strategy else {},
            at=_now(),
        )
        if begun is None:
            if taken := [session.name for session, _ in self.forks.existing()]:
                raise errors.AlreadyExists(
                    f"there are sessions that this search would make: {', '.join(sorted(taken)[:3])}",
                    hint="give the search another name, or remove them",
                )
            self._journal.append(now)
            events = [now]
        elif (begun.name, begun.point, begun.strategy, begun.settings) != (
            now.name,
            now.point,
            now.strategy,
            now.settings,
        ):
            raise errors.AlreadyExists(
                f"there is another search {begun.name!r}: {begun.strategy} from point {begun.point}",
                hint=f"give this one another name, or delete {self.path}",
            )
        self.tree = Tree.of(events, self.budget.depth)
        self._seconds_before = self.tree.seconds
        self._journal.append(Opened(at=_now()))
        self._points[self.start.id] = self.start
        # What another process has left: forks of trials that nothing was told of, and losers.
        self.forks.settle(self.tree, self._needed())

    def _start(self, point: Checkpoint | Session | str, begun: Begun | None) -> Checkpoint:
        if isinstance(point, Checkpoint):
            return point
        if begun is not None and isinstance(point, Session):
            return self._point(begun.point)
        if isinstance(point, Session):
            return point.checkpoint(f"search {self.name}")
        session, colon, ref = point.rpartition(":")
        answer = self._client.ask(requests.Show(ref=ref, session=session if colon else None))
        return Checkpoint(self._client, answer.checkpoint)

    def _point(self, point_id: str) -> Checkpoint:
        if point_id not in self._points:
            self._points[point_id] = find_point(self._client, point_id)
        return self._points[point_id]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets another process go on with it."""
        self._journal.close()
        self._client.close()

    # ---- asking ------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """How long the search has been worked on."""
        return round(self._seconds_before + time.monotonic() - self._began, 3)

    @property
    def over(self) -> str | None:
        """Why nothing more is to be tried; None while there is something, or something is under way."""
        with self._lock:
            self.tree.seconds = max(self.tree.seconds, self.seconds)
            if self.tree.ended is not None:
                return self.tree.ended
            if reason := self._reached():
                return reason
            decision = "wait" if self._strategy is None else self._choose()
            if decision == "done":
                return "all was tried"
            if self.tree.pending or self.tree.playing:
                return None
            if isinstance(decision, Play):
                return self.budget.worked_out(self.tree)
            return self.budget.spent(self.tree)

    def _reached(self) -> str | None:
        best = self.tree.best
        if self._goal is None or best is None or (best.score or 0.0) < self._goal:
            return None
        return f"the goal of {self._goal:g} is reached"

    def ask(self, n: int = 1) -> list[Trial | Match]:
        """At most `n` trials, or matches, that are to be done now: first those of which an earlier process
        has not told. Empty when nothing is left, and when what is under way has to be told of first (`over`
        knows which)."""
        if self._strategy is None:
            raise errors.UsageError(
                "this search has no strategy", hint="choose with `trial(parent, candidate)`"
            )
        with self._lock:
            if self.tree.ended is not None or self._reached():
                return []
            lost = [node for node in self.tree.pending if node.id not in self._given]
            asked: list[Trial | Match] = [self._trial(node) for node in lost[:n]]
            self._given.update(node.id for node in lost[:n])
            if len(asked) < n and not (self._strategy.rounds and self.tree.pending):
                asked += self._ask_new(n - len(asked))
            return asked

    def _ask_new(self, n: int) -> list[Trial | Match]:
        trials, matches = list[Asked](), list[Match]()
        # The trials of one call are one line of the journal: it has all of them or none.
        while len(trials) + len(matches) < n:
            self.tree.seconds = max(self.tree.seconds, self.seconds)
            match self._choose():
                case Expand(node=node):
                    if self.budget.spent(self.tree):
                        break
                    asked = Asked(id=len(self.tree.nodes), parent=node, index=len(self.tree.children(node)))
                    trials.append(asked)
                    self.tree.apply(Given(trials=(asked,)))
                case Play(left=left, right=right):
                    if isinstance(self._evaluate, Pairwise):
                        self.tree.playing.add((left, right))
                        matches.append(Match(self.tree[left], self.tree[right]))
                    else:
                        self._played(left, right, _difference(self.tree[left], self.tree[right]))
                case _:
                    break
        if trials:
            self._journal.append(Given(trials=tuple(trials), seconds=self.seconds))
            self._given.update(trial.id for trial in trials)
        return [*(self._trial(self.tree[trial.id]) for trial in trials), *matches]

    def _choose(self) -> strategies.Decision:
        """The decision of the strategy, about a node of which the candidates are known."""
        assert self._strategy
        while True:
            decision = self._strategy.choose(self.tree)
            if not isinstance(decision, Expand) or decision.node in self.tree.proposals:
                return decision
            self._propose_at(decision.node)

    def _propose_at(self, number: int) -> None:
        node = self.tree[number]
        path = tuple(one.label for one in reversed(self.tree.line(number)[:-1]))
        candidates = proposed_by(self._propose, Place(node, path))
        if number not in self.tree.proposals:
            event = Proposed(node=number, proposals=tuple(candidate.proposal for candidate in candidates))
            self._journal.append(event)
            self.tree.apply(event)
        for index, candidate in enumerate(candidates):
            self._work[number, index] = candidate

    def _candidate(self, node: Node) -> Candidate:
        """The candidate of a node. Of one that an earlier process has proposed, its function is asked for."""
        assert node.parent is not None
        key = (node.parent, node.index)
        if key not in self._work:
            proposal = self.tree.proposals[node.parent][node.index]
            if proposal.steps is not None:
                number = int(proposal.label.rpartition("#")[2]) if proposal.agent else 1
                return Candidate(proposal, number=number)
            self._propose_at(node.parent)
            if key not in self._work or self._work[key].proposal != proposal:
                raise errors.UsageError(
                    f"the candidate {proposal.label!r} of node {node.parent} is not proposed any more",
                    hint="go on with what the search was begun with",
                )
        return self._work[key]

    def _trial(self, node: Node) -> Trial:
        assert node.parent is not None
        return Trial(node.id, node, self._candidate(node), self.tree[node.parent])

    def trial(self, parent: Node | int, work: Work) -> Trial:
        """A trial that the caller chooses: a candidate at a node. With it another library can decide what is
        tried, and the tree, the journal, the budget and the forks are those of this search. UsageError when
        the budget is used up."""
        if self._strategy is not None:
            raise errors.UsageError(
                "this search has a strategy, which chooses", hint="with strategy=None you do"
            )
        with self._lock:
            number = parent if isinstance(parent, int) else parent.id
            self.tree.seconds = max(self.tree.seconds, self.seconds)
            if reason := self.budget.spent(self.tree):
                raise errors.UsageError(f"the budget is used up: {reason}", hint="give it a larger one")
            if not self.tree[number].done:
                raise errors.UsageError(
                    f"node {number} is {self.tree[number].status}: nothing starts from it"
                )
            if self.budget.depth is not None and self.tree[number].depth >= self.budget.depth:
                raise errors.UsageError(f"node {number} is at the depth of {self.budget.depth}")
            (candidate,) = candidates_of(work)
            index = len(self.tree.children(number))
            known = self.tree.proposals.get(number, ())
            # A tree of one's own has no list of candidates at a node: each that is tried is added to it.
            event = Proposed(node=number, proposals=(*known, candidate.proposal))
            asked = Asked(id=len(self.tree.nodes), parent=number, index=index)
            given = Given(trials=(asked,), seconds=self.seconds)
            self._journal.append(event, given)
            self.tree.apply(event)
            self.tree.apply(given)
            self._work[number, index] = candidate
            self._given.add(asked.id)
            return self._trial(self.tree[asked.id])

    # ---- doing -------------------------------------------------------------------------------

    def attempt(self, trial: Trial) -> Outcome:
        """Runs a candidate in a fork of its parent's point, scores it, and says what came of it: for `tell`.
        NoRoom when the machine or the budget has no room for a fork now; the trial is not used up by that."""
        path = tuple(one.label for one in reversed(self.tree.line(trial.parent.id)[:-1]))

        def known(fingerprint: str | None) -> Node | None:
            with self._lock:
                return self.tree.same_as(fingerprint)

        return self.forks.attempt(
            trial.node,
            trial.candidate,
            self.start,
            self.point_of(trial.parent),
            Place(trial.parent, path),
            known,
        )

    def fork(self, trial: Trial) -> Fork:
        """A fork of the parent's point, for callers that try and score by themselves. It takes a point of it
        (`checkpoint`) to be gone on from: `tell(trial, score, point=point)`."""
        return self.forks.fork(trial.id, self.point_of(trial.parent))

    def play(self, match: Match) -> float:
        """Lets the judge compare two nodes: for `tell`."""
        return self.forks.play(self.point_of(match.left), self.point_of(match.right), match.id)

    def point_of(self, node: Node) -> Checkpoint:
        """The point of a node. NotFound for one that has none, or of which it is gone."""
        if node.id == ROOT:
            return self.start
        if node.point is None:
            raise errors.NotFound(f"node {node.id} has no point: it is {node.status}")
        return self._point(node.point)

    # ---- telling -----------------------------------------------------------------------------

    def tell(
        self, trial: Trial | Match | int, outcome: Outcome | float | None = None, **facts: Any
    ) -> Node | None:
        """What came of a trial, in any order: an `Outcome`, or a score with `point`, `cost`, `why`, …. Of a
        match, what the judge says: above 0 the left one is better. To be told once more changes nothing."""
        if isinstance(trial, Match):
            with self._lock:
                verdict = outcome.score if isinstance(outcome, Outcome) else outcome
                self._played(trial.left.id, trial.right.id, score_of(verdict).value)
            return None
        number = trial if isinstance(trial, int) else trial.id
        if not isinstance(outcome, Outcome):
            point = facts.pop("point", None)
            if isinstance(point, Checkpoint):
                facts |= {"point": point.id, "session": facts.get("session", point.info.session)}
            elif point is not None:
                facts["point"] = point
            outcome = Outcome(score=None if outcome is None else score_of(outcome).value, **facts)
        with self._lock:
            if not 0 < number < len(self.tree.nodes):
                raise errors.NotFound(f"there is no trial {number}")
            if not self.tree[number].settled:
                told = Told(id=number, outcome=outcome, seconds=self.seconds)
                self._journal.append(told)
                self.tree.apply(told)
                self._given.discard(number)
            return self.tree[number]

    def _played(self, left: int, right: int, verdict: float) -> None:
        if (left, right) not in self.tree.matches:
            played = Played(left=left, right=right, verdict=verdict, seconds=self.seconds)
            self._journal.append(played)
            self.tree.apply(played)

    def give_back(self, trial: Trial | Match) -> None:
        """A trial that could not be done now: it is asked again."""
        with self._lock:
            if isinstance(trial, Match):
                self.tree.playing.discard((trial.left.id, trial.right.id))
            else:
                self._given.discard(trial.id)

    # ---- losers and runners-up ---------------------------------------------------------------

    def _needed(self) -> set[int]:
        """The nodes of which points are kept: where the search may go on, and the best."""
        tree, strategy = self.tree, self._strategy
        needed = {node.id for node in tree.ranking()[: 1 + self._runners_up]}
        needed |= {node.parent for node in tree.pending if node.parent is not None}
        needed |= {number for pair in tree.playing for number in pair}
        if self.tree.ended is None:
            done = [node for node in tree.nodes if node.done]
            needed |= {node.id for node in done if strategy is None or strategy.may_need(tree, node)}
        return needed - {ROOT}

    def settle(self) -> None:
        """Ends what has lost and stops what is kept, as far as the tree says so now."""
        with self._lock:
            needed = self._needed()
            given = set(self._given)
        self.forks.settle(self.tree, needed, given)

    def end(self, reason: str) -> None:
        """Notes why nothing more is done. Only the best are kept; a search with another budget may go on from
        them."""
        with self._lock:
            if self.tree.ended is None:
                ended = Ended(reason=reason, seconds=self.seconds)
                self._journal.append(ended)
                self.tree.apply(ended)

    def result(self) -> Result:
        """What it has come to, so far."""
        return Result(self.name, self.tree, self.start.info, home=self._home)


def _strategy(strategy: str | Strategy | None, budget: Budget, goal: float | None) -> Strategy | None:
    """The strategy, with what it has to know of goal and budget."""
    match strategy:
        case None:
            return None
        case "first-wins" if goal is not None:
            return strategies.FirstWins(goal)
        case "tournament" | strategies.Tournament(n=None):  # matches begin when all of its nodes are there
            return strategies.Tournament(budget.nodes)
    return strategies.named(strategy)


def journal_path(name: str, home: str | Path | None = None) -> Path:
    """Where the journal of a search is, unless its caller has said another place."""
    return locate(home).path / "explore" / f"{name}.jsonl"


def _difference(left: Node, right: Node) -> float:
    return (left.score or 0.0) - (right.score or 0.0)


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
