"""Digests of files and trees, by which a later look finds out whether they are still what they were.

BLAKE2b with 128 bits: 1.3 GB/s here on any processor. (SHA-256 is faster only where the processor has
instructions for it.) A file is read in steps; the caller is called between two of them and may wait there, so
that this work yields to other work, or raise, which ends it. No descriptor is held meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

CHUNK_BYTES = 4 << 20
"""What one digest of a large file is of: damage is told to this precision."""
_STEP_BYTES = 1 << 20
_DIGEST_BYTES = 16
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Pause = Callable[[], None]
"""Called between two steps."""


class Entry(NamedTuple):
    """What is known of one name in a tree. The times are in nanoseconds."""

    mode: int
    uid: int
    gid: int
    size: int
    modified: int
    changed: int
    """Its change time, and with `inode` what tells whether it may have been changed since. Not compared."""
    inode: int
    content: bytes
    """The digest of a file's content, of a link's target, of a device's numbers; empty for the rest."""
    attributes: bytes
    """The digest of its extended attributes; empty without any."""


def of_bytes(data: bytes) -> bytes:
    """The digest of some data."""
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


def of_file(path: str | os.PathLike[str], pause: Pause) -> bytes:
    """The digest of a whole file."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for step in _steps(path, pause):
        digest.update(step)
    return digest.digest()


def of_chunks(path: str | os.PathLike[str], pause: Pause) -> tuple[int, list[bytes]]:
    """The size of a file, and one digest for each 4 MiB of it."""
    size_bytes, digests = 0, []
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for step in _steps(path, pause):
        digest.update(step)
        size_bytes += len(step)
        if size_bytes % CHUNK_BYTES == 0:
            digests.append(digest.digest())
            digest = blake2b(digest_size=_DIGEST_BYTES)
    if size_bytes % CHUNK_BYTES:
        digests.append(digest.digest())
    return size_bytes, digests


def _steps(path: str | os.PathLike[str], pause: Pause) -> Iterator[bytes]:
    at = 0
    while True:
        fd = os.open(path, _READ)
        try:
            step = os.pread(fd, _STEP_BYTES, at)
        finally:
            os.close(fd)
        if step:
            yield step
        at += len(step)
        if len(step) < _STEP_BYTES:
            return
        pause()


def of_tree(
    root: str | os.PathLike[str], pause: Pause, known: Mapping[bytes, Entry] | None = None, before_ns: int = 0
) -> dict[bytes, Entry]:
    """Every name below a folder, and the folder itself as the empty name, with what it holds.

    `known`: what an earlier snapshot of the same tree held. A name that has its inode and its change time,
    and was not changed after `before_ns`, is not read again.
    """
    base = os.fsencode(root)
    entries = {b"": _entry(base, os.lstat(base), pause)}
    seen: dict[int, bytes] = {}
    """Contents of files with several names, by inode."""
    folders = [b""]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(base, folder)) as listing:
            names = sorted(item.name for item in listing)
        for name in names:
            path = os.path.join(folder, name)
            full = os.path.join(base, path)
            status = os.lstat(full)
            if stat.S_ISDIR(status.st_mode):
                folders.append(path)
            old = known.get(path) if known else None
            if old and _is_unchanged(old, status, before_ns):
                entries[path] = _entry_with(status, old.content, old.attributes)
            else:
                entries[path] = _entry(full, status, pause, seen)
                pause()
    return entries


def _is_unchanged(old: Entry, status: os.stat_result, before_ns: int) -> bool:
    same = (status.st_ino, status.st_ctime_ns, status.st_size, status.st_mode)
    return same == (old.inode, old.changed, old.size, old.mode) and old.changed < before_ns


def _entry(path: bytes, status: os.stat_result, pause: Pause, seen: dict[int, bytes] | None = None) -> Entry:
    content = seen.get(status.st_ino) if seen else None
    if content is None:
        content = _content(path, status, pause)
        if seen is not None and status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
            seen[status.st_ino] = content
    return _entry_with(status, content, _attributes(path))


def _entry_with(status: os.stat_result, content: bytes, attributes: bytes) -> Entry:
    is_folder = stat.S_ISDIR(status.st_mode)  # its size is the file system's own business
    return Entry(
        mode=status.st_mode,
        uid=status.st_uid,
        gid=status.st_gid,
        size=0 if is_folder else status.st_size,
        modified=status.st_mtime_ns,
        changed=status.st_ctime_ns,
        inode=status.st_ino,
        content=content,
        attributes=attributes,
    )


def _content(path: bytes, status: os.stat_result, pause: Pause) -> bytes:
    if stat.S_ISREG(status.st_mode):
        return of_file(os.fsdecode(path), pause)
    if stat.S_ISLNK(status.st_mode):
        return of_bytes(os.readlink(path))
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        return of_bytes(b"%d" % status.st_rdev)
    return b""


def _attributes(path: bytes) -> bytes:
    """Not those with which a pool marks its trees: they are of the tree, not of what is in it."""
    digest, found = blake2b(digest_size=_DIGEST_BYTES), False
    try:
        names = sorted(os.listxattr(path, follow_symlinks=False))
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EPERM):
            return b""
        raise
    for name in names:
        if name in _OF_THE_POOL:
            continue
        with contextlib.suppress(OSError):
            value = os.getxattr(path, name, follow_symlinks=False)
            digest.update(b"%d %d %s%s" % (len(name), len(value), os.fsencode(name), value))
            found = True
    return digest.digest() if found else b""


_OF_THE_POOL = ("trusted.waypoint.tree", "btrfs.compression")
