"""Boxes that stand, as the daemon serves them: terminals, reports of the keepers, shells, the end.

From `build` on (or `take_over`, for a box of an earlier daemon) the terminal of a box is read and its doors
are open; `end` takes everything of the daemon's away again. What happens in a terminal goes into the
trajectory, to the gate (which judges what a person typed) and to the automatic points.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

import msgspec

from waypoint.agent.trajectory import Trajectory
from waypoint.box.box import Box
from waypoint.box.keeper import Keeper
from waypoint.box.plan import inside_path, tell_id
from waypoint.box.starter import start
from waypoint.box.users import User
from waypoint.core.auto import AutoPoints
from waypoint.core.background import Background
from waypoint.core.builder import BoxBuilder, BoxFacts
from waypoint.core.contacts import Contacts
from waypoint.core.engine import Engine, TrackedMemory
from waypoint.core.forwards import Forwards
from waypoint.core.gate import Gate
from waypoint.core.live import Doors, Live, start_environment
from waypoint.core.observe import exported_variables
from waypoint.core.registry import Registry
from waypoint.errors import WaypointError
from waypoint.history.redaction import Redactor
from waypoint.home import Home
from waypoint.kernel import atomic, faults, processes
from waypoint.model import MALFORMED, BoxOptions, Size, from_json
from waypoint.store.sessions import SessionRow
from waypoint.terminal.emulator import TURN_SECONDS
from waypoint.terminal.pump import Pump
from waypoint.terminal.recording import TerminalEvent, record
from waypoint.terminal.shell import Shell
from waypoint.terminal.terminal import Terminal, TerminalState

log = logging.getLogger("waypoint")

_RCFILE = "/dev/waypoint/bin/integration.bash"
_SHELL_STARTS = 3
"""After this many shells in a row that ended before their first prompt no other is started."""
_MOST_EARLY_EXITS = 256
_REST_SECONDS = 2 * TURN_SECONDS
"""A terminal whose output takes a whole turn to read has a third of the daemon's time at most."""


class Boxes:
    """The boxes of one home that stand."""

    def __init__(
        self,
        home: Home,
        engine: Engine,
        builder: BoxBuilder,
        registry: Registry,
        trajectory: Trajectory,
        background: Background,
        doors: Doors,
        contacts: Contacts,
        forwards: Forwards,
        gate: Gate,
        auto: AutoPoints,
    ) -> None:
        self._home, self._engine, self._builder = home, engine, builder
        self._registry, self._trajectory, self._background = registry, trajectory, background
        self._doors, self._contacts, self._forwards = doors, contacts, forwards
        self._gate, self._auto = gate, auto
        self._pump = Pump()

    # ---- beginning ---------------------------------------------------------------------------

    def build(
        self,
        session_id: str,
        volume: Path,
        name: str,
        options: BoxOptions,
        size: Size,
        facts: BoxFacts = BoxFacts(),  # noqa: B008 - it is frozen
    ) -> Live:
        """A box on a volume, with nothing running in it. From here on its terminal is read."""
        base = self._registry.base_of(options)
        self._registry.require_own_base(options)
        box = self._builder.build(volume, name, options, base, size, facts)
        with contextlib.ExitStack() as undo:
            undo.callback(self._builder.remove, box)
            undo.enter_context(box.end_named("build a box"))
            if session_id:
                with contextlib.suppress(FileNotFoundError):  # tests below root build boxes without a folder
                    tell_id(inside_path(self._registry.home, box.id), session_id)
            live = self._connect(session_id, box, size, options)
            undo.callback(self._let_go, live)
            if options.user:
                with contextlib.suppress(WaypointError):  # it may be gone from the files of a point
                    uid, _ = box.host_ids(live.user().uid, 0)
                    live.terminal.give_to(uid)
            live.terminal.feed(live.terminal.events.serve())
            self._serve(live)
            faults.reach("box.served")
            undo.pop_all()
        return live

    def take_over(self, row: SessionRow, box: Box) -> Live:
        """A box that an earlier daemon built. Its keeper has kept what the terminal printed meanwhile. The
        session is live again before that is read: a command that ended is judged like any other. If this
        fails, the box runs on and can be taken over again."""
        picture = None
        with contextlib.suppress(OSError, *MALFORMED):
            picture = from_json(self._picture_path(box.id).read_bytes(), TerminalState)
        with contextlib.ExitStack() as undo:
            undo.callback(box.close)
            live = self._connect(row.id, box, picture.size if picture else Size(), row.options)
            undo.callback(self._let_go, live)
            box.thaw()  # an earlier daemon may have ended in the middle of a restore
            printed = live.terminal.events.serve()
            undo.callback(self.remember_terminal, live)  # the keeper tells only once what was printed
            self._registry.add(live)
            self._trajectory.adopt(live.stream)
            if picture:
                live.terminal.take_over(picture, printed)
            else:
                live.terminal.feed(printed)
            self._serve(live)
            faults.reach("start.taken")
            undo.pop_all()
        return live

    def take_back(self, row: SessionRow, box: Box, state: TerminalState, memory: TrackedMemory) -> Live:
        """A frozen box that was left (`leave_frozen`) is to be the session's again: as it stood, and before
        it runs. If this fails, it goes on standing still and can be taken again."""
        with contextlib.ExitStack() as undo:
            live = self._connect(row.id, box, state.size, row.options, memory)
            undo.callback(self._let_go, live, keep_memory=True)
            live.terminal.thaw(state)
            live.terminal.feed(live.terminal.events.serve())
            live.terminal.find_shell()
            self._contacts.unwatch(box.id)
            self._serve(live)
            self.remember_terminal(live)
            undo.pop_all()
        return live

    def _connect(
        self,
        session_id: str,
        box: Box,
        size: Size,
        options: BoxOptions,
        memory: TrackedMemory | None = None,
    ) -> Live:
        hello = box.hello()
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, hello.master)
            undo.callback(os.close, hello.slave)
            events = self._builder.connect(box)
            undo.pop_all()
        terminal = Terminal(events, hello.master, hello.slave, box.pid, size)
        stream = self._trajectory.open(session_id, lambda: _redactor(box, terminal))
        memory = memory or self._engine.track_memory(box)
        live = Live(session_id, box, terminal, stream, memory, options)
        terminal.on_event = lambda event: self._terminal_event(live, event)
        return live

    def _serve(self, live: Live) -> None:
        terminal = live.terminal
        terminal.on_typed_command = lambda: self._auto.after_typing(live.session_id)
        self._pump.add(terminal.events.fileno(), lambda: self._keeper_reports(live, terminal.events))
        self._pump.add(terminal.master, lambda: self._read(live))
        self.follow_memory(live)
        self._contacts.watch(live)
        self._doors.open(live)

    # ---- terminals ---------------------------------------------------------------------------

    def _read(self, live: Live) -> None:
        if live.terminal.read():
            self._pump.run_when_idle(live.terminal, lambda: self._pause(live))
            if live.terminal.screen.busy:
                self._pump.rest(live.terminal.master, _REST_SECONDS)

    def _pause(self, live: Live) -> None:
        """Nothing was printed for a moment."""
        if live.terminal.screen.busy:
            self._read(live)
            return
        live.terminal.flush_background(paused=True)
        self.remember_terminal(live)

    def _terminal_event(self, live: Live, event: TerminalEvent) -> None:
        body = record(event)
        live.stream.add(body.kind, body.body, actor=event.actor, data=body.data, at=event.at)
        self._gate.terminal_event(live, event)

    def _picture_path(self, box_id: str) -> Path:
        return self._home.run / f"{box_id}.terminal"

    def remember_terminal(self, live: Live) -> None:
        """Writes the screen down for the next daemon. Best effort: it is only a picture."""
        if live.ended.is_set():
            return
        with contextlib.suppress(OSError, WaypointError, ValueError):
            picture = msgspec.json.encode(live.terminal.state())
            atomic.write(self._picture_path(live.box.id), picture, mode=0o600)
        if live.cleared:  # it ended meanwhile, and may have removed the file before it was written
            self._picture_path(live.box.id).unlink(missing_ok=True)

    # ---- keepers -----------------------------------------------------------------------------

    def _keeper_reports(self, live: Live, events: Keeper) -> None:
        try:
            words = events.read_event()
        except OSError:
            words = []
        if not words:
            self._pump.remove(events.fileno())
            if not live.ended.is_set():
                self._background.run(lambda: self.record_death(live))
            return
        if words[0] == "exited":
            self.record_exit(live, int(words[1]), int(words[2]))

    def record_exit(self, live: Live, pid: int, status: int) -> None:
        """A child of the anchor ended: the shell, a program, or an orphan."""
        with live.exits:
            program = live.programs.pop(pid, None)
            if program is None:
                live.early_exits[pid] = status
                while len(live.early_exits) > _MOST_EARLY_EXITS:
                    live.early_exits.pop(next(iter(live.early_exits)))
        if program:
            program.exit_code = processes.exit_code(status)
            program.ended.set()
        shell = live.terminal.shell
        if shell and shell.pid == pid:
            live.terminal.handle_exit(pid, status)
            self._background.run(lambda: self._replace_shell(live, shell))

    def _replace_shell(self, live: Live, gone: Shell) -> None:
        with live.state:
            if live.ended.is_set() or live.terminal.shell is not None:
                return
            live.lost_shells = 0 if gone.came_up else live.lost_shells + 1
            if live.lost_shells >= _SHELL_STARTS:
                log.warning("the shell of session %s ends at once; no other is started", live.session_id)
                return
            self.start_shell(live, gone.cwd)

    def start_shell(self, live: Live, cwd: str | None = None) -> None:
        """A fresh interactive bash on the terminal; without a folder where the session starts. Nothing is
        started where there is no bash."""
        if not live.box.has_bash():
            return
        key, user = secrets.token_hex(8), live.user()
        if cwd is None:
            cwd = live.first_folder(user)
        _give_state(live.box, user)
        # Known before it runs: its first mark may come before its pid does.
        live.terminal.announce_shell(Shell(pid=0, key=key, cwd=cwd))
        hello = live.box.hello()
        try:
            variables = {**start_environment(user, live.options), "WAYPOINT_KEY": key}
            words = [f"{name}={value}" for name, value in variables.items()]
            argv = ["/bin/bash", "--rcfile", _RCFILE, "-i"]
            pid = start(live.box.keeper, "shell", cwd, argv, words, (hello.slave,) * 3, user)
        finally:
            os.close(hello.master)
            os.close(hello.slave)
        live.terminal.set_shell_pid(pid)
        self.remember_terminal(live)
        with live.exits:
            early = live.early_exits.pop(pid, None)
        if early is not None:
            self.record_exit(live, pid, early)

    # ---- memory that comes later ---------------------------------------------------------------

    def follow_memory(self, live: Live) -> None:
        """Once the memory of a copy is all there, its page server is not needed any more."""
        connection = live.memory.watch()
        if connection is None:
            return

        def arrived() -> None:
            self._pump.remove(connection.fileno())
            connection.close()
            self._background.run_when_idle(lambda: self._complete_memory(live))

        self._pump.add(connection.fileno(), arrived)

    @staticmethod
    def _complete_memory(live: Live) -> None:
        with live.state:
            if not live.ended.is_set():
                live.memory.complete()

    # ---- the end -----------------------------------------------------------------------------

    def record_death(self, live: Live) -> None:
        """A box has gone by itself: everything in it was killed, or the machine ran out of memory."""
        with live.state:
            if live.ended.is_set():
                return
            why = live.memory.failure()
            if why:
                log.error("session %s has been ended: %s", live.session_id, why)
            self.end(live, f"the session ended: {why}" if why else "the session ended")
            row = self._registry.store.sessions.find(live.session_id)
            if row and row.state == "live":
                self._registry.store.sessions.set_state(row.id, "dead", box=row.box)

    def end(self, live: Live, why: str) -> None:
        """Ends a box and everything of the daemon's that belongs to it. The volume stays."""
        live.ended.set()
        with live.exits:
            if live.cleared:
                return
            live.cleared = True
        with contextlib.ExitStack() as steps:  # what comes first stands last; one that fails stops no other
            steps.callback(self._registry.drop, live)
            steps.callback(self._contacts.box_ended, live.session_id, live.box.id)
            steps.callback(self._picture_path(live.box.id).unlink, missing_ok=True)
            for program in live.programs.values():
                steps.callback(program.ended.set)
            steps.callback(live.terminal.events.close)
            steps.callback(live.memory.close)
            steps.callback(faults.reach, "box.removed")
            steps.callback(self._builder.remove, live.box)
            steps.callback(live.stream.close)
            steps.callback(live.terminal.close, why)
            steps.callback(self._pump.remove, live.terminal.events.fileno())
            steps.callback(self._pump.remove, live.terminal.master)
            steps.callback(self._gate.approvals.drop, live)
            steps.callback(faults.reach, "box.silent")
            steps.callback(self._doors.close, live)
            steps.callback(self._forwards.cut, live)

    def leave_frozen(self, live: Live, why: str) -> None:
        """The session is in another box, and this one goes on standing still: everything of the daemon's is
        taken away but the connection to its keeper and what is known of its memory. All who waited for
        something in it are told."""
        self._gate.approvals.drop(live)
        with live.exits:
            live.cleared = True
        self._let_go(live, why, keep_memory=True)
        for program in live.programs.values():
            program.ended.set()
        self._picture_path(live.box.id).unlink(missing_ok=True)

    def end_frozen(self, box: Box, memory: TrackedMemory) -> None:
        """Ends a box that was left standing still. Its volume stays."""
        with contextlib.ExitStack() as steps:
            steps.callback(memory.close)
            steps.callback(self._builder.remove, box)

    def find_frozen(self, box_id: str) -> tuple[Box, TrackedMemory] | None:
        """The same box, found by a later daemon. OSError when it stands and does not answer."""
        box = self._builder.find(box_id)
        self._picture_path(box_id).unlink(missing_ok=True)
        return (box, self._engine.track_memory(box)) if box else None

    def end_left_alone(self, box_id: str, pid: int) -> None:
        """Ends a box that this daemon could not take over, if it has not ended by itself."""
        self._builder.remove_unowned(box_id, pid)
        self._picture_path(box_id).unlink(missing_ok=True)

    def _let_go(
        self, live: Live, why: str = "the session could not be taken over", *, keep_memory: bool = False
    ) -> None:
        """Gives up everything of the daemon's that belongs to a box; the box itself is left as it is."""
        live.ended.set()
        with contextlib.ExitStack() as steps:
            steps.callback(self._registry.drop, live)
            if not keep_memory:
                steps.callback(self._contacts.unwatch, live.box.id)
                steps.callback(live.memory.close)
            steps.callback(live.terminal.events.close)
            steps.callback(live.stream.close)
            steps.callback(live.terminal.close, why)
            steps.callback(self._pump.remove, live.terminal.events.fileno())
            steps.callback(self._pump.remove, live.terminal.master)
            steps.callback(self._doors.close, live)
            steps.callback(self._forwards.cut, live)

    def close(self) -> None:
        """The daemon ends, the boxes do not: their terminals are written down for the next one."""
        for live in self._registry.lives():
            self.remember_terminal(live)
            live.terminal.flush_recording()


def _give_state(box: Box, user: User) -> None:
    """Lets the user's shell write what it reports."""
    if not user.is_root:
        folder = box.volume / "state"
        for path in (folder, *folder.iterdir()):
            os.chown(path, user.uid, user.gid, follow_symlinks=False)


def _redactor(box: Box, terminal: Terminal) -> Redactor | None:
    """None when its shell cannot be looked at: it is gone, or not there yet."""
    exported = exported_variables(box, terminal)
    return Redactor.for_variables(exported) if exported else None
