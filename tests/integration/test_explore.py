"""Search over live forks: candidates of all kinds, what they may not do, and a search that is killed."""

from __future__ import annotations

import doctest
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import explore_campaign
from tests.waiting import until

import waypoint
from waypoint import errors
from waypoint.explore import (
    Agent,
    Attempt,
    Budget,
    Command,
    Fork,
    Held,
    NoRoom,
    Outcome,
    Pairwise,
    Place,
    Search,
    Trial,
    explore,
    runner,
)
from waypoint.home import Home

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def start(session: waypoint.Session) -> waypoint.Checkpoint:
    """A point with a file, a variable of the shell, and nothing else."""
    session.run("mkdir /srv/app; cd /srv/app; echo 1 > n; x=5").check()
    return session.checkpoint("the start")


def _names() -> list[str]:
    return sorted(session.name for session in waypoint.sessions())


def test_commands_are_tried_in_forks_and_the_best_is_restored_and_applied(
    session: waypoint.Session, start: waypoint.Checkpoint, tmp_path: Path
) -> None:
    lines: list[str] = []
    found = explore(
        start,
        ["echo $x > n; y=$x", ["echo 1 >> n", "echo 9 > n"], "echo 2 > n", "false", "echo 5 > n; y=5"],
        "wc -c < n > /srv/app/dirt; head -1 n >&3",
        name="best",
        runners_up=1,
        on_progress=lambda progress: lines.append(str(progress)),
    )
    assert [(node.status, node.score) for node in found.nodes] == [
        *(("done", 5.0), ("done", 9.0), ("done", 2.0), ("failed", None), ("done", 5.0))
    ]
    assert found.nodes[3].outcome is not None
    assert "exit 1" in found.nodes[3].outcome.why
    assert found.tree.duplicate_of(5) == 1, "the same files, and the same shell"
    assert found.winner is not None
    assert found.winner.id == 2
    assert any("running · best 9 (#2) · left: 95 of 100 nodes" in line for line in lines)
    # Losers are gone, the best and a runner-up are there and run nothing.
    kept = {session.name: session.info.state for session in waypoint.sessions()}
    assert kept == {"t": "live", "best-1": "stopped", "best-2": "stopped"}
    assert found.compare(1, 2).rows
    assert session.run("cat n").output == "1\n", "nothing of it has reached the session"
    found.restore(session)
    assert session.run("cat n; ls").output == "9\nn\n", "scoring has left nothing"
    (tmp_path / "n").write_text("1\n")
    found.apply(tmp_path, source="/srv/app", node=1, force=True)
    assert (tmp_path / "n").read_text() == "5\n"
    with pytest.raises(errors.NotFound, match="has no point"):
        found.point(4)


def test_functions_and_agents_work_on_a_live_fork_and_their_cost_is_counted(
    start: waypoint.Checkpoint,
) -> None:
    def write(fork: Fork) -> None:
        fork.run("cd /tmp; echo 3 > /srv/app/n").check()

    def agent(fork: Fork, attempt: Attempt) -> None:
        attempt.spend(0.5)
        fork.write_file("/srv/app/n", f"{attempt.number}{attempt.place.node.id}\n")

    found = explore(
        start,
        [write, Agent(agent, attempts=2), Agent("echo $WAYPOINT_ATTEMPT$x > n", attempts=2, name="shell")],
        lambda fork: {"score": fork.read_text("/srv/app/n"), "cost": 1, "why": "as it stands"},
        name="kinds",
    )
    assert [node.label for node in found.nodes] == ["write", "agent #1", "agent #2", "shell #1", "shell #2"]
    assert [node.score for node in found.nodes] == [3.0, 10.0, 20.0, 15.0, 25.0]
    assert [node.outcome and node.outcome.cost for node in found.nodes[:3]] == [1.0, 1.5, 1.5]
    assert found.point().card().notes[0]["text"] == "score 25: as it stands"


def test_what_goes_wrong_in_a_candidate_is_a_node_and_not_the_end_of_the_search(
    sessions: Callable[..., waypoint.Session],
) -> None:
    session = sessions("small", pids=80)
    session.run("cd /srv; echo 1 > n").check()

    enough = threading.Event()

    def spins(_: Fork) -> None:
        enough.wait(60)

    def crashes(fork: Fork) -> None:
        fork.remove()
        fork.run("true")

    works: dict[str, Any] = {
        "ends its shell": "exit 0",
        "kills its shell": "kill -9 $$",
        "kills everything": "kill -9 -1",
        "forks without end": "f() { f | f & }; f; sleep 2; echo out of processes >&2; false",
        "removes its fork": crashes,
        "raises": lambda _: 1 / 0,
        "cannot be scored": "echo many > n",
        "works": "echo 7 > n",
    }
    found = explore(
        session,
        list(works.values()),
        "cat n >&3",
        timeout=60,
        budget=Budget(boxes=6),
        name="wrong",
    )
    outcomes = dict(zip(works, found.nodes, strict=True))
    assert {name: node.status for name, node in outcomes.items()} == {
        **dict.fromkeys(works, "failed"),
        "works": "done",
    }
    why = {name: node.outcome.why for name, node in outcomes.items() if node.outcome}
    assert "ended its shell" in why["ends its shell"]
    assert "ZeroDivisionError" in why["raises"]
    assert "no number: 'many'" in why["cannot be scored"]
    assert found.winner == outcomes["works"]
    assert _names() == ["small", "wrong-8"]
    hog = "while :; do head -c 4M /dev/zero >> big; sleep 0.02; done"
    filled = explore(session, [hog, "sleep 1"], name="hogs", timeout=60, budget=Budget(disk="24M"))
    assert [node.status for node in filled.nodes] == ["over_budget", "done"]
    assert "written more than" in (filled.nodes[0].outcome or Outcome()).why
    hanging = explore(session, [spins, "trap '' INT TERM; sleep 1000"], name="hangs", timeout=1)
    assert [node.status for node in hanging.nodes] == ["timeout", "timeout"]
    enough.set()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("trial")])


def test_what_acts_on_the_outside_is_held_and_only_the_winners_is_released(
    session: waypoint.Session, start: waypoint.Checkpoint
) -> None:
    def careful(fork: Fork) -> None:
        fork.run("echo 8 > n").check()
        with pytest.raises(Held):
            fork.run("gh issue close 8")

    found = explore(
        start,
        [["echo 9 > n", "gh issue close 9"], careful, "gh issue close 7", "echo 3 > n"],
        Command("cat n >&3", read="number"),
        name="held",
    )
    assert [node.outcome and node.outcome.held for node in found.nodes] == [
        *(("gh issue close 9",), ("gh issue close 8",), ("gh issue close 7",), ())
    ]
    assert found.nodes[2].status == "failed", "nothing of it has run"
    assert found.held == ("gh issue close 9",)
    assert not [effect for effect in waypoint.Client().effects() if "gh" in effect.command]
    asked: list[str] = []
    found.restore(session)

    def agree(approval: waypoint.Approval) -> bool:
        asked.append(approval.command)
        return True

    found.release(session, on_approval=agree)
    assert asked in ([], ["gh issue close 9"]), "as the policy says"
    assert [effect.command for effect in session.effects()] == ["gh issue close 9"]
    outside = explore(start, ["true"], "gh issue close 1", name="outside")
    assert outside.nodes[0].outcome is not None
    assert "evaluation acts on the outside" in outside.nodes[0].outcome.why


def test_deep_strategies_go_on_from_forks_with_their_memory(start: waypoint.Checkpoint) -> None:
    moves = ["x=$((x*2)); echo $x > n", "x=$((x+7)); echo $x > n"]
    found = explore(
        start,
        lambda place: moves if place.node.depth < 2 else moves[:1],
        "cat n >&3",
        strategy="beam",
        budget=Budget(nodes=14, depth=3),
        name="deep",
        goal=48,
    )
    assert found.winner is not None
    assert found.winner.score == 48.0, "((5 + 7) * 2) * 2: each step has the variable of the one before"
    path = [node.label for node in reversed(found.tree.line(found.winner.id)[:-1])]
    assert path == [moves[1], moves[0], moves[0]]
    assert found.stopped == "the goal of 48 is reached"


def test_the_first_that_reaches_the_goal_wins_and_a_judge_of_two_decides_a_tournament(
    start: waypoint.Checkpoint,
) -> None:
    began = time.monotonic()
    found = explore(start, ["sleep 60", "sleep 1", "sleep 60"], strategy="first-wins", name="first")
    assert found.winner is not None
    assert found.winner.label == "sleep 1"
    assert time.monotonic() - began < 40, "the others are not waited for"
    assert _names() == ["first-2", "t"]

    seen: list[tuple[str, str]] = []

    def judge(left: waypoint.Session, right: waypoint.Session) -> str:
        names = [each.run("cat n").output.strip() for each in (left, right)]
        left.run("echo 100 > n")  # its fork is thrown away
        seen.append((names[0], names[1]))
        return "left" if int(names[0]) > int(names[1]) else "right"

    found = explore(
        start, [f"echo {n} > n" for n in (3, 9, 4, 1, 7)], Pairwise(judge), strategy="tournament", name="cup"
    )
    assert found.winner is not None
    assert found.winner.label == "echo 9 > n"
    assert len(seen) == 4
    assert all("100" not in pair for pair in seen)
    assert found.nodes[1].score is None


def test_a_loop_of_ones_own_asks_and_tells_in_any_order(start: waypoint.Checkpoint) -> None:
    with Search(
        start, lambda place: [f"echo {place.node.id + 2} > n"] * 2, name="own", merge=False
    ) as search:
        first, second = search.ask(2)
        assert isinstance(first, Trial)
        assert isinstance(second, Trial)
        fork = search.fork(second)
        fork.run("echo 4 > n").check()
        search.tell(second, 0.5, point=fork.checkpoint("done by hand"))
        search.tell(first, search.attempt(first))
        search.settle()
        assert search.over == "all was tried"
        assert [node.score for node in search.result().nodes] == [1.0, 0.5]
        with pytest.raises(errors.SessionBusy, match="another process"):
            Search(start, [], name="own")
    with pytest.raises(errors.AlreadyExists, match="another search"):
        Search(start, [], name="own", strategy="mcts")


def test_a_fork_that_the_budget_has_no_room_for_is_not_made(start: waypoint.Checkpoint) -> None:
    with pytest.raises(NoRoom, match="bytes of memory"):
        explore(start, ["true"], name="tight", budget=Budget(memory="64K"))
    assert _names() == ["t"]
    assert explore(start, ["true"], name="tight").winner, "nothing was lost: it goes on with more room"


def test_the_example_of_the_sdk_is_true(home: Home, wp: Callable[..., Any]) -> None:
    assert doctest.testmod(runner) == (0, 3)


def test_a_search_that_is_killed_ends_with_the_tree_of_one_that_was_not(home: Home) -> None:
    try:
        found = explore_campaign.run(trials=8, kills=2, seed=1)
    finally:
        for session in waypoint.sessions():
            session.remove()
    assert found.different == ()
    assert found.left == ()
    assert waypoint.Client().check().violations == ()


def test_the_command_line_searches_shows_and_writes_the_tree(
    session: waypoint.Session, wp: Callable[..., Any], tmp_path: Path
) -> None:
    session.run("cd /srv; echo 1 > n").check()
    (tmp_path / "moves").write_text('# comment\necho 4 > n\n["echo 6 > n", "git push origin main"]\n')
    words = (
        "explore",
        "-s",
        "t",
        "--try",
        "echo 3 > n",
        "--from",
        str(tmp_path / "moves"),
        "--score",
        "cat n >&3",
    )
    done = wp(*words, "--name", "cli", "--html", str(tmp_path / "x.html"), "--dot", str(tmp_path / "x.dot"))
    assert done.code == 0, done.err
    assert "└─ #3 6  echo 6 > n; git push origin main  (best · holds 1 command)" in done.out
    assert "held, not run: git push origin main" in done.out
    assert "<title>cli</title>" in (tmp_path / "x.html").read_text()
    assert "n0 -> n3" in (tmp_path / "x.dot").read_text()
    report = json.loads(wp("explore", "--show", "--name", "cli", "--json", check=True).out)
    assert (report["winner"], [node["score"] for node in report["nodes"]]) == (3, [3.0, 4.0, 6.0])
    again = wp(*words, "--name", "cli", "--json", check=True)
    assert json.loads(again.out)["nodes"] == report["nodes"], "it is over: nothing is tried again"
    assert (
        wp("explore", "-s", "t", "--try", "true", "--table", check=True).out.splitlines()[1].startswith("#1")
    )
    assert "#1 1  true  (best)" in wp("explore", "--show", check=True).out, "the newest"
    assert sum(name.startswith("search-") for name in _names()) == 1
    assert wp("explore", "-s", "t", "--try", "true", check=True).out, "it was over: this is another one"
    wp("restore", "-s", "t", report["nodes"][2]["point"], "--yes", check=True)
    assert session.run("cat n").output == "6\n"
    assert wp("log", "-s", "t", "--graph", check=True).out.count("cli-") >= 1
    assert (
        wp("explore", "-s", "t", "--try", "true", "--score", "false", "--goal", "1", "--name", "no").code == 1
    )
    for wrong, says in (
        (("explore", "-s", "t"), "nothing to try"),
        (("explore", "-s", "t", "--try", "x", "--strategy", "luck"), "invalid choice"),
        (("explore", "-s", "t", "--try", "x", "--width", "2"), "no setting 'width'"),
        (("explore", "--show", "--name", "nothing"), "does not exist"),
        (("explore", "-s", "t", "--try", "x", "--boxes", "1"), "needs 2 live boxes"),
    ):
        refused = wp(*wrong)
        assert refused.code in (2, 4), refused.out
        assert says in refused.err


def test_functions_may_propose_by_where_they_are(start: waypoint.Checkpoint) -> None:
    seen: list[Place] = []

    def propose(place: Place) -> list[str]:
        seen.append(place)
        return [f"echo {len(place.path) + 1} > n"] if len(place.path) < 2 else []

    found = explore(start, propose, "cat n >&3", strategy="best-first", name="path")
    assert [place.path for place in seen] == [(), ("echo 1 > n",), ("echo 1 > n", "echo 2 > n")]
    assert [node.score for node in found.nodes] == [1.0, 2.0]
