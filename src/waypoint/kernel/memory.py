"""A place in memory where the images of a dump are written while the processes wait.

A page of a file in the pool is allocated, accounted and locked one by one: a millisecond for each megabyte,
in the pause. Huge pages of memory take a tenth of that; from there the kernel copies to the pool when
everybody runs again. Mounted nowhere, so it ends with the daemon and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from waypoint.kernel.syscalls import detached_mount

_MOST_BYTES = 256 << 20
"""Above this the copy would keep the caller waiting for longer than the pause was."""
_COPY_BYTES = 64 << 20


class Ram:
    """Folders in memory, where the kernel has a file system for it."""

    def __init__(self) -> None:
        self._root: Path | None = None
        for huge in ({"huge": "within_size"}, {}):
            with contextlib.suppress(OSError):
                # The descriptor stays open as long as the daemon lives: the place is reached through it.
                root = detached_mount("tmpfs", mode="0700", **huge)
                self._root = Path(f"/proc/self/fd/{root}")
                return

    @contextlib.contextmanager
    def ahead_of(self, folder: Path, size_bytes: int) -> Iterator[Path]:
        """A folder to write plain files into, which are in `folder` afterwards unless that failed; `folder`
        itself when there is no room for about `size_bytes` here."""
        if self._root is None or size_bytes > min(_MOST_BYTES, _available_bytes() // 8):
            yield folder
            return
        passing = self._root / folder.parent.name
        passing.mkdir(mode=0o700)
        try:
            yield passing
            for entry in os.scandir(passing):
                with open(entry.path, "rb") as reader, open(folder / entry.name, "xb") as writer:
                    while os.sendfile(writer.fileno(), reader.fileno(), None, _COPY_BYTES):
                        pass
        finally:
            shutil.rmtree(passing, ignore_errors=True)

    @contextlib.contextmanager
    def passing(self, size_bytes: int) -> Iterator[Path | None]:
        """A folder that is gone afterwards; None when there is no room for about `size_bytes` here."""
        if self._root is None or size_bytes > _available_bytes() // 8:
            yield None
            return
        folder = self._root / secrets.token_hex(6)
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def machine_bytes() -> dict[str, int]:
    """What the machine says of its memory (/proc/meminfo), in bytes."""
    with open("/proc/meminfo") as lines:
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def _available_bytes() -> int:
    return machine_bytes().get("MemAvailable", 0)
