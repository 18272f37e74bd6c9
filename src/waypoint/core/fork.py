"""New sessions grown from a point, side by side: all of them or none."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from waypoint.core.boxes import Boxes
from waypoint.core.capture import Capture, Wish
from waypoint.core.copies import Copies
from waypoint.core.forkhooks import DEFAULT_SECONDS, ForkHooks
from waypoint.core.live import Live, new_id
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.errors import AlreadyExists, CannotRestore, UsageError
from waypoint.history import refs
from waypoint.history.redaction import Redactor
from waypoint.kernel import faults
from waypoint.model import Actor, Checkpoint, Forked
from waypoint.store.sessions import SessionRow

_MOST_FORKS = 256


class Fork:
    """Forks the sessions of one home."""

    def __init__(
        self,
        registry: Registry,
        boxes: Boxes,
        copies: Copies,
        remains: Remains,
        capture: Capture,
        hooks: ForkHooks,
    ) -> None:
        self._registry, self._boxes, self._copies, self._remains = registry, boxes, copies, remains
        self._capture, self._hooks = capture, hooks

    def grow(
        self,
        row: SessionRow,
        ref: str | None,
        n: int = 1,
        name: str | None = None,
        names: Sequence[str] = (),
        actor: Actor = "person",
        hook_seconds: float | None = DEFAULT_SECONDS,
    ) -> list[Forked]:
        """New live sessions from a point; without one from the session as it is now. `hook_seconds`: how long
        the hooks of each may take; None: none are run."""
        if names and (name is not None or n not in (1, len(names))):
            raise UsageError("either names for all forks, or a number", hint="leave the one or the other out")
        n = len(names) or n
        if not 1 <= n <= _MOST_FORKS:
            raise UsageError(f"cannot make {n} forks", hint=f"between 1 and {_MOST_FORKS}")
        point = self._registry.point(row, ref) if ref else None
        origin = (self._registry.store.sessions.find(point.session) if point else None) or row
        new = self._names(name, names, n, origin.name)  # before a point is taken for them
        if point is None:
            point = self._present(row, new, actor)
        with self._registry.using(point, arriving=True) as point:
            forks, failures = self._bring_up(origin, point, new, hook_seconds)
            try:
                if failures:
                    raise failures[0]
                faults.reach("fork.copied")
                for live, fork in forks:
                    self._add(live, fork, origin, point, actor)
                    faults.reach("fork.stored")
            except BaseException as error:
                for live, fork in forks:
                    self._boxes.end(live, "a fork beside it failed")
                    self._registry.store.sessions.remove(fork.id)
                    self._remains.delete(live.box.volume)
                if isinstance(error, OSError):
                    raise CannotRestore(f"the fork failed: {error}") from error
                raise
        return [fork for _, fork in forks]

    def _present(self, row: SessionRow, names: Sequence[str], actor: Actor) -> Checkpoint:
        """A point of the session as it is now. One that does not run stands at its last point."""
        if row.state != "live" and row.head:
            return self._registry.point(row, "@")
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        return self._capture.checkpoint(row, Wish(f"forked as {shown}", actor=actor))

    def _bring_up(
        self, origin: SessionRow, point: Checkpoint, names: list[str], hook_seconds: float | None
    ) -> tuple[list[tuple[Live, Forked]], list[BaseException]]:
        started = time.perf_counter()
        redactor = Redactor.for_variables(self._registry.facts(point).shell.values)

        def bring_up(name: str) -> tuple[Live, Forked]:
            session_id = new_id()
            copy = self._copies.bring_up(name, origin.options, point, session_id)
            variables = {
                "WAYPOINT_FORK_ID": session_id,
                "WAYPOINT_FORK_POINT": point.id,
                "WAYPOINT_FORK_ORIGIN": origin.name,
                "WAYPOINT_SESSION": name,
            }
            hooks = self._hooks.run(copy.live, variables, redactor, hook_seconds) if hook_seconds else ()
            ready_ms = round((time.perf_counter() - started) * 1000, 3)
            fork = Forked(
                id=session_id,
                name=name,
                ready_ms=ready_ms,
                spare=copy.spare,
                base_changes=copy.base_changes,
                hooks=hooks,
            )
            return copy.live, fork

        forks: list[tuple[Live, Forked]] = []
        failures: list[BaseException] = []
        with ThreadPoolExecutor(max_workers=min(len(names), 2 * (os.cpu_count() or 1))) as workers:
            for outcome in [workers.submit(bring_up, name) for name in names]:
                if failure := outcome.exception():
                    failures.append(failure)
                else:
                    forks.append(outcome.result())
        return forks, failures

    def _add(self, live: Live, fork: Forked, origin: SessionRow, point: Checkpoint, actor: Actor) -> None:
        self._registry.store.sessions.add(
            fork.id,
            fork.name,
            origin.options,
            box=live.box.id,
            head=point.id,
            first_shell=origin.first_shell,
            beginning=origin.beginning,
            actor=actor,
            policy=origin.policy,
        )
        self._registry.add(live)
        self._registry.trajectory.adopt(live.stream)

    def _names(self, name: str | None, given: Sequence[str], n: int, origin: str) -> list[str]:
        taken = {row.name for row in self._registry.store.sessions.all()}
        if name is None and not given:
            free = (f"{origin}-{number}" for number in itertools.count(1))
            return list(itertools.islice((name for name in free if name not in taken), n))
        if name is not None:
            given = [name] if n == 1 else [f"{name}-{number}" for number in range(1, n + 1)]
        names = [refs.check_name(one, "session") for one in given]
        if len(set(names)) < len(names):
            raise UsageError("two forks cannot have one name", hint="give each a name of its own")
        for clash in filter(taken.__contains__, names):
            raise AlreadyExists(f"there is a session {clash!r} already", hint="choose another name")
        return names
