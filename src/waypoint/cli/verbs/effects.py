"""The verbs about what is done outside: effects, policies, approvals."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.cli import render
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.model import Approval


def effects(console: Console) -> int:
    given = console.arguments
    if given.all and given.ref:
        raise errors.UsageError(
            "either since a point or of all sessions", hint="leave the one or the other out"
        )
    args = {"session": console.session, "ref": given.ref, "all": given.all}
    found = console.call("effects", args, "reading the ledger")
    lines = views.Effects(found).lines(everything=given.unseen)
    console.show(found, render.styled(lines, console.paint) if lines else "")
    if not lines:
        console.hint("nothing that is known to act on the outside")
    return 0


def effect(console: Console) -> int:
    given = console.arguments
    args = {
        "session": console.session,
        "what": " ".join(given.what),
        "class": "external-reversible" if given.reversible else "irreversible",
        "target": given.target,
        "key": given.key,
        "compensate": given.compensate,
    }
    found = console.call("effect", args, "writing it down")
    console.result(found, f"written down as {found['effect']['id']}")
    return 0


# ---- policies ------------------------------------------------------------------------------------


def policy_show(console: Console) -> int:
    given = console.arguments
    args = {"session": console.session, "built_in": given.built_in}
    found = console.call("policy", args, "asking the daemon")
    if given.built_in:
        console.show(found, found["built_in"].rstrip())
        return 0
    paint = console.paint
    lines = [f"{name.ljust(20)} {what}" for name, what in found["decisions"].items()]
    lines.append(
        f"{'approvals expire'.ljust(20)} after {render.milliseconds(found['expires_seconds'] * 1000)}"
    )
    for title, text in (("all sessions", found["home"]), (found["session"], found["own"])):
        if text:
            lines += ["", paint.bold(f"# rules of {title}"), text.rstrip()]
    lines += ["", paint.dim("the built-in rules: waypoint policy show --built-in")]
    console.show(found, "\n".join(lines))
    return 0


def policy_check(console: Console) -> int:
    words = console.arguments.command
    words = words[1:] if words[:1] == ["--"] else words
    if not " ".join(words).strip():
        raise errors.UsageError("which command?", hint="waypoint policy check 'git push origin main'")
    found = console.call("classify", {"session": console.session, "command": " ".join(words)}, "judging it")
    lines = views.Judgement(found["judgement"]).lines()
    console.result(found, render.styled(lines, console.paint))
    return 0


def policy_set(console: Console) -> int:
    given = console.arguments
    if (given.file is None) == (not given.none):
        raise errors.UsageError("a file, or --none", hint="waypoint policy set policy.toml")
    text = None if given.none else read_policy(given.file)
    args = {"session": console.session, "text": text, "everywhere": given.everywhere}
    found = console.call("policy_set", args, "setting it")
    whose = found["session"] or "all sessions"
    console.result(found, f"{whose}: {'rules set' if found['set'] else 'no rules of its own any more'}")
    return 0


def read_policy(path: str) -> str:
    """The text of a policy file; whether it makes sense is for the daemon to say."""
    if path == "-":
        return sys.stdin.read()
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise errors.UsageError(f"{path} cannot be read: {why}", hint="a policy is a TOML file") from error


# ---- approvals -----------------------------------------------------------------------------------


def approvals(console: Console) -> int:
    given = console.arguments
    args = {"session": given.session, "all": given.all}
    found = console.call("approvals", args, "asking the daemon")
    lines = [line for one in found["approvals"] for line in _approval(console, one)]
    console.show(found, "\n".join(lines))
    if not lines:
        console.hint("nothing waits")
    return 0


def _approval(console: Console, one: Mapping[str, Any]) -> list[str]:
    paint = console.paint
    state = f"waits until {render.clock(one['expires_at'])}" if one["state"] == "waiting" else one["state"]
    note = f": {render.shown(one['note'])}" if one["note"] else ""
    who = "an agent" if one["actor"] == "agent" else "a person"
    return [
        f"{paint.bold(one['id'])}  {one['session']}  {render.shown(one['command'])}",
        f"  {one['class']} · {who} at {render.clock(one['created_at'])} · {state}{note}",
        f"  {render.shown(one['why'])}",
    ]


def approve(console: Console) -> int:
    found = console.call("approve", {"id": console.arguments.id}, "asking the daemon")
    console.result(found, f"{found['approval']['session']} runs {render.shown(found['approval']['command'])}")
    return 0


def deny(console: Console) -> int:
    given = console.arguments
    found = console.call("deny", {"id": given.id, "note": given.why}, "asking the daemon")
    console.result(found, f"{render.shown(found['approval']['command'])} does not run")
    return 0


def ask(console: Console, approval: Approval) -> bool | None:
    """A command of ours waits. The person here is asked; if there is none, it is said how others answer."""
    paint = console.paint_aside
    command = render.shown(approval.command)
    console.say(paint.warn(f"this needs somebody's word ({approval.class_}): {command}"))
    console.aside(f"  {render.shown(approval.why)}")
    if not console.can_ask:
        until = render.clock(approval.expires_at)
        console.aside(f"  waiting until {until}: `waypoint approve {approval.id}`, or `waypoint deny`")
        return None
    sys.stderr.write("Run it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def warn(console: Console, warnings: Any) -> None:
    for one in warnings or ():
        console.say(console.paint_aside.warn(render.shown(one)))
