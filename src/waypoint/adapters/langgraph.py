"""LangGraph: checkpoints of a graph and points of a machine that move together.

    saver = WaypointSaver(InMemorySaver(), session)
    graph = builder.compile(checkpointer=saver)
    graph.invoke(inputs, {"configurable": {"thread_id": "1"}}, durability="sync")
    graph.invoke(None, older.config, durability="sync")     # `older`: of graph.get_state_history(…)

Any saver of LangGraph goes on keeping the graph. With each checkpoint this one keeps a point of the session
that the nodes work in; its id is in the metadata of the checkpoint. A run that begins at a named checkpoint
(time travel) takes the session back to the point first, or goes on in a fork of it.

A point is taken between two steps, so LangGraph has to wait there: `durability="sync"`. A step that changed
nothing shares the point before it. Subgraphs keep their own checkpoints, without points.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from waypoint.adapters import versions

versions.require("langgraph", oldest="1.2", below="1.3", extra="langgraph")
versions.require("langgraph-checkpoint", oldest="4.3", below="4.4", extra="langgraph")

from langgraph._internal._constants import CONFIG_KEY_DURABILITY, CONFIG_KEY_RUNTIME
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

import waypoint
from waypoint import errors

POINT, SESSION = "waypoint_point", "waypoint_session"
"""What is in the metadata of a checkpoint: the id of the point, and the session that stood there."""
_OPTIONAL = ("delete_for_runs", "copy_thread", "prune")
"""What savers need not have. LangGraph looks at the class of a saver to know."""

Config = Mapping[str, Any]
"""What LangGraph calls RunnableConfig."""


@dataclass
class _Thread:
    """One conversation of LangGraph."""

    session: waypoint.Session
    start: str | None = None
    """The point at which its present run began."""


class WaypointSaver(BaseCheckpointSaver):
    """A saver around another one. `session`: the one in which the nodes work, or, for several threads, a
    function from the id of a thread to its session. `travel`: what a run that begins at a named checkpoint
    does: it takes the session back, or goes on in a fork, which `session_of` has from then on."""

    def __new__(cls, inner: BaseCheckpointSaver, *_: Any, **__: Any) -> Self:
        """Of a class that has just those of the optional methods that the other saver has."""
        names = [name for short in _OPTIONAL for name in (short, f"a{short}")]
        there = {
            name for name in names if getattr(type(inner), name) is not getattr(BaseCheckpointSaver, name)
        }
        return super().__new__(type(cls.__name__, (cls,), {name: vars(_Optional)[name] for name in there}))

    def __init__(
        self,
        inner: BaseCheckpointSaver,
        session: waypoint.Session | Callable[[str], waypoint.Session],
        *,
        travel: Literal["restore", "fork"] = "restore",
    ) -> None:
        super().__init__(serde=inner.serde)
        self.inner, self._session, self._travel = inner, session, travel
        self._threads: dict[str, _Thread] = {}

    def session_of(self, thread_id: str) -> waypoint.Session:
        """The session in which the nodes of a thread work now."""
        return self._thread(thread_id).session

    def _thread(self, thread_id: str) -> _Thread:
        if thread_id not in self._threads:
            session = self._session
            if isinstance(session, waypoint.Session):
                if self._threads:
                    (other,) = self._threads
                    raise errors.UsageError(
                        f"thread {thread_id!r} cannot use the session of thread {other!r} as well",
                        hint="give WaypointSaver a function from the id of a thread to its session",
                    )
            else:
                session = session(thread_id)
            self._threads[thread_id] = _Thread(session)
        return self._threads[thread_id]

    # ---- a run begins ------------------------------------------------------------------------

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        saved = self.inner.get_tuple(config)
        if _begins_run(config):
            self._begin(config, saved)
        return saved

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        saved = await self.inner.aget_tuple(config)
        if _begins_run(config):
            await asyncio.to_thread(self._begin, config, saved)
        return saved

    def _begin(self, config: Config, saved: CheckpointTuple | None) -> None:
        """Brings the session to where a run begins, and keeps that point: LangGraph saves the checkpoint of
        the input while the first node runs already."""
        configurable = config["configurable"]
        durability = configurable.get(CONFIG_KEY_DURABILITY, "async")
        if durability not in {"sync", "exit"}:
            raise errors.UsageError(
                f"with durability={durability!r} LangGraph saves while the next node changes the machine",
                hint='pass durability="sync" to invoke, stream, …',
            )
        thread = self._thread(configurable["thread_id"])
        if saved and configurable.get("checkpoint_id"):
            point = saved.metadata.get(POINT)
            if point is None:
                raise errors.NotFound(
                    f"checkpoint {configurable['checkpoint_id']} of the graph has no point of the machine",
                    hint="it was saved by another saver, or is one of a subgraph",
                )
            self._go(thread, point)
            thread.start = point
        else:
            thread.start = _point_now(thread.session, "a run of the graph begins")

    def _go(self, thread: _Thread, point: str) -> None:
        if self._travel == "fork":
            (thread.session,) = thread.session.fork(ref=point)
        elif not _stands_at(thread.session, point):
            thread.session.restore(point)

    # ---- checkpoints -------------------------------------------------------------------------

    def put(
        self,
        config: Config,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Any:
        parent = self.inner.get_tuple(config) if _is_beside_runs(config) else None
        paired = self._pair(config, metadata, parent)
        return self.inner.put(config, checkpoint, paired, new_versions)

    async def aput(
        self,
        config: Config,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Any:
        parent = await self.inner.aget_tuple(config) if _is_beside_runs(config) else None
        paired = await asyncio.to_thread(self._pair, config, metadata, parent)
        return await self.inner.aput(config, checkpoint, paired, new_versions)

    def _pair(
        self, config: Config, metadata: CheckpointMetadata, parent: CheckpointTuple | None
    ) -> CheckpointMetadata:
        """The metadata of a checkpoint with its point."""
        configurable = config["configurable"]
        if configurable.get("checkpoint_ns"):
            return metadata
        thread = self._thread(configurable["thread_id"])
        before = parent.metadata.get(POINT) if parent else None
        if _in_run(config) and metadata.get("source") in {"input", "fork"}:
            point = thread.start
        elif before and not _stands_at(thread.session, before, whatever_changed=True):
            point = before  # the state of an older checkpoint is edited: the machine is not there now
        else:
            point = _point_now(thread.session, f"step {metadata.get('step')} of the graph")
        return {**metadata, POINT: point, SESSION: thread.session.name}

    # ---- what the other saver does alone -----------------------------------------------------

    def list(self, config: Config | None, **options: Any) -> Iterator[CheckpointTuple]:
        return self.inner.list(config, **options)

    async def alist(self, config: Config | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        async for saved in self.inner.alist(config, **options):
            yield saved

    def put_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.inner.put_writes(config, writes, task_id, task_path)

    async def aput_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self.inner.aput_writes(config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        """The points of the session stay: `forget` is for them."""
        self.inner.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        await self.inner.adelete_thread(thread_id)

    def get_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self.inner.get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self.inner.aget_delta_channel_history(config=config, channels=channels)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.inner.get_next_version(current, channel)

    @property
    def config_specs(self) -> Any:
        return self.inner.config_specs

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> WaypointSaver:
        inner = self.inner.with_allowlist(extra_allowlist)
        if inner is self.inner:
            return self
        clone = WaypointSaver(inner, self._session, travel=self._travel)
        clone._threads = self._threads
        return clone


class _Optional(WaypointSaver):
    """The methods that a saver need not have."""

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.inner.delete_for_runs(run_ids)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self.inner.adelete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.inner.copy_thread(source_thread_id, target_thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self.inner.acopy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self.inner.prune(thread_ids, strategy=strategy)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self.inner.aprune(thread_ids, strategy=strategy)


def _in_run(config: Config) -> bool:
    """Whether a run of a graph asks, and not a call like `get_state` or `update_state`."""
    return CONFIG_KEY_RUNTIME in config["configurable"]


def _begins_run(config: Config) -> bool:
    """Whether the checkpoint is asked for at which a run begins. (A run also looks, with an empty id, whether
    there is a newer one.)"""
    configurable = config["configurable"]
    named_or_last = configurable.get("checkpoint_id") or "checkpoint_id" not in configurable
    return _in_run(config) and bool(named_or_last) and not configurable.get("checkpoint_ns")


def _is_beside_runs(config: Config) -> bool:
    return not _in_run(config) and bool(config["configurable"].get("checkpoint_id"))


def _stands_at(session: waypoint.Session, point: str, *, whatever_changed: bool = False) -> bool:
    """Whether a session stands at a point, with nothing changed since or whatever has."""
    info = session.info
    return info.head == point and (whatever_changed or (info.state == "live" and not session.changed()))


def _point_now(session: waypoint.Session, intent: str) -> str:
    """A point of the session as it is now: its last one if nothing has changed since."""
    head = session.info.head
    if head is not None and not session.changed():
        return head
    return session.checkpoint(intent).id
