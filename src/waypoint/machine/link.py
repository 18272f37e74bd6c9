"""`waypoint` as a command: a link in a folder of PATH to the program of the clone.

Nothing that another program or user has put there is ever replaced. A home remembers the links that were made
for it, and uninstalling it removes those that still lead to this clone.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from waypoint.errors import AlreadyExists, MissingFeature, NotFound, UsageError
from waypoint.kernel import atomic

FOLDER = Path("/usr/local/bin")
RECORD = "links"
"""In the home: the links that were made, one path a line."""
_NAME = "waypoint"


def program() -> Path | None:
    """The program of the clone that this runs from; None when it was installed in another way."""
    path = Path(__file__).resolve().parents[3] / _NAME
    return path if path.is_file() and os.access(path, os.X_OK) else None


def command() -> str:
    """What a user types to start this program: its name where that is found, else its path."""
    own = program()
    if own is None or _leads_to(shutil.which(_NAME), own):
        return _NAME
    path = os.path.relpath(own)
    return os.fspath(own) if path.startswith("..") else f"./{path}"


def is_offered(folder: Path = FOLDER) -> bool:
    """Whether a link in that folder would make `waypoint` a command, which it is not yet, and harm
    nothing."""
    own = program()
    return (
        own is not None
        and shutil.which(_NAME) is None
        and os.fspath(folder) in os.environ.get("PATH", "").split(":")
        and os.access(folder, os.W_OK)
        and not os.path.lexists(folder / _NAME)
    )


def make(home: Path, folder: Path = FOLDER) -> Path:
    """Makes the link, and notes it in the home. AlreadyExists when something else has its name."""
    own = program()
    if own is None:
        raise MissingFeature(
            "this Waypoint is not run from a clone", hint="pip has put its program into the environment's bin"
        )
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder}", hint="name one that is on PATH")
    path = folder.absolute() / _NAME
    if os.path.lexists(path):
        if not _leads_to(path, own):
            raise AlreadyExists(
                f"{path} is there already and is no link to {own}",
                hint="it stays as it is; name another folder, or remove it by hand",
            )
    else:
        try:
            os.symlink(own, path)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be made: {error.strerror}", hint="name a folder that you may write to"
            ) from error
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = _noted(home)
    if path not in known:
        atomic.write(home / RECORD, "".join(f"{one}\n" for one in (*known, path)).encode(), mode=0o600)
    return path


def remove(home: Path) -> list[Path]:
    """Removes the links that were made for a home, as far as they still lead to this clone."""
    own, removed = program(), []
    for path in _noted(home):
        if own and path.is_symlink() and os.readlink(path) == os.fspath(own):
            path.unlink()
            removed.append(path)
    return removed


def _noted(home: Path) -> list[Path]:
    try:
        return [Path(line) for line in (home / RECORD).read_text().splitlines()]
    except FileNotFoundError:
        return []


def _leads_to(path: str | Path | None, own: Path) -> bool:
    return path is not None and os.path.realpath(path) == os.fspath(own)
