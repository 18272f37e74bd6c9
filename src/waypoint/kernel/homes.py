"""Which homes there are on this machine: a registry that all of them share.

A box over `/` sees every folder of the host, and a home holds the memory of sessions. So each home writes
itself down before anything secret is in it, and every box of another home masks it (box/masks.py). The
registry outlives a reboot, because a home does. An entry names a home by its file handle: a home that was
moved is still found, and another folder at its old path is not taken for it. An entry that leads to no home
is tolerated, and dropped when a home is registered.

A box is built, and the pool of a home is closed, while this registry stands still: `reading` and `changing`
are the two sides of a lock between processes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waypoint.errors import MachineError
from waypoint.home import Home
from waypoint.kernel import atomic, locks, mounts, processes
from waypoint.kernel.mounts import Mount
from waypoint.kernel.overlay import file_handle
from waypoint.kernel.syscalls import open_by_handle
from waypoint.model import from_json

REGISTRY = Path("/var/lib/waypoint-homes")
LOCK = Path("/run/waypoint/homes.lock")
_CONTENTS = ("waypoint.db", "pool.img", "pool")
"""What a home has, one of them at least."""
_READING_SECONDS = 30.0
_CHANGING_SECONDS = 75.0
"""How long the lock is waited for. A change waits for all boxes that are being built, each of which may take
a minute on a busy machine."""


class _Entry(msgspec.Struct, frozen=True):
    """A home, as its daemon wrote it down."""

    path: str
    device: int
    inode: int
    file_system: str
    """The device of the mount that it is on, as the mount table has it."""
    kind: int
    handle: bytes

    @property
    def identity(self) -> tuple[int, int, bytes]:
        """An inode number alone is used again when its folder is deleted."""
        return self.device, self.inode, self.handle


@dataclass(frozen=True)
class KnownHome:
    """A home that is where it is now."""

    path: Path
    mount: Mount
    """The file system that its folder is on."""
    kind: int
    handle: bytes
    """The handle of its folder, as name_to_handle_at(2) gives it; empty where the file system has none."""

    @property
    def inner_path(self) -> str:
        """Its path within its file system, whatever part of that is mounted."""
        return os.path.normpath(os.path.join(self.mount.root, os.path.relpath(self.path, self.mount.path)))


# ---- the registry --------------------------------------------------------------------------------


def register(home: Home, mask: Callable[[KnownHome], None]) -> None:
    """Writes a home down, whose folder exists, and drops entries that lead to no home. `mask` hides it from
    every box that stands; a home that was written down before was masked when these boxes were built. Most
    daemons start on such a home: with nothing to change, boxes that are being built are not waited for."""
    table = mounts.mounts()
    known = _known(home.path, table)
    assert known, f"nothing is mounted above {home.path}"
    status = home.path.stat()
    file_system, kind, handle = known.mount.device, known.kind, known.handle
    entry = _Entry(str(home.path), status.st_dev, status.st_ino, file_system, kind, handle)
    entries = _entries()
    if entries.get(home.tag) == entry and not _lost(entries, home.tag, entry, table):
        return
    with changing():
        REGISTRY.mkdir(mode=0o700, parents=True, exist_ok=True)
        entries = _entries()
        if entries.get(home.tag) != entry:
            mask(known)
            atomic.write(REGISTRY / home.tag, msgspec.json.encode(entry), mode=0o600, durable=True)
        for tag in _lost(entries, home.tag, entry, table):
            (REGISTRY / tag).unlink(missing_ok=True)


def _lost(entries: Mapping[str, _Entry], own: str, entry: _Entry, table: list[Mount]) -> list[str]:
    """Entries that lead to no home, or to the one of `entry` by another name."""
    return [
        tag
        for tag, other in entries.items()
        if tag != own
        and (other.identity == entry.identity or (_find(other, table) is None and not _runs(tag)))
    ]


def forget(home: Home) -> None:
    """Removes a home from the registry: its folder is gone, or about to go."""
    (REGISTRY / home.tag).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        REGISTRY.rmdir()


def known_homes(table: list[Mount] | None = None) -> list[KnownHome]:
    """The homes of this machine that can be found now."""
    table = mounts.mounts() if table is None else table
    return [home for home in (_find(entry, table) for entry in _entries().values()) if home]


def _entries() -> dict[str, _Entry]:
    entries = {}
    with contextlib.suppress(FileNotFoundError, PermissionError):
        for name in sorted(os.listdir(REGISTRY)):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                entries[name] = from_json((REGISTRY / name).read_bytes(), _Entry)
    return entries


def _runs(tag: str) -> bool:
    """Whether a home has sockets: its daemon or its boxes may see file systems that this process does not."""
    return any((LOCK.parent / tag).glob("*.sock"))


def _find(entry: _Entry, table: list[Mount]) -> KnownHome | None:
    """Where a home is now: at its path, or wherever its folder was moved to."""
    path = Path(entry.path)
    with contextlib.suppress(OSError):
        status = path.stat()
        if (status.st_dev, status.st_ino, _handle(path)[1]) == entry.identity:
            return _known(path, table)
    with contextlib.suppress(OSError):
        if moved := _find_moved(entry, table):
            return _known(moved, table)
    # Device numbers may be others since a reboot.
    with contextlib.suppress(OSError):
        if any(os.path.lexists(path / name) for name in _CONTENTS):
            return _known(path, table)
    return None


def _find_moved(entry: _Entry, table: list[Mount]) -> Path | None:
    if not entry.handle:
        return None
    for mount in (mount for mount in table if mount.device == entry.file_system):
        with contextlib.suppress(OSError):
            root = os.open(mount.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                folder = open_by_handle(root, entry.kind, entry.handle)
            finally:
                os.close(root)
            try:
                path = Path(os.readlink(f"/proc/self/fd/{folder}"))
                return path if os.path.samestat(path.stat(), os.fstat(folder)) else None
            finally:
                os.close(folder)
    return None


def _known(path: Path, table: list[Mount]) -> KnownHome | None:
    mount = mounts.mount_of(str(path), table)
    if mount is None:
        return None
    return KnownHome(path, mount, *_handle(path))


def _handle(path: Path) -> tuple[int, bytes]:
    """Nothing where the file system has no handles."""
    try:
        return file_handle(path)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return 0, b""


# ---- what is mounted for homes ------------------------------------------------------------------


def devices_of_homes(homes: list[KnownHome], table: list[Mount]) -> frozenset[str]:
    """The devices of the file systems that are mounted in the folders of homes: their pools. Such a file
    system is no part of the host for any session, wherever else it is mounted."""
    return frozenset(
        mount.device
        for home in homes
        for mount in table
        if mount.path.startswith(f"{home.path}/") and mount.device != home.mount.device
    )


# ---- standing still -----------------------------------------------------------------------------


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """No home is registered or forgotten, and no pool is closed meanwhile. For building a box: until it has
    its own mounts, its namespace has a copy of every mount of the machine."""
    with _locked(fcntl.LOCK_SH, _READING_SECONDS):
        yield


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """No box is being built meanwhile, of any home."""
    with _locked(fcntl.LOCK_EX, _CHANGING_SECONDS):
        yield


@contextlib.contextmanager
def _locked(mode: int, seconds: float) -> Iterator[None]:
    """The lock has a turnstile before it, or boxes that are built without a break would keep it for ever."""
    LOCK.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    turnstile = os.open(LOCK.with_suffix(".turn"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + seconds
            if not all(
                locks.lock_file(fd, how, max(0.0, deadline - time.monotonic()))
                for fd, how in ((turnstile, fcntl.LOCK_EX), (lock, mode))
            ):
                raise _held(lock, seconds)
            fcntl.flock(turnstile, fcntl.LOCK_UN)
            yield
        finally:
            os.close(lock)
    finally:
        os.close(turnstile)


def _held(lock: int, seconds: float) -> MachineError:
    """The error that names who has the lock."""
    doing = [
        f"process {pid} ({process.command if process else 'ended'}) "
        + ("is opening or closing a Waypoint home" if exclusive else "is building a box")
        for pid, exclusive in locks.holders_of(lock)
        for process in [processes.read(pid)]
    ]
    return MachineError(
        f"{doing[0] if doing else 'a Waypoint home is being opened or closed'}, and has not finished"
        f" within {seconds:g} s",
        hint="nothing has changed: try again. If it never finishes, end that process",
        path=str(LOCK),
    )
