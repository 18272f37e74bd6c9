"""Hints are data: requests that exist, worded by each face. No other layer has words of the command line."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

from waypoint import errors
from waypoint.api import hints, requests
from waypoint.api.hints import Arg, Do, Hint
from waypoint.cli import spec, verbs
from waypoint.client.client import Client
from waypoint.mcp.server import Server
from waypoint.mcp.wording import Wording

SOURCE = Path(__file__).parents[2] / "src" / "waypoint"

COMMAND_LINE = re.compile(r"`waypoint |(?<![\w-])--[a-z]")


@functools.cache
def trees() -> list[tuple[str, ast.AST]]:
    paths = sorted(SOURCE.rglob("*.py"))
    return [(str(path.relative_to(SOURCE)), ast.parse(path.read_text())) for path in paths]


def name_called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (not names or name_called(node) in names):
            yield node


ERRORS = {kind.__name__ for kind in errors._tree(errors.WaypointError)}


def texts(*nodes: ast.AST) -> Iterator[tuple[int, str]]:
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.lineno, part.value


def command_line_words(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """In errors and hints a command or an option; in other texts a quoted command."""
    inside: list[ast.AST] = [*calls(tree, *ERRORS, "Hint")]
    inside += [word.value for node in calls(tree) for word in node.keywords if word.arg == "hint"]
    yield from (match for match in texts(*inside) if COMMAND_LINE.search(match[1]))
    documentation = {
        match for node in ast.walk(tree) if isinstance(node, ast.Expr) for match in texts(node.value)
    }
    yield from (match for match in texts(tree) if "`waypoint " in match[1] and match not in documentation)


@pytest.mark.parametrize(
    "room", sorted({path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} - {"cli"})
)
def test_no_message_below_the_command_line_uses_its_words(room: str) -> None:
    offences = [
        f"{path}:{line} {text}"
        for path, tree in trees()
        if path.split("/")[0] == room and path not in ("api/hints.py", "daemon/inside/grammar.py")
        for line, text in command_line_words(tree)
    ]
    assert not offences, "\n".join(offences)


def literal_hints() -> Iterator[tuple[str, Do]]:
    """Every `Do` and `Arg` in the source; what is computed there stands as `x`."""
    for path, tree in trees():
        for node in calls(tree, "Do", "Arg"):
            if path == "api/hints.py":
                continue
            verb, *blanks = [ast.literal_eval(word) for word in node.args]
            args = {}
            for word in node.keywords:
                try:
                    args[str(word.arg)] = ast.literal_eval(word.value)
                except ValueError:
                    args[str(word.arg)] = "x"
            yield f"{path}:{node.lineno}", (Arg if name_called(node) == "Arg" else Do)(verb, *blanks, **args)


@pytest.mark.parametrize(("place", "do"), [*literal_hints()], ids=str)
def test_every_hint_names_a_request_and_arguments_that_exist(place: str, do: Do) -> None:
    if do.verb in hints.MACHINE:
        return
    schema = msgspec.json.schema(requests.kind_of(do.verb))
    fields = {field for kind in schema["$defs"].values() for field in kind.get("properties", ())}
    assert {*do.blanks, *do.args} <= fields, place


@pytest.mark.parametrize(("place", "do"), [*literal_hints()], ids=str)
def test_every_command_in_a_hint_is_one_that_the_command_line_takes(place: str, do: Do) -> None:
    words = hints.in_command(do).strip("`").split()
    if isinstance(do, Arg):
        return
    verb, rest = verbs.find(words[1:])
    taken = {
        "N": "1",
        "REF…": "c1",
        "SESSION…": "x",
        "TITLE…": "x",
    }
    spec.Parser(verb).parse([taken.get(word, word) for word in rest])


def test_a_hint_is_worded_by_each_face() -> None:
    hint = Hint(Do("restore", session="work", ref="@"), " brings it back")
    assert hint == '`s.restore("@")` brings it back'
    assert hints.word(hint, hints.in_command) == "`waypoint restore -s work @` brings it back"
    assert hints.word("plain text", hints.in_command) == "plain text"


@pytest.mark.parametrize(
    ("do", "python", "command", "tool"),
    [
        (Do("exec", "command"), "`s.run(command)`", "`waypoint exec CMD`", "`run(command=…)`"),
        (
            Do("rm", sessions=["a b"]),
            "`s.remove()`",
            "`waypoint rm 'a b'`",
            '`stop(session="a b", forget=true)`',
        ),
        (
            Do("restore", session="w", ref="@"),
            '`s.restore("@")`',
            "`waypoint restore -s w @`",
            '`preview(session="w", ref="@")` and then `restore` with its plan',
        ),
        (Do("setup"), "`waypoint setup`", "`waypoint setup`", "`waypoint setup` (for the user to run)"),
        (
            Do("forget", policy={"keep_last": 10}),
            "`s.forget(keep_last=10)`",
            "`waypoint forget --keep-last 10`",
            "`waypoint forget --keep-last 10` (for the user to run)",
        ),
        (Arg("checkpoint", files_only=True), "`files_only=True`", "`--files-only`", "`files_only=true`"),
        (Arg("apply", "source"), "`source`", "`--from`", "`--from` (for the user to run)"),
        (
            Arg("restore", safety=False),
            "`safety=False`",
            "`--no-safety`",
            "`--no-safety` (for the user to run)",
        ),
        (
            Do("classify", "command", session="w"),
            "`s.judge(command)`",
            "`waypoint policy check -s w CMD`",
            "`waypoint policy check -s w CMD` (for the user to run)",
        ),
        (Do("policy_set", text=None), "`s.set_policy(None)`", "`waypoint policy set --none`", None),
        (
            Do("verify", "ref", "command"),
            "`Checkpoint.verify(command)`",
            "`waypoint verify REF CMD`",
            "`verify(ref=…, command=…)`",
        ),
    ],
)
def test_a_request_in_the_words_of_each_face(do: Do, python: str, command: str, tool: str | None) -> None:
    assert hints.in_python(do) == python
    assert hints.in_command(do) == command
    assert tool is None or core_tools()(do) == tool


def core_tools() -> Wording:
    """As the MCP server words hints when it offers its core set."""
    server = Server(Client("/nonexistent", start=False))
    return Wording({tool.name: [*tool.input_schema["properties"]] for tool in anyio.run(server.list_tools)})


def test_the_structure_of_a_hint_travels_and_its_text_stands_in_json() -> None:
    error = errors.SessionDead(
        "gone", hint=Hint("try ", Do("restore", ref="@"), " or ", Arg("exec", "session"))
    )
    travelled = errors.from_dict(msgspec.json.decode(msgspec.json.encode(error.to_wire())))
    assert isinstance(travelled, errors.SessionDead)
    assert isinstance(travelled.hint, Hint)
    assert travelled.hint.parts == error.hint.parts  # type: ignore[attr-defined]
    assert travelled.as_dict(hints.in_command) == {
        "code": "dead",
        "message": "gone",
        "hint": "try `waypoint restore @` or `-s`",
    }
    longer = Hint("first. ", travelled.hint)
    assert longer.parts[0] == "first. "
    assert longer.parts[2] == Do("restore", ref="@")
    plain = errors.from_dict(errors.NotFound("no", hint="there are: a").to_wire())
    assert type(plain.hint) is str
