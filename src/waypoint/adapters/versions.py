"""Which versions of its framework an adapter knows."""

from __future__ import annotations

import itertools
import re
import warnings
from importlib import metadata

from waypoint import errors


class UnknownVersion(UserWarning):
    """Warned of when a framework is newer than what its adapter was tested with."""


def require(distribution: str, *, oldest: str, below: str, extra: str) -> None:
    """MissingFeature when the framework is not installed, or is older than `oldest`, which lacks what the
    adapter needs. From `below` on its interface may have changed: UnknownVersion is warned of, and it is
    tried. `extra`: of waypoint, which installs it."""
    command = f"pip install 'waypoint[{extra}]'"
    try:
        found = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise errors.MissingFeature(f"{distribution} is not installed", hint=command) from None
    known = f"this adapter knows {oldest} up to, but not including, {below}"
    if _numbers(found) < _numbers(oldest):
        raise errors.MissingFeature(
            f"{distribution} {found} is too old: {known}", hint=f"pip install -U 'waypoint[{extra}]'"
        )
    if _numbers(found) >= _numbers(below):
        warnings.warn(f"{distribution} {found} is newer than known: {known}", UnknownVersion, stacklevel=3)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: of 2.4.6rc1 they are 2, 4 and 6."""
    parts = (re.match(r"\d+", part) for part in version.split("."))
    return tuple(int(part[0]) for part in itertools.takewhile(bool, parts) if part)
