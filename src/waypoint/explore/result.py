"""What a search has come to: a winner that can be restored or applied, and the tree as text, JSON, dot and
HTML."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from waypoint import errors, model
from waypoint.client.agent import Restored
from waypoint.client.checkpoint import Checkpoint
from waypoint.client.client import Client
from waypoint.client.connection import OnApproval
from waypoint.client.result import Result as CommandResult
from waypoint.client.session import Session
from waypoint.explore import render
from waypoint.explore.forks import find_point
from waypoint.explore.tree import ROOT, Begun, Event, Node, Status, Tree
from waypoint.text.views import Comparison


class ExploredNode(model.Record, frozen=True):
    """A trial and what came of it. `parent` 0 is the start."""

    id: int
    parent: int | None
    index: int
    depth: int
    label: str
    status: Status
    score: float | None = None
    point: str | None = None
    session: str | None = None
    cost: float = 0.0
    seconds: float = 0.0
    files: int | None = None
    """How many files it changed since its parent."""
    held: tuple[str, ...] = ()
    why: str = ""
    wins: int = 0
    duplicate_of: int | None = None
    """The first node that is the same."""
    looks_like: int | None = None
    """The first with the same files and processes, whatever these have in memory."""


class Explored(model.Record, frozen=True):
    """A search as data. `stopped`: why nothing more was tried; null while it is under way."""

    name: str
    start: str
    stopped: str | None
    seconds: float
    cost: float
    winner: int | None
    held: tuple[str, ...]
    """Commands of the winner that act on the outside and have not run."""
    nodes: tuple[ExploredNode, ...]


class Result:
    """The tree of a search, and what can be done with it. Printed, it is a table."""

    def __init__(
        self, name: str, tree: Tree, start: model.Checkpoint | str, *, home: str | Path | None = None
    ) -> None:
        self.name, self.tree = name, tree
        self._start, self._home = start, home
        self.stopped: str | None = tree.ended
        """Why nothing more was tried; None for a search that is under way."""

    @classmethod
    def read(cls, events: Sequence[Event], *, home: str | Path | None = None) -> Result:
        """That of a journal."""
        if not events:
            raise errors.NotFound("there is nothing in this journal yet")
        begun = events[0]
        assert isinstance(begun, Begun)
        return cls(begun.name, Tree.of(events), begun.point, home=home)

    # ---- what there is -----------------------------------------------------------------------

    @property
    def nodes(self) -> list[Node]:
        """All trials, in the order in which they were given out."""
        return self.tree.nodes[1:]

    @property
    def winner(self) -> Node | None:
        """The best; None when no candidate came to an end."""
        return self.tree.best

    def __getitem__(self, number: int) -> Node:
        return self.tree[number]

    # ---- what can be done --------------------------------------------------------------------

    def point(self, node: Node | int | None = None) -> Checkpoint:
        """The point of a node, by default the winner's. NotFound for one whose point was not kept."""
        found = self._node(node)
        ref = self._start_id if found.id == ROOT else found.point
        if ref is None:
            raise errors.NotFound(f"node {found.id} has no point: it is {found.status}")
        return find_point(Client(self._home), ref)

    @property
    def _start_id(self) -> str:
        return self._start if isinstance(self._start, str) else self._start.id

    def _node(self, node: Node | int | None) -> Node:
        if node is None:
            if self.winner is None:
                raise errors.NotFound(
                    "nothing has won: no candidate came to an end", hint="look at the table"
                )
            return self.winner
        number = node if isinstance(node, int) else node.id
        if not 0 <= number < len(self.tree.nodes):
            raise errors.NotFound(f"there is no node {number}")
        return self.tree[number]

    def restore(self, session: Session | str, node: Node | int | None = None) -> Restored:
        """Takes a session to the point of a node, by default the winner's; `undo` takes it back."""
        point = self.point(node)
        name = session if isinstance(session, str) else session.name
        return Client(self._home).session(name).restore(point)

    def apply(
        self,
        to: str | os.PathLike[str],
        paths: Sequence[str] = (),
        node: Node | int | None = None,
        **options: Any,
    ) -> model.Landing:
        """Brings what a node, by default the winner, has changed since the start to a folder of this machine.
        `options`: as of `Session.apply`."""
        point = self.point(node)
        session = Client(self._home).session(point.info.session)
        return session.apply(to, paths, ref=point, since=self._start_id, **options)

    def compare(self, *nodes: Node | int, verify: str | None = None) -> Comparison:
        """Several nodes side by side, from the start on."""
        points = [self.point(node) for node in nodes]
        refs = [f"{point.info.session}:{point.info.label}" for point in points]
        return Client(self._home).compare(
            *refs, base=self._start_id, session=points[0].info.session, verify=verify
        )

    @property
    def held(self) -> tuple[str, ...]:
        """The commands of the winner, and of those before it, that act on the outside. They have not run."""
        if self.winner is None:
            return ()
        line = reversed(self.tree.line(self.winner.id))
        return tuple(command for node in line if node.outcome for command in node.outcome.held)

    def release(
        self, session: Session, *, on_approval: OnApproval | model.ApprovalMode | None = None
    ) -> list[CommandResult]:
        """Runs the held commands of the winner in a session, one after the other until one fails; the policy
        judges each of them as it does everywhere (`on_approval`: as of `Session.run`)."""
        results = []
        for command in self.held:
            results.append(session.run(command, on_approval=on_approval))
            if not results[-1].ok:
                break
        return results

    # ---- how it is shown ---------------------------------------------------------------------

    def table(self) -> str:
        """Every node with its score, time, cost and files changed."""
        return render.table(self.tree)

    def graph(self) -> str:
        """The tree as text."""
        return render.graph(self.tree)

    def dot(self) -> str:
        """The tree for Graphviz."""
        return render.dot(self.tree, self.name)

    def html(self) -> str:
        """The tree as a page that needs nothing else."""
        return render.html(self.tree, self.name, self.stopped)

    def report(self) -> Explored:
        """All of it, as data: `waypoint explore --json` prints it."""
        winner = self.winner
        return Explored(
            name=self.name,
            start=self._start_id,
            stopped=self.stopped,
            seconds=self.tree.seconds,
            cost=self.tree.cost,
            winner=winner.id if winner else None,
            held=self.held,
            nodes=tuple(self._row(node) for node in self.nodes),
        )

    def _row(self, node: Node) -> ExploredNode:
        outcome = msgspec.structs.asdict(node.outcome) if node.outcome else {}
        facts = {name: value for name, value in outcome.items() if name in ExploredNode.__struct_fields__}
        trial = {name: getattr(node, name) for name in ("id", "parent", "index", "depth", "label", "status")}
        return ExploredNode(
            **(facts | trial),
            wins=self.tree.wins(node.id),
            duplicate_of=self.tree.duplicate_of(node.id),
            looks_like=self.tree.looks_like(node.id),
        )

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        best = f"best {self.winner.score}" if self.winner else "no winner"
        return f"<Result of {self.name!r}: {len(self.tree)} nodes, {best}>"
