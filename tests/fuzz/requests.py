"""Requests as a client could send them: frames, arguments, and what the verbs make of both.

The daemon runs on the fake machine of tests/fakes.py, inside this process. A request may be refused with a
typed error. `internal` is a finding, and so is a connection that ends although the frames were whole.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
from tests.fakes import World
from tests.fuzz.mutate import damaged, sendable, text, value
from tests.fuzz.readers import Target

from waypoint.api import requests, wire
from waypoint.core.capture import Wish
from waypoint.daemon.inside.doors import Bucket, DoorRequest
from waypoint.daemon.inside.grammar import ALLOWED, Inside
from waypoint.daemon.server import Server
from waypoint.model import Size
from waypoint.terminal.terminal import Terminal

NOT_CARRIED_OUT = frozenset(
    ["exec", "spawn", "attach", "verify", "bisect", "compare", "daemon_stop", "base_import", "resume", "new"]
)
"""Verbs that need processes, which the fake machine lacks, or that end the daemon. They are decoded only."""
_SESSIONS = ("work", "try")
_REFS = ("@", "@-", "@~2", "c1", "c2", "one", "two", "good", "now", "base", "work:one", "try:c1", "10:27")


class Daemon:
    """A daemon on the fake machine with two sessions and some points."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = World(folder / "world")
        for name in _SESSIONS:
            self.world.app.sessions.new(name, self.world.options, Size())
            for point in ("one", "two"):
                self.world.app.capture.checkpoint(self.world.app.registry.find(name), Wish(point, name=point))
        self.server = Server(self.world.app)

    def answers(self, frames: bytes) -> list[dict[str, Any]]:
        """What the daemon answers to these bytes, up to the end of the connection."""
        own, theirs = socket.socketpair()
        serving = threading.Thread(target=self.server._serve_client, args=(theirs,))
        serving.start()
        with contextlib.closing(own):
            own.sendall(frames)
            own.shutdown(socket.SHUT_WR)
            answers = []
            with contextlib.suppress(wire.Closed):
                while True:
                    kind, body = wire.receive(own)
                    if kind == wire.JSON:
                        answers.append(wire.decode(body))
        serving.join()
        return answers

    def close(self) -> None:
        self.world.close()


def _argument(random: Random, name: str, kind: Any, folder: Path) -> Any:
    """A value for a field: mostly one that fits its type and names something that exists."""
    if random.random() < 0.15:
        return value(random)
    if name in ("session", "sessions"):
        one: Any = random.choice((*_SESSIONS, *_SESSIONS, sendable(text(random))))
        return [one] if name == "sessions" else one
    if name in ("ref", "refs", "since", "evidence", "only"):
        one = random.choice((*_REFS, sendable(text(random))))
        return [one] if name in ("refs", "only") else one
    if name in ("to", "target", "source", "file", "paths", "sources"):
        # Never a path of this machine outside the folder of the test.
        one = str(folder / "files" / random.choice(("a", "b/c", "../files/d", ".")))
        return [one] if name in ("paths", "sources") else one
    return _of_type(random, kind, folder)


def _of_type(random: Random, kind: Any, folder: Path, depth: int = 2) -> Any:
    match kind:
        case msgspec.inspect.UnionType(types=types):
            return _of_type(random, random.choice(types), folder, depth)
        case msgspec.inspect.StrType():
            return sendable(text(random))
        case msgspec.inspect.BoolType():
            return random.random() < 0.5
        case msgspec.inspect.IntType():
            return random.choice((0, 1, 2, 3, -1, 1 << 40))
        case msgspec.inspect.FloatType():
            return random.choice((0.01, 1, 0, -1, 1e9))
        case msgspec.inspect.LiteralType(values=values) | msgspec.inspect.EnumType(cls=values):
            return random.choice(list(values))
        case msgspec.inspect.BytesType():
            return random.choice(("", "eHg=", "=", "????"))
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item):
            return [_of_type(random, item, folder, depth - 1) for _ in range(random.randrange(3))]
        case msgspec.inspect.StructType(fields=fields) if depth:
            return {
                field.encode_name: _argument(random, field.encode_name, field.type, folder)
                for field in fields
                if random.random() < 0.6
            }
        case msgspec.inspect.NoneType():
            return None
    return value(random)


def _arguments(random: Random, verb: str, folder: Path) -> dict[str, Any]:
    described = msgspec.inspect.type_info(requests.kind_of(verb))
    assert isinstance(described, msgspec.inspect.StructType)
    given = {
        field.encode_name: _argument(random, field.encode_name, field.type, folder)
        for field in described.fields
        if field.required or random.random() < 0.4
    }
    if random.random() < 0.05:
        given[sendable(text(random, 8))] = value(random)
    return given


def _raw(random: Random) -> str:
    """A word as a process in a box can send it: any bytes but NUL."""
    return text(random).replace("\0", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


def _check(answers: list[dict[str, Any]], asked: object) -> None:
    for answer in answers:
        error = answer.get("error")
        assert not error or error["code"] != "internal", (error, asked)


def targets(daemon: Daemon) -> Iterator[Target]:
    """The daemon's socket. What one request changes, the next one finds."""

    def carry_out(random: Random, _: Path) -> None:
        verb = random.choice(requests.VERBS)
        arguments = _arguments(random, verb, daemon.folder)
        if verb == "checkpoint":
            arguments.pop("verify", None)
        if verb == "rm":
            arguments["sessions"] = ["", "none", _SESSIONS[0] + " "]
        if verb in NOT_CARRIED_OUT:
            requests.decode(verb, msgspec.json.encode(arguments))
            return
        body = {"verb": verb, "args": arguments, "api": 1}
        answers = daemon.answers(wire.frame_json(body))
        assert len(answers) >= 2, (answers, body)
        _check(answers, body)

    def frames(random: Random, _: Path) -> None:
        good = wire.frame_json({"verb": random.choice(("ls", "ping", "log")), "args": {}, "api": 1})
        given = damaged(random, good * random.randrange(1, 4))
        if random.random() < 0.2:
            given = struct.pack(
                ">cI", random.choice((b"J", b"D", b"?")), random.choice((0, 3, 1 << 20, 1 << 32 - 1))
            )
        _check(daemon.answers(given), given)

    def from_inside(random: Random, _: Path) -> None:
        row = daemon.world.app.registry.find(random.choice(_SESSIONS))
        door = SimpleNamespace(
            session_id=row.id,
            box_id=row.box,
            closed=False,
            capturing=None,
            changed=threading.Condition(),
            words=Bucket(1 << 30, 1),
            points=Bucket(1 << 30, 1),
        )
        name = random.choice(tuple(ALLOWED))
        options = [*ALLOWED[name].options(), "--", "--json", "-s"]
        words = [
            random.choice((random.choice(options), random.choice(_REFS), _raw(random))) for _ in range(3)
        ]
        words = [*name.split(" "), *words[: random.randrange(4)]]
        given = DoorRequest(
            "0" * 32, tuple(words), "/srv/\udcff", random.randrange(200), random.choice((0, 1000))
        )
        answer = inside.answer(door, given)  # type: ignore[arg-type]
        assert answer.status is not None

    inside = Inside(daemon.world.app)
    yield Target("words from inside", from_inside, weight=12)
    yield Target("requests", carry_out, weight=12)
    yield Target("frames", frames, weight=12)


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[Daemon]:
    """A daemon for a campaign. There is no process in the terminals of the fake machine."""
    foreground_group = Terminal._foreground_group
    Terminal._foreground_group = lambda _: None  # type: ignore[assignment,method-assign]
    made = Daemon(folder)
    try:
        yield made
    finally:
        made.close()
        Terminal._foreground_group = foreground_group  # type: ignore[method-assign]
