"""Codex: hooks in `.codex/hooks.json`, MCP servers and `notify` in `.codex/config.toml`.

Its hooks have the form of Claude Code's, with one important difference: before a tool runs, a hook can only
deny. `ask` and `allow` count as a failed hook, and after a failed hook the command runs. So where the policy
says ask, the command is denied, and the reason says how the user can approve it. `notify` is a program that
gets one JSON object as its last argument at the end of a turn; it is for versions without hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waypoint.api.hints import Do, in_command
from waypoint.hooks.events import EventName, HookEvent, Permission, mapping, permission_answer, text

_EVENTS: dict[str, EventName] = {
    "SessionStart": "session_start",
    "UserPromptSubmit": "prompt",
    "PreToolUse": "before_tool",
    "PostToolUse": "after_tool",
    "Stop": "turn_end",
}
_SHELLS = frozenset({"Bash", "shell", "local_shell", "exec_command", "container.exec"})
_OWN_TOOLS = ("mcp__waypoint__", "waypoint__", "waypoint.")
_TURN_END = "agent-turn-complete"


class Codex:
    """Codex, and agents that use its formats."""

    name = "codex"
    own_folders: tuple[str, ...] = (".codex",)

    def parse(self, payload: dict[str, Any]) -> HookEvent:
        if text(payload.get("type")) == _TURN_END:
            return HookEvent(
                name="turn_end",
                conversation=text(payload.get("thread-id")),
                text=text(payload.get("last-assistant-message")),
            )
        name = _EVENTS.get(text(payload.get("hook_event_name")), "other")
        tool, tool_input = text(payload.get("tool_name")), mapping(payload.get("tool_input"))
        return HookEvent(
            name=name,
            conversation=text(payload.get("session_id")),
            text=text(payload.get("prompt" if name == "prompt" else "last_assistant_message")),
            tool=tool,
            input=tool_input,
            result=payload.get("tool_response"),
            call=text(payload.get("tool_use_id")),
            command=_command_line(tool_input.get("command")) if tool in _SHELLS else None,
            own_tool=tool.startswith(_OWN_TOOLS),
        )

    def permission(
        self, permission: Permission, reason: str, review: Sequence[str] = ()
    ) -> dict[str, Any] | None:
        if permission == "allow":
            return None
        if permission == "ask":
            reason += (
                ". The user has to approve it: tell them. They can run it with"
                f" {in_command(Do('exec', 'command'))} and approve it there, or you use the MCP tool `run`,"
                " which asks them."
            )
        return permission_answer("deny", reason)


def _command_line(command: Any) -> str:
    """The command line of a shell tool; some versions send its words."""
    if not isinstance(command, list):
        return text(command)
    import shlex

    words = [text(word) for word in command]
    # `bash -lc SCRIPT` is how it runs a line.
    if len(words) == 3 and words[0].endswith("sh") and words[1].startswith("-") and "c" in words[1]:
        return words[2]
    return shlex.join(words)
