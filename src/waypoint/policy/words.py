"""The words of a command: its name, its options, the hosts in it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from waypoint.policy.bash import Word

_BIN = re.compile(r"(?:^|/)\.?s?bin/[^/]+$")


def program_of(text: str) -> str:
    """The name of a program, without its version. A path outside of `bin` folders stays a path."""
    if "/" in text and not _BIN.search(text):
        return text
    name = posixpath.basename(text)
    if match := re.fullmatch(r"(python|pip|pypy|perl|ruby|node|php|lua)\d[\d.]*", name):
        return "python" if match[1] == "pypy" else match[1]
    return name


def skip_options(words: Sequence[Word], values: frozenset[str], at: int = 1) -> int:
    """The index at which the options end. `values`: those that take their value as a separate word."""
    while at < len(words):
        text = words[at].text
        if text == "--":
            return at + 1
        if not text.startswith("-") or text == "-":
            return at
        # `-u root`, but `-uroot` and `--user=root` are one word.
        at += 2 if text in values else 1
    return min(at, len(words))  # the last option may lack its value


def join_words(words: Sequence[Word]) -> Word:
    """Words as one text for a shell."""
    return Word(" ".join(word.text for word in words), any(word.dynamic for word in words), unquoted=False)


def with_placeholders(words: Sequence[Word]) -> list[Word]:
    """The words of an inner command, in which the wrapper replaces {}."""
    return [word._replace(dynamic=True) if "{}" in word.text else word for word in words]


def option_value(words: Sequence[Word], option: str) -> Word | None:
    """The value of an option, as the next word or attached to it."""
    attached = f"{option}=" if option.startswith("--") else option
    for index, word in enumerate(words):
        if word.text == option and index + 1 < len(words):
            return words[index + 1]
        if word.text.startswith(attached) and word.text != option:
            return word._replace(text=word.text.removeprefix(attached))
    return None


def describe_expansion(text: str) -> str:
    """Names the expansion in a dynamic word."""
    if match := re.search(r"\$\{?[A-Za-z_@*#?!0-9]\w*\}?", text):
        return f"the variable {match[0]}"
    return "what another command prints" if re.search(r"\$\(|`", text) else "in a variable"


_LOCAL = re.compile(
    r"(?i)(localhost|.*\.localhost|localhost\.localdomain|ip6-localhost|127(\.\d+){1,3}|0\.0\.0\.0|::1|\[::1\]|0)$"
)


def is_local(host: str) -> bool:
    """Whether a host is the session itself."""
    return bool(_LOCAL.match(host.strip("[]") if host.startswith("[") else host))
