"""Starting, parking and stopping sessions."""

from __future__ import annotations

import contextlib
import logging

import msgspec

from waypoint.api.hints import Arg, Do, Hint
from waypoint.bases import store as bases
from waypoint.box.plan import check_options, resolve_binds, usable_variables
from waypoint.core.boxes import Boxes
from waypoint.core.builder import BoxBuilder
from waypoint.core.capture import Capture, Wish
from waypoint.core.comparison import Comparison
from waypoint.core.copies import Copies
from waypoint.core.forwards import Forwards
from waypoint.core.live import INSIDE_PATH, Twin, new_id
from waypoint.core.observe import look_at_shell
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.core.safety import Safety
from waypoint.core.spares import Spares
from waypoint.errors import (
    AlreadyExists,
    CannotRestore,
    ConfirmationNeeded,
    NotFound,
    UsageError,
    WaypointError,
)
from waypoint.history import refs
from waypoint.kernel import faults
from waypoint.kernel.memory import machine_bytes
from waypoint.model import BoxOptions, Checkpoint, Session, Size
from waypoint.store.sessions import SessionRow
from waypoint.text.cards import summarize
from waypoint.text.difference import describe_difference
from waypoint.text.plan import point_label

log = logging.getLogger("waypoint")


class Sessions:
    """Begins and ends the sessions of one home."""

    def __init__(
        self,
        registry: Registry,
        builder: BoxBuilder,
        boxes: Boxes,
        capture: Capture,
        copies: Copies,
        remains: Remains,
        forwards: Forwards,
        spares: Spares[Twin],
        comparison: Comparison,
        safety: Safety,
        *,
        userns: bool = False,
    ) -> None:
        """`userns`: sessions are in a user namespace, where they do not say otherwise and can be."""
        self._userns = userns
        self._registry, self._store, self._home = registry, registry.store, registry.home
        self._builder, self._boxes, self._capture = builder, boxes, capture
        self._copies, self._forwards = copies, forwards
        self._remains, self._spares, self._comparison = remains, spares, comparison
        self._safety = safety

    def new(
        self,
        name: str | None,
        options: BoxOptions,
        size: Size,
        *,
        join: bool = False,
        needs_shell: bool = True,
    ) -> Session:
        """Starts a session: a box over its base with a shell at its prompt. `join`: one of that name that
        exists is returned as it is. `needs_shell`: a base without bash is refused."""
        if name and join and (row := self._store.sessions.find(name)):
            return self._registry.describe(row)
        if name is None:
            taken = {row.name for row in self._store.sessions.all()}
            name = next(f"s{n}" for n in range(1, len(taken) + 2) if f"s{n}" not in taken)
        refs.check_name(name, "session")
        if self._store.sessions.find(name):
            raise AlreadyExists(
                f"there is a session {name!r} already",
                hint=Hint("attach to it with ", Do("attach", session=name), ", or choose another name"),
            )
        base = self._registry.base_of(options)
        if options.userns is None:
            wanted = self._userns and options.confined and options.net != "host"
            options = msgspec.structs.replace(options, userns=wanted)
        check_options(options, base, self._home, needs_shell=needs_shell)
        given_cwd = options.cwd
        options = self._with_image(resolve_binds(options))
        volume = self._home.sessions / new_id()
        with contextlib.ExitStack() as undo:
            undo.callback(self._remains.delete, volume)
            self._builder.make_volume(volume, name, options, base)
            faults.reach("new.volume")
            live = self._boxes.build(new_id(), volume, name, options, size)
            undo.callback(self._boxes.end, live, "the session could not be started")
            undo.enter_context(live.box.end_named("start the session"))
            live.box.start_tree()
            faults.reach("new.anchored")
            if given_cwd and not live.has_folder(given_cwd):
                raise NotFound(f"there is no folder {given_cwd} in the session", hint="leave the folder out")
            self._boxes.start_shell(live)
            faults.reach("new.shell")
            if live.terminal.shell:
                live.terminal.wait_ready()
            faults.reach("new.ready")
            beginning = self._home.beginnings / live.session_id
            undo.callback(self._remains.delete, beginning)
            self._registry.pool.snapshot(volume, beginning, readonly=True)
            faults.reach("new.beginning")
            row = self._store.sessions.add(
                live.session_id,
                name,
                options,
                box=live.box.id,
                first_shell=look_at_shell(live.box, live.terminal),
                beginning=beginning.name,
            )
            faults.reach("new.stored")
            self._registry.add(live)
            self._registry.trajectory.adopt(live.stream)
            undo.pop_all()
        return self._registry.describe(row)

    def _with_image(self, options: BoxOptions) -> BoxOptions:
        """What the image says that a base was imported from holds where the options say nothing."""
        if options.build or options.base.startswith("/"):
            return options
        image = bases.read_base(self._registry.pool, options.base).image
        env = usable_variables(image.env)
        if "PATH" in env:
            env["PATH"] = f"{INSIDE_PATH}:{env['PATH']}"
        return msgspec.structs.replace(
            options,
            user=options.user or image.user or None,
            env={**env, **options.env},
            cwd=options.cwd or image.workdir or None,
        )

    def park(self, row: SessionRow, name: str | None = None) -> tuple[Session, Checkpoint]:
        """A checkpoint, and when that is durable the processes end: memory is free, a restore brings it
        back."""
        with self._registry.moving(row.id), self._registry.steady(row) as live:
            row = self._registry.find(row.id)
            self._capture.check_name(row, name)
            point = self._capture.take(
                row, live, Wish("parked", name=name, kind="park", actor="automatic", durable=True)
            )
            faults.reach("park.taken")
            self._prove(point, "parked")
            faults.reach("park.proven")
            self._forwards.end_all(row.id)
            self._boxes.end(live, "the session was parked")
            faults.reach("park.ended")
            self._store.sessions.set_state(row.id, "parked", box=None)
            with self._remains.going([self._home.sessions / row.box] if row.box else []):
                faults.reach("park.stored")
                self._spares.update(row.id)
        return self._registry.describe(self._registry.find(row.id)), point

    def _prove(self, point: Checkpoint, done: str) -> None:
        """Before processes end, their point must be known to come back. Where memory does not suffice for
        both at once, the point stays unproven, and `show` says so. `done`: what becomes of the session, in a
        word."""
        if point.size_bytes > machine_bytes().get("MemAvailable", 0) // 2:
            log.warning("%s of session %s is too large to be proven", point.label, point.session)
            return
        try:
            self._copies.prove(point.id)
        except CannotRestore as error:
            raise CannotRestore(
                f"session {point.session!r} was not {done}: {error.message}",
                hint=Hint(
                    "its processes run on; end the one that cannot be restored, and take another point"
                ),
                **error.details,
            ) from error

    def stop(self, row: SessionRow, *, discard: bool = False) -> tuple[Session, Checkpoint]:
        """The processes end, the points stay: a restore brings the session back to the last one. Without
        `discard` only if nothing has changed since."""
        with self._registry.moving(row.id):
            row = self._registry.find(row.id)
            self._registry.live(row)
            head = self._registry.head(row)
            if head is None:
                raise UsageError(
                    f"session {row.name!r} has no point to come back to",
                    hint=Hint(
                        Do("checkpoint", session=row.name),
                        " takes one; ",
                        Do("rm", sessions=[row.name]),
                        " removes the session",
                    ),
                )
            if not discard and (changed := self._since(row, head)):
                raise ConfirmationNeeded(
                    f"session {row.name!r} has changed since {point_label(head, row.name)}: {changed}",
                    hint=Hint(
                        Do("park", session=row.name),
                        " takes a point of it first; ",
                        Arg("stop", discard=True),
                        " stops it without",
                    ),
                )
            with self._registry.steady(row) as live:
                if head.restorable != "proven" and not head.files_only:
                    self._prove(head, "stopped")
                self._forwards.end_all(row.id)
                self._boxes.end(live, "the session was stopped")
                faults.reach("stop.gone")
                self._store.sessions.set_state(row.id, "stopped", box=None)
                with self._remains.going([self._home.sessions / row.box] if row.box else []):
                    faults.reach("stop.stored")
                    self._spares.update(row.id)
        return self._registry.describe(self._registry.find(row.id)), head

    def _since(self, row: SessionRow, head: Checkpoint) -> str:
        """In words, what is in no point; nothing when that can be said for certain."""
        try:
            with (
                self._comparison.moment(row, head.id) as old,
                self._comparison.moment(row, None) as now,
            ):
                difference = self._comparison.difference(old, now)
        except (WaypointError, OSError) as error:
            return f"what has changed could not be found out ({error})"
        return summarize(difference) if describe_difference(difference) else ""

    def stop_all(self) -> None:
        """Ends every box; what was live is dead afterwards and can be restored."""
        self._safety.save_all()
        for session_id in [*self._registry.left_alone]:
            with self._registry.moving(session_id, alone=True):
                if alone := self._registry.left_alone.get(session_id):
                    self._boxes.end_left_alone(alone.box, alone.pid)
                    self._store.sessions.set_state(session_id, "dead", box=alone.box)
                    self._registry.leave_alone_no_more(session_id)
        for known in self._store.sessions.all():
            with self._registry.moving(known.id, ending=True):
                row, live = self._store.sessions.find(known.id), self._registry.running(known.id)
                if row and live:
                    with live.ending():
                        self._boxes.end(live, "the session was stopped")
                        faults.reach("stop.ended")
                        self._store.sessions.set_state(row.id, "dead", box=row.box)
