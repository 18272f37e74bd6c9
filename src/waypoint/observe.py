"""Looking at a live box: who runs in it, who listens, how its shell stands.

The same look serves a checkpoint (while its tree stands still) and the present (for `status` and plans).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from waypoint.box import Box
from waypoint.history.facts import Facts, PortFact, ProcessFact, ShellFact, parse_shell
from waypoint.kernel import network, processes
from waypoint.terminal import Terminal

_SHELL_FILE = "dev/waypoint.shell"
_MOST_BYTES = 1 << 20


def _socket_owners(tree: Sequence[processes.Process]) -> dict[int, processes.Process]:
    """Which process holds which socket; the first one found, and so the oldest."""
    found: dict[int, processes.Process] = {}
    for process in tree:
        for target in processes.descriptors(process.host_pid).values():
            if target.startswith("socket:["):
                found.setdefault(int(target[8:-1]), process)
    return found


def _ports(box: Box, tree: Sequence[processes.Process]) -> tuple[PortFact, ...]:
    space = box.open_namespace("net")
    try:
        listeners = network.listening(space)
    finally:
        os.close(space)
    if not listeners:
        return ()
    owners = _socket_owners(tree)
    return tuple(
        PortFact(
            protocol=one.protocol,
            address=one.address,
            port=one.port,
            pid=owners[one.inode].pid if one.inode in owners else None,
            command=owners[one.inode].command if one.inode in owners else None,
        )
        for one in listeners
    )


def _shell(box: Box, terminal: Terminal) -> ShellFact:
    shell = terminal.shell
    text = ""
    with contextlib.suppress(OSError), open(f"/proc/{box.pid}/root/{_SHELL_FILE}", "rb") as file:
        text = file.read(_MOST_BYTES).decode(errors="replace")
    return parse_shell(text, shell.cwd if shell else "/", terminal.foreground())


def observe(box: Box, terminal: Terminal, tree: Sequence[processes.Process], *, own_network: bool) -> Facts:
    """All of it. `tree`: the processes of the box below its keeper. A box on the host's network has no ports
    of its own."""
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
        if process.state != "Z"
    )
    ports = _ports(box, tree) if own_network else ()
    return Facts(processes=members, ports=ports, shell=_shell(box, terminal))
