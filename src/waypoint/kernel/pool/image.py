"""pool.img: a sparse file with a btrfs in it, made, mounted and resized."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from waypoint.api.hints import Do, Hint
from waypoint.errors import MachineError, MissingFeature, NoSpace, SetupFailed, UsageError
from waypoint.kernel import atomic
from waypoint.kernel.pool import loop
from waypoint.kernel.pool.btrfs import volume_request
from waypoint.kernel.pool.protocol import opened
from waypoint.kernel.syscalls import (
    MS_NOATIME,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    ioctl_number,
    mount,
    syncfs,
)

BTRFS_IOC_RESIZE = ioctl_number(1, 0x94, 3, 4096)

MOUNT_FLAGS = MS_NOATIME | MS_NODEV | MS_NOSUID
MOUNT_OPTIONS = "discard=async"
"""docs/storage.md has the reasons, with measurements."""

_SECONDS = 120.0
"""For one program."""
MIB = 1 << 20
DEFAULT_SIZE_BYTES = 64 << 30
SMALLEST_SIZE_BYTES = 256 * MIB

_NO_LOOP_DEVICE = frozenset(
    {errno.ENOSPC, errno.ENOENT, errno.ENXIO, errno.EPERM, errno.ENODEV, errno.EINVAL}
)


def require_btrfs() -> None:
    """MissingFeature unless the kernel has btrfs and loop devices. Loads their modules if need be."""

    def has_btrfs() -> bool:
        return "\tbtrfs\n" in Path("/proc/filesystems").read_text()

    for module, exists, problem in (
        ("btrfs", has_btrfs, "this kernel has no btrfs"),
        ("loop", loop.CONTROL.exists, f"there are no loop devices here ({loop.CONTROL} is missing)"),
    ):
        if not exists() and (modprobe := _program("modprobe")):
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([modprobe, "-q", module], check=False, capture_output=True, timeout=_SECONDS)
        if not exists():
            raise MissingFeature(
                problem, hint=f"load the kernel's module with `modprobe {module}`, if it has one"
            )


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")


def _default_size_bytes(home: Path) -> int:
    """A cap, not an allocation: it keeps one session from filling the host's disk."""
    disk = os.statvfs(home)
    return min(DEFAULT_SIZE_BYTES, disk.f_bavail * disk.f_frsize * 8 // 10)


def _check_size(size_bytes: int) -> None:
    if size_bytes < SMALLEST_SIZE_BYTES:
        raise UsageError(
            f"a pool of {size_bytes // MIB} MiB is too small: {SMALLEST_SIZE_BYTES // MIB} MiB at least"
        )


def make_image(home: Path, size_bytes: int | None) -> None:
    """Create `pool.img`: complete, or not at all, also after a power cut."""
    size = (size_bytes or _default_size_bytes(home)) // MIB * MIB
    if size_bytes:
        _check_size(size)
    elif size < SMALLEST_SIZE_BYTES:
        raise NoSpace(
            f"not enough room for a pool in {home}: 80% of the free space is {size // MIB} MiB, "
            f"and it takes {SMALLEST_SIZE_BYTES // MIB} MiB",
            hint="make room on that disk, or put WAYPOINT_HOME on another one",
            path=str(home),
        )
    mkfs = _program("mkfs.btrfs")
    if not mkfs:
        raise MissingFeature(
            "mkfs.btrfs is not installed",
            hint=Hint("run ", Do("setup"), ", or install btrfs-progs"),
            program="mkfs.btrfs",
        )
    partial = home / "pool.img.partial"
    partial.unlink(missing_ok=True)
    try:
        with opened(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
            os.chmod(partial, 0o600)
            os.ftruncate(fd, size)
            options = ["--quiet", "--label", "waypoint", "--metadata", "dup", "--data", "single"]
            try:
                result = subprocess.run(
                    [mkfs, *options, str(partial)],
                    check=False,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_SECONDS,
                )
                failure = result.stderr.strip()[-500:] if result.returncode else None
            except subprocess.TimeoutExpired:
                failure = f"it took longer than {_SECONDS:g} s"
            if failure is not None:
                raise SetupFailed(
                    f"mkfs.btrfs failed on {partial}: {failure}", hint=Hint("see ", Do("doctor"))
                )
            os.fsync(fd)
        os.rename(partial, home / "pool.img")
    finally:
        partial.unlink(missing_ok=True)
    atomic.sync(home)


def mount_image(image: Path, root: Path) -> None:
    """Mount the file, on the loop device that it has or on a new one."""
    try:
        device, fd = loop.attach(image)
    except OSError as error:
        if error.errno in _NO_LOOP_DEVICE:
            raise MissingFeature(
                f"no loop device can be had for {image}: {error.strerror} ({error.filename or 'loop'})",
                hint="containers have to be given /dev/loop-control and /dev/loop*, and Linux 5.8 or newer",
            ) from error
        raise
    try:
        mount(device, root, "btrfs", MOUNT_FLAGS, MOUNT_OPTIONS)
    except OSError as error:
        if error.errno in {errno.ENODEV, errno.EPERM, errno.EACCES}:
            raise MissingFeature(
                f"the kernel refuses to mount btrfs: {error.strerror}", hint=Hint("see ", Do("doctor"))
            ) from error
        raise SetupFailed(
            f"{image} cannot be mounted: {error.strerror}",
            hint=f"`dmesg` tells why; `btrfs check {image}` examines it",
            path=str(image),
        ) from error
    finally:
        os.close(fd)
    mount("", root, "", MS_PRIVATE, "")


def resize_image(image: Path, root: Path, size_bytes: int) -> None:
    """Give a mounted file another cap. Shrinking moves data."""
    size = size_bytes // MIB * MIB
    _check_size(size)
    grows = size > image.stat().st_size
    device = loop.attached_to(image)
    if not device:
        raise MachineError(f"{image} is not attached to a loop device", path=str(image))
    _, device_fd = device
    try:
        if grows:
            os.truncate(image, size)
            loop.reread_size(device_fd)
        with opened(root) as fd:
            fcntl.ioctl(fd, BTRFS_IOC_RESIZE, volume_request("max" if grows else str(size)))
            syncfs(fd)
        if not grows:
            os.truncate(image, size)
            loop.reread_size(device_fd)
    finally:
        os.close(device_fd)
