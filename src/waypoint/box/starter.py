"""Starting a shell or a program of a box: as which user, in which folder, and why not.

The anchor starts everything (native/anchor.c). It is part of every image, so it stays as it is: it starts
programs as root only, and takes requests that fit a packet. Where that is not enough it starts
native/start.c, which takes the request from a socket of its own and becomes the program.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Sequence
from enum import IntEnum

from waypoint.box.keeper import Keeper
from waypoint.box.plan import ENGINE_IN_BOX
from waypoint.box.users import User
from waypoint.kernel import faults

_PROGRAM = str(ENGINE_IN_BOX / "bin" / "start")
_PACKET_BYTES = 1 << 17
"""What the anchor is given itself. (Its packets have room for twice as much.)"""
_MOST_BYTES = 16 << 20
_ANSWER_SECONDS = 30.0
_REPORT = struct.Struct("=ii")


class Step(IntEnum):
    """Where a start failed; `enum step` in native/start.c."""

    REQUEST = 0
    USER = 1
    FOLDER = 2
    PROGRAM = 3


class StartFailed(OSError):
    """Raised when the program itself, or its folder, is the reason."""

    def __init__(self, number: int, step: Step) -> None:
        super().__init__(number, os.strerror(number))
        self.step = step


_OF_THE_PROGRAM = frozenset(
    {
        *(errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.EISDIR, errno.ELOOP, errno.EPERM),
        *(errno.E2BIG, errno.ENAMETOOLONG, errno.ETXTBSY, errno.EINVAL, errno.ELIBBAD),
    }
)
"""What execve(2) and chdir(2) say about the program and the folder. Anything else is about the box."""


def start(
    keeper: Keeper,
    kind: str,
    cwd: str,
    argv: Sequence[str],
    env: Sequence[str],
    stdio: tuple[int, int, int],
    user: User,
    *,
    inherits_folder: bool = False,
) -> int:
    """Starts a "shell" or a "program"; returns its pid in the box. StartFailed, or OSError for the box.
    `inherits_folder`: its user need not be able to enter the folder, as with sudo."""
    words = [*argv, *env]
    if user.is_root and sum(len(os.fsencode(word)) + 1 for word in words) < _PACKET_BYTES:
        try:
            return keeper.start(kind, cwd, argv, env, stdio)
        except OSError as error:
            if error.errno in _OF_THE_PROGRAM:
                raise StartFailed(error.errno or 0, Step.PROGRAM) from error
            raise
    groups = ",".join(map(str, user.groups))
    fields = [
        "inherited" if inherits_folder else kind,
        cwd,
        str(user.uid),
        str(user.gid),
        groups,
        str(len(argv)),
        *argv,
        str(len(env)),
        *env,
    ]
    request = b"".join(os.fsencode(field) + b"\0" for field in fields)
    if len(request) > _MOST_BYTES:
        raise StartFailed(errno.E2BIG, Step.PROGRAM)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        ours.settimeout(faults.limit(_ANSWER_SECONDS))
        with theirs:
            pid = keeper.start(kind, "/", [_PROGRAM], [], (stdio[0], stdio[1], theirs.fileno()))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [stdio[2]]))]
        try:
            ours.sendmsg([struct.pack("=I", len(request))], rights)
            ours.sendall(request)
            report = ours.recv(_REPORT.size)
        except ConnectionError as error:
            raise OSError(errno.EPIPE, "the program ended before it was started") from error
    if report:
        step, number = _REPORT.unpack(report)
        raise StartFailed(number, Step(step))
    return pid
