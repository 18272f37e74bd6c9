"""`python -m tests.fuzz [--cases N] [--seed N] [--only NAME [--case N]]`: a campaign, and its table."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import campaign, readers, requests
from tests.tables import replace_section, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--only", metavar="NAME", help="this target only")
    parser.add_argument("--case", type=int, help="this case only; its exception is shown")
    parser.add_argument("--write", action="store_true", help="write the table into docs/reliability.md")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, requests.daemon(Path(name)) as daemon:
        targets = [*readers.targets(), *requests.targets(daemon)]
        targets = [target for target in targets if options.only in (None, target.name)]
        if options.case is not None:
            campaign.run_case(targets[0], options.seed, options.case, Path(name))
            return 0
        tallies = campaign.run(targets, options.cases, options.seed, Path(name))
    for tally in tallies.values():
        for finding in tally.findings[:3]:
            print(finding)
    counts = {name: (tally.cases, tally.refused, len(tally.findings)) for name, tally in tallies.items()}
    cases, refused, found = (sum(column) for column in zip(*counts.values(), strict=True))
    rows = [*((name, *count) for name, count in counts.items()), ("all", cases, refused, found)]
    shown = table(("input", "cases", "refused", "findings"), rows)
    print(shown)
    if options.write:
        replace_section("reliability.md", "fuzz", f"The last campaign, seed {options.seed}:\n\n{shown}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
