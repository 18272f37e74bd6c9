"""Loop devices: a file that the kernel treats as a disk.

All programs of a machine share them, so taking one has to survive races, and one that is left behind stays
until a reboot. Each is therefore configured by a single ioctl to clear itself: it exists as long as it is
open or mounted, even if the process that took it is killed in between.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import time
from pathlib import Path

# <linux/loop.h>
LOOP_GET_STATUS64 = 0x4C05
LOOP_SET_CAPACITY = 0x4C07
LOOP_CONFIGURE = 0x4C0A
LOOP_CTL_GET_FREE = 0x4C82
LO_FLAGS_AUTOCLEAR = 4
LO_FLAGS_DIRECT_IO = 16
LOOP_MAJOR = 7

CONTROL = Path("/dev/loop-control")
BLOCK_SIZE = 4096
"""The block size of every file system here: direct I/O then also works on disks that have no smaller one."""


def _device(number: int) -> Path:
    device = Path(f"/dev/loop{number}")
    if not device.exists():
        # A sandbox with a /dev of its own does not see new devices appear.
        with contextlib.suppress(FileExistsError):
            os.mknod(device, stat.S_IFBLK | 0o600, os.makedev(LOOP_MAJOR, number))
    return device


def devices_of(file: Path) -> list[str]:
    """The names of all loop devices that a file is attached to."""
    names = []
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # it may be released meanwhile
            if entry.read_text().strip() == str(file):
                names.append(entry.parts[3])
    return sorted(names)


def attached_to(file: Path) -> tuple[Path, int] | None:
    """The loop device that a file is attached to: its path, and an open descriptor that keeps it."""
    wanted = os.stat(file)
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        device = _device(int(entry.parts[3].removeprefix("loop")))
        try:
            fd = os.open(device, os.O_RDWR)
        except OSError:
            continue
        # The device may be released by its last user between the listing and the opening.
        with contextlib.suppress(OSError):
            status = fcntl.ioctl(fd, LOOP_GET_STATUS64, bytes(232))
            if struct.unpack_from("=QQ", status) == (wanted.st_dev, wanted.st_ino):
                return device, fd
        os.close(fd)
    return None


def attach(file: Path) -> tuple[Path, int]:
    """A loop device for a file, its path and an open descriptor: the one that it has, else a new one.

    The device goes away with its last user: close the descriptor once it is mounted. I/O is direct
    where the file's file system can do it (it is then cached once and not twice), else buffered.
    """
    if device := attached_to(file):
        return device
    backing = os.open(file, os.O_RDWR)
    try:
        control = os.open(CONTROL, os.O_RDWR)
        try:
            return _configure(control, backing, os.fsencode(file)[-63:])
        finally:
            os.close(control)
    finally:
        os.close(backing)


def _configure(control: int, backing: int, name: bytes) -> tuple[Path, int]:
    flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO
    info = struct.pack("=5Q4I64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, flags, name, b"", b"", 0, 0)
    request = struct.pack("=II", backing, BLOCK_SIZE) + info + bytes(64)
    for _ in range(100):
        device = _device(fcntl.ioctl(control, LOOP_CTL_GET_FREE))
        fd = os.open(device, os.O_RDWR)
        try:
            fcntl.ioctl(fd, LOOP_CONFIGURE, request)
        except OSError as error:
            os.close(fd)
            if error.errno != errno.EBUSY:  # another program took it first: try the next one
                raise
        else:
            return device, fd
    raise OSError(errno.EBUSY, "other programs take every free loop device", str(CONTROL))


def is_released(file: Path, *, patience_s: float) -> bool:
    """Whether no loop device uses a file; the kernel releases it a moment after the unmount."""
    deadline = time.monotonic() + patience_s
    while device := attached_to(file):
        os.close(device[1])
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def reread_size(fd: int) -> None:
    """Tell a device that its file has another size now."""
    fcntl.ioctl(fd, LOOP_SET_CAPACITY)
