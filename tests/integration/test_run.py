"""`waypoint run`: a command in a session of its own, what it did, and its results brought here."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.person import DETACH, House

import waypoint
from waypoint.cli.verbs.run import caller_variables

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def project() -> Iterator[Path]:
    """The folder at which the user is. (Not below a folder of caches: logs do not name what is in one.)"""
    with tempfile.TemporaryDirectory(prefix="waypoint-project-", dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "old").write_text("old\n")
        (folder / "kept").write_text("kept\n")
        yield folder


@pytest.fixture(name="wp")
def house(wp: Callable[..., Any]) -> Iterator[House]:
    made = House(wp)
    yield made
    for person in made.people:
        person.close()


def run(project: Path, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "waypoint", "run", *words],
        cwd=project,
        env={**os.environ, **env},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def states() -> dict[str, str]:
    return {session.name: session.info.state for session in waypoint.sessions()}


def test_without_a_terminal_streams_and_exit_code_pass_through(wp: House, project: Path) -> None:
    script = 'cat; echo wrong >&2; echo "$PWD $MARK"; echo new > made; rm old; exit 3'
    done = run(project, "--name", "piped", "--", "sh", "-c", script, stdin="given\n", MARK="marked")
    assert done.returncode == 3
    assert done.stdout == f"given\n{project} marked\n"
    assert done.stderr.startswith("wrong\n")
    assert "ended with 3" in done.stderr
    # The last point too is told with what it changed.
    assert re.search(r"^● +c2 .*\n│ .* exit 3 · \+", done.stderr, re.MULTILINE), done.stderr
    assert "before sh -c" in done.stderr
    assert "  + made" in done.stderr
    assert "  - old" in done.stderr
    assert not (project / "made").exists()
    assert states()["piped"] == "parked"
    (command,) = [words for words in done.stderr.split("`") if words.startswith("waypoint apply")]
    wp(*shlex.split(command)[1:], "--yes")
    assert (project / "made").read_text() == "new\n"
    assert sorted(path.name for path in project.iterdir()) == ["kept", "made"]


def test_with_yes_and_rm_only_the_results_stay(wp: House, project: Path) -> None:
    done = run(
        project, "--name", "gone", "--yes", "--rm", "--", "sh", "-c", "echo new > made; touch /srv/other"
    )
    assert done.returncode == 0, done.stderr
    assert "applied to" in done.stderr
    assert "session gone is removed" in done.stderr
    assert (project / "made").read_text() == "new\n"
    assert not Path("/srv/other").exists()
    assert "gone" not in states()


def test_a_command_that_cannot_be_started_leaves_no_session(wp: House, project: Path) -> None:
    before = states()
    done = run(project, "--", "no-such-command")
    assert done.returncode == 127
    assert "cannot start 'no-such-command'" in done.stderr
    assert states() == before
    assert run(project, "--keep", "--name", "kept", "--", "no-such-command").returncode == 127
    assert states()["kept"] == "live"


def test_a_person_follows_it_takes_a_point_and_applies(wp: House, project: Path) -> None:
    script = "echo new > made; read -p 'go on? ' x; exit 4"
    person = wp.person("run", "--name", "followed", "--", "bash", "-c", script, cwd=project)
    person.sees("go on?")
    person.type(b"\x1dcasked\r")
    person.sees('"asked", taken in')
    person.type(b"y\r")
    person.sees("Apply 1 new, 4 B to")
    assert "+ made" in person.look()
    assert "asked" in person.look()
    person.type(b"y\r")
    assert person.leaves() == 4
    assert "is parked" in person.look().replace("\n", " ")
    assert person.terminal_is_as_before()
    assert (project / "made").read_text() == "new\n"
    points = waypoint.Session(waypoint.Client(), "followed").log()
    assert [points[0].info.name, points[1].info.intent] == ["start", "asked"]


def test_who_detaches_can_go_on_later(wp: House, project: Path) -> None:
    script = "read -p 'first? ' x; read -p 'second? ' x; echo $x > made; exit 5"
    person = wp.person("run", "--name", "left", "--", "bash", "-c", script, cwd=project)
    person.sees("first?")
    person.type(DETACH)
    assert person.leaves() == 0
    assert "`waypoint run --name left` attaches again" in person.look().replace("\n", "")
    again = wp.person("run", "--name", "left", cwd="/")
    again.sees("first?")
    again.type(b"\rmeant\r")
    again.sees("Apply 1 new")
    again.type(b"n\r")
    assert again.leaves() == 5
    assert "--ref @" in again.look()
    assert not (project / "made").exists()


def test_the_shell_alone_ends_with_exit(wp: House, project: Path) -> None:
    person = wp.person("run", "--rm", "--name", "shell", cwd=project)
    person.sees("C-] ? helps")
    person.type(b"pwd -P; exit\r")
    assert person.leaves() == 0
    assert "nothing to bring" in person.look().replace("\n", " ")
    assert "shell" not in states()


def test_an_agent_that_is_known_gets_its_hooks_in_the_session_alone(wp: House, project: Path) -> None:
    programs = project / "programs"
    programs.mkdir()
    agent = programs / "claude"
    agent.write_text("#!/bin/sh\ncat .claude/settings.local.json; echo new > made\n")
    agent.chmod(0o755)
    done = run(project, "--yes", "--", "claude", PATH=f"{programs}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    settings = json.loads(done.stdout)
    assert " hook claude" in settings["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    assert (project / "made").exists()
    assert sorted(path.name for path in project.iterdir()) == ["kept", "made", "old", "programs"]


def test_the_policy_holds(wp: House, project: Path) -> None:
    rules = project / "rules.toml"
    rules.write_text(
        '[[rule]]\ncommand = "touch"\ndecision = "deny"\nclass = "irreversible"\nwhy = "frozen"\n'
    )
    done = run(project, "--policy", str(rules), "--", "touch", "made")
    assert done.returncode == 11
    assert "frozen" in done.stderr


def test_what_could_not_be_looked_into_is_not_told_as_an_effect(wp: House, project: Path) -> None:
    secret = "Zq8vK2mN5xR7tB3w"
    done = run(project, "--name", "unseen", "--", "true", GIT_CONFIG_GLOBAL="/srv/config", API_TOKEN=secret)
    assert "outside    1 command could not be looked into" in done.stderr, done.stderr
    (effect,) = waypoint.Session(waypoint.Client(), "unseen").effects()
    # The command comes first: all variables of the caller would hide it.
    assert effect.command.startswith("true  # with ")
    assert "API_TOKEN=[redacted]" in effect.command
    assert secret not in effect.command


def test_what_belongs_to_the_terminal_of_the_caller_stays_there() -> None:
    given = {
        "PATH": "/bin",
        "API_KEY": "k",
        "TMUX": "x",
        "SSH_AUTH_SOCK": "/s",
        "PS1": "$",
        "WAYPOINT_HOME": "/w",
    }
    assert caller_variables(given) == {"PATH": "/dev/waypoint/bin/inside:/bin", "API_KEY": "k"}
