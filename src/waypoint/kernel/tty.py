"""The input queue of a terminal: what was typed and not read yet.

The kernel has no call to look at it, so it is read out and put back. Both are done through the slave side,
and the master side sees none of it: no echo, no signal, no special character takes effect. Only for a
terminal whose processes are all stopped.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import Any

_INPUT_FLAGS, _LOCAL_FLAGS, _CHARACTERS = 0, 3, 6
_REWRITES = termios.INLCR | termios.IGNCR | termios.ICRNL | termios.ISTRIP | termios.PARMRK
_TAKES_EFFECT = termios.ISIG | termios.IEXTEN | termios.ECHO | termios.ECHONL
_DISABLED = b"\0"


def _copy(mode: list[Any]) -> list[Any]:
    return [*mode[:_CHARACTERS], list(mode[_CHARACTERS])]


def take(slave: int) -> bytes:
    """Reads the queue empty. In canonical mode an unfinished line would stay in it."""
    mode = termios.tcgetattr(slave)
    raw = _copy(mode)
    raw[_LOCAL_FLAGS] &= ~(termios.ICANON | termios.ECHO)
    raw[_CHARACTERS][termios.VMIN] = raw[_CHARACTERS][termios.VTIME] = 0
    canonical = mode[_LOCAL_FLAGS] & termios.ICANON
    if canonical:
        termios.tcsetattr(slave, termios.TCSANOW, raw)
    try:
        (waiting,) = struct.unpack("i", fcntl.ioctl(slave, termios.FIONREAD, b"\0" * 4))
        typed = b""
        while len(typed) < waiting and (part := os.read(slave, waiting - len(typed))):
            typed += part
    finally:
        if canonical:
            termios.tcsetattr(slave, termios.TCSANOW, mode)
    end = mode[_CHARACTERS][termios.VEOF]
    # The queue holds an end of file as the character that stands for "disabled".
    return typed.replace(_DISABLED, end) if canonical and end != _DISABLED else typed


def put(slave: int, typed: bytes) -> None:
    """Fills the queue again, as it was before `take`. Needs CAP_SYS_ADMIN."""
    mode = termios.tcgetattr(slave)
    literal = _copy(mode)
    literal[_INPUT_FLAGS] &= ~_REWRITES
    literal[_LOCAL_FLAGS] &= ~_TAKES_EFFECT
    for number in (termios.VERASE, termios.VKILL):
        literal[_CHARACTERS][number] = _DISABLED
    termios.tcsetattr(slave, termios.TCSANOW, literal)
    try:
        for byte in typed:
            # Not through the master: the kernel would process that at some later time.
            fcntl.ioctl(slave, termios.TIOCSTI, bytes([byte]))
    finally:
        termios.tcsetattr(slave, termios.TCSANOW, mode)
