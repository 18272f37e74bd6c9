"""Replays: what a session has done is run again from where it started, and compared step by step.

It runs in a session of its own, a fork of the starting point, or a new one with the files of that point where
the point is not to be had. At each point of the recording the files and packages are compared with what they
were there, and verdicts are tried again in throwaway copies. Commands that act outside are left out unless
that is allowed; a command that takes too long is a difference.

Afterwards the session is removed. If the daemon is killed meanwhile, it is left as `replay-…`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from waypoint import __version__
from waypoint.agent import traces
from waypoint.agent.traces import (
    Trace,
    TraceBase,
    TraceHead,
    TraceStart,
    TraceState,
    TraceStep,
    TraceVerdict,
)
from waypoint.api.findings import PackageChange
from waypoint.api.hints import Arg, Hint
from waypoint.api.traces import ReplayDifference, ReplayStep
from waypoint.bases import store as bases
from waypoint.core.capture import Capture, Wish
from waypoint.core.commands import Commands
from waypoint.core.comparison import Comparison, Moment
from waypoint.core.fork import Fork
from waypoint.core.gate import Gate, in_place
from waypoint.core.journal import Journal
from waypoint.core.live import start_environment
from waypoint.core.registry import Registry
from waypoint.core.removal import Removals
from waypoint.core.sessions import Sessions
from waypoint.core.transfer import Request, Transfer
from waypoint.core.trials import DEFAULT_TIMEOUT, Trials
from waypoint.errors import BaseChanged, CannotRestore, NotFound, PolicyDenied, UsageError, WaypointError
from waypoint.history.redaction import MASK, Redactor
from waypoint.history.verdicts import state_of
from waypoint.history.view import PointView
from waypoint.kernel import files
from waypoint.model import BoxOptions, Checkpoint, Event, EventKind, Judgement, RunResult, Size
from waypoint.store.sessions import SessionRow
from waypoint.terminal import escapes

_PATIENCE, _LEAST_SECONDS = 10.0, 60.0
"""A command may take so many times as long as before, and at least this long."""
_MOST_FILES = 20_000
_MOST_FILE_BYTES = 64 << 20
_MOST_DIFFERENCES = 20
"""Of more files or packages than this a step names the first ones."""
_UNPACK_SECONDS = 600.0
_PACKAGE_LISTS = ("var/lib/dpkg/status", "lib/apk/db/installed", "var/lib/rpm/rpmdb.sqlite")
_UNPACK = (
    "set -e; cd /; tar -xpf -; if [ -f .waypoint-deleted ]; then"
    " xargs -0 rm -rf -- <.waypoint-deleted; rm .waypoint-deleted; fi"
)
_LONGEST_SHOWN = 300


@dataclass(frozen=True)
class Limits:
    """What a replay may do."""

    outside: bool = False
    """Commands that act outside are run too."""
    seconds: float | None = None
    """For one command. Without it a multiple of what it took."""
    everything: bool = False
    """It goes on after a difference."""
    keep: bool = False
    """Its session stays."""


@dataclass
class Outcome:
    """What came of a replay."""

    start: str
    steps: list[ReplayStep] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    kept: str | None = None


class _TooMany(Exception):
    """Too many files have changed."""

    def __str__(self) -> str:
        return f"more than {_MOST_FILES:,} files changed: they are not compared"


@dataclass(frozen=True)
class _Beginning:
    """The session in which a replay runs, and the point that it starts from."""

    row: SessionRow
    point: Checkpoint
    names: tuple[str, ...]
    """Of this session and of the recorded one: they are no difference."""


class Replays:
    """Records and checks the traces of one home."""

    def __init__(
        self,
        registry: Registry,
        sessions: Sessions,
        fork: Fork,
        removals: Removals,
        capture: Capture,
        comparison: Comparison,
        commands: Commands,
        trials: Trials,
        gate: Gate,
        journal: Journal,
        transfer: Transfer,
    ) -> None:
        self._registry, self._store = registry, registry.store
        self._sessions, self._fork, self._removals = sessions, fork, removals
        self._capture, self._comparison, self._commands = capture, comparison, commands
        self._trials, self._gate, self._journal, self._transfer = trials, gate, journal, transfer

    # ---- recording ---------------------------------------------------------------------------

    def record(self, row: SessionRow, start_ref: str | None, ref: str | None) -> Trace:
        """What a session has done from a point (without one: from where it began) up to another (now)."""
        start = self._start(row, start_ref)
        if start and start.files_only:
            raise UsageError(f"{start.label} holds files only", hint="choose a point with its processes")
        self._registry.settle(row)
        end = self._registry.point(row, ref) if ref else None
        self._require_line(start, end or self._registry.head(row), row)
        after = start.position if start else None
        kinds: tuple[EventKind, ...] = ("command", "checkpoint")
        events = self._journal.trace(row, end.id if end else None, kinds=kinds, after=after, full=True)
        steps = [*self._steps(row, start, events)]
        if end is None and (not steps or steps[-1].kind == "command") and self._registry.running(row.id):
            with self._origin(row, start) as before, self._comparison.moment(row, None) as now:
                state, why = self._state_or_why(before, now, row)
            steps.append(TraceStep(kind="point", text="now", state=state, not_compared=why))
        if not any(step.kind == "command" for step in steps):
            raise UsageError("no command was run there", hint="choose an earlier start")
        return Trace(head=self._head(row, start, len(steps)), steps=tuple(steps))

    def _start(self, row: SessionRow, ref: str | None) -> Checkpoint | None:
        """A fork began at the point that it was forked from, if that is still there."""
        if ref is not None and ref != "base":
            return self._registry.point(row, ref)
        return self._store.points.find(row.forked_from) if row.forked_from and ref is None else None

    def _require_line(self, start: Checkpoint | None, end: Checkpoint | None, row: SessionRow) -> None:
        at = end
        while start and at and at.id != start.id:
            at = self._store.points.find(at.parent) if at.parent else None
        if start and at is None:
            raise UsageError(
                f"{start.name or start.label} is not in the history of {end.label if end else row.name}",
                hint="a replay goes from a point to a later one of the same line",
            )

    @contextlib.contextmanager
    def _origin(self, row: SessionRow, start: Checkpoint | None) -> Iterator[Moment]:
        with self._comparison.moment(row, start.id if start else "base") as moment:
            yield moment

    def _steps(
        self, row: SessionRow, start: Checkpoint | None, events: Sequence[Event]
    ) -> Iterator[TraceStep]:
        for event in events:
            if event.kind == "command":
                yield _command_step(event.body)
            elif point := self._store.points.find(str(event.body.get("checkpoint"))):
                with self._origin(row, start) as before:
                    state, why = self._state_or_why(before, self._comparison.past(point), row)
                verdicts = tuple(
                    TraceVerdict(
                        command=verdict.command,
                        state=verdict.state,
                        exit_code=verdict.exit_code,
                        duration_ms=verdict.duration_ms,
                    )
                    for verdict in self._store.points.verdicts(point.id)
                    if verdict.state in {"passed", "failed"}
                )
                name = point.name or point.label
                yield TraceStep(kind="point", text=name, state=state, not_compared=why, verdicts=verdicts)

    def _state_or_why(self, before: Moment, after: Moment, row: SessionRow) -> tuple[TraceState | None, str]:
        """What has changed, or why that is not recorded."""
        try:
            return self._state(before, after, (row.name,)), ""
        except _TooMany as many:
            return None, str(many)

    def _head(self, row: SessionRow, start: Checkpoint | None, steps: int) -> TraceHead:
        facts = self._registry.facts(start) if start else None
        variables: dict[str, str] = {}
        if facts:
            redactor = Redactor.for_variables(facts.shell.values)
            clean, _ = redactor.redact_json(dict(facts.shell.exported))
            variables = {name: value for name, value in clean.items() if MASK not in value}
        options = row.options
        return TraceHead(
            format=traces.FORMAT,
            version=traces.VERSION,
            written_by=__version__,
            session=row.name,
            base=self.identity(options.base),
            options=BoxOptions(
                base=options.base,
                net=options.net,
                user=options.user,
                cwd=options.cwd,
                env=Redactor().redact_json(dict(options.env))[0],
            ),
            start=TraceStart(
                point=start.id if start else None,
                label=(start.name or start.label) if start else "",
                cwd=facts.shell.cwd if facts else None,
                variables=variables,
                processes=max(0, len(facts.processes) - 1) if facts else 0,
            ),
            steps=steps,
        )

    def identity(self, base: str) -> TraceBase:
        """What identifies a base: an imported one the file that it was made of, a folder its packages."""
        root = self._registry.base_of(BoxOptions(base=base))
        if base.startswith("/"):
            digest = hashlib.sha256()
            for name in _PACKAGE_LISTS:
                digest.update(files.read(str(root / name), _MOST_FILE_BYTES) or b"")
            found = f"sha256:{digest.hexdigest()}"
        else:
            found = bases.read_base(self._registry.pool, base).digest
        return TraceBase(name=base, digest=found, system=_system(root), architecture=platform.machine())

    def write(self, row: SessionRow, trace: Trace, out: Any) -> str:
        """The trace as a file. Its id."""
        if trace.head.start.point is None:
            return traces.write_trace(trace, None, out)
        with tempfile.TemporaryFile() as start:
            self._pack(row, trace.head.start, start)
            return traces.write_trace(trace, start, out)

    def _pack(self, row: SessionRow, start: TraceStart, out: IO[bytes]) -> None:
        def write(data: bytes) -> None:
            if out.tell() + len(data) > traces.MOST_START_BYTES:
                raise UsageError(
                    f"{start.label} changed more than {traces.MOST_START_BYTES >> 20} MB in its base",
                    hint=Hint("start the trace earlier (", Arg("export_trace", "start"), ")"),
                )
            out.write(data)

        self._transfer.export(row, write, Request(ref=start.point))

    # ---- what is compared --------------------------------------------------------------------

    def _state(self, before: Moment, after: Moment, names: Sequence[str]) -> TraceState:
        """What has changed from the one to the other, in words that can be compared."""
        changed: dict[str, str] = {}
        for change in self._comparison.changes(before, after):
            if change.kind in {"deleted", "renamed"}:
                gone = change.real_old_path if change.kind == "renamed" else change.real_path
                changed[gone] = "gone"
            if change.kind != "deleted":
                changed |= _described(after.view, change.real_path, names)
            if len(changed) > _MOST_FILES:
                raise _TooMany
        analysis = self._comparison.difference(before, after).analysis
        packages = sorted(
            f"{one.ecosystem} {one.environment} {one.name} {one.before or '-'} -> {one.after or '-'}"
            for one in analysis.findings
            if isinstance(one, PackageChange)
        )
        return TraceState(
            files={path: words for path, words in changed.items() if traces.is_compared(path)},
            packages=tuple(packages),
        )

    # ---- running -----------------------------------------------------------------------------

    def of_session(
        self, row: SessionRow, trace: Trace, limits: Limits, on_step: Callable[[ReplayStep], None]
    ) -> Outcome:
        """Runs again what a session of this home has done."""
        start = self._store.points.find(trace.head.start.point) if trace.head.start.point else None
        if start is None:
            return self._in_new_session(trace, row.options, None, row.policy, limits, on_step)
        return self._in_fork(trace, start, limits, on_step)

    def of_file(
        self,
        trace: Trace,
        start_files: bytes | None,
        base: str | None,
        limits: Limits,
        on_step: Callable[[ReplayStep], None],
    ) -> Outcome:
        """Runs a trace again that another person, or this one, has written. `base`: over this one, whatever
        the trace says. Its point is used if this home has it."""
        head = trace.head
        point = self._store.points.find(head.start.point) if base is None and head.start.point else None
        if point and _has_walls(self._registry.find(point.session).options):
            return self._in_fork(trace, point, limits, on_step)
        # Nothing of a box that another person has chosen may weaken its walls.
        told = head.options
        options = BoxOptions(
            base=base or self._base_like(head.base),
            net="none" if told.net == "none" else "nat",
            user=told.user,
            cwd=told.cwd,
            env=told.env,
        )
        return self._in_new_session(trace, options, start_files, None, limits, on_step)

    def _base_like(self, wanted: TraceBase) -> str:
        """A base of this home that is the one of a trace. BaseChanged when there is none."""
        if not wanted.name.startswith("/"):
            for base in bases.list_bases(self._registry.pool):
                if base.digest == wanted.digest:
                    return base.name
            problem = f"its base {wanted.name!r} ({wanted.digest[:19]}…) is not among the bases here"
            todo: Sequence[Any] = ("import the file that it was made of, or choose a base (",)
        else:
            here = self.identity(wanted.name) if os.path.isdir(wanted.name) else None
            if here and (here.digest, here.architecture) == (wanted.digest, wanted.architecture):
                return wanted.name
            problem = (
                f"its base was {wanted.name} with other packages ({wanted.system}, {wanted.architecture})"
            )
            todo = ("run it on a machine like that one, or choose a base (",)
        raise BaseChanged(
            f"the trace is of another base: {problem}", hint=Hint(*todo, Arg("replay", "base"), ")")
        )

    def _in_fork(
        self, trace: Trace, start: Checkpoint, limits: Limits, on_step: Callable[[ReplayStep], None]
    ) -> Outcome:
        origin = self._registry.find(start.session)
        _require_no_binds(origin.options, limits)
        name = _new_name()
        self._fork.grow(origin, start.id, name=name, actor="automatic", hook_seconds=None)
        outcome = Outcome(f"a fork of {start.name or start.label} of {origin.name}")
        return self._run(trace, self._registry.find(name), start, limits, outcome, on_step)

    def _in_new_session(
        self,
        trace: Trace,
        options: BoxOptions,
        start_files: bytes | None,
        policy: str | None,
        limits: Limits,
        on_step: Callable[[ReplayStep], None],
    ) -> Outcome:
        _require_no_binds(options, limits)
        name, start = _new_name(), trace.head.start
        session = self._sessions.new(name, options, Size())
        row = self._registry.find(session.id)
        if policy is not None:
            self._store.sessions.set_policy(row.id, policy)
        outcome = Outcome(f"a new session over {options.base}")
        try:
            if start_files is not None:
                outcome.start += f", with the files of {start.label}"
                self._unpack(row, start_files)
            if start.point:
                self._dress(row, start)
                if start.processes:
                    outcome.remarks.append(
                        f"{start.processes} processes that ran at {start.label} are not there:"
                        " no trace has them"
                    )
            begun = self._capture.checkpoint(row, Wish("where the replay starts", actor="automatic"))
        except BaseException:
            self._removals.remove([row])
            raise
        return self._run(trace, self._registry.find(name), begun, limits, outcome, on_step)

    def _unpack(self, row: SessionRow, start_files: bytes) -> None:
        """The files of a starting point: unpacked by the session's own tar, since they come from others."""
        live = self._registry.live(row)
        argv = ["/bin/sh", "-c", _UNPACK]
        result = self._commands.run_as_root(live, argv, start_environment(), _UNPACK_SECONDS, start_files)
        if result.exit_code:
            raise CannotRestore(
                f"the files of the starting point cannot be unpacked: {result.output[-_LONGEST_SHOWN:]}",
                hint="the base needs tar and xargs",
            )

    def _dress(self, row: SessionRow, start: TraceStart) -> None:
        """The shell's folder and variables of a starting point."""
        lines = [
            f"export {name}={shlex.quote(value)}"
            for name, value in start.variables.items()
            if name.isidentifier()
            and name not in {"PATH", "HOME", "WAYPOINT_SESSION", "PWD", "OLDPWD", "SHLVL"}
        ]
        if start.cwd:
            lines.append(f"cd -- {shlex.quote(start.cwd)}")
        self._commands.run(row, "\n".join(lines) or ":", timeout=_LEAST_SECONDS, actor="automatic")

    def _run(
        self,
        trace: Trace,
        row: SessionRow,
        start: Checkpoint,
        limits: Limits,
        outcome: Outcome,
        on_step: Callable[[ReplayStep], None],
    ) -> Outcome:
        beginning = _Beginning(row, start, (row.name, trace.head.session))
        try:
            for number, step in enumerate(trace.steps, 1):
                done = self._one(number, step, beginning, limits)
                outcome.steps.append(done)
                on_step(done)
                if done.state == "different" and not limits.everything:
                    break
        finally:
            if limits.keep:
                outcome.kept = row.name
            else:
                with contextlib.suppress(NotFound):
                    self._removals.remove([self._registry.find(row.id)])
        return outcome

    def _one(self, number: int, step: TraceStep, beginning: _Beginning, limits: Limits) -> ReplayStep:
        done = ReplayStep(
            number=number,
            kind=step.kind,
            text=step.text,
            state="same",
            remark=step.not_compared,
            was_ms=step.duration_ms,
        )
        differences: list[ReplayDifference] = []
        if step.kind == "command":
            line = in_place(step.text, None if step.program else step.cwd, step.env)
            judgement = self._gate.judge(self._registry.find(beginning.row.id), line)
            if why := step.not_run or _why_not(judgement, limits):
                return msgspec.structs.replace(done, state="not run", remark=why)
            result = self._again(step, beginning, limits)
            for part in judgement.outside:
                class_ = part.class_ if part.class_ == "external-reversible" else "irreversible"
                self._gate.claim(beginning.row, part.command, class_=class_, actor="automatic")
            differences += self._compare_results(step, result, beginning)
            done = msgspec.structs.replace(done, duration_ms=result.duration_ms)
        elif step.state is not None:
            with self._comparison.moment(beginning.row, None) as now:
                try:
                    state = self._state(self._comparison.past(beginning.point), now, beginning.names)
                    differences += _compare_states(step.state, state)
                except _TooMany as many:
                    done = msgspec.structs.replace(done, remark=str(many))
        if step.verdicts:
            found, remark = self._compare_verdicts(step, beginning)
            differences += found
            done = msgspec.structs.replace(done, remark=remark or done.remark)
        if differences:
            kept = tuple(differences[:_MOST_DIFFERENCES])
            more = len(differences) - len(kept)
            remark = f"and {more:,} more" if more else done.remark
            return msgspec.structs.replace(done, state="different", differences=kept, remark=remark)
        return done

    def _again(self, step: TraceStep, beginning: _Beginning, limits: Limits) -> RunResult:
        row = beginning.row
        took = (step.duration_ms or 0.0) / 1000
        seconds = took if step.timed_out else limits.seconds or max(_LEAST_SECONDS, took * _PATIENCE)
        try:
            if step.program:
                return self._commands.run_program(
                    row,
                    shlex.split(step.text),
                    step.cwd,
                    step.env,
                    shell_env=step.shell_env,
                    user=step.user,
                    timeout=seconds,
                )
            return self._commands.run(
                row,
                step.text,
                timeout=seconds,
                actor="automatic",
                cwd=step.cwd,
                env=step.env,
                user=step.user,
            )
        except PolicyDenied:
            raise
        except WaypointError as error:  # the command ended its session, or cannot be started
            return RunResult(exit_code=None, output=error.message, duration_ms=0.0)

    def _compare_results(
        self, step: TraceStep, result: RunResult, beginning: _Beginning
    ) -> Iterator[ReplayDifference]:
        if result.timed_out != step.timed_out:
            was, now = (f"{(ms or 0.0) / 1000:.1f} s" for ms in (step.duration_ms, result.duration_ms))
            yield ReplayDifference(
                what="time limit",
                expected=f"took longer than {was}" if step.timed_out else f"ended after {was}",
                actual=f"took longer than {now}" if result.timed_out else f"ended after {now}",
            )
            return
        if result.exit_code != step.exit_code:
            yield ReplayDifference(
                what="exit status", expected=str(step.exit_code), actual=str(result.exit_code)
            )
        if not step.not_compared:
            clean = self._registry.redactor(beginning.row).redact(result.output).text
            texts = (escapes.strip(step.output), escapes.strip(clean))
            if lines := traces.first_difference(*texts, beginning.names):
                expected, actual = (line[:_LONGEST_SHOWN] for line in lines)
                yield ReplayDifference(what="output", expected=expected, actual=actual)

    def _compare_verdicts(self, step: TraceStep, beginning: _Beginning) -> tuple[list[ReplayDifference], str]:
        """What came out otherwise, and what was not tried."""
        found: list[ReplayDifference] = []
        remark = ""
        point = self._capture.checkpoint(beginning.row, Wish("verdicts are tried here", actor="automatic"))
        for verdict in step.verdicts:
            try:
                self._gate.check_trial(self._registry.find(beginning.row.id), verdict.command)
            except PolicyDenied as error:
                remark = f"a verdict was not tried: {error.message}"
                continue
            seconds = max(_LEAST_SECONDS, (verdict.duration_ms or 0.0) / 1000 * _PATIENCE)
            result = self._trials.run(point, verdict.command, timeout=min(seconds, DEFAULT_TIMEOUT))
            state = state_of(result.exit_code, timed_out=result.timed_out)
            if state != verdict.state:
                found.append(
                    ReplayDifference(
                        what="verdict", where=verdict.command, expected=verdict.state, actual=state
                    )
                )
        return found, remark


def _why_not(judgement: Judgement, limits: Limits) -> str:
    """Why a command is not run again, if so."""
    if judgement.decision == "deny":
        return f"the policy does not let it run: {judgement.why}"
    if not limits.outside and (judgement.outside or judgement.decision == "ask"):
        return f"it may act outside: {judgement.why or judgement.class_}"
    return ""


def _command_step(body: dict[str, Any]) -> TraceStep:
    """A command of a trajectory."""
    given = body.get("given") or {}
    program = bool(body.get("beside")) and not given.get("in_shell")
    text = body.get("command")
    not_run = not_compared = ""
    if text is None:
        not_run = "what was typed is not known"
    elif MASK in f"{text}{given.get('env', '')}":
        not_run = "a secret that was in it is not in the trace"
    elif given.get("stdin_bytes"):
        not_run = "its input is not in the trace"
    if body.get("raw"):
        not_compared = "it drew on the screen"
    elif body.get("left_out"):
        not_compared = "not all of its output was kept"
    elif MASK in str(body.get("output") or ""):
        not_compared = "a secret was in its output"
    return TraceStep(
        kind="command",
        text=text or "",
        exit_code=body.get("exit_code"),
        output=str(body.get("output") or ""),
        duration_ms=body.get("duration_ms"),
        timed_out=bool(body.get("timed_out")),
        not_run=not_run,
        not_compared=not_compared,
        program=program,
        cwd=body.get("cwd") if program else given.get("cwd"),
        env=given.get("env") or {},
        user=given.get("user"),
        shell_env=bool(given.get("shell_env")),
    )


def _described(view: PointView, path: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is at a path, and below it, in words."""
    place = view.place(path)
    if place is None:
        return
    paths = [path, *(inside for inside, _ in view.walk(path))] if place.entry.is_folder else [path]
    for name in paths[:_MOST_FILES]:
        found = view.place(name)
        if found is None or not traces.is_compared(name):
            continue
        mode = found.entry.mode & 0o7777
        if found.entry.is_folder:
            yield name, f"folder {mode:04o}"
        elif found.entry.is_link:
            where = view.host_path(found)
            yield name, f"link to {files.target(where) if where else None}"
        elif found.entry.is_file:
            where = view.data_path(found)
            content = files.read(where, _MOST_FILE_BYTES) if where else None
            words = traces.describe_file(mode, content or b"", names)
            size = found.entry.size
            yield name, words if size <= _MOST_FILE_BYTES else f"{words} of the beginning, {size} bytes"
        else:
            yield name, f"special {mode:04o}"


def _compare_states(expected: TraceState, actual: TraceState) -> Iterator[ReplayDifference]:
    for path in sorted(expected.files.keys() | actual.files.keys()):
        was, now = expected.files.get(path, "unchanged"), actual.files.get(path, "unchanged")
        if was != now:
            yield ReplayDifference(what="files", where=path, expected=was, actual=now)
    for package in sorted({*expected.packages} ^ {*actual.packages}):
        there = package in expected.packages
        yield ReplayDifference(
            what="packages",
            where=package,
            expected="changed so" if there else "not changed so",
            actual="not changed so" if there else "changed so",
        )


def _has_walls(options: BoxOptions) -> bool:
    """Whether commands that another person has written may run in a box like this one."""
    return options.confined and options.net != "host" and not options.binds


def _require_no_binds(options: BoxOptions, limits: Limits) -> None:
    """What a replay writes to a folder of this machine would stay."""
    bound = [bind.box for bind in options.binds if not bind.readonly]
    if bound and not limits.outside:
        raise PolicyDenied(
            f"the session has folders of this machine in it ({', '.join(bound)}): they would be written to",
            hint=Hint("allow it with ", Arg("replay", "outside")),
        )


def _system(root: Path) -> str:
    text = files.read(str(root / "usr/lib/os-release"), 1 << 16) or b""
    for line in text.decode(errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip('"')
    return ""


def _new_name() -> str:
    return f"replay-{secrets.token_hex(3)}"
