"""A session's terminal: its screen, who watches it, and the commands that are run in its shell.

The shell marks its prompt and the start and end of every command (shell/integration.bash). A command given
to `run` is typed into readline as one quoted word behind a key sequence that first puts aside what a
person may have been typing; its output is exactly what the terminal prints between the two marks of
that run, with the terminal's own "\\r\\n" turned back into "\\n". The typing itself is not shown: watchers
see the command as if it had been typed.

One thread (`Pump`) reads all terminals. Everything a terminal does happens under its lock.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from waypoint.box.keeper import Keeper
from waypoint.errors import SessionBusy, SessionDead, UsageError
from waypoint.kernel import processes
from waypoint.model import Actor, Record, RunResult, Size
from waypoint.terminal import escapes
from waypoint.terminal.recording import Excerpt, Happened, Recording
from waypoint.terminal.screen import Screen

_STASH, _UNSTASH, _PASTE, _PASTE_END = b"\x18\x1ds", b"\x18\x1du", b"\x18\x1dp", b"\x1b[201~"
_MARK = re.compile(rb"\x1b\]133;([A-EJ])((?:;[^\x07\x1b]*)?)\x07")
_MARK_START = b"\x1b]133;"
_MOST_MARK_BYTES = 32 << 10
_READ_BYTES = 1 << 16
OUTPUT_LIMIT_BYTES = 1 << 20
_WATCHER_LIMIT_BYTES = 1 << 20
_READY_SECONDS = 30.0
_QUIET_SECONDS = 0.1
_BRIEF_SECONDS = 1.0
"""How long a command waits for what somebody typed before it, when no program has the terminal."""
_BLIND_SECONDS = 0.02
"""How long the mark in the prompt may take before the terminal is asked whether readline reads."""
_MOST_TYPED_BYTES = 1 << 20
_INTERRUPTS = ((signal.SIGINT, 1.0), (signal.SIGTERM, 1.0), (signal.SIGKILL, 0.5))
"""After a timeout: what is sent to the foreground job, and how long that may take."""
_LAST_INTERRUPTS = 20


class Shell(Record, frozen=True):
    """The shell of a terminal: what a checkpoint has to remember of it."""

    pid: int
    key: str
    ready: bool = False
    came_up: bool = False
    """Whether it has ever been ready."""
    prompting: bool = False
    """Whether its prompt is about to stand."""
    running: str | None = None
    """The run it is in, None when none, "" when a person typed the command."""
    stashed: bool = False
    """Whether a line that a person was typing is put aside until the prompt is back."""
    cwd: str = "/"
    command: str | None = None
    """What it runs, where that is known."""


class TerminalState(Record, frozen=True):
    """What a terminal needs to go on in another box."""

    screen: bytes
    shell: Shell | None
    size: Size


@dataclass
class Run:
    """A command on its way through the shell."""

    id: str
    command: str
    limit: int
    on_output: Callable[[bytes], None] | None
    silent: bool = False
    actor: Actor = "person"
    timed_out: bool = False
    began: threading.Event = field(default_factory=threading.Event)
    """Set when its output starts, or when there will be none."""
    jobs: bytearray | None = None
    """What the shell had to say about its jobs before: for the terminal, no part of the output."""
    done: threading.Event = field(default_factory=threading.Event)
    exit_code: int | None = None
    notice: str | None = None
    gone: str | None = None
    """Why there will be no result: the session was restored or ended meanwhile."""
    kept: Excerpt = field(init=False)
    held_return: bool = False
    """Whether the last byte seen was a "\\r" that may belong to a "\\r\\n"."""

    def __post_init__(self) -> None:
        self.kept = Excerpt(self.limit // 2)

    def take(self, data: bytes) -> None:
        """Output of the command, as the terminal printed it."""
        if self.held_return:
            data = b"\r" + data
        self.held_return = data.endswith(b"\r")
        if self.held_return:
            data = data[:-1]
        self._keep(data.replace(b"\r\n", b"\n"))

    def finish(self) -> None:
        if self.held_return:
            self.held_return = False
            self._keep(b"\r")
        if self.on_output and self.kept.tail:
            self.on_output(self.output()[0][len(self.kept.head) :])

    def _keep(self, data: bytes) -> None:
        first = self.kept.add(data)
        if self.on_output and first:
            self.on_output(first)

    def output(self) -> tuple[bytes, bool]:
        """What is kept of the output, and whether that is not all of it."""
        left_out = self.kept.left_out_bytes
        notice = f"\n[waypoint: {left_out:,} bytes left out here]\n".encode() if left_out else b""
        return bytes(self.kept.head) + notice + self.kept.tail, bool(left_out)


@dataclass(eq=False)
class Watcher:
    """Somebody who is shown the terminal. Neither call may block."""

    send: Callable[[bytes], None]
    ended: Callable[[str], None]


class Terminal:
    """The terminal of one box. Dies with it; a restore makes another and moves the watchers over."""

    def __init__(self, events: Keeper, master: int, slave: int, box_pid: int, size: Size) -> None:
        self.events = events
        """The connection on which the keeper speaks unasked."""
        self._master, self._slave, self._box_pid = master, slave, box_pid
        self.lock = threading.RLock()
        self.screen = Screen(size.rows, size.columns)
        self.watchers: list[Watcher] = []
        self.shell: Shell | None = None
        self._shell_host_pid: int | None = None
        self._state_changed = threading.Condition(self.lock)
        self._run: Run | None = None
        self._turn = threading.Lock()
        self._typing = threading.Lock()
        self._kept = b""
        self.closed = False
        self.last_command: str | None = None
        """What was run last, through `run` or by somebody who typed it."""
        self.when_typed: Callable[[], None] | None = None
        """Called, not to block, when the shell is at its prompt again after somebody typed a command."""
        self._was_typed = False
        self._said: str | None = None
        """What the shell says was typed, just before it says that it ended."""
        self.when_happened: Callable[[Happened], None] | None = None
        """Called, not to block, with everything that happens here."""
        self._recording = Recording(self._happened, size)
        os.set_blocking(master, False)

    # ---- output ------------------------------------------------------------------------------

    def read(self) -> bool:
        """Takes what the terminal has printed; False when it has nothing more."""
        with self.lock:
            if self.closed:
                return False
            try:
                data = os.read(self._master, _READ_BYTES)
            except BlockingIOError:
                return False
            except OSError:
                return False
            if not data:
                return False
            self._feed(data)
            return True

    def drain(self) -> None:
        """Takes everything that has been printed so far."""
        while self.read():
            pass

    def feed(self, data: bytes) -> None:
        with self.lock:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        data = self._kept + data
        self._kept = b""
        at = 0
        while True:
            start = data.find(_MARK_START, at)
            if start < 0:
                break
            mark = _MARK.match(data, start)
            if mark is None:
                end = data.find(b"\x07", start)
                if end < 0 and len(data) - start < _MOST_MARK_BYTES:
                    self._print(data[at:start])
                    self._kept = data[start:]
                    return
                self._print(data[at : start + len(_MARK_START)])
                at = start + len(_MARK_START)
                continue
            self._print(data[at:start])
            at = mark.end()
            if not self._marked(mark.group(1).decode(), mark.group(2)):
                self._print(mark.group(0))
        rest = data[at:]
        # The beginning of a mark may be cut off at the end of what was read.
        for length in range(min(len(_MARK_START) - 1, len(rest)), 0, -1):
            if _MARK_START.startswith(rest[-length:]):
                self._kept, rest = rest[-length:], rest[:-length]
                break
        self._print(rest)

    def _print(self, data: bytes) -> None:
        if not data:
            return
        run = self._run
        if run:
            if not run.began.is_set():
                if run.jobs is not None:
                    run.jobs += data
                return  # the echo of our own typing
            run.take(data)
            if run.silent:
                return
        self._show(data)

    def _happened(self, what: Happened) -> None:
        if self.when_happened:
            self.when_happened(what)

    def between(self, *, quiet: bool = False) -> None:
        """What was printed at the prompt is told of, if nobody types there. `quiet`: not each time, if there
        is much of that."""
        with self.lock:
            self._recording.between(quiet=quiet)

    def cut(self) -> None:
        """Everything shown so far is told of: somebody else is going to hear the rest."""
        with self.lock:
            self._recording.cut()

    def _show(self, data: bytes) -> None:
        self._recording.show(data)
        self.screen.feed(data)
        for watcher in list(self.watchers):
            watcher.send(data)

    def _marked(self, kind: str, rest: bytes) -> bool:
        """Handles a mark of our own shell; False when it is somebody else's."""
        # What comes last may be anything: a folder, a command.
        told = rest.decode(errors="replace").partition(";c=")[0].partition(";p=")[0]
        words = told.lstrip(";").split(";")
        values = dict(word.split("=", 1) for word in words if "=" in word)
        shell = self.shell
        if shell is None or values.get("k") != shell.key:
            return False
        run = self._run
        if kind == "A":
            self._set_shell(prompting=True)
            self._recording.prompting()
        elif kind == "B":
            # Usually D has told it; but people may have thrown out the hook that prints D.
            if run and run.began.is_set() and values.get("r") == run.id:
                self._ended(run, values.get("s", ""))
            self._set_shell(ready=True, came_up=True, prompting=False, running=None, command=None)
            self._recording.prompt()
            if shell.stashed and self._run is None:
                self._unstash()
            if self._was_typed and self.when_typed:
                self.when_typed()
            self._was_typed = False
        elif kind == "J":
            if run and not run.began.is_set():
                run.jobs = bytearray()
        elif kind == "C":
            run_id = values.get("r", "")
            if run and not run.began.is_set() and run.id == run_id:
                stashed = values.get("l", "0") != "0"
                # Putting the typed line aside drew the prompt once more: it was ready again until now.
                self._set_shell(ready=False, prompting=False, stashed=stashed)
                if not run.silent:
                    shown = run.command.replace("\n", "\r\n").encode()
                    self._set_shell(command=run.command)
                    self._recording.typing()
                    self._show((b"\r\n" if stashed else b"") + shown + b"\r\n" + (run.jobs or b""))
                    self._recording.began(run.command, shell.cwd, typed=False, actor=run.actor)
                run.began.set()
            elif run is None:
                self._was_typed = True
                self._set_shell(ready=False, prompting=False, running=run_id, command=None)
                self._recording.began(None, shell.cwd, typed=True)
        elif kind == "E":
            self._said = _typed_command(rest.decode(errors="replace"), self._recording)
        elif kind == "D":
            where = rest.decode(errors="replace").partition(";p=")[2]
            if run and run.began.is_set() and values.get("r") == run.id:
                self._ended(run, words[0])
            elif run is None:
                self._recording.ended(int(words[0]) if words[0].isdigit() else None, self._said)
                self.last_command = self._said or self.last_command
            self._said = None
            if run is None or run.began.is_set():
                self._set_shell(cwd=where or shell.cwd, running=None, ready=False, command=None)
        return True

    def _ended(self, run: Run, status: str) -> None:
        run.exit_code = int(status) if status.isdigit() else None
        if run.silent:
            self._recording.prompting()
            self._show(b"\r\x1b[K")  # the prompt is about to be drawn where it is already
        self._end_run(run)

    def _unstash(self) -> None:
        """Brings back the line that was put aside. Before anybody else can type: the prompt has just come."""
        with contextlib.suppress(OSError):
            os.write(self._master, _UNSTASH)
            self._set_shell(stashed=False)

    def _set_shell(self, **changes: Any) -> None:
        assert self.shell
        self.shell = msgspec.structs.replace(self.shell, **changes)
        self._state_changed.notify_all()

    def _end_run(self, run: Run) -> None:
        run.finish()
        self._run = None
        run.began.set()
        run.done.set()
        if not run.silent:
            self._recording.ended(run.exit_code, timed_out=run.timed_out)

    # ---- the shell ---------------------------------------------------------------------------

    def started(self, shell: Shell) -> None:
        """A shell was started (or restored) in this terminal."""
        with self.lock:
            self.shell = shell
            self._shell_host_pid = None
            if shell.running is not None:
                self._recording.began(shell.command, shell.cwd, typed=shell.running == "", already=True)
            elif shell.ready:
                self._recording.prompt()
            self._state_changed.notify_all()

    def shell_pid(self, pid: int) -> None:
        """The pid of the shell that was announced with `started`."""
        with self.lock:
            self._set_shell(pid=pid)

    def exited(self, pid: int, status: int) -> None:
        """A child of the anchor ended; if it was the shell, its run ends with it."""
        self.drain()
        with self.lock:
            if self.shell is None or self.shell.pid != pid:
                return
            run = self._run
            if run:
                run.exit_code = processes.exit_code(status)
                run.notice = "the shell ended; a new one was started"
                self._end_run(run)
            else:
                self._recording.ended(None, self._said)
            self.shell = None
            self._state_changed.notify_all()

    def find_shell(self) -> None:
        """Looks up which process the shell is, for whoever asks next and is in a hurry."""
        if self._shell_host_pid is None and self.shell:
            for process in processes.below(self._box_pid):
                if process.pid == self.shell.pid:
                    self._shell_host_pid = process.host_pid

    def _shell_in_front(self) -> bool:
        """Whether the shell's own process group is the terminal's foreground."""
        assert self.shell
        self.find_shell()
        return self._foreground_group() in (self._shell_host_pid, None)

    def _foreground_group(self) -> int | None:
        """The foreground group of the terminal, as the host numbers it."""
        with self.lock:
            if self.closed:
                return None
            try:
                return int(struct.unpack("i", fcntl.ioctl(self._master, termios.TIOCGPGRP, b"\0" * 4))[0])
            except OSError:
                return None

    def foreground(self) -> str | None:
        """The command that occupies the shell, None when it is at its prompt."""
        with self.lock:
            if self.shell is None:
                return None
            if not self._shell_in_front():
                group = self._foreground_group()
                process = processes.read(group) if group else None
                return process.command if process else "a program"
            if self._run:
                return self._run.command
            if self.shell.running is not None:
                return "a command"
            return None

    def wait_ready(self, seconds: float = _READY_SECONDS) -> None:
        """Waits until the shell stands at its prompt. Refuses at once when something occupies it."""
        deadline = time.monotonic() + seconds
        brief = time.monotonic() + _BRIEF_SECONDS
        doubted = False
        with self.lock:
            while True:
                blind = self.shell is not None and self.shell.prompting
                if blind and not self._state_changed.wait(_BLIND_SECONDS) and self._readline_reads():
                    # The prompt's own mark went elsewhere: somebody has redirected the shell's stderr.
                    self._set_shell(ready=True, prompting=False)
                if self.closed:
                    raise SessionDead(
                        "the session's terminal is gone", hint="`waypoint restore` brings it back"
                    )
                in_front = self.shell is not None and self.shell.ready and self._shell_in_front()
                if self.shell and in_front and self.shell.running is None:
                    return
                occupied = self.shell and self.shell.ready and not in_front
                if occupied and not doubted:
                    # Just after a restore it may be so for a moment, and nobody tells when it is over.
                    doubted = True
                    self._state_changed.wait(_BLIND_SECONDS)
                    continue
                if self.shell and (self.shell.running is not None or occupied) and self._run is None:
                    if not occupied and self._shell_in_front() and time.monotonic() < brief:
                        # Somebody has just typed something that the shell itself is busy with: mostly over
                        # in a moment.
                        self._state_changed.wait(brief - time.monotonic())
                        continue
                    raise SessionBusy(
                        f"the shell is occupied by {self.foreground() or 'a command'}",
                        hint="wait, interrupt it (`waypoint shell`), or run beside it with `exec --pipe`",
                    )
                left = deadline - time.monotonic()
                if left <= 0:
                    raise SessionBusy(
                        "the shell does not come to its prompt", hint="look at it with `waypoint shell`"
                    )
                self._state_changed.wait(left)

    def _readline_reads(self) -> bool:
        """Whether bash stands at its prompt: only there does it switch the terminal's line discipline off."""
        return not self.closed and not termios.tcgetattr(self._slave)[3] & termios.ICANON

    def run(
        self,
        run_id: str,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        on_terminal: bool = False,
        limit: int = OUTPUT_LIMIT_BYTES,
        on_output: Callable[[bytes], None] | None = None,
        silent: bool = False,
        actor: Actor = "person",
    ) -> RunResult:
        """Runs a command in the shell and waits for its end. One at a time; others wait for their turn.
        `silent`: neither shown to watchers nor kept in the shell's history."""
        if "\0" in command:
            raise UsageError("a command cannot contain a NUL byte")
        line = _typed_line(run_id, command, stdin, on_terminal=on_terminal, silent=silent)
        with self._turn:
            self.wait_ready()
            run = Run(run_id, command, limit, on_output, silent=silent, actor=actor)
            started = time.monotonic()
            with self._typing:
                with self.lock:
                    if not silent:
                        self.last_command = command
                    self._run = run
                    self._set_shell(ready=False)
                self._write(_STASH + _PASTE + line + _PASTE_END + b"\r")
                if not run.began.wait(_READY_SECONDS):
                    self._give_up(run)
            timed_out = not run.done.wait(timeout)
            if timed_out:
                run.timed_out = True
                self._interrupt(run)
            if run.gone:
                raise SessionDead(run.gone)
            return _result(run, timed_out=timed_out, duration_ms=(time.monotonic() - started) * 1000)

    def _give_up(self, run: Run) -> None:
        with self.lock:
            if self._run is run:
                self._run = None
        raise SessionBusy("the shell does not take the command", hint="look at it with `waypoint shell`")

    @contextlib.contextmanager
    def steady(self) -> Iterator[None]:
        """While nobody is in the middle of typing a command: half of one is nothing to come back to."""
        with self._typing:
            yield

    def write(self, data: bytes) -> None:
        """Types into the terminal, as a person does. Waits when its input queue is full, but not for ever."""
        with self.lock:
            self._recording.typing()
        self._write(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        deadline = time.monotonic() + _READY_SECONDS
        while view:
            try:
                with self.lock:  # once it is closed, its descriptor may be another session's terminal
                    if self.closed:
                        raise SessionDead("the session's terminal is gone")
                    view = view[os.write(self._master, view[:4096]) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SessionBusy(
                        "the terminal takes no more input", hint="nothing in it reads"
                    ) from None
                with contextlib.suppress(OSError):
                    select.select([], [self._master], [], 0.5)
            except OSError as error:
                raise SessionDead("the session's terminal is gone") from error

    def interrupt(self, command: str | None = None) -> bool:
        """Ends the command that `run` waits for, if there is one (and it is this one)."""
        with self.lock:
            run = self._run
        if run is None or run.silent or (command is not None and run.command != command):
            return False
        self._interrupt(run)
        return True

    def _interrupt(self, run: Run) -> None:
        """Ends a command that took too long: as a person would, then harder. The signals go where the
        keyboard's would, but nothing is echoed, and what somebody has typed ahead stays."""
        for number, seconds in _INTERRUPTS:
            group = self._foreground_group()
            self._signal(group, signal.SIGINT if group == self._shell_host_pid else number)
            if run.done.wait(seconds):
                return
        # The rest of the command may have started more of the kind: a loop, say.
        for _ in range(_LAST_INTERRUPTS):
            if (group := self._foreground_group()) != self._shell_host_pid:
                self._signal(group, signal.SIGKILL)
            self._signal(self._shell_host_pid, signal.SIGINT)
            if run.done.wait(_BLIND_SECONDS):
                return
        # The shell itself does not hear. It is replaced by a new one when it is gone.
        self._signal(self._shell_host_pid, signal.SIGKILL)
        if not run.done.wait(_READY_SECONDS):
            self._give_up(run)

    def _signal(self, group: int | None, number: signal.Signals) -> None:
        if group:
            with contextlib.suppress(OSError):
                os.killpg(group, number)

    # ---- watchers ----------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Shows the present screen to a watcher and everything from now on."""
        with self.lock:
            watcher.send(self.screen.redraw())
            self.watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        with self.lock:
            if watcher in self.watchers:
                self.watchers.remove(watcher)

    @property
    def size(self) -> Size:
        return Size(rows=self.screen.rows, columns=self.screen.columns)

    def resize(self, size: Size) -> None:
        with self.lock:
            if size == self.size or self.closed:
                return
            self.screen.resize(size.rows, size.columns)
            self._recording.size = size
            packed = struct.pack("HHHH", size.rows, size.columns, 0, 0)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, packed)

    # ---- checkpoints -------------------------------------------------------------------------

    def wait_prompt(self, seconds: float = 1.0) -> None:
        """Where a command has just ended, lets the shell come to its prompt: hooks are nothing to capture."""
        deadline = time.monotonic() + seconds
        with self.lock:
            while (shell := self.shell) and self._run is None and not shell.ready and shell.running is None:
                left = deadline - time.monotonic()
                if left <= 0 or self.closed:
                    return
                self._state_changed.wait(left)

    def settle(self) -> None:
        """Just before a freeze: the screen catches up with what it was given, which may take milliseconds."""
        self.drain()
        with self.lock:
            _ = self.screen.cursor

    def freeze(self) -> TerminalState:
        """The terminal's state, taken while nothing in the box runs."""
        self.drain()
        with self.lock:
            run = self._run
            shell = self.shell
            if shell and run:
                shell = msgspec.structs.replace(shell, ready=False, running=run.id)
            self._recording.cut()
            return TerminalState(screen=self.screen.dump(), shell=shell, size=self.size)

    def thaw(self, state: TerminalState) -> None:
        """The state of `freeze`, in the terminal of another box, before anything in it runs."""
        with self.lock:
            self.screen = Screen.load(state.screen)
            if state.shell:
                self.started(state.shell)

    def picture(self) -> TerminalState:
        """What another daemon needs to serve this terminal: all that can be had without stopping anything."""
        with self.lock:
            shell = self.shell
            if shell and self._run:
                shell = msgspec.structs.replace(shell, running=self._run.id)
            return TerminalState(screen=self.screen.dump(), shell=shell, size=self.size)

    def adopt(self, picture: TerminalState, printed: bytes) -> None:
        """Serves a terminal that another daemon served, from the picture it left and what was printed since.
        Its shell may have moved on, so that is looked at."""
        with self.lock:
            self.screen = Screen.load(picture.screen)
            if picture.shell:
                self.started(picture.shell)
            self._feed(printed)
            if self.shell:
                at_prompt = self._readline_reads() and self._shell_in_front()
                self._set_shell(ready=at_prompt, running=None if at_prompt else "")

    def take_watchers(self, other: Terminal) -> None:
        """Whoever watched the other terminal watches this one now."""
        with other.lock:
            moved, other.watchers = other.watchers, []
        for watcher in moved:
            self.watch(watcher)

    def close(self, why: str) -> None:
        """The box is gone or another has taken its place: whoever waits for a command is told."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            if self._run:
                self._run.gone = why
                self._recording.cut()  # it did not end: its box did
                self._end_run(self._run)
            else:
                self._recording.cut()
            self._state_changed.notify_all()
            os.close(self._master)
            os.close(self._slave)
            watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher.ended(why)

    @property
    def master(self) -> int:
        return self._master


def _typed_line(run_id: str, command: str, stdin: bytes | None, *, on_terminal: bool, silent: bool) -> bytes:
    """What is typed to run a command: see shell/integration.bash."""
    if len(command) + len(stdin or b"") > _MOST_TYPED_BYTES:
        raise UsageError(
            "too much for a command and its input, which are typed into the shell",
            hint="`exec --pipe` (SDK: `spawn`) takes any amount of input",
        )
    words = f"__waypoint_begin {'-' if silent else ''}{run_id} {_quoted(command.encode())}"
    if stdin is not None:
        # A variable cannot hold a NUL, the format of printf can name it.
        words += " " + _quoted(stdin.replace(b"\\", b"\\\\").replace(b"\0", b"\\0000"))
        source = ' < <(builtin printf %b "$__waypoint_input")'
    else:
        source = "" if on_terminal else " </dev/null"
    do = f'builtin eval "$__waypoint_command"{source}'
    again = f"if __waypoint_again; then {do}; else {do}; fi"
    return f" {words}; {again}; {{ __waypoint_prompt first; }} 2>/dev/null".encode()


_HISTORY_LINE = re.compile(r"\s*\d+\*?\s{1,2}(.*)", re.DOTALL)
_CONTROLS = bytes.maketrans(b"", b""), b"\r\n\x07\x08"


def _typed_command(mark: str, recording: Recording) -> str | None:
    """What was typed, from the last line of the shell's history. A line that the history did not take may be
    a repeated one, or one that somebody kept out of it, then what was typed shows which; or there was none,
    only the Return key."""
    told = _HISTORY_LINE.fullmatch(mark.partition(";c=")[2].replace("\r\n", "\n").rstrip("\n"))
    if not told:
        return None
    if ";n=0;" in mark:
        typed = escapes.strip_bytes(recording.echo).translate(*_CONTROLS)
        return told[1] if recording.running and told[1].encode() in typed else None
    return told[1]


def _quoted(data: bytes) -> str:
    """One word of bash that stands for these bytes, in letters that neither readline, history expansion
    nor any locale touches."""
    plain = b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-./:=+,@%^~#&()[]{}<>|;*?$"'
    letters = (chr(byte) if byte in plain else "\\n" if byte == 10 else f"\\{byte:03o}" for byte in data)
    return "$'" + "".join(letters) + "'"


def _result(run: Run, *, timed_out: bool, duration_ms: float) -> RunResult:
    output, truncated = run.output()
    try:
        text, encoded = output.decode(), None
    except UnicodeDecodeError:
        text, encoded = codecs.decode(output, errors="replace"), base64.b64encode(output).decode()
    return RunResult(
        exit_code=run.exit_code,
        output=text,
        duration_ms=round(duration_ms, 3),
        timed_out=timed_out,
        truncated=truncated,
        output_bytes=run.kept.total,
        base64=encoded,
        notice=run.notice,
    )


class Pump:
    """The one thread that reads all terminals and hears all keepers."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._lock = threading.Lock()
        self._actions: dict[int, Callable[[], None]] = {}
        self._when_quiet: dict[object, Callable[[], None]] = {}
        self._thread = threading.Thread(target=self._work, name="pump", daemon=True)
        self._thread.start()

    def add(self, fd: int, action: Callable[[], None]) -> None:
        with self._lock:
            self._actions[fd] = action
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        with self._lock:
            self._actions.pop(fd, None)
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(fd)

    def when_quiet(self, key: object, action: Callable[[], None]) -> None:
        """Once nothing has happened for a moment; the last action given for a key counts. From the pump's own
        thread only."""
        self._when_quiet[key] = action

    def _be_quiet(self) -> None:
        actions, self._when_quiet = self._when_quiet, {}
        for action in actions.values():
            self._do(action)

    @staticmethod
    def _do(action: Callable[[], None]) -> bool:
        """False when it failed: one broken session must not silence the others."""
        try:
            action()
        except Exception:
            import logging

            logging.getLogger("waypoint").exception("pump")
            return False
        return True

    def _work(self) -> None:
        while True:
            events = self._epoll.poll(_QUIET_SECONDS if self._when_quiet else None)
            if not events:
                self._be_quiet()
            for fd, event in events:
                with self._lock:
                    action = self._actions.get(fd)
                if action is None:
                    continue
                if not self._do(action):
                    self.remove(fd)
                if event & select.EPOLLHUP and not event & select.EPOLLIN:
                    self.remove(fd)
