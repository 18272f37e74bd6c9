"""Changed files in a few words: counted for a section that lists them, named for the one line of a log.

A line of a log has room for two names. They are those of the files that tell most: no cache of a program, no
file that a package brought, no database whose rows are told anyway, and logs and files of the system last.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from waypoint.api.difference import Change, Changes
from waypoint.api.findings import (
    AccountChange,
    Analysis,
    CronChange,
    DatabaseChange,
    PackageChange,
    RepositoryChange,
    ServerChange,
    SystemChange,
)
from waypoint.history.changes import Fold, Folded, Summary, Thing, fold_noisy, is_cache, thing, total
from waypoint.text.units import plural

_SIGNS = {"created": "+", "modified": "~", "deleted": "-", "renamed": "→"}
NOUNS: Mapping[Thing, str] = {
    "file": "file",
    "folder": "folder",
    "link": "symlink",
    "hard link": "hard link",
    "fifo": "fifo",
    "socket": "socket",
    "device": "device",
}
"""What a change is counted as, in the order in which several kinds are named."""
_NAMED = 2
_WHOLE_PATH = 24
"""Up to so many characters a path is not shortened."""
_ASIDE = ("", "-wal", "-shm", "-journal")
_BY_SYSTEM = (
    *("/bin/", "/etc/alternatives/", "/etc/ld.so.cache/", "/lib/", "/sbin/", "/usr/bin/", "/usr/include/"),
    *("/usr/lib/", "/usr/libexec/", "/usr/sbin/", "/usr/share/", "/var/cache/", "/var/lib/", "/var/log/"),
)
_BY_PACKAGES = {
    "apt": _BY_SYSTEM,
    "apk": _BY_SYSTEM,
    "cargo": ("/bin/", "/.crates.toml/", "/.crates2.json/"),
    "conda": (
        "/bin/",
        "/conda-meta/",
        "/etc/",
        "/include/",
        "/lib/",
        "/libexec/",
        "/man/",
        "/share/",
        "/ssl/",
    ),
    "npm": ("/node_modules/",),
    "pip": ("/bin/", "/include/", "/lib/", "/lib64/", "/share/"),
}
"""By who installs packages, where in their environment those lie."""
_OF_SERVERS = {"postgresql": ("/dev/shm/PostgreSQL.", "/run/postgresql/.s.PGSQL.", "/tmp/.s.PGSQL.")}
"""Shared memory and sockets that belong to a running server."""
_SCRATCH = tuple(path for paths in _OF_SERVERS.values() for path in paths)
_ENVIRONMENT = "/pyvenv.cfg"
"""The file that makes a folder a Python environment."""
_ACCOUNTS = frozenset(
    f"/etc/{name}{end}"
    for name in ("passwd", "shadow", "group", "gshadow", "subuid", "subgid")
    for end in ("", "-")
)
"""What a change of a user or a group writes, with the backups that are made of it."""
_SYSTEM = ("/bin/", "/boot/", "/etc/", "/lib/", "/opt/", "/run/", "/sbin/", "/usr/", "/var/")
_BY_THE_WAY = frozenset({".lock", ".log", ".out", ".pid", ".sock", ".swp", ".tmp"})


# ---- counted -------------------------------------------------------------------------------------


def fold_files(changes: Changes, analysis: Analysis) -> Folded:
    """Changes with the folders that programs fill as one line each. The data folder of a server is one, a
    bare repository another."""
    servers = [finding.path for finding in analysis.findings if isinstance(finding, ServerChange)]
    return fold_noisy(changes, [*servers, *_bare(analysis), *_of_conda(analysis)])


def _of_conda(analysis: Analysis) -> list[str]:
    """The folders that conda fills, of the environments in which packages came or went."""
    environments = {
        finding.environment
        for finding in analysis.findings
        if isinstance(finding, PackageChange) and finding.ecosystem == "conda"
    }
    own = environments - {"/", "/usr", "/usr/local"}
    return [place.rstrip("/") for environment in sorted(own) for place in _places("conda", environment)]


def _places(ecosystem: str, environment: str) -> list[str]:
    """Where the packages of an environment lie."""
    top = environment.rstrip("/")
    places = [f"{top}{part}" for part in _BY_PACKAGES.get(ecosystem, ())]
    if ecosystem == "conda":  # what was fetched is shared by all environments
        places.append(f"{top.partition('/envs/')[0]}/pkgs/")
    return places


def _bare(analysis: Analysis) -> list[str]:
    return [
        finding.path
        for finding in analysis.findings
        if isinstance(finding, RepositoryChange) and finding.bare
    ]


def summarize_files(changes: Changes, analysis: Analysis | None = None) -> str:
    """All changed files in a few words: `+7 ~3 files, +1,842 in app/node_modules`; empty when nothing
    changed."""
    folded = fold_files(changes, analysis or Analysis())
    listed = total(folded.changes)
    words = count_files(listed)
    ordered = sorted(folded.folds, key=lambda fold: fold.is_cache)
    labels = _labels([fold.path for fold in ordered])
    folds = [(labels[fold.path], _signed_counts(fold)) for fold in ordered]
    # What git wrote for itself is not worth a word beside other changes.
    folds = [(name, counts) for name, counts in folds if counts and not (words and _is_git(name))]
    named = folds[:_NAMED]
    if not words and folds:
        more = ", …" if len(folds) > _NAMED else ""
        return f"{count_files(total(changes))} ({', '.join(name for name, _ in named)}{more})"
    folders = [change for change in folded.changes if change.entry == "folder"]
    phrases = [
        words or _folders(folders),
        *(f"{counts} in {name}" for name, counts in named),
        "…" if len(folds) > _NAMED else "",
    ]
    in_folds = ", ".join(list(labels.values())[:_NAMED])
    return ", ".join(filter(None, phrases)) or (f"folders in {in_folds}" if folded.folds else "")


def count_files(count: Summary | Fold) -> str:
    """`+7 ~3 files`; empty when there are none."""
    words = _signed_counts(count)
    return f"{words} {noun_of(count)}" if words else ""


def noun_of(*counts: Summary | Fold) -> str:
    """What was counted: `file`, `folders`, `files and hard links`."""
    number = sum(count.created + count.modified + count.deleted + count.renamed for count in counts)
    things = frozenset[Thing]().union(*(count.things for count in counts))
    nouns = [noun for thing, noun in NOUNS.items() if thing in things]
    if len(nouns) == 1:
        return f"{nouns[0]}{'s' * (number != 1)}"
    several = [f"{noun}s" for noun in nouns]
    return f"{', '.join(several[:-1])} and {several[-1]}"


def _signed_counts(count: Summary | Fold) -> str:
    """`+7 ~3`; empty when there are none."""
    numbers = {"+": count.created, "~": count.modified, "-": count.deleted, "→": count.renamed}
    return " ".join(f"{sign}{number:,}" for sign, number in numbers.items() if number)


def _folders(folders: Sequence[Change]) -> str:
    """Folders without a file that changed, by name when there are few."""
    paths = [folder.path for folder in folders]
    ends = [folder for folder in folders if not any(path.startswith(f"{folder.path}/") for path in paths)]
    if len(ends) > _NAMED:
        return f"{len(ends):,} folders"
    return ", ".join(_signed(folder, f"{folder.path.rstrip('/')}/") for folder in ends)


def _is_git(label: str) -> bool:
    return posixpath.basename(label) == ".git"


def _labels(paths: Sequence[str]) -> dict[str, str]:
    """By path, a name that is short and says which one it is: `.venv/bin`, `app/node_modules`."""
    short = {path: "/".join(path.rsplit("/", 2)[-2:]) for path in paths}
    times = Counter(short.values())
    return {path: name if times[name] == 1 and path.count("/") > 2 else path for path, name in short.items()}


# ---- named ---------------------------------------------------------------------------------------


def name_files(changes: Changes, analysis: Analysis, *, beside: bool) -> str:
    """The files that tell most by name: `~api.py, +pay.py and 8 more files (+6 -2)`. `beside`: other things
    are told, so that caches and what findings explain need no word."""
    folded = fold_files(changes, analysis)
    explained = _Explained(analysis, folded.changes)
    own = [change for change in _leaves(folded) if not explained.covers(change.path)]
    telling = [change for change in own if not _is_by_the_way(change.path)]
    folds = [
        fold
        for fold in folded.folds
        if not (fold.is_cache or explained.covers(fold.path) or _is_git(fold.path))
    ]
    words = ", ".join(filter(None, (_names(telling, analysis), _in_folders(folds))))
    if not words and not beside:
        words = _names(own, analysis)
    return words if words or beside else _by_the_way(changes)


def _by_the_way(changes: Changes) -> str:
    words = summarize_files(changes)
    folded = fold_noisy(changes)
    only_caches = all(is_cache(change.path) for change in folded.changes) and all(
        fold.is_cache for fold in folded.folds
    )
    return f"caches only: {words}" if words and only_caches else words


class _Explained:
    """What needs no name, because a finding tells it or because it is a cache."""

    def __init__(self, analysis: Analysis, changes: Sequence[Change]) -> None:
        self._files: set[str] = set()
        self._below: set[str] = set()
        for finding in analysis.findings:
            if isinstance(finding, DatabaseChange):
                self._files |= {f"{finding.path}{end}" for end in _ASIDE}
            elif isinstance(finding, ServerChange):
                self._files.add(finding.path)
                self._below |= set(_OF_SERVERS.get(finding.server, ()))
            elif isinstance(finding, CronChange):
                self._files.add(finding.path)
            elif isinstance(finding, AccountChange):
                self._files |= _ACCOUNTS
            elif isinstance(finding, SystemChange):
                self._files |= _ACCOUNTS if finding.subject in ("group", "password") else set()
                self._files |= {finding.name} if finding.subject == "keys" else set()
            elif isinstance(finding, PackageChange):
                self._below |= set(_places(finding.ecosystem, finding.environment))
        for change in changes:
            if change.path.endswith(_ENVIRONMENT):
                self._below.add(f"{posixpath.dirname(change.path)}/")

    def covers(self, path: str) -> bool:
        if path in self._files or is_cache(path):
            return True
        return not path.endswith(_ENVIRONMENT) and f"{path}/".startswith(tuple(self._below))


def _leaves(folded: Folded) -> Iterator[Change]:
    """Files, and folders that did not only come or go with what is in them."""
    paths = [*(change.path for change in folded.changes), *(fold.path for fold in folded.folds)]
    parents = {posixpath.dirname(path) for path in paths}
    return (change for change in folded.changes if not is_told_by_its_files(change, parents))


def is_told_by_its_files(change: Change, parents: Collection[str]) -> bool:
    """Whether a change is a folder that came or went only with what is in it, and that has words of its own.
    `parents`: the folders of everything that has. Files of the base that went with a folder have none."""
    came_or_went = change.entry == "folder" and change.kind in ("created", "deleted")
    return came_or_went and not change.files and change.path in parents


def _names(changes: Sequence[Change], analysis: Analysis) -> str:
    if not changes:
        return ""
    roots = sorted(
        (finding.path for finding in analysis.findings if isinstance(finding, RepositoryChange)),
        key=len,
        reverse=True,
    )
    ranked = by_interest(changes)
    named, rest = ranked[:_NAMED], ranked[_NAMED:]
    names = [_name(change, roots) for change in named]
    if len(set(names)) < len(names):  # in several repositories
        names = [_name(change, ()) for change in named]
    words = ", ".join(names)
    number = sum(change.files or 1 for change in rest)
    if not number:
        return words
    signs = Counter[str]()
    for change in rest:
        signs[_SIGNS[change.kind]] += change.files or 1
    several = {*signs, *(_SIGNS[change.kind] for change in named)}
    counts = " ".join(f"{sign}{signs[sign]:,}" for sign in _SIGNS.values() if signs[sign])
    at_least = "at least " * any(change.at_least for change in rest)
    nouns = {NOUNS[thing(change)] for change in rest}
    more = plural(number, f"more {nouns.pop()}") if len(nouns) == 1 else f"{number:,} more"
    more = f"{at_least}{more}"
    return f"{words} and {more}{f' ({counts})' if len(several) > 1 else ''}"


def by_interest(changes: Iterable[Change]) -> list[Change]:
    """Those first whose names tell most."""
    return sorted(changes, key=_rank)


class _Rank(NamedTuple):
    """What sorts before tells more."""

    system: bool
    by_the_way: bool
    hidden: bool
    folder: bool
    depth: int
    path: str


def _rank(change: Change) -> _Rank:
    name = posixpath.basename(change.path)
    return _Rank(
        system=change.path.startswith(_SYSTEM),
        by_the_way=_is_by_the_way(change.path),
        hidden=name.startswith("."),
        folder=change.entry == "folder",
        depth=change.path.count("/"),
        path=change.path,
    )


def _is_by_the_way(path: str) -> bool:
    """Whether it is something that a program writes while it runs: a log, a lock, memory of a server."""
    return posixpath.splitext(path)[1] in _BY_THE_WAY or path.startswith(_SCRATCH)


def _name(change: Change, roots: Sequence[str]) -> str:
    if change.path.endswith(_ENVIRONMENT):
        return _signed(change, f"{_short(posixpath.dirname(change.path), roots)}/")
    name = _short(change.path, roots)
    if change.entry == "folder":
        number = f" ({'at least ' * change.at_least}{change.files:,} files)" if change.files > 1 else ""
        name = f"{name}/{number}"
    if change.kind == "renamed" and change.old_path:
        return f"{_short(change.old_path, roots)} → {name}"
    return _signed(change, name if change.links_to is None else f"{name} (hard link)")


def _signed(change: Change, name: str) -> str:
    """`~api.py`, but `~ /srv/api.py`: what begins with `~/` would be in a home folder."""
    return f"{_SIGNS[change.kind]}{' ' * name.startswith('/')}{name}"


def _short(path: str, roots: Sequence[str]) -> str:
    """A path as a reader of the log would call it: inside its repository, else with the folder it is in."""
    for root in roots:
        if path.startswith(f"{root.rstrip('/')}/"):
            return path[len(root.rstrip("/")) + 1 :]
    whole = len(path) <= _WHOLE_PATH or path.startswith(_SYSTEM)
    return path if whole else "/".join(path.rsplit("/", 2)[-2:])


def _in_folders(folds: Sequence[Fold]) -> str:
    counted = [fold for fold in folds if count_files(fold)]
    labels = _labels([fold.path for fold in counted])
    words = [f"{_signed_counts(fold)} in {labels[fold.path]}" for fold in counted[:_NAMED]]
    return ", ".join([*words, *["…"] * (len(counted) > _NAMED)])
