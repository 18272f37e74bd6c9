"""The best of several forks: its point stays with the session that went there when the fork is removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.waiting import until

import waypoint
from waypoint import errors
from waypoint.home import Home

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_the_winner_stays_when_its_fork_is_removed(
    home: Home, wp: Callable[..., Any], sessions: Callable[..., waypoint.Session]
) -> None:
    main = sessions("m")
    main.run("cd /tmp && n=1 && echo 1 > number").check()
    main.checkpoint("begin")
    wp("fork", "-s", "m", "@", "-n", "2", "--name", "f", check=True)
    fork = waypoint.session("f-1")
    fork.run("n=2; echo 2 > number; sleep 1000 &").check()
    fork.checkpoint("on the way")
    fork.checkpoint("the best of them", name="winner", verify="true")
    fork.run("n=3").check()
    fork.checkpoint("after it")
    wp("restore", "-s", "m", "winner", "--yes", check=True)  # found although it is another session's

    plan = wp("rm", "--dry-run", "f-1", "f-2", check=True).out
    assert "1 point go" in plan
    assert 'f-1:c2 "the best of them" goes to m as c4 (winner): m stands on it' in plan
    refused = wp("rm", "f-1")
    assert (refused.code, "needs confirmation" in refused.err) == (3, True)
    done = wp("rm", "--yes", "f-1", "f-2", check=True).out
    assert 'f-1:c2 "the best of them" went to m as c4 (winner): m stands on it' in done

    assert sorted(point.info.label for point in main.log()) == ["c1", "c2", "c3", "c4"]
    winner = main.point("@")
    assert (winner.info.name, winner.info.label, winner.info.session) == ("winner", "c4", "m")
    assert winner.info.verdict
    assert winner.info.verdict.state == "passed"
    shown = wp("show", "-s", "m", "winner", check=True).out
    assert "was f-1:c2" in shown
    assert "the best of them" in wp("log", "-s", "m", check=True).out
    assert "number" in wp("diff", "-s", "m", "c1", "winner").out
    main.run("n=4").check()
    main.restore("winner")
    assert main.run("echo $n $(cat number) $(jobs -r | grep -c sleep)").output.split() == ["2", "2", "1"]
    (again,) = main.fork(ref="winner")
    assert again.run("echo $n").output.strip() == "2"
    client = waypoint.Client()
    until(lambda: not client.call("check", {"deep": True})["violations"])
    with pytest.raises(errors.UsageError, match="stands on it"):
        client.call("forget", {"session": "m", "refs": ["winner"], "force": True})
    client.close()


def test_a_stopped_session_keeps_its_points_and_comes_back(
    wp: Callable[..., Any], sessions: Callable[..., waypoint.Session]
) -> None:
    sessions("m").run("cd /tmp; n=1").check()
    assert wp("stop", "m").code == 2, "there is no point to come back to"
    wp("checkpoint", "-s", "m", "one", check=True)
    assert wp("stop", "m", check=True).out == 'm is stopped at c1 "one"\n'
    assert "stopped" in wp("ls", check=True).out
    wp("restore", "-s", "m", "@", "--yes", check=True)
    wp("exec", "-s", "m", "n=2; touch /tmp/new", check=True)
    refused = wp("stop", "m")
    assert refused.code == 3
    assert "has changed since c1" in refused.err
    assert "new" in refused.err
    assert "waypoint park m" in refused.err
    wp("stop", "m", "--yes", check=True)
    wp("restore", "-s", "m", "@", "--yes", check=True)
    assert wp("exec", "-s", "m", "echo $n; ls /tmp/new 2>/dev/null", check=False).out == "1\n"
