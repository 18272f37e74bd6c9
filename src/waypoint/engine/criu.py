"""Running CRIU, and the conversation with it.

`criu swrk 3` is a CRIU that takes one request from the socket it was given, and reports every stage of its
work there. It waits in a stage until it is answered. So the daemon learns the moment when the whole tree
stands still (dump) and the moment when all of it exists and none of it has run (restore), without scripts
or polling. The keeper starts CRIU inside the box; request and answers go directly between CRIU and the
daemon.

A CRIU that was stopped, or that waits for a process that has died, would wait without end. Every wait for
it is limited here, and one that exceeds the limit is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from waypoint.box.box import Box
from waypoint.box.plan import ENGINE_IN_BOX
from waypoint.engine.images import Message, decode, encode
from waypoint.kernel import faults, processes, userns
from waypoint.kernel.syscalls import idmapped_mount

SILENCE_SECONDS = 60.0
"""How long CRIU may take from one stage to the next, plus the time to copy the tree's memory, and some for
each of its processes."""
_SECONDS_PER_PROCESS = 0.1
"""On a machine that has much else to do: all processes are made, or read, between two stages."""
_ABORT_SECONDS = 20.0
"""How long it may take to give up. It takes milliseconds."""
_SLOWEST_BYTES_PER_SECOND = 16 << 20

_IMAGES_FD = 4
"""Where the keeper puts the images folder in CRIU's descriptor table; 3 is the socket."""
FIRST_INHERITED_FD = 5
_GHOST_BYTES = 1 << 30
_CREDENTIALS = struct.Struct("=iII")
"""struct ucred: process, user, group."""
_LOG_WARNINGS = 2


class Stage(StrEnum):
    """The stages of CRIU's work that Waypoint acts on, by CRIU's names for them."""

    BEGUN = "pre-dump"
    """CRIU is about to stop the processes."""
    FROZEN = "query-ext-files"
    """All processes stand still, and nothing has been read from them."""
    DUMPED = "post-dump"
    """Everything is in the images; the processes still stand still."""
    PREPARED = "pre-restore"
    """CRIU is about to create the processes."""
    HELD = "post-restore"
    """All processes exist and none has run."""
    RESUMING = "pre-resume"
    """CRIU is about to let the processes run."""


# The numbers of fields by message, and enum criu_req_type.
_TYPE_DUMP, _TYPE_RESTORE, _TYPE_NOTIFY = 1, 2, 6
_REQUEST_TYPE, _REQUEST_OPTS, _REQUEST_NOTIFY_SUCCESS = 1, 2, 3  # criu_req
_RESPONSE_TYPE, _RESPONSE_SUCCESS, _RESPONSE_NOTIFY = 1, 2, 5  # criu_resp
_NOTIFY_SCRIPT = 1  # criu_notify
_INHERIT_KEY, _INHERIT_FD = 1, 2  # inherit_fd


class _Option:
    """message criu_opts"""

    IMAGES_DIR_FD = 1
    PID = 2
    LEAVE_RUNNING = 3
    TCP_ESTABLISHED = 5
    SHELL_JOB = 7
    FILE_LOCKS = 8
    LOG_LEVEL = 9
    LOG_FILE = 10
    NOTIFY_SCRIPTS = 12
    PARENT_IMG = 14
    TRACK_MEM = 15
    LINK_REMAP = 18
    INHERIT_FD = 27
    MANAGE_CGROUPS_MODE = 34
    GHOST_LIMIT = 35
    FREEZE_CGROUP = 44
    LAZY_PAGES = 48
    TCP_SKIP_IN_FLIGHT = 46
    NETWORK_LOCK = 64
    IMAGES_DIR = 68

    CG_MODE_IGNORE = 0
    NETWORK_LOCK_NFTABLES = 2
    NETWORK_LOCK_SKIP = 3


def box_environment(box: Box) -> list[str]:
    """What the shim has to know of a box in a user namespace."""
    return [f"WAYPOINT_USERNS={userns.FIRST_ID}", f"WAYPOINT_KEEPER={box.keeper_pid}"] if box.userns else []


class CriuFailed(Exception):
    """Raised when CRIU reports a failure or ends without an answer; its log is in the images folder."""


class CriuEnded(CriuFailed):
    """Raised when CRIU has ended without an answer. It may have taken processes of the tree along."""


class CriuTimedOut(CriuEnded):
    """Raised when CRIU exceeded its time limit and was killed."""


def criu_argv(engine: Path, *args: str, shim: bool = True) -> list[str]:
    """The command that runs CRIU with `args`, for an engine reached by the path `engine`."""
    prefix = engine / "criu"
    preload = ["--preload", f"{prefix}/shim.so"] if shim else []
    loader = [f"{prefix}/ld.so", "--inhibit-cache", "--library-path", f"{prefix}/lib", *preload]
    return [*loader, f"{prefix}/criu", "--no-default-config", "--libdir", f"{prefix}/plugins", *args]


def criu_environment() -> dict[str, str]:
    """The whole environment of CRIU: no HOME to read options from, no PATH to find programs in.

    On a kernel it knows nothing about CRIU runs `sh` and `iptables` to examine it; inside a box those would
    be the box's own programs.
    """
    return {"PATH": f"{ENGINE_IN_BOX}/none"}


def _common_options(log_file: str, *, lock_network: bool) -> Message:
    return {
        # A descriptor would be looked up in the peer's table, and the peer is outside the box.
        _Option.IMAGES_DIR_FD: -1,
        _Option.IMAGES_DIR: f"/proc/self/fd/{_IMAGES_FD}",
        _Option.LOG_LEVEL: _LOG_WARNINGS,
        _Option.LOG_FILE: log_file,
        _Option.NOTIFY_SCRIPTS: True,
        _Option.SHELL_JOB: True,
        _Option.TCP_ESTABLISHED: True,
        _Option.FILE_LOCKS: True,
        _Option.LINK_REMAP: True,
        _Option.GHOST_LIMIT: _GHOST_BYTES,
        _Option.MANAGE_CGROUPS_MODE: _Option.CG_MODE_IGNORE,
        _Option.NETWORK_LOCK: _Option.NETWORK_LOCK_NFTABLES if lock_network else _Option.NETWORK_LOCK_SKIP,
    }


def dump_request(
    pid: int,
    *,
    lock_network: bool,
    track: bool,
    with_parent: bool,
    without_waiting: bool = False,
    frozen_group: int | None = None,
) -> bytes:
    """Dump the tree below `pid` and leave it running. `track`: writes to its memory are tracked (memory.py).
    `with_parent`: only pages written since the dump whose folder is the first inherited descriptor.
    `without_waiting`: TCP connections that wait to be accepted are left out. `frozen_group`: the descriptor
    of the tree's control group, which is frozen. CRIU thaws it when it holds every process, and freezes it
    again before it lets them go."""
    options = _common_options("dump.log", lock_network=lock_network)
    if without_waiting:
        options[_Option.TCP_SKIP_IN_FLIGHT] = True
    if track:
        options[_Option.TRACK_MEM] = True
        if with_parent:
            options[_Option.PARENT_IMG] = f"/proc/self/fd/{FIRST_INHERITED_FD}"
    if frozen_group is not None:
        options[_Option.FREEZE_CGROUP] = f"/proc/self/fd/{frozen_group}"
    options |= {_Option.PID: pid, _Option.LEAVE_RUNNING: True}
    return encode({_REQUEST_TYPE: _TYPE_DUMP, _REQUEST_OPTS: options})


def restore_request(
    inherit: Sequence[tuple[str, int]], *, lock_network: bool, lazy_pages: bool = False
) -> bytes:
    """Restore the tree. `inherit`: names of open files that come from outside the tree, each with the
    descriptor to use in its place. `lazy_pages`: memory is left to a page server (lazy.py)."""
    options = _common_options("restore.log", lock_network=lock_network)
    entries: list[Message] = [{_INHERIT_KEY: key, _INHERIT_FD: fd} for key, fd in inherit]
    options[_Option.INHERIT_FD] = entries
    if lazy_pages:
        options[_Option.LAZY_PAGES] = True
    return encode({_REQUEST_TYPE: _TYPE_RESTORE, _REQUEST_OPTS: options})


def _answer(*, success: bool) -> bytes:
    return encode({_REQUEST_TYPE: _TYPE_NOTIFY, _REQUEST_NOTIFY_SUCCESS: success})


class Conversation:
    """One request to one CRIU, up to its answer. A context manager: an exception aborts CRIU's work.

    for stage in conversation.stages():
        match stage: ...
    """

    def __init__(
        self,
        box: Box,
        pid: int,
        connection: socket.socket,
        request: bytes,
        size_bytes: int,
        processes: int,
        begin_seconds: float | None = None,
    ) -> None:
        self._box, self._pid, self._socket = box, pid, connection
        work = size_bytes / _SLOWEST_BYTES_PER_SECOND + processes * _SECONDS_PER_PROCESS
        self._seconds = faults.limit(SILENCE_SECONDS) + work
        self._waits_for_answer = False
        self.host_pid: int | None = None
        """Known from the first stage on: the kernel names the sender of each packet."""
        connection.settimeout(min(begin_seconds or self._seconds, self._seconds))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._send(request)

    def stages(self) -> Iterator[str]:
        """The stages of CRIU's work until it is done. CRIU waits in a stage until the next one is asked for,
        or `proceed` is called. A caller may leave the loop in a stage and continue with a new one later."""
        while True:
            self.proceed()
            response = self._receive()
            self._socket.settimeout(self._seconds)
            if response.get(_RESPONSE_TYPE) != _TYPE_NOTIFY:
                if not response.get(_RESPONSE_SUCCESS):
                    raise CriuFailed("CRIU reports a failure")
                return
            self._waits_for_answer = True
            script = decode(response.get(_RESPONSE_NOTIFY)).get(_NOTIFY_SCRIPT)
            yield script.decode() if isinstance(script, bytes) else ""

    def proceed(self) -> None:
        """Lets CRIU leave the stage it waits in. Its work then runs beside the caller's, up to the next."""
        if self._waits_for_answer:
            self._waits_for_answer = False
            self._send(_answer(success=True))

    def _send(self, packet: bytes) -> None:
        try:
            self._socket.send(packet)
        except TimeoutError as error:
            raise self._kill() from error
        except OSError as error:
            raise CriuEnded("CRIU has ended") from error

    def _receive(self) -> dict[int, int | bytes]:
        try:
            packet, control, *_ = self._socket.recvmsg(65536, socket.CMSG_SPACE(_CREDENTIALS.size))
        except TimeoutError as error:
            raise self._kill() from error
        except OSError as error:
            raise CriuEnded("CRIU has ended") from error
        if not packet:
            raise CriuEnded("CRIU ended without an answer")
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                self.host_pid = _CREDENTIALS.unpack(data)[0]
        return decode(packet)

    def _kill(self) -> CriuTimedOut:
        host_pid = self._box.host_pid(self._pid)
        if host_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(host_pid, signal.SIGKILL)
        return CriuTimedOut(f"CRIU did nothing for {self._socket.gettimeout():.0f} s and was ended")

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind:
            # It is read at the next stage if CRIU does not wait in one now.
            with contextlib.suppress(CriuFailed):
                self._send(_answer(success=False))
            self._wait_for_end()
        self.close()

    def _wait_for_end(self) -> None:
        """Until then CRIU may still change the state of the processes, and of their control group. The kernel
        closes the socket of a process that ends before it detaches those that the process traces: what CRIU
        had seized is still being traced for a moment after the socket was closed."""
        limit = faults.limit(_ABORT_SECONDS)
        deadline = time.monotonic() + limit
        self._socket.settimeout(limit)
        with contextlib.suppress(CriuFailed):
            while True:
                if self._receive().get(_RESPONSE_TYPE) == _TYPE_NOTIFY:
                    self._send(_answer(success=False))
        if self.host_pid is not None:
            processes.wait_for_end(self.host_pid, max(0, deadline - time.monotonic()))


def start(
    box: Box,
    images: Path,
    request: bytes,
    *,
    ipc: str,
    size_bytes: int,
    processes: int,
    env: Sequence[str] = (),
    inherited: Sequence[int] = (),
    begin_seconds: float | None = None,
    idmapped: bool = False,
) -> Conversation:
    """Starts CRIU beside the tree of a box and sends it a request. `ipc`: its IPC namespace, see
    native/keeper.c. `size_bytes`: about how much memory there is to copy, of how many `processes`.
    `begin_seconds`: how long it may take until its first stage, if that is limited more than the others.
    `idmapped`: the images are read by processes of the box, which is in a user namespace."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = os.open(images, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if idmapped:
            folder = _with_ids_of(box, folder)
        variables = [*(f"{key}={value}" for key, value in criu_environment().items()), *env]
        # Otherwise it opens every open file to read a build id. That breaks a write lease: its holder stands
        # still and cannot answer, CRIU waits for lease-break-time (45 s), and the lease is gone.
        argv = criu_argv(ENGINE_IN_BOX, "--file-validation", "filesize", "swrk", "3")
        pid = box.keeper.run(ipc, variables, argv, [theirs.fileno(), folder, *inherited])
        return Conversation(box, pid, ours, request, size_bytes, processes, begin_seconds)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(folder)


def _with_ids_of(box: Box, folder: int) -> int:
    """The same folder as root of the box may read it. Closes the other descriptor."""
    idmap = box.keeper.idmap()
    try:
        mounted = idmapped_mount(folder, idmap)
    finally:
        os.close(idmap)
    os.close(folder)
    return mounted
