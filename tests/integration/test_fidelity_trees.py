"""Random trees of processes come back as they were, by their fingerprints; `make fidelity` has thousands."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fingerprint import actors, difference, keeper_of, take
from tests.fingerprint.campaign import Campaign, Tally, report
from tests.fingerprint.trees import random_trees

import waypoint
from waypoint.home import Home
from waypoint.kernel.pool.image import SMALLEST_SIZE_BYTES

SEED = int(os.environ.get("WAYPOINT_SEED", "7"))
TREES = 30


def test_random_trees_of_processes_come_back_as_they_were(
    home: Home, fresh: waypoint.Session, tmp_path: Path
) -> None:
    print(f"WAYPOINT_SEED={SEED}")
    actors.install(fresh, actors.build(tmp_path))
    tally = Tally()
    campaign = Campaign(home, fresh.checkpoint("the actor is there"), tally)
    trees = random_trees(TREES, SEED)
    campaign.check(trees[: TREES // 2], "restore")
    campaign.check(trees[TREES // 2 :], "fork")
    assert not tally.defects, report(tally, 0)
    assert tally.trees == TREES


def test_another_home_may_come_and_go_but_must_not_be_seen(home: Home, fresh: waypoint.Session) -> None:
    keeper = keeper_of(home, fresh.name)
    before = take(keeper)
    with tempfile.TemporaryDirectory(prefix="waypoint-test-", dir="/tmp") as folder:
        _run(folder, "ls")
        hidden = take(keeper)
        found = [one for one in difference(before, hidden) if one.place == folder]
        assert [one.after for one in found] == ["hidden"]
        assert found[0].declared
        # Not umount(8): it is set-user-ID to the root of the box, which may be another user.
        unmount = "import ctypes, sys; sys.exit(bool(ctypes.CDLL(None).umount2(sys.argv[1].encode(), 0)))"
        inside = ["nsenter", f"--mount=/proc/{keeper}/ns/mnt", "/usr/bin/python3", "-c", unmount, folder]
        subprocess.run(inside, check=True)
        seen = [one for one in difference(hidden, take(keeper)) if one.place == folder]
        assert [one.after for one in seen] == ["visible"]
        assert not seen[0].declared
        _run(folder, "uninstall", "--yes")
        Path(folder).mkdir(exist_ok=True)
    gone = [one for one in difference(hidden, take(keeper)) if one.place == folder]
    assert [one.after for one in gone] == [None]
    assert gone[0].declared


def _run(folder: str, *words: str) -> None:
    environment = os.environ | {"WAYPOINT_HOME": folder, "WAYPOINT_POOL_SIZE": str(SMALLEST_SIZE_BYTES)}
    command = [sys.executable, "-P", "-m", "waypoint", *words]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
