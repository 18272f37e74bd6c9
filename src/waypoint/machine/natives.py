"""The native programs: compiling them from native/, and keeping old versions that checkpoints refer to."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from waypoint.machine.apt import Progress, install_missing, run

SOURCES = Path(__file__).parents[1] / "native"
SHELL_INTEGRATION = Path(__file__).parents[1] / "shell" / "integration.bash"
_WARNINGS = ("-O2", "-Wall", "-Wextra")
_STATIC = ("-static", *_WARNINGS)
PROGRAMS = {
    "keeper.c": ("bin/keeper", _STATIC),
    "anchor.c": ("bin/anchor", _STATIC),
    "start.c": ("bin/start", _STATIC),
    "relock.c": ("bin/relock", _STATIC),
    "peers.c": ("bin/peers", _STATIC),
    "inside.c": ("bin/inside/waypoint", _STATIC),
    "sqlite.c": ("bin/sqlite", _STATIC),
    "track.c": ("bin/track", _STATIC),
    "precopy.c": ("bin/precopy", _STATIC),
    "flatten.c": ("bin/flatten", _STATIC),
    "pages.c": ("bin/pages", _STATIC),
    "shim.c": ("criu/shim.so", ("-shared", "-fPIC", *_WARNINGS)),
}
"""Source → its place in the engine, and the compiler's options."""
PARTS = (*(target for target, _ in PROGRAMS.values()), "bin/integration.bash")
_IN_IMAGES = ("bin/anchor", "bin/inside/waypoint")
"""Programs that may be running when a checkpoint is taken. A restore needs the very same file again."""


def natives_hash(sources: Path = SOURCES) -> str:
    """A digest of everything that the native programs are built from, headers too."""
    digest = hashlib.sha256(repr((PROGRAMS, _IN_IMAGES)).encode())
    for path in [*sorted([*sources.glob("*.c"), *sources.glob("*.h")]), SHELL_INTEGRATION]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def compile_natives(staging: Path, progress: Progress) -> None:
    """Compiles all of them to their places below `staging`."""
    install_missing({"cc": "gcc libc6-dev"}, progress)
    (staging / "bin" / "inside").mkdir(parents=True)
    (staging / "criu").mkdir()
    for name, (target, flags) in PROGRAMS.items():
        progress(f"compiling {target}")
        run(f"compiling {name}", "cc", *flags, "-o", str(staging / target), str(SOURCES / name))
    shutil.copy(SHELL_INTEGRATION, staging / "bin")


def keep_versions(engine: Path, staging: Path) -> None:
    """Renames the programs that images refer to after their content, and copies those of the present
    engine: a checkpoint that was taken with an older Waypoint finds the version it had."""
    versions = staging / "bin" / "kept"
    if (engine / "bin" / "kept").is_dir():
        shutil.copytree(engine / "bin" / "kept", versions)
    versions.mkdir(exist_ok=True)
    for part in _IN_IMAGES:
        program = staging / part
        digest = hashlib.sha256(program.read_bytes()).hexdigest()[:16]
        version = versions / f"{program.name}-{digest}"
        program.replace(version)
        program.symlink_to(os.path.relpath(version, program.parent))
