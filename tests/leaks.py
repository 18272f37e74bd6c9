"""What a test leaves behind, so that the very test which leaks is the one that fails.

`Watch.look` lists everything that belongs to this run of the tests, by name: threads, descriptors and
children of the test process; sessions, boxes, cables, tables, control groups and run-folder entries of its
homes; children of its daemons; mounts and loop devices in its folders. What is listed after a test and was
not before it is a leak. Other runs on the same machine have other homes and other folders, so nothing of
theirs is ever listed.

What belongs to a session is listed as that session: a session that a fixture of the module owns may get
another box during a test. A look takes about 2 ms: everything is read from /proc, /sys and netlink, and no
program is executed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sqlite3
import struct
import threading
import time
from collections.abc import Collection
from pathlib import Path

from waypoint.home import Home
from waypoint.kernel import cgroups, mounts
from waypoint.kernel.network.netlink import NETLINK_NETFILTER, NFNL_SUBSYS_NFTABLES, Netlink, attributes
from waypoint.kernel.network.veth import Network

_NFT_MSG_GETTABLE = NFNL_SUBSYS_NFTABLES << 8 | 1
_NFTA_TABLE_NAME = 1
_NFPROTO_INET = 1
_OF_A_DAEMON = ("root", "criu.kdat", "daemon.lock", "daemon.sock", "boot", "analyst")
_GRACE_SECONDS = 5.0
"""Boxes are cleared away after the answer, and the kernel removes their cables a moment later."""


class Watch:
    """Looks at one run of the tests."""

    def __init__(self, folder: Path) -> None:
        self._folders = [str(folder)]
        self._homes: list[Home] = []
        self._trees = [tree.path for tree in cgroups.hierarchies()]

    def add_home(self, home: Home) -> None:
        """From now on everything of this home counts."""
        self._homes.append(home)
        self._folders.append(str(home.path))

    def look(self) -> set[str]:
        """Everything of this run that exists now."""
        return {
            *self._threads(),
            *self._descriptors(),
            *(f"process {pid} ({command})" for pid, command in _children(os.getpid())),
            *self._mounts(),
            *self._loop_devices(),
            *(entry for home in self._homes for entry in self._home(home)),
        }

    def leaks(self, before: set[str]) -> list[str]:
        """What exists now and did not before, after everything has had the time to go."""
        deadline = time.monotonic() + _GRACE_SECONDS
        if not self.look() - before:
            return []
        gc.collect()  # on a busy machine it takes a part of the time, and may free all of it
        while left := self.look() - before:
            left = {
                entry for entry in left if not self._is_connection(entry) and not _is_held_elsewhere(entry)
            }
            if not left or time.monotonic() > deadline:
                return sorted(left)
            time.sleep(0.01)
        return []

    # ---- the test process --------------------------------------------------------------------

    @staticmethod
    def _threads() -> list[str]:
        return [f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()]

    @staticmethod
    def _descriptors() -> list[str]:
        entries = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the one that lists the folder
                entries.append(f"descriptor {fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        return entries

    def _is_connection(self, entry: str) -> bool:
        """Whether it is a connection to a daemon. A client keeps one, and may live as long as the module."""
        words = entry.split()
        if words[0] != "descriptor" or not words[2].startswith("socket:"):
            return False
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(words[1]))) as connection:
            return connection.family == socket.AF_UNIX and connection.getpeername() in [
                str(home.socket) for home in self._homes
            ]
        return False

    # ---- the machine -------------------------------------------------------------------------

    def _is_own(self, path: str) -> bool:
        return any(path == folder or path.startswith(f"{folder}/") for folder in self._folders)

    def _mounts(self) -> list[str]:
        pools = {str(home.pool) for home in self._homes}
        paths = {mount.path for mount in mounts.mounts() if self._is_own(mount.path)}
        return [f"mount {path}" for path in paths - pools]

    def _loop_devices(self) -> list[str]:
        entries = []
        for device in os.listdir("/sys/block"):
            with contextlib.suppress(OSError), open(f"/sys/block/{device}/loop/backing_file") as file:
                path = file.read().strip()
                images = [f"{home.path}/pool.img" for home in self._homes]
                if path not in images and self._is_own(path.removesuffix(" (deleted)")):
                    entries.append(f"loop device {device} of {path}")
        return entries

    # ---- a home ------------------------------------------------------------------------------

    def remains(self, home: Home) -> list[str]:
        """What a home that was torn down has left. It is no longer looked at."""
        self._homes.remove(home)
        self._folders.remove(str(home.path))
        own = Watch(home.path)
        deadline = time.monotonic() + _GRACE_SECONDS
        while True:
            left = [*own._mounts(), *own._loop_devices(), *own._outside(home, {})]
            left += [f"nft table {name}" for name in _tables() if home.tag in name]
            left += [str(home.run)] if home.run.exists() else []
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.01)

    def _home(self, home: Home) -> list[str]:
        sessions = _sessions(home)
        boxes = {box for box in sessions.values() if box}
        return [*(f"session {name} of {home.path}" for name in sessions), *self._outside(home, boxes)]

    def _outside(self, home: Home, boxes: Collection[str]) -> list[str]:
        """What a home has outside its folder, but for what these boxes and its daemon need."""
        entries: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = [name for name in os.listdir(home.run) if name.partition(".")[0] not in boxes]
            entries += [f"{home.run}/{name}" for name in names if name not in _OF_A_DAEMON]
        network = Network(home.tag)
        cables = {network.interface(box) for box in boxes}
        prefix = network.interface("")[:-8]
        links = [name for name in os.listdir("/sys/class/net") if name.startswith(prefix)]
        entries += [f"interface {name}" for name in links if name not in cables]
        groups = {f"waypoint-{home.tag}-{box}" for box in boxes}
        for tree in self._trees:
            own = [name for name in os.listdir(tree) if name.startswith(f"waypoint-{home.tag}-")]
            entries += [f"control group {tree}/{name}" for name in own if name not in groups]
        keepers = tuple(f"waypoint-keeper {home.tag} {box}" for box in boxes)
        entries += [
            f"child {pid} of the daemon ({command})"
            for pid, command in _children(_daemon(home))
            if not command.startswith(keepers) and "waypoint.core.analyst_process" not in command
        ]
        return entries


def _sessions(home: Home) -> dict[str, str | None]:
    """The names of a home's sessions and their boxes, from its database."""
    if not home.database.exists():
        return {}
    with contextlib.closing(sqlite3.connect(f"file:{home.database}?mode=ro", uri=True)) as database:
        try:
            return dict(database.execute("SELECT name, box FROM sessions").fetchall())
        except sqlite3.OperationalError:  # being made, or an earlier schema
            return {}


def _is_held_elsewhere(entry: str) -> bool:
    """Whether it is a loop device that another mount namespace has mounted. A program of another run that is
    just making one has a copy of every mount of the machine, and keeps the device until it has removed it.
    A session over `/` of another run is layered over every disk that was mounted when it began."""
    if not entry.startswith("loop device "):
        return False
    device = f"/dev/{entry.split()[2]}"
    layer = f"lowerdir={os.path.dirname(entry.split(' of ', 1)[1])}/"
    own = os.readlink("/proc/self/ns/mnt")
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            is_other = os.readlink(f"/proc/{pid}/ns/mnt") != own
            if is_other and any(
                mount.source == device or layer in mount.super_options for mount in mounts.mounts(pid)
            ):
                return True
    return False


def _tables() -> list[str]:
    header = struct.pack("=BBH", _NFPROTO_INET, 0, 0)
    with Netlink(NETLINK_NETFILTER) as netfilter:
        bodies = [*netfilter.dump("list tables", _NFT_MSG_GETTABLE, header)]
    return [attributes(body[4:])[_NFTA_TABLE_NAME].rstrip(b"\0").decode() for body in bodies]


def _daemon(home: Home) -> int:
    """The pid of a home's daemon, by the lock that it holds; 0 when there is none."""
    with contextlib.suppress(FileNotFoundError):
        inode = f":{(home.run / 'daemon.lock').stat().st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].endswith(inode):
                return int(words[4])
    return 0


def _children(pid: int) -> list[tuple[int, str]]:
    """The running children of a process, zombies aside."""
    children = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                    command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ")
                    if command:
                        children.append((int(child), command.decode(errors="replace").strip()))
    return children
