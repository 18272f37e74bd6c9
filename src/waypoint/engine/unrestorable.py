"""What CRIU would save without a word and could never restore. It is found while the tree stands still.

A point that cannot be restored must not be acknowledged: a park would end the only copy. CRIU itself notices
these things only when it restores. Each is looked for in /proc, beside CRIU's own work.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import os
import re
import socket
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence

from waypoint.engine import sessions
from waypoint.kernel import processes
from waypoint.kernel.processes import Process
from waypoint.kernel.syscalls import KCMP_FILE, kcmp

_NAMESPACES = ("pid", "mnt", "net", "user", "ipc", "uts", "time", "cgroup")
NESTED = "it lives in a nested pid namespace, which cannot be saved"
UNSENT = "it has a UDP datagram that is not sent yet (UDP_CORK, MSG_MORE)"
"""CRIU would drop it. It may be sent a moment later."""
NOT_ACCEPTED = "a connection to it waits to be accepted"
UNREAD_CREDENTIALS = "it has not read messages that tell who sent them (SO_PASSCRED)"
VFORK = "it waits for a child (vfork) that has not started a program yet, and cannot be stopped"
"""Mostly the child does so a moment later."""
TRACED = "it is being traced by "
"""Only a process itself ends what it traces, and CRIU would try for ten seconds. Some look for a moment only
(pstack, a profiler)."""
_VFORK_CALLS = (b"56", b"58", b"435")
"""clone, vfork, clone3"""
_MOST_EVENTS = 1 << 31
_TOO_MANY_EVENTS = "it has an eventfd with a count of 2147483648 or more"
"""CRIU would restore the lower 32 bits, and the highest of these is the shim's."""
IN_FLIGHT = "a descriptor that other processes have too is on its way to it (SCM_RIGHTS)"
IN_FLIGHT_FIFO = "a named pipe (mkfifo) is on its way to it (SCM_RIGHTS)"
IN_FLIGHT_ALONE = "a timerfd, inotify or unix socket that no process has is on its way to it (SCM_RIGHTS)"
IN_FLIGHT_BEHIND = "a descriptor is on its way to it, and there may be data in front of it (SCM_RIGHTS)"
"""It may be received a moment later."""
_PACKETS = "it uses a named pipe in packet mode (O_DIRECT)"
FIXED_AMBIENT = "it has ambient capabilities and may raise none (SECBIT_NO_CAP_AMBIENT_RAISE)"
_MOST_DESCRIPTORS = 253
_CRIU_SOCKETS = b"\0/crtools-"
"""CRIU's sockets, to which its code in each process is connected. It sends descriptors through them."""
_SO_PEEK_OFF = 42
_LEASE = "it has a write lease (F_SETLEASE) on a file that is deleted or mapped"
"""CRIU would open the file. That breaks the lease, which its holder cannot answer while it stands still."""
_DELETED = " (deleted)"
READ_LEASE_OF_WRITABLE = "it has a lease that was broken (F_SETLEASE), on a file that it may write"
"""The kernel lets a write lease become a read lease there, and sets no such lease anew."""
OF_ANOTHER = "it has a file of /proc open that tells of CRIU, which is not saved"
"""CRIU would look for the process at a restore. A program that looks at all processes closes it a moment
later."""
_OF_PROCESS = re.compile(r"/proc/(\d+)/")
_LOCKED_OBJECT = "it has locked what is no file (an eventfd, epoll, timerfd or the like)"


Obstacle = tuple[Process, str]
"""A process that cannot be restored, and why."""


def find(
    anchor: Process,
    tree: Sequence[tuple[Process, Mapping[int, str]]],
    unsent: Collection[int],
    keeper: int,
) -> list[Obstacle]:
    """The processes below the anchor that cannot be restored. `tree`: parents before children, each with
    the targets of its descriptors. `unsent`: inodes of sockets with datagrams that have not left. `keeper`:
    the host's number of pid 1 of the box."""
    members = [process for process, _ in tree]
    if nested := nested_processes(anchor, members):
        return [(process, NESTED) for process in nested]
    obstacles = list(without_leader(anchor, members))
    usual = _namespaces(anchor.host_pid)
    for process in members:
        own = [kind for kind, name in _namespaces(process.host_pid).items() if name != usual.get(kind)]
        if own:
            obstacles.append((process, f"it lives in a {own[0]} namespace of its own, which cannot be saved"))
    lost = {f"socket:[{inode}]" for inode in unsent}
    obstacles += [(process, UNSENT) for process, targets in tree if not lost.isdisjoint(targets.values())]
    objects = [
        (process, fd)
        for process, targets in tree
        for fd, target in targets.items()
        if target.startswith("anon_inode:")
    ]
    return [
        *obstacles,
        *_objects(objects),
        *_in_flight(tree),
        *_in_packet_mode(tree),
        *_looking_at_others(tree, keeper),
    ]


def _looking_at_others(tree: Sequence[tuple[Process, Mapping[int, str]]], keeper: int) -> Iterator[Obstacle]:
    """Processes that have a file of /proc open which belongs to a process beside the tree: CRIU or a helper
    of it. (CRIU itself makes a process for one that has ended, and pid 1 is there in every box.)"""
    looking = [
        (process, int(match[1]))
        for process, targets in tree
        for target in targets.values()
        if (match := _OF_PROCESS.match(target))
    ]
    if looking:
        beside = {process.pid for process in processes.below(keeper)}
        beside -= {process.pid for process, _ in tree}
        yield from ((process, OF_ANOTHER) for process, pid in looking if pid in beside)


def _objects(descriptors: Sequence[tuple[Process, int]]) -> Iterator[Obstacle]:
    """Objects of the kernel that CRIU cannot restore as they are, by descriptors that lead to one. All such
    objects of the machine are one file to the kernel: a lock on one is a lock on all."""
    for process, fd in descriptors:
        with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/fdinfo/{fd}") as lines:
            for line in lines:
                if line.startswith("lock:"):
                    yield process, _LOCKED_OBJECT
                key, _, value = line.partition(":")
                if key == "eventfd-count" and int(value, 16) >= _MOST_EVENTS:
                    yield process, _TOO_MANY_EVENTS


def _in_packet_mode(tree: Sequence[tuple[Process, Mapping[int, str]]]) -> Iterator[Obstacle]:
    """Processes with a named pipe that was put into packet mode. CRIU refuses the mode for other pipes only,
    and cannot open this one with it."""
    for process, targets in tree:
        for fd, target in targets.items():
            if not target.startswith("/"):
                continue
            with contextlib.suppress(OSError):
                if stat.S_ISFIFO(os.stat(f"/proc/{process.host_pid}/fd/{fd}").st_mode):
                    with open(f"/proc/{process.host_pid}/fdinfo/{fd}") as lines:
                        flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
                    if flags & os.O_DIRECT and not flags & os.O_PATH:
                        yield process, _PACKETS


def _in_flight(tree: Sequence[tuple[Process, Mapping[int, str]]]) -> Iterator[Obstacle]:
    """Sockets with a descriptor in an unread message (SCM_RIGHTS) that several processes have. CRIU drops
    such a message, and those behind it, without a word."""
    seen: set[str] = set()
    for process, targets in tree:
        for fd, target in targets.items():
            if not target.startswith("socket:[") or target in seen:
                continue
            seen.add(target)
            count = 0
            with contextlib.suppress(OSError):  # it was CRIU's own, and is closed by now
                count = _sent_descriptors(process.host_pid, fd)
            try:
                reason = _why_not_saved(process.host_pid, fd, count, tree) if count else None
            except OSError:
                reason = IN_FLIGHT_BEHIND  # it could not be looked at
            if reason:
                yield process, reason


def _sent_descriptors(host_pid: int, fd: int) -> int:
    """How many descriptors wait in the messages of a socket."""
    with open(f"/proc/{host_pid}/fdinfo/{fd}") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("scm_fds:")), 0)


def _why_not_saved(
    host_pid: int, fd: int, count: int, tree: Sequence[tuple[Process, Mapping[int, str]]]
) -> str | None:
    """CRIU saves descriptors that wait in a socket if all are in its first message, and at most one process
    has them. A look into a stream goes up to the first message with descriptors, and what lies in front of it
    (CRIU would send all as one message) is known to be nothing only where that is one byte."""
    with socket.socket(fileno=processes.duplicate(host_pid, fd)) as end:
        if _is_criu(end):
            return None
        if end.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF) >= 0:
            return IN_FLIGHT_BEHIND  # a look would move it
        # (socket.recv_fds does not pass its flags on, and would take the message.)
        flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        data, control, _, _ = end.recvmsg(2, socket.CMSG_LEN(_MOST_DESCRIPTORS * 4), flags)
        may_be_behind = end.type == socket.SOCK_STREAM and len(data) > 1
    copies = array.array("i")
    for level, kind, sent in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            copies.frombytes(sent[: len(sent) // copies.itemsize * copies.itemsize])
    try:
        if may_be_behind or len(copies) != count:
            return IN_FLIGHT_BEHIND
        if any(_is_named_pipe(copy) for copy in copies):
            return IN_FLIGHT_FIFO  # CRIU would crash when it restores it
        holders = [
            sum(any(_is_open_in(process, targets, copy)) for process, targets in tree) for copy in copies
        ]
        if any(not number and _needs_holder(copy) for copy, number in zip(copies, holders, strict=True)):
            return IN_FLIGHT_ALONE  # CRIU restores it for the process that has it
        return IN_FLIGHT if any(number > 1 for number in holders) else None
    finally:
        for copy in copies:
            os.close(copy)


def _is_criu(end: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        name = end.getpeername()
        return isinstance(name, bytes) and name.startswith(_CRIU_SOCKETS)
    return False


def _is_named_pipe(fd: int) -> bool:
    return stat.S_ISFIFO(os.fstat(fd).st_mode) and not os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")


def _needs_holder(fd: int) -> bool:
    name = os.readlink(f"/proc/self/fd/{fd}")
    if name.startswith("socket:["):
        with socket.socket(fileno=os.dup(fd)) as sent:
            return sent.family == socket.AF_UNIX
    return name in ("anon_inode:[timerfd]", "anon_inode:inotify")


def _is_open_in(process: Process, targets: Mapping[int, str], copy: int) -> Iterator[bool]:
    name = os.readlink(f"/proc/self/fd/{copy}")
    for fd, target in targets.items():
        if target == name or target.startswith("/"):
            with contextlib.suppress(OSError):  # one that CRIU had opened in the process
                yield kcmp(os.getpid(), process.host_pid, KCMP_FILE, copy, fd)


def has_ambient_capabilities(process: Process) -> bool:
    with contextlib.suppress(OSError):
        return bool(int(processes.read_status(process.host_pid).get("CapAmb", "0"), 16))
    return False


def find_unstoppable(anchor: Process, members: Sequence[Process]) -> list[Obstacle]:
    """The processes that CRIU would wait for, while all stand still already.
    `members`: the processes of the box, parents before children; the anchor and those below it are saved."""
    obstacles = list(_leases(members))
    saved = {anchor.host_pid}
    for process in members:
        if process.host_pid != anchor.host_pid and process.parent_host_pid not in saved:
            continue
        saved.add(process.host_pid)
        if tracer := find_tracer(process):
            obstacles.append((process, tracer))
        if process.state != "D":
            continue
        with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/syscall", "rb") as file:
            if file.read().split()[0] in _VFORK_CALLS:
                obstacles.append((process, VFORK))
    return obstacles


def find_tracer(process: Process) -> str | None:
    """Why a process cannot be stopped that another one traces, or a thread of which it traces."""
    if process.state == "Z" or (tracer := processes.tracer_of(process)) is None:
        return None
    if tracer.namespaces >= process.namespaces:
        return f"{TRACED}process {tracer.pid} ({tracer.command})"
    return f"{TRACED}process {tracer.host_pid} outside the session ({tracer.command})"


def _leases(tree: Sequence[Process]) -> Iterator[Obstacle]:
    for process in tree:
        leased = (
            target
            for fd, target in processes.descriptors(process.host_pid).items()
            if target.startswith("/")
            and not target.startswith(("/dev/", "/proc/", "/sys/"))
            and _breaks_when_read(process, fd)
        )
        if any(path.endswith(_DELETED) or _is_mapped(tree, path) for path in leased):
            yield process, _LEASE


def _breaks_when_read(process: Process, fd: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/fdinfo/{fd}") as lines:
        for words in map(str.split, lines):
            # lock: 1: LEASE ACTIVE WRITE 4711 00:2a:1234 0 EOF
            if words[0] == "lock:" and words[2] == "LEASE" and words[4] != "READ":
                return True
    return False


def _is_mapped(tree: Sequence[Process], path: str) -> bool:
    for process in tree:
        with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/maps") as lines:
            if any(line.rstrip("\n").endswith(f" {path}") for line in lines):
                return True
    return False


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


def without_leader(anchor: Process, tree: Sequence[Process]) -> Iterator[Obstacle]:
    """The processes whose session cannot be made again."""
    by_host_pid = {process.host_pid: process for process in (anchor, *tree)}
    members = [sessions.Member(anchor.pid, 0, anchor.group, anchor.pid)]
    for process in tree:
        parent = by_host_pid.get(process.parent_host_pid, anchor)
        # The anchor takes the place of the keeper, who leads its session and is not saved.
        session = anchor.pid if process.session == anchor.session else process.session
        is_zombie = process.state == "Z"
        members.append(sessions.Member(process.pid, parent.pid, process.group, session, is_zombie))
    refused = sessions.plan(members).refused
    yield from ((process, refused[process.pid]) for process in tree if process.pid in refused)
