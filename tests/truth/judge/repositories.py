"""What is told of git, against what `git` says."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.truth.judge.ledger import Ledger
from tests.truth.oracle.look import Look
from tests.truth.oracle.repositories import CommitFacts, Repository
from tests.truth.oracle.tree import differing

KIND = "git"
_FIELDS = (
    *("kind", "path", "change", "branch_before", "branch_after", "head_before", "head_after", "commits"),
    *("commit_count", "lost_count", "moves", "branches", "committed", "staged", "modified", "untracked"),
    *("untracked_folded", "modified_paths", "untracked_paths", "in_progress", "worktree_of", "moved_from"),
    *("in_progress_before", "bare", "lost", "lost_kept_on", "refs", "stashed", "unstashed"),
)
_FOLDED = {b"__pycache__", b"node_modules", b".venv", b"site-packages", b".cache", b".pytest_cache"}
_IS_NO_MOVE = re.compile(
    r"^(?:commit|commit \(\S+\)|cherry-pick|revert|am): |^(?:merge|pull)\b.*: Merge made by |^$"
    r"|^rebase \((?!finish|abort)|^reset: moving to HEAD$"
)
"""Entries of a reflog that tell of a commit, of a step of a rebase, or of nothing."""

Graph = Mapping[str, CommitFacts]


def reachable(graph: Graph, tips: Iterable[str | None]) -> set[str]:
    """Every commit that can be reached from some."""
    waiting = [tip for tip in tips if tip]
    found: set[str] = set()
    while waiting:
        commit = waiting.pop()
        if commit not in found and commit in graph:
            found.add(commit)
            waiting.extend(graph[commit].parents)
    return found


def judge_repositories(ledger: Ledger, old: Look, new: Look, findings: list[Mapping[str, Any]]) -> None:
    """Every repository that is told, and every one that is not."""
    told: set[str] = set()
    for finding in findings:
        told |= {finding["path"], finding["moved_from"] or finding["path"]}
        ledger.count(KIND)
        ledger.known(KIND, finding, _FIELDS)
        before = old.repositories.get(finding["moved_from"] or finding["path"])
        after = new.repositories.get(finding["path"])
        change = "created" if before is None else "removed" if after is None else "changed"
        ledger.equal(KIND, f"{finding['path']} change", finding["change"], change)
        if before or after:
            _Judgement(ledger, old, new, before, after, finding).run()
    for path in old.repositories.keys() | new.repositories.keys():
        before, after = old.repositories.get(path), new.repositories.get(path)
        if path in told:
            continue
        if before is None or after is None:
            ledger.missing(KIND, f"{path} {'was made' if after else 'is gone'}")
        elif (before.refs, before.head, before.branch, before.in_progress) != (
            after.refs,
            after.head,
            after.branch,
            after.in_progress,
        ) and not (before.linked_to and (before.head, before.branch) == (after.head, after.branch)):
            ledger.missing(KIND, f"{path}: HEAD or a ref has moved")
        elif _unfinished(old, new, before, after):
            ledger.missing(KIND, f"{path}: files that are not committed")


class _Judgement:
    """One repository."""

    def __init__(
        self,
        ledger: Ledger,
        old: Look,
        new: Look,
        before: Repository | None,
        after: Repository | None,
        told: Mapping[str, Any],
    ) -> None:
        self._ledger, self._old, self._new = ledger, old, new
        self._before, self._after, self._told = before, after, told
        self._graph = {**(before.commits if before else {}), **(after.commits if after else {})}
        if shared := self._shared_before():
            self._graph |= shared.commits

    def _equal(self, what: str, real: object) -> None:
        self._ledger.equal(KIND, f"{self._told['path']} {what}", self._told[what], real)

    def run(self) -> None:
        before, after, told = self._before, self._after, self._told
        self._equal("branch_before", _branch(before))
        self._equal("branch_after", _branch(after))
        self._equal("head_before", before.head if before else None)
        self._equal("head_after", after.head if after else None)
        self._equal("in_progress", after.in_progress if after else None)
        self._equal("in_progress_before", before.in_progress if before else None)
        now = after or before
        assert now
        self._equal("bare", now.bare)
        owner = now.linked_to and (now.linked_to.removesuffix("/.git") or "/")
        self._equal("worktree_of", owner and os.fsencode(owner).decode(errors="backslashreplace"))
        self._judge_commits()
        self._judge_branches()
        self._judge_refs()
        for move in told["moves"]:
            self._ledger.count(KIND)
            if not after or move not in [entry.message[:200] for entry in after.reflog]:
                self._ledger.wrong(KIND, f"{told['path']}: the reflog has no {move!r}")
        if (moves := self._moves_since()) is not None:
            self._equal("moves", moves)
        if after:
            self._judge_files(after)
        else:
            for field in ("staged", "modified", "untracked", "untracked_folded"):
                self._equal(field, 0)

    def _shared_before(self) -> Repository | None:
        """What had the refs before: of a new worktree, the repository that it belongs to."""
        if self._before is None and self._after and self._after.linked_to:
            return self._old.repositories.get(self._after.linked_to.removesuffix("/.git"))
        return self._before

    def _known_before(self) -> list[str | None]:
        """Every commit that a ref or HEAD pointed at."""
        before = self._shared_before()
        return [*before.refs.values(), before.head] if before else []

    def _known_after(self) -> list[str | None]:
        return [*self._after.refs.values(), self._after.head] if self._after else []

    def _former(self) -> str | None:
        """Where the branch that is checked out now was before."""
        before = self._shared_before()
        if before is None or self._after is None:
            return None
        if self._after.branch is None:
            return self._before.head if self._before else None
        return before.branches.get(self._after.branch)

    def _moves_since(self) -> list[str] | None:
        """What moved HEAD other than commits, the last ten; None if the reflog does not go on from where it
        was."""
        was = self._before.reflog if self._before else ()
        now = self._after.reflog if self._after else ()
        if now[len(now) - len(was) :] != was:
            return None
        messages = [entry.message for entry in reversed(now[: len(now) - len(was)])]
        return [message[:200] for message in messages if not _IS_NO_MOVE.search(message)][-10:]

    def _judge_commits(self) -> None:
        ledger, told, former = self._ledger, self._told, self._former()
        tip = self._after.head if self._after else None
        if former:
            known: list[str | None] = [former]
        else:
            known = self._known_before()
            if not known and self._after:
                remotes = self._after.refs.items()
                known = [commit for name, commit in remotes if name.startswith("refs/remotes/")]
        gained = reachable(self._graph, [tip]) - reachable(self._graph, known)
        lost: set[str] = set()
        if tip and former and self._after:
            # Leaving a branch loses nothing of it.
            kept = [tip] if self._after.branch else [tip, *self._after.refs.values()]
            lost = reachable(self._graph, [former]) - reachable(self._graph, kept)
        self._equal("commit_count", len(gained))
        self._equal("lost_count", len(lost))
        self._judge_listed("commits", gained)
        self._judge_listed("lost", lost)
        if told["lost_kept_on"] is not None and self._after:
            holder = self._after.branches.get(told["lost_kept_on"])
            if not lost or lost - reachable(self._graph, [holder]):
                ledger.wrong(KIND, f"{told['path']}: {told['lost_kept_on']} does not have what was lost")
        elif lost and self._after and self._after.head != former:
            for name, holder in self._after.branches.items():
                if not lost - reachable(self._graph, [holder]):
                    ledger.misleading(KIND, f"{told['path']}: what {told['branch_after']} lost is on {name}")
        if self._after and gained:
            base = former or self._oldest_parent(gained)
            self._equal("committed", self._changed_paths(base))
        else:
            self._equal("committed", 0)

    def _judge_listed(self, field: str, real: set[str]) -> None:
        """Some of the commits that were gained or lost, with their subjects."""
        ledger, told = self._ledger, self._told
        ledger.count(KIND, len(told[field]))
        for commit in told[field]:
            ledger.known(KIND, commit, ("id", "subject", "at", "merge"))
            if commit["id"] not in real:
                ledger.wrong(
                    KIND, f"{told['path']} {field}: {commit['id'][:7]} {commit['subject']!r} is none"
                )
                continue
            facts = self._graph[commit["id"]]
            ledger.equal(KIND, "subject", commit["subject"], facts.subject[:200])
            ledger.equal(KIND, "time", commit["at"], facts.at)
            ledger.equal(KIND, "merge", commit["merge"], len(facts.parents) > 1)
        if len({commit["id"] for commit in told[field]}) != min(10, len(real)):
            ledger.missing(KIND, f"{told['path']}: {len(told[field])} of {len(real)} {field} listed")

    def _oldest_parent(self, gained: set[str]) -> str | None:
        """The parent of the first of the new commits, along first parents."""
        commit = self._after.head if self._after else None
        while commit in gained:
            parents = self._graph[commit].parents
            commit = parents[0] if parents else None
        return commit

    def _changed_paths(self, former: str | None) -> int:
        after = self._after
        assert after
        was = after.trees.get(former or "", {})
        return sum(was.get(name) != after.committed.get(name) for name in was.keys() | after.committed.keys())

    def _judge_branches(self) -> None:
        ledger, told = self._ledger, self._told
        was = self._before.branches if self._before else {}
        now = self._after.branches if self._after else {}
        moved = {name for name in was.keys() | now.keys() if was.get(name) != now.get(name)}
        listed = set()
        ledger.count(KIND, len(told["branches"]))
        known = self._known_before()
        for branch in told["branches"]:
            ledger.known(KIND, branch, ("branch", "before", "after", "gained", "lost", "lost_subjects"))
            name = branch["branch"]
            listed.add(name)
            ledger.equal(KIND, f"{name} before", branch["before"], was.get(name))
            ledger.equal(KIND, f"{name} after", branch["after"], now.get(name))
            start = [was[name]] if name in was else known
            gained = reachable(self._graph, [now.get(name)]) - reachable(self._graph, start)
            left = [now[name]] if name in now else self._known_after()
            lost = reachable(self._graph, [was.get(name)]) - reachable(self._graph, left)
            ledger.equal(KIND, f"{name} gained", branch["gained"], len(gained))
            ledger.equal(KIND, f"{name} lost", branch["lost"], len(lost))
            subjects = Counter(self._graph[commit].subject[:200] for commit in lost)
            if Counter(branch["lost_subjects"]) - subjects:
                ledger.wrong(KIND, f"{name} lost {branch['lost_subjects']}")
            ledger.equal(KIND, f"{name} lost subjects", len(branch["lost_subjects"]), min(10, len(lost)))
        linked = (self._after or self._before).linked_to  # type: ignore[union-attr]
        if not linked:
            for name in moved - listed:
                ledger.missing(KIND, f"{told['path']}: branch {name} moved")

    def _judge_refs(self) -> None:
        """Tags, fetched branches and the stash."""
        ledger, told = self._ledger, self._told
        was = self._before.refs if self._before else {}
        now = self._after.refs if self._after else {}
        kinds = {"refs/tags/": "tag", "refs/remotes/": "remote branch"}
        real = {
            (kind, name.removeprefix(prefix), was.get(name), now.get(name))
            for prefix, kind in kinds.items()
            for name in was.keys() | now.keys()
            if name.startswith(prefix) and was.get(name) != now.get(name)
        }
        listed = set()
        for ref in told["refs"]:
            ledger.count(KIND)
            ledger.known(KIND, ref, ("kind", "name", "before", "after"))
            listed.add((ref["kind"], ref["name"], ref["before"], ref["after"]))
        stash_before = set(self._before.stash if self._before else ())
        stash_after = set(self._after.stash if self._after else ())
        if (self._after or self._before).linked_to:  # type: ignore[union-attr]
            real, stash_before = set(), stash_after
        for one in listed - real:
            ledger.wrong(KIND, f"{told['path']}: {one}")
        for one in real - listed:
            ledger.missing(KIND, f"{told['path']}: {one}")
        self._equal("stashed", len(stash_after - stash_before))
        self._equal("unstashed", len(stash_before - stash_after))

    def _judge_files(self, after: Repository) -> None:
        """The files that are not as in the last commit, of those that changed since the point before."""
        told, ledger = self._told, self._ledger
        files = _unfinished(self._old, self._new, self._before, after)
        self._equal("untracked", len(files.untracked))
        self._equal("untracked_folded", len(files.folded))
        self._equal("modified", len(files.modified))
        self._equal("staged", len(files.staged))
        for field, real in (("modified_paths", files.modified), ("untracked_paths", files.untracked)):
            names = {name.decode(errors="backslashreplace") for name in real}
            ledger.count(KIND, len(told[field]))
            for path in set(told[field]) - names:
                ledger.wrong(KIND, f"{told['path']}: {path} in {field}")
            ledger.equal(KIND, f"{told['path']} {field}", len(told[field]), min(10, len(names)))


@dataclass(frozen=True)
class _Unfinished:
    """Changed files of a work tree that are not as in the last commit."""

    untracked: set[bytes]
    folded: set[bytes]
    modified: set[bytes]
    staged: set[bytes]

    def __bool__(self) -> bool:
        return bool(self.untracked or self.folded or self.modified or self.staged)


def _unfinished(old: Look, new: Look, before: Repository | None, after: Repository) -> _Unfinished:
    top = os.fsencode(after.path).rstrip(b"/") + b"/"
    changed = {path[len(top) :] for path in differing(old.tree, new.tree) if path.startswith(top)}
    index = before.index if before else {}
    changed |= {
        name for name in index.keys() | after.index.keys() if index.get(name) != after.index.get(name)
    }
    listed = [(name, one) for name, both in after.status.items() if name in changed for one in both]
    untracked = {name for name, letters in listed if letters == "??"}
    folded = {name for name in untracked if not _FOLDED.isdisjoint(name.split(b"/"))}
    modified = {
        name
        for name, letters in listed
        if letters not in ("??", "!!") and (letters[1] != " " or "U" in letters)
    }
    staged = {name for name, letters in listed if letters[0] not in " ?!U" and name not in modified}
    return _Unfinished(untracked - folded, folded, modified, staged)


def _branch(repository: Repository | None) -> str | None:
    if repository is None:
        return None
    return repository.branch or (repository.head[:10] if repository.head else None)
