"""What a verb of the command line is: name, arguments, help text, examples, function.

A verb is declared above its function in a module of `cli/verbs`, with `@verb(…)`. The parser of a verb is
built when that verb is run; the parsers of other verbs are not. `-h` and docs/cli.md are both written from
the declarations, so they cannot disagree.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from waypoint.api.sizes import parse_size
from waypoint.errors import UsageError

if TYPE_CHECKING:
    from waypoint.cli.console import Console

PROGRAM = "waypoint"


class Argument(msgspec.Struct, frozen=True):
    """One positional argument or option, with the settings that argparse takes."""

    names: tuple[str, ...]
    settings: dict[str, Any]


class Verb(msgspec.Struct, frozen=True):
    """One verb. `summary` is one phrase without a full stop; `about` is what else a user has to know."""

    name: str
    summary: str
    arguments: tuple[Argument, ...]
    examples: tuple[str, ...]
    about: str
    json: Mapping[str, str | type]
    """What --json prints, by the options that lead to it: the name of the request whose result it is, a type,
    or `module:type`. docs/cli.md lists them."""
    run: Callable[[Console], int]
    """Runs the verb and returns the exit status."""


def verb(
    name: str,
    summary: str,
    *arguments: Argument,
    examples: Sequence[str],
    about: str = "",
    json: str | type | Mapping[str, str | type] = "",
) -> Callable[[Callable[[Console], int]], Verb]:
    """Declares the function below it as a verb. Without `json` the request has the same name."""
    results = json if isinstance(json, Mapping) else {"": json or re.sub("[ -]", "_", name)}

    def declare(run: Callable[[Console], int]) -> Verb:
        return Verb(name, summary, arguments, tuple(examples), about, results, run)

    return declare


def argument(*names: str, **settings: Any) -> Argument:
    return Argument(names, settings)


def flag(*names: str, help: str) -> Argument:
    """An option without a value."""
    return Argument(names, {"action": "store_true", "help": help})


# Arguments that several verbs take ------------------------------------------------------------------------

SESSION = argument(
    "-s",
    "--session",
    metavar="SESSION",
    help="the session (default: WAYPOINT_SESSION, else the only session there is)",
)
SESSION_FIRST = (
    # SUPPRESS: when it is missing, it must not overwrite the value of -s.
    argument(
        "session", metavar="SESSION", nargs="?", default=argparse.SUPPRESS, help="the session, as with -s"
    ),
    SESSION,
)
REF = argument(
    "ref",
    metavar="REF",
    help="a point: its name, its number (c5), its id, @ for the last one, a time of day, good",
)
YES = flag("-y", "--yes", help="do not ask for confirmation")


def command(help: str) -> Argument:
    """All words that follow."""
    return argument("command", metavar="CMD", nargs=argparse.REMAINDER, help=help)


def remainder(words: list[str]) -> list[str]:
    """The words after the options, without the `--` that may separate them."""
    return words[1:] if words[:1] == ["--"] else words


def join_command(words: list[str]) -> str:
    """The words after the options as one command line, joined with spaces as ssh does."""
    command = " ".join(remainder(words))
    if not command.strip():
        raise UsageError("no command given", hint="it stands after the options: `npm test`")
    return command


# Parsing --------------------------------------------------------------------------------------------------

COMMON_OPTIONS = (
    argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the result as JSON"),
    argument(
        "--home",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="the folder in which Waypoint keeps everything (default: WAYPOINT_HOME)",
    ),
    argument(
        "--no-color", action="store_true", default=argparse.SUPPRESS, help="no colours, as with NO_COLOR"
    ),
    argument(
        "--quiet",
        action="store_true",
        default=argparse.SUPPRESS,
        help="no progress, notes and hints on stderr; warnings and errors stay",
    ),
    argument("-h", "--help", action="help", help="show this help"),
)
"""Every verb takes them. They may also stand before the verb."""


class Parser(argparse.ArgumentParser):
    """The argument parser of one verb. It raises UsageError, and its help is written by `cli/help.py`."""

    def __init__(self, verb: Verb) -> None:
        super().__init__(
            prog=f"{PROGRAM} {verb.name}", add_help=False, allow_abbrev=False, formatter_class=_Formatter
        )
        self.verb = verb
        for each in (*verb.arguments, *COMMON_OPTIONS):
            self.add_argument(*each.names, **each.settings)

    @property
    def actions(self) -> list[argparse.Action]:
        return self._actions

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"`{self.prog} -h` shows the usage")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        counts = [action.nargs for action in self._actions if not action.option_strings]
        if "*" in counts[1:] and not {"-h", "--help"}.intersection(words):
            # Words may come before and after options: `record user --name x hello`. While argparse parses
            # them that way it changes its positionals, so help would show them wrong.
            return self.parse_intermixed_args(list(words))
        return self.parse_args(list(words))

    def format_help(self) -> str:
        from waypoint.cli.help import verb_help

        return verb_help(self)


class _Formatter(argparse.HelpFormatter):
    """argparse creates one for each argument. A fixed width spares it a look at the terminal each time."""

    def __init__(self, prog: str, **_others: Any) -> None:
        super().__init__(prog, width=100)


class Invocation(msgspec.Struct, frozen=True):
    """The options before the verb, and the words from the verb on."""

    home: str | None
    json: bool
    no_color: bool
    quiet: bool
    show: str
    """"help" or "version" if that option is there."""
    words: list[str]


def split_options(argv: Sequence[str]) -> Invocation:
    """Separates the options that stand before the verb."""
    home, show, at = None, "", 0
    switches = {"--json": False, "--no-color": False, "--quiet": False}
    while at < len(argv) and argv[at].startswith("-"):
        name, equals, value = argv[at].partition("=")
        if name == "--home":
            if not equals:
                at += 1
                value = argv[at] if at < len(argv) else ""
            if not value:
                raise UsageError("--home needs a folder", hint=f"{PROGRAM} --home DIR VERB …")
            home = value
        elif argv[at] in switches:
            switches[argv[at]] = True
        elif argv[at] in {"-h", "--help"}:
            show = show or "help"
        elif argv[at] in {"-V", "--version"}:
            show = show or "version"
        else:
            raise UsageError(f"unknown option {argv[at]!r}", hint=f"`{PROGRAM} -h` lists the options")
        at += 1
    json, no_color, quiet = switches.values()
    return Invocation(home, json, no_color, quiet, show, list(argv[at:]))


# Values of arguments --------------------------------------------------------------------------------------


def byte_count(text: str) -> int:
    try:
        value = parse_size(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write 512M or 2G")
    return value


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def box_path(text: str) -> str:
    if not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not an absolute path: write /{text}")
    return text


def variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def name_list(text: str) -> list[str]:
    """`a,b,c`."""
    return [name for name in text.split(",") if name]
