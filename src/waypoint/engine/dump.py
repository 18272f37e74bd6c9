"""Saving the process tree of a box, which runs on afterwards.

CRIU does the bulk. Here is what it does not save, or saves wrongly without an error:

- POSIX locks are read from the kernel: CRIU overlooks those held through an inherited descriptor, and
  loses those on files that are also mapped (native/relock.c);
- who made a unix connection (peers.py), and what SQLite remembers of its files (sqlite.py);
- input that was typed and not yet read is taken out of the terminals at the freeze;
- timers, traits of processes, and files that come from the base are recorded beside CRIU's images.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import termios
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from waypoint.api.hints import Do, Hint
from waypoint.box.box import Box
from waypoint.box.keeper import Hello
from waypoint.engine import (
    criu,
    diagnosis,
    images,
    ipc,
    peers,
    sessions,
    socket_options,
    traits,
    unrestorable,
    watches,
)
from waypoint.engine.criu import Stage
from waypoint.engine.diagnosis import FILES_ONLY
from waypoint.engine.freezer import CRIU_PROCESSES, Disturbed, Freezer
from waypoint.engine.images import DumpStats, Lock, TreeState
from waypoint.engine.lazy import complete_memory
from waypoint.engine.memory import Memory
from waypoint.errors import CannotCheckpoint
from waypoint.kernel import faults, overlay, processes, tty
from waypoint.kernel.network import sockets
from waypoint.kernel.network.sockets import Connection
from waypoint.kernel.syscalls import CLONE_NEWIPC, detached_mount, setns

log = logging.getLogger("waypoint")

_IN_ONESHOT = 0x80000000
_RETRY_SECONDS = (0.02, 0.1, 0.3)
"""The pauses between attempts when the cause of a failure is likely to pass."""
_BEGIN_SECONDS = 5.0
"""How long CRIU may take to begin while the tree runs, which can disturb it. It takes milliseconds."""
_MAX_TERMINALS = 128
"""How many terminals a keeper creates ahead of a restore (MAX_PTYS in native/waypoint.h)."""
_MAX_ORPHANED = 32
"""CRIU opens as many terminals to find the one with a number, where the keeper holds none ahead."""

Pauses = Generator[list[processes.Process], None, None]


class Dump:
    """One dump of a box's tree into the folder `folder`.

        with Dump(box, folder, …) as dump:
            for tree in dump.pauses():
                ...  # every process of the tree stands still in here
        dump.state, dump.stats

    With `memory`, only what was written since its baseline is copied in the pause; the images of memory are
    completed afterwards, in `complete_folder`. `outside_pipes`: pipes of programs whose other ends clients
    hold. `forwarded`: connections whose other ends the daemon holds; no other one begins meanwhile. If
    anything fails, the caller's code included, the tree runs on as before. `stays_frozen`: it stood still
    before, and does so afterwards (`Box.freeze`).
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
        forwarded: Collection[Connection] = (),
        stays_frozen: bool = False,
    ) -> None:
        self._box, self._folder = box, folder
        self._stays_frozen = stays_frozen
        self._outside_pipes, self._shell = outside_pipes, shell
        self._memory, self._complete_folder = memory, complete_folder or folder
        self._forwarded = forwarded
        self._file_records = memory.file_records if memory else None
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
        # CRIU would take missing memory for empty.
        if self._memory:
            self._memory.complete()
        else:
            complete_memory(self._box)
        delays, disturbed = iter(_RETRY_SECONDS), self._stays_frozen
        while True:
            try:
                yield from self._attempt(freeze_first=disturbed)
                return
            except Disturbed as error:
                log.warning("CRIU was disturbed from inside the box: %s", error)
                disturbed = True
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

    def _attempt(self, *, freeze_first: bool) -> Pauses:
        """`freeze_first`: the tree stands still before CRIU is started, and not only before it begins."""
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
        if unstoppable := unrestorable.find_unstoppable(anchor, members):
            raise diagnosis.cannot_save(unstoppable)
        saves_ipc = _examine_ipc(anchor)
        lock_network = has_own_network(box) and _has_connections(box)
        parent = memory.take_baseline() if memory else None
        tracked = memory is not None and memory.tracking
        # CRIU refuses connections that are not accepted yet. Those from outside are none of the session's: a
        # program that is slow to accept must not prevent a checkpoint because of them.
        without_waiting = bool(self._forwarded) and _waiting(box, self._forwarded).only_outside
        freezer = Freezer(box, stays_frozen=self._stays_frozen)
        began, held = freeze_first, False
        groups = [box.group] if freezer.available and box.group else []
        request = criu.dump_request(
            hello.anchor,
            lock_network=lock_network,
            track=tracked,
            with_parent=parent is not None,
            without_waiting=without_waiting,
            frozen_group=criu.FIRST_INHERITED_FD + bool(parent) + 1 if groups else None,
        )
        faults.reach("dump.begun")
        state: TreeState | None = None
        tree: list[processes.Process] = []
        typed: dict[int, bytes] = {}
        obstacles: list[unrestorable.Obstacle] = []
        makers: dict[int, images.Maker] = {}
        names_in_use: peers.Names = ()
        open_files = _OpenFiles([])
        socket_watches: tuple[images.SocketWatch, ...] = ()
        try:
            if freeze_first:
                freezer.freeze()
            with (
                box.limits_group.room_for(CRIU_PROCESSES if freeze_first else 0),
                _open_folders([parent] if parent else []) as inherited,
                _open_folders(groups) as group,
                os.fdopen(os.memfd_create("peers"), "rb") as records,
                criu.start(
                    box,
                    folder,
                    request,
                    ipc="keep" if saves_ipc else "join",
                    size_bytes=sum(process.rss_bytes for process in members),
                    processes=len(members),
                    begin_seconds=None if began or not groups else _BEGIN_SECONDS,
                    env=[
                        *criu.box_environment(box),
                        *(["WAYPOINT_TRACK=1"] if tracked else []),
                        f"WAYPOINT_PEERS={criu.FIRST_INHERITED_FD + len(inherited)}",
                    ],
                    inherited=[*inherited, records.fileno(), *group],
                ) as conversation,
            ):
                faults.reach("dump.started")
                for stage in conversation.stages():
                    match stage:
                        case Stage.BEGUN:
                            freezer.freeze()
                            freezer.check(conversation.host_pid)
                            began = True
                        case Stage.FROZEN:
                            held = True
                            typed = _take_typed(box)
                            faults.reach("dump.frozen")
                            conversation.proceed()  # it reports DUMPED before it lets the tree run
                            tree = processes.below(anchor.host_pid)
                            open_files = _OpenFiles.of(tree)
                            obstacles = unrestorable.find(
                                anchor, open_files.by_process, _unsent_datagrams(box), box.pid
                            )
                            socket_watches, unknown = watches.find(open_files.by_process, box.pid)
                            obstacles += [*unknown, *open_files.broken_leases()]
                            if without_waiting:
                                obstacles += _not_accepted(box, self._forwarded, open_files)
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
                            faults.reach("dump.written")
                            put_typed(box, typed)
                            typed = {}
                            makers = peers.read_makers(records.fileno(), in_userns=box.userns)
                            names_in_use = peers.names_in_use(folder, box) if makers else ()
                            if images.has_link_remaps(folder):
                                yield processes.below(anchor.host_pid)
        except (criu.CriuFailed, BlockingIOError) as failure:  # the latter: no process can be started
            # It may have been killed just before the freeze, and end only now. Nothing was held by it yet.
            ended = isinstance(failure, criu.CriuEnded) and not isinstance(failure, criu.CriuTimedOut)
            killed = ended and not (held or freeze_first)
            freezer.require_calm(failure, began=began and not killed)
            if isinstance(failure, BlockingIOError):
                raise
            # What CRIU took along when it was killed dies when it runs again, and not while it is frozen.
            put_typed(box, typed)
            typed = {}
            freezer.thaw()
            error = diagnosis.cannot_checkpoint(box, folder, failure, tree)
            if obstacles and not error.details.get("gone"):
                error = diagnosis.cannot_save(obstacles)
            raise error from failure
        finally:
            put_typed(box, typed)
            freezer.thaw()
        assert state, "CRIU has reported no freeze"
        faults.reach("dump.ended")
        if memory and parent:
            memory.complete_images(folder, parent, self._complete_folder)
        faults.reach("dump.completed")
        _refuse_terminals(folder)
        _refuse_fixed_ambient(folder, tree)
        images.correct_terminals(folder, {process.terminal for process in tree})
        images.correct_timers(folder)
        watches.correct_images(folder, socket_watches)
        made_again = sessions.correct_images(folder)
        moved = (
            f"process {pid} has ended and is not collected: after a restore it is in its parent's session"
            for pid in made_again.moved
        )
        state = msgspec.structs.replace(
            state, watches=socket_watches, sessions=made_again, notes=(*state.notes, *moved)
        )
        images.correct_inventory(folder)
        state = self._with_peers(state, makers, names_in_use, open_files)
        images.correct_unix_sockets(folder)
        faults.reach("dump.corrected")
        images.write_state(folder, state)
        self.state = state
        self.stats = replace(images.dump_stats(folder), group_frozen_ms=freezer.pause_ms)

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
        file_records, unknown = (
            self._file_records.find(open_files.by_process) if self._file_records else ((), ())
        )
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
            file_records=file_records,
            socket_options=socket_options.read(open_files.by_process),
            exit_codes=_long_exit_codes(tree),
            ended_ids=_ended_ids(tree),
            removed_segments=_removed_segments(tree) if saves_ipc else (),
            notes=(
                *open_files.inotify(),
                *open_files.epolls(),
                *_unread_datagrams(box, open_files),
                *_losses(tree, saves_ipc=saves_ipc),
                *unknown,
            ),
        )

    def _with_peers(
        self,
        state: TreeState,
        makers: dict[int, images.Maker],
        names_in_use: peers.Names,
        open_files: _OpenFiles,
    ) -> TreeState:
        """With how the unix connections of the tree are made again."""
        tree = [process for process, _ in open_files.by_process]
        try:
            made_again = peers.correct_images(self._folder, makers, tree, names_in_use)
        except peers.CannotMake as error:
            holder = open_files.holder(error.inode)
            raise diagnosis.cannot_save([(holder, error.reason)] if holder else []) from error
        differences = peers.describe_differences(
            makers, made_again, open_files.by_process, shares_network=not has_own_network(self._box)
        )
        return msgspec.structs.replace(state, peers=made_again, notes=(*state.notes, *differences))


def is_savable(box: Box, forwarded: Collection[Connection]) -> bool:
    """Whether nothing prevents a dump of a tree that stands still, as far as can be known without CRIU. Where
    there is a doubt the answer is no. A dump says what the matter is."""
    hello = box.hello()
    os.close(hello.master)
    os.close(hello.slave)
    members = processes.below(box.pid)
    anchor = next((process for process in members if process.pid == hello.anchor), None)
    if anchor is None or len(_inner_terminals(box)) >= _MAX_ORPHANED:
        return False
    tree = processes.below(anchor.host_pid)
    if any(map(unrestorable.has_ambient_capabilities, tree)):
        return False
    try:
        _examine_ipc(anchor)
    except CannotCheckpoint:
        return False
    if unrestorable.find_unstoppable(anchor, members):
        return False
    open_files = _OpenFiles.of(tree)
    return (
        not unrestorable.find(anchor, open_files.by_process, _unsent_datagrams(box), box.pid)
        and not watches.find(open_files.by_process, box.pid)[1]
        and not any(open_files.broken_leases())
        and _waiting(box, forwarded).only_outside
        and not box.mounts_made_inside()
    )


def _refuse_terminals(folder: Path) -> None:
    """Refuses more terminals than a restore can make."""
    if max(images.inner_terminals(folder), default=0) >= _MAX_TERMINALS:
        which = f"more than {_MAX_TERMINALS - 1} terminals"
    elif max(images.orphaned_terminals(folder), default=0) >= _MAX_ORPHANED:
        which = f"more than {_MAX_ORPHANED - 1} terminals, and some of them only at their slave,"
    else:
        return
    raise CannotCheckpoint(
        f"{which} are open in the session (tmux, screen, script)",
        hint=Hint("close some, or save the files alone: ", FILES_ONLY, "; the session runs on untouched"),
    )


def _refuse_fixed_ambient(folder: Path, tree: Sequence[processes.Process]) -> None:
    """Refuses processes with capabilities that CRIU could not raise again."""
    fixed = [
        (process, unrestorable.FIXED_AMBIENT)
        for process in tree
        if unrestorable.has_ambient_capabilities(process)
        and not images.may_raise_ambient(folder, process.pid)
    ]
    if fixed:
        raise diagnosis.cannot_save(fixed)


@contextlib.contextmanager
def _open_folders(folders: Sequence[Path]) -> Iterator[list[int]]:
    """A descriptor of each folder."""
    with contextlib.ExitStack() as opened:
        fds = []
        for folder in folders:
            fds.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            opened.callback(os.close, fds[-1])
        yield fds


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


def _waiting(box: Box, forwarded: Collection[Connection]) -> sockets.Waiting:
    namespace = box.open_namespace("net")
    try:
        return sockets.waiting(namespace, forwarded)
    finally:
        os.close(namespace)


def _not_accepted(
    box: Box, forwarded: Collection[Connection], open_files: _OpenFiles
) -> Iterator[unrestorable.Obstacle]:
    """The process to which a connection waits that comes from the session itself: it has come since CRIU was
    told to leave out those that wait."""
    there = _waiting(box, forwarded)
    if not there.only_outside:
        for inode in sorted(there.listeners):
            if process := open_files.holder(inode):
                yield process, unrestorable.NOT_ACCEPTED


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


def _inner_terminals(box: Box) -> set[int]:
    """The numbers of the box's terminals but for its own."""
    names = os.listdir(f"/proc/{box.pid}/root/dev/pts")
    return {int(name) for name in names if name.isdigit() and name != "0"}


def _take_typed(box: Box) -> dict[int, bytes]:
    """Empties the input of the box's terminals: its own, which CRIU does not know, and those inside the tree
    (tmux's panes), where CRIU would move an unfinished line in front of finished ones and echo those again.
    """
    inner = _inner_terminals(box)
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


def _long_exit_codes(tree: list[processes.Process]) -> dict[int, int]:
    """Exit codes of eight bits that no process has waited for. CRIU saves seven."""
    codes = {}
    for process in tree:
        if process.state == "Z":
            with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/stat", "rb") as file:
                status = int(file.read().rpartition(b")")[2].split()[-1])
                if not status & 0x7F and status >> 8 > 0x7F:
                    codes[process.pid] = status >> 8
    return codes


def _ended_ids(tree: list[processes.Process]) -> dict[int, tuple[int, ...]]:
    """Users and groups of processes that have ended. CRIU does not save them."""
    result = {}
    for process in tree:
        if process.state == "Z":
            with contextlib.suppress(OSError):
                status = processes.read_status(process.host_pid)
                both = (processes.inner_ids(process.host_pid, status, name) for name in ("Uid", "Gid"))
                ids = tuple(number for numbers in both for number in numbers)
                if any(ids):
                    result[process.pid] = ids
    return result


def _removed_segments(tree: list[processes.Process]) -> tuple[int, ...]:
    """The System V shared memory that was removed while processes use it. CRIU would bring it back as if it
    was to stay."""
    if not tree:
        return ()
    with ThreadPoolExecutor(1) as executor:  # the kernel keeps an IPC namespace per thread
        return executor.submit(ipc.removed_segments, tree[0].parent_host_pid).result()


def _losses(tree: list[processes.Process], *, saves_ipc: bool) -> Iterator[str]:
    """What CRIU does not save, and only a process itself could set: flags of personality(2), that locked
    memory is only what was used, and what its end would undo."""
    for process in tree:
        name = f"process {process.pid} ({process.command})"
        with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/personality") as file:
            if int(file.read(), 16):
                yield f"{name} loses its personality flags (setarch)"
        with contextlib.suppress(OSError):
            if processes.locks_on_fault(process.host_pid):
                yield f"{name} locks memory as it is used (MLOCK_ONFAULT): after a restore all of it is used"

        # The anchor has no such list, and is the parent of the first of its descendants.
        if saves_ipc and not processes.shares_undo_list(process.host_pid, tree[0].parent_host_pid):
            yield f"{name}: at its end changes of semaphores are not undone after a restore (SEM_UNDO)"


def _unread_datagrams(box: Box, open_files: _OpenFiles) -> Iterator[str]:
    """UDP datagrams that wait to be read are not saved."""
    namespace = box.open_namespace("net")
    try:
        inodes = sockets.unread_datagrams(namespace)
    finally:
        os.close(namespace)
    for inode in sorted(inodes):
        if process := open_files.holder(inode):
            yield f"UDP datagrams that process {process.pid} ({process.command}) had not read yet are lost"


class _FileLock(NamedTuple):
    """A line of fdinfo."""

    process: processes.Process
    fd: int
    flags: int
    """Of the open file."""
    kind: str
    state: str
    mode: str
    start: str
    end: str


@dataclass(frozen=True)
class _OpenFiles:
    """The processes of a tree, each with the targets of its descriptors."""

    by_process: list[tuple[processes.Process, dict[int, str]]]

    @classmethod
    def of(cls, tree: Sequence[processes.Process]) -> Self:
        return cls([(process, processes.descriptors(process.host_pid)) for process in tree])

    @functools.cached_property
    def locks(self) -> list[_FileLock]:
        """What is locked through each open file, as the kernel tells it. (It lists POSIX locks by process:
        one shows at every descriptor of the process that leads to the file.)"""
        # /proc/locks lists them at once, after waiting for every processor to take notice (8 ms).
        found = []
        for process, targets in self.by_process:
            for fd, target in targets.items():
                if target.startswith("anon_inode:"):
                    continue
                flags = 0
                with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/fdinfo/{fd}") as lines:
                    for words in map(str.split, lines):
                        if words[0] == "flags:":
                            flags = int(words[1], 8)
                        elif words[0] == "lock:":
                            # lock: 1: POSIX ADVISORY WRITE 4711 00:2a:1234 0 EOF
                            found.append(_FileLock(process, fd, flags, *words[2:5], *words[7:9]))
        return found

    def posix_locks(self) -> Iterator[Lock]:
        """(flock and OFD locks belong to open files, and survive. Those on objects without a file of their
        own are refused: unrestorable.py.)"""
        for lock in self.locks:
            if lock.kind == "POSIX":
                start = int(lock.start)
                yield Lock(
                    pid=lock.process.pid,
                    fd=lock.fd,
                    write=lock.mode == "WRITE",
                    start=start,
                    length=0 if lock.end == "EOF" else int(lock.end) + 1 - start,
                )

    def broken_leases(self) -> Iterator[unrestorable.Obstacle]:
        for lock in self.locks:
            is_broken = (lock.kind, lock.state, lock.mode) == ("LEASE", "ACTIVE", "READ")
            if is_broken and lock.flags & os.O_ACCMODE != os.O_RDONLY:
                yield lock.process, unrestorable.READ_LEASE_OF_WRITABLE

    def from_base(self) -> Iterator[str]:
        """The open files that come from the base, by their names in the overlay's index."""
        for process, targets in self.by_process:
            for fd, target in targets.items():
                if target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/sys/")):
                    with contextlib.suppress(OSError):
                        if name := overlay.index_name(f"/proc/{process.host_pid}/fd/{fd}"):
                            yield name

    def inotify(self) -> Iterator[str]:
        """What inotify descriptors lose: notices of changes that were not read, which cannot be put back into
        the kernel; and that a watch is for one event (IN_ONESHOT)."""
        for process, targets in self.by_process:
            for fd, target in targets.items():
                if target != "anon_inode:inotify":
                    continue
                name = f"process {process.pid} ({process.command})"
                with contextlib.suppress(OSError):
                    inotify = processes.duplicate(process.host_pid, fd)
                    try:
                        unread = fcntl.ioctl(inotify, termios.FIONREAD, bytes(4))
                    finally:
                        os.close(inotify)
                    if any(unread):
                        yield f"file changes that {name} had not read yet (inotify) are forgotten"
                with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/fdinfo/{fd}") as lines:
                    masks = [word for line in lines for word in line.split() if word.startswith("mask:")]
                    if any(int(mask[5:], 16) & _IN_ONESHOT for mask in masks):
                        yield f"{name} watches for one file change (IN_ONESHOT): after a restore, for all"

    def epolls(self) -> Iterator[str]:
        """CRIU saves an epoll once, as one of its processes has it. Where that process has closed the
        descriptor by which a file is watched, it takes another one of the same file."""
        for process, targets in self.by_process:
            for fd, target in targets.items():
                if target != "anon_inode:[eventpoll]":
                    continue
                with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/fdinfo/{fd}") as lines:
                    watched = [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
                    if any(number not in targets for number in watched):
                        yield (
                            f"process {process.pid} ({process.command}) has closed a descriptor by which its"
                            " epoll watches: after a restore it may watch by another one of the same file"
                        )

    def holder(self, inode: int) -> processes.Process | None:
        """A process that holds a socket."""
        target = f"socket:[{inode}]"
        return next((process for process, targets in self.by_process if target in targets.values()), None)
