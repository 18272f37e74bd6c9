"""/proc: the processes below a process, and what one of them has open.

The lists of children are walked, not all of /proc: the cost depends on the size of the box, not of the
machine.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel import userns
from waypoint.kernel.syscalls import KCMP_SYSVSEM, kcmp, pidfd_getfd, pidfd_open

_PTS_MAJOR = 136
_TRACER = b"\nTracerPid:\t"


@dataclass(frozen=True)
class Process:
    """One process, with its numbers as the host and as its own innermost namespace know them."""

    host_pid: int
    pid: int
    parent_host_pid: int
    group: int
    session: int
    namespaces: int
    """How many pid namespaces deep it is."""
    state: str
    comm: str
    terminal: int | None
    """The index of the pseudo terminal that controls it."""
    uid: int
    rss_bytes: int
    pids: tuple[int, ...] = ()
    """Its numbers in all pid namespaces it is seen from, the host's first."""
    threads: int = 1
    tracer_host_pid: int = 0
    """The thread that traces its main thread (ptrace), if one does."""

    @property
    def command(self) -> str:
        """Its command line; its name in brackets when it has none (a zombie, a kernel thread)."""
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{self.host_pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if words != [b""]:
                return b" ".join(words).decode(errors="replace")
        return f"[{self.comm}]"


def read_status(host_task: int) -> dict[str, str]:
    """The fields of /proc/PID/status of a process or thread. OSError when it is gone.

    Its name is chosen by the process: it need not be text (the kernel cuts it after 15 bytes, in the middle
    of a letter if need be), and it may contain every end of line that Python knows except the kernel's own.
    """
    with open(f"/proc/{host_task}/status", "rb") as file:
        lines = file.read().decode(errors="replace").split("\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def read(host_pid: int) -> Process | None:
    """One process, or None when it is gone."""
    try:
        with open(f"/proc/{host_pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
        lines = read_status(host_pid)
        uid, *_ = inner_ids(host_pid, lines, "Uid")
    except OSError:
        return None
    comm, _, rest = text.partition("(")[2].rpartition(")")
    words = rest.split()
    device = int(words[4])
    major, minor = device >> 8 & 0xFFF, device & 0xFF | device >> 12 & 0xFFF00
    pids = tuple(map(int, lines["NSpid"].split()))
    return Process(
        host_pid=host_pid,
        pid=pids[-1],
        pids=pids,
        parent_host_pid=int(words[1]),
        group=int(lines["NSpgid"].split()[-1]),
        session=int(lines["NSsid"].split()[-1]),
        namespaces=len(pids),
        state=words[0],
        comm=comm,
        terminal=minor + 256 * (major - _PTS_MAJOR) if _PTS_MAJOR <= major < _PTS_MAJOR + 8 else None,
        uid=uid,
        rss_bytes=int(lines.get("VmRSS", "0 kB").split()[0]) * 1024,
        threads=int(lines.get("Threads", "1")),
        tracer_host_pid=int(lines.get("TracerPid", "0")),
    )


def inner_ids(host_pid: int, status: dict[str, str], name: str) -> list[int]:
    """The `Uid` or `Gid` of a process as a box in a user namespace has them: real, effective, saved, and the
    one for files. OSError when the process is gone."""
    ids = [int(word) for word in status[name].split()[:4]]
    if any(number >= userns.FIRST_ID for number in ids) and userns.is_of_box(host_pid):
        return [userns.to_inner(number) for number in ids]
    return ids


def tracer_of(process: Process) -> Process | None:
    """The process that traces one, or any of its threads; None when none does, or it has ended."""
    tracer = process.tracer_host_pid
    if not tracer and process.threads > 1:
        folder = f"/proc/{process.host_pid}/task"
        with contextlib.suppress(OSError):
            tracer = next(
                filter(None, (_tracer_of_task(f"{folder}/{task}") for task in os.listdir(folder))), 0
            )
    with contextlib.suppress(OSError):
        return read(int(read_status(tracer)["Tgid"])) if tracer else None
    return None


def _tracer_of_task(folder: str) -> int:
    """Of one of perhaps many threads: without making sense of the other fields."""
    with contextlib.suppress(OSError), open(f"{folder}/status", "rb", buffering=0) as file:
        return int(file.read().partition(_TRACER)[2].split(None, 1)[0])
    return 0


def printable(name: str) -> str:
    """A name from the kernel that may be no text, for messages and records."""
    return os.fsencode(name).decode(errors="replace")


def shares_undo_list(host_pid: int, other: int) -> bool:
    """Whether two processes have the same list of what is undone at their end (SEM_UNDO), or none."""
    try:
        return kcmp(host_pid, other, KCMP_SYSVSEM)
    except OSError:  # one has ended, or the kernel cannot compare
        return True


def locks_on_fault(host_pid: int) -> bool:
    """Whether memory of a process is locked page by page as it is used (MLOCK_ONFAULT). Costs a millisecond
    for a process that has locked memory, else as good as nothing."""
    if read_status(host_pid).get("VmLck", "0").split()[0] == "0":
        return False
    with open(f"/proc/{host_pid}/smaps", "rb") as file:
        return any(line.startswith(b"VmFlags:") and b" lf" in line for line in file)


def exit_code(status: int) -> int:
    """What a shell would say of a wait status: the exit code, 128 and the signal's number for a signal."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def is_over(host_pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    return _state_of(host_pid) in ("Z", "X")


def wait_for_end(host_pid: int, seconds: float) -> None:
    """Waits until a process has ended and no longer traces any other, for so long at most."""
    try:
        process = pidfd_open(host_pid)
    except OSError:  # it is gone
        return
    try:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        os.close(process)


def has_settled(host_pid: int) -> bool:
    """Whether a process has ended, or waits for something. One that runs, waits for a processor or is held by
    a tracer may still end of what has happened to it already."""
    return _state_of(host_pid) not in ("R", "D", "t")


def _state_of(host_pid: int) -> str:
    """The letter of /proc/PID/stat; `X` for a process that is gone."""
    try:
        with open(f"/proc/{host_pid}/stat", "rb") as file:
            return chr(file.read().rpartition(b")")[2].split()[0][0])
    except OSError:
        return "X"


def children(host_pid: int) -> Iterator[int]:
    """The children of a process, by the numbers the host knows them by."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{host_pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{host_pid}/task/{task}/children") as file:
                yield from (int(word) for word in file.read().split())


def host_pids(host_pid: int) -> Iterator[int]:
    """All descendants of a process, parents before children, by the numbers the host knows them by."""
    waiting = list(children(host_pid))
    while waiting:
        child = waiting.pop(0)
        yield child
        waiting += children(child)


def below(host_pid: int) -> list[Process]:
    """All descendants of a process, parents before children; not the process itself."""
    return [process for child in host_pids(host_pid) if (process := read(child))]


def memory_bytes(host_pid: int) -> tuple[int, int]:
    """How much memory of a process is not backed by a file: private, and shared."""
    try:
        status = read_status(host_pid)
    except OSError:
        return 0, 0
    # A process that has ended has none of these.
    private, swapped, shared = (
        int(status.get(name, "0 kB").split()[0]) * 1024 for name in ("RssAnon", "VmSwap", "RssShmem")
    )
    return private + swapped, shared


def descriptors(host_pid: int) -> dict[int, str]:
    """The open descriptors of a process, with the targets of their links in /proc."""
    targets = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{host_pid}/fd"):
            with contextlib.suppress(OSError):
                targets[int(name)] = os.readlink(f"/proc/{host_pid}/fd/{name}")
    return targets


def duplicate(host_pid: int, fd: int) -> int:
    """A duplicate, in this process, of a descriptor of another process."""
    process = pidfd_open(host_pid)
    try:
        return pidfd_getfd(process, fd)
    finally:
        os.close(process)


def namespace(host_pid: int, kind: str) -> str | None:
    """The identity of one of the namespaces of a process."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{host_pid}/ns/{kind}")
    return None
