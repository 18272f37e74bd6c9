"""Hints: what to do about an error, as data that each face puts into its own words.

    raise SessionDead(
        f"session {name!r} does not run",
        hint=Hint(Do("restore", session=name, ref="@"), " brings it back"),
    )

A `Do` names a request of the API (api/requests.py) and its arguments. The command line shows
`` `waypoint restore -s work @` ``, the SDK `` `s.restore("@")` ``, MCP a call of a tool
(mcp/wording.py). So no layer below a face needs to know how that face is operated. A `Hint` is also the text
of its Python wording, because a user of the SDK reads `error.hint`; the structure (`parts`) travels over the
socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

Wording = Callable[["Do"], str]
"""How a face writes a request."""

MACHINE = frozenset(("setup", "doctor"))
"""What is done to this machine without a daemon. It is a command in every face."""


class Do:
    """A request that the reader can make. `blanks`: arguments the reader has to fill in."""

    __slots__ = ("args", "blanks", "verb")

    def __init__(self, verb: str, /, *blanks: str, **args: Any) -> None:
        self.verb, self.blanks, self.args = verb, blanks, args

    def to_wire(self) -> dict[str, Any]:
        return {type(self).__name__.lower(): self.verb, "args": self.args, "blanks": self.blanks}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Do) and self.to_wire() == other.to_wire()

    def __hash__(self) -> int:
        return hash((self.verb, self.blanks))

    def __repr__(self) -> str:
        args = [repr(self.verb), *map(repr, self.blanks), *(f"{k}={v!r}" for k, v in self.args.items())]
        return f"{type(self).__name__}({', '.join(args)})"


class Arg(Do):
    """One argument of a request, without the request: `--files-only`, `files_only=True`, `files_only`."""

    __slots__ = ()


class Hint(str):
    """A text with requests in it. As a string it is worded for the SDK."""

    __slots__ = ("parts",)
    parts: tuple[str | Do, ...]

    def __new__(cls, *parts: str | Do) -> Self:
        flat: list[str | Do] = []
        for part in parts:
            flat += part.parts if isinstance(part, Hint) else (part,)
        text = super().__new__(
            cls, "".join(part if isinstance(part, str) else in_python(part) for part in flat)
        )
        text.parts = tuple(flat)
        return text

    def to_wire(self) -> list[Any]:
        return [part if isinstance(part, str) else part.to_wire() for part in self.parts]


def from_wire(parts: Iterable[Any]) -> Hint:
    """The hint whose `to_wire` this is."""
    return Hint(*(part if isinstance(part, str) else _do_from_wire(part) for part in parts))


def _do_from_wire(part: Mapping[str, Any]) -> Do:
    kind, verb = (Arg, part["arg"]) if "arg" in part else (Do, part["do"])
    return kind(verb, *part["blanks"], **part["args"])


def word(hint: str, wording: Wording) -> str:
    """The text of a hint for a face."""
    if not isinstance(hint, Hint):
        return hint
    return "".join(part if isinstance(part, str) else wording(part) for part in hint.parts)


# ---- the SDK -------------------------------------------------------------------------------------

_METHODS = {
    "base_import": "client.bases.import_",
    "base_info": "client.bases.info",
    "base_ls": "client.bases.list",
    "base_rm": "client.bases.remove",
    "check": "client.check",
    "classify": "s.judge",
    "compare": "client.compare",
    "daemon_status": "client.daemon.status",
    "daemon_stop": "client.daemon.stop",
    "du": "client.du",
    "event": "client.event",
    "exec": "s.run",
    "ls": "waypoint.sessions",
    "new": "waypoint.session",
    "note": "Checkpoint.note",
    "ops": "s.operations",
    "pin": "Checkpoint.pin",
    "ping": "client.daemon.ping",
    "policy_set": "s.set_policy",
    "prune": "client.prune",
    "recover": "client.recover",
    "rm": "s.remove",
    "session": "client.session",
    "show": "s.point",
    "tag": "Checkpoint.tag",
    "task_add": "s.tasks.add",
    "task_set": "s.tasks.done",
    "tasks": "s.tasks.list",
    "verify": "Checkpoint.verify",
}
"""Where the call is not `s.VERB`, with `s` a session and `client` a `waypoint.Client`. What a
`Checkpoint` does needs no ref."""
_UNNAMED = {
    "approval", "argv", "command", "file", "good", "id", "intent", "name", "paths", "port", "ref", "sources",
    "target", "task", "text", "titles", "to", "what",
}  # fmt: skip
"""Arguments that a call does not name."""
_OF_THE_OBJECT = ("session", "sessions")


def in_python(do: Do) -> str:
    """`` `s.restore("@")` ``."""
    if do.verb in MACHINE:
        return in_command(do)
    method = _METHODS.get(do.verb, f"s.{do.verb}")
    known = (*_OF_THE_OBJECT, "ref") if method.startswith("Checkpoint.") else _OF_THE_OBJECT
    args = _flat({name: value for name, value in do.args.items() if name not in known})
    blanks = [name for name in do.blanks if name not in known]
    if isinstance(do, Arg):
        return f"`{', '.join([*blanks, *(f'{name}={_python(args[name])}' for name in args)])}`"
    words = [
        _python(value) if name in _UNNAMED else f"{name}={_python(value)}" for name, value in args.items()
    ]
    words += [name if name in _UNNAMED else f"{name}={name}" for name in blanks]
    return f"`{method}({', '.join(words)})`"


def _flat(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with those of a policy or of options among them, as faces take them."""
    flat: dict[str, Any] = {}
    for name, value in args.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    return flat


def _python(value: Any) -> str:
    import json  # here: errors are imported by every command

    return json.dumps(value) if isinstance(value, str) else repr(value)


# ---- the command line ----------------------------------------------------------------------------

_COMMANDS = {
    "attach": "shell",
    "classify": "policy check",
    "spawn": "exec --pipe",
    "task_set": "task done",
    "tasks": "task ls",
    "export_trace": "export --trace",
    "agent_state": "agent-state",
}
"""Where a verb's words are not its name with spaces."""
_POSITIONALS = {
    "approve": ("id",),
    "apply": ("paths",),
    "attach": ("session",),
    "auto": ("on",),
    "base_import": ("name", "file"),
    "base_info": ("name",),
    "base_rm": ("name",),
    "checkpoint": ("intent",),
    "classify": ("command",),
    "deny": ("id",),
    "exec": ("command",),
    "export": ("paths",),
    "forget": ("refs",),
    "forward": ("session", "port"),
    "fork": ("ref",),
    "new": ("name",),
    "note": ("ref", "text"),
    "park": ("session",),
    "pin": ("ref",),
    "ports": ("session",),
    "preview": ("ref",),
    "restore": ("ref",),
    "rm": ("sessions",),
    "stop": ("session",),
    "show": ("ref",),
    "spawn": ("argv",),
    "tag": ("name", "ref"),
    "task_add": ("titles",),
    "task_set": ("task",),
    "type": ("text",),
    "unforward": ("session", "port"),
    "verify": ("ref", "command"),
}
"""The arguments of a verb that are words of their own, in order."""
_OPTIONS = {
    "session": "-s",
    "source": "--from",
    "start": "--from",
    "on": "",
    "discard": "--yes",
}
"""Where an option is not its name with dashes."""
_METAVARS = {"argv": "CMD…", "command": "CMD", "refs": "REF…", "sessions": "SESSION…", "titles": "TITLE…"}


def in_command(do: Do) -> str:
    """`` `waypoint restore -s work @` ``."""
    words: list[str] = (
        [] if isinstance(do, Arg) else ["waypoint", _COMMANDS.get(do.verb, do.verb.replace("_", " "))]
    )
    positionals = _POSITIONALS.get(do.verb, ())
    values = dict(do.args)
    if do.verb == "policy_set" and values.get("text", "") is None:
        values = {**values, "none": True}
        del values["text"]
    for name, value in _flat(values).items():
        if name not in positionals:
            words += _option(name, value)
    words += [
        _option_name(name) if isinstance(do, Arg) else f"{_option_name(name)} {_metavar(name)}"
        for name in do.blanks
        if name not in positionals
    ]
    for name in positionals:
        if name in values:
            value = values[name]
            words += [_quoted(str(one)) for one in (value if isinstance(value, list | tuple) else (value,))]
        elif name in do.blanks:
            words.append(_metavar(name))
    return f"`{' '.join(words)}`"


def _option(name: str, value: Any) -> list[str]:
    if value is False:
        return [f"--no-{name.replace('_', '-')}"]
    return [_option_name(name)] if value is True else [_option_name(name), _quoted(str(value))]


def _option_name(name: str) -> str:
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def _metavar(name: str) -> str:
    return _METAVARS.get(name, name.upper())
