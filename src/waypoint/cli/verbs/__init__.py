"""The verbs of the command line: one module per subject, each verb with its arguments, help and function.

`GROUPS` says in which module a verb is, so that running one verb imports one module. A new verb is a
function with `@verb(…)` above it, and one word here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from waypoint.cli.spec import PROGRAM, Verb
from waypoint.errors import UsageError

GROUPS: dict[str, dict[str, str]] = {
    "Sessions": {
        "run": "run", "new": "sessions", "exec": "commands", "ls": "sessions", "park": "sessions",
        "stop": "sessions", "rm": "sessions",
    },
    "Points in time": {
        "checkpoint": "points", "log": "history", "show": "history", "status": "history", "diff": "history",
        "compare": "history",
        "preview": "restore", "restore": "restore", "auto": "points", "undo": "restore", "redo": "restore",
        "ops": "restore", "fork": "points", "verify": "points", "bisect": "points",
        "explore": "explore", "tag": "points", "note": "points",
    },
    "Ports": {"ports": "ports", "forward": "ports", "unforward": "ports"},
    "The terminal": {"shell": "terminal", "type": "terminal", "screen": "terminal"},
    "Files in and out": {"apply": "files", "export": "files", "cp": "files"},
    "Disk space": {"pin": "space", "unpin": "space", "forget": "space", "prune": "space", "du": "space"},
    "Agents": {
        "trace": "trajectory", "replay": "trajectory", "record": "trajectory", "agent-state": "trajectory",
        "task add": "tasks", "task start": "tasks", "task done": "tasks", "task fail": "tasks",
        "task skip": "tasks", "task ls": "tasks", "resume": "tasks",
        "effects": "effects", "effect": "effects",
        "policy show": "policy", "policy check": "policy", "policy set": "policy",
        "approvals": "policy", "approve": "policy", "deny": "policy",
        "mcp": "hooks", "hooks install": "hooks", "hooks uninstall": "hooks", "hooks show": "hooks",
        "hook": "hooks",
    },
    "This machine": {
        "demo": "demo", "bench": "bench", "doctor": "machine", "setup": "machine", "uninstall": "machine",
        "check": "check", "recover": "check",
        "base import": "bases", "base ls": "bases", "base info": "bases", "base rm": "bases",
        "completion": "documents", "complete": "documents", "man": "documents",
        "daemon status": "machine", "daemon stop": "machine", "daemon logs": "machine",
    },
}  # fmt: skip
"""Group of the help → verb → module. The order is the order of the help."""

MODULES = {name: module for verbs in GROUPS.values() for name, module in verbs.items()}

_SYNONYMS = {
    "annotate": "note", "attach": "shell", "branch": "fork", "capture-pane": "screen", "checkout": "restore",
    "clone": "fork", "commit": "checkpoint", "copy": "cp", "create": "new", "delete": "rm", "fsck": "check",
    "gc": "prune", "history": "log", "install": "setup", "kill": "rm", "list": "ls", "plan": "preview",
    "ps": "ls", "remove": "rm", "repair": "recover", "reset": "restore", "rollback": "restore",
    "save": "checkpoint",
    "port": "ports", "port-forward": "forward", "publish": "forward", "send-keys": "type",
    "start": "new", "stop": "park", "test": "verify",
}  # fmt: skip
"""Words that users of git, tmux and docker type, and the verb that does this here."""


def load(name: str) -> Verb:
    """The verb of that name. Imports its module."""
    module = import_module(f"{__name__}.{MODULES[name]}")
    return next(value for value in vars(module).values() if isinstance(value, Verb) and value.name == name)


def load_all() -> list[tuple[str, list[Verb]]]:
    """Every group with its verbs. Imports all modules."""
    return [(group, [load(name) for name in names]) for group, names in GROUPS.items()]


def family(word: str) -> list[str]:
    """The verbs of two words that start with this one: `base`, `daemon`."""
    return [name for name in MODULES if name.startswith(f"{word} ")]


def find(words: Sequence[str]) -> tuple[Verb, list[str]]:
    """The verb that these words start with, and the words after it."""
    first, rest = words[0], list(words[1:])
    if first in MODULES:
        return load(first), rest
    names = family(first)
    if not names:
        raise UsageError(f"unknown verb {first!r}", hint=_suggestion(first))
    if rest and f"{first} {rest[0]}" in names:
        return load(f"{first} {rest[0]}"), rest[1:]
    message = f"unknown verb {f'{first} {rest[0]}'!r}" if rest else f"{first!r} needs a second word"
    raise UsageError(message, hint=" · ".join(f"`{PROGRAM} {name}`" for name in names))


def _suggestion(word: str) -> str:
    import difflib

    names = sorted({name.split()[0] for name in MODULES})
    close = (
        [_SYNONYMS[word]] if word in _SYNONYMS else difflib.get_close_matches(word, names, n=2, cutoff=0.6)
    )
    if not close:
        return f"`{PROGRAM} -h` lists the verbs"
    return "did you mean " + " or ".join(f"`{PROGRAM} {name}`" for name in close) + "?"
