"""Programs that were written for StateFork: its managers over sessions, and the command that it drives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import waypoint
from waypoint.adapters import statefork_command
from waypoint.adapters.statefork import (
    DEFAULT_BRANCH_ID,
    ForkableEnvironmentManager,
    WaypointAttachManager,
    create_env_manager,
)
from waypoint.home import Home

PLACE = "/srv/search"


@pytest.fixture
def manager(home: Home) -> Iterator[WaypointAttachManager]:
    made = create_env_manager("waypoint_build", dockerfile_dir="/", build=False, net="none")
    assert isinstance(made, WaypointAttachManager)
    yield made
    assert made.cleanup()
    assert not [one for one in waypoint.sessions() if one.name.startswith(made.session_id)]


def run(manager: WaypointAttachManager, command: str, branch: str | None = None) -> list[str]:
    code, output, problem = (
        manager.exec_command(command) if branch is None else manager.exec_on_branch(branch, command)
    )
    assert (code, problem) == (0, "")
    return output.split()


def test_a_search_forks_scores_seals_parks_goes_back_and_revives(
    manager: WaypointAttachManager, tmp_path: Path
) -> None:
    assert isinstance(manager, ForkableEnvironmentManager)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "with a space").write_text("kept\n")
    run(manager, f"mkdir {PLACE}; cd {PLACE}; echo 0 >state; export TOKEN=warm; helper() {{ echo helped; }}")
    run(manager, "sleep 86400 >/dev/null 2>&1 & export JOB=$!")
    assert manager.copy_in(str(notes), f"{PLACE}/notes")
    prepared = manager.snapshot()
    assert prepared
    warm = run(manager, "echo $PWD $TOKEN; helper; kill -0 $JOB && echo alive")
    assert warm == [PLACE, "warm", "helped", "alive"]

    names = ["fails", "near", "far"]
    assert [branch.id for branch in manager.fork(prepared, ids=names)] == names
    moves = [f"helper && kill -0 $JOB && echo {n} >state && export LAST={n}" for n in (7, 3)]
    with ThreadPoolExecutor(3) as threads:
        codes = [one[0] for one in threads.map(manager.exec_on_branch, names, ["false", *moves])]
    assert codes == [1, 0, 0]
    assert run(manager, "cat state; echo $LAST", "near") == ["7", "7"]
    assert run(manager, "cat state; echo $LAST", "far") == ["3", "3"]

    winner = manager.snapshot_branch("near")
    parked = manager.park_branch("far")
    assert winner
    assert parked
    assert manager.discard_branch("fails")
    assert {branch.id for branch in manager.list_branches()} == {DEFAULT_BRANCH_ID, "near"}
    assert {manager.snapshot_graph[one].parent_id for one in (winner, parked)} == {prepared}

    assert manager.fork(winner, ids=["fails"])[0].base_snapshot_id == winner, "an id can be used again"
    assert run(manager, "cat state", "fails") == ["7"]
    assert run(manager, "cat state") == ["0"], "main is as it was"
    assert manager.restore(prepared)
    assert run(manager, "echo $TOKEN; cat state") == ["warm", "0"]
    run(manager, "echo 5 >state")
    other = manager.snapshot()
    assert other
    assert manager.snapshot_graph[other].parent_id == prepared
    assert manager.fork(parked, ids=["revived"])
    assert run(manager, "cat state; echo $LAST", "revived") == ["3", "3"]

    assert manager.copy_out_branch("near", PLACE, str(tmp_path / "final"))
    assert (tmp_path / "final" / "state").read_text() == "7\n"
    assert (tmp_path / "final" / "notes" / "with a space").read_text() == "kept\n"
    assert not manager.copy_out_branch("near", f"{PLACE}/missing", str(tmp_path / "x"))
    assert manager.exec_on_branch("near", "sleep 60", timeout=0.5)[0] == -2
    assert run(manager, "echo usable", "near") == ["usable"]
    code, output, _ = manager.exec_on_branch("near", "git push git@example.com:x/y.git main")
    assert (code, "approval" in output or "policy" in output) == (126, True)
    assert manager.stats.get_all_statistics().size["SNAPSHOTS"].count == 5

    again = WaypointAttachManager(manager.session_id)
    assert {branch.id for branch in again.live_branches} == {branch.id for branch in manager.list_branches()}
    assert again.snapshot_graph[winner].parent_id == prepared
    assert again.current_snapshot not in manager.snapshots
    assert manager.sync_snapshot_tree() == 1


def test_a_dockerfile_is_carried_out_once_while_its_folder_is_the_same(
    home: Home, make_root: Callable[[Path], None], tmp_path: Path
) -> None:
    make_root(tmp_path / "root")
    bases = waypoint.Client().bases
    before = {base.name for base in bases.list()}
    bases.import_("tiny", tmp_path / "root")
    context = tmp_path / "context"
    context.mkdir()
    (context / "hello").write_text("hi\n")
    (context / "Dockerfile").write_text("FROM tiny\nENV LEVEL=5\nWORKDIR /app\nCOPY hello .\n")
    for made in (2, 2, 3):
        if made == 3:
            (context / "hello").write_text("changed\n")
        manager = create_env_manager("waypoint_build", dockerfile_dir=str(context), net="none")
        expected = f"/app 5 {(context / 'hello').read_text()}"
        assert manager.exec_command("echo $PWD $LEVEL $(cat hello)") == (0, expected, "")
        assert manager.cleanup()
        assert len({base.name for base in bases.list()} - before) == made
    for session in waypoint.sessions():  # of the builder
        session.remove()
    for name in {base.name for base in bases.list()} - before:
        bases.remove(name)


def test_the_command_has_the_verbs_and_the_output_that_statefork_reads(
    home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def waypoint_command(*words: str, exit_code: int = 0) -> str:
        assert statefork_command.main(words) == exit_code
        return capsys.readouterr().out

    assert "fork <session>" in waypoint_command(exit_code=1)
    session, folder = waypoint_command("init", "/", "--shell", "--quiet").strip().split(",")
    assert not Path(folder).exists()
    waypoint_command("exec", session, "main", "--", "cd /srv && export X=one")
    assert waypoint_command("checkpoint", session, "c1234567").startswith("Checkpoint 'c1234567' created")
    assert "there is a checkpoint 'c1234567' already" in waypoint_command(
        "checkpoint", session, "c1234567", exit_code=1
    )
    line = waypoint_command("fork", session, "c1234567", "--id", "left").split()
    assert line[0] == "left"
    fields = dict(field.split("=", 1) for field in line[1:])
    assert {*fields} == {"pid", "socket", "duration"}
    assert Path(f"/proc/{fields['pid']}").exists()
    assert (
        waypoint_command(
            "exec", session, "left", "--", "echo $X $PWD; exit_with() { return 7; }; exit_with", exit_code=7
        )
        == "one /srv\n"
    )
    assert "one argument" in waypoint_command("exec", session, "left", "--", "cat", "a b", exit_code=1)

    (tmp_path / "file").write_text("in\n")
    waypoint_command("cp", session, str(tmp_path / "file"), "left:/srv/file")
    assert waypoint_command("exec", session, "left", "--", "cat file; echo out >file") == "in\n"
    waypoint_command("cp", session, "left:/srv/file", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "out\n"
    assert "exactly one path" in waypoint_command("cp", session, "/a", "/b", exit_code=1)
    assert waypoint_command("snapshot", session, "left", "sealed", "--park") == (
        "Fork 'left' parked as checkpoint 'sealed'\n"
    )

    listing = json.loads(waypoint_command("list", session, "--json"))
    assert [(one["id"], one.get("parent_id")) for one in listing["checkpoints"]] == [
        ("c1234567", None), ("sealed", "c1234567"),
    ]  # fmt: skip
    assert [(one["id"], one["base_checkpoint_id"], one["status"]) for one in listing["forks"]] == [
        ("main", "c1234567", "running")
    ]
    assert "sealed parent=c1234567" in waypoint_command("list", session)
    assert json.loads(waypoint_command("info", session, "sealed"))["created_from_fork_id"] == "left"
    assert "there is no live fork 'left'" in waypoint_command("destroy", session, "left", exit_code=1)

    # As versions before 0.7 had it: one environment, and no names of forks.
    waypoint_command("exec", session, "export X=two")
    waypoint_command("create", session, "older", "-2")
    waypoint_command("restore", session, "sealed")
    assert waypoint_command("exec", session, "echo", "$X;", "cat", "file") == "one\nout\n"
    waypoint_command("cleanup", session)
    assert "there is no session" in waypoint_command("list", session, exit_code=1)
    assert waypoint_command("nonsense", exit_code=1) == "Unknown command: nonsense\n"
