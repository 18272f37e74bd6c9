"""Sessions with very much of one thing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import waypoint

_OPEN_FILES = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
os.makedirs("/srv/open", exist_ok=True)
files = [open(f"/srv/open/{n}", "w+") for n in range(10000)]
for n, file in enumerate(files):
    file.write(str(n)); file.flush()
open("/srv/ready", "w").close()
while not os.path.exists("/srv/go"):
    time.sleep(0.05)
for n, file in enumerate(files):
    file.write("+"); file.flush()
    assert open(f"/srv/open/{n}").read() == f"{n}+", n
open("/srv/done", "w").write("ok")
time.sleep(10000)
"""


def processes(client: waypoint.Client) -> None:
    """2,000 processes are saved, restored and forked."""
    session = client.new("many", options=waypoint.BoxOptions(net="none", spares=0))
    session.run("for n in $(seq 2000); do sleep 100000 & done; disown -a", timeout=120).check()
    point = session.checkpoint()
    session.run("pkill -x sleep; sleep 0.2").check()
    session.restore(point, safety=False)
    (copy,) = session.fork(ref=point.id, name="many-copy")
    for one in (session, copy):
        count = int(one.run("pgrep -c -x sleep").output)
        assert count == 2000, f"{count} of 2,000 processes are there"
        one.remove()


def open_files(client: waypoint.Client) -> None:
    """10,000 open files keep their positions and their contents."""
    session = client.new("files", options=waypoint.BoxOptions(net="none", spares=0))
    session.run("mkdir -p /srv; cat >/srv/open.py", stdin=_OPEN_FILES).check()
    session.run(
        "python3 /srv/open.py & disown; until [ -e /srv/ready ]; do sleep 0.05; done", timeout=60
    ).check()
    point = session.checkpoint()
    session.run("pkill -f open.py; rm -rf /srv/open").check()
    session.restore(point, safety=False)
    session.run(
        "touch /srv/go; until [ -e /srv/done ] || ! pgrep -f open.py; do sleep 0.05; done", timeout=90
    )
    told = session.run("cat /srv/done").output
    assert told == "ok", f"after the restore: {told!r}"
    session.remove()


def fork_bomb(client: waypoint.Client) -> None:
    """A fork bomb in a session with a limit of processes leaves the machine and other sessions alone."""
    bomb = client.new("bomb", options=waypoint.BoxOptions(net="none", pids=200, spares=0))
    other = client.new("beside", options=waypoint.BoxOptions(net="none", spares=0))
    bomb.type("b() { b | b & }; b\n")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        assert other.run("echo ok", timeout=20).output == "ok\n"
    other.remove()
    bomb.remove()


def output(client: waypoint.Client) -> None:
    """A gigabyte of output is passed on or left out with a notice, and the daemon does not keep it."""
    session = client.new("output", options=waypoint.BoxOptions(net="none", spares=0))
    before = client.daemon.status().rss_bytes
    result = session.run("head -c 1G /dev/zero | tr '\\0' x", timeout=600)
    grown = client.daemon.status().rss_bytes - before
    assert result.ok
    assert result.truncated, "what was left out is told"
    assert grown < 128 << 20, f"the daemon has grown by {grown >> 20} MiB"
    assert session.run("echo ok").output == "ok\n"
    session.remove()


ALL: tuple[Callable[[waypoint.Client], None], ...] = (processes, open_files, fork_bomb, output)


def run(home: Path) -> dict[str, str]:
    """Each of them: its name, and what went wrong ("" for nothing)."""
    results = {}
    with contextlib.closing(waypoint.Client(home)) as client:
        for one in ALL:
            try:
                one(client)
                results[one.__name__] = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
                results[one.__name__] = f"{type(error).__name__}: {error}"
                for session in client.sessions():
                    session.remove()
    return results
