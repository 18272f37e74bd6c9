"""Landing: what of a list of changes is still to be brought to a folder, and what speaks against it.

The folder is one of the host (`apply`), or the root of the live box itself (`restore --files`, where the
changes are those from now back to a point). Nothing is written here: the outcome is a plan, and whoever
carries it out finds each place as the plan saw it or leaves it alone.

One folder of the box (the source) stands for the folder that is landed on: its path below the one is its
path below the other. Of each file only what has changed is brought: one whose content changed keeps the owner
and the mode that the folder's own file has. What is there already is not written again, so landing twice
is landing once.

A conflict is a place where landing would destroy something that the session has never seen: a file that is
neither what the session started from nor what it has landed there before. What is merely not there any more
is no conflict. When the base of the session is the very folder that is landed on, the base's file *is* the
file there and proves nothing; then its change time has to be older than the session.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from waypoint.api.difference import Changes, Facet
from waypoint.history.view import Place, PointView
from waypoint.kernel import files
from waypoint.kernel.files import Entry
from waypoint.model import Conflict, Landed, LandedAction, Landing, LeftOut

OWN_FILES = frozenset({"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"})
"""Waypoint writes these into a new session, for its network and its name: they land only when named."""
NOT_FILES = ("/dev", "/proc", "/sys")
"""Of the box alone, and of the machine."""

_ALL: tuple[Facet, ...] = ("content", "mode", "owner", "xattr")
_CARRIED = frozenset({"security.capability", "system.posix_acl_access", "system.posix_acl_default"})
_CHUNK = 1 << 20


class Ground(Protocol):
    """A folder that can be looked at safely (`kernel.placing.Folder`)."""

    def at(self, path: str) -> AbstractContextManager[str]:
        """A path for this process; an OSError where none leads."""
        ...

    def names(self, path: str) -> list[str]:
        """What is in a folder of it."""
        ...


class Selection(NamedTuple):
    """The paths of the box that a list of changes is about, in order, parents first."""

    source: str
    wanted: dict[str, tuple[Facet, ...] | None]
    """What is to be there, and which of its ways have changed; None: all of it is new."""
    gone: tuple[str, ...]
    """What is not to be there any more; of a folder that went as a whole, the folder."""


class Step(NamedTuple):
    """One thing to do in the folder."""

    path: str
    """Relative to the folder."""
    action: LandedAction
    place: Place | None
    """What it becomes; None when it goes."""
    what: tuple[Facet, ...]
    """Which of its ways are brought."""
    there: Entry | None
    """What is there now."""


class LandingPlan(NamedTuple):
    """What is to be done, and the same in words that can be sent."""

    steps: tuple[Step, ...]
    landing: Landing


def shown(path: str) -> str:
    """A path that can be sent and printed."""
    return os.fsencode(path).decode(errors="backslashreplace")


def carried(attributes: Mapping[str, bytes]) -> dict[str, bytes]:
    """The extended attributes that go along with a file. Labels of the machine's own policy do not."""
    return {
        name: value
        for name, value in attributes.items()
        if name in _CARRIED
        or (name.startswith(("user.", "trusted.")) and not name.startswith("trusted.overlay."))
    }


def is_inside(path: str, folder: str) -> bool:
    return folder in (path, "/") or path.startswith(f"{folder}/")


def place_of(path: str, views: Sequence[PointView], *, follow: bool = True) -> str:
    """The path by which the views know what a user has named: links on the way are followed, and one at its
    end where it leads to a folder. FileNotFoundError when none of them has it."""
    for view in views:
        found = view.resolve(path, follow=False)
        if found is None:
            continue
        if follow and found.entry.is_link:
            behind = view.resolve(path)
            if behind and behind.entry.is_folder:
                return behind.path
        return found.path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


# ---- which paths --------------------------------------------------------------------------------


def select(changes: Changes, new: PointView, source: str, paths: Sequence[str] = ()) -> Selection:
    """The changes below a folder of the box, and of those the ones at or below `paths` if there are any.
    All paths are those of the views (`place_of`)."""

    def chosen(path: str) -> bool:
        return is_inside(path, source) and (not paths or any(is_inside(path, one) for one in paths))

    wanted: dict[str, tuple[Facet, ...] | None] = {}
    gone: set[str] = set()
    for change in changes:
        path = change.real_path
        if change.kind == "deleted":
            gone.add(path)
            continue
        if change.kind == "renamed":
            gone.add(change.real_old_path)
        if change.kind == "modified":
            wanted.setdefault(path, change.what)
            continue
        walked = path in wanted
        wanted[path] = None
        if change.entry == "folder" and not walked:
            # Of the base's part of it nothing is listed on its own.
            wanted |= dict.fromkeys(inside for inside, _ in new.walk(path))
    return Selection(
        source,
        {path: wanted[path] for path in sorted(wanted, key=_steps) if chosen(path)},
        tuple(path for path in sorted(gone, key=_steps) if chosen(path) and new.place(path) is None),
    )


def _steps(path: str) -> list[str]:
    return path.split("/")


def why_it_stays(path: str, named: Sequence[str]) -> str | None:
    """Why something of the box is of no use outside of it."""
    if any(is_inside(path, folder) for folder in NOT_FILES):
        return "belongs to the session alone"
    if path in OWN_FILES and path not in named:
        return "written by Waypoint for the session; it comes along when it is named"
    return None


def why_no_file(entry: Entry) -> str | None:
    """Why something cannot be carried."""
    if entry.is_file or entry.is_folder or entry.is_link:
        return None
    return f"a {entry.kind} is nothing that could be carried"


# ---- the plan -----------------------------------------------------------------------------------


class Rules(NamedTuple):
    """What may be done, and what is known about the folder."""

    delete: bool = False
    judge: bool = True
    """Whether somebody else works in the folder, so that there may be conflicts."""
    since_ns: int = 0
    """When the session began."""
    landed: Callable[[str, os.stat_result], bool] = lambda _path, _status: False
    """Whether what is at a path of the folder is what was landed there before."""
    named: Sequence[str] = ()
    """Paths of the box that were asked for by name."""
    outside: Sequence[str] = ()
    """Paths of the box that belong to no point: binds."""
    why_kept: str = "deleted in the session; --delete lets it go here too"


def plan_landing(
    selection: Selection, old: PointView, new: PointView, ground: Ground, target: str, rules: Rules
) -> LandingPlan:
    """What bringing a selection of the changes from `old` to `new` to a folder takes. `target` is what the
    folder is called."""
    return _Planning(selection, old, new, ground, target, rules).run()


class _Planning:
    """One plan in the making."""

    def __init__(
        self, selection: Selection, old: PointView, new: PointView, ground: Ground, target: str, rules: Rules
    ) -> None:
        self.selection, self.old, self.new, self.ground, self.rules = selection, old, new, ground, rules
        self.target = target
        self.base = PointView.bare(new) if old.volume is not None else None
        self.ways: set[str] = set()
        """Folders that are known to be there."""
        self.steps: dict[str, Step] = {}
        self.removals: dict[str, Step] = {}
        self.conflicts: list[Conflict] = []
        self.left_out: list[LeftOut] = []
        self.unchanged = 0

    def run(self) -> LandingPlan:
        for path, what in self.selection.wanted.items():
            why = self._why_not(path)
            if why:
                self.left_out.append(LeftOut(path=shown(path), why=why))
            elif relative := self._relative(path):
                self._bring(path, relative, what)
        for path in self.selection.gone:
            if not self._why_not(path) and (relative := self._relative(path)):
                self._take(path, relative)
        steps = (*self.steps.values(), *reversed(self.removals.values()))
        return LandingPlan(
            steps,
            Landing(
                source=shown(self.selection.source),
                target=shown(self.target),
                items=tuple(self._item(step) for step in steps),
                conflicts=tuple(self.conflicts),
                left_out=tuple(self.left_out),
                unchanged=self.unchanged,
            ),
        )

    def _relative(self, path: str) -> str:
        return path[len(self.selection.source.rstrip("/")) :].lstrip("/")

    def _box_path(self, relative: str) -> str:
        return posixpath.join(self.selection.source, relative)

    def _shown_target(self, relative: str) -> str:
        return shown(posixpath.join(self.target, relative))

    def _item(self, step: Step) -> Landed:
        entry = step.place.entry if step.place else step.there
        assert entry is not None
        content = entry.is_file and step.action != "delete" and "content" in step.what
        return Landed(
            path=self._shown_target(step.path),
            source=shown(self._box_path(step.path)),
            action=step.action,
            entry=entry.kind,
            size_bytes=entry.size if content else 0,
            what=step.what if step.action in ("update", "mode") else (),
        )

    def _why_not(self, path: str) -> str | None:
        for folder in self.rules.outside:
            if is_inside(path, folder):
                return f"{folder} is a bind mount"
        if self.rules.judge and (why := why_it_stays(path, self.rules.named)):
            return why
        place = self.new.place(path)
        return why_no_file(place.entry) if place else None

    # ---- what is to be there -----------------------------------------------------------------

    def _bring(self, path: str, relative: str, what: tuple[Facet, ...] | None) -> None:
        place = self.new.place(path)
        if place is None or not self._make_way(relative):
            return
        above = self.steps.get(posixpath.dirname(relative))
        if above and not (above.there and above.there.is_folder):
            # Its folder is still to be made, where there may be something else now.
            self._step(relative, "create", place, _ALL, None)
            return
        try:
            with self.ground.at(relative) as where:
                self._compare(place, relative, what, where)
        except (FileNotFoundError, NotADirectoryError):
            self._step(relative, "create", place, _ALL, None)
        except OSError as error:
            self._blocked(relative, error)

    def _make_way(self, relative: str) -> bool:
        """The folders above a path that the folder lacks. False when there can be none."""
        folder = ""
        for name in relative.split("/")[:-1]:
            folder = f"{folder}/{name}" if folder else name
            if folder in self.ways or folder in self.steps:
                continue
            try:
                with self.ground.at(folder) as where:
                    there = files.look(where)
            except (FileNotFoundError, NotADirectoryError):
                there = None
            except OSError as error:
                self._blocked(relative, error)
                return False
            if there and there.is_folder:
                self.ways.add(folder)
                continue
            place = self.new.place(self._box_path(folder))
            if there or place is None:
                # It is a folder in both points, and something else here: not of the session's making.
                kind = there.kind if there else "folder that is gone"
                why = f"{self._shown_target(folder)} is a {kind} here"
                self._conflict(relative, why, forcible=False)
                return False
            self._step(folder, "create", place, _ALL, None)
        return True

    def _blocked(self, relative: str, error: OSError) -> None:
        is_link = error.errno == errno.ELOOP
        why = "a link is on the way there" if is_link else os.strerror(error.errno or 0)
        self._conflict(relative, why, forcible=False)

    def _compare(self, place: Place, relative: str, what: tuple[Facet, ...] | None, where: str) -> None:
        there = files.look(where)
        if there is None:
            self._step(relative, "create", place, _ALL, None)
            return
        if there.kind != place.entry.kind:
            self._replace(place, relative, where, there)
            return
        if place.entry.is_folder and what is None:
            self.unchanged += 1
            return
        wanted = _ALL if what is None or "type" in what else what
        differs = tuple(facet for facet in wanted if self._differs(facet, place, where, there))
        if not differs:
            self.unchanged += 1
            return
        if self.rules.judge and "content" in differs and not self._knows(relative, where, there):
            self._conflict(relative, self._why(relative), forcible=True)
        self._step(relative, "update" if "content" in differs else "mode", place, differs, there)

    def _replace(self, place: Place, relative: str, where: str, there: Entry) -> None:
        """Something of another kind is in the place."""
        if there.is_folder:
            if not self.rules.delete:
                self._conflict(relative, "a folder is here; --delete lets it go", forcible=False)
                return
            for name in self.ground.names(relative):
                self._remove(f"{relative}/{name}")
        elif self.rules.judge and not self._knows(relative, where, there):
            self._conflict(relative, self._why(relative), forcible=True)
        self._step(relative, "update", place, ("type", *_ALL), there)

    def _step(
        self,
        relative: str,
        action: LandedAction,
        place: Place,
        what: tuple[Facet, ...],
        there: Entry | None,
    ) -> None:
        step = Step(relative, action, place, what, there)
        if self.rules.judge and (rights := self._rights(step)):
            self._conflict(relative, rights, forcible=True)
        self.steps[relative] = step

    def _rights(self, step: Step) -> str | None:
        """What a program would be given that whoever runs it does not have. A folder of the host is no place
        for an agent to leave that unseen."""
        place, there = step.place, step.there
        if place is None or not place.entry.is_file:
            return None
        brings = step.action == "create" or "type" in step.what
        mode = place.entry.mode if brings or "mode" in step.what or there is None else there.mode
        owner = place.entry.uid if brings or "owner" in step.what or there is None else there.uid
        if mode & stat.S_ISUID:
            return f"it would run with the rights of user {owner}, whoever starts it"
        if mode & stat.S_ISGID and mode & stat.S_IXGRP:
            return "it would run with the rights of its group, whoever starts it"
        if (brings or "xattr" in step.what) and "security.capability" in self.new.attributes(place):
            return "it would run with capabilities, whoever starts it"
        return None

    # ---- what is not to be there -------------------------------------------------------------

    def _take(self, path: str, relative: str) -> None:
        try:
            with self.ground.at(relative) as where:
                if files.look(where) is None:
                    return
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if self.rules.delete:
                self._blocked(relative, error)
            return
        if not self.rules.delete:
            self.left_out.append(LeftOut(path=shown(path), why=self.rules.why_kept))
            return
        self._remove(relative)

    def _remove(self, relative: str) -> None:
        """Something with all that is in it, every file of which has to be one that the session knew."""
        waiting = [relative]
        while waiting:
            path = waiting.pop()
            if path in self.removals or path in self.steps:
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self.ground.at(path) as where:
                there = files.look(where)
                if there is None:
                    continue
                if there.is_folder:
                    waiting += [f"{path}/{name}" for name in self.ground.names(path)]
                elif self.rules.judge and not self._knows(path, where, there):
                    self._conflict(path, self._why(path), forcible=True)
                self.removals[path] = Step(path, "delete", None, (), there)

    # ---- what the session knew ---------------------------------------------------------------

    def _conflict(self, relative: str, why: str, *, forcible: bool) -> None:
        self.conflicts.append(
            Conflict(
                path=self._shown_target(relative),
                source=shown(self._box_path(relative)),
                why=why,
                forcible=forcible,
            )
        )

    def _knows(self, relative: str, where: str, there: Entry) -> bool:
        status = os.lstat(where)
        if self.rules.landed(relative, status):
            return True
        for view in filter(None, (self.old, self.base)):
            place = view.place(self._box_path(relative))
            if place is None or place.entry.kind != there.kind:
                continue
            origin = view.host_path(place)
            if origin and _is_one_file(origin, status):
                return there.ctime_ns <= self.rules.since_ns
            if there.is_folder or not _reads_differently(view, place, where, there):
                return True
        return False

    def _why(self, relative: str) -> str:
        path = self._box_path(relative)
        if any(view.place(path) for view in filter(None, (self.old, self.base))):
            return "changed here since the session began"
        return "made here too, and not the same"

    def _differs(self, facet: Facet, place: Place, where: str, there: Entry) -> bool:
        wanted = place.entry
        if facet == "content":
            return not wanted.is_folder and _reads_differently(self.new, place, where, there)
        if facet == "mode":
            return not wanted.is_link and stat.S_IMODE(wanted.mode) != stat.S_IMODE(there.mode)
        if facet == "owner":
            return (wanted.uid, wanted.gid) != (there.uid, there.gid)
        return carried(self.new.attributes(place)) != carried(files.attributes(where))


def _is_one_file(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), status)
    except OSError:
        return False


def _reads_differently(view: PointView, place: Place, where: str, there: Entry) -> bool:
    """Whether a file or a link of a view is another than the one of the same kind that is at a path."""
    if there.is_link:
        origin = view.host_path(place)
        return origin is None or files.target(origin) != files.target(where)
    if place.entry.size != there.size:
        return True
    origin = view.data_path(place)
    return origin is None or not _same_bytes(origin, where)


def _same_bytes(one: str, other: str) -> bool:
    """All of them, however many: what is landed gets a new time, so times cannot tell."""
    try:
        first = files.open_file(one)
    except OSError:
        return False
    try:
        second = files.open_file(other)
    except OSError:
        os.close(first)
        return False
    with open(first, "rb", buffering=0) as ours, open(second, "rb", buffering=0) as theirs:
        while part := ours.read(_CHUNK):
            if part != _exactly(theirs.fileno(), len(part)):
                return False
        return not theirs.read(1)


def _exactly(fd: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := os.read(fd, length)):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
