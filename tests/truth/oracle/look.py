"""All facts of a session at one moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.truth.oracle import databases, live, packages, repositories, tree
from tests.truth.oracle.databases import Database, Snapshot
from tests.truth.oracle.live import PortFacts, ProcessFacts, ShellFacts
from tests.truth.oracle.packages import System
from tests.truth.oracle.repositories import Repository
from tests.truth.oracle.tree import Tree
from tests.truth.oracle.work import Work


@dataclass(frozen=True)
class Look:
    """What was there at one moment."""

    tree: Tree
    inodes: dict[bytes, tuple[int, int]]
    repositories: dict[str, Repository]
    databases: dict[bytes, Database]
    snapshots: dict[bytes, Snapshot | None]
    """Snapshots of redis."""
    system: System
    processes: dict[int, ProcessFacts]
    ports: set[PortFacts]
    shell: ShellFacts
    keeper: int
    """The first process of the box: files of two boxes have nothing to do with each other by number."""
    work: Work = field(default_factory=Work)
    """The only part that is not read from the machine: the story knows what it has done."""


class Oracle:
    """Looks at sessions, and remembers what has not changed."""

    def __init__(self) -> None:
        self._reader = tree.TreeReader()
        self._repositories: dict[tuple[str, int], Repository | None] = {}
        self._blobs: dict[str, dict[bytes, str]] = {}
        self._databases: dict[tuple[bytes, int], Database] = {}
        self._snapshots: dict[bytes, Snapshot | None] = {}
        self._entries: dict[tuple[bytes, tree.Entry], tree.Entry] = {}

    def look_at_files(self, root: str) -> Look:
        """The files alone: nothing runs."""
        return self._look(root, {}, set(), ShellFacts(), 0)

    def look(self, keeper: int, shell: Callable[[str], str] | ShellFacts) -> Look:
        """`keeper`: the first process of the session's box. `shell`: runs a command in its shell; or what is
        known of a shell that runs a program and takes no commands."""
        if not isinstance(shell, ShellFacts):
            shell = live.read_shell(shell)
        return self._look(
            f"/proc/{keeper}/root", live.read_processes(keeper), live.read_ports(keeper), shell, keeper
        )

    def _snapshot(self, root: str, path: bytes, digest: bytes) -> Snapshot | None:
        if digest not in self._snapshots:
            self._snapshots[digest] = databases.read_snapshot(os.fsencode(root) + path)
        return self._snapshots[digest]

    def _look(
        self,
        root: str,
        processes: dict[int, ProcessFacts],
        ports: set[PortFacts],
        shell: ShellFacts,
        keeper: int,
    ) -> Look:
        read = self._reader.read(root)
        # One object for equal entries of a path makes comparing trees quick.
        files = {path: self._entries.setdefault((path, entry), entry) for path, entry in read.items()}
        found = {}
        for path in repositories.find_repositories(files):
            key = path, repositories.fingerprint(files, path)
            if key not in self._repositories:
                self._repositories[key] = repositories.read_repository(root, files, path, self._blobs)
            if repository := self._repositories[key]:
                found[path] = repository
        held = {}
        for file in databases.find_databases(root, files):
            of_file = file, databases.fingerprint(files, file)
            if of_file not in self._databases:
                self._databases[of_file] = databases.read_database(root, file)
            held[file] = self._databases[of_file]
        return Look(
            tree=files,
            inodes=self._reader.inodes,
            repositories=found,
            databases=held,
            snapshots={
                path: self._snapshot(root, path, entry.content)
                for path, entry in files.items()
                if path.endswith(b".rdb") and entry.kind == "file"
            },
            system=packages.read_system(root, files),
            processes=processes,
            ports=ports,
            shell=shell,
            keeper=keeper,
        )
