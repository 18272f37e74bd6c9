"""Memory that comes later: the page server of a box, as the daemon uses it.

A tree with much memory is restored without most of it. The page server (native/pages.c) gives its processes
each page when they first use it, and outlives the daemon: the next one finds it by its socket in the run
folder.

A dump never meets memory that is missing: before one, everything that is missing is copied (`fill`), while
the tree runs. Then tracking moves to the daemon (`take_over`) and the server ends. Memory that was not
written since the restore counts as unchanged from there on, as after a restore of everything at once.
"""

from __future__ import annotations

import array
import contextlib
import errno
import logging
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from waypoint.box.box import Box
from waypoint.engine.freezer import Freezer
from waypoint.engine.images import area_starts, memory_bytes
from waypoint.errors import CannotCheckpoint, CannotRestore
from waypoint.kernel import cgroups, faults

log = logging.getLogger("waypoint")

_ANSWER_SECONDS = 20.0
_SLOWEST_BYTES_PER_SECOND = 16 << 20
_PACKET_BYTES = 65536
_LARGE_BYTES = 16 << 20
_SHARED_AREA_BYTES = 1 << 20


class LazyFailed(CannotRestore):
    """Raised when a tree could not be restored without its memory. It may be possible with all of it."""


def may_come_later(images: Path, at_least_bytes: int) -> bool:
    """Whether a restore of these images gains by it. Processes that were forked share pages that none has
    written; pages that come later are each process's own. So there must be no two such large processes."""
    sizes = memory_bytes(images)
    large = [pid for pid, size_bytes in sizes.items() if size_bytes >= _LARGE_BYTES]
    if sum(sizes.values()) < at_least_bytes:
        return False
    seen: set[int] = set()
    for pid in large if len(large) > 1 else ():
        starts = area_starts(images, pid, _SHARED_AREA_BYTES)
        if starts & seen:
            return False
        seen |= starts
    return True


class PageServer:
    """The page server of one box."""

    def __init__(self, box: Box, engine: Path | None = None, source: Path | None = None) -> None:
        """To start one: the folder of the engine, and the images of the point by the name that they keep."""
        self._box, self._engine, self._source = box, engine, source

    @classmethod
    def find(cls, box: Box) -> PageServer | None:
        """The one that serves a box, if there is one."""
        return cls(box) if box.pages_socket.exists() else None

    def start(self, images: Path) -> int:
        """Starts it. Returns the descriptor of CRIU's end of their connection."""
        try:
            return self._start(images)
        except (OSError, subprocess.SubprocessError) as error:
            raise LazyFailed(f"no page server can be started: {error}") from error

    def _start(self, images: Path) -> int:
        assert self._engine
        path = self._box.pages_socket
        with contextlib.ExitStack() as opened:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            opened.enter_context(ours)
            opened.enter_context(theirs)
            listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen(4)
            folder = os.open(images, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, folder)
            keeper = os.pidfd_open(self._box.pid)
            opened.callback(os.close, keeper)
            fds = (folder, ours.fileno(), listener.fileno(), keeper)
            subprocess.run(
                [f"waypoint-pages {self._box.id}", *map(str, fds), str(path), str(self._source or images)],
                executable=self._engine / "bin" / "pages",
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                check=True,
                timeout=faults.limit(_ANSWER_SECONDS),
            )
            return os.dup(theirs.fileno())

    def arm(self, host_pids: Mapping[int, int]) -> None:
        """All processes exist and none has run. `host_pids`: the host's numbers by those in the box."""
        pairs = [f"{pid}:{host_pid}" for pid, host_pid in host_pids.items()]
        try:
            with self._asking() as ask:
                missing = ask("arm", *pairs)
        except OSError as error:
            raise LazyFailed(f"its memory cannot come later: {self._why(error)}") from error
        log.debug("%s bytes of box %s come later", missing[0], self._box.id)

    @property
    def tracks(self) -> bool:
        """Whether it knows of any process what was written since the restore."""
        with contextlib.suppress(OSError), self._asking() as ask:
            return len(ask("tracked")) > 1
        return False

    def fill(self) -> tuple[Path, list[int]]:
        """Returns when nothing is missing: where the memory came from, and the processes (host pids) whose
        writes since then are known."""
        try:
            with self._asking() as ask:
                missing, *_ = ask("tracked")
                seconds = _ANSWER_SECONDS + int(missing) / _SLOWEST_BYTES_PER_SECOND
                faults.reach("pages.asked")
                ask("fill", seconds=seconds)
                faults.reach("pages.filled")
                source = " ".join(ask("images"))
                _, *tracked = ask("tracked")
        except OSError as error:
            raise CannotCheckpoint(
                f"memory of the session is still in the images it comes from: {self._why(error)}"
            ) from error
        return Path(source), [int(pid) for pid in tracked]

    @property
    def stands_still(self) -> bool:
        """Whether the tree is frozen, for whatever reason."""
        return self._box.group is not None and cgroups.is_frozen(self._box.group)

    def take_over(self, fds: Mapping[int, int]) -> list[int]:
        """Ends the server, of which nothing is missing. Its tracking moves to these userfaultfds, by
        host pid, while the tree stands still. Returns the processes for which that was done."""
        freezer = Freezer(self._box)
        try:
            if fds:
                freezer.freeze()
            given = fds if self.stands_still else {}
            faults.reach("pages.frozen")
            with self._asking() as ask:
                return [int(pid) for pid in ask("give", *map(str, given), fds=list(given.values()))]
        except OSError as error:
            raise CannotCheckpoint(f"the memory of the session is not whole: {self._why(error)}") from error
        finally:
            freezer.thaw()

    def watch(self) -> socket.socket | None:
        """A connection that can be read when nothing is missing any more, or the server has ended."""
        with contextlib.ExitStack() as undo:
            connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            connection.settimeout(faults.limit(_ANSWER_SECONDS))
            try:
                connection.connect(str(self._box.pages_socket))
                connection.send(b"wait")
            except OSError:
                return None  # it has ended
            undo.pop_all()
            return connection

    @property
    def ended(self) -> bool:
        """Whether it has done its work. (When it fails, it ends the box before itself.)"""
        try:
            with self._asking():
                return False
        except (FileNotFoundError, ConnectionRefusedError):
            return not self._box.ends_within(0)
        except OSError:
            return False

    @property
    def failure(self) -> str | None:
        """Why it has ended its box, if it has."""
        try:
            return Path(f"{self._box.pages_socket}.failed").read_text(errors="replace").strip()
        except FileNotFoundError:
            return None

    def _why(self, error: OSError) -> str:
        return self.failure or str(error)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[_Ask]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(faults.limit(_ANSWER_SECONDS))
            connection.connect(str(self._box.pages_socket))
            yield _Ask(connection)


def complete_memory(box: Box) -> None:
    """Has all memory copied that is missing in a box, and ends its page server. What was written since the
    restore is not known any more then."""
    pages = PageServer.find(box)
    try:
        if pages and not pages.ended:
            pages.fill()
            pages.take_over({})
    except CannotCheckpoint:
        if pages and not pages.ended:  # else it had nothing to do any more, just then
            raise


class _Ask:
    """One request and its answer. OSError when it was refused, or the server has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __call__(self, *words: str, fds: Sequence[int] = (), seconds: float = _ANSWER_SECONDS) -> list[str]:
        self._connection.settimeout(faults.limit(seconds))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._connection.sendmsg([" ".join(words).encode()], rights)
        status, *rest = self._connection.recv(_PACKET_BYTES).decode().split(" ")
        if status == "ok":
            return rest
        number = int(rest[0]) if status == "error" else errno.EPIPE
        raise OSError(number, f"page server: {os.strerror(number)}")
