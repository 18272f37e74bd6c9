"""Migrations: how an agent's new code is given state that its old code left.

    @waypoint.migration("1", "2")
    def _(state):
        return {**state, "retries": 0}

State that was left with `agent_version="1"` then reaches code that resumes with `agent_version="2"` in the
form it expects. Several steps are taken where no single one leads there: the shortest way there is.
Migrations run in the agent's own process, before anything is restored or forked; one that fails has changed
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waypoint.errors import NoMigration, UsageError

Migration = Callable[[Any], Any]

_known: dict[str | None, dict[str, Migration]] = {}


def migration(from_: str | None, to: str) -> Callable[[Migration], Migration]:
    """Registers a function that turns state of version `from_` into state of version `to`. `from_` is None
    for state that was left without a version."""
    if from_ == to:
        raise UsageError(f"a migration from {to!r} to itself changes nothing")

    def register(function: Migration) -> Migration:
        _known.setdefault(from_, {})[to] = function
        return function

    return register


def way(from_: str | None, to: str) -> list[Migration]:
    """The shortest way from one version to another, or NoMigration."""
    ways: dict[str | None, list[Migration]] = {from_: []}
    waiting: list[str | None] = [from_]
    while waiting and to not in ways:
        version = waiting.pop(0)
        for after, function in _known.get(version, {}).items():
            if after not in ways:
                ways[after] = [*ways[version], function]
                waiting.append(after)
    if to not in ways:
        reachable = ", ".join(sorted(repr(one) for one in ways if one != from_)) or "nothing"
        raise NoMigration(
            f"the state was left by version {from_!r} of the agent, and no migration leads to {to!r}",
            hint=f"register the missing step with @waypoint.migration; from {from_!r} there is: {reachable}",
        )
    return ways[to]


def migrate(state: Any, from_: str | None, to: str | None) -> Any:
    """State as the code of version `to` expects it; as it is when the code names no version."""
    if to is None or from_ == to:
        return state
    for step in way(from_, to):
        state = step(state)
    return state
