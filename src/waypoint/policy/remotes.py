"""Where `git push` goes when the line names a remote: to another repository of the session, or outside.

The line does not tell; the repository's configuration does. It is believed only where nothing can stand
between the two: the line does nothing but git, and changes no configuration; no other file is included, and
no address is rewritten.
"""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from dulwich.config import ConfigFile

from waypoint.policy.bash import Word
from waypoint.policy.wrappers import Inspection, Part

DEFAULT = ""
"""Stands for the remote of a push that names none."""
USER_CONFIGS = ("/etc/gitconfig", "/root/.gitconfig", "/root/.config/git/config")
"""What git reads beside the configuration of a repository, for the user of a session."""

_VERBS = frozenset({
    "add", "branch", "checkout", "commit", "diff", "fetch", "log", "merge", "mv", "pull", "push", "rebase",
    "reset", "rm", "show", "stash", "status", "switch", "tag",
})  # fmt: skip
"""None of them changes where a remote is."""
_QUIET = frozenset({":", "echo", "printf", "true"})
_HARMLESS_VARIABLES = re.compile(
    r"GIT_(?:AUTHOR|COMMITTER)_\w+|GIT_(?:EDITOR|PAGER|TERMINAL_PROMPT|MERGE_AUTOEDIT)"
)
_ELSEWHERE = ("--repo", "--receive-pack", "--exec", "--upload-pack")
_LOCAL = re.compile(r"(?:file://(?=/))?(/.*|\.\.?(?:/.*)?)")


def push_folders(inspection: Inspection, cwd: str) -> frozenset[str]:
    """The folders in which the pushes of a line may run; empty when there are none, or when the line does
    something that could change where they go."""
    if inspection.unseen or not cwd.startswith("/"):
        return frozenset()
    folders, pushes = {cwd}, set[str]()
    for part in inspection.parts:
        if part.place or part.shadowed or any(path.text != "/dev/null" for path in part.writes):
            return frozenset()
        if not all(_is_harmless(name) for name, _ in part.assignments):
            return frozenset()
        if part.program == "cd":
            target = _folder(part.words[1:])
            if target is None:
                return frozenset()
            folders |= {_join(folder, target) for folder in folders}
        elif part.program == "git":
            target, verb = _git(part)
            if verb not in _VERBS or target is None:
                return frozenset()
            if verb == "push":
                pushes |= {_join(folder, target) for folder in folders}
        elif part.words and part.program not in _QUIET:
            return frozenset()
    return frozenset(pushes)


def _is_harmless(variable: str) -> bool:
    return _HARMLESS_VARIABLES.fullmatch(variable) is not None or not (
        variable.startswith("GIT_") or variable in ("HOME", "XDG_CONFIG_HOME", "PATH")
    )


def environment_is_plain(exported: Mapping[str, str]) -> bool:
    """Whether no exported variable of the shell makes git read another configuration."""
    if exported.get("HOME", "/root") != "/root" or "XDG_CONFIG_HOME" in exported:
        return False
    return all(name in ("HOME", "PATH") or _is_harmless(name) for name in exported)


def _folder(words: Sequence[Word]) -> str | None:
    """The folder that one word names; None where only the shell knows it."""
    if len(words) != 1 or words[0].dynamic or not words[0].text or words[0].text.startswith(("-", "~")):
        return None
    return words[0].text


def _git(part: Part) -> tuple[str | None, str]:
    """The folder that a git command is sent to, and its verb; None for options that are not understood."""
    words = list(part.words[1:])
    folder = "."
    while words and words[0].text.startswith("-"):
        if words.pop(0).text != "-C" or (target := _folder(words[:1])) is None:
            return None, ""
        folder = _join(folder, target)
        words.pop(0)
    if not words or words[0].dynamic or any(word.text.startswith(_ELSEWHERE) for word in words):
        return None, ""
    return folder, words[0].text


def _join(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))


def local_remotes(
    own: bytes, users: Iterable[bytes], folder: str, is_repository: Callable[[str], bool]
) -> frozenset[str]:
    """The remotes of a repository that are repositories of the session, by its configuration and those of the
    user. `folder`: its work tree; `is_repository`: whether the session has a repository at a path."""
    configs = [ConfigFile.from_file(io.BytesIO(text), expand_includes=False) for text in (own, *users)]
    places: dict[str, list[str]] = {}
    for config in configs:
        for section in config.sections():
            kind = section[0].lower()
            if kind in (b"include", b"includeif", b"url"):
                return frozenset()
            if kind == b"remote" and len(section) == 2:
                name = section[1].decode(errors="replace")
                for key in (b"url", b"pushurl"):
                    places.setdefault(name, []).extend(
                        value.decode(errors="replace") for value in config.get_multivar(section, key)
                    )

    def is_local(url: str) -> bool:
        match = _LOCAL.fullmatch(url)
        return match is not None and is_repository(_join(folder, match[1]))

    found = {name for name, urls in places.items() if urls and all(map(is_local, urls))}
    return frozenset(found | ({DEFAULT} if found and found == places.keys() else set()))
