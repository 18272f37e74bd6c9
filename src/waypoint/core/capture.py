"""Taking a point: a session captured whole, while it goes on running.

`Capture.take` is the walk of it, top to bottom. Nothing exists before its row in the database: a failure
before that is undone, and the session runs on. A daemon that dies between the rename and the row leaves a
complete folder, from which the next one makes the row.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from waypoint.agent.trajectory import Stream
from waypoint.api.hints import Do, Hint
from waypoint.box.box import Box
from waypoint.box.plan import coverage, lost_from_dev
from waypoint.box.volume import note_moved_mounts
from waypoint.core import pointfile
from waypoint.core.background import Background
from waypoint.core.builder import BoxFacts
from waypoint.core.cards import Cards
from waypoint.core.contacts import Contacts
from waypoint.core.dedupe import Dedupe
from waypoint.core.digests import Digests
from waypoint.core.durability import Durability
from waypoint.core.engine import Engine, TrackedMemory, TreeDump
from waypoint.core.forwards import Forwards
from waypoint.core.kept import KeptFiles
from waypoint.core.live import TICKETS_FILE, Doors, Live, Twin, new_id
from waypoint.core.observe import Observation, ShellPlace, observe
from waypoint.core.pointfile import PointFile
from waypoint.core.registry import FACTS_FILE, Registry
from waypoint.core.remains import Remains
from waypoint.core.space import DiskSpace
from waypoint.core.spares import Spares
from waypoint.engine.images import TreeState, bound_addresses, record_sizes, stopped_pids
from waypoint.errors import AlreadyExists
from waypoint.history import refs
from waypoint.history.facts import Facts
from waypoint.history.redaction import Redactor
from waypoint.home import Home
from waypoint.kernel import faults, processes
from waypoint.kernel.memory import Ram
from waypoint.kernel.network.sockets import Connection
from waypoint.kernel.pool.protocol import Pool
from waypoint.kernel.pool.subvolume import nested_names
from waypoint.kernel.processes import printable
from waypoint.kernel.seals import Key
from waypoint.model import Actor, BoxOptions, Checkpoint, IntentFrom, Kind, Record
from waypoint.store.points import AgentState, NewPoint
from waypoint.store.sessions import SessionRow
from waypoint.terminal.terminal import TerminalState

TERMINAL_FILE = "terminal"
BOX_FILE = "box.json"
"""Beside the images of a point: the terminal, and what a restore has to know of the box."""


@dataclass(frozen=True)
class Wish:
    """What the caller of a capture wants it to be."""

    intent: str = ""
    name: str | None = None
    files_only: bool = False
    kind: Kind = "manual"
    actor: Actor = "person"
    state: AgentState | None = None
    """What the session's agent leaves with the point."""
    durable: bool = False
    """Whether the caller waits until a power cut would not take the point."""


@dataclass(frozen=True)
class _Dump:
    """What was saved, besides the images and the files themselves."""

    pause_ms: float = 0.0
    processes: int = 0
    facts: Facts | None = None
    not_covered: tuple[str, ...] = ()


class FrozenTree(Record, frozen=True):
    """What has to be known of a tree that stands still, to save it later: also by another daemon."""

    terminal: TerminalState
    shell: ShellPlace
    outside_pipes: tuple[int, ...] = ()
    forwarded: tuple[Connection, ...] = ()
    tickets: bytes = b""


class Stage:
    """A point that is being put together: a folder that is deleted again unless `keep` was called."""

    def __init__(self, home: Home, remains: Remains, point_id: str | None = None) -> None:
        self.id = point_id or new_id()
        self.folder = home.staging / self.id
        self._published, self._remains, self._kept = home.checkpoints / self.id, remains, False

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def __enter__(self) -> Self:
        self.folder.mkdir(mode=0o700)
        try:
            self.images.mkdir(mode=0o700)
        except BaseException:
            self._remains.delete(self.folder)
            raise
        return self

    def publish(self) -> None:
        """One rename moves it to where points are. It exists once a row names it."""
        os.rename(self.folder, self._published)
        self.folder = self._published

    def keep(self) -> None:
        self._kept = True

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self._remains.delete(self.folder)


class Capture:
    """Takes points of the sessions of one home."""

    def __init__(
        self,
        registry: Registry,
        pool: Pool,
        engine: Engine,
        ram: Ram,
        remains: Remains,
        doors: Doors,
        contacts: Contacts,
        forwards: Forwards,
        space: DiskSpace,
        dedupe: Dedupe,
        digests: Digests,
        kept: KeptFiles,
        cards: Cards,
        spares: Spares[Twin],
        durability: Durability,
        background: Background,
        key: Key,
        *,
        always_durable: bool = False,
    ) -> None:
        self._registry, self._store, self._home = registry, registry.store, registry.home
        self._pool, self._engine, self._ram, self._remains = pool, engine, ram, remains
        self._doors, self._contacts, self._forwards = doors, contacts, forwards
        self._space, self._dedupe = space, dedupe
        self._digests, self._kept, self._cards, self._spares = digests, kept, cards, spares
        self._background, self._key = background, key
        self._durability, self._always_durable = durability, always_durable

    def checkpoint(self, row: SessionRow, wish: Wish) -> Checkpoint:
        """Takes a point of a session that runs."""
        with self._registry.steady(row) as live:
            row = self._registry.find(row.id)
            self.check_name(row, wish.name)
            return self.take(row, live, wish)

    def check_name(self, row: SessionRow, name: str | None) -> None:
        """Refuses a name that a new point of the session cannot have."""
        if name is None:
            return
        refs.check_name(name, "checkpoint")
        if self._store.points.name_taken(row.id, name) or name in self._store.points.tags(row.id):
            raise AlreadyExists(
                f"session {row.name!r} has a checkpoint {name!r} already",
                hint=Hint("choose another name; ", Do("log", session=row.name), " lists them"),
            )

    def take(self, row: SessionRow, live: Live, wish: Wish) -> Checkpoint:
        """The walk of a capture. The caller holds `live.state`."""
        started = time.perf_counter()
        intent, intent_from = _intent(live, wish)
        self._dedupe.interrupt()
        dumped = None if wish.files_only else live.box
        self._space.require_room(dumped)
        faults.reach("capture.begun")
        with (
            self._space.room_named(dumped),
            Stage(self._home, self._remains) as stage,
            _written_until_freeze(live.stream),
        ):
            faults.reach("capture.staged")
            live.terminal.wait_prompt()
            self._pool.flush(live.box.volume)
            faults.reach("capture.flushed")
            live.terminal.settle()
            faults.reach("capture.settled")
            covered = self._coverage(row)
            dump = self._snapshot_files(row, live, stage) if wish.files_only else self._dump(row, live, stage)
            live.stream.flush()
            new = self._with_dump(
                self.new_point(row, wish, stage.id, intent, intent_from), dump, covered, stage
            )
            new = msgspec.structs.replace(new, total_ms=_elapsed_ms(started))
            pointfile.write(stage.folder, PointFile(new, row), self._key)
            faults.reach("capture.noted")
            stage.publish()
            faults.reach("capture.published")
            point = self._store.points.add(new)  # from here on it exists
            faults.reach("capture.stored")
            stage.keep()
            faults.reach("capture.kept")
        self._afterwards(row, live, point)
        if wish.durable or self._always_durable:
            self._durability.reach()
            return msgspec.structs.replace(point, durable=True)
        return point

    def _coverage(self, row: SessionRow) -> tuple[str, ...]:
        """What no point of a session holds."""
        return tuple(coverage(row.options, self._registry.base_of(row.options), self._home))

    def new_point(
        self,
        row: SessionRow,
        wish: Wish,
        point_id: str,
        intent: str | None = None,
        intent_from: IntentFrom = "given",
    ) -> NewPoint:
        """A point of now, before it is known what was saved."""
        return NewPoint(
            id=point_id,
            session=row.id,
            number=self._store.points.next_number(row.id),
            name=wish.name,
            intent=wish.intent if intent is None else intent,
            kind=wish.kind,
            parent=row.head,
            created_at=time.time(),
            pause_ms=0.0,
            total_ms=0.0,
            size_bytes=0,
            processes=0,
            files_only=wish.files_only,
            coverage=(),
            actor=wish.actor,
            intent_from=intent_from,
            state=wish.state,
            tasks=self._store.sessions.tasks(row.id).decode(),
            platform=self._engine.platform,
        )

    @staticmethod
    def _with_dump(new: NewPoint, dump: _Dump, covered: Sequence[str], stage: Stage) -> NewPoint:
        return msgspec.structs.replace(
            new,
            intent=_without_secrets(new.intent, dump.facts),
            pause_ms=round(dump.pause_ms, 3),
            size_bytes=sum(entry.stat().st_size for entry in os.scandir(stage.images)),
            processes=dump.processes,
            coverage=(*covered, *dump.not_covered),
        )

    def save_frozen(
        self, row: SessionRow, new: NewPoint, box: Box, tree: FrozenTree, memory: TrackedMemory
    ) -> Checkpoint:
        """The walk for a point that is pending: its tree stands still before, and does so afterwards."""
        started = time.perf_counter()
        self._dedupe.interrupt()
        self._space.require_room(box)
        with self._space.room_named(box), Stage(self._home, self._remains, new.id) as stage:
            self._pool.flush(box.volume)
            dump = self._dump_frozen(row, box, tree, memory, stage)
            new = self._with_dump(new, dump, self._coverage(row), stage)
            new = msgspec.structs.replace(new, total_ms=_elapsed_ms(started))
            # As the session was then: it has another box by now.
            then = msgspec.structs.replace(row, box=box.id, head=new.parent)
            pointfile.write(stage.folder, PointFile(new, then), self._key)
            faults.reach("pending.noted")
            stage.publish()
            faults.reach("pending.published")
            point = self._store.pending.complete(new)  # from here on it is like any other
            stage.keep()
        self.tell_saved(row, box.id, point)
        return point

    def save_files_of(self, row: SessionRow, new: NewPoint, box_id: str) -> Checkpoint:
        """A pending point of which only the files are left."""
        with self._space.room_named(None), Stage(self._home, self._remains, new.id) as stage:
            self._pool.snapshot(self._home.sessions / box_id, stage.files, readonly=True)
            lost = "its processes are lost: their box has ended before they were saved"
            new = msgspec.structs.replace(new, files_only=True, coverage=(*self._coverage(row), lost))
            then = msgspec.structs.replace(row, box=box_id, head=new.parent)
            pointfile.write(stage.folder, PointFile(new, then), self._key)
            stage.publish()
            point = self._store.pending.complete(new)
            stage.keep()
        self.tell_saved(row, box_id, point)
        return point

    def tell_saved(self, row: SessionRow, box_id: str, point: Checkpoint) -> None:
        """What follows from a point that was pending. It cannot fail because of any of it."""
        self._contacts.assign_ended(row.id, box_id, point)
        self._follow(point)

    def _dump_frozen(
        self, row: SessionRow, box: Box, tree: FrozenTree, memory: TrackedMemory, stage: Stage
    ) -> _Dump:
        observed: Observation | None = None
        size_bytes = sum(sum(processes.memory_bytes(pid)) for pid in processes.host_pids(box.pid))
        with self._ram.staged_in_memory(stage.images, size_bytes) as images:
            with self._engine.dump(
                box,
                images,
                outside_pipes=tree.outside_pipes,
                shell=tree.terminal.shell.pid if tree.terminal.shell else 0,
                memory=memory,
                complete_folder=stage.images,
                forwarded=frozenset(tree.forwarded),
                stays_frozen=True,
            ) as dump:
                for members in dump.pauses():
                    self._pool.delete(stage.files)
                    observed = self._capture_pause(row, box, tree.shell, members, stage)
            faults.reach("pending.dumped")
            facts = self._describe(row, images, tree, observed, dump.state)
        return self._finished(row, box, stage, dump, facts)

    def _snapshot_files(self, row: SessionRow, live: Live, stage: Stage) -> _Dump:
        """The files alone; nothing is stopped for them."""
        note_moved_mounts(live.box.volume, live.box.pid)
        live.stream.hold()
        self._pool.snapshot(live.box.volume, stage.files, readonly=True)
        faults.reach("capture.files")
        mounted = (
            f"{printable(mount.path)} ({mount.fstype}) was mounted inside the session and is left out"
            for mount in live.box.mounts_made_inside()
        )
        changed = _changed_mounts(live.box, row.options)
        nested = _nested_subvolumes(live.box.volume)
        return _Dump(not_covered=("processes are not part of it: files only", *mounted, *changed, *nested))

    def _dump(self, row: SessionRow, live: Live, stage: Stage) -> _Dump:
        """The process tree and the files of one moment. The pause is in the loop and nowhere else."""
        shell = live.terminal.shell
        pipes = tuple(inode for program in live.programs.values() for inode in program.pipes)
        tree: FrozenTree | None = None
        observed: Observation | None = None
        with (
            self._precopied(live) as size_bytes,
            self._ram.staged_in_memory(stage.images, size_bytes) as images,
        ):
            faults.reach("capture.precopied")
            with (
                live.terminal.no_typing(),
                self._doors.closed_for_dump(live) as tickets,
                self._forwards.closed_for_dump(live) as forwarded,
                self._contacts.counted_until_freeze(live),
                self._engine.dump(
                    live.box,
                    images,
                    outside_pipes=pipes,
                    shell=shell.pid if shell else 0,
                    memory=live.memory,
                    complete_folder=stage.images,
                    forwarded=forwarded,
                ) as dump,
            ):
                for members in dump.pauses():  # nothing in the box runs in here; the last turn counts
                    faults.reach("capture.held")
                    self._pool.delete(stage.files)
                    terminal = live.terminal.freeze()
                    live.stream.hold()
                    place = ShellPlace.of(live.terminal)
                    tree = FrozenTree(terminal, place, pipes, tuple(sorted(forwarded)), tickets)
                    observed = self._capture_pause(row, live.box, place, members, stage)
                    faults.reach("capture.observed")
            faults.reach("capture.dumped")
            assert tree
            facts = self._describe(row, images, tree, observed, dump.state)
            faults.reach("capture.described")
        faults.reach("capture.moved")
        return self._finished(row, live.box, stage, dump, facts)

    def _capture_pause(
        self,
        row: SessionRow,
        box: Box,
        shell: ShellPlace,
        members: Sequence[processes.Process],
        stage: Stage,
    ) -> Observation:
        """What is done while the tree stands still, beside CRIU's own work."""
        note_moved_mounts(box.volume, box.pid)
        self._pool.snapshot(box.volume, stage.files, readonly=True)
        faults.reach("capture.snapshotted")
        return observe(box, shell, members, own_network=row.options.net != "host")

    @staticmethod
    def _describe(
        row: SessionRow, images: Path, tree: FrozenTree, observed: Observation | None, state: TreeState
    ) -> Facts | None:
        """Writes what stands beside the images."""
        facts = observed.facts(stopped=stopped_pids(images)) if observed else None
        addresses = bound_addresses(images) if row.options.net == "nat" else ()
        box = BoxFacts(addresses=tuple(addresses), open_files=state.open_files, forwarded=tree.forwarded)
        (images / TERMINAL_FILE).write_bytes(msgspec.json.encode(tree.terminal))
        (images / FACTS_FILE).write_bytes(msgspec.json.encode(facts))
        (images / BOX_FILE).write_bytes(msgspec.json.encode(box))
        if tree.tickets:
            (images / TICKETS_FILE).write_bytes(tree.tickets)
        return facts

    @staticmethod
    def _finished(row: SessionRow, box: Box, stage: Stage, dump: TreeDump, facts: Facts | None) -> _Dump:
        """The images are where they stay."""
        record_sizes(stage.images)
        for image in os.scandir(stage.images):
            os.chmod(image, 0o600)  # CRIU makes them readable for all; they are memory
        faults.reach("capture.sized")
        not_covered = [*dump.state.notes, *lost_from_dev(box.pid), *_changed_mounts(box, row.options)]
        not_covered += _nested_subvolumes(box.volume)
        if dump.state.outside_pipes:
            not_covered.append("streams between programs and clients end at a restore; the programs go on")
        return _Dump(dump.stats.pause_ms, dump.state.processes, facts, tuple(not_covered))

    @contextlib.contextmanager
    def _precopied(self, live: Live) -> Iterator[int]:
        """Copies large memory before the session stops. Yields about how much is left for the pause."""
        size_bytes = live.memory.prepare(processes.host_pids(live.box.pid))
        if not live.memory.should_precopy(size_bytes):
            yield size_bytes
            return
        with self._ram.temporary_folder(size_bytes) as folder:
            if folder:
                size_bytes -= live.memory.precopy(folder)
                self._pool.flush(live.box.volume)  # that took a while
            yield size_bytes

    def _afterwards(self, row: SessionRow, live: Live, point: Checkpoint) -> None:
        """What follows from a new point. It cannot fail because of any of it."""
        if not point.files_only:
            live.memory.set_baseline(self._home.checkpoints / point.id / "images")
        self._contacts.assign(live, point)
        self._follow(point)
        if point.kind != "safety" and not point.files_only:
            self._background.run(lambda: self._spares.update(row.id))

    def _follow(self, point: Checkpoint) -> None:
        self._dedupe.add(point)
        self._digests.add(point)
        self._kept.keep_when_idle(point)
        self._space.watch_when_idle()
        self._cards.write_when_idle(point.id)
        self._durability.reach_soon()


def _elapsed_ms(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)


def _changed_mounts(box: Box, options: BoxOptions) -> Iterator[str]:
    """Only a privileged session can change any."""
    for mount in () if options.confined else box.mounts_changed_inside():
        yield (
            f"{printable(mount.path)} ({mount.fstype}) was unmounted in the session, or mounted with other"
            " options: a restore brings it back as it was"
        )


@contextlib.contextmanager
def _written_until_freeze(stream: Stream) -> Iterator[None]:
    """The stream is held at the freeze: what happens after it comes after the point."""
    try:
        yield
    finally:
        stream.release()


def _nested_subvolumes(volume: Path) -> list[str]:
    """A session cannot make any; a process of one that was saved with an older filter can."""
    return [
        f"the btrfs subvolume {printable(name)} that was made inside the session is left out"
        for name in nested_names(volume)
    ]


def _intent(live: Live, wish: Wish) -> tuple[str, IntentFrom]:
    """A caller that gives no intent means what was just done; a card may still find something better."""
    if wish.intent:
        return wish.intent, "command" if wish.kind == "auto" else "given"
    command = live.terminal.last_command or ""
    return command, "command" if command else "none"


def _without_secrets(words: str, facts: Facts | None) -> str:
    """Words that will be shown. A command line may hold a password, or the value of a secret variable."""
    return Redactor.for_variables(facts.shell.values if facts else {}).redact(words).text if words else words
