"""Errors about files as frameworks expect them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from waypoint import errors


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
