"""Keeping the homes of this machine out of each other's boxes.

A box sees the host's files through its overlays and its bind mounts, and so the folders of other homes: their
pools and databases, which hold the memory of sessions. Each of them is covered by an empty read-only folder,
mounted by the keeper. The folder is opened by its file handle and not by its path, because a box may have
renamed a folder above it: the overlay then finds it where it is now.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

from waypoint.box.keeper import Keeper
from waypoint.kernel import mounts, overlay
from waypoint.kernel.homes import KnownHome
from waypoint.kernel.mounts import Mount


def is_mask(mount: Mount) -> bool:
    """Whether a mount looks like a mask: a folder that is empty and stays so. A keeper that did not answer in
    time (it was stopped, or the machine was busy) has mounted one that was not noted (`box.hide_home`)."""
    options = {*mount.options.split(",")}
    return (
        (mount.fstype, mount.source) == ("tmpfs", "none")
        and {"ro", "nosuid", "nodev", "noexec"} <= options
        and {"ro", "size=0k"} <= {*mount.super_options.split(",")}
    )


def mask_home(pid: int, keeper: Keeper, home: KnownHome) -> None:
    """Masks a home wherever a box shows it. `pid`: the box's keeper. OSError when the keeper cannot."""
    host = mounts.mounts()
    for mount in mounts.mounts(pid):
        if mount.fstype == "overlay":
            base = _base_of(mount)
            place = mounts.mount_of(base, host)
            if place is None or place.device != home.mount.device:
                continue
            if handle := _handle_in(pid, mount, base, home):
                _mask(keeper, mount.path, overlay.FILEID_OVERLAY, handle)
            elif home.path.is_relative_to(base):
                _mask(keeper, os.path.join(mount.path, home.path.relative_to(base)))
        elif mount.device == home.mount.device and _is_below(home.inner_path, mount.root):
            if home.handle:
                _mask(keeper, mount.path, home.kind, home.handle)
            else:
                inside = os.path.relpath(home.inner_path, mount.root)
                _mask(keeper, os.path.join(mount.path, inside))


def _mask(keeper: Keeper, path: str, kind: int = 0, handle: bytes = b"") -> None:
    try:
        keeper.mask(path, kind, handle)
    except OSError as error:
        # It is not below this mount, or the box has deleted a folder above it.
        if error.errno not in (errno.ESTALE, errno.ENOENT, errno.ENOTDIR):
            raise


def _base_of(mount: Mount) -> str:
    """What an overlay of a box is mounted over."""
    lower = re.search(r"(?:^|,)lowerdir=((?:\\.|[^,\\])*)", mount.super_options)
    return re.sub(r"\\(.)", r"\1", lower[1]) if lower else "/"


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _handle_in(pid: int, mount: Mount, base: str, home: KnownHome) -> bytes | None:
    """The handle of a home in an overlay of a box. Any file of the overlay's base shows how it is made; None
    when there is none. (The names come from the base: a box may have put a million files beside them.)"""
    if not home.handle:
        return None
    folder = Path(f"/proc/{pid}/root", mount.path.lstrip("/"))
    for name in os.listdir(base):
        with contextlib.suppress(OSError):  # the box has removed it, or another file system is mounted there
            if not (folder / name).is_symlink() and (
                handle := overlay.handle_of_lower(str(folder / name), home.kind, home.handle)
            ):
                return handle
    return None
