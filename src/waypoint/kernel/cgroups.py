"""Limits for a box: one control group for each that has any.

A box that runs away must end its own programs and not the machine's, so memory, processors and the
number of processes can be capped. A box without limits gets no group: making one takes a fraction of a
millisecond, but moving the first process in makes the kernel wait for a grace period, 5 to 15 ms during
which nothing on the machine can fork. (On version 2 the move can be avoided: clone3 with
CLONE_INTO_CGROUP starts a process inside.)

Two generations of the interface are in use, sometimes on one machine: version 2, one tree for all
controllers, and version 1, one tree for each. Which controller is where is read from the mount table. The
groups lie directly below the root of each tree as `waypoint-TAG-BOX`, beside those of other container
programs: what limits the daemon does not limit the boxes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from waypoint.errors import MachineError, MissingFeature, UsageError
from waypoint.kernel import mounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from waypoint.kernel.mounts import Mount

CONTROLLERS = ("memory", "cpu", "pids")
COUNTED = frozenset({"memory", "pids"})
CPU_PERIOD_US = 100_000
CPU_QUOTA_MIN_US = 1_000
"""Below that the kernel refuses a quota."""

_REMOVE_SECONDS = 2.0


@dataclass(frozen=True)
class Limits:
    """What a box may use at most; None is without limit."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None

    def __post_init__(self) -> None:
        if self.memory_bytes is not None and self.memory_bytes < 4 << 20:
            raise UsageError(f"{self.memory_bytes} bytes of memory are not enough for a shell")
        if self.cpus is not None and not self.cpus * CPU_PERIOD_US >= CPU_QUOTA_MIN_US:
            raise UsageError(f"a box needs more than {self.cpus:g} processors", hint="the least is 0.01")
        if self.pids is not None and self.pids < 2:
            raise UsageError(f"a box needs more than {self.pids} processes")


@dataclass(frozen=True)
class Stats:
    """What the processes of a box use; None where the kernel does not count it."""

    memory_bytes: int | None
    memory_peak_bytes: int | None
    pids: int | None


@dataclass(frozen=True)
class Hierarchy:
    """One tree of control groups and the controllers it has to offer."""

    version: int
    path: Path
    controllers: frozenset[str]


def hierarchies(table: list[Mount] | None = None) -> list[Hierarchy]:
    """The trees that have one of our controllers, and the unified one, whatever it has."""
    trees: dict[Path, Hierarchy] = {}
    for mount in mounts.mounts() if table is None else table:
        path = Path(mount.path)
        if mount.fstype == "cgroup":
            controllers = frozenset(mount.super_options.split(",")) & frozenset(CONTROLLERS)
            if controllers:
                trees[path] = Hierarchy(1, path, controllers)
        elif mount.fstype == "cgroup2":
            with contextlib.suppress(OSError):
                offered = (path / "cgroup.controllers").read_text().split()
                trees[path] = Hierarchy(2, path, frozenset(offered) & frozenset(CONTROLLERS))
    return list(trees.values())


def limit_files(version: int, limits: Limits) -> dict[str, list[tuple[str, str]]]:
    """By controller, what is to be written where, in this order.

    A limit of memory is one of memory and swap together: a box that is told 512M does not get more by
    making the machine swap.
    """
    wanted: dict[str, list[tuple[str, str]]] = {}
    if limits.memory_bytes is not None:
        size = str(limits.memory_bytes)
        wanted["memory"] = (
            [("memory.max", size), ("memory.swap.max", "0")]
            if version == 2
            else [("memory.limit_in_bytes", size), ("memory.memsw.limit_in_bytes", size)]
        )
    if limits.cpus is not None:
        quota = str(int(limits.cpus * CPU_PERIOD_US))
        wanted["cpu"] = (
            [("cpu.max", f"{quota} {CPU_PERIOD_US}")]
            if version == 2
            else [("cpu.cfs_period_us", str(CPU_PERIOD_US)), ("cpu.cfs_quota_us", quota)]
        )
    if limits.pids is not None:
        wanted["pids"] = [("pids.max", str(limits.pids))]
    return wanted


_SWAP_FILES = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""Absent where the kernel does not account swap, and then not missed."""


@dataclass(frozen=True)
class Cgroup:
    """The control group of one box: a folder in each tree that is needed for it."""

    name: str
    folders: Mapping[Path, int] = field(hash=False)
    """Each with the version of its tree."""

    @cached_property
    def procs_files(self) -> tuple[Path, ...]:
        """Who writes its own pid (or 0) to each of these is in, and so is all that it starts."""
        return tuple(folder / "cgroup.procs" for folder in self.folders)

    def add(self, pid: int) -> None:
        """Moves a process in. Its children that exist already stay where they are."""
        for path in self.procs_files:
            try:
                path.write_text(str(pid))
            except OSError as failure:
                raise MachineError(f"cannot put process {pid} into {path.parent}: {failure}") from failure

    def stats(self) -> Stats:
        """What it uses now, and the most it has used."""
        return Stats(
            memory_bytes=self._number("memory.current", "memory.usage_in_bytes"),
            memory_peak_bytes=self._number("memory.peak", "memory.max_usage_in_bytes"),
            pids=self._number("pids.current"),
        )

    def oom_kills(self) -> int:
        """How many of its processes the kernel has ended because the memory limit was reached."""
        for folder, version in self.folders.items():
            file = folder / ("memory.events" if version == 2 else "memory.oom_control")
            with contextlib.suppress(OSError):
                for line in file.read_text().splitlines():
                    name, _, count = line.partition(" ")
                    if name == "oom_kill":
                        return int(count)
        return 0

    def _number(self, *files: str) -> int | None:
        for folder in self.folders:
            for file in files:
                with contextlib.suppress(OSError, ValueError):
                    return int((folder / file).read_text())
        return None

    def remove(self) -> None:
        """Removes the group, if it is still there. Its last processes may be just about to end."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        for folder in self.folders:
            while True:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError as failure:
                    if failure.errno != errno.EBUSY or time.monotonic() > deadline:
                        raise MachineError(
                            f"cannot remove {folder}: {failure}", pids=_pids(folder)
                        ) from failure
                    time.sleep(0.002)
                else:
                    break


def _pids(folder: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    return []


def _name(tag: str, box_id: str = "") -> str:
    if not re.fullmatch(r"[A-Za-z0-9]+", tag) or not re.fullmatch(r"[A-Za-z0-9_-]*", box_id):
        raise UsageError(f"not a name for a control group: {tag!r}, {box_id!r}")
    return f"waypoint-{tag}-{box_id}"


def _enable(tree: Hierarchy, controllers: frozenset[str]) -> None:
    """Hands controllers of a version 2 tree down to the groups below its root, if nobody has yet."""
    file = tree.path / "cgroup.subtree_control"
    missing = controllers - set(file.read_text().split())
    if missing:
        file.write_text(" ".join(f"+{controller}" for controller in sorted(missing)))


def _missing(controllers: frozenset[str], cause: str = "") -> MissingFeature:
    named = ", ".join(sorted(controllers))
    return MissingFeature(
        f"no limit can be set here: the control group controller ({named}) is not available{cause}",
        hint="start the kernel with cgroup_enable=memory or mount the controller; or leave the limit out",
    )


def create(
    tag: str, box_id: str, limits: Limits | None = None, *, trees: list[Hierarchy] | None = None
) -> Cgroup:
    """Makes the group of a box, with its limits in force before anybody is in it.

    A limit that cannot be set is an error. Once there is one, memory and processes are counted as well
    where that is possible. Without limits it is a group of no folders: every method works and does nothing.
    """
    limits = limits or Limits()
    name = _name(tag, box_id)
    wanted = frozenset(limit_files(2, limits))
    folders: dict[Path, int] = {}
    group = Cgroup(name, folders)
    if not wanted:
        return group
    trees = hierarchies() if trees is None else trees
    if lacking := wanted.difference(*(tree.controllers for tree in trees)):
        raise _missing(lacking)
    with contextlib.ExitStack() as failed:
        failed.callback(group.remove)
        for tree in trees:
            if needed := tree.controllers & wanted:
                try:
                    folders[_make(tree, name, needed, limits)] = tree.version
                except OSError as failure:
                    raise _missing(needed, f": {failure}") from failure
            elif tree.controllers & COUNTED:
                with contextlib.suppress(OSError):
                    folders[_make(tree, name, needed, limits)] = tree.version
        failed.pop_all()
    return group


def _make(tree: Hierarchy, name: str, needed: frozenset[str], limits: Limits) -> Path:
    if tree.version == 2:
        _enable(tree, needed)
        with contextlib.suppress(OSError):
            _enable(tree, tree.controllers & COUNTED)
    folder = tree.path / name
    folder.mkdir(exist_ok=True)
    try:
        for controller, files in limit_files(tree.version, limits).items():
            if controller in needed:
                _write_limits(folder, files)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
    return folder


def _write_limits(folder: Path, files: list[tuple[str, str]]) -> None:
    for file, value in files:
        if file in _SWAP_FILES and not os.path.exists(folder / file):
            continue
        (folder / file).write_text(value)


def find(tag: str, box_id: str, *, trees: list[Hierarchy] | None = None) -> Cgroup:
    """The group that an earlier daemon made for a box; without folders if there is none."""
    name = _name(tag, box_id)
    trees = hierarchies() if trees is None else trees
    return Cgroup(name, {tree.path / name: tree.version for tree in trees if (tree.path / name).is_dir()})


def leftovers(tag: str, *, trees: list[Hierarchy] | None = None) -> list[str]:
    """The boxes that have a group now."""
    prefix = _name(tag)
    trees = hierarchies() if trees is None else trees
    found = {
        folder.name.removeprefix(prefix)
        for tree in trees
        for folder in tree.path.glob(prefix + "*")
        if folder.is_dir()
    }
    return sorted(found)
