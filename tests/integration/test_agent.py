"""What an agent did, knows and has still to do: kept in order, and moved with the machine."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

import waypoint
from waypoint import errors, model
from waypoint.api import requests
from waypoint.client import migrations
from waypoint.history.redaction import MASK
from waypoint.home import Home
from waypoint.terminal.screen import Screen

REPOSITORY = Path(__file__).parents[2]


def short(events: list[model.Event]) -> list[str]:
    """A trajectory in a few words each; what only the terminal showed is left out."""
    told = []
    for event in events:
        body = event.body
        match event.kind:
            case "command":
                told.append(f"$ {body['command']}")
            case "message":
                told.append(f"{body['role']}: {body['content']}")
            case "task":
                told.append(f"{body['title']}: {body['state']}")
            case "output":
                if body.get("output"):
                    told.append(f"printed {body['output']!r}")
            case _:
                told.append(event.kind)
    return told


def own(session: waypoint.Session) -> list[str]:
    """What happened since it was forked from the seed."""
    told = short(session.trace())
    return told[told.index("forked") + 1 :]


# ---- together, or not at all ---------------------------------------------------------------------


def test_a_restore_takes_conversation_tasks_and_state_back_with_the_machine(fresh: waypoint.Session) -> None:
    s = fresh
    s.record("user", "write one")
    s.tasks.add("write one", "write two")
    s.run("echo one > /srv/note; step=1").check()
    s.tasks.done("write one")
    point = s.checkpoint("one", agent_state={"step": 2**70, "plan": ["é\udcff"]}, agent_version="1")
    s.record("assistant", "on to two")
    s.run("echo two > /srv/note; step=2").check()
    s.tasks.done("write two", "it was easy")
    before = own(s)
    assert "agent state (json, version 1)" in str(point.card())

    back = s.restore(point)
    assert s.run("cat /srv/note; echo $step").output == "one\n1\n"
    assert back.agent_state() == {"step": 2**70, "plan": ["é\udcff"]}
    assert back.messages() == s.messages() == [{"role": "user", "content": "write one"}]
    assert [task.state for task in s.tasks] == ["completed", "pending"]
    assert own(s)[-3:] == ["checkpoint", "restored", "$ cat /srv/note; echo $step"]

    # What was abandoned stays readable: on the way to the safety checkpoint, and in everything.
    assert back.safety
    left = short(s.trace(back.safety.id))
    assert left[left.index("forked") + 1 :] == [*before, "checkpoint"]
    everything = short(s.trace(everything=True))
    assert "assistant: on to two" in everything
    assert "restored" in everything
    assert [task.state for task in s.tasks.list(back.safety.id)] == ["completed", "completed"]

    # And undo takes it all forward again.
    forward = s.undo()
    assert s.run("cat /srv/note; echo $step").output == "two\n2\n"
    assert [one["content"] for one in forward.messages()] == ["write one", "on to two"]
    assert [(task.state, task.note) for task in s.tasks][1] == ("completed", "it was easy")


def _state(s: waypoint.Session) -> tuple[str, ...]:
    """Where a session is: by its files, its shell, its conversation, its tasks."""
    shell = s.run("cat /srv/where; echo $where").check().output.split()
    said = [one["content"] for one in s.messages()]
    return (*shell, said[-1], next(iter(s.tasks)).state)


def test_a_daemon_that_dies_in_a_restore_leaves_all_of_it_or_none(fresh: waypoint.Session) -> None:
    chance = random.Random(7)
    s = fresh
    s.tasks.add("go there")
    s.record("user", "here")
    s.run("echo here > /srv/where; where=here").check()
    here = s.checkpoint("here")
    s.record("user", "there")
    s.run("echo there > /srv/where; where=there").check()
    s.tasks.done("go there")
    there = s.checkpoint("there")
    places = {"here": (here, "pending"), "there": (there, "completed")}
    now = "there"
    for _ in range(3):
        other = "here" if now == "there" else "there"
        daemon = waypoint.Client().call("ping")["pid"]

        def go(point: waypoint.Checkpoint = places[other][0]) -> None:
            with contextlib.suppress(errors.DaemonError, errors.SessionError):
                waypoint.Session(waypoint.Client(), "t").restore(point)

        going = threading.Thread(target=go)
        going.start()
        time.sleep(chance.random() * 0.25)
        os.kill(daemon, signal.SIGKILL)
        until(lambda daemon=daemon: not Path(f"/proc/{daemon}").exists())  # type: ignore[misc]
        going.join()
        found = _state(waypoint.Session(waypoint.Client(), "t"))
        assert found in [(place, place, place, state) for place, (_, state) in places.items()]
        now = found[0]


def test_a_fork_goes_on_with_what_its_origin_knew(fresh: waypoint.Session) -> None:
    fresh.record("user", "try both")
    fresh.record("tool_call", {"query": "stripe"}, name="search", call="7")
    fresh.record("tool_result", [{"type": "text", "text": "found"}], name="search", call="7")
    fresh.tasks.add("choose")
    point = fresh.checkpoint("a choice", agent_state=b"\x00\xff pickled", agent_version="3")
    fresh.record("assistant", "not for forks")
    a, b = point.fork(2, name="try")
    a.record("assistant", "this way")
    a.tasks.done("choose")
    assert [one.get("content") for one in a.messages()][-1] == "this way"
    assert [one["kind"] for one in b.messages() if "kind" in one] == ["tool_call", "tool_result"]
    assert b.messages()[1] == {
        "kind": "tool_call",
        "name": "search",
        "call": "7",
        "arguments": {"query": "stripe"},
    }
    assert a.agent_state() == b.agent_state() == b"\x00\xff pickled"
    assert [next(iter(one.tasks)).state for one in (a, b, fresh)] == ["completed", "pending", "pending"]
    # A fork's trajectory outlives the session it grew from.
    fresh.remove()
    assert [one["role"] for one in b.messages() if "role" in one] == ["user"]
    assert b.trace()[-1].kind == "forked"


def test_state_of_an_old_version_reaches_new_code_or_nothing_is_touched(
    fresh: waypoint.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "_known", {})

    @waypoint.migration("1", "2")
    def _rename(state: dict[str, Any]) -> dict[str, Any]:
        return {"steps": [state["step"]]}

    @waypoint.migration("2", "3")
    def _count(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "count": len(state["steps"])}

    point = fresh.checkpoint("old", agent_state={"step": 7}, agent_version="1")
    fresh.run("echo since > /srv/since").check()
    tip = fresh.trace()[-1].id
    with pytest.raises(errors.NoMigration, match="no migration leads to '4'"):
        fresh.restore(point, agent_version="4")
    with pytest.raises(errors.NoMigration):
        point.fork(agent_version="4")
    with pytest.raises(errors.NoMigration):
        fresh.resume(agent_version="4")
    assert fresh.run("cat /srv/since").output == "since\n"
    assert [event.kind for event in fresh.trace() if event.id > tip] == ["command"]
    assert len(fresh.checkpoints()) == 1

    assert fresh.restore(point, agent_version="3").agent_state() == {"steps": [7], "count": 1}
    assert point.agent_state() == {"step": 7}
    assert fresh.resume(agent_version="2").agent_state() == {"steps": [7]}


@pytest.mark.parametrize(
    "state", [object(), {"deep": [float]}, [float("nan")]], ids=["object", "deep", "nan"]
)
def test_state_that_cannot_be_kept_is_refused_before_a_point_is_taken(
    fresh: waypoint.Session, state: Any
) -> None:
    with pytest.raises(errors.UsageError, match="neither bytes nor JSON"):
        fresh.checkpoint("never", agent_state=state)
    assert fresh.checkpoints() == []


@pytest.mark.parametrize(
    ("what", "content"),
    [("user", ""), ("user", None), ("nobody", "x"), ("tool_call", {"a": 1}), ("user", object())],
)
def test_what_cannot_be_recorded_is_refused(fresh: waypoint.Session, what: str, content: Any) -> None:
    with pytest.raises(errors.UsageError):
        fresh.record(what, content)
    assert fresh.messages() == []


# ---- what happened -------------------------------------------------------------------------------


def last(session: waypoint.Session, kind: model.EventKind) -> dict[str, Any]:
    return session.trace(kinds=[kind])[-1].body


def test_commands_are_recorded_with_what_they_did(fresh: waypoint.Session) -> None:
    fresh.actor = "agent"
    fresh.run("cd /srv; echo hello; (exit 3)")
    [event] = fresh.trace(kinds=["command"])
    body = event.body
    assert (body["command"], body["exit_code"], body["output"]) == (
        "cd /srv; echo hello; (exit 3)",
        3,
        "hello\n",
    )
    assert event.actor == "agent"
    assert body["duration_ms"] >= 0
    fresh.run("sleep 60", timeout=0.2)
    assert last(fresh, "command")["cwd"] == "/srv"
    assert last(fresh, "command")["timed_out"] is True
    fresh.run("seq 20000")
    assert last(fresh, "command")["output"] == "".join(f"{n}\n" for n in range(1, 20001))
    assert fresh.spawn(["sh", "-c", "echo out; echo err >&2; exit 4"]).communicate() == (b"out\n", b"err\n")
    until(lambda: last(fresh, "command").get("beside"))
    body = last(fresh, "command")
    assert (body["exit_code"], sorted(body["output"].split())) == (4, ["err", "out"])


def test_what_people_type_is_recorded_too(fresh: waypoint.Session) -> None:
    def typed(keys: str, command: str | None) -> model.Event:
        seen = len(fresh.trace(kinds=["command"]))
        fresh.type(keys)
        until(lambda: len(fresh.trace(kinds=["command"])) > seen)
        event = fresh.trace(kinds=["command"])[-1]
        assert event.body["command"] == command
        assert event.body["typed"] is True
        return event

    assert typed("echo ab\x7fc; false\r", "echo ac; false").body["output"] == "ac\n"
    typed("HISTCONTROL=ignoreboth\r", "HISTCONTROL=ignoreboth")
    typed("echo again;k=1\r", "echo again;k=1")
    typed("echo again;k=1\r", "echo again;k=1")
    # Kept out of the history on purpose: what it printed is on the record, what it was is not.
    assert typed(" echo hidden\r", None).body["output"] == "hidden\n"
    typed("for i in 1 2; do\recho $i\rdone\r", "for i in 1 2; do echo $i; done")


def test_what_is_printed_between_commands_is_kept(fresh: waypoint.Session) -> None:
    fresh.run("(sleep 0.3; echo from the background) &").check()
    body = until(lambda: [e.body for e in fresh.trace(kinds=["output"]) if e.body.get("output")])[-1]
    assert body["output"] == "from the background\n"
    # A program that draws on the screen is kept as it drew.
    fresh.type("vim -u NONE -N /srv/file\r")
    until(lambda: "/srv/file" in fresh.screen())
    fresh.type("ihello\x1b:wq\r")
    body = until(lambda: next((e.body for e in fresh.trace(kinds=["command"]) if e.body.get("raw")), None))
    assert body["command"] == "vim -u NONE -N /srv/file"
    assert "\x1b[?1049h" in body["output"]


def test_a_point_in_the_middle_of_a_command_has_what_it_printed_so_far(fresh: waypoint.Session) -> None:
    fresh.type("echo early; read line; echo late $line\r")
    until(lambda: "early\n" in fresh.screen() + "\n")
    point = fresh.checkpoint("in the middle")
    [during] = [event.body for event in point.trace(kinds=["output"]) if event.body.get("output")]
    assert during["output"] == "early\n"
    for word in ("one", "two"):
        fresh.type(f"{word}\r")
        until(lambda word=word: f"late {word}" in fresh.screen())  # type: ignore[misc]
        body = until(lambda: next(iter(e.body for e in fresh.trace(kinds=["command"])), None))
        assert body["command"] == "echo early; read line; echo late $line"
        assert body["output"].endswith(f"late {word}\n")
        fresh.restore(point)


def test_secrets_are_not_in_the_record(fresh: waypoint.Session, wp: Callable[..., Any]) -> None:
    secret = "hunter2-correct-horse"
    fresh.run(f"export DB_PASSWORD={secret}")
    fresh.run("echo $DB_PASSWORD; seq 3000; echo $DB_PASSWORD")
    fresh.record("assistant", f"the password is {secret}")
    fresh.tasks.add(f"use {secret}")
    fresh.type("echo $DB_PASSWORD\r")
    until(lambda: last(fresh, "command").get("typed"))
    shown = wp("trace", "-s", "t", "--jsonl", check=True).out
    assert secret not in shown
    assert MASK in shown
    assert secret not in wp("trace", "-s", "t", "--cast", "-", check=True).out
    assert secret not in str(fresh.resume())
    assert secret not in str(list(fresh.tasks))


def test_a_daemon_that_dies_loses_nothing_that_was_acknowledged(fresh: waypoint.Session) -> None:
    fresh.tasks.add("go on")
    fresh.type("sleep 0.5; echo over\r")
    until(lambda: fresh.info.foreground)
    number = fresh.record("user", "still there?")
    client = waypoint.Client()
    daemon = client.call("ping")["pid"]
    os.kill(daemon, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{daemon}").exists())
    client.close()
    assert number in [event.id for event in fresh.trace()]
    assert [task.title for task in fresh.tasks] == ["go on"]
    # It began under one daemon and ends under another.
    body = until(lambda: next((e.body for e in fresh.trace(kinds=["command"])), None))
    assert (body["command"], body["output"]) == ("sleep 0.5; echo over", "over\n")


# ---- exports -------------------------------------------------------------------------------------


def played(lines: list[str]) -> tuple[dict[str, Any], list[tuple[float, str, str]]]:
    """An asciicast, read as strictly as its format is published: version 3."""
    head = json.loads(lines[0])
    assert head["version"] == 3
    assert set(head) <= {
        *("version", "term", "timestamp", "idle_time_limit", "command", "title", "env", "tags"),
    }
    assert set(head["term"]) <= {"cols", "rows", "type", "version", "theme"}
    assert all(isinstance(head["term"][name], int) and head["term"][name] > 0 for name in ("cols", "rows"))
    assert isinstance(head["timestamp"], int)
    events = []
    for line in lines[1:]:
        if line.startswith("#") or not line:
            continue
        interval, code, data = json.loads(line)
        assert isinstance(interval, int | float)
        assert interval >= 0
        assert isinstance(data, str)
        assert code in ("o", "i", "m", "r", "x")
        assert code != "r" or re.fullmatch(r"\d+x\d+", data)
        events.append((float(interval), code, data))
    return head, events


def test_the_terminal_can_be_played_again(
    fresh: waypoint.Session, tmp_path: Path, wp: Callable[..., Any]
) -> None:
    client = waypoint.Client()
    connection, _ = client.open(requests.Attach(session="t", rows=30, columns=100))
    fresh.run("printf 'é\\n'; sleep 0.3; echo slow")
    fresh.checkpoint("first", name="first")
    fresh.type("echo typed\r")
    until(lambda: last(fresh, "command").get("typed"))
    fresh.restore("first")
    fresh.run("echo after")
    fresh.checkpoint("second")
    screen = fresh.screen()
    fresh.cast(tmp_path / "t.cast")
    head, events = played((tmp_path / "t.cast").read_text().splitlines())
    assert (head["term"]["cols"], head["term"]["rows"]) == (80, 24)
    assert [data for _, code, data in events if code == "r"] == ["100x30"]
    markers = [data for _, code, data in events if code == "m"]
    assert [one.split()[0] for one in markers[-3:]] == ["c1", "restored:", "c3"]
    assert any(interval >= 0.25 for interval, code, data in events if code == "o" and "slow" in data)
    assert _final_screen(events) == screen, "played, it ends with what the terminal shows"
    out = wp("trace", "-s", "t", "--cast", "-", check=True).out
    assert played(out.splitlines())[1] == events
    connection.close()
    # Another daemon goes on where this one stopped.
    client.call("daemon_stop")
    fresh.run("echo heard by another")
    fresh.checkpoint("third")
    fresh.cast(tmp_path / "t.cast")
    assert _final_screen(played((tmp_path / "t.cast").read_text().splitlines())[1]) == fresh.screen()


def _final_screen(events: list[tuple[float, str, str]]) -> str:
    shown = Screen(24, 80)
    for _, code, data in events:
        if code == "o":
            shown.feed(data.encode())
        elif code == "r":
            columns, rows = data.split("x")
            shown.resize(int(rows), int(columns))
    return shown.text()


# ---- the ways in ---------------------------------------------------------------------------------


def _by_sdk(s: waypoint.Session) -> None:
    s.record("user", "add payments")
    s.tasks.add("add payments", "wire webhook")
    s.tasks.add("write code", under="add payments")
    s.tasks.start("1.1")
    s.run("echo code > /srv/pay.py")
    s.record("tool_call", {"path": "pay.py"}, name="edit", call="1")
    s.record("tool_result", "ok", name="edit", call="1")
    s.tasks.done("1.1", "it runs", checkpoint=True)
    s.checkpoint("payments", name="pay", agent_state={"done": 1}, agent_version="1")
    s.tasks.skip("wire webhook", "later")
    s.restore("pay")
    s.tasks.fail("wire webhook", "no route")


def _by_cli(wp: Callable[..., Any]) -> None:
    def do(*words: str, stdin: str | None = None) -> None:
        wp(words[0], *words[1:2], "-s", "cli", *words[2:], stdin=stdin, check=True)

    def task(*words: str) -> None:
        wp("task", words[0], "-s", "cli", *words[1:], check=True)

    do("record", "user", "add payments")
    task("add", "add payments", "wire webhook")
    task("add", "write code", "--under", "add payments")
    task("start", "1.1")
    wp("exec", "-s", "cli", "echo code > /srv/pay.py", check=True)
    do("record", "tool_call", "--name", "edit", "--call", "1", '{"path": "pay.py"}')
    do("record", "tool_result", "--name", "edit", "--call", "1", stdin="ok\n")
    task("done", "1.1", "it runs", "--checkpoint")
    wp(
        *("checkpoint", "-s", "cli", "payments", "--name", "pay"),
        *("--agent-state", "-", "--agent-version", "1"),
        stdin='{"done": 1}',
        check=True,
    )
    task("skip", "wire webhook", "later")
    wp("restore", "-s", "cli", "pay", "--yes", check=True)
    task("fail", "2", "no", "route")


def _plain(session: waypoint.Session, *, everything: bool) -> list[dict[str, Any]]:
    """A trajectory without what differs from one telling to the next: times, ids, names."""
    found = []
    for event in session.trace(everything=everything):
        if event.session != session.name or event.kind == "output":
            continue
        body = {
            name: value
            for name, value in event.body.items()
            if name not in ("checkpoint", "before", "session", "duration_ms", "age_ms", "shown", "size")
        }
        found.append({"kind": event.kind, "actor": event.actor, "body": body})
    return found


def test_the_same_story_gives_the_same_history_by_sdk_and_by_command_line(
    home: Home, seed: waypoint.Checkpoint, wp: Callable[..., Any]
) -> None:
    [by_sdk], [by_cli] = seed.fork(name="sdk"), seed.fork(name="cli")
    _by_sdk(by_sdk)
    _by_cli(wp)
    for everything in (False, True):
        assert _plain(by_sdk, everything=everything) == _plain(by_cli, everything=everything)
    states = [(task.id, task.title, task.state, task.note) for task in by_sdk.tasks]
    assert states == [(task.id, task.title, task.state, task.note) for task in by_cli.tasks]
    assert by_sdk.agent_state() == by_cli.agent_state() == {"done": 1}
    assert json.loads(wp("agent-state", "-s", "cli", "pay", check=True).out) == {"done": 1}
    texts = [str(one.resume()).replace(one.name, "NAME") for one in (by_sdk, by_cli)]
    texts = [re.sub(r"taken \S+", "taken", text) for text in texts]
    texts = [
        re.sub(r"(ends at|\[end) \w+", r"\1 MARK", text) for text in texts
    ]  # the mark is made of the text
    assert texts[0] == texts[1]
    assert wp("resume", "-s", "cli", check=True).out == str(by_cli.resume())
    lines = wp("trace", "-s", "cli", "--jsonl", check=True).out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [event.id for event in by_cli.trace()]


def test_a_plan_says_what_becomes_of_tasks(fresh: waypoint.Session, wp: Callable[..., Any]) -> None:
    fresh.tasks.add("add payments", "wire webhook")
    point = fresh.checkpoint("planned")
    fresh.tasks.done("add payments")
    fresh.tasks.done("wire webhook")
    plan = fresh.preview(point)
    assert '2 completed → pending: "add payments", "wire webhook"' in str(plan)
    fresh.tasks.add("one more")
    with pytest.raises(errors.GroundMoved):
        fresh.restore(plan=plan)
    done = fresh.checkpoint("done")
    card = until(lambda: (found := done.card()).ready and found)
    assert "tasks done: add payments, wire webhook" in card.summary
    assert [mark["source"] for mark in card.marks if mark["topic"] == "tasks"] == ["claimed"]
    assert "task 9" not in wp("task", "done", "-s", "t", "9").out
    refused = wp("task", "done", "-s", "t", "9", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (4, "not_found")


# ---- going on ------------------------------------------------------------------------------------


def test_a_session_that_died_resumes_from_its_last_point(fresh: waypoint.Session) -> None:
    fresh.tasks.add("first", "second")
    fresh.run("echo first > /srv/work; x=1").check()
    done = fresh.tasks.done("first", checkpoint="first is done")
    fresh.checkpoint("with state", agent_state={"at": "first"})
    fresh.record("assistant", "half of the second")
    fresh.run("echo half >> /srv/work; x=2").check()
    os.kill(fresh.info.pid or 0, signal.SIGKILL)
    until(lambda: fresh.info.state == "dead")

    found = fresh.resume()
    assert found.info.restored
    assert found.task
    assert found.task.title == "second"
    assert found.agent_state() == {"at": "first"}
    assert fresh.run("cat /srv/work; echo $x").output == "first\n1\n"
    assert [event.kind for event in found.info.left_behind if event.kind != "output"] == [
        "message",
        "command",
    ]
    text = str(found)
    assert "half of the second" in text
    assert "It was lost when the session ended" in text
    assert f"✔ 1 first  [see {fresh.checkpoints()[0].info.label}]" in text
    assert next(task for task in fresh.tasks).checkpoint == done.checkpoint
    again = fresh.resume()
    assert not again.info.restored
    assert again.task == found.task


def test_a_session_without_a_point_that_died_says_so(home: Home, wp: Callable[..., Any]) -> None:
    s = waypoint.session("t")
    os.kill(s.info.pid or 0, signal.SIGKILL)
    until(lambda: s.info.state == "dead")
    with pytest.raises(errors.SessionDead, match="no point to go back to"):
        s.resume()


AGENT = """
import sys, waypoint
s = waypoint.session("t", actor="agent")
def acknowledged(*words):
    print(*words, flush=True)
titles = [f"step {n}" for n in range(8)]
s.tasks.plan(*titles)
while task := s.resume().task:
    if task.state == "pending":
        s.tasks.start(task)
        acknowledged("started", task.id)
    acknowledged("message", s.record("assistant", f"doing {task.title}"))
    n = task.title.split()[1]
    s.run(f"grep -qx {n} /srv/steps || echo {n} >> /srv/steps").check()
    if int(n) % 4 == 3:
        point = s.checkpoint(task.title, agent_state={"step": int(n)})
        acknowledged("point", point.id)
    s.tasks.done(task)
    acknowledged("done", task.id)
acknowledged("end")
"""


def _agent(home: Home) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Starts the agent again and again, until it has come to its end."""
    while True:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", AGENT], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        with process:
            words: list[str] = []
            yield process, words
            process.kill()
            assert process.stdout
            words += process.stdout.read().splitlines()
        if words[-1:] == ["end"]:
            return


def test_an_agent_that_is_killed_at_any_step_loses_nothing_acknowledged(
    home: Home, fresh: waypoint.Session
) -> None:
    chance = random.Random(4)
    fresh.run("touch /srv/steps").check()
    said: list[str] = []
    lives = 0
    for process, words in _agent(home):
        lives += 1
        assert process.stdout
        for _ in range(1000 if lives > 5 else chance.randint(1, 5)):
            line = process.stdout.readline()
            if not line:
                break
            words.append(line.strip())
        # Somewhere in the next step: between any two of its requests, or in the middle of one.
        time.sleep(chance.random() * 0.03)
        said += words
        states = {task.id: task.state for task in fresh.tasks}
        assert all(states[word.split()[1]] == "completed" for word in words if word.startswith("done"))
        assert lives < 30
    assert lives > 3, "it was never killed"
    assert fresh.run("cat /srv/steps").output.split() == [str(n) for n in range(8)]
    assert {task.state for task in fresh.tasks} == {"completed"}
    events = {event.id: event for event in fresh.trace()}
    for number in [int(word.split()[1]) for word in said if word.startswith("message")]:
        assert events[number].kind == "message"
    points = {event.body["checkpoint"] for event in events.values() if event.kind == "checkpoint"}
    assert {word.split()[1] for word in said if word.startswith("point")} <= points
    assert fresh.agent_state() == {"step": 7}
    assert len(fresh.tasks) == 8, "a plan that is said again is the same plan"
