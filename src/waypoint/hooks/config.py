"""Adds Waypoint's hooks and its MCP server to an agent's own files, and removes them. Nothing else changes.

What is added is text, and taking it out leaves the very bytes of before: in JSON files members behind those
of the user (jsontext.py), in TOML files lines between two marks. Adding twice changes nothing. A file that
cannot be parsed is not changed, and the error says so.
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
from typing import Any, Protocol

from waypoint.errors import UsageError
from waypoint.hooks import jsontext
from waypoint.hooks.events import mapping
from waypoint.kernel import atomic

_OURS = re.compile(r"\bwaypoint\b.*\bhook\b.* (claude|codex)$", re.DOTALL)
_BEGIN, _END = "# >>> waypoint", "# <<< waypoint"
_NO_NEWLINE = " (the line before had no end)"
"""Added to the first mark if we ended the line before it. In files of users: must not change."""
_WAS_EMPTY = " (the file was empty)"
"""Added to the first mark of a file that was there without any content."""
_NEW = "{\n}\n"
"""A JSON file that is made: it goes when ours is taken out."""
_NOTHING = "{  }"
"""Stands for the content of a file without any: such a file is empty again when ours is taken out."""
_NOT_CHANGED = "it was not changed; correct it first"
_SERVER = "waypoint"
_OWN_FOLDERS = ("waypoint", "skills", ".claude", ".codex", ".agents")
"""From the inside out. An empty one goes when the last file in it goes."""
_SKILLS = {"claude": ".claude/skills", "codex": ".agents/skills"}
_SKILL_MARK = "<!-- Installed with the hooks of Waypoint"
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
    on_approval: str | None = None

    def hook(self, agent: str) -> list[str]:
        """The command of the hook. The agent's name comes last: some agents append the event to it."""
        session = ("-s", self.session) if self.session else ()
        allow = ("--allow",) if self.allow else ()
        return [*self.command, "hook", *session, *allow, *self._on_approval, agent]

    def server(self) -> list[str]:
        session = ("-s", self.session) if self.session else ()
        return [*self.command, "mcp", *session, *self._on_approval]

    @property
    def _on_approval(self) -> tuple[str, ...]:
        return ("--on-approval", self.on_approval) if self.on_approval else ()


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
                folder = target.parent
                with contextlib.suppress(OSError):  # others use it
                    while folder.name in _OWN_FOLDERS:
                        folder.rmdir()
                        folder = folder.parent
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(target, self.after)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from error


def edits(agent: str, folder: Path, installation: Installation | None) -> list[Edit]:
    """The changes to the files in a folder. None: those that remove everything of ours."""
    return [*_EDITS[agent](folder, installation), _skill(agent, folder, installation)]


def installed(agent: str, folder: Path) -> list[str]:
    """Our hooks and servers in the files of a folder, one line each."""
    return [line for edit in edits(agent, folder, None) if edit.changes for line in _own_entries(edit)]


def _own_entries(edit: Edit) -> Iterator[str]:
    if edit.path.suffix == ".toml":
        blocks = re.findall(rf"^{_BEGIN}.*?\n(.*?)^{_END}$", edit.before or "", re.DOTALL | re.MULTILINE)
        yield from (f"{edit.path}: {' · '.join(block.splitlines())}" for block in blocks)
        return
    if edit.path.suffix == ".md":
        yield f"{edit.path}: skill"
        return
    content = json.loads((edit.before or "{}").removeprefix("\ufeff"))
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
    changes = [_json(settings, _Hooks(hooks))]
    if at_home:
        return changes  # the servers of all projects are in a file that the agent itself writes
    server = None
    if installation and installation.mcp:
        program, *args = installation.server()
        server = {"type": "stdio", "command": program, "args": args}
    return [*changes, _json(folder / ".mcp.json", _Server(server))]


def _group(command: str, matcher: str | None = None) -> Json:
    group: Json = {"hooks": [{"type": "command", "command": command, "timeout": _SECONDS}]}
    return {"matcher": matcher, **group} if matcher else group


class _Hooks:
    """Our groups in the "hooks" of a JSON file. None: they are taken out."""

    def __init__(self, wanted: dict[str, list[Json]] | None) -> None:
        self._wanted = wanted

    def is_done(self, content: Json) -> bool:
        groups = content.get("hooks", {})
        if not isinstance(groups, dict) or not all(isinstance(each, list) for each in groups.values()):
            raise UsageError('its "hooks" have an unknown form')
        own = {event: [group for group in each if _own_handlers(group)] for event, each in groups.items()}
        return {event: each for event, each in own.items() if each} == (self._wanted or {})

    def without(self, text: str) -> str | None:
        left: str | None = text
        for event in mapping(json.loads(text).get("hooks")):
            for place, group in jsontext.entries(json.loads(left or "{}"), "hooks", event):
                assert left is not None
                own = _own_handlers(group)
                if own and len(own) == len(group["hooks"]):
                    left = jsontext.cut(left, ["hooks", event, place])
                    continue
                for handler in reversed(own):
                    left = jsontext.cut(left or "", ["hooks", event, place, "hooks", handler])
        return left

    def added(self, text: str) -> str:
        for event, groups in (self._wanted or {}).items():
            content = json.loads(text)
            if "hooks" not in content:
                return jsontext.add(text, [], self._wanted, "hooks")
            if event not in content["hooks"]:
                text = jsontext.add(text, ["hooks"], groups, event)
                continue
            for group in groups:
                text = jsontext.add(text, ["hooks", event], group)
        return text


def _own_handlers(group: Any) -> list[int]:
    handlers = group.get("hooks") if isinstance(group, dict) else None
    return [place for place, handler in enumerate(_list(handlers)) if _is_ours(handler)]


def _is_ours(handler: Any) -> bool:
    return isinstance(handler, dict) and bool(_OURS.search(str(handler.get("command", ""))))


class _Server:
    """Our server in the "mcpServers" of a JSON file. None: it is taken out."""

    def __init__(self, wanted: Json | None) -> None:
        self._wanted = wanted

    def is_done(self, content: Json) -> bool:
        servers = content.get("mcpServers", {})
        if not isinstance(servers, dict):
            raise UsageError('its "mcpServers" have an unknown form')
        found = servers.get(_SERVER)
        return found == self._wanted or (found is not None and not _is_our_server(found))

    def without(self, text: str) -> str | None:
        if _is_our_server(mapping(json.loads(text).get("mcpServers")).get(_SERVER)):
            return jsontext.cut(text, ["mcpServers", _SERVER])
        return text

    def added(self, text: str) -> str:
        if self._wanted is None:
            return text
        if "mcpServers" not in json.loads(text):
            return jsontext.add(text, [], {_SERVER: self._wanted}, "mcpServers")
        return jsontext.add(text, ["mcpServers"], self._wanted, _SERVER)

    def notes(self, content: Json) -> tuple[str, ...]:
        found = mapping(content.get("mcpServers")).get(_SERVER)
        if self._wanted is None or found is None or _is_our_server(found):
            return ()
        return (f"the server {_SERVER!r} is set already and stays as it is",)


def _is_our_server(server: Any) -> bool:
    words = [str(word) for word in _list(mapping(server).get("args"))]
    return "mcp" in words and "waypoint" in " ".join([str(server.get("command")), *words])


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
        _json(folder / ".codex" / "hooks.json", _Hooks(hooks)),
        _toml(folder / ".codex" / "config.toml", installation),
    ]


def _toml(path: Path, installation: Installation | None) -> Edit:
    import tomllib

    before = _read(path)
    after = _without_marks(before or "")
    was_empty = before == "" or f"{_BEGIN}{_WAS_EMPTY}\n" in (before or "")
    remark = _WAS_EMPTY if was_empty else ""
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
            after = _marked([f"notify = {_toml_words(installation.hook('codex'))}"], remark) + after
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
    return Edit(path, before, after if after or was_empty else None, tuple(notes))


def _toml_words(words: list[str]) -> str:
    return json.dumps(words, ensure_ascii=False)  # TOML and JSON write a list of strings in the same way


def _marked(lines: list[str], remark: str = "") -> str:
    return "\n".join([_BEGIN + remark, *lines, _END, ""])


def _without_marks(content: str) -> str:
    block = rf"{_BEGIN}{{}}\n.*?^{_END}\n"
    content = re.sub(
        rf"\n{block.format(re.escape(_NO_NEWLINE))}", "", content, flags=re.DOTALL | re.MULTILINE
    )
    empty = rf"^{block.format(f'(?:{re.escape(_WAS_EMPTY)})?')}"
    return re.sub(empty, "", content, flags=re.DOTALL | re.MULTILINE)


# ---- the skill ------------------------------------------------------------------------------------


def _skill(agent: str, folder: Path, installation: Installation | None) -> Edit:
    """The page that tells a model when to take points and how to go back."""
    path = folder / _SKILLS[agent] / "waypoint" / "SKILL.md"
    before = _read(path)
    if before is not None and _SKILL_MARK not in before:
        notes = ("a skill of this name is there already and stays as it is",) if installation else ()
        return Edit(path, before, before, notes)
    if installation is None:
        return Edit(path, before, None)
    program = shlex.join(installation.command)
    session = f" -s {shlex.quote(installation.session)}" if installation.session else ""
    text = (Path(__file__).parent / "skill.md").read_text()
    text = re.sub(
        r"^WAYPOINT (\w+)\b(?! -s)", lambda verb: f"{program} {verb[1]}{session}", text, flags=re.MULTILINE
    )
    return Edit(path, before, text.replace("WAYPOINT ", f"{program} "))


# ---- files ---------------------------------------------------------------------------------------


class _Part(Protocol):
    """What is ours in a JSON file."""

    def is_done(self, content: Json) -> bool:
        """Whether the file is as it should be. UsageError for one of another form."""

    def without(self, text: str) -> str | None:
        """The text without ours; None if nothing is left of the file."""

    def added(self, text: str) -> str:
        """The text with ours, as it should be."""


def _json(path: Path, part: _Part) -> Edit:
    before = _read(path)
    mark, text = ("\ufeff", before[1:]) if before and before[0] == "\ufeff" else ("", before)
    try:
        content = json.loads(text) if text and text.strip() else {}
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}", hint=_NOT_CHANGED) from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a JSON object", hint=_NOT_CHANGED)
    try:
        done = part.is_done(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=_NOT_CHANGED) from error
    notes = part.notes(content) if isinstance(part, _Server) else ()
    if done:
        return Edit(path, before, before, notes)
    if text is not None and not text.strip():
        text = _NOTHING + text
    rest = part.without(text) if text is not None else None
    after = part.added(_NEW if rest is None else rest)
    if after == _NEW:
        return Edit(path, before, None, notes)
    return Edit(path, before, mark + after.removeprefix(_NOTHING), notes)


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()  # read_text would change the ends of lines
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="it was not changed") from error


_EDITS: dict[str, Callable[[Path, Installation | None], list[Edit]]] = {"claude": _claude, "codex": _codex}
