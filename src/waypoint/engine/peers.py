"""Who made a unix connection, as SO_PEERCRED tells the process at its other end.

The kernel writes it down when listen(), connect() or socketpair() is called: number, user and groups of the
caller. CRIU makes every connection anew, as root, so that an unprivileged client would be root to its server
after a restore. While a tree is saved native/shim.c reads what the kernel knows of each socket; before it is
restored native/peers.c makes the connections once more, as the processes that had made them. A socket's place
in that plan is part of its type in CRIU's images, which CRIU hands to socket() and socketpair() unseen.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from waypoint.box.box import Box
from waypoint.box.plan import ENGINE_IN_BOX
from waypoint.engine.images import Listener, Maker, Pair, Peers, decode, encode, fields
from waypoint.engine.unrestorable import NOT_ACCEPTED
from waypoint.errors import CannotRestore
from waypoint.kernel import processes, readiness, userns
from waypoint.kernel.network import sockets
from waypoint.kernel.processes import Process

FIRST_HELPER_PID = 3_000_000
"""Helpers of a restore get numbers from here: no process of a tree has one that large."""
_MAKE_SECONDS = 30.0
_RECORD = struct.Struct("=IiIII")
"""struct peer in native/shim.c"""
_MARK, _LISTENER, _SHIFT = 1 << 30, 1 << 29, 4
"""PEER_MARK, PEER_LISTENER and PEER_SHIFT in native/waypoint.h"""
_MAX_LISTENER_NUMBERS = 8192
"""How many numbers may describe those that listen: they are in CRIU's environment."""
_FILE_TYPE, _FILE_USK, _FILE_TYPE_UNIXSK = 1, 16, 5  # file_entry
_INO, _TYPE, _STATE, _PEER, _NAME, _FILE_PERMS, _NAME_DIR, _DELETED = (
    2,
    3,
    4,
    8,
    11,
    13,
    14,
    15,
)  # unix_sk_entry
_ESTABLISHED, _LISTEN = 1, 10
_ABSTRACT = b"\0"
"""The first byte of a name that is no path."""
_AMBIGUOUS = (
    "it has one of several unix connections of one name, and which of them is bound to it is not known"
)


Names = Collection[tuple[int, bytes]]
"""Names of unix sockets. Sockets of two types may have the same one."""
_Entry = Mapping[int, int | bytes]


_NO_PEER = 0xFFFFFFFF
"""The user of a socket that has no peer the kernel knows."""


class CannotMake(Exception):
    """Raised for a socket whose peer could not be made again: its inode, and why."""

    def __init__(self, inode: int, reason: str) -> None:
        super().__init__(inode, reason)
        self.inode, self.reason = inode, reason


# ---- while a tree is saved -----------------------------------------------------------------------


def read_makers(records: int, *, in_userns: bool = False) -> dict[int, Maker]:
    """What the shim has written: the maker of each unix socket's other end, by the socket's inode. (Of a
    listening socket: who called listen().) `in_userns`: the kernel has told it the host's ids."""
    data = os.pread(records, os.fstat(records).st_size, 0)
    makers = {}
    at = 0
    while at < len(data):
        inode, pid, uid, gid, count = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        groups = struct.unpack_from(f"={count}I", data, at)
        at += 4 * count
        if in_userns and uid != _NO_PEER:
            uid, gid, groups = userns.to_inner(uid), userns.to_inner(gid), tuple(map(userns.to_inner, groups))
        if uid != _NO_PEER:
            makers[inode] = Maker(
                pid=pid if 1 < pid < FIRST_HELPER_PID else 0, uid=uid, gid=gid, groups=groups
            )
    return makers


def names_in_use(images: Path, box: Box) -> Names:
    """The abstract names of connections in the images that a socket is bound to. The tree stands still."""
    names = set()
    for _, _, entry in _read_files(images):
        name = _name(entry)[0] if entry else b""
        if name.startswith(_ABSTRACT) and entry[_STATE] == _ESTABLISHED and entry[_TYPE] != socket.SOCK_DGRAM:
            names.add((int(entry[_TYPE]), name))
    if not names:
        return frozenset()
    namespace = box.open_namespace("net")
    try:
        return sockets.abstract_names_in_use(namespace, names)
    finally:
        os.close(namespace)


def _read_files(images: Path) -> Iterator[tuple[int, int, _Entry]]:
    """Where each entry of files.img starts and ends; and of a unix socket, what is in it."""
    path = images / "files.img"
    data = path.read_bytes() if path.exists() else b""
    at = 8
    while at + 4 <= len(data):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "little")
        # The type is the first field: all other entries need not be decoded.
        is_unix = data[start : start + 2] == bytes((_FILE_TYPE << 3, _FILE_TYPE_UNIXSK))
        yield start, at, decode(decode(data[start:at])[_FILE_USK]) if is_unix else {}


class _Sockets:
    """The unix sockets in CRIU's images, and how they are to be made again."""

    def __init__(self, makers: Mapping[int, Maker], tree: Sequence[Process], in_use: Names) -> None:
        self._makers, self._tree, self._in_use = makers, tree, in_use
        self.entries: dict[int, _Entry] = {}
        self.types: dict[int, int] = {}
        """Their types for the images, by inode, where they change."""
        self.pairs: list[Pair] = []
        self.listeners: dict[Maker, int] = {}
        self._bound: frozenset[int] = frozenset()
        """The ends of connections that are bound to the abstract name that they have."""

    def plan(self) -> None:
        self._bound = frozenset(self._find_bound())
        for inode, entry in self.entries.items():
            if inode in self.types or inode not in self._makers:
                continue
            peer = self.entries.get(int(entry[_PEER]))
            if entry[_STATE] == _LISTEN:
                self._plan_listener(inode, entry)
            elif peer and peer[_STATE] == _LISTEN:
                # The kernel does not tell what the accepted end will be told. CRIU connects as root.
                if not all(map(_is_root, self._tree)):
                    raise CannotMake(inode, NOT_ACCEPTED)
            elif entry[_TYPE] == socket.SOCK_DGRAM and not (peer and _is_nameless(entry, peer)):
                pass  # CRIU compares the type of these; the shim keeps them from having root for a peer
            elif peer is None:
                self._plan_left_end(inode, entry)
            elif peer[_PEER] == inode and int(peer[_INO]) in self._makers:
                self._plan_pair(inode, entry, int(peer[_INO]), peer)

    def _find_bound(self) -> Iterator[int]:
        """An end that accept() has made has an abstract name too, its listener's, and is not bound to it."""
        named: dict[tuple[int, bytes], list[int]] = {}
        for inode, entry in self.entries.items():
            named.setdefault((int(entry[_TYPE]), _name(entry)[0]), []).append(inode)
        for name in self._in_use:
            inodes = named.get(name, [])
            if any(self.entries[inode][_STATE] != _ESTABLISHED for inode in inodes):
                continue  # that one is
            if len(inodes) > 1:  # who connected is connected to a name
                inodes = [inode for inode in inodes if self._is_named_or_closed(self.entries[inode][_PEER])]
            if len(inodes) > 1:
                raise CannotMake(inodes[0], _AMBIGUOUS)
            yield from inodes

    def _is_named_or_closed(self, inode: int | bytes) -> bool:
        entry = self.entries.get(int(inode))
        return entry is None or bool(_name(entry)[0])

    def _plan_listener(self, inode: int, entry: _Entry) -> None:
        maker = self._makers[inode]
        number = self.listeners.setdefault(maker, len(self.listeners))
        if sum(3 + len(other.groups) for other in self.listeners) > _MAX_LISTENER_NUMBERS:
            raise CannotMake(inode, "it is one of too many that listen on unix sockets")
        self.types[inode] = int(entry[_TYPE]) | _MARK | _LISTENER | number << _SHIFT

    def _plan_pair(self, first: int, entry: _Entry, second: int, peer: _Entry) -> None:
        # The accepted end has its listener's name, and becomes the second one: made the other way round, the
        # connection would occupy that name.
        if self._is_accepted(first, entry, second, peer):
            first, entry, second, peer = second, peer, first, entry
        name, folder = _name(entry)
        accepted_name, accepted_folder = _name(peer)
        connector, acceptor = self._makers[second], self._makers[first]
        if first in self._bound and connector == acceptor and (second in self._bound or not accepted_name):
            # Nothing was accepted: socketpair() made both.
            twins = Pair(
                type=int(entry[_TYPE]), maker=connector, name=name, folder=folder, second_name=accepted_name
            )
            self._add(twins, first, second)
            return
        listener = None
        if connector != acceptor or name or accepted_name:
            listener = Listener(
                maker=acceptor, type=int(entry[_TYPE]), name=accepted_name, folder=accepted_folder
            )
        self._add(
            Pair(type=int(entry[_TYPE]), maker=connector, listener=listener, name=name, folder=folder),
            first,
            second,
        )

    def _is_accepted(self, first: int, entry: _Entry, second: int, peer: _Entry) -> bool:
        """Whether the first end of a connection is the accepted one."""
        if (first in self._bound) != (second in self._bound):
            return second in self._bound
        name = _name(entry)
        return bool(name[0]) and (
            not _name(peer)[0] or name[0].startswith(_ABSTRACT) or self._is_listening(name)
        )

    def _plan_left_end(self, inode: int, entry: _Entry) -> None:
        """The other end is closed: CRIU makes a pair, and closes one. An accepted end has a name already."""
        kind, maker, (name, folder) = int(entry[_TYPE]), self._makers[inode], _name(entry)
        if inode in self._bound:
            self._add(Pair(type=kind, maker=maker, name=name, folder=folder), inode)
            return
        listener = Listener(maker=maker, type=kind, name=name, folder=folder) if name else None
        self._add(Pair(type=kind, maker=maker, listener=listener), None, inode)

    def _is_listening(self, name: tuple[bytes, str]) -> bool:
        return any(entry[_STATE] == _LISTEN and _name(entry) == name for entry in self.entries.values())

    def _add(self, pair: Pair, *inodes: int | None) -> None:
        for side, inode in enumerate(inodes):
            if inode is not None:
                self.types[inode] = pair.type | _MARK | (len(self.pairs) * 2 + side) << _SHIFT
        self.pairs.append(pair)


def _name(entry: _Entry) -> tuple[bytes, str]:
    name, folder = entry.get(_NAME, b""), entry.get(_NAME_DIR, b"")
    assert isinstance(name, bytes)
    assert isinstance(folder, bytes)
    return name, os.fsdecode(folder)


def _is_nameless(*entries: Mapping[int, int | bytes]) -> bool:
    return not any(_name(entry)[0] for entry in entries)


def _is_root(process: Process) -> bool:
    with contextlib.suppress(OSError):
        status = processes.read_status(process.host_pid)
        return not any(processes.inner_ids(process.host_pid, status, "Uid"))
    return False


def correct_images(
    images: Path, makers: Mapping[int, Maker], tree: Sequence[Process], in_use: Names
) -> Peers:
    """Writes into the images which connection each socket is one end of. Returns how to make them. `in_use`:
    from `names_in_use`."""
    path = images / "files.img"
    if not makers or not path.exists():
        return Peers()
    planned = _Sockets(makers, tree, in_use)
    frames = [*_read_files(images)]
    planned.entries = {int(entry[_INO]): entry for _, _, entry in frames if entry}
    planned.plan()
    if planned.types:
        data = path.read_bytes()
        out = [data[:8]]
        for start, end, entry in frames:
            body = data[start:end]
            kind = planned.types.get(int(entry[_INO])) if entry else None
            if kind is not None:
                body = _with_type(body, kind)
            out += [len(body).to_bytes(4, "little"), body]
        path.write_bytes(b"".join(out))
    return Peers(pairs=tuple(planned.pairs), listeners=tuple(planned.listeners))


def _with_type(entry: bytes, kind: int) -> bytes:
    """The entry of a socket with another type. The end of a connection loses its name: peers.c binds it, and
    CRIU would remove the file that has the name by now."""
    changed: dict[int, int | bytes | None] = {_TYPE: kind}
    if not kind & _LISTENER:
        changed |= {_NAME: b"", _FILE_PERMS: None, _NAME_DIR: None, _DELETED: None}
    out = []
    for number, value in fields(entry):
        if number == _FILE_USK and isinstance(value, bytes):
            parts = ((field, changed.get(field, old)) for field, old in fields(value))
            kept = (encode({field: part}) for field, part in parts if part is not None)
            out.append(encode({number: b"".join(kept)}))
        else:
            out.append(encode({number: value}))
    return b"".join(out)


def describe_differences(
    makers: Mapping[int, Maker],
    peers: Peers,
    tree: Sequence[tuple[Process, Mapping[int, str]]],
    *,
    shares_network: bool,
) -> Iterator[str]:
    """What unix sockets may tell differently after a restore. SO_PEERCRED of a listening socket: which
    process has called listen(). The first of those that hold it calls it again, and one that has ended: not
    another one. And names of connections, where other processes of the machine can have them."""
    if shares_network and any(_abstract_names(peers)):
        yield (
            "abstract names of unix connections are lost in a restore or fork that finds them in use by"
            " another process on the host's network"
        )
    taken = {number for process, _ in tree for number in (process.pid, process.group, process.session)}
    listening = set(peers.listeners)
    first: dict[int, Process] = {}
    for process, targets in tree:
        for target in targets.values():
            if target.startswith("socket:["):
                inode = int(target[8:-1])
                if inode not in first or process.pid < first[inode].pid:
                    first[inode] = process
    for inode, process in first.items():
        maker = makers.get(inode)
        if maker is not None and maker in listening and maker.pid != process.pid and maker.pid in taken:
            yield (
                f"process {process.pid} ({process.command}): after a restore clients of its unix socket"
                f" see it as their peer, not process {maker.pid} (SO_PEERCRED)"
            )


# ---- before it is restored -----------------------------------------------------------------------


def write_plan(peers: Peers, *, shares_network: bool = False) -> str:
    """What native/peers.c reads. `shares_network`: other processes of the machine may have a name."""
    makers = {maker: number for number, maker in enumerate(dict.fromkeys(_makers(peers)))}
    lines = [
        " ".join(map(str, ("maker", maker.pid, maker.uid, maker.gid, *maker.groups))) for maker in makers
    ]
    # What one maker does with one listener is a line.
    groups: dict[Listener | None, dict[Maker, list[str]]] = {}
    for number, pair in enumerate(peers.pairs):
        words = f"{pair.type} {2 * number}"
        groups.setdefault(pair.listener, {}).setdefault(pair.maker, []).append(words)
    for listener, parts in groups.items():
        if listener:
            name = _words(listener.name, listener.folder)
            lines.append(f"listener {listener.type} {makers[listener.maker]} {name}")
        kind = "pairs" if listener else "twins"
        lines += (f"{kind} {makers[maker]} {' '.join(words)}" for maker, words in parts.items())
    for number, pair in enumerate(peers.pairs):
        ends = ((pair.name, pair.folder), (pair.second_name, ""))
        lines += (f"name {2 * number + end} {_words(*name)}" for end, name in enumerate(ends) if name[0])
    return "\n".join(["shared", *lines] if shares_network else lines)


def _abstract_names(peers: Peers) -> Iterator[bytes]:
    for pair in peers.pairs:
        names = (pair.name, pair.second_name, pair.listener.name if pair.listener else b"")
        yield from (name for name in names if name.startswith(_ABSTRACT))


def _makers(peers: Peers) -> Iterator[Maker]:
    for pair in peers.pairs:
        yield pair.maker
        if pair.listener:
            yield pair.listener.maker


def _words(name: bytes, folder: str) -> str:
    return f"{name.hex() or '-'} {os.fsencode(folder).hex() or '-'}"


@contextlib.contextmanager
def made(box: Box, peers: Peers, *, shares_network: bool) -> Iterator[list[str]]:
    """Makes the connections of a tree that is about to be restored, and keeps them until it has them. Yields
    what CRIU's environment has to have."""
    env = []
    if peers.listeners:
        records = [(maker.uid, maker.gid, maker.pid, *maker.groups) for maker in peers.listeners]
        env.append("WAYPOINT_LISTENERS=" + ",".join(":".join(map(str, record)) for record in records))
    if not peers.pairs:
        yield env
        return
    ours, theirs = socket.socketpair()
    with ours:
        with theirs, os.fdopen(os.memfd_create("peers"), "w") as plan:
            plan.write(write_plan(peers, shares_network=shares_network))
            plan.flush()
            program = str(ENGINE_IN_BOX / "bin" / "peers")
            argv = [program, "/proc/1/ns/user"] if box.userns else [program]
            holder = box.keeper.run("keep", [], argv, [plan.fileno(), theirs.fileno()])
        answer = _read_answer(ours)
        if answer != "ok":
            raise CannotRestore(f"unix connections could not be made again: {answer or 'no answer'}")
        yield [*env, f"WAYPOINT_HOLDER={holder}"]


def _read_answer(connection: socket.socket) -> str:
    """One line, written at once."""
    if not readiness.readable(connection.fileno(), _MAKE_SECONDS):
        return "no answer in time"
    return connection.recv(4096).decode(errors="replace").strip()
