"""StateFork's contract, as its managers keep it over any backend: here one in memory."""

from __future__ import annotations

import threading

import pytest

from waypoint.adapters.statefork import (
    DEFAULT_BRANCH_ID,
    AlwaysFalseDecider,
    Decider,
    EnvironmentBranch,
    EnvironmentManager,
    ForkableEnvironmentManager,
    SnapshotNode,
    ThresholdDecider,
    create_env_manager,
)
from waypoint.adapters.statefork_records import BenchmarkStats, Command


class Counter(EnvironmentManager):
    """Its state is a number; a command is a number to add, or `set N`."""

    def __init__(self, decider: Decider | None = None) -> None:
        super().__init__("Counter", decider)
        self.value, self.saved, self.broken = 0, {"root": 0}, False
        self._register_snapshot_resource("root", "root")
        self._record_snapshot_node(SnapshotNode("root", None))
        self._set_branch_position(DEFAULT_BRANCH_ID, "root")

    def _core_snapshot(self, branch_id: str) -> tuple[str | None, float]:
        assert branch_id == DEFAULT_BRANCH_ID
        if self.broken:
            return None, 0.0
        name = f"s{len(self.saved)}"
        self.saved[name] = self.value
        self._register_snapshot_resource(name, name)
        return name, 0.0

    def _core_restore(self, snapshot_id: str, branch_id: str) -> tuple[bool, float]:
        assert branch_id == DEFAULT_BRANCH_ID
        if not self.broken:
            self.value = self.saved[snapshot_id]
        return not self.broken, 0.0

    def _core_exec(self, command: Command, timeout: float | None, branch_id: str) -> tuple[int, str, str]:
        assert (timeout, branch_id) == (None, DEFAULT_BRANCH_ID)
        self.value += int(str(command))
        return self.value % 2, str(self.value), ""

    def _core_cleanup(self) -> bool:
        return not self.broken


class Forest(ForkableEnvironmentManager[EnvironmentBranch]):
    """Branches that do nothing."""

    def __init__(self) -> None:
        super().__init__("Forest")
        self.full = False
        self._register_snapshot_resource("root", "root")
        self._record_snapshot_node(SnapshotNode("root", None))
        self._set_branch_position(DEFAULT_BRANCH_ID, "root")
        self._live_branches[DEFAULT_BRANCH_ID] = EnvironmentBranch(DEFAULT_BRANCH_ID, "root")

    def _core_snapshot(self, branch_id: str) -> tuple[str | None, float]:
        name = f"of-{branch_id}"
        self._register_snapshot_resource(name, name)
        return name, 0.0

    _core_park_branch = _core_snapshot

    def _core_fork(
        self, snapshot_id: str, requested_ids: list[str | None]
    ) -> list[tuple[EnvironmentBranch, float]]:
        number = len(self._live_branches)
        names = [name or f"b{number + at}" for at, name in enumerate(requested_ids)]
        return [] if self.full else [(EnvironmentBranch(name, snapshot_id), 0.0) for name in names]

    def _core_discard_branch(self, branch_id: str) -> bool:
        return branch_id != "stuck"

    def _core_list_branches(self) -> list[EnvironmentBranch] | None:
        return None if self.full else self.live_branches

    def _core_cleanup(self) -> None:
        return None


def test_a_virtual_snapshot_is_made_again_by_its_commands() -> None:
    manager = Counter(AlwaysFalseDecider())
    manager.exec_command("2")
    first = manager.snapshot()
    manager.exec_command("4")
    second = manager.snapshot()
    assert first
    assert second
    assert manager.list_snapshots() == ["root"]
    assert manager.snapshot_graph[second].replay_commands == ["4"]
    manager.exec_command("1")
    assert manager.restore(second)
    assert (manager.value, manager.current_snapshot) == (6, second)
    assert manager.restore(first)
    assert manager.value == 2


def test_a_restore_says_when_a_command_does_not_end_as_it_did() -> None:
    manager = Counter(AlwaysFalseDecider())
    manager.exec_command("2")
    snapshot = manager.snapshot()
    assert snapshot
    manager.saved["root"] = 1
    assert not manager.restore(snapshot)


def test_a_decider_is_asked_with_the_seconds_since_the_last_physical_snapshot() -> None:
    manager = Counter(ThresholdDecider(0.0))
    assert manager.snapshot() == "s1"
    assert manager.print_snapshot_tree() == "Snapshot Tree:\n - root\n   - s1 (current: main)\n"
    patient = Counter(ThresholdDecider(3600.0))
    patient.exec_command("1")
    assert str(patient.snapshot()).startswith("v")


def test_failures_are_values_and_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    manager = Counter()
    assert manager.exec_command("no number")[0] == -1
    manager.broken = True
    assert manager.snapshot() is None
    assert not manager.restore("root")
    assert not manager.restore("not there")
    assert not manager.copy_in("/a", "/b")
    assert not manager.cleanup()
    assert manager.current_snapshot == "root"
    assert all(record.name.startswith("EnvManager") for record in caplog.records)


def test_branches_are_made_taken_and_ended_by_name() -> None:
    manager = Forest()
    assert [branch.id for branch in manager.fork("root", ids=["left", "stuck"])] == ["left", "stuck"]
    assert manager.fork("root", ids=["left"]) == []
    assert manager.fork("root", ids=["main"]) == []
    assert manager.fork("elsewhere") == []
    assert len(manager.fork("root", 2)) == 2
    assert manager.snapshot_branch("left") == "of-left"
    assert manager.live_branches[1].base_snapshot_id == "of-left"
    assert manager.snapshot_branch("stuck", park=True) == "of-stuck"
    assert manager.exec_on_branch("stuck", "true") == (-1, "", "Branch stuck not found.")
    assert (manager.discard_branch("main"), manager.park_branch("main")) == (False, None)
    assert manager.discard_branch("left")
    assert not manager.discard_branch("left")
    assert manager.snapshot_branch("left") is None


def test_a_restore_goes_on_in_a_new_branch_and_main_stays() -> None:
    manager = Forest()
    assert manager.restore("root")
    first = manager.current_branch_id
    assert first != DEFAULT_BRANCH_ID
    assert not manager.discard_branch(first), "it is the current one"
    assert manager.restore("root")
    assert {branch.id for branch in manager.list_branches()} == {DEFAULT_BRANCH_ID, manager.current_branch_id}
    manager.full = True
    here = manager.current_branch_id
    assert not manager.restore("root")
    assert (manager.current_branch_id, len(manager.list_branches())) == (here, 2)
    assert manager.park_branch(here)
    assert manager.current_branch_id == DEFAULT_BRANCH_ID


def test_a_forkable_manager_takes_no_virtual_snapshots_and_other_backends_are_unknown() -> None:
    with pytest.raises(ValueError, match="physical snapshots only"):
        ForkableEnvironmentManager.__init__(Forest(), "x", AlwaysFalseDecider())
    with pytest.raises(ValueError, match="Unknown method: docker_build"):
        create_env_manager("docker_build")


def test_what_was_done_is_counted_by_several_threads_in_order() -> None:
    stats = BenchmarkStats(lambda: {"s1": 10, "s2": 30})

    def add() -> None:
        for _ in range(50):
            stats.add_entry("exec", "s1", 0.5)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [entry.sequence for entry in stats.log] == [*range(1, 201)]
    result = stats.get_all_statistics()
    assert (result.time["exec"].total, result.size["SNAPSHOTS"].mean) == (100.0, 20.0)
    assert stats.print_stats().startswith("[EXEC      ] mean=0.500000s")
    assert stats.print_size_details() == ">> s2: 30 B\n>> s1: 10 B"
