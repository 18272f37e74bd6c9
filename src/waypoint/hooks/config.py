"""Adds Waypoint's hooks and its MCP server to an agent's own files, and removes them. Nothing else changes.

JSON files are written with their own indentation and order. In TOML files our lines stand between two marks,
and all other text stays as it is. Adding twice changes nothing. A file that cannot be parsed is not changed,
and the error says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waypoint.errors import UsageError
from waypoint.hooks.events import mapping
from waypoint.kernel import atomic

_OURS = re.compile(r"\bwaypoint\b.*\bhook\b.* (claude|codex)$", re.DOTALL)
_BEGIN, _END = "# >>> waypoint", "# <<< waypoint"
_NO_NEWLINE = " (the line before had no end)"
"""Added to the first mark if we ended the line before it. In files of users: must not change."""
_NOT_CHANGED = "it was not changed; correct it first"
_SERVER = "waypoint"
_OWN_FOLDERS = (".claude", ".codex")
_SECONDS = 60
_TOOLS = "Bash|Edit|MultiEdit|Write|NotebookEdit|mcp__waypoint__run"
_CODEX_TOOLS = "Bash|apply_patch|Edit|Write|mcp__waypoint__run"

Json = dict[str, Any]


@dataclass(frozen=True)
class Installation:
    """What is added to an agent's files."""

    command: tuple[str, ...]
    """The command that starts Waypoint, with options."""
    session: str | None = None
    allow: bool = False
    mcp: bool = True

    def hook(self, agent: str) -> list[str]:
        """The command of the hook. The agent's name comes last: some agents append the event to it."""
        session = ("-s", self.session) if self.session else ()
        allow = ("--allow",) if self.allow else ()
        return [*self.command, "hook", *session, *allow, agent]

    def server(self) -> list[str]:
        return [*self.command, "mcp", *(("-s", self.session) if self.session else ())]


@dataclass(frozen=True)
class Edit:
    """One file, before and after. None: it does not exist."""

    path: Path
    before: str | None
    after: str | None
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        return self.before != self.after

    def write(self) -> None:
        """Replaces the whole file; if the path is a link, the file it points to."""
        if not self.changes:
            return
        target = Path(os.path.realpath(self.path))
        try:
            if self.after is None:
                target.unlink()
                if target.parent.name in _OWN_FOLDERS:
                    with contextlib.suppress(OSError):
                        target.parent.rmdir()  # it was made for this file
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(target, self.after)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from error


def edits(agent: str, folder: Path, installation: Installation | None) -> list[Edit]:
    """The changes to the files in a folder. None: those that remove everything of ours."""
    return _EDITS[agent](folder, installation)


def installed(agent: str, folder: Path) -> list[str]:
    """Our hooks and servers in the files of a folder, one line each."""
    return [line for edit in edits(agent, folder, None) if edit.changes for line in _own_entries(edit)]


def _own_entries(edit: Edit) -> Iterator[str]:
    if edit.path.suffix == ".toml":
        blocks = re.findall(rf"^{_BEGIN}.*?\n(.*?)^{_END}$", edit.before or "", re.DOTALL | re.MULTILINE)
        yield from (f"{edit.path}: {' · '.join(block.splitlines())}" for block in blocks)
        return
    content = json.loads(edit.before or "{}")
    for event, groups in mapping(content.get("hooks")).items():
        for group in map(mapping, groups):
            for handler in filter(_is_ours, _list(group.get("hooks"))):
                matcher = f" ({group['matcher']})" if group.get("matcher") else ""
                yield f"{edit.path}: {event}{matcher}: {handler['command']}"
    if server := mapping(mapping(content.get("mcpServers")).get(_SERVER)):
        words = [server.get("command"), *_list(server.get("args"))]
        yield f"{edit.path}: MCP server: {shlex.join(map(str, words))}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# ---- Claude Code ---------------------------------------------------------------------------------


def _claude(folder: Path, installation: Installation | None) -> list[Edit]:
    # The settings of a project may be shared with other machines, on which our path does not exist.
    at_home = folder.resolve() == Path.home().resolve()
    settings = folder / ".claude" / ("settings.json" if at_home else "settings.local.json")
    hooks = None
    if installation:
        command = shlex.join(installation.hook("claude"))
        hooks = {
            "SessionStart": [_group(command)],
            "UserPromptSubmit": [_group(command)],
            "PreToolUse": [_group(command, "Bash")],
            "PostToolUse": [_group(command, _TOOLS)],
            "PostToolUseFailure": [_group(command, _TOOLS)],  # a command that failed may have changed files
            "Stop": [_group(command)],
        }
    changes = [_json(settings, lambda content: _with_hooks(content, hooks))]
    if at_home:
        return changes  # the servers of all projects are in a file that the agent itself writes
    server = None
    if installation and installation.mcp:
        program, *args = installation.server()
        server = {"type": "stdio", "command": program, "args": args}
    return [*changes, _json(folder / ".mcp.json", lambda content: _with_server(content, server))]


def _group(command: str, matcher: str | None = None) -> Json:
    group: Json = {"hooks": [{"type": "command", "command": command, "timeout": _SECONDS}]}
    return {"matcher": matcher, **group} if matcher else group


def _with_hooks(content: Json, hooks: dict[str, list[Json]] | None) -> Json:
    before = content.get("hooks", {})
    if not isinstance(before, dict) or not all(isinstance(groups, list) for groups in before.values()):
        raise UsageError('its "hooks" have an unknown form')
    after = {event: _without_ours(groups) for event, groups in before.items()}
    for event, groups in (hooks or {}).items():
        after[event] = [*after.get(event, []), *groups]
    after = {event: groups for event, groups in after.items() if groups or before.get(event) == []}
    if after:
        return {**content, "hooks": after}
    return content if before == {} else {key: value for key, value in content.items() if key != "hooks"}


def _without_ours(groups: list[Any]) -> list[Any]:
    others = []
    for group in groups:
        handlers = group.get("hooks") if isinstance(group, dict) else None
        if not isinstance(handlers, list):
            others.append(group)
            continue
        other_handlers = [handler for handler in handlers if not _is_ours(handler)]
        if other_handlers or not handlers:
            others.append({**group, "hooks": other_handlers})
    return others


def _is_ours(handler: Any) -> bool:
    return isinstance(handler, dict) and bool(_OURS.search(str(handler.get("command", ""))))


def _with_server(content: Json, server: Json | None) -> Json:
    before = content.get("mcpServers", {})
    if not isinstance(before, dict):
        raise UsageError('its "mcpServers" have an unknown form')
    servers = {name: other for name, other in before.items() if name != _SERVER or server is not None}
    if server is not None:
        servers[_SERVER] = server
    if servers or before == {}:
        return {**content, "mcpServers": servers} if servers else content
    return {key: value for key, value in content.items() if key != "mcpServers"}


# ---- Codex ---------------------------------------------------------------------------------------


def _codex(folder: Path, installation: Installation | None) -> list[Edit]:
    hooks = None
    if installation:
        command = shlex.join(installation.hook("codex"))
        hooks = {
            "SessionStart": [_group(command)],
            "UserPromptSubmit": [_group(command)],
            "PreToolUse": [_group(command, "Bash")],
            "PostToolUse": [_group(command, _CODEX_TOOLS)],
            "Stop": [_group(command)],
        }
    return [
        _json(folder / ".codex" / "hooks.json", lambda content: _with_hooks(content, hooks)),
        _toml(folder / ".codex" / "config.toml", installation),
    ]


def _toml(path: Path, installation: Installation | None) -> Edit:
    import tomllib

    before = _read(path)
    after = _without_marks(before or "")
    notes: list[str] = []
    try:
        content = tomllib.loads(after)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is no TOML: {error}", hint=_NOT_CHANGED) from error
    if installation:
        if "notify" in content:
            notes.append(
                "`notify` is set already and stays as it is: only the hooks report the end of a turn"
            )
        else:
            # A key of the top level has to come before the first table.
            after = _marked([f"notify = {_toml_words(installation.hook('codex'))}"]) + after
        if installation.mcp and _SERVER in content.get("mcp_servers", {}):
            notes.append(f"[mcp_servers.{_SERVER}] is set already and stays as it is")
        elif installation.mcp:
            program, *args = installation.server()
            lines = [
                f"[mcp_servers.{_SERVER}]",
                f"command = {json.dumps(program, ensure_ascii=False)}",
                f"args = {_toml_words(args)}",
            ]
            has_newline = not after or after.endswith("\n")
            after += _marked(lines) if has_newline else f"\n{_marked(lines, _NO_NEWLINE)}"
        tomllib.loads(after)
    return Edit(path, before, after if after or before == "" else None, tuple(notes))


def _toml_words(words: list[str]) -> str:
    return json.dumps(words, ensure_ascii=False)  # TOML and JSON write a list of strings in the same way


def _marked(lines: list[str], remark: str = "") -> str:
    return "\n".join([_BEGIN + remark, *lines, _END, ""])


def _without_marks(content: str) -> str:
    block = rf"{_BEGIN}{{}}\n.*?^{_END}\n"
    content = re.sub(
        rf"\n{block.format(re.escape(_NO_NEWLINE))}", "", content, flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(rf"^{block.format('')}", "", content, flags=re.DOTALL | re.MULTILINE)


# ---- files ---------------------------------------------------------------------------------------


def _json(path: Path, change: Callable[[Json], Json]) -> Edit:
    before = _read(path)
    try:
        content = json.loads(before) if before and before.strip() else {}
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}", hint=_NOT_CHANGED) from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a JSON object", hint=_NOT_CHANGED)
    try:
        changed = change(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=_NOT_CHANGED) from error
    if changed == content:
        return Edit(path, before, before)
    if not changed:
        return Edit(path, before, None)
    indent = re.search(r"^([ \t]+)\S", before or "", re.MULTILINE)
    after = json.dumps(changed, indent=indent[1] if indent else 2, ensure_ascii=False)
    return Edit(path, before, after if before and not before.endswith("\n") else f"{after}\n")


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="it was not changed") from error


_EDITS: dict[str, Callable[[Path, Installation | None], list[Edit]]] = {"claude": _claude, "codex": _codex}
