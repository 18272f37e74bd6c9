"""What a hook is there for: a record, a point after what changed something, the policy before what may not.

A hook must never break the agent. Whatever fails here becomes a note on stderr and an exit status of 0;
what speaks against a tool call is only ever the policy. And it must be quick: one or two questions to the
daemon, and a capture only where something changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from waypoint.errors import UsageError, WaypointError
from waypoint.hooks.claude import Claude
from waypoint.hooks.codex import Codex
from waypoint.hooks.events import Agent, Happening, Ruling
from waypoint.kernel import atomic

AGENTS: Mapping[str, Agent] = {"claude": Claude(), "codex": Codex()}

_STATE = "/run/waypoint-hooks"
_MOST_INTENT = 120
_MOST_RESULT_CHARACTERS = 20_000
_MOST_STANDING_CHARACTERS = 6000


class Decided(NamedTuple):
    """What the policy says about a command."""

    ruling: Ruling
    reason: str
    outside: tuple[Mapping[str, Any], ...] = ()
    """The parts of it that act on the outside."""


class Way(Protocol):
    """How the session is reached: by the daemon's socket, or from inside of it."""

    def standing(self) -> str:
        """Where work that was begun stands, in words for a prompt; nothing where none was."""

    def changed(self, besides: Sequence[str]) -> bool:
        """Whether anything is different from the last point."""

    def checkpoint(self, intent: str) -> None:
        """Takes a point, in the agent's name."""

    def record(self, what: str, content: Any, name: str = "", call: str = "") -> None:
        """Adds to what is on record: a role and its words, a tool's call or its result."""

    def classify(self, command: str) -> Decided:
        """What the policy says."""

    def effect(self, part: Mapping[str, Any]) -> None:
        """Writes down that a part of a command acted on the outside."""


def read(agent: Agent, given: str) -> Happening:
    try:
        told = json.loads(given)
    except ValueError as error:
        raise UsageError(f"that is no JSON: {error}", hint="an agent gives it, as its hooks say") from error
    if not isinstance(told, dict):
        raise UsageError("that is no hook: an object was expected")
    return agent.read(told)


def answer(agent: Agent, happening: Happening, way: Way, *, allow: bool = False) -> dict[str, Any] | None:
    """Does what is to be done, and returns what the agent is to be told. `allow`: say so, too, when there is
    nothing against a command, so that the agent need not ask."""
    match happening.event:
        case "start":
            words = way.standing()
            return agent.tell(_first_part(words)) if words else None
        case "prompt":
            _remember(happening, {"intent": _first_line(happening.words)})
            _record(way, "user", happening.words)
        case "before" if happening.command:
            return _rule(agent, happening.command, way, allow=allow)
        case "after":
            _record_call(way, happening)
            if happening.command:
                _write_down(way, happening.command)
            _keep(agent, happening, way)
        case "stop":
            if happening.words and _recall(happening).get("said") != _mark(happening.words):
                _remember(happening, {"said": _mark(happening.words)})
                _record(way, "assistant", happening.words)
            _keep(agent, happening, way)
    return None


def _first_part(words: str) -> str:
    if len(words) <= _MOST_STANDING_CHARACTERS:
        return words
    return f"{words[:_MOST_STANDING_CHARACTERS]}…\n(cut; `waypoint resume` tells all of it)"


def _rule(agent: Agent, command: str, way: Way, *, allow: bool) -> dict[str, Any] | None:
    decided = way.classify(command)
    if decided.ruling == "allow" and not allow:
        return None  # the agent's own rules go on holding
    return agent.rule(decided.ruling, decided.reason)


def _keep(agent: Agent, happening: Happening, way: Way) -> None:
    """A point, if anything changed but for what the agent writes about itself."""
    home = os.path.expanduser("~")
    besides = [_STATE, *(os.path.join(home, folder) for folder in agent.own_folders)]
    if way.changed(besides):
        way.checkpoint(_intent(happening))


def _record_call(way: Way, happening: Happening) -> None:
    _record(way, "tool_call", happening.input, happening.tool, happening.call)
    if not happening.own and happening.result:
        found = happening.result
        words = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        _record(way, "tool_result", words[:_MOST_RESULT_CHARACTERS], happening.tool, happening.call)


def _write_down(way: Way, command: str) -> None:
    """What the agent's own shell did outside: no gate of ours has seen it."""
    try:
        for part in way.classify(command).outside:
            way.effect(part)
    except WaypointError as error:
        note(f"its effects are not written down: {error.message}")


def _record(way: Way, what: str, content: Any, name: str = "", call: str = "") -> None:
    """A record that fails must not cost the point that comes after it."""
    if not content and what != "tool_call":
        return
    try:
        way.record(what, content, name, call)
    except WaypointError as error:
        note(f"not recorded: {error.message}")


# ---- intents -------------------------------------------------------------------------------------


def _intent(happening: Happening) -> str:
    """What the user wanted, and which step of it this is."""
    wanted = str(_recall(happening).get("intent", ""))
    step = _step(happening)
    if not wanted:
        return step
    return f"{wanted} ({step})" if step else wanted


def _step(happening: Happening) -> str:
    if not happening.tool:
        return ""
    given = happening.input
    what = next((given[key] for key in ("description", "command", "file_path", "path") if given.get(key)), "")
    if isinstance(what, str) and what.startswith("/"):
        what = os.path.basename(what)
    tool = happening.tool.rpartition("__")[2] or happening.tool
    return f"{tool}: {_first_line(str(what), 60)}" if what else tool


def _first_line(words: str, most: int = _MOST_INTENT) -> str:
    line = next((line.strip() for line in words.splitlines() if line.strip()), "")
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


# ---- what is remembered between two hooks --------------------------------------------------------


def _state_path(happening: Happening) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "", happening.conversation)[:64] or "only"
    return os.path.join(_STATE, f"{name}.json")


def _recall(happening: Happening) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError), open(_state_path(happening)) as file:
        found = json.load(file)
        return found if isinstance(found, dict) else {}
    return {}


def _remember(happening: Happening, what: Mapping[str, Any]) -> None:
    path = _state_path(happening)
    with contextlib.suppress(OSError):
        os.makedirs(_STATE, mode=0o700, exist_ok=True)
        atomic.write(path, json.dumps({**_recall(happening), **what}), mode=0o600)


def _mark(words: str) -> str:
    import hashlib

    return hashlib.sha256(words.encode(errors="replace")).hexdigest()[:16]


def note(text: str) -> None:
    print(f"waypoint: {text}", file=sys.stderr)  # noqa: T201 - the one thing a hook may say aloud
