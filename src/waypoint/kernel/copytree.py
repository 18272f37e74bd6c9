"""Trees of files, copied exactly and removed completely, whatever a program has put into them.

Where there is no btrfs a snapshot is a copy, and a copy that loses a whiteout or a hard link is a restore
that loses work: everything that a program can see of a file is kept, down to `trusted.*` attributes, holes
and rare inode types. What cannot be kept: change times (ctime), birth times and inode flags (chattr), which
only the file system can set.

The tree of a session is written by untrusted programs, so nothing is assumed about it. Names are only used
relative to an open folder and no symbolic link is followed. One descriptor per tree is open at any depth:
the way up is "..", checked against the folder that was left on the way down. So folders nested ten thousand
deep are copied and removed like any others.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from waypoint.kernel.syscalls import ioctl_number

FICLONE = ioctl_number(1, 0x94, 9, 4)
FIDEDUPERANGE = ioctl_number(3, 0x94, 54, 24)
FILE_DEDUPE_RANGE_SAME = 0

BLOCK = 4096
DEDUPE_RUN = 64 * 1024
"""Shorter runs are not worth sharing: each is one more extent to read when the file is used."""
DEDUPE_CALL = 16 * 1024 * 1024
"""The most that btrfs shares in one call; it silently ignores the rest."""
COPY_CALL = 1 << 30

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_UNCLONABLE = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY}
_PATH_ROOM = 3000

Visit = Callable[[int, str, os.stat_result], bool]
"""Called for an entry with an open folder, a name in it, and the status of what has that name."""

Omit = Callable[[str], bool]
"""Called with the name of an extended attribute."""


class _Cursor:
    """An open folder that moves down and up a tree, and notices when the folder is moved meanwhile."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._trail: list[tuple[int, int]] = []

    def down(self, name: str) -> None:
        here = os.fstat(self.fd)
        child = os.open(name, _FOLDER, dir_fd=self.fd)
        os.close(self.fd)
        self.fd = child
        self._trail.append((here.st_dev, here.st_ino))

    def up(self) -> None:
        parent = os.open("..", _FOLDER, dir_fd=self.fd)
        os.close(self.fd)
        self.fd = parent
        there = os.fstat(parent)
        if (there.st_dev, there.st_ino) != self._trail.pop():
            raise OSError(errno.ESTALE, "a folder was moved while its tree was being walked")

    def close(self) -> None:
        os.close(self.fd)


def clone_file(source: int, target: int) -> bool:
    """Share all of a file's blocks with another one; false where the file system cannot."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno in _UNCLONABLE:
            return False
        raise
    return True


def data_ranges(fd: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Where a file has data, as (start, end); the rest is holes."""
    end = 0
    while end < size_bytes:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


def copy_file(source: int, target: int, *, reflink: bool) -> None:
    """The content of a file, holes as holes."""
    size = os.fstat(source).st_size
    if reflink and size and clone_file(source, target):
        return
    for start, end in data_ranges(source, size):
        at = start
        while at < end and (done := _copy_range(source, target, at, min(end - at, COPY_CALL))):
            at += done
    os.ftruncate(target, size)


def _copy_range(source: int, target: int, at: int, length: int) -> int:
    try:
        return os.copy_file_range(source, target, length, at, at)
    except OSError as error:
        if error.errno not in _UNCLONABLE | {errno.ENOSYS}:
            raise
    return os.pwrite(target, os.pread(source, min(length, 1 << 20), at), at)


def _attributes(path: str) -> dict[str, bytes]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}


def below(fd: int, name: str) -> str:
    """A path for the calls that know no folder descriptors (those of extended attributes)."""
    return f"/proc/self/fd/{fd}/{name}"


class _Copy:
    """One copy of a tree: `run` walks, the other methods handle one entry each."""

    def __init__(
        self, source: int, target: int, *, reflink: bool, skip: Visit | None, omit: Omit | None
    ) -> None:
        self.root = target
        self.source = _Cursor(os.dup(source))
        self.target = _Cursor(os.dup(target))
        self.reflink = reflink
        self.skip = skip
        self.omit = omit
        self.first_names: dict[tuple[int, int], str] = {}

    def run(self) -> None:
        levels = [sorted(os.listdir(self.source.fd))]
        path: list[str] = []
        try:
            while True:
                if not levels[-1]:
                    self._finish_folder()
                    levels.pop()
                    if not levels:
                        return
                    path.pop()
                    self.source.up()
                    self.target.up()
                    continue
                name = levels[-1].pop()
                status = os.stat(name, dir_fd=self.source.fd, follow_symlinks=False)
                if self.skip and self.skip(self.source.fd, name, status):
                    continue
                if stat.S_ISDIR(status.st_mode):
                    os.mkdir(name, 0o700, dir_fd=self.target.fd)
                    self.source.down(name)
                    self.target.down(name)
                    path.append(name)
                    levels.append(sorted(os.listdir(self.source.fd)))
                else:
                    self._entry("/".join((*path, name)), name, status)
        finally:
            self.source.close()
            self.target.close()

    def _finish_folder(self) -> None:
        # Last, because everything created in a folder changes its times and a default ACL would be
        # inherited by what is created.
        status = os.fstat(self.source.fd)
        self._set_metadata(".", status)

    def _entry(self, path: str, name: str, status: os.stat_result) -> None:
        inode = (status.st_dev, status.st_ino)
        if status.st_nlink > 1:
            if inode in self.first_names:
                self._link(self.first_names[inode], name)
                return
            self.first_names[inode] = path
        if stat.S_ISREG(status.st_mode):
            source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NOATIME, dir_fd=self.source.fd)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                target = os.open(name, flags, 0o600, dir_fd=self.target.fd)
                try:
                    copy_file(source, target, reflink=self.reflink)
                finally:
                    os.close(target)
            finally:
                os.close(source)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=self.source.fd), name, dir_fd=self.target.fd)
        else:
            os.mknod(name, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev, dir_fd=self.target.fd)
        self._set_metadata(name, status)

    def _link(self, first: str, name: str) -> None:
        """A hard link to what was copied before; its path may be longer than one call can take."""
        folder = os.dup(self.root)
        try:
            while len(os.fsencode(first)) > _PATH_ROOM:
                step, _, first = first.partition("/")
                deeper = os.open(step, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = deeper
            os.link(first, name, src_dir_fd=folder, dst_dir_fd=self.target.fd, follow_symlinks=False)
        finally:
            os.close(folder)

    def _set_metadata(self, name: str, status: os.stat_result) -> None:
        """Owner, mode, attributes, times: in this order, since each of the first two undoes a later one."""
        here = self.target.fd
        os.chown(name, status.st_uid, status.st_gid, dir_fd=here, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=here)
        for attribute, value in _attributes(below(self.source.fd, name)).items():
            if not (self.omit and self.omit(attribute)):
                os.setxattr(below(here, name), attribute, value, follow_symlinks=False)
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=here, follow_symlinks=False)


def copy_tree(
    source: Path, target: Path, *, reflink: bool, skip: Visit | None = None, omit: Omit | None = None
) -> None:
    """Make the folder `target` and all below it an exact copy of `source`. It must be there and empty.

    An entry for which `skip` returns true is left out, a folder with its content; so are the extended
    attributes for which `omit` returns true. A failure leaves a part of the copy behind: the caller removes
    it.
    """
    from_fd = os.open(source, _FOLDER)
    try:
        to_fd = os.open(target, _FOLDER)
        try:
            _Copy(from_fd, to_fd, reflink=reflink, skip=skip, omit=omit).run()
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)


def remove_tree(parent: int, name: str, *, destroy: Visit | None = None) -> None:
    """Remove `name` from an open folder, with its content. Absence is no error.

    `destroy` is called for each folder first, and returns true when it has removed it itself.
    """
    cursor = _Cursor(os.dup(parent))
    levels, path = [[name]], list[str]()
    try:
        while True:
            if not levels[-1]:
                levels.pop()
                if not levels:
                    return
                cursor.up()
                _ignore_absence(os.rmdir, path.pop(), cursor.fd)
                continue
            entry = levels[-1].pop()
            try:
                status = os.stat(entry, dir_fd=cursor.fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not stat.S_ISDIR(status.st_mode):
                _ignore_absence(os.unlink, entry, cursor.fd)
            elif destroy is None or not destroy(cursor.fd, entry, status):
                cursor.down(entry)
                path.append(entry)
                levels.append(os.listdir(cursor.fd))
    finally:
        cursor.close()


def _ignore_absence(remove: Callable[..., None], name: str, folder: int) -> None:
    try:
        remove(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _same_runs(source: mmap.mmap | bytes, target: mmap.mmap | bytes) -> Iterator[tuple[int, int, int]]:
    """Equal runs of two contents as (source offset, target offset, length), in whole blocks.

    Blocks are matched by their hash at any offset, because one more page in a process's heap moves all that
    follows in its memory image.
    """
    at: dict[int, int] = {}
    for offset in range(0, len(source) - BLOCK + 1, BLOCK):
        at.setdefault(hash(source[offset : offset + BLOCK]), offset)
    run = (0, 0, 0)
    for offset in range(0, len(target) - BLOCK + 1, BLOCK):
        block = target[offset : offset + BLOCK]
        start, _, length = run
        if length and source[start + length : start + length + BLOCK] == block:
            run = (start, run[1], length + BLOCK)
            continue
        if length >= DEDUPE_RUN:
            yield run
        match = at.get(hash(block))
        run = (0, 0, 0) if match is None else (match, offset, BLOCK)
    if run[2] >= DEDUPE_RUN:
        yield run


def _dedupe_run(source: int, target: int, run: tuple[int, int, int]) -> int:
    start, at, length = run
    shared = 0
    while shared < length:
        part = min(length - shared, DEDUPE_CALL)
        header = struct.pack("=QQHHI", start + shared, part, 1, 0, 0)
        request = bytearray(header + struct.pack("=qQQiI", target, at + shared, 0, 0, 0))
        fcntl.ioctl(source, FIDEDUPERANGE, request)
        _, _, done, status, _ = struct.unpack_from("=qQQiI", request, 24)
        if status < 0:
            raise OSError(-status, os.strerror(-status))
        if status != FILE_DEDUPE_RANGE_SAME or not done:
            break
        shared += done
    return shared


def share_blocks(source: Path, target: Path, *, rewrite_rest: bool) -> int:
    """Let `target` use the blocks of `source` wherever both hold the same bytes. Returns how many bytes.

    The kernel compares before it shares, so this is safe on files in use, and what is read from
    either never changes. It takes about a second of this thread per gigabyte: for the background.
    Returns 0 where the file system cannot do it.

    `rewrite_rest` is for btrfs, which frees an extent (up to 128 MiB) only when no byte of it is in
    use: sharing 99% of one frees nothing. What could not be shared is therefore written again, the same
    bytes, unless it is most of the file.
    """
    with open(source, "rb") as one, open(target, "r+b", buffering=0) as other:
        size = os.fstat(other.fileno()).st_size
        if min(size, os.fstat(one.fileno()).st_size) < DEDUPE_RUN:
            return 0
        with (
            mmap.mmap(one.fileno(), 0, prot=mmap.PROT_READ) as ours,
            mmap.mmap(other.fileno(), 0, prot=mmap.PROT_READ) as theirs,
        ):
            shared: list[tuple[int, int]] = []
            for run in _same_runs(ours, theirs):
                try:
                    done = _dedupe_run(one.fileno(), other.fileno(), run)
                except OSError as error:
                    if error.errno not in _UNCLONABLE | {errno.EPERM, errno.EROFS}:
                        raise
                    break
                if done:
                    shared.append((run[1], run[1] + done))
            total = sum(end - start for start, end in shared)
            if rewrite_rest and total > size // 2:
                _rewrite_all_but(shared, theirs, other.fileno())
    return total


def _rewrite_all_but(shared: list[tuple[int, int]], content: mmap.mmap, fd: int) -> None:
    at = 0
    for start, end in [*shared, (len(content), len(content))]:
        while at < start:
            at += os.pwrite(fd, content[at : min(start, at + (1 << 20))], at)
        at = end
