"""What makes a fork another machine than its origin: its id, and the hooks that are run in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.waiting import until

import waypoint

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

WATCHER = r"""
import ctypes, os, random, struct
libc = ctypes.CDLL(None)
fd = libc.inotify_init()
path = b"/dev/waypoint.inside/id"
assert libc.inotify_add_watch(fd, path, 2) >= 0  # IN_MODIFY
held = open(path)  # a descriptor that is open while a point is taken follows as well
mine = held.read()
random.seed(1)
out = open("/srv/watched", "a", buffering=1)
print(mine.strip(), random.random(), file=out)
while os.read(fd, 4096):
    held.seek(0)
    now = held.read()
    assert now == open(path).read()
    if now != mine:
        mine = now
        random.seed(os.urandom(16))
    print(now.strip(), random.random(), file=out)
"""
HOOK = r"""#!/bin/bash
echo "$WAYPOINT_FORK_ID $WAYPOINT_FORK_ORIGIN $WAYPOINT_SESSION $WAYPOINT_FORK_POINT" >>/srv/hooked
echo "$WAYPOINT_FORK_ID" | sha256sum | cut -c-32 >/etc/machine-id
cmp <(echo "$WAYPOINT_FORK_ID") /dev/waypoint.inside/id
"""


def read(session: waypoint.Session, path: str) -> list[str]:
    return session.read_text(path).splitlines()


def has_lines(session: waypoint.Session, path: str, number: int) -> bool:
    return len(read(session, path)) == number


def test_forks_have_an_id_and_run_hooks(
    sessions: Callable[..., waypoint.Session], wp: Callable[..., Any]
) -> None:
    session = sessions("t", spares=1)
    own = session.run("cat /dev/waypoint.inside/id").output.strip()
    session.write_file("/srv/watcher.py", WATCHER)
    session.run("python3 /srv/watcher.py & rnd=$RANDOM; mkdir -p /etc/waypoint/on-fork.d")
    until(lambda: session.run("test -s /srv/watched").exit_code == 0)
    session.write_file("/etc/waypoint/on-fork.d/10-identity", HOOK, mode=0o755)
    session.write_file("/etc/waypoint/on-fork.d/20-off", "#!/bin/sh\nexit 9\n", mode=0o644)
    session.write_file("/etc/waypoint/on-fork.d/30.bak", "#!/bin/sh\nexit 9\n", mode=0o755)
    session.write_file("/etc/waypoint/on-fork.d/40-fails", "#!/bin/sh\necho no luck; exit 3\n", mode=0o755)
    point = session.checkpoint("up")
    until(lambda: point.id in waypoint.Client().daemon.status().spares)

    forks = [*session.fork(ref=point, name="a"), *session.fork(2, ref=point, name="b")]
    made = [fork.forked for fork in forks]
    assert made[0]
    assert made[0].spare
    ids = [report.id for report in made if report]
    assert len({own, *ids}) == 4
    for fork, report in zip(forks, made, strict=True):
        assert report
        # Once each, with its own id, before the fork was there; the memory of the origin was told as well.
        assert read(fork, "/srv/hooked") == [f"{report.id} t {fork.name} {point.id}"]
        until(partial(has_lines, fork, "/srv/watched", 2))
        assert read(fork, "/srv/watched")[1].split()[0] == report.id
        assert [(hook.name, hook.exit_code, hook.problem) for hook in report.hooks] == [
            ("10-identity", 0, ""),
            ("40-fails", 3, "exit 3"),
        ]
        assert report.hooks[1].output == "no luck\n"
    for path, line in (("/etc/machine-id", 0), ("/srv/watched", 1)):
        assert len({read(fork, path)[line] for fork in forks}) == 3

    # A restore in place is no fork.
    session.restore(point)
    assert read(session, "/dev/waypoint.inside/id") == [own]
    assert session.run("ls /srv/hooked").exit_code == 2
    assert read(session, "/srv/watched")[-1].split()[0] == own

    # What hangs is ended, and what comes after it is not begun. The fork is there in any case.
    fork = forks[0]
    fork.write_file("/etc/waypoint/on-fork.d/35-hangs", "#!/bin/sh\nexec sleep 1000\n", mode=0o755)
    told = wp("fork", "-s", "a", "--name", "slow", "--hook-timeout", "0.3")
    assert "hook 35-hangs in slow: ended: the hooks took longer than 0.3 s" in told.out
    assert "hook 40-fails in slow: not run" in told.out
    slow = waypoint.Client().session("slow")
    assert slow.run("pgrep -c sleep").output == "0\n"
    assert slow.info.state == "live"

    # A folder that was filled to keep the daemon busy is not gone through.
    filled = "import os\nfor n in range(5000): os.close(os.open(f'/etc/waypoint/on-fork.d/{n}', 65, 0o755))"
    forks[0].run(f"python3 -c {shlex.quote(filled)}").check()
    report = forks[0].fork(name="c")[0].forked
    assert report
    assert ["4,096 entries" in hook.problem for hook in report.hooks] == [True]
