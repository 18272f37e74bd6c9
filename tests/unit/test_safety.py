"""Safety points that are saved behind the answer: a restore freezes the present, an undo lets it run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes import Injected, World
from tests.unit.test_core import break_store, check, read, write
from tests.waiting import until

from waypoint import errors
from waypoint.core.capture import Wish
from waypoint.core.recovery import Recovery
from waypoint.core.safety import Safety
from waypoint.kernel import faults
from waypoint.model import Size
from waypoint.store.pending import PendingRow
from waypoint.store.sessions import SessionRow
from waypoint.terminal.terminal import Terminal

pytestmark = pytest.mark.leaks("a daemon inside the test process; its threads end with a process of its own")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(Terminal, "_foreground_group", lambda _: None)  # there is no process in it
    made = World(tmp_path)
    made.builder.freezes = True
    yield made
    faults.control(None)
    made.close()


@pytest.fixture
def row(world: World) -> SessionRow:
    """A session with one point, and something that is in no point."""
    world.app.sessions.new("work", world.options, Size())
    row = world.app.registry.find("work")
    world.app.capture.checkpoint(row, Wish("one", name="one"))
    write(world, row, "two")
    return world.app.registry.find(row.id)


@pytest.fixture
def unsaved(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Nothing is saved behind an answer before this is called."""
    save, begun = Safety.save, []

    def later(safety: Safety, point_id: str) -> None:
        until(lambda: begun)
        save(safety, point_id)

    monkeypatch.setattr(Safety, "save", later)
    return lambda: begun.append(True)
