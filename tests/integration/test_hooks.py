"""Hooks as a coding agent runs them: JSON in its own format on stdin, real sessions behind."""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import waypoint

Wp = Callable[..., Any]


@pytest.fixture
def conversation() -> Iterator[str]:
    """What the agent calls what it is in the middle of; nothing of it is left behind."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    kept = Path(f"/run/waypoint-hooks/{name}.json")
    kept.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        kept.parent.rmdir()


@pytest.fixture
def tell(wp: Wp, session: waypoint.Session, conversation: str) -> Callable[..., Any]:
    """Tells of something, as an agent would; returns what it was answered."""

    def tell(event: str, agent: str = "claude", **more: Any) -> Any:
        told = {"session_id": conversation, "hook_event_name": event, "cwd": "/srv", **more}
        done = wp("hook", "-s", session.name, agent, stdin=json.dumps(told))
        assert done.code == 0, done.err
        return json.loads(done.out) if done.out else done.err

    return tell


def intents(session: waypoint.Session) -> list[str]:
    return [point.info.intent for point in session.log()]


def test_a_point_after_each_tool_call_that_changed_something(
    session: waypoint.Session, tell: Callable[..., Any]
) -> None:
    session.checkpoint("start")
    tell("UserPromptSubmit", prompt="\n  Fix the login\nand then more")
    tell("PostToolUse", tool_name="Bash", tool_input={"command": "ls"}, tool_response="")
    assert intents(session) == ["start"], "nothing changed: no point"
    session.run("echo fixed > /srv/login.py")
    edit = {"tool_name": "Edit", "tool_input": {"file_path": "/srv/login.py"}, "tool_response": "ok"}
    tell("PostToolUse", **edit)
    tell("PostToolUse", **edit)
    assert intents(session) == ["start", "Fix the login (Edit: login.py)"]
    assert session.log()[-1].info.actor == "agent"
    session.run("python3 -m http.server 8000 >/dev/null 2>&1 &")
    session.run("until (echo >/dev/tcp/127.0.0.1/8000) 2>/dev/null; do :; done")
    tell("Stop", last_assistant_message="The login works.")
    tell("Stop", last_assistant_message="The login works.")
    assert intents(session)[2:] == ["Fix the login"], "a server that listens is a change"


def test_what_was_said_and_done_is_on_record(session: waypoint.Session, tell: Callable[..., Any]) -> None:
    tell("UserPromptSubmit", prompt="Fix it")
    edit = {"tool_name": "Edit", "tool_input": {"file_path": "/srv/a"}, "tool_use_id": "u1"}
    tell("PostToolUse", **edit, tool_response={"ok": True})
    tell("PostToolUse", tool_name="mcp__waypoint__run", tool_input={"command": "ls"}, tool_response="out")
    tell("Stop", last_assistant_message="Done.")
    tell("Stop", last_assistant_message="Done.")
    said = session.messages()
    assert [one.get("role") or one["kind"] for one in said] == [
        *("user", "tool_call", "tool_result", "tool_call", "assistant"),
    ]
    assert said[1] == {
        "kind": "tool_call",
        "name": "Edit",
        "call": "u1",
        "arguments": {"file_path": "/srv/a"},
    }
    assert said[2]["content"] == '{"ok": true}'
    actors = [event.actor for event in session.trace(kinds=["message", "tool_call"])]
    assert actors == ["person", "agent", "agent", "agent"]


def test_an_agent_that_starts_again_is_told_where_things_stand(
    session: waypoint.Session, tell: Callable[..., Any]
) -> None:
    assert tell("SessionStart", source="startup") == "", "nothing was begun"
    session.tasks.add("write it", "test it")
    session.tasks.done("write it")
    session.checkpoint("it is written")
    for agent in ("claude", "codex"):
        told = tell("SessionStart", agent, source="resume")["hookSpecificOutput"]
        assert told["hookEventName"] == "SessionStart"
        assert "comes next: test it" in told["additionalContext"]
        assert "it is written" in told["additionalContext"]


def test_what_the_agent_writes_about_itself_is_no_change(
    session: waypoint.Session, tell: Callable[..., Any]
) -> None:
    session.checkpoint("start")
    home = str(Path.home())
    session.run(f"mkdir -p {home}/.claude/projects && echo '{{}}' >> {home}/.claude/projects/x.jsonl")
    tell("PostToolUse", tool_name="Bash", tool_input={}, tool_response="")
    assert intents(session) == ["start"]
    assert session.changed()
    assert not session.changed(besides=[f"{home}/.claude"])
    tell("PostToolUse", agent="codex", tool_name="Bash", tool_input={}, tool_response="")
    assert len(intents(session)) == 2, "it is a change where another agent works"


def test_codex_tells_at_the_end_of_a_turn_with_an_argument(
    session: waypoint.Session, wp: Wp, conversation: str
) -> None:
    session.run("echo x > /srv/x")
    over = {"type": "agent-turn-complete", "thread-id": conversation, "last-assistant-message": "done"}
    done = wp("hook", "-s", session.name, "codex", json.dumps(over))
    assert done.code == 0
    assert len(session.log()) == 1


def test_an_agent_that_works_inside_its_session_needs_nothing_else(
    session: waypoint.Session, conversation: str
) -> None:
    def tell(event: str, **more: Any) -> None:
        told = json.dumps({"session_id": conversation, "hook_event_name": event, **more})
        hook = f"{sys.executable} -IB -m waypoint --home /nowhere hook -s ignored claude"
        found = session.run(hook, stdin=told)
        assert (found.exit_code, found.output) == (0, ""), found.output

    session.checkpoint("start")
    tell("UserPromptSubmit", prompt="Write a note")
    tell("PostToolUse", tool_name="Read", tool_input={}, tool_response="")
    assert intents(session) == ["start"]
    session.run("echo note > /srv/note")
    tell("PostToolUse", tool_name="Write", tool_input={"file_path": "/srv/note"}, tool_response={"ok": 1})
    assert session.messages() == [
        {"role": "user", "content": "Write a note"},
        {"kind": "tool_call", "name": "Read", "arguments": {}},
        {"kind": "tool_call", "name": "Write", "arguments": {"file_path": "/srv/note"}},
        {"kind": "tool_result", "name": "Write", "content": '{"ok": 1}'},
    ]
    assert intents(session) == ["start", "Write a note (Write: note)"]
    assert session.log()[-1].info.actor == "agent"
    push = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "git push"}}
    asked = session.run(f"{sys.executable} -IB -m waypoint hook claude", stdin=json.dumps(push)).output
    assert json.loads(asked)["hookSpecificOutput"]["permissionDecision"] == "ask"
    start = json.dumps({"hook_event_name": "SessionStart"})
    told = session.run(f"{sys.executable} -IB -m waypoint hook claude", stdin=start).output
    assert "Write a note (Write: note)" in json.loads(told)["hookSpecificOutput"]["additionalContext"]
    tell("PostToolUse", tool_name="Bash", tool_input={"command": "git push"}, tool_response="")
    assert [one.command for one in session.effects() if one.source == "claimed"] == ["git push"]


POLICY = """
[[rule]]
command = "launch"
class = "irreversible"
decision = "ask"
why = "it cannot be called back"

[[rule]]
command = "melt"
class = "irreversible"
decision = "deny"
why = "never"
"""


def test_the_policy_speaks_through_the_agents_own_prompt(
    session: waypoint.Session, tell: Callable[..., Any]
) -> None:
    session.set_policy(POLICY)

    def before(command: str, agent: str = "claude", **more: Any) -> Any:
        found = tell("PreToolUse", agent, tool_name="Bash", tool_input={"command": command}, **more)
        return found["hookSpecificOutput"] if isinstance(found, dict) else found

    asks = before("cd /srv && launch now")
    assert asks["permissionDecision"] == "ask"
    assert "it cannot be called back" in asks["permissionDecisionReason"]
    assert before("bash -c 'melt all'")["permissionDecision"] == "deny"
    assert before("ls -la") == "", "nothing to say: the agent's own rules hold"
    told = before("launch now", "codex")
    assert told["permissionDecision"] == "deny", "its hooks cannot ask"
    assert "waypoint exec" in told["permissionDecisionReason"]
    assert before("ls", "codex") == ""
    assert session.approvals(all=True) == [], "the agent asks, so nothing waits here"
    tell("PostToolUse", tool_name="Bash", tool_input={"command": "ls; launch now"}, tool_response="up")
    (effect,) = session.effects()
    assert (effect.command, effect.class_, effect.source, effect.actor) == (
        *("launch now", "irreversible", "claimed", "agent"),
    )


def test_with_allow_the_agent_need_not_ask_about_the_rest(
    session: waypoint.Session, wp: Wp, conversation: str
) -> None:
    told = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}}
    found = wp("hook", "-s", session.name, "--allow", "claude", stdin=json.dumps(told))
    assert found.json["hookSpecificOutput"]["permissionDecision"] == "allow"
    told["tool_input"] = {"command": "git push"}
    found = wp("hook", "-s", session.name, "--allow", "claude", stdin=json.dumps(told))
    assert found.json["hookSpecificOutput"]["permissionDecision"] == "ask"


@pytest.mark.parametrize(
    "stdin",
    ["", "{", "[]", '{"hook_event_name": "PostToolUse"}', '{"hook_event_name": "Unheard"}', '{"prompt": 3}'],
)
def test_nothing_that_goes_wrong_breaks_the_agent(wp: Wp, stdin: str) -> None:
    for agent in ("claude", "codex"):
        done = wp("hook", "-s", "nobody", agent, stdin=stdin)
        assert done.code == 0
        assert done.out == ""


def test_without_a_session_there_is_nothing_to_do(wp: Wp) -> None:
    done = wp("hook", "claude", stdin='{"hook_event_name": "Stop"}')
    assert (done.code, done.out, done.err) == (0, "", "")


def test_the_command_line_puts_them_in_and_takes_them_out(wp: Wp, tmp_path: Path) -> None:
    done = wp("hooks", "install", "claude", "--dir", str(tmp_path), "-s", "work", "--json")
    assert [one["changed"] for one in done.json["files"]] == [True, True]
    command = json.loads((tmp_path / ".claude/settings.local.json").read_text())["hooks"]["Stop"][0]["hooks"][
        0
    ]
    assert command["command"].endswith(" hook -s work claude")
    assert "--home" in command["command"]
    shown = wp("hooks", "show", "--dir", str(tmp_path), "--json").json["hooks"]
    assert len(shown["claude"]) == 7
    assert shown["codex"] == []
    wp("hooks", "uninstall", "claude", "--dir", str(tmp_path), check=True)
    assert list(tmp_path.iterdir()) == []
