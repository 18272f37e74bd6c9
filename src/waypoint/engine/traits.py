"""What CRIU does not save of a task, and anybody with the right to can read and set from outside.

Where it may run, its I/O priority, how late its timers may be, what it would put into a core file. Read
while the tree stands still, set again while the restored one has not run yet. Only what differs from the
keeper's own is kept: for most trees that is nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import msgspec

from waypoint.kernel import processes
from waypoint.kernel.syscalls import io_priority, set_io_priority
from waypoint.model import Record

_FILES = {"coredump_filter": "0x", "timerslack_ns": ""}
"""Of a task's /proc folder, each with what has to be put before what is read there when it is written."""


class Traits(Record, frozen=True):
    """Of one task, by its number in the box. None, or no entry, where it is as usual."""

    task: int
    cpus: tuple[int, ...] | None = None
    io_priority: int | None = None
    files: dict[str, str] = msgspec.field(default_factory=dict)


def _tasks(process: processes.Process) -> Iterator[tuple[int, int]]:
    """Its threads: the host's number and the box's own."""
    with contextlib.suppress(OSError):
        for host_task in map(int, os.listdir(f"/proc/{process.host_pid}/task")):
            if host_task == process.host_pid:
                yield host_task, process.pid
                continue
            with contextlib.suppress(OSError), open(f"/proc/{host_task}/status") as lines:
                yield from ((host_task, int(line.split()[-1])) for line in lines if line.startswith("NSpid:"))


def _read(host_task: int, task: int) -> Traits:
    files = {}
    for name, prefix in _FILES.items():
        with contextlib.suppress(OSError), open(f"/proc/{host_task}/{name}") as file:
            files[name] = prefix + file.read().strip()
    return Traits(
        task=task,
        cpus=tuple(sorted(os.sched_getaffinity(host_task))),
        io_priority=io_priority(host_task),
        files=files,
    )


def read(tree: Sequence[processes.Process], keeper: int) -> tuple[Traits, ...]:
    """What is unusual about the tasks of a tree, compared with its keeper."""
    usual = _read(keeper, 0)
    found = []
    for process in tree:
        for host_task, task in _tasks(process):
            with contextlib.suppress(OSError):  # a zombie has none of these
                told = _read(host_task, task)
                traits = Traits(
                    task=task,
                    cpus=None if told.cpus == usual.cpus else told.cpus,
                    io_priority=None if told.io_priority == usual.io_priority else told.io_priority,
                    files=dict(told.files.items() - usual.files.items()),
                )
                if traits != Traits(task=task):
                    found.append(traits)
    return tuple(found)


def apply(tree: Sequence[processes.Process], traits: Sequence[Traits]) -> None:
    """Gives the tasks of a restored tree what they had. What this machine does not have (a processor that was
    taken out) stays as it is."""
    wanted = {one.task: one for one in traits}
    for process in tree if wanted else ():
        for host_task, task in _tasks(process):
            if task not in wanted:
                continue
            one = wanted[task]
            if one.cpus is not None:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(host_task, one.cpus)
            if one.io_priority is not None:
                with contextlib.suppress(OSError):
                    set_io_priority(host_task, one.io_priority)
            for name, text in one.files.items():
                with contextlib.suppress(OSError), open(f"/proc/{host_task}/{name}", "w") as file:
                    file.write(text)
