"""Trying something on a checkpoint without touching anything: throwaway forks.

A verdict is about exactly the bytes of a point: its processes are brought back in a box that belongs to no
session, the command runs in its shell with its environment, and the box is gone afterwards, whatever
happened. A daemon that dies in the middle leaves a box that nobody owns, which the next one ends.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from waypoint.core.sessions import Live, Sessions, new_id
from waypoint.errors import NotFound, SessionBusy, UsageError, WaypointError
from waypoint.history.redaction import Redactor
from waypoint.model import Checkpoint, RunResult, Verdict

OUTPUT_TAIL_BYTES = 4096
DEFAULT_TIMEOUT = 600.0


def check_trial(command: str, *, files_only: bool) -> None:
    """UsageError when a command can say nothing about a point."""
    if not command.strip():
        raise UsageError("a verification needs a command", hint="one that exits with 0 when all is well")
    if files_only:
        raise UsageError(
            "a point that holds files only cannot be verified",
            hint="there is nothing to run in; take one with its processes",
        )


class Trials:
    """Verifications of one home, a few at a time."""

    def __init__(self, sessions: Sessions, workers: int = 2) -> None:
        self._sessions = sessions
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="trial")
        self._done = threading.Condition()
        sessions.store.points.drop_running_verdicts()

    @contextlib.contextmanager
    def throwaway(self, point: Checkpoint) -> Iterator[Live]:
        """A live copy of a point that belongs to nobody and ends with the block."""
        live = self._sessions.incarnate_apart(point)
        try:
            yield live
        finally:
            self._sessions.discard(live)

    def run(self, point: Checkpoint, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> RunResult:
        """A command in a throwaway fork of a point. Where its shell is occupied (the point was taken in the
        middle of a command), it runs beside it, with the shell's folder and exported variables."""
        with self.throwaway(point) as live:
            try:
                return live.terminal.run(new_id(), command, timeout=timeout)
            except SessionBusy:
                shell = self._sessions.facts(point).shell
                environment = shell.exported or self._sessions.environment()
                argv = ["/bin/bash", "-c", command]
                return self._sessions.run_beside(live, argv, shell.cwd, environment, timeout)

    def verify(self, point: Checkpoint, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> int:
        """Starts a verification; returns its number. The verdict is kept with the checkpoint."""
        check_trial(command, files_only=point.files_only)
        redactor = self._redactor(point)
        verdict_id = self._sessions.store.points.add_verdict(point.id, redactor.redact(command).text)
        self._pool.submit(self._judge, verdict_id, point, command, timeout)
        return verdict_id

    def _redactor(self, point: Checkpoint) -> Redactor:
        """One that knows the secrets among the point's variables: a command may print them."""
        return Redactor.for_variables(self._sessions.facts(point).shell.exported)

    def _judge(self, verdict_id: int, point: Checkpoint, command: str, timeout: float) -> None:
        try:
            result = self.run(point, command, timeout=timeout)
            passed = result.exit_code == 0 and not result.timed_out
            said = self._redactor(point).redact(result.output[-OUTPUT_TAIL_BYTES:]).text
            if result.timed_out:
                said += f"\n[waypoint: it took longer than {timeout:g} s]"
            state, code, duration = "passed" if passed else "failed", result.exit_code, result.duration_ms
        except (WaypointError, OSError) as error:
            state, code, duration, said = "error", None, None, str(error)
        self._sessions.store.points.finish_verdict(
            verdict_id, state, exit_code=code, duration_ms=duration, output=said
        )
        with self._done:
            self._done.notify_all()

    def wait(self, point: Checkpoint, verdict_id: int) -> Verdict:
        """The verdict, once it is there."""
        with self._done:
            while True:
                found = next(
                    (v for v in self._sessions.store.points.verdicts(point.id) if v.id == verdict_id), None
                )
                if found is None:
                    raise NotFound("the checkpoint was removed during its verification")
                if found.state != "running":
                    return found
                self._done.wait(1.0)
