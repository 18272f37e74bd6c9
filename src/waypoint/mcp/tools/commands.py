"""The tools that run commands, and what a person has to say about them.

Where the policy wants somebody to agree, the person behind the client is asked (MCP calls that
elicitation). How that is done depends on the protocol's version: since 2026-07-28 the call ends with the
question and is made again with the answer, before that it is asked in the middle of the call. A client that
cannot show questions gets told which command a person has to type; the model then calls `wait`. No tool can
say yes.
"""

# ruff: noqa: ASYNC109 - how long a command may take is the caller's to say, in the word of the other faces

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, NamedTuple

import anyio
import anyio.to_thread
from mcp import MCPError
from mcp.server.mcpserver import Context
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from pydantic import Field

from waypoint import errors, model
from waypoint.client.connection import OnApproval
from waypoint.client.result import Result
from waypoint.client.session import Session
from waypoint.mcp.pages import PAGE_CHARACTERS
from waypoint.mcp.pending import Held
from waypoint.mcp.tools.tools import Answer, Name, Tools, cut, plain
from waypoint.text import views
from waypoint.text.units import clock, milliseconds, shown

_RUN_SECONDS = 120.0
_KEPT_OUTPUT_BYTES = 4 << 20
_MOST_WAITING = 32
_QUESTION = "approval"
_ASKS_BETWEEN_CALLS = "2026-07-28"
"""The first version of the protocol in which a question ends the call."""
_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "approve": {
            "type": "boolean",
            "title": "Run it once",
            "description": "This command, in this session, once.",
        }
    },
    "required": ["approve"],
}


class _Call(NamedTuple):
    """A command, and how it was asked for."""

    held: Held
    session: Session
    command: str
    max_characters: int


class CommandTools(Tools):
    """Commands, effects and approvals."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._turns: dict[str, anyio.Lock] = {}
        self._waiting: dict[str, _Call] = {}
        """By the approval they wait for."""

    async def run(
        self,
        ctx: Context[Any, Any],
        *,
        command: Annotated[
            str, Field(description="A bash command line. `cd`, `export` and background jobs last.")
        ],
        session: Name = "",
        timeout: Annotated[
            float, Field(description="Seconds after which it is interrupted.", gt=0, le=86_400)
        ] = _RUN_SECONDS,
        stdin: Annotated[str, Field(description="What it reads from standard input.")] = "",
        max_characters: Annotated[
            int, Field(description="How much of its output is shown.", ge=200, le=100_000)
        ] = PAGE_CHARACTERS,
    ) -> Answer | InputRequiredResult:
        """Run a command in the session's persistent shell and wait for its end. Long output is cut in the
        middle; `more` with the cursor reads what was left out. Start servers in the background (`… >log
        2>&1 &`). What acts on the outside may need a person's approval first."""
        asked = self._waiting.pop(ctx.request_state, None) if ctx.request_state else None
        if asked:
            asked.held.answer(_word(ctx) and asked.command == command)
            return await self._finish(ctx, asked)
        target = self._session(session)
        async with self._turn(target.name):
            last = ""

            def hear(piece: str) -> None:
                nonlocal last
                last = piece.rstrip().rpartition("\n")[2][-120:] or last

            def work(on_approval: OnApproval) -> Result:
                return target.run(
                    command,
                    timeout=timeout,
                    stdin=stdin or None,
                    on_output=hear,
                    max_output_bytes=_KEPT_OUTPUT_BYTES,
                    on_approval=on_approval,
                )

            call = _Call(Held(work), target, command, max_characters)
            return await self._finish(ctx, call, lambda: last or "running")

    async def _finish(
        self, ctx: Context[Any, Any], call: _Call, doing: str | Callable[[], str] = "running"
    ) -> Answer | InputRequiredResult:
        """Waits for its end; on the way, brings the question to a person."""
        held = call.held
        try:
            while await self._ask(held.wait, ctx, doing) == "asking":
                assert held.approval is not None
                if not _can_ask(ctx):
                    held.answer(None)
                    return self._leave_waiting(call, held.approval)
                if (ctx.protocol_version or "") >= _ASKS_BETWEEN_CALLS:
                    self._hold(held.approval, call)
                    return _question(held.approval)
                held.answer(await _asked(ctx, held.approval))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                held.abandon()
                await anyio.to_thread.run_sync(lambda: _interrupt(call))
            raise
        return self._told(held.result(), call.max_characters)

    def _leave_waiting(self, call: _Call, approval: model.Approval) -> Answer:
        self._hold(approval, call)
        text = (
            f"Not run yet: a person has to agree to `{shown(approval.command)}` ({approval.class_}:"
            f" {shown(approval.why)}).\nAsk them to type: waypoint approve {approval.id}   (or: waypoint deny"
            f" {approval.id})\nThen call wait(approval={approval.id!r}); it expires at"
            f" {clock(approval.expires_at)}. Do not try other ways to the same effect."
        )
        return Answer(text, {"exit_code": None, "waits": _approval(approval)})

    def _hold(self, approval: model.Approval, call: _Call) -> None:
        """Until somebody asks for it. What nobody came back for goes when there are many."""
        self._waiting[approval.id] = call
        for one in list(self._waiting)[:-_MOST_WAITING]:
            self._waiting.pop(one).held.abandon()

    def _told(self, result: Result, limit: int) -> Answer:
        page = self._shelf.ends(result.output, limit)
        how = "timed out" if result.timed_out else f"exit {result.exit_code}"
        text = f"{how} after {milliseconds(result.duration_ms)}"
        if page.text.strip():
            text += f"\n{page.text.rstrip()}"
        if page.cursor:
            text += f"\n[cut; more(cursor={page.cursor!r}) reads what was left out]"
        for remark in (result.notice, *result.warnings):
            if remark:
                text += f"\n[{remark}]"
        data = {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "duration_ms": round(result.duration_ms, 1),
            "output": page.text,
            "cursor": page.cursor,
            "notice": result.notice,
            "warnings": list(result.warnings),
        }
        return Answer(text, data)

    # ---- approvals ---------------------------------------------------------------------------

    async def wait(
        self,
        ctx: Context[Any, Any],
        *,
        approval: Annotated[str, Field(description="The id that `run` answered with.")],
        seconds: Annotated[float, Field(description="How long to wait at most.", gt=0, le=600)] = 60,
    ) -> Answer:
        """Wait until a person has decided about a command that `run` left waiting, and until it has ended.
        Answers with its result, or that it still waits: then call it again."""
        call = self._waiting.get(approval)
        if call is None:
            return await self._decided(approval)
        state = await self._ask(
            lambda: call.held.wait(seconds, word=False), ctx, f"waiting for approval {approval}"
        )
        if state != "done":
            return Answer(f"{approval} still waits for a person.", {"exit_code": None, "waiting": True})
        del self._waiting[approval]
        return self._told(call.held.result(), call.max_characters)

    async def _decided(self, approval: str) -> Answer:
        found = await self._ask(lambda: self._client.call("approvals", {"all": True})["approvals"])
        one = next((one for one in found if one["id"] == approval), None)
        if one is None:
            raise errors.NotFound(f"there is no approval {approval!r}", hint="`approvals` lists them")
        text = f"{approval} was {one['state']}. Its command is no longer held here: run it again if need be."
        return Answer(text, {"exit_code": None, "state": one["state"]})

    async def approvals(self, *, session: Name = "") -> Answer:
        """Commands that wait for a person's word. Only a person can give it."""
        target = self._session(session)
        found = await self._ask(target.approvals)
        lines = [
            f"{one.id}  {shown(one.command)}  ({one.class_}; expires {clock(one.expires_at)})"
            for one in found
        ]
        text = "\n".join(lines) or "Nothing waits for approval."
        return Answer(text, {"approvals": [_approval(one) for one in found]})

    # ---- effects -----------------------------------------------------------------------------

    async def judge(
        self,
        *,
        command: Annotated[str, Field(description="A bash command line. It is not run.")],
        session: Name = "",
    ) -> Answer:
        """What the policy says about a command before you run it: its class (read-only, reversible,
        external-reversible, unknown, irreversible) and whether it is allowed, recorded, asked about or
        denied."""
        target = self._session(session)
        found = await self._ask(lambda: target.judge(command))
        return Answer(str(found), {"class": found.class_, "decision": found.decision, "unseen": found.unseen})

    async def effects(
        self,
        *,
        session: Name = "",
        since: Annotated[str, Field(description="Since this point (a ref); empty: all.")] = "",
    ) -> Answer:
        """What was done outside and cannot be undone by any restore: pushes, publishes, requests. Look here
        before you repeat something."""
        target = self._session(session)
        args = {"session": target.name, "ref": since or None}
        found = await self._ask(lambda: self._client.call("effects", args))
        page = self._shelf.first(str(views.Effects(found)) or "Nothing was done outside.")
        told = [
            {
                key: one[key]
                for key in ("id", "at", "command", "class", "state", "target", "key", "compensate")
            }
            for one in found["effects"][-100:]
        ]
        return Answer(cut(page.text, page.cursor), {"effects": told, "cursor": page.cursor})

    async def effect(
        self,
        *,
        what: Annotated[str, Field(description="What was done, in a few words.")],
        reversible: Annotated[bool, Field(description="Whether it can be made good.")] = False,
        target: Annotated[str, Field(description="Where: a host, a repository, a person.")] = "",
        key: Annotated[
            str, Field(description="What makes it the same effect when it is done again (idempotency key).")
        ] = "",
        compensate: Annotated[str, Field(description="How to make it good.")] = "",
        session: Name = "",
    ) -> Answer:
        """Write down something you did outside by other means than `run` (another tool, an API), so that
        restores and whoever comes next know of it."""
        whose = self._session(session)
        found = await self._ask(
            lambda: whose.effect(what, reversible=reversible, target=target, key=key, compensate=compensate)
        )
        return Answer(f"Written down as effect {found.id}.", {"effect": plain(found)})

    @contextlib.asynccontextmanager
    async def _turn(self, session: str) -> AsyncIterator[None]:
        """One command at a time in a shell: one that waits for its turn can be cancelled without a trace."""
        async with self._turns.setdefault(session, anyio.Lock()):
            yield


def _interrupt(call: _Call) -> None:
    with contextlib.suppress(errors.WaypointError):
        call.session.interrupt(call.command)


def _approval(approval: model.Approval) -> dict[str, Any]:
    found = plain(approval)
    return {key: found[key] for key in ("id", "session", "command", "class", "why", "expires_at", "state")}


# ---- asking a person -----------------------------------------------------------------------------


def _can_ask(ctx: Context[Any, Any]) -> bool:
    """Whether the client can show a person a question. (One that says nothing more than that it can, means
    forms.)"""
    capabilities = ctx.client_capabilities
    there = capabilities.elicitation if capabilities else None
    return there is not None and (there.form is not None or there.url is None)


def _message(approval: model.Approval) -> str:
    return (
        f"The agent wants to run this in session {approval.session}:\n\n    {approval.command}\n\n"
        f"{approval.class_}: {approval.why}"
    )


async def _asked(ctx: Context[Any, Any], approval: model.Approval) -> bool:
    """In the middle of a call. Whatever is no clear yes is a no."""
    try:
        found = await ctx.session.elicit_form(
            _message(approval), _FORM, related_request_id=ctx.request_context.request_id
        )
    except MCPError:
        return False
    return _is_yes(found)


def _question(approval: model.Approval) -> InputRequiredResult:
    """At the end of a call. The state comes back sealed with the answer, and says which one that is."""
    form = ElicitRequestFormParams(message=_message(approval), requested_schema=_FORM)
    return InputRequiredResult(
        input_requests={_QUESTION: ElicitRequest(params=form)}, request_state=approval.id
    )


def _word(ctx: Context[Any, Any]) -> bool:
    found = (ctx.input_responses or {}).get(_QUESTION)
    return isinstance(found, ElicitResult) and _is_yes(found)


def _is_yes(found: ElicitResult) -> bool:
    return found.action == "accept" and bool(found.content) and (found.content or {}).get("approve") is True
