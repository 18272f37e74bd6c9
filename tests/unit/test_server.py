"""The daemon's socket without a machine: dispatch, errors, a process that runs out of file descriptors."""

from __future__ import annotations

import contextlib
import errno
import inspect
import logging
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import msgspec
import pytest
from tests.fakes import World

from waypoint.api import requests, wire
from waypoint.core.background import Background
from waypoint.core.capture import Wish
from waypoint.daemon import app as app_module
from waypoint.daemon import verbs
from waypoint.daemon.connection import Answered, Connection
from waypoint.daemon.inside.grammar import ALLOWED, parse
from waypoint.daemon.server import Server
from waypoint.errors import NotFound, UsageError
from waypoint.kernel.network.veth import Network
from waypoint.model import Size
from waypoint.store import Store
from waypoint.terminal.terminal import Terminal


@pytest.mark.parametrize("verb", requests.VERBS)
def test_every_verb_has_a_handler_of_its_request_and_result(verb: str) -> None:
    handler = verbs.handler_of(verb)
    names = {"App": app_module.App}
    hints = get_type_hints(handler, {**inspect.getmodule(handler).__dict__, **names})
    result = hints.pop("return")
    app, connection, request = hints.values()
    assert (app, connection, request) == (app_module.App, Connection, requests.kind_of(verb))
    assert result in (requests.result_of(requests.kind_of(verb)), Answered)


@pytest.fixture
def server(tmp_path: Path) -> Any:
    home = SimpleNamespace(socket=tmp_path / "socket", log=tmp_path / "log")
    background = SimpleNamespace(foreground=contextlib.nullcontext)
    return Server(SimpleNamespace(home=home, background=background, dedupe=None))  # type: ignore[arg-type]


class Client:
    """A connection to a server that accepts on a thread of its own."""

    def __init__(self, server: Server) -> None:
        self._own, theirs = socket.socketpair()
        threading.Thread(target=server._serve_client, args=(theirs,), daemon=True).start()
        assert wire.decode(wire.receive(self._own)[1])["api"] == wire.API

    def ask(self, verb: str, **args: Any) -> Any:
        wire.send(self._own, wire.Envelope(verb, msgspec.Raw(msgspec.json.encode(args))))
        return wire.decode(wire.receive(self._own)[1])

    def close(self) -> None:
        self._own.close()


def test_errors_of_ours_are_internal_and_wrong_arguments_are_not(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_app: Any, _connection: Any, request: Any) -> Any:
        raise {
            "key": KeyError("x"),
            "type": TypeError("y"),
            "path": FileNotFoundError(errno.ENOENT, "No such file or directory"),
            "known": NotFound("no session"),
            "disk": OSError(errno.EIO, "Input/output error"),
            "full": OSError(errno.ENOSPC, "No space left on device"),
            "time": TimeoutError("timed out"),
        }[request.session]

    monkeypatch.setattr("waypoint.daemon.server.handler_of", lambda _: fail)
    with contextlib.closing(Client(server)) as client, caplog.at_level(logging.ERROR):
        for kind in ("key", "type", "path"):
            error = client.ask("session", session=kind)["error"]
            assert error["code"] == "internal"
            assert "log" in error["hint"]
        for kind, code in (("disk", "machine"), ("full", "no_space"), ("time", "machine")):
            assert client.ask("session", session=kind)["error"]["code"] == code
        assert len(caplog.records) == 6, "what was not foreseen is in the log"
        assert client.ask("session", session="known")["error"]["code"] == "not_found"
        wrong = client.ask("session", sessions=["x"])["error"]
        assert (wrong["code"], wrong["message"]) == ("usage", "session has no argument 'sessions'")
        assert client.ask("fly")["error"]["code"] == "usage"
        assert len(caplog.records) == 6, "what a client did wrong is not"


def test_a_process_without_descriptors_accepts_again_later(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.listen()
    failures = iter([OSError(errno.EMFILE, "Too many open files"), OSError(errno.ECONNABORTED, "aborted")])

    class Failing:
        def accept(self) -> Any:
            for failure in failures:
                raise failure
            return listener.accept()

    thread = threading.Thread(target=server._accept, args=(Failing(),), daemon=True)
    with caplog.at_level(logging.WARNING):
        thread.start()
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(str(tmp_path / "socket"))
            assert wire.decode(wire.receive(client)[1])["api"] == wire.API
    assert "Too many open files" in caplog.text
    server.stopping.set()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as last:
        last.connect(str(tmp_path / "socket"))
    thread.join(5)
    assert not thread.is_alive()
    listener.close()


def test_a_daemon_that_ends_tells_clients_to_ask_again(server: Server) -> None:
    with contextlib.closing(Client(server)) as client:
        server._closing = True
        assert client.ask("ping") == {"again": True}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_may_be_asked_from_inside_is_part_of_a_request(name: str) -> None:
    grammar = ALLOWED[name]
    fields = requests.kind_of(grammar.verb).__struct_fields__
    assert set(grammar.fields) <= set(fields)
    assert not set(grammar.fields) & {"session", "to", "sources", "target_path", "file", "plan", "everywhere"}
    assert grammar.verb not in {"restore", "undo", "redo", "fork", "park", "rm", "apply", "export", "copy_in"}
    assert grammar.verb not in {
        "copy_out",
        "approve",
        "deny",
        "policy_set",
        "exec",
        "spawn",
        "forget",
        "prune",
    }
    with pytest.raises(UsageError, match="no option --nonsense"):
        parse(name, ["--nonsense"], grammar)


def test_a_request_from_inside_is_sorted() -> None:
    words = ["record", "user", "--name=x", "--call", "1", "--error", "hello", "--", "--json"]
    arguments = parse("record", words[1:], ALLOWED["record"])
    assert arguments.all_words == ["user", "hello", "--json"]
    assert arguments.values == {"--name": "x", "--call": "1"}
    assert arguments.flags == {"--error"}
    with pytest.raises(UsageError, match="needs a value"):
        parse("record", ["a", "b", "--name"], ALLOWED["record"])
    with pytest.raises(UsageError, match="missing") as caught:
        parse("show", [], ALLOWED["show"])
    assert caught.value.hint == "waypoint show REF [--all]"
    with pytest.raises(UsageError, match="too many"):
        parse("status", ["x"], ALLOWED["status"])


@pytest.mark.leaks("a daemon inside the test process; its threads end with a process of its own")
def test_a_daemon_that_cannot_end_everything_ends_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Network) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Network, "teardown", fail)
    world = World(tmp_path)
    server, told = Server(world.app), list[Any]()
    connection: Any = SimpleNamespace(error=told.append)
    verbs.handler_of("daemon_stop")(world.app, connection, requests.DaemonStop(sessions=True))
    assert [error.code for error in told] == ["machine"]
    assert server.stopping.is_set(), "else no other daemon could start"
    assert not server.torn_down


@pytest.mark.leaks("a daemon inside the test process; its threads end with a process of its own")
def test_a_home_that_is_torn_down_has_durable_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Terminal, "_foreground_group", lambda _: None)  # there is no process in it
    monkeypatch.setattr(Background, "sync_when_idle", lambda *_: None)
    monkeypatch.setattr(Network, "teardown", lambda _: None)
    world = World(tmp_path)
    world.app.sessions.new("work", world.options, Size())
    world.app.capture.checkpoint(world.app.registry.find("work"), Wish("one"))
    assert world.app.store.points.not_durable()
    Server(world.app)
    connection: Any = SimpleNamespace(result=lambda _: None)
    verbs.handler_of("daemon_stop")(world.app, connection, requests.DaemonStop(sessions=True))
    store = Store(world.home.database)
    assert store.points.not_durable() == []
    store.close()


@pytest.mark.leaks("a daemon inside the test process; its threads end with a process of its own")
def test_sessions_can_be_listed_while_others_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Terminal, "_foreground_group", lambda _: None)  # there is no process in it
    world, done = World(tmp_path), threading.Event()
    errors: list[Exception] = []

    def look() -> None:
        while not done.is_set():
            try:
                verbs.handler_of("ls")(world.app, None, requests.Ls())
                verbs.handler_of("log")(world.app, None, requests.Log(all=True))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
                errors.append(error)
                return

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(15):
        world.app.sessions.new(f"s{number}", world.options, Size())
        world.app.removals.remove([world.app.registry.find(f"s{number}")])
    done.set()
    looking.join()
    world.close()
    assert errors == []
