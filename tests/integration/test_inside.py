"""`waypoint` inside a session: what can be asked from there, and what cannot, however hard somebody tries."""

from __future__ import annotations

import json
import os
import shutil
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import waypoint
from waypoint.box.box import keepers
from waypoint.box.plan import inside_path
from waypoint.errors import SessionBusy
from waypoint.home import Home
from waypoint.machine import natives, setup

FolderOf = Callable[[waypoint.Session], Path]


@pytest.fixture
def folder_of(home: Home) -> FolderOf:
    """The folder on the host through which a session asks."""

    def find(session: waypoint.Session) -> Path:
        pid = session.info.pid
        return inside_path(home, next(box for box, keeper in keepers(home).items() if keeper == pid))

    return find


def ask(session: waypoint.Session, words: str) -> dict[str, object]:
    found = session.run(f"waypoint --json {words}")
    made: dict[str, object] = json.loads(found.output)
    return made


def patiently(session: waypoint.Session, command: str) -> waypoint.Result:
    """Runs a command in a shell that may be in the middle of another."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return session.run(command).check()
        except SessionBusy:
            assert time.monotonic() < deadline, "the shell does not come back"
            time.sleep(0.02)


class TestAsking:
    def test_a_checkpoint_is_taken_from_the_shell_and_is_an_agents(self, fresh: waypoint.Session) -> None:
        said = fresh.run(
            "cd /srv && echo one >note && waypoint checkpoint 'before the change' --name before"
        ).check()
        assert said.output == 'c1 before "before the change"\n'
        [point] = fresh.log()
        assert (point.info.name, point.info.intent, point.info.actor) == (
            "before",
            "before the change",
            "agent",
        )
        card = point.card()
        assert "+ /srv/" in card.summary
        assert "waypoint" not in card.summary, "that somebody asked is no change"

    def test_log_status_show_and_diff_tell_of_the_session(self, fresh: waypoint.Session) -> None:
        fresh.checkpoint("start", name="start")
        fresh.run("echo two >/srv/note; cd /srv").check()
        assert "+ /srv/note" in fresh.run("waypoint status").check().output
        shown = fresh.run("waypoint diff start")
        assert (shown.exit_code, "+ /srv/note" in shown.output) == (1, True)
        assert fresh.run("waypoint diff start -- note").output.startswith("files      +1 file")
        assert fresh.run("waypoint diff start ./nothing").output == "no change found\n"
        assert "+two" in fresh.run("waypoint diff --patch").output
        fresh.run("waypoint checkpoint").check()
        assert fresh.run("waypoint diff --stat").exit_code == 0
        assert "c1" in fresh.run("waypoint show start").check().output
        listed = fresh.run("waypoint log").check().output
        assert listed.index("c2") < listed.index("start") < listed.index("seed/c1")
        assert [one["label"] for one in ask(fresh, "log -n 1")["checkpoints"]] == ["c2"]  # type: ignore[attr-defined]
        state = ask(fresh, "status")["session"]
        assert state["name"] == "t"  # type: ignore[index]
        assert "options" not in state  # type: ignore[operator]

    def test_tasks_and_what_was_said_are_kept_as_an_agents(self, fresh: waypoint.Session) -> None:
        assert (
            fresh.run("waypoint task add 'set up' 'write tests'").check().output
            == "○ 1 set up\n○ 2 write tests\n"
        )
        fresh.run(
            "waypoint task add --under 1 database; waypoint task start 1.1; waypoint checkpoint base"
        ).check()
        done = ask(fresh, "task done 1.1 'it is there' --evidence @")
        assert done["task"]["checkpoint"] == fresh.log()[-1].id  # type: ignore[index]
        assert fresh.run("waypoint task skip 2 'no time' >/dev/null; waypoint task ls").check().output == (
            "▸ 1 set up\n  ✔ 1.1 database (it is there)\n– 2 write tests (no time)\n"
        )
        assert [task.state for task in fresh.tasks] == ["in_progress", "completed", "skipped"]
        fresh.run("waypoint record user 'add payments'; echo and tests | waypoint record assistant -").check()
        fresh.run("""waypoint record tool_call --name search --call 7 '{"query": "x"}'""").check()
        said = [event for event in fresh.trace() if event.kind in ("message", "tool_call")]
        assert [event.body["content"] for event in said[:2]] == ["add payments", "and tests"]
        assert said[2].body["arguments"] == {"query": "x"}
        assert {event.actor for event in said} == {"agent"}, "who was in there cannot speak as a person"
        assert fresh.run("waypoint record nonsense x").exit_code == 2
        assert fresh.run("waypoint task done 9").exit_code == 4
        assert fresh.run("waypoint task done 1 --evidence seed:c9").exit_code == 4
        fresh.restore(fresh.log()[0])
        assert [task.state for task in fresh.tasks] == ["in_progress", "in_progress", "pending"]

    def test_a_command_is_judged_and_not_run(self, fresh: waypoint.Session) -> None:
        found = ask(fresh, "classify -- git push origin main")
        assert found["judgement"]["class"] != "read-only"  # type: ignore[index]
        assert ask(fresh, "classify ls")["ruling"] == "allow"
        assert fresh.effects() == []

    def test_a_task_that_is_done_with_a_point_is_done_in_that_point(self, fresh: waypoint.Session) -> None:
        fresh.run("waypoint task add one; waypoint task start 1").check()
        fresh.run("waypoint task done 1 --checkpoint --json >/srv/said; echo >/srv/end").check()
        [point] = fresh.log()
        assert [task.checkpoint for task in fresh.tasks] == [point.id]
        fresh.restore(point)
        patiently(fresh, "while [ ! -e /srv/end ]; do sleep 0.02; done")
        said = json.loads(fresh.run("cat /srv/said").check().output)
        assert (said["copy"], said["task"]["state"]) == ("restored", "completed")

    def test_programs_outside_the_shell_and_other_users_can_ask(self, fresh: waypoint.Session) -> None:
        program = fresh.spawn(["waypoint", "log"])
        output, errors = program.communicate()
        assert (program.exit_code, errors) == (0, b"")
        assert b"nothing was done yet" in output
        assert fresh.run("setpriv --reuid 1000 --regid 1000 --clear-groups waypoint log").exit_code == 0
        refused = fresh.run("setpriv --reuid 1000 --regid 1000 --clear-groups waypoint diff --patch")
        assert refused.exit_code == 2

    def test_a_base_with_nothing_but_a_shell_is_enough(
        self, sessions: Callable[..., waypoint.Session], make_root: Callable[[Path], None], tmp_path: Path
    ) -> None:
        make_root(tmp_path / "root")
        bare = sessions("bare", base=str(tmp_path / "root"))
        assert bare.run("waypoint checkpoint here").check().output == 'c1 "here"\n'

    def test_a_waypoint_of_the_base_leads_to_the_same(self, fresh: waypoint.Session) -> None:
        fresh.run(f"hash -p {Path(__file__).parents[2] / 'waypoint'} waypoint").check()
        assert "nothing was done yet" in fresh.run("waypoint log").check().output

    def test_what_is_not_for_the_inside_is_refused_with_its_reason(self, fresh: waypoint.Session) -> None:
        fresh.checkpoint("start", name="start")
        for words in (
            "restore start --yes",
            "fork start",
            "rm t --yes",
            "cp /etc/shadow .",
            "approve 1",
            "export",
        ):
            said = fresh.run(f"waypoint {words}")
            assert said.exit_code == 2, words
            assert "from inside a session" in said.output
        assert fresh.run("waypoint checkpoint --verify true").exit_code == 2
        assert fresh.run("waypoint checkpoint again --name start").exit_code == 5
        assert fresh.run("waypoint show nonsense").exit_code == 4
        assert ask(fresh, "show nonsense")["error"]["code"] == "not_found"  # type: ignore[index]
        assert fresh.run("waypoint").exit_code == 0
        assert len(fresh.log()) == 1


class TestWakingUpTwice:
    SCRIPT = textwrap.dedent("""
        cat >/srv/script <<'end'
        echo started >>/srv/seen
        said=$(waypoint checkpoint --json 'in the middle' --name middle)
        echo "$said" >"/srv/said-$RANDOM$RANDOM"
        while [ ! -e /srv/go ]; do sleep 0.02; done
        end
    """)

    HEARD = "while ! compgen -G '/srv/said-*' >/dev/null; do sleep 0.02; done"

    def _copies(self, session: waypoint.Session) -> list[str]:
        found = session.run("cat /srv/said-*").check().output
        return [json.loads(line)["copy"] for line in found.splitlines()]

    def test_a_script_goes_on_after_a_restore_and_in_forks(self, fresh: waypoint.Session) -> None:
        fresh.run(f"{self.SCRIPT}bash /srv/script &").check()
        fresh.run(self.HEARD).check()
        [point] = fresh.log()
        assert self._copies(fresh) == ["original"]
        fork = point.fork(name="other")[0]
        fresh.restore("middle")
        for session, copy in ((fresh, "restored"), (fork, "forked")):
            patiently(session, f"{self.HEARD}; touch /srv/go; wait")
            assert self._copies(session) == [copy]
            assert session.run("cat /srv/seen").output == "started\n", "the script did not start anew"

    def test_a_checkpoint_asked_for_by_the_command_that_runs_comes_back_to_it(
        self, fresh: waypoint.Session
    ) -> None:
        fresh.run("waypoint checkpoint one >/srv/said; echo $? >>/srv/said; echo done >/srv/end").check()
        assert fresh.run("cat /srv/said").output == 'c1 "one"\n0\n'
        fresh.restore("@")
        patiently(fresh, "while [ ! -e /srv/end ]; do sleep 0.02; done")
        assert fresh.run("cat /srv/said").output == (
            'c1 "one"  this is the point again: the session was restored to it\n0\n'
        )

    def test_typed_into_the_terminal_it_comes_back_there(self, fresh: waypoint.Session) -> None:
        fresh.type("waypoint checkpoint 'typed by hand' --name typed\n")
        deadline = time.monotonic() + 60
        while 'c1 typed "typed by hand"\n' not in fresh.screen():
            assert time.monotonic() < deadline, fresh.screen()
            time.sleep(0.02)
        fresh.run("clear").check()
        fresh.restore("typed")
        while 'typed "typed by hand"  this is the point again' not in fresh.screen():
            assert time.monotonic() < deadline, fresh.screen()
            time.sleep(0.02)
        assert patiently(fresh, "echo $?").output == "0\n"

    def test_who_waits_while_somebody_else_takes_a_point_asks_again_in_the_copy(
        self, fresh: waypoint.Session
    ) -> None:
        """Many ask, and points are taken all the time: none is refused, and nobody waits for ever."""
        ask = "while [ ! -e /srv/end ]; do waypoint log >/dev/null || touch /srv/bad; done"
        fresh.run(f"for n in 1 2 3; do ({ask}) & done").check()
        points = [fresh.checkpoint(f"number {number}") for number in range(5)]
        for point in (points[1], points[4]):
            fresh.restore(point)
            fresh.run("touch /srv/end; wait; rm /srv/end").check()
            assert fresh.run("[ -e /srv/bad ]").exit_code == 1, "somebody was refused or left alone"
            assert fresh.run("waypoint status").exit_code == 0

    def test_a_daemon_that_was_killed_is_waited_for(self, fresh: waypoint.Session) -> None:
        daemon = waypoint.Client().call("ping")["pid"]
        fresh.run("(sleep 0.2; waypoint log >/srv/said; echo $? >>/srv/said) &").check()
        os.kill(daemon, signal.SIGKILL)
        assert waypoint.Client().call("ping")["pid"] != daemon
        said = fresh.run("wait; cat /srv/said").check().output
        assert "nothing was done yet" in said
        assert said.endswith("0\n")
        assert fresh.run("waypoint checkpoint after").check().output == 'c1 "after"\n'


class TestUpdates:
    def test_a_point_finds_the_programs_it_was_taken_with(
        self, engine: Path, small_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A newer Waypoint has another anchor and another client; both are in the images of older points."""
        folder, sources = tmp_path / "engine", tmp_path / "native"
        shutil.copytree(engine, folder, symlinks=True)
        shutil.copytree(natives.SOURCES, sources)
        monkeypatch.setenv("WAYPOINT_ENGINE", str(folder))
        monkeypatch.setenv("WAYPOINT_SPARES", "off")  # one that was restored before would do
        session = waypoint.session("old", home=small_home)
        session.run("waypoint checkpoint old --name old").check()
        for name in ("anchor.c", "inside.c"):
            with (sources / name).open("a") as source:
                source.write('const char newer[] __attribute__((used)) = "another version of it";\n')
        present = natives.natives_hash()
        kept = len(list((folder / "bin" / "kept").iterdir()))
        with monkeypatch.context() as newer:
            newer.setattr(natives, "SOURCES", sources)
            newer.setattr(natives, "natives_hash", lambda: "newer")
            setup.ensure_engine(tmp_path, lambda _: None, probe=lambda _: None)
        assert len(list((folder / "bin" / "kept").iterdir())) == kept + 2
        # (So that the daemon takes it for its own.)
        text = (folder / "engine.json").read_text()
        (folder / "engine.json").write_text(text.replace('"newer"', f'"{present}"'))
        session.checkpoint("the box is from before, the engine is not", name="between")
        session.restore("old")
        assert "●  c1" in patiently(session, "waypoint log").output
        session.restore("between")
        assert session.run("waypoint checkpoint later").ok
        assert waypoint.session("new", home=small_home).run("waypoint checkpoint new").ok


PROBE = r"""
import os, socket, sys
def connect(path="/dev/waypoint.inside/socket"):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(20)
    s.connect(path)
    return s
def send(packet):
    s = connect()
    try:
        s.send(packet)
        return s.recv(1000).decode()
    except OSError as error:
        return type(error).__name__
    finally:
        s.close()
def request(*words, ticket="a" * 32, kind="ask", cwd="/"):
    return b"".join(w.encode() + b"\0" for w in ("1", ticket, kind, "0", cwd, *words))
"""


class TestHostile:
    def _python(self, session: waypoint.Session, code: str) -> str:
        found = session.run("python3 -", stdin=PROBE.encode() + textwrap.dedent(code).encode())
        return found.check().output

    def test_other_sessions_are_not_there(
        self, fresh: waypoint.Session, sessions: Callable[..., waypoint.Session]
    ) -> None:
        other = sessions("victim")
        secret = other.checkpoint("the secret plan", name="secret")
        younger = waypoint.session("seed").checkpoint("not for its forks")
        foreign = ("victim:secret", "victim/c1", "secret", secret.id, secret.id[:6], younger.id, "seed:c2")
        for ref in foreign:
            for verb in ("show", "diff"):
                said = fresh.run(f"waypoint {verb} {ref}")
                assert said.exit_code == 4, (verb, ref, said.output)
                assert "plan" not in said.output
        for words in ("log -s victim", "status --session=victim", "checkpoint x -s victim"):
            assert fresh.run(f"waypoint {words}").exit_code == 4
        told = fresh.run("waypoint log --json; waypoint status --json; waypoint log --all").output
        assert "victim" not in told
        assert len(other.log()) == 1

    def test_the_folder_cannot_be_written_to(self, fresh: waypoint.Session, folder_of: FolderOf) -> None:
        self._cannot_write(fresh, folder_of)
        point = fresh.checkpoint("before")
        self._cannot_write(point.fork(name="copy")[0], folder_of)
        fresh.restore(point)
        self._cannot_write(fresh, folder_of)

    def _cannot_write(self, session: waypoint.Session, folder_of: FolderOf) -> None:
        session.run("""
            cd /dev/waypoint.inside
            rm -f socket; mv socket x; touch y; mkdir replies/z; echo other > name; echo other > id
            ln -s /etc/passwd replies/$(printf a%.0s {1..32}); rm -rf replies
            mount -o remount,rw /dev/waypoint.inside; mount --bind /tmp replies
            python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("/dev/waypoint.inside/mine")'
        """)
        folder = folder_of(session)
        assert sorted(os.listdir(folder)) == ["id", "name", "replies", "socket"]
        assert (folder / "name").read_text().strip() == session.name
        assert os.listdir(folder / "replies") == []
        assert session.run("waypoint log").exit_code == 0

    def test_other_boxes_and_the_daemon_cannot_be_reached(self, fresh: waypoint.Session, home: Home) -> None:
        listed = fresh.run(
            f"ls -A {home.run} /run/waypoint {home.path} 2>/dev/null; ls -A /dev/waypoint.inside/.."
        )
        assert ".inside" not in listed.output.replace("waypoint.inside", "")
        for path in (home.socket, *home.run.glob("*.inside/socket")):
            said = self._python(
                fresh,
                f"""
                try:
                    connect({str(path)!r})
                    print("connected")
                except OSError as error:
                    print("no")
                """,
            )
            assert said == "no\n", path

    def test_garbage_is_refused_and_changes_nothing(
        self, fresh: waypoint.Session, folder_of: FolderOf
    ) -> None:
        said = self._python(
            fresh,
            r"""
            good = "b" * 32
            for packet in (
                b"x", b"\0" * 9, os.urandom(4000), b"a" * 150000, request("log")[:-1],
                request("log", ticket="../../../../etc/passwd"), request("log", ticket="A" * 32),
                request("log", ticket="b" * 31 + "/"), request("log", kind="restore"),
                request("log", cwd="srv"),
            ):
                print(send(packet))
            for words in (
                ("log", "\udcff" * 9), ("show", "../../waypoint.db"),
                ("diff", "@", "now", "/../../etc/shadow"),
                ("checkpoint", "--name", "../../x"), ("log", "-n", "9" * 5000), ("log", "-n", "²"),
            ):
                words = ("1", good, "ask", "x", "/", *words)
                print(send(b"".join(w.encode(errors="surrogateescape") + b"\0" for w in words)))
                import time
                for _ in range(2000):
                    if os.path.lexists(f"/dev/waypoint.inside/replies/{good}"):
                        break
                    time.sleep(0.01)
                first = os.readlink(f"/dev/waypoint.inside/replies/{good}")
                print("status", first.split()[0])
                send(request(ticket=good, kind="done"))
            """,
        ).splitlines()
        refusals, rest = said[:10], said[10:]
        assert "ok" not in refusals
        assert rest[::2] == ["ok"] * 6
        assert [line.split()[1] for line in rest[1::2]] == ["2", "4", "0", "2", "0", "2"]
        assert os.listdir(folder_of(fresh) / "replies") == []
        assert fresh.log() == []

    def test_floods_neither_stop_the_daemon_nor_the_points_of_the_session(
        self, fresh: waypoint.Session
    ) -> None:
        """Hundreds that connect and say nothing, hundreds that ask, all at once; and a person beside them."""
        fresh.run(
            "cat >/srv/flood",
            stdin=PROBE.encode()
            + textwrap.dedent(r"""
                import threading, itertools, time
                held = []
                def silent():
                    while True:
                        try:
                            held.append(connect())
                            del held[:-100]
                        except OSError:
                            time.sleep(0.001)
                def busy(n):
                    for number in itertools.count():
                        try:
                            send(request("log", ticket=f"{n:016x}{number:016x}"))
                        except OSError:
                            time.sleep(0.001)
                for n in range(4):
                    threading.Thread(target=silent, daemon=True).start()
                    threading.Thread(target=busy, args=(n,), daemon=True).start()
                while not os.path.exists("/srv/end"):
                    time.sleep(0.05)
                os._exit(0)
            """).encode(),
        ).check()
        answered = "$(ls /dev/waypoint.inside/replies | wc -l)"
        fresh.run(f"python3 /srv/flood & while [ {answered} -lt 20 ]; do sleep 0.02; done").check()
        client = waypoint.Client()
        before = client.call("daemon_status")
        points = [fresh.checkpoint(f"in the flood {number}") for number in range(3)]
        assert client.call("ping")["pid"] == before["pid"]
        threads = len(os.listdir(f"/proc/{before['pid']}/task"))
        descriptors = len(os.listdir(f"/proc/{before['pid']}/fd"))
        assert threads < 80
        assert descriptors < 200
        fork = points[-1].fork(name="beside")[0]
        assert fork.run("touch /srv/end; wait").ok
        assert fork.run("waypoint status").exit_code == 0
        assert fresh.run("touch /srv/end; wait; waypoint status").exit_code == 0

    def test_points_cannot_be_taken_without_end(self, fresh: waypoint.Session) -> None:
        said = fresh.run("for n in $(seq 70); do waypoint checkpoint --files-only $n || break; done; echo $n")
        number = int(said.output.splitlines()[-1])
        assert 60 <= number < 70
        assert "in a short time" in said.output
        fresh.checkpoint("a person still can")

    def test_words_cannot_be_kept_without_end(self, fresh: waypoint.Session) -> None:
        fresh.run("head -c 90000 /dev/urandom | base64 -w0 >/srv/long").check()
        said = fresh.run(
            "for n in $(seq 90); do waypoint record note - </srv/long >/dev/null || break; done; echo $n"
        )
        assert 60 <= int(said.output.splitlines()[-1]) < 90
        assert "very much in a short time" in said.output
        assert fresh.run("waypoint log").exit_code == 0
        too_long = fresh.run("cat /srv/long /srv/long | waypoint record note -")
        assert (too_long.exit_code, "the request is too long" in too_long.output) == (9, True)

    def test_answers_to_oneself_help_nobody(self, fresh: waypoint.Session, folder_of: FolderOf) -> None:
        """On the host's side, too, nothing in the folder is followed or overwritten."""
        ticket = "c" * 32
        target = folder_of(fresh) / "replies" / ticket
        target.symlink_to("/etc/hostname")
        said = self._python(fresh, f"print(send(request('log', ticket={ticket!r})))")
        assert said == "ok\n"
        assert fresh.run("waypoint log").exit_code == 0
        assert os.readlink(target) == "/etc/hostname"
        target.unlink()

    def test_a_trial_is_no_session(self, fresh: waypoint.Session) -> None:
        point = fresh.checkpoint("tried")
        verdict = point.verify("timeout 30 waypoint checkpoint 'from a trial'")
        assert verdict is not None
        assert verdict.state == "failed"
        assert "throwaway copy" in verdict.output
        assert len(fresh.log()) == 1
