"""What let others out of containers, tried here before and after a restore (docs/security.md)."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import waypoint
from waypoint import errors
from waypoint.home import Home

LEAKS = r"""
import os
own = os.stat("/")
for process in [name for name in os.listdir("/proc") if name.isdecimal()]:
    for kind in ("cwd", "root"):
        try:
            place = os.stat(f"/proc/{process}/{kind}")
            os.stat(f"/proc/{process}/{kind}/../../../../var/lib/waypoint/waypoint.db")
            print("OUT:", process, kind)
        except OSError:
            pass
    try:
        descriptors = os.listdir(f"/proc/{process}/fd")
    except OSError:
        continue  # of pid 1 nothing can be seen
    for number in descriptors:
        try:
            target = os.readlink(f"/proc/{process}/fd/{number}")
            if target.startswith("/") and not target.endswith("(deleted)") and not os.path.lexists(target):
                print("NOT OF THIS BOX:", process, number, target)
            os.listdir(f"/proc/{process}/fd/{number}/../../../../var/lib/waypoint-homes")
            print("OUT:", process, number)
        except OSError:
            pass
for path in ("/proc/1/exe", "/dev/waypoint/bin/anchor", "/dev/waypoint/criu/criu"):
    try:
        os.open(path, os.O_WRONLY)
        print("WRITABLE:", path)
    except OSError:
        pass
status = dict(row.split(":", 1) for row in open("/proc/self/status"))
for name in ("CapInh", "CapAmb"):
    if int(status[name], 16):
        print(name)
groups = ("/sys/fs/cgroup", "/sys/fs/cgroup/cgroup.procs")
for path in (*groups, "/proc/sys/kernel/core_pattern", "/proc/pressure/cpu"):
    try:
        os.open(path, os.O_WRONLY) if not os.path.isdir(path) else os.mkdir(f"{path}/x")
        print("WRITABLE:", path)
    except OSError:
        pass
for path in ("config.gz", "cmdline", "key-users", "kcore", "keys"):
    if os.path.exists(f"/proc/{path}") and open(f"/proc/{path}", "rb").read(1):
        print("READABLE:", path)
"""


def test_nothing_of_the_host_is_held_open_or_can_be_written(session: waypoint.Session) -> None:
    """CVE-2016-9962, 2019-5736, 2022-24769, 2023-25809, 2024-21626: descriptors, folders, our own programs,
    capabilities, control groups."""
    session.write_file("/root/leaks.py", LEAKS.encode())
    point = session.checkpoint()
    with contextlib.ExitStack() as undo:
        (fork,) = point.fork()
        undo.callback(waypoint.Client().call, "rm", {"sessions": [fork.name]})
        session.restore(point, safety=False)
        for copy in (session, fork):
            assert copy.run("python3 /root/leaks.py").output == ""
            for number in range(3, 12):
                with contextlib.suppress(errors.WaypointError):
                    there = copy.run("pwd -P; ls ..", cwd=f"/proc/self/fd/{number}").output
                    assert "waypoint-homes" not in there
                    assert not there.startswith("(unreachable)")


@pytest.mark.parametrize("name", ["proc", "sys", "dev", "dev/null", "dev/console"])
def test_a_base_in_which_mount_points_are_links_leads_nowhere(
    home: Home, make_root: Callable[[Path], None], name: str
) -> None:
    """CVE-2019-19921, 2021-30465, 2023-27561, 2024-45310, 2025-31133, 2025-52565: what is mounted or masked
    in a box is not found through links that its files have prepared."""
    with tempfile.TemporaryDirectory(prefix="waypoint-linked-", dir="/var/tmp") as folder:
        root, victim = Path(folder) / "root", Path(folder) / "victim"
        make_root(root)
        victim.mkdir(mode=0o755)
        (victim / "file").write_text("of the host\n")
        before = (os.stat(victim), os.stat("/etc"), sorted(os.listdir(victim)))
        place = root / name
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(f"../../../../../../..{victim}")
        client = waypoint.Client()
        try:
            made = waypoint.session("linked", base=str(root), net="none")
            assert made.run("echo $((20 + 22))").output == "42\n"
            assert "of the host" not in made.run("cat /proc/file /dev/file /sys/file 2>&1").output
            assert made.run("cat /proc/kallsyms | wc -c; cat /dev/null | wc -c").output == "0\n0\n"
        except errors.WaypointError:
            pass  # refused is as good
        finally:
            with contextlib.suppress(errors.WaypointError):
                client.call("rm", {"sessions": ["linked"]})
        after = (os.stat(victim), os.stat("/etc"), sorted(os.listdir(victim)))
        assert [one.st_ino for one in after[:2]] == [one.st_ino for one in before[:2]]
        assert [one.st_mtime_ns for one in after[:1]] == [one.st_mtime_ns for one in before[:1]]
        assert after[2] == before[2]


def test_everything_in_a_home_is_for_its_owner_alone(session: waypoint.Session, home: Home) -> None:
    """The home and its run folder, without the trees of sessions: their files have modes of their own."""
    session.checkpoint("one")
    trees = {home.sessions, home.beginnings, home.staging, home.pool / "bases", home.run / "root"}
    open_to_others = []
    waiting = [home.path, home.run]
    while waiting:
        folder = waiting.pop()
        for path in folder.iterdir():
            # `.inside` is seen by all users of a box; the keeper answers root alone on its socket.
            is_of_box = path.suffix in (".inside", ".sock")
            if path.is_symlink() or path in trees or path.name == "files" or is_of_box:
                continue
            if path.lstat().st_mode & 0o077:
                open_to_others.append(f"{path.lstat().st_mode:o} {path}")
            if path.is_dir():
                waiting.append(path)
    assert open_to_others == [], "\n".join(open_to_others)
    for path in (home.path, home.run, Path("/var/lib/waypoint-homes")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_fifos_in_a_base_keep_nothing_waiting(home: Home, make_root: Callable[[Path], None]) -> None:
    """A base is read where a session begins and in cards: what would never answer is left out."""
    with tempfile.TemporaryDirectory(prefix="waypoint-fifo-", dir="/var/tmp") as folder:
        root = Path(folder) / "root"
        make_root(root)
        for name in ("etc/hostname", "etc/resolv.conf", "var/lib/dpkg/status"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).unlink(missing_ok=True)
            os.mkfifo(root / name)
        client = waypoint.Client()
        started = time.monotonic()
        try:
            made = waypoint.session("fifo", base=str(root), net="none", user="0")
            made.run("echo x >/srv/x || echo x >/x", timeout=20)
            made.checkpoint("one")
            client.call("status", {"session": "fifo"})
        finally:
            with contextlib.suppress(errors.WaypointError):
                client.call("rm", {"sessions": ["fifo"]})
        assert time.monotonic() - started < 60
