"""What a tool is: a method with a title, hints for the client, and an answer as text and as data.

The tools are methods of the classes in tools/, marked with `tool`; their arguments have descriptions for the
model. All of them work through one `Backend`, which asks the daemon in a thread, reports progress, cuts long
answers and knows the session that was used last. What a tool raises becomes an error with a code, a message
and a hint.

A model pays for every word of every tool that is offered, in each of its turns. So a core set is offered, and
the others only on request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import anyio
import anyio.to_thread
import msgspec
from mcp.server.mcpserver import Context
from pydantic import Field

from waypoint import errors, model
from waypoint.api import requests
from waypoint.api.hints import Wording, in_command
from waypoint.api.request import Request
from waypoint.client.checkpoint import Checkpoint
from waypoint.client.client import Client
from waypoint.client.session import Session
from waypoint.mcp.pages import Pages
from waypoint.text.quoting import framed, visible

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])

_PROGRESS_SECONDS = 1.0

SessionName = Annotated[str, Field(description="Default: as before.")]
Ref = Annotated[str, Field(description="A point: c5, a name, `@` (last), `@-`, `good`, 10:27, SESSION:REF.")]


class Hints(NamedTuple):
    """What a client may assume about a tool before it asks its user."""

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False


READS = Hints(read_only=True, idempotent=True)
ADDS = Hints()
CHANGES = Hints(destructive=True)


class Tool(NamedTuple):
    """What is declared about a tool beside its method."""

    title: str
    hints: Hints
    request: type[Request[Any]] | None
    """The request of the API that it makes. Its arguments agree with the fields of that (under test)."""
    core: bool
    """Whether it is offered without being asked for."""


class Answer(NamedTuple):
    """The answer of a tool, as text for the model, and as data for programs (which has no long texts)."""

    text: str
    """Waypoint's own words."""
    data: Mapping[str, Any]
    quoted: str = ""
    """What comes from sessions. It is shown in a frame that says so."""
    what: str = "output"
    """What the quoted text is."""
    session: str = ""
    """Whose it is; by default that of `data`."""
    after: str = ""
    """Waypoint's words below it: how to read on, remarks."""

    def written(self) -> str:
        """All of it, with no character that a reader cannot see."""
        session = self.session or str(self.data.get("session") or "")
        frame = framed(self.quoted, session, self.what) if self.quoted.strip() else ""
        return "\n".join(filter(None, (visible(self.text), frame, visible(self.after))))


_TOOLS: dict[Any, Tool] = {}


def tool(
    title: str, hints: Hints, request: type[Request[Any]] | None = None, *, core: bool = True
) -> Callable[[Method], Method]:
    """Marks a method as a tool. Its docstring is the description for the model."""

    def mark(method: Method) -> Method:
        _TOOLS[method] = Tool(title, hints, request, core)
        return method

    return mark


def tools_of(group: type) -> Iterator[tuple[str, Tool]]:
    """The tools of a class, by name."""
    return ((name, _TOOLS[method]) for name, method in vars(group).items() if method in _TOOLS)


class Backend:
    """What all tools share: the SDK, the default session, and texts that were cut."""

    def __init__(
        self, client: Client, default_session: str = "", on_approval: model.ApprovalMode | None = None
    ) -> None:
        self.client = client
        self.on_approval = on_approval
        """What happens to a command that needs approval; None: it waits if a person can be asked."""
        self._default_session = default_session
        self._last_session = ""
        self.wording: Wording = in_command
        """How requests are written; the server sets it when it knows its tools."""
        self.pages = Pages()
        self.readers: dict[str, Callable[[str], Awaitable[Answer]]] = {}
        """Continue a list from a cursor, by the word before its colon. Other cursors are of `pages`."""

    def session(self, name: str) -> Session:
        """A session by name; by default the one of the server, else the one that was used last. What is done
        through it has the agent as its actor."""
        return Session(self.client, name or self._default_session or self._last_session, "agent")

    async def find_default(self) -> None:
        """Notes the only session there is, so that it stays the default when it is forked."""
        if not (self._default_session or self._last_session):
            with contextlib.suppress(errors.WaypointError):  # the tool says what is wrong
                self._last_session = (
                    await self.ask(lambda: self.client.ask(requests.Session()))
                ).session.name

    def note_used(self, name: str) -> None:
        """A tool has worked on this session; empty if it is gone."""
        self._last_session = name

    def point(self, session: str, ref: str) -> Checkpoint:
        return self.session(session).point(ref)

    def page(
        self, quoted: str, data: Mapping[str, Any], *, what: str, text: str = "", session: str = ""
    ) -> Answer:
        """An answer with the beginning of a text of a session, and with the cursor to the rest of it."""
        page = self.pages.first(visible(quoted))
        data = {**data, "cursor": page.cursor}
        return Answer(text, data, page.text, what, session, reads_on(page.cursor))

    async def ask(
        self,
        work: Callable[[], T],
        ctx: Context[Any, Any] | None = None,
        doing: str | Callable[[], str] = "",
    ) -> T:
        """Does the work in a thread. With a context it reports every second what it is doing."""
        async with anyio.create_task_group() as group:
            if ctx is not None:
                group.start_soon(_report_progress, ctx, doing)
            result = await anyio.to_thread.run_sync(lambda: _result_or_error(work), abandon_on_cancel=True)
            group.cancel_scope.cancel()
        if isinstance(result, errors.WaypointError):
            raise result
        return result


def _result_or_error(work: Callable[[], T]) -> T | errors.WaypointError:
    """Returns the error: raised in a task group it would come out wrapped in a group of errors."""
    try:
        return work()
    except errors.WaypointError as error:
        return error


async def _report_progress(ctx: Context[Any, Any], doing: str | Callable[[], str]) -> None:
    seconds = 0.0
    while True:
        await anyio.sleep(_PROGRESS_SECONDS)
        seconds += _PROGRESS_SECONDS
        await ctx.report_progress(seconds, None, doing if isinstance(doing, str) else doing())


def plain(record: Any) -> dict[str, Any]:
    """A struct as data for an answer."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return fields


def reads_on(cursor: str | None) -> str:
    return f"[cut; more(cursor={cursor!r}) reads on]" if cursor else ""
