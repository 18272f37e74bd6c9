"""What differs between two snapshots: the kernel's comparison and a plain walk have to agree, on real btrfs.

The facts are checked in three ways: cases written down by hand, the two implementations against each other
after random operations, and the facts against a third, naive look at both trees.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waypoint.errors import NotFound
from waypoint.kernel import files
from waypoint.kernel.pool import deltas
from waypoint.kernel.pool.deltas import Delta, by_send, by_walk, differences
from waypoint.kernel.pool.holders import pool_holders
from waypoint.kernel.pool.lifecycle import close_pool, open_pool
from waypoint.kernel.pool.protocol import Pool
from waypoint.kernel.syscalls import libc

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

MIB = 1 << 20
RENAME_EXCHANGE = 2


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A btrfs pool for all tests here."""
    home = tmp_path_factory.mktemp("deltas") / "home"
    yield open_pool(home, size_bytes=1024 * MIB, kind="btrfs")
    deadline = time.monotonic() + 10
    while not close_pool(home):  # another test's mount namespace may hold a copy of the mount for a moment
        assert time.monotonic() < deadline, pool_holders(home)
        time.sleep(0.1)
    shutil.rmtree(home, ignore_errors=True)


class Trees:
    """A writable tree and snapshots of it."""

    def __init__(self, pool: Pool, live: Path) -> None:
        self.pool, self.live = pool, live
        self.points: list[Path] = []

    def snapshot(self) -> Path:
        point = self.pool.root / "checkpoints" / f"{self.live.name}.{len(self.points)}"
        self.pool.snapshot(self.live, point, readonly=True)
        self.points.append(point)
        return point

    def both(self, change: Callable[[Path], None]) -> list[Delta]:
        """What a change made different, as both implementations say."""
        old = self.snapshot()
        change(self.live)
        return agreed(old, self.snapshot())


_NUMBER = itertools.count()


@contextlib.contextmanager
def made_trees(pool: Pool) -> Iterator[Trees]:
    live = pool.root / "sessions" / f"t{next(_NUMBER)}"
    pool.create(live)
    trees = Trees(pool, live)
    try:
        yield trees
    finally:
        for path in (live, *trees.points):
            pool.delete(path)


@pytest.fixture
def trees(pool: Pool) -> Iterator[Trees]:
    """A tree for one test."""
    with made_trees(pool) as found:
        yield found


def agreed(old: Path, new: Path) -> list[Delta]:
    sent, walked = by_send(old, new), by_walk(old, new)
    assert sent == walked
    return [delta for delta in sent if delta.renamed or delta.what != {"times"}]


def told(found: list[Delta]) -> set[tuple[str, str]]:
    """Deltas in short: ("+", path), ("-", path), ("path", "what what")."""
    said = set()
    for delta in found:
        if delta.before is None:
            said.add(("+", delta.path))
        elif delta.after is None:
            said.add(("-", delta.path))
        else:
            if delta.renamed:
                said.add((f"{delta.old_path} ->", delta.path))
            if words := delta.what - {"times"}:
                said.add((delta.path, " ".join(sorted(words))))
    return said


# ---- single changes -----------------------------------------------------------------------------


def test_files_that_appear_change_and_vanish_are_told(trees: Trees) -> None:
    (trees.live / "d").mkdir()
    (trees.live / "d" / "changed").write_text("one")
    (trees.live / "d" / "gone").write_text("one")
    (trees.live / "same").write_text("one")

    def change(live: Path) -> None:
        (live / "d" / "changed").write_text("two")
        (live / "d" / "gone").unlink()
        (live / "new").write_text("new")
        (live / "e" / "f").mkdir(parents=True)
        (live / "e" / "f" / "deep").symlink_to("x")

    assert told(trees.both(change)) == {
        ("d/changed", "content"),
        ("-", "d/gone"),
        ("+", "new"),
        ("+", "e"),
        ("+", "e/f"),
        ("+", "e/f/deep"),
    }


def test_a_renamed_folder_is_one_delta_however_much_is_in_it(trees: Trees) -> None:
    (trees.live / "big" / "deep").mkdir(parents=True)
    for number in range(50):
        (trees.live / "big" / "deep" / f"f{number}").write_text(str(number))

    def change(live: Path) -> None:
        (live / "big").rename(live / "other")
        (live / "other" / "deep" / "f7").write_text("changed")
        (live / "other" / "deep" / "f8").rename(live / "f8")
        (live / "other" / "deep" / "f9").unlink()

    found = trees.both(change)
    assert told(found) == {
        ("big ->", "other"),
        ("other/deep/f7", "content"),
        ("big/deep/f8 ->", "f8"),
        ("-", "big/deep/f9"),
    }
    assert next(delta for delta in found if delta.path == "other/deep/f7").old_path == "big/deep/f7"


def test_folders_that_change_places_are_two_renames(trees: Trees) -> None:
    for name in "ab":
        (trees.live / name).mkdir()
        (trees.live / name / f"in-{name}").write_text(name)

    def change(live: Path) -> None:
        (live / "a").rename(live / "t")
        (live / "b").rename(live / "a")
        (live / "t").rename(live / "b")

    assert told(trees.both(change)) == {("a ->", "b"), ("b ->", "a")}


def test_a_folder_moved_into_one_that_was_inside_it(trees: Trees) -> None:
    (trees.live / "a" / "b" / "c").mkdir(parents=True)
    (trees.live / "a" / "b" / "c" / "f").write_text("1")

    def change(live: Path) -> None:
        (live / "a" / "b").rename(live / "b")
        (live / "a").rename(live / "b" / "c" / "a")

    assert told(trees.both(change)) == {("a/b ->", "b"), ("a ->", "b/c/a")}


def test_mode_owner_attributes_and_types(trees: Trees) -> None:
    for name in ("mode", "owner", "xattr", "lost", "kind", "link", "file"):
        (trees.live / name).write_text("x")
    os.setxattr(trees.live / "lost", "user.a", b"1")
    (trees.live / "to").symlink_to("one")
    os.mknod(trees.live / "device", stat.S_IFCHR, os.makedev(0, 0))

    def change(live: Path) -> None:
        (live / "mode").chmod(0o4755)
        os.chown(live / "owner", 5, 6)
        os.setxattr(live / "xattr", "trusted.a", b"2")
        os.removexattr(live / "lost", "user.a")
        (live / "kind").unlink()
        (live / "kind").mkdir(0o644)
        (live / "to").unlink()
        (live / "to").symlink_to("two")
        (live / "device").unlink()
        os.mknod(live / "device", stat.S_IFCHR, os.makedev(1, 3))
        os.mkfifo(live / "pipe")
        with socket.socket(socket.AF_UNIX) as listener, chdir(live):
            listener.bind("socket")

    assert told(trees.both(change)) == {
        ("mode", "mode"),
        ("owner", "owner"),
        ("xattr", "xattr"),
        ("lost", "xattr"),
        ("kind", "type"),
        ("to", "content"),
        ("device", "content"),
        ("+", "pipe"),
        ("+", "socket"),
    }


@contextlib.contextmanager
def chdir(path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def test_a_file_written_again_with_the_same_bytes_is_none(trees: Trees) -> None:
    (trees.live / "same").write_bytes(b"x" * 50000)
    (trees.live / "replaced").write_bytes(b"y" * 50000)
    (trees.live / "zeros").write_bytes(bytes(50000))

    def change(live: Path) -> None:
        (live / "same").write_bytes(b"x" * 50000)
        (live / "fresh").write_bytes(b"y" * 50000)
        (live / "fresh").rename(live / "replaced")
        os.truncate(live / "zeros", 0)
        os.truncate(live / "zeros", 50000)

    assert told(trees.both(change)) == set()


def test_one_byte_of_a_large_file_is_found_and_a_time_that_lies_helps_nobody(trees: Trees) -> None:
    (trees.live / "large").write_bytes(os.urandom(8 * MIB))
    before = (trees.live / "large").stat()

    def change(live: Path) -> None:
        with (live / "large").open("r+b") as file:
            file.seek(5 * MIB + 77)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        os.utime(live / "large", ns=(before.st_atime_ns, before.st_mtime_ns))

    assert told(trees.both(change)) == {("large", "content")}


def test_what_changes_under_one_name_changes_under_all(trees: Trees) -> None:
    (trees.live / "d").mkdir()
    (trees.live / "one").write_text("1")
    os.link(trees.live / "one", trees.live / "d" / "two")
    for number in range(300):
        os.link(trees.live / "one", trees.live / "d" / (f"{number:03}" + "x" * 200))

    def change(live: Path) -> None:
        (live / "d").rename(live / "e")
        (live / "e" / "two").write_text("2")
        (live / "e" / ("007" + "x" * 200)).rename(live / "seven")

    found = told(trees.both(change))
    assert {("one", "content"), ("e/two", "content"), ("d ->", "e")} < found
    assert len(found) == 304


def test_a_name_that_is_given_again_is_not_the_old_thing(trees: Trees) -> None:
    (trees.live / "f").write_text("old")
    (trees.live / "d" / "in").mkdir(parents=True)
    (trees.live / "d" / "in" / "f").write_text("old")

    def change(live: Path) -> None:
        (live / "f").rename(live / "f~")
        (live / "f").write_text("new")
        (live / "d").rename(live / "d~")
        (live / "d" / "in").mkdir(parents=True)
        (live / "d" / "in" / "f").write_text("new")

    assert told(trees.both(change)) == {
        *(("f ->", "f~"), ("+", "f"), ("d ->", "d~")),
        *(("+", "d"), ("+", "d/in"), ("+", "d/in/f")),
    }


def test_a_folder_made_again_is_compared_by_path(trees: Trees) -> None:
    (trees.live / "d" / "e").mkdir(parents=True)
    for name in ("same", "other", "gone"):
        (trees.live / "d" / "e" / name).write_text(name)

    def change(live: Path) -> None:
        shutil.rmtree(live / "d")
        (live / "d" / "e").mkdir(parents=True)
        (live / "d" / "e" / "same").write_text("same")
        (live / "d" / "e" / "other").write_text("changed")
        (live / "d" / "e" / "new").write_text("new")

    assert told(trees.both(change)) == {
        *(("d/e/other", "content"), ("+", "d/e/new"), ("-", "d/e/gone")),
    }


def test_odd_names_are_kept_as_they_are(trees: Trees) -> None:
    odd = os.fsdecode(b"not-utf8-\xff \n \\")

    def change(live: Path) -> None:
        (live / odd).mkdir()
        (live / odd / "größe ☃").write_text("x")

    assert told(trees.both(change)) == {("+", odd), ("+", f"{odd}/größe ☃")}


def test_names_like_those_that_the_stream_uses_in_passing_are_no_trap(trees: Trees) -> None:
    (trees.live / "o258-9-0").write_text("mine")
    (trees.live / "o257-7-0").mkdir()

    def change(live: Path) -> None:
        for number in range(256, 270):
            (live / f"o{number}-9-0").write_text("x")
            (live / "o257-7-0" / f"o{number}-9-0").write_text("x")
        (live / "o257-7-0").rename(live / "o300-1-0")

    found = told(trees.both(change))
    assert len(found) == 13 + 14 + 2
    assert ("o258-9-0", "content") in found


# ---- the trees themselves -----------------------------------------------------------------------


def test_against_nothing_everything_is_new(trees: Trees) -> None:
    (trees.live / "d").mkdir()
    (trees.live / "d" / "f").write_text("x")
    assert told(differences(None, trees.snapshot())) == {("+", "d"), ("+", "d/f")}


def test_what_is_of_no_interest_is_left_out_and_its_links_are_not(trees: Trees) -> None:
    """The kernel may call a file by its name in a folder that is skipped: an overlay's index."""
    (trees.live / "work-1").mkdir()
    (trees.live / "work-1" / "index").write_text("x")
    (trees.live / "upper").mkdir()
    os.link(trees.live / "work-1" / "index", trees.live / "upper" / "f")
    (trees.live / "work-1" / "later").write_text("y")
    old = trees.snapshot()
    (trees.live / "upper" / "f").write_text("changed")
    (trees.live / "work-1" / "later").rename(trees.live / "upper" / "later")
    (trees.live / "work-2").mkdir()
    (trees.live / "work-2" / "x").write_text("x")
    new = trees.snapshot()
    for compare in (by_send, by_walk):
        found = compare(old, new, skip=lambda name: name.startswith("work-"))
        assert told(found) == {("upper/f", "content"), ("+", "upper/later")}


def test_trees_that_cannot_be_sent_are_walked(trees: Trees, pool: Pool) -> None:
    (trees.live / "f").write_text("one")
    old = trees.snapshot()
    (trees.live / "f").write_text("two")
    with pytest.raises(deltas.CannotCompare):
        by_send(old, trees.live)
    assert told(differences(old, trees.live)) == {("f", "content")}
    with pytest.raises(NotFound):
        differences(old, pool.root / "nowhere")


def test_plain_copies_are_compared_by_what_they_hold(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "d").mkdir(parents=True)
        (tmp_path / name / "d" / "same").write_text("same")
        (tmp_path / name / "d" / "sly").write_text(name)
        os.utime(tmp_path / name / "d" / "sly", ns=(1, 1))
    assert told(differences(tmp_path / "one", tmp_path / "two")) == {("d/sly", "content")}


def test_two_branches_of_one_point_do_not_lend_each_other_names(trees: Trees, pool: Pool) -> None:
    """Both give the same inode numbers, in one transaction: only the hour of birth tells them apart."""
    (trees.live / "common").write_text("x")
    start = trees.snapshot()
    branches = []
    for name in ("left", "right"):
        branch = pool.root / "sessions" / f"{trees.live.name}.{name}"
        pool.snapshot(start, branch, readonly=False)
        trees.points.append(branch)
        branches.append(branch)
    for branch, name in zip(branches, ("left", "right"), strict=True):
        (branch / name).mkdir()
        (branch / name / "f").write_text("x")
        (branch / f"{name}.txt").write_text("x")
    for branch in branches:
        pool.seal(branch)
    assert told(differences(*branches)) == {
        *(("-", "left"), ("-", "left/f"), ("-", "left.txt")),
        *(("+", "right"), ("+", "right/f"), ("+", "right.txt")),
    }
    assert differences(*branches) == by_walk(*branches)


def test_a_tree_too_deep_for_a_path_is_told_as_far_as_paths_go(trees: Trees) -> None:
    def change(live: Path) -> None:
        with chdir(live):
            for _ in range(60):
                os.mkdir("n" * 200)
                os.chdir("n" * 200)
            Path("f").write_text("x")

    old = trees.snapshot()
    change(trees.live)
    found = differences(old, trees.snapshot())
    assert 15 < len(found) < 60
    assert all(delta.path.startswith("n" * 200) for delta in found if delta.path)


def test_no_thread_and_no_descriptor_stays_behind(trees: Trees) -> None:
    import threading

    old = trees.snapshot()
    for number in range(2000):
        (trees.live / f"f{number}").write_text("x")
    new = trees.snapshot()
    before = sorted(os.listdir("/proc/self/fd")), threading.active_count()
    by_send(old, new)
    with pytest.raises(deltas.CannotCompare):
        by_send(trees.live, new)
    with pytest.raises(deltas.CannotCompare):
        by_send(old, trees.live)
    assert (sorted(os.listdir("/proc/self/fd")), threading.active_count()) == before


# ---- random operations --------------------------------------------------------------------------

NAMES = ("a", "b", "c", "d")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), PATHS, st.sampled_from(["", "x", "y", "z" * 9000])),
    st.tuples(st.just("append"), PATHS, st.sampled_from(["q", "w" * 5000])),
    st.tuples(st.just("mkdir"), PATHS, st.just("")),
    st.tuples(st.just("move"), PATHS, PATHS),
    st.tuples(st.just("swap"), PATHS, PATHS),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("symlink"), PATHS, PATHS),
    st.tuples(st.just("remove"), PATHS, st.just("")),
    st.tuples(st.just("chmod"), PATHS, st.sampled_from(["700", "644", "755"])),
    st.tuples(st.just("chown"), PATHS, st.sampled_from(["0", "7"])),
    st.tuples(st.just("attribute"), PATHS, st.sampled_from(["", "1", "2"])),
    st.tuples(st.just("truncate"), PATHS, st.sampled_from(["0", "1", "20000"])),
    st.tuples(st.just("device"), PATHS, st.sampled_from(["0", "1"])),
)


def perform(live: Path, operation: str, first: str, second: str) -> None:  # noqa: C901
    """One random operation; what is impossible is not done."""
    path = live / first
    with contextlib.suppress(OSError):
        match operation:
            case "write":
                if not path.is_symlink():
                    path.write_text(second)
            case "append":
                if path.is_file() and not path.is_symlink():
                    with path.open("a") as file:
                        file.write(second)
            case "mkdir":
                path.mkdir()
            case "move":
                path.rename(live / second)
            case "swap":
                there = os.fsencode(live / second)
                libc.renameat2(
                    ctypes.c_int(-100), os.fsencode(path), ctypes.c_int(-100), there, RENAME_EXCHANGE
                )
            case "link":
                os.link(path, live / second, follow_symlinks=False)
            case "symlink":
                path.symlink_to(second)
            case "remove":
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            case "chmod":
                if not path.is_symlink():
                    path.chmod(int(second, 8))
            case "chown":
                os.chown(path, int(second), int(second), follow_symlinks=False)
            case "attribute":
                if second:
                    os.setxattr(path, "trusted.test", second.encode(), follow_symlinks=False)
                else:
                    os.removexattr(path, "trusted.test", follow_symlinks=False)
            case "truncate":
                if path.is_file() and not path.is_symlink():
                    os.truncate(path, int(second))
            case "device":
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, int(second)))


def picture(tree: Path) -> dict[str, tuple[Any, ...]]:
    """Everything in a tree, as plainly as it can be said."""
    found = {}
    for folder, folders, names in os.walk(tree):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            about = os.lstat(path)
            content: str | bytes | int = about.st_rdev
            if stat.S_ISLNK(about.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(about.st_mode):
                content = Path(path).read_bytes()
            found[os.path.relpath(path, tree)] = (
                *(about.st_mode, about.st_uid, about.st_gid, content),
                files.attributes(path),
            )
    return found


def replay(old: dict[str, tuple[Any, ...]], new: dict[str, tuple[Any, ...]], found: list[Delta]) -> None:
    """Does to the old picture what the deltas say; it has to be the new one then."""
    moves = {delta.old_path: delta.path for delta in found if delta.renamed and delta.old_path}
    gone = {delta.old_path for delta in found if delta.after is None}

    def lands(path: str) -> str:
        if path in moves:
            return moves[path]
        folder, _, name = path.rpartition("/")
        return f"{lands(folder)}/{name}" if folder else path

    result = {lands(path): about for path, about in old.items() if path not in gone}
    for delta in found:
        if delta.after and delta.path:
            if delta.before:
                assert delta.path in result, delta
                assert bool(delta.what - {"times"}) == (result[delta.path] != new[delta.path]), delta
            else:
                assert delta.path not in result, delta
            result[delta.path] = new[delta.path]
    assert result == new


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    before=st.lists(OPERATIONS, min_size=5, max_size=30), after=st.lists(OPERATIONS, min_size=1, max_size=20)
)
def test_both_ways_agree_with_each_other_and_with_a_naive_look(
    pool: Pool, before: list[tuple[str, str, str]], after: list[tuple[str, str, str]]
) -> None:
    with made_trees(pool) as trees:
        for operation in before:
            perform(trees.live, *operation)
        old = trees.snapshot()
        for operation in after:
            perform(trees.live, *operation)
        new = trees.snapshot()
        sent, walked = by_send(old, new), by_walk(old, new)
        assert sent == walked
        replay(picture(old), picture(new), sent)
        assert by_send(new, old) == by_walk(new, old)
