"""A box: the isolated place a session lives in, as the daemon holds it.

Namespaces, an overlay root on the session's own volume, a private /dev, a terminal, and a keeper as pid 1.
A box outlives the daemon that built it: the next one finds it by the name of its keeper.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from waypoint.api.hints import Do, Hint
from waypoint.box.keeper import Hello, Keeper
from waypoint.box.masks import is_mask, mask_home
from waypoint.box.plan import BoxSpec, inside_path, write_plan
from waypoint.errors import BaseChanged, MachineError, MissingFeature, NoSpace, WaypointError
from waypoint.home import Home
from waypoint.kernel import atomic, cgroups, faults, homes, processes, readiness, userns
from waypoint.kernel.homes import KnownHome
from waypoint.kernel.mounts import Mount, mounts, parse_mountinfo
from waypoint.kernel.syscalls import RESOLVE_IN_ROOT, openat2

log = logging.getLogger("waypoint")

_FIRST = 1
"""The pid whose end is the end of all processes of a pid namespace."""
_END_SECONDS = 20.0
_DYING_SECONDS = 1.0
_BUILD_SECONDS = 60.0
"""How long a keeper may take for a box: a few milliseconds, unless a mount of the host does not answer."""
_FREEZE_POLL_SECONDS = 0.0001
_ANCHOR = "waypoint-anchor"
_MASK_SECONDS = 2.0
"""A keeper of another home that does not answer (its box is frozen) must not keep this one from opening."""
_MASKED_AT_ONCE = 32
"""Boxes in which a new home is masked at the same time: all others wait meanwhile for boxes to be built, and
those whose keepers do not answer must not add up."""


class Box:
    """A running box. Closing it leaves it running; `kill` ends everything in it."""

    file_limits: ClassVar[tuple[int, int] | None] = None
    """RLIMIT_NOFILE of a new box, where it differs from the daemon's own."""
    open_files: tuple[int, int] | None = None
    """RLIMIT_NOFILE of the processes of its session; None: that of the box."""

    def __init__(self, home: Home, box_id: str, pid: int, volume: Path) -> None:
        self.id, self.pid, self.volume = box_id, pid, volume
        self._mounts_file = _mounts_path(home.run, box_id)
        self.pages_socket = home.run / f"{box_id}.pages"
        """Where the page server of its memory listens, while it has one (engine/lazy.py)."""
        self.keeper_pid, self.first_pid = _innermost_pid(str(pid)), _first_of(pid)
        """The keeper's number in the box, and the host's number of pid 1 of the box."""
        self.userns = self.first_pid != pid
        """Whether the box is in a user namespace: its pid 1 is the keeper's parent then."""
        with contextlib.ExitStack() as undo:
            self._pidfd = os.pidfd_open(self.first_pid)
            undo.callback(os.close, self._pidfd)
            self.keeper = Keeper(socket_path(home, box_id))
            undo.pop_all()
        self.limits_group = cgroups.find(home.tag, box_id)
        self.limits = self.limits_group.limits()
        self.group = self.limits_group.tree
        """The control group of its tree; None where the machine has none that can be frozen."""

    def use_group(self, folder: Path | None) -> None:
        """The control group in which the keeper starts the tree. Before it starts one."""
        if folder:
            with contextlib.ExitStack() as opened:
                fds = []
                for path, flags in (
                    (folder, os.O_RDONLY | os.O_DIRECTORY),
                    (folder / cgroups.FREEZE_FILE, os.O_WRONLY),
                ):
                    fds.append(os.open(path, flags | os.O_CLOEXEC))
                    opened.callback(os.close, fds[-1])
                self.keeper.use_group(*fds)
        self.group = folder

    def start_tree(self) -> None:
        """Starts the anchor, from which everything in the box descends: what it may have open they may. (A
        restored tree has the limits that it was saved with.)"""
        self.keeper.start_anchor()
        if self.open_files:
            anchor = next(processes.host_pids(self.pid))
            resource.prlimit(anchor, resource.RLIMIT_NOFILE, self.open_files)

    def open_files_limit(self) -> int | None:
        """How many files a process may have open at most; None where nothing runs."""
        with contextlib.suppress(OSError):
            for host_pid in processes.host_pids(self.pid):
                process = processes.read(host_pid)
                if process and process.comm == _ANCHOR:
                    return resource.prlimit(host_pid, resource.RLIMIT_NOFILE)[1]
        return None

    @classmethod
    def build(cls, spec: BoxSpec, started: Callable[[int], object] = lambda _: None) -> Box:
        """Starts a keeper and waits until it has built the box. A failure leaves nothing in the run
        folder. `started` is called with the pid of the process that begins to build."""
        try:
            with homes.reading():
                return cls._build(spec, started)
        except BaseException:
            socket_path(spec.home, spec.id).unlink(missing_ok=True)
            drop_inside(spec.home, spec.id)
            raise

    @classmethod
    def _build(cls, spec: BoxSpec, started: Callable[[int], object]) -> Box:
        home, plan = spec.home, write_plan(spec)
        home.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home.run / "root").mkdir(exist_ok=True)
        socket_file = socket_path(home, spec.id)
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(str(socket_file))
            listener.listen(8)
            plan_fd = os.memfd_create("plan")
            undo.callback(os.close, plan_fd)
            os.write(plan_fd, plan.encode())
            reader, writer = os.pipe()
            undo.callback(os.close, reader)
            fds = (plan_fd, listener.fileno(), writer)
            try:
                starter = subprocess.Popen(
                    [f"waypoint-keeper {home.tag} {spec.id}", *map(str, fds)],
                    executable=spec.engine / "bin" / "keeper",
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                    start_new_session=True,
                )
            finally:
                os.close(writer)
            started(starter.pid)
            pid, outcome, ended = _read_report(reader, faults.limit(_BUILD_SECONDS))
            if not ended:
                for process in filter(None, (pid, starter.pid)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                starter.wait(_END_SECONDS)
            if not ended:
                raise MachineError(
                    f"a box was not built within {_BUILD_SECONDS:g} s: its keeper does not answer",
                    hint=Hint(Do("doctor"), " may find the cause"),
                )
            if outcome != "ready":
                raise _build_error(outcome or "failed 0 keeper -")
            try:
                if cls.file_limits:
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, cls.file_limits)
                box = cls(home, spec.id, pid, spec.volume)
            except OSError as error:
                end_keeper(home, spec.id, pid)
                raise MachineError(
                    f"a box was built and cannot be used: {error}",
                    hint=Hint(Do("doctor"), " may find the cause"),
                ) from error
            try:
                box._mask_other_homes(home)
                table = Path(f"/proc/{pid}/mountinfo").read_bytes()
                atomic.write(_mounts_path(home.run, spec.id), table, mode=0o600)
            except BaseException:
                box.kill(home)
                raise
            return box

    def _mask_other_homes(self, home: Home) -> None:
        for other in homes.known_homes():
            if other.path != home.path:
                try:
                    mask_home(self.pid, self.keeper, other)
                except OSError as error:
                    raise MachineError(
                        f"the Waypoint home {other.path} cannot be hidden from the box: {error}",
                        hint=Hint(Do("doctor"), " may find the cause"),
                    ) from error

    @classmethod
    def find(cls, home: Home, box_id: str, volume: Path) -> Box | None:
        """The box that an earlier daemon built, if it still runs. OSError when it runs and does not
        answer."""
        pid = keepers(home).get(box_id)
        if not pid:
            return None
        try:
            return cls(home, box_id, pid, volume)
        except OSError:
            if keepers(home).get(box_id) == pid:
                raise
            return None

    @property
    def alive(self) -> bool:
        """Whether its keeper, and so anything in it, still runs."""
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
        except OSError:
            return False
        return True

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended, or does so in that time: a box that was killed takes a moment to go."""
        if self._pidfd < 0:
            return True
        return readiness.readable(self._pidfd, seconds)

    @contextlib.contextmanager
    def end_named(self, doing: str) -> Iterator[None]:
        """A step that fails in an unforeseen way because the box has ended meanwhile says so."""
        try:
            yield
        except WaypointError:
            raise
        except Exception as error:
            if not self.ends_within(_DYING_SECONDS):
                raise
            raise MachineError(
                f"cannot {doing}: its box has ended in the middle of it",
                hint="try again; the kernel ends boxes when memory is short, and `dmesg` tells",
            ) from error

    def hello(self) -> Hello:
        return self.keeper.hello()

    def freeze(self, seconds: float) -> bool:
        """Stops the whole tree, until `thaw`: also when the daemon or a CRIU ends. False, and nothing is
        stopped, when it does not stand still in that time, or cannot be frozen here."""
        if self.group is None:
            return False
        try:
            self.keeper.stay_frozen()
            deadline = time.monotonic() + seconds
            while not (frozen := cgroups.is_frozen(self.group)) and time.monotonic() < deadline:
                time.sleep(_FREEZE_POLL_SECONDS)
        except OSError as error:  # a keeper of an earlier version
            log.warning("the tree of box %s cannot be frozen: %s", self.id, error)
            return False
        if not frozen:
            self.thaw()
        return frozen

    def thaw(self) -> None:
        """Lets the tree run, if it stands still."""
        if self.group is not None:
            with contextlib.suppress(OSError):  # the box has ended
                self.keeper.thaw()

    def has_bash(self) -> bool:
        """Whether a shell can be started in it. Only a session that builds a base may have none."""
        try:
            root = os.open(f"/proc/{self.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.close(openat2(root, "bin/bash", os.O_PATH | os.O_CLOEXEC, resolve=RESOLVE_IN_ROOT))
        except OSError:
            return False
        finally:
            os.close(root)
        return True

    def host_ids(self, uid: int, gid: int) -> tuple[int, int]:
        """What the host calls a user and a group of the box."""
        return (userns.to_host(uid), userns.to_host(gid)) if self.userns else (uid, gid)

    def host_pid(self, pid: int) -> int | None:
        """The host's number of a process of the box."""
        return self.host_pids().get(pid)

    def host_pids(self) -> dict[int, int]:
        """The host's numbers of all processes of the box, by their numbers inside."""
        namespace = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        pids = {}
        for entry in _process_entries():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}/ns/pid").st_ino == namespace:
                    pids[_innermost_pid(entry)] = int(entry)
        return pids

    def mounts_made_inside(self) -> list[Mount]:
        """What was mounted after the box was built: by a process in it, or by another one on the host. (A box
        that an earlier version has built is not known to have any.)"""
        made = self._mounts_not_built()
        if made:
            # It may be the mask of a home that is being registered: that is done and noted under this lock.
            with homes.reading():
                made = self._mounts_not_built()
        return made

    def _mounts_not_built(self) -> list[Mount]:
        # Paths may have changed: a folder above a mount, or the folder that it shows, was renamed.
        built = {(mount.mount_id, mount.device) for mount in self._mounts_built()}
        return [
            mount
            for mount in mounts(self.pid)
            if built and (mount.mount_id, mount.device) not in built and not is_mask(mount)
        ]

    def _mounts_built(self) -> list[Mount]:
        try:
            return parse_mountinfo(os.fsdecode(self._mounts_file.read_bytes()))
        except FileNotFoundError:
            return []

    def mounts_changed_inside(self) -> list[Mount]:
        """What was unmounted, or mounted with other options, since the box was built: a box that is built
        anew has it as it was."""
        now = {(mount.mount_id, mount.device): mount.options for mount in mounts(self.pid)}
        return [
            mount
            for mount in self._mounts_built()
            if now.get((mount.mount_id, mount.device)) != mount.options
        ]

    def open_namespace(self, kind: str) -> int:
        """A descriptor of one of the keeper's namespaces."""
        return os.open(f"/proc/{self.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)

    def signal_end(self) -> None:
        """Sends SIGKILL to the keeper: nothing in the box runs after that. `kill` also waits until it is
        gone."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def kill(self, home: Home) -> None:
        """Ends everything in the box and waits until it is gone. The death of pid 1 ends all other
        processes."""
        if self._pidfd >= 0:
            self.signal_end()
            _wait_for_end(self._pidfd)
            self.close()
        _wait_for_page_server(self.pages_socket)
        socket_path(home, self.id).unlink(missing_ok=True)

    def close(self) -> None:
        self.keeper.close()
        # From here on another box may have this descriptor's number.
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)


def _build_error(report: str) -> MachineError | BaseChanged:
    """What a keeper reported when it could not carry out its plan, as an error with a useful hint."""
    _, number, operation, path = report.split(" ", 3)
    code, path = int(number), path.strip()
    if operation in ("userns", "idmap", "in-idmap"):
        return MissingFeature(
            f"a box in a user namespace cannot be had here: {operation} {path}: {os.strerror(code)}",
            hint=Hint("start it without one, or over another base; ", Do("doctor"), " tells more"),
        )
    if code in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(
            f"no space left for the box: {operation} {path}",
            hint=Hint("free some with ", Do("rm", "sessions"), ", or enlarge the pool"),
        )
    if operation in ("mount", "in-mount") and code in (errno.ENODEV, errno.EINVAL):
        return MissingFeature(
            f"cannot mount {path}: {os.strerror(code)}",
            hint=Hint(Do("doctor"), " lists what this kernel lacks"),
        )
    if operation in ("mount", "in-mount") and code == errno.ESTALE:
        return BaseChanged(
            f"{path if operation == 'in-mount' else 'the base'} is not what the session was made with: it is"
            " another file system, or another folder",
            hint="nothing has changed; the point can be restored when it is there again",
        )
    return MachineError(
        f"cannot build the box: {operation} {path}: {os.strerror(code)}",
        hint=Hint(Do("doctor"), " may find the cause"),
    )


def _wait_for_end(pidfd: int) -> None:
    """A pidfd is readable when its process has ended; pid 1 ends after all others of its namespace."""
    if not readiness.readable(pidfd, _END_SECONDS):
        raise MachineError(
            "a box does not end: one of its processes hangs in the kernel", hint="see `ps` for state D"
        )


def _wait_for_page_server(path: Path) -> None:
    """It ends when the box has ended. Until then it keeps the pool from being closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_END_SECONDS)
        try:
            connection.connect(str(path))
        except OSError:
            return  # there is none, or no more
        if not readiness.readable(connection.fileno(), _END_SECONDS):
            log.warning("the page server at %s does not end", path)


def allow_many_files() -> None:
    """Raises the limit of open files of this process, which holds about ten descriptors of each box. Boxes
    keep the old limit: some programs loop over all descriptors they may have, or fail with large ones."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    Box.file_limits = (soft, hard)


def _read_report(reader: int, seconds: float) -> tuple[int, str, bool]:
    """What a keeper reports: its pid, what became of the box, and whether the report came to its end in time.
    It comes from two processes, in any order, and ends when both have closed it."""
    deadline, text = time.monotonic() + seconds, b""
    while chunk := _read_until(reader, deadline):
        text += chunk
    pid, outcome = 0, ""
    for line in text.decode(errors="replace").splitlines():
        if line.startswith("pid "):
            pid = int(line[4:])
        else:
            outcome = line.strip()
    return pid, outcome, chunk is not None


def _read_until(reader: int, deadline: float) -> bytes | None:
    """What can be read; empty at the end, None when nothing came before the deadline."""
    return os.read(reader, 4096) if readiness.readable(reader, deadline - time.monotonic()) else None


def socket_path(home: Home, box_id: str) -> Path:
    """Where a box's keeper listens."""
    return home.run / f"{box_id}.sock"


def _mounts_path(run: Path, box_id: str) -> Path:
    """The mount table of a box when it was built, and what was masked in it since."""
    return run / f"{box_id}.mounts"


def drop_inside(home: Home, box_id: str) -> None:
    """Removes the folder through which a box that has ended reached the daemon, its mount table, and what its
    page server has left."""
    shutil.rmtree(inside_path(home, box_id), ignore_errors=True)
    names = (_mounts_path(home.run, box_id).name, f"{box_id}.pages", f"{box_id}.pages.failed")
    for path in (*(home.run / name for name in names), *home.run.glob(f".{box_id}.mounts.*")):
        path.unlink(missing_ok=True)


# ---- keepers that run -----------------------------------------------------------------------------


def keepers(home: Home) -> dict[str, int]:
    """The boxes of this home that run now, by the names of their keepers: box id → host pid."""
    return {box_id: pid for tag, box_id, pid in _all_keepers() if tag == home.tag}


def _all_keepers() -> Iterator[tuple[str, str, int]]:
    """The boxes of every home that run now: the tag of the home, the id of the box, the keeper's host pid."""
    for entry in _process_entries():
        with contextlib.suppress(OSError):
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")[0].decode(errors="replace").split(" ")
            # Any process in a box may use the name of a keeper, but only one is pid 1.
            is_first = len(words) == 3 and words[0] == "waypoint-keeper" and _innermost_pid(entry) == _FIRST
            if is_first and (keeper := _keeper_of(int(entry))) is not None:
                yield words[1], words[2], keeper


def _first_of(keeper: int) -> int:
    """Pid 1 of a box, by its keeper. OSError when that is gone."""
    status = processes.read_status(keeper)
    return keeper if int(status["NSpid"].split()[-1]) == _FIRST else int(status["PPid"])


def _keeper_of(first: int) -> int | None:
    """The keeper of a box by its pid 1: the same process, or the one child of it that is not in the box's
    user namespace."""
    if userns.is_own(first):
        return first
    return next((child for child in processes.children(first) if userns.is_own(child)), None)


def hide_home(known: KnownHome) -> None:
    """Masks a home that is new on this machine in the boxes of all other homes. A box that a version without
    masks has built cannot do it, and goes on seeing the folder."""
    own = Home(known.path)

    def hide(run: Path, box_id: str, pid: int) -> None:
        try:
            keeper = Keeper(run / f"{box_id}.sock", answer_seconds=_MASK_SECONDS)
            try:
                before = {mount.mount_id for mount in mounts(pid)}
                mask_home(pid, keeper, known)
                _note_masks(_mounts_path(run, box_id), pid, before)
            finally:
                keeper.close()
        except OSError as error:
            log.warning("box %s of another home sees this one: %s", box_id, error)

    with ThreadPoolExecutor(_MASKED_AT_ONCE) as workers:
        tasks = [
            workers.submit(hide, own.run.parent / tag, box_id, pid)
            for tag, box_id, pid in _all_keepers()
            if tag != own.tag
        ]
    for task in tasks:
        task.result()


def _note_masks(file: Path, pid: int, before: Collection[int]) -> None:
    """Adds the masks to the mount table of a box, or they would count as mounts that its session has made."""
    with contextlib.suppress(FileNotFoundError):
        table = file.read_bytes()
        for line in Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines(keepends=True):
            (mount,) = parse_mountinfo(os.fsdecode(line))
            if mount.mount_id not in before and mount.fstype == "tmpfs":
                table += line
        atomic.write(file, table, mode=0o600)


def _process_entries() -> list[str]:
    return [entry for entry in os.listdir("/proc") if entry.isdigit()]


def _innermost_pid(entry: str) -> int:
    """The number of a process in its own pid namespace."""
    return int(processes.read_status(int(entry)).get("NSpid", "0").split()[-1])


def end_keeper(home: Home, box_id: str, pid: int) -> None:
    """Ends a box that no daemon serves, if it has not ended by itself."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        pidfd = os.pidfd_open(_first_of(pid))
        try:
            if keepers(home).get(box_id) == pid:  # else another process has got the number meanwhile
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                _wait_for_end(pidfd)
        finally:
            os.close(pidfd)
    socket_path(home, box_id).unlink(missing_ok=True)
