"""A session of StateFork: several sessions that belong together, and their points.

StateFork calls a session what has a `main` environment and forks of it, with ids that programs choose, and
one set of checkpoints. Here `main` is the session of that name, and the fork `left` is the session
`NAME.1.left`; a later fork with the same id is `NAME.2.left`. A checkpoint is a point of one of them, under
the id as its name. So nothing is kept beside the sessions and points: other processes, and `waypoint log`,
see the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shlex
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import waypoint
from waypoint import errors, model
from waypoint.adapters.statefork_records import Command
from waypoint.api import requests
from waypoint.home import Home, Settings

MAIN = "main"
"""The environment that is always there."""
_NO_NAME = re.compile(r"_*(c\d+|good|now|base)")
"""What the name of a point may not be, or stands for that: it gets a `_` in front."""
_NOT_PERMITTED = 126
_BASE = "statefork-"
"""How the names of bases begin that were made of Dockerfiles."""


@dataclass(frozen=True)
class Machine:
    """A live environment."""

    id: str
    session: waypoint.Session
    pid: int
    checkpoint: str | None
    """Where it stands: the id of a checkpoint."""
    status: str


@dataclass(frozen=True)
class SavedCheckpoint:
    """An immutable checkpoint."""

    id: str
    point: str
    """What Waypoint calls it: the id of the point."""
    parent_id: str | None
    fork: str
    """The id of the environment in which it was taken."""
    info: model.Checkpoint


@dataclass(frozen=True)
class Done:
    """What came of a command."""

    exit_code: int | None
    output: str
    timed_out: bool = False


class Machines:
    """The sessions that belong to one of them. Objects of this class hold nothing that could be lost."""

    def __init__(self, name: str, *, home: str | None = None) -> None:
        """NotFound when there is no such session."""
        self.id = name
        self.home = Home(Path(home or Settings.read().home))
        self._client = waypoint.Client(home)
        if not any(info.name == name for info in self._sessions()):
            raise errors.NotFound(f"there is no session {name!r}")

    @classmethod
    def start(cls, folder: str, *, build: bool, home: str | None = None, **options: Any) -> Self:
        """A new one: over what the Dockerfile in a folder makes, or (`build` off) over a folder that is a
        root file system. What a Dockerfile makes is kept as a base, and used again while all files of the
        folder are the same. `options`: of `waypoint.session`."""
        name, client = new_id(), waypoint.Client(home)
        base = os.path.abspath(folder)
        if build:
            base = f"{_BASE}{_digest(folder)}"
            if base not in {one.name for one in client.bases.list()}:
                with contextlib.suppress(errors.AlreadyExists):  # by another program, meanwhile
                    client.bases.import_(base, os.path.join(folder, "Dockerfile"))
        waypoint.session(name, base=base, home=home, actor="agent", **options)
        return cls(name, home=home)

    @property
    def folder(self) -> str:
        """A name for its place. There is no such folder: files go through `copy`."""
        return str(self.home.path / "statefork" / self.id / "work")

    # ---- what there is -----------------------------------------------------------------------

    def _sessions(self) -> list[model.Session]:
        return [info for info in self._client.ask(requests.Ls()).sessions if self._fork_of(info.name)]

    def _fork_of(self, session: str) -> str | None:
        """The id of the environment that a session is, None for a session of others."""
        if session == self.id:
            return MAIN
        number, _, fork = session.removeprefix(f"{self.id}.").partition(".")
        return fork if session.startswith(f"{self.id}.") and number.isdecimal() and fork else None

    def checkpoints(self) -> list[SavedCheckpoint]:
        """All of them, oldest first."""
        points = {point.id: point.info for point in self._client.checkpoints()}
        mine = {
            point.id: fork
            for point in points.values()
            if point.kind != "safety" and (fork := self._fork_of(point.session))
        }
        return [
            SavedCheckpoint(
                id=_id_of(points[number]),
                point=number,
                parent_id=_nearest(points, mine, points[number].parent),
                fork=fork,
                info=points[number],
            )
            for number, fork in mine.items()
        ]

    def checkpoint_of(self, checkpoint_id: str) -> SavedCheckpoint:
        """NotFound when there is none with this id."""
        for one in self.checkpoints():
            if one.id == checkpoint_id:
                return one
        raise errors.NotFound(f"there is no checkpoint {checkpoint_id!r} in {self.id}")

    def sizes(self) -> dict[str, int]:
        """What each checkpoint takes on disk by itself."""
        return {one.id: one.info.size_bytes for one in self.checkpoints()}

    def live(self) -> list[Machine]:
        """The environments that live, by id."""
        infos = [info for info in self._sessions() if info.state in {"live", "dead"}]
        points = {point.id: point.info for point in self._client.checkpoints()} if infos else {}
        mine = {
            key for key, point in points.items() if point.kind != "safety" and self._fork_of(point.session)
        }
        machines = [
            Machine(
                id=str(self._fork_of(info.name)),
                session=self._session(info.name),
                pid=info.pid or 0,
                checkpoint=_nearest(points, mine, info.head),
                status="running" if info.state == "live" else "failed",
            )
            for info in infos
        ]
        return sorted(machines, key=lambda machine: machine.id)

    def session_of(self, fork: str) -> waypoint.Session:
        """The session of a live environment. NotFound when there is none with this id."""
        for info in self._sessions():
            if self._fork_of(info.name) == fork and info.state in {"live", "dead"}:
                return self._session(info.name)
        raise errors.NotFound(f"there is no live fork {fork!r} in {self.id}")

    def _session(self, name: str) -> waypoint.Session:
        return waypoint.Session(self._client, name, "agent")

    # ---- what can be done --------------------------------------------------------------------

    def checkpoint(self, fork: str, checkpoint_id: str, *, park: bool = False) -> str:
        """Takes a point of an environment, and with `park` ends it. The point's own id."""
        if any(one.id == checkpoint_id for one in self.checkpoints()):
            raise errors.AlreadyExists(f"there is a checkpoint {checkpoint_id!r} already")
        session, name = self.session_of(fork), _name_of(checkpoint_id)
        return (session.park(name) if park else session.checkpoint(name=name)).id

    def fork(self, checkpoint_id: str, fork: str | None = None) -> Machine:
        """A new live environment, as it was at a checkpoint."""
        origin = self.checkpoint_of(checkpoint_id)
        fork = fork or new_id("fork-")
        infos = self._sessions()
        before = [info for info in infos if self._fork_of(info.name) == fork]
        if fork == MAIN or any(info.state in {"live", "dead"} for info in before):
            raise errors.AlreadyExists(f"there is a fork {fork!r} already")
        numbers = [int(info.name.removeprefix(f"{self.id}.").partition(".")[0]) for info in before]
        name = f"{self.id}.{max(numbers, default=0) + 1}.{fork}"
        (made,) = self._session(origin.info.session).fork(ref=origin.point, names=[name])
        return Machine(fork, made, made.info.pid or 0, checkpoint_id, "running")

    def restore(self, checkpoint_id: str) -> Machine:
        """Takes `main` back to a checkpoint, in place. What has changed since its last one is lost."""
        origin = self.checkpoint_of(checkpoint_id)
        session = self._session(self.id)
        session.restore(f"{origin.info.session}:{origin.point}", safety=False)
        return next(machine for machine in self.live() if machine.id == MAIN)

    def end(self, fork: str) -> None:
        """Ends an environment. Its checkpoints stay; what is in none is lost."""
        session = self.session_of(fork)
        if any(one.info.session == session.name for one in self.checkpoints()):
            session.stop(discard=True)
        else:
            session.remove()

    def run(self, fork: str, command: Command, timeout: float | None = None) -> Done:
        """Runs a command in the shell of an environment: `cd`, variables, functions and jobs last. It is an
        agent's: what needs approval is refused."""
        line = command if isinstance(command, str) else shlex.join(command)
        try:
            result = self.session_of(fork).run(line, timeout=timeout, on_approval="deny")
        except errors.PolicyDenied as error:
            return Done(_NOT_PERMITTED, f"{error.message}\n")
        return Done(result.exit_code, result.output, result.timed_out)

    def copy(self, fork: str, host_path: str, path: str, *, into: bool) -> None:
        """Copies a file or a folder into an environment or out of it, as `cp -a` does."""
        session = self.session_of(fork)
        if into:
            session.copy_in(os.path.abspath(host_path), path)
        else:
            session.copy_out(path, os.path.abspath(host_path))

    def suspend(self) -> None:
        """Ends all environments. The checkpoints stay."""
        for machine in self.live():
            self.end(machine.id)

    def remove(self) -> None:
        """Removes all of it."""
        infos = self._sessions()
        if infos:
            with contextlib.suppress(errors.NotFound):
                self._client.ask(requests.Rm(sessions=tuple(info.name for info in infos)))


def new_id(prefix: str = "") -> str:
    """An id that no other one has."""
    return f"{prefix}{secrets.token_hex(4 if prefix else 8)}"


def _digest(folder: str) -> str:
    """Of all that a Dockerfile can bring in: names, modes and contents."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*")):
        mode = path.lstat().st_mode
        digest.update(f"{path.relative_to(folder)}\0{mode:o}\0".encode(errors="surrogateescape"))
        if path.is_symlink():
            digest.update(os.fsencode(path.readlink()))
        elif path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _name_of(checkpoint_id: str) -> str:
    return f"_{checkpoint_id}" if _NO_NAME.fullmatch(checkpoint_id) else checkpoint_id


def _id_of(point: model.Checkpoint) -> str:
    """Of a point that has no name: its own id."""
    name = point.name or point.id
    return name[1:] if name.startswith("_") and _NO_NAME.fullmatch(name) else name


def _nearest(points: Mapping[str, model.Checkpoint], mine: Container[str], at: str | None) -> str | None:
    """The checkpoint at a point or before it."""
    while at and at not in mine:
        at = points[at].parent if at in points else None
    return _id_of(points[at]) if at else None
