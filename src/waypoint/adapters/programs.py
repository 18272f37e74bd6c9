"""Programs of a session, run to their end as frameworks expect: a result also where nothing could run.

They are an agent's: the policy of the home applies, and what needs approval is refused, since no person is
there. Their standard input is empty.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import waypoint
import waypoint.aio
from waypoint import errors
from waypoint.api import wire

NOT_PERMITTED = 126
"""The exit code of what may not run, as of a shell."""
HELPER_SECONDS = 60.0
"""For small programs that an adapter runs for itself."""
MOST_OUTPUT_BYTES = 16 << 20
"""What is kept of each stream of a program. It goes on, and the rest is dropped."""
REFUSALS = (errors.CannotStart, errors.NotFound, errors.PolicyDenied)
"""What `spawn` raises of a program that cannot or may not run."""


@dataclass
class Ended:
    """What came of a program."""

    exit_code: int = 0
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    timed_out: bool = False
    truncated: bool = False
    refusal: errors.WaypointError | None = None
    """Why nothing ran. Its message is in `stderr`."""

    @property
    def output(self) -> str:
        """Both streams as text, stderr last. (`merged` keeps what was printed in order.)"""
        return (self.stdout + self.stderr).decode(errors="replace")

    def add(self, stream: str, data: bytes) -> None:
        kept = self.stdout if stream == "stdout" else self.stderr
        room = MOST_OUTPUT_BYTES - len(kept)
        self.truncated |= len(data) > room
        kept += data[:room]


def refused(error: errors.WaypointError) -> Ended:
    """A program that did not start, as a shell would show it."""
    exit_code = int(error.details.get("exit_code", NOT_PERMITTED))
    return Ended(exit_code, stderr=bytearray(f"{error.message}\n".encode()), refusal=error)


def merged(command: str | Sequence[str]) -> list[str]:
    """A bash that runs a command, or a program, with stderr going where stdout goes."""
    if not isinstance(command, str):
        command = f"exec {shlex.join(command)}"
    # In one line: the shell counts lines in its messages.
    return ["bash", "-c", f"exec 2>&1; {command}"]


def run(session: waypoint.Session, argv: Sequence[str], **options: Any) -> Ended:
    """Runs a program to its end. `options`: of `Session.spawn`."""
    try:
        program = session.spawn(argv, on_approval="deny", **options)
    except REFUSALS as error:
        return refused(error)
    ended = Ended()
    try:
        with contextlib.suppress(wire.Closed):  # its end is read below
            program.close_stdin()
        for stream, data in program.events():
            ended.add(stream, data)
    finally:
        if program.exit_code is None:
            program.kill()
        program.close()
    ended.exit_code, ended.timed_out = program.exit_code or 0, program.timed_out
    return ended


def folder_command(folder: str, user: str | None) -> list[str]:
    """A program that makes a folder, and gives it to a user. It is root's to run."""
    script = 'mkdir -p -- "$1" && { [ -z "$2" ] || chown "$2": -- "$1"; }'
    return ["/bin/sh", "-c", script, "sh", folder, user or ""]


def make_folder(session: waypoint.Session, folder: str, user: str | None = None) -> None:
    """Makes a working folder, which belongs to the session's user. UsageError when it cannot be made."""
    command = folder_command(folder, user)
    _require_folder(folder, run(session, command, cwd="/", user="root", timeout=HELPER_SECONDS))


def _require_folder(folder: str, made: Ended) -> None:
    if isinstance(made.refusal, errors.NotFound):
        raise made.refusal  # the session is gone
    if made.exit_code:
        raise errors.UsageError(f"the working folder {folder} cannot be made: {made.output.strip()}")


async def run_async(session: waypoint.aio.Session, argv: Sequence[str], **options: Any) -> Ended:
    """The same with asyncio. A task that is cancelled ends its program."""
    try:
        program = await session.spawn(argv, on_approval="deny", **options)
    except REFUSALS as error:
        return refused(error)
    ended = Ended()
    try:
        with contextlib.suppress(wire.Closed):
            await program.close_stdin()
        async for stream, data in program.events():
            ended.add(stream, data)
    finally:
        if program.exit_code is None:
            await program.kill()
        await program.close()
    ended.exit_code, ended.timed_out = program.exit_code or 0, program.timed_out
    return ended


async def make_folder_async(session: waypoint.aio.Session, folder: str, user: str | None = None) -> None:
    """`make_folder` with asyncio."""
    command = folder_command(folder, user)
    made = await run_async(session, command, cwd="/", user="root", timeout=HELPER_SECONDS)
    _require_folder(folder, made)
