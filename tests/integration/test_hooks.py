"""Hooks as a coding agent runs them: JSON in its own format on stdin, real sessions behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import waypoint
from waypoint.mcp.registry import tools_of
from waypoint.mcp.server import GROUPS

Wp = Callable[..., Any]


@pytest.fixture
def conversation() -> Iterator[str]:
    """The agent's id of the conversation. Its state is removed at the end."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    state = Path(f"/run/waypoint-hooks/{name}.json")
    state.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        state.parent.rmdir()


@pytest.fixture
def send(wp: Wp, session: waypoint.Session, conversation: str) -> Callable[..., Any]:
    """Sends an event to the hook, as an agent would; returns the answer."""

    def send(event: str, agent: str = "claude", **more: Any) -> Any:
        payload = {"session_id": conversation, "hook_event_name": event, "cwd": "/srv", **more}
        done = wp("hook", "-s", session.name, agent, stdin=json.dumps(payload))
        assert done.code == 0, done.err
        return json.loads(done.out) if done.out else done.err

    return send


def intents(session: waypoint.Session) -> list[str]:
    return [point.info.intent for point in session.log()]


def test_a_point_after_each_tool_call_that_changed_something(
    session: waypoint.Session, send: Callable[..., Any]
) -> None:
    session.checkpoint("start")
    send("UserPromptSubmit", prompt="\n  Fix the login\nand then more")
    send("PostToolUse", tool_name="Bash", tool_input={"command": "ls"}, tool_response="")
    assert intents(session) == ["start"], "nothing changed: no point"
    session.run("echo fixed > /srv/login.py")
    edit = {"tool_name": "Edit", "tool_input": {"file_path": "/srv/login.py"}, "tool_response": "ok"}
    send("PostToolUse", **edit)
    send("PostToolUse", **edit)
    assert intents(session) == ["start", "Fix the login (Edit: login.py)"]
    assert session.log()[-1].info.actor == "agent"
    session.run("python3 -m http.server 8000 >/dev/null 2>&1 &")
    session.run("until (echo >/dev/tcp/127.0.0.1/8000) 2>/dev/null; do :; done")
    send("Stop", last_assistant_message="The login works.")
    send("Stop", last_assistant_message="The login works.")
    assert intents(session)[2:] == ["Fix the login"], "a server that listens is a change"


def test_messages_and_tool_calls_are_recorded(session: waypoint.Session, send: Callable[..., Any]) -> None:
    send("UserPromptSubmit", prompt="Fix it")
    edit = {"tool_name": "Edit", "tool_input": {"file_path": "/srv/a"}, "tool_use_id": "u1"}
    send("PostToolUse", **edit, tool_response={"ok": True})
    send("PostToolUse", tool_name="mcp__waypoint__run", tool_input={"command": "ls"}, tool_response="out")
    send("Stop", last_assistant_message="Done.")
    send("Stop", last_assistant_message="Done.")
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


def test_an_agent_that_starts_again_gets_the_state_of_the_work(
    session: waypoint.Session, send: Callable[..., Any]
) -> None:
    assert send("SessionStart", source="startup") == "", "nothing was begun"
    session.tasks.add("write it", "test it")
    session.tasks.done("write it")
    session.checkpoint("it is written")
    for agent in ("claude", "codex"):
        answer = send("SessionStart", agent, source="resume")["hookSpecificOutput"]
        assert answer["hookEventName"] == "SessionStart"
        assert "comes next: test it" in answer["additionalContext"]
        assert "it is written" in answer["additionalContext"]


def test_files_that_the_agent_writes_for_itself_are_no_change(
    session: waypoint.Session, send: Callable[..., Any]
) -> None:
    session.checkpoint("start")
    home = str(Path.home())
    session.run(f"mkdir -p {home}/.claude/projects && echo '{{}}' >> {home}/.claude/projects/x.jsonl")
    send("PostToolUse", tool_name="Bash", tool_input={}, tool_response="")
    assert intents(session) == ["start"]
    assert session.changed()
    assert not session.changed(besides=[f"{home}/.claude"])
    send("PostToolUse", agent="codex", tool_name="Bash", tool_input={}, tool_response="")
    assert len(intents(session)) == 2, "it is a change where another agent works"


def test_codex_sends_the_end_of_a_turn_as_an_argument(
    session: waypoint.Session, wp: Wp, conversation: str
) -> None:
    session.run("echo x > /srv/x")
    over = {"type": "agent-turn-complete", "thread-id": conversation, "last-assistant-message": "done"}
    done = wp("hook", "-s", session.name, "codex", json.dumps(over))
    assert done.code == 0
    assert len(session.log()) == 1


def test_an_agent_inside_its_session_needs_no_daemon_socket(
    session: waypoint.Session, conversation: str
) -> None:
    def send(event: str, **more: Any) -> None:
        payload = json.dumps({"session_id": conversation, "hook_event_name": event, **more})
        hook = f"{sys.executable} -IB -m waypoint --home /nowhere hook -s ignored claude"
        output = session.run(hook, stdin=payload)
        assert (output.exit_code, output.output) == (0, ""), output.output

    session.checkpoint("start")
    send("UserPromptSubmit", prompt="Write a note")
    send("PostToolUse", tool_name="Read", tool_input={}, tool_response="")
    assert intents(session) == ["start"]
    session.run("echo note > /srv/note")
    send("PostToolUse", tool_name="Write", tool_input={"file_path": "/srv/note"}, tool_response={"ok": 1})
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
    answer = session.run(f"{sys.executable} -IB -m waypoint hook claude", stdin=start).output
    assert "Write a note (Write: note)" in json.loads(answer)["hookSpecificOutput"]["additionalContext"]
    send("PostToolUse", tool_name="Bash", tool_input={"command": "git push"}, tool_response="")
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


def test_the_policy_uses_the_agents_own_permission_prompt(
    session: waypoint.Session, send: Callable[..., Any]
) -> None:
    session.set_policy(POLICY)

    def before(command: str, agent: str = "claude", **more: Any) -> Any:
        output = send("PreToolUse", agent, tool_name="Bash", tool_input={"command": command}, **more)
        return output["hookSpecificOutput"] if isinstance(output, dict) else output

    asks = before("cd /srv && launch now")
    assert asks["permissionDecision"] == "ask"
    assert "it cannot be called back" in asks["permissionDecisionReason"]
    assert before("bash -c 'melt all'")["permissionDecision"] == "deny"
    assert before("ls -la") == "", "nothing to say: the agent's own rules hold"
    answer = before("launch now", "codex")
    assert answer["permissionDecision"] == "deny", "its hooks cannot ask"
    assert "waypoint exec" in answer["permissionDecisionReason"]
    assert before("ls", "codex") == ""
    assert session.approvals(all=True) == [], "the agent asks, so nothing waits here"
    send("PostToolUse", tool_name="Bash", tool_input={"command": "ls; launch now"}, tool_response="up")
    (effect,) = session.effects()
    assert (effect.command, effect.class_, effect.source, effect.actor) == (
        *("launch now", "irreversible", "claimed", "agent"),
    )


def test_with_allow_the_policy_also_allows(session: waypoint.Session, wp: Wp, conversation: str) -> None:
    payload = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}}
    output = wp("hook", "-s", session.name, "--allow", "claude", stdin=json.dumps(payload))
    assert output.json["hookSpecificOutput"]["permissionDecision"] == "allow"
    payload["tool_input"] = {"command": "git push"}
    output = wp("hook", "-s", session.name, "--allow", "claude", stdin=json.dumps(payload))
    assert output.json["hookSpecificOutput"]["permissionDecision"] == "ask"


def test_an_agent_without_a_user_is_refused_at_once(
    session: waypoint.Session, wp: Wp, conversation: str, tmp_path: Path
) -> None:
    wp("hooks", "install", "claude", "--dir", str(tmp_path), "--on-approval", "deny", check=True)
    settings = json.loads((tmp_path / ".claude/settings.local.json").read_text())
    command = settings["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    assert command.endswith("hook --on-approval deny claude")
    server = json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"]["waypoint"]
    assert server["args"][-3:] == ["mcp", "--on-approval", "deny"]
    session.set_policy(POLICY)
    payload = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "launch now"}}
    options = ("-s", session.name, "--on-approval", "deny")
    reply = wp("hook", *options, "claude", stdin=json.dumps(payload)).json["hookSpecificOutput"]
    assert reply["permissionDecision"] == "deny"
    assert "it cannot be called back" in reply["permissionDecisionReason"]
    assert "waypoint exec" in reply["permissionDecisionReason"]


@pytest.mark.parametrize(
    "stdin",
    ["", "{", "[]", '{"hook_event_name": "PostToolUse"}', '{"hook_event_name": "Unheard"}', '{"prompt": 3}'],
)
def test_errors_do_not_break_the_agent(wp: Wp, stdin: str) -> None:
    for agent in ("claude", "codex"):
        done = wp("hook", "-s", "nobody", agent, stdin=stdin)
        assert done.code == 0
        assert done.out == ""


def test_without_a_name_the_only_session_is_meant_and_otherwise_the_hook_says_that_it_does_nothing(
    wp: Wp, session: waypoint.Session, conversation: str
) -> None:
    stop = json.dumps(
        {"hook_event_name": "Stop", "session_id": conversation, "last_assistant_message": "Done."}
    )
    done = wp("hook", "claude", stdin=stop)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert [one["content"] for one in session.messages()] == ["Done."]
    session.checkpoint("done").fork(name="other")
    for agent in ("claude", "codex"):
        done = wp("hook", agent, stdin=stop)
        assert (done.code, done.out) == (0, "")
        assert "this hook does nothing" in done.err
        start = wp("hook", agent, stdin='{"hook_event_name": "SessionStart"}')
        assert "this hook does nothing: more than one session" in start.json["systemMessage"]
        assert "`-s`" in start.json["systemMessage"]


MOST_MILLISECONDS = 150


@pytest.mark.parametrize("change", [False, True], ids=["nothing changed", "with a point"])
def test_a_step_costs_less_than_150_ms(session: waypoint.Session, conversation: str, change: bool) -> None:
    """In processor time of the hook and of the daemon: other tests run beside this one."""
    session.checkpoint("start")
    daemon = int(waypoint.Client().call("daemon_status")["pid"])
    call = {"tool_name": "Bash", "tool_input": {"command": "cd /srv && make test | tail -3"}}
    result = {"tool_response": {"stdout": "ok\n" * 200}, "session_id": conversation}
    payload = json.dumps({"hook_event_name": "PostToolUse", **call, **result})
    steps = []
    for number in range(4):
        if change:
            session.run(f"echo {number} > /srv/changed").check()
        own, others = used_by(daemon), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-P", "-m", "waypoint", "hook", "-s", session.name, "claude"]
        subprocess.run(command, input=payload, text=True, check=True)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        hook = now.ru_utime + now.ru_stime - others.ru_utime - others.ru_stime
        steps.append(1000 * (hook + used_by(daemon) - own))
    assert len(session.log()) == (5 if change else 1)
    assert min(steps) < MOST_MILLISECONDS, steps


def used_by(pid: int) -> float:
    """The seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_hooks_are_installed_and_removed(wp: Wp, tmp_path: Path) -> None:
    done = wp("hooks", "install", "claude", "--dir", str(tmp_path), "-s", "work", "--json")
    assert [one["changed"] for one in done.json["files"]] == [True, True, True]
    command = json.loads((tmp_path / ".claude/settings.local.json").read_text())["hooks"]["Stop"][0]["hooks"][
        0
    ]
    assert command["command"].endswith(" hook -s work claude")
    assert "--home" in command["command"]
    shown = wp("hooks", "show", "--dir", str(tmp_path), "--json").json["hooks"]
    assert len(shown["claude"]) == 8
    assert shown["codex"] == []
    wp("hooks", "uninstall", "claude", "--dir", str(tmp_path), check=True)
    assert list(tmp_path.iterdir()) == []


def test_every_command_of_the_skill_is_true(wp: Wp, session: waypoint.Session, tmp_path: Path) -> None:
    for agent in ("claude", "codex"):
        wp("hooks", "install", agent, "--dir", str(tmp_path), "-s", session.name, check=True)
    skill = (tmp_path / ".claude/skills/waypoint/SKILL.md").read_text()
    assert skill == (tmp_path / ".agents/skills/waypoint/SKILL.md").read_text()
    assert len(skill) < 3000, "a model reads it"
    assert "name: waypoint" in skill.splitlines()
    inside, outside = [block.partition("```")[0] for block in skill.split("```sh\n")[1:]]
    session.run("cd /srv").check()
    for line in inside.splitlines():
        session.run(line).check()
    assert session.tasks.list()[0].state == "completed"
    for line in outside.splitlines():
        words = line.partition(" --home ")[2].partition(" ")[2]  # without the program and its home
        done = wp(*shlex.split(words))
        assert words
        assert done.code == 0, (line, done.err)
    assert {one.name for one in waypoint.sessions()} == {"t", "try-1", "try-2"}
    for tool in re.findall(r"`(\w+)`", skill.partition("With MCP tools")[2].partition("\n\n")[0]):
        assert tool in {"waypoint"} | {name for group in GROUPS for name, it in tools_of(group) if it.core}
    for agent in ("claude", "codex"):
        wp("hooks", "uninstall", agent, "--dir", str(tmp_path), check=True)
    assert list(tmp_path.iterdir()) == []
