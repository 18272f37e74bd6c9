"""Sessions: start, list, park, stop and remove them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from waypoint.api.sessions import Ls, New, Park, Rm, Stop
from waypoint.cli import render
from waypoint.cli.console import terminal_size
from waypoint.cli.spec import (
    SESSION_FIRST,
    YES,
    argument,
    box_path,
    byte_count,
    count,
    flag,
    positive,
    variable,
    verb,
)
from waypoint.errors import ConfirmationNeeded
from waypoint.model import Bind, BoxOptions, Session, Size
from waypoint.text.removal import describe_handed_over, describe_removal

if TYPE_CHECKING:
    from waypoint.cli.console import Console

_MOST_SPARES = 16


def _spares(text: str) -> int:
    if text == "off":
        return 0
    if not text.isdecimal() or int(text) > _MOST_SPARES:
        raise argparse.ArgumentTypeError(f"{text!r} is neither `off` nor a number up to {_MOST_SPARES}")
    return int(text)


def _bind(text: str) -> Bind:
    """`HOST:BOX` or `HOST:BOX:ro`."""
    host, *rest = text.split(":")
    if not (host and rest and rest[0] and rest[1:] in ([], ["ro"], ["rw"])):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:BOX or HOST:BOX:ro")
    return Bind(host=os.path.abspath(host), box=box_path(rest[0]), readonly=rest[1:] == ["ro"])


@verb(
    "new",
    "start a session",
    argument("name", metavar="NAME", nargs="?", help="its name (default: a free one is chosen)"),
    argument(
        "--base",
        metavar="DIR|NAME",
        default="/",
        help="the root file system below it: a folder, or an imported base (default: /)",
    ),
    argument(
        "--net",
        choices=("nat", "none", "host"),
        default="nat",
        help="nat: its own network behind this machine's address; none; host: this machine's network"
        " (default: nat)",
    ),
    argument(
        "--hide",
        metavar="PATH",
        action="append",
        default=[],
        type=box_path,
        help="a path that the session must not see",
    ),
    argument(
        "--bind",
        metavar="HOST:BOX[:ro]",
        action="append",
        default=[],
        type=_bind,
        help="show a path of this machine in the session; no checkpoint contains it",
    ),
    argument("--memory", metavar="SIZE", type=byte_count, help="memory limit: 512M, 2G"),
    argument("--cpus", metavar="N", type=positive, help="processor limit: 1.5"),
    argument("--pids", metavar="N", type=count, help="limit on the number of processes"),
    argument("--open-files", metavar="N", type=count, help="limit on the open files of a process"),
    argument("--disk", metavar="SIZE", type=byte_count, help="limit on what it takes of the pool: 20G"),
    argument(
        "--spares",
        metavar="N|off",
        type=_spares,
        help="how many of its points are kept restored ahead of time: restoring one takes milliseconds",
    ),
    argument(
        "--user",
        metavar="USER[:GROUP]",
        help="who runs its shell and its programs: a name or a number of the session (default: root)",
    ),
    argument(
        "--env",
        metavar="K=V",
        action="append",
        default=[],
        type=variable,
        help="a variable that its shell and its programs start with",
    ),
    argument("--cwd", metavar="DIR", help="the folder that its shell and its programs start in"),
    flag("--auto", help="take a point after each command that changed something"),
    argument("--policy", metavar="FILE", help="a TOML file with rules for the commands of this session"),
    flag("--privileged", help="without the restrictions of a container: only for programs that you trust"),
    flag("--userns", help="in a user namespace: root in the session has no rights on this machine"),
    flag("--no-userns", help="not in a user namespace, though WAYPOINT_USERNS=on makes that the default"),
    examples=(
        "waypoint new work",
        "waypoint new web --net none --memory 2G",
        "waypoint new old --base debian-12 --user www-data --env LANG=C",
    ),
    about="It sees this machine's files; what it writes goes to its own layer. Over a base that was imported"
    " from an image it starts with the user, the variables and the folder that the image names. The first"
    " session on a machine runs `waypoint setup`.",
)
def new(console: Console) -> int:
    arguments = console.arguments
    console.prepare()
    policy = None
    if arguments.policy is not None:
        from waypoint.cli.verbs.policy import read_policy

        policy = read_policy(arguments.policy)
    size = terminal_size()
    request = New(
        name=arguments.name,
        options=_box_options(arguments),
        size=Size(rows=size.lines, columns=size.columns),
        auto=arguments.auto,
        policy=policy,
    )
    result = console.send(request, "starting a session")
    name = result.session.name
    console.result(result, name)
    console.hint(f"waypoint shell {name}   attaches to it")
    console.hint(f"waypoint exec -s {name} CMD   runs a command in it")
    if console.was_set_up:
        console.offer_link()
    return 0


def _box_options(arguments: argparse.Namespace) -> BoxOptions:
    base = arguments.base
    return BoxOptions(
        base=os.path.abspath(base) if "/" in base or base in {".", ".."} else base,
        net=arguments.net,
        hide=tuple(arguments.hide),
        binds=tuple(arguments.bind),
        memory_bytes=arguments.memory,
        cpus=arguments.cpus,
        pids=arguments.pids,
        open_files=arguments.open_files,
        disk_bytes=arguments.disk,
        spares=arguments.spares,
        confined=not arguments.privileged,
        userns=True if arguments.userns else False if arguments.no_userns else None,
        user=arguments.user,
        cwd=arguments.cwd,
        env=dict(arguments.env),
    )


@verb("ls", "list the sessions", examples=("waypoint ls", "waypoint ls --json"))
def ls(console: Console) -> int:
    result = console.send(Ls(), "waiting for the daemon")
    sessions = result.sessions
    if console.json or not sessions:
        console.result(result, None)
        if not sessions:
            console.hint("there are no sessions: `waypoint new` starts one")
        return 0
    console.result(result, _listing(sessions, console.paint))
    return 0


def _listing(sessions: Sequence[Session], paint: render.Paint) -> str:
    rows = []
    forwarded = any(session.forwards for session in sessions)
    for session in sessions:
        doing = session.foreground or ("at its prompt" if session.state == "live" else "")
        if session.approvals:
            doing = f"waits for approval: {render.shown(session.approvals[0].command)}"
        rows.append(
            (
                session.name,
                session.state,
                render.age(session.created_at),
                session.head_label or session.head or "-",
                *((_forwards(session),) if forwarded else ()),
                doing if len(doing) <= 60 else f"{doing[:59]}…",
            )
        )
    names = ("NAME", "STATE", "STARTED", "AT", *(("PORTS",) if forwarded else ()), "DOING")
    return render.table(names, rows, paint)


def _forwards(session: Session) -> str:
    """`127.0.0.1:9000→8000`."""
    return ", ".join(
        f"{forward.endpoint}→{forward.port}{' (!)' if forward.problem else ''}"
        for forward in session.forwards
    )


@verb(
    "park",
    "take a checkpoint of a session and stop it, which frees its memory",
    *SESSION_FIRST,
    argument("--name", metavar="NAME", help="the name of the checkpoint"),
    examples=("waypoint park work", "waypoint park work --name before-lunch"),
    about="`waypoint restore -s work @` brings it back.",
)
def park(console: Console) -> int:
    result = console.send(Park(session=console.session, name=console.arguments.name), "parking")
    name = result.session.name
    console.result(result, f"{name} is parked at {render.point_title(result.checkpoint, console.paint)}")
    console.hint(f"waypoint restore -s {name} @   brings it back")
    return 0


@verb(
    "stop",
    "end a session and keep its points",
    *SESSION_FIRST,
    YES,
    examples=("waypoint stop work", "waypoint stop --yes work"),
    about="Its processes end. `waypoint restore -s work @` brings it back to its last point. If something has"
    " changed since that point, it says what and asks; `waypoint park` takes a point first.",
)
def stop(console: Console) -> int:
    discard = console.arguments.yes
    try:
        result = console.send(Stop(session=console.session, discard=discard), "stopping")
    except ConfirmationNeeded as error:
        if not console.can_ask:
            raise
        console.aside(error.message)
        console.confirm("Stop it, and lose that?", action="stopping the session")
        result = console.send(Stop(session=console.session, discard=True), "stopping")
    name = result.session.name
    console.result(result, f"{name} is stopped at {render.point_title(result.checkpoint, console.paint)}")
    console.hint(f"waypoint restore -s {name} @   brings it back")
    return 0


@verb(
    "rm",
    "end sessions and delete them with their checkpoints",
    argument("sessions", metavar="SESSION", nargs="+", help="the sessions"),
    YES,
    flag("--dry-run", help="only say what would go and what would stay"),
    examples=("waypoint rm try-1 try-2", "waypoint rm --yes work", "waypoint rm --dry-run work"),
    about="A point that another session stands on or grew from is not deleted: it goes to that session, with"
    " its card, its verdicts, its tags and what led to it. The plan says which, and what they are called"
    " then.",
)
def rm(console: Console) -> int:
    arguments = console.arguments
    names = tuple(dict.fromkeys(arguments.sessions))
    if arguments.dry_run:
        plan = console.send(Rm(sessions=names, dry_run=True), "looking at the sessions")
        console.result(plan, "\n".join(describe_removal(plan)))
        return 0
    if not arguments.yes:
        console.require_confirmation("removing sessions")
        plan = console.send(Rm(sessions=names, dry_run=True), "looking at the sessions")
        console.aside("\n".join(describe_removal(plan)))
        console.confirm(f"Remove {', '.join(plan.removed)}?", action="removing sessions")
    result = console.send(Rm(sessions=names), "removing")
    lines = [f"removed {name}" for name in result.removed]
    console.result(result, "\n".join([*lines, *describe_handed_over(result, done=True)]))
    return 0
