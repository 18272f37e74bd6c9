"""Traces: what was done from a starting point on, and what came of it, as one file that others can check.

A trace is a tar that `tar` and `sha256sum -c` can read:

    trace.json     what it is: the base, where it starts, how many steps, by which version it was written
    steps.jsonl    one step a line, in order: a command with its end and output, or a point with its files
    start.tar      what the starting point has changed in the base, as `export` writes it; may be missing
    SHA256SUMS     digests of the others

A trace comes from another person: what it holds is text to compare with, and commands that a policy judges.
The id of a trace is the digest of SHA256SUMS. Two persons with the same id have the same trace.

Two runs of the same commands print different times and process ids. `neutral` replaces these before outputs
are compared, and `is_compared` names the files that hold little else.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, BinaryIO, Literal

import msgspec

from waypoint.api.hints import Do, Hint
from waypoint.errors import BadTrace, UsageError
from waypoint.model import MALFORMED, BoxOptions, Record, VerdictState, from_json

FORMAT, VERSION = "waypoint-trace", 1
_HEAD, _STEPS, _START, _SUMS = "trace.json", "steps.jsonl", "start.tar", "SHA256SUMS"
_MEMBERS = (_HEAD, _STEPS, _START, _SUMS)
MOST_STEPS_BYTES = 256 << 20
MOST_START_BYTES = 512 << 20
"""A starting point that changed more than that in its base is not written into a trace."""


class TraceBase(Record, frozen=True):
    """The root file system that a trace was made over."""

    name: str
    """Of an imported base, or the folder."""
    digest: str
    """Of an imported base: of what it was imported from. Of a folder: of its list of packages."""
    system: str = ""
    """What /etc/os-release calls it."""
    architecture: str = ""


class TraceStart(Record, frozen=True):
    """Where a trace starts."""

    point: str | None = None
    """The id of the point; None: the beginning of the session."""
    label: str = ""
    cwd: str | None = None
    variables: dict[str, str] = msgspec.field(default_factory=dict)
    """What the shell exported there, without what looked like a secret."""
    processes: int = 0
    """How many processes ran there beside the shell: they are in no trace."""


class TraceHead(Record, frozen=True):
    """What a trace is."""

    format: str
    version: int
    written_by: str
    session: str
    base: TraceBase
    options: BoxOptions
    """What of the box matters: network, user, variables, folder."""
    start: TraceStart
    steps: int


class TraceVerdict(Record, frozen=True):
    """What came of a command that was tried at a point."""

    command: str
    state: VerdictState
    exit_code: int | None = None
    duration_ms: float | None = None


class TraceState(Record, frozen=True):
    """What had changed since the start."""

    files: dict[str, str]
    """What is at each path that had changed, in words that can be compared (`describe_file`)."""
    packages: tuple[str, ...] = ()


class TraceStep(Record, frozen=True):
    """One thing that was done: a command was run, or a point taken."""

    kind: Literal["command", "point"]
    text: str
    """The command, or the name or label of the point."""
    exit_code: int | None = None
    output: str = ""
    duration_ms: float | None = None
    timed_out: bool = False
    not_compared: str = ""
    """Why its output is not compared, if so."""
    not_run: str = ""
    """Why it cannot be run again, if so."""
    program: bool = False
    """It is the words of a program that ran beside the shell; else a line for bash."""
    cwd: str | None = None
    """A folder of its own; of a program beside the shell the one it ran in."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    user: str | None = None
    shell_env: bool = False
    """Of a program beside the shell: with the shell's variables."""
    state: TraceState | None = None
    verdicts: tuple[TraceVerdict, ...] = ()


class Trace(Record, frozen=True):
    """A trace as it is in memory."""

    head: TraceHead
    steps: tuple[TraceStep, ...]
    id: str = ""


# ---- the file ------------------------------------------------------------------------------------


def write_trace(trace: Trace, start: BinaryIO | None, out: Any) -> str:
    """Writes the file. `start`: what the starting point has changed. The id of the trace."""
    steps = b"".join(msgspec.json.encode(step) + b"\n" for step in trace.steps)
    head = msgspec.json.format(msgspec.json.encode(trace.head), indent=2) + b"\n"
    members: list[tuple[str, Any]] = [(_HEAD, io.BytesIO(head)), (_STEPS, io.BytesIO(steps))]
    if start is not None:
        members.append((_START, start))
    sums = ""
    for name, file in members:
        file.seek(0)
        sums += f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n"
    members.append((_SUMS, io.BytesIO(sums.encode())))
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name, file in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = file.seek(0, io.SEEK_END), 0o644
            file.seek(0)
            tar.addfile(info, file)
    return hashlib.sha256(sums.encode()).hexdigest()


def read_trace(file: IO[bytes], name: str) -> tuple[Trace, bytes | None]:
    """The trace in a file, and what its starting point has changed. BadTrace when it cannot be used."""
    members = dict(_members_of(file, name))
    if _HEAD not in members:
        raise _none(f"{name} is no trace")
    head = _head_of(members[_HEAD], name)
    if _SUMS not in members or _STEPS not in members:
        raise _cut_off(name)
    for line in members[_SUMS].decode(errors="replace").splitlines():
        digest, _, member = line.partition("  ")
        if member not in members:
            raise _cut_off(name)
        if hashlib.sha256(members[member]).hexdigest() != digest:
            raise _altered(name, member)
    listed = {line.partition("  ")[2] for line in members[_SUMS].decode(errors="replace").splitlines()}
    if members.keys() - {_SUMS} != listed:
        raise _altered(name, _SUMS)
    try:
        steps = tuple(from_json(line, TraceStep) for line in members[_STEPS].splitlines())
    except MALFORMED as error:
        raise _altered(name, _STEPS) from error
    if len(steps) != head.steps:
        raise _altered(name, _STEPS)
    return Trace(head=head, steps=steps, id=hashlib.sha256(members[_SUMS]).hexdigest()), members.get(_START)


def _members_of(file: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    """What is in the tar. A tar that has been cut off is reported as that, not as no tar at all."""
    seen = False
    try:
        with tarfile.open(fileobj=file, mode="r|") as tar:
            for info in tar:
                seen = True
                if info.name not in _MEMBERS or not info.isreg():
                    raise _none(f"{name} is no trace: {info.name!r} is in none")
                if info.size > max(MOST_STEPS_BYTES, MOST_START_BYTES):
                    raise UsageError(f"{name} is too large: {info.name} has {info.size:,} bytes")
                content = tar.extractfile(info)
                assert content
                yield info.name, content.read()
    except tarfile.TarError as error:
        if seen:
            raise _cut_off(name) from error
        raise _none(f"{name} is no trace") from error


def _head_of(data: bytes, name: str) -> TraceHead:
    """The version first: a later one may have other fields."""
    try:
        plain = msgspec.json.decode(data)
        if plain["format"] == FORMAT and int(plain["version"]) > VERSION:
            raise BadTrace(
                f"{name} was written by a newer Waypoint ({plain.get('written_by')}, format"
                f" {plain['version']})",
                hint="update this Waypoint, or ask for a trace that this one can read",
                reason="newer",
            )
        head = from_json(data, TraceHead)
    except (*MALFORMED, KeyError, TypeError, ValueError) as error:
        raise _altered(name, _HEAD) from error
    if head.format != FORMAT:
        raise _altered(name, _HEAD)
    return head


def _none(why: str) -> BadTrace:
    return BadTrace(why, hint=Hint(Do("export_trace"), " writes one"), reason="no_trace")


def _cut_off(name: str) -> BadTrace:
    return BadTrace(
        f"{name} has been cut off: its end is missing", hint="copy it once more, all of it", reason="cut_off"
    )


def _altered(name: str, member: str) -> BadTrace:
    return BadTrace(
        f"{name} is not what was written: {member} has been altered",
        hint="ask for it once more, and compare its sha256sum with that of the sender",
        reason="altered",
    )


# ---- what is compared ----------------------------------------------------------------------------

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
_NEUTRAL: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.MULTILINE), neutral)
    for pattern, neutral in (
        (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?", "<time>"),
        (rf"\b{_DAY},? +(?:\d{{1,2}} +)?{_MONTH}(?: +\d{{1,2}})?(?:,? +\d{{4}}\b)?", "<date>"),
        (rf"\b{_MONTH} +\d{{1,2}} +(?:\d\d:\d\d(?::\d\d)?|\d{{4}})\b", "<time>"),
        (r"\b\d{4}-\d\d-\d\d\b", "<date>"),
        (r"\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?\b(?: ?[AP]M\b)?(?: UTC\b)?", "<time>"),
        (r"\b1[6-9]\d{8}(?:\.\d+)?\b", "<time>"),  # seconds since 1970, of these years
        (r"\b\d+m\d+[.,]\d+s\b", "<duration>"),
        (r"\b\d+(?:[.,]\d+)? ?(?:ns|[µu]s|ms|s|secs?|seconds?|minutes?|hours?)\b", "<duration>"),
        (r"\b\d+(?:[.,]\d+)? ?[kKMG]?i?B/s", "<rate>"),
        (r"(?i)\b((?:p|pp|t)id|process(?: id)?)([ =:#]+)\d+", r"\1\2<pid>"),
        (r"^(\[\d+\][+-]?) +\d+", r"\1 <pid>"),
        (r"/proc/\d+", "/proc/<pid>"),
        (r"\b0x[0-9a-f]{6,16}\b", "<address>"),
        (r"(?:/var)?/tmp/(?:tmp[\w.-]{4,}|[\w-]*\.[A-Za-z0-9]{6,12}\b|pip-[\w.-]+|pytest-of-[\w.-]+/pytest-\d+)",
         "<temporary>"),
        # The id of a commit depends on its time.
        (r"(\[[\w./-]+ (?:\(root-commit\) )?)[0-9a-f]{7,40}\]", r"\1<commit>]"),
        (r"\bcommit [0-9a-f]{40}\b", "commit <commit>"),
        (r"\b[0-9a-f]{7,40}\.\.\.?[0-9a-f]{7,40}\b", "<commit>..<commit>"),
    )
)  # fmt: skip
_NOT_COMPARED = re.compile(
    r"(?:^|/)(?:__pycache__|\.git|\.cache|\.pytest_cache|\.mypy_cache|\.npm)(?:/|$)"
    r"|\.pyc$|(?:^|/)\.(?:bash|python|node_repl|sqlite|less)_?hist(?:ory)?$|(?:^|/)\.lesshst$"
    r"|^/(?:tmp|var/tmp|var/log|var/cache|var/lib/apt|run|dev/shm)(?:/|$)|^/var/lib/dpkg/.*-old$"
)
"""Caches, logs, temporary files, and what git keeps for itself: two runs never write the same there."""
_MOST_COMPARED = 1 << 20


def neutral(text: str, names: Iterable[str] = ()) -> str:
    """A text without times, process ids and names of temporary files. `names`: of sessions."""
    text = text[:_MOST_COMPARED]
    for pattern, instead in _NEUTRAL:
        text = pattern.sub(instead, text)
    for name in sorted({*names} - {""}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", "<session>", text)
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))


def is_compared(path: str) -> bool:
    """Whether a file is compared at points."""
    return not _NOT_COMPARED.search(path)


def describe_file(mode: int, content: bytes, names: Iterable[str] = ()) -> str:
    """A regular file, in words that are equal where its mode and its content are: but for what `neutral`
    replaces, if it is a text."""
    if len(content) <= _MOST_COMPARED and b"\0" not in content:
        with contextlib.suppress(UnicodeDecodeError):
            content = neutral(content.decode(), names).encode()
    return f"file {mode:04o} {hashlib.sha256(content).hexdigest()}"


def first_difference(expected: str, actual: str, names: Sequence[str]) -> tuple[str, str] | None:
    """The first lines that differ, as they were printed; None when the texts are alike."""
    left, right = (neutral(text, names).split("\n") for text in (expected, actual))
    if left == right:
        return None
    was, now = (text.rstrip().split("\n") for text in (expected, actual))
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return was[number], now[number]
    shorter = min(len(left), len(right))
    return ("\n".join(was[shorter : shorter + 1]) or "(its end)"), (
        "\n".join(now[shorter : shorter + 1]) or "(its end)"
    )
