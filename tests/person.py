"""A person at a terminal, who runs programs and sees what they show."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

from waypoint.terminal.screen import Screen

SECONDS = 20.0
DETACH = b"\x1dd"


class Person:
    """Runs a program on a terminal of their own, and sees what a person would see on it."""

    def __init__(self, argv: list[str], rows: int = 24, columns: int = 80, **more: Any) -> None:
        """`more`: of Popen."""
        self._master, self._slave = os.openpty()
        self.screen = Screen(rows, columns)
        self.resize(rows, columns)
        self.mode = termios.tcgetattr(self._slave)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *argv],
            env={**os.environ, "TERM": "xterm-256color", **more.pop("env", {})},
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            **more,
        )

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def look(self, seconds: float = 0.0) -> str:
        """What the terminal shows, after reading on for that long."""
        deadline = time.monotonic() + seconds
        while select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            with contextlib.suppress(OSError):
                self.screen.feed(os.read(self._master, 1 << 16))
        return self.screen.text()

    def sees(self, what: str | Callable[[str], bool]) -> str:
        """Waits until it is to be seen."""
        deadline = time.monotonic() + SECONDS
        while True:
            shown = self.look(0.02)
            if what in shown if isinstance(what, str) else what(shown):
                return shown
            assert time.monotonic() < deadline, f"{what!r} is not to be seen:\n{shown}"

    def leaves(self) -> int:
        """The program's exit status; its last words are read."""
        deadline = time.monotonic() + SECONDS
        while self.process.poll() is None:
            self.look(0.02)
            assert time.monotonic() < deadline, f"it does not end:\n{self.look()}"
        self.look(0.05)
        return self.process.returncode

    def terminal_is_as_before(self) -> bool:
        return termios.tcgetattr(self._slave) == self.mode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


class House:
    """The command line, and the people at their terminals."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self.people: list[Person] = []

    def __call__(self, *words: str) -> str:
        printed: str = self._run(*words, check=True).out
        return printed

    def person(self, *words: str, rows: int = 24, columns: int = 80, **more: Any) -> Person:
        command = [sys.executable, "-P", "-m", "waypoint", *words]
        self.people.append(Person(command, rows, columns, **more))
        return self.people[-1]
