"""The pool: where the files of all sessions and checkpoints live, and how a copy of them costs nothing.

A tree is a folder that can be snapshotted as one. On btrfs it is a subvolume and a snapshot is one
ioctl: no external program, no data moved, and a read-only one is immutable by the kernel's word. Any
host gets such a pool from a sparse file that is mounted like a disk. Where the kernel has no btrfs or
no loop devices the same interface is kept over reflinks, else over plain copies; both are slower and
`Pool.kind` and `Pool.reason` say so.

Everything here works on one home folder: `pool.img` (the sparse file), `pool/` (where it is mounted, or
the folder that is the pool) and `pool.lock` (held while the pool is opened, closed or resized).
docs/storage.md has the layout, the mount options with their reasons and the consistency rules.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from waypoint.errors import (
    AlreadyExists,
    MachineError,
    MissingFeature,
    NoSpace,
    NotFound,
    NotRoot,
    SetupFailed,
    UsageError,
    WaypointError,
)
from waypoint.kernel import copytree
from waypoint.kernel.pool import loop
from waypoint.kernel.syscalls import (
    MS_NOATIME,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    ioctl_number,
    mount,
    syncfs,
    umount,
)

FITRIM = ioctl_number(3, ord("X"), 121, 24)

# <linux/btrfs.h>
BTRFS_IOC_RESIZE = ioctl_number(1, 0x94, 3, 4096)
BTRFS_IOC_SYNC = ioctl_number(0, 0x94, 8, 0)
BTRFS_IOC_SUBVOL_CREATE = ioctl_number(1, 0x94, 14, 4096)
BTRFS_IOC_SNAP_DESTROY = ioctl_number(1, 0x94, 15, 4096)
BTRFS_IOC_SPACE_INFO = ioctl_number(3, 0x94, 20, 16)
BTRFS_IOC_SNAP_CREATE_V2 = ioctl_number(1, 0x94, 23, 4096)
BTRFS_IOC_SUBVOL_GETFLAGS = ioctl_number(2, 0x94, 25, 8)
BTRFS_IOC_SUBVOL_SETFLAGS = ioctl_number(1, 0x94, 26, 8)
BTRFS_IOC_FS_INFO = ioctl_number(2, 0x94, 31, 1024)
BTRFS_SUBVOL_RDONLY = 1 << 1
BTRFS_FIRST_FREE_OBJECTID = 256
BTRFS_BLOCK_GROUP_COPIES = {1 << 4: 2, 1 << 5: 2, 1 << 6: 2, 1 << 9: 3, 1 << 10: 4}
BTRFS_SPACE_INFO_GLOBAL_RSV = 1 << 49

KINDS = ("btrfs", "reflink", "copy")
TREE_MODE = 0o755
LAYOUT = ("bases", "checkpoints", "sessions", "staging")
MOUNT_FLAGS = MS_NOATIME | MS_NODEV | MS_NOSUID
MOUNT_OPTIONS = "discard=async"
COMPRESSED = ("checkpoints", "staging")
"""Where memory images are written. These and the rest are argued, with measurements, in docs/storage.md."""

GIB = 1 << 30
MIB = 1 << 20
DEFAULT_SIZE_BYTES = 64 * GIB
SMALLEST_SIZE_BYTES = 256 * MIB
DISK_RESERVE_BYTES = 256 * MIB
"""Below this much room on the disk under a sparse pool nothing new is begun: a disk that runs full
under btrfs looks like a broken disk to it, and it stops all writing."""

_SCRATCH = ".scratch"
_KIND_FILE = ".kind"
_TREE_MARK = "trusted.waypoint.tree"
_OURS = {"daemon.log", "engine", "pool", "pool.img", "pool.img.partial", "pool.lock", "waypoint.db"}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_SPACE_HINT = "free some with `waypoint prune`, see what takes it with `waypoint du`"


@dataclass(frozen=True)
class Usage:
    """How full a pool is. `free_bytes` is what can really be written, the disk below included."""

    total_bytes: int
    used_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Holder:
    """A process that keeps the pool from being closed."""

    pid: int
    command: str
    what: str


class Pool(Protocol):
    """Trees that can be snapshotted. All paths are below `root`; all failures are WaypointErrors."""

    kind: str
    root: Path
    reason: str
    """Why it is no btrfs; empty when it is."""

    def create(self, path: Path) -> None:
        """An empty writable tree, mode 0755."""

    def snapshot(self, source: Path, target: Path, *, readonly: bool) -> None:
        """Make `target` a tree with all that `source` holds now; later changes of either stay its own.

        It is there completely or not at all. A tree that lies inside `source` is not part of it.
        """

    def seal(self, path: Path) -> None:
        """Make a tree read-only."""

    def is_readonly(self, path: Path) -> bool:
        """Whether a tree is read-only."""

    def delete(self, path: Path) -> None:
        """Remove a tree or a folder of trees, with those inside; read-only ones too.

        That it is not there is no error. The space may come back later: see `reclaim`.
        """

    def flush(self, path: Path) -> None:
        """Write what is dirty of a tree, so that the next snapshot of it has little to do."""

    def sync(self) -> None:
        """Return when everything in the pool is on the disk and would survive a power cut."""

    def reclaim(self) -> None:
        """Return when the space of what was deleted has come back. Seconds: for the background."""

    def usage(self) -> Usage:
        """How full it is."""

    def dedupe(self, source: Path, target: Path) -> int:
        """Share the blocks that two files have in common; the bytes shared, 0 where that is impossible."""


# ---- failures -----------------------------------------------------------------------------------


def _typed(error: OSError, doing: str, path: Path) -> WaypointError:
    """What a failed system call means to the user."""
    where = error.filename or path
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return NoSpace(f"no space left to {doing} {path}", hint=_SPACE_HINT, path=str(path))
    if error.errno == errno.ENOENT:
        return NotFound(f"cannot {doing} {path}: {where} does not exist", path=str(where))
    if error.errno in {errno.EEXIST, errno.ENOTEMPTY}:
        return AlreadyExists(f"cannot {doing} {path}: it is there already", path=str(where))
    if error.errno in {errno.EROFS, errno.EIO}:
        return MachineError(
            f"cannot {doing} {path}: {os.strerror(error.errno)}",
            hint="if the pool has stopped writing, `dmesg` tells why; close it and open it again",
            path=str(where),
        )
    return MachineError(f"cannot {doing} {path}: {error.strerror or error} ({where})", path=str(where))


@contextlib.contextmanager
def _trying(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _typed(error, doing, path) from error


@contextlib.contextmanager
def _opened(path: Path | str, flags: int = _FOLDER) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def _inside(root: Path, path: Path) -> None:
    if root not in path.parents or ".." in path.parts:
        raise UsageError(f"{path} is not in the pool {root}")


def _scratch_name(root: Path) -> Path:
    return root / _SCRATCH / f"{os.getpid()}.{secrets.token_hex(6)}"


# ---- btrfs --------------------------------------------------------------------------------------


def _is_btrfs(path: Path) -> bool:
    with _opened(path) as fd:
        try:
            fcntl.ioctl(fd, BTRFS_IOC_FS_INFO, bytes(1024))
        except OSError as error:
            if error.errno in {errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP}:
                return False
            raise
    return True


def _volume_request(name: str, fd: int = 0) -> bytearray:
    """struct btrfs_ioctl_vol_args. A bytearray, since Python passes no more than 1 KiB of bytes."""
    return bytearray(struct.pack("=q4088s", fd, os.fsencode(name)))


class BtrfsPool:
    """Trees are subvolumes. `image` is the sparse file below, None on a btrfs that was there before."""

    kind = "btrfs"
    reason = ""

    def __init__(self, root: Path, image: Path | None) -> None:
        self.root = root
        self.image = image

    def create(self, path: Path) -> None:
        _inside(self.root, path)
        self._check_disk()
        with _trying("create the tree", path), _opened(path.parent) as parent:
            fcntl.ioctl(parent, BTRFS_IOC_SUBVOL_CREATE, _volume_request(path.name))
            os.chmod(path, TREE_MODE)
            with contextlib.suppress(OSError):
                os.removexattr(path, "btrfs.compression")

    def snapshot(self, source: Path, target: Path, *, readonly: bool) -> None:
        _inside(self.root, target)
        self._check_disk()
        with _trying("make the snapshot", target):
            self._snapshot(source, target, readonly=readonly)

    def _snapshot(self, source: Path, target: Path, *, readonly: bool) -> None:
        flags = BTRFS_SUBVOL_RDONLY if readonly else 0
        with _opened(source) as fd, _opened(target.parent) as parent:
            request = struct.pack("=qQQ32s4040s", fd, 0, flags, b"", os.fsencode(target.name))
            fcntl.ioctl(parent, BTRFS_IOC_SNAP_CREATE_V2, bytearray(request))

    def seal(self, path: Path) -> None:
        with _trying("seal", path), _opened(path) as fd:
            self._set_flags(fd, self._flags(fd) | BTRFS_SUBVOL_RDONLY)

    def is_readonly(self, path: Path) -> bool:
        with _trying("read the flags of", path), _opened(path) as fd:
            return bool(self._flags(fd) & BTRFS_SUBVOL_RDONLY)

    @staticmethod
    def _flags(fd: int) -> int:
        flags: int = struct.unpack("=Q", fcntl.ioctl(fd, BTRFS_IOC_SUBVOL_GETFLAGS, bytes(8)))[0]
        return flags

    @staticmethod
    def _set_flags(fd: int, flags: int) -> None:
        fcntl.ioctl(fd, BTRFS_IOC_SUBVOL_SETFLAGS, struct.pack("=Q", flags))

    def delete(self, path: Path) -> None:
        _inside(self.root, path)
        with _trying("delete", path), contextlib.suppress(FileNotFoundError), _opened(path.parent) as parent:
            copytree.remove_tree(parent, path.name, destroy=self._destroy)

    def _destroy(self, parent: int, name: str, status: os.stat_result) -> bool:
        if status.st_ino != BTRFS_FIRST_FREE_OBJECTID:
            return False
        try:
            fcntl.ioctl(parent, BTRFS_IOC_SNAP_DESTROY, _volume_request(name))
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        else:
            return True
        # Others lie inside it: they have to go first, which takes a writable tree.
        with _opened(copytree.below(parent, name)) as fd:
            self._set_flags(fd, self._flags(fd) & ~BTRFS_SUBVOL_RDONLY)
        return False

    def flush(self, path: Path) -> None:
        """A throw-away snapshot: the one call that writes out this tree's data and nobody else's.

        syncfs and BTRFS_IOC_SYNC wait for the data of all sessions, START_SYNC leaves the data of
        this one to the snapshot that follows; docs/storage.md has the measurements.
        """
        throwaway = _scratch_name(self.root)
        with _trying("flush", path):
            self._snapshot(path, throwaway, readonly=True)
            with _opened(throwaway.parent) as parent, contextlib.suppress(FileNotFoundError):
                fcntl.ioctl(parent, BTRFS_IOC_SNAP_DESTROY, _volume_request(throwaway.name))

    def sync(self) -> None:
        with _trying("sync", self.root), _opened(self.root) as fd:
            syncfs(fd)

    def reclaim(self) -> None:
        """Deleted subvolumes are taken apart in the background: wake that up, wait until it stands still.

        Then give the disk below its blocks back. Most have been by then, one by one (discard=async);
        those that were still waiting when the pool was last unmounted are only found this way.
        """
        with _trying("reclaim space in", self.root), _opened(self.root) as fd:
            lowest, still, deadline = self._used_bytes(), 0, time.monotonic() + 30
            while still < 5 and time.monotonic() < deadline:
                fcntl.ioctl(fd, BTRFS_IOC_SYNC)
                time.sleep(0.02)
                used = self._used_bytes()
                still = 0 if used < lowest else still + 1
                lowest = min(lowest, used)
            if self.image:
                with contextlib.suppress(OSError):  # not every file system below can make a file smaller
                    fcntl.ioctl(fd, FITRIM, struct.pack("=QQQ", 0, (1 << 64) - 1, 0))

    def usage(self) -> Usage:
        with _trying("measure", self.root):
            there = os.statvfs(self.root)
            free = there.f_bavail * there.f_frsize
            if self.image:
                free = min(free, _disk_room(self.image)[0])
            return Usage(there.f_blocks * there.f_frsize, self._used_bytes(), free)

    def _used_bytes(self) -> int:
        with _opened(self.root) as fd:
            count = struct.unpack("=QQ", fcntl.ioctl(fd, BTRFS_IOC_SPACE_INFO, bytes(16)))[1]
            answer = bytearray(struct.pack("=QQ", count, 0) + bytes(24 * count))
            fcntl.ioctl(fd, BTRFS_IOC_SPACE_INFO, answer)
        used = 0
        for flags, _, used_bytes in struct.iter_unpack("=QQQ", answer[16:]):
            if not flags & BTRFS_SPACE_INFO_GLOBAL_RSV:
                copies = [n for profile, n in BTRFS_BLOCK_GROUP_COPIES.items() if flags & profile]
                used += used_bytes * (copies[0] if copies else 1)
        return used

    def _check_disk(self) -> None:
        if self.image:
            free, growth = _disk_room(self.image)
            if free < min(growth, DISK_RESERVE_BYTES):
                raise NoSpace(
                    f"the disk below the pool is almost full: {free // MIB} MiB left for {self.image}",
                    hint=f"make room on that disk, or {_SPACE_HINT}",
                    path=str(self.image),
                )

    def dedupe(self, source: Path, target: Path) -> int:
        with _trying("share blocks with", source):
            return copytree.share_blocks(source, target, rewrite_rest=True)


def _disk_room(image: Path) -> tuple[int, int]:
    """What the disk below a sparse file has left, and what the file may still want of it."""
    file, disk = os.stat(image), os.statvfs(image)
    return disk.f_bavail * disk.f_frsize, max(0, file.st_size - file.st_blocks * 512)


# ---- any other file system ----------------------------------------------------------------------


class CopyPool:
    """Trees are folders and a snapshot is a copy of every file in them.

    A tree's root carries the attribute `trusted.waypoint.tree` ("rw" or "ro"). It is what makes a
    folder a tree and what `is_readonly` answers from; the kernel does not enforce it.
    """

    kind = "copy"

    def __init__(self, root: Path, reason: str) -> None:
        self.root = root
        self.reason = reason

    def create(self, path: Path) -> None:
        _inside(self.root, path)
        with _trying("create the tree", path):
            path.mkdir()
            os.chmod(path, TREE_MODE)
            os.setxattr(path, _TREE_MARK, b"rw")

    def snapshot(self, source: Path, target: Path, *, readonly: bool) -> None:
        _inside(self.root, target)
        made = _scratch_name(self.root)
        with _trying("make the snapshot", target):
            if not self._mark(source):
                raise MachineError(
                    f"cannot make the snapshot {target}: {source} is no tree", path=str(source)
                )
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            try:
                made.mkdir(mode=0o700)
                copytree.copy_tree(
                    source, made, reflink=self.kind == "reflink", skip=_is_nested, omit=_TREE_MARK.__eq__
                )
                os.setxattr(made, _TREE_MARK, b"ro" if readonly else b"rw")
                os.rename(made, target)
            except BaseException:
                self._remove(made)
                raise

    @staticmethod
    def _mark(path: Path) -> bytes:
        try:
            return os.getxattr(path, _TREE_MARK)
        except OSError as error:
            if error.errno == errno.ENODATA:
                return b""
            raise

    def seal(self, path: Path) -> None:
        with _trying("seal", path):
            os.setxattr(path, _TREE_MARK, b"ro", os.XATTR_REPLACE)

    def is_readonly(self, path: Path) -> bool:
        with _trying("read the mark of", path):
            return self._mark(path) == b"ro"

    def delete(self, path: Path) -> None:
        _inside(self.root, path)
        going = _scratch_name(self.root)
        with _trying("delete", path), contextlib.suppress(FileNotFoundError):
            os.rename(path, going)  # so that a half-removed tree is never seen
            self._remove(going)

    @staticmethod
    def _remove(path: Path) -> None:
        with _opened(path.parent) as parent:
            copytree.remove_tree(parent, path.name)

    def flush(self, path: Path) -> None:
        """Nothing: a copy reads what is in memory as well as what is on the disk."""

    def sync(self) -> None:
        with _trying("sync", self.root), _opened(self.root) as fd:
            syncfs(fd)

    def reclaim(self) -> None:
        """Nothing: what is deleted is gone."""

    def usage(self) -> Usage:
        with _trying("measure", self.root):
            there = os.statvfs(self.root)
        unit = there.f_frsize
        used = (there.f_blocks - there.f_bfree) * unit
        return Usage(there.f_blocks * unit, used, there.f_bavail * unit)

    def dedupe(self, source: Path, target: Path) -> int:
        with _trying("share blocks with", source):
            return copytree.share_blocks(source, target, rewrite_rest=_is_btrfs(self.root))


class ReflinkPool(CopyPool):
    """Like CopyPool, but the files of a copy share their blocks until one of them is written."""

    kind = "reflink"

    def flush(self, path: Path) -> None:
        """Sharing blocks writes dirty files out one by one; together they are quicker."""
        self.sync()


def _is_nested(folder: int, name: str, status: os.stat_result) -> bool:
    if not stat.S_ISDIR(status.st_mode):
        return False
    return _TREE_MARK in os.listxattr(copytree.below(folder, name), follow_symlinks=False)


# ---- the sparse file and its loop device --------------------------------------------------------


def _require_btrfs() -> None:
    """Btrfs in the kernel and loop devices; modules are asked for when they are not loaded."""

    def has_btrfs() -> bool:
        return "\tbtrfs\n" in Path("/proc/filesystems").read_text()

    for name, is_there, why in (
        ("btrfs", has_btrfs, "this kernel has no btrfs"),
        ("loop", loop.CONTROL.exists, f"there are no loop devices here ({loop.CONTROL} is missing)"),
    ):
        if not is_there() and (modprobe := _program("modprobe")):
            subprocess.run([modprobe, "-q", name], check=False, capture_output=True)
        if not is_there():
            raise MissingFeature(why, hint=f"load the kernel's module with `modprobe {name}`, if it has one")


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")


def _default_size_bytes(home: Path) -> int:
    """A cap, not an allocation: it keeps a runaway session from filling the host's disk."""
    disk = os.statvfs(home)
    return min(DEFAULT_SIZE_BYTES, disk.f_bavail * disk.f_frsize * 8 // 10)


def _make_image(home: Path, size_bytes: int | None) -> None:
    """Create `pool.img`: complete, or not at all."""
    size = (size_bytes or _default_size_bytes(home)) // MIB * MIB
    if size < SMALLEST_SIZE_BYTES:
        if size_bytes:
            raise UsageError(
                f"a pool of {size // MIB} MiB is too small: {SMALLEST_SIZE_BYTES // MIB} MiB at least"
            )
        raise NoSpace(
            f"not enough room for a pool in {home}: 80% of the free space is {size // MIB} MiB, "
            f"and it takes {SMALLEST_SIZE_BYTES // MIB} MiB",
            hint="make room on that disk, or put WAYPOINT_HOME on another one",
            path=str(home),
        )
    mkfs = _program("mkfs.btrfs")
    if not mkfs:
        raise MissingFeature(
            "mkfs.btrfs is not installed",
            hint="run `waypoint setup`, or install btrfs-progs",
            program="mkfs.btrfs",
        )
    partial = home / "pool.img.partial"
    partial.unlink(missing_ok=True)
    try:
        with _opened(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
            os.chmod(partial, 0o600)
            os.ftruncate(fd, size)
            made = subprocess.run(
                [
                    mkfs,
                    "--quiet",
                    "--label",
                    "waypoint",
                    "--metadata",
                    "dup",
                    "--data",
                    "single",
                    str(partial),
                ],
                check=False,
                capture_output=True,
                text=True,
                errors="replace",
            )
            if made.returncode:
                raise SetupFailed(
                    f"mkfs.btrfs failed on {partial}: {made.stderr.strip()[-500:]}",
                    hint="see `waypoint doctor`",
                )
            os.fsync(fd)
        os.rename(partial, home / "pool.img")
    finally:
        partial.unlink(missing_ok=True)
    with _opened(home) as fd:
        os.fsync(fd)


def _mount_image(image: Path, root: Path) -> None:
    try:
        device, fd = loop.attach(image)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.ENOENT, errno.ENXIO, errno.EPERM, errno.ENODEV, errno.EINVAL}:
            raise MissingFeature(
                f"no loop device can be had for {image}: {error.strerror} ({error.filename or 'loop'})",
                hint="containers have to be given /dev/loop-control and /dev/loop*, and Linux 5.8 or newer",
            ) from error
        raise
    try:
        mount(device, root, "btrfs", MOUNT_FLAGS, MOUNT_OPTIONS)
    except OSError as error:
        if error.errno in {errno.ENODEV, errno.EPERM, errno.EACCES}:
            raise MissingFeature(
                f"the kernel refuses to mount btrfs: {error.strerror}", hint="see `waypoint doctor`"
            ) from error
        raise SetupFailed(
            f"{image} cannot be mounted: {error.strerror}",
            hint=f"`dmesg` tells why; `btrfs check {image}` examines it",
            path=str(image),
        ) from error
    finally:
        os.close(fd)
    mount("", root, "", MS_PRIVATE, "")


# ---- opening and closing ------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    with _opened(home / "pool.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def _mounted_device(home: Path) -> str:
    """The device number of what is mounted as the pool, as the mount table writes it; empty if nothing is.

    Device numbers from stat(2) do not tell: on btrfs every subvolume has one of its own.
    """
    root = _escaped(home.resolve() / "pool")
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    return next((words[2] for words in map(str.split, reversed(table)) if words[4] == root), "")


def open_pool(home: Path, *, size_bytes: int | None = None, kind: str | None = None) -> Pool:
    """The pool of a home folder: made when there is none, mounted when it is not, else as it is.

    A home on btrfs is used as it is. Elsewhere a sparse file of at most `size_bytes` is made (by
    default 80% of the disk's free space, 64 GiB at most). Where that is impossible files are
    reflinked or copied, unless `kind` insists. What a pool is it stays: a later call with another
    `kind` is refused. Any number of processes may call this at the same time.
    """
    if os.geteuid() != 0:
        raise NotRoot("the pool belongs to root", hint="run it with sudo")
    if kind is not None and kind not in KINDS:
        raise UsageError(f"there is no kind of pool {kind!r}", hint=f"one of: {', '.join(KINDS)}")
    home = home.absolute()
    with _trying("open the pool in", home):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if set(os.listdir(home)) <= _OURS:
            os.chmod(home, 0o700)
        with _locked(home):
            pool = _open(home, size_bytes, kind)
            _lay_out(pool)
    return pool


def _open(home: Path, size_bytes: int | None, kind: str | None) -> Pool:
    root, image = home / "pool", home / "pool.img"
    found = _found_kind(home)
    if found and kind and found != kind:
        raise UsageError(
            f"the pool in {home} is {found}, not {kind}",
            hint="a pool keeps its kind: choose another WAYPOINT_HOME",
        )
    if found in {"reflink", "copy"}:
        return _folder_pool(root, found, "it was made when there was no btrfs")
    if image.exists():
        return _image_pool(home, size_bytes)
    is_own_disk = bool(_mounted_device(home))  # somebody mounted one there, to be used as it is
    place = root if is_own_disk else home
    if kind in {None, "btrfs"} and _is_btrfs(place):
        return _native_pool(root)
    if found:
        raise MachineError(
            f"the pool {root} was made on btrfs, and this is no btrfs",
            hint="mount the disk it is on, or choose another WAYPOINT_HOME",
            path=str(root),
        )
    reason = "told so"
    if kind in {None, "btrfs"}:
        try:
            if is_own_disk:
                raise MissingFeature(
                    f"what is mounted at {root} is no btrfs", hint="unmount it, or choose another kind"
                )
            return _image_pool(home, size_bytes)
        except MissingFeature as error:
            if kind or "program" in error.details:  # what one command mends is not worked around for good
                raise
            reason = error.message
            image.unlink(missing_ok=True)
    can_reflink = _can_reflink(place)
    if kind == "reflink" and not can_reflink:
        raise MissingFeature(
            f"the file system of {place} cannot share blocks",
            hint="xfs and btrfs can; or let the pool be chosen",
        )
    return _folder_pool(root, kind or ("reflink" if can_reflink else "copy"), reason)


def _found_kind(home: Path) -> str:
    """What a pool was made as; empty when there is none yet (or none mounted yet)."""
    if (home / "pool.img").exists():
        return "btrfs"
    try:
        return (home / "pool" / _KIND_FILE).read_text().strip()
    except FileNotFoundError:
        return ""


def _image_pool(home: Path, size_bytes: int | None) -> BtrfsPool:
    root, image = home / "pool", home / "pool.img"
    if not _mounted_device(home):
        _require_btrfs()
        if not image.exists():
            _make_image(home, size_bytes)
        root.mkdir(mode=0o700, exist_ok=True)
        _mount_image(image, root)
    if os.statvfs(root).f_flag & os.ST_RDONLY:
        raise MachineError(
            f"the pool {root} has stopped writing",
            hint="`dmesg` tells why; close it and open it again",
            path=str(root),
        )
    return BtrfsPool(root, image if image.exists() else None)


def _native_pool(root: Path) -> BtrfsPool:
    """A folder on the host's own btrfs: a subvolume, so that the host's snapshots leave it out."""
    if not root.exists():
        with _opened(root.parent) as parent:
            fcntl.ioctl(parent, BTRFS_IOC_SUBVOL_CREATE, _volume_request(root.name))
    return BtrfsPool(root, None)


def _folder_pool(root: Path, kind: str, reason: str) -> CopyPool:
    root.mkdir(mode=0o700, exist_ok=True)
    try:
        os.setxattr(root, _TREE_MARK, b"pool")
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EPERM}:
            raise
        raise MissingFeature(
            f"the file system of {root} keeps no trusted attributes, and an overlay needs them",
            hint="put WAYPOINT_HOME on ext4, xfs or btrfs",
        ) from error
    return (ReflinkPool if kind == "reflink" else CopyPool)(root, reason)


def _can_reflink(home: Path) -> bool:
    """Tried on real files: what a file system is called does not say what it was made with."""
    one, other = (home / f"pool.img.partial.{secrets.token_hex(4)}" for _ in range(2))
    try:
        one.write_bytes(b"\1" * 8192)
        with (
            _opened(one, os.O_RDONLY) as source,
            _opened(other, os.O_RDWR | os.O_CREAT | os.O_EXCL) as target,
        ):
            return copytree.clone_file(source, target)
    finally:
        one.unlink(missing_ok=True)
        other.unlink(missing_ok=True)


def _lay_out(pool: Pool) -> None:
    os.chmod(pool.root, 0o700)
    for name in (*LAYOUT, _SCRATCH):
        folder = pool.root / name
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        if pool.kind == "btrfs" and name in COMPRESSED:
            os.setxattr(folder, "btrfs.compression", b"zstd")
    mark = pool.root / _KIND_FILE
    if not mark.exists():
        mark.write_text(f"{pool.kind}\n")
    for left in (pool.root / _SCRATCH).iterdir():
        # What a killed process was about to make or remove. A reused pid only delays this.
        if not Path("/proc", left.name.partition(".")[0]).exists():
            pool.delete(left)


def is_pool(path: Path, source: str) -> bool:
    """Whether what is mounted there, from that source, is the pool of some home, not necessarily ours."""
    if path.name != "pool":
        return False
    with contextlib.suppress(OSError):  # it may be on its way out, with nothing left in it
        file = Path("/sys/block", Path(source).name, "loop", "backing_file").read_text().strip()
        return file.removesuffix(" (deleted)") == str(path.with_name("pool.img"))
    return (path / _KIND_FILE).is_file()


def close_pool(home: Path) -> bool:
    """Unmount the pool and let its loop device go; true when both are gone.

    False when it is in use: then nothing has changed and `pool_holders` says by whom. A pool that is
    a plain folder has nothing to close.
    """
    home = home.absolute()
    if not home.is_dir():
        return True
    with _trying("close the pool in", home), _locked(home):
        image, root = home / "pool.img", home / "pool"
        if not _mounted_device(home):
            return not image.exists() or loop.is_released(image, patience_s=0)
        if _mount_holders(home):
            return False
        try:
            umount(root)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        return not image.exists() or loop.is_released(image, patience_s=5)


def pool_holders(home: Path) -> list[Holder]:
    """Who keeps the pool open: files and folders in use, overlays on it, other mount namespaces."""
    prefix = f"{home.resolve() / 'pool'}/"
    found = _mount_holders(home)
    for process in _processes():
        links = [process / "cwd", process / "root"]
        with contextlib.suppress(OSError):
            links += list((process / "fd").iterdir())
        for link in links:
            with contextlib.suppress(OSError):
                target = os.readlink(link)
                if f"{target}/".startswith(prefix):
                    found.append(Holder(int(process.name), _command(process), f"uses {target}"))
                    break
    return found


def _processes() -> list[Path]:
    return sorted(
        (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()), key=lambda p: int(p.name)
    )


def _command(process: Path) -> str:
    with contextlib.suppress(OSError):
        words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return words or (process / "comm").read_text().strip()
    return "?"


def _mount_holders(home: Path) -> list[Holder]:
    """Mounts other than the pool's own that keep its file system alive, one per mount namespace.

    A mount namespace that was copied while the pool was mounted holds a copy of that mount, and an
    overlay holds the file system of its layers: unmounting the pool here would then release nothing.
    """
    root, device = _escaped(home.resolve() / "pool"), _mounted_device(home)
    ours = os.readlink("/proc/self/ns/mnt")
    found: list[Holder] = []
    seen: set[str] = set()
    for process in _processes():
        with contextlib.suppress(OSError):
            namespace = os.readlink(process / "ns" / "mnt")
            if namespace in seen:
                continue
            seen.add(namespace)
            for line in (process / "mountinfo").read_text().splitlines():
                words = line.split(" ")
                if namespace == ours and words[4] == root:
                    continue
                if words[2] == device or f"={root}/" in line or f":{root}/" in line:
                    what = f"has {words[4]} mounted" + (
                        "" if namespace == ours else " in a mount namespace of its own"
                    )
                    found.append(Holder(int(process.name), _command(process), what))
                    break
    return found


def _escaped(path: Path) -> str:
    """A path as mountinfo writes it."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in str(path))


def resize_pool(home: Path, size_bytes: int) -> None:
    """Give a pool that is a sparse file another cap, while it is in use. Shrinking moves data."""
    home = home.absolute()
    root, image = home / "pool", home / "pool.img"
    size = size_bytes // MIB * MIB
    if size < SMALLEST_SIZE_BYTES:
        raise UsageError(
            f"a pool of {size // MIB} MiB is too small: {SMALLEST_SIZE_BYTES // MIB} MiB at least"
        )
    with _trying("resize the pool in", home), _locked(home):
        if not image.exists() or not _mounted_device(home):
            raise UsageError(
                f"the pool in {home} has no size of its own", hint="only a mounted pool.img can be resized"
            )
        grows = size > image.stat().st_size
        found = loop.attached_to(image)
        if not found:
            raise MachineError(f"{image} is not attached to a loop device", path=str(image))
        try:
            if grows:
                os.truncate(image, size)
                loop.reread_size(found[1])
            with _opened(root) as fd:
                fcntl.ioctl(fd, BTRFS_IOC_RESIZE, _volume_request("max" if grows else str(size)))
                syncfs(fd)
            if not grows:
                os.truncate(image, size)
                loop.reread_size(found[1])
        finally:
            os.close(found[1])
