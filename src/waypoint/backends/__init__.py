"""One interface, several backends: where commands run, and how their state is kept.

    from waypoint import backends

    with backends.open("live") as machine:                # or "files", "podman", "replay"
        machine.run("apt-get install -y jq").check()
        point = machine.checkpoint("jq is there")
        left, right = machine.fork(point, 2)
        machine.restore(point)

Choosing one is one word. `capabilities` says what it really keeps; `open("files", needs={"memory"})` raises
NotKept instead of starting something that loses what is needed. docs/backends.md has the table, and how to
write another one (entry point group `waypoint.backends`; `waypoint.backends.conformance` tests it).
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Collection
from typing import Any

from waypoint import errors
from waypoint.backends.environment import (
    Capabilities,
    Difference,
    Environment,
    Kept,
    Point,
    Restored,
    RunResult,
    require,
)

__all__ = [
    "BUILT_IN",
    "GROUP",
    "Capabilities",
    "Difference",
    "Environment",
    "Kept",
    "Point",
    "Restored",
    "RunResult",
    "find",
    "names",
    "open",
]

GROUP = "waypoint.backends"
"""The entry points of packages that bring a backend: a name, and the class `package.module:Class`."""

BUILT_IN = {
    "live": "waypoint.backends.live:LiveEnvironment",
    "files": "waypoint.backends.files:FilesEnvironment",
    "podman": "waypoint.backends.podman:PodmanEnvironment",
    "replay": "waypoint.backends.replay:ReplayEnvironment",
}


def open(name: str = "live", *, needs: Collection[Kept] = (), **options: Any) -> Environment:  # noqa: A001
    """Starts an environment of the backend of that name; `options` are the backend's own.

    `needs`: what a point has to hold (`files`, `processes`, `memory`, `terminal`). NotKept, and nothing is
    left running, when it would not. NotFound for a backend that is not there, MissingFeature when this
    machine lacks what the backend needs.
    """
    environment = find(name).start(**options)
    try:
        require(name, environment.capabilities.keeps, needs)
    except BaseException:
        environment.stop()
        raise
    return environment


def find(name: str) -> type[Environment]:
    """The class of a backend. The four of Waypoint cannot be replaced by a package."""
    target = BUILT_IN.get(name) or _others().get(name)
    if target is None:
        raise errors.NotFound(f"there is no backend {name!r}", hint=f"there are {', '.join(names())}")
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise errors.MissingFeature(
            f"the backend {name!r} cannot be loaded: {error}",
            hint=f"is the package of {target} installed whole?",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise errors.UsageError(
            f"the backend {name!r} is no Environment: {target}",
            hint="a backend is a subclass of waypoint.backends.Environment",
        )
    return found


def names() -> list[str]:
    """The backends that can be opened, those of Waypoint first."""
    return [*BUILT_IN, *sorted(set(_others()) - set(BUILT_IN))]


def _others() -> dict[str, str]:
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=GROUP)}
