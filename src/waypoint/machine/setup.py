"""Setting up: what a machine needs before there can be a pool, in order.

1. Two packages of the distribution (`ensure_packages`). 2. The engine (`ensure_engine`): native programs
compiled here (natives.py), and the first CRIU that really works on
   the running kernel (criu_prefix.py), proven by a dump and a restore.

The machine's own packages are changed as little as possible. The engine, below `engine_dir()`:

    bin/keeper  bin/anchor    static executables, compiled from native/
    bin/inside/waypoint       the program `waypoint` in a session
    bin/kept/                 every version of the programs that images refer to, named after their content
    criu/criu                 CRIU: the machine's own, or one from a newer suite of the distribution
    criu/ld.so  criu/lib/     the loader and the libraries it was linked against
    criu/shim.so              preloaded into it, see native/shim.c
    criu/plugins/             empty: where CRIU looks for plugins
    engine.json               what was built, from what, and on which kernel it was proven to work

The folder is bind-mounted read-only into boxes that run, so it is never replaced itself: its `bin` and
`criu` are exchanged for new ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from waypoint.api.hints import Do, Hint
from waypoint.errors import MissingFeature, NotRoot, SetupFailed
from waypoint.home import Settings
from waypoint.kernel import atomic, locks
from waypoint.machine import criu_prefix, natives
from waypoint.machine.apt import Progress, install_missing
from waypoint.machine.criu_prefix import Candidate, Origin, Rejection

Probe = Callable[[Path], str | None]
"""Dumps and restores a small tree with the engine in the given folder; returns why that failed, or None."""

ARCHITECTURES = ("x86_64",)
_OTHER_SECONDS = 3600.0
"""How long another process may take to set up: it may have to download the whole of CRIU."""
LAYOUT = 1
"""Raised when an engine built by an older Waypoint must be built anew."""


@dataclass(frozen=True)
class Criu:
    """Which CRIU it is: its version, its origin, and the origin in words."""

    version: str
    origin: Origin
    source: str


@dataclass(frozen=True)
class Engine:
    """What is in the engine folder, as engine.json records it."""

    folder: Path
    criu: Criu
    arch: str
    kernel: str
    natives: str
    """The digest of the native programs' sources."""
    rejected: tuple[Rejection, ...] = ()


def engine_dir(home: Path) -> Path:
    """Where the engine is: WAYPOINT_ENGINE if set, else in Waypoint's home."""
    folder = Settings.read().engine
    return Path(folder) if folder else home / "engine"


def require_root(doing: str) -> None:
    """NotRoot for every other user."""
    if os.geteuid() != 0:
        raise NotRoot(f"{doing} needs root", hint="run it again with sudo, or as root; nothing has changed")


def set_up(home: Path, progress: Progress, *, probe: Probe | None = None) -> Engine:
    """Installs packages and builds the engine, as far as they are missing."""
    require_root("setting up")
    ensure_packages(progress)
    return ensure_engine(home, progress, probe=probe)


def uninstall(home: Path, progress: Progress) -> None:
    """Removes all of a home: checkpoints, sessions' files, and the engine if it is in there. The daemon and
    its sessions must have ended before."""
    from waypoint.home import Home
    from waypoint.kernel import homes
    from waypoint.kernel.pool.holders import pool_holders
    from waypoint.kernel.pool.lifecycle import close_pool

    if not close_pool(home):
        holders = ", ".join(f"{holder.pid} ({holder.command})" for holder in pool_holders(home)[:5])
        raise SetupFailed(
            f"the pool is still in use by {holders or 'an unknown process'}", hint="end it and try again"
        )
    for folder in (Home(home.absolute()).run, home):
        if folder.exists():
            progress(f"removing {folder}")
        while folder.exists():
            # The daemon removes its run folder when it ends: both may do so at the same time.
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)
    homes.forget(Home(home.absolute()))


def ensure_packages(progress: Progress) -> None:
    """Installs the distribution's packages whose programs are missing."""
    install_missing({"mkfs.btrfs": "btrfs-progs", "nft": "nftables"}, progress)


def ensure_engine(home: Path, progress: Progress, *, probe: Probe | None = None) -> Engine:
    """The engine, built if there is none for these sources and this kernel.

    Several processes may call this at once. A call that fails leaves what was there before.
    """
    folder = engine_dir(home)
    if (engine := current_engine(folder)) is not None:
        return engine
    if (machine := os.uname().machine) not in ARCHITECTURES:
        raise MissingFeature(
            f"Waypoint does not run on {machine} yet",
            hint=f"it runs on {', '.join(ARCHITECTURES)}",
        )
    try:
        if folder.is_relative_to(home):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, progress):
            if (engine := current_engine(folder)) is not None:
                return engine
            for leftover in folder.glob(".new-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            staging = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
            try:
                return _build(folder, staging, progress, probe or _default_probe())
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise SetupFailed(
            f"the engine could not be built in {folder}: {error}",
            hint=Hint("is there space, and may files there be executed? ", Do("doctor"), " checks"),
        ) from error


def read_engine(folder: Path) -> Engine | None:
    """What engine.json records, whether it still fits or not; None where its CRIU is missing."""
    try:
        fields = json.loads((folder / "engine.json").read_text())
        if fields["layout"] != LAYOUT or not _has(folder, criu_prefix.PARTS):
            return None
        return Engine(
            folder=folder,
            criu=Criu(**fields["criu"]),
            arch=fields["arch"],
            kernel=fields["kernel"],
            natives=fields["natives"],
            rejected=tuple(Rejection(**rejection) for rejection in fields["rejected"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def current_engine(folder: Path) -> Engine | None:
    """The engine, if it was built from these sources and proven on this very kernel."""
    engine = read_engine(folder)
    system = os.uname()
    needed = (natives.natives_hash(), system.machine, system.release)
    if engine is None or (engine.natives, engine.arch, engine.kernel) != needed:
        return None
    return engine if _has(folder, natives.PARTS) else None


def _has(folder: Path, parts: Iterable[str]) -> bool:
    return all((folder / part).is_file() for part in parts)


def _default_probe() -> Probe:
    from waypoint.engine.probe import probe

    return probe


@contextlib.contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not locks.lock_file(descriptor, fcntl.LOCK_EX, 0):
            progress("another process is setting up; waiting for it")
            if not locks.lock_file(descriptor, fcntl.LOCK_EX, _OTHER_SECONDS):
                raise SetupFailed(
                    "another process is setting up, and does not finish",
                    hint=f"`fuser {folder / '.lock'}` tells which process it is",
                )
        yield
    finally:
        os.close(descriptor)


# ---- building -------------------------------------------------------------------------------------


def _build(folder: Path, staging: Path, progress: Progress, probe: Probe) -> Engine:
    digest = natives.natives_hash()
    natives.compile_natives(staging, progress)
    natives.keep_versions(folder, staging)
    criu, rejected = _keep_criu(folder, staging, progress, probe) or _choose_criu(staging, progress, probe)
    system = os.uname()
    engine = Engine(folder, criu, system.machine, system.release, digest, tuple(rejected))
    _publish(engine, staging)
    progress(f"engine ready: CRIU {criu.version}, {criu.source}")
    return engine


def _keep_criu(
    folder: Path, staging: Path, progress: Progress, probe: Probe
) -> tuple[Criu, Sequence[Rejection]] | None:
    """Copies the CRIU of the present engine, if it works with the new native programs and kernel."""
    present = read_engine(folder)
    if present is None:
        return None
    progress(f"checking that CRIU {present.criu.version} still works")
    shim = shutil.ignore_patterns("shim.so")
    shutil.copytree(folder / "criu", staging / "criu", dirs_exist_ok=True, ignore=shim)
    if (reason := probe(staging)) is not None:
        progress(f"it does not: {reason}")
        return None
    return present.criu, present.rejected


def _choose_criu(staging: Path, progress: Progress, probe: Probe) -> tuple[Criu, Sequence[Rejection]]:
    """Puts the first CRIU that passes the probe into `staging`."""
    rejected: list[Rejection] = []
    with tempfile.TemporaryDirectory(prefix="waypoint-apt-") as downloads:
        for candidate in criu_prefix.find_candidates(Path(downloads), staging / "unpacked", progress):
            outcome: Criu | Rejection
            if isinstance(candidate, Rejection):
                outcome = candidate
            else:
                outcome = _try_candidate(candidate, staging, progress, probe)
            if isinstance(outcome, Criu):
                return outcome, rejected
            rejected.append(outcome)
            progress(f"{outcome.candidate} cannot be used: {outcome.reason}")
    reasons = "; ".join(f"{rejection.candidate}: {rejection.reason}" for rejection in rejected)
    raise SetupFailed(
        f"no CRIU works on kernel {os.uname().release} ({reasons or 'none was found'})",
        hint=Hint(
            "install a newer criu (4.2 or later for kernels from 6.16 on) and run ", Do("setup"), " again"
        ),
        rejected=[asdict(rejection) for rejection in rejected],
    )


def _try_candidate(candidate: Candidate, staging: Path, progress: Progress, probe: Probe) -> Criu | Rejection:
    progress(f"trying {candidate.label}")
    try:
        criu_prefix.assemble(candidate, staging / "criu")
        version = criu_prefix.criu_version(staging)
        reason = probe(staging)
    except SetupFailed as error:
        return Rejection(candidate.label, error.message)
    if reason is not None:
        return Rejection(f"{candidate.label}, version {version}", reason)
    return Criu(version, candidate.origin, candidate.label)


# ---- publishing -----------------------------------------------------------------------------------


def _publish(engine: Engine, staging: Path) -> None:
    """Makes what was staged the engine.

    After a crash at any point each of `bin` and `criu` is either the old one or the new one as a whole;
    engine.json comes last, so a mixture records sources it was not built from and is built again.
    """
    for part in ("bin", "criu"):
        for path in (staging / part).rglob("*"):
            if path.is_file():
                atomic.sync(path)
        _exchange(staging / part, engine.folder / part)
    _merge_versions(staging / "bin" / "kept", engine.folder / "bin" / "kept")
    fields = {"layout": LAYOUT, **asdict(engine)}
    del fields["folder"]
    atomic.write(engine.folder / "engine.json", json.dumps(fields, indent=2) + "\n", durable=True)


def _merge_versions(old: Path, present: Path) -> None:
    """Puts the old folder of versions back in its place, with the new files added: running sessions execute
    programs from that very folder, and an image cannot refer to a file that is no longer at its path."""
    if not old.is_dir():
        return
    for version in present.iterdir():
        if not (old / version.name).exists():
            os.link(version, old / version.name)
    atomic.sync(old)
    _exchange(old, present)


def _exchange(new: Path, present: Path) -> None:
    """Puts the folder `new` in the place of `present`, which ends up where `new` was."""
    if not present.exists():
        new.rename(present)
        return
    at_fdcwd, rename_exchange = -100, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(at_fdcwd, os.fsencode(new), at_fdcwd, os.fsencode(present), rename_exchange) == 0:
        return
    # A file system that cannot exchange: for a moment the folder does not exist.
    temporary = new.with_name(f"{new.name}.old")
    present.rename(temporary)
    new.rename(present)
    temporary.rename(new)
