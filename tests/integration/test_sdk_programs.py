"""Folders, variables and users of commands and programs; programs that are waited for, ended and refused."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.conftest import Output
from tests.waiting import until

import waypoint
from waypoint import aio, errors
from waypoint.home import Home

ALICE = "useradd --create-home --uid 4321 --groups games alice 2>/dev/null || true"


# ---- run -----------------------------------------------------------------------------------------


def test_a_command_has_its_own_folder_and_variables_and_the_shell_keeps_its_own(
    fresh: waypoint.Session,
) -> None:
    fresh.run("cd /tmp && export KEPT=1 && greet() { echo \"hi $WHO in $PWD\"; } && mkdir -p '/srv/a b/c'")
    odd = 'it\'s "odd" $HOME\n\\ ü'
    result = fresh.run(
        'greet; printf %s "$ODD"; export KEPT=2; cd /', cwd="/srv/a b", env={"WHO": "me", "ODD": odd}
    )
    assert result.output == f"hi me in /srv/a b\n{odd}"
    assert fresh.run("echo $KEPT $PWD [$WHO]").output == "1 /tmp []\n"
    fresh.run("cd '/srv/a b'")
    assert fresh.run("pwd", cwd="c").output == "/srv/a b/c\n", "from the folder of the shell on"
    assert fresh.run("cat", cwd="/", stdin="in\n").output == "in\n"
    assert fresh.run("exit 7", cwd="/").exit_code == 7
    assert fresh.run("sleep 60", env={"A": "1"}, timeout=0.3).timed_out
    assert fresh.run("echo $PAGER", env={"PAGER": "mine"}).output == "mine\n"


def test_a_folder_a_variable_and_a_user_that_cannot_be_are_named(fresh: waypoint.Session) -> None:
    cases: tuple[tuple[dict[str, Any], type[errors.WaypointError], str], ...] = (
        ({"cwd": "/no/such"}, errors.NotFound, "no folder /no/such"),
        ({"cwd": "/etc/passwd"}, errors.NotFound, "no folder"),
        ({"cwd": "a\0b"}, errors.UsageError, "no path"),
        ({"user": "someone"}, errors.NotFound, "no user 'someone'"),
        ({"user": "root:none"}, errors.NotFound, "no group 'none'"),
        ({"user": "a b"}, errors.UsageError, "names no user"),
        ({"env": {"A": "b\0c"}}, errors.UsageError, "NUL"),
        ({"env": {"A-B": "c"}}, errors.UsageError, "cannot be a variable"),
        ({"env": {"UID": "1"}}, errors.UsageError, "set by the shell"),
        ({"env": {"A": 5}}, errors.UsageError, "expected `str`, got `int`"),
    )
    for arguments, kind, words in cases:
        with pytest.raises(kind, match=words):
            fresh.run("touch /srv/it-ran", **arguments)
    assert not fresh.run("test -e /srv/it-ran").ok


def test_a_policy_sees_the_folder_and_the_variables(fresh: waypoint.Session) -> None:
    fresh.set_policy('[[rule]]\ncommand = "launch"\nclass = "irreversible"\ndecision = "deny"\n')
    for run in (
        lambda: fresh.run("launch now", cwd="/", env={"A": "b"}),
        lambda: fresh.run("git fetch", env={"GIT_SSH_COMMAND": "launch now"}),
        lambda: fresh.spawn(["git", "fetch"], env={"GIT_SSH_COMMAND": "launch now"}),
        lambda: fresh.run("launch now", user="nobody"),
    ):
        with pytest.raises(errors.PolicyDenied):
            run()
    assert fresh.run("true", cwd="/", env={"A": "b"}).ok


def test_another_user_runs_beside_the_shell_with_its_folder_and_variables(fresh: waypoint.Session) -> None:
    fresh.run(ALICE)
    fresh.run("cd /var/tmp && export SEEN=yes")
    pieces: list[str] = []
    result = fresh.run(
        'id -un; id -Gn; echo "$HOME $SEEN $PWD $X"; cat; echo err >&2; exit 3',
        user="alice",
        env={"X": "y"},
        stdin="input\n",
        on_output=pieces.append,
    )
    assert result.output == "alice\nalice games\n/home/alice yes /var/tmp y\ninput\nerr\n"
    assert (result.exit_code, "".join(pieces)) == (3, result.output)
    assert fresh.run("id -u; id -g", user="4321:100").output == "4321\n100\n"
    assert fresh.run("touch /etc/x", user="nobody").exit_code == 1
    assert (
        fresh.run("echo again > /dev/stdout; cat /dev/stdin", user="nobody", stdin="in").output == "again\nin"
    )
    started = time.monotonic()
    assert fresh.run("sleep 60 & sleep 60", user="alice", timeout=0.3).timed_out
    assert time.monotonic() - started < 5
    event = next(
        event for event in reversed(fresh.trace(kinds=("command",))) if "id -Gn" in event.body["command"]
    )
    assert event.body["exit_code"] == 3
    assert "alice games" in event.body["output"]


# ---- sessions of a user --------------------------------------------------------------------------


def test_a_session_of_a_user_is_one_in_its_forks_and_restores_too(
    sessions: Callable[..., waypoint.Session],
) -> None:
    s = sessions("u", user="nobody:games", env={"FLAVOUR": "sour cherry"})
    assert s.info.options.user == "nobody:games"
    shows = (
        "id -un; id -gn; echo $FLAVOUR $HOME; test -w /dev/pts/0 && echo mine;"
        " touch /etc/x 2>/dev/null || echo no"
    )
    expected = "nobody\ngames\nsour cherry /nonexistent\nmine\nno\n"
    assert s.run(shows).output == expected
    s.run("x=5; cd /tmp; mkdir -p mine")
    assert s.run("id -u", user="root").output == "0\n"
    assert s.spawn(["id", "-un"]).communicate()[0] == b"nobody\n"
    assert s.spawn(["id", "-un"], user="root").communicate()[0] == b"root\n"
    s.write_file("/tmp/mine/new", "x")
    assert s.run("echo y >> /tmp/mine/new && cat /tmp/mine/new").output == "xy\n", "a new file is the user's"
    point = s.checkpoint("as nobody")
    s.run("x=6")
    s.restore(point)
    assert s.run(f"echo $x; {shows}").output == f"5\n{expected}"
    (fork,) = point.fork()
    assert fork.run(f"echo $x; {shows}").output == f"5\n{expected}"
    assert fork.spawn(["id", "-un"]).communicate()[0] == b"nobody\n"
    fork.run("exit")
    until(lambda: fork.run("id -un").output == "nobody\n")  # the shell that takes its place
    assert point.verify("test $(id -un) = nobody").state == "passed"  # type: ignore[union-attr]


def test_a_session_of_nobody_we_know_is_refused_and_nothing_is_left(home: Home) -> None:
    cases: tuple[tuple[dict[str, Any], type[errors.WaypointError]], ...] = (
        ({"user": "someone"}, errors.NotFound),
        ({"user": "a:b:c"}, errors.UsageError),
        ({"env": {"1A": ""}}, errors.UsageError),
        ({"env": {"A": "\0"}}, errors.UsageError),
    )
    for arguments, kind in cases:
        with pytest.raises(kind):
            waypoint.session("refused", **arguments)
    assert "refused" not in [one.name for one in waypoint.sessions()]


# ---- programs ------------------------------------------------------------------------------------


def test_a_program_is_waited_for_signalled_and_killed(fresh: waypoint.Session) -> None:
    program = fresh.spawn(
        ["bash", "-c", "trap 'echo got it; exit 5' TERM; echo up; while :; do sleep 0.05; done"]
    )
    events = program.events()
    assert next(events) == ("stdout", b"up\n")
    with pytest.raises(TimeoutError):
        program.wait(timeout=0.2)
    assert program.signal("TERM")
    assert program.wait(timeout=10) == 5
    assert ("stdout", b"got it\n") in list(program.events()), "what it printed meanwhile was kept"
    assert not program.kill(), "it has ended"
    sleeper = fresh.spawn(["sleep", "1000"])
    assert sleeper.kill()
    assert sleeper.wait(10) == 128 + signal.SIGKILL
    for wrong in ("NOPE", 0, 999):
        with pytest.raises(errors.UsageError):
            sleeper.signal(wrong)


def test_a_program_takes_no_longer_than_it_may(fresh: waypoint.Session) -> None:
    slow = fresh.spawn(["bash", "-c", "echo begun; sleep 100"], timeout=0.3)
    assert slow.communicate() == (b"begun\n", b"")
    assert (slow.exit_code, slow.timed_out) == (128 + signal.SIGTERM, True)
    patient = fresh.spawn(["cat"])
    with pytest.raises(errors.TimedOut):
        patient.wait(0.1)
    pieces: list[tuple[str, bytes]] = []
    out, _ = patient.communicate(b"x" * 300_000, on_output=lambda *piece: pieces.append(piece))
    assert out == b"x" * 300_000 == b"".join(data for _, data in pieces)
    assert (patient.exit_code, patient.timed_out) == (0, False)


def test_what_cannot_be_started_says_why_as_a_shell_would(fresh: waypoint.Session) -> None:
    fresh.run(
        "echo text > /srv/text; printf '\\x7fELF' > /srv/broken; chmod 755 /srv/broken; mkdir -p /srv/closed"
    )
    fresh.run("cp /bin/true /srv/closed/; chmod 700 /srv/closed")
    cases: tuple[tuple[list[str], dict[str, Any], str, int], ...] = (
        (["no-such-program"], {}, "ENOENT", 127),
        (["/srv/text"], {}, "EACCES", 126),
        (["/srv"], {}, "EACCES", 126),
        (["true"], {"cwd": "/no/such"}, "ENOENT", 127),
        (["no-such-program"], {"user": "nobody"}, "ENOENT", 127),
        (["/srv/closed/true"], {"user": "nobody"}, "EACCES", 126),
        (["true"], {"user": "nobody", "cwd": "/srv/closed"}, "EACCES", 126),
        (["true", "x" * 200_000], {}, "E2BIG", 126),
        (["true", *(["y" * 100_000] * 80)], {}, "E2BIG", 126),
    )
    for argv, arguments, number, exit_code in cases:
        with pytest.raises(errors.CannotStart) as refused:
            fresh.spawn(argv, **arguments)
        details = refused.value.details
        assert (details["errno"], details["exit_code"]) == (number, exit_code), argv[0]
    senseless: tuple[tuple[Any, dict[str, Any]], ...] = (
        (["a\0b"], {}),
        ([], {}),
        ("ls -l", {}),
        (["ls", 5], {}),
        (["ls", "\udcff"], {}),
        (["ls"], {"env": {"A=B": "c"}}),
        (["ls"], {"env": {"A": "\0"}}),
        (["ls"], {"user": "someone"}),
        (["ls"], {"timeout": -1}),
    )
    for words, arguments in senseless:
        with pytest.raises(errors.UsageError):
            fresh.spawn(words, **arguments)
    assert fresh.run("echo fine").output == "fine\n"


def test_as_many_arguments_as_the_kernel_takes(fresh: waypoint.Session) -> None:
    words = ["z" * 100_000] * 15
    out, _ = fresh.spawn(
        ["bash", "-c", "echo $# ${#1} $BIG | wc -c", "-", *words], env={"BIG": "b" * 100_000}
    ).communicate()
    assert out == b"100011\n"
    point = fresh.checkpoint("after")
    fresh.restore(point)
    assert fresh.spawn(["id", "-u"], user="nobody").communicate()[0].strip() != b"0"


def test_programs_with_asyncio(fresh: waypoint.Session) -> None:
    async def main() -> tuple[int, bytes]:
        s = aio.Session(aio.Client(), fresh.name)
        slow = await s.spawn(["sleep", "1000"])
        with pytest.raises(TimeoutError):
            await slow.wait(0.1)
        await slow.kill()
        code = await slow.wait(10)
        cat = await s.spawn(["cat"], user="nobody")
        with pytest.raises(errors.TimedOut):
            await cat.wait(0.05)
        out, _ = await cat.communicate(b"a" * 100_000)
        await s._client.close()
        return code, out

    assert asyncio.run(main()) == (137, b"a" * 100_000)


# ---- forks, parking ------------------------------------------------------------------------------


def test_a_fork_is_of_now_with_the_names_that_were_asked_for(
    fresh: waypoint.Session, wp: Callable[..., Output]
) -> None:
    fresh.run("x=1")
    point = fresh.checkpoint("one")
    fresh.run("x=2")
    left, right = fresh.fork(names=["left", "right"])
    assert [left.name, right.name] == ["left", "right"]
    assert [one.run("echo $x").output for one in (left, right)] == ["2\n"] * 2
    last = fresh.checkpoints()[-1]
    assert (last.info.intent, left.info.head) == ("forked as left, right", last.id)
    (old,) = fresh.fork(ref=point, name="old")
    assert old.run("echo $x").output == "1\n"
    before = len(fresh.checkpoints())
    for arguments, kind in (
        ({"names": ["left", "new"]}, errors.AlreadyExists),
        ({"names": ["a", "a"]}, errors.UsageError),
        ({"names": ["a"], "name": "b"}, errors.UsageError),
        ({"n": 3, "names": ["a", "b"]}, errors.UsageError),
        ({"names": ["-a"]}, errors.InvalidName),
    ):
        with pytest.raises(kind):
            fresh.fork(**arguments)
    assert len(fresh.checkpoints()) == before, "no point is taken for forks that cannot be"

    with pytest.raises(errors.InvalidName):
        left.park("@")
    parked = left.park("lunch")
    assert (parked.name, left.info.state) == ("lunch", "parked")
    (again,) = left.fork(name="again")
    assert (again.run("echo $x").output, again.info.head) == ("2\n", parked.id)
    assert wp("park", "right", "--name", "dinner").code == 0
    assert right.point("dinner").name == "dinner"
    assert wp("fork", "-s", "t", "--name", "c1", "--name", "c2", check=True).out.split()[0] == "c1"


def test_the_command_line_has_the_same(
    fresh: waypoint.Session, wp: Callable[..., Output], home: Home
) -> None:
    assert wp("exec", "-s", "t", "--cwd", "/var", "--env", "A=b c", "echo $PWD $A").out == "/var b c\n"
    shown = wp("exec", "-s", "t", "--user", "nobody", "id -un")
    assert shown.out == "nobody\n", shown.err
    assert wp("exec", "-s", "t", "--pipe", "--user", "nobody", "--", "id", "-un").out == "nobody\n"
    missing = wp("exec", "-s", "t", "--pipe", "no-such-program")
    assert (missing.code, "No such file" in missing.err) == (127, True)
    assert wp("exec", "-s", "t", "--pipe", "/etc/passwd").code == 126
    slow = wp("exec", "-s", "t", "--pipe", "--timeout", "0.2", "sleep", "100")
    assert (slow.code, "timed out" in slow.err) == (124, True)
    wp("new", "w", "--user", "nobody", "--env", "A=b", "--base", "/")
    assert wp("exec", "-s", "w", "id -un; echo $A").out == "nobody\nb\n"
