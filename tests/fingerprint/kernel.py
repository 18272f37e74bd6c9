"""What belongs to a box as a whole: System V objects, mounts, and whether other homes are hidden from it."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fingerprint.facts import Recorder

from waypoint.kernel import homes, mounts
from waypoint.kernel.mounts import Mount
from waypoint.kernel.syscalls import CLONE_NEWIPC, setns

_IPC_NOWAIT, _MSG_COPY, _GETALL = 0o4000, 0o40000, 13
_MESSAGE_BYTES = 8192
_MASK = ("tmpfs", "none", "ro,nosuid,nodev,noexec,relatime")
"""File system, source and options of the mount that hides a folder from a box (native/plan.h)."""
_IN_A_HOME = ("waypoint.db", "pool.img", "pool")
_libc = ctypes.CDLL(None, use_errno=True)


def record_box(recorder: Recorder) -> None:
    anchor = next(process.host_pid for process in recorder.members if process.state != "Z")
    with ThreadPoolExecutor(1) as executor:  # the kernel keeps an IPC namespace per thread
        executor.submit(_record_ipc, recorder, anchor).result()
    with homes.reading():  # no home is between its mask and its entry
        known = {str(one.path) for one in homes.known_homes()}
        _record_mounts(recorder, mounts.mounts(recorder.keeper), known)


def _record_mounts(recorder: Recorder, table: list[Mount], known: set[str]) -> None:
    """All mounts; but a mask of another home is recorded as such, because homes come and go."""
    root = next(mount for mount in table if mount.path == "/")
    others = {path for path in known if f"{path.lstrip('/')}/pool/sessions/" not in root.super_options}
    stacks: dict[str, list[str]] = {}
    for mount in table:
        path = mount.path.removesuffix("//deleted")
        is_mask = (mount.fstype, mount.source, mount.options) == _MASK
        if is_mask and (path in others or (_was_home(path) and path not in known)):
            recorder.add("another home", path, "hidden")
        else:
            stacks.setdefault(path, []).append(f"{mount.fstype} {mount.options}")
    for path, stack in stacks.items():
        recorder.add("mount", path, ", ".join(stack))
    for path in others:
        with contextlib.suppress(OSError):
            if os.listdir(f"/proc/{recorder.keeper}/root{path}"):
                recorder.add("another home", path, "visible")


def _was_home(path: str) -> bool:
    """Whether a home was there that is no longer registered: it is gone, or has left something behind."""
    return not os.path.lexists(path) or any(os.path.lexists(f"{path}/{name}") for name in _IN_A_HOME)


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
