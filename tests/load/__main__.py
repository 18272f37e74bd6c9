"""`python -m tests.load [--only PART] [--operations N] [--cycles N] [--minutes N] [--seed N]`, as root."""

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

PARTS = ("clients", "cycles", "bulk")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=120.0, help="the repetitions end after so many")
    parser.add_argument("--only", action="append", choices=PARTS, help="these parts alone")
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
    parts, rows, held = options.only or PARTS, [], []
    violations: list[str] = []
    if "clients" in parts:
        served = clients.run(folder, options.operations, options.seed)
        print(f"clients: {served.violations}, {served.refused}", flush=True)
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in served.operations.most_common())
        refused = sum(served.refused.values())
        what = f"operations of 32 clients on 8 sessions ({kinds}; {refused:,} refused)"
        rows.append((what, sum(served.operations.values()), len(served.violations)))
        rows.append(("points of theirs that were looked at once more at the end", served.points, 0))
        violations += served.violations
    if "cycles" in parts:
        repeated = cycles.run(folder, options.cycles, seconds=60 * options.minutes)
        rows.append(("repetitions of checkpoint, change, restore", repeated.cycles, len(repeated.violations)))
        violations += repeated.violations
        for mark, one in repeated.held.items():
            counts = (getattr(one, name) for name in cycles.COUNTS)
            sizes = (f"{one.memory_bytes / 1e6:.1f} MB", f"{one.pool_bytes / 1e6:.1f} MB")
            held.append((f"after {mark:,}", *counts, *sizes))
    large = bulk.run(folder) if "bulk" in parts else {}
    rows += [(f"bulk: {name.replace('_', ' ')}", 1, int(bool(problem))) for name, problem in large.items()]
    violations += filter(None, large.values())
    head = ("cycles", *(name.replace("_", " ") for name in cycles.COUNTS), "daemon's memory", "pool")
    tables = [table(("load", "count", "violations"), rows), *([table(head, held)] if held else [])]
    return "\n\n".join(tables), violations


if __name__ == "__main__":
    sys.exit(main())
