"""Groups, passwords, keys that may log in, units of systemd, capabilities."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tests.truth.judge.ledger import Ledger
from tests.truth.oracle.look import Look
from tests.truth.oracle.tree import Entry

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
        ("unit", _units_changed(old, new)),
        ("capability", _changed(_capabilities(old), _capabilities(new))),
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
    return {detail[1:] for detail in finding["details"] if detail.startswith(sign)}


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


_CAPABILITIES = "security.capability"
_BITS = {10: "cap_net_bind_service", 12: "cap_net_admin", 13: "cap_net_raw"}
"""Those of the stories, by their numbers in linux/capability.h."""


def _capabilities(look: Look) -> dict[str, str]:
    """What the programs of a tree may do."""
    return {
        os.fsdecode(path): _word_of_capabilities(dict(entry.attributes)[_CAPABILITIES])
        for path, entry in look.tree.items()
        if any(name == _CAPABILITIES for name, _ in entry.attributes)
    }


def _word_of_capabilities(data: bytes) -> str:
    """`cap_net_raw+ep`, of what the kernel stores (vfs_cap_data: the first half)."""
    magic, permitted, inheritable = struct.unpack_from("<3I", data)
    assert inheritable in (0, permitted)
    names = ",".join(name for bit, name in _BITS.items() if permitted >> bit & 1)
    return f"{names}+{'e' * (magic & 1)}{'i' * bool(inheritable)}p"


def _judge_capability(ledger: Ledger, old: Look, new: Look, finding: Finding) -> None:
    was, now = (_capabilities(look).get(finding["name"]) for look in (old, new))
    change = "created" if was is None else "removed" if now is None else "changed"
    words = " → ".join(filter(None, (was, now)))
    said = finding["change"], list(finding["details"])
    ledger.equal(KIND, f"capabilities of {finding['name']}", said, (change, [words]))


_UNIT_FOLDER = re.compile(rb"^(/etc/systemd/(?:system|user)|.*/\.config/systemd/user)/(.+)$")


def _units(look: Look) -> dict[bytes, tuple[str, Entry]]:
    """By path, the unit that a file or a link is about."""
    found = {}
    for path, entry in look.tree.items():
        if (match := _UNIT_FOLDER.match(path)) and entry.kind in ("file", "link"):
            steps = os.fsdecode(match[2]).split("/")
            is_part = len(steps) == 2 and steps[0].endswith(".d")
            found[path] = steps[0].removesuffix(".d") if is_part else steps[-1], entry
    return found


def _units_changed(old: Look, new: Look) -> set[str]:
    before, after = _units(old), _units(new)
    return {name for _, (name, _) in before.items() ^ after.items()}


def _judge_unit(ledger: Ledger, old: Look, new: Look, finding: Finding) -> None:
    """What is told of one path: a link that enables, a part that is added, or the unit itself."""
    before, after = _units(old), _units(new)
    fates: set[tuple[str, tuple[str, ...]]] = set()
    for path, (name, _) in before.items() ^ after.items():
        if name != finding["name"]:
            continue
        fate = "created" if path not in before else "removed" if path not in after else "changed"
        folder = os.fsdecode(os.path.dirname(path))
        if folder.endswith((".wants", ".requires")):
            fates.add(("changed", ("disabled" if fate == "removed" else "enabled",)))
        elif folder.endswith(".d"):
            sign = {"created": "+", "removed": "-", "changed": "~"}[fate]
            fates.add(("changed", (f"{sign}{os.fsdecode(os.path.basename(path))}",)))
        else:
            fates.add((fate, ()))
    if (finding["change"], tuple(finding["details"])) not in fates:
        ledger.wrong(KIND, f"unit {finding['name']}: {finding['change']} {finding['details']}, is {fates}")
