"""`waypoint bench`: the face of waypoint.bench."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from waypoint import errors
from waypoint.machine import setup

if TYPE_CHECKING:
    from waypoint.cli.console import Console


def bench(console: Console) -> int:
    from waypoint.bench import report, runner

    given = console.arguments
    if os.geteuid() != 0:
        raise errors.NotRoot("the benchmark needs root", hint="run it with sudo, or as root")
    engine = setup.engine_dir(console.home.path)
    if setup.current_engine(engine) is None:
        console.say("setting this machine up (once)")
        setup.set_up(console.home.path, console.step)
    if not os.path.isdir(given.work):
        raise errors.NotFound(f"there is no folder {given.work}", hint="--work names one that is there")
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    found = runner.run(
        engine,
        quick=given.quick,
        only=given.only,
        peers=given.peers,
        below=Path(given.work),
        say=console.step,
    )
    written = report.write(found, out)
    told: Any = msgspec.json.decode(found.encode())
    console.result(told, report.text(found))
    for path in written:
        console.step(f"wrote {path}")

    return 1 if found.failed else 0
