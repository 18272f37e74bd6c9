"""The adapter of mini-swe-agent in the real framework: its agent with its own deterministic model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["MSWEA_SILENT_STARTUP"] = "1"

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

import waypoint
from waypoint.adapters.mini_swe_agent import PREFIX, WaypointEnvironment
from waypoint.home import Home

SPEC = "waypoint.adapters.mini_swe_agent.WaypointEnvironment"


@pytest.fixture(scope="module")
def environment(home: Home) -> Iterator[WaypointEnvironment]:
    """As mini-swe-agent makes it: of the dotted path in its configuration."""
    made = get_environment(
        {"environment_class": SPEC, "net": "none", "env": {"COLOUR": "red"}, "timeout": 20}
    )
    yield made
    made.cleanup()
    assert not [one for one in waypoint.sessions() if one.name.startswith(PREFIX)]


def run(environment: WaypointEnvironment, command: str, **options: Any) -> tuple[int, str]:
    done = environment.execute({"command": command}, **options)
    assert done["exception_info"] == ""
    return done["returncode"], done["output"]


def test_a_command_has_its_variables_its_folder_and_both_streams_in_order(
    environment: WaypointEnvironment,
) -> None:
    assert run(environment, "echo $COLOUR; echo err >&2; pwd; exit 3", cwd="/srv") == (3, "red\nerr\n/srv\n")
    assert run(environment, "cat <<'E'\na b\nE\ncat") == (0, "a b\n")  # nothing to read on its stdin


def test_a_command_that_is_refused_or_cannot_run_is_a_result(environment: WaypointEnvironment) -> None:
    code, output = run(environment, "git push git@example.com:x/y.git main")
    assert code == 126
    assert "approval" in output or "policy" in output
    code, output = run(environment, "true", cwd="/no/such/folder")
    assert (code, "/no/such/folder" in output) == (127, True)
    code, output = run(environment, "(a")
    assert code == 2
    assert "syntax error" in output


def test_a_command_that_takes_too_long_is_ended_with_what_it_printed(
    environment: WaypointEnvironment,
) -> None:
    done = environment.execute({"command": "echo begun; sleep 1001"}, timeout=1)
    assert (done["output"], done["returncode"]) == ("begun\n", -1)
    assert "1 s" in done["exception_info"]
    assert run(environment, "pgrep -f '[s]leep 1001'") == (1, "")


def test_the_marker_ends_the_run_with_what_follows_it(environment: WaypointEnvironment) -> None:
    with pytest.raises(Submitted) as submitted:
        environment.execute({"command": "printf 'COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\\nthe patch\\n'"})
    assert submitted.value.messages[0]["extra"] == {"exit_status": "Submitted", "submission": "the patch\n"}
    code, _ = run(environment, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; false")
    assert code == 1


def test_going_back_is_for_environments_that_allow_it(environment: WaypointEnvironment) -> None:
    code, output = run(environment, "waypoint restore")
    assert code != 0
    assert "outside" in output


def test_an_agent_breaks_its_machine_goes_back_and_succeeds(home: Home, tmp_path: Path) -> None:
    commands = [
        "echo x > /srv/data; sleep 1000 >/dev/null 2>&1 & echo $! > /srv/pid",
        "waypoint checkpoint 'a server and its data'",
        "kill $(cat /srv/pid); rm -rf /srv /etc/apt",
        "cat /srv/data",
        "waypoint restore no-such-point",
        "waypoint restore @",
        "kill -0 $(cat /srv/pid) && ls -d /etc/apt",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat /srv/data",
    ]
    environment = WaypointEnvironment(session="kept", net="none", may_restore=True)
    agent = DefaultAgent(
        DeterministicModel(
            outputs=[make_output("", [{"command": command}], cost=0.0) for command in commands]
        ),
        environment,
        system_template="you work in {{session_name}}",
        instance_template="{{task}}",
        output_path=tmp_path / "trajectory.json",
    )
    assert agent.run("break it") == {"exit_status": "Submitted", "submission": "x\n"}
    assert agent.messages[0]["content"] == "you work in kept"
    shown = [message["content"] for message in agent.messages[3::2]]
    assert "No such file" in shown[3], "the machine was broken"
    assert "no-such-point" in shown[4]
    assert "a server and its data" in shown[5]
    assert "<returncode>0" in shown[6], "process and files are back"
    assert SPEC in (tmp_path / "trajectory.json").read_text()
    environment.cleanup()
    (left,) = [one for one in waypoint.sessions() if not one.name.startswith(PREFIX)]
    assert left.name == "kept", "a session with a name of the user's stays"
    left.remove()
