"""Points, as objects of the SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waypoint import model
from waypoint.aio import agent
from waypoint.aio.connection import Transport
from waypoint.api import requests
from waypoint.client.payloads import ref_of
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.aio.session import Session


class Checkpoint:
    """One immutable point of a session."""

    def __init__(self, client: Transport, info: model.Checkpoint) -> None:
        self._client = client
        self.info = info

    @property
    def id(self) -> str:
        """What names it everywhere, for ever."""
        return self.info.id

    @property
    def name(self) -> str | None:
        """The name it was given when it was taken."""
        return self.info.name

    async def fork(
        self,
        n: int = 1,
        *,
        name: str | None = None,
        agent_version: str | None = None,
        hook_timeout: float | None = None,
        actor: model.Actor = "person",
    ) -> list[Session]:
        """`n` new live sessions grown from this point. Conversation, tasks and agent state come along;
        `agent_version`: NoMigration, and no fork, when no migration leads to it. `hook_timeout`: as of
        `Session.fork`."""
        from waypoint.aio.session import sessions_of

        if agent_version is not None:
            await self.agent_state(agent_version)
        answer = await self._client.ask(
            requests.Fork(
                ref=self.id,
                session=self.info.session,
                n=n,
                name=name,
                hook_timeout=hook_timeout,
                actor=actor,
            )
        )
        return sessions_of(self._client, answer.sessions, actor)

    @property
    def _history(self) -> agent.AgentHistory:
        return agent.AgentHistory(self._client, self.info.session, self.id)

    async def agent_state(self, version: str | None = None) -> Any:
        """What the agent left with it, None when nothing. `version`: that of the code that asks; state of
        another version is brought to it by migrations (see `waypoint.migration`)."""
        return await self._history.agent_state(version)

    async def messages(self) -> list[dict[str, Any]]:
        """What had been said up to it, oldest first."""
        return await self._history.messages()

    async def trace(
        self, *, kinds: Sequence[model.EventKind] = (), limit: int | None = None
    ) -> list[model.Event]:
        """What led to it, oldest first. `limit`: the last so many."""
        return await self._history.trace(kinds=kinds, limit=limit)

    async def tasks(self) -> list[model.Task]:
        """The tasks as they were at it."""
        return await agent.Tasks(self._client, self.info.session, "person").list(self.id)

    async def card(self, *, again: bool = False) -> views.Card:
        """Its story: intent, changes, verdicts, notes. `again`: computed anew."""
        request = requests.Show(ref=self.id, session=self.info.session, again=again)
        return views.Card(await self._client.ask_plain(request))

    async def verify(
        self, command: str, *, timeout: float | None = None, wait: bool = True
    ) -> model.Verdict | None:
        """Runs a command in a throwaway fork of it and keeps the verdict; None when it is not waited for."""
        answer = await self._client.ask(
            requests.Verify(
                ref=self.id, command=command, session=self.info.session, timeout=timeout, wait=wait
            )
        )
        self.info = answer.checkpoint
        return answer.verdict

    async def verdicts(self) -> list[model.Verdict]:
        """All verdicts about it, oldest first."""
        answer = await self._client.ask(requests.Show(ref=self.id, session=self.info.session))
        return [*answer.verdicts]

    async def diff(
        self,
        other: Checkpoint | str | None = None,
        *,
        paths: Sequence[str] = (),
        only: Sequence[str] = (),
        patch: bool = False,
    ) -> views.Diff:
        """What changed from here to another point; to the present of its session when none is given.

        >>> import waypoint
        >>> with waypoint.session("sdk-diff") as s:
        ...     point = s.checkpoint("nothing yet")
        ...     _ = s.run("echo hello > /srv/note").check()
        >>> print(point.diff())
        files      +1 file  [derived]
          + /srv/note  6 B
        >>> _ = s.remove()
        """
        request = requests.Diff(
            session=self.info.session,
            a=self.id,
            b=ref_of(other),
            paths=tuple(paths),
            only=tuple(only),
            patch=patch,
        )
        return views.Diff(await self._client.ask_plain(request))

    async def tag(self, name: str) -> None:
        """Gives it another name; one that another point has is taken from there."""
        answer = await self._client.ask(requests.Tag(name=name, session=self.info.session, ref=self.id))
        if isinstance(answer.checkpoint, model.Checkpoint):
            self.info = answer.checkpoint

    async def untag(self, name: str) -> None:
        """Takes a tag away."""
        await self._client.ask(requests.Tag(name=name, session=self.info.session, ref=self.id, delete=True))
        answer = await self._client.ask(requests.Show(ref=self.id, session=self.info.session))
        self.info = answer.checkpoint

    async def note(self, text: str) -> None:
        """Adds words to it, marked as added later."""
        await self._client.ask(requests.Note(ref=self.id, text=text, session=self.info.session))

    async def pin(self) -> None:
        """Keeps it, whatever is forgotten around it."""
        await self._pin(off=False)

    async def unpin(self) -> None:
        """Retention policies may forget it again."""
        await self._pin(off=True)

    async def _pin(self, *, off: bool) -> None:
        answer = await self._client.ask(requests.Pin(ref=self.id, session=self.info.session, off=off))
        self.info = answer.checkpoint

    async def forget(self, *, force: bool = False) -> None:
        """Forgets it, unless a session stands on it or would go back to it. `force`: although it is named or
        pinned."""
        await self._client.ask(requests.Forget(session=self.info.session, refs=(self.id,), force=force))

    def __repr__(self) -> str:
        return f"<Checkpoint {self.info.session}:{self.info.label} {self.info.name or self.id!r}>"
