"""Packages of Python: what pip and conda record about what they installed, in environments of every kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from waypoint.history.analyzers.packages import CACHED, Installed, add_package, compare_installed
from waypoint.history.analyzers.reading import (
    MIB,
    Outcome,
    View,
    beginning,
    content,
    guarded,
    names,
    text,
)
from waypoint.model import from_json

# pip

_INFO = re.compile(r"^(.*)/([^/]+\.(?:dist|egg)-info)(?:/|$)")
_SITE = re.compile(r"^(.*)/lib(?:64)?/(?:python|pypy)[\d.]*/(?:site|dist)-packages$")
_HEADER = re.compile(r"^(Name|Version):[ \t]*(\S.*?)[ \t\r]*$", re.MULTILINE)
_NOT_INSTALLED = re.compile(r"/(?:pip-[^/]+|build|_vendor|\.eggs|node_modules)(?:/|$)")


def pip(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Python distributions in any environment: virtual, user, system, pyenv, a plain target folder."""
    sites: dict[str, set[str]] = {}
    for path in touched:
        if "-info" in path and (match := _INFO.match(path)) and _is_site(match[1], match[2]):
            sites.setdefault(match[1], set()).add(match[2])
    for site, folders in sites.items():
        yield from guarded(site, _pip(old, new, site, folders))


def _is_site(site: str, info: str) -> bool:
    if site == "/usr/lib/python3/dist-packages" or CACHED.search(f"{site}/"):
        return False  # Debian's own: these are apt's packages
    inside, _, last = site.rpartition("/")
    if last in {"site-packages", "dist-packages"}:
        return True
    nested = "/site-packages" in inside or "/dist-packages" in inside
    return info.endswith(".dist-info") and not nested and not _NOT_INSTALLED.search(site)


def _pip(old: View, new: View, site: str, folders: set[str]) -> Iterator[Outcome]:
    written: dict[str, str] = {}
    requested: set[str] = set()

    def installed(view: View) -> Installed:
        packages: Installed = {}
        for folder in sorted(folders):
            installer = (text(view, f"{site}/{folder}/INSTALLER", 4096) or "").strip()
            distribution = _distribution(view, f"{site}/{folder}")
            if distribution and installer != "conda":  # those are conda's packages
                name, version = distribution
                key = re.sub(r"[-_.]+", "-", name).lower()
                written[key] = name
                add_package(packages, key, version)
                if installer != "pip" or view.exists(f"{site}/{folder}/REQUESTED"):
                    requested.add(key)  # only pip writes down which ones were asked for
        return packages

    before, after = installed(old), installed(new)
    match = _SITE.match(site)
    environment = (match[1] or "/") if match else site
    direct = frozenset(requested) or None
    for change in compare_installed("pip", environment, before, after, direct=direct):
        yield msgspec.structs.replace(change, name=written[change.name])


def _distribution(view: View, path: str) -> tuple[str, str] | None:
    """Name and version of the distribution that an info folder describes; None if there is none."""
    kinds = (f"{path}/METADATA",) if path.endswith(".dist-info") else (f"{path}/PKG-INFO", path)
    for kind in kinds:
        raw = beginning(view, kind, 16 * 1024)
        if raw is None:
            continue
        head = raw.decode(errors="replace").replace("\r\n", "\n").split("\n\n", 1)[0]
        fields = dict(reversed(_HEADER.findall(head)))
        if "Name" in fields and "Version" in fields:
            return fields["Name"], fields["Version"]
    folder = path.rpartition("/")[2]
    match = re.fullmatch(r"(.+?)-([^-]+)\.dist-info", folder)
    if match and view.exists(kinds[0]):
        return match[1], match[2]
    return None


# conda

_CONDA = re.compile(r"^(.*)/conda-meta/([^/]+)\.json$")


class _CondaPackage(msgspec.Struct):
    name: str | None = None
    version: str | None = None
    requested_spec: str | None = None
    depends: list[str] = []


def conda(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """The packages of conda environments: one file for each."""
    environments: dict[str, list[str]] = {}
    for path in touched:
        if (match := _CONDA.match(path)) and not CACHED.search(path):
            environments.setdefault(match[1], []).append(path)
    for environment, paths in environments.items():
        yield from guarded(environment or "/", _conda(old, new, environment, paths))


def _conda(old: View, new: View, environment: str, paths: list[str]) -> Iterator[Outcome]:
    requested: set[str] = set()
    needed: set[str] = set()

    def installed(view: View, paths: Iterable[str]) -> Installed:
        packages: Installed = {}
        for path in paths:
            if (raw := content(view, path, 16 * MIB)) is None:
                continue
            package = from_json(raw, _CondaPackage)
            if package.name and package.version:
                add_package(packages, package.name, package.version)
                needed.update(spec.split(" ")[0] for spec in package.depends)
                if package.requested_spec not in (None, "", "None"):
                    requested.add(package.name)
        return packages

    before, after = installed(old, paths), installed(new, paths)
    changed = before.keys() | after.keys()
    if changed - requested - needed:  # packages that have not changed may need them
        folder = f"{environment}/conda-meta"
        others = {f"{folder}/{name}" for view in (old, new) for name in names(view, folder)} - set(paths)
        for view in (old, new):
            installed(view, filter(_CONDA.match, sorted(others)))
    direct = frozenset(name for name in changed if name in requested or name not in needed)
    yield from compare_installed("conda", environment or "/", before, after, direct=direct)
