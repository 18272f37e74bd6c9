"""Sessions as they run: starting and ending them, commands, programs, the terminal."""

from __future__ import annotations

import contextlib
import shlex
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from waypoint.api import sessions as api
from waypoint.api import wire
from waypoint.api.request import Nothing
from waypoint.core.commands import end_program
from waypoint.core.gate import Asker, in_place, told
from waypoint.core.live import Live
from waypoint.daemon.connection import Answered, Connection
from waypoint.daemon.streams import ProgramStreams, forward_output, serve_terminal
from waypoint.errors import WaypointError
from waypoint.kernel import faults
from waypoint.model import Removal, RunResult, Size
from waypoint.policy.rules import check as check_policy
from waypoint.terminal.recording import ProgramOutput, given_to

if TYPE_CHECKING:
    from waypoint.daemon.app import App


def new(app: App, _: Connection, request: api.New) -> api.OneSession:
    policy = request.policy
    if policy is not None:
        check_policy(policy)  # before anything is made
        if request.join and request.name and app.store.sessions.find(request.name):
            policy = None  # a session that exists keeps its rules
    session = app.sessions.new(request.name, request.options, request.size, join=request.join)
    if policy is not None:
        app.store.sessions.set_policy(session.id, policy)
    if request.auto:
        app.store.sessions.set_auto(session.id, auto=True)
        session = app.registry.describe(app.registry.find(session.id))
    return api.OneSession(session=session)


def ls(app: App, _: Connection, __: api.Ls) -> api.Sessions:
    return api.Sessions(sessions=tuple(app.registry.describe_all()))


def session(app: App, _: Connection, request: api.Session) -> api.OneSession:
    return api.OneSession(session=app.registry.describe(app.registry.find(request.session)))


def park(app: App, _: Connection, request: api.Park) -> api.Parked:
    session, point = app.sessions.park(app.registry.find(request.session), request.name)
    return api.Parked(session=session, checkpoint=point)


def stop(app: App, _: Connection, request: api.Stop) -> api.Parked:
    row = app.registry.find(request.session)
    session, point = app.sessions.stop(row, discard=request.discard)
    return api.Parked(session=session, checkpoint=point)


def rm(app: App, _: Connection, request: api.Rm) -> Removal:
    rows = [app.registry.find(name) for name in request.sessions]
    return app.removals.plan(rows) if request.dry_run else app.removals.remove(rows)


def auto(app: App, _: Connection, request: api.Auto) -> api.OneSession:
    row = app.registry.find(request.session)
    app.store.sessions.set_auto(row.id, auto=request.on)
    return api.OneSession(session=app.registry.describe(app.registry.find(row.id)))


# ---- commands and programs -----------------------------------------------------------------------


def _asker(
    connection: Connection,
    request: api.Exec | api.Spawn,
    patience_seconds: float | None,
    require_free: Callable[[Live], None],
) -> Asker:
    """The client: it is told when a command has to wait, and the wait ends when the client goes away."""
    return Asker(
        actor=request.actor,
        socket=connection.socket.fileno(),
        announce=lambda approval: connection.event({"approval": approval}),
        on_approval=request.on_approval,
        patience_seconds=patience_seconds,
        require_free=require_free,
    )


def exec_(app: App, connection: Connection, request: api.Exec) -> RunResult:
    if not request.stream:
        return _run(app, connection, request, None)
    with forward_output(connection) as on_output:
        return _run(app, connection, request, on_output)


def _run(
    app: App, connection: Connection, request: api.Exec, on_output: Callable[[bytes], None] | None
) -> RunResult:
    row, timeout, started = app.registry.find(request.session), request.timeout, time.monotonic()
    patience = timeout if request.approval_timeout is None else request.approval_timeout

    def require_free(live: Live) -> None:
        if request.user is None:  # another user's command runs beside the shell
            live.terminal.require_free()

    asker = _asker(connection, request, patience, require_free)
    line = in_place(request.command, request.cwd, request.env)
    shown = told(request.command, request.cwd, request.env)
    with app.gate.passing(row, line, asker, stdin=request.stdin, user=request.user, shown=shown) as passed:
        if timeout is not None and request.approval_timeout is None:
            timeout = max(0.0, timeout - (time.monotonic() - started))
        faults.reach("exec.passed")
        result = app.commands.run(
            row,
            request.command,
            timeout=timeout,
            stdin=request.stdin,
            on_terminal=request.on_terminal,
            limit=request.limit,
            on_output=on_output,
            plain=request.plain,
            actor=request.actor,
            cwd=request.cwd,
            env=request.env,
            user=request.user,
            when_ready=passed.require_same,
        )
        faults.reach("exec.ended")
        passed.ended(result.exit_code, timed_out=result.timed_out)
    if passed.warnings:
        result = msgspec.structs.replace(result, warnings=passed.warnings)
    # Before the answer: the next command must not be part of the point after this one.
    app.auto.after_command(row, request.command)
    return result


def interrupt(app: App, _: Connection, request: api.Interrupt) -> api.Interrupted:
    live = app.registry.live(app.registry.find(request.session))
    return api.Interrupted(interrupted=live.terminal.interrupt(request.command))


def spawn(app: App, connection: Connection, request: api.Spawn) -> Answered:
    row, argv = app.registry.find(request.session), list(request.argv)
    given = given_to(None, request.env, None, request.user)
    if request.shell_env:
        given["shell_env"] = True
    output = ProgramOutput(argv, request.cwd, given)

    def require_free(live: Live) -> None:
        if request.shell_env:  # the shell says what it exports
            live.terminal.require_free()

    timeout, started = request.timeout, time.monotonic()
    patience = timeout if request.approval_timeout is None else request.approval_timeout
    asker = _asker(connection, request, patience, require_free)
    judged = ["env", *(f"{name}={value}" for name, value in request.env.items()), *argv]
    timed_out = False
    shown = told(shlex.join(argv), None, request.env) if request.env else None
    with app.gate.passing(
        row, judged if request.env else argv, asker, user=request.user, cwd=request.cwd, shown=shown
    ) as passed:
        program, pipes = app.commands.spawn(
            row, argv, request.cwd, request.env, shell_env=request.shell_env, user=request.user
        )
        connection.result(api.Spawned(pid=program.pid, warnings=passed.warnings))
        streams = ProgramStreams(connection, pipes, output)
        if timeout is not None and request.approval_timeout is None:
            timeout = max(0.0, timeout - (time.monotonic() - started))
        if not program.ended.wait(timeout):
            timed_out = True
            end_program(program)
        passed.ended(program.exit_code, timed_out=timed_out)
    streams.finish()
    event = output.record(program.exit_code, timed_out=timed_out)
    with contextlib.suppress(WaypointError):
        live = app.registry.live(row)
        live.stream.add(event.kind, event.body, actor=request.actor, data=event.data)
    with contextlib.suppress(wire.Closed, OSError):
        if program.exit_code is not None:
            connection.result(api.Exited(exit_code=program.exit_code, timed_out=timed_out))
        # The thread that feeds the program reads from here: neither side would notice a mere close.
        connection.socket.shutdown(socket.SHUT_RDWR)
    return Answered()


def signal(app: App, _: Connection, request: api.Signal) -> api.Signalled:
    row = app.registry.find(request.session)
    return api.Signalled(sent=app.commands.signal(row, request.pid, request.signal))


# ---- the terminal --------------------------------------------------------------------------------


def attach(app: App, connection: Connection, request: api.Attach) -> Answered:
    row = app.registry.find(request.session)
    live = app.registry.live(row)
    connection.result(api.OneSession(session=app.registry.describe(row)))
    serve_terminal(app, connection, row, live, Size(rows=request.rows, columns=request.columns))
    return Answered()


def type_(app: App, _: Connection, request: api.Type) -> Nothing:
    app.registry.live(app.registry.find(request.session)).terminal.write(request.data)
    return Nothing()


def screen(app: App, _: Connection, request: api.Screen) -> api.ScreenResult:
    terminal = app.registry.live(app.registry.find(request.session)).terminal
    with terminal.lock:
        shown = terminal.screen
        return api.ScreenResult(
            text=shown.text(), rows=shown.rows, columns=shown.columns, cursor=shown.cursor, title=shown.title
        )
