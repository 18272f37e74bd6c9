"""The nouns: what travels between layers, over the socket and into `--json`.

Frozen and plain. The words are those of the documentation, the units are in the names, and a field
that is here is a field that other programs may rely on.
"""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["live", "parked", "dead"]
Net = Literal["nat", "none", "host"]
Kind = Literal["manual", "safety", "park", "auto"]
Actor = Literal["person", "agent", "automatic"]
IntentFrom = Literal["given", "command", "git", "none"]

NETS: tuple[str, ...] = ("nat", "none", "host")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What all of them share: immutable, made by keyword."""


class Bind(Record, frozen=True):
    """A host path seen in the box as it is: outside every checkpoint."""

    host: str
    box: str
    readonly: bool = False


class BoxOptions(Record, frozen=True):
    """What a session's box is made of. Kept with the session: every restore builds the same box."""

    base: str = "/"
    net: Net = "nat"
    hide: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()
    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    confined: bool = True


class Size(Record, frozen=True):
    """A terminal's size."""

    rows: int = 24
    columns: int = 80


class Session(Record, frozen=True):
    """A named live environment: a box, a shell in a terminal, a history."""

    id: str
    name: str
    state: State
    created_at: str
    options: BoxOptions
    head: str | None = None
    """The checkpoint it stands on: the last one taken, or the one it was restored to or forked from."""
    forked_from: str | None = None
    pid: int | None = None
    """Its keeper, as the host sees it."""
    foreground: str | None = None
    """The command that occupies its shell now, if any."""
    auto: bool = False
    """Whether a point is taken after each command that changed something."""


class Verdict(Record, frozen=True):
    """What a command said about a checkpoint, run in a throwaway fork of exactly those bytes."""

    id: int
    command: str
    state: Literal["running", "passed", "failed", "error"]
    at: str
    exit_code: int | None = None
    duration_ms: float | None = None
    output: str = ""
    """The end of what it printed, redacted."""


class Note(Record, frozen=True):
    """Words added to a checkpoint later."""

    at: str
    text: str


class Checkpoint(Record, frozen=True):
    """One immutable point: files, processes, terminal."""

    id: str
    name: str | None
    intent: str
    session: str
    label: str
    """`c5`: the number of the point in its session."""
    parent: str | None
    created_at: str
    kind: Kind
    pause_ms: float
    total_ms: float
    size_bytes: int
    processes: int
    files_only: bool = False
    coverage: tuple[str, ...] = ()
    """What this point does not hold, or holds with a difference, one sentence each."""
    actor: Actor = "person"
    intent_from: IntentFrom = "given"
    pinned: bool = False
    tags: tuple[str, ...] = ()
    verdict: Verdict | None = None
    """The last one; `show` has all."""
    summary: str | None = None
    """The card's one line; None until the card is computed."""


class RunResult(Record, frozen=True):
    """What a command did."""

    exit_code: int | None
    output: str
    duration_ms: float
    timed_out: bool = False
    truncated: bool = False
    output_bytes: int = 0
    """How much it printed in all, kept or not."""
    base64: str | None = None
    """The output as it was, when it is no valid UTF-8 (`output` then has replacement characters)."""
    notice: str | None = None
    """Something the caller should know: the shell was replaced, output was cut, …"""


class Restored(Record, frozen=True):
    """A session that stands at another point now."""

    session: Session
    checkpoint: Checkpoint
    ready_ms: float
    safety: Checkpoint | None = None


class Forked(Record, frozen=True):
    """One new session grown from a checkpoint."""

    id: str
    name: str
    ready_ms: float
