"""The imported bases: root file systems that sessions are layered over, kept immutable in the pool.

`pool/bases/NAME/files` is the tree, read-only; `pool/bases/NAME/base.json` records where it came from. Both
are made in `pool/staging` and get their place by one rename, so a base exists completely or not at all,
whatever happens during an import. images.py reads archives and explains why they cannot do harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from waypoint.api.hints import Do, Hint
from waypoint.bases.images import Progress, Unpacker, import_error, is_image_folder, is_kept, unpack
from waypoint.errors import AlreadyExists, InvalidName, MadeElsewhere, NotFound, UsageError, translated
from waypoint.kernel import atomic, copytree, faults
from waypoint.kernel.pool.protocol import Pool
from waypoint.kernel.seals import Key
from waypoint.kernel.syscalls import RESOLVE_IN_ROOT, openat2
from waypoint.model import Base, ImageConfig, from_json

RECORD = "base.json"
RECORD_VERSION = 1
_MOST_OF_FREE = 0.9
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def base_path(pool: Pool, name: str) -> Path:
    """The root of a base's tree."""
    _check_name(name)
    path = pool.root / "bases" / name / "files"
    if not path.is_dir():
        names = ", ".join(base.name for base in list_bases(pool))
        raise NotFound(
            f"there is no base {name!r}",
            hint=f"there are: {names}"
            if names
            else Hint("import one with ", Do("base_import", "name", "file")),
        )
    return path


def list_bases(pool: Pool) -> list[Base]:
    """All bases, by name."""
    return [_read_record(path) for path in sorted((pool.root / "bases").glob(f"*/{RECORD}"))]


def read_base(pool: Pool, name: str) -> Base:
    """The base of that name."""
    return _read_record(base_path(pool, name).parent / RECORD)


def _read_record(path: Path) -> Base:
    with translated(f"read the base {path.parent.name}"):
        return from_json(path.read_bytes(), Base)


def is_own(folder: Path, key: Key) -> bool:
    """Whether this installation has imported the base in a folder."""
    try:
        return key.has_sealed_document((folder / RECORD).read_bytes())
    except OSError:
        return False


def require_own(pool: Pool, name: str) -> None:
    """MadeElsewhere for a base that this installation has not imported: its files are what root runs in a
    session."""
    folder = base_path(pool, name).parent
    if not is_own(folder, _key(pool)):
        raise MadeElsewhere(
            f"this installation has not imported the base {name!r}",
            hint=Hint(Do("recover", foreign=True), " lets it be used, and all points of others"),
            base=name,
        )


def seal(folder: Path, key: Key) -> None:
    """From now on the base in a folder is this installation's."""
    path = folder / RECORD
    with translated(f"seal the base {folder.name}"):
        atomic.write(path, key.seal_document(path.read_bytes()), durable=True)


def seal_all(pool: Pool, key: Key) -> None:
    """For a home of an older version, which had no key."""
    for path in (pool.root / "bases").glob(f"*/{RECORD}"):
        seal(path.parent, key)


def _key(pool: Pool) -> Key:
    return Key.of(pool.root.parent)


def remove_base(pool: Pool, name: str, *, used_by: Sequence[str] = ()) -> Path:
    """Takes the name of a base, unless sessions (`used_by`) still need it. Returns what is to be deleted."""
    path = base_path(pool, name).parent
    if used_by:
        raise UsageError(
            f"the base {name!r} is in use by {', '.join(used_by)}",
            hint=Hint("remove these sessions first: ", Do("rm", sessions=list(used_by))),
            used_by=list(used_by),
        )
    removed = pool.root / "staging" / f"base-{name}-{secrets.token_hex(4)}"
    with translated(f"remove the base {name}"):
        os.rename(path, removed)  # from here on it does not exist, whatever happens to the rest
    faults.reach("base.unnamed")
    return removed


def import_base(pool: Pool, name: str, file: str | Path, progress: Progress = lambda _: None) -> Base:
    """Imports a root file system from an archive or a folder; calls `progress` with each step.

    Device nodes are left out and counted. An archive that is malicious or damaged is refused with a
    UsageError that names the reason, and leaves nothing behind.
    """
    source = Path(file)
    if not source.exists():
        raise NotFound(f"there is no file {source}", path=str(source))
    if not (source.is_file() or source.is_dir()):
        raise import_error(source.name, "it is neither a file nor a folder")

    def fill(staged: Path) -> Base:
        if source.is_dir() and not is_image_folder(source):
            return _import_folder(pool.root.parent, name, source, staged, progress)
        return _import_archive(name, source, staged, progress)

    return make_base(pool, name, source.name, fill, progress)


def make_base(
    pool: Pool,
    name: str,
    source: str,
    fill: Callable[[Path], Base],
    progress: Progress = lambda _: None,
    *,
    start: Path | None = None,
) -> Base:
    """A base from what `fill` puts into the folder `files` of the folder that it is called with. `start`: a
    tree of the pool that it begins as a copy of."""
    require_free(pool, name)
    staged = pool.root / "staging" / f"base-{name}-{secrets.token_hex(4)}"
    try:
        with translated(f"import {source} as the base {name}"):
            staged.mkdir(mode=0o700)
            if start:
                pool.snapshot(start, staged / "files", readonly=False)
            else:
                pool.create(staged / "files")
            if pool.share(staged / "files"):  # a small archive may hold more than the whole pool has room for
                pool.limit(staged / "files", int(pool.usage().free_bytes * _MOST_OF_FREE))
            faults.reach("base.staged")
            base = fill(staged)
            faults.reach("base.unpacked")
            _write_record(staged / RECORD, base, _key(pool))
            progress("making it durable")
            pool.seal(staged / "files")
            faults.reach("base.sealed")
            pool.sync()
            faults.reach("base.synced")
            os.rename(staged, pool.root / "bases" / name)
            faults.reach("base.named")
            pool.sync()
    except BaseException:
        pool.delete(staged)
        raise
    return base


def require_free(pool: Pool, name: str) -> None:
    """Raises unless a base of this name can be made."""
    _check_name(name)
    if (pool.root / "bases" / name).exists():
        raise AlreadyExists(
            f"there is a base {name!r} already",
            hint=Hint("choose another name, or remove that one with ", Do("base_rm", name=name)),
        )


def empty_base(pool: Pool, name: str) -> Base:
    """The base without any files of that name, made when it is first needed."""
    with contextlib.suppress(AlreadyExists):
        make_base(
            pool, name, name, lambda staged: describe(staged / "files", name, "empty", name, empty=True)
        )
    return read_base(pool, name)


def _import_archive(name: str, source: Path, staged: Path, progress: Progress) -> Base:
    files = staged / "files"
    with ThreadPoolExecutor(1) as hasher:
        # The index of an image in a folder names everything else in it by digest.
        digest = hasher.submit(_file_digest, source / "index.json" if source.is_dir() else source)
        with contextlib.closing(Unpacker(files)) as unpacker:
            unpacked = unpack(source, unpacker, staged, progress)
            unpacker.finish()
        warnings = []
        if unpacker.lost_attributes:
            warnings.append(f"{unpacker.lost_attributes} extended attributes cannot be kept in this pool")
        return describe(
            files,
            name,
            unpacked.format,
            source.name,
            warnings,
            digest=digest.result(),
            skipped_devices=unpacker.skipped_devices,
            image=unpacked.config,
        )


def _import_folder(home: Path, name: str, source: Path, staged: Path, progress: Progress) -> Base:
    """Copies a folder without device nodes, sockets, file systems mounted in it, and Waypoint's own home."""
    files, source = staged / "files", source.resolve()
    device, own_home = source.stat().st_dev, home.stat()
    devices, mounted = 0, list[Path]()

    def skip(folder: int, entry: str, status: os.stat_result) -> bool:
        nonlocal devices
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            devices += 1
            return True
        if stat.S_ISDIR(status.st_mode) and status.st_dev != device:
            mounted.append(Path(os.readlink(f"/proc/self/fd/{folder}"), entry).relative_to(source))
            return True
        return stat.S_ISSOCK(status.st_mode) or os.path.samestat(status, own_home)

    progress(f"copying {source}")
    copytree.copy_tree(source, files, reflink=True, skip=skip, omit=lambda attribute: not is_kept(attribute))
    for path in mounted:
        (files / path).mkdir(mode=0o755)  # an empty mount point
    return describe(files, name, "folder", source.name or str(source), skipped_devices=devices)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def describe(
    files: Path,
    name: str,
    image_format: str,
    source: str,
    warnings: Sequence[str] = (),
    *,
    digest: str = "",
    skipped_devices: int = 0,
    image: ImageConfig = ImageConfig(),  # noqa: B008 - it is frozen
    empty: bool = False,
) -> Base:
    """The record of a tree that is complete. `empty`: whether it may be without files."""
    count, size, tree_digest = _survey(files, with_digest=not digest)
    if not (count or empty):
        raise import_error(source, "it contains no files")
    if not has_bash(files):
        warnings = (*warnings, "there is no /bin/bash in it, which sessions need for their shell")
    return Base(
        name=name,
        format=image_format,
        source=source,
        digest=digest or tree_digest,
        size_bytes=size,
        file_count=count,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        skipped_devices=skipped_devices,
        warnings=tuple(warnings),
        image=image,
    )


def _survey(root: Path, *, with_digest: bool) -> tuple[int, int, str]:
    """The number of files in a tree, their bytes (a hard link counts once), and a digest of all of it."""
    count, size, digest = 0, 0, hashlib.sha256()
    inodes: set[int] = set()
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    folders = ["."]
    try:
        while folders:
            folder = folders.pop()
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            try:
                for entry in sorted(os.listdir(fd)):
                    status = os.stat(entry, dir_fd=fd, follow_symlinks=False)
                    path = f"{folder}/{entry}"
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(path)
                    else:
                        count += 1
                    if stat.S_ISREG(status.st_mode) and status.st_ino not in inodes:
                        inodes.add(status.st_ino)
                        size += status.st_size
                    if with_digest:
                        about = (
                            path,
                            oct(status.st_mode),
                            status.st_uid,
                            status.st_gid,
                            _content(fd, entry, status),
                        )
                        digest.update(f"{about!r}\n".encode("utf-8", "surrogateescape"))
            finally:
                os.close(fd)
    finally:
        os.close(top)
    return count, size, f"sha256:{digest.hexdigest()}"


def _content(folder: int, name: str, status: os.stat_result) -> str:
    """What stands for an entry's content in the digest of a tree."""
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(name, dir_fd=folder)
    if not stat.S_ISREG(status.st_mode):
        return ""
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_bash(root: Path) -> bool:
    """Whether /bin/bash is there for a box: symbolic links are resolved inside the tree."""
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = openat2(top, "bin/bash", os.O_PATH, resolve=RESOLVE_IN_ROOT)
    except OSError:
        return False
    finally:
        os.close(top)
    try:
        mode = os.fstat(fd).st_mode
    finally:
        os.close(fd)
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def _write_record(path: Path, base: Base, key: Key) -> None:
    document = json.dumps({"version": RECORD_VERSION, **msgspec.to_builtins(base)}, indent=1) + "\n"
    path.write_bytes(key.seal_document(document.encode()))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot be the name of a base",
            hint="letters, digits, '_', '-' and '.', at most 64, not starting with '-' or '.'",
        )
