"""Commands of bash itself that run other commands, now or later: `eval`, `trap`, `alias`, `mapfile -C`.

Each function adds what it finds to the inspection of a line (wrappers.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from waypoint.policy.bash import Command, Word
from waypoint.policy.words import join_words, option_value, program_of, skip_options

if TYPE_CHECKING:
    from waypoint.policy.wrappers import Inspector

_KNOWN_PLACES = re.compile(
    r"\$\{?(?:HOME|PWD|OLDPWD|TMPDIR|XDG_\w+|VIRTUAL_ENV|GITHUB_\w+|BASH_SOURCE|DIRSTACK)\b|\$\(mktemp\b|\$\(pwd\)"
)
_TUNING = re.compile(
    r"(?:(?:--max-[\w-]+=\d+|--no-warnings|--enable-source-maps|--trace-\w+|-X(?:m[xns]|ss)\w+|-XX:[+-]?\w+(?:=\w+)?|-W\d?|-w"
    r"|-D[\w.]+=[\w.-]*|--dns-result-order=\w+|--openssl-legacy-provider)\s*)+"
)


def is_tuning(value: str) -> bool:
    """Whether the options in a variable load nothing: `--max-old-space-size=4096`."""
    return _TUNING.fullmatch(value) is not None


def unknown_file(path: Word) -> str | None:
    """A file that is only known when the line runs: it may be a connection (`/dev/tcp/…`)."""
    if path.dynamic and path.text.startswith(("$", "`")) and not _KNOWN_PLACES.match(path.text):
        return f"which file {path.text} is"
    return None


def inspect_eval(inspector: Inspector, _: str, command: Command) -> None:
    inspector.shell_text(join_words(command.words[1:]), "what eval is given")


def inspect_export(inspector: Inspector, name: str, command: Command) -> None:
    inspect_subscripts(inspector, name, command)
    for word in command.words[1:]:
        variable, equals, value = word.text.partition("=")
        if equals:
            inspector.variables.append((variable, word._replace(text=value)))
            inspector.command_variable(variable, word._replace(text=value))


def inspect_source(inspector: Inspector, _: str, command: Command) -> None:
    target = command.words[1] if len(command.words) > 1 else None
    if target and re.search(r"(^|/)bin/activate(\.\w+)?$", target.text):
        inspector.add_part(command)
    else:
        inspector.result.add_unseen(f"what the script {target.text if target else '?'} does")


def inspect_alias(inspector: Inspector, _: str, command: Command) -> None:
    inspector.add_part(command)
    for word in command.words[1:]:
        _, equals, value = word.text.partition("=")
        if equals:
            inspector.shell_text(word._replace(text=value), "what an alias stands for")


def inspect_trap(inspector: Inspector, _: str, command: Command) -> None:
    inspector.add_part(command)
    arguments = [word for word in command.words[1:] if not word.text.startswith("-")]
    if len(arguments) > 1 and arguments[0].text:
        inspector.shell_text(arguments[0], "what a trap runs")


def inspect_command(inspector: Inspector, _: str, command: Command) -> None:
    if len(command.words) > 1 and command.words[1].text in ("-v", "-V"):
        inspector.add_part(command)
    else:
        inspector.inner_command(command.words[skip_options(command.words, frozenset()) :], command)


def inspect_hash(inspector: Inspector, _: str, command: Command) -> None:
    """`hash -p FILE NAME`: from now on NAME is that file."""
    if path := option_value(command.words, "-p"):
        inspector.result.add_unseen(f"what {path.text} does under the name of another command")
    inspector.add_part(command)


def inspect_mapfile(inspector: Inspector, name: str, command: Command) -> None:
    if callback := option_value(command.words, "-C"):
        inspector.shell_text(callback, f"what {name} -C runs")
    inspect_subscripts(inspector, name, command)


def inspect_bind(inspector: Inspector, _: str, command: Command) -> None:
    """A key that runs a command, or types one."""
    for index, word in enumerate(command.words[1:], 1):
        _, colon, action = word.text.partition('":')
        if word.text == "-f":
            inspector.result.add_unseen("what a file binds to keys")
        elif colon and command.words[index - 1].text == "-x":
            inspector.shell_text(word._replace(text=action), "what a key runs")
        elif colon and '"' in action:
            inspector.result.add_unseen("what a key types")
    inspector.add_part(command)


def inspect_complete(inspector: Inspector, name: str, command: Command) -> None:
    if line := option_value(command.words, "-C"):
        inspector.shell_text(line, f"what {name} -C runs")
    if words := option_value(command.words, "-W"):
        inspector.expansions(words)
    inspector.add_part(command)


def inspect_enable(inspector: Inspector, _: str, command: Command) -> None:
    if library := option_value(command.words, "-f"):
        inspector.result.add_unseen(f"what {library.text} does inside the shell")
    inspector.add_part(command)


def inspect_fc(inspector: Inspector, _: str, command: Command) -> None:
    if editor := option_value(command.words, "-e"):
        inspector.shell_text(editor, "what fc -e runs")
    if not any(word.text == "-l" or re.fullmatch(r"-[nr]*l[nr]*", word.text) for word in command.words):
        inspector.result.add_unseen("which earlier command fc runs again")
    inspector.add_part(command)


def inspect_jobs(inspector: Inspector, _: str, command: Command) -> None:
    if len(command.words) > 2 and command.words[1].text == "-x":
        inspector.inner_command(command.words[2:], command)
    else:
        inspector.add_part(command)


def inspect_subscripts(inspector: Inspector, name: str, command: Command) -> None:
    """Names of variables: bash expands what is in their brackets, also if it was quoted. `read 'a[$(ls)]'`"""
    words = command.words[1:]
    program = program_of(name)
    if program == "printf":
        words = words[1:2] if words and words[0].text == "-v" else []
    elif program in ("test", "["):
        words = [words[index + 1] for index, word in enumerate(words[:-1]) if word.text in ("-v", "-R")]
    for word in words:
        if "[" in word.text or program == "let":
            inspector.expansions(word)
    inspector.add_part(command)
