"""Packages: what dpkg, apk and cargo record about what they installed, and what lock files say.

Only what was touched is read. Package lists are compared paragraph by paragraph as bytes, and only the
paragraphs that differ are parsed. Here is also what all records of packages have in common; python.py and
node.py read those of Python and Node.
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
    content,
    guarded,
    text,
)
from waypoint.history.view import printable
from waypoint.model import from_json, from_toml

Installed = dict[str, Counter[str]]
"""Name to versions: most have one, node_modules may hold several."""
CACHED = re.compile(
    r"/\.cache/(?!pypoetry/virtualenvs/)|/(?:archive|builds|environments|wheels|sdists)-v\d+/"
    r"|/\.npm/_|/\.yarn/(?:cache|berry)/|/\.bun/install/cache/|/\.pnpm-store/|/pkgs/[^/]+-[^/]+-[^/]+/"
)
"""What a tool keeps for later is not installed. (Poetry keeps environments in its cache.)"""


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


def compare_installed(
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


def add_package(to: Installed, name: str, version: str) -> None:
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
        then, now = _automatic(old, root), _automatic(new, root)
        direct = frozenset(
            name
            for name in removed.keys() | added.keys()
            if name.partition(":")[0] not in (now if name in added else then)
        )
        yield from compare_installed("apt", root or "/", removed, added, direct=direct)


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
            add_package(packages, f"{name}:{architecture}" if foreign else name, version)
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
    yield from compare_installed("apk", root or "/", removed, added, direct=direct)


def _apk_installed(paragraphs: set[bytes]) -> Installed:
    packages: Installed = {}
    for paragraph in paragraphs:
        fields = _fields(paragraph)
        if "P" in fields and "V" in fields:
            add_package(packages, fields["P"], fields["V"])
    return packages


# lock files of Python and Rust

_LOCKS = {"uv.lock": "pip", "poetry.lock": "pip", "pdm.lock": "pip", "Cargo.lock": "cargo"}
_NOT_OF_A_PROJECT = re.compile(r"/(?:\.cargo|node_modules|(?:site|dist)-packages|vendor)/")


class _TomlPackage(msgspec.Struct):
    name: str = ""
    version: str = ""
    source: dict[str, msgspec.Raw | str] | str | None = None


class _TomlLock(msgspec.Struct):
    package: list[_TomlPackage] = []


def locks(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """What only a lock file says: where the packages of the project were installed too, those are told."""
    for path in touched:
        folder, _, name = path.rpartition("/")
        if name not in _LOCKS or _NOT_OF_A_PROJECT.search(path) or CACHED.search(path):
            continue
        own = f"{folder}/"
        if not any("-info/" in other and other.startswith(own) for other in touched):
            yield from guarded(path, _toml_lock(old, new, folder, path, _LOCKS[name]))


def _toml_lock(old: View, new: View, folder: str, path: str, ecosystem: str) -> Iterator[Outcome]:
    def locked(view: View) -> Installed:
        packages: Installed = {}
        raw = content(view, path, 16 * MIB)
        for package in from_toml(raw, _TomlLock).package if raw is not None else ():
            own = isinstance(package.source, dict) and not package.source.keys().isdisjoint(
                {"virtual", "editable"}
            )
            if package.name and package.version and not own:
                add_package(packages, package.name, package.version)
        return packages

    yield from compare_installed(ecosystem, folder or "/", locked(old), locked(new), installed=False)


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
    yield from compare_installed("cargo", environment, _crates(old, path), _crates(new, path))


def _crates(view: View, path: str) -> Installed:
    packages: Installed = {}
    raw = content(view, path, 4 * MIB)
    if raw is not None:
        for key in from_json(raw, _Crates).installs:
            name, version, *_ = [*key.split(" "), "", ""]
            add_package(packages, name, version)
    return packages
