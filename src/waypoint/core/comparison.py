"""What differs between two moments of a session: points, the present, or the base.

Files, packages, databases, processes, ports, the shell, and what left over the network. A part that cannot be
looked at is a gap in the difference and does not fail it.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waypoint.api.difference import Changes, Contact, Difference, LiveDifference
from waypoint.api.findings import Analysis
from waypoint.box.plan import coverage
from waypoint.box.volume import hidden_paths, noted_hidden
from waypoint.core.contacts import Contacts
from waypoint.core.live import new_id, start_environment
from waypoint.core.observe import ShellPlace, observe
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.errors import SessionDead, UsageError, WaypointError
from waypoint.history import facts as live_facts
from waypoint.history.analyzers import analyze
from waypoint.history.changes import compare_views, is_noise
from waypoint.history.facts import Facts
from waypoint.history.redaction import Redactor
from waypoint.history.shell import ShellFact
from waypoint.history.view import PointView
from waypoint.kernel import processes
from waypoint.kernel.pool.deltas import differences
from waypoint.kernel.pool.protocol import Pool
from waypoint.model import Checkpoint, from_plain
from waypoint.store.sessions import SessionRow
from waypoint.text.findings import describe_gap
from waypoint.text.live import describe_not_compared

_KEEPS_IN_MEMORY = re.compile(r"(?:\S*/)?(?:redis-server|valkey-server|keydb-server|memcached)(?:\s|$)")
"""Servers whose data is in their memory first, and in files later or never."""

BASE = "base"
NOW = "now"


@dataclass(frozen=True)
class Moment:
    """A point as it can be compared: a checkpoint, the present, or the base."""

    view: PointView
    facts: Facts
    label: str
    point: Checkpoint | None = None
    present_of: SessionRow | None = None
    """Whose present it is, if it is one."""
    is_base: bool = False


class Comparison:
    """Compares moments of the sessions of one home."""

    def __init__(
        self,
        registry: Registry,
        pool: Pool,
        remains: Remains,
        contacts: Contacts,
        analyze: Callable[..., Analysis] = analyze,
    ) -> None:
        """`analyze`: what reads the files of sessions (core/analyst.py); by default this process does."""
        self._analyze = analyze
        self._registry, self._store, self._home = registry, registry.store, registry.home
        self._pool, self._remains, self._contacts = pool, remains, contacts

    # ---- moments -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def moment(self, row: SessionRow, ref: str | None) -> Iterator[Moment]:
        """A ref, `now` (or None) or `base`, seen from a session."""
        if ref == BASE:
            # What the shell's start-up files did before the first prompt is not a change of the session.
            start = row.first_shell or fresh_shell()
            yield Moment(self._view(row, None), Facts(shell=start), "the base", is_base=True)
        elif ref in (None, NOW):
            with self._present(row) as present:
                yield present
        else:
            yield self.past(self._registry.point(row, ref))

    def past(self, point: Checkpoint) -> Moment:
        """A point as it was taken."""
        row = self._registry.find(point.session)
        view = self._view(row, point.id)
        return Moment(view, self._registry.facts(point), point.name or point.label, point)

    def _view(self, row: SessionRow, point_id: str | None) -> PointView:
        """The files of a point, or those the session began with; the base alone if these are not known."""
        base = self._registry.base_of(row.options)
        volume: Path | None = None
        if point_id:
            volume = self._home.checkpoints / point_id / "files"
        elif row.beginning and (self._home.beginnings / row.beginning).is_dir():
            volume = self._home.beginnings / row.beginning
        return PointView(volume, base, hide=self._hidden(row, base, volume))

    def _hidden(self, row: SessionRow, base: Path, volume: Path | None) -> set[str]:
        """What belongs to no point: what is hidden from a session now, and what was when it began. A Waypoint
        home that is not mounted any more has not come into the session by that."""
        noted = noted_hidden(volume, base) if volume else ()
        return {*hidden_paths(row.options, base, self._home), *noted}

    @contextlib.contextmanager
    def _present(self, row: SessionRow) -> Iterator[Moment]:
        """A read-only snapshot of the volume, deleted afterwards, and a look at what runs. Where nothing runs
        any more the files may still be there; a parked session is where it was parked."""
        base, volume = self._registry.base_of(row.options), self._home.staging / new_id()
        head = self._registry.head(row)
        with contextlib.ExitStack() as undo:
            try:
                live = self._registry.live(row)
            except SessionDead:
                left = self._home.sessions / (row.box or "")
                if not row.box or not left.is_dir():
                    if head is None:
                        raise
                    yield self.past(head)
                    return
                undo.callback(self._remains.delete, volume)
                self._pool.snapshot(left, volume, readonly=True)
                # Of its shell no more is known than its last point tells.
                facts = Facts(
                    shell=self._registry.facts(head).shell if head else row.first_shell or fresh_shell()
                )
            else:
                live.terminal.wait_prompt()
                undo.callback(self._remains.delete, volume)
                with live.state, self._registry.death_named(row, live):
                    self._pool.snapshot(live.box.volume, volume, readonly=True)
                    below = processes.below(live.box.pid)
                    members = [process for process in below if process.comm != "waypoint-anchor"]
                    own_network = row.options.net != "host"
                    observed = observe(
                        live.box, ShellPlace.of(live.terminal), members, own_network=own_network
                    )
                facts = observed.facts()
            view = PointView(volume, base, hide=self._hidden(row, base, volume))
            yield Moment(view, facts, "now", present_of=row)

    def coverage(self, row: SessionRow) -> tuple[str, ...]:
        """What points of a session do not hold, one sentence each."""
        not_held = coverage(row.options, self._registry.base_of(row.options), self._home)
        return (*not_held, *self._contacts.not_watched(row.options.net))

    # ---- differences -------------------------------------------------------------------------

    def changes(self, old: Moment, new: Moment) -> Changes:
        """What changed in the files, exactly; `difference` is for people."""
        if new.is_base or new.view.volume is None:
            raise UsageError("the base is where everything starts", hint="give it as the first of the two")
        if old.view.volume is None:
            return compare_views(None, new.view)
        return compare_views(old.view, new.view, differences(old.view.volume, new.view.volume, skip=is_noise))

    def difference(self, old: Moment, new: Moment) -> Difference:
        """Everything that changed, redacted."""
        gaps: list[str] = []
        redactor = Redactor.for_variables({**old.facts.shell.values, **new.facts.shell.values})
        files, analysis = Changes(), Analysis()
        try:
            files = self.changes(old, new)
        except UsageError:
            raise
        except (OSError, WaypointError, ValueError) as error:
            gaps.append(f"no files were compared, what changed in them is not told ({error})")
        else:
            touched = [path for change in files for path in {change.real_path, change.real_old_path}]
            # Folders that went or came as a whole: what was in them is not listed file by file.
            moved = [
                change for change in files if change.entry == "folder" and (change.files or change.old_path)
            ]
            folders = [path for change in moved for path in {change.real_path, change.real_old_path}]
            renamed = {change.real_path: change.real_old_path for change in files if change.kind == "renamed"}
            analysis = self._analyze(old.view, new.view, touched, folders=folders, moved=renamed)
            gaps += map(describe_gap, analysis.gaps)
        gaps += [
            f"{posixpath.basename(process.command.split()[0])} (pid {process.pid}):"
            " which keys changed in its memory since it last saved is not told,"
            " a restore brings all of them back as they were"
            for process in new.facts.processes
            if _KEEPS_IN_MEMORY.match(process.command)
        ]
        live, not_compared = LiveDifference(), list[str]()
        if files_only := [moment.label for moment in (old, new) if moment.point and moment.point.files_only]:
            gaps.append(f"processes, ports and shell: {' and '.join(files_only)} holds files only")
        else:
            live = live_facts.compare_facts(old.facts, new.facts)
            gaps += _shell_gaps(old, new)
            row = new.present_of or (self._registry.find(new.point.session) if new.point else None)
            not_compared = describe_not_compared(
                live_facts.went_on(old.facts, new.facts),
                foreground=new.facts.shell.foreground,
                own_network=row is None or row.options.net != "host",
            )
        clean_live, hidden_live = redactor.redact_json(msgspec.to_builtins(live))
        clean_analysis, hidden_analysis = redactor.redact_json(msgspec.to_builtins(analysis))
        contacts = self._contacts_between(old, new)
        clean_contacts, hidden_contacts = redactor.redact_json(msgspec.to_builtins(contacts))
        return Difference(
            files=files,
            analysis=from_plain(clean_analysis, Analysis),
            live=from_plain(clean_live, LiveDifference),
            gaps=tuple(redactor.redact(gap).text for gap in gaps),
            redacted=hidden_live + hidden_analysis + hidden_contacts,
            contacts=from_plain(clean_contacts, tuple[Contact, ...]),
            not_compared=tuple(redactor.redact(phrase).text for phrase in not_compared),
        )

    def since_last_point(self, row: SessionRow, now: Moment) -> Difference:
        """What has changed since the point a session stands on, or since its base."""
        with self.moment(row, row.head or BASE) as before:
            return self.difference(before, now)

    def _contacts_between(self, old: Moment, new: Moment) -> list[Contact]:
        """What left on the way from the one to the other; nothing where no way leads."""
        row = new.present_of
        at = row.head if row else new.point.id if new.point else None
        parents, steps = self._store.points.parents(), []
        while at and not (old.point and at == old.point.id):
            steps.append(at)
            at = parents.get(at)
        if old.point and not at:
            return []
        return self._contacts.between(steps, present_of=row.id if row else None)

    def has_changed(self, row: SessionRow, besides: Sequence[str] = ()) -> bool:
        """Whether anything is different from the last point. `besides`: files at or below these paths do not
        count, and of what runs only ports do (a process that writes there also starts others)."""
        with self.moment(row, row.head or BASE) as before, self.moment(row, None) as now:
            live = live_facts.compare_facts(before.facts, now.facts)
            if not besides:
                return not live.empty or bool(self.changes(before, now))
            return bool(live.opened or live.closed) or any(
                not any(change.path == path or change.path.startswith(f"{path}/") for path in besides)
                for change in self.changes(before, now)
            )


def _shell_gaps(old: Moment, new: Moment) -> Iterator[str]:
    """What of the shell is not known at one of two moments."""
    if unknown := [moment.label for moment in (old, new) if moment.facts.shell.listing is None]:
        yield (
            "shell: variables that are not exported, bodies of functions, aliases, options, umask and traps"
            f" are not known at {' and '.join(unknown)}"
        )
    for process in live_facts.nested_shells(new.facts):
        yield (
            f"shell: {process.command} (pid {process.pid}) runs inside the session's shell, its folder,"
            " variables and settings are not known"
        )


def fresh_shell() -> ShellFact:
    """A shell in which nothing was done yet."""
    return ShellFact(cwd="/root", exported=start_environment())
