"""Traces: what a session has done is run again and compared, and handed to another person as one file."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import waypoint
from waypoint import BadTrace, BaseChanged
from waypoint.home import Home


@pytest.fixture
def work(fresh: waypoint.Session) -> waypoint.Session:
    return fresh


@pytest.fixture
def alone(home: Home) -> Iterator[waypoint.Session]:
    """A session without a network and without a past."""
    with waypoint.session(temporary=True, net="none") as session:
        yield session


def names() -> set[str]:
    return {session.name for session in waypoint.sessions()}


def test_what_was_done_comes_about_again_with_its_shell_files_and_programs(work: waypoint.Session) -> None:
    work.run("mkdir -p /srv/app && cd /srv/app && export LEVEL=3 && greet() { echo hello $1; }").check()
    start = work.checkpoint("prepared")
    before = names()
    work.run("greet $LEVEL; date; echo $$ >/tmp/pid; echo pid $$")
    work.run("cat missing")
    work.run("sleep 60", timeout=0.5)
    work.run("pwd; echo $COLOUR > colour", cwd="/srv", env={"COLOUR": "red"})
    program = work.spawn(["sh", "-c", "echo $SIZE; ls $PWD; exit 4"], cwd="/srv/app", env={"SIZE": "big"})
    program.communicate()
    work.checkpoint("half way", name="half", verify="test -f /srv/colour && ! test -f /srv/late", wait=True)
    work.run(
        "date +%N >/var/log/when; date >/srv/app/now; ln -s now link; mkdir -m 700 inner; rm /srv/colour"
    )
    steps: list[dict[str, object]] = []
    replay = work.replay(start=start, on_step=steps.append)
    assert replay.same, str(replay)
    assert [(one["kind"], one["state"]) for one in replay.steps] == [
        *[("command", "same")] * 5, ("point", "same"), ("command", "same"), ("point", "same"),
    ]  # fmt: skip
    assert [one["text"] for one in steps] == [one["text"] for one in replay.steps]
    assert names() == before, "the session of the replay is gone"
    assert work.run("cat /srv/app/now").ok, "and this one is as it was"
    assert work.replay(start="base", ref="half").same, "from where it began, in a new session"


def test_a_replay_says_where_it_first_differs_and_in_what(work: waypoint.Session) -> None:
    work.run("echo 1 >/srv/n").check()
    start = work.checkpoint()
    work.run("cat /srv/n")
    work.write_file("/srv/n", "7\n")  # by other means than a command
    work.run("cat /srv/n; test $(cat /srv/n) = 7")
    work.run("od -An -N8 -tx8 /dev/urandom >/srv/random")
    work.checkpoint(name="end", verify="grep -q 7 /srv/n", wait=True)
    work.run("sleep 2; false")

    replay = work.replay(start=start)
    assert not replay
    assert replay.first is not None
    assert replay.first["number"] == 2
    assert replay.first["differences"] == [
        {"what": "exit status", "expected": "0", "actual": "1", "where": ""},
        {"what": "output", "expected": "7", "actual": "1", "where": ""},
    ]
    assert replay.data["left"] == 4
    assert "different, first at step 2 of 6" in str(replay)

    everything = work.replay(start=start, all=True, timeout=1, keep=True)
    point, slow, _ = everything.steps[3:]
    assert {(one["what"], one["where"]) for one in point["differences"]} == {
        ("files", "/srv/n"), ("files", "/srv/random"), ("verdict", "grep -q 7 /srv/n"),
    }  # fmt: skip
    assert slow["differences"][0]["what"] == "time limit"
    assert everything.kept is not None
    kept = waypoint.Client().session(everything.kept)
    assert kept.read_text("/srv/n") == "1\n"
    kept.remove()


def test_what_acts_outside_or_has_an_input_is_not_run_and_that_is_said(alone: waypoint.Session) -> None:
    start = alone.checkpoint()
    alone.set_policy('[decisions]\nirreversible = "record"\nunknown = "record"\n')
    alone.run("curl -m 1 -X POST https://example.com/orders -d x")
    alone.run("cat >/srv/in", stdin="typed\n")
    alone.run("echo done")
    replay = alone.replay(start=start)
    assert [(one["state"], bool(one["remark"])) for one in replay.steps[:3]] == [
        ("not run", True), ("not run", True), ("same", False),
    ]  # fmt: skip
    assert "it may act outside" in replay.steps[0]["remark"]
    assert "input" in replay.steps[1]["remark"]
    assert "2 commands not run" in str(replay)
    allowed = alone.replay(start=start, outside=True)
    assert allowed.steps[0]["state"] == "same", "there is no netalone in either of them"


def test_a_trace_is_checked_where_its_points_are_not(work: waypoint.Session, tmp_path: Path) -> None:
    file = tmp_path / "work.trace"
    work.run("mkdir /srv/app && cd /srv/app && export LEVEL=3 && echo base >kept && rm -f /etc/motd").check()
    start = work.checkpoint(name="prepared")
    work.run("cat kept; echo $LEVEL >level; ls /etc/motd")
    work.checkpoint(name="done", verify="grep -q 3 /srv/app/level", wait=True)
    trace = work.export_trace(file, start=start)
    client = waypoint.Client()
    here = client.replay(file)
    assert here.same, str(here)
    assert here.data["start"].startswith("a fork of prepared")
    assert here.data["trace"] == trace
    work.remove()

    elsewhere = client.replay(file)
    assert elsewhere.same, str(elsewhere)
    assert elsewhere.data["start"] == "a new session over /, with the files of prepared"

    whole = file.read_bytes()
    other = tmp_path / "other.trace"
    for content, reason in [
        (whole[: whole.rindex(b"  steps.jsonl")], "cut_off"),
        (whole[: len(whole) // 2], "cut_off"),
        (whole.replace(b"echo $LEVEL >level", b"echo $LEVEL >LEVEL"), "altered"),
        (b"no trace at all" * 100, "no_trace"),
    ]:
        other.write_bytes(content)
        with pytest.raises(BadTrace) as caught:
            client.replay(other)
        assert caught.value.details["reason"] == reason
        assert caught.value.hint
    with pytest.raises(waypoint.NotFound):
        client.replay(tmp_path / "missing")


def test_a_trace_of_another_base_is_refused_and_may_be_run_over_a_named_one(
    alone: waypoint.Session, tmp_path: Path
) -> None:
    file, other = tmp_path / "a.trace", tmp_path / "b.trace"
    alone.run("echo same")
    alone.export_trace(file)
    with tarfile.open(file) as old, tarfile.open(other, "w") as new:
        members = {info.name: old.extractfile(info).read() for info in old}  # type: ignore[union-attr]
        head = json.loads(members["trace.json"])
        head["base"]["digest"], head["base"]["system"] = "sha256:other", "Some Linux 1"
        members["trace.json"] = json.dumps(head).encode()
        members["SHA256SUMS"] = "".join(
            f"{hashlib.sha256(content).hexdigest()}  {name}\n"
            for name, content in members.items()
            if name != "SHA256SUMS"
        ).encode()
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            new.addfile(info, io.BytesIO(content))
    client = waypoint.Client()
    with pytest.raises(BaseChanged, match="Some Linux 1") as caught:
        client.replay(other)
    assert "base" in caught.value.hint
    assert client.replay(other, base="/").same


def test_replay_and_export_trace_are_verbs_of_the_command_line(
    alone: waypoint.Session, wp: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "x.trace"
    alone.run("echo one")
    alone.run("od -An -N8 -tx8 /dev/urandom")
    assert wp("export", "-s", alone.name, "--trace", "-o", str(file)).code == 0
    done = wp("replay", str(file))
    assert done.code == 1
    assert "different, first at step 2 of 3" in done.out
    answer = wp("--json", "replay", alone.name).json
    assert (answer["same"], [step["state"] for step in answer["steps"]]) == (False, ["same", "different"])
    assert "no trace" in wp("replay", "/etc/hostname").err
    assert "there is no file" in wp("replay", "./missing").err


def test_a_trace_from_a_file_never_runs_outside_of_the_walls_of_a_box(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "open.trace"
    with waypoint.session(temporary=True, net="host", confined=False) as session:
        start = session.checkpoint()
        session.run("echo one")
        session.export_trace(file, start=start)
        replay = waypoint.Client().replay(file, keep=True)
        assert replay.same, str(replay)
        assert replay.data["start"].startswith("a new session over /")
        kept = waypoint.Client().session(str(replay.kept))
        assert (kept.info.options.confined, kept.info.options.net) == (True, "nat")
        kept.remove()
