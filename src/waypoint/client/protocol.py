"""The client's side of the conversation with the daemon, without I/O: requests to bytes, bytes to messages.

The connections (client/connection.py with sockets, aio/connection.py with asyncio) read as many bytes as
`wanted` says, feed them, and act on the message that comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from waypoint import errors
from waypoint.api import wire
from waypoint.model import from_json, json_decoder

if TYPE_CHECKING:
    from waypoint.api.request import Request
    from waypoint.api.sessions import Exited

R = TypeVar("R")

GREETING_SECONDS = 30.0
"""How long a daemon may take to greet a new client."""
SILENT_SECONDS = 60.0
"""After so long without a word a client finds out whether the daemon greets a new one. A verb may take any
time; a daemon that does not even greet is stopped or hangs."""


class Data(NamedTuple):
    """Plain data: a terminal, the output of a program, an exported file."""

    data: bytes


class Event(NamedTuple):
    """Something that happened while the request is under way."""

    body: Any


class Answer(NamedTuple):
    """The result of the request, not decoded yet."""

    result: msgspec.Raw


class Refusal(NamedTuple):
    """The error that the request ended with."""

    error: errors.WaypointError


class Again(NamedTuple):
    """The daemon is about to end and has not begun the request: another daemon can be asked."""


class Greeting(NamedTuple):
    """What a daemon says first."""

    version: str


Message = Data | Event | Answer | Refusal | Again | Greeting


class _Body(msgspec.Struct):
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    event: Any = msgspec.UNSET
    error: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    again: bool = False
    version: str = ""


_body_decoder = json_decoder(_Body)


class Protocol:
    """One connection."""

    def __init__(self) -> None:
        self._frames = wire.Frames()

    @property
    def wanted(self) -> int:
        """How many bytes it has to be fed next."""
        return self._frames.wanted

    def feed(self, data: bytes) -> Message | None:
        """Takes the bytes that were wanted. A message when they complete one."""
        frame = self._frames.feed(data)
        if frame is None:
            return None
        kind, body = frame
        return Data(body) if kind == wire.DATA else read_message(body)


def read_message(body: bytes) -> Message:
    """The message in a JSON frame."""
    message = _body_decoder.decode(body)
    if message.event is not msgspec.UNSET:
        return Event(message.event)
    if not isinstance(message.error, msgspec.UnsetType):
        return Refusal(errors.from_dict(message.error))
    if not isinstance(message.result, msgspec.UnsetType):
        return Answer(message.result)
    return Again() if message.again else Greeting(message.version)


class Ask(NamedTuple):
    """A request on its way."""

    verb: str
    data: bytes


def ask_request(request: Request[Any]) -> Ask:
    from waypoint.api import requests  # here: a call by name does without the structs

    return _ask(requests.verb_of(type(request)), request)


def ask_by_name(verb: str, args: Mapping[str, Any]) -> Ask:
    """A request by the name of its verb. What is None is left to its default."""
    return _ask(verb, {name: value for name, value in args.items() if value is not None})


def _ask(verb: str, args: Any) -> Ask:
    try:
        body = msgspec.json.encode(args)
    except (TypeError, UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise errors.UsageError(
            f"an argument of {verb} cannot be sent: {error}", hint="give plain text"
        ) from error
    return Ask(verb, wire.frame_json(wire.Envelope(verb, msgspec.Raw(body))))


def data_bytes(data: bytes) -> bytes:
    """What is sent as the input of a program or a terminal; empty: no more will come."""
    return wire.frame(wire.DATA, data)


def decode(request: Request[R], answer: msgspec.Raw) -> R:
    """The result of a request as the type that belongs to it."""
    from waypoint.api import requests

    result: R = from_json(answer, requests.result_of(type(request)))
    return result


def ended_during(verb: str) -> errors.DaemonUnreachable:
    return errors.DaemonUnreachable(
        f"the daemon ended during {verb!r}", hint="ask again: sessions and checkpoints are kept"
    )


def not_answering(pid: int) -> errors.DaemonUnreachable:
    """What a client raises that a daemon does not greet any more."""
    return errors.DaemonUnreachable(
        f"the daemon (process {pid}) has stopped answering",
        hint="end that process: the next verb starts another daemon, and sessions live on",
        pid=pid,
    )


def exited(result: msgspec.Raw) -> Exited:
    """How a spawned program ended: the second result on its connection."""
    from waypoint.api.sessions import Exited

    return from_json(result, Exited)


def pieces(data: bytes, size: int = 1 << 16) -> list[bytes]:
    """Data in parts that are sent one by one."""
    return [data[at : at + size] for at in range(0, len(data), size)]
