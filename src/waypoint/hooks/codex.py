"""Codex: hooks in `.codex/hooks.json`, MCP servers and `notify` in `.codex/config.toml`.

Its hooks have the shape of Claude Code's, with one difference that matters: before a tool runs a hook can
deny and nothing else. `ask` and `allow` count as a failed hook, and a failed hook lets the command pass. So
where the policy says ask, the command is denied and the reason tells how a person approves it. `notify` is
a program that gets one JSON object as its last argument when a turn is over; it is there for versions
without hooks.
"""

from __future__ import annotations

from typing import Any

from waypoint.hooks.events import Event, Happening, Ruling, mapping, text

_EVENTS: dict[str, Event] = {
    "SessionStart": "start",
    "UserPromptSubmit": "prompt",
    "PreToolUse": "before",
    "PostToolUse": "after",
    "Stop": "stop",
}
_SHELLS = frozenset({"Bash", "shell", "local_shell", "exec_command", "container.exec"})
OWN_TOOLS = ("mcp__waypoint__", "waypoint__", "waypoint.")
TURN_OVER = "agent-turn-complete"


class Codex:
    """Codex, and agents that took over its formats."""

    name = "codex"
    title = "Codex"
    own_folders: tuple[str, ...] = (".codex",)

    def read(self, told: dict[str, Any]) -> Happening:
        if text(told.get("type")) == TURN_OVER:
            return Happening(
                event="stop",
                conversation=text(told.get("thread-id")),
                words=text(told.get("last-assistant-message")),
            )
        event = _EVENTS.get(text(told.get("hook_event_name")), "other")
        tool, given = text(told.get("tool_name")), mapping(told.get("tool_input"))
        return Happening(
            event=event,
            conversation=text(told.get("session_id")),
            words=text(told.get("prompt" if event == "prompt" else "last_assistant_message")),
            tool=tool,
            input=given,
            result=told.get("tool_response"),
            call=text(told.get("tool_use_id")),
            command=_command(given.get("command")) if tool in _SHELLS else None,
            own=tool.startswith(OWN_TOOLS),
        )

    def rule(self, ruling: Ruling, reason: str) -> dict[str, Any] | None:
        if ruling == "allow":
            return None
        if ruling == "ask":
            reason += (
                ". A person has to agree: tell your user, who can run it with `waypoint exec` and approve it,"
                " or use the MCP tool `run`, which asks them."
            )
        return {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "deny",
                "permissionDecisionReason": reason,
            }
        }

    def tell(self, words: str) -> dict[str, Any] | None:
        return {"hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": words}}


def _command(given: Any) -> str:
    """A command line; some versions give the words of one."""
    if isinstance(given, list):
        import shlex

        words = [text(word) for word in given]
        # `bash -lc SCRIPT` is how it runs a line.
        if len(words) == 3 and words[0].endswith("sh") and words[1].startswith("-") and "c" in words[1]:
            return words[2]
        return shlex.join(words)
    return text(given)
