"""What CRIU would save without a word and could never restore. It is found while the tree stands still.

A point that cannot be restored must not be acknowledged: a park would end the only copy. CRIU itself notices
these things only when it restores. Each is looked for in /proc, beside CRIU's own work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence

from waypoint.kernel import mounts, processes
from waypoint.kernel.processes import Process
from waypoint.kernel.syscalls import open_by_handle

_NAMESPACES = ("pid", "mnt", "net", "user", "ipc", "uts", "time", "cgroup")
NESTED = "it lives in a nested pid namespace, which cannot be saved"
UNSENT = "it has a UDP datagram that is not sent yet (UDP_CORK, MSG_MORE)"
"""CRIU would drop it. It may be sent a moment later."""
VFORK = "it waits for a child (vfork) that has not started a program yet, and cannot be stopped"
"""Mostly the child does so a moment later."""
_VFORK_CALLS = (b"56", b"58", b"435")
"""clone, vfork, clone3"""
_INOTIFY = "anon_inode:inotify"
_NO_LEADER = "the leader of its session ({session}) is none of its ancestors"


Obstacle = tuple[Process, str]
"""A process that cannot be restored, and why."""


def find(
    anchor: Process,
    tree: Sequence[tuple[Process, Mapping[int, str]]],
    keeper_pid: int,
    unsent: Collection[int],
) -> list[Obstacle]:
    """The processes below the anchor that cannot be restored. `tree`: parents before children, each with
    the targets of its descriptors. `unsent`: inodes of sockets with datagrams that have not left."""
    members = [process for process, _ in tree]
    if nested := nested_processes(anchor, members):
        return [(process, NESTED) for process in nested]
    obstacles = [
        (process, _NO_LEADER.format(session=process.session)) for process in without_leader(anchor, members)
    ]
    usual = _namespaces(anchor.host_pid)
    for process in members:
        own = [kind for kind, name in _namespaces(process.host_pid).items() if name != usual.get(kind)]
        if own:
            obstacles.append((process, f"it lives in a {own[0]} namespace of its own, which cannot be saved"))
    lost = {f"socket:[{inode}]" for inode in unsent}
    obstacles += [(process, UNSENT) for process, targets in tree if not lost.isdisjoint(targets.values())]
    watchers = [
        (process, fd) for process, targets in tree for fd, target in targets.items() if target == _INOTIFY
    ]
    return [*obstacles, *_watches(watchers, keeper_pid)]


def find_unstoppable(tree: Sequence[Process]) -> list[Obstacle]:
    """The processes that CRIU would try to stop for ten seconds, while the others stand still already."""
    obstacles = []
    for process in tree:
        if process.state != "D":
            continue
        with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/syscall", "rb") as file:
            if file.read().split()[0] in _VFORK_CALLS:
                obstacles.append((process, VFORK))
    return obstacles


def nested_processes(anchor: Process, tree: Sequence[Process]) -> list[Process]:
    """Those in a pid namespace inside the box's, with their numbers in the box."""
    return [
        dataclasses.replace(process, pid=process.pids[anchor.namespaces - 1])
        for process in tree
        if process.namespaces > anchor.namespaces
    ]


def _namespaces(host_pid: int) -> dict[str, str]:
    """The namespaces of a process by kind; none of a process that has ended."""
    found = ((kind, processes.namespace(host_pid, kind)) for kind in _NAMESPACES)
    return {kind: name for kind, name in found if name}


def without_leader(anchor: Process, tree: Sequence[Process]) -> Iterator[Process]:
    """The processes whose session CRIU cannot bring back. A session is inherited at fork, so CRIU looks for
    its leader among the ancestors, and has them fork before they call setsid() where necessary. (The anchor
    leads its own session: images.correct_sessions.) Only for children of the anchor it makes up for a leader
    that has ended."""
    by_host_pid = {process.host_pid: process for process in (anchor, *tree)}
    born_in: dict[int, int] = {}
    for process in tree:
        parent = by_host_pid.get(process.parent_host_pid, anchor)
        if process.session in (process.pid, parent.session) or parent is anchor:
            continue
        while parent is not anchor and parent.pid != process.session:
            if born_in.setdefault(parent.pid, process.session) != process.session:
                yield process
                break
            above = by_host_pid.get(parent.parent_host_pid, anchor)
            if above is anchor and parent.session == process.session:
                break
            parent = above
        else:
            if parent is anchor and process.session != anchor.session:
                yield process


class _FileSystems:
    """The file systems of a box by device number, each as an open folder of it."""

    def __init__(self, keeper_pid: int) -> None:
        self._root = f"/proc/{keeper_pid}/root"
        self._paths: dict[str, list[str]] = {}
        self._folders: dict[str, int] = {}
        for mount in mounts.mounts(keeper_pid):
            self._paths.setdefault(mount.device, []).append(mount.path)

    def folder(self, device: str) -> int:
        if device not in self._folders:
            for path in self._paths.get(device, ()):
                with contextlib.suppress(OSError):  # a file may be mounted too
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                    self._folders[device] = os.open(self._root + path, flags)
                    break
            else:
                raise FileNotFoundError(device)
        return self._folders[device]

    def close(self) -> None:
        while self._folders:
            os.close(self._folders.popitem()[1])


def _watches(watchers: Sequence[tuple[Process, int]], keeper_pid: int) -> Iterator[Obstacle]:
    """Watches that CRIU cannot set again: it creates the path of a socket only later. `watchers`: inotify
    descriptors."""
    if not watchers:
        return
    with contextlib.closing(_FileSystems(keeper_pid)) as file_systems:
        for process, fd in watchers:
            with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/fdinfo/{fd}") as lines:
                # inotify wd:1 ino:a3 sdev:2a mask:100 ignored_mask:0 fhandle-type:1 f_handle:a3
                watches = [line.split()[1:] for line in lines if line.startswith("inotify ")]
                for words in watches:
                    kind = _watched_kind(dict(word.split(":", 1) for word in words), file_systems)
                    if kind == stat.S_IFSOCK:
                        yield process, "it watches the path of a socket (inotify), which cannot be restored"


def _watched_kind(watch: Mapping[str, str], file_systems: _FileSystems) -> int:
    """The kind of file that a watch is on; 0 when it cannot be found out (CRIU then refuses it itself)."""
    device = int(watch["sdev"], 16)
    with contextlib.suppress(OSError):
        folder = file_systems.folder(f"{device >> 20}:{device & 0xFFFFF}")
        file = open_by_handle(folder, int(watch["fhandle-type"], 16), bytes.fromhex(watch["f_handle"]))
        try:
            return stat.S_IFMT(os.fstat(file).st_mode)
        finally:
            os.close(file)
    return 0
