"""Hooks in agents' own configuration files, and the formats of their events."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waypoint import errors
from waypoint.hooks import handler
from waypoint.hooks.claude import Claude
from waypoint.hooks.codex import Codex
from waypoint.hooks.config import Installation, edits, installed

INSTALLATION = Installation(("/opt/way point/waypoint",), session="work")


def install(agent: str, folder: Path, installation: Installation | None = INSTALLATION) -> list[str]:
    changes = edits(agent, folder, installation)
    for edit in changes:
        edit.write()
    return [note for edit in changes for note in edit.notes]


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


THEIRS: dict[str, Any] = {
    "permissions": {"allow": ["Bash(npm test)"]},
    "hooks": {
        "PreToolUse": [
            {"matcher": "Bash", "hooks": [{"type": "command", "command": "./check.sh"}]},
            {"matcher": "Edit", "hooks": []},
        ],
        "Notification": [{"hooks": [{"type": "command", "command": "beep « »"}]}],
    },
    "model": "opus",
}


class TestClaude:
    def test_hooks_are_added_to_the_settings_and_removed_without_a_trace(self, tmp_path: Path) -> None:
        settings = tmp_path / ".claude" / "settings.local.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps(THEIRS, indent=4, ensure_ascii=False))
        servers = tmp_path / ".mcp.json"
        servers.write_text('{\n  "mcpServers": {\n    "other": {\n      "command": "x"\n    }\n  }\n}\n')
        settings.chmod(0o640)
        before = files(tmp_path)

        install("claude", tmp_path)
        written = json.loads(settings.read_text())
        assert written["permissions"] == THEIRS["permissions"]
        assert written["hooks"]["Notification"] == THEIRS["hooks"]["Notification"]
        assert written["hooks"]["PreToolUse"][:2] == THEIRS["hooks"]["PreToolUse"]
        ours = written["hooks"]["PreToolUse"][2]
        assert ours["matcher"] == "Bash"
        assert ours["hooks"][0]["command"] == "'/opt/way point/waypoint' hook -s work claude"
        assert set(written["hooks"]) == {
            *THEIRS["hooks"],
            *("SessionStart", "UserPromptSubmit", "PostToolUse", "PostToolUseFailure", "Stop"),
        }
        assert json.loads(servers.read_text())["mcpServers"] == {
            "other": {"command": "x"},
            "waypoint": {
                "type": "stdio",
                "command": "/opt/way point/waypoint",
                "args": ["mcp", "-s", "work"],
            },
        }
        assert settings.stat().st_mode & 0o777 == 0o640

        install("claude", tmp_path, None)
        assert files(tmp_path) == before

    def test_installing_twice_changes_nothing_and_another_session_replaces(self, tmp_path: Path) -> None:
        install("claude", tmp_path)
        once = files(tmp_path)
        assert not any(edit.changes for edit in edits("claude", tmp_path, INSTALLATION))
        install("claude", tmp_path)
        assert files(tmp_path) == once
        install("claude", tmp_path, Installation(INSTALLATION.command, session="other"))
        assert "-s work" not in "".join(files(tmp_path).values())
        install("claude", tmp_path, None)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("content", ["{", "[]", '{"hooks": 3}', '{"hooks": {"Stop": {}}}', "// hi\n{}"])
    def test_an_invalid_file_is_left_as_it_is(self, tmp_path: Path, content: str) -> None:
        settings = tmp_path / ".claude" / "settings.local.json"
        settings.parent.mkdir()
        settings.write_text(content)
        with pytest.raises(errors.UsageError) as refused:
            install("claude", tmp_path)
        assert str(settings) in refused.value.message
        assert refused.value.hint
        assert files(tmp_path) == {".claude/settings.local.json": content}

    def test_a_link_stays_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "dotfiles").write_text("{}")
        (tmp_path / ".mcp.json").symlink_to("dotfiles")
        install("claude", tmp_path)
        assert (tmp_path / ".mcp.json").is_symlink()
        assert "waypoint" in (tmp_path / "dotfiles").read_text()

    def test_the_home_folder_has_settings_for_all_projects(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        install("claude", tmp_path)
        assert set(files(tmp_path)) == {".claude/settings.json", ".claude/skills/waypoint/SKILL.md"}

    def test_installed_hooks_are_listed(self, tmp_path: Path) -> None:
        assert installed("claude", tmp_path) == []
        install("claude", tmp_path)
        lines = "\n".join(installed("claude", tmp_path))
        assert "hook -s work claude" in lines
        assert ".mcp.json" in lines


class TestCodex:
    CONFIG = '# mine\nmodel = "o9"\n\n[mcp_servers.other]\ncommand = "x"\n\n[features]\nhooks = true'

    def test_other_text_stays_unchanged(self, tmp_path: Path) -> None:
        config = tmp_path / ".codex" / "config.toml"
        config.parent.mkdir()
        config.write_text(self.CONFIG)
        install("codex", tmp_path)
        written = tomllib.loads(config.read_text())
        assert written["notify"] == ["/opt/way point/waypoint", "hook", "-s", "work", "codex"]
        assert written["mcp_servers"]["waypoint"]["args"] == ["mcp", "-s", "work"]
        assert written["mcp_servers"]["other"] == {"command": "x"}
        assert self.CONFIG in config.read_text()
        hooks = json.loads((tmp_path / ".codex" / "hooks.json").read_text())["hooks"]
        assert set(hooks) == {"SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"}
        once = files(tmp_path)
        install("codex", tmp_path)
        assert files(tmp_path) == once
        install("codex", tmp_path, None)
        assert config.read_text() == self.CONFIG
        assert list(files(tmp_path)) == [".codex/config.toml"]

    def test_a_notify_of_the_user_stays(self, tmp_path: Path) -> None:
        config = tmp_path / ".codex" / "config.toml"
        config.parent.mkdir()
        config.write_text('notify = ["say"]\n[mcp_servers.waypoint]\ncommand = "theirs"\n')
        notes = install("codex", tmp_path)
        assert len(notes) == 2
        written = tomllib.loads(config.read_text())
        assert written["notify"] == ["say"]
        assert written["mcp_servers"]["waypoint"] == {"command": "theirs"}

    def test_files_that_were_made_are_removed(self, tmp_path: Path) -> None:
        install("codex", tmp_path)
        install("codex", tmp_path, None)
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_is_no_toml_is_left_as_it_is(self, tmp_path: Path) -> None:
        config = tmp_path / ".codex" / "config.toml"
        config.parent.mkdir()
        config.write_text("= nonsense")
        with pytest.raises(errors.UsageError):
            install("codex", tmp_path)
        assert files(tmp_path) == {".codex/config.toml": "= nonsense"}


class TestFormats:
    def test_events_of_claude(self) -> None:
        payload = {
            "session_id": "s1",
            "hook_event_name": "PostToolUse",
            "tool_name": "Bash",
            "tool_input": {"command": "ls", "description": "List"},
            "tool_response": {"stdout": "x"},
            "tool_use_id": "toolu_1",
        }
        event = Claude().parse(payload)
        assert (event.name, event.command, event.conversation) == ("after_tool", "ls", "s1")
        assert event.result == {"stdout": "x"}
        prompt = Claude().parse(
            {"hook_event_name": "UserPromptSubmit", "prompt": "do it", "session_id": "s1"}
        )
        assert (prompt.name, prompt.text) == ("prompt", "do it")
        edit = Claude().parse({"hook_event_name": "PreToolUse", "tool_name": "Edit", "tool_input": {}})
        assert edit.command is None
        assert Claude().parse({"hook_event_name": "PreCompact"}).name == "other"
        assert Claude().parse({"tool_name": "mcp__waypoint__run", "hook_event_name": "PostToolUse"}).own_tool

    def test_claude_asks_its_user_codex_denies(self) -> None:
        asks = Claude().permission("ask", "it is a push")
        assert asks
        assert asks["hookSpecificOutput"]["permissionDecision"] == "ask"
        denies = Codex().permission("ask", "it is a push")
        assert denies
        assert denies["hookSpecificOutput"]["permissionDecision"] == "deny"
        assert denies["hookSpecificOutput"]["permissionDecisionReason"].startswith(
            "it is a push. The user has"
        )
        assert Codex().permission("allow", "") is None

    def test_events_of_codex(self) -> None:
        turn_end = {
            "type": "agent-turn-complete",
            "thread-id": "t1",
            "input-messages": ["fix it"],
            "last-assistant-message": "done",
        }
        event = Codex().parse(turn_end)
        assert (event.name, event.text, event.conversation) == ("turn_end", "done", "t1")
        words = {"tool_name": "shell", "tool_input": {"command": ["bash", "-lc", "git push"]}}
        assert Codex().parse({"hook_event_name": "PreToolUse", **words}).command == "git push"
        patch = {"tool_name": "apply_patch", "tool_input": {"command": "*** Begin Patch"}}
        assert Codex().parse({"hook_event_name": "PostToolUse", **patch}).command is None

    @pytest.mark.parametrize("payload", ["", "{", "3", "[]", '"x"'])
    def test_an_invalid_event_is_refused(self, payload: str) -> None:
        with pytest.raises(errors.UsageError):
            handler.parse(Claude(), payload)

    @pytest.mark.parametrize(
        "payload",
        [{}, {"hook_event_name": 3}, {"hook_event_name": "PostToolUse", "tool_input": "x", "tool_name": 1}],
    )
    def test_fields_of_a_wrong_type_are_ignored(self, payload: dict[str, Any]) -> None:
        for agent in handler.AGENTS.values():
            agent.parse(payload)


SPACES = st.sampled_from(["", " ", "\t", "\n", "\r\n  ", "\n      "])
INNER = st.sampled_from(["", " ", "\t"])
"""In an empty object or list: a line break there would be taken for one of ours."""


@st.composite
def json_texts(draw: st.DrawFn, value: Any) -> str:
    """A value as JSON, with white space of any kind wherever it may stand."""
    if isinstance(value, dict):
        parts = [
            f"{draw(SPACES)}{json.dumps(key)}{draw(SPACES)}:{draw(SPACES)}{draw(json_texts(each))}{draw(SPACES)}"
            for key, each in value.items()
        ]
        return f"{{{','.join(parts) or draw(INNER)}}}"
    if isinstance(value, list):
        parts = [f"{draw(SPACES)}{draw(json_texts(each))}{draw(SPACES)}" for each in value]
        return f"[{','.join(parts) or draw(INNER)}]"
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
GROUPS = st.lists(
    st.fixed_dictionaries(
        {"hooks": st.lists(st.fixed_dictionaries({"command": st.text(max_size=5)}), max_size=2)}
    ),
    max_size=2,
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "model": LEAVES,
        "hooks": st.dictionaries(st.sampled_from(["Stop", "PreToolUse", "Notification"]), GROUPS, max_size=3),
        "permissions": st.dictionaries(st.text(max_size=4), st.lists(LEAVES, max_size=2), max_size=2),
        "mcpServers": st.dictionaries(st.sampled_from(["a", "waypoint"]), LEAVES, max_size=2),
    },
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_is_left_after_uninstall_are_the_very_bytes_of_before(
    tmp_path: Path, data: st.DataObject
) -> None:
    text = data.draw(SETTINGS.flatmap(json_texts))
    mark, end = data.draw(st.sampled_from(["", "\ufeff"])), data.draw(SPACES)
    before = data.draw(st.sampled_from([f"{mark}{text}{end}".encode(), b"", b"\n \n"]))
    for agent, name in (
        ("claude", ".claude/settings.local.json"),
        ("claude", ".mcp.json"),
        ("codex", ".codex/hooks.json"),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(before)
        install(agent, tmp_path)
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
        assert "waypoint" in str(content)
        install(agent, tmp_path)
        assert json.loads(path.read_bytes().decode("utf-8-sig")) == content
        install(agent, tmp_path, None)
        assert path.read_bytes() == before
        path.unlink()


@pytest.mark.parametrize(
    "before", [b"", b"\n", b'# a\r\nmodel = "x"\r\n', b"a = 1", b"[t]\n\n\n", b"\xef\xbb\xbfa = 1\n"]
)
def test_a_toml_file_has_its_very_bytes_after_uninstall(tmp_path: Path, before: bytes) -> None:
    config = tmp_path / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_bytes(before)
    try:
        install("codex", tmp_path)
    except errors.UsageError:
        assert before.startswith(b"\xef"), "TOML has no byte order mark"
    else:
        assert b"waypoint" in config.read_bytes()
        install("codex", tmp_path, None)
    assert config.read_bytes() == before


def test_a_server_of_the_user_with_our_name_stays(tmp_path: Path) -> None:
    servers = tmp_path / ".mcp.json"
    servers.write_text('{"mcpServers": {"waypoint": {"command": "theirs"}}}')
    assert install("claude", tmp_path) == ["the server 'waypoint' is set already and stays as it is"]
    assert json.loads(servers.read_text())["mcpServers"] == {"waypoint": {"command": "theirs"}}
    install("claude", tmp_path, None)
    assert "theirs" in servers.read_text()
