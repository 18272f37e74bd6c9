"""A group that may use the daemon, tried with processes that are not root."""

from __future__ import annotations

import grp
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.leaks import Watch

from waypoint.home import Home
from waypoint.kernel.syscalls import MS_BIND, mount, umount

REPOSITORY = Path(__file__).parents[2]
USER, OTHER = 54321, 54322
"""Users that this machine does not know."""
GROUP = grp.getgrnam("daemon")


@pytest.fixture(scope="module")
def clone() -> Iterator[Path]:
    """This clone, with its Python beside it, at a place that every user can reach."""
    folder = Path(f"/var/tmp/waypoint-group-{os.getpid()}")
    folder.mkdir()
    folder.chmod(0o755)
    parts = {"clone": REPOSITORY, "python": Path(sys.base_prefix)}
    for name, source in parts.items():
        (folder / name).mkdir()
        mount(source, folder / name, "", MS_BIND, "")
    yield folder / "clone"
    for name in parts:
        umount(folder / name)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def place(engine: Path, watch: Watch) -> Iterator[Home]:
    """A home of its own: its set-up and its removal are what is tested."""
    home = Home(Path(f"/var/tmp/waypoint-group-home-{os.getpid()}"))
    watch.add_home(home)
    yield home
    if home.path.exists():
        as_root(home, "uninstall", "--yes")


def as_root(home: Home, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "waypoint", *words],
        env={**os.environ, "WAYPOINT_HOME": str(home.path), "PYTHONPATH": str(REPOSITORY / "src")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def as_user(
    clone: Path, home: Home, *words: str, uid: int = USER, groups: tuple[int, ...] = (), cwd: str = "/"
) -> subprocess.CompletedProcess[str]:
    """The command line, run by a user who is in these groups."""
    python = clone.parent / "python" / Path(sys.executable).resolve().relative_to(sys.base_prefix)
    packages = Path(sysconfig.get_path("purelib")).relative_to(REPOSITORY)
    return subprocess.run(
        [python, "-P", "-m", "waypoint", *words],
        env={
            "PATH": os.environ["PATH"],
            "WAYPOINT_HOME": str(home.path),
            "PYTHONPATH": f"{clone / 'src'}:{clone / packages}",
        },
        user=uid,
        group=uid,
        extra_groups=groups,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def access_to(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 6, done.stdout + done.stderr
    error = json.loads(done.stdout)["error"]  # with --json nothing else is there
    assert error["code"] == "not_root"
    return f"{error['message']}: {error['hint']}"


def test_root_is_asked_for_before_anything_is_installed(tmp_path: Path, clone: Path, place: Home) -> None:
    fresh = Path(f"{clone.parent}/fresh")
    fresh.mkdir()
    for name in ("waypoint", "requirements.txt"):
        shutil.copy(REPOSITORY / name, fresh)
    os.chown(fresh, USER, USER)
    done = subprocess.run(
        [fresh / "waypoint", "demo"],
        user=USER,
        group=USER,
        extra_groups=(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 6
    assert "needs root" in done.stderr
    assert "sudo" in done.stderr
    assert sorted(path.name for path in fresh.iterdir()) == ["requirements.txt", "waypoint"]
    # The same with an environment that is there, for every verb that would set up or take away something.
    for words in ("demo", "new", "run true", "setup", f"setup --group {GROUP.gr_name}", "uninstall --yes"):
        assert "sudo" in refusal(as_user(clone, place, "--json", *words.split())), words
    assert not place.path.exists()


def test_a_group_that_does_not_exist_is_told_before_anything_is_installed(place: Home) -> None:
    done = as_root(place, "setup", "--group", "no-such-group")
    assert done.returncode == 4
    assert "groupadd no-such-group" in done.stderr
    assert not place.path.exists()


def test_members_of_the_group_use_the_daemon(clone: Path, place: Home) -> None:
    done = as_root(place, "setup", "--group", GROUP.gr_name)
    assert done.returncode == 0, done.stderr
    assert f"a member of group {GROUP.gr_name} is root on this machine" in done.stderr
    assert f"group   {GROUP.gr_name}" in done.stdout
    assert access_to(place.socket) == (0, GROUP.gr_gid, 0o660)
    assert access_to(place.run) == (0, GROUP.gr_gid, 0o710)
    assert access_to(place.path) == (0, 0, 0o700)

    member = (GROUP.gr_gid,)
    assert as_user(clone, place, "new", "g", "--net", "none", groups=member).stdout == "g\n"
    assert as_user(clone, place, "exec", "-s", "g", "id -un", groups=member).stdout.strip() == "root"
    assert as_user(clone, place, "checkpoint", "-s", "g", "by a member", groups=member).returncode == 0
    others = {path.name: access_to(path) for path in place.run.iterdir() if path != place.socket}
    assert {gid for _, gid, _ in others.values()} == {0}, others
    assert not [name for name, (_, _, mode) in others.items() if name.endswith(".sock") and mode & 0o022]
    assert access_to(place.database) == (0, 0, 0o600)
    assert as_user(clone, place, "rm", "g", "--yes", groups=member).returncode == 0


def test_what_a_member_runs_has_its_own_rights(clone: Path, place: Home) -> None:
    folder = clone.parent / "project"
    folder.mkdir()
    os.chown(folder, USER, USER)
    words = ("run", "--rm", "--yes", "--", "sh", "-c", "id -u > made")
    done = as_user(clone, place, *words, groups=(GROUP.gr_gid,), cwd=str(folder))
    assert done.returncode == 0, done.stderr
    assert (folder / "made").read_text() == f"{USER}\n"
    assert access_to(folder / "made")[:2] == (USER, USER)


def test_other_users_are_kept_away_by_the_mode_and_by_the_daemon(clone: Path, place: Home) -> None:
    outside = as_user(clone, place, "ls", "--json", uid=OTHER)
    assert "no permission to talk to the daemon" in refusal(outside)
    place.run.chmod(0o755)
    place.socket.chmod(0o666)
    by_daemon = refusal(as_user(clone, place, "ls", "--json", uid=OTHER))
    assert f"user {OTHER} may not use the daemon" in by_daemon
    assert "`waypoint setup --group NAME`" in by_daemon
    assert as_user(clone, place, "ls", groups=(GROUP.gr_gid,)).returncode == 0


def test_a_daemon_that_starts_anew_lets_them_in_again_and_only_root_starts_it(
    clone: Path, place: Home
) -> None:
    assert as_root(place, "daemon", "stop").returncode == 0
    stopped = refusal(as_user(clone, place, "ls", "--json", groups=(GROUP.gr_gid,)))
    assert "only root can start it" in stopped
    assert as_root(place, "ls").returncode == 0
    assert access_to(place.socket) == (0, GROUP.gr_gid, 0o660)
    assert access_to(place.run) == (0, GROUP.gr_gid, 0o710)
    assert as_user(clone, place, "ls", groups=(GROUP.gr_gid,)).returncode == 0


def test_doctor_shows_who_may_use_the_daemon(place: Home) -> None:
    findings = json.loads(as_root(place, "doctor", "--json").stdout)["findings"]
    [finding] = [one for one in findings if one["name"] == "daemon's users"]
    assert finding["ok"]
    assert f"root and group {GROUP.gr_name}" in finding["version"]
    assert finding["docs"] == "docs/security.md#boundaries"


def test_the_group_can_be_taken_back_and_goes_with_the_home(clone: Path, place: Home) -> None:
    assert as_root(place, "setup", "--no-group").returncode == 0
    assert access_to(place.socket) == (0, 0, 0o600)
    assert access_to(place.run) == (0, 0, 0o700)
    refusal(as_user(clone, place, "ls", "--json", groups=(GROUP.gr_gid,)))
    assert as_root(place, "setup", "--group", GROUP.gr_name).returncode == 0
    done = as_root(place, "uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"group {GROUP.gr_name} may no longer use the daemon" in done.stderr
    assert not place.run.exists()
    assert not place.path.exists()
