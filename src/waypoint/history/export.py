"""A list of changes as one file that other programs understand: a tar, or a patch.

Both are made from a `Selection` and say exactly what it says, byte for byte (what people are shown of a
change, and what is hidden from their eyes, is the business of `patches`). Made again of the same points, both
are the same bytes. Names are relative to the folder of the box that the selection is about.

The tar (pax) has what is new or changed, whole: owner, mode, times, extended attributes, links and hard
links. What is gone is in a member of its own, `.waypoint-deleted`, names ended by NUL:

    tar xpf x.tar --xattrs -C DIR; tar xOf x.tar .waypoint-deleted | (cd DIR && xargs -0 rm -rf --)

or, as container images have it, an empty file `.wh.NAME` for each.

The patch is one for `git apply` (and for `patch -p1`, as long as no binary file is among the changes). It has
contents, links and whether a file can be executed; it cannot say anything else.
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

from waypoint.history.diff import unified
from waypoint.history.landing import Selection, carried, shown, why_it_stays, why_no_file
from waypoint.history.view import Place, PointView
from waypoint.kernel import files
from waypoint.model import Exported, LeftOut

if TYPE_CHECKING:
    from typing_extensions import Buffer

DELETED_MEMBER = ".waypoint-deleted"
WHITEOUT_PREFIX = ".wh."

_LARGEST_IN_PATCH = 64 << 20
_LOOKED_AT_FOR_TEXT = 8000


Write = Callable[[bytes], object]


class _Counted(io.RawIOBase):
    """A file that is only written to, and what went through it."""

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
    """What a selection wants that can be carried, the folder itself aside."""
    for path in selection.wanted:
        place = new.place(path)
        if place is None or not _relative(selection, path):
            continue
        why = why_it_stays(path, named) or why_no_file(place.entry)
        if why:
            left_out.append(LeftOut(path=shown(path), why=why))
        else:
            yield place


def _deletions(selection: Selection, named: Sequence[str]) -> list[str]:
    return [path for path in selection.gone if not why_it_stays(path, named) and _relative(selection, path)]


# ---- tar ----------------------------------------------------------------------------------------


def write_tar(
    selection: Selection, new: PointView, out: Write, *, named: Sequence[str] = (), whiteouts: bool
) -> Exported:
    """The selection as a tar."""
    counted, left_out = _Counted(out), list[LeftOut]()
    count = 0
    gone = _deletions(selection, named)
    with tarfile.open(fileobj=counted, mode="w|", format=tarfile.PAX_FORMAT, errors="surrogateescape") as tar:
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
                    left_out.append(LeftOut(path=shown(place.path), why="its content cannot be found"))
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
    return Exported(files=count, deleted=len(gone), bytes=counted.bytes, left_out=tuple(left_out))


def _header(name: str, place: Place, view: PointView) -> tarfile.TarInfo:
    entry = place.entry
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid = stat.S_IMODE(entry.mode), entry.uid, entry.gid
    seconds, nanoseconds = divmod(entry.mtime_ns, 1_000_000_000)
    info.mtime = seconds
    more = {"mtime": f"{seconds}.{nanoseconds:09}"} if nanoseconds else {}
    for attribute, value in sorted(carried(view.attributes(place)).items()):
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
    """One side of a change, as git sees it."""

    mode: str
    content: bytes


class _TooLarge(Exception):
    """Raised for what no patch should hold."""


def write_patch(
    selection: Selection, old: PointView, new: PointView, out: Write, *, named: Sequence[str] = ()
) -> Exported:
    """The selection as a patch."""
    counted, left_out = _Counted(out), list[LeftOut]()
    count = deleted = 0
    for place in _members(selection, new, named, left_out):
        try:
            pieces = _of_wanted(_relative(selection, place.path), old.place(place.path), place, old, new)
        except _TooLarge:
            left_out.append(LeftOut(path=shown(place.path), why="too large for a patch; a tar can hold it"))
            continue
        if pieces:
            count += 1
            counted.write(b"".join(pieces))
        elif not place.entry.is_folder or not new.children(place):
            what = "an empty folder" if place.entry.is_folder else "owner, attributes or other modes"
            left_out.append(LeftOut(path=shown(place.path), why=f"a patch cannot say {what}"))
    for path in _deletions(selection, named):
        for place in _files_below(old, path):
            try:
                before = _version(old, place)
            except _TooLarge:
                left_out.append(LeftOut(path=shown(place.path), why="too large for a patch"))
                continue
            if before:
                deleted += 1
                counted.write(b"".join(_difference(_relative(selection, place.path), before, None)))
    return Exported(files=count, deleted=deleted, bytes=counted.bytes, left_out=tuple(left_out))


def _of_wanted(name: str, was: Place | None, place: Place, old: PointView, new: PointView) -> list[bytes]:
    before = _version(old, was) if was else None
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
    """None for what git knows nothing of."""
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
    one, other = _quoted(f"a/{name}"), _quoted(f"b/{name}")
    yield b"diff --git %s %s\n" % (one, other)
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
    if _is_binary(old) or _is_binary(new):
        yield from _binary(old, new)
        return
    yield b"--- %s\n" % (_with_tab(one) if before else b"/dev/null")
    yield b"+++ %s\n" % (_with_tab(other) if after else b"/dev/null")
    yield from unified(_lines(old), _lines(new))


def _quoted(name: str) -> bytes:
    """As git quotes: only where it has to be."""
    raw = name.encode(errors="surrogateescape")
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in raw):
        return raw
    letters = [
        f"\\{chr(byte)}" if byte in b'"\\' else chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"
        for byte in raw
    ]
    return f'"{"".join(letters)}"'.encode()


def _with_tab(name: bytes) -> bytes:
    """`patch` takes a name with spaces for a name and a date, unless a tab ends it."""
    return name + b"\t" if b" " in name and not name.startswith(b'"') else name


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _is_binary(content: bytes) -> bool:
    return b"\0" in content[:_LOOKED_AT_FOR_TEXT]


def _lines(content: bytes) -> list[bytes]:
    *ended, rest = content.split(b"\n")
    return [line + b"\n" for line in ended] + [rest] * bool(rest)


def _binary(old: bytes, new: bytes) -> Iterator[bytes]:
    """Both directions, so that the patch can be taken back."""
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
