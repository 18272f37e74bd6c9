"""The connection to a keeper: the daemon's end of the socket that native/keeper.c listens on.

A keeper outlives the daemon, so everything here must work on a box that another daemon built. A request is
a packet of words, each ending in NUL, and gets one packet as its answer; descriptors travel beside them.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel import faults, locks

PROTOCOL = "1"
"""The version of the requests and answers; The C programs in native/ have the same constant."""
_PACKET_BYTES = 1 << 18
_ANSWER_SECONDS = 30.0


class OtherProtocol(OSError):
    """Raised when a keeper speaks another version of the protocol than this daemon."""


@dataclass(frozen=True)
class Hello:
    """What a keeper reports about itself. The caller closes both descriptors."""

    anchor: int
    status_pipe: int
    """The inode of the pipe through which the anchor reports ended children."""
    master: int
    slave: int


class Keeper:
    """A connection to one keeper. Requests may come from several threads."""

    def __init__(self, path: Path, *, answer_seconds: float | None = None) -> None:
        self._path, self._answer_seconds = path, answer_seconds
        self._lock = locks.lock("keeper")
        self._socket = _connect(path, answer_seconds)
        self._answer_missing = False
        """Whether an answer to an earlier request may still come on this connection."""

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self, *words: str | bytes, fds: Sequence[int] = ()) -> tuple[list[str], list[int]]:
        """Sends a request; returns the words of the answer behind "ok", and the descriptors with it."""
        packet = b"".join((w if isinstance(w, bytes) else os.fsencode(w)) + b"\0" for w in words)
        if len(packet) >= _PACKET_BYTES:
            raise OSError(errno.E2BIG, f"keeper {words[0]!r}: request too long")
        with self._lock:
            if self._answer_missing:
                # It would be taken for the answer to this request.
                self._socket.close()
                self._socket = _connect(self._path, self._answer_seconds)
            self._answer_missing = True
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            self._socket.sendmsg([packet], rights)
            answer, received, flags, _ = socket.recv_fds(self._socket, 65536, 8)
            self._answer_missing = False
        status, *rest = answer.decode().split(" ") if answer else ["gone"]
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            status, rest = "error", [str(errno.EMSGSIZE)]
        if status != "ok":
            for fd in received:
                os.close(fd)
            number = int(rest[0]) if status == "error" else errno.EPIPE
            raise OSError(number, f"keeper {words[0]!r}: {os.strerror(number)}")
        for fd in received:
            os.set_inheritable(fd, False)
        return rest, list(received)

    def hello(self) -> Hello:
        """Asks the keeper for its terminal. OtherProtocol when it speaks another version."""
        words, fds = self.ask("hello")
        if words[0] != PROTOCOL:
            for fd in fds:
                os.close(fd)
            raise OtherProtocol(
                errno.EPROTO, f"its keeper speaks protocol {words[0]}, this daemon {PROTOCOL}"
            )
        return Hello(anchor=int(words[1]), status_pipe=int(words[2]), master=fds[0], slave=fds[1])

    def serve(self) -> bytes:
        """From now on this connection receives the keeper's events, and its owner reads the terminal.
        Returns what was printed while no daemon read the terminal."""
        words, _ = self.ask("serve")
        size_bytes, printed = int(words[0]), b""
        while len(printed) < size_bytes:
            printed += self._socket.recv(65536)
        return printed

    def read_event(self) -> list[str]:
        """The next event on the connection that serves, as words; [] when the keeper is gone."""
        packet = self._socket.recv(65536)
        return packet.decode().split(" ") if packet else []

    def use_group(self, folder: int, freeze_file: int) -> None:
        """The control group in which the tree is started, by its folder and its file that freezes it."""
        self.ask("group", fds=(folder, freeze_file))

    def freeze(self) -> None:
        """Stops the whole tree. It runs on at the latest when this connection ends."""
        self.ask("freeze")

    def stay_frozen(self) -> None:
        """The same until `thaw`, also when this connection or a program of `run` ends."""
        self.ask("stay-frozen")

    def thaw(self) -> None:
        self.ask("thaw")

    def start_anchor(self) -> int:
        return int(self.ask("anchor")[0][0])

    def adopt(self, anchor: int) -> None:
        self.ask("adopt", str(anchor))

    def start(
        self, kind: str, cwd: str, argv: Sequence[str], env: Sequence[str], stdio: tuple[int, int, int]
    ) -> int:
        """Lets the anchor start a "shell" (on the terminal) or a "program"; returns its pid in the box."""
        words = [kind, cwd, str(len(argv)), *argv, str(len(env)), *env]
        return int(self.ask("start", *words, fds=stdio)[0][0])

    def run(self, ipc: str, env: Sequence[str], argv: Sequence[str], fds: Sequence[int]) -> int:
        """Runs a program beside the tree, with `fds` as its descriptors 3, 4, …; returns its pid."""
        return int(self.ask("run", ipc, str(len(env)), *env, *argv, fds=fds)[0][0])

    def keep_outputs(self, fds: Sequence[int]) -> None:
        """Gives the keeper copies of the reading ends of a program's pipes, so that the pipes outlive the
        daemon."""
        self.ask("keep", fds=fds)

    def status_pipe(self) -> int:
        return self.ask("status-pipe")[1][0]

    def set_last_pid(self, pid: int) -> None:
        self.ask("last-pid", str(pid))

    def last_pid(self) -> int:
        """The last pid that a new process of the box was given."""
        return int(self.ask("last-pid?")[0][0])

    def set_hostname(self, name: str) -> None:
        self.ask("hostname", name)

    def set_foreground(self, group: int) -> None:
        self.ask("foreground", str(group))

    def foreground(self) -> int:
        return int(self.ask("foreground?")[0][0])

    def hold_ptys(self, indices: Sequence[int]) -> tuple[int, list[str]]:
        """Creates these terminals ahead of a restore. Returns the number (in the box) of the process that
        tasks take them from, and INDEX:MASTER:SLAVE of each. MASTER and SLAVE are descriptors of that process
        and of the keeper."""
        words, _ = self.ask("ptys", *(str(index) for index in indices))
        return int(words[0]), words[1:]

    def mask(self, path: str, kind: int = 0, handle: bytes = b"") -> None:
        """Covers a folder of the box with an empty one that cannot be written. With a handle: the folder that
        has this file handle in the file system that is mounted at `path`."""
        self.ask("mask", path, str(kind), handle.hex())

    def idmap(self) -> int:
        """A descriptor of the user namespace that says which ids files of the host have in the box. ENOENT
        when the box is in none."""
        return self.ask("idmap")[1][0]

    def drop_ptys(self) -> None:
        self.ask("drop-ptys")


def _connect(path: Path, answer_seconds: float | None) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(faults.limit(answer_seconds or _ANSWER_SECONDS))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _PACKET_BYTES)
        # A path of any length: AF_UNIX allows 108 bytes, a folder descriptor is always short.
        folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except BaseException:
        connection.close()
        raise
    return connection
