"""What runs: a session in its box, a program beside its shell, a copy before its first instruction."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from waypoint.agent.trajectory import Stream
from waypoint.box.box import Box
from waypoint.box.users import ROOT, User, find_user
from waypoint.core.engine import HeldTree, TrackedMemory
from waypoint.errors import SessionDead
from waypoint.kernel import locks
from waypoint.kernel.network.sockets import Connection
from waypoint.kernel.placement import Folder
from waypoint.model import BoxOptions, Checkpoint
from waypoint.terminal.terminal import Terminal

TICKETS_FILE = "inside.json"
"""Beside the images of a point: the clients inside that waited for the daemon when it was taken."""
INSIDE_PATH = "/dev/waypoint/bin/inside"
"""It comes first, before a Waypoint that the base may contain: that one does not work in a box."""
_PATIENCE_SECONDS = 1.0
"""How long the end of a session waits for a verb that is busy with it."""
_PATH = f"{INSIDE_PATH}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def new_id() -> str:
    """Twelve hexadecimal digits."""
    return secrets.token_hex(6)


def start_environment(
    user: User = ROOT, options: BoxOptions | None = None, *, has_terminal: bool = True
) -> dict[str, str]:
    """What the shell and the programs of a session start with. What has no terminal is told so: git, for
    example, starts an editor on any other one."""
    return {
        **user.environment,
        "SHELL": "/bin/bash",
        "PATH": _PATH,
        "TERM": "xterm-256color" if has_terminal else "dumb",
        "LANG": "C.UTF-8",
        **(options.env if options else {}),
    }


@dataclass
class Program:
    """A program outside the shell, with a client at the other end of its pipes."""

    pid: int
    pipes: tuple[int, ...]
    """The inodes of its three pipes: their other ends are outside the tree."""
    box: Box
    ended: threading.Event = field(default_factory=threading.Event)
    exit_code: int | None = None


class Live:
    """A session that runs: its box, its terminal, its stream of events.

    `state` is held by the thread that changes what the session is in its box: a checkpoint, the start of a
    program, a restore, the end.
    """

    def __init__(
        self,
        session_id: str,
        box: Box,
        terminal: Terminal,
        stream: Stream,
        memory: TrackedMemory,
        options: BoxOptions,
    ) -> None:
        self.session_id = session_id
        self.options = options
        """What its box is made of, and who runs its shell."""
        self.stream = stream
        """What happens in it, on its way into the trajectory."""
        self.state = locks.rlock("session state")
        self.box = box
        self.terminal = terminal
        self.memory = memory
        self.programs: dict[int, Program] = {}
        self.early_exits: dict[int, int] = {}
        """Children of the anchor that ended before the thread that started them had registered them."""
        self.exits = locks.lock("exits")
        self.lost_shells = 0
        """How many shells in a row have ended before their first prompt."""
        self.ended = threading.Event()
        """Set when this object no longer stands for anything that runs."""
        self.cleared = False
        """Whether its end has begun. Its descriptors may be reused by other boxes from then on."""

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Holds `state` to end the box. A verb that does not give it up may be waiting for something in the
        box, which must not keep the box from ending: then the box ends first."""
        with patient(self.state, self.box):
            yield

    def user(self, name: str | None = None) -> User:
        """A user of the box, as its files name them now; without a name the one that the session is run by.
        NotFound when there is none."""
        text = name or self.options.user
        if text is None:
            return ROOT
        try:
            with Folder.root_of_box(self.box) as root:
                return find_user(root, text)
        except OSError as error:
            raise SessionDead("the session has just ended") from error

    def first_folder(self, user: User) -> str:
        """Where the shells and programs of a user start."""
        wanted = (self.options.cwd, user.home)
        return next((folder for folder in wanted if folder and self.has_folder(folder)), "/")

    def has_folder(self, path: str) -> bool:
        """Whether there is a folder of this path in the box. Links are followed."""
        try:
            with Folder.root_of_box(self.box) as root, root.enter(path):
                return True
        except OSError:
            return False


@contextlib.contextmanager
def patient(lock: threading.RLock, box: Box | None) -> Iterator[None]:
    """Holds a lock to end a box. If another verb keeps it for long, the processes of the box end first."""
    if not lock.acquire(timeout=_PATIENCE_SECONDS):
        if box:
            box.signal_end()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class Doors(Protocol):
    """The way in which processes in a box send requests to the daemon (daemon/inside)."""

    def open(self, live: Live) -> None: ...
    def close(self, live: Live) -> None: ...
    def closed_for_dump(self, live: Live) -> AbstractContextManager[bytes]: ...
    def answer_waiters(self, live: Live, point: Checkpoint) -> None: ...
    def answer(self, live: Live, point: Checkpoint, stored: bytes) -> None: ...


@dataclass(frozen=True)
class Prepared:
    """What a restore works with: the images of a point, or a copy that names kept files."""

    images: Path
    changes: tuple[str, ...] = ()
    """Files of the base that are others than they were, one sentence for all; empty when there are none."""
    temporary: Path | None = None

    def discard(self) -> None:
        if self.temporary:
            shutil.rmtree(self.temporary, ignore_errors=True)


@dataclass(frozen=True)
class Twin:
    """A copy of a point that exists in a box and has not run yet."""

    live: Live
    held: HeldTree
    name: str
    """The host name of its box."""
    options: BoxOptions
    prepared: Prepared
    """What it was made from."""
    forwarded: tuple[Connection, ...] = ()
    """Connections that were carried into the box of its point: nothing is at their other ends."""

    @property
    def alive(self) -> bool:
        return self.live.box.alive and self.held.complete

    def suits(self, options: BoxOptions) -> bool:
        """Whether its box has these options. The point may belong to another session, with other limits."""
        return msgspec.structs.replace(self.options, spares=options.spares) == options
