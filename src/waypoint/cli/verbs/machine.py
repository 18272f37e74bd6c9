"""This machine: what it has and needs, set-up and removal, the daemon."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from waypoint import errors
from waypoint.api.machine import DaemonStatus, DaemonStatusResult, DaemonStop, PoolStatus
from waypoint.api.request import Result
from waypoint.cli import render
from waypoint.cli.spec import YES, argument, count, flag, verb
from waypoint.model import from_plain

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.machine.doctor import Finding

_READ_BYTES = 1 << 16
_POLL_SECONDS = 0.2


class Check(Result, frozen=True):
    """One thing that was checked: what was found, what it is needed for, how to fix it, what to read."""

    name: str
    ok: bool
    version: str
    why: str
    fix: str
    optional: bool
    docs: str


class Diagnosis(Result, frozen=True):
    """Whether this machine has everything that is needed, and all checks."""

    ok: bool
    findings: tuple[Check, ...]


class SetupDone(Result, frozen=True):
    """The engine that was installed, the pool, the link that was made or was there, and the group whose
    members may use the daemon."""

    engine: dict[str, Any]
    pool: PoolStatus
    link: str | None
    group: str | None


class Uninstalled(Result, frozen=True):
    """False: there was nothing to remove."""

    removed: bool


class Running(DaemonStatusResult, frozen=True):
    """The state of a daemon that runs."""

    running: Literal[True] = True


class NotRunning(Result, frozen=True):
    """No daemon runs."""

    running: Literal[False] = False


class Stopped(Result, frozen=True):
    """False: no daemon ran."""

    stopped: bool


class LogLines(Result, frozen=True):
    """The last lines of the log."""

    lines: tuple[str, ...]


@verb(
    "doctor",
    "check whether this machine has what Waypoint needs",
    examples=("waypoint doctor", "waypoint doctor --json"),
    json=Diagnosis,
)
def doctor(console: Console) -> int:
    from waypoint.machine.doctor import examine

    with console.progress("checking this machine"):
        findings = examine(console.home.path)
    missing = [finding for finding in findings if not finding.ok and not finding.optional]
    width, paint = max(len(finding.name) for finding in findings), console.paint
    lines = [line for finding in findings for line in _finding_lines(finding, width, paint)]
    if missing:
        lines += ["", paint.bad(f"missing: {', '.join(finding.name for finding in missing)}")]
    else:
        lines += ["", paint.good("this machine has everything that Waypoint needs")]
    checks = from_plain(findings, tuple[Check, ...], from_attributes=True)
    console.result(Diagnosis(ok=not missing, findings=checks), "\n".join(lines))
    return errors.MachineError.exit_status if missing else 0


def _finding_lines(finding: Finding, width: int, paint: render.Paint) -> list[str]:
    mark = paint.good("✔") if finding.ok else paint.warn("–") if finding.optional else paint.bad("✖")
    indent = " " * (width + 4)
    lines = [
        f"{mark} {paint.bold(finding.name.ljust(width))}  {render.shown(finding.version)}".rstrip(),
        f"{indent}{paint.dim(finding.why)}",
    ]
    if not finding.ok and finding.fix:
        lines.append(f"{indent}{paint.warn('fix:')} {finding.fix}")
    if not finding.ok:
        lines.append(f"{indent}{paint.dim(f'more: {finding.docs}')}")
    return lines


@verb(
    "setup",
    "install what Waypoint needs on this machine",
    argument(
        "--link",
        metavar="DIR",
        nargs="?",
        const="/usr/local/bin",
        help="make `waypoint` a command: a link to this clone in a folder of PATH (default: /usr/local/bin)",
    ),
    argument(
        "--group",
        metavar="NAME",
        help="let the members of this group use the daemon without being root; WARNING: each of them is root"
        " on this machine then, because a session can bind any folder of it",
    ),
    flag("--no-group", help="let root alone use the daemon again"),
    examples=(
        "waypoint setup",
        "waypoint setup --link",
        "waypoint setup --link ~/bin",
        "waypoint setup --group dev",
    ),
    about="`waypoint new` runs it when needed. Running it twice does no harm. On a terminal it offers the"
    " link. Nothing that has the name already is replaced, and `waypoint uninstall` removes the link and lets"
    " no group in any more. A group has to exist, and only root starts a daemon.",
    json=SetupDone,
)
def setup(console: Console) -> int:
    from pathlib import Path

    from waypoint.machine import access, link
    from waypoint.machine.setup import require_root, set_up

    home, arguments = console.home, console.arguments
    wanted, group = arguments.link, arguments.group
    # Mistakes are told before anything is installed.
    require_root("setting up")
    if group and arguments.no_group:
        raise errors.UsageError("--group and --no-group exclude each other", hint="choose one")
    if group:
        access.require(group)
    linked = link.make(home.path, Path(os.path.expanduser(wanted))) if wanted else None
    engine = set_up(home.path, console.step)
    if group:
        access.allow(home, group)
    elif arguments.no_group and (denied := access.deny(home)):
        console.step(f"group {denied} may no longer use the daemon")
    pool = console.send(DaemonStatus(), "starting the daemon").pool
    linked, group = linked or console.offer_link(), access.allowed(home)
    if arguments.group:
        console.warn(
            f"a member of group {group} is root on this machine: a session can bind any folder of it"
        )
    lines = [
        f"engine  {engine.folder} · CRIU {engine.criu.version} ({engine.criu.source})",
        f"pool    {home.path} · {pool.kind} · {render.size(pool.free_bytes)} free",
        *([f"link    {linked}"] if linked else []),
        *([f"group   {group}: its members use the daemon as root does"] if group else []),
        f"ready: `{link.command()} demo` shows what it does, `{link.command()} new` starts a session",
    ]
    value = SetupDone(
        engine=msgspec.to_builtins(engine, enc_hook=str),
        pool=pool,
        link=str(linked) if linked else None,
        group=group,
    )
    console.result(value, "\n".join(lines))
    return 0


@verb(
    "uninstall",
    "remove all sessions, all checkpoints and what set-up has installed",
    YES,
    examples=("waypoint uninstall",),
    json=Uninstalled,
)
def uninstall(console: Console) -> int:
    from waypoint.machine import access, link, setup

    home = console.home
    setup.require_root("uninstalling")
    if not home.path.exists():
        console.result(Uninstalled(removed=False), f"{home.path} does not exist")
        return 0
    console.confirm(
        f"Remove all sessions, all checkpoints and everything else in {home.path}?", action="uninstalling"
    )
    if os.path.exists(home.socket) or setup.current_engine(setup.engine_dir(home.path)) is not None:
        with console.progress("ending the sessions"):
            console.transport.ask(DaemonStop(sessions=True))
    for path in link.remove(home.path):
        console.step(f"removing {path}")
    if group := access.deny(home):
        console.step(f"group {group} may no longer use the daemon")
    setup.uninstall(home.path, console.step)
    console.result(Uninstalled(removed=True), f"removed {home.path}")
    return 0


# The daemon -----------------------------------------------------------------------------------------------


@verb(
    "daemon status",
    "show the state of the daemon",
    examples=("waypoint daemon status",),
    about="The daemon is started by the first verb that needs it.",
    json={"": Running, "without a daemon": NotRunning},
)
def daemon_status(console: Console) -> int:
    try:
        status = console.another_transport(start=False).ask(DaemonStatus())
    except errors.DaemonUnreachable:
        console.result(NotRunning(), "no daemon runs; the next verb that needs one starts it")
        return 0
    pool = status.pool
    used, total = render.size(pool.used_bytes), render.size(pool.total_bytes)
    lines = [
        f"pid       {status.pid}, version {status.version}, started {render.age(status.started_at)}",
        f"home      {status.home}",
        f"sessions  {status.sessions}",
        f"memory    {render.size(status.rss_bytes)}",
        f"pool      {pool.kind}, {used} of {total} used",
        *(f"warning   {warning}" for warning in status.warnings),
    ]
    console.result(Running(**msgspec.structs.asdict(status)), "\n".join(lines))
    return 0


@verb(
    "daemon stop",
    "stop the daemon",
    flag("--sessions", help="end the sessions too; their checkpoints stay"),
    YES,
    examples=("waypoint daemon stop", "waypoint daemon stop --sessions --yes"),
    about="Sessions go on without it, and the next verb starts it again.",
    json=Stopped,
)
def daemon_stop(console: Console) -> int:
    with_sessions = console.arguments.sessions
    if with_sessions:
        console.confirm("End all sessions and everything that runs in them?", action="ending all sessions")
    transport = console.another_transport(start=with_sessions)
    try:
        with console.progress("stopping the daemon"):
            transport.ask(DaemonStop(sessions=with_sessions))
    except errors.DaemonUnreachable:
        if with_sessions:
            raise
        console.result(Stopped(stopped=False), "no daemon runs")
        return 0
    what = "the daemon and all sessions" if with_sessions else "the daemon"
    console.result(Stopped(stopped=True), f"stopped {what}")
    return 0


@verb(
    "daemon logs",
    "show the log of the daemon",
    argument("-n", "--number", metavar="N", type=count, default=50, help="the last N lines (default: 50)"),
    flag("-f", "--follow", help="go on printing new lines"),
    examples=("waypoint daemon logs -n 20", "waypoint daemon logs -f"),
    json=LogLines,
)
def daemon_logs(console: Console) -> int:
    path, arguments = console.home.log, console.arguments
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()[-arguments.number :]
            console.result(LogLines(lines=tuple(lines)), "\n".join(lines))
            if arguments.follow and not console.json:
                sys.stdout.flush()
                _follow(file.fileno())
    except FileNotFoundError:
        raise errors.NotFound(f"there is no log yet: {path}", hint="no daemon has run in this home") from None
    except PermissionError:
        raise errors.NotRoot(f"only root can read {path}", hint="run it as root") from None
    return 0


def _follow(descriptor: int) -> None:
    """Prints what is added to a file, until interrupted."""
    import time

    try:
        while True:
            if data := os.read(descriptor, _READ_BYTES):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            else:
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        return
