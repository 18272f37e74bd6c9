"""A small part of `make load`: several clients at once, compared with a model of a session."""

from __future__ import annotations

from tests.load import clients

from waypoint.home import Home


def test_what_clients_are_told_fits_one_order_of_what_they_did(home: Home) -> None:
    outcome = clients.run(home.path, 96, 5, sessions=2, clients=8)
    assert outcome.violations == []
    assert sum(outcome.operations.values()) == 96
