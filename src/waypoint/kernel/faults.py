"""Named fault points: every place in the verbs at which tests let a step fail, hang or be the last one.

    faults.reach("capture.published")

`POINTS` lists them all, with what has happened up to there. A point does nothing unless a test controls it.
Below root a test passes a function to `control`, which may raise. A daemon that was started with
WAYPOINT_FAULTS asks the process that listens on that socket (tests/torture/tester.py): while it waits for the
answer, that process can kill it, its boxes or CRIU; the answer may be an error number, which is raised.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

POINTS: dict[str, str] = {
    # Sessions begin.
    "new.volume": "the volume of a new session is made",
    "box.begun": "a box is to be built, and nothing of it exists",
    "box.grouped": "its control group exists",
    "box.started": "its keeper has built it",
    "box.attached": "its cable to the host exists",
    "box.served": "its terminal is read and its doors are open",
    "new.anchored": "the anchor of a new session runs",
    "new.shell": "its shell was started",
    "new.ready": "its shell is at its first prompt",
    "new.beginning": "its files at the first prompt are kept",
    "new.stored": "its row is stored",
    # Commands.
    "exec.passed": "the policy has let a command pass, and it has not begun",
    "exec.ended": "a command has ended, and this is not stored yet",
    "spawn.piped": "the pipes of a program exist",
    "spawn.kept": "the keeper holds the ends of its pipes that outlive the daemon",
    "spawn.started": "the program runs, and the daemon does not know it yet",
    # A point is taken.
    "capture.begun": "there is room for a point",
    "capture.staged": "its staging folder exists",
    "capture.flushed": "the data of the volume was flushed",
    "capture.settled": "the terminal was read to its end",
    "capture.files": "a snapshot of the files alone exists",
    "capture.precopied": "large memory was copied ahead, or there is none",
    "capture.held": "all processes stand still, nothing is captured yet",
    "capture.snapshotted": "the files of the pause are snapshotted",
    "capture.observed": "everything of the pause was looked at",
    "capture.dumped": "the processes run again, the images are not complete",
    "capture.described": "terminal, facts and box are written beside the images",
    "capture.moved": "the images have left memory for the pool",
    "capture.sized": "the sizes of the images are recorded",
    "capture.noted": "point.json is written",
    "capture.published": "the folder has its place among the points, and no row",
    "capture.stored": "the row is stored",
    "capture.kept": "the point exists and its followers are to be told",
    "dump.begun": "a dump is to begin, and CRIU has not been started",
    "dump.started": "CRIU has been started for a dump",
    "dump.frozen": "CRIU has stopped all processes",
    "dump.written": "CRIU has written everything, the processes still stand still",
    "dump.ended": "CRIU has ended, the processes run",
    "dump.completed": "images that name an earlier point are complete in themselves",
    "dump.corrected": "the images are corrected, the state of the tree is not written",
    "digest.read": "a point was read, and its digests are not stored",
    "digest.written": "its digests are on the disk, and its row does not name them",
    "durable.begun": "points are to become durable",
    "durable.data": "their data is on the disk",
    "durable.rows": "their rows are on the disk",
    "durable.marked": "they are marked",
    # A point is brought to life.
    "copy.begun": "a copy of a point is to be made",
    "copy.volume": "its volume exists",
    "copy.read": "the images were checked and what is beside them was read",
    "copy.box": "its box stands",
    "copy.held": "its processes exist and none has run",
    "copy.tracked": "its memory is tracked",
    "copy.thawed": "its terminal is as it was",
    "copy.fresh": "a box with the files alone stands, without an anchor",
    "copy.anchored": "its anchor runs, without a shell",
    "copy.claimed": "a held copy belongs to its session",
    "copy.answered": "processes that waited for this point have their answer",
    "copy.released": "its processes run",
    "copy.connected": "its connections to the outside were ended",
    "pages.asked": "memory that is missing is to be copied before a dump",
    "pages.filled": "nothing is missing any more",
    "pages.frozen": "the tree stands still, and tracking is to move to the daemon",
    "revive.begun": "a restore is to begin, and CRIU has not been started",
    "revive.started": "CRIU has been started for a restore",
    "revive.held": "CRIU has made all processes",
    "revive.armed": "their missing memory is known, and its page server is ready",
    "revive.relocked": "they have their input and their locks again",
    "revive.completed": "they have everything that CRIU does not restore",
    "revive.releasing": "CRIU is about to let them run",
    "revive.released": "CRIU has ended, they run and are not adopted",
    "restore.frozen": "the present stands still, and it is not known whether it can be saved later",
    "restore.kept": "the present is in a safety checkpoint or stands still, if it was to be",
    "restore.copied": "the copy runs beside the old box",
    "restore.moved": "the row of the session names the new box",
    "restore.left": "the old box is told to end, or left standing still",
    "pending.begun": "a pending safety point is to be saved",
    "pending.dumped": "its processes are saved, and its images are not complete",
    "pending.noted": "its point.json is written",
    "pending.published": "its folder has its place among the points, and its row says that it is pending",
    "pending.saved": "it is a point like any other, and its box stands",
    "clear.box": "the old box is gone and its volume is not",
    "fork.copied": "all copies of a fork run and none is a session",
    "fork.stored": "one of them is a session",
    "spare.chosen": "a point is to have a spare",
    "spare.held": "the copy is held and its timers run",
    "spare.taken": "a spare was chosen for a restore",
    "spare.ended": "a held copy has ended, its box has not",
    "trial.copied": "a throwaway copy of a point runs",
    "trial.ran": "the command has ended in it",
    "verify.stored": "a verification is stored as one that runs",
    "verify.judged": "its outcome is known and not stored",
    # Sessions end.
    "park.taken": "the point of a session that is being parked is durable",
    "park.proven": "the point has been restored once",
    "park.ended": "the box is gone and the row says that it runs",
    "park.stored": "the row says parked, and the volume is still there",
    "box.silent": "the doors of a box that ends are closed",
    "box.removed": "its processes are gone",
    "rm.ended": "the box of a session that is removed is gone",
    "rm.removed": "its row and those of its points are gone",
    "rm.synced": "that is on the disk, and nothing else is gone",
    "rm.named": "the folders of points that were handed over name their session",
    "name.begun": "point.json is to be written again, and the row of its point names no digest",
    "name.written": "it is written, and the digests do not know it yet",
    "stop.ended": "the box of a session is gone, the row says that it runs",
    "stop.gone": "the box of a session that is stopped is gone, the row says that it runs",
    "stop.stored": "the row says stopped, and the volume is still there",
    # Points go.
    "forget.removed": "the rows of points are gone",
    "forget.synced": "that is on the disk, their folders are there",
    "forget.deleted": "their folders are gone",
    "delete.begun": "a tree, or the folder of a point, is to be deleted",
    "delete.named": "the folder of a point has no point.json any more",
    "delete.files": "the files of a point are deleted, its images are not",
    "prune.begun": "what belongs to nothing is known",
    "prune.deleted": "it is deleted",
    "share.begun": "two images are to share their blocks",
    "share.started": "the helper that compares them runs",
    # Bases.
    "base.staged": "a base has a staging folder",
    "base.unpacked": "its files are there, its record is not",
    "base.sealed": "it is complete in its staging folder",
    "base.synced": "that is on the disk",
    "base.named": "it exists, and its name is not on the disk",
    "base.unnamed": "a base that is removed has lost its name",
    "build.found": "it is known which steps of a Dockerfile were done before",
    "build.entered": "the session of a base stands behind the last of them",
    "build.carried_out": "a step is carried out in it, and no point has it",
    "build.landed": "what all steps have changed is in the staging folder of the base",
    # Files in and out.
    "land.planned": "what is to be landed is known",
    "land.prepared": "one file or folder is landed, or prepared beside its place",
    "land.landed": "everything has landed, nothing is recorded",
    "back.planned": "which files come back is known",
    "back.stored": "the operation is stored, no file is back",
    "back.done": "the files are back",
    "read_file.opened": "the root of a session is open for reading one file",
    "write_file.opened": "the root of a session is open for writing one file",
    "copy_in.opened": "the root of a session is open for copying",
    "copy_out.opened": "the same for copying out",
    "forward.bound": "a port of this machine is taken for a session, and no row says so",
    # The database.
    "store.begun": "a transaction has begun",
    "store.written": "its statements are done, it is not committed",
    # A daemon starts.
    "start.opened": "the pool is open",
    "start.closed": "what an earlier daemon did not finish is marked so",
    "start.listed": "it is known which boxes stand",
    "start.taken": "the terminal of one box was taken over",
    "start.pending": "what was left pending is taken over",
    "start.unowned": "a box without a session was ended",
    "start.cleared": "groups and files of boxes that are gone are removed",
    "adopt.dropped": "rows without data are removed",
    "adopt.read": "folders without a row were read",
    "adopt.added": "one of them has its row again",
    "adopt.cleared": "what was noted of forgotten points is dropped",
    "start.adopted": "database and pool agree",
    "start.deleted": "what no row names is deleted",
    # What a check finds is repaired.
    "recover.checked": "everything was checked, and nothing is repaired",
    "recover.scratch": "a temporary tree of a process that has ended is to be deleted",
    "recover.sealing": "a tree that can be written to is to be made read-only again",
    "recover.sealed": "it is read-only",
    "recover.rows": "rows that belonged to nothing are deleted, and that is not committed",
    "recover.compared": "a point that is marked as damaged is what was written",
    "recover.unmarked": "it is not marked any more",
    "recover.repaired": "what can be repaired is, and it was not checked again",
    # A database that cannot be read is rebuilt.
    "rebuild.kept": "a copy of the damaged files is on the disk",
    "rebuild.read": "what is whole of them is in another file",
    "rebuild.adopted": "so is what the folders of the points say",
    "rebuild.ready": "that file is on the disk, and counts from here on",
    "rebuild.unlogged": "the log of the damaged database is gone",
    # A home is torn down.
    "teardown.stopped": "all boxes are gone",
    "teardown.quiet": "nothing works in the background any more",
    "teardown.network": "the firewall table is gone",
    "teardown.durable": "every point is durable",
    "teardown.closed": "the pool is closed",
}

ONLY_DEATH = frozenset(
    (
        *("capture.stored", "capture.kept", "durable.marked", "new.stored"),
        *("restore.moved", "restore.left", "spare.taken", "base.unnamed"),
    )
)
"""Points with no call between them and the step before that could fail, as behind the row that makes a result
exist: a process can only die there."""

_SHORT_SECONDS = 5.0

_controller: Callable[[str], None] | None = None


def reach(name: str) -> None:
    """The calling thread has come to a fault point."""
    if _controller is not None:
        _controller(name)


def control(controller: Callable[[str], None] | None) -> None:
    """From now on this is called at every point; None: nothing is."""
    global _controller  # noqa: PLW0603 - a test controls the process as a whole
    _controller = controller


def limit(seconds: float) -> float:
    """The time limit of a step; a short one while a test controls the points, which also lets steps hang."""
    return seconds if _controller is None else min(seconds, _SHORT_SECONDS)


def ask(path: str) -> Callable[[str], None]:
    """A controller that asks the process which listens on a socket. Without one the points do nothing."""

    def controller(name: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as tester:
            answer = b""
            with contextlib.suppress(ConnectionError, FileNotFoundError):
                tester.connect(path)
                tester.send(name.encode())
                answer = tester.recv(16)
        if number := int(answer or 0):
            raise OSError(number, os.strerror(number), f"the fault point {name}")

    return controller
