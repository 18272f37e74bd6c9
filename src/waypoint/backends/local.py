"""What backends do on this machine: run a program to its end, copy files, compare folders."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from waypoint import errors
from waypoint.backends.environment import ENDED_BY_TIMEOUT, Difference, RunResult

PATIENCE_SECONDS = 30.0
"""How long a program of this machine may take that should answer at once."""
COPY_SECONDS = 600.0
"""The longest that copying of files may take."""


# ---- environments that grew from one another -----------------------------------------------------


class Family:
    """Environments that share points. What they share goes with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members = 0

    def enter(self) -> None:
        """One more."""
        with self._lock:
            self._members += 1

    def leave(self) -> bool:
        """One less. Whether it was the last."""
        with self._lock:
            self._members -= 1
            return not self._members


# ---- services, for backends that keep no processes -------------------------------------------------


@dataclass
class Services:
    """Programs that have to run in an environment, and how they are started."""

    commands: dict[str, str] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)

    def start(self, name: str, command: str, run: Callable[[str], RunResult]) -> None:
        """Starts one in the background. It is known under this name from now on."""
        line = f"setsid /bin/bash -c {shlex.quote(command)} </dev/null >/dev/null 2>&1 & echo $!"
        self.pids[name] = int(run(line).check().output)
        self.commands[name] = command

    def running(self, run: Callable[[str], RunResult]) -> dict[str, str]:
        """Those that have not ended, and how they are started."""
        return {
            name: self.commands[name]
            for name, pid in self.pids.items()
            if run(f"kill -0 {pid} 2>/dev/null").ok
        }


# ---- running -------------------------------------------------------------------------------------


def finish(
    words: Sequence[str],
    command: str,
    timeout: float | None,
    env: Mapping[str, str] | None,
    stdin: bytes | None,
) -> RunResult:
    """Runs a program of this machine that runs a command elsewhere. A process that the command leaves in the
    background may keep its output open: only the program itself is waited for."""
    began = time.monotonic()
    timed_out = False
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as given:
        given.write(stdin or b"")
        given.seek(0)
        process = subprocess.Popen(
            words, stdin=given, stdout=output, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            if process.returncode is None:  # it took too long, or the caller was interrupted
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(PATIENCE_SECONDS)
        output.seek(0)
        text = output.read().decode(errors="replace")
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return RunResult(
        command, ENDED_BY_TIMEOUT if timed_out else code, text, time.monotonic() - began, timed_out
    )


# ---- files of this machine -------------------------------------------------------------------------


def user_namespace() -> list[str]:
    """Words for unshare(1). Files of a layer may be closed to the user that owns them: to the root of a user
    namespace they are not."""
    return ["--user", "--map-root-user"] if os.geteuid() else []


def privileged(words: Sequence[str], doing: str) -> None:
    user = user_namespace()
    line = ["unshare", *user, "--", *words] if user else [*words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=COPY_SECONDS, check=False)
    if done.returncode:
        raise errors.MachineError(f"cannot {doing}: {done.stderr.strip()}")


def copy(source: str | Path, target: Path) -> None:
    privileged(["cp", "-a", "--reflink=auto", "-T", "--", str(source), str(target)], f"copy {source}")


def remove(path: Path) -> None:
    if os.path.lexists(path):
        privileged(["rm", "-rf", "--one-file-system", "--", str(path)], f"remove {path}")


def take_out(staged: Path, place: str) -> None:
    """Puts what was copied out of an environment to its place. It does not keep rights that it would give to
    the user who runs it."""
    privileged(
        ["chmod", "-R", "ug-s", "--", str(staged)], f"copy to {place}"
    ) if not staged.is_symlink() else None
    is_folder = staged.is_dir() and not staged.is_symlink()
    if os.path.isdir(place) and not is_folder:
        raise errors.UsageError(
            f"cannot copy a file to {place}: it is a folder", hint="name the file", path=place
        )
    os.makedirs(place if is_folder else os.path.dirname(place), exist_ok=True)
    exact = ["-T"] if is_folder else ["-T", "--remove-destination"]
    privileged(["cp", "-a", *exact, "--", str(staged), place], f"copy to {place}")


# ---- comparing -----------------------------------------------------------------------------------


_COMPARED_BYTES = 1 << 20


def compare(before: Path, after: Path) -> Difference:
    """What is different in two folders, as paths from their top."""
    added: list[str] = []
    changed: list[str] = []
    removed: list[str] = []

    def folder(path: str) -> None:
        old, new = (set(os.listdir(root / path)) for root in (before, after))
        for name in old | new:
            inner = f"{path}/{name}".lstrip("/")
            if name not in old or name not in new:
                (added if name in new else removed).append(f"/{inner}")
                continue
            one, other = before / inner, after / inner
            first, second = one.lstat(), other.lstat()
            if differs(str(one), first, str(other), second):
                changed.append(f"/{inner}")
            if stat.S_ISDIR(first.st_mode) and stat.S_ISDIR(second.st_mode):
                folder(inner)

    folder("")
    return Difference(tuple(sorted(added)), tuple(sorted(changed)), tuple(sorted(removed)))


def differs(before: str, old: os.stat_result, after: str, new: os.stat_result) -> bool:
    if (old.st_mode, old.st_uid, old.st_gid) != (new.st_mode, new.st_uid, new.st_gid):
        return True
    if stat.S_ISLNK(old.st_mode):
        return os.readlink(before) != os.readlink(after)
    if not stat.S_ISREG(old.st_mode):
        return False
    return old.st_size != new.st_size or (
        old.st_mtime_ns != new.st_mtime_ns and not _same_content(before, after)
    )


def _same_content(before: str, after: str) -> bool:
    with Path(before).open("rb") as one, Path(after).open("rb") as other:
        while piece := one.read(_COMPARED_BYTES):
            if piece != other.read(_COMPARED_BYTES):
                return False
    return True
