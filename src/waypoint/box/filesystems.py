"""File systems below a base that are not what they were: unmounted, or others at the same place.

A volume has a layer for each of them. An overlay refuses a layer that was made over another file system, so
every point of a session over `/` was lost with a disk that was replaced. What a session has changed in a file
system belongs to the point, what was below it does not. So the changes are shown, by path, over what is there
now, and the difference is named.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from waypoint.kernel import mounts
from waypoint.kernel.overlay import file_handle
from waypoint.kernel.processes import printable

_NOTES = "filesystems.json"
_ORIGIN = "trusted.overlay.origin"
_REDIRECT = "trusted.overlay.redirect"
_FS_IOC_GETFSUUID = 0x80111500  # _IOR(0x15, 0, struct fsuuid2)
_UUID_BYTES = 17
_STABLE_NUMBER = frozenset({"btrfs", "ext2", "ext3", "ext4"})
"""Where f_fsid of statfs(2) is made from the uuid, and not from a device number."""


def note_file_systems(volume: Path, base: Path, layered: tuple[str, ...]) -> None:
    """Writes down what is mounted at the places for which a volume has layers."""
    table = mounts.mounts()
    notes = {}
    for path in _layers(volume).values():
        notes[path] = _identity(base / path.lstrip("/"), table) if path in layered else ""
    if notes:
        (volume / _NOTES).write_text(json.dumps(notes))


def changed_file_systems(volume: Path, base: Path, layered: tuple[str, ...]) -> dict[str, str]:
    """The places where something else, or nothing, is mounted now: each with a sentence about it. A volume of
    an older version says only where nothing is mounted any more."""
    layers = _layers(volume)
    if not layers:
        return {}
    notes: dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError):
        notes = json.loads((volume / _NOTES).read_text())
    table = mounts.mounts()
    changed = {}
    for name, path in layers.items():
        then = notes.get(path)
        now = _identity(base / path.lstrip("/"), table) if path in layered else ""
        if now == then or (then is None and now):
            continue
        left = "; what the session changed there is shown over what is there now"
        what = "is another file system now" if now else "is not mounted on the host any more"
        has_changes = any((volume / "mounts" / name).iterdir())
        changed[path] = f"{printable(path)} {what}{left if has_changes else ''}"
    return changed


def detach_from_base(upper: Path, lower: Path) -> None:
    """Makes a layer fit another base: its files no longer say of which ones they were copies, and folders
    that this base does not have say no longer what was deleted from them. (An overlay merges only folders
    that are in both; in others such a mark would be a file.)"""
    renamed: list[str] = []
    for folder, _, files, fd in os.fwalk(upper, follow_symlinks=False):
        inside = os.path.relpath(folder, upper)
        place = f"/proc/self/fd/{fd}"
        with contextlib.suppress(OSError):
            os.removexattr(place, _ORIGIN)
        with contextlib.suppress(OSError):
            os.getxattr(place, _REDIRECT)
            renamed.append(folder)
        is_merged = os.path.isdir(lower / inside) or any(f"{folder}/".startswith(f"{at}/") for at in renamed)
        for name in files:
            with contextlib.suppress(OSError):  # it has none, or is a link
                os.removexattr(f"{place}/{name}", _ORIGIN, follow_symlinks=False)
            if not is_merged and _is_whiteout(os.lstat(name, dir_fd=fd)):
                os.unlink(name, dir_fd=fd)


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _layers(volume: Path) -> dict[str, str]:
    """The layers of a volume: the name of each, and the place below the base that it belongs to."""
    return dict(_names(volume))


def _names(volume: Path) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(FileNotFoundError):
        for layer in (volume / "mounts").iterdir():
            yield layer.name, unquote(layer.name)


def _identity(folder: Path, table: list[mounts.Mount]) -> str:
    """What tells a file system from another one, also after a reboot. Nothing where nothing is mounted."""
    mount = mounts.mount_at(folder, table)
    if mount is None:
        return ""
    try:
        kind, handle = file_handle(folder)
    except OSError:
        kind, handle = 0, b""
    return f"{mount.fstype} {_uuid(folder, mount.fstype)} {kind}:{handle.hex()}"


def _uuid(folder: Path, fstype: str) -> str:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        answer = bytearray(_UUID_BYTES)
        fcntl.ioctl(fd, _FS_IOC_GETFSUUID, answer)
        return answer[1 : 1 + answer[0]].hex()
    except OSError:  # kernels before 6.9, and file systems without one
        return f"{os.fstatvfs(fd).f_fsid:x}" if fstype in _STABLE_NUMBER else ""
    finally:
        os.close(fd)
