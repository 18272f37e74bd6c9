"""What of a session's memory was written since its last checkpoint.

A dump that has to copy a gigabyte stops the session for half a second. Most of it has not changed since the
point before. Where the kernel can tell what has, CRIU copies only that while the processes stand still, and
the images are made whole again afterwards, when the session runs already, by cloning the rest from the
point before (native/flatten.c): every point stays whole in itself, and neighbours share their blocks on
disk.

The kernel tells by write protection: memory registered with a userfaultfd in asynchronous mode is protected
at a dump while all stands still, a write lifts the protection of its page by itself, and PAGEMAP_SCAN lists
the pages without it. Each large process makes such a userfaultfd (native/track.c has it do so), and it is
held here and nowhere else. CRIU knows nothing of it and is shown soft-dirty bits instead (native/shim.c).

What makes it safe: protection is only ever set by a dump, page by page, in memory that stays where it is.
Memory that is new, moved, inherited by fork, of a program that was just executed or restored, has none, and
counts as written. So there is one thing to watch: that a dump compares with the very dump that has set the
protection. That one is the `baseline`. It is taken away before each attempt and set again when a new point
exists; without it everything is dumped. The descriptors die with the daemon, and the kernel lifts all
protection with them.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import functools
import logging
import os
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from waypoint.engine import criu
from waypoint.errors import CannotCheckpoint
from waypoint.kernel import processes
from waypoint.kernel.syscalls import ioctl_number

log = logging.getLogger("waypoint")

_LARGE_BYTES = 16 << 20
"""From how much memory of its own on a process is watched. Below, copying costs less than watching."""
_MUCH_BYTES = 64 << 20
"""What takes longer to copy than a session should stand still."""
_PAGE_BYTES = 4096
_AREA_BYTES = 64 << 10
"""Smaller areas are always copied."""
_REGISTER = ioctl_number(3, 0xAA, 0x00, 32)  # UFFDIO_REGISTER, struct uffdio_register
_MODE_WP = 2
_WRITEPROTECT = ioctl_number(3, 0xAA, 0x06, 24)  # UFFDIO_WRITEPROTECT, struct uffdio_writeprotect
_HELPER_SECONDS = 10.0
_SCAN = ioctl_number(3, ord("f"), 16, 96)  # PAGEMAP_SCAN, struct pm_scan_arg
_IS_WPALLOWED, _IS_WRITTEN, _IS_PRESENT, _IS_SWAPPED, _IS_PFNZERO = 1, 2, 8, 16, 32
_END_OF_MEMORY = 0x7FFF_FFFF_F000
_REGIONS = 4096
_OWN_WORDS = ("parent", "PAGEMAP_SCAN", "dirty memory", "racking memory", "id-reuse")
"""What CRIU says when it is unhappy with what it was shown of dirty memory."""


_Who = tuple[int, int]
"""A process: the host's number for it and when it was started, in ticks."""


class NotWhole(CannotCheckpoint):
    """Raised when images could not be made whole from those they were compared with."""


@functools.cache
def supported(engine: Path) -> bool:
    """Whether this kernel notices writes by every way in which memory changes. Tried, not looked up: some
    versions have the calls and forget what was written to memory that has moved."""
    done = subprocess.run(
        [engine / "bin" / "track"], capture_output=True, text=True, check=False, timeout=_HELPER_SECONDS
    )
    if done.stdout != "ok\n":
        log.info("written memory cannot be told from other memory here: %s", done.stdout.strip())
    return done.stdout == "ok\n"


def _areas(host_pid: int) -> Iterator[tuple[int, int]]:
    """Its private memory that is in no file, the main thread's stack aside."""
    with open(f"/proc/{host_pid}/maps") as lines:
        for line in lines:
            # 7f0000000000-7f0000100000 rw-p 00000000 00:00 0   [heap]
            words = line.split(maxsplit=5)
            if words[1][3] != "p" or words[1][:2] == "--" or words[4] != "0":
                continue
            name = words[5].strip() if len(words) > 5 else ""
            if name and name != "[heap]" and not name.startswith("[anon"):
                continue
            start, end = (int(number, 16) for number in words[0].split("-"))
            if end - start >= _AREA_BYTES:
                yield start, end


def _started(host_pid: int) -> int:
    with open(f"/proc/{host_pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def _scan(
    pagemap: int,
    start: int,
    end: int,
    wanted: int,
    unwanted: int,
    *,
    protect: bool = False,
    most_pages: int = 0,
) -> int:
    """How much memory of its own a process has there with all of the one and none of the other properties."""
    regions = array.array("Q", bytes(_REGIONS * 24))
    found = 0
    while start < end:
        # struct pm_scan_arg: size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted,
        # category_mask, category_anyof_mask, return_mask
        request = bytearray(
            struct.pack(
                *("=12Q", 96, protect, start, end, 0, regions.buffer_info()[0], _REGIONS, most_pages),
                *(unwanted, wanted | unwanted, _IS_PRESENT | _IS_SWAPPED, _IS_PRESENT),
            )
        )
        count = 3 * fcntl.ioctl(pagemap, _SCAN, request)
        found += sum(regions[1:count:3]) - sum(regions[0:count:3])
        reached: int = struct.unpack_from("=Q", request, 32)[0]
        if reached <= start or (most_pages and found):
            break
        start = reached
    return found


def _unchanged_bytes(host_pid: int) -> int:
    """How much of its memory a dump need not copy."""
    with open(f"/proc/{host_pid}/pagemap", "rb") as pagemap:
        return _scan(pagemap.fileno(), 0, _END_OF_MEMORY, _IS_WPALLOWED, _IS_WRITTEN | _IS_PFNZERO)


def _protect(host_pid: int) -> None:
    """From now on it is known what is written to its watched memory."""
    with open(f"/proc/{host_pid}/pagemap", "rb") as pagemap:
        _scan(pagemap.fileno(), 0, _END_OF_MEMORY, _IS_WPALLOWED | _IS_WRITTEN, _IS_PFNZERO, protect=True)


class Memory:
    """The memory of one session's processes, across its checkpoints. For one thread at a time."""

    def __init__(self, engine: Path) -> None:
        self._engine = engine
        self._watched: dict[_Who, int] = {}
        """The userfaultfd of each process whose writes are noticed."""
        self._refused: set[_Who] = set()
        self._baseline: Path | None = None
        self._gave_up = False

    @property
    def watching(self) -> bool:
        """Whether a dump is to protect what it has saved."""
        return bool(self._watched)

    def prepare(self, host_pids: Iterable[int]) -> int:
        """Sees to it that writes of the large processes are noticed from the next dump on, while they run.
        Returns about how much that dump will have to copy."""
        large: list[_Who] = []
        total = 0
        for host_pid in host_pids:
            own, shared = processes.memory_bytes(host_pid)
            total += own + shared
            with contextlib.suppress(OSError):
                if own >= _LARGE_BYTES and not self._gave_up:
                    large.append((host_pid, _started(host_pid)))
        if large and not supported(self._engine):
            large = []
        self._watch(large)
        if self._baseline:
            unchanged = 0
            for who in self._watched:
                with contextlib.suppress(OSError):
                    unchanged += _unchanged_bytes(who[0])
            if unchanged < total // 2:
                self._baseline = None  # putting it together would take longer than copying everything
            else:
                total -= unchanged
        return max(total, 0)

    def is_worth_copying_ahead(self, size_bytes: int) -> bool:
        return bool(self._watched) and self._baseline is None and size_bytes >= _MUCH_BYTES

    def copy_ahead(self, folder: Path) -> int:
        """Copies what is watched into `folder` while the processes run, so that the next dump has to copy
        only what they write meanwhile; how much that was. The folder has to stay until that dump is done."""
        copied: dict[int, list[tuple[int, int]]] = {}
        try:
            for host_pid, _ in self._watched:
                process = processes.read(host_pid)
                if process:
                    copied[process.pid] = self._copy_one(process, folder)
        except (OSError, ValueError) as error:
            log.info("memory could not be copied ahead: %s", error)
            return 0
        criu.write_memory(folder, copied)
        self._baseline = folder
        return sum(count for stretches in copied.values() for _, count in stretches) * _PAGE_BYTES

    def _copy_one(self, process: processes.Process, folder: Path) -> list[tuple[int, int]]:
        with open(folder / f"pages-{process.pid}.img", "x+b") as pages:
            words = [str(self._engine / "bin" / "precopy"), str(process.host_pid), str(pages.fileno())]
            done = subprocess.run(
                words, pass_fds=[pages.fileno()], capture_output=True, text=True, check=False
            )
        *stretches, said = done.stdout.splitlines() or [""]
        if said != "ok":
            raise OSError(f"process {process.pid}: {said or done.returncode}")
        return [(int(at, 16), int(count)) for at, count in map(str.split, stretches)]

    def begin_with(self, host_pids: Iterable[int], images: Path) -> None:
        """The processes were just restored from `images` and have not run yet: their first dump can be
        compared with those."""
        self.prepare(host_pids)
        self._refused.clear()  # perhaps it was too early for some
        try:
            for host_pid, _ in self._watched:
                _protect(host_pid)
        except OSError as error:
            log.info("the first dump will be a full one: %s", error)
        else:
            self.settle(images)

    def _watch(self, large: Sequence[_Who]) -> None:
        for gone in self._watched.keys() - {*large}:
            self._drop(gone)
        self._refused &= {*large}
        for who in list(self._watched):
            if not self._register(who):
                self._drop(who)
        fresh = [who for who in large if who not in self._watched and who not in self._refused]
        for who, fd in self._open(fresh).items():
            self._watched[who] = fd
            if not self._register(who):
                self._drop(who)
        self._refused.update(who for who in fresh if who not in self._watched)

    def _drop(self, who: _Who) -> None:
        os.close(self._watched.pop(who))

    def _register(self, who: _Who) -> bool:
        """Has all of a process's memory watched that can be; False when it has other memory by now (exec)."""
        fd = self._watched[who]
        try:
            with open(f"/proc/{who[0]}/pagemap", "rb") as pagemap:
                for start, end in _areas(who[0]):
                    if _scan(pagemap.fileno(), start, end, 0, _IS_WPALLOWED | _IS_PFNZERO, most_pages=1):
                        self._register_area(fd, start, end)
        except ProcessLookupError:
            return False
        except OSError as error:
            log.debug("memory of %d: %s", who[0], error)
            return os.path.exists(f"/proc/{who[0]}")
        return True

    @staticmethod
    def _register_area(fd: int, start: int, end: int) -> None:
        try:
            fcntl.ioctl(fd, _REGISTER, struct.pack("=QQQQ", start, end - start, _MODE_WP, 0))
        except ProcessLookupError:
            raise
        except OSError as error:  # gone meanwhile, or of another kind: not watched, so copied
            log.debug("memory %x-%x is not watched: %s", start, end, error)
            return
        # It may have been watched before, with marks of protection left from then that mean nothing now.
        fcntl.ioctl(fd, _WRITEPROTECT, struct.pack("=QQQ", start, end - start, 0))

    def _open(self, whom: Sequence[_Who]) -> dict[_Who, int]:
        """A userfaultfd of each process that gives one."""
        found: dict[_Who, int] = {}
        if not whom:
            return found
        by_pid = {who[0]: who for who in whom}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                helper = subprocess.Popen(
                    [self._engine / "bin" / "track", str(theirs.fileno()), *map(str, by_pid)],
                    pass_fds=[theirs.fileno()],
                )
            try:
                while packet := socket.recv_fds(ours, 512, 1):
                    if not packet[0]:
                        break
                    pid, _, said = packet[0].decode().partition(" ")
                    if packet[1]:
                        found[by_pid[int(pid)]] = packet[1][0]
                    else:
                        log.info("writes of process %s are not noticed: %s", pid, said)
            finally:
                helper.wait()
        return found

    def take_baseline(self) -> Path | None:
        """The images that the protection refers to, if there are any still. From now on there are none."""
        baseline, self._baseline = self._baseline, None
        return baseline if baseline and self._watched and baseline.is_dir() else None

    def make_whole(self, images: Path, parent: Path, whole: Path) -> None:
        """Puts the images of memory together in `whole`, from what is in `images` and from `parent`."""
        (images / "parent").unlink(missing_ok=True)
        with contextlib.ExitStack() as opened:
            # By descriptor: a folder in memory has no name that others could use.
            folders = [os.open(one, os.O_RDONLY | os.O_DIRECTORY) for one in (images, parent, whole)]
            for folder in folders:
                opened.callback(os.close, folder)
            done = subprocess.run(
                [self._engine / "bin" / "flatten", *map(str, folders)],
                pass_fds=folders,
                capture_output=True,
                text=True,
                check=False,
            )
        if done.stdout != "ok\n":
            raise NotWhole(f"the images could not be made whole: {(done.stdout or done.stderr).strip()}")

    def settle(self, images: Path) -> None:
        """The last dump has become a point: the protection refers to its images."""
        self._baseline = images if self._watched else None

    def may_be_to_blame(self, error: CannotCheckpoint) -> bool:
        """Whether a dump may have failed because memory is watched."""
        said = error.details.get("log", ())
        return isinstance(error, NotWhole) or any(words in line for line in said for words in _OWN_WORDS)

    def give_up(self) -> None:
        """From now on everything is dumped."""
        self.close()
        self._gave_up = True

    def close(self) -> None:
        for who in list(self._watched):
            self._drop(who)
        self._baseline = None
