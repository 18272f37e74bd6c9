"""Waiting until a descriptor can be read or written, by poll(2).

select(2) knows no descriptor above 1023. A daemon with a hundred boxes has more.
"""

from __future__ import annotations

import select


def readable(fd: int, seconds: float) -> bool:
    """Whether something can be read, or the other side has closed, within that time. A pidfd becomes readable
    when its process has ended."""
    return _ready(fd, select.POLLIN, seconds)


def writable(fd: int, seconds: float) -> bool:
    """Whether something can be written within that time."""
    return _ready(fd, select.POLLOUT, seconds)


def _ready(fd: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))
