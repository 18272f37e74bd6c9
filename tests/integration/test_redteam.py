"""A small part of `make redteam`: hostile boxes."""

from __future__ import annotations

import pytest
from tests.redteam import criu, files, limits  # noqa: F401 - they register attacks
from tests.redteam.attacks import ATTACKS, Attack, run

import waypoint
from waypoint.home import Home
from waypoint.kernel import cgroups
from waypoint.kernel.memory import machine_bytes


@pytest.mark.parametrize("one", [one for one in ATTACKS if one.quick], ids=lambda one: one.name)
def test_a_hostile_box_fails(home: Home, one: Attack) -> None:
    run(one, home.path)


def test_a_session_without_options_has_limits(home: Home, session: waypoint.Session) -> None:
    """Generous ones: what is left is for the others."""
    usual = cgroups.usual_limits()
    assert (session.info.memory_limit_bytes or 0) >> 20 == (usual.memory_bytes or 0) >> 20
    assert session.info.pids_limit == usual.pids
    if usual.memory_bytes:
        assert usual.memory_bytes < machine_bytes()["MemTotal"]
