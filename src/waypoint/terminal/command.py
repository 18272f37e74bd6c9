"""A command that is run in a session's shell: its output, within a limit, and how it ends."""

from __future__ import annotations

import base64
import codecs
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from waypoint.model import Actor, RunResult
from waypoint.terminal.escapes import Stripper
from waypoint.terminal.recording import Excerpt

OUTPUT_LIMIT_BYTES = 1 << 20


@dataclass(eq=False)
class Run:
    """A command on its way through the shell."""

    id: str
    command: str
    output_limit_bytes: int = OUTPUT_LIMIT_BYTES
    on_output: Callable[[bytes], None] | None = None
    silent: bool = False
    """Neither shown to watchers nor kept in the shell's history."""
    actor: Actor = "person"
    given: Mapping[str, Any] | None = None
    """What belongs to it beside its text: a folder, variables, an input. For the trajectory."""
    stripper: Stripper | None = None
    """What takes escape sequences out of the output, if they are not wanted."""
    started_at: float = field(default_factory=time.monotonic)
    began: threading.Event = field(default_factory=threading.Event)
    """Set when its output starts, or when there will be none."""
    done: threading.Event = field(default_factory=threading.Event)
    job_notices: bytearray | None = None
    """What the shell printed about its jobs before the command: for the terminal, not part of the output."""
    exit_code: int | None = None
    timed_out: bool = False
    notice: str | None = None
    no_result: str | None = None
    """Why there will be no result: the session was restored or ended meanwhile."""
    _excerpt: Excerpt = field(init=False)
    _held_return: bool = False
    """Whether the last byte was a "\\r" that may belong to a "\\r\\n"."""

    def __post_init__(self) -> None:
        self._excerpt = Excerpt(self.output_limit_bytes // 2)

    def add_output(self, data: bytes) -> None:
        """Takes output of the command, as the terminal printed it. Turns the terminal's "\\r\\n" back into
        "\\n"."""
        if self._held_return:
            data = b"\r" + data
        self._held_return = data.endswith(b"\r")
        if self._held_return:
            data = data[:-1]
        self._keep(data.replace(b"\r\n", b"\n"))

    def finish_output(self) -> None:
        if self._held_return:
            self._held_return = False
            self._keep(b"\r")
        if self.on_output and self._excerpt.tail:
            self.on_output(self._output()[len(self._excerpt.head) :])

    def _keep(self, data: bytes) -> None:
        if self.stripper:
            data = self.stripper.feed(data)
        first = self._excerpt.add(data)
        if self.on_output and first:
            self.on_output(first)

    def _output(self) -> bytes:
        left_out = self._excerpt.left_out_bytes
        notice = f"\n[waypoint: {left_out:,} bytes left out here]\n".encode() if left_out else b""
        return bytes(self._excerpt.head) + notice + self._excerpt.tail

    def result(self) -> RunResult:
        """The answer for the caller; `base64` has the output where it is not valid UTF-8."""
        output = self._output()
        try:
            text, encoded = output.decode(), None
        except UnicodeDecodeError:
            text, encoded = codecs.decode(output, errors="replace"), base64.b64encode(output).decode()
        return RunResult(
            exit_code=self.exit_code,
            output=text,
            duration_ms=round((time.monotonic() - self.started_at) * 1000, 3),
            timed_out=self.timed_out,
            truncated=bool(self._excerpt.left_out_bytes),
            output_bytes=self._excerpt.total,
            base64=encoded,
            notice=self.notice,
        )
