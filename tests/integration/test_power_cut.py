"""Power cuts, a few of them; `make torture` has more. The seed is printed, and can be set again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import waypoint

CUTS = os.environ.get("WAYPOINT_POWER_CUTS", "2")
SEED = os.environ.get("WAYPOINT_SEED") or str(random.SystemRandom().randrange(1, 1 << 30))


def test_nothing_durable_is_lost_in_a_power_cut_and_nothing_forgotten_comes_back(
    engine: Path, tmp_path: Path
) -> None:
    print(f"WAYPOINT_SEED={SEED}")
    variables = {"WAYPOINT_SPARES": "off", "WAYPOINT_DEBUG_LOCKS": "1"}
    done = subprocess.run(
        # In a mount namespace of its own: no other box takes the disk along and keeps it busy.
        ["unshare", "--mount", sys.executable, "-m", "tests.power_cuts", CUTS, SEED, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **variables, "PYTHONPATH": str(Path(waypoint.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    log = tmp_path / "daemon.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    print(done.stdout)
