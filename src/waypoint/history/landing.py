"""Landing: what of a list of changes is still to be brought to a folder, and what conflicts with it.

The folder is one of the host (`apply`), or the root of the live box itself (restoring single files, where the
changes are those from now back to a point). Nothing is written here: the result is a plan. Carrying it out
skips every place that is no longer as the plan saw it.

One folder of the box (the source) corresponds to the folder that is landed on: a path below the one is the
same path below the other. Of each file only what has changed is brought: a file whose content changed keeps
the owner and the mode of the folder's own file. What is already there is not written again, so landing twice
has no further effect.

A conflict is a place where landing would destroy something that the session has never seen: a file that is
neither what the session started from nor what it has landed there before. A file that does not exist any more
is no conflict. A file that the host runs by itself, such as a git hook, is one unless the user allows it
(executed.py). When the base of the session is the folder that is landed on, the base's file *is* the file
there and proves nothing; then its change time has to be older than the session.
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
from waypoint.history.executed import MOST_CONFIG_BYTES, reason_executed
from waypoint.history.view import Place, PointView, printable
from waypoint.kernel import files
from waypoint.kernel.files import Entry
from waypoint.model import Conflict, Landed, LandedAction, Landing, LeftOut

OWN_FILES = frozenset({"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"})
"""Waypoint writes these into a new session, for its network and its name: they land only when the user names
them."""
NOT_FILES = ("/dev", "/proc", "/sys")
"""Folders that belong to the box or the machine."""

_OF_OVERLAYS = ("trusted.overlay.", "user.overlay.")
_ALL: tuple[Facet, ...] = ("content", "mode", "owner", "xattr")
_PORTABLE = frozenset({"security.capability", "system.posix_acl_access", "system.posix_acl_default"})
_CHUNK = 1 << 20


class TargetFolder(Protocol):
    """A folder that can be read safely (`kernel.placement.Folder`)."""

    def at(self, path: str) -> AbstractContextManager[str]:
        """A path for this process; an OSError when the folder has no such path."""
        ...

    def look_at(self, where: str) -> Entry | None:
        """What is at such a path; None when there is nothing."""
        ...

    def attributes_at(self, where: str) -> dict[str, bytes]:
        """The extended attributes of what is there."""
        ...

    def names(self, path: str) -> list[str]:
        """The names in a folder of it."""
        ...


class Selection(NamedTuple):
    """The paths of the box that a list of changes concerns, in order, parents first."""

    source: str
    wanted: dict[str, tuple[Facet, ...] | None]
    """What has to exist, and which of its facets have changed; None: all of it is new."""
    gone: tuple[str, ...]
    """What must not exist any more; for a folder that was deleted as a whole, the folder."""


class LandingStep(NamedTuple):
    """One thing to do in the folder."""

    path: str
    """Relative to the folder."""
    action: LandedAction
    place: Place | None
    """What it becomes; None when it is removed."""
    what: tuple[Facet, ...]
    """Which facets are brought."""
    present: Entry | None
    """What the folder has there now."""


class LandingPlan(NamedTuple):
    """What has to be done, and the same as it is sent to a client."""

    steps: tuple[LandingStep, ...]
    landing: Landing


def portable_attributes(attributes: Mapping[str, bytes]) -> dict[str, bytes]:
    """The extended attributes that are copied with a file. Security labels of the machine are not, nor what
    an overlay of the machine would obey: a whiteout, a redirect to another folder."""
    return {
        name: value
        for name, value in attributes.items()
        if name in _PORTABLE or (name.startswith(("user.", "trusted.")) and not name.startswith(_OF_OVERLAYS))
    }


def is_inside(path: str, folder: str) -> bool:
    return folder in (path, "/") or path.startswith(f"{folder}/")


def resolve_path(path: str, views: Sequence[PointView], *, follow: bool = True) -> str:
    """The path in the views of what a user has named: links on the way are followed, and a link at the end if
    it leads to a folder. FileNotFoundError when no view has it."""
    for view in views:
        place = view.resolve(path, follow=False)
        if place is None:
            continue
        if follow and place.entry.is_link:
            target = view.resolve(path)
            if target and target.entry.is_folder:
                return target.path
        return place.path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


# ---- which paths --------------------------------------------------------------------------------


def select(changes: Changes, new: PointView, source: str, paths: Sequence[str] = ()) -> Selection:
    """The changes below a folder of the box, and of those the ones at or below `paths` if there are any.
    All paths are those of the views (`resolve_path`)."""

    def is_selected(path: str) -> bool:
        return is_inside(path, source) and (not paths or any(is_inside(path, top) for top in paths))

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
        is_listed = path in wanted
        wanted[path] = None
        if change.entry == "folder" and not is_listed:
            # The files of its part in the base are not listed one by one.
            wanted |= dict.fromkeys(inside for inside, _ in new.walk(path))
    return Selection(
        source,
        {path: wanted[path] for path in sorted(wanted, key=_steps) if is_selected(path)},
        tuple(path for path in sorted(gone, key=_steps) if is_selected(path) and new.place(path) is None),
    )


def _steps(path: str) -> list[str]:
    return path.split("/")


def reason_to_skip(path: str, named: Sequence[str]) -> str | None:
    """Why a path of the box is not landed or exported; None if it is."""
    if any(is_inside(path, folder) for folder in NOT_FILES):
        return "belongs to the session alone"
    if path in OWN_FILES and path not in named:
        return "written by Waypoint for the session; it lands only when it is named"
    return None


def reason_to_keep(path: str, views: Sequence[PointView]) -> str | None:
    """Why a folder that the session deleted is not deleted elsewhere: something in it was hidden from the
    session, such as another Waypoint home. None if nothing was."""
    for masked in sorted({masked for view in views for masked in view.masked}):
        if is_inside(masked, path):
            return f"{printable(masked)} in it is hidden from the session"
    return None


def reason_not_portable(entry: Entry) -> str | None:
    """Why an entry cannot be copied to another folder; None if it can."""
    if entry.is_file or entry.is_folder or entry.is_link:
        return None
    return f"a {entry.kind} cannot be copied"


# ---- the plan -----------------------------------------------------------------------------------


class LandingRules(NamedTuple):
    """What is allowed, and what is known about the folder."""

    delete: bool = False
    judge: bool = True
    """Whether the folder may have changes that are not the session's, so that there may be conflicts."""
    allow_executed: bool = False
    """Whether files land that the host runs by itself."""
    real_target: str = ""
    """The path of the folder without links, where it is known."""
    since_ns: int = 0
    """When the session began."""
    landed: Callable[[str, os.stat_result], bool] = lambda _path, _status: False
    """Whether the session itself has landed what is at a path of the folder."""
    named: Sequence[str] = ()
    """Paths of the box that the user has named."""
    outside: Sequence[str] = ()
    """Paths of the box that belong to no point: bind mounts."""
    why_kept: str = "deleted in the session; deletions land only on request"


def plan_landing(
    selection: Selection,
    old: PointView,
    new: PointView,
    folder: TargetFolder,
    target: str,
    rules: LandingRules,
) -> LandingPlan:
    """What has to be done to bring a selection of the changes from `old` to `new` to a folder. `target` is
    the path of the folder, for messages."""
    return _Planner(selection, old, new, folder, target, rules).run()


class _Planner:
    """Makes one plan."""

    def __init__(
        self,
        selection: Selection,
        old: PointView,
        new: PointView,
        folder: TargetFolder,
        target: str,
        rules: LandingRules,
    ) -> None:
        self.selection, self.old, self.new, self.folder, self.rules = selection, old, new, folder, rules
        self.target = target
        self.base = PointView.bare(new) if old.volume is not None else None
        self.existing_folders: set[str] = set()
        """Folders that are known to exist."""
        self.steps: dict[str, LandingStep] = {}
        self.removals: dict[str, LandingStep] = {}
        self.conflicts: list[Conflict] = []
        self.left_out: list[LeftOut] = []
        self.unchanged = 0

    def run(self) -> LandingPlan:
        for path, what in self.selection.wanted.items():
            why = self._reason_to_skip(path)
            if why:
                self.left_out.append(LeftOut(path=printable(path), why=why))
            elif relative := self._relative(path):
                self._plan_path(path, relative, what)
        for path in self.selection.gone:
            if not self._reason_to_skip(path) and (relative := self._relative(path)):
                self._plan_deletion(path, relative)
        steps = (*self.steps.values(), *reversed(self.removals.values()))
        return LandingPlan(
            steps,
            Landing(
                source=printable(self.selection.source),
                target=printable(self.target),
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

    def _target_path(self, relative: str) -> str:
        return printable(posixpath.join(self.target, relative))

    def _item(self, step: LandingStep) -> Landed:
        entry = step.place.entry if step.place else step.present
        assert entry is not None
        content = entry.is_file and step.action != "delete" and "content" in step.what
        return Landed(
            path=self._target_path(step.path),
            source=printable(self._box_path(step.path)),
            action=step.action,
            entry=entry.kind,
            size_bytes=entry.size if content else 0,
            what=step.what if step.action in ("update", "mode") else (),
        )

    def _reason_to_skip(self, path: str) -> str | None:
        for folder in self.rules.outside:
            if is_inside(path, folder):
                return f"{folder} is a bind mount"
        if any(is_inside(path, masked) for view in (self.old, self.new) for masked in view.masked):
            return "hidden from the session"
        if self.rules.judge and (why := reason_to_skip(path, self.rules.named)):
            return why
        place = self.new.place(path)
        return reason_not_portable(place.entry) if place else None

    # ---- what has to exist -------------------------------------------------------------------

    def _plan_path(self, path: str, relative: str, what: tuple[Facet, ...] | None) -> None:
        place = self.new.place(path)
        if place is None or not self._plan_parents(relative):
            return
        above = self.steps.get(posixpath.dirname(relative))
        if above and not (above.present and above.present.is_folder):
            # Its folder does not exist yet; something else may be in its place.
            self._add_step(relative, "create", place, _ALL, None)
            return
        try:
            with self.folder.at(relative) as where:
                self._compare(place, relative, what, where)
        except (FileNotFoundError, NotADirectoryError):
            self._add_step(relative, "create", place, _ALL, None)
        except OSError as error:
            self._add_blocked(relative, error)

    def _plan_parents(self, relative: str) -> bool:
        """Plans the folders above a path that do not exist. Returns False when they cannot be made."""
        folder = ""
        for name in relative.split("/")[:-1]:
            folder = f"{folder}/{name}" if folder else name
            if folder in self.existing_folders or folder in self.steps:
                continue
            try:
                with self.folder.at(folder) as where:
                    present = self.folder.look_at(where)
            except (FileNotFoundError, NotADirectoryError):
                present = None
            except OSError as error:
                self._add_blocked(relative, error)
                return False
            if present and present.is_folder:
                self.existing_folders.add(folder)
                continue
            place = self.new.place(self._box_path(folder))
            if present or place is None:
                # It is a folder in both points and something else here, which the session did not make.
                kind = present.kind if present else "folder that is gone"
                why = f"{self._target_path(folder)} is a {kind} here"
                self._add_conflict(relative, why, forcible=False)
                return False
            self._add_step(folder, "create", place, _ALL, None)
        return True

    def _add_blocked(self, relative: str, error: OSError) -> None:
        is_link = error.errno == errno.ELOOP
        why = "a link is on the way there" if is_link else os.strerror(error.errno or 0)
        self._add_conflict(relative, why, forcible=False)

    def _compare(self, place: Place, relative: str, what: tuple[Facet, ...] | None, where: str) -> None:
        present = self.folder.look_at(where)
        if present is None:
            self._add_step(relative, "create", place, _ALL, None)
            return
        if present.kind != place.entry.kind:
            self._replace(place, relative, where, present)
            return
        if place.entry.is_folder and what is None:
            self.unchanged += 1
            return
        wanted = _ALL if what is None or "type" in what else what
        differs = tuple(facet for facet in wanted if self._differs(facet, place, where, present))
        if not differs:
            self.unchanged += 1
            return
        if self.rules.judge and "content" in differs and not self._knows(relative, where, present):
            self._add_conflict(relative, self._conflict_reason(relative), forcible=True)
        self._add_step(relative, "update" if "content" in differs else "mode", place, differs, present)

    def _replace(self, place: Place, relative: str, where: str, present: Entry) -> None:
        """Something of another kind has this path."""
        if self._is_refused(relative, place):
            return
        if present.is_folder:
            if not self.rules.delete:
                self._add_conflict(
                    relative,
                    "a folder is here; it is removed only on request",
                    forcible=False,
                )
                return
            for name in self.folder.names(relative):
                self._remove(f"{relative}/{name}")
        elif self.rules.judge and not self._knows(relative, where, present):
            self._add_conflict(relative, self._conflict_reason(relative), forcible=True)
        self._add_step(relative, "update", place, ("type", *_ALL), present)

    def _add_step(
        self,
        relative: str,
        action: LandedAction,
        place: Place,
        what: tuple[Facet, ...],
        present: Entry | None,
    ) -> None:
        if self._is_refused(relative, place):
            return
        step = LandingStep(relative, action, place, what, present)
        if self.rules.judge and (rights := self._raised_rights(step)):
            self._add_conflict(relative, rights, forcible=True)
        self.steps[relative] = step

    def _is_refused(self, relative: str, place: Place) -> bool:
        """Whether the host would run it by itself, which is a conflict that `force` does not solve."""
        if not self.rules.judge or self.rules.allow_executed or place.entry.is_folder:
            return False
        data = self.new.data_path(place) if place.entry.is_file else None
        for target in dict.fromkeys((self.target, self.rules.real_target or self.target)):
            why = reason_executed(
                posixpath.join(target, relative),
                is_link=place.entry.is_link,
                read=lambda: files.read(data, MOST_CONFIG_BYTES + 1) if data else None,
                is_repository=lambda levels: self._is_repository(relative, levels),
            )
            if why:
                self._add_conflict(relative, why, forcible=False, executed=True)
                return True
        return False

    def _is_repository(self, relative: str, levels: int) -> bool:
        """Whether a folder above a path is a repository of git, in the session or where it lands."""
        above = "/".join([".."] * levels)
        box_path = posixpath.normpath(posixpath.join(self._box_path(relative), above))
        names = ("HEAD", "objects")
        if all(self.new.place(posixpath.join(box_path, name)) for name in names):
            return True
        inside = posixpath.normpath(posixpath.join(relative, above))
        return not inside.startswith("..") and all(
            self._exists(posixpath.normpath(f"{inside}/{name}")) for name in names
        )

    def _exists(self, relative: str) -> bool:
        with contextlib.suppress(OSError), self.folder.at(relative) as where:
            return self.folder.look_at(where) is not None
        return False

    def _raised_rights(self, step: LandingStep) -> str | None:
        """The rights that a program would have and the user who runs it has not. An agent must not leave such
        a program in a folder of the host unnoticed."""
        place, present = step.place, step.present
        if place is None or not place.entry.is_file:
            return None
        brings = step.action == "create" or "type" in step.what
        mode = place.entry.mode if brings or "mode" in step.what or present is None else present.mode
        owner = place.entry.uid if brings or "owner" in step.what or present is None else present.uid
        if mode & stat.S_ISUID:
            return f"it would run with the rights of user {owner}, no matter who starts it"
        if mode & stat.S_ISGID and mode & stat.S_IXGRP:
            return "it would run with the rights of its group, no matter who starts it"
        if (brings or "xattr" in step.what) and "security.capability" in self.new.attributes(place):
            return "it would run with capabilities, no matter who starts it"
        return None

    # ---- what must not exist -----------------------------------------------------------------

    def _plan_deletion(self, path: str, relative: str) -> None:
        try:
            with self.folder.at(relative) as where:
                if self.folder.look_at(where) is None:
                    return
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if self.rules.delete:
                self._add_blocked(relative, error)
            return
        if not self.rules.delete:
            self.left_out.append(LeftOut(path=printable(path), why=self.rules.why_kept))
            return
        if why := reason_to_keep(path, (self.old, self.new)):
            self._add_conflict(relative, why, forcible=False)
            return
        self._remove(relative)

    def _remove(self, relative: str) -> None:
        """Plans to remove a path with everything in it. The session has to know every file."""
        waiting = [relative]
        while waiting:
            path = waiting.pop()
            if path in self.removals or path in self.steps:
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self.folder.at(path) as where:
                present = self.folder.look_at(where)
                if present is None:
                    continue
                if present.is_folder:
                    waiting += [f"{path}/{name}" for name in self.folder.names(path)]
                elif self.rules.judge and not self._knows(path, where, present):
                    self._add_conflict(path, self._conflict_reason(path), forcible=True)
                self.removals[path] = LandingStep(path, "delete", None, (), present)

    # ---- what the session knows --------------------------------------------------------------

    def _add_conflict(self, relative: str, why: str, *, forcible: bool, executed: bool = False) -> None:
        self.conflicts.append(
            Conflict(
                path=self._target_path(relative),
                source=printable(self._box_path(relative)),
                why=why,
                forcible=forcible,
                executed=executed,
            )
        )

    def _knows(self, relative: str, where: str, present: Entry) -> bool:
        status = os.lstat(where)
        if self.rules.landed(relative, status):
            return True
        for view in filter(None, (self.old, self.base)):
            place = view.place(self._box_path(relative))
            if place is None or place.entry.kind != present.kind:
                continue
            origin = view.host_path(place)
            if origin and _is_same_file(origin, status):
                return present.ctime_ns <= self.rules.since_ns
            if present.is_folder or not _content_differs(view, place, where, present):
                return True
        return False

    def _conflict_reason(self, relative: str) -> str:
        path = self._box_path(relative)
        if any(view.place(path) for view in filter(None, (self.old, self.base))):
            return "changed here since the session began"
        return "made here too, and not the same"

    def _differs(self, facet: Facet, place: Place, where: str, present: Entry) -> bool:
        wanted = place.entry
        if facet == "content":
            return not wanted.is_folder and _content_differs(self.new, place, where, present)
        if facet == "mode":
            return not wanted.is_link and stat.S_IMODE(wanted.mode) != stat.S_IMODE(present.mode)
        if facet == "owner":
            return (wanted.uid, wanted.gid) != (present.uid, present.gid)
        there = portable_attributes(self.folder.attributes_at(where))
        return portable_attributes(self.new.attributes(place)) != there


def _is_same_file(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), status)
    except OSError:
        return False


def _content_differs(view: PointView, place: Place, where: str, present: Entry) -> bool:
    """Whether a file or link of a view differs from the one of the same kind at a path."""
    if present.is_link:
        origin = view.host_path(place)
        return origin is None or files.target(origin) != files.target(where)
    if place.entry.size != present.size:
        return True
    origin = view.data_path(place)
    return origin is None or not _same_bytes(origin, where)


def _same_bytes(first_path: str, second_path: str) -> bool:
    """Compares all bytes: what is landed gets a new time, so times tell nothing."""
    try:
        first = files.open_file(first_path)
    except OSError:
        return False
    try:
        second = files.open_file(second_path)
    except OSError:
        os.close(first)
        return False
    with open(first, "rb", buffering=0) as first_file, open(second, "rb", buffering=0) as second_file:
        while part := first_file.read(_CHUNK):
            if part != _exactly(second_file.fileno(), len(part)):
                return False
        return not second_file.read(1)


def _exactly(fd: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := os.read(fd, length)):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
