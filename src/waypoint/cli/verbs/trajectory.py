"""What happened in a session, and what agents add to that: trace, record, agent-state."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from waypoint import errors
from waypoint.api import agent
from waypoint.api.agent import AgentState, Cast, Record, Trace
from waypoint.api.request import Result, StatePayload
from waypoint.api.traces import Replay
from waypoint.cli import render
from waypoint.cli.console import text_size
from waypoint.cli.spec import SESSION, argument, count, flag, positive, verb
from waypoint.client.payloads import local_path
from waypoint.model import Checkpoint
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.api.agent import TraceResult
    from waypoint.cli.console import Console
    from waypoint.cli.render import Paint
    from waypoint.model import Event

_OUTPUT_LINES = 20
_KINDS = (
    "command", "output", "message", "tool_call", "tool_result", "checkpoint", "restored", "forked", "task",
    "effect", "approval", "note",
)  # fmt: skip


class CastFile(Result, frozen=True):
    """The file that an asciicast was written to."""

    file: str


class StateValue(Result, frozen=True):
    """What an agent left with a point: a JSON value (`json`), or bytes in base64."""

    checkpoint: Checkpoint | None
    agent_version: str | None
    json: Any = UNSET
    base64: str | UnsetType = UNSET


# trace ----------------------------------------------------------------------------------------------------


@verb(
    "trace",
    "show what happened in a session, in order: commands, messages, points, tasks",
    SESSION,
    argument(
        "ref", metavar="REF", nargs="?", help="the events that lead to this point (default: to the present)"
    ),
    flag("--all", help="all events, also those that a restore has abandoned"),
    argument("-n", "--number", metavar="N", type=count, help="only the last N"),
    argument(
        "--kind",
        choices=_KINDS,
        action="append",
        default=[],
        help="only events of this kind; can be repeated",
    ),
    flag("--full", help="with the output of commands"),
    argument("--event", metavar="N", type=count, help="one event, complete"),
    flag("--jsonl", help="one event per line, as JSON"),
    argument(
        "--cast", metavar="FILE|-", help="what the terminal showed, as an asciicast with a marker per point"
    ),
    examples=(
        "waypoint trace -n 20",
        "waypoint trace c3 --kind command --full",
        "waypoint trace --all --jsonl >history.jsonl",
        "waypoint trace --cast work.cast",
    ),
    about="It shows the events that lead to where the session is now. Events that a restore has abandoned"
    " lead to the safety checkpoint of that restore; --all shows them too.",
    json={"": "trace", "--event": "event", "--cast FILE": CastFile},
)
def trace(console: Console) -> int:
    arguments = console.arguments
    if arguments.cast:
        return _write_cast(console)
    if arguments.event:
        return _show_event(console)
    as_data = console.json or arguments.jsonl
    request = Trace(
        session=console.session,
        ref=arguments.ref,
        all=arguments.all,
        kinds=tuple(arguments.kind),
        # As text, events without words are left out below: ask for more than N.
        limit=arguments.number if as_data else arguments.number and arguments.number * 3 + 10,
        full=as_data or arguments.full,
    )
    result = console.send(request, "reading the events")
    if arguments.jsonl:
        import json

        for event in result.events:
            print(json.dumps(msgspec.to_builtins(event), ensure_ascii=False))
        return 0
    console.show(result, "\n".join(_event_lines(result, console, full=arguments.full)))
    if not result.events:
        console.hint("nothing has happened yet")
    return 0


def _event_lines(trace: TraceResult, console: Console, *, full: bool) -> list[str]:
    paint, limit, columns = console.paint, console.arguments.number, text_size().columns
    entries: list[list[str]] = []
    width = len(str(trace.events[-1].id)) if trace.events else 0
    for event, words in zip(trace.events, trace.lines, strict=True):
        if not words:
            continue  # the terminal showed something, and nothing else happened
        session = "" if event.session == trace.session else f"{event.session}  "
        left = f"{event.id:>{width}}  {render.clock(event.at)}  {session}"
        text = words if full else render.cut(words, columns - len(left))
        entries.append([f"{paint.dim(left)}{_painted(event, render.shown(text), paint)}"])
        if full:
            entries[-1] += [f"    {line}" for line in _output_lines(event.body)]
    return [line for entry in entries[-(limit or len(entries)) :] for line in entry]


def _painted(event: Event, text: str, paint: Paint) -> str:
    match event.kind:
        case "command":
            return paint.bad(text) if event.body.get("exit_code") else text
        case "checkpoint" | "restored" | "forked":
            return paint.bold(text)
        case "message" | "tool_call" | "tool_result" | "note":
            return paint.name(text)
        case "effect" | "approval":
            return paint.warn(text)
        case "output":
            return paint.dim(text)
    return text


def _output_lines(body: Mapping[str, Any]) -> Sequence[str]:
    if body.get("raw"):
        return ["(a full-screen program; `--cast` plays it)"]
    lines = [render.shown(line) for line in str(body.get("output") or "").splitlines()]
    if len(lines) > _OUTPUT_LINES:
        half = _OUTPUT_LINES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half:,} lines", *lines[-half:]]
    return lines


def _show_event(console: Console) -> int:
    result = console.send(agent.Event(event=console.arguments.event), "reading the event")
    body = result.event.body
    if console.json:
        console.result(result, None)
    elif "base64" in body:
        sys.stdout.buffer.write(base64.b64decode(body["base64"]))
    elif isinstance(body.get("output"), str):
        sys.stdout.write(body["output"])
    else:
        import json

        print(json.dumps(body, ensure_ascii=False, indent=2))
    return 0


def _write_cast(console: Console) -> int:
    arguments = console.arguments
    if arguments.all or arguments.kind or arguments.number:
        raise errors.UsageError("a cast shows what leads to one point", hint="leave out --all, --kind and -n")
    if arguments.cast == "-":
        request = Cast(session=console.session, ref=arguments.ref)
        console.transport.ask(request, on_data=sys.stdout.buffer.write)
        sys.stdout.buffer.flush()
        return 0
    try:
        console.open_session().cast(arguments.cast, arguments.ref)
    except OSError as error:
        raise errors.UsageError(f"cannot write {arguments.cast}: {error.strerror}") from error
    console.result(CastFile(file=arguments.cast), None)
    console.hint(f"asciinema play {arguments.cast}")
    return 0


# replay ---------------------------------------------------------------------------------------------------


@verb(
    "replay",
    "run again what was recorded, and show whether the same comes about",
    SESSION,
    argument("--from", metavar="REF", dest="start", help="from this point on (default: from where it began)"),
    argument("-r", "--ref", metavar="REF", help="up to this point (default: up to now)"),
    argument("--base", metavar="BASE", help="for a file: over this base, whatever the trace says"),
    flag("--outside", help="run commands that act outside, too"),
    argument(
        "--timeout",
        metavar="SEC",
        type=positive,
        help="for one command (default: ten times as long as it took, and at least 60)",
    ),
    flag("--all", help="go on after a difference"),
    flag("--keep", help="keep the session in which it ran"),
    argument(
        "what",
        metavar="TRACE|SESSION",
        nargs="?",
        help="a file that `export --trace` has written, or a session",
    ),
    examples=(
        "waypoint replay work --from up",
        "waypoint replay ./work.trace",
    ),
    about="The commands are run in a session of its own, a fork of the starting point, and compared with what"
    " was recorded: exit status, output (without times, process ids and names of temporary files), and at"
    " each point its files, packages and verdicts. It ends at the first difference, with exit status 1."
    " Commands that act outside, as the policy judges them, are not run.",
)
def replay(console: Console) -> int:
    import os

    arguments = console.arguments
    file = arguments.what if arguments.what and os.path.exists(arguments.what) else None
    if arguments.what and "/" in arguments.what and not file:
        raise errors.NotFound(f"there is no file {arguments.what}")
    request = Replay(
        session=None if file else arguments.what or console.session,
        trace=file and local_path(file),
        start=arguments.start,
        ref=arguments.ref,
        base=arguments.base,
        outside=arguments.outside,
        timeout=arguments.timeout,
        all=arguments.all,
        keep=arguments.keep,
    )
    paint = console.stderr_paint

    def show_step(event: Mapping[str, Any]) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        for manner, line in views.replayed(event["step"])[:1]:
            console.aside(getattr(paint, manner)(render.cut(line, text_size().columns - 1)))

    result = console.send(request, "running it again", None if console.json else show_step)
    view = views.Replay(msgspec.to_builtins(result))
    console.result(result, render.styled(view.lines(), console.paint))
    return 0 if view.same else 1


# record ---------------------------------------------------------------------------------------------------


@verb(
    "record",
    "add messages, tool calls and their results to what happened",
    SESSION,
    argument("--name", metavar="TOOL", help="the tool, for a tool_call or tool_result"),
    argument("--call", metavar="ID", help="links a tool_result to its tool_call"),
    flag("--error", help="for a tool_result: the tool failed"),
    flag("--structured", help="the text is JSON, and kept as data"),
    argument(
        "what",
        metavar="WHAT",
        help="the author (user, assistant, system, developer, tool), or tool_call, tool_result, note",
    ),
    argument(
        "text", metavar="TEXT", nargs="*", default=[], help="the text (default, or with -: read from stdin)"
    ),
    examples=(
        "waypoint record user 'add payments'",
        'waypoint record tool_call --name search --call 7 \'{"query": "stripe"}\'',
        "waypoint record assistant <answer.txt",
    ),
    about="It is stored when this returns, and moves with the session: a restore takes the conversation"
    " back.",
)
def record(console: Console) -> int:
    arguments = console.arguments
    content: Any = " ".join(arguments.text).encode(errors="replace").decode()
    if arguments.text in ([], ["-"]):
        if sys.stdin.isatty():
            console.hint("reading the text from the terminal; Ctrl-D ends it")
        content = sys.stdin.buffer.read().decode(errors="replace").rstrip("\n")
    if arguments.structured or (arguments.what == "tool_call" and content.lstrip().startswith("{")):
        content = _parse_json(content)
    request = Record(
        session=console.session,
        what=arguments.what,
        content=content,
        name=arguments.name,
        call=arguments.call,
        error=arguments.error,
        actor="person" if arguments.what == "user" else "agent",  # the author, not the caller of this verb
    )
    result = console.send(request, "recording")
    console.result(result, f"event {result.event}")
    return 0


def _parse_json(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError as error:
        raise errors.UsageError(
            f"this is not JSON: {error}", hint="leave out --structured for text"
        ) from error


# agent-state ----------------------------------------------------------------------------------------------


def read_agent_state(file: str) -> StatePayload:
    """The content of a file (or of stdin) as agent state: JSON if it is, else bytes."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(file, "rb") as opened:
                data = opened.read()
    except OSError as error:
        raise errors.UsageError(f"cannot read {file}: {error.strerror}", hint="name a file, or -") from error
    import json

    try:
        json.loads(data.decode())
        return StatePayload(text=data.decode())
    except ValueError:
        return StatePayload(base64=data)


@verb(
    "agent-state",
    "print the agent state of a point (`checkpoint --agent-state`)",
    SESSION,
    argument("ref", metavar="REF", nargs="?", help="the point (default: the last one that has agent state)"),
    argument("-o", "--output", metavar="FILE", help="write it to this file"),
    examples=("waypoint agent-state c3", "waypoint agent-state -o state.json"),
    json=StateValue,
)
def agent_state(console: Console) -> int:
    arguments = console.arguments
    request = AgentState(session=console.session, ref=arguments.ref)
    result = console.send(request, "waiting for the daemon")
    if result.text is UNSET and result.base64 is UNSET:
        raise errors.NotFound(
            "this point has no agent state" if arguments.ref else "no point has agent state",
            hint="`waypoint checkpoint --agent-state FILE` adds it",
        )
    if console.json:
        value = StateValue(
            checkpoint=result.checkpoint,
            agent_version=result.agent_version,
            json=msgspec.json.decode(result.text) if result.text is not UNSET else UNSET,
            base64=result.base64,
        )
        console.result(value, None)
        return 0
    if result.base64 is not UNSET:
        data = base64.b64decode(result.base64)
    else:
        data = str(result.text).rstrip("\n").encode() + b"\n"
    if arguments.output:
        try:
            with open(arguments.output, "wb") as file:
                file.write(data)
        except OSError as error:
            raise errors.UsageError(f"cannot write {arguments.output}: {error.strerror}") from error
        return 0
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return 0
