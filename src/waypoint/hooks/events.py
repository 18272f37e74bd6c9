"""A hook event, independent of the agent that sends it, and the protocol of an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

EventName = Literal["session_start", "prompt", "before_tool", "after_tool", "turn_end", "other"]
Permission = Literal["allow", "ask", "deny"]


class HookEvent(NamedTuple):
    """One event of an agent."""

    name: EventName
    conversation: str = ""
    """The agent's id of the conversation."""
    text: str = ""
    """The user's prompt or, at the end of a turn, the agent's last message."""
    tool: str = ""
    input: dict[str, Any] = {}  # noqa: RUF012 - never changed
    result: Any = None
    call: str = ""
    """The agent's id of this tool call."""
    command: str | None = None
    """The command line, if the tool is a shell."""
    own_tool: bool = False
    """Whether the tool is one of Waypoint's own: its result is recorded already."""


class Agent(Protocol):
    """The format of one coding agent."""

    name: str
    """As in `waypoint hook NAME`."""
    own_folders: tuple[str, ...]
    """Folders in the user's home that the agent writes to for itself: no change of the session."""

    def parse(self, payload: dict[str, Any]) -> HookEvent:
        """The event that the agent sends to its hook."""

    def permission(
        self, permission: Permission, reason: str, review: Sequence[str] = ()
    ) -> dict[str, Any] | None:
        """The answer to `before_tool`; None for no answer. `review`: what its user has to read."""


def session_context(text: str) -> dict[str, Any]:
    """The answer to `session_start` that adds a text to the model's context. The same for all agents."""
    return {"hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": text}}


def permission_answer(permission: Permission, reason: str) -> dict[str, Any]:
    """The answer to `before_tool`. The same for all agents."""
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": permission,
            "permissionDecisionReason": reason,
        }
    }


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
