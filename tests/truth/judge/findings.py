"""What changed files mean: packages, repositories, databases, accounts, scheduled commands."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.truth.judge.ledger import Ledger
from tests.truth.judge.repositories import judge_repositories
from tests.truth.judge.system import judge_system
from tests.truth.oracle.databases import Database, Snapshot, Table
from tests.truth.oracle.look import Look
from tests.truth.oracle.packages import Installed

Finding = Mapping[str, Any]


def judge_findings(ledger: Ledger, old: Look, new: Look, analysis: Mapping[str, Any]) -> None:
    """Every finding, and what no finding tells unless a gap says so."""
    ledger.known("git", analysis, ("findings", "gaps"))
    by_kind: dict[str, list[Finding]] = {}
    for finding in analysis["findings"]:
        by_kind.setdefault(finding["kind"], []).append(finding)
    gaps = {gap["path"] for gap in analysis["gaps"] if gap["path"]}
    judge_repositories(ledger, old, new, by_kind.pop("repository", []))
    _judge_databases(ledger, old, new, by_kind.pop("database", []), gaps)
    _judge_packages(ledger, old, new, by_kind.pop("package", []))
    _judge_named(ledger, "user", old.system.users, new.system.users, by_kind.pop("account", []))
    _judge_scheduled(ledger, old, new, by_kind.pop("cron", []))
    judge_system(ledger, old, new, by_kind.pop("system", []))
    _judge_servers(ledger, old, new, by_kind.pop("server", []), gaps)
    for kind in by_kind:
        ledger.wrong("system", f"no rule judges findings of kind {kind}")


# ---- databases -----------------------------------------------------------------------------------

_DATABASE = (
    "kind",
    "path",
    "change",
    "size_before",
    "size_after",
    "tables",
    "schema",
    "damage",
    "damage_before",
    "renamed_from",
)
_TABLE = (
    *("name", "change", "rows_before", "rows_after", "rewritten", "inserted", "deleted", "updated"),
    *("renamed_from", "altered"),
)


def _judge_databases(
    ledger: Ledger, old: Look, new: Look, findings: Sequence[Finding], gaps: set[str]
) -> None:
    told = set()
    for finding in findings:
        ledger.count("databases")
        ledger.known("databases", finding, _DATABASE)
        path = finding["path"].encode()
        former = finding["renamed_from"].encode() if finding["renamed_from"] else path
        told |= {path, former}
        if former != path and former in new.tree:
            ledger.wrong("databases", f"{finding['path']}: {finding['renamed_from']} is still there")
        before, after = old.databases.get(former), new.databases.get(path)
        change = "created" if before is None else "removed" if path not in new.tree else "changed"
        ledger.equal("databases", f"{finding['path']} change", finding["change"], change)
        damaged = (path in new.tree and after is None) or bool(after and after.damage)
        was_damaged = bool(before and before.damage)
        ledger.equal("databases", f"{finding['path']} damage", bool(finding["damage"]), damaged)
        said = bool(finding["damage_before"])
        ledger.equal("databases", f"{finding['path']} damage before", said, was_damaged)
        if not damaged and not was_damaged:
            _judge_tables(ledger, before, after, finding, is_gap=finding["path"] in gaps)
    renamed = _renamed(old, new)
    for path in old.databases.keys() | new.databases.keys():
        before, after = old.databases.get(path), new.databases.get(path)
        if path in renamed and (path not in old.databases or path not in new.tree):
            continue  # the files tell it
        is_same = before is after or (before and after and _contents(before) == _contents(after))
        if path not in told and not is_same and os.fsdecode(path) not in gaps:
            ledger.missing("databases", f"{path!r} has changed")


def _renamed(old: Look, new: Look) -> set[bytes]:
    """The old and the new paths of databases that are at another path now, with all that they hold."""
    gone = [path for path in old.databases if path not in new.tree]
    made = [path for path in new.databases if path not in old.tree]
    pairs = [
        (was, now)
        for was in gone
        for now in made
        if _contents(old.databases[was]) == _contents(new.databases[now])
    ]
    return {path for pair in pairs for path in pair}


def _contents(database: Database) -> object:
    return database.objects, {name: table.contents for name, table in database.tables.items()}


def _judge_tables(
    ledger: Ledger, before: Database | None, after: Database | None, finding: Finding, *, is_gap: bool
) -> None:
    was, now = before.tables if before else {}, after.tables if after else {}
    told = set()
    for table in finding["tables"]:
        ledger.count("databases")
        ledger.known("databases", table, _TABLE)
        name = table["name"]
        former = table["renamed_from"] or name
        told |= {name, former}
        one, other = was.get(former), now.get(name)
        change = "created" if one is None else "removed" if other is None else "changed"
        ledger.equal("databases", f"{name} change", table["change"], change)
        if table["rows_before"] is not None or not (before and before.damage):  # else it cannot be counted
            ledger.equal("databases", f"{name} rows before", table["rows_before"], one and len(one.rows))
        ledger.equal("databases", f"{name} rows after", table["rows_after"], other and len(other.rows))
        stated = table["inserted"], table["deleted"], table["updated"]
        rewritten: bool | None = None
        altered = False
        if one and other:
            real = rows_changed(one, other)
            if stated == (None, None, None):
                if not is_gap:
                    ledger.missing("databases", f"{name}: which rows changed, or that it is not known")
            else:
                ledger.equal("databases", f"{name} +, -, ~", stated, real)
                rewritten = len(one.rows) == len(other.rows) and any(real)
            altered = former == name and one.definition != other.definition
        ledger.equal("databases", f"{name} rewritten", table["rewritten"], rewritten)
        ledger.equal("databases", f"{name} altered", table["altered"], altered)
    for name in was.keys() | now.keys():
        one, other = was.get(name), now.get(name)
        if name not in told and (one is None or other is None or one.contents != other.contents):
            ledger.missing("databases", f"{finding['path']}: table {name} has changed")
    if finding["change"] == "changed" and before and after:
        _judge_schema(ledger, before, after, finding)


def _judge_schema(ledger: Ledger, before: Database, after: Database, finding: Finding) -> None:
    real = set()
    for kind, name in before.objects.keys() | after.objects.keys():
        was, now = before.objects.get((kind, name)), after.objects.get((kind, name))
        if was != now:
            real.add(f"{'+' if was is None else '-' if now is None else '~'}{kind} {name}")
    told = set(finding["schema"])
    ledger.count("databases", len(told))
    for entry in told:
        if entry.startswith("→table "):
            former, name = entry.removeprefix("→table ").split(" → ")
            if f"-table {former}" not in real or f"+table {name}" not in real:
                ledger.wrong("databases", f"{finding['path']}: {entry}")
            real -= {f"-table {former}", f"+table {name}"}
        elif entry not in real:
            ledger.wrong("databases", f"{finding['path']}: {entry}")
    for entry in real - told:
        if not re.match("~(index|trigger|view) ", entry):  # they name the table that was renamed
            ledger.missing("databases", f"{finding['path']}: {entry}")


def rows_changed(one: Table, other: Table) -> tuple[int, int, int]:
    """Rows inserted, deleted and updated, by their keys."""
    if not (one.keyed and other.keyed) and one.contents == other.contents:
        return 0, 0, 0
    inserted = len(other.rows.keys() - one.rows.keys())
    deleted = len(one.rows.keys() - other.rows.keys())
    shared = [name for name in other.columns if name in one.columns]

    def part(table: Table, row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(row[table.columns.index(name)] for name in shared)

    updated = sum(
        part(one, row) != part(other, other.rows[key]) for key, row in one.rows.items() if key in other.rows
    )
    return inserted, deleted, updated


_SERVER = ("kind", "path", "server", "change", "version", "databases", "unit")
_KEYSPACE = ("name", "change", "renamed_from", "before", "after", "added", "removed", "rewritten")


def _judge_servers(ledger: Ledger, old: Look, new: Look, findings: Sequence[Finding], gaps: set[str]) -> None:
    """Data folders of MariaDB, and snapshots of redis: `redis-check-rdb` counts the keys."""
    _judge_folders(ledger, old, new, [one for one in findings if one["server"] == "mariadb"], gaps)
    told = set()
    for finding in findings:
        if finding["server"] == "mariadb":
            continue
        ledger.count("databases")
        ledger.known("databases", finding, _SERVER)
        path = finding["path"].encode()
        told.add(path)
        before, after = old.snapshots.get(path), new.snapshots.get(path)
        change = "created" if path not in old.tree else "removed" if path not in new.tree else "changed"
        ledger.equal("databases", f"{finding['path']} change", finding["change"], change)
        ledger.equal("databases", f"{finding['path']} server", finding["server"], "redis")
        # A snapshot says which redis wrote it; what is told is for servers whose folders are of one version.
        ledger.equal("databases", finding["path"], (finding["version"], finding["unit"]), ("", "key"))
        _judge_spaces(ledger, finding, before, after)
    for path in old.snapshots.keys() | new.snapshots.keys():
        before, after = old.snapshots.get(path), new.snapshots.get(path)
        if before != after and path not in told and os.fsdecode(path) not in gaps:
            ledger.missing("databases", f"{path!r}: {before} → {after}")


def _judge_folders(ledger: Ledger, old: Look, new: Look, findings: Sequence[Finding], gaps: set[str]) -> None:
    """What the files of a data folder say of its databases; that its rows are not told has to be said."""
    told = {finding["path"].encode(): finding for finding in findings}
    trees = old.tree, new.tree
    for folder in {
        path[: -len(b"/ibdata1")] for tree in trees for path in tree if path.endswith(b"/ibdata1")
    }:
        inside = folder + b"/"
        sides = [{path: one for path, one in tree.items() if path.startswith(inside)} for tree in trees]
        changed = {path for path, _ in sides[0].items() ^ sides[1].items()}
        finding = told.pop(folder, None)
        ledger.count("databases")
        if finding is None:
            if changed:
                ledger.missing("databases", f"{folder!r} was written to")
            continue
        ledger.known("databases", finding, _SERVER)
        fate = "created" if not sides[0] else "removed" if not sides[1] else "changed"
        ledger.equal("databases", f"{folder!r} change", finding["change"], fate)
        ledger.equal("databases", f"{folder!r}", (finding["version"], finding["unit"]), ("", "table"))
        if fate != "removed" and finding["path"] not in gaps:
            ledger.missing("databases", f"nothing says that the rows of {folder!r} are not told")
        before, after = (_tables_by_database(side, folder) for side in sides)
        real = {}
        for name in before.keys() | after.keys():
            was, now = before.get(name), after.get(name)
            if was != now or any(path.startswith(inside + name.encode() + b"/") for path in changed):
                how = "created" if was is None else "removed" if now is None else "changed"
                real[name] = how, was and len(was), now and len(now)
        said = {one["name"]: (one["change"], one["before"], one["after"]) for one in finding["databases"]}
        ledger.equal("databases", f"databases of {folder!r}", said, real)
    for path in told:
        ledger.wrong("databases", f"there is no server in {path!r}")


def _tables_by_database(files: Mapping[bytes, object], folder: bytes) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in files:
        name, _, table = os.fsdecode(path[len(folder) + 1 :]).partition("/")
        if table and name != "mysql":
            tables = found.setdefault(name, set())
            if table != "db.opt":
                tables.add(table.rpartition(".")[0])
    return found


def _judge_spaces(ledger: Ledger, finding: Finding, before: Snapshot | None, after: Snapshot | None) -> None:
    was, now = (set(side.spaces) if side else set() for side in (before, after))
    told = {space["name"] for space in finding["databases"]}
    if not was ^ now <= told <= was | now:
        ledger.wrong("databases", f"{finding['path']}: told {told}, {was} → {now}")
    for space in finding["databases"]:
        ledger.count("databases")
        ledger.known("databases", space, _KEYSPACE)
        name = space["name"]
        fate = "created" if name not in was else "removed" if name not in now else "changed"
        ledger.equal("databases", f"{name} change", (space["change"], space["renamed_from"]), (fate, None))
        counts = space["before"] or 0, space["after"] or 0
        if fate != "changed":
            moved = space["added"] or 0, space["removed"] or 0, space["rewritten"] or 0
            ledger.equal("databases", f"{name} keys", moved, (counts[1], counts[0], 0))
        if was | now == {name}:
            real = before.keys if before else 0, after.keys if after else 0
            ledger.equal("databases", f"{name} number of keys", counts, real)


# ---- packages ------------------------------------------------------------------------------------

_PACKAGE = ("kind", "ecosystem", "environment", "name", "change", "before", "after", "direct", "installed")


def _judge_packages(ledger: Ledger, old: Look, new: Look, findings: Sequence[Finding]) -> None:
    told: dict[tuple[str, str], tuple[Installed, Installed]] = {}
    for finding in findings:
        ledger.count("packages")
        ledger.known("packages", finding, _PACKAGE)
        key = _place(finding, old, new)
        removed, added = told.setdefault(key, (Counter(), Counter()))
        if finding["before"]:
            removed[finding["name"], finding["before"]] += 1
        if finding["after"]:
            added[finding["name"], finding["after"]] += 1
        moved = {"added": (False, True), "removed": (True, False)}.get(finding["change"], (True, True))
        ledger.equal(
            "packages", f"{finding['name']} move", moved, (bool(finding["before"]), bool(finding["after"]))
        )
        if key[0] != "lock":
            ledger.equal("packages", f"{finding['name']} installed", finding["installed"], True)
        real = finding["name"] in old.system.asked.get(key, set()) | new.system.asked.get(key, set())
        if key[0] == "apt":
            real = finding["name"] not in (new if finding["after"] else old).system.automatic
        if finding["direct"] and not real:
            ledger.wrong("packages", f"{finding['name']} was not asked for")
        if real and not finding["direct"]:
            ledger.wrong("packages", f"{finding['name']} was asked for")
    places = old.system.packages.keys() | new.system.packages.keys() | told.keys()
    for key in places:
        before = old.system.packages.get(key, Counter())
        after = new.system.packages.get(key, Counter())
        if key[0] == "lock":
            before = old.system.locked.get(key[1], Counter())
            after = new.system.locked.get(key[1], Counter())
        removed, added = told.get(key, (Counter(), Counter()))
        for word, real_part, said in (("-", before - after, removed), ("+", after - before, added)):
            for name, version in said - real_part:
                ledger.wrong("packages", f"{word}{name} {version} in {key}")
            for name, version in real_part - said:
                ledger.missing("packages", f"{word}{name} {version} in {key}")


def _place(finding: Finding, old: Look, new: Look) -> tuple[str, str]:
    """The place of the oracle that a finding is about."""
    ecosystem, environment = finding["ecosystem"], finding["environment"]
    if ecosystem == "npm" and not finding["installed"]:
        return "lock", environment
    if ecosystem == "pip":
        for _, site in old.system.packages.keys() | new.system.packages.keys():
            if site == environment or re.match(
                rf"{re.escape(environment.rstrip('/'))}/lib/python[\d.]+/", site
            ):
                return "pip", site
    return ecosystem, environment


# ---- accounts ------------------------------------------------------------------------------------


def _judge_named(
    ledger: Ledger,
    word: str,
    before: Mapping[str, tuple[str, ...]],
    after: Mapping[str, tuple[str, ...]],
    findings: Sequence[Finding],
) -> None:
    told = set()
    for finding in findings:
        ledger.count("system")
        ledger.known("system", finding, ("kind", "name", "change", "uid"))
        name = finding["name"]
        told.add(name)
        was, now = before.get(name), after.get(name)
        change = "created" if was is None else "removed" if now is None else "changed"
        ledger.equal("system", f"{word} {name}", finding["change"], change)
        if was == now:
            ledger.wrong("system", f"{word} {name} has not changed")
        fields = now or was
        ledger.equal("system", f"{word} {name} uid", finding["uid"], int(fields[1]) if fields else None)
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name) and name not in told:
            ledger.missing("system", f"{word} {name}")


def _judge_scheduled(ledger: Ledger, old: Look, new: Look, findings: Sequence[Finding]) -> None:
    told = set()
    for finding in findings:
        ledger.count("system")
        ledger.known("system", finding, ("kind", "path", "change", "added", "removed"))
        path = finding["path"]
        told.add(path)
        before, after = old.system.scheduled.get(path), new.system.scheduled.get(path)
        change = "created" if before is None else "removed" if after is None else "changed"
        ledger.equal("system", f"cron {path}", finding["change"], change)
        added = [line for line in after or () if line not in (before or ())]
        removed = [line for line in before or () if line not in (after or ())]
        ledger.equal("system", f"cron {path} added", list(finding["added"]), added)
        ledger.equal("system", f"cron {path} removed", list(finding["removed"]), removed)
    for path in old.system.scheduled.keys() | new.system.scheduled.keys():
        if path not in told and old.system.scheduled.get(path) != new.system.scheduled.get(path):
            ledger.missing("system", f"cron {path}")
