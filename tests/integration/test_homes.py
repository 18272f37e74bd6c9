"""Several homes on one machine: none sees another in its boxes, holds its pool, or breaks because of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.leaks import Watch
from tests.waiting import until

import waypoint
from waypoint import errors
from waypoint.home import Home
from waypoint.kernel import homes, mounts
from waypoint.kernel.pool.image import SMALLEST_SIZE_BYTES
from waypoint.kernel.syscalls import MS_BIND, mount, umount
from waypoint.model import Bind

Make = Callable[..., waypoint.Session]


@pytest.fixture
def odd() -> Iterator[Path]:
    """A folder for homes at paths that have every separator in them."""
    folder = Path(f"/var/tmp/waypoint-odd-{os.getpid()}")
    (folder / "a b:c,d").mkdir(parents=True)
    yield folder
    for home in [path for path in (folder / "home", folder / "a b:c,d" / "home") if path.exists()]:
        run(home, "uninstall", "--yes")
    for path in [place.path for place in mounts.mounts() if place.path.startswith(f"{folder}/")][::-1]:
        umount(path)
    shutil.rmtree(folder)


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "waypoint", *words],
        env={**os.environ, "WAYPOINT_HOME": str(home), "WAYPOINT_POOL_SIZE": str(SMALLEST_SIZE_BYTES)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def uninstall(home: Path) -> None:
    done = run(home, "uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    assert not home.exists()
    assert not (homes.REGISTRY / Home(home).tag).exists()


def test_no_box_sees_or_holds_another_home_whenever_that_was_made(
    sessions: Make, seed: waypoint.Checkpoint, home: Home, odd: Path, watch: Watch
) -> None:
    theirs = odd / "a b:c,d" / "home"
    before = sessions("before", net="none")
    moved = sessions("moved", net="none")
    moved.run(f"mv {odd} /root/elsewhere").check()
    bound = sessions("bound", net="none", binds=[Bind(host=str(odd), box="/mnt/odd")])

    def assert_hidden(*, where: str = str(odd)) -> None:
        point = before.checkpoint()
        copy = point.fork(name="copy")[0]
        for session in (before, copy):
            assert session.run(f"ls -A '{where}/a b:c,d/home'").output == ""
            assert session.run(f"touch '{where}/a b:c,d/home/x'").exit_code == 1
        waypoint.Client().call("rm", {"sessions": ["copy"]})
        assert bound.run("find '/mnt/odd/a b:c,d'").output == "/mnt/odd/a b:c,d\n/mnt/odd/a b:c,d/home\n"
        bound.checkpoint()
        bound.restore("@", safety=False)
        assert bound.run("find '/mnt/odd/a b:c,d'").output == "/mnt/odd/a b:c,d\n/mnt/odd/a b:c,d/home\n"

    # A home that is made after these boxes were built.
    watch.add_home(Home(theirs))
    assert run(theirs, "new", "their", "--net", "none").returncode == 0
    assert (theirs / "pool.img").exists()
    assert_hidden()
    for session in (moved, moved.checkpoint().fork(name="moved-too")[0]):
        assert session.run("ls -A '/root/elsewhere/a b:c,d/home'").output == ""
        assert session.run(f"ls {odd}").exit_code == 2
    moved.restore("@", safety=False)
    assert moved.run("ls -A '/root/elsewhere/a b:c,d/home'").output == ""

    # And the other way round.
    look = run(theirs, "exec", "-s", "their", "--", f"find {home.path} /run/waypoint /var/lib/waypoint-homes")
    assert look.stdout.split() == [str(home.path), "/run/waypoint", "/var/lib/waypoint-homes"]

    # A home that nothing runs in: its pool is not mounted.
    assert run(theirs, "daemon", "stop", "--sessions", "--yes").returncode == 0
    assert_hidden()
    with pytest.raises(errors.UsageError, match="Waypoint home"):
        sessions("never", binds=[Bind(host=str(theirs / "pool"), box="/mnt/x")])

    # A home whose folder was moved is another home's neighbour all the same.
    theirs.parent.rename(odd / "moved")
    fresh = sessions("fresh", net="none")
    assert fresh.run(f"ls -A {odd}/moved/home").output == ""
    (odd / "moved").rename(theirs.parent)
    watch.remains(Home(theirs))
    uninstall(theirs)


def test_a_session_whose_keeper_hung_while_another_home_was_made_can_be_saved(
    sessions: Make, odd: Path
) -> None:
    session, theirs = sessions("hung", net="none"), odd / "home"
    keeper = session.info.pid
    assert keeper
    os.kill(keeper, signal.SIGSTOP)
    try:
        done = run(theirs, "ls")
        assert done.returncode == 0, done.stderr
    finally:
        os.kill(keeper, signal.SIGCONT)
    until(lambda: str(theirs) in [place.path for place in mounts.mounts(keeper)])
    session.restore(session.checkpoint())
    assert session.run(f"ls -A {theirs}").check().output == ""


def test_a_home_is_uninstalled_while_the_boxes_of_another_are_being_built(
    sessions: Make, seed: waypoint.Checkpoint, odd: Path
) -> None:
    """A box that is being built has a copy of every mount of the machine, and a bind mount carried a pool
    along for good: closing that pool was refused."""
    theirs = odd / "home"
    assert run(theirs, "new", "their", "--net", "none").returncode == 0
    bound = sessions("bound", net="none", binds=[Bind(host="/var/tmp", box="/mnt/tmp")])
    assert " /mnt/tmp/" not in bound.run("grep -v ' tmpfs ' /proc/mounts").output
    stop, errors_met = threading.Event(), []

    def build() -> None:
        client = waypoint.Client()
        while not stop.is_set():
            try:
                seed.fork(4, name="busy")
                client.call("rm", {"sessions": [f"busy-{number}" for number in range(1, 5)]})
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
                errors_met.append(error)
                return

    builder = threading.Thread(target=build)
    builder.start()
    try:
        uninstall(theirs)
    finally:
        stop.set()
        builder.join()
    assert not errors_met
    assert bound.run("ls /mnt/tmp").ok


def test_what_is_left_of_a_home_breaks_no_other(sessions: Make, home: Home, odd: Path) -> None:
    """A home that was deleted by hand leaves its entry, and its pool mounted."""
    theirs = odd / "home"
    assert run(theirs, "new", "their", "--net", "none").returncode == 0
    assert run(theirs, "daemon", "stop", "--sessions", "--yes").returncode == 0
    elsewhere = odd / "elsewhere"
    elsewhere.mkdir()
    assert run(theirs, "ls").returncode == 0
    mount(theirs / "pool", elsewhere, "", MS_BIND, "")  # found at a path that tells nothing
    session = sessions("ours", net="none")
    assert session.run(f"ls {elsewhere}").output == ""
    assert "elsewhere" not in session.run("cat /proc/mounts").output
    assert run(theirs, "daemon", "stop").returncode == 0
    entry = homes.REGISTRY / Home(theirs).tag
    left = entry.read_bytes()
    (theirs / "pool.img").unlink()
    (theirs / "waypoint.db").unlink()
    umount(theirs / "pool")
    shutil.rmtree(theirs)
    # The registry belongs to the machine: a home that is registered there in this moment, as tests beside
    # this one do, drops the entry. So it is put back before each thing that has to meet it.
    entry.write_bytes(left)
    assert sessions("another", net="none").run("true").ok
    entry.write_bytes(left)
    session.restore(session.checkpoint(), safety=False)
    umount(elsewhere)
    entry.write_bytes(left)
    homes.register(home, lambda _: None)
    assert not entry.exists()
    assert (homes.REGISTRY / home.tag).exists()
