"""The list of attacks, and what they are given to attack with."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import until

import waypoint
from waypoint.errors import NotFound, WaypointError
from waypoint.home import Home

PYTHON = "/usr/bin/python3"
"""In every session over the host's own files."""

Play = Callable[["Scene"], str | None]


@dataclass(frozen=True)
class Attack:
    """`play` fails with an AssertionError where the attack succeeds. What it returns is a measurement."""

    name: str
    line: str
    """What of the threat model in docs/security.md it holds."""
    play: Play
    quick: bool
    """Whether it is part of `make test`."""


ATTACKS: list[Attack] = []


def attack(name: str, line: str, *, quick: bool = False) -> Callable[[Play], Play]:
    """Registers a function as an attack."""

    def register(play: Play) -> Play:
        assert all(known.name != name for known in ATTACKS), name
        ATTACKS.append(Attack(name, line, play, quick))
        return play

    return register


@dataclass
class Scene:
    """A home with sessions for one attack. Everything that it makes is removed after it."""

    home: Home
    made: list[str] = field(default_factory=list)

    def session(self, name: str, **options: object) -> waypoint.Session:
        self.made.append(name)
        return waypoint.session(name, **options)  # type: ignore[arg-type]

    def limited(self, name: str) -> waypoint.Session:
        """A session with small limits, so that the attack is a small one too."""
        return self.session(name, pids=160, memory_bytes=256 << 20)

    def lives(self, session: waypoint.Session) -> Iterator[tuple[str, waypoint.Session]]:
        """The session as it is, after a restore, and a fork of it: each time with its name."""
        yield "at first", session
        point = session.checkpoint("before the attack")
        session.restore(point)
        yield "after a restore", session
        fork = point.fork(name=f"{session.name}-fork")[0]
        self.made.append(fork.name)
        yield "in a fork", fork

    def close(self) -> None:
        names = {session.name for session in waypoint.sessions()} & {*self.made}
        if names:
            waypoint.Client().call("rm", {"sessions": sorted(names)})


OUTPUT = "/root/attack.out"
"""Where its output goes."""


def hostile(session: waypoint.Session, script: str, *words: str) -> None:
    """Runs Python in a session as a background job of its shell. Returns when it has printed `ready`."""
    session.write_file("/root/attack.py", script.encode())
    session.run(f"({PYTHON} /root/attack.py {shlex.join(words)} >{OUTPUT} 2>&1 &)").check()
    until(lambda: b"ready\n" in printed(session))


def printed(session: waypoint.Session) -> bytes:
    """What an attack has printed so far."""
    try:
        return session.read_file(OUTPUT)
    except NotFound:
        return b""


def timed(verb: Callable[[], object]) -> tuple[float, WaypointError | None]:
    """How long a verb took, and the error that it ended with. Other exceptions pass."""
    started = time.monotonic()
    try:
        verb()
    except WaypointError as error:
        return time.monotonic() - started, error
    return time.monotonic() - started, None


def run(one: Attack, folder: Path) -> str | None:
    """Plays an attack in a home."""
    scene = Scene(Home(folder))
    try:
        return one.play(scene)
    finally:
        scene.close()
