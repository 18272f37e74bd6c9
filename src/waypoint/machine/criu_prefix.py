"""A private CRIU: a program, its loader and its libraries in one folder, made safe to run inside a box.

The copy comes from the machine's own criu or from a package of a newer suite of the distribution, so that
neither the distribution's version of CRIU nor its libc matters.

CRIU runs with all its privileges *inside* a box, where every path may have been prepared by the box's
users. So that none of their code ever runs in it, the copies are altered: the loader knows no
ld.so.preload, no ld.so.cache and no system folders; CRIU has no default configuration and no default
plugins. engine/criu.py removes what is left (PATH and HOME).
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from waypoint.engine.criu import criu_argv
from waypoint.errors import SetupFailed
from waypoint.machine.apt import (
    Progress,
    archive_sources,
    machine_sources,
    open_suites,
    read_distribution,
    run,
    which,
)

Origin = Literal["host", "package"]
PARTS = ("criu/criu", "criu/ld.so")


@dataclass(frozen=True)
class Candidate:
    """A CRIU somewhere on the disk, with what is needed to run it there."""

    label: str
    origin: Origin
    program: Path
    loader: Path
    libraries: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Rejection:
    """A CRIU that was tried and not taken."""

    candidate: str
    reason: str


# ---- where a CRIU may come from -------------------------------------------------------------------


def find_candidates(downloads: Path, unpacked: Path, progress: Progress) -> Iterator[Candidate | Rejection]:
    """Every CRIU that this machine can have, nearest first. A candidate is only there until the next one is
    asked for: `unpacked` holds one package at a time."""
    yield from _host_criu()
    yield from _packaged_criu(downloads, unpacked, progress)


def _host_criu() -> Iterator[Candidate | Rejection]:
    """The CRIU that the machine has already."""
    path = which("criu")
    if path is None:
        return
    label, program = f"the machine's own criu ({path})", Path(path).resolve()
    loader = interpreter_of(program)
    if loader is None or not loader.exists():
        yield Rejection(label, "it is not a dynamically linked program")
    else:
        yield Candidate(label, "host", program, loader.resolve())


def _packaged_criu(downloads: Path, unpacked: Path, progress: Progress) -> Iterator[Candidate | Rejection]:
    """CRIU from the distribution's newer suites, each with every package it depends on, down to libc."""
    if which("apt-get") is None or which("dpkg-deb") is None:
        yield Rejection("a package of the distribution", "this machine has no apt")
        return
    downloads.chmod(0o755)  # apt downloads as a user of its own
    distribution = read_distribution()
    sources = archive_sources(machine_sources(), distribution)
    if not sources:
        yield Rejection(
            "a package of the distribution", "apt's configuration has no source of the distribution"
        )
    for number, (suites, source) in enumerate(itertools.product(distribution.suites, sources)):
        label = f"criu from {distribution.name} {suites[0]}"
        progress(f"downloading {label}")
        shutil.rmtree(unpacked, ignore_errors=True)
        try:
            apt = open_suites(downloads / str(number), source, suites, distribution, progress)
            apt.unpack("criu", unpacked)
            yield _unpacked_criu(label, unpacked)
        except SetupFailed as error:
            yield Rejection(label, error.message)


def _unpacked_criu(label: str, root: Path) -> Candidate:
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    program = next(
        (path for path in files if path.name == "criu" and path.parent.name in {"bin", "sbin"}), None
    )
    loader = program and interpreter_of(program)
    if program is None or loader is None:
        raise SetupFailed("there is no dynamically linked criu in the package")
    loader = next((path for path in files if path.name == loader.name), None)
    if loader is None:
        raise SetupFailed("its loader is in none of the packages")
    libraries = sorted({path.parent for path in files if path.match("lib*.so.*")})
    return Candidate(label, "package", program, loader, tuple(libraries))


def interpreter_of(program: Path) -> Path | None:
    """The loader that a 64-bit ELF program names; None for a static program or another kind of file."""
    image = program.read_bytes()
    header_bytes, interpreter = 64, 3
    if len(image) < header_bytes or image[:6] != b"\x7fELF\x02\x01":
        return None
    (table,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    for position in range(table, table + size * count, size):
        kind, _flags, offset, _vaddr, _paddr, length = struct.unpack_from("<IIQQQQ", image, position)
        if kind == interpreter:
            return Path(os.fsdecode(image[offset : offset + length].rstrip(b"\0")))
    return None


# ---- the prefix -----------------------------------------------------------------------------------


def assemble(candidate: Candidate, prefix: Path) -> None:
    """Fills `prefix` with altered copies of the candidate, its loader and its libraries; shim.so stays
    there."""
    shim = (prefix / "shim.so").read_bytes()
    shutil.rmtree(prefix)
    for folder in (prefix, prefix / "lib", prefix / "plugins"):
        folder.mkdir()
    _write_program(prefix / "shim.so", shim)
    _write_program(prefix / "ld.so", safe_loader(candidate.loader.read_bytes()))
    _write_program(prefix / "criu", safe_criu(candidate.program.read_bytes()))
    libraries = _list_libraries(candidate.loader, candidate.program, candidate.libraries)
    for name, path in libraries:
        shutil.copyfile(path, prefix / "lib" / name)
    # libc loads this one by itself when a thread is cancelled, and must find it here then.
    for folder in {path.parent for _, path in libraries}:
        if (folder / "libgcc_s.so.1").is_file():
            shutil.copyfile(folder / "libgcc_s.so.1", prefix / "lib" / "libgcc_s.so.1")
    for name, path in _list_libraries(prefix / "ld.so", prefix / "criu", (prefix / "lib",)):
        if path.parent != prefix / "lib":
            raise SetupFailed(f"{name} is still taken from {path.parent}")


def _write_program(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)


def _list_libraries(loader: Path, program: Path, folders: tuple[Path, ...]) -> list[tuple[str, Path]]:
    """The libraries of a program, by name, as the loader finds them: in `folders`, or in the machine's
    own."""
    search = ("--inhibit-cache", "--library-path", ":".join(map(str, folders))) if folders else ()
    listing = run("listing CRIU's libraries", str(loader), *search, "--list", str(program))
    libraries = []
    for line in listing.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow or name.startswith("/"):
            continue  # the vDSO and the loader itself
        if not rest.startswith("/"):
            raise SetupFailed(f"its library {name} is missing")
        libraries.append((name, Path(rest.rsplit(" (", 1)[0])))
    if not libraries:
        raise SetupFailed("its libraries could not be listed")
    return libraries


def criu_version(engine: Path) -> str:
    """The version of the CRIU in an engine, as the program itself reports it."""
    output = run("asking CRIU for its version", *criu_argv(engine, "--version"))
    match = re.search(r"^Version:\s*(\S+)", output, re.MULTILINE)
    if match is None:
        raise SetupFailed(f"it does not report its version: {output.strip()!r}")
    return match[1]


# ---- altering programs ----------------------------------------------------------------------------

_LOADER_PATCHES = (
    (b"/etc/ld.so.preload", b"/dev/waypoint/none"),
    (b"/etc/ld.so.cache", b"/dev/waypoint/no"),
)
# CRIU's cache of kernel features must be on a tmpfs. A box's /dev is one, its /run is not. (CRIU makes the
# name of the temporary file beside it from this one.)
_CRIU_PATCHES = ((b"/run/criu.kdat", b"/dev/criu.kdat"),)
# Not in every build, so not required: criu_argv has an option with the same effect.
_OPTIONAL_CRIU_PATCHES = ((b"/etc/criu/default.conf", b"/dev/waypoint/none.cfg"),)
_SYSTEM_FOLDERS = re.compile(rb"(?<![!-~])(?:/usr)?/lib(?:64)?/(?:[a-z0-9_]+-linux-gnu[a-z0-9]*/)?(?=\0)")
_PLUGIN_FOLDER = re.compile(rb"(?<=\0)/usr/(?:local/)?lib[^\0]{0,40}/criu/?(?=\0)")


def patched(image: bytes, old: bytes, new: bytes) -> bytes:
    """`image` with every `old` replaced by `new`, which must be as long; SetupFailed when there is none."""
    if len(old) != len(new):
        raise ValueError(f"{old!r} and {new!r} differ in length")
    if old not in image:
        raise SetupFailed(f"it does not contain {old.decode()}, so it cannot be made safe to run in a box")
    return image.replace(old, new)


def _unusable_path(folder: re.Match[bytes]) -> bytes:
    """A path as long as the matched one where no box can create files: users cannot create any in sysfs."""
    length = len(folder[0])
    return b"/sys/" if length == len(b"/sys/") else b"/sys/" + b"x" * (length - 6) + b"/"


def safe_loader(image: bytes) -> bytes:
    """The dynamic loader without any path of the system it runs on."""
    for old, new in _LOADER_PATCHES:
        image = patched(image, old, new)
    image, count = _SYSTEM_FOLDERS.subn(_unusable_path, image)
    if count == 0:
        raise SetupFailed(
            "its loader's system folders were not found, so it cannot be made safe to run in a box"
        )
    return image


def safe_criu(image: bytes) -> bytes:
    """CRIU without default configuration and plugins, and with its kernel cache in /dev."""
    for old, new in _CRIU_PATCHES:
        image = patched(image, old, new)
    for old, new in _OPTIONAL_CRIU_PATCHES:
        image = image.replace(old, new)
    return _PLUGIN_FOLDER.sub(_unusable_path, image)
