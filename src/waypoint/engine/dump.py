"""Saving the process tree of a box, which runs on afterwards.

CRIU does the bulk. Here is what it does not save, or saves wrongly without an error:

- POSIX locks are read from the kernel: CRIU overlooks those held through an inherited descriptor, and
  loses those on files that are also mapped (native/relock.c);
- input that was typed and not yet read is taken out of the terminals at the freeze;
- timers, traits of processes, and files that come from the base are recorded beside CRIU's images.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import struct
import termios
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from waypoint.api.hints import Do, Hint
from waypoint.box.box import Box
from waypoint.box.keeper import Hello
from waypoint.engine import criu, diagnosis, images, traits, unrestorable
from waypoint.engine.criu import Stage
from waypoint.engine.diagnosis import FILES_ONLY
from waypoint.engine.images import DumpStats, Lock, TreeState
from waypoint.engine.memory import Memory
from waypoint.errors import CannotCheckpoint
from waypoint.kernel import overlay, processes, tty
from waypoint.kernel.network import sockets
from waypoint.kernel.syscalls import CLONE_NEWIPC, detached_mount, setns

log = logging.getLogger("waypoint")

_RETRY_SECONDS = (0.02, 0.1, 0.3)
"""The pauses between attempts when the cause of a failure is likely to pass."""
_MAX_TERMINALS = 128
"""How many terminals a keeper creates ahead of a restore (MAX_PTYS in native/waypoint.h)."""

Pauses = Generator[list[processes.Process], None, None]


class Dump:
    """One dump of a box's tree into the folder `folder`.

        with Dump(box, folder, …) as dump:
            for tree in dump.pauses():
                ...  # every process of the tree stands still in here
        dump.state, dump.stats

    With `memory`, only what was written since its baseline is copied in the pause; the images of memory are
    completed afterwards, in `complete_folder`. `outside_pipes`: pipes of programs whose other ends clients
    hold. If anything fails, the caller's code included, the tree runs on as before.
    """

    state: TreeState
    stats: DumpStats

    def __init__(
        self,
        box: Box,
        folder: Path,
        *,
        outside_pipes: Sequence[int] = (),
        shell: int,
        memory: Memory | None = None,
        complete_folder: Path | None = None,
    ) -> None:
        self._box, self._folder = box, folder
        self._outside_pipes, self._shell = outside_pipes, shell
        self._memory, self._complete_folder = memory, complete_folder or folder
        self._pauses = self._all_pauses()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pauses.close()

    def pauses(self) -> Pauses:
        """Yields the processes of the tree while they stand still, beside CRIU's own work. They run again
        only after the next turn was asked for. Mostly there is one turn. There are more when a dump has to be
        repeated, or when CRIU changes files of the tree: what the last turn has seen belongs to the dump."""
        return self._pauses

    def _all_pauses(self) -> Pauses:
        delays = iter(_RETRY_SECONDS)
        while True:
            try:
                yield from self._attempt()
                return
            except CannotCheckpoint as error:
                if self._memory and self._memory.could_cause(error):
                    log.warning("memory is no longer tracked: %s %s", error, error.details.get("log", ())[1:])
                    self._memory.disable()
                    self._memory = None
                elif diagnosis.is_transient(error) and (seconds := next(delays, None)) is not None:
                    time.sleep(seconds)
                else:
                    raise
                for folder in {self._folder, self._complete_folder}:
                    for path in folder.iterdir():
                        path.unlink()

    def _attempt(self) -> Pauses:
        box, memory, folder = self._box, self._memory, self._folder
        hello = box.hello()
        os.close(hello.master)
        os.close(hello.slave)
        members = processes.below(box.pid)
        anchor = next((process for process in members if process.pid == hello.anchor), None)
        if anchor is None:
            raise CannotCheckpoint(
                "the session's processes are gone", hint=Hint(Do("restore"), " brings it back")
            )
        if unstoppable := unrestorable.find_unstoppable(members):
            raise diagnosis.cannot_save(unstoppable)
        saves_ipc = _examine_ipc(anchor)
        lock_network = has_own_network(box) and _has_connections(box)
        parent = memory.take_baseline() if memory else None
        tracked = memory is not None and memory.tracking
        request = criu.dump_request(
            hello.anchor, lock_network=lock_network, track=tracked, with_parent=parent is not None
        )
        state: TreeState | None = None
        tree: list[processes.Process] = []
        typed: dict[int, bytes] = {}
        obstacles: list[unrestorable.Obstacle] = []
        try:
            with (
                _open_folder(parent) as inherited,
                criu.start(
                    box,
                    folder,
                    request,
                    ipc="keep" if saves_ipc else "join",
                    size_bytes=sum(process.rss_bytes for process in members),
                    env=["WAYPOINT_TRACK=1"] if tracked else [],
                    inherited=inherited,
                ) as conversation,
            ):
                for stage in conversation.stages():
                    match stage:
                        case Stage.FROZEN:
                            typed = _take_typed(box)
                            conversation.proceed()  # it reports DUMPED before it lets the tree run
                            tree = processes.below(anchor.host_pid)
                            open_files = _OpenFiles.of(tree)
                            obstacles = unrestorable.find(
                                anchor, open_files.by_process, box.pid, _unsent_datagrams(box)
                            )
                            if obstacles:
                                continue
                            state = self._describe(
                                open_files, hello, typed, saves_ipc=saves_ipc, network_locked=lock_network
                            )
                            yield tree
                        case Stage.DUMPED if obstacles:
                            raise diagnosis.cannot_save(obstacles)
                        case Stage.DUMPED if made := box.mounts_made_inside():
                            raise diagnosis.cannot_save_mounts(made)
                        case Stage.DUMPED:
                            put_typed(box, typed)
                            typed = {}
                            if images.has_link_remaps(folder):
                                yield processes.below(anchor.host_pid)
        except criu.CriuFailed as failure:
            error = diagnosis.cannot_checkpoint(box, folder, failure, tree)
            if obstacles and not error.details.get("gone"):
                error = diagnosis.cannot_save(obstacles)
            raise error from failure
        finally:
            put_typed(box, typed)
        assert state, "CRIU has reported no freeze"
        if memory and parent:
            memory.complete_images(folder, parent, self._complete_folder)
        if max(images.inner_terminals(folder), default=0) >= _MAX_TERMINALS:
            raise CannotCheckpoint(
                f"more than {_MAX_TERMINALS - 1} terminals are open in the session (tmux, screen, script)",
                hint=Hint(
                    "close some, or save the files alone: ", FILES_ONLY, "; the session runs on untouched"
                ),
            )
        images.correct_timers(folder)
        images.correct_sessions(folder)
        images.correct_inventory(folder)
        images.write_state(folder, state)
        self.state, self.stats = state, images.dump_stats(folder)

    def _describe(
        self,
        open_files: _OpenFiles,
        hello: Hello,
        typed: dict[int, bytes],
        *,
        saves_ipc: bool,
        network_locked: bool,
    ) -> TreeState:
        box = self._box
        tree = [process for process, _ in open_files.by_process]
        return TreeState(
            anchor=hello.anchor,
            status_pipe=hello.status_pipe,
            foreground=box.keeper.foreground(),
            last_pid=box.keeper.last_pid(),
            ipc=saves_ipc,
            network_locked=network_locked,
            outside_pipes=tuple({*self._outside_pipes, *_keeper_pipes(box)} - {hello.status_pipe}),
            locks=tuple(open_files.posix_locks()),
            typed=dict(typed),
            shell=self._shell,
            processes=len(tree),
            open_files=tuple(sorted(set(open_files.from_base()))),
            traits=traits.read(tree, box.pid),
            notes=(*open_files.unread_inotify(), *open_files.credentials_of_peers(), *_personalities(tree)),
        )


@contextlib.contextmanager
def _open_folder(folder: Path | None) -> Iterator[list[int]]:
    """A descriptor of the folder, in a list; an empty list without one."""
    if folder is None:
        yield []
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield [fd]
    finally:
        os.close(fd)


# ---- before the freeze ---------------------------------------------------------------------------


def _examine_ipc(anchor: processes.Process) -> bool:
    """Whether the tree's IPC namespace has to be saved, which costs milliseconds: whether it holds System V
    objects. Refuses POSIX message queues."""
    # In a thread of its own: the kernel keeps an IPC namespace per thread, and only this one changes its.
    with ThreadPoolExecutor(1) as executor:
        has_objects, queues = executor.submit(_read_ipc, anchor.host_pid).result()
    if queues:
        raise CannotCheckpoint(
            f"POSIX message queues cannot be saved, and the session has some: /{', /'.join(sorted(queues))}",
            hint=Hint(
                "end the processes that use them (mq_unlink), or save the files alone: ",
                FILES_ONLY,
                "; the session runs on untouched",
            ),
            queues=sorted(queues),
        )
    return has_objects


def _read_ipc(host_pid: int) -> tuple[bool, list[str]]:
    """Moves the calling thread into the IPC namespace of a process. Returns whether there are System V
    objects in it, and the names of its POSIX message queues."""
    try:
        namespace = os.open(f"/proc/{host_pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
        try:
            setns(namespace, CLONE_NEWIPC)
        finally:
            os.close(namespace)
        tables = [Path("/proc/sysvipc") / kind for kind in ("shm", "sem", "msg")]
        has_objects = any(len(table.read_bytes().splitlines()) > 1 for table in tables)
    except OSError:
        has_objects = True
    with contextlib.suppress(OSError):  # a kernel without message queues
        folder = detached_mount("mqueue")
        try:
            return has_objects, [processes.printable(name) for name in os.listdir(folder)]
        finally:
            os.close(folder)
    return has_objects, []


def has_own_network(box: Box) -> bool:
    """Whether the box has a network namespace of its own: the host's must not be locked."""
    return processes.namespace(box.pid, "net") != processes.namespace(os.getpid(), "net")


def _has_connections(box: Box) -> bool:
    """Whether the box has TCP connections (loopback too) that must not lose packets."""
    namespace = box.open_namespace("net")
    try:
        return sockets.connected(namespace)
    finally:
        os.close(namespace)


def _unsent_datagrams(box: Box) -> frozenset[int]:
    namespace = box.open_namespace("net")
    try:
        return sockets.unsent_datagrams(namespace)
    finally:
        os.close(namespace)


# ---- while the tree stands still -----------------------------------------------------------------


def _open_terminal(box: Box, index: int) -> int:
    return os.open(
        f"/proc/{box.pid}/root/dev/pts/{index}", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    )


def _take_typed(box: Box) -> dict[int, bytes]:
    """Empties the input of the box's terminals: its own, which CRIU does not know, and those inside the tree
    (tmux's panes), where CRIU would move an unfinished line in front of finished ones and echo those again.
    """
    names = os.listdir(f"/proc/{box.pid}/root/dev/pts")
    inner = {int(name) for name in names if name.isdigit() and name != "0"}
    # Only terminals that control a process: the slave of another one may not be open, and its master would
    # be notified when it is opened and closed here.
    inner &= {process.terminal for process in processes.below(box.pid)} if inner else set()
    typed = {}
    for index in (0, *inner):
        with contextlib.suppress(OSError, termios.error):
            slave = _open_terminal(box, index)
            try:
                typed[index] = tty.take(slave)
            finally:
                os.close(slave)
    return {index: text for index, text in typed.items() if text}


def put_typed(box: Box, typed: dict[int, bytes]) -> None:
    """Puts input back into the box's terminals."""
    for index, text in typed.items():
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            slave = _open_terminal(box, index)
            try:
                tty.put(slave, text)
            finally:
                os.close(slave)


def _keeper_pipes(box: Box) -> set[int]:
    """The pipes the keeper reads: also those of programs that have ended and left a child that writes."""
    targets = processes.descriptors(box.pid).values()
    return {int(target[6:-1]) for target in targets if target.startswith("pipe:[")}


def _personalities(tree: list[processes.Process]) -> Iterator[str]:
    """CRIU does not save flags of personality(2), and only a process itself can set them."""
    for process in tree:
        with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/personality") as file:
            if int(file.read(), 16):
                yield f"process {process.pid} ({process.command}) loses its personality flags (setarch)"


@dataclass(frozen=True)
class _OpenFiles:
    """The processes of a tree, each with the targets of its descriptors."""

    by_process: list[tuple[processes.Process, dict[int, str]]]

    @classmethod
    def of(cls, tree: Sequence[processes.Process]) -> Self:
        return cls([(process, processes.descriptors(process.host_pid)) for process in tree])

    def posix_locks(self) -> Iterator[Lock]:
        """All POSIX locks of the tree, from the kernel itself. (flock and OFD locks belong to open files,
        and survive.)"""
        for process, targets in self.by_process:
            # /proc/locks lists them at once, after waiting for every processor to take notice (8 ms).
            for fd, target in targets.items():
                if not target.startswith("/") or target.startswith(("/dev/pts/", "/dev/null")):
                    continue
                with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/fdinfo/{fd}") as lines:
                    for words in map(str.split, lines):
                        # lock: 1: POSIX ADVISORY WRITE 4711 00:2a:1234 0 EOF
                        if words[0] == "lock:" and words[2] == "POSIX":
                            start, end = int(words[7]), words[8]
                            yield Lock(
                                pid=process.pid,
                                fd=fd,
                                write=words[4] == "WRITE",
                                start=start,
                                length=0 if end == "EOF" else int(end) + 1 - start,
                            )

    def from_base(self) -> Iterator[str]:
        """The open files that come from the base, by their names in the overlay's index."""
        for process, targets in self.by_process:
            for fd, target in targets.items():
                if target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/sys/")):
                    with contextlib.suppress(OSError):
                        if name := overlay.index_name(f"/proc/{process.host_pid}/fd/{fd}"):
                            yield name

    def unread_inotify(self) -> Iterator[str]:
        """Notices of file changes that a process has not read. They cannot be put back into the kernel."""
        for process, targets in self.by_process:
            for fd, target in targets.items():
                if target != "anon_inode:inotify":
                    continue
                with contextlib.suppress(OSError):
                    inotify = processes.duplicate(process.host_pid, fd)
                    try:
                        unread = fcntl.ioctl(inotify, termios.FIONREAD, bytes(4))
                    finally:
                        os.close(inotify)
                    if any(unread):
                        name = f"process {process.pid} ({process.command})"
                        yield f"file changes that {name} had not read yet (inotify) are forgotten"

    def credentials_of_peers(self) -> Iterator[str]:
        """SO_PEERCRED of unix sockets, where it is not root: CRIU connects all of them as root."""
        if not any(process.uid for process, _ in self.by_process):
            return
        for process, targets in self.by_process:
            # dict: each sentence once, in the order of the descriptors.
            yield from dict.fromkeys(
                f"process {process.pid} ({process.command}): after a restore {peer}"
                for fd, target in targets.items()
                if target.startswith("socket:[")
                for peer in _describe_peer(process.host_pid, fd)
            )


def _describe_peer(host_pid: int, fd: int) -> Iterator[str]:
    with contextlib.suppress(OSError), socket.socket(fileno=processes.duplicate(host_pid, fd)) as end:
        if end.family != socket.AF_UNIX or end.type == socket.SOCK_DGRAM:
            return
        pid, uid, _ = struct.unpack("iII", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if pid and uid and end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield f"clients of its unix socket see root, not user {uid} (SO_PEERCRED)"
        elif pid and uid:
            yield f"the other end of a unix connection is root, not user {uid} (SO_PEERCRED)"
