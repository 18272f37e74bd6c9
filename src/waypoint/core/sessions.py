"""The verbs: what can be done with sessions and checkpoints.

Here the mechanisms meet: a box is built, a tree is saved or revived in it, a volume is snapshotted beside it,
and a row in the database makes it true. Nothing is true before its row: whatever fails earlier is undone
and the session runs on as if nobody had asked.

Locks. A session has one for whoever takes it elsewhere or ends it (`_moving`: restore, park, stop, remove),
and after that comes `Live.state`, held by whoever changes what it is in its box (checkpoint, starting a
program, and all of the former). Who had to wait for `Live.state` may find that the session has moved
(`steady`). A terminal has its own turn for commands, so a checkpoint can be taken while a command runs.
Reading the database needs none of them.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import logging
import os
import secrets
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from waypoint.agent.trajectory import Stream, Trajectory
from waypoint.box.box import Box, drop_inside, end_keeper, keepers, socket_path
from waypoint.box.keeper import Keeper
from waypoint.box.plan import BoxSpec, check_options, coverage, lost_from_dev, resolve_binds
from waypoint.box.volume import (
    drop_old_work,
    empty_hidden,
    examine_base,
    make_volume,
    note_moved_mounts,
    write_first_files,
)
from waypoint.core import spares
from waypoint.core.observe import look_at_shell, observe
from waypoint.engine.dump import Dump
from waypoint.engine.images import bound_addresses, check_sizes, record_sizes
from waypoint.engine.memory import Memory
from waypoint.engine.revive import HeldTree, hold
from waypoint.errors import (
    AlreadyExists,
    CannotCheckpoint,
    CannotRestore,
    NoSpace,
    NotFound,
    SessionDead,
    UsageError,
    WaypointError,
)
from waypoint.history import refs
from waypoint.history.facts import Facts
from waypoint.history.redaction import Redactor
from waypoint.home import Home
from waypoint.kernel import atomic, cgroups, processes
from waypoint.kernel.memory import Ram
from waypoint.kernel.network.resolver import resolver_config
from waypoint.kernel.network.sockets import abort_outside_connections
from waypoint.kernel.network.veth import Network
from waypoint.kernel.pool.extents import made_at
from waypoint.kernel.pool.protocol import Pool
from waypoint.model import (
    Actor,
    BoxOptions,
    Checkpoint,
    EventKind,
    Forked,
    IntentFrom,
    Kind,
    Record,
    Restored,
    RunResult,
    Session,
    Size,
)
from waypoint.store import Store
from waypoint.store.database import iso
from waypoint.store.operations import UNDOABLE
from waypoint.store.points import AgentState
from waypoint.store.sessions import SessionRow
from waypoint.terminal.command import OUTPUT_LIMIT_BYTES
from waypoint.terminal.pump import Pump
from waypoint.terminal.recording import TerminalEvent, record
from waypoint.terminal.shell import Shell
from waypoint.terminal.terminal import Terminal, TerminalState

log = logging.getLogger("waypoint")

# Before all others: a base may have a Waypoint of its own, which can do nothing in a box.
_PATH = "/dev/waypoint/bin/inside:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RCFILE = "/dev/waypoint/bin/integration.bash"
_TERMINAL_FILE = "terminal"
_BOX_FILE = "box.json"
_FACTS_FILE = "facts.json"
_SHELL_STARTS = 3
"""How many shells in a row may end before their first prompt until none is started any more."""
_MOST_FORKS = 256
_ABANDONED_SECONDS = 3600
_CALM_SECONDS = 0.03
_CALM_MOST_SECONDS = 0.3
_CALM_MOST_WORK = 6
"""How long nobody must have asked for anything before what can wait is begun; when it is, all the same; and
how much of it may have piled up."""


class BoxFacts(Record, frozen=True):
    """What a restore has to know about the box a checkpoint was taken in."""

    addresses: tuple[str, ...] = ()
    open_files: tuple[str, ...] = ()


def new_id() -> str:
    """Twelve hexadecimal digits."""
    return secrets.token_hex(6)


@contextlib.contextmanager
def _running_out_of_space() -> Iterator[None]:
    """What is written here is small; the pool may be full all the same."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace("no space left in the pool", hint="free some with `waypoint prune`") from error
        raise


@dataclass
class Program:
    """A program outside the shell that somebody listens to."""

    pid: int
    pipes: tuple[int, ...]
    """The inodes of its three pipes: their other ends are outside the tree."""
    ended: threading.Event = field(default_factory=threading.Event)
    exit_code: int | None = None


class Live:
    """A session that runs: its box, its terminal, and who may change it."""

    def __init__(
        self,
        session_id: str,
        box: Box,
        terminal: Terminal,
        cgroup: cgroups.Cgroup,
        stream: Stream,
        memory: Memory,
    ) -> None:
        self.session_id = session_id
        self.stream = stream
        """What happens in it, on its way into the trajectory."""
        self.state = threading.RLock()
        self.box = box
        self.terminal = terminal
        self.cgroup = cgroup
        self.memory = memory
        self.programs: dict[int, Program] = {}
        self.early_exits: dict[int, int] = {}
        """Children of the anchor that ended before their starter could say what they are."""
        self.exits = threading.Lock()
        self.lost_shells = 0
        """How many shells in a row have ended before their first prompt."""
        self.ended = threading.Event()
        """Set when this object no longer stands for anything that runs."""
        self.cleared = False
        """Whether somebody has begun to clear away what is left of it. Its descriptors are others' then."""


@dataclass(frozen=True)
class Twin:
    """A copy of a point that exists and has not run yet."""

    live: Live
    held: HeldTree
    name: str
    """What its box is called."""
    options: BoxOptions

    @property
    def alive(self) -> bool:
        return self.live.box.alive and self.held.complete

    def suits(self, options: BoxOptions) -> bool:
        """Whether its box is one of this kind. The point may be another session's, and its limits too."""
        return msgspec.structs.replace(self.options, spares=options.spares) == options


class Sessions:
    """All sessions of one home. One of these lives in the daemon."""

    def __init__(self, home: Home, engine: Path, pool: Pool, store: Store, kdat: Path | None) -> None:
        self.home, self.engine, self.pool, self.store = home, engine, pool, store
        self._kdat = kdat
        self.network = Network(home.tag)
        self._network_ready = False
        self._preparing = threading.Lock()
        self.trajectory = Trajectory(store)
        self._pump = Pump()
        self._ram = Ram()
        self._lives: dict[str, Live] = {}
        self._leaving: dict[str, Future[None]] = {}
        """By session, the clearing away of the box it was in before its last restore."""
        self._moves: dict[str, threading.RLock] = {}
        self._lock = threading.Lock()
        self.leftovers: set[Path] = set()
        """What could not be deleted when its time had come."""
        self.apart: dict[str, str] = {}
        """Live copies that are no sessions and will be none, and the session each is a copy of."""
        self._in_use: Counter[str] = Counter()
        """Points that are being brought to life."""
        self.before_checkpoint: list[Callable[[Live | None], None]] = []
        """Who may refuse a point before anything is touched; told what would be dumped, if anything."""
        self.after_checkpoint: list[Callable[[SessionRow, Checkpoint], object]] = []
        """Who wants to know of a new point, once it exists; must not take long."""
        self.after_typing: list[Callable[[str], None]] = []
        """Who wants to know, in the background, that a command somebody typed in a session has ended."""
        self.after_command: list[Callable[[Live, TerminalEvent], None]] = []
        """Who wants to know of everything that happens in a terminal; on the thread that reads it."""
        self.box_began: list[Callable[[Live], None]] = []
        """Who wants to know of a box that stands, before anything runs in it (and a spare has an owner)."""
        self.box_ends: list[Callable[[Live], None]] = []
        """Who wants to know of one that is about to end, or has gone by itself."""
        self.box_ended: list[Callable[[Live], None]] = []
        """Who wants to know that nothing of a box runs any more."""
        self.during_prepare: list[Callable[[], contextlib.AbstractContextManager[None]]] = []
        """What surrounds the making of the firewall's table."""
        self.during_dump: list[Callable[[Live, Path], contextlib.AbstractContextManager[None]]] = []
        """What surrounds the saving of a tree; told where its images will be, and may add to them."""
        self.before_waking: list[Callable[[Live, Checkpoint], None]] = []
        """Who has something to do in the box of a restored tree before its first instruction."""
        self.spares = spares.Spares(self._make_spare, self._end_spare)
        self._background = ThreadPoolExecutor(max_workers=2, thread_name_prefix="background")
        self._idle = ThreadPoolExecutor(max_workers=2, thread_name_prefix="idle")
        self._idle_work = 0
        """How much waits for a calm moment."""
        self._asking = 0
        self._asked_at = 0.0
        for folder in (home.sessions, home.checkpoints, home.staging):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep()

    # ---- start-up and clean-up ---------------------------------------------------------------

    def _sweep(self) -> None:
        """After whatever happened to the daemon before: live boxes are taken over, the rest is cleaned up."""
        standing = keepers(self.home)
        kept_boxes: set[str] = set()
        for row in self.store.sessions.all():
            if row.state != "live":
                continue
            box = (
                Box.find(self.home, row.box, self.home.sessions / row.box)
                if row.box in standing and row.box
                else None
            )
            if box is None:
                self.store.sessions.set_state(row.id, "dead", box=row.box)
                continue
            try:
                self._take_over(row, box)
                kept_boxes.add(box.id)
            except (OSError, WaypointError):
                log.exception("session %s could not be taken over", row.name)
                box.kill(self.home)
                self.store.sessions.set_state(row.id, "dead", box=row.box)
        for box_id, pid in standing.items():
            if box_id not in kept_boxes:
                log.info("ending box %s, which nobody owns", box_id)
                end_keeper(self.home, box_id, pid)
                self.network.detach(box_id)
                cgroups.find(self.home.tag, box_id).remove()
        for path in self.home.run.glob("*.sock"):
            if path != self.home.socket and path.stem not in kept_boxes:
                path.unlink(missing_ok=True)
        for path in (*self.home.run.glob("*.terminal"), *self.home.run.glob(".*.terminal.*")):
            if path.stem not in kept_boxes:
                path.unlink(missing_ok=True)
        for path in self.home.run.glob("*.inside"):
            if path.stem not in kept_boxes:
                drop_inside(self.home, path.stem)
        for path in self._unknown():
            self._delete(path)

    def _unknown(self) -> list[Path]:
        """What is in the pool and in no row: remains, or about to become something."""
        volumes = {row.box for row in self.store.sessions.all() if row.box}
        return [
            path
            for folder, wanted in (
                (self.home.staging, set()),
                (self.home.checkpoints, self.store.points.ids()),
                (self.home.sessions, volumes),
            )
            for path in folder.iterdir()
            if path.name not in wanted
        ]

    def abandoned(self) -> list[Path]:
        """What a deletion or an attempt has left behind, and nobody is at work on any more."""
        before, standing = time.time() - _ABANDONED_SECONDS, keepers(self.home)
        found = []
        for path in self._unknown():
            with contextlib.suppress(OSError):
                if path in self.leftovers or (path.name not in standing and made_at(path) < before):
                    found.append(path)
        return found

    def clear(self, paths: Iterable[Path]) -> None:
        """Deletes such remains."""
        for path in list(paths):
            self._delete(path)

    def _take_over(self, row: SessionRow, box: Box) -> None:
        """A box that another daemon built: its keeper has kept the terminal for us."""
        picture = None
        with contextlib.suppress(OSError, msgspec.DecodeError):
            text = (self.home.run / f"{box.id}.terminal").read_bytes()
            picture = msgspec.json.decode(text, type=TerminalState)
        size = picture.size if picture else Size()
        live = self._lives[row.id] = self._adopt(row.id, box, size, picture)
        self.trajectory.adopt(live.stream)

    def _delete(self, path: Path) -> None:
        """A volume, a checkpoint's folder, or what is left of one."""
        try:
            if (path / "files").is_dir():
                self.pool.delete(path / "files")
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_dir():
                self.pool.delete(path)
                if path.exists():
                    shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        except (OSError, WaypointError):
            # A snapshot that is being compared cannot go yet. It is in no row any more, and tried again.
            log.exception("could not delete %s", path)
            self.leftovers.add(path)
        else:
            self.leftovers.discard(path)

    def close(self) -> None:
        """The daemon ends, the sessions do not."""
        self.spares.close()
        for live in list(self._lives.values()):
            self._remember_terminal(live)
            live.terminal.flush_recording()
        self._background.shutdown(wait=True)
        self._idle.shutdown(wait=True)
        self.trajectory.stop()

    def stop_all(self) -> None:
        """Ends every box; what was live is dead afterwards and can be restored."""
        for known in self.store.sessions.all():
            with self._moving(known.id):
                row, live = self.store.sessions.find(known.id), self._lives.get(known.id)
                if row and live:
                    with live.state:
                        self._end(live, "the session was stopped")
                        self.store.sessions.set_state(row.id, "dead", box=row.box)

    def teardown_network(self) -> None:
        self.network.teardown()

    def later(self, work: Callable[[], None]) -> Future[None]:
        """In the background, where nothing may fail a verb."""

        return self._background.submit(_careful, work)

    def when_calm(self, work: Callable[[], None]) -> Future[None]:
        """The same for what can wait until nobody waits for anything: for a moment, or until there is more of
        it. Two processors are soon taken, and whoever has just got an answer goes on to ask."""

        def wait_and_work() -> None:
            deadline = time.monotonic() + _CALM_MOST_SECONDS
            while self._idle_work <= _CALM_MOST_WORK and (now := time.monotonic()) < deadline:
                calm_at = deadline if self._asking else self._asked_at + _CALM_SECONDS
                if now >= calm_at:
                    break
                time.sleep(min(calm_at - now, 0.005))
            with self._lock:
                self._idle_work -= 1
            _careful(work)

        with self._lock:
            self._idle_work += 1
        return self._idle.submit(wait_and_work)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """While somebody waits for a verb."""
        with self._lock:
            self._asking += 1
        self.spares.busy(_CALM_MOST_SECONDS)
        try:
            yield
        finally:
            self._asked_at = time.monotonic()
            with self._lock:
                self._asking -= 1
            self.spares.busy()

    # ---- finding things ----------------------------------------------------------------------

    def find(self, name: str | None) -> SessionRow:
        """The session of that name (or id); without a name the only one there is."""
        if name:
            row = self.store.sessions.find(name)
            if row is None:
                raise NotFound(f"there is no session {name!r}", hint=self._listing())
            return row
        rows = self.store.sessions.all()
        if len(rows) == 1:
            return rows[0]
        if not rows:
            raise NotFound("there are no sessions", hint="start one with `waypoint new`")
        raise UsageError("which session?", hint=f"say it with -s or WAYPOINT_SESSION; {self._listing()}")

    def find_for(self, name: str | None, *given: str | None) -> SessionRow:
        """The session that was asked for; else the one that a ref names by itself (`work:up`)."""
        named = (refs.split(ref)[0] for ref in given if ref)
        return self.find(name or next(filter(None, named), None))

    def _listing(self) -> str:
        names = [row.name for row in self.store.sessions.all()]
        return f"there are: {', '.join(names)}" if names else "there are none: start one with `waypoint new`"

    def lives(self) -> list[Live]:
        """Everything that runs now."""
        with self._lock:
            return list(self._lives.values())

    def running(self, session_id: str) -> Live | None:
        """The session as it runs now, if it does; nothing is looked at."""
        return self._lives.get(session_id)

    def live(self, row: SessionRow) -> Live:
        """The running session, or SessionDead saying how to get it back."""
        live = self._lives.get(row.id)
        if live is None or not live.box.alive:
            if live is not None:
                self._died(live)
            how = "is parked" if row.state == "parked" else "does not run"
            back = f"`waypoint restore -s {row.name} @` brings it back"
            gone = f"it has no point to come back to; `waypoint rm {row.name}` forgets it"
            raise SessionDead(f"session {row.name!r} {how}", hint=back if row.head else gone)
        return live

    @contextlib.contextmanager
    def _moving(self, session_id: str) -> Iterator[None]:
        """For one at a time: whoever takes a session elsewhere or ends it, whether it runs or not."""
        with self._lock:
            turn = self._moves.setdefault(session_id, threading.RLock())
        with turn:
            yield

    @contextlib.contextmanager
    def steady(self, row: SessionRow) -> Iterator[Live]:
        """A running session that no checkpoint, restore or other verb changes during the block."""
        while True:
            live = self.live(self.find(row.id))
            with live.state:
                if not live.ended.is_set():
                    yield live
                    return

    def point(self, row: SessionRow, ref: str) -> Checkpoint:
        """The checkpoint a ref means, seen from a session."""
        other, ref = refs.split(ref)
        if other:
            row = self.find(other)
        if found := self.store.points.find(ref) or self.store.points.find(
            self.store.points.tags(row.id).get(ref, "")
        ):
            return found
        everything = self.store.points.all()
        own = [point for point in everything if point.session == row.name]
        return refs.resolve(ref, own, everything, row.head, datetime.now().astimezone())

    def describe(self, row: SessionRow) -> Session:
        """A session as it travels."""
        live = self._lives.get(row.id)
        if live and not live.box.alive:
            self._died(live)
            row = self.find(row.id)
            live = None
        return Session(
            id=row.id,
            name=row.name,
            state=row.state,
            created_at=iso(row.created_at),
            options=row.options,
            head=row.head,
            forked_from=row.forked_from,
            pid=live.box.pid if live else None,
            foreground=_without_secrets(live.terminal.foreground() or "") or None if live else None,
            auto=row.auto,
        )

    def all(self) -> list[Session]:
        return [self.describe(row) for row in self.store.sessions.all()]

    def log(self, row: SessionRow | None) -> list[Checkpoint]:
        """The checkpoints of a session, or of all; oldest first."""
        return self.store.points.all(row.id if row else None)

    # ---- boxes -------------------------------------------------------------------------------

    def base_of(self, options: BoxOptions) -> Path:
        if options.base.startswith("/"):
            return Path(os.path.realpath(options.base))
        from waypoint.bases import store as bases

        return bases.base_path(self.pool, options.base)

    def _build_box(
        self, name: str, options: BoxOptions, volume: Path, size: Size, facts: BoxFacts
    ) -> tuple[Box, cgroups.Cgroup]:
        """A box with its network and limits, with nothing running in it."""
        box_id = volume.name
        spec = BoxSpec(
            home=self.home,
            engine=self.engine,
            volume=volume,
            name=name,
            options=options,
            base=self.base_of(options),
            size=size,
            kdat=self._kdat,
            open_files=facts.open_files,
        )
        limits = cgroups.Limits(options.memory_bytes, options.cpus, options.pids)
        with contextlib.ExitStack() as undo:
            group = cgroups.create(self.home.tag, box_id, limits)
            undo.callback(group.remove)
            box = Box.build(spec)
            undo.callback(box.kill, self.home)
            group.add(box.pid)
            if options.net == "nat":
                self._prepare_network()
                space = box.open_namespace("net")
                try:
                    undo.callback(self.network.detach, box_id)
                    self.network.attach(box_id, space, keep=facts.addresses)
                finally:
                    os.close(space)
            undo.pop_all()
        return box, group

    def _prepare_network(self) -> None:
        with self._preparing:
            if not self._network_ready:
                with contextlib.ExitStack() as around:
                    for surround in self.during_prepare:
                        around.enter_context(surround())
                    self.network.prepare()
                self._network_ready = True

    def _adopt(self, session_id: str, box: Box, size: Size, picture: TerminalState | None = None) -> Live:
        """The daemon's objects for a box that stands. From here on its terminal is read."""
        hello = box.hello()
        events = Keeper(socket_path(self.home, box.id))
        terminal = Terminal(events, hello.master, hello.slave, box.pid, size)
        stream = self.trajectory.open(session_id, lambda: self._redactor(box, terminal))
        group = cgroups.find(self.home.tag, box.id)
        live = Live(session_id, box, terminal, group, stream, Memory(self.engine))
        terminal.on_event = lambda what: self._happened(live, what)
        printed = events.serve()
        if picture:
            terminal.take_over(picture, printed)
        else:
            terminal.feed(printed)
        terminal.on_typed_command = lambda: self._typed(live)
        self._pump.add(events.fileno(), lambda: self._heard(live, events))
        self._pump.add(hello.master, lambda: self._read(live, terminal))
        for told in self.box_began:
            told(live)
        return live

    def _read(self, live: Live, terminal: Terminal) -> None:
        if terminal.read():
            self._pump.run_when_idle(terminal, lambda: self._quiet(live))

    def _quiet(self, live: Live) -> None:
        live.terminal.flush_background(paused=True)
        self._remember_terminal(live)

    def _happened(self, live: Live, what: TerminalEvent) -> None:
        _told(live.stream, what)
        for told in self.after_command:
            told(live, what)

    def _typed(self, live: Live) -> None:
        for told in self.after_typing:
            self.later(lambda told=told: told(live.session_id))  # type: ignore[misc]

    def _heard(self, live: Live, events: Keeper) -> None:
        """A keeper says something unasked."""
        try:
            words = events.read_event()
        except OSError:
            words = []
        if not words:
            self._pump.remove(events.fileno())
            if not live.ended.is_set():
                self.later(lambda: self._died(live))
            return
        if words[0] == "exited":
            self._exited(live, int(words[1]), int(words[2]))

    def _exited(self, live: Live, pid: int, status: int) -> None:
        """A child of the anchor ended: the shell, a program, or an orphan nobody waits for."""
        with live.exits:
            program = live.programs.pop(pid, None)
            if program is None:
                live.early_exits[pid] = status
                while len(live.early_exits) > 256:
                    live.early_exits.pop(next(iter(live.early_exits)))
        if program:
            program.exit_code = processes.exit_code(status)
            program.ended.set()
        shell = live.terminal.shell
        if shell and shell.pid == pid:
            live.terminal.handle_exit(pid, status)
            self.later(lambda: self._replace_shell(live, shell))

    def _replace_shell(self, live: Live, gone: Shell) -> None:
        with live.state:
            if live.ended.is_set() or live.terminal.shell is not None:
                return
            live.lost_shells = 0 if gone.came_up else live.lost_shells + 1
            if live.lost_shells >= _SHELL_STARTS:
                log.warning("the shell of session %s ends at once; no other is started", live.session_id)
                return
            self._start_shell(live, gone.cwd)

    def _died(self, live: Live) -> None:
        """A box has gone by itself: everything in it was killed, or the machine ran out of memory."""
        with live.state:
            if live.ended.is_set():
                return
            self._end(live, "the session ended")
            row = self.store.sessions.find(live.session_id)
            if row and row.state == "live":
                self.store.sessions.set_state(row.id, "dead", box=row.box)

    def _start_shell(self, live: Live, cwd: str) -> None:
        """A fresh interactive bash on the terminal."""
        key = secrets.token_hex(8)
        # Known before it runs: its first mark may come before its pid does.
        live.terminal.announce_shell(Shell(pid=0, key=key, cwd=cwd))
        hello = live.box.hello()
        try:
            env = [f"{name}={value}" for name, value in {**self.environment(), "WAYPOINT_KEY": key}.items()]
            argv = ["/bin/bash", "--rcfile", _RCFILE, "-i"]
            pid = live.box.keeper.start("shell", cwd, argv, env, (hello.slave,) * 3)
        finally:
            os.close(hello.master)
            os.close(hello.slave)
        live.terminal.set_shell_pid(pid)
        self._remember_terminal(live)
        with live.exits:
            early = live.early_exits.pop(pid, None)
        if early is not None:
            self._exited(live, pid, early)

    def environment(self) -> dict[str, str]:
        """What a session's shell and programs start with."""
        return {
            "HOME": "/root",
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/bash",
            "PATH": _PATH,
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
        }

    def _end(self, live: Live, why: str) -> None:
        """Ends a box and everything of the daemon's that belongs to it. The volume stays."""
        live.ended.set()
        with self._lock:
            if live.cleared:
                return
            live.cleared = True
        for told in self.box_ends:
            told(live)
        self._pump.remove(live.terminal.master)
        self._pump.remove(live.terminal.events.fileno())
        live.terminal.close(why)
        live.stream.close()
        live.box.kill(self.home)
        live.memory.close()
        live.terminal.events.close()
        for program in live.programs.values():
            program.ended.set()
        # Its cable went with its network namespace.
        live.cgroup.remove()
        (self.home.run / f"{live.box.id}.terminal").unlink(missing_ok=True)
        drop_inside(self.home, live.box.id)
        for told in self.box_ended:
            told(live)
        with self._lock:
            if self._lives.get(live.session_id) is live:
                del self._lives[live.session_id]

    def _remember_terminal(self, live: Live) -> None:
        """The screen, for the daemon that comes after this one. Best effort: it is only a picture."""
        if live.ended.is_set():
            return
        path = self.home.run / f"{live.box.id}.terminal"
        with contextlib.suppress(OSError, WaypointError, ValueError):
            atomic.write(path, msgspec.json.encode(live.terminal.state()))

    # ---- new, stop ---------------------------------------------------------------------------

    def new(self, name: str | None, options: BoxOptions, size: Size, *, join: bool = False) -> Session:
        """Starts a session: a box over its base with a shell at its prompt."""
        if name and join and (row := self.store.sessions.find(name)):
            return self.describe(row)
        if name is None:
            taken = {row.name for row in self.store.sessions.all()}
            name = next(f"s{n}" for n in range(1, len(taken) + 2) if f"s{n}" not in taken)
        refs.check_name(name, "session")
        if self.store.sessions.find(name):
            raise AlreadyExists(
                f"there is a session {name!r} already",
                hint=f"attach to it with `waypoint shell {name}`, or choose another name",
            )
        base = self.base_of(options)
        check_options(options, base)
        options = resolve_binds(options)
        session_id = new_id()
        volume = self.home.sessions / new_id()
        with contextlib.ExitStack() as undo:
            self.pool.create(volume)
            undo.callback(self._delete, volume)
            make_volume(volume, examine_base(base, self.home).layered)
            write_first_files(volume, base, _first_files(name, options, base))
            empty_hidden(volume, base, self.home, options)
            box, _ = self._build_box(name, options, volume, size, BoxFacts())
            live = self._adopt(session_id, box, size)
            undo.callback(self._end, live, "the session could not be started")
            box.keeper.start_anchor()
            self._start_shell(live, "/root" if (base / "root").is_dir() else "/")
            live.terminal.wait_ready()
            began = observe(box, live.terminal, (), own_network=False).shell
            row = self.store.sessions.add(session_id, name, options, box=box.id, began=began)
            with self._lock:
                self._lives[session_id] = live
            self.trajectory.adopt(live.stream)
            undo.pop_all()
        return self.describe(row)

    def remove(self, row: SessionRow) -> None:
        """Ends a session and forgets it, with its checkpoints."""
        with self._moving(row.id):
            row = self.find(row.id)
            live = self._lives.get(row.id)
            points = self.store.points.all(row.id)
            if live:
                with live.state:
                    self._end(live, "the session was removed")
            self.store.sessions.remove(row.id)
            if leaving := self._leaving.pop(row.id, None):
                wait((leaving,))
            self.spares.want(row.id, ())
            self.spares.drop([point.id for point in points])
            if row.box:
                self._delete(self.home.sessions / row.box)
            for point in points:
                self._delete(self.home.checkpoints / point.id)
        self._moves.pop(row.id, None)
        self.later(lambda: log.debug("%s bytes of blobs went", self.store.events.sweep_blobs()))

    # ---- commands ----------------------------------------------------------------------------

    def run(
        self,
        row: SessionRow,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        on_terminal: bool = False,
        limit: int | None = None,
        on_output: Callable[[bytes], None] | None = None,
        actor: Actor = "person",
    ) -> RunResult:
        """A command in the session's shell."""
        return self.live(row).terminal.run(
            secrets.token_hex(6),
            command,
            timeout=timeout,
            stdin=stdin,
            on_terminal=on_terminal,
            limit=limit or OUTPUT_LIMIT_BYTES,
            on_output=on_output,
            actor=actor,
        )

    def spawn(
        self,
        row: SessionRow,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str],
        *,
        shell_env: bool,
    ) -> tuple[Program, tuple[int, int, int]]:
        """A program outside the shell; its three pipes are the caller's to close: stdin (to write), stdout,
        stderr."""
        if not argv:
            raise UsageError("no program was given")
        live = self.live(row)
        environment = self._shell_environment(live) if shell_env else self.environment()
        if cwd is None:
            cwd = live.terminal.shell.cwd if shell_env and live.terminal.shell else "/root"
        words = [f"{name}={value}" for name, value in {**environment, **env}.items()]
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            ends: list[int] = []
            stdio: list[int] = []
            for writes in (True, False, False):
                reader, writer = os.pipe()
                ours.callback(os.close, writer if writes else reader)
                theirs.callback(os.close, reader if writes else writer)
                ends.append(writer if writes else reader)
                stdio.append(reader if writes else writer)
            program = self._start_program(live, argv, cwd, words, (stdio[0], stdio[1], stdio[2]), ends)
            ours.pop_all()
        return program, (ends[0], ends[1], ends[2])

    def _start_program(
        self,
        live: Live,
        argv: Sequence[str],
        cwd: str,
        environment: Sequence[str],
        stdio: tuple[int, int, int],
        ends: Sequence[int],
    ) -> Program:
        """`ends`: our ends of the program's pipes, the one to its standard input first."""
        with live.state:
            try:
                live.box.keeper.keep_outputs(ends[1:])
                pid = live.box.keeper.start("program", cwd, argv, environment, stdio)
            except OSError as error:
                raise NotFound(
                    f"cannot start {argv[0]!r} in {cwd}: {os.strerror(error.errno or 0)}",
                    hint="both are looked up inside the session",
                ) from error
            program = Program(pid, tuple(os.fstat(end).st_ino for end in ends))
            with live.exits:
                live.programs[pid] = program
                early = live.early_exits.pop(pid, None)
            if early is not None:
                self._exited(live, pid, early)
        return program

    def run_beside(
        self, live: Live, argv: Sequence[str], cwd: str, environment: Mapping[str, str], timeout: float
    ) -> RunResult:
        """A program outside the shell, run to its end; its output and errors together."""
        words = [f"{name}={value}" for name, value in environment.items()]
        started = time.monotonic()
        reader, writer = os.pipe()
        nothing, unused = os.pipe()
        with os.fdopen(reader, "rb") as output:
            try:
                program = self._start_program(
                    live, argv, cwd, words, (nothing, writer, writer), (unused, reader)
                )
            finally:
                for fd in (nothing, writer, unused):
                    os.close(fd)
            collected = bytearray()
            hearing = threading.Thread(target=lambda: collected.extend(output.read()), daemon=True)
            hearing.start()
            timed_out = not program.ended.wait(timeout)
            if timed_out:
                host_pid = live.box.host_pid(program.pid)
                if host_pid:
                    with contextlib.suppress(OSError):
                        os.killpg(host_pid, signal.SIGKILL)
            hearing.join(1.0)
        return RunResult(
            exit_code=program.exit_code,
            output=bytes(collected).decode(errors="replace"),
            duration_ms=round((time.monotonic() - started) * 1000, 3),
            timed_out=timed_out,
            output_bytes=len(collected),
        )

    def _shell_environment(self, live: Live) -> dict[str, str]:
        """What the shell exports at this moment; only the shell itself knows."""
        told = live.terminal.run(secrets.token_hex(6), "command env -0 | command base64 -w0", silent=True)
        words = base64.b64decode(told.output).split(b"\0")
        return dict(os.fsdecode(word).split("=", 1) for word in words if b"=" in word)

    # ---- trajectory --------------------------------------------------------------------------

    def tell(
        self,
        row: SessionRow,
        kind: EventKind,
        body: Mapping[str, Any],
        *,
        actor: Actor = "person",
        data: bytes | None = None,
    ) -> int:
        """Adds to what happened in a session, redacted; kept when this returns. The number of the event."""
        return self.trajectory.tell(row.id, kind, body, actor=actor, data=data, redactor=self.redactor(row))

    def settle(self, row: SessionRow) -> None:
        """Until everything is kept that has happened in a session so far."""
        if live := self._lives.get(row.id):
            live.terminal.flush_background()
        self.trajectory.settle(row.id)

    def redactor(self, row: SessionRow) -> Redactor:
        """One that knows the secrets among the variables of a session."""
        live = self._lives.get(row.id)
        if live and (found := self._redactor(live.box, live.terminal)):
            return found
        head = self.store.points.find(row.head) if row.head else None
        return Redactor.for_variables(self.facts(head).shell.exported) if head else Redactor()

    def _redactor(self, box: Box, terminal: Terminal) -> Redactor | None:
        """None when its shell cannot be looked at: it is gone, or not there yet."""
        exported = look_at_shell(box, terminal).exported
        return Redactor.for_variables(exported) if exported else None

    # ---- checkpoint --------------------------------------------------------------------------

    def checkpoint(
        self,
        row: SessionRow,
        intent: str = "",
        *,
        name: str | None = None,
        files_only: bool = False,
        kind: Kind = "manual",
        actor: Actor = "person",
        state: AgentState | None = None,
    ) -> Checkpoint:
        """Captures the session whole; it goes on running. `state`: what its agent leaves with it."""
        if name is not None:
            refs.check_name(name, "checkpoint")
        with self.steady(row) as live:
            row = self.find(row.id)
            if name is not None and (
                self.store.points.name_taken(row.id, name) or name in self.store.points.tags(row.id)
            ):
                raise AlreadyExists(
                    f"session {row.name!r} has a checkpoint {name!r} already",
                    hint="choose another name; `waypoint log` lists them",
                )
            return self._capture(
                row, live, intent, name=name, files_only=files_only, kind=kind, actor=actor, state=state
            )

    @_running_out_of_space()
    def _capture(
        self,
        row: SessionRow,
        live: Live,
        intent: str,
        *,
        name: str | None,
        files_only: bool,
        kind: Kind,
        actor: Actor = "automatic",
        state: AgentState | None = None,
    ) -> Checkpoint:
        started = time.perf_counter()
        source: IntentFrom = "command" if kind == "auto" else "given"
        if not intent:
            # Who gives none meant what was just done; a card may still find something better.
            intent = live.terminal.last_command or ""
            source = "command" if intent else "none"
        for asked in self.before_checkpoint:
            asked(None if files_only else live)
        checkpoint_id = new_id()
        staged = self.home.staging / checkpoint_id
        images = staged / "images"
        with contextlib.ExitStack() as undo:
            staged.mkdir(mode=0o700)
            undo.callback(self._delete, staged)
            images.mkdir(mode=0o700)
            live.terminal.wait_prompt()
            self.pool.flush(live.box.volume)
            live.terminal.settle()
            pause_ms, count = 0.0, 0
            observed: list[Facts] = []
            covered = list(coverage(row.options, self.base_of(row.options), self.home))
            # What happens after the freeze comes after the point.
            undo.callback(live.stream.release)
            if files_only:
                note_moved_mounts(live.box.volume, live.box.pid)
                live.stream.hold()
                self.pool.snapshot(live.box.volume, staged / "files", readonly=True)
                covered.append("processes are not part of it: files only")
            else:
                pipes = [inode for program in live.programs.values() for inode in program.pipes]
                with (
                    self._copied_ahead(live) as size_bytes,
                    self._ram.ahead_of(images, size_bytes) as written,
                ):
                    with live.terminal.no_typing(), contextlib.ExitStack() as around:
                        for surround in self.during_dump:
                            around.enter_context(surround(live, written))
                        shell = live.terminal.shell
                        dump = around.enter_context(
                            Dump(
                                live.box,
                                written,
                                outside_pipes=pipes,
                                shell=shell.pid if shell else 0,
                                memory=live.memory,
                                complete_folder=images,
                            )
                        )
                        terminal_state: TerminalState | None = None
                        for members in dump.pauses():  # the tree stands still; the last turn counts
                            self.pool.delete(staged / "files")
                            terminal_state = live.terminal.freeze()
                            live.stream.hold()
                            note_moved_mounts(live.box.volume, live.box.pid)
                            self.pool.snapshot(live.box.volume, staged / "files", readonly=True)
                            observed.append(
                                observe(
                                    live.box, live.terminal, members, own_network=row.options.net != "host"
                                )
                            )
                    assert terminal_state
                    (written / _TERMINAL_FILE).write_bytes(msgspec.json.encode(terminal_state))
                    (written / _FACTS_FILE).write_bytes(msgspec.json.encode(observed[-1]))
                    addresses = tuple(bound_addresses(written)) if row.options.net == "nat" else ()
                    facts = BoxFacts(addresses=addresses, open_files=dump.state.open_files)
                    (written / _BOX_FILE).write_bytes(msgspec.json.encode(facts))
                record_sizes(images)
                pause_ms, count = dump.stats.pause_ms, dump.state.processes
                covered += dump.state.notes
                covered += lost_from_dev(live.box.pid)
                if dump.state.outside_pipes:
                    covered.append(
                        "streams of programs started with --pipe end at a restore; the programs go on"
                    )
            published = self.home.checkpoints / checkpoint_id
            os.rename(staged, published)
            undo.pop_all()
            undo.callback(live.stream.release)
            undo.callback(self._delete, published)
            live.stream.flush()
            point = self.store.points.add(
                checkpoint_id,
                row.id,
                name=name,
                intent=_without_secrets(intent, observed),
                kind=kind,
                parent=row.head,
                pause_ms=round(pause_ms, 3),
                total_ms=round((time.perf_counter() - started) * 1000, 3),
                size_bytes=sum(entry.stat().st_size for entry in os.scandir(published / "images")),
                processes=count,
                files_only=files_only,
                coverage=tuple(covered),
                actor=actor,
                intent_from=source,
                state=state,
            )
            undo.pop_all()
            live.stream.release()
        if not files_only:
            live.memory.set_baseline(published / "images")
        for told in self.after_checkpoint:
            told(row, point)
        if kind != "safety" and not files_only:
            self.later(lambda: self.want_spares(row.id))
        self.when_calm(self.pool.sync)
        return point

    @contextlib.contextmanager
    def _copied_ahead(self, live: Live) -> Iterator[int]:
        """Copies much memory before the session stops for it; about how much is left to be copied then."""
        size_bytes = live.memory.prepare(processes.host_pids(live.box.pid))
        if not live.memory.should_precopy(size_bytes):
            yield size_bytes
            return
        with self._ram.passing(size_bytes) as folder:
            if folder:
                size_bytes -= live.memory.precopy(folder)
                self.pool.flush(live.box.volume)  # that took its time
            yield size_bytes

    def facts(self, point: Checkpoint) -> Facts:
        """What a checkpoint observed; nothing for one that holds files only."""
        try:
            text = (self.home.checkpoints / point.id / "images" / _FACTS_FILE).read_bytes()
        except OSError:
            return Facts()
        return msgspec.json.decode(text, type=Facts)

    # ---- forgetting --------------------------------------------------------------------------

    @contextlib.contextmanager
    def using(self, point: Checkpoint) -> Iterator[None]:
        """Until then the point cannot be forgotten."""
        with self._lock:
            if self.store.points.find(point.id) is None:
                raise NotFound(
                    f"{point.label} has just been forgotten", hint="`waypoint log` lists the points"
                )
            self._in_use[point.id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_use.subtract((point.id,))
                self._in_use += Counter()  # drops those that nobody uses

    def forget(self, point_id: str) -> bool:
        """Removes a point: its row, then its folder. False when a session stands on it or is about to."""
        with self._lock:
            if self._in_use[point_id] or any(row.head == point_id for row in self.store.sessions.all()):
                return False
            self.store.points.remove(point_id)
        self.spares.drop([point_id])
        self._delete(self.home.checkpoints / point_id)
        return True

    # ---- restore, undo, fork -----------------------------------------------------------------

    def incarnate_apart(self, point: Checkpoint) -> Live:
        """A live copy of a point that is no session. Whoever asked for it ends it with `discard`."""
        origin, copy_id = self.find(point.session), new_id()
        self.apart[copy_id] = origin.id
        try:
            with self.using(point):
                live, _ = self._incarnate(
                    origin.name, origin.options, point, copy_id, files_only=False, apart=True
                )
                return live
        except BaseException:
            self.apart.pop(copy_id, None)
            raise

    def discard(self, live: Live) -> None:
        """Ends such a copy; nothing of it is left."""
        with live.state:
            self._end(live, "it was only a trial")
        self.apart.pop(live.session_id, None)
        self._delete(live.box.volume)

    def _incarnate(
        self,
        name: str,
        options: BoxOptions,
        point: Checkpoint,
        session_id: str,
        *,
        files_only: bool,
        size: Size | None = None,
        apart: bool = False,
    ) -> tuple[Live, bool]:
        """A live copy of a checkpoint in a box of its own, and whether it was a spare. Undoes itself when it
        fails. `apart`: no spare is used up for it."""
        if files_only or point.files_only:
            return self._begin_anew(name, options, point, session_id, size or Size()), False
        twin = None if apart else self.spares.take(point.id, lambda one: one.suits(options))
        spare = twin is not None
        if twin is None:
            twin = self._hold(name, options, point)
        try:
            self._let_go(twin, point, name, session_id, size)
        except BaseException as error:
            self._end_spare(twin)
            if not spare or twin.held.released or not isinstance(error, (OSError, WaypointError)):
                raise
            log.warning("a spare of %s was of no use: %s", point.id, error)
            twin, spare = self._hold(name, options, point), False
            try:
                self._let_go(twin, point, name, session_id, size)
            except BaseException:
                self._end_spare(twin)
                raise
        volume = twin.live.box.volume
        self.when_calm(lambda: drop_old_work(volume))
        return twin.live, spare

    def _begin_anew(
        self, name: str, options: BoxOptions, point: Checkpoint, session_id: str, size: Size
    ) -> Live:
        """The files of a point with a fresh shell."""
        volume = self.home.sessions / new_id()
        with contextlib.ExitStack() as undo:
            self.pool.snapshot(self.home.checkpoints / point.id / "files", volume, readonly=False)
            undo.callback(self._delete, volume)
            box, _ = self._build_box(name, options, volume, size, BoxFacts())
            live = self._adopt(session_id, box, size)
            undo.callback(self._end, live, "the restore failed")
            box.keeper.start_anchor()
            self._start_shell(live, "/root")
            undo.pop_all()
        return live

    def _hold(self, name: str, options: BoxOptions, point: Checkpoint) -> Twin:
        """A copy of a whole point in a box of its own, up to the moment before its first instruction."""
        source = self.home.checkpoints / point.id
        images = source / "images"
        volume = self.home.sessions / new_id()
        with contextlib.ExitStack() as undo:
            self.pool.snapshot(source / "files", volume, readonly=False)
            undo.callback(self._delete, volume)
            check_sizes(images)
            state = msgspec.json.decode((images / _TERMINAL_FILE).read_bytes(), type=TerminalState)
            facts = msgspec.json.decode((images / _BOX_FILE).read_bytes(), type=BoxFacts)
            box, _ = self._build_box(name, options, volume, state.size, facts)
            live = self._adopt("", box, state.size)
            undo.callback(self._end, live, "the restore failed")
            held = hold(box, images)
            live.memory.track_from(processes.host_pids(box.pid), images)
            live.terminal.thaw(state)
            live.terminal.find_shell()
            self._remember_terminal(live)
            undo.pop_all()
        return Twin(live, held, name, options)

    def _let_go(self, twin: Twin, point: Checkpoint, name: str, session_id: str, size: Size | None) -> None:
        """Makes a held copy the session's, and lets it run."""
        live = twin.live
        live.session_id = live.stream.session_id = session_id
        if name != twin.name and self.base_of(twin.options) != Path("/"):  # there it is the host's
            live.box.keeper.set_hostname(name)
        for told in self.before_waking:
            told(live, point)
        twin.held.release()
        if twin.options.net == "nat" and twin.held.state.network_locked:
            space = live.box.open_namespace("net")
            try:
                abort_outside_connections(space)
            finally:
                os.close(space)
        if size:
            live.terminal.resize(size)

    # ---- spares ------------------------------------------------------------------------------

    def _make_spare(self, point_id: str) -> Twin:
        point = self.store.points.find(point_id)
        if point is None:
            raise NotFound(f"point {point_id} is gone")
        origin = self.find(point.session)
        with self.using(point):
            twin = self._hold(origin.name, origin.options, point)
        try:
            twin.held.stop_timers()
        except BaseException:
            self._end_spare(twin)
            raise
        return twin

    def _end_spare(self, twin: Twin) -> None:
        twin.held.close()
        self._end(twin.live, "it was never used")
        self._delete(twin.live.box.volume)

    def want_spares(self, session_id: str) -> None:
        """Says which points of a session should have one: where it stands, then its newest named ones."""
        row = self.store.sessions.find(session_id)
        number = 0
        if row and row.state == "live":
            number = spares.per_session() if row.options.spares is None else row.options.spares
        points = self.store.points.likely_targets(session_id, number) if number else []
        self.spares.want(session_id, [spares.Wanted(point, size) for point, size in points])

    def restore(
        self,
        row: SessionRow,
        ref: str,
        *,
        safety: bool = True,
        files_only: bool = False,
        verb: str = "restore",
        undoes: int | None = None,
        actor: Actor = "person",
    ) -> Restored:
        """Takes a session to a point. The old tree ends only when the new one runs: a failure changes
        nothing."""
        started = time.perf_counter()
        point = self.point(row, ref)
        with contextlib.ExitStack() as ours:
            ours.enter_context(self.using(point))
            ours.enter_context(self._moving(row.id))
            old = self._lives.get(row.id)
            if old and not old.box.alive:
                self._died(old)
                old = None
            if old:
                ours.enter_context(old.state)
                if old.ended.is_set():  # by itself, meanwhile
                    old = None
            row = self.find(row.id)
            kept = None
            if old and safety:
                try:
                    kept = self._capture(
                        row,
                        old,
                        f"before {verb} to {point.name or point.label}",
                        name=None,
                        files_only=False,
                        kind="safety",
                    )
                except CannotCheckpoint as error:
                    error.hint = (
                        "the present could not be saved first: `--no-safety` restores without, and it is lost"
                    )
                    raise
            size = old.terminal.size if old else None
            live, spare = self._incarnate(
                row.name, row.options, point, row.id, files_only=files_only, size=size
            )
            try:
                with self.trajectory.moving(live.stream):
                    self.store.operations.record_move(
                        row.id,
                        verb,
                        box=live.box.id,
                        target=point.id,
                        before=kept.id if kept else None,
                        undoes=undoes,
                        actor=actor,
                    )
            except BaseException:
                self._end(live, "the session could not be moved")
                self._delete(live.box.volume)
                raise
            with self._lock:
                self._lives[row.id] = live
            if old:
                live.terminal.take_watchers(old.terminal)
            ready_ms = (time.perf_counter() - started) * 1000
            if old:
                # It runs no more from here on; what is left of it is cleared away after the answer.
                old.box.signal_end()
                old.ended.set()
            leftover = self.home.sessions / row.box if row.box else None
            before = self._leaving.get(row.id)
            self._leaving[row.id] = self.when_calm(lambda: self._clear_away(old, leftover, before))
        self.later(lambda: self.want_spares(row.id))
        return Restored(
            session=self.describe(self.find(row.id)),
            checkpoint=point,
            ready_ms=round(ready_ms, 3),
            safety=kept,
            spare=spare,
        )

    def _clear_away(self, old: Live | None, volume: Path | None, before: Future[None] | None) -> None:
        """What a restore has left behind. When that is done, so is all that was left `before`."""
        if before:
            wait((before,))
        if old:
            with old.state:
                self._end(old, "the session was restored to another point meanwhile")
        if volume:
            self._delete(volume)

    def undo(self, row: SessionRow, actor: Actor = "person") -> Restored:
        """Takes the last restore (of everything or of files, or redo) back."""
        with self._moving(row.id):
            done = [op for op in self.store.operations.all(row.id) if op.verb in UNDOABLE and not op.undone]
            if not done:
                raise NotFound(
                    "there is nothing to undo",
                    hint="only a restore can be undone; `waypoint log` lists the points",
                )
            last = done[-1]
            if last.before is None:
                raise NotFound(
                    "the last restore took no safety checkpoint", hint="choose a point from `waypoint log`"
                )
            return self.restore(row, last.before, verb="undo", undoes=last.id, actor=actor)

    def redo(self, row: SessionRow, actor: Actor = "person") -> Restored:
        """Takes the last undo back, if nothing else has moved the session since."""
        with self._moving(row.id):
            done = [op for op in self.store.operations.all(row.id) if not op.undone]
            if not done or done[-1].verb != "undo" or done[-1].before is None:
                raise NotFound(
                    "there is nothing to redo", hint="only an undo can be redone, and only right after it"
                )
            return self.restore(row, done[-1].before, verb="redo", undoes=done[-1].id, actor=actor)

    def fork(
        self, row: SessionRow, ref: str, n: int = 1, name: str | None = None, actor: Actor = "person"
    ) -> list[Forked]:
        """`n` new live sessions grown from a point, made side by side: all of them or none."""
        if not 1 <= n <= _MOST_FORKS:
            raise UsageError(f"cannot make {n} forks", hint=f"between 1 and {_MOST_FORKS}")
        point = self.point(row, ref)
        with self.using(point):
            return self._fork(self.store.sessions.find(point.session) or row, point, n, name, actor)

    def _fork(
        self, origin: SessionRow, point: Checkpoint, n: int, name: str | None, actor: Actor
    ) -> list[Forked]:
        names = self._fork_names(name, n, origin.name)
        started = time.perf_counter()

        def grow(one: str) -> tuple[Live, Forked]:
            session_id = new_id()
            live, spare = self._incarnate(one, origin.options, point, session_id, files_only=False)
            ready_ms = round((time.perf_counter() - started) * 1000, 3)
            return live, Forked(id=session_id, name=one, ready_ms=ready_ms, spare=spare)

        made: list[tuple[Live, Forked]] = []
        failures: list[BaseException] = []
        with ThreadPoolExecutor(max_workers=min(n, 2 * (os.cpu_count() or 1))) as workers:
            for outcome in [workers.submit(grow, one) for one in names]:
                if failure := outcome.exception():  # whatever it is, those beside it are not left behind
                    failures.append(failure)
                else:
                    made.append(outcome.result())
        try:
            if failures:
                raise failures[0]
            for live, fork in made:
                self.store.sessions.add(
                    *(fork.id, fork.name, origin.options),
                    box=live.box.id,
                    head=point.id,
                    began=origin.began,
                    actor=actor,
                    policy=origin.policy,
                )
                with self._lock:
                    self._lives[fork.id] = live
                self.trajectory.adopt(live.stream)
        except BaseException as error:
            for live, fork in made:
                self._end(live, "a fork beside it failed")
                self.store.sessions.remove(fork.id)
                self._delete(live.box.volume)
            if isinstance(error, OSError):
                raise CannotRestore(f"the fork failed: {error}") from error
            raise
        return [fork for _, fork in made]

    def _fork_names(self, name: str | None, n: int, origin: str) -> list[str]:
        taken = {row.name for row in self.store.sessions.all()}
        if name is not None:
            refs.check_name(name, "session")
            names = [name] if n == 1 else [f"{name}-{number}" for number in range(1, n + 1)]
            clashes = [one for one in names if one in taken]
            if clashes:
                raise AlreadyExists(
                    f"there is a session {clashes[0]!r} already", hint="choose another --name"
                )
            return names
        free = (f"{origin}-{number}" for number in _counting())
        names = []
        while len(names) < n:
            one = next(free)
            if one not in taken:
                names.append(one)
        return names

    def park(self, row: SessionRow) -> tuple[Session, Checkpoint]:
        """A checkpoint, and then the processes end: memory is free, `restore` brings it back."""
        with self._moving(row.id), self.steady(row) as live:
            row = self.find(row.id)
            point = self._capture(row, live, "parked", name=None, files_only=False, kind="park")
            self._end(live, "the session was parked")
            self.store.sessions.set_state(row.id, "parked", box=None)
        self.want_spares(row.id)
        if row.box:
            self._delete(self.home.sessions / row.box)
        return self.describe(self.find(row.id)), point


def _told(stream: Stream, what: TerminalEvent) -> None:
    event = record(what)
    stream.later(event.kind, event.body, actor=what.actor, data=event.data, at=what.at)


def _careful(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        log.exception("background work failed")


def _without_secrets(words: str, observed: Sequence[Facts] = ()) -> str:
    """Words that will be shown. A command line may hold a password, or the value of a secret variable."""
    variables = observed[-1].shell.exported if observed else {}
    return Redactor.for_variables(variables).redact(words).text if words else words


def _first_files(name: str, options: BoxOptions, base: Path) -> dict[str, str]:
    """What a box needs to know of its network and its name, where the base does not say it."""
    files = {}
    if options.net == "nat":
        files["/etc/resolv.conf"] = resolver_config().text
    elif options.net == "host" and base != Path("/"):
        with contextlib.suppress(OSError):
            files["/etc/resolv.conf"] = Path("/etc/resolv.conf").read_text()
    if base != Path("/"):
        files["/etc/hostname"] = f"{name}\n"
        files["/etc/hosts"] = f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost\n"
    return files


def _counting() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number
