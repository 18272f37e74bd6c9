"""Moving an overlay's index into the work folder of another mount.

With `index=on` overlayfs keeps, beside the upper layer, an entry for each file and folder of the base that
was copied up, named after the base's file handle. It is how two names of one file of the base stay
names of one file after it was changed, and how a file keeps its inode number. The index belongs to one
mount: it carries the handle of its upper layer, and refuses the same layer in a snapshot (ESTALE), because
there every handle has another subvolume's number in it. So a snapshot gets a new index, made of the
entries of the old one:

- a file's is a hard link to it in the upper layer, and is good as it is;
- a folder's is empty and holds the handle of the folder in the upper layer: the number in it is exchanged.
  (Inode numbers and generations are the same in a snapshot. Where the layer was copied they are not, and
  the entry is left behind: such a folder has another inode number from then on.)
- a whiteout says that the file was deleted, for those who ask by handle: nobody can know one yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from pathlib import Path

from waypoint.kernel.syscalls import libc, oserror

_UPPER = "trusted.overlay.upper"
_HEADER_BYTES = 21
"""struct ovl_fb up to `fid`: version, magic, len, flags, type, uuid."""
_TYPE_AT = 4
_FILEID_BTRFS = 0x4D
"""FILEID_BTRFS_WITHOUT_PARENT; its `fid` is objectid (u64), root_objectid (u64), generation (u32)."""
_ROOT_AT = _HEADER_BYTES + 8
_MOST_HANDLE_BYTES = 128


def _subvolume(path: Path) -> bytes | None:
    """The number of the subvolume a folder is in, as it stands in file handles; None where there is none."""
    handle = ctypes.create_string_buffer(struct.pack("Ii", _MOST_HANDLE_BYTES, 0), 8 + _MOST_HANDLE_BYTES)
    mount_id = ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), handle, ctypes.byref(mount_id), 0) < 0:  # AT_FDCWD
        raise oserror("name_to_handle_at", path)
    _, kind = struct.unpack_from("Ii", handle.raw)
    return handle.raw[16:24] if kind == _FILEID_BTRFS else None


def carry_index(old: Path, new: Path, upper: Path) -> None:
    """Moves the entries of the index `old` of an overlay that was not unmounted into the new index `new`, for
    a copy of its upper layer. That there is no old one is no error."""
    number = _subvolume(upper)
    with contextlib.suppress(FileNotFoundError), os.scandir(old) as entries:
        new.mkdir(mode=0o700)
        for entry in entries:
            if entry.is_file(follow_symlinks=False) or entry.is_symlink():
                os.rename(entry.path, new / entry.name)
            elif entry.is_dir(follow_symlinks=False) and number is not None:
                handle = os.getxattr(entry.path, _UPPER)
                if handle[_TYPE_AT] == _FILEID_BTRFS:
                    os.setxattr(entry.path, _UPPER, handle[:_ROOT_AT] + number + handle[_ROOT_AT + 8 :])
                    os.rename(entry.path, new / entry.name)
