"""Files of a session as frameworks expect them: errors of Python, and no more than the session's user may.

The daemon reads and writes files, and may do everything. So the session's user is asked first, unless that is
root.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from waypoint import errors

MAY_READ = '[ ! -e "$1" ] || [ -r "$1" ]'
MAY_WRITE = 'p=$1; until [ -e "$p" ]; do p=${p%/*}; p=${p:-/}; done; [ -w "$p" ]'
"""What a shell of the session's user says of a path: for a file that is missing, of the folder above it."""


def may_everything(user: str | None) -> bool:
    """Whether a session's user need not be asked."""
    return user in {None, "root", "0"}


def asked(test: str, path: str) -> list[str]:
    """The program that asks the session's user: it exits with 0 if the user may."""
    return ["/bin/sh", "-c", test, "sh", path]


def require(allowed: bool, path: str) -> None:
    """PermissionError when something is not allowed."""
    if not allowed:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Errors of the SDK that are about a file become OSError: FileNotFoundError, IsADirectoryError, …"""
    try:
        yield
    except errors.WaypointError as error:
        if found := os_error(error, path):
            raise found from error
        raise


def os_error(error: errors.WaypointError, path: str) -> OSError | None:
    """The OSError that an error of the SDK stands for, None if it stands for none."""
    number = getattr(errno, str(error.details.get("errno")), None)
    # OSError chooses its class by the number.
    return None if number is None else OSError(number, os.strerror(number), path)
