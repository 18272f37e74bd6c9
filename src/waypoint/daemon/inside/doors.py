"""Doors: how a process inside a box asks the daemon, and the only way to do so.

Every box has a folder of its own in the run folder, mounted in the box read-only at /dev/waypoint.inside: a
socket to connect to, and the answers. Any process in the box may connect, and is taken to be hostile:

    one packet, one "ok"      nothing is read in pieces, so no client can be slow; what is too long is refused
    a bucket for each door    so many connections a second; a client that comes faster waits in the kernel's
                              queue
    a queue for each door     one request at a time, by a thread that exists only while there is something to
                              do and rests after each request: a box slows down its own requests, no others
    answers                   symbolic links whose "target" is the text (native/inside.c says why); the box
                              cannot write there, and nothing is ever opened or followed there

A request has a ticket, chosen by the client, under which its answer will be found. A client that waits for an
answer may be in a checkpoint, and wakes up once more in each restore and fork of it. So the tickets that are
open when a tree is saved are stored with the point (`TICKETS_FILE`), and answered again in the new box before
anything in it runs: the client that asked for this very point is told that it is a copy, a client that had
its answer already gets the same one, and every other client is told to ask again.

While a tree is saved its door is closed: CRIU cannot save a connection that leads out of the tree.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import stat
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waypoint.box.plan import inside_path
from waypoint.core.live import TICKETS_FILE, Live
from waypoint.home import Home
from waypoint.kernel import locks, userns
from waypoint.model import MALFORMED, Checkpoint, Record, from_json
from waypoint.terminal.pump import Pump

log = logging.getLogger("waypoint")

"""Beside the images of a point: which clients waited for an answer when it was taken."""
PROTOCOL = "1"
MOST_REQUEST_BYTES = 128 << 10
MOST_ANSWER_BYTES = 512 << 10
_MOST_WAITING = 16
_MOST_ANSWERED = 32
_MOST_UNREAD = 8
_CONNECTIONS_PER_SECOND, _CONNECTIONS_AT_ONCE = 100, 200
_PAUSE_SECONDS = 0.2
_LINK_BYTES, _HEAD_BYTES = 4000, 64
_QUICK_SECONDS = 5.0
_TICKET = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"([0-9a-f]{32})(?:\.\d{1,4})?")


@dataclass(frozen=True)
class DoorRequest:
    """A request from inside."""

    ticket: str
    words: tuple[str, ...]
    cwd: str
    width: int
    """Of the terminal that the answer is for; 0 when it is for no terminal."""
    uid: int
    again: bool = False
    """Whether a daemon has accepted it already: an earlier one, if this one does not know it."""


class Answer(Record, frozen=True):
    """What the client shows, and with which status it exits."""

    status: int
    out: str = ""
    err: str = ""


class OwnRequest(Record, frozen=True):
    """The request that a point was taken for."""

    ticket: str
    words: tuple[str, ...]


class Tickets(Record, frozen=True):
    """The clients that waited when a point was taken."""

    own: OwnRequest | None = None
    answered: dict[str, Answer] = msgspec.field(default_factory=dict)
    again: tuple[str, ...] = ()


class Bucket:
    """A limit: so many at once, and so many more each second."""

    def __init__(self, most: float, per_second: float) -> None:
        self._most, self._per_second = most, per_second
        self._left, self._at, self._wanted = most, time.monotonic(), 1

    def take(self, amount: int = 1) -> bool:
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        self._wanted = amount
        if self._left < amount:
            return False
        self._left -= amount
        return True

    @property
    def wait_seconds(self) -> float:
        """How long until as much is available as the last `take` wanted."""
        return max(0.0, (self._wanted - self._left) / self._per_second)


def read_request(packet: bytes, uid: int) -> tuple[str, DoorRequest]:
    """Its kind (`ask`, `again` or `done`) and the request; ValueError when the packet makes no sense."""
    if len(packet) > MOST_REQUEST_BYTES:
        raise ValueError("that is too much for one request")
    if not packet.endswith(b"\0"):
        raise ValueError("that is no request")
    words = packet[:-1].decode(errors="surrogateescape").split("\0")
    if len(words) < 5 or words[0] != PROTOCOL:
        raise ValueError("that is no request of the kind this daemon knows")
    _, ticket, kind, width, cwd, *rest = words
    if not _TICKET.fullmatch(ticket) or kind not in ("ask", "again", "done") or not cwd.startswith("/"):
        raise ValueError("that is no request")
    columns = int(width) if re.fullmatch(r"\d{1,4}", width) else 0
    return kind, DoorRequest(ticket, tuple(rest), cwd, columns, uid, again=kind == "again")


class Door:
    """The daemon's side of the folder of one box."""

    def __init__(self, folder: Path, live: Live) -> None:
        self.live = live
        self.changed = locks.condition("door")
        """Its lock; notified whenever a request has been answered."""
        self.listener: socket.socket | None = None
        self.unread: dict[int, socket.socket] = {}
        """Connections whose request has not been read yet, by descriptor, the oldest first."""
        self.bucket = Bucket(_CONNECTIONS_AT_ONCE, _CONNECTIONS_PER_SECOND)
        self.points = Bucket(60, 0.2)
        """Limits checkpoints: what requests leave behind in the pool."""
        self.words = Bucket(8 << 20, 8 << 10)
        """Limits bytes of text: what requests leave behind in the database."""
        self.queue: deque[DoorRequest] = deque()
        self.running: DoorRequest | None = None
        self.working = False
        self.muted = 0
        self.closed = False
        self.capturing: tuple[DoorRequest, int] | None = None
        """Which request is taking a checkpoint, and in which thread."""
        self._answered: dict[str, tuple[int, Answer | None]] = {}
        """How many parts each answer has; and the answer itself where it must not be computed twice."""
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._replies = os.open(
            "replies", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder
        )
        for name in sorted(os.listdir(self._replies)):  # answers of an earlier daemon
            if match := _PART.fullmatch(name):
                parts, _ = self._answered.get(match[1], (0, None))
                self._answered[match[1]] = (parts + 1, None)

    @property
    def box_id(self) -> str:
        return self.live.box.id

    @property
    def session_id(self) -> str:
        """The session of the box. A spare gets one when it is released."""
        return self.live.session_id

    def listen(self) -> socket.socket:
        """Makes a new socket in the folder."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink("socket", dir_fd=self._folder)
            listener.bind(f"/proc/self/fd/{self._folder}/socket")
            # Any process in the box may ask, root or not. (Through a descriptor: never through a link.)
            made = os.open("socket", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
            try:
                if stat.S_ISSOCK(os.fstat(made).st_mode):
                    os.chmod(f"/proc/self/fd/{made}", 0o666)  # noqa: S103
            finally:
                os.close(made)
            listener.listen(32)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self.listener = listener
        return listener

    def _open_tickets(self) -> list[str]:
        return [request.ticket for request in (*self.queue, self.running) if request]

    def knows(self, ticket: str) -> bool:
        """Whether a request with this ticket is waiting, running or answered."""
        return ticket in self._answered or ticket in self._open_tickets()

    def reply(self, ticket: str, answer: Answer | None, *, keep: bool = False) -> None:
        """Puts an answer where its client looks for it; None: the client is to ask again."""
        if self.closed or ticket in self._answered:
            return
        while len(self._answered) >= _MOST_ANSWERED:
            self.forget(next(iter(self._answered)))
        parts = _parts(answer)
        for number, part in reversed(list(enumerate(parts))):
            # The first is written last: then all of it is there.
            os.symlink(part, f"{ticket}.{number}" if number else ticket, dir_fd=self._replies)
        self._answered[ticket] = (len(parts), answer if keep else None)

    def forget(self, ticket: str) -> None:
        """Removes an answer that was read, or that will not be read any more."""
        parts, _ = self._answered.pop(ticket, (0, None))
        for number in range(parts):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{ticket}.{number}" if number else ticket, dir_fd=self._replies)

    def tickets(self) -> Tickets:
        """The clients that wait now, as the thread sees them that is about to save the tree."""
        own = None
        if self.capturing and self.capturing[1] == threading.get_ident():
            own = OwnRequest(ticket=self.capturing[0].ticket, words=self.capturing[0].words)
        answered = {ticket: answer for ticket, (_, answer) in self._answered.items() if answer}
        waiting = [*self._open_tickets(), *(ticket for ticket in self._answered if ticket not in answered)]
        again = tuple(ticket for ticket in waiting if not own or ticket != own.ticket)
        return Tickets(own=own, answered=answered, again=again)

    def close(self) -> None:
        self.closed = True
        self.queue.clear()
        os.close(self._replies)
        os.close(self._folder)


def _parts(answer: Answer | None) -> list[bytes]:
    if answer is None:
        return [b"again\n"]
    out, err = (text.encode(errors="replace").replace(b"\0", b"?") for text in (answer.out, answer.err))
    text = out + err
    rest = [text[at : at + _LINK_BYTES] for at in range(_LINK_BYTES - _HEAD_BYTES, len(text), _LINK_BYTES)]
    head = f"{answer.status} {len(out)} {len(err)} {1 + len(rest)}\n".encode()
    return [head + text[: _LINK_BYTES - _HEAD_BYTES], *rest]


class Doors:
    """The doors of all boxes of a home, served by one thread; requests are carried out beside it.

    `answer` carries a request out. `lasting` tells whether a request leaves something behind, so that it must
    not be carried out twice; such a request takes milliseconds, or takes a checkpoint. `copied` words the
    answer for the client that took a point and now wakes up in a copy of it.
    """

    def __init__(
        self,
        home: Home,
        *,
        answer: Callable[[Door, DoorRequest], Answer],
        lasting: Callable[[DoorRequest], bool],
        copied: Callable[[Live, Checkpoint, OwnRequest], Answer],
    ) -> None:
        self._home, self._answer, self._lasting, self._copied = home, answer, lasting, copied
        self._pump = Pump()
        self._lock = locks.lock("doors")
        self._doors: dict[str, Door] = {}

    # ---- opening and closing -----------------------------------------------------------------

    def open(self, live: Live) -> None:
        """Lets the processes of a box ask from now on."""
        folder = inside_path(self._home, live.box.id)
        try:
            door = Door(folder, live)
            self._open(door)
        except OSError as error:  # a box that an older Waypoint built has no such folder
            log.warning("box %s cannot ask for anything: %s", live.box.id, error)
            return
        with self._lock:
            self._doors[live.box.id] = door

    def _open(self, door: Door) -> None:
        listener = door.listen()
        self._pump.add(listener.fileno(), lambda: self._accept(door, listener))

    def _close_sockets(self, door: Door) -> None:
        """Closes all connections, also those in the kernel's queue."""
        for sock in (door.listener, *door.unread.values()):
            if sock:
                self._pump.remove(sock.fileno())
                sock.close()
        door.listener = None
        door.unread.clear()

    def close(self, live: Live) -> None:
        """The box is about to end."""
        with self._lock:
            door = self._doors.pop(live.box.id, None)
        if door:
            with door.changed:
                self._close_sockets(door)
                door.close()
                door.changed.notify_all()

    # ---- requests ----------------------------------------------------------------------------

    def _accept(self, door: Door, listener: socket.socket) -> None:
        with door.changed:
            for _ in range(_MOST_UNREAD):
                if door.listener is not listener:
                    return
                if not door.bucket.take():
                    self._pause(door, listener)
                    return
                try:
                    sock, _ = listener.accept()
                except BlockingIOError:
                    return
                except OSError:  # too many open files, say: it passes
                    self._pause(door, listener)
                    return
                sock.setblocking(False)
                if len(door.unread) >= _MOST_UNREAD:
                    first = next(iter(door.unread))
                    self._pump.remove(first)
                    door.unread.pop(first).close()
                door.unread[sock.fileno()] = sock
                self._pump.add(sock.fileno(), lambda sock=sock: self._read(door, sock))  # type: ignore[misc]

    def _pause(self, door: Door, listener: socket.socket) -> None:
        """Accepts no connection for a moment."""
        self._pump.remove(listener.fileno())
        timer = threading.Timer(_PAUSE_SECONDS, self._accept_again, (door, listener))
        timer.daemon = True
        timer.start()

    def _accept_again(self, door: Door, listener: socket.socket) -> None:
        with door.changed:
            if door.listener is listener:
                self._pump.add(listener.fileno(), lambda: self._accept(door, listener))

    def _read(self, door: Door, sock: socket.socket) -> None:
        with door.changed:
            if door.unread.pop(sock.fileno(), None) is None:
                return
            self._pump.remove(sock.fileno())
            try:
                packet = sock.recv(MOST_REQUEST_BYTES + 1)
                credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                _, uid, _ = struct.unpack("3i", credentials)
                if door.live.box.userns:
                    uid = userns.to_inner(uid)
                sock.send(self._enqueue(door, packet, uid).encode())
            except OSError:
                pass  # the client has gone
            finally:
                sock.close()

    def _enqueue(self, door: Door, packet: bytes, uid: int) -> str:
        """Puts a request into the queue. Returns what the client is told: `ok`, or why not."""
        try:
            kind, incoming = read_request(packet, uid)
        except ValueError as error:
            return str(error)
        if kind == "done":
            door.forget(incoming.ticket)
            return "ok"
        if door.knows(incoming.ticket):
            return "ok"
        if len(door.queue) >= _MOST_WAITING:
            return "too many requests are waiting already; ask again in a moment"
        door.queue.append(incoming)
        if not door.working:
            door.working = True
            threading.Thread(target=self._work, args=(door,), name="inside", daemon=True).start()
        return "ok"

    def _work(self, door: Door) -> None:
        while True:
            with door.changed:
                while door.queue and door.muted and self._lasting(door.queue[0]):
                    door.changed.wait(1.0)
                if door.closed or not door.queue:
                    door.working = False
                    return
                incoming = door.running = door.queue.popleft()
            started = time.monotonic()
            try:
                answer = self._answer(door, incoming)
            except Exception:
                log.exception("a request from inside failed")
                answer = Answer(status=9, err="waypoint: the daemon could not do it; its log says why\n")
            with door.changed:
                door.running = None
                with contextlib.suppress(OSError):
                    door.reply(incoming.ticket, answer, keep=self._lasting(incoming))
                door.changed.notify_all()
            time.sleep(min((time.monotonic() - started) / 2, 1.0))

    # ---- checkpoints -------------------------------------------------------------------------

    @contextlib.contextmanager
    def closed_for_dump(self, live: Live) -> Iterator[bytes]:
        """While a tree is saved: no client is connected and no lasting request is half done. Yields the
        tickets of the clients that wait, to be stored with the point; nothing when none does."""
        door = self._doors.get(live.box.id)
        if door is None:
            yield b""
            return
        with door.changed:
            door.muted += 1
            deadline = time.monotonic() + _QUICK_SECONDS
            while self._is_busy(door) and (left := deadline - time.monotonic()) > 0:
                door.changed.wait(left)
            self._close_sockets(door)
            tickets = door.tickets()
        try:
            yield msgspec.json.encode(tickets) if tickets != Tickets() else b""
        finally:
            with door.changed:
                door.muted -= 1
                if not door.muted and not door.closed:
                    with contextlib.suppress(OSError):
                        self._open(door)
                door.changed.notify_all()

    def _is_busy(self, door: Door) -> bool:
        """Whether a lasting request is under way. (A checkpoint waits by itself for the one under way.)"""
        return bool(door.running and self._lasting(door.running) and not door.capturing)

    def answer_waiters(self, live: Live, point: Checkpoint) -> None:
        """Before the first instruction of a restored tree: answers its clients that wait."""
        with contextlib.suppress(OSError):
            stored = (self._home.checkpoints / point.id / "images" / TICKETS_FILE).read_bytes()
            self.answer(live, point, stored)

    def answer(self, live: Live, point: Checkpoint, stored: bytes) -> None:
        """The same with the tickets that `closed_for_dump` has yielded."""
        door = self._doors.get(live.box.id)
        try:
            tickets = from_json(stored, Tickets)
        except MALFORMED:
            return
        if door is None:
            return
        with door.changed:
            if tickets.own:
                door.reply(tickets.own.ticket, self._copied(live, point, tickets.own), keep=True)
            for ticket, answer in tickets.answered.items():
                door.reply(ticket, answer, keep=True)
            for ticket in tickets.again:
                door.reply(ticket, None)
