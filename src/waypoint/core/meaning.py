"""What the words of a command line mean in a session at a moment: its shell, the programs, the files.

A person approves a command for what it means while they look at it. Before it runs, minutes later perhaps
and after other commands, the same words may name another alias, another program on PATH or a file with
another content. So the meaning is taken when the question is asked, and again when it is the command's turn;
it runs only if both are the same.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from waypoint.core.live import Live
from waypoint.core.observe import look_at_shell
from waypoint.history.shell import ShellFact, compare_settings, compare_variables
from waypoint.kernel.syscalls import RESOLVE_IN_ROOT, openat2
from waypoint.policy.wrappers import Inspection

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where bash looks when PATH is not set."""
_MOST_WORDS = 256
_VALUE_OF = re.compile(r"[=@]")

_Stamp = tuple[int, ...]


class Meaning(NamedTuple):
    """What the words of one line mean."""

    shell: ShellFact
    files: dict[str, tuple[str, _Stamp]]
    """By word: the file that it names, and what changes when another takes its place or it is written to."""

    def remarks(self) -> list[str]:
        """What a reader of the line would not expect."""
        found = []
        for word in self.files:
            if word in self.shell.aliases:
                found.append(f"{word} is an alias of this shell: {self.shell.aliases[word]}")
            elif word in self.shell.functions:
                found.append(f"{word} is a function of this shell")
        return found


def look(live: Live, inspection: Inspection) -> Meaning:
    """What the words mean now. After a command the shell comes to its prompt first."""
    live.terminal.wait_prompt()
    shell = look_at_shell(live.box, live.terminal)
    path = shell.exported.get("PATH", _PATH).split(":")
    try:
        root = os.open(f"/proc/{live.box.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return Meaning(shell, {})  # the box has just ended: nothing runs
    try:
        return Meaning(shell, dict(_files(root, shell.cwd, path, inspection)))
    finally:
        os.close(root)


def compare(before: Meaning, now: Meaning) -> str:
    """What has changed, in a few words; empty if nothing has."""
    if before.shell.cwd != now.shell.cwd:
        return f"its folder is {now.shell.cwd}, not {before.shell.cwd}"
    if variables := compare_variables(before.shell, now.shell):
        return f"the variable {variables[0].name} has changed"
    if before.shell.listing and not now.shell.listing:
        return "its shell does not say what it has defined"
    if others := set(before.shell.functions) ^ set(now.shell.functions):
        named = sorted(name for name in others if not name.startswith("_"))
        if named:
            return f"the function {named[0]} of its shell has changed"
    # Completions are loaded as functions when a person types; their names begin with `_`.
    settings = [one for one in compare_settings(before.shell, now.shell) if not one.name.startswith("_")]
    if settings:
        return f"the {settings[0].kind} {settings[0].name} of its shell has changed"
    for word in before.files.keys() | now.files.keys():
        (old, was), (new, stamp) = before.files.get(word, _NONE), now.files.get(word, _NONE)
        if old != new:
            return f"{word} is {new or 'no file'} now, not {old or 'no file'}"
        if was != stamp:
            return f"{old} was changed"
    return ""


_NONE: tuple[str, _Stamp] = ("", ())


def _files(
    root: int, cwd: str, path: Sequence[str], inspection: Inspection
) -> Iterator[tuple[str, tuple[str, _Stamp]]]:
    seen: set[str] = set()
    for part in inspection.parts:
        words = [word.text for word in part.words]
        if part.stdin:
            words.append(part.stdin.text)
        for place, word in enumerate(words):
            names = [posixpath.join(folder, word) for folder in path] if not place and "/" not in word else []
            names += [word, *(text for text in _VALUE_OF.split(word)[1:] if text)]
            if word in seen or not word or len(seen) >= _MOST_WORDS:
                continue
            seen.add(word)
            yield word, _first(root, [posixpath.join(cwd, name) for name in names])


def _first(root: int, paths: Iterable[str]) -> tuple[str, _Stamp]:
    """The first of these that is a file."""
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            fd = openat2(root, path.lstrip("/"), os.O_PATH, resolve=RESOLVE_IN_ROOT)
            try:
                status = os.fstat(fd)
            finally:
                os.close(fd)
            if stat.S_ISREG(status.st_mode):
                return path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return _NONE
