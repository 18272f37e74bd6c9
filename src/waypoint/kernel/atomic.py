"""Files that are replaced as a whole: a reader sees the old content or the new content, never a part.

The new content is written to a temporary file in the same folder, which then takes the name by rename(2).
This module stands alone because programs that live for milliseconds (hooks, the command line) use it too: it
imports nothing that is slow to load.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def replaced(
    path: str | os.PathLike[str], *, mode: int | None = None, durable: bool = False
) -> Iterator[IO[bytes]]:
    """A file to write, which has its name when the block has ended. If the block raises, nothing has changed.

    `mode`: its permissions; None keeps those of the file that it replaces, or takes what the umask leaves.
    A symbolic link is replaced, not followed.

    What survives when the process is killed at any moment: the old file or the new one, whole, and perhaps a
    `.NAME.XXXXXXXX` beside it. A power cut is survived in the same way only with `durable`, which waits for
    the disk (fsync of the file before the rename, of the folder after it). Without it the name may lead to
    the old file, to the new one, or on some file systems to an empty one.
    """
    target = os.fspath(path)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name}.{os.urandom(4).hex()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o666 if mode is None else 0o600), "wb") as file:
            if mode is None:
                with contextlib.suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), os.stat(target).st_mode & 0o7777)
            else:
                os.fchmod(file.fileno(), mode)
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync(folder or ".")


def write(
    path: str | os.PathLike[str], content: bytes | str, *, mode: int | None = None, durable: bool = False
) -> None:
    """Makes `content` the content of a file; see `replaced` for what survives a crash."""
    with replaced(path, mode=mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync(path: str | os.PathLike[str]) -> None:
    """fsync(2) of a file, or of the names in a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
