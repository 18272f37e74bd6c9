"""Values of the user as they travel, and back: agent state, recorded contents, points, paths, files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Protocol

import msgspec

from waypoint import errors, model
from waypoint.api.files import MOST_WRITTEN_BYTES
from waypoint.api.request import Path, StatePayload, path_to_wire

if TYPE_CHECKING:
    from waypoint.api.agent import AgentStateResult


class HasId(Protocol):
    """A point: `Checkpoint` of the SDK or of the model."""

    @property
    def id(self) -> str: ...


def ref_of(point: HasId | str | None) -> str | None:
    """How a request names a point."""
    return point if point is None or isinstance(point, str) else point.id


def approval_mode(on_approval: object) -> model.ApprovalMode | None:
    """What happens to a command that needs approval, as it travels: with a function it waits."""
    return "wait" if callable(on_approval) else on_approval  # type: ignore[return-value] # the request checks


def state_to_wire(state: Any) -> StatePayload | None:
    """Agent state as it travels: bytes as they are, other values as the text of their JSON, in which numbers
    have any size."""
    if state is None:
        return None
    if isinstance(state, bytes | bytearray | memoryview):
        return StatePayload(base64=bytes(state))
    import json

    try:
        return StatePayload(text=json.dumps(state, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.UsageError(
            f"that agent state is neither bytes nor JSON: {error}",
            hint="give bytes, or dictionaries, lists, strings and numbers",
        ) from error


def state_from_wire(answer: AgentStateResult, version: str | None) -> Any:
    """What was left, in the form that the code of this version expects. None when nothing was."""
    import base64
    import json

    from waypoint.client.migrations import migrate

    if isinstance(answer.base64, str):
        state: Any = base64.b64decode(answer.base64)
    elif isinstance(answer.text, str):
        state = json.loads(answer.text)
    else:
        return None
    return migrate(state, answer.agent_version, version)


def content_to_wire(content: Any) -> Any:
    """The content of a message as it travels."""
    if isinstance(content, str):
        return content.encode(errors="replace").decode()
    try:
        msgspec.json.encode(content)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise errors.UsageError(
            f"that cannot be recorded: {error}", hint="give text, or what JSON can hold"
        ) from error
    return content


def to_messages(events: Iterable[model.Event]) -> list[dict[str, Any]]:
    """Messages the way most models take them: `{"role", "content"}`; tool calls and results have a `kind`."""
    return [
        dict(event.body) if event.kind == "message" else {"kind": event.kind, **event.body}
        for event in events
    ]


def paths_to_wire(paths: str | Sequence[str]) -> tuple[Path, ...]:
    """Paths of a session."""
    return tuple(path_to_wire(path) for path in ([paths] if isinstance(paths, str) else paths))


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path of this machine: from the root on, and otherwise as it was written, because only the kernel
    knows what `..` after a link is."""
    return path_to_wire(os.path.join(os.getcwd(), os.fspath(path)))


def argv_to_wire(argv: Sequence[str]) -> tuple[str, ...]:
    """The words of a program."""
    if isinstance(argv, str | bytes):
        raise errors.UsageError(
            "a program is given as a list of words", hint="`s.run` takes a command line as one text"
        )
    return tuple(os.fspath(word) if isinstance(word, os.PathLike) else word for word in argv)


def signal_number(signal: int | str) -> int:
    """The number of a signal: `15`, "TERM", "SIGTERM", `signal.SIGTERM`."""
    import signal as signals

    if isinstance(signal, int):
        return int(signal)
    name = signal.upper()
    try:
        return int(signals.Signals[name if name.startswith("SIG") else f"SIG{name}"])
    except KeyError as error:
        raise errors.UsageError(
            f"there is no signal {signal!r}", hint="for example TERM, INT, KILL, HUP"
        ) from error


def content_bytes(data: str | bytes | bytearray | memoryview) -> bytes:
    """What is written to a file."""
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError as error:
            raise errors.UsageError(
                f"that text cannot be written as UTF-8: {error}", hint="give bytes"
            ) from error
    elif not isinstance(data, bytes | bytearray | memoryview):
        raise errors.UsageError(
            f"a file is written from text or bytes, not from {type(data).__name__}",
            hint="encode it first, for example with json.dumps",
        )
    if len(data) > MOST_WRITTEN_BYTES:
        raise errors.UsageError(
            f"{len(data):,} bytes are too many for one request",
            hint="`s.copy_in` copies files of any size",
        )
    return bytes(data)


def decoded(data: bytes, path: str | os.PathLike[str], encoding: str) -> str:
    """The content of a file as text."""
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise errors.UsageError(
            f"{os.fspath(path)!r} cannot be read as text: {error}",
            hint="`s.read_file` gives its bytes",
        ) from error


def progress_reader(on_progress: Callable[[str], object] | None) -> Callable[[Any], None]:
    """What reads the events of a request that says how far it is."""

    def on_event(event: Any) -> None:
        if on_progress and "progress" in event:
            on_progress(event["progress"])

    return on_event


@contextlib.contextmanager
def complete_file(file: str | os.PathLike[str] | IO[bytes]) -> Iterator[IO[bytes]]:
    """A file that has its name only when all of it is written; an open file is written as it is."""
    if not isinstance(file, str | os.PathLike):
        yield file
        return
    from waypoint.kernel import atomic  # here: few commands write a file

    is_special = os.path.exists(file) and not os.path.isfile(file)  # a pipe or a device
    with open(file, "wb") if is_special else atomic.replaced(file) as out:
        yield out


def steps(on_step: Callable[[dict[str, Any]], None] | None) -> Callable[[Any], None]:
    """What is called with the events of a replay."""

    def on_event(event: Any) -> None:
        if on_step and "step" in event:
            on_step(event["step"])

    return on_event
