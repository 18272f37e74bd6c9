"""A process of ours that reads what others wrote: it keeps the right to read files, and nothing else.

It changes to user `nobody` with CAP_DAC_READ_SEARCH alone, gets limits, and a system call filter that refuses
sockets, programs, processes and everything that the filter of a box refuses.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct

from waypoint.kernel.confinement import reader_filter
from waypoint.kernel.syscalls import libc, oserror

NOBODY = 65534

_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_SET_NAME = 15
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION_3 = 0x20080522
_FILES = 256
_FILE_BYTES = 256 << 20


def enter(name: str, *, memory_bytes: int) -> None:
    """Gives up everything but reading. There is no way back. `name` is what `ps` shows."""
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_NOFILE, _FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    os.umask(0o077)
    _prctl(_PR_SET_NAME, name.encode())
    if os.geteuid() == 0:
        _prctl(_PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        _keep(1 << _CAP_DAC_READ_SEARCH)
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    program = reader_filter()
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, described)


def _keep(capabilities: int) -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("=6I", capabilities, capabilities, 0, 0, 0, 0)
    if libc.capset(header, data) < 0:
        raise oserror("capset")


def _prctl(option: int, *arguments: int | bytes) -> None:
    numbers = [value if isinstance(value, bytes) else ctypes.c_ulong(value) for value in arguments]
    rest = [ctypes.c_ulong(0)] * (4 - len(numbers))
    if libc.prctl(ctypes.c_int(option), *numbers, *rest) < 0:
        raise oserror("prctl")
