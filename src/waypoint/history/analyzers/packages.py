"""Packages: what dpkg, apk, pip, npm and cargo record about what they installed.

Only what was touched is read. Package lists are compared paragraph by paragraph as bytes, and only the
paragraphs that differ are parsed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from waypoint.api.findings import PackageChange, PackageMove
from waypoint.history.analyzers.reading import (
    MIB,
    Outcome,
    View,
    beginning,
    content,
    guarded,
    is_file,
    is_folder,
    text,
)
from waypoint.history.view import printable

Installed = dict[str, Counter[str]]
"""Name to versions: most have one, node_modules may hold several."""


# Versions


def _part(word: str, *, words_are_later: bool) -> tuple[int, int, str]:
    if word.isdecimal() and len(word) < 20:
        return (2, int(word), "")
    early = {"a", "alpha", "b", "beta", "c", "rc", "pre", "preview", "dev", "canary", "next", "nightly"}
    if word == "~" or (word in early and not words_are_later):
        return (0, 0, word)
    return (3, 0, word)


def _sortable(version: str, *, words_are_later: bool) -> tuple[int, list[tuple[int, int, str]]]:
    epoch, separator, rest = version.partition("!" if "!" in version else ":")
    if not (separator and epoch.isdecimal() and len(epoch) < 10):
        epoch, rest = "0", version
    release = rest.split("+", 1)[0] if not words_are_later else rest
    parts = [
        _part(word, words_are_later=words_are_later) for word in re.findall(r"\d+|[a-z]+|~", release.lower())
    ]
    return int(epoch), [*parts, (1, 0, "")]


def move(before: str | None, after: str | None, *, words_are_later: bool = False) -> PackageMove:
    """Whether a version went up or down. Numbers count as numbers, and release candidates come before their
    release (not with `words_are_later`: in the versions of distributions only `~` comes before)."""
    if before is None:
        return "added"
    if after is None:
        return "removed"
    first = _sortable(before, words_are_later=words_are_later)
    second = _sortable(after, words_are_later=words_are_later)
    return "downgraded" if second < first else "upgraded"


def _compare(
    ecosystem: str,
    environment: str,
    before: Installed,
    after: Installed,
    *,
    direct: frozenset[str] | None = None,
    installed: bool = True,
) -> Iterator[PackageChange]:
    """Only what differs. `direct`: the names that were asked for; None when all were."""
    for name in sorted(before.keys() | after.keys()):
        removed = sorted((before.get(name, Counter()) - after.get(name, Counter())).elements())
        added = sorted((after.get(name, Counter()) - before.get(name, Counter())).elements())
        for index in range(max(len(removed), len(added))):
            old = removed[index] if index < len(removed) else None
            new = added[index] if index < len(added) else None
            yield PackageChange(
                ecosystem=ecosystem,
                environment=printable(environment),
                name=name,
                change=move(old, new, words_are_later=ecosystem in {"apt", "apk"}),
                before=old,
                after=new,
                direct=direct is None or name in direct,
                installed=installed,
            )


def _add(to: Installed, name: str, version: str) -> None:
    to.setdefault(name, Counter())[version] += 1


# dpkg

_PRESENT = {"installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending"}


def dpkg(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Debian's packages, in the system and in any root inside it."""
    roots: dict[str, list[str]] = {}
    for path in touched:
        if "/var/lib/dpkg/status" in path:
            root, _, rest = path.rpartition("/var/lib/dpkg/status")
            if not rest or (rest.startswith(".d/") and not rest.endswith(".md5sums")):
                roots.setdefault(root, []).append(path)
    for root, lists in roots.items():
        yield from guarded(root or "/", _dpkg(old, new, root, lists))


def _dpkg(old: View, new: View, root: str, lists: list[str]) -> Iterator[Outcome]:
    before = _paragraphs(old, lists)
    after = _paragraphs(new, lists)
    native = _native(after) or _native(before)
    removed = _dpkg_installed(before - after, native)
    added = _dpkg_installed(after - before, native)
    if removed or added:
        automatic = _automatic(old, root) | _automatic(new, root)
        direct = frozenset(
            name for name in removed.keys() | added.keys() if name.partition(":")[0] not in automatic
        )
        yield from _compare("apt", root or "/", removed, added, direct=direct)


def _paragraphs(view: View, paths: Iterable[str]) -> set[bytes]:
    paragraphs: set[bytes] = set()
    for path in paths:
        paragraphs.update((content(view, path, 64 * MIB) or b"").split(b"\n\n"))
    return {paragraph.strip(b"\n") for paragraph in paragraphs} - {b""}


def _fields(paragraph: bytes) -> dict[str, str]:
    lines = paragraph.decode(errors="replace").split("\n")
    pairs = (line.split(":", 1) for line in lines if ":" in line and not line.startswith((" ", "\t")))
    return {key: value.strip() for key, value in pairs}


def _native(paragraphs: set[bytes]) -> str | None:
    """The architecture of dpkg itself: packages of this one have no suffix."""
    for paragraph in paragraphs:
        if paragraph.startswith(b"Package: dpkg\n"):
            return _fields(paragraph).get("Architecture")
    return None


def _dpkg_installed(paragraphs: set[bytes], native: str | None) -> Installed:
    packages: Installed = {}
    for paragraph in paragraphs:
        fields = _fields(paragraph)
        state = fields.get("Status", "install ok installed").split()[-1:]
        name, version = fields.get("Package"), fields.get("Version")
        if name and version and state and state[0] in _PRESENT:
            architecture = fields.get("Architecture", "all")
            foreign = native is not None and architecture not in {native, "all"}
            _add(packages, f"{name}:{architecture}" if foreign else name, version)
    return packages


def _automatic(view: View, root: str) -> set[str]:
    """What apt installed only because something else needs it."""
    listed = content(view, f"{root}/var/lib/apt/extended_states", 16 * MIB) or b""
    marked = (paragraph for paragraph in listed.split(b"\n\n") if b"Auto-Installed: 1" in paragraph)
    return {_fields(paragraph).get("Package", "") for paragraph in marked}


# apk


def apk(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Alpine's packages."""
    for path in touched:
        if path.endswith("/lib/apk/db/installed"):
            yield from guarded(path, _apk(old, new, path))


def _apk(old: View, new: View, path: str) -> Iterator[Outcome]:
    root = path.removesuffix("/lib/apk/db/installed").removesuffix("/usr")
    before, after = _paragraphs(old, [path]), _paragraphs(new, [path])
    world = f"{text(old, f'{root}/etc/apk/world') or ''}\n{text(new, f'{root}/etc/apk/world') or ''}"
    direct = frozenset(re.split(r"[=<>~@]", word)[0] for word in world.split())
    removed, added = _apk_installed(before - after), _apk_installed(after - before)
    yield from _compare("apk", root or "/", removed, added, direct=direct)


def _apk_installed(paragraphs: set[bytes]) -> Installed:
    packages: Installed = {}
    for paragraph in paragraphs:
        fields = _fields(paragraph)
        if "P" in fields and "V" in fields:
            _add(packages, fields["P"], fields["V"])
    return packages


# pip

_INFO = re.compile(r"^(.*)/([^/]+\.(?:dist|egg)-info)(?:/|$)")
_SITE = re.compile(r"^(.*)/lib(?:64)?/(?:python|pypy)[\d.]*/(?:site|dist)-packages$")
_HEADER = re.compile(r"^(Name|Version):[ \t]*(\S.*?)[ \t\r]*$", re.MULTILINE)
_NOT_INSTALLED = re.compile(r"/(?:\.cache|pip-[^/]+|build|_vendor|\.eggs|node_modules)(?:/|$)")


def pip(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Python distributions in any environment: virtual, user, system, pyenv, a plain target folder."""
    sites: dict[str, set[str]] = {}
    for path in touched:
        if "-info" in path and (match := _INFO.match(path)) and _is_site(match[1], match[2]):
            sites.setdefault(match[1], set()).add(match[2])
    for site, folders in sites.items():
        yield from guarded(site, _pip(old, new, site, folders))


def _is_site(site: str, info: str) -> bool:
    if site == "/usr/lib/python3/dist-packages":
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
            if distribution := _distribution(view, f"{site}/{folder}"):
                name, version = distribution
                key = re.sub(r"[-_.]+", "-", name).lower()
                written[key] = name
                _add(packages, key, version)
                if folder.endswith(".egg-info") or view.exists(f"{site}/{folder}/REQUESTED"):
                    requested.add(key)
        return packages

    before, after = installed(old), installed(new)
    match = _SITE.match(site)
    environment = (match[1] or "/") if match else site
    for change in _compare("pip", environment, before, after, direct=frozenset(requested)):
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


# npm

_PACKAGE_FILE = re.compile(r"(?:^|/node_modules/)((?:@[^/]+/)?[^/@.][^/]*)/package\.json$")
_IN_NODE_MODULES = "/node_modules/"


class _Locked(msgspec.Struct):
    version: str | None = None
    link: bool = False
    name: str | None = None
    dependencies: msgspec.Raw = msgspec.Raw(b"null")


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
    """Node packages: npm's own list of node_modules; else the manifest of each package, as with yarn and
    pnpm; else, where nothing is installed, the lock file."""
    manifests: dict[str, list[str]] = {}
    for path in touched:
        if _IN_NODE_MODULES in path:
            if path.endswith(("/package.json", "/.package-lock.json")):
                project, _, inside = path.partition(_IN_NODE_MODULES)
                manifests.setdefault(project, []).append(inside)
        elif path.endswith("/package-lock.json"):
            manifests.setdefault(path.removesuffix("/package-lock.json"), [])
    for project, listed in manifests.items():
        yield from guarded(project or "/", _npm(old, new, project, listed))


def _npm(old: View, new: View, project: str, inside: list[str]) -> Iterator[Outcome]:
    place = f"{project}/node_modules"
    installed = True
    if not inside:
        lock = f"{project}/package-lock.json"
        before, after = _locked(old, lock) or {}, _locked(new, lock) or {}
        installed = is_folder(new, place)
    elif ".package-lock.json" in inside and _has_npm_list(old, place) and _has_npm_list(new, place):
        lock = f"{place}/.package-lock.json"
        before, after = _locked(old, lock) or {}, _locked(new, lock) or {}
    else:
        whole_system = project.endswith("/lib")  # `npm install -g`: the packages inside a package are its own
        wanted = [path for path in inside if not (whole_system and _IN_NODE_MODULES in path)]
        before, after = _manifests(old, place, wanted), _manifests(new, place, wanted)
    direct = _requested(old, project) | _requested(new, project)
    yield from _compare("npm", project or "/", before, after, direct=direct or None, installed=installed)


def _has_npm_list(view: View, place: str) -> bool:
    """Whether npm's own list describes this folder: it exists, or there is nothing to describe."""
    return is_file(view, f"{place}/.package-lock.json") or not is_folder(view, place)


def _locked(view: View, path: str) -> Installed | None:
    raw = content(view, path, 64 * MIB)
    if raw is None:
        return None
    lock = msgspec.json.decode(raw, type=_Lock)
    packages: Installed = {}
    for place, entry in lock.packages.items():
        if entry.version and not entry.link and "node_modules/" in place:
            _add(packages, entry.name or place.rpartition("node_modules/")[2], entry.version)
    if not lock.packages:
        waiting = list(lock.dependencies.items())
        while waiting:
            name, entry = waiting.pop()
            if entry.version:
                _add(packages, name, entry.version)
            nested = msgspec.json.decode(entry.dependencies, type=dict[str, _Locked] | None)
            waiting.extend((nested or {}).items())
    return packages


def _manifests(view: View, place: str, inside: list[str]) -> Installed:
    packages: Installed = {}
    for path in inside:
        if (match := _PACKAGE_FILE.search(path)) is None:
            continue
        raw = content(view, f"{place}/{path}", 4 * MIB)
        if raw is None:
            continue
        try:
            manifest = msgspec.json.decode(raw, type=_Id)
        except msgspec.DecodeError:
            continue  # packages contain broken examples of manifests
        if manifest.version:
            _add(packages, manifest.name or match[1], manifest.version)
    return packages


def _requested(view: View, project: str) -> frozenset[str]:
    raw = content(view, f"{project}/package.json", 4 * MIB)
    if raw is None:
        return frozenset()
    manifest = msgspec.json.decode(raw, type=_Manifest)
    parts = (manifest.dependencies, manifest.dev_dependencies, manifest.optional_dependencies)
    return frozenset(name for part in parts for name in part or ())


# cargo


class _Crates(msgspec.Struct):
    installs: dict[str, msgspec.Raw] = {}


def cargo(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Programs that `cargo install` installed."""
    for path in touched:
        if path.endswith("/.crates2.json"):
            yield from guarded(path, _cargo(old, new, path))


def _cargo(old: View, new: View, path: str) -> Iterator[Outcome]:
    environment = path.removesuffix("/.crates2.json")
    yield from _compare("cargo", environment, _crates(old, path), _crates(new, path))


def _crates(view: View, path: str) -> Installed:
    packages: Installed = {}
    raw = content(view, path, 4 * MIB)
    if raw is not None:
        for key in msgspec.json.decode(raw, type=_Crates).installs:
            name, version, *_ = [*key.split(" "), "", ""]
            _add(packages, name, version)
    return packages
