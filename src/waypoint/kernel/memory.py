"""A tmpfs where the images of a dump are written during the pause, and the machine's memory.

Each page of a file in the pool is allocated, accounted and locked on its own: a millisecond of pause for each
megabyte. Huge pages of memory take a tenth of that; the kernel copies them to the pool when the processes run
again. The tmpfs is mounted nowhere, so it ends with the daemon and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from waypoint.kernel.syscalls import detached_mount

_MAX_BYTES = 256 << 20
"""A larger copy would delay the caller for longer than the pause was."""
_COPY_BYTES = 64 << 20


class Ram:
    """Temporary folders in memory, where the kernel can make a tmpfs that is mounted nowhere."""

    def __init__(self) -> None:
        self._root: Path | None = None
        for huge in ({"huge": "within_size"}, {}):
            with contextlib.suppress(OSError):
                # The descriptor stays open as long as the daemon lives: the folders are reached through it.
                root = detached_mount("tmpfs", mode="0700", **huge)
                self._root = Path(f"/proc/self/fd/{root}")
                return

    @contextlib.contextmanager
    def staged_in_memory(self, folder: Path, size_bytes: int) -> Iterator[Path]:
        """A folder to write plain files into. They are copied to `folder` after the block, unless it raised.
        It is `folder` itself when there is no room for about `size_bytes` in memory."""
        if self._root is None or size_bytes > min(_MAX_BYTES, _available_bytes() // 8):
            yield folder
            return
        staged = self._root / folder.parent.name
        staged.mkdir(mode=0o700)
        try:
            yield staged
            for entry in os.scandir(staged):
                with open(entry.path, "rb") as reader, open(folder / entry.name, "xb") as writer:
                    while os.sendfile(writer.fileno(), reader.fileno(), None, _COPY_BYTES):
                        pass
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    @contextlib.contextmanager
    def temporary_folder(self, size_bytes: int) -> Iterator[Path | None]:
        """A folder that is removed after the block; None when there is no room for about `size_bytes`."""
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
    """/proc/meminfo, in bytes."""
    with open("/proc/meminfo") as lines:
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def _available_bytes() -> int:
    return machine_bytes().get("MemAvailable", 0)
