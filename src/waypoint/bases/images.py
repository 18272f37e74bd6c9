"""Root file systems out of archives: reading what `docker` and `tar` write, and trusting none of it.

Three formats, told apart by what is in the file and not by its name: a tar of a root file system (what
`docker export` writes), an OCI image layout in a tar, and what `docker save` writes; each plain or
compressed with gzip, xz, zstd or bzip2. The last two hold layers, which are applied one upon the other.

An archive comes from anywhere and is unpacked by root. Two things keep it in its place. Every path is
opened by the kernel as if the target folder were the root (openat2, RESOLVE_IN_ROOT), so a symbolic link
leads to where it would lead inside a box and never out of it; this is also what layered images rely on,
whose later layers write through links like `lib -> usr/lib`. And Python's tarfile only ever sees a stream
that cannot be wound back or read in huge pieces, so a forged header ends in an error and not in an endless
loop or all of the memory.
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
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any, Protocol, cast

from waypoint.errors import MissingFeature, UsageError
from waypoint.kernel import copytree
from waypoint.kernel.syscalls import RESOLVE_IN_ROOT, openat2

Progress = Callable[[str], None]

CHUNK = 1 << 20
LARGEST_READ = 64 << 20
LARGEST_DOCUMENT = 16 << 20
MOST_INDEXED = 100_000
DEEPEST_INDEX = 4
LAST_ID = (1 << 32) - 1
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
ATTRIBUTE_PREFIX = "SCHILY.xattr."
KEPT_ATTRIBUTES = ("user.", "security.capability", "system.posix_acl_")
"""Others mean something to the machine they come from, and `trusted.overlay.*` to every overlay."""
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
_DIGEST = re.compile(r"(sha256):([0-9a-f]{64})|(sha512):([0-9a-f]{128})")


def is_kept(attribute: str) -> bool:
    """Whether an extended attribute of a source belongs into a base."""
    return attribute.startswith(KEPT_ATTRIBUTES)


# ---- what can be wrong --------------------------------------------------------------------------


def bad(what: str, why: str) -> UsageError:
    """The error for an archive that cannot be used as it is."""
    return UsageError(
        f"{what} cannot be imported: {why}",
        hint="it takes what `docker export` or `docker save` write, an OCI image archive, or a tar of a root",
    )


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns whatever a reader stumbles over into one error. Errors of the disk stay what they are."""
    try:
        yield
    except UsageError:
        raise
    except EOFError as error:
        raise bad(what, "it ends too early") from error
    except tarfile.TarError as error:
        raise bad(what, f"it is damaged or no tar archive ({error})") from error
    except (zlib.error, lzma.LZMAError) as error:
        raise bad(what, f"its compressed data is damaged ({error})") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise bad(what, f"it is damaged ({type(error).__name__}: {str(error)[:200]})") from error
    except OSError as error:
        if error.errno is None:
            raise bad(what, f"its compressed data is damaged ({error})") from error
        if error.errno in {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EFBIG, errno.EINVAL}:
            raise bad(what, f"it holds an impossible path or size ({os.strerror(error.errno)})") from error
        raise
    except Exception as error:
        if type(error).__name__ == "ZstdError":  # of a module that is imported only when it is needed
            raise bad(what, f"its compressed data is damaged ({error})") from error
        raise


# ---- streams ------------------------------------------------------------------------------------


class Stream(Protocol):
    """All that is asked of a decompressor."""

    def read(self, size: int = ..., /) -> bytes: ...


class Meter(io.RawIOBase):
    """Reads from a file and tells how far it is, a few times per second at most."""

    def __init__(self, file: IO[bytes], size_bytes: int, doing: str, progress: Progress) -> None:
        self._file, self._size, self._doing, self._progress = file, size_bytes, doing, progress
        self._done, self._said = 0, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._done += len(data)
        if (now := time.monotonic()) - self._said > 0.25:
            self._said = now
            self._progress(f"{self._doing}, {100 * self._done // max(1, self._size)}%")
        return len(data)


class Window(io.RawIOBase):
    """A stretch of a file as a file, hashed as it is read."""

    def __init__(self, file: IO[bytes], start: int, size_bytes: int, algorithm: str = "sha256") -> None:
        self._fd, self._at, self._end = file.fileno(), start, start + size_bytes
        self.digest = hashlib.new(algorithm)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._fd, min(len(buffer), self._end - self._at), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        self.digest.update(data)
        return len(data)


def decompress(raw: io.RawIOBase, what: str) -> Stream:
    """A stream of what is in a stream, whichever way it is compressed. Told by its first bytes."""
    stream = io.BufferedReader(raw, CHUNK)
    start = stream.peek(6)[:6]
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=stream, mode="rb")
    if start.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile(stream)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(stream)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            zstandard = importlib.import_module("zstandard")
        except ImportError as error:
            raise MissingFeature(
                f"{what} is compressed with zstd, and Python's zstandard module is not installed",
                hint="install it, or decompress the file first with `zstd -d`",
            ) from error
        found: Stream = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
        return found
    return stream


class _Forward:
    """What tarfile is given to read: goes forward only, in pieces of a sane size.

    tarfile looks at the last byte of a member again before it goes on, so the last block is kept.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._kept = b""
        self._again = 0
        self._at = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at - self._again

    def seek(self, position: int, whence: int = 0) -> int:
        if whence:
            raise tarfile.ReadError("a header that leads nowhere")
        back = self._at - position
        if back > len(self._kept):
            raise tarfile.ReadError("a header that leads backwards")
        self._again = max(0, back)
        while self._at < position and self._fetch(min(CHUNK, position - self._at)):
            pass
        return self.tell()

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_READ:
            raise tarfile.ReadError(f"a header of {size} bytes")
        again = self._kept[len(self._kept) - self._again :][:size] if self._again else b""
        self._again -= len(again)
        pieces, missing = [again], size - len(again)
        while missing and (piece := self._fetch(min(CHUNK, missing))):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def _fetch(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self._at += len(piece)
        self._kept = (self._kept + piece)[-tarfile.BLOCKSIZE :]
        return piece

    def has_ended_well(self) -> bool:
        """Whether the last block was an end mark, and not the place where a download was cut off."""
        return self._kept == bytes(tarfile.BLOCKSIZE)


def members(stream: Stream, what: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The members of a tar in their order, once. Read a member before taking the next."""
    forward: Any = _Forward(stream)
    with tarfile.TarFile(fileobj=forward, mode="r", encoding="utf-8", errors="surrogateescape") as tar:
        while member := tar.next():
            cast(Any, tar).members.clear()  # it would keep all of them
            if member.size < 0:
                raise bad(what, f"{member.name!r} has a negative size")
            yield tar, member
    # tarfile takes a damaged header for the end; a real end is marked.
    if not forward.has_ended_well():
        raise bad(what, "it is cut off or damaged: the end mark is missing")


# ---- unpacking ----------------------------------------------------------------------------------


def path_parts(path: str, what: str) -> list[str]:
    """A path of an archive as components below the root. One that would climb out is refused."""
    if "\0" in path:
        raise bad(what, f"a name with a NUL byte: {path[:100]!r}")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise bad(what, f"a path that climbs out of it: {path[:200]!r}")
    return parts


class Unpacker:
    """Applies tars to a folder, one upon the other. `finish` when the last one is in."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _FOLDER)
        self._what = ""
        self._placed: set[tuple[int, str]] = set()
        self._folder_times: dict[str, int] = {}
        self._parent_parts: list[str] | None = None
        self._parent_fd = -1
        self.skipped_devices = 0
        self.lost_attributes = 0

    def apply(self, stream: Stream, what: str, *, whiteouts: bool) -> int:
        """Unpack one tar; how many members it had. As a layer it can also hide what is below it."""
        self._what = what
        self._placed.clear()
        count = 0
        with reading(what):
            for tar, member in members(stream, what):
                count += 1
                parts = path_parts(member.name, what)
                if parts and whiteouts and parts[-1].startswith(WHITEOUT):
                    self._hide(parts)
                else:
                    self._place(tar, member, parts)
            while stream.read(CHUNK):
                pass  # a checksum comes last
        return count

    def finish(self) -> None:
        """Give folders their times, which everything put into them has changed."""
        self._forget_parent()
        for path, mtime_ns in self._folder_times.items():
            with contextlib.suppress(OSError):  # hidden by a later layer
                fd = openat2(self._root, path, _FOLDER, resolve=RESOLVE_IN_ROOT)
                try:
                    os.utime(fd, ns=(mtime_ns, mtime_ns))
                finally:
                    os.close(fd)

    def close(self) -> None:
        self._forget_parent()
        os.close(self._root)

    # Folders on the way

    def _parent(self, parts: list[str]) -> int:
        """The folder that something goes into, made if it is missing; open until another one is."""
        if parts != self._parent_parts:
            self._forget_parent()
            self._parent_fd = self._open_folder(parts)
            self._parent_parts = parts
        return self._parent_fd

    def _forget_parent(self) -> None:
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
                self._note(parent, name)
                folder = os.open(name, _FOLDER, dir_fd=parent)
            except FileExistsError:
                raise bad(self._what, f"{name!r} is a link to nowhere, yet things lie below it") from None
            finally:
                os.close(parent)
        return folder

    def _note(self, parent: int, name: str) -> None:
        # By inode, because one folder can have many paths through links.
        self._placed.add((os.fstat(parent).st_ino, name))

    # Entries

    def _place(self, tar: tarfile.TarFile, member: tarfile.TarInfo, parts: list[str]) -> None:
        if not parts:
            if member.isdir():
                self._dress(self._root, ".", member)
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
            self._dress(parent, name, member)
            self._folder_times["/".join(parts)] = self._mtime_ns(member)
        elif member.issym():
            if not member.linkname:
                raise bad(self._what, f"{member.name[:200]!r} is a link to nothing")
            os.symlink(member.linkname, name, dir_fd=parent)
            self._dress(parent, name, member)
        elif member.isfifo():
            os.mkfifo(name, 0o600, dir_fd=parent)
            self._dress(parent, name, member)
        elif member.isdev():
            self.skipped_devices += 1
        elif member.isreg():
            self._file(tar, member, parent, name)
        elif member.type != b"V":  # a volume's label
            raise bad(self._what, f"{member.name[:200]!r} is of an unknown type {member.type!r}")

    def _make_room(self, parent: int, name: str, *, for_folder: bool) -> None:
        """What comes later replaces what is there; only folders are merged."""
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=parent)
        elif not for_folder:
            copytree.remove_tree(parent, name)

    def _file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> None:
        source = tar.extractfile(member)
        assert source is not None
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
        try:
            holes = cast("list[tuple[int, int]] | None", member.sparse)
            ranges = [(0, member.size)] if holes is None else holes
            for start, size in ranges:
                if start < 0 or size < 0 or start + size > member.size:
                    raise bad(self._what, f"{member.name[:200]!r} has an impossible map of holes")
                source.seek(start)
                os.lseek(fd, start, os.SEEK_SET)
                missing = size
                while missing and (data := source.read(min(CHUNK, missing))):
                    missing -= len(data)
                    view = memoryview(data)
                    while view:
                        view = view[os.write(fd, view) :]
                if missing:
                    raise bad(self._what, f"it ends in the middle of {member.name[:200]!r}")
            if holes is not None:
                os.ftruncate(fd, member.size)
        finally:
            os.close(fd)
        self._dress(parent, name, member)

    def _hard_link(self, parent: int, name: str, member: tarfile.TarInfo) -> None:
        to = path_parts(member.linkname, self._what)
        flags = os.O_PATH | os.O_DIRECTORY
        folder = -1
        try:
            folder = openat2(self._root, "/".join(to[:-1]) or ".", flags, resolve=RESOLVE_IN_ROOT)
            there = os.stat(to[-1] if to else ".", dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(there.st_mode):
                raise bad(self._what, f"{member.name[:200]!r} is a hard link to a folder")
            if not self._is_same(parent, name, there):
                self._make_room(parent, name, for_folder=False)
                os.link(to[-1], name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
            self._note(parent, name)
        except FileNotFoundError:
            why = f"{member.name[:200]!r} is a hard link to {member.linkname[:200]!r}, which is not there"
            raise bad(self._what, why) from None
        finally:
            if folder >= 0:
                os.close(folder)

    @staticmethod
    def _is_same(parent: int, name: str, there: os.stat_result) -> bool:
        with contextlib.suppress(FileNotFoundError):
            here = os.stat(name, dir_fd=parent, follow_symlinks=False)
            return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
        return False

    def _dress(self, parent: int, name: str, member: tarfile.TarInfo) -> None:
        """Owner, mode, attributes, times: in this order, since each of the first two undoes a later one."""
        if not (0 <= member.uid < LAST_ID and 0 <= member.gid < LAST_ID):
            raise bad(self._what, f"{member.name[:200]!r} has an impossible owner")
        os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
        if not member.issym():
            os.chmod(name, member.mode & 0o7777, dir_fd=parent)
        for key, value in member.pax_headers.items():
            attribute = key.removeprefix(ATTRIBUTE_PREFIX)
            if attribute != key and is_kept(attribute):
                self._attribute(copytree.below(parent, name), attribute, value)
        mtime_ns = self._mtime_ns(member)
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)

    def _attribute(self, path: str, attribute: str, value: str) -> None:
        try:
            os.setxattr(path, attribute, value.encode("utf-8", "surrogateescape"), follow_symlinks=False)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL}:
                raise
            self.lost_attributes += 1

    @staticmethod
    def _mtime_ns(member: tarfile.TarInfo) -> int:
        try:
            return int(Decimal(member.pax_headers.get("mtime", member.mtime)) * 10**9)
        except InvalidOperation as error:
            raise ValueError("a time that is none") from error

    # Whiteouts

    def _hide(self, parts: list[str]) -> None:
        """What a layer says is gone is gone from the layers below it, not from itself."""
        parent, name = self._parent(parts[:-1]), parts[-1]
        if name == OPAQUE:
            self._prune(parent)
        elif not name.startswith(WHITEOUT * 2):  # others of that form are aufs's own notes
            hidden = name.removeprefix(WHITEOUT)
            if hidden in {"", ".", ".."}:
                raise bad(self._what, f"a whiteout of nothing: {'/'.join(parts)[:200]!r}")
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


# ---- image archives -----------------------------------------------------------------------------


class ImageArchive:
    """An uncompressed tar with the parts of an image in it, found by name and read in any order."""

    def __init__(self, file: IO[bytes], what: str) -> None:
        self._file = file
        self._what = what
        self._stretches: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        file.seek(0)
        with reading(what):
            for _, member in members(file, what):
                name = "/".join(path_parts(member.name, what))
                if member.isreg():
                    self._stretches[name] = (member.offset_data, member.size)
                elif member.issym():
                    self._links[name] = posixpath.normpath(
                        posixpath.join(posixpath.dirname(name), member.linkname)
                    )
                elif member.islnk():
                    self._links[name] = posixpath.normpath(member.linkname)
                if len(self._stretches) + len(self._links) > MOST_INDEXED:
                    raise bad(what, "it has too many parts for an image")

    @property
    def format(self) -> str:
        """What it is: "oci", "docker-save", or nothing of the kind."""
        if "oci-layout" in self._stretches and "index.json" in self._stretches:
            return "oci"
        return "docker-save" if "manifest.json" in self._stretches else ""

    def layers(self) -> list[tuple[str, str]]:
        """The layers of the image for this machine, lowest first: (name in the archive, digest or "")."""
        with reading(self._what):
            try:
                return self._oci_layers() if self.format == "oci" else self._saved_layers()
            except (KeyError, TypeError, AttributeError) as error:
                raise bad(
                    self._what, f"its description of the image is not understood ({error!r})"
                ) from error

    def open(self, name: str, digest: str = "") -> Window:
        """One part of it. The digest's algorithm is the one the window hashes with."""
        for _ in range(8):
            if name in self._stretches:
                start, size = self._stretches[name]
                return Window(self._file, start, size, digest.partition(":")[0] or "sha256")
            name = self._links.get(name, "")
        raise bad(self._what, f"a part of the image is missing: {(digest or name)[:100]}")

    def size_of(self, name: str) -> int:
        return self._stretches.get(name, (0, 0))[1]

    def _document(self, name: str, digest: str = "") -> Any:
        window = self.open(name, digest)
        with io.BufferedReader(window) as stream:
            text = stream.read(LARGEST_DOCUMENT + 1)
        if len(text) > LARGEST_DOCUMENT:
            raise bad(self._what, f"{name[:100]} is too large for what it should be")
        self.check(window, digest)
        return json.loads(text)

    def check(self, window: Window, digest: str) -> None:
        """Whether a part that has been read to its end is what its digest says."""
        if digest and window.digest.hexdigest() != digest.partition(":")[2]:
            raise bad(self._what, f"a part of it is damaged: {digest} does not match its content")

    def _blob(self, descriptor: Any) -> tuple[str, str]:
        digest = str(descriptor["digest"])
        if not _DIGEST.fullmatch(digest):
            raise bad(self._what, f"a digest of an unknown form: {digest[:100]!r}")
        return f"blobs/{digest.replace(':', '/')}", digest

    def _oci_layers(self) -> list[tuple[str, str]]:
        chosen = self._choose(self._document("index.json"), depth=0)
        manifest = self._document(*self._blob(chosen))
        if "layers" not in manifest:
            raise bad(
                self._what,
                f"it holds no image, but a {manifest.get('mediaType') or 'manifest without layers'}",
            )
        if "config" in manifest:
            self._check_machine(self._document(*self._blob(manifest["config"])))
        if encrypted := [
            layer["mediaType"] for layer in manifest["layers"] if "encrypted" in layer.get("mediaType", "")
        ]:
            raise bad(self._what, f"its layers are encrypted ({encrypted[0]})")
        return [self._blob(layer) for layer in manifest["layers"]]

    def _choose(self, index: Any, *, depth: int) -> Any:
        """The manifest for this machine, through indexes of indexes."""
        if depth > DEEPEST_INDEX:
            raise bad(self._what, "its indexes refer to each other without an end")
        ours = machine()
        fitting: list[tuple[str, Any]] = []
        others: list[tuple[str, Any]] = []
        for descriptor in index["manifests"]:
            about = descriptor.get("platform") or {}
            its = f"{about.get('os') or 'linux'}/{about.get('architecture') or ours}"
            if (
                "vnd.docker.reference.type" in (descriptor.get("annotations") or {})
                or its == "unknown/unknown"
            ):
                continue  # a signature or a bill of materials
            (fitting if its == f"linux/{ours}" else others).append((its, descriptor))
        if not fitting:
            said = ", ".join(sorted({its for its, _ in others})) or "nothing"
            raise bad(self._what, f"it has no image for linux/{ours}, only for {said}")
        names = [self._image_name(descriptor) for _, descriptor in fitting]
        if depth == 0 and len({str(descriptor["digest"]) for _, descriptor in fitting}) > 1:
            raise bad(self._what, f"it holds several images ({', '.join(names)}): save one of them")
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

    def _saved_layers(self) -> list[tuple[str, str]]:
        images = self._document("manifest.json")
        if len(images) != 1:
            names = ", ".join(str((image.get("RepoTags") or ["unnamed"])[0]) for image in images) or "none"
            raise bad(self._what, f"it holds several images or none ({names}): save one of them")
        if images[0].get("Config"):
            self._check_machine(self._document("/".join(path_parts(images[0]["Config"], self._what))))
        return [("/".join(path_parts(layer, self._what)), "") for layer in images[0]["Layers"]]

    def _check_machine(self, config: Any) -> None:
        its = f"{config.get('os') or 'linux'}/{config.get('architecture') or machine()}"
        if its != f"linux/{machine()}":
            raise bad(self._what, f"it is an image for {its}, and this machine is linux/{machine()}")


def machine() -> str:
    """This machine's architecture, as images call it."""
    found = platform.machine()
    return MACHINES.get(found, found)


# ---- all together -------------------------------------------------------------------------------


def _looks_like_an_image(stream: Stream, what: str) -> bool:
    with reading(what):
        for _, member in members(stream, what):
            if parts := path_parts(member.name, what):
                return bool(_IMAGE_FILE.fullmatch("/".join(parts)))
    raise bad(what, "it is empty")


def unpack(file: Path, unpacker: Unpacker, spool: Path, progress: Progress) -> str:
    """Unpack an archive of any known format; which one it was.

    A compressed image archive is decompressed into an unnamed file in `spool`, since its parts are
    not in the order they are needed in.
    """
    what = file.name
    size = file.stat().st_size

    with file.open("rb") as raw:

        def stream(doing: str) -> Stream:
            raw.seek(0)
            return decompress(Meter(raw, size, doing, progress), what)

        if _looks_like_an_image(stream(f"reading {what}"), what):
            with contextlib.ExitStack() as stack:
                whole: IO[bytes] = raw
                if isinstance(source := stream(f"decompressing {what}"), io.BufferedReader):
                    source.detach()
                else:
                    whole = stack.enter_context(tempfile.TemporaryFile(dir=spool))
                    with reading(what):
                        shutil.copyfileobj(source, whole, CHUNK)
                    whole.flush()
                if found := _unpack_image(ImageArchive(whole, what), what, unpacker, progress):
                    return found
        unpacker.apply(stream(f"unpacking {what}"), what, whiteouts=False)
        return "tar"


def _unpack_image(archive: ImageArchive, what: str, unpacker: Unpacker, progress: Progress) -> str:
    """Apply an image's layers; what kind of archive it was, nothing if it is none after all."""
    if not archive.format:
        return ""
    layers = archive.layers()
    if not layers:
        raise bad(what, "the image has no layers")
    for number, (name, digest) in enumerate(layers, 1):
        window = archive.open(name, digest)
        part = f"layer {number} of {what}"
        meter = Meter(
            io.BufferedReader(window, CHUNK),
            archive.size_of(name),
            f"unpacking {part} ({len(layers)} in all)",
            progress,
        )
        with reading(part):
            unpacker.apply(decompress(meter, what), part, whiteouts=True)
            while meter.read(CHUNK):
                pass  # whatever follows is part of the digest
        archive.check(window, digest)
    return archive.format
