"""The actor in a session: built once, given a script, waited for, and asked what it sees of itself."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fingerprint.rest import is_settled
from tests.fingerprint.trees import Tree, script
from tests.waiting import until

import waypoint
from waypoint.kernel import processes

_SOURCES = Path(__file__).parents[1] / "native" / "actor"
_FOLDER = "/tmp/actors"
_HEADING_BYTES, _ANSWER_BYTES, _MAX_ACTORS = 16, 2048, 1024
_BYTES = _HEADING_BYTES + _MAX_ACTORS * _ANSWER_BYTES
_SYS_FUTEX, _FUTEX_WAKE = 202, 1
_TIME_LIMIT_SECONDS = 300.0
"""Some actors run only when no other program wants to (SCHED_IDLE)."""
_LOOKS = 30
_PSELECT6 = "270 "
"""In which readline waits."""
_libc = ctypes.CDLL(None, use_errno=True)


def build(folder: Path) -> Path:
    """The program, in a folder that exists."""
    program = folder / "actor"
    sources = [str(path) for path in sorted(_SOURCES.glob("*.c"))]
    flags = ["-O1", "-static", "-s", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, "-o", str(program), *sources], check=True)
    return program


def install(session: waypoint.Session, program: Path) -> None:
    """Brings the program into a session."""
    session.run(f"mkdir -m 777 {_FOLDER}").check()
    session.copy_in(str(program), f"{_FOLDER}/actor")


class _Control:
    """The file that the actors of a box share with the host (native/actor/actor.h)."""

    def __init__(self, keeper: int) -> None:
        with open(f"/proc/{keeper}/root{_FOLDER}/control", "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BYTES)

    def _word(self, index: int) -> int:
        return int.from_bytes(self._memory[index * 4 : index * 4 + 4], "little")

    @property
    def busy(self) -> int:
        return self._word(1)

    @property
    def failed(self) -> int:
        return self._word(3)

    def ask(self) -> int:
        """Asks all of them; the number of the question."""
        number = self._word(0) + 1
        self._memory[0:4] = number.to_bytes(4, "little")
        word = (ctypes.c_char * 4).from_buffer(self._memory)
        places = (ctypes.c_int(_FUTEX_WAKE), ctypes.c_int(1 << 30), None, None, ctypes.c_int(0))
        _libc.syscall(ctypes.c_long(_SYS_FUTEX), ctypes.byref(word), *places)
        del word
        return number

    def answers(self, number: int) -> dict[int, str]:
        """The answers to a question, by the pid of who gave them."""
        result = {}
        for slot in range(min(self._word(2), _MAX_ACTORS)):
            at = _HEADING_BYTES + slot * _ANSWER_BYTES
            answered, pid = (int.from_bytes(self._memory[at + i : at + i + 4], "little") for i in (0, 4))
            if answered == number:
                text = self._memory[at + 16 : at + _ANSWER_BYTES]
                result[pid] = text.partition(b"\0")[0].decode()
        return result

    def close(self) -> None:
        self._memory.close()


@contextlib.contextmanager
def _control(keeper: int) -> Iterator[_Control]:
    control = _Control(keeper)
    try:
        yield control
    finally:
        control.close()


def start(session: waypoint.Session, keeper: int, trees: Sequence[Tree]) -> int:
    """Starts trees and waits until they rest. Returns how many operations failed."""
    session.run(f"cat > {_FOLDER}/script", stdin=script(trees)).check()
    session.run(f"cd {_FOLDER}; ./actor {_FOLDER}/script </dev/null >log 2>&1 &").check()
    session.run("cd /").check()
    place = Path(f"/proc/{keeper}/root{_FOLDER}/control")
    until(lambda: place.exists() and place.stat().st_size >= _BYTES, _TIME_LIMIT_SECONDS)
    with _control(keeper) as control:
        until(lambda: not control.busy or _is_at_rest(keeper, control), _TIME_LIMIT_SECONDS)
        until(lambda: _is_at_prompt(keeper), _TIME_LIMIT_SECONDS)
        return control.failed


def _is_at_rest(keeper: int, control: _Control) -> bool:
    """Whether nothing happens any more, though some actors have not said that they rest: a script can end a
    process too, by a signal that another operation brought about."""
    busy = control.busy
    for _ in range(_LOOKS):
        if not is_settled(keeper) or control.busy != busy:
            return False
        time.sleep(0.01)
    return True


def _is_at_prompt(keeper: int) -> bool:
    """Whether the session's shell waits for input, and not for a program of its prompt."""
    shell = next(process for process in processes.below(keeper) if process.comm == "bash")
    with open(f"/proc/{shell.host_pid}/syscall") as file:
        return file.read().startswith(_PSELECT6)


def ask(keeper: int) -> dict[str, str]:
    """What each actor sees of itself: "17 dumpable" → "1". Stopped ones do not answer."""
    with _control(keeper) as control:
        number = control.ask()
        until(lambda: len(control.answers(number)) >= _expected(keeper), _TIME_LIMIT_SECONDS)
        result = {}
        for pid, text in control.answers(number).items():
            for line in text.splitlines():
                name, _, value = line.rpartition(" ")
                result[f"{pid} {name}"] = value
        return result


def _expected(keeper: int) -> int:
    """How many actors can answer: they have the control file mapped, and are not stopped."""
    count = 0
    for process in processes.below(keeper):
        if process.state in "TZ":
            continue
        with contextlib.suppress(OSError), open(f"/proc/{process.host_pid}/maps", "rb") as file:
            count += f"{_FOLDER}/control".encode() in file.read()
    return count


def end(keeper: int, tree: int) -> None:
    """Ends the processes of a tree."""
    numbers = trees_of(keeper)
    members = [process for process in processes.below(keeper) if numbers.get(process.pid) == tree]
    for process in members:
        with contextlib.suppress(ProcessLookupError):  # it went with another one
            os.kill(process.host_pid, signal.SIGKILL)
    until(lambda: all(processes.is_over(process.host_pid) for process in members), _TIME_LIMIT_SECONDS)


def trees_of(keeper: int) -> dict[int, int]:
    """The number of the tree that each process of the box belongs to: by its folder, or its parent's."""
    result: dict[int, int] = {}
    numbers = {}
    for process in processes.below(keeper):
        numbers[process.host_pid] = process.pid
        folder = ""
        with contextlib.suppress(OSError):
            folder = os.readlink(f"/proc/{process.host_pid}/cwd")
        digits = folder.removeprefix(f"{_FOLDER}/tree").split("/")[0].split(" ")[0]
        above = result.get(numbers.get(process.parent_host_pid, 0))
        if digits.isdecimal():
            result[process.pid] = int(digits)
        elif above is not None:
            result[process.pid] = above
    return result
