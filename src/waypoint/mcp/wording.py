"""Hints in words for a model: requests as calls of the tools that this server offers.

A request without a tool is one that the user of the model makes, on the command line. The text says so: a
model must not take it for something that it can run in the session.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from waypoint.api.hints import MACHINE, Arg, Do, in_command


class _Call(NamedTuple):
    """The tool for a request. `names`: arguments that have another name. `fixed`: those it always gets."""

    tool: str
    names: Mapping[str, str] = {}
    fixed: Mapping[str, Any] = {}


_CALLS: Mapping[str, _Call] = {
    "classify": _Call("judge"),
    "diff": _Call("diff", {"a": "old", "b": "new"}),
    "event": _Call("trace"),
    "exec": _Call("run"),
    "ls": _Call("sessions"),
    "park": _Call("stop"),
    "restore": _Call("preview"),
    "rm": _Call("stop", {"sessions": "session"}, {"forget": True}),
    "task_add": _Call("task", fixed={"action": "add"}),
}
"""Where a request's tool has another name or other arguments."""


class Wording:
    """How a server with these tools (their arguments by name) writes a request."""

    def __init__(self, tools: Mapping[str, Collection[str]]) -> None:
        self._tools = tools

    def __call__(self, do: Do) -> str:
        """`` `preview(session="work", ref="@")` ``."""
        call = _CALLS.get(do.verb, _Call(do.verb))
        if isinstance(do, Arg):
            call = _Call(do.verb) if do.verb in self._tools else call
        values = {call.names.get(name, name): _value(value) for name, value in do.args.items()}
        blanks = [call.names.get(name, name) for name in do.blanks]
        takes = self._tools.get(call.tool)
        if do.verb in MACHINE or takes is None or not {*values, *blanks} <= {*takes}:
            return f"{in_command(do)} (for the user to run)"
        if isinstance(do, Arg):
            return ", ".join(f"`{part}`" for part in [*blanks, *_named(values)])
        words = [*_named(values), *(f"{name}=…" for name in blanks), *_named(call.fixed)]
        text = f"`{call.tool}({', '.join(words)})`"
        return f"{text} and then `restore` with its plan" if do.verb == "restore" else text


def _value(value: Any) -> Any:
    """A tool takes one session where the request takes several."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def _named(values: Mapping[str, Any]) -> Iterator[str]:
    return (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
