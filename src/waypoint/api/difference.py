"""What changed from one point to another, as it travels: into cards, plans and every face.

History computes it (history/changes.py, history/facts.py, history/cards.py); the types are here because a
client knows them without knowing how they are computed.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from typing import Literal

from waypoint.api.findings import Analysis
from waypoint.model import Checkpoint, IntentFrom, Record, State, TaskChange

ChangeKind = Literal["created", "modified", "deleted", "renamed"]
Facet = Literal["type", "content", "mode", "owner", "xattr"]
EntryKind = Literal["file", "folder", "link", "fifo", "socket", "device"]
Sign = Literal["+", "~", "-", "→"]
Way = Literal["back", "on", "across"]
Source = Literal["derived", "observed", "judged", "claimed"]
"""How it is known: derived from the snapshots, observed by Waypoint, judged from the words of a command
(whether it acted outside was not seen), claimed by a user or an agent."""


class Change(Record, frozen=True):
    """One thing that happened to the tree."""

    path: str
    kind: ChangeKind
    entry: EntryKind
    """What it is; what it was, when it is gone."""
    old_path: str | None = None
    """Where it was, when that is not `path`."""
    what: tuple[Facet, ...] = ()
    """In which ways it is no longer what it was, apart from its name."""
    entry_before: EntryKind | None = None
    size_before: int | None = None
    size_after: int | None = None
    mode_before: int | None = None
    mode_after: int | None = None
    owner_before: str | None = None
    """`uid:gid`; only when it changed."""
    owner_after: str | None = None
    files: int = 0
    """For a folder: the files below it that went the same way and are not listed on their own."""
    files_bytes: int = 0
    at_least: bool = False
    """There are more of them than were counted."""
    links_to: str | None = None
    """Of a name that was created or deleted: another name of the same file in the new tree (a hard link). The
    content did not come or go with this name."""
    path_base64: str | None = None
    """The path as it is, when it is no valid UTF-8 (`path` then has its odd bytes as \\\\xNN)."""
    old_path_base64: str | None = None

    @property
    def real_path(self) -> str:
        """The path for the file system."""
        return _real(self.path, self.path_base64)

    @property
    def real_old_path(self) -> str:
        """Where it was, for the file system."""
        return self.real_path if self.old_path is None else _real(self.old_path, self.old_path_base64)


def _real(path: str, path_base64: str | None) -> str:
    return path if path_base64 is None else os.fsdecode(base64.b64decode(path_base64))


class Changes(Record, frozen=True):
    """Everything that happened between two points, ordered by path."""

    changes: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)


class ProcessFact(Record, frozen=True):
    """One process of the tree."""

    pid: int
    parent: int
    command: str
    uid: int
    rss_bytes: int
    stopped: bool = False


class PortFact(Record, frozen=True):
    """A port that a process listens on."""

    protocol: str
    address: str
    port: int
    pid: int | None = None
    command: str | None = None


class PortMove(Record, frozen=True):
    """A port on which another process listens now."""

    before: PortFact
    after: PortFact


class Restart(Record, frozen=True):
    """A program that ended and was started again with the same command."""

    before: ProcessFact
    after: ProcessFact
    ports: tuple[int, ...] = ()
    """On which it listens now."""


class VariableChange(Record, frozen=True):
    """A variable of the shell that came (`before` is None), went (`after` is None) or changed."""

    name: str
    before: str | None
    after: str | None
    exported: bool = True
    became: tuple[str, ...] = ()
    """`exported`, `read-only`, …: attributes that it has now and had not before."""
    no_longer: tuple[str, ...] = ()


SettingKind = Literal["function", "alias", "option", "umask", "trap"]


class SettingChange(Record, frozen=True):
    """A setting of the shell that came (`before` is None), went (`after` is None) or changed. Of a function
    only that its body is another one."""

    kind: SettingKind
    name: str
    before: str | None = None
    after: str | None = None


class LiveDifference(Record, frozen=True):
    """What happened on the live side between two points."""

    started: tuple[ProcessFact, ...] = ()
    ended: tuple[ProcessFact, ...] = ()
    restarted: tuple[Restart, ...] = ()
    """Each is one thing: neither among the started nor among the ended."""
    stopped: tuple[ProcessFact, ...] = ()
    """Suspended since then (Ctrl-Z, SIGSTOP)."""
    continued: tuple[ProcessFact, ...] = ()
    kept: int = 0
    opened: tuple[PortFact, ...] = ()
    closed: tuple[PortFact, ...] = ()
    moved: tuple[PortMove, ...] = ()
    cwd: tuple[str, str] | None = None
    variables: tuple[VariableChange, ...] = ()
    functions_added: tuple[str, ...] = ()
    functions_removed: tuple[str, ...] = ()
    settings: tuple[SettingChange, ...] = ()
    memory_bytes: tuple[int, int] = (0, 0)

    @property
    def empty(self) -> bool:
        """Whether nothing happened. (Memory alone is no event: it breathes.)"""
        processes = (self.started, self.ended, self.restarted, self.stopped, self.continued)
        ports = (self.opened, self.closed, self.moved)
        functions = (self.functions_added, self.functions_removed)
        return not any((*processes, *ports, self.cwd, self.variables, *functions, self.settings))


class Contact(Record, frozen=True):
    """One place, and how much went there and came back: whole packets, with their headers."""

    address: str
    protocol: str
    port: int
    """0 for a protocol that has none."""
    first_at: str
    last_at: str
    bytes_out: int = 0
    bytes_in: int = 0
    names: tuple[str, ...] = ()
    """What the address was called, the last name first."""

    @property
    def where(self) -> str:
        """`api.stripe.com:443`."""
        host = self.names[0] if self.names else self.address
        place = f"{host}:{self.port}" if self.port else host
        return place if self.protocol == "tcp" else f"{place}/{self.protocol}"


class CommandOutcome(Record, frozen=True):
    """How a command line ended between two points. `failed`: how many of its runs did not end with 0."""

    command: str
    exit_code: int
    """Of the last run."""
    runs: int = 1
    failed: int = 0


class CardLine(Record, frozen=True):
    """One thing a card says, and how it knows."""

    topic: str
    text: str
    source: Source


class Difference(Record, frozen=True):
    """What changed from one point to another: files, what they mean, and the live side."""

    files: Changes
    analysis: Analysis
    live: LiveDifference
    gaps: tuple[str, ...] = ()
    redacted: int = 0
    contacts: tuple[Contact, ...] = ()
    """What has left the session on the way from the one to the other."""
    not_compared: tuple[str, ...] = ()
    """What may have changed without a sign of it, one phrase each: the memory of programs that went on."""

    @property
    def empty(self) -> bool:
        return not self.files.changes and self.live.empty


class Card(Record, frozen=True):
    """The story of one checkpoint."""

    intent: str
    intent_from: IntentFrom
    summary: str
    lines: tuple[CardLine, ...]
    difference: Difference
    coverage: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    redacted: int = 0
    commands: tuple[CommandOutcome, ...] = ()
    """What ran in the session since the point before."""


class SectionLine(Record, frozen=True):
    """One thing that changed."""

    sign: Sign
    text: str
    detail: str = ""


class Section(Record, frozen=True):
    """What changed in one respect, how that is known, and the same in a few words."""

    name: str
    source: Source
    summary: str
    lines: tuple[SectionLine, ...]


class RestorePlan(Record, frozen=True):
    """What going from now to `target` means."""

    id: str
    session: str
    target: Checkpoint
    head: Checkpoint | None
    lost: Difference
    """From the target to now: what was created or changed will be gone, what was deleted comes back."""
    uncheckpointed: Difference
    """From the last checkpoint to now: what only the safety checkpoint will hold."""
    tasks: tuple[TaskChange, ...] = ()
    """Tasks that stand otherwise at the target: `before` is now."""
    not_undone: tuple[str, ...] = ()
    """What was done outside since the target."""
    unseen: tuple[str, ...] = ()
    """Commands since then that could not be looked into: they may have acted outside."""
    not_covered: tuple[str, ...] = ()
    base_changes: tuple[str, ...] = ()
    """What its base has changed since the point was taken, where its processes notice."""
    contacts: tuple[Contact, ...] = ()
    """What the session has talked to since the target was taken; in `not_undone`, too, in words."""


class PlanWords(Record, frozen=True):
    """A plan as it is read out. Times are the reader's to word."""

    here: str
    """`c5 + 3 files`."""
    state: State
    way: Way = "back"
    """How the point lies to the one the session stands on: on the way there, after it, or on another line."""
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """`pip flask 3.0 and 7 more will be lost`."""
    git: tuple[str, ...] = ()
    """`2 commits of app will be lost: "fix it", "try it"`."""
    databases: tuple[str, ...] = ()
    """`app.db: 12 rows of orders will be lost`."""
    system: tuple[str, ...] = ()
    """`user ann will be lost`, `password of root will be as it was then`."""
    ends: tuple[str, ...] = ()
    """Programs that run now and not then."""
    resumes: tuple[str, ...] = ()
    """Programs that ran then, and go on from there with the memory they had."""
    shell: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    """`2 completed → pending: "add payments", "wire webhook"`."""
    safety: str | None = None
    """What the checkpoint that is taken first will be called; None when none can be."""
