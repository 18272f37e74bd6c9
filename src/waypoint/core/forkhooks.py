"""Hooks of forks: programs of a session that make a fork of it another machine than its origin.

A fork has the memory of its origin, and with it the state of random generators, keys and whatever a program
took to be its own. `/etc/waypoint/on-fork.d` in the session holds programs that know what to do about it.
They are run in each new fork, one after the other, before a client gets it. What goes wrong in one is
reported with the fork, which is there in any case.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import stat
import time
from collections.abc import Mapping

from waypoint.box.users import ROOT
from waypoint.core.commands import Commands
from waypoint.core.live import Live, start_environment
from waypoint.errors import WaypointError
from waypoint.history.redaction import Redactor
from waypoint.kernel.placement import Folder
from waypoint.model import ForkHook

log = logging.getLogger("waypoint")

FOLDER = "/etc/waypoint/on-fork.d"
DEFAULT_SECONDS = 10.0
"""How long all hooks of a fork may take together."""
_MOST = 64
_MOST_ENTRIES = 4096
"""Of the folder, programs or not."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")
"""As run-parts(8): what an editor or a package manager leaves beside a file has other names."""
_OUTPUT_CHARACTERS = 2000


class ForkHooks:
    """Runs the hooks of forks."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def run(
        self, live: Live, variables: Mapping[str, str], redactor: Redactor, seconds: float
    ) -> tuple[ForkHook, ...]:
        """All hooks in a fork that has just begun to run. Never raises: a fork is worth more than its
        hooks."""
        try:
            names = _names(live)
        except (FileNotFoundError, NotADirectoryError):  # almost always
            return ()
        except OSError as error:
            return (ForkHook(name="", problem=f"{FOLDER} cannot be read: {error.strerror}"),)
        deadline = time.monotonic() + seconds
        ran = [
            self._run(live, name, variables, redactor, deadline - time.monotonic(), seconds)
            for name in names[:_MOST]
        ]
        if names[_MOST:]:
            ran.append(ForkHook(name=names[_MOST], problem=f"not run: there are more than {_MOST} hooks"))
        for hook in ran:
            if hook.problem:
                log.warning("fork %s: hook %s: %s", live.session_id, hook.name, hook.problem)
        return tuple(ran)

    def _run(
        self,
        live: Live,
        name: str,
        variables: Mapping[str, str],
        redactor: Redactor,
        left: float,
        seconds: float,
    ) -> ForkHook:
        if left <= 0:
            return ForkHook(name=name, problem=f"not run: the hooks took longer than {seconds:g} s")
        environment = {**start_environment(ROOT, live.options, has_terminal=False), **variables}
        try:
            result = self._commands.run_as_root(live, [f"{FOLDER}/{name}"], environment, left)
        except (OSError, WaypointError) as error:
            return ForkHook(name=name, problem=str(error))
        except Exception as error:
            log.exception("hook %s", name)
            return ForkHook(name=name, problem=f"an error of Waypoint: {error}")
        problem = ""
        if result.timed_out:
            problem = f"ended: the hooks took longer than {seconds:g} s"
        elif result.exit_code:
            problem = f"exit {result.exit_code}"
        return ForkHook(
            name=name,
            exit_code=None if result.timed_out else result.exit_code,
            duration_ms=result.duration_ms,
            output=redactor.redact(result.output[-_OUTPUT_CHARACTERS:]).text,
            problem=problem,
        )


def _names(live: Live) -> list[str]:
    """The programs in the folder, in the order of their names. OSError when there is no folder, or when it is
    none that was made for hooks: a session could keep the daemon busy with what is in it."""
    with (
        Folder.root_of_box(live.box) as root,
        root.enter(FOLDER) as folder,
        os.scandir(f"/proc/self/fd/{folder.fd}") as entries,
    ):
        first = list(itertools.islice(entries, _MOST_ENTRIES + 1))
        if len(first) > _MOST_ENTRIES:
            raise OSError(errno.EFBIG, f"it has more than {_MOST_ENTRIES:,} entries")
        return sorted(entry.name for entry in first if _NAME.fullmatch(entry.name) and _is_program(entry))


def _is_program(entry: os.DirEntry[str]) -> bool:
    """A link is not followed here, where it would lead through the host: whether it leads to a program shows
    when it is run."""
    status = entry.stat(follow_symlinks=False)
    return stat.S_ISLNK(status.st_mode) or (stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o111))
