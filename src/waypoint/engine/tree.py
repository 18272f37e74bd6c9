"""Saving the process tree of a box, and bringing it back to life in another one.

CRIU does the bulk. What it cannot do, or does silently wrong, is done around it here:

- the foreground job of the terminal is set again while nothing runs, or a program would find itself
  in the background and its read would fail;
- POSIX locks are taken again inside the processes that held them: CRIU loses those on files that are
  also mapped (native/relock.c);
- terminals that live wholly inside the tree (tmux's panes) exist before the tree is forked, so that its
  session leaders can have them before they have children (native/shim.c);
- what was typed and not yet read is taken out of the terminal at the freeze and put back at the thaw.

`hold` stops at the moment where all tasks exist and none has run: a spare is a tree left there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import logging
import os
import re
import socket
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from waypoint.box.box import ENGINE_IN_BOX, Box
from waypoint.engine import criu, traits
from waypoint.engine.memory import Memory
from waypoint.engine.protobuf import read_image
from waypoint.errors import CannotCheckpoint, CannotRestore, NoSpace, WaypointError
from waypoint.kernel import overlay, processes, timers, tty
from waypoint.kernel.network import veth
from waypoint.kernel.syscalls import CLONE_NEWIPC, detached_mount, setns
from waypoint.model import Record

log = logging.getLogger("waypoint")

FACTS = "tree.json"
_SIZES = "sizes.json"
_ROOM_BYTES = 8 << 20
_DAMAGED_HINT = "nothing has changed; `--files-only` brings back the files with a fresh shell"
_FAR_PID = 3_000_000
"""CRIU's own helpers get pids above this, out of the way of those it has to give back."""
_FROZEN_STAGE = "query-ext-files"
_STOPPED_STAGE = "post-dump"
_READY_STAGE = "pre-restore"
_HELD_STAGE = "post-restore"
_UNACCEPTED = "a connection to it waits to be accepted"
_REASONS = {"In-flight connection": _UNACCEPTED, "in-flight socket": _UNACCEPTED}
"""What CRIU says, and what it means."""
_PASSING = ("In-flight connection", "in-flight socket")
"""What mostly is over a moment later: then the checkpoint is tried again."""
_PATIENCE_SECONDS = (0.02, 0.1, 0.3)
_RELEASE_SECONDS = 60.0
"""Nothing of size is left to be done when a tree is let go."""
_MOST_TERMINALS = 128
"""How many a keeper makes ahead of a restore (MOST_PTYS in native/keeper.c)."""


class Lock(Record, frozen=True):
    """A POSIX lock: whose, through which descriptor, and on what. A length of 0 means "to the end"."""

    pid: int
    fd: int
    write: bool
    start: int
    length: int


class Saved(Record, frozen=True):
    """What a revival has to know besides CRIU's images. Written beside them."""

    anchor: int
    status_pipe: int
    foreground: int
    last_pid: int
    ipc: bool
    network_locked: bool
    outside_pipes: tuple[int, ...] = ()
    locks: tuple[Lock, ...] = ()
    typed: dict[int, bytes] = msgspec.field(default_factory=dict)
    """What was typed into the box's terminals and not read, by their index."""
    shell: int = 0
    processes: int = 0
    open_files: tuple[str, ...] = ()
    traits: tuple[traits.Traits, ...] = ()
    notes: tuple[str, ...] = ()
    """What the images hold with a difference, one sentence each."""


def _start_criu(
    box: Box, images: Path, ipc: str, env: Sequence[str], inherited: Sequence[int]
) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = os.open(images, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        words = [*(f"{key}={value}" for key, value in criu.criu_environment().items()), *env]
        box.keeper.run(
            ipc, words, criu.criu_argv(ENGINE_IN_BOX, "swrk", "3"), [theirs.fileno(), folder, *inherited]
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(folder)
    return ours


@contextlib.contextmanager
def _opened(folder: Path | None) -> Iterator[list[int]]:
    """A descriptor of the folder, in a list; an empty list without one."""
    if folder is None:
        yield []
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield [fd]
    finally:
        os.close(fd)


def _ipc_objects(host_pid: int) -> tuple[bool, list[str]]:
    """Whether the tree's IPC namespace holds anything of System V's (saving it costs milliseconds), and its
    POSIX message queues."""
    found: list[bool] = []
    queues: list[str] = []

    def look() -> None:
        # Only this thread moves: the kernel keeps an IPC namespace per task.
        try:
            space = os.open(f"/proc/{host_pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
            try:
                setns(space, CLONE_NEWIPC)
            finally:
                os.close(space)
            tables = [Path("/proc/sysvipc") / kind for kind in ("shm", "sem", "msg")]
            found.append(any(len(table.read_bytes().splitlines()) > 1 for table in tables))
        except OSError:
            found.append(True)
        with contextlib.suppress(OSError):  # a kernel without them
            folder = detached_mount("mqueue")
            try:
                queues.extend(os.listdir(folder))
            finally:
                os.close(folder)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0], queues


def has_connections(box: Box) -> bool:
    """Whether the box's network namespace holds TCP connections (loopback too) that must not lose packets."""
    space = box.open_namespace("net")
    try:
        return veth.connected(space)
    finally:
        os.close(space)


def terminals(images: Path) -> dict[int, int]:
    """The terminals that live wholly inside a dumped tree: index → session leader, 0 where there is none."""
    # message tty_info_entry: id (twice the index, and one more for a master), ..., sid
    infos = [(int(entry[1]), int(entry[6])) for entry in read_image(images / "tty-info.img")]
    return {number >> 1: session for number, session in infos if number & 1}


def _open_terminal(box: Box, index: int) -> int:
    return os.open(
        f"/proc/{box.pid}/root/dev/pts/{index}", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    )


def _take_typed(box: Box) -> dict[int, bytes]:
    """Empties the input of the box's terminals: its own, of which CRIU knows nothing, and those in the tree
    (tmux's panes), where it would move an unfinished line in front of finished ones and echo those again."""
    names = os.listdir(f"/proc/{box.pid}/root/dev/pts")
    inner = {int(name) for name in names if name.isdigit() and name != "0"}
    # Not those that control nobody: nobody may have them open, and opening and closing would be noticed.
    inner &= {process.terminal for process in processes.below(box.pid)} if inner else set()
    typed = {}
    for index in (0, *inner):
        with contextlib.suppress(OSError, termios.error):
            slave = _open_terminal(box, index)
            try:
                typed[index] = tty.take(slave)
            finally:
                os.close(slave)
    return {index: some for index, some in typed.items() if some}


def _put_typed(box: Box, typed: dict[int, bytes]) -> None:
    for index, some in typed.items():
        with contextlib.suppress(OSError, termios.error):  # whoever used it may have gone
            slave = _open_terminal(box, index)
            try:
                tty.put(slave, some)
            finally:
                os.close(slave)


_Opened = list[tuple[processes.Process, dict[int, str]]]
"""The processes of a tree, each with what its descriptors lead to."""


def _posix_locks(tree: _Opened) -> tuple[Lock, ...]:
    """All POSIX locks of the tree, from the kernel itself: CRIU also overlooks those that a process holds
    through a descriptor it shares with its parent. (flock and OFD locks belong to open files, and survive.)
    """
    found = []
    for process, opened in tree:
        # /proc/locks would say at once who holds any, after waiting for every processor to notice (8 ms).
        for fd, target in opened.items():
            if not target.startswith("/") or target.startswith(("/dev/pts/", "/dev/null")):
                continue
            with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/fdinfo/{fd}") as lines:
                for words in map(str.split, lines):
                    # lock: 1: POSIX ADVISORY WRITE 4711 00:2a:1234 0 EOF
                    if words[0] == "lock:" and words[2] == "POSIX":
                        start, end = int(words[7]), words[8]
                        length = 0 if end == "EOF" else int(end) + 1 - start
                        found.append(
                            Lock(
                                pid=process.pid, fd=fd, write=words[4] == "WRITE", start=start, length=length
                            )
                        )
    return tuple(found)


def _open_files(tree: _Opened) -> Iterator[str]:
    """The open files of the tree that come from the base, by their names in the index of overlays."""
    for process, opened in tree:
        for fd, target in opened.items():
            if target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/sys/")):
                with contextlib.suppress(OSError):
                    name = overlay.index_name(f"/proc/{process.host_pid}/fd/{fd}")
                    if name:
                        yield name


def _unread_notices(tree: _Opened) -> Iterator[str]:
    """Who has been told of file changes and has not read it: nobody can put that back into the kernel."""
    for process, opened in tree:
        for fd, target in opened.items():
            if target != "anon_inode:inotify":
                continue
            with contextlib.suppress(OSError):
                notices = processes.duplicate(process.host_pid, fd)
                try:
                    unread = fcntl.ioctl(notices, termios.FIONREAD, bytes(4))
                finally:
                    os.close(notices)
                if any(unread):
                    who = f"process {process.pid} ({process.command})"
                    yield f"file changes that {who} was told of and had not read yet (inotify) are forgotten"


def _personalities(tree: list[processes.Process]) -> Iterator[str]:
    """Who runs with flags of personality(2), which CRIU does not save and only the process itself can set."""
    for process in tree:
        with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/personality") as file:
            if int(file.read(), 16):
                yield f"process {process.pid} ({process.command}) loses its personality flags (setarch)"


def _kept_pipes(box: Box) -> set[int]:
    """The pipes the keeper reads: also those of programs that have ended and left a child that writes."""
    targets = processes.descriptors(box.pid).values()
    return {int(target[6:-1]) for target in targets if target.startswith("pipe:[")}


def save(
    box: Box,
    images: Path,
    *,
    outside_pipes: Sequence[int],
    shell: int,
    while_frozen: Callable[[list[processes.Process]], None],
    memory: Memory | None = None,
    whole: Path | None = None,
) -> tuple[Saved, criu.DumpStats]:
    """Dumps the tree into `images` and lets it run on. With `memory` only what was written since its last
    settled dump is copied in the pause; the images of memory are put together in `whole` afterwards.
    `while_frozen` is called in this thread once the whole tree stands still, beside CRIU's own work; the
    tree runs again only after it has returned. It may be called more than once: the last time counts. If
    anything fails, the tree runs on as if nobody had asked."""
    try:
        return _save_patiently(box, images, outside_pipes, shell, while_frozen, memory, whole or images)
    except CannotCheckpoint as error:
        if memory is None or not memory.may_be_to_blame(error):
            raise
        log.warning("memory is no longer watched: %s %s", error, error.details.get("log", ())[1:])
        memory.give_up()
        _empty(images, whole or images)
    return _save_patiently(box, images, outside_pipes, shell, while_frozen, None, images)


def _empty(*folders: Path) -> None:
    for folder in {*folders}:
        for left in folder.iterdir():
            left.unlink()


def _save_patiently(
    box: Box,
    images: Path,
    outside_pipes: Sequence[int],
    shell: int,
    while_frozen: Callable[[list[processes.Process]], None],
    memory: Memory | None,
    whole: Path,
) -> tuple[Saved, criu.DumpStats]:
    for seconds in _PATIENCE_SECONDS:
        try:
            return _save(box, images, outside_pipes, shell, while_frozen, memory, whole)
        except CannotCheckpoint as error:
            if not any(passing in line for line in error.details.get("log", ()) for passing in _PASSING):
                raise
            _empty(images, whole)
            time.sleep(seconds)
    return _save(box, images, outside_pipes, shell, while_frozen, memory, whole)


def _save(
    box: Box,
    images: Path,
    outside_pipes: Sequence[int],
    shell: int,
    while_frozen: Callable[[list[processes.Process]], None],
    memory: Memory | None,
    whole: Path,
) -> tuple[Saved, criu.DumpStats]:
    hello = box.hello()
    os.close(hello.master)
    os.close(hello.slave)
    anchor = next((p for p in processes.below(box.pid) if p.pid == hello.anchor), None)
    if anchor is None:
        raise CannotCheckpoint("the session's processes are gone", hint="`waypoint restore` brings it back")
    ipc, queues = _ipc_objects(anchor.host_pid)
    if queues:
        raise CannotCheckpoint(
            f"POSIX message queues cannot be saved, and the session has some: /{', /'.join(sorted(queues))}",
            hint="end who uses them (mq_unlink), or keep the files alone with --files-only; "
            "the session runs on untouched",
            queues=sorted(queues),
        )
    locked = box_has_network(box) and has_connections(box)
    parent = memory.take_baseline() if memory else None
    tracked = memory is not None and memory.watching
    with _opened(parent) as compared:
        connection = _start_criu(
            box, images, "keep" if ipc else "join", ["WAYPOINT_TRACK=1"] if tracked else [], compared
        )
    facts: list[Saved] = []
    typed: dict[int, bytes] = {}
    try:
        request = criu.dump_request(
            hello.anchor, lock_network=locked, track=tracked, with_parent=parent is not None
        )
        talk = criu.Conversation(connection, request)

        def stage(name: str) -> None:
            if name == _STOPPED_STAGE:
                _put_typed(box, typed)
                typed.clear()
                if criu.has_link_remaps(images):
                    while_frozen(processes.below(anchor.host_pid))
            if name != _FROZEN_STAGE:
                return
            typed.update(_take_typed(box))
            # CRIU goes on at once and meets us again before it lets the tree run.
            talk.answer()
            tree = processes.below(anchor.host_pid)
            opened = [(process, processes.descriptors(process.host_pid)) for process in tree]
            facts.append(
                Saved(
                    anchor=hello.anchor,
                    status_pipe=hello.status_pipe,
                    foreground=box.keeper.foreground(),
                    last_pid=box.keeper.last_pid(),
                    ipc=ipc,
                    network_locked=locked,
                    outside_pipes=tuple({*outside_pipes, *_kept_pipes(box)} - {hello.status_pipe}),
                    locks=_posix_locks(opened),
                    typed=dict(typed),
                    shell=shell,
                    processes=len(tree),
                    open_files=tuple(sorted(set(_open_files(opened)))),
                    traits=traits.read(tree, box.pid),
                    notes=(*_unread_notices(opened), *_personalities(tree)),
                )
            )
            while_frozen(tree)

        talk.proceed(stage, answered=_FROZEN_STAGE)
    except criu.CriuFailed as error:
        raise _cannot_save(box, images) from error
    finally:
        connection.close()
        _put_typed(box, typed)
    if memory and parent:
        memory.make_whole(images, parent, whole)
    if max(terminals(images), default=0) >= _MOST_TERMINALS:
        raise CannotCheckpoint(
            f"more than {_MOST_TERMINALS - 1} terminals are open in the session (tmux, screen, script)",
            hint="close some, or keep the files alone with --files-only; the session runs on untouched",
        )
    criu.mend_timers(images)
    criu.mend_inventory(images)
    (images / FACTS).write_bytes(msgspec.json.encode(facts[0]))
    return facts[0], criu.dump_stats(images)


def seal(images: Path) -> None:
    """Writes down how large each file of a point is, as the last thing."""
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(images)}
    (images / _SIZES).write_bytes(msgspec.json.encode(sizes))


def check(images: Path) -> None:
    """Refuses a damaged point. CRIU would wait for ever for the rest of a file that was cut off. (What is in
    the files is checked by the file system below, or by nobody.)"""
    try:
        sizes = msgspec.json.decode((images / _SIZES).read_bytes(), type=dict[str, int])
        wrong = [name for name, size in sizes.items() if (images / name).stat().st_size != size]
    except (OSError, msgspec.DecodeError) as error:
        raise CannotRestore(f"the checkpoint is damaged: {error}", hint=_DAMAGED_HINT) from error
    if wrong:
        raise CannotRestore(
            f"the checkpoint is damaged: {wrong[0]} is not what was written", hint=_DAMAGED_HINT, files=wrong
        )


def box_has_network(box: Box) -> bool:
    """Whether the box's network namespace is its own: the host's must not be locked."""
    return processes.namespace(box.pid, "net") != processes.namespace(os.getpid(), "net")


def saved_facts(images: Path) -> Saved:
    return msgspec.json.decode((images / FACTS).read_bytes(), type=Saved)


class Held:
    """A tree that exists in its box and has not run yet. `release` lets it go, the end of its box ends it."""

    def __init__(self, box: Box, saved: Saved, talk: criu.Conversation, images: Path) -> None:
        self.box, self.saved, self._talk, self._images = box, saved, talk, images
        self._clocks: list[timers.Stopped] = []
        self._living = [one.host_pid for one in processes.below(box.pid) if one.state != "Z"]
        self.released = False

    @property
    def complete(self) -> bool:
        """Whether all of it is still there, CRIU too. Who runs out of memory may be killed here as anywhere,
        and CRIU would wait for ever for one that is missing."""
        return not any(processes.is_over(host_pid) for host_pid in self._living)

    def stop_clocks(self) -> None:
        """For one that is held for long. CRIU sets a process's own timers, and ends the repair of its TCP
        connections, on its way out of this stage; timer descriptors run from the moment they are there."""
        for process in processes.below(self.box.pid):
            for fd, target in processes.descriptors(process.host_pid).items():
                if target == timers.TARGET:
                    self._clocks.append(timers.stop(processes.duplicate(process.host_pid, fd)))

    def release(self) -> None:
        """Lets the tree run. From here on it lives."""
        try:
            while self._clocks:
                self._clocks.pop().resume()
            self._talk.answer()
            self._talk.proceed(patience_seconds=_RELEASE_SECONDS)
            self.released = True
        except (criu.CriuFailed, ConnectionError, TimeoutError) as error:
            raise _cannot_restore(self._images) from error
        finally:
            self._talk.close()
        self.box.keeper.adopt(self.saved.anchor)

    def close(self) -> None:
        """For one that will never run."""
        self._talk.close()
        while self._clocks:
            os.close(self._clocks.pop().fd)


def hold(box: Box, images: Path) -> Held:
    """Restores the tree into a fresh box, up to the moment before its first instruction."""
    saved = saved_facts(images)
    keeper = box.keeper
    keeper.set_last_pid(_FAR_PID)
    with contextlib.ExitStack() as undo:
        status_pipe = keeper.status_pipe()
        undo.callback(os.close, status_pipe)
        inherit = [(f"pipe:[{saved.status_pipe}]", criu.FIRST_INHERITED_FD)]
        descriptors = [status_pipe]
        if saved.outside_pipes:
            # Their other ends were a client's. The program goes on; nobody listens any more. (The box's own
            # /dev/null: with the host's it could not be saved again.)
            nothing = os.open(f"/proc/{box.pid}/root/dev/null", os.O_RDWR | os.O_CLOEXEC)
            undo.callback(os.close, nothing)
            for inode in saved.outside_pipes:  # CRIU wants a number of its own for each
                inherit.append((f"pipe:[{inode}]", criu.FIRST_INHERITED_FD + len(descriptors)))
                descriptors.append(nothing)
        env: list[str] = []
        inner = terminals(images)
        if inner:
            env = [
                "WAYPOINT_PTYS=" + ",".join(keeper.hold_ptys(sorted(inner))),
                "WAYPOINT_LEADERS="
                + ",".join(f"{leader}:{index}" for index, leader in inner.items() if leader),
            ]
        space = box.open_namespace("net")
        undo.callback(os.close, space)

        def stage(name: str) -> None:
            # CRIU relies on the locks of its dump being there still, but this box has a network of its own.
            if saved.network_locked and name == _READY_STAGE:
                veth.lock(space)
            elif saved.network_locked and name == _HELD_STAGE:
                veth.unlock(space)

        connection = _start_criu(box, images, "keep" if saved.ipc else "new", env, descriptors)
        try:
            request = criu.restore_request(inherit, lock_network=saved.network_locked)
            talk = criu.Conversation(connection, request)
            talk.proceed(stage, until=_HELD_STAGE)
            _put_typed(box, saved.typed)
            if inner:
                keeper.drop_ptys()
            _retake_locks(box, saved.locks)
            traits.apply(processes.below(box.pid) if saved.traits else (), saved.traits)
            with contextlib.suppress(OSError):  # the job may have had a group that no process is in any more
                keeper.set_foreground(saved.foreground)
            keeper.set_last_pid(saved.last_pid)
        except criu.CriuFailed as error:
            connection.close()
            raise _cannot_restore(images) from error
        except BaseException:
            connection.close()
            raise
    return Held(box, saved, talk, images)


def _retake_locks(box: Box, locks: Sequence[Lock]) -> None:
    if locks:
        kinds = {True: fcntl.F_WRLCK, False: fcntl.F_RDLCK}
        words = [f"{lock.pid}:{lock.fd}:{kinds[lock.write]}:{lock.start}:{lock.length}" for lock in locks]
        reader, writer = os.pipe()
        with os.fdopen(reader) as answer:
            try:
                box.keeper.run("keep", [], [str(ENGINE_IN_BOX / "bin" / "relock"), *words], [writer])
            finally:
                os.close(writer)
            said = answer.read()
        if said != "ok\n":
            raise CannotRestore(f"file locks could not be taken again: {said.strip() or 'no answer'}")


# ---- when it does not work -----------------------------------------------------------------------

_NAMESPACES = ("pid", "mnt", "net", "user", "ipc", "uts", "time", "cgroup")


def _tracer(host_pid: int) -> processes.Process | None:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{host_pid}/status") as lines:
        tracer = next((int(line.split()[1]) for line in lines if line.startswith("TracerPid:")), 0)
        return processes.read(tracer) if tracer else None
    return None


def unsavable(box: Box) -> list[tuple[processes.Process, str]]:
    """The processes of a box that CRIU is known to refuse, each with the reason."""
    beside = processes.below(box.pid)  # CRIU may be among them, in namespaces of its own
    anchor = next((one for one in beside if one.comm == "waypoint-anchor"), None)
    tree = [anchor, *processes.below(anchor.host_pid)] if anchor else []
    found = []
    for process in sorted(tree, key=lambda one: -one.namespaces):
        targets = processes.descriptors(process.host_pid).values()
        if any("io_uring" in target for target in targets):
            found.append((process, "it uses io_uring, which cannot be saved"))
        elif any(target.startswith("anon_inode:") and "bpf" in target for target in targets):
            found.append((process, "it holds a BPF object, which cannot be saved"))
        elif tracer := _tracer(process.host_pid):
            found.append((process, f"it is being traced by {tracer.command}"))
        elif anchor and process.namespaces > anchor.namespaces:
            seen_as = dataclasses.replace(process, pid=process.pids[anchor.namespaces - 1])
            found.append((seen_as, "it lives in a nested pid namespace, which cannot be saved"))
        elif anchor:
            other = [
                kind
                for kind in _NAMESPACES
                if processes.namespace(process.host_pid, kind)
                not in (None, processes.namespace(anchor.host_pid, kind))
            ]
            if other:
                found.append(
                    (process, f"it lives in a {other[0]} namespace of its own, which cannot be saved")
                )
    return found


def _blamed(box: Box, said: Sequence[str]) -> list[tuple[processes.Process, str]]:
    """The process that CRIU was busy with when it gave up, and why it did."""
    meant = [reason for words, reason in _REASONS.items() if any(words in line for line in said)]
    reason = (*meant, *said)[0] if said else ""
    for line in said:
        found = re.search(r"\(pid: (\d+)\)", line)
        if found:
            return [(one, reason) for one in processes.below(box.pid) if one.pid == int(found[1])]
    return []


def _is_full(images: Path) -> bool:
    """Whether there was no room for the images: then there may not even be a log that says so."""
    try:
        with open(images / "room", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
        (images / "room").unlink()
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def _cannot_save(box: Box, images: Path) -> WaypointError:
    said = criu.errors_in(images / "dump.log")
    if _is_full(images):
        return NoSpace(
            "no space left in the pool for the memory of the processes",
            hint="free some with `waypoint prune`; the session runs on untouched",
        )
    culprits = [
        {"pid": process.pid, "command": process.command, "reason": reason}
        for process, reason in unsavable(box) or _blamed(box, said)
    ]
    if culprits:
        first = culprits[0]
        message = f"process {first['pid']} ({first['command']}) cannot be saved: {first['reason']}"
    else:
        message = "the processes cannot be saved: " + (said[0] if said else "CRIU gave no reason")
    return CannotCheckpoint(
        message,
        hint="end that process, or keep the files alone with --files-only; the session runs on untouched",
        processes=culprits,
        log=said[:20],
    )


def _cannot_restore(images: Path) -> CannotRestore:
    said = criu.errors_in(images / "restore.log")
    return CannotRestore(
        "the processes could not be restored: " + (said[0] if said else "CRIU gave no reason"),
        hint="nothing has changed; `--files-only` brings back the files with a fresh shell",
        log=said[:20],
    )
