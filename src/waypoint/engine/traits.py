"""Properties of a task that CRIU does not save, and that can be read and set from outside.

On which processors it may run, its I/O priority, how late its timers may be, what a core dump of it would
hold. Read while the tree stands still, set again while the restored tree has not run yet. Only what differs
from the keeper's own is recorded: for most trees that is nothing.
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
"""Files of a task's /proc folder, each with the prefix that its value needs when it is written."""


class Traits(Record, frozen=True):
    """Those of one task, by its number in the box. None, or no entry, where it does not differ."""

    task: int
    cpus: tuple[int, ...] | None = None
    io_priority: int | None = None
    files: dict[str, str] = msgspec.field(default_factory=dict)


def _list_tasks(process: processes.Process) -> Iterator[tuple[int, int]]:
    """Its threads: the host's number and the box's own."""
    with contextlib.suppress(OSError):
        for host_task in map(int, os.listdir(f"/proc/{process.host_pid}/task")):
            if host_task == process.host_pid:
                yield host_task, process.pid
                continue
            with contextlib.suppress(OSError):
                yield host_task, int(processes.read_status(host_task)["NSpid"].split()[-1])


def _read_task(host_task: int, task: int) -> Traits:
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
    """The traits of a tree's tasks that differ from its keeper's."""
    usual = _read_task(keeper, 0)
    result = []
    for process in tree:
        for host_task, task in _list_tasks(process):
            with contextlib.suppress(OSError):  # a zombie has none of these
                present = _read_task(host_task, task)
                traits = Traits(
                    task=task,
                    cpus=None if present.cpus == usual.cpus else present.cpus,
                    io_priority=None if present.io_priority == usual.io_priority else present.io_priority,
                    files=dict(present.files.items() - usual.files.items()),
                )
                if traits != Traits(task=task):
                    result.append(traits)
    return tuple(result)


def apply(tree: Sequence[processes.Process], traits: Sequence[Traits]) -> None:
    """Sets the traits of a restored tree's tasks. What this machine does not have (a processor that was
    removed) is left as it is."""
    by_task = {task_traits.task: task_traits for task_traits in traits}
    for process in tree if by_task else ():
        for host_task, task in _list_tasks(process):
            if task not in by_task:
                continue
            wanted = by_task[task]
            if wanted.cpus is not None:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(host_task, wanted.cpus)
            if wanted.io_priority is not None:
                with contextlib.suppress(OSError):
                    set_io_priority(host_task, wanted.io_priority)
            for name, text in wanted.files.items():
                with contextlib.suppress(OSError), open(f"/proc/{host_task}/{name}", "w") as file:
                    file.write(text)
