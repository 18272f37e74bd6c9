"""What changed in a box between two points.

The layers record it in their own terms: a file of the base that was touched appears in the layer, one that
was removed appears as a whiteout, a renamed folder of the base as an empty folder with an attribute. This
module turns that into changes of the tree that the box sees. It walks both trees together from the top, and
only where a delta of the layers leads: what two points share is never looked at.

How to read a list of changes: `deleted` and `old_path` are paths of the old tree, everything else is of the
new tree. A path may be in it twice: deleted, and then something else was renamed to it.

Folders keep their identity: a folder that was moved is one rename, whatever is in it. Files keep their path:
a file that was replaced under its name is modified, by writing or by renaming another file over it. Times
alone are no change. A folder of the base that was deleted (or came back) is one change with the number of its
files; what the session itself wrote is listed file by file.

A name that came or went while the file has another one in the new tree (a hard link) says so, where both
names are in the session's layer of a btrfs pool, or it was a copy of the base's file that the new tree shows.
Names that came together with their file link to the first of them.
"""

from __future__ import annotations

import base64
import itertools
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple
from urllib.parse import unquote

from waypoint.api.difference import Change, ChangeKind, Changes, EntryKind, Facet
from waypoint.errors import UsageError
from waypoint.history.view import ORIGIN, Place, PointView, below, joined
from waypoint.kernel import files
from waypoint.kernel.pool import subvolume
from waypoint.kernel.pool.deltas import Delta
from waypoint.kernel.pool.subvolume import BTRFS_FIRST_FREE_OBJECTID
from waypoint.model import Record

MAX_COUNTED = 100_000
"""How many files of the base are counted in one comparison; beyond it a count is a lower bound."""

NOISY_NAMES = frozenset(
    {
        ".cache",
        ".eggs",
        ".gradle",
        ".mypy_cache",
        ".next",
        ".npm",
        ".nox",
        ".nuxt",
        ".parcel-cache",
        ".pnpm-store",
        ".pytest_cache",
        ".ruff_cache",
        ".tox",
        ".turbo",
        "__pycache__",
        "bower_components",
        "dist-packages",
        "node_modules",
        "site-packages",
    }
)
NOISY_PAIRS = frozenset(
    {
        (".bundle", "cache"),
        (".cargo", "git"),
        (".cargo", "registry"),
        (".git", "lfs"),
        (".git", "objects"),
        (".m2", "repository"),
        (".asdf", "shims"),
        (".nodenv", "shims"),
        (".pyenv", "shims"),
        (".rbenv", "shims"),
        (".venv", "bin"),
        (".venv", "include"),
        (".venv", "lib"),
        (".venv", "lib64"),
        ("pkg", "mod"),
        ("venv", "bin"),
        ("venv", "include"),
        ("venv", "lib"),
        ("venv", "lib64"),
    }
)
NOISY_PATHS = frozenset(
    {
        "/usr/share/doc",
        "/usr/share/locale",
        "/usr/share/man",
        "/var/cache",
        "/var/lib/apt/lists",
        "/var/lib/dpkg/info",
        "/var/lib/dpkg/triggers",
    }
)
"""Folders that programs fill: changes in them are counted, not listed."""

_CACHES = frozenset(
    {
        ".cache",
        ".eggs",
        ".gradle",
        ".mypy_cache",
        ".nox",
        ".npm",
        ".parcel-cache",
        ".pnpm-store",
        ".pytest_cache",
        ".ruff_cache",
        ".tox",
        ".turbo",
        "__pycache__",
    }
)
_CACHE_PARENTS = frozenset({".asdf", ".bundle", ".cargo", ".m2", ".nodenv", ".pyenv", ".rbenv", "pkg"})
_CACHE_PATHS = frozenset({"/var/cache", "/var/lib/apt/lists"})
_HABITS = frozenset(
    {
        ".bash_history",
        ".lesshst",
        ".mysql_history",
        ".node_repl_history",
        ".psql_history",
        ".python_history",
        ".rediscli_history",
        ".sqlite_history",
        ".viminfo",
        ".wget-hsts",
    }
)


Thing = Literal[EntryKind, "hard link"]
"""What a change is counted as. A hard link is a name of a file that has another name."""


class Summary(Record, frozen=True):
    """How many files a list of changes concerns."""

    created: int = 0
    modified: int = 0
    deleted: int = 0
    renamed: int = 0
    things: frozenset[Thing] = frozenset()
    """What these are."""
    folders: int = 0
    """Folders among the changes; those that were renamed or modified are counted above too."""
    bytes_written: int = 0
    """The size of what was created or modified."""
    at_least: bool = False


class Fold(Record, frozen=True):
    """A folder with so many changes that only the sums matter."""

    path: str
    created: int = 0
    modified: int = 0
    deleted: int = 0
    renamed: int = 0
    things: frozenset[Thing] = frozenset()
    """As in `Summary`."""
    bytes: int = 0
    """The size of what was created or modified in it."""
    is_cache: bool = False
    """Whether all of these are in caches: a reader of a log loses nothing when they are left out."""


class Folded(Record, frozen=True):
    """Changes with the noisy folders summed up."""

    changes: tuple[Change, ...]
    folds: tuple[Fold, ...]


def fold_noisy(changes: Changes, folders: Collection[str] = ()) -> Folded:
    """The same for people: a noisy folder becomes one line, and so does each of `folders`."""
    kept: list[Change] = []
    noisy: dict[str, list[Change]] = {}
    for change in changes:
        is_folder = change.entry == "folder"
        path = f"{change.path}/" if is_folder else change.path
        folder = next((one for one in folders if path.startswith(f"{one}/")), None)
        folder = folder or _folded_into(change.path, is_folder=is_folder)
        if folder is None:
            kept.append(change)
        else:
            noisy.setdefault(folder, []).append(change)
    folds = []
    for path, inside in sorted(noisy.items()):
        count = total(inside)
        folds.append(
            Fold(
                path=path,
                created=count.created,
                modified=count.modified,
                deleted=count.deleted,
                renamed=count.renamed,
                things=count.things,
                bytes=count.bytes_written,
                is_cache=is_cache(path) or all(_is_in_cache(change, path) for change in inside),
            )
        )
    return Folded(changes=tuple(kept), folds=tuple(folds))


def total(changes: Iterable[Change]) -> Summary:
    """How many files the changes concern."""
    count = dict.fromkeys(("created", "modified", "deleted", "renamed"), 0)
    folders = written = 0
    things: set[Thing] = set()
    at_least = False
    for change in changes:
        at_least |= change.at_least
        number = 1
        if change.entry == "folder":
            folders += 1
            number = change.files if change.kind in ("created", "deleted") else 1
            written += change.files_bytes if change.kind == "created" else 0
        elif (change.kind == "created" and change.links_to is None) or "content" in change.what:
            written += change.size_after or 0
        if number:
            count[change.kind] += number
            things.add(thing(change))
    return Summary(
        **count, things=frozenset(things), folders=folders, bytes_written=written, at_least=at_least
    )


def thing(change: Change) -> Thing:
    """What a change is counted as. A folder that came or went with files is these files."""
    if change.links_to is not None:
        return "hard link"
    return "file" if change.files and change.kind in ("created", "deleted") else change.entry


def noisy_folder(path: str, *, is_folder: bool = False) -> str | None:
    """The outermost noisy folder that a path is in, or is when it is a folder."""
    names = path.split("/")
    last = len(names) if is_folder else len(names) - 1
    for end in range(1, last):
        name = names[end]
        if (
            name in NOISY_NAMES
            or (names[end - 1], name) in NOISY_PAIRS
            or "/".join(names[: end + 1]) in NOISY_PATHS
        ):
            return "/".join(names[: end + 1])
    return None


def is_cache(path: str) -> bool:
    """Whether a noisy folder only saves a program some work, or a file is what an interactive program notes
    for itself: a reader of a log loses nothing when either is left out."""
    folder, name = path.rpartition("/")[::2]
    return (
        name in _CACHES
        or name in _HABITS
        or path in _CACHE_PATHS
        or ((folder.rpartition("/")[2], name) in NOISY_PAIRS and folder.rpartition("/")[2] in _CACHE_PARENTS)
    )


def _is_in_cache(change: Change, folder: str) -> bool:
    """Whether a change below a noisy folder is in a cache there, or is one: compiled modules of packages."""
    names = change.path[len(folder) :].split("/")
    return not _CACHES.isdisjoint(names if change.entry == "folder" else names[:-1])


def _folded_into(path: str, *, is_folder: bool) -> str | None:
    """The folder that a path is counted with: a noisy one, or a `.git`."""
    noisy = noisy_folder(path, is_folder=is_folder)
    before, inside, _ = f"{path}/".partition("/.git/") if is_folder else path.partition("/.git/")
    own = f"{before}/.git" if inside else None
    return min((folder for folder in (noisy, own) if folder), key=len, default=None)


def is_noise(name: str) -> bool:
    """Whether a volume's path with this first component is ignored: the work folders of overlays."""
    return name.startswith("work-")


def box_path(path: str) -> str | None:
    """Where the box sees a path of a volume; None if it does not see it."""
    first, _, rest = path.partition("/")
    if first == "upper":
        return f"/{rest}"
    if first == "shm":
        return below("/dev/shm", rest) if rest else "/dev/shm"
    if first == "mounts" and rest:
        name, _, rest = rest.partition("/")
        return below(unquote(name), rest) if rest else unquote(name)
    return None


def compare_views(old: PointView | None, new: PointView, deltas: Sequence[Delta] = ()) -> Changes:
    """What changed from one point to another. `old` None is the base alone; so is a view without a volume, on
    either side. Then no deltas are needed.

    `deltas` are all deltas of the two volumes (`kernel.pool.deltas.differences(old, new, skip=is_noise)`).
    Both points need the same base.
    """
    if old and old.base != new.base:
        raise UsageError(
            f"these points have different bases, {old.base} and {new.base}",
            hint="only what has the same base can be compared",
        )
    # The base alone has no layers that tell what was mounted below it.
    if old is None or old.volume is None:
        old = PointView.bare(new)
    elif new.volume is None:
        new = PointView.bare(old)
    return _Comparison(old, new, deltas).run()


class _Event(NamedTuple):
    """A change during the comparison."""

    kind: ChangeKind
    old: Place | None
    new: Place | None
    what: tuple[Facet, ...] = ()
    files: int = 0
    files_bytes: int = 0
    at_least: bool = False
    links_to: str | None = None
    """Another name of the same file in the new tree."""


class _Comparison:
    """One comparison under way."""

    def __init__(self, old: PointView, new: PointView, deltas: Sequence[Delta]) -> None:
        self.old, self.new = old, new
        self.deltas = [delta for delta in deltas if not is_noise(delta.path.partition("/")[0])]
        self.by_path = {delta.path: delta for delta in self.deltas if delta.after}
        self.old_names = _tree_of(delta.old_path for delta in self.deltas if delta.old_path is not None)
        self.new_names = _tree_of(delta.path for delta in self.deltas if delta.after)
        self.boundaries = old.boundaries | new.boundaries
        self.left: set[str] = set()
        """Folders of the old tree that are at another path now."""
        self.arrived: dict[str, str] = {}
        """Folders of the new tree that were at another path, and that path."""
        self.events: list[_Event] = []
        self.waiting: list[tuple[Place | None, Place | None, bool]] = []
        self.counted = 0
        volume = files.look(str(new.volume))
        self.keeps_inodes = volume is not None and volume.inode == BTRFS_FIRST_FREE_OBJECTID
        self._origins: dict[str, str | None] = {}

    def run(self) -> Changes:
        self._find_moved_folders()
        for path in sorted({*self.old.regions, *self.new.regions}):
            self.waiting.append((self.old.place(path), self.new.place(path), False))
            while self.waiting:
                old, new, moved = self.waiting.pop()
                self._visit(old, new, moved=moved)
        self._find_moved_files()
        self._find_hard_links()
        changes = [_change(event) for event in self.events]
        return Changes(changes=tuple(sorted(changes, key=_order)))

    # ---- folders that have moved -------------------------------------------------------------

    def _find_moved_folders(self) -> None:
        for delta in self.deltas:
            if delta.renamed and delta.before and delta.after and delta.after.is_folder:
                source, target = box_path(delta.old_path or ""), box_path(delta.path)
                if not source or not target or {source, target} & self.boundaries:
                    continue
                old, new = self.old.place(source), self.new.place(target)
                if old and new and old.upper == delta.old_path and new.upper == delta.path:
                    self._record_move(source, target)
        for path in sorted(self._own_folders(self.new, self.old)):
            target = box_path(path)
            new = self.new.place(target) if target and target not in self.boundaries else None
            if not target or not new or new.lower is None or target in self.arrived:
                continue
            old = self.old.place(self._path_before(target))
            if old and old.lower == new.lower:
                continue  # it is where it was, or has moved along with a folder above it
            home = self._base_folder_before(new)
            if home and home not in self.left and not _shows(self.new, home, new.lower):
                self._record_move(home, target)
        # The reverse: a folder of the base that has its own name again.
        for path in sorted(self._own_folders(self.old, self.new)):
            source = box_path(path)
            old = self.old.place(source) if source and source not in self.boundaries else None
            if not source or not old or old.lower is None or source in self.left:
                continue
            target = _unrenamed_path(old)
            new = self.new.place(target)
            if not new or not new.entry.is_folder or new.lower != old.lower or target in self.arrived:
                continue
            if self._path_before(target) != source and not _shows(
                self.old, self._path_before(target), old.lower
            ):
                self._record_move(source, target)

    def _path_before(self, path: str) -> str:
        """Where a path of the new tree was in the old one, according to the moved folders."""
        folder, rest = path, ""
        while folder and folder not in self.arrived:
            folder, _, name = folder.rpartition("/")
            rest = f"/{name}{rest}"
        return self.arrived[folder] + rest if folder else path

    def _record_move(self, source: str, target: str) -> None:
        self.left.add(source)
        self.arrived[target] = source

    def _own_folders(self, view: PointView, other: PointView) -> Iterator[str]:
        """Folders of a layer that may be renamed folders of the base."""
        if other.volume is not None:
            for delta in self.deltas:
                entry, path = (
                    (delta.after, delta.path) if view is self.new else (delta.before, delta.old_path)
                )
                if entry and path and entry.is_folder:
                    yield path
            return
        waiting = [region.upper for region in view.regions.values() if region.upper]
        while waiting:
            folder = waiting.pop()
            for name in view.upper_names(folder):
                path = joined(folder, name)
                entry = files.look(view.upper_path(path))
                if entry and entry.is_folder:
                    yield path
                    waiting.append(path)

    def _base_folder_before(self, place: Place) -> str | None:
        """Where the old tree showed the folder of the base that is at a place now."""
        wanted = place.lower or ""
        for path, lower in ((_unrenamed_path(place), wanted), *self._shown_before()):
            if wanted == lower or wanted.startswith(f"{lower}/"):
                inside = wanted[len(lower) :].strip("/")
                place_before = self.old.place(below(path, inside) if inside else path)
                if place_before and place_before.lower == wanted and place_before.entry.is_folder:
                    return place_before.path
        return None

    def _shown_before(self) -> Iterator[tuple[str, str]]:
        """Folders of the base that the old tree showed at the paths of deltas."""
        for delta in self.deltas:
            path = box_path(delta.path if delta.old_path is None else delta.old_path)
            place = self.old.place(path) if path else None
            if path and place and place.lower and place.entry.is_folder:
                yield path, place.lower

    # ---- both trees together -----------------------------------------------------------------

    def _visit(self, old: Place | None, new: Place | None, *, moved: bool) -> None:
        """Compares a path of the old tree with one of the new tree and queues what is below them."""
        if old is None or new is None:
            if place := old or new:
                self._one_sided(place, is_old=old is not None)
            return
        what = self._facets(old, new)
        if moved:
            self.events.append(_Event("renamed", old, new, what))
        elif what and not (old.path in self.boundaries and (old.upper is None or new.upper is None)):
            # The root of a layer looks like what it covers only from the first checkpoint on.
            self.events.append(_Event("modified", old, new, what))
        if old.entry.is_folder and new.entry.is_folder:
            self._descend(old, new, self._names(old, new))
        elif old.entry.is_folder:
            self._descend(old, None, self.old.children(old))
        elif new.entry.is_folder:
            self._descend(None, new, self.new.children(new))

    def _one_sided(self, place: Place, *, is_old: bool) -> None:
        """A path that is only in one of the trees, with everything below it."""
        view = self.old if is_old else self.new
        sums = (0, 0, False)
        if place.entry.is_folder:
            own = view.upper_names(place.upper) if place.upper is not None else []
            if place.lower is not None:
                sums = self._count(view, place, set(own))
            self._descend(place if is_old else None, None if is_old else place, own)
        if is_old:
            self.events.append(_Event("deleted", place, None, (), *sums))
        else:
            self.events.append(_Event("created", None, place, (), *sums))

    def _names(self, old: Place, new: Place) -> Iterable[str]:
        """The names in two folders under which there may be a difference."""
        if old.lower != new.lower:
            return {*self.old.children(old), *self.new.children(new)}
        if old.upper is None:
            return () if new.upper is None else self.new.upper_names(new.upper)
        if new.upper is None:
            return self.old.upper_names(old.upper)
        if self._origin(new.upper) == old.upper:
            return self.old_names.get(old.upper, set()) | self.new_names.get(new.upper, set())
        return {*self.old.upper_names(old.upper), *self.new.upper_names(new.upper)}

    def _descend(self, old: Place | None, new: Place | None, names: Iterable[str]) -> None:
        for name in names:
            if (old and below(old.path, name) in self.boundaries) or (
                new and below(new.path, name) in self.boundaries
            ):
                continue
            old_child = self.old.child(old, name) if old else None
            new_child = self.new.child(new, name) if new else None
            if old_child and old_child.path in self.left:
                old_child = None
            if new_child and new_child.path in self.arrived:
                self._queue_moved(new_child.path)
                new_child = None
            if old_child or new_child:
                self.waiting.append((old_child, new_child, False))

    def _queue_moved(self, path: str) -> None:
        """A folder that was at another path is compared with the folder there."""
        self.waiting.append((self.old.place(self.arrived[path]), self.new.place(path), True))

    def _origin(self, upper: str) -> str | None:
        """The path in the old volume of a path of the new one; None if it is new."""
        steps = []
        path = upper
        while path not in self._origins:
            if delta := self.by_path.get(path):
                self._origins[path] = delta.old_path
            elif not path:
                self._origins[path] = ""
            else:
                path, _, name = path.rpartition("/")
                steps.append(name)
        origin = self._origins[path]
        for name in reversed(steps):
            path = joined(path, name)
            origin = self._origins[path] = None if origin is None else joined(origin, name)
        return origin

    def _count(self, view: PointView, folder: Place, own: set[str]) -> tuple[int, int, bool]:
        """The files of the base below a folder: how many, their size, and whether there are more. `own` are
        names in it that belong to the layer and are left out."""
        count = size = 0
        waiting = [(folder.path, folder.lower or "", own)]
        while waiting:
            path, lower, own = waiting.pop()
            try:
                entries = list(os.scandir(view.lower_path(lower)))
            except OSError:
                continue
            for entry in entries:
                where = below(path, entry.name)
                if entry.name in own or where in self.boundaries:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if view is self.new and where in self.arrived:
                        self._queue_moved(where)
                    elif (view is self.new or where not in self.left) and not files.is_mount_point(
                        entry.path
                    ):
                        waiting.append((where, joined(lower, entry.name), set()))
                    continue
                if self.counted >= MAX_COUNTED:
                    return count, size, True
                self.counted += 1
                count += 1
                try:
                    size += entry.stat(follow_symlinks=False).st_size
                except OSError:
                    continue
        return count, size, False

    # ---- how two places differ ---------------------------------------------------------------

    def _facets(self, old: Place, new: Place) -> tuple[Facet, ...]:
        before, after = old.entry, new.entry
        delta = None
        if old.upper is not None and new.upper is not None:
            if self._origin(new.upper) == old.upper:
                delta = self.by_path.get(new.upper)
                if delta is None or not delta.what:
                    return ()
        elif old.upper is None and new.upper is None and old.lower == new.lower:
            return ()
        what: list[Facet] = []
        if stat.S_IFMT(before.mode) != stat.S_IFMT(after.mode):
            what.append("type")
        elif "content" in delta.what if delta else self._content_differs(old, new):
            what.append("content")
        if stat.S_IMODE(before.mode) != stat.S_IMODE(after.mode):
            what.append("mode")
        if (before.uid, before.gid) != (after.uid, after.gid):
            what.append("owner")
        if (delta is None or "xattr" in delta.what) and self.old.attributes(old) != self.new.attributes(new):
            what.append("xattr")
        return tuple(what)

    def _content_differs(self, old: Place, new: Place) -> bool:
        if new.entry.is_file:
            if old.entry.size != new.entry.size:
                return True
            before, after = self.old.data_path(old), self.new.data_path(new)
            return not (before and after and files.same_content(before, after))
        if new.entry.is_link:
            before, after = self.old.host_path(old), self.new.host_path(new)
            return not (before and after) or files.target(before) != files.target(after)
        return new.entry.kind == "device" and old.entry.rdev != new.entry.rdev

    # ---- files that have moved ---------------------------------------------------------------

    def _find_moved_files(self) -> None:
        """Turns a deleted file and the same file that was created elsewhere into one rename."""
        deleted = [
            event
            for event in self.events
            if event.kind == "deleted" and event.old and not event.old.entry.is_folder
        ]
        created = [
            event
            for event in self.events
            if event.kind == "created" and event.new and not event.new.entry.is_folder
        ]
        if not deleted or not created:
            return
        pairs = list(self._pairs(deleted, created))
        paired = {id(event) for pair in pairs for event in pair}
        self.events = [event for event in self.events if id(event) not in paired]
        for before, after in pairs:
            if before.old and after.new:
                what = self._facets(before.old, after.new)
                self.events.append(_Event("renamed", before.old, after.new, what))

    def _pairs(self, deleted: list[_Event], created: list[_Event]) -> Iterator[tuple[_Event, _Event]]:
        """By three signs, the most certain first: the same inode of the layer; the file of the base that the
        overlay names as the origin of a copy; the same content, size, time, mode and owner."""
        by_old_path = {event.old.path: event for event in deleted if event.old}
        by_new_path = {event.new.path: event for event in created if event.new}
        for path, event in list(by_new_path.items()):
            delta = self.by_path.get((event.new and event.new.upper) or "")
            source = box_path(delta.old_path or "") if delta and delta.renamed else None
            if source and source in by_old_path:
                yield by_old_path.pop(source), by_new_path.pop(path)
        origins = {}
        for path, event in by_new_path.items():
            if event.new and (origin := _origin_of(self.new, event.new)):
                origins[origin] = path
        for path, event in list(by_old_path.items()) if origins else ():
            if event.old and event.old.upper is None and event.old.lower is not None:
                handle = files.handle(self.old.lower_path(event.old.lower))
                if handle and (target := origins.pop(handle, None)):
                    yield by_old_path.pop(path), by_new_path.pop(target)
        alike: dict[tuple[int, ...], list[_Event]] = {}
        for event in by_old_path.values():
            if event.old:
                alike.setdefault(_metadata_key(event.old), []).append(event)
        for event in by_new_path.values():
            candidates = alike.get(_metadata_key(event.new), []) if event.new else []
            for match in candidates:
                if event.new and match.old and self._looks_moved(match.old, event.new):
                    candidates.remove(match)
                    yield match, event
                    break

    def _looks_moved(self, old: Place, new: Place) -> bool:
        # Where snapshots keep inode numbers, two files of the layer with different numbers are two files.
        if old.upper is not None and new.upper is not None and self.keeps_inodes:
            return False
        return new.entry.size > 0 and not self._content_differs(old, new)

    # ---- files with several names ------------------------------------------------------------

    def _find_hard_links(self) -> None:
        """Notes with each name that came or went which other name its file has. A volume is asked only about
        files with several names, and only until one is found."""
        came: dict[int, list[int]] = {}
        went: dict[int, list[int]] = {}
        for index, event in enumerate(self.events):
            groups, place = (came, event.new) if event.kind == "created" else (went, event.old)
            if event.kind not in ("created", "deleted") or place is None or place.upper is None:
                continue
            if place.entry.links > 1 and not place.entry.is_folder:
                groups.setdefault(place.entry.inode, []).append(index)
        for inode, indexes in came.items():
            self._note_links_of_new(inode, indexes)
        for inode, indexes in went.items():
            self._note_links_of_gone(inode, indexes)

    def _note_links_of_new(self, inode: int, indexes: list[int]) -> None:
        places = {index: place for index in indexes if (place := self.events[index].new)}
        paths = {index: place.path for index, place in places.items()}
        own = set(paths.values())
        first = min(own, key=lambda path: path.split("/"))
        if any(place.entry.links > len(own) for place in places.values()):
            others = (place.path for place in _names(self.new, inode))
            first = next((path for path in others if path not in own), first)
        for index, path in paths.items():
            if path != first:
                self.events[index] = self.events[index]._replace(links_to=first)

    def _note_links_of_gone(self, inode: int, indexes: list[int]) -> None:
        was = self.events[indexes[0]].old
        assert was is not None
        kept = (now.path for now in _names(self.new, inode) if self._same_inode(was, now))
        of_base = (place.path for place in _names(self.old, inode) if self._is_of_base(place))
        if other := next(itertools.chain(kept, of_base), None):
            for index in indexes:
                self.events[index] = self.events[index]._replace(links_to=other)

    def _same_inode(self, old: Place, new: Place) -> bool:
        """Two branches may use one inode number for different files, whose birth times differ then."""
        born = files.birth_time(self.old.upper_path(old.upper or ""))
        return born is not None and born == files.birth_time(self.new.upper_path(new.upper or ""))

    def _is_of_base(self, old: Place) -> bool:
        """Whether the new tree shows at this path the file of the base that the old one has a copy of."""
        new = self.new.place(old.path)
        if new is None or new.upper is not None or new.lower is None:
            return False
        return _origin_of(self.old, old) == (files.handle(self.new.lower_path(new.lower)) or ())


def _names(view: PointView, inode: int) -> Iterator[Place]:
    """The places at which a view shows a file of its layer. None where they cannot be had: the volume is no
    subvolume of btrfs, a path is too long for one call."""
    if view.volume is None:
        return
    try:
        fd = os.open(str(view.volume), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for upper in subvolume.names_of(fd, inode) if subvolume.is_root(os.fstat(fd)) else ():
            # The overlay keeps names of its own in its work folder, which the box does not see.
            path = box_path(upper)
            place = view.place(path) if path else None
            if place and place.upper == upper:
                yield place
    except OSError:
        return
    finally:
        os.close(fd)


def _unrenamed_path(place: Place) -> str:
    """Where the box would see the base's part of a folder if nothing had been renamed."""
    inside = (place.lower or "")[len(place.region.lower or "") :].strip("/")
    return below(place.region.path, inside) if inside else place.region.path


def _shows(view: PointView, path: str, lower: str) -> bool:
    """Whether a view shows a folder of the base at a path."""
    place = view.place(path)
    return place is not None and place.lower == lower


def _metadata_key(place: Place) -> tuple[int, ...]:
    entry = place.entry
    return entry.mode, entry.uid, entry.gid, entry.size, entry.mtime_ns


def _origin_of(view: PointView, place: Place) -> tuple[int, bytes] | None:
    """The file handle of the base's file that a file of the layer is a copy of (struct ovl_fb)."""
    if place.upper is None or place.region.lower is None:
        return None
    origin = files.attribute(view.upper_path(place.upper), ORIGIN)
    return (origin[4], origin[21:]) if origin and len(origin) > 21 and origin[1] == 0xFB else None


def _tree_of(paths: Iterable[str]) -> dict[str, set[str]]:
    """For each folder on the way to one of the paths, the names in it that lead there."""
    tree: dict[str, set[str]] = {}
    for path in paths:
        folder = path
        while folder:
            folder, _, name = folder.rpartition("/")
            names = tree.setdefault(folder, set())
            if name in names:
                break
            names.add(name)
    return tree


def _change(event: _Event) -> Change:
    old, new = event.old, event.new
    place = new or old
    assert place is not None
    before, after = old.entry if old else None, new.entry if new else None
    path, path_base64 = _shown(place.path)
    old_path, old_path_base64 = _shown(old.path) if old and new and old.path != new.path else (None, None)
    changed_owner = before and after and "owner" in event.what
    return Change(
        path=path,
        kind=event.kind,
        entry=place.entry.kind,
        old_path=old_path,
        what=event.what,
        entry_before=before.kind if before and "type" in event.what else None,
        size_before=before.size if before and not before.is_folder else None,
        size_after=after.size if after and not after.is_folder else None,
        mode_before=stat.S_IMODE(before.mode) if before else None,
        mode_after=stat.S_IMODE(after.mode) if after else None,
        owner_before=f"{before.uid}:{before.gid}" if before and changed_owner else None,
        owner_after=f"{after.uid}:{after.gid}" if after and changed_owner else None,
        files=event.files,
        files_bytes=event.files_bytes,
        at_least=event.at_least,
        links_to=None if event.links_to is None else _shown(event.links_to)[0],
        path_base64=path_base64,
        old_path_base64=old_path_base64,
    )


def _order(change: Change) -> tuple[list[str], bool]:
    return change.path.split("/"), change.kind != "deleted"


def _shown(path: str) -> tuple[str, str | None]:
    """A path that can be printed and sent, and its bytes when the two differ."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raw = os.fsencode(path)
        return raw.decode(errors="backslashreplace"), base64.b64encode(raw).decode()
    return path, None
