"""Files in and out of sessions: landing a result, exporting it, copying, bringing single files back.

What changed comes from views of points, or of a snapshot of the present that is deleted afterwards. All that
is written goes through kernel/placement.py, to the host or into a live box. Paths of the host are looked up
from the root of the client: one in a mount namespace of its own means the files that it sees.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from waypoint.api.hints import Arg, Hint
from waypoint.core.capture import Capture, Wish
from waypoint.core.comparison import BASE, Comparison, Moment
from waypoint.core.live import Live
from waypoint.core.registry import Registry
from waypoint.errors import (
    LandingConflict,
    MachineError,
    NoSpace,
    NotFound,
    SessionDead,
    UsageError,
    WaypointError,
)
from waypoint.history import export, landing
from waypoint.history.landing import (
    LandingRules,
    LandingStep,
    Selection,
    portable_attributes,
    reason_not_portable,
    resolve_path,
)
from waypoint.history.view import Place, PointView, printable
from waypoint.kernel import faults, files
from waypoint.kernel.files import Entry
from waypoint.kernel.placement import ANYTHING, Expected, Folder, Metadata, PlaceChanged
from waypoint.model import Checkpoint, Copied, Exported, FilesRestored, FileWritten, Landing, LeftOut
from waypoint.store.sessions import SessionRow
from waypoint.text.units import size

_MOST_CONFLICTS = 200
"""Of more conflicts than this an error names the first ones."""
_SOURCE = Arg("apply", "source")
_GIVE_SOURCE = Hint("give the folder to start from with ", _SOURCE)
_AT_ONCE = 200
"""Files that wait for the disk together."""
_PIECE_BYTES = 1 << 18
_MOST_READ_BYTES = 1 << 30
_MOST_WITHOUT_SIZE_BYTES = 16 << 20
"""Of files of /proc and the like, which say that they have no size."""


Progress = Callable[[str], None]


class Request(NamedTuple):
    """Which changes are meant: by default those of the session since its base."""

    ref: str | None = None
    """Up to this point; None: up to now."""
    since: str | None = None
    """From this point; None: from the base."""
    source: str | None = None
    """The folder of the box that stands for where they land."""
    paths: Sequence[str] = ()
    """Only what is at or below these."""


class _Answer(NamedTuple):
    """The answer to a request: both trees, and what of them was asked for."""

    old: PointView
    new: PointView
    selection: Selection
    named: tuple[str, ...]


class _Piece(NamedTuple):
    """One thing of a tree that is being copied."""

    path: str
    """Relative to the top, which is the empty path."""
    entry: Entry
    data: str | None
    """Where the bytes of a regular file can be read, until the next piece is asked for."""
    target: str | None
    """Where a link points."""
    attributes: dict[str, bytes]
    identity: tuple[int, int] | None
    """Device and inode of a folder, or of what has several names."""


class _Nowhere:
    """A folder that does not exist yet."""

    def at(self, path: str) -> contextlib.AbstractContextManager[str]:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def look_at(self, _where: str) -> None:
        return None

    def attributes_at(self, _where: str) -> dict[str, bytes]:
        return {}

    def names(self, _path: str) -> list[str]:
        return []


class Transfer:
    """Carries files for the sessions of one home."""

    def __init__(self, registry: Registry, comparison: Comparison, capture: Capture) -> None:
        self._registry, self._comparison, self._capture = registry, comparison, capture

    # ---- apply and export --------------------------------------------------------------------

    @contextlib.contextmanager
    def _answer(self, row: SessionRow, request: Request, default: str | None) -> Iterator[_Answer]:
        """`default`: the source when none was given; None chooses as `apply` does."""
        with (
            self._comparison.moment(row, request.since or BASE) as old,
            self._comparison.moment(row, request.ref) as new,
        ):
            changes = self._comparison.changes(old, new)
            before = PointView.bare(new.view) if old.view.volume is None else old.view
            views = (new.view, before)
            source = self._source(request, new, views, default)
            paths = tuple(_named(posixpath.join(source, path), views) for path in request.paths)
            for path in paths:
                if not landing.is_inside(path, source):
                    raise UsageError(f"{printable(path)} is not below {printable(source)}", hint=_GIVE_SOURCE)
            yield _Answer(before, new.view, landing.select(changes, new.view, source, paths), paths)

    def _source(
        self, request: Request, moment: Moment, views: Sequence[PointView], default: str | None
    ) -> str:
        """The folder of the box that stands for where things land: the one that was given; else the one
        folder that was named by its whole path; else the one the shell is in."""
        whole = [path for path in request.paths if path.startswith("/")]
        chosen = request.source or default
        if chosen is None and len(request.paths) == 1 and whole:
            path = _named(whole[0], views)
            return path if _is_folder(path, views) else posixpath.dirname(path)
        if chosen is None and whole:
            raise UsageError(
                "no folder of the session given that stands for the target",
                hint=Hint("give one with ", _SOURCE, "; paths that do not begin with / start there"),
            )
        if chosen is None and moment.point and moment.point.files_only:
            raise UsageError(f"{moment.label} does not know where the shell was", hint=_GIVE_SOURCE)
        source = _named(posixpath.join(moment.facts.shell.cwd, chosen or ""), views)
        if not _is_folder(source, views):
            raise UsageError(f"{printable(source)} is not a folder of the session", hint=_GIVE_SOURCE)
        return source

    def apply(
        self,
        row: SessionRow,
        outside: Folder,
        to: str,
        request: Request,
        *,
        delete: bool = False,
        force: bool = False,
        allow_executed: bool = False,
        dry_run: bool = False,
        progress: Progress = lambda _: None,
    ) -> Landing:
        """Brings what has changed in a session to a folder of the host. Conflicts refuse all of it, unless it
        is forced; then those that cannot be are left. What the host would run by itself lands only with
        `allow_executed`."""
        to = posixpath.normpath(to)
        with (
            _translated(),
            self._answer(row, request, "/" if to == "/" else None) as answer,
            contextlib.ExitStack() as held,
        ):
            ground = None
            with contextlib.suppress(FileNotFoundError):
                ground = held.enter_context(outside.enter(to, durable=True))
            landed = self._registry.store.landings.stamps(row.id)
            known = set(landed.values())
            selection = answer.selection
            if ground and request.since is None:
                selection = _with_undone(selection, answer, ground, to, landed)
            rules = LandingRules(
                delete=delete,
                allow_executed=allow_executed,
                real_target=ground.path() if ground else "",
                since_ns=self._began_ns(row, answer.new),
                landed=lambda _, status: _stamp(status) in known,
                named=answer.named,
                outside=[bind.box for bind in row.options.binds],
            )
            plan = landing.plan_landing(selection, answer.old, answer.new, ground or _Nowhere(), to, rules)
            if dry_run:
                return plan.landing
            _refuse(plan.landing, force=force)
            faults.reach("land.planned")
            if plan.steps:
                ground = ground or held.enter_context(_made_folder(outside, to))
                self._land(row, plan.steps, answer.new, ground, to, progress)
            lost = tuple(
                LeftOut(
                    path=printable(posixpath.join(to, path)), why=f"landed without {name}: not possible there"
                )
                for path, name in (ground.lost if ground else ())
            )
            return msgspec.structs.replace(plan.landing, left_out=plan.landing.left_out + lost, done=True)

    def _land(
        self,
        row: SessionRow,
        steps: Sequence[LandingStep],
        view: PointView,
        ground: Folder,
        to: str,
        progress: Progress,
    ) -> None:
        stamps: dict[bytes, str] = {}
        try:
            for path, status in carry_out(steps, view, ground, times=False, insist=True, progress=progress):
                stamps[os.fsencode(posixpath.join(to, path))] = _stamp(status)
                faults.reach("land.prepared")
            faults.reach("land.landed")
        except PlaceChanged as change:
            raise LandingConflict(
                f"{printable(posixpath.join(to, change.path))} changed while this was landing",
                hint="what came before it has landed; look again, and land the rest",
            ) from change
        finally:
            # What has landed is recorded, also when the rest fails.
            self._registry.store.landings.add(row.id, stamps)

    def _began_ns(self, row: SessionRow, view: PointView) -> int:
        """When what a session has been layered on was last known to be what the session saw. A fork has seen
        what its origin began with."""
        began = [int(row.created_at * 1e9)]
        origin: SessionRow | None = row
        seen: set[str] = set()
        while origin and origin.forked_from and origin.id not in seen:
            seen.add(origin.id)  # a point that was handed over may be one of the session's own
            point = self._registry.store.points.find(origin.forked_from)
            origin = self._registry.store.sessions.find(point.session) if point else None
            if origin:
                began.append(int(origin.created_at * 1e9))
        # Its layer keeps its birth through snapshots, where the pool knows births at all.
        if born := files.birth_time(f"{view.volume}/upper"):
            began.append(born[0] * 1_000_000_000 + born[1])
        return min(began)

    def land_all(self, row: SessionRow, point: Checkpoint, root: Folder) -> list[str]:
        """Makes a copy of a session's base what a point of it holds, in every detail; returns what it cannot
        hold, one sentence each. What Waypoint itself has put into the session stays out."""
        with (
            _translated(),
            self._comparison.moment(row, BASE) as old,
            self._comparison.moment(row, point.id) as new,
        ):
            before = PointView.bare(new.view) if old.view.volume is None else old.view
            selection = landing.select(self._comparison.changes(old, new), new.view, "/")
            rules = LandingRules(delete=True, judge=False, outside=landing.NOT_FILES)
            plan = landing.plan_landing(selection, before, new.view, root, "/", rules)
            _refuse(plan.landing, force=False)
            for _ in carry_out(plan.steps, new.view, root, times=True, insist=False):
                pass
        missing = (left for left in plan.landing.left_out if not left.path.startswith(landing.NOT_FILES))
        return [f"{left.path}: {left.why}" for left in missing]

    def export(
        self,
        row: SessionRow,
        write: Callable[[bytes], object],
        request: Request,
        *,
        patch: bool = False,
        whiteouts: bool = False,
    ) -> Exported:
        """The same changes as a tar or as a patch."""
        with _translated(), self._answer(row, request, "/") as answer:
            if patch:
                return export.write_patch(answer.selection, answer.old, answer.new, write, named=answer.named)
            return export.write_tar(
                answer.selection, answer.new, write, named=answer.named, whiteouts=whiteouts
            )

    # ---- single files back -------------------------------------------------------------------

    def restore_files(
        self,
        row: SessionRow,
        ref: str,
        paths: Sequence[str],
        *,
        delete: bool = False,
        safety: bool = True,
        dry_run: bool = False,
    ) -> FilesRestored:
        """Files and folders of a point, back in the session as they were there. What was made since stays,
        unless `delete`. The present is kept in a safety checkpoint first."""
        if not paths:
            raise UsageError("no files given", hint="name files or folders of the session")
        point = self._registry.point(row, ref)
        with (
            _translated(),
            self._comparison.moment(row, None) as now,
            self._comparison.moment(row, point.id) as then,
            self._registry.steady(row) as live,
            self._root(live) as root,
        ):
            views = (then.view, now.view)
            cwd = now.facts.shell.cwd
            named = [_named(posixpath.join(cwd, path), views, follow=False) for path in paths]
            selection = landing.select(self._comparison.changes(now, then), then.view, "/", named)
            rules = LandingRules(
                delete=delete,
                judge=False,
                named=named,
                outside=[bind.box for bind in row.options.binds],
                why_kept=f"made since {point.name or point.label}; it goes only if deletions are asked for",
            )
            plan = landing.plan_landing(selection, now.view, then.view, root, "/", rules)
            if dry_run:
                return FilesRestored(checkpoint=point, landing=plan.landing)
            _refuse(plan.landing, force=False)
            faults.reach("back.planned")
            safety_point = None
            if plan.steps:
                safety_point = self._keep_present(row, point) if safety else None
                # Before, so that an undo finds its way also from the middle of it.
                before = safety_point.id if safety_point else None
                self._registry.store.operations.record_change(
                    row.id, "restore_files", target=point.id, before=before
                )
                faults.reach("back.stored")
                for _ in carry_out(plan.steps, then.view, root, times=True, insist=False):
                    pass
            faults.reach("back.done")
            done = msgspec.structs.replace(plan.landing, done=True)
            return FilesRestored(checkpoint=point, landing=done, safety=safety_point)

    def _keep_present(self, row: SessionRow, point: Checkpoint) -> Checkpoint:
        try:
            intent = f"before files of {point.name or point.label} came back"
            return self._capture.checkpoint(row, Wish(intent, kind="safety", actor="automatic"))
        except WaypointError as error:
            error.hint = Hint(
                "the present could not be saved first; ",
                Arg("restore_files", safety=False),
                f" goes without. {error.hint}".rstrip(),
            )
            raise

    # ---- copying -----------------------------------------------------------------------------

    def copy_in(
        self,
        row: SessionRow,
        outside: Folder,
        sources: Sequence[str],
        target: str,
        *,
        follow: bool = False,
        progress: Progress = lambda _: None,
    ) -> Copied:
        """Files and folders of the host into a live session."""
        with _translated(), self._registry.steady(row) as live, self._root(live) as root:
            faults.reach("copy_in.opened")
            cwd = live.terminal.shell.cwd if live.terminal.shell else "/"
            trees = [(path, _pieces_outside(outside, path, follow=follow)) for path in sources]
            return _copy(trees, root, posixpath.join(cwd, target), progress)

    def copy_out(
        self,
        row: SessionRow,
        outside: Folder,
        sources: Sequence[str],
        target: str,
        *,
        ref: str | None = None,
        follow: bool = False,
        progress: Progress = lambda _: None,
    ) -> Copied:
        """Files and folders of a session as it is now, or of one of its points, to the host."""
        with _translated():
            if ref is not None:
                with self._comparison.moment(row, ref) as then:
                    paths = [posixpath.join(then.facts.shell.cwd, path) for path in sources]
                    trees = [(path, _pieces_of(then.view, path, follow=follow)) for path in paths]
                    return _copy(trees, outside, target, progress, rights=False)
            live = self._registry.live(row)
            with self._root(live) as root:
                faults.reach("copy_out.opened")
                cwd = live.terminal.shell.cwd if live.terminal.shell else "/"
                paths = [posixpath.join(cwd, path) for path in sources]
                trees = [(path, _pieces_outside(root, path, follow=follow)) for path in paths]
                return _copy(trees, outside, target, progress, rights=False)

    # ---- one file ----------------------------------------------------------------------------

    def read_file(
        self,
        row: SessionRow,
        path: str,
        write: Callable[[bytes], object],
        *,
        ref: str | None = None,
        limit: int | None = None,
    ) -> int:
        """The bytes of a file of a session as it is now, or of one of its points; returns how many. With a
        `limit` a file that is larger is refused before anything of it is written."""
        with _translated(), contextlib.ExitStack() as held:
            if ref is not None:
                then = held.enter_context(self._comparison.moment(row, ref))
                fd = _open_in(then.view, posixpath.join(then.facts.shell.cwd, path))
            else:
                live = self._registry.live(row)
                root = held.enter_context(self._root(live))
                faults.reach("read_file.opened")
                fd = root.open_file(posixpath.join(live.terminal.cwd, path))
            held.callback(os.close, fd)
            return _copy_bytes(fd, path, write, limit)

    def write_file(
        self, row: SessionRow, path: str, data: bytes, *, mode: int | None = None, parents: bool = True
    ) -> FileWritten:
        """A file of a live session with this content. One that exists keeps its owner, and its mode unless
        one is given. A link is followed, inside the session. `parents`: folders that are missing are made."""
        with _translated(), self._registry.steady(row) as live, self._root(live) as root:
            faults.reach("write_file.opened")
            path, user = posixpath.join(live.terminal.cwd, path), live.user()
            owner = (user.uid, user.gid)
            folder, name = _place_for(root, path, owner if parents else None)
            with folder:
                there = folder.look(name)
                if there and not there.is_file:
                    number = errno.EISDIR if there.is_folder else errno.EINVAL
                    raise OSError(number, os.strerror(number), path)
                metadata = Metadata(0o644 if mode is None else mode, owner)
                if there:
                    with folder.at(name) as where:
                        present = portable_attributes(folder.attributes_at(where))
                    own = stat.S_IMODE(there.mode) if mode is None else mode
                    metadata = Metadata(own, (there.uid, there.gid), {**present})
                folder.put_bytes(name, data, metadata)
        return FileWritten(path=printable(posixpath.normpath(path)), bytes=len(data), created=there is None)

    @contextlib.contextmanager
    def _root(self, live: Live) -> Iterator[Folder]:
        """The root that a live session sees."""
        try:
            root = Folder.root_of_box(live.box)
        except OSError as error:
            raise SessionDead("the session has just ended") from error
        with root:
            if not live.box.alive:  # then the number may be that of another process by now
                raise SessionDead("the session has just ended")
            yield root


def _open_in(view: PointView, path: str) -> int:
    """A descriptor of a regular file of a point."""
    place = view.resolve(path, follow=True)
    number = errno.ENOENT if place is None else errno.EISDIR if place.entry.is_folder else errno.EINVAL
    where = view.data_path(place) if place and place.entry.is_file else None
    if where is None:
        raise OSError(number, os.strerror(number), path)
    return files.open_file(where)


def _copy_bytes(fd: int, path: str, write: Callable[[bytes], object], limit: int | None) -> int:
    """What is in a file: as much as it holds now, since a program may go on writing to it."""
    size = os.fstat(fd).st_size
    most = min(_MOST_READ_BYTES, size or _MOST_WITHOUT_SIZE_BYTES)
    if size > (limit if limit is not None else _MOST_READ_BYTES):
        raise UsageError(
            f"{printable(path)} is too large to be read at once: {size:,} bytes",
            hint="copy it out: files of any size can be copied",
            errno="EFBIG",
            size=size,
        )
    done = 0
    while done < most and (part := os.read(fd, min(_PIECE_BYTES, most - done))):
        write(part)
        done += len(part)
    return done


def _place_for(root: Folder, path: str, owner: tuple[int, int] | None) -> tuple[Folder, str]:
    """The folder in which a file of this path belongs, and its name there. With an owner for them, folders
    that are missing are made."""
    try:
        return root.destination(path)
    except FileNotFoundError:
        if owner is None:
            raise NotFound(
                f"there is no folder {printable(posixpath.dirname(path))}",
                hint="make it first, or let parents be made",
                errno="ENOENT",
            ) from None
    _make_folders(root, posixpath.dirname(path.rstrip("/")), owner).close()
    return root.destination(path)


def _make_folders(root: Folder, path: str, owner: tuple[int, int]) -> Folder:
    """A folder, made with those above it where it is missing."""
    try:
        return root.enter(path)
    except FileNotFoundError:
        head, name = posixpath.split(path.rstrip("/"))
        with _make_folders(root, head, owner) as above, contextlib.suppress(PlaceChanged):
            above.put_folder(name, Metadata(0o755, owner), instead_of=None)
        return root.enter(path)


def _named(path: str, views: Sequence[PointView], *, follow: bool = True) -> str:
    try:
        return resolve_path(path, views, follow=follow)
    except FileNotFoundError as error:
        raise NotFound(
            f"the session has no {printable(path)}", hint="paths are those of the session, from its folder on"
        ) from error


def _is_folder(path: str, views: Sequence[PointView]) -> bool:
    return any(place.entry.is_folder for view in views if (place := view.place(path)))


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}:{status.st_ctime_ns}:{status.st_size}"


def _with_undone(
    selection: Selection, answer: _Answer, ground: Folder, to: str, landed: Mapping[bytes, str]
) -> Selection:
    """With what a session has landed before and does not have any more. It was made and deleted in the
    session, so it is not among the changes since its base."""
    gone = set(selection.gone)
    for path, stamp in landed.items():
        inside = os.path.relpath(os.fsdecode(path), to)
        box_path = posixpath.join(selection.source, inside)
        if inside.startswith("..") or answer.new.place(box_path):
            continue
        if answer.named and not any(landing.is_inside(box_path, path) for path in answer.named):
            continue
        with contextlib.suppress(OSError), ground.at(inside) as where:
            status = os.lstat(where)
            fields = 2 if stat.S_ISDIR(status.st_mode) else None  # what is in a folder changes its time
            if _stamp(status).split(":")[:fields] == stamp.split(":")[:fields]:
                gone.add(box_path)
    return selection._replace(gone=tuple(sorted(gone)))


def _made_folder(outside: Folder, path: str) -> Folder:
    with contextlib.closing(outside.destination(path)[0]) as above:
        above.put_folder(posixpath.basename(path), Metadata(mode=0o755), instead_of=None)
    return outside.enter(path, durable=True)


def _refuse(planned: Landing, *, force: bool) -> None:
    """Conflicts, as an error that names them."""
    if force or not planned.conflicts:
        return
    first = planned.conflicts[0]
    more = len(planned.conflicts) - 1
    conflicts = f"{first.path}: {first.why}" + (f", and {more} more" if more else "")
    raise LandingConflict(
        f"nothing was changed, there {'are conflicts' if more else 'is a conflict'}: {conflicts}",
        hint=_way_out(planned),
        conflicts=msgspec.to_builtins(planned.conflicts[:_MOST_CONFLICTS]),
    )


def _way_out(planned: Landing) -> Hint | str:
    executed = any(conflict.executed for conflict in planned.conflicts)
    forcible = any(conflict.forcible for conflict in planned.conflicts)
    if not all(conflict.forcible or conflict.executed for conflict in planned.conflicts):
        return "name the paths that are to land"
    if executed and forcible:
        allow, force = Arg("apply", allow_executed=True), Arg("apply", force=True)
        return Hint("read them first; ", allow, " and ", force, " together land all of it")
    if executed:
        return Hint("read them first; ", Arg("apply", allow_executed=True), " lands them too")
    return Hint(Arg("apply", force=True), " lands it all the same")


# ---- carrying out -------------------------------------------------------------------------------


def carry_out(
    steps: Sequence[LandingStep],
    view: PointView,
    ground: Folder,
    *,
    times: bool,
    insist: bool,
    progress: Progress = lambda _: None,
) -> Iterator[tuple[str, os.stat_result]]:
    """Carries a plan out, and yields what is in its place. `times`: files are as old as they were; else they
    are new, and what is built from them is built again. `insist`: only places that are as the plan saw
    them."""
    _check_room(steps, ground)
    try:
        yield from _each(steps, view, ground, progress, times=times, insist=insist)
        yield from ground.commit()
    finally:
        ground.discard()
    if times:
        _set_times(steps, ground)
    ground.flush()


def _each(
    steps: Sequence[LandingStep],
    view: PointView,
    ground: Folder,
    progress: Progress,
    *,
    times: bool,
    insist: bool,
) -> Iterator[tuple[str, os.stat_result]]:
    names: dict[int, str] = {}
    replaced: list[str] = []
    for number, step in enumerate(steps, 1):
        progress(f"{number:,} of {len(steps):,} files")
        replaces_folder = step.present is not None and step.present.is_folder and "type" in step.what
        expected: Expected = step.present if insist or replaces_folder else ANYTHING
        place = step.place
        if place is None:
            yield from ground.commit()  # deletions come after everything new is in place
            if not any(landing.is_inside(step.path, folder) for folder in replaced):
                ground.remove(step.path, instead_of=expected)
            continue
        if replaces_folder:
            replaced.append(step.path)  # with all that was in it
        metadata = _metadata(step, place, view, ground, times=times)
        if step.action == "mode":
            ground.set_metadata(step.path, metadata, instead_of=expected)
        elif place.entry.is_folder:
            yield step.path, ground.put_folder(step.path, metadata, instead_of=expected)
        elif place.entry.is_link:
            where = view.host_path(place)
            target = files.target(where) if where else None
            if target is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), place.path)
            yield step.path, ground.put_link(step.path, target, metadata, instead_of=expected)
        elif place.upper is not None and (first := names.get(place.entry.inode)):
            yield from ground.commit()
            yield step.path, ground.put_name(step.path, first, instead_of=expected)
        else:
            where = view.data_path(place)
            if where is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), place.path)
            ground.prepare_file(step.path, where, metadata, instead_of=expected)
            if place.upper is not None and place.entry.links > 1:
                names[place.entry.inode] = step.path
            if ground.prepared >= _AT_ONCE:
                yield from ground.commit()


def _metadata(step: LandingStep, place: Place, view: PointView, ground: Folder, *, times: bool) -> Metadata:
    """Which owner, mode and attributes are set; the others stay as they are there."""
    entry, there = place.entry, step.present
    mtime = entry.mtime_ns if times else None
    wanted: dict[str, bytes | None] = {**portable_attributes(view.attributes(place))}
    if there is None or "type" in step.what:
        return Metadata(entry.mode, (entry.uid, entry.gid), wanted, mtime)
    with ground.at(step.path) as where:
        present = portable_attributes(ground.attributes_at(where))
    if step.action == "mode":
        return Metadata(
            entry.mode if "mode" in step.what else None,
            (entry.uid, entry.gid) if "owner" in step.what else None,
            {**dict.fromkeys(present), **wanted} if "xattr" in step.what else None,
            mtime,
        )
    return Metadata(
        entry.mode if "mode" in step.what else there.mode,
        (entry.uid, entry.gid) if "owner" in step.what else (there.uid, there.gid),
        wanted if "xattr" in step.what else {**present},
        mtime,
    )


def _set_times(steps: Sequence[LandingStep], ground: Folder) -> None:
    """Folders last: a file that is made in one sets the folder's time."""
    for step in reversed(steps):
        if step.place and step.place.entry.is_folder:
            with contextlib.suppress(FileNotFoundError):
                ground.set_metadata(step.path, Metadata(mtime_ns=step.place.entry.mtime_ns))


def _check_room(steps: Sequence[LandingStep], ground: Folder) -> None:
    needed = sum(
        step.place.entry.size
        for step in steps
        if step.place and step.place.entry.is_file and "content" in step.what
    )
    room = os.statvfs(f"/proc/self/fd/{ground.fd}")
    if needed > room.f_bavail * room.f_frsize:
        raise NoSpace(
            f"{needed >> 20} MB are to be written and there is no room for them", hint="nothing was changed"
        )


# ---- copying ------------------------------------------------------------------------------------


def _is_content_of(path: str) -> bool:
    """`folder/.` means what is in the folder, without the folder itself."""
    return path.endswith("/.") or posixpath.normpath(path) == "/"


def _pieces_outside(root: Folder, path: str, *, follow: bool) -> Iterator[_Piece]:
    """What is at a path of a root, with all below it."""
    plain = posixpath.normpath(path)
    if follow or path.endswith(("/", "/.")):
        with contextlib.suppress(NotADirectoryError), root.enter(path) as folder:
            yield from _pieces_in(folder, "")
            return
    if follow:
        above, name = root.destination(path)
    else:
        above, name = root.enter(posixpath.dirname(path.rstrip("/"))), posixpath.basename(plain)
    with above:
        yield from _pieces_in(above, name)


def _pieces_in(folder: Folder, path: str) -> Iterator[_Piece]:
    exists = False
    for node in folder.walk(path):
        exists = True
        status = os.lstat(node.where)
        yield _Piece(
            node.path,
            node.entry,
            node.data if node.entry.is_file else None,
            files.target(node.where) if node.entry.is_link else None,
            folder.attributes_at(node.where),
            (status.st_dev, status.st_ino) if node.entry.is_folder or status.st_nlink > 1 else None,
        )
    if not exists:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _pieces_of(view: PointView, path: str, *, follow: bool) -> Iterator[_Piece]:
    """What is at a path of a point, with all below it."""
    top = view.resolve(path, follow=follow or path.endswith(("/", "/.")))
    if top is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    waiting = [("", top)]
    while waiting:
        inside, place = waiting.pop()
        where = view.host_path(place)
        own = place.entry.links > 1 and place.upper is not None
        yield _Piece(
            inside,
            place.entry,
            view.data_path(place),
            files.target(where) if where and place.entry.is_link else None,
            view.attributes(place),
            (0, place.entry.inode) if own else None,
        )
        children = [(name, view.child(place, name)) for name in reversed(view.children(place))]
        waiting += [(posixpath.join(inside, name), child) for name, child in children if child]


def _copy(
    trees: Sequence[tuple[str, Iterator[_Piece]]],
    root: Folder,
    target: str,
    progress: Progress,
    *,
    rights: bool = True,
) -> Copied:
    """Copies as `cp -a` does: into the target when that is a folder, else to it. Without `rights` files lose
    the bits that give their rights to the user who runs them."""
    folder: Folder | None = None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        folder = root.enter(target)
    if folder is None and (len(trees) > 1 or target.endswith("/")):
        raise NotFound(f"there is no folder {printable(target)}", hint="make it first")
    name = ""
    if folder is None:
        try:
            folder, name = root.destination(target)
        except FileNotFoundError as error:
            above = printable(posixpath.dirname(target))
            raise NotFound(f"there is no folder {above}", hint="make it first") from error
    with folder:
        copying = _Copying(folder, progress, rights=rights)
        for path, pieces in trees:
            own = "" if _is_content_of(path) else posixpath.basename(posixpath.normpath(path))
            copying.tree(path, pieces, name or own)
        return copying.finish(target)


class _Copying:
    """A copy under way."""

    def __init__(self, folder: Folder, progress: Progress, *, rights: bool) -> None:
        self._folder, self._progress, self._rights = folder, progress, rights
        self._names: dict[tuple[int, int], str] = {}
        self._made: set[tuple[int, int]] = set()
        """Folders that this copy has made. A folder that is copied into itself ends there."""
        self._times: list[tuple[str, int]] = []
        self._left_out: list[LeftOut] = []
        self._files = self._folders = self._links = self._bytes = 0

    def tree(self, source: str, pieces: Iterator[_Piece], base: str) -> None:
        self._names.clear()
        own: str | None = None
        try:
            for piece in pieces:
                path = "/".join(filter(None, (base, piece.path)))
                if own is not None and landing.is_inside(piece.path, own):
                    continue
                if piece.entry.is_folder and piece.identity in self._made:
                    own = piece.path
                elif why := reason_not_portable(piece.entry):
                    self._leave(posixpath.join(source, piece.path), why)
                elif path:
                    self._put(piece, path)
                    self._progress(f"{self._files:,} files, {size(self._bytes)}")
        except FileNotFoundError as error:
            if self._files or self._folders or self._links:
                raise
            raise NotFound(f"there is no {printable(source)}", hint="look where it is") from error

    def _leave(self, path: str, why: str) -> None:
        self._left_out.append(LeftOut(path=printable(path), why=why))

    def _put(self, piece: _Piece, path: str) -> None:
        entry, folder = piece.entry, self._folder
        there = folder.look(path)
        if there and there.is_folder != entry.is_folder:
            raise UsageError(
                f"{printable(path)} is a {there.kind} there", hint="remove it first, or choose another place"
            )
        metadata = self._metadata(piece, path)
        if entry.is_folder:
            if there is None:
                status = folder.put_folder(path, metadata)
                self._made.add((status.st_dev, status.st_ino))
                self._times.append((path, entry.mtime_ns))
            self._folders += 1
        elif entry.is_link:
            folder.put_link(path, piece.target or "", metadata)
            self._links += 1
        elif piece.identity and piece.identity in self._names:
            folder.put_name(path, self._names[piece.identity])
            self._files += 1
        else:
            if piece.data is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._bytes += folder.put_file(path, piece.data, metadata).st_size
            self._files += 1
            if piece.identity:
                self._names[piece.identity] = path

    def _metadata(self, piece: _Piece, path: str) -> Metadata:
        entry, attributes = piece.entry, portable_attributes(piece.attributes)
        mode = entry.mode
        gives_rights = mode & (stat.S_ISUID | stat.S_ISGID) or "security.capability" in attributes
        if entry.is_file and gives_rights and not self._rights:
            self._leave(path, "came without the rights that it gives to the user who runs it")
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
            attributes.pop("security.capability", None)
        return Metadata(mode, (entry.uid, entry.gid), {**attributes}, entry.mtime_ns)

    def finish(self, target: str) -> Copied:
        for path, mtime_ns in reversed(self._times):
            with contextlib.suppress(FileNotFoundError):
                self._folder.set_metadata(path, Metadata(mtime_ns=mtime_ns))
        for path, attribute in self._folder.lost:
            self._leave(posixpath.join(target, path), f"came without {attribute}: not possible there")
        return Copied(
            files=self._files,
            folders=self._folders,
            links=self._links,
            bytes=self._bytes,
            left_out=tuple(self._left_out),
        )


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translates what the kernel refuses."""
    try:
        yield
    except PlaceChanged as change:
        raise LandingConflict(f"{printable(change.path)} changed meanwhile", hint="look again") from change
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else ""
        number = errno.errorcode.get(error.errno or 0, "")
        where = "" if name.startswith("/proc/self/fd/") else f"{printable(name)}: "
        message = f"{where}{os.strerror(error.errno or 0)}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(
                f"no space left: {message}", hint="free some, and do it again", errno=number
            ) from error
        if error.errno == errno.ELOOP:
            raise UsageError(
                f"{where}a link is on the way there that is not followed",
                hint="name the place itself",
                errno=number,
            ) from error
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise NotFound(message, hint="is it still there?", errno=number) from error
        if error.errno == errno.EISDIR:
            raise UsageError(message, hint="name a file in it", errno=number) from error
        if error.errno == errno.EINVAL:
            raise UsageError(f"{where}no regular file", hint="name a file", errno=number) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EXDEV, errno.ENAMETOOLONG):
            raise UsageError(message, hint="nothing can be written there", errno=number) from error
        raise MachineError(message, errno=number) from error
