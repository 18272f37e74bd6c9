"""The work of a hook: it records the event, takes a point if the session changed, and applies the policy.

A hook must not break the agent. An error becomes a note on stderr and exit status 0; only the policy can stop
a tool call. A hook must be quick: one or two requests to the daemon, and a capture only after a change.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from waypoint.api.hints import Do, in_command
from waypoint.errors import UsageError, WaypointError
from waypoint.hooks.claude import Claude
from waypoint.hooks.codex import Codex
from waypoint.hooks.events import Agent, HookEvent, Permission, session_context
from waypoint.kernel import atomic
from waypoint.model import Judged

AGENTS: Mapping[str, Agent] = {"claude": Claude(), "codex": Codex()}

_STATE = "/run/waypoint-hooks"
_MAX_INTENT_CHARACTERS = 120
_MAX_RESULT_CHARACTERS = 20_000
_MAX_CONTEXT_CHARACTERS = 6000


class Verdict(NamedTuple):
    """What the policy says about a command of an agent."""

    permission: Permission
    reason: str
    outside: tuple[Judged, ...] = ()
    """The parts of the command that act outside the session."""
    review: Sequence[str] = ()
    """What the person who decides has to read."""


class Route(Protocol):
    """How the session is reached (routes.py)."""

    def resume_text(self) -> str:
        """The state of unfinished work, as a text for a prompt; empty if there is none."""

    def changed(self, besides: Sequence[str]) -> bool:
        """Whether the session is different from the last point. `besides`: paths that do not count."""

    def checkpoint(self, intent: str) -> None:
        """Takes a point, with the agent as actor."""

    def record(self, what: str, content: Any, name: str = "", call: str = "") -> None:
        """Adds an event to the trajectory: a message with its role, a tool call or its result."""

    def classify(self, command: str) -> Verdict:
        """What the policy says about a command."""

    def effect(self, part: Judged) -> None:
        """Adds an effect outside to the ledger."""


def parse(agent: Agent, payload: str) -> HookEvent:
    try:
        fields = json.loads(payload)
    except ValueError as error:
        raise UsageError(f"the event is not JSON: {error}", hint="an agent sends it to its hook") from error
    if not isinstance(fields, dict):
        raise UsageError("the event is not a JSON object")
    return agent.parse(fields)


def answer(
    agent: Agent, event: HookEvent, route: Route, *, allow: bool = False, deny: bool = False
) -> dict[str, Any] | None:
    """Handles an event; returns the answer for the agent. `allow`: explicitly allow a command that the policy
    does not object to, so that the agent need not ask its user. `deny`: refuse one that needs approval."""
    match event.name:
        case "session_start":
            text = route.resume_text()
            return session_context(_shorten(text)) if text else None
        case "prompt":
            _save_state(event, {"intent": _first_line(event.text)})
            _record(route, "user", event.text)
        case "before_tool" if event.command:
            verdict = route.classify(event.command)
            if verdict.permission == "allow" and not allow:
                return None  # the agent's own rules decide
            if verdict.permission == "ask" and deny:
                how = f"it needs the approval of a user, who can run it: {in_command(Do('exec', 'command'))}"
                return agent.permission("deny", f"{verdict.reason}; {how}")
            return agent.permission(verdict.permission, verdict.reason, verdict.review)
        case "after_tool":
            _record_call(route, event)
            if event.command:
                _record_effects(route, event.command)
            _checkpoint_if_changed(agent, event, route)
        case "turn_end":
            if event.text and _load_state(event).get("said") != _digest(event.text):
                _save_state(event, {"said": _digest(event.text)})
                _record(route, "assistant", event.text)
            _checkpoint_if_changed(agent, event, route)
    return None


def _shorten(text: str) -> str:
    if len(text) <= _MAX_CONTEXT_CHARACTERS:
        return text
    return f"{text[:_MAX_CONTEXT_CHARACTERS]}…\n(cut; {in_command(Do('resume'))} prints all of it)"


def _checkpoint_if_changed(agent: Agent, event: HookEvent, route: Route) -> None:
    """Files that the agent writes for itself do not count as a change."""
    home = os.path.expanduser("~")
    besides = [_STATE, *(os.path.join(home, folder) for folder in agent.own_folders)]
    if route.changed(besides):
        route.checkpoint(_intent(event))


def _record_call(route: Route, event: HookEvent) -> None:
    _record(route, "tool_call", event.input, event.tool, event.call)
    if not event.own_tool and event.result:
        result = (
            event.result if isinstance(event.result, str) else json.dumps(event.result, ensure_ascii=False)
        )
        _record(route, "tool_result", result[:_MAX_RESULT_CHARACTERS], event.tool, event.call)


def _record_effects(route: Route, command: str) -> None:
    """The agent's own shell ran the command, so it has not passed the gate of the session."""
    try:
        for part in route.classify(command).outside:
            route.effect(part)
    except WaypointError as error:
        note(f"its effects are not recorded: {error.message}")


def _record(route: Route, what: str, content: Any, name: str = "", call: str = "") -> None:
    """If this fails, the point after it is taken all the same."""
    if not content and what != "tool_call":
        return
    try:
        route.record(what, content, name, call)
    except WaypointError as error:
        note(f"not recorded: {error.message}")


# ---- intents -------------------------------------------------------------------------------------


def _intent(event: HookEvent) -> str:
    """The user's prompt, and the present step."""
    prompt = str(_load_state(event).get("intent", ""))
    step = _step(event)
    if not prompt:
        return step
    return f"{prompt} ({step})" if step else prompt


def _step(event: HookEvent) -> str:
    if not event.tool:
        return ""
    keys = ("description", "command", "file_path", "path")
    what = next((event.input[key] for key in keys if event.input.get(key)), "")
    if isinstance(what, str) and what.startswith("/"):
        what = os.path.basename(what)
    tool = event.tool.rpartition("__")[2] or event.tool
    return f"{tool}: {_first_line(str(what), 60)}" if what else tool


def _first_line(text: str, max_characters: int = _MAX_INTENT_CHARACTERS) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= max_characters else f"{line[: max_characters - 1].rstrip()}…"


# ---- state between two hooks of a conversation ---------------------------------------------------


def _state_path(event: HookEvent) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "", event.conversation)[:64] or "only"
    return os.path.join(_STATE, f"{name}.json")


def _load_state(event: HookEvent) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError), open(_state_path(event)) as file:
        state = json.load(file)
        return state if isinstance(state, dict) else {}
    return {}


def _save_state(event: HookEvent, changes: Mapping[str, Any]) -> None:
    path = _state_path(event)
    with contextlib.suppress(OSError):
        os.makedirs(_STATE, mode=0o700, exist_ok=True)
        atomic.write(path, json.dumps({**_load_state(event), **changes}), mode=0o600)


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def note(text: str) -> None:
    print(f"waypoint: {text}", file=sys.stderr)  # noqa: T201 - a hook reports errors on stderr only
