"""A small part of the damage campaign, below root: the database. `make damage` runs all of it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests import damage
from tests.fakes import World

from waypoint.core.capture import Wish
from waypoint.model import Size
from waypoint.store.events import make_blob
from waypoint.store.points import AgentState
from waypoint.terminal.terminal import Terminal

pytestmark = pytest.mark.leaks("a daemon inside the test process; its threads end with a process of its own")


def test_every_damage_of_the_database_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Terminal, "_foreground_group", lambda _: None)  # there is no process in it
    seed = int(os.environ.get("WAYPOINT_SEED") or random.randrange(1 << 32))
    rounds = int(os.environ.get("WAYPOINT_DAMAGES") or 90)
    world = World(tmp_path)
    try:
        world.app.sessions.new("work", world.options, Size())
        row = world.app.registry.find("work")
        for number in range(8):
            state = AgentState(kind="json", blob=make_blob(b"%d" % number * 500), version="1")
            point = world.app.capture.checkpoint(row, Wish(f"point {number}", state=state))
            world.app.store.points.add_note(point.id, "note " * 100)
            row = world.app.registry.find(row.id)
        world.settle()
        report = damage.database(world, seed, rounds)
    finally:
        world.close()
    print(report)
    assert not report.missed, f"{report.missed}\n{report}"
