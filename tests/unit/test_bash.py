"""The bash parser against another one: no command that tree-sitter-bash finds is overlooked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from waypoint.policy.bash import parse

LINES = [
    line.replace("⏎", "\n")
    for line in (Path(__file__).parent / "commands.txt").read_text().splitlines()
    if line and not line.startswith(("==", "# How the", "# A line that starts"))
]

DIFFERENCES = {
    "time": "a reserved word in bash, a command in the grammar: the command after it is listed instead",
    "coproc": "the same",
    "$x": "the line sets the variable: its value is listed instead",
    "$cmd": "the same",
    "$a": "the same",
}
"""Command names of the grammar that our parser reports in another way."""


@pytest.fixture(scope="module")
def grammar() -> Any:
    tree_sitter = pytest.importorskip("tree_sitter")
    bash = pytest.importorskip("tree_sitter_bash")
    return tree_sitter.Parser(tree_sitter.Language(bash.language()))


def command_names(node: Any) -> Iterator[str]:
    """The names of all commands below a node, as written."""
    if node.type == "command":
        yield (node.child_by_field_name("name") or node).text.decode()
    elif node.type in ("declaration_command", "unset_command"):
        yield node.children[0].text.decode()
    elif node.type == "test_command" and node.children[0].text == b"[":
        yield "["
    for child in node.children:
        yield from command_names(child)


def unquoted(name: str) -> str:
    """The name without quotes and escapes. The comparison is about commands, not about words."""
    return parse(name).commands[-1].words[0].text


@pytest.mark.parametrize("line", LINES, ids=[line[:60] for line in LINES])
def test_no_command_of_the_grammar_is_overlooked(grammar: Any, line: str) -> None:
    names = command_names(grammar.parse(line.encode()).root_node)
    expected = Counter(unquoted(name) for name in names if name not in DIFFERENCES)
    actual = Counter(command.words[0].text for command in parse(line).commands if command.words)
    assert expected <= actual, f"overlooked: {expected - actual}"


def test_every_difference_occurs(grammar: Any) -> None:
    names = {name for line in LINES for name in command_names(grammar.parse(line.encode()).root_node)}
    assert names >= set(DIFFERENCES)
