"""`check` finds every broken rule, and `recover` repairs what needs no guess."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.fakes import World

from waypoint import errors
from waypoint.core import manifest, pointfile
from waypoint.core import remains as remains_module
from waypoint.core.capture import Wish
from waypoint.core.kept import BaseFile, BaseFiles
from waypoint.core.live import new_id
from waypoint.core.rebuild import Rebuild, refuse_newer
from waypoint.kernel import faults
from waypoint.model import Checked, Recovered, Size
from waypoint.store import Store, soundness, wal
from waypoint.store.database import SCHEMA_VERSION, damaged
from waypoint.store.events import make_blob
from waypoint.store.points import AgentState
from waypoint.store.sessions import SessionRow
from waypoint.terminal.terminal import Terminal

pytestmark = pytest.mark.leaks("a daemon inside the test process; its threads end with a process of its own")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(Terminal, "_foreground_group", lambda _: None)  # there is no process in it
    monkeypatch.setattr("waypoint.core.check._SURE_SECONDS", 0.0)  # nothing is under way here
    monkeypatch.setattr(remains_module, "_ABANDONED_SECONDS", -1)
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def row(world: World) -> SessionRow:
    """A session with three points, whose digests are made."""
    world.app.sessions.new("work", world.options, Size())
    row = world.app.registry.find("work")
    state = AgentState(kind="json", blob=make_blob(b"{}"), version="7")
    for name in ("one", "two", "three"):
        point = world.app.capture.checkpoint(row, Wish(name, name=name, state=state))
        world.app.digests.make(point.id)
    world.settle()
    world.app.durability.reach()
    return world.app.registry.find(row.id)


def folder(world: World, ref: str) -> Path:
    return world.home.checkpoints / world.app.registry.point(world.app.registry.find("work"), ref).id


def check(world: World, *, deep: bool = True) -> list[tuple[int, str]]:
    return [(one.rule, one.what) for one in world.app.check.run(deep=deep).violations]


def sql(world: World, statement: str) -> None:
    """What no verb would do to the database."""
    with world.app.store.database.transaction() as connection:
        connection.execute("PRAGMA defer_foreign_keys=ON")
        connection.execute(statement)


def test_a_home_in_order_breaks_no_rule(world: World, row: SessionRow) -> None:
    result = world.app.check.run(deep=True)
    assert result == Checked(deep=True, points=3, undigested=0)
    assert world.app.repairs.run() == Recovered()


def without_foreign_keys(world: World, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(world.home.database)) as connection, connection:
        connection.execute(statement)


def lose_point(world: World) -> None:
    """The row of the last point, as a power cut would take it."""
    sql(world, "UPDATE sessions SET points = 2, head = (SELECT id FROM checkpoints WHERE number = 2)")
    sql(world, "DELETE FROM checkpoints WHERE number = 3")


BROKEN: dict[str, tuple[int, Callable[[World], object], bool]] = {
    # name: the rule, how it is broken, whether `recover` repairs it
    "a folder is gone": (1, lambda w: shutil.rmtree(folder(w, "two")), False),
    "files are gone": (1, lambda w: shutil.rmtree(folder(w, "two") / "files"), False),
    "an image is gone": (1, lambda w: (folder(w, "two") / "images/core.img").unlink(), False),
    "an image is shorter": (1, lambda w: os.truncate(folder(w, "two") / "images/core.img", 2), False),
    "sizes.json is damaged": (1, lambda w: (folder(w, "two") / "images/sizes.json").write_text("{"), False),
    "an image differs": (
        5,
        lambda w: (folder(w, "two") / "images/core.img").write_text("A process tree"),
        False,
    ),
    "a foreign image": (5, lambda w: (folder(w, "two") / "images/x").touch(), False),
    "an image that leads elsewhere": (
        6,
        lambda w: (folder(w, "two") / "images/x").symlink_to("/etc/passwd"),
        False,
    ),
    "a file differs": (4, lambda w: (folder(w, "two") / "files/upper/new").touch(), False),
    "files can be written to": (4, lambda w: w.pool.unseal(folder(w, "two") / "files"), True),
    "point.json is gone": (10, lambda w: (folder(w, "two") / "point.json").unlink(), True),
    "point.json is damaged": (10, lambda w: (folder(w, "two") / "point.json").write_text("{"), True),
    "point.json differs": (
        10,
        lambda w: (folder(w, "two") / "point.json").write_bytes(
            (folder(w, "two") / "point.json").read_bytes().replace(b'"two"', b'"tow"')
        ),
        True,
    ),
    "the digests are damaged": (23, lambda w: (folder(w, "two") / "digests").write_bytes(b"x" * 40), False),
    "the digests are gone": (23, lambda w: (folder(w, "two") / "digests").unlink(), False),
    "a point without a row": (2, lose_point, True),
    "remains of a point": (2, lambda w: (w.home.checkpoints / new_id()).mkdir(), True),
    "remains of a session": (2, lambda w: (w.home.sessions / new_id()).mkdir(), True),
    "remains of a beginning": (2, lambda w: (w.home.beginnings / new_id()).mkdir(), True),
    "a foreign file": (2, lambda w: (w.home.checkpoints / "backup.tar").touch(), False),
    "a foreign folder": (2, lambda w: (w.home.sessions / "mine").mkdir(), False),
    "remains in staging": (3, lambda w: (w.home.staging / new_id()).mkdir(), True),
    "a temporary tree": (3, lambda w: (w.home.pool / ".scratch/4194305.ab").mkdir(parents=True), True),
    "the kind is gone": (14, lambda w: (w.home.pool / ".kind").unlink(), False),
    "another kind": (14, lambda w: (w.home.pool / ".kind").write_text("btrfs"), False),
    "half a base": (15, lambda w: (w.home.pool / "bases/x").mkdir(parents=True), False),
    "a beginning is gone": (
        21,
        lambda w: shutil.rmtree(w.home.beginnings / str(w.app.registry.find("work").beginning)),
        False,
    ),
    "an event without the one before it": (
        16,
        lambda w: sql(w, "UPDATE events SET parent = 4711 WHERE id = (SELECT max(id) FROM events)"),
        False,
    ),
    "a tip that is gone": (16, lambda w: sql(w, "UPDATE sessions SET tip = 4711"), False),
    "a point at another's event": (
        17,
        lambda w: sql(w, "UPDATE checkpoints SET position = 4711 WHERE number = 2"),
        False,
    ),
    "a blob that is gone": (18, lambda w: without_foreign_keys(w, "DELETE FROM blobs"), False),
    "a blob that differs": (18, lambda w: sql(w, "UPDATE blobs SET data = x'00'"), False),
    "a forgotten point with a row": (
        7,
        lambda w: sql(w, "INSERT INTO forgotten SELECT id, 1 FROM checkpoints WHERE number = 2"),
        True,
    ),
    "a row of nothing": (
        21,
        lambda w: without_foreign_keys(w, "INSERT INTO tags SELECT id, 'x', 'gone' FROM sessions"),
        True,
    ),
    "a head that is gone": (21, lambda w: sql(w, "UPDATE sessions SET head = 'gone'"), True),
    "a parent that is gone": (
        21,
        lambda w: sql(w, "UPDATE checkpoints SET parent = 'x' WHERE number = 2"),
        True,
    ),
    "a number that was not given out": (21, lambda w: sql(w, "UPDATE sessions SET points = 1"), True),
    "a point that cannot be read": (
        22,
        lambda w: sql(w, "UPDATE checkpoints SET coverage = '[' WHERE number = 2"),
        False,
    ),
    "tasks that cannot be read": (22, lambda w: sql(w, "UPDATE sessions SET tasks = '['"), False),
    "an event that cannot be read": (
        22,
        lambda w: sql(w, "UPDATE events SET body = 'x' WHERE id = 1"),
        False,
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_is_found_and_repaired_if_that_needs_no_guess(
    world: World, row: SessionRow, what: str
) -> None:
    rule, harm, is_repaired = BROKEN[what]
    harm(world)
    found = check(world)
    assert rule in [number for number, _ in found], f"{what}: {found}"
    if what in ("a point that cannot be read", "a blob that is gone"):
        return  # nothing reads that row any more: the database is rebuilt
    result = world.app.repairs.run()
    left = [one.rule for one in world.app.check.run(deep=True).violations]
    if is_repaired:
        assert result.repaired, "it says what it did"
        assert not left, f"{what}: {result}"
    else:
        assert rule in left or rule in [one.rule for one in result.left], f"{what}: {result}"
    for point in world.app.store.points.all():
        if not point.damage:
            world.app.restore.to(world.app.registry.find("work"), point.id, safety=False)


def test_a_repair_that_fails_is_listed_and_does_not_prevent_the_others(world: World, row: SessionRow) -> None:
    world.pool.unseal(folder(world, "one") / "files")
    (folder(world, "two") / "point.json").write_text("{")
    sql(world, "UPDATE sessions SET head = 'gone'")

    def fail(name: str) -> None:
        if name in ("recover.sealing", "recover.rows"):
            raise OSError(errno.EIO, "the machine fails", name)

    faults.control(fail)
    try:
        done = world.app.repairs.run()
    finally:
        faults.control(None)
    said = [one.what for one in done.repaired]
    assert any("point.json of c2" in text for text in said)
    assert not any("sessions" in text for text in said), "it does not say what was undone again"
    failed = {one.rule for one in done.left if "failed: [Errno 5] the machine fails" in one.what}
    assert failed == {4, 21}
    assert not world.app.repairs.run().left
    assert not check(world)


def test_files_of_the_base_that_are_not_what_was_kept_are_found(world: World, row: SessionRow) -> None:
    digest = "0" * 64
    files = BaseFiles((BaseFile("/bin/bash", "bin/bash", 1, 2, 3, 4, 5, 0, 0, digest=digest),))
    (folder(world, "two") / "base.json").write_bytes(msgspec.json.encode(files))
    assert [rule for rule, _ in check(world)] == [25]
    (world.home.pool / "kept").mkdir(exist_ok=True)
    (world.home.pool / "kept" / digest).write_text("something else")
    (folder(world, "two") / "kept").mkdir(exist_ok=True)
    os.link(world.home.pool / "kept" / digest, folder(world, "two") / "kept" / digest)
    assert [rule for rule, _ in check(world)] == [24]
    with pytest.raises(errors.PointDamaged, match="the copy that c2 kept is damaged"):
        world.app.restore.to(row, "two")
    assert world.app.restore.to(row, "two", files_only=True).checkpoint.name == "two"


def test_a_point_that_differs_is_marked_until_it_is_what_was_written(world: World, row: SessionRow) -> None:
    image = folder(world, "two") / "images/core.img"
    image.write_text("A process tree")
    result = world.app.check.run(deep=False)
    assert [(one.rule, one.remedy) for one in result.violations] == [(5, "forget")]
    assert "images/core.img is not what was written" in str(world.app.registry.point(row, "two").damage)
    assert world.app.repairs.run().left, "it cannot be repaired"
    image.write_text("a process tree")
    assert not check(world)
    with pytest.raises(errors.PointDamaged):
        world.app.restore.to(row, "two")
    done = world.app.repairs.run()
    assert ["no longer marked" in one.what for one in done.repaired] == [True]
    world.app.restore.to(row, "two")


def test_only_some_points_can_be_checked(world: World, row: SessionRow) -> None:
    (folder(world, "two") / "images/core.img").write_text("A process tree")
    one, two = (world.app.registry.point(row, ref) for ref in ("one", "two"))
    assert world.app.check.run([one], deep=True).violations == ()
    assert world.app.check.run([two], deep=True).violations[0].point == two.id


def test_a_damaged_point_can_be_forgotten(world: World, row: SessionRow) -> None:
    point = world.app.registry.point(row, "two")
    shutil.rmtree(folder(world, "two"))
    check(world)
    world.app.space.forget_points([point], force=True)
    assert not check(world)


def test_a_durable_row_without_data_is_marked_and_not_deleted(world: World, row: SessionRow) -> None:
    shutil.rmtree(folder(world, "three"))
    world.lose_daemon()
    app = world.start()
    assert app.registry.point(row, "three").damage == "its files are gone"
    assert [repair.what for repair in app.check.run().repaired] == [
        "c3 of session 'work' is marked as damaged: its files are gone"
    ]


def test_a_point_of_a_newer_version_is_left_as_it_is(world: World, row: SessionRow) -> None:
    path = folder(world, "three") / "point.json"
    content = msgspec.json.decode(path.read_bytes())
    lose_point(world)
    path.write_bytes(msgspec.json.encode({**content, "version": pointfile.VERSION + 1, "point": "unknown"}))
    before = path.read_bytes()
    world.lose_daemon()
    world.start()
    assert path.read_bytes() == before
    assert [what for rule, what in check(world)] == ["a point of a newer Waypoint: it is left alone"]


def test_a_point_without_a_row_whose_file_is_damaged_is_not_deleted(world: World, row: SessionRow) -> None:
    path = folder(world, "three") / "point.json"
    lose_point(world)
    path.write_text("{")
    world.lose_daemon()
    world.start()
    assert path.parent.exists()
    assert [rule for rule, _ in check(world)] == [2]
    world.app.repairs.run()
    assert path.parent.exists(), "it is not repaired by a guess either"


# ---- a damaged database --------------------------------------------------------------------------


def rebuild(world: World) -> Recovered:
    standing = {box.id: box.pid for box in world.builder.boxes.values() if box.alive}
    result = Rebuild(world.home, world.pool, standing).run()
    world.start()
    return result


def assert_all_there(world: World, row: SessionRow) -> None:
    app = world.app
    assert [point.name for point in app.store.points.all()] == ["one", "two", "three"]
    found = app.registry.find("work")
    assert found.id == row.id
    assert app.registry.running(found.id), "its box runs on"
    assert app.registry.point(found, "@").name == "three"
    assert app.store.points.agent_state(str(found.head)) == ("json", b"{}")
    app.restore.to(found, "one")


@pytest.mark.parametrize("harm", ["header", "empty", "gone", "text"])
def test_a_database_that_cannot_be_read_is_rebuilt_from_the_points(
    world: World, row: SessionRow, harm: str
) -> None:
    world.lose_daemon()
    path = world.home.database
    data = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes({"header": b"x" + data[1:], "empty": b"", "text": b"no database" * 999}[harm])
    if harm in ("header", "text"):
        with pytest.raises(errors.DatabaseDamaged, match="is damaged"):
            world.start()
    result = rebuild(world)
    assert result.kept
    if harm != "gone":
        assert (Path(result.kept) / path.name).read_bytes() == path_before(data, harm)
    assert_all_there(world, row)


@pytest.mark.parametrize("point", ["rebuild.kept", "rebuild.adopted", "rebuild.ready", "rebuild.unlogged"])
def test_a_rebuild_that_stops_half_way_has_lost_nothing(world: World, row: SessionRow, point: str) -> None:
    """With a log that holds what the file does not have yet."""
    world.app.store.points.add_note(str(row.head), "in the log")
    world.lose_daemon()

    def stop(name: str) -> None:
        if name == point:
            raise OSError(errno.EIO, "the machine fails")

    faults.control(stop)
    try:
        with pytest.raises(errors.MachineError):
            rebuild(world)
    finally:
        faults.control(None)
    world.start()  # this database is whole: nothing had to be rebuilt
    assert [note.text for note in world.app.store.points.notes(str(row.head))] == ["in the log"]
    assert_all_there(world, row)


def path_before(data: bytes, harm: str) -> bytes:
    return {"header": b"x" + data[1:], "empty": b"", "text": b"no database" * 999}[harm]


def test_tables_that_are_whole_are_taken_over(world: World, row: SessionRow) -> None:
    world.app.store.points.add_note(str(row.head), "kept")
    world.app.store.points.set_tag(row.id, "best", str(row.head))
    world.lose_daemon()
    with contextlib.closing(sqlite3.connect(world.home.database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [page] = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'checkpoints'"
        ).fetchone()
        [size] = connection.execute("PRAGMA page_size").fetchone()
    with open(world.home.database, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 64)
    with pytest.raises(errors.DatabaseDamaged):
        world.start()
    result = rebuild(world)
    words = [repair.what for repair in result.repaired]
    assert any("no row of checkpoints is taken over" in text for text in words), words
    assert "1 rows of sessions are taken over" in words
    assert_all_there(world, row)


def test_a_broken_row_keeps_the_daemon_from_starting_until_it_is_rebuilt(
    world: World, row: SessionRow
) -> None:
    sql(world, "UPDATE checkpoints SET coverage = '[' WHERE number = 2")
    world.lose_daemon()
    with pytest.raises(errors.DatabaseDamaged, match=r"checkpoint \w+ cannot be read"):
        world.start()
    rebuild(world)
    assert_all_there(world, row)


def test_a_transaction_that_is_lost_in_the_log_is_noticed(world: World, row: SessionRow) -> None:
    world.settle()
    saved = world.home.path / "saved"
    saved.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{world.home.database}{suffix}", saved)
    assert wal.damage(saved / "waypoint.db") is None
    log = saved / "waypoint.db-wal"
    data = bytearray(log.read_bytes())
    data[32 + 24 + 100] ^= 4
    log.write_bytes(data)
    (saved / "waypoint.db-shm").unlink(missing_ok=True)
    words = wal.damage(saved / "waypoint.db")
    assert words
    assert "frame 1 of its write-ahead log is not what was written" in words
    assert log.read_bytes() == bytes(data), "nothing was changed by looking"
    assert isinstance(damaged(log, words), errors.DatabaseDamaged)


def test_a_database_whose_names_are_no_text_is_damaged(tmp_path: Path) -> None:
    """SQLite's own message cannot be read then."""
    path = tmp_path / "waypoint.db"
    Store(path).close()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"TABLE notes", b"TABLE n\xe1tes", 1))
    assert [fault.rule for fault in soundness.check_file(path, deep=True)] == [20]
    with pytest.raises(errors.DatabaseDamaged):
        Store(path)


def test_a_newer_database_is_not_rebuilt(world: World, row: SessionRow) -> None:
    world.lose_daemon()
    with contextlib.closing(sqlite3.connect(world.home.database)) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(errors.DaemonError, match="newer"):
        refuse_newer(world.home)
    with contextlib.closing(sqlite3.connect(world.home.database)) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    world.start()


def test_the_digests_of_a_point_come_back_with_its_row(world: World, row: SessionRow) -> None:
    before = world.app.store.points.digest(str(row.head))
    assert before == manifest.digest_of(folder(world, "three"))
    lose_point(world)
    world.lose_daemon()
    assert world.start().store.points.digest(str(row.head)) == before
