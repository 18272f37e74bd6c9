"""How help is laid out: the overview of all verbs, the help of one verb, text folded into columns."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from waypoint.cli.console import text_size
from waypoint.cli.spec import PROGRAM, Verb

if TYPE_CHECKING:
    from waypoint.cli.spec import Parser

_COMMON = ("json", "home", "no_color", "quiet", "help")
_WIDEST = 100
ABOUT = "A live session that can be checkpointed, restored and forked: files, processes, terminal."
_FIRST_STEPS = """\
first steps:
  waypoint demo                              see the main job, in 20 seconds
  waypoint new work; waypoint shell work     start a session and attach to it
  waypoint VERB -h                           how to use a verb"""


class Row(NamedTuple):
    """One line of help: an argument or a verb, and what it means."""

    words: str
    meaning: str


def overview(groups: Sequence[tuple[str, Sequence[Verb]]]) -> str:
    """`waypoint -h`."""
    parts = [f"{PROGRAM} VERB …\n\n{ABOUT}"]
    parts += [f"{group}\n{columns(_summaries(verbs), 16)}" for group, verbs in groups]
    return "\n\n".join([*parts, _FIRST_STEPS]) + "\n"


def family_overview(word: str, verbs: Sequence[Verb]) -> str:
    """The verbs that start with one word: `waypoint daemon -h`."""
    return f"{PROGRAM} {word} VERB …\n\n{columns(_summaries(verbs))}\n"


def _summaries(verbs: Sequence[Verb]) -> list[Row]:
    return [Row(verb.name, verb.summary) for verb in verbs]


def verb_help(parser: Parser) -> str:
    """`waypoint VERB -h`."""
    verb = parser.verb
    text = f"{usage_line(parser)}\n\n{introduction(verb)}"
    rows = [*positionals(parser), *options(parser), *options(parser, common=True)]
    examples = "examples:\n" + "\n".join(f"  {example}" for example in verb.examples)
    return "\n\n".join([*(fold(part) for part in text.split("\n\n")), columns(rows), examples]) + "\n"


def introduction(verb: Verb) -> str:
    return f"{verb.summary[:1].upper()}{verb.summary[1:]}. {verb.about}".rstrip()


def usage_line(parser: Parser) -> str:
    words = [parser.prog]
    for action in parser.actions:
        if action.option_strings and action.dest not in _COMMON:
            option = " ".join((action.option_strings[0], *_value(action)))
            repeated = "…" if isinstance(action, argparse._AppendAction) else ""
            words.append(f"{option}{repeated}" if action.required else f"[{option}]{repeated}")
    return " ".join(
        [*words, *(_positional_usage(each) for each in parser.actions if not each.option_strings)]
    )


def positionals(parser: Parser) -> list[Row]:
    return [Row(_metavar(each), each.help or "") for each in parser.actions if not each.option_strings]


def options(parser: Parser, *, common: bool = False) -> list[Row]:
    """The options of this verb, or (`common`) the options that every verb has."""
    return [
        Row(" ".join((", ".join(action.option_strings), *_value(action))), action.help or "")
        for action in parser.actions
        if action.option_strings and (action.dest in _COMMON) == common
    ]


def _value(action: argparse.Action) -> list[str]:
    return [] if action.nargs == 0 else [_metavar(action)]


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None:
        return "|".join(str(choice) for choice in action.choices)
    return str(action.metavar or action.dest.upper())


def _positional_usage(action: argparse.Action) -> str:
    name = _metavar(action)
    if action.nargs == "?":
        return f"[{name}]"
    if action.nargs == "*":
        return f"[{name}…]"
    return f"{name}…" if action.nargs in {"+", argparse.REMAINDER} else name


# Layout ---------------------------------------------------------------------------------------------------


def fold(text: str, indent: int = 0) -> str:
    """Breaks the text into lines that fit the terminal; all lines but the first are indented."""
    lines, line, room = [], "", min(text_size().columns, _WIDEST) - indent
    for word in text.split():
        if line and len(line) + 1 + len(word) > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return ("\n" + " " * indent).join(lines)


def columns(rows: Sequence[Row], widest: int = 26) -> str:
    """Two columns: the words on the left, what they mean on the right."""
    left = min(widest, max(len(row.words) for row in rows)) + 4
    lines = []
    for row in rows:
        head = f"  {row.words}"
        head = head.ljust(left) if len(head) <= left - 2 else f"{head}\n{' ' * left}"
        lines.append(head + fold(row.meaning, left))
    return "\n".join(lines)
