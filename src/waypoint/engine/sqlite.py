"""The device numbers that SQLite remembers.

SQLite keeps one record for each file that a process has open, and recognizes the file by its device and inode
number. The record joins the connections of a process: POSIX locks belong to the process, and the last
connection removes the write-ahead log. Every box has file systems of its own, and the kernel chooses their
device numbers. After a restore SQLite would take a database that is opened once more for another one, and
closing it would drop locks and remove a log that the first connection still uses: what is committed is lost.

So the records are found while a tree is saved (native/sqlite.c), and changed when it is released in its new
box, before its first instruction. Nothing is written where the memory does not hold what was found.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from waypoint.engine.images import FileRecord
from waypoint.errors import CannotRestore
from waypoint.kernel.processes import Process
from waypoint.kernel.syscalls import pidfd_getfd, pidfd_open, process_vm_readv

log = logging.getLogger("waypoint")

_HEADER = b"SQLite format 3\0"
_BESIDE = ("-wal", "-shm")
_FILE_ID, _HOLDER = struct.Struct("=QQ"), struct.Struct("=Qi")
"""struct unixFileId, and in struct unixFile the address of the record and the descriptor"""
_FIND_SECONDS = 10.0
_SLOWEST_BYTES_PER_SECOND = 64 << 20

Targets = Mapping[int, str]
"""The open descriptors of a process, with what their links in /proc say."""


@dataclass(frozen=True)
class _Database:
    fd: int
    path: str
    device: int
    inode: int
    is_writable: bool


class FileRecords:
    """SQLite's records in the processes of one session, across its checkpoints. A search in the memory of a
    process is repeated when it has other databases open."""

    def __init__(self, engine: Path) -> None:
        self._engine = engine
        self._known: dict[int, list[FileRecord]] = {}
        """By the host's number of the process."""
        self._searched: dict[int, frozenset[_Database]] = {}

    def find(self, tree: Sequence[tuple[Process, Targets]]) -> tuple[tuple[FileRecord, ...], tuple[str, ...]]:
        """The records of a tree that stands still; and a sentence about each process that has a database
        open of which nothing is known."""
        records: list[FileRecord] = []
        notes: list[str] = []
        present: set[int] = set()
        for process, targets in tree:
            databases = list(_open_databases(process.host_pid, targets))
            if databases:
                present.add(process.host_pid)
                found = self._find_in(process, databases)
                records += found
                notes += _describe_unknown(process, databases, found)
        for host_pid in self._searched.keys() - present:
            self._known.pop(host_pid, None)
            del self._searched[host_pid]
        return tuple(records), tuple(notes)

    def _find_in(self, process: Process, databases: Sequence[_Database]) -> list[FileRecord]:
        host_pid, wanted = process.host_pid, frozenset(databases)
        known = self._known.get(host_pid, [])
        if self._searched.get(host_pid) != wanted or not all(_holds(host_pid, record) for record in known):
            try:
                known = [record for group in _by_device(databases) for record in self._search(process, group)]
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                log.warning("what process %d remembers of its databases: %s", process.pid, error)
                known = []
            self._known[host_pid], self._searched[host_pid] = known, wanted
        return known

    def _search(self, process: Process, databases: Sequence[_Database]) -> Iterator[FileRecord]:
        by_fd = {database.fd: database for database in databases}
        words = [f"{database.fd}:{database.inode}" for database in databases]
        device = databases[0].device
        done = subprocess.run(
            [str(self._engine / "bin" / "sqlite"), str(process.host_pid), str(device), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=_FIND_SECONDS + process.rss_bytes / _SLOWEST_BYTES_PER_SECOND,
        )
        *lines, verdict = done.stdout.splitlines() or [""]
        if verdict != "ok":
            raise OSError(verdict or f"the search ended with {done.returncode}")
        for fd, address, holder in map(str.split, lines):
            yield FileRecord(
                pid=process.pid,
                fd=int(fd),
                device=device,
                inode=by_fd[int(fd)].inode,
                address=int(address, 16),
                holder=int(holder, 16),
            )


def _by_device(databases: Sequence[_Database]) -> list[list[_Database]]:
    groups: dict[int, list[_Database]] = {}
    for database in databases:
        groups.setdefault(database.device, []).append(database)
    return list(groups.values())


def _open_databases(host_pid: int, targets: Targets) -> Iterator[_Database]:
    """The databases that a process has open: what begins as one, or has a write-ahead log beside it."""
    files = {
        fd: target
        for fd, target in targets.items()
        if target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/sys/"))
    }
    if not files:
        return
    logged = {target[: -len(end)] for target in files.values() for end in _BESIDE if target.endswith(end)}
    with contextlib.suppress(OSError):
        process = pidfd_open(host_pid)
        try:
            for fd, target in files.items():
                with contextlib.suppress(OSError), os.fdopen(pidfd_getfd(process, fd), "rb", 0) as file:
                    # (A duplicate: to open the file once more would break a lease.)
                    info = os.fstat(file.fileno())
                    if stat.S_ISREG(info.st_mode) and (
                        target in logged or _begins_as_database(file.fileno())
                    ):
                        yield _Database(fd, target, info.st_dev, info.st_ino, _is_writable(host_pid, fd))
        finally:
            os.close(process)


def _begins_as_database(fd: int) -> bool:
    with contextlib.suppress(OSError):  # not open for reading
        return os.pread(fd, len(_HEADER), 0) == _HEADER
    return False


def _is_writable(host_pid: int, fd: int) -> bool:
    with open(f"/proc/{host_pid}/fdinfo/{fd}") as lines:
        flags = next(line for line in lines if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _describe_unknown(
    process: Process, databases: Sequence[_Database], found: Sequence[FileRecord]
) -> Iterator[str]:
    known = {(record.device, record.inode) for record in found}
    unknown = {
        database.path: None
        for database in databases
        if (database.device, database.inode) not in known and database.is_writable
    }
    for path in unknown:
        yield (
            f"process {process.pid} ({process.command}) has the database {path} open, and what SQLite"
            " remembers of it is not found: after a restore it may lose what it has committed if it opens and"
            " closes the database a second time (st_dev)"
        )


# ---- in a tree that is restored ------------------------------------------------------------------


def _holds(host_pid: int, record: FileRecord) -> bool:
    """Whether a process remembers what the record says, where it says."""
    with contextlib.suppress(OSError, struct.error):
        return _is_as_found(host_pid, record)
    return False


def _is_as_found(host_pid: int, record: FileRecord) -> bool:
    file_id = process_vm_readv(host_pid, record.address, _FILE_ID.size)
    holder = process_vm_readv(host_pid, record.holder, _HOLDER.size)
    return file_id == _FILE_ID.pack(record.device, record.inode) and holder == _HOLDER.pack(
        record.address, record.fd
    )


def check_records(host_pids: Mapping[int, int], records: Sequence[FileRecord]) -> None:
    """Refuses a restored tree that does not remember what it did when it was saved. `host_pids`: by number
    in the box."""
    for record in records:
        if record.pid not in host_pids or not _holds(host_pids[record.pid], record):
            raise CannotRestore(f"the memory of process {record.pid} is not what was saved (SQLite)")


def renumber(host_pids: Mapping[int, int], records: Sequence[FileRecord]) -> None:
    """Has the processes remember the device numbers that their files have now. None of them has run."""
    for record in records:
        host_pid = host_pids[record.pid]
        try:
            device = os.stat(f"/proc/{host_pid}/fd/{record.fd}").st_dev
            with open(f"/proc/{host_pid}/mem", "r+b", 0) as memory:
                if _is_as_found(host_pid, record):  # several descriptors share a record
                    os.pwrite(memory.fileno(), _FILE_ID.pack(device, record.inode), record.address)
        except OSError as error:
            raise CannotRestore(f"the memory of process {record.pid} cannot be written: {error}") from error
