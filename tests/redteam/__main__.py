"""`python -m tests.redteam`: every hostile box, and the table tried / held in docs/security.md.

`--only TEXT` plays the attacks whose name contains a text. `--write` writes the table. Run as root.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import signal
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path

from tests import redteam
from tests.redteam.attacks import ATTACKS, Attack, run
from tests.tables import replace_section, table

import waypoint
from waypoint.home import Home
from waypoint.kernel import homes
from waypoint.kernel.pool.lifecycle import close_pool


def _load() -> None:
    """Every module of this package registers its attacks."""
    for module in pkgutil.iter_modules(redteam.__path__):
        if module.name != "__main__":
            importlib.import_module(f"{redteam.__name__}.{module.name}")


def _play(attacks: list[Attack], home: Path) -> list[tuple[str, str, str, str]]:
    rows = []
    for one in attacks:
        try:
            told, held = run(one, home) or "", "held"
        except Exception as error:  # noqa: BLE001 - an attack that breaks anything has succeeded
            traceback.print_exc()
            told, held = str(error).splitlines()[0] if str(error) else type(error).__name__, "**not held**"
        print(f"{held.strip('*'):9} {one.name}: {told}", flush=True)
        rows.append((one.name, one.line, held, told))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.redteam", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--quick", action="store_true", help="only those of `make test`")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    _load()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # what was started is taken away
    attacks = [one for one in ATTACKS if options.only in one.name and (one.quick or not options.quick)]
    os.environ.update(WAYPOINT_SPARES="off", WAYPOINT_PROVE="off", WAYPOINT_DEBUG_LOCKS="1")
    with tempfile.TemporaryDirectory(prefix="waypoint-redteam-", dir="/var/tmp") as folder:
        home = Path(folder)
        os.environ["WAYPOINT_HOME"] = folder
        try:
            rows = _play(attacks, home)
        finally:
            waypoint.Client(folder).call("daemon_stop", {"sessions": True})
            close_pool(home)
            homes.forget(Home(home))
    held = sum(row[2] == "held" for row in rows)
    summary = (
        f"{held} of {len(rows)} attacks held, {datetime.now(UTC):%Y-%m-%d}, kernel {os.uname().release}."
    )
    print(summary)
    if options.write:
        replace_section(
            "security.md", "redteam", f"{summary}\n\n{table(('tried', 'line', '', 'figures'), rows)}"
        )
    return 0 if held == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
