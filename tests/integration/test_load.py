"""A small part of `make load`."""

from __future__ import annotations

import pytest
from tests.load import clients, cycles

from waypoint.home import Home


def test_what_clients_are_told_fits_one_order_of_what_they_did(home: Home) -> None:
    outcome = clients.run(home.path, 96, 5, sessions=2, clients=8)
    assert outcome.violations == []
    assert sum(outcome.operations.values()) == 96


def test_repetitions_of_checkpoint_change_and_restore_leave_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycles, "_CALM_SECONDS", 0.6)
    outcome = cycles.run(home.path, 16, sessions=2, parts=4)
    assert outcome.cycles == 16
    # Threads are started when they are first needed, and caches fill: `make load` looks at those.
    ours = [one for one in outcome.violations if not one.startswith(("threads", "memory", "pool"))]
    assert ours == []
