"""A session's terminal: its screen, its watchers, and the commands that are run in its shell.

The shell marks its prompt and the start and end of every command (shell.py). A command given to `run` is
typed into readline as one quoted word, after a key sequence that puts aside what a user may have been
typing; its output is exactly what the terminal prints between the two marks of that run. The typing itself
is not shown: watchers see the command as if a user had typed it.

One thread (pump.py) reads all terminals. Everything a terminal does happens under its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from waypoint.api.hints import Do, Hint
from waypoint.box.keeper import Keeper
from waypoint.errors import SessionBusy, SessionDead, UsageError
from waypoint.kernel import locks, processes, readiness
from waypoint.model import Actor, Record, RunResult, Size
from waypoint.terminal import escapes
from waypoint.terminal.command import OUTPUT_LIMIT_BYTES, Run
from waypoint.terminal.recording import Recording, TerminalEvent, given_to
from waypoint.terminal.screen import Screen
from waypoint.terminal.shell import UNSTASH, Mark, MarkKind, MarkReader, Shell, history_command, keys_for

_READ_BYTES = 1 << 16
_SMALL_READ_BYTES = 1 << 12
_MOST_UNREAD_BYTES = 1 << 18
"""More than a pty holds that was not read."""
_READY_SECONDS = 30.0
_TYPED_COMMAND_SECONDS = 1.0
"""How long a command waits for one that a user has typed before it, while only the shell itself is busy
with it."""
_PROMPT_MARK_SECONDS = 0.02
"""How long the mark in the prompt may take before the terminal's mode is examined instead."""
_INTERRUPTS = ((signal.SIGINT, 1.0), (signal.SIGTERM, 1.0), (signal.SIGKILL, 0.5))
"""What is sent to the foreground job after a timeout, and how long each signal may take to end it."""
_LAST_INTERRUPTS = 20
_BESIDE = Do("spawn", "argv")
_INPUT_MODES, _OUTPUT_MODES, _LOCAL_MODES = 0, 1, 3


class TerminalState(Record, frozen=True):
    """What a terminal needs to go on in another box, or with another daemon."""

    screen: bytes
    shell: Shell | None
    size: Size


@dataclass(eq=False)
class Watcher:
    """A client that is shown the terminal. No call may block."""

    send: Callable[[bytes], None]
    redraw: Callable[[], None]
    """All of the screen is to be sent again, as it is by then."""
    notify: Callable[[Any], None]
    """Something that the user should know has happened."""
    ended: Callable[[str], None]
    size: Size
    """Of the client's own terminal. That of the session is as small as its smallest client."""
    untitled: str = ""
    """The title of its window while the session has set none."""


class Terminal:
    """The terminal of one box. It ends with its box; a restore makes another one and moves the watchers to
    it."""

    def __init__(self, events: Keeper, master: int, slave: int, box_pid: int, size: Size) -> None:
        self.events = events
        """The connection on which the keeper sends its events."""
        self._master, self._slave, self._box_pid = master, slave, box_pid
        self.lock = locks.rlock("terminal")
        self.screen = Screen(size.rows, size.columns)
        self.watchers: list[Watcher] = []
        self.shell: Shell | None = None
        self._shell_host_pid: int | None = None
        self._last_cwd = "/"
        """Where the last shell was when it ended."""
        self._state_changed = threading.Condition(self.lock)
        self._run: Run | None = None
        self._turn = locks.lock("terminal turn")
        """Held while a command runs: one at a time."""
        self._typing = locks.lock("terminal typing")
        """Held while a command is typed."""
        self._takes_input = True
        self._marks = MarkReader()
        self._piece_bytes = _READ_BYTES
        self.closed = False
        self.last_command: str | None = None
        """The last command, whether it came through `run` or a user typed it."""
        self.on_event: Callable[[TerminalEvent], None] | None = None
        """Called with every event of the recording. Must not block."""
        self.on_typed_command: Callable[[], None] | None = None
        """Called when the shell is at its prompt again after a command that a user typed. Must not block."""
        self._typed_command_ran = False
        self._typed_line: str | None = None
        """The command that the shell says was typed, just before the mark of its end."""
        self._recording = Recording(self._emit, size)
        os.set_blocking(master, False)

    # ---- output ------------------------------------------------------------------------------

    def read(self) -> bool:
        """Takes what the terminal has printed; False when there is nothing more."""
        with self.lock:
            if self.closed:
                return False
            if self.screen.busy:  # with what was read before
                self.screen.feed(b"")
                return True
            return self._take() > 0

    def _take(self) -> int:
        """Reads one piece; returns its length."""
        try:
            data = os.read(self._master, self._piece_bytes)
        except OSError:
            return 0
        if data:
            self.feed(data)
            # Another thread that looks at the screen has to wait for the rest of a piece.
            small = self.screen.busy
            self._piece_bytes = _SMALL_READ_BYTES if small else min(_READ_BYTES, 2 * self._piece_bytes)
        return len(data)

    def drain(self) -> None:
        """Takes what has been printed so far. A program that goes on printing is not waited for."""
        with self.lock:
            left = _MOST_UNREAD_BYTES
            while left > 0 and not self.closed and (length := self._take()):
                left -= length

    def feed(self, data: bytes) -> None:
        with self.lock:
            for part in self._marks.feed(data):
                if isinstance(part, bytes):
                    self._print(part)
                elif not self._handle_mark(part):
                    self._print(part.raw)

    def _print(self, data: bytes) -> None:
        if not data:
            return
        run = self._run
        if run:
            if not run.began.is_set():
                if run.job_notices is not None:
                    run.job_notices += data
                return  # the echo of the typed command
            run.add_output(data)
            if run.silent:
                return
        self._show(data)

    def _show(self, data: bytes) -> None:
        self._recording.show(data)
        self.screen.feed(data)
        for watcher in list(self.watchers):
            if watcher.size == self.size:
                watcher.send(data)
            else:
                watcher.redraw()  # a terminal of another size would wrap and scroll in other places

    def _emit(self, event: TerminalEvent) -> None:
        if self.on_event:
            self.on_event(event)

    def flush_background(self, *, paused: bool = False) -> None:
        """Makes an event of what background jobs printed at the prompt; see `Recording.flush_background`."""
        with self.lock:
            self._recording.flush_background(paused=paused)

    def flush_recording(self) -> None:
        """Makes an event of everything shown so far: another daemon records the rest."""
        with self.lock:
            self._recording.flush()

    # ---- the shell's marks -------------------------------------------------------------------

    def _handle_mark(self, mark: Mark) -> bool:
        """False when the mark is not one of this terminal's shell."""
        if self.shell is None or mark.key != self.shell.key:
            return False
        run = self._run
        match mark.kind:
            case MarkKind.PROMPT_NEXT:
                self._update_shell(prompting=True)
                self._recording.begin_prompt()
            case MarkKind.PROMPT:
                self._handle_prompt(mark)
            case MarkKind.JOBS:
                if run and not run.began.is_set():
                    run.job_notices = bytearray()
            case MarkKind.COMMAND_BEGIN:
                self._handle_begin(mark)
            case MarkKind.TYPED_LINE:
                self._typed_line = self._typed_command(mark)
            case MarkKind.COMMAND_END:
                self._handle_end(mark)
        return True

    def _handle_prompt(self, mark: Mark) -> None:
        assert self.shell
        run, stashed = self._run, self.shell.stashed
        # Usually COMMAND_END came before; but a user may have removed the hook that prints it.
        if run and run.began.is_set() and mark.run_id == run.id:
            self._end_marked(run, mark)
        self._update_shell(ready=True, came_up=True, prompting=False, running=None, command=None)
        self._recording.end_prompt()
        if stashed and self._run is None:
            # Brings back the user's line at once, before anything else can be typed.
            with contextlib.suppress(OSError):
                os.write(self._master, UNSTASH)
                self._update_shell(stashed=False)
        if self._typed_command_ran and self.on_typed_command:
            self.on_typed_command()
        self._typed_command_ran = False

    def _handle_begin(self, mark: Mark) -> None:
        assert self.shell
        run, cwd = self._run, self.shell.cwd
        if run is None:
            self._typed_command_ran = True
            self._update_shell(ready=False, prompting=False, running=mark.run_id, command=None)
            self._recording.begin_command(None, cwd, typed=True)
        elif not run.began.is_set() and run.id == mark.run_id:
            # Putting the user's line aside drew the prompt once more, which set `ready` again.
            self._update_shell(ready=False, prompting=False, stashed=mark.stashed)
            if not run.silent:
                shown = run.command.replace("\n", "\r\n").encode()
                self._update_shell(command=run.command)
                self._recording.note_typing()
                new_line = b"\r\n" if mark.stashed else b""
                self._show(new_line + shown + b"\r\n" + (run.job_notices or b""))
                self._recording.begin_command(run.command, cwd, typed=False, actor=run.actor, given=run.given)
            run.began.set()

    def _handle_end(self, mark: Mark) -> None:
        assert self.shell
        run, cwd = self._run, self.shell.cwd
        if run and run.began.is_set() and mark.run_id == run.id:
            self._end_marked(run, mark)
        elif run is None:
            self._recording.end_command(mark.exit_code, self._typed_line)
            self.last_command = self._typed_line or self.last_command
        self._typed_line = None
        if run is None or run.began.is_set():
            self._update_shell(cwd=mark.text or cwd, running=None, ready=False, command=None)

    def _typed_command(self, mark: Mark) -> str | None:
        """The command that a user typed, from the shell's history. If the history did not take the line, it
        was a repeated one, or one the user kept out of the history, or only the Return key: then the echo
        decides."""
        command = history_command(mark)
        if command is None or mark.is_new_line:
            return command
        echo = escapes.strip_bytes(self._recording.echo).translate(None, b"\r\n\x07\x08")
        return command if self._recording.running and command.encode() in echo else None

    def _end_marked(self, run: Run, mark: Mark) -> None:
        run.exit_code = mark.exit_code
        if run.silent:
            self._recording.begin_prompt()
            self._show(b"\r\x1b[K")  # the shell is about to draw the prompt that is shown already
        self._end_run(run)

    def _end_run(self, run: Run) -> None:
        run.finish_output()
        self._run = None
        run.began.set()
        run.done.set()
        if not run.silent:
            self._recording.end_command(run.exit_code, timed_out=run.timed_out)

    def _update_shell(self, **changes: Any) -> None:
        assert self.shell
        self.shell = msgspec.structs.replace(self.shell, **changes)
        self._state_changed.notify_all()

    # ---- the shell's process -----------------------------------------------------------------

    def announce_shell(self, shell: Shell) -> None:
        """A shell is about to be started in this terminal, or was restored in it."""
        with self.lock:
            self.shell = shell
            self._shell_host_pid = None
            if shell.running is not None:
                is_typed = shell.running == ""
                self._recording.begin_command(shell.command, shell.cwd, typed=is_typed, already=True)
            elif shell.ready:
                self._recording.end_prompt()
            self._state_changed.notify_all()

    def set_shell_pid(self, pid: int) -> None:
        """The pid of the shell that was announced."""
        with self.lock:
            self._update_shell(pid=pid)

    def handle_exit(self, pid: int, status: int) -> None:
        """A child of the anchor ended. If it was the shell, its run ends with it."""
        self.drain()
        with self.lock:
            if self.closed or self.shell is None or self.shell.pid != pid:
                return
            run = self._run
            if run:
                if not run.began.is_set():
                    # The shell has not read the command: the next shell must not run it.
                    termios.tcflush(self._slave, termios.TCIFLUSH)
                run.exit_code = processes.exit_code(status)
                run.notice = "the shell ended; a new one was started"
                self._end_run(run)
            else:
                self._recording.end_command(None, self._typed_line)
            if os.WIFSIGNALED(status):
                self._end_orphans(self.shell.pid)
            self._reset_modes()
            self.notify({"shell_ended": True})
            self._last_cwd = self.shell.cwd
            self.shell = None
            self._state_changed.notify_all()

    def _end_orphans(self, shell_pid: int) -> None:
        """Ends what a killed shell has left in its own process group: command substitutions of prompt
        hooks, mostly. bash gives the terminal back to that group after each of their commands, so a
        subshell that lives on would take the terminal from the next shell, which then stops. (Jobs have
        process groups of their own.)"""
        for process in processes.below(self._box_pid):
            if process.group == shell_pid:
                with contextlib.suppress(OSError):
                    os.kill(process.host_pid, signal.SIGHUP)

    def _reset_modes(self) -> None:
        """Sets the terminal's usual modes. A shell that is killed at its prompt leaves readline's modes
        behind, and the next shell would start programs with them."""
        with contextlib.suppress(OSError, termios.error):
            modes = termios.tcgetattr(self._slave)
            modes[_INPUT_MODES] |= termios.ICRNL
            modes[_OUTPUT_MODES] |= termios.OPOST | termios.ONLCR
            modes[_LOCAL_MODES] |= termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN
            termios.tcsetattr(self._slave, termios.TCSANOW, modes)

    @property
    def cwd(self) -> str:
        """Where its shell is; between two shells, where the next one starts."""
        shell = self.shell
        return shell.cwd if shell else self._last_cwd

    def find_shell(self) -> None:
        """Finds the shell's host pid now, so that a caller in a hurry has it."""
        if self._shell_host_pid is None and self.shell:
            for process in processes.below(self._box_pid):
                if process.pid == self.shell.pid:
                    self._shell_host_pid = process.host_pid

    def _shell_in_front(self) -> bool:
        """Whether the shell's own process group is the terminal's foreground."""
        self.find_shell()
        return self._foreground_group() in (self._shell_host_pid, None)

    def _foreground_group(self) -> int | None:
        """The foreground process group of the terminal, by its host pid."""
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
            if self.shell is None or not self.shell.pid:
                return None
            if not self._shell_in_front():
                group = self._foreground_group()
                process = processes.read(group) if group else None
                return process.command if process else "a program"
            if self._run:
                return self._run.command
            return "a command" if self.shell.running is not None else None

    def _readline_reads(self) -> bool:
        """Whether bash is at its prompt: only there does it switch the terminal's line mode off."""
        return not self.closed and not termios.tcgetattr(self._slave)[_LOCAL_MODES] & termios.ICANON

    def _is_at_prompt(self) -> bool:
        shell = self.shell
        return shell is not None and shell.ready and shell.running is None and self._shell_in_front()

    def wait_ready(self, seconds: float = _READY_SECONDS) -> None:
        """Waits until the shell is at its prompt. Refuses at once when something occupies it."""
        deadline = time.monotonic() + seconds
        typed_deadline = time.monotonic() + _TYPED_COMMAND_SECONDS
        looked_twice = False
        with self.lock:
            while True:
                prompting = self.shell is not None and self.shell.prompting
                if (
                    prompting
                    and not self._state_changed.wait(_PROMPT_MARK_SECONDS)
                    and self._readline_reads()
                ):
                    # The prompt's own mark went elsewhere: the shell's stderr is redirected.
                    self._update_shell(ready=True, prompting=False)
                if self.closed:
                    raise SessionDead(
                        "the session's terminal is gone", hint=Hint(Do("restore", "ref"), " brings it back")
                    )
                if self._is_at_prompt():
                    return
                # (A shell that is being started is not known by its pid yet: nothing else can occupy it.)
                shell = self.shell if self.shell and self.shell.pid else None
                occupied = shell is not None and shell.ready and not self._shell_in_front()
                if occupied and not looked_twice:
                    # Just after a restore this can be so for a moment, and no event tells when it is over.
                    looked_twice = True
                    self._state_changed.wait(_PROMPT_MARK_SECONDS)
                    continue
                now = time.monotonic()
                if shell and (shell.running is not None or occupied) and self._run is None:
                    if not occupied and self._shell_in_front() and now < typed_deadline:
                        self._state_changed.wait(typed_deadline - now)
                        continue
                    raise SessionBusy(
                        f"the shell is occupied by {self.foreground() or 'a command'}",
                        hint=Hint(
                            "wait, interrupt it (", Do("attach"), "), or run beside it (", _BESIDE, ")"
                        ),
                    )
                if now >= deadline:
                    raise SessionBusy(
                        "the shell does not come to its prompt", hint=Hint("look at it with ", Do("attach"))
                    )
                self._state_changed.wait(deadline - now)

    def require_free(self) -> None:
        """SessionBusy if something occupies the shell. A command of `run` does not: the next one waits for
        its turn."""
        with self.lock:
            if self._run is not None:
                return
        self.wait_ready()

    @property
    def is_watched(self) -> bool:
        """Whether a client shows it to a person."""
        return bool(self.watchers)

    # ---- commands ----------------------------------------------------------------------------

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
        plain: bool = False,
        actor: Actor = "person",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        when_ready: Callable[[], None] | None = None,
    ) -> RunResult:
        """Runs a command in the shell and waits for its end. One at a time; others wait for their turn.
        `silent`: neither shown to watchers nor kept in the shell's history. `plain`: no escape sequences in
        the output. `cwd`, `env`: for this command only, in a subshell. `when_ready`: called at the prompt,
        when it is the command's turn."""
        if "\0" in command:
            raise UsageError("a command cannot contain a NUL byte")
        keys = keys_for(run_id, command, stdin, on_terminal=on_terminal, silent=silent, cwd=cwd, env=env)
        with self._in_turn(timeout):
            stripper = escapes.Stripper() if plain else None
            run = Run(
                run_id,
                command,
                limit,
                on_output,
                silent=silent,
                actor=actor,
                given=given_to(cwd, env, stdin),
                stripper=stripper,
            )
            while not self._type_command(run, keys, when_ready):
                pass
            if not run.done.wait(timeout):
                run.timed_out = True
                self._interrupt(run)
            if run.no_result:
                raise SessionDead(run.no_result)
            return run.result()

    @contextlib.contextmanager
    def _in_turn(self, timeout: float | None) -> Iterator[None]:
        """One command after the other. A command waits for its turn as long as it may take itself."""
        if not self._turn.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise SessionBusy(
                f"another command has run in the shell all the {timeout:.1f} s that this one may take",
                hint=Hint("interrupt it, or run beside it (", _BESIDE, ")"),
            )
        try:
            yield
        finally:
            self._turn.release()

    def _type_command(self, run: Run, keys: bytes, when_ready: Callable[[], None] | None) -> bool:
        """Types a command at the prompt and waits until the shell begins it. False when the prompt was gone
        again before the first key: the shell ended, or a user was faster."""
        self.wait_ready()
        if when_ready:
            when_ready()
        with self._typing:
            with self.lock:
                # Before anything is noted: the state of a tree that stands still must not have a command of
                # which no key was typed.
                self._state_changed.wait_for(lambda: self._takes_input or self.closed, _READY_SECONDS)
                if not self._is_at_prompt():
                    return False
                run.started_at = time.monotonic()
                if not run.silent:
                    self.last_command = run.command
                self._run = run
                self._update_shell(ready=False)
            try:
                self._write(keys, run)
            except BaseException:
                self._withdraw(run)
                raise
            if not run.began.wait(_READY_SECONDS):
                self._give_up(run)
        return True

    def _withdraw(self, run: Run) -> None:
        with self.lock:
            if self._run is run:
                self._run = None

    def _give_up(self, run: Run) -> None:
        self._withdraw(run)
        raise SessionBusy("the shell does not take the command", hint=Hint("look at it with ", Do("attach")))

    @contextlib.contextmanager
    def no_typing(self) -> Iterator[None]:
        """While this is held, no command is being typed: half a command must not be captured."""
        with self._typing:
            yield

    def stop_input(self) -> None:
        """From now on nothing is typed into it: what comes waits until `take_input`, or fails when it is
        closed."""
        with self._typing, self.lock:
            self._takes_input = False

    def take_input(self) -> None:
        with self.lock:
            self._takes_input = True
            self._state_changed.notify_all()

    def write(self, data: bytes) -> None:
        """Types into the terminal, as a user does. Waits when its input queue is full, up to a limit."""
        with self.lock:
            self._recording.note_typing()
        self._write(data)

    def _write(self, data: bytes, run: Run | None = None) -> None:
        """`run`: only as long as this run has not ended."""
        view = memoryview(data)
        deadline = time.monotonic() + _READY_SECONDS
        while view:
            try:
                with self.lock:  # once it is closed, another session's terminal may have its descriptor
                    left = max(0.0, deadline - time.monotonic())
                    if not self._state_changed.wait_for(lambda: self._takes_input or self.closed, left):
                        raise BlockingIOError
                    if self.closed:
                        raise SessionDead("the session's terminal is gone")
                    if run and self._run is not run:
                        return
                    view = view[os.write(self._master, view[:4096]) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SessionBusy(
                        "the terminal takes no more input", hint="no program in it reads"
                    ) from None
                with contextlib.suppress(OSError):
                    readiness.writable(self._master, 0.5)
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
        """Ends a command that took too long: first as a user would, then by force. The signals go to the same
        processes as the keyboard's would, but nothing is echoed, and what a user has typed ahead stays."""
        for number, seconds in _INTERRUPTS:
            group = self._foreground_group()
            self._signal(group, signal.SIGINT if group == self._shell_host_pid else number)
            if run.done.wait(seconds):
                return
        # The rest of the command may have started more jobs of the same kind, for example in a loop.
        for _ in range(_LAST_INTERRUPTS):
            if (group := self._foreground_group()) != self._shell_host_pid:
                self._signal(group, signal.SIGKILL)
            self._signal(self._shell_host_pid, signal.SIGINT)
            if run.done.wait(_PROMPT_MARK_SECONDS):
                return
        # The shell itself does not react. After its end a new one is started.
        self._signal(self._shell_host_pid, signal.SIGKILL)
        if not run.done.wait(_READY_SECONDS):
            self._give_up(run)

    def _signal(self, group: int | None, number: signal.Signals) -> None:
        if group:
            with contextlib.suppress(OSError):
                os.killpg(group, number)

    # ---- watchers ----------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Shows the present screen to a watcher, and everything from now on."""
        with self.lock:
            self.watchers.append(watcher)
            self._fit()
            watcher.send(self.screen.redraw(watcher.untitled))

    def unwatch(self, watcher: Watcher) -> None:
        with self.lock:
            if watcher in self.watchers:
                self.watchers.remove(watcher)
                self._fit()

    def resize_watcher(self, watcher: Watcher, size: Size) -> None:
        """The window of a client has another size."""
        with self.lock:
            watcher.size = size
            self._fit()
            watcher.redraw()

    def _fit(self) -> None:
        """Makes the terminal as small as the smallest of its watchers."""
        if not self.watchers:
            return
        rows = min(watcher.size.rows for watcher in self.watchers)
        columns = min(watcher.size.columns for watcher in self.watchers)
        if (fitting := Size(rows=rows, columns=columns)) != self.size:
            self.resize(fitting)
            for watcher in self.watchers:
                watcher.redraw()

    def notify(self, body: Any) -> None:
        """Tells all watchers."""
        with self.lock:
            for watcher in self.watchers:
                watcher.notify(body)

    def take_watchers(self, other: Terminal) -> None:
        """The watchers of the other terminal watch this one from now on."""
        with other.lock:
            watchers, other.watchers = other.watchers, []
        for watcher in watchers:
            self.watch(watcher)

    def give_to(self, uid: int) -> None:
        """Makes a user of the box the owner of the terminal: programs open it by its name. `uid`: the host's
        id of that user."""
        os.fchown(self._slave, uid, -1)

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

    # ---- checkpoints and other daemons -------------------------------------------------------

    @property
    def prompt_is_due(self) -> bool:
        """Whether a command has ended and the shell has not come to its prompt yet."""
        with self.lock:
            shell = self.shell
            return shell is not None and self._run is None and not shell.ready and shell.running is None

    def wait_prompt(self, seconds: float = 1.0) -> None:
        """After a command has ended, lets the shell come to its prompt: a checkpoint should not show its
        hooks."""
        deadline = time.monotonic() + seconds
        with self.lock:
            while self.prompt_is_due:
                left = deadline - time.monotonic()
                if left <= 0 or self.closed:
                    return
                self._state_changed.wait(left)

    def settle(self) -> None:
        """Just before a freeze: lets the screen process what it was given, which may take milliseconds."""
        self.drain()
        with self.lock:
            _ = self.screen.cursor

    def freeze(self) -> TerminalState:
        """The terminal's state, taken while no process of the box runs."""
        self.drain()
        with self.lock:
            shell = self.shell
            if shell and self._run:
                shell = msgspec.structs.replace(shell, ready=False, running=self._run.id)
            self._recording.flush()
            return TerminalState(screen=self.screen.dump(), shell=shell, size=self.size)

    def thaw(self, state: TerminalState) -> None:
        """Takes the state of `freeze` in the terminal of another box, before any process in it runs."""
        with self.lock:
            self.screen = Screen.load(state.screen)
            if state.shell:
                self.announce_shell(state.shell)

    def state(self) -> TerminalState:
        """What another daemon needs to serve this terminal: all that is known without stopping a process."""
        with self.lock:
            shell = self.shell
            if shell and self._run:
                shell = msgspec.structs.replace(shell, running=self._run.id)
            return TerminalState(screen=self.screen.dump(), shell=shell, size=self.size)

    def take_over(self, state: TerminalState, printed: bytes) -> None:
        """Serves a terminal that another daemon served, from the state it left and what was printed since.
        Its shell may have moved on, so it is examined."""
        with self.lock:
            self.thaw(state)
            self.feed(printed)
            if self.shell:
                at_prompt = self._readline_reads() and self._shell_in_front()
                self._update_shell(ready=at_prompt, running=None if at_prompt else "")

    def close(self, reason: str) -> None:
        """The box is gone or another one has taken its place: callers that wait for a command get
        `reason`."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self._recording.flush()  # a command that runs did not end, its box did
            if self._run:
                self._run.no_result = reason
                self._end_run(self._run)
            self._state_changed.notify_all()
            os.close(self._master)
            os.close(self._slave)
            watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher.ended(reason)

    @property
    def master(self) -> int:
        return self._master
