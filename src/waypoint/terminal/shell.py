"""The shell of a terminal: its state, the marks it prints, and what is typed to run a command in it.

This is the daemon's half of a protocol whose other half is shell/integration.bash. The shell prints a mark,
an escape sequence in the manner of OSC 133, at its prompt and at the start and end of every command. Each
mark carries the shell's key, so that no program's output can be mistaken for one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from waypoint.api.hints import Do, Hint
from waypoint.errors import UsageError
from waypoint.model import Record

STASH, UNSTASH = b"\x18\x1ds", b"\x18\x1du"
"""Keys that put aside the line a user is typing, and bring it back."""
_PASTE, _PASTE_END = b"\x18\x1dp", b"\x1b[201~"
_MARK_START = b"\x1b]133;"
_MARK = re.compile(rb"\x1b\]133;([A-EJ])((?:;[^\x07\x1b]*)?)\x07")
_MAX_MARK_BYTES = 32 << 10
_MAX_TYPED_BYTES = 1 << 20
UNATTENDED = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "sed s/.\x08//g",
    "SYSTEMD_PAGER": "cat",
    "GIT_EDITOR": ":",
    "GIT_SEQUENCE_EDITOR": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
}
"""Variables of a command that does not read from the terminal. Its output goes to a terminal all the same, so
programs would start a pager or an editor or ask a question, and wait for ever. To a terminal man prints bold
letters twice, with a backspace between: sed takes that out. Git keeps the message that it would have an
editor change, or says that there is none. With the list of a rebase that would be a rebase that does nothing
and succeeds: it fails."""
_UNLESS_SET = {"SSH_ASKPASS": "false", "SSH_ASKPASS_REQUIRE": "force"}
"""The same for ssh, which git starts: a host that is not known is refused, and so is a password. A program
that the shell names there is asked."""


class Shell(Record, frozen=True):
    """What a checkpoint has to remember of a terminal's shell."""

    pid: int
    """0 while it is being started."""
    key: str
    ready: bool = False
    """Whether it waits for input at its prompt."""
    came_up: bool = False
    """Whether it has ever been ready."""
    prompting: bool = False
    """Whether its prompt is about to be drawn."""
    running: str | None = None
    """The id of the run it executes; "" for a command that a user typed, None at the prompt."""
    stashed: bool = False
    """Whether a line that a user was typing is put aside until the prompt is back."""
    cwd: str = "/"
    command: str | None = None
    """The command it executes, where that is known."""


# ---- marks ----------------------------------------------------------------------------------------


class MarkKind(StrEnum):
    """What a mark says; see shell/integration.bash."""

    PROMPT_NEXT = "A"
    PROMPT = "B"
    COMMAND_BEGIN = "C"
    COMMAND_END = "D"
    TYPED_LINE = "E"
    JOBS = "J"


_LAST_FIELD = {MarkKind.COMMAND_END: ";p=", MarkKind.TYPED_LINE: ";c="}
"""The field whose value may be any text, semicolons too: a folder, a command. It is the last one of its
mark."""


@dataclass(frozen=True)
class Mark:
    """One mark of a shell."""

    kind: MarkKind
    raw: bytes
    key: str
    run_id: str
    status: str
    """The exit status of the command that ended; "" where the mark does not have it."""
    stashed: bool
    is_new_line: bool
    """Whether the history has taken the typed line as a new one."""
    text: str
    """The folder or the typed line."""

    @property
    def exit_code(self) -> int | None:
        return int(self.status) if self.status.isdigit() else None


def _parse_mark(match: re.Match[bytes]) -> Mark:
    kind = MarkKind(match[1].decode())
    fields_text, text = match[2].decode(errors="replace"), ""
    if kind in _LAST_FIELD:
        fields_text, _, text = fields_text.partition(_LAST_FIELD[kind])
    words = fields_text.lstrip(";").split(";")
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    return Mark(
        kind=kind,
        raw=match[0],
        key=fields.get("k", ""),
        run_id=fields.get("r", ""),
        status=words[0] if kind == MarkKind.COMMAND_END else fields.get("s", ""),
        stashed=fields.get("l", "0") != "0",
        is_new_line=fields.get("n") != "0",
        text=text,
    )


class MarkReader:
    """Splits what a terminal prints into marks and the bytes between them, however the stream is cut into
    pieces."""

    def __init__(self) -> None:
        self._partial = b""
        """The beginning of what may become a mark."""

    def feed(self, data: bytes) -> Iterator[bytes | Mark]:
        data, self._partial = self._partial + data, b""
        position = 0
        while (start := data.find(_MARK_START, position)) >= 0:
            match = _MARK.match(data, start)
            if match is None:
                if b"\x07" not in data[start:] and len(data) - start < _MAX_MARK_BYTES:
                    self._partial = data[start:]
                    yield data[position:start]
                    return
                yield data[position : start + len(_MARK_START)]
                position = start + len(_MARK_START)
                continue
            yield data[position:start]
            yield _parse_mark(match)
            position = match.end()
        rest = data[position:]
        for length in range(min(len(_MARK_START) - 1, len(rest)), 0, -1):
            if _MARK_START.startswith(rest[-length:]):
                self._partial, rest = rest[-length:], rest[:-length]
                break
        yield rest


_HISTORY_LINE = re.compile(r"\s*\d+\*?\s{1,2}(.*)", re.DOTALL)


def history_command(mark: Mark) -> str | None:
    """The command in a TYPED_LINE mark, which is the last line of the shell's history with its number
    before it."""
    match = _HISTORY_LINE.fullmatch(mark.text.replace("\r\n", "\n").rstrip("\n"))
    return match[1] if match else None


# ---- typing a command -----------------------------------------------------------------------------


def keys_for(
    run_id: str,
    command: str,
    stdin: bytes | None,
    *,
    on_terminal: bool,
    silent: bool,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> bytes:
    """What is typed to run a command: one line, pasted, after the user's own line was put aside. With a
    folder or variables of its own the command runs in a subshell."""
    env = env or {}
    if len(command) + len(stdin or b"") + sum(map(len, env.values())) > _MAX_TYPED_BYTES:
        raise UsageError(
            "too much for a command and its input, which are typed into the shell",
            hint=Hint(Do("spawn", "argv"), " takes any amount of input"),
        )
    words = f"__waypoint_begin {'-' if silent else ''}{run_id} {_quoted(command.encode())}"
    if stdin is not None:
        # A variable cannot hold a NUL, but printf's format can name it.
        words += " " + _quoted(stdin.replace(b"\\", b"\\\\").replace(b"\0", b"\\0000"))
        source = ' < <(builtin printf %b "$__waypoint_input")'
    else:
        source = "" if on_terminal else " </dev/null"
    # `command` keeps the variables until the end of the eval, and `builtin` only until its first command. A
    # variable that the command names is left to it: what it exports has to last.
    variables = "" if on_terminal or silent else _unattended(command, env)
    evaluate = f'{variables}command eval "$__waypoint_command"'
    steps = [f"builtin cd -- {_quoted(os.fsencode(cwd))}"] if cwd is not None else []
    if env:
        assignments = (f"{name}={_quoted(os.fsencode(value))}" for name, value in env.items())
        steps.append(f"builtin export {' '.join(assignments)}")
    evaluate = (f"( {' && '.join([*steps, evaluate])} )" if steps else evaluate) + source
    condition = f"if __waypoint_again; then {evaluate}; else {evaluate}; fi"
    line = f" {words}; {condition}; {{ __waypoint_prompt first; }} 2>/dev/null"
    return STASH + _PASTE + line.encode() + _PASTE_END + b"\r"


def _unattended(command: str, env: Mapping[str, str]) -> str:
    values = {name: _quoted(value.encode()) for name, value in UNATTENDED.items()}
    values |= {name: f"${{{name}-{value}}}" for name, value in _UNLESS_SET.items()}
    names = [name for name in values if name not in env and not re.search(rf"\b{name}\b", command)]
    return "".join(f"{name}={values[name]} " for name in names)


def _quoted(data: bytes) -> str:
    """One word of bash that stands for these bytes, in characters that neither readline, history expansion
    nor any locale changes."""
    plain = b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-./:=+,@%^~#&()[]{}<>|;*?$"'
    letters = (chr(byte) if byte in plain else "\\n" if byte == 10 else f"\\{byte:03o}" for byte in data)
    return "$'" + "".join(letters) + "'"
