"""`waypoint demo`: the main job, on the real thing, in about 20 seconds.

A session works, is kept, is broken, comes back, and is forked. Every figure is measured while it runs and
every claim is checked before it is made: a demo that cannot keep a promise fails. Its sessions are gone
afterwards, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.cli import render

if TYPE_CHECKING:
    from waypoint.cli.console import Console

# Counts how often it was asked, in memory alone.
_SERVER = """\
import http.server
class Counter(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Counter.asked += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"request number %d" % Counter.asked)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("", 8000), Counter).serve_forever()
"""

# Also a thing to come back: a function of the shell. Needs nothing but bash.
_ASK = (
    "ask() { exec 3<>/dev/tcp/127.0.0.1/8000 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3"
    " && tail -n 1 <&3 && echo; local status=$?; exec 3>&-; return $status; }"
)
_WAIT = "for i in {1..100}; do (: </dev/tcp/127.0.0.1/8000) 2>/dev/null && break; sleep 0.05; done"
_VICTIMS = ("/usr/share/doc", "/usr/share/zoneinfo", "/usr/share/perl", "/usr/share")
_PAUSE_SECONDS = 1.1
_FORKS = 3


def demo(console: Console) -> int:
    console.prepare()
    prefix = f"demo-{secrets.token_hex(2)}"
    story = _Story(console, prefix)
    with _cleaned_up(console, prefix):
        figures = story.tell()
    if console.json:
        console.result({"figures": figures}, None)
    return 0


def _requests(first: int, last: int) -> str:
    """What the server answers to these."""
    return "\n".join(f"request number {number}" for number in range(first, last + 1))


@contextlib.contextmanager
def _cleaned_up(console: Console, prefix: str) -> Iterator[None]:
    """Removes the demo's sessions at the end, which a Ctrl-C brings forward and cannot prevent."""

    def stop(number: int, _frame: Any) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        client = console.another_client()
        with console.progress("cleaning up"), contextlib.suppress(errors.WaypointError):
            there = [session["name"] for session in client.call("ls")["sessions"]]
            if mine := [name for name in there if name.startswith(prefix)]:
                client.call("rm", {"sessions": mine})
        for number, handler in before.items():
            signal.signal(number, handler)


class _Story:
    """What happens, told as it happens."""

    def __init__(self, console: Console, name: str) -> None:
        self._console, self._name = console, name
        self._paint = console.paint
        self._pause = _PAUSE_SECONDS if sys.stdout.isatty() and not console.arguments.fast else 0.0
        self._chapters = 0
        self._figures: dict[str, Any] = {}

    def tell(self) -> Mapping[str, Any]:
        began = time.monotonic()
        victim = next((path for path in _VICTIMS if os.path.isdir(path) and os.listdir(path)), "/usr")
        entries = len(os.listdir(victim))
        self._print(
            "Waypoint keeps a live session: its files, its running programs and its shell, all at one moment."
        )
        self._print(self._paint.dim("Everything below happens now, in sessions that are removed at the end."))

        self._chapter("A session: this machine's files, and what it writes stays its own")
        self._start()

        self._chapter("Work goes on in it: variables, files, a server that counts in its memory")
        self._work()

        self._chapter("Keep this moment; nothing has to stop for it")
        point = self._keep()

        self._chapter("Then something goes badly wrong")
        self._break(victim)
        here = len(os.listdir(victim))
        self._expect(here == entries, f"{victim} of this machine has {here} entries now and had {entries}")
        self._note(f"{victim} on this machine itself: untouched, {render.plural(entries, 'entry')}")

        self._chapter("Go back")
        self._go_back(victim, entries)

        self._chapter(
            f"And from the same moment, {_FORKS} sessions at once, each with a port 8000 of its own"
        )
        self._fork()

        seconds = time.monotonic() - began
        self._figures["seconds"] = round(seconds, 1)
        self._end(point, seconds)
        return self._figures

    # ---- chapters ----------------------------------------------------------------------------

    def _start(self) -> None:
        self._command(f"waypoint new {self._name}")
        began = time.monotonic()
        options = {"net": "nat"}
        self._call("new", {"name": self._name, "options": options, "join": False})
        self._figure("new_ms", (time.monotonic() - began) * 1000, "ready in")

    def _work(self) -> None:
        there = self._run("command -v python3 || true", shown=False).strip()
        python = "python3" if there else os.path.realpath(sys.executable)
        source = _SERVER.replace("'", "'\\''")
        self._run(_ASK, shown=False)
        self._run("mkdir -p /srv/app && cd /srv/app && export TOKEN=abc123")
        self._run("echo 'it works' > notes.txt")
        self._run(f"printf '%s' '{source}' > server.py", shown=False)
        self._run(f"{python} server.py &", told="python3 server.py &")
        self._run(_WAIT, shown=False)
        self._answer("ask; ask; ask", _requests(1, 3))

    def _keep(self) -> Mapping[str, Any]:
        self._command(f'waypoint checkpoint -s {self._name} "server up" --name up')
        args = {"session": self._name, "intent": "server up", "name": "up", "files_only": False}
        point: Mapping[str, Any] = self._call("checkpoint", args)["checkpoint"]
        self._figures |= {key: point[key] for key in ("pause_ms", "total_ms", "size_bytes")}
        self._note(f"{point['label']}: {render.point_facts(point)}")
        return point

    def _break(self, victim: str) -> None:
        self._run(f"kill %1; wait 2>/dev/null; cd /; unset TOKEN; rm -rf /srv/app {victim}", check=False)
        self._answer("ask 2>/dev/null || echo nobody answers", "nobody answers")
        self._answer(f"ls {victim} 2>/dev/null | wc -l; echo TOKEN=$TOKEN", "0\nTOKEN=")

    def _go_back(self, victim: str, entries: int) -> None:
        self._command(f"waypoint restore -s {self._name} up")
        args = {"session": self._name, "ref": "up", "safety": True, "files_only": False}
        found = self._call("restore", args)
        self._figure("restore_ms", found["ready_ms"], "ready in")
        self._answer("pwd; echo TOKEN=$TOKEN; cat notes.txt", "/srv/app\nTOKEN=abc123\nit works")
        self._answer(f"ls {victim} | wc -l", str(entries))
        self._run("jobs", show_output=True)
        self._answer("ask", _requests(4, 4))
        self._note("the server never knew: it counts on from what it had in memory")

    def _fork(self) -> None:
        self._command(f"waypoint fork -s {self._name} up -n {_FORKS} --name {self._name}-try")
        args = {"session": self._name, "ref": "up", "n": _FORKS, "name": f"{self._name}-try"}
        began = time.monotonic()
        forks = self._call("fork", args)["sessions"]
        self._figure("fork_ms", (time.monotonic() - began) * 1000, f"all {_FORKS} ready in")
        for number, fork in enumerate(forks, 1):
            self._answer("; ".join(["ask"] * number), _requests(4, 3 + number), session=fork["name"])

    def _end(self, point: Mapping[str, Any], seconds: float) -> None:
        figures = self._figures
        pause = render.milliseconds(figures["pause_ms"])
        rows = (
            ("a new session", render.milliseconds(figures["new_ms"])),
            ("a checkpoint", f"{pause} of standing still, {render.size(point['size_bytes'])}"),
            ("back again", render.milliseconds(figures["restore_ms"])),
            (f"{_FORKS} forks", render.milliseconds(figures["fork_ms"])),
        )
        self._print("")
        for what, figure in rows:
            self._print(f"  {what.ljust(14)} {self._paint.bold(figure)}")
        self._print(f"\nThat took {seconds:.0f} s. Now yours:  waypoint new work && waypoint shell work")

    # ---- telling -----------------------------------------------------------------------------

    def _print(self, text: str) -> None:
        if not self._console.json:
            print(text, flush=True)

    def _chapter(self, title: str) -> None:
        if self._chapters:
            time.sleep(self._pause)
        self._chapters += 1
        self._print(f"\n{self._paint.bold(f'{self._chapters}  {title}')}")
        time.sleep(self._pause)

    def _command(self, command: str, session: str | None = None) -> None:
        where = f"{session or self._name} " if session else ""
        self._print(f"   {self._paint.dim(f'{where}$')} {self._paint.name(command)}")
        time.sleep(self._pause / 3)

    def _note(self, text: str) -> None:
        self._print(f"     {self._paint.good('→')} {text}")

    def _figure(self, name: str, ms: float, words: str) -> None:
        self._figures[name] = round(ms, 1)
        self._note(f"{words} {render.milliseconds(ms)}")

    # ---- doing -------------------------------------------------------------------------------

    def _call(self, verb: str, args: Mapping[str, Any]) -> Any:
        return self._console.client.call(verb, args)

    def _run(
        self,
        command: str,
        *,
        shown: bool = True,
        told: str = "",
        check: bool = True,
        show_output: bool = False,
        session: str | None = None,
    ) -> str:
        """Runs it in the session's shell."""
        if shown:
            self._command(told or command, session)
        found = self._call("exec", {"session": session or self._name, "command": command, "timeout": 30.0})
        output = str(found["output"])
        if check:
            self._expect(
                found["exit_code"] == 0, f"{told or command} exited with {found['exit_code']}: {output}"
            )
        if show_output:
            for line in output.splitlines():
                self._print(f"     {render.shown(line)}")
        return output

    def _answer(self, command: str, expected: str, *, session: str | None = None) -> None:
        """Runs it, shows what it printed, and insists on it."""
        output = self._run(command, show_output=True, session=session).strip()
        self._expect(output == expected, f"{command} printed {output!r}, not {expected!r}")

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise errors.SessionError(
                f"the demo met something it did not expect: {otherwise}", hint="please report it"
            )
