"""Pools on any other file system: trees are folders, snapshots are copies of every file in them."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from waypoint.errors import MachineError, translated
from waypoint.kernel import copytree
from waypoint.kernel.pool.btrfs import is_btrfs
from waypoint.kernel.pool.protocol import (
    TREE_MODE,
    Usage,
    check_inside,
    no_shares,
    opened,
    scratch_path,
)
from waypoint.kernel.syscalls import syncfs

TREE_MARK = "trusted.waypoint.tree"
"""The extended attribute of a tree's root."""


class CopyPool:
    """Trees are folders and a snapshot is a copy of every file in them.

    A tree's root carries the attribute `trusted.waypoint.tree` with the value "rw" or "ro". It makes a
    folder a tree, and `is_readonly` reads it; the kernel does not enforce it.
    """

    kind = "copy"

    def __init__(self, root: Path, reason: str) -> None:
        self.root = root
        self.reason = reason

    def create(self, path: Path) -> None:
        check_inside(self.root, path)
        with translated("create the tree", path):
            path.mkdir()
            os.chmod(path, TREE_MODE)
            os.setxattr(path, TREE_MARK, b"rw")

    def snapshot(self, source: Path, target: Path, *, readonly: bool) -> None:
        check_inside(self.root, target)
        temporary = scratch_path(self.root)
        with translated("make the snapshot", target):
            if not self._mark(source):
                raise MachineError(
                    f"cannot make the snapshot {target}: {source} is not a tree", path=str(source)
                )
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            try:
                temporary.mkdir(mode=0o700)
                copytree.copy_tree(
                    source, temporary, reflink=self.kind == "reflink", skip=_is_nested, omit=TREE_MARK.__eq__
                )
                os.setxattr(temporary, TREE_MARK, b"ro" if readonly else b"rw")
                os.rename(temporary, target)
            except BaseException:
                self._remove(temporary)
                raise

    @staticmethod
    def _mark(path: Path) -> bytes:
        try:
            return os.getxattr(path, TREE_MARK)
        except OSError as error:
            if error.errno == errno.ENODATA:
                return b""
            raise

    def seal(self, path: Path) -> None:
        with translated("seal", path):
            os.setxattr(path, TREE_MARK, b"ro", os.XATTR_REPLACE)

    def is_readonly(self, path: Path) -> bool:
        with translated("read the mark of", path):
            return self._mark(path) == b"ro"

    def delete(self, path: Path) -> None:
        check_inside(self.root, path)
        temporary = scratch_path(self.root)
        with translated("delete", path), contextlib.suppress(FileNotFoundError):
            os.rename(path, temporary)  # so that a partly removed tree is never seen
            self._remove(temporary)

    @staticmethod
    def _remove(path: Path) -> None:
        with opened(path.parent) as parent:
            copytree.remove_tree(parent, path.name)

    def flush(self, path: Path) -> None:
        """Nothing to do: a copy reads what is in memory as well as what is on the disk."""

    def sync(self) -> None:
        with translated("sync", self.root), opened(self.root) as fd:
            syncfs(fd)

    def has_stopped(self) -> bool:
        return bool(os.statvfs(self.root).f_flag & os.ST_RDONLY)

    def settle(self) -> None:
        """Nothing to do: space comes back with the deletion."""

    def reclaim(self) -> None:
        """Nothing to do, for the same reason."""

    def usage(self) -> Usage:
        with translated("measure", self.root):
            status = os.statvfs(self.root)
        unit = status.f_frsize
        used = (status.f_blocks - status.f_bfree) * unit
        return Usage(status.f_blocks * unit, used, status.f_bavail * unit)

    def limit(self, path: Path, size_bytes: int | None) -> None:
        if size_bytes is not None:
            raise no_shares()

    def share(self, path: Path) -> None:
        """Nothing is counted."""

    def dedupe(self, source: Path, target: Path) -> int:
        with translated("share blocks with", source):
            return copytree.share_blocks(source, target, rewrite_rest=is_btrfs(self.root))


class ReflinkPool(CopyPool):
    """Like CopyPool, but the files of a copy share their blocks until one of them is written."""

    kind = "reflink"

    def flush(self, path: Path) -> None:
        """Sharing blocks writes dirty files one by one; writing all together is faster."""
        self.sync()


def _is_nested(folder: int, name: str, status: os.stat_result) -> bool:
    if not stat.S_ISDIR(status.st_mode):
        return False
    return TREE_MARK in os.listxattr(copytree.below(folder, name), follow_symlinks=False)


def can_reflink(folder: Path) -> bool:
    """Whether files in a folder can share blocks. Tried on real files: the name of a file system does not say
    with which features it was made."""
    first, second = (folder / f"pool.img.partial.{secrets.token_hex(4)}" for _ in range(2))
    try:
        first.write_bytes(b"\1" * 8192)
        with (
            opened(first, os.O_RDONLY) as source,
            opened(second, os.O_RDWR | os.O_CREAT | os.O_EXCL) as target,
        ):
            return copytree.clone_file(source, target)
    finally:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)
