"""Points of a session: take them, fork from them, verify them, label them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.cli import render
from waypoint.cli.spec import REF, SESSION, argument, command, count, flag, join_command, positive, verb
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.console import Console

_FAILED = 1
_OUTPUT_LINES = 20


@verb(
    "checkpoint",
    "take a point: files, processes with their memory, shell and terminal as they are now",
    SESSION,
    argument("intent", metavar="INTENT", nargs="*", help="what this point is, in your words"),
    argument("--name", metavar="NAME", help="a name to refer to it by"),
    flag("--files-only", help="without the processes"),
    argument(
        "--verify", metavar="CMD", help="then run this in a throwaway fork of the point, and keep the verdict"
    ),
    flag("--wait", help="with --verify: wait for the verdict; exit status 1 if the command fails"),
    argument(
        "--agent-state",
        metavar="FILE|-",
        help="what the agent needs to continue from here, JSON or any bytes; a restore gives it back",
    ),
    argument("--agent-version", metavar="V", help="with --agent-state: the version of the agent's code"),
    examples=(
        "waypoint checkpoint -s work 'server up' --name up",
        "waypoint checkpoint 'payments work' --verify 'pytest -q' --wait",
        "waypoint checkpoint",
    ),
    about="The session goes on running. Without an INTENT the last command is used, or the subject of the"
    " last commit. The actor is a person, unless WAYPOINT_ACTOR says agent.",
)
def checkpoint(console: Console) -> int:
    arguments = console.arguments
    request = {
        "session": console.session,
        "intent": " ".join(arguments.intent),
        "name": arguments.name,
        "files_only": arguments.files_only,
        "actor": os.environ.get("WAYPOINT_ACTOR") or "person",
        "verify": arguments.verify,
        "wait": arguments.wait,
    }
    if arguments.agent_state:
        from waypoint.cli.verbs.trajectory import read_agent_state

        request["agent_state"] = read_agent_state(arguments.agent_state)
        request["agent_version"] = arguments.agent_version
    elif arguments.agent_version:
        raise errors.UsageError("--agent-version needs --agent-state", hint="give both, or neither")
    if arguments.wait and arguments.verify is None:
        raise errors.UsageError("--wait needs --verify", hint="without --verify there is nothing to wait for")
    reply = console.call("checkpoint", request, "taking a checkpoint")
    point = reply["checkpoint"]
    title = render.point_title(point, console.paint)
    console.result(reply, f"{title}  {console.paint.dim(render.point_facts(point))}")
    if not console.json:
        for sentence in point.get("coverage", ()):
            console.aside(console.stderr_paint.warn(f"  {render.shown(sentence)}"))
    for warning in reply.get("warnings", ()):
        console.warn(warning)
    return 0 if arguments.verify is None else _show_verdict(console, reply)


@verb(
    "auto",
    "take a point after each command that changed something: on or off",
    SESSION,
    argument("switch", choices=("on", "off"), metavar="on|off", help="from now on"),
    examples=("waypoint auto -s work on",),
)
def auto(console: Console) -> int:
    request = {"session": console.session, "on": console.arguments.switch == "on"}
    session = (reply := console.call("auto", request, "waiting for the daemon"))["session"]
    when = "after each command that changed something" if session["auto"] else "only on request"
    console.result(reply, f"points of {session['name']} are taken {when}")
    return 0


@verb(
    "fork",
    "start new sessions from a point",
    SESSION,
    REF,
    argument("-n", "--number", metavar="N", type=count, default=1, help="how many (default: 1)"),
    argument("--name", metavar="NAME", help="the name; several are called NAME-1, NAME-2, …"),
    examples=("waypoint fork -s work up -n 3 --name try", "waypoint fork @"),
    about="From then on each has its own files, processes and network.",
)
def fork(console: Console) -> int:
    arguments = console.arguments
    request = {
        "session": console.session,
        "ref": arguments.ref,
        "n": arguments.number,
        "name": arguments.name,
    }
    reply = console.call("fork", request, f"forking {render.plural(arguments.number, 'session')}")
    width = max(len(session["name"]) for session in reply["sessions"])
    dim = console.paint.dim
    lines = [
        f"{session['name'].ljust(width)}  {dim('ready in ' + render.milliseconds(session['ready_ms']))}"
        for session in reply["sessions"]
    ]
    console.result(reply, "\n".join(lines))
    return 0


# Verification ---------------------------------------------------------------------------------------------


@verb(
    "verify",
    "run a command in a throwaway fork of a point, and keep the verdict with the point",
    SESSION,
    argument("--timeout", metavar="SEC", type=positive, help="the longest it may take (default: 600)"),
    flag("--no-wait", help="do not wait for the verdict"),
    REF,
    command("the command; it passes if its exit status is 0"),
    examples=("waypoint verify up pytest -q", "waypoint verify --timeout 60 @ 'make && make test'"),
    about="The session is not touched, and the fork is removed. Exit status 1 if the command fails. The last"
    " point that passed is called `good`. Options stand before the point.",
)
def verify(console: Console) -> int:
    arguments = console.arguments
    request = {
        "session": console.session,
        "ref": arguments.ref,
        "command": join_command(arguments.command),
        "timeout": arguments.timeout,
        "wait": not arguments.no_wait,
    }
    reply = console.call("verify", request, f"verifying {arguments.ref} in a fork")
    console.result(reply, render.point_title(reply["checkpoint"], console.paint))
    return _show_verdict(console, reply)


def _show_verdict(console: Console, reply: Mapping[str, Any]) -> int:
    """Prints the verdict below the point that it is about. Returns the exit status."""
    verdict = reply.get("verdict")
    if verdict is None:
        console.hint(f"waypoint show {reply['checkpoint']['label']}   shows the verdict once it is known")
        return 0
    if not console.json:
        paint = getattr(console.paint, views.verdict_manner(verdict))
        print(f"  {paint(views.verdict(verdict))}")
        if verdict["state"] != "passed":
            for line in verdict["output"].rstrip().splitlines()[-_OUTPUT_LINES:]:
                print(console.paint.dim(f"    {render.shown(line)}"))
    return 0 if verdict["state"] == "passed" else _FAILED


@verb(
    "bisect",
    "find the first point at which a command fails",
    SESSION,
    argument(
        "--timeout", metavar="SEC", type=positive, help="the longest it may take at each point (default: 600)"
    ),
    argument("good", metavar="GOOD", help="a point at which the command passes"),
    argument("bad", metavar="BAD", help="a later point of the same line, at which it fails"),
    command("the command; it passes if its exit status is 0"),
    examples=("waypoint bisect c2 @ pytest -q",),
    about="Points are tried in throwaway forks, two at a time. The result shows what changed from the last"
    " good point to the first bad one. Options stand before the points.",
)
def bisect(console: Console) -> int:
    arguments = console.arguments
    request = {
        "session": console.session,
        "good": arguments.good,
        "bad": arguments.bad,
        "command": join_command(arguments.command),
        "timeout": arguments.timeout,
    }
    paint = console.stderr_paint

    def show_step(event: Mapping[str, Any]) -> None:
        step = event["tried"]
        sign = paint.good("✔") if step["passed"] else paint.bad("✖")
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        console.aside(f"{sign} {step['label']}  {render.cut(views.title(step), 60)}".rstrip())

    with console.progress("trying points in forks"):
        reply = console.client.call("bisect", request, on_event=None if console.json else show_step)
    console.show(reply, render.styled(views.Bisection(reply).lines(), console.paint))
    return 0


# Tags and notes -------------------------------------------------------------------------------------------


@verb(
    "tag",
    "give a point another name, move or remove that name; or list all of them",
    SESSION,
    flag("-d", "--delete", help="remove the tag"),
    argument("name", metavar="NAME", nargs="?", help="the tag; without it, all tags are listed"),
    argument("ref", metavar="REF", nargs="?", help="the point (default: @)"),
    examples=("waypoint tag release c5", "waypoint tag -d release", "waypoint tag"),
)
def tag(console: Console) -> int:
    arguments, paint = console.arguments, console.paint
    if arguments.delete and (arguments.name is None or arguments.ref):
        raise errors.UsageError("-d takes the name of one tag", hint="waypoint tag -d NAME")
    if arguments.name is None:
        return _list_tags(console)
    request = {
        "session": console.session,
        "name": arguments.name,
        "ref": arguments.ref,
        "delete": arguments.delete,
    }
    reply = console.call("tag", request, "waiting for the daemon")
    name = paint.name(reply["tag"])
    if arguments.delete:
        console.result(reply, f"removed the tag {name}")
    else:
        console.result(reply, f"{name} is {render.point_title(reply['checkpoint'], paint)}")
    return 0


def _list_tags(console: Console) -> int:
    reply = console.call("tags", {"session": console.session}, "waiting for the daemon")
    paint = console.paint
    width = max((len(tag["tag"]) for tag in reply["tags"]), default=0)
    lines = [
        f"{paint.name(tag['tag'].ljust(width))}  {render.point_title(tag['checkpoint'], paint)}"
        for tag in reply["tags"]
    ]
    console.result(reply, "\n".join(lines))
    return 0


@verb(
    "note",
    "add a text to a point, marked as added later",
    SESSION,
    REF,
    argument("text", metavar="TEXT", nargs="+", help="what you know now"),
    examples=("waypoint note c4 'this one lost the sessions table'",),
)
def note(console: Console) -> int:
    arguments = console.arguments
    request = {"session": console.session, "ref": arguments.ref, "text": " ".join(arguments.text)}
    reply = console.call("note", request, "waiting for the daemon")
    console.result(reply, f"added a note to {render.point_title(reply['checkpoint'], console.paint)}")
    return 0
