"""A session from its start to its end: the tour of the README, through the SDK."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import waypoint
from waypoint import errors
from waypoint.box.box import keepers
from waypoint.home import Home


def test_a_restore_brings_back_files_server_variable_folder_and_jobs(session: waypoint.Session) -> None:
    session.run("cd /tmp && mkdir w && cd w && export TOKEN=abc && echo one > note").check()
    session.run("python3 -m http.server 8000 >/tmp/w/log 2>&1 &").check()
    session.run("until curl -s localhost:8000/note; do :; done", timeout=20).check()
    point = session.checkpoint("server up", name="up")

    session.run("kill %1; wait; cd /; unset TOKEN; rm -rf /tmp/w /usr/share/doc; hash -r").check()
    assert os.path.isdir("/usr/share/doc"), "only its own layer may change"
    assert session.run("ls -d /usr/share/doc").exit_code == 2

    session.restore(point)
    assert session.run("echo $TOKEN; pwd; ls -d /usr/share/doc").output == "abc\n/tmp/w\n/usr/share/doc\n"
    assert session.run("curl -s localhost:8000/note").output == "one\n"
    assert "http.server" in session.run("jobs").output


def test_forks_live_side_by_side_each_with_its_own_port(session: waypoint.Session) -> None:
    session.run("cd /tmp; python3 -m http.server 8000 >/dev/null 2>&1 &")
    session.run("until curl -s localhost:8000 >/dev/null; do :; done", timeout=20).check()
    point = session.checkpoint("server up")
    forks = point.fork(3, name="try")
    assert [fork.name for fork in forks] == ["try-1", "try-2", "try-3"]
    for number, fork in enumerate(forks):
        fork.run(f"echo {number} > /tmp/which").check()
    for number, fork in enumerate(forks):
        assert fork.run("curl -s localhost:8000/which").output == f"{number}\n"
    assert session.run("cat /tmp/which").exit_code == 1


def test_a_fork_of_a_fork_continues_where_it_was(session: waypoint.Session) -> None:
    session.run("depth=0")
    current = session
    for depth in range(1, 4):
        current = current.checkpoint().fork(name=f"deep{depth}")[0]
        current.run("depth=$((depth + 1))")
    assert current.run("echo $depth").output == "3\n"
    assert session.run("echo $depth").output == "0\n"


def test_undo_takes_a_restore_back(session: waypoint.Session) -> None:
    point = session.checkpoint("before")
    session.run("echo work > /tmp/precious; x=1")
    session.restore(point)
    assert session.run("ls /tmp/precious").exit_code == 2
    session.undo()
    assert session.run("cat /tmp/precious; echo $x").output == "work\n1\n"
    with pytest.raises(errors.NotFound):
        session.undo()


def test_a_parked_session_comes_back(session: waypoint.Session) -> None:
    session.run("x=7; sleep 1000 &")
    session.park()
    assert session.info.state == "parked"
    with pytest.raises(errors.SessionDead, match="parked"):
        session.run("true")
    session.restore("@")
    assert session.run("echo $x; jobs -r | wc -l").output == "7\n1\n"


def test_names_are_checked_and_errors_list_what_exists(
    session: waypoint.Session, sessions: Callable[..., waypoint.Session]
) -> None:
    session.checkpoint(name="up")
    with pytest.raises(errors.AlreadyExists, match="up"):
        session.checkpoint(name="up")
    with pytest.raises(errors.NotFound) as unknown:
        session.restore("down")
    assert "c1 (up)" in unknown.value.hint
    for bad in ("", "-x", "a b", "c1", "good", "x" * 65):
        with pytest.raises(errors.InvalidName):
            session.checkpoint(name=bad)
    with pytest.raises(errors.InvalidName):
        sessions("no/slash")
    with pytest.raises(errors.NotFound) as lost:
        waypoint.Client().call("exec", {"session": "nobody", "command": "true"})
    assert "there are: t" in lost.value.hint


def test_a_refused_checkpoint_leaves_the_session_untouched(session: waypoint.Session) -> None:
    before = len(session.checkpoints())
    with pytest.raises(errors.InvalidName):
        session.checkpoint(name="c7")
    assert len(session.checkpoints()) == before
    assert session.run("echo alive").output == "alive\n"


def test_a_checkpoint_can_be_taken_while_a_command_runs(session: waypoint.Session) -> None:
    import threading

    results: list[waypoint.Result] = []
    runner = threading.Thread(target=lambda: results.append(session.run("sleep 1; echo slept")))
    runner.start()
    while session.info.foreground is None:
        pass
    point = session.checkpoint("in the middle")
    runner.join()
    assert results[0].output == "slept\n"
    fork = point.fork(name="middle")[0]
    # The copy was saved in the middle of the command: it finishes it, and is at its prompt after that.
    while fork.info.foreground is not None:
        pass
    assert fork.run("echo free").output == "free\n"
    assert "slept" in fork.screen()


def test_files_only_brings_back_files_with_a_fresh_shell(session: waypoint.Session) -> None:
    session.run("echo 1 > /tmp/f; x=1")
    point = session.checkpoint(files_only=True)
    assert point.info.files_only
    assert point.info.pause_ms == 0
    session.run("echo 2 > /tmp/f")
    session.restore(point)
    assert session.run("cat /tmp/f; echo [$x]").output == "1\n[]\n"


def together(*verbs: tuple[str, dict[str, Any]]) -> list[str]:
    """Asks for all of these at once, each over a connection of its own; what went wrong, if anything."""

    def ask(verb: str, args: dict[str, Any]) -> str:
        client = waypoint.Client()
        try:
            client.call(verb, args)
        except errors.WaypointError as error:
            return error.code
        finally:
            client.close()
        return "ok"

    with ThreadPoolExecutor(len(verbs)) as threads:
        return list(threads.map(lambda one: ask(*one), verbs))


@pytest.mark.parametrize("parked", [False, True])
@pytest.mark.parametrize("safety", [False, True])
def test_restores_at_the_same_time_come_one_after_the_other(
    session: waypoint.Session, home: Home, *, parked: bool, safety: bool
) -> None:
    session.run("LETTER=q").check()
    point = session.checkpoint("here")
    if parked:
        session.park()
    back = ("restore", {"session": "t", "ref": point.id, "safety": safety})
    assert together(back, back, back) == ["ok"] * 3
    assert session.run("echo $LETTER").output == "q\n"
    waypoint.Client().call("rm", {"sessions": ["t"]})
    assert not keepers(home), "a box is left that belongs to no session"


def test_a_session_that_is_removed_while_it_moves_is_gone(session: waypoint.Session, home: Home) -> None:
    point = session.checkpoint("here")
    back = ("restore", {"session": "t", "ref": point.id})
    together(back, ("rm", {"sessions": ["t"]}), back)
    assert waypoint.sessions() == []
    assert not keepers(home), "a box is left that belongs to no session"
    assert not list(home.sessions.iterdir())


def test_points_and_restores_at_the_same_time_all_come_true(session: waypoint.Session) -> None:
    point = session.checkpoint("here")
    back = ("restore", {"session": "t", "ref": point.id, "safety": False})
    here: tuple[str, dict[str, Any]] = ("checkpoint", {"session": "t"})
    assert together(back, here, here, back, here) == ["ok"] * 5
    assert len(session.log()) == 4
