"""Putting files in place below a folder that somebody else may have prepared.

A box's tree belongs to whoever works in it, and a folder of the host may hold links that came out of a box.
A path that is looked up by name there leads wherever its owner wants, between the check and the use at the
latest. So a folder is held by its descriptor, and what is below it is reached by one call that lets the
kernel refuse every symbolic link on the way (openat2); only the last name is left, and it is never followed.

For a live box that descriptor is /proc/KEEPER/root: its root as it is mounted there, with binds and masks.
The other way would be a thread that enters the box's mount namespace. There everything that the interpreter
looks up by itself (a module that is imported late, a codec, a time zone) would come out of the box: its
owner's code in the daemon. With descriptors nothing goes into the box but what is named here.

Nothing that exists is ever opened for writing: content appears under a passing name in the same folder,
complete with owner, mode and attributes, and takes its place by one rename. So whoever reads sees the old
file or the new one, a link or a device in the place of a file is replaced and not written through, and after
a crash there is at worst a `.waypoint-…` left beside an untouched file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

from waypoint.kernel import copytree, files
from waypoint.kernel.files import Entry
from waypoint.kernel.syscalls import (
    RENAME_NOREPLACE,
    RESOLVE_BENEATH,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    openat2,
    renameat2,
    syncfs,
)

ANYTHING: Final = "anything"
Expected = Entry | None | Literal["anything"]
"""What has to be in a place for it to be taken: a certain file, nothing, or whatever it is."""

_HELD = os.O_PATH | os.O_DIRECTORY
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STRAIGHT = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_MOST_LINKS = 40
_INHERITED = ("system.posix_acl_access", "system.posix_acl_default")
_UNWILLING = frozenset(
    {errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL, errno.ENODATA, errno.E2BIG, errno.ENOSPC}
)


class Moved(Exception):
    """Raised when a place no longer holds what was expected there. Nothing was changed in it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Dress(NamedTuple):
    """What a file is apart from its content; None leaves that as it is, or as it comes."""

    mode: int | None = None
    owner: tuple[int, int] | None = None
    attributes: Mapping[str, bytes | None] | None = None
    """Extended attributes; a value of None takes one off."""
    mtime_ns: int | None = None


class Node(NamedTuple):
    """One thing of a tree that is being read."""

    path: str
    """Relative to where the reading began; empty for that itself."""
    entry: Entry
    where: str
    """A path to look at it by, for this process, until the next one is asked for."""
    data: str
    """The same for the bytes of a regular file."""


class _Prepared(NamedTuple):
    """A file that is complete but for its name."""

    path: str
    name: str
    instead_of: Expected


def _passing_name() -> str:
    return f".waypoint-{secrets.token_hex(8)}"


class Folder:
    """A folder, held. Paths are relative to it, without `.` and `..`; closing it is its owner's."""

    def __init__(self, fd: int, *, durable: bool = False) -> None:
        self.fd = fd
        self._durable = durable
        self._prepared: list[_Prepared] = []
        self._touched: set[str] = set()
        self.lost: list[tuple[str, str]] = []
        """Extended attributes that this file system does not take: path and name."""

    @classmethod
    def open(cls, path: str | Path, *, durable: bool = False) -> Folder:
        """`durable`: what is put into it is on the disk when it has its name, and the name with `flush`."""
        return cls(os.open(path, _HELD | os.O_CLOEXEC), durable=durable)

    @classmethod
    def root_of(cls, pid: int) -> Folder:
        """What a process has as its root."""
        return cls.open(f"/proc/{pid}/root")

    def enter(self, path: str, *, durable: bool = False) -> Folder:
        """A folder as a process would find it whose root this is: links are followed, and stay inside."""
        how = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
        return Folder(openat2(self.fd, path or "/", _HELD, resolve=how), durable=durable)

    def destination(self, path: str) -> tuple[Folder, str]:
        """Where something new of this path belongs: its folder, and its name there. Like `enter`; a link
        that the path ends in is followed too."""
        for _ in range(_MOST_LINKS):
            head, name = posixpath.split(path.rstrip("/"))
            if name in ("", ".", ".."):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            folder = self.enter(head)
            link = files.target(f"/proc/self/fd/{folder.fd}/{name}")
            if link is None:
                return folder, name
            folder.close()
            path = posixpath.join(head, link)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def close(self) -> None:
        self.discard()
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_how: object) -> None:
        self.close()

    # ---- looking -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The folder of a path, held, and the name in it. An OSError when there is no way there that is made
        of folders alone: ELOOP says that a link is in it."""
        head, _, name = path.rpartition("/")
        if name in ("", ".", "..") or "\0" in path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        fd = openat2(self.fd, head or ".", _HELD, resolve=_STRAIGHT)
        try:
            yield fd, name
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def at(self, path: str) -> Iterator[str]:
        """A path by which this process can look at what is there. It holds for the block, and must not be
        used to follow what it names."""
        with self._parent(path) as (fd, name):
            yield f"/proc/self/fd/{fd}/{name}"

    def look(self, path: str) -> Entry | None:
        """What is there; None when there is nothing. An OSError when a link is in the way."""
        try:
            with self.at(path) as where:
                return files.look(where)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, path: str) -> list[str]:
        """What is in a folder, sorted; nothing when it is none. An empty path is this folder itself."""
        try:
            fd = openat2(self.fd, path or ".", _LISTED, resolve=_STRAIGHT)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def walk(self, path: str) -> Iterator[Node]:
        """What is at a path and all below it, parents first. An empty path is this folder itself. Whatever
        vanishes meanwhile is left out."""
        waiting = [""]
        while waiting:
            inside = waiting.pop()
            here = "/".join(filter(None, (path, inside)))
            is_folder = not here
            if here:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError), self.at(here) as where:
                    if entry := files.look(where):
                        is_folder = entry.is_folder
                        yield Node(inside, entry, where, where)
            else:
                where = f"/proc/self/fd/{self.fd}/."
                yield Node("", files.entry(os.fstat(self.fd)), where, where)
            if is_folder:
                waiting += [f"{inside}/{name}".lstrip("/") for name in reversed(self.names(here))]

    # ---- placing -----------------------------------------------------------------------------

    def put_file(
        self, path: str, source: str, dress: Dress, *, instead_of: Expected = ANYTHING
    ) -> os.stat_result:
        """A regular file with the content of another. Returns what it is now."""
        try:
            self.prepare_file(path, source, dress, instead_of=instead_of)
            *_, (_, status) = self.commit()
        except BaseException:
            self.discard()
            raise
        return status

    def prepare_file(self, path: str, source: str, dress: Dress, *, instead_of: Expected = ANYTHING) -> None:
        """The same, but for the last step: `commit` gives all of them their places, `discard` none."""
        content = files.open_file(source)
        try:
            with self._parent(path) as (fd, _):
                prepared = _Prepared(path, _passing_name(), instead_of)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                target = os.open(prepared.name, flags, 0o600, dir_fd=fd)
                try:
                    self._prepared.append(prepared)
                    _copy_content(content, target)
                    self._dress(path, target, dress)
                finally:
                    os.close(target)
        finally:
            os.close(content)

    def commit(self) -> Iterator[tuple[str, os.stat_result]]:
        """Gives what is prepared its place, one by one, telling what it is now. Where it has to be durable
        all of it is on the disk first, at the cost of one wait for all."""
        if self._durable and self._prepared:
            fd = openat2(self.fd, ".", _LISTED, resolve=_STRAIGHT)
            try:
                syncfs(fd)
            finally:
                os.close(fd)
        while self._prepared:
            path, passing, instead_of = self._prepared[0]
            with self._parent(path) as (fd, name):
                self._take(fd, passing, name, instead_of, path)
                del self._prepared[0]
                self._touched.add(posixpath.dirname(path))
                yield path, os.stat(name, dir_fd=fd, follow_symlinks=False)

    def discard(self) -> None:
        """Takes away what is prepared and has no place."""
        while self._prepared:
            path, passing, _ = self._prepared.pop()
            with contextlib.suppress(OSError), self._parent(path) as (fd, _):
                os.unlink(passing, dir_fd=fd)

    @property
    def prepared(self) -> int:
        """How many files wait for their place."""
        return len(self._prepared)

    def put_link(
        self, path: str, target: str, dress: Dress, *, instead_of: Expected = ANYTHING
    ) -> os.stat_result:
        """A symbolic link, pointing wherever it says."""

        def make(fd: int, name: str) -> None:
            os.symlink(target, name, dir_fd=fd)
            self._dress_name(path, fd, name, dress._replace(mode=None))

        return self._place(path, make, instead_of)

    def put_name(self, path: str, other: str, *, instead_of: Expected = ANYTHING) -> os.stat_result:
        """One more name (a hard link) for what is at another path."""

        def make(fd: int, name: str) -> None:
            with self._parent(other) as (there, its_name):
                os.link(its_name, name, src_dir_fd=there, dst_dir_fd=fd, follow_symlinks=False)

        return self._place(path, make, instead_of)

    def put_folder(self, path: str, dress: Dress, *, instead_of: Expected = ANYTHING) -> os.stat_result:
        """An empty folder; one that is there already, when anything may be, is only dressed."""
        there = self.look(path) if instead_of == ANYTHING else None
        if there and there.is_folder:
            return self.dress(path, dress)

        def make(fd: int, name: str) -> None:
            os.mkdir(name, 0o700, dir_fd=fd)
            self._dress_name(path, fd, name, dress)

        return self._place(path, make, instead_of)

    def _place(self, path: str, make: Callable[[int, str], None], instead_of: Expected) -> os.stat_result:
        with self._parent(path) as (fd, name):
            passing = _passing_name()
            try:
                make(fd, passing)
                self._take(fd, passing, name, instead_of, path)
            except BaseException:
                copytree.remove_tree(fd, passing)
                raise
            self._touched.add(posixpath.dirname(path))
            return os.stat(name, dir_fd=fd, follow_symlinks=False)

    def _take(self, fd: int, passing: str, name: str, instead_of: Expected, path: str) -> None:
        """Gives something its name, and what has the name now no name any more."""
        if instead_of is None:
            try:
                renameat2(fd, passing, fd, name, RENAME_NOREPLACE)
                return
            except FileExistsError as error:
                raise Moved(path) from error
            except OSError as error:
                if error.errno != errno.EINVAL:  # a file system that cannot: then by looking
                    raise
        there = files.look(f"/proc/self/fd/{fd}/{name}")
        if instead_of != ANYTHING and not is_same(there, instead_of):
            raise Moved(path)
        is_folder = stat.S_ISDIR(os.stat(passing, dir_fd=fd, follow_symlinks=False).st_mode)
        if there is None or not (is_folder or there.is_folder):
            os.rename(passing, name, src_dir_fd=fd, dst_dir_fd=fd)
            return
        if there.is_folder and instead_of == ANYTHING:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)  # it goes only when it is meant
        # A folder takes no other's place in one step: for a moment the name is nobody's.
        aside = _passing_name()
        os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
        try:
            os.rename(passing, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            os.rename(aside, name, src_dir_fd=fd, dst_dir_fd=fd)
            raise
        copytree.remove_tree(fd, aside)

    def dress(self, path: str, dress: Dress, *, instead_of: Expected = ANYTHING) -> os.stat_result:
        """Owner, mode, attributes and times of what is there."""
        with self._parent(path) as (fd, name):
            held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            try:
                there = os.fstat(held)
                if instead_of != ANYTHING and not is_same(files.entry(there), instead_of):
                    raise Moved(path)
                self._dress(path, held, dress._replace(mode=None) if stat.S_ISLNK(there.st_mode) else dress)
                return os.fstat(held)
            finally:
                os.close(held)

    def _dress_name(self, path: str, fd: int, name: str, dress: Dress) -> None:
        held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            self._dress(path, held, dress)
        finally:
            os.close(held)

    def _dress(self, path: str, fd: int, dress: Dress) -> None:
        """In this order, since each of the first two undoes a later one. Through the descriptor: it is what
        was opened, a link itself included, whatever has its name by now."""
        where = f"/proc/self/fd/{fd}"
        if dress.owner is not None:
            os.chown(where, *dress.owner)
        if dress.mode is not None:
            os.chmod(where, stat.S_IMODE(dress.mode))
        if dress.attributes is not None:
            self._set_attributes(path, where, dress.attributes)
        if dress.mtime_ns is not None:
            os.utime(where, ns=(dress.mtime_ns, dress.mtime_ns))

    def _set_attributes(self, path: str, where: str, wanted: Mapping[str, bytes | None]) -> None:
        # What is new has what its folder gives to all that is made in it.
        try:
            inherited = {name: None for name in os.listxattr(where) if name in _INHERITED}
        except OSError:
            inherited = {}
        for name, value in {**inherited, **wanted}.items():
            try:
                if value is None:
                    os.removexattr(where, name)
                else:
                    os.setxattr(where, name, value)
            except OSError as error:
                if value is None:
                    continue
                if error.errno not in _UNWILLING:
                    raise
                self.lost.append((path, name))

    def remove(self, path: str, *, instead_of: Expected = ANYTHING) -> bool:
        """Takes a name away; a folder only when nothing is in it any more. False when there was nothing to
        take, or something is still in it."""
        try:
            with self._parent(path) as (fd, name):
                there = files.look(f"/proc/self/fd/{fd}/{name}")
                if there is None:
                    return False
                if there.is_folder:
                    os.rmdir(name, dir_fd=fd)
                elif instead_of != ANYTHING and not is_same(there, instead_of):
                    raise Moved(path)
                else:
                    os.unlink(name, dir_fd=fd)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        self._touched.add(posixpath.dirname(path))
        return True

    def flush(self) -> None:
        """Lets the names that were given and taken reach the disk."""
        for path in self._touched if self._durable else ():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                fd = openat2(self.fd, path or ".", _LISTED, resolve=_STRAIGHT)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        self._touched.clear()


def is_same(one: Entry | None, other: Entry | None) -> bool:
    """Whether two looks at a place have seen the same, untouched. Of a folder: the same folder, whatever has
    happened in it."""
    if one is None or other is None:
        return one is other
    if one.is_folder and other.is_folder:
        return one.inode == other.inode
    # Not the change time: it moves when another of a file's names is taken.
    return one._replace(links=0, ctime_ns=0) == other._replace(links=0, ctime_ns=0)


def _copy_content(source: int, target: int) -> None:
    if os.fstat(source).st_size:
        copytree.copy_file(source, target, reflink=True)
        return
    with open(target, "wb", closefd=False) as out:
        while part := os.read(source, 1 << 20):  # what the kernel makes up while it is read has no size
            out.write(part)
