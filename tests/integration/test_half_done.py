"""What happens in the middle of a verb: a shell that ends, a CRIU that is killed, a box that dies."""

from __future__ import annotations

import pytest

import waypoint


@pytest.mark.parametrize("way", ["kill -9 $$", "exit"])
def test_a_shell_that_ends_during_a_checkpoint_leaves_a_point_that_reaches_a_prompt(
    fresh: waypoint.Session, way: str
) -> None:
    fresh.run("cd /tmp; sleep 1000 & echo $! > /tmp/sleeper")
    fresh.run(f"PROMPT_COMMAND+=('sleep 0.3; {way}')")  # a checkpoint waits for the prompt
    point = fresh.checkpoint("the shell ends meanwhile")
    assert fresh.run("echo the next shell").output == "the next shell\n"
    fresh.restore(point, safety=False)
    assert fresh.run("pwd; kill -0 $(cat /tmp/sleeper) && echo runs on").output == "/tmp\nruns on\n"
    (fork,) = point.fork(name="fork")
    assert fork.run("kill -0 $(cat /tmp/sleeper) && echo runs on").output == "runs on\n"
