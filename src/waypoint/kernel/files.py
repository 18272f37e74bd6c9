"""lstat(2) and its relatives: reading about a file without following a link or waiting for a writer.

The trees that Waypoint reads are written by untrusted programs: a name may be a FIFO without a writer, a
device, or a link out of the tree. So no link is followed here and nothing but a regular file is read.
Absence is an
answer (None), not an error: a base is the host's own folder and may change while it is read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterable
from typing import Literal, NamedTuple

from waypoint.kernel.syscalls import libc

EntryKind = Literal["file", "folder", "link", "fifo", "socket", "device"]

MAX_COMPARED_BYTES = 256 << 20
"""Files of the same size beyond this are not read: they are compared by their times."""

_CHUNK = 1 << 18
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS: dict[int, EntryKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}

# statx(2), name_to_handle_at(2)
AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
STATX_BTIME = 0x800
STATX_ATTR_MOUNT_ROOT = 0x2000
_STATX_BYTES = 256
_STATX_ATTRIBUTES_AT = 8
_STATX_BTIME_AT = 80
MAX_HANDLE_SZ = 128


class Entry(NamedTuple):
    """The fields of lstat(2) that are needed here."""

    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    links: int
    rdev: int

    @property
    def kind(self) -> EntryKind:
        return _KINDS.get(stat.S_IFMT(self.mode), "device")

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)


def entry(status: os.stat_result) -> Entry:
    """An `Entry` from the result of os.stat."""
    return Entry(
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        status.st_nlink,
        status.st_rdev,
    )


def look(path: str) -> Entry | None:
    """What is at a path; None when there is nothing, or it cannot be reached."""
    try:
        return entry(os.lstat(path))
    except (OSError, ValueError):
        return None


def names(path: str) -> list[str]:
    """The names in a folder, sorted; none when it is not a folder."""
    try:
        return sorted(os.listdir(path))
    except (OSError, ValueError):
        return []


def target(path: str) -> str | None:
    """The target of a symbolic link; None when it is not one."""
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return None


def attributes(path: str) -> dict[str, bytes]:
    """The extended attributes of a path itself; empty where they cannot be read."""
    values: dict[str, bytes] = {}
    try:
        for name in os.listxattr(path, follow_symlinks=False):
            values[name] = os.getxattr(path, name, follow_symlinks=False)
    except (OSError, ValueError):
        return values
    return values


def attribute(path: str, name: str) -> bytes | None:
    """One extended attribute of a path itself."""
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except (OSError, ValueError):
        return None


def open_file(path: str) -> int:
    """A descriptor of a regular file. OSError for anything else, a link to a file included."""
    fd = os.open(path, _READ)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def read(path: str, limit: int, offset: int = 0) -> bytes | None:
    """At most `limit` bytes of a regular file; None when it is not one."""
    try:
        fd = open_file(path)
    except (OSError, ValueError):
        return None
    try:
        parts, left = [], limit
        while left > 0 and (part := os.pread(fd, min(left, 1 << 20), offset)):
            parts.append(part)
            left -= len(part)
            offset += len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def same_content(one: str, other: str, ranges: Iterable[tuple[int, int]] | None = None) -> bool:
    """Whether two regular files hold the same bytes: all of them, or those in `ranges` (offset, length).

    What cannot be read is not the same. Files beyond MAX_COMPARED_BYTES are compared by their times.
    """
    try:
        first = open_file(one)
    except (OSError, ValueError):
        return False
    try:
        second = open_file(other)
        try:
            return _same_bytes(first, second, ranges)
        finally:
            os.close(second)
    except (OSError, ValueError):
        return False
    finally:
        os.close(first)


def _same_bytes(first: int, second: int, ranges: Iterable[tuple[int, int]] | None) -> bool:
    one, other = os.fstat(first), os.fstat(second)
    if one.st_size != other.st_size:
        return False
    parts = [(0, one.st_size)] if ranges is None else list(ranges)
    if sum(length for _, length in parts) > MAX_COMPARED_BYTES:
        return one.st_mtime_ns == other.st_mtime_ns
    for offset, length in parts:
        at, end = offset, min(offset + length, one.st_size)
        while at < end:
            part = os.pread(first, min(_CHUNK, end - at), at)
            if part != os.pread(second, min(_CHUNK, end - at), at):
                return False
            if not part:
                break
            at += len(part)
    return True


def _statx(path: str, mask: int) -> bytes | None:
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if libc.statx(AT_FDCWD, os.fsencode(path), AT_SYMLINK_NOFOLLOW, mask, answer) < 0:
        return None
    return answer.raw


def _number(answer: bytes, at: int, size: int) -> int:
    return int.from_bytes(answer[at : at + size], sys.byteorder)


def birth_time(path: str) -> tuple[int, int] | None:
    """When a file was created (seconds, nanoseconds), where the file system records it."""
    answer = _statx(path, STATX_BTIME)
    if answer is None or not _number(answer, 0, 4) & STATX_BTIME:
        return None
    return _number(answer, _STATX_BTIME_AT, 8), _number(answer, _STATX_BTIME_AT + 8, 4)


def is_mount_point(path: str) -> bool:
    """Whether something is mounted at a path, which then hides what lies below."""
    answer = _statx(path, 0)
    return answer is not None and bool(_number(answer, _STATX_ATTRIBUTES_AT, 8) & STATX_ATTR_MOUNT_ROOT)


class _FileHandle(ctypes.Structure):
    _fields_ = (
        ("handle_bytes", ctypes.c_uint),
        ("handle_type", ctypes.c_int),
        ("f_handle", ctypes.c_ubyte * MAX_HANDLE_SZ),
    )


def handle(path: str) -> tuple[int, bytes] | None:
    """The handle by which the file system identifies a file; an overlay notes that of a copy's origin."""
    result, mount = _FileHandle(handle_bytes=MAX_HANDLE_SZ), ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(result), ctypes.byref(mount), 0) < 0:
        return None
    return result.handle_type, bytes(result.f_handle[: result.handle_bytes])
