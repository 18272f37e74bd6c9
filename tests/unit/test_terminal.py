"""The daemon's side of a terminal, without a box."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import termios
import time
import tty
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from waypoint.errors import SessionDead
from waypoint.model import Size
from waypoint.terminal.shell import Shell
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


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal whose shell is at its prompt; nothing reads what is typed."""
    master, slave = pty.openpty()
    terminal = Terminal(cast(Any, None), master, slave, os.getpid(), Size())
    monkeypatch.setattr(terminal, "_shell_in_front", lambda: True)
    announce(terminal)
    tty.setraw(slave)
    yield terminal
    terminal.close("the test is over")


def announce(terminal: Terminal) -> None:
    terminal.announce_shell(Shell(pid=7, key="key"))
    terminal.feed(b"\x1b]133;A;k=key\x07# \x1b]133;B;k=key;s=0;r=\x07")


def unread_bytes(terminal: Terminal) -> int:
    (size,) = struct.unpack("i", fcntl.ioctl(terminal._slave, termios.FIONREAD, b"\0" * 4))
    return int(size)


def test_a_command_that_the_shell_did_not_read_is_not_left_for_the_next_one(terminal: Terminal) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(terminal.run, "run1", "rm -rf .")
        while not unread_bytes(terminal):
            time.sleep(0.001)
        terminal.handle_exit(7, signal.SIGKILL)
        assert answer.result().exit_code == 137
    assert unread_bytes(terminal) == 0
    assert termios.tcgetattr(terminal._slave)[3] & termios.ICANON, (
        "the next shell starts with readline's modes"
    )


def test_a_shell_that_ends_while_a_command_waits_for_its_turn_to_be_typed(terminal: Terminal) -> None:
    with ThreadPoolExecutor(1) as pool:
        with terminal.no_typing():
            answer = pool.submit(terminal.run, "run1", "true")
            time.sleep(0.05)
            terminal.handle_exit(7, signal.SIGKILL)
        time.sleep(0.05)
        announce(terminal)
        while not unread_bytes(terminal):
            time.sleep(0.001)
        terminal.feed(b"\x1b]133;C;k=key;r=run1;l=0\x07out\r\n\x1b]133;D;0;k=key;r=run1;p=/\x07")
        result = answer.result(timeout=10)
    assert (result.output, result.exit_code, result.notice) == ("out\n", 0, None)


def test_a_command_that_comes_when_nothing_is_typed_any_more_is_not_in_the_state(terminal: Terminal) -> None:
    with ThreadPoolExecutor(1) as pool:
        terminal.stop_input()
        answer = pool.submit(terminal.run, "run1", "true")
        time.sleep(0.05)
        shell = terminal.freeze().shell
        assert shell
        assert (shell.ready, shell.running) == (True, None)
        terminal.take_input()
        while not unread_bytes(terminal):
            time.sleep(0.001)
        terminal.feed(b"\x1b]133;C;k=key;r=run1;l=0\x07out\r\n\x1b]133;D;0;k=key;r=run1;p=/\x07")
        assert answer.result(timeout=10).output == "out\n"


def test_a_shell_that_is_being_started_is_waited_for_and_not_called_busy(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_shell_in_front", lambda: bool(terminal.shell and terminal.shell.pid))
    terminal.announce_shell(Shell(pid=0, key="key"))
    terminal.feed(b"\x1b]133;A;k=key\x07# \x1b]133;B;k=key;s=0;r=\x07")
    with ThreadPoolExecutor(1) as pool:
        ready = pool.submit(terminal.wait_ready)
        time.sleep(0.1)
        assert not ready.done()
        terminal.set_shell_pid(7)
        ready.result(timeout=10)


def test_output_that_never_ends_does_not_keep_the_daemon(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint takes in what was printed before it: not what is printed faster than it is read."""
    pieces = 0

    def endless(_fd: int, length: int) -> bytes:
        nonlocal pieces
        pieces += 1
        assert pieces < 10_000, "it reads for ever"
        return (b"\x1b[2J\x1b#8" * length)[:length]

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", endless)
        terminal.drain()
    assert pieces < 100
