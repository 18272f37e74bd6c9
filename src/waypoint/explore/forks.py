"""The live side of a search: a fork for each trial, one to score it in, and what may not happen in them.

A trial is a fork of its parent's point. Its candidate runs there, a point is taken, and its evaluation runs
in a fork of that, which is thrown away. What acts on the outside is held: it does not run, and is kept with
the node. A watcher ends forks that take longer, or more of the machine, than they may; whatever waits for
such a fork then fails, and the trial is a node with that outcome.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shlex
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from waypoint import errors, model
from waypoint.api import requests
from waypoint.client.checkpoint import Checkpoint
from waypoint.client.client import Client
from waypoint.client.program import Program
from waypoint.client.result import Result
from waypoint.client.session import Session
from waypoint.explore import machine
from waypoint.explore.budget import Budget, Room, exceeded, refused
from waypoint.explore.candidates import Attempt, Candidate, Place
from waypoint.explore.scores import (
    MOST_WRITTEN_BYTES,
    Command,
    Evaluate,
    Pairwise,
    Score,
    read_score,
    score_of,
    verdict_of,
)
from waypoint.explore.tree import Node, Outcome, Tree
from waypoint.model import OUTSIDE
from waypoint.text.views import Diff

LOOK_SECONDS = 0.25
"""How often the watcher looks."""
MOST_COMPARED_BYTES = 64 << 20
"""Of files that a trial has changed; where there are more, duplicates are not looked for."""
_CALM_SECONDS = 5.0
"""After a trial was ended for what it took: until that has come back, no other one is."""
_SCORE_FILE = "/dev/shm/.waypoint-score"
_LONGEST_REASON = 300


class NoRoom(errors.WaypointError):
    """Raised when the machine or the budget has no room for a fork now. Nothing was tried."""

    code = "no_room"


class Held(errors.NotApproved):
    """Raised for a command of a candidate that acts on the outside. It did not run."""


class Fork(Session):
    """A fork that a search has made. What acts on the outside does not run in it. `holding`: where such
    commands are noted."""

    def __init__(self, client: Client, name: str, holding: list[str]) -> None:
        super().__init__(client, name, "agent")
        self._holding = holding

    def acts_outside(self, line: str) -> bool:
        """Whether a command line would do something that no restore takes back."""
        judgement = self.judge(line)
        return judgement.decision in ("ask", "deny") or any(
            part["class"] in OUTSIDE for part in judgement.parts
        )

    def hold(self, line: str) -> None:
        """Notes a command that acts on the outside. If this one wins, it is offered for release."""
        self._holding.append(line)

    def _refuse(self, line: str) -> None:
        if self.acts_outside(line):
            self.hold(line)
            raise Held(
                f"`{line}` is held: it acts on the outside", hint="the winner's held commands can be released"
            )

    def run(self, command: str, **options: Any) -> Result:
        """As `Session.run`. Held, and nothing has run, for what acts on the outside."""
        self._refuse(command)
        return super().run(command, **options)

    def spawn(self, argv: Sequence[str], **options: Any) -> Program:
        """As `Session.spawn`. Held, and nothing has run, for what acts on the outside."""
        self._refuse(shlex.join(argv))
        return super().spawn(argv, **options)


@dataclass
class _Running:
    """A trial that runs: what is watched."""

    sessions: list[str]
    deadline: float
    ended: tuple[Literal["failed", "timeout", "over_budget"], str] | None = None
    held: list[str] = field(default_factory=list)
    attempt: Attempt | None = None


class Forks:
    """The forks of one search. `timeout`: how long a candidate may take, and an evaluation too. `turn`: how
    many processes have worked on the search before: a fork that the daemon still makes for one that was
    killed has another name than ours of the same trial."""

    def __init__(
        self,
        client: Client,
        name: str,
        evaluate: Evaluate,
        budget: Budget,
        *,
        timeout: float,
        merge: bool = True,
        turn: int = 0,
    ) -> None:
        self._client, self._name, self._budget = client, name, budget
        self._evaluate = Command(evaluate) if isinstance(evaluate, str) else evaluate
        self._timeout, self._merge = timeout, merge
        self._turn = f"-r{turn + 1}" if turn else ""
        self._lock, self._removing = threading.Lock(), threading.Lock()
        self._running: dict[str, _Running] = {}
        self._watcher: threading.Thread | None = None
        self._calm_until = self._measure_after = 0.0
        self._taken = 0

    # ---- names -------------------------------------------------------------------------------

    def session_of(self, number: int) -> str:
        """The session of a trial, if this process makes it."""
        return f"{self._name}-{number}{self._turn}"

    def _trial_of(self, session: str) -> int | None:
        """The trial that a session belongs to; None for one of others, -1 for one that is only for
        scoring."""
        found = re.fullmatch(
            rf"{re.escape(self._name)}-"
            r"(?:(?P<trial>\d+)(?:-r\d+)?(?P<score>-score)?|match-\d+-\d+(?:-r\d+)?-(?:left|right))",
            session,
        )
        if found is None:
            return None
        return int(found["trial"]) if found["trial"] and not found["score"] else -1

    def existing(self) -> list[tuple[model.Session, int]]:
        """The sessions of this search that there are, and which trial each belongs to."""
        answer = self._client.ask(requests.Ls())
        found = ((session, self._trial_of(session.name)) for session in answer.sessions)
        return [(session, number) for session, number in found if number is not None]

    # ---- a trial -----------------------------------------------------------------------------

    def attempt(
        self,
        node: Node,
        candidate: Candidate,
        start: Checkpoint,
        parent: Checkpoint,
        place: Place,
        known: Callable[[str | None], Node | None],
    ) -> Outcome:
        """Runs a candidate in a fork of its parent's point and scores it. `start`: where the search began;
        `known`: a node that is the same as one with a fingerprint. NoRoom when no fork can be made now."""
        name = self.session_of(node.id)
        began = time.monotonic()
        with self._watched(name) as running:
            running.attempt = Attempt(candidate.number, place)
            try:
                fork = self._fork(parent, name, running)
                outcome = self._tried(fork, candidate, start, parent, running, known)
            except NoRoom:
                self._remove(name)
                raise
            except (errors.DaemonUnreachable, errors.VersionMismatch):
                raise
            except Exception as error:  # noqa: BLE001 - a candidate must not end the search
                status, why = running.ended or _what_failed(error)
                outcome = Outcome(status=status, why=why)
            if outcome.status != "done":
                self._remove(name)
            cost = outcome.cost + running.attempt.cost
            seconds = round(time.monotonic() - began, 3)
            return msgspec.structs.replace(outcome, cost=cost, seconds=seconds, held=tuple(running.held))

    def _tried(
        self,
        fork: Fork,
        candidate: Candidate,
        start: Checkpoint,
        parent: Checkpoint,
        running: _Running,
        known: Callable[[str | None], Node | None],
    ) -> Outcome:
        own = self._work(fork, candidate, running)
        point = fork.checkpoint(candidate.proposal.label)
        changed = start.diff(point)
        files = len(changed.files if parent.id == start.id else parent.diff(point).files)
        fingerprint, certain = (
            self._fingerprint(fork, changed, start, point) if self._merge else (None, False)
        )
        twin = known(fingerprint) if certain else None
        if twin is not None and twin.outcome is not None:
            score = (
                Score(twin.outcome.score, why=twin.outcome.why) if twin.outcome.score is not None else None
            )
        else:
            score = self._score(point, fork, own, running)
        if score is not None:
            point.note(f"score {score.value:g}" + (f": {score.why}" if score.why else ""))
        return Outcome(
            score=score.value if score else None,
            point=point.id,
            session=fork.name,
            cost=score.cost if score else 0.0,
            files=files,
            fingerprint=fingerprint,
            certain=certain,
            why=_cut(score.why) if score else "",
        )

    def _work(self, fork: Fork, candidate: Candidate, running: _Running) -> Any:
        """Runs a candidate; what a function has returned."""
        attempt = running.attempt
        assert attempt
        if candidate.work is not None:
            arguments = (fork, attempt) if candidate.proposal.agent else (fork,)
            return candidate.work(*arguments)
        env = {"WAYPOINT_ATTEMPT": str(attempt.number)} if candidate.proposal.agent else None
        ran = 0
        for step in candidate.proposal.steps or ():
            if fork.acts_outside(step):
                fork.hold(step)
                continue
            left = max(0.1, running.deadline - time.monotonic())
            result = Session.run(fork, step, timeout=left, env=env, plain=True)
            ran += 1
            if result.timed_out:
                raise errors.TimedOut(f"`{step}` took longer than {self._timeout:g} s")
            if result.notice and "the shell ended" in result.notice:
                raise errors.CommandFailed(f"`{step}` has ended its shell (exit {result.exit_code})")
            if not result.ok:
                raise errors.CommandFailed(
                    f"exit {result.exit_code}: {_last_line(fork) or step}", exit_code=result.exit_code
                )
        if not ran:
            raise Held("nothing of it has run: it acts on the outside, and is held")
        return None

    # ---- scoring -----------------------------------------------------------------------------

    def _score(self, point: Checkpoint, fork: Fork, own: Any, running: _Running) -> Score | None:
        match self._evaluate:
            case None:
                return score_of(1.0 if own is None else own)
            case Pairwise():
                return None
        name = f"{fork.name}-score"
        running.deadline = time.monotonic() + self._timeout
        running.sessions.append(name)
        try:
            throwaway = self._fork(point, name, running)
            if callable(self._evaluate):
                return score_of(self._evaluate(throwaway))
            return self._command_score(throwaway, self._evaluate)
        finally:
            self._remove(name)

    def _command_score(self, throwaway: Fork, evaluate: Command) -> Score:
        # In a subshell: an evaluation that says `exit` does not end the shell that would have to tell.
        line = f"( {evaluate.command}\n) 3>|{_SCORE_FILE}"
        if throwaway.acts_outside(line):
            raise Held("its evaluation acts on the outside: it was not run")
        result = Session.run(throwaway, line, timeout=self._timeout, plain=True)
        if result.timed_out:
            raise errors.TimedOut(f"its evaluation took longer than {self._timeout:g} s")
        written = throwaway.read_file(_SCORE_FILE, max_bytes=MOST_WRITTEN_BYTES)
        return read_score(evaluate.read, result.exit_code, result.output, written)

    def play(self, left: Checkpoint, right: Checkpoint, number: str) -> float:
        """Lets the judge compare two points, in a fork of each: above 0 the left one is better. A judge that
        fails has said nothing: 0."""
        assert isinstance(self._evaluate, Pairwise)
        names = [f"{self._name}-match-{number}{self._turn}-{side}" for side in ("left", "right")]
        with self._watched(*names) as running:
            try:
                a, b = (
                    self._fork(point, name, running) for point, name in zip((left, right), names, strict=True)
                )
                return verdict_of(self._evaluate.judge(a, b))
            except (NoRoom, errors.DaemonUnreachable, errors.VersionMismatch):
                raise
            except Exception:  # noqa: BLE001 - nor must a judge
                return 0.0
            finally:
                for name in names:
                    self._remove(name)

    # ---- duplicates --------------------------------------------------------------------------

    def _fingerprint(
        self, fork: Fork, changed: Diff, start: Checkpoint, point: Checkpoint
    ) -> tuple[str | None, bool]:
        """What files and processes of a point are, as far as they are not as at the start. And whether points
        of which it is equal cannot differ."""
        size = sum(change["size_after"] or 0 for change in changed.files)
        size += sum(change["files_bytes"] for change in changed.files)
        if size > MOST_COMPARED_BYTES or any(change["at_least"] for change in changed.files):
            return None, False
        digest = hashlib.sha256(json.dumps(_live(changed.live), sort_keys=True).encode())
        left_out = 0
        if changed.files:
            packed = io.BytesIO()
            left_out = len(fork.export(packed, ["/"], source="/", ref=point, since=start).left_out)
            packed.seek(0)
            with tarfile.open(fileobj=packed) as tar:
                for member in sorted(tar, key=lambda member: member.name):
                    digest.update(_member(tar, member))
        live = changed.live
        runs_more = live["started"] or live["restarted"] or changed.not_compared
        certain = not (runs_more or changed.gaps or changed.redacted or left_out)
        return digest.hexdigest()[:32], certain

    # ---- forks come and go -------------------------------------------------------------------

    def _fork(self, point: Checkpoint, name: str, running: _Running) -> Fork:
        if reason := self.refusal(point):
            raise NoRoom(reason, hint="wait for other boxes, or give the search a larger budget")
        request = requests.Fork(ref=point.id, session=point.info.session, names=(name,), actor="agent")
        try:
            self._client.ask(request)
        except (errors.NoSpace, errors.MachineError) as error:
            if running.ended is not None:
                raise
            raise NoRoom(f"no fork could be made: {error}", hint=error.hint) from error
        return Fork(self._client, name, running.held)

    def _remove(self, *names: str) -> None:
        for name in names:
            # One at a time: who finds that another thread removes it already has to wait for that.
            # What cannot be removed now is removed when the search settles, or is gone on with.
            with (
                self._removing,
                contextlib.suppress(errors.NotFound, errors.SessionError, errors.MachineError),
            ):
                self._client.ask(requests.Rm(sessions=(name,)))

    def settle(self, tree: Tree, keep: Collection[int], given: Collection[int] = ()) -> None:
        """Ends the processes of what is settled: losers go, what is kept stays as a stopped session. `given`:
        trials that are under way, which are left alone."""
        alive = self._alive()
        for session, number in self.existing():
            if session.name in alive or (number in given and session.name == self.session_of(number)):
                continue
            outcome = tree[number].outcome if 0 < number < len(tree.nodes) else None
            if outcome is None or number not in keep or outcome.session != session.name:
                self._remove(session.name)
            elif session.state == "live":
                # One whose point cannot be brought back is not ended: it would be lost.
                with contextlib.suppress(errors.NotFound, errors.CannotRestore, errors.SessionError):
                    Session(self._client, session.name, "agent").stop(discard=True)

    def fork(self, number: int, parent: Checkpoint) -> Fork:
        """A fork for a trial, for callers that do it themselves. No time limit holds for it."""
        return self._fork(parent, self.session_of(number), _Running([], 0.0))

    def cancel(self, number: int) -> None:
        """Ends a trial that is not needed: what it waits for fails soon."""
        with self._lock:
            if running := self._running.get(self.session_of(number)):
                running.ended = ("failed", "it was not needed any more")

    def has_ended(self, number: int) -> bool:
        """Whether the fork of a trial was ended, so that what waits for it fails."""
        with self._lock:
            running = self._running.get(self.session_of(number))
        return running is not None and running.ended is not None

    def abandon(self, number: int) -> None:
        """A trial whose function does not return is not waited for any more."""
        with self._lock:
            self._running.pop(self.session_of(number), None)

    def _alive(self) -> set[str]:
        with self._lock:
            return {name for running in self._running.values() for name in running.sessions}

    # ---- the watcher -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _watched(self, *names: str) -> Iterator[_Running]:
        running = _Running([*names], time.monotonic() + self._timeout)
        with self._lock:
            self._running[names[0]] = running
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="explore watcher", daemon=True)
                self._watcher.start()
        try:
            yield running
        finally:
            with self._lock:
                self._running.pop(names[0], None)

    def _watch(self) -> None:
        """Until nothing runs any more."""
        while True:
            with self._lock:
                if not self._running:
                    self._watcher = None
                    return
                running = list(self._running.values())
            with contextlib.suppress(errors.WaypointError, OSError):  # it looks again
                self._look(running)
            time.sleep(LOOK_SECONDS)

    def _look(self, running: Sequence[_Running]) -> None:
        now = time.monotonic()
        for one in running:
            if one.ended is None and now > one.deadline + 2 * LOOK_SECONDS:
                one.ended = ("timeout", f"it took longer than {self._timeout:g} s")
        unended = [one for one in running if one.ended is None]
        if unended and now > self._calm_until and (reason := exceeded(self._budget, self.room())):
            self._greediest(unended).ended = ("over_budget", reason)
            self._calm_until = now + _CALM_SECONDS
        for one in running:
            if one.ended is not None:
                self._remove(*one.sessions)

    def _greediest(self, running: Sequence[_Running]) -> _Running:
        """The trial that takes the most of the machine."""
        if len(running) == 1:
            return running[0]
        disk = self._disk_use()

        def takes(one: _Running) -> int:
            memory = sum(machine.memory_of(pid) for pid in self._keepers(one.sessions))
            return memory + sum(disk.get(name, 0) for name in one.sessions)

        return max(running, key=takes)

    def _disk_use(self) -> dict[str, int]:
        """What each session takes that nothing else has: its files, and its points."""
        use = self._client.du()
        taken: dict[str, int] = {volume.session: volume.unique_bytes for volume in use.sessions}
        for point in use.checkpoints:
            taken[point.session] = taken.get(point.session, 0) + point.unique_bytes
        return taken

    def _written(self) -> int:
        """What the sessions of the search take of the pool. To know it takes a while, and flushes what they
        have written: the free space of a pool does not show that before."""
        now = time.monotonic()
        if now >= self._measure_after:
            with self._lock:
                ended = {name for one in self._running.values() if one.ended for name in one.sessions}
            use = self._disk_use()
            mine = [name for name in use if self._trial_of(name) is not None and name not in ended]
            self._taken = sum(use[name] for name in mine)
            self._measure_after = time.monotonic() + max(1.0, 4 * (time.monotonic() - now))
        return self._taken

    def room(self) -> Room:
        """What the machine has now."""
        total, free = machine.memory()
        pool = self._client.daemon.status().pool
        written = 0 if self._budget.disk is None else self._written()
        boxes = 0
        if self._budget.memory is not None:
            boxes = sum(machine.memory_of(pid) for pid in self._keepers(self._alive()))
        return Room(total, free, pool.total_bytes, pool.free_bytes, written, boxes)

    def _keepers(self, names: Collection[str]) -> list[int]:
        answer = self._client.ask(requests.Ls())
        return [session.pid for session in answer.sessions if session.name in names and session.pid]

    def refusal(self, point: Checkpoint) -> str | None:
        """Why no fork of a point can be made now."""
        return refused(self._budget, self.room(), point.info.size_bytes)


def find_point(client: Client, point_id: str) -> Checkpoint:
    """The point of this id, whichever session it belongs to now."""
    for point in client.checkpoints():
        if point.id == point_id:
            return point
    raise errors.NotFound(f"point {point_id} is gone: it was not kept, or it was forgotten")


def _what_failed(error: Exception) -> tuple[Literal["failed", "timeout"], str]:
    if isinstance(error, errors.TimedOut):
        return "timeout", error.message
    if isinstance(error, errors.WaypointError):
        return "failed", _cut(error.message)
    return "failed", _cut(f"{type(error).__name__}: {error}")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"


def _last_line(fork: Session) -> str:
    """The last line of what the last command printed, without its secrets: as the trajectory has it."""
    with contextlib.suppress(errors.WaypointError):
        for event in reversed(fork.trace(kinds=("command",), limit=1)):
            lines = str(event.body.get("output", "")).strip().splitlines()
            return lines[-1].strip() if lines else ""
    return ""


def _live(live: Mapping[str, Any]) -> dict[str, Any]:
    """What of processes, ports and shell makes a difference: no pids and no sizes."""
    return {
        **{
            kind: sorted((process["command"], process["uid"]) for process in live[kind])
            for kind in ("started", "ended", "stopped", "continued")
        },
        "restarted": len(live["restarted"]),
        **{
            kind: sorted((port["protocol"], port["address"], port["port"]) for port in live[kind])
            for kind in ("opened", "closed")
        },
        "moved": len(live["moved"]),
        **{
            name: live[name]
            for name in ("cwd", "variables", "functions_added", "functions_removed", "settings")
        },
    }


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """What of a file makes a difference: all but its time."""
    content = tar.extractfile(member) if member.isreg() else None
    attributes = sorted((name, value) for name, value in member.pax_headers.items() if "time" not in name)
    facts = (member.name, member.type, member.mode, member.uid, member.gid, member.linkname, attributes)
    whole = hashlib.sha256(content.read()).digest() if content else b""
    return repr(facts).encode() + whole
