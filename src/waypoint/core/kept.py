"""Files of the base that the processes of a point need, kept with it.

The base is not part of a point. It may be the host's `/`, and an upgrade of the host replaces the very
libraries that saved processes have mapped. CRIU opens them by path: with other files there no point could be
restored. So every file of the base that the tree of a point ran, had mapped or had open is kept once in the
pool, named after its content, with a link in the folder of each point that needs it.

A restore compares what the base has with what was noted. Where a file is another one by now, the process gets
the kept one, from `/dev/waypoint.kept` in the box: what it has mapped stays exactly what it was, while every
path shows what the base has now. That is what an upgrade does on any running machine: programs that run keep
the old library, programs that start take the new one. (The old file at its old path would be worse: programs
that start would meet an old libc among new libraries, and `apply` would bring the old one to the host.)
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waypoint.box.filesystems import changed_file_systems
from waypoint.box.plan import KEPT_IN_BOX
from waypoint.box.volume import examine_base
from waypoint.core.background import AFTER_AN_ANSWER, Background
from waypoint.core.live import Live, Prepared, new_id
from waypoint.core.pointfile import POINT_FILE
from waypoint.core.registry import Registry
from waypoint.engine.filenames import NamedFile, copy_with_names, named_files
from waypoint.engine.images import RESTORE_FILES_ONLY
from waypoint.errors import BaseChanged, PointDamaged
from waypoint.history.view import PointView
from waypoint.kernel import atomic, locks
from waypoint.kernel.copytree import clone_file
from waypoint.kernel.overlay import file_handle, lower_handle
from waypoint.kernel.pool.protocol import Pool
from waypoint.kernel.processes import printable
from waypoint.kernel.syscalls import open_by_handle
from waypoint.model import BoxOptions, Checkpoint, Record, from_json
from waypoint.store.sessions import SessionRow

log = logging.getLogger("waypoint")

NOTES_FILE = "base.json"
LINKS = "kept"
"""In the folder of a point: which files of the base it needs, and links to them."""
_VERSION = 1
_MOST_FILE_BYTES = 256 << 20
_POOL_SHARE = 8
"""All kept files together take at most this fraction of the pool: an eighth."""
_REPLACED = "it was replaced on the host before that"
_CHUNK_BYTES = 1 << 20
_POLL_SECONDS = 0.005
_NAMED = 3


class BaseFile(Record, frozen=True):
    """A file of the base as it was when a point was taken."""

    path: str
    """In the box."""
    base_path: str
    """Relative to the base. (A folder above may have another name in the box.)"""
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    uid: int
    gid: int
    digest: str | None = None
    """SHA-256 of its content; None when it is not kept."""
    why_not: str = ""

    def is_still(self, status: os.stat_result) -> bool:
        """Whether a file has not been touched since."""
        return (self.inode, self.size, self.mtime_ns, self.ctime_ns, self.mode) == (
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_mode,
        )


class BaseFiles(Record, frozen=True):
    """What a point needs of its base."""

    files: tuple[BaseFile, ...]
    version: int = _VERSION


class KeptFiles:
    """The kept files of one home."""

    def __init__(self, registry: Registry, pool: Pool, background: Background) -> None:
        self._registry, self._home, self._store = registry, registry.home, registry.store
        self._pool, self._background = pool, background
        self._lock = locks.lock("kept files")
        """Held while files are kept or removed, one point after the other."""
        self._known: dict[tuple[int, ...], str] = {}
        """Digests of files that were read before, by what stat(2) reports."""

    # ---- keeping -----------------------------------------------------------------------------

    def keep_when_idle(self, point: Checkpoint) -> None:
        """A point was taken."""
        if not point.files_only:
            point_id = point.id
            self._background.run_when_idle(lambda: self._keep_logged(point_id))

    def keep_missing(self) -> None:
        """For the points at which sessions stand: an earlier daemon may have ended before it did that."""
        for row in self._store.sessions.all():
            point = self._registry.head(row)
            if point and not (self._folder(point.id) / NOTES_FILE).exists():
                self.keep_when_idle(point)

    def _keep_logged(self, point_id: str) -> None:
        try:
            self.keep(point_id)
        except Exception:
            if self._store.points.find(point_id):  # else it was forgotten meanwhile
                log.exception("files of the base are not kept for %s", point_id)

    def keep(self, point_id: str) -> None:
        """Keeps what a point needs of its base, and removes what no point needs any more."""
        point = self._store.points.find(point_id)
        if point is None:
            return
        row = self._registry.find(point.session)
        with self._lock:
            if not (self._folder(point_id) / NOTES_FILE).exists():
                self._keep(point, row)
            has_row = self._store.points.find(point_id) is not None
            if not has_row and not (self._folder(point_id) / POINT_FILE).exists():
                # It was forgotten meanwhile, and this has put files into its folder again. Both have to be
                # missing: a complete folder without a row is a point, and points of old versions have no
                # such file.
                shutil.rmtree(self._folder(point_id), ignore_errors=True)
            self._sweep()

    def _keep(self, point: Checkpoint, row: SessionRow) -> None:
        folder = self._folder(point.id)
        (folder / LINKS).mkdir(mode=0o700, exist_ok=True)
        live = self._registry.running(row.id)
        noted = []
        base = self._base(row.options)
        for named, base_path in self._from_base(point, row.options):
            with (
                contextlib.suppress(FileNotFoundError),
                _opened(named, base / base_path, live, row.created_at) as source,
            ):
                noted.append(self._keep_file(folder, named, base_path, source))
        atomic.write(
            folder / NOTES_FILE, msgspec.json.encode(BaseFiles(tuple(noted))), mode=0o600, durable=True
        )

    def _from_base(self, point: Checkpoint, options: BoxOptions) -> Iterator[tuple[NamedFile, str]]:
        """The files that the tree of a point needs and that are the base's, with their paths in the base.
        Those that have no name any more may have been the base's."""
        if not options.base.startswith("/"):
            return  # an imported base never changes
        folder = self._folder(point.id)
        view = PointView(folder / "files", self._base(options))
        bound = [bind.box.rstrip("/") + "/" for bind in options.binds]
        for named in named_files(folder / "images"):
            if any(f"{named.path}/".startswith(prefix) for prefix in bound):
                continue
            place = view.place(named.path)
            if place is None:
                yield named, named.path.lstrip("/")
            elif place.upper is None and place.lower is not None:
                yield named, place.lower

    def _keep_file(self, folder: Path, named: NamedFile, base_path: str, source: int | str) -> BaseFile:
        """`source`: the file, opened, or the reason why it is not to be had."""
        if isinstance(source, str):
            return _note(named, base_path, None, why_not=source)
        status = os.fstat(source)
        if (status.st_size, status.st_mode) != (named.size, named.mode):
            return _note(named, base_path, None, why_not="it has changed on the host at once")
        if status.st_size > _MOST_FILE_BYTES:
            return _note(named, base_path, status, why_not=f"it is larger than {_MOST_FILE_BYTES >> 20} MiB")
        key = _identity(status)
        digest = self._known.get(key)
        if digest is None or not (self._store_folder / digest).exists():
            if self._store_bytes() + status.st_size > self._pool.usage().total_bytes // _POOL_SHARE:
                return _note(named, base_path, status, why_not="the kept files have no more room in the pool")
            try:
                digest = self._store_content(source)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                return _note(named, base_path, status, why_not="the pool was full")
            if _identity(os.fstat(source)) != key:
                return _note(named, base_path, None, why_not="it was being written to")
            self._known[key] = digest
        with contextlib.suppress(FileExistsError):
            os.link(self._store_folder / digest, folder / LINKS / digest)
        return _note(named, base_path, status, digest=digest)

    def _store_content(self, source: int) -> str:
        """Copies a file into the pool, unless it is there. Returns its digest."""
        self._store_folder.mkdir(mode=0o700, exist_ok=True)
        temporary = self._home.staging / f"kept-{new_id()}"
        digest, since = hashlib.sha256(), time.monotonic()
        try:
            with open(temporary, "xb") as target:
                at = 0
                while chunk := os.pread(source, _CHUNK_BYTES, at):
                    self._yield_to_verbs(since)
                    digest.update(chunk)
                    target.write(chunk)
                    at += len(chunk)
                target.flush()
                os.fchmod(target.fileno(), 0o600)
                os.fsync(target.fileno())
            name = digest.hexdigest()
            if not (self._store_folder / name).exists():
                temporary.rename(self._store_folder / name)
            return name
        finally:
            temporary.unlink(missing_ok=True)

    def _yield_to_verbs(self, since: float) -> None:
        while left := self._background.seconds_until_idle(AFTER_AN_ANSWER, since):
            time.sleep(min(left, _POLL_SECONDS))

    def _sweep(self) -> None:
        """Removes kept files that no point has a link to."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._store_folder) as entries:
            for entry in entries:
                if entry.stat(follow_symlinks=False).st_nlink == 1:
                    os.unlink(entry.path)

    # ---- restoring ---------------------------------------------------------------------------

    def changed(self, point: Checkpoint, options: BoxOptions) -> list[BaseFile]:
        """The files that a point needs and that its base does not have any more as they were."""
        if point.files_only or not options.base.startswith("/"):
            return []
        base = self._base(options)
        return [file for file in self._noted(point, options) if not _is_unchanged(file, base)]

    def describe(self, point: Checkpoint, options: BoxOptions) -> tuple[str, ...]:
        """What a plan says of that, and of file systems below the base."""
        changed = self.changed(point, options)
        file_systems = self.file_systems(self._folder(point.id) / "files", options)
        if lost := [file for file in changed if file.digest is None]:
            return (f"{_names(lost)} of the base changed and were not kept: its processes cannot come back",)
        return (*file_systems, *_sentence(changed))

    def file_systems(self, volume: Path, options: BoxOptions) -> tuple[str, ...]:
        """What is mounted below the base otherwise than it was for a volume, a sentence each."""
        base = self._base(options)
        return tuple(changed_file_systems(volume, base, examine_base(base, self._home).layered).values())

    def prepare(self, point: Checkpoint, options: BoxOptions, volume: Path) -> Prepared:
        """Makes good what a changed base lacks, in the volume of a box that is about to be built. BaseChanged
        when a file that has changed was not kept."""
        images = self._folder(point.id) / "images"
        changed = self.changed(point, options)
        if lost := [file for file in changed if file.digest is None]:
            reasons = "; ".join(sorted({file.why_not for file in lost}))
            raise BaseChanged(
                f"{_names(lost)} of the base changed since {point.label} was taken and could not be kept then"
                f" ({reasons})",
                hint=RESTORE_FILES_ONLY,
                files=[file.path for file in lost],
            )
        changes = (*self.file_systems(volume, options), *_sentence(changed))
        if not changed:
            return Prepared(images, changes)
        names = {}
        for file in changed:
            assert file.digest
            inside = Path(file.digest[:16], os.path.basename(file.path))
            copy = self._folder(point.id) / LINKS / file.digest
            if not copy.is_file() or _digest(copy) != file.digest:
                raise PointDamaged(
                    f"{file.path} of the base has changed, and the copy that {point.label} kept is damaged",
                    hint=RESTORE_FILES_ONLY,
                )
            _place(copy, volume / LINKS / inside, file)
            names[file.path] = str(KEPT_IN_BOX / inside)
        temporary = self._home.staging / new_id()
        copy_with_names(images, temporary, names)
        return Prepared(temporary, changes, temporary)

    def _noted(self, point: Checkpoint, options: BoxOptions) -> Iterator[BaseFile]:
        """Of a point for which nothing was noted (the daemon was killed at once, or was of an older version)
        no more is known than its images say."""
        try:
            text = (self._folder(point.id) / NOTES_FILE).read_bytes()
        except FileNotFoundError:
            for named, base_path in self._from_base(point, options):
                if os.path.lexists(self._base(options) / base_path):
                    yield _note(named, base_path, None, why_not="nothing was kept for this point")
            return
        yield from from_json(text, BaseFiles).files

    # ---- places ------------------------------------------------------------------------------

    @property
    def _store_folder(self) -> Path:
        return self._home.pool / LINKS

    def _store_bytes(self) -> int:
        with contextlib.suppress(FileNotFoundError), os.scandir(self._store_folder) as entries:
            return sum(entry.stat().st_size for entry in entries)
        return 0

    def _folder(self, point_id: str) -> Path:
        return self._home.checkpoints / point_id

    def _base(self, options: BoxOptions) -> Path:
        return self._registry.base_of(options)


# ---- checking ------------------------------------------------------------------------------------


def missing_links(folder: Path) -> Iterator[str]:
    """What the folder of a point lacks of the files that it is said to have kept."""
    try:
        notes = from_json((folder / NOTES_FILE).read_bytes(), BaseFiles)
    except FileNotFoundError:
        return
    except (OSError, msgspec.DecodeError) as error:
        yield f"{NOTES_FILE} cannot be read: {error}"
        return
    for file in notes.files:
        if file.digest and not (folder / LINKS / file.digest).is_file():
            yield f"the kept copy of {printable(file.path)} is gone"


def damaged_files(pool: Path, *, deep: bool) -> Iterator[Path]:
    """Kept files that are not what their names say. Without `deep` only their names are looked at."""
    with contextlib.suppress(FileNotFoundError):
        for path in sorted((pool / LINKS).iterdir()):
            if len(path.name) != 2 * hashlib.sha256().digest_size or (deep and _digest(path) != path.name):
                yield path


def _digest(path: Path) -> str:
    with open(_open(path), "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# ---- the base ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(named: NamedFile, file: Path, live: Live | None, safe_before: float) -> Iterator[int | str]:
    """The file of the base that the processes of a box have, opened for reading; or why it is not to be had.
    FileNotFoundError when it is none of the base.

    The base may have been changed while they ran: then another file, or none, is at its path, and theirs is
    found by its handle, as the overlay of their box names it. Without a box only a file that has not been
    touched since its session began (`safe_before`) is known to be theirs.
    """
    fd, theirs = -1, None
    with contextlib.suppress(OSError):
        if live:
            theirs = lower_handle(f"/proc/{live.box.pid}/root{named.path}")
    try:
        with contextlib.suppress(FileNotFoundError):
            fd = _open(file)
        if fd < 0 and theirs is None:
            raise FileNotFoundError(str(file))
        if theirs is None:
            yield fd if os.fstat(fd).st_ctime < safe_before else _REPLACED
        elif fd >= 0 and theirs == file_handle(f"/proc/self/fd/{fd}"):
            yield fd
        else:
            if fd >= 0:
                os.close(fd)
            fd = _open_by_handle(file.parent, theirs)
            yield fd if fd >= 0 else _REPLACED
    finally:
        if fd >= 0:
            os.close(fd)


def _open(path: Path | str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _open_by_handle(folder: Path, handle: tuple[int, bytes]) -> int:
    """A file that has lost its name, on the file system of a folder; -1 when it is gone."""
    with contextlib.suppress(OSError):
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = open_by_handle(place, *handle)
        finally:
            os.close(place)
        try:
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(found)
    return -1


def _note(
    named: NamedFile,
    base_path: str,
    status: os.stat_result | None,
    *,
    digest: str | None = None,
    why_not: str = "",
) -> BaseFile:
    return BaseFile(
        path=named.path,
        base_path=base_path,
        inode=status.st_ino if status else 0,
        size=named.size,
        mtime_ns=status.st_mtime_ns if status else 0,
        ctime_ns=status.st_ctime_ns if status else 0,
        mode=named.mode,
        uid=status.st_uid if status else 0,
        gid=status.st_gid if status else 0,
        digest=digest,
        why_not=why_not,
    )


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _is_unchanged(file: BaseFile, base: Path) -> bool:
    """Whether the base still has the bytes. A file that was only touched, or unpacked again, has them."""
    path = f"{base}/{file.base_path}"
    try:
        status = os.lstat(path)
        if file.inode and file.is_still(status):
            return True
        if (status.st_size, status.st_mode) != (file.size, file.mode):
            return False
        if file.digest is None:
            # Nothing is known of its content. CRIU compares what identifies programs.
            return not file.inode or status.st_mtime_ns == file.mtime_ns
        return _digest(Path(path)) == file.digest
    except OSError:
        return False


def _place(kept: Path, target: Path, file: BaseFile) -> None:
    """Puts a kept file into a volume, where it shares its blocks if it can."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(kept, "rb") as source, open(target, "wb") as copy:
        if not clone_file(source.fileno(), copy.fileno()):
            shutil.copyfileobj(source, copy)
        os.fchown(copy.fileno(), file.uid, file.gid)
        os.fchmod(copy.fileno(), stat.S_IMODE(file.mode))
    os.utime(target, ns=(file.mtime_ns, file.mtime_ns))


def _names(files: list[BaseFile]) -> str:
    names = [printable(file.path) for file in files[:_NAMED]]
    more = len(files) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _sentence(changed: list[BaseFile]) -> tuple[str, ...]:
    if not changed:
        return ()
    return (f"the base has other files by now ({_names(changed)}); its processes go on with those of then",)
