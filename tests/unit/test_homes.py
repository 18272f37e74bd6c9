"""The registry of homes: what it finds again, and what it drops."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.box import box
from waypoint.box.box import Box
from waypoint.box.masks import is_mask
from waypoint.errors import MachineError
from waypoint.home import Home
from waypoint.kernel import homes
from waypoint.kernel.mounts import parse_mountinfo


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "REGISTRY", tmp_path / "registry")
    monkeypatch.setattr(homes, "LOCK", tmp_path / "run" / "homes.lock")


def make(path: Path) -> Home:
    path.mkdir(parents=True)
    (path / "waypoint.db").touch()
    return Home(path)


def known() -> list[Path]:
    return sorted(home.path for home in homes.known_homes())


def test_a_home_is_masked_before_it_is_written_down_and_only_once(tmp_path: Path) -> None:
    home = make(tmp_path / "home")
    masked: list[Path] = []
    homes.register(home, lambda found: masked.append(found.path))
    homes.register(home, lambda found: masked.append(found.path))
    assert masked == known() == [home.path]

    def fail(_: homes.KnownHome) -> None:
        raise OSError("a keeper")

    with pytest.raises(OSError, match="a keeper"):
        homes.register(make(tmp_path / "other"), fail)
    assert known() == [home.path]


def test_a_home_that_is_known_already_waits_for_no_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "_CHANGING_SECONDS", 0.02)
    home = make(tmp_path / "home")
    homes.register(home, lambda _: None)
    with homes.reading():
        homes.register(home, lambda _: None)
        with pytest.raises(MachineError, match=rf"process {os.getpid()} \(.*\) is building a box"):
            homes.register(make(tmp_path / "other"), lambda _: None)


def test_boxes_whose_keepers_do_not_answer_are_masked_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Others wait for the lock meanwhile: the time that each of them takes must not add up."""
    boxes = [f"{number:012x}" for number in range(24)]
    all_wait = threading.Barrier(len(boxes), timeout=20)

    def connect(_path: Path, *, answer_seconds: float) -> None:
        all_wait.wait()
        raise TimeoutError(f"no answer within {answer_seconds:g} s")

    monkeypatch.setattr(box, "Keeper", connect)
    monkeypatch.setattr(box, "_all_keepers", lambda: iter([("tag", box_id, 1) for box_id in boxes]))
    homes.register(make(tmp_path / "home"), box.hide_home)
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == len(boxes)
    assert all("sees this one: no answer within 2 s" in text for text in warned), warned


def test_a_mask_is_known_by_what_it_is() -> None:
    """One that a hanging keeper mounts later is in no table: the session could not be saved any more."""
    mask, other, writable = parse_mountinfo(
        "207 549 0:469 / /var/tmp/home ro,nosuid,nodev,noexec,relatime - tmpfs none ro,size=0k,mode=755\n"
        "208 549 0:470 / /var/tmp/other ro,nosuid,nodev,noexec,relatime - tmpfs none ro,size=64k,mode=755\n"
        "209 549 0:471 / /var/tmp/writable rw,nosuid,nodev,noexec,relatime - tmpfs none rw,size=0k\n"
    )
    assert is_mask(mask)
    assert not is_mask(other)
    assert not is_mask(writable)


def test_a_home_that_was_forgotten_or_deleted_is_dropped(tmp_path: Path) -> None:
    first, second, third = (make(tmp_path / name) for name in ("first", "second", "third"))
    for home in (first, second, third):
        homes.register(home, lambda _: None)
    homes.forget(first)
    assert known() == [second.path, third.path]
    (second.path / "waypoint.db").unlink()
    second.path.rmdir()
    assert known() == [third.path]
    assert (homes.REGISTRY / second.tag).exists()
    homes.register(third, lambda _: None)
    assert not (homes.REGISTRY / second.tag).exists()
    (homes.REGISTRY / "damaged").write_text("{")
    assert known() == [third.path]
    (homes.REGISTRY / "damaged").unlink()
    homes.forget(third)
    assert not homes.REGISTRY.exists()


def test_another_folder_at_the_path_of_a_home_is_that_home_only_if_it_looks_like_one(tmp_path: Path) -> None:
    home = make(tmp_path / "home")
    homes.register(home, lambda _: None)
    home.path.rename(tmp_path / "aside")
    (tmp_path / "aside" / "waypoint.db").unlink()
    (tmp_path / "aside").rmdir()
    home.path.mkdir()
    assert known() == []
    (home.path / "pool.img").touch()  # as after a reboot, when device numbers are others
    assert known() == [home.path]


def test_building_waits_for_a_change_and_a_change_for_building(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "_CHANGING_SECONDS", 0.02)
    monkeypatch.setattr(homes, "_READING_SECONDS", 0.02)
    building = pytest.raises(MachineError, match=r"is building a box, and has not finished within 0\.02 s")
    with homes.reading(), homes.reading(), building, homes.changing():
        pass
    changing = pytest.raises(MachineError, match=rf"process {os.getpid()} .* is opening or closing")
    with homes.changing(), changing, homes.reading():
        pass
    with homes.changing():
        pass


def test_a_change_gets_its_turn_among_boxes_that_are_built_without_a_break() -> None:
    changed = threading.Event()

    def build(started: threading.Event) -> None:
        while not changed.is_set():
            with homes.reading():
                started.set()

    starts = [threading.Event() for _ in range(3)]
    builders = [threading.Thread(target=build, args=(start,)) for start in starts]
    for builder, start in zip(builders, starts, strict=True):
        builder.start()
        start.wait()
    with homes.changing():
        changed.set()
    for builder in builders:
        builder.join()


def test_the_mask_of_a_home_that_is_being_registered_is_no_mount_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Path("/proc/self/mountinfo").read_text()
    built, mask = table.splitlines(keepends=True)[:-1], table.splitlines(keepends=True)[-1]
    box = object.__new__(Box)
    box.pid, box._mounts_file = os.getpid(), tmp_path / "mounts"
    box._mounts_file.write_text("".join(built))

    @contextlib.contextmanager
    def reading_after_it_was_noted() -> Iterator[None]:
        box._mounts_file.write_text("".join((*built, mask)))
        yield

    with monkeypatch.context() as patch:
        patch.setattr(homes, "reading", reading_after_it_was_noted)
        assert box.mounts_made_inside() == []
    box._mounts_file.write_text("".join(built))
    assert [one.mount_id for one in box.mounts_made_inside()] == [int(mask.split()[0])]
