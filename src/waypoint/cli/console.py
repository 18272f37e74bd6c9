"""The process as a verb sees it: its arguments, where its output goes, how it asks the user, its client.

Results go to stdout, everything else to stderr. With --json stdout carries exactly one JSON value, be it a
result or an error.
"""

from __future__ import annotations

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from waypoint import errors
from waypoint.api import hints

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from waypoint.api.request import Request
    from waypoint.cli.render import Paint
    from waypoint.client.connection import Transport
    from waypoint.client.session import Session
    from waypoint.home import Home
    from waypoint.model import Actor

R = TypeVar("R")

_PROGRESS_AFTER_SECONDS = 0.5
"""A verb that takes no longer shows no progress."""
_LOOK_SECONDS = 0.5
"""How often it is looked whether a question was answered elsewhere."""
_NO_SUCH_COMMAND = 127
_NARROWEST = 40
_YES = frozenset({"y", "yes"})


class Console:
    """What every verb is passed."""

    def __init__(
        self, arguments: Namespace, *, home: str | None = None, json: bool = False, quiet: bool = False
    ) -> None:
        self.arguments = arguments
        self.json = json
        self.quiet = quiet
        self.was_set_up = False
        """Whether this verb has set the machine up."""
        self._home = home
        self._transports: list[Transport] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for transport in self._transports:
            transport.close()

    # ---- the daemon --------------------------------------------------------------------------

    @property
    def home(self) -> Home:
        from waypoint.home import locate

        return locate(self._home)

    @property
    def transport(self) -> Transport:
        """Sends requests to the daemon of this home, and starts the daemon if none runs."""
        return self._transports[0] if self._transports else self.another_transport()

    def another_transport(self, *, start: bool = True) -> Transport:
        """One with its own connection. `start`: whether it may start a daemon."""
        from waypoint.client.connection import Transport

        self._transports.append(Transport(self._home, start=start))
        return self._transports[-1]

    @property
    def session(self) -> str | None:
        """The session named by -s or WAYPOINT_SESSION; None: the only session there is."""
        from waypoint.home import Settings

        return self.arguments.session or Settings.read().session

    @property
    def actor(self) -> Actor:
        """WAYPOINT_ACTOR, by default a person."""
        from waypoint.home import Settings

        return Settings.read().actor or "person"

    def send(self, request: Request[R], doing: str, on_event: Callable[[Any], None] | None = None) -> R:
        """Sends a request to the daemon and shows the progress."""
        with self.progress(doing):
            return self.transport.ask(request, on_event=on_event)

    def open_session(self, name: str | None = None) -> Session:
        """The session of that name, by default the one that the arguments mean, as an object of the SDK."""
        from waypoint.api import sessions
        from waypoint.client.session import Session

        info = self.send(sessions.Session(session=name or self.session), "waiting for the daemon").session
        return Session(self.transport, info.name, self.actor)

    def prepare(self) -> None:
        """Sets this machine up if that was never done. If a daemon runs, it was done."""
        from waypoint.api.machine import Ping
        from waypoint.client.connection import Transport, needs_root

        with contextlib.suppress(errors.DaemonUnreachable):
            Transport(self._home, start=False).ask(Ping())
            return
        if os.geteuid() != 0:
            raise needs_root()
        from waypoint.machine import setup

        home = self.home
        if setup.current_engine(setup.engine_dir(home.path)) is None:
            self.say("setting this machine up (once)")
            setup.set_up(home.path, self.step)
            self.was_set_up = True

    def offer_link(self) -> Path | None:
        """Asks whether `waypoint` should be a command, where it is none and a terminal is there to ask on.
        For the end of a verb: the user may have gone away while the machine was set up."""
        from waypoint.machine import link

        if not link.is_offered():
            return None
        if not self.can_ask:
            self.say(f"`{link.command()} setup --link` makes `waypoint` a command")
            return None
        if not self.ask(f"Make `waypoint` a command, by a link in {link.FOLDER}?"):
            return None
        return link.make(self.home.path)

    # ---- output ------------------------------------------------------------------------------

    @property
    def paint(self) -> Paint:
        from waypoint.cli.render import Paint

        return Paint.of(sys.stdout)

    @property
    def stderr_paint(self) -> Paint:
        from waypoint.cli.render import Paint

        return Paint.of(sys.stderr)

    def result(self, value: Any, text: str | None) -> None:
        """Prints the result: with --json the value (a struct or plain data), else the text."""
        if self.json:
            write_json(value)
        elif text:
            print(text)

    def show(self, value: Any, text: str) -> None:
        """Prints a result that may be long: a text that does not fit the terminal goes through a pager."""
        if (
            not self.json
            and sys.stdout.isatty()
            and text.count("\n") + 1 >= text_size().lines
            and _page(text)
        ):
            return
        self.result(value, text)

    def say(self, text: str) -> None:
        """Prints a message to stderr, unless --quiet."""
        if not self.quiet:
            self.aside(f"waypoint: {text}")

    def warn(self, text: str) -> None:
        self.aside(f"waypoint: {self.stderr_paint.warn(text)}")

    def step(self, text: str) -> None:
        """Prints one step of a long operation, unless --quiet."""
        if not self.quiet:
            self.aside(self.stderr_paint.dim(f"  {text}"))

    def aside(self, text: str) -> None:
        """Prints to stderr what has to be seen, also with --quiet."""
        print(text, file=sys.stderr, flush=True)

    def hint(self, text: str) -> None:
        """Prints a hint, only on a terminal."""
        if not (self.json or self.quiet) and sys.stderr.isatty() and sys.stdout.isatty():
            self.aside(self.stderr_paint.dim(f"  {text}"))

    # ---- questions ---------------------------------------------------------------------------

    @property
    def can_ask(self) -> bool:
        return not self.json and sys.stdin.isatty() and sys.stderr.isatty()

    def ask(self, question: str) -> bool:
        """Asks the user. Every answer but a clear yes is a no."""
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in _YES

    def ask_unless(
        self, question: str, decided: socket | None = None, is_decided: Callable[[], bool] | None = None
    ) -> bool | None:
        """The same. None, and the question is taken back, when `decided` becomes readable first, or when
        `is_decided`, which is called from time to time."""
        import select

        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        watched = [sys.stdin, *([decided] if decided else [])]
        while not (ready := select.select(watched, [], [], _LOOK_SECONDS)[0]):
            if is_decided and is_decided():
                break
        if sys.stdin in ready:
            return sys.stdin.readline().strip().lower() in _YES
        self.aside("decided elsewhere")
        return None

    def confirm(self, question: str, *, action: str) -> None:
        """Returns if --yes was given or the user agrees. `action` names what is refused otherwise."""
        if getattr(self.arguments, "yes", False):
            return
        self.require_confirmation(action)
        if not self.ask(question):
            raise errors.ConfirmationNeeded(f"{action} was not confirmed", hint="nothing has changed")

    def require_confirmation(self, action: str) -> None:
        """Refuses the action if neither --yes was given nor the user can be asked."""
        if not (getattr(self.arguments, "yes", False) or self.can_ask):
            raise errors.ConfirmationNeeded(f"{action} needs confirmation", hint="add --yes if you are sure")

    # ---- progress ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def progress(self, doing: str) -> Iterator[Callable[[str], None]]:
        """Shows on a terminal what is being done, if it takes longer than half a second. It yields a function
        that says what is being done now."""

        def update(now: str) -> None:
            nonlocal doing
            doing = now

        if self.json or self.quiet or not sys.stderr.isatty():
            yield update
            return
        import threading
        import time

        done = threading.Event()
        drawn = False

        def draw() -> None:
            nonlocal drawn
            started, frames = time.monotonic(), "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
            if done.wait(_PROGRESS_AFTER_SECONDS):
                return
            drawn = True
            while True:
                elapsed = time.monotonic() - started
                room = terminal_size().columns - 12
                line = f"{frames[int(elapsed * 8) % len(frames)]} {doing[:room]} {elapsed:.1f} s"
                sys.stderr.write(f"\r{line}\x1b[K")
                sys.stderr.flush()
                if done.wait(0.12):
                    return

        thread = threading.Thread(target=draw, daemon=True)
        thread.start()
        try:
            yield update
        finally:
            done.set()
            thread.join()
            if drawn:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


def terminal_size(columns: int = 80, lines: int = 24) -> os.terminal_size:
    """The size of the terminal on stdout. Without a terminal, the given one."""
    try:
        size = os.get_terminal_size(1)
    except OSError:
        size = os.terminal_size((0, 0))
    return os.terminal_size((size.columns or columns, size.lines or lines))


def text_size() -> os.terminal_size:
    """How much text fits: the terminal's size, with the width of COLUMNS if that is set."""
    size = terminal_size(columns=100)
    columns = size.columns
    with contextlib.suppress(ValueError):
        columns = int(os.environ.get("COLUMNS") or 0) or columns
    return os.terminal_size((max(_NARROWEST, columns), size.lines))


def _page(text: str) -> bool:
    """Shows the text in $PAGER, by default less. False if there is no pager: then nothing was shown."""
    import subprocess

    pager = os.environ.get("PAGER", "less")
    if pager in ("", "cat"):
        return False
    # As git runs less: quit if the text fits, keep colours, do not clear the screen.
    environment = {"LESS": "FRX", "LESSCHARSET": "utf-8", **os.environ}
    try:
        # $PAGER is a command line and may hold options.
        process = subprocess.Popen(["sh", "-c", pager], stdin=subprocess.PIPE, text=True, env=environment)
    except OSError:
        return False
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        process.communicate(f"{text}\n")
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # the pager handles Ctrl-C
            return process.wait() != _NO_SUCH_COMMAND


def write_json(value: Any) -> None:
    """Prints one JSON value and a newline; indented on a terminal."""
    import json

    plain = msgspec.to_builtins(value)
    if sys.stdout.isatty():
        print(json.dumps(plain, ensure_ascii=False, indent=2))
    else:
        print(json.dumps(plain), flush=True)


def report(error: errors.WaypointError, *, json: bool) -> int:
    """Prints an error, as JSON or as text. Returns the exit status."""
    if json:
        write_json({"error": error.as_dict(hints.in_command)})
    else:
        from waypoint.cli.render import Paint

        paint = Paint.of(sys.stderr)
        print(f"{paint.bad('waypoint:')} {error.message}", file=sys.stderr)
        for line in hints.word(error.hint, hints.in_command).splitlines():
            print(f"  {line}", file=sys.stderr)
    return error.exit_status
