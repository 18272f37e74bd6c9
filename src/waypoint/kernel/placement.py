"""Files put in place below a folder whose content is not trusted.

The tree of a box is controlled by the programs in it, and a folder of the host may hold links that came out
of a box. A path that is looked up by name there can be made to lead anywhere, between the check and the use
at the latest. So a folder is held by its descriptor, and what is below it is reached by one call in which
the kernel refuses every symbolic link on the way (openat2). Only the last name is left, and it is never
followed.

For a live box that descriptor is /proc/KEEPER/root: its root as it is mounted there, with binds and masks.
Of a box in a user namespace the kernel tells the host's ids, which are translated here: owners, and the
users of access control lists, are those of the box on the way in and out.

The alternative is a thread that enters the box's mount namespace. There everything that the interpreter
looks up by itself (a module that is imported late, a codec, a time zone) would come from the box: foreign
code in the daemon. With descriptors only the paths that are named here are looked up in the box.

No existing file is ever opened for writing: content is written to a temporary name in the same folder,
complete with owner, mode and attributes, and takes its place by one rename. So a reader sees the old file or
the new one. A link or a device in the place of a file is replaced and not written through. A crash leaves at
worst a `.waypoint-…` beside an unchanged file.
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
from typing import Final, Literal, NamedTuple, Protocol, Self

from waypoint.kernel import copytree, files, userns
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
"""What has to be in a place for it to be replaced: a certain file, nothing, or anything."""

_HELD = os.O_PATH | os.O_DIRECTORY
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STRAIGHT = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_MAX_LINKS = 40
_INHERITED = ("system.posix_acl_access", "system.posix_acl_default")
_REFUSALS = frozenset({errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL, errno.ENODATA, errno.E2BIG, errno.ENOSPC})


class PlaceChanged(Exception):
    """Raised when a place no longer holds what was expected there. Nothing was changed in it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Metadata(NamedTuple):
    """What a file has apart from its content; None leaves a field as it is, or as the kernel sets it."""

    mode: int | None = None
    owner: tuple[int, int] | None = None
    attributes: Mapping[str, bytes | None] | None = None
    """Extended attributes; a value of None removes one."""
    mtime_ns: int | None = None


class Node(NamedTuple):
    """A file, folder or other entry of a tree that is being read."""

    path: str
    """Relative to where the walk began; empty for that itself."""
    entry: Entry
    where: str
    """A path by which this process can look at it, until the next node is taken."""
    data: str
    """The same for the bytes of a regular file."""


class _Prepared(NamedTuple):
    """A file that is complete but for its name."""

    path: str
    name: str
    instead_of: Expected


def _temporary_name() -> str:
    return f".waypoint-{secrets.token_hex(8)}"


class RunningBox(Protocol):
    """A box (box.box.Box), as far as it is needed here."""

    pid: int
    userns: bool


class Folder:
    """A folder, held by its descriptor. Paths are relative to it, without `.` and `..`."""

    def __init__(self, fd: int, *, durable: bool = False, in_userns: bool = False) -> None:
        self.fd = fd
        self.in_userns = in_userns
        """Whether it is one of a box in a user namespace: then the kernel tells the host's ids."""
        self._durable = durable
        self._prepared: list[_Prepared] = []
        self._touched: set[str] = set()
        self.lost: list[tuple[str, str]] = []
        """Extended attributes that this file system refused: path and name."""

    @classmethod
    def open(cls, path: str | Path, *, durable: bool = False) -> Folder:
        """`durable`: content is on the disk before it gets its name, and the name after `flush`."""
        return cls(os.open(path, _HELD | os.O_CLOEXEC), durable=durable)

    @classmethod
    def root_of(cls, pid: int) -> Folder:
        """The root folder of a process."""
        return cls.open(f"/proc/{pid}/root")

    @classmethod
    def root_of_box(cls, box: RunningBox) -> Folder:
        """The root of a box, as it is mounted there."""
        return cls(os.open(f"/proc/{box.pid}/root", _HELD | os.O_CLOEXEC), in_userns=box.userns)

    def enter(self, path: str, *, durable: bool = False) -> Folder:
        """A folder as a process finds it that has this one as its root: links are followed, and stay
        inside."""
        how = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
        fd = openat2(self.fd, path or "/", _HELD, resolve=how)
        return Folder(fd, durable=durable, in_userns=self.in_userns)

    def destination(self, path: str) -> tuple[Folder, str]:
        """Where a new file of this path belongs: its folder, and its name there. Links are followed as in
        `enter`, also one that the path ends in."""
        for _ in range(_MAX_LINKS):
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

    def open_file(self, path: str) -> int:
        """A descriptor for reading a regular file. Links are followed as in `enter`. What is there is looked
        at before it is opened: opening a pipe or a device does something to it."""
        how = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
        held = openat2(self.fd, path, os.O_PATH | os.O_CLOEXEC, resolve=how)
        try:
            mode = os.fstat(held).st_mode
            if not stat.S_ISREG(mode):
                number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
                raise OSError(number, os.strerror(number), path)
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{held}", flags)
        finally:
            os.close(held)

    def path(self) -> str:
        """Its path without links, as this process sees it."""
        return os.readlink(f"/proc/self/fd/{self.fd}")

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
        """The folder of a path, held by a descriptor, and the name in it. OSError unless the path consists of
        folders alone: ELOOP says that a link is in it."""
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
        """A path by which this process can look at what is there. It is valid during the block, and must
        not be used in a way that follows a link."""
        with self._parent(path) as (fd, name):
            yield f"/proc/self/fd/{fd}/{name}"

    def look(self, path: str) -> Entry | None:
        """What is at a path; None when there is nothing. OSError when a link is on the way."""
        try:
            with self.at(path) as where:
                return self.look_at(where)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def look_at(self, where: str) -> Entry | None:
        """What is at a path that `at` has given; None when there is nothing."""
        present = files.look(where)
        return present and self._inner(present)

    def attributes_at(self, where: str) -> dict[str, bytes]:
        """The extended attributes of what is at such a path."""
        found = files.attributes(where)
        if self.in_userns:
            found = {name: userns.attribute_to_inner(name, value) for name, value in found.items()}
        return found

    def _inner(self, present: Entry) -> Entry:
        if not self.in_userns:
            return present
        return present._replace(uid=userns.to_inner(present.uid), gid=userns.to_inner(present.gid))

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted; none when it is not a folder. An empty path is this folder
        itself."""
        try:
            fd = openat2(self.fd, path or ".", _LISTED, resolve=_STRAIGHT)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def walk(self, path: str) -> Iterator[Node]:
        """What is at a path and all below it, parents first. An empty path is this folder itself. Entries
        that are removed meanwhile are left out."""
        waiting = [""]
        while waiting:
            inside = waiting.pop()
            here = "/".join(filter(None, (path, inside)))
            is_folder = not here
            if here:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError), self.at(here) as where:
                    if entry := self.look_at(where):
                        is_folder = entry.is_folder
                        yield Node(inside, entry, where, where)
            else:
                where = f"/proc/self/fd/{self.fd}/."
                yield Node("", self._inner(files.entry(os.fstat(self.fd))), where, where)
            if is_folder:
                waiting += [f"{inside}/{name}".lstrip("/") for name in reversed(self.names(here))]

    # ---- placing -----------------------------------------------------------------------------

    def put_file(
        self, path: str, source: str, metadata: Metadata, *, instead_of: Expected = ANYTHING
    ) -> os.stat_result:
        """A regular file with the content of another. Returns what it is now."""
        try:
            self.prepare_file(path, source, metadata, instead_of=instead_of)
            *_, (_, status) = self.commit()
        except BaseException:
            self.discard()
            raise
        return status

    def prepare_file(
        self, path: str, source: str, metadata: Metadata, *, instead_of: Expected = ANYTHING
    ) -> None:
        """The same without the last step: `commit` renames all prepared files, `discard` removes them."""
        content = files.open_file(source)
        try:
            self._prepare(path, metadata, instead_of, lambda target: _copy_content(content, target))
        finally:
            os.close(content)

    def put_bytes(
        self, path: str, data: bytes, metadata: Metadata, *, instead_of: Expected = ANYTHING
    ) -> os.stat_result:
        """A regular file with this content. Returns what it is now."""

        def fill(target: int) -> None:
            with open(target, "wb", closefd=False) as out:
                out.write(data)

        try:
            self._prepare(path, metadata, instead_of, fill)
            *_, (_, status) = self.commit()
        except BaseException:
            self.discard()
            raise
        return status

    def _prepare(
        self, path: str, metadata: Metadata, instead_of: Expected, fill: Callable[[int], None]
    ) -> None:
        with self._parent(path) as (fd, _):
            prepared = _Prepared(path, _temporary_name(), instead_of)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            target = os.open(prepared.name, flags, 0o600, dir_fd=fd)
            try:
                self._prepared.append(prepared)
                fill(target)
                self._set_metadata(path, target, self._owned(metadata))
            finally:
                os.close(target)

    def commit(self) -> Iterator[tuple[str, os.stat_result]]:
        """Renames the prepared files into place, one by one, and yields what each is now. Where it has to be
        durable all of them are written to the disk first, by one call."""
        if self._durable and self._prepared:
            fd = openat2(self.fd, ".", _LISTED, resolve=_STRAIGHT)
            try:
                syncfs(fd)
            finally:
                os.close(fd)
        while self._prepared:
            path, temporary, instead_of = self._prepared[0]
            with self._parent(path) as (fd, name):
                self._take(fd, temporary, name, instead_of, path)
                del self._prepared[0]
                self._touched.add(posixpath.dirname(path))
                yield path, os.stat(name, dir_fd=fd, follow_symlinks=False)

    def discard(self) -> None:
        """Removes the files that are prepared and not in place."""
        while self._prepared:
            path, temporary, _ = self._prepared.pop()
            with contextlib.suppress(OSError), self._parent(path) as (fd, _):
                os.unlink(temporary, dir_fd=fd)

    @property
    def prepared(self) -> int:
        """How many files are prepared."""
        return len(self._prepared)

    def put_link(
        self, path: str, target: str, metadata: Metadata, *, instead_of: Expected = ANYTHING
    ) -> os.stat_result:
        """A symbolic link with any target."""

        def make(fd: int, name: str) -> None:
            os.symlink(target, name, dir_fd=fd)
            self._set_metadata_at(path, fd, name, self._owned(metadata)._replace(mode=None))

        return self._place(path, make, instead_of)

    def put_name(self, path: str, other: str, *, instead_of: Expected = ANYTHING) -> os.stat_result:
        """One more name (a hard link) for what is at another path."""

        def make(fd: int, name: str) -> None:
            with self._parent(other) as (other_fd, its_name):
                os.link(its_name, name, src_dir_fd=other_fd, dst_dir_fd=fd, follow_symlinks=False)

        return self._place(path, make, instead_of)

    def put_folder(self, path: str, metadata: Metadata, *, instead_of: Expected = ANYTHING) -> os.stat_result:
        """An empty folder. One that exists already only gets the metadata, when anything may be there."""
        present = self.look(path) if instead_of == ANYTHING else None
        if present and present.is_folder:
            return self.set_metadata(path, metadata)

        def make(fd: int, name: str) -> None:
            os.mkdir(name, 0o700, dir_fd=fd)
            self._set_metadata_at(path, fd, name, self._owned(metadata))

        return self._place(path, make, instead_of)

    def _place(self, path: str, make: Callable[[int, str], None], instead_of: Expected) -> os.stat_result:
        with self._parent(path) as (fd, name):
            temporary = _temporary_name()
            try:
                make(fd, temporary)
                self._take(fd, temporary, name, instead_of, path)
            except BaseException:
                copytree.remove_tree(fd, temporary)
                raise
            self._touched.add(posixpath.dirname(path))
            return os.stat(name, dir_fd=fd, follow_symlinks=False)

    def _take(self, fd: int, temporary: str, name: str, instead_of: Expected, path: str) -> None:
        """Renames a temporary file into place, and removes what is there now."""
        if instead_of is None:
            try:
                renameat2(fd, temporary, fd, name, RENAME_NOREPLACE)
                return
            except FileExistsError as error:
                raise PlaceChanged(path) from error
            except OSError as error:
                if error.errno != errno.EINVAL:  # not supported by this file system: look instead
                    raise
        present = self.look_at(f"/proc/self/fd/{fd}/{name}")
        if instead_of != ANYTHING and not is_same(present, instead_of):
            raise PlaceChanged(path)
        is_folder = stat.S_ISDIR(os.stat(temporary, dir_fd=fd, follow_symlinks=False).st_mode)
        if present is None or not (is_folder or present.is_folder):
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
            return
        if present.is_folder and instead_of == ANYTHING:
            # A folder is removed only when the caller names it.
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        # rename(2) does not replace a folder that has content: for a moment nothing has the name.
        aside = _temporary_name()
        os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
        try:
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            os.rename(aside, name, src_dir_fd=fd, dst_dir_fd=fd)
            raise
        copytree.remove_tree(fd, aside)

    def set_metadata(
        self, path: str, metadata: Metadata, *, instead_of: Expected = ANYTHING
    ) -> os.stat_result:
        """Sets owner, mode, attributes and times of what is there."""
        with self._parent(path) as (fd, name):
            held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            try:
                present = os.fstat(held)
                if instead_of != ANYTHING and not is_same(self._inner(files.entry(present)), instead_of):
                    raise PlaceChanged(path)
                if stat.S_ISLNK(present.st_mode):
                    metadata = metadata._replace(mode=None)
                self._set_metadata(path, held, metadata)
                return os.fstat(held)
            finally:
                os.close(held)

    def _owned(self, metadata: Metadata) -> Metadata:
        """What is new belongs to root if it has no other owner: in a user namespace too."""
        if self.in_userns and metadata.owner is None:
            return metadata._replace(owner=(0, 0))
        return metadata

    def _set_metadata_at(self, path: str, fd: int, name: str, metadata: Metadata) -> None:
        held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            self._set_metadata(path, held, metadata)
        finally:
            os.close(held)

    def _set_metadata(self, path: str, fd: int, metadata: Metadata) -> None:
        """In this order, since each of the first two undoes a later one. Through the descriptor: it is the
        file that was opened, a link itself included, whatever has its name by now."""
        where = f"/proc/self/fd/{fd}"
        if metadata.owner is not None:
            owner = metadata.owner
            os.chown(where, *(map(userns.to_host, owner) if self.in_userns else owner))
        if metadata.mode is not None:
            os.chmod(where, stat.S_IMODE(metadata.mode))
        if metadata.attributes is not None:
            self._set_attributes(path, where, metadata.attributes)
        if metadata.mtime_ns is not None:
            os.utime(where, ns=(metadata.mtime_ns, metadata.mtime_ns))

    def _set_attributes(self, path: str, where: str, wanted: Mapping[str, bytes | None]) -> None:
        # A new file has the ACLs that its folder hands down.
        try:
            inherited = {name: None for name in os.listxattr(where) if name in _INHERITED}
        except OSError:
            inherited = {}
        for name, value in {**inherited, **wanted}.items():
            try:
                if value is None:
                    os.removexattr(where, name)
                else:
                    in_kernel = userns.attribute_to_host(name, value) if self.in_userns else value
                    os.setxattr(where, name, in_kernel)
            except OSError as error:
                if value is None:
                    continue
                if error.errno not in _REFUSALS:
                    raise
                self.lost.append((path, name))

    def remove(self, path: str, *, instead_of: Expected = ANYTHING) -> bool:
        """Removes a name; a folder only when it is empty. False when there was nothing, or the folder is not
        empty."""
        try:
            with self._parent(path) as (fd, name):
                present = self.look_at(f"/proc/self/fd/{fd}/{name}")
                if present is None:
                    return False
                if present.is_folder:
                    os.rmdir(name, dir_fd=fd)
                elif instead_of != ANYTHING and not is_same(present, instead_of):
                    raise PlaceChanged(path)
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
        """Writes the names that were made and removed to the disk (fsync of their folders)."""
        for path in self._touched if self._durable else ():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                fd = openat2(self.fd, path or ".", _LISTED, resolve=_STRAIGHT)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        self._touched.clear()


def is_same(one: Entry | None, other: Entry | None) -> bool:
    """Whether two looks at a place have seen the same unchanged file. Of a folder: the same folder, whatever
    its content."""
    if one is None or other is None:
        return one is other
    if one.is_folder and other.is_folder:
        return one.inode == other.inode
    # Not the change time: it changes when another name of the file is removed.
    return one._replace(links=0, ctime_ns=0) == other._replace(links=0, ctime_ns=0)


def _copy_content(source: int, target: int) -> None:
    if os.fstat(source).st_size:
        copytree.copy_file(source, target, reflink=True)
        return
    with open(target, "wb", closefd=False) as out:
        while part := os.read(source, 1 << 20):  # files of /proc and the like have no size
            out.write(part)
