"""The SDK's side of agents: what was said, what was left with points, what is to be done, and going on.

>>> import waypoint
>>> with waypoint.session("sdk-agent") as s:
...     _ = s.record("user", "write one into a note")
...     first, second = s.tasks.add("write it", "check it")
...     _ = s.run("echo one > /tmp/note").check()
...     done = s.tasks.done("write it")
...     point = s.checkpoint("one is written", agent_state={"step": 1}, agent_version="1")
...     _ = s.tasks.done("check it")
...     back = s.restore(point)
>>> back.agent_state(), [task.state for task in s.tasks]
({'step': 1}, ['completed', 'pending'])
>>> back.messages()
[{'role': 'user', 'content': 'write one into a note'}]
>>> s.resume().task.title
'check it'
>>> _ = s.remove()
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from waypoint import model
from waypoint.aio.connection import Transport
from waypoint.api import requests
from waypoint.client import payloads


class AgentHistory:
    """What an agent knew at a point, or knows now: its state, the messages, the trajectory."""

    def __init__(self, client: Transport, session: str, ref: str | None) -> None:
        self._client, self._session, self._ref = client, session, ref

    async def agent_state(self, version: str | None = None) -> Any:
        """What the agent left, None when nothing. `version`: that of the code that asks; state of another
        version is brought to it by migrations, and NoMigration says that there is no way."""
        answer = await self._client.ask(requests.AgentState(session=self._session, ref=self._ref))
        return payloads.state_from_wire(answer, version)

    async def messages(self) -> list[dict[str, Any]]:
        """What was said up to here, oldest first."""
        answer = await self._client.ask(requests.Messages(session=self._session, ref=self._ref))
        return payloads.to_messages(answer.events)

    async def trace(
        self, *, kinds: Sequence[model.EventKind] = (), limit: int | None = None
    ) -> list[model.Event]:
        """What happened up to here, oldest first, with all that belongs to it. `limit`: the last so many."""
        answer = await self._client.ask(
            requests.Trace(session=self._session, ref=self._ref, kinds=tuple(kinds), limit=limit, full=True)
        )
        return list(answer.events)


class Restored(model.Restored, frozen=True, dict=True):
    """A session that stands at another point now, and what its agent knew there."""

    @classmethod
    def make(cls, restored: model.Restored, history: AgentHistory, state: Any) -> Restored:
        made = cls(**{name: getattr(restored, name) for name in model.Restored.__struct_fields__})
        made.__dict__.update(history=history, state=state)
        return made

    def agent_state(self) -> Any:
        """What the agent left with that point, in the version that was asked for."""
        return self.__dict__["state"]

    async def messages(self) -> list[dict[str, Any]]:
        """What had been said up to that point, oldest first."""
        history: AgentHistory = self.__dict__["history"]
        return await history.messages()


class Resumed(AgentHistory):
    """What there is to know for going on. Printed, it is text for a prompt."""

    def __init__(self, client: Transport, info: model.Resumption, state: Any) -> None:
        super().__init__(client, info.session.name, None)
        self.info, self._state = info, state

    @property
    def task(self) -> model.Task | None:
        """The first that is not done."""
        return self.info.task

    @property
    def text(self) -> str:
        """All of it in words."""
        return self.info.text

    async def agent_state(self, version: str | None = None) -> Any:
        """What the agent left last, in the version that `resume` was asked for."""
        return self._state if version is None else await super().agent_state(version)

    def __str__(self) -> str:
        return self.info.text

    def __repr__(self) -> str:
        return f"<Resumed {self.info.session.name!r} task={self.task.title if self.task else None!r}>"


_TaskList = list[model.Task]


class Tasks:
    """What is to be done in a session. Iterates over the tasks as they are now.

    A task is named by its number (`"2.1"`) or, where only one has it, by its title.
    """

    def __init__(self, client: Transport, session: str, actor: model.Actor) -> None:
        self._client, self._session, self._actor = client, session, actor

    async def __aiter__(self) -> AsyncIterator[model.Task]:
        for task in await self.list():
            yield task

    # sync: def __len__(self) -> int:
    # sync:     return len(self.list())

    async def list(self, ref: str | None = None) -> _TaskList:
        """All of them, in order; `ref`: as they were at a point."""
        answer = await self._client.ask(requests.Tasks(session=self._session, ref=ref))
        return [*answer.tasks]

    async def add(self, *titles: str, under: str | None = None) -> _TaskList:
        """Adds tasks, all or none. `under`: what they are a part of."""
        return await self._add(titles, under, once=False)

    async def plan(self, *titles: str, under: str | None = None) -> _TaskList:
        """Adds those that do not exist yet. An agent that starts again can give its plan again."""
        return await self._add(titles, under, once=True)

    async def _add(self, titles: tuple[str, ...], under: str | None, *, once: bool) -> _TaskList:
        answer = await self._client.ask(
            requests.TaskAdd(titles=titles, session=self._session, under=under, once=once, actor=self._actor)
        )
        return [*answer.added]

    async def start(self, task: str | model.Task) -> model.Task:
        """It is under way, and so is what it is a part of."""
        return await self._set(task, "in_progress")

    async def done(
        self,
        task: str | model.Task,
        note: str = "",
        *,
        evidence: payloads.HasId | str | None = None,
        checkpoint: bool | str = False,
    ) -> model.Task:
        """It is completed. `evidence`: the point that shows it. `checkpoint`: one is taken for that, with
        these words or its title as the intent; in that point it is completed too."""
        intent = checkpoint if isinstance(checkpoint, str) else ""
        return await self._set(
            task, "completed", note, evidence=evidence, checkpoint=bool(checkpoint), intent=intent
        )

    async def fail(
        self, task: str | model.Task, note: str = "", *, evidence: payloads.HasId | str | None = None
    ) -> model.Task:
        """It was tried and did not work; `start` tries it again."""
        return await self._set(task, "failed", note, evidence=evidence)

    async def skip(self, task: str | model.Task, note: str = "") -> model.Task:
        """It is not going to be done."""
        return await self._set(task, "skipped", note)

    async def _set(
        self,
        task: str | model.Task,
        state: model.TaskState,
        note: str = "",
        *,
        evidence: payloads.HasId | str | None = None,
        checkpoint: bool = False,
        intent: str = "",
    ) -> model.Task:
        answer = await self._client.ask(
            requests.TaskSet(
                task=task if isinstance(task, str) else task.id,
                state=state,
                session=self._session,
                note=note,
                evidence=payloads.ref_of(evidence),
                checkpoint=checkpoint,
                intent=intent,
                actor=self._actor,
            )
        )
        return answer.task

    def __repr__(self) -> str:
        return f"<Tasks of {self._session!r}>"
