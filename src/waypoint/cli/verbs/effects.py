"""The ledger of effects: what commands did outside the session, which no restore takes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waypoint import errors
from waypoint.api.effects import Effect, Effects
from waypoint.cli import render
from waypoint.cli.spec import SESSION, argument, flag, verb
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.console import Console


@verb(
    "effects",
    "show what was done outside the session, which no restore takes back",
    SESSION,
    argument("ref", metavar="REF", nargs="?", help="only what was done since that point"),
    flag("--all", help="of all sessions, also of removed ones"),
    flag("--unseen", help="also commands whose effects are not known"),
    examples=("waypoint effects", "waypoint effects up", "waypoint effects --all --json"),
    about="The ledger is not part of any point. Each effect has a key: doing the same again gives a warning.",
)
def effects(console: Console) -> int:
    arguments = console.arguments
    if arguments.all and arguments.ref:
        raise errors.UsageError("--all and a point exclude each other", hint="leave out one of them")
    request = Effects(session=console.session, ref=arguments.ref, all=arguments.all)
    result = console.send(request, "reading the ledger")
    lines = views.Effects(msgspec.to_builtins(result)).lines(
        everything=arguments.unseen, hint=" (--unseen lists them)"
    )
    console.show(result, render.styled(lines, console.paint) if lines else "")
    if not lines:
        console.hint("no effects outside the session are known")
    return 0


@verb(
    "effect",
    "add an effect that was caused by other means than a command",
    SESSION,
    argument("what", metavar="WHAT", nargs="+", help="what was done, in your words"),
    argument("--target", metavar="TARGET", default="", help="what it was done to"),
    argument(
        "--key", metavar="KEY", default="", help="identifies the effect: the same key is the same effect"
    ),
    argument("--compensate", metavar="HOW", default="", help="how it can be compensated"),
    flag("--reversible", help="it can be compensated"),
    examples=("waypoint effect 'charged order 17' --key order-17 --compensate 'refund it'",),
    about="It is marked as claimed.",
)
def effect(console: Console) -> int:
    arguments = console.arguments
    request = Effect(
        session=console.session,
        what=" ".join(arguments.what),
        class_="external-reversible" if arguments.reversible else "irreversible",
        target=arguments.target,
        key=arguments.key,
        compensate=arguments.compensate,
        actor=console.actor,
    )
    result = console.send(request, "waiting for the daemon")
    console.result(result, f"added to the ledger as {result.effect.id}")
    return 0
