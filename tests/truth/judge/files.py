"""Changed files: the old tree with the changes applied must be the new tree, in every path and value.

This judges renames and folders that are told in one line as strictly as single files: whatever a list of
changes leaves out appears as a difference between the two trees.
"""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tests.truth.judge.ledger import Ledger
from tests.truth.oracle.look import Look
from tests.truth.oracle.tree import Entry, Tree, differing

_FIELDS = (
    *("path", "kind", "entry", "old_path", "what", "entry_before", "size_before", "size_after"),
    *("mode_before", "mode_after", "owner_before", "owner_after", "files", "files_bytes", "at_least"),
    *("path_base64", "old_path_base64", "links_to"),
)
Change = Mapping[str, Any]
KIND = "files"


def new_path(change: Change) -> bytes:
    """Where a change says that something is; was, if it is deleted."""
    return _raw(change["path"], change.get("path_base64"))


def old_path(change: Change) -> bytes:
    """Where a change says that something was."""
    if change.get("old_path") is None:
        return new_path(change)
    return _raw(change["old_path"], change.get("old_path_base64"))


def _raw(path: str, path_base64: str | None) -> bytes:
    if path_base64 is None:
        return os.fsencode(path)
    try:
        raw = base64.b64decode(path_base64, validate=True)
    except ValueError:
        return b"no base64"
    return raw if raw.decode(errors="backslashreplace") == path else b"another path"


def facets(old: Entry, new: Entry) -> set[str]:
    """In which ways two entries are not the same."""
    what = set()
    if old.kind != new.kind:
        what.add("type")
    elif old.content != new.content:
        what.add("content")
    if old.mode != new.mode:
        what.add("mode")
    if old.owner != new.owner:
        what.add("owner")
    if old.attributes != new.attributes:
        what.add("xattr")
    return what


def judge_files(ledger: Ledger, old: Look, new: Look, changes: Sequence[Change]) -> None:
    """Every change, and everything that no change tells."""
    _Replay(ledger, old.tree, new.tree, changes).run()
    _judge_links(ledger, old, new, changes)
    if old.keeper == new.keeper:
        _judge_moves(ledger, old, new, changes)


def _judge_moves(ledger: Ledger, old: Look, new: Look, changes: Sequence[Change]) -> None:
    """A file that was moved is told as moved. Only within one box do numbers of files mean anything."""
    created = {
        new.inodes[new_path(change)]: new_path(change)
        for change in changes
        if change["kind"] == "created" and new_path(change) in new.inodes
    }
    for change in changes:
        before = old.inodes.get(old_path(change)) if change["kind"] == "deleted" else None
        if before and before[1] == 1 and before in created:
            was, now = old.tree.get(old_path(change)), new.tree.get(created[before])
            if was and now and was.size and was.content == now.content:
                ledger.misleading(KIND, f"{change['path']} was moved to {created[before]!r}, told as - and +")


def _judge_links(ledger: Ledger, old: Look, new: Look, changes: Sequence[Change]) -> None:
    """A name of a file that has another one says so; of names that came together, the first is the file."""
    created = {new_path(change) for change in changes if change["kind"] == "created"}
    several = {inode for look in (old, new) for inode, links in look.inodes.values() if links > 1}
    names: dict[int, set[bytes]] = {}
    for path, (inode, _) in new.inodes.items():
        if inode in several:
            names.setdefault(inode, set()).add(path)
    for change in changes:
        told, path = change["links_to"], new_path(change)
        if change["kind"] == "created":
            # The layers of an overlay may use one number for two files, but all is the same of two names.
            known = names.get(new.inodes.get(path, (0, 0))[0], set()) - {path}
            known = {other for other in known if new.tree[other] == new.tree.get(path)}
            needed = bool(known - created) or any(other.split(b"/") < path.split(b"/") for other in known)
        else:
            inode, links = old.inodes.get(path, (0, 0)) if change["kind"] == "deleted" else (0, 0)
            known = names.get(inode, set()) if links > 1 else set()
            needed = bool(known) and old.keeper == new.keeper
        if told is not None and told not in {other.decode(errors="backslashreplace") for other in known}:
            ledger.wrong(KIND, f"{change['kind']} {change['path']}: {told!r} is no other name of it")
        elif told is None and needed:
            ledger.missing(KIND, f"{change['kind']} {change['path']}: also {min(known)!r}, a hard link")


class _Replay:
    """The old tree on its way to the new one."""

    def __init__(self, ledger: Ledger, old: Tree, new: Tree, changes: Sequence[Change]) -> None:
        self._ledger, self._old, self._new = ledger, old, new
        self._changes = changes
        self._gone: dict[bytes, Change] = {}
        self._moved: dict[bytes, Change] = {}
        self._created: dict[bytes, Change] = {}
        self._stated: dict[bytes, Change] = {}
        """What is said of a path of the new tree, but for its name."""
        self._counted: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()

    def run(self) -> None:
        for change in self._changes:
            self._sort_in(change)
        origins = self._expected()
        self._compare(origins)
        for change in self._changes:
            self._judge_counts(change)

    def _sort_in(self, change: Change) -> None:
        ledger, kind = self._ledger, change["kind"]
        ledger.count(KIND)
        ledger.known(KIND, change, _FIELDS)
        was, now = old_path(change), new_path(change)
        for shown, raw in ((change["path"], now), (change.get("old_path") or change["path"], was)):
            ledger.equal(KIND, "path", shown, raw.decode(errors="backslashreplace"))
        before = self._old.get(was) if kind != "created" else None
        after = self._new.get(now) if kind != "deleted" else None
        if before is None and kind != "created":
            ledger.wrong(KIND, f"{kind} {change['path']}: {was!r} was not there")
            return
        if after is None and kind != "deleted":
            ledger.wrong(KIND, f"{kind} {change['path']}: it is not there")
            return
        table = {"deleted": self._gone, "renamed": self._moved, "created": self._created}.get(kind)
        key = now if kind in ("created", "modified") else was
        if table is not None:
            if key in table:
                ledger.wrong(KIND, f"{kind} {change['path']}: told twice")
            table[key] = change
        if kind in ("modified", "renamed"):
            self._stated[now] = change
        self._judge_values(change, before, after)

    def _judge_values(self, change: Change, before: Entry | None, after: Entry | None) -> None:
        ledger, path = self._ledger, f"{change['kind']} {change['path']}"
        here = after or before
        assert here is not None
        ledger.equal(KIND, f"{path} entry", change["entry"], here.kind)
        if change.get("entry_before") is not None:
            ledger.equal(KIND, f"{path} entry before", change["entry_before"], before and before.kind)
        for side, entry in (("before", before), ("after", after)):
            size, mode, owner = (change.get(f"{name}_{side}") for name in ("size", "mode", "owner"))
            ledger.equal(
                KIND, f"{path} size {side}", size, None if entry is None or entry.is_folder else entry.size
            )
            ledger.equal(KIND, f"{path} mode {side}", mode, None if entry is None else entry.mode)
            if owner is not None or "owner" in change["what"]:
                ledger.equal(
                    KIND, f"{path} owner {side}", owner, entry and f"{entry.owner[0]}:{entry.owner[1]}"
                )

    def _expected(self) -> dict[bytes, bytes | None]:
        """Which paths the new tree must have, and where each was; None for what is new."""
        candidates = differing(self._old, self._new)
        before = _with_contents(candidates, self._old, [*self._gone, *self._moved])
        targets: dict[bytes, bytes | None] = {}
        owners: dict[bytes, bytes] = {}
        """Of what is gone without a line of its own: the folder that went."""
        origins: dict[bytes, bytes | None] = {}
        for path in sorted({*before, *self._gone, *self._moved}):
            folder = os.path.dirname(path)
            if path in self._moved:
                target: bytes | None = new_path(self._moved[path])
            elif path in self._gone:
                target = None
                owners[path] = path
            elif folder in targets:
                above = targets[folder]
                target = None if above is None else above.rstrip(b"/") + path[len(folder.rstrip(b"/")) :]
                if folder in owners:
                    owners[path] = owners[folder]
                    change = self._gone[owners[folder]]
                    self._count(change, path, self._old[path])
            else:
                target = path
            targets[path] = target
            if target is not None:
                if target in origins:
                    self._ledger.wrong(KIND, f"two things are told to be at {target!r}")
                origins[target] = path
        for path, change in self._created.items():
            if path in origins:
                was = origins[path]
                self._ledger.wrong(KIND, f"created {change['path']}: {was!r} is there already")
            origins[path] = None
        return origins

    def _compare(self, origins: dict[bytes, bytes | None]) -> None:
        ledger = self._ledger
        candidates = differing(self._old, self._new)
        after = _with_contents(candidates, self._new, [*self._created, *map(new_path, self._moved.values())])
        for path in sorted(after):
            if path not in origins and not self._comes_along(path, origins):
                if path in self._old and self._old[path] == self._new[path] and path not in candidates:
                    continue
                ledger.missing(KIND, f"{self._new[path].kind} {path!r} is new")
        for path, was in origins.items():
            now = self._new.get(path)
            if now is None:
                ledger.missing(KIND, f"{was or path!r} is gone, it would be at {path!r}")
            elif was is not None:
                self._compare_entries(path, self._old[was], now, was)
        for path in self._stated.keys() - origins.keys():
            self._compare_entries(path, self._old[old_path(self._stated[path])], self._new[path], path)

    def _compare_entries(self, path: bytes, old: Entry, new: Entry, was: bytes) -> None:
        real, change = facets(old, new), self._stated.get(path)
        told = set(change["what"]) if change else set()
        if change and old_path(change) != was:
            self._ledger.wrong(KIND, f"{change['path']} was {was!r} and not {old_path(change)!r}")
        if extra := told - real:
            self._ledger.wrong(KIND, f"{path!r}: {', '.join(sorted(extra))} told, and it is the same")
        if rest := real - told:
            self._ledger.missing(KIND, f"{path!r}: {', '.join(sorted(rest))} changed")
        if change and change["kind"] == "modified" and not told:
            self._ledger.wrong(KIND, f"{path!r}: modified in no way")

    def _comes_along(self, path: bytes, origins: dict[bytes, bytes | None]) -> bool:
        """Whether a folder above it is told to have come with all that is in it."""
        folder = os.path.dirname(path)
        while folder not in self._created:
            if folder == b"/" or origins.get(folder) is not None:
                return False
            folder = os.path.dirname(folder)
        change = self._created[folder]
        self._count(change, path, self._new[path])
        return True

    def _count(self, change: Change, path: bytes, entry: Entry) -> None:
        """What goes or comes with a folder has no line of its own."""
        if not entry.is_folder:
            self._counted[id(change)] += 1
            self._sizes[id(change)] += entry.size
        if not change["files"]:
            self._ledger.missing(KIND, f"{path!r} was {change['kind']}, with {change['path']}")

    def _judge_counts(self, change: Change) -> None:
        what = f"{change['kind']} {change['path']} files"
        told = change["files"], change["files_bytes"]
        real = self._counted[id(change)], self._sizes[id(change)]
        if not change["at_least"]:
            self._ledger.equal(KIND, what, told, real)
        elif told[0] >= real[0]:
            self._ledger.wrong(KIND, f"{what}: told at least {told[0]}, there are {real[0]}")


def _with_contents(paths: Collection[bytes], tree: Tree, folders: Sequence[bytes]) -> set[bytes]:
    """Those of the paths that are in a tree, and all that is below folders in it."""
    found = {path for path in paths if path in tree}
    tops = tuple(path + b"/" for path in folders if path in tree and tree[path].is_folder)
    if tops:
        found |= {path for path in tree if path.startswith(tops)}
    return found
