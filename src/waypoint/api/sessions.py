"""Requests about sessions as they run: starting and ending them, commands, programs, the terminal.

The handlers are in daemon/verbs/sessions.py.
"""

from __future__ import annotations

import msgspec

from waypoint import model
from waypoint.api.request import Count, Nothing, Request, Result, Seconds, Some


class OneSession(Result, frozen=True):
    """A session."""

    session: model.Session


class Sessions(Result, frozen=True):
    """Sessions."""

    sessions: tuple[model.Session, ...]


class Parked(Result, frozen=True):
    """A session that was stopped, and the point that holds it."""

    session: model.Session
    checkpoint: model.Checkpoint


class Removed(Result, frozen=True):
    """The names of what was deleted."""

    removed: tuple[str, ...]


class Interrupted(Result, frozen=True):
    """Whether there was a command to interrupt."""

    interrupted: bool


class Spawned(Result, frozen=True):
    """A program that was started."""

    pid: int
    warnings: tuple[str, ...] = ()


class Signalled(Result, frozen=True):
    """Whether there was a program to send it to."""

    sent: bool


class Exited(Result, frozen=True):
    """How a spawned program ended: the second result on its connection."""

    exit_code: int
    timed_out: bool = False


class ScreenResult(Result, frozen=True):
    """What a terminal shows."""

    text: str
    rows: int
    columns: int
    cursor: tuple[int, int]
    title: str


class New(Request[OneSession], frozen=True):
    """Starts a session. `join`: one of that name that exists is the answer, with the policy it has."""

    name: str | None = None
    options: model.BoxOptions = model.BoxOptions()
    size: model.Size = model.Size()
    join: bool = False
    auto: bool = False
    policy: str | None = None


class Ls(Request[Sessions], frozen=True):
    """All sessions."""


class Session(Request[OneSession], frozen=True):
    """One session as it is now."""

    session: str | None = None


class Park(Request[Parked], frozen=True):
    """Takes a checkpoint of a session and stops it. `name`: of that checkpoint."""

    session: str | None = None
    name: str | None = None


class Stop(Request[Parked], frozen=True):
    """Ends a session and keeps its points. `discard`: also what has changed since the last one."""

    session: str | None = None
    discard: bool = False


class Rm(Request[model.Removal], frozen=True):
    """Ends sessions and deletes their points, but for those that other sessions need: they are handed over.
    `dry_run`: only says what would go and stay."""

    sessions: Some
    dry_run: bool = False


class Auto(Request[OneSession], frozen=True):
    """Whether a point is taken after each command that changed something."""

    on: bool
    session: str | None = None


class Exec(Request[model.RunResult], frozen=True):
    """Runs a command in the shell of a session. `stream`: the output also comes in events. `limit`: the most
    bytes of output that are kept. `on_terminal`: input and output are those of the terminal, and programs may
    start pagers and ask questions there. `plain`: no escape sequences in the output. `cwd`, `env`: for this
    command only, which then runs in a subshell. `user`: who runs it, beside the shell unless it is the
    session's own user.

    `on_approval`: what happens if it needs approval. By default it waits; that of an agent waits only if a
    person is attached to the session. `approval_timeout`: the longest wait. Without it `timeout` is for both,
    the wait and the command."""

    command: str
    session: str | None = None
    timeout: Seconds | None = None
    stdin: bytes | None = None
    on_terminal: bool = False
    limit: Count | None = None
    stream: bool = False
    plain: bool = False
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    user: str | None = None
    actor: model.Actor = "person"
    on_approval: model.ApprovalMode | None = None
    approval_timeout: Seconds | None = None


class Signal(Request[Signalled], frozen=True):
    """Sends a signal to a program that `spawn` started, and to its process group."""

    pid: model.Pid
    signal: model.SignalNumber
    session: str | None = None


class Interrupt(Request[Interrupted], frozen=True):
    """Ends the command that an `exec` waits for, as its timeout would. `command`: only that one."""

    session: str | None = None
    command: str | None = None


class Spawn(Request[Spawned], frozen=True):
    """Starts a program with pipes of its own; the connection carries them from then on. `timeout`: it is
    ended after that time, whether the client is there or not. `on_approval`, `approval_timeout`: as of
    Exec."""

    argv: Some
    session: str | None = None
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    shell_env: bool = False
    user: str | None = None
    timeout: Seconds | None = None
    actor: model.Actor = "person"
    on_approval: model.ApprovalMode | None = None
    approval_timeout: Seconds | None = None


class Attach(Request[OneSession], frozen=True):
    """Shows the terminal of a session on this connection."""

    session: str | None = None
    rows: model.TerminalLength = 24
    columns: model.TerminalLength = 80


class Type(Request[Nothing], frozen=True):
    """Types into the terminal of a session."""

    data: bytes
    session: str | None = None


class Screen(Request[ScreenResult], frozen=True):
    """What the terminal of a session shows."""

    session: str | None = None
