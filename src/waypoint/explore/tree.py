"""What a search knows: its nodes, as the journal tells of them.

A tree is made of events and of nothing else: `Tree.apply` with the same events in the same order gives the
same tree, in the process that searches and in the one that goes on with a search that was killed. Strategies
(strategies.py) and results (result.py) read it; it knows nothing of sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from waypoint.model import Record

Status = Literal["asked", "done", "failed", "timeout", "over_budget"]
"""`asked`: given out, and nothing told of it yet. `over_budget`: it took more of the machine than it may."""

ROOT = 0
"""The node of the point that the search starts from."""
MOST_DEPTH = 200
"""Steps from the start, whatever the budget says."""


class Proposal(Record, frozen=True):
    """What may be tried at a node. `steps`: its command lines; None for a function, which no journal can
    hold: a search that goes on asks for it again."""

    label: str
    steps: tuple[str, ...] | None = None
    agent: bool = False
    """Whether it is one of several attempts of the same agent, which learns its number."""


class Outcome(Record, frozen=True):
    """What came of a trial."""

    status: Literal["done", "failed", "timeout", "over_budget"] = "done"
    score: float | None = None
    point: str | None = None
    """The id of the point that was taken after it; None when there is none."""
    session: str | None = None
    cost: float = 0.0
    seconds: float = 0.0
    """How long the candidate and its evaluation took."""
    files: int | None = None
    """How many files it changed since its parent."""
    fingerprint: str | None = None
    """Equal where files and processes are equal; None: not known."""
    certain: bool = False
    """Whether an equal fingerprint means that there is no difference: no program runs of which the memory was
    not compared."""
    held: tuple[str, ...] = ()
    """Commands that act on the outside: they have not run."""
    why: str = ""
    """Of one that is not done: the reason. Of one that is: what its evaluation says about it."""


class Node(Record, frozen=True):
    """A trial and what came of it."""

    id: int
    parent: int | None
    index: int
    """Which of the candidates of its parent it is."""
    depth: int
    label: str
    outcome: Outcome | None = None

    @property
    def status(self) -> Status:
        return self.outcome.status if self.outcome else "asked"

    @property
    def score(self) -> float | None:
        return self.outcome.score if self.outcome else None

    @property
    def point(self) -> str | None:
        return self.outcome.point if self.outcome else None

    @property
    def settled(self) -> bool:
        """Whether something was told of it."""
        return self.outcome is not None

    @property
    def done(self) -> bool:
        """Whether it came to an end that can be gone on from."""
        return self.outcome is not None and self.outcome.status == "done"


class Asked(Record, frozen=True):
    """A trial as it was given out."""

    id: int
    parent: int
    index: int


# ---- events: the lines of a journal --------------------------------------------------------------


class Begun(Record, frozen=True, tag="begun", tag_field="event"):
    """The first line: what is searched, and how. A search that goes on must be the same."""

    version: int
    name: str
    point: str
    strategy: str
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    at: str = ""


class Opened(Record, frozen=True, tag="opened", tag_field="event"):
    """A process has begun to work on it, or has gone on with it."""

    at: str


class Proposed(Record, frozen=True, tag="proposed", tag_field="event"):
    """What may be tried at a node. Said once for each, unless a caller adds to it."""

    node: int
    proposals: tuple[Proposal, ...]


class Given(Record, frozen=True, tag="asked", tag_field="event"):
    """Trials that were given out together. One line, so that all of them are or none."""

    trials: tuple[Asked, ...]
    seconds: float = 0.0
    """How long the search has been worked on, here and below."""


class Told(Record, frozen=True, tag="told", tag_field="event"):
    """What came of a trial."""

    id: int
    outcome: Outcome
    seconds: float = 0.0


class Played(Record, frozen=True, tag="played", tag_field="event"):
    """What a judge said about two nodes: above 0 the left one is better, below 0 the right one."""

    left: int
    right: int
    verdict: float
    seconds: float = 0.0


class Ended(Record, frozen=True, tag="ended", tag_field="event"):
    """Why it is over. Only the best are kept from here on, so it does not go on."""

    reason: str
    seconds: float = 0.0


Event = Begun | Opened | Proposed | Given | Told | Played | Ended


class Tree:
    """The nodes of a search. `most_depth`: nodes there are not gone on from."""

    def __init__(self, most_depth: int | None = None) -> None:
        root = Node(id=ROOT, parent=None, index=0, depth=0, label="the start", outcome=Outcome())
        self.nodes: list[Node] = [root]
        self.most_depth = MOST_DEPTH if most_depth is None else min(most_depth, MOST_DEPTH)
        self.proposals: dict[int, tuple[Proposal, ...]] = {}
        self.matches: dict[tuple[int, int], float] = {}
        self.playing: set[tuple[int, int]] = set()
        """Matches that were given out and not told of: of this process, not of the journal."""
        self.seconds = 0.0
        """How long the search has been worked on, by all processes together."""
        self.ended: str | None = None
        self._children: dict[int, list[int]] = {ROOT: []}
        self._first_with: dict[str, int] = {}

    @classmethod
    def of(cls, events: Iterable[Event], most_depth: int | None = None) -> Tree:
        """The tree that events tell of."""
        tree = cls(most_depth)
        for event in events:
            tree.apply(event)
        return tree

    def apply(self, event: Event) -> None:
        """What an event changes. Whatever was said before is not changed by being said again."""
        match event:
            case Proposed(node=node, proposals=proposals):
                if node not in self.proposals or len(proposals) > len(self.proposals[node]):
                    self.proposals[node] = proposals
            case Given(trials=trials):
                for trial in trials:
                    self._add(trial)
            case Told(id=number, outcome=outcome):
                if not self.nodes[number].settled:
                    self.nodes[number] = msgspec.structs.replace(self.nodes[number], outcome=outcome)
                    if outcome.fingerprint and outcome.status == "done":
                        first = self._first_with.get(outcome.fingerprint, number)
                        self._first_with[outcome.fingerprint] = min(first, number)
            case Played(left=left, right=right, verdict=verdict):
                self.matches.setdefault((left, right), verdict)
                self.playing.discard((left, right))
            case Ended(reason=reason):
                self.ended = reason
        self.seconds = max(self.seconds, getattr(event, "seconds", 0.0))

    def _add(self, trial: Asked) -> None:
        if trial.id < len(self.nodes):
            return
        label = self.proposals[trial.parent][trial.index].label
        depth = self.nodes[trial.parent].depth + 1
        node = Node(id=trial.id, parent=trial.parent, index=trial.index, depth=depth, label=label)
        self.nodes.append(node)
        self._children[trial.parent].append(trial.id)
        self._children[trial.id] = []

    # ---- reading -----------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many trials there are, without the start."""
        return len(self.nodes) - 1

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def children(self, number: int) -> list[Node]:
        return [self.nodes[child] for child in self._children[number]]

    @property
    def pending(self) -> list[Node]:
        """What was given out and not told of."""
        return [node for node in self.nodes if not node.settled]

    @property
    def cost(self) -> float:
        return math.fsum(node.outcome.cost for node in self.nodes if node.outcome)

    def looks_like(self, number: int) -> int | None:
        """The first node with the same files and processes, whatever these have in memory; None for the
        first, and where it is not known."""
        outcome = self.nodes[number].outcome
        if outcome is None or outcome.fingerprint is None or outcome.status != "done":
            return None
        first = self._first_with[outcome.fingerprint]
        return first if first != number else None

    def duplicate_of(self, number: int) -> int | None:
        """The first node that is the same. A search does not go on from a duplicate."""
        outcome = self.nodes[number].outcome
        return self.looks_like(number) if outcome and outcome.certain else None

    def same_as(self, fingerprint: str | None) -> Node | None:
        """A node that is done and is the same as one with this fingerprint of which nothing was told yet."""
        first = self._first_with.get(fingerprint) if fingerprint else None
        return self.nodes[first] if first is not None else None

    def untried(self, number: int) -> bool:
        """Whether a node may have candidates that were not given out yet."""
        proposals = self.proposals.get(number)
        return proposals is None or len(self._children[number]) < len(proposals)

    def expandable(self, number: int) -> bool:
        """Whether the search may go on from a node."""
        node = self.nodes[number]
        return (
            node.done
            and node.depth < self.most_depth
            and self.duplicate_of(number) is None
            and self.untried(number)
        )

    def won(self, left: int, right: int) -> int:
        """Which of two goes on after their match: of two that are alike the first."""
        return left if self.matches[left, right] >= 0 else right

    def wins(self, number: int) -> int:
        """How many matches a node has won."""
        return sum(self.won(*pair) == number for pair in self.matches)

    def rank(self, node: Node) -> tuple[float, ...]:
        """Smaller is better: matches lost and won, then the score, then which was first."""
        played = [self.won(*pair) == node.id for pair in self.matches if node.id in pair]
        score = node.score if node.score is not None else -math.inf
        return (played.count(False), -played.count(True), -score, node.id)

    def ranking(self) -> list[Node]:
        """Nodes that may win, the best first. A duplicate is not listed beside the first of its kind."""
        found = (node for node in self.nodes[1:] if node.done and self.duplicate_of(node.id) is None)
        return sorted(found, key=self.rank)

    @property
    def best(self) -> Node | None:
        """The best so far."""
        return next(iter(self.ranking()), None)

    def line(self, number: int) -> list[Node]:
        """A node and those before it, back to the start."""
        line, at = list[Node](), self.nodes[number]
        while True:
            line.append(at)
            if at.parent is None:
                return line
            at = self.nodes[at.parent]

    def shape(self) -> Sequence[Mapping[str, Any]]:
        """What two runs of the same search have in common: all but times, names and the ids of points."""
        return [
            {
                "id": node.id,
                "parent": node.parent,
                "index": node.index,
                "label": node.label,
                "status": node.status,
                "score": node.score,
                "files": node.outcome.files if node.outcome else None,
                "held": list(node.outcome.held) if node.outcome else [],
                "duplicate_of": self.duplicate_of(node.id),
            }
            for node in self.nodes
        ]
