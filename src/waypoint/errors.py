"""Every error Waypoint raises on purpose.

    WaypointError
    ├── UsageError            the request makes no sense as given
    │   ├── NotFound          no such session, checkpoint, base, file
    │   │   └── CannotStart   a program that could not be started, with errno and the shell's 126 or 127
    │   ├── AlreadyExists     a name that is taken
    │   ├── InvalidName       a name that cannot be one
    │   ├── PlanStale         a plan that is no longer what would happen
    │   ├── NotKept           a state that this backend, or this point, does not keep
    │   ├── NoMigration       an agent's state that its code cannot be given
    │   ├── MadeElsewhere     a base that this installation has not imported
    │   └── BadTrace          a file that cannot be checked as a trace: cut off, altered, newer, or none
    ├── MachineError          this machine lacks something (see `doctor`)
    │   ├── NotRoot
    │   ├── MissingFeature    a kernel feature, a device or a program
    │   ├── NoSpace           the pool or the disk is full
    │   ├── SetupFailed       setting up could not be completed
    │   └── DatabaseDamaged   the database cannot be read; `recover` rebuilds it
    ├── SessionError
    │   ├── SessionBusy       its shell is occupied by something else
    │   ├── SessionDead       its processes are gone; `restore` brings it back
    │   ├── CommandFailed     raised by Result.check()
    │   └── TimedOut          what was waited for takes longer; it goes on
    ├── CannotCheckpoint      a process cannot be saved; names it and says why
    │   └── NotSaved          a safety point whose processes stand still and could not be saved
    ├── CannotRestore         the point could not be brought to life; nothing has changed
    │   ├── BaseChanged       the base lacks what it needs; the point itself is whole
    │   └── PointDamaged      it is not what was written; nothing was tried
    ├── ConfirmationNeeded    a destructive verb that was not confirmed
    ├── PolicyDenied          a policy does not let the command run
    │   └── NotApproved       it needs approval and got none: denied, or expired
    ├── PolicyBroken          a policy file that cannot be understood; until it is mended nothing runs
    ├── LandingConflict       files of this machine changed that a landing would replace
    └── DaemonError
        ├── InternalError     a bug of Waypoint; the daemon's log has it
        ├── DaemonUnreachable
        └── VersionMismatch   client and daemon speak different API versions

Each carries a stable `code` (what programs match on), a `hint` (what to do next) and the exit
status of the command line. An OSError stays inside the mechanism that met it and is turned into
one of these once, `from` its cause (`translated`).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any, ClassVar

from waypoint.api import hints


class WaypointError(Exception):
    """The root of all errors that Waypoint raises on purpose."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        """A plain text or a `Hint`; as text it is worded for a user of the SDK."""
        self.details = details

    def as_dict(self, wording: hints.Wording = hints.in_python) -> dict[str, Any]:
        """What a face answers with: `{"code", "message", "hint"}`, the hint in the words of that face."""
        fields: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "hint": hints.word(self.hint, wording),
        }
        if self.details:
            fields["details"] = self.details
        return fields

    def to_wire(self) -> dict[str, Any]:
        """What travels over the socket: the hint with its structure, so that each face can word it."""
        fields = self.as_dict()
        if isinstance(self.hint, hints.Hint):
            fields["hint_parts"] = self.hint.to_wire()
        return fields


class UsageError(WaypointError):
    """Raised when the request makes no sense as given."""

    code = "usage"
    exit_status = 2


class NotFound(UsageError):
    """Raised when a session, checkpoint, base or file does not exist."""

    code = "not_found"
    exit_status = 4


class CannotStart(NotFound):
    """Raised when a program could not be started. `details` has `errno` ("ENOENT") and `exit_code`: 127 when
    it does not exist and 126 otherwise, as of a shell."""

    code = "cannot_start"


class AlreadyExists(UsageError):
    """Raised when a name is taken."""

    code = "already_exists"
    exit_status = 5


class InvalidName(UsageError):
    """Raised when a name cannot be one."""

    code = "invalid_name"


class PlanStale(UsageError):
    """Raised when the session has changed since a plan was made, so that it would not do what it says."""

    code = "ground_moved"
    exit_status = 10


GroundMoved = PlanStale
"""The old name."""


class NotKept(UsageError):
    """Raised when a backend is asked for a state that it does not keep (`missing` in `details`)."""

    code = "not_kept"


class NoMigration(UsageError):
    """Raised when no registered migration leads from the version of an agent's state to that of its code."""

    code = "no_migration"
    exit_status = 11


class MadeElsewhere(UsageError):
    """Raised for a base that this installation has not made, before anything of it runs."""

    code = "made_elsewhere"


class BadTrace(UsageError):
    """Raised for a file that cannot be checked as a trace; `reason` in `details`: "no_trace", "cut_off",
    "altered" or "newer"."""

    code = "bad_trace"


class MachineError(WaypointError):
    """Raised when this machine lacks something Waypoint needs."""

    code = "machine"
    exit_status = 6


class NotRoot(MachineError):
    """Raised when Waypoint is not run by root."""

    code = "not_root"


class MissingFeature(MachineError):
    """Raised when a kernel feature, a device or a program is not there."""

    code = "missing_feature"


class NoSpace(MachineError):
    """Raised when the pool or the disk below it is full, before anything is damaged."""

    code = "no_space"


class SetupFailed(MachineError):
    """Raised when setting up could not be completed."""

    code = "setup_failed"


class DatabaseDamaged(MachineError):
    """Raised when the database cannot be read, or not to its end. `recover` rebuilds it beside a copy."""

    code = "database_damaged"


class SessionError(WaypointError):
    """Raised when a session is in no state to do what was asked."""

    code = "session"
    exit_status = 7


class SessionBusy(SessionError):
    """Raised when the session's shell is occupied by something else."""

    code = "busy"


class SessionDead(SessionError):
    """Raised when the session's processes are gone; `restore` brings it back."""

    code = "dead"


class CommandFailed(SessionError):
    """Raised by `Result.check()` when the command did not exit with 0."""

    code = "command_failed"


class TimedOut(SessionError, TimeoutError):
    """Raised when a program that is waited for takes longer than it may. It goes on."""

    code = "timed_out"


class CannotCheckpoint(WaypointError):
    """Raised when a process cannot be saved; the session runs on, or the error names what has ended."""

    code = "cannot_checkpoint"
    exit_status = 8


class NotSaved(CannotCheckpoint):
    """Raised when a safety point is asked for whose processes could not be saved after the restore. They
    stand still, and `undo` lets them run again."""

    code = "not_saved"


class CannotRestore(WaypointError):
    """Raised when a point could not be brought to life; nothing has changed."""

    code = "cannot_restore"
    exit_status = 8


class BaseChanged(CannotRestore):
    """Raised when the base lacks what a point needs of it: the point itself is whole."""

    code = "base_changed"


class PointDamaged(CannotRestore):
    """Raised when a point is not what was written: before anything of it is brought to life."""

    code = "damaged"


class ConfirmationNeeded(WaypointError):
    """Raised when a destructive verb is not confirmed and no terminal is there to ask on."""

    code = "confirmation_needed"
    exit_status = 3


class PolicyDenied(WaypointError):
    """Raised when a policy does not let a command run; nothing of it has run."""

    code = "denied"
    exit_status = 11


class NotApproved(PolicyDenied):
    """Raised when a command that needs approval got none; nothing of it has run."""

    code = "not_approved"


class PolicyBroken(WaypointError):
    """Raised when a policy file cannot be understood: then nothing runs, rather than anything."""

    code = "policy_broken"
    exit_status = 11


class LandingConflict(WaypointError):
    """Raised when a landing would replace files of this machine that the session has never seen."""

    code = "conflict"
    exit_status = 10


class DaemonError(WaypointError):
    """Raised when the daemon failed in a way it did not foresee."""

    code = "daemon"
    exit_status = 9


class InternalError(DaemonError):
    """Raised when a verb failed because of a bug of Waypoint; the daemon's log has it."""

    code = "internal"


class DaemonUnreachable(DaemonError):
    """Raised when no daemon answers and none could be started."""

    code = "daemon_unreachable"


class VersionMismatch(DaemonError):
    """Raised when client and daemon speak different versions of the API."""

    code = "version_mismatch"


def _tree(root: type[WaypointError]) -> list[type[WaypointError]]:
    return [root, *(below for child in root.__subclasses__() for below in _tree(child))]


def from_dict(fields: dict[str, Any]) -> WaypointError:
    """The error that `to_wire` or `as_dict` was called on, on the other side of the socket."""
    # A subclass that a module has for itself shares the code of its parent, which is what a client knows.
    kinds = {kind.code: kind for kind in _tree(WaypointError) if "code" in vars(kind)}
    kind = kinds.get(fields.get("code", ""), WaypointError)
    hint = hints.from_wire(fields["hint_parts"]) if "hint_parts" in fields else fields.get("hint", "")
    return kind(fields.get("message", ""), hint=hint, **fields.get("details", {}))


# ---- from errors of the kernel -------------------------------------------------------------------

_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT})


@contextlib.contextmanager
def translated(doing: str, path: str | os.PathLike[str] = "", *, hint: str = "") -> Iterator[None]:
    """Turns an OSError of the block into the error that it means, `from` its cause.

    `doing` and `path` complete "cannot …"; `hint` is for errors whose number suggests no better one.
    """
    try:
        yield
    except OSError as error:
        raise _from_os_error(error, doing, os.fspath(path), hint) from error


_OF_THE_MACHINE = frozenset(
    {
        *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM, errno.ENOBUFS),
        *(errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT),
    }
)
"""Any call may fail with these, whatever was asked for: the disk, the memory, the limits of this machine."""


def of_the_machine(error: OSError, doing: str) -> WaypointError | None:
    """The error that means that this machine failed; None for one that may be a bug of Waypoint."""
    if isinstance(error, TimeoutError) or error.errno in _OF_THE_MACHINE:
        return _from_os_error(error, doing, "", "")
    return None


def _from_os_error(error: OSError, doing: str, path: str, hint: str) -> WaypointError:
    what = f"{doing} {path}" if path else doing
    place = str(error.filename or path)
    details = {"path": place} if place else {}
    reason = f"{error.strerror or error}" + (f" ({place})" if place and place != path else "")
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            frees = hints.Hint(hints.Do("prune"), " frees some, ", hints.Do("du"), " shows what takes it")
            return NoSpace(f"no space left to {what}", hint=frees, **details)
        case errno.ENOENT if place:
            return NotFound(f"cannot {what}: {place} does not exist", hint=hint, **details)
        case errno.EEXIST | errno.ENOTEMPTY:
            return AlreadyExists(f"cannot {what}: it exists already", hint=hint, **details)
        case errno.EPERM | errno.EACCES if os.geteuid():
            return NotRoot(f"cannot {what}: {reason}", hint="run Waypoint as root", **details)
        case errno.EROFS | errno.EIO if not hint:
            hint = "if the pool has stopped writing, `dmesg` tells why; close it and open it again"
        case number if number in _NOT_SUPPORTED:
            return MissingFeature(f"cannot {what}: {reason}", hint=hint, **details)
    hint = hint or hints.Hint(hints.Do("doctor"), " may know more")
    return MachineError(f"cannot {what}: {reason}", hint=hint, **details)
