"""The nouns: what travels between layers, over the socket and into the JSON of every face.

Frozen and plain. The words are those of the documentation, the units are in the names, and a field
that is here is a field that other programs may rely on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, overload

import msgspec

State = Literal["live", "parked", "stopped", "dead"]
"""`parked`: its last point holds all of it. `stopped`: it was ended, and goes on from its last point. `dead`:
its box has ended without being asked to."""
Net = Literal["nat", "none", "host"]
Kind = Literal["manual", "safety", "park", "auto"]
Actor = Literal["person", "agent", "automatic"]
IntentFrom = Literal["given", "command", "git", "none"]

Restorable = Literal["proven", "unproven", "failed"]
"""What is known of a point: it was restored once; it was not tried yet; it could not be restored."""
EventKind = Literal[
    "command", "output", "message", "tool_call", "tool_result", "checkpoint", "restored", "forked", "task",
    "effect", "approval", "note",
]  # fmt: skip
"""What an event of a trajectory is. docs/agents.md says what the body of each holds."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What all of them share: immutable, made by keyword."""


MALFORMED = (msgspec.DecodeError, UnicodeDecodeError)
"""What msgspec raises for bytes that are no such message: text that is not UTF-8 is reported by Python."""


T = TypeVar("T")

_known: set[Any] = set()
_first_use = threading.Lock()


def _know(kind: Any) -> None:
    """msgspec looks at a type when it is first decoded to. While one thread does that, another one that
    decodes to the same type crashes the process (msgspec 0.22). So the first look is for one thread at a
    time, and everything that decodes to a type does it with the functions below."""
    if kind not in _known:
        with _first_use:
            msgspec.json.Decoder(kind)
            _known.add(kind)


@overload
def from_json(data: bytes | str | msgspec.Raw, kind: type[T]) -> T: ...
@overload
def from_json(data: bytes | str | msgspec.Raw, kind: Any) -> Any: ...
def from_json(data: bytes | str | msgspec.Raw, kind: Any) -> Any:
    """What a JSON text says, as a value of this type. Raises one of MALFORMED."""
    _know(kind)
    return msgspec.json.decode(data, type=kind)


def from_msgpack(data: bytes, kind: type[T]) -> T:
    """The same for msgpack."""
    _know(kind)
    return msgspec.msgpack.decode(data, type=kind)


def from_toml(data: bytes, kind: type[T]) -> T:
    """The same for TOML."""
    _know(kind)
    return msgspec.toml.decode(data, type=kind)


@overload
def from_plain(
    value: Any,
    kind: type[T],
    *,
    from_attributes: bool = False,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> T: ...
@overload
def from_plain(
    value: Any,
    kind: Any,
    *,
    from_attributes: bool = False,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> Any: ...
def from_plain(
    value: Any,
    kind: Any,
    *,
    from_attributes: bool = False,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> Any:
    """The same for dictionaries, lists and plain values. `from_attributes`: or objects with such
    attributes."""
    _know(kind)
    return msgspec.convert(value, kind, from_attributes=from_attributes, dec_hook=dec_hook)


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A decoder for values of one type."""
    _know(kind)
    return msgspec.json.Decoder(kind)


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
    open_files: int | None = None
    """How many files one process may have open."""
    disk_bytes: int | None = None
    """How much of the pool it may take between two restores."""
    confined: bool = True
    userns: bool | None = None
    """Whether it is in a user namespace: its root is a user without rights on the host. None: the daemon's
    default (of a session that exists: it is not)."""
    build: bool = False
    """Whether it builds a base: its points are what `base import` has done of a Dockerfile."""
    spares: int | None = None
    """How many of its points have a spare (a copy restored ahead of time); None: the daemon's default."""
    user: str | None = None
    """Who runs its shell and its programs: a name or a number, and after a colon a group; None: root."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """Variables that its shells and programs start with."""
    cwd: str | None = None
    """The folder that its shells and programs start in; None: the home of their user."""


TerminalLength = Annotated[int, msgspec.Meta(ge=1, le=1000)]


Pid = Annotated[int, msgspec.Meta(ge=1, le=2**22)]
SignalNumber = Annotated[int, msgspec.Meta(ge=1, le=64)]


class Size(Record, frozen=True):
    """A terminal's size."""

    rows: TerminalLength = 24
    columns: TerminalLength = 80


Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Forward(Record, frozen=True):
    """A port of this machine that leads into a session. It follows the session through restores."""

    port: Port
    """In the session."""
    address: str
    """Of this machine: where a client connects."""
    local_port: Port
    problem: str = ""
    """Why it does not work now, if so."""

    @property
    def endpoint(self) -> str:
        """Where a client connects: `127.0.0.1:9000`, `[::1]:9000`."""
        return (
            f"[{self.address}]:{self.local_port}"
            if ":" in self.address
            else f"{self.address}:{self.local_port}"
        )


class Session(Record, frozen=True):
    """A named live environment: a box, a shell in a terminal, a history."""

    id: str
    name: str
    state: State
    created_at: str
    options: BoxOptions
    head: str | None = None
    """The checkpoint it stands on: the last one taken, or the one it was restored to or forked from."""
    head_label: str | None = None
    """What people call that: `c5`, or `SESSION:c5` where it is a point of another session."""
    forked_from: str | None = None
    pid: int | None = None
    """Its keeper, as the host sees it."""
    foreground: str | None = None
    """The command that occupies its shell now, if any."""
    auto: bool = False
    """Whether a point is taken after each command that changed something."""
    approvals: tuple[Approval, ...] = ()
    """Commands of it that wait for approval, oldest first."""
    forwards: tuple[Forward, ...] = ()
    """Ports of this machine that lead into it."""
    memory_limit_bytes: int | None = None
    """What its box may use, in whatever way that was set; None: no limit, or it does not run."""
    pids_limit: int | None = None
    """How many processes and threads its box may have."""
    open_files_limit: int | None = None
    """How many files a process of it may have open."""
    disk_limit_bytes: int | None = None
    """How much of the pool its box may take; None: no limit, or it does not run."""


VerdictState = Literal["running", "passed", "failed", "timeout", "unclear", "error"]
"""`timeout`: it took too long. `unclear`: it ended with 125, by which it says that it cannot tell. `error`:
it could not be tried."""


class Verdict(Record, frozen=True):
    """What came of a command that was run in a throwaway fork of exactly this checkpoint."""

    id: int
    command: str
    state: VerdictState
    at: str
    exit_code: int | None = None
    duration_ms: float | None = None
    output: str = ""
    """The end of what it printed, redacted."""


class Note(Record, frozen=True):
    """Words added to a checkpoint later."""

    at: str
    text: str


class Platform(Record, frozen=True):
    """What saved the processes of a point. Images are made for it, and usually, but not always, restored by
    another one."""

    architecture: str
    kernel: str
    criu: str


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
    """The one that decides: the last failure, else the last pass, else the last attempt. `show` has all."""
    verdicts: tuple[Verdict, ...] = ()
    """For each command that was tried there the last time that it passed or failed; oldest first."""
    summary: str | None = None
    """The card's one line; None until the card is computed."""
    position: int | None = None
    """The event of the trajectory at which it stands: its own, and all that led to it."""
    agent_state_kind: Literal["json", "bytes"] | None = None
    """What the agent left with it, if anything."""
    agent_version: str | None = None
    """The version of the agent's code that left it."""
    durable: bool = False
    """Whether its data and its row are on the disk: a power cut does not take it."""
    restorable: Restorable = "unproven"
    """Whether its processes have been brought back once: by a spare, a restore, a fork or a proof."""
    restore_error: str | None = None
    """Why it could not be restored, when `restorable` is "failed"."""
    digested: bool = False
    """Whether digests of its images and files were made, with which they can be compared. That happens in the
    background, moments after the point."""
    damage: str | None = None
    """What of it is not what was written, once a comparison has shown that. It is not restored."""
    platform: Platform | None = None
    """What it was taken with; None for points of older versions."""
    pending: bool = False
    """Whether it is still being saved: its processes stand still in their box, and its files are there."""
    problem: str | None = None
    """Why it could not be saved, while it is pending. Its processes go on standing still: `undo` lets them
    run again."""


class Event(Record, frozen=True):
    """One thing that happened in a session. Never changed, and each knows the one before it."""

    id: int
    session: str
    """The one it happened in: a fork's trajectory begins with events of another."""
    parent: int | None
    at: str
    kind: EventKind
    actor: Actor
    body: dict[str, Any]
    blob: str | None = None
    """The hash of what was too large for the body."""


TaskState = Literal["pending", "in_progress", "completed", "failed", "skipped"]


class Task(Record, frozen=True):
    """One thing to be done. Part of every checkpoint: a restore takes progress back with the machine."""

    id: str
    """`2`, or `2.1` for the first below it. Never used twice."""
    title: str
    state: TaskState = "pending"
    note: str = ""
    """What came of it, or why it was not done."""
    checkpoint: str | None = None
    """The point that is the evidence."""
    started_at: str | None = None
    ended_at: str | None = None

    @property
    def parent(self) -> str | None:
        """The task it is a part of."""
        return self.id.rpartition(".")[0] or None

    @property
    def open(self) -> bool:
        """Whether something is still to be done about it."""
        return self.state in ("pending", "in_progress")


class TaskChange(Record, frozen=True):
    """A task that stands otherwise at one point than at another; None: it is not there."""

    id: str
    title: str
    before: TaskState | None
    after: TaskState | None


class Resumption(Record, frozen=True):
    """What an agent needs to go on with a session."""

    session: Session
    task: Task | None
    """The first that is not done: one that was begun before any that was not."""
    tasks: tuple[Task, ...]
    checkpoint: Checkpoint | None
    """The point it stands on."""
    text: str
    """All of it in words, for a prompt."""
    restored: bool = False
    """Whether it did not run and was brought back from its last point."""
    left_behind: tuple[Event, ...] = ()
    """What had happened after that point, and is no longer so."""
    since: tuple[Event, ...] = ()
    """What has happened since that point, at most the last 500 events."""
    effects: tuple[str, ...] = ()
    """What has been done outside, which no restore takes back."""


EffectClass = Literal["read-only", "reversible", "external-reversible", "unknown", "irreversible"]
"""From the most harmless to the worst: only looks; a restore undoes it; happened outside and can be made
good; cannot be looked into; happened outside for good."""
Decision = Literal["allow", "record", "ask", "deny"]
EffectSource = Literal["rule", "typed", "claimed", "observed"]
"""How it is known: a rule matched the command before it ran, or after it was typed; a user or an agent says
so; Waypoint saw it."""
EffectState = Literal["running", "done", "failed", "interrupted"]
ApprovalState = Literal["waiting", "approved", "denied", "expired", "gone"]
"""`gone`: the client that waited, or the state of the session that it waited in, is gone."""
ApprovalMode = Literal["wait", "deny"]
"""What happens to a command that needs approval: it waits for it, or it is refused at once."""


class Effect(Record, frozen=True):
    """Something that was done outside. No restore takes it back."""

    id: int
    session: str
    at: str
    command: str
    """Redacted; of a claim, its words."""
    class_: EffectClass = msgspec.field(name="class")
    source: EffectSource
    state: EffectState = "done"
    event: int | None = None
    """Where it stands in the trajectory; None while it is under way."""
    rule: str = ""
    target: str = ""
    key: str = ""
    """What makes it the same effect when it is done again."""
    reversible: bool = False
    compensate: str = ""
    """How to make it good."""
    exit_code: int | None = None
    actor: Actor = "person"
    approval: str | None = None
    details: dict[str, Any] = msgspec.field(default_factory=dict)


OUTSIDE: tuple[EffectClass, ...] = ("external-reversible", "irreversible")
"""The classes of commands that act outside the session."""


class Judged(Record, frozen=True):
    """What a policy says about one command of a line."""

    command: str
    class_: EffectClass = msgspec.field(name="class")
    decision: Decision = "allow"
    rule: str = ""
    place: str = ""
    """Where it runs, when not in the session."""
    target: str = ""
    key: str = ""
    compensate: str = ""
    why: str = ""


class Judgement(Record, frozen=True):
    """What a policy says about a line: the worst of its parts."""

    class_: EffectClass = msgspec.field(name="class")
    decision: Decision
    parts: tuple[Judged, ...] = ()
    unseen: tuple[str, ...] = ()
    """What of it could not be looked into."""

    @property
    def outside(self) -> tuple[Judged, ...]:
        """The parts that act on the outside."""
        return tuple(part for part in self.parts if part.class_ in OUTSIDE)

    @property
    def why(self) -> str:
        """Why approval is needed, or why the command is denied: a sentence."""
        for part in self.parts:
            if part.decision == self.decision and part.why:
                return f"{part.rule or part.command}: {part.why}"
        for part in self.parts:
            if part.decision == self.decision and part.class_ != "unknown":
                return f"{part.rule or part.command} is {part.class_}"
        return f"cannot be looked into: {self.unseen[0]}" if self.unseen else ""


class Approval(Record, frozen=True):
    """A command that waits for approval. It holds for exactly this command in this session, once."""

    id: str
    session: str
    command: str
    """Redacted; `digest` is of what would really run: the line and, behind a NUL, its standard input."""
    digest: str
    class_: EffectClass = msgspec.field(name="class")
    why: str
    actor: Actor
    created_at: str
    expires_at: str
    state: ApprovalState = "waiting"
    decided_at: str | None = None
    note: str = ""
    review: tuple[str, ...] = ()
    """While it waits: what the person who decides has to read, line by line, with all that would run."""


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
    warnings: tuple[str, ...] = ()
    """What a policy has to say: an effect of it had happened before."""


class Restored(Record, frozen=True):
    """A session that stands at another point now."""

    session: Session
    checkpoint: Checkpoint
    ready_ms: float
    safety: Checkpoint | None = None
    spare: bool = False
    """Whether a spare was used: a copy that had been restored ahead of time."""
    base_changes: tuple[str, ...] = ()
    """What its base has changed since the point was taken, where its processes notice. They go on with what
    they had."""


class ForkHook(Record, frozen=True):
    """A program of `/etc/waypoint/on-fork.d` that was run in a new fork. `problem`: what went wrong with it,
    empty if it ended with 0."""

    name: str
    exit_code: int | None = None
    duration_ms: float = 0.0
    output: str = ""
    """The end of what it printed."""
    problem: str = ""


class Forked(Record, frozen=True):
    """One new session grown from a checkpoint. `id` is also what programs in it can read as their fork id."""

    id: str
    name: str
    ready_ms: float
    spare: bool = False
    base_changes: tuple[str, ...] = ()
    """As of `Restored`."""
    hooks: tuple[ForkHook, ...] = ()
    """What was run in it before it was handed out."""


class HandedOver(Record, frozen=True):
    """A point of a session that is removed, which another session needs and gets."""

    was: str
    """What it was called: `f-1:c2`."""
    checkpoint: Checkpoint
    """With the session that it goes to, and what it is called there."""
    why: str


class Removal(Record, frozen=True):
    """What goes with sessions that are removed, and what stays."""

    removed: tuple[str, ...]
    """The names of the sessions."""
    handed_over: tuple[HandedOver, ...] = ()
    """The points that other sessions need, oldest first."""
    forgotten: int = 0
    """How many points go."""


class Cost(Record, frozen=True):
    """What a point alone costs: what would come back if it, and nothing else, were forgotten."""

    id: str
    session: str
    label: str
    name: str | None
    kind: Kind
    created_at: str
    pinned: bool
    unique_bytes: int
    files_bytes: int
    """Of these: what nothing else has of its files."""
    processes_bytes: int
    """And of its processes' memory."""
    exact: bool = True
    """False when there was no time to ask about everything, and the rest was estimated."""


class VolumeUse(Record, frozen=True):
    """What a session has written since the point it stands on."""

    session: str
    unique_bytes: int
    exact: bool = True


Builder = Literal["auto", "buildah", "podman", "waypoint"]
"""What carries a Dockerfile out."""


class ImageConfig(Record, frozen=True):
    """What an image says about programs that start in it."""

    env: dict[str, str] = msgspec.field(default_factory=dict)
    user: str = ""
    """`USER` or `USER:GROUP`, names or numbers; empty: root."""
    workdir: str = ""
    """The folder they start in; empty: none is given."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    """`8080/tcp`: ports on which its programs are said to listen."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class Base(Record, frozen=True):
    """A root file system in the pool."""

    name: str
    format: str
    """What it was imported from: "tar", "oci", "docker-save" or "folder"."""
    source: str
    """The name of that file or folder."""
    digest: str
    """Of the file as it was given; of a folder's names, modes, owners and contents."""
    size_bytes: int
    file_count: int
    created_at: str
    skipped_devices: int = 0
    warnings: tuple[str, ...] = ()
    image: ImageConfig = ImageConfig()
    """What the image said that it was imported from. Sessions over it start with its user, variables and
    folder."""


class BaseUse(Record, frozen=True):
    """What an imported root file system takes."""

    name: str
    size_bytes: int


class PoolUse(Record, frozen=True):
    """How full the pool is. `free_bytes` is what can really be written, the disk below included."""

    kind: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    percent: float


class DiskUse(Record, frozen=True):
    """What takes how much. All that is listed and `other_bytes` together are what the pool has in use."""

    checkpoints: tuple[Cost, ...]
    sessions: tuple[VolumeUse, ...]
    bases: tuple[BaseUse, ...]
    other_bytes: int
    """What several have in common, what is not listed, and what the pool needs to keep order."""
    pool: PoolUse


class KeptPoint(Record, frozen=True):
    """A point that was not forgotten, and why."""

    id: str
    session: str
    label: str
    reasons: tuple[str, ...]


class Forgotten(Record, frozen=True):
    """What was forgotten, or would be."""

    forgotten: tuple[Checkpoint, ...]
    kept: tuple[KeptPoint, ...]
    frees_bytes: int
    """What comes back with all of them gone. A dry run measures it. When they are forgotten, it is the sum of
    what each alone cost when it was measured last: 0 for one that never was. The space itself comes back
    after the answer."""
    exact: bool = True
    dry_run: bool = False


class Pruned(Record, frozen=True):
    """What was cleaned up, or would be."""

    removed: tuple[str, ...]
    """Remains in the pool that belonged to nothing."""
    forgotten: tuple[Checkpoint, ...]
    freed_bytes: int
    """Measured; of a dry run, what is expected of the points."""
    pool: PoolUse
    dry_run: bool = False


Remedy = Literal["recover", "foreign", "forget", "by-hand", "none"]
"""What to do about a broken rule: `recover` repairs it, or only when it is told to use what is foreign; the
point can only be forgotten; what is there has to be moved away by hand; nothing can be done, and nothing else
is affected."""


class Violation(Record, frozen=True):
    """A rule of docs/storage.md that is broken."""

    rule: int
    what: str
    where: str
    """A path in the home, or a table of the database."""
    remedy: Remedy
    point: str | None = None
    """The id of the point that is concerned."""


class Repair(Record, frozen=True):
    """Something that was put in order."""

    what: str
    where: str


class Checked(Record, frozen=True):
    """What a check has found. `undigested`: points of which no digests were made yet, so that only the sizes
    of their images could be compared. `repaired`: what the daemon put in order when it started."""

    deep: bool
    points: int
    undigested: int
    violations: tuple[Violation, ...] = ()
    repaired: tuple[Repair, ...] = ()


class Recovered(Record, frozen=True):
    """What was put in order, and what is left. `kept`: the folder with the database as it was before it was
    rebuilt."""

    repaired: tuple[Repair, ...] = ()
    left: tuple[Violation, ...] = ()
    kept: str | None = None


LandedAction = Literal["create", "update", "mode", "delete"]


class Landed(Record, frozen=True):
    """One thing that is brought out of a session, or back into it."""

    path: str
    """Where it lands."""
    source: str
    """Its path in the box."""
    action: LandedAction
    """`mode`: owner, mode or attributes alone."""
    entry: str
    """`file`, `folder` or `link`."""
    size_bytes: int = 0
    """What is written."""
    what: tuple[str, ...] = ()
    """What about it is brought, when something is there already: content, mode, owner, xattr, type."""


class Conflict(Record, frozen=True):
    """A place where landing would destroy what the session has never seen, or cannot be."""

    path: str
    source: str
    why: str
    forcible: bool
    """Whether `force` lands it all the same."""
    executed: bool = False
    """Whether the host would run it by itself, or take commands from it; `allow_executed` lands it."""


class LeftOut(Record, frozen=True):
    """Something of the box that does not land."""

    path: str
    why: str


class Landing(Record, frozen=True):
    """What landing does, or did."""

    source: str
    """The folder of the box that stands for the target."""
    target: str
    items: tuple[Landed, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    unchanged: int = 0
    """What is there already."""
    done: bool = False
    """Whether it was done; else this is what it would do."""


class Copied(Record, frozen=True):
    """What was copied into a session or out of it."""

    files: int = 0
    folders: int = 0
    links: int = 0
    bytes: int = 0
    left_out: tuple[LeftOut, ...] = ()


class FileWritten(Record, frozen=True):
    """A file of a session that was written."""

    path: str
    bytes: int
    created: bool
    """Whether there was none before."""


class Exported(Record, frozen=True):
    """What a tar or a patch holds."""

    files: int = 0
    deleted: int = 0
    bytes: int = 0
    """The size of the tar or the patch."""
    left_out: tuple[LeftOut, ...] = ()


class FilesRestored(Record, frozen=True):
    """Files of a session that are again as they were at a point."""

    checkpoint: Checkpoint
    landing: Landing
    safety: Checkpoint | None = None
