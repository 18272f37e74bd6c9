"""`waypoint exec`: a command in a session's shell, or (--pipe) a program beside the shell."""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from waypoint import errors
from waypoint.api.request import Result
from waypoint.api.sessions import Exec, Signal, Spawn, Type
from waypoint.cli import render
from waypoint.cli.console import report
from waypoint.cli.spec import (
    SESSION,
    argument,
    box_path,
    command,
    flag,
    positive,
    remainder,
    variable,
    verb,
)

if TYPE_CHECKING:
    from types import FrameType

    from waypoint.cli.console import Console
    from waypoint.client.program import Program
    from waypoint.model import Approval, ApprovalMode, RunResult

_TIMED_OUT = 124
_CTRL_C = b"\x03"
_READ_BYTES = 1 << 16


class ProgramResult(Result, frozen=True):
    """What a program beside the shell did. `base64`: its output, if that is not valid UTF-8."""

    exit_code: int | None
    output: str
    stderr: str
    duration_ms: float
    timed_out: bool
    truncated: bool = False
    base64: str | UnsetType = UNSET


_ON_APPROVAL = (
    argument(
        "--on-approval",
        choices=("wait", "deny"),
        help="a command that needs approval waits for it, or is refused at once (default: wait; with"
        " WAYPOINT_ACTOR=agent deny, if no person is at the terminal or attached to the session)",
    ),
    argument(
        "--approval-timeout",
        metavar="SEC",
        type=positive,
        help="wait no longer than that for approval; --timeout is for the command alone then",
    ),
)


@verb(
    "exec",
    "run a command in a session's shell",
    SESSION,
    argument(
        "--timeout",
        metavar="SEC",
        type=positive,
        help="interrupt the command after that time; exit status 124. Waiting for approval counts, unless"
        " --approval-timeout is given",
    ),
    *_ON_APPROVAL,
    flag("--stdin", help="pass this process's stdin to the command"),
    flag("--tty", help="let the command read from the session's terminal; pagers and prompts work"),
    flag("--plain", help="take escape sequences (colours and the like) out of the output"),
    flag(
        "--pipe",
        help="run a program beside the shell, without a terminal, with its own stdin, stdout, stderr",
    ),
    argument("--cwd", metavar="DIR", type=box_path, help="run it in this folder"),
    argument(
        "--env",
        metavar="K=V",
        action="append",
        default=[],
        type=variable,
        help="a variable for this command alone",
    ),
    argument(
        "--user",
        metavar="USER[:GROUP]",
        help="run it as this user of the session (a name or a number)",
    ),
    flag("--shell-env", help="with --pipe: use the shell's working folder and variables"),
    command("the command; several words are joined with spaces, as ssh does"),
    examples=(
        "waypoint exec -s work 'cd /srv && export TOKEN=abc'",
        "waypoint exec -s work --timeout 60 --cwd /srv --env CI=1 make test",
        "tar c . | waypoint exec -s work --pipe tar x -C /srv",
    ),
    about="It is the same shell that `waypoint shell` shows: the effects of earlier `cd` and `export` are"
    " still there. The exit status is that of the command. Its stdin is empty unless --stdin or --tty is"
    " given. Without --tty, pagers, git's editor and questions of git, ssh and apt are off for this command:"
    " PAGER, GIT_PAGER and SYSTEMD_PAGER are cat, MANPAGER is sed, GIT_EDITOR is `:`,"
    " GIT_SEQUENCE_EDITOR is false, GIT_TERMINAL_PROMPT is 0, SSH_ASKPASS is false with"
    " SSH_ASKPASS_REQUIRE=force unless the shell has its own, DEBIAN_FRONTEND is noninteractive,"
    " APT_LISTCHANGES_FRONTEND is none. A variable of these that the command names is left as it is. Ctrl-C"
    " interrupts the command; a second Ctrl-C stops waiting for it. With --cwd or --env a subshell runs it:"
    " what it changes of the shell does not last. With --user it runs beside the shell, unless that is the"
    " session's own user. A program that cannot be started (--pipe) makes the exit status 127 when it does"
    " not exist and 126 otherwise. Options stand before the command.",
    json={"": "exec", "--pipe": ProgramResult},
)
def exec_(console: Console) -> int:
    words = remainder(console.arguments.command)
    if not words:
        raise errors.UsageError("no command given", hint="waypoint exec [-s SESSION] CMD…")
    if console.arguments.pipe:
        return _run_beside_shell(console, words)
    _refuse_pipe_options(console.arguments)
    return _run_in_shell(console, " ".join(words))


def _refuse_pipe_options(arguments: argparse.Namespace) -> None:
    if arguments.shell_env:
        raise errors.UsageError("--shell-env needs --pipe", hint="in the shell it is so without it")


# In the shell ---------------------------------------------------------------------------------------------


def _run_in_shell(console: Console, command: str) -> int:
    arguments = console.arguments
    request = Exec(
        session=console.session,
        command=command,
        timeout=arguments.timeout,
        stdin=sys.stdin.buffer.read() if arguments.stdin else None,
        on_terminal=arguments.tty,
        stream=not console.json,
        plain=arguments.plain,
        cwd=arguments.cwd,
        env=dict(arguments.env),
        user=arguments.user,
        actor=console.actor,
        on_approval=_approval_mode(console),
        approval_timeout=arguments.approval_timeout,
    )
    printer = _OutputPrinter()
    waits_for_approval = False

    def on_event(event: Mapping[str, Any]) -> None:
        nonlocal waits_for_approval
        if "approval" not in event:
            printer.print_event(event)
            return
        waits_for_approval = event["approval"]["state"] == "waiting"

    def interrupt() -> None:
        if waits_for_approval:
            raise KeyboardInterrupt  # nothing runs yet; the request is withdrawn
        _type(console, _CTRL_C)

    with _on_interrupt(interrupt):
        result = console.transport.ask(
            request, on_event=on_event, on_approval=lambda approval: _ask_approval(console, approval)
        )
    _show_warnings(console, result.warnings)
    if console.json:
        console.result(result, None)
    else:
        printer.print_rest(result)
    if result.timed_out:
        console.say(f"timed out after {render.milliseconds(result.duration_ms)}")
    if result.notice:
        console.say(result.notice)
    if result.timed_out:
        return _TIMED_OUT
    return 1 if result.exit_code is None else result.exit_code


class _OutputPrinter:
    """Prints a command's output as it arrives, and what is missing at the end.

    Output that is not text arrives in base64. If characters were replaced, the text is not what the command
    printed: from there on nothing is printed before the end, when the exact bytes are known.
    """

    def __init__(self) -> None:
        self._printed = bytearray()
        self._inexact = False

    def print_event(self, event: Mapping[str, Any]) -> None:
        if self._inexact:
            return
        if "base64" in event:
            self._print(base64.b64decode(event["base64"]))
            return
        exact, replacement, _ = event["output"].partition("\ufffd")
        self._inexact = bool(replacement)
        self._print(exact.encode())

    def print_rest(self, result: RunResult) -> None:
        """Prints what was not streamed, for example the end of an output that was too long to keep."""
        output = base64.b64decode(result.base64) if result.base64 else result.output.encode()
        if output.startswith(self._printed):
            self._print(output[len(self._printed) :])

    def _print(self, data: bytes) -> None:
        self._printed += data
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _type(console: Console, data: bytes) -> None:
    """On another connection: the first one waits for the result of the command."""
    transport = console.another_transport()
    with contextlib.closing(transport), contextlib.suppress(errors.WaypointError):
        transport.ask(Type(session=console.session, data=data))


@contextlib.contextmanager
def _on_interrupt(interrupt: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C calls `interrupt` and goes on waiting; the second one raises."""
    pressed = 0

    def handle(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        interrupt()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# Beside the shell -----------------------------------------------------------------------------------------


def _run_beside_shell(console: Console, argv: Sequence[str]) -> int:
    import time

    arguments = console.arguments
    if arguments.tty:
        raise errors.UsageError(
            "--tty and --pipe exclude each other", hint="with --pipe there is no terminal"
        )
    session = console.open_session()
    started = time.monotonic()
    request = Spawn(
        argv=tuple(argv),
        session=session.name,
        cwd=arguments.cwd,
        env=dict(arguments.env),
        shell_env=arguments.shell_env,
        user=arguments.user,
        timeout=arguments.timeout,
        actor=console.actor,
        on_approval=_approval_mode(console),
        approval_timeout=arguments.approval_timeout,
    )
    output = {"stdout": bytearray(), "stderr": bytearray()}
    try:
        program = pass_through(console, request, kept=output if console.json else None)
    except errors.CannotStart as error:
        report(error, json=console.json)
        return int(error.details.get("exit_code", error.exit_status))
    if console.json:
        duration_ms = round((time.monotonic() - started) * 1000, 3)
        console.result(_program_result(program, output, duration_ms, timed_out=program.timed_out), None)
    if program.timed_out:
        console.say(f"timed out after {arguments.timeout:g} s")
        return _TIMED_OUT
    return program_status(program)


def pass_through(
    console: Console, request: Spawn, *, stdin: bool = True, kept: Mapping[str, bytearray] | None = None
) -> Program:
    """Runs a program to its end, with the streams of this process. `stdin`: else its input is empty; `kept`:
    takes its output instead."""
    import threading

    from waypoint.client.program import Program

    connection, answer = console.transport.open(
        request, on_approval=lambda approval: _ask_approval(console, approval)
    )
    program = Program(connection, answer.pid, answer.warnings)
    _show_warnings(console, program.warnings)
    if stdin:
        threading.Thread(target=_forward_stdin, args=(program,), daemon=True).start()
    else:
        program.close_stdin()
    interrupt = _on_interrupt(lambda: _send_signal(console, request.session, program.pid, "INT"))
    with interrupt, contextlib.closing(program):
        for stream, data in program.events():
            if kept is not None:
                kept[stream] += data
            else:
                file = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
                file.write(data)
                file.flush()
    return program


def program_status(program: Program) -> int:
    """The exit status of a program as a shell has it."""
    code = program.exit_code
    return 1 if code is None else code if code >= 0 else 128 - code


def _program_result(
    program: Program, output: Mapping[str, bytearray], duration_ms: float, *, timed_out: bool
) -> ProgramResult:
    text = output["stdout"].decode(errors="replace")
    return ProgramResult(
        exit_code=program.exit_code,
        output=text,
        stderr=output["stderr"].decode(errors="replace"),
        duration_ms=duration_ms,
        timed_out=timed_out,
        base64=UNSET if output["stdout"] == text.encode() else base64.b64encode(output["stdout"]).decode(),
    )


def _forward_stdin(program: Program) -> None:
    from waypoint.api.wire import Closed

    with contextlib.suppress(Closed, OSError, ValueError):  # the program may end before its input does
        while data := os.read(sys.stdin.fileno(), _READ_BYTES):
            program.write(data)
        program.close_stdin()


def _send_signal(console: Console, session: str | None, pid: int, name: str) -> None:
    transport = console.another_transport()
    request = Signal(session=session, pid=pid, signal=signal.Signals[f"SIG{name}"])
    with contextlib.closing(transport), contextlib.suppress(errors.WaypointError):
        transport.ask(request)


# The policy -----------------------------------------------------------------------------------------------


def _approval_mode(console: Console) -> ApprovalMode | None:
    """What --on-approval says; by default a command waits where a person can be asked."""
    mode: ApprovalMode | None = console.arguments.on_approval
    return mode or ("wait" if console.can_ask else None)


def _ask_approval(console: Console, approval: Approval) -> bool | None:
    """Asks the user about a command that waits for approval. None: the user cannot be asked here, or the
    decision has come from elsewhere."""
    console.warn(f"this command needs approval ({approval.class_})")
    for line in approval.review:
        console.aside(line)
    if console.can_ask:
        return console.ask_unless("Run it?", console.transport.asked_on)
    until = render.clock(approval.expires_at)
    console.aside(
        f"  waiting until {until}: `waypoint approve {approval.id}`, or `waypoint deny {approval.id}`"
    )
    return None


def _show_warnings(console: Console, warnings: Sequence[str]) -> None:
    for warning in warnings:
        console.warn(render.shown(warning))
