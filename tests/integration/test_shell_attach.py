"""A person at a terminal: `waypoint shell`, and the verbs that ask before they act."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.person import DETACH, SECONDS, House, Person

import waypoint
from waypoint import errors

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(name="wp")
def house(wp: Callable[..., Any]) -> Iterator[House]:
    made = House(wp)
    yield made
    for person in made.people:
        person.close()


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as workers:
        yield workers


@pytest.fixture
def work(wp: House) -> str:
    """A session with a prompt that can be waited for."""
    name: str = json.loads(wp("--json", "new"))["session"]["name"]
    wp("exec", "-s", name, "PS1='ready> ' WAYPOINT_PROMPT=off")
    return name


def attached(wp: House, session: str, **size: int) -> Person:
    person = wp.person("shell", session, **size)
    person.sees("ready>")
    return person


def test_attaching_typing_detaching(wp: House, work: str) -> None:
    person = attached(wp, work)
    person.sees("C-] d detaches")
    person.type(b"echo sum-$((40+2))\r")
    person.sees("sum-42")
    assert "C-] d detaches" not in person.look()
    assert not person.terminal_is_as_before()
    person.type(DETACH)
    assert person.leaves() == 0
    assert f"[detached from {work}" in person.look()
    assert person.terminal_is_as_before()
    assert wp("exec", "-s", work, "echo alive") == "alive\n"


def test_the_banner_goes_by_itself_and_what_it_covered_comes_back(wp: House, work: str) -> None:
    wp("exec", "-s", work, "seq 100 140")
    person = attached(wp, work)
    person.sees(lambda text: text.splitlines()[0].endswith("C-] ? helps"))
    shown = person.sees(lambda text: "C-] d detaches" not in text)
    lines = shown.rstrip("\n").splitlines()
    assert lines[-2:] == ["140", "ready>"]
    assert lines[0] == str(140 - len(lines) + 2)


def test_output_does_not_take_a_notice_away(wp: House, work: str) -> None:
    person = attached(wp, work)
    person.type(b"while sleep 0.05; do echo again; done\r")
    person.sees("again")
    person.type(b"\x1dcbusy\r")
    person.sees('"busy", taken in')
    person.look(1.0)
    person.sees('"busy", taken in')
    person.sees(lambda text: "taken in" not in text)
    person.type(b"\x03")
    person.type(DETACH)
    assert person.leaves() == 0


def test_attaching_again_shows_what_is_there(wp: House, work: str) -> None:
    person = attached(wp, work)
    person.type(b"half a li")
    person.sees("half a li")
    person.type(DETACH)
    person.leaves()
    wp("exec", "-s", work, "echo from outside")
    again = attached(wp, work)
    shown = again.sees("from outside")
    assert "ready> half a li" in shown


def test_control_keys_are_the_sessions_own(wp: House, work: str) -> None:
    person = attached(wp, work)
    person.type(b"sleep 100\r")
    person.sees("sleep 100")
    person.type(b"\x03")
    person.sees("^C")
    person.type(b"cat -v\r")
    person.sees("cat -v")
    person.type(b"\x1d\x1d\x1dx\r")
    person.sees("^]^]x")
    person.type(b"\x04")
    # Not before it runs: a ^Z at the prompt throws away what was typed ahead.
    person.type(b"sh -c 'echo $((40 + 2)); exec sleep 50'\r")
    person.sees("42")
    person.type(b"\x1a")
    person.sees("Stopped")


def test_the_session_follows_the_size_of_the_window(wp: House, work: str) -> None:
    person = attached(wp, work, rows=30, columns=100)
    person.type(b"stty size\r")
    person.sees("30 100")
    person.resize(40, 120)
    person.process.send_signal(signal.SIGWINCH)
    person.type(b"stty size\r")
    person.sees("40 120")


@pytest.mark.skipif(shutil.which("vim") is None, reason="needs vim")
def test_a_full_screen_program(wp: House, work: str) -> None:
    person = attached(wp, work)
    person.type(b"echo before; cd /tmp; vim -u NONE poem.txt\r")
    person.sees(lambda shown: "poem.txt" in shown and "~\n~\n" in shown)
    person.type(b"iroses are red")
    person.sees("roses are red")
    again = wp.person("shell", work)
    again.sees("roses are red")
    assert "before" not in again.look()
    again.type(b"\x1b:wq\r")
    shown = again.sees(lambda shown: "before" in shown and "~\n~\n" not in shown)
    assert "roses" not in shown
    again.type(b"cat poem.txt\r")
    again.sees("roses are red")
    person.sees("cat poem.txt")


@pytest.mark.skipif(shutil.which("vim") is None, reason="needs vim")
def test_detaching_in_a_full_screen_program_leaves_the_terminal_clean(wp: House, work: str) -> None:
    person = attached(wp, work)
    person.type(b"vim -u NONE -c 'set mouse=a' /tmp/x\r")
    person.sees("~\n~\n")
    person.type(DETACH)
    assert person.leaves() == 0
    assert not person.screen.alternate
    assert person.terminal_is_as_before()
    assert "~\n~\n" not in person.look()
    wp.person("shell", work).sees("~\n~\n")


def test_several_see_the_same(wp: House, work: str) -> None:
    one, two = attached(wp, work), attached(wp, work)
    one.type(b"echo by-one-$((1+1))\r")
    two.sees("by-one-2")
    two.type(b"echo by-two-$((1+1))\r")
    one.sees("by-two-2")
    one.type(DETACH)
    assert one.leaves() == 0
    two.type(b"echo still-$((1+1))\r")
    two.sees("still-2")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(wp: House, work: str, number: signal.Signals) -> None:
    person = attached(wp, work)
    person.process.send_signal(number)
    assert person.leaves() == 128 + number
    assert person.terminal_is_as_before()


def test_the_daemon_may_die_and_nobody_notices(wp: House, work: str) -> None:
    person = attached(wp, work)
    pid: int = json.loads(wp("--json", "daemon", "status"))["pid"]
    os.kill(pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.01)
    person.type(b"echo still-$((40+2))\r")
    person.sees("still-42")
    assert json.loads(wp("--json", "daemon", "status"))["pid"] != pid
    person.type(DETACH)
    assert person.leaves() == 0


def test_who_is_attached_stays_attached_through_a_restore(wp: House, work: str) -> None:
    person = attached(wp, work)
    person.type(b"kept=before; clear; echo the good state\r")
    person.sees(lambda shown: shown.startswith("the good state"))
    wp("checkpoint", "-s", work, "--name", "good-state")
    person.type(b"kept=after; clear; echo a mess\r")
    person.sees(lambda shown: shown.startswith("a mess"))
    wp("restore", "-s", work, "good-state", "--yes")
    person.sees(lambda shown: shown.startswith("the good state") and "a mess" not in shown)
    person.type(b"echo [$kept]\r")
    person.sees("[before]")


def test_the_menu_takes_a_checkpoint_and_the_screen_is_as_before(wp: House, work: str) -> None:
    person = attached(wp, work)
    person.type(b"seq 100 120; printf half\r")
    before = person.sees(lambda shown: "halfready>" in shown and "C-] d" not in shown)
    person.type(b"\x1d")
    person.sees("c checkpoint · l log · r restore")
    person.type(b"\x1b")
    person.sees(lambda shown: shown == before)
    person.type(b"\x1dc")
    person.sees("in a few words")
    person.type(b"good stax\x7fte\r")
    person.sees('c1 "good state", taken in')
    person.type(b"\x1dl")
    shown = person.sees("any key goes back")
    assert "good state" in shown
    assert "121" not in shown
    person.type(b" ")
    person.sees(lambda shown: shown == before)
    person.type(b"\x1d?")
    person.sees(f"`waypoint stop {work}` ends the session")
    person.type(b"q")
    person.sees(lambda shown: shown == before)
    person.type(b"\x1dc\x1b")
    person.sees(lambda shown: shown == before)
    person.type(b"echo $((40+2))\r")
    person.sees("42")
    assert wp("exec", "-s", work, "echo alive") == "alive\n"


def test_the_menu_restores_after_its_plan(wp: House, work: str) -> None:
    wp("exec", "-s", work, "kept=before")
    wp("checkpoint", "-s", work, "all is well", "--name", "well")
    person = attached(wp, work)
    person.type(b"kept=after; sleep 1000\r")
    person.sees("sleep 1000")
    person.type(b"\x1dr")
    person.sees("to which point?")
    person.type(b"nothing\r")
    person.sees("any key goes back")
    person.type(b" \x1drwell\r")
    shown = person.sees("Restore? [y/N]")
    assert 'c1 well "all is well"' in shown
    person.type(b"n")
    person.sees(lambda shown: "sleep 1000" in shown and "Restore?" not in shown)
    person.type(b"\x1drwell\r")
    person.sees("Restore? [y/N]")
    person.type(b"y")
    person.sees("restored to c1; C-] r c2 goes back")
    person.type(b"echo [$kept]\r")
    person.sees("[before]")
    person.type(DETACH)
    assert person.leaves() == 0
    assert person.terminal_is_as_before()


def test_who_is_attached_sees_what_waits_for_approval_and_answers(
    wp: House, work: str, elsewhere: ThreadPoolExecutor
) -> None:
    session = waypoint.Session(waypoint.Client(), work, "agent")
    session.set_policy(
        '[[rule]]\ncommand = "touch"\nclass = "irreversible"\ndecision = "ask"\nwhy = "a launch"\n'
    )
    person = attached(wp, work)
    running = elsewhere.submit(lambda: session.run("touch /srv/up"))
    person.sees("C-] a approves: touch /srv/up")
    person.type(b"\r")
    person.sees(lambda shown: shown.split("\n").count("ready>") == 2 and "C-] a approves" in shown)
    person.type(b"\x1da")
    shown = person.sees("y runs it once")
    assert "an agent wants to run" in shown
    assert "a launch" in shown
    person.type(b"y")
    assert running.result(SECONDS).ok
    person.sees(lambda shown: "touch /srv/up" in shown and "C-] a" not in shown)
    running = elsewhere.submit(lambda: session.run("touch /srv/down"))
    person.sees("C-] a approves: touch /srv/down")
    person.type(b"\x1da")
    person.sees("y runs it once")
    session.deny(session.approvals()[0])
    with pytest.raises(errors.NotApproved):
        running.result(SECONDS)
    person.sees(lambda shown: "decided elsewhere" in shown and "y runs it once" not in shown)
    person.type(b"echo $((40+2))\r")
    person.sees(lambda shown: "42" in shown and "C-] a" not in shown)


def test_the_smaller_of_two_windows_sets_the_size(wp: House, work: str) -> None:
    large = attached(wp, work, rows=30, columns=120)
    small = attached(wp, work, rows=20, columns=70)
    large.type(b"stty size; seq 1 50; printf '%0100d' 7\r")
    small.sees(lambda shown: "ready>" in shown.splitlines()[-1] and "0007" in shown)
    shown = large.sees(lambda shown: "0007" in shown and shown.rstrip().endswith("ready>"))
    assert shown.splitlines()[:20] == small.look(0.1).splitlines()
    assert [len(line) for line in shown.splitlines() if line.startswith("0")] == [70, 36]
    small.type(DETACH)
    assert small.leaves() == 0
    large.type(b"clear; stty size\r")
    large.sees("30 120")


def test_the_prompt_and_the_title_name_the_session(wp: House) -> None:
    name: str = json.loads(wp("--json", "new"))["session"]["name"]
    wp("exec", "-s", name, "PS1='ready> '")
    person = wp.person("shell", name)
    person.screen.feed(b"\x1b]2;mine\x07")
    person.sees(f"\n({name}) ready>")
    person.sees(lambda _: person.screen.title == f"waypoint: {name}")
    person.type(b"PS1='other> '; echo $WAYPOINT_SESSION\r")
    person.sees(f"{name}\n({name}) other>")
    person.type(b"shopt -u promptvars\r")
    person.sees("\nother>")
    person.type(b"shopt -s promptvars; WAYPOINT_PROMPT=off; PS1='third> '\r")
    person.sees("\nthird>")
    person.type(b"unset WAYPOINT_PROMPT; printf '\\e]2;theirs\\a'\r")
    person.sees(f"({name}) third>")
    person.sees(lambda _: person.screen.title == "theirs")
    person.type(DETACH)
    assert person.leaves() == 0
    assert person.screen.title == "mine"

    wp("checkpoint", "-s", name, "here")
    wp("fork", "-s", name, "@", "--name", "grown")
    # In its memory the shell still has the name of the session that it was forked from.
    assert wp("exec", "-s", "grown", "echo $WAYPOINT_SESSION") == "grown\n"
    assert wp("exec", "-s", "grown", "--pipe", "printenv", "WAYPOINT_SESSION") == "grown\n"
    twin = wp.person("shell", "grown")
    twin.sees("(grown) third>")
    assert "shell" not in wp("diff", "-s", "grown", "--shell")
    wp("restore", "-s", name, "--yes", "@")
    assert wp("exec", "-s", name, "echo $WAYPOINT_SESSION") == f"{name}\n"


def test_exit_says_what_happens(wp: House, work: str) -> None:
    person = attached(wp, work)
    person.type(b"exit\r")
    person.sees("the shell ended, a new one was started; C-] d detaches")
    person.type(b"echo $((40+2))\r")
    person.sees("42")


def test_a_session_that_ends_says_so(wp: House, work: str) -> None:
    person = attached(wp, work)
    wp("rm", "--yes", work)
    assert person.leaves() == 0
    assert f"[{work}: " in person.look()
    assert person.terminal_is_as_before()


def test_no_such_session(wp: House, work: str) -> None:
    person = wp.person("shell", "nobody")
    assert person.leaves() == 4
    assert "there is no session 'nobody'" in person.look()
    assert person.terminal_is_as_before()


def test_a_restore_is_explained_and_asked_for(wp: House, work: str) -> None:
    wp("exec", "-s", work, "kept=before")
    wp("checkpoint", "-s", work, "all is well", "--name", "well")
    wp("exec", "-s", work, "kept=after")
    for answer, status, kept in ((b"n\r", 3, "after"), (b"\r", 3, "after"), (b"y\r", 0, "before")):
        person = wp.person("restore", "-s", work, "well")
        shown = person.sees("Restore? [y/N]")
        assert 'c1 well "all is well"' in shown
        assert "waypoint undo" in shown
        person.type(answer)
        assert person.leaves() == status
        assert wp("exec", "-s", work, "echo $kept") == f"{kept}\n"
    wp("undo", "-s", work)
    assert wp("exec", "-s", work, "echo $kept") == "after\n"


def test_what_takes_a_while_shows_that_it_is_under_way(wp: House, work: str) -> None:
    wp("checkpoint", "-s", work, "here")
    person = wp.person("verify", "-s", work, "@", "sleep 2")
    shown = person.sees("verifying @ in a fork")
    assert " s" in shown.rpartition("in a fork")[2], "with the seconds so far"
    assert person.leaves() == 0
    assert "verifying" not in person.look()
    assert "sleep 2" in person.look()
