"""The trajectory: what happened in a session, in order, written down once and never changed.

Events are kept in the database (store/database.py) as a tree. Here is the way they get there: a stream for
each incarnation of a session, into which things are put as they happen, and one thread that redacts, packs
and writes them, in order. `later` puts something in and goes on: the answer to a command does not wait for
its record. `tell` returns when what it was given is kept.

A checkpoint must pin exactly what had happened when its tree stood still. `Stream.hold` draws that line: what
is in the stream by then is written, what comes later waits until the point exists (or does not). A restore
makes a new stream beside the old one and changes them over in the moment in which the session moves.
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

from waypoint.errors import SessionDead, UsageError
from waypoint.history.redaction import Redactor
from waypoint.model import Actor, Event, EventKind
from waypoint.store import Store
from waypoint.store.events import NewEvent, make_blob

log = logging.getLogger("waypoint")

_INLINE_BYTES = 16 << 10
"""A body that is larger has its largest part apart, compressed and once."""
_PATIENCE_SECONDS = 120.0

Redactors = Callable[[], Redactor | None]
"""Who knows the secrets of a session; asked when something is written, not when it happened. None when the
session cannot be asked any more: what was known last counts."""


@dataclass
class _Item:
    kind: EventKind
    body: Mapping[str, Any]
    actor: Actor
    at: float
    data: bytes | None
    from_box: bool
    """Whether the session itself said it: then it goes with the box it came from."""
    done: threading.Event = field(default_factory=threading.Event)
    id: int | None = None
    error: Exception | None = None


class Stream:
    """What one incarnation of a session has to tell. Made by `Trajectory.open`; starts held."""

    def __init__(self, trajectory: Trajectory, session_id: str, redactors: Redactors) -> None:
        self._trajectory, self.session_id, self._redactors = trajectory, session_id, redactors
        self.waiting: deque[_Item] = deque()
        self.allowed: int | None = 0
        """How many of those that wait may be written; None: all."""
        self.busy = False
        self.closed = False
        self._known = Redactor()

    def later(
        self,
        kind: EventKind,
        body: Mapping[str, Any],
        *,
        actor: Actor = "person",
        data: bytes | None = None,
        at: float | None = None,
    ) -> None:
        """Something that happened in the box. Costs microseconds; written in the background."""
        self._trajectory.put(self, _Item(kind, body, actor, at or time.time(), data, from_box=True))

    def hold(self) -> None:
        """From now on nothing that happens is written, until `release`. May be repeated: the last counts."""
        self._trajectory.hold(self)

    def flush(self) -> None:
        """Waits until all is written that may be."""
        self._trajectory.flush(self)

    def release(self) -> None:
        self._trajectory.release(self)

    def close(self) -> None:
        """The box is gone: what it still had to say is not heard any more."""
        self._trajectory.close_stream(self)

    def redactor(self) -> Redactor:
        self._known = self._redactors() or self._known
        return self._known


_CALM_SECONDS = 0.05


class Trajectory:
    """The trajectories of one home. One of these lives in the daemon."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._streams: dict[str, Stream] = {}
        """The one of each live session's present incarnation."""
        self._ready: deque[Stream] = deque()
        self._waited_for = 0
        """How many wait for something to be written: then the writer does not take its time."""
        self._stopped = False
        self._writer = threading.Thread(target=self._work, name="trajectory", daemon=True)
        self._writer.start()

    # ---- streams -----------------------------------------------------------------------------

    def open(self, session_id: str, redactors: Redactors) -> Stream:
        """A stream for a box that is being built. Held, and not the session's until `adopt` or `moving`."""
        return Stream(self, session_id, redactors)

    def adopt(self, stream: Stream) -> None:
        """From now on this is what its session has to tell."""
        with self._changed:
            self._streams[stream.session_id] = stream
        self.release(stream)

    @contextlib.contextmanager
    def moving(self, stream: Stream) -> Iterator[None]:
        """While a session moves into another box, whose stream this is. All that the old one has told is
        written before; what others say about the session meanwhile comes after."""
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
                lambda: stream.closed or not (stream.busy or self._writable(stream)), _PATIENCE_SECONDS
            )

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        with self._changed:
            self._waited_for += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._waited_for -= 1

    def close_stream(self, stream: Stream) -> None:
        with self._changed:
            if stream.closed:
                return
            if self._streams.get(stream.session_id) is stream:
                # It ended by itself: what it said last is heard.
                del self._streams[stream.session_id]
                stream.allowed = None
                self._ready.append(stream)
            else:
                stream.waiting.clear()
            stream.closed = True
            self._changed.notify_all()
            with self._waiting():
                self._changed.wait_for(lambda: not (stream.busy or stream.waiting), _PATIENCE_SECONDS)

    def stop(self) -> None:
        """Writes what waits, and no more after that."""
        with self._changed, self._waiting():
            self._changed.wait_for(
                lambda: not self._ready and not any(one.busy for one in self._streams.values()), 10.0
            )
            self._stopped = True
            self._changed.notify_all()

    # ---- telling -----------------------------------------------------------------------------

    def tell(
        self,
        session_id: str,
        kind: EventKind,
        body: Mapping[str, Any],
        *,
        actor: Actor = "person",
        data: bytes | None = None,
        redactor: Redactor | None = None,
    ) -> int:
        """Something that happened, in order after all that was put in before; kept when this returns.
        `data`: what is too large for the body. A session that does not run has no stream: `redactor` then."""
        item = _Item(kind, body, actor, time.time(), data, from_box=False)
        with self._changed:
            stream = self._streams.get(session_id)
            if stream:
                self.put(stream, item)
        if stream is None:
            ids = self._store.events.append(session_id, [_prepare(item, redactor or Redactor())])
            return ids[0] if ids else 0
        with self._waiting():
            written = item.done.wait(_PATIENCE_SECONDS)
        if not written:
            raise SessionDead("the session is being checkpointed or restored and does not come to an end")
        if item.error:
            raise item.error
        return item.id or 0

    @contextlib.contextmanager
    def turn(self, session_id: str) -> Iterator[None]:
        """For what is to happen between two events: everything told before is kept, and no point is being
        pinned meanwhile."""
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
                    _PATIENCE_SECONDS,
                )
            yield

    def settle(self, session_id: str) -> None:
        """Until everything that was told of a session is kept, if it may be."""
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
                # A command has just ended, and its answer is on the way: it does not share the processor with
                # what nobody waits for, and the next one may be written along with it.
                self._changed.wait_for(lambda: self._waited_for or self._stopped, _CALM_SECONDS)
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
    """An event as it is kept: without secrets, and with what is large apart."""
    given = dict(item.body)
    key = given.pop("key", None) if item.kind == "effect" else None
    body, hidden = redactor.redact_json(given)
    if key:  # what makes it the same effect when it is done again: it opens nothing
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


def whole(event: Event, data: bytes | None) -> Event:
    """An event with what was kept apart from it, its blob. Output that is no text is in `base64` too."""
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


def spoken(what: str, content: Any, more: Mapping[str, Any]) -> tuple[EventKind, dict[str, Any]]:
    """Something the agent's side has to say, as an event: `what` is a role, `tool_call`, `tool_result` or
    `note`."""
    if not content and content != 0 and what != "tool_call":
        raise UsageError("there is nothing to record", hint="give the words, or - to read them from stdin")
    given = {name: value for name, value in more.items() if value not in (None, "", False)}
    match what:
        case "tool_call":
            if not given.get("name"):
                raise UsageError("a tool call needs the name of the tool", hint="give it with --name")
            return "tool_call", {**given, "arguments": content}
        case "tool_result":
            return "tool_result", {**given, "content": content}
        case "note":
            return "note", {**given, "text": content}
    if what not in ROLES:
        raise UsageError(
            f"{what!r} is nothing that can be recorded",
            hint=f"a role ({', '.join(ROLES)}), tool_call, tool_result or note",
        )
    return "message", {"role": what, **given, "content": content}
