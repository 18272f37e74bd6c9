"""`waypoint demo`: the main job with real sessions, in about 20 seconds.

A session is started, checkpointed, damaged, restored and forked. Every figure is measured while the demo
runs, and every statement is checked before it is printed: if one is not true, the demo fails. Its sessions
are removed at the end, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.api.request import Result
from waypoint.api.sessions import Ls, Rm
from waypoint.cli import render
from waypoint.cli.spec import flag, verb

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.client.session import Session
    from waypoint.model import Checkpoint

# Counts its requests, in memory only.
_SERVER = """\
import http.server
class Counter(http.server.BaseHTTPRequestHandler):
    requests = 0
    def do_GET(self):
        Counter.requests += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"request number %d" % Counter.requests)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("", 8000), Counter).serve_forever()
"""

# A function of the shell, which the restore has to bring back too. Needs only bash.
_ASK = (
    "ask() { exec 3<>/dev/tcp/127.0.0.1/8000 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3"
    " && tail -n 1 <&3 && echo; local status=$?; exec 3>&-; return $status; }"
)
_WAIT = "for i in {1..100}; do (: </dev/tcp/127.0.0.1/8000) 2>/dev/null && break; sleep 0.05; done"
_FOLDERS_TO_DELETE = ("/usr/share/doc", "/usr/share/zoneinfo", "/usr/share/perl", "/usr/share")
_PAUSE_SECONDS = 1.1
_COMMAND_SECONDS = 30.0
_FORKS = 3


class Figures(Result, frozen=True):
    """What the demo has measured."""

    figures: dict[str, float]


@verb(
    "demo",
    "see the main job at work: 20 seconds, in sessions that are removed afterwards",
    flag("--fast", help="without pauses for reading"),
    examples=("waypoint demo",),
    json=Figures,
)
def demo(console: Console) -> int:
    console.prepare()
    prefix = f"demo-{secrets.token_hex(2)}"
    with _cleanup(console, prefix):
        figures = _Demo(console, prefix).run()
    if console.json:
        console.result(Figures(figures=figures), None)
    if console.was_set_up:
        console.offer_link()
    return 0


def _requests(first: int, last: int) -> str:
    """The replies of the server to these requests."""
    return "\n".join(f"request number {number}" for number in range(first, last + 1))


@contextlib.contextmanager
def _cleanup(console: Console, prefix: str) -> Iterator[None]:
    """Removes the demo's sessions at the end. Ctrl-C ends the demo early, but cannot stop the removal."""

    def stop(number: int, _frame: Any) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        transport = console.another_transport()
        with console.progress("cleaning up"), contextlib.suppress(errors.WaypointError):
            names = [session.name for session in transport.ask(Ls()).sessions]
            if own := tuple(name for name in names if name.startswith(prefix)):
                transport.ask(Rm(sessions=own))
        for number, handler in before.items():
            signal.signal(number, handler)


class _Demo:
    """The steps of the demo, with what is printed about each."""

    def __init__(self, console: Console, name: str) -> None:
        from waypoint.client.client import Client

        self._console, self._name = console, name
        self._client = Client(console.home.path)
        self._paint = console.paint
        self._pause = _PAUSE_SECONDS if sys.stdout.isatty() and not console.arguments.fast else 0.0
        self._steps = 0
        self._figures: dict[str, float] = {}

    def run(self) -> dict[str, float]:
        started = time.monotonic()
        folder = next(
            (path for path in _FOLDERS_TO_DELETE if os.path.isdir(path) and os.listdir(path)), "/usr"
        )
        entries = len(os.listdir(folder))
        self._print(
            "Waypoint saves a live session at one moment: its files, its running programs, its shell."
        )
        self._print(self._paint.dim("Everything below happens now, in sessions that are removed at the end."))

        self._step("A session: it sees this machine's files, and what it writes stays in its own layer")
        self._start()

        self._step("Work in it: variables, files, a server that counts in its memory")
        self._work()

        self._step("Keep this moment: a checkpoint, while everything goes on running")
        point = self._checkpoint()

        self._step("Now something goes wrong")
        self._break(folder)
        here = len(os.listdir(folder))
        self._expect(here == entries, f"{folder} of this machine has {here} entries now and had {entries}")
        self._note(f"{folder} on this machine itself: untouched, {render.plural(entries, 'entry')}")

        self._step("Go back")
        self._restore(folder, entries)

        self._step(f"Start {_FORKS} sessions from the same moment, each with its own port 8000")
        self._fork()

        seconds = time.monotonic() - started
        self._figures["seconds"] = round(seconds, 1)
        self._end(point, seconds)
        return self._figures

    # ---- steps -------------------------------------------------------------------------------

    def _start(self) -> None:
        self._command(f"waypoint new {self._name}")
        started = time.monotonic()
        self._session = self._client.new(self._name)
        self._figure("new_ms", (time.monotonic() - started) * 1000, "ready in")

    def _work(self) -> None:
        has_python = bool(self._run("command -v python3 || true", shown=False).strip())
        python = "python3" if has_python else os.path.realpath(sys.executable)
        source = _SERVER.replace("'", "'\\''")
        self._run(_ASK, shown=False)
        self._run("mkdir -p /srv/app && cd /srv/app && export TOKEN=abc123")
        self._run("echo 'it works' > notes.txt")
        self._run(f"printf '%s' '{source}' > server.py", shown=False)
        self._run(f"{python} server.py &", shown_as="python3 server.py &")
        self._run(_WAIT, shown=False)
        self._expect_output("ask; ask; ask", _requests(1, 3))

    def _checkpoint(self) -> Checkpoint:
        self._command(f'waypoint checkpoint -s {self._name} "server up" --name up')
        point = self._session.checkpoint("server up", name="up").info
        self._figures |= {key: getattr(point, key) for key in ("pause_ms", "total_ms", "size_bytes")}
        self._note(f"{point.label}: {render.point_facts(point)}")
        return point

    def _break(self, folder: str) -> None:
        self._run(f"kill %1; wait 2>/dev/null; cd /; unset TOKEN; rm -rf /srv/app {folder}", check=False)
        self._expect_output("ask 2>/dev/null || echo no answer", "no answer")
        self._expect_output(f"ls {folder} 2>/dev/null | wc -l; echo TOKEN=$TOKEN", "0\nTOKEN=")

    def _restore(self, folder: str, entries: int) -> None:
        self._command(f"waypoint restore -s {self._name} up")
        self._figure("restore_ms", self._session.restore("up").ready_ms, "ready in")
        self._expect_output("pwd; echo TOKEN=$TOKEN; cat notes.txt", "/srv/app\nTOKEN=abc123\nit works")
        self._expect_output(f"ls {folder} | wc -l", str(entries))
        self._run("jobs", show_output=True)
        self._expect_output("ask", _requests(4, 4))
        self._note("the server goes on counting from what it had in memory")

    def _fork(self) -> None:
        self._command(f"waypoint fork -s {self._name} up -n {_FORKS} --name {self._name}-try")
        started = time.monotonic()
        forks = self._session.fork(_FORKS, ref="up", name=f"{self._name}-try")
        self._figure("fork_ms", (time.monotonic() - started) * 1000, f"all {_FORKS} ready in")
        for number, fork in enumerate(forks, 1):
            self._expect_output("; ".join(["ask"] * number), _requests(4, 3 + number), fork)

    def _end(self, point: Checkpoint, seconds: float) -> None:
        figures = self._figures
        pause = render.milliseconds(figures["pause_ms"])
        rows = (
            ("a new session", render.milliseconds(figures["new_ms"])),
            ("a checkpoint", f"{pause} of pause, {render.size(point.size_bytes)}"),
            ("a restore", render.milliseconds(figures["restore_ms"])),
            (f"{_FORKS} forks", render.milliseconds(figures["fork_ms"])),
        )
        self._print("")
        for what, figure in rows:
            self._print(f"  {what.ljust(14)} {self._paint.bold(figure)}")
        from waypoint.machine.link import command

        own = command()
        self._print(f"\nThis took {seconds:.0f} s. Start your own:  {own} new work && {own} shell work")

    # ---- output ------------------------------------------------------------------------------

    def _print(self, text: str) -> None:
        if not self._console.json:
            print(text, flush=True)

    def _step(self, title: str) -> None:
        if self._steps:
            time.sleep(self._pause)
        self._steps += 1
        self._print(f"\n{self._paint.bold(f'{self._steps}  {title}')}")
        time.sleep(self._pause)

    def _command(self, command: str, fork: Session | None = None) -> None:
        where = f"{fork.name} " if fork else ""
        self._print(f"   {self._paint.dim(f'{where}$')} {self._paint.name(command)}")
        time.sleep(self._pause / 3)

    def _note(self, text: str) -> None:
        self._print(f"     {self._paint.good('→')} {text}")

    def _figure(self, name: str, ms: float, words: str) -> None:
        self._figures[name] = round(ms, 1)
        self._note(f"{words} {render.milliseconds(ms)}")

    # ---- the session -------------------------------------------------------------------------

    def _run(
        self,
        command: str,
        *,
        shown: bool = True,
        shown_as: str = "",
        check: bool = True,
        show_output: bool = False,
        fork: Session | None = None,
    ) -> str:
        """Runs a command in the session's shell. `shown_as` is printed instead of a long command."""
        if shown:
            self._command(shown_as or command, fork)
        result = (fork or self._session).run(command, timeout=_COMMAND_SECONDS)
        output = result.output
        if check:
            failure = f"{shown_as or command} exited with {result.exit_code}: {output}"
            self._expect(result.exit_code == 0, failure)
        if show_output:
            for line in output.splitlines():
                self._print(f"     {render.shown(line)}")
        return output

    def _expect_output(self, command: str, expected: str, fork: Session | None = None) -> None:
        """Runs a command, prints its output, and fails if that is not the expected one."""
        output = self._run(command, show_output=True, fork=fork).strip()
        self._expect(output == expected, f"{command} printed {output!r}, not {expected!r}")

    def _expect(self, condition: bool, failure: str) -> None:
        if not condition:
            raise errors.SessionError(f"the demo failed: {failure}", hint="please report it")
