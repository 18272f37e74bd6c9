"""Running commands: in the shell of a session, or as a program beside it."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from waypoint.core.boxes import Boxes
from waypoint.core.live import Live, Program, start_environment
from waypoint.core.registry import Registry
from waypoint.errors import NotFound, UsageError
from waypoint.kernel import faults
from waypoint.model import Actor, RunResult
from waypoint.store.sessions import SessionRow
from waypoint.terminal.command import OUTPUT_LIMIT_BYTES

_LAST_OUTPUT_SECONDS = 1.0
"""After a program has ended: how long its children may hold its pipe before its output counts as complete."""


class Commands:
    """Commands and programs in the sessions of one home."""

    def __init__(self, registry: Registry, boxes: Boxes) -> None:
        self._registry, self._boxes = registry, boxes

    def run(
        self,
        row: SessionRow,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        on_terminal: bool = False,
        limit: int | None = None,
        on_output: Callable[[bytes], None] | None = None,
        plain: bool = False,
        actor: Actor = "person",
    ) -> RunResult:
        """A command in the shell of a session."""
        live = self._registry.live(row)
        with self._registry.death_named(row, live):
            return live.terminal.run(
                secrets.token_hex(6),
                command,
                timeout=timeout,
                stdin=stdin,
                on_terminal=on_terminal,
                limit=limit or OUTPUT_LIMIT_BYTES,
                on_output=on_output,
                plain=plain,
                actor=actor,
            )

    def spawn(
        self,
        row: SessionRow,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str],
        *,
        shell_env: bool,
    ) -> tuple[Program, tuple[int, int, int]]:
        """A program outside the shell. Its three pipes are the caller's to close: stdin (to write), stdout,
        stderr. `shell_env`: with the folder and the variables that the shell has now."""
        if not argv:
            raise UsageError("no program was given")
        live = self._registry.live(row)
        environment = _shell_environment(live) if shell_env else start_environment()
        if cwd is None:
            cwd = live.terminal.shell.cwd if shell_env and live.terminal.shell else "/root"
        words = [f"{name}={value}" for name, value in {**environment, **env}.items()]
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            ends: list[int] = []
            stdio: list[int] = []
            for writes in (True, False, False):
                reader, writer = os.pipe()
                end, other = (writer, reader) if writes else (reader, writer)
                ours.callback(os.close, end)
                theirs.callback(os.close, other)
                ends.append(end)
                stdio.append(other)
            faults.reach("spawn.piped")
            program = self._start(live, argv, cwd, words, (stdio[0], stdio[1], stdio[2]), ends)
            ours.pop_all()
        return program, (ends[0], ends[1], ends[2])

    def run_beside(
        self, live: Live, argv: Sequence[str], cwd: str, environment: Mapping[str, str], timeout: float
    ) -> RunResult:
        """A program outside the shell, run to its end; its output and errors together."""
        words = [f"{name}={value}" for name, value in environment.items()]
        started = time.monotonic()
        reader, writer = os.pipe()
        no_input, unused = os.pipe()
        with os.fdopen(reader, "rb") as output:
            try:
                program = self._start(live, argv, cwd, words, (no_input, writer, writer), (unused, reader))
            finally:
                for fd in (no_input, writer, unused):
                    os.close(fd)
            collected = bytearray()
            reading = threading.Thread(target=lambda: collected.extend(output.read()), daemon=True)
            reading.start()
            timed_out = not program.ended.wait(timeout)
            if timed_out and (host_pid := live.box.host_pid(program.pid)):
                with contextlib.suppress(OSError):
                    os.killpg(host_pid, signal.SIGKILL)
            reading.join(_LAST_OUTPUT_SECONDS)
        return RunResult(
            exit_code=program.exit_code,
            output=bytes(collected).decode(errors="replace"),
            duration_ms=round((time.monotonic() - started) * 1000, 3),
            timed_out=timed_out,
            output_bytes=len(collected),
        )

    def _start(
        self,
        live: Live,
        argv: Sequence[str],
        cwd: str,
        environment: Sequence[str],
        stdio: tuple[int, int, int],
        ends: Sequence[int],
    ) -> Program:
        """`ends`: our ends of the program's pipes, the one to its standard input first."""
        with live.state:
            try:
                live.box.keeper.keep_outputs(ends[1:])
                faults.reach("spawn.kept")
                pid = live.box.keeper.start("program", cwd, argv, environment, stdio)
            except OSError as error:
                raise NotFound(
                    f"cannot start {argv[0]!r} in {cwd}: {os.strerror(error.errno or 0)}",
                    hint="both are looked up inside the session",
                ) from error
            faults.reach("spawn.started")
            program = Program(pid, tuple(os.fstat(end).st_ino for end in ends))
            with live.exits:
                live.programs[pid] = program
                early = live.early_exits.pop(pid, None)
            if early is not None:
                self._boxes.record_exit(live, pid, early)
        return program


def _shell_environment(live: Live) -> dict[str, str]:
    """What the shell exports at this moment; only the shell itself knows."""
    result = live.terminal.run(secrets.token_hex(6), "command env -0 | command base64 -w0", silent=True)
    words = base64.b64decode(result.output).split(b"\0")
    return dict(os.fsdecode(word).split("=", 1) for word in words if b"=" in word)
