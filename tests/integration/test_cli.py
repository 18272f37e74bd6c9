"""The command line against the real daemon: the tour of the README, and what other programs rely on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.person import Person

import waypoint
from waypoint.home import Home
from waypoint.machine import link

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

Run = Callable[..., Any]
REPOSITORY = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-P", "-m", "waypoint"]


class Waypoint:
    """The command line, with what tests want of it most."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, *words: str, **more: Any) -> Any:
        return self._run(*words, **more)

    def ok(self, *words: str, **more: Any) -> str:
        """What it prints on stdout; it must not fail."""
        printed: str = self._run(*words, check=True, **more).out
        return printed

    def json(self, *words: str) -> Any:
        return json.loads(self.ok("--json", *words))

    def error(self, *words: str) -> dict[str, str]:
        found = self._run("--json", *words)
        assert found.code != 0
        error: dict[str, str] = found.json["error"]
        assert error["message"]
        return error

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PROGRAM, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(name="wp")
def waypoint_program(wp: Run) -> Waypoint:
    return Waypoint(wp)


@pytest.fixture
def work(wp: Waypoint) -> str:
    """A session."""
    name: str = wp.json("new")["session"]["name"]
    return name


def test_the_tour(wp: Waypoint) -> None:
    found = wp.json("new", "tour")
    assert {"id", "name", "state"} <= set(found["session"])
    assert (found["session"]["name"], found["session"]["state"]) == ("tour", "live")

    wp.ok("exec", "-s", "tour", "cd /tmp && mkdir -p v/bin && export TOKEN=abc")
    wp.ok("exec", "-s", "tour", "python3 -m http.server 8000 >/tmp/log 2>&1 &")
    wp.ok("exec", "-s", "tour", "until (: </dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done")
    point = wp.json("checkpoint", "-s", "tour", "server up", "--name", "up")["checkpoint"]
    wanted = {"id", "name", "intent", "session", "parent", "created_at", "pause_ms", "total_ms", "size_bytes"}
    assert wanted <= set(point)
    assert (point["name"], point["intent"]) == ("up", "server up")

    wp.ok("exec", "-s", "tour", "kill %1; unset TOKEN; cd /; rm -rf /usr/share/doc /tmp/v")
    assert os.listdir("/usr/share/doc")

    restored = wp.json("restore", "-s", "tour", "up", "--yes")
    assert {"session", "checkpoint", "ready_ms", "safety"} <= set(restored)
    assert restored["checkpoint"]["id"] == point["id"]
    assert (
        wp.ok("exec", "-s", "tour", "pwd; echo $TOKEN; ls -1d /usr/share/doc v")
        == "/tmp\nabc\n/usr/share/doc\nv\n"
    )
    assert "http.server" in wp.ok("exec", "-s", "tour", "jobs")

    forks = wp.json("fork", "-s", "tour", "up", "-n", "3", "--name", "try")["sessions"]
    assert [set(fork) >= {"id", "name", "ready_ms"} for fork in forks] == [True] * 3
    assert [fork["name"] for fork in forks] == ["try-1", "try-2", "try-3"]
    ask = "exec 3<>/dev/tcp/127.0.0.1/8000; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; head -n 1 <&3"
    for fork in forks:
        assert "200 OK" in wp.ok("exec", "-s", fork["name"], ask)

    names = {session["name"] for session in wp.json("ls")["sessions"]}
    assert {"tour", "try-1", "try-2", "try-3"} <= names
    points = wp.json("log", "-s", "tour")["checkpoints"]
    assert [one["label"] for one in points] == ["c1", "c2"]
    assert points[0]["id"] == point["id"]
    wp.ok("undo", "-s", "tour")
    assert wp.ok("exec", "-s", "tour", "echo [$TOKEN]") == "[]\n"
    assert wp.json("rm", "--yes", "tour", "try-1", "try-2", "try-3")["removed"] == [
        "tour",
        "try-1",
        "try-2",
        "try-3",
    ]


NOT_FOR_LS = {
    *("asyncio", "concurrent", "difflib", "email", "html", "http", "inspect", "json", "logging", "platform"),
    *("shutil", "signal", "sqlite3", "ssl", "subprocess", "tempfile", "tomllib", "typing_extensions"),
    *("waypoint.api.history", "waypoint.api.machine", "waypoint.client.session", "waypoint.cli.attach"),
    *("waypoint.cli.help", "waypoint.cli.timeline", "waypoint.cli.verbs.history"),
    *("waypoint.cli.verbs.machine", "waypoint.daemon", "waypoint.history", "waypoint.kernel"),
}
"""What a plain `ls` must not import: each costs a good part of what the verb costs, or leads to what does."""
MOST_MODULES = 140
"""Of Python, msgspec and Waypoint together. It was 129."""


def test_a_plain_ls_imports_little_and_asks_once(work: str, home: Home) -> None:
    script = (
        "import sys; from waypoint.cli import _import_msgspec, main;"
        " _import_msgspec(); from waypoint.client import connection;"
        " asked, ask = [], connection.Transport.ask;"
        " connection.Transport.ask = lambda *a, **o: asked.append(type(a[1]).__name__) or ask(*a, **o);"
        " code = main(['ls']); print(code, *asked); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    *listing, outcome, modules = done.stdout.splitlines()
    assert listing[1].split()[:2] == [work, "live"]
    assert outcome == "0 Ls", "the list has all that is shown"
    assert NOT_FOR_LS & set(modules.split()) == set()
    assert len(modules.split()) < MOST_MODULES


def test_a_verb_that_ends_its_process_at_once_loses_no_output(work: str, tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "waypoint", "exec", "-s", work, "seq 20000; exit 3"],
            stdout=file,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert (tmp_path / "out").read_text().splitlines()[-1] in {"20000", "exit"}
    assert done.returncode == 3
    full = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m waypoint ls >/dev/full"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert full.returncode not in {0, 120}
    assert "No space left" in full.stderr


def test_the_exit_code_passes_through(wp: Waypoint, work: str) -> None:
    assert wp("exec", "-s", work, "exit_with() { return $1; }; exit_with 42").code == 42
    found = wp("--json", "exec", "-s", work, "echo out; (exit 3)")
    assert found.code == 3
    result = found.json
    assert (result["exit_code"], result["output"], result["timed_out"], result["truncated"]) == (
        3,
        "out\n",
        False,
        False,
    )
    assert result["duration_ms"] > 0


def test_words_are_joined_as_ssh_does(wp: Waypoint, work: str) -> None:
    assert wp.ok("exec", "-s", work, "echo", "a  b", "$((1+1))") == "a b 2\n"
    assert wp.ok("exec", "-s", work, "--", "echo", "-n", "x") == "x"


def test_output_comes_while_the_command_runs(wp: Waypoint, work: str) -> None:
    with wp.start("exec", "-s", work, "echo first; read -t 30 < <(sleep 30); echo last") as running:
        assert running.stdout
        assert running.stdout.readline() == "first\n"
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        running.wait(20)


def test_stdin_is_given_on_request_only(wp: Waypoint, work: str) -> None:
    assert wp.ok("exec", "-s", work, "--stdin", "tr a-z A-Z", stdin="hello\n") == "HELLO\n"
    assert wp.ok("exec", "-s", work, "cat; echo end", stdin="hello\n") == "end\n"


def test_a_timeout_interrupts_and_says_so(wp: Waypoint, work: str) -> None:
    found = wp("exec", "-s", work, "--timeout", "0.5", "echo begun; sleep 100")
    assert found.code == 124
    assert found.out.startswith("begun\n")
    assert "timed out" in found.err
    assert wp.ok("exec", "-s", work, "echo usable") == "usable\n"


def test_one_interrupt_ends_the_command_and_not_the_session(wp: Waypoint, work: str) -> None:
    # One program: between two commands of a list bash may miss a Ctrl-C and wait for the second one.
    with wp.start("exec", "-s", work, "sh -c 'echo begun; exec sleep 100'") as running:
        assert running.stdout
        assert running.stdout.readline() == "begun\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130
    assert wp.ok("exec", "-s", work, "echo usable") == "usable\n"


def test_two_interrupts_stop_the_waiting(wp: Waypoint, work: str) -> None:
    with wp.start("exec", "-s", work, "trap '' INT; echo begun; sleep 3; trap - INT") as running:
        assert running.stdout
        assert running.stdout.readline() == "begun\n"
        running.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.wait(2) == 130


def test_a_program_beside_the_shell(wp: Waypoint, work: str) -> None:
    wp.ok("exec", "-s", work, "cd /srv; export COLOUR=blue")
    found = wp("exec", "-s", work, "--pipe", "sh", "-c", "cat; echo err >&2; pwd; exit 5", stdin="in\n")
    assert (found.code, found.out.splitlines()[0], found.err) == (5, "in", "err\n")
    told = wp.ok("exec", "-s", work, "--pipe", "--shell-env", "sh", "-c", "pwd; echo $COLOUR")
    assert told == "/srv\nblue\n"
    told = wp.ok("exec", "-s", work, "--pipe", "--cwd", "/etc", "--env", "A=1 2", "sh", "-c", "pwd; echo $A")
    assert told == "/etc\n1 2\n"
    found = wp("--json", "exec", "-s", work, "--pipe", "sh", "-c", "echo out; echo err >&2; exit 2")
    result = found.json
    assert (found.code, result["exit_code"], result["output"], result["stderr"]) == (
        2,
        2,
        "out\n",
        "err\n",
    )


def test_a_program_beside_the_shell_can_be_interrupted_and_timed(wp: Waypoint, work: str) -> None:
    found = wp("exec", "-s", work, "--pipe", "--timeout", "0.5", "sleep", "100")
    assert (found.code, "timed out" in found.err) == (124, True)
    with wp.start("exec", "-s", work, "--pipe", "sh", "-c", "echo begun; exec sleep 100") as running:
        assert running.stdout
        assert running.stdout.readline() == "begun\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130
    assert "sleep" not in wp.ok("exec", "-s", work, "--pipe", "sh", "-c", "cat /proc/[0-9]*/comm")


def test_binary_comes_out_as_it_went_in(wp: Waypoint, work: str) -> None:
    script = "printf '\\377\\376\\001ok\\n'"
    for words in (["exec", "-s", work, script], ["exec", "-s", work, "--pipe", "sh", "-c", script]):
        found = subprocess.run([*PROGRAM, *words], stdin=subprocess.DEVNULL, capture_output=True, check=True)
        assert found.stdout == b"\xff\xfe\x01ok\n"


def test_much_output_is_cut_with_a_notice(wp: Waypoint, work: str) -> None:
    found = wp("--json", "exec", "-s", work, "yes | head -c 3000000; echo end")
    result = found.json
    assert result["truncated"]
    shown = wp.ok("exec", "-s", work, "yes | head -c 3000000; echo end")
    assert shown.endswith("y\nend\n")
    assert "left out" in shown


def test_the_terminal_from_outside(wp: Waypoint, work: str) -> None:
    wp.ok("type", "-s", work, "echo sum-$((40+2))", "Enter")
    deadline = time.monotonic() + 10
    while "sum-42" not in wp.ok("screen", "-s", work):
        assert time.monotonic() < deadline
    shown = wp.json("screen", "-s", work)
    assert {"text", "rows", "columns", "cursor", "title"} <= set(shown)


def test_the_log_for_people(wp: Waypoint, work: str) -> None:
    wp.ok("checkpoint", "-s", work, "one", "two")
    assert wp.ok("checkpoint", "-s", work, "--name", "second").startswith("c2 second  ")
    lines = wp.ok("log", "-s", work).splitlines()
    assert lines[0].startswith("@  now")
    assert any(line.startswith("●  c2") for line in lines)
    assert any(line.startswith("○  c1") and "one two" in line for line in lines)
    assert len(wp.json("log", "-s", work, "-n", "1")["checkpoints"]) == 1
    assert "c1" in wp.ok("log", "--all")
    assert "c2" in wp.ok("ls")


def test_parking_and_coming_back(wp: Waypoint, work: str) -> None:
    wp.ok("exec", "-s", work, "kept=here")
    found = wp.json("park", work)
    assert found["session"]["state"] == "parked"
    assert wp.error("exec", "-s", work, "true")["code"] == "dead"
    wp.ok("restore", "-s", work, "@", "--yes")
    assert wp.ok("exec", "-s", work, "echo $kept") == "here\n"


def test_errors_have_a_code_a_hint_and_an_exit_status(wp: Waypoint, work: str) -> None:
    error = wp.error("exec", "-s", "missing", "true")
    assert error["code"] == "not_found"
    assert work in error["hint"]
    assert wp.error("new", work)["code"] == "already_exists"
    assert wp.error("restore", "-s", work, "nothing", "--yes")["code"] == "not_found"
    assert wp.error("new", "bad/name")["code"] == "invalid_name"
    assert wp.error("restore", "-s", work, "@")["code"] == "confirmation_needed"
    assert wp("restore", "-s", work, "@").code == 3
    found = wp("exec", "-s", "missing", "true")
    assert (found.code, found.out) == (4, "")
    assert found.err.startswith("waypoint: there is no session 'missing'\n  ")


def test_the_daemon_comes_and_goes_and_the_session_stays(wp: Waypoint, work: str, home: Home) -> None:
    wp.ok("exec", "-s", work, "kept=here")
    status = wp.json("daemon", "status")
    assert status["running"]
    assert status["home"] == str(home.path)
    assert wp.json("daemon", "stop") == {"stopped": True}
    deadline = time.monotonic() + 10
    while wp.json("daemon", "status")["running"]:
        assert time.monotonic() < deadline
    assert wp.ok("exec", "-s", work, "echo $kept") == "here\n"
    assert wp.json("daemon", "status")["pid"] != status["pid"]
    assert "daemon" in wp.ok("daemon", "logs", "-n", "5")


def test_doctor_knows_what_is_there(wp: Waypoint) -> None:
    found = wp("--json", "doctor")
    value = found.json
    assert {"name", "ok", "version", "why", "fix", "optional"} <= set(value["findings"][0])
    assert (found.code == 0) == value["ok"]
    assert any(line.startswith(("✔", "✖")) for line in wp("doctor").out.splitlines())
    assert all(one["docs"].startswith("docs/") for one in value["findings"])


def test_doctor_names_the_page_that_says_more_about_what_is_missing(wp: Waypoint) -> None:
    shown = subprocess.run(
        [*PROGRAM, "doctor"],
        env={**os.environ, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    paragraphs = re.split(r"^(?=[✔✖–] )", shown, flags=re.MULTILINE)
    missing = [paragraph for paragraph in paragraphs if paragraph.startswith("✖")]
    assert missing
    for paragraph in missing:
        assert re.search(r"^ +fix: .*\n +more: docs/\w+\.md#\S+$", paragraph, re.MULTILINE), paragraph


def test_set_up_offers_the_link_on_a_terminal_and_makes_it(wp: Waypoint, home: Home, tmp_path: Path) -> None:
    wp.ok("ls")  # the daemon does not start in what the test hides from the machine
    # What it puts into /usr/local/bin is seen by this command alone.
    hidden = f"mount --bind {tmp_path} /usr/local/bin && exec ./waypoint setup"
    path = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    for answer in (b"n\r", b"y\r"):
        person = Person(["unshare", "--mount", "bash", "-c", hidden], env=path, cwd=REPOSITORY)
        try:
            person.sees("by a link in /usr/local/bin? [y/N]")
            person.type(answer)
            assert person.leaves() == 0
        finally:
            person.close()
        assert (tmp_path / "waypoint").is_symlink() == (answer[:1] == b"y")
    assert (tmp_path / "waypoint").resolve() == REPOSITORY / "waypoint"
    link.remove(home.path)


def test_setting_up_twice_does_no_harm(wp: Waypoint) -> None:
    found = wp.json("setup")
    assert found["engine"]["criu"]["version"]
    assert found["pool"]["kind"]


def test_bases_come_and_go(wp: Waypoint, tmp_path: Path) -> None:
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "mark").write_text("x")
    subprocess.run(["tar", "cf", tmp_path / "root.tar", "-C", tmp_path / "root", "."], check=True)
    assert wp.json("base", "import", "tiny", str(tmp_path / "root.tar"))["base"]["name"] == "tiny"
    assert wp.error("base", "import", "tiny", str(tmp_path / "root.tar"))["code"] == "already_exists"
    assert wp.error("base", "import", "other", str(tmp_path / "none.tar"))["code"] == "not_found"
    assert [base["name"] for base in wp.json("base", "ls")["bases"]] == ["tiny"]
    assert "tiny" in wp.ok("base", "ls")
    wp.ok("base", "rm", "tiny")
    assert wp.json("base", "ls") == {"bases": []}


@pytest.mark.slow
def test_the_demo_keeps_its_promises_and_leaves_nothing(wp: Waypoint) -> None:
    shown = wp.ok("demo")
    assert "request number 6" in shown
    assert "untouched" in shown
    figures = wp.json("demo")["figures"]
    assert {"new_ms", "pause_ms", "restore_ms", "fork_ms"} <= set(figures)
    assert not [one for one in wp.json("ls")["sessions"] if one["name"].startswith("demo-")]


@pytest.mark.slow
def test_an_interrupted_demo_leaves_nothing(wp: Waypoint) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with wp.start("demo") as running:
            assert running.stdout
            for line in running.stdout:
                if "Keep this moment" in line:
                    break
            running.send_signal(number)
            running.stdout.read()
            assert running.wait(30) == 128 + number
        assert not [one for one in wp.json("ls")["sessions"] if one["name"].startswith("demo-")]


def test_completion_knows_sessions_and_points_of_the_moment(wp: Waypoint, session: waypoint.Session) -> None:
    session.checkpoint("one", name="first")
    assert wp("complete", "sessions").out.split() == ["t"]
    assert wp("complete", "points", "-s", "t").out.split() == ["@", "good", "c1", "first"]
    assert wp("complete", "points", "-s", "nothing").code == 0


def test_what_a_point_does_not_hold_is_said_once(wp: Waypoint, session: waypoint.Session) -> None:
    first = wp("checkpoint", "--files-only", check=True)
    assert "files only" in first.err
    assert "files only" not in wp("checkpoint", "--files-only", check=True).err
    wp("checkpoint", check=True)
    assert "files only" in wp("checkpoint", "--files-only", check=True).err, "it is new again"
    assert wp("checkpoint", "--files-only", "--quiet", check=True).err == ""
