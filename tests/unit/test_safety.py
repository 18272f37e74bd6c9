"""Safety points that are saved behind the answer: a restore freezes the present, an undo lets it run on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.fakes import Injected, World
from tests.unit.test_core import break_store, check, read, write

from waypoint import errors
from waypoint.core import safety
from waypoint.core.capture import Wish
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
    made.options = msgspec.structs.replace(made.options, net="none")
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
def unsaved(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Nothing is saved behind an answer before this is called."""
    save, begun = Safety.save, threading.Event()

    def later(pending: Safety, point_id: str) -> None:
        while not begun.wait(0.01):
            if pending._background._closed.is_set():
                return  # the daemon has ended before
        save(pending, point_id)

    monkeypatch.setattr(Safety, "save", later)
    yield begun.set
    begun.set()


def pending(world: World) -> list[PendingRow]:
    return world.app.store.pending.all()


def labels(world: World) -> list[str]:
    return [point.label for point in world.app.store.points.all()]


def memory_of(world: World, row: SessionRow) -> str:
    return world.builder.boxes[world.app.registry.find(row.id).box or ""].memory


def test_a_restore_answers_before_the_present_is_saved(
    world: World, row: SessionRow, unsaved: Callable[[], None]
) -> None:
    old = world.builder.boxes[row.box or ""]
    restored = world.app.restore.to(row, "one")
    assert restored.safety
    assert restored.safety.pending
    assert old.frozen
    assert world.faults.calls.count("engine.dump") == 1, "CRIU has nothing to do before the answer"
    unsaved()
    world.settle()
    saved = world.app.registry.point(row, restored.safety.id)
    assert not saved.pending
    assert (world.home.checkpoints / saved.id / "files/upper/note").read_text() == "two"
    assert not old.alive
    check(world)


def test_an_undo_before_that_lets_the_frozen_box_run_again(
    world: World, row: SessionRow, unsaved: Callable[[], None]
) -> None:
    old = world.app.registry.find(row.id)
    restored = world.app.restore.to(row, "one")
    world.faults.calls.clear()
    undone = world.app.restore.undo(row)
    assert not [call for call in world.faults.calls if call.startswith(("engine.hold", "pool.snapshot"))]
    now = world.app.registry.find(row.id)
    assert (now.box, now.head) == (old.box, old.head), "nothing has happened"
    assert read(world, row) == "two"
    assert not world.builder.boxes[now.box or ""].frozen
    assert restored.safety
    assert undone.checkpoint.id == restored.safety.id
    unsaved()
    world.settle()
    assert labels(world) == ["c1", "c3"], "what was undone is kept, and c2 is the session itself again"
    check(world)


def test_undo_and_redo_go_back_and_forth_between_frozen_boxes(
    world: World, row: SessionRow, unsaved: Callable[[], None]
) -> None:
    world.app.restore.to(row, "one")
    write(world, row, "three")
    for _ in range(3):
        world.app.restore.undo(row)
        assert read(world, row) == "two"
        world.app.restore.redo(row)
        assert read(world, row) == "three"
    assert len(pending(world)) == 1
    unsaved()
    check(world)


def test_several_restores_in_a_row_keep_every_present(
    world: World, row: SessionRow, unsaved: Callable[[], None]
) -> None:
    kept = []
    for number in range(12):
        write(world, row, str(number))
        restored = world.app.restore.to(row, "one")
        kept.append(restored.safety.id if restored.safety else "")
        if number == 7:
            unsaved()  # the next ones wait until fewer boxes stand
    world.settle()
    notes = [(world.home.checkpoints / name / "files/upper/note").read_text() for name in kept]
    assert notes == [str(number) for number in range(12)]
    check(world)


def test_a_point_that_is_wanted_is_saved_at_once_and_waited_for(world: World, row: SessionRow) -> None:
    with world.app.background.foreground():  # the daemon is busy
        restored = world.app.restore.to(row, "one")
        assert restored.safety
        assert world.app.registry.point(row, "c2").pending is False
        assert world.app.registry.point(row, restored.safety.id).label == "c2"
    check(world)


def test_a_pending_point_is_listed_and_nothing_else_meets_it(
    world: World, row: SessionRow, unsaved: Callable[[], None]
) -> None:
    world.app.restore.to(row, "one")
    assert [point.label for point in world.app.registry.all_points()] == ["c1", "c2"]
    assert world.app.registry.point(row, "c2", saved=False).pending
    assert labels(world) == ["c1"]
    assert world.app.check.run().violations == ()
    assert world.app.remains.unknown() == []
    world.app.repairs.run()
    world.app.capture.checkpoint(row, Wish("three"))
    unsaved()
    world.settle()
    by_label = {point.label: point for point in world.app.store.points.all()}
    assert by_label["c2"].parent == by_label["c1"].id
    assert by_label["c3"].parent == by_label["c1"].id
    assert (by_label["c2"].position or 0) < (by_label["c3"].position or 0)
    check(world)


@pytest.mark.parametrize("refused", ["no group", "not savable"])
def test_what_may_not_wait_is_saved_before_the_answer(world: World, row: SessionRow, refused: str) -> None:
    box = world.builder.boxes[row.box or ""]
    if refused == "no group":
        box.group = None
    else:
        world.engine.savable = False
    restored = world.app.restore.to(row, "one")
    assert restored.safety
    assert not restored.safety.pending
    assert not box.frozen
    check(world)


@pytest.mark.parametrize("verb", ["restore", "undo", "redo"])
def test_whatever_fails_the_present_runs_on_and_nothing_is_left(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch, unsaved: Callable[[], None], verb: str
) -> None:
    break_store(world, monkeypatch)
    restore = world.app.restore
    verbs = {
        "restore": lambda: restore.to(row, "one"),
        "undo": lambda: restore.undo(row),
        "redo": lambda: restore.redo(row),
    }
    failures, failed = 0, False
    world.settle()  # what follows from the first point would meet the fault instead
    if verb != "restore":
        restore.to(row, "one")
    write(world, row, "three")
    for number in range(1, 60):
        if verb == "redo" and not failed:
            restore.undo(row)
        before = read(world, row)
        world.faults.arm(number)
        try:
            verbs[verb]()
            failed = False
        except Injected:
            failed = True
        reached = len(world.faults.calls)
        world.faults.arm(None)
        live = world.app.registry.live(world.app.registry.find(row.id))
        assert not world.builder.boxes[live.box.id].frozen
        if failed:
            failures += 1
            assert read(world, row) == before
        if reached < number:
            break
        assert failed, "the verb goes on although a step has failed"
    else:
        pytest.fail("it never came to an end")
    assert failures >= 3
    unsaved()
    check(world)


def test_a_dump_that_fails_behind_the_answer_leaves_the_box_standing_still_and_says_so(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise errors.CannotCheckpoint("the disk is on fire")

    monkeypatch.setattr(world.app.capture, "save_frozen", fail)
    monkeypatch.setattr(safety, "_RETRY_SECONDS", (0.0,))
    old = row.box or ""
    world.app.restore.to(row, "one")
    world.settle()
    assert world.builder.boxes[old].frozen
    [left] = pending(world)
    assert left.problem == "the disk is on fire"
    [warning] = world.app.space.warnings(telling=True)
    assert "c2 of session 'work' (before restore to one) could not be saved: the disk is on fire" in warning
    with pytest.raises(errors.NotSaved, match="the disk is on fire"):
        world.app.fork.grow(row, "c2")
    assert world.app.registry.point(row, "c2", saved=False).problem == "the disk is on fire"
    world.app.restore.undo(row)
    assert read(world, row) == "two"
    assert not world.builder.boxes[old].frozen
    monkeypatch.undo()
    world.settle()
    assert len(pending(world)) <= 1


def test_saving_that_has_failed_is_tried_again(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch, unsaved: Callable[[], None]
) -> None:
    world.app.restore.to(row, "one")
    monkeypatch.setattr(safety, "_RETRY_SECONDS", (0.0, 0.0))
    world.faults.arm(1)
    unsaved()
    world.settle()
    world.faults.arm(None)
    assert labels(world) == ["c1", "c2"]
    assert world.app.space.warnings(telling=True) == []
    check(world)


def test_a_box_that_ends_before_it_is_saved_leaves_its_files(
    world: World, row: SessionRow, unsaved: Callable[[], None]
) -> None:
    world.app.restore.to(row, "one")
    world.builder.boxes[row.box or ""].signal_end()
    unsaved()
    world.settle()
    point = world.app.registry.point(row, "c2")
    assert point.files_only
    assert any("processes are lost" in line for line in point.coverage)
    assert (world.home.checkpoints / point.id / "files/upper/note").read_text() == "two"
    world.app.restore.undo(row)
    assert read(world, row) == "two"
    check(world)


# ---- the daemon dies -----------------------------------------------------------------------------


class Death(BaseException):
    """The daemon ends here."""


FREEZING = ("restore.frozen", "restore.kept", "restore.copied", "restore.moved", "restore.left")
SAVING = ("pending.begun", "pending.dumped", "pending.noted", "pending.published", "pending.saved")


@pytest.mark.parametrize("at", FREEZING)
def test_a_daemon_that_dies_in_a_restore_leaves_a_session_that_runs(
    world: World, row: SessionRow, unsaved: Callable[[], None], at: str
) -> None:
    die_at(world, at, lambda: world.app.restore.to(row, "one"))
    unsaved()
    world.start()
    live = world.app.registry.live(world.app.registry.find(row.id))
    assert not world.builder.boxes[live.box.id].frozen
    world.settle()
    moved = at in FREEZING[3:]
    assert labels(world) == (["c1", "c2"] if moved else ["c1"])
    if moved:
        world.app.restore.undo(row)
    assert read(world, row) == "two"
    check(world)


@pytest.mark.parametrize("at", SAVING)
def test_the_next_daemon_finishes_what_is_pending(world: World, row: SessionRow, at: str) -> None:
    def die(name: str) -> None:
        if name == at:
            raise Death

    faults.control(die)
    world.app.restore.to(row, "one")
    die_at(world, "", world.settle)
    world.start()
    world.settle()
    assert labels(world) == ["c1", "c2"]
    assert pending(world) == []
    files = world.home.checkpoints / world.app.registry.point(row, "c2").id / "files"
    assert (files / "upper/note").read_text() == "two"
    check(world)


def test_the_next_daemon_lets_a_frozen_box_run_again(
    world: World, row: SessionRow, unsaved: Callable[[], None]
) -> None:
    world.app.restore.to(row, "one")
    die_at(world, "", lambda: None)
    world.start()
    world.app.restore.undo(row)
    assert read(world, row) == "two"
    assert world.app.registry.find(row.id).box == row.box
    unsaved()
    check(world)


def test_a_reboot_before_it_is_saved_loses_a_pending_point_and_says_so(
    world: World, row: SessionRow, unsaved: Callable[[], None]
) -> None:
    world.app.restore.to(row, "one")
    die_at(world, "", lambda: None)
    for box in list(world.builder.boxes.values()):
        box.kill(world.home)
    world.builder.boxes.clear()
    for path in filter(Path.is_file, world.home.run.iterdir()):
        path.unlink()
    unsaved()
    world.start()
    assert labels(world) == ["c1"]
    [warning] = world.app.space.warnings(telling=True)
    assert "is lost: the machine went down before it was saved" in warning
    world.app.restore.to(row, "one")
    check(world)


def test_a_session_that_is_removed_takes_its_frozen_boxes_along(
    world: World, row: SessionRow, unsaved: Callable[[], None]
) -> None:
    world.app.restore.to(row, "one")
    unsaved()
    world.app.removals.remove([world.app.registry.find(row.id)])
    check(world)
    assert pending(world) == []


def test_all_boxes_end_only_after_what_is_pending_is_saved(world: World, row: SessionRow) -> None:
    with world.app.background.foreground():
        world.app.restore.to(row, "one")
        world.app.sessions.stop_all()
    world.settle()
    assert labels(world) == ["c1", "c2"]
    assert world.builder.standing() == {}


def die_at(world: World, at: str, verb: Callable[[], object]) -> None:
    """Runs a verb until the daemon dies at a fault point; without one it dies afterwards."""

    def die(name: str) -> None:
        if name == at:
            raise Death

    faults.control(die)
    try:
        verb()
        assert not at
    except Death:
        pass
    finally:
        faults.control(None)
    for live in world.app.registry.lives():
        live.terminal.close("the daemon died")
        live.ended.set()  # its threads stay, and write nothing down for it any more
    world.app.background.close()
    world.app.store.close()
