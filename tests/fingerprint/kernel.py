"""What belongs to a box as a whole: System V objects and mounts."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fingerprint.facts import Recorder

from waypoint.kernel import mounts
from waypoint.kernel.syscalls import CLONE_NEWIPC, setns

_IPC_NOWAIT, _MSG_COPY, _GETALL = 0o4000, 0o40000, 13
_MESSAGE_BYTES = 8192
_OWN_MOUNTS = ("/dev", "/proc", "/sys", "/run", "/tmp")
"""(Elsewhere other homes of the machine are hidden, which come and go.)"""
_libc = ctypes.CDLL(None, use_errno=True)


def record_box(recorder: Recorder) -> None:
    anchor = next(process.host_pid for process in recorder.members if process.state != "Z")
    with ThreadPoolExecutor(1) as executor:  # the kernel keeps an IPC namespace per thread
        executor.submit(_record_ipc, recorder, anchor).result()
    for mount in mounts.mounts(recorder.keeper):
        if mount.path.startswith(_OWN_MOUNTS) or mount.path == "/":
            recorder.add("mount", mount.path, mount.fstype)


def _record_ipc(recorder: Recorder, host_pid: int) -> None:
    namespace = os.open(f"/proc/{host_pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(namespace, CLONE_NEWIPC)
    finally:
        os.close(namespace)
    for kind, identifier in {"shm": "shmid", "sem": "semid", "msg": "msqid"}.items():
        heading, *lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
        names = heading.split()
        for line in lines:
            row = dict(zip(names, line.split(), strict=True))
            place = f"{kind} {row[identifier]}"
            for pid in ("cpid", "lpid", "lspid", "lrpid"):
                if pid in row:
                    recorder.add(f"System V {pid}", place, recorder.pid(int(row.pop(pid))))
            for time in ("atime", "dtime", "ctime", "otime", "stime", "rtime"):
                if time in row:
                    recorder.add(f"System V {time}", place, row.pop(time))
            for memory in ("rss", "swap"):
                row.pop(memory, None)
            recorder.add("System V creator", place, (row.pop("cuid"), row.pop("cgid")))
            recorder.add("System V object", place, row)
            if kind == "sem":
                values = (ctypes.c_ushort * int(row["nsems"]))()
                _libc.semctl(int(row["semid"]), 0, _GETALL, values)
                recorder.add("semaphores", place, list(values))
            elif kind == "msg":
                recorder.add("System V messages", place, _messages(int(row["msqid"])))


def _messages(queue: int) -> str:
    digest = hashlib.blake2b(digest_size=8)
    room = ctypes.create_string_buffer(8 + _MESSAGE_BYTES)
    for number in range(64):
        with contextlib.suppress(OSError):
            got = _libc.msgrcv(
                queue, room, ctypes.c_size_t(_MESSAGE_BYTES), ctypes.c_long(number), _MSG_COPY | _IPC_NOWAIT
            )
            if got < 0:
                break
            digest.update(room.raw[: 8 + got])
    return digest.hexdigest()
