"""What a search may cost, and whether it has reached that.

Nodes, seconds and cost end a search. Live boxes, memory and disk hold it back: no fork is made that would
take more, and a candidate that takes more itself is ended (forks.py looks, this module decides).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from waypoint.api.sizes import parse_size
from waypoint.errors import UsageError
from waypoint.explore.tree import Tree

BOXES_PER_TRIAL = 2
"""A candidate's own, and the one that it is scored in."""
LEAST_FREE_MEMORY = 0.05
"""This share of the machine's memory stays free, whatever the budget says."""
LEAST_FREE_DISK = 0.05
"""The same of the pool."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that a search may take; None: no limit of its own. Sizes are bytes, or texts as `512M`."""

    nodes: int | None = 100
    """Trials, whatever comes of them."""
    depth: int | None = None
    """Steps from the start. Strategies that go on from what they found need it, or `nodes`."""
    seconds: float | None = None
    """Time that is worked on it, by all processes that went on with it together."""
    cost: float | None = None
    """What candidates and evaluations say they cost, in their unit."""
    boxes: int = 4
    """Live boxes at once: two for each trial that runs (its own, and one to score it in)."""
    memory: int | str | None = None
    """Of all live boxes of the search together."""
    disk: int | str | None = None
    """Of the pool, for all sessions of the search together: what nothing else has."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name != "boxes":
                continue
            if field.name in ("memory", "disk"):
                if isinstance(value, str):
                    value = _size(field.name, value)
                    object.__setattr__(self, field.name, value)
                _require(field.name, value, whole=True)
            else:
                _require(field.name, value, whole=field.name in ("nodes", "depth", "boxes"))
        if self.boxes < BOXES_PER_TRIAL:
            raise UsageError(
                f"a trial needs {BOXES_PER_TRIAL} live boxes, the budget has {self.boxes}",
                hint="one for the candidate, and one that it is scored in",
            )

    @property
    def workers(self) -> int:
        """How many trials may run at once."""
        return self.boxes // BOXES_PER_TRIAL

    def spent(self, tree: Tree) -> str | None:
        """Which part of it is used up, so that no trial is given out any more."""
        if self.nodes is not None and len(tree) >= self.nodes:
            return f"all {self.nodes} nodes are used"
        return self.worked_out(tree)

    def worked_out(self, tree: Tree) -> str | None:
        """Which of time and cost is used up, so that nothing is done any more."""
        if self.seconds is not None and tree.seconds >= self.seconds:
            return f"all {self.seconds:g} seconds are used"
        if self.cost is not None and tree.cost >= self.cost:
            return f"the cost of {self.cost:g} is reached"
        return None

    def left(self, tree: Tree) -> str:
        """What is left, in words."""
        parts = []
        if self.nodes is not None:
            parts.append(f"{max(0, self.nodes - len(tree))} of {self.nodes} nodes")
        if self.seconds is not None:
            parts.append(f"{max(0.0, self.seconds - tree.seconds):.0f} of {self.seconds:g} s")
        if self.cost is not None:
            parts.append(f"{max(0.0, self.cost - tree.cost):.4g} of {self.cost:g} cost")
        return ", ".join(parts)


class Room(NamedTuple):
    """What the machine has, and what the search takes of it."""

    memory_total: int
    memory_free: int
    disk_total: int
    disk_free: int
    written: int
    """What the sessions of the search take of the pool; 0 where the budget does not say how much they may."""
    boxes_memory: int = 0
    """What the live boxes of the search take."""


def _memory_problem(budget: Budget, room: Room) -> str | None:
    if budget.memory is not None and room.boxes_memory > int(budget.memory):
        return f"its boxes take more than {budget.memory} bytes of memory"
    return None


def _disk_problem(budget: Budget, room: Room) -> str | None:
    if budget.disk is not None and room.written > int(budget.disk):
        return f"it has written more than {budget.disk} bytes"
    if room.disk_free < LEAST_FREE_DISK * room.disk_total:
        return f"less than {LEAST_FREE_DISK:.0%} of the pool is free"
    return None


def exceeded(budget: Budget, room: Room) -> str | None:
    """Why a candidate has to be ended now; None: it may run on."""
    if problem := _memory_problem(budget, room) or _disk_problem(budget, room):
        return problem
    if room.memory_free < LEAST_FREE_MEMORY * room.memory_total:
        return f"less than {LEAST_FREE_MEMORY:.0%} of the machine's memory is free"
    return None


def refused(budget: Budget, room: Room, fork_bytes: int) -> str | None:
    """Why no fork of this size may be made now; None: it may."""
    if room.memory_free - fork_bytes < 2 * LEAST_FREE_MEMORY * room.memory_total:
        return f"a fork of {fork_bytes:,} bytes would leave too little memory free"
    if budget.memory is not None and room.boxes_memory + fork_bytes > int(budget.memory):
        return f"a fork of {fork_bytes:,} bytes would take more than {budget.memory} bytes of memory"
    if room.disk_free < 2 * LEAST_FREE_DISK * room.disk_total:
        return f"less than {2 * LEAST_FREE_DISK:.0%} of the pool is free"
    return _disk_problem(budget, room)


def _size(name: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}", hint="512M, 4G or a number of bytes") from error


def _require(name: str, value: Any, *, whole: bool) -> None:
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        kind = "a whole number" if whole else "a number"
        raise UsageError(f"a budget's {name} is {kind} above 0, not {value!r}")
