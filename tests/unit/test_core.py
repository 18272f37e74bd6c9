"""The verbs on a machine that fails: whatever call fails, every row has its data and nothing is left over."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from tests.fakes import Injected, World
from tests.waiting import until

from waypoint import errors
from waypoint.box.box import Box
from waypoint.core import forwards, registry, space
from waypoint.core.background import Background
from waypoint.core.capture import Wish
from waypoint.core.live import new_id
from waypoint.daemon.app import App
from waypoint.engine.filenames import NamedFile
from waypoint.kernel import faults
from waypoint.kernel.network.flows import Flow
from waypoint.kernel.network.sockets import Connection
from waypoint.model import Size
from waypoint.store.events import make_blob
from waypoint.store.points import AgentState
from waypoint.store.sessions import SessionRow
from waypoint.terminal.terminal import Terminal

pytestmark = pytest.mark.leaks("a daemon inside the test process; its threads end with a process of its own")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(Terminal, "_foreground_group", lambda _: None)  # there is no process in it
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def row(world: World) -> SessionRow:
    """A session with one point."""
    world.app.sessions.new("work", world.options, Size())
    row = world.app.registry.find("work")
    write(world, row, "one")
    world.app.capture.checkpoint(row, Wish("one", name="one"))
    return world.app.registry.find(row.id)


def volume_file(world: World, row: SessionRow) -> Path:
    box = world.app.registry.find(row.id).box
    assert box
    return world.home.sessions / box / "upper" / "note"


def write(world: World, row: SessionRow, text: str) -> None:
    volume_file(world, row).write_text(text)


def read(world: World, row: SessionRow) -> str:
    return volume_file(world, row).read_text()


def check(world: World) -> None:
    """Every row has its data, all data has a row, every live session runs, and nothing else does."""
    world.settle()
    app, home = world.app, world.home
    app.remains.retry()
    points = app.store.points.all()
    assert {path.name for path in home.checkpoints.iterdir()} == {point.id for point in points}
    for point in points:
        assert (home.checkpoints / point.id / "files").is_dir()
        assert point.files_only or (home.checkpoints / point.id / "images" / "core.img").exists()
    assert list(home.staging.iterdir()) == []
    rows = app.store.sessions.all()
    assert {path.name for path in home.sessions.iterdir()} == {row.box for row in rows if row.box}
    assert {path.name for path in home.beginnings.iterdir()} == {row.beginning for row in rows}
    lives = {row.box for row in rows if row.state == "live"}
    assert set(world.builder.standing()) == lives
    assert {live.box.id for live in app.registry.lives()} == lives
    for row in rows:
        if row.state == "live":
            live = app.registry.live(row)
            assert not live.terminal.closed
            assert not live.ended.is_set()
    assert {path.stem for path in home.run.glob("*.terminal")} <= lives


def break_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database can fail too: at the row that would make something exist."""
    store = world.app.store
    for table, name in ((store.points, "add"), (store.operations, "record_move"), (store.sessions, "add")):
        method: Callable[..., Any] = getattr(table, name)

        def call(*args: Any, method: Callable[..., Any] = method, **options: Any) -> Any:
            world.faults.call(method.__qualname__)
            return method(*args, **options)

        monkeypatch.setattr(table, name, call)


@dataclass(frozen=True)
class Case:
    """A verb, and what has to be there before it."""

    name: str
    verb: Callable[[App, SessionRow], object]
    prepare: Callable[[App, SessionRow], object] = lambda _app, _row: None
    ends_session: bool = False


CASES = (
    Case("checkpoint", lambda app, row: app.capture.checkpoint(row, Wish("two"))),
    Case("checkpoint of files", lambda app, row: app.capture.checkpoint(row, Wish("two", files_only=True))),
    Case("restore", lambda app, row: app.restore.to(row, "one")),
    Case("restore without safety", lambda app, row: app.restore.to(row, "one", safety=False)),
    Case("restore of files", lambda app, row: app.restore.to(row, "one", files_only=True)),
    Case("undo", lambda app, row: app.restore.undo(row), lambda app, row: app.restore.to(row, "one")),
    Case("fork", lambda app, row: app.fork.grow(row, "one", 2)),
    Case("new", lambda app, _: app.sessions.new(None, app.registry.find("work").options, Size())),
    Case(
        "park",
        lambda app, row: app.sessions.park(row),
        lambda app, row: app.registry.find(row.id).state == "live" or app.restore.to(row, "@"),
        ends_session=True,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whatever_fails_nothing_is_lost_and_nothing_is_left(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    break_store(world, monkeypatch)
    failures = 0
    for number in range(1, 60):
        case.prepare(world.app, row)
        world.settle()
        before = read(world, row)
        world.faults.arm(number)
        try:
            case.verb(world.app, row)
            failed = False
        except (Injected, errors.CannotRestore):
            failed = True
        world.settle()
        reached = len(world.faults.calls)
        world.faults.arm(None)
        check(world)
        if failed:
            failures += 1
            assert world.app.registry.running(row.id), "the session runs on"
            assert read(world, row) == before
        if reached < number:
            break
    else:
        pytest.fail("it never came to an end")
    assert failures >= 3, "the verb was made to fail in several places"


@pytest.mark.parametrize("files_only", [False, True])
def test_a_pool_that_runs_full_is_one_error_whichever_step_of_a_checkpoint_meets_it(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch, files_only: bool
) -> None:
    """It was told in several ways: by the look before, by the dump, or by whatever else was written."""
    full: list[Callable[[], Exception]] = [
        lambda: OSError(errno.ENOSPC, "No space left on device"),
        lambda: OSError(errno.EDQUOT, "Disk quota exceeded"),
        lambda: errors.NoSpace("no space left in the pool for the memory of the processes"),
        lambda: errors.NoSpace("no space left to snapshot", path=str(world.home.staging / "x")),
    ]
    me, at, calls = threading.get_ident(), 0, list[str]()

    def call(name: str) -> None:
        if threading.get_ident() != me or name == "capture.begun":
            return
        calls.append(name)
        if len(calls) == at and "capture.stored" not in calls:  # from there on the point exists
            error = full[at % len(full)]()
            raise error

    monkeypatch.setattr(world.faults, "call", call)
    world.settle()
    faults.control(call)
    met: dict[str, errors.NoSpace] = {}
    try:
        for at in range(1, 60):
            calls.clear()
            try:
                world.app.capture.checkpoint(row, Wish("two", files_only=files_only))
                break
            except errors.NoSpace as error:
                met[calls[at - 1]] = error
        else:
            pytest.fail("it never came to an end")
    finally:
        faults.control(None)
    assert {"capture.staged", "pool.snapshot", "capture.published"} <= met.keys()
    assert files_only or {"engine.freeze", "engine.write"} <= met.keys()
    for told in met.values():
        assert told.details.keys() == {"need_bytes", "free_bytes"}
        assert "the session goes on untouched" in told.message
        assert "forget" in str(told.hint)
    check(world)


def test_a_full_disk_of_the_host_is_named_in_the_error_of_a_checkpoint(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = errors.NoSpace("the host's disk is almost full", path=str(world.home.path / "pool.img"))
    monkeypatch.setattr(world.pool, "snapshot", Mock(side_effect=full))
    with pytest.raises(errors.NoSpace, match="the host's disk is almost full"):
        world.app.capture.checkpoint(row, Wish("two"))


def test_a_full_pool_leaves_a_file_of_the_base_out_and_says_so(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = world.base / "bin/bash"
    status = program.stat()
    needed = NamedFile("/bin/bash", status.st_size, status.st_mode)
    kept = world.app.kept
    monkeypatch.setattr(kept, "_from_base", lambda *_: [(needed, "bin/bash")])
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(kept, "_store_content", Mock(side_effect=full))
    point = world.app.capture.checkpoint(row, Wish("two"))
    world.settle()
    (noted,) = kept._noted(point, world.options)
    assert (noted.digest, noted.why_not) == (None, "the pool was full")


def test_a_restore_brings_the_files_back_and_undo_takes_that_back(world: World, row: SessionRow) -> None:
    write(world, row, "two")
    restored = world.app.restore.to(row, "one")
    assert read(world, row) == "one"
    assert restored.safety is not None
    world.app.restore.undo(row)
    assert read(world, row) == "two"
    world.app.restore.redo(row)
    assert read(world, row) == "one"
    check(world)


def test_the_last_pause_of_a_dump_counts(world: World, row: SessionRow) -> None:
    point = world.app.capture.checkpoint(row, Wish("two"))
    assert world.faults.calls.count("engine.freeze") == 4, "two dumps with two pauses each"
    assert (world.home.checkpoints / point.id / "files/upper/note").read_text() == "one"


def test_a_fork_has_the_files_of_its_point_and_goes_its_own_way(world: World, row: SessionRow) -> None:
    (fork,) = world.app.fork.grow(row, "one")
    other = world.app.registry.find(fork.id)
    write(world, other, "forked")
    assert read(world, row) == "one"
    world.app.removals.remove([other])
    check(world)


def test_a_point_that_is_being_restored_is_not_forgotten(world: World, row: SessionRow) -> None:
    app = world.app
    point = app.registry.point(row, "one")
    app.capture.checkpoint(row, Wish("two"))
    with app.registry.using(point):
        assert not app.registry.remove_point(point.id)
    assert app.space.forget_points([point], force=True).forgotten == (point,)
    with pytest.raises(errors.NotFound):
        app.restore.to(row, "one")
    check(world)


def test_a_forwarded_connection_begins_only_after_the_dump(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = world.app.registry.live(row)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def connect(*_: object) -> tuple[socket.socket, Connection]:
            far = socket.create_connection(address)
            return far, Connection(*address, *far.getsockname())

        monkeypatch.setattr(forwards, "_connect", connect)
        own_network = msgspec.structs.replace(row.options, net="none")
        forward = world.app.forwards.add(msgspec.structs.replace(row, options=own_network), 8000, 0)
        server.settimeout(20)
        with socket.create_connection((forward.address, forward.local_port)) as early:
            first, _ = server.accept()
            with world.app.forwards.closed_for_dump(live) as there:
                assert [connection.peer_port for connection in there] == [first.getpeername()[1]]
                late = socket.create_connection((forward.address, forward.local_port))
                until(lambda: world.app.forwards._dumps[live.box.id].held)
                early.sendall(b"x")
                assert first.recv(1) == b"x", "one that is open goes on"
                server.setblocking(False)
                with pytest.raises(BlockingIOError):
                    server.accept()
            server.settimeout(20)
            second, _ = server.accept()
            late.sendall(b"y")
            assert second.recv(1) == b"y"
            for sock in (first, second, late):
                sock.close()
    assert world.app.registry.describe(row).forwards == (forward,)
    world.app.removals.remove([row])
    assert world.app.store.forwards.all() == []


def test_a_box_that_dies_leaves_a_dead_session_that_can_be_restored(world: World, row: SessionRow) -> None:
    live = world.app.registry.live(row)
    live.box.signal_end()
    assert world.app.registry.describe(row).state == "dead"
    with pytest.raises(errors.SessionDead):
        world.app.capture.checkpoint(row, Wish("too late"))
    world.app.restore.to(row, "one")
    assert world.app.registry.describe(world.app.registry.find(row.id)).state == "live"
    check(world)


# ---- proofs --------------------------------------------------------------------------------------


def restorable(world: World, row: SessionRow, ref: str) -> tuple[str, str | None]:
    point = world.app.registry.point(world.app.registry.find(row.id), ref)
    return point.restorable, point.restore_error


def test_a_session_whose_point_cannot_be_restored_is_not_parked(world: World, row: SessionRow) -> None:
    world.engine.unrestorable = "there is no such thing"
    with pytest.raises(errors.CannotRestore, match="not parked: there is no such thing"):
        world.app.sessions.park(row)
    assert world.app.registry.running(row.id)
    assert restorable(world, row, "@") == ("failed", "there is no such thing")
    check(world)
    world.engine.unrestorable = ""
    world.app.sessions.park(row)
    assert restorable(world, row, "@") == ("proven", None)
    check(world)


def test_a_session_is_not_stopped_at_a_point_that_cannot_be_restored(world: World, row: SessionRow) -> None:
    world.engine.unrestorable = "there is no such thing"
    with pytest.raises(errors.CannotRestore, match="not stopped: there is no such thing"):
        world.app.sessions.stop(row, discard=True)
    assert world.app.registry.running(row.id)
    check(world)
    world.engine.unrestorable = ""
    world.app.sessions.stop(row, discard=True)
    assert restorable(world, row, "@") == ("proven", None)
    check(world)


def test_a_tree_that_cannot_be_restored_without_its_memory_is_restored_with_it(
    world: World, row: SessionRow
) -> None:
    world.engine.lazy_fails = True
    world.app.restore.to(row, "one")
    assert restorable(world, row, "one") == ("proven", None)
    check(world)


def test_every_restore_shows_whether_its_point_is_restorable(world: World, row: SessionRow) -> None:
    assert restorable(world, row, "one") == ("unproven", None)
    world.engine.unrestorable = "for now"
    with pytest.raises(errors.CannotRestore):
        world.app.restore.to(row, "one")
    assert restorable(world, row, "one") == ("failed", "for now")
    world.engine.unrestorable = ""
    world.app.restore.to(row, "one")
    assert restorable(world, row, "one") == ("proven", None)
    check(world)


def test_the_point_before_one_that_cannot_be_restored_is_not_forgotten(world: World, row: SessionRow) -> None:
    app = world.app
    first = app.registry.point(row, "one")
    second = app.capture.checkpoint(row, Wish("two"))
    app.store.points.set_restorable(second.id, "broken")
    with pytest.raises(errors.UsageError, match="c2 of session 'work' cannot be restored"):
        app.space.forget_points([first], force=True)
    app.capture.checkpoint(row, Wish("three"))
    assert app.space.forget_points([first], force=True).forgotten


def test_thinning_keeps_the_newest_point_that_is_known_to_come_back(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "AUTOMATIC_KEPT", 1)
    app = world.app
    points = [app.capture.checkpoint(row, Wish(str(number), kind="auto")) for number in range(5)]
    app.store.points.set_restorable(points[1].id, None)
    app.store.points.set_restorable(points[3].id, "broken")
    gone = [point.id for point in app.space._thinnable()]
    assert gone == [points[0].id, points[2].id, points[3].id]


# ---- recovery ------------------------------------------------------------------------------------


def test_the_next_daemon_takes_over_what_runs_and_clears_away_the_rest(world: World, row: SessionRow) -> None:
    world.app.sessions.new("other", world.options, Size())
    other = world.app.registry.find("other")
    world.lose_daemon()
    assert other.box
    world.builder.boxes[other.box].signal_end()
    (world.home.staging / "half").mkdir()
    (world.home.checkpoints / new_id()).mkdir()
    (world.home.sessions / new_id()).mkdir()
    (world.home.beginnings / new_id()).mkdir()
    world.start()
    assert world.app.registry.running(row.id)
    assert world.app.registry.find("other").state == "dead"
    check(world)


def test_contacts_of_a_box_that_died_while_no_daemon_ran_are_in_no_later_point(
    world: World, row: SessionRow
) -> None:
    assert row.box
    world.lose_daemon()
    world.builder.boxes[row.box].signal_end()
    flow = Flow(
        interface=world.network.interface(row.box),
        address="192.0.2.7",
        protocol="tcp",
        port=443,
        bytes_out=5000,
        bytes_in=100,
        first_seconds_ago=1.0,
        last_seconds_ago=0.0,
    )
    world.network.counted += (flow,)
    app = world.start()
    assert not world.network.counted
    app.restore.to(row, "one")
    app.capture.checkpoint(row, Wish("later"))
    points = [point.id for point in app.store.points.all()]
    assert app.contacts.between(points, present_of=row.id) == []
    (contact,) = app.contacts.since(row, app.registry.point(row, "one"))
    assert (contact.address, contact.bytes_out) == ("192.0.2.7", 5000)


def test_a_command_that_was_typed_and_ended_while_no_daemon_ran_is_in_the_ledger(
    world: World, row: SessionRow
) -> None:
    world.app.gate.set_policy(row, '[[rule]]\ncommand = "shipit"\nclass = "irreversible"\n')
    shell = world.app.registry.live(row).terminal.shell
    assert shell
    assert row.box
    world.lose_daemon()
    world.builder.boxes[row.box].printed = (
        f"\x1b]133;C;k={shell.key}\x07shipped\r\n"
        f"\x1b]133;E;k={shell.key};n=1;c=   12  shipit now\x07\x1b]133;D;0;k={shell.key};p=/root\x07"
    ).encode()
    world.start()
    world.settle()
    (effect,) = world.app.store.ledger.effects()
    assert (effect.command, effect.source, effect.state) == ("shipit now", "typed", "done")
    kinds = [event.kind for event in world.app.journal.trace(world.app.registry.find(row.id))]
    assert kinds[-2:] == ["command", "effect"], "the effect comes after its command"


def test_a_box_whose_keeper_speaks_another_version_is_left_in_peace(world: World, row: SessionRow) -> None:
    world.app.sessions.new("other", world.options, Size())
    assert row.box
    world.lose_daemon()
    box = world.builder.boxes[row.box]
    box.protocol = "2"
    app = world.start()
    assert box.alive, "it is not ended"
    assert (world.home.sessions / row.box).is_dir()
    session = app.registry.describe(row)
    assert (session.state, session.pid) == ("live", box.pid)
    verbs: tuple[Callable[[], object], ...] = (
        lambda: app.capture.checkpoint(row, Wish("two")),
        lambda: app.restore.to(row, "one"),
        lambda: app.sessions.park(row),
        lambda: app.removals.remove([row]),
    )
    for verb in verbs:
        with pytest.raises(errors.SessionBusy, match="keeper speaks protocol 2, this daemon 1"):
            verb()
    assert box.alive
    assert app.fork.grow(row, "one"), "its points can be used"
    assert app.registry.running(app.registry.find("other").id), "and so can the other sessions"
    world.lose_daemon()
    box.protocol = ""
    app = world.start()
    assert app.registry.running(row.id), "its own version goes on with it"
    app.restore.to(row, "one")
    check(world)


# ---- rows and data -------------------------------------------------------------------------------


def lose_rows(world: World, *statements: str) -> None:
    """The database as an earlier moment left it: a power cut takes the last transactions."""
    world.lose_daemon()
    with sqlite3.connect(world.home.database) as connection:
        connection.execute("PRAGMA foreign_keys=ON")
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_a_point_whose_row_was_lost_is_adopted_and_not_deleted(world: World, row: SessionRow) -> None:
    write(world, row, "two")
    state = AgentState(kind="json", blob=make_blob(b"{}"), version="7")
    point = world.app.capture.checkpoint(row, Wish("two", name="two", state=state))
    lose_rows(
        world,
        f"UPDATE sessions SET head = '{row.head}', points = 1",
        "DELETE FROM checkpoints WHERE number = 2",
    )
    app = world.start()
    again = app.registry.point(row, "two")
    assert again.id == point.id
    assert (again.label, again.intent, again.parent, again.created_at, again.coverage) == (
        point.label,
        point.intent,
        point.parent,
        point.created_at,
        point.coverage,
    )
    assert app.store.points.agent_state(point.id) == ("json", b"{}")
    assert app.registry.find(row.id).head == point.id, "it was the session's next point"
    app.restore.to(row, "one")
    app.restore.to(row, "two")
    assert read(world, row) == "two"
    check(world)


def test_points_of_a_session_whose_row_was_lost_come_back_with_a_session_that_can_be_restored(
    world: World, row: SessionRow
) -> None:
    lose_rows(world, "DELETE FROM sessions")
    app = world.start()
    found = app.registry.find("work")
    assert (found.id, found.state, found.options) == (row.id, "stopped", row.options)
    app.restore.to(found, "one")
    assert read(world, found) == "one"


def test_a_lost_session_does_not_take_the_name_of_another_one(world: World, row: SessionRow) -> None:
    lose_rows(world, "DELETE FROM checkpoints", "UPDATE sessions SET id = 'other', head = NULL, box = NULL")
    app = world.start()
    assert {found.name: found.id for found in app.store.sessions.all()} == {"work": "other", "work-2": row.id}


def test_a_forgotten_point_does_not_come_back_when_its_folder_does(world: World, row: SessionRow) -> None:
    app = world.app
    app.capture.checkpoint(row, Wish("two"))
    one = app.registry.point(row, "one")
    folder, saved = world.home.checkpoints / one.id, world.home.path / "saved"
    shutil.copytree(folder, saved)
    app.space.forget_points([one], force=True)
    world.lose_daemon()
    shutil.copytree(saved, folder)  # the pool had not committed the deletion
    app = world.start()
    assert not folder.exists()
    assert one.id not in app.store.points.ids()
    app.removals.remove([app.registry.find("work")])
    world.lose_daemon()
    shutil.copytree(saved, folder)
    (folder / "point.json").unlink()
    app = world.start()
    assert not app.store.sessions.all()
    check(world)


def test_points_of_a_removed_session_do_not_come_back(world: World, row: SessionRow) -> None:
    folder, saved = world.home.checkpoints / str(row.head), world.home.path / "saved"
    world.settle()
    shutil.copytree(folder, saved)
    world.app.removals.remove([row])
    world.lose_daemon()
    shutil.copytree(saved, folder)
    app = world.start()
    assert not app.store.sessions.all()
    check(world)


def test_a_row_without_data_is_not_offered(world: World, row: SessionRow) -> None:
    app = world.app
    lost = app.capture.checkpoint(row, Wish("two"))
    cut = app.capture.checkpoint(row, Wish("three"))
    lose_rows(world, "UPDATE checkpoints SET durable = 0 WHERE number > 1")
    shutil.rmtree(world.home.checkpoints / lost.id)
    (world.home.checkpoints / cut.id / "images" / "core.img").write_text("")
    app = world.start()
    assert [point.name for point in app.store.points.all()] == ["one"]
    assert app.registry.find(row.id).head == row.head, "the session stands on what is left"
    check(world)


def test_a_folder_that_was_not_written_to_its_end_is_no_point(world: World, row: SessionRow) -> None:
    folder = world.home.checkpoints / str(row.head)
    lose_rows(world, "DELETE FROM checkpoints", "UPDATE sessions SET head = NULL")
    (folder / "point.json").write_bytes((folder / "point.json").read_bytes()[:-9])
    assert not world.start().store.points.all()
    assert not folder.exists()
    check(world)


def test_a_copy_that_was_not_durable_is_no_point_after_a_reboot(world: World, row: SessionRow) -> None:
    """Where trees are copies, a file that had not been written may have its size and not its content."""
    lose_rows(world, "UPDATE checkpoints SET durable = 0")
    (world.home.run / "boot").unlink()
    assert not world.start().store.points.all()
    check(world)


def test_a_durable_point_is_synced_data_first_and_then_its_row(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    store = world.app.store

    def sync_pool() -> None:
        ids = store.points.ids()
        assert all((world.home.checkpoints / name / "point.json").exists() for name in ids)
        order.append("pool")

    monkeypatch.setattr(world.pool, "sync", sync_pool)
    monkeypatch.setattr(store.database, "sync", lambda: order.append("database"))
    point = world.app.capture.checkpoint(row, Wish("two", durable=True))
    assert order[:2] == ["pool", "database"]
    assert point.durable
    assert world.app.registry.point(row, point.id).durable


def test_a_point_is_not_called_durable_when_the_disk_fails(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise Injected("the disk fails")

    world.settle()
    monkeypatch.setattr(world.pool, "sync", fail)
    with pytest.raises(Injected):
        world.app.capture.checkpoint(row, Wish("two", durable=True))
    point = world.app.store.points.all()[-1]
    assert (point.intent, point.durable) == ("two", False)


def test_a_daemon_that_is_told_so_answers_with_durable_points_only(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAYPOINT_DURABLE=1: automatic points too, of which no client waits for the disk."""
    monkeypatch.setattr(Background, "sync_when_idle", lambda *_: None)
    assert not world.app.capture.checkpoint(row, Wish("two", kind="auto")).durable
    world.lose_daemon()
    app = world.start(durable=True)
    assert app.capture.checkpoint(app.registry.find(row.id), Wish("three", kind="auto")).durable
    assert app.store.points.not_durable() == []


def test_a_point_becomes_durable_by_itself(world: World, row: SessionRow) -> None:
    world.app.background.sync_when_idle(lambda: None).result()
    assert world.app.registry.point(row, "one").durable


@contextlib.contextmanager
def not_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, failure: Exception
) -> Iterator[None]:
    """Inside, a daemon runs for which a step of taking over boxes fails."""

    def fail(name: str) -> None:
        if name == step:
            raise failure

    world.lose_daemon()
    with monkeypatch.context() as failing:
        failing.setattr(world.faults, "call", fail)
        failing.setattr(faults, "_controller", fail)
        failing.setattr(registry, "_TAKE_OVER_SECONDS", 0.05)
        world.start()
        yield


@pytest.mark.parametrize(
    ("step", "failure"),
    [
        ("builder.find", TimeoutError("its keeper does not answer")),
        ("builder.connect", OSError(errno.EMFILE, "Too many open files")),
        ("start.taken", TimeoutError("too late")),
        ("start.taken", Injected("a step has failed")),
    ],
)
def test_processes_of_a_session_that_could_not_be_taken_over_at_once_are_not_lost(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch, step: str, failure: Exception
) -> None:
    assert row.box
    box = world.builder.boxes[row.box]
    box.memory = "in no point"
    with not_taken_over(world, monkeypatch, step, failure):
        app = world.app
        session = app.registry.describe(row)
        assert (session.state, session.pid) == ("live", box.pid)
        with pytest.raises(errors.SessionBusy, match=f"could not be taken over: .*{failure.args[-1]}"):
            app.restore.to(row, "one")
        assert app.registry.running(row.id) is None
    assert app.registry.live(row).box.alive, "it is tried again, and a verb waits for that"
    assert box.memory == "in no point"
    app.restore.to(row, "one")
    app.restore.undo(app.registry.find(row.id))
    assert world.builder.boxes[str(app.registry.find(row.id).box)].memory == "in no point"
    check(world)


def test_a_session_that_ends_before_it_was_taken_over_can_be_restored(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert row.box
    with not_taken_over(world, monkeypatch, "start.taken", TimeoutError("too late")):
        world.builder.boxes[row.box].signal_end()
    with pytest.raises(errors.SessionDead):
        world.app.registry.live(row)
    world.app.restore.to(world.app.registry.find(row.id), "one")
    check(world)


def test_everything_can_be_ended_while_a_session_could_not_be_taken_over(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with not_taken_over(world, monkeypatch, "start.taken", TimeoutError("too late")):
        world.app.sessions.stop_all()
        assert not world.builder.standing()
    world.app.restore.to(world.app.registry.find(row.id), "one")
    check(world)


def test_a_copy_whose_proof_cannot_be_stored_leaves_nothing(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_point: str, _error: str | None) -> None:
        raise Injected("the database fails")

    monkeypatch.setattr(world.app.store.points, "set_restorable", fail)
    with pytest.raises(Injected):
        world.app.restore.to(row, "one")
    check(world)


def test_a_point_whose_digests_are_written_while_it_is_deleted_leaves_no_folder(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = world.app.capture.checkpoint(row, Wish("two"))
    world.app.capture.checkpoint(row, Wish("three"))
    folder = world.home.checkpoints / point.id
    remove, late = os.rmdir, iter(["digests.files", "digests"])

    def write_first(name: str | bytes, *, dir_fd: int | None = None) -> None:
        if Path(os.fsdecode(name)).name == point.id and (file := next(late, "")):
            (folder / file).write_text("digests")
        remove(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", write_first)
    world.app.space.forget_points([point], force=True)
    world.settle()
    assert not next(late, ""), "both were written"
    assert not folder.exists()
    check(world)


def test_a_point_is_forgotten_when_its_row_is_gone_and_its_bytes_follow(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = world.app
    one = app.registry.point(row, "one")
    app.capture.checkpoint(row, Wish("two"))
    world.settle()
    folder = world.home.checkpoints / one.id
    with app.background.foreground():  # what is deleted behind the answer waits for the end of it
        assert app.space.forget_points([one], force=True).forgotten == (one,)
        assert folder.is_dir()
        long_ago = time.time() - 7200
        monkeypatch.setattr("waypoint.core.remains.made_at", lambda _: long_ago)
        assert app.check.run().violations == (), "it is no remains: it is about to be deleted"
    until(lambda: not folder.exists())
    check(world)


def test_a_daemon_that_dies_behind_the_answer_leaves_a_forgotten_point_to_the_next_one(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = world.app
    one = app.registry.point(row, "one")
    app.capture.checkpoint(row, Wish("two"))
    world.settle()
    folder = world.home.checkpoints / one.id
    monkeypatch.setattr(app.space, "_delete_removed", lambda: None)
    app.space.forget_points([one], force=True)
    assert folder.is_dir()
    world.lose_daemon()
    app = world.start()
    assert not folder.exists()
    assert one.id not in app.store.points.ids()
    check(world)


def test_prune_waits_for_what_is_still_to_be_deleted_behind_an_answer(world: World, row: SessionRow) -> None:
    app = world.app
    one = app.registry.point(row, "one")
    app.capture.checkpoint(row, Wish("two"))
    with app.background.foreground():
        app.space.forget_points([one], force=True)
        app.space.prune()
        assert not (world.home.checkpoints / one.id).exists()
    check(world)


def test_a_label_names_a_point_whatever_else_there_is(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = world.app
    two = app.capture.checkpoint(row, Wish("two"))
    for wrong in ("c002", "c3", "c0", f"c{'9' * 30}"):
        with pytest.raises(errors.NotFound):
            app.registry.point(row, wrong)
    monkeypatch.setattr(app.store.points, "all", Mock(side_effect=AssertionError("all points were read")))
    assert app.registry.point(row, "c2").id == app.registry.point(row, f"{row.name}:c2").id == two.id


def test_a_point_tells_what_it_cost_when_it_was_measured_last(world: World, row: SessionRow) -> None:
    app = world.app
    one = app.registry.point(row, "one")
    with app.background.foreground():
        two = app.capture.checkpoint(row, Wish("two"))
        three = app.capture.checkpoint(row, Wish("three"))
        assert app.costs.remembered([two]) == 0, "it was not measured yet"
    until(
        lambda: app.store.points.without_cost() == [three.id]
    )  # the session still changes what that one costs
    with app.background.foreground():
        (cost,) = (cost for cost in app.space.du().checkpoints if cost.id == two.id)
        assert 0 < app.costs.remembered([two]) == cost.unique_bytes
        assert app.space.forget_points([one], force=True).frees_bytes > 0
        assert two.id in app.store.points.without_cost(), "a point beside it has gone"
        assert app.costs.remembered([two]) == cost.unique_bytes, "that counts until it is measured again"


@pytest.mark.parametrize("verb", ["rm", "forget"])
def test_what_a_removal_that_failed_half_way_has_left_is_deleted_later(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    app = world.app
    one = app.registry.point(row, "one")
    app.capture.checkpoint(row, Wish("two"))
    world.settle()

    def fail() -> None:
        raise Injected("the disk fails")

    monkeypatch.setattr(app.store.database, "sync", fail)
    with pytest.raises(Injected):
        app.removals.remove([row]) if verb == "rm" else app.space.forget_points([one], force=True)
    monkeypatch.undo()
    check(world)


def test_a_box_that_cannot_be_removed_is_ended_in_every_other_way(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = world.app.registry.live(row)

    def fail(box: Box) -> None:
        raise Injected("a process of it hangs in the kernel")

    with monkeypatch.context() as patched:
        patched.setattr(world.builder, "remove", fail)
        with pytest.raises(Injected):
            world.app.boxes.end(live, "for a test")
    assert live.terminal.closed
    assert world.app.registry.running(row.id) is None
    world.builder.remove(live.box)


def test_a_snapshot_of_the_present_goes_when_the_look_at_it_fails(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Injected("the box has died")

    monkeypatch.setattr("waypoint.core.comparison.observe", fail)
    with pytest.raises(Injected), world.app.comparison.moment(row, None):
        pass
    check(world)


def test_points_that_were_forgotten_before_a_failure_leave_no_folder(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = world.app
    app.capture.checkpoint(row, Wish("two", name="two"))
    app.capture.checkpoint(row, Wish("three"))
    world.settle()
    going = [app.registry.point(row, name) for name in ("one", "two")]
    remove = app.store.points.remove

    def fail_at_the_second(point_id: str) -> None:
        if point_id == going[1].id:
            raise Injected("the database fails")
        remove(point_id)

    monkeypatch.setattr(app.store.points, "remove", fail_at_the_second)
    with pytest.raises(Injected):
        app.space.forget_points(going, force=True)
    check(world)


def test_a_park_that_fails_after_its_row_leaves_no_volume(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_session: str) -> None:
        raise Injected("the database fails")

    monkeypatch.setattr(world.app.spares, "update", fail)
    with pytest.raises(Injected):
        world.app.sessions.park(row)
    assert world.app.registry.find(row.id).state == "parked"
    check(world)


def test_a_point_whose_row_is_lost_while_files_are_kept_for_it_keeps_its_data(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settle()
    (point,) = world.app.store.points.all()
    folder = world.home.checkpoints / point.id
    (folder / "base.json").unlink(missing_ok=True)
    kept = world.app.kept

    def lose_the_row(*_: object) -> None:
        world.app.store.database.execute("UPDATE sessions SET head = NULL")
        world.app.store.database.execute("DELETE FROM checkpoints")

    monkeypatch.setattr(kept, "_keep", lose_the_row)
    kept.keep(point.id)
    assert (folder / "point.json").exists()
    world.lose_daemon()
    world.start()
    assert [found.id for found in world.app.store.points.all()] == [point.id]


@contextlib.contextmanager
def occupied(submit: Callable[[Callable[[], object]], Future[None]]) -> Iterator[None]:
    """Both threads that do this work are busy with something else meanwhile."""
    begun, end = threading.Barrier(3), threading.Event()

    def work() -> None:
        begun.wait(30)
        end.wait(60)

    futures = [submit(work) for _ in range(2)]
    begun.wait(30)
    try:
        yield
    finally:
        end.set()
        wait(futures)


def volumes(world: World) -> set[str]:
    return {path.name for path in world.home.sessions.iterdir()}


def test_what_restores_leave_is_cleared_away_while_cards_are_written(world: World, row: SessionRow) -> None:
    """It waited behind the cards. On a busy machine thousands of restores left hundreds of ended boxes, each
    with descriptors, a terminal and a volume, and `rm` waited for minutes."""
    world.settle()
    with occupied(world.app.background.run_when_idle):
        for _ in range(6):
            world.app.restore.to(row, "one", safety=False)
        until(lambda: volumes(world) == {world.app.registry.find(row.id).box}, 20)


def test_a_session_waits_that_is_restored_faster_than_its_boxes_are_cleared_away(
    world: World, row: SessionRow
) -> None:
    world.settle()

    def restore_often() -> None:
        for _ in range(30):
            world.app.restore.to(row, "one", safety=False)

    restoring = threading.Thread(target=restore_often)
    with occupied(world.app.background.clear_when_idle):
        restoring.start()
        restoring.join(1.0)
        assert restoring.is_alive()
        assert 1 < len(volumes(world)) < 12
    restoring.join(30)
    assert not restoring.is_alive()
    check(world)


def test_the_pool_is_looked_at_once_after_many_points(
    world: World, row: SessionRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settle()
    looks: list[None] = []
    monkeypatch.setattr(world.app.remains, "retry", lambda: looks.append(None))
    with occupied(world.app.background.run_when_idle):
        for _ in range(5):
            world.app.capture.checkpoint(row, Wish("again"))
    world.settle()
    assert len(looks) == 1
    world.app.capture.checkpoint(row, Wish("again"))
    world.settle()
    assert len(looks) == 2
