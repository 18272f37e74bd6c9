"""Reading root file systems from archives that `docker` and `tar` write, without trusting them.

Three formats, recognized by their content and not by the file's name: a tar of a root file system (`docker
export`), an OCI image layout in a tar or in a folder, and the output of `docker save`; each tar plain or
compressed with gzip, xz, zstd or bzip2. The last two hold layers, which are applied one after the other, and
say with which user, variables and folder programs start.

An archive can come from any source and is unpacked by root. Two things prevent harm. Every path is opened
by the kernel as if the target folder were the root (openat2, RESOLVE_IN_ROOT), so a symbolic link leads to
where it would lead inside a box and never out of it; layered images also need this, because later layers
write through links like `lib -> usr/lib`. And Python's tarfile only reads from a stream that cannot go back
far or return huge pieces, so a forged header causes an error, and neither an endless loop nor unlimited use
of memory.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import hashlib
import importlib
import io
import json
import lzma
import os
import platform
import posixpath
import re
import shutil
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from waypoint.errors import MissingFeature, UsageError
from waypoint.kernel import copytree, userns
from waypoint.kernel.syscalls import RESOLVE_IN_ROOT, openat2
from waypoint.model import ImageConfig

Progress = Callable[[str], None]

CHUNK_BYTES = 1 << 20
MAX_READ_BYTES = 64 << 20
MAX_DOCUMENT_BYTES = 16 << 20
MAX_PARTS = 100_000
MAX_OPEN_PARTS = 512
MAX_MEMBERS = 2_000_000
"""Of an archive, or of all layers of an image: the daemon remembers a little of each."""
MAX_WORD = 128 << 10
MAX_INDEX_DEPTH = 4
MAX_ID = (1 << 32) - 1
_MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
ATTRIBUTE_PREFIX = "SCHILY.xattr."
KEPT_ATTRIBUTES = ("user.", "security.capability", "system.posix_acl_")
"""Other attributes have a meaning on the machine they come from, and `trusted.overlay.*` on every overlay."""
MACHINES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i686": "386",
    "i386": "386",
}

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_IMAGE_FILE = re.compile(
    r"oci-layout|index\.json|manifest\.json|repositories|blobs(/.*)?|[0-9a-f]{64}(/.*|\.json|\.tar)?"
)
_NAMED_CONFIG = re.compile(r"(?:blobs/sha256/)?([0-9a-f]{64})(?:\.json)?")
_NAMED_LAYER = re.compile(r"blobs/sha256/([0-9a-f]{64})")
_DIGEST = re.compile(r"(sha256):([0-9a-f]{64})|(sha512):([0-9a-f]{128})")


def is_kept(attribute: str) -> bool:
    """Whether an extended attribute of a source belongs into a base."""
    return attribute.startswith(KEPT_ATTRIBUTES)


# ---- errors -------------------------------------------------------------------------------------


def import_error(name: str, reason: str) -> UsageError:
    """The error for an archive that cannot be imported."""
    return UsageError(
        f"{name} cannot be imported: {reason}",
        hint="give the output of `docker export` or `docker save`, an OCI image archive, or a tar of a root",
    )


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Turns every error that a damaged archive can cause into one kind. Errors of the disk are not
    changed."""
    try:
        yield
    except UsageError:
        raise
    except EOFError as error:
        raise import_error(name, "it ends too early") from error
    except tarfile.TarError as error:
        raise import_error(name, f"it is damaged or no tar archive ({error})") from error
    except (zlib.error, lzma.LZMAError) as error:
        raise import_error(name, f"its compressed data is damaged ({error})") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise import_error(name, f"it is damaged ({type(error).__name__}: {str(error)[:200]})") from error
    except OSError as error:
        if error.errno is None:
            raise import_error(name, f"its compressed data is damaged ({error})") from error
        if error.errno in {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EFBIG, errno.EINVAL}:
            raise import_error(
                name, f"it holds an invalid path or size ({os.strerror(error.errno)})"
            ) from error
        raise
    except Exception as error:
        if type(error).__name__ == "ZstdError":  # its module is imported only when it is needed
            raise import_error(name, f"its compressed data is damaged ({error})") from error
        raise


# ---- streams ------------------------------------------------------------------------------------


class Stream(Protocol):
    """What a decompressor has to provide."""

    def read(self, size: int = ..., /) -> bytes: ...


class Meter(io.RawIOBase):
    """Reads from a file and reports the progress, at most four times per second."""

    def __init__(self, file: IO[bytes], size_bytes: int, doing: str, progress: Progress) -> None:
        self._file, self._size, self._doing, self._progress = file, size_bytes, doing, progress
        self._done, self._reported_at = 0, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._done += len(data)
        if (now := time.monotonic()) - self._reported_at > 0.25:
            self._reported_at = now
            self._progress(f"{self._doing}, {100 * self._done // max(1, self._size)}%")
        return len(data)


class Window(io.RawIOBase):
    """A range of a file as a file of its own; computes a digest of what is read."""

    def __init__(self, file: IO[bytes], start: int, size_bytes: int, algorithm: str = "sha256") -> None:
        self._fd, self._position, self._end = file.fileno(), start, start + size_bytes
        self.digest = hashlib.new(algorithm)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._fd, min(len(buffer), self._end - self._position), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        self.digest.update(data)
        return len(data)


def compression(start: bytes) -> str:
    """How something that starts with these six bytes is compressed; "" if it is not."""
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), "")


def decompress(raw: io.RawIOBase, name: str) -> Stream:
    """The decompressed content of a stream. Its first bytes tell how it is compressed, if at all."""
    stream = io.BufferedReader(raw, CHUNK_BYTES)
    kind = compression(stream.peek(6)[:6])
    if kind == "gzip":
        return gzip.GzipFile(fileobj=stream, mode="rb")
    if kind == "xz":
        return lzma.LZMAFile(stream)
    if kind == "bzip2":
        return bz2.BZ2File(stream)
    if kind == "zstd":
        try:
            zstandard = importlib.import_module("zstandard")
        except ImportError as error:
            raise MissingFeature(
                f"{name} is compressed with zstd, and Python's zstandard module is not installed",
                hint="install it, or decompress the file first with `zstd -d`",
            ) from error
        reader: Stream = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
        return reader
    return stream


class _ForwardStream:
    """The file that tarfile reads from: it only goes forward, in pieces of a limited size.

    tarfile reads the last byte of a member again before it goes on, so the last block is kept.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._last_block = b""
        self._repeat = 0
        """How many bytes of the last block are to be read again."""
        self._position = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position - self._repeat

    def seek(self, position: int, whence: int = 0) -> int:
        if whence:
            raise tarfile.ReadError("a header with an invalid position")
        back = self._position - position
        if back > len(self._last_block):
            raise tarfile.ReadError("a header that leads backwards")
        self._repeat = max(0, back)
        while self._position < position and self._read_on(min(CHUNK_BYTES, position - self._position)):
            pass
        return self.tell()

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_READ_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        start = len(self._last_block) - self._repeat
        repeated = self._last_block[start:][:size] if self._repeat else b""
        self._repeat -= len(repeated)
        pieces, missing = [repeated], size - len(repeated)
        while missing and (piece := self._read_on(min(CHUNK_BYTES, missing))):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def _read_on(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self._position += len(piece)
        self._last_block = (self._last_block + piece)[-tarfile.BLOCKSIZE :]
        return piece

    def has_end_mark(self) -> bool:
        """Whether the last block was an end mark. A download that was cut off has none."""
        return self._last_block == bytes(tarfile.BLOCKSIZE)


def members(stream: Stream, name: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The members of a tar in their order, once. A member must be read before the next one is taken."""
    forward: Any = _ForwardStream(stream)
    with tarfile.TarFile(fileobj=forward, mode="r", encoding="utf-8", errors="surrogateescape") as tar:
        while member := tar.next():
            cast(Any, tar).members.clear()  # otherwise it keeps all of them in memory
            if member.size < 0:
                raise import_error(name, f"{member.name!r} has a negative size")
            yield tar, member
    # For tarfile a damaged header is the end of the archive; a real end has a mark.
    if not forward.has_end_mark():
        raise import_error(name, "it is cut off or damaged: the end mark is missing")


# ---- unpacking ----------------------------------------------------------------------------------


def path_parts(path: str, name: str) -> list[str]:
    """The components of an archive's path below the root. A path with ".." is refused."""
    if "\0" in path:
        raise import_error(name, f"a name with a NUL byte: {path[:100]!r}")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise import_error(name, f"a path that leads out of it: {path[:200]!r}")
    return parts


class Unpacker:
    """Applies tars to a folder, one after the other. Call `finish` after the last one."""

    def __init__(self, root: Path | int, *, leave: Collection[str] = (), in_userns: bool = False) -> None:
        """`root`: a folder, or a descriptor of one. `leave`: what it has under these names stays as it is.
        `in_userns`: it is one of a box in a user namespace, and the owners are those of the box."""
        self._in_userns = in_userns
        self._root = os.open(root, _FOLDER) if isinstance(root, Path) else os.dup(root)
        self._leave = frozenset(leave)
        self._name = ""
        """The archive or layer that is being applied, for errors."""
        self._placed: set[tuple[int, str]] = set()
        """What it has brought so far: the inode of the folder, and the name. A folder can have many paths."""
        self._folder_times: dict[str, int] = {}
        self._members = 0
        self._parent_parts: list[str] | None = None
        self._parent_fd = -1
        self.skipped_devices = 0
        self.lost_attributes = 0

    def apply(self, stream: Stream, name: str, *, whiteouts: bool) -> int:
        """Unpacks one tar and returns the number of its members. With `whiteouts` it is a layer, which can
        also hide files of the layers below it."""
        self._name = name
        self._placed.clear()
        count = 0
        with reading(name):
            for tar, member in members(stream, name):
                count += 1
                self._members += 1
                if self._members > MAX_MEMBERS:
                    raise import_error(name, f"it has more than {MAX_MEMBERS:,} entries")
                parts = path_parts(member.name, name)
                if parts and parts[0] in self._leave:
                    continue
                if parts and whiteouts and parts[-1].startswith(WHITEOUT):
                    self._hide(parts)
                else:
                    self._place(tar, member, parts)
            while stream.read(CHUNK_BYTES):
                pass  # up to the checksum at the end
        return count

    def finish(self) -> None:
        """Sets the times of folders, which change whenever an entry is added to them."""
        self._close_parent()
        for path, mtime_ns in self._folder_times.items():
            with contextlib.suppress(OSError):  # a later layer has hidden it
                fd = openat2(self._root, path, _FOLDER, resolve=RESOLVE_IN_ROOT)
                try:
                    os.utime(fd, ns=(mtime_ns, mtime_ns))
                finally:
                    os.close(fd)

    def close(self) -> None:
        self._close_parent()
        os.close(self._root)

    # Parent folders

    def _parent(self, parts: list[str]) -> int:
        """The folder of an entry, made if it is missing. It stays open until another one is needed."""
        if parts != self._parent_parts:
            self._close_parent()
            self._parent_fd = self._open_folder(parts)
            self._parent_parts = parts
        return self._parent_fd

    def _close_parent(self) -> None:
        if self._parent_fd >= 0:
            os.close(self._parent_fd)
        self._parent_fd, self._parent_parts = -1, None

    def _open_folder(self, parts: list[str]) -> int:
        known, folder = len(parts), -1
        while folder < 0:
            with contextlib.suppress(FileNotFoundError):
                path = "/".join(parts[:known]) or "."
                folder = openat2(self._root, path, os.O_RDONLY | os.O_DIRECTORY, resolve=RESOLVE_IN_ROOT)
                break
            known -= 1
        for name in parts[known:]:
            parent = folder
            try:
                os.mkdir(name, 0o755, dir_fd=parent)
                if self._in_userns:
                    self._set_owner(parent, name, 0, 0)
                self._note(parent, name)
                folder = os.open(name, _FOLDER, dir_fd=parent)
            except FileExistsError:
                raise import_error(
                    self._name, f"{name!r} is a link to a missing folder, and the archive has files below it"
                ) from None
            finally:
                os.close(parent)
        return folder

    def _note(self, parent: int, name: str) -> None:
        self._placed.add((os.fstat(parent).st_ino, name))

    # Entries

    def _place(self, tar: tarfile.TarFile, member: tarfile.TarInfo, parts: list[str]) -> None:
        if not parts:
            if member.isdir():
                self._set_metadata(self._root, ".", member)
                self._folder_times["."] = self._mtime_ns(member)
            return
        parent, name = self._parent(parts[:-1]), parts[-1]
        if member.islnk():
            self._hard_link(parent, name, member)
            return
        self._make_room(parent, name, for_folder=member.isdir())
        self._note(parent, name)
        if member.isdir():
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
            self._set_metadata(parent, name, member)
            self._folder_times["/".join(parts)] = self._mtime_ns(member)
        elif member.issym():
            if not member.linkname:
                raise import_error(self._name, f"{member.name[:200]!r} is a link without a target")
            os.symlink(member.linkname, name, dir_fd=parent)
            self._set_metadata(parent, name, member)
        elif member.isfifo():
            os.mkfifo(name, 0o600, dir_fd=parent)
            self._set_metadata(parent, name, member)
        elif member.isdev():
            self.skipped_devices += 1
        elif member.isreg():
            self._write_file(tar, member, parent, name)
        elif member.type != b"V":  # the label of a volume
            raise import_error(self._name, f"{member.name[:200]!r} is of an unknown type {member.type!r}")

    def _make_room(self, parent: int, name: str, *, for_folder: bool) -> None:
        """Removes what an entry replaces. Only folders are merged."""
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=parent)
        elif not for_folder:
            copytree.remove_tree(parent, name)

    def _write_file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> None:
        source = tar.extractfile(member)
        assert source is not None
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
        try:
            holes = cast("list[tuple[int, int]] | None", member.sparse)
            ranges = [(0, member.size)] if holes is None else holes
            for start, size in ranges:
                if start < 0 or size < 0 or start + size > member.size:
                    raise import_error(self._name, f"{member.name[:200]!r} has an invalid map of holes")
                source.seek(start)
                os.lseek(fd, start, os.SEEK_SET)
                missing = size
                while missing and (data := source.read(min(CHUNK_BYTES, missing))):
                    missing -= len(data)
                    view = memoryview(data)
                    while view:
                        view = view[os.write(fd, view) :]
                if missing:
                    raise import_error(self._name, f"it ends in the middle of {member.name[:200]!r}")
            if holes is not None:
                os.ftruncate(fd, member.size)
        finally:
            os.close(fd)
        self._set_metadata(parent, name, member)

    def _hard_link(self, parent: int, name: str, member: tarfile.TarInfo) -> None:
        to = path_parts(member.linkname, self._name)
        flags = os.O_PATH | os.O_DIRECTORY
        folder = -1
        try:
            folder = openat2(self._root, "/".join(to[:-1]) or ".", flags, resolve=RESOLVE_IN_ROOT)
            target = os.stat(to[-1] if to else ".", dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(target.st_mode):
                raise import_error(self._name, f"{member.name[:200]!r} is a hard link to a folder")
            if not self._is_same(parent, name, target):
                self._make_room(parent, name, for_folder=False)
                os.link(to[-1], name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
            self._note(parent, name)
        except FileNotFoundError:
            why = f"{member.name[:200]!r} is a hard link to {member.linkname[:200]!r}, which does not exist"
            raise import_error(self._name, why) from None
        finally:
            if folder >= 0:
                os.close(folder)

    @staticmethod
    def _is_same(parent: int, name: str, other: os.stat_result) -> bool:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            return (status.st_dev, status.st_ino) == (other.st_dev, other.st_ino)
        return False

    def _set_metadata(self, parent: int, name: str, member: tarfile.TarInfo) -> None:
        """Owner, mode, attributes, times: in this order, because setting one of the first two resets later
        ones."""
        if not (0 <= member.uid < MAX_ID and 0 <= member.gid < MAX_ID):
            raise import_error(self._name, f"{member.name[:200]!r} has an invalid owner")
        self._set_owner(parent, name, member.uid, member.gid)
        if not member.issym():
            os.chmod(name, member.mode & 0o7777, dir_fd=parent)
        for key, value in member.pax_headers.items():
            attribute = key.removeprefix(ATTRIBUTE_PREFIX)
            if attribute != key and is_kept(attribute):
                self._set_attribute(copytree.below(parent, name), attribute, value)
        mtime_ns = self._mtime_ns(member)
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)

    def _set_owner(self, parent: int, name: str, uid: int, gid: int) -> None:
        if self._in_userns:
            uid, gid = userns.to_host(uid), userns.to_host(gid)
        os.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False)

    def _set_attribute(self, path: str, attribute: str, value: str) -> None:
        content = value.encode("utf-8", "surrogateescape")
        if self._in_userns:
            content = userns.attribute_to_host(attribute, content)
        try:
            os.setxattr(path, attribute, content, follow_symlinks=False)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL}:
                raise
            self.lost_attributes += 1

    @staticmethod
    def _mtime_ns(member: tarfile.TarInfo) -> int:
        try:
            return int(Decimal(member.pax_headers.get("mtime", member.mtime)) * 10**9)
        except InvalidOperation as error:
            raise ValueError("an invalid time") from error

    # Whiteouts

    def _hide(self, parts: list[str]) -> None:
        """Removes what a whiteout names from the layers below. Files of the same layer stay."""
        parent, name = self._parent(parts[:-1]), parts[-1]
        if name == OPAQUE:
            self._prune(parent)
        elif not name.startswith(WHITEOUT * 2):  # other names of that form are aufs's own
            hidden = name.removeprefix(WHITEOUT)
            if hidden in {"", ".", ".."}:
                raise import_error(self._name, f"a whiteout of nothing: {'/'.join(parts)[:200]!r}")
            if (os.fstat(parent).st_ino, hidden) not in self._placed:
                copytree.remove_tree(parent, hidden)

    def _prune(self, folder: int) -> None:
        inode = os.fstat(folder).st_ino
        for name in os.listdir(folder):
            if (inode, name) not in self._placed:
                copytree.remove_tree(folder, name)
            elif stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                inner = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    self._prune(inner)
                finally:
                    os.close(inner)


# ---- images -------------------------------------------------------------------------------------


class Parts(Protocol):
    """The files of an image, which can be read by name and in any order."""

    name: str

    def has(self, part: str) -> bool:
        """Whether there is a part of that name."""

    def open(self, part: str, digest: str = "") -> Window:
        """One part of it. Its digest is computed with the algorithm that `digest` names."""

    def size_of(self, part: str) -> int: ...


class TarParts:
    """The parts in an uncompressed tar."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self.name = name
        self._ranges: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        file.seek(0)
        with reading(name):
            for _, member in members(file, name):
                part = "/".join(path_parts(member.name, name))
                if member.isreg():
                    self._ranges[part] = (member.offset_data, member.size)
                elif member.issym():
                    target = posixpath.join(posixpath.dirname(part), member.linkname)
                    self._links[part] = posixpath.normpath(target)
                elif member.islnk():
                    self._links[part] = posixpath.normpath(member.linkname)
                if len(self._ranges) + len(self._links) > MAX_PARTS:
                    raise import_error(name, "it has too many parts for an image")

    def has(self, part: str) -> bool:
        return part in self._ranges

    def open(self, part: str, digest: str = "") -> Window:
        for _ in range(8):
            if part in self._ranges:
                start, size = self._ranges[part]
                return Window(self._file, start, size, digest.partition(":")[0] or "sha256")
            part = self._links.get(part, "")
        raise _missing(self.name, digest or part)

    def size_of(self, part: str) -> int:
        return self._ranges.get(part, (0, 0))[1]


class FolderParts:
    """The parts in a folder, an OCI image layout. No path leads out of it, whatever links it has. A part
    stays open until all of them are closed."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name or str(folder)
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._open: dict[str, IO[bytes]] = {}

    def has(self, part: str) -> bool:
        return self._find(part) is not None

    def open(self, part: str, digest: str = "") -> Window:
        if (file := self._find(part)) is None:
            raise _missing(self.name, digest or part)
        return Window(file, 0, os.fstat(file.fileno()).st_size, digest.partition(":")[0] or "sha256")

    def size_of(self, part: str) -> int:
        file = self._find(part)
        return os.fstat(file.fileno()).st_size if file else 0

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        os.close(self._root)

    def _find(self, part: str) -> IO[bytes] | None:
        if part not in self._open:
            with reading(self.name):
                try:  # without waiting, in case it is a pipe
                    fd = openat2(self._root, part, os.O_RDONLY | os.O_NONBLOCK, resolve=RESOLVE_IN_ROOT)
                except FileNotFoundError:
                    return None
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                return None
            if len(self._open) > MAX_OPEN_PARTS:
                os.close(fd)
                raise import_error(self.name, "it has too many parts for an image")
            self._open[part] = os.fdopen(fd, "rb")
        return self._open[part]


def _missing(name: str, part: str) -> UsageError:
    return import_error(name, f"a part of the image is missing: {part[:100]}")


class Image:
    """An image in either format: its layers, and what its programs are started with."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.name = parts.name
        self.layers: list[tuple[str, str]] = []
        """Lowest first: (name of the part, digest or "")."""
        self.config = ImageConfig()
        with reading(self.name):
            try:
                if self.format == "oci":
                    self._read_oci()
                elif self.format:
                    self._read_saved()
            except (KeyError, TypeError, AttributeError) as error:
                raise import_error(
                    self.name, f"its description of the image cannot be read ({error!r})"
                ) from error

    @property
    def format(self) -> str:
        """ "oci", "docker-save", or "" if it is no image."""
        if self._parts.has("oci-layout") and self._parts.has("index.json"):
            return "oci"
        return "docker-save" if self._parts.has("manifest.json") else ""

    def open(self, part: str, digest: str = "") -> Window:
        return self._parts.open(part, digest)

    def size_of(self, part: str) -> int:
        return self._parts.size_of(part)

    def _document(self, part: str, digest: str = "") -> Any:
        window = self.open(part, digest)
        with io.BufferedReader(window) as stream:
            text = stream.read(MAX_DOCUMENT_BYTES + 1)
        if len(text) > MAX_DOCUMENT_BYTES:
            raise import_error(self.name, f"{part[:100]} is too large for a description")
        self.check(window, digest)
        return json.loads(text)

    def check(self, window: Window, digest: str) -> None:
        """Raises if a part that has been read to its end does not match its digest."""
        if digest and window.digest.hexdigest() != digest.partition(":")[2]:
            raise import_error(self.name, f"a part of it is damaged: {digest} does not match its content")

    def _blob(self, descriptor: Any) -> tuple[str, str]:
        digest = str(descriptor["digest"])
        if not _DIGEST.fullmatch(digest):
            raise import_error(self.name, f"a digest in an unknown format: {digest[:100]!r}")
        return f"blobs/{digest.replace(':', '/')}", digest

    def _read_oci(self) -> None:
        chosen = self._choose(self._document("index.json"), depth=0)
        manifest = self._document(*self._blob(chosen))
        if "layers" not in manifest:
            raise import_error(
                self.name,
                f"it holds not an image but a {manifest.get('mediaType') or 'manifest without layers'}",
            )
        if "config" in manifest:
            self._read_config(self._document(*self._blob(manifest["config"])))
        if encrypted := [
            layer["mediaType"] for layer in manifest["layers"] if "encrypted" in layer.get("mediaType", "")
        ]:
            raise import_error(self.name, f"its layers are encrypted ({encrypted[0]})")
        self.layers = [self._blob(layer) for layer in manifest["layers"]]

    def _choose(self, index: Any, *, depth: int) -> Any:
        """The manifest for this machine, also through indexes of indexes."""
        if depth > MAX_INDEX_DEPTH:
            raise import_error(self.name, "its indexes are nested too deeply")
        own = machine()
        fitting: list[tuple[str, Any]] = []
        others: list[tuple[str, Any]] = []
        for descriptor in index["manifests"]:
            about = descriptor.get("platform") or {}
            its = f"{about.get('os') or 'linux'}/{about.get('architecture') or own}"
            if (
                "vnd.docker.reference.type" in (descriptor.get("annotations") or {})
                or its == "unknown/unknown"
            ):
                continue  # a signature or a bill of materials
            (fitting if its == f"linux/{own}" else others).append((its, descriptor))
        if not fitting:
            platforms = ", ".join(sorted({its for its, _ in others})) or "no platform"
            raise import_error(self.name, f"it has no image for linux/{own}, only for {platforms}")
        names = [self._image_name(descriptor) for _, descriptor in fitting]
        if depth == 0 and len({str(descriptor["digest"]) for _, descriptor in fitting}) > 1:
            raise import_error(self.name, f"it holds several images ({', '.join(names)}): save one of them")
        chosen = fitting[0][1]
        document = self._document(*self._blob(chosen))
        if "manifests" in document and "layers" not in document:
            return self._choose(document, depth=depth + 1)
        return chosen

    @staticmethod
    def _image_name(descriptor: Any) -> str:
        notes = descriptor.get("annotations") or {}
        for key in ("io.containerd.image.name", "org.opencontainers.image.ref.name"):
            if key in notes:
                return str(notes[key])
        return str(descriptor["digest"])[:19]

    def _read_saved(self) -> None:
        images = self._document("manifest.json")
        if len(images) != 1:
            names = ", ".join(str((image.get("RepoTags") or ["unnamed"])[0]) for image in images) or "none"
            raise import_error(self.name, f"it holds several images or none ({names}): save one of them")
        layers = ["/".join(path_parts(layer, self.name)) for layer in images[0]["Layers"]]
        digests: list[Any] = []
        if images[0].get("Config"):
            part = "/".join(path_parts(images[0]["Config"], self.name))
            named = _NAMED_CONFIG.fullmatch(part)
            document = self._document(part, f"sha256:{named[1]}" if named else "")
            self._read_config(document)
            digests = (document.get("rootfs") or {}).get("diff_ids") or []
        if len(digests) != len(layers):
            digests = [""] * len(layers)
        self.layers = [
            (layer, self._saved_digest(layer, str(digest)))
            for layer, digest in zip(layers, digests, strict=True)
        ]

    def _saved_digest(self, layer: str, digest: str) -> str:
        """What can be compared with a layer as it is in the archive: the image's own digests are those of
        plain tars."""
        if named := _NAMED_LAYER.fullmatch(layer):
            return f"sha256:{named[1]}"
        if not _DIGEST.fullmatch(digest) or not self._parts.has(layer):
            return ""
        with io.BufferedReader(self.open(layer)) as start:
            return "" if compression(start.peek(6)[:6]) else digest

    def _read_config(self, document: Any) -> None:
        its = f"{document.get('os') or 'linux'}/{document.get('architecture') or machine()}"
        if its != f"linux/{machine()}":
            raise import_error(self.name, f"it is an image for {its}, and this machine is linux/{machine()}")
        said = document.get("config") or {}
        self.config = ImageConfig(
            env=dict(map(self._variable, self._words("Env", said.get("Env")))),
            user=self._word("User", said.get("User") or ""),
            workdir=self._folder(said.get("WorkingDir") or ""),
            entrypoint=self._words("Entrypoint", said.get("Entrypoint")),
            command=self._words("Cmd", said.get("Cmd")),
            ports=self._words("ExposedPorts", sorted(said.get("ExposedPorts") or ())),
            labels={
                self._word("Labels", key): self._word("Labels", value)
                for key, value in (said.get("Labels") or {}).items()
            },
        )

    def _variable(self, word: str) -> tuple[str, str]:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise import_error(self.name, f"its Env has no variable: {word[:100]!r}")
        return name, value

    def _folder(self, word: Any) -> str:
        path = "/".join(path_parts(self._word("WorkingDir", word), self.name))
        return f"/{path}" if path or word else ""

    def _words(self, field: str, words: Any) -> tuple[str, ...]:
        if words is not None and not isinstance(words, list):
            raise import_error(self.name, f"its {field} is no list")
        return tuple(self._word(field, word) for word in words or ())

    def _word(self, field: str, word: Any) -> str:
        if not isinstance(word, str) or "\0" in word or len(word) > MAX_WORD:
            raise import_error(self.name, f"its {field} holds an invalid word: {str(word)[:100]!r}")
        return word


def machine() -> str:
    """This machine's architecture, as image manifests name it."""
    name = platform.machine()
    return MACHINES.get(name, name)


# ---- unpacking of any format --------------------------------------------------------------------


class Unpacked(NamedTuple):
    """What was unpacked."""

    format: str
    """"tar", "oci" or "docker-save"."""
    config: ImageConfig = ImageConfig()


def _looks_like_an_image(stream: Stream, name: str) -> bool:
    with reading(name):
        for _, member in members(stream, name):
            if parts := path_parts(member.name, name):
                return bool(_IMAGE_FILE.fullmatch("/".join(parts)))
    raise import_error(name, "it is empty")


def unpack(source: Path, unpacker: Unpacker, spool: Path, progress: Progress) -> Unpacked:
    """Unpacks an archive, or a folder with an OCI image layout.

    A compressed image archive is decompressed into an unnamed file in `spool`, because its parts are not in
    the order in which they are needed.
    """
    if source.is_dir():
        with contextlib.closing(FolderParts(source)) as parts:
            return _unpack_image(Image(parts), unpacker, progress)
    name = source.name
    size = source.stat().st_size

    with source.open("rb") as raw:

        def stream(doing: str) -> Stream:
            raw.seek(0)
            return decompress(Meter(raw, size, doing, progress), name)

        if _looks_like_an_image(stream(f"reading {name}"), name):
            with contextlib.ExitStack() as stack:
                whole: IO[bytes] = raw
                if isinstance(found := stream(f"decompressing {name}"), io.BufferedReader):
                    found.detach()
                else:
                    whole = stack.enter_context(tempfile.TemporaryFile(dir=spool))
                    with reading(name):
                        shutil.copyfileobj(found, whole, CHUNK_BYTES)
                    whole.flush()
                image = Image(TarParts(whole, name))
                if image.format:
                    return _unpack_image(image, unpacker, progress)
        unpacker.apply(stream(f"unpacking {name}"), name, whiteouts=False)
        return Unpacked("tar")


def is_image_folder(folder: Path) -> bool:
    """Whether a folder is an OCI image layout, and not a root file system."""
    return (folder / "oci-layout").is_file() and (folder / "index.json").is_file()


def _unpack_image(image: Image, unpacker: Unpacker, progress: Progress) -> Unpacked:
    """Applies an image's layers."""
    if not image.layers:
        raise import_error(image.name, "the image has no layers")
    for number, (part, digest) in enumerate(image.layers, 1):
        window = image.open(part, digest)
        label = f"layer {number} of {image.name}"
        doing = f"unpacking {label} ({len(image.layers)} in all)"
        meter = Meter(io.BufferedReader(window, CHUNK_BYTES), image.size_of(part), doing, progress)
        with reading(label):
            unpacker.apply(decompress(meter, image.name), label, whiteouts=True)
            while meter.read(CHUNK_BYTES):
                pass  # the rest is part of the digest too
        image.check(window, digest)
    return Unpacked(image.format, image.config)
