"""Packages of Node: what npm, pnpm and yarn record about what they installed or locked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from waypoint.history.analyzers.packages import CACHED, Installed, add_package, compare_installed
from waypoint.history.analyzers.reading import (
    MIB,
    Outcome,
    View,
    content,
    guarded,
    is_file,
    is_folder,
)
from waypoint.model import MALFORMED, from_json

_PACKAGE_FILE = re.compile(r"(?:^|/node_modules/)((?:@[^/]+/)?[^/@.][^/]*)/package\.json$")
_IN_NODE_MODULES = "/node_modules/"


class _Locked(msgspec.Struct, rename="camel"):
    version: str | None = None
    link: bool = False
    name: str | None = None
    dependencies: msgspec.Raw = msgspec.Raw(b"null")
    dev_dependencies: dict[str, msgspec.Raw] | None = None
    optional_dependencies: dict[str, msgspec.Raw] | None = None
    peer_dependencies: dict[str, msgspec.Raw] | None = None
    requires: dict[str, msgspec.Raw] | bool | None = None

    def needs(self) -> set[str]:
        """The names of what it depends on."""
        try:
            own = from_json(self.dependencies, dict[str, msgspec.Raw] | None)
        except MALFORMED:
            own = None
        requires = self.requires if isinstance(self.requires, dict) else None
        others = (self.dev_dependencies, self.optional_dependencies, self.peer_dependencies)
        return {name for group in (own, requires, *others) for name in group or ()}


class _Lock(msgspec.Struct):
    packages: dict[str, _Locked] = {}
    dependencies: dict[str, _Locked] = {}


class _Manifest(msgspec.Struct):
    name: str | None = None
    version: str | None = None
    dependencies: dict[str, msgspec.Raw] | None = None
    dev_dependencies: dict[str, msgspec.Raw] | None = msgspec.field(name="devDependencies", default=None)
    optional_dependencies: dict[str, msgspec.Raw] | None = msgspec.field(
        name="optionalDependencies", default=None
    )


class _Id(msgspec.Struct):
    name: str | None = None
    version: str | None = None


def npm(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Node packages: npm's or pnpm's own list of node_modules; else the manifest of each package, as with
    yarn; else, where node_modules was not touched, the lock file."""
    manifests: dict[str, list[str]] = {}
    for path in touched:
        if _IN_NODE_MODULES in path:
            if path.endswith(("/package.json", "/.package-lock.json", f"/{_PNPM_LIST}")):
                project, _, inside = path.partition(_IN_NODE_MODULES)
                if not CACHED.search(f"{project}/"):
                    manifests.setdefault(project, []).append(inside)
        elif path.endswith(("/package-lock.json", "/pnpm-lock.yaml")) and not CACHED.search(path):
            manifests.setdefault(path.rpartition("/")[0], [])
    for project, listed in manifests.items():
        yield from guarded(project or "/", _npm(old, new, project, listed))


def _npm(old: View, new: View, project: str, inside: list[str]) -> Iterator[Outcome]:
    place = f"{project}/node_modules"
    lists = [name for name in (".package-lock.json", _PNPM_LIST) if name in inside]
    whole = [name for name in lists if all(_describes(name, view, place) for view in (old, new))]
    listed = whole[0] if whole else None
    if inside and listed is None:
        whole_system = project.endswith("/lib")  # `npm install -g`: the packages inside a package are its own
        wanted = [path for path in inside if not (whole_system and _IN_NODE_MODULES in path)]
        before, after = _manifests(old, place, wanted), _manifests(new, place, wanted)
        direct = (_requested(old, project) | _requested(new, project)) or None
    else:
        if listed:
            path = f"{place}/{listed}"
        else:
            npm_lock = f"{project}/package-lock.json"
            path = npm_lock if new.exists(npm_lock) or old.exists(npm_lock) else f"{project}/pnpm-lock.yaml"
        was, now = _read_lock(old, path), _read_lock(new, path)
        before, after = was.packages, now.packages
        requested = _requested(old, project) | _requested(new, project) | was.direct | now.direct
        needed = was.needed | now.needed
        names = before.keys() | after.keys()
        direct = frozenset(name for name in names if name in requested or name not in needed)
    yield from compare_installed("npm", project or "/", before, after, direct=direct, installed=bool(inside))


def _describes(name: str, view: View, place: str) -> bool:
    """Whether a list describes this node_modules: it exists, or there is nothing to describe."""
    return is_file(view, f"{place}/{name}") or not is_folder(view, place)


class _Listed(NamedTuple):
    """What a list or a lock file says."""

    packages: Installed
    needed: frozenset[str] = frozenset()
    """The names of what any of the packages depends on."""
    direct: frozenset[str] = frozenset()
    """What the project itself, or one of its workspaces, depends on."""


def _read_lock(view: View, path: str) -> _Listed:
    raw = content(view, path, 64 * MIB)
    if raw is None:
        return _Listed({})
    return _pnpm_lock(raw.decode(errors="replace")) if path.endswith(".yaml") else _npm_lock(raw)


_PNPM_LIST = ".pnpm/lock.yaml"
_PNPM_PACKAGE = re.compile(
    r"^  (['\"]?)/?((?:@[^/@\s]+/)?[^/@\s'\"]+)[@/](\d[^()'\"\s:_]*)[^:\n]*\1:", re.MULTILINE
)
_PNPM_DIRECT = re.compile(r"^ {6}(['\"]?)((?:@[^/'\"\s]+/)?[^/'\"\s:]+)\1:\s*$", re.MULTILINE)
_PNPM_NEEDED = re.compile(r"^ {6}(['\"]?)((?:@[^/'\"\s]+/)?[^/'\"\s:]+)\1: \S", re.MULTILINE)
_YAML_SECTION = re.compile(r"^(?=\w+:)", re.MULTILINE)


def _pnpm_lock(lock: str) -> _Listed:
    """pnpm's lock file, of versions 5 to 9. Its writer is one program, so that lines are enough."""
    sections = {part.partition(":")[0]: part for part in _YAML_SECTION.split(lock)}
    packages: Installed = {}
    for _, name, version in _PNPM_PACKAGE.findall(sections.get("packages", "")):
        add_package(packages, name, version)
    needed = _PNPM_NEEDED.findall(sections.get("snapshots") or sections.get("packages", ""))
    direct = [name for _, name in _PNPM_DIRECT.findall(sections.get("importers", ""))]
    return _Listed(packages, frozenset(name for _, name in needed), frozenset(direct))


def _npm_lock(raw: bytes) -> _Listed:
    lock = from_json(raw, _Lock)
    packages: Installed = {}
    needed: set[str] = set()
    direct: set[str] = set()
    for place, entry in lock.packages.items():
        (needed if "node_modules/" in place else direct).update(entry.needs())
        if entry.version and not entry.link and "node_modules/" in place:
            add_package(packages, entry.name or place.rpartition("node_modules/")[2], entry.version)
    if not lock.packages:
        waiting = list(lock.dependencies.items())
        while waiting:
            name, entry = waiting.pop()
            if entry.version:
                add_package(packages, name, entry.version)
            nested = from_json(entry.dependencies, dict[str, _Locked] | None)
            waiting.extend((nested or {}).items())
            needed |= (nested or {}).keys() | entry.needs()
    return _Listed(packages, frozenset(needed), frozenset(direct))


def _manifests(view: View, place: str, inside: list[str]) -> Installed:
    packages: Installed = {}
    for path in inside:
        if (match := _PACKAGE_FILE.search(path)) is None:
            continue
        raw = content(view, f"{place}/{path}", 4 * MIB)
        if raw is None:
            continue
        try:
            manifest = from_json(raw, _Id)
        except MALFORMED:
            continue  # packages contain broken examples of manifests
        if manifest.version:
            add_package(packages, manifest.name or match[1], manifest.version)
    return packages


def _requested(view: View, project: str) -> frozenset[str]:
    raw = content(view, f"{project}/package.json", 4 * MIB)
    if raw is None:
        return frozenset()
    manifest = from_json(raw, _Manifest)
    parts = (manifest.dependencies, manifest.dev_dependencies, manifest.optional_dependencies)
    return frozenset(name for part in parts for name in part or ())
