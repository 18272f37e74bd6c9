"""What the shell's start-up files write before the first prompt is where a session begins, not a change of
it."""

from __future__ import annotations

import os
import shutil
import signal
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import waypoint
from waypoint.home import Home
from waypoint.kernel import processes
from waypoint.text.views import Diff

BASHRC = """
echo "a shell has started" >> /root/started
mkdir -p /srv/cache && echo $$ > /srv/cache/$$
rm -f /etc/motto
"""


@pytest.fixture
def base(make_root: Callable[[Path], None]) -> Iterator[Path]:
    """A root file system whose shell writes, replaces and deletes files whenever it starts."""
    folder = Path("/var/tmp") / f"waypoint-beginning-{os.getpid()}"
    make_root(folder)
    (folder / "root/started").write_text("never\n")
    (folder / "etc/motto").write_text("small is beautiful\n")
    (folder / "root/.bashrc").write_text(BASHRC)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def session(base: Path, sessions: Callable[..., waypoint.Session]) -> waypoint.Session:
    return sessions("t", base=str(base), net="none")


def changed(difference: Diff | None) -> set[str]:
    """The files that differ, without folders whose entries differ."""
    assert difference is not None
    entries = difference.data["difference"]["files"]["changes"]
    return {change["path"] for change in entries if change["entry"] != "folder"}


def test_nothing_has_changed_at_the_first_prompt(session: waypoint.Session, tmp_path: Path) -> None:
    assert not session.changed()
    assert changed(session.diff("base")) == set()
    assert changed(session.status().diff) == set()
    assert session.export(tmp_path / "nothing.tar").files == 0


def test_only_what_was_done_in_the_session_is_its_change(session: waypoint.Session, tmp_path: Path) -> None:
    assert session.run("cat /root/started; ls /etc/motto").output.startswith("never\na shell has started\n")
    session.run("mkdir /srv/app && echo one > /srv/app/a && echo mine >> /root/started").check()
    point = session.checkpoint("two files")
    expected = {"/srv/app/a", "/root/started"}
    assert changed(session.diff("base", point)) == expected
    assert changed(point.card().difference) == expected
    assert session.export(tmp_path / "x.tar").files == 2
    with tarfile.open(tmp_path / "x.tar") as tar:
        assert {f"/{name}" for name in tar.getnames()} >= expected
        assert not [name for name in tar.getnames() if "cache" in name or "motto" in name]
    (tmp_path / "target").mkdir()
    landing = session.apply(tmp_path / "target", source="/")
    assert {item.path.removeprefix(str(tmp_path / "target")) for item in landing.items} >= expected
    assert not (tmp_path / "target/srv/cache").exists()


def test_forks_and_later_daemons_know_the_beginning_and_it_goes_with_the_last_of_them(
    session: waypoint.Session, home: Home
) -> None:
    session.run("echo one > /srv/a").check()
    fork = session.checkpoint().fork(name="copy")[0]
    waypoint.Client().call("daemon_stop", {})
    assert changed(fork.diff("base")) == changed(session.diff("base")) == {"/srv/a"}
    session.restore("@")
    assert changed(session.diff("base")) == {"/srv/a"}
    session.remove()
    assert changed(fork.diff("base")) == {"/srv/a"}
    assert len(list(home.beginnings.iterdir())) == 1
    fork.remove()
    assert list(home.beginnings.iterdir()) == []


def test_what_a_later_shell_writes_when_it_starts_is_a_change(session: waypoint.Session) -> None:
    keeper = session.info.pid
    assert keeper
    shell = int(session.run("echo $$").output)
    os.kill(next(one.host_pid for one in processes.below(keeper) if one.pid == shell), signal.SIGKILL)
    deadline = time.monotonic() + 20
    while session.run("echo $$").output in ("", f"{shell}\n"):
        assert time.monotonic() < deadline
    assert "/root/started" in changed(session.diff("base"))
