"""The files of a dump: CRIU's image files, read and corrected, and what Waypoint writes beside them.

CRIU writes protocol buffers into its images and speaks them on its socket. Twenty fields are used here; a
dependency and a code generator would cost more than the small reader and writer below. The numbers of the
fields are named after CRIU's own .proto files; fields that are not named are skipped.

Beside the images are `tree.json`, what a restore has to know and CRIU does not save, and `sizes.json`, by
which a damaged checkpoint is noticed.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

import msgspec

from waypoint.api.hints import Arg, Hint
from waypoint.engine.socket_options import SocketOptions
from waypoint.engine.traits import Traits
from waypoint.errors import CannotRestore
from waypoint.model import MALFORMED, Record, from_json

# ---- protocol buffers ----------------------------------------------------------------------------

Value = int | bytes | str | bool | list["Message"]
Message = dict[int, "Value | list[str] | Message"]
"""A message to be written: values by field number."""


def _encode_varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode(message: Message) -> bytes:
    """Bool and int as varints, str and bytes as they are, a dict as a message, a list as repeated fields."""
    out = b""
    for number, value in message.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, (bool, int)):
                out += _encode_varint(number << 3) + _encode_varint(int(item))
                continue
            body = (
                encode(item) if isinstance(item, dict) else item.encode() if isinstance(item, str) else item
            )
            out += _encode_varint(number << 3 | 2) + _encode_varint(len(body)) + body
    return out


def _decode_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: varints and fixed numbers as int, the rest as bytes."""
    for number, value, _ in spans(data):
        yield number, value


def spans(data: bytes) -> Iterator[tuple[int, int | bytes, int]]:
    """The same, each with the place where it ends."""
    at = 0
    while at < len(data):
        key, at = _decode_varint(data, at)
        wire_type = key & 7
        value: int | bytes
        if wire_type == 0:
            value, at = _decode_varint(data, at)
        elif wire_type == 2:
            length, at = _decode_varint(data, at)
            value, at = data[at : at + length], at + length
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
            value, at = int.from_bytes(data[at : at + size], "little"), at + size
        else:
            raise ValueError(f"protobuf wire type {wire_type}")
        yield key >> 3, value, at


def decode(data: int | bytes | None) -> dict[int, int | bytes]:
    """A message whose fields do not repeat: the last value of each. A field that is no message is empty."""
    return dict(fields(data)) if isinstance(data, bytes) else {}


# ---- what Waypoint writes beside the images ------------------------------------------------------

_STATE_FILE = "tree.json"
_SIZES_FILE = "sizes.json"
WRITTEN_BY_RESTORES = frozenset({"restore.log", "stats-restore"})
"""What CRIU leaves beside the images when it restores them: no part of the dump."""
RESTORE_FILES_ONLY = Hint(
    "nothing has changed; ", Arg("restore", files_only=True), " brings back the files with a fresh shell"
)


class Lock(Record, frozen=True):
    """A POSIX lock: its process, the descriptor, and the range. A length of 0 means "to the end"."""

    pid: int
    fd: int
    write: bool
    start: int
    length: int


class FileRecord(Record, frozen=True):
    """What SQLite remembers in a process of a file that is open as `fd`, and where (engine/sqlite.py)."""

    pid: int
    fd: int
    device: int
    inode: int
    address: int
    holder: int


class SocketWatch(Record, frozen=True):
    """An inotify watch on the path of a bound socket (engine/watches.py)."""

    pid: int
    fd: int
    number: int
    mask: int
    inode: int
    path: bytes


class Birth(Record, frozen=True):
    """A process that its session's leader has to fork for the leader's own parent (engine/sessions.py)."""

    pid: int
    session: int
    dead: bool = False
    """Whether the leader has ended, and is made once more for it."""


class DeadSession(Record, frozen=True):
    """A session whose leader has ended, and what CRIU takes for it."""

    session: int
    shown_session: int
    shown_group: int


class Sessions(Record, frozen=True):
    """What the shim has to know of sessions to make them again."""

    births: tuple[Birth, ...] = ()
    dead: tuple[DeadSession, ...] = ()
    moved: tuple[int, ...] = ()
    """Zombies that get the session of their parent."""


class Maker(Record, frozen=True):
    """The process that made one end of a connection. Its number is 0 where it is not known."""

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class Listener(Record, frozen=True):
    maker: Maker
    type: int
    name: bytes = b""
    folder: str = ""


class Pair(Record, frozen=True):
    """A connection. Its ends have the numbers 2n and 2n + 1. With a `listener` the first one was connected
    to it; without one, socketpair() made both."""

    type: int
    maker: Maker
    listener: Listener | None = None
    name: bytes = b""
    """The first end's own."""
    folder: str = ""
    second_name: bytes = b""
    """The second end's own, without a listener: an abstract one."""


class Peers(Record, frozen=True):
    """What makes the unix connections of a tree again."""

    pairs: tuple[Pair, ...] = ()
    listeners: tuple[Maker, ...] = ()
    """Who called listen(): those that a restore has to act as."""


class TreeState(Record, frozen=True):
    """What a restore has to know of a tree besides CRIU's images."""

    anchor: int
    status_pipe: int
    foreground: int
    last_pid: int
    ipc: bool
    """Whether the IPC namespace is in the images."""
    network_locked: bool
    outside_pipes: tuple[int, ...] = ()
    """Inodes of pipes whose other ends are outside the tree."""
    locks: tuple[Lock, ...] = ()
    typed: dict[int, bytes] = msgspec.field(default_factory=dict)
    """Input of the box's terminals that was typed and not yet read, by the terminal's index."""
    shell: int = 0
    processes: int = 0
    open_files: tuple[str, ...] = ()
    traits: tuple[Traits, ...] = ()
    watches: tuple[SocketWatch, ...] = ()
    sessions: Sessions = Sessions()
    peers: Peers = Peers()
    file_records: tuple[FileRecord, ...] = ()
    socket_options: tuple[SocketOptions, ...] = ()
    exit_codes: dict[int, int] = msgspec.field(default_factory=dict)
    """Of processes that have ended and were not waited for: those that CRIU would cut short, by pid."""
    ended_ids: dict[int, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Of all that are not root's, by pid: users (real, effective, saved, of files), and four groups."""
    removed_segments: tuple[int, ...] = ()
    """System V shared memory that goes with its last user (IPC_RMID)."""
    notes: tuple[str, ...] = ()
    """What a restore will bring back differently, one sentence each."""


def write_state(images: Path, state: TreeState) -> None:
    (images / _STATE_FILE).write_bytes(msgspec.json.encode(state))


def read_state(images: Path) -> TreeState:
    try:
        return from_json((images / _STATE_FILE).read_bytes(), TreeState)
    except (OSError, *MALFORMED) as error:
        raise _damaged(str(error)) from error


def record_sizes(images: Path) -> None:
    """Writes down how large each file is. The last step of a dump."""
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(images)}
    (images / _SIZES_FILE).write_bytes(msgspec.json.encode(sizes))


def check_sizes(images: Path) -> None:
    """Refuses a damaged checkpoint: CRIU would wait without end for the rest of a truncated file. (The
    contents of the files are checked by the file system, where it keeps checksums.)"""
    try:
        sizes = from_json((images / _SIZES_FILE).read_bytes(), dict[str, int])
        wrong = [name for name, size in sizes.items() if (images / name).stat().st_size != size]
    except (OSError, *MALFORMED) as error:
        raise _damaged(str(error)) from error
    if wrong:
        raise _damaged(f"{wrong[0]} is not what was written", files=wrong)


def _damaged(reason: str, **details: Any) -> CannotRestore:
    return CannotRestore(f"the checkpoint is damaged: {reason}", hint=RESTORE_FILES_ONLY, **details)


# ---- CRIU's images -------------------------------------------------------------------------------

_COMMON_MAGIC, _INVENTORY_MAGIC, _PAGEMAP_MAGIC = 0x54564319, 0x58313116, 0x56084025
_IMAGES_VERSION = 2


# The numbers of fields, and values of theirs, by message.
_FILE_TYPE, _FILE_ISK, _FILE_TFD, _FILE_USK = 1, 4, 12, 16  # file_entry
_FILE_TYPE_INETSK, _FILE_TYPE_UNIXSK, _FILE_TYPE_TIMERFD = 4, 5, 17
_USK_STATE, _USK_PEER, _USK_NAME, _USK_NAME_DIR, _USK_DELETED = 4, 8, 11, 14, 15  # unix_sk_entry
_USK_ESTABLISHED = 1
_SOCKET_SRC_ADDR = 11  # inet_sk_entry
_TIMER_TICKS, _TIMER_SETTIME_FLAGS = 5, 6  # timerfd_entry
_TIMER_VSEC, _TIMER_VNSEC, _TIMER_ISEC, _TIMER_INSEC = 7, 8, 9, 10  # the time left, and the period
_TFD_TIMER_ABSTIME = 1
_INVENTORY_IMG_VERSION, _INVENTORY_DUMP_UPTIME = 1, 8  # inventory_entry
_LONG_AFTER = 1 << 60
_PAGEMAP_HEAD_PAGES_ID = 1  # pagemap_head
_PAGEMAP_VADDR, _PAGEMAP_COMPAT_NR_PAGES, _PAGEMAP_FLAGS, _PAGEMAP_NR_PAGES = 1, 2, 4, 5  # pagemap_entry
_PAGEMAP_PRESENT = 4
_MM_VMAS, _VMA_START, _VMA_END = 14, 1, 2  # mm_entry, and in it vma_entry
_REMAP_TYPE, _REMAP_TYPE_LINKED = 3, 0  # remap_file_path_entry
# tty_info_entry; the id is twice the index, plus one for a master
_TTY_ID, _TTY_SID, _TTY_PGRP, _TTY_WINSIZE = 1, 6, 7, 11
_WINSIZE = (1, 2, 3, 4)  # winsize_entry: rows, columns, and both in pixels
_CORE_TC, _TC_STATE, _TASK_STOPPED = 3, 1, 3  # core_entry, and in it a task_core_entry
# core_entry, in it a thread_core_entry, and in it a creds_entry
_CORE_THREAD, _THREAD_CREDS, _CREDS_SECUREBITS = 5, 10, 13
_SECBIT_NO_CAP_AMBIENT_RAISE = 1 << 6
_STATS_DUMP = 1  # stats_entry, and in it a dump_stats_entry:
_STATS_FREEZING_TIME, _STATS_FROZEN_TIME, _STATS_PAGES_SKIPPED_PARENT, _STATS_PAGES_WRITTEN = 1, 2, 6, 7


def read_image(path: Path) -> Iterator[dict[int, int | bytes]]:
    """The entries of an image file: two magic numbers, then length and message, repeated."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    at = 8
    while at + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, at)
        yield decode(data[at + 4 : at + 4 + length])
        at += 4 + length


@dataclass(frozen=True)
class DumpStats:
    """CRIU's own measurements of a dump, and for how long the processes stood still."""

    freezing_ms: float
    frozen_ms: float
    pages_written: int
    pages_in_parent: int = 0
    """Not written since the dump it was compared with, and so not copied."""
    group_frozen_ms: float = 0.0
    """For how long their control group was frozen."""

    @property
    def pause_ms(self) -> float:
        return max(self.freezing_ms + self.frozen_ms, self.group_frozen_ms)


def dump_stats(images: Path) -> DumpStats:
    for entry in read_image(images / "stats-dump"):
        if numbers := decode(entry.get(_STATS_DUMP)):
            return DumpStats(
                freezing_ms=int(numbers.get(_STATS_FREEZING_TIME, 0)) / 1000,
                frozen_ms=int(numbers.get(_STATS_FROZEN_TIME, 0)) / 1000,
                pages_written=int(numbers.get(_STATS_PAGES_WRITTEN, 0)),
                pages_in_parent=int(numbers.get(_STATS_PAGES_SKIPPED_PARENT, 0)),
            )
    return DumpStats(0.0, 0.0, 0)


def inner_terminals(images: Path) -> dict[int, int]:
    """The terminals that live wholly inside a dumped tree: index → session leader, 0 where there is none."""
    infos = [(int(entry[_TTY_ID]), int(entry[_TTY_SID])) for entry in read_image(images / "tty-info.img")]
    return {tty_id >> 1: session for tty_id, session in infos if tty_id & 1}


def orphaned_terminals(images: Path) -> frozenset[int]:
    """The indices of terminals inside a dumped tree of which only the slave is open."""
    ids = {int(entry[_TTY_ID]) for entry in read_image(images / "tty-info.img")}
    return frozenset(tty_id >> 1 for tty_id in ids if tty_id and not tty_id & 1 and tty_id | 1 not in ids)


def window_sizes(images: Path) -> dict[int, tuple[int, ...]]:
    """The sizes of the terminals of a dumped tree, by index: rows, columns, and both in pixels."""
    sizes = {}
    for entry in read_image(images / "tty-info.img"):
        if size := decode(entry.get(_TTY_WINSIZE)):
            sizes[int(entry[_TTY_ID]) >> 1] = tuple(int(size[number]) for number in _WINSIZE)
    return sizes


def stopped_pids(images: Path) -> frozenset[int]:
    """The processes that were suspended when the tree was frozen: /proc does not tell while it is."""
    stopped = set()
    for path in images.glob("core-*.img"):
        for entry in read_image(path):
            if decode(entry.get(_CORE_TC)).get(_TC_STATE) == _TASK_STOPPED:
                stopped.add(int(path.stem.removeprefix("core-")))
    return frozenset(stopped)


def may_raise_ambient(images: Path, pid: int) -> bool:
    """Whether the securebits of a process let it have ambient capabilities that it had not."""
    for entry in read_image(images / f"core-{pid}.img"):
        creds = decode(decode(entry.get(_CORE_THREAD)).get(_THREAD_CREDS))
        if int(creds.get(_CREDS_SECUREBITS, 0)) & _SECBIT_NO_CAP_AMBIENT_RAISE:
            return False
    return True


def bound_addresses(images: Path) -> list[str]:
    """The IPv4 addresses that saved sockets are bound to, loopback ones aside: a restore has to have them.
    (The kernel does not list all of them: not those of connections that could not be made.)"""
    addresses = set()
    for entry in read_image(images / "files.img"):
        inet_socket = entry.get(_FILE_ISK)
        if entry[_FILE_TYPE] != _FILE_TYPE_INETSK or not isinstance(inet_socket, bytes):
            continue
        # Repeated: one value for each word of the address in memory.
        words = [value for number, value in fields(inet_socket) if number == _SOCKET_SRC_ADDR]
        address = ip_address(b"".join(int(word).to_bytes(4, sys.byteorder) for word in words))
        if isinstance(address, IPv6Address):
            address = address.ipv4_mapped or address
        if address.version == 4 and not address.is_loopback and not address.is_unspecified:
            addresses.add(str(address))
    return sorted(addresses)


def has_link_remaps(images: Path) -> bool:
    """Whether CRIU has linked files that had lost their names. The new names exist only until CRIU lets the
    processes go on."""
    remaps = read_image(images / "remap-fpath.img")
    return any(entry.get(_REMAP_TYPE, _REMAP_TYPE_LINKED) == _REMAP_TYPE_LINKED for entry in remaps)


def correct_timers(images: Path) -> None:
    """Corrects what CRIU saves of timer descriptors.

    The kernel starts the next period of an expired timer when it is read, and reports no time left until
    then: CRIU would restore it switched off. Of a timer set to a point in time CRIU restores the seconds
    only, so that it would expire up to a second early: it becomes a timer of the time that is left.
    """
    path = images / "files.img"
    data = bytearray(path.read_bytes())
    at, changed = 8, False
    while at + 4 <= len(data):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "little")
        # The type is the first field: all other entries need not be decoded.
        if data[start : start + 2] != bytes((_FILE_TYPE << 3, _FILE_TYPE_TIMERFD)):
            continue
        entry: Message = {**decode(bytes(data[start:at]))}
        timer: Message = {**decode(decode(bytes(data[start:at]))[_FILE_TFD])}
        has_period = timer[_TIMER_ISEC] or timer[_TIMER_INSEC]
        has_time_left = timer[_TIMER_VSEC] or timer[_TIMER_VNSEC]
        if timer[_TIMER_TICKS] and has_period and not has_time_left:
            timer[_TIMER_VNSEC] = 1
        if timer[_TIMER_SETTIME_FLAGS] == _TFD_TIMER_ABSTIME:
            timer[_TIMER_SETTIME_FLAGS] = 0
        body = encode({**entry, _FILE_TFD: encode(timer)})
        assert len(body) == at - start
        changed = changed or body != data[start:at]
        data[start:at] = body
    if changed:
        path.write_bytes(data)


def correct_terminals(images: Path, controlling: Collection[int | None]) -> None:
    """Takes the session from terminals that control no process, by the indices of those that do. A session
    loses its terminal when the slave is closed, and its master still tells of that session."""
    path = images / "tty-info.img"
    if not path.exists():
        return
    data = path.read_bytes()
    out = [data[:8]]
    at = 8
    while at + 4 <= len(data):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "little")
        body = data[start:at]
        entry = decode(body)
        if entry[_TTY_SID] and int(entry[_TTY_ID]) >> 1 not in (0, *controlling):
            body = encode({**entry, _TTY_SID: 0, _TTY_PGRP: 0})
        out += [len(body).to_bytes(4, "little"), body]
    path.write_bytes(b"".join(out))


def correct_unix_sockets(images: Path) -> None:
    """Takes the name from the ends of unix connections whose other end is closed and whose name has no file
    any more. CRIU does not give it back to them, and waits for ever until it is there."""
    path = images / "files.img"
    data = path.read_bytes()
    out = [data[:8]]
    at, changed = 8, False
    while at + 4 <= len(data):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "little")
        body = data[start:at]
        if body[:2] == bytes((_FILE_TYPE << 3, _FILE_TYPE_UNIXSK)):
            entry = decode(decode(body)[_FILE_USK])
            is_left = entry[_USK_STATE] == _USK_ESTABLISHED and not entry[_USK_PEER]
            if is_left and entry.get(_USK_DELETED):
                changed = True
                entry = {**entry, _USK_NAME: b"", _USK_DELETED: 0}
                entry.pop(_USK_NAME_DIR, None)
                body = encode({**decode(body), _FILE_USK: encode({**entry})})
        out += [len(body).to_bytes(4, "little"), body]
    if changed:
        path.write_bytes(b"".join(out))


def correct_inventory(images: Path) -> None:
    """Has CRIU compare the next dump with this one even if the processes were restored in between and so
    are younger than this dump. Which pages were written is known without their age (memory.py)."""
    path = images / "inventory.img"
    data = path.read_bytes()
    # This image has one magic number, the others have two.
    end = 8 + int.from_bytes(data[4:8], "little")
    entries = [(number, value) for number, value in fields(data[8:end]) if number != _INVENTORY_DUMP_UPTIME]
    entries.append((_INVENTORY_DUMP_UPTIME, _LONG_AFTER))
    body = b"".join(encode({number: value}) for number, value in entries)
    path.write_bytes(data[:4] + len(body).to_bytes(4, "little") + body + data[end:])


def _frame(*messages: Message) -> bytes:
    bodies = [encode(message) for message in messages]
    return b"".join(struct.pack("<I", len(body)) + body for body in bodies)


def memory_bytes(images: Path) -> dict[int, int]:
    """How much of the memory of each process is in the images."""
    sizes: dict[int, int] = {}
    for entry in os.scandir(images):
        kind, _, number = entry.name.removesuffix(".img").partition("-")
        if kind != "pagemap" or not number.isdecimal():
            continue
        with open(entry.path, "rb") as file, contextlib.suppress(FileNotFoundError):
            start = file.read(64)  # two magic numbers, a length and the first message, which has one number
            head = decode(start[12 : 12 + int.from_bytes(start[8:12], "little")])
            pages = images / f"pages-{head[_PAGEMAP_HEAD_PAGES_ID]!r}.img"
            sizes[int(number)] = pages.stat().st_size
    return sizes


def area_starts(images: Path, pid: int, at_least_bytes: int) -> set[int]:
    """Where the areas of a process begin that have this size."""
    starts = set()
    with contextlib.suppress(FileNotFoundError):
        image = (images / f"mm-{pid}.img").read_bytes()
        for number, value in fields(image[12:]):  # two magic numbers and the length of its one message
            area = decode(value) if number == _MM_VMAS and isinstance(value, bytes) else {}
            if area and int(area[_VMA_END]) - int(area[_VMA_START]) >= at_least_bytes:
                starts.add(int(area[_VMA_START]))
    return starts


def write_memory(folder: Path, ranges: Mapping[int, Sequence[tuple[int, int]]]) -> None:
    """Images of memory alone, for a dump to be compared with: for each process, ranges of pages as address
    and number of pages. The pages themselves are in pages-PID.img."""
    for pid, pairs in ranges.items():
        entries: list[Message] = [
            {
                _PAGEMAP_VADDR: address,
                _PAGEMAP_COMPAT_NR_PAGES: 0,
                _PAGEMAP_FLAGS: _PAGEMAP_PRESENT,
                _PAGEMAP_NR_PAGES: count,
            }
            for address, count in pairs
            if count
        ]
        magic = struct.pack("<II", _COMMON_MAGIC, _PAGEMAP_MAGIC)
        (folder / f"pagemap-{pid}.img").write_bytes(magic + _frame({_PAGEMAP_HEAD_PAGES_ID: pid}, *entries))
    inventory = _frame({_INVENTORY_IMG_VERSION: _IMAGES_VERSION, _INVENTORY_DUMP_UPTIME: _LONG_AFTER})
    (folder / "inventory.img").write_bytes(struct.pack("<I", _INVENTORY_MAGIC) + inventory)
