"""Every file of a tree: kind, mode, owner, content, attributes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from typing import NamedTuple


class Entry(NamedTuple):
    """One path. `content`: the digest of a file, the target of a link, the number of a device."""

    kind: str
    mode: int
    owner: tuple[int, int]
    size: int
    content: bytes
    attributes: tuple[tuple[str, bytes], ...]

    @property
    def is_folder(self) -> bool:
        return self.kind == "folder"


Tree = dict[bytes, Entry]

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
}
_OTHER_FILE_SYSTEMS = (b"/proc", b"/sys", b"/dev")
_SHARED_MEMORY = b"/dev/shm"


class TreeReader:
    """Reads trees again and again. A file whose inode, size and times are known is not read again."""

    def __init__(self) -> None:
        self._digests: dict[tuple[int, int, int, int], bytes] = {}
        self.inodes: dict[bytes, tuple[int, int]] = {}
        """Inode and number of names of each file of the tree that was read last."""

    def read(self, root: str) -> Tree:
        """All of a root file system but for what is on /proc, /sys and /dev; /dev/shm is part of it."""
        tree: Tree = {}
        self.inodes = {}
        top = os.fsencode(root.rstrip("/"))
        waiting = [b"/"]
        if os.path.isdir(top + _SHARED_MEMORY):
            waiting.append(_SHARED_MEMORY)
        tree[b"/"] = self._entry(top + b"/", os.lstat(top + b"/."))
        while waiting:
            folder = waiting.pop()
            with os.scandir(top + folder) as names:
                for name in names:
                    path = folder.rstrip(b"/") + b"/" + name.name
                    with contextlib.suppress(FileNotFoundError):
                        about = name.stat(follow_symlinks=False)
                        entry = tree[path] = self._entry(top + path, about)
                        if not entry.is_folder:
                            self.inodes[path] = about.st_ino, about.st_nlink
                        elif path not in _OTHER_FILE_SYSTEMS:
                            waiting.append(path)
        return tree

    def _entry(self, path: bytes, about: os.stat_result) -> Entry:
        kind = _KINDS[stat.S_IFMT(about.st_mode)]
        content = b""
        if kind == "file":
            content = self._digest(path, about)
        elif kind == "link":
            content = os.readlink(path)
        elif kind == "device":
            content = str(about.st_rdev).encode()
        attributes: tuple[tuple[str, bytes], ...] = ()
        if kind != "link":
            with contextlib.suppress(OSError):
                names = os.listxattr(path, follow_symlinks=False)
                attributes = tuple(
                    (name, os.getxattr(path, name, follow_symlinks=False)) for name in sorted(names)
                )
        return Entry(
            kind=kind,
            mode=stat.S_IMODE(about.st_mode),
            owner=(about.st_uid, about.st_gid),
            size=0 if kind == "folder" else about.st_size,
            content=content,
            attributes=attributes,
        )

    def _digest(self, path: bytes, about: os.stat_result) -> bytes:
        key = about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
        if key not in self._digests:
            with open(path, "rb", buffering=0) as file:
                self._digests[key] = hashlib.file_digest(file, "blake2b").digest()[:16]
        return self._digests[key]


def differing(old: Tree, new: Tree) -> set[bytes]:
    """The paths at which two trees are not the same."""
    paths = {path for path, entry in old.items() if new.get(path) is not entry and new.get(path) != entry}
    return paths | (new.keys() - old.keys())
