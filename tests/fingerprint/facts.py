"""What a fingerprint is made of: facts, each with the place where it was seen."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from typing import NamedTuple

from waypoint.kernel import processes

_SYS_KCMP = 312
_libc = ctypes.CDLL(None, use_errno=True)


class Fact(NamedTuple):
    """`kind`: what is known ("descriptor flags"). `place`: of what ("17:3", descriptor 3 of process 17)."""

    kind: str
    place: str


@dataclass
class Recorder:
    """Collects the facts of one box. Numbers that the kernel gives anew to every copy of a tree (pids of the
    host, inodes of pipes and sockets) are replaced by what they stand for."""

    keeper: int
    members: list[processes.Process]
    """All processes of the box but the keeper, by their numbers in the box."""
    facts: dict[Fact, str] = field(default_factory=dict)
    pages: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """By mapping: the pages of private memory that are not empty."""
    pids: dict[int, str] = field(default_factory=dict)
    """The box's number of a process or thread, by the host's."""
    holders: dict[str, str] = field(default_factory=dict)
    """The first descriptor that leads to an object without a name, by the kernel's name for that object."""

    def add(self, kind: str, place: str, value: object) -> None:
        self.facts[Fact(kind, place)] = str(value)

    def pid(self, host_pid: int) -> str:
        """The number of a process in the box; the keeper is 1, what is outside is 0."""
        return "0" if host_pid <= 0 else self.pids.get(host_pid, "0")

    def object(self, target: str) -> str:
        """What stands for an object: its first holder."""
        return self.holders.get(target, "none")


def read(path: str) -> str:
    """A file of /proc. Names in it need not be text."""
    with open(path, "rb") as file:
        return os.fsdecode(file.read())


def same(kind: int, one: int, other: int, index: int = 0, other_index: int = 0) -> bool:
    """kcmp(2): whether two processes share something."""
    words = (ctypes.c_int(one), ctypes.c_int(other), ctypes.c_int(kind))
    places = (ctypes.c_ulong(index), ctypes.c_ulong(other_index))
    return bool(_libc.syscall(ctypes.c_long(_SYS_KCMP), *words, *places) == 0)
