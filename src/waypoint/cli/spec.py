"""What the command line accepts: every verb, its arguments, its help.

One table, `VERBS`. The parser of a verb is built when that verb is asked for and no other is: a command
should cost what it does and not what it could have done. `-h` and docs/cli.md are both written from the
table, so they cannot disagree.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from waypoint.errors import UsageError

PROGRAM = "waypoint"


class Argument(NamedTuple):
    """One line of a verb's help."""

    words: str
    help: str


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are Waypoint's own errors and whose help is short."""

    def __init__(self, verb: Verb) -> None:
        super().__init__(
            prog=f"{PROGRAM} {verb.name}", add_help=False, allow_abbrev=False, formatter_class=_Formatter
        )
        self.verb = verb
        verb.arguments(self)
        add_common(self)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"`{self.prog} -h` shows how it is used")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        taken = [action.nargs for action in self._actions if not action.option_strings]
        if "*" in taken[1:] and not {"-h", "--help"}.intersection(argv):
            # Words may come before and after options: `record user --name x hello`. While argparse looks for
            # the options it forgets what the words are, so that help would tell them wrong.
            return self.parse_intermixed_args(list(argv))
        return self.parse_args(list(argv))

    def positionals(self) -> list[Argument]:
        return [
            Argument(_metavar(action), action.help or "")
            for action in self._actions
            if not action.option_strings
        ]

    def options(self, *, common: bool = False) -> list[Argument]:
        """Its options; those that every verb has only if asked for."""
        return [
            Argument(_option_words(action), action.help or "")
            for action in self._actions
            if action.option_strings and (action.dest in _COMMON) == common
        ]

    def usage_line(self) -> str:
        words = [self.prog]
        for action in self._actions:
            if action.option_strings and action.dest not in _COMMON:
                shown = " ".join((action.option_strings[0], *_value(action)))
                repeated = "…" if isinstance(action, argparse._AppendAction) else ""
                words.append(f"{shown}{repeated}" if action.required else f"[{shown}]{repeated}")
        words += [_usage_of_positional(action) for action in self._actions if not action.option_strings]
        return " ".join(words)

    def format_help(self) -> str:
        verb = self.verb
        parts = [f"{self.usage_line()}\n\n{_sentence(verb.summary)}"]
        if verb.about:
            parts[0] += f" {verb.about}"
        parts[0] = "\n\n".join(fold(part) for part in parts[0].split("\n\n"))
        lines = [*self.positionals(), *self.options(), *self.options(common=True)]
        parts.append(columns(lines))
        parts.append("examples:\n" + "\n".join(f"  {example}" for example in verb.examples))
        return "\n\n".join(parts) + "\n"


class _Formatter(argparse.HelpFormatter):
    """argparse makes one for every argument it is given, and asks the terminal's width each time."""

    def __init__(self, prog: str, **_others: Any) -> None:
        super().__init__(prog, width=100)


_COMMON = ("json", "home", "help")


def add_common(parser: argparse.ArgumentParser) -> None:
    """What every verb takes, and what may also stand before the verb."""
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="the result as JSON")
    parser.add_argument(
        "--home",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="where Waypoint keeps things, if not WAYPOINT_HOME",
    )
    parser.add_argument("-h", "--help", action="help", help="this help")


def _value(action: argparse.Action) -> list[str]:
    return [] if action.nargs == 0 else [_metavar(action)]


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None:
        return "|".join(str(choice) for choice in action.choices)
    return str(action.metavar or action.dest.upper())


def _option_words(action: argparse.Action) -> str:
    return " ".join((", ".join(action.option_strings), *_value(action)))


def _usage_of_positional(action: argparse.Action) -> str:
    name = _metavar(action)
    if action.nargs == "?":
        return f"[{name}]"
    if action.nargs == "*":
        return f"[{name}…]"
    return f"{name}…" if action.nargs in {"+", argparse.REMAINDER} else name


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# Text in columns --------------------------------------------------------------------------------------


def width() -> int:
    """How wide a text may be on this terminal, within reason."""
    try:
        there = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(1).columns
    except (OSError, ValueError):
        there = 100
    return max(40, min(there, 100))


def fold(text: str, indent: int = 0) -> str:
    """The text in lines that fit; all but the first are indented."""
    lines, line, most = [], "", width() - indent
    for word in text.split():
        if line and len(line) + 1 + len(word) > most:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return ("\n" + " " * indent).join(lines)


def columns(lines: Sequence[Argument], most: int = 26) -> str:
    """Two columns: words on the left, what they mean on the right."""
    left = min(most, max(len(line.words) for line in lines)) + 4
    shown = []
    for line in lines:
        head = f"  {line.words}"
        head = head.ljust(left) if len(head) <= left - 2 else f"{head}\n{' ' * left}"
        shown.append(head + fold(line.help, left))
    return "\n".join(shown)


# Values -------------------------------------------------------------------------------------------------


def byte_count(text: str) -> int:
    """`512M`, `1.5G`, `2GiB`: powers of 1024 however they are written."""
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = "KMGT".find(number[-1:]) + 1 if number[-1:] else 0
    try:
        value = float(number[:-1] if unit else number)
    except ValueError:
        value = 0.0
    if not 0 < value < 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 512M or 2G")
    return int(value * 1024**unit)


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def spares(text: str) -> int:
    if text == "off":
        return 0
    if not text.isdecimal() or int(text) > 16:
        raise argparse.ArgumentTypeError(f"{text!r} is neither `off` nor a number up to 16")
    return int(text)


def box_path(text: str) -> str:
    if not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} must start at the root: /{text}")
    return text


def bind(text: str) -> dict[str, Any]:
    """`HOST:BOX` or `HOST:BOX:ro`."""
    parts = text.split(":")
    readonly = len(parts) == 3 and parts[2] == "ro"
    if not (len(parts) == 2 or readonly or (len(parts) == 3 and parts[2] == "rw")) or not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:BOX or HOST:BOX:ro")
    return {"host": os.path.abspath(parts[0]), "box": box_path(parts[1]), "readonly": readonly}


def variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


# Verbs --------------------------------------------------------------------------------------------------


class Verb(NamedTuple):
    """One thing that can be asked for. `run` names the function that does it: module and name."""

    name: str
    group: str
    run: str
    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    examples: tuple[str, ...]
    about: str = ""


def _session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-s",
        "--session",
        metavar="SESSION",
        help="which one: else WAYPOINT_SESSION, else the only one there is",
    )


def _session_first(parser: argparse.ArgumentParser) -> None:
    # Left out, it must not take back what -s has set.
    parser.add_argument(
        "session", metavar="SESSION", nargs="?", default=argparse.SUPPRESS, help="which one, as with -s"
    )
    _session(parser)


def _ref(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ref",
        metavar="REF",
        help="a point: a name, its number (c5), its id, @ for the last one, a time of day, good",
    )


def _session_and_ref(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    _ref(parser)


def _yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _nothing(_parser: argparse.ArgumentParser) -> None:
    pass


def _new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="what to call it; one is found if none is given"
    )
    parser.add_argument(
        "--base",
        metavar="DIR|NAME",
        default="/",
        help="the root file system below it: a folder, or one that was imported (default: /)",
    )
    parser.add_argument(
        "--net",
        choices=("nat", "none", "host"),
        default="nat",
        help="its network: its own behind this machine's address, none, or this machine's (default: nat)",
    )
    parser.add_argument(
        "--hide",
        metavar="PATH",
        action="append",
        default=[],
        type=box_path,
        help="a path that is not to be seen inside",
    )
    parser.add_argument(
        "--bind",
        metavar="HOST:BOX[:ro]",
        action="append",
        default=[],
        type=bind,
        help="a path of this machine, seen inside as it is; outside every checkpoint",
    )
    parser.add_argument(
        "--memory", metavar="SIZE", type=byte_count, help="the most memory it may use: 512M, 2G"
    )
    parser.add_argument("--cpus", metavar="N", type=positive, help="the most processors it may use: 1.5")
    parser.add_argument("--pids", metavar="N", type=count, help="the most processes it may have")
    parser.add_argument(
        "--spares",
        metavar="N|off",
        type=spares,
        help="how many of its points have a twin restored ahead of time: a restore to one takes milliseconds",
    )
    parser.add_argument(
        "--auto", action="store_true", help="take a point after each command that changed something"
    )
    parser.add_argument("--policy", metavar="FILE", help="rules of its own about commands: a TOML file")
    parser.add_argument(
        "--privileged",
        action="store_true",
        help="without the limits of a container: for what you trust as yourself",
    )


def _effects(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("ref", metavar="REF", nargs="?", help="only what was done since that point")
    parser.add_argument("--all", action="store_true", help="of every session there ever was")
    parser.add_argument(
        "--unseen", action="store_true", help="with the commands that could not be looked into"
    )


def _effect(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("what", metavar="WHAT", nargs="+", help="what was done, in your words")
    parser.add_argument("--target", metavar="TARGET", default="", help="what it was done to")
    parser.add_argument(
        "--key", metavar="KEY", default="", help="what makes it the same effect when it is done again"
    )
    parser.add_argument("--compensate", metavar="HOW", default="", help="how it can be made good")
    parser.add_argument("--reversible", action="store_true", help="it can be made good")


def _policy_show(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("--built-in", action="store_true", help="the rules that Waypoint comes with")


def _policy_check(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    _command(parser, "the command; several words are joined with spaces")


def _policy_set(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("file", metavar="FILE", nargs="?", help="a TOML file; - reads it here")
    parser.add_argument("--everywhere", action="store_true", help="for all sessions of this home")
    parser.add_argument("--none", action="store_true", help="take its rules away")


def _approvals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-s", "--session", metavar="SESSION", help="only of this one")
    parser.add_argument("--all", action="store_true", help="also what was decided")


def _approve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="which one: `waypoint approvals` lists them")


def _deny(parser: argparse.ArgumentParser) -> None:
    _approve(parser)
    parser.add_argument("--why", metavar="WORDS", default="", help="for whoever asked")


def _exec(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument(
        "--timeout",
        metavar="SEC",
        type=positive,
        help="interrupt it after that long; exit status 124. Waiting for approval does not count",
    )
    parser.add_argument("--stdin", action="store_true", help="give it what comes in here")
    parser.add_argument("--tty", action="store_true", help="let it read the session's terminal")
    parser.add_argument(
        "--pipe",
        action="store_true",
        help="run a program beside the shell, without a terminal: stdin, stdout and stderr are its own",
    )
    parser.add_argument("--cwd", metavar="DIR", type=box_path, help="with --pipe: where it starts")
    parser.add_argument(
        "--env",
        metavar="K=V",
        action="append",
        default=[],
        type=variable,
        help="with --pipe: a variable for it",
    )
    parser.add_argument(
        "--shell-env", action="store_true", help="with --pipe: the folder and the variables the shell has now"
    )
    parser.add_argument(
        "command",
        metavar="CMD",
        nargs=argparse.REMAINDER,
        help="the command; several words are joined with spaces, as ssh does",
    )


def _checkpoint(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("intent", metavar="INTENT", nargs="*", help="what this point is, in your words")
    parser.add_argument("--name", metavar="NAME", help="a name to find it by")
    parser.add_argument("--files-only", action="store_true", help="leave the processes out")
    parser.add_argument(
        "--verify", metavar="CMD", help="then run this in a throwaway fork of it, and keep the verdict"
    )
    parser.add_argument(
        "--wait", action="store_true", help="with --verify: wait for the verdict; exit status 1 if it fails"
    )
    parser.add_argument(
        "--agent-state",
        metavar="FILE|-",
        help="what the agent needs to go on from here, JSON or anything: it comes back with the point",
    )
    parser.add_argument("--agent-version", metavar="V", help="with --agent-state: the version of its code")


def _log(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument(
        "--all", action="store_true", help="of all sessions, and every point that Waypoint took by itself"
    )
    parser.add_argument(
        "--graph", action="store_true", help="with all points of the forks that grew from this session"
    )
    parser.add_argument(
        "--since", metavar="WHEN", help="none that is older: 10:27, 2h, 3d, 2026-11-16, '2026-11-16 10:27'"
    )
    parser.add_argument("-n", "--number", metavar="N", type=count, help="the last N only")


def _show(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    _ref(parser)
    parser.add_argument("--all", action="store_true", help="every change, however many there are")
    parser.add_argument("--again", action="store_true", help="compute its card again")


def _diff(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument(
        "words",
        metavar="REF|PATH",
        nargs="*",
        help="a point (else @), another (else now), then paths: they start with / or . or stand after --",
    )
    parser.add_argument("--files", action="store_true", help="only files")
    parser.add_argument("--packages", action="store_true", help="only packages")
    parser.add_argument("--processes", action="store_true", help="only processes and ports")
    parser.add_argument("--shell", action="store_true", help="only the shell: folder, variables, functions")
    parser.add_argument("--stat", action="store_true", help="sums instead of lists")
    parser.add_argument("--patch", action="store_true", help="what changed in text files, as a unified diff")


def _preview(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    _ref(parser)
    parser.add_argument(
        "--files-only", action="store_true", help="as if only the files of that point came back"
    )


def _command(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help=what)


def _verify(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("--timeout", metavar="SEC", type=positive, help="no longer than that (default: 600)")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the verdict")
    _ref(parser)
    _command(parser, "the command; it passes when it exits with 0")


def _bisect(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument(
        "--timeout", metavar="SEC", type=positive, help="no longer than that at each point (default: 600)"
    )
    parser.add_argument("good", metavar="GOOD", help="a point at which the command passes")
    parser.add_argument("bad", metavar="BAD", help="a later one, of the same line, at which it fails")
    _command(parser, "the command; it passes when it exits with 0")


def _tag(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("-d", "--delete", action="store_true", help="take the tag away")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the tag; without any, all are listed")
    parser.add_argument("ref", metavar="REF", nargs="?", help="the point (default: @)")


def _note(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    _ref(parser)
    parser.add_argument("text", metavar="TEXT", nargs="+", help="what you know now")


def _restore(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument(
        "ref", metavar="REF", nargs="?", help="a point: a name, c5, an id, @, a time, good; else the plan's"
    )
    _yes(parser)
    parser.add_argument(
        "--plan", metavar="ID", help="what `waypoint preview` has shown, and nothing if it is no longer so"
    )
    parser.add_argument("--no-safety", action="store_true", help="take no checkpoint of the present first")
    parser.add_argument(
        "--files-only", action="store_true", help="the files of that point, with a fresh shell"
    )
    parser.add_argument(
        "--files",
        metavar="PATH",
        nargs="+",
        help="only these files and folders of the session, as they were then; all else stays as it is",
    )
    parser.add_argument(
        "--delete", action="store_true", help="with --files: what was made in them since goes"
    )
    parser.add_argument("--dry-run", action="store_true", help="with --files: say what would come back")


def _fork(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    _ref(parser)
    parser.add_argument("-n", "--number", metavar="N", type=count, default=1, help="how many (default: 1)")
    parser.add_argument("--name", metavar="NAME", help="what to call it; several are NAME-1, NAME-2, …")


def _type(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument(
        "-l", "--literal", action="store_true", help="letter for letter: no key names, no escapes"
    )
    parser.add_argument(
        "keys", metavar="KEYS", nargs=argparse.REMAINDER, help="text with escapes, or names of keys"
    )


def _rm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sessions", metavar="SESSION", nargs="+", help="which ones")
    _yes(parser)


def _forget(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument(
        "refs", metavar="REF", nargs="*", help="these points; without any, what a policy says"
    )
    parser.add_argument("--all", action="store_true", help="the points of all sessions")
    parser.add_argument("--keep-last", metavar="N", type=count, help="keep the last N of each session")
    for word in ("hourly", "daily", "weekly"):
        unit = {"hourly": "hours", "daily": "days", "weekly": "weeks"}[word]
        parser.add_argument(
            f"--keep-{word}",
            metavar="N",
            type=count,
            help=f"keep the last point of each of the newest N {unit}",
        )
    parser.add_argument("--older-than", metavar="AGE", help="nothing younger goes: 90m, 2h, 3d, 1w")
    parser.add_argument("--auto-only", action="store_true", help="only what Waypoint took by itself")
    parser.add_argument("--no-keep-good", action="store_true", help="what was verified good may go too")
    parser.add_argument("--no-keep-named", action="store_true", help="what has a name or a tag may go too")
    parser.add_argument("--force", action="store_true", help="with REF: although it is named or pinned")
    parser.add_argument("--dry-run", action="store_true", help="say what would go and what stays, and why")
    _yes(parser)


def _prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--auto",
        action="store_true",
        help="forget old points that Waypoint took by itself, but for the last 5 of each session",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would go")
    _yes(parser)


def _du(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-s", "--session", metavar="SESSION", help="of this one only")


def _which_changes(parser: argparse.ArgumentParser, start: str) -> None:
    parser.add_argument(
        "paths", metavar="PATH", nargs="*", help="only what is at or below these paths of the session"
    )
    parser.add_argument("--from", metavar="DIR", dest="source", help=start)
    parser.add_argument("-r", "--ref", metavar="REF", help="up to this point instead of now")
    parser.add_argument("--since", metavar="REF", help="from this point on instead of the base")


def _apply(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("--to", metavar="DIR", required=True, help="a folder of this machine")
    _which_changes(parser, "the folder of the session that stands for it")
    parser.add_argument("--delete", action="store_true", help="what was deleted in the session goes here too")
    parser.add_argument("--force", action="store_true", help="replace what has changed here meanwhile")
    parser.add_argument("--dry-run", action="store_true", help="only say what would land")
    _yes(parser)


def _export(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="where to; else stdout")
    _which_changes(parser, "the folder of the session where names start (default: /)")
    parser.add_argument("--patch", action="store_true", help="a patch for `git apply` instead of a tar")
    parser.add_argument(
        "--whiteouts", action="store_true", help="deletions as container images have them: .wh.NAME"
    )


def _cp(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="SRC… DST: a path of this machine, or SESSION:PATH, SESSION@REF:PATH, :PATH",
    )
    parser.add_argument("-r", "--ref", metavar="REF", help="copy from this point instead of now")
    parser.add_argument(
        "-L", "--follow", action="store_true", help="not links given as SRC but what they lead to"
    )


def _base_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="what to call it")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a tar, a `docker export`, a `docker save` or an OCI archive, or a folder",
    )


def _base_rm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="which one")


def _mcp(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-s",
        "--session",
        metavar="SESSION",
        help="the session that tools mean when they name none (else WAYPOINT_SESSION)",
    )


def _hook(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("agent", choices=_CODING_AGENTS, help="whose hook it is")
    parser.add_argument("payload", metavar="JSON", nargs="?", help="what it tells, if not on stdin")
    parser.add_argument(
        "--allow", action="store_true", help="say so, too, when nothing speaks against a command"
    )


def _hooks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agent", choices=_CODING_AGENTS, help="whose configuration")
    _hooks_folder(parser)


def _hooks_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir", metavar="DIR", default=".", help="the project, or your home folder for all of them"
    )


def _hooks_install(parser: argparse.ArgumentParser) -> None:
    _hooks(parser)
    _session(parser)
    parser.add_argument("--no-mcp", action="store_true", help="hooks only, no MCP server")
    parser.add_argument(
        "--allow",
        action="store_true",
        help="let the agent run what the policy allows without asking its user",
    )


def _hooks_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "agent", choices=_CODING_AGENTS, nargs="?", help="whose configuration; both if not given"
    )
    _hooks_folder(parser)


def _daemon_stop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sessions", action="store_true", help="end the sessions too; their checkpoints are kept"
    )
    _yes(parser)


def _daemon_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--number", metavar="N", type=count, default=50, help="the last N lines (default: 50)"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fast", action="store_true", help="do not wait for the reader")


def words_list(text: str) -> list[str]:
    """`a,b,c`."""
    return [word for word in text.split(",") if word]


def _bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="in under a minute: fewer rounds, smaller sizes")
    parser.add_argument(
        "--only",
        metavar="W,…",
        type=words_list,
        default=[],
        help="these workloads: tree, api, processes, terminal, memory, repair, fan-out, files, depth, peers",
    )
    parser.add_argument(
        "--peers",
        metavar="P,…",
        type=lambda text: [] if text == "none" else words_list(text),
        help="these of criu, cp, git, self-fork, podman, podman-commit, or none (default: all that are here)",
    )
    parser.add_argument(
        "--out", metavar="DIR", default="waypoint-bench", help="where results go (default: ./waypoint-bench)"
    )
    parser.add_argument(
        "--work", metavar="DIR", default="/var/tmp", help="the disk to measure on (default: /var/tmp)"
    )


_CODING_AGENTS = ("claude", "codex")


def _record(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("--name", metavar="TOOL", help="the tool, of a tool_call or tool_result")
    parser.add_argument("--call", metavar="ID", help="what links a tool_result to its tool_call")
    parser.add_argument("--error", action="store_true", help="of a tool_result: the tool failed")
    parser.add_argument("--structured", action="store_true", help="the text is JSON and kept as that")
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="who said it (user, assistant, system, developer, tool), or tool_call, tool_result, note",
    )
    parser.add_argument(
        "text", metavar="TEXT", nargs="*", default=[], help="the words; from stdin if none, or with -"
    )


_EVENTS = (
    "command", "output", "message", "tool_call", "tool_result", "checkpoint", "restored", "forked", "task",
    "effect", "approval", "note",
)  # fmt: skip


def _trace(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument(
        "ref", metavar="REF", nargs="?", help="the way to a point; without one, the way to the present"
    )
    parser.add_argument(
        "--all", action="store_true", help="everything that happened, what the session went back from too"
    )
    parser.add_argument("-n", "--number", metavar="N", type=count, help="the last N only")
    parser.add_argument(
        "--kind", choices=_EVENTS, action="append", default=[], help="only events of this kind; repeatable"
    )
    parser.add_argument("--full", action="store_true", help="with the output of commands")
    parser.add_argument("--event", metavar="N", type=count, help="one event, whole")
    parser.add_argument("--jsonl", action="store_true", help="one event per line, as JSON")
    parser.add_argument(
        "--cast", metavar="FILE|-", help="what the terminal showed, as an asciicast with a marker per point"
    )


def _agent_state(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument(
        "ref", metavar="REF", nargs="?", help="the point; without one, the last that has something"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there")


def _task_add(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("--under", metavar="TASK", help="what they are a part of")
    parser.add_argument("--once", action="store_true", help="leave those alone that are there already")
    parser.add_argument("titles", metavar="TITLE", nargs="+", help="what is to be done, one task each")


def _task(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("task", metavar="TASK", help="its number (2.1), or its title")


def _evidence(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evidence", metavar="REF", help="the point that shows it")


def _note_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("note", metavar="NOTE", nargs="*", default=[], help="what came of it, or why")


def _task_done(parser: argparse.ArgumentParser) -> None:
    _task(parser)
    _evidence(parser)
    parser.add_argument("--checkpoint", action="store_true", help="take a point that shows it")
    _note_words(parser)


def _task_fail(parser: argparse.ArgumentParser) -> None:
    _task(parser)
    _evidence(parser)
    _note_words(parser)


def _task_skip(parser: argparse.ArgumentParser) -> None:
    _task(parser)
    _note_words(parser)


def _task_ls(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("ref", metavar="REF", nargs="?", help="as they stood at a point")


SESSIONS = "Sessions"
POINTS = "Points in time"
TERMINAL = "The terminal"
FILES = "Files in and out"
ROOM = "Room"
AGENTS = "Agents"
MACHINE = "This machine"
GROUPS = (SESSIONS, POINTS, TERMINAL, FILES, ROOM, AGENTS, MACHINE)


def _auto(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("switch", choices=("on", "off"), metavar="on|off", help="from now on")


VERBS: tuple[Verb, ...] = (
    Verb(
        "new",
        SESSIONS,
        "verbs.sessions.new",
        "start a session",
        _new,
        ("waypoint new work", "waypoint new web --net none --memory 2G", "waypoint new old --base debian-12"),
        "It sees this machine's files, and what it writes stays its own. The first session on a machine"
        " sets up what is needed.",
    ),
    Verb(
        "exec",
        SESSIONS,
        "verbs.sessions.exec_",
        "run a command in a session's shell",
        _exec,
        (
            "waypoint exec -s work 'cd /srv && export TOKEN=abc'",
            "waypoint exec -s work --timeout 60 make test",
            "tar c . | waypoint exec -s work --pipe tar x -C /srv",
        ),
        "It is the shell that `waypoint shell` shows: what `cd` and `export` did before is still there. Its"
        " exit status is passed on. Its input is empty unless --stdin or --tty is given."
        " Ctrl-C interrupts the command, twice stops waiting for it. Options stand before the command.",
    ),
    Verb(
        "ls",
        SESSIONS,
        "verbs.sessions.ls",
        "list the sessions",
        _nothing,
        ("waypoint ls", "waypoint ls --json"),
    ),
    Verb(
        "park",
        SESSIONS,
        "verbs.sessions.park",
        "take a checkpoint of a session and stop it, freeing its memory",
        _session_first,
        ("waypoint park work",),
        "`waypoint restore -s work @` brings it back.",
    ),
    Verb(
        "rm",
        SESSIONS,
        "verbs.sessions.rm",
        "end sessions and forget them, with their checkpoints",
        _rm,
        ("waypoint rm try-1 try-2", "waypoint rm --yes work"),
    ),
    Verb(
        "checkpoint",
        POINTS,
        "verbs.sessions.checkpoint",
        "keep this moment: files, processes with their memory, shell and terminal",
        _checkpoint,
        (
            "waypoint checkpoint -s work 'server up' --name up",
            "waypoint checkpoint 'payments work' --verify 'pytest -q' --wait",
            "waypoint checkpoint",
        ),
        "The session goes on running. Without an INTENT the last command stands for it, else the subject of"
        " the last commit. Who asks is a person, unless WAYPOINT_ACTOR says agent.",
    ),
    Verb(
        "log",
        POINTS,
        "verbs.timeline.log",
        "show the points of a session, the last one first",
        _log,
        ("waypoint log", "waypoint log -s work -n 5 --since 2h", "waypoint log --all --json"),
        "@ is now, ● where the session stands, ✗ a point that failed its verification. Intents stand as they"
        " were given; `$ …` is the last command and `commit …` the last commit where none was. With --json"
        " the oldest comes first.",
    ),
    Verb(
        "show",
        POINTS,
        "verbs.timeline.show",
        "show one point: what it is meant to be, what changed, what was said about it",
        _show,
        ("waypoint show @", "waypoint show -s work up --all"),
        "Each part is marked: derived from the snapshots, observed by Waypoint, or claimed by somebody.",
    ),
    Verb(
        "status",
        POINTS,
        "verbs.timeline.status",
        "say where a session stands and what is in no checkpoint yet",
        _session_first,
        ("waypoint status", "waypoint status work"),
    ),
    Verb(
        "diff",
        POINTS,
        "verbs.compare.diff",
        "show what changed between two points, or between a point and now",
        _diff,
        (
            "waypoint diff c2 c5",
            "waypoint diff @ --stat",
            "waypoint diff c2 c5 /srv/app --patch",
            "waypoint diff base -- src",
        ),
        "Derived from the snapshots themselves, whether git knows the files or not. Exit status 1 when"
        " something changed, 0 when not. `now` and `base` (what the session started on) are points too.",
    ),
    Verb(
        "preview",
        POINTS,
        "verbs.compare.preview",
        "say what a restore would do: what goes, what comes back, what it cannot undo",
        _preview,
        ("waypoint preview c2", "waypoint preview -s work good --json"),
        "The plan has an id: `waypoint restore --plan ID` does just that, and is refused when anything has"
        " changed since.",
    ),
    Verb(
        "restore",
        POINTS,
        "verbs.compare.restore",
        "go back to a point",
        _restore,
        (
            "waypoint restore -s work up",
            "waypoint restore @ --yes",
            "waypoint restore --plan 1f4b9c20",
            "waypoint restore c2 --files src config.yml",
        ),
        "On a terminal it shows the plan and asks; elsewhere it needs --yes or --plan."
        " A safety checkpoint of the present is taken first, so that `waypoint undo` comes back here. Who is"
        " attached stays attached. A restore that fails changes nothing.",
    ),
    Verb(
        "auto",
        POINTS,
        "verbs.sessions.auto",
        "take a point after each command that changed something: on or off",
        _auto,
        ("waypoint auto -s work on",),
    ),
    Verb(
        "undo",
        POINTS,
        "verbs.sessions.undo",
        "take the last restore back",
        _session,
        ("waypoint undo -s work",),
    ),
    Verb(
        "redo", POINTS, "verbs.sessions.redo", "take the last undo back", _session, ("waypoint redo -s work",)
    ),
    Verb(
        "ops",
        POINTS,
        "verbs.timeline.ops",
        "list what has moved a session: restores, undos, redos",
        _session,
        ("waypoint ops -s work",),
    ),
    Verb(
        "fork",
        POINTS,
        "verbs.sessions.fork",
        "start new sessions from a point",
        _fork,
        ("waypoint fork -s work up -n 3 --name try", "waypoint fork @"),
        "Each has its own files, processes and network from there on.",
    ),
    Verb(
        "verify",
        POINTS,
        "verbs.timeline.verify",
        "run a command in a throwaway fork of a point, and keep the verdict with it",
        _verify,
        ("waypoint verify up pytest -q", "waypoint verify --timeout 60 @ 'make && make test'"),
        "The session is not touched, and nothing is left of the fork. Exit status 1 when it fails. The last"
        " point that passed is called `good`. Options stand before the point.",
    ),
    Verb(
        "bisect",
        POINTS,
        "verbs.compare.bisect",
        "find the first point at which a command fails",
        _bisect,
        ("waypoint bisect c2 @ pytest -q",),
        "Points are tried in throwaway forks, two at a time. Shows what changed from the last good point to"
        " the first bad one. Options stand before the points.",
    ),
    Verb(
        "tag",
        POINTS,
        "verbs.timeline.tag",
        "give a point another name, move that name, take it away; or list them",
        _tag,
        ("waypoint tag release c5", "waypoint tag -d release", "waypoint tag"),
    ),
    Verb(
        "note",
        POINTS,
        "verbs.timeline.note",
        "add words to a point, marked as added later",
        _note,
        ("waypoint note c4 'this one lost the sessions table'",),
    ),
    Verb(
        "shell",
        TERMINAL,
        "attach.shell",
        "attach to a session's terminal",
        _session_first,
        ("waypoint shell", "waypoint shell work"),
        "C-] d detaches and the session lives on; C-] C-] types one C-]. Several may be attached at once.",
    ),
    Verb(
        "type",
        TERMINAL,
        "verbs.sessions.type_",
        "type into a session's terminal",
        _type,
        (
            "waypoint type -s work 'ls -l' Enter",
            "waypoint type -s work Escape :wq Enter",
            "waypoint type -s work C-c",
            r"waypoint type -s work 'echo one\necho two\n'",
        ),
        "Names of keys, each a word of its own: Enter, Tab, BTab, Space, BSpace, Escape, Up, Down, Left,"
        " Right, Home, End, PageUp, PageDown, Insert, Delete, F1 to F12, C-c (control), M-x (alt). Escapes"
        " in text: \\n (the Enter key), \\t, \\e, \\xHH, \\\\.",
    ),
    Verb(
        "screen",
        TERMINAL,
        "verbs.sessions.screen",
        "print what a session's terminal shows now",
        _session,
        ("waypoint screen -s work",),
    ),
    Verb(
        "apply",
        FILES,
        "verbs.landing.apply",
        "land what has changed in a session on a folder of this machine",
        _apply,
        (
            "waypoint apply --to /srv/app /app",
            "waypoint apply --to ~/project --from /app src tests --dry-run",
            "waypoint apply --to / --ref good --yes",
        ),
        "DIR stands for one folder of the session: --from, else the one PATH that was given from the root on,"
        " else the folder its shell is in; with --to / paths stay what they are. Changed files are"
        " replaced one by one, each at once. A file that has changed here since the session began is a"
        " conflict: then nothing lands, unless --force. Of a file that is here already only what changed is"
        " brought; new ones keep owner, mode and attributes. Landing twice is landing once.",
    ),
    Verb(
        "export",
        FILES,
        "verbs.landing.export",
        "write what has changed in a session as a tar or a patch",
        _export,
        (
            "waypoint export -o work.tar",
            "waypoint export --patch --from /app -o fix.patch",
            "waypoint export --since c2 --ref c5 --whiteouts -o layer.tar",
        ),
        "In the tar the names of what was deleted are in .waypoint-deleted, each ended by a zero byte.",
    ),
    Verb(
        "cp",
        FILES,
        "verbs.landing.cp",
        "copy files and folders into a session or out of it",
        _cp,
        (
            "waypoint cp data.csv work:/app",
            "waypoint cp work:/app/out .",
            "waypoint cp work@c3:/etc/hosts hosts-then",
        ),
        "Like `cp -a`: into DST when that is a folder, else to it; owner, mode, times, attributes and links"
        " are kept; of SRC/. the content. In a session paths start at the folder its shell is in. A name"
        " here with a `:` in it is ./NAME.",
    ),
    Verb(
        "pin",
        ROOM,
        "verbs.retention.pin",
        "keep a point, whatever is forgotten around it",
        _session_and_ref,
        ("waypoint pin -s work up", "waypoint pin @"),
    ),
    Verb(
        "unpin",
        ROOM,
        "verbs.retention.unpin",
        "let a point be forgotten again",
        _session_and_ref,
        ("waypoint unpin -s work up",),
    ),
    Verb(
        "forget",
        ROOM,
        "verbs.retention.forget",
        "forget points: these, or those that a policy does not keep",
        _forget,
        (
            "waypoint forget -s work c3 c4",
            "waypoint forget --keep-last 10 --keep-daily 7",
            "waypoint forget --all --auto-only --older-than 2d --dry-run",
        ),
        "Never what is pinned, where a session stands, what one was forked from, what `undo` goes back to, or"
        " what is being verified. Points do not need each other: any can go, the others stay whole.",
    ),
    Verb(
        "prune",
        ROOM,
        "verbs.retention.prune",
        "give back room now: remains of what was deleted and, with --auto, old automatic points",
        _prune,
        ("waypoint prune", "waypoint prune --auto --yes"),
        "When the pool is 90% full, old automatic points go by themselves.",
    ),
    Verb(
        "du",
        ROOM,
        "verbs.retention.du",
        "say what each point costs: what would come back if it alone were forgotten",
        _du,
        ("waypoint du", "waypoint du -s work --json"),
    ),
    Verb(
        "trace",
        AGENTS,
        "verbs.trajectory.trace",
        "show what happened in a session, in order: commands, messages, points, tasks",
        _trace,
        (
            "waypoint trace -n 20",
            "waypoint trace c3 --kind command --full",
            "waypoint trace --all --jsonl >history.jsonl",
            "waypoint trace --cast work.cast",
        ),
        "It is the way to where the session stands: what it went back from is on the way to the safety"
        " checkpoint of that restore, and in --all.",
    ),
    Verb(
        "record",
        AGENTS,
        "verbs.trajectory.record",
        "add to that what was said: messages, tool calls and their results",
        _record,
        (
            "waypoint record user 'add payments'",
            'waypoint record tool_call --name search --call 7 \'{"query": "stripe"}\'',
            "waypoint record assistant <answer.txt",
        ),
        "It is kept when this returns, and moves with the session: a restore takes the conversation back.",
    ),
    Verb(
        "agent-state",
        AGENTS,
        "verbs.trajectory.agent_state",
        "give back what an agent left with a point (`checkpoint --agent-state`)",
        _agent_state,
        ("waypoint agent-state c3", "waypoint agent-state -o state.json"),
    ),
    Verb(
        "task add",
        AGENTS,
        "verbs.trajectory.task_add",
        "plan something to be done",
        _task_add,
        ("waypoint task add 'add payments' 'wire webhook'", "waypoint task add --under 1 'write tests'"),
        "Tasks are part of every checkpoint: a restore takes progress back with the machine.",
    ),
    Verb(
        "task start",
        AGENTS,
        "verbs.trajectory.task_start",
        "say that a task is under way",
        _task,
        ("waypoint task start 1",),
    ),
    Verb(
        "task done",
        AGENTS,
        "verbs.trajectory.task_done",
        "say that a task is completed",
        _task_done,
        ("waypoint task done 1.2", "waypoint task done 'add payments' --checkpoint"),
        "The evidence is the point the session stands on, if it was taken since the task was begun;"
        " --evidence names another, --checkpoint takes one.",
    ),
    Verb(
        "task fail",
        AGENTS,
        "verbs.trajectory.task_fail",
        "say that a task did not work out",
        _task_fail,
        ("waypoint task fail 2 'the API is gone'",),
        "`task start` tries it again.",
    ),
    Verb(
        "task skip",
        AGENTS,
        "verbs.trajectory.task_skip",
        "say that a task will not be done",
        _task_skip,
        ("waypoint task skip 3 'not needed any more'",),
    ),
    Verb(
        "task ls",
        AGENTS,
        "verbs.trajectory.task_ls",
        "list the tasks, now or at a point",
        _task_ls,
        ("waypoint task ls", "waypoint task ls c3"),
    ),
    Verb(
        "resume",
        AGENTS,
        "verbs.trajectory.resume",
        "say where things stand and what comes next, as text for a prompt",
        _session_first,
        ("waypoint resume work", "waypoint resume --json"),
        "A session that does not run is brought back from its last point first.",
    ),
    Verb(
        "effects",
        AGENTS,
        "verbs.effects.effects",
        "show what was done outside, which no restore takes back",
        _effects,
        ("waypoint effects", "waypoint effects up", "waypoint effects --all --json"),
        "The ledger is not part of any point. Each effect has a key: doing the same again warns.",
    ),
    Verb(
        "effect",
        AGENTS,
        "verbs.effects.effect",
        "write down something that was done outside by other means than a command",
        _effect,
        ("waypoint effect 'charged order 17' --key order-17 --compensate 'refund it'",),
        "It is marked as claimed.",
    ),
    Verb(
        "policy show",
        AGENTS,
        "verbs.effects.policy_show",
        "show what holds for a session's commands",
        _policy_show,
        ("waypoint policy show", "waypoint policy show --built-in"),
    ),
    Verb(
        "policy check",
        AGENTS,
        "verbs.effects.policy_check",
        "say what the policy makes of a command, without running it",
        _policy_check,
        ("waypoint policy check 'git push origin main'",),
    ),
    Verb(
        "policy set",
        AGENTS,
        "verbs.effects.policy_set",
        "give a session, or all of them, rules of their own",
        _policy_set,
        ("waypoint policy set policy.toml", "waypoint policy set --everywhere policy.toml"),
        "They are asked before the built-in ones. A file that cannot be understood changes nothing.",
    ),
    Verb(
        "approvals",
        AGENTS,
        "verbs.effects.approvals",
        "list the commands that wait for somebody's word",
        _approvals,
        ("waypoint approvals", "waypoint approvals --all"),
    ),
    Verb(
        "approve",
        AGENTS,
        "verbs.effects.approve",
        "let one of them run, once",
        _approve,
        ("waypoint approve 3f9c2a1b",),
    ),
    Verb(
        "deny",
        AGENTS,
        "verbs.effects.deny",
        "do not let it run",
        _deny,
        ("waypoint deny 3f9c2a1b --why 'not on a Friday'",),
    ),
    Verb(
        "mcp",
        AGENTS,
        "verbs.agents.mcp",
        "serve a model: the verbs as MCP tools, over stdin and stdout",
        _mcp,
        ("waypoint mcp", "waypoint mcp -s work"),
        "An agent's configuration names it as a server. It holds nothing: it may be killed and started"
        " again at any moment.",
    ),
    Verb(
        "hooks install",
        AGENTS,
        "verbs.agents.hooks_install",
        "put Waypoint's hooks and its MCP server into a coding agent's configuration",
        _hooks_install,
        ("waypoint hooks install claude", "waypoint hooks install codex --dir ~/project -s work"),
        "What is there stays; doing it again changes nothing. docs/coding-agents.md tells what they do.",
    ),
    Verb(
        "hooks uninstall",
        AGENTS,
        "verbs.agents.hooks_uninstall",
        "take them out again",
        _hooks,
        ("waypoint hooks uninstall claude",),
    ),
    Verb(
        "hooks show",
        AGENTS,
        "verbs.agents.hooks_show",
        "show which of them are there",
        _hooks_show,
        ("waypoint hooks show", "waypoint hooks show codex --dir ~/project"),
    ),
    Verb(
        "hook",
        AGENTS,
        "verbs.agents.hook",
        "what a coding agent's hook runs: records, takes points, asks the policy",
        _hook,
        ("waypoint hook claude <event.json",),
        "Reads what the agent tells as JSON, and answers in its format. It never fails: what goes wrong is a"
        " note on stderr.",
    ),
    Verb(
        "demo",
        MACHINE,
        "verbs.demo.demo",
        "see it at work: 20 seconds in sessions that are gone afterwards",
        _demo,
        ("waypoint demo",),
    ),
    Verb(
        "bench",
        MACHINE,
        "verbs.bench.bench",
        "measure what it costs here, beside plain CRIU, copies, git and others",
        _bench,
        ("waypoint bench --quick", "waypoint bench --only memory,peers --out results"),
        "Takes a few minutes, in a throwaway home of its own: nothing of yours is touched. Prints a table and"
        " writes bench.json, bench.md and bench.svg.",
    ),
    Verb(
        "doctor",
        MACHINE,
        "verbs.machine.doctor",
        "say what this machine has of what Waypoint needs",
        _nothing,
        ("waypoint doctor", "waypoint doctor --json"),
    ),
    Verb(
        "setup",
        MACHINE,
        "verbs.machine.setup",
        "put on this machine what Waypoint needs",
        _nothing,
        ("waypoint setup",),
        "`waypoint new` does it by itself when needed. Doing it twice does no harm.",
    ),
    Verb(
        "uninstall",
        MACHINE,
        "verbs.machine.uninstall",
        "remove every session, every checkpoint and what set-up has made",
        _yes,
        ("waypoint uninstall",),
    ),
    Verb(
        "base import",
        MACHINE,
        "verbs.machine.base_import",
        "keep a root file system, for `waypoint new --base NAME`",
        _base_import,
        ("docker export box > box.tar; waypoint base import box box.tar",),
    ),
    Verb(
        "base ls",
        MACHINE,
        "verbs.machine.base_ls",
        "list the root file systems that were imported",
        _nothing,
        ("waypoint base ls",),
    ),
    Verb(
        "base rm", MACHINE, "verbs.machine.base_rm", "forget one of them", _base_rm, ("waypoint base rm box",)
    ),
    Verb(
        "daemon status",
        MACHINE,
        "verbs.machine.daemon_status",
        "say how the daemon is",
        _nothing,
        ("waypoint daemon status",),
        "The daemon starts by itself with the first verb that needs it.",
    ),
    Verb(
        "daemon stop",
        MACHINE,
        "verbs.machine.daemon_stop",
        "stop the daemon",
        _daemon_stop,
        ("waypoint daemon stop", "waypoint daemon stop --sessions --yes"),
        "Sessions live on without it, and the next verb starts it again.",
    ),
    Verb(
        "daemon logs",
        MACHINE,
        "verbs.machine.daemon_logs",
        "show what the daemon has written down",
        _daemon_logs,
        ("waypoint daemon logs -n 20", "waypoint daemon logs -f"),
    ),
)


def below(group: str) -> list[Verb]:
    """The verbs of two words that start with this one: `base`, `daemon`."""
    return [verb for verb in VERBS if verb.name.startswith(f"{group} ")]


def find(argv: Sequence[str]) -> tuple[Verb, list[str]]:
    """The verb that the words name, and the words after it."""
    first, rest = argv[0], list(argv[1:])
    for verb in VERBS:
        if verb.name == first:
            return verb, rest
    group = below(first)
    if not group:
        raise UsageError(f"there is no verb {first!r}", hint=_nearest(first))
    if rest:
        for verb in group:
            if verb.name == f"{first} {rest[0]}":
                return verb, rest[1:]
    what = f"{rest[0]!r} is nothing {first!r} can do" if rest else f"{first!r} needs to be told what to do"
    raise UsageError(what, hint=" · ".join(f"`{PROGRAM} {verb.name}`" for verb in group))


# What people type who come from git, tmux and docker.
_HABITS = {
    "attach": "shell", "branch": "fork", "capture-pane": "screen", "checkout": "restore", "clone": "fork",
    "commit": "checkpoint", "copy": "cp", "create": "new", "delete": "rm", "history": "log",
    "install": "setup", "kill": "rm", "list": "ls", "ps": "ls", "remove": "rm", "reset": "restore",
    "rollback": "restore",
    "gc": "prune", "run": "exec", "annotate": "note", "plan": "preview", "test": "verify",
    "save": "checkpoint", "send-keys": "type", "start": "new", "stop": "park",
}  # fmt: skip


def _nearest(word: str) -> str:
    import difflib

    names = sorted({verb.name.split()[0] for verb in VERBS})
    close = [_HABITS[word]] if word in _HABITS else difflib.get_close_matches(word, names, n=2, cutoff=0.6)
    if not close:
        return f"`{PROGRAM} -h` lists them"
    return "did you mean " + " or ".join(f"`{PROGRAM} {name}`" for name in close) + "?"


def overview() -> str:
    """The help of the program itself."""
    about = "A live session that can be checkpointed, restored and forked: files, processes, terminal."
    parts = [f"{PROGRAM} VERB …\n\n{about}"]
    for group in GROUPS:
        lines = [Argument(verb.name, verb.summary) for verb in VERBS if verb.group == group]
        parts.append(f"{group}\n{columns([*lines], 16)}")
    parts.append(
        "first steps:\n"
        "  waypoint demo                              what it is about, in 20 seconds\n"
        "  waypoint new work; waypoint shell work     a session, and into it\n"
        "  waypoint VERB -h                           how a verb is used"
    )
    return "\n\n".join(parts) + "\n"


def group_overview(group: str) -> str:
    lines = [Argument(verb.name, verb.summary) for verb in below(group)]
    return f"{PROGRAM} {group} VERB …\n\n{columns(lines)}\n"


class Asked(NamedTuple):
    """What stands before the verb, and the words from the verb on."""

    home: str | None
    json: bool
    show: str
    """"help" or "version" when that is all that was asked for."""
    words: list[str]


def split(argv: Sequence[str]) -> Asked:
    """Takes the options off that stand before the verb."""
    home, json, show, at = None, False, "", 0
    while at < len(argv) and argv[at].startswith("-"):
        name, equals, value = argv[at].partition("=")
        if name == "--home":
            if not equals:
                at += 1
                value = argv[at] if at < len(argv) else ""
            if not value:
                raise UsageError("--home needs a folder", hint=f"{PROGRAM} --home DIR VERB …")
            home = value
        elif argv[at] == "--json":
            json = True
        elif argv[at] in {"-h", "--help"}:
            show = show or "help"
        elif argv[at] in {"-V", "--version"}:
            show = show or "version"
        else:
            raise UsageError(
                f"there is no option {argv[at]!r} here", hint=f"`{PROGRAM} -h` lists what there is"
            )
        at += 1
    return Asked(home, json, show, list(argv[at:]))
