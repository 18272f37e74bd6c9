"""What an installation has not made is not used by it until the user says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes import World
from tests.waiting import until

from waypoint import errors
from waypoint.bases import store as bases
from waypoint.core import manifest, pointfile
from waypoint.core import remains as remains_module
from waypoint.core.capture import Wish
from waypoint.core.rebuild import Rebuild
from waypoint.home import Home
from waypoint.kernel import seals
from waypoint.kernel.seals import Key
from waypoint.model import BoxOptions, Checkpoint, Size
from waypoint.terminal.terminal import Terminal

pytestmark = pytest.mark.leaks("a daemon inside the test process; its threads end with a process of its own")


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[World, World]]:
    """Two installations; the second one has a point whose digests are made."""
    monkeypatch.setattr(Terminal, "_foreground_group", lambda _: None)
    monkeypatch.setattr("waypoint.core.check._SURE_SECONDS", 0.0)
    monkeypatch.setattr(remains_module, "_ABANDONED_SECONDS", -1)
    made = World(tmp_path / "ours"), World(tmp_path / "theirs")
    yield made
    for world in made:
        world.close()


def point_of(world: World, *, digests: bool = True) -> Checkpoint:
    world.app.sessions.new("work", world.options, Size())
    point = world.app.capture.checkpoint(world.app.registry.find("work"), Wish("made", name="made"))
    if digests:
        world.app.digests.make(point.id)
    world.settle()
    world.app.durability.reach()
    return point


def bring(point: Checkpoint, source: World, target: World) -> Path:
    """The folder of a point, copied from one installation into the other."""
    folder = target.home.checkpoints / point.id
    shutil.copytree(source.home.checkpoints / point.id, folder, symlinks=True)
    target.pool.seal(folder / "files")
    return folder


def broken(world: World) -> list[tuple[int, str]]:
    return [(one.rule, one.remedy) for one in world.app.check.run(deep=True).violations]


def test_a_document_is_known_by_its_seal(tmp_path: Path) -> None:
    key, other = Key.of(tmp_path), Key(bytes(32))
    assert key.new
    assert not Key.of(tmp_path).new
    assert (tmp_path / seals.KEY_FILE).stat().st_mode & 0o777 == 0o600
    document = key.seal_document(b'{"a":1}')
    assert Key.of(tmp_path).has_sealed_document(document)
    assert not other.has_sealed_document(document)
    assert not key.has_sealed_document(document.replace(b"1", b"2"))
    assert not key.has_sealed_document(b'{"a":1}')
    assert not key.has_sealed_document(b"")
    assert other.seal_document(document) == other.seal_document(b'{"a":1}')
    for damaged in (b"", b"short", bytes(33)):
        (tmp_path / seals.KEY_FILE).write_bytes(damaged)
        assert not Key.of(tmp_path).has_sealed_document(document)


@pytest.mark.parametrize("digests", [True, False])
def test_a_point_of_others_is_left_alone_until_told(worlds: tuple[World, World], *, digests: bool) -> None:
    ours, theirs = worlds
    point = point_of(theirs, digests=digests)
    bring(point, theirs, ours)
    ours.lose_daemon()
    ours.start()
    assert ours.app.store.points.find(point.id) is None
    assert ours.app.repairs.run().left != ()
    assert broken(ours) == [(27, "foreign")]
    assert ours.app.store.points.find(point.id) is None
    ours.app.repairs.run(foreign=True)
    assert (27, "foreign") not in broken(ours)
    adopted = ours.app.registry.point(ours.app.registry.find("work"), "made")
    ours.app.restore.to(ours.app.registry.find("work"), adopted.id)
    ours.settle()
    folder = ours.home.checkpoints / point.id
    key = Key.of(ours.home.path)
    assert pointfile.is_own(folder, key)
    assert manifest.is_own(folder, key)


def test_what_was_put_into_a_point_of_ours_makes_it_foreign(worlds: tuple[World, World]) -> None:
    """Its row is lost, and with it the digest that the row had."""
    ours, theirs = worlds
    point = point_of(ours)
    folder = ours.home.checkpoints / point.id
    (folder / "images/core.img").write_text("A process tree")
    made, files = manifest.make(folder, 1.0, lambda: None)
    manifest.write(folder, made, Key.of(theirs.home.path), files)
    ours.lose_daemon()
    ours.home.database.unlink()
    ours.start()
    assert ours.app.store.points.find(point.id) is None
    assert broken(ours) == [(27, "foreign")]


def test_a_rebuilt_database_has_no_points_of_others(worlds: tuple[World, World]) -> None:
    ours, theirs = worlds
    own, foreign = point_of(ours), point_of(theirs)
    bring(foreign, theirs, ours)
    ours.lose_daemon()
    ours.home.database.write_bytes(b"no database")
    for suffix in ("-wal", "-shm"):
        Path(f"{ours.home.database}{suffix}").unlink(missing_ok=True)
    Rebuild(ours.home, ours.pool, {}).run()
    ours.start()
    assert ours.app.store.points.ids() == {own.id}


def test_points_of_an_older_version_get_a_seal(worlds: tuple[World, World]) -> None:
    ours, _ = worlds
    point = point_of(ours)
    path = ours.home.checkpoints / point.id / pointfile.POINT_FILE
    path.write_bytes(b"{" + path.read_bytes()[len(b'{"seal":"",') + 32 :])
    assert not pointfile.has_seal(path.parent)
    (ours.home.path / seals.KEY_FILE).unlink()
    ours.lose_daemon()
    ours.start(digests=True)
    until(lambda: pointfile.is_own(path.parent, Key.of(ours.home.path)))
    until(lambda: ours.app.store.points.digest(point.id) is not None)
    assert broken(ours) == []


def test_a_base_of_others_is_refused_until_told(worlds: tuple[World, World], tmp_path: Path) -> None:
    ours, theirs = worlds
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin/bash").write_text("#!/bin/sh\n")
    (root / "bin/bash").chmod(0o755)
    bases.import_base(theirs.pool, "box", root)
    shutil.copytree(theirs.home.pool / "bases/box", ours.home.pool / "bases/box", symlinks=True)
    ours.pool.seal(ours.home.pool / "bases/box/files")
    options = BoxOptions(base="box", net="host")
    with pytest.raises(errors.MadeElsewhere) as refused:
        ours.app.sessions.new("box", options, Size())
    assert "recover" in str(refused.value.hint)
    assert broken(ours) == [(27, "foreign")]
    assert [base.name for base in bases.list_bases(ours.pool)] == ["box"]
    ours.app.repairs.run(foreign=True)
    assert broken(ours) == []
    ours.app.sessions.new("box", options, Size())


def test_bases_of_an_older_version_are_still_ours(tmp_path: Path, worlds: tuple[World, World]) -> None:
    ours, _ = worlds
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").touch()
    bases.import_base(ours.pool, "box", tmp_path / "root")
    path = Home(ours.home.path).pool / "bases/box" / bases.RECORD
    path.write_bytes(b"{" + path.read_bytes()[len(b'{"seal":"",') + 32 :])
    (ours.home.path / seals.KEY_FILE).unlink()
    ours.lose_daemon()
    ours.start()
    bases.require_own(ours.pool, "box")
