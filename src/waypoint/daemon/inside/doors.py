"""Doors: the way in which somebody inside a box asks the daemon for something, and the only one.

Every box has a folder of its own in the run folder, mounted in the box read-only at /dev/waypoint.inside: a
socket to connect to, and the answers. Who connects is whoever runs in the box, and taken to be hostile:

    one packet, one "ok"      nothing is read in pieces, so nobody can be slow; what is too long is refused
    a bucket for each door    so many connections in a second; who comes faster waits in the kernel's queue
    a queue for each door     one request at a time, by a thread that is there only while there is something
                              to do and rests after each one: a box slows down its own requests, no others
    answers                   symbolic links whose "target" is the text (native/inside.c says why); the box
                              cannot write there, and nothing is ever opened or followed there

A request has a ticket, chosen by who asks, under which its answer will be found. Whoever waits for an answer
may be in a checkpoint, and wakes up once more in each restore and fork of it. So the tickets that are open
when a tree is saved are kept with the point (`TICKETS`), and answered again in the new box before anything in
it runs: the one that asked for this very point is told that it is a copy, who was told something already
is told the same, and everybody else is told to ask again.

While a tree is saved its door is shut: CRIU cannot save a connection that leads out of the tree.
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
from waypoint.core.live import Live
from waypoint.home import Home
from waypoint.kernel import locks
from waypoint.model import Checkpoint, Record
from waypoint.terminal.pump import Pump

log = logging.getLogger("waypoint")

TICKETS = "inside.json"
"""Beside the images of a point: who was waiting for an answer when it was taken."""
PROTOCOL = "1"
MOST_REQUEST_BYTES = 128 << 10
MOST_ANSWER_BYTES = 512 << 10
_MOST_WAITING = 16
_MOST_ANSWERED = 32
_MOST_SILENT = 8
_CONNECTIONS_PER_SECOND, _CONNECTIONS_AT_ONCE = 100, 200
_PAUSE_SECONDS = 0.2
_LINK_BYTES, _HEAD_BYTES = 4000, 64
_QUICK_SECONDS = 5.0
_TICKET = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"([0-9a-f]{32})(?:\.\d{1,4})?")


@dataclass(frozen=True)
class Asked:
    """A request from inside."""

    ticket: str
    words: tuple[str, ...]
    cwd: str
    width: int
    """Of the terminal that the answer is for; 0 when it is for no terminal."""
    uid: int
    again: bool = False
    """Whether it had been taken already: by a daemon before this one, if this one does not know it."""


class Answer(Record, frozen=True):
    """What whoever asked is shown, and with which status."""

    status: int
    out: str = ""
    err: str = ""


class Own(Record, frozen=True):
    """The request that a point was taken for."""

    ticket: str
    words: tuple[str, ...]


class Tickets(Record, frozen=True):
    """Who was waiting when a point was taken."""

    own: Own | None = None
    answered: dict[str, Answer] = msgspec.field(default_factory=dict)
    again: tuple[str, ...] = ()


class Bucket:
    """So many at once, so many more in each second."""

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
        """Until there is as much again as was asked for last."""
        return max(0.0, (self._wanted - self._left) / self._per_second)


def read_request(packet: bytes, uid: int) -> tuple[str, Asked]:
    """Its kind (`ask`, `again` or `done`) and what is asked; ValueError when the packet makes no sense."""
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
    return kind, Asked(ticket, tuple(rest), cwd, columns, uid, again=kind == "again")


class Door:
    """The daemon's side of the folder of one box."""

    def __init__(self, folder: Path, live: Live) -> None:
        self.live = live
        self.changed = locks.condition("door")
        """Its lock; and told of whenever a request has been dealt with."""
        self.listener: socket.socket | None = None
        self.silent: dict[int, socket.socket] = {}
        """Who has connected and said nothing yet, by descriptor; the one who came first comes first."""
        self.bucket = Bucket(_CONNECTIONS_AT_ONCE, _CONNECTIONS_PER_SECOND)
        self.points = Bucket(60, 0.2)
        """Checkpoints: what a request leaves behind in the pool."""
        self.words = Bucket(8 << 20, 8 << 10)
        """Bytes of what was said: what it leaves behind in the database."""
        self.queue: deque[Asked] = deque()
        self.running: Asked | None = None
        self.working = False
        self.muted = 0
        self.closed = False
        self.capturing: tuple[Asked, int] | None = None
        """Which request is taking a checkpoint, and in which thread."""
        self._answered: dict[str, tuple[int, Answer | None]] = {}
        """In how many parts each answer is; and the answer itself where it must not be worked out twice."""
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._replies = os.open(
            "replies", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder
        )
        for name in sorted(os.listdir(self._replies)):  # of a daemon before this one
            if found := _PART.fullmatch(name):
                parts, _ = self._answered.get(found[1], (0, None))
                self._answered[found[1]] = (parts + 1, None)

    @property
    def box_id(self) -> str:
        return self.live.box.id

    @property
    def session_id(self) -> str:
        """Which session it is. A spare is told when it is let go."""
        return self.live.session_id

    def listen(self) -> socket.socket:
        """A fresh socket in the folder."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink("socket", dir_fd=self._folder)
            listener.bind(f"/proc/self/fd/{self._folder}/socket")
            # Whoever runs in the box may ask, root or not. (Through a descriptor: never through a link.)
            there = os.open("socket", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
            try:
                if stat.S_ISSOCK(os.fstat(there).st_mode):
                    os.chmod(f"/proc/self/fd/{there}", 0o666)  # noqa: S103
            finally:
                os.close(there)
            listener.listen(32)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self.listener = listener
        return listener

    def knows(self, ticket: str) -> bool:
        waiting = [*self.queue, *filter(None, (self.running,))]
        return ticket in self._answered or any(one.ticket == ticket for one in waiting)

    def reply(self, ticket: str, answer: Answer | None, *, keep: bool = False) -> None:
        """Puts an answer where the one who asked looks for it; None says: ask again."""
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
        """It was read, or nobody will."""
        parts, _ = self._answered.pop(ticket, (0, None))
        for number in range(parts):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{ticket}.{number}" if number else ticket, dir_fd=self._replies)

    def tickets(self) -> Tickets:
        """Who waits now, from the view of the thread that is about to save the tree."""
        own = None
        if self.capturing and self.capturing[1] == threading.get_ident():
            own = Own(ticket=self.capturing[0].ticket, words=self.capturing[0].words)
        kept = {ticket: answer for ticket, (_, answer) in self._answered.items() if answer}
        waiting = [one.ticket for one in (*self.queue, *filter(None, (self.running,)))]
        waiting += [ticket for ticket in self._answered if ticket not in kept]
        return Tickets(
            own=own, answered=kept, again=tuple(one for one in waiting if not own or one != own.ticket)
        )

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

    `answer` carries a request out. `lasting` says of one whether it leaves something behind, so that it must
    not be carried out twice; it is then a matter of milliseconds, or a checkpoint. `copied` words the answer
    for whoever took a point and now finds itself in a copy of it.
    """

    def __init__(
        self,
        home: Home,
        *,
        answer: Callable[[Door, Asked], Answer],
        lasting: Callable[[Asked], bool],
        copied: Callable[[Live, Checkpoint, Own], Answer],
    ) -> None:
        self._home, self._answer, self._lasting, self._copied = home, answer, lasting, copied
        self._pump = Pump()
        self._lock = locks.lock("doors")
        self._doors: dict[str, Door] = {}

    # ---- opening and shutting ----------------------------------------------------------------

    def open(self, live: Live) -> None:
        """From now on the box may ask."""
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
        self._pump.add(listener.fileno(), lambda: self._knocked(door, listener))

    def _shut(self, door: Door) -> None:
        """Nobody is connected any more, nor in the kernel's queue."""
        for one in (door.listener, *door.silent.values()):
            if one:
                self._pump.remove(one.fileno())
                one.close()
        door.listener = None
        door.silent.clear()

    def close(self, live: Live) -> None:
        """The box is about to end."""
        with self._lock:
            door = self._doors.pop(live.box.id, None)
        if door:
            with door.changed:
                self._shut(door)
                door.close()
                door.changed.notify_all()

    # ---- hearing -----------------------------------------------------------------------------

    def _knocked(self, door: Door, listener: socket.socket) -> None:
        with door.changed:
            for _ in range(_MOST_SILENT):
                if door.listener is not listener:
                    return
                if not door.bucket.take():
                    self._pump.remove(listener.fileno())
                    timer = threading.Timer(_PAUSE_SECONDS, self._go_on, (door, listener))
                    timer.daemon = True
                    timer.start()
                    return
                try:
                    one, _ = listener.accept()
                except OSError:
                    return
                one.setblocking(False)
                if len(door.silent) >= _MOST_SILENT:
                    first = next(iter(door.silent))
                    self._pump.remove(first)
                    door.silent.pop(first).close()
                door.silent[one.fileno()] = one
                self._pump.add(one.fileno(), lambda one=one: self._heard(door, one))  # type: ignore[misc]

    def _go_on(self, door: Door, listener: socket.socket) -> None:
        with door.changed:
            if door.listener is listener:
                self._pump.add(listener.fileno(), lambda: self._knocked(door, listener))

    def _heard(self, door: Door, one: socket.socket) -> None:
        with door.changed:
            if door.silent.pop(one.fileno(), None) is None:
                return
            self._pump.remove(one.fileno())
            try:
                packet = one.recv(MOST_REQUEST_BYTES + 1)
                _, uid, _ = struct.unpack(
                    "3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                )
                one.send(self._take(door, packet, uid).encode())
            except OSError:
                pass  # gone, and its affair
            finally:
                one.close()

    def _take(self, door: Door, packet: bytes, uid: int) -> str:
        """Takes a request in. Returns what its bearer is told."""
        try:
            kind, asked = read_request(packet, uid)
        except ValueError as error:
            return str(error)
        if kind == "done":
            door.forget(asked.ticket)
            return "ok"
        if door.knows(asked.ticket):
            return "ok"
        if len(door.queue) >= _MOST_WAITING:
            return "too many requests are waiting already; ask again in a moment"
        door.queue.append(asked)
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
                asked = door.running = door.queue.popleft()
            started = time.monotonic()
            try:
                answer = self._answer(door, asked)
            except Exception:
                log.exception("a request from inside")
                answer = Answer(status=9, err="waypoint: the daemon could not do it; its log says why\n")
            with door.changed:
                door.running = None
                with contextlib.suppress(OSError):
                    door.reply(asked.ticket, answer, keep=self._lasting(asked))
                door.changed.notify_all()
            time.sleep(min((time.monotonic() - started) / 2, 1.0))

    # ---- checkpoints -------------------------------------------------------------------------

    @contextlib.contextmanager
    def closed_for_dump(self, live: Live, images: Path) -> Iterator[None]:
        """While a tree is saved: nobody is connected, nothing that lasts is half done, and who waits is kept
        with the point."""
        door = self._doors.get(live.box.id)
        if door is None:
            yield
            return
        with door.changed:
            door.muted += 1
            deadline = time.monotonic() + _QUICK_SECONDS
            while self._is_busy(door) and (left := deadline - time.monotonic()) > 0:
                door.changed.wait(left)
            self._shut(door)
            tickets = door.tickets()
        try:
            yield
            if tickets != Tickets():
                (images / TICKETS).write_bytes(msgspec.json.encode(tickets))
        finally:
            with door.changed:
                door.muted -= 1
                if not door.muted and not door.closed:
                    with contextlib.suppress(OSError):
                        self._open(door)
                door.changed.notify_all()

    def _is_busy(self, door: Door) -> bool:
        """With something that lasts. (A checkpoint that was asked for waits for the one under way.)"""
        return bool(door.running and self._lasting(door.running) and not door.capturing)

    def answer_waiters(self, live: Live, point: Checkpoint) -> None:
        """Before the first instruction of a restored tree: answers for those in it who wait for one."""
        door = self._doors.get(live.box.id)
        try:
            text = (self._home.checkpoints / point.id / "images" / TICKETS).read_bytes()
            tickets = msgspec.json.decode(text, type=Tickets)
        except (OSError, msgspec.DecodeError):
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
