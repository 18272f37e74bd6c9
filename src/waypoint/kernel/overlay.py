"""The index of an overlay, moved into the work folder of another mount.

With `index=on` overlayfs keeps, beside the upper layer, an entry for each file and folder of the base that
was copied up, named after the base's file handle. Because of it two names of one file of the base are still
names of one file after it was changed, and a file keeps its inode number. The index belongs to one mount: it
records the handle of its upper layer, and overlayfs refuses it for the same layer in a snapshot (ESTALE),
because there every handle contains the number of another subvolume. So a snapshot gets a new index, made of
the entries of the old one:

- The entry of a file is a hard link to it in the upper layer, and is valid as it is. It is moved if the file
has
  more than one name in the base, or if it is open: a program may remember its inode number (SQLite stops
  writing to a file whose number has changed). Other entries are removed, because a file whose entry is older
  than the mount shows one link too many.
- The entry of a folder is empty and holds the handle of the folder in the upper layer: the number in it is
  exchanged. Inode numbers and generations are the same in a snapshot. Where the layer was copied they are
  not, and the entry is not moved: such a folder has another inode number from then on.
- A whiteout says that the file was deleted, for a process that has its handle. In a new box no process has
one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Collection
from pathlib import Path

from waypoint.kernel.syscalls import libc, oserror

_UPPER = "trusted.overlay.upper"
_LINKS = "trusted.overlay.nlink"
_HEADER_BYTES = 21
"""struct ovl_fb up to `fid`: version, magic, len, flags, type, uuid."""
_LENGTH_AT, _FLAGS_AT, _TYPE_AT = 2, 3, 4
_FLAG_UPPER = 1 << 2
FILEID_OVERLAY = 0xF8
_PADDING_BYTES = 3
_FILEID_BTRFS = 0x4D
"""FILEID_BTRFS_WITHOUT_PARENT; its `fid` is objectid (u64), root_objectid (u64), generation (u32)."""
_ROOT_AT = _HEADER_BYTES + 8
_MAX_HANDLE_BYTES = 128
_AT_FDCWD, _AT_SYMLINK_FOLLOW = -100, 0x400


def file_handle(path: str | Path) -> tuple[int, bytes]:
    """The kind and the bytes of a file handle; links are followed."""
    room = ctypes.create_string_buffer(struct.pack("Ii", _MAX_HANDLE_BYTES, 0), 8 + _MAX_HANDLE_BYTES)
    mount_id = ctypes.c_int()
    words = (_AT_FDCWD, os.fsencode(path), room, ctypes.byref(mount_id), _AT_SYMLINK_FOLLOW)
    if libc.name_to_handle_at(*words) < 0:
        raise oserror("name_to_handle_at", path)
    length, kind = struct.unpack_from("Ii", room.raw)
    return kind, room.raw[8 : 8 + length]


def _subvolume(path: Path) -> bytes | None:
    """The number of the subvolume that a folder is in, as file handles contain it; None when there is
    none."""
    kind, handle = file_handle(path)
    return handle[8:16] if kind == _FILEID_BTRFS else None


def index_name(path: str) -> str | None:
    """The name of a file of an overlay in the index, whether it has an entry or not; None when the file is
    not of an overlay's base."""
    kind, handle = file_handle(path)
    if kind != FILEID_OVERLAY:
        return None
    lower = handle[_PADDING_BYTES : _PADDING_BYTES + handle[_PADDING_BYTES + _LENGTH_AT]]
    return None if lower[_FLAGS_AT] & _FLAG_UPPER else lower.hex()


def lower_handle(path: str) -> tuple[int, bytes] | None:
    """The kind and the bytes of the handle that a file of an overlay has in its base; None when it is not of
    the base."""
    name = index_name(path)
    if name is None:
        return None
    record = bytes.fromhex(name)
    return record[_TYPE_AT], record[_HEADER_BYTES:]


def handle_of_lower(example: str, kind: int, handle: bytes) -> bytes | None:
    """The handle by which an overlay opens a file of its base, wherever a process has moved it since: made
    from the handle of the base's file. `example`: any file of the overlay; None when that one is not of its
    base."""
    name = index_name(example)
    if name is None:
        return None
    record = bytearray.fromhex(name)[:_HEADER_BYTES]
    record[_LENGTH_AT] = _HEADER_BYTES + len(handle)
    record[_TYPE_AT] = kind
    return bytes(_PADDING_BYTES) + bytes(record) + handle


def _links_below(name: str, lower: int) -> int:
    """How many names a file has in the base, by its name in the index."""
    record = bytes.fromhex(name)
    handle = struct.pack("Ii", len(record) - _HEADER_BYTES, record[_TYPE_AT]) + record[_HEADER_BYTES:]
    file = libc.open_by_handle_at(lower, handle, os.O_PATH | os.O_CLOEXEC)
    if file < 0:
        return 0
    try:
        return os.fstat(file).st_nlink
    finally:
        os.close(file)


def _is_linked(entry: os.DirEntry[str], lower: int) -> bool:
    """Whether a file may be seen under another name that only the base has."""
    with contextlib.suppress(OSError):
        # The link count that the overlay shows is stored as a difference to the upper layer's ("U-1") or the
        # base's.
        links = os.getxattr(entry.path, _LINKS, follow_symlinks=False)
        if links[:1] == b"U" and entry.stat(follow_symlinks=False).st_nlink + int(links[1:]) <= 1:
            return False
    return _links_below(entry.name, lower) > 1


def carry_index(old: Path, new: Path, upper: Path, lower: Path, *, keep: Collection[str]) -> None:
    """Moves the entries of the index `old` into the new index `new`, for a copy of its upper layer. `keep`
    names the entries of open files. Entries of files that nothing needs are removed. That there is no old
    index is no error."""
    number = _subvolume(upper)
    with contextlib.suppress(FileNotFoundError), os.scandir(old) as entries:
        new.mkdir(mode=0o700)
        base = os.open(lower, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) or entry.is_symlink():
                    if entry.name in keep or _is_linked(entry, base):
                        os.rename(entry.path, new / entry.name)
                    else:
                        os.unlink(entry.path)  # else the file would show a link that no program made
                elif entry.is_dir(follow_symlinks=False) and number is not None:
                    handle = os.getxattr(entry.path, _UPPER)
                    if handle[_TYPE_AT] == _FILEID_BTRFS:
                        os.setxattr(entry.path, _UPPER, handle[:_ROOT_AT] + number + handle[_ROOT_AT + 8 :])
                        os.rename(entry.path, new / entry.name)
        finally:
            os.close(base)
