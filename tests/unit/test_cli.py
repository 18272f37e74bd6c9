"""The command line without a daemon, or with a fake daemon that replies what the test wants."""

from __future__ import annotations

import base64
import io
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from waypoint import __version__, errors
from waypoint.api import wire
from waypoint.cli import console, main, render, spec, verbs
from waypoint.cli import help as help_text
from waypoint.cli.keys import encode_keys
from waypoint.cli.menu import Choice, Menu, Overlay
from waypoint.cli.reference import reference
from waypoint.client.connection import Transport
from waypoint.home import Home
from waypoint.model import Bind, BoxOptions, Checkpoint, RunResult, Session

REPOSITORY = Path(__file__).parents[2]
PLAIN = render.Paint(on=False)
VERBS = [verb for _, group in verbs.load_all() for verb in group]


# The parser -------------------------------------------------------------------------------------------


def parsed(*words: str) -> Any:
    verb, rest = verbs.find(words)
    return spec.Parser(verb).parse(rest)


def test_options_may_stand_before_and_after_the_verb() -> None:
    invocation = spec.split_options(["--home", "/h", "--json", "ls", "--json"])
    assert (invocation.home, invocation.json, invocation.words) == ("/h", True, ["ls", "--json"])
    assert parsed("ls", "--home=/x", "--json").home == "/x"


def test_everything_after_the_command_belongs_to_it() -> None:
    given = parsed("exec", "-s", "work", "--timeout", "2", "ls", "-la", "--json", "--", "x")
    assert given.session == "work"
    assert given.timeout == 2
    assert given.command == ["ls", "-la", "--json", "--", "x"]
    assert not hasattr(given, "json")


@pytest.mark.parametrize("words", [("shell", "work"), ("shell", "-s", "work"), ("park", "work")])
def test_a_session_may_be_named_either_way(words: tuple[str, ...]) -> None:
    assert parsed(*words).session == "work"


def test_a_session_need_not_be_named() -> None:
    assert parsed("shell").session is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("512M", 512 << 20), ("1.5g", 3 << 29), ("2GiB", 2 << 30), ("64kb", 64 << 10), ("4096", 4096)],
)
def test_sizes(text: str, value: int) -> None:
    assert parsed("new", "--memory", text).memory == value


@pytest.mark.parametrize(
    "words",
    [
        ("new", "--memory", "lots"),
        ("new", "--memory", "-1M"),
        ("new", "--memory", "nan"),
        ("new", "--cpus", "0"),
        ("new", "--cpus", "inf"),
        ("new", "--pids", "1.5"),
        ("new", "--net", "wifi"),
        ("new", "--hide", "relative"),
        ("new", "--bind", "/a"),
        ("new", "--bind", "/a:b"),
        ("new", "--bind", "/a:/b:rx"),
        ("exec", "--env", "NOVALUE", "ls"),
        ("exec", "--bogus", "ls"),
        ("fork", "up", "-n", "0"),
        ("preview",),
        ("rm",),
        ("ls", "--js"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_way_to_help(words: tuple[str, ...]) -> None:
    with pytest.raises(errors.UsageError) as caught:
        parsed(*words)
    assert f"waypoint {words[0]} -h" in caught.value.hint


def test_binds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parsed("new", "--bind", "data:/data:ro", "--bind", "/b:/c").bind == [
        Bind(host=f"{tmp_path}/data", box="/data", readonly=True),
        Bind(host="/b", box="/c"),
    ]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("chekpoint", "checkpoint"),
        ("attach", "shell"),
        ("rollback", "restore"),
        ("lss", "ls"),
        ("deamon", "daemon"),
    ],
)
def test_an_unknown_verb_suggests_the_nearest(word: str, meant: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        verbs.find([word])
    assert f"`waypoint {meant}`" in caught.value.hint


def test_a_verb_of_two_words_lists_what_there_is() -> None:
    for words in (["daemon"], ["daemon", "stopp"]):
        with pytest.raises(errors.UsageError) as caught:
            verbs.find(words)
        assert "`waypoint daemon stop`" in caught.value.hint


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_help_with_examples_and_a_function(
    verb: spec.Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb.name.split(), "-h"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"waypoint {verb.name}")
    assert all(f"  {example}\n" in shown for example in verb.examples)
    assert verb.examples
    assert all(row.meaning for row in help_text.options(spec.Parser(verb)))


def test_the_table_of_verbs_names_every_verb_of_every_module() -> None:
    folder = REPOSITORY / "src" / "waypoint" / "cli" / "verbs"
    declared = {
        value.name: path.stem
        for path in folder.glob("[a-z]*.py")
        for value in vars(import_module(f"waypoint.cli.verbs.{path.stem}")).values()
        if isinstance(value, spec.Verb)
    }
    assert declared == verbs.MODULES


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_examples_are_such_that_the_parser_takes_them(verb: spec.Verb) -> None:
    import shlex

    for example in verb.examples:
        line = example.rpartition("; ")[2].rpartition(" | ")[2]
        words = shlex.split(line)
        assert words[0] == "waypoint"
        named, rest = verbs.find(words[1:])
        assert named == verb
        spec.Parser(verb).parse(rest)


def test_the_reference_is_up_to_date() -> None:
    written = (REPOSITORY / "docs" / "cli.md").read_text()
    assert written == reference(), "run: python -m waypoint.cli.reference > docs/cli.md"


def test_the_overview_has_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb.name} " in shown for verb in VERBS)
    assert main([]) == 2
    assert main(["help", "fork"]) == 0
    assert "waypoint fork" in capsys.readouterr().out


# Keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["ls", "Enter"], b"ls\r"),
        (["ls\\n"], b"ls\r"),
        (["one\ntwo"], b"one\rtwo"),
        (["C-c"], b"\x03"),
        (["^C"], b"\x03"),
        (["c-]"], b"\x1d"),
        (["C-Space"], b"\0"),
        (["M-x"], b"\x1bx"),
        (["C-M-a"], b"\x1b\x01"),
        (["Escape", ":wq", "Enter"], b"\x1b:wq\r"),
        (["Up", "F5", "BTab"], b"\x1b[A\x1b[15~\x1b[Z"),
        (["\\x1b[A\\t\\e\\\\"], b"\x1b[A\t\x1b\\"),
        (["a\\d"], b"a\\d"),
        (["enter"], b"\r"),
        (["x", "C-", "é"], "xC-é".encode()),
        (["C-é"], "C-é".encode()),
        (["^"], b"^"),
    ],
)
def test_keys(words: list[str], keys: bytes) -> None:
    assert encode_keys(words) == keys


def test_literal_keys_are_letters_only() -> None:
    assert encode_keys(["Enter", "\\n"], literal=True) == b"Enter\\n"


def pressing(*pieces: bytes) -> Overlay:
    """A terminal at which these keys are pressed; what is drawn on it is not looked at."""
    left = list(pieces)
    return Overlay(lambda _: left.pop(0) if left else b"", lambda _: None, b"")


@pytest.mark.parametrize(
    ("pieces", "keys"),
    [
        ([b"ab"], ["a", "b"]),
        ([b"\x1b"], ["\x1b"]),
        ([b"\x1b", b"[A"], ["\x1b[A"]),
        ([b"\x1b[1;5C\r"], ["\x1b[1;5C", "\r"]),
        ([b"\x1bOPx"], ["\x1bOP", "x"]),
        ([b"\xc3", b"\xa4!"], ["ä", "!"]),
        ([b"\x1b[100u\x1b[93;5u\x1d\x1b[27;5;93~"], ["d", "\x1d", "\x1d", "\x1d"]),
    ],
)
def test_input_is_read_key_by_key(pieces: list[bytes], keys: list[str]) -> None:
    overlay = pressing(*pieces)
    assert [overlay.key() for _ in keys] == keys


@pytest.mark.parametrize(
    ("pieces", "choice"),
    [
        ([b"d"], Choice(detach=True)),
        ([b"D"], Choice(detach=True)),
        ([b"\x1b[100u"], Choice(detach=True)),
        ([b"\x1d"], Choice(keys=b"\x1d")),
        ([b"x"], Choice(keys=b"\x1dx")),
        ([b"\x1b[A"], Choice(keys=b"\x1d\x1b[A")),
        ([b"\x1b"], Choice()),
        ([b"\r"], Choice()),
    ],
)
def test_the_menu(pieces: list[bytes], choice: Choice) -> None:
    overlay = pressing(*pieces)
    menu = Menu(Transport(start=False), "0", "work", "person", PLAIN)
    assert menu.run(overlay, b"\x1d") == choice


def test_a_line_is_typed_and_edited() -> None:
    assert pressing(b"hellp\x7fo ", b"w\xc3\xb6rld\x1b[A\r").ask("? ") == "hello wörld"
    assert pressing(b"gone\x15kept\r").ask("? ") == "kept"
    assert pressing(b"no\x1b").ask("? ") is None


def checkpoint(**fields: Any) -> Checkpoint:
    given: dict[str, Any] = {
        "id": "92f7e463c67e",
        "name": None,
        "intent": "",
        "session": "work",
        "label": "c1",
        "parent": None,
        "created_at": "2025-11-16T11:44:00+00:00",
        "kind": "manual",
        "pause_ms": 4.0,
        "total_ms": 9.0,
        "size_bytes": 1,
        "processes": 1,
        **fields,
    }
    return Checkpoint(**given)


# Rendering --------------------------------------------------------------------------------------------

NOW = datetime(2025, 11, 16, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04, "0.0 ms"), (4.21, "4.2 ms"), (183.4, "183 ms"), (2100, "2.1 s"), (200_000, "3 min 20 s")],
)
def test_milliseconds(value: float, text: str) -> None:
    assert render.milliseconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (4400, "4.3 KB"),
        (12 << 20, "12 MB"),
        (1000 << 20, "1.0 GB"),
        (5 << 50, "5120 TB"),
    ],
)
def test_size(value: int, text: str) -> None:
    assert render.size(value) == text


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ("2025-11-16T11:59:48Z", "12 s ago"),
        ("2025-11-16T11:44:00+00:00", "16 min ago"),
        ("2025-11-15T20:00:00Z", "16 h ago"),
        ("2025-11-11T12:00:00Z", "5 days ago"),
        ("2025-11-16T12:00:09Z", "0 s ago"),
    ],
)
def test_age(moment: str, text: str) -> None:
    assert render.age(moment, NOW) == text


def test_text_from_others_cannot_command_the_terminal() -> None:
    rows = render.table(("A", "B"), [("x\x1b[2J", "y")], PLAIN)
    assert "\x1b" not in rows
    point = checkpoint(name="a\x1b[2Jb", intent="\x1b]2;evil\x07\nnext")
    title = render.point_title(point, PLAIN)
    assert "\x1b" not in title
    assert len(title.splitlines()) == 1


def test_there_is_colour_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert render.Paint.of(Terminal()).on
    assert not render.Paint.of(io.StringIO()).on
    monkeypatch.setenv("NO_COLOR", "1")
    assert not render.Paint.of(Terminal()).on
    assert render.Paint(on=True).bad("x") == "\x1b[31mx\x1b[0m"


# Errors -----------------------------------------------------------------------------------------------


def test_an_error_says_what_to_do_next_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekpoint"]) == errors.UsageError.exit_status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "waypoint: unknown verb 'chekpoint'\n  did you mean `waypoint checkpoint`?\n"


def test_help_says_which_words_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "-h"]) == 0
    assert "WHAT [TEXT…]\n" in capsys.readouterr().out
    assert parsed("record", "user", "--", "-h").text == ["-h"]


@pytest.mark.parametrize(("words", "missing"), [("record", "WHAT"), ("task done", "TASK")])
def test_only_what_is_needed_is_said_to_be_missing(
    words: str, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == errors.UsageError.exit_status
    assert f"required: {missing}\n" in capsys.readouterr().err


def test_output_that_cannot_be_written_is_said_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "waypoint", "help"]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, text=True)
    assert (found.returncode, found.stderr) == (
        1,
        "waypoint: cannot write the output: No space left on device\n",
    )


def test_hooks_are_not_put_into_a_folder_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "tpyo"
    assert main(["hooks", "install", "claude", "--dir", str(there)]) == errors.UsageError.exit_status
    assert f"no such folder: {there}" in capsys.readouterr().err
    assert not there.exists()


def test_hooks_are_installed_although_the_packages_of_the_server_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[bool] = []

    def require(_: Callable[[str], None]) -> None:
        asked.append(True)
        raise errors.MissingFeature("the MCP server needs packages", hint="pip install x")

    monkeypatch.setattr("waypoint.machine.extras.require_mcp", require)
    assert main(["hooks", "install", "claude", "--no-mcp", "--dir", str(tmp_path)]) == 0
    assert not asked
    capsys.readouterr()
    assert main(["hooks", "install", "claude", "--dir", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "the MCP server needs packages" in shown.err
    assert "pip install x; the hooks work without them" in shown.err
    assert str(tmp_path / ".mcp.json") in shown.out


def test_an_error_is_json_if_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "exec"]) == errors.UsageError.exit_status
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["code"] == "usage"
    assert shown.err == ""


@pytest.mark.parametrize("words", [["restore", "up"], ["rm", "work"], ["daemon", "stop", "--sessions"]])
def test_a_destructive_verb_needs_yes_without_a_terminal(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--home", str(tmp_path), "--json", *words]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "confirmation_needed"


def test_a_shell_needs_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--home", str(tmp_path), "shell"]) == 2
    assert "needs a terminal" in capsys.readouterr().err


def test_asking_how_the_daemon_is_starts_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--home", str(tmp_path), "daemon", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"running": False}
    assert main(["--home", str(tmp_path), "daemon", "stop"]) == 0
    assert main(["--home", str(tmp_path), "daemon", "logs"]) == 4
    assert list(tmp_path.iterdir()) == []


# With a daemon that says what it is told to say ---------------------------------------------------------

Script = Callable[[socket.socket, str, dict[str, Any]], None]


class Puppet:
    """Answers on a home's socket by a function of the test's."""

    def __init__(self, path: Path) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.script: Script = lambda connection, verb, args: wire.send(connection, {"result": {}})
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                wire.send(connection, {"api": wire.API})
                while True:
                    request = wire.decode_envelope(wire.receive(connection)[1])
                    args = wire.decode(bytes(request.args))
                    self.asked.append((request.verb, args))
                    self.script(connection, request.verb, args)
            except wire.Closed:
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def puppet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Puppet]:
    monkeypatch.setattr(Home, "run", property(lambda home: home.path))
    monkeypatch.setenv("WAYPOINT_HOME", str(tmp_path))
    monkeypatch.delenv("WAYPOINT_SESSION", raising=False)
    made = Puppet(tmp_path / "daemon.sock")
    yield made
    made.close()


def ran(exit_code: int | None = 0, output: str = "", **more: Any) -> Any:
    result = RunResult(exit_code=exit_code, output=output, **{"duration_ms": 5.0, **more})
    return json.loads(msgspec.json.encode(result))


def answer(*messages: Any) -> Script:
    def script(connection: socket.socket, verb: str, args: dict[str, Any]) -> None:
        for message in messages:
            wire.send(connection, message)

    return script


def by_verb(**results: Any) -> Script:
    def script(connection: socket.socket, verb: str, args: dict[str, Any]) -> None:
        wire.send(connection, {"result": results[verb]})

    return script


PONG = {"version": __version__, "api": wire.API, "pid": 1, "started_at": "2025-11-16T11:44:00Z"}


def session(name: str) -> Any:
    """A session as the daemon describes it."""
    created_at = "2025-11-16T11:44:00Z"
    return msgspec.to_builtins(
        Session(id="1", name=name, state="live", created_at=created_at, options=BoxOptions())
    )


@pytest.mark.parametrize(
    ("words", "verb", "far", "shown"),
    [
        (["base", "import", "b", "FILE"], "base_import", "unpacking x, 30%", "unpacking x, 30%"),
        (["apply", "-s", "work", "--to", "/srv", "--yes"], "apply", "3 of 9 files", "applying: 3 of 9 files"),
        (["export", "-s", "work", "-o", "FILE"], "export", "2 MB written", "exporting: 2 MB written"),
        (["cp", "work:/a", "/b"], "copy_out", "7 files, 9 KB", "copying: 7 files, 9 KB"),
        (["prune"], "prune", None, "freeing space"),
        (["verify", "-s", "work", "@", "true"], "verify", None, "verifying"),
    ],
)
def test_what_takes_a_while_shows_how_far_it_is(
    puppet: Puppet,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    verb: str,
    far: str | None,
    shown: str,
) -> None:
    monkeypatch.setattr(console, "_PROGRESS_AFTER_SECONDS", 0.05)
    file = tmp_path / "file"
    file.touch()
    ours, theirs = os.openpty()
    seen = b""

    def script(connection: socket.socket, asked: str, args: dict[str, Any]) -> None:
        nonlocal seen
        if asked != verb:
            wire.send(connection, {"result": PONG if asked == "ping" else {"session": session("work")}})
            return
        if far:
            wire.send(connection, {"event": {"progress": far}})
        while shown.encode() not in seen and select.select([ours], [], [], 20)[0]:
            seen += os.read(ours, 1 << 16)
        wire.send(connection, {"error": errors.UsageError("that is all").to_wire()})

    puppet.script = script
    with open(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert main([str(file) if word == "FILE" else word for word in words]) == 2
    os.close(ours)
    assert shown.encode() in seen


def test_output_is_streamed_and_the_exit_code_passes_through(
    puppet: Puppet, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    puppet.script = answer(
        {"event": {"output": "one\n"}}, {"event": {"output": "tw"}}, {"result": ran(7, "one\ntwo\n")}
    )
    assert main(["exec", "-s", "work", "echo", "'a  b'"]) == 7
    assert capfdbinary.readouterr().out == b"one\ntwo\n"
    verb, args = puppet.asked[0]
    assert (verb, args["session"], args["command"], args["stream"]) == ("exec", "work", "echo 'a  b'", True)


def test_binary_output_arrives_as_it_was(puppet: Puppet, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    raw = b"\xff\xfe\x00ok"
    encoded = base64.b64encode(raw).decode()
    for event in ({"base64": encoded}, {"output": "\ufffd\ufffd\0ok"}):
        puppet.script = answer({"event": event}, {"result": ran(0, "\ufffd\ufffd\0ok", base64=encoded)})
        assert main(["exec", "cat", "x"]) == 0
        assert capfdbinary.readouterr().out == raw


def test_a_timeout_has_its_own_exit_status_and_says_so(
    puppet: Puppet, capsys: pytest.CaptureFixture[str]
) -> None:
    puppet.script = answer({"result": ran(130, "", timed_out=True, duration_ms=1000.0)})
    assert main(["exec", "--timeout", "1", "sleep 9"]) == 124
    assert "timed out after 1.0 s" in capsys.readouterr().err


def test_json_of_exec_is_its_result_and_passes_the_exit_code_through(
    puppet: Puppet, capsys: pytest.CaptureFixture[str]
) -> None:
    puppet.script = answer({"result": ran(3, "x\n")})
    assert main(["exec", "--json", "false"]) == 3
    assert json.loads(capsys.readouterr().out) == ran(3, "x\n")


def test_the_session_comes_from_the_option_then_the_environment(
    puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = {"text": "", "rows": 24, "columns": 80, "cursor": [0, 0], "title": ""}
    puppet.script = answer({"result": screen})
    main(["screen"])
    monkeypatch.setenv("WAYPOINT_SESSION", "from-env")
    main(["screen"])
    main(["screen", "-s", "from-option"])
    assert [args.get("session") for _, args in puppet.asked] == [None, "from-env", "from-option"]


def test_what_the_daemon_refuses_is_the_error(puppet: Puppet, capsys: pytest.CaptureFixture[str]) -> None:
    puppet.script = answer(
        {"error": {"code": "not_found", "message": "no session 'x'", "hint": "there are: work"}}
    )
    assert main(["exec", "-s", "x", "ls"]) == 4
    assert capsys.readouterr().err == "waypoint: no session 'x'\n  there are: work\n"


def test_a_new_session_is_asked_for_as_it_was_described(
    puppet: Puppet, capsys: pytest.CaptureFixture[str]
) -> None:
    puppet.script = by_verb(new={"session": session("web")}, ping=PONG)
    words = "new web --base deb --net none --hide /root --bind /a:/b:ro --memory 1M --cpus 1.5 --pids 9"
    words += " --open-files 64 --disk 2G --privileged --spares off"
    assert main(words.split()) == 0
    assert capsys.readouterr().out == "web\n"
    verb, args = puppet.asked[-1]
    assert (verb, args["name"], args.get("join", False)) == ("new", "web", False)
    assert args["options"] == {
        "base": "deb",
        "net": "none",
        "hide": ["/root"],
        "binds": [{"host": "/a", "box": "/b", "readonly": True}],
        "memory_bytes": 1 << 20,
        "cpus": 1.5,
        "pids": 9,
        "open_files": 64,
        "disk_bytes": 2 << 30,
        "spares": 0,
        "confined": False,
        "userns": None,
        "build": False,
        "user": None,
        "env": {},
        "cwd": None,
    }


def test_a_program_beside_the_shell_has_streams_of_its_own(
    puppet: Puppet, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []

    def script(connection: socket.socket, verb: str, args: dict[str, Any]) -> None:
        if verb == "session":
            wire.send(connection, {"result": {"session": session("work")}})
            return
        wire.send(connection, {"result": {"pid": 5}})
        while body := wire.receive(connection)[1]:
            heard.append(body)
        wire.send_data(connection, b"1out")
        wire.send_data(connection, b"2err")
        wire.send(connection, {"result": {"exit_code": 4}})

    puppet.script = script
    reader, writer = os.pipe()
    os.write(writer, b"input")
    os.close(writer)
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["exec", "--pipe", "--env", "A=1", "--cwd", "/srv", "cat", "a b"]) == 4
    shown = capfdbinary.readouterr()
    assert (shown.out, shown.err, b"".join(heard)) == (b"out", b"err", b"input")
    verb, args = puppet.asked[1]
    assert verb == "spawn"
    assert args == {"session": "work", "argv": ["cat", "a b"], "cwd": "/srv", "env": {"A": "1"}}


def test_options_of_pipe_are_refused_without_it(puppet: Puppet) -> None:
    assert main(["exec", "--shell-env", "ls"]) == 2
    assert puppet.asked == []


# As a program -----------------------------------------------------------------------------------------


def test_the_version_is_told_without_loading_the_rest() -> None:
    script = "import sys; from waypoint.cli import main; main(['--version']); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    version, modules = found.stdout.splitlines()
    assert version == f"waypoint {__version__}"
    loaded = set(modules.split())
    assert not loaded & {"argparse", "msgspec", "waypoint.client", "socket", "json"}


def test_a_verb_loads_what_it_needs_and_no_more() -> None:
    script = (
        "import sys; from waypoint.cli import main; main(['daemon', 'status', '--home', '/nowhere']);"
        " print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.splitlines()[-1].split())
    assert "waypoint.client" in loaded
    assert not loaded & {
        "typer",
        "rich",
        "click",
        "waypoint.machine",
        "waypoint.cli.verbs.demo",
        "sqlite3",
        "asyncio",
    }


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m waypoint --help | head -n 0; exit ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)
    assert found.stderr == ""
    assert found.returncode in {0, 141}
