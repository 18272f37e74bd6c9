"""Packages that one verb alone needs. A clone installs them when they are first needed.

The MCP server has four times as many packages as everything else together, and most homes never start it. In
the environment that `./waypoint` has made they are installed as requirements-mcp.txt pins them. An
environment that is not the clone's own belongs to its user: there an error names the extra.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import invalidate_caches
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from waypoint.errors import MissingFeature
from waypoint.kernel import locks

CLONE = Path(__file__).resolve().parents[3]
INSTALL_SECONDS = 900
_SHOWN_LINES = 5


def require_mcp(say: Callable[[str], None]) -> None:
    """Returns when the packages of the MCP server are there; MissingFeature says what to do if they cannot
    be."""
    requirements = CLONE / "requirements-mcp.txt"
    if Path(sys.prefix) == CLONE / ".venv" and requirements.is_file():
        provide(requirements, CLONE / ".venv.lock", say)
    elif importlib.util.find_spec("mcp") is None:
        raise MissingFeature(
            "the MCP server needs packages that are not installed", hint="pip install 'waypoint[mcp]'"
        )


def provide(requirements: Path, lock: Path, say: Callable[[str], None]) -> None:
    """Installs what a file of requirements pins and this environment has not, or has otherwise."""
    if not missing(requirements):
        return
    try:
        file = lock.open("w")  # the one that ./waypoint takes
    except OSError as error:
        raise MissingFeature(
            f"the packages of the MCP server are not installed, and {lock} cannot be written:"
            f" {error.strerror}",
            hint="start the server once as the owner of that folder",
        ) from error
    with file as held:
        if not locks.lock_file(held.fileno(), fcntl.LOCK_EX, INSTALL_SECONDS):
            raise MissingFeature(
                "another process is installing packages, and does not finish",
                hint=f"`fuser {lock}` tells which process it is",
            )
        if not missing(requirements):
            return
        say("installing the packages of the MCP server (once)")
        _install(requirements)
    invalidate_caches()


def missing(requirements: Path) -> list[str]:
    """The requirements that this environment does not meet."""
    lines = (line.partition("#")[0].strip() for line in requirements.read_text().splitlines())
    return [line for line in lines if line and not _is_met(line)]


def _is_met(requirement: str) -> bool:
    name, _, wanted = requirement.partition("==")
    try:
        return version(name) == wanted
    except PackageNotFoundError:
        return False


def _install(requirements: Path) -> None:
    command = [
        *(sys.executable, "-I", "-m", "pip", "install", "--quiet", "--no-input", "--retries", "2"),
        *("--disable-pip-version-check", "-r", os.fspath(requirements)),
    ]
    try:
        # stdout belongs to the protocol.
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=INSTALL_SECONDS,
        )
        failed, output = done.returncode != 0, done.stdout
    except subprocess.TimeoutExpired:
        failed, output = True, "pip took too long"
    if failed:
        lines = [line for line in output.splitlines() if line.strip() and not line.startswith("WARNING: ")]
        raise MissingFeature(
            "the packages of the MCP server could not be installed:\n" + "\n".join(lines[-_SHOWN_LINES:]),
            hint="is the package index reachable from here? every other verb works without them",
        )
