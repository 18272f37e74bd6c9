"""Running a command in a throwaway copy of a point, and the verdicts that come of it.

A verdict is about exactly the bytes of a point: its processes are brought back in a box that belongs to no
session, the command runs in its shell with its environment, and the box is gone afterwards in any case. A
daemon that dies meanwhile leaves a box that belongs to no session, which the next daemon ends.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from waypoint.core.commands import Commands
from waypoint.core.copies import Copies
from waypoint.core.live import new_id, start_environment
from waypoint.core.registry import Registry
from waypoint.errors import NotFound, SessionBusy, UsageError, WaypointError
from waypoint.history.redaction import Redactor
from waypoint.history.verdicts import state_of
from waypoint.kernel import faults, locks
from waypoint.model import Checkpoint, RunResult, Verdict, VerdictState

log = logging.getLogger("waypoint")

OUTPUT_TAIL_BYTES = 4096
DEFAULT_TIMEOUT = 600.0
AT_ONCE = 2
"""How many trials run side by side."""


def check_trial(command: str, *, files_only: bool) -> None:
    """UsageError when a command cannot verify a point."""
    if not command.strip():
        raise UsageError("a verification needs a command", hint="one that exits with 0 when all is well")
    if files_only:
        raise UsageError(
            "a point that holds files only cannot be verified",
            hint="it has no processes to run the command in; take a point with its processes",
        )


class Trials:
    """The trials of one home, a few at a time."""

    def __init__(self, registry: Registry, copies: Copies, commands: Commands) -> None:
        self._registry, self._store, self._copies, self._commands = registry, registry.store, copies, commands
        self._workers = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="trial")
        self._done = locks.condition("trials")

    def run(self, point: Checkpoint, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> RunResult:
        """A command in a throwaway copy of a point. Where its shell is busy (the point was taken while a
        command ran), it runs beside it, with the shell's folder and exported variables."""
        with self._copies.throwaway(point) as live:
            try:
                return live.terminal.run(new_id(), command, timeout=timeout)
            except SessionBusy:
                shell = self._registry.facts(point).shell
                environment = shell.exported or start_environment()
                argv = ["/bin/bash", "-c", command]
                return self._commands.run_beside(live, argv, shell.cwd, environment, timeout)

    def verify(self, point: Checkpoint, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> int:
        """Starts a verification; returns its number. The verdict is stored with the point."""
        check_trial(command, files_only=point.files_only)
        redactor = self._redactor(point)
        verdict_id = self._store.points.add_verdict(point.id, redactor.redact(command).text)
        faults.reach("verify.stored")
        self._workers.submit(self._judge, verdict_id, point, command, timeout)
        return verdict_id

    def _redactor(self, point: Checkpoint) -> Redactor:
        """One that knows the secrets among the point's variables: a command may print them."""
        return Redactor.for_variables(self._registry.facts(point).shell.values)

    def _judge(self, verdict_id: int, point: Checkpoint, command: str, timeout: float) -> None:
        state: VerdictState
        try:
            result = self.run(point, command, timeout=timeout)
            faults.reach("verify.judged")
            output = self._redactor(point).redact(result.output[-OUTPUT_TAIL_BYTES:]).text
            if result.timed_out:
                output += f"\n[waypoint: it took longer than {timeout:g} s]"
            state = state_of(result.exit_code, timed_out=result.timed_out)
            code = None if result.timed_out else result.exit_code
            duration: float | None = result.duration_ms
        except Exception as error:  # whatever it is: a client waits for the verdict
            if not isinstance(error, (WaypointError, OSError)):
                log.exception("a verification failed")
            state, code, duration, output = "error", None, None, str(error)
        self._store.points.finish_verdict(
            verdict_id, state, exit_code=code, duration_ms=duration, output=output
        )
        with self._done:
            self._done.notify_all()

    def wait(self, point: Checkpoint, verdict_id: int) -> Verdict:
        """The verdict, once it is there."""
        with self._done:
            while True:
                verdicts = self._store.points.verdicts(point.id)
                verdict = next((verdict for verdict in verdicts if verdict.id == verdict_id), None)
                if verdict is None:
                    raise NotFound("the checkpoint was removed during its verification")
                if verdict.state != "running":
                    return verdict
                self._done.wait(1.0)
