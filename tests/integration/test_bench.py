"""The benchmark, from its command line to its files, with the smallest of its workloads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from waypoint.bench import peers
from waypoint.bench.results import Report
from waypoint.bench.runner import Bench, throwaway_home
from waypoint.home import Home

from .conftest import Output


def _left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("waypoint-bench-")]


def test_a_run_measures_writes_and_leaves_nothing(
    home: Home, wp: Callable[..., Output], tmp_path: Path
) -> None:
    said = wp(
        *("bench", "--quick", "--only", "api", "--out", str(tmp_path / "out"), "--work", str(tmp_path)),
        "--json",
    )
    assert said.code == 0, said.err
    assert said.json["figures"]
    kept = Report.decode((tmp_path / "out" / "bench.json").read_bytes())
    ran = kept.find("api", "run true", "run", "api")
    assert ran
    assert ran.p50 > 0
    assert kept.machine.kernel == os.uname().release
    assert "criu" in kept.machine.versions
    assert (tmp_path / "out" / "bench.svg").stat().st_size > 1000
    assert "run true" in (tmp_path / "out" / "bench.md").read_text()
    assert not _left(tmp_path)
    mounts = Path("/proc/mounts").read_text()
    assert str(tmp_path) not in mounts


def test_bad_requests_are_refused_before_anything_is_made(
    home: Home, wp: Callable[..., Output], tmp_path: Path
) -> None:
    said = wp("bench", "--only", "speed", "--out", str(tmp_path / "out"), "--work", str(tmp_path), "--json")
    assert said.code != 0
    assert "fan-out" in said.json["error"]["hint"]
    said = wp("bench", "--peers", "vmware", "--out", str(tmp_path / "out"), "--work", str(tmp_path), "--json")
    assert "criu" in said.json["error"]["hint"]
    assert not _left(tmp_path)


def test_an_interrupted_run_cleans_up(home: Home, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "waypoint", "bench", "--only", "tree", "--work", str(tmp_path)]
    running = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    with running:
        assert running.stderr
        assert " tree: " in running.stderr.readline()
        while not list(tmp_path.glob("waypoint-bench-*/home/waypoint.db")):
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 130
    assert not _left(tmp_path)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize("name", [name for name in peers.OTHERS if not name.startswith("podman")])
def test_a_peer_keeps_and_brings_back(home: Home, engine: Path, tmp_path: Path, name: str) -> None:
    """Each on the smallest job of its kind: its own checks decide whether what it covers came back."""
    with throwaway_home(tmp_path, engine) as (own, work):
        bench = Bench(own, work, quick=True, say=lambda _: None)
        peer = peers.PEERS[name]
        assert peer.missing(bench) is None
        with peer.working(bench, peers.Job(peer.jobs[0], 0, 100)) as run:
            for number in range(2):
                run.change(number)
                kept = run.checkpoint()
                back = run.rollback()
                assert kept.api > 0
                assert back.until
                assert back.until >= back.api
        assert not list(work.iterdir())
