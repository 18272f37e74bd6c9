"""Driving CRIU over its socket.

`criu swrk 3` is a CRIU that takes one request from the socket it was given and tells, while it works,
at which stage it is: that is how we know the moment when the whole tree stands still (dump) and the
moment when all of it exists and none of it runs (restore), without scripts or polling. The keeper starts
it inside the box; the request and the answers go straight between it and the daemon.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from waypoint.box.box import ENGINE_IN_BOX
from waypoint.engine.protobuf import Message, decode, encode, fields, read_image, signed

# enum criu_req_type
DUMP = 1
RESTORE = 2
NOTIFY = 6

# message criu_opts, by field number
_IMAGES_DIR_FD = 1
_PID = 2
_LEAVE_RUNNING = 3
_TCP_ESTABLISHED = 5
_SHELL_JOB = 7
_FILE_LOCKS = 8
_LOG_LEVEL = 9
_LOG_FILE = 10
_NOTIFY_SCRIPTS = 12
_PARENT_IMG = 14
_TRACK_MEM = 15
_LINK_REMAP = 18
_INHERIT_FD = 27
_MANAGE_CGROUPS_MODE = 34
_GHOST_LIMIT = 35
_NETWORK_LOCK = 64
_IMAGES_DIR = 68

_CG_IGNORE = 0
_NETWORK_LOCK_NFTABLES = 2
_NETWORK_LOCK_SKIP = 3

IMAGES_FD = 4
"""Where the keeper puts the images folder in CRIU's descriptor table; 3 is the socket."""
FIRST_INHERITED_FD = 5
_GHOST_BYTES = 1 << 30
_LOG_WARNINGS = 2


@dataclass(frozen=True)
class DumpStats:
    """CRIU's own account of a dump."""

    freezing_ms: float
    frozen_ms: float
    pages_written: int
    pages_in_parent: int = 0
    """Not written since the dump it was compared with, and so not copied."""

    @property
    def pause_ms(self) -> float:
        return self.freezing_ms + self.frozen_ms


def criu_argv(engine: Path, *args: str, shim: bool = True) -> list[str]:
    """The command that runs CRIU with `args`, for an engine reached by the path `engine`."""
    prefix = engine / "criu"
    preload = ["--preload", f"{prefix}/shim.so"] if shim else []
    loader = [f"{prefix}/ld.so", "--inhibit-cache", "--library-path", f"{prefix}/lib", *preload]
    return [*loader, f"{prefix}/criu", "--no-default-config", "--libdir", f"{prefix}/plugins", *args]


def criu_environment() -> dict[str, str]:
    """The whole environment CRIU is to run with: no HOME to read options from, no PATH to find programs in.

    When CRIU meets a kernel it knows nothing about it runs `sh` and `iptables` to find out; inside a box
    those would be the box's own.
    """
    return {"PATH": f"{ENGINE_IN_BOX}/none"}


class CriuFailed(Exception):
    """Raised when CRIU says that it did not do it; the log in the images folder tells why."""


def _common(log: str, *, lock_network: bool, log_level: int) -> Message:
    return {
        # A descriptor would be looked up in the peer's table, and the peer lives outside the box.
        _IMAGES_DIR_FD: -1,
        _IMAGES_DIR: f"/proc/self/fd/{IMAGES_FD}",
        _LOG_LEVEL: log_level,
        _LOG_FILE: log,
        _NOTIFY_SCRIPTS: True,
        _SHELL_JOB: True,
        _TCP_ESTABLISHED: True,
        _FILE_LOCKS: True,
        _LINK_REMAP: True,
        _GHOST_LIMIT: _GHOST_BYTES,
        _MANAGE_CGROUPS_MODE: _CG_IGNORE,
        _NETWORK_LOCK: _NETWORK_LOCK_NFTABLES if lock_network else _NETWORK_LOCK_SKIP,
    }


def dump_request(
    pid: int,
    *,
    lock_network: bool,
    track: bool = False,
    with_parent: bool = False,
    log_level: int = _LOG_WARNINGS,
) -> bytes:
    """Dump the tree below `pid` and leave it running. `track`: writes to its memory are noticed
    (tracking.py); `with_parent`: only what was written since the images in the folder that is the first
    inherited descriptor is to be dumped."""
    options = _common("dump.log", lock_network=lock_network, log_level=log_level)
    if track:
        options[_TRACK_MEM] = True
        if with_parent:
            options[_PARENT_IMG] = f"/proc/self/fd/{FIRST_INHERITED_FD}"
    return encode({1: DUMP, 2: {**options, _PID: pid, _LEAVE_RUNNING: True}})


def restore_request(
    inherit: list[tuple[str, int]], *, lock_network: bool, log_level: int = _LOG_WARNINGS
) -> bytes:
    """Restore the tree; `inherit` names what it finds outside itself, and the descriptor to put there."""
    options = _common("restore.log", lock_network=lock_network, log_level=log_level)
    keyed: list[Message] = [{1: key, 2: fd} for key, fd in inherit]
    return encode({1: RESTORE, 2: {**options, _INHERIT_FD: keyed}})


class Conversation:
    """One request to one `criu swrk`, up to its answer."""

    def __init__(self, connection: socket.socket, request: bytes) -> None:
        self._socket = connection
        connection.send(request)

    def proceed(
        self,
        stage: Callable[[str], None] | None = None,
        *,
        answered: str | None = None,
        until: str | None = None,
        patience_seconds: float | None = None,
    ) -> int | None:
        """Lets CRIU work. `stage` is called with the name of each stage while CRIU waits in it (except in
        the stage `answered`, which `stage` answers itself). Stops at the stage `until`, which stays
        unanswered until `answer` is called. Returns the root's pid (restore) or 0 (dump) at the end, None
        when stopped. TimeoutError when CRIU says nothing for longer than `patience_seconds`."""
        self._socket.settimeout(patience_seconds)
        while True:
            packet = self._socket.recv(65536)
            if not packet:
                raise CriuFailed("criu ended without an answer")
            answer = decode(packet)
            if answer.get(1) != NOTIFY:
                if not answer.get(2):
                    raise CriuFailed("criu failed")
                restored = answer.get(4)
                return signed(decode(restored)[1]) if isinstance(restored, bytes) else 0
            told = answer.get(5)
            name = decode(told).get(1, b"") if isinstance(told, bytes) else b""
            assert isinstance(name, bytes)
            if stage:
                try:
                    stage(name.decode())
                except BaseException:
                    self._socket.send(encode({1: NOTIFY, 3: False}))
                    raise
            if name.decode() == until:
                return None
            if name.decode() != answered:
                self.answer()

    def answer(self) -> None:
        self._socket.send(encode({1: NOTIFY, 3: True}))

    def close(self) -> None:
        self._socket.close()


def dump_stats(images: Path) -> DumpStats:
    """What a dump cost, from the image CRIU writes about itself."""
    for entry in read_image(images / "stats-dump"):
        told = entry.get(1)
        if isinstance(told, bytes):
            numbers = decode(told)
            micros = [int(numbers.get(field, 0)) for field in (1, 2)]
            pages = [int(numbers.get(field, 0)) for field in (7, 6)]
            return DumpStats(micros[0] / 1000, micros[1] / 1000, *pages)
    return DumpStats(0.0, 0.0, 0)


@dataclass(frozen=True)
class FileLock:
    """A POSIX lock as CRIU saved it."""

    pid: int
    fd: int
    kind: int
    start: int
    length: int


_FL_POSIX = 1


def posix_locks(images: Path) -> list[FileLock]:
    """The POSIX locks of a dumped tree. (flock and OFD locks belong to open files and need no help.)"""
    return [
        FileLock(signed(e[3]), signed(e[4]), int(e[2]), signed(e[5]), signed(e[6]))
        for e in read_image(images / "filelocks.img")
        if int(e[1]) & _FL_POSIX
    ]


_INETSK = 4


def bound_addresses(images: Path) -> list[str]:
    """The IPv4 addresses that saved sockets are bound to, loopback ones aside: a restore has to have them.
    (The kernel does not list all of them: not those of connections that could not be made.)"""
    found = set()
    for entry in read_image(images / "files.img"):
        socket_entry = entry.get(4)
        if entry[1] != _INETSK or not isinstance(socket_entry, bytes):
            continue
        # message inet_sk_entry: ..., src_addr = 11, repeated, each a word of memory
        words = [value for number, value in fields(socket_entry) if number == 11]
        address = ip_address(b"".join(int(word).to_bytes(4, sys.byteorder) for word in words))
        if isinstance(address, IPv6Address):
            address = address.ipv4_mapped or address
        if address.version == 4 and not address.is_loopback and not address.is_unspecified:
            found.add(str(address))
    return sorted(found)


_TIMERFD = 17
_TICKS, _SETTIME_FLAGS, _SECONDS, _NANOSECONDS, _INTERVAL = 5, 6, 7, 8, (9, 10)
_TFD_TIMER_ABSTIME = 1


def mend_timers(images: Path) -> None:
    """Corrects what CRIU saves of timer descriptors.

    The kernel starts the next period of one that went off when somebody reads it, and tells no time left
    until then: CRIU would restore it as one that is switched off. Of one set to a point in time it restores
    the seconds only, so that it would go off up to a second early: the time left is what is saved.
    """
    path = images / "files.img"
    data = bytearray(path.read_bytes())
    at, mended = 8, False
    while at + 4 <= len(data):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "little")
        # message file_entry: type, id, ..., tfd = 12
        if data[start : start + 2] != bytes((0x08, _TIMERFD)):
            continue
        entry: Message = {**decode(bytes(data[start:at]))}
        told = entry[12]
        assert isinstance(told, bytes)
        timer: Message = {**decode(told)}
        left = timer[_SECONDS] or timer[_NANOSECONDS]
        if timer[_TICKS] and any(timer[part] for part in _INTERVAL) and not left:
            timer[_NANOSECONDS] = 1
        if timer[_SETTIME_FLAGS] == _TFD_TIMER_ABSTIME:
            timer[_SETTIME_FLAGS] = 0
        body = encode({**entry, 12: encode(timer)})
        assert len(body) == at - start
        mended = mended or body != data[start:at]
        data[start:at] = body
    if mended:
        path.write_bytes(data)


_DUMP_UPTIME = 8
_LONG_AFTER = 1 << 60


def mend_inventory(images: Path) -> None:
    """Has CRIU take the processes of the next dump for those of this one, even if they were restored in
    between and so are younger: what was not written is known without that (tracking.py)."""
    path = images / "inventory.img"
    data = path.read_bytes()
    # This image has one magic number, the others have two.
    end = 8 + int.from_bytes(data[4:8], "little")
    kept = [(number, value) for number, value in fields(data[8:end]) if number != _DUMP_UPTIME]
    mended = b"".join(encode({number: value}) for number, value in [*kept, (_DUMP_UPTIME, _LONG_AFTER)])
    path.write_bytes(data[:4] + len(mended).to_bytes(4, "little") + mended + data[end:])


_COMMON_MAGIC, _INVENTORY_MAGIC, _PAGEMAP_MAGIC = 0x54564319, 0x58313116, 0x56084025
_IMAGES_VERSION = 2
_PAGE_PRESENT = 4


def _framed(*messages: Message) -> bytes:
    bodies = [encode(message) for message in messages]
    return b"".join(struct.pack("<I", len(body)) + body for body in bodies)


def write_memory(folder: Path, memory: Mapping[int, Sequence[tuple[int, int]]]) -> None:
    """Images of nothing but memory, for a dump to be compared with: of each process the addresses of its
    pages and how many follow each other. The pages themselves are in pages-PID.img."""
    for pid, stretches in memory.items():
        entries: list[Message] = [
            {1: at, 2: 0, 4: _PAGE_PRESENT, 5: count} for at, count in stretches if count
        ]
        magic = struct.pack("<II", _COMMON_MAGIC, _PAGEMAP_MAGIC)
        (folder / f"pagemap-{pid}.img").write_bytes(magic + _framed({1: pid}, *entries))
    inventory = _framed({1: _IMAGES_VERSION, _DUMP_UPTIME: _LONG_AFTER})
    (folder / "inventory.img").write_bytes(struct.pack("<I", _INVENTORY_MAGIC) + inventory)


_REMAPPED_BY_LINK = 0


def has_link_remaps(images: Path) -> bool:
    """Whether CRIU has given names to files that had lost theirs. They are in the tree of files only until
    it lets the processes go on."""
    remaps = read_image(images / "remap-fpath.img")
    return any(entry.get(3, _REMAPPED_BY_LINK) == _REMAPPED_BY_LINK for entry in remaps)


_HARMLESS = ("rlimit: Can't setup RLIMIT_NOFILE for self", "No parent image found, though parent directory")
"""CRIU would like to open more files than it is allowed to, and goes on without; and it says so when a
process was not there yet at the dump that it compares with."""


def errors_in(log: Path) -> list[str]:
    """The error lines of a log, without CRIU's own source positions."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [
        line.split(": ", 1)[-1].strip()
        for line in lines
        if "Error (" in line and not any(words in line for words in _HARMLESS)
    ]
