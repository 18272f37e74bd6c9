"""Why CRIU failed: its log and the state of the box, turned into an error that names the process.

CRIU stops at the first thing it cannot handle and logs it in its own terms. The causes that are known are
looked for in the processes themselves; otherwise the log's first error is what is reported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from waypoint.api.hints import Arg, Do, Hint
from waypoint.box.box import Box
from waypoint.engine import unrestorable
from waypoint.engine.criu import CriuEnded, CriuFailed, CriuTimedOut
from waypoint.engine.images import RESTORE_FILES_ONLY
from waypoint.errors import CannotCheckpoint, CannotRestore, NoSpace, WaypointError
from waypoint.kernel import processes
from waypoint.kernel.mounts import Mount

FILES_ONLY = Arg("checkpoint", files_only=True)
_TEST_BYTES = 8 << 20
_DYING_SECONDS, _SETTLED_SECONDS, _LOOK_SECONDS = 0.25, 5.0, 0.02
"""How long processes are watched after a CRIU that ended in the middle of a dump: at least, and at most. On
a busy machine it takes a while until each of them has run, and it is then that some die."""
_TRANSIENT = ("In-flight connection", "in-flight socket")
"""CRIU's words for a connection that is not accepted yet. Mostly it is a moment later."""
_INTERRUPTED = "task interruption"
"""CRIU's words for a process that a SIGSTOP had reached and that had not stopped yet."""
_TRANSIENT_REASONS = {
    unrestorable.UNSENT,
    unrestorable.VFORK,
    unrestorable.NOT_ACCEPTED,
    unrestorable.UNREAD_CREDENTIALS,
    unrestorable.IN_FLIGHT,
    unrestorable.IN_FLIGHT_BEHIND,
    unrestorable.IN_FLIGHT_FIFO,
    unrestorable.IN_FLIGHT_ALONE,
    unrestorable.OF_ANOTHER,
}
_IN_WORDS = {
    "packetized mode for pipes": "it uses a pipe in packet mode (O_DIRECT)",
    "corked dgram socket": unrestorable.UNSENT,
    "Control messages in queue": unrestorable.UNREAD_CREDENTIALS,
}
"""What CRIU refuses in its own terms, and what that is."""
_HARMLESS = (
    "rlimit: Can't setup RLIMIT_NOFILE for self",
    "No parent image found, though parent directory",
    "tun: Unable to create tun",
)
"""Errors in CRIU's log after which it goes on: it may not open more files; a process did not exist yet in
the dump that it compares with; there is no /dev/net/tun, which it tries when it examines the kernel anew."""


def read_errors(log: Path) -> list[str]:
    """The error lines of a log, without CRIU's own source positions."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [
        line.split(": ", 1)[-1].strip()
        for line in lines
        if "Error (" in line and not any(words in line for words in _HARMLESS)
    ]


def is_transient(error: CannotCheckpoint) -> bool:
    """Whether the same dump is likely to succeed a moment later."""
    reasons = [culprit["reason"] for culprit in error.details.get("processes", ())]
    lines = error.details.get("log", ())
    return (
        not _TRANSIENT_REASONS.isdisjoint(reasons)
        or any(reason.startswith(unrestorable.TRACED) for reason in reasons)
        or any(words in line for line in lines for words in (*_TRANSIENT, _INTERRUPTED))
    )


def cannot_checkpoint(
    box: Box, images: Path, failure: CriuFailed, tree: Sequence[processes.Process]
) -> WaypointError:
    """The error for a dump that failed. `tree`: the processes as they were when they stood still."""
    lines = read_errors(images / "dump.log")
    if gone := _find_gone(tree, failure):
        names = ", ".join(f"{process.pid} ({process.comm})" for process in gone)
        return CannotCheckpoint(
            f"the processes could not be saved ({failure}), and some of them have ended with it: {names}",
            hint=Hint("the session is no longer what it was; ", Do("restore"), " takes it back to a point"),
            gone=[{"pid": process.pid, "command": process.comm} for process in gone],
            log=lines[:20],
        )
    if _is_full(images, lines):
        return NoSpace(
            "no space left in the pool for the memory of the processes",
            hint=Hint("free some with ", Do("prune"), "; the session runs on untouched"),
        )
    if isinstance(failure, CriuTimedOut) or (isinstance(failure, CriuEnded) and not lines):
        return CannotCheckpoint(
            f"the processes could not be saved: {failure}",
            hint=Hint("try again, or save the files alone: ", FILES_ONLY),
            log=lines[:20],
        )
    return cannot_save(find_unsavable(box) or _find_in_log(box, lines), lines or [str(failure)])


def cannot_save(
    obstacles: Sequence[tuple[processes.Process, str]], lines: Sequence[str] = ()
) -> CannotCheckpoint:
    """The error that names processes, each with the reason why it cannot be saved; `lines`: CRIU's log."""
    culprits = [
        {"pid": process.pid, "command": process.command, "reason": reason} for process, reason in obstacles
    ]
    if culprits:
        first = culprits[0]
        message = f"process {first['pid']} ({first['command']}) cannot be saved: {first['reason']}"
    else:
        message = "the processes cannot be saved: " + (lines[0] if lines else "CRIU gave no reason")
    traced = bool(culprits) and str(culprits[0]["reason"]).startswith(unrestorable.TRACED)
    return CannotCheckpoint(
        message,
        hint=Hint(
            "end the process that traces it" if traced else "end that process",
            ", or save the files alone: ",
            FILES_ONLY,
            "; the session runs on untouched",
        ),
        processes=culprits,
        log=list(lines[:20]),
    )


def cannot_save_mounts(made: Sequence[Mount]) -> CannotCheckpoint:
    """The error for a session in which something was mounted: it would be gone after a restore."""
    names = [f"{processes.printable(mount.path)} ({mount.fstype})" for mount in made]
    return CannotCheckpoint(
        f"what is mounted inside the session cannot be saved: {', '.join(names[:3])}",
        hint=Hint("unmount it, or save the files alone: ", FILES_ONLY, "; the session runs on untouched"),
        mounts=names,
    )


def cannot_restore(images: Path, failure: CriuFailed) -> CannotRestore:
    """The error for a restore that failed."""
    lines = read_errors(images / "restore.log")
    reason = str(failure) if isinstance(failure, CriuTimedOut) else (lines or ["CRIU gave no reason"])[0]
    return CannotRestore(
        f"the processes could not be restored: {reason}",
        hint=RESTORE_FILES_ONLY,
        log=lines[:20],
    )


def _find_gone(tree: Sequence[processes.Process], failure: CriuFailed) -> list[processes.Process]:
    """The processes that stood still for the dump and have ended. A CRIU that reports a failure has put all
    of them back first. One that ended itself leaves them in its own code: some die when they run."""
    members = [process for process in tree if process.state != "Z"]
    if isinstance(failure, CriuEnded):
        begun = time.monotonic()
        while (watched := time.monotonic() - begun) < _SETTLED_SECONDS:
            if watched >= _DYING_SECONDS and all(processes.has_settled(one.host_pid) for one in members):
                break
            time.sleep(_LOOK_SECONDS)
    return [process for process in members if processes.is_over(process.host_pid)]


def find_unsavable(box: Box) -> list[tuple[processes.Process, str]]:
    """The processes of a box that CRIU is known to refuse, each with the reason. (Namespaces of their own are
    noticed at the freeze: unrestorable.py.)"""
    members = processes.below(box.pid)  # CRIU may be among them, in namespaces of its own
    anchor = next((process for process in members if process.comm == "waypoint-anchor"), None)
    if anchor is None:
        return []
    result = [
        (process, unrestorable.NESTED)
        for process in unrestorable.nested_processes(anchor, processes.below(anchor.host_pid))
    ]
    for process in [anchor, *processes.below(anchor.host_pid)]:
        targets = processes.descriptors(process.host_pid).values()
        if any("io_uring" in target for target in targets):
            result.append((process, "it uses io_uring, which cannot be saved"))
        elif any(target.startswith("anon_inode:") and "bpf" in target for target in targets):
            result.append((process, "it holds a BPF object, which cannot be saved"))
        elif process.state == "Z" and len(_tasks(process.host_pid)) > 1:
            result.append((process, "its main thread has ended and others go on, which cannot be saved"))
        elif tracer := unrestorable.find_tracer(process):
            result.append((process, tracer))
    return result


def _tasks(host_pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(f"/proc/{host_pid}/task")
    return []


def _find_in_log(box: Box, lines: Sequence[str]) -> list[tuple[processes.Process, str]]:
    """The process that CRIU was busy with when it stopped, and why it did."""
    transient = any(words in line for line in lines for words in _TRANSIENT)
    for line in lines:
        if match := re.search(r"\(pid: (\d+)\)", line):
            known = (words for term, words in _IN_WORDS.items() if term in lines[0])
            reason = unrestorable.NOT_ACCEPTED if transient else next(known, lines[0])
            return [(process, reason) for process in processes.below(box.pid) if process.pid == int(match[1])]
    return []


def _is_full(images: Path, lines: Sequence[str]) -> bool:
    """Whether there was no room for the images: then even the log may be missing."""
    if any(os.strerror(errno.ENOSPC) in line for line in lines):
        return True
    test_file = images / "room"
    try:
        with open(test_file, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, _TEST_BYTES)
        test_file.unlink()
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False
