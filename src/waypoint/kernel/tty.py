"""What was typed into a terminal and not read yet: there is no way to look at it in the kernel's queue, so it
is taken out and put back.

Both are done through the slave, and nothing of it is seen on the other side: no echo, no signal, no
character that acts. Only for a terminal whose users all stand still.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import Any

_INPUT_FLAGS, _LOCAL_FLAGS, _CHARACTERS = 0, 3, 6
_REWRITES = termios.INLCR | termios.IGNCR | termios.ICRNL | termios.ISTRIP | termios.PARMRK
_ACTS = termios.ISIG | termios.IEXTEN | termios.ECHO | termios.ECHONL
_DISABLED = b"\0"


def _copy(mode: list[Any]) -> list[Any]:
    return [*mode[:_CHARACTERS], list(mode[_CHARACTERS])]


def take(slave: int) -> bytes:
    """Empties the queue. Line by line reading would leave an unfinished line in it."""
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
    # The kernel keeps an end of file, which is no character, as the one that stands for "none".
    return typed.replace(_DISABLED, end) if canonical and end != _DISABLED else typed


def put(slave: int, typed: bytes) -> None:
    """Fills the queue again, as it was before `take`. Needs CAP_SYS_ADMIN."""
    mode = termios.tcgetattr(slave)
    literal = _copy(mode)
    literal[_INPUT_FLAGS] &= ~_REWRITES
    literal[_LOCAL_FLAGS] &= ~_ACTS
    for number in (termios.VERASE, termios.VKILL):
        literal[_CHARACTERS][number] = _DISABLED
    termios.tcsetattr(slave, termios.TCSANOW, literal)
    try:
        for byte in typed:
            # Not through the master, where the kernel would get to it at some later time.
            fcntl.ioctl(slave, termios.TIOCSTI, bytes([byte]))
    finally:
        termios.tcsetattr(slave, termios.TCSANOW, mode)
