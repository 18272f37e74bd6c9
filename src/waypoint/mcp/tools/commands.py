"""Tools that run commands and wait for approvals: run, wait, approvals.

Where the policy says ask, the user of the client is asked (MCP calls this elicitation). Since version
2026-07-28 of the protocol the call ends with the question and is made again with the answer; before, the
question is asked during the call, and taken back if the answer has come from elsewhere. If the client cannot
show questions, the command is refused at once, unless a person is attached to the session or the server was
told to wait: then the answer names the command that the user has to type, and the model calls `wait`. No tool
can approve.
"""

# ruff: noqa: ASYNC109 - `timeout` is the argument of the user's command, as in the other faces

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
from waypoint.api import requests
from waypoint.api.hints import Do, in_command
from waypoint.client.connection import OnApproval
from waypoint.client.result import Result
from waypoint.client.session import Session
from waypoint.mcp.pages import PAGE_CHARACTERS
from waypoint.mcp.pending import PendingCommand
from waypoint.mcp.registry import READS, Answer, Backend, Hints, SessionName, plain, reads_on, tool
from waypoint.text.quoting import visible
from waypoint.text.units import clock, milliseconds, shown

_RUN_SECONDS = 120.0
_MAX_OUTPUT_BYTES = 4 << 20
_MAX_WAITING = 32
_MAX_APPROVAL_SECONDS = 86_400.0
"""A wait ends when the policy says. The timeout of a command does not count meanwhile."""
_LONGEST_QUESTION = 4000
"""Characters. A client may cut what it shows in a form: what is longer is read at a terminal."""
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
    """A command, and the call of `run` that started it."""

    pending: PendingCommand
    session: Session
    command: str
    max_characters: int
    raw: bool


class CommandTools:
    """Commands, and the approvals they wait for."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._locks: dict[str, anyio.Lock] = {}
        self._waiting: dict[str, _Call] = {}
        """By the id of the approval that they wait for."""

    @tool("Run a command", Hints(destructive=True, open_world=True), requests.Exec)
    async def run(
        self,
        ctx: Context[Any, Any],
        *,
        command: Annotated[str, Field(description="A bash command line.")],
        session: SessionName = "",
        timeout: Annotated[
            float, Field(description="Seconds until it is interrupted.", gt=0, le=86_400)
        ] = _RUN_SECONDS,
        stdin: Annotated[str, Field(description="Its standard input.")] = "",
        cwd: Annotated[str, Field(description="Its folder; then `cd` and `export` do not last.")] = "",
        max_characters: Annotated[
            int, Field(description="How much output is shown.", ge=200, le=100_000)
        ] = PAGE_CHARACTERS,
        raw: Annotated[bool, Field(description="Show escape sequences, as `\\x1b`.")] = False,
    ) -> Answer | InputRequiredResult:
        """Run a command in the session's persistent shell (`cd` and `export` last) and wait for its end. Long
        output is cut in the middle. Start servers in the background (`… >log 2>&1 &`)."""
        waiting = self._waiting.pop(ctx.request_state, None) if ctx.request_state else None
        if waiting:
            waiting.pending.decide(_is_approved_in(ctx) and waiting.command == command)
            return await self._finish(ctx, waiting)
        target = self._backend.session(session)
        async with self._one_at_a_time(target.name):
            last_line = ""

            def on_event(event: Any) -> None:
                nonlocal last_line
                last_line = event.get("output", "").rstrip().rpartition("\n")[2][-120:] or last_line

            client = self._backend.client
            request = requests.Exec(
                command=command,
                session=target.name,
                timeout=timeout,
                stdin=stdin.encode() or None,
                stream=True,
                limit=_MAX_OUTPUT_BYTES,
                plain=not raw,
                cwd=cwd or None,
                actor="agent",
                on_approval=self._backend.on_approval or ("wait" if _can_ask(ctx) else None),
                approval_timeout=_MAX_APPROVAL_SECONDS,
            )

            def work(on_approval: OnApproval) -> Result:
                return Result(command, client.ask(request, on_event=on_event, on_approval=on_approval))

            call = _Call(PendingCommand(client, work), target, command, max_characters, raw)
            return await self._finish(ctx, call, lambda: last_line or "running")

    async def _finish(
        self, ctx: Context[Any, Any], call: _Call, doing: str | Callable[[], str] = "running"
    ) -> Answer | InputRequiredResult:
        """Waits for the end of the command. If it needs a decision, the user is asked."""
        pending = call.pending
        try:
            while await self._backend.ask(pending.wait, ctx, doing) == "undecided":
                assert pending.approval is not None
                if not (_can_ask(ctx) and len(_message(pending.approval)) <= _LONGEST_QUESTION):
                    pending.decide(None)
                    return self._leave_waiting(call, pending.approval)
                if (ctx.protocol_version or "") >= _ASKS_BETWEEN_CALLS:
                    self._keep(pending.approval, call)
                    return _question(pending.approval)
                await _ask_user_unless_decided(ctx, pending)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                pending.abandon()
                await anyio.to_thread.run_sync(lambda: _interrupt(call))
            raise
        return self._describe(call)

    def _leave_waiting(self, call: _Call, approval: model.Approval) -> Answer:
        self._keep(approval, call)
        approve, deny = in_command(Do("approve", id=approval.id)), in_command(Do("deny", id=approval.id))
        text = (
            f"Not run yet: the user has to approve `{shown(approval.command)}` ({approval.class_}:"
            f" {shown(approval.why)}).\nAsk them to type: {approve}   (or: {deny}); it shows them the whole"
            " command.\n"
            f"Then call wait(approval={approval.id!r}); it expires at {clock(approval.expires_at)}."
            " Do not try other ways to the same effect."
        )
        return Answer(text, {"exit_code": None, "waits": _approval_data(approval)})

    def _keep(self, approval: model.Approval, call: _Call) -> None:
        """Keeps a command for a later call. The oldest ones are abandoned when there are many."""
        self._waiting[approval.id] = call
        for oldest in list(self._waiting)[:-_MAX_WAITING]:
            self._waiting.pop(oldest).pending.abandon()

    def _describe(self, call: _Call) -> Answer:
        result = call.pending.result()
        page = self._backend.pages.ends(visible(result.output, with_escapes=call.raw), call.max_characters)
        ending = "timed out" if result.timed_out else f"exit {result.exit_code}"
        remarks = [reads_on(page.cursor), *(f"[{one}]" for one in (result.notice, *result.warnings) if one)]
        data = {
            "session": call.session.name,
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "duration_ms": round(result.duration_ms, 1),
            "cursor": page.cursor,
            "notice": result.notice,
            "warnings": list(result.warnings),
        }
        text = f"{ending} after {milliseconds(result.duration_ms)}"
        return Answer(text, data, page.text, after="\n".join(filter(None, remarks)))

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, session: str) -> AsyncIterator[None]:
        """One command at a time in a shell. A call that waits here can be cancelled without any effect."""
        async with self._locks.setdefault(session, anyio.Lock()):
            yield

    # ---- approvals ---------------------------------------------------------------------------

    @tool("Wait for the user's decision", Hints(idempotent=True))
    async def wait(
        self,
        ctx: Context[Any, Any],
        *,
        approval: Annotated[str, Field(description="The id that `run` answered with.")],
        seconds: Annotated[float, Field(description="How long to wait at most.", gt=0, le=600)] = 60,
    ) -> Answer:
        """Wait until the user has decided about a command that `run` left waiting, and it has ended. If it
        still waits then, call it again."""
        call = self._waiting.get(approval)
        if call is None:
            return await self._describe_decided(approval)
        state = await self._backend.ask(
            lambda: call.pending.wait(seconds, or_undecided=False), ctx, f"waiting for approval {approval}"
        )
        if state != "done":
            return Answer(f"{approval} still waits for the user.", {"exit_code": None, "waiting": True})
        del self._waiting[approval]
        return self._describe(call)

    async def _describe_decided(self, approval_id: str) -> Answer:
        approvals = await self._backend.ask(lambda: self._backend.client.approvals(all=True))
        state = next((approval.state for approval in approvals if approval.id == approval_id), None)
        if state is None:
            raise errors.NotFound(
                f"there is no approval {approval_id!r}", hint="give the id that `run` answered with"
            )
        text = f"{approval_id} was {state}. Its command does not wait here any more: run it again if needed."
        return Answer(text, {"exit_code": None, "state": state})

    @tool("What waits for approval", READS, requests.Approvals, core=False)
    async def approvals(self, *, session: SessionName = "") -> Answer:
        """Commands that wait for the user's approval. Only the user can give it."""
        approvals = await self._backend.ask(self._backend.session(session).approvals)
        lines = [
            f"{approval.id}  {shown(approval.command)}"
            f"  ({approval.class_}; expires {clock(approval.expires_at)})"
            for approval in approvals
        ]
        text = "" if lines else "Nothing waits for approval."
        data = {"approvals": [_approval_data(approval) for approval in approvals]}
        return Answer(text, data, "\n".join(lines), "commands that wait for approval")


def _interrupt(call: _Call) -> None:
    with contextlib.suppress(errors.WaypointError):
        call.session.interrupt(call.command)


def _approval_data(approval: model.Approval) -> dict[str, Any]:
    fields = plain(approval)
    return {key: fields[key] for key in ("id", "session", "command", "class", "why", "expires_at", "state")}


# ---- questions to the user -----------------------------------------------------------------------


def _can_ask(ctx: Context[Any, Any]) -> bool:
    """Whether the client can show its user a form. (A client that names no kind of question means forms.)"""
    capabilities = ctx.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _message(approval: model.Approval) -> str:
    return "\n".join(approval.review)


async def _ask_user(ctx: Context[Any, Any], approval: model.Approval) -> bool:
    """Asks during the call. Everything but a clear yes is a no."""
    try:
        answer = await ctx.session.elicit_form(
            _message(approval), _FORM, related_request_id=ctx.request_context.request_id
        )
    except MCPError:
        return False
    return _is_yes(answer)


async def _ask_user_unless_decided(ctx: Context[Any, Any], pending: PendingCommand) -> None:
    """Asks, and takes the question back when another client has decided first."""
    assert pending.approval is not None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            await anyio.to_thread.run_sync(pending.wait_decided, abandon_on_cancel=True)
            group.cancel_scope.cancel()

        group.start_soon(watch)
        pending.decide(await _ask_user(ctx, pending.approval))


def _question(approval: model.Approval) -> InputRequiredResult:
    """Ends the call with a question. The state comes back sealed, with the answer: it names the approval."""
    form = ElicitRequestFormParams(message=_message(approval), requested_schema=_FORM)
    return InputRequiredResult(
        input_requests={_QUESTION: ElicitRequest(params=form)}, request_state=approval.id
    )


def _is_approved_in(ctx: Context[Any, Any]) -> bool:
    answer = (ctx.input_responses or {}).get(_QUESTION)
    return isinstance(answer, ElicitResult) and _is_yes(answer)


def _is_yes(answer: ElicitResult) -> bool:
    return (
        answer.action == "accept" and bool(answer.content) and (answer.content or {}).get("approve") is True
    )
