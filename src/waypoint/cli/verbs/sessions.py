"""Sessions: start, list, park and remove them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from waypoint.cli import render
from waypoint.cli.console import terminal_size
from waypoint.cli.spec import SESSION_FIRST, YES, argument, box_path, byte_count, count, flag, positive, verb

if TYPE_CHECKING:
    from waypoint.cli.console import Console

_MOST_SPARES = 16


def _spares(text: str) -> int:
    if text == "off":
        return 0
    if not text.isdecimal() or int(text) > _MOST_SPARES:
        raise argparse.ArgumentTypeError(f"{text!r} is neither `off` nor a number up to {_MOST_SPARES}")
    return int(text)


def _bind(text: str) -> dict[str, Any]:
    """`HOST:BOX` or `HOST:BOX:ro`."""
    host, *rest = text.split(":")
    if not (host and rest and rest[0] and rest[1:] in ([], ["ro"], ["rw"])):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:BOX or HOST:BOX:ro")
    return {"host": os.path.abspath(host), "box": box_path(rest[0]), "readonly": rest[1:] == ["ro"]}


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
    argument(
        "--spares",
        metavar="N|off",
        type=_spares,
        help="how many of its points are kept restored ahead of time: restoring one takes milliseconds",
    ),
    flag("--auto", help="take a point after each command that changed something"),
    argument("--policy", metavar="FILE", help="a TOML file with rules for the commands of this session"),
    flag("--privileged", help="without the restrictions of a container: only for programs that you trust"),
    examples=(
        "waypoint new work",
        "waypoint new web --net none --memory 2G",
        "waypoint new old --base debian-12",
    ),
    about="It sees this machine's files; what it writes goes to its own layer. The first session on a machine"
    " runs `waypoint setup`.",
)
def new(console: Console) -> int:
    arguments = console.arguments
    console.prepare()
    size = terminal_size()
    request = {
        "name": arguments.name,
        "options": _box_options(arguments),
        "size": {"rows": size.lines, "columns": size.columns},
        "join": False,
        "auto": arguments.auto,
    }
    if arguments.policy is not None:
        from waypoint.cli.verbs.policy import read_policy

        request["policy"] = read_policy(arguments.policy)
    reply = console.call("new", request, "starting a session")
    name = reply["session"]["name"]
    console.result(reply, name)
    console.hint(f"waypoint shell {name}   attaches to it")
    console.hint(f"waypoint exec -s {name} CMD   runs a command in it")
    return 0


def _box_options(arguments: argparse.Namespace) -> dict[str, Any]:
    base = arguments.base
    return {
        "base": os.path.abspath(base) if "/" in base or base in {".", ".."} else base,
        "net": arguments.net,
        "hide": arguments.hide,
        "binds": arguments.bind,
        "memory_bytes": arguments.memory,
        "cpus": arguments.cpus,
        "pids": arguments.pids,
        "spares": arguments.spares,
        "confined": not arguments.privileged,
    }


@verb("ls", "list the sessions", examples=("waypoint ls", "waypoint ls --json"))
def ls(console: Console) -> int:
    reply = console.call("ls", {}, "waiting for the daemon")
    sessions = reply["sessions"]
    if console.json or not sessions:
        console.result(reply, None)
        if not sessions:
            console.hint("there are no sessions: `waypoint new` starts one")
        return 0
    has_points = any(session.get("head") for session in sessions)
    points = console.client.call("log", {"all": True})["checkpoints"] if has_points else []
    labels = {point["id"]: f"{point['session']}:{point['label']}" for point in points}
    console.result(reply, _listing(sessions, labels, console.paint))
    return 0


def _listing(sessions: list[Mapping[str, Any]], labels: Mapping[str, str], paint: render.Paint) -> str:
    """`labels`: what each point is called, as SESSION:LABEL."""
    rows = []
    for session in sessions:
        head = session.get("head")
        doing = session.get("foreground") or ("at its prompt" if session["state"] == "live" else "")
        rows.append(
            (
                session["name"],
                session["state"],
                render.age(session["created_at"]),
                labels.get(head, head).removeprefix(f"{session['name']}:") if head else "-",
                doing if len(doing) <= 60 else f"{doing[:59]}…",
            )
        )
    return render.table(("NAME", "STATE", "STARTED", "AT", "DOING"), rows, paint)


@verb(
    "park",
    "take a checkpoint of a session and stop it, which frees its memory",
    *SESSION_FIRST,
    examples=("waypoint park work",),
    about="`waypoint restore -s work @` brings it back.",
)
def park(console: Console) -> int:
    reply = console.call("park", {"session": console.session}, "parking")
    name = reply["session"]["name"]
    console.result(reply, f"{name} is parked at {render.point_title(reply['checkpoint'], console.paint)}")
    console.hint(f"waypoint restore -s {name} @   brings it back")
    return 0


@verb(
    "rm",
    "end sessions and delete them with their checkpoints",
    argument("sessions", metavar="SESSION", nargs="+", help="the sessions"),
    YES,
    examples=("waypoint rm try-1 try-2", "waypoint rm --yes work"),
)
def rm(console: Console) -> int:
    names = console.arguments.sessions
    whose = "its" if len(names) == 1 else "their"
    console.confirm(f"Remove {', '.join(names)} and all {whose} checkpoints?", action="removing sessions")
    reply = console.call("rm", {"sessions": names}, "removing")
    console.result(reply, "\n".join(f"removed {name}" for name in reply["removed"]))
    return 0
