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
from tests.waiting import until

from waypoint.bench import peers
from waypoint.bench.results import Report
from waypoint.bench.runner import Bench, throwaway_home
from waypoint.client.client import Client
from waypoint.home import Home
from waypoint.machine import setup

from .conftest import Output


def _leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("waypoint-bench-")]


def test_a_run_measures_writes_and_cleans_up(home: Home, wp: Callable[..., Output], tmp_path: Path) -> None:
    places = ["--out", str(tmp_path / "out"), "--work", str(tmp_path)]
    output = wp("bench", "--quick", "--only", "api", *places, "--json")
    assert output.code == 0, output.err
    assert output.json["figures"]
    report = Report.decode((tmp_path / "out" / "bench.json").read_bytes())
    ran = report.find("api", "run true", "run", "api")
    assert ran
    assert ran.p50 > 0
    assert report.machine.kernel == os.uname().release
    assert "criu" in report.machine.versions
    assert (tmp_path / "out" / "bench.svg").stat().st_size > 1000
    assert "run true" in (tmp_path / "out" / "bench.md").read_text()
    assert not _leftovers(tmp_path)
    mounts = Path("/proc/mounts").read_text()
    assert str(tmp_path) not in mounts


def test_unknown_names_are_refused_before_anything_is_made(
    home: Home, wp: Callable[..., Output], tmp_path: Path
) -> None:
    output = wp("bench", "--only", "speed", "--out", str(tmp_path / "out"), "--work", str(tmp_path), "--json")
    assert output.code != 0
    assert "fan-out" in output.json["error"]["hint"]
    output = wp(
        "bench", "--peers", "vmware", "--out", str(tmp_path / "out"), "--work", str(tmp_path), "--json"
    )
    assert "criu" in output.json["error"]["hint"]
    assert not _leftovers(tmp_path)


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
    assert not _leftovers(tmp_path)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def test_a_home_that_another_process_holds_is_left_and_named(
    home: Home, engine: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    with throwaway_home(tmp_path, engine, said.append) as (own, _):
        Client(own).daemon.ping()
        # Its own mounts are copies of those that are there when it starts.
        holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "1000"])
        ours = os.readlink("/proc/self/ns/mnt")
        until(lambda: os.readlink(f"/proc/{holder.pid}/ns/mnt") != ours)
    assert f"{own} is left: the pool is still in use by {holder.pid}" in said[-1]
    assert (own / "pool.img").exists()
    holder.kill()
    holder.wait()
    setup.uninstall(own, lambda _: None)
    assert not own.exists()


@pytest.mark.parametrize("name", [name for name in peers.OTHERS if not name.startswith("podman")])
def test_a_peer_saves_and_restores(home: Home, engine: Path, tmp_path: Path, name: str) -> None:
    """Each on the smallest job of its kind. Its own checks decide whether the state was restored."""
    with throwaway_home(tmp_path, engine) as (own, work):
        bench = Bench(own, work, quick=True, say=lambda _: None)
        peer = peers.PEERS[name]
        assert peer.missing(bench) is None
        with peer.start(bench, peers.Job(peer.jobs[0], 0, 100)) as run:
            for number in range(2):
                run.change(number)
                saved = run.checkpoint()
                restored = run.rollback()
                assert saved.api > 0
                assert restored.until
                assert restored.until >= restored.api
        assert not list(work.iterdir())
