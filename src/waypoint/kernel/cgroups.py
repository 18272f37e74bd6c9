"""cgroups(7): the control groups of a box: one with its limits, and one to stop its processes.

A box that uses too much must end its own programs and not the machine's, so memory, processors and the
number of processes can be limited; memory and processes are, for every box. The keeper is moved into this
group. For the first process that is moved in the kernel waits for a grace period, 5 to 15 ms: it is moved as
soon as it is started, and builds the box meanwhile.

The other group is for the processes of the session alone, without the keeper and without CRIU. It is frozen
while CRIU works, so that nothing in the box can signal CRIU or change its limits. It needs version 2, which
has a freezer in every group whatever controllers it has. Processes are never moved into it: clone3 with
CLONE_INTO_CGROUP starts them there, which costs nothing.

Two versions of the interface are in use, sometimes on one machine: version 2, one tree for all controllers,
and version 1, one tree for each. Which controller is where is read from the mount table. The groups lie
directly below the root of each tree as `waypoint-TAG-BOX`, beside those of other container programs: what
limits the daemon does not limit the boxes.
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

from waypoint.errors import MachineError, MissingFeature, UsageError, translated
from waypoint.kernel import mounts
from waypoint.kernel.memory import machine_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from waypoint.kernel.mounts import Mount

CONTROLLERS = ("memory", "cpu", "pids")
CPU_PERIOD_US = 100_000
CPU_QUOTA_MIN_US = 1_000
"""Below that the kernel refuses a quota."""

FREEZE_FILE = "cgroup.freeze"
_REMOVE_SECONDS = 2.0


@dataclass(frozen=True)
class Limits:
    """What a box may use at most; None means no limit."""

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


_MEMORY_SHARE = 3 / 4
_PROCESS_SHARE = 1 / 4
_MOST_PROCESSES = 8192
_FEWEST_PROCESSES = 256


def usual_limits(
    memory_bytes: int | None = None, pids: int | None = None, *, trees: list[Hierarchy] | None = None
) -> Limits:
    """What a box may use whose session was given no limits: as much as leaves something to the others. A
    limit that this machine cannot set is left out; 0 means none."""
    trees = hierarchies() if trees is None else trees
    offered = frozenset[str]().union(*(tree.controllers for tree in trees))
    if memory_bytes is None:
        memory_bytes = int(machine_bytes().get("MemTotal", 0) * _MEMORY_SHARE)
    if pids is None:
        pids = max(_FEWEST_PROCESSES, min(_MOST_PROCESSES, int(_machine_processes() * _PROCESS_SHARE)))
    return Limits(
        memory_bytes=memory_bytes or None if "memory" in offered else None,
        pids=pids or None if "pids" in offered else None,
    )


def _machine_processes() -> int:
    """How many processes and threads the machine can have."""
    settings = (Path("/proc/sys/kernel") / name for name in ("pid_max", "threads-max"))
    return min(int(path.read_text()) for path in settings)


@dataclass(frozen=True)
class Hierarchy:
    """One tree of control groups, and the controllers that it offers."""

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
    """By controller, the files and the values to write to them, in this order.

    A limit of memory is one of memory and swap together: a box with a limit of 512M does not get more by
    making the machine swap.
    """
    files: dict[str, list[tuple[str, str]]] = {}
    if limits.memory_bytes is not None:
        size = str(limits.memory_bytes)
        files["memory"] = (
            [("memory.max", size), ("memory.swap.max", "0")]
            if version == 2
            else [("memory.limit_in_bytes", size), ("memory.memsw.limit_in_bytes", size)]
        )
    if limits.cpus is not None:
        quota = str(int(limits.cpus * CPU_PERIOD_US))
        files["cpu"] = (
            [("cpu.max", f"{quota} {CPU_PERIOD_US}")]
            if version == 2
            else [("cpu.cfs_period_us", str(CPU_PERIOD_US)), ("cpu.cfs_quota_us", quota)]
        )
    if limits.pids is not None:
        files["pids"] = [("pids.max", str(limits.pids))]
    return files


_SWAP_FILES = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""They do not exist where the kernel does not account swap, and are then not needed."""


@dataclass(frozen=True)
class Cgroup:
    """The control groups of one box: a folder in each tree needed for its limits, and one to freeze."""

    name: str
    folders: Mapping[Path, int] = field(hash=False)
    """Each with the version of its tree."""
    tree: Path | None = None
    """The group of the session's own processes; None without version 2."""

    @cached_property
    def procs_files(self) -> tuple[Path, ...]:
        """A process that writes its own pid (or 0) to each of these is in the group, with all that it
        starts."""
        return tuple(folder / "cgroup.procs" for folder in self.folders)

    def add(self, pid: int) -> None:
        """Moves a process in. Its existing children stay where they are."""
        for path in self.procs_files:
            with translated(f"put process {pid} into", path.parent):
                path.write_text(str(pid))

    def limits(self) -> Limits:
        """Those that are in force, but for the processors."""
        return Limits(
            memory_bytes=self._number("memory.max", "memory.limit_in_bytes"), pids=self._number("pids.max")
        )

    def _number(self, *files: str) -> int | None:
        for path in (folder / file for folder in self.folders for file in files):
            with contextlib.suppress(OSError, ValueError):  # "max"
                if (number := int(path.read_text())) < _ENDLESS:
                    return number
        return None

    @contextlib.contextmanager
    def room_for(self, processes: int) -> Iterator[None]:
        """Allows some more processes for a moment: those of Waypoint, in a box that has as many as it may."""
        raised: list[tuple[Path, str]] = []
        for path in (folder / "pids.max" for folder in self.folders):
            with contextlib.suppress(OSError, ValueError):
                now = path.read_text()
                path.write_text(str(int(now) + processes))
                raised.append((path, now))
        try:
            yield
        finally:
            for path, before in raised:
                with contextlib.suppress(OSError):
                    path.write_text(before)

    def remove(self) -> None:
        """Removes the group, if it still exists. Waits for its last processes, which may be about to end."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        own = dict.fromkeys((self.tree, self.tree.parent)) if self.tree else {}
        for folder in (*own, *(folder for folder in self.folders if folder not in own)):
            while True:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > deadline:
                        raise MachineError(f"cannot remove {folder}: {error}", pids=_pids(folder)) from error
                    time.sleep(0.002)
                else:
                    break


def _pids(folder: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    return []


_TREE = "tree"
_ENDLESS = 1 << 62
"""Version 1 has no word for "no limit of memory", but a number that is about as large as a number can be."""


def _name(tag: str, box_id: str = "") -> str:
    if not re.fullmatch(r"[A-Za-z0-9]+", tag) or not re.fullmatch(r"[A-Za-z0-9_-]*", box_id):
        raise UsageError(f"not a name for a control group: {tag!r}, {box_id!r}")
    return f"waypoint-{tag}-{box_id}"


def _enable(tree: Hierarchy, controllers: frozenset[str]) -> None:
    """Makes controllers of a version 2 tree available to the groups below its root."""
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
    """Makes the groups of a box, with its limits in force before a process is in it.

    A limit that cannot be set is an error. Without limits no folder has any; without version 2 there is
    nothing to freeze: every method works then and does nothing.
    """
    limits = limits or Limits()
    name = _name(tag, box_id)
    wanted = frozenset(limit_files(2, limits))
    trees = hierarchies() if trees is None else trees
    folders: dict[Path, int] = {}
    group = Cgroup(name, folders, _make_tree(trees, name))
    if not wanted:
        return group
    if lacking := wanted.difference(*(tree.controllers for tree in trees)):
        raise _missing(lacking)
    with contextlib.ExitStack() as failed:
        failed.callback(group.remove)
        for tree in trees:
            if needed := tree.controllers & wanted:
                try:
                    folders[_make(tree, name, needed, limits)] = tree.version
                except OSError as error:
                    raise _missing(needed, f": {error}") from error
        failed.pop_all()
    return group


def _make_tree(trees: list[Hierarchy], name: str) -> Path | None:
    """The group to freeze. A machine that has none, or does not let us make one, does without."""
    for tree in trees:
        if tree.version == 2:
            folder = tree.path / name / _TREE
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                if (folder / FREEZE_FILE).exists():
                    return folder
            with contextlib.suppress(OSError):
                folder.rmdir()
                folder.parent.rmdir()
    return None


def is_frozen(tree: Path) -> bool:
    """Whether every process of a group that was frozen stands still."""
    return "frozen 1" in (tree / "cgroup.events").read_text().splitlines()


def _make(tree: Hierarchy, name: str, needed: frozenset[str], limits: Limits) -> Path:
    if tree.version == 2:
        _enable(tree, needed)
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
    """The group that an earlier daemon made for a box; one without folders if there is none."""
    name = _name(tag, box_id)
    trees = hierarchies() if trees is None else trees
    found = [tree for tree in trees if (tree.path / name).is_dir()]
    inner = (tree.path / name / _TREE for tree in found if tree.version == 2)
    group = next((folder for folder in inner if folder.is_dir()), None)
    limiting = (tree for tree in found if tree.controllers or not group)
    return Cgroup(name, {tree.path / name: tree.version for tree in limiting}, group)


def box_ids(tag: str, *, trees: list[Hierarchy] | None = None) -> set[str]:
    """The boxes of a home that have a group, whether they run or not."""
    start, ids = _name(tag), set()
    for tree in hierarchies() if trees is None else trees:
        with contextlib.suppress(OSError):
            ids |= {name.removeprefix(start) for name in os.listdir(tree.path) if name.startswith(start)}
    return ids
