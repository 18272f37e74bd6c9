"""The SDK without a daemon: the synchronous and the asynchronous side are the same, and both are complete."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.generate_client import DOCUMENT, MODULES, PACKAGE, generate, reference

import waypoint
from waypoint import aio, errors, model
from waypoint.api import hints, requests, wire
from waypoint.cli import main
from waypoint.client import connection, protocol
from waypoint.home import Home

PUBLIC = (
    *("Bases", "Checkpoint", "Client", "Daemon", "Program"),
    *("Restored", "Resumed", "Session", "Tasks", "Terminal"),
)
SYNC_ONLY = {"asked_on", "__len__"}


def test_a_daemon_that_does_not_start_in_time_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(connection, "_START_SECONDS", 0.1)
    with pytest.raises(errors.DaemonUnreachable, match="has not started within"):
        connection.start_daemon(Home(tmp_path))


@pytest.mark.parametrize("module", MODULES)
def test_the_synchronous_modules_are_up_to_date(module: str) -> None:
    assert generate(module) == (PACKAGE / "client" / f"{module}.py").read_text(), (
        "run tests/generate_client.py"
    )


def test_the_reference_of_the_sdk_is_up_to_date() -> None:
    text = DOCUMENT.read_text()
    assert text == reference(), "run tests/generate_client.py"
    assert "| `` |" not in text
    assert "|  |" not in text, "every method says what it does"


def methods(kind: type) -> dict[str, Any]:
    names = {"__init__", "__len__", *(name for name in dir(kind) if not name.startswith("_"))}
    return {name: inspect.getattr_static(kind, name) for name in sorted(names) if hasattr(kind, name)}


def signature(function: Any) -> list[tuple[str, Any, str, Any]]:
    plain = function.__func__ if isinstance(function, classmethod) else function
    return [
        (one.name, one.kind, re.sub(r"waypoint\.(aio|client)\.", "", str(one.annotation)), one.default)
        for one in inspect.signature(plain).parameters.values()
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_both_sides_have_the_same_methods(name: str) -> None:
    own, other = methods(getattr(waypoint, name)), methods(getattr(aio, name))
    assert set(own) - SYNC_ONLY == set(other) - SYNC_ONLY
    for method, function in own.items():
        if method in SYNC_ONLY:
            continue
        twin = other[method]
        assert type(twin) is type(function), method
        assert twin.__doc__ == function.__doc__, method
        if inspect.isfunction(function):
            assert signature(function) == signature(twin), method


@pytest.mark.parametrize("name", ["session", "sessions"])
def test_both_sides_have_the_same_functions(name: str) -> None:
    assert signature(getattr(waypoint, name)) == signature(getattr(aio, name))


def test_every_verb_is_in_the_sdk() -> None:
    source = "".join((PACKAGE / "aio" / f"{module}.py").read_text() for module in MODULES)
    source += (PACKAGE / "aio" / "connection.py").read_text()
    used = set(re.findall(r"requests\.(\w+)\(", source))
    missing = {verb for verb in requests.VERBS if requests.kind_of(verb).__name__ not in used}
    assert missing == set()


def test_every_call_in_a_hint_exists() -> None:
    objects: dict[str, Any] = {"s": waypoint.Session, "client": waypoint.Client, "waypoint": waypoint}
    objects["Checkpoint"] = waypoint.Checkpoint
    for verb in requests.VERBS:
        call = hints.in_python(hints.Do(verb)).strip("`").removesuffix("()")
        first, *names = call.split(".")
        thing = objects[first]
        for name in names:
            thing = getattr(thing, name)
            if isinstance(thing, property):
                assert thing.fget is not None
                thing = {"tasks": waypoint.Tasks, "bases": waypoint.Bases, "daemon": waypoint.Daemon}[name]


def test_asyncio_is_imported_only_when_it_is_used() -> None:
    script = "import sys, waypoint; waypoint.Session, waypoint.Client; print('asyncio' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


# ---- the protocol ------------------------------------------------------------------------------------


def feed(reader: protocol.Protocol, data: bytes) -> Iterator[protocol.Message]:
    while data:
        wanted, data = data[: reader.wanted], data[reader.wanted :]
        message = reader.feed(wanted)
        if message is not None:
            yield message


def test_the_protocol_reads_what_a_daemon_sends() -> None:
    sent = [
        wire.frame_json({"api": 1, "version": "9"}),
        wire.frame_json({"event": {"output": "x"}}),
        wire.frame(wire.DATA, b"abc"),
        wire.frame(wire.DATA, b""),
        wire.frame_json({"error": errors.NotFound("no", hint=hints.Hint(hints.Do("new"))).to_wire()}),
        wire.frame_json({"result": {"sessions": []}}),
        wire.frame_json({"again": True}),
    ]
    greeting, event, data, end, refusal, answer, again = feed(protocol.Protocol(), b"".join(sent))
    assert greeting == protocol.Greeting("9")
    assert event == protocol.Event({"output": "x"})
    assert (data, end) == (protocol.Data(b"abc"), protocol.Data(b""))
    assert isinstance(refusal, protocol.Refusal)
    assert isinstance(refusal.error, errors.NotFound)
    assert refusal.error.hint == "`waypoint.session()`"
    assert isinstance(answer, protocol.Answer)
    assert protocol.decode(requests.Ls(), answer.result).sessions == ()
    assert again == protocol.Again()


def test_a_frame_that_is_too_large_is_refused() -> None:
    with pytest.raises(wire.Closed):
        list(feed(protocol.Protocol(), b"J\xff\xff\xff\xff"))


# ---- a daemon that plays a script ----------------------------------------------------------------------


class Script:
    """A daemon that answers with what it is given, and remembers what it was asked."""

    def __init__(self, path: Path, answer: Callable[[socket.socket, str, Any], None]) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.connections = 0
        self._answer = answer
        path.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(wire.Closed):
            wire.send(connection, {"api": wire.API, "version": "1"})
            while True:
                envelope = wire.decode_envelope(wire.receive(connection)[1])
                args = wire.decode(bytes(envelope.args))
                self.asked.append((envelope.verb, args))
                self._answer(connection, envelope.verb, args)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


Answer = Callable[[socket.socket, str, Any], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], Script]]:
    from waypoint.home import Home

    monkeypatch.setattr(Home, "run", property(lambda _: tmp_path / "run"))
    monkeypatch.setenv("WAYPOINT_HOME", str(tmp_path))
    scripts: list[Script] = []

    def start(answer: Answer) -> Script:
        scripts.append(Script(tmp_path / "run" / "daemon.sock", answer))
        return scripts[-1]

    yield start
    for script in scripts:
        script.close()


def result(connection: socket.socket, value: Any) -> None:
    wire.send(connection, {"result": msgspec.to_builtins(value)})


RUN = model.RunResult(exit_code=0, output="ok\n", duration_ms=1.0)


def test_both_sides_send_the_same_and_read_the_same(play: Callable[[Answer], Script]) -> None:
    def answer(connection: socket.socket, verb: str, args: Any) -> None:
        if args.get("command") == "missing":
            wire.send(connection, {"error": errors.NotFound("no such session").to_wire()})
            return
        wire.send(connection, {"event": {"output": "o"}})
        wire.send(connection, {"event": {"output": "k"}})
        result(connection, RUN)

    script = play(answer)
    pieces: list[str] = []
    session = waypoint.Session(waypoint.Client(), "work", "agent")
    assert session.run("ls", timeout=3, stdin="x", on_output=pieces.append).output == "ok\n"
    with pytest.raises(errors.NotFound):
        session.run("missing")

    async def main() -> None:
        twin = aio.Session(aio.Client(), "work", "agent")
        assert (await twin.run("ls", timeout=3, stdin="x", on_output=pieces.append)).output == "ok\n"
        with pytest.raises(errors.NotFound):
            await twin.run("missing")
        await twin.run("again")
        both = await asyncio.gather(twin.run("one"), twin.run("two"))
        assert [one.output for one in both] == ["ok\n", "ok\n"]
        named = await aio.Client().call("exec", {"command": "by name", "session": None})
        assert named["output"] == "ok\n"

    asyncio.run(main())
    assert pieces == ["o", "k"] * 2
    assert script.asked[0] == script.asked[2]
    assert script.asked[0] == (
        "exec",
        {"command": "ls", "session": "work", "timeout": 3, "stdin": "eA==", "stream": True, "actor": "agent"},
    )
    assert script.asked[-1] == ("exec", {"command": "by name"})
    assert 3 <= script.connections <= 4, "one for the thread, up to three for the tasks"


def test_a_daemon_that_ends_before_it_began_is_asked_again(play: Callable[[Answer], Script]) -> None:
    refused: list[str] = []

    def answer(connection: socket.socket, verb: str, args: Any) -> None:
        if len(refused) < 2:
            refused.append(verb)
            wire.send(connection, {"again": True})
            raise wire.Closed
        result(connection, RUN)

    play(answer)
    assert waypoint.Session(waypoint.Client(), "x").run("a").ok

    async def main() -> None:
        refused.clear()
        assert (await aio.Session(aio.Client(), "x").run("a")).ok

    asyncio.run(main())


def test_a_daemon_that_died_before_it_read_the_request_is_asked_again(
    play: Callable[[Answer], Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that it was starting may keep the connection for a moment longer: the request is sent."""
    script = play(lambda connection, *_: result(connection, RUN))
    serve, died = script._serve, threading.Event()

    def die_once(connection: socket.socket) -> None:
        if died.is_set():
            serve(connection)
            return
        died.set()
        with connection:
            wire.send(connection, {"api": wire.API, "version": "1"})
            connection.recv(1, socket.MSG_PEEK)

    monkeypatch.setattr(script, "_serve", die_once)
    assert waypoint.Session(waypoint.Client(), "x").run("a").ok

    async def main() -> None:
        died.clear()
        assert (await aio.Session(aio.Client(), "x").run("a")).ok

    asyncio.run(main())
    assert len(script.asked) == 2


def test_a_connection_whose_answer_was_not_read_is_not_used_again(play: Callable[[Answer], Script]) -> None:
    def answer(connection: socket.socket, verb: str, args: Any) -> None:
        wire.send(connection, {"event": {"output": args["command"]}})
        result(connection, msgspec.structs.replace(RUN, output=args["command"]))

    play(answer)

    def stop(_: str) -> None:
        raise errors.SessionBusy("enough")

    session = waypoint.Session(waypoint.Client(), "x")
    with pytest.raises(errors.SessionBusy):
        session.run("first", on_output=stop)
    assert session.run("second").output == "second"

    async def main() -> None:
        twin = aio.Session(aio.Client(), "x")
        with pytest.raises(errors.SessionBusy):
            await twin.run("first", on_output=stop)
        assert (await twin.run("second")).output == "second"

    asyncio.run(main())


def test_a_daemon_that_has_stopped_is_not_waited_for(
    tmp_path: Path, play: Callable[[Answer], Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped, or hangs: before it greets, or in the middle of a verb."""
    monkeypatch.setattr(protocol, "GREETING_SECONDS", 0.3)
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 0.2)
    done, stopped = threading.Event(), threading.Event()

    def answer(connection: socket.socket, verb: str, args: Any) -> None:
        if args["command"] == "slow":
            done.wait(0.5)
        else:
            stopped.set()
            done.wait(10)
        result(connection, RUN)

    script = play(answer)
    serve = script._serve

    def serve_until_stopped(connection: socket.socket) -> None:
        with connection:
            done.wait(10) if stopped.is_set() else serve(connection)

    monkeypatch.setattr(script, "_serve", serve_until_stopped)

    def ask(command: str) -> waypoint.Result:
        return waypoint.Session(waypoint.Client(), "x").run(command)

    def ask_twin(command: str) -> waypoint.Result:
        return asyncio.run(aio.Session(aio.Client(), "x").run(command))

    for side in (ask, ask_twin):
        stopped.clear()
        assert side("slow").ok, "a verb may take any time"
        with pytest.raises(errors.DaemonUnreachable, match=f"process {os.getpid()}. has stopped answering"):
            side("hang")
        with pytest.raises(errors.DaemonUnreachable, match="does not answer"):
            side("greeting")
    done.set()


def test_a_daemon_that_does_not_read_is_not_waited_for(
    tmp_path: Path, play: Callable[[Answer], Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "GREETING_SECONDS", 0.3)
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 0.2)
    greeted, done = threading.Event(), threading.Event()
    script = play(lambda *_: None)

    def greet_once(connection: socket.socket) -> None:
        with connection:
            if not greeted.is_set():
                greeted.set()
                wire.send(connection, {"api": wire.API, "version": "1"})
            done.wait(10)

    monkeypatch.setattr(script, "_serve", greet_once)
    much = "x" * (8 << 20)
    with pytest.raises(errors.DaemonUnreachable, match="has stopped answering"):
        waypoint.Session(waypoint.Client(), "x").run("cat", stdin=much)
    greeted.clear()
    with pytest.raises(errors.DaemonUnreachable, match="has stopped answering"):
        asyncio.run(aio.Session(aio.Client(), "x").run("cat", stdin=much))
    done.set()


def test_a_request_that_is_cancelled_leaves_its_connection(play: Callable[[Answer], Script]) -> None:
    going = threading.Event()

    def answer(connection: socket.socket, verb: str, args: Any) -> None:
        if args["command"] == "slow":
            going.wait(5)
        result(connection, msgspec.structs.replace(RUN, output=args["command"]))

    play(answer)

    async def main() -> None:
        twin = aio.Session(aio.Client(), "x")
        slow = asyncio.create_task(twin.run("slow"))
        await asyncio.sleep(0.05)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        going.set()
        assert (await twin.run("quick")).output == "quick"

    asyncio.run(main())


def test_whether_a_command_may_run_is_asked_of_either_kind_of_callback(
    play: Callable[[Answer], Script],
) -> None:
    approval = model.Approval(
        id="a1", session="x", command="ship", digest="d", class_="irreversible", why="because", actor="agent",
        created_at="now", expires_at="later",
    )  # fmt: skip
    decided = threading.Event()

    def answer(connection: socket.socket, verb: str, args: Any) -> None:
        if verb == "exec":
            wire.send(connection, {"event": {"approval": msgspec.to_builtins(approval)}})
            decided.wait(5)
            result(connection, RUN)
        else:
            decided.set()
            result(connection, {"approval": approval})

    script = play(answer)
    waypoint.Session(waypoint.Client(), "x").run("ship", on_approval=lambda _: True)

    async def deny(_: model.Approval) -> bool:
        await asyncio.sleep(0)
        return False

    async def main() -> None:
        decided.clear()
        await aio.Session(aio.Client(), "x").run("ship", on_approval=deny)

    asyncio.run(main())
    assert [verb for verb, _ in script.asked] == ["exec", "approve", "exec", "deny"]


def test_the_environment_has_every_client_wait_until_its_points_are_durable(
    play: Callable[[Answer], Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: socket.socket, verb: str, args: Any) -> None:
        wire.send(connection, {"error": errors.NotFound("no such session").to_wire()})

    script = play(refuse)

    def asked(take: Callable[[], object]) -> bool:
        script.asked.clear()
        with contextlib.suppress(errors.NotFound):
            take()
        return bool(next(args.get("durable", False) for verb, args in script.asked if verb == "checkpoint"))

    def synchronous(**how: Any) -> None:
        with waypoint.Session(waypoint.Client(), "x") as session:
            session.checkpoint("one", **how)

    async def asynchronous(**how: Any) -> None:
        async with aio.Session(aio.Client(), "x") as session:
            await session.checkpoint("one", **how)

    ways: list[Callable[..., object]] = [
        synchronous,
        lambda **how: asyncio.run(asynchronous(**how)),
        lambda durable=False: main(["checkpoint", "-s", "x", *["--durable"] * durable, "one"]),
    ]
    for take in ways:
        assert not asked(take)
        assert asked(lambda take=take: take(durable=True))  # type: ignore[misc]
    monkeypatch.setenv("WAYPOINT_DURABLE", "1")
    for take in ways:
        assert asked(take)
