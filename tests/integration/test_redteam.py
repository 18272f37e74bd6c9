"""A small part of `make redteam`: hostile boxes."""

from __future__ import annotations

import os

import pytest
from tests.redteam import criu, files, limits, network  # noqa: F401 - they register attacks
from tests.redteam.attacks import ATTACKS, Attack, run

import waypoint
from waypoint.box.limits import usual_limits
from waypoint.home import Home
from waypoint.kernel.memory import machine_bytes
from waypoint.kernel.pool import quota
from waypoint.machine import doctor


@pytest.mark.parametrize("one", [one for one in ATTACKS if one.quick], ids=lambda one: one.name)
def test_a_hostile_box_fails(home: Home, one: Attack) -> None:
    run(one, home.path)


def test_a_session_without_options_has_limits(home: Home, session: waypoint.Session) -> None:
    """Generous ones: what is left is for the others. `doctor` says which."""
    pool_bytes = os.statvfs(home.pool).f_blocks * os.statvfs(home.pool).f_frsize
    usual = usual_limits(pool_bytes=pool_bytes if quota.is_known() else 0)
    groups, info = usual.groups, session.info
    assert (info.memory_limit_bytes or 0) >> 20 == (groups.memory_bytes or 0) >> 20
    assert info.pids_limit == groups.pids
    assert info.open_files_limit == usual.open_files[1]
    assert (info.disk_limit_bytes or 0) >> 20 == (usual.disk_bytes or 0) >> 20
    if groups.memory_bytes:
        assert groups.memory_bytes < machine_bytes()["MemTotal"]
    if usual.disk_bytes:
        assert usual.disk_bytes < pool_bytes
    (told,) = [one.version for one in doctor.examine(home.path) if one.name == "limits of a session"]
    assert f"{usual.open_files[1]:,} open files in each" in told
    assert f"{(usual.disk_bytes or 0) / (1 << 30):.1f} GiB of the pool" in told or not usual.disk_bytes
    trial = session.checkpoint("limited").verify("ulimit -Hn")
    assert trial
    assert trial.output == f"{usual.open_files[1]}\n"
