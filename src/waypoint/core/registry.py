"""What there is: sessions and points by name, what runs of them, and who may change it.

Locks. A session has one for verbs that take it elsewhere or end it, whether it runs or not (`moving`:
restore, park, stop, remove). After that one comes `Live.state`, held by verbs that change what it is in its
box. A verb that had to wait for `Live.state` may find that the session has moved, so it looks again
(`steady`). A terminal has its own turn for commands: a checkpoint can be taken while a command runs. Reading
the database needs none of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from waypoint.agent.trajectory import Trajectory
from waypoint.api.hints import Arg, Do, Hint
from waypoint.bases import store as bases
from waypoint.core.live import Live, patient
from waypoint.core.observe import exported_variables
from waypoint.core.pending import PendingPoints
from waypoint.errors import NotFound, SessionBusy, SessionDead, UsageError, WaypointError
from waypoint.history import refs
from waypoint.history.facts import Facts
from waypoint.history.redaction import Redactor
from waypoint.home import Home
from waypoint.kernel import faults, locks
from waypoint.kernel.pool.protocol import Pool
from waypoint.model import Actor, BoxOptions, Checkpoint, EventKind, Session, from_json
from waypoint.store import Store
from waypoint.store.database import iso
from waypoint.store.sessions import SessionRow

DYING_SECONDS = 1.0
_ARRIVAL_SECONDS = 60.0
"""A restore or a fork of a point does not take longer."""
FACTS_FILE = "facts.json"
"""Beside the images of a point: what was observed while its tree stood still."""


_TAKE_OVER_SECONDS = 10.0
"""How long a verb waits for a box that the daemon tries to take over."""


class LeftAlone(NamedTuple):
    """A box that runs and is not served: its id, the host pid of its keeper, and why."""

    box: str
    pid: int
    why: str
    again: bool
    """Whether this daemon tries again. If not, the box was built by another version of Waypoint."""


class Registry:
    """All sessions of one home, and those of them that run."""

    def __init__(self, home: Home, pool: Pool, store: Store, trajectory: Trajectory) -> None:
        self.home, self.pool, self.store, self.trajectory = home, pool, store, trajectory
        self.pending = PendingPoints(store)
        self._lock = locks.condition("registry")
        """Notified when a point is not used any more, and when a box that was left alone is so no more."""
        self._lives: dict[str, Live] = {}
        self._turns: dict[str, threading.RLock] = {}
        self._in_use: Counter[str] = Counter()
        """Points that are being brought to life."""
        self._arriving: Counter[str] = Counter()
        """Of these, the ones on which a session will stand."""
        self._removing: set[str] = set()
        """Sessions that are being removed."""
        self.left_alone: dict[str, LeftAlone] = {}
        """By session, boxes that run and that this daemon could not take over. They are not ended without
        being asked for."""
        self.throwaways: dict[str, str] = {}
        """Live copies that are not sessions and will not become any: their id, and the id of the session that
        each is a copy of."""

    # ---- finding -----------------------------------------------------------------------------

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
            raise NotFound("there are no sessions", hint=Hint("start one with ", Do("new")))
        raise UsageError(
            "more than one session: name one",
            hint=Hint("give ", Arg("status", "session"), " or set WAYPOINT_SESSION; ", self._listing()),
        )

    def find_for(self, name: str | None, *point_refs: str | None) -> SessionRow:
        """The session of that name; without a name, the one that a ref names by itself (`work:up`), or that
        alone has a point of that name."""
        named = (refs.split(ref)[0] for ref in point_refs if ref)
        name = name or next(filter(None, named), None)
        try:
            return self.find(name)
        except UsageError as error:
            if name is None and not isinstance(error, NotFound):
                everything = self.store.points.all()
                points = (refs.named_anywhere(ref, everything) for ref in point_refs if ref)
                if point := next(filter(None, points), None):
                    return self.find(point.session)
            raise

    def _listing(self) -> Hint:
        names = [row.name for row in self.store.sessions.all()]
        if names:
            return Hint(f"there are: {', '.join(names)}")
        return Hint("there are none: start one with ", Do("new"))

    def point(self, row: SessionRow, ref: str, *, saved: bool = True) -> Checkpoint:
        """The point that a ref means, seen from a session. One that is still being saved is waited for,
        unless not `saved`."""
        point = self._point(row, ref)
        return self.pending.saved(point) if point.pending and saved else point

    def _point(self, row: SessionRow, ref: str) -> Checkpoint:
        other, ref = refs.split(ref)
        if other:
            row = self.find(other)
        by_name = (
            self.store.points.find(ref)
            or self.store.pending.as_point(ref)
            or self.store.points.find(self.store.points.tags(row.id).get(ref, ""))
        )
        if by_name:
            return by_name
        number = refs.label_number(ref)
        if number is not None and (labelled := self.store.points.numbered(row.id, number)):
            return labelled  # without a look at all others
        everything = self.all_points()
        own = [point for point in everything if point.session == row.name]
        return refs.resolve(ref, own, everything, row.head, datetime.now().astimezone())

    def all_points(self) -> list[Checkpoint]:
        """Those of all sessions, oldest first, with those that are still being saved."""
        points = [*self.store.points.all(), *self.store.pending.points()]
        return sorted(points, key=lambda point: point.created_at)

    def head(self, row: SessionRow) -> Checkpoint | None:
        """The point that a session stands on."""
        return self.store.points.find(row.head) if row.head else None

    def base_of(self, options: BoxOptions) -> Path:
        """The root file system that sessions with these options are layered over."""
        if options.base.startswith("/"):
            return Path(os.path.realpath(options.base))
        return bases.base_path(self.pool, options.base)

    def require_own_base(self, options: BoxOptions) -> None:
        """Raises where sessions with these options would run what this installation has not imported."""
        if not options.base.startswith("/"):
            bases.require_own(self.pool, options.base)

    def describe(self, row: SessionRow) -> Session:
        """A session as clients see it."""
        live = self._lives.get(row.id)
        if live and not live.box.alive:  # its end has not been recorded yet
            live = None
        alone = self.left_alone.get(row.id)
        share = None
        if live:
            with contextlib.suppress(WaypointError):  # it ends just now
                share = self.pool.share(live.box.volume)
        return Session(
            id=row.id,
            name=row.name,
            state="dead" if row.state == "live" and live is None and alone is None else row.state,
            created_at=iso(row.created_at),
            options=row.options,
            head=row.head,
            head_label=self._head_label(row),
            forked_from=row.forked_from,
            pid=live.box.pid if live else alone.pid if alone else None,
            foreground=Redactor().redact(live.terminal.foreground() or "").text or None if live else None,
            auto=row.auto,
            approvals=tuple(self.store.ledger.approvals(session_id=row.id)),
            forwards=tuple(self.store.forwards.of(row.id)),
            memory_limit_bytes=live.box.limits.memory_bytes if live else None,
            pids_limit=live.box.limits.pids if live else None,
            open_files_limit=live.box.open_files_limit() if live else None,
            disk_limit_bytes=share.limit_bytes if share else None,
        )

    def _head_label(self, row: SessionRow) -> str | None:
        head = self.head(row)
        if head is None:
            return None
        return head.label if head.session == row.name else f"{head.session}:{head.label}"

    def describe_all(self) -> list[Session]:
        return [self.describe(row) for row in self.store.sessions.all()]

    # ---- what runs ---------------------------------------------------------------------------

    def add(self, live: Live) -> None:
        """From now on this is the session of that id."""
        with self._lock:
            self._lives[live.session_id] = live

    def drop(self, live: Live) -> None:
        """It runs no more; nothing when another has taken its place."""
        with self._lock:
            if self._lives.get(live.session_id) is live:
                del self._lives[live.session_id]

    def lives(self) -> list[Live]:
        """Every session that runs now."""
        with self._lock:
            return list(self._lives.values())

    def running(self, session_id: str) -> Live | None:
        """The session as it runs now, if it does. Its box may have died a moment ago."""
        return self._lives.get(session_id)

    def live(self, row: SessionRow) -> Live:
        """The running session, or SessionDead saying how to get it back."""
        self.require_own(row.id)
        live = self._lives.get(row.id)
        if live is None or not live.box.alive:
            how = {"parked": "is parked", "stopped": "is stopped"}.get(row.state, "does not run")
            back = Hint(Do("restore", session=row.name, ref="@"), " brings it back")
            gone = Hint("it has no point to come back to; ", Do("rm", sessions=[row.name]), " forgets it")
            raise SessionDead(f"session {row.name!r} {how}", hint=back if row.head else gone)
        return live

    def require_own(self, session_id: str) -> None:
        """SessionBusy for a session whose box this daemon could not take over. Where it tries again, this
        waits a while for it."""
        if session_id not in self.left_alone:
            return
        with self._lock:
            self._lock.wait_for(
                lambda: not ((now := self.left_alone.get(session_id)) and now.again),
                faults.limit(_TAKE_OVER_SECONDS),
            )
        alone = self.left_alone.get(session_id)
        if alone and alone.again:
            raise SessionBusy(
                f"this session runs, but its box could not be taken over: {alone.why}",
                hint=f"that is tried again by itself; if the box hangs, end its keeper (process {alone.pid})"
                " and restore the session: that takes it to its last point",
            )
        if alone:
            raise SessionBusy(
                f"this session runs in a box of another version of Waypoint: {alone.why}",
                hint=f"go on with that version; or end its keeper (process {alone.pid}), stop the daemon and"
                " restore the session",
            )

    def leave_alone_no_more(self, session_id: str) -> None:
        """Its box was taken over, or has ended."""
        with self._lock:
            self.left_alone.pop(session_id, None)
            self._lock.notify_all()

    # ---- locks -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def moving(
        self, session_id: str, *, removing: bool = False, ending: bool = False, alone: bool = False
    ) -> Iterator[None]:
        """For one verb at a time that takes a session elsewhere or ends it. `removing`: the one that removes
        it. `ending`: its box ends in any case, and another verb that is busy for long does not prevent that.
        `alone`: also a session whose box was left alone."""
        if not alone:
            self.require_own(session_id)
        with self._lock:
            turn = self._turns.setdefault(session_id, locks.rlock("session move"))
        live = self.running(session_id) if ending or removing else None
        with patient(turn, live.box) if live else turn:
            if not removing and session_id in self._removing:
                raise NotFound("this session is being removed", hint=self._listing())
            yield

    def drop_turn(self, session_id: str) -> None:
        """The session was removed."""
        self._turns.pop(session_id, None)

    @contextlib.contextmanager
    def steady(self, row: SessionRow) -> Iterator[Live]:
        """The running session; no other verb changes it meanwhile."""
        while True:
            live = self.live(self.find(row.id))
            with live.state:
                if not live.ended.is_set():
                    with self.death_named(row, live):
                        yield live
                    return

    @contextlib.contextmanager
    def death_named(self, row: SessionRow, live: Live) -> Iterator[None]:
        """A verb that fails in an unforeseen way because the box has died under it says so."""
        try:
            yield
        except WaypointError:
            raise
        except Exception as error:
            if not live.box.ends_within(DYING_SECONDS):
                raise
            raise SessionDead(
                f"session {row.name!r} has ended in the middle of this",
                hint=Hint(Do("restore", session=row.name, ref="@"), " brings it back"),
            ) from error

    @contextlib.contextmanager
    def using(self, point: Checkpoint, *, arriving: bool = False) -> Iterator[Checkpoint]:
        """The point, as it is now, cannot be forgotten meanwhile. `arriving`: a session will stand on it, so
        its own session is not removed meanwhile either."""
        with self._lock:
            now = self.store.points.find(point.id)
            if now is None:
                raise NotFound(
                    f"{point.label} has just been forgotten", hint=Hint(Do("log"), " lists the points")
                )
            self._in_use[point.id] += 1
            self._arriving[point.id] += arriving
        try:
            yield now
        finally:
            with self._lock:
                self._in_use[point.id] -= 1
                self._arriving[point.id] -= arriving
                self._in_use += Counter()  # drops the zeros
                self._arriving += Counter()
                self._lock.notify_all()

    @contextlib.contextmanager
    def removing(self, session_ids: Sequence[str]) -> Iterator[None]:
        """These sessions are about to be removed: no other verb moves them any more."""
        for session_id in session_ids:
            self.require_own(session_id)
        with self._lock:
            if self._removing & {*session_ids}:
                raise NotFound("this session is being removed", hint=self._listing())
            self._removing |= {*session_ids}
        try:
            yield
        finally:
            with self._lock:
                self._removing -= {*session_ids}

    @contextlib.contextmanager
    def settled(self, rows: Sequence[SessionRow]) -> Iterator[None]:
        """No other session is on its way to a point of these, and none sets out meanwhile."""
        names = {row.id for row in rows}

        def quiet() -> bool:
            coming = (self.store.points.find(point_id) for point_id in self._arriving)
            return not any(point and self.find(point.session).id in names for point in coming)

        with self._lock:
            if not self._lock.wait_for(quiet, faults.limit(_ARRIVAL_SECONDS)):
                raise SessionBusy(
                    "a point of it is being restored or forked", hint="try again when that is done"
                )
            yield

    def remove_point(self, point_id: str) -> bool:
        """Removes the row of a point; False when a session stands on it or is about to."""
        with self._lock:
            if self._in_use[point_id] or any(row.head == point_id for row in self.store.sessions.all()):
                return False
            self.store.points.remove(point_id)
        return True

    # ---- what is known of a session ----------------------------------------------------------

    def facts(self, point: Checkpoint) -> Facts:
        """What was observed when a point was taken; nothing for one that holds files only."""
        try:
            text = (self.home.checkpoints / point.id / "images" / FACTS_FILE).read_bytes()
        except OSError:
            return Facts()
        return from_json(text, Facts)

    def redactor(self, row: SessionRow) -> Redactor:
        """One that knows the secrets among the variables of a session."""
        live = self._lives.get(row.id)
        if live and (exported := exported_variables(live.box, live.terminal)):
            return Redactor.for_variables(exported)
        head = self.head(row)
        return Redactor.for_variables(self.facts(head).shell.exported) if head else Redactor()

    def record(
        self,
        row: SessionRow,
        kind: EventKind,
        body: Mapping[str, Any],
        *,
        actor: Actor = "person",
        data: bytes | None = None,
    ) -> int:
        """Adds an event to the trajectory of a session, redacted. It is stored when this returns, with the
        number of the event."""
        return self.trajectory.record(row.id, kind, body, actor=actor, data=data, redactor=self.redactor(row))

    def settle(self, row: SessionRow) -> None:
        """Waits until everything is stored that has happened in a session so far."""
        if live := self._lives.get(row.id):
            live.terminal.flush_background()
        self.trajectory.wait_written(row.id)
