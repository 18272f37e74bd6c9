"""Claude Code: hooks in `.claude/settings*.json`, MCP servers in `.mcp.json`.

A hook gets one JSON object on stdin and answers with JSON on stdout and exit status 0. Before a tool runs the
answer may be `allow`, `ask` (the agent asks its user and shows the reason) or `deny` (the model gets the
reason).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waypoint.hooks.events import EventName, HookEvent, Permission, mapping, permission_answer, text

_EVENTS: dict[str, EventName] = {
    "SessionStart": "session_start",
    "UserPromptSubmit": "prompt",
    "PreToolUse": "before_tool",
    "PostToolUse": "after_tool",
    "PostToolUseFailure": "after_tool",
    "Stop": "turn_end",
}
_SHELLS = frozenset({"Bash"})
_OWN_TOOLS = "mcp__waypoint__"


class Claude:
    """Claude Code."""

    name = "claude"
    own_folders: tuple[str, ...] = (
        ".claude",
        ".claude.json",
        ".cache/claude-cli-nodejs",
        ".local/share/claude",
        ".config/claude",
    )

    def parse(self, payload: dict[str, Any]) -> HookEvent:
        name = _EVENTS.get(text(payload.get("hook_event_name")), "other")
        tool, tool_input = text(payload.get("tool_name")), mapping(payload.get("tool_input"))
        return HookEvent(
            name=name,
            conversation=text(payload.get("session_id")),
            text=text(payload.get("prompt" if name == "prompt" else "last_assistant_message")),
            tool=tool,
            input=tool_input,
            result=payload.get("tool_response", payload.get("error")),
            call=text(payload.get("tool_use_id")),
            command=text(tool_input.get("command")) if tool in _SHELLS else None,
            own_tool=tool.startswith(_OWN_TOOLS),
        )

    def permission(
        self, permission: Permission, reason: str, review: Sequence[str] = ()
    ) -> dict[str, Any] | None:
        return permission_answer(permission, "\n".join(review) if permission == "ask" else reason)
