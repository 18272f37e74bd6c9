"""Small root file systems for tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = (
    *(
        "bash",
        "base64",
        "cat",
        "chmod",
        "chown",
        "cp",
        "cut",
        "dd",
        "env",
        "grep",
        "ls",
        "ln",
        "mkdir",
        "mv",
        "rm",
    ),
    *("rmdir", "sha256sum", "sleep", "sort", "stat", "sync", "touch", "truncate", "wc"),
)


def make_root(folder: Path, programs: Sequence[str] = PROGRAMS) -> None:
    """A small root file system: bash, what a shell needs, and nothing else."""
    for name in ("bin", "dev", "etc", "lib64", "proc", "root", "sys", "tmp", "usr/bin", "var"):
        (folder / name).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    for name in programs:
        program = shutil.which(name, path="/usr/bin:/bin")
        assert program
        shutil.copy(program, folder / "bin" / name)
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for word in listed.split():
            if word.startswith("/") and not (folder / word.lstrip("/")).exists():
                (folder / word.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, folder / word.lstrip("/"))
