"""The tools about what the agent itself did, knows and has still to do: record, trace, tasks, resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from mcp.server.mcpserver import Context
from pydantic import Field

from waypoint import errors, model
from waypoint.mcp.tools.commands import CommandTools
from waypoint.mcp.tools.tools import Answer, Name, cut, plain
from waypoint.text.units import clock, milliseconds, shown

_EVENTS_A_PAGE = 30
_MOST_EVENTS = 5000
_LINE_CHARACTERS = 160

TaskName = Annotated[str, Field(description="The task: its number (2 or 2.1) or its title.")]


class JournalTools(CommandTools):
    """What belongs to the agent rather than to its machine; it moves with the machine all the same."""

    async def record(
        self,
        *,
        what: Annotated[
            Literal["user", "assistant", "system", "tool_call", "tool_result", "note"],
            Field(description="Who said it, or what it is."),
        ],
        content: Annotated[str, Field(description="The words; for a tool call its arguments.")],
        name: Annotated[str, Field(description="Of the tool.")] = "",
        call: Annotated[str, Field(description="What links a result to its call.")] = "",
        error: Annotated[bool, Field(description="Whether the tool failed.")] = False,
        session: Name = "",
    ) -> Answer:
        """Add to the session's trajectory what was said or decided, so that it can be read later and moves
        with restore and fork. Commands are recorded by themselves."""
        target = self._session(session)
        number = await self._ask(
            lambda: target.record(what, content, name=name or None, call=call or None, error=error)
        )
        return Answer(f"Recorded as event {number}.", {"event": number})

    async def trace(
        self,
        *,
        session: Name = "",
        ref: Annotated[str, Field(description="Up to this point (a ref); empty: up to now.")] = "",
        kinds: Annotated[
            list[
                Literal[
                    "command", "message", "tool_call", "tool_result", "checkpoint", "restored", "forked",
                    "task", "effect", "approval", "note", "output",
                ]
            ],
            Field(description="Only these kinds of events."),
        ] = [],  # noqa: B006
        limit: Annotated[int, Field(description="The last so many.", ge=1, le=500)] = _EVENTS_A_PAGE,
        event: Annotated[int, Field(description="One event in full, by its number; 0: the list.", ge=0)] = 0,
        everything: Annotated[
            bool, Field(description="Also what the session went back from with a restore.")
        ] = False,
    ) -> Answer:  # fmt: skip
        """What happened in a session, oldest first: commands with exit codes, messages, points, tasks. One
        line each; `event` shows one in full, with its output."""
        if event:
            found = await self._ask(lambda: self._client.call("event", {"event": event})["event"])
            return self._one_event(found)
        wanted = {"ref": ref or None, "kinds": list(kinds), "all": everything}
        return await self._trace(self._session(session).name, wanted, 0, limit)

    async def _trace(self, session: str, wanted: Mapping[str, Any], before: int, limit: int) -> Answer:
        args = {"session": session, **wanted, "limit": _MOST_EVENTS}
        found = await self._ask(lambda: self._client.call("trace", args))
        events = [one for one in found["events"] if not before or one["id"] < before]
        page = events[-limit:]
        left = len(events) - len(page)
        cursor = None
        if left:
            cursor = f"trace:{json.dumps([found['session'], page[0]['id'], dict(wanted)])}"
        lines = [_line(one) for one in page]
        if cursor:
            lines.insert(0, f"[{left:,} before these; more(cursor={cursor!r}) reads them]")
        told = [
            {key: one[key] for key in ("id", "at", "kind", "actor")} | {"text": _words(one)} for one in page
        ]
        text = "\n".join(lines) or "Nothing is on record."
        return Answer(text, {"session": found["session"], "events": told, "cursor": cursor})

    def _one_event(self, found: Mapping[str, Any]) -> Answer:
        body = dict(found["body"])
        parts = [_line(found)]
        for key in ("output", "content", "arguments"):
            if body.get(key):
                value = body.pop(key)
                parts.append(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        page = self._shelf.ends("\n".join(parts))
        data = {key: found[key] for key in ("id", "at", "kind", "actor", "session")}
        return Answer(cut(page.text, page.cursor), {**data, "text": page.text, "cursor": page.cursor})

    async def more(
        self,
        *,
        cursor: Annotated[str, Field(description="The cursor of the answer that was cut.")],
        max_characters: Annotated[int, Field(description="How much is shown.", ge=200, le=100_000)] = 12_000,
    ) -> Answer:
        """Read on in an answer that was cut."""
        kind, _, rest = cursor.partition(":")
        if kind != "trace":
            return await super().more(cursor=cursor, max_characters=max_characters)
        try:
            session, before, wanted = json.loads(rest)
            return await self._trace(session, cast("dict[str, Any]", wanted), int(before), _EVENTS_A_PAGE)
        except (TypeError, ValueError) as error:
            raise errors.NotFound(
                f"the cursor {cursor!r} leads nowhere", hint="call `trace` again"
            ) from error

    # ---- tasks -------------------------------------------------------------------------------

    async def tasks(
        self,
        *,
        session: Name = "",
        ref: Annotated[str, Field(description="As they stood at this point (a ref); empty: now.")] = "",
    ) -> Answer:
        """The plan: tasks with their state (pending, in_progress, completed, failed, skipped) and the point
        that is the evidence. A restore takes progress back with the machine."""
        target = self._session(session)
        return _tasks(await self._ask(lambda: target.tasks.list(ref or None)))

    async def task(
        self,
        ctx: Context[Any, Any],
        *,
        action: Annotated[
            Literal["add", "start", "done", "fail", "skip"],
            Field(description="add: new tasks by title (those that are there stay); the others: one task."),
        ],
        task: Annotated[str, Field(description="Which one: its number (2 or 2.1) or its title.")] = "",
        titles: Annotated[list[str], Field(description="For add: what is to be done, in order.")] = [],  # noqa: B006
        under: Annotated[str, Field(description="For add: the task they are a part of.")] = "",
        note: Annotated[str, Field(description="What came of it, or why not.")] = "",
        checkpoint: Annotated[bool, Field(description="For done: take a point as its evidence.")] = False,
        session: Name = "",
    ) -> Answer:
        """Keep the plan up to date: add tasks before you begin, start one, and say when it is done, failed
        or skipped. `resume` tells whoever comes next what is left."""
        tasks = self._session(session).tasks

        def work() -> list[model.Task]:
            match action:
                case "add":
                    if not titles:
                        raise errors.UsageError("which tasks?", hint="give `titles`, one for each")
                    tasks.plan(*titles, under=under or None)
                case "start":
                    tasks.start(_named(task))
                case "done":
                    tasks.done(_named(task), note, checkpoint=checkpoint)
                case "fail":
                    tasks.fail(_named(task), note)
                case "skip":
                    tasks.skip(_named(task), note)
            return tasks.list()

        return _tasks(await self._ask(work, ctx, "keeping the plan"))

    async def resume(self, *, session: Name = "", ctx: Context[Any, Any] | None = None) -> Answer:
        """Where things stand and what comes next: the first open task, what is done, the present point,
        what happened since. Call it first when you take up work that somebody began. A session that does
        not run is brought back from its last point."""
        found = await self._ask(self._session(session).resume, ctx, "taking up the work")
        info = found.info
        page = self._shelf.first(info.text)
        data = {
            "session": info.session.name,
            "task": plain(info.task) if info.task else None,
            "tasks": [plain(one) for one in info.tasks],
            "point": info.checkpoint.label if info.checkpoint else None,
            "restored": info.restored,
            "effects": list(info.effects),
            "cursor": page.cursor,
        }
        return Answer(cut(page.text.rstrip(), page.cursor), data)


def _named(task: str) -> str:
    if not task:
        raise errors.UsageError("which task?", hint="give its number or its title as `task`")
    return task


def _tasks(found: list[model.Task]) -> Answer:
    marks = {"pending": " ", "in_progress": ">", "completed": "x", "failed": "!", "skipped": "-"}
    lines = []
    for one in found:
        note = f"  ({shown(one.note)})" if one.note else ""
        lines.append(f"{'  ' * one.id.count('.')}[{marks[one.state]}] {one.id} {shown(one.title)}{note}")
    text = "\n".join(lines) or "No tasks are planned. `task` with action=add plans some."
    return Answer(text, {"tasks": [plain(one) for one in found]})


# ---- events in words -----------------------------------------------------------------------------


def _line(event: Mapping[str, Any]) -> str:
    return f"#{event['id']} {clock(event['at'])} {event['actor']}  {_words(event)}"


def _words(event: Mapping[str, Any]) -> str:
    body = event["body"]
    match event["kind"]:
        case "command":
            code = body.get("exit_code")
            how = "timed out" if body.get("timed_out") else "ended" if code is None else f"exit {code}"
            took = f" ({milliseconds(body['duration_ms'])})" if body.get("duration_ms") is not None else ""
            text = f"$ {body.get('command') or '(not known)'} → {how}{took}"
        case "message":
            text = f"{body.get('role')}: {_text(body.get('content'))}"
        case "tool_call":
            text = f"call {body.get('name') or ''} {_text(body.get('arguments'))}"
        case "tool_result":
            how = "error" if body.get("error") else "result"
            text = f"{how} {body.get('name') or ''}: {_text(body.get('content'))}"
        case "checkpoint":
            text = " ".join(filter(None, ("point", body.get("label"), body.get("name"), body.get("intent"))))
        case "restored":
            text = f"{body.get('verb', 'restore')} to {body.get('session')}:{body.get('label')}"
        case "forked":
            text = f"forked from {body.get('session')}:{body.get('label')}"
        case "task":
            text = f"task {body.get('task')} {body.get('state')}: {body.get('title')}"
        case "output":
            text = f"printed: {_text(body.get('output'))}"
        case kind:
            text = f"{kind}: {_text(body.get('text') or body.get('command') or body)}"
    line = shown(" ".join(text.split()))
    return line if len(line) <= _LINE_CHARACTERS else f"{line[: _LINE_CHARACTERS - 1]}…"


def _text(content: Any) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
