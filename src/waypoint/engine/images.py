"""The files of a dump: CRIU's image files, read and corrected, and what Waypoint writes beside them.

CRIU writes protocol buffers into its images and speaks them on its socket. Twenty fields are used here; a
dependency and a code generator would cost more than the small reader and writer below. The numbers of the
fields are named after CRIU's own .proto files; fields that are not named are skipped.

Beside the images are `tree.json`, what a restore has to know and CRIU does not save, and `sizes.json`, by
which a damaged checkpoint is noticed.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import msgspec

from waypoint.api.hints import Arg, Hint
from waypoint.engine.traits import Traits
from waypoint.errors import CannotRestore
from waypoint.model import Record

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
    at = 0
    while at < len(data):
        key, at = _decode_varint(data, at)
        wire_type = key & 7
        if wire_type == 0:
            value, at = _decode_varint(data, at)
            yield key >> 3, value
        elif wire_type == 2:
            length, at = _decode_varint(data, at)
            yield key >> 3, data[at : at + length]
            at += length
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
            yield key >> 3, int.from_bytes(data[at : at + size], "little")
            at += size
        else:
            raise ValueError(f"protobuf wire type {wire_type}")


def decode(data: int | bytes | None) -> dict[int, int | bytes]:
    """A message whose fields do not repeat: the last value of each. A field that is no message is empty."""
    return dict(fields(data)) if isinstance(data, bytes) else {}


# ---- what Waypoint writes beside the images ------------------------------------------------------

_STATE_FILE = "tree.json"
_SIZES_FILE = "sizes.json"
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
    notes: tuple[str, ...] = ()
    """What a restore will bring back differently, one sentence each."""


def write_state(images: Path, state: TreeState) -> None:
    (images / _STATE_FILE).write_bytes(msgspec.json.encode(state))


def read_state(images: Path) -> TreeState:
    return msgspec.json.decode((images / _STATE_FILE).read_bytes(), type=TreeState)


def record_sizes(images: Path) -> None:
    """Writes down how large each file is. The last step of a dump."""
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(images)}
    (images / _SIZES_FILE).write_bytes(msgspec.json.encode(sizes))


def check_sizes(images: Path) -> None:
    """Refuses a damaged checkpoint: CRIU would wait without end for the rest of a truncated file. (The
    contents of the files are checked by the file system, where it keeps checksums.)"""
    try:
        sizes = msgspec.json.decode((images / _SIZES_FILE).read_bytes(), type=dict[str, int])
        wrong = [name for name, size in sizes.items() if (images / name).stat().st_size != size]
    except (OSError, msgspec.DecodeError) as error:
        raise CannotRestore(f"the checkpoint is damaged: {error}", hint=RESTORE_FILES_ONLY) from error
    if wrong:
        raise CannotRestore(
            f"the checkpoint is damaged: {wrong[0]} is not what was written",
            hint=RESTORE_FILES_ONLY,
            files=wrong,
        )


# ---- CRIU's images -------------------------------------------------------------------------------

_COMMON_MAGIC, _INVENTORY_MAGIC, _PAGEMAP_MAGIC = 0x54564319, 0x58313116, 0x56084025
_IMAGES_VERSION = 2


# The numbers of fields, and values of theirs, by message.
_FILE_TYPE, _FILE_ISK, _FILE_TFD = 1, 4, 12  # file_entry
_FILE_TYPE_INETSK, _FILE_TYPE_TIMERFD = 4, 17
_SOCKET_SRC_ADDR = 11  # inet_sk_entry
_TIMER_TICKS, _TIMER_SETTIME_FLAGS = 5, 6  # timerfd_entry
_TIMER_VSEC, _TIMER_VNSEC, _TIMER_ISEC, _TIMER_INSEC = 7, 8, 9, 10  # the time left, and the period
_TFD_TIMER_ABSTIME = 1
_PSTREE_PID, _PSTREE_SID = 1, 4  # pstree_entry
_INVENTORY_IMG_VERSION, _INVENTORY_DUMP_UPTIME = 1, 8  # inventory_entry
_LONG_AFTER = 1 << 60
_PAGEMAP_HEAD_PAGES_ID = 1  # pagemap_head
_PAGEMAP_VADDR, _PAGEMAP_COMPAT_NR_PAGES, _PAGEMAP_FLAGS, _PAGEMAP_NR_PAGES = 1, 2, 4, 5  # pagemap_entry
_PAGEMAP_PRESENT = 4
_REMAP_TYPE, _REMAP_TYPE_LINKED = 3, 0  # remap_file_path_entry
_TTY_ID, _TTY_SID = 1, 6  # tty_info_entry; the id is twice the index, plus one for a master
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
    """CRIU's own measurements of a dump."""

    freezing_ms: float
    frozen_ms: float
    pages_written: int
    pages_in_parent: int = 0
    """Not written since the dump it was compared with, and so not copied."""

    @property
    def pause_ms(self) -> float:
        return self.freezing_ms + self.frozen_ms


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


def correct_sessions(images: Path) -> None:
    """Makes the anchor the leader of the session that the tree was started in. Its real leader is the keeper,
    which is not saved, and CRIU restores a session only if an ancestor leads it. (native/shim.c keeps the
    anchor from creating a session when it is restored.)"""
    path = images / "pstree.img"
    data = path.read_bytes()
    entries = []
    at = 8
    while at + 4 <= len(data):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "little")
        entries.append(list(fields(data[start:at])))
    anchor = dict(entries[0])
    keepers, anchors = (_PSTREE_SID, anchor[_PSTREE_SID]), (_PSTREE_SID, anchor[_PSTREE_PID])
    body = b""
    for entry in entries:
        message = b"".join(encode(dict([anchors if field == keepers else field])) for field in entry)
        body += struct.pack("<I", len(message)) + message
    path.write_bytes(data[:8] + body)


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
