"""Puts the server together: tools with their hints, resources, prompts, and the words that teach a model."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import anyio.to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.types import CallToolResult, InputRequiredResult, Resource, TextContent, ToolAnnotations
from pydantic import ValidationError

from waypoint import __version__, errors
from waypoint.api import hints
from waypoint.client.client import Client
from waypoint.client.session import Session
from waypoint.mcp.tools.agent import JournalTools
from waypoint.mcp.tools.tools import Answer, Tools

T = TypeVar("T")

INSTRUCTIONS = """\
Waypoint gives you a live computer with history. A session is an isolated machine: its own files, processes, \
network and a persistent shell. A point (checkpoint) keeps all of it, memory included, in milliseconds.

How to work:
1. `sessions` lists them, `new` starts one, `run` runs commands. `cd`, variables and servers last.
2. `checkpoint` with an intent before anything risky and after each step that works; give it a test command \
as `verify`.
3. When something broke: `log` and `diff` show what really changed. `preview` a point, read the plan, \
`restore` it. `undo` takes a restore back.
4. Unsure which way is best? `fork` a point, work in each fork, `compare` them with a `verify` command.
5. Plan with `task`, say what you decide with `record`; `resume` tells where work that was begun stands.
6. Nothing that happened outside (a push, a request) comes back with a restore: `effects` lists it. What \
acts outside may have to be approved by a person: you cannot do that, and must not go round it.
Answers are kept short: `more` with the cursor reads on. Errors say what to do next."""

_TITLES = {
    "sessions": "List sessions",
    "new": "Start or join a session",
    "stop": "Stop a session",
    "run": "Run a command",
    "wait": "Wait for a person's word",
    "more": "Read on",
    "checkpoint": "Take a checkpoint",
    "log": "Timeline of a session",
    "show": "Show a point",
    "status": "Where a session stands",
    "diff": "What changed",
    "preview": "Preview a restore",
    "restore": "Restore a point",
    "undo": "Undo the last restore",
    "fork": "Fork live sessions from a point",
    "compare": "Compare forks or points",
    "verify": "Verify a point",
    "tasks": "List tasks",
    "task": "Plan and report tasks",
    "record": "Record what was said",
    "trace": "What happened",
    "resume": "Take up work",
    "judge": "What the policy says of a command",
    "effects": "What was done outside",
    "effect": "Write down an effect",
    "approvals": "What waits for approval",
}


class _Hints(NamedTuple):
    """What a client may assume about a tool before it asks a person."""

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False


_READS = _Hints(read_only=True, idempotent=True)
_ADDS = _Hints()
_HINTS = {
    "sessions": _READS,
    "new": _Hints(idempotent=True),
    "stop": _Hints(destructive=True),
    "run": _Hints(destructive=True, open_world=True),
    "wait": _Hints(idempotent=True),
    "more": _READS,
    "checkpoint": _ADDS,
    "log": _READS,
    "show": _READS,
    "status": _READS,
    "diff": _READS,
    "preview": _READS,
    "restore": _Hints(destructive=True),
    "undo": _Hints(destructive=True),
    "fork": _ADDS,
    "compare": _ADDS,
    "verify": _ADDS,
    "tasks": _READS,
    "task": _ADDS,
    "record": _ADDS,
    "trace": _READS,
    "resume": _Hints(idempotent=True),
    "judge": _READS,
    "effects": _READS,
    "effect": _ADDS,
    "approvals": _READS,
}


class Server(MCPServer[Any]):
    """MCP's own server, with the timelines of the sessions there are among its resources."""

    def __init__(self, client: Client, session: str = "") -> None:
        super().__init__(
            "waypoint",
            title="Waypoint",
            version=__version__,
            instructions=INSTRUCTIONS + (f"\nThe default session is {session!r}." if session else ""),
            log_level="WARNING",
        )
        self._client = client
        tools = JournalTools(client, session)
        for name, title in _TITLES.items():
            hints = _HINTS[name]
            self.add_tool(
                _answering(getattr(tools, name)),
                name=name,
                title=title,
                description=_one_line(getattr(JournalTools, name).__doc__),
                annotations=ToolAnnotations(
                    title=title,
                    read_only_hint=hints.read_only,
                    destructive_hint=hints.destructive,
                    idempotent_hint=hints.idempotent,
                    open_world_hint=hints.open_world,
                ),
                structured_output=False,
            )
        _add_resources(self, client)
        _add_prompts(self)
        self._takes: dict[str, list[str]] = {}
        """What each tool takes, by its name."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Arguments that do not fit are an error like any other. MCP's own server leaves out those that a
        tool does not know: a model that misnames one would get the answer to another question."""
        if not self._takes:
            self._takes = {one.name: list(one.input_schema["properties"]) for one in await self.list_tools()}
        takes = self._takes.get(name)
        if takes is None:
            return _failed(
                errors.NotFound(f"there is no tool {name!r}", hint=f"there are: {', '.join(self._takes)}")
            )
        if wrong := [f"no {one!r}" for one in arguments if one not in takes]:
            return _failed(errors.UsageError(f"{name} takes {', '.join(wrong)}", hint=_taking(takes)))
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            wrong = [
                f"{'.'.join(map(str, one['loc']))}: {one['msg'][:1].lower()}{one['msg'][1:]}"
                for one in error.__cause__.errors()
            ]
            return _failed(errors.UsageError(f"{name}: {', '.join(wrong)}", hint=_taking(takes)))

    async def list_resources(self) -> list[Resource]:
        found = await anyio.to_thread.run_sync(lambda: self._client.call("ls")["sessions"])
        return [
            Resource(
                uri=f"waypoint://{quote(one['name'])}/timeline",
                name=f"{one['name']} timeline",
                description=f"The points of session {one['name']}, newest first.",
                mime_type="text/plain",
            )
            for one in found
        ]


def _taking(names: Collection[str]) -> str:
    return f"it takes: {', '.join(names)}" if names else "it takes no arguments"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _answering(
    tool: Callable[..., Awaitable[Answer | InputRequiredResult]],
) -> Callable[..., Awaitable[CallToolResult | InputRequiredResult]]:
    """The tool as MCP wants it: its answer as text and as data, its error as one that a model can act on."""

    @functools.wraps(tool)
    async def call(*args: Any, **named: Any) -> CallToolResult | InputRequiredResult:
        try:
            answer = await tool(*args, **named)
        except errors.WaypointError as error:
            return _failed(error)
        if isinstance(answer, InputRequiredResult):
            return answer
        text = TextContent(type="text", text=answer.text)
        return CallToolResult(content=[text], structured_content=dict(answer.data))

    return call


def _failed(error: errors.WaypointError) -> CallToolResult:
    words = f"{error.code}: {error.message}"
    if "say it with -s or WAYPOINT_SESSION" in error.hint:
        error.hint = error.hint.replace("say it with -s or WAYPOINT_SESSION", "give `session`")
    if hint := hints.word(error.hint, hints.in_tool):
        words += f"\n{hint}"
    text = TextContent(type="text", text=words)
    return CallToolResult(
        content=[text], structured_content={"error": error.as_dict(hints.in_tool)}, is_error=True
    )


def _add_resources(server: MCPServer[Any], client: Client) -> None:
    @server.resource(
        "waypoint://{session}/timeline",
        name="timeline",
        title="Timeline of a session",
        description="The points of a session, newest first: intent, what changed, verdict.",
        mime_type="text/plain",
    )
    async def timeline(session: str) -> str:
        found = await _read(Tools(client).log(session=unquote(session), limit=200))
        return found.text

    @server.resource(
        "waypoint://{session}/{ref}/card",
        name="card",
        title="Card of a point",
        description="One point in full: intent, what changed, verdicts, what it does not hold.",
        mime_type="text/plain",
    )
    async def card(session: str, ref: str) -> str:
        def work() -> str:
            return str(Session(client, unquote(session)).point(unquote(ref)).card())

        return await _read(anyio.to_thread.run_sync(work))


async def _read(work: Awaitable[T]) -> T:
    try:
        return await work
    except errors.NotFound as error:
        raise ResourceNotFoundError(f"{error.message} ({hints.word(error.hint, hints.in_tool)})") from error
    except errors.WaypointError as error:
        raise ResourceError(
            f"{error.code}: {error.message} ({hints.word(error.hint, hints.in_tool)})"
        ) from error


def _add_prompts(server: MCPServer[Any]) -> None:
    @server.prompt(title="Try several ways", description="Solve something in parallel forks; keep the best.")
    def explore(goal: str, ways: str = "3", verify: str = "") -> str:
        check = f"`{verify}`" if verify else "a command that proves it"
        return (
            f"Goal: {goal}\n\n"
            f"Take a Waypoint checkpoint of the session, fork it into {ways} sessions, and work towards the"
            f" goal in each fork in a different way. Then `compare` the forks with {check} as `verify`, say"
            " which is best and why, and checkpoint that one."
        )

    @server.prompt(
        title="Find what broke", description="From a symptom to the point that broke it, and back."
    )
    def recover(symptom: str, session: str = "") -> str:
        whose = f" of session {session!r}" if session else ""
        return (
            f"Something is broken: {symptom}\n\n"
            f"Read the Waypoint `log`{whose}. Find the last point at which it works (`verify` with a command"
            " that shows the symptom), `diff` it with the point after it, and say what caused it. Then"
            " `preview` the good point and show me the plan before you `restore`."
        )


def serve(client: Client, session: str = "") -> None:
    """Serves one client over stdin and stdout, until it goes."""
    # stdout is the wire; what a library has to say goes to stderr, and only if it matters.
    logging.basicConfig(level=logging.WARNING, force=True)
    Server(client, session).run("stdio")
