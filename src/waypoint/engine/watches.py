"""inotify watches on the paths of unix sockets.

CRIU finds a watched file by its name, and sets the watch before it restores sockets. But it removes the name
of a bound socket and creates it again. So these watches are taken out of the images, and added by Waypoint
when all sockets exist, with the number that the program knows them by.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from waypoint.engine.images import SocketWatch, decode, encode, fields
from waypoint.errors import CannotRestore
from waypoint.kernel import mounts, processes
from waypoint.kernel.processes import Process
from waypoint.kernel.syscalls import (
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    inotify_add_watch,
    open_by_handle,
    openat2,
)

_INOTIFY = "anon_inode:inotify"
_UNKNOWN = "it watches the path of a socket (inotify), and which path cannot be found out"
_SET_NEXT_WD = 0x40044900  # INOTIFY_IOC_SETNEXTWD
_FILE_TYPE, _FILE_IFY, _FILE_TYPE_INOTIFY = 1, 13, 8  # file_entry
_IFY_WD = 5  # inotify_file_entry
_WD_INO, _WD_WD = 2, 6  # inotify_wd_entry


# ---- while a tree is saved -----------------------------------------------------------------------


def find(
    tree: Sequence[tuple[Process, Mapping[int, str]]], keeper_pid: int
) -> tuple[tuple[SocketWatch, ...], list[tuple[Process, str]]]:
    """The watches of a tree that are on sockets; and the processes that have one of which the path is not
    known, with the reason why they cannot be saved."""
    watchers = [
        (process, fd) for process, targets in tree for fd, target in targets.items() if target == _INOTIFY
    ]
    found: list[SocketWatch] = []
    unknown: list[tuple[Process, str]] = []
    if not watchers:
        return (), unknown
    with contextlib.closing(_FileSystems(keeper_pid)) as file_systems:
        for process, fd in watchers:
            for watch in _read_watches(process.host_pid, fd):
                if file_systems.kind(watch) != stat.S_IFSOCK:
                    continue
                try:
                    path = file_systems.find_socket(watch)
                except LookupError:
                    unknown.append((process, _UNKNOWN))
                    continue
                if path is not None:
                    number, mask = int(watch["wd"], 16), int(watch["mask"], 16)
                    inode = int(watch["ino"], 16)
                    found.append(SocketWatch(process.pid, fd, number, mask, inode, path))
    return tuple(found), unknown


def _read_watches(host_pid: int, fd: int) -> Iterator[dict[str, str]]:
    with contextlib.suppress(OSError), open(f"/proc/{host_pid}/fdinfo/{fd}") as lines:
        # inotify wd:1 ino:a3 sdev:2a mask:100 ignored_mask:0 fhandle-type:1 f_handle:a3
        for line in [line for line in lines if line.startswith("inotify ")]:
            yield dict(word.split(":", 1) for word in line.split()[1:])


class _FileSystems:
    """The file systems of a box by device number, each as an open folder of it, and the sockets in them."""

    def __init__(self, keeper_pid: int) -> None:
        self._keeper_pid = keeper_pid
        self._root = f"/proc/{keeper_pid}/root"
        self._paths: dict[str, list[str]] = {}
        self._folders: dict[str, int] = {}
        self._sockets: dict[bytes, os.stat_result] | None = None
        self._has_unknown_sockets = False
        for mount in mounts.mounts(keeper_pid):
            self._paths.setdefault(mount.device, []).append(mount.path)

    def _folder(self, device: str) -> int:
        if device not in self._folders:
            for path in self._paths.get(device, ()):
                with contextlib.suppress(OSError):  # a file may be mounted too
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                    self._folders[device] = os.open(self._root + path, flags)
                    break
            else:
                raise FileNotFoundError(device)
        return self._folders[device]

    def kind(self, watch: Mapping[str, str]) -> int:
        """The kind of file that a watch is on; 0 when it cannot be found out (CRIU then refuses it)."""
        device = int(watch["sdev"], 16)
        with contextlib.suppress(OSError):
            folder = self._folder(f"{device >> 20}:{device & 0xFFFFF}")
            file = open_by_handle(folder, int(watch["fhandle-type"], 16), bytes.fromhex(watch["f_handle"]))
            try:
                return stat.S_IFMT(os.fstat(file).st_mode)
            finally:
                os.close(file)
        return 0

    def find_socket(self, watch: Mapping[str, str]) -> bytes | None:
        """The path of a bound socket that a watch is on. None when no socket is bound to the file any more:
        CRIU does not touch it then. LookupError when there may be one that is not found."""
        if self._sockets is None:
            self._sockets = dict(self._read_sockets())
        device, inode = int(watch["sdev"], 16), int(watch["ino"], 16)
        similar = [(path, info) for path, info in self._sockets.items() if info.st_ino == inode]
        for path, info in similar:
            if (os.major(info.st_dev), os.minor(info.st_dev)) == (device >> 20, device & 0xFFFFF):
                return path
        if similar or self._has_unknown_sockets:
            raise LookupError
        return None

    def _read_sockets(self) -> Iterator[tuple[bytes, os.stat_result]]:
        """The files of the sockets that are bound by absolute paths."""
        table = Path(f"/proc/{self._keeper_pid}/net/unix").read_bytes()
        root = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for line in table.split(b"\n")[1:]:
                # Num: RefCount Protocol Flags Type St Inode Path
                words = line.split(maxsplit=7)
                if len(words) == 8 and words[7].startswith(b"/"):
                    with contextlib.suppress(OSError):
                        yield words[7], _stat_socket(root, words[7])
                elif line and (len(words) not in (7, 8) or (len(words) == 8 and words[7][:1] != b"@")):
                    self._has_unknown_sockets = True
        finally:
            os.close(root)

    def close(self) -> None:
        while self._folders:
            os.close(self._folders.popitem()[1])


def _open_socket(root: int, path: bytes) -> int:
    """The file of a socket in a box, as O_PATH. No link on the way leads out of the box."""
    how = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
    return openat2(root, path, os.O_PATH | os.O_NOFOLLOW, resolve=how)


def _stat_socket(root: int, path: bytes) -> os.stat_result:
    file = _open_socket(root, path)
    try:
        return os.fstat(file)
    finally:
        os.close(file)


def correct_images(images: Path, watches: Sequence[SocketWatch]) -> None:
    """Takes these watches out of the images."""
    if not watches:
        return
    taken = {(watch.inode, watch.number) for watch in watches}
    path = images / "files.img"
    data = path.read_bytes()
    out = [data[:8]]
    at = 8
    while at + 4 <= len(data):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "little")
        body = data[start:at]
        # The type is the first field: all other entries need not be decoded.
        if body[:2] == bytes((_FILE_TYPE << 3, _FILE_TYPE_INOTIFY)):
            body = _without(body, taken)
        out += [struct.pack("<I", len(body)), body]
    path.write_bytes(b"".join(out))


def _without(entry: bytes, taken: set[tuple[int, int]]) -> bytes:
    out = []
    for number, value in fields(entry):
        if number == _FILE_IFY and isinstance(value, bytes):
            parts = (
                encode({field: part}) for field, part in fields(value) if not _is_taken(field, part, taken)
            )
            out.append(encode({number: b"".join(parts)}))
        else:
            out.append(encode({number: value}))
    return b"".join(out)


def _is_taken(field: int, part: int | bytes, taken: set[tuple[int, int]]) -> bool:
    if field != _IFY_WD:
        return False
    watch = decode(part)
    return (watch[_WD_INO], watch[_WD_WD]) in taken


# ---- in a tree that is restored ------------------------------------------------------------------


def add_again(root: Path, host_pids: Mapping[int, int], watches: Sequence[SocketWatch]) -> None:
    """Adds the watches of a tree that has not run yet. `root`: of its box. `host_pids`: the host's numbers of
    its processes, by their own."""
    for watch in watches:
        try:
            folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                file = _open_socket(folder, watch.path)
            finally:
                os.close(folder)
            try:
                inotify = processes.duplicate(host_pids[watch.pid], watch.fd)
                try:
                    fcntl.ioctl(inotify, _SET_NEXT_WD, watch.number)
                    number = inotify_add_watch(inotify, f"/proc/self/fd/{file}", watch.mask)
                finally:
                    os.close(inotify)
            finally:
                os.close(file)
        except (OSError, KeyError) as error:
            raise CannotRestore(f"a watch of process {watch.pid} cannot be added again: {error}") from error
        if number != watch.number:
            raise CannotRestore(f"a watch of process {watch.pid} has another number than before")
