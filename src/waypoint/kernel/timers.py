"""timerfd_create(2): timers of other processes, read, stopped and set through a duplicate descriptor."""

from __future__ import annotations

import ctypes
import fcntl
import os
from dataclasses import dataclass

from waypoint.kernel.syscalls import ioctl_number, libc, oserror

TARGET = "anon_inode:[timerfd]"
"""What a descriptor of this kind leads to in /proc."""
_SET_TICKS = ioctl_number(1, ord("T"), 0, 8)


class _Setting(ctypes.Structure):
    """struct itimerspec: period, then time left, each in seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("period_s", "period_ns", "left_s", "left_ns"))


@dataclass(frozen=True)
class Stopped:
    """A stopped timer, and what it is set to when it continues."""

    fd: int
    _setting: _Setting
    _ticks: int

    def resume(self) -> None:
        """Continues where it stopped, and closes the descriptor."""
        try:
            _set(self.fd, self._setting)
            if self._ticks:
                fcntl.ioctl(self.fd, _SET_TICKS, self._ticks.to_bytes(8, "little"))
        finally:
            os.close(self.fd)


def _set(fd: int, setting: _Setting) -> None:
    if libc.timerfd_settime(ctypes.c_int(fd), ctypes.c_int(0), ctypes.byref(setting), None):
        raise oserror("timerfd_settime")


def stop(fd: int) -> Stopped:
    """Stops the timer of a descriptor. `Stopped.resume` closes the descriptor."""
    setting = _Setting()
    if libc.timerfd_gettime(ctypes.c_int(fd), ctypes.byref(setting)):
        raise oserror("timerfd_gettime")
    with open(f"/proc/self/fdinfo/{fd}") as lines:
        ticks = next((int(line.split()[1]) for line in lines if line.startswith("ticks:")), 0)
    _set(fd, _Setting())
    return Stopped(fd, setting, ticks)
