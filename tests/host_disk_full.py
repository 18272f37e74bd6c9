"""The host's disk runs full below the pool: `python -m tests.host_disk_full FOLDER`, as root, in a mount
namespace of its own.

The home lies on a small disk of its own, which is filled up while a session writes. The pool stops writing.
Then room is made, and everything has to work again: with the daemon that saw it, and with another one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import waypoint
from waypoint.machine.doctor import examine

HOST_BYTES = 700 << 20


@contextlib.contextmanager
def small_host(folder: Path) -> Iterator[Path]:
    home, image = folder / "home", folder / "host.img"
    home.mkdir()
    with open(image, "wb") as file:
        file.truncate(HOST_BYTES)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(home)], check=True)
    try:
        yield home
    finally:
        subprocess.run(["umount", str(home)], check=True)


def stopped(home: Path) -> bool:
    return bool(os.statvfs(home / "pool").f_flag & os.ST_RDONLY)


def fill_until_the_pool_stops(home: Path, session: waypoint.Session) -> None:
    host = os.statvfs(home)
    with open(home / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, host.f_bavail * host.f_frsize - (1 << 20))
    for number in range(20):
        session.run(f"head -c 20000000 /dev/urandom > /big{number}; sync")
        with contextlib.suppress(OSError):
            os.sync()
        if stopped(home):
            return
        refusal = refused(session)
        assert "host's disk" in refusal.message, refusal
    raise AssertionError("the pool did not stop writing")


def refused(session: waypoint.Session) -> waypoint.NoSpace:
    try:
        session.checkpoint("too late")
    except waypoint.NoSpace as error:
        return error
    raise AssertionError("a checkpoint was taken on a full disk")


def pool_finding(home: Path) -> bool:
    return next(finding.ok for finding in examine(home) if finding.name == "pool")


def stop(client: waypoint.Client) -> None:
    daemon = client.daemon.status().pid
    client.daemon.stop(sessions=True)
    client.close()
    wait_for_end(daemon)


def wait_for_end(pid: int) -> None:
    while Path("/proc", str(pid)).exists():
        time.sleep(0.01)


def run(folder: Path) -> None:
    with small_host(folder) as home:
        client = waypoint.Client(home)
        try:
            for killed in (False, True):
                session = client.new(f"work-{killed}")
                session.run("n=1; echo 1 > /number").check()
                point = session.checkpoint("one", durable=True)
                fill_until_the_pool_stops(home, session)
                assert "host's disk" in refused(session).message
                assert any("stopped writing" in text for text in client.daemon.status().warnings)
                assert not pool_finding(home), "doctor says that all is well"
                assert session.run("echo $n").output == "1\n", (
                    "the session was ended although nothing is gained"
                )
                assert [one.id for one in session.log()] == [point.id]
                if killed:
                    daemon = client.daemon.status().pid
                    os.kill(daemon, signal.SIGKILL)
                    client.close()
                    wait_for_end(daemon)
                    client = waypoint.Client(home)
                    assert "host's disk" in refused(session).message, "no daemon starts on a full disk"
                (home / "filler").unlink()
                session = client.session(session.name)
                session.restore(point, safety=False)
                assert session.run("echo $n,$(cat /number)").output == "1,1\n"
                assert pool_finding(home)
                session.run("echo 2 > /number").check()
                session.restore(session.checkpoint("two", durable=True), safety=False)
                assert session.run("cat /number").output == "2\n"
                client.new(f"other-{killed}").run("true").check()
                assert not stopped(home)
        finally:
            (home / "filler").unlink(missing_ok=True)
            stop(client)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
