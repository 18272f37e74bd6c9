"""The system calls Waypoint needs and Python's standard library does not offer.

One thin function per call: a few lines, the kernel's own names for constants, and one way to fail
(`oserror`). Nothing here knows what a session or a pool is. libc is called, and no program is executed,
because a checkpoint has milliseconds to spend and starting `mount` alone would take some of them.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

# mount(2)
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_NOATIME = 0x400
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

# unshare(2), setns(2)
CLONE_NEWTIME = 0x80
CLONE_NEWNS = 0x20000
CLONE_NEWCGROUP = 0x2000000
CLONE_NEWUTS = 0x4000000
CLONE_NEWIPC = 0x8000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

# ioprio_set(2)
IOPRIO_WHO_PROCESS = 1

# openat2(2)
RESOLVE_NO_MAGICLINKS = 0x2
RESOLVE_NO_SYMLINKS = 0x4
RESOLVE_BENEATH = 0x8
RESOLVE_IN_ROOT = 0x10
_SYS_OPENAT2 = 437  # the same on every architecture, as all numbers from 424 on
_SYS_PIDFD_GETFD = 438
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_SYS_OPEN_TREE = 428
_SYS_MOUNT_SETATTR = 442
_OPEN_TREE_CLONE = 0x1
_AT_EMPTY_PATH = 0x1000
_MOUNT_ATTR_IDMAP = 0x100000
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6

_IPC_RMID = 0

# kcmp(2)
KCMP_FILE = 0
KCMP_SYSVSEM = 6
_SYS_KCMP = {"x86_64": 312, "aarch64": 272}

# renameat2(2)
RENAME_NOREPLACE = 0x1

libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)


def oserror(syscall: str, path: str | Path | None = None) -> OSError:
    """The error of the call that was just made, for the caller to raise."""
    number = ctypes.get_errno()
    message = f"{syscall}: {os.strerror(number)}"
    return OSError(number, message) if path is None else OSError(number, message, str(path))


def mount(source: str | Path, target: str | Path, fstype: str, flags: int, data: str) -> None:
    """mount(2). An empty string stands for a source or a type that a change of an existing mount lacks."""
    place, kind, options = os.fsencode(target), fstype.encode() or None, os.fsencode(data) or None
    if libc.mount(os.fsencode(source), place, kind, flags, options) < 0:
        raise oserror("mount", target)


def umount(target: str | Path, flags: int = 0) -> None:
    """umount2(2)."""
    if libc.umount2(os.fsencode(target), flags) < 0:
        raise oserror("umount2", target)


def detached_mount(fstype: str, **options: str) -> int:
    """fsopen(2), fsconfig(2), fsmount(2): a descriptor of the root of a file system that is mounted
    nowhere."""
    context = libc.syscall(ctypes.c_long(_SYS_FSOPEN), ctypes.c_char_p(fstype.encode()), ctypes.c_uint(1))
    if context < 0:
        raise oserror("fsopen")
    try:
        for key, value in options.items():
            words = (ctypes.c_char_p(key.encode()), ctypes.c_char_p(value.encode()), ctypes.c_int(0))
            setting = (ctypes.c_int(context), ctypes.c_uint(_FSCONFIG_SET_STRING), *words)
            if libc.syscall(ctypes.c_long(_SYS_FSCONFIG), *setting) < 0:
                raise oserror("fsconfig", key)
        create = (ctypes.c_int(context), ctypes.c_uint(_FSCONFIG_CMD_CREATE), None, None, ctypes.c_int(0))
        if libc.syscall(ctypes.c_long(_SYS_FSCONFIG), *create) < 0:
            raise oserror("fsconfig")
        flags = (ctypes.c_uint(1), ctypes.c_uint(0))
        root = libc.syscall(ctypes.c_long(_SYS_FSMOUNT), ctypes.c_int(context), *flags)
        if root < 0:
            raise oserror("fsmount")
        try:
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
        finally:
            os.close(root)
    finally:
        os.close(context)


def idmapped_mount(place: int, userns: int) -> int:
    """open_tree(2), mount_setattr(2): a descriptor of a mount of its own of what is open at `place`, mounted
    nowhere, that shows files with the ids they have in a user namespace."""
    flags = (ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH),)
    tree = libc.syscall(ctypes.c_long(_SYS_OPEN_TREE), ctypes.c_int(place), ctypes.c_char_p(b""), *flags)
    if tree < 0:
        raise oserror("open_tree")
    attributes = ctypes.create_string_buffer(struct.pack("=4Q", _MOUNT_ATTR_IDMAP, 0, 0, userns))
    where = (ctypes.c_int(tree), ctypes.c_char_p(b""), ctypes.c_uint(_AT_EMPTY_PATH))
    size = ctypes.c_size_t(32)
    if libc.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), *where, attributes, size) < 0:
        error = oserror("mount_setattr")
        os.close(tree)
        raise error
    return int(tree)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def openat2(dir_fd: int, path: str | bytes, flags: int, *, mode: int = 0, resolve: int = 0) -> int:
    """openat2(2): open a path; `resolve` forbids ways in which it could leave a folder."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    name, size = ctypes.c_char_p(os.fsencode(path)), ctypes.c_size_t(ctypes.sizeof(how))
    fd = libc.syscall(ctypes.c_long(_SYS_OPENAT2), ctypes.c_int(dir_fd), name, ctypes.byref(how), size)
    if fd < 0:
        raise oserror("openat2", os.fsdecode(path))
    return int(fd)


def open_by_handle(mount_fd: int, kind: int, handle: bytes) -> int:
    """open_by_handle_at(2): a file of the file system that `mount_fd` is on, as O_PATH."""
    packed = ctypes.create_string_buffer(struct.pack("=Ii", len(handle), kind) + handle)
    fd = libc.open_by_handle_at(mount_fd, packed, os.O_PATH | os.O_CLOEXEC)
    if fd < 0:
        raise oserror("open_by_handle_at")
    return int(fd)


def inotify_add_watch(inotify: int, path: str, mask: int) -> int:
    """inotify_add_watch(2): the number of the watch."""
    number = libc.inotify_add_watch(inotify, os.fsencode(path), ctypes.c_uint32(mask))
    if number < 0:
        raise oserror("inotify_add_watch", path)
    return int(number)


def renameat2(old_fd: int, old: str, new_fd: int, new: str, flags: int) -> None:
    """renameat2(2): a rename that can refuse to replace an existing file."""
    if libc.renameat2(old_fd, os.fsencode(old), new_fd, os.fsencode(new), flags) < 0:
        raise oserror("renameat2", new)


def syncfs(fd: int) -> None:
    """syncfs(2): write out everything that is dirty on the file system of this descriptor."""
    if libc.syncfs(fd) < 0:
        raise oserror("syncfs")


def setns(fd: int, nstype: int) -> None:
    """setns(2)."""
    if libc.setns(fd, nstype) < 0:
        raise oserror("setns")


def unshare(flags: int) -> None:
    """unshare(2)."""
    if libc.unshare(flags) < 0:
        raise oserror("unshare")


def pidfd_open(pid: int) -> int:
    """pidfd_open(2), with the pid in its error; the kernel makes the descriptor close-on-exec."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        raise OSError(error.errno, f"pidfd_open: {os.strerror(error.errno or 0)}", str(pid)) from error


def pidfd_getfd(process: int, fd: int) -> int:
    """pidfd_getfd(2): a close-on-exec duplicate of a descriptor of another process."""
    duplicate = libc.syscall(
        ctypes.c_long(_SYS_PIDFD_GETFD), ctypes.c_int(process), ctypes.c_int(fd), ctypes.c_uint(0)
    )
    if duplicate < 0:
        raise oserror("pidfd_getfd")
    return int(duplicate)


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def process_vm_readv(pid: int, address: int, size: int) -> bytes:
    """Memory of another process. Unlike a read of /proc/PID/mem it waits for memory that comes later."""
    data = ctypes.create_string_buffer(size)
    ours, theirs = _Iovec(ctypes.addressof(data), size), _Iovec(address, size)
    one, flags = ctypes.c_ulong(1), ctypes.c_ulong(0)
    length = libc.process_vm_readv(pid, ctypes.byref(ours), one, ctypes.byref(theirs), one, flags)
    if length < 0:
        raise oserror("process_vm_readv")
    return data.raw[:length]


def kcmp(pid: int, other: int, kind: int, fd: int = 0, other_fd: int = 0) -> bool:
    """kcmp(2): whether two processes share something; of KCMP_FILE, whether two descriptors are one open
    file."""
    number = ctypes.c_long(_SYS_KCMP[os.uname().machine])
    words = (ctypes.c_int(pid), ctypes.c_int(other), ctypes.c_int(kind))
    result = libc.syscall(number, *words, ctypes.c_ulong(fd), ctypes.c_ulong(other_fd))
    if result < 0:
        raise oserror("kcmp")
    return bool(result == 0)


def remove_shared_memory(segment: int) -> None:
    """shmctl(2), IPC_RMID: it ends when no process has it attached any more."""
    if libc.shmctl(ctypes.c_int(segment), ctypes.c_int(_IPC_RMID), None) < 0:
        raise oserror("shmctl")


def io_priority(task: int) -> int:
    """ioprio_get(2) of one task."""
    words = (ctypes.c_int(IOPRIO_WHO_PROCESS), ctypes.c_int(task))
    priority = libc.syscall(ctypes.c_long(_ioprio(get=True)), *words)
    if priority < 0:
        raise oserror("ioprio_get")
    return int(priority)


def set_io_priority(task: int, priority: int) -> None:
    """ioprio_set(2) of one task."""
    words = (ctypes.c_int(IOPRIO_WHO_PROCESS), ctypes.c_int(task), ctypes.c_int(priority))
    if libc.syscall(ctypes.c_long(_ioprio(get=False)), *words) < 0:
        raise oserror("ioprio_set")


def _ioprio(*, get: bool) -> int:
    return (251 if os.uname().machine == "x86_64" else 30) + get


def ioctl_number(direction: int, kind: int, number: int, size: int) -> int:
    """The kernel's _IOC macro; a direction is 1 for _IOW, 2 for _IOR, 3 for _IOWR."""
    return direction << 30 | size << 16 | kind << 8 | number
