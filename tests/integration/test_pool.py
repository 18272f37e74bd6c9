"""The pool on real file systems: the same promises for btrfs, for reflinks and for plain copies.

btrfs is a sparse file made by the pool itself. Reflinks live on a small xfs (on a btrfs where xfsprogs is
not installed) and copies on a tmpfs, so that a full disk is a matter of megabytes. Every test is checked
for what it leaves mounted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from waypoint.errors import (
    AlreadyExists,
    MachineError,
    MissingFeature,
    NoSpace,
    NotFound,
    NotRoot,
    UsageError,
)
from waypoint.kernel import copytree
from waypoint.kernel.mounts import mounts
from waypoint.kernel.pool import image, loop, quota
from waypoint.kernel.pool.holders import pool_holders
from waypoint.kernel.pool.lifecycle import LAYOUT, close_pool, open_pool, resize_pool
from waypoint.kernel.pool.protocol import Pool
from waypoint.kernel.pool.subvolume import BTRFS_FIRST_FREE_OBJECTID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

MIB = 1 << 20
POOL_BYTES = 400 * MIB
COPY_BYTES = 64 * MIB


# ---- machinery ----------------------------------------------------------------------------------


def left_behind(below: Path) -> list[str]:
    found = [f"mount {mount.path}" for mount in mounts() if mount.path.startswith(f"{below}/")]
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if entry.read_text().startswith(f"{below}/"):
                found.append(f"{entry.parts[3]} of {entry.read_text().strip()}")
    return found


@contextlib.contextmanager
def disk(where: Path, fstype: str, size_bytes: int) -> Iterator[Path]:
    """A file system of its own, mounted for the time of a test."""
    where.mkdir()
    if fstype == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(where)], check=True)
    else:
        image = where.with_suffix(".img")
        image.touch()
        os.truncate(image, size_bytes)
        quiet = [] if fstype == "ext4" else ["-q"]
        subprocess.run([f"mkfs.{fstype}", *quiet, str(image)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)
        where.with_suffix(".img").unlink(missing_ok=True)


class Place:
    """A home folder for a pool of one kind."""

    def __init__(self, home: Path, kind: str) -> None:
        self.home = home
        self.kind = kind

    def open(self) -> Pool:
        return open_pool(self.home, size_bytes=POOL_BYTES, kind=self.kind)

    def close(self) -> None:
        assert close_pool(self.home), pool_holders(self.home)


@pytest.fixture(params=["btrfs", "reflink", "copy"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The home of a pool of each kind in turn."""
    if request.param == "btrfs":
        found = Place(tmp_path / "home", "btrfs")
        yield found
        found.close()
        shutil.rmtree(found.home, ignore_errors=True)
    elif request.param == "reflink":
        fstype = "xfs" if shutil.which("mkfs.xfs") else "btrfs"
        with disk(tmp_path / "disk", fstype, POOL_BYTES) as where:
            yield Place(where / "home", "reflink")
    else:
        with disk(tmp_path / "disk", "tmpfs", COPY_BYTES) as where:
            yield Place(where / "home", "copy")


@pytest.fixture
def store(place: Place) -> Pool:
    """An open pool of each kind in turn."""
    return place.open()


@pytest.fixture
def btrfs_home(tmp_path: Path) -> Iterator[Path]:
    """A home on an ordinary disk, for what only a pool.img has."""
    home = tmp_path / "home"
    yield home
    assert close_pool(home), pool_holders(home)
    shutil.rmtree(home, ignore_errors=True)


def tree(store: Pool, name: str = "live") -> Path:
    path = store.root / "sessions" / name
    store.create(path)
    return path


def holes(fd: int, size_bytes: int) -> list[int]:
    """Where a hole is, seen from the middle of each MiB: what is preallocated around data is no matter."""
    data = list(copytree.data_ranges(fd, size_bytes))
    middles = range(MIB // 2, size_bytes, MIB)
    return [middle for middle in middles if not any(start <= middle < end for start, end in data)]


def facts(root: Path) -> dict[str, dict[str, Any]]:
    """All that a program can see of a tree, except change times."""
    found: dict[str, dict[str, Any]] = {}
    links: dict[int, str] = {}
    for folder, folders, files in os.walk(root):
        for name in (
            [".", *sorted(folders), *sorted(files)]
            if folder == str(root)
            else sorted(folders) + sorted(files)
        ):
            path = Path(folder, name)
            status = path.lstat()
            said: dict[str, Any] = {
                "mode": oct(status.st_mode),
                "owner": (status.st_uid, status.st_gid),
                "modified": status.st_mtime_ns,
                "attributes": {
                    key: os.getxattr(path, key, follow_symlinks=False)
                    for key in os.listxattr(path, follow_symlinks=False)
                    if not key.startswith("trusted.waypoint.")
                },
            }
            if not path.is_dir() or path.is_symlink():
                said["names"] = status.st_nlink
                said["first name"] = links.setdefault(status.st_ino, str(path.relative_to(root)))
            if path.is_symlink():
                said["target"] = os.readlink(path)
            elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                said["device"] = status.st_rdev
            elif stat.S_ISREG(status.st_mode):
                with path.open("rb") as file:
                    said["size"] = status.st_size
                    said["holes"] = holes(file.fileno(), status.st_size)
                    file.seek(0)
                    said["content"] = hashlib.file_digest(file, "sha256").hexdigest()
            found[str(path.relative_to(root))] = said
    return found


def build_zoo(root: Path) -> None:
    """One of everything that can be in a session's tree."""
    (root / "folder" / "deeper").mkdir(parents=True)
    (root / "folder" / "plain.txt").write_text("hello\n")
    (root / "folder" / "empty").touch()
    (root / "folder" / "größe ☃ \n").write_bytes(b"odd name")
    (root / os.fsdecode(b"not-utf8-\xff")).write_bytes(b"odder name")
    (root / "folder" / "other name").hardlink_to(root / "folder" / "plain.txt")
    (root / "deep link").hardlink_to(root / "folder" / "plain.txt")
    (root / "symlink").symlink_to("folder/plain.txt")
    (root / "dangling").symlink_to("/nowhere/at all")
    os.link(root / "symlink", root / "symlink twice", follow_symlinks=False)
    os.mkfifo(root / "fifo", 0o640)
    os.mknod(root / "whiteout", stat.S_IFCHR, os.makedev(0, 0))
    os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(root / "disk", stat.S_IFBLK | 0o660, os.makedev(7, 200))
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(root):
        listener.bind("socket")  # the path of a socket has at most 107 bytes
    with (root / "sparse").open("wb") as file:
        file.seek(1 * MIB)
        file.write(b"island" * 1000)
        file.seek(5 * MIB)
        file.write(b"end")
        file.truncate(9 * MIB)
    (root / "all hole").touch()
    os.truncate(root / "all hole", 3 * MIB)
    (root / "setuid").write_bytes(b"#!/bin/true\n")
    os.chown(root / "setuid", 1234, 4321)
    os.chmod(root / "setuid", 0o6755)
    os.chmod(root / "folder" / "empty", 0o000)
    os.chmod(root / "folder" / "deeper", 0o1777)
    os.setxattr(
        root / "setuid", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000")
    )
    os.setxattr(root / "folder", "trusted.overlay.opaque", b"y")
    os.setxattr(root / "folder" / "plain.txt", "trusted.overlay.origin", bytes(range(40)))
    os.setxattr(root / "symlink", "trusted.overlay.redirect", b"/a", follow_symlinks=False)
    with contextlib.suppress(OSError):  # older kernels know no user attributes on a tmpfs
        os.setxattr(root / "folder" / "plain.txt", "user.note", b"kept")
    os.lchown(root / "dangling", 7, 8)
    os.chown(root / "folder", 99, 98)
    os.setxattr(root, "trusted.overlay.impure", b"y")
    for at, path in enumerate([*sorted(root.rglob("*"), reverse=True), root]):
        os.utime(path, ns=(10**18 + at, 10**18 + 123456789 + at), follow_symlinks=False)


# ---- snapshots ----------------------------------------------------------------------------------


def test_a_new_tree_is_empty_and_writable(store: Pool, place: Place) -> None:
    live = tree(store)
    assert list(live.iterdir()) == []
    assert stat.S_IMODE(live.stat().st_mode) == 0o755
    assert not store.is_readonly(live)
    assert store.kind == place.kind
    assert bool(store.reason) == (place.kind != "btrfs")


def test_a_snapshot_and_its_source_go_their_own_ways(store: Pool) -> None:
    live = tree(store)
    (live / "file").write_text("then")
    (live / "gone later").write_text("still here")
    point = store.root / "checkpoints" / "point"
    store.snapshot(live, point, readonly=True)
    fork = store.root / "sessions" / "fork"
    store.snapshot(point, fork, readonly=False)
    (live / "file").write_text("now")
    (live / "gone later").unlink()
    (fork / "file").write_text("elsewhere")
    (fork / "new").touch()
    assert (point / "file").read_text() == "then"
    assert sorted(os.listdir(point)) == ["file", "gone later"]
    assert (live / "file").read_text() == "now"
    assert os.listdir(live) == ["file"]
    assert (fork / "file").read_text() == "elsewhere"


def test_a_snapshot_holds_what_was_written_a_moment_ago(store: Pool) -> None:
    live = tree(store)
    with (live / "file").open("wb", buffering=0) as file:
        for round_ in range(20):
            content = os.urandom(10_000)
            file.seek(0)
            file.write(content)
            if round_ % 2:
                store.flush(live)
            point = store.root / "checkpoints" / f"p{round_}"
            store.snapshot(live, point, readonly=True)
            assert (point / "file").read_bytes() == content


def test_a_readonly_snapshot_says_so_and_so_does_a_sealed_tree(store: Pool) -> None:
    live = tree(store)
    point, fork = store.root / "checkpoints" / "point", store.root / "sessions" / "fork"
    store.snapshot(live, point, readonly=True)
    store.snapshot(point, fork, readonly=False)
    assert [store.is_readonly(path) for path in (live, point, fork)] == [False, True, False]
    store.seal(live)
    assert store.is_readonly(live)
    if store.kind == "btrfs":
        for path in (live, point):
            with pytest.raises(OSError, match="Read-only file system") as refused:
                (path / "file").touch()
            assert refused.value.errno == errno.EROFS


def test_everything_a_program_can_see_is_kept(store: Pool) -> None:
    live = tree(store)
    build_zoo(live)
    before = facts(live)
    point, fork = store.root / "checkpoints" / "point", store.root / "sessions" / "fork"
    store.snapshot(live, point, readonly=True)
    store.snapshot(point, fork, readonly=False)
    assert facts(point) == before
    assert facts(fork) == before
    assert facts(live) == before
    assert len(before) >= 20
    assert len(before["sparse"]["holes"]) == 9


def test_a_kept_whiteout_and_opaque_folder_still_work_in_an_overlay(store: Pool, tmp_path: Path) -> None:
    live = tree(store)
    for name in ("upper", "work"):
        (live / name).mkdir()
    lower, merged = tmp_path / "lower", tmp_path / "merged"
    (lower / "folder").mkdir(parents=True)
    merged.mkdir()
    (lower / "deleted").touch()
    (lower / "folder" / "hidden").touch()

    @contextlib.contextmanager
    def overlay(volume: Path) -> Iterator[None]:
        layers = f"lowerdir={lower},upperdir={volume / 'upper'},workdir={volume / 'work'}"
        subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", str(merged)], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", str(merged)], check=True)

    with overlay(live):
        (merged / "deleted").unlink()
        shutil.rmtree(merged / "folder")
        (merged / "folder").mkdir()
        (merged / "folder" / "new").touch()
    store.snapshot(live, store.root / "checkpoints" / "point", readonly=True)
    store.snapshot(store.root / "checkpoints" / "point", store.root / "sessions" / "fork", readonly=False)
    with overlay(store.root / "sessions" / "fork"):
        assert os.listdir(merged) == ["folder"]
        assert os.listdir(merged / "folder") == ["new"]


def test_three_hundred_snapshots_in_a_line_all_hold_their_own(store: Pool) -> None:
    live = tree(store, "l0")
    for at in range(300):
        (live / "counter").write_text(str(at))
        (live / f"file{at % 7}").write_text(str(at))
        store.snapshot(live, store.root / "checkpoints" / f"p{at}", readonly=True)
        following = store.root / "sessions" / f"l{at + 1}"
        store.snapshot(store.root / "checkpoints" / f"p{at}", following, readonly=False)
        store.delete(live)
        live = following
    for at in (0, 1, 150, 299):
        point = store.root / "checkpoints" / f"p{at}"
        assert (point / "counter").read_text() == str(at)
        assert len(os.listdir(point)) == min(at + 1, 7) + 1
        assert store.is_readonly(point)
    for at in range(300):
        store.delete(store.root / "checkpoints" / f"p{at}")
    assert os.listdir(store.root / "checkpoints") == []


def test_folders_nested_thousands_deep_are_copied_and_removed(store: Pool) -> None:
    live = tree(store)
    fd = os.open(live, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("down", dir_fd=fd)
        deeper = os.open("down", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    bottom = os.open("bottom", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.write(bottom, b"deep")
    os.close(bottom)
    os.link("bottom", "bottom twice", src_dir_fd=fd, dst_dir_fd=fd)
    os.close(fd)
    point = store.root / "checkpoints" / "point"
    store.snapshot(live, point, readonly=True)
    store.delete(live)
    fd = os.open(point, os.O_RDONLY)
    for _ in range(2000):
        deeper = os.open("down", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    assert sorted(os.listdir(fd)) == ["bottom", "bottom twice"]
    assert os.stat("bottom", dir_fd=fd).st_nlink == 2
    os.close(fd)
    store.delete(point)
    assert not point.exists()


def test_what_cannot_be_snapshotted_is_an_error_and_leaves_nothing(store: Pool) -> None:
    live = tree(store)
    target = store.root / "checkpoints" / "point"
    with pytest.raises(NotFound, match="nowhere"):
        store.snapshot(store.root / "sessions" / "nowhere", target, readonly=True)
    plain = store.root / "sessions" / "plain"
    plain.mkdir()
    with pytest.raises(MachineError):
        store.snapshot(plain, target, readonly=True)
    assert not target.exists()
    store.snapshot(live, target, readonly=True)
    (live / "new").touch()
    with pytest.raises(AlreadyExists):
        store.snapshot(live, target, readonly=False)
    with pytest.raises(AlreadyExists):
        store.create(target)
    with pytest.raises(NotFound):
        store.create(store.root / "no" / "such" / "folder")
    with pytest.raises(UsageError, match="not in the pool"):
        store.snapshot(live, store.root.parent / "outside", readonly=True)
    assert store.is_readonly(target)
    assert os.listdir(target) == []
    assert os.listdir(store.root / ".scratch") == []


def test_a_flush_leaves_nothing_in_the_pool(store: Pool) -> None:
    live = tree(store)
    before = sorted(path.name for path in store.root.rglob("*"))
    (live / "file").write_bytes(os.urandom(MIB))
    store.flush(live)
    store.sync()
    assert sorted(path.name for path in store.root.rglob("*")) == sorted([*before, "file"])
    with pytest.raises(NotFound):
        store.is_readonly(store.root / "sessions" / "nowhere")


# ---- deletion -----------------------------------------------------------------------------------


def test_deleting_is_complete_and_may_be_repeated(store: Pool) -> None:
    live = tree(store)
    build_zoo(live)
    point = store.root / "checkpoints" / "point"
    store.snapshot(live, point, readonly=True)
    for path in (live, live, point, point, store.root / "checkpoints" / "never" / "was"):
        store.delete(path)
        assert not path.exists()
    assert os.listdir(store.root / ".scratch") == []


def test_a_folder_of_trees_goes_as_one(store: Pool) -> None:
    live = tree(store)
    (live / "file").touch()
    folder = store.root / "checkpoints" / "point"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "pages-1.img").write_bytes(os.urandom(MIB))
    store.snapshot(live, folder / "files", readonly=True)
    store.delete(folder)
    assert os.listdir(store.root / "checkpoints") == []
    assert (live / "file").exists()


def test_a_tree_inside_a_tree_is_not_in_its_snapshot_and_goes_with_it(store: Pool) -> None:
    live = tree(store)
    store.create(live / "inner")
    (live / "inner" / "file").touch()
    (live / "outer file").touch()
    point = store.root / "checkpoints" / "point"
    store.snapshot(live, point, readonly=True)
    assert (point / "outer file").exists()
    assert not (point / "inner" / "file").exists()
    store.seal(live / "inner")
    store.seal(live)
    store.delete(live)
    assert not live.exists()
    store.delete(point)
    assert not point.exists()


def test_nothing_outside_the_pool_can_be_deleted(store: Pool, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    live = tree(store)
    (live / "way out").symlink_to(outside)
    for path in (outside, store.root, store.root / "sessions" / ".." / ".." / "x", Path("/")):
        with pytest.raises(UsageError):
            store.delete(path)
    store.delete(live)
    assert (outside / "folder").is_dir()


# ---- space --------------------------------------------------------------------------------------


def fill(folder: Path, size_bytes: int) -> None:
    """Write until there is no space left: large files first, then ever smaller ones."""
    at = 0
    while size_bytes >= 512:
        at += 1
        try:
            with (folder / f"fill{at}").open("wb", buffering=0) as file:
                if file.write(os.urandom(size_bytes)) == size_bytes:
                    os.fsync(file.fileno())
                    continue
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        size_bytes //= 4


def snapshot_until_refused(store: Pool, source: Path) -> int:
    """Snapshots take next to nothing on btrfs, so it takes some until it is really full."""
    for made in range(20_000):
        with contextlib.suppress(OSError):
            (source / f"more{made}").write_bytes(b"x" * 1500)
        try:
            store.snapshot(source, store.root / "checkpoints" / f"extra{made}", readonly=True)
        except NoSpace as refused:
            if refused.hint and refused.details["path"]:
                return made
            raise
    raise AssertionError("a pool without an end")


def test_a_full_pool_refuses_and_nothing_is_damaged(store: Pool) -> None:
    live = tree(store)
    (live / "precious").write_bytes(os.urandom(MIB))
    precious = hashlib.sha256((live / "precious").read_bytes()).hexdigest()
    point = store.root / "checkpoints" / "point"
    store.snapshot(live, point, readonly=True)
    ballast = tree(store, "ballast")
    fill(ballast, 16 * MIB)
    made = snapshot_until_refused(store, ballast)
    assert not (store.root / "checkpoints" / f"extra{made}").exists()
    assert os.listdir(store.root / ".scratch") == []
    assert hashlib.sha256((point / "precious").read_bytes()).hexdigest() == precious
    for path in [ballast, *(store.root / "checkpoints").glob("extra*")]:
        store.delete(path)
    store.reclaim()
    fork = store.root / "sessions" / "fork"
    store.snapshot(point, fork, readonly=False)
    (fork / "more").write_bytes(b"goes on")
    assert hashlib.sha256((fork / "precious").read_bytes()).hexdigest() == precious


def test_usage_follows_what_is_written(store: Pool) -> None:
    live = tree(store)
    before = store.usage()
    assert 0 < before.free_bytes < before.total_bytes
    (live / "file").write_bytes(os.urandom(20 * MIB))
    store.sync()
    after = store.usage()
    assert after.total_bytes == before.total_bytes
    assert 19 * MIB <= after.used_bytes - before.used_bytes < 24 * MIB
    assert before.free_bytes - after.free_bytes < 40 * MIB
    if store.kind != "copy":
        store.snapshot(live, store.root / "checkpoints" / "point", readonly=True)
        store.sync()
        assert store.usage().used_bytes - after.used_bytes < 2 * MIB


def test_identical_blocks_are_shared_and_read_the_same(store: Pool) -> None:
    images = store.root / "staging" / "images"
    images.mkdir()
    one, other = images / "one", images / "other"
    content = os.urandom(4 * MIB) + b"".join(bytes([n % 251]) * 4096 for n in range(2048))
    moved = (
        content[:MIB]
        + os.urandom(3 * 4096)
        + content[MIB : 8 * MIB]
        + b"\0" * 4096
        + content[8 * MIB :]
        + b"odd"
    )
    one.write_bytes(content)
    other.write_bytes(moved)
    store.sync()
    before = store.usage().used_bytes
    shared = store.dedupe(one, other)
    assert one.read_bytes() == content
    assert other.read_bytes() == moved
    store.sync()
    if store.kind == "copy":
        assert shared == 0
    else:
        assert 11 * MIB < shared <= 12 * MIB
        assert before - store.usage().used_bytes > 3 * MIB
    small = images / "small"
    small.write_bytes(b"tiny")
    assert store.dedupe(one, small) == 0
    with pytest.raises(NotFound):
        store.dedupe(one, images / "missing")


# ---- opening and closing ------------------------------------------------------------------------


def test_home_and_pool_are_for_root_alone(store: Pool, place: Place) -> None:
    for path in (
        place.home,
        store.root,
        *(store.root / name for name in LAYOUT),
        store.root / ".scratch",
    ):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    if store.kind == "btrfs":
        assert stat.S_IMODE((place.home / "pool.img").stat().st_mode) == 0o600


def test_what_was_in_a_pool_is_there_after_closing_and_opening(place: Place) -> None:
    store = place.open()
    live = tree(store)
    build_zoo(live)
    before = facts(live)
    store.snapshot(live, store.root / "checkpoints" / "point", readonly=True)
    place.close()
    if place.kind == "btrfs":
        assert os.listdir(place.home / "pool") == []
        assert left_behind(place.home) == []
    place.close()
    again = place.open()
    assert again.kind == place.kind
    assert facts(live) == before
    assert facts(again.root / "checkpoints" / "point") == before
    assert again.is_readonly(again.root / "checkpoints" / "point")
    assert open_pool(place.home).kind == place.kind


OPENER = """
import sys
from pathlib import Path
from waypoint.kernel.pool.lifecycle import open_pool
store = open_pool(Path(sys.argv[1]), size_bytes=int(sys.argv[2]), kind=sys.argv[3])
mine = store.root / "sessions" / sys.argv[4]
store.create(mine)
(mine / "file").write_text(sys.argv[4])
"""


def test_concurrent_openers_get_one_and_the_same_pool(place: Place) -> None:
    place.home.mkdir()
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER, str(place.home), str(POOL_BYTES), place.kind, f"s{n}"]
        )
        for n in range(6)
    ]
    assert [opener.wait(60) for opener in openers] == [0] * 6
    store = place.open()
    assert sorted(os.listdir(store.root / "sessions")) == [f"s{n}" for n in range(6)]
    mounted = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {store.root} " in line
    ]
    assert len(mounted) == (1 if place.kind == "btrfs" else 0)
    assert len([found for found in left_behind(place.home) if found.startswith("loop")]) == len(mounted)


def test_a_pool_in_use_is_not_closed_and_the_user_is_named(btrfs_home: Path) -> None:
    store = open_pool(btrfs_home, size_bytes=POOL_BYTES)
    live = tree(store)
    with (live / "file").open("w") as file:
        assert not close_pool(btrfs_home)
        holders = pool_holders(btrfs_home)
        assert [(holder.pid, holder.what) for holder in holders] == [(os.getpid(), f"uses {file.name}")]
        file.write("still works")
    assert close_pool(btrfs_home)
    assert pool_holders(btrfs_home) == []


@contextlib.contextmanager
def sleeper(*argv: str, ready: Callable[[int], bool]) -> Iterator[int]:
    process = subprocess.Popen([*argv, "sleep", "300"])
    try:
        deadline = time.monotonic() + 10
        while not ready(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_copy_of_the_mount_in_another_namespace_is_a_user_too(btrfs_home: Path) -> None:
    open_pool(btrfs_home, size_bytes=POOL_BYTES)

    def apart(pid: int) -> bool:
        return os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt") and (
            Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
        )

    with sleeper("unshare", "--mount", ready=apart) as pid:
        assert not close_pool(btrfs_home)
        assert [(h.pid, "namespace of its own" in h.what) for h in pool_holders(btrfs_home)] == [(pid, True)]
        assert (btrfs_home / "pool" / "sessions").is_dir()
        # Unmounted by somebody who did not ask: the file is still a disk there, and is found again.
        subprocess.run(["umount", str(btrfs_home / "pool")], check=True)
        assert not close_pool(btrfs_home)
        assert (open_pool(btrfs_home).root / "sessions").is_dir()
        assert len([found for found in left_behind(btrfs_home) if found.startswith("loop")]) == 1
    assert close_pool(btrfs_home)


def test_an_overlay_on_the_pool_is_a_user_too(btrfs_home: Path, tmp_path: Path) -> None:
    store = open_pool(btrfs_home, size_bytes=POOL_BYTES)
    live, merged = tree(store), tmp_path / "merged"
    for folder in (live / "upper", live / "work", merged):
        folder.mkdir()
    layers = f"lowerdir=/usr,upperdir={live}/upper,workdir={live}/work"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", str(merged)], check=True)
    try:
        assert not close_pool(btrfs_home)
        assert str(merged) in pool_holders(btrfs_home)[0].what
        (merged / "written").write_text("through the overlay")
    finally:
        subprocess.run(["umount", str(merged)], check=True)
    assert close_pool(btrfs_home)


def test_a_pool_keeps_its_kind(place: Place) -> None:
    place.open()
    other = "copy" if place.kind != "copy" else "btrfs"
    with pytest.raises(UsageError, match=place.kind):
        open_pool(place.home, kind=other)
    with pytest.raises(UsageError, match="no kind of pool"):
        open_pool(place.home, kind="zfs")


def test_a_copy_that_was_killed_halfway_is_never_seen_and_swept_up(place: Place) -> None:
    if place.kind == "btrfs":
        pytest.skip("a snapshot is one call there")
    store = place.open()
    live = tree(store)
    for at in range(3000):
        (live / f"file{at}").write_bytes(b"x" * 2000)
    code = (
        "import sys; from pathlib import Path; from waypoint.kernel.pool.lifecycle import open_pool\n"
        "store = open_pool(Path(sys.argv[1])); print(flush=True)\n"
        "store.snapshot(store.root / 'sessions/live', store.root / 'checkpoints/point', readonly=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(place.home)], stdout=subprocess.PIPE) as copier:
        assert copier.stdout
        copier.stdout.readline()
        deadline = time.monotonic() + 10
        while not any((store.root / ".scratch").glob("*/*")) and time.monotonic() < deadline:
            time.sleep(0.001)
        copier.send_signal(signal.SIGKILL)
    assert copier.returncode == -signal.SIGKILL
    assert not (store.root / "checkpoints" / "point").exists()
    assert os.listdir(store.root / ".scratch") != []
    place.open()
    assert os.listdir(store.root / ".scratch") == []
    assert len(os.listdir(live)) == 3000


def test_a_home_on_btrfs_needs_no_image(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "btrfs", POOL_BYTES) as where:
        home = where / "home"
        store = open_pool(home)
        assert store.kind == "btrfs"
        assert not (home / "pool.img").exists()
        assert store.root.stat().st_ino == BTRFS_FIRST_FREE_OBJECTID  # the host's snapshots leave it out
        live = tree(store)
        (live / "file").write_text("plain")
        assert os.listxattr(live / "file") == []
        store.snapshot(live, store.root / "checkpoints" / "point", readonly=True)
        assert store.is_readonly(store.root / "checkpoints" / "point")
        image = store.root / "staging" / "pages-1.img"
        image.write_bytes(b"compressible" * 100_000)
        assert os.getxattr(image, "btrfs.compression") == b"zstd"
        store.sync()
        before = store.usage().used_bytes
        assert before < POOL_BYTES // 4
        assert close_pool(home)
        assert open_pool(home).root == store.root


@pytest.mark.parametrize("fstype", ["btrfs", "ext4"])
def test_a_disk_mounted_as_the_pool_is_used_as_it_is(tmp_path: Path, fstype: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with disk(home / "pool", fstype, POOL_BYTES) as where:
        (home / "pool.img").rename(home / "the disk")
        store = open_pool(home)
        assert store.kind == ("btrfs" if fstype == "btrfs" else "copy")
        assert store.usage().total_bytes <= POOL_BYTES
        store.snapshot(tree(store), where / "checkpoints" / "point", readonly=True)
        assert open_pool(home).kind == store.kind
        assert not (home / "pool.img").exists()


def test_a_pool_that_lost_its_btrfs_is_not_covered_by_a_new_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "pool").mkdir(parents=True)
    (home / "pool" / ".kind").write_text("btrfs\n")
    with pytest.raises(MachineError, match="no btrfs"):
        open_pool(home)
    assert sorted(os.listdir(home)) == ["pool", "pool.lock"]


def test_without_loop_devices_files_are_shared_or_copied_and_the_reason_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CONTROL", tmp_path / "no such device")
    home = tmp_path / "home"
    with pytest.raises(MissingFeature, match="no loop devices") as refused:
        open_pool(home, kind="btrfs")
    assert "modprobe loop" in refused.value.hint
    monkeypatch.setattr(image, "_program", lambda name: None)
    store = open_pool(home)
    assert store.kind in {"copy", "reflink"}
    assert "no loop devices" in store.reason
    assert not (home / "pool.img").exists()
    monkeypatch.undo()
    assert open_pool(home).kind == store.kind  # not silently covered by a new, empty pool


def test_missing_programs_and_rights_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setattr(image, "_program", lambda name: None)
    with pytest.raises(MissingFeature, match=r"mkfs\.btrfs"):
        open_pool(home)
    assert not (home / "pool").exists()
    monkeypatch.undo()
    with pytest.raises(UsageError, match="too small"):
        open_pool(home, size_bytes=1000)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotRoot):
        open_pool(home)


def test_a_reflink_pool_is_refused_where_blocks_cannot_be_shared(tmp_path: Path) -> None:
    with (
        disk(tmp_path / "disk", "tmpfs", COPY_BYTES) as where,
        pytest.raises(MissingFeature, match="share blocks"),
    ):
        open_pool(where / "home", kind="reflink")


def test_a_disk_too_small_for_a_pool_is_said_so(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "tmpfs", COPY_BYTES) as where:
        with pytest.raises(NoSpace, match="not enough room"):
            open_pool(where / "home")
        assert not (where / "home" / "pool.img").exists()


def test_a_disk_that_fills_up_below_the_pool_is_noticed_in_time(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "ext4", 600 * MIB) as where:
        store = open_pool(where / "home", size_bytes=8 * 1024 * MIB)
        live = tree(store)
        (live / "file").write_text("kept")
        assert store.usage().free_bytes < 600 * MIB
        (where / "other people's").write_bytes(os.urandom(400 * MIB))
        with pytest.raises(NoSpace, match="disk is almost full"):
            store.snapshot(live, store.root / "checkpoints" / "point", readonly=True)
        (where / "other people's").unlink()
        store.snapshot(live, store.root / "checkpoints" / "point", readonly=True)
        assert close_pool(where / "home")


def test_a_damaged_image_is_an_error_and_takes_no_loop_device(btrfs_home: Path) -> None:
    btrfs_home.mkdir(mode=0o700)
    (btrfs_home / "pool.img").write_bytes(os.urandom(MIB))
    with pytest.raises(MachineError, match="cannot be mounted") as refused:
        open_pool(btrfs_home)
    assert "btrfs check" in refused.value.hint
    (btrfs_home / "pool.img").unlink()


def test_a_pool_grows_and_shrinks_while_in_use(btrfs_home: Path) -> None:
    store = open_pool(btrfs_home, size_bytes=POOL_BYTES)
    live = tree(store)
    (live / "file").write_bytes(os.urandom(10 * MIB))
    with (live / "held").open("w") as held:
        resize_pool(btrfs_home, 2 * POOL_BYTES)
        assert store.usage().total_bytes == 2 * POOL_BYTES
        (live / "large").write_bytes(bytes(MIB) * 500)
        (live / "large").unlink()
        store.sync()
        resize_pool(btrfs_home, POOL_BYTES)
        held.write("on")
    assert store.usage().total_bytes == POOL_BYTES
    assert (btrfs_home / "pool.img").stat().st_size == POOL_BYTES
    assert close_pool(btrfs_home)
    assert (open_pool(btrfs_home).root / "sessions" / "live" / "file").stat().st_size == 10 * MIB
    with pytest.raises(UsageError, match="too small"):
        resize_pool(btrfs_home, MIB)


def test_space_given_back_makes_the_image_smaller(btrfs_home: Path) -> None:
    store = open_pool(btrfs_home, size_bytes=POOL_BYTES)
    live = tree(store)
    (live / "file").write_bytes(os.urandom(100 * MIB))
    store.sync()
    image = btrfs_home / "pool.img"
    grown = image.stat().st_blocks * 512
    assert grown > 100 * MIB
    store.delete(live)
    used = store.usage().used_bytes
    store.reclaim()
    assert used - store.usage().used_bytes > 90 * MIB
    assert grown - image.stat().st_blocks * 512 > 90 * MIB


def test_the_lock_keeps_openers_apart(btrfs_home: Path) -> None:
    open_pool(btrfs_home, size_bytes=POOL_BYTES)
    with (btrfs_home / "pool.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        argv = [sys.executable, "-c", OPENER, str(btrfs_home), str(POOL_BYTES), "btrfs", "late"]
        with subprocess.Popen(argv) as opener:
            with pytest.raises(subprocess.TimeoutExpired):
                opener.wait(0.5)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert opener.wait(30) == 0


def test_a_homes_mode_is_left_alone_when_others_live_in_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "somebody's file").touch()
    home.chmod(0o755)
    open_pool(home, kind="copy")
    assert stat.S_IMODE(home.stat().st_mode) == 0o755
    assert stat.S_IMODE((home / "pool").stat().st_mode) == 0o700


def test_a_tree_takes_no_more_than_its_share_and_points_of_it_count(btrfs_home: Path) -> None:
    """Only where the pool was made to count: an older kernel could not mount it any more."""
    pool = open_pool(btrfs_home)
    if not quota.is_known():
        pytest.skip("this kernel has no simple quotas")
    tree, point, copy = (pool.root / "sessions" / name for name in ("tree", "point", "copy"))
    pool.create(tree)
    pool.limit(tree, 16 << 20)

    def fill(path: Path) -> int:
        written = 0
        try:
            with (path / "filler").open("wb", 0) as file:
                while written < 64 << 20:
                    written += file.write(os.urandom(1 << 20))
        except OSError as error:
            assert error.errno == errno.EDQUOT  # noqa: PT017 - how much was written until then matters
        return written

    assert 12 << 20 < fill(tree) <= 16 << 20
    pool.snapshot(tree, point, readonly=True)
    pool.snapshot(point, copy, readonly=False)
    (tree / "filler").unlink()
    pool.sync()
    assert fill(tree) < 4 << 20, "what the point holds counts"
    share = pool.share(tree)
    assert share
    assert share.limit_bytes == 16 << 20
    assert share.used_bytes > 12 << 20
    (copy / "new").write_bytes(os.urandom(20 << 20))
    pool.limit(tree, None)
    (tree / "new").write_bytes(os.urandom(20 << 20))
    for path in (tree, point, copy):
        pool.delete(path)


def test_an_earlier_pool_counts_when_it_is_told_to(tmp_path: Path) -> None:
    home = tmp_path / "home"
    try:
        pool = open_pool(home, size_bytes=image.SMALLEST_SIZE_BYTES, shares=False)
        tree = pool.root / "sessions" / "tree"
        pool.create(tree)
        assert pool.share(tree) is None
        pool.limit(tree, None)
        with pytest.raises(MissingFeature, match="cannot limit"):
            pool.limit(tree, 1 << 30)
        assert open_pool(home).share(tree) is None, "it stays as it was made"
        if quota.is_known():
            pool = open_pool(home, shares=True)
            pool.limit(tree, 64 << 20)
            assert pool.share(tree)
    finally:
        close_pool(home)
