"""Which pages of a session's memory were written since its last checkpoint.

A dump that has to copy a gigabyte stops the session for half a second. Most of that memory has not changed
since the checkpoint before. Where the kernel can report what has, CRIU copies only that while the processes
stand still. Afterwards, when the session runs again, the images are completed by cloning the rest from the
checkpoint before (native/flatten.c): every checkpoint stays complete in itself, and neighbours share their
blocks on disk.

The kernel reports by write protection. Memory registered with a userfaultfd in asynchronous mode is
protected at a dump while the tree stands still. A write lifts the protection of its page, and PAGEMAP_SCAN
lists the pages without protection. Each large process creates such a userfaultfd (native/track.c makes it do
so), which is then held only here. CRIU does not know of it and is shown soft-dirty bits (native/shim.c).

Why this is safe: protection is only ever set by a dump, page by page, in memory that stays where it is.
Memory that is new, moved, inherited by fork, or of a program just executed or restored has no protection and
counts as written. One condition is left: a dump must be compared with the very dump that set the protection.
That dump is the `baseline`. It is removed before each attempt and set again when a new checkpoint exists;
without it everything is dumped. The descriptors die with the daemon, and the kernel then lifts all
protection.
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
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from waypoint.box.box import Box
from waypoint.engine.images import write_memory
from waypoint.engine.lazy import PageServer
from waypoint.engine.sqlite import FileRecords
from waypoint.errors import CannotCheckpoint
from waypoint.kernel import processes
from waypoint.kernel.syscalls import ioctl_number

log = logging.getLogger("waypoint")

_LARGE_BYTES = 16 << 20
"""A process with this much memory of its own is tracked. Below, copying costs less than tracking."""
_PRECOPY_BYTES = 64 << 20
"""What takes longer to copy than a session should stand still."""
_PAGE_BYTES = 4096
_AREA_BYTES = 64 << 10
"""Smaller areas are always copied."""
_HELPER_SECONDS = 10.0
_SLOWEST_BYTES_PER_SECOND = 16 << 20
"""A helper that copies memory may take so long in addition."""
_REGISTER = ioctl_number(3, 0xAA, 0x00, 32)  # UFFDIO_REGISTER, struct uffdio_register
_MODE_WP = 2
_WRITEPROTECT = ioctl_number(3, 0xAA, 0x06, 24)  # UFFDIO_WRITEPROTECT, struct uffdio_writeprotect
_SCAN = ioctl_number(3, ord("f"), 16, 96)  # PAGEMAP_SCAN, struct pm_scan_arg
_IS_WPALLOWED, _IS_WRITTEN, _IS_PRESENT, _IS_SWAPPED, _IS_PFNZERO = 1, 2, 8, 16, 32
_END_OF_MEMORY = 0x7FFF_FFFF_F000
_REGIONS = 4096
_TRACKING_ERRORS = ("parent", "PAGEMAP_SCAN", "dirty memory", "racking memory", "id-reuse")
"""CRIU's words when it cannot use what it was shown of dirty memory."""


class _Task(NamedTuple):
    """A process. The start time tells it from a later one with the same number."""

    host_pid: int
    start_ticks: int


class IncompleteImages(CannotCheckpoint):
    """Raised when images could not be completed from those they were compared with."""


@functools.cache
def supported(engine: Path) -> bool:
    """Whether this kernel notices writes by every way in which memory changes. Tried out: some versions have
    the calls and forget what was written to memory that has moved."""
    done = subprocess.run(
        [engine / "bin" / "track"], capture_output=True, text=True, check=False, timeout=_HELPER_SECONDS
    )
    if done.stdout != "ok\n":
        log.info("this kernel cannot report which memory was written: %s", done.stdout.strip())
    return done.stdout == "ok\n"


def _copying_seconds(size_bytes: int) -> float:
    """How long a helper may take to copy so much."""
    return _HELPER_SECONDS + size_bytes / _SLOWEST_BYTES_PER_SECOND


def _areas(host_pid: int) -> Iterator[tuple[int, int]]:
    """Its private memory that is in no file, the main thread's stack aside."""
    with open(f"/proc/{host_pid}/maps", "rb") as lines:
        for line in map(os.fsdecode, lines):  # paths need not be text
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


def _read_start_ticks(host_pid: int) -> int:
    with open(f"/proc/{host_pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def _scan(
    pagemap: int,
    start: int,
    end: int,
    *,
    include: int,
    exclude: int,
    protect: bool = False,
    max_pages: int = 0,
) -> int:
    """How much memory of its own a process has in a range, with all properties of `include` and none of
    `exclude`. `protect`: writes to those pages are noticed from now on."""
    regions = array.array("Q", bytes(_REGIONS * 24))
    size_bytes = 0
    while start < end:
        request = bytearray(
            struct.pack(
                "=12Q",
                96,  # size
                protect,  # flags
                start,
                end,
                0,  # walk_end, set by the kernel
                regions.buffer_info()[0],  # vec
                _REGIONS,  # vec_len
                max_pages,
                exclude,  # category_inverted
                include | exclude,  # category_mask
                _IS_PRESENT | _IS_SWAPPED,  # category_anyof_mask
                _IS_PRESENT,  # return_mask
            )
        )
        count = 3 * fcntl.ioctl(pagemap, _SCAN, request)
        size_bytes += sum(regions[1:count:3]) - sum(regions[0:count:3])
        walk_end: int = struct.unpack_from("=Q", request, 32)[0]
        if walk_end <= start or (max_pages and size_bytes):
            break
        start = walk_end
    return size_bytes


def _unchanged_bytes(host_pid: int) -> int:
    """How much of its memory a dump need not copy."""
    with open(f"/proc/{host_pid}/pagemap", "rb") as pagemap:
        exclude = _IS_WRITTEN | _IS_PFNZERO
        return _scan(pagemap.fileno(), 0, _END_OF_MEMORY, include=_IS_WPALLOWED, exclude=exclude)


def _protect(host_pid: int) -> None:
    """From now on writes to its tracked memory are noticed."""
    with open(f"/proc/{host_pid}/pagemap", "rb") as pagemap:
        include = _IS_WPALLOWED | _IS_WRITTEN
        _scan(pagemap.fileno(), 0, _END_OF_MEMORY, include=include, exclude=_IS_PFNZERO, protect=True)


class Memory:
    """The memory of one session's processes, across its checkpoints. For one thread at a time."""

    def __init__(self, engine: Path, box: Box | None = None) -> None:
        self._engine, self._box = engine, box
        self._pages = PageServer.find(box) if box else None
        """What gives the processes their memory, while some is missing."""
        self.file_records = FileRecords(engine)
        self._tracked: dict[_Task, int] = {}
        """The userfaultfd of each process whose writes are noticed."""
        self._refused: set[_Task] = set()
        self._baseline: Path | None = None
        self._disabled = False

    @property
    def tracking(self) -> bool:
        """Whether a dump is to protect what it has saved."""
        return bool(self._tracked)

    def prepare(self, host_pids: Iterable[int]) -> int:
        """Has the writes of large processes noticed from the next dump on, while they run. Returns about how
        much that dump will have to copy. Nothing is missing any more after that."""
        self.complete()
        large: list[_Task] = []
        total = 0
        for host_pid in host_pids:
            own, shared = processes.memory_bytes(host_pid)
            total += own + shared
            with contextlib.suppress(OSError):
                if own >= _LARGE_BYTES and not self._disabled:
                    large.append(_Task(host_pid, _read_start_ticks(host_pid)))
        if large and not supported(self._engine):
            large = []
        self._track(large)
        if self._baseline:
            unchanged = 0
            for task in self._tracked:
                with contextlib.suppress(OSError):
                    unchanged += _unchanged_bytes(task.host_pid)
            if unchanged < total // 2:
                self._baseline = None  # completing the images would take longer than copying everything
            else:
                total -= unchanged
        return max(total, 0)

    def watch(self) -> socket.socket | None:
        """A connection that can be read when no memory is missing any more: `complete` is quick then. None
        when none is."""
        return self._pages.watch() if self._pages else None

    def complete(self) -> None:
        """Has all memory copied that is missing, and continues the tracking of the page server."""
        if self._pages and not self._pages.ended:
            try:
                self._take_over(self._pages)
            except CannotCheckpoint:
                if not self._pages.ended:  # else it had nothing to do any more, just then
                    raise
        self._pages = None

    def failure(self) -> str | None:
        """Why the page server has ended the box, if it has."""
        return PageServer(self._box).failure if self._box else None

    def _take_over(self, pages: PageServer) -> None:
        source, tracked = pages.fill()
        if self._disabled or pages.stands_still:  # a process that stands still cannot open anything
            tracked = []
        members = set(processes.host_pids(self._box.pid)) if self._box else set()
        tasks = []
        for host_pid in members.intersection(tracked):  # one may have ended, and its number be used again
            with contextlib.suppress(OSError):
                tasks.append(_Task(host_pid, _read_start_ticks(host_pid)))
        fds = self._open(tasks)
        given: list[int] = []
        try:
            given = pages.take_over({task.host_pid: fd for task, fd in fds.items()})
        finally:
            for task, fd in fds.items():
                if task.host_pid in given:
                    self._tracked[task] = fd
                else:
                    os.close(fd)
        self.set_baseline(source)

    def should_precopy(self, size_bytes: int) -> bool:
        return bool(self._tracked) and self._baseline is None and size_bytes >= _PRECOPY_BYTES

    def precopy(self, folder: Path) -> int:
        """Copies tracked memory into `folder` while the processes run, so that the next dump has to copy only
        what they write meanwhile. Returns how many bytes. The folder must stay until that dump is done."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        try:
            for task in self._tracked:
                if process := processes.read(task.host_pid):
                    ranges[process.pid] = self._precopy_process(process, folder)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            log.info("memory could not be copied ahead: %s", error)
            return 0
        write_memory(folder, ranges)
        self._baseline = folder
        return sum(count for pairs in ranges.values() for _, count in pairs) * _PAGE_BYTES

    def _precopy_process(self, process: processes.Process, folder: Path) -> list[tuple[int, int]]:
        with open(folder / f"pages-{process.pid}.img", "x+b") as pages:
            words = [str(self._engine / "bin" / "precopy"), str(process.host_pid), str(pages.fileno())]
            done = subprocess.run(
                words,
                pass_fds=[pages.fileno()],
                capture_output=True,
                text=True,
                check=False,
                timeout=_copying_seconds(sum(processes.memory_bytes(process.host_pid))),
            )
        *lines, verdict = done.stdout.splitlines() or [""]
        if verdict != "ok":
            raise OSError(f"process {process.pid}: {verdict or done.returncode}")
        return [(int(address, 16), int(count)) for address, count in map(str.split, lines)]

    def track_from(self, host_pids: Iterable[int], images: Path) -> None:
        """For processes that were just restored from `images` and have not run yet: their first dump can be
        compared with those."""
        pages = PageServer.find(self._box) if self._box else None
        if pages and pages.tracks:
            self._pages = pages
            return
        self.prepare(host_pids)
        self._pages = pages
        self._refused.clear()  # for some it may have been too early
        try:
            for task in self._tracked:
                _protect(task.host_pid)
        except OSError as error:
            log.info("the first dump will be a full one: %s", error)
        else:
            self.set_baseline(images)

    def _track(self, large: Sequence[_Task]) -> None:
        for task in self._tracked.keys() - {*large}:
            self._drop(task)
        self._refused &= {*large}
        for task in list(self._tracked):
            if not self._register(task):
                self._drop(task)
        fresh = [task for task in large if task not in self._tracked and task not in self._refused]
        for task, fd in self._open(fresh).items():
            self._tracked[task] = fd
            if not self._register(task):
                self._drop(task)
        self._refused.update(task for task in fresh if task not in self._tracked)

    def _drop(self, task: _Task) -> None:
        os.close(self._tracked.pop(task))

    def _register(self, task: _Task) -> bool:
        """Tracks all memory of a process that can be; False when it has other memory by now (exec)."""
        fd = self._tracked[task]
        try:
            with open(f"/proc/{task.host_pid}/pagemap", "rb") as pagemap:
                for start, end in _areas(task.host_pid):
                    exclude = _IS_WPALLOWED | _IS_PFNZERO
                    if _scan(pagemap.fileno(), start, end, include=0, exclude=exclude, max_pages=1):
                        self._register_area(fd, start, end)
        except ProcessLookupError:
            return False
        except OSError as error:
            log.debug("memory of %d: %s", task.host_pid, error)
            return os.path.exists(f"/proc/{task.host_pid}")
        return True

    @staticmethod
    def _register_area(fd: int, start: int, end: int) -> None:
        try:
            fcntl.ioctl(fd, _REGISTER, struct.pack("=QQQQ", start, end - start, _MODE_WP, 0))
        except ProcessLookupError:
            raise
        except OSError as error:  # gone meanwhile, or of another kind: not tracked, so copied
            log.debug("memory %x-%x is not tracked: %s", start, end, error)
            return
        # It may have been tracked before. Protection left from then has no meaning now.
        fcntl.ioctl(fd, _WRITEPROTECT, struct.pack("=QQQ", start, end - start, 0))

    def _open(self, tasks: Sequence[_Task]) -> dict[_Task, int]:
        """A userfaultfd of each process that provides one."""
        result: dict[_Task, int] = {}
        if not tasks:
            return result
        by_pid = {task.host_pid: task for task in tasks}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_HELPER_SECONDS)
        with ours:
            with theirs:
                helper = subprocess.Popen(
                    [self._engine / "bin" / "track", str(theirs.fileno()), *map(str, by_pid)],
                    pass_fds=[theirs.fileno()],
                )
            try:
                while True:
                    try:
                        packet, fds, _, _ = socket.recv_fds(ours, 512, 1)
                    except TimeoutError:
                        log.warning("some memory is not tracked: the helper does not answer")
                        break
                    if not packet:
                        break
                    pid, _, message = packet.decode().partition(" ")
                    if fds:
                        result[by_pid[int(pid)]] = fds[0]
                    else:  # a descriptor that found no place here is missing too
                        log.info("writes of process %s are not noticed: %s", pid, message)
            finally:
                try:
                    helper.wait(_HELPER_SECONDS)
                except subprocess.TimeoutExpired:
                    # It is not killed: it may be holding a process of the session, which would end with it.
                    threading.Thread(target=helper.wait, name="track", daemon=True).start()
        return result

    def take_baseline(self) -> Path | None:
        """The images that the protection refers to, if they still exist. Afterwards there is no baseline."""
        baseline, self._baseline = self._baseline, None
        return baseline if baseline and self._tracked and baseline.is_dir() else None

    def set_baseline(self, images: Path) -> None:
        """The last dump has become a checkpoint: the protection refers to its images."""
        self._baseline = images if self._tracked else None

    def complete_images(self, images: Path, parent: Path, target: Path) -> None:
        """Writes complete images of memory into `target`, from the pages in `images` and in `parent`."""
        (images / "parent").unlink(missing_ok=True)
        with contextlib.ExitStack() as opened:
            # By descriptor: a folder in memory has no name that others could use.
            folders = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in (images, parent, target)]
            for folder in folders:
                opened.callback(os.close, folder)
            size_bytes = sum(entry.stat().st_size for entry in (*images.iterdir(), *parent.iterdir()))
            try:
                done = subprocess.run(
                    [self._engine / "bin" / "flatten", *map(str, folders)],
                    pass_fds=folders,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=_copying_seconds(size_bytes),
                )
            except subprocess.TimeoutExpired as error:
                raise IncompleteImages(f"the images could not be completed: {error}") from error
        if done.stdout != "ok\n":
            raise IncompleteImages(
                f"the images could not be completed: {(done.stdout or done.stderr).strip()}"
            )

    def could_cause(self, error: CannotCheckpoint) -> bool:
        """Whether a dump may have failed because memory is tracked."""
        lines = error.details.get("log", ())
        return isinstance(error, IncompleteImages) or any(
            words in line for line in lines for words in _TRACKING_ERRORS
        )

    def disable(self) -> None:
        """From now on everything is dumped."""
        self.close()
        self._disabled = True

    def close(self) -> None:
        for task in list(self._tracked):
            self._drop(task)
        self._baseline = None
