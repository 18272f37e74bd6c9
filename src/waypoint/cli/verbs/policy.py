"""What a session's commands may do: policies, and the approval of commands that need it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from waypoint import errors
from waypoint.api.effects import Approvals, Approve, Classify, Deny, Policy, PolicySet
from waypoint.cli import render
from waypoint.cli.spec import SESSION, YES, argument, command, flag, join_command, verb
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.model import Approval


# Policies -------------------------------------------------------------------------------------------------


@verb(
    "policy show",
    "show the policy for a session's commands",
    SESSION,
    flag("--built-in", help="the built-in rules of Waypoint"),
    examples=("waypoint policy show", "waypoint policy show --built-in"),
    json="policy",
)
def policy_show(console: Console) -> int:
    arguments = console.arguments
    request = Policy(session=console.session, built_in=arguments.built_in)
    result = console.send(request, "waiting for the daemon")
    if arguments.built_in:
        console.show(result, (result.built_in or "").rstrip())
        return 0
    paint = console.paint
    lines = [f"{name.ljust(20)} {decision}" for name, decision in result.decisions.items()]
    expiry = render.milliseconds(result.expires_seconds * 1000)
    lines.append(f"{'approvals expire'.ljust(20)} after {expiry}")
    for title, text in (("all sessions", result.home), (result.session, result.own)):
        if text:
            lines += ["", paint.bold(f"# rules of {title}"), text.rstrip()]
    lines += ["", paint.dim("the built-in rules: waypoint policy show --built-in")]
    console.show(result, "\n".join(lines))
    return 0


@verb(
    "policy check",
    "show what the policy decides about a command, without running it",
    SESSION,
    command("the command; several words are joined with spaces"),
    examples=("waypoint policy check 'git push origin main'",),
    json="classify",
)
def policy_check(console: Console) -> int:
    request = Classify(session=console.session, command=join_command(console.arguments.command))
    result = console.send(request, "waiting for the daemon")
    judgement = views.Judgement(msgspec.to_builtins(result.judgement))
    console.result(result, render.styled(judgement.lines(), console.paint))
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
    request = PolicySet(session=console.session, text=text, everywhere=arguments.everywhere)
    result = console.send(request, "waiting for the daemon")
    state = "rules set" if result.set else "no rules beyond the built-in ones"
    console.result(result, f"{result.session or 'all sessions'}: {state}")
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
    request = Approvals(session=arguments.session, all=arguments.all)
    result = console.send(request, "waiting for the daemon")
    lines = [line for approval in result.approvals for line in _approval_lines(console, approval)]
    console.show(result, "\n".join(lines))
    if not lines:
        console.hint("no command waits for approval")
    return 0


def _approval_lines(console: Console, approval: Approval) -> list[str]:
    waits = approval.state == "waiting"
    state = f"waits until {render.clock(approval.expires_at)}" if waits else approval.state
    note = f": {render.shown(approval.note)}" if approval.note else ""
    if approval.review:
        return [f"{console.paint.bold(approval.id)}  {state}", *(f"  {line}" for line in approval.review)]
    actor = "an agent" if approval.actor == "agent" else "a person"
    return [
        f"{console.paint.bold(approval.id)}  {approval.session}  {render.shown(approval.command)}",
        f"  {approval.class_} · {actor} at {render.clock(approval.created_at)} · {state}{note}",
        f"  {render.shown(approval.why)}",
    ]


_ID = argument("id", metavar="ID", help="its id, from `waypoint approvals`")


@verb(
    "approve",
    "let a waiting command run, once",
    _ID,
    YES,
    examples=("waypoint approve 3f9c2a1b",),
    about="On a terminal it shows the whole command and asks.",
)
def approve(console: Console) -> int:
    arguments = console.arguments

    def asked_about() -> list[Approval]:
        waiting = console.send(Approvals(), "waiting for the daemon").approvals
        return [approval for approval in waiting if approval.id.startswith(arguments.id)]

    if console.can_ask and not arguments.yes:
        for approval in asked_about():
            for line in approval.review:
                console.aside(line)
            if console.ask_unless("Run it?", is_decided=lambda: not asked_about()) is False:
                raise errors.ConfirmationNeeded("the command was not confirmed", hint="it still waits")
    result = console.send(Approve(id=arguments.id), "waiting for the daemon")
    approval = result.approval
    console.result(result, f"{approval.session} runs {render.shown(approval.command)}")
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
    result = console.send(Deny(id=arguments.id, note=arguments.why), "waiting for the daemon")
    console.result(result, f"{render.shown(result.approval.command)} does not run")
    return 0
