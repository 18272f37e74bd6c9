"""A run: a throwaway home, the clock, and the order of the workloads.

A run changes nothing of the user's: sessions, pool, database and socket are those of a throwaway home. Of the
user's home only the engine is used, read-only. The throwaway home is removed at the end, also after ^C.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import waypoint
from waypoint import errors
from waypoint.api import requests
from waypoint.api.hints import Do, Hint
from waypoint.bench.results import OURS, Figure, Machine, Report, Skipped, Unit, Window
from waypoint.client.checkpoint import Checkpoint
from waypoint.client.client import Client
from waypoint.client.session import Session
from waypoint.home import Home
from waypoint.machine import setup

Say = Callable[[str], None]
_HIDDEN_FILES = ("/root/.bashrc", "/etc/bash.bashrc")
"""Hidden from measured sessions: hooks in these files would run before every prompt and be measured too."""
_SPARE_SECONDS = 20.0


class Timed(NamedTuple):
    """How long one operation took, in milliseconds. None: it has no such window, or it was not measured."""

    pause: float | None
    api: float
    until: float | None


def now_ms() -> float:
    return time.perf_counter() * 1000


class Bench:
    """What a workload works with: sessions, timed operations, and the list of figures."""

    def __init__(
        self, home: Path, work: Path, *, quick: bool, say: Say, peers: Sequence[str] | None = None
    ) -> None:
        self.quick = quick
        self.peers = peers
        """The other tools to measure; None for all that are installed."""
        self.say = say
        self.work = work
        """A folder for files outside the home."""
        self.client = Client(home)
        self.home: Home = self.client.home
        self.python = os.path.realpath(sys.executable)
        """The Python that programs in sessions and peers run with."""
        self._figures: dict[tuple[str, ...], tuple[Unit, list[float]]] = {}
        self.skipped: list[Skipped] = []
        self.covers: dict[str, str] = {}
        self._sessions = 0

    def rounds(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    # ---- sessions ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def session(self, *, spares: int | None = None, userns: bool | None = None) -> Iterator[Session]:
        """A new session. At the end all sessions of the home are removed. `spares`: their number, if not the
        default. `userns`: whether it is in a user namespace."""
        self._sessions += 1
        hide = [path for path in _HIDDEN_FILES if os.path.exists(path)]
        name = f"bench-{self._sessions}"
        waypoint.session(name, hide=hide, spares=spares, userns=userns, home=self.home.path)
        try:
            yield Session(self.client, name)
        finally:
            self.remove(self.client.sessions())

    def remove(self, sessions: Sequence[Session]) -> None:
        if sessions:
            self.client.ask(requests.Rm(sessions=tuple(session.name for session in sessions)))

    # ---- operations, timed ---------------------------------------------------------------------

    def checkpoint(self, session: Session, *, command: str | None = "true") -> tuple[Checkpoint, Timed]:
        """Takes a checkpoint, then runs a command."""
        began = now_ms()
        point = session.checkpoint("bench")
        answered = now_ms()
        if command is not None:
            session.run(command).check()
        until = now_ms() - began if command is not None else None
        return point, Timed(point.info.pause_ms, answered - began, until)

    def rollback(
        self, session: Session, point: Checkpoint, *, safety: bool = False, command: str = "true"
    ) -> tuple[str, Timed]:
        """Restores, then runs a command. Returns "spare" or "cold" with the times."""
        began = now_ms()
        restored = session.restore(point, safety=safety)
        answered = now_ms()
        session.run(command).check()
        until = now_ms() - began
        return "spare" if restored.spare else "cold", Timed(None, answered - began, until)

    def wait_for_spare(self, point: Checkpoint) -> bool:
        """Waits until a point has its spare. False if it gets none in time."""
        deadline = time.monotonic() + _SPARE_SECONDS
        while point.id not in self.client.daemon.status().spares:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    # ---- figures -------------------------------------------------------------------------------

    def add(
        self,
        workload: str,
        case: str,
        what: str,
        window: Window,
        *samples: float,
        who: str = OURS,
        unit: Unit = "ms",
    ) -> None:
        """Adds rounds to a figure."""
        _, rounds = self._figures.setdefault((workload, case, what, window, who), (unit, []))
        rounds.extend(samples)

    def add_timed(self, workload: str, case: str, what: str, took: Timed, *, who: str = OURS) -> None:
        if took.pause is not None:
            self.add(workload, case, what, "pause", took.pause, who=who)
        self.add(workload, case, what, "api", took.api, who=who)
        if took.until is not None:
            self.add(workload, case, what, "until", took.until, who=who)

    def skip(self, what: str, why: str) -> None:
        self.skipped.append(Skipped(what=what, why=why))
        self.say(f"skipped {what}: {why}")

    def skip_once(self, what: str, why: str) -> None:
        if what not in {entry.what for entry in self.skipped}:
            self.skip(what, why)

    def figures(self) -> tuple[Figure, ...]:
        return tuple(
            Figure(
                workload=workload,
                case=case,
                what=what,
                window=window,  # type: ignore[arg-type]
                who=who,
                unit=unit,
                samples=tuple(samples),
            )
            for (workload, case, what, window, who), (unit, samples) in self._figures.items()
            if samples
        )


# ---- the machine -----------------------------------------------------------------------------------


def _first_line(path: str, start: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(start):
                return line.partition(":" if ":" in line else "=")[2].strip().strip('"')
    return "unknown"


def used_bytes() -> int:
    """The memory of all processes of the machine that is in no file, and what describes it."""
    kilobytes = (_first_line("/proc/meminfo", name).split()[0] for name in ("AnonPages", "PageTables"))
    return 1024 * sum(map(int, kilobytes))


def available_bytes() -> int:
    """Memory that can be allocated without swapping."""
    return int(_first_line("/proc/meminfo", "MemAvailable").split()[0]) * 1024


def memory_floor() -> float:
    """What the first write to each page of fresh memory costs, in milliseconds per megabyte."""
    size = 64 << 20
    times = []
    for _ in range(3):
        with mmap.mmap(-1, size) as memory:
            view = ctypes.c_char.from_buffer(memory)
            began = now_ms()
            ctypes.memset(ctypes.addressof(view), 1, size)
            times.append((now_ms() - began) / (size >> 20))
            del view
    return round(sorted(times)[1], 3)


def _output_line(*command: str) -> str | None:
    """The first line that a program prints; None if it is not installed or fails."""
    if not shutil.which(command[0]):
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        lines = (done.stdout or done.stderr).strip().splitlines()
        return lines[0][:80] if lines else None
    return None


def _versions(engine: setup.Engine) -> dict[str, str]:
    versions = {
        "waypoint": waypoint.__version__,
        "criu": f"{engine.criu.version} ({engine.criu.source})",
        "python": platform.python_version(),
    }
    commands = {
        "bash": ("bash", "--version"),
        "btrfs-progs": ("btrfs", "--version"),
        "git": ("git", "--version"),
        "node": ("node", "--version"),
        "podman": ("podman", "--version"),
        "vim": ("vim", "--version"),
    }
    for name, command in commands.items():
        if (line := _output_line(*command)) and (number := re.search(r"\d+(\.\d+)+", line)):
            versions[name] = number[0]
    return versions


def _disk(folder: Path) -> str:
    line = _output_line("findmnt", "-n", "-o", "FSTYPE,SOURCE", "-T", str(folder))
    return " on ".join((line or "unknown").split())


def describe_machine(engine: setup.Engine, folder: Path) -> Machine:
    return Machine(
        cpu=_first_line("/proc/cpuinfo", "model name"),
        cores=os.cpu_count() or 1,
        memory_bytes=int(_first_line("/proc/meminfo", "MemTotal").split()[0]) * 1024,
        kernel=platform.release(),
        system=_first_line("/etc/os-release", "PRETTY_NAME"),
        disk=_disk(folder),
        versions=_versions(engine),
        load=round(os.getloadavg()[0], 2),
        floor_ms_per_mb=memory_floor(),
    )


# ---- a run -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Turns the signals that stop a program into exceptions, so that the home is removed. After the first
    one they are ignored: nothing interrupts the removal."""

    def stop(number: int, _frame: Any) -> None:
        for other in signals:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def throwaway_home(below: Path, engine: Path, say: Say = lambda _: None) -> Iterator[tuple[Path, Path]]:
    """A home, and a folder beside it. At the end the home's sessions are ended and both are removed. A home
    that another process holds is left and named: what was measured in it counts all the same."""
    if os.geteuid() != 0:
        raise errors.NotRoot("the benchmark needs root", hint="run it with sudo, or as root")
    before = os.environ.get("WAYPOINT_ENGINE")
    folder = Path(tempfile.mkdtemp(prefix="waypoint-bench-", dir=below))
    home, work = folder / "home", folder / "work"
    work.mkdir()
    os.environ["WAYPOINT_ENGINE"] = str(engine)
    is_held = False
    try:
        yield home, work
    finally:
        try:
            if home.exists():
                Client(home).daemon.stop(sessions=True)
                setup.uninstall(home, lambda _: None)
        except errors.WaypointError as error:
            is_held = True
            say(f"{home} is left: {error.message}")
        finally:
            if before is None:
                del os.environ["WAYPOINT_ENGINE"]
            else:
                os.environ["WAYPOINT_ENGINE"] = before
            if not is_held:
                shutil.rmtree(folder, ignore_errors=True)


def run(
    engine: Path,
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    peers: Sequence[str] | None = None,
    below: Path = Path("/var/tmp"),
    say: Say = lambda _: None,
) -> Report:
    """Measures. `only`: just these workloads; `peers`: just these (None: all that are installed)."""
    from waypoint.bench import workloads
    from waypoint.bench.peers import OTHERS

    select(peers or (), OTHERS, "peer")
    names = select(only, workloads.WORKLOADS, "workload")
    current = setup.current_engine(engine)
    if current is None:
        raise errors.MissingFeature("this machine is not set up yet", hint=Hint("run ", Do("setup")))
    began = time.monotonic()

    def say_timed(text: str) -> None:
        say(f"{time.monotonic() - began:4.0f} s  {text}")

    with _signals_as_exceptions(), throwaway_home(below, engine, say) as (home, work):
        machine = describe_machine(current, work)
        failed: list[Skipped] = []
        bench = Bench(home, work, quick=quick, say=say_timed, peers=peers)
        for name in names:
            say_timed(f"{name}: {workloads.WORKLOADS[name].title}")
            try:
                workloads.WORKLOADS[name].measure(bench)
            except errors.WaypointError as error:
                failed.append(Skipped(what=name, why=f"{error.message} {error.hint}".strip()))
                say_timed(f"failed {name}: {failed[-1].why}")
        bench.client.close()
    return Report(
        at=datetime.now().astimezone().isoformat(timespec="seconds"),
        quick=quick,
        seconds=round(time.monotonic() - began, 1),
        machine=machine,
        figures=bench.figures(),
        skipped=tuple(bench.skipped),
        failed=tuple(failed),
        covers=bench.covers,
    )


def select(names: Sequence[str], known: Iterable[str], kind: str) -> list[str]:
    """These of the known names, in their order; all of them if none is named."""
    all_names = list(known)
    for name in names:
        if name not in all_names:
            raise errors.NotFound(f"there is no {kind} {name!r}", hint=f"there are: {', '.join(all_names)}")
    return [name for name in all_names if name in names] if names else all_names
