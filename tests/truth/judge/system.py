"""Groups, passwords, keys that may log in, units of systemd, capabilities."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.truth.judge.ledger import Ledger
from tests.truth.oracle.look import Look

Finding = Mapping[str, Any]
KIND = "system"


def judge_system(ledger: Ledger, old: Look, new: Look, findings: Sequence[Finding]) -> None:
    """Every finding, and the groups, passwords and keys of which no finding tells."""
    told: dict[str, set[str]] = {word: set() for word in ("group", "password", "keys", "unit", "capability")}
    for finding in findings:
        ledger.count(KIND)
        ledger.known(KIND, finding, ("kind", "subject", "name", "change", "details"))
        told[finding["subject"]].add(finding["name"])
        if finding["subject"] == "unit":
            _judge_unit(ledger, old, new, finding)
        elif finding["subject"] == "capability":
            _judge_capability(ledger, old, new, finding)
    before, after = old.system, new.system
    for word, changed in (
        ("group", _changed(before.groups, after.groups)),
        ("keys", _changed(before.keys, after.keys)),
        ("password", _passwords(before.passwords, after.passwords)),
    ):
        for name in told[word] - changed:
            ledger.wrong(KIND, f"{word} {name} has not changed")
        for name in changed - told[word]:
            ledger.missing(KIND, f"{word} {name}")
    for finding in findings:
        text = " ".join(finding["details"])
        if any(hash_ and hash_.lstrip("!") in text for hash_ in after.passwords.values() if "$" in hash_):
            ledger.wrong(KIND, f"the password of {finding['name']} is shown")
        if finding["subject"] == "password":
            was, now = (side.passwords.get(finding["name"]) for side in (before, after))
            ledger.equal(KIND, f"password of {finding['name']}", list(finding["details"]), [_word(was, now)])
        elif finding["subject"] == "group":
            _judge_group(ledger, before.groups, after.groups, finding)
        elif finding["subject"] == "keys":
            old_keys = before.keys.get(finding["name"], set())
            new_keys = after.keys.get(finding["name"], set())
            said = {sign: _fingerprints(finding, sign) for sign in "+-"}
            ledger.equal(KIND, finding["name"], said, {"+": new_keys - old_keys, "-": old_keys - new_keys})


def _changed(was: Mapping[str, object], now: Mapping[str, object]) -> set[str]:
    return {name for name in was.keys() | now.keys() if was.get(name) != now.get(name)}


def _passwords(was: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """A user who has come without a password, or has gone, is told as a user."""
    return {name for name in _changed(was, now) & now.keys() if name in was or now[name].startswith("$")}


def _word(was: str | None, now: str | None) -> str:
    """What happened to a password."""
    if was is None or now is None:
        return "set"
    if not now:
        return "removed: none is needed"
    if now.strip("!") == was.strip("!"):
        return "locked" if now[0] == "!" else "unlocked"
    if not now.startswith("$"):
        return "locked"
    return "changed" if was.startswith("$") else "set"


def _fingerprints(finding: Finding, sign: str) -> set[str]:
    keys = [detail for detail in finding["details"] if detail.startswith(sign)]
    return {match[0] for detail in keys if (match := re.search(r"SHA256:\S+", detail))}


def _judge_group(
    ledger: Ledger, before: Mapping[str, str], after: Mapping[str, str], finding: Finding
) -> None:
    was, now = before.get(finding["name"]), after.get(finding["name"])
    change = "created" if was is None else "removed" if now is None else "changed"
    ledger.equal(KIND, f"group {finding['name']}", finding["change"], change)
    sides = [set(filter(None, (line or "").rpartition(":")[2].split(","))) for line in (was, now)]
    members = {f"+{name}" for name in sides[1] - sides[0]} | {f"-{name}" for name in sides[0] - sides[1]}
    said = {detail for detail in finding["details"] if detail[:1] in "+-"}
    ledger.equal(KIND, f"members of {finding['name']}", said, members)


def _judge_capability(ledger: Ledger, old: Look, new: Look, finding: Finding) -> None:
    """The oracle does not read capabilities, but it knows whether the file has changed."""
    path = os.fsencode(finding["name"])
    if old.tree.get(path) == new.tree.get(path):
        ledger.wrong(KIND, f"{finding['name']} has not changed")


def _judge_unit(ledger: Ledger, old: Look, new: Look, finding: Finding) -> None:
    name = os.fsencode(finding["name"])

    def places(look: Look) -> dict[bytes, object]:
        return {path: entry for path, entry in look.tree.items() if b"/systemd/" in path and name in path}

    if places(old) == places(new):
        ledger.wrong(KIND, f"unit {finding['name']} has not changed")
