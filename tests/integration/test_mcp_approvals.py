"""Approvals over MCP: the client asks its user; no tool can approve."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import CallToolResult, ElicitRequestFormParams, ElicitResult, TextContent
from tests.frames import framed_text

import waypoint

POLICY = """
[[rule]]
command = "touch"
options = ["--no-create"]
decision = "deny"
class = "irreversible"
why = "never"

[[rule]]
command = "touch"
class = "irreversible"
decision = "ask"
why = "it is a launch"
target = "the moon"
"""

Person = Callable[[ElicitRequestFormParams], ElicitResult | Awaitable[ElicitResult]]


@pytest.fixture
def launching(session: waypoint.Session) -> waypoint.Session:
    """A session in which `touch` needs an approval."""
    session.set_policy(POLICY)
    return session


@asynccontextmanager
async def connected(
    mode: str, person: Person | None, *options: str
) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """A client of the earlier protocol ("legacy") or the present one ("auto"). `person` answers its
    questions; None for a client that cannot ask."""
    command = [sys.executable, "-P", "-m", "waypoint", "mcp", "--all", "-s", "t", *options]
    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))

    async def ask(context: Any, params: Any) -> ElicitResult:
        assert person
        assert isinstance(params, ElicitRequestFormParams)
        answer = person(params)
        return answer if isinstance(answer, ElicitResult) else await answer

    async with Client(
        stdio_client(server), mode=mode, elicitation_callback=ask if person else None
    ) as client:

        async def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
            found = await client.call_tool(tool, arguments)
            assert isinstance(found, CallToolResult)
            content = found.content[0]
            assert isinstance(content, TextContent)
            data = (found.meta or {})["waypoint/data"]
            return {
                **data,
                "output": framed_text(content.text),
                "text": content.text,
                "failed": bool(found.is_error),
            }

        yield call


def exists(session: waypoint.Session, path: str) -> bool:
    return session.run(f"test -e {path}").exit_code == 0


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_user_of_the_client_is_asked(launching: waypoint.Session, mode: str) -> None:
    asked: list[ElicitRequestFormParams] = []
    words = [
        ElicitResult(action="accept", content={"approve": True}),
        ElicitResult(action="accept", content={"approve": False}),
        ElicitResult(action="decline"),
        ElicitResult(action="cancel"),
    ]

    def person(params: ElicitRequestFormParams) -> ElicitResult:
        asked.append(params)
        return words[len(asked) - 1]

    async def work() -> None:
        async with connected(mode, person) as call:
            launched = await call("run", command="touch /srv/launched && echo up")
            assert (launched["exit_code"], launched["output"]) == (0, "up\n")
            assert "touch /srv/launched && echo up" in asked[0].message
            assert "it is a launch" in asked[0].message
            for number in range(3):
                refused = await call("run", command=f"touch /srv/not-{number}")
                assert refused["error"]["code"] == "not_approved", refused
            assert (await call("run", command="echo go on"))["output"] == "go on\n"

    anyio.run(work)
    assert len(asked) == 4, "a decision is for one command, once"
    assert exists(launching, "/srv/launched")
    assert not exists(launching, "/srv/not-*")
    assert [one.state for one in launching.approvals(all=True)] == ["approved", "denied", "denied", "denied"]
    (effect,) = launching.effects()
    assert (effect.target, effect.actor, effect.state) == ("the moon", "agent", "done")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_without_questions_the_user_approves_at_a_terminal(launching: waypoint.Session, mode: str) -> None:
    async def work() -> None:
        async with connected(mode, None, "--on-approval", "wait") as call:
            held = await call("run", command="touch /srv/launched && echo up")
            assert not held["failed"]
            assert held["exit_code"] is None
            approval = held["waits"]["id"]
            assert f"waypoint approve {approval}" in held["text"]
            assert "wait(" in held["text"]
            assert (await call("approvals"))["approvals"][0]["id"] == approval
            assert (await call("wait", approval=approval, seconds=0.05))["waiting"] is True
            assert (await call("run", command="ls /srv"))["output"] == "", "others go on, it has not run"
            await anyio.to_thread.run_sync(lambda: launching.approve(approval))
            done = await call("wait", approval=approval)
            assert (done["exit_code"], done["output"]) == (0, "up\n")

            held = await call("run", command="touch /srv/again")
            approval = held["waits"]["id"]
            await anyio.to_thread.run_sync(lambda: launching.deny(approval, "not today"))
            denied = await call("wait", approval=approval)
            assert denied["error"]["code"] == "not_approved"
            assert "not today" in denied["text"]
            assert "denied" in (await call("wait", approval=approval))["text"]
            assert (await call("wait", approval="nothing"))["error"]["code"] == "not_found"

    anyio.run(work)
    assert exists(launching, "/srv/launched")
    assert not exists(launching, "/srv/again")


def test_where_no_person_can_be_asked_the_command_is_refused_at_once(
    launching: waypoint.Session,
) -> None:
    async def work() -> None:
        async with connected("auto", None) as call:
            refused = await call("run", command="touch /srv/x")
            assert refused["error"]["code"] == "not_approved", refused
            assert "no person is there" in refused["text"]
            assert "`waypoint shell t`" in refused["text"]
        async with connected("auto", approve, "--on-approval", "deny") as call:
            refused = await call("run", command="touch /srv/x")
            assert refused["error"]["code"] == "not_approved", refused

    anyio.run(work)
    assert not exists(launching, "/srv/x")


def approve(_: ElicitRequestFormParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"approve": True})


def test_a_question_of_the_client_is_taken_back_when_a_terminal_has_answered(
    launching: waypoint.Session,
) -> None:
    closed = []

    async def work() -> None:
        asked = anyio.Event()

        async def prompt(_: ElicitRequestFormParams) -> ElicitResult:
            asked.set()
            try:
                await anyio.sleep(60)
            except anyio.get_cancelled_exc_class():
                closed.append(True)
                raise
            return ElicitResult(action="decline")

        async with connected("legacy", prompt) as call, anyio.create_task_group() as group:

            async def run() -> None:
                done = await call("run", command="touch /srv/launched && echo up")
                assert (done["exit_code"], done["output"]) == (0, "up\n")
                assert closed, "before the client leaves"
                group.cancel_scope.cancel()

            group.start_soon(run)
            await asked.wait()
            await anyio.to_thread.run_sync(lambda: launching.approve(launching.approvals()[0]))
            await anyio.sleep(60)

    anyio.run(work)
    assert closed
    assert exists(launching, "/srv/launched")


def test_no_tool_approves_and_what_is_denied_stays_denied(launching: waypoint.Session) -> None:
    async def work() -> None:
        async with connected("auto", None, "--on-approval", "wait") as call:
            assert (await call("run", command="touch --no-create /srv/x"))["error"]["code"] == "denied"
            found = await call("judge", command="cd /srv && touch x")
            assert (found["class"], found["decision"]) == ("irreversible", "ask")
            held = await call("run", command="touch /srv/x")
            approval = held["waits"]["id"]
            inside = await call("run", command=f"waypoint approve {approval}")
            assert inside["exit_code"] != 0, "nor from inside"
            assert (await call("approvals"))["approvals"][0]["state"] == "waiting"
            written = await call("effect", what="told the mission", target="the crew", key="told-1")
            assert not written["failed"]
            assert "told the mission" in (await call("effects"))["text"]

    anyio.run(work)
    assert not exists(launching, "/srv/x")
    (approval,) = launching.approvals(all=True)
    assert approval.state in ("gone", "expired", "denied"), "the client has disconnected: it cannot run"
