"""The daemon's side of a terminal, without a box."""

from __future__ import annotations

import os
import pty
from typing import Any, cast

import pytest

from waypoint.errors import SessionDead
from waypoint.model import Size
from waypoint.terminal.terminal import Terminal


def test_what_is_typed_too_late_does_not_reach_another_terminal() -> None:
    """Descriptors are used again at once: the next session's terminal has the numbers of the last one's."""
    master, slave = pty.openpty()
    gone = Terminal(cast(Any, None), master, slave, os.getpid(), Size())
    gone.close("its box has ended")
    other = pty.openpty()
    try:
        assert other == (master, slave)
        with pytest.raises(SessionDead):
            gone.write(b"rm -rf .\r")
        os.set_blocking(slave, False)
        with pytest.raises(BlockingIOError):
            os.read(slave, 100)
        assert gone.foreground() is None
    finally:
        for fd in other:
            os.close(fd)
