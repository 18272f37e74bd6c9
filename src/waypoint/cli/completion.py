"""What a shell offers after TAB, from the declarations of the verbs: `waypoint completion SHELL`.

The script knows verbs, options and choices by itself. Names of sessions and of points it asks `waypoint
complete` for, so they are those of the moment. zsh runs the script of bash (bashcompinit).
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import waypoint
from waypoint.cli.spec import PROGRAM, Parser, Verb
from waypoint.cli.verbs import load_all

SHELLS = ("bash", "zsh", "fish")
SESSIONS, POINTS, FILES = "@sessions", "@points", "@files"
_OF_METAVARS = {
    "SESSION": SESSIONS,
    "REF": POINTS,
    "REF|PATH": POINTS,
    "FROM": POINTS,
    "DIR": FILES,
    "FILE": FILES,
    "FILE|-": FILES,
    "PATH": FILES,
}


class _Option(NamedTuple):
    """An option of a verb. `values`: what may follow it; empty for a switch or for free text."""

    names: tuple[str, ...]
    takes_value: bool
    values: tuple[str, ...]
    help: str


class _Words(NamedTuple):
    """What may be typed after a verb."""

    options: tuple[_Option, ...]
    values: tuple[str, ...]
    """Of its positional arguments, all together."""


_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }
autoload -U +X bashcompinit && bashcompinit"""
"""A new zsh has no completion system yet, and no start-up file that loads it."""


def script(shell: str) -> str:
    """The script for a shell."""
    verbs = {verb.name: verb for _, group in load_all() for verb in group}
    words = {name: _words(verb) for name, verb in verbs.items()}
    if shell == "fish":
        return "\n".join(_fish(verbs, words)) + "\n"
    text = "\n".join(_bash(words)) + "\n"
    return f"{_ZSH}\n{text}" if shell == "zsh" else text


def _words(verb: Verb) -> _Words:
    options, values = list[_Option](), dict[str, None]()
    for action in Parser(verb).actions:
        if action.option_strings:
            names, takes = tuple(action.option_strings), action.nargs != 0
            options.append(_Option(names, takes, _values(action) if takes else (), action.help or ""))
        else:
            values.update(dict.fromkeys(_values(action)))
    return _Words(tuple(options), tuple(values))


def _values(action: argparse.Action) -> tuple[str, ...]:
    if action.choices is not None:
        return tuple(str(choice) for choice in action.choices)
    kind = _OF_METAVARS.get(str(action.metavar))
    return (kind,) if kind else ()


# ---- bash and zsh --------------------------------------------------------------------------------


def _bash(words: dict[str, _Words]) -> Iterator[str]:
    families = sorted({name.split()[0] for name in words if " " in name})
    yield f"_waypoint_verbs={_quoted(sorted({name.split()[0] for name in words}))}"
    yield f"_waypoint_families={_quoted(families)}"
    yield "_waypoint_of_verb() {"
    yield "    case $verb in"
    for family in families:
        seconds = [name.partition(" ")[2] for name in words if name.startswith(f"{family} ")]
        yield f"        {family}) values={_quoted(seconds)} ;;"
    for name, known in words.items():
        yield f"        {shlex.quote(name)})"
        yield f"            options={_quoted([each for option in known.options for each in option.names])}"
        yield f"            values={_quoted(known.values)}"
        for option in known.options:
            if option.takes_value:
                names = "|".join(option.names)
                values = _quoted(option.values)
                yield f"            case $before in {names}) values={values} options='' ;; esac"
        yield "            ;;"
    yield "    esac"
    yield "}"
    yield (Path(waypoint.__file__).parent / "shell" / "completion.bash").read_text().rstrip()


def _quoted(words: Sequence[str]) -> str:
    return shlex.quote(" ".join(words))


# ---- fish ----------------------------------------------------------------------------------------

_FISH_POINTS = f"""\
function __waypoint_points --description 'The points of the session that the line names'
    set -l session
    set -l before
    for word in (commandline -opc)
        if contains -- "$before" -s --session
            set session -s $word
        end
        set before $word
    end
    {PROGRAM} complete points $session 2>/dev/null
end"""


def _fish(verbs: dict[str, Verb], words: dict[str, _Words]) -> Iterator[str]:
    yield f"# Written by `{PROGRAM} completion`."
    yield _FISH_POINTS
    yield f"complete -c {PROGRAM} -f"
    first: dict[str, str] = {}
    for name, verb in verbs.items():
        head, _, second = name.partition(" ")
        first.setdefault(head, f"{head} …" if second else verb.summary)
        if second:
            yield _offer(f"__fish_seen_subcommand_from {head}", [second], verb.summary)
    for head, summary in first.items():
        yield _offer("__fish_use_subcommand", [head], summary)
    for name, known in words.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        for option in known.options:
            flags = [
                *(f"-s {flag[1:]}" for flag in option.names if len(flag) == 2),
                *(f"-l {flag[2:]}" for flag in option.names if flag.startswith("--")),
            ]
            line = f"complete -c {PROGRAM} -n {shlex.quote(seen)} {' '.join(flags)}"
            if option.takes_value:
                line += " -x" + (f" -a {_fish_values(option.values)}" if option.values else "")
            yield f"{line} -d {_fish_text(option.help)}"
        if known.values:
            yield f"complete -c {PROGRAM} -n {shlex.quote(seen)} -a {_fish_values(known.values)}"


def _offer(condition: str, values: Sequence[str], help: str) -> str:
    offered = f"-n {_fish_text(condition)} -a {_fish_text(' '.join(values))}"
    return f"complete -c {PROGRAM} {offered} -d {_fish_text(help)}"


def _fish_values(values: Sequence[str]) -> str:
    asked = {
        SESSIONS: f"({PROGRAM} complete sessions 2>/dev/null)",
        POINTS: "(__waypoint_points)",
        FILES: "(__fish_complete_path (commandline -ct))",
    }
    return _fish_text(" ".join(asked.get(value, value) for value in values))


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
