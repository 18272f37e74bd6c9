"""Observing a live box: its processes, its listening ports, the state of its shell.

The same observation serves a checkpoint (while its tree stands still) and the present (`status` and plans).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

from waypoint.api.difference import PortFact, ProcessFact
from waypoint.box.box import Box
from waypoint.box.plan import ENGINE_IN_BOX, STATE_IN_BOX
from waypoint.history.facts import Facts, ShellFact, parse_shell
from waypoint.kernel import processes
from waypoint.kernel.network import sockets
from waypoint.kernel.syscalls import RESOLVE_IN_ROOT, RESOLVE_NO_SYMLINKS, openat2
from waypoint.terminal.terminal import Terminal

_SHELL_FILE = f"{STATE_IN_BOX}/shell".lstrip("/")
_CLIENT = f"{ENGINE_IN_BOX}/bin/kept/waypoint-"
_MOST_BYTES = 1 << 20


def _socket_owners(tree: Sequence[processes.Process]) -> dict[int, processes.Process]:
    """Which process holds which socket: the oldest, if there are several."""
    owners: dict[int, processes.Process] = {}
    for process in tree:
        for target in processes.descriptors(process.host_pid).values():
            if target.startswith("socket:["):
                owners.setdefault(int(target[8:-1]), process)
    return owners


def _ports(box: Box, tree: Sequence[processes.Process]) -> tuple[PortFact, ...]:
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
    )


def look_at_shell(box: Box, terminal: Terminal) -> ShellFact:
    """Where the shell is and what it exports, as it wrote at its last prompt."""
    text = ""
    with contextlib.suppress(OSError):
        text = _read(box, _SHELL_FILE).decode(errors="replace")
    return parse_shell(text, terminal.cwd, terminal.foreground())


def _read(box: Box, path: str) -> bytes:
    """A file of the box. A process in the box may have put something else in its place: a link that would
    lead to a file of the host, a FIFO that would never answer."""
    root = os.open(f"/proc/{box.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = openat2(root, path, os.O_RDONLY | os.O_NONBLOCK, resolve=RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS)
    finally:
        os.close(root)
    with open(fd, "rb") as file:
        return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""


def _is_own_client(process: processes.Process) -> bool:
    """Whether it is a client that asks from inside the box: that it runs is not a change of the session."""
    try:
        return process.comm == "waypoint" and os.readlink(f"/proc/{process.host_pid}/exe").startswith(_CLIENT)
    except OSError:
        return False


def observe(box: Box, terminal: Terminal, tree: Sequence[processes.Process], *, own_network: bool) -> Facts:
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
        if process.state != "Z" and not _is_own_client(process)
    )
    ports = _ports(box, tree) if own_network else ()
    return Facts(processes=members, ports=ports, shell=look_at_shell(box, terminal))
