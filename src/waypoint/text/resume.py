"""Going on with a session: where it stands, in words for a prompt.

Each statement carries its source, as in a card: tasks and messages are **claimed** by their author, commands
were **observed**, changes are **derived** from the snapshots.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from waypoint.agent.tasks import ancestors, listing
from waypoint.api.difference import Card
from waypoint.model import Checkpoint, Event, Task
from waypoint.terminal import escapes
from waypoint.text.quoting import framed
from waypoint.text.units import cut, plural, shown
from waypoint.text.views import quoted, title

_LISTED_EVENTS = 20
_WIDTH = 200


@dataclass
class SessionStatus:
    """Where a session stands, and what has happened around that."""

    session: str
    task: Task | None
    tasks: tuple[Task, ...]
    point: Checkpoint | None
    card: Card | None
    foreground: str | None = None
    """The command that occupies its shell."""
    restored: bool = False
    left_behind: Sequence[Event] = ()
    since: Sequence[Event] = ()
    effects: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels of the points that are evidence of tasks, by id."""


def write_prompt(now: SessionStatus) -> str:
    """All of it, for a reader who knows nothing about the session. What programs in the session may have
    written stands in a frame: a model reads this."""
    parts = [_busy(now), _next(now), _tasks(now), _point(now)]
    if now.left_behind:
        head = (
            f"After that point the following had happened. It was lost when the session ended"
            f" ({plural(len(now.left_behind), 'event')}; the session's trace has all of it):"
        )
        parts.append(_listed(head, now.left_behind))
    if now.since:
        parts.append(_listed(f"Since then ({plural(len(now.since), 'event')}):", now.since))
    if now.effects:
        lines = "\n".join(f"- {shown(effect)}" for effect in now.effects)
        parts.append(f"Done outside since then; nothing takes it back, so do not do it twice:\n{lines}")
    record = framed("\n\n".join(filter(None, parts)), now.session, "record")
    return f"{_head(now)}\n\n{record}\n"


def _head(now: SessionStatus) -> str:
    how = "it had ended and was brought back from its last point" if now.restored else "it is live"
    return f"You continue work in session {now.session!r}: {how}."


def _busy(now: SessionStatus) -> str:
    return f"Its shell is busy: `{_cut(now.foreground)}` is still running." if now.foreground else ""


def _next(now: SessionStatus) -> str:
    if not now.tasks:
        return "No tasks were planned."
    if now.task is None:
        return "Every task is finished, failed or skipped."
    part_of = "".join(f" (part of {task.id} {task.title!r})" for task in ancestors(now.tasks, now.task)[-1:])
    state = "was begun and is not finished" if now.task.state == "in_progress" else "comes next"
    return f"Task {now.task.id} {state}: {now.task.title}{part_of}"


def _tasks(now: SessionStatus) -> str:
    if not now.tasks:
        return ""
    done = sum(task.state == "completed" for task in now.tasks)
    lines = []
    for task, line in zip(now.tasks, listing(now.tasks), strict=True):
        point = now.labels.get(task.checkpoint or "")
        lines.append(f"{line}  [see {point}]" if point else line)
    return f"Tasks, {done} of {len(now.tasks)} completed [claimed]:\n" + "\n".join(lines)


def _point(now: SessionStatus) -> str:
    if now.point is None:
        return "The session has no checkpoint yet."
    point = msgspec.to_builtins(now.point)
    lines = [f"It stands on {quoted(point)}, taken {now.point.created_at}."]
    if now.card:
        lines += [f"- {line.topic}: {shown(line.text)} [{line.source}]" for line in now.card.lines]
    lines += [
        f"- verified: {shown(verdict.command)} {verdict.state} [observed]"
        for verdict in now.point.verdicts
        if verdict.state in ("passed", "failed")
    ]
    return "\n".join(lines)


def _listed(head: str, events: Sequence[Event]) -> str:
    lines = [line for line in map(describe_event, events) if line]
    if not lines:
        return ""
    more = [f"… {len(lines) - _LISTED_EVENTS} before these"] if len(lines) > _LISTED_EVENTS else []
    return "\n".join((head, *more, *(f"- {line}" for line in lines[-_LISTED_EVENTS:])))


def describe_event(event: Event) -> str:
    """An event in one line; empty for output that has no text."""
    body = event.body
    match event.kind:
        case "command":
            code = body.get("exit_code")
            ended = "timed out" if body.get("timed_out") else "ended" if code is None else f"exit {code}"
            return _cut(f"$ {body.get('command') or '(not known)'}  → {ended}")
        case "output":
            text = "" if body.get("raw") else escapes.strip(body.get("output", ""))
            return _cut(f"printed: {text}") if text.strip() else ""
        case "message":
            return _cut(f"{body['role']}: {_text(body.get('content', ''))}")
        case "tool_call":
            return _cut(f"call {body.get('name', '')} {_text(body.get('arguments', ''))}")
        case "tool_result":
            what = "error" if body.get("error") else "result"
            of = f" of {body['name']}" if body.get("name") else ""
            return _cut(f"{what}{of}: {_text(body.get('content', ''))}")
        case "checkpoint":
            words = (body["label"], body.get("name"), event_title(body))
            return _cut("checkpoint " + " ".join(filter(None, words)))
        case "restored":
            what = "files of " if body.get("verb") == "restore_files" else ""
            return f"{body.get('verb', 'restore')}: to {what}{body.get('session')}:{body.get('label')}"
        case "forked":
            return f"forked from {body.get('session')}:{body.get('label')}"
        case "task":
            note = f" ({body['note']})" if body.get("note") else ""
            return _cut(f"task {body['task']} {body['state']}: {body['title']}{note}")
        case "approval":
            by = " by the policy" if body.get("by") == "policy" else ""
            return _cut(f"approval {body['state']}{by}: {body['command']}")
        case "effect":
            done = body.get("what") or body.get("command") or body.get("target")
            return _cut(f"effect ({body.get('class') or 'unknown'}, {body.get('state') or 'done'}): {done}")
    return _cut(str(body.get("text") or body.get("what") or body.get("command") or body))


def event_title(body: Mapping[str, Any]) -> str:
    """The title of a point, from the event that it was taken. Older events do not say whose words it is."""
    return title({"intent": body.get("intent") or "", "intent_from": body.get("intent_from", "given")})


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text", "") for part in content if isinstance(part, dict)]
        if any(texts):
            return " ".join(texts)
    return json.dumps(content, ensure_ascii=False, default=str)


def _cut(text: str) -> str:
    return cut(shown(" ".join(text.split())), _WIDTH)
