"""From changed files to what they mean: packages, repositories, databases, accounts.

An analyzer is a function of two points and the paths that differ between them. It decides by the paths alone
whether there is anything to read, reads little, and may fail: a failure is a gap in the card, with its
reason, and has no other effect.

    reading.py        how analyzers read a point, and the limits
    packages.py       dpkg, apk, cargo, lock files
    python.py         pip, conda
    node.py           npm, pnpm, yarn
    repositories.py   git
    databases.py      SQLite
    servers.py        PostgreSQL, MariaDB, redis
    system.py         users, groups, passwords, keys that may log in, cron, units of systemd
    capabilities.py   capabilities of programs
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType

import msgspec

from waypoint.api.findings import Analysis, Finding, Gap
from waypoint.history.analyzers import (
    capabilities,
    databases,
    node,
    packages,
    python,
    repositories,
    servers,
    system,
)
from waypoint.history.analyzers.reading import (
    Analyzer,
    Nothing,
    OutOfTime,
    Timed,
    View,
    contents,
    describe,
)
from waypoint.history.view import printable

ANALYZERS: Mapping[str, Analyzer] = MappingProxyType({
    "apt": packages.dpkg,
    "apk": packages.apk,
    "pip": python.pip,
    "npm": node.npm,
    "conda": python.conda,
    "cargo": packages.cargo,
    "lock": packages.locks,
    "git": repositories.git,
    "sqlite": databases.sqlite,
    "servers": servers.servers,
    "accounts": system.accounts,
    "groups": system.groups,
    "passwords": system.passwords,
    "keys": system.keys,
    "cron": system.cron,
    "units": system.units,
    "capabilities": capabilities.capabilities,
})  # fmt: skip


def analyze(
    old: View | None,
    new: View,
    touched: Sequence[str],
    *,
    folders: Sequence[str] = (),
    moved: Mapping[str, str] | None = None,
    budget_s: float = 1.0,
    analyzers: Mapping[str, Analyzer] = ANALYZERS,
) -> Analysis:
    """What the touched paths mean. Never raises because of what it reads.

    `old` is None for the first point. `folders` were created, deleted or moved as a whole, so their files are
    not among the touched. `moved`: the new paths of what has another name, and their old ones. Each analyzer
    has `budget_s` seconds; what it has found by then is kept.
    """
    findings: list[Finding] = []
    gaps: list[Gap] = []
    if folders:
        inside = dict.fromkeys(touched)
        deadline = time.monotonic() + budget_s
        for folder, view in product(folders, (old or Nothing(), new)):
            try:
                for path in contents(Timed(view, deadline), folder):
                    inside[path] = None
            except Exception as error:  # noqa: BLE001 - files from a session can break a parser in any way
                gaps.append(Gap(analyzer="folders", path=printable(folder), reason=describe(error)))
        touched = list(inside)
    for name, analyzer in analyzers.items():
        deadline = time.monotonic() + budget_s
        try:
            for outcome in analyzer(Timed(old or Nothing(), deadline), Timed(new, deadline, moved), touched):
                if isinstance(outcome, Gap):
                    gaps.append(msgspec.structs.replace(outcome, analyzer=name))
                else:
                    findings.append(outcome)
        except OutOfTime:
            gaps.append(Gap(analyzer=name, reason=f"not done after {budget_s:g} s"))
        except Exception as error:  # noqa: BLE001 - an analyzer that fails must not fail the card
            gaps.append(Gap(analyzer=name, reason=describe(error)))
    return Analysis(findings=tuple(findings), gaps=tuple(gaps))
