"""Processes and their threads: family, identity, privileges, signals, limits, scheduling, timers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re

from tests.fingerprint.facts import Recorder, read, same

from waypoint.kernel import processes
from waypoint.kernel.syscalls import io_priority

_STATUS = (
    *("Umask", "State", "Uid", "Gid", "Groups", "NSpid", "NSpgid", "NSsid", "Threads", "CoreDumping"),
    *("THP_enabled", "untag_mask", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "CapInh", "CapPrm"),
    *("CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Cpus_allowed"),
    *("Speculation_Store_Bypass", "SpeculationIndirectBranch", "Mems_allowed", "x86_Thread_features"),
    *("x86_Thread_features_locked", "VmLck", "VmPin"),
)
"""Fields of /proc/PID/status that are compared as they are."""
_STAT = {
    4: "terminal",
    15: "priority",
    16: "nice",
    19: "start time",
    23: "start of code",
    24: "end of code",
    25: "start of stack",
    35: "exit signal",
    37: "real-time priority",
    38: "policy",
    42: "start of data",
    43: "end of data",
    44: "start of brk",
    45: "start of arguments",
    46: "end of arguments",
    47: "start of environment",
    48: "end of environment",
    49: "exit code",
}
"""Fields of /proc/PID/stat by their index behind the name."""
_FLAGS, _TERMINAL_GROUP = 6, 5
_OF_ZOMBIES = {
    *("name", "parent", "Uid", "Gid", "NSpid", "NSpgid", "NSsid", "State", "exit code", "exit signal"),
    *("terminal",),
}
"""What is left of a process that has ended."""
_PF_FORKNOEXEC = 0x40
_TEXTS = ("oom_score_adj", "personality", "coredump_filter", "loginuid", "limits", "timers", "cmdline")
_DIGESTS = ("environ", "auxv")
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_SHARED = {1: "memory", 2: "descriptors", 3: "folders", 4: "signal actions", 5: "I/O context", 6: "undo list"}
"""KCMP_VM, KCMP_FILES, KCMP_FS, KCMP_SIGHAND, KCMP_IO, KCMP_SYSVSEM"""


def record_processes(recorder: Recorder) -> None:
    for process in recorder.members:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            _record_process(recorder, process)


def _record_process(recorder: Recorder, process: processes.Process) -> None:
    folder, place = f"/proc/{process.host_pid}", str(process.pid)
    _record_task(recorder, folder, place)
    recorder.add("parent", place, recorder.pid(process.parent_host_pid))
    if process.state == "Z":
        return
    for name in _TEXTS:
        with contextlib.suppress(OSError):
            recorder.add(name, place, _normal(name, read(f"{folder}/{name}")))
    for name in _DIGESTS:
        with contextlib.suppress(OSError), open(f"{folder}/{name}", "rb") as file:
            recorder.add(name, place, hashlib.blake2b(file.read(), digest_size=8).hexdigest())
    for name in ("exe", "cwd", "root"):
        with contextlib.suppress(OSError):
            recorder.add(name, place, os.readlink(f"{folder}/{name}"))
    for kind in _NAMESPACES:
        own = processes.namespace(process.host_pid, kind) != processes.namespace(recorder.keeper, kind)
        recorder.add(f"{kind} namespace of its own", place, own)
    for number, name in _SHARED.items():
        shared = same(number, process.host_pid, process.parent_host_pid)
        recorder.add(f"shares its {name} with its parent", place, shared)
    for task in sorted(os.listdir(f"{folder}/task"), key=int):
        if int(task) != process.host_pid:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                _record_task(recorder, f"{folder}/task/{task}", f"{place}/{recorder.pid(int(task))}")


def _normal(name: str, text: str) -> str:
    if name == "timers":  # "notify: signal/pid.4711": the host's number
        return re.sub(r"/[pt]id\.-?\d+", "", text)
    return text


def _record_task(recorder: Recorder, folder: str, place: str) -> None:
    text = read(f"{folder}/stat")
    words = text.rpartition(")")[2].split()
    is_zombie = words[0] == "Z"

    def add(kind: str, value: object) -> None:
        if not is_zombie or kind in _OF_ZOMBIES:
            recorder.add(kind, place, value)

    add("name", text.partition("(")[2].rpartition(")")[0])
    for index, name in _STAT.items():
        add(name, words[index])
    add("foreground group", recorder.pid(int(words[_TERMINAL_GROUP])))
    add("forked without exec", bool(int(words[_FLAGS]) & _PF_FORKNOEXEC))
    lines = [line.partition(":") for line in read(f"{folder}/status").split("\n")]
    status = {name: value.strip() for name, _, value in lines}
    for name in _STATUS:
        if name in status:
            add(name, status[name].split()[-1] if name.startswith("NS") else status[name])
    if is_zombie:
        return
    task = int(folder.rsplit("/", 1)[1])
    for name in ("timerslack_ns", "comm"):
        with contextlib.suppress(OSError):
            add(name, read(f"/proc/{task}/{name}"))
    with contextlib.suppress(OSError):
        add("I/O priority", io_priority(task))
        add("owner of /proc", os.stat(f"{folder}/environ").st_uid)
        if words[0] != "T":  # where it was when it was stopped is nothing it can notice
            add("system call", read(f"{folder}/syscall").split()[0])
