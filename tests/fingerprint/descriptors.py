"""Descriptors: what they lead to and its state, and which of them share one open file."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import select
import stat
import struct
import termios

from tests.fingerprint.facts import Recorder, read, same
from tests.fingerprint.sockets import Connections, record_socket

from waypoint.kernel import processes

_KCMP_FILE = 0
_F_GETOWN_EX, _F_GETSIG, _F_GETPIPE_SZ, _F_GET_SEALS, _F_GET_RW_HINT = 16, 11, 1032, 1034, 1035
_OWNERS = {0: "thread", 1: "process", 2: "group"}
_TERMINAL_CALLS = {
    "size": (termios.TIOCGWINSZ, 8),
    "foreground group": (termios.TIOCGPGRP, 4),
    "session": (0x5429, 4),  # TIOCGSID
    "number": (0x80045430, 4),  # TIOCGPTN
    "lock": (0x80045439, 4),  # TIOCGPTLCK
    "packet mode": (0x80045438, 4),  # TIOCGPKT
    "exclusive": (0x80045440, 4),  # TIOCGEXCL
    "unread": (termios.FIONREAD, 4),
    "unsent": (termios.TIOCOUTQ, 4),
    "discipline": (0x5424, 4),  # TIOCGETD
}
_WITHOUT_NAME = re.compile(r"(pipe|socket|net|mnt|pid|ipc|uts|user|cgroup|time|mqueue):\[\d+\]")
_MOST_BYTES = 1 << 20
_O_LARGEFILE = 0o100000
"""It means nothing on machines of 64 bits."""


def record_descriptors(recorder: Recorder, connections: Connections) -> None:
    everything = [
        (process, fd, target)
        for process in recorder.members
        for fd, target in sorted(processes.descriptors(process.host_pid).items())
    ]
    for process, fd, target in everything:
        recorder.holders.setdefault(target, f"{process.pid}:{fd}")
    open_files: dict[str, list[tuple[processes.Process, int]]] = {}
    for process, fd, target in everything:
        place = f"{process.pid}:{fd}"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            recorder.add("descriptor", place, _WITHOUT_NAME.sub(r"\1", target))
            if _WITHOUT_NAME.fullmatch(target):
                recorder.add("object", place, recorder.object(target))
            known = open_files.setdefault(target, [])
            for other, other_fd in known:
                if same(_KCMP_FILE, process.host_pid, other.host_pid, fd, other_fd):
                    recorder.add("open file shared with", place, f"{other.pid}:{other_fd}")
                    # Its state is that of the other one, but for what belongs to the descriptor.
                    _record_info(recorder, process.host_pid, fd, place)
                    break
            else:
                known.append((process, fd))
                recorder.add("open file shared with", place, "none before")
                _record_info(recorder, process.host_pid, fd, place)
                _record_object(recorder, connections, process.host_pid, fd, target)


def _record_info(recorder: Recorder, host_pid: int, fd: int, place: str) -> None:
    """What the kernel tells in /proc/PID/fdinfo."""
    lines: list[str] = []
    for line in read(f"/proc/{host_pid}/fdinfo/{fd}").splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        match key.split(" ")[0]:
            case "mnt_id" | "ino" | "eventfd-id":
                pass
            case "flags":
                recorder.add("descriptor's flags", place, f"{int(value, 8) & ~_O_LARGEFILE:o}")
            case "pos":
                recorder.add("position", place, value.strip())
            case "Pid" | "NSpid":
                lines.append(f"process {recorder.pid(int(words[0]))}")
            case "lock":
                # 1: POSIX ADVISORY WRITE 4711 00:2a:1234 0 EOF
                owner = recorder.pid(int(words[4])) if words[1] == "POSIX" else "-"
                recorder.add(
                    f"{words[1]} lock", f"{place} {words[6]}", " ".join([*words[2:4], owner, words[7]])
                )
            case "it_value":
                lines.append(f"timer {'runs' if any(map(int, re.findall(r'[0-9]+', value))) else 'stands'}")
            case "tfd":
                # tfd: 5 events: 19 data: 1122 pos:0 ino:61 sdev:d
                words = line.replace(":", ": ").split()
                ino = int(words[words.index("ino:") + 1], 16)
                member = next(
                    (
                        recorder.holders[name]
                        for kind in ("socket", "pipe")
                        if (name := f"{kind}:[{ino}]") in recorder.holders
                    ),
                    "",
                )
                recorder.add("epoll member", f"{place} {words[1]}", f"{words[3]} {words[5]} {member}")
            case "inotify":
                watch = dict(word.split(":", 1) for word in line.split()[1:])
                recorder.add("watch", f"{place} {watch['wd']}", f"{watch['ino']} {watch['mask']}")
            case _:
                lines.append(line.replace("\t", " "))
    if lines:
        recorder.add("state", place, "\n".join(lines))


def _record_object(recorder: Recorder, connections: Connections, host_pid: int, fd: int, target: str) -> None:
    place = f"{recorder.pid(host_pid)}:{fd}"
    try:
        own = processes.duplicate(host_pid, fd)
    except OSError:
        return
    try:
        flags = fcntl.fcntl(own, fcntl.F_GETFL)
        if flags & os.O_PATH:
            _record_file(recorder, own, place, target)
        elif target.startswith("socket:["):
            record_socket(recorder, connections, own, place, int(target[8:-1]))
            _record_owner(recorder, own, place)
        elif target.startswith(("/dev/pts/", "/dev/ptmx", "/dev/tty")):
            _record_terminal(recorder, own, place)
        elif target.startswith(("anon_inode:", "pidfd:", "net:", "mnt:")):
            _record_owner(recorder, own, place)
            if target == "anon_inode:inotify":
                (unread,) = struct.unpack("i", fcntl.ioctl(own, termios.FIONREAD, bytes(4)))
                recorder.add("unread watch events", place, unread)
        elif not target.startswith(("/proc/", "/sys/")):
            _record_owner(recorder, own, place)
            info = _record_file(recorder, own, place, target)
            if stat.S_ISFIFO(info.st_mode):
                _record_pipe(recorder, own, place, flags)
            elif stat.S_ISREG(info.st_mode) and not info.st_nlink and flags & os.O_ACCMODE != os.O_WRONLY:
                _record_content(recorder, own, place, info)
    finally:
        os.close(own)


def _record_owner(recorder: Recorder, own: int, place: str) -> None:
    """Which process gets signals of it, and which signal."""
    kind, host_pid = struct.unpack("ii", fcntl.fcntl(own, _F_GETOWN_EX, struct.pack("ii", 0, 0)))
    if host_pid:
        recorder.add("owner", place, f"{_OWNERS[kind]} {recorder.pid(host_pid)}")
    if number := fcntl.fcntl(own, _F_GETSIG):
        recorder.add("owner's signal", place, number)


def _record_file(recorder: Recorder, own: int, place: str, target: str) -> os.stat_result:
    info = os.fstat(own)
    has_name = bool(_WITHOUT_NAME.fullmatch(target)) is False
    size = info.st_size if stat.S_ISREG(info.st_mode) else "-"
    recorder.add("file", place, f"{info.st_mode:o} {info.st_uid} {info.st_gid} {size} {info.st_rdev:x}")
    if has_name:
        recorder.add("links", place, info.st_nlink)
        recorder.add("inode of a file" if info.st_nlink else "inode without a name", place, info.st_ino)
        recorder.add("st_dev", place, info.st_dev)
        if stat.S_ISREG(info.st_mode):
            kind = "time of change" if info.st_nlink else "time of change without a name"
            recorder.add(kind, place, info.st_mtime_ns)
            with contextlib.suppress(OSError):
                recorder.add("seals", place, fcntl.fcntl(own, _F_GET_SEALS))
            with contextlib.suppress(OSError):
                recorder.add("lease", place, fcntl.fcntl(own, fcntl.F_GETLEASE))
    return info


def _record_content(recorder: Recorder, own: int, place: str, info: os.stat_result) -> None:
    """Of a file that no path leads to."""
    if info.st_size <= _MOST_BYTES and not fcntl.fcntl(own, fcntl.F_GETFL) & os.O_DIRECT:
        content = os.pread(own, info.st_size, 0)
        recorder.add("content", place, hashlib.blake2b(content, digest_size=8).hexdigest())


def _record_pipe(recorder: Recorder, own: int, place: str, flags: int) -> None:
    if not _has_reader(own):
        return  # no process can find out what is in it
    recorder.add("size of a pipe", place, fcntl.fcntl(own, _F_GETPIPE_SZ))
    (unread,) = struct.unpack("i", fcntl.ioctl(own, termios.FIONREAD, bytes(4)))
    recorder.add("unread in a pipe", place, unread)
    if unread and flags & os.O_ACCMODE != os.O_WRONLY:
        reader, writer = os.pipe()
        try:
            fcntl.fcntl(writer, 1031, max(fcntl.fcntl(own, _F_GETPIPE_SZ), 4096))  # F_SETPIPE_SZ
            os.set_blocking(writer, False)
            count = _tee(own, writer, unread)
            content = os.read(reader, unread) if count else b""
            recorder.add("content", place, hashlib.blake2b(content, digest_size=8).hexdigest())
        finally:
            os.close(reader)
            os.close(writer)


def _has_reader(own: int) -> bool:
    """Writing to a pipe without one is an error, which poll tells."""
    poll = select.poll()
    poll.register(own, 0)
    return not any(event & select.POLLERR for _, event in poll.poll(0))


def _tee(source: int, target: int, count: int) -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.tee(source, target, ctypes.c_size_t(count), ctypes.c_uint(2)))  # SPLICE_F_NONBLOCK


def _record_terminal(recorder: Recorder, own: int, place: str) -> None:
    with contextlib.suppress(termios.error):
        recorder.add("termios", place, termios.tcgetattr(own))
    for name, (request, size) in _TERMINAL_CALLS.items():
        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(own, request, bytes(size))
            if size == 4:
                (number,) = struct.unpack("i", answer)
                value = recorder.pid(number) if name in ("foreground group", "session") else str(number)
            else:
                value = answer.hex()
            recorder.add(f"terminal's {name}", place, value)
