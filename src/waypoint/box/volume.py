"""A volume: the writable tree in the pool that holds what a checkpoint's file snapshot has to hold.

    upper/            the writable layer over the base
    mounts/NAME/      the writable layer over a file system that is mounted below the base, one each
    shm/              /dev/shm
    state/            what the shell reports about itself, seen in the box at /dev/waypoint.state
    kept/             files of an earlier base that processes have mapped or open, if any
    moved.json        which of those mounts are at another path by now, if any
    filesystems.json  what was mounted below the base when the last box was built
    hidden.json       the paths that were hidden from the session when it began
    work-now/         overlayfs's own folders, one for each layer; fresh for each box, except for the index
    work-old-BOX/     those of the box before: a snapshot contains them, they are removed in the background

An overlay does not see what is mounted below its lower layer, so `examine_base` lists those mounts and each
one gets a layer of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from waypoint.box.filesystems import changed_file_systems, detach_from_base, note_file_systems
from waypoint.home import Home
from waypoint.kernel import files as files_of
from waypoint.kernel import homes, mounts, overlay
from waypoint.kernel.pool.lifecycle import is_pool
from waypoint.kernel.syscalls import RESOLVE_IN_ROOT, openat2
from waypoint.model import BoxOptions

_MOVED = "moved.json"
_HIDDEN = "hidden.json"
_WORK = "work-now"


@dataclass(frozen=True)
class BaseMounts:
    """The file systems mounted below a base, as paths inside the box, and how a box shows each of them."""

    layered: tuple[str, ...]
    """With a writable layer of their own, like the base itself; outermost first."""
    read_only: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    """Path and type of those that no box shows."""
    other_homes: tuple[str, ...]
    """Folders of other Waypoint homes on this machine, which no box sees."""


def examine_base(base: Path, home: Home) -> BaseMounts:
    """Sorts the mounts below a base by how a box shows them."""
    layered, read_only, left_out = [], [], []
    table = mounts.mounts()
    known = homes.known_homes(table)
    pools = homes.devices_of_homes(known, table)
    folders = {home.path, *(other.path for other in known)}
    for mount in mounts.mounts_below(str(base), table):
        if mount.device in pools or any(Path(mount.path).is_relative_to(folder) for folder in folders):
            continue
        if is_pool(Path(mount.path), mount.source):  # of a home that no version with a registry has opened
            continue
        inside = "/" + os.path.relpath(mount.path, base)
        if mount.fstype in mounts.LAYERED and os.path.isdir(mount.path):
            layered.append(inside)
        elif mount.fstype in mounts.READ_ONLY and os.path.isdir(mount.path):
            read_only.append(inside)
        elif not f"{inside}/".startswith(("/proc/", "/sys/", "/dev/", "/run/")):
            left_out.append((inside, mount.fstype))
    others = tuple(_inside(folder, base) for folder in folders - {home.path} if folder.is_relative_to(base))
    return BaseMounts(tuple(layered), tuple(read_only), tuple(left_out), others)


def hidden_paths(
    options: BoxOptions, base: Path, home: Home, base_mounts: BaseMounts | None = None
) -> list[str]:
    """What a session must not see of its base: the folders of every Waypoint home, and what its options
    hide."""
    base_mounts = base_mounts or examine_base(base, home)
    return [*hidden_for_good(options, base, home), *base_mounts.other_homes]


def hidden_for_good(options: BoxOptions, base: Path, home: Home) -> list[str]:
    """What a session never sees, for its whole life. (Other homes come and go: masks.py.)"""
    return [*own_paths_below(base, home), *options.hide]


def own_paths_below(folder: Path, home: Home) -> list[str]:
    """Where Waypoint keeps things, as far as it is below a folder; as paths in that folder."""
    own = (home.path, home.run.parent, homes.REGISTRY)
    return [_inside(path, folder) for path in own if path.is_relative_to(folder)]


def mounts_of_homes_below(folder: str) -> list[str]:
    """What is mounted for homes below a folder of the host, relative to it; innermost first. A bind mount of
    that folder would carry it along, and no home could close its pool."""
    table = mounts.mounts()
    known = homes.known_homes(table)
    pools = homes.devices_of_homes(known, table)
    prefix = folder.rstrip("/") + "/"
    below = [mount.path for mount in table if mount.device in pools and mount.path.startswith(prefix)]
    return [os.path.relpath(path, folder) for path in reversed(below)]


def _inside(path: Path, base: Path) -> str:
    return "/" + os.path.relpath(path, base)


def note_hidden(volume: Path, paths: Collection[str]) -> None:
    """Records what is hidden when a session begins: it stays no part of the session, whatever is mounted
    later."""
    (volume / _HIDDEN).write_text(json.dumps(sorted(paths)))


def noted_hidden(volume: Path, base: Path) -> list[str]:
    """What was hidden when the session of a volume began, as far as the base still has it."""
    noted: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        noted = json.loads((volume / _HIDDEN).read_text())
    return [path for path in noted if os.path.lexists(base / path.lstrip("/"))]


# ---- a new volume ---------------------------------------------------------------------------------


def make_volume(volume: Path, layered: Sequence[str] = ()) -> None:
    """Makes the folders of a new, empty volume, with a layer for each of these mounts below the base."""
    for folder, mode in (("upper", 0o755), ("mounts", 0o700), ("shm", 0o1777), ("state", 0o755)):
        (volume / folder).mkdir()
        (volume / folder).chmod(mode)
    for path in layered:
        _mount_layer(volume, path).mkdir(mode=0o755)


def _mount_layer(volume: Path, mount: str) -> Path:
    return volume / "mounts" / quote(mount, safe="")


def write_first_files(volume: Path, base: Path, files: Mapping[str, str]) -> None:
    """Writes the files in which a new session differs from its base (its resolver, its name) into its
    layer."""
    for path, text in files.items():
        inside, content = path.lstrip("/"), text.encode()
        # A base may be hostile: a FIFO would never answer, a sparse file would fill the memory.
        if files_of.read(str(base / inside), len(content) + 1) == content:
            continue
        _make_parents(volume / "upper", base, Path(inside))
        (volume / "upper" / inside).write_text(text)
        (volume / "upper" / inside).chmod(0o644)


def _make_parents(upper: Path, lower: Path, inside: Path) -> None:
    """Makes the folders above a path in a layer. They cover those of the lower layer, so they get the same
    metadata."""
    for folder in reversed(inside.parents[:-1]):
        target = upper / folder
        if not target.is_dir():
            target.mkdir(mode=0o755)
            if (lower / folder).is_dir():
                status = (lower / folder).stat()
                os.chown(target, status.st_uid, status.st_gid)
                shutil.copystat(lower / folder, target)


def empty_hidden(volume: Path, base: Path, home: Home, options: BoxOptions) -> None:
    """Makes every path that is hidden for good empty in the session's own layer, before anything runs in it.

    A mask is mounted over it in every box as well, but a mount belongs to a path: after a folder above it was
    renamed, the next box would have the mask at the old path and the hidden files at the new one.
    """
    base_mounts = examine_base(base, home)
    root = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in hidden_for_good(options, base, home):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                target = openat2(root, path, os.O_PATH, resolve=RESOLVE_IN_ROOT)
                try:
                    inside = Path(os.path.relpath(os.readlink(f"/proc/self/fd/{target}"), base))
                    is_folder = stat.S_ISDIR(os.fstat(target).st_mode)
                finally:
                    os.close(target)
                _cover(volume, base, base_mounts, inside, is_folder=is_folder)
    finally:
        os.close(root)


def _cover(volume: Path, base: Path, base_mounts: BaseMounts, inside: Path, *, is_folder: bool) -> None:
    """Puts an empty folder or file over a path of the base, in the layer that the path belongs to."""
    upper, lower = volume / "upper", base
    for mount in base_mounts.layered:
        if inside.is_relative_to(mount.lstrip("/")):
            upper, lower = _mount_layer(volume, mount), base / mount.lstrip("/")
    inside = (base / inside).relative_to(lower)
    if inside == Path():
        return  # the root of a file system: renaming a folder does not move it to another path
    upper.mkdir(exist_ok=True)
    _make_parents(upper, lower, inside)
    if is_folder:
        (upper / inside).mkdir(mode=0o755, exist_ok=True)
        os.setxattr(upper / inside, "trusted.overlay.opaque", b"y")
    else:
        (upper / inside).touch(mode=0o644)


# ---- layers of a box ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """One overlay of a box: the arguments of its mount."""

    lower: Path
    upper: Path
    work: Path
    target: str
    """Where it is in the box."""


def prepare_layers(
    volume: Path, base: Path, base_mounts: BaseMounts, open_files: Collection[str] = ()
) -> list[Layer]:
    """The overlays of the next box on this volume, each with a fresh work folder: the base's first, then
    the mounts below it, outermost first. `open_files`: names in the overlays' index that are carried over,
    because a tree that is going to be restored has these files open."""
    work, old_work = volume / _WORK, volume / f"work-old-{volume.name}"
    with contextlib.suppress(FileNotFoundError):
        work.rename(old_work)
    work.mkdir(mode=0o700)

    changed = changed_file_systems(volume, base, base_mounts.layered)

    def layer(name: str, lower: Path, upper: Path, target: str) -> Layer:
        (work / name).mkdir(mode=0o700)
        overlay.carry_index(old_work / name / "index", work / name / "index", upper, lower, keep=open_files)
        return Layer(lower, upper, work / name, target)

    layers = [layer("base", base, volume / "upper", "/")]
    for path, target in _mount_targets(volume, base_mounts):
        upper, lower = _mount_layer(volume, path), base / path.lstrip("/")
        if not lower.is_dir():
            lower = work / f"{upper.name}.empty"
            lower.mkdir(mode=0o755)
        if path in changed:
            detach_from_base(upper, lower)
            shutil.rmtree(old_work / upper.name, ignore_errors=True)  # its index belongs to the other one
        layers.append(layer(upper.name, lower, upper, target))
    note_file_systems(volume, base, base_mounts.layered)
    return layers


def _mount_targets(volume: Path, base_mounts: BaseMounts) -> list[tuple[str, str]]:
    """The mounts below the base that the session was made with, each with its path in the box.

    File systems that the host has mounted since are not among them: the box may not have a folder for them.
    Those that the host has unmounted since are left out, unless the session has changed files in them.
    """
    moved: dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError):
        moved = json.loads((volume / _MOVED).read_text())
    targets = []
    for layer in (volume / "mounts").iterdir():
        path = unquote(layer.name)
        if path in base_mounts.layered or any(layer.iterdir()):
            targets.append((path, moved.get(path, path)))
    return sorted(targets, key=lambda target: target[1])


def note_moved_mounts(volume: Path, keeper_pid: int) -> None:
    """Records in a volume which of its mounts are at another path by now, because a folder above was
    renamed in the box. Must be called before each snapshot."""
    layers = {layer.name: unquote(layer.name) for layer in (volume / "mounts").iterdir()}
    moved = {}
    for mount in mounts.mounts(keeper_pid) if layers else ():
        for name, path in layers.items():
            is_layer = f"/{volume.name}/mounts/{name},workdir=" in mount.super_options
            if is_layer and mount.path != path:
                moved[path] = mount.path
    if moved:
        (volume / _MOVED).write_text(json.dumps(moved))
    else:
        (volume / _MOVED).unlink(missing_ok=True)


def drop_old_work(volume: Path) -> None:
    """Removes the work folders of earlier boxes, which a snapshot contains. They may hold an entry for each
    file that was ever deleted, so this is for the background."""
    with contextlib.suppress(FileNotFoundError):  # the session has been removed meanwhile
        for folder in volume.glob("work-*"):
            if folder.name != _WORK:
                shutil.rmtree(folder, ignore_errors=True)
