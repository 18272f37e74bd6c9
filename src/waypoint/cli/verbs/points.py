"""Points of a session: take them, fork from them, verify them, label them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from waypoint import errors
from waypoint.api.history import Bisect, Show
from waypoint.api.points import Checkpoint, CheckpointTaken, Fork, Note, Tag, Tags, Verified, Verify
from waypoint.api.sessions import Auto
from waypoint.cli import render
from waypoint.cli.spec import REF, SESSION, argument, command, count, flag, join_command, positive, verb
from waypoint.home import Settings
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.model import Checkpoint as Point

_STATUSES = {"passed": 0, "timeout": 124, "unclear": 125}
_FAILED = 1
_OUTPUT_LINES = 20


@verb(
    "checkpoint",
    "take a point: files, processes with their memory, shell and terminal as they are now",
    SESSION,
    argument("intent", metavar="INTENT", nargs="*", help="what this point is, in your words"),
    argument("--name", metavar="NAME", help="a name to refer to it by"),
    flag("--files-only", help="without the processes"),
    flag("--durable", help="wait until the point is on the disk and would survive a power cut"),
    argument(
        "--verify", metavar="CMD", help="then run this in a throwaway fork of the point, and keep the verdict"
    ),
    flag("--wait", help="with --verify: wait for the verdict; exit status as of `verify`"),
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
    " last commit. The actor is a person, unless WAYPOINT_ACTOR says agent. Without --durable (or"
    " WAYPOINT_DURABLE=1) a point is on the disk within about a second after the answer; `waypoint show` says"
    " whether it is.",
)
def checkpoint(console: Console) -> int:
    arguments = console.arguments
    if arguments.agent_version and not arguments.agent_state:
        raise errors.UsageError("--agent-version needs --agent-state", hint="give both, or neither")
    if arguments.wait and arguments.verify is None:
        raise errors.UsageError("--wait needs --verify", hint="without --verify there is nothing to wait for")
    agent_state = None
    if arguments.agent_state:
        from waypoint.cli.verbs.trajectory import read_agent_state

        agent_state = read_agent_state(arguments.agent_state)
    request = Checkpoint(
        session=console.session,
        intent=" ".join(arguments.intent),
        name=arguments.name,
        files_only=arguments.files_only,
        verify=arguments.verify,
        wait=arguments.wait,
        actor=console.actor,
        agent_state=agent_state,
        agent_version=arguments.agent_version,
        durable=arguments.durable or Settings.read().durable,
    )
    result = console.send(request, "taking a checkpoint")
    point = result.checkpoint
    title = render.point_title(point, console.paint)
    console.result(result, f"{title}  {console.paint.dim(render.point_facts(point))}")
    if not (console.json or console.quiet):
        for sentence in _new_coverage(console, point):
            console.aside(console.stderr_paint.warn(f"  {render.shown(sentence)}"))
    for warning in result.warnings:
        console.warn(warning)
    return 0 if arguments.verify is None else _show_verdict(console, result)


def _new_coverage(console: Console, point: Point) -> list[str]:
    """What a point does not hold, without what was said at the point before it."""
    known: tuple[str, ...] = ()
    if point.coverage and point.parent:
        with contextlib.suppress(errors.NotFound):  # it was forgotten
            known = console.transport.ask(Show(ref=point.parent, session=point.session)).checkpoint.coverage
    return [sentence for sentence in point.coverage if sentence not in known]


@verb(
    "auto",
    "take a point after each command that changed something: on or off",
    SESSION,
    argument("switch", choices=("on", "off"), metavar="on|off", help="from now on"),
    examples=("waypoint auto -s work on",),
)
def auto(console: Console) -> int:
    request = Auto(session=console.session, on=console.arguments.switch == "on")
    result = console.send(request, "waiting for the daemon")
    when = "after each command that changed something" if result.session.auto else "only on request"
    console.result(result, f"points of {result.session.name} are taken {when}")
    return 0


@verb(
    "fork",
    "start new sessions from a point, or from a session as it is now",
    SESSION,
    argument("ref", metavar="REF", nargs="?", help="a point (default: now, of which a point is taken)"),
    argument("-n", "--number", metavar="N", type=count, default=1, help="how many (default: 1)"),
    argument(
        "--name",
        metavar="NAME",
        action="append",
        default=[],
        help="the name; with -n NAME-1, NAME-2, …; given several times one for each",
    ),
    argument(
        "--hook-timeout", metavar="SEC", type=positive, help="the longest its hooks may take (default: 10)"
    ),
    examples=(
        "waypoint fork -s work up -n 3 --name try",
        "waypoint fork -s work --name left --name right",
        "waypoint fork @",
    ),
    about="From then on each has its own files, processes and network. What they still share (random state,"
    " keys) is for the programs in /etc/waypoint/on-fork.d of the session to change: each fork runs them"
    " first.",
)
def fork(console: Console) -> int:
    arguments = console.arguments
    request = Fork(
        session=console.session,
        ref=arguments.ref,
        n=arguments.number,
        name=arguments.name[0] if len(arguments.name) == 1 else None,
        names=tuple(arguments.name) if len(arguments.name) > 1 else (),
        hook_timeout=arguments.hook_timeout,
        actor=console.actor,
    )
    result = console.send(request, f"forking {render.plural(arguments.number, 'session')}")
    width = max(len(session.name) for session in result.sessions)
    dim = console.paint.dim
    lines = [
        f"{session.name.ljust(width)}  {dim('ready in ' + render.milliseconds(session.ready_ms))}"
        for session in result.sessions
    ]
    changes = dict.fromkeys(change for session in result.sessions for change in session.base_changes)
    lines += [f"{console.paint.warn('note')} {change}" for change in changes]
    lines += [
        f"{console.paint.warn('note')} hook {hook.name} in {session.name}: {render.shown(hook.problem)}"
        for session in result.sessions
        for hook in session.hooks
        if hook.problem
    ]
    console.result(result, "\n".join(lines))
    return 0


# Verification ---------------------------------------------------------------------------------------------


@verb(
    "verify",
    "run a command in a throwaway fork of a point, and keep the verdict with the point",
    SESSION,
    argument("--timeout", metavar="SEC", type=positive, help="the longest it may take (default: 600)"),
    flag("--no-wait", help="do not wait for the verdict"),
    REF,
    command("the command; it passes if its exit status is 0, and 125 means that it cannot tell"),
    examples=("waypoint verify up pytest -q", "waypoint verify --timeout 60 @ 'make && make test'"),
    about="The session is not touched, and the fork is removed. Exit status 1 if the command fails, 124 if"
    " it takes too long, 125 if it cannot tell. `good` is the last point at which a command passed and none"
    " failed; of each command the last pass or failure counts. Options stand before the point.",
)
def verify(console: Console) -> int:
    arguments = console.arguments
    request = Verify(
        session=console.session,
        ref=arguments.ref,
        command=join_command(arguments.command),
        timeout=arguments.timeout,
        wait=not arguments.no_wait,
    )
    result = console.send(request, f"verifying {arguments.ref} in a fork")
    console.result(result, render.point_title(result.checkpoint, console.paint))
    return _show_verdict(console, result)


def _show_verdict(console: Console, result: CheckpointTaken | Verified) -> int:
    """Prints the verdict below the point that it is about. Returns the exit status."""
    verdict = result.verdict
    if verdict is None:
        console.hint(f"waypoint show {result.checkpoint.label}   shows the verdict once it is known")
        return 0
    if not console.json:
        data = msgspec.to_builtins(verdict)
        paint = getattr(console.paint, views.verdict_manner(data))
        print(f"  {paint(views.verdict(data))}")
        if verdict.state != "passed":
            for line in verdict.output.rstrip().splitlines()[-_OUTPUT_LINES:]:
                print(console.paint.dim(f"    {render.shown(line)}"))
    return _STATUSES.get(verdict.state, _FAILED)


@verb(
    "bisect",
    "find the first point at which a command fails",
    SESSION,
    argument(
        "--timeout", metavar="SEC", type=positive, help="the longest it may take at each point (default: 600)"
    ),
    argument("good", metavar="GOOD", help="a point at which the command passes"),
    argument("bad", metavar="BAD", help="a later point of the same line, at which it fails"),
    command("the command; it passes if its exit status is 0, and 125 means that it cannot tell"),
    examples=("waypoint bisect c2 @ pytest -q",),
    about="Points are tried in throwaway forks, two at a time. The result shows what changed from the last"
    " good point to the first bad one. A point at which the command takes too long or cannot tell is left"
    " out. Options stand before the points.",
)
def bisect(console: Console) -> int:
    arguments = console.arguments
    request = Bisect(
        session=console.session,
        good=arguments.good,
        bad=arguments.bad,
        command=join_command(arguments.command),
        timeout=arguments.timeout,
    )
    paint = console.stderr_paint

    def show_step(event: Mapping[str, Any]) -> None:
        step = event["tried"]
        signs = {"passed": paint.good("✔"), "failed": paint.bad("✖")}
        sign = signs.get(step["state"]) or paint.warn("?")
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        console.aside(f"{sign} {step['label']}  {render.cut(views.title(step), 60)}".rstrip())

    result = console.send(request, "trying points in forks", None if console.json else show_step)
    bisection = views.Bisection(msgspec.to_builtins(result))
    console.show(result, render.styled(bisection.lines(), console.paint))
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
    json={"": "tags", "NAME": "tag"},
)
def tag(console: Console) -> int:
    arguments, paint = console.arguments, console.paint
    if arguments.delete and (arguments.name is None or arguments.ref):
        raise errors.UsageError("-d takes the name of one tag", hint="waypoint tag -d NAME")
    if arguments.name is None:
        return _list_tags(console)
    request = Tag(session=console.session, name=arguments.name, ref=arguments.ref, delete=arguments.delete)
    result = console.send(request, "waiting for the daemon")
    name = paint.name(result.tag)
    if result.checkpoint:
        console.result(result, f"{name} is {render.point_title(result.checkpoint, paint)}")
    else:
        console.result(result, f"removed the tag {name}")
    return 0


def _list_tags(console: Console) -> int:
    result = console.send(Tags(session=console.session), "waiting for the daemon")
    paint = console.paint
    width = max((len(tag.tag) for tag in result.tags), default=0)
    lines = [
        f"{paint.name(tag.tag.ljust(width))}  {render.point_title(tag.checkpoint, paint)}"
        for tag in result.tags
        if tag.checkpoint
    ]
    console.result(result, "\n".join(lines))
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
    request = Note(session=console.session, ref=arguments.ref, text=" ".join(arguments.text))
    result = console.send(request, "waiting for the daemon")
    console.result(result, f"added a note to {render.point_title(result.checkpoint, console.paint)}")
    return 0
