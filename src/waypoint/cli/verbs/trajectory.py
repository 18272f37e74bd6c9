"""The verbs about what an agent did, knows and has still to do: record, trace, agent-state, task, resume."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.cli import render

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.cli.render import Paint

_OUTPUT_LINES = 20
_SIGNS = {"pending": "○", "in_progress": "▸", "completed": "✔", "failed": "✖", "skipped": "–"}
_MANNERS = {"in_progress": "bold", "completed": "good", "failed": "bad", "skipped": "dim"}


# What was said ----------------------------------------------------------------------------------------


def record(console: Console) -> int:
    given = console.arguments
    content: Any = " ".join(given.text).encode(errors="replace").decode()
    if given.text in ([], ["-"]):
        if sys.stdin.isatty():
            console.hint("reading the words from here; Ctrl-D ends them")
        content = sys.stdin.buffer.read().decode(errors="replace").rstrip("\n")
    if given.structured or (given.what == "tool_call" and content.lstrip().startswith("{")):
        content = _parsed(content)
    args = {
        "session": console.session,
        "what": given.what,
        "content": content,
        "name": given.name,
        "call": given.call,
        "error": given.error,
        "actor": "person" if given.what == "user" else "agent",  # whose words these are, not who typed them
    }
    found = console.call("record", args, "recording")
    console.result(found, f"event {found['event']}")
    return 0


def _parsed(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError as error:
        raise errors.UsageError(
            f"that is no JSON: {error}", hint="leave --structured out for text"
        ) from error


# What happened ----------------------------------------------------------------------------------------


def trace(console: Console) -> int:
    given = console.arguments
    if given.cast:
        return _cast(console)
    if given.event:
        return _event(console)
    plain = console.json or given.jsonl
    args = {
        "session": console.session,
        "ref": given.ref,
        "all": given.all,
        "kinds": given.kind,
        "limit": given.number if plain else given.number and given.number * 3 + 10,
        "full": plain or given.full,
    }
    found = console.call("trace", args, "reading the trajectory")
    if given.jsonl:
        import json

        for event in found["events"]:
            print(json.dumps(event, ensure_ascii=False))
        return 0
    console.show(found, "\n".join(_told(found, console, full=given.full)))
    if not found["events"]:
        console.hint("nothing has happened yet")
    return 0


def _told(found: Mapping[str, Any], console: Console, *, full: bool) -> list[str]:
    paint = console.paint
    entries: list[list[str]] = []
    width = len(str(found["events"][-1]["id"])) if found["events"] else 0
    for event, words in zip(found["events"], found["lines"], strict=True):
        if not words:
            continue  # what only the terminal showed
        whose = "" if event["session"] == found["session"] else f"{event['session']}  "
        left = f"{event['id']:>{width}}  {render.clock(event['at'])}  "
        text = words if full else render.cut(words, console.width - len(left) - len(whose))
        entries.append([f"{paint.dim(left + whose)}{_painted(event, render.shown(text), paint)}"])
        if full:
            entries[-1] += [f"    {line}" for line in _output(event["body"])]
    # More was asked for than is wanted: what only the terminal showed is not shown here.
    return [line for entry in entries[-(console.arguments.number or len(entries)) :] for line in entry]


def _painted(event: Mapping[str, Any], text: str, paint: Paint) -> str:
    match event["kind"]:
        case "command":
            return paint.bad(text) if event["body"].get("exit_code") else text
        case "checkpoint" | "restored" | "forked":
            return paint.bold(text)
        case "message" | "tool_call" | "tool_result" | "note":
            return paint.name(text)
        case "effect" | "approval":
            return paint.warn(text)
    return paint.dim(text) if event["kind"] == "output" else text


def _output(body: Mapping[str, Any]) -> Sequence[str]:
    if body.get("raw"):
        return ["(a program drew on the screen; `--cast` plays it)"]
    lines = [render.shown(line) for line in str(body.get("output") or "").splitlines()]
    if len(lines) > _OUTPUT_LINES:
        half = _OUTPUT_LINES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half:,} lines", *lines[-half:]]
    return lines


def _event(console: Console) -> int:
    event = console.call("event", {"event": console.arguments.event}, "reading the event")["event"]
    body = event["body"]
    if console.json:
        console.result({"event": event}, None)
    elif "base64" in body:
        sys.stdout.buffer.write(base64.b64decode(body["base64"]))
    elif isinstance(body.get("output"), str):
        sys.stdout.write(body["output"])
    else:
        import json

        print(json.dumps(body, ensure_ascii=False, indent=2))
    return 0


def _cast(console: Console) -> int:
    given = console.arguments
    args = {"session": console.session, "ref": given.ref}
    if given.all or given.kind or given.number:
        raise errors.UsageError("a cast is the way to one point", hint="leave --all, --kind and -n out")
    if given.cast == "-":
        console.client.call("cast", args, on_data=sys.stdout.buffer.write)
        sys.stdout.buffer.flush()
        return 0
    from waypoint.client.session import Session

    name = console.call("session", {"session": console.session}, "looking")["session"]["name"]
    try:
        Session(console.client, name).cast(given.cast, given.ref)
    except OSError as error:
        raise errors.UsageError(f"cannot write {given.cast}: {error.strerror}") from error
    console.result({"file": given.cast}, None)
    console.hint(f"asciinema play {given.cast}")
    return 0


# What the agent left ------------------------------------------------------------------------------------


def given_state(file: str) -> dict[str, Any]:
    """What a file (or stdin) holds, as agent state: JSON if it is, else bytes."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(file, "rb") as opened:
                data = opened.read()
    except OSError as error:
        raise errors.UsageError(f"cannot read {file}: {error.strerror}", hint="give a file, or -") from error
    import json

    try:
        json.loads(data.decode())
        return {"text": data.decode()}
    except ValueError:
        return {"base64": base64.b64encode(data).decode()}


def agent_state(console: Console) -> int:
    given = console.arguments
    found = console.call("agent_state", {"session": console.session, "ref": given.ref}, "reading it")
    if "text" not in found and "base64" not in found:
        raise errors.NotFound(
            "no agent left anything there" if given.ref else "no agent has left anything with a point",
            hint="`waypoint checkpoint --agent-state FILE` leaves something",
        )
    if console.json:
        if "text" in found:
            import json

            found["json"] = json.loads(found.pop("text"))
        console.result(found, None)
        return 0
    if "base64" in found:
        data = base64.b64decode(found["base64"])
    else:
        data = found["text"].rstrip("\n").encode() + b"\n"
    if given.output:
        try:
            with open(given.output, "wb") as out:
                out.write(data)
        except OSError as error:
            raise errors.UsageError(f"cannot write {given.output}: {error.strerror}") from error
        return 0
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return 0


# What is to be done -------------------------------------------------------------------------------------


def task_ls(console: Console) -> int:
    found = console.call("tasks", {"session": console.session, "ref": console.arguments.ref}, "looking")
    console.result(found, _tasks(found["tasks"], console.paint))
    if not found["tasks"]:
        console.hint("there are no tasks: `waypoint task add` makes one")
    return 0


def _tasks(tasks: Sequence[Mapping[str, Any]], paint: Paint) -> str:
    return "\n".join(_task(task, paint) for task in tasks)


def _task(task: Mapping[str, Any], paint: Paint) -> str:
    note = f"  ({render.shown(task['note'])})" if task.get("note") else ""
    text = f"{_SIGNS[task['state']]} {task['id']}  {render.shown(task['title'])}"
    if manner := _MANNERS.get(task["state"]):
        text = getattr(paint, manner)(text)
    return f"{'  ' * task['id'].count('.')}{text}{paint.dim(note)}"


def task_add(console: Console) -> int:
    given = console.arguments
    args = {"session": console.session, "titles": given.titles, "under": given.under, "once": given.once}
    found = console.call("task_add", args, "adding")
    console.result(found, _tasks(found["added"], console.paint))
    return 0


def task_start(console: Console) -> int:
    return _set(console, "in_progress")


def task_done(console: Console) -> int:
    given = console.arguments
    return _set(console, "completed", evidence=given.evidence, checkpoint=given.checkpoint)


def task_fail(console: Console) -> int:
    return _set(console, "failed", evidence=console.arguments.evidence)


def task_skip(console: Console) -> int:
    return _set(console, "skipped")


def _set(console: Console, state: str, **more: Any) -> int:
    given = console.arguments
    note = " ".join(getattr(given, "note", ()))
    args = {"session": console.session, "task": given.task, "state": state, "note": note, **more}
    found = console.call("task_set", args, "taking a checkpoint" if more.get("checkpoint") else "writing")
    lines = [_task(found["task"], console.paint)]
    if found["checkpoint"]:
        lines.append(render.point_title(found["checkpoint"], console.paint))
    console.result(found, "\n".join(lines))
    return 0


def resume(console: Console) -> int:
    found = console.call("resume", {"session": console.session}, "looking at where things stand")
    console.result(found, found["text"].rstrip("\n"))
    return 0
