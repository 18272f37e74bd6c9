"""What integration tests share: the real engine, a home of their own, an eye on what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import roots
from tests.leaks import Watch
from tests.waiting import until

import waypoint
from waypoint.box.box import keepers
from waypoint.home import Home
from waypoint.kernel import homes, processes
from waypoint.kernel.pool.holders import pool_holders
from waypoint.kernel.pool.image import SMALLEST_SIZE_BYTES
from waypoint.kernel.pool.lifecycle import close_pool, open_pool
from waypoint.kernel.syscalls import CLONE_NEWNS, MS_PRIVATE, MS_REC, mount, unshare
from waypoint.machine import setup

REPOSITORY = Path(__file__).parents[2]


def pytest_configure(config: pytest.Config) -> None:
    """Gives each process that runs tests a mount namespace of its own. Runs side by side (two of them in
    `make integration`) then do not see each other's pools through a base of `/`."""
    if os.geteuid() == 0:
        unshare(CLONE_NEWNS)
        mount("none", "/", "", MS_REC | MS_PRIVATE, "")


@pytest.fixture(scope="session")
def engine() -> Path:
    """The engine, built once and kept beside the clone."""
    os.environ.setdefault("WAYPOINT_ENGINE", str(REPOSITORY / ".cache" / "engine"))
    folder = setup.engine_dir(Path("/nonexistent"))
    setup.ensure_engine(folder.parent, lambda _: None)
    return folder


@pytest.fixture(scope="session")
def home(engine: Path, watch: Watch) -> Iterator[Home]:
    """A home for all tests of a run, torn down at its end; then nothing of it may be left on the machine."""
    with tempfile.TemporaryDirectory(prefix="waypoint-test-", dir="/var/tmp") as folder:
        os.environ["WAYPOINT_HOME"] = folder
        os.environ["PYTHONPATH"] = str(REPOSITORY / "src")
        os.environ.pop("WAYPOINT_SESSION", None)
        os.environ["WAYPOINT_DEBUG_LOCKS"] = "1"
        # Tests that count boxes ask for spares themselves; `WAYPOINT_SPARES=2 make integration` has them all.
        os.environ.setdefault("WAYPOINT_SPARES", "off")
        os.environ.setdefault("WAYPOINT_PROVE", "off")
        found = Home(Path(folder))
        watch.add_home(found)
        yield found
        stopped = waypoint.Client(folder).call("daemon_stop", {"sessions": True})
        until(lambda: processes.is_over(stopped["pid"]))  # what it has open is in the way of the unmount
        assert "OutOfOrder" not in found.log.read_text(), "locks were taken out of order"
        # The kernel lets go of the mounts of ended boxes in its own time: `daemon_stop` waits for it as well.
        try:
            until(lambda: close_pool(found.path))
        except AssertionError as error:
            raise AssertionError(f"its pool is still in use: {pool_holders(found.path)}") from error
        left = [*keepers(found), *watch.remains(found)]
        assert not left, f"left behind: {left}"
        homes.forget(found)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """The daemon's log beside every failure: what went wrong there is not in the client's traceback."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    log = Path(os.environ.get("WAYPOINT_HOME", "/nonexistent")) / "daemon.log"
    if report.failed and log.is_file():
        report.sections.append(("daemon.log", "\n".join(log.read_text().splitlines()[-40:])))
        report.sections.append(("mount namespaces", _mount_namespaces()))


def _mount_namespaces() -> str:
    """A daemon that another process started may see other mounts than the test."""
    seen = {"test": os.readlink("/proc/self/ns/mnt")}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            home = f"WAYPOINT_HOME={os.environ['WAYPOINT_HOME']}".encode()
            if home in (process / "environ").read_bytes().split(b"\0"):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                seen[f"{process.name} {words[:60]}"] = os.readlink(process / "ns/mnt")
    return "\n".join(f"{namespace} {name}" for name, namespace in seen.items())


def _in_userns(request: pytest.FixtureRequest) -> bool | None:
    """Whether the sessions of a module are in a user namespace: as it says, else as WAYPOINT_USERNS."""
    return getattr(request.module, "USERNS", None)


@pytest.fixture
def session(home: Home, request: pytest.FixtureRequest) -> Iterator[waypoint.Session]:
    """A fresh session, and no session left after the test, whatever it made."""
    yield waypoint.session("t", userns=_in_userns(request))
    _clear(home)


@pytest.fixture
def sessions(home: Home) -> Iterator[Callable[..., waypoint.Session]]:
    """Makes sessions; none is left after the test."""
    yield waypoint.session
    _clear(home)


@pytest.fixture(scope="module")
def seed(home: Home, request: pytest.FixtureRequest) -> Iterator[waypoint.Checkpoint]:
    """A point of a fresh session: a fork of it is there ten times sooner than another session."""
    yield waypoint.session("seed", userns=_in_userns(request)).checkpoint("nothing was done yet")
    _clear(home, but=())


@pytest.fixture
def fresh(home: Home, seed: waypoint.Checkpoint) -> Iterator[waypoint.Session]:
    """A session in which nothing was done yet, forked from the module's seed."""
    yield seed.fork(name="t")[0]
    _clear(home)


def _clear(home: Home, but: tuple[str, ...] = ("seed",)) -> None:
    client = waypoint.Client()
    there = [one["name"] for one in client.call("ls")["sessions"]]
    names = [name for name in there if name not in but]
    if names:
        client.call("rm", {"sessions": names})
    client.close()
    if os.environ["WAYPOINT_SPARES"] == "off":  # else the next one may just be in the making
        assert len(keepers(home)) == len(there) - len(names), "a box is left that belongs to no session"


@pytest.fixture(scope="session")
def make_root() -> Callable[[Path], None]:
    """Makes a folder a root file system that a session can have as its base."""
    return roots.make_root


@pytest.fixture
def small_home(engine: Path, watch: Watch) -> Iterator[Path]:
    """Another home, with a pool of 256 MiB."""
    folder = Path("/var/tmp") / f"waypoint-small-{os.getpid()}"
    open_pool(folder, size_bytes=SMALLEST_SIZE_BYTES)
    watch.add_home(Home(folder))
    yield folder
    waypoint.Client(folder).call("daemon_stop", {"sessions": True})
    assert close_pool(folder), "its pool is still in use"
    left = watch.remains(Home(folder))
    assert not left, f"left behind: {left}"
    homes.forget(Home(folder))
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


class Output:
    """What a run of the command line gave."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def wp(home: Home) -> Iterator[Callable[..., Output]]:
    """Runs the command line: `wp("exec", "-s", "t", "true")`."""

    def run(*words: str, stdin: str | None = None, check: bool = False) -> Output:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "waypoint", *words],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert not check or done.returncode == 0, done.stderr + done.stdout
        return Output(done)

    yield run
    _clear(home)
