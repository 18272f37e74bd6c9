"""Which paths differ between two trees of the pool, as raw facts, at a cost that depends on the change.

On btrfs the kernel compares two read-only snapshots block by block, skips what they share, and writes the
difference as a stream of commands that would turn one into the other (what `btrfs send` sends, here without
file data). The stream only says which paths to look at, because it creates files under temporary names,
moves folders away and back, and uses any one of the names of a file. It is replayed on a tree in memory to
learn which paths are concerned, and then those are read in both snapshots. On other file systems, and where
the kernel cannot compare, both trees are walked. Both ways give the same result (tests compare them), and
only what really differs is in it: a file that was rewritten with the same bytes is not.

Paths are relative to the tree. What lies deeper than a path can name (LONGEST_PATH) is not compared.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from waypoint.errors import NotFound
from waypoint.kernel import files
from waypoint.kernel.files import Entry
from waypoint.kernel.pool import subvolume
from waypoint.kernel.syscalls import ioctl_number

# <linux/btrfs.h>
BTRFS_IOC_SEND = ioctl_number(1, 0x94, 38, 72)
BTRFS_SEND_FLAG_NO_FILE_DATA = 1 << 0
BTRFS_SEND_STREAM_MAGIC = b"btrfs-stream\0"

# enum btrfs_send_cmd, version 1 of the stream
C_SUBVOL, C_SNAPSHOT = 1, 2
C_MKFILE, C_MKDIR, C_MKNOD, C_MKFIFO, C_MKSOCK, C_SYMLINK = 3, 4, 5, 6, 7, 8
C_RENAME, C_LINK, C_UNLINK, C_RMDIR = 9, 10, 11, 12
C_SET_XATTR, C_REMOVE_XATTR = 13, 14
C_WRITE, C_CLONE, C_TRUNCATE = 15, 16, 17
C_CHMOD, C_CHOWN, C_UTIMES = 18, 19, 20
C_END, C_UPDATE_EXTENT = 21, 22

# enum of its attributes
A_SIZE, A_PATH, A_PATH_TO, A_PATH_LINK, A_FILE_OFFSET = 4, 15, 16, 17, 18

LONGEST_PATH = 3800
"""In bytes. The kernel takes 4095 in one call, and the tree's own path comes before these."""

_MAKING = frozenset({C_MKFILE, C_MKDIR, C_MKNOD, C_MKFIFO, C_MKSOCK, C_SYMLINK})
_NAMING: Final = frozenset({C_RENAME, C_LINK})
_HEADER = struct.Struct("<IHI")
_ATTRIBUTE = struct.Struct("<HH")
_PIPE_BYTES = 1 << 20
_CLOCK_SLACK_NS = 1_000_000_000

What = Literal["type", "content", "mode", "owner", "xattr", "times"]
Skip = Callable[[str], bool]
"""Called with the first component of a path; true means that it is not compared."""


class Delta(NamedTuple):
    """One path that differs: it was added, removed, moved or changed."""

    path: str
    """In the new tree; in the old tree when it was removed."""
    old_path: str | None
    """Where the same file was in the old tree, also when only a folder above it has moved."""
    before: Entry | None
    after: Entry | None
    renamed: bool
    """It has another name or another folder; false when only a folder above it has moved."""
    what: frozenset[What]
    """In which ways it has changed; empty for what was added, removed or only moved."""


class CannotCompare(Exception):
    """Raised when the kernel's stream cannot be had, or not be relied on, for these two trees."""


def differences(old: Path | None, new: Path, *, skip: Skip | None = None) -> list[Delta]:
    """What differs between two trees, ordered by path; `old` None stands for an empty tree.

    Neither may change meanwhile; on btrfs, neither can be deleted meanwhile.
    """
    for tree in (old, new):
        if tree is not None and not tree.is_dir():
            raise NotFound(f"the tree {tree} does not exist", path=str(tree))
    if old is not None:
        with contextlib.suppress(CannotCompare, OSError):
            return by_send(old, new, skip=skip)
    return by_walk(old, new, skip=skip)


# ---- the kernel's stream ------------------------------------------------------------------------


def _identity(fd: int) -> tuple[bytes, int]:
    """The file system of a descriptor, and the id of its subvolume, which has to be read-only."""
    try:
        file_system, readonly = subvolume.file_system_id(fd), subvolume.is_readonly(fd)
    except OSError as error:
        raise CannotCompare from error
    if not readonly or not subvolume.is_root(os.fstat(fd)):
        raise CannotCompare
    return file_system, subvolume.tree_id(fd)


class _SendStream:
    """The stream of one comparison, as a pipe to read from. A thread waits in the kernel, which writes it."""

    def __init__(self, old: int, new: int) -> None:
        old_system, parent = _identity(old)
        new_system, _ = _identity(new)
        if old_system != new_system:
            raise CannotCompare
        self._tree = os.dup(new)
        self._reader, self._writer = os.pipe()
        with contextlib.suppress(OSError):  # many pipes are open: a small one does as well
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._request = bytearray(
            struct.pack("=qQQQQI28x", self._writer, 0, 0, parent, BTRFS_SEND_FLAG_NO_FILE_DATA, 0)
        )
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._send, name="send", daemon=True)
        self._thread.start()

    def _send(self) -> None:
        # A signal would interrupt the stream, or start it again.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            fcntl.ioctl(self._tree, BTRFS_IOC_SEND, self._request)
        except OSError as error:
            self._failure = error
        finally:
            os.close(self._writer)

    def read(self) -> bytes:
        return os.read(self._reader, _PIPE_BYTES)

    def close(self) -> None:
        """Ends the stream, complete or not; raises the kernel's error."""
        os.close(self._reader)
        self._thread.join()
        os.close(self._tree)
        if self._failure:
            raise self._failure


Command = tuple[int, str, str, int, int]
"""A command, its path, its other path (rename, link), its offset and length (extents)."""


def parse_stream(read: Callable[[], bytes]) -> Iterator[Command]:
    """The commands of a send stream, version 1, that concern a path."""
    buffer = bytearray()

    def need(count: int) -> None:
        while len(buffer) < count:
            data = read()
            if not data:
                raise CannotCompare("the stream ends too early")
            buffer.extend(data)

    start = len(BTRFS_SEND_STREAM_MAGIC) + 4
    need(start)
    if not buffer.startswith(BTRFS_SEND_STREAM_MAGIC) or buffer[start - 4] != 1:
        raise CannotCompare("not a stream of version 1")
    del buffer[:start]
    at = 0
    while True:
        if len(buffer) < at + _HEADER.size:
            del buffer[:at]
            at = 0
            need(_HEADER.size)
        length, command, _ = _HEADER.unpack_from(buffer, at)
        if len(buffer) < at + _HEADER.size + length:
            del buffer[:at]
            at = 0
            need(_HEADER.size + length)
        at += _HEADER.size
        end = at + length
        if command == C_END:
            return
        if command > C_UPDATE_EXTENT:
            raise CannotCompare(f"command {command} is none of version 1")
        path, other, offset, size = bytearray(), bytearray(), 0, 0
        while at < end:
            if end - at < _ATTRIBUTE.size:
                raise CannotCompare("an attribute is cut off")
            kind, count = _ATTRIBUTE.unpack_from(buffer, at)
            at += _ATTRIBUTE.size
            if kind == A_PATH:
                path = buffer[at : at + count]
                if command not in _NAMING and command != C_UPDATE_EXTENT:
                    break
            elif kind in (A_PATH_TO, A_PATH_LINK):
                other = buffer[at : at + count]
            elif kind == A_FILE_OFFSET:
                offset = int.from_bytes(buffer[at : at + count], "little")
            elif kind == A_SIZE:
                size = int.from_bytes(buffer[at : at + count], "little")
            at += count
        at = end
        if command > C_SNAPSHOT:
            yield command, os.fsdecode(bytes(path)), os.fsdecode(bytes(other)), offset, size


class _Node:
    """A file or folder while the stream is replayed. `origin` is its old path, None when it is new."""

    __slots__ = ("attributed", "children", "names", "origin", "place", "ranges", "touched")

    def __init__(self, origin: str | None, place: tuple[_Node, str] | None) -> None:
        self.origin = origin
        self.place = place
        """The folder and the name that it had at the beginning."""
        self.names: dict[tuple[_Node, str], None] = {place: None} if place else {}
        self.children: dict[str, _Node | None] = {}
        """As far as they are known; None for a name that was removed."""
        self.touched = False
        self.attributed = False
        self.ranges: list[tuple[int, int]] | None = []
        """Where its bytes may differ; None for anywhere."""


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


class _Replay:
    """The tree in memory on which a stream is replayed. It has only the paths that the stream names."""

    def __init__(self) -> None:
        self.root = _Node("", None)
        self.seen: list[_Node] = []
        """All nodes that a command was about."""
        self._folders = {self.root: ""}

    def find(self, path: str) -> _Node:
        """The node that has this path now."""
        node = self.root
        if not path:
            return node
        for name in path.split("/"):
            child = node.children.get(name)
            if child is None:
                if name in node.children or node.origin is None:
                    raise CannotCompare(f"the stream names {path!r}, which does not exist")
                child = _Node(_joined(node.origin, name), (node, name))
                node.children[name] = child
            node = child
        return node

    def folder_path(self, folder: _Node) -> str:
        """The path of a folder after the stream has ended."""
        steps = []
        while folder not in self._folders:
            above, name = next(iter(folder.names))
            steps.append((folder, name))
            folder = above
        path = self._folders[folder]
        for step, name in reversed(steps):
            path = self._folders[step] = _joined(path, name)
        return path

    def _bind(self, path: str, node: _Node) -> None:
        parent, name = _split(path)
        folder = self.find(parent)
        if folder.children.get(name) is not None:
            self._unbind(path)
        folder.children[name] = node
        node.names[folder, name] = None

    def _unbind(self, path: str) -> _Node:
        node = self.find(path)
        parent, name = _split(path)
        folder = self.find(parent)
        folder.children[name] = None
        del node.names[folder, name]
        return node

    def _see(self, node: _Node) -> _Node:
        if not node.touched:
            node.touched = True
            self.seen.append(node)
        return node

    def run(self, commands: Iterable[Command]) -> None:
        last_path, last = "", self.root
        for command, path, other, offset, size in commands:
            if command in _MAKING:
                self._bind(path, self._see(_Node(None, None)))
                last_path = ""
            elif command == C_RENAME:
                self._bind(other, self._see(self._unbind(path)))
                last_path = ""
            elif command == C_LINK:
                self._bind(path, self._see(self.find(other)))
                last_path = ""
            elif command in (C_UNLINK, C_RMDIR):
                self._see(self._unbind(path))
                last_path = ""
            else:
                if not last_path or path != last_path:
                    last_path, last = path, self._see(self.find(path))
                if command in (C_SET_XATTR, C_REMOVE_XATTR):
                    last.attributed = True
                elif command == C_UPDATE_EXTENT and last.ranges is not None:
                    last.ranges.append((offset, size))
                elif command in (C_WRITE, C_CLONE):
                    last.ranges = None


def by_send(old: Path, new: Path, *, skip: Skip | None = None) -> list[Delta]:
    """The differences of two read-only snapshots, from the kernel's own comparison."""
    old_fd = os.open(old, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        new_fd = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            replay = _Replay()
            stream = _SendStream(old_fd, new_fd)
            try:
                replay.run(parse_stream(stream.read))
            except BaseException:
                try:
                    stream.close()
                except OSError as error:
                    raise CannotCompare(str(error)) from error
                raise
            stream.close()
            return _compare_replay(replay, str(old), str(new), new_fd, skip or _nothing)
        finally:
            os.close(new_fd)
    finally:
        os.close(old_fd)


def _nothing(_: str) -> bool:
    return False


def _compare_replay(replay: _Replay, old: str, new: str, new_fd: int, skip: Skip) -> list[Delta]:
    """The differences at the paths of the replayed stream, read in both snapshots."""

    def origin(folder: str) -> str | None:
        return replay.find(folder).origin

    comparison = _Comparison(old, new, origin, by_send=True)
    nodes = {"": replay.root}
    skipped: list[str] = []
    if replay.root.touched:
        comparison.add_pair("", "")
    for node in replay.seen:
        if node.origin and node.place not in node.names and not skip(_first(node.origin)):
            comparison.add_removed(node.origin)
        compared = left_out = ""
        for folder, name in node.names:
            path = _joined(replay.folder_path(folder), name)
            nodes[path] = node
            if skip(_first(path)):
                left_out = path
            elif node.origin and (folder, name) == node.place:
                comparison.add_pair(node.origin, compared := path)
            else:
                comparison.add_new(compared := path)
        if left_out and not compared:
            skipped.append(left_out)

    def hints(path: str) -> tuple[bool, list[tuple[int, int]] | None]:
        node = nodes.get(path)
        return (node.attributed, node.ranges) if node else (True, None)

    comparison.hints = hints
    deltas = comparison.deltas()
    # A stream uses one of the names of a file: what has changed has changed under all of them.
    linked = [(delta.after, delta.path) for delta in deltas if delta.after and delta.what]
    linked += [(after, path) for path in skipped if (after := files.look(f"{new}/{path}"))]
    done = set()
    for after, known in linked:
        if after.is_folder or after.links < 2 or after.inode in done:
            continue
        done.add(after.inode)
        for path in subvolume.names_of(new_fd, after.inode):
            if path not in comparison.compared and not skip(_first(path)):
                nodes[path] = nodes[known]
                before = replay.find(path).origin
                if before is not None:
                    deltas += comparison.compare(before, path, renamed=False)
    return sorted(deltas, key=_order)


def _first(path: str) -> str:
    return path.partition("/")[0]


def _order(delta: Delta) -> tuple[str, bool]:
    return delta.path, delta.after is not None


# ---- the walk -----------------------------------------------------------------------------------


def by_walk(old: Path | None, new: Path, *, skip: Skip | None = None) -> list[Delta]:
    """The differences of any two trees, by reading all of both."""
    skip = skip or _nothing
    if old is None:
        entries = _everything(str(new), "", skip)
        added = [Delta(path, None, None, after, False, frozenset()) for path, after in entries]
        return sorted(added, key=_order)
    old_made_at, new_made_at = _made_at(old), _made_at(new)
    same_inodes = old_made_at is not None and new_made_at is not None
    pairs: dict[str, str] = {"": ""}
    comparison = _Comparison(str(old), str(new), pairs.get, same_inodes=same_inodes)
    comparison.unchanged_before_ns = (old_made_at or 0) - _CLOCK_SLACK_NS
    comparison.add_pair("", "")
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        before, after = _folder(old, folder, skip), _folder(new, folder, skip)
        for name in sorted({*before, *after}):
            path = _joined(folder, name)
            one, other = before.get(name), after.get(name)
            if one and other and _same_thing(one, other, same_inodes=same_inodes):
                comparison.add_pair(path, path, one, other)
                if one.is_folder:
                    pairs[path] = path
                    if len(os.fsencode(path)) < LONGEST_PATH:
                        waiting.append(path)
                continue
            for entry, tree, add in ((one, old, comparison.add_removed), (other, new, comparison.add_new)):
                if entry:
                    add(path, entry)
                    if entry.is_folder:
                        for below, its_entry in _everything(str(tree), path, _nothing):
                            add(below, its_entry)
    return sorted(comparison.deltas(), key=_order)


def _made_at(tree: Path) -> int | None:
    """When a tree on btrfs was made, in nanoseconds; None elsewhere, where inode numbers identify nothing."""
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        made_at_ns = subvolume.made_at_ns(fd)
        return made_at_ns if subvolume.is_root(os.fstat(fd)) else None
    except OSError:
        return None
    finally:
        os.close(fd)


def _same_thing(one: Entry, other: Entry, *, same_inodes: bool) -> bool:
    if stat.S_IFMT(one.mode) != stat.S_IFMT(other.mode):
        return False
    return not same_inodes or one.inode == other.inode


def _folder(tree: Path, folder: str, skip: Skip) -> dict[str, Entry]:
    entries = {}
    for name in files.names(f"{tree}/{folder}"):
        if (folder or not skip(name)) and (entry := files.look(f"{tree}/{_joined(folder, name)}")):
            entries[name] = entry
    return entries


def _everything(tree: str, top: str, skip: Skip) -> Iterator[tuple[str, Entry]]:
    """All that is below a folder, parents first, without the folder itself."""
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        below = _folder(Path(tree), folder, skip)
        for name, entry in below.items():
            path = _joined(folder, name)
            yield path, entry
            if entry.is_folder and len(os.fsencode(path)) < LONGEST_PATH:
                waiting.append(path)


# ---- the comparison -----------------------------------------------------------------------------


class _Comparison:
    """Decides what is the same file at another place, what has replaced what, and in which ways two differ.

    Callers add the old paths that no longer hold what they held (`add_removed`), the new paths that hold
    something else than before (`add_new`), and the pairs that may have changed (`add_pair`).
    """

    def __init__(
        self,
        old: str,
        new: str,
        origin: Callable[[str], str | None],
        *,
        same_inodes: bool = True,
        by_send: bool = False,
    ) -> None:
        self.old, self.new, self.same_inodes, self.by_send = old, new, same_inodes, by_send
        self.unchanged_before_ns = 0
        """A file with the same change time (ctime) before this has not changed. Later ones may have: the
        clock ticks every few milliseconds, so a change just before a snapshot looks like one just after
        it."""
        self.compared: set[str] = set()
        """New paths that were compared."""
        self.hints: Callable[[str], tuple[bool, list[tuple[int, int]] | None]] = lambda _: (True, None)
        """For a new path: whether attributes may differ, and where its bytes may (None: anywhere)."""
        self._origin = origin
        self._removed: dict[str, Entry] = {}
        self._new: dict[str, Entry] = {}
        self._pairs: list[tuple[str, str, Entry | None, Entry | None]] = []
        self._moved: dict[str, str] = {}
        """New folders, and the old ones that they are or replace."""

    def add_removed(self, path: str, before: Entry | None = None) -> None:
        if before := before or files.look(f"{self.old}/{path}"):
            self._removed[path] = before

    def add_new(self, path: str, after: Entry | None = None) -> None:
        if after := after or files.look(f"{self.new}/{path}"):
            self._new[path] = after

    def add_pair(self, old: str, new: str, before: Entry | None = None, after: Entry | None = None) -> None:
        self._pairs.append((old, new, before, after))

    def deltas(self) -> list[Delta]:
        matches = self._match()
        deltas = []
        for old, new, before, after in self._pairs:
            deltas += self.compare(old, new, before, after, renamed=False)
        unmatched = dict(self._removed)
        for new, after in self._new.items():
            if new in matches:
                old = matches[new]
                renamed = self._place(new) != old
                deltas += self.compare(old, new, unmatched.pop(old), after, renamed=renamed)
            else:
                self.compared.add(new)
                deltas.append(Delta(new, None, None, after, False, frozenset()))
        deltas += [Delta(path, path, before, None, False, frozenset()) for path, before in unmatched.items()]
        return deltas

    def _place(self, path: str) -> str | None:
        """The old path of this new path, if only the folders above it had moved."""
        folder, name = _split(path)
        above = self._moved[folder] if folder in self._moved else self._origin(folder)
        if folder in self._new and folder not in self._moved:
            return None
        return None if above is None else _joined(above, name)

    def _match(self) -> dict[str, str]:
        """For new paths, the old ones of the same files, or of those that they have replaced."""
        matches: dict[str, str] = {}
        free = set(self._removed)

        def match(new: str, old: str) -> None:
            matches[new] = old
            free.discard(old)
            if self._new[new].is_folder:
                self._moved[new] = old

        added = sorted(self._new)
        by_inode: dict[int, list[str]] = {}
        if self.same_inodes:
            for path in sorted(self._removed):
                by_inode.setdefault(self._removed[path].inode, []).append(path)
        candidates = [path for path in added if self._new[path].inode in by_inode]
        candidates.sort(key=lambda path: not self._new[path].is_folder)
        # First what has its old name in its old folder, wherever that is now; then the other names.
        for same_folder in (True, False):
            for new in candidates:
                if new in matches:
                    continue
                olds = [old for old in by_inode[self._new[new].inode] if old in free]
                olds = [old for old in olds if self._same_object(old, new)]
                if same_folder and not self._new[new].is_folder:
                    place = self._place(new)
                    olds = [old for old in olds if old == place]
                if olds:
                    match(new, olds[0])
        for new in added:
            if new not in matches and (place := self._place(new)) in free and place is not None:
                match(new, place)
        return matches

    def _same_object(self, old: str, new: str) -> bool:
        """Two trees may use one inode number for different files; their birth times differ then."""
        before, after = self._removed[old], self._new[new]
        if stat.S_IFMT(before.mode) == stat.S_IFMT(after.mode):
            if files.birth_time(f"{self.old}/{old}") == files.birth_time(f"{self.new}/{new}"):
                return True
            if self.by_send and after.is_folder:
                # The stream confuses the two folders, and says nothing about files that both have.
                raise CannotCompare(f"{old} and {new} have one inode and are not the same")
        return False

    def compare(
        self, old: str, new: str, before: Entry | None = None, after: Entry | None = None, *, renamed: bool
    ) -> list[Delta]:
        """The delta of a path and what it was before; none if nothing differs."""
        self.compared.add(new)
        before = before or files.look(f"{self.old}/{old}")
        after = after or files.look(f"{self.new}/{new}")
        if before is None and after is None:
            return []
        if before is None or after is None:
            path, old_path = (new if after else old), (old if before else None)
            return [Delta(path, old_path, before, after, False, frozenset())]
        what = self._what(old, new, before, after)
        return [Delta(new, old, before, after, renamed, what)] if what or renamed else []

    def _what(self, old: str, new: str, before: Entry, after: Entry) -> frozenset[What]:
        if self.same_inodes and before == after and after.ctime_ns < self.unchanged_before_ns:
            return frozenset()
        one, other = f"{self.old}/{old}", f"{self.new}/{new}"
        attributed, ranges = self.hints(new)
        what: set[What] = set()
        if stat.S_IFMT(before.mode) != stat.S_IFMT(after.mode):
            if self.by_send and before.inode == after.inode:
                raise CannotCompare(f"{old} and {new} have one inode and are not the same")
            what.add("type")
        elif after.is_file:
            if before.inode != after.inode or not self.same_inodes:
                attributed, ranges = True, None
            if before.size != after.size or (ranges != [] and not files.same_content(one, other, ranges)):
                what.add("content")
        elif after.is_link:
            if files.target(one) != files.target(other):
                what.add("content")
        elif after.kind == "device" and before.rdev != after.rdev:
            what.add("content")
        if stat.S_IMODE(before.mode) != stat.S_IMODE(after.mode):
            what.add("mode")
        if (before.uid, before.gid) != (after.uid, after.gid):
            what.add("owner")
        if (attributed or before.inode != after.inode) and files.attributes(one) != files.attributes(other):
            what.add("xattr")
        if before.mtime_ns != after.mtime_ns:
            what.add("times")
        return frozenset(what)
