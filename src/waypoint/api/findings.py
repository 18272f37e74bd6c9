"""What analyzers find: the meaning of changed files, as plain records that travel into cards and `--json`.

All of it is *derived*: read from the captures, never from what a tool in the session said about itself. The
words in it (commit subjects, cron lines, names) come from the session all the same, so whatever shows them
redacts them first.
"""

from __future__ import annotations

from typing import Literal

from waypoint.model import Record

PackageMove = Literal["added", "removed", "upgraded", "downgraded"]
Fate = Literal["created", "removed", "changed"]
ServerKind = Literal["postgresql", "mariadb", "redis"]


class PackageChange(Record, frozen=True, tag_field="kind", tag="package"):
    """One package of one environment."""

    ecosystem: str
    environment: str
    """Where it is installed: `/` for the system, a virtual environment, a project."""
    name: str
    change: PackageMove
    before: str | None = None
    after: str | None = None
    direct: bool = True
    """It was asked for by name; the others were installed as dependencies."""
    installed: bool = True
    """False: only a lock file says so, the files are not there."""


class Commit(Record, frozen=True):
    """A commit that a branch has gained or lost between two points."""

    id: str
    subject: str
    at: int
    """Seconds since the epoch, as its committer noted them."""
    merge: bool = False


class BranchMove(Record, frozen=True):
    """A branch that points elsewhere now; None where it is not there."""

    branch: str
    before: str | None
    after: str | None
    gained: int = 0
    """Commits that it has now and had not before; for a new branch those that no ref had."""
    lost: int = 0
    """Commits that it had and has not any more; for a branch that is gone those that no ref has now."""
    lost_subjects: tuple[str, ...] = ()
    """Of the last ten of these, newest first."""


class RefMove(Record, frozen=True):
    """A tag, or a branch of another repository as it was fetched, that came, went or points elsewhere now."""

    kind: Literal["tag", "remote branch"]
    name: str
    before: str | None
    after: str | None


class RepositoryChange(Record, frozen=True, tag_field="kind", tag="repository"):
    """A git repository, or one of its linked worktrees, in which something happened.

    The changed files of the work tree are sorted by what git knows of them. Both things that a label made
    from `git status` hides are here: `committed` (done, so status is clean) and `untracked` (never seen).
    """

    path: str
    change: Fate
    branch_before: str | None = None
    """A name, or the first letters of a commit when no branch is checked out."""
    branch_after: str | None = None
    head_before: str | None = None
    head_after: str | None = None
    commits: tuple[Commit, ...] = ()
    """What the branch that is checked out has gained: the last ten, newest first."""
    commit_count: int = 0
    lost_count: int = 0
    """Commits that this branch had and has not any more: after a reset, a rebase, an amend."""
    lost: tuple[Commit, ...] = ()
    """The last ten of these, newest first."""
    lost_kept_on: str | None = None
    """A branch that still has all of them."""
    moves: tuple[str, ...] = ()
    """What else moved HEAD, as the reflog words it: checkouts, resets, pulls, rebases."""
    branches: tuple[BranchMove, ...] = ()
    refs: tuple[RefMove, ...] = ()
    """Tags and fetched branches; the first fifty."""
    stashed: int = 0
    """Entries that the stash has now and had not before."""
    unstashed: int = 0
    """Entries that it had and has not any more."""
    committed: int = 0
    staged: int = 0
    modified: int = 0
    untracked: int = 0
    untracked_folded: int = 0
    """Untracked files in folders that machines fill: node_modules, __pycache__, environments."""
    modified_paths: tuple[str, ...] = ()
    untracked_paths: tuple[str, ...] = ()
    in_progress: str | None = None
    """A merge, rebase, cherry-pick, revert or bisect that waits to be finished."""
    in_progress_before: str | None = None
    """The same at the point before."""
    worktree_of: str | None = None
    """Of a linked worktree: the folder of the repository that it belongs to."""
    moved_from: str | None = None
    bare: bool = False


class TableChange(Record, frozen=True):
    """A table of a database. Rows are None where the table is not there or could not be counted in time."""

    name: str
    change: Fate
    rows_before: int | None = None
    rows_after: int | None = None
    rewritten: bool | None = None
    """As many rows as before, but not the same ones. None: not compared."""
    inserted: int | None = None
    """Rows with a key that was not there. None, as below: not compared."""
    deleted: int | None = None
    updated: int | None = None
    renamed_from: str | None = None
    altered: bool = False
    """Whether its definition is another one."""


class DatabaseChange(Record, frozen=True, tag_field="kind", tag="database"):
    """An SQLite database, its write-ahead log included."""

    path: str
    change: Fate
    size_before: int | None = None
    size_after: int | None = None
    tables: tuple[TableChange, ...] = ()
    schema: tuple[str, ...] = ()
    """`+table orders`, `-index by_date`, `~view totals`, `→table old → new`."""
    damage: str | None = None
    """Why it cannot be read now."""
    damage_before: str | None = None
    """Why it could not be read at the point before. Then its tables and rows cannot be compared."""
    renamed_from: str | None = None
    """Where it was before."""


class Keyspace(Record, frozen=True):
    """A database of a server. `before`, `after`: how many tables or keys it has; None: not known."""

    name: str
    change: Fate
    renamed_from: str | None = None
    before: int | None = None
    after: int | None = None
    added: int | None = None
    """Keys; None, as below: not compared."""
    removed: int | None = None
    rewritten: int | None = None


class ServerChange(Record, frozen=True, tag_field="kind", tag="server"):
    """The data folder of a database server, or its snapshot, and the databases in it that were written to."""

    path: str
    server: ServerKind
    change: Fate
    version: str = ""
    databases: tuple[Keyspace, ...] = ()
    unit: str = ""
    """What is counted: tables or keys."""


class AccountChange(Record, frozen=True, tag_field="kind", tag="account"):
    """A line of the system's user list."""

    name: str
    change: Fate
    uid: int | None = None


class CronChange(Record, frozen=True, tag_field="kind", tag="cron"):
    """A file that schedules commands."""

    path: str
    change: Fate
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


SystemSubject = Literal["group", "password", "keys", "unit", "capability"]


class SystemChange(Record, frozen=True, tag_field="kind", tag="system"):
    """A group, the password of a user (that it is another one, never what it is), the keys that may log in as
    a user, a unit of systemd, or the capabilities of a program."""

    subject: SystemSubject
    name: str
    """Of the group, the user or the unit; the path of the file."""
    change: Fate
    details: tuple[str, ...] = ()
    """`+ann` joined the group; `locked`; `+ssh-ed25519 SHA256:… ann@laptop`; `enabled`."""


class Gap(Record, frozen=True):
    """Something an analyzer could not tell, and why."""

    analyzer: str
    reason: str
    path: str | None = None
    meaning: str = ""
    """What is missing because of it; empty: all that the analyzer could have told of it."""


Finding = (
    PackageChange
    | RepositoryChange
    | DatabaseChange
    | ServerChange
    | AccountChange
    | CronChange
    | SystemChange
)


class Analysis(Record, frozen=True):
    """Everything found between two points, and what could not be looked at."""

    findings: tuple[Finding, ...] = ()
    gaps: tuple[Gap, ...] = ()
