"""Tools about sessions: sessions, new, stop, status; and `more`, which continues any answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from pydantic import Field

from waypoint import model
from waypoint.api import requests
from waypoint.mcp.pages import PAGE_CHARACTERS
from waypoint.mcp.registry import CHANGES, READS, Answer, Backend, Hints, SessionName, reads_on, tool
from waypoint.mcp.tools.points import called, summary_of
from waypoint.text.units import shown


class SessionTools:
    """Sessions as a whole."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @tool("List sessions", READS, requests.Ls)
    async def sessions(self) -> Answer:
        """List the sessions: state, the point each stands on, what runs in it."""
        client = self._backend.client
        sessions = await self._backend.ask(lambda: client.ask(requests.Ls()).sessions)
        points = await self._backend.ask(client.checkpoints)
        labels = {point.id: f"{point.info.session}:{point.info.label}" for point in points}
        rows = [
            {
                "name": session.name,
                "state": session.state,
                "at": labels.get(session.head or ""),
                "runs": session.foreground,
                "forked_from": labels.get(session.forked_from or ""),
            }
            for session in sessions
        ]
        lines = [
            f"{row['name']}  {row['state']}  at {row['at'] or 'the base'}"
            + (f"  runs {shown(row['runs'])}" if row["runs"] else "")
            for row in rows
        ]
        text = "" if rows else "There are no sessions. `new` starts one."
        return Answer(text, {"sessions": rows}, "\n".join(lines), "list of sessions")

    @tool("Start or join a session", Hints(idempotent=True), requests.New)
    async def new(
        self,
        ctx: Context[Any, Any],
        *,
        name: Annotated[str, Field(description="Letters, digits, - and _; empty: one is chosen.")] = "",
        base: Annotated[
            str,
            Field(description="Its root: `/` is this machine's own (writes stay in the session)."),
        ] = "/",
        net: Annotated[Literal["nat", "none"], Field(description="With or without network.")] = "nat",
        auto: Annotated[
            bool, Field(description="A point after each command that changed something.")
        ] = False,
    ) -> Answer:
        """Start a session, or join the one of that name. Nothing it does changes this machine's files."""
        request = requests.New(
            name=name or None, options=model.BoxOptions(base=base, net=net), join=True, auto=auto
        )
        client = self._backend.client
        session = await self._backend.ask(lambda: client.ask(request).session, ctx, "starting a session")
        data = {"session": session.name, "state": session.state}
        return Answer(f"Session {session.name} is {session.state}.", data)

    @tool("Stop a session", CHANGES)
    async def stop(
        self,
        ctx: Context[Any, Any],
        *,
        session: Annotated[str, Field(description="Session name.")],
        forget: Annotated[
            bool,
            Field(
                description="false: take a last point; `restore` brings it back. true: delete it with all of"
                " its points."
            ),
        ] = False,
    ) -> Answer:
        """Stop a session. By default nothing is lost."""
        target = self._backend.session(session)
        if forget:
            await self._backend.ask(target.remove, ctx, "removing the session")
            return Answer(
                f"Session {session} and its points are deleted.", {"session": session, "forgotten": True}
            )
        point = await self._backend.ask(target.park, ctx, "parking the session")
        return Answer(
            f"Session {session} is parked at {called(point.info)}.",
            {"session": session, "forgotten": False, "point": summary_of(point.info)},
        )

    @tool("Where a session stands", READS, requests.Status)
    async def status(self, session: SessionName = "", ctx: Context[Any, Any] | None = None) -> Answer:
        """Where a session stands: its last point, what runs, what has changed since."""
        status = await self._backend.ask(self._backend.session(session).status, ctx, "looking at the session")
        data = {
            "session": status.data["session"]["name"],
            "state": status.state,
            "runs": status.foreground,
            "at": summary_of(status.head) if status.head else None,
            "changed": bool(status.diff),
            "summary": status.data["summary"],
        }
        return self._backend.page(str(status), data, what="status")

    @tool("Read on", READS)
    async def more(
        self,
        *,
        cursor: Annotated[str, Field(description="From that answer.")],
        max_characters: Annotated[int, Field(description="How much.", ge=200, le=100_000)] = PAGE_CHARACTERS,
    ) -> Answer:
        """Read on in an answer that was cut."""
        kind, _, rest = cursor.partition(":")
        if reader := self._backend.readers.get(kind):
            return await reader(rest)
        page = self._backend.pages.more(cursor, max_characters)
        return Answer("", {"cursor": page.cursor}, page.text, "the rest", after=reads_on(page.cursor))
