"""A git repository at a point: its refs, its objects, its index and its ignore rules, read with dulwich.

Git itself is never run: a repository from a session may bring hooks, filters, a file-system monitor or an
alternate object store, and each of them makes git run or read what its owner wants. Here every byte comes
through the view of the point, so nothing outside of it can be reached.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from dulwich.config import ConfigFile
from dulwich.ignore import IgnoreFilter, read_ignore_patterns
from dulwich.index import ConflictedIndexEntry, IndexEntry, read_index_dict_with_version
from dulwich.object_format import SHA1, SHA256, ObjectFormat
from dulwich.objects import Commit as GitCommit
from dulwich.objects import ObjectID, ShaFile, Tree
from dulwich.pack import Pack, PackData, load_pack_index_file
from dulwich.walk import ORDER_TOPO, Walker

from waypoint.history.analyzers.reading import (
    MIB,
    TooLarge,
    View,
    content,
    is_file,
    is_folder,
    names,
    status,
    text,
)

_OBJECT_BYTES = 8 * MIB
_PACK_BYTES = 4 << 30
_INDEX_BYTES = 64 * MIB
_HASHED_BYTES = 4 * MIB
_MOST_REFS = 5000
_USER_IGNORES = ("/root/.config/git/ignore",)
"""Where git looks for the ignore rules of the session's user when no configuration names another file."""

_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def join(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))


@dataclass(frozen=True)
class Place:
    """Where a repository lies."""

    work_tree: str | None
    folder: str
    """Its own git folder; a linked worktree has one inside that of its main repository."""
    common: str
    """Where refs and objects are."""

    @property
    def linked(self) -> bool:
        return self.common != self.folder


class Head(NamedTuple):
    """What is checked out; both None where there is no repository."""

    commit: str | None
    branch: str | None
    """None: no branch is checked out."""


@dataclass
class GitStore:
    """One repository at one point."""

    view: View
    place: Place
    _objects: dict[bytes, ShaFile | None] = field(default_factory=dict)

    # ---- configuration and refs ----------------------------------------------------------------

    @cached_property
    def config(self) -> ConfigFile:
        raw = content(self.view, f"{self.place.common}/config") or b""
        return ConfigFile.from_file(io.BytesIO(raw), expand_includes=False)

    @cached_property
    def format(self) -> ObjectFormat:
        try:
            named = self.config.get((b"extensions",), b"objectformat")
        except KeyError:
            return SHA1
        return SHA256 if named.lower() == b"sha256" else SHA1

    @property
    def exists(self) -> bool:
        return is_file(self.view, f"{self.place.folder}/HEAD")

    @cached_property
    def head(self) -> Head:
        line = (text(self.view, f"{self.place.folder}/HEAD", 4096) or "").strip()
        if _ID.fullmatch(line):
            return Head(line, None)
        if not line.startswith("ref: refs/"):
            return Head(None, None)
        ref = line.removeprefix("ref: ")
        if ref == "refs/heads/.invalid":
            raise ValueError("refs kept as a reftable are not understood")
        return Head(self.refs.get(ref), ref.removeprefix("refs/heads/"))

    @cached_property
    def refs(self) -> Mapping[str, str]:
        """Every ref below refs/, loose ones before packed ones."""
        refs: dict[str, str] = {}
        for line in (text(self.view, f"{self.place.common}/packed-refs", 16 * MIB) or "").splitlines():
            commit, _, ref = line.partition(" ")
            if _ID.fullmatch(commit):
                refs[ref] = commit
        folders = ["refs"]
        while folders:
            folder = folders.pop()
            for name in names(self.view, f"{self.place.common}/{folder}"):
                ref = f"{folder}/{name}"
                if is_folder(self.view, f"{self.place.common}/{ref}"):
                    folders.append(ref)
                    continue
                line = (text(self.view, f"{self.place.common}/{ref}", 4096) or "").strip()
                if _ID.fullmatch(line):
                    refs[ref] = line
                if len(refs) > _MOST_REFS:
                    raise TooLarge(f"more than {_MOST_REFS:,} refs")
        return refs

    @cached_property
    def branches(self) -> Mapping[str, str]:
        return self._below("refs/heads/")

    @cached_property
    def stash(self) -> frozenset[str]:
        """The commits of the stash, by its reflog: the ref itself is the newest entry alone."""
        tip = self.refs.get("refs/stash")
        entries = (text(self.view, f"{self.place.common}/logs/refs/stash", 16 * MIB) or "").splitlines()
        named = (entry.split(" ")[1] for entry in entries if entry.count(" ") > 1)
        return frozenset((tip, *named)) if tip else frozenset()

    @cached_property
    def remote_tips(self) -> frozenset[str]:
        """What was fetched: commits that are reachable from these were not made here alone."""
        return frozenset(self._below("refs/remotes/").values())

    def _below(self, prefix: str) -> dict[str, str]:
        return {ref.removeprefix(prefix): tip for ref, tip in self.refs.items() if ref.startswith(prefix)}

    # ---- objects -------------------------------------------------------------------------------

    @cached_property
    def _packs(self) -> list[Pack]:
        folder = f"{self.place.common}/objects/pack"
        packs = []
        for name in names(self.view, folder):
            index, data = f"{folder}/{name}", f"{folder}/{name.removesuffix('.idx')}.pack"
            about = status(self.view, data)
            if not name.endswith(".idx") or not is_file(self.view, index) or about is None:
                continue
            if not stat.S_ISREG(about.st_mode) or about.st_size > _PACK_BYTES:
                continue
            with self.view.open(index) as file:
                entries = load_pack_index_file(index, file, self.format)
            with self.view.open(data) as file:
                packs.append(Pack.from_objects(PackData(data, self.format, file=file), entries))
        return packs

    def get(self, name: bytes) -> ShaFile | None:
        """An object; None where the repository does not have it."""
        if name not in self._objects:
            self._objects[name] = self._loose(name) or self._packed(name)
        return self._objects[name]

    def _loose(self, name: bytes) -> ShaFile | None:
        letters = name.decode("ascii")
        path = f"{self.place.common}/objects/{letters[:2]}/{letters[2:]}"
        raw = content(self.view, path, _OBJECT_BYTES)
        if raw is None:
            return None
        return ShaFile.from_file(
            io.BytesIO(raw), ObjectID(name), object_format=self.format, max_size=_OBJECT_BYTES
        )

    def _packed(self, name: bytes) -> ShaFile | None:
        for pack in self._packs:
            if ObjectID(name) in pack:
                kind, raw = pack.get_raw(ObjectID(name))
                return ShaFile.from_raw_string(kind, raw, ObjectID(name), object_format=self.format)
        return None

    def close(self) -> None:
        for pack in self.__dict__.pop("_packs", ()):
            pack.close()

    # ---- the index and the work tree -----------------------------------------------------------

    @cached_property
    def index(self) -> Mapping[bytes, IndexEntry | ConflictedIndexEntry]:
        raw = content(self.view, f"{self.place.folder}/index", _INDEX_BYTES)
        if raw is None:
            return {}
        entries, _, extensions = read_index_dict_with_version(io.BytesIO(raw), self.format)
        if any(extension.signature == b"link" for extension in extensions):
            raise ValueError("a split index is not understood")
        return entries

    @cached_property
    def index_written_ns(self) -> int:
        about = status(self.view, f"{self.place.folder}/index")
        return about.st_mtime_ns if about else 0

    def is_unchanged(self, path: str, about: os.stat_result, entry: IndexEntry) -> bool:
        """Whether a file is what the index says. Size and time decide when they agree and are older than the
        index; content decides otherwise, as in git."""
        link = stat.S_ISLNK(about.st_mode)
        if link != stat.S_ISLNK(entry.mode) or stat.S_ISDIR(about.st_mode):
            return stat.S_ISDIR(about.st_mode) and entry.mode == 0o160000  # a submodule is judged on its own
        if not link and bool(about.st_mode & 0o100) != bool(entry.mode & 0o100):
            return False
        seconds, nanoseconds = entry.mtime if isinstance(entry.mtime, tuple) else (int(entry.mtime), 0)
        have = divmod(about.st_mtime_ns, 10**9)
        same_time = have == (seconds, nanoseconds) or (nanoseconds == 0 and have[0] == seconds)
        same_size = about.st_size & 0xFFFFFFFF == entry.size
        if same_time and same_size and seconds * 10**9 + nanoseconds < self.index_written_ns:
            return True
        if link or about.st_size > _HASHED_BYTES:
            return same_time and same_size
        if entry.size and not same_size:
            return False
        data = content(self.view, path, _HASHED_BYTES) or b""
        kind = hashlib.sha256 if self.format is SHA256 else hashlib.sha1  # git's own name for a file
        return kind(b"blob %d\0" % len(data) + data).hexdigest().encode() == entry.sha

    # ---- ignore rules --------------------------------------------------------------------------

    @cached_property
    def _ignores(self) -> dict[str, IgnoreFilter | None]:
        """By folder of the work tree, what its .gitignore says."""
        return {}

    @cached_property
    def _general_ignores(self) -> list[IgnoreFilter]:
        paths = list(_USER_IGNORES)
        user = content(self.view, "/root/.gitconfig") or b""
        for config in (ConfigFile.from_file(io.BytesIO(user), expand_includes=False), self.config):
            try:
                named = os.fsdecode(config.get((b"core",), b"excludesfile"))
            except KeyError:
                continue
            paths = [join("/root", named.removeprefix("~/"))]
        paths.append(f"{self.place.common}/info/exclude")
        return [rules for path in paths if (rules := self._rules(path)) is not None]

    def _rules(self, path: str) -> IgnoreFilter | None:
        raw = content(self.view, path)
        return None if raw is None else IgnoreFilter(read_ignore_patterns(io.BytesIO(raw)))

    def is_ignored(self, name: str) -> bool:
        """Whether a file of the work tree, or a folder above it, is excluded from what git lists."""
        steps = name.split("/")
        return any(
            self._is_excluded(steps[:depth], folder=depth < len(steps)) for depth in range(1, len(steps) + 1)
        )

    def _is_excluded(self, steps: list[str], *, folder: bool) -> bool:
        tail = "/" if folder else ""
        rules = [(0, general) for general in self._general_ignores]
        for depth in range(len(steps)):
            above = "/".join(steps[:depth])
            if above not in self._ignores:
                self._ignores[above] = self._rules(join(f"{self.place.work_tree}/{above}", ".gitignore"))
            if own := self._ignores[above]:
                rules.append((depth, own))
        verdicts = [rule.is_ignored("/".join(steps[depth:]) + tail) for depth, rule in rules]
        return next((verdict for verdict in reversed(verdicts) if verdict is not None), False)


class Objects:
    """The objects of one repository at two points: what one has thrown away the other may still have."""

    def __init__(self, *stores: GitStore) -> None:
        self._stores = stores
        self._trees: dict[bytes, Mapping[bytes, tuple[int, bytes]]] = {}

    def __getitem__(self, name: bytes) -> ShaFile:
        for store in self._stores:
            if (entry := store.get(name)) is not None:
                return entry
        raise KeyError(name)

    def __contains__(self, name: bytes) -> bool:
        return any(store.get(name) is not None for store in self._stores)

    def commits(self, tip: str | None, without: Iterable[str | None], most: int) -> list[GitCommit]:
        """The commits that can be reached from a tip and from none of the others, newest first."""
        if tip is None or tip.encode() not in self:
            return []
        known = [name.encode() for name in without if name and name.encode() in self]
        walker = Walker(
            self,  # type: ignore[arg-type]  # it asks for objects by their names only
            [ObjectID(tip.encode())],
            exclude=[ObjectID(name) for name in known],
            max_entries=most,
            order=ORDER_TOPO,
            get_parents=lambda commit: [parent for parent in commit.parents if parent in self],
        )
        return [entry.commit for entry in walker]

    def tree_of(self, commit: str | None) -> bytes | None:
        entry = self[commit.encode()] if commit and commit.encode() in self else None
        return entry.tree if isinstance(entry, GitCommit) else None

    def blob_at(self, tree: bytes | None, name: bytes) -> bytes | None:
        """The file that a tree has at a path; None where it has none there."""
        *folders, last = name.split(b"/")
        for folder in folders:
            tree = _folder(self._list(tree).get(folder))
        entry = self._list(tree).get(last)
        return entry[1] if entry and not stat.S_ISDIR(entry[0]) else None

    def changed_paths(self, before: bytes | None, after: bytes | None) -> Iterator[bytes]:
        """The files in which two trees differ."""
        if before == after:
            return
        old, new = self._list(before), self._list(after)
        for name in sorted(old.keys() | new.keys()):
            was, now = old.get(name), new.get(name)
            if was == now:
                continue
            folders = [entry for entry in (was, now) if entry and stat.S_ISDIR(entry[0])]
            if any(entry and not stat.S_ISDIR(entry[0]) for entry in (was, now)):
                yield name
            if folders:
                inside = self.changed_paths(_folder(was), _folder(now))
                yield from (name + b"/" + path for path in inside)

    def _list(self, tree: bytes | None) -> Mapping[bytes, tuple[int, bytes]]:
        if tree is None:
            return {}
        if tree not in self._trees:
            entry = self[tree]
            items = entry.iteritems() if isinstance(entry, Tree) else ()
            self._trees[tree] = {item.path: (item.mode, item.sha) for item in items if item.path and item.sha}
        return self._trees[tree]


def _folder(entry: tuple[int, bytes] | None) -> bytes | None:
    return entry[1] if entry and stat.S_ISDIR(entry[0]) else None
