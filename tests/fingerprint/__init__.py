"""A fingerprint of a box: everything the kernel tells, from outside, about the processes of a session.

    before = take(keeper_of(home, session))
    ...                                     # a checkpoint, a restore
    differences = difference(before, take(keeper_of(home, session)))

What is not equal after a restore is a defect, or it is declared (declared.py), with the reason and the place
where a user is told so. A fingerprint changes nothing in the tree: descriptors are duplicated into the test's
process and looked at there, memory is read, messages are peeked at.
"""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fingerprint.declared import reason
from tests.fingerprint.descriptors import record_descriptors
from tests.fingerprint.facts import Fact, Recorder
from tests.fingerprint.kernel import record_box
from tests.fingerprint.memory import record_memory
from tests.fingerprint.processes import record_processes
from tests.fingerprint.rest import settle, tasks
from tests.fingerprint.sockets import Connections, record_names
from tests.waiting import until

from waypoint.box.box import keepers
from waypoint.home import Home
from waypoint.kernel import processes

__all__ = ["Difference", "Fact", "Fingerprint", "difference", "keeper_of", "take"]

_NUMBER_BYTES = 32
"""Of the kernel's record of the processor a thread runs on (rseq), which lies in its memory."""
_PROCESSORS = 1 << 10
_ERROR_NUMBERS = 134


@dataclass(frozen=True)
class Fingerprint:
    facts: dict[Fact, str]
    pages: dict[str, dict[int, bytes]]


@dataclass(frozen=True)
class Difference:
    kind: str
    place: str
    before: str | None
    after: str | None
    declared: str | None
    """Why it is no defect; None where it is one."""

    def __str__(self) -> str:
        return f"{self.kind} of {self.place}: {self.before!r} became {self.after!r}"


def keeper_of(home: Home, session: str) -> int:
    """The host's number of the keeper of a session's box."""
    with closing(sqlite3.connect(f"file:{home.database}?mode=ro", uri=True)) as database:
        ((box,),) = database.execute("SELECT box FROM sessions WHERE name = ?", (session,)).fetchall()
    return keepers(home)[box]


def take(keeper: int) -> Fingerprint:
    """The fingerprint of the box of a keeper, once its processes have come to rest."""
    _complete_memory(keeper)
    settle(keeper)
    members = sorted(processes.below(keeper), key=lambda process: process.pid)
    recorder = Recorder(keeper, members)
    recorder.pids[keeper] = "1"
    for process in members:
        recorder.pids[process.host_pid] = str(process.pid)
    for process in members:
        for task in tasks(process.host_pid):
            if task not in recorder.pids:
                recorder.pids[task] = processes.read_status(task)["NSpid"].split()[-1]
    record_processes(recorder)
    netns = os.open(f"/proc/{keeper}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        connections = Connections.of(netns)
        record_descriptors(recorder, connections)
        record_names(recorder, connections, netns)
    finally:
        os.close(netns)
    record_memory(recorder)
    record_box(recorder)
    return Fingerprint(recorder.facts, recorder.pages)


def _complete_memory(keeper: int) -> None:
    """Pages that come later (native/pages.c) are not there when they are looked at from outside. A process
    that waits for one seems to be at rest. When all are there, tracking moves to the daemon."""
    with open(f"/proc/{keeper}/cmdline", "rb") as file:
        tag, box_id = file.read().split(b"\0")[0].decode().split()[1:]
    path = Path(f"/run/waypoint/{tag}/{box_id}.pages")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(60)
        with suppress(FileNotFoundError, ConnectionRefusedError):  # all of it is there
            connection.connect(str(path))
            connection.send(b"fill")
            assert connection.recv(100) in (b"ok", b"")  # the latter: it had ended just before
    until(lambda: not path.exists())


def difference(before: Fingerprint, after: Fingerprint) -> list[Difference]:
    """What is not equal, and what of it is declared."""
    result = []
    for fact in sorted(before.facts.keys() | after.facts.keys()):
        one, other = before.facts.get(fact), after.facts.get(fact)
        if one != other:
            result.append(
                Difference(fact.kind, fact.place, one, other, reason(fact, one, other, before.facts))
            )
    for place in sorted(before.pages.keys() | after.pages.keys()):
        old, new = before.pages.get(place, {}), after.pages.get(place, {})
        if changed := _changed_pages(old, new):
            fact = Fact("private memory", place)
            words = f"{len(changed)} pages, {_first_change(changed[0], old, new)}"
            result.append(Difference(*fact, "", words, reason(fact, "", words, before.facts)))
    return result


def _first_change(number: int, before: dict[int, bytes], after: dict[int, bytes]) -> str:
    """Where a page differs first, and what was there."""
    old, new = before.get(number, bytes(4096)), after.get(number, bytes(4096))
    at = next(i for i in range(0, 4096, 16) if old[i : i + 16] != new[i : i + 16])
    return f"{(number << 12) + at:x}: {old[at : at + 32].hex(' ', 4)} -> {new[at : at + 32].hex(' ', 4)}"


def _changed_pages(before: dict[int, bytes], after: dict[int, bytes]) -> Sequence[int]:
    empty = bytes(4096)
    return [
        number
        for number in sorted(before.keys() | after.keys())
        if before.get(number) != after.get(number)
        and not _is_same_but_for_kernel(before.get(number, empty), after.get(number, empty))
    ]


def _is_same_but_for_kernel(before: bytes, after: bytes) -> bool:
    """Whether only what the kernel itself writes differs: the record of the processor, small numbers in one
    aligned block; or errno, because a call was interrupted and made again (docs/limits.md)."""
    blocks = range(0, len(before), _NUMBER_BYTES)
    at = [i for i in blocks if before[i : i + _NUMBER_BYTES] != after[i : i + _NUMBER_BYTES]]
    if len(at) != 1:
        return False
    old, new = (struct.unpack_from("8I", page, at[0]) for page in (before, after))
    changed = [i for i in range(8) if old[i] != new[i]]
    if len(changed) == 1 and old[changed[0]] < _ERROR_NUMBERS and new[changed[0]] == errno.EINTR:
        return True
    return all(
        words[0] == words[1] and all(words[i] < _PROCESSORS for i in (0, 1, 5, 6)) for words in (old, new)
    )
