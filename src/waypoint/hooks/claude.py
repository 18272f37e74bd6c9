"""Claude Code: hooks in `.claude/settings*.json`, MCP servers in `.mcp.json`.

A hook is given one JSON object on stdin; what it prints as JSON and an exit status of 0 is its answer.
Before a tool runs it may say `allow`, `ask` (the agent asks its user, showing the reason) or `deny` (the
model is told why).
"""

from __future__ import annotations

from typing import Any

from waypoint.hooks.events import Event, Happening, Ruling, mapping, text

_EVENTS: dict[str, Event] = {
    "SessionStart": "start",
    "UserPromptSubmit": "prompt",
    "PreToolUse": "before",
    "PostToolUse": "after",
    "PostToolUseFailure": "after",
    "Stop": "stop",
}
_SHELLS = frozenset({"Bash"})
OWN_TOOLS = "mcp__waypoint__"


class Claude:
    """Claude Code."""

    name = "claude"
    title = "Claude Code"
    own_folders: tuple[str, ...] = (
        ".claude",
        ".claude.json",
        ".cache/claude-cli-nodejs",
        ".local/share/claude",
        ".config/claude",
    )

    def read(self, told: dict[str, Any]) -> Happening:
        event = _EVENTS.get(text(told.get("hook_event_name")), "other")
        tool, given = text(told.get("tool_name")), mapping(told.get("tool_input"))
        return Happening(
            event=event,
            conversation=text(told.get("session_id")),
            words=text(told.get("prompt" if event == "prompt" else "last_assistant_message")),
            tool=tool,
            input=given,
            result=told.get("tool_response", told.get("error")),
            call=text(told.get("tool_use_id")),
            command=text(given.get("command")) if tool in _SHELLS else None,
            own=tool.startswith(OWN_TOOLS),
        )

    def rule(self, ruling: Ruling, reason: str) -> dict[str, Any] | None:
        return {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": ruling,
                "permissionDecisionReason": reason,
            }
        }

    def tell(self, words: str) -> dict[str, Any] | None:
        return {"hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": words}}
