"""Setting up: what `waypoint setup` puts on a machine, and where.

Waypoint needs a CRIU that really works on the running kernel, a few small native programs, and two
packages of the distribution. This module gets them without touching the machine's own packages more
than it must: CRIU lives in a private prefix with its own loader and libraries, so that neither the
distribution's version of it nor the distribution's libc matters.

The engine, below `engine_dir()`:

    bin/keeper  bin/anchor    static executables, compiled here from native/
    bin/inside/waypoint       what `waypoint` is in a session
    bin/kept/                 every version of the programs that are in images, by content
    criu/criu                 CRIU: the machine's own, or one from a newer suite of the distribution
    criu/ld.so  criu/lib/     the loader and the libraries it was linked against
    criu/shim.so              preloaded into it, see native/shim.c
    criu/plugins/             empty: where CRIU looks for plugins
    engine.json               what was built, from what, and for which kernel it was proven to work

CRIU runs with all its privileges *inside* a box, where every path may have been prepared by whoever
lives there. So that none of the box's code ever runs in it, the copies are altered: the loader knows no
ld.so.preload, no ld.so.cache and no system folders; CRIU has no default configuration and no default
plugins. engine/criu.py shuts what is left (PATH and HOME).

The folder is bind-mounted read-only into boxes that are alive, so it is never replaced itself: `bin` and
`criu` in it are exchanged for new ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from waypoint.engine.criu import criu_argv
from waypoint.errors import MissingFeature, NotRoot, SetupFailed
from waypoint.kernel import atomic
from waypoint.machine.apt import (
    Progress,
    archive_sources,
    install_missing,
    machine_sources,
    open_suites,
    read_distribution,
    run,
    which,
)

Probe = Callable[[Path], str | None]
"""Dumps and restores a small tree with the engine in the given folder; says why not, or None."""

ARCHITECTURES = ("x86_64",)
LAYOUT = 1
"""Raised when an engine built by an older Waypoint must be built anew."""


@dataclass(frozen=True)
class Criu:
    """Which CRIU it is: its version, whose it was, and in words."""

    version: str
    origin: Literal["host", "package"]
    source: str


@dataclass(frozen=True)
class Rejection:
    """A CRIU that was tried and not taken."""

    candidate: str
    reason: str


@dataclass(frozen=True)
class Engine:
    """What is in the engine folder, as engine.json tells it."""

    folder: Path
    criu: Criu
    arch: str
    kernel: str
    natives: str
    rejected: tuple[Rejection, ...] = ()


def engine_dir(home: Path) -> Path:
    """Where the engine is: WAYPOINT_ENGINE if set, else in Waypoint's home."""
    given = os.environ.get("WAYPOINT_ENGINE")
    return Path(given) if given else home / "engine"


# Everything at once ---------------------------------------------------------------------------------


def set_up(home: Path, progress: Progress, *, probe: Probe | None = None) -> Engine:
    """All that a machine needs before there can be a pool: packages and engine."""
    if os.geteuid() != 0:
        raise NotRoot("setting up needs root", hint="run it again as root")
    ensure_packages(progress)
    return ensure_engine(home, progress, probe=probe)


def uninstall(home: Path, progress: Progress) -> None:
    """Removes all of a home: checkpoints, sessions' files, the engine if it is in there. The daemon and its
    sessions must have ended before."""
    from waypoint.home import Home
    from waypoint.kernel.pool.holders import pool_holders
    from waypoint.kernel.pool.lifecycle import close_pool

    if not close_pool(home):
        holders = ", ".join(f"{one.pid} ({one.command})" for one in pool_holders(home)[:5])
        raise SetupFailed(
            f"the pool is still in use by {holders or 'somebody'}", hint="end them and try again"
        )
    for folder in (Home(home.absolute()).run, home):
        if folder.exists():
            progress(f"removing {folder}")
            shutil.rmtree(folder)


def ensure_packages(progress: Progress) -> None:
    """Installs the distribution's packages whose programs are missing."""
    needed = {"mkfs.btrfs": "btrfs-progs", "nft": "nftables"}
    install_missing(needed, progress)


def ensure_engine(home: Path, progress: Progress, *, probe: Probe | None = None) -> Engine:
    """The engine, built if there is none for these sources and this kernel.

    Safe to be called by several processes at once. A call that fails leaves what was there before.
    """
    folder = engine_dir(home)
    if (found := current_engine(folder)) is not None:
        return found
    if (machine := os.uname().machine) not in ARCHITECTURES:
        raise MissingFeature(
            f"Waypoint does not run on {machine} yet",
            hint=f"it runs on {', '.join(ARCHITECTURES)}",
        )
    probe = probe or _default_probe()
    try:
        if folder.is_relative_to(home):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, progress):
            if (found := current_engine(folder)) is not None:
                return found
            for stale in folder.glob(".new-*"):
                shutil.rmtree(stale, ignore_errors=True)
            staging = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
            try:
                return _build(folder, staging, progress, probe)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise SetupFailed(
            f"the engine could not be built in {folder}: {error}",
            hint="is there space, and may files there be executed? `waypoint doctor` looks",
        ) from error


def read_engine(folder: Path) -> Engine | None:
    """What engine.json says, whether it still fits or not; None where there is no CRIU to go with it."""
    try:
        said = json.loads((folder / "engine.json").read_text())
        if said["layout"] != LAYOUT or not _has(folder, _CRIU_PARTS):
            return None
        return Engine(
            folder=folder,
            criu=Criu(**said["criu"]),
            arch=said["arch"],
            kernel=said["kernel"],
            natives=said["natives"],
            rejected=tuple(Rejection(**one) for one in said["rejected"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def current_engine(folder: Path) -> Engine | None:
    """The engine, if it was built from these sources and proven on this very kernel."""
    found = read_engine(folder)
    system = os.uname()
    wanted = (natives_hash(), system.machine, system.release)
    if found is None or (found.natives, found.arch, found.kernel) != wanted:
        return None
    return found if _has(folder, _BUILT_PARTS) else None


def _has(folder: Path, parts: Iterable[str]) -> bool:
    return all((folder / part).is_file() for part in parts)


def _default_probe() -> Probe:
    from waypoint.engine.probe import probe

    return probe


@contextlib.contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another set-up is at work; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# Building and publishing -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Candidate:
    """A CRIU somewhere on the disk, with what it takes to run it there."""

    label: str
    origin: Literal["host", "package"]
    program: Path
    loader: Path
    libraries: tuple[Path, ...] = ()


def _build(folder: Path, staging: Path, progress: Progress, probe: Probe) -> Engine:
    (staging / "bin" / "inside").mkdir(parents=True)
    (staging / "criu").mkdir()
    natives = natives_hash()
    _compile_natives(staging, progress)
    _keep_programs(folder, staging)
    chosen = _keep_criu(folder, staging, progress, probe) or _choose_criu(staging, progress, probe)
    criu, rejected = chosen
    system = os.uname()
    built = Engine(folder, criu, system.machine, system.release, natives, tuple(rejected))
    _publish(built, staging)
    progress(f"engine ready: CRIU {criu.version}, {criu.source}")
    return built


def _keep_criu(
    folder: Path, staging: Path, progress: Progress, probe: Probe
) -> tuple[Criu, Sequence[Rejection]] | None:
    """Takes over the CRIU of the present engine, if it works with the new native programs and kernel."""
    known = read_engine(folder)
    if known is None:
        return None
    progress(f"checking that CRIU {known.criu.version} still works")
    shim = shutil.ignore_patterns("shim.so")
    shutil.copytree(folder / "criu", staging / "criu", dirs_exist_ok=True, ignore=shim)
    if (reason := probe(staging)) is not None:
        progress(f"it does not: {reason}")
        return None
    return known.criu, known.rejected


def _choose_criu(staging: Path, progress: Progress, probe: Probe) -> tuple[Criu, Sequence[Rejection]]:
    """Puts the first CRIU that passes the probe into `staging`."""
    rejected: list[Rejection] = []

    def reject(label: str, reason: str) -> None:
        rejected.append(Rejection(label, reason))
        progress(f"{label} is of no use: {reason}")

    with tempfile.TemporaryDirectory(prefix="waypoint-apt-") as downloads:
        packaged = _packaged_criu(Path(downloads), staging / "unpacked", progress, reject)
        for candidate in itertools.chain(_host_criu(reject), packaged):
            progress(f"trying {candidate.label}")
            try:
                _assemble(candidate, staging / "criu")
                version = _criu_version(staging)
                reason = probe(staging)
            except SetupFailed as error:
                reject(candidate.label, error.message)
                continue
            if reason is None:
                return Criu(version, candidate.origin, candidate.label), rejected
            reject(f"{candidate.label}, version {version}", reason)
    tried = "; ".join(f"{one.candidate}: {one.reason}" for one in rejected) or "none was found"
    raise SetupFailed(
        f"no CRIU works on kernel {os.uname().release} ({tried})",
        hint="install a newer criu (4.2 or later for kernels from 6.16 on) and run `waypoint setup` again",
        rejected=[asdict(one) for one in rejected],
    )


def _publish(built: Engine, staging: Path) -> None:
    """Makes what was staged the engine.

    After a crash at any point each of `bin` and `criu` is either wholly the old or wholly the new one;
    engine.json comes last, so a mixture names sources it was not built from and is built again.
    """
    for part in ("bin", "criu"):
        for path in (staging / part).rglob("*"):
            if path.is_file():
                atomic.sync(path)
        _exchange(staging / part, built.folder / part)
    _go_on_keeping(staging / "bin" / "kept", built.folder / "bin" / "kept")
    said = {"layout": LAYOUT, **asdict(built)}
    del said["folder"]
    atomic.write(built.folder / "engine.json", json.dumps(said, indent=2) + "\n", durable=True)


def _go_on_keeping(before: Path, now: Path) -> None:
    """Puts the folder that was there `before` back in its place, with what is new in it: sessions that live
    on run programs from that very folder, and what is no longer at its name cannot be in an image."""
    if not before.is_dir():
        return
    for made in now.iterdir():
        if not (before / made.name).exists():
            os.link(made, before / made.name)
    atomic.sync(before)
    _exchange(before, now)


def _exchange(new: Path, present: Path) -> None:
    """Puts the folder `new` in the place of `present`, which ends up where `new` was."""
    if not present.exists():
        new.rename(present)
        return
    at_fdcwd, rename_exchange = -100, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(at_fdcwd, os.fsencode(new), at_fdcwd, os.fsencode(present), rename_exchange) == 0:
        return
    # A file system that cannot exchange: there is a moment without the folder.
    away = new.with_name(f"{new.name}.old")
    present.rename(away)
    new.rename(present)
    away.rename(new)


# The native programs -----------------------------------------------------------------------------------

NATIVE_SOURCES = Path(__file__).parents[1] / "native"
_WARNINGS = ("-O2", "-Wall", "-Wextra")
_NATIVES = {
    "keeper.c": ("bin/keeper", ("-static", *_WARNINGS)),
    "anchor.c": ("bin/anchor", ("-static", *_WARNINGS)),
    "relock.c": ("bin/relock", ("-static", *_WARNINGS)),
    "inside.c": ("bin/inside/waypoint", ("-static", *_WARNINGS)),
    "track.c": ("bin/track", ("-static", *_WARNINGS)),
    "precopy.c": ("bin/precopy", ("-static", *_WARNINGS)),
    "flatten.c": ("bin/flatten", ("-static", *_WARNINGS)),
    "shim.c": ("criu/shim.so", ("-shared", "-fPIC", *_WARNINGS)),
}
SHELL_INTEGRATION = Path(__file__).parents[1] / "shell" / "integration.bash"
_IN_IMAGES = ("bin/anchor", "bin/inside/waypoint")
"""Programs that a checkpoint may hold while they run. CRIU wants to find the very same file again."""
_BUILT_PARTS = (*(target for target, _ in _NATIVES.values()), "bin/integration.bash")
_CRIU_PARTS = ("criu/criu", "criu/ld.so")


def natives_hash(sources: Path = NATIVE_SOURCES) -> str:
    """A digest of all that the native programs are made from."""
    digest = hashlib.sha256(repr((_NATIVES, _IN_IMAGES)).encode())
    for path in [*sorted([*sources.glob("*.c"), *sources.glob("*.h")]), SHELL_INTEGRATION]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _compile_natives(staging: Path, progress: Progress) -> None:
    install_missing({"cc": "gcc libc6-dev"}, progress)
    for name, (target, flags) in _NATIVES.items():
        progress(f"compiling {target}")
        source = str(NATIVE_SOURCES / name)
        run(f"compiling {name}", "cc", *flags, "-o", str(staging / target), source)
    shutil.copy(SHELL_INTEGRATION, staging / "bin")


def _keep_programs(folder: Path, staging: Path) -> None:
    """Gives programs that are in images a name of their content, and takes over those of the present engine:
    a point that was taken with an older Waypoint finds what it had."""
    kept = staging / "bin" / "kept"
    if (folder / "bin" / "kept").is_dir():
        shutil.copytree(folder / "bin" / "kept", kept)
    kept.mkdir(exist_ok=True)
    for part in _IN_IMAGES:
        made = staging / part
        named = kept / f"{made.name}-{hashlib.sha256(made.read_bytes()).hexdigest()[:16]}"
        made.replace(named)
        made.symlink_to(os.path.relpath(named, made.parent))


# A private copy of CRIU --------------------------------------------------------------------------------

_LOADER_PATCHES = (
    (b"/etc/ld.so.preload", b"/dev/waypoint/none"),
    (b"/etc/ld.so.cache", b"/dev/waypoint/no"),
)
# The cache of what CRIU found out about the kernel must be on a tmpfs. A box's /dev is one, its /run not.
# (CRIU makes the name of the temporary file beside it from this one.)
_CRIU_PATCHES = ((b"/run/criu.kdat", b"/dev/criu.kdat"),)
# Not in every build, so not insisted on: criu_argv says the same with options.
_CRIU_PATCHES_IF_THERE = ((b"/etc/criu/default.conf", b"/dev/waypoint/none.cfg"),)
_SYSTEM_FOLDERS = re.compile(rb"(?<![!-~])(?:/usr)?/lib(?:64)?/(?:[a-z0-9_]+-linux-gnu[a-z0-9]*/)?(?=\0)")
_PLUGIN_FOLDER = re.compile(rb"(?<=\0)/usr/(?:local/)?lib[^\0]{0,40}/criu/?(?=\0)")


def patched(image: bytes, old: bytes, new: bytes) -> bytes:
    """`image` with every `old` made `new`, which must be as long; SetupFailed when there is none."""
    if len(old) != len(new):
        raise ValueError(f"{old!r} and {new!r} differ in length")
    if old not in image:
        raise SetupFailed(f"it does not contain {old.decode()}, so it cannot be made safe to run in a box")
    return image.replace(old, new)


def _nowhere(folder: re.Match[bytes]) -> bytes:
    """A path as long as the matched one that no box can put anything at: sysfs has no files of users."""
    length = len(folder[0])
    return b"/sys/" if length == len(b"/sys/") else b"/sys/" + b"x" * (length - 6) + b"/"


def safe_loader(image: bytes) -> bytes:
    """The dynamic loader, deaf to every path of the system it runs on."""
    for old, new in _LOADER_PATCHES:
        image = patched(image, old, new)
    image, count = _SYSTEM_FOLDERS.subn(_nowhere, image)
    if count == 0:
        raise SetupFailed(
            "its loader's system folders were not found, so it cannot be made safe to run in a box"
        )
    return image


def safe_criu(image: bytes) -> bytes:
    """CRIU without default configuration and plugins, and with its kernel cache in /dev."""
    for old, new in _CRIU_PATCHES:
        image = patched(image, old, new)
    for old, new in _CRIU_PATCHES_IF_THERE:
        image = image.replace(old, new)
    return _PLUGIN_FOLDER.sub(_nowhere, image)


def _assemble(candidate: _Candidate, prefix: Path) -> None:
    """Fills `prefix` with altered copies of the candidate, its loader and its libraries."""
    shim = (prefix / "shim.so").read_bytes()
    shutil.rmtree(prefix)
    for folder in (prefix, prefix / "lib", prefix / "plugins"):
        folder.mkdir()
    _write_program(prefix / "shim.so", shim)
    _write_program(prefix / "ld.so", safe_loader(candidate.loader.read_bytes()))
    _write_program(prefix / "criu", safe_criu(candidate.program.read_bytes()))
    search = ("--inhibit-cache", "--library-path", ":".join(map(str, candidate.libraries)))
    linked = _linked(
        candidate.loader, *(search if candidate.libraries else ()), "--list", str(candidate.program)
    )
    for name, path in linked:
        shutil.copyfile(path, prefix / "lib" / name)
    # libc loads this one by itself when a thread is cancelled, and must find it here then.
    for folder in {path.parent for _, path in linked}:
        if (folder / "libgcc_s.so.1").is_file():
            shutil.copyfile(folder / "libgcc_s.so.1", prefix / "lib" / "libgcc_s.so.1")
    own = ("--inhibit-cache", "--library-path", f"{prefix}/lib", "--list", f"{prefix}/criu")
    for name, path in _linked(prefix / "ld.so", *own):
        if path.parent != prefix / "lib":
            raise SetupFailed(f"{name} is still taken from {path.parent}")


def _write_program(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)


def _linked(loader: Path, *arguments: str) -> list[tuple[str, Path]]:
    """The libraries that a program resolves to, by name, as the loader's --list prints them."""
    listing = run("listing CRIU's libraries", str(loader), *arguments)
    found = []
    for line in listing.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow or name.startswith("/"):
            continue  # the vDSO and the loader itself
        if not rest.startswith("/"):
            raise SetupFailed(f"its library {name} is missing")
        found.append((name, Path(rest.rsplit(" (", 1)[0])))
    if not found:
        raise SetupFailed("its libraries could not be listed")
    return found


def interpreter_of(program: Path) -> Path | None:
    """The loader that a 64-bit ELF program asks for; None for a static one or something else."""
    image = program.read_bytes()
    header_bytes, interpreter = 64, 3
    if len(image) < header_bytes or image[:6] != b"\x7fELF\x02\x01":
        return None
    (table,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    for at in range(table, table + size * count, size):
        kind, _flags, offset, _vaddr, _paddr, length = struct.unpack_from("<IIQQQQ", image, at)
        if kind == interpreter:
            return Path(os.fsdecode(image[offset : offset + length].rstrip(b"\0")))
    return None


def _criu_version(engine: Path) -> str:
    said = run("asking CRIU for its version", *criu_argv(engine, "--version"))
    found = re.search(r"^Version:\s*(\S+)", said, re.MULTILINE)
    if found is None:
        raise SetupFailed(f"it does not say which version it is: {said.strip()!r}")
    return found[1]


def _host_criu(reject: Callable[[str, str], None]) -> Iterator[_Candidate]:
    """The CRIU that the machine has already."""
    where = which("criu")
    if where is None:
        return
    program = Path(where).resolve()
    loader = interpreter_of(program)
    if loader is None or not loader.exists():
        reject(f"the machine's own criu ({where})", "it is not a dynamically linked program")
        return
    yield _Candidate(f"the machine's own criu ({where})", "host", program, loader.resolve())


def _packaged_criu(
    downloads: Path, unpacked: Path, progress: Progress, reject: Callable[[str, str], None]
) -> Iterator[_Candidate]:
    """CRIU from the distribution's newer suites, each with every package it depends on, down to libc."""
    if which("apt-get") is None or which("dpkg-deb") is None:
        reject("a package of the distribution", "this machine has no apt")
        return
    downloads.chmod(0o755)  # apt fetches as its own user
    distribution = read_distribution()
    sources = archive_sources(machine_sources(), distribution)
    if not sources:
        reject("a package of the distribution", "no source of the distribution in apt's configuration")
    tries = itertools.product(distribution.suites, sources)
    for number, (suites, source) in enumerate(tries):
        label = f"criu from {distribution.name} {suites[0]}"
        progress(f"fetching {label}")
        shutil.rmtree(unpacked, ignore_errors=True)
        try:
            apt = open_suites(downloads / str(number), source, suites, distribution, progress)
            apt.unpack("criu", unpacked)
            candidate = _unpacked_criu(label, unpacked)
        except SetupFailed as error:
            reject(label, error.message)
        else:
            yield candidate


def _unpacked_criu(label: str, root: Path) -> _Candidate:
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    program = next(
        (path for path in files if path.name == "criu" and path.parent.name in {"bin", "sbin"}), None
    )
    loader = program and interpreter_of(program)
    if program is None or loader is None:
        raise SetupFailed("there is no dynamically linked criu in the package")
    loader = next((path for path in files if path.name == loader.name), None)
    if loader is None:
        raise SetupFailed("its loader did not come with it")
    libraries = sorted({path.parent for path in files if path.match("lib*.so.*")})
    return _Candidate(label, "package", program, loader, tuple(libraries))
