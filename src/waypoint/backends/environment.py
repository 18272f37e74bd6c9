"""The interface: an environment in which commands run, whose state can be kept, brought back and copied.

A backend fills it with what it has. What it really keeps is said in `capabilities`, for a point in
`Point.keeps`, and after a restore in `Restored.lost`. Asking for what is not kept (`needs`) raises NotKept:
nothing is lost without a word.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, get_args

from waypoint import errors

Kept = Literal["files", "processes", "memory", "terminal"]
"""What a point can hold: the files; that the same programs run; what they had in memory; the shell with its
folder and variables, and its screen."""
KEPT: tuple[Kept, ...] = get_args(Kept)

ENDED_BY_TIMEOUT = 124
"""The exit code of a command that took too long, as of timeout(1)."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend really keeps and can do. `keeps` is what each of its points holds."""

    files: bool = True
    processes: bool = False
    memory: bool = False
    terminal: bool = False
    in_place: bool = False
    """A restore brings the same environment back: its name stays, and clients need not find another one."""
    live_forks: bool = False
    """Several environments that grew from one point run side by side."""
    shell: bool = False
    """`cd` and `export` of one command last until the next: all of them run in one shell."""
    isolated: bool = False
    """Commands cannot change files of this machine."""
    notes: tuple[str, ...] = ()
    """What differs from that, one sentence each."""

    @property
    def keeps(self) -> frozenset[Kept]:
        """The same as a set."""
        return frozenset(name for name in KEPT if getattr(self, name))


@dataclass(frozen=True)
class RunResult:
    """What a command did. `output` has what it wrote to stdout and stderr."""

    command: str
    exit_code: int
    output: str
    seconds: float
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.exit_code == 0 and not self.timed_out

    def check(self) -> RunResult:
        """Itself. TimedOut when it took too long, CommandFailed when it did not exit with 0."""
        if self.timed_out:
            raise errors.TimedOut(
                f"`{self.command}` took longer than it may", hint="give it a longer `timeout`"
            )
        if not self.ok:
            raise errors.CommandFailed(
                f"`{self.command}` exited with {self.exit_code}",
                hint=self.output[-500:],
                exit_code=self.exit_code,
            )
        return self


@dataclass(frozen=True)
class Point:
    """One kept state of an environment."""

    id: str
    environment: str
    """The name of the environment that it was taken of."""
    name: str | None = None
    parent: str | None = None
    """The point that the environment stood on before."""
    keeps: frozenset[Kept] = frozenset({"files"})
    virtual: bool = False
    """Whether it is made again by running commands from the nearest point that is not (backend `replay`)."""


@dataclass(frozen=True)
class Restored:
    """What came of a restore."""

    point: Point
    lost: tuple[str, ...] = ()
    """What the point did not bring back, one sentence each."""
    started: tuple[str, ...] = ()
    """Services that were started again."""
    replayed: tuple[str, ...] = ()
    """Commands that were run again."""


@dataclass(frozen=True)
class Difference:
    """What changed in the files, as paths of the environment in order. A folder that came or went is one
    path, whatever is in it."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


@dataclass
class Lineage:
    """The points of an environment, oldest first, and the one it stands on. For backends that have no list
    of their own."""

    points: list[Point] = field(default_factory=list)
    head: str | None = None

    def add(self, point: Point) -> Point:
        """It stands on this point now."""
        self.points.append(point)
        self.head = point.id
        return point

    def find(self, point: Point | str | None) -> Point:
        """The point that is meant; without one the last that was reached."""
        wanted = (point.id if isinstance(point, Point) else point) or self.head
        for one in self.points:
            if wanted is not None and wanted in {one.id, one.name}:
                return one
        names = ", ".join(one.name or one.id for one in self.points) or "none"
        raise errors.NotFound(
            f"no point {wanted!r} in this environment" if wanted else "this environment has no point yet",
            hint=f"its points: {names}",
        )

    def until(self, point: Point) -> Lineage:
        """What an environment that grows from this point knows: the same points, standing on this one."""
        return Lineage([*self.points], point.id)


class Environment(ABC):
    """A place in which commands run. Made by `waypoint.backends.open`; as a context manager it ends with the
    block. Paths are absolute paths of the environment."""

    backend: ClassVar[str]
    """The word that `open` takes."""

    name: str
    """Which one it is: the same after a restore, another one for a fork."""

    # ---- its life ----------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def start(cls, **options: Any) -> Self:
        """Starts a new one. The options are the backend's own. MissingFeature when this machine lacks what
        the backend needs: the hint says what to install."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What is really kept."""

    @abstractmethod
    def park(self) -> Point:
        """Takes a point and ends everything that runs; `restore` brings it back."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it. Its points end with it, but for those from which another environment has grown. A second
        call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- commands and files ------------------------------------------------------------------

    @abstractmethod
    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> RunResult:
        """Runs a bash command to its end. What it leaves in the background goes on. After `timeout` seconds
        it is ended: the answer then has `timed_out`, and its `check()` raises TimedOut. SessionDead when the
        environment does not run."""

    @abstractmethod
    def put(self, source: str | os.PathLike[str], target: str) -> None:
        """Copies a file or folder of this machine to exactly this path; a folder that exists there gets its
        content. NotFound when there is no such source."""

    @abstractmethod
    def get(self, source: str, target: str | os.PathLike[str]) -> None:
        """Copies a file or folder out to exactly this path of this machine, in the same way."""

    # ---- points ------------------------------------------------------------------------------

    @abstractmethod
    def checkpoint(self, name: str | None = None, *, needs: Collection[Kept] = ()) -> Point:
        """Keeps the state. It goes on running. NotKept, and nothing is taken, when the point would not hold
        what is needed. AlreadyExists when the name is taken in this environment."""

    @abstractmethod
    def points(self) -> list[Point]:
        """The points that it can be taken back to, oldest first."""

    @abstractmethod
    def restore(self, point: Point | str | None = None, *, needs: Collection[Kept] = ()) -> Restored:
        """Takes it back to a point, by its id or name; without one to the last. What has changed since is
        lost. NotFound, or NotKept when the point does not hold what is needed: nothing has changed then."""

    @abstractmethod
    def fork(self, point: Point | str | None = None, n: int = 1) -> list[Self]:
        """`n` new environments that grow from a point; without one from a point that is taken now."""

    @abstractmethod
    def diff(self, old: Point | str | None = None, new: Point | str | None = None) -> Difference:
        """What changed in the files from one point (the last) to another (now)."""

    # ---- for `replay` ------------------------------------------------------------------------

    def acts_outside(self, command: str) -> bool | None:
        """Whether a command does something outside of the environment, so that it must not be run again.
        None: this backend cannot tell."""
        return None


# ---- for those who write a backend -----------------------------------------------------------------


def require(backend: str, keeps: Collection[Kept], needs: Iterable[str]) -> None:
    """Raises NotKept, or UsageError for a word that is none, unless all that is needed is kept."""
    needed = list(needs)
    if unknown := [word for word in needed if word not in KEPT]:
        raise errors.UsageError(
            f"{unknown[0]!r} is nothing that a point can hold", hint=f"one of {', '.join(KEPT)}"
        )
    if missing := [word for word in needed if word not in keeps]:
        raise errors.NotKept(
            f"{backend} does not keep {' and '.join(missing)} here",
            hint="the backend `live` keeps files, processes, memory and terminal",
            missing=missing,
        )


def check_name_free(name: str | None, points: Sequence[Point]) -> None:
    """Raises AlreadyExists when a point of that name is there."""
    if name is not None and any(name in {point.name, point.id} for point in points):
        raise errors.AlreadyExists(f"a point {name!r} exists already", hint="choose another name")


def new_name(prefix: str) -> str:
    """A name that no other environment has."""
    return f"{prefix}-{secrets.token_hex(4)}"


def absolute(path: str) -> str:
    """A path of an environment, checked and normalised."""
    if not path.startswith("/") or "\0" in path:
        raise errors.UsageError(f"{path!r} is no absolute path of the environment", hint="begin it with /")
    return os.path.normpath("/" + path.lstrip("/"))


def local(path: str | os.PathLike[str]) -> str:
    """A path of this machine, from where the caller stands."""
    return os.path.abspath(os.fspath(path))


def local_source(path: str | os.PathLike[str]) -> str:
    """The same for something that is to be copied. NotFound when there is no such thing."""
    place = local(path)
    if not os.path.lexists(place):
        raise errors.NotFound(f"cannot copy {place}: it does not exist", path=place)
    return place


def checked_count(n: int) -> int:
    """How many forks. UsageError for fewer than one."""
    if n < 1:
        raise errors.UsageError(f"cannot make {n} forks", hint="at least one")
    return n
