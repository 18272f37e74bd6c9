"""Opening and closing the pool of a home.

Everything here works on one home folder: `pool.img` (the sparse file), `pool/` (where it is mounted, or the
folder that is the pool) and `pool.lock` (held while the pool is opened, closed or resized).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from waypoint.errors import MachineError, MissingFeature, NoSpace, NotRoot, UsageError, translated
from waypoint.kernel import homes, locks, mounts
from waypoint.kernel.pool import loop, quota
from waypoint.kernel.pool.btrfs import (
    BTRFS_IOC_SUBVOL_CREATE,
    REOPEN_BYTES,
    BtrfsPool,
    disk_room,
    is_btrfs,
    volume_request,
)
from waypoint.kernel.pool.folder import TREE_MARK, CopyPool, ReflinkPool, can_reflink
from waypoint.kernel.pool.holders import mount_holders
from waypoint.kernel.pool.image import make_image, mount_image, require_btrfs, resize_image
from waypoint.kernel.pool.protocol import SCRATCH, Pool, opened
from waypoint.kernel.syscalls import umount

KINDS = ("btrfs", "reflink", "copy")
LAYOUT = ("bases", "beginnings", "checkpoints", "kept", "sessions", "staging")
COMPRESSED = ("checkpoints", "staging")
"""Where memory images are written."""

_KIND_FILE = ".kind"
_LOCK_SECONDS = 60.0
"""Opening a pool makes its file system, if there is none."""
_OWN_FILES = {"daemon.log", "engine", "pool", "pool.img", "pool.img.partial", "pool.lock", "waypoint.db"}


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    path = home / "pool.lock"
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        os.fchmod(fd, 0o600)
        if not locks.lock_file(fd, fcntl.LOCK_EX, _LOCK_SECONDS):
            raise MachineError(
                f"the pool in {home} is being opened or closed by another process, which does not finish",
                hint=f"`fuser {path}` tells which process it is",
                path=str(path),
            )
        yield


def _is_mounted(home: Path) -> bool:
    """From the mount table: device numbers from stat(2) do not tell, on btrfs every subvolume has its own."""
    return mounts.mount_at(home.resolve() / "pool") is not None


def open_pool(
    home: Path, *, size_bytes: int | None = None, kind: str | None = None, shares: bool | None = None
) -> Pool:
    """The pool of a home folder: made when there is none, mounted when it is not, else as it is.

    A home on btrfs is used as it is. Elsewhere a sparse file of at most `size_bytes` is made (by
    default 80% of the disk's free space, 64 GiB at most). Where that is impossible files are
    reflinked or copied, unless `kind` demands another. A pool keeps its kind: a later call with another
    `kind` is refused. Any number of processes may call this at the same time. `shares`: whether what each
    tree takes of a sparse file is counted, so that it can be limited; None: of one that is made now.
    """
    if os.geteuid() != 0:
        raise NotRoot("the pool belongs to root", hint="run it with sudo")
    if kind is not None and kind not in KINDS:
        raise UsageError(f"there is no kind of pool {kind!r}", hint=f"one of: {', '.join(KINDS)}")
    home = home.absolute()
    with translated("open the pool in", home):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if set(os.listdir(home)) <= _OWN_FILES:
            os.chmod(home, 0o700)
        with _locked(home):
            pool = _open(home, size_bytes, kind, shares=shares)
            _make_layout(pool)
            _sweep_scratch(pool)
    return pool


def _open(home: Path, size_bytes: int | None, kind: str | None, *, shares: bool | None) -> Pool:
    root, image = home / "pool", home / "pool.img"
    existing = _existing_kind(home)
    if existing and kind and existing != kind:
        raise UsageError(
            f"the pool in {home} is {existing}, not {kind}",
            hint="a pool keeps its kind: choose another WAYPOINT_HOME",
        )
    if existing in {"reflink", "copy"}:
        return _folder_pool(root, existing, "it was made when there was no btrfs")
    if image.exists():
        return _image_pool(home, size_bytes, shares=shares)
    has_own_disk = _is_mounted(home)  # mounted there by the administrator, to be used as it is
    place = root if has_own_disk else home
    if kind in {None, "btrfs"} and is_btrfs(place):
        return _native_pool(root)
    if existing:
        raise MachineError(
            f"the pool {root} was made on btrfs, and this is no btrfs",
            hint="mount the disk it is on, or choose another WAYPOINT_HOME",
            path=str(root),
        )
    reason = f"{kind} was asked for"
    if kind in {None, "btrfs"}:
        try:
            if has_own_disk:
                raise MissingFeature(
                    f"what is mounted at {root} is no btrfs", hint="unmount it, or choose another kind"
                )
            return _image_pool(home, size_bytes, shares=shares)
        except MissingFeature as error:
            if kind or "program" in error.details:  # one command installs it: no reason for a slower pool
                raise
            reason = error.message
            image.unlink(missing_ok=True)
    shares_blocks = can_reflink(place)
    if kind == "reflink" and not shares_blocks:
        raise MissingFeature(
            f"the file system of {place} cannot share blocks",
            hint="xfs and btrfs can; or let the pool be chosen",
        )
    return _folder_pool(root, kind or ("reflink" if shares_blocks else "copy"), reason)


def _existing_kind(home: Path) -> str:
    """What a pool was made as; empty when there is none yet (or none mounted yet)."""
    if (home / "pool.img").exists():
        return "btrfs"
    try:
        return (home / "pool" / _KIND_FILE).read_text().strip()
    except FileNotFoundError:
        return ""


def written_kind(home: Path) -> str | None:
    """The kind that is written down in a pool; None when that cannot be read."""
    try:
        return (home / "pool" / _KIND_FILE).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _image_pool(home: Path, size_bytes: int | None, *, shares: bool | None) -> BtrfsPool:
    root, image = home / "pool", home / "pool.img"
    if shares is None:
        shares = not image.exists()
    if not _is_mounted(home):
        require_btrfs()
        if not image.exists():
            make_image(home, size_bytes)
        root.mkdir(mode=0o700, exist_ok=True)
        mount_image(image, root)
    if os.statvfs(root).f_flag & os.ST_RDONLY:
        _remount(home)
    if shares and quota.is_known():
        with opened(root) as fd:
            if not quota.is_enabled(fd):
                quota.enable(fd)
    return BtrfsPool(root, image if image.exists() else None)


def require_room_to_reopen(home: Path) -> None:
    """NoSpace when the host's disk is too full for a pool that has stopped to be opened again."""
    image = home / "pool.img"
    if not image.exists():
        raise MachineError(
            f"the file system of the pool {home / 'pool'} takes no writes",
            hint="`dmesg` tells why; mount it again",
            path=str(home / "pool"),
        )
    if (free := disk_room(image)[0]) < REOPEN_BYTES:
        raise NoSpace(
            f"the host's disk is full ({free >> 20} MiB left for {image}), so the pool has stopped writing",
            hint="make room on that disk: the next request opens the pool again",
            path=str(image),
        )


def _remount(home: Path) -> None:
    """Unmounts a pool that has stopped, and mounts it again: btrfs then goes back to its last commit."""
    root, image = home / "pool", home / "pool.img"
    require_room_to_reopen(home)
    with homes.changing():
        if holders := mount_holders(home):
            holder = f"{holders[0].command} ({holders[0].pid})"
            raise MachineError(
                f"the pool {root} has stopped writing, and {holder} keeps it open",
                hint="end that process: the next request opens the pool again",
                path=str(root),
            )
        umount(root)
    if image.exists():
        loop.is_released(image, patience_s=5)
        mount_image(image, root)
    if os.statvfs(root).f_flag & os.ST_RDONLY:
        raise MachineError(
            f"the pool {root} has stopped writing, and does so again when it is opened",
            hint="`dmesg` tells why",
            path=str(root),
        )


def has_stopped(home: Path) -> bool:
    """Whether the pool is mounted and takes no writes."""
    return _is_mounted(home) and bool(os.statvfs(home / "pool").f_flag & os.ST_RDONLY)


def reopen_pool(home: Path) -> None:
    """Opens a pool again that has stopped writing. No box may use it."""
    home = home.absolute()
    with translated("open the pool again in", home), _locked(home):
        if has_stopped(home):
            _remount(home)


def _native_pool(root: Path) -> BtrfsPool:
    """A folder on the host's own btrfs: a subvolume, so that the host's snapshots leave it out."""
    if not root.exists():
        with opened(root.parent) as parent:
            fcntl.ioctl(parent, BTRFS_IOC_SUBVOL_CREATE, volume_request(root.name))
    return BtrfsPool(root, None)


def _folder_pool(root: Path, kind: str, reason: str) -> CopyPool:
    root.mkdir(mode=0o700, exist_ok=True)
    try:
        os.setxattr(root, TREE_MARK, b"pool")
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EPERM}:
            raise
        raise MissingFeature(
            f"the file system of {root} keeps no trusted attributes, and an overlay needs them",
            hint="put WAYPOINT_HOME on ext4, xfs or btrfs",
        ) from error
    return (ReflinkPool if kind == "reflink" else CopyPool)(root, reason)


def _make_layout(pool: Pool) -> None:
    os.chmod(pool.root, 0o700)
    for name in (*LAYOUT, SCRATCH):
        folder = pool.root / name
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        if pool.kind == "btrfs" and name in COMPRESSED:
            os.setxattr(folder, "btrfs.compression", b"zstd")
    mark = pool.root / _KIND_FILE
    if not mark.exists():
        mark.write_text(f"{pool.kind}\n")
        mark.chmod(0o600)


def _sweep_scratch(pool: Pool) -> None:
    """Deletes what killed processes were making or removing. A reused pid only delays this."""
    for remains in (pool.root / SCRATCH).iterdir():
        if not Path("/proc", remains.name.partition(".")[0]).exists():
            pool.delete(remains)


def is_pool(path: Path, source: str) -> bool:
    """Whether what is mounted there, from that source, is the pool of a home, not necessarily ours."""
    if path.name != "pool":
        return False
    with contextlib.suppress(OSError):  # it may be being unmounted, with nothing left in it
        file = Path("/sys/block", Path(source).name, "loop", "backing_file").read_text().strip()
        return file.removesuffix(" (deleted)") == str(path.with_name("pool.img"))
    return (path / _KIND_FILE).is_file()


def close_pool(home: Path) -> bool:
    """Unmount the pool and release its loop device; true when both are gone.

    False when it is in use: then nothing has changed and `holders.pool_holders` says by what. A pool that is
    a plain folder has nothing to close.
    """
    home = home.absolute()
    if not home.is_dir():
        return True
    with translated("close the pool in", home), _locked(home):
        image, root = home / "pool.img", home / "pool"
        if not _is_mounted(home):
            return not image.exists() or loop.is_released(image, patience_s=0)
        # A box that is being built, of any home, has a copy of every mount of the machine.
        with homes.changing():
            if mount_holders(home):
                return False
            try:
                umount(root)
            except OSError as error:
                if error.errno == errno.EBUSY:
                    return False
                raise
        return not image.exists() or loop.is_released(image, patience_s=5)


def resize_pool(home: Path, size_bytes: int) -> None:
    """Give a pool that is a sparse file another cap, while it is in use."""
    home = home.absolute()
    root, image = home / "pool", home / "pool.img"
    with translated("resize the pool in", home), _locked(home):
        if not image.exists() or not _is_mounted(home):
            raise UsageError(
                f"the pool in {home} has no size of its own", hint="only a mounted pool.img can be resized"
            )
        resize_image(image, root, size_bytes)
