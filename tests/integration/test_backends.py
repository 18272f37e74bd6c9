"""The backends that are Waypoint's own, in the suite that each of them passes for what it claims.

`make podman` runs it for the one that needs podman.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from waypoint import backends
from waypoint.backends.conformance import *  # noqa: F403 - the suite
from waypoint.home import Home

BACKENDS: dict[str, dict[str, Any]] = {
    "live": {},
    "files": {},
    "replay": {"over": "files", "decider": "virtual"},
}


@pytest.fixture(scope="module", autouse=True)
def live(home: Home) -> Iterator[backends.Environment]:
    """One for all tests: a session takes longer to start than a test takes."""
    with backends.open("live") as environment:
        yield environment


@pytest.fixture(params=BACKENDS)
def environment(request: pytest.FixtureRequest) -> Iterator[backends.Environment]:
    if request.param == "live":
        yield request.getfixturevalue("live")
        return
    with backends.open(request.param, **BACKENDS[request.param]) as environment:
        yield environment


# ---- files ---------------------------------------------------------------------------------------


@pytest.fixture
def files() -> Iterator[Any]:
    with backends.open("files", services={"web": "exec sleep 4321"}) as environment:
        yield environment


def test_a_service_is_started_again_and_other_processes_are_named(files: Any) -> None:
    files.run("sleep 1234 & cat /proc/$!/cmdline >/dev/null").check()
    point = files.checkpoint()
    files.run("kill -KILL $(cat /proc/[0-9]*/stat | grep '(sleep)' | cut -d' ' -f1)").check()
    without = files.checkpoint()
    restored = files.restore(point)
    assert restored.started == ("web",)
    assert restored.lost == ("a process that ran at the point is not there: sleep 1234",)
    (fork,) = files.fork(point)
    with fork:
        assert "sleep 4321" in fork.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").output
    restored = files.restore(without)
    assert (restored.started, restored.lost) == ((), ()), "it did not run at that point"


def test_this_machine_is_not_changed_and_all_folders_go_with_the_last_environment(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with backends.open("files", store=store) as environment:
        environment.run("echo x > /etc/waypoint-was-here; rm -f /etc/hostname; echo $$ > /tmp/pid").check()
        assert not Path("/etc/waypoint-was-here").exists()
        assert Path("/etc/hostname").exists()
        (fork,) = environment.fork()
        point = fork.checkpoint("of the fork")
    assert fork.run("cat /etc/waypoint-was-here").output == "x\n", "its points outlive the first environment"
    fork.restore(point)
    fork.stop()
    assert [*store.iterdir()] == []


def test_a_folder_that_was_made_anew_hides_the_base() -> None:
    with backends.open("files") as environment:
        before = environment.checkpoint()
        environment.run("rm -r /etc/apt && mkdir /etc/apt && echo mine > /etc/apt/mine").check()
        difference = environment.diff(before)
        assert "/etc/apt/mine" in difference.added
        assert (
            "/etc/apt/sources.list.d" in difference.removed or "/etc/apt/sources.list" in difference.removed
        )
        point = environment.checkpoint()
        environment.restore(before)
        assert not environment.diff(before)
        environment.restore(point)
        assert environment.run("ls /etc/apt").output == "mine\n"


def test_it_works_without_root() -> None:
    """A process that is no longer root: it makes user namespaces, in which it is."""
    program = (
        "import os\n"
        "from waypoint import backends\n"
        "backends.find('files')\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "with backends.open('files') as one:\n"
        "    one.run('mkdir /opt/mine; echo 1 > /opt/mine/a; mkdir -m 0 /opt/mine/closed').check()\n"
        "    point = one.checkpoint()\n"
        "    one.run('cd /opt/mine; echo 2 > a; mkdir b; rm -r closed').check()\n"
        "    print(one.diff(point), end=' ')\n"
        "    one.restore(point)\n"
        "    (fork,) = one.fork(point)\n"
        "    print(one.run('id -u; cat /opt/mine/a').output.split(), fork.run('ls /opt/mine').output)\n"
        "    fork.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    difference = "Difference(added=('/opt/mine/b',), changed=('/opt/mine/a',), removed=('/opt/mine/closed',))"
    assert done.stdout == f"{difference} ['0', '1'] a\nclosed\n\n"


# ---- replay over sessions ------------------------------------------------------------------------


def test_what_acts_outside_is_never_run_again(live: backends.Environment) -> None:
    """Only `live` can tell; its policy knows commands."""
    assert live.acts_outside("git push origin main")
    assert not live.acts_outside("echo 1 > /srv/a")


def test_virtual_points_of_a_session() -> None:
    with backends.open("replay", over="live", decider="virtual") as environment:
        environment.checkpoint("start")
        environment.run("cd /srv && export kept=yes").check()
        environment.run("echo $kept > note").check()
        point = environment.checkpoint("made")
        assert point.virtual
        environment.run("rm note; cd /").check()
        restored = environment.restore("made")
        assert restored.replayed == ("cd /srv && export kept=yes", "echo $kept > note")
        assert environment.run("pwd; cat note").output == "/srv\nyes\n"
        environment.run("echo more > more").check()
        assert [*environment.diff("made").added] == ["/srv/more"]
        whole = environment.checkpoint(needs={"memory"})
        assert not whole.virtual
        assert "memory" in whole.keeps
