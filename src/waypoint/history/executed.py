"""Files that the host runs by itself, or takes commands from: git hooks, shell start files, units and more.

An agent that may bring files out of its box must not get commands run outside of it that way, unless the user
agrees to it. Which files these are is data: executed.toml. Two are looked at more closely. A folder is a bare
repository of git if it has what every repository has. And a configuration of git in which every line is known
to be harmless is no danger: without this, every new repository would be a conflict.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from waypoint.model import from_toml

MOST_CONFIG_BYTES = 64 << 10
_HARMLESS_LINE = re.compile(
    r"\s*(?:"
    r"[#;].*"
    r'|\[(?:core|init|user|remote "[^"\\]+"|branch "[^"\\]+"|submodule "[^"\\]+")\]'
    r"|(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|symlinks|precomposeunicode|autocrlf|eol"
    r"|defaultbranch|name|email|fetch|merge|rebase|active|branch) = [^\\\"#;]*"
    r"|remote = [\w.-]+"
    r"|url = (?:https?://|git://|ssh://|file://|[\w.-]+@[\w.-]+:|\.{0,2}/)[^\\\"#;]*"
    r")?\s*"
)
"""A line of a configuration of git after which git runs nothing that it would not run without it."""


class _Group(msgspec.Struct, frozen=True):
    why: str
    anywhere: tuple[str, ...] = ()
    host: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True):
    groups: tuple[_Group, ...]


class _Pattern(msgspec.Struct, frozen=True):
    why: str
    files: re.Pattern[str]
    links: re.Pattern[str]
    """Folders on the way to such a file: a link in their place leads to another one."""


def reason_executed(
    path: str, *, is_link: bool, read: Callable[[], bytes | None], is_repository: Callable[[int], bool]
) -> str | None:
    """Why the host would run a file, or take commands from it, without being asked; None if it would not.

    `path`: where it lands, from the root of the host. `read` gives its content. `is_repository` says whether
    the folder that many levels above it has what a repository of git has.
    """
    if path.endswith(".sample") and posixpath.basename(posixpath.dirname(path)) == "hooks":
        return None  # git does not run it
    for pattern in _patterns():
        if pattern.files.fullmatch(path) or (is_link and pattern.links.fullmatch(path)):
            why = pattern.why
            break
    else:
        why = _in_bare_repository(path, is_repository) or ""
    if posixpath.basename(path) == "config" and "git" in why and not is_link and _is_harmless(read()):
        return None
    return why or None


def _in_bare_repository(path: str, is_repository: Callable[[int], bool]) -> str | None:
    folder, name = posixpath.split(path)
    if name == "config" and is_repository(1):
        return "git takes commands from it"
    if posixpath.basename(folder) == "hooks" and is_repository(2):
        return "git runs it as a hook"
    return "git runs what is in it as hooks" if name == "hooks" and is_repository(1) else None


def _is_harmless(config: bytes | None) -> bool:
    """Whether a configuration of git has only lines that are known to be harmless."""
    if config is None or len(config) > MOST_CONFIG_BYTES:
        return False
    try:
        text = config.decode()
    except UnicodeDecodeError:
        return False
    # Only the line breaks that git knows.
    return all(_HARMLESS_LINE.fullmatch(line) for line in text.split("\n"))


@functools.cache
def _patterns() -> tuple[_Pattern, ...]:
    text = Path(__file__).with_name("executed.toml").read_bytes()
    return tuple(_compiled(group) for group in from_toml(text, _File).groups)


def _compiled(group: _Group) -> _Pattern:
    return _Pattern(
        group.why,
        re.compile("|".join(_expression(*pattern) for pattern in _of(group)), re.DOTALL),
        re.compile("|".join(_on_the_way(*pattern) for pattern in _of(group)), re.DOTALL),
    )


def _of(group: _Group) -> Iterator[tuple[str, list[str]]]:
    """Each pattern: what may stand before it, and its names."""
    for pattern in group.anywhere:
        yield "(?:.*/)?", pattern.split("/")
    for pattern in group.host:
        yield "/", pattern.lstrip("/").split("/")


def _expression(before: str, names: list[str]) -> str:
    parts = [_name(name) for name in names]
    if names[-1] == "**":
        parts.pop()
        return f"{before}{'/'.join(parts)}(?:/.*)?"
    return before + "/".join(parts)


def _on_the_way(before: str, names: list[str]) -> str:
    nested = ""
    for name in reversed(names[1:-1]):
        nested = f"(?:/{_name(name)}{nested})?"
    return f"{before}{_name(names[0])}{nested}"


def _name(name: str) -> str:
    return ".*" if name == "**" else "[^/]*".join(re.escape(part) for part in name.split("*"))
