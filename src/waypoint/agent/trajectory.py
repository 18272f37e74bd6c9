"""The trajectory: the events of a session, in order, written once and never changed.

The database keeps events as a tree (store/events.py). This module writes them there. Each box of a session
has a stream, into which events are put as they happen; one thread redacts, packs and writes them in order.
`Stream.add` returns at once: the answer to a command does not wait until its event is written.
`Trajectory.record` returns when its event is written.

A checkpoint has to contain exactly the events from before its processes were stopped. `Stream.hold` draws
that line: events that are in the stream by then are written, later ones wait until the checkpoint exists or
has failed. A restore makes a new stream beside the old one and replaces it when the session moves
(`handover`).
"""

from __future__ import annotations

import base64
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from waypoint.api.hints import Arg, Hint
from waypoint.errors import SessionDead, UsageError
from waypoint.history.redaction import Redactor
from waypoint.kernel import locks
from waypoint.model import Actor, Event, EventKind
from waypoint.store import Store
from waypoint.store.events import NewEvent, make_blob

log = logging.getLogger("waypoint")

_INLINE_BYTES = 16 << 10
"""If a body is larger, its largest field is stored separately, compressed and deduplicated."""
_TIMEOUT_SECONDS = 120.0

Redactors = Callable[[], Redactor | None]
"""Returns the redactor with the present secrets of a session. It is called when an event is written, not when
it happened. None if the session is gone: the last redactor is used then."""


@dataclass
class _Item:
    kind: EventKind
    body: Mapping[str, Any]
    actor: Actor
    at: float
    data: bytes | None
    from_box: bool
    """Whether it comes from the box: then it is dropped if the session has moved to another box."""
    done: threading.Event = field(default_factory=threading.Event)
    id: int | None = None
    error: Exception | None = None


class Stream:
    """The events of one box of a session. Made by `Trajectory.open`; starts held."""

    def __init__(self, trajectory: Trajectory, session_id: str, redactors: Redactors) -> None:
        self._trajectory, self.session_id, self._redactors = trajectory, session_id, redactors
        self.waiting: deque[_Item] = deque()
        self.allowed: int | None = 0
        """How many of the waiting events may be written; None: all."""
        self.busy = False
        self.closed = False
        self._known = Redactor()

    def add(
        self,
        kind: EventKind,
        body: Mapping[str, Any],
        *,
        actor: Actor = "person",
        data: bytes | None = None,
        at: float | None = None,
    ) -> None:
        """Adds an event of the box. It takes microseconds; the event is written in the background."""
        self._trajectory.put(self, _Item(kind, body, actor, at or time.time(), data, from_box=True))

    def hold(self) -> None:
        """Later events are not written until `release`. If called again, the last call counts."""
        self._trajectory.hold(self)

    def flush(self) -> None:
        """Waits until all events that may be written are."""
        self._trajectory.flush(self)

    def release(self) -> None:
        self._trajectory.release(self)

    def close(self) -> None:
        """The box is gone. Its last events are written if it was the session's present box."""
        self._trajectory.close_stream(self)

    def redactor(self) -> Redactor:
        self._known = self._redactors() or self._known
        return self._known


_DELAY_SECONDS = 0.05


class Trajectory:
    """The trajectories of one home. The daemon has one of these."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = locks.condition("trajectory")
        self._streams: dict[str, Stream] = {}
        """The stream of the present box of each live session."""
        self._ready: deque[Stream] = deque()
        self._waiters = 0
        """How many threads wait for an event to be written: then the writer does not delay."""
        self._stopped = False
        self._writer = threading.Thread(target=self._work, name="trajectory", daemon=True)
        self._writer.start()

    # ---- streams -----------------------------------------------------------------------------

    def open(self, session_id: str, redactors: Redactors) -> Stream:
        """A held stream for a box that is being built. It becomes the session's by `adopt` or `handover`."""
        return Stream(self, session_id, redactors)

    def adopt(self, stream: Stream) -> None:
        """Makes this the stream of its session."""
        with self._changed:
            self._streams[stream.session_id] = stream
        self.release(stream)

    @contextlib.contextmanager
    def handover(self, stream: Stream) -> Iterator[None]:
        """Around the move of a session into another box, whose stream this is. All events of the old box are
        written before. Events about the session that others add meanwhile are written after."""
        with self._changed:
            old = self._streams.get(stream.session_id)
        if old:
            self.hold(old)
            self.flush(old)
        try:
            yield
        except BaseException:
            if old:
                self.release(old)
            raise
        with self._changed:
            if old:
                stream.waiting.extendleft(reversed([item for item in old.waiting if not item.from_box]))
                old.waiting.clear()
                old.closed = True
            self._streams[stream.session_id] = stream
        self.release(stream)

    def put(self, stream: Stream, item: _Item) -> None:
        with self._changed:
            if stream.closed:
                item.error = SessionDead("the session ended")
                item.done.set()
                return
            stream.waiting.append(item)
            if stream.allowed is None:
                self._ready.append(stream)
                self._changed.notify_all()

    def hold(self, stream: Stream) -> None:
        with self._changed:
            stream.allowed = len(stream.waiting)
            self._ready.append(stream)
            self._changed.notify_all()

    def release(self, stream: Stream) -> None:
        with self._changed:
            stream.allowed = None
            self._ready.append(stream)
            self._changed.notify_all()

    def flush(self, stream: Stream) -> None:
        with self._changed, self._waiting():
            self._changed.wait_for(
                lambda: stream.closed or not (stream.busy or self._writable(stream)), _TIMEOUT_SECONDS
            )

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        with self._changed:
            self._waiters += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._waiters -= 1

    def close_stream(self, stream: Stream) -> None:
        with self._changed:
            if stream.closed:
                return
            if self._streams.get(stream.session_id) is stream:
                # The box ended by itself: its last events are written.
                del self._streams[stream.session_id]
                stream.allowed = None
                self._ready.append(stream)
            else:
                stream.waiting.clear()
            stream.closed = True
            self._changed.notify_all()
            with self._waiting():
                self._changed.wait_for(lambda: not (stream.busy or stream.waiting), _TIMEOUT_SECONDS)

    def stop(self) -> None:
        """Writes the waiting events, then stops."""
        with self._changed, self._waiting():
            self._changed.wait_for(
                lambda: not self._ready and not any(stream.busy for stream in self._streams.values()), 10.0
            )
            self._stopped = True
            self._changed.notify_all()

    # ---- recording ---------------------------------------------------------------------------

    def record(
        self,
        session_id: str,
        kind: EventKind,
        body: Mapping[str, Any],
        *,
        actor: Actor = "person",
        data: bytes | None = None,
        redactor: Redactor | None = None,
    ) -> int:
        """Adds an event after all earlier ones, and returns its id when it is written. `data`: content that
        is too large for the body. `redactor` is used for a session that does not run and has no stream."""
        item = _Item(kind, body, actor, time.time(), data, from_box=False)
        with self._changed:
            stream = self._streams.get(session_id)
            if stream:
                self.put(stream, item)
        if stream is None:
            ids = self._store.events.append(session_id, [_prepare(item, redactor or Redactor())])
            return ids[0] if ids else 0
        with self._waiting():
            written = item.done.wait(_TIMEOUT_SECONDS)
        if not written:
            raise SessionDead("a checkpoint or restore of the session has not ended in time")
        if item.error:
            raise item.error
        return item.id or 0

    @contextlib.contextmanager
    def paused(self, session_id: str) -> Iterator[None]:
        """Around a change between two events: all earlier events are written, and no checkpoint is taken
        meanwhile."""
        with self._changed:
            stream = self._streams.get(session_id)
            if stream is None:
                yield
                return
            with self._waiting():
                self._changed.wait_for(
                    lambda: (
                        stream.closed or (stream.allowed is None and not stream.waiting and not stream.busy)
                    ),
                    _TIMEOUT_SECONDS,
                )
            yield

    def wait_written(self, session_id: str) -> None:
        """Waits until all events of a session that may be written are."""
        with self._changed:
            stream = self._streams.get(session_id)
        if stream:
            self.flush(stream)

    # ---- the writer --------------------------------------------------------------------------

    def _writable(self, stream: Stream) -> int:
        return len(stream.waiting) if stream.allowed is None else min(stream.allowed, len(stream.waiting))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._stopped)
                # A command has just ended and its answer is being sent. If no thread waits for the event, it
                # is written a moment later: it does not compete with the answer, and the next may join it.
                self._changed.wait_for(lambda: self._waiters or self._stopped, _DELAY_SECONDS)
                if self._stopped:
                    return
                stream = self._ready.popleft()
                number = 0 if stream.busy else self._writable(stream)
                if not number:
                    self._changed.notify_all()
                    continue
                items = [stream.waiting.popleft() for _ in range(number)]
                if stream.allowed is not None:
                    stream.allowed -= number
                stream.busy = True
            try:
                self._write(stream, items)
            except Exception as error:
                log.exception("the trajectory of %s", stream.session_id)
                for item in items:
                    item.error = error
            finally:
                with self._changed:
                    stream.busy = False
                    self._changed.notify_all()
                for item in items:
                    item.done.set()

    def _write(self, stream: Stream, items: list[_Item]) -> None:
        redactor = stream.redactor()
        ids = self._store.events.append(stream.session_id, [_prepare(item, redactor) for item in items])
        for item, number in zip(items, ids, strict=False):
            item.id = number


def _prepare(item: _Item, redactor: Redactor) -> NewEvent:
    """An event as it is stored: without secrets, and with its largest field separate if it is large."""
    fields = dict(item.body)
    key = fields.pop("key", None) if item.kind == "effect" else None
    body, hidden = redactor.redact_json(fields)
    if key:  # identifies the effect; not a secret, although it looks like one
        clean = redactor.redact(key)
        body["key"], hidden = clean.text, hidden + clean.count
    data = item.data
    if data is not None:
        clean = redactor.redact(data.decode(errors="surrogateescape"))
        hidden += clean.count
        data = clean.text.encode(errors="surrogateescape")
    elif len(msgspec.json.encode(body)) > _INLINE_BYTES:
        sizes = {name: len(msgspec.json.encode(value)) for name, value in body.items()}
        apart = max(sizes, key=lambda name: sizes[name])
        data = msgspec.json.encode(body.pop(apart))
        body["apart"] = apart
    if hidden:
        body["redacted"] = hidden
    return NewEvent(
        kind=item.kind,
        body=body,
        actor=item.actor,
        at=item.at,
        blob=None if data is None else make_blob(data),
    )


def with_blob(event: Event, data: bytes | None) -> Event:
    """An event with the content of its blob, if it has one. Output that is not text is also in `base64`."""
    if data is None:
        return event
    body = dict(event.body)
    if name := body.pop("apart", None):
        body[name] = msgspec.json.decode(data)
    else:
        try:
            body["output"] = data.decode()
        except UnicodeDecodeError:
            body["output"] = data.decode(errors="replace")
            body["base64"] = base64.b64encode(data).decode()
    return msgspec.structs.replace(event, body=body, blob=None)


ROLES = ("user", "assistant", "system", "developer", "tool")


def agent_event(what: str, content: Any, more: Mapping[str, Any]) -> tuple[EventKind, dict[str, Any]]:
    """The kind and body of an event that an agent records. `what`: a role, `tool_call`, `tool_result` or
    `note`."""
    if not content and content != 0 and what != "tool_call":
        raise UsageError("there is nothing to record", hint="the content is empty")
    fields = {name: value for name, value in more.items() if value not in (None, "", False)}
    match what:
        case "tool_call":
            if not fields.get("name"):
                raise UsageError(
                    "a tool call needs the name of the tool",
                    hint=Hint("give it with ", Arg("record", "name")),
                )
            return "tool_call", {**fields, "arguments": content}
        case "tool_result":
            return "tool_result", {**fields, "content": content}
        case "note":
            return "note", {**fields, "text": content}
    if what not in ROLES:
        raise UsageError(
            f"{what!r} cannot be recorded",
            hint=f"a role ({', '.join(ROLES)}), tool_call, tool_result or note",
        )
    return "message", {"role": what, **fields, "content": content}
