"""The host's disk runs full below the pool, and has room again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import waypoint


def test_a_pool_that_stopped_on_a_full_host_disk_works_again_once_there_is_room(
    engine: Path, tmp_path: Path
) -> None:
    variables = {"WAYPOINT_SPARES": "off", "WAYPOINT_DEBUG_LOCKS": "1", "WAYPOINT_POOL_SIZE": "2G"}
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-m", "tests.host_disk_full", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **variables, "PYTHONPATH": str(Path(waypoint.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
