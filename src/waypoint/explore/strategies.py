"""Strategies: what a search tries next. Pure: a tree in, a decision out.

`choose` is called until it says WAIT or DONE; what it decided is in the tree by then (as trials that were
given out and not told of). A strategy with `rounds` looks at scores while others are still missing: it is
asked only when nothing is under way, so that which of several trials ends first does not change the tree.

    first-wins   the candidates of the start, until one reaches the goal
    best-of-n    the candidates of the start, all of them
    beam         generation by generation; only the best `width` of each are gone on from
    best-first   always the best node that was not gone on from, all of its candidates
    mcts         UCT: a path from the start, by mean score and by how seldom it was tried
    tournament   the candidates of the start, then matches between them until one is left
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Protocol

from waypoint.errors import UsageError
from waypoint.explore.tree import ROOT, Node, Tree


class Expand(NamedTuple):
    """Try the next candidate of this node."""

    node: int


class Play(NamedTuple):
    """Let these two be compared."""

    left: int
    right: int


Decision = Expand | Play | Literal["wait", "done"]


class Strategy(Protocol):
    """What decides. Its settings are its fields; it has no other state."""

    name: str
    rounds: bool
    deep: bool
    """Whether it goes on from nodes other than the start."""

    def choose(self, tree: Tree) -> Decision:
        """What to do next."""
        ...

    def may_need(self, tree: Tree, node: Node) -> bool:
        """Whether it may still go on from a node, or compare it: its point is kept."""
        ...


def _rest(tree: Tree) -> Decision:
    """When nothing more is to be given out."""
    return "wait" if tree.pending else "done"


def _siblings(tree: Tree, most: int | None = None) -> Decision:
    """The candidates of the start, in order."""
    if tree.untried(ROOT) and (most is None or len(tree) < most):
        return Expand(ROOT)
    return _rest(tree)


@dataclass(frozen=True)
class FirstWins:
    """The candidates of the start, until one reaches the goal."""

    goal: float = 1.0
    name = "first-wins"
    rounds = False
    deep = False

    def choose(self, tree: Tree) -> Decision:
        if any(node.done and (node.score or 0.0) >= self.goal for node in tree.nodes[1:]):
            return "done"
        return _siblings(tree)

    def may_need(self, tree: Tree, node: Node) -> bool:
        return False


@dataclass(frozen=True)
class BestOfN:
    """The candidates of the start, all of them or the first `n`."""

    n: int | None = None
    name = "best-of-n"
    rounds = False
    deep = False

    def __post_init__(self) -> None:
        _at_least(self, n=1)

    def choose(self, tree: Tree) -> Decision:
        return _siblings(tree, self.n)

    def may_need(self, tree: Tree, node: Node) -> bool:
        return False


@dataclass(frozen=True)
class Beam:
    """Generation by generation: only the best `width` of each are gone on from."""

    width: int = 2
    name = "beam"
    rounds = False
    deep = True

    def __post_init__(self) -> None:
        _at_least(self, width=1)

    def _best(self, tree: Tree, depth: int) -> list[Node]:
        return [node for node in tree.ranking() if node.depth == depth][: self.width]

    def choose(self, tree: Tree) -> Decision:
        depth, parents = 0, [tree[ROOT]]
        while parents:
            for parent in parents:
                if tree.expandable(parent.id):
                    return Expand(parent.id)
            depth += 1
            if any(node.depth == depth for node in tree.pending):
                return "wait"
            parents = self._best(tree, depth)
        return "done"

    def may_need(self, tree: Tree, node: Node) -> bool:
        # One that is not among the best of its generation now is not when there are more of them either.
        return tree.expandable(node.id) and node in self._best(tree, node.depth)


@dataclass(frozen=True)
class BestFirst:
    """Always the best node that was not gone on from, with all of its candidates."""

    name = "best-first"
    rounds = True
    deep = True

    def choose(self, tree: Tree) -> Decision:
        open_nodes = [node for node in tree.nodes if tree.expandable(node.id)]
        if not open_nodes:
            return _rest(tree)
        begun = [node for node in open_nodes if tree.children(node.id)]
        return Expand(min(begun or open_nodes, key=tree.rank).id)

    def may_need(self, tree: Tree, node: Node) -> bool:
        return tree.expandable(node.id)


@dataclass(frozen=True)
class Mcts:
    """UCT. A trial without a score counts as the worst that there was; one that is under way does too, so
    that several trials at once go to different places."""

    exploration: float = math.sqrt(2)
    name = "mcts"
    rounds = True
    deep = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.exploration) and self.exploration >= 0):
            raise UsageError("exploration is a number of 0 or more", hint="the usual one is 1.414")

    def choose(self, tree: Tree) -> Decision:
        scores = [node.score for node in tree.nodes[1:] if node.done and node.score is not None]
        low = min(scores, default=0.0)
        span = (max(scores, default=0.0) - low) or 1.0
        visits = [0] * len(tree.nodes)
        values = [0.0] * len(tree.nodes)
        is_open = [tree.expandable(node.id) for node in tree.nodes]
        for node in reversed(tree.nodes):  # a node comes after its parent
            if node.id != ROOT:
                visits[node.id] += 1
                if node.done and node.score is not None:
                    values[node.id] += (node.score - low) / span
            if node.parent is not None:
                visits[node.parent] += visits[node.id]
                values[node.parent] += values[node.id]
                is_open[node.parent] |= is_open[node.id]
        if not is_open[ROOT]:
            return _rest(tree)
        at = ROOT
        while not tree.expandable(at):
            parent = at

            def uct(child: Node, parent: int = parent) -> tuple[float, int]:
                mean = values[child.id] / visits[child.id]
                seldom = math.sqrt(math.log(visits[parent]) / visits[child.id])
                return (mean + self.exploration * seldom, -child.id)

            at = max((child for child in tree.children(at) if is_open[child.id]), key=uct).id
        return Expand(at)

    def may_need(self, tree: Tree, node: Node) -> bool:
        return tree.expandable(node.id)


@dataclass(frozen=True)
class Tournament:
    """The candidates of the start, all of them or the first `n`; then matches until one is left."""

    n: int | None = None
    name = "tournament"
    rounds = False
    deep = False

    def __post_init__(self) -> None:
        _at_least(self, n=1)

    def choose(self, tree: Tree) -> Decision:
        first = _siblings(tree, self.n)
        if first != "done":
            return first
        _, unplayed = self._left(tree)
        for pair in unplayed:
            if pair not in tree.playing:
                return Play(*pair)
        return "wait" if unplayed else "done"

    def _left(self, tree: Tree) -> tuple[list[int], list[tuple[int, int]]]:
        """Which are still in it, and the matches of this turn that were not played."""
        entrants = [node.id for node in tree.nodes[1:] if node.done and tree.duplicate_of(node.id) is None]
        while len(entrants) > 1:
            pairs = list(zip(entrants[::2], entrants[1::2], strict=False))
            if unplayed := [pair for pair in pairs if pair not in tree.matches]:
                return entrants, unplayed
            winners = [tree.won(*pair) for pair in pairs]
            entrants = winners + entrants[2 * len(pairs) :]
        return entrants, []

    def may_need(self, tree: Tree, node: Node) -> bool:
        if tree.pending or tree.untried(ROOT):
            return node.done
        return node.id in self._left(tree)[0]


def _at_least(strategy: Any, **smallest: int) -> None:
    for name, least in smallest.items():
        value = getattr(strategy, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise UsageError(f"{name} is a whole number of {least} or more, not {value!r}")


STRATEGIES: dict[str, type[Any]] = {
    kind.name: kind for kind in (FirstWins, BestOfN, Beam, BestFirst, Mcts, Tournament)
}


def named(strategy: str | Strategy, **settings: Any) -> Strategy:
    """A strategy by its name, with its settings. UsageError for one that there is not."""
    if not isinstance(strategy, str):
        if not callable(getattr(strategy, "choose", None)):
            raise UsageError(f"{strategy!r} is no strategy", hint=f"one of: {', '.join(STRATEGIES)}")
        return strategy
    if strategy not in STRATEGIES:
        raise UsageError(f"there is no strategy {strategy!r}", hint=f"one of: {', '.join(STRATEGIES)}")
    kind = STRATEGIES[strategy]
    known = [field.name for field in fields(kind)]
    for name in settings:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes no settings"
            raise UsageError(f"{strategy} has no setting {name!r}", hint=takes)
    made: Strategy = kind(**settings)
    return made


def settings_of(strategy: Strategy) -> dict[str, Any]:
    """Its settings, as the journal has them."""
    own = getattr(strategy, "__dataclass_fields__", {})
    return {name: getattr(strategy, name) for name in own}
