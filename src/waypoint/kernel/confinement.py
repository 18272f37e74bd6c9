"""What a process in a box may not do, as data: capabilities, a system call filter, paths of /proc and /sys.

The agent in a session is root of its box, and root of a box must not be root of the machine. Three
mechanisms ensure it, each on its own: capabilities (what root may do at all), a seccomp filter (which parts
of the kernel can be reached), and mounts over those files of /proc and /sys that obey user id 0 without any
capability. The keeper applies them to the processes that it starts, and after each restore; this module only
describes them.

The filter lists what is refused, not what is allowed, because programs of all kinds run in a session. A call
that is newer than this table is refused too (ENOSYS), so no new call is allowed by accident. Besides what
containers usually deny, the filter refuses what a checkpoint could not save: a program that gets "no such
call" at its start falls back to an older way, but a checkpoint that meets an io_uring fails.

There is one filter for the whole tree, in classic BPF, as a binary search: seven comparisons where the kernel
evaluates it, a few more where arguments count. Kernels since 5.11 determine when they load it which calls it
always allows, and do not evaluate it for those. CRIU saves it and restores it with the tree.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

from waypoint.errors import MissingFeature
from waypoint.kernel.syscalls import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWTIME,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
)

# ---- capabilities -------------------------------------------------------------------------------

CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_NET_RAW": 13,
    "CAP_SYS_CHROOT": 18,
    "CAP_AUDIT_WRITE": 29,
    "CAP_SETFCAP": 31,
}
"""What root has in a box: the usual set of a container without CAP_MKNOD.

Containers may make device nodes because a device controller decides which process opens them. There is none
here: `mknod` with the numbers of the machine's disk would be enough to read it. FIFOs, sockets and
overlayfs' own whiteouts need no capability.
"""

DEFAULT_CAPS = sum(1 << number for number in CAPABILITIES.values())


def available_caps(wanted: int = DEFAULT_CAPS) -> int:
    """Those of `wanted` that this process has itself: a host may lack some."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapBnd:"):
            return wanted & int(line.split()[1], 16)
    return wanted


# ---- system calls -------------------------------------------------------------------------------

_X86_64, _AARCH64 = 0, 1

SYSCALLS: dict[str, tuple[int | None, int | None]] = {
    "ioctl": (16, 29),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "syslog": (103, 116),
    "uselib": (134, None),
    "pivot_root": (155, 41),
    "adjtimex": (159, 171),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "iopl": (172, None),
    "ioperm": (173, None),
    "create_module": (174, None),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "clock_settime": (227, 112),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "migrate_pages": (256, 238),
    "unshare": (272, 97),
    "move_pages": (279, 239),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "setns": (308, 268),
    "finit_module": (313, 273),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "clone3": (435, 435),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    "memfd_secret": (447, 447),
    "open_tree_attr": (467, 467),
    "file_setattr": (469, 469),
}
"""The calls that the filter treats specially, by their numbers on x86-64 and on aarch64."""

_NOT_FOR_READERS: dict[str, tuple[int | None, int | None]] = {
    "connect": (42, 203),
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "kill": (62, 129),
    "ptrace": (101, 117),
    "tkill": (200, 130),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "execveat": (322, 281),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
}
"""What a process that only reads needs none of, by number on x86-64 and on aarch64."""

NEWEST_SYSCALL = SYSCALLS["file_setattr"]
"""Higher numbers are unknown here and refused. x32 calls have bit 30 set and so are higher too."""

_EPERM = (
    # The machine's kernel, and what it reveals about itself.
    *("kexec_load", "kexec_file_load", "reboot", "syslog", "acct", "bpf", "perf_event_open"),
    *("init_module", "finit_module", "delete_module", "create_module", "get_kernel_syms", "query_module"),
    *("iopl", "ioperm", "lookup_dcookie", "nfsservctl", "uselib"),
    # Mounts and namespaces of the box. (clone and unshare have rules of their own.)
    *("mount", "umount2", "pivot_root", "mount_setattr", "move_mount", "open_tree", "open_tree_attr"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "setns"),
    # A file handle opens any file of a file system, whatever is mounted where. (Getting the handle of a file
    # that the process can open is harmless, and allowed.)
    "open_by_handle_at",
    # Keys belong to the user id, and the host has a root too.
    *("add_key", "request_key", "keyctl"),
    # The time of day, swap, quotas and memory placement are the machine's.
    *("settimeofday", "clock_settime", "clock_adjtime", "adjtimex"),
    *("swapon", "swapoff", "quotactl", "quotactl_fd", "migrate_pages", "move_pages"),
)

_ENOSYS = (
    # Its flags are behind a pointer, where a filter cannot look. The C library falls back to clone.
    "clone3",
    # CRIU cannot save these.
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "memfd_secret"),
    # CRIU does not restore it: a program would rely on restrictions that are gone.
    *("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),
)

CLONE_NEW = (
    CLONE_NEWNS,
    CLONE_NEWCGROUP,
    CLONE_NEWUTS,
    CLONE_NEWIPC,
    CLONE_NEWUSER,
    CLONE_NEWPID,
    CLONE_NEWNET,
)
SOCKET_FAMILIES = {"AF_INET": 2, "AF_UNIX": 1, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17}
"""Those that CRIU can save. Not among them: AF_VSOCK, which reaches the hypervisor and ignores namespaces,
AF_ALG, and protocols for which socket() alone would load a kernel module."""

TIOCSTI = 0x5412
TIOCLINUX = 0x541C
"""Both type into the terminal of another user."""
BTRFS_NESTING = (0x50009401, 0x5000940E, 0x50009417, 0x50009418)
"""BTRFS_IOC_SNAP_CREATE, SUBVOL_CREATE and their second versions. A subvolume inside a session's files
(/dev/shm is a folder of the pool) is in no snapshot of them: what is in it would be in no checkpoint."""

# seccomp(2), struct seccomp_data and bpf_common.h
SECCOMP_RET_KILL_PROCESS = 0x80000000
SECCOMP_RET_ERRNO = 0x00050000
SECCOMP_RET_ALLOW = 0x7FFF0000
SECCOMP_DATA_NR = 0
SECCOMP_DATA_ARCH = 4
SECCOMP_DATA_ARGS = 16
BPF_LD_W_ABS = 0x20
BPF_JMP_JEQ_K = 0x15
BPF_JMP_JGE_K = 0x35
BPF_JMP_JSET_K = 0x45
BPF_RET_K = 0x06

_MACHINES = {"x86_64": (_X86_64, 0xC000003E), "aarch64": (_AARCH64, 0xC00000B7)}
"""By the name that uname(2) gives: the column of the table and AUDIT_ARCH_*."""

_Instruction = tuple[int, int, int, int]
_Code = tuple[_Instruction, ...]


def _return(value: int) -> _Code:
    return ((BPF_RET_K, 0, 0, value),)


_ALLOW = _return(SECCOMP_RET_ALLOW)


def _fail(number: int) -> _Code:
    return _return(SECCOMP_RET_ERRNO | number)


def _load(offset: int) -> _Instruction:
    return (BPF_LD_W_ABS, 0, 0, offset)


def _argument(number: int) -> _Instruction:
    """The low half of an argument: the kernel ignores the rest of the arguments tested here."""
    return _load(SECCOMP_DATA_ARGS + 8 * number)


def _one_of(values: tuple[int, ...], then: _Code, otherwise: _Code) -> _Code:
    tests = tuple(
        (BPF_JMP_JEQ_K, len(values) - position - 1 + len(otherwise), 0, value)
        for position, value in enumerate(values)
    )
    return tests + otherwise + then


def _any_bit(mask: int, then: _Code, otherwise: _Code) -> _Code:
    return ((BPF_JMP_JSET_K, len(otherwise), 0, mask), *otherwise, *then)


def _verdicts(column: int) -> dict[int, _Code]:
    """The code for each call that is not simply allowed, by number."""
    named = {name: _fail(errno.EPERM) for name in _EPERM}
    named |= {name: _fail(errno.ENOSYS) for name in _ENOSYS}
    spaces = sum(CLONE_NEW)
    named["clone"] = (_argument(0), *_any_bit(spaces, _fail(errno.EPERM), _ALLOW))
    named["unshare"] = (_argument(0), *_any_bit(spaces | CLONE_NEWTIME, _fail(errno.EPERM), _ALLOW))
    families = tuple(SOCKET_FAMILIES.values())
    named["socket"] = (_argument(0), *_one_of(families, _ALLOW, _fail(errno.EAFNOSUPPORT)))
    named["socketpair"] = named["socket"]
    typing = (TIOCSTI, TIOCLINUX)
    nesting = _one_of(BTRFS_NESTING, _fail(errno.EPERM), _ALLOW)
    named["ioctl"] = (_argument(1), *_one_of(typing, _fail(errno.EPERM), nesting))
    by_number = {SYSCALLS[name][column]: code for name, code in named.items()}
    return {number: code for number, code in by_number.items() if number is not None}


def _search(ranges: list[tuple[int, _Code]]) -> _Code:
    """The code that finds the range a number is in; the first field of each is where it begins."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    assert len(below) < 256, "a jump of classic BPF reaches no further"
    return ((BPF_JMP_JGE_K, len(below), 0, ranges[middle][0]), *below, *above)


def seccomp_filter(machine: str | None = None) -> bytes:
    """The filter for a machine (this one), an array of struct sock_filter.

    A call of another architecture's ends the process: 32-bit programs do not run in a box. Their calls
    have numbers of their own, and one of them (socketcall) hides from a filter what it does.
    """
    return _filter(machine, _verdicts)


def reader_filter(machine: str | None = None) -> bytes:
    """The filter for a process of ours that only reads (kernel/sandbox.py): what a box is refused, and
    sockets, programs, processes and other processes' memory as well."""

    def verdicts(column: int) -> dict[int, _Code]:
        refused = {SYSCALLS[name][column] for name in (*_EPERM, *_ENOSYS, "unshare", "socket", "socketpair")}
        refused |= {numbers[column] for numbers in _NOT_FOR_READERS.values()}
        return {number: _fail(errno.EPERM) for number in refused if number is not None}

    return _filter(machine, verdicts)


def _filter(machine: str | None, verdicts_of: Callable[[int], dict[int, _Code]]) -> bytes:
    machine = machine or os.uname().machine
    if machine not in _MACHINES:
        raise MissingFeature(
            f"there is no system call filter for {machine}", hint=f"it exists for {', '.join(_MACHINES)}"
        )
    column, arch = _MACHINES[machine]
    newest = NEWEST_SYSCALL[column]
    assert newest is not None
    verdicts = verdicts_of(column) | {newest + 1: _fail(errno.ENOSYS)}
    # -1 is the number that a tracer sets when it has handled a call itself.
    verdicts |= {0xFFFFFFFF: _ALLOW}
    ranges: list[tuple[int, _Code]] = [(0, _ALLOW)]
    for number in sorted(verdicts):
        if ranges[-1][1] != verdicts[number]:
            ranges.append((number, verdicts[number]))
        if number <= newest and number + 1 not in verdicts:
            ranges.append((number + 1, _ALLOW))
    program = (
        _load(SECCOMP_DATA_ARCH),
        (BPF_JMP_JEQ_K, 1, 0, arch),
        *_return(SECCOMP_RET_KILL_PROCESS),
        _load(SECCOMP_DATA_NR),
        *_search(ranges),
    )
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


# ---- paths --------------------------------------------------------------------------------------

MASKED_PATHS = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/kernel/notes",
    "/sys/kernel/vmcoreinfo",
)
"""Covered with /dev/null or an empty folder: they reveal the machine or the memory of other users."""

READONLY_PATHS = (
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/pressure",
    "/proc/sys",
    "/proc/sysrq-trigger",
)
"""They obey user id 0, not capabilities: writing there is writing to the machine. /sys as a whole is to be
mounted read-only for the same reason."""
