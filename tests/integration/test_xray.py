"""The X-ray on real overlays: what a view shows and what a comparison tells, against what the kernel shows.

Each test works in an overlay with a box's own options, mounted in a mount namespace of its own over a small
base, its layers on a btrfs pool. What the box saw is recorded there, path by path; the view and the changes
are computed afterwards from the snapshots alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import pickle
import shutil
import stat
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waypoint.api.difference import Change, Changes, Difference, LiveDifference
from waypoint.api.findings import Analysis
from waypoint.box.plan import OVERLAY_OPTIONS
from waypoint.box.volume import make_volume
from waypoint.errors import UsageError
from waypoint.history.changes import compare_views, is_noise, total
from waypoint.history.diff import patch
from waypoint.history.view import PointView
from waypoint.kernel.pool.deltas import by_walk, differences
from waypoint.kernel.pool.holders import pool_holders
from waypoint.kernel.pool.lifecycle import close_pool, open_pool
from waypoint.kernel.pool.protocol import Pool
from waypoint.kernel.syscalls import (
    CLONE_NEWNS,
    MS_BIND,
    MS_NODEV,
    MS_PRIVATE,
    MS_REC,
    libc,
    mount,
    unshare,
)
from waypoint.text.difference import describe_difference
from waypoint.text.files import summarize_files

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

MIB = 1 << 20
_NUMBER = itertools.count()

Facts = tuple[int, int, int, Any, dict[str, bytes]]
"""Mode, owner, group, content (bytes, target or device), attributes."""
Picture = dict[str, Facts]


# ---- machinery ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A btrfs pool for all tests here."""
    home = tmp_path_factory.mktemp("xray") / "home"
    yield open_pool(home, size_bytes=1024 * MIB, kind="btrfs")
    deadline = time.monotonic() + 10
    while not close_pool(home):  # another test's mount namespace may hold a copy of the mount for a moment
        assert time.monotonic() < deadline, pool_holders(home)
        time.sleep(0.1)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small root file system, as varied as it is small."""
    root = tmp_path_factory.mktemp("base")
    for folder in ("a/b/c", "d/e", "dev", "proc", "sys", "tmp"):
        (root / folder).mkdir(parents=True)
    for folder in ("a", "a/b", "a/b/c", "d", "d/e", ""):
        for name in ("f", "g"):
            (root / folder / name).write_text(f"{folder}/{name}\n" * 20)
    (root / "a" / "b" / "g").chmod(0o4755)
    os.chown(root / "a" / "b", 7, 8)
    os.setxattr(root / "d" / "f", "user.color", b"green")
    (root / "d" / "link").symlink_to("../a/b")
    (root / "away").symlink_to("/etc/passwd")
    os.mkfifo(root / "d" / "pipe")
    return root


def in_overlay(base: Path, volume: Path, *steps: Callable[[Path], Any]) -> list[Any]:
    """What the steps return, each called with the root of the merged tree, in a process of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            with os.fdopen(writer, "wb") as out:
                try:
                    root = _mount_overlay(base, volume)
                    pickle.dump([step(root) for step in steps], out)
                except BaseException:  # noqa: BLE001
                    pickle.dump(traceback.format_exc(), out)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        found = pickle.loads(answer.read())
    os.waitpid(pid, 0)
    assert not isinstance(found, str), found
    assert isinstance(found, list)
    return found


def _mount_overlay(base: Path, volume: Path) -> Path:
    unshare(CLONE_NEWNS)
    mount("", "/", "", MS_REC | MS_PRIVATE, "")
    work = volume / f"work-{next(_NUMBER)}-{os.getpid()}"
    work.mkdir()
    (work / "base").mkdir()
    merged = Path("/mnt")
    data = f"lowerdir={base},upperdir={volume}/upper,workdir={work}/base,{OVERLAY_OPTIONS}"
    mount("overlay", merged, "overlay", MS_NODEV, data)
    for path in sorted(os.listdir(volume / "mounts")):
        inside = path.replace("%2F", "/").lstrip("/")
        (work / path).mkdir()
        data = f"lowerdir={base}/{inside},upperdir={volume}/mounts/{path},workdir={work}/{path}"
        data = f"{data},{OVERLAY_OPTIONS}"
        mount("overlay", merged / inside, "overlay", MS_NODEV, data)
    mount("tmpfs", merged / "dev", "tmpfs", 0, "")
    (merged / "dev" / "shm").mkdir()
    mount(volume / "shm", merged / "dev" / "shm", "", MS_BIND, "")
    return merged


class Layers:
    """A session's volume and points of it."""

    def __init__(self, pool: Pool, base: Path) -> None:
        self.pool, self.base = pool, base
        self.made: list[Path] = []
        self.volume = self._new("v")
        pool.create(self.volume)
        make_volume(self.volume)

    def _new(self, kind: str) -> Path:
        path = self.pool.root / "sessions" / f"{kind}{next(_NUMBER)}"
        self.made.append(path)
        return path

    def run(self, *steps: Callable[[Path], Any]) -> list[Any]:
        return in_overlay(self.base, self.volume, *steps)

    def point(self) -> Path:
        path = self._new("p")
        self.pool.snapshot(self.volume, path, readonly=True)
        return path

    def restore(self, point: Path) -> None:
        """Like a restored box: another volume, grown from the point; its old work folder goes."""
        self.volume = self._new("v")
        self.pool.snapshot(point, self.volume, readonly=False)
        for work in self.volume.glob("work-*"):
            shutil.rmtree(work)

    def view(self, point: Path | None) -> PointView:
        return PointView(point, self.base)

    def changes(self, *steps: Callable[[Path], Any]) -> Changes:
        """What steps change, against the point before them."""
        old = self.point()
        self.run(*steps)
        return self.between(old, self.point())

    def between(self, old: Path | None, new: Path) -> Changes:
        if old is None:
            return compare_views(None, self.view(new))
        return compare_views(self.view(old), self.view(new), differences(old, new, skip=is_noise))


@contextlib.contextmanager
def made_layers(pool: Pool, base: Path) -> Iterator[Layers]:
    layers = Layers(pool, base)
    try:
        yield layers
    finally:
        for path in layers.made:
            pool.delete(path)


@pytest.fixture
def layers(pool: Pool, base: Path) -> Iterator[Layers]:
    """Layers over the base for one test."""
    with made_layers(pool, base) as found:
        yield found


def told(changes: Changes) -> set[str]:
    """Changes in short: `+ /path`, `- /path`, `/old -> /path`, `~ /path content mode`."""
    said = set()
    for change in changes:
        match change.kind:
            case "created":
                said.add(f"+ {change.path}" + f" ({change.files})" * bool(change.files))
            case "deleted":
                said.add(f"- {change.path}" + f" ({change.files})" * bool(change.files))
            case "renamed":
                said.add(f"{change.old_path} -> {change.path}" + "".join(f" {word}" for word in change.what))
            case "modified":
                said.add(f"~ {change.path} {' '.join(change.what)}")
    return said


def picture(root: Path) -> Picture:
    """All that a program sees of a tree, /dev aside but for /dev/shm."""
    found: Picture = {}
    for folder, folders, names in os.walk(root):
        inside = "" if folder == str(root) else folder[len(str(root)) :]
        for name in (*folders, *names):
            path = f"{inside}/{name}"
            if path.startswith("/dev") and not path.startswith("/dev/shm/"):
                continue
            about = os.lstat(root.as_posix() + path)
            found[path] = facts(root.as_posix() + path, about)
    return found


def facts(path: str, about: os.stat_result) -> Facts:
    content: Any = about.st_rdev
    if stat.S_ISLNK(about.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(about.st_mode):
        content = Path(path).read_bytes()
    attributes = {
        name: os.getxattr(path, name, follow_symlinks=False)
        for name in os.listxattr(path, follow_symlinks=False)
        if not name.startswith("btrfs.")
    }
    return about.st_mode, about.st_uid, about.st_gid, content, attributes


def seen(view: PointView) -> Picture:
    """The same through a view."""
    found: Picture = {}
    for path, entry in view.walk():
        if path.startswith("/dev") and not path.startswith("/dev/shm/"):
            continue
        place = view.place(path)
        assert place is not None
        content: Any = entry.rdev
        if entry.is_link:
            content = view.readlink(path)
        elif entry.is_file:
            content = view.read(path)
        found[path] = entry.mode, entry.uid, entry.gid, content, view.attributes(place)
    return found


# ---- what happens to files of the base ----------------------------------------------------------


def test_a_file_of_the_base_modified_deleted_and_renamed(layers: Layers) -> None:
    def work(root: Path) -> None:
        (root / "a" / "f").write_text("changed")
        (root / "a" / "g").unlink()
        (root / "d" / "g").rename(root / "moved")
        (root / "d" / "e" / "f").chmod(0o600)
        os.chown(root / "d" / "e" / "g", 3, 4)
        os.setxattr(root / "d" / "f", "user.color", b"red")

    assert told(layers.changes(work)) == {
        *("~ /a/f content", "- /a/g", "/d/g -> /moved"),
        *("~ /d/e/f mode", "~ /d/e/g owner", "~ /d/f xattr"),
    }


def test_a_file_that_was_only_copied_up_has_not_changed(layers: Layers) -> None:
    def work(root: Path) -> None:
        with (root / "a" / "f").open("r+b"):
            pass
        mode = stat.S_IMODE((root / "a" / "b").stat().st_mode)
        (root / "a" / "b").chmod(mode)
        content = (root / "a" / "g").read_bytes()
        (root / "a" / "g").write_bytes(content)

    changes = layers.changes(work)
    assert told(changes) == set()
    assert not changes
    assert summarize_files(changes) == ""


def test_a_renamed_folder_of_the_base_is_one_rename(layers: Layers) -> None:
    def work(root: Path) -> None:
        (root / "a").rename(root / "z")
        (root / "z" / "b" / "f").write_text("changed")

    start = layers.point()
    changes = layers.changes(work)
    assert told(changes) == {"/a -> /z", "~ /z/b/f content"}
    assert next(change for change in changes if change.kind == "modified").old_path == "/a/b/f"
    end = layers.point()
    assert told(layers.between(end, start)) == {"/z -> /a", "~ /a/b/f content"}
    assert told(compare_views(layers.view(end), layers.view(None))) == {"/z -> /a", "~ /a/b/f content"}


def test_a_folder_of_the_base_that_is_moved_again_and_again(layers: Layers) -> None:
    first = layers.changes(lambda root: (root / "a" / "b").rename(root / "x"))
    assert told(first) == {"/a/b -> /x"}
    second = layers.changes(lambda root: (root / "x" / "c").rename(root / "d" / "c"))
    assert told(second) == {"/x/c -> /d/c"}

    def away(root: Path) -> None:
        (root / "d").rename(root / "x" / "d")
        shutil.rmtree(root / "a")

    assert told(layers.changes(away)) == {"/d -> /x/d", "- /a (2)"}
    assert told(layers.between(None, layers.point())) == {
        *("/a/b -> /x", "/d -> /x/d", "/a/b/c -> /x/d/c", "- /a (2)"),
    }


def test_a_part_of_a_folder_is_kept_when_the_rest_goes(layers: Layers) -> None:
    layers.run(lambda root: (root / "a").rename(root / "x"))

    def work(root: Path) -> None:
        (root / "x" / "b").rename(root / "kept")
        shutil.rmtree(root / "x")

    assert told(layers.changes(work)) == {"/x/b -> /kept", "- /x (2)"}


def test_a_part_that_was_kept_goes_back_into_the_folder_that_comes_back(layers: Layers) -> None:
    start = layers.point()

    def work(root: Path) -> None:
        (root / "a" / "b").rename(root / "kept")
        (root / "kept" / "mine").write_text("x")
        shutil.rmtree(root / "a")

    layers.run(work)
    end = layers.point()
    assert told(layers.between(start, end)) == {"/a/b -> /kept", "+ /kept/mine", "- /a (2)"}
    back = {"/kept -> /a/b", "- /kept/mine", "+ /a (2)"}
    assert told(layers.between(end, start)) == back
    assert told(compare_views(layers.view(end), layers.view(None))) == back


def test_a_folder_of_the_base_that_goes_is_one_change_with_a_count(layers: Layers) -> None:
    layers.run(lambda root: (root / "a" / "b" / "mine").write_text("x"))
    changes = layers.changes(lambda root: shutil.rmtree(root / "a"))
    assert told(changes) == {"- /a (2)", "- /a/b (2)", "- /a/b/c (2)", "- /a/b/mine"} or told(changes) == {
        *("- /a (2)", "- /a/b (4)", "- /a/b/mine"),
    }
    assert total(changes).deleted == 7
    gone = next(change for change in changes if change.path == "/a")
    assert gone.files_bytes == 2 * len("a/f\n" * 20)


def test_a_folder_made_again_over_one_of_the_base_tells_what_is_really_gone(layers: Layers) -> None:
    def work(root: Path) -> None:
        shutil.rmtree(root / "d")
        (root / "d").mkdir()
        (root / "d" / "f").write_text("d/f\n" * 20)
        (root / "d" / "new").write_text("x")

    assert told(layers.changes(work)) == {
        *("- /d/e (2)", "- /d/g", "- /d/link", "- /d/pipe"),
        *("~ /d/f xattr", "+ /d/new"),
    }


def test_what_comes_back_is_created(layers: Layers) -> None:
    start = layers.point()
    layers.run(lambda root: shutil.rmtree(root / "a"), lambda root: (root / "d" / "f").unlink())
    without = layers.point()
    assert told(layers.between(without, start)) == {"+ /a (6)", "+ /d/f"}


def test_types_change(layers: Layers) -> None:
    def work(root: Path) -> None:
        shutil.rmtree(root / "a" / "b")
        (root / "a" / "b").write_text("a file now")
        (root / "g").unlink()
        (root / "g").mkdir()
        (root / "g" / "new").write_text("x")
        (root / "f").unlink()
        (root / "f").symlink_to("g")

    assert told(layers.changes(work)) == {
        *("~ /a/b type mode owner", "- /a/b/c (2)", "- /a/b/f", "- /a/b/g"),
        *("~ /g type mode", "+ /g/new", "~ /f type mode"),
    }


# ---- what happens to the session's own files ----------------------------------------------------


def test_own_files_and_folders(layers: Layers) -> None:
    def before(root: Path) -> None:
        (root / "app" / "api").mkdir(parents=True)
        for name in ("one", "two", "three"):
            (root / "app" / "api" / name).write_text(name)

    def work(root: Path) -> None:
        (root / "app" / "api").rename(root / "app" / "lib")
        (root / "app" / "lib" / "one").write_text("changed")
        (root / "app" / "lib" / "two").rename(root / "two")
        (root / "app" / "lib" / "three").unlink()
        (root / "app" / "lib" / "four").write_text("4")

    assert told(layers.changes(before)) == {
        *("+ /app", "+ /app/api", "+ /app/api/one", "+ /app/api/two", "+ /app/api/three"),
    }
    assert told(layers.changes(work)) == {
        *("/app/api -> /app/lib", "~ /app/lib/one content", "/app/api/two -> /two"),
        *("- /app/api/three", "+ /app/lib/four"),
    }


def test_a_file_replaced_by_another_is_modified_and_a_backup_is_new(layers: Layers) -> None:
    layers.run(lambda root: (root / "f.txt").write_text("old"))

    def work(root: Path) -> None:
        (root / "f.txt").rename(root / "f.txt~")
        (root / "f.txt").write_text("new")
        (root / "f.new").write_text("other")
        (root / "f.new").rename(root / "g")

    assert told(layers.changes(work)) == {"~ /f.txt content", "+ /f.txt~", "~ /g content"}


def test_folders_that_take_each_others_places_are_renamed(layers: Layers) -> None:
    def before(root: Path) -> None:
        for name in ("app", "app.new"):
            (root / name).mkdir()
            (root / name / "f").write_text(name)

    def work(root: Path) -> None:
        (root / "app").rename(root / "app.old")
        (root / "app.new").rename(root / "app")

    layers.run(before)
    assert told(layers.changes(work)) == {"/app -> /app.old", "/app.new -> /app"}


def test_shared_memory_is_part_of_it(layers: Layers) -> None:
    changes = layers.changes(lambda root: (root / "dev" / "shm" / "segment").write_bytes(bytes(4096)))
    assert told(changes) == {"+ /dev/shm/segment"}
    assert layers.view(layers.point()).read("/dev/shm/segment") == bytes(4096)


def test_what_is_mounted_below_the_base_has_its_own_layer(layers: Layers) -> None:
    (layers.volume / "mounts" / "%2Fa%2Fb").mkdir()

    def work(root: Path) -> None:
        (root / "a" / "b" / "f").write_text("changed")
        (root / "a" / "b" / "c").rename(root / "a" / "b" / "k")
        (root / "a" / "b" / "g").unlink()
        (root / "a" / "new").write_text("x")

    assert told(layers.changes(work)) == {
        *("~ /a/b/f content", "/a/b/c -> /a/b/k", "- /a/b/g", "+ /a/new"),
    }
    [there] = layers.run(picture)
    assert seen(layers.view(layers.point())) == there


def test_a_hard_link_changes_under_all_its_names(layers: Layers) -> None:
    layers.run(lambda root: os.link(root / "f", root / "f2"))
    assert told(layers.changes(lambda root: (root / "f2").write_text("changed"))) == {
        *("~ /f content", "~ /f2 content"),
    }


def other_names(changes: Changes) -> dict[str, str | None]:
    """What came or went, and the name that its file has beside."""
    return {change.real_path: change.links_to for change in changes if change.kind in ("created", "deleted")}


def test_another_name_of_a_file_is_told_as_that(layers: Layers) -> None:
    def make(root: Path) -> None:
        os.link(root / "f", root / "d" / "of-base")
        os.mkdir(root / "new")
        (root / "new" / "file").write_text("new")
        os.link(root / "new" / "file", root / "new" / "link")
        (root / "new" / "symlink").symlink_to("file")
        os.link(root / "new" / "symlink", root / "new" / "twin", follow_symlinks=False)
        os.link(root / "new" / "file", root / "new" / "link2")

    assert other_names(layers.changes(make)) == {
        "/d/of-base": "/f",
        "/new": None,
        "/new/file": None,
        "/new/link": "/new/file",
        "/new/link2": "/new/file",
        "/new/symlink": None,
        "/new/twin": "/new/symlink",
    }

    def change(root: Path) -> None:
        (root / "new" / "link2").unlink()
        (root / "new").rename(root / "moved")
        (root / "d" / "of-base").unlink()
        (root / "alone").write_text("one name")

    changes = layers.changes(change)
    assert other_names(changes) == {"/new/link2": "/moved/file", "/d/of-base": "/f", "/alone": None}
    section = describe_difference(Difference(files=changes, analysis=Analysis(), live=LiveDifference()))[0]
    assert section.summary == "+1 -2 →1 files, folders and hard links"
    assert [(line.sign, line.text, line.detail) for line in section.lines] == [
        ("+", "/alone", "8 B"),
        ("-", "/d/of-base", "was a hard link of /f"),
        ("→", "/new → /moved/", ""),
        ("-", "/new/link2", "was a hard link of /moved/file"),
    ]
    changes = layers.changes(lambda root: os.link(root / "moved" / "link", root / "more"))
    section = describe_difference(Difference(files=changes, analysis=Analysis(), live=LiveDifference()))[0]
    assert (section.summary, section.lines[0].detail) == ("+1 hard link", "hard link of /moved/file")
    # A name that goes while another one comes is a rename.
    assert told(layers.changes(Work([("move", "more", "most")]))) == {"/more -> /most"}
    # With its last name the file is gone, too.
    changes = layers.changes(Work([("remove", f"moved/{name}", "") for name in ("symlink", "twin")]))
    assert other_names(changes) == {"/moved/symlink": None, "/moved/twin": None}


def test_files_of_two_branches_with_one_inode_number_are_no_hard_links(layers: Layers) -> None:
    def make(first: str, second: str) -> Callable[[Path], None]:
        def step(root: Path) -> None:
            (root / first).write_text(first)
            os.link(root / first, root / second)

        return step

    start = layers.point()
    points = []
    for names in (("one", "two"), ("three", "four")):
        layers.restore(start)
        layers.run(make(*names))
        points.append(layers.point())
    inodes = {(points[0] / "upper/one").lstat().st_ino, (points[1] / "upper/three").lstat().st_ino}
    assert len(inodes) == 1
    assert other_names(layers.between(*points)) == {
        "/one": None,
        "/two": None,
        "/four": None,
        "/three": "/four",
    }


def test_of_a_file_of_the_base_with_several_names_only_the_one_used_changes(
    pool: Pool, tmp_path: Path
) -> None:
    """The running overlay links the others to it, by an index that no restored box can use: a view shows what
    a restore brings."""
    for folder in ("dev", "d"):
        (tmp_path / folder).mkdir()
    (tmp_path / "d" / "one").write_text("old")
    os.link(tmp_path / "d" / "one", tmp_path / "d" / "two")
    with made_layers(pool, tmp_path) as layers:
        assert told(layers.changes(lambda root: (root / "d" / "one").write_text("new"))) == {
            "~ /d/one content"
        }
        point = layers.point()
        layers.restore(point)
        [there] = layers.run(picture)
        assert seen(layers.view(point)) == there


def test_points_of_different_bases_cannot_be_compared(layers: Layers, tmp_path: Path) -> None:
    point = layers.point()
    with pytest.raises(UsageError, match="different bases"):
        compare_views(PointView(point, tmp_path), layers.view(point), ())


def test_odd_names_survive_the_way_to_json(layers: Layers) -> None:
    odd = os.fsdecode(b"odd-\xff")
    changes = layers.changes(lambda root: (root / odd).write_text("x"))
    back = msgspec.json.decode(msgspec.json.encode(changes), type=Changes)
    assert back == changes
    assert back.changes[0].path == "/odd-\\xff"
    assert back.changes[0].real_path == f"/{odd}"
    assert layers.view(layers.point()).read(back.changes[0].real_path) == b"x"


def test_a_copying_pool_tells_the_same_but_for_moved_folders(layers: Layers) -> None:
    def before(root: Path) -> None:
        (root / "app").mkdir()
        (root / "app" / "f").write_text("own")

    def work(root: Path) -> None:
        (root / "a").rename(root / "z")
        (root / "app" / "f").rename(root / "own")
        (root / "d" / "f").write_text("changed")

    layers.run(before)
    old = layers.point()
    layers.run(work)
    new = layers.point()
    copies = []
    for point in (old, new):
        copy = layers.pool.root / "staging" / f"{point.name}.copy"
        shutil.copytree(
            point, copy, symlinks=True, ignore=shutil.ignore_patterns("work-*"), copy_function=_copy
        )
        for folder, folders, _ in os.walk(point):
            for name in folders:
                _copy_attributes(Path(folder, name), copy / Path(folder, name).relative_to(point))
        copies.append(copy)
    try:
        one, other = copies
        found = compare_views(layers.view(one), layers.view(other), by_walk(one, other, skip=is_noise))
        assert told(found) == {"/a -> /z", "/app/f -> /own", "~ /d/f content"}
    finally:
        for copy in copies:
            shutil.rmtree(copy)


def _copy(source: str, target: str) -> None:
    about = os.lstat(source)
    if stat.S_ISCHR(about.st_mode):
        os.mknod(target, about.st_mode, about.st_rdev)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def _copy_attributes(source: Path, target: Path) -> None:
    if target.exists():
        for name in os.listxattr(source):
            os.setxattr(target, name, os.getxattr(source, name))


# ---- patches ------------------------------------------------------------------------------------


def test_a_patch_of_a_session_can_be_applied_to_its_base(layers: Layers, tmp_path: Path) -> None:
    def work(root: Path) -> None:
        (root / "a").rename(root / "z")
        (root / "z" / "b" / "f").write_text("changed\n")
        (root / "z" / "b" / "c" / "g").rename(root / "out")
        (root / "d" / "f").unlink()
        (root / "new").write_text("new\n")
        (root / "d" / "pipe").unlink()

    layers.run(work)
    new = layers.view(layers.point())
    changes = compare_views(None, new)
    found = list(patch(None, new, changes))
    body = b"".join(one.body for one in found)
    assert b"# folder /a renamed to /z\n" in body
    assert b"# fifo /d/pipe deleted\n" in body
    tree = tmp_path / "tree"
    shutil.copytree(layers.base, tree, symlinks=True, ignore=shutil.ignore_patterns("pipe"))
    subprocess.run(["git", "apply", "-"], input=body, cwd=tree, check=True, env={"GIT_DIR": "/nowhere"})
    there = {path: about[3] for path, about in picture(tree).items() if is_file(about)}
    assert there == {path: about[3] for path, about in seen(new).items() if is_file(about)}


# ---- views --------------------------------------------------------------------------------------


def test_links_are_followed_inside_the_view_and_never_out_of_it(layers: Layers) -> None:
    def work(root: Path) -> None:
        (root / "etc").mkdir()
        (root / "etc" / "passwd").write_text("of the box\n")
        (root / "up").symlink_to("../../../../etc/passwd")
        (root / "loop").symlink_to("loop")
        (root / "dangling").symlink_to("/root/.ssh/nothing")
        (root / "chain").symlink_to("d/link/c/../f")

    layers.run(work)
    view = layers.view(layers.point())
    assert view.read("/away") == b"of the box\n"
    assert view.read("/up") == b"of the box\n"
    assert view.read("/chain") == b"a/b/f\n" * 20
    assert view.read("/d/link/f", 3) == b"a/b"
    assert stat.S_ISLNK(view.lstat("/d/link").st_mode)
    assert stat.S_ISDIR(view.stat("/d/link").st_mode)
    for path in ("/loop", "/dangling", "/f/no", "/nowhere"):
        assert not view.exists(path)
        with pytest.raises(FileNotFoundError):
            view.read(path)
    with pytest.raises(FileNotFoundError):
        view.read("/d/pipe")
    with pytest.raises(FileNotFoundError):
        view.read("/d")
    with pytest.raises(NotADirectoryError):
        view.listdir("/f")


def test_a_view_shows_the_base_without_what_is_hidden_or_outside(layers: Layers) -> None:
    view = PointView(layers.point(), layers.base, hide=["/d"])
    assert view.listdir("/d") == []
    assert view.listdir("/proc") == []
    assert view.listdir("/dev") == ["shm"]
    assert "f" in view.listdir("/a")
    assert not view.exists("/d/f")
    assert view.lstat("/d").st_mode == stat.S_IFDIR | 0o755
    nothing = PointView(None, layers.base)
    assert nothing.read("/a/f") == b"a/f\n" * 20
    assert nothing.listdir("/dev/shm") == []


def test_the_host_as_base_does_not_show_what_is_mounted_on_it(layers: Layers) -> None:
    view = PointView(layers.point(), Path("/"))
    assert view.listdir("/sys") == []
    assert view.exists("/etc/passwd")
    assert view.read("/etc/passwd") == Path("/etc/passwd").read_bytes()
    assert not [name for name in view.listdir(str(layers.pool.root)) if name == "sessions"]


def test_whiteouts_in_the_form_of_attributes(layers: Layers) -> None:
    folder = layers.volume / "upper" / "a"
    folder.mkdir()
    os.setxattr(folder, "trusted.overlay.opaque", b"x")
    (folder / "f").touch()
    os.setxattr(folder / "f", "trusted.overlay.whiteout", b"y")
    (folder / "empty").touch()
    view = layers.view(layers.point())
    assert view.listdir("/a") == ["b", "empty", "g"]
    assert not view.exists("/a/f")


def test_redirects_that_lead_astray_lead_nowhere(layers: Layers) -> None:
    for number, redirect in enumerate(
        (b"/../../etc", b"..", b"/away", b"/d/link", b"/f", b"a/b", b"/", b"//")
    ):
        folder = layers.volume / "upper" / f"r{number}"
        folder.mkdir()
        os.setxattr(folder, "trusted.overlay.redirect", redirect)
    view = layers.view(layers.point())
    assert {name: view.listdir(f"/r{name}") for name in range(8)} == {name: [] for name in range(8)}


# ---- random operations --------------------------------------------------------------------------

NAMES = ("a", "b", "c", "d", "e", "f", "g", "x")
FOLDERS = st.sampled_from(
    [
        "a",
        "a/b",
        "a/b/c",
        "d",
        "d/e",
        "x",
        "x/b",
        "x/b/c",
        "x/c",
        "x/e",
        "y",
        "y/b",
        "y/c",
        "y/e",
        "a/x",
        "d/y",
    ]
)
PATHS = st.one_of(
    FOLDERS,
    st.tuples(FOLDERS, st.sampled_from(["f", "g", "h"])).map("/".join),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join),
)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), PATHS, st.sampled_from(["", "x", "y", "z" * 5000])),
    st.tuples(st.just("append"), PATHS, st.just("q")),
    st.tuples(st.just("open"), PATHS, st.just("")),
    st.tuples(st.just("mkdir"), PATHS, st.just("")),
    st.tuples(st.just("move"), PATHS, PATHS),
    st.tuples(st.just("move"), FOLDERS, FOLDERS),
    st.tuples(st.just("swap"), PATHS, PATHS),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("symlink"), PATHS, PATHS),
    st.tuples(st.just("remove"), PATHS, st.just("")),
    st.tuples(st.just("remake"), FOLDERS, st.sampled_from(["f", "h"])),
    st.tuples(st.just("rescue"), FOLDERS, FOLDERS),
    st.tuples(st.just("chmod"), PATHS, st.sampled_from(["700", "644"])),
    st.tuples(st.just("chown"), PATHS, st.sampled_from(["0", "7"])),
    st.tuples(st.just("attribute"), PATHS, st.sampled_from(["", "1"])),
)


class Work:
    """Random operations as a step; what is impossible is not done."""

    def __init__(self, operations: Sequence[tuple[str, str, str]]) -> None:
        self.operations = operations

    def __call__(self, root: Path) -> None:
        for operation in self.operations:
            with contextlib.suppress(OSError):
                self.perform(root, *operation)

    def perform(self, root: Path, operation: str, first: str, second: str) -> None:
        path = root / first
        match operation:
            case "write":
                with contextlib.closing(_opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)) as file:
                    file.write(second.encode())
            case "append" | "open":
                with contextlib.closing(_opened(path, os.O_RDWR | os.O_APPEND)) as file:
                    file.write(second.encode())
            case "mkdir":
                path.mkdir()
            case "move":
                path.rename(root / second)
            case "swap":
                libc.renameat2(
                    *(
                        ctypes.c_int(-100),
                        os.fsencode(path),
                        ctypes.c_int(-100),
                        os.fsencode(root / second),
                        2,
                    )
                )
            case "link":
                os.link(path, root / second, follow_symlinks=False)
            case "symlink":
                path.symlink_to(second)
            case "remove":
                _remove(path)
            case "remake":
                _remove(path)
                path.mkdir()
                (path / second).write_text("made again")
            case "rescue":
                path.rename(root / second)
                _remove(path.parent)
            case "chmod":
                os.chmod(path, int(second, 8))
            case "chown":
                os.chown(path, int(second), int(second), follow_symlinks=False)
            case "attribute":
                if second:
                    os.setxattr(path, "user.test", second.encode())
                else:
                    os.removexattr(path, "user.test")


def _opened(path: Path, flags: int) -> Any:
    return os.fdopen(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644), "wb", buffering=0)


def _remove(path: Path) -> None:
    if path == Path("/mnt"):
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def replay(old: Picture, new: Picture, found: Changes) -> None:
    """Does to the old picture what the changes say: it has to be the new one then, and no word too much."""
    moves = {change.real_old_path: change.real_path for change in found if change.kind == "renamed"}
    gone = {change.real_path: change for change in found if change.kind == "deleted"}
    came = {change.real_path: change for change in found if change.kind == "created"}
    edited = {change.real_path: change for change in found if change.kind in ("modified", "renamed")}

    def lands(path: str) -> str | None:
        if path in moves:
            return moves[path]
        if path in gone:
            return None
        folder, _, name = path.rpartition("/")
        if not folder:
            return path
        above = lands(folder)
        return None if above is None else f"{above}/{name}"

    result = {}
    for path, about in old.items():
        if (where := lands(path)) is not None:
            assert where not in result, where
            result[where] = about
    unlisted = [path for path in old if lands(path) is None and path not in gone and is_file(old[path])]
    assert sum(change.files for change in gone.values()) == len(unlisted)

    for path, change in came.items():
        assert path not in result, change
        result[path] = new[path]
    unlisted = []
    for path in sorted(new):
        if path not in result and any(path.startswith(f"{top}/") for top, c in came.items() if c.files):
            result[path] = new[path]
            unlisted += [path] if is_file(new[path]) else []
    assert sum(change.files for change in came.values()) == len(unlisted)

    for path, change in edited.items():
        assert set(change.what) == ways(result[path], new[path]), change
        assert change.what or change.kind == "renamed", change
        result[path] = new[path]
    assert result == new


def is_file(about: Facts) -> bool:
    return not stat.S_ISDIR(about[0])


def ways(old: Facts, new: Facts) -> set[str]:
    found = set()
    if stat.S_IFMT(old[0]) != stat.S_IFMT(new[0]):
        found.add("type")
    elif old[3] != new[3]:
        found.add("content")
    if stat.S_IMODE(old[0]) != stat.S_IMODE(new[0]):
        found.add("mode")
    if old[1:3] != new[1:3]:
        found.add("owner")
    if old[4] != new[4]:
        found.add("xattr")
    return found


def hard_links(root: Path) -> dict[str, set[str]]:
    """For each name of a file that has several, all of them."""
    names: dict[int, set[str]] = {}
    for folder, _, found in os.walk(root):
        for name in found:
            about = os.lstat(f"{folder}/{name}")
            if about.st_nlink > 1:
                names.setdefault(about.st_ino, set()).add(f"{folder}/{name}"[len(str(root)) :])
    return {path: paths for paths in names.values() for path in paths}


def judge_links(linked: dict[str, set[str]], found: Changes) -> None:
    """Of the names of a file that came, only the first can have no other one."""
    came = {change.real_path for change in found if change.kind == "created"}
    for change in found:
        if change.kind == "created":
            path, others = change.real_path, linked.get(change.real_path, set()) - {change.real_path}
            is_first = all(other in came and other.split("/") > path.split("/") for other in others)
            assert (change.links_to is None) == is_first, change
            assert is_first or change.links_to in others, change


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    before=st.lists(OPERATIONS, min_size=0, max_size=20),
    after=st.lists(OPERATIONS, min_size=1, max_size=20),
    restored=st.booleans(),
)
def test_views_and_changes_agree_with_what_the_kernel_shows(
    pool: Pool,
    base: Path,
    before: list[tuple[str, str, str]],
    after: list[tuple[str, str, str]],
    restored: bool,
) -> None:
    with made_layers(pool, base) as layers:
        start = layers.point()
        [_, first] = layers.run(Work(before), picture)
        old = layers.point()
        if restored:
            layers.restore(old)
        [_, second, linked] = layers.run(Work(after), picture, hard_links)
        new = layers.point()
        zero = seen(layers.view(None))
        assert seen(layers.view(old)) == first
        assert seen(layers.view(new)) == second
        found = layers.between(old, new)
        judge_links(linked, found)
        replay(first, second, found)
        replay(second, first, layers.between(new, old))
        replay(zero, second, layers.between(start, new))
        replay(zero, second, layers.between(None, new))
        replay(second, zero, compare_views(layers.view(new), layers.view(None)))


def test_the_property_would_notice_a_lie() -> None:
    """The judge is judged: a change left out, one too many, and a wrong word are each found."""
    file: Facts = (0o100644, 0, 0, b"x", {})
    other: Facts = (0o100644, 0, 0, b"y", {})
    change = Change(path="/f", kind="modified", entry="file", what=("content",))
    replay({"/f": file}, {"/f": other}, Changes(changes=(change,)))
    with pytest.raises(AssertionError):
        replay({"/f": file}, {"/f": other}, Changes())
    with pytest.raises(AssertionError):
        replay({"/f": file}, {"/f": file}, Changes(changes=(change,)))
    with pytest.raises(AssertionError):
        replay(
            {"/f": file}, {"/f": other}, Changes(changes=(msgspec.structs.replace(change, what=("mode",)),))
        )
