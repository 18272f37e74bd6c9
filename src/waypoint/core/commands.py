"""Running commands: in the shell of a session, or as a program beside it."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import posixpath
import secrets
import select
import signal
import threading
from collections.abc import Callable, Mapping, Sequence

from waypoint.box.plan import check_variables
from waypoint.box.starter import StartFailed, Step, start
from waypoint.box.users import ROOT, User
from waypoint.core.boxes import Boxes
from waypoint.core.live import Live, Program, start_environment
from waypoint.core.observe import exported_variables
from waypoint.core.registry import DYING_SECONDS, Registry
from waypoint.errors import (
    CannotStart,
    MachineError,
    NotFound,
    SessionBusy,
    SessionDead,
    UsageError,
    WaypointError,
)
from waypoint.kernel import faults
from waypoint.model import Actor, RunResult
from waypoint.store.sessions import SessionRow
from waypoint.terminal.command import OUTPUT_LIMIT_BYTES, Run
from waypoint.terminal.escapes import Stripper
from waypoint.terminal.recording import ProgramOutput, given_to
from waypoint.terminal.shell import UNATTENDED

_LAST_OUTPUT_SECONDS = 1.0
"""After a program has ended: how long its children may hold its pipe before its output counts as complete."""
_TERMINATE_SECONDS = 2.0
_ENVIRONMENT_SECONDS = 30.0
_READ_BYTES = 1 << 16


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
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        when_ready: Callable[[], None] | None = None,
    ) -> RunResult:
        """A command in the shell of a session. With a folder or variables of its own it runs in a subshell:
        what it changes of the shell does not last. As another user it runs beside the shell. `when_ready` is
        called when it is its turn, and may refuse it."""
        live = self._registry.live(row)
        env = env or {}
        check_variables(env)
        if cwd is not None:
            cwd = _folder(live, cwd)
        someone = live.user(user) if user is not None else None
        if "\0" in command:
            raise UsageError("a command cannot contain a NUL byte")
        stripper = Stripper() if plain else None
        with self._registry.death_named(row, live):
            if someone is not None and someone != live.user():
                if on_terminal:
                    raise UsageError(
                        "a command of another user cannot have the session's terminal", hint="leave `tty` out"
                    )
                run = Run(
                    secrets.token_hex(6),
                    command,
                    limit or OUTPUT_LIMIT_BYTES,
                    on_output,
                    actor=actor,
                    stripper=stripper,
                )
                if when_ready:
                    when_ready()
                return self._run_as(live, run, someone, cwd, env, timeout, stdin)
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
                cwd=cwd,
                env=env,
                when_ready=when_ready,
            )

    def _run_as(
        self,
        live: Live,
        run: Run,
        user: User,
        cwd: str | None,
        env: Mapping[str, str],
        timeout: float | None,
        stdin: bytes | None,
    ) -> RunResult:
        """A command of another user, with the variables that the shell had at its last prompt."""
        live.terminal.wait_prompt()  # the shell writes them down there
        exported = exported_variables(live.box, live.terminal) or start_environment(user, live.options)
        attended = {name: value for name, value in UNATTENDED.items() if name not in run.command}
        environment = {**exported, **attended, **user.environment, **env}
        argv = ["/bin/bash", "-c", run.command]
        output = ProgramOutput(argv, cwd or live.terminal.cwd)
        folder = live.terminal.cwd if cwd is None else cwd
        result = self._run_to_end(
            live,
            run,
            argv,
            folder,
            environment,
            user,
            timeout=timeout,
            stdin=stdin,
            record=output,
            inherits_folder=cwd is None,
        )
        event = output.record(result.exit_code)
        given = {**given_to(cwd, env, stdin, user.name), "in_shell": True}
        body = {**event.body, "command": run.command, "given": given}
        live.stream.add(event.kind, body, actor=run.actor, data=event.data)
        return result

    def spawn(
        self,
        row: SessionRow,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str],
        *,
        shell_env: bool,
        user: str | None = None,
    ) -> tuple[Program, tuple[int, int, int]]:
        """A program outside the shell. Its three pipes are the caller's to close: stdin (to write), stdout,
        stderr. `shell_env`: with the folder and the variables that the shell has now."""
        if not argv:
            raise UsageError("no program was given")
        _check_words(argv, env, cwd)
        live = self._registry.live(row)
        someone = live.user(user)
        environment, cwd = _surroundings(
            live, row.name, someone, cwd, shell_env=shell_env, as_other=user is not None
        )
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
            program = self._start(live, argv, cwd, words, (stdio[0], stdio[1], stdio[2]), ends, someone)
            ours.pop_all()
        return program, (ends[0], ends[1], ends[2])

    def run_program(
        self,
        row: SessionRow,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str],
        *,
        shell_env: bool,
        user: str | None,
        timeout: float,
    ) -> RunResult:
        """A program outside the shell as `spawn` starts it, run to its end without input; its output and
        errors together."""
        _check_words(argv, env, cwd)
        live = self._registry.live(row)
        someone = live.user(user)
        environment, folder = _surroundings(
            live, row.name, someone, cwd, shell_env=shell_env, as_other=user is not None
        )
        run = Run(secrets.token_hex(6), argv[0])
        return self._run_to_end(live, run, argv, folder, {**environment, **env}, someone, timeout=timeout)

    def run_beside(
        self, live: Live, argv: Sequence[str], cwd: str, environment: Mapping[str, str], timeout: float
    ) -> RunResult:
        """A program outside the shell, run to its end; its output and errors together."""
        run = Run(secrets.token_hex(6), argv[-1])
        return self._run_to_end(live, run, argv, cwd, environment, live.user(), timeout=timeout)

    def run_as_root(
        self,
        live: Live,
        argv: Sequence[str],
        environment: Mapping[str, str],
        timeout: float,
        stdin: bytes | None = None,
    ) -> RunResult:
        """A program of root's outside the shell, run to its end in `/`; its output and errors together."""
        run = Run(secrets.token_hex(6), argv[-1])
        return self._run_to_end(live, run, argv, "/", environment, ROOT, timeout=timeout, stdin=stdin)

    def _run_to_end(
        self,
        live: Live,
        run: Run,
        argv: Sequence[str],
        cwd: str,
        environment: Mapping[str, str],
        user: User,
        *,
        timeout: float | None,
        stdin: bytes | None = None,
        record: ProgramOutput | None = None,
        inherits_folder: bool = False,
    ) -> RunResult:
        words = [f"{name}={value}" for name, value in environment.items()]
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            fds = [*os.pipe(), *os.pipe(), os.eventfd(0, os.EFD_CLOEXEC)]
            reader, writer, no_input, feed, end = fds
            for fd in (reader, feed, end):
                ours.callback(os.close, fd)
            for fd in (writer, no_input):
                theirs.callback(os.close, fd)
            program = self._start(
                live,
                argv,
                cwd,
                words,
                (no_input, writer, writer),
                (feed, reader),
                user,
                inherits_folder=inherits_folder,
            )
            theirs.close()
            ours.pop_all()
            threading.Thread(target=_feed, args=(feed, stdin or b""), daemon=True).start()
            reading = threading.Thread(target=_collect, args=(reader, end, run, record), daemon=True)
            reading.start()
        if not program.ended.wait(timeout):
            run.timed_out = True
            end_program(program)
        reading.join(_LAST_OUTPUT_SECONDS)
        os.eventfd_write(end, 1)
        reading.join()
        os.close(end)
        run.exit_code = program.exit_code
        run.finish_output()
        if program.exit_code is None and live.ended.is_set():
            raise SessionDead("the session was restored or ended meanwhile")
        return run.result()

    def signal(self, row: SessionRow, pid: int, number: int) -> bool:
        """Sends a signal to a program that was started outside the shell, and to what it has started in its
        process group. False when it has ended."""
        live = self._registry.live(row)
        with live.exits:
            program = live.programs.get(pid)
        return program is not None and send_signal(program, number)

    def _start(
        self,
        live: Live,
        argv: Sequence[str],
        cwd: str,
        environment: Sequence[str],
        stdio: tuple[int, int, int],
        ends: Sequence[int],
        user: User,
        *,
        inherits_folder: bool = False,
    ) -> Program:
        """`ends`: our ends of the program's pipes, the one to its standard input first."""
        if not user.is_root or live.box.userns:
            for fd in stdio:  # programs open them again, as /dev/stdout
                os.fchown(fd, *live.box.host_ids(user.uid, user.gid))
        with live.state:
            try:
                live.box.keeper.keep_outputs(ends[1:])
                faults.reach("spawn.kept")
                pid = start(
                    live.box.keeper,
                    "program",
                    cwd,
                    argv,
                    environment,
                    stdio,
                    user,
                    inherits_folder=inherits_folder,
                )
            except StartFailed as error:
                raise _cannot_start(live, argv[0], cwd, user, error) from error
            except OSError as error:
                if live.box.ends_within(DYING_SECONDS):
                    raise SessionDead("the session has just ended") from error
                raise MachineError(
                    f"{argv[0]!r} could not be started: {os.strerror(error.errno or 0)}",
                    hint="its box does not answer as it should; the daemon's log may know more",
                ) from error
            faults.reach("spawn.started")
            program = Program(pid, tuple(os.fstat(end).st_ino for end in ends), live.box)
            with live.exits:
                live.programs[pid] = program
                early = live.early_exits.pop(pid, None)
            if early is not None:
                self._boxes.record_exit(live, pid, early)
        return program


def send_signal(program: Program, number: int) -> bool:
    """Sends a signal to the process group of a program. False when it has ended."""
    host_pid = None if program.ended.is_set() else program.box.host_pid(program.pid)
    if host_pid is None:
        return False
    try:
        os.killpg(host_pid, number)
    except OSError:
        return False
    return True


def end_program(program: Program) -> None:
    """Ends a program that took too long: first in a way that it can handle."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        send_signal(program, number)
        if program.ended.wait(_TERMINATE_SECONDS):
            return


def _feed(fd: int, data: bytes) -> None:
    with os.fdopen(fd, "wb") as pipe, contextlib.suppress(OSError):
        pipe.write(data)


def _collect(reader: int, end: int, run: Run, record: ProgramOutput | None) -> None:
    """Takes what a program and its children print, until all of them have closed the pipe or `end` is set."""
    ready = select.poll()
    ready.register(reader, select.POLLIN)
    ready.register(end, select.POLLIN)
    with os.fdopen(reader, "rb", buffering=0) as output:
        while any(fd == reader for fd, _ in ready.poll()) and (data := output.read(_READ_BYTES)):
            run.add_output(data)
            if record:
                record.add(data)


def _folder(live: Live, path: str) -> str:
    """A folder of the session, from the root on."""
    if "\0" in path or not path:
        raise UsageError(f"{path!r} is no path")
    path = posixpath.join(live.terminal.cwd, path)
    if not live.has_folder(path):
        raise NotFound(f"there is no folder {path} in the session", hint="make it first", errno="ENOENT")
    return path


def _check_words(argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
    if any("\0" in word for word in (*argv, *env, *env.values(), cwd or "")):
        raise UsageError("a program's words, variables and folder cannot contain a NUL byte")
    if any(not name or "=" in name for name in env):
        raise UsageError("a variable needs a name without `=`")


def _cannot_start(live: Live, program: str, cwd: str, user: User, error: StartFailed) -> WaypointError:
    number = error.errno or 0
    name = errno.errorcode.get(number, str(number))
    if error.step is Step.USER:
        return MachineError(f"a program cannot be started as {user.name}: {error.strerror}", errno=name)
    hint = "it is looked up in the session"
    if not live.has_folder(cwd):
        hint = "there is no such folder in the session"
    elif error.step is Step.FOLDER:
        hint = f"{user.name} may not enter that folder"
    return CannotStart(
        f"cannot start {program!r} in {cwd}: {error.strerror}",
        hint=hint,
        errno=name,
        exit_code=127 if number == errno.ENOENT else 126,
    )


def _surroundings(
    live: Live, session: str, user: User, cwd: str | None, *, shell_env: bool, as_other: bool
) -> tuple[dict[str, str], str]:
    """The variables and the folder of a program outside the shell. `shell_env`: those that the shell has
    now; `as_other`: a user was named for it."""
    environment = start_environment(user, live.options, has_terminal=False)
    if shell_env:
        environment = _shell_environment(live) | (user.environment if as_other else {})
    environment["WAYPOINT_SESSION"] = session
    if cwd is None:
        shell = live.terminal.shell if shell_env else None
        cwd = shell.cwd if shell else live.first_folder(user)
    return environment, cwd


def _shell_environment(live: Live) -> dict[str, str]:
    """What the shell exports at this moment; only the shell itself knows."""
    command = "command env -0 | command base64 -w0"
    result = live.terminal.run(secrets.token_hex(6), command, silent=True, timeout=_ENVIRONMENT_SECONDS)
    if result.timed_out:
        raise SessionBusy("the shell does not say what it exports", hint="leave its variables out")
    words = base64.b64decode(result.output).split(b"\0")
    return dict(os.fsdecode(word).split("=", 1) for word in words if b"=" in word)
