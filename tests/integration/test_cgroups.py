"""Limits of boxes on the real kernel, with whatever control groups this machine has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from waypoint.errors import MachineError, MissingFeature, UsageError
from waypoint.kernel import cgroups
from waypoint.kernel.cgroups import Cgroup, Hierarchy, Limits
from waypoint.kernel.mounts import parse_mountinfo

if TYPE_CHECKING:
    from collections.abc import Iterator

TAG = "cgtest"
MEBIBYTE = 1 << 20

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")


def available(controller: str) -> bool:
    return any(controller in tree.controllers for tree in cgroups.hierarchies())


def needs(controller: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not available(controller), reason=f"no {controller} controller here")


def boxes_with_groups(tag: str = TAG) -> set[str]:
    prefix = f"waypoint-{tag}-"
    folders = [folder for tree in cgroups.hierarchies() for folder in tree.path.glob(f"{prefix}*")]
    return {folder.name.removeprefix(prefix) for folder in folders}


def count(group: Cgroup, *files: str) -> int | None:
    """A number that the kernel keeps in one of these files of a group."""
    present = [path for folder in group.folders for file in files if (path := folder / file).exists()]
    return int(present[0].read_text()) if present else None


def oom_kills(group: Cgroup) -> int:
    """How many processes of a group the kernel has ended because the memory limit was reached."""
    for folder, version in group.folders.items():
        events = folder / ("memory.events" if version == 2 else "memory.oom_control")
        lines = events.read_text().splitlines() if events.exists() else []
        if match := [line.split()[1] for line in lines if line.split()[0] == "oom_kill"]:
            return int(match[0])
    return 0


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fails a test that leaves a control group behind."""
    assert boxes_with_groups() == set()
    yield
    left = boxes_with_groups()
    for box_id in left:
        cgroups.find(TAG, box_id).remove()
    assert left == set()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def run_in(group: Cgroup, script: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a group, from its first instruction on."""

    def enter() -> None:
        for path in group.procs_files:
            path.write_text("0")

    return subprocess.run(
        [sys.executable, "-c", script], preexec_fn=enter, capture_output=True, text=True, check=False
    )


def unified() -> Path:
    for tree in cgroups.hierarchies():
        if tree.version == 2:
            return tree.path
    pytest.skip("no version 2 tree is mounted here")


@pytest.mark.parametrize(
    "limits", [{"memory_bytes": 0}, {"cpus": 0.001}, {"cpus": float("nan")}, {"pids": 1}]
)
def test_limits_that_nothing_can_run_in_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Limits(**limits)  # type: ignore[arg-type]


def test_both_generations_are_found_in_the_mount_table(tmp_path: Path) -> None:
    both = tmp_path / "with space"
    both.mkdir()
    (both / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    escaped = str(both).replace(" ", "\\040")
    table = (
        "22 27 0:21 / /proc rw - proc proc rw\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
        "36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
        f"41 31 0:38 / {escaped} rw - cgroup2 cgroup2 rw\n"
    )
    assert cgroups.hierarchies(parse_mountinfo(table)) == [
        Hierarchy(1, Path("/sys/fs/cgroup/memory"), frozenset({"memory"})),
        Hierarchy(1, Path("/sys/fs/cgroup/cpu,cpuacct"), frozenset({"cpu"})),
        Hierarchy(2, both, frozenset({"cpu", "memory", "pids"})),
    ]


def test_a_limit_without_its_controller_is_an_error_with_a_hint() -> None:
    trees = [Hierarchy(1, Path("/nonexistent"), frozenset({"pids"}))]
    with pytest.raises(MissingFeature, match="memory") as caught:
        cgroups.create(TAG, "box", Limits(memory_bytes=64 * MEBIBYTE, pids=5), trees=trees)
    assert "cgroup_enable" in caught.value.hint


def test_names_cannot_lead_out_of_the_tree() -> None:
    for tag, box_id in (("..", "x"), (TAG, "../x"), ("a-b", "x"), (TAG, "a/b")):
        with pytest.raises(UsageError):
            cgroups.create(tag, box_id, Limits(pids=5))


@needs_root
class TestOnThisKernel:
    def test_without_limits_no_process_is_moved(self, sleeper: subprocess.Popen[bytes]) -> None:
        before = Path(f"/proc/{sleeper.pid}/cgroup").read_text()
        group = cgroups.create(TAG, "box")
        assert group.procs_files == ()
        group.add(sleeper.pid)
        assert Path(f"/proc/{sleeper.pid}/cgroup").read_text() == before
        group.remove()
        assert boxes_with_groups() == set()

    def test_the_group_of_a_tree_is_found_again_and_goes_with_the_others(self) -> None:
        folder = unified() / f"waypoint-{TAG}-box" / "tree"
        group = cgroups.create(TAG, "box")
        assert group.tree == folder
        assert not cgroups.is_frozen(folder)
        again = cgroups.find(TAG, "box")
        assert again.tree == folder
        again.remove()
        assert not folder.parent.exists()

    @needs("pids")
    def test_a_group_is_found_again_and_removed_once(self, sleeper: subprocess.Popen[bytes]) -> None:
        group = cgroups.create(TAG, "box-1", Limits(pids=10))
        group.add(sleeper.pid)
        assert boxes_with_groups() == {"box-1"}
        assert boxes_with_groups("other") == set()
        again = cgroups.find(TAG, "box-1")
        assert set(again.folders) == set(group.folders)
        assert count(again, "pids.current") == 1
        sleeper.kill()
        sleeper.wait()
        again.remove()
        again.remove()
        group.remove()
        assert cgroups.find(TAG, "box-1").folders == {}

    @needs("pids")
    def test_removal_waits_for_processes_that_are_ending(self, sleeper: subprocess.Popen[bytes]) -> None:
        group = cgroups.create(TAG, "box", Limits(pids=10))
        group.add(sleeper.pid)
        os.kill(sleeper.pid, signal.SIGKILL)
        group.remove()

    @needs("pids")
    def test_a_group_in_use_is_not_removed_and_says_by_whom(
        self, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cgroups, "_REMOVE_SECONDS", 0.05)
        group = cgroups.create(TAG, "box", Limits(pids=10))
        group.add(sleeper.pid)
        with pytest.raises(MachineError) as caught:
            group.remove()
        assert caught.value.details["pids"] == [sleeper.pid]
        sleeper.kill()
        sleeper.wait()
        group.remove()

    @needs("pids")
    def test_a_process_that_is_gone_cannot_be_added(self) -> None:
        group = cgroups.create(TAG, "box", Limits(pids=10))
        with pytest.raises(MachineError, match="cannot put process"):
            group.add(2**22 + 1)
        group.remove()

    @needs("memory")
    def test_memory_is_limited_counted_and_its_victims_too(self) -> None:
        group = cgroups.create(TAG, "box", Limits(memory_bytes=48 * MEBIBYTE))
        assert oom_kills(group) == 0
        modest = run_in(group, "x = bytearray(4 << 20); print(len(x))")
        assert modest.stdout == f"{4 * MEBIBYTE}\n"
        greedy = run_in(group, "x = bytearray(256 << 20); print(len(x))")
        assert greedy.returncode == -signal.SIGKILL
        assert oom_kills(group) == 1
        used_bytes = count(group, "memory.current", "memory.usage_in_bytes")
        assert used_bytes is not None
        assert used_bytes <= 48 * MEBIBYTE
        peak_bytes = count(group, "memory.peak", "memory.max_usage_in_bytes")
        if peak_bytes is not None:
            assert 40 * MEBIBYTE <= peak_bytes <= 48 * MEBIBYTE
        group.remove()

    @needs("pids")
    def test_the_number_of_processes_is_limited(self) -> None:
        group = cgroups.create(TAG, "box", Limits(pids=6))
        script = (
            "import os, signal, sys\n"
            "children = []\n"
            "try:\n"
            "    while len(children) < 20:\n"
            "        pid = os.fork()\n"
            "        if not pid:\n"
            "            signal.pause()\n"
            "        children.append(pid)\n"
            "except BlockingIOError:\n"
            "    print(len(children))\n"
            "for pid in children:\n"
            "    os.kill(pid, signal.SIGKILL)\n"
        )
        assert run_in(group, script).stdout == "5\n"
        group.remove()

    @needs("cpu")
    def test_processor_time_is_limited(self) -> None:
        group = cgroups.create(TAG, "box", Limits(cpus=0.25))
        script = (
            "import time\n"
            "started, used = time.monotonic(), time.process_time()\n"
            "while time.monotonic() - started < 1: pass\n"
            "print((time.process_time() - used) / (time.monotonic() - started))\n"
        )
        assert float(run_in(group, script).stdout) < 0.5
        group.remove()

    def test_limits_are_in_force_before_anybody_is_in(self) -> None:
        if not all(map(available, ("memory", "cpu", "pids"))):
            pytest.skip("not all controllers are here")
        group = cgroups.create(TAG, "box", Limits(memory_bytes=64 * MEBIBYTE, cpus=1.5, pids=32))
        written = {
            file: (folder / file).read_text().strip()
            for folder, version in group.folders.items()
            for files in cgroups.limit_files(version, Limits(64 * MEBIBYTE, 1.5, 32)).values()
            for file, _ in files
            if (folder / file).exists()
        }
        expected = (
            {"memory.max": str(64 * MEBIBYTE), "cpu.max": "150000 100000", "pids.max": "32"}
            if "cpu.max" in written
            else {"memory.limit_in_bytes": str(64 * MEBIBYTE), "cpu.cfs_quota_us": "150000", "pids.max": "32"}
        )
        assert written.items() >= expected.items()
        group.remove()


class TestVersion2:
    def test_a_version_2_group_has_all_its_limits_in_one_folder(self, tmp_path: Path) -> None:
        """On a folder that looks like a tree, so that it runs on machines without one."""
        (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
        trees = [Hierarchy(2, tmp_path, frozenset({"cpu", "memory", "pids"}))]
        group = cgroups.create(TAG, "box", Limits(64 * MEBIBYTE, 0.5, 32), trees=trees)
        folder = tmp_path / f"waypoint-{TAG}-box"
        assert dict(group.folders) == {folder: 2}
        assert group.procs_files == (folder / "cgroup.procs",)
        assert {file.name: file.read_text() for file in folder.iterdir()} == {
            "memory.max": str(64 * MEBIBYTE),
            "cpu.max": "50000 100000",
            "pids.max": "32",
        }
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"

    def test_swap_is_limited_where_it_is_accounted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "cgroup.subtree_control").write_text("memory pids\n")
        folder = tmp_path / f"waypoint-{TAG}-box"
        folder.mkdir()
        (folder / "memory.swap.max").write_text("max\n")
        trees = [Hierarchy(2, tmp_path, frozenset({"memory"}))]
        cgroups.create(TAG, "box", Limits(memory_bytes=64 * MEBIBYTE), trees=trees)
        assert (folder / "memory.swap.max").read_text() == "0"

    @needs_root
    def test_a_controller_that_is_not_handed_down_is_missing(self) -> None:
        path = unified()
        offered = (path / "cgroup.controllers").read_text().split()
        if "pids" in offered:
            pytest.skip("the version 2 tree of this machine has it")
        trees = [Hierarchy(2, path, frozenset({"pids"}))]
        with pytest.raises(MissingFeature, match="pids"):
            cgroups.create(TAG, "box", Limits(pids=5), trees=trees)

    @needs_root
    def test_processes_go_in_and_the_folder_goes_away_on_a_real_tree(
        self, sleeper: subprocess.Popen[bytes]
    ) -> None:
        folder = unified() / f"waypoint-{TAG}-box"
        folder.mkdir()
        group = cgroups.find(TAG, "box")
        assert dict(group.folders) == {folder: 2}
        group.add(sleeper.pid)
        assert (folder / "cgroup.procs").read_text() == f"{sleeper.pid}\n"
        sleeper.kill()
        started = time.monotonic()
        group.remove()
        assert time.monotonic() - started < 2
        assert not folder.exists()
