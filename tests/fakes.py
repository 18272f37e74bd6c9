"""A machine without root and without CRIU, for tests of the core: it has no processes and fails on demand.

`World` is a home on it, with an `App`. Every call that may fail on a real machine goes through `Faults`,
which counts the calls and can fail the Nth. The pool is plain folders. A box is a file that outlives the
process which built it, and holds the memory of its processes; its pseudoterminal has a shell that prints its
prompt and nothing else. The image of a process tree is a file with the same memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import threading
import tty
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from waypoint.box.box import Box
from waypoint.box.keeper import Hello, Keeper, OtherProtocol
from waypoint.box.volume import make_volume
from waypoint.core.background import Background
from waypoint.core.builder import BoxFacts
from waypoint.core.engine import TrackedMemory
from waypoint.daemon.app import App, Machine
from waypoint.engine.images import DumpStats, TreeState
from waypoint.engine.lazy import LazyFailed
from waypoint.errors import CannotRestore, MachineError, NotFound
from waypoint.home import Home, Settings
from waypoint.kernel.cgroups import Cgroup, Limits
from waypoint.kernel.memory import Ram
from waypoint.kernel.network.flows import Flow, Flows
from waypoint.kernel.network.sockets import Connection
from waypoint.kernel.network.veth import Network
from waypoint.kernel.pool.protocol import Usage
from waypoint.kernel.processes import Process
from waypoint.model import BoxOptions, Platform, Size

TREE = TreeState(anchor=2, status_pipe=0, foreground=0, last_pid=9, ipc=False, network_locked=False)


class Injected(MachineError):
    """The failure that a test asked for."""


class Faults:
    """Counts calls, and fails one of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._fail_at: int | None = None
        self._lock = threading.Lock()

    def arm(self, number: int | None) -> None:
        """Fails the call of that number from now on, the first being 1; None: none."""
        self.calls.clear()
        self._fail_at = number

    def call(self, name: str) -> None:
        with self._lock:
            self.calls.append(name)
            fails = len(self.calls) == self._fail_at
        if fails:
            raise Injected(f"call {self._fail_at}, {name}, was made to fail")


class FakePool:
    """A pool of plain folders."""

    kind = "copy"
    reason = "it is a fake"

    def __init__(self, root: Path, faults: Faults) -> None:
        self.root, self._faults = root, faults

    def create(self, path: Path) -> None:
        self._faults.call("pool.create")
        path.mkdir(mode=0o755)
        self._faults.call("pool.created")

    def snapshot(self, source: Path, target: Path, *, readonly: bool) -> None:
        self._faults.call("pool.snapshot")
        if not source.is_dir():
            raise NotFound(f"there is no {source}")
        shutil.copytree(source, target, symlinks=True)
        target.chmod(0o555 if readonly else 0o755)
        self._faults.call("pool.snapshotted")

    def seal(self, path: Path) -> None:
        self._faults.call("pool.seal")
        path.chmod(0o555)

    def unseal(self, path: Path) -> None:
        """What no verb does."""
        path.chmod(0o755)

    def is_readonly(self, path: Path) -> bool:
        return not path.stat().st_mode & 0o200

    def delete(self, path: Path) -> None:
        self._faults.call("pool.delete")
        if path.exists():
            path.chmod(0o755)
            shutil.rmtree(path)
        self._faults.call("pool.deleted")

    def flush(self, path: Path) -> None:
        self._faults.call("pool.flush")

    def sync(self) -> None:
        self._faults.call("pool.sync")

    def has_stopped(self) -> bool:
        return False

    def settle(self) -> None:
        pass

    def reclaim(self) -> None:
        pass

    def usage(self) -> Usage:
        return Usage(total_bytes=1 << 50, used_bytes=0, free_bytes=1 << 50)

    def limit(self, path: Path, size_bytes: int | None) -> None:
        pass

    def share(self, path: Path) -> None:
        """Nothing is counted."""

    def dedupe(self, source: Path, target: Path) -> int:
        return 0


class FakeMemory:
    """Memory of which nothing is copied ahead."""

    def prepare(self, host_pids: Iterable[int]) -> int:
        return 0

    def should_precopy(self, size_bytes: int) -> bool:
        return False

    def precopy(self, folder: Path) -> int:
        return 0

    def track_from(self, host_pids: Iterable[int], images: Path) -> None:
        pass

    def watch(self) -> socket.socket | None:
        return None

    def complete(self) -> None:
        pass

    def failure(self) -> str | None:
        return None

    def set_baseline(self, images: Path) -> None:
        pass

    def close(self) -> None:
        pass


class FakeDump:
    """One dump: its tree stands still twice, as when CRIU has to repeat."""

    def __init__(self, box: FakeBox, folder: Path, faults: Faults) -> None:
        self._box, self._folder, self._faults = box, folder, faults
        self.state = TREE
        self.stats = DumpStats(freezing_ms=0.5, frozen_ms=0.5, pages_written=1)

    def pauses(self) -> Iterator[list[Process]]:
        for _ in range(2):
            self._faults.call("engine.freeze")
            yield []
        self._faults.call("engine.write")
        (self._folder / "core.img").write_text(self._box.memory)


class FakeHeld:
    """A tree that is held."""

    def __init__(self, box: FakeBox, faults: Faults) -> None:
        self.state, self._box, self._faults = TREE, box, faults
        self.released = False

    @property
    def complete(self) -> bool:
        return self._box.alive

    def runs(self, pid: int) -> bool:
        return True

    def stop_timers(self) -> None:
        pass

    def release(self) -> None:
        self._faults.call("engine.release")
        self.released = True
        self._faults.call("engine.released")

    def close(self) -> None:
        pass


class FakeEngine:
    """An engine whose process trees are files."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.savable = True
        """Whether a tree may be saved after the answer."""
        self.unrestorable = ""
        """Why no point can be restored, if none can."""
        self.lazy_fails = False
        """Whether no tree can be restored without its memory."""
        self.platform = Platform(architecture="x86_64", kernel="6.18.0", criu="4.2.1")

    def track_memory(self, box: Box) -> FakeMemory:
        return FakeMemory()

    @contextlib.contextmanager
    def dump(
        self,
        box: Box,
        folder: Path,
        *,
        outside_pipes: Sequence[int],
        shell: int,
        memory: TrackedMemory,
        complete_folder: Path,
        forwarded: Collection[Connection],
        stays_frozen: bool = False,
    ) -> Iterator[FakeDump]:
        self._faults.call("engine.dump")
        assert isinstance(box, FakeBox)
        assert box.frozen == stays_frozen, "only a pending point is saved of a tree that stands still"
        yield FakeDump(box, folder, self._faults)

    def is_savable(self, box: Box, forwarded: Collection[Connection]) -> bool:
        self._faults.call("engine.is_savable")
        return self.savable

    def hold(self, box: Box, images: Path, lazy_from: Path | None = None) -> FakeHeld:
        self._faults.call("engine.hold")
        if self.unrestorable:
            raise CannotRestore(self.unrestorable)
        if self.lazy_fails and lazy_from:
            raise LazyFailed("its memory cannot come later")
        assert isinstance(box, FakeBox)
        assert (images / "core.img").exists(), "a point with a row has its images"
        box.memory = (images / "core.img").read_text()
        return FakeHeld(box, self._faults)


class FakeKeeper(Keeper):
    """A keeper that starts shells which only print their prompt."""

    def __init__(self, faults: Faults, printed: bytes = b"") -> None:
        self._socket, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._faults, self._printed = faults, printed

    def serve(self) -> bytes:
        return self._printed

    def start_anchor(self) -> int:
        self._faults.call("keeper.start_anchor")
        return 2

    def start(
        self, kind: str, cwd: str, argv: Sequence[str], env: Sequence[str], stdio: tuple[int, int, int]
    ) -> int:
        self._faults.call(f"keeper.start {kind}")
        key = next((word.partition("=")[2] for word in env if word.startswith("WAYPOINT_KEY=")), "")
        if key:
            os.write(stdio[1], f"\x1b]133;A;k={key}\x07$ \x1b]133;B;k={key}\x07".encode())
        return 3

    def set_hostname(self, name: str) -> None:
        self._faults.call("keeper.set_hostname")

    def close(self) -> None:
        self._socket.close()
        self._other.close()


class FakeBox(Box):
    """A box without processes. Its pid is that of the test: what is looked up there exists."""

    def __init__(self, place: Path, volume: Path, faults: Faults) -> None:
        self._faults = faults
        self.id, self.pid, self.volume, self.keeper = place.name, os.getpid(), volume, FakeKeeper(faults)
        self.keeper_pid, self.first_pid, self.userns = 1, self.pid, False
        self.limits_group = Cgroup("", {})
        self.limits, self.group = Limits(), place
        self.frozen = False
        self._place = place
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        self._open = True
        self._mounts_file = volume / "no mount table"
        self.protocol = ""
        """The version that its keeper speaks, if that is not this one."""
        self.printed = b""
        """What its terminal prints while no daemon runs."""

    @property
    def memory(self) -> str:
        """What its processes have in memory."""
        return self._place.read_text()

    @memory.setter
    def memory(self, text: str) -> None:
        self._place.write_text(text)

    @property
    def alive(self) -> bool:
        return self._place.exists()

    def freeze(self, seconds: float) -> bool:
        self._faults.call("box.freeze")
        self.frozen = self.group is not None
        return self.frozen

    def thaw(self) -> None:
        self.frozen = False

    def hello(self) -> Hello:
        if self.protocol:
            raise OtherProtocol(errno.EPROTO, f"its keeper speaks protocol {self.protocol}, this daemon 1")
        return Hello(anchor=2, status_pipe=0, master=os.dup(self._master), slave=os.dup(self._slave))

    def ends_within(self, seconds: float) -> bool:
        return not self.alive

    def signal_end(self) -> None:
        self._place.unlink(missing_ok=True)

    def close(self) -> None:
        """The next daemon gets this very box."""

    def kill(self, home: Home) -> None:
        self.signal_end()
        if self._open:
            self._open = False
            self.keeper.close()
            os.close(self._master)
            os.close(self._slave)


class FakeBuilder:
    """Builds boxes that are files in a folder."""

    def __init__(self, folder: Path, pool: FakePool, faults: Faults) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._pool, self._faults = folder, pool, faults
        self.boxes: dict[str, FakeBox] = {}
        """Those that this process has built or found."""

    def make_volume(self, volume: Path, name: str, options: BoxOptions, base: Path) -> None:
        self._pool.create(volume)
        make_volume(volume)

    def build(
        self, volume: Path, name: str, options: BoxOptions, base: Path, size: Size, facts: BoxFacts
    ) -> Box:
        self._faults.call("builder.build")
        place = self._folder / volume.name
        place.write_text("a process tree")
        try:
            self._faults.call("builder.built")
        except BaseException:
            place.unlink()
            raise
        box = self.boxes[volume.name] = FakeBox(place, volume, self._faults)
        return box

    def standing(self) -> dict[str, int]:
        return {path.name: os.getpid() for path in self._folder.iterdir()}

    def find(self, box_id: str) -> Box | None:
        self._faults.call("builder.find")
        place = self._folder / box_id
        if not place.exists():
            return None
        if box_id not in self.boxes:
            self.boxes[box_id] = FakeBox(place, self._pool.root / "sessions" / box_id, self._faults)
        return self.boxes[box_id]

    def connect(self, box: Box) -> Keeper:
        self._faults.call("builder.connect")
        assert isinstance(box, FakeBox)
        return FakeKeeper(self._faults, box.printed)

    def remove(self, box: Box) -> None:
        self.boxes.pop(box.id).kill(Home(Path("/")))

    def remove_groups(self, owned: Collection[str]) -> None:
        pass

    def remove_unowned(self, box_id: str, pid: int) -> None:
        (self._folder / box_id).unlink(missing_ok=True)
        if box := self.boxes.pop(box_id, None):
            box.kill(Home(Path("/")))


class FakeRam(Ram):
    """No memory to write images to: they go into the pool at once."""

    def __init__(self) -> None:
        self._root = None


class FakeNetwork(Network):
    """A firewall that counts what a test says."""

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.counted: tuple[Flow, ...] = ()

    def flows(self) -> Flows:
        return Flows(self.counted)

    def reset_counters(self, box_id: str) -> None:
        self.counted = tuple(flow for flow in self.counted if flow.interface != self.interface(box_id))


class FakeHome(Home):
    """A home whose run folder needs no root."""

    @property
    def run(self) -> Path:
        return self.path / "run"


class World:
    """A home on such a machine."""

    def __init__(self, folder: Path, faults: Faults | None = None) -> None:
        self.home = FakeHome(folder / "home")
        self.home.run.mkdir(parents=True, exist_ok=True)
        (self.home.pool / "bases").mkdir(parents=True, exist_ok=True)
        self.base = folder / "base"
        (self.base / "bin").mkdir(parents=True, exist_ok=True)
        (self.base / "bin/bash").touch()
        self.options = BoxOptions(base=str(self.base), net="host")
        self.faults = faults or Faults()
        self.pool = FakePool(self.home.pool, self.faults)
        self.home.pool.mkdir(exist_ok=True, parents=True)
        (self.home.pool / ".kind").write_text("copy\n")
        self.builder = FakeBuilder(folder / "boxes", self.pool, self.faults)
        self.engine = FakeEngine(self.faults)
        self.network = FakeNetwork(self.home.tag)
        self.app = self.start()

    def start(self, *, digests: bool = False, durable: bool = False) -> App:
        """A daemon, also after an earlier one: what that one built is still there."""
        machine = Machine(
            pool=self.pool,
            network=self.network,
            engine=self.engine,
            engine_folder=self.home.path,
            ram=FakeRam(),
            make_builder=lambda _contacts: self.builder,
        )
        self.app = App(self.home, machine, Settings(spares=0, prove=False, digests=digests, durable=durable))
        return self.app

    def settle(self) -> None:
        """Waits until the background has done what it was given so far."""
        finish(self.app.background)

    def lose_daemon(self) -> None:
        """The daemon is gone and the boxes are not. (Its threads stay; they have nothing to do any more.)"""
        self.settle()
        self.app.close()
        for live in self.app.registry.lives():
            live.terminal.close("the daemon died")
            live.ended.set()  # nothing is written down for it any more
        self.app.store.close()

    def close(self) -> None:
        self.app.close()
        self.app.store.close()
        for box in list(self.builder.boxes.values()):
            box.kill(self.home)


def finish(background: Background) -> None:
    """Waits until all work that was submitted before this call is done."""
    steps = (background.run, background.run_when_idle, background.clear_when_idle, background.run)
    for submit in steps:
        meet = threading.Barrier(2)
        for future in [submit(meet.wait) for _ in range(2)]:
            future.result()
