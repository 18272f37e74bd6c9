"""A list of changes as one file that other programs read: a tar or a patch.

Both are made from a `Selection` and contain exactly what it selects, byte for byte (diff.py writes what
people are shown of a change). The same points always give the same bytes. Names are relative to the folder of
the box that the selection is about.

The tar (pax) contains what is new or changed, whole: owner, mode, times, extended attributes, links and hard
links. Deleted names are in a member of their own, `.waypoint-deleted`, each ended by NUL:

    tar xpf x.tar --xattrs -C DIR; tar xOf x.tar .waypoint-deleted | (cd DIR && xargs -0 rm -rf --)

or, as in container images, an empty file `.wh.NAME` for each.

The patch is for `git apply` (and for `patch -p1`, as long as no binary file is among the changes). It
contains contents, links and whether a file is executable; a patch cannot express anything else.
"""

from __future__ import annotations

import base64
import hashlib
import io
import posixpath
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from waypoint.history.diff import end_name, is_binary, quote_name, split_lines, unified
from waypoint.history.landing import (
    Selection,
    portable_attributes,
    reason_not_portable,
    reason_to_keep,
    reason_to_skip,
)
from waypoint.history.view import Place, PointView, printable
from waypoint.kernel import files
from waypoint.model import Exported, LeftOut

if TYPE_CHECKING:
    from typing_extensions import Buffer

DELETED_MEMBER = ".waypoint-deleted"
WHITEOUT_PREFIX = ".wh."

_LARGEST_IN_PATCH = 64 << 20


Write = Callable[[bytes], object]


class _CountingWriter(io.RawIOBase):
    """A file that is only written to, and that counts the bytes."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        piece = bytes(data)
        self._write(piece)
        self.bytes += len(piece)
        return len(piece)


def _relative(selection: Selection, path: str) -> str:
    return path[len(selection.source.rstrip("/")) :].lstrip("/")


def _members(
    selection: Selection, new: PointView, named: Sequence[str], left_out: list[LeftOut]
) -> Iterator[Place]:
    """What a selection contains that can be exported, without the folder itself."""
    for path in selection.wanted:
        place = new.place(path)
        if place is None or not _relative(selection, path):
            continue
        why = reason_to_skip(path, named) or reason_not_portable(place.entry)
        if why:
            left_out.append(LeftOut(path=printable(path), why=why))
        else:
            yield place


def _deletions(
    selection: Selection, new: PointView, named: Sequence[str], left_out: list[LeftOut]
) -> Iterator[str]:
    for path in selection.gone:
        if reason_to_skip(path, named) or not _relative(selection, path):
            continue
        if why := reason_to_keep(path, (new,)):
            left_out.append(LeftOut(path=printable(path), why=why))
        else:
            yield path


# ---- tar ----------------------------------------------------------------------------------------


def write_tar(
    selection: Selection, new: PointView, out: Write, *, named: Sequence[str] = (), whiteouts: bool
) -> Exported:
    """The selection as a tar."""
    writer, left_out = _CountingWriter(out), list[LeftOut]()
    count = 0
    gone = list(_deletions(selection, new, named, left_out))
    with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT, errors="surrogateescape") as tar:
        first_names: dict[int, str] = {}
        for place in _members(selection, new, named, left_out):
            name = _relative(selection, place.path)
            info = _header(name, place, new)
            if place.entry.is_file and place.entry.links > 1 and place.upper is not None:
                first = first_names.setdefault(place.entry.inode, name)
                if first != name:
                    info.type, info.linkname, info.size = tarfile.LNKTYPE, first, 0
            if info.isreg():
                where = new.data_path(place)
                if where is None:
                    left_out.append(LeftOut(path=printable(place.path), why="its content cannot be found"))
                    continue
                with open(files.open_file(where), "rb") as content:
                    tar.addfile(info, content)
            else:
                tar.addfile(info)
            count += not place.entry.is_folder
        names = [_relative(selection, path) for path in gone]
        if whiteouts:
            for name in names:
                folder, _, last = name.rpartition("/")
                tar.addfile(tarfile.TarInfo(posixpath.join(folder, WHITEOUT_PREFIX + last)))
        elif names:
            listed = b"".join(name.encode(errors="surrogateescape") + b"\0" for name in names)
            info = tarfile.TarInfo(DELETED_MEMBER)
            info.size = len(listed)
            tar.addfile(info, io.BytesIO(listed))
    return Exported(files=count, deleted=len(gone), bytes=writer.bytes, left_out=tuple(left_out))


def _header(name: str, place: Place, view: PointView) -> tarfile.TarInfo:
    entry = place.entry
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid = stat.S_IMODE(entry.mode), entry.uid, entry.gid
    seconds, nanoseconds = divmod(entry.mtime_ns, 1_000_000_000)
    info.mtime = seconds
    more = {"mtime": f"{seconds}.{nanoseconds:09}"} if nanoseconds else {}
    for attribute, value in sorted(portable_attributes(view.attributes(place)).items()):
        more[f"SCHILY.xattr.{attribute}"] = value.decode(errors="surrogateescape")
    info.pax_headers = more
    if entry.is_folder:
        info.type = tarfile.DIRTYPE
    elif entry.is_link:
        where = view.host_path(place)
        info.type, info.linkname = tarfile.SYMTYPE, (files.target(where) if where else None) or ""
    else:
        info.size = entry.size
    return info


# ---- patch --------------------------------------------------------------------------------------


class _Version(NamedTuple):
    """One side of a change as git stores it."""

    mode: str
    content: bytes


class _TooLarge(Exception):
    """Raised for a file that is too large for a patch."""


def write_patch(
    selection: Selection, old: PointView, new: PointView, out: Write, *, named: Sequence[str] = ()
) -> Exported:
    """The selection as a patch."""
    writer, left_out = _CountingWriter(out), list[LeftOut]()
    count = deleted = 0
    for place in _members(selection, new, named, left_out):
        try:
            pieces = _file_patch(_relative(selection, place.path), old.place(place.path), place, old, new)
        except _TooLarge:
            left_out.append(
                LeftOut(path=printable(place.path), why="too large for a patch; a tar can hold it")
            )
            continue
        if pieces:
            count += 1
            writer.write(b"".join(pieces))
        elif not place.entry.is_folder or not new.children(place):
            what = "an empty folder" if place.entry.is_folder else "owner, attributes or other modes"
            left_out.append(LeftOut(path=printable(place.path), why=f"a patch cannot say {what}"))
    for path in _deletions(selection, new, named, left_out):
        for place in _files_below(old, path):
            try:
                before = _version(old, place)
            except _TooLarge:
                left_out.append(LeftOut(path=printable(place.path), why="too large for a patch"))
                continue
            if before:
                deleted += 1
                writer.write(b"".join(_difference(_relative(selection, place.path), before, None)))
    return Exported(files=count, deleted=deleted, bytes=writer.bytes, left_out=tuple(left_out))


def _file_patch(
    name: str, place_before: Place | None, place: Place, old: PointView, new: PointView
) -> list[bytes]:
    before = _version(old, place_before) if place_before else None
    after = _version(new, place)
    if before and after and before.mode[:2] != after.mode[:2]:
        return [*_difference(name, before, None), *_difference(name, None, after)]
    return list(_difference(name, before, after))


def _files_below(view: PointView, path: str) -> Iterator[Place]:
    top = view.place(path)
    if top:
        yield top
        for inside, _ in view.walk(path) if top.entry.is_folder else ():
            if place := view.place(inside):
                yield place


def _version(view: PointView, place: Place) -> _Version | None:
    """None for what git does not store."""
    if place.entry.is_link:
        where = view.host_path(place)
        target = files.target(where) if where else None
        return None if target is None else _Version("120000", target.encode(errors="surrogateescape"))
    where = view.data_path(place)
    if where is None:
        return None
    if place.entry.size > _LARGEST_IN_PATCH:
        raise _TooLarge
    content = files.read(where, _LARGEST_IN_PATCH)
    mode = "100755" if place.entry.mode & stat.S_IXUSR else "100644"
    return None if content is None else _Version(mode, content)


def _difference(name: str, before: _Version | None, after: _Version | None) -> Iterator[bytes]:
    if before == after:
        return
    a, b = (quote_name(f"{side}/{name}", ascii_only=True) for side in "ab")
    yield f"diff --git {a} {b}\n".encode()
    if before is None and after:
        yield f"new file mode {after.mode}\n".encode()
    elif after is None and before:
        yield f"deleted file mode {before.mode}\n".encode()
    elif before and after and before.mode != after.mode:
        yield f"old mode {before.mode}\nnew mode {after.mode}\n".encode()
    old, new = before.content if before else b"", after.content if after else b""
    if old == new and before and after:
        return
    ids = _blob_id(before.content) if before else "0" * 40, _blob_id(after.content) if after else "0" * 40
    same_mode = f" {after.mode}" if before and after and before.mode == after.mode else ""
    yield f"index {ids[0]}..{ids[1]}{same_mode}\n".encode()
    if old == new:
        return
    if is_binary(old) or is_binary(new):
        yield from _binary(old, new)
        return
    yield f"--- {end_name(a) if before else '/dev/null'}\n".encode()
    yield f"+++ {end_name(b) if after else '/dev/null'}\n".encode()
    yield from unified(split_lines(old), split_lines(new))


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _binary(old: bytes, new: bytes) -> Iterator[bytes]:
    """Both directions, so that the patch can be reverted."""
    yield b"GIT binary patch\n"
    for content in (new, old):
        yield b"literal %d\n" % len(content)
        yield from _base85(zlib.compress(content, 9))
        yield b"\n"


def _base85(data: bytes) -> Iterable[bytes]:
    for at in range(0, len(data), 52):
        part = data[at : at + 52]
        length = len(part) + (ord("A") - 1 if len(part) <= 26 else ord("a") - 27)
        padded = part + bytes(-len(part) % 4)
        yield bytes([length]) + base64.b85encode(padded) + b"\n"
