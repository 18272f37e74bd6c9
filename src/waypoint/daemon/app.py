"""The composition root: every object of the daemon, built here in order, with what it needs passed in.

The verbs reach everything through one `App`. When all objects exist, recovery takes over what an earlier
daemon left; then the daemon can serve. Nothing else in the daemon constructs an object of the core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waypoint.agent.trajectory import Trajectory
from waypoint.api.hints import Do, Hint
from waypoint.bases import store as bases
from waypoint.box.box import Box, end_keeper, hide_home, keepers
from waypoint.box.limits import usual_limits
from waypoint.core.adoption import BOOT_FILE, Adoption
from waypoint.core.analyst import Analyst
from waypoint.core.auto import AutoPoints
from waypoint.core.background import Background
from waypoint.core.bisect import Bisect
from waypoint.core.boxes import Boxes
from waypoint.core.builder import BoxBuilder, HostBuilder
from waypoint.core.candidates import Candidates
from waypoint.core.capture import Capture
from waypoint.core.cards import Cards
from waypoint.core.check import Check
from waypoint.core.commands import Commands
from waypoint.core.comparison import Comparison
from waypoint.core.contacts import Contacts
from waypoint.core.copies import Copies
from waypoint.core.costs import Costs
from waypoint.core.dedupe import Dedupe
from waypoint.core.digests import Digests
from waypoint.core.dockerfiles import Dockerfiles
from waypoint.core.durability import Durability
from waypoint.core.engine import CriuEngine, Engine
from waypoint.core.fork import Fork
from waypoint.core.forkhooks import ForkHooks
from waypoint.core.forwards import Forwards
from waypoint.core.gate import Gate
from waypoint.core.journal import Journal
from waypoint.core.kept import KeptFiles
from waypoint.core.live import Twin
from waypoint.core.plans import Plans
from waypoint.core.recovery import Recovery
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.core.removal import Removals
from waypoint.core.reopening import Reopening
from waypoint.core.repair import Repairs
from waypoint.core.replays import Replays
from waypoint.core.restore import Restore
from waypoint.core.safety import Safety
from waypoint.core.sessions import Sessions
from waypoint.core.space import DiskSpace
from waypoint.core.spares import Spares
from waypoint.core.transfer import Transfer
from waypoint.core.trials import Trials
from waypoint.daemon.inside.grammar import Inside
from waypoint.engine import probe
from waypoint.errors import MissingFeature
from waypoint.home import Home, Settings
from waypoint.kernel import atomic, faults, homes
from waypoint.kernel.memory import Ram
from waypoint.kernel.network.veth import Network
from waypoint.kernel.pool.lifecycle import has_stopped, open_pool, require_room_to_reopen
from waypoint.kernel.pool.protocol import Pool
from waypoint.kernel.seals import Key
from waypoint.machine import setup
from waypoint.model import Platform
from waypoint.store import Store, wal
from waypoint.store.database import damaged
from waypoint.store.exchange import finish_exchange

if TYPE_CHECKING:
    from waypoint.daemon.server import Server


@dataclass(frozen=True)
class Machine:
    """What the machine provides. Tests provide it without root and without CRIU (tests/fakes.py)."""

    pool: Pool
    network: Network
    engine: Engine
    engine_folder: Path
    ram: Ram
    make_builder: Callable[[Contacts], BoxBuilder]
    confines: bool = False
    """Whether files of sessions are read by a process of its own, without privileges."""


class App:
    """Everything behind the socket of one home."""

    def __init__(self, home: Home, machine: Machine, settings: Settings) -> None:
        self.home = home
        self.started_at = time.time()
        self.server: Server | None = None
        """The socket in front of it, once there is one."""

        # What is known.
        for folder in (home.sessions, home.checkpoints, home.beginnings, home.staging):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.pool, self.network, engine = machine.pool, machine.network, machine.engine
        key = Key.of(home.path)
        if key.new:
            bases.seal_all(self.pool, key)
        finish_exchange(home.database)
        if (home.run / BOOT_FILE).exists() and (lost := wal.damage(home.database)):
            raise damaged(home.database, lost)
        self.store = store = Store(home.database)
        self.trajectory = Trajectory(store)
        self.registry = registry = Registry(home, self.pool, store, self.trajectory)
        self.background = background = Background()
        self.remains = Remains(home, self.pool, store)
        self.spares: Spares[Twin] = Spares(store, background, settings)

        # What watches: it exists before anything runs.
        self.inside = Inside(self)
        doors = self.inside.doors
        self.contacts = Contacts(registry, self.network, background)
        self.forwards = Forwards(registry)
        self.gate = Gate(registry, store.ledger, background)
        self.analyst = Analyst(home) if machine.confines else None
        reader = (self.analyst.analyze,) if self.analyst else ()
        self.comparison = Comparison(registry, self.pool, self.remains, self.contacts, *reader)
        self.cards = Cards(registry, self.comparison, store.ledger, background)
        self.costs = Costs(registry, self.pool, background)
        self.space = DiskSpace(registry, self.pool, self.remains, self.spares, self.costs, background)
        self.dedupe = Dedupe(home, machine.engine_folder, self.pool, background)
        self.kept = KeptFiles(registry, self.pool, background)
        self.digests = Digests(home, self.pool, store, background, key, by_itself=settings.digests)

        self.durability = Durability(self.pool, store, background)

        # The verbs.
        self.capture = Capture(
            registry,
            self.pool,
            engine,
            machine.ram,
            self.remains,
            doors,
            self.contacts,
            self.forwards,
            self.space,
            self.dedupe,
            self.digests,
            self.kept,
            self.cards,
            self.spares,
            self.durability,
            background,
            key,
            always_durable=settings.durable,
        )
        self.auto = AutoPoints(registry, self.comparison, self.capture, background)
        builder = machine.make_builder(self.contacts)
        self.boxes = Boxes(
            home,
            engine,
            builder,
            registry,
            self.trajectory,
            background,
            doors,
            self.contacts,
            self.forwards,
            self.gate,
            self.auto,
        )
        self.commands = Commands(registry, self.boxes)
        self.copies = Copies(
            registry,
            self.pool,
            engine,
            self.boxes,
            self.remains,
            doors,
            self.spares,
            self.digests,
            self.kept,
            background,
        )
        self.safety = Safety(
            registry,
            builder,
            self.boxes,
            self.capture,
            engine,
            doors,
            self.forwards,
            self.space,
            self.remains,
            background,
            may_wait=not settings.durable,
        )
        self.restore = Restore(
            registry,
            self.boxes,
            self.copies,
            self.capture,
            self.safety,
            self.remains,
            self.forwards,
            self.spares,
            background,
        )
        self.fork = Fork(
            registry, self.boxes, self.copies, self.remains, self.capture, ForkHooks(self.commands)
        )
        self.sessions = Sessions(
            registry,
            builder,
            self.boxes,
            self.capture,
            self.copies,
            self.remains,
            self.forwards,
            self.spares,
            self.comparison,
            self.safety,
            userns=settings.userns,
        )
        self.removals = Removals(
            registry,
            self.boxes,
            self.restore,
            self.safety,
            self.remains,
            self.forwards,
            self.spares,
            self.digests,
            background,
        )
        self.plans = Plans(registry, self.comparison, self.kept, self.contacts, self.gate)
        self.trials = Trials(registry, self.copies, self.commands)
        self.bisect = Bisect(registry, self.trials, self.gate)
        self.candidates = Candidates(
            registry, self.comparison, self.capture, self.trials, self.gate, self.space
        )
        self.transfer = Transfer(registry, self.comparison, self.capture)
        self.dockerfiles = Dockerfiles(
            registry,
            self.pool,
            self.sessions,
            self.capture,
            self.restore,
            self.fork,
            self.removals,
            self.commands,
            self.transfer,
            self.gate,
        )
        self.journal = Journal(registry, self.capture, self.restore, self.cards, self.gate)
        self.replays = Replays(
            registry,
            self.sessions,
            self.fork,
            self.removals,
            self.capture,
            self.comparison,
            self.commands,
            self.trials,
            self.gate,
            self.journal,
            self.transfer,
        )

        adoption = Adoption(home, store, self.pool, self.remains, key)
        self.check = Check(registry, self.pool, self.remains, self.digests, adoption, builder, key)
        self.repairs = Repairs(registry, self.pool, self.remains, self.digests, adoption, self.check, key)
        self.reopening = Reopening(registry, self.pool, self.sessions, self.spares, self.space, adoption)
        Recovery(
            registry,
            builder,
            self.boxes,
            self.contacts,
            self.gate,
            self.cards,
            self.remains,
            self.safety,
            adoption,
            self.removals,
            self.durability,
            background,
        ).run()
        self.safety.start()
        self.forwards.start()
        self.spares.start(self.copies.make_spare, self.copies.end_spare)
        for row in store.sessions.all():
            self.spares.update_proof(row.id)
        self.digests.make_missing()
        self.kept.keep_missing()
        self.costs.measure_when_idle()

    def close(self) -> None:
        """The daemon ends, the sessions do not."""
        self.forwards.close()
        self.spares.close()
        self.digests.close()
        self.boxes.close()
        self.background.close()
        self.space.close()
        if self.analyst:
            self.analyst.close()
        self.trajectory.stop()


def this_machine(home: Home, settings: Settings) -> Machine:
    """The machine that the daemon runs on, or an error that says what is missing."""
    engine_folder, platform = _engine(home)
    homes.register(home, hide_home)  # before there is anything in it that others must not see
    if has_stopped(home.path):
        _end_boxes(home)
    shares = None if settings.box_disk_bytes is None else bool(settings.box_disk_bytes)
    pool = open_pool(home.path, size_bytes=settings.pool_size_bytes, shares=shares)
    faults.reach("start.opened")
    network = Network(home.tag)
    kernel_data = _kernel_data(home, engine_folder)
    usual = usual_limits(
        pool_bytes=pool.usage().total_bytes if pool.share(pool.root) else 0,
        inherited=Box.file_limits,
        memory_bytes=settings.box_memory_bytes,
        pids=settings.box_pids,
        open_files=settings.box_open_files,
        disk_bytes=settings.box_disk_bytes,
    )
    return Machine(
        pool=pool,
        network=network,
        engine=CriuEngine(engine_folder, platform, settings.lazy_bytes),
        engine_folder=engine_folder,
        ram=Ram(),
        make_builder=lambda contacts: HostBuilder(
            home, engine_folder, kernel_data, pool, network, contacts, usual
        ),
        confines=True,
    )


def _engine(home: Home) -> tuple[Path, Platform]:
    """Where the engine is, and what points are taken with; MissingFeature when this machine has none."""
    folder = setup.engine_dir(home.path)
    engine = setup.current_engine(folder)
    if engine is None:
        raise MissingFeature("this machine is not set up yet", hint=Hint("run ", Do("setup")))
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.path.chmod(0o700)
    home.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder, Platform(architecture=engine.arch, kernel=engine.kernel, criu=engine.criu.version)


def _end_boxes(home: Home) -> None:
    """Before a pool that has stopped is opened again. What was not synced is lost, as in a power cut."""
    require_room_to_reopen(home.path)
    for box_id, pid in keepers(home).items():
        end_keeper(home, box_id, pid)
    (home.run / BOOT_FILE).unlink(missing_ok=True)


def _kernel_data(home: Home, engine: Path) -> Path:
    """CRIU's cache of kernel features. It belongs to one engine: another may know more of the kernel, or show
    CRIU more (native/shim.c)."""
    path = home.run / "criu.kdat"
    if not path.exists() or path.stat().st_mtime < (engine / "engine.json").stat().st_mtime:
        atomic.write(path, probe.kernel_data(engine), mode=0o600)
    return path
