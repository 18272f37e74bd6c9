"""The verbs on sessions and their points: ask the daemon, show the answer."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.cli import render

if TYPE_CHECKING:
    from types import FrameType

    from waypoint.cli.console import Console
    from waypoint.client.session import Program

TIMED_OUT = 124
INTERRUPTED = 130


# Sessions ---------------------------------------------------------------------------------------------


def new(console: Console) -> int:
    given = console.arguments
    console.prepare()
    args = {
        "name": given.name,
        "options": _box_options(given),
        "size": _terminal_size(),
        "join": False,
        "auto": given.auto,
    }
    if given.policy is not None:
        from waypoint.cli.verbs.effects import read_policy

        args["policy"] = read_policy(given.policy)
    found = console.call("new", args, "starting a session")
    name = found["session"]["name"]
    console.result(found, name)
    console.hint(f"waypoint shell {name}   attaches to it")
    console.hint(f"waypoint exec -s {name} CMD   runs a command in it")
    return 0


def _box_options(given: Any) -> dict[str, Any]:
    base = given.base
    return {
        "base": os.path.abspath(base) if "/" in base or base in {".", ".."} else base,
        "net": given.net,
        "hide": given.hide,
        "binds": given.bind,
        "memory_bytes": given.memory,
        "cpus": given.cpus,
        "pids": given.pids,
        "spares": given.spares,
        "confined": not given.privileged,
    }


def _terminal_size() -> dict[str, int]:
    try:
        there = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        there = os.terminal_size((80, 24))
    return {"rows": there.lines or 24, "columns": there.columns or 80}


def ls(console: Console) -> int:
    found = console.call("ls", {}, "asking the daemon")
    sessions = found["sessions"]
    if console.json or not sessions:
        console.result(found, None)
        if not sessions:
            console.hint("there are no sessions: `waypoint new` starts one")
        return 0
    heads = any(session.get("head") for session in sessions)
    points = console.client.call("log", {"all": True})["checkpoints"] if heads else []
    labels = {point["id"]: _where(point) for point in points}
    for session in sessions:
        # A session's own points need not be called by its name.
        if (head := session.get("head")) in labels:
            labels[head] = labels[head].removeprefix(f"{session['name']}:")
    console.result(found, render.sessions(sessions, labels, console.paint))
    return 0


def _where(point: Mapping[str, Any]) -> str:
    return f"{point['session']}:{point['label']}"


def park(console: Console) -> int:
    found = console.call("park", {"session": console.session}, "parking")
    name = found["session"]["name"]
    title = render.point_title(found["checkpoint"], console.paint)
    console.result(found, f"{name} is parked at {title}")
    console.hint(f"waypoint restore -s {name} @   brings it back")
    return 0


def rm(console: Console) -> int:
    names = console.arguments.sessions
    whose = "its" if len(names) == 1 else "their"
    console.confirm(f"Remove {', '.join(names)} and all {whose} checkpoints?", refused="removing sessions")
    found = console.call("rm", {"sessions": names}, "removing")
    console.result(found, "\n".join(f"removed {name}" for name in found["removed"]))
    return 0


# Commands ---------------------------------------------------------------------------------------------


def exec_(console: Console) -> int:
    words = console.arguments.command
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise errors.UsageError("what is to be run?", hint="waypoint exec [-s SESSION] CMD…")
    if console.arguments.pipe:
        return _run_beside(console, words)
    _refuse_without_pipe(console)
    return _run_in_shell(console, " ".join(words))


def _refuse_without_pipe(console: Console) -> None:
    given = console.arguments
    for option, value in (("--cwd", given.cwd), ("--env", given.env), ("--shell-env", given.shell_env)):
        if value:
            raise errors.UsageError(f"{option} goes with --pipe", hint="in the shell, use `cd` and `export`")


def _run_in_shell(console: Console, command: str) -> int:
    given = console.arguments
    args: dict[str, Any] = {
        "session": console.session,
        "command": command,
        "timeout": given.timeout,
        "on_terminal": given.tty,
        "stream": not console.json,
        "actor": os.environ.get("WAYPOINT_ACTOR"),
    }
    if given.stdin:
        args["stdin"] = base64.b64encode(sys.stdin.buffer.read()).decode()
    shown = _Shown()

    waits = False

    def hear(event: Mapping[str, Any]) -> None:
        nonlocal waits
        if "approval" not in event:
            shown.event(event)
            return
        from waypoint.cli.verbs.effects import ask

        waits = event["approval"]["state"] == "waiting"
        console.client.decide(event["approval"], lambda approval: ask(console, approval))

    def interrupt() -> None:
        if waits:
            raise KeyboardInterrupt  # nothing runs yet: whoever gives up takes the question back
        _type(console, b"\x03")

    with _on_interrupt(interrupt):
        found = console.client.call("exec", args, on_event=hear)
    if found.get("warnings"):
        from waypoint.cli.verbs.effects import warn

        warn(console, found["warnings"])
    if console.json:
        console.result(found, None)
    else:
        shown.rest(found)
    if found["timed_out"]:
        console.say(f"timed out after {render.milliseconds(found['duration_ms'])}")
    if found.get("notice"):
        console.say(found["notice"])
    if found["timed_out"]:
        return TIMED_OUT
    return 1 if found["exit_code"] is None else int(found["exit_code"])


class _Shown:
    """What of a command's output has been printed already.

    A piece that is no text arrives in base64. One in which something was replaced is not what the command
    printed: from there on nothing is shown before the end, when the output is known as it was.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._doubtful = False

    def event(self, event: Mapping[str, Any]) -> None:
        if self._doubtful:
            return
        if "base64" in event:
            self._print(base64.b64decode(event["base64"]))
            return
        sound, replaced, _ = event["output"].partition("\ufffd")
        self._doubtful = bool(replaced)
        self._print(sound.encode())

    def rest(self, found: Mapping[str, Any]) -> None:
        """Prints what was not streamed: also the end of an output that was too long to keep whole."""
        whole = base64.b64decode(found["base64"]) if found.get("base64") else found["output"].encode()
        if whole.startswith(self._bytes):
            self._print(whole[len(self._bytes) :])

    def _print(self, data: bytes) -> None:
        self._bytes += data
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _type(console: Console, data: bytes) -> None:
    """On a connection of its own: another verb may be waiting for its answer on the usual one."""
    client = console.another_client()
    with contextlib.closing(client), contextlib.suppress(errors.WaypointError):
        client.call("type", {"session": console.session, "data": base64.b64encode(data).decode()})


@contextlib.contextmanager
def _on_interrupt(do: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C does this and goes on waiting; the second gives up."""
    pressed = 0

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        do()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run_beside(console: Console, argv: Sequence[str]) -> int:
    import threading
    import time

    from waypoint.client.session import Session

    given = console.arguments
    if given.tty:
        raise errors.UsageError(
            "--tty and --pipe exclude each other", hint="with --pipe there is no terminal"
        )
    session = Session(console.client, console.session or "")
    began = time.monotonic()
    from waypoint.cli.verbs import effects

    program = session.spawn(
        argv,
        cwd=given.cwd,
        env=dict(given.env),
        shell_env=given.shell_env,
        on_approval=lambda approval: effects.ask(console, approval),
    )
    effects.warn(console, program.warnings)
    feeder = threading.Thread(target=_feed, args=(program,), daemon=True)
    feeder.start()
    expired = threading.Event()

    def expire() -> None:
        for name, seconds in (("TERM", 2.0), ("KILL", 0.0)):
            expired.set()
            _signal(console, session, program.pid, name)
            time.sleep(seconds)

    clock = threading.Timer(given.timeout or 0, expire)
    clock.daemon = True
    if given.timeout:
        clock.start()
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    with _on_interrupt(lambda: _signal(console, session, program.pid, "INT")), contextlib.closing(program):
        for stream, data in program.events():
            if console.json:
                kept[stream] += data
            else:
                out = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
                out.write(data)
                out.flush()
    clock.cancel()
    if console.json:
        took = round((time.monotonic() - began) * 1000, 3)
        console.result(_beside_result(program, kept, took, timed_out=expired.is_set()), None)
    if expired.is_set():
        console.say(f"timed out after {given.timeout:g} s")
        return TIMED_OUT
    code = program.exit_code
    return 1 if code is None else code if code >= 0 else 128 - code


def _beside_result(
    program: Program, kept: Mapping[str, bytearray], took_ms: float, *, timed_out: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "exit_code": program.exit_code,
        "output": kept["stdout"].decode(errors="replace"),
        "stderr": kept["stderr"].decode(errors="replace"),
        "duration_ms": took_ms,
        "timed_out": timed_out,
        "truncated": False,
    }
    if kept["stdout"] != found["output"].encode():
        found["base64"] = base64.b64encode(kept["stdout"]).decode()
    return found


def _feed(program: Program) -> None:
    """Our input is the program's, as it comes. It may end before its input does."""
    from waypoint.api.wire import Closed

    with contextlib.suppress(Closed, OSError, ValueError):
        while data := os.read(sys.stdin.fileno(), 1 << 16):
            program.write(data)
        program.close_stdin()


def _signal(console: Console, session: Any, pid: int, name: str) -> None:
    from waypoint.client.session import Session

    client = console.another_client()
    with contextlib.closing(client), contextlib.suppress(errors.WaypointError):
        Session(client, session.name).spawn(["sh", "-c", f"kill -s {name} {pid}"]).communicate()


# Points -----------------------------------------------------------------------------------------------


def checkpoint(console: Console) -> int:
    given = console.arguments
    args = {
        "session": console.session,
        "intent": " ".join(given.intent),
        "name": given.name,
        "files_only": given.files_only,
        "actor": os.environ.get("WAYPOINT_ACTOR") or "person",
        "verify": given.verify,
        "wait": given.wait,
    }
    if given.agent_state:
        from waypoint.cli.verbs.trajectory import given_state

        args["agent_state"] = given_state(given.agent_state)
        args["agent_version"] = given.agent_version
    elif given.agent_version:
        raise errors.UsageError("--agent-version goes with --agent-state", hint="give both, or none")
    if given.wait and given.verify is None:
        raise errors.UsageError("--wait goes with --verify", hint="a checkpoint is there when it is said")
    found = console.call("checkpoint", args, "taking a checkpoint")
    point = found["checkpoint"]
    title = render.point_title(point, console.paint)
    console.result(found, f"{title}  {console.paint.dim(render.point_facts(point))}")
    _coverage(console, point)
    for warning in found.get("warnings", ()):
        console.say(console.paint_aside.warn(warning))
    if given.verify is None:
        return 0
    from waypoint.cli.verbs.timeline import tell_verdict

    return tell_verdict(console, found)


def _coverage(console: Console, point: Mapping[str, Any]) -> None:
    if not console.json:
        for sentence in point.get("coverage", ()):
            console.aside(console.paint_aside.warn(f"  {render.shown(sentence)}"))


def undo(console: Console) -> int:
    return restored(console, console.call("undo", {"session": console.session}, "going back"))


def auto(console: Console) -> int:
    args = {"session": console.session, "on": console.arguments.switch == "on"}
    found = console.call("auto", args, "setting it")
    word = "after each command that changed something" if found["session"]["auto"] else "when asked for only"
    console.result(found, f"points of {found['session']['name']} are taken {word}")
    return 0


def redo(console: Console) -> int:
    return restored(console, console.call("redo", {"session": console.session}, "going forward"))


def restored(console: Console, found: Mapping[str, Any]) -> int:
    """Says where a session stands now."""
    paint = console.paint
    title = render.point_title(found["checkpoint"], paint)
    took = paint.dim(f"ready in {render.milliseconds(found['ready_ms'])}")
    console.result(found, f"{found['session']['name']} is at {title}  {took}")
    if safety := found.get("safety"):
        console.hint(
            f"waypoint undo -s {found['session']['name']}   goes to where it was ({safety['label']})"
        )
    return 0


def fork(console: Console) -> int:
    given = console.arguments
    args = {"session": console.session, "ref": given.ref, "n": given.number, "name": given.name}
    found = console.call("fork", args, f"forking {render.plural(given.number, 'session')}")
    paint = console.paint
    wide = max(len(one["name"]) for one in found["sessions"])
    lines = [
        f"{one['name'].ljust(wide)}  {paint.dim('ready in ' + render.milliseconds(one['ready_ms']))}"
        for one in found["sessions"]
    ]
    console.result(found, "\n".join(lines))
    return 0


# The terminal, from outside -----------------------------------------------------------------------------


def type_(console: Console) -> int:
    from waypoint.cli.keys import typed

    words = console.arguments.keys
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise errors.UsageError("what is to be typed?", hint="waypoint type [-s SESSION] 'ls -l' Enter")
    data = typed(words, literal=console.arguments.literal)
    args = {"session": console.session, "data": base64.b64encode(data).decode()}
    console.result(console.call("type", args, "typing"), None)
    return 0


def screen(console: Console) -> int:
    found = console.call("screen", {"session": console.session}, "asking the daemon")
    console.result(found, found["text"].rstrip("\n"))
    return 0
