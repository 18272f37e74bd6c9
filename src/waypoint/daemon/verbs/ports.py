"""Ports: what listens in a session, and the ports of this machine that lead there."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from waypoint.api import ports as api
from waypoint.api.difference import PortFact
from waypoint.core.observe import listening_ports
from waypoint.daemon.connection import Connection
from waypoint.kernel import processes
from waypoint.store.sessions import SessionRow

if TYPE_CHECKING:
    from waypoint.daemon.app import App


def ports(app: App, _: Connection, request: api.Ports) -> api.PortsResult:
    row = app.registry.find_for(request.session, request.ref)
    point = app.registry.point(row, request.ref) if request.ref else None
    found: Iterable[PortFact] = app.registry.facts(point).ports if point else _listening(app, row)
    redactor = app.registry.redactor(row)
    return api.PortsResult(
        session=row.name,
        ports=tuple(
            msgspec.structs.replace(port, command=redactor.redact(port.command).text)
            if port.command
            else port
            for port in found
        ),
        forwards=tuple(app.store.forwards.of(row.id)),
        point=point.label if point else None,
    )


def _listening(app: App, row: SessionRow) -> tuple[PortFact, ...]:
    live = app.registry.live(row)
    with app.registry.death_named(row, live):
        return listening_ports(live.box, processes.below(live.box.pid), own_network=row.options.net != "host")


def forward(app: App, _: Connection, request: api.Forward) -> api.Forwarded:
    row = app.registry.find(request.session)
    made = app.forwards.add(row, request.port, request.local_port, request.bind)
    warnings = []
    if not ipaddress.ip_address(made.address).is_loopback:
        warnings.append(
            f"every machine that reaches {made.endpoint} reaches port {made.port} of session {row.name!r}"
        )
    listening = any(
        port.port == made.port and port.protocol.startswith("tcp") for port in _listening(app, row)
    )
    return api.Forwarded(session=row.name, forward=made, listening=listening, warnings=tuple(warnings))


def unforward(app: App, _: Connection, request: api.Unforward) -> api.Unforwarded:
    row = app.registry.find(request.session)
    return api.Unforwarded(session=row.name, ended=tuple(app.forwards.remove(row, request.port)))
