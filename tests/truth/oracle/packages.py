"""Files with a known meaning: packages that are installed, accounts, scheduled commands."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.truth.oracle.tree import Tree

_SCHEDULED = tuple(f"/etc/cron.{when}/".encode() for when in ("d", "hourly", "daily", "weekly", "monthly"))
_SCHEDULED += (b"/etc/crontab", b"/var/spool/cron/")

Installed = Counter[tuple[str, str]]
"""Name and version of what is installed somewhere."""


@dataclass
class System:
    """What is installed, by ecosystem and place, and who may log in."""

    packages: dict[tuple[str, str], Installed] = field(default_factory=dict)
    locked: dict[str, Installed] = field(default_factory=dict)
    """By project: what its lock file names."""
    asked: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """What was asked for by name, by ecosystem and place."""
    users: dict[str, tuple[str, ...]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    passwords: dict[str, str] = field(default_factory=dict)
    keys: dict[str, set[str]] = field(default_factory=dict)
    """The keys that may log in, as `ssh-keygen -l` shows them, by the file that lists them."""
    automatic: set[str] = field(default_factory=set)
    """What apt says that it installed for something else."""
    scheduled: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read_system(root: str, tree: Tree) -> System:
    """Everything of a tree that has such a meaning."""

    def text(path: bytes) -> str:
        return (Path(root) / os.fsdecode(path).lstrip("/")).read_text(errors="replace")

    system = System()
    for path, entry in tree.items():
        if entry.kind != "file":
            continue
        if path == b"/var/lib/dpkg/status":
            system.packages["apt", "/"] = _dpkg(text(path))
        elif path.endswith((b".dist-info/METADATA", b".egg-info/PKG-INFO")):
            _add_pip(system, os.fsdecode(path), text(path), tree)
        elif path.endswith(b"/package.json") and b"/node_modules/" in path:
            _add_npm(system, os.fsdecode(path), text(path))
        elif path.endswith(b"/package.json"):
            _add_asked(system, os.path.dirname(os.fsdecode(path)), text(path))
        elif path == b"/var/lib/apt/extended_states":
            system.automatic = set(re.findall(r"^Package: (\S+)$", text(path), re.MULTILINE))
        elif path.endswith(b"/package-lock.json") and b"/node_modules/" not in path:
            system.locked[os.path.dirname(os.fsdecode(path)) or "/"] = _lock(text(path))
        elif path.endswith(b"/.ssh/authorized_keys"):
            system.keys[os.fsdecode(path)] = {_key(*found) for found in _PUBLIC_KEY.findall(text(path))}
        elif (conda := _CONDA.match(os.fsdecode(path))) and "/pkgs/" not in conda[1]:
            _add_conda(system, conda[1], text(path))
        elif path.startswith(_SCHEDULED):
            lines = (line.strip() for line in text(path).splitlines())
            system.scheduled[os.fsdecode(path)] = tuple(
                line for line in lines if line and not line.startswith("#")
            )
    for line in text(b"/etc/passwd").splitlines() if b"/etc/passwd" in tree else ():
        name, *fields = line.split(":")
        system.users[name] = tuple(fields)
    for line in text(b"/etc/group").splitlines() if b"/etc/group" in tree else ():
        name, _, rest = line.partition(":")
        system.groups[name] = rest
    for line in text(b"/etc/shadow").splitlines() if b"/etc/shadow" in tree else ():
        name, _, rest = line.partition(":")
        system.passwords[name] = rest.partition(":")[0]
    return system


_PUBLIC_KEY = re.compile(r"^(?!#).*?((?:ssh|ecdsa|sk)-\S+) (AAAA\S+)(.*)$", re.MULTILINE)


def _key(kind: str, key: str, comment: str) -> str:
    digest = hashlib.sha256(base64.b64decode(key)).digest()
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}{comment.rstrip()}"


def _dpkg(status: str) -> Installed:
    installed: Installed = Counter()
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if re.match(r"[A-Z][\w-]*: ", line)
        )
        if fields.get("Status", "").endswith(" installed"):
            installed[fields["Package"], fields["Version"]] += 1
    return installed


def _add_pip(system: System, path: str, metadata: str, tree: Tree) -> None:
    site = path.rsplit("/", 2)[0]
    head = metadata.partition("\n\n")[0]
    name, version = (re.search(rf"^{key}: *(.*)$", head, re.MULTILINE) for key in ("Name", "Version"))
    if name and version:
        system.packages.setdefault(("pip", site), Counter())[name[1], version[1]] += 1
        if os.fsencode(f"{os.path.dirname(path)}/REQUESTED") in tree:
            system.asked.setdefault(("pip", site), set()).add(name[1])


def _add_npm(system: System, path: str, manifest: str) -> None:
    place = re.match(r"^(.*?)/node_modules/(?:.*/node_modules/)?(@[^/]+/)?[^/]+/package\.json$", path)
    if place is None:
        return
    try:
        about = json.loads(manifest)
    except ValueError:
        return
    if isinstance(about, dict) and about.get("name") and about.get("version"):
        key = "npm", place[1] or "/"
        system.packages.setdefault(key, Counter())[about["name"], about["version"]] += 1


def _add_asked(system: System, project: str, manifest: str) -> None:
    try:
        about = json.loads(manifest)
    except ValueError:
        return
    names = {
        name
        for part in ("dependencies", "devDependencies", "optionalDependencies")
        for name in about.get(part) or ()
    }
    for kind in ("npm", "lock"):
        system.asked[kind, project] = names


_CONDA = re.compile(r"^(.*)/conda-meta/[^/]+\.json$")


def _add_conda(system: System, environment: str, record: str) -> None:
    about = json.loads(record)
    key = "conda", environment
    system.packages.setdefault(key, Counter())[about["name"], about["version"]] += 1
    if about["requested_spec"] != "None":
        system.asked.setdefault(key, set()).add(about["name"])


def _lock(text: str) -> Installed:
    try:
        packages = json.loads(text).get("packages", {})
    except ValueError:
        return Counter()
    return Counter(
        (about.get("name") or place.rpartition("node_modules/")[2], about["version"])
        for place, about in packages.items()
        if "node_modules/" in place and "version" in about and not about.get("link")
    )
