"""Tools about what happened in a session: record, trace, resume."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from pydantic import Field

from waypoint import errors, model
from waypoint.api import requests
from waypoint.mcp.registry import ADDS, READS, Answer, Backend, Hints, SessionName, plain, reads_on, tool
from waypoint.text.quoting import visible
from waypoint.text.resume import event_title
from waypoint.text.units import clock, cut, milliseconds, shown

_EVENTS_A_PAGE = 30
_MAX_EVENTS = 5000
_LINE_CHARACTERS = 160


class TrajectoryTools:
    """The events of a session, and how to continue its work."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        backend.readers["trace"] = self._continue_trace

    @tool("Record what was said", ADDS, requests.Record, core=False)
    async def record(
        self,
        *,
        what: Annotated[
            Literal["user", "assistant", "system", "tool_call", "tool_result", "note"],
            Field(description="Who said it, or what it is."),
        ],
        content: Annotated[str, Field(description="The text; for a tool call its arguments.")],
        name: Annotated[str, Field(description="Of the tool.")] = "",
        call: Annotated[str, Field(description="The id that links a result to its call.")] = "",
        error: Annotated[bool, Field(description="Whether the tool failed.")] = False,
        session: SessionName = "",
    ) -> Answer:
        """Add to the session's trajectory what was said or decided, so that it can be read later and moves
        with restore and fork. Commands are recorded automatically."""
        target = self._backend.session(session)
        number = await self._backend.ask(
            lambda: target.record(what, content, name=name or None, call=call or None, error=error)
        )
        return Answer(f"Recorded as event {number}.", {"event": number})

    @tool("What happened", READS, requests.Trace, core=False)
    async def trace(
        self,
        *,
        session: SessionName = "",
        ref: Annotated[str, Field(description="Up to this point (a ref); empty: up to now.")] = "",
        kinds: Annotated[list[model.EventKind], Field(description="Only these kinds of events.")] = [],  # noqa: B006
        limit: Annotated[int, Field(description="The last so many.", ge=1, le=500)] = _EVENTS_A_PAGE,
        event: Annotated[int, Field(description="One event in full, by its number; 0: the list.", ge=0)] = 0,
        everything: Annotated[
            bool, Field(description="Also the events that a restore has left behind.")
        ] = False,
    ) -> Answer:
        """What happened in a session, oldest first: commands with exit codes, messages, points, tasks. One
        line each; `event` shows one in full, with its output."""
        if event:
            return self._describe(await self._backend.ask(lambda: self._backend.client.event(event)))
        request = requests.Trace(
            session=self._backend.session(session).name,
            ref=ref or None,
            kinds=tuple(kinds),
            all=everything,
            limit=_MAX_EVENTS,
        )
        return await self._trace(request, 0, limit)

    async def _trace(self, request: requests.Trace, before: int, limit: int) -> Answer:
        trace = await self._backend.ask(lambda: self._backend.client.ask(request))
        events = [event for event in trace.events if not before or event.id < before]
        page = events[-limit:]
        left = len(events) - len(page)
        cursor = None
        if left:
            wish = {"ref": request.ref, "kinds": request.kinds, "all": request.all}
            cursor = f"trace:{json.dumps([trace.session, page[0].id, wish])}"
        lines = [_line(event) for event in page]
        rows = [
            {"id": event.id, "at": event.at, "kind": event.kind, "actor": event.actor, "text": _text(event)}
            for event in page
        ]
        text = f"[{left:,} before these; more(cursor={cursor!r}) reads them]" if cursor else ""
        data = {"session": trace.session, "events": rows, "cursor": cursor}
        return Answer(text if lines else "Nothing is recorded.", data, "\n".join(lines), "trajectory")

    async def _continue_trace(self, cursor: str) -> Answer:
        try:
            session, before, wish = json.loads(cursor)
            kinds = tuple(wish.pop("kinds"))
            request = requests.Trace(session=session, **wish, kinds=kinds, limit=_MAX_EVENTS)
            return await self._trace(request, int(before), _EVENTS_A_PAGE)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise errors.NotFound(
                f"the cursor 'trace:{cursor}' is invalid", hint="call `trace` again"
            ) from error

    def _describe(self, event: model.Event) -> Answer:
        contents = (event.body.get(key) for key in ("output", "content", "arguments"))
        text = "\n".join([_line(event), *(_json(content) for content in contents if content)])
        page = self._backend.pages.ends(visible(text))
        fields = plain(event)
        data = {key: fields[key] for key in ("id", "at", "kind", "actor", "session")}
        data["cursor"] = page.cursor
        return Answer("", data, page.text, f"event {event.id}", after=reads_on(page.cursor))

    @tool("Continue the work", Hints(idempotent=True), requests.Resume)
    async def resume(self, *, session: SessionName = "", ctx: Context[Any, Any] | None = None) -> Answer:
        """What comes next and what is done. Call it first when you continue work that was begun before. A
        session that does not run is brought back from its last point."""
        resumed = await self._backend.ask(self._backend.session(session).resume, ctx, "resuming the work")
        info = resumed.info
        data = {
            "session": info.session.name,
            "task": plain(info.task) if info.task else None,
            "tasks": [plain(task) for task in info.tasks],
            "point": info.checkpoint.label if info.checkpoint else None,
            "restored": info.restored,
            "effects": list(info.effects),
        }
        page = self._backend.pages.first(visible(info.text.rstrip()))  # it has its frame already
        return Answer(page.text, {**data, "cursor": page.cursor}, after=reads_on(page.cursor))


# ---- events in words -----------------------------------------------------------------------------


def _line(event: model.Event) -> str:
    return f"#{event.id} {clock(event.at)} {event.actor}  {_text(event)}"


def _text(event: model.Event) -> str:
    """An event in one line. Other than text.resume.describe_event it has how long a command took."""
    body = event.body
    match event.kind:
        case "command":
            code = body.get("exit_code")
            ending = "timed out" if body.get("timed_out") else "ended" if code is None else f"exit {code}"
            took = f" ({milliseconds(body['duration_ms'])})" if body.get("duration_ms") is not None else ""
            text = f"$ {body.get('command') or '(not known)'} → {ending}{took}"
        case "message":
            text = f"{body.get('role')}: {_json(body.get('content'))}"
        case "tool_call":
            text = f"call {body.get('name') or ''} {_json(body.get('arguments'))}"
        case "tool_result":
            kind = "error" if body.get("error") else "result"
            text = f"{kind} {body.get('name') or ''}: {_json(body.get('content'))}"
        case "checkpoint":
            text = " ".join(filter(None, ("point", body.get("label"), body.get("name"), event_title(body))))
        case "restored":
            text = f"{body.get('verb', 'restore')} to {body.get('session')}:{body.get('label')}"
        case "forked":
            text = f"forked from {body.get('session')}:{body.get('label')}"
        case "task":
            text = f"task {body.get('task')} {body.get('state')}: {body.get('title')}"
        case "output":
            text = f"printed: {_json(body.get('output'))}"
        case kind:
            text = f"{kind}: {_json(body.get('text') or body.get('command') or body)}"
    return cut(shown(" ".join(text.split())), _LINE_CHARACTERS)


def _json(content: Any) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
