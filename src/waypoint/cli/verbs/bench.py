"""`waypoint bench`: runs waypoint.bench and prints its table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from waypoint import errors
from waypoint.cli.spec import argument, flag, name_list, verb

if TYPE_CHECKING:
    from waypoint.cli.console import Console


def _peers(text: str) -> list[str]:
    return [] if text == "none" else name_list(text)


@verb(
    "bench",
    "measure what Waypoint costs here, compared with plain CRIU, copies, git and others",
    flag("--quick", help="less than a minute: fewer rounds, smaller sizes"),
    argument(
        "--only",
        metavar="W,…",
        type=name_list,
        default=[],
        help="these workloads: tree, safety, api, processes, terminal, memory, repair, fan-out, files, depth,"
        " peers",
    ),
    argument(
        "--peers",
        metavar="P,…",
        type=_peers,
        help="compare with these: criu, cp, git, self-fork, podman, podman-commit, or none (default: all that"
        " are installed)",
    ),
    argument(
        "--out",
        metavar="DIR",
        default="waypoint-bench",
        help="the folder for the results (default: ./waypoint-bench)",
    ),
    argument(
        "--work",
        metavar="DIR",
        default="/var/tmp",
        help="a folder on the disk to measure (default: /var/tmp)",
    ),
    examples=("waypoint bench --quick", "waypoint bench --only memory,peers --out results"),
    about="It takes a few minutes, in a throwaway home: your sessions are not touched. It prints a table and"
    " writes bench.json, bench.md and bench.svg.",
    json="waypoint.bench.results:Report",
)
def bench(console: Console) -> int:
    from waypoint.bench import report, runner
    from waypoint.machine import setup

    arguments = console.arguments
    if os.geteuid() != 0:
        raise errors.NotRoot("the benchmark needs root", hint="run it with sudo, or as root")
    engine = setup.engine_dir(console.home.path)
    if setup.current_engine(engine) is None:
        console.say("setting this machine up (once)")
        setup.set_up(console.home.path, console.step)
    if not os.path.isdir(arguments.work):
        raise errors.NotFound(f"no such folder: {arguments.work}", hint="name a folder with --work")
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    results = runner.run(
        engine,
        quick=arguments.quick,
        only=arguments.only,
        peers=arguments.peers,
        below=Path(arguments.work),
        say=console.step,
    )
    files = report.write(results, out)
    value: Any = msgspec.json.decode(results.encode())
    console.result(value, report.text(results))
    for path in files:
        console.step(f"wrote {path}")
    return 1 if results.failed else 0
