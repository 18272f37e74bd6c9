"""What a point held when it was made: the digests of its images and files, beside them in its folder.

`digests` is of the images and is read by every restore. It begins with the digest of the rest of it, which
the row of the point has too, and it names the digest of `digests.files`, which is of the tree and may be
large. So a manifest that is damaged, or not the one that was made, is noticed like any other damage. Both
are written once, in the background, moments after the point (core/digests.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from waypoint.core.pointfile import POINT_FILE
from waypoint.engine.images import WRITTEN_BY_RESTORES
from waypoint.kernel import atomic, digests
from waypoint.kernel.digests import CHUNK_BYTES, Entry, Pause
from waypoint.kernel.processes import printable
from waypoint.kernel.seals import Key
from waypoint.model import Record, from_msgpack

MANIFEST_FILE = "digests"
FILES_FILE = "digests.files"
VERSION = 1
_MOST_NAMED = 5
_SMALL_BYTES = 1 << 20
_HEAD_BYTES = 16


class ManifestError(Exception):
    """Raised when a manifest cannot be read, or is not the one that was made."""


class Image(msgspec.Struct, frozen=True, array_like=True):
    """One file of the images: its size, and a digest for each 4 MiB of it."""

    size: int
    chunks: list[bytes]

    @property
    def small(self) -> bool:
        return self.size <= _SMALL_BYTES


Files = dict[bytes, Entry]
"""By path below the tree of a point's files; the tree itself has the empty path."""


class Manifest(Record, frozen=True):
    """All that a point is made of, but for its tree."""

    made_at: float
    point: bytes
    """The digest of point.json."""
    images: dict[str, Image]
    files: bytes
    """The digest of `digests.files`."""
    version: int = VERSION
    seal: bytes = b""
    """Of the installation that has made it; empty in those of older versions."""


def make(
    folder: Path, made_at: float, pause: Pause, earlier: Files | None = None, before_ns: int = 0
) -> tuple[Manifest, Files]:
    """Reads the folder of a point. `earlier`: another snapshot of the same tree; what has not been changed
    since then, nor at `before_ns` or later, is not read again."""
    images = {
        name: Image(*digests.of_chunks(folder / "images" / name, pause))
        for name in sorted(set(os.listdir(folder / "images")) - WRITTEN_BY_RESTORES)
    }
    files = digests.of_tree(folder / "files", pause, earlier, before_ns)
    point = digests.of_bytes((folder / POINT_FILE).read_bytes())
    digest = digests.of_bytes(msgspec.msgpack.encode(files))
    return Manifest(made_at=made_at, point=point, images=images, files=digest), files


def write(folder: Path, manifest: Manifest, key: Key, files: Files | None = None) -> str:
    """Seals it and writes it to the disk, after `files` if they are new. Returns the digest that the row of
    the point is to have."""
    manifest = msgspec.structs.replace(manifest, seal=key.seal(_sealed(manifest)))
    if files is not None:
        atomic.write(folder / FILES_FILE, msgspec.msgpack.encode(files), mode=0o600, durable=True)
    body = msgspec.msgpack.encode(manifest)
    digest = digests.of_bytes(body)
    atomic.write(folder / MANIFEST_FILE, digest + body, mode=0o600, durable=True)
    return digest.hex()


def _sealed(manifest: Manifest) -> bytes:
    """All that a point is made of."""
    return msgspec.msgpack.encode((manifest.point, manifest.images, manifest.files))


def is_own(folder: Path, key: Key) -> bool:
    """Whether this installation has made the manifest of a point, or there is none yet. One that cannot be
    read may be of any origin."""
    if not os.path.lexists(folder / MANIFEST_FILE):
        return True
    try:
        manifest = read(folder)
    except ManifestError:
        return False
    return key.has_sealed(_sealed(manifest), manifest.seal)


def read(folder: Path, digest: str | None = None) -> Manifest:
    """The manifest of a point; ManifestError saying what is wrong with it. `digest`: of its row."""
    try:
        data = (folder / MANIFEST_FILE).read_bytes()
    except OSError as error:
        raise ManifestError(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from error
    head, body = data[:_HEAD_BYTES], data[_HEAD_BYTES:]
    if digests.of_bytes(body) != head or (digest is not None and head.hex() != digest):
        raise ManifestError(f"{MANIFEST_FILE} is not what was written")
    try:
        manifest = from_msgpack(body, Manifest)
    except msgspec.DecodeError as error:
        raise ManifestError(f"{MANIFEST_FILE} cannot be understood: {error}") from error
    if manifest.version != VERSION:
        raise ManifestError(f"{MANIFEST_FILE} was written by a newer Waypoint")
    return manifest


def read_files(folder: Path, manifest: Manifest) -> Files:
    """What the tree of a point held; ManifestError when that cannot be read."""
    try:
        data = (folder / FILES_FILE).read_bytes()
    except OSError as error:
        raise ManifestError(f"{FILES_FILE} cannot be read: {error.strerror}") from error
    if digests.of_bytes(data) != manifest.files:
        raise ManifestError(f"{FILES_FILE} is not what was written")
    try:
        return from_msgpack(data, Files)
    except msgspec.DecodeError as error:
        raise ManifestError(f"{FILES_FILE} cannot be understood: {error}") from error


def digest_of(folder: Path) -> str | None:
    """The digest that the row of a point is to have; None when it has no manifest that is whole."""
    try:
        read(folder)
        return (folder / MANIFEST_FILE).read_bytes()[:_HEAD_BYTES].hex()
    except (OSError, ManifestError):
        return None


# ---- comparing -----------------------------------------------------------------------------------


def damaged_images(folder: Path, manifest: Manifest, pause: Pause, *, deep: bool) -> Iterator[str]:
    """What is wrong with the images of a point, one phrase each. Without `deep` large files are compared by
    their sizes only: memory, which takes as long to read as to restore."""
    images = folder / "images"
    try:
        present = set(os.listdir(images)) - WRITTEN_BY_RESTORES
    except OSError as error:
        yield f"images cannot be read: {error.strerror}"
        return
    yield from (f"images/{printable(name)} is missing" for name in sorted(manifest.images.keys() - present))
    yield from (
        f"images/{printable(name)} does not belong to it" for name in sorted(present - manifest.images.keys())
    )
    for name in sorted(present & manifest.images.keys()):
        image = manifest.images[name]
        if wrong := _damage_of_image(images / name, image, pause, deep=deep or image.small):
            yield f"images/{name} {wrong}"


def _damage_of_image(path: Path, image: Image, pause: Pause, *, deep: bool) -> str | None:
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            return "is no plain file any more"
        if status.st_size != image.size:
            return f"has {status.st_size:,} bytes instead of {image.size:,}"
        if not deep:
            return None
        _, chunks = digests.of_chunks(path, pause)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    wrong = [index for index, (now, then) in enumerate(zip(chunks, image.chunks, strict=True)) if now != then]
    if not wrong:
        return None
    where = f", within 4 MiB from byte {wrong[0] * CHUNK_BYTES:,} on" if len(image.chunks) > 1 else ""
    return f"is not what was written{where}"


def damaged_files(folder: Path, manifest: Manifest, pause: Pause) -> Iterator[str]:
    """What is wrong with the files of a point, one phrase each. All of them are read."""
    try:
        files = read_files(folder, manifest)
    except ManifestError as error:
        yield str(error)
        return
    try:
        present = digests.of_tree(folder / "files", pause)
    except OSError as error:
        place = os.fsdecode(error.filename) if error.filename else "files"
        yield f"files cannot be read: {printable(place)}: {error.strerror}"
        return
    for path in sorted(files.keys() | present.keys()):
        then, now = files.get(path), present.get(path)
        shown = f"files/{printable(os.fsdecode(path))}".rstrip("/")
        if now is None:
            yield f"{shown} is missing"
        elif then is None:
            yield f"{shown} does not belong to it"
        elif wrong := _difference(then, now):
            yield f"{shown} {wrong}"


def _difference(then: Entry, now: Entry) -> str | None:
    if stat.S_IFMT(then.mode) != stat.S_IFMT(now.mode):
        return "is of another kind"
    if then.size != now.size:
        return f"has {now.size:,} bytes instead of {then.size:,}"
    if then.content != now.content:
        return "is not what was written"
    pairs: Mapping[str, tuple[object, object]] = {
        "mode": (then.mode, now.mode),
        "owner": ((then.uid, then.gid), (now.uid, now.gid)),
        "modification time": (then.modified, now.modified),
        "extended attributes": (then.attributes, now.attributes),
    }
    wrong = [name for name, (old, new) in pairs.items() if old != new]
    return f"has another {' and '.join(wrong)}" if wrong else None


def damage_of_point_file(folder: Path, manifest: Manifest) -> str | None:
    try:
        same = digests.of_bytes((folder / POINT_FILE).read_bytes()) == manifest.point
    except OSError as error:
        return f"{POINT_FILE} cannot be read: {error.strerror}"
    return None if same else f"{POINT_FILE} is not what was written"


def summary(damage: list[str]) -> str:
    """Some of it, in one phrase."""
    more = len(damage) - _MOST_NAMED
    return "; ".join([*damage[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])
