"""What happened in git repositories: which commits a branch has gained and lost, and which files wait.

Commits are found by walking from the new tip of each branch that moved to its old one, so a commit that was
reset, squashed or rebased away is reported as lost, and going back to an earlier point invents nothing. Only
the changed files of the work tree are held against the index and the ignore rules.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from dulwich.index import ConflictedIndexEntry
from dulwich.objects import Commit as GitCommit

from waypoint.api.findings import BranchMove, Commit, Fate, RefMove, RepositoryChange
from waypoint.history.analyzers.gitstore import GitStore, Objects, Place, join
from waypoint.history.analyzers.reading import (
    MIB,
    Outcome,
    View,
    guarded,
    is_file,
    is_folder,
    status,
    text,
)
from waypoint.history.changes import noisy_folder
from waypoint.history.view import printable

_KEPT = 10
_MOST_COMMITS = 1000
_MOST_BRANCHES = 50

_TAGS, _REMOTES = "refs/tags/", "refs/remotes/"

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

    place: Place
    files: list[str] = field(default_factory=list)
    inside: bool = False
    """Whether something in its git folder was touched."""
    moved_from: Place | None = None

    @property
    def before(self) -> Place:
        """Where it was before."""
        return self.moved_from or self.place


def git(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Repositories in which something happened: commits, branches, files that are not committed."""
    repositories: dict[str, _Repository] = {}
    for path in _git_folders(touched):
        if place := _place(old, new, path):
            repositories.setdefault(place.folder, _Repository(place)).inside = True
    _find_moved(old, new, repositories)
    _sort_in(old, new, touched, repositories)
    for folder, repository in sorted(repositories.items()):
        yield from guarded(repository.place.work_tree or folder, _examine(old, new, repository))


# Finding them


def _git_folders(touched: Sequence[str]) -> list[str]:
    """The git folders with a touched file in them that can mean something."""
    folders: dict[str, None] = {}
    for path in touched:
        at = path.find("/.git/") + 1 or path.find(".git/")
        if at < 0:
            if path.endswith("/.git"):
                folders[path] = None
            continue
        at = path.index(".git/", at)
        top, inside = path[: at + 4], path[at + 5 :]
        if inside.startswith("worktrees/"):
            folders[f"{top}/{'/'.join(inside.split('/')[:2])}"] = None
        elif inside.startswith("modules/"):
            part = re.match(r"(.+?)/(?:logs/)?(?:HEAD|index|packed-refs|refs/.*)$", inside)
            if part:
                folders[f"{top}/{part[1].removesuffix('/logs')}"] = None
        elif not inside.startswith(("objects/", "lfs/", "hooks/")):
            folders[top] = None
    return list(folders)


def _place(old: View, new: View, path: str) -> Place | None:
    """The repository of a git folder, or of the `.git` file that points to one; None where there is none."""
    view = new if status(new, path) else old
    if is_file(view, path):
        pointer = text(view, path, 4096) or ""
        if not pointer.startswith("gitdir:"):
            return None
        work_tree = posixpath.dirname(path) or "/"
        folder = join(work_tree, pointer.removeprefix("gitdir:").strip())
        return Place(work_tree, folder, _common(old, new, folder))
    if not any(is_file(view, f"{path}/{name}") for name in ("HEAD", "gitdir")):
        view = old
    if not is_file(view, f"{path}/HEAD"):
        return None
    common = _common(old, new, path)
    if common != path:
        pointer = (text(view, f"{path}/gitdir", 4096) or "").strip()
        return Place(posixpath.dirname(join(path, pointer)) if pointer else None, path, common)
    if not is_folder(view, f"{path}/objects"):
        return None
    configured = text(view, f"{path}/config") or ""
    if elsewhere := re.search(r"^\s*worktree\s*=\s*(\S.*?)\s*$", configured, re.MULTILINE):
        return Place(join(path, elsewhere[1]), path, path)
    bare = re.search(r"^\s*bare\s*=\s*true\s*$", configured, re.MULTILINE)
    own = None if bare or not path.endswith("/.git") else path.removesuffix("/.git") or "/"
    return Place(own, path, path)


def _common(old: View, new: View, folder: str) -> str:
    for view in (new, old):
        if pointer := text(view, f"{folder}/commondir", 4096):
            return join(folder, pointer.strip())
    return folder


def _find_moved(old: View, new: View, repositories: dict[str, _Repository]) -> None:
    """A repository that disappeared from one place and appeared at another with the same history has
    moved."""
    gone: dict[str, Place] = {}
    for folder, repository in repositories.items():
        if not new.exists(f"{folder}/HEAD") and (log := text(old, f"{folder}/logs/HEAD", 16 * MIB)):
            gone[log.partition("\n")[0]] = repository.place
    for folder, repository in list(repositories.items()) if gone else ():
        if not old.exists(f"{folder}/HEAD"):
            log = text(new, f"{folder}/logs/HEAD", 16 * MIB) or ""
            former = gone.pop(log.partition("\n")[0], None)
            if former:
                repository.moved_from = former
                del repositories[former.folder]


def _sort_in(old: View, new: View, touched: Sequence[str], repositories: dict[str, _Repository]) -> None:
    """Hands every touched file to the repository whose work tree it lies in."""
    by_folder: dict[str, _Repository | None] = {}
    for known in repositories.values():
        by_folder[known.place.work_tree or known.place.folder] = known if known.place.work_tree else None
        if known.moved_from and known.moved_from.work_tree:
            by_folder[known.moved_from.work_tree] = None
    plain: dict[str, str] = {}

    def owner(folder: str) -> _Repository | None:
        if folder not in by_folder:
            here = f"{folder.rstrip('/')}/.git"
            place = _place(old, new, here) if new.exists(here) or old.exists(here) else None
            if place:
                by_folder[folder] = repositories.setdefault(place.folder, _Repository(place))
            else:
                by_folder[folder] = owner(posixpath.dirname(folder)) if folder != "/" else None
        return by_folder[folder]

    for path in touched:
        if "/.git/" in path or path.endswith("/.git"):
            continue
        folder = path.rpartition("/")[0] or "/"
        if folder not in plain:
            plain[folder] = _above_folded(folder)
        if repository := owner(plain[folder]):
            repository.files.append(path)


def _above_folded(folder: str) -> str:
    """The nearest folder that is not inside one that programs fill: no repositories are kept there."""
    noisy = noisy_folder(folder, is_folder=True)
    return folder if noisy is None else posixpath.dirname(noisy)


# Examining one


def _examine(old: View, new: View, repository: _Repository) -> Iterator[Outcome]:
    place, former = repository.place, repository.moved_from
    with closing(GitStore(old, repository.before)) as before, closing(GitStore(new, place)) as after:
        change: Fate = "changed"
        if not before.exists:
            change = "created"
        elif not after.exists:
            change = "removed"
        objects = Objects(after, before)
        commits, lost = _commits_of_head(before, after, objects)
        moves = _moves(before, after)
        # A linked worktree shares its branches with the main repository, which reports them.
        branches = _branch_moves(before, after, objects) if repository.inside and not place.linked else ()
        refs: tuple[RefMove, ...] = ()
        stashed = unstashed = 0
        if repository.inside and not place.linked:
            refs = _ref_moves(before, after)
            stashed, unstashed = len(after.stash - before.stash), len(before.stash - after.stash)
        files = _Files()
        if change != "removed" and place.work_tree:
            files = _files(before, after, objects, repository.files)
        committed = _committed(before, after, objects, commits)
        waited, waits = _in_progress(before), _in_progress(after)
        if not (
            repository.moved_from
            or (before.head, before.exists, waited) != (after.head, after.exists, waits)
            or (moves or branches or refs or stashed or unstashed or files.total)
        ):
            return
        yield RepositoryChange(
            path=printable(place.work_tree or place.folder),
            change=change,
            branch_before=_branch_name(before),
            branch_after=_branch_name(after),
            head_before=before.head.commit,
            head_after=after.head.commit,
            commits=tuple(_described(commit) for commit in commits[:_KEPT]),
            commit_count=len(commits),
            lost_count=len(lost),
            lost=tuple(_described(commit) for commit in lost[:_KEPT]),
            lost_kept_on=_kept_on(after, lost, objects),
            moves=tuple(moves[-_KEPT:]),
            branches=branches,
            refs=refs,
            stashed=stashed,
            unstashed=unstashed,
            committed=committed,
            staged=files.staged,
            modified=len(files.modified),
            untracked=len(files.untracked),
            untracked_folded=files.folded,
            modified_paths=tuple(map(printable, sorted(files.modified)[:_KEPT])),
            untracked_paths=tuple(map(printable, sorted(files.untracked)[:_KEPT])),
            in_progress=waits,
            in_progress_before=waited,
            worktree_of=printable(place.common.removesuffix("/.git") or "/") if place.linked else None,
            moved_from=printable(former.work_tree or former.folder)
            if (former := repository.moved_from)
            else None,
            bare=place.work_tree is None,
        )


def _branch_name(store: GitStore) -> str | None:
    """A name, or the first letters of a commit when no branch is checked out."""
    head = store.head
    return head.branch or (head.commit[:10] if head.commit else None)


def _in_progress(store: GitStore) -> str | None:
    folder = store.place.folder
    return next((word for name, word in _WAITING if store.view.exists(f"{folder}/{name}")), None)


def _described(commit: GitCommit) -> Commit:
    return Commit(
        id=commit.id.decode(),
        subject=_subject(commit),
        at=commit.commit_time,
        merge=len(commit.parents) > 1,
    )


def _subject(commit: GitCommit) -> str:
    message: str = commit.message.decode(errors="replace").strip()
    return message.partition("\n")[0][:200]


# Commits and branches


def _commits_of_head(
    before: GitStore, after: GitStore, objects: Objects
) -> tuple[list[GitCommit], list[GitCommit]]:
    """What the branch that is checked out now has gained since the point before, and what it has lost."""
    if after.head.branch is None:
        former = before.head.commit
    else:
        former = before.refs.get(f"refs/heads/{after.head.branch}")
    if former is None:
        # New since then: what no ref reached before, and what was not fetched, was made here.
        known = _tips(before) or after.remote_tips
        return objects.commits(after.head.commit, known, _MOST_COMMITS), []
    gained = objects.commits(after.head.commit, [former], _MOST_COMMITS)
    # Leaving a branch loses nothing of it.
    now = _tips(after) if after.head.branch is None else [after.head.commit]
    return gained, objects.commits(former, now, _MOST_COMMITS) if after.head.commit else []


def _kept_on(after: GitStore, lost: list[GitCommit], objects: Objects) -> str | None:
    """A branch that still has all of these commits."""
    tip = lost[0].id.decode() if lost else None
    for name, other in sorted(after.branches.items())[:_MOST_BRANCHES] if lost else ():
        if name != after.head.branch and not objects.commits(tip, [other], 1):
            return name
    return None


def _tips(store: GitStore) -> frozenset[str]:
    return frozenset(filter(None, (*store.refs.values(), store.head.commit)))


def _branch_moves(before: GitStore, after: GitStore, objects: Objects) -> tuple[BranchMove, ...]:
    was, now = before.branches, after.branches
    moved = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return tuple(
        _branch_move(name, was.get(name), now.get(name), before, after, objects)
        for name in moved[:_MOST_BRANCHES]
    )


def _branch_move(
    name: str, was: str | None, now: str | None, before: GitStore, after: GitStore, objects: Objects
) -> BranchMove:
    gained = objects.commits(now, [was] if was else _tips(before), _MOST_COMMITS)
    lost = objects.commits(was, [now] if now else _tips(after), _MOST_COMMITS)
    return BranchMove(
        branch=name,
        before=was,
        after=now,
        gained=len(gained),
        lost=len(lost),
        lost_subjects=tuple(map(_subject, lost[:_KEPT])),
    )


def _ref_moves(before: GitStore, after: GitStore) -> tuple[RefMove, ...]:
    """Tags and fetched branches that are not what they were."""
    moved = sorted(name for name in before.refs.keys() | after.refs.keys() if _moved(name, before, after))
    return tuple(
        RefMove(
            kind="tag" if name.startswith(_TAGS) else "remote branch",
            name=printable(name.removeprefix(_TAGS).removeprefix(_REMOTES)),
            before=before.refs.get(name),
            after=after.refs.get(name),
        )
        for name in moved[:_MOST_BRANCHES]
    )


def _moved(name: str, before: GitStore, after: GitStore) -> bool:
    return name.startswith((_TAGS, _REMOTES)) and before.refs.get(name) != after.refs.get(name)


def _committed(before: GitStore, after: GitStore, objects: Objects, commits: list[GitCommit]) -> int:
    """How many files the new commits of the branch have changed; none without a commit."""
    if not commits:
        return 0
    former = before.refs.get(f"refs/heads/{after.head.branch}") if after.head.branch else before.head.commit
    if former is None:
        parents = commits[-1].parents
        former = parents[0].decode() if parents else None
    return sum(1 for _ in objects.changed_paths(objects.tree_of(former), objects.tree_of(after.head.commit)))


# What the reflog says

# Renaming the branch that is checked out writes its words twice, first with no commit to move to.
_ENTRY = re.compile(r"^[0-9a-f]{40,64} (?!0+ )[0-9a-f]{40,64} [^\t\n]* \d{1,12} [+-]\d{4}(?:\t(.*))?$")
_MADE = re.compile(r"(?:commit(?: \([a-z-]+\))?|cherry-pick|revert|am): .*", re.DOTALL)
_STEP = re.compile(r"rebase \((?!finish|abort)")
_MERGED = re.compile(r"(?:merge|pull)\b.*: Merge made by ")


def _moves(before: GitStore, after: GitStore) -> list[str]:
    """The moves of HEAD other than commits, in their order, as git words them."""
    was = text(before.view, f"{before.place.folder}/logs/HEAD", 16 * MIB) or ""
    now = text(after.view, f"{after.place.folder}/logs/HEAD", 16 * MIB) or ""
    if not now.startswith(was):  # expired, or an earlier point: what lies between is not known
        return []
    messages = [entry[1] or "" for line in now[len(was) :].split("\n") if (entry := _ENTRY.match(line))]
    return [
        message[:200]
        for message in messages
        if message and message != "reset: moving to HEAD"
        if not (_MADE.fullmatch(message) or _MERGED.match(message) or _STEP.match(message))
    ]


# The files of the work tree


@dataclass
class _Files:
    staged: int = 0
    folded: int = 0
    modified: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.staged + self.folded + len(self.modified) + len(self.untracked)


def _files(before: GitStore, after: GitStore, objects: Objects, touched: Sequence[str]) -> _Files:
    """The touched files, and those whose entry in the index changed, as `git status` would sort them."""
    files = _Files()
    work_tree = after.place.work_tree or "/"
    top = len(work_tree.rstrip("/")) + 1
    tree = objects.tree_of(after.head.commit)
    changed = {name for name in before.index.keys() | after.index.keys() if _differs(before, after, name)}
    for name in sorted(changed | {os.fsencode(path[top:]) for path in touched}):
        shown_name = os.fsdecode(name)
        path = f"{work_tree.rstrip('/')}/{shown_name}"
        about, entry = status(after.view, path), after.index.get(name)
        committed = objects.blob_at(tree, name)
        if entry is None:
            files.staged += committed is not None  # its removal is staged
            # Git knows files and links; it does not see sockets, devices and named pipes.
            known = about and (stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode))
            if known and not after.is_ignored(shown_name):
                _add_untracked(files, path, shown_name)
        elif (
            about is None
            or isinstance(entry, ConflictedIndexEntry)
            or not after.is_unchanged(path, about, entry)
        ):
            files.modified.append(shown_name)
        else:
            files.staged += entry.sha != committed
    return files


def _differs(before: GitStore, after: GitStore, name: bytes) -> bool:
    was, now = before.index.get(name), after.index.get(name)
    if isinstance(was, ConflictedIndexEntry) or isinstance(now, ConflictedIndexEntry):
        return type(was) is not type(now)
    return (was.sha if was else None) != (now.sha if now else None)


def _add_untracked(files: _Files, path: str, name: str) -> None:
    if noisy_folder(path.rpartition("/")[0], is_folder=True) is not None:
        files.folded += 1
    else:
        files.untracked.append(name)
