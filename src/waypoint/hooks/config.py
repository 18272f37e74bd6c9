"""Hooks in an agent's own files: put in beside what is there, taken out again, nothing else touched.

JSON files are read, changed and written with their own indentation and order; TOML files are not written
anew at all, the lines that are ours stand between two marks. Doing it twice is doing it once. A file that
cannot be read is left as it is, and the error says so.
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
from waypoint.kernel import atomic

_OURS = re.compile(r"\bwaypoint\b.*\bhook\b.* (claude|codex)$", re.DOTALL)
_BEGIN, _END = "# >>> waypoint", "# <<< waypoint"
_NO_END = " (the line before had no end)"
_SERVER = "waypoint"
_OWN_FOLDERS = (".claude", ".codex")
_SECONDS = 60
_TOOLS = "Bash|Edit|MultiEdit|Write|NotebookEdit|mcp__waypoint__run"
_CODEX_TOOLS = "Bash|apply_patch|Edit|Write|mcp__waypoint__run"

Json = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What is to be put in."""

    command: tuple[str, ...]
    """What starts Waypoint, its options included."""
    session: str | None = None
    allow: bool = False
    mcp: bool = True

    def hook(self, agent: str) -> list[str]:
        """What runs it. The agent's name comes last: some add what they tell as one more argument."""
        session = ("-s", self.session) if self.session else ()
        allow = ("--allow",) if self.allow else ()
        return [*self.command, "hook", *session, *allow, agent]

    def server(self) -> list[str]:
        return [*self.command, "mcp", *(("-s", self.session) if self.session else ())]


@dataclass(frozen=True)
class Edit:
    """One file, as it is and as it is to be. None: it is not there."""

    path: Path
    before: str | None
    after: str | None
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        return self.before != self.after

    def write(self) -> None:
        """Replaces the file as a whole; where the path is a link, the file that it leads to."""
        if not self.changes:
            return
        target = Path(os.path.realpath(self.path))
        try:
            if self.after is None:
                target.unlink()
                if target.parent.name in _OWN_FOLDERS:
                    with contextlib.suppress(OSError):
                        target.parent.rmdir()  # made for it, and empty again
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(target, self.after)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from error


def edits(agent: str, folder: Path, wanted: Wanted | None) -> list[Edit]:
    """What is to be done in a folder. `wanted`: None to take everything of ours out."""
    return _EDITS[agent](folder, wanted)


def found(agent: str, folder: Path) -> list[str]:
    """The hooks and servers of ours that are in a folder, one line each."""
    return [line for edit in edits(agent, folder, None) if edit.changes for line in _ours(edit)]


def _ours(edit: Edit) -> Iterator[str]:
    if edit.path.suffix == ".toml":
        blocks = re.findall(rf"^{_BEGIN}.*?\n(.*?)^{_END}$", edit.before or "", re.DOTALL | re.MULTILINE)
        yield from (f"{edit.path}: {' · '.join(block.splitlines())}" for block in blocks)
        return
    content = json.loads(edit.before or "{}")
    for event, groups in content.get("hooks", {}).items():
        for group in groups:
            for handler in filter(_is_ours, group.get("hooks", ())):
                matcher = f" ({group['matcher']})" if group.get("matcher") else ""
                yield f"{edit.path}: {event}{matcher}: {handler['command']}"
    if server := content.get("mcpServers", {}).get(_SERVER):
        yield f"{edit.path}: MCP server: {shlex.join([server['command'], *server.get('args', ())])}"


# ---- Claude Code ---------------------------------------------------------------------------------


def _claude(folder: Path, wanted: Wanted | None) -> list[Edit]:
    # A project's own settings may be shared with others, on whose machines this path leads nowhere.
    at_home = folder.resolve() == Path.home().resolve()
    settings = folder / ".claude" / ("settings.json" if at_home else "settings.local.json")
    hooks = None
    if wanted:
        command = shlex.join(wanted.hook("claude"))
        hooks = {
            "SessionStart": [_group(command)],
            "UserPromptSubmit": [_group(command)],
            "PreToolUse": [_group(command, "Bash")],
            "PostToolUse": [_group(command, _TOOLS)],
            "PostToolUseFailure": [_group(command, _TOOLS)],  # a command that failed has done things, too
            "Stop": [_group(command)],
        }
    made = [_json(settings, lambda content: _with_hooks(content, hooks))]
    if at_home:
        return made  # its servers are in a file that the agent itself keeps writing to
    server = None
    if wanted and wanted.mcp:
        program, *args = wanted.server()
        server = {"type": "stdio", "command": program, "args": args}
    return [*made, _json(folder / ".mcp.json", lambda content: _with_server(content, server))]


def _group(command: str, matcher: str | None = None) -> Json:
    group: Json = {"hooks": [{"type": "command", "command": command, "timeout": _SECONDS}]}
    return {"matcher": matcher, **group} if matcher else group


def _with_hooks(content: Json, hooks: dict[str, list[Json]] | None) -> Json:
    there = content.get("hooks", {})
    if not isinstance(there, dict) or not all(isinstance(groups, list) for groups in there.values()):
        raise UsageError('its "hooks" are not what they should be')
    kept = {event: _without_ours(groups) for event, groups in there.items()}
    for event, groups in (hooks or {}).items():
        kept[event] = [*kept.get(event, []), *groups]
    kept = {event: groups for event, groups in kept.items() if groups or there.get(event) == []}
    if kept:
        return {**content, "hooks": kept}
    return content if there == {} else {key: value for key, value in content.items() if key != "hooks"}


def _without_ours(groups: list[Any]) -> list[Any]:
    kept = []
    for group in groups:
        handlers = group.get("hooks") if isinstance(group, dict) else None
        if not isinstance(handlers, list):
            kept.append(group)
            continue
        others = [one for one in handlers if not _is_ours(one)]
        if others or not handlers:
            kept.append({**group, "hooks": others})
    return kept


def _is_ours(handler: Any) -> bool:
    return isinstance(handler, dict) and bool(_OURS.search(str(handler.get("command", ""))))


def _with_server(content: Json, server: Json | None) -> Json:
    there = content.get("mcpServers", {})
    if not isinstance(there, dict):
        raise UsageError('its "mcpServers" are not what they should be')
    servers = {name: one for name, one in there.items() if name != _SERVER or server is not None}
    if server is not None:
        servers[_SERVER] = server
    if servers or there == {}:
        return {**content, "mcpServers": servers} if servers else content
    return {key: value for key, value in content.items() if key != "mcpServers"}


# ---- Codex ---------------------------------------------------------------------------------------


def _codex(folder: Path, wanted: Wanted | None) -> list[Edit]:
    hooks = None
    if wanted:
        command = shlex.join(wanted.hook("codex"))
        hooks = {
            "SessionStart": [_group(command)],
            "UserPromptSubmit": [_group(command)],
            "PreToolUse": [_group(command, "Bash")],
            "PostToolUse": [_group(command, _CODEX_TOOLS)],
            "Stop": [_group(command)],
        }
    return [
        _json(folder / ".codex" / "hooks.json", lambda content: _with_hooks(content, hooks)),
        _toml(folder / ".codex" / "config.toml", wanted),
    ]


def _toml(path: Path, wanted: Wanted | None) -> Edit:
    import tomllib

    before = _read(path)
    plain = _without_marks(before or "")
    notes: list[str] = []
    try:
        content = tomllib.loads(plain)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is no TOML: {error}", hint="it was left as it is; mend it first") from error
    after = plain
    if wanted:
        if "notify" in content:
            notes.append(
                "`notify` is somebody else's already and stays so: hooks alone tell when a turn is over"
            )
        else:
            # A key of the top level has to stand before the first table.
            after = _marked([f"notify = {_toml_words(wanted.hook('codex'))}"]) + after
        if wanted.mcp and _SERVER in content.get("mcp_servers", {}):
            notes.append(f"[mcp_servers.{_SERVER}] is there already and stays as it is")
        elif wanted.mcp:
            program, *args = wanted.server()
            lines = [
                f"[mcp_servers.{_SERVER}]",
                f"command = {json.dumps(program, ensure_ascii=False)}",
                f"args = {_toml_words(args)}",
            ]
            ended = not after or after.endswith("\n")
            after += _marked(lines) if ended else f"\n{_marked(lines, _NO_END)}"
        tomllib.loads(after)
    return Edit(path, before, after if after or before == "" else None, tuple(notes))


def _toml_words(words: list[str]) -> str:
    return json.dumps(words, ensure_ascii=False)  # a list of strings is written the same way in both


def _marked(lines: list[str], remark: str = "") -> str:
    return "\n".join([_BEGIN + remark, *lines, _END, ""])


def _without_marks(content: str) -> str:
    block = rf"{_BEGIN}{{}}\n.*?^{_END}\n"
    content = re.sub(rf"\n{block.format(re.escape(_NO_END))}", "", content, flags=re.DOTALL | re.MULTILINE)
    return re.sub(rf"^{block.format('')}", "", content, flags=re.DOTALL | re.MULTILINE)


# ---- files ---------------------------------------------------------------------------------------


def _json(path: Path, change: Callable[[Json], Json]) -> Edit:
    before = _read(path)
    hint = "it was left as it is; mend it first, or add what `waypoint hooks show` says by hand"
    try:
        content = json.loads(before) if before and before.strip() else {}
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}", hint=hint) from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not what it should be: an object", hint=hint)
    try:
        changed = change(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=hint) from error
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
        raise UsageError(f"{path} cannot be read: {error}", hint="it was left as it is") from error


_EDITS: dict[str, Callable[[Path, Wanted | None], list[Edit]]] = {"claude": _claude, "codex": _codex}
