"""`python -m tests.torture`: the whole campaign of faults, and its table in docs/reliability.md.

`--seed N` makes the same choices again, `--part NAME` runs one part, `--case NAME` one case of a part (a
violation is printed with the name of its case). The result of each part is kept in .cache/torture. A run of
all parts writes the table.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import msgspec
from tests import tables
from tests.torture import below_root, real, scene
from tests.torture.result import Part
from tests.torture.tester import RealKind

RESULTS = Path(__file__).parents[2] / ".cache" / "torture"
_MEMORY = Path("/dev/shm")
_WORKERS = int(os.environ.get("WAYPOINT_TORTURE_WORKERS", "4"))
"""Processes below root; half as many on the real thing."""
EXTENT = below_root.Extent(pairs=90, deaths=50)
"""For each verb. WAYPOINT_TORTURE_CASES sets a smaller number of each sort."""
if most := os.environ.get("WAYPOINT_TORTURE_CASES"):
    EXTENT = below_root.Extent(singles=int(most), pairs=int(most), deaths=int(most))
_KINDS_BELOW_ROOT = {
    "error": "below root: a call fails with an error of Waypoint",
    "EIO": "below root: a call fails with EIO",
    "ENOSPC": "below root: a call fails with ENOSPC",
    "timeout": "below root: a call exceeds its time limit",
    "kill": "below root: the daemon dies at a call",
}


def run_below_root(seed: int) -> Part:
    """Every call of every verb, and a choice of pairs."""
    part = Part()
    place = Path(tempfile.mkdtemp(prefix="waypoint-torture-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        with below_root.Campaign(place, seed, _WORKERS) as campaign:
            for verb in scene.VERBS:
                campaign.run_verb(verb, EXTENT)
                wrong = sum(bool(outcome.violations) for outcome in campaign.outcomes.values())
                print(f"  {verb}: {len(campaign.outcomes)} cases so far, {wrong} of them wrong", flush=True)
    finally:
        shutil.rmtree(place)
    for name, outcome in campaign.outcomes.items():
        kinds = [_KINDS_BELOW_ROOT[text.rpartition(":")[2]] for text in outcome.happened]
        part.add(name, kinds, outcome.violations)
    return part


def _print_step(text: str) -> None:
    print(f"  {text}", flush=True)


def run_real(seed: int) -> Part:
    """The fault points on the real thing, for so many minutes as WAYPOINT_TORTURE_MINUTES says."""
    place = Path(tempfile.mkdtemp(prefix="waypoint-torture-", dir="/var/tmp"))
    campaign = real.RealCampaign(place, seed, _print_step)
    campaign.run(60 * float(os.environ.get("WAYPOINT_TORTURE_MINUTES", "30")), _WORKERS // 2)
    if not campaign.part.violations:
        shutil.rmtree(place)
    return campaign.part


def run_power_cuts(seed: int) -> Part:
    """Power cuts while points are taken and forgotten (tests/power_cuts.py)."""
    cuts = int(os.environ.get("WAYPOINT_POWER_CUTS", "40"))
    part = Part()
    with tempfile.TemporaryDirectory(prefix="waypoint-torture-", dir="/var/tmp") as place:
        done = subprocess.run(
            [sys.executable, "-m", "tests.power_cuts", str(cuts), str(seed), place],
            env={**os.environ, "WAYPOINT_SPARES": "off", "WAYPOINT_DEBUG_LOCKS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    print(f"  {done.stdout.strip()}")
    part.add("power cuts", ["a power cut"] * cuts, [done.stderr] if done.returncode else [])
    part.cases = cuts
    return part


PARTS: dict[str, Callable[[int], Part]] = {
    "below-root": run_below_root,
    "real": run_real,
    "power-cuts": run_power_cuts,
}


def run_one_real(name: str) -> Part:
    """A single case on the real thing."""
    verb, point, kind = name.rsplit("/", 2)
    place = Path(tempfile.mkdtemp(prefix="waypoint-torture-", dir="/var/tmp"))
    campaign = real.RealCampaign(place, 0, print)
    campaign.run_cases([(verb, point, cast("RealKind", kind))], time.monotonic() + 60)
    if not campaign.part.violations:
        shutil.rmtree(place)
    return campaign.part


def run_one(name: str) -> Part:
    """A single case below root."""
    place = Path(tempfile.mkdtemp(prefix="waypoint-torture-"))
    case = below_root.Case.parse(name)
    part = Part()
    try:
        found = below_root.prepare(place / "prepared", scene.VERBS[case.verb])
        outcome = below_root.run_case(case, place / "prepared", place / "case")
    finally:
        shutil.rmtree(place)
    part.add(name, outcome.happened, (*found, *outcome.violations))
    return part


def table(parts: Sequence[Part]) -> str:
    """The result as it stands in docs/reliability.md."""
    faults: Counter[str] = Counter()
    violations: Counter[str] = Counter()
    for part in parts:
        faults.update(part.faults)
        violations.update(part.wrong)
    rows = [(kind, number, violations[kind]) for kind, number in faults.items()]
    result = tables.table(
        ("fault", "faults", "violations"), [*rows, ("all", faults.total(), violations.total())]
    )
    cases = sum(part.cases for part in parts)
    minutes = ", ".join(f"{part.name} {part.seconds / 60:.0f}" for part in parts)
    seeds = ", ".join(sorted({str(part.seed) for part in parts}))
    at = datetime.now(UTC).date().isoformat()
    return f"{result}\n\n{cases:,} cases, {at}, WAYPOINT_SEED={seeds}. Minutes, side by side: {minutes}."


def _run_part(name: str, seed: int) -> Part:
    print(f"{name}:", flush=True)
    started = time.monotonic()
    part = PARTS[name](seed)
    part.name, part.seed, part.seconds = name.replace("-", " "), seed, time.monotonic() - started
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_bytes(msgspec.json.encode(part))
    return part


def _run_all(seed: int) -> list[Part]:
    """All parts side by side: the one on the real thing mostly waits. Each has its own mount namespace, or
    a box of one would keep the disks of another busy."""
    for name in PARTS:
        (RESULTS / f"{name}.json").unlink(missing_ok=True)
    apart = ["unshare", "--mount", "--propagation", "private"]
    command = [*apart, sys.executable, "-m", "tests.torture", "--seed", str(seed), "--part"]
    for part in [subprocess.Popen([*command, name]) for name in PARTS]:
        part.wait()
    return [_result(name) for name in PARTS]


def _result(name: str) -> Part:
    try:
        return msgspec.json.decode((RESULTS / f"{name}.json").read_bytes(), type=Part)
    except FileNotFoundError:
        return Part(name=name.replace("-", " "), violations=[f"the part {name} has ended without a result"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    seed = os.environ.get("WAYPOINT_SEED") or random.SystemRandom().randrange(1, 1 << 30)
    parser.add_argument("--seed", type=int, default=int(seed))
    parser.add_argument("--case", help="one case, by its name; below root, unless --part says another")
    parser.add_argument("--part", choices=PARTS)
    arguments = parser.parse_args()
    if arguments.case:
        parts = [run_one_real(arguments.case) if arguments.part == "real" else run_one(arguments.case)]
    else:
        print(f"WAYPOINT_SEED={arguments.seed}", flush=True)
        if arguments.part:
            parts = [_run_part(arguments.part, arguments.seed)]
        else:
            parts = _run_all(arguments.seed)
            tables.replace_section("reliability.md", "torture", table(parts))
        print(table(parts))
    violations = [violation for part in parts for violation in part.violations]
    for violation in violations:
        print(f"VIOLATION {violation}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
