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
>>> s.stop()
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from waypoint import errors, model
from waypoint.client.migrations import migrate

if TYPE_CHECKING:
    from waypoint.client.session import Client


def sent_state(state: Any) -> dict[str, Any]:
    """Agent state as it travels: bytes as they are, anything else as the text of its JSON, in which numbers
    have any size."""
    if isinstance(state, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(state).decode()}
    import json

    try:
        return {"text": json.dumps(state, allow_nan=False)}
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.UsageError(
            f"that agent state is neither bytes nor JSON: {error}",
            hint="give bytes, or dictionaries, lists, strings and numbers",
        ) from error


def sent_content(content: Any) -> Any:
    """What was said, as it travels."""
    if isinstance(content, str):
        return content.encode(errors="replace").decode()
    try:
        msgspec.json.encode(content)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise errors.UsageError(
            f"that cannot be recorded: {error}", hint="give text, or what JSON can hold"
        ) from error
    return content


def received_state(found: dict[str, Any], version: str | None) -> Any:
    """What was left, in the form that the code of this version expects. None when nothing was."""
    if "base64" in found:
        state: Any = base64.b64decode(found["base64"])
    elif "text" in found:
        import json

        state = json.loads(found["text"])
    else:
        return None
    return migrate(state, found["agent_version"], version)


def events(found: Any) -> list[model.Event]:
    return msgspec.convert(found["events"], list[model.Event])


def messages(said: list[model.Event]) -> list[dict[str, Any]]:
    """Messages the way most models take them: `{"role", "content"}`; tool calls and results have a `kind`."""
    return [dict(one.body) if one.kind == "message" else {"kind": one.kind, **one.body} for one in said]


class Standing:
    """Where the SDK can ask what an agent knew: a point, a session, something that was restored."""

    def __init__(self, client: Client, session: str, ref: str | None) -> None:
        self._client, self._session, self._at = client, session, ref

    def _ask(self, verb: str, **args: Any) -> Any:
        return self._client.call(verb, {"session": self._session, "ref": self._at, **args})

    def agent_state(self, version: str | None = None) -> Any:
        """What the agent left, None when nothing. `version`: that of the code that asks; state of another
        version is brought to it by migrations, and NoMigration says that there is no way."""
        return received_state(self._ask("agent_state"), version)

    def messages(self) -> list[dict[str, Any]]:
        """What was said up to here, oldest first."""
        return messages(events(self._ask("messages")))

    def trace(
        self, *, kinds: tuple[model.EventKind, ...] = (), limit: int | None = None
    ) -> list[model.Event]:
        """What happened up to here, oldest first, with all that belongs to it. `limit`: the last so many."""
        return events(self._ask("trace", kinds=list(kinds), limit=limit, full=True))


class Restored(model.Restored, frozen=True, dict=True):
    """A session that stands at another point now, and what its agent knew there."""

    def _know(self, standing: Standing, state: Any) -> Restored:
        self.__dict__.update(standing=standing, state=state)
        return self

    def agent_state(self) -> Any:
        """What the agent left with that point, in the version that was asked for."""
        return self.__dict__["state"]

    def messages(self) -> list[dict[str, Any]]:
        """What had been said up to that point, oldest first."""
        found: list[dict[str, Any]] = self.__dict__["standing"].messages()
        return found


class Resumed(Standing):
    """What there is to know for going on. Printed, it is text for a prompt."""

    def __init__(self, client: Client, info: model.Resumption, state: Any) -> None:
        super().__init__(client, info.session.name, None)
        self.info, self._state = info, state

    @property
    def task(self) -> model.Task | None:
        """The first that is not done."""
        return self.info.task

    @property
    def text(self) -> str:
        return self.info.text

    def agent_state(self, version: str | None = None) -> Any:
        """What the agent left last, in the version that `resume` was asked for."""
        return self._state if version is None else super().agent_state(version)

    def __str__(self) -> str:
        return self.info.text

    def __repr__(self) -> str:
        return f"<Resumed {self.info.session.name!r} task={self.task.title if self.task else None!r}>"


_Listed = list[model.Task]


class Tasks:
    """What is to be done in a session. Iterates over the tasks as they are now.

    A task is named by its number (`"2.1"`) or, where only one has it, by its title.
    """

    def __init__(self, client: Client, session: str, actor: model.Actor) -> None:
        self._client, self._session, self._actor = client, session, actor

    def __iter__(self) -> Iterator[model.Task]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def list(self, ref: str | None = None) -> _Listed:
        """All of them, in order; `ref`: as they stood at a point."""
        found = self._client.call("tasks", {"session": self._session, "ref": ref})
        return msgspec.convert(found["tasks"], _Listed)

    def add(self, *titles: str, under: str | None = None) -> _Listed:
        """Adds tasks, all or none. `under`: what they are a part of."""
        return self._add(titles, under, once=False)

    def plan(self, *titles: str, under: str | None = None) -> _Listed:
        """Adds those that are not there yet. An agent that starts again can say its plan again."""
        return self._add(titles, under, once=True)

    def _add(self, titles: tuple[str, ...], under: str | None, *, once: bool) -> _Listed:
        args = {"titles": list(titles), "under": under, "once": once}
        found = self._client.call("task_add", {"session": self._session, "actor": self._actor, **args})
        return msgspec.convert(found["added"], _Listed)

    def start(self, task: str | model.Task) -> model.Task:
        """It is under way, and so is what it is a part of."""
        return self._set(task, "in_progress")

    def done(
        self,
        task: str | model.Task,
        note: str = "",
        *,
        evidence: Any = None,
        checkpoint: bool | str = False,
    ) -> model.Task:
        """It is completed. `evidence`: the point that shows it. `checkpoint`: one is taken for that, with
        these words or its title as the intent; in that point it is completed too."""
        intent = checkpoint if isinstance(checkpoint, str) else ""
        return self._set(
            *(task, "completed", note), evidence=evidence, checkpoint=bool(checkpoint), intent=intent
        )

    def fail(self, task: str | model.Task, note: str = "", *, evidence: Any = None) -> model.Task:
        """It was tried and did not work; `start` tries it again."""
        return self._set(task, "failed", note, evidence=evidence)

    def skip(self, task: str | model.Task, note: str = "") -> model.Task:
        """It is not going to be done."""
        return self._set(task, "skipped", note)

    def _set(self, task: str | model.Task, state: model.TaskState, note: str = "", **more: Any) -> model.Task:
        evidence = more.pop("evidence", None)
        args = {
            "session": self._session,
            "actor": self._actor,
            "task": task.id if isinstance(task, model.Task) else task,
            "state": state,
            "note": note,
            "evidence": evidence if isinstance(evidence, str | None) else evidence.id,
            **more,
        }
        return msgspec.convert(self._client.call("task_set", args)["task"], model.Task)

    def __repr__(self) -> str:
        done = sum(task.state == "completed" for task in self)
        return f"<Tasks of {self._session!r}: {done} of {len(self)} completed>"
