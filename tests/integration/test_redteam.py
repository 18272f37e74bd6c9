"""A small part of `make redteam`: hostile boxes."""

from __future__ import annotations

import pytest
from tests.redteam import criu  # noqa: F401 - registers its attacks
from tests.redteam.attacks import ATTACKS, Attack, run

from waypoint.home import Home


@pytest.mark.parametrize("one", [one for one in ATTACKS if one.quick], ids=lambda one: one.name)
def test_a_hostile_box_fails(home: Home, one: Attack) -> None:
    run(one, home.path)
