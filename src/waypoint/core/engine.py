"""Where the core meets the engine: what it needs of it, and the engine that saves and revives with CRIU.

The protocols are small, so that the verbs can be tested with an engine that has no processes and fails on
demand (tests/fakes.py).
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from waypoint.box.box import Box
from waypoint.engine.dump import Dump, is_savable
from waypoint.engine.images import DumpStats, TreeState
from waypoint.engine.lazy import LazyFailed, PageServer, may_come_later
from waypoint.engine.memory import Memory, supported
from waypoint.engine.revive import hold
from waypoint.kernel.network.sockets import Connection
from waypoint.kernel.processes import Process
from waypoint.model import Platform

_MOST_LAZY_FAILURES = 3
"""After so many in a row no tree is restored without its memory any more: this machine does not let it."""


class TrackedMemory(Protocol):
    """The memory of one process tree: what was written since the last dump, so that only that is copied."""

    def prepare(self, host_pids: Iterable[int]) -> int: ...
    def should_precopy(self, size_bytes: int) -> bool: ...
    def precopy(self, folder: Path) -> int: ...
    def track_from(self, host_pids: Iterable[int], images: Path) -> None: ...
    def watch(self) -> socket.socket | None: ...
    def complete(self) -> None: ...
    def failure(self) -> str | None: ...
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

    def track_memory(self, box: Box) -> TrackedMemory: ...
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
    def hold(self, box: Box, images: Path, lazy_from: Path | None = None) -> HeldTree: ...


class CriuEngine:
    """The real one: waypoint/engine."""

    def __init__(self, folder: Path, platform: Platform, lazy_bytes: int | None = None) -> None:
        """`lazy_bytes`: a tree with so much memory is restored without it, and gets it when it needs it;
        None: no tree is."""
        self._folder, self.platform, self._lazy_bytes = folder, platform, lazy_bytes
        self._lazy_failures = 0

    def track_memory(self, box: Box) -> Memory:
        return Memory(self._folder, box)

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

    def hold(self, box: Box, images: Path, lazy_from: Path | None = None) -> HeldTree:
        """`lazy_from`: much memory may come later. The images of the point, by the name that they keep."""
        lazy = (
            lazy_from is not None
            and not box.userns  # there a restored process may open no userfaultfd
            and self._lazy_bytes is not None
            and may_come_later(images, self._lazy_bytes)
            and supported(self._folder)
        )
        if not lazy:
            return hold(box, images)
        try:
            held = hold(box, images, PageServer(box, self._folder, lazy_from))
        except LazyFailed:
            self._lazy_failures += 1
            if self._lazy_failures >= _MOST_LAZY_FAILURES:
                self._lazy_bytes = None
            raise
        self._lazy_failures = 0
        return held
