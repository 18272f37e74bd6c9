"""Observing a live box: its processes, its listening ports, the state of its shell.

The same observation serves a checkpoint (while its tree stands still) and the present (`status` and plans).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from waypoint.api.difference import PortFact, ProcessFact
from waypoint.box.box import Box
from waypoint.box.plan import ENGINE_IN_BOX, STATE_IN_BOX
from waypoint.history.facts import Facts
from waypoint.history.shell import ShellFact, parse_listing, parse_shell
from waypoint.kernel import processes
from waypoint.kernel.network import sockets
from waypoint.kernel.syscalls import RESOLVE_IN_ROOT, RESOLVE_NO_SYMLINKS, openat2
from waypoint.model import Record
from waypoint.terminal.terminal import Terminal

_SHELL_FILE, _LISTING_FILE = f"{STATE_IN_BOX}/shell".lstrip("/"), f"{STATE_IN_BOX}/listing".lstrip("/")
_OWN_PROGRAMS = (f"{ENGINE_IN_BOX}/bin/kept/waypoint-", f"{ENGINE_IN_BOX}/criu/")
_MOST_BYTES = 8 << 20


@dataclass(frozen=True)
class Observation:
    """What was seen while the tree stood still. It is read then, and worked out later: a pause is short."""

    processes: tuple[ProcessFact, ...]
    ports: tuple[PortFact, ...]
    shell: ShellReport

    def facts(self, stopped: Collection[int] = ()) -> Facts:
        """`stopped`: processes that are suspended, which does not show of one that is frozen."""
        members = tuple(
            msgspec.structs.replace(process, stopped=True) if process.pid in stopped else process
            for process in self.processes
        )
        return Facts(processes=members, ports=self.ports, shell=self.shell.fact())


@dataclass(frozen=True)
class ShellReport:
    """The files that the shell wrote at its last prompt."""

    exports: bytes
    listing: bytes
    cwd: str
    foreground: str | None

    def fact(self) -> ShellFact:
        listing = parse_listing(self.listing.decode(errors="replace"))
        return parse_shell(self.exports.decode(errors="replace"), self.cwd, self.foreground, listing=listing)


def _socket_owners(tree: Sequence[processes.Process]) -> dict[int, processes.Process]:
    """Which process holds which socket: the oldest, if there are several."""
    owners: dict[int, processes.Process] = {}
    for process in tree:
        for target in processes.descriptors(process.host_pid).values():
            if target.startswith("socket:["):
                owners.setdefault(int(target[8:-1]), process)
    return owners


def listening_ports(
    box: Box, tree: Sequence[processes.Process], *, own_network: bool
) -> tuple[PortFact, ...]:
    """What listens in a box. On the host's network that is what its own processes hold."""
    space = box.open_namespace("net")
    try:
        listeners = sockets.listening(space)
    finally:
        os.close(space)
    if not listeners:
        return ()
    owners = _socket_owners(tree)
    return tuple(
        PortFact(
            protocol=listener.protocol,
            address=listener.address,
            port=listener.port,
            pid=owners[listener.inode].pid if listener.inode in owners else None,
            command=owners[listener.inode].command if listener.inode in owners else None,
        )
        for listener in listeners
        if own_network or listener.inode in owners
    )


class ShellPlace(Record, frozen=True):
    """What the terminal knows of its shell, beside what the shell has reported."""

    cwd: str
    foreground: str | None
    listed: bool
    """Whether its listing is that of now: between the end of a command and the next prompt it is that of an
    earlier moment."""

    @classmethod
    def of(cls, terminal: Terminal) -> Self:
        return cls(cwd=terminal.cwd, foreground=terminal.foreground(), listed=not terminal.prompt_is_due)


def look_at_shell(box: Box, terminal: Terminal) -> ShellFact:
    """The shell as it reported itself at its last prompt."""
    return _report(box, ShellPlace.of(terminal)).fact()


def exported_variables(box: Box, terminal: Terminal) -> dict[str, str]:
    """What programs of the shell inherit. Cheaper than all of the report."""
    return parse_shell(_read(box, _SHELL_FILE).decode(errors="replace"), terminal.cwd, None).exported


def _report(box: Box, shell: ShellPlace) -> ShellReport:
    return ShellReport(
        exports=_read(box, _SHELL_FILE),
        listing=_read(box, _LISTING_FILE) if shell.listed else b"",
        cwd=shell.cwd,
        foreground=shell.foreground,
    )


def _read(box: Box, path: str) -> bytes:
    """A file of the box; nothing when it cannot be read."""
    with contextlib.suppress(OSError):
        return read_in_box(box, path)
    return b""


def read_in_box(box: Box, path: str) -> bytes:
    """A file of the box. A process in it may have put something else in its place: a link that would
    lead to a file of the host, a FIFO that would never answer."""
    root = os.open(f"/proc/{box.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = openat2(root, path, os.O_RDONLY | os.O_NONBLOCK, resolve=RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS)
    finally:
        os.close(root)
    with open(fd, "rb") as file:
        return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""


def _is_own(process: processes.Process) -> bool:
    """Whether it is a client that asks from inside the box, or the CRIU that has revived the box and will end
    at once: that it runs is not a change of the session."""
    try:
        return os.readlink(f"/proc/{process.host_pid}/exe").startswith(_OWN_PROGRAMS)
    except OSError:
        return False


def observe(
    box: Box, shell: ShellPlace, tree: Sequence[processes.Process], *, own_network: bool
) -> Observation:
    """Everything that is observed. `tree`: the processes of the box below its keeper. A box on the host's
    network has no ports of its own."""
    numbers = {process.host_pid: process.pid for process in tree}
    members = tuple(
        ProcessFact(
            pid=process.pid,
            parent=numbers.get(process.parent_host_pid, 0),
            command=process.command,
            uid=process.uid,
            rss_bytes=process.rss_bytes,
            stopped=process.state == "T",
        )
        for process in tree
        if process.state != "Z" and not _is_own(process)
    )
    ports = listening_ports(box, tree, own_network=True) if own_network else ()
    return Observation(processes=members, ports=ports, shell=_report(box, shell))
