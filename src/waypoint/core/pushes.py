"""Where a `git push` of a live session goes: what the repositories in its box say."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable, Sequence

from waypoint.box.box import Box
from waypoint.core.observe import read_in_box
from waypoint.policy.remotes import USER_CONFIGS, local_remotes


def pushes_inside(box: Box, folders: Iterable[str], binds: Sequence[str]) -> frozenset[str]:
    """The remotes that are repositories of the session, whichever of these folders the push runs in. What is
    in a bind mount is not of the session."""
    users = [text for path in USER_CONFIGS if (text := _read(box, path)) is not None]

    def is_repository(path: str) -> bool:
        if any(path == bind or path.startswith(f"{bind.rstrip('/')}/") for bind in binds):
            return False
        return any(_read(box, f"{path}/{name}") for name in ("HEAD", ".git/HEAD"))

    found: frozenset[str] | None = None
    for folder in folders:
        top = _top(box, folder)
        if top is None:
            continue  # a push there fails
        own = _read(box, f"{top}/.git/config") or b""
        try:
            here = local_remotes(own, users, top, is_repository)
        except ValueError:
            return frozenset()
        found = here if found is None else found & here
    return found or frozenset()


def _top(box: Box, folder: str) -> str | None:
    """The work tree that a folder is in."""
    while _read(box, f"{folder}/.git/HEAD") is None:
        if folder == "/":
            return None
        folder = posixpath.dirname(folder)
    return folder


def _read(box: Box, path: str) -> bytes | None:
    """None where there is no plain file, or a link is on the way."""
    with contextlib.suppress(OSError):
        return read_in_box(box, path.lstrip("/"))
    return None
