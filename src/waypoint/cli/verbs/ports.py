"""Ports: what listens in a session, and how to reach it from this machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from waypoint.api.ports import Forward, Ports, Unforward
from waypoint.cli import render
from waypoint.cli.spec import SESSION_FIRST, argument, verb

if TYPE_CHECKING:
    from waypoint import model
    from waypoint.api.difference import PortFact
    from waypoint.cli.console import Console

_HIGHEST_PORT = 65535


def _number(text: str, lowest: int) -> int:
    if not (text.isascii() and text.isdecimal() and lowest <= int(text) <= _HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: {lowest} to {_HIGHEST_PORT}")
    return int(text)


def _port(text: str) -> int:
    return _number(text, 1)


def _pair(text: str) -> tuple[int, int | None]:
    """`8000` or `8000:9000`."""
    port, colon, local = text.partition(":")
    return _port(port), _number(local, 0) if colon else None


@verb(
    "ports",
    "list what listens in a session, and which ports of this machine lead there",
    *SESSION_FIRST,
    argument("--at", metavar="REF", dest="ref", help="what listened at a point"),
    examples=("waypoint ports", "waypoint ports work", "waypoint ports --at c5"),
    about="`waypoint forward` makes a TCP port of a session reachable from this machine.",
)
def ports(console: Console) -> int:
    request = Ports(session=console.session, ref=console.arguments.ref)
    result = console.send(request, "looking at the session")
    by_port = {forward.port: forward for forward in result.forwards}
    rows = [_row(port, by_port) for port in result.ports]
    seen = {port.port for port in result.ports if port.protocol.startswith("tcp")}
    rows += [
        ("tcp", "-", str(forward.port), "nothing listens there now", _place(forward))
        for forward in result.forwards
        if forward.port not in seen
    ]
    if not rows:
        console.result(result, None)
        console.hint(f"nothing listens in {result.session}")
        return 0
    head = ("PROTOCOL", "ADDRESS", "PORT", "PROCESS", "FORWARDED FROM")
    console.result(result, render.table(head, rows, console.paint))
    return 0


def _row(port: PortFact, forwards: dict[int, model.Forward]) -> tuple[str, ...]:
    process = f"{port.pid} {render.cut(port.command or '', 50)}" if port.pid else "-"
    forward = forwards.get(port.port) if port.protocol.startswith("tcp") else None
    return port.protocol, port.address, str(port.port), process, _place(forward) if forward else ""


def _place(forward: model.Forward) -> str:
    return f"{forward.endpoint} ({forward.problem})" if forward.problem else forward.endpoint


@verb(
    "forward",
    "let a port of this machine lead to a TCP port of a session",
    *SESSION_FIRST,
    argument(
        "pair",
        metavar="PORT[:LOCAL]",
        type=_pair,
        help="the port in the session, and that of this machine (0: any that is free; default: the same"
        " number if it is free)",
    ),
    argument(
        "--bind",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="the address of this machine at which it listens (default: 127.0.0.1, which only this machine"
        " reaches; 0.0.0.0: every machine does)",
    ),
    examples=(
        "waypoint forward 8000",
        "waypoint forward work 8000:9000",
        "waypoint forward work 5432:0 --json",
    ),
    about="It prints where to connect. A forward follows its session: a restore keeps it, a fork has none,"
    " and it ends with `waypoint unforward` and with `stop`, `park` and `rm`. Every user of this machine can"
    " connect to a port of 127.0.0.1.",
)
def forward(console: Console) -> int:
    port, local_port = console.arguments.pair
    request = Forward(port=port, session=console.session, local_port=local_port, bind=console.arguments.bind)
    result = console.send(request, "forwarding the port")
    for warning in result.warnings:
        console.warn(warning)
    console.result(result, result.forward.endpoint)
    if not result.listening:
        console.hint(f"nothing listens at port {port} in {result.session} yet")
    return 0


@verb(
    "unforward",
    "end a forward",
    *SESSION_FIRST,
    argument("port", metavar="PORT", nargs="?", type=_port, help="the port in the session (default: all)"),
    examples=("waypoint unforward work 8000", "waypoint unforward work"),
    about="Connections that are open through it end too.",
)
def unforward(console: Console) -> int:
    result = console.send(
        Unforward(session=console.session, port=console.arguments.port), "ending the forward"
    )
    lines = [
        f"{forward.endpoint} leads to port {forward.port} of {result.session} no more"
        for forward in result.ended
    ]
    console.result(result, "\n".join(lines))
    return 0
