"""Where the core meets the engine: what it needs of it, and the engine that saves and revives with CRIU.

The protocols are small, so that the verbs can be tested with an engine that has no processes and fails on
demand (tests/fakes.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from waypoint.box.box import Box
from waypoint.engine.dump import Dump, is_savable
from waypoint.engine.images import DumpStats, TreeState
from waypoint.engine.memory import Memory
from waypoint.engine.revive import hold
from waypoint.kernel.network.sockets import Connection
from waypoint.kernel.processes import Process
from waypoint.model import Platform


class TrackedMemory(Protocol):
    """The memory of one process tree: what was written since the last dump, so that only that is copied."""

    def prepare(self, host_pids: Iterable[int]) -> int: ...
    def should_precopy(self, size_bytes: int) -> bool: ...
    def precopy(self, folder: Path) -> int: ...
    def track_from(self, host_pids: Iterable[int], images: Path) -> None: ...
    def set_baseline(self, images: Path) -> None: ...
    def close(self) -> None: ...


class TreeDump(Protocol):
    """One dump of a process tree (engine.dump.Dump)."""

    state: TreeState
    stats: DumpStats

    def pauses(self) -> Iterable[list[Process]]: ...


class HeldTree(Protocol):
    """A process tree that exists and has not run yet (engine.revive.HeldTree)."""

    state: TreeState
    released: bool

    @property
    def complete(self) -> bool: ...
    def runs(self, pid: int) -> bool: ...
    def stop_timers(self) -> None: ...
    def release(self) -> None: ...
    def close(self) -> None: ...


class Engine(Protocol):
    """Saves the process tree of a box and brings it back to life in another one."""

    platform: Platform

    def track_memory(self) -> TrackedMemory: ...
    def dump(
        self,
        box: Box,
        folder: Path,
        *,
        outside_pipes: Sequence[int],
        shell: int,
        memory: TrackedMemory,
        complete_folder: Path,
        forwarded: Collection[Connection],
        stays_frozen: bool = False,
    ) -> AbstractContextManager[TreeDump]: ...
    def is_savable(self, box: Box, forwarded: Collection[Connection]) -> bool: ...
    def hold(self, box: Box, images: Path) -> HeldTree: ...


class CriuEngine:
    """The real one: waypoint/engine."""

    def __init__(self, folder: Path, platform: Platform) -> None:
        self._folder, self.platform = folder, platform

    def track_memory(self) -> Memory:
        return Memory(self._folder)

    def dump(
        self,
        box: Box,
        folder: Path,
        *,
        outside_pipes: Sequence[int],
        shell: int,
        memory: TrackedMemory,
        complete_folder: Path,
        forwarded: Collection[Connection],
        stays_frozen: bool = False,
    ) -> Dump:
        assert isinstance(memory, Memory)
        return Dump(
            box,
            folder,
            outside_pipes=outside_pipes,
            shell=shell,
            memory=memory,
            complete_folder=complete_folder,
            forwarded=forwarded,
            stays_frozen=stays_frozen,
        )

    def is_savable(self, box: Box, forwarded: Collection[Connection]) -> bool:
        return is_savable(box, forwarded)

    def hold(self, box: Box, images: Path) -> HeldTree:
        return hold(box, images)
