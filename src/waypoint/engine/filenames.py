"""The regular files that the images of a dump name: CRIU opens them by path when it restores the tree.

A file that a process has open or mapped is in the images by its name, size and mode alone. If another file
has that name by then, the restore fails; so copies of the images can be made in which other names stand.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from waypoint.engine.images import WRITTEN_BY_RESTORES, decode, encode, read_image, spans

_FILES_IMAGE = "files.img"
_MAGIC_BYTES = 8

# The numbers of fields, and values of theirs, by message.
_FILE_TYPE, _FILE_REG = 1, 3  # file_entry
_FILE_TYPE_REG = 1
_REG_ID, _REG_NAME, _REG_SIZE, _REG_EXT, _REG_MODE = 1, 6, 8, 9, 10  # reg_file_entry
_REMAP_ORIG_ID = 1  # remap_file_path_entry


@dataclass(frozen=True)
class NamedFile:
    """A regular file as CRIU expects it at its path."""

    path: str
    size: int
    mode: int


def named_files(images: Path) -> Iterator[NamedFile]:
    """The regular files with a name that the tree of a dump had open, mapped, or ran. (CRIU itself saves
    those that have lost their names, an upgrade of the base included: a remap says from where.)"""
    seen = set()
    nameless = {entry.get(_REMAP_ORIG_ID) for entry in read_image(images / "remap-fpath.img")}
    for body in _entries(images / _FILES_IMAGE):
        regular = _regular(body)
        if regular is None:
            continue
        entry = decode(regular)
        name, mode = entry.get(_REG_NAME), int(entry.get(_REG_MODE, 0))
        if not isinstance(name, bytes) or not stat.S_ISREG(mode) or entry.get(_REG_EXT):
            continue
        if entry.get(_REG_ID) in nameless:
            continue
        path = os.fsdecode(name)
        if path.startswith("/") and path not in seen:
            seen.add(path)
            yield NamedFile(path, int(entry.get(_REG_SIZE, 0)), mode)


def copy_with_names(images: Path, folder: Path, names: Mapping[str, str]) -> None:
    """Makes `folder` a copy of the images in which some regular files have other names. Everything else is
    shared with the images by hard links."""
    folder.mkdir(mode=0o700)
    for entry in os.scandir(images):
        if entry.name not in {_FILES_IMAGE, *WRITTEN_BY_RESTORES}:
            os.link(entry.path, folder / entry.name)
    data = (images / _FILES_IMAGE).read_bytes()
    out = [data[:_MAGIC_BYTES]]

    def rename(name: bytes) -> bytes:
        return os.fsencode(names.get(os.fsdecode(name), os.fsdecode(name)))

    for body in _entries(images / _FILES_IMAGE):
        new_body = body
        if (regular := _regular(body)) is not None:
            renamed = _replaced(regular, _REG_NAME, rename)
            new_body = body.replace(encode({_FILE_REG: regular}), encode({_FILE_REG: renamed}))
        out.append(struct.pack("<I", len(new_body)) + new_body)
    (folder / _FILES_IMAGE).write_bytes(b"".join(out))


def _entries(path: Path) -> Iterator[bytes]:
    try:
        data, at = path.read_bytes(), _MAGIC_BYTES
    except FileNotFoundError:
        return
    while at + 4 <= len(data):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "little")
        yield data[start:at]


def _regular(body: bytes) -> bytes | None:
    """The description of a regular file, out of an entry for any file."""
    entry = decode(body)
    regular = entry.get(_FILE_REG)
    return regular if entry[_FILE_TYPE] == _FILE_TYPE_REG and isinstance(regular, bytes) else None


def _replaced(message: bytes, number: int, change: Callable[[bytes], bytes]) -> bytes:
    """A message with another value in one of its fields; the bytes of all others stay as they are."""
    out, at = b"", 0
    for field, value, end in spans(message):
        changes = field == number and isinstance(value, bytes)
        out += encode({number: change(value)}) if changes else message[at:end]  # type: ignore[arg-type]
        at = end
    return out
