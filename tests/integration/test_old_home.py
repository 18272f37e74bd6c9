"""A home that an earlier version made is opened by this one, with the session that still runs in it.

The earlier version is the commit before the modules were moved into their packages. Its code builds the home
in a process of its own; its daemon then ends and leaves its boxes running, as an upgrade does.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.leaks import Watch

import waypoint
from waypoint.box.box import keepers
from waypoint.home import Home
from waypoint.machine import setup

REPOSITORY = Path(__file__).parents[2]
EARLIER = "ed8c6ed315b090ab3f1749915503ef86d468512e"

BUILD = """
import json, sys
from pathlib import Path
import waypoint
from waypoint import provision

home, landed = sys.argv[1:]
provision.ensure_engine(Path(home), lambda _: None)
work = waypoint.session("work")
work.run("mkdir /srv/app && cd /srv/app && echo one > file && word=kept")
work.tasks.add("write it", "ship it")
work.tasks.start("1")
start = work.checkpoint("a clean start", name="start", agent_state={"step": 1}, agent_version="1")
start.tag("first")
start.note("looks fine")
start.verify("grep -q one /srv/app/file")
work.run("echo two > file; (while :; do date +%s%N > /srv/tick; sleep 0.1; done) & disown")
work.tasks.done("1")
work.effect("sent a mail", target="team@example.org", key="mail:1")
work.run("waypoint checkpoint 'from inside' > /dev/null")
landing = work.apply(landed, ["/srv/app"])
second = work.checkpoint("with a second line", name="second")
second.card()
work.restore("start")
work.undo()
fork = start.fork(name="other")[0]
fork.run("echo of the fork > file")
fork.checkpoint("in the fork", name="forked")
work.run("echo three > file; word=live")
print(json.dumps({
    "keepers": {one.name: one.info.pid for one in waypoint.sessions()},
    "log": [[one.info.label, one.name, one.info.kind, one.info.intent] for one in work.log()],
    "landed": [one.path for one in landing.items],
}))
waypoint.Client().call("daemon_stop")
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the earlier version."""
    done = subprocess.run(
        ["git", "-C", REPOSITORY, "archive", EARLIER, "src"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"commit {EARLIER[:7]} is not in this clone: {done.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


class OldHome:
    """The home, and what its makers noted about it."""

    def __init__(self, path: Path, landed: Path, facts: dict[str, object]) -> None:
        self.path, self.landed, self.facts = path, landed, facts

    def cli(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "waypoint", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def old_home(
    earlier: Path, engine: Path, watch: Watch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OldHome]:
    """Made by the earlier version, in which `work` still runs. Ended by this version; nothing may be left."""
    path = Path("/var/tmp") / f"waypoint-old-{os.getpid()}"
    landed = tmp_path_factory.mktemp("landed")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WAYPOINT_HOME", str(path))
        environment.setenv("WAYPOINT_SPARES", "off")
        # An engine of its own: each version builds its native programs there.
        shutil.copytree(engine, path / "engine", symlinks=True)
        environment.setenv("WAYPOINT_ENGINE", str(path / "engine"))
        environment.setenv("PYTHONPATH", str(earlier))
        built = subprocess.run(
            [sys.executable, "-P", "-c", BUILD, path, landed], capture_output=True, text=True, check=False
        )
        environment.setenv("PYTHONPATH", str(REPOSITORY / "src"))
        home = OldHome(path, landed, json.loads(built.stdout) if built.returncode == 0 else {})
        try:
            assert built.returncode == 0, built.stderr
            setup.ensure_engine(path, lambda _: None)
            watch.add_home(Home(path))
            yield home
        finally:
            home.cli("uninstall", "--yes")
        assert not path.exists()
        left = [*keepers(Home(path)), *watch.remains(Home(path))]
        assert not left, f"left behind: {left}"


@pytest.fixture
def work(old_home: OldHome) -> waypoint.Session:
    return next(one for one in waypoint.sessions() if one.name == "work")


def test_its_live_sessions_are_taken_over(old_home: OldHome, work: waypoint.Session) -> None:
    assert {one.name: one.info.pid for one in waypoint.sessions()} == old_home.facts["keepers"]
    assert {one.info.state for one in waypoint.sessions()} == {"live"}
    assert work.run("pwd; cat file; echo $word").output == "/srv/app\nthree\nlive\n"
    before = work.run("cat /srv/tick; sleep 0.3").output
    assert work.run("cat /srv/tick").output != before, "its background job has stopped"
    point = work.checkpoint("by this version")
    assert "/srv/app/file" in str(work.diff("second", point))
    work.run("word=lost; rm file")
    work.restore(point)
    assert work.run("cat file; echo $word").output == "three\nlive\n"


def test_its_history_can_be_read(old_home: OldHome, work: waypoint.Session) -> None:
    log = [[one.info.label, one.name, one.info.kind, one.info.intent] for one in work.log()]
    made = old_home.facts["log"]
    assert isinstance(made, list)
    assert [line for line in log if line in made] == made
    start = work.point("first")
    assert (start.name, start.info.tags) == ("start", ("first",))
    assert [verdict.state for verdict in start.verdicts()] == ["passed"]
    assert start.agent_state("1") == {"step": 1}
    assert [(task.title, task.state) for task in start.tasks()] == [
        ("write it", "in_progress"),
        ("ship it", "pending"),
    ]
    assert [effect.command for effect in work.effects()] == ["sent a mail"]
    assert "/srv/app/file" in old_home.cli("diff", "-s", "work", "start", "second", code=1)
    assert "looks fine" in old_home.cli("show", "-s", "work", "start")
    assert "start" in old_home.cli("log", "-s", "work", "--all")
    assert "undo" in [operation["verb"] for operation in work.operations()]


def test_its_points_can_be_restored_and_forked(old_home: OldHome, work: waypoint.Session) -> None:
    plan = work.preview("start")
    assert "file" in str(plan)
    work.restore("start")
    assert work.run("cat file; echo $word").output == "one\nkept\n"
    assert [(task.title, task.state) for task in work.tasks] == [
        ("write it", "in_progress"),
        ("ship it", "pending"),
    ]
    work.undo()
    assert work.run("cat file").output == "three\n"
    [again] = work.point("second").fork(name="again")
    assert again.run("cat file; echo $word").output == "two\nkept\n"
    [other] = work.point("other:forked").fork(name="third")
    assert other.run("cat file").output == "of the fork\n"
    assert other.trace()[0].session == "work"
    again.remove()
    other.remove()


def test_what_it_landed_is_known(old_home: OldHome, work: waypoint.Session) -> None:
    assert old_home.facts["landed"] == [str(old_home.landed / "file")]
    assert (old_home.landed / "file").read_text() == "two\n"
    landing = work.apply(old_home.landed, ["/srv/app"])
    assert [item.action for item in landing.items] == ["update"], (
        "it may replace what the session itself landed"
    )
    assert (old_home.landed / "file").read_text() == "three\n"
