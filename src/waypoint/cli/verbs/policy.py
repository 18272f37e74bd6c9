"""What a session's commands may do: policies, and the approval of commands that need it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.cli import render
from waypoint.cli.spec import SESSION, argument, command, flag, join_command, verb
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.console import Console


# Policies -------------------------------------------------------------------------------------------------


@verb(
    "policy show",
    "show the policy for a session's commands",
    SESSION,
    flag("--built-in", help="the built-in rules of Waypoint"),
    examples=("waypoint policy show", "waypoint policy show --built-in"),
)
def policy_show(console: Console) -> int:
    arguments = console.arguments
    request = {"session": console.session, "built_in": arguments.built_in}
    reply = console.call("policy", request, "waiting for the daemon")
    if arguments.built_in:
        console.show(reply, reply["built_in"].rstrip())
        return 0
    paint = console.paint
    lines = [f"{name.ljust(20)} {decision}" for name, decision in reply["decisions"].items()]
    expiry = render.milliseconds(reply["expires_seconds"] * 1000)
    lines.append(f"{'approvals expire'.ljust(20)} after {expiry}")
    for title, text in (("all sessions", reply["home"]), (reply["session"], reply["own"])):
        if text:
            lines += ["", paint.bold(f"# rules of {title}"), text.rstrip()]
    lines += ["", paint.dim("the built-in rules: waypoint policy show --built-in")]
    console.show(reply, "\n".join(lines))
    return 0


@verb(
    "policy check",
    "show what the policy decides about a command, without running it",
    SESSION,
    command("the command; several words are joined with spaces"),
    examples=("waypoint policy check 'git push origin main'",),
)
def policy_check(console: Console) -> int:
    request = {"session": console.session, "command": join_command(console.arguments.command)}
    reply = console.call("classify", request, "waiting for the daemon")
    console.result(reply, render.styled(views.Judgement(reply["judgement"]).lines(), console.paint))
    return 0


@verb(
    "policy set",
    "set the rules of a session, or of all sessions",
    SESSION,
    argument("file", metavar="FILE", nargs="?", help="a TOML file; - reads stdin"),
    flag("--everywhere", help="for all sessions of this home"),
    flag("--none", help="remove the rules"),
    examples=("waypoint policy set policy.toml", "waypoint policy set --everywhere policy.toml"),
    about="They are tried before the built-in rules. A file with an error changes nothing.",
)
def policy_set(console: Console) -> int:
    arguments = console.arguments
    if (arguments.file is None) == (not arguments.none):
        raise errors.UsageError("give a file, or --none", hint="waypoint policy set policy.toml")
    text = None if arguments.none else read_policy(arguments.file)
    request = {"session": console.session, "text": text, "everywhere": arguments.everywhere}
    reply = console.call("policy_set", request, "waiting for the daemon")
    state = "rules set" if reply["set"] else "no rules beyond the built-in ones"
    console.result(reply, f"{reply['session'] or 'all sessions'}: {state}")
    return 0


def read_policy(path: str) -> str:
    """The text of a policy file. The daemon checks it."""
    if path == "-":
        return sys.stdin.read()
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise errors.UsageError(f"cannot read {path}: {why}", hint="a policy is a TOML file") from error


# Approvals ------------------------------------------------------------------------------------------------


@verb(
    "approvals",
    "list the commands that wait for approval",
    argument("-s", "--session", metavar="SESSION", help="only of this session"),
    flag("--all", help="also those that were decided"),
    examples=("waypoint approvals", "waypoint approvals --all"),
)
def approvals(console: Console) -> int:
    arguments = console.arguments
    request = {"session": arguments.session, "all": arguments.all}
    reply = console.call("approvals", request, "waiting for the daemon")
    lines = [line for approval in reply["approvals"] for line in _approval_lines(console, approval)]
    console.show(reply, "\n".join(lines))
    if not lines:
        console.hint("no command waits for approval")
    return 0


def _approval_lines(console: Console, approval: Mapping[str, Any]) -> list[str]:
    state = approval["state"]
    if state == "waiting":
        state = f"waits until {render.clock(approval['expires_at'])}"
    note = f": {render.shown(approval['note'])}" if approval["note"] else ""
    actor = "an agent" if approval["actor"] == "agent" else "a person"
    command = render.shown(approval["command"])
    return [
        f"{console.paint.bold(approval['id'])}  {approval['session']}  {command}",
        f"  {approval['class']} · {actor} at {render.clock(approval['created_at'])} · {state}{note}",
        f"  {render.shown(approval['why'])}",
    ]


_ID = argument("id", metavar="ID", help="its id, from `waypoint approvals`")


@verb("approve", "let a waiting command run, once", _ID, examples=("waypoint approve 3f9c2a1b",))
def approve(console: Console) -> int:
    reply = console.call("approve", {"id": console.arguments.id}, "waiting for the daemon")
    approval = reply["approval"]
    console.result(reply, f"{approval['session']} runs {render.shown(approval['command'])}")
    return 0


@verb(
    "deny",
    "refuse a waiting command",
    _ID,
    argument(
        "--why", metavar="WORDS", default="", help="the reason, which the caller of the command is told"
    ),
    examples=("waypoint deny 3f9c2a1b --why 'not on a Friday'",),
)
def deny(console: Console) -> int:
    arguments = console.arguments
    request = {"id": arguments.id, "note": arguments.why}
    reply = console.call("deny", request, "waiting for the daemon")
    console.result(reply, f"{render.shown(reply['approval']['command'])} does not run")
    return 0
