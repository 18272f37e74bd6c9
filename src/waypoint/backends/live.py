"""The backend `live`: a session of Waypoint. It keeps everything: files, processes, memory and the
terminal."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Self

import waypoint
from waypoint import errors
from waypoint.backends.environment import (
    ENDED_BY_TIMEOUT,
    KEPT,
    Capabilities,
    Difference,
    Environment,
    Kept,
    Point,
    Restored,
    RunResult,
    absolute,
    checked_count,
    local,
    local_source,
    new_name,
    require,
)

_EVERYTHING: frozenset[Kept] = frozenset(KEPT)
_FILES: frozenset[Kept] = frozenset({"files"})
_ASK_SECONDS = 60.0


class LiveEnvironment(Environment):
    """A session as an environment. `session` is the SDK's object for it, with all that only a session can."""

    backend = "live"

    def __init__(self, session: waypoint.Session) -> None:
        self.session = session
        self.name = session.name
        self._stopped = False

    @classmethod
    def start(cls, name: str | None = None, **options: Any) -> Self:
        """`name`, and the options of `waypoint.session` (`base`, `net`, `user`, `memory_bytes`, …).
        AlreadyExists when there is a session of that name."""
        chosen = name or new_name("env")
        if any(one.name == chosen for one in waypoint.sessions(options.get("home"))):
            raise errors.AlreadyExists(f"a session {chosen!r} exists already", hint="choose another name")
        return cls(waypoint.session(chosen, **options))

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(  # noqa: S604 - not the `shell` of subprocess
            processes=True,
            memory=True,
            terminal=True,
            in_place=True,
            live_forks=True,
            shell=True,
            isolated=self.session.info.options.confined,
        )

    def park(self) -> Point:
        return self._point(self.session.park())

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.session.remove()

    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> RunResult:
        result = self.session.run(command, timeout=timeout, cwd=cwd, env=env, stdin=stdin, plain=True)
        exit_code = ENDED_BY_TIMEOUT if result.timed_out else result.exit_code
        if exit_code is None:
            raise errors.SessionDead(f"`{command}` ended with {self.name}", hint="`restore` brings it back")
        return RunResult(command, exit_code, result.output, result.duration_ms / 1000, result.timed_out)

    def put(self, source: str | os.PathLike[str], target: str) -> None:
        place, path = local_source(source), absolute(target)
        from_folder = os.path.isdir(place) and not os.path.islink(place)
        to_folder = self._ask('[ -d "$1" ]', path)
        if to_folder and not from_folder:
            raise errors.UsageError(
                f"cannot copy a file to {path}: it is a folder", hint="name the file", path=path
            )
        self._ask('mkdir -p -- "$(dirname -- "$1")"', path)
        # `cp -a SOURCE/. TARGET` when the folder is there, else `cp -a SOURCE TARGET`.
        self.session.copy_in(f"{place}/." if to_folder else place, path)

    def get(self, source: str, target: str | os.PathLike[str]) -> None:
        path, place = absolute(source), local(target)
        from_folder = self._ask('[ -d "$1" ] && [ ! -L "$1" ]', path)
        if os.path.isdir(place) and not from_folder:
            raise errors.UsageError(
                f"cannot copy a file to {place}: it is a folder", hint="name the file", path=place
            )
        os.makedirs(os.path.dirname(place), exist_ok=True)
        self.session.copy_out(f"{path}/." if from_folder and os.path.isdir(place) else path, place)

    def _ask(self, script: str, path: str) -> bool:
        """Whether a line of the shell succeeds, beside the session's own shell."""
        program = self.session.spawn(["/bin/bash", "-c", script, "bash", path])
        program.communicate(timeout=_ASK_SECONDS)
        return program.exit_code == 0

    def checkpoint(self, name: str | None = None, *, needs: Collection[Kept] = ()) -> Point:
        require(self.backend, _EVERYTHING, needs)
        return self._point(self.session.checkpoint(name=name))

    def points(self) -> list[Point]:
        return [self._point(point) for point in self.session.log()]

    def restore(self, point: Point | str | None = None, *, needs: Collection[Kept] = ()) -> Restored:
        found = self._point(self.session.point(_ref(point)))
        require(f"the point {found.name or found.id}", found.keeps, needs)
        # What has changed since the point is lost by contract: no safety checkpoint is needed for that.
        restored = self.session.restore(found.id, safety=False)
        lost = () if found.keeps == _EVERYTHING else ("the point holds only files: a new shell was started",)
        return Restored(found, (*lost, *restored.checkpoint.coverage))

    def fork(self, point: Point | str | None = None, n: int = 1) -> list[Self]:
        found = self.session.checkpoint() if point is None else self.session.point(_ref(point))
        names = [new_name("env") for _ in range(checked_count(n))]
        return [type(self)(session) for session in self.session.fork(n, ref=found.id, names=names)]

    def diff(self, old: Point | str | None = None, new: Point | str | None = None) -> Difference:
        diff = self.session.diff(_ref(old), None if new is None else _ref(new), only=("files",))
        changes = diff.files
        return Difference(
            added=_paths(changes, "created") + _paths(changes, "renamed"),
            changed=_paths(changes, "modified"),
            removed=_paths(changes, "deleted")
            + tuple(c["old_path"] for c in changes if c["kind"] == "renamed"),
        )

    def acts_outside(self, command: str) -> bool | None:
        return self.session.judge(command).class_ not in {"read-only", "reversible"}

    def _point(self, point: waypoint.Checkpoint) -> Point:
        info = point.info
        return Point(
            id=info.id,
            environment=info.session,
            name=info.name,
            parent=info.parent,
            keeps=_FILES if info.files_only else _EVERYTHING,
        )


def _ref(point: Point | str | None) -> str:
    return "@" if point is None else point.id if isinstance(point, Point) else point


def _paths(changes: list[dict[str, Any]], kind: str) -> tuple[str, ...]:
    return tuple(change["path"] for change in changes if change["kind"] == kind)
