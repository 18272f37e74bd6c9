"""Digests: whatever is changed in a stored point is noticed and named, and before CRIU sees it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.fakes import World
from tests.waiting import until

from waypoint import errors
from waypoint.core import manifest
from waypoint.core.capture import Wish
from waypoint.core.copies import platform_differences
from waypoint.core.manifest import ManifestError
from waypoint.engine import images
from waypoint.kernel import digests
from waypoint.kernel.seals import Key
from waypoint.model import Checkpoint, Platform, Size
from waypoint.store.sessions import SessionRow
from waypoint.terminal.terminal import Terminal

pytestmark = pytest.mark.leaks("a daemon inside the test process; its threads end with a process of its own")


KEY = Key(bytes(32))


def no_pause() -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a point."""
    point = tmp_path / "point"
    (point / "images").mkdir(parents=True)
    (point / "files/upper/etc").mkdir(parents=True)
    (point / "point.json").write_text("{}")
    (point / "images/core-2.img").write_bytes(b"registers")
    with open(point / "images/pages-1.img", "wb") as pages:
        pages.write(os.urandom(digests.CHUNK_BYTES + 4096))
    (point / "files/upper/etc/conf").write_text("a = 1\n")
    (point / "files/upper/etc/link").symlink_to("conf")
    (point / "files/upper/name \udcff").write_text("no text")
    os.link(point / "files/upper/etc/conf", point / "files/upper/second name")
    return point


def write(folder: Path) -> manifest.Manifest:
    made, files = manifest.make(folder, 1.0, no_pause)
    manifest.write(folder, made, KEY, files)
    return made


def damage(folder: Path, made: manifest.Manifest, *, deep: bool = True) -> list[str]:
    found = list(manifest.damaged_images(folder, made, no_pause, deep=deep))
    if deep:
        found += manifest.damaged_files(folder, made, no_pause)
    return found


def flip(path: Path, at: int = 0) -> None:
    """One bit, with everything else as it was."""
    times = os.stat(path)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def relink(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit in the digests of the files": (
        lambda at: flip(at / "digests.files", 9),
        "digests.files is not what was written",
    ),
    "digests of the files that are gone": (
        lambda at: os.unlink(at / "digests.files"),
        "digests.files cannot be read: No such file or directory",
    ),
    "a flipped bit in an image": (
        lambda at: flip(at / "images/core-2.img", 3),
        "images/core-2.img is not what was written",
    ),
    "a flipped bit in memory": (
        lambda at: flip(at / "images/pages-1.img", digests.CHUNK_BYTES + 7),
        "images/pages-1.img is not what was written, within 4 MiB from byte 4,194,304 on",
    ),
    "a shorter image": (
        lambda at: os.truncate(at / "images/core-2.img", 5),
        "images/core-2.img has 5 bytes instead of 9",
    ),
    "a missing image": (lambda at: os.unlink(at / "images/core-2.img"), "images/core-2.img is missing"),
    "a foreign image": (lambda at: (at / "images/x.img").touch(), "images/x.img does not belong to it"),
    "an image that is a link": (
        lambda at: relink(at / "images/core-2.img", "/dev/null"),
        "images/core-2.img is no plain file any more",
    ),
    "a flipped bit in a file": (
        lambda at: flip(at / "files/upper/name \udcff"),
        "files/upper/name \ufffd is not what was written",
    ),
    "a missing file": (
        lambda at: os.unlink(at / "files/upper/name \udcff"),
        "files/upper/name \ufffd is missing",
    ),
    "a foreign file": (
        lambda at: (at / "files/upper/new").mkdir(),
        "files/upper/new does not belong to it",
    ),
    "another mode": (
        lambda at: os.chmod(at / "files/upper/name \udcff", 0o4755),
        "files/upper/name \ufffd has another mode",
    ),
    "a link that leads elsewhere": (
        lambda at: relink(at / "files/upper/etc/link", "gone"),
        "files/upper/etc/link is not what was written",
    ),
    "a link that became a file": (
        lambda at: os.replace(at / "files/upper/etc/conf", at / "files/upper/etc/link"),
        "files/upper/etc/link is of another kind",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_and_named(folder: Path, what: str) -> None:
    made = write(folder)
    assert damage(folder, made) == []
    harm, words = DAMAGE[what]
    harm(folder)
    assert words in damage(folder, made)


def test_what_a_restore_leaves_beside_the_images_is_no_damage(folder: Path) -> None:
    """The second restore of a point was refused as damaged: the first had written its log there."""
    made = write(folder)
    for name in ("restore.log", "stats-restore"):
        (folder / "images" / name).write_text("of a restore")
    assert damage(folder, made) == []
    again, _ = manifest.make(folder, 1.0, no_pause)
    assert again.images == made.images


def test_without_depth_memory_is_compared_by_its_size_only(folder: Path) -> None:
    made = write(folder)
    flip(folder / "images/pages-1.img")
    assert damage(folder, made, deep=False) == []
    flip(folder / "images/core-2.img")
    assert damage(folder, made, deep=False) == ["images/core-2.img is not what was written"]


def test_a_damaged_manifest_is_noticed(folder: Path) -> None:
    """Any bit of it, with and without the digest in the row."""
    made, files = manifest.make(folder, 1.0, no_pause)
    digest = manifest.write(folder, made, KEY, files)
    assert manifest.read_files(folder, made) == files
    assert manifest.read(folder, digest) == manifest.read(folder)
    assert msgspec.structs.replace(manifest.read(folder), seal=b"") == made
    assert manifest.digest_of(folder) == digest
    path = folder / manifest.MANIFEST_FILE
    whole = path.read_bytes()
    seed = random.randrange(1 << 32)
    for at in (0, 15, 16, len(whole) - 1, *random.Random(seed).sample(range(len(whole)), 40)):
        flip(path, at)
        with pytest.raises(ManifestError, match="not what was written"):
            manifest.read(folder)
        path.write_bytes(whole)
    path.write_bytes(whole[:-1])
    assert manifest.digest_of(folder) is None, f"seed {seed}"
    path.unlink()
    with pytest.raises(ManifestError, match="cannot be read"):
        manifest.read(folder, digest)
    manifest.write(folder, msgspec.structs.replace(made, made_at=2.0), KEY)
    with pytest.raises(ManifestError, match="not what was written"):
        manifest.read(folder, digest)


def test_what_the_snapshot_before_had_is_not_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = manifest.make(folder, 1.0, no_pause)
    read: list[str] = []
    of_file = digests.of_file

    def noted(path: str, pause: digests.Pause) -> bytes:
        read.append(path)
        return of_file(path, pause)

    monkeypatch.setattr(digests, "of_file", noted)
    after = max(entry.changed for entry in first.values()) + 1
    assert manifest.make(folder, 2.0, no_pause, first, after)[1] == first
    assert read == []
    (folder / "files/upper/etc/conf").write_text("a = 2\n")
    _, second = manifest.make(folder, 3.0, no_pause, first, after)
    assert {os.path.basename(path) for path in read} == {"conf", "second name"} or len(read) == 1
    assert second[b"upper/etc/conf"].content != first[b"upper/etc/conf"].content
    read.clear()
    manifest.make(folder, 4.0, no_pause, second, before_ns=1)
    assert read, "what may have been changed within the same tick of the clock is read again"


# ---- the verbs -----------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(Terminal, "_foreground_group", lambda _: None)  # there is no process in it
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def row(world: World) -> SessionRow:
    world.app.sessions.new("work", world.options, Size())
    row = world.app.registry.find("work")
    world.app.capture.checkpoint(row, Wish("one", name="one"))
    return world.app.registry.find(row.id)


@pytest.fixture
def point(world: World, row: SessionRow) -> Checkpoint:
    """A point whose digests are made."""
    world.app.digests.make(str(row.head))
    return world.app.registry.point(row, "one")


def test_a_point_says_whether_its_digests_are_made(world: World, row: SessionRow) -> None:
    new = world.app.capture.checkpoint(row, Wish("two"))
    assert not new.digested
    world.app.digests.make(new.id)
    assert world.app.registry.point(row, new.id).digested


def test_a_point_with_a_flipped_bit_is_refused_by_every_verb_before_the_engine_sees_it(
    world: World, row: SessionRow, point: Checkpoint
) -> None:
    app = world.app
    flip(world.home.checkpoints / point.id / "images/core.img")
    verbs: tuple[Callable[[], object], ...] = (
        lambda: app.restore.to(row, "one"),
        lambda: app.fork.grow(row, "one"),
        lambda: app.copies.make_spare(point.id),
    )
    for verb in verbs:
        world.faults.arm(None)
        with pytest.raises(errors.PointDamaged, match=r"c1 of session 'work' is damaged: images/core\.img"):
            verb()
        assert "engine.hold" not in world.faults.calls
        assert app.registry.running(row.id), "the session runs on"
    known = app.registry.point(row, "one")
    assert known.damage == "images/core.img is not what was written"
    assert (known.restorable, known.restore_error) == ("failed", f"it is damaged: {known.damage}")
    app.restore.to(row, "one", files_only=True)


def test_a_verb_does_not_wait_until_memory_is_compared(
    world: World, row: SessionRow, point: Checkpoint
) -> None:
    """A restore waits for a spare that is being made, and the spare's comparison waited for an idle
    daemon."""
    app = world.app
    with open(world.home.checkpoints / point.id / "images/pages-1.img", "wb") as pages:
        pages.write(os.urandom(3 << 20))
    (world.home.checkpoints / point.id / "images/sizes.json").unlink()
    images.record_sizes(world.home.checkpoints / point.id / "images")
    app.digests.make(point.id)
    flip(world.home.checkpoints / point.id / "images/pages-1.img", 2 << 20)
    with app.background.foreground():
        app.digests.require_sound(point, with_memory=True)
    with pytest.raises(errors.PointDamaged, match="pages-1"):
        app.digests.require_sound(point, with_memory=True)


def test_damage_that_is_known_is_not_taken_back_by_a_restore_that_works(
    world: World, row: SessionRow, point: Checkpoint
) -> None:
    world.app.store.points.set_damage(point.id, "files/x is missing")
    world.app.store.points.set_restorable(point.id, None)
    with pytest.raises(errors.PointDamaged, match="files/x is missing"):
        world.app.restore.to(row, "one")
    world.app.store.points.clear_damage(point.id)
    world.app.restore.to(row, "one")


def test_a_damaged_point_is_not_offered_as_good(world: World, row: SessionRow, point: Checkpoint) -> None:
    store = world.app.store.points
    verdict = store.add_verdict(point.id, "true")
    store.finish_verdict(verdict, "passed", exit_code=0, duration_ms=1, output="")
    assert world.app.registry.point(row, "good").id == point.id
    store.set_damage(point.id, "images/core.img is missing")
    with pytest.raises(errors.NotFound):
        world.app.registry.point(row, "good")


def test_a_point_that_is_not_whole_gets_no_digests_but_a_mark(world: World, row: SessionRow) -> None:
    new = world.app.capture.checkpoint(row, Wish("two"))
    os.truncate(world.home.checkpoints / new.id / "images/core.img", 3)
    world.app.digests.make(new.id)
    known = world.app.registry.point(row, new.id)
    assert (known.digested, bool(known.damage)) == (False, True)


def test_the_thread_makes_digests_of_new_points_and_of_those_of_earlier_daemons(
    world: World, row: SessionRow
) -> None:
    world.lose_daemon()
    app = world.start(digests=True)
    new = app.capture.checkpoint(row, Wish("two"))
    until(lambda: all(point.digested for point in app.store.points.all()))
    assert {point.id for point in app.store.points.all()} == {row.head, new.id}


# ---- the machine ---------------------------------------------------------------------------------


def test_what_a_point_was_taken_with_is_named_when_its_restore_fails(world: World, row: SessionRow) -> None:
    taken = world.app.registry.point(row, "one")
    assert taken.platform == world.engine.platform
    world.engine.platform = Platform(architecture="x86_64", kernel="7.1.0", criu="5.0")
    assert platform_differences(taken, world.engine.platform) == [
        "CRIU 4.2.1, here is 5.0",
        "Linux 6.18.0, here is 7.1.0",
    ]
    world.engine.unrestorable = "vdso mismatch"
    with pytest.raises(errors.CannotRestore, match=r"vdso mismatch \(it was taken with CRIU 4.2.1, here"):
        world.app.restore.to(row, "one")
    world.engine.unrestorable = ""
    world.app.restore.to(row, "one")


def test_a_point_of_another_architecture_is_refused_before_anything_is_tried(
    world: World, row: SessionRow
) -> None:
    world.engine.platform = Platform(architecture="aarch64", kernel="6.18.0", criu="4.2.1")
    world.faults.arm(None)
    with pytest.raises(errors.CannotRestore, match="taken on x86_64, and this machine is aarch64"):
        world.app.restore.to(row, "one", safety=False)
    assert "engine.hold" not in world.faults.calls
    world.app.restore.to(row, "one", files_only=True)
