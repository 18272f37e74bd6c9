"""Spares on the real thing: a twin that waits, and the moment it is let go."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.waiting import until

import waypoint
from waypoint.box.box import keepers
from waypoint.home import Home
from waypoint.kernel import processes

CLOCKS = """
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
timer = libc.timerfd_create(1, 0)
class Spec(ctypes.Structure):
    _fields_ = [(n, ctypes.c_long) for n in ("is_", "in_", "vs", "vn")]
libc.timerfd_settime(timer, 0, ctypes.byref(Spec(0, 0, 1000, 0)), None)
signal.setitimer(signal.ITIMER_REAL, 1000)
signal.signal(signal.SIGALRM, lambda *_: print("rang", flush=True))
print("ready", flush=True)
for line in sys.stdin:
    left = Spec()
    libc.timerfd_gettime(timer, ctypes.byref(left))
    print(left.vs + left.vn / 1e9, signal.getitimer(signal.ITIMER_REAL)[0], flush=True)
"""


@pytest.fixture
def fresh(sessions: Callable[..., waypoint.Session]) -> waypoint.Session:
    return sessions("t", spares=2)


def held() -> list[str]:
    found: list[str] = waypoint.Client().call("daemon_status")["spares"]
    return found


def until_held(point: waypoint.Checkpoint) -> None:
    deadline = time.monotonic() + 60
    while point.id not in held():
        assert time.monotonic() < deadline, "no spare was made"
        time.sleep(0.02)


def test_a_restore_lets_the_spare_go_and_another_takes_its_place(fresh: waypoint.Session) -> None:
    fresh.run("cd /tmp; export COLOUR=green; echo one > note; sleep 1000 &").check()
    point = fresh.checkpoint("one", name="one")
    for _ in range(3):
        until_held(point)
        fresh.run("cd /; COLOUR=red; echo two > /tmp/note; kill %1").check()
        restored = fresh.restore(point, safety=False)
        assert restored.spare
        told = fresh.run("pwd; echo $COLOUR; cat note; jobs -r").check().output
        assert told.splitlines()[:3] == ["/tmp", "green", "one"]
        assert "sleep 1000" in told


def test_undo_comes_back_from_a_spare(fresh: waypoint.Session) -> None:
    point = fresh.checkpoint("before", name="before")
    fresh.run("echo later > /tmp/note").check()
    until_held(point)
    restored = fresh.restore(point)
    assert restored.spare
    assert restored.safety
    assert fresh.run("cat /tmp/note").exit_code == 1
    fresh.undo()
    assert fresh.run("cat /tmp/note").output == "later\n"


def test_a_fork_takes_a_spare_and_has_a_name_of_its_own(fresh: waypoint.Session) -> None:
    fresh.run("LETTER=q").check()
    point = fresh.checkpoint("here", name="here")
    until_held(point)
    found = waypoint.Client().call("fork", {"session": fresh.name, "ref": point.id, "name": "grown"})
    assert found["sessions"][0]["spare"]
    (grown,) = [one for one in waypoint.sessions() if one.name == "grown"]
    # Over the host's / the host's name is kept, with a spare as without one: sudo and others look it up.
    assert grown.run("echo $LETTER; hostname").output == f"q\n{socket.gethostname()}\n"
    # The spare was made with the name of the session.
    assert grown.run("echo $WAYPOINT_SESSION").output == "grown\n"
    assert fresh.run("echo $WAYPOINT_SESSION").output == "t\n"
    assert fresh.run("echo $LETTER; hostname").output == f"q\n{socket.gethostname()}\n"


def test_a_fork_over_a_base_of_its_own_is_called_what_it_is(
    sessions: Callable[..., waypoint.Session], make_root: Callable[[Path], None], tmp_path: Path
) -> None:
    make_root(tmp_path / "base")
    s = sessions("t", base=str(tmp_path / "base"), spares=1)
    point = s.checkpoint("here")
    until_held(point)
    name = "cat /proc/sys/kernel/hostname"
    assert [s.run(name).output, point.fork(name="grown")[0].run(name).output] == ["t\n", "grown\n"]


def test_a_spare_of_another_kind_of_box_is_left_alone(sessions: Callable[..., waypoint.Session]) -> None:
    other = sessions("other", spares=1)
    point = other.checkpoint("there", name="there")
    shut = sessions("shut", spares=0, net="none")
    until_held(point)
    assert not shut.restore(point, safety=False).spare
    assert shut.run("ls /sys/class/net").output == "lo\n"
    assert point.id in held()
    assert other.restore(point, safety=False).spare


def test_a_spare_runs_no_instruction_before_its_time(fresh: waypoint.Session, home: Home) -> None:
    fresh.run("while :; do echo x >> /srv/ticks; sleep 0.02; done &").check()
    point = fresh.checkpoint("ticking", name="ticking")
    until_held(point)
    at_the_point = (home.checkpoints / point.id / "files" / "upper" / "srv" / "ticks").stat().st_size
    known = {row.name for row in home.checkpoints.iterdir()}
    volumes = [path for path in home.sessions.iterdir() if path.name not in known]
    counts = {path: (path / "upper" / "srv" / "ticks") for path in volumes}
    sizes = {path: file.stat().st_size for path, file in counts.items() if file.exists()}
    fresh.run("sleep 0.5").check()
    still = [path for path, size in sizes.items() if counts[path].stat().st_size == size == at_the_point]
    moving = [path for path, size in sizes.items() if counts[path].stat().st_size > size]
    assert len(still) == 1, "the spare's"
    assert len(moving) == 1, "the session's"


def test_timers_of_a_held_spare_stand_still(fresh: waypoint.Session) -> None:
    fresh.run(f"cat > /tmp/clocks.py <<'END'\n{CLOCKS}\nEND").check()
    fresh.run("mkfifo /tmp/in; exec 7<>/tmp/in; python3 /tmp/clocks.py <&7 > /tmp/out &").check()
    fresh.run("until grep -q ready /tmp/out; do sleep 0.02; done").check()
    fresh.run("lines() { wc -l < /tmp/out; }").check()
    ask = "n=$(lines); echo ? >&7; until [ $(lines) -gt $n ]; do :; done; tail -1 /tmp/out"
    before = [float(word) for word in fresh.run(ask).check().output.split()]
    point = fresh.checkpoint("clocks", name="clocks")
    until_held(point)
    time.sleep(4)
    assert fresh.restore(point, safety=False).spare
    after = [float(word) for word in fresh.run(ask).check().output.split()]
    assert "rang" not in fresh.run("cat /tmp/out").output
    for name, was, now in zip(("timer descriptor", "interval timer"), before, after, strict=True):
        assert 0 <= was - now < 3.5, f"the {name} ran while the spare was held: {was} {now}"


def test_connections_of_a_held_spare_work(fresh: waypoint.Session) -> None:
    server = (
        "import socket, threading, os\n"
        "l = socket.create_server(('127.0.0.1', 7007)); c = socket.create_connection(('127.0.0.1', 7007))\n"
        "s, _ = l.accept(); open('/tmp/up', 'w').close()\n"
        "while True:\n"
        "    while not os.path.exists('/tmp/go'): pass\n"
        "    os.unlink('/tmp/go'); c.sendall(b'x' * 100000); n = 0\n"
        "    while n < 100000: n += len(s.recv(65536))\n"
        "    open('/tmp/arrived', 'w').close()\n"
    ).replace("pass\n", "__import__('time').sleep(0.01)\n")
    fresh.run(f"cat > /tmp/pair.py <<'END'\n{server}END\npython3 /tmp/pair.py & ").check()
    fresh.run("until [ -e /tmp/up ]; do sleep 0.02; done").check()
    point = fresh.checkpoint("connected", name="connected")
    until_held(point)
    assert fresh.restore(point, safety=False).spare
    fresh.run("touch /tmp/go; until [ -e /tmp/arrived ]; do sleep 0.02; done", timeout=60).check()


def test_spares_end_with_their_point_and_their_session(
    home: Home, sessions: Callable[..., waypoint.Session]
) -> None:
    s = sessions("t", spares=2)
    first = s.checkpoint("first", name="first")
    until_held(first)
    s.run("echo > /root/after-the-first").check()
    second = s.checkpoint("second", name="second")
    until_held(second)
    until_held(first)
    assert len(keepers(home)) == 3, "the session's box and two spares"
    first.forget(force=True)
    until(lambda: first.id not in held() and len(keepers(home)) == 2)
    s.remove()
    assert held() == []
    assert keepers(home) == {}
    assert list(home.sessions.iterdir()) == []


@pytest.mark.parametrize("given", [0, 1])
def test_a_session_says_how_many_it_has(sessions: Callable[..., waypoint.Session], given: int) -> None:
    s = sessions("few", spares=given)
    first = s.checkpoint("first", name="first")
    s.run("true")
    second = s.checkpoint("second", name="second")
    other = sessions("other", spares=1)
    last = other.checkpoint("something made later than any of those")
    until_held(last)
    if given:
        until_held(second)
    assert sorted(held()) == sorted([last.id, *([second.id] if given else [])])
    assert first.id not in held()


def test_a_daemon_that_was_killed_leaves_no_spare(fresh: waypoint.Session, home: Home) -> None:
    point = fresh.checkpoint("here", name="here")
    until_held(point)
    there = set(keepers(home))
    pid = waypoint.Client().call("daemon_status")["pid"]
    gone = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([gone], [], [], 10)[0]
    os.close(gone)
    assert fresh.run("echo still here").output == "still here\n"
    left = set(keepers(home))
    assert left < there, "the spare is gone"
    assert not fresh.restore(point, safety=False).spare


@pytest.mark.parametrize("whom", ["sleep", "ld.so"])
def test_a_spare_in_which_somebody_was_killed_is_not_used(
    fresh: waypoint.Session, home: Home, whom: str
) -> None:
    """Short of memory the kernel kills whom it likes: one of the tree, or CRIU (called by its loader)."""
    fresh.run("sleep 1000 &").check()
    point = fresh.checkpoint("here", name="here")
    until_held(point)
    own = waypoint.Client().call("session", {"session": fresh.name})["session"]["pid"]
    (spare,) = set(keepers(home).values()) - {own}
    for process in processes.below(spare):
        if process.comm == whom:
            os.kill(process.host_pid, signal.SIGKILL)
            while not processes.is_over(process.host_pid):
                time.sleep(0.002)
    assert not fresh.restore(point, safety=False).spare
    assert "sleep 1000" in fresh.run("jobs -r").output


def test_a_spare_proves_its_point_and_one_that_cannot_be_made_is_loud(
    fresh: waypoint.Session, home: Home
) -> None:
    point = fresh.checkpoint("proven by its spare")
    until_held(point)
    assert fresh.point("@").info.restorable == "proven"
    fresh.run("sleep 1000 &")
    broken = fresh.checkpoint("will be damaged", files_only=False)
    until_held(broken)
    fresh.restore(broken, safety=False)  # takes the spare
    fresh.checkpoint("later")
    (image,) = (home.checkpoints / broken.id / "images").glob("pstree.img")
    image.write_bytes(image.read_bytes()[:-1])
    with pytest.raises(waypoint.CannotRestore):
        broken.fork()
    info = fresh.point(broken.id).info
    assert info.restorable == "failed"
    assert info.restore_error
    assert "cannot be restored" in home.log.read_text()
    fresh.park()
    assert fresh.point("@").info.restorable == "proven"


def test_without_spares_the_newest_point_is_proven_when_the_daemon_is_idle(
    small_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYPOINT_PROVE", "on")
    s = waypoint.session("t", home=small_home, net="none")
    older, newest = s.checkpoint("older"), s.checkpoint("newest")
    deadline = time.monotonic() + 60
    while s.point(newest.id).info.restorable != "proven":
        assert time.monotonic() < deadline, "no proof was made"
        time.sleep(3)  # no foreground verb meanwhile
    assert s.point(older.id).info.restorable == "unproven"
    s.run("true").check()
    s.remove()
