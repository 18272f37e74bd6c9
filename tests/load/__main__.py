"""`python -m tests.load [--operations N] [--cycles N] [--seed N] [--write]`, as root."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.load import bulk, clients, cycles
from tests.tables import replace_section, table

import waypoint
from waypoint.home import Home
from waypoint.kernel.pool.lifecycle import close_pool
from waypoint.kernel.syscalls import CLONE_NEWNS, MS_PRIVATE, MS_REC, mount, unshare


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--no-bulk", action="store_true")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--write", action="store_true", help="write the results into docs/reliability.md")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    unshare(CLONE_NEWNS)
    mount("none", "/", "", MS_REC | MS_PRIVATE, "")
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    with tempfile.TemporaryDirectory(prefix="waypoint-load-", dir="/var/tmp") as name:
        folder = Path(name)
        os.environ["WAYPOINT_HOME"] = name
        try:
            text, violations = _run(folder, options)
        finally:
            waypoint.Client(folder).daemon.stop(sessions=True)
            log = (folder / "daemon.log").read_text()
            while not close_pool(Home(folder).path):
                time.sleep(0.1)
    problems = [line for line in log.splitlines() if "Traceback" in line or "OutOfOrder" in line]
    violations += problems
    print(text)
    print("\n".join(violations))
    if options.write:
        replace_section("reliability.md", "load", f"The last campaign, seed {options.seed}:\n\n{text}")
    return 1 if violations else 0


def _run(folder: Path, options: argparse.Namespace) -> tuple[str, list[str]]:
    begun = time.monotonic()
    served = clients.run(folder, options.operations, options.seed)
    print(f"clients: {time.monotonic() - begun:.0f} s, {served.violations}", flush=True)
    begun = time.monotonic()
    repeated = cycles.run(folder, options.cycles)
    print(f"cycles: {time.monotonic() - begun:.0f} s, {repeated.violations}", flush=True)
    large = {} if options.no_bulk else bulk.run(folder)
    violations = [*served.violations, *repeated.violations, *filter(None, large.values())]
    done = sum(served.operations.values())
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in served.operations.most_common())
    refused = sum(served.refused.values())
    rows = [
        (
            f"operations of 32 clients on 8 sessions ({kinds}; {refused:,} refused)",
            done,
            len(served.violations),
        ),
        ("points of theirs that were looked at once more at the end", served.points, 0),
        ("repetitions of checkpoint, change, restore", repeated.cycles, len(repeated.violations)),
        *((f"bulk: {name.replace('_', ' ')}", 1, int(bool(problem))) for name, problem in large.items()),
    ]
    held = [(f"after {mark:,}", *(getattr(one, name) for name in cycles.COUNTS),
             f"{one.memory_bytes / 1e6:.1f} MB", f"{one.pool_bytes / 1e6:.1f} MB")
            for mark, one in repeated.held.items()]  # fmt: skip
    head = ("cycles", *(name.replace("_", " ") for name in cycles.COUNTS), "daemon's memory", "pool")
    print(served.refused, flush=True)
    return f"{table(('load', 'count', 'violations'), rows)}\n\n{table(head, held)}", violations


if __name__ == "__main__":
    sys.exit(main())
