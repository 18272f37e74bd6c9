"""Git repositories, read as files. Git itself is never run: a repository from a session may bring hooks,
filters, a file-system monitor or an alternate object store, and each of them makes git run or read what its
owner wants.

Commits come from the reflog of HEAD; where none is kept, from the loose commit objects between the old and
the new HEAD. The changed files of the work tree are held against the index: by size and time as git does it,
by content where these leave doubt. What only packs know is left unsaid.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from waypoint.history.analyzers.findings import BranchMove, Commit, Fate, RepositoryChange
from waypoint.history.analyzers.reading import (
    MIB,
    Outcome,
    TooLarge,
    View,
    content,
    guarded,
    is_file,
    is_folder,
    names,
    shown,
    status,
    text,
)
from waypoint.history.changes import noisy_folder

_KEPT = 10
_HASHED_BYTES = 4 * MIB
_BRANCHES = 1000

_WAITING = (
    ("rebase-merge", "rebase"),
    ("rebase-apply", "rebase"),
    ("MERGE_HEAD", "merge"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("BISECT_LOG", "bisect"),
)


@dataclass
class _Repository:
    """Where it is, and what was touched of it."""

    work_tree: str | None
    folder: str
    """Its own git folder; a linked worktree has one inside that of its main repository."""
    common: str
    """Where refs and objects are."""
    files: list[str] = field(default_factory=list)
    inside: bool = False
    moved_from: _Repository | None = None

    @property
    def before(self) -> _Repository:
        """Itself, where it was before."""
        return self.moved_from or self


def git(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Repositories in which something happened: commits, branches, files that are not committed."""
    found: dict[str, _Repository] = {}
    for path in _git_folders(touched):
        if repository := _repository(old, new, path):
            found.setdefault(repository.folder, repository).inside = True
    _find_moved(old, new, found)
    _sort_in(old, new, touched, found)
    for folder, repository in sorted(found.items()):
        yield from guarded(repository.work_tree or folder, _examine(old, new, repository))


# Finding them


def _git_folders(touched: Sequence[str]) -> list[str]:
    """The git folders with a touched file in them that can mean something."""
    found: dict[str, None] = {}
    for path in touched:
        at = path.find("/.git/") + 1 or path.find(".git/")
        if at < 0:
            if path.endswith("/.git"):
                found[path] = None
            continue
        at = path.index(".git/", at)
        top, inside = path[: at + 4], path[at + 5 :]
        if inside.startswith("worktrees/"):
            found[f"{top}/{'/'.join(inside.split('/')[:2])}"] = None
        elif inside.startswith("modules/"):
            part = re.match(r"(.+?)/(?:logs/)?(?:HEAD|index|packed-refs|refs/.*)$", inside)
            if part:
                found[f"{top}/{part[1].removesuffix('/logs')}"] = None
        elif not inside.startswith(("objects/", "lfs/", "hooks/")):
            found[top] = None
    return list(found)


def _repository(old: View, new: View, path: str) -> _Repository | None:
    """The repository of a git folder, or of the `.git` file that points to one; None where there is none."""
    view = new if status(new, path) else old
    if is_file(view, path):
        pointer = text(view, path, 4096) or ""
        if not pointer.startswith("gitdir:"):
            return None
        work_tree = posixpath.dirname(path) or "/"
        folder = _join(work_tree, pointer.removeprefix("gitdir:").strip())
        return _Repository(work_tree, folder, _common(old, new, folder))
    if not any(is_file(view, f"{path}/{name}") for name in ("HEAD", "gitdir")):
        view = old
    if not is_file(view, f"{path}/HEAD"):
        return None
    common = _common(old, new, path)
    if common != path:
        pointer = (text(view, f"{path}/gitdir", 4096) or "").strip()
        return _Repository(posixpath.dirname(_join(path, pointer)) if pointer else None, path, common)
    if not is_folder(view, f"{path}/objects"):
        return None
    configured = text(view, f"{path}/config") or ""
    if elsewhere := re.search(r"^\s*worktree\s*=\s*(\S.*?)\s*$", configured, re.MULTILINE):
        return _Repository(_join(path, elsewhere[1]), path, path)
    bare = re.search(r"^\s*bare\s*=\s*true\s*$", configured, re.MULTILINE)
    own = None if bare or not path.endswith("/.git") else path.removesuffix("/.git") or "/"
    return _Repository(own, path, path)


def _join(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))


def _common(old: View, new: View, folder: str) -> str:
    for view in (new, old):
        if pointer := text(view, f"{folder}/commondir", 4096):
            return _join(folder, pointer.strip())
    return folder


def _find_moved(old: View, new: View, found: dict[str, _Repository]) -> None:
    """One that is gone from a place and has come to another, with all its past, is the same repository."""
    gone: dict[str, _Repository] = {}
    for repository in found.values():
        if not new.exists(f"{repository.folder}/HEAD") and (
            log := text(old, f"{repository.folder}/logs/HEAD")
        ):
            gone[log.partition("\n")[0]] = repository
    if not gone:
        return
    for repository in list(found.values()):
        if not old.exists(f"{repository.folder}/HEAD"):
            log = text(new, f"{repository.folder}/logs/HEAD", 16 * MIB) or ""
            former = gone.pop(log.partition("\n")[0], None)
            if former:
                repository.moved_from = found.pop(former.folder)


def _sort_in(old: View, new: View, touched: Sequence[str], found: dict[str, _Repository]) -> None:
    """Hands every touched file to the repository whose work tree it lies in."""
    by_folder: dict[str, _Repository | None] = {}
    for known in found.values():
        by_folder[known.work_tree or known.folder] = known if known.work_tree else None
        if known.moved_from and known.moved_from.work_tree:
            by_folder[known.moved_from.work_tree] = None
    plain: dict[str, str] = {}

    def owner(folder: str) -> _Repository | None:
        if folder not in by_folder:
            here = f"{folder.rstrip('/')}/.git"
            repository = None
            if new.exists(here) or old.exists(here):
                repository = _repository(old, new, here)
            if repository:
                repository = found.setdefault(repository.folder, repository)
            elif folder != "/":
                repository = owner(posixpath.dirname(folder))
            by_folder[folder] = repository
        return by_folder[folder]

    for path in touched:
        if "/.git/" in path or path.endswith("/.git"):
            continue
        folder = path.rpartition("/")[0] or "/"
        if folder not in plain:
            plain[folder] = _above_folded(folder)
        repository = owner(plain[folder])
        if repository:
            repository.files.append(path)


def _above_folded(folder: str) -> str:
    """The nearest folder that is not inside one that programs fill: nobody keeps repositories there."""
    noisy = noisy_folder(folder, is_folder=True)
    return folder if noisy is None else posixpath.dirname(noisy)


# Looking at one


def _examine(old: View, new: View, repository: _Repository) -> Iterator[Outcome]:
    head_before, branch_before = _head(old, repository.before)
    head_after, branch_after = _head(new, repository)
    change: Fate = "changed"
    if branch_before is None:
        change = "created"
    elif branch_after is None:
        change = "removed"
    commits, moves = _log(old, new, repository)
    if not commits and not moves and head_after and head_after != head_before and change != "removed":
        commits = _walk(_Objects(new, repository.common), head_after, head_before)
    linked = repository.common != repository.folder
    branches = _branch_moves(old, new, repository) if repository.inside and not linked else ()
    files = _sorted_files(old, new, repository, head_after) if change != "removed" else _Files()
    waited, waits = _in_progress(old, repository.before), _in_progress(new, repository)
    moved = repository.moved_from or (head_before, branch_before, waited) != (head_after, branch_after, waits)
    if not (moved or commits or moves or branches or files.total):
        return
    yield RepositoryChange(
        path=shown(repository.work_tree or repository.folder),
        change=change,
        branch_before=branch_before,
        branch_after=branch_after,
        head_before=head_before,
        head_after=head_after,
        commits=tuple(commits[:_KEPT]),
        commit_count=len(commits),
        moves=tuple(moves[-_KEPT:]),
        branches=branches,
        committed=files.committed,
        staged=files.staged,
        modified=len(files.modified),
        untracked=len(files.untracked),
        untracked_folded=files.folded,
        modified_paths=tuple(map(shown, sorted(files.modified)[:_KEPT])),
        untracked_paths=tuple(map(shown, sorted(files.untracked)[:_KEPT])),
        in_progress=waits,
        worktree_of=shown(repository.common.removesuffix("/.git") or "/") if linked else None,
        moved_from=shown(former.work_tree or former.folder) if (former := repository.moved_from) else None,
        bare=repository.work_tree is None,
    )


def _in_progress(view: View, repository: _Repository) -> str | None:
    return next((word for name, word in _WAITING if view.exists(f"{repository.folder}/{name}")), None)


_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def _head(view: View, repository: _Repository) -> tuple[str | None, str | None]:
    """The commit that is checked out and the branch it is on; (None, None) where there is no repository."""
    said = (text(view, f"{repository.folder}/HEAD", 4096) or "").strip()
    if _ID.fullmatch(said):
        return said, said[:10]
    if not said.startswith("ref: refs/"):
        return None, None
    ref = said.removeprefix("ref: ")
    if ref == "refs/heads/.invalid":
        raise ValueError("refs kept as a reftable are not understood")
    loose = (text(view, _join(repository.common, ref), 4096) or "").strip()
    commit = loose if _ID.fullmatch(loose) else _packed(view, repository.common).get(ref)
    return commit, ref.removeprefix("refs/heads/")


def _packed(view: View, common: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (text(view, f"{common}/packed-refs", 16 * MIB) or "").splitlines():
        commit, _, ref = line.partition(" ")
        if _ID.fullmatch(commit):
            found[ref] = commit
    return found


def _branches(view: View, common: str) -> dict[str, str]:
    found = {
        ref.removeprefix("refs/heads/"): commit
        for ref, commit in _packed(view, common).items()
        if ref.startswith("refs/heads/")
    }
    waiting = [""]
    while waiting and len(found) < _BRANCHES:
        folder = waiting.pop()
        for name in names(view, f"{common}/refs/heads/{folder}".rstrip("/")):
            branch = f"{folder}{name}"
            if is_folder(view, f"{common}/refs/heads/{branch}"):
                waiting.append(f"{branch}/")
            elif _ID.fullmatch(commit := (text(view, f"{common}/refs/heads/{branch}", 4096) or "").strip()):
                found[branch] = commit
    return found


def _branch_moves(old: View, new: View, repository: _Repository) -> tuple[BranchMove, ...]:
    before, after = _branches(old, repository.before.common), _branches(new, repository.common)
    moved = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return tuple(
        BranchMove(branch=name, before=before.get(name), after=after.get(name)) for name in moved[:50]
    )


# What the reflog says

_ENTRY = re.compile(r"^([0-9a-f]{40,64}) ([0-9a-f]{40,64}) [^\t\n]* (\d{1,12}) [+-]\d{4}(?:\t(.*))?$")
_MADE = re.compile(r"(?:commit(?: \((?P<how>[a-z-]+)\))?|cherry-pick|revert|am): (?P<subject>.*)", re.DOTALL)
_STEP = re.compile(r"rebase \((?!finish|abort)")
_MERGED = re.compile(r"(?:merge|pull)\b.*: Merge made by ")


def _log(old: View, new: View, repository: _Repository) -> tuple[list[Commit], list[str]]:
    """Commits that were made, newest first, and the other moves of HEAD in their order."""
    before = text(old, f"{repository.before.folder}/logs/HEAD", 16 * MIB) or ""
    after = text(new, f"{repository.folder}/logs/HEAD", 16 * MIB) or ""
    if after.startswith(before):
        lines = after[len(before) :].split("\n")
    else:
        known = set(before.split("\n"))
        lines = [line for line in after.split("\n") if line not in known]
    commits: list[Commit] = []
    moves: list[str] = []
    for line in lines:
        if (entry := _ENTRY.match(line)) is None:
            continue
        parent, commit, seconds, message = entry[1], entry[2], int(entry[3]), entry[4] or ""
        if made := _MADE.fullmatch(message):
            if made["how"] == "amend" and commits and commits[-1].id == parent:
                commits.pop()
            commits.append(Commit(id=commit, subject=made["subject"][:200], at=seconds))
        elif _MERGED.match(message):
            subject = message.partition(": Merge made by ")[0]
            commits.append(Commit(id=commit, subject=subject[:200], at=seconds))
        elif message and message != "reset: moving to HEAD" and not _STEP.match(message):
            moves.append(message[:200])
    return commits[::-1], moves


# Objects


class _Objects:
    """Loose objects: those that were made lately. Packs are not opened."""

    def __init__(self, view: View, common: str) -> None:
        self._view = view
        self._common = common
        self._trees: dict[str, dict[bytes, str] | None] = {}

    def read(self, name: str) -> tuple[bytes, bytes] | None:
        """Type and content; None where it is not loose, not small or not whole."""
        try:
            raw = content(self._view, f"{self._common}/objects/{name[:2]}/{name[2:]}", 4 * MIB)
            if raw is None:
                return None
            unpacked = zlib.decompressobj().decompress(raw, 8 * MIB)
        except (TooLarge, zlib.error):
            return None
        head, _, body = unpacked.partition(b"\0")
        kind, _, size = head.partition(b" ")
        return (kind, body) if size.isdigit() and int(size) == len(body) else None

    def tree(self, name: str) -> dict[bytes, str] | None:
        """The entries of a tree."""
        if name not in self._trees:
            found = self.read(name)
            width = len(name) // 2
            self._trees[name] = _entries(found[1], width) if found and found[0] == b"tree" else None
        return self._trees[name]

    def blob_at(self, tree: str, path: bytes) -> tuple[bool, str | None]:
        """Whether it can be told what a tree holds at a path, and what that is."""
        *folders, last = path.split(b"/")
        for folder in folders:
            entries = self.tree(tree)
            if entries is None:
                return False, None
            if folder not in entries:
                return True, None
            tree = entries[folder]
        entries = self.tree(tree)
        return (False, None) if entries is None else (True, entries.get(last))


def _entries(body: bytes, width: int) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    at = 0
    while (end := body.find(b"\0", at)) >= 0:
        name = body[at:end].partition(b" ")[2]
        found[name] = body[end + 1 : end + 1 + width].hex()
        at = end + 1 + width
    return found


def _walk(objects: _Objects, after: str, before: str | None) -> list[Commit]:
    """Commits from one to the other by first parents, newest first: as far as they are loose."""
    commits: list[Commit] = []
    name: str | None = after
    while name and name != before and len(commits) < 100:
        found = objects.read(name)
        if found is None or found[0] != b"commit":
            break
        head, _, message = found[1].decode(errors="replace").partition("\n\n")
        seconds = re.search(r"^committer .* (\d{1,12}) [+-]\d{4}$", head, re.MULTILINE)
        subject = message.strip().partition("\n")[0][:200]
        commits.append(Commit(id=name, subject=subject, at=int(seconds[1]) if seconds else 0))
        parent = re.search(r"^parent ([0-9a-f]{40,64})$", head, re.MULTILINE)
        name = parent[1] if parent else None
    return commits


# The index


class _Entry(NamedTuple):
    seconds: int
    nanoseconds: int
    mode: int
    size: int
    blob: str
    merged: bool


class _Index(NamedTuple):
    entries: dict[bytes, _Entry]
    open_folders: frozenset[bytes]
    """Folders with something in them that no tree object describes: staged, not committed."""
    written: tuple[int, int]


_FIXED = struct.Struct(">10I")


def _index(view: View, path: str, width: int) -> _Index | None:
    """The index, versions 2 to 4; None where there is none."""
    raw = content(view, path, 64 * MIB)
    if raw is None:
        return None
    magic, version, count = struct.unpack_from(">4sII", raw)
    if magic != b"DIRC" or version not in {2, 3, 4}:
        raise ValueError(f"an index of an unknown kind (version {version})")
    entries: dict[bytes, _Entry] = {}
    at, name = 12, b""
    for _ in range(count):
        start = at
        _, _, seconds, nanoseconds, _, _, mode, _, _, size = _FIXED.unpack_from(raw, at)
        at += 40
        blob = raw[at : at + width].hex()
        at += width
        (flags,) = struct.unpack_from(">H", raw, at)
        at += 4 if flags & 0x4000 else 2
        if version == 4:
            strip, at = _varint(raw, at)
            end = raw.index(b"\0", at)
            name = name[: len(name) - strip] + raw[at:end]
            at = end + 1
        else:
            end = raw.index(b"\0", at)
            name = raw[at:end]
            at = start + ((end - start) // 8 + 1) * 8
        merged = not flags & 0x3000
        entries[name] = _Entry(seconds, nanoseconds, mode, size, blob, merged)
    found = status(view, path)
    written = divmod(found.st_mtime_ns, 10**9) if found else (0, 0)
    return _Index(entries, frozenset(_open_folders(raw, at, width)), written)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    byte = raw[at]
    at += 1
    value = byte & 0x7F
    while byte & 0x80:
        byte = raw[at]
        at += 1
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at


def _open_folders(raw: bytes, at: int, width: int) -> Iterator[bytes]:
    """From the index's cache of tree objects. An index without one says nothing, so nothing is open."""
    while at + 8 <= len(raw) - width:
        name, size = struct.unpack_from(">4sI", raw, at)
        at += 8
        if name == b"link":
            raise ValueError("a split index is not understood")
        if name == b"TREE":
            yield from _open_in(raw[at : at + size], width)
        at += size


def _open_in(cache: bytes, width: int) -> Iterator[bytes]:
    at = 0
    above: list[tuple[bytes, int]] = []
    while (end := cache.find(b"\0", at)) >= 0:
        part = cache[at:end]
        line = cache.index(b"\n", end)
        count, below = (int(number) for number in cache[end + 1 : line].split(b" "))
        at = line + 1 + (width if count >= 0 else 0)
        path = b"/".join([*(name for name, _ in above if name), part]) if part else b""
        if count < 0:
            yield path
        if above:
            above[-1] = (above[-1][0], above[-1][1] - 1)
        above.append((part, below))
        while above and above[-1][1] == 0:
            above.pop()


# The files of the work tree


@dataclass
class _Files:
    committed: int = 0
    staged: int = 0
    folded: int = 0
    modified: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.committed + self.staged + self.folded + len(self.modified) + len(self.untracked)


def _sorted_files(old: View, new: View, repository: _Repository, head: str | None) -> _Files:
    files = _Files()
    if not repository.files or not repository.work_tree:
        return files
    configured = text(new, f"{repository.common}/config") or ""
    modern = re.search(r"^\s*objectformat\s*=\s*sha256\s*$", configured, re.MULTILINE | re.IGNORECASE)
    width = 32 if modern else 20
    index = _index(new, f"{repository.folder}/index", width) or _Index({}, frozenset(), (0, 0))
    earlier: _Index | None = None
    objects = _Objects(new, repository.common)
    tree = _tree_of(objects, head)
    top = len(repository.work_tree.rstrip("/")) + 1
    folders = {path.rpartition("/")[0] for path in repository.files}
    noisy: dict[str, bool] = {}
    for path in repository.files:
        name = os.fsencode(path[top:])
        entry = index.entries.get(name)
        if entry is None:
            folder = path.rpartition("/")[0]
            if folder not in noisy:
                noisy[folder] = noisy_folder(folder, is_folder=True) is not None
            if noisy[folder]:
                files.folded += path not in folders
                continue
        found = status(new, path)
        if entry is not None:
            if found is None or not entry.merged or not _same(new, path, found, entry, index.written):
                files.modified.append(path[top:])
            else:
                _settle(files, objects, tree, index, name, entry.blob)
            continue
        if found is None and earlier is None:
            earlier = _index(old, f"{repository.before.folder}/index", width) or _Index(
                {}, frozenset(), (0, 0)
            )
        if found is None and earlier is not None and name in earlier.entries:
            _settle(files, objects, tree, index, name, None)  # deleted, and git was told
        elif not (stat.S_ISDIR(found.st_mode) if found else is_folder(old, path)):
            files.untracked.append(path[top:])
    return files


def _tree_of(objects: _Objects, commit: str | None) -> str | None:
    found = objects.read(commit) if commit else None
    match = re.match(rb"tree ([0-9a-f]{40,64})\n", found[1]) if found and found[0] == b"commit" else None
    return match[1].decode() if match else None


def _settle(
    files: _Files, objects: _Objects, tree: str | None, index: _Index, name: bytes, blob: str | None
) -> None:
    """A file as the index has it: committed, or only staged?"""
    known, held = objects.blob_at(tree, name) if tree else (False, None)
    staged = held != blob if known else name.rpartition(b"/")[0] in index.open_folders
    if staged:
        files.staged += 1
    else:
        files.committed += 1


def _same(view: View, path: str, found: os.stat_result, entry: _Entry, written: tuple[int, int]) -> bool:
    """Whether a file is what the index says. Size and time decide when they agree and are older than the
    index; content decides otherwise."""
    link = stat.S_ISLNK(found.st_mode)
    if link != stat.S_ISLNK(entry.mode) or stat.S_ISDIR(found.st_mode):
        return stat.S_ISDIR(found.st_mode) and entry.mode == 0o160000  # a submodule is judged on its own
    if not link and bool(found.st_mode & 0o100) != bool(entry.mode & 0o100):
        return False
    time = divmod(found.st_mtime_ns, 10**9)
    recorded = (entry.seconds, entry.nanoseconds)
    same_time = (time[0] & 0xFFFFFFFF, time[1]) == recorded or (
        entry.nanoseconds == 0 and time[0] == recorded[0]
    )
    if same_time and found.st_size & 0xFFFFFFFF == entry.size and recorded < written:
        return True
    if link or found.st_size > _HASHED_BYTES:
        return same_time and found.st_size & 0xFFFFFFFF == entry.size
    if entry.size not in {0, found.st_size & 0xFFFFFFFF}:
        return False
    data = content(view, path, _HASHED_BYTES) or b""
    kind = hashlib.sha256 if len(entry.blob) == 64 else hashlib.sha1  # git's own name for a file
    return kind(b"blob %d\0" % len(data) + data).hexdigest() == entry.blob
