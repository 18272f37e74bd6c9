"""What `git` says of a repository: refs, commits, the index and the work tree. It only reads."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.truth.oracle.tree import Tree

_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "core.quotePath",
    "GIT_CONFIG_VALUE_1": "false",
}
_WAITING = {
    "rebase": ("rebase-merge", "rebase-apply"),
    "merge": ("MERGE_HEAD",),
    "cherry-pick": ("CHERRY_PICK_HEAD",),
    "revert": ("REVERT_HEAD",),
    "bisect": ("BISECT_LOG",),
}


@dataclass(frozen=True)
class CommitFacts:
    """One commit."""

    parents: tuple[str, ...]
    subject: str
    at: int


class MoveFacts(NamedTuple):
    """An entry of a reflog: to which commit, when, and why."""

    commit: str
    at: str
    message: str


@dataclass
class Repository:
    """A repository, or a linked worktree of one, at one moment. Paths are relative to the work tree."""

    path: str
    bare: bool
    branch: str | None
    """The branch that is checked out; None when HEAD is a commit."""
    head: str | None
    refs: dict[str, str]
    commits: dict[str, CommitFacts]
    """Every commit that a ref, HEAD or the reflog reaches."""
    status: dict[bytes, set[str]] = field(default_factory=dict)
    """The two letters of `git status` for a path, `??`, `!!`; both for what is tracked no more."""
    index: dict[bytes, str] = field(default_factory=dict)
    trees: dict[str, dict[bytes, str]] = field(default_factory=dict)
    """The blobs of every commit."""
    reflog: tuple[MoveFacts, ...] = ()
    """HEAD's reflog, newest first."""
    stash: tuple[str, ...] = ()
    in_progress: str | None = None
    linked_to: str | None = None
    """Of a linked worktree: the git folder that it shares with others."""

    @property
    def committed(self) -> dict[bytes, str]:
        """The blobs of the commit that is checked out."""
        return self.trees.get(self.head or "", {})

    @property
    def branches(self) -> dict[str, str]:
        heads = "refs/heads/"
        return {name[len(heads) :]: tip for name, tip in self.refs.items() if name.startswith(heads)}


def find_repositories(tree: Tree) -> list[str]:
    """Work trees with a `.git`, and bare repositories."""
    found = {path[:-5] or b"/" for path in tree if path.endswith(b"/.git")}
    for path in tree:
        if path.endswith(b"/HEAD") and f"{os.fsdecode(path[:-5])}/objects".encode() in tree:
            folder = path[:-5]
            if b"/.git" not in folder and folder + b"/refs" in tree:
                found.add(folder)
    return sorted(os.fsdecode(path) for path in found)


def fingerprint(tree: Tree, path: str) -> int:
    """Changes whenever anything in the repository's folders does, or in the git folder of another one, which
    it may be a worktree of."""
    top = os.fsencode(path).rstrip(b"/") + b"/"
    inside = (item for item in tree.items() if item[0].startswith(top) or b"/.git/" in item[0])
    return hash(frozenset(inside))


def read_repository(
    root: str, tree: Tree, path: str, trees: dict[str, dict[bytes, str]]
) -> Repository | None:
    """What git says of the repository there; None where there is none. `trees`: of the commits that are known
    from before; the others are added."""

    def git(*words: str) -> bytes | None:
        def enter() -> None:
            os.chroot(root)
            os.chdir(path)

        done = subprocess.run(
            ["/usr/bin/git", "--no-replace-objects", *words],
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            preexec_fn=enter,
        )
        return done.stdout if done.returncode == 0 else None

    folder = git("rev-parse", "--absolute-git-dir", "--git-common-dir", "--is-bare-repository")
    if folder is None:
        return None
    own, common, is_bare = folder.decode(errors="surrogateescape").split("\n")[:3]
    common = os.path.normpath(os.path.join(path, common))
    bare = is_bare == "true"
    head = (git("rev-parse", "--verify", "-q", "HEAD^{commit}") or b"").decode().strip() or None
    branch = (git("symbolic-ref", "-q", "HEAD") or b"").decode(errors="surrogateescape").strip()
    refs = {}
    listed_refs = git("for-each-ref", "--format=%(if)%(symref)%(then)%(else)%(objectname) %(refname)%(end)")
    for line in filter(None, (listed_refs or b"").decode().splitlines()):
        tip, ref = line.split(" ", 1)
        refs[ref] = tip
    commits = {}
    listed = git(
        "log", "--all", "--reflog", *([head] if head else []), "-z", "--format=%H%x1f%P%x1f%ct%x1f%s"
    )
    for entry in (listed or b"").decode(errors="replace").split("\0"):
        if entry:
            commit, parents, at, subject = entry.split("\x1f", 3)
            commits[commit] = CommitFacts(tuple(parents.split()), subject, int(at))
    status: dict[bytes, set[str]] = {}
    index: dict[bytes, str] = {}
    if not bare:
        arguments = ("--porcelain=v1", "-z", "--untracked-files=all", "--ignored=matching", "--no-renames")
        for raw in filter(None, (git("status", *arguments) or b"").split(b"\0")):
            status.setdefault(raw[3:], set()).add(raw[:2].decode())
        for raw in filter(None, (git("ls-files", "-s", "-z") or b"").split(b"\0")):
            about, name = raw.split(b"\t", 1)
            index[name] = about.split()[1].decode()
    for commit in commits.keys() - trees.keys():
        blobs = trees[commit] = {}
        for raw in filter(None, (git("ls-tree", "-r", "-z", commit) or b"").split(b"\0")):
            about, name = raw.split(b"\t", 1)
            blobs[name] = about.decode()
    listed = git("log", "-g", "-z", "--date=unix", "--format=%H%x1f%gd%x1f%gs", "HEAD", "--")
    entries = (listed or b"").decode(errors="replace").split("\0")
    waiting = [
        word
        for word, names in _WAITING.items()
        if any(os.fsencode(f"{own}/{name}") in tree for name in names)
    ]
    return Repository(
        path=path,
        bare=bare,
        branch=branch.removeprefix("refs/heads/") or None,
        head=head,
        refs=refs,
        commits=commits,
        status=status,
        index=index,
        trees=trees,
        reflog=tuple(MoveFacts(*entry.split("\x1f", 2)) for entry in entries if entry),
        stash=tuple((git("log", "-g", "--format=%H", "refs/stash", "--") or b"").decode().split()),
        in_progress=waiting[0] if waiting else None,
        linked_to=common if common != own else None,
    )
