"""The process as a verb sees it: where results go, who can be asked, how the daemon is reached.

Results go to stdout, everything else to stderr. With --json stdout carries exactly one JSON value, be it a
result or an error.
"""

from __future__ import annotations

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from waypoint import errors
from waypoint.api import hints

if TYPE_CHECKING:
    from waypoint.cli.render import Paint
    from waypoint.client.session import Client
    from waypoint.home import Home

_QUIET_SECONDS = 0.5
"""What takes no longer needs no sign of life."""
_NO_SUCH_COMMAND = 127


class Console:
    """What a verb is given: its arguments, and the ways to answer."""

    def __init__(self, arguments: Namespace, *, home: str | None = None, json: bool = False) -> None:
        self.arguments = arguments
        self.json = json
        self._home = home
        self._client: Client | None = None
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_how: object) -> None:
        for client in self._clients:
            client.close()

    # ---- the other side ----------------------------------------------------------------------

    @property
    def home(self) -> Home:
        from waypoint.home import locate

        return locate(self._home)

    @property
    def client(self) -> Client:
        """The client of this home's daemon, which a call starts if need be."""
        if self._client is None:
            self._client = self.another_client()
        return self._client

    def another_client(self, *, start: bool = True) -> Client:
        """One with a connection of its own."""
        from waypoint.client.session import Client

        self._clients.append(Client(self._home, start=start))
        return self._clients[-1]

    @property
    def session(self) -> str | None:
        """The session that was asked for; None lets the daemon choose the only one there is."""
        return self.arguments.session or os.environ.get("WAYPOINT_SESSION") or None

    def call(self, verb: str, args: Mapping[str, Any], doing: str) -> Any:
        """Asks the daemon, showing what is being done if it takes a while. Who asks is a person, unless
        WAYPOINT_ACTOR says agent."""
        actor = os.environ.get("WAYPOINT_ACTOR")
        with self.progress(doing):
            return self.client.call(verb, {"actor": actor, **args} if actor else args)

    def prepare(self) -> None:
        """Sets this machine up if that was never done. Where a daemon runs there is nothing to do."""
        with contextlib.suppress(errors.DaemonUnreachable):
            self.another_client(start=False).call("ping")
            return
        if os.geteuid() != 0:
            raise errors.NotRoot("Waypoint needs root", hint="run it with sudo, or as root")
        from waypoint.machine import setup

        home = self.home
        if setup.current_engine(setup.engine_dir(home.path)) is None:
            self.say("setting this machine up (once)")
            setup.set_up(home.path, self.step)

    # ---- saying ------------------------------------------------------------------------------

    @property
    def paint(self) -> Paint:
        from waypoint.cli.render import Paint

        return Paint.of(sys.stdout)

    @property
    def paint_aside(self) -> Paint:
        """The colours of what goes to stderr."""
        from waypoint.cli.render import Paint

        return Paint.of(sys.stderr)

    def result(self, value: Any, text: str | None) -> None:
        """The answer: as JSON if that was asked for, else in words."""
        if self.json:
            write_json(value)
        elif text:
            print(text)

    def show(self, value: Any, text: str) -> None:
        """An answer that may be long: as JSON, or in words through a pager if there is a terminal and not
        enough room on it."""
        if not self.json and sys.stdout.isatty() and text.count("\n") + 1 >= self.rows and _page(text):
            return
        self.result(value, text)

    @property
    def rows(self) -> int:
        return self._size().lines

    @property
    def width(self) -> int:
        """The columns of the terminal; of no terminal, as many as a person would want to read."""
        return max(40, self._size().columns)

    def _size(self) -> os.terminal_size:
        try:
            there = os.get_terminal_size(sys.stdout.fileno())
        except (OSError, ValueError):
            there = os.terminal_size((0, 0))
        with contextlib.suppress(ValueError):
            there = os.terminal_size((int(os.environ.get("COLUMNS") or 0) or there.columns, there.lines))
        return os.terminal_size((there.columns or 100, there.lines or 24))

    def say(self, text: str) -> None:
        """A message beside the result."""
        self.aside(f"waypoint: {text}")

    def step(self, text: str) -> None:
        """One step of something long."""
        self.aside(self.paint_aside.dim(f"  {text}"))

    def aside(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def hint(self, text: str) -> None:
        """For a person at a terminal only."""
        if not self.json and sys.stderr.isatty() and sys.stdout.isatty():
            self.aside(self.paint_aside.dim(f"  {text}"))

    # ---- asking ------------------------------------------------------------------------------

    @property
    def can_ask(self) -> bool:
        return not self.json and sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, question: str, *, refused: str) -> None:
        """Returns when it may be done. `refused`: what was not done, for the error."""
        if getattr(self.arguments, "yes", False):
            return
        if not self.can_ask:
            raise errors.ConfirmationNeeded(
                f"{refused} needs to be confirmed", hint="say --yes if you are sure"
            )
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise errors.ConfirmationNeeded(f"{refused} was not confirmed", hint="nothing has changed")

    # ---- progress ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def progress(self, doing: str) -> Iterator[None]:
        """A line that says what is being done, on a terminal, while it lasts longer than a moment."""
        if self.json or not sys.stderr.isatty():
            yield
            return
        import threading
        import time

        done = threading.Event()
        drawn = False

        def draw() -> None:
            nonlocal drawn
            started, frames = time.monotonic(), "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
            if done.wait(_QUIET_SECONDS):
                return
            drawn = True
            while True:
                took = time.monotonic() - started
                sys.stderr.write(f"\r{frames[int(took * 8) % len(frames)]} {doing} {took:.1f} s\x1b[K")
                sys.stderr.flush()
                if done.wait(0.12):
                    return

        drawer = threading.Thread(target=draw, daemon=True)
        drawer.start()
        try:
            yield
        finally:
            done.set()
            drawer.join()
            if drawn:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


def _page(text: str) -> bool:
    """Through $PAGER, or less. False when there is none: nothing was shown then."""
    import subprocess

    pager = os.environ.get("PAGER", "less")
    if pager in ("", "cat"):
        return False
    # What git asks of less: leave when it fits, keep colours, leave the screen as it is.
    environment = {"LESS": "FRX", "LESSCHARSET": "utf-8", **os.environ}
    try:
        # $PAGER is the user's own command line, options and all.
        running = subprocess.Popen(["sh", "-c", pager], stdin=subprocess.PIPE, text=True, env=environment)
    except OSError:
        return False
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        running.communicate(f"{text}\n")
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # the pager's business
            return running.wait() != _NO_SUCH_COMMAND


def write_json(value: Any) -> None:
    """One JSON value and a newline; with room to read on a terminal."""
    import json

    if sys.stdout.isatty():
        print(json.dumps(value, ensure_ascii=False, indent=2))
    else:
        print(json.dumps(value), flush=True)


def report(error: errors.WaypointError, *, json: bool) -> int:
    """Tells an error the way it was asked for. Returns the exit status."""
    if json:
        write_json({"error": error.as_dict(hints.in_command)})
    else:
        from waypoint.cli.render import Paint

        paint = Paint.of(sys.stderr)
        print(f"{paint.bad('waypoint:')} {error.message}", file=sys.stderr)
        for line in hints.word(error.hint, hints.in_command).splitlines():
            print(f"  {line}", file=sys.stderr)
    return error.exit_status
