"""StateFork's managers over sessions: programs that were written for them run here.

    from waypoint.adapters.statefork import create_env_manager

    manager = create_env_manager("waypoint_build", dockerfile_dir="context")
    sealed = manager.snapshot()
    for branch in manager.fork(sealed, ids=["left", "right"]):
        manager.exec_on_branch(branch.id, "make test")

`EnvironmentManager` and `ForkableEnvironmentManager` are the contract: what every manager keeps of snapshots
and branches, and which hooks (`_core_…`) fill in the rest. StateFork reports a failure as a value (None,
False, an exit code of -1) and in the log; so do these. `WaypointAttachManager` and `WaypointBuildManager`
fill the hooks with sessions (statefork_machines.py).

Locks are taken in this order: the current branch, the operations of a branch, the registry of branches, the
state.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from waypoint import errors
from waypoint.adapters.statefork_machines import MAIN, Machine, Machines, new_id
from waypoint.adapters.statefork_records import (
    AlwaysFalseDecider,
    AlwaysTrueDecider,
    BenchmarkStats,
    BranchState,
    Command,
    Decider,
    DecisionContext,
    EnvironmentBranch,
    RandomDecider,
    SnapshotNode,
    ThresholdDecider,
)

__all__ = [
    "DEFAULT_BRANCH_ID",
    "AlwaysFalseDecider",
    "AlwaysTrueDecider",
    "BenchmarkStats",
    "BranchState",
    "Decider",
    "DecisionContext",
    "EnvironmentBranch",
    "EnvironmentManager",
    "ForkableEnvironmentManager",
    "RandomDecider",
    "SnapshotNode",
    "ThresholdDecider",
    "WaypointAttachManager",
    "WaypointBuildManager",
    "WaypointFork",
    "create_env_manager",
]

logger = logging.getLogger("EnvManager.Waypoint")
"""Below the logger that StateFork's programs configure."""

DEFAULT_BRANCH_ID = MAIN
BACKEND_FAILED = -1
TIMED_OUT = -2
"""Exit codes of a command that could not run, and of one that took too long."""

Ran = tuple[int, str, str]
"""An exit code, what was printed, and what went wrong."""
_FORKS_AT_ONCE = 16


class _Gone(Exception):
    """A branch is not there, or not any more."""


class EnvironmentManager(ABC):
    """One environment, its snapshots, and the way between them."""

    def __init__(self, backend_name: str = "Waypoint", decider: Decider | None = None) -> None:
        self.backend_name = backend_name
        self.decider = decider or AlwaysTrueDecider()
        self.snapshots: dict[str, str] = {}
        """What the backend calls each physical snapshot."""
        self.snapshot_graph: dict[str, SnapshotNode] = {}
        self.is_cleaned_up = False
        self._stats = BenchmarkStats()
        self._branches = {DEFAULT_BRANCH_ID: BranchState(DEFAULT_BRANCH_ID)}
        self._current = DEFAULT_BRANCH_ID
        self._current_branch_lock = threading.RLock()
        self._state_lock = threading.RLock()

    # ---- what programs call ------------------------------------------------------------------

    def snapshot(self) -> str | None:
        """Takes a snapshot of the current branch. Its id; None when that failed."""
        with self._current_branch_lock:
            return self._take(self._current)

    def restore(self, snapshot_id: str) -> bool:
        """Makes a snapshot the state of the current branch. What has changed since the last one is lost."""
        with self._current_branch_lock, self._operating(self._current) as state:
            way = self._way_to(snapshot_id)
            if way is None:
                return False
            physical, replayed = way
            done, seconds = self._core_restore(physical, state.branch_id)
            if not done:
                logger.error("Snapshot %s could not be restored.", snapshot_id)
                return False
            self._stats.add_entry("restore", physical, seconds, branch_id=self._current)
            same = all(self._run_again(node) for node in replayed)
            self._set_branch_position(self._current, snapshot_id)
            return same

    def exec_command(self, command: Command, timeout: float | None = None) -> Ran:
        """Runs a command in the current branch."""
        with self._current_branch_lock:
            return self._run(self._current, command, timeout)

    def copy_in(self, host_src: str, path: str) -> bool:
        """Copies a file or a folder of this machine into the current branch."""
        with self._current_branch_lock:
            return self._copy(self._current, host_src, path, into=True)

    def copy_out(self, path: str, host_dst: str) -> bool:
        """Copies a file or a folder of the current branch to this machine."""
        with self._current_branch_lock:
            return self._copy(self._current, host_dst, path, into=False)

    def cleanup(self) -> bool:
        """Removes everything that the backend has of it."""
        with self._current_branch_lock:
            done = self._core_cleanup()
            self.is_cleaned_up = True
            return done is not False

    def list_snapshots(self) -> list[str]:
        """The physical ones, oldest first."""
        with self._state_lock:
            return [*self.snapshots]

    def print_snapshot_tree(self) -> str:
        """The tree as text, with the branches that stand at each snapshot."""
        with self._state_lock:
            standing: dict[str | None, list[str]] = {}
            for state in self._branches.values():
                standing.setdefault(state.current_snapshot_id, []).append(state.branch_id)
            tops = [
                node for node in self.snapshot_graph.values() if node.parent_id not in self.snapshot_graph
            ]
            waiting = [(node, 1) for node in reversed(tops)]
            lines = ["Snapshot Tree:"]
            while waiting:
                node, depth = waiting.pop()
                here = ", ".join(sorted(standing.get(node.snapshot_id, ())))
                lines.append(f"{' ' * (2 * depth - 1)}- {node.snapshot_id}{here and f' (current: {here})'}")
                below = (self.snapshot_graph[child] for child in reversed(node.children))
                waiting += [(child, depth + 1) for child in below]
        return "\n".join(lines) + "\n" if len(lines) > 1 else "No snapshot tree available.\n"

    @property
    def current_snapshot(self) -> str | None:
        """Where the current branch stands."""
        return self._get_branch_state().current_snapshot_id

    current_snapshot_id = current_snapshot

    @property
    def last_snapshot_id(self) -> str | None:
        return self._get_branch_state().last_snapshot_id

    @property
    def backend(self) -> str:
        return self.backend_name

    @property
    def stats(self) -> BenchmarkStats:
        """How long things took."""
        return self._stats

    # ---- hooks: what a backend fills in ------------------------------------------------------

    @abstractmethod
    def _core_snapshot(self, branch_id: str) -> tuple[str | None, float]:
        """Takes a physical snapshot and registers what the backend calls it. Its id, and the seconds."""

    @abstractmethod
    def _core_restore(self, snapshot_id: str, branch_id: str) -> tuple[bool, float]:
        """Takes a branch to a physical snapshot. When that fails, the branch is as before."""

    @abstractmethod
    def _core_cleanup(self) -> bool | None:
        """Removes what the backend has. May be called twice. False when something stays."""

    def _core_exec(self, command: Command, timeout: float | None, branch_id: str) -> Ran:
        """Runs a command in a branch."""
        return BACKEND_FAILED, "", f"{self.backend_name} runs no commands."

    def _core_copy(
        self,
        branch_id: str,
        host_path: str,
        env_path: str,
        into: bool,
    ) -> tuple[bool, str]:
        """Copies into a branch, or out of it. Whether that worked, and why not."""
        return False, f"{self.backend_name} copies no files."

    # ---- what hooks and managers use ---------------------------------------------------------

    def _get_current_branch_id(self) -> str:
        with self._state_lock:
            return self._current

    def _set_current_branch(self, branch_id: str) -> None:
        with self._current_branch_lock, self._state_lock:
            self._current = self._get_branch_state(branch_id).branch_id

    def _get_branch_state(self, branch_id: str | None = None) -> BranchState:
        """KeyError when there is no such branch."""
        with self._state_lock:
            return self._branches[self._current if branch_id is None else branch_id]

    def _set_branch_position(self, branch_id: str, snapshot_id: str | None) -> BranchState:
        """A branch, perhaps a new one, stands at a snapshot."""
        with self._state_lock:
            state = self._branches.setdefault(branch_id, BranchState(branch_id))
            state.stand_at(snapshot_id)
            state.cumulative_exec_time, state.active = 0.0, True
            return state

    def _register_snapshot_resource(self, snapshot_id: str, resource_id: str) -> None:
        with self._state_lock:
            self.snapshots[snapshot_id] = resource_id

    def _record_snapshot_node(self, node: SnapshotNode) -> None:
        with self._state_lock:
            self.snapshot_graph[node.snapshot_id] = node
            parent = self.snapshot_graph.get(node.parent_id or "")
            if parent and node.snapshot_id not in parent.children:
                parent.children.append(node.snapshot_id)

    @contextlib.contextmanager
    def _operating(self, branch_id: str) -> Iterator[BranchState]:
        """One operation at a time on a branch. _Gone when there is no such branch (any more)."""
        with self._state_lock:
            state = self._branches.get(branch_id)
        if state is None:
            raise _Gone(branch_id)
        with state.operation_lock:
            if not state.active:
                raise _Gone(branch_id)
            yield state

    def _take(self, branch_id: str, *, physical: bool = False) -> str | None:
        with self._operating(branch_id) as state:
            seconds = state.cumulative_exec_time
            node = SnapshotNode(
                snapshot_id=f"v{uuid.uuid4().hex[:7]}",
                parent_id=state.last_snapshot_id,
                is_virtual=not physical and not self.decider.decide(DecisionContext(seconds)),
                replay_commands=state.command_log,
                replay_exit_codes=state.exit_codes,
            )
            if not node.is_virtual:
                snapshot_id, took = self._core_snapshot(branch_id)
                if snapshot_id is None:
                    logger.error("No snapshot of branch %s could be taken.", branch_id)
                    return None
                self._stats.add_entry("snapshot", snapshot_id, took, branch_id=branch_id)
                node, seconds = SnapshotNode(snapshot_id, node.parent_id), 0.0
            self._record_snapshot_node(node)
            with self._state_lock:
                state.stand_at(node.snapshot_id)
                state.cumulative_exec_time = seconds
            self._snapshot_taken(branch_id, node.snapshot_id)
            self.is_cleaned_up = False
            return node.snapshot_id

    def _snapshot_taken(self, branch_id: str, snapshot_id: str) -> None:  # noqa: B027 - need not be filled in
        """For managers that keep more of a branch."""

    def _way_to(self, snapshot_id: str) -> tuple[str, list[SnapshotNode]] | None:
        """The physical snapshot to begin at, and the virtual ones from there. None when there is no way."""
        replayed: list[SnapshotNode] = []
        with self._state_lock:
            node = self.snapshot_graph.get(snapshot_id)
            while node and node.is_virtual and node not in replayed:
                replayed.insert(0, node)
                node = self.snapshot_graph.get(node.parent_id or "")
        if node is None or node.is_virtual:
            logger.error("Snapshot %s not found, or none that it can be made from.", snapshot_id)
            return None
        return node.snapshot_id, replayed

    def _run_again(self, node: SnapshotNode) -> bool:
        """Whether each command ends as it did."""
        for command, before in zip(node.replay_commands, node.replay_exit_codes, strict=True):
            exit_code, _, problem = self._run(self._current, command, None)
            if exit_code != before:
                logger.error("%s exited with %s and not with %s: %s", command, exit_code, before, problem)
                return False
        return True

    def _run(self, branch_id: str, command: Command, timeout: float | None) -> Ran:
        try:
            with self._operating(branch_id) as state:
                began = time.monotonic()
                try:
                    ran = self._core_exec(command=command, timeout=timeout, branch_id=branch_id)
                except Exception as error:  # noqa: BLE001 - a backend's; programs expect a value
                    logger.error("Nothing ran on branch %s: %s", branch_id, error)  # noqa: TRY400
                    ran = BACKEND_FAILED, "", str(error)
                seconds = time.monotonic() - began
                with self._state_lock:
                    state.command_log.append(command)
                    state.exit_codes.append(ran[0])
                    state.cumulative_exec_time += seconds
                    target = state.current_snapshot_id or "<none>"
                self._stats.add_entry("exec", target, seconds, branch_id=branch_id)
                return ran
        except _Gone:
            return BACKEND_FAILED, "", f"Branch {branch_id} not found."

    def _copy(self, branch_id: str, host_path: str, env_path: str, *, into: bool) -> bool:
        try:
            with self._operating(branch_id):
                done, problem = self._core_copy(branch_id, host_path, env_path, into)
        except _Gone:
            done, problem = False, "the branch is not there"
        if not done:
            direction = "into" if into else "out of"
            logger.error("%s was not copied %s branch %s: %s", env_path, direction, branch_id, problem)
        return done


BranchT = TypeVar("BranchT", bound=EnvironmentBranch)


class ForkableEnvironmentManager(EnvironmentManager, Generic[BranchT]):
    """Several environments that live side by side. Snapshots are physical."""

    def __init__(self, backend_name: str = "Waypoint", decider: Decider | None = None) -> None:
        if decider is not None and not isinstance(decider, AlwaysTrueDecider):
            raise ValueError("A forkable manager has physical snapshots only: no other decider is possible.")
        super().__init__(backend_name, decider)
        self._live_branches: dict[str, BranchT] = {}
        self._branch_registry_lock = threading.RLock()

    # ---- what programs call ------------------------------------------------------------------

    @property
    def current_branch_id(self) -> str:
        """The branch that `snapshot`, `restore`, `exec_command` and the like are about."""
        return self._get_current_branch_id()

    @property
    def live_branches(self) -> list[BranchT]:
        """As they were last known."""
        with self._state_lock:
            return [*self._live_branches.values()]

    def list_branches(self) -> list[BranchT]:
        """As the backend has them now."""
        with self._branch_registry_lock:
            branches = self._core_list_branches()
            if branches is None:
                return self.live_branches
            with self._state_lock:
                gone = self._live_branches.keys() - {branch.id for branch in branches}
                self._live_branches = {branch.id: branch for branch in branches}
                for branch_id in gone - {DEFAULT_BRANCH_ID, self._current}:
                    self._forget_branch(branch_id)
                for branch in branches:
                    state = self._branches.get(branch.id)
                    # Another manager or process may have taken it further.
                    if state is None or state.last_snapshot_id != (branch.base_snapshot_id or None):
                        self._set_branch_position(branch.id, branch.base_snapshot_id or None)
            return branches

    def fork(self, snapshot_id: str, n: int = 1, ids: list[str] | None = None) -> list[BranchT]:
        """`n` live branches from a snapshot, or one for each id. Those that could be made."""
        with self._branch_registry_lock:
            wanted: list[str | None] = [*ids] if ids is not None else [None] * n
            with self._state_lock:
                taken = {*self._live_branches, DEFAULT_BRANCH_ID}
                known = snapshot_id in self.snapshots
            problem = ""
            if not known:
                problem = f"there is no physical snapshot {snapshot_id}"
            elif ids is not None and (len({*ids}) < len(ids) or taken & {*ids}):
                problem = f"each of the ids {', '.join(ids)} has to be a new one"
            if problem:
                logger.error("No branches were made: %s.", problem)
                return []
            return self._make_branches(snapshot_id, wanted) if wanted else []

    def snapshot_branch(self, branch_id: str, *, park: bool = False) -> str | None:
        """Takes a snapshot of a branch; `park`: and ends the branch."""
        if park:
            return self.park_branch(branch_id)
        if self._may(branch_id, "take a snapshot of"):
            with contextlib.suppress(_Gone):
                return self._take(branch_id, physical=True)
        return None

    def exec_on_branch(self, branch_id: str, command: Command, timeout: float | None = None) -> Ran:
        """Runs a command in a branch."""
        return self._run(branch_id, command, timeout)

    def copy_in_branch(self, branch_id: str, host_src: str, path: str) -> bool:
        return self._copy(branch_id, host_src, path, into=True)

    def copy_out_branch(self, branch_id: str, path: str, host_dst: str) -> bool:
        return self._copy(branch_id, host_dst, path, into=False)

    def park_branch(self, branch_id: str) -> str | None:
        """Takes a snapshot of a branch and ends it. The current one may be parked: then the default branch is
        the current one."""
        if not self._may(branch_id, "park", DEFAULT_BRANCH_ID):
            return None
        with (
            contextlib.suppress(_Gone),
            self._current_branch_lock,
            self._operating(branch_id) as state,
            self._branch_registry_lock,
        ):
            snapshot_id, seconds = self._core_park_branch(branch_id)
            if snapshot_id is None:
                logger.error("Branch %s could not be parked.", branch_id)
                return None
            self._record_snapshot_node(SnapshotNode(snapshot_id, state.last_snapshot_id))
            self._stats.add_entry("park", snapshot_id, seconds, branch_id=branch_id)
            if branch_id == self._current:
                self._set_current_branch(DEFAULT_BRANCH_ID)
            self._forget_branch(branch_id)
            return snapshot_id
        return None

    def discard_branch(self, branch_id: str) -> bool:
        """Ends a branch that is not the current one. What is in no snapshot is lost."""
        with self._current_branch_lock:
            return self._discard(branch_id, DEFAULT_BRANCH_ID, self._current)

    @property
    def current_fork_id(self) -> str:
        """An older name of `current_branch_id`, as the next ones are of others."""
        return self.current_branch_id

    @property
    def live_forks(self) -> list[BranchT]:
        return self.live_branches

    def list_forks(self) -> list[BranchT]:
        return self.list_branches()

    def destroy_fork(self, fork_id: str) -> bool:
        return self.discard_branch(fork_id)

    # ---- hooks -------------------------------------------------------------------------------

    @abstractmethod
    def _core_fork(self, snapshot_id: str, requested_ids: list[str | None]) -> list[tuple[BranchT, float]]:
        """Makes live branches, for None with an id of its choice. Those that could be made, each with the
        seconds."""

    @abstractmethod
    def _core_discard_branch(self, branch_id: str) -> bool:
        """Ends a branch. True only when it is gone."""

    @abstractmethod
    def _core_park_branch(self, branch_id: str) -> tuple[str | None, float]:
        """Takes a snapshot of a branch, registers it, and ends the branch."""

    @abstractmethod
    def _core_list_branches(self) -> list[BranchT] | None:
        """The branches that live now; None when that cannot be found out."""

    # ---- inside ------------------------------------------------------------------------------

    def _core_restore(self, snapshot_id: str, branch_id: str) -> tuple[bool, float]:
        """The new branch is there before the old one ends."""
        began = time.monotonic()
        made = self._make_branches(snapshot_id, [None])
        if not made:
            return False, time.monotonic() - began
        self._set_current_branch(made[0].id)
        if branch_id != DEFAULT_BRANCH_ID and not self._discard(branch_id, DEFAULT_BRANCH_ID):
            logger.warning("Branch %s could not be ended: it stays live.", branch_id)
        return True, time.monotonic() - began

    def _may(self, branch_id: str, verb: str, *but: str) -> bool:
        """Whether that can be done with a live branch; if not, the log says why. `but`: branches of which it
        is refused."""
        with self._state_lock:
            known = branch_id in self._live_branches
        if known and branch_id not in but:
            return True
        why = "it is the default or the current one" if branch_id in but else "it is not there"
        logger.error("Cannot %s branch %s: %s.", verb, branch_id, why)
        return False

    def _make_branches(self, snapshot_id: str, ids: list[str | None]) -> list[BranchT]:
        with self._branch_registry_lock:
            made = self._core_fork(snapshot_id, ids)
            for branch, seconds in made:
                self._set_branch_position(branch.id, branch.base_snapshot_id)
                with self._state_lock:
                    self._live_branches[branch.id] = branch
                self._stats.add_entry("fork", branch.id, seconds, branch_id=branch.id)
            return [branch for branch, _ in made]

    def _discard(self, branch_id: str, *but: str) -> bool:
        if not self._may(branch_id, "discard", *but):
            return False
        with (
            contextlib.suppress(_Gone),
            self._operating(branch_id),
            self._branch_registry_lock,
        ):
            if not self._core_discard_branch(branch_id):
                return False
            self._forget_branch(branch_id)
            return True
        return False

    def _forget_branch(self, branch_id: str) -> None:
        with self._state_lock:
            self._live_branches.pop(branch_id, None)
            if state := self._branches.pop(branch_id, None):
                state.active = False

    def _snapshot_taken(self, branch_id: str, snapshot_id: str) -> None:
        with self._state_lock:
            if branch := self._live_branches.get(branch_id):
                branch.base_snapshot_id = snapshot_id


class WaypointFork(EnvironmentBranch):
    """A branch that is a session."""

    def __init__(
        self,
        id: str,
        pid: int = 0,
        socket: str = "",
        base_checkpoint: str = "",
        restore_duration: str | None = None,
        status: str = "running",
        *,
        base_snapshot_id: str | None = None,
        session: str = "",
    ) -> None:
        super().__init__(id, base_checkpoint if base_snapshot_id is None else base_snapshot_id, status)
        self.pid, self.socket, self.restore_duration = pid, socket, restore_duration
        self.session = session
        """Its name for `waypoint`."""

    @classmethod
    def of(cls, machine: Machine, seconds: float | None = None) -> WaypointFork:
        return cls(
            machine.id,
            pid=machine.pid,
            base_snapshot_id=machine.checkpoint or "",
            restore_duration=None if seconds is None else f"{seconds * 1000:.0f}ms",
            status=machine.status,
            session=machine.session.name,
        )

    @property
    def base_checkpoint(self) -> str:
        """An older name of `base_snapshot_id`."""
        return self.base_snapshot_id


class WaypointAttachManager(ForkableEnvironmentManager[WaypointFork]):
    """A session that exists, as the branch `main`; its forks are further branches. Its points, and those of
    the branches that other programs have made, are in the tree. `cleanup` removes all of it."""

    def __init__(
        self, session_id: str, target_pid: int | None = None, decider: Decider | None = None, **options: Any
    ) -> None:
        """`target_pid`: of old programs, not used. `options`: of `Machines`."""
        super().__init__("Waypoint", decider)
        del target_pid
        self.session_id = session_id
        self.machines = Machines(session_id, **options)
        """The sessions behind it."""
        self._stats.sizes = self.machines.sizes
        self.sync_snapshot_tree()
        self.list_branches()
        if self._take(DEFAULT_BRANCH_ID) is None:
            raise RuntimeError(f"No first snapshot of {session_id} could be taken.")

    def sync_snapshot_tree(self) -> int:
        """Takes over what others have added to the tree. How many snapshots that were."""
        new = [one for one in self.machines.checkpoints() if one.id not in self.snapshots]
        for one in new:
            self._register_snapshot_resource(one.id, one.point)
            self._record_snapshot_node(SnapshotNode(one.id, one.parent_id))
        return len(new)

    def _core_snapshot(self, branch_id: str) -> tuple[str | None, float]:
        return self._checkpoint(branch_id, park=False)

    def _core_park_branch(self, branch_id: str) -> tuple[str | None, float]:
        return self._checkpoint(branch_id, park=True)

    def _checkpoint(self, branch_id: str, *, park: bool) -> tuple[str | None, float]:
        began, snapshot_id = time.monotonic(), new_id("s")
        try:
            point = self.machines.checkpoint(branch_id, snapshot_id, park=park)
        except errors.WaypointError as error:
            _report(error)
            return None, time.monotonic() - began
        self._register_snapshot_resource(snapshot_id, point)
        return snapshot_id, time.monotonic() - began

    def _core_fork(
        self, snapshot_id: str, requested_ids: list[str | None]
    ) -> list[tuple[WaypointFork, float]]:
        def make(branch_id: str | None) -> tuple[WaypointFork, float] | None:
            began = time.monotonic()
            try:
                machine = self.machines.fork(snapshot_id, branch_id)
            except errors.WaypointError as error:
                _report(error)
                return None
            seconds = time.monotonic() - began
            return WaypointFork.of(machine, seconds), seconds

        with ThreadPoolExecutor(min(len(requested_ids), _FORKS_AT_ONCE)) as threads:
            return [made for made in threads.map(make, requested_ids) if made]

    def _core_discard_branch(self, branch_id: str) -> bool:
        try:
            self.machines.end(branch_id)
        except errors.WaypointError as error:
            _report(error)
            return False
        return True

    def _core_list_branches(self) -> list[WaypointFork] | None:
        try:
            machines = self.machines.live()
        except errors.WaypointError as error:
            _report(error)
            return None
        known = {branch.id: branch for branch in self.live_branches}
        branches = [WaypointFork.of(machine) for machine in machines]
        for branch in branches:
            if before := known.get(branch.id):
                branch.restore_duration = before.restore_duration
        return branches

    def _core_exec(self, command: Command, timeout: float | None, branch_id: str) -> Ran:
        result = self.machines.run(branch_id, command, timeout)
        if result.timed_out:
            return TIMED_OUT, result.output, f"[timeout after {timeout}s]"
        if result.exit_code is None:
            return BACKEND_FAILED, result.output, f"Branch {branch_id} has ended."
        return result.exit_code, result.output, ""

    def _core_copy(
        self,
        branch_id: str,
        host_path: str,
        env_path: str,
        into: bool,
    ) -> tuple[bool, str]:
        try:
            self.machines.copy(branch_id, host_path, env_path, into=into)
        except errors.WaypointError as error:
            return False, _worded(error)
        return True, ""

    def _core_cleanup(self) -> bool:
        try:
            self.machines.remove()
        except errors.WaypointError as error:
            _report(error)
            return False
        return True


class WaypointBuildManager(WaypointAttachManager):
    """A new session. It is removed with its snapshots by `cleanup`, or with this object."""

    def __init__(
        self,
        dockerfile_dir: str | None = ".",
        build: bool = True,
        decider: Decider | None = None,
        **options: Any,
    ) -> None:
        """`dockerfile_dir`: of the Dockerfile to carry out; with `build=False` a root file system.
        `options`: of `Machines.start`, as for `waypoint.session`."""
        machines = Machines.start(dockerfile_dir or ".", build=build, **options)
        self._removal = weakref.finalize(self, machines.remove)
        super().__init__(machines.id, decider=decider)

    @property
    def work_dir(self) -> str:
        """A name only, as with StateFork: files go in and out with `copy_in` and `copy_out`."""
        return self.machines.folder

    def _core_cleanup(self) -> bool:
        done = super()._core_cleanup()
        if done:
            self._removal.detach()
        return done


def create_env_manager(method: str, **options: Any) -> EnvironmentManager:
    """A manager by StateFork's name: `waypoint_build` (`dockerfile_dir`, `build`) or `waypoint_attach`
    (`session_id`). ValueError for its other backends: they are StateFork's own."""
    match method.replace("ckpt_", "waypoint_"):
        case "waypoint_build":
            return WaypointBuildManager(**options)
        case "waypoint_attach":
            return WaypointAttachManager(**options)
    raise ValueError(f"Unknown method: {method} (there are: waypoint_build, waypoint_attach)")


def _worded(error: errors.WaypointError) -> str:
    return f"{error.message} {error.hint}".strip()


def _report(error: errors.WaypointError) -> None:
    logger.error("%s", _worded(error))
