"""Bringing a saved tree back to life in a fresh box: up to the moment before it runs, and from there.

`hold` stops when all processes exist and none has run; a spare is a tree left there. In that moment what
CRIU cannot restore is put right:

- the foreground job of the terminal is set again, or a program would find itself in the background and its
  read would fail;
- unix connections are made in advance, as the processes that had made them (peers.py);
- POSIX locks are taken again inside the processes that held them (native/relock.c);
- terminals that live wholly inside the tree (tmux's panes) are created before the tree is forked, so that
  its session leaders have them before they have children (native/shim.c);
- watches on the paths of sockets are added again (watches.py);
- typed input is put back into the terminals, traits are set again;
- SQLite is told the device numbers that its files have now (sqlite.py), when the tree is released.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from waypoint.box.box import Box
from waypoint.box.plan import ENGINE_IN_BOX
from waypoint.engine import (
    criu,
    diagnosis,
    ipc,
    peers,
    sessions,
    socket_options,
    sqlite,
    traits,
    watches,
)
from waypoint.engine.criu import Stage
from waypoint.engine.dump import has_own_network, put_typed
from waypoint.engine.freezer import CRIU_PROCESSES, Freezer
from waypoint.engine.images import Lock, TreeState, inner_terminals, read_state, window_sizes
from waypoint.engine.lazy import LazyFailed, PageServer
from waypoint.errors import CannotRestore
from waypoint.kernel import faults, processes, readiness, timers
from waypoint.kernel.network import firewall

_RELOCK_SECONDS = 30.0


class HeldTree:
    """A tree that exists in its box and has not run yet. `release` lets it run; it ends with its box."""

    def __init__(self, box: Box, state: TreeState, conversation: criu.Conversation, images: Path) -> None:
        self.box, self.state, self._conversation, self._images = box, state, conversation, images
        self._stopped_timers: list[timers.Stopped] = []
        tree = list(_find_members(box, state.anchor))
        self._members = [process.host_pid for process in tree if process.state != "Z"]
        self._host_pids = {process.pid: process.host_pid for process in tree}
        _check_sessions(tree, state)
        sqlite.check_records(self._host_pids, state.file_records)
        self.released = False

    @property
    def complete(self) -> bool:
        """Whether all its processes, and CRIU, are still alive. The kernel may have killed one when memory
        ran out; CRIU would wait for it until its time limit."""
        return bool(self._members) and not any(map(processes.is_over, self._members))

    def runs(self, pid: int) -> bool:
        """Whether it has a process of that number (in the box) which has not ended."""
        return any(process.pid == pid and process.state != "Z" for process in processes.below(self.box.pid))

    def stop_timers(self) -> None:
        """For a tree that is held for long. Timer descriptors run from the moment they are restored. (Other
        timers, and TCP connections, are started by CRIU when it leaves this stage.)"""
        for process in processes.below(self.box.pid):
            for fd, target in processes.descriptors(process.host_pid).items():
                if target == timers.TARGET:
                    self._stopped_timers.append(timers.stop(processes.duplicate(process.host_pid, fd)))

    def release(self) -> None:
        """Lets the tree run."""
        freezer = Freezer(self.box)
        with contextlib.ExitStack() as steps:
            steps.callback(freezer.thaw)
            steps.enter_context(self._conversation)
            # Not before: memory that is tracked has to notice it.
            sqlite.renumber(self._host_pids, self.state.file_records)
            while self._stopped_timers:
                self._stopped_timers.pop().resume()
            try:
                faults.reach("revive.releasing")
                for stage in self._conversation.stages():
                    if stage == Stage.RESUMING:  # nothing runs before CRIU is out of its reach
                        freezer.freeze_held()
            except criu.CriuFailed as failure:
                raise diagnosis.cannot_restore(self._images, failure) from failure
            self.released = True
        faults.reach("revive.released")
        self.box.keeper.adopt(self.state.anchor)

    def close(self) -> None:
        """For a tree that will never run. The caller ends its box."""
        self._conversation.close()
        while self._stopped_timers:
            os.close(self._stopped_timers.pop().fd)


def hold(box: Box, images: Path, pages: PageServer | None = None) -> HeldTree:
    """Restores the tree into a fresh box, up to the moment before its first instruction. `pages`: a server
    that gives it most of its memory later."""
    state = read_state(images)
    terminals = inner_terminals(images)
    faults.reach("revive.begun")
    box.keeper.set_last_pid(peers.FIRST_HELPER_PID)
    try:
        with contextlib.ExitStack() as undo:
            with (
                box.limits_group.room_for(CRIU_PROCESSES),
                peers.made(box, state.peers, shares_network=not has_own_network(box)) as peers_env,
            ):
                env = [*peers_env, *sessions.environment(state.sessions)]
                conversation = undo.enter_context(_start_criu(box, images, state, terminals, env, pages))
                faults.reach("revive.started")
                _follow_to_hold(conversation, box, lock_network=state.network_locked)
                if pages:
                    pages.arm({process.pid: process.host_pid for process in processes.below(box.pid)})
                    faults.reach("revive.armed")
            faults.reach("revive.held")
            _complete(box, state, drop_ptys=bool(terminals))
            faults.reach("revive.completed")
            held = HeldTree(box, state, conversation, images)
            undo.pop_all()
    except criu.CriuFailed as failure:
        error = diagnosis.cannot_restore(images, failure)
        if pages:
            raise LazyFailed(pages.failure or error.message) from failure
        raise error from failure
    return held


def _check_sessions(tree: Sequence[processes.Process], state: TreeState) -> None:
    """Refuses a tree in which a session is not what it was."""
    by_pid = {process.pid: process for process in tree}
    for birth in state.sessions.births:
        if birth.pid not in by_pid or by_pid[birth.pid].session != birth.session:
            raise CannotRestore(f"process {birth.pid} is not in its session {birth.session}")


def _find_members(box: Box, anchor: int) -> Iterator[processes.Process]:
    """The processes of a held tree, and CRIU, which is the anchor's parent."""
    everything = processes.below(box.pid)
    members = {process.parent_host_pid for process in everything if process.pid == anchor}
    for process in everything:  # parents before children
        if process.host_pid in members or process.parent_host_pid in members:
            members.add(process.host_pid)
            yield process


def _start_criu(
    box: Box,
    images: Path,
    state: TreeState,
    terminals: dict[int, int],
    env: Sequence[str],
    pages: PageServer | None,
) -> criu.Conversation:
    with contextlib.ExitStack() as opened:
        status_pipe = box.keeper.status_pipe()
        opened.callback(os.close, status_pipe)
        inherited = [status_pipe]
        if state.outside_pipes:
            # Their other ends were a client's. The program goes on, and its output is dropped. (Not the
            # host's /dev/null: with that the tree could not be saved again.)
            null = os.open(f"/proc/{box.pid}/root/dev/null", os.O_RDWR | os.O_CLOEXEC)
            opened.callback(os.close, null)
            inherited += [null] * len(state.outside_pipes)  # CRIU wants a descriptor of its own for each
        inodes = [state.status_pipe, *state.outside_pipes]
        names = [(f"pipe:[{inode}]", criu.FIRST_INHERITED_FD + at) for at, inode in enumerate(inodes)]
        env = list(env)
        if state.exit_codes:
            codes = ",".join(f"{pid}:{code}" for pid, code in state.exit_codes.items())
            env.append(f"WAYPOINT_EXITS={codes}")
        if state.ended_ids:
            ended = ",".join(":".join(map(str, (pid, *ids))) for pid, ids in state.ended_ids.items())
            env.append(f"WAYPOINT_ENDED={ended}")
        if box.group:
            opened.callback(
                os.close, group := os.open(box.group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            )
            env.append(f"WAYPOINT_GROUP={state.anchor}:{criu.FIRST_INHERITED_FD + len(inherited)}")
            inherited.append(group)
        if pages:
            env.append(f"WAYPOINT_PAGES={criu.FIRST_INHERITED_FD + len(inherited)}")
            inherited.append(pages.start(images))
            opened.callback(os.close, inherited[-1])
        if terminals:
            leaders = [f"{leader}:{index}" for index, leader in terminals.items() if leader]
            pty_holder, ptys = box.keeper.hold_ptys(sorted(terminals))
            _set_window_sizes(box, ptys, window_sizes(images))
            env.append("WAYPOINT_PTYS=" + ",".join(ptys))
            env.append(f"WAYPOINT_PTY_HOLDER={pty_holder}")
            env.append("WAYPOINT_LEADERS=" + ",".join(leaders))
        return criu.start(
            box,
            images,
            criu.restore_request(names, lock_network=state.network_locked, lazy_pages=pages is not None),
            ipc="keep" if state.ipc else "new",
            size_bytes=sum(entry.stat().st_size for entry in os.scandir(images)),
            processes=state.processes,
            env=[*criu.box_environment(box), *env],
            inherited=inherited,
            idmapped=box.userns,
        )


def _follow_to_hold(conversation: criu.Conversation, box: Box, *, lock_network: bool) -> None:
    namespace = box.open_namespace("net")
    try:
        for stage in conversation.stages():
            match stage:
                # CRIU expects the locks of its dump to be still there, but this box's network is new.
                case Stage.PREPARED if lock_network:
                    firewall.lock(namespace)
                case Stage.HELD:
                    if lock_network:
                        firewall.unlock(namespace)
                    return
    finally:
        os.close(namespace)


def _complete(box: Box, state: TreeState, *, drop_ptys: bool) -> None:
    """Gives a held tree what CRIU does not restore."""
    put_typed(box, state.typed)
    if drop_ptys:
        box.keeper.drop_ptys()
    _retake_locks(box, state.locks)
    if state.watches:
        host_pids = {process.pid: process.host_pid for process in processes.below(box.pid)}
        watches.add_again(Path(f"/proc/{box.pid}/root"), host_pids, state.watches)
    faults.reach("revive.relocked")
    tree = processes.below(box.pid) if state.traits or state.socket_options or state.removed_segments else []
    traits.apply(tree, state.traits)
    socket_options.apply(tree, state.socket_options)
    _remove_segments(tree, state)
    with contextlib.suppress(OSError):  # the foreground group may have no process any more
        box.keeper.set_foreground(state.foreground)
    box.keeper.set_last_pid(state.last_pid)


def _set_window_sizes(box: Box, ptys: Sequence[str], sizes: dict[int, tuple[int, ...]]) -> None:
    """Gives terminals their sizes while they control no process: CRIU would change them later, and the kernel
    tells processes of a change (SIGWINCH)."""
    for words in ptys:
        index, master, _ = map(int, words.split(":"))
        if index in sizes:
            copy = processes.duplicate(box.pid, master)
            try:
                fcntl.ioctl(copy, termios.TIOCSWINSZ, struct.pack("HHHH", *sizes[index]))
            finally:
                os.close(copy)


def _remove_segments(tree: Sequence[processes.Process], state: TreeState) -> None:
    anchors = [process.host_pid for process in tree if process.pid == state.anchor]
    if state.removed_segments and anchors:
        with ThreadPoolExecutor(1) as executor:  # the kernel keeps an IPC namespace per thread
            executor.submit(ipc.remove_segments, anchors[0], state.removed_segments).result()


def _retake_locks(box: Box, locks: Sequence[Lock]) -> None:
    if not locks:
        return
    kinds = {True: fcntl.F_WRLCK, False: fcntl.F_RDLCK}
    words = [f"{lock.pid}:{lock.fd}:{kinds[lock.write]}:{lock.start}:{lock.length}" for lock in locks]
    reader, writer = os.pipe()
    with os.fdopen(reader) as report:
        try:
            box.keeper.run("keep", [], [str(ENGINE_IN_BOX / "bin" / "relock"), *words], [writer])
        finally:
            os.close(writer)
        # It writes one line, at its end.
        ready = readiness.readable(reader, faults.limit(_RELOCK_SECONDS))
        result = report.read() if ready else "no answer in time"
    if result != "ok\n":
        raise CannotRestore(f"file locks could not be taken again: {result.strip() or 'no answer'}")
