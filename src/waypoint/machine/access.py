"""The group whose members may use the daemon of a home, beside root.

A member is root on the host: a session can bind any folder, and its root is the host's root. Nothing but the
socket is opened: the home stays root's. Two things keep other users away, and each is enough: the mode of the
socket and of the folder it is in, and the daemon, which asks the kernel for the groups of each client when
it connects (`admits`). The home has the name of the group, so a group that was deleted lets no client in,
even if another one has its number by now.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from waypoint.errors import NotFound
from waypoint.home import Home
from waypoint.kernel import atomic

RECORD = "group"
"""In the home: the name of the group."""
_PASS_THROUGH = 0o011


def allow(home: Home, name: str) -> None:
    """Lets the members of a group use the daemon, also one that runs already. NotFound if there is no such
    group."""
    require(name)
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic.write(home.path / RECORD, f"{name}\n", mode=0o600, durable=True)
    apply(home)


def deny(home: Home) -> str | None:
    """Leaves the daemon to root alone. The group that could use it until now."""
    name = allowed(home)
    if name is not None:
        (home.path / RECORD).unlink(missing_ok=True)
        apply(home)
    return name


def allowed(home: Home) -> str | None:
    """The name of the group that may use the daemon."""
    try:
        return (home.path / RECORD).read_text().strip() or None
    except FileNotFoundError:
        return None


def require(name: str) -> grp.struct_group:
    """The group of that name."""
    try:
        return grp.getgrnam(name)
    except KeyError:
        raise NotFound(
            f"there is no group {name!r}",
            hint=f"`groupadd {name}` makes it, `usermod -aG {name} USER` adds a user",
        ) from None


def members(name: str) -> list[str]:
    """The users of a group, as the machine's files name them."""
    group = require(name)
    return sorted({*group.gr_mem, *(user.pw_name for user in pwd.getpwall() if user.pw_gid == group.gr_gid)})


def apply(home: Home) -> None:
    """Gives the socket and its folder the owner and the mode that the home asks for."""
    name, gid = allowed(home), 0
    if name is not None:
        try:
            gid = grp.getgrnam(name).gr_gid
        except KeyError:
            name = None
    # A folder that cannot be entered protects a socket whose mode is about to change.
    for path, mode in ((home.run, 0o700), (home.socket, 0o660 if name else 0o600)):
        _set(path, gid, mode)
    if name:
        _set(home.run, gid, 0o710)
    _set_parent(home.run.parent)


def _set(path: Path, gid: int, mode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.chown(path, 0, gid)
        path.chmod(mode)


def _set_parent(folder: Path) -> None:
    """The folder of all homes can be passed through, but not listed, while a home has a group."""
    with contextlib.suppress(FileNotFoundError):
        is_needed = any(_is_open_to_group(one) for one in folder.iterdir())
        present = folder.stat().st_mode & 0o777
        wanted = present | _PASS_THROUGH if is_needed else present & ~0o077
        if wanted != present:
            folder.chmod(wanted)


def _is_open_to_group(path: Path) -> bool:
    """Whether this is the folder of a home with a group. Other homes come and go meanwhile."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(mode) and bool(mode & 0o010)


def admits(home: Home, uid: int, groups: Iterable[int]) -> bool:
    """Whether a client of that user and with these groups may use the daemon."""
    if uid in {0, os.geteuid()}:
        return True
    name = allowed(home)
    if name is None:
        return False
    try:
        return grp.getgrnam(name).gr_gid in groups
    except KeyError:
        return False
