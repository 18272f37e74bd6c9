"""The shell and its terminal come back as they were: through a restore of the session and in a fork of it."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import TypeVar

import pytest
from tests.waiting import Revive, shows, until

import waypoint
from waypoint import errors
from waypoint.home import Home

T = TypeVar("T")


def _revive(session: waypoint.Session, point: waypoint.Checkpoint, how: str) -> waypoint.Session:
    if how == "fork":
        return point.fork(name="copy")[0]
    session.restore(point, safety=False)
    return session


@pytest.fixture(params=["restore", "fork"])
def revive(request: pytest.FixtureRequest) -> Revive:
    """Brings a point back, as the session itself or as a fork: the session to look at."""
    return lambda session, point: _revive(session, point, request.param)


# ---- what bash has in its memory -----------------------------------------------------------------

_STATE = r"""
mkdir -p '/tmp/a folder/below' && cd '/tmp/a folder' && pushd below >/dev/null
umask 027; ulimit -n 321
export EXPORTED='two words
and a second line' EMPTY=
unexported=$'\x01\xff'; declare -a list=(one 'two three' [7]=seven); declare -A map=([k y]='v w')
declare -i number=5; readonly fixed=stone; declare -n reference=unexported
greet() { local who=$1; echo "hello $who from ${FUNCNAME[0]}"; }
export -f greet
alias ll='echo aliased' '..=cd ..'
set -o noclobber -o pipefail; set +o histexpand; shopt -s globstar nullglob; shopt -u sourcepath
trap 'echo hangup' HUP; trap 'echo custom' USR1
set -- first 'second one'
exec 7>/tmp/seven; echo one >&7
complete -W 'alpha beta' greet; bind '"\C-xq": "quoted"'; hash -p /bin/true known
WAYPOINT_PROMPT=off PS1='prompt> '; IFS=$' \t\n:'; HISTSIZE=77
history -c
"""
_UNDO = r"""
cd /; dirs -c; umask 0; unset EXPORTED unexported list map reference; unset -f greet; unalias -a
trap - HUP USR1
set +o noclobber +o pipefail; shopt -u globstar nullglob; set --; exec 7>&-; history -c; PS1='$ '; hash -r
"""


@pytest.fixture(scope="class", params=["restore", "fork"])
def shell(home: Home, request: pytest.FixtureRequest) -> Iterator[waypoint.Session]:
    """A shell with all of that set, saved, unset and brought back."""
    session = waypoint.session("t")
    session.run(_STATE).check()
    session.run("echo 'said before'; (exit 3)")
    session.type("echo typed by hand\r")
    shows(session, "^typed by hand")
    pid = session.run("echo $$").output
    point = session.checkpoint()
    session.run(_UNDO).check()
    revived = _revive(session, point, request.param)
    assert revived.run("echo $$").output == pid
    yield revived
    for one in waypoint.sessions():
        one.remove()


class TestTheShellsMemory:
    """One point, brought back once each way, looked at from many sides."""

    def test_the_folder_and_the_folders_behind_it(self, shell: waypoint.Session) -> None:
        assert shell.run('pwd; echo "$OLDPWD"').output == "/tmp/a folder/below\n/tmp/a folder\n"
        assert shell.run("dirs -p").output == "/tmp/a folder/below\n/tmp/a folder\n"
        assert shell.run("popd >/dev/null && pwd; pushd below >/dev/null").output == "/tmp/a folder\n"

    def test_exported_variables_are_there_for_programs(self, shell: waypoint.Session) -> None:
        told = shell.run("""sh -c 'echo "$EXPORTED"; echo ${EMPTY-unset}; echo ${unexported-unset}'""")
        assert told.output == "two words\nand a second line\n\nunset\n"

    def test_unexported_variables_of_every_kind(self, shell: waypoint.Session) -> None:
        assert shell.run('printf %s "$unexported"').output_bytes == b"\x01\xff"
        assert shell.run('printf %s "$reference"').output_bytes == b"\x01\xff"
        assert shell.run('echo "${list[1]}" "${!list[@]}" "${map[k y]}"').output == "two three 0 1 7 v w\n"
        assert shell.run("number+=2; echo $number; number=5").output == "7\n"
        assert "readonly" in shell.run("fixed=2").output
        assert shell.run('echo $# "$2"; printf %q "$IFS"').output == "2 second one\n$' \\t\\n:'"

    def test_functions_and_aliases(self, shell: waypoint.Session) -> None:
        assert shell.run("greet you").output == "hello you from greet\n"
        assert shell.run("bash -c 'greet child'").output == "hello child from greet\n"
        assert shell.run("ll").output == "aliased\n"
        assert shell.run("alias ..").output == "alias ..='cd ..'\n"

    def test_options(self, shell: waypoint.Session) -> None:
        told = shell.run("set -o; shopt").output
        options = dict(line.split() for line in told.splitlines())
        names = ("noclobber", "pipefail", "histexpand", "globstar", "nullglob", "sourcepath")
        assert [options[name] for name in names] == ["on", "on", "off", "on", "on", "off"]
        assert shell.run("echo x > /tmp/seven").exit_code == 1

    def test_the_mask_and_the_limits(self, shell: waypoint.Session) -> None:
        assert shell.run("umask; ulimit -n; sh -c umask").output == "0027\n321\n0027\n"
        shell.run("rm -f made; touch made").check()
        assert shell.run("stat -c %a made").output == "640\n"

    def test_traps(self, shell: waypoint.Session) -> None:
        assert shell.run("kill -USR1 $$; true").output == "custom\n"
        assert shell.run("trap -p HUP").output == "trap -- 'echo hangup' SIGHUP\n"

    def test_open_descriptors_go_on_where_they_were(self, shell: waypoint.Session) -> None:
        assert shell.run("echo two >&7; cat /tmp/seven").output == "one\ntwo\n"

    def test_what_readline_knows(self, shell: waypoint.Session) -> None:
        assert shell.run("complete -p greet").output == "complete -W 'alpha beta' greet\n"
        assert '"quoted"' in shell.run("bind -s").output
        assert shell.run("hash -t known").output == "/bin/true\n"

    def test_the_history_and_the_key_that_walks_it(self, shell: waypoint.Session) -> None:
        told = shell.run("history; echo $HISTSIZE").output
        said = re.findall(r"^ +\d+  (.*)\n", told, re.MULTILINE)
        assert said[:2] == ["echo 'said before'; (exit 3)", "echo typed by hand"]
        assert told.endswith("\n77\n")
        shell.run("echo found again")
        shows(shell, r"^prompt>\Z")
        shell.type("\x1b[A")
        shows(shell, r"^prompt> echo found again\Z")
        shell.type("\r")
        shows(shell, r"^prompt> echo found again\nfound again\nprompt>\Z")

    def test_the_prompt(self, shell: waypoint.Session) -> None:
        shows(shell, r"^prompt>\Z")
        shell.type("\r")
        shows(shell, r"^prompt>\nprompt>\Z")


def test_the_status_of_the_last_command(session: waypoint.Session, revive: Revive) -> None:
    session.run("(exit 9)")
    revived = revive(session, session.checkpoint())
    assert revived.run("echo $?").output == "9\n"


def test_a_folder_that_was_deleted_under_the_shell(session: waypoint.Session, revive: Revive) -> None:
    session.run("mkdir /tmp/gone && cd /tmp/gone && rmdir /tmp/gone").check()
    revived = revive(session, session.checkpoint())
    assert revived.run("readlink /proc/$$/cwd").output == "/tmp/gone (deleted)\n"
    assert revived.run("ls -d /tmp/gone").exit_code == 2
    assert revived.run("touch x").exit_code == 1
    assert revived.run("cd /tmp && pwd").output == "/tmp\n"


def test_a_shell_whose_output_goes_to_a_file(session: waypoint.Session, revive: Revive) -> None:
    session.run("exec >/tmp/out; echo one").check()
    revived = revive(session, session.checkpoint())
    assert revived.run("echo two").output == ""
    assert revived.run("cat /tmp/out >/dev/tty").output == "one\ntwo\n"


def test_a_coprocess_and_a_process_substitution_stay_connected(
    session: waypoint.Session, revive: Revive
) -> None:
    session.run('coproc while read line; do echo "got $line"; done; exec 5< <(seq 1 100000)').check()
    assert session.run("echo a >&${COPROC[1]}; read -u ${COPROC[0]} r; echo $r").output == "got a\n"
    assert session.run("read -u 5 n; echo $n").output == "1\n"
    revived = revive(session, session.checkpoint())
    assert revived.run("echo b >&${COPROC[1]}; read -u ${COPROC[0]} r; echo $r").output == "got b\n"
    assert revived.run("read -u 5 n; echo $n; tail -n 1 <&5").output == "2\n100000\n"


# ---- jobs ----------------------------------------------------------------------------------------

_COUNTER = 'n=0; while read -r line; do n=$((n + 1)); echo "$n:$line"; done'


def test_background_jobs_run_on_and_are_in_the_job_table(session: waypoint.Session, revive: Revive) -> None:
    session.run("while :; do echo >>/tmp/beats; sleep 0.05; done & sleep 1000 & sleep 2000 | cat &").check()
    before = session.run("jobs -l").output
    assert before.count("Running") == 3
    point = session.checkpoint()
    session.run("kill %1 %2 %3; wait")
    revived = revive(session, point)
    assert revived.run("jobs -l").output == before
    beats = len(revived.run("cat /tmp/beats").output)
    until(lambda: len(revived.run("cat /tmp/beats").output) > beats)
    done = revived.run("kill %2; wait %2")
    assert done.exit_code == 143
    assert revived.run("jobs").output.count("Running") == 2


def test_a_background_job_can_be_brought_to_the_foreground(session: waypoint.Session, revive: Revive) -> None:
    session.type("cat >/tmp/got &\r")  # it reads the terminal: stopped at once
    shows(session, r"^\[1\] \d+")
    until(lambda: "Stopped" in session.run("jobs").output)
    session.run("sleep 1000 &")
    revived = revive(session, session.checkpoint())
    assert re.search(r"\[1\].*Stopped.*cat", revived.run("jobs").output)
    revived.type("fg %2\r")
    until(lambda: revived.info.foreground == "sleep 1000")
    revived.type("\x03")
    until(lambda: revived.info.foreground is None)
    assert revived.run("jobs").output.count("\n") == 1


def test_a_stopped_job_stays_stopped_and_goes_on_when_told(session: waypoint.Session, revive: Revive) -> None:
    session.type(f"bash -c '{_COUNTER}'\r")
    until(lambda: (session.info.foreground or "").startswith("bash -c"))
    session.type("one\r")
    shows(session, "^1:one")
    session.type("\x1a")
    shows(session, r"^\[1\]\+  Stopped")
    session.run("python3 -c 'import time; [time.sleep(0.01) for _ in iter(int, 1)]' & kill -STOP $!; spin=$!")
    until(lambda: session.run("ps -o state= $spin").output == "T\n")
    point = session.checkpoint()
    revived = revive(session, point)
    states = "ps -o state= $(jobs -p)"
    assert revived.run(states).output == "T\nT\n"
    revived.type("fg %1\r")
    until(lambda: (revived.info.foreground or "").startswith("bash -c"))
    revived.type("two\r")
    shows(revived, "^2:two")
    revived.type("\x04")
    until(lambda: revived.info.foreground is None)
    assert revived.run("ps -o state= $spin").output == "T\n"
    revived.run("kill -CONT $spin")
    until(lambda: revived.run("ps -o state= $spin").output in ("S\n", "R\n"))


# ---- the terminal --------------------------------------------------------------------------------


def test_a_half_typed_line_at_the_prompt_can_be_finished(session: waypoint.Session, revive: Revive) -> None:
    session.type("echo begXinning end")
    shows(session, r"# echo begXinning end\Z")
    session.type("\x1b[D" * 9)  # the cursor goes behind the X
    point = session.checkpoint()
    session.type("\x05 something else\r")
    shows(session, "^begXinning end something else")
    revived = revive(session, point)
    shows(revived, r"# echo begXinning end\Z")
    revived.type("\x1b[D\x7f")
    shows(revived, r"# echo beginning end\Z")
    revived.type("\x05!\r")
    shows(revived, "^beginning end!$")


def test_a_half_typed_line_of_a_program_can_be_finished(session: waypoint.Session, revive: Revive) -> None:
    session.type(f"bash -c '{_COUNTER}'\r")
    until(lambda: (session.info.foreground or "").startswith("bash -c"))
    session.type("whole\r")
    shows(session, r"^1:whole\Z")
    session.type("halX")
    shows(session, r"^1:whole\nhalX\Z")
    point = session.checkpoint()
    session.type("\r")
    shows(session, "^2:halX")
    revived = revive(session, point)
    shows(revived, r"^1:whole\nhalX\Z")
    revived.type("\x7ff done\r")  # the terminal's own editing works on what was typed before
    shows(revived, "^2:half done")


def test_commands_typed_ahead_run_when_the_prompt_comes(session: waypoint.Session, revive: Revive) -> None:
    session.run("mkfifo /tmp/gate")
    session.type("cat /tmp/gate\r")
    until(lambda: session.info.foreground == "cat /tmp/gate")
    session.type("echo typed ahead\rn=$((n + 1))\recho last, hal")
    shows(session, r"last, hal\Z")
    point = session.checkpoint()
    revived = revive(session, point)
    assert revived.info.foreground == "cat /tmp/gate"
    revived.spawn(["sh", "-c", "echo opened >/tmp/gate"]).communicate()
    shows(revived, "^typed ahead")
    shows(revived, r"# echo last, hal\Z")
    revived.type("f\r")
    shows(revived, "^last, half")
    assert revived.run("echo $n").output == "1\n"


def test_lines_and_ends_typed_ahead_are_there_when_a_program_reads(
    session: waypoint.Session, revive: Revive
) -> None:
    session.run("mkfifo /tmp/gate")
    session.type("sh -c 'cat /tmp/gate; cat >/tmp/first; cat >/tmp/second'\r")
    until(lambda: (session.info.foreground or "").startswith("sh -c"))
    session.type("one\rtwo\r\x04thr")
    shows(session, r"^one\ntwo\nthr\Z")
    revived = revive(session, session.checkpoint())
    revived.spawn(["sh", "-c", "echo opened >/tmp/gate"]).communicate()
    shows(revived, "opened")
    revived.type("ee\r\x04")
    until(lambda: revived.info.foreground is None)
    assert revived.run("cat /tmp/first; echo; cat /tmp/second").output == "one\ntwo\n\nthree\n"


def test_a_line_that_was_put_aside_for_a_command_comes_back(
    session: waypoint.Session, revive: Revive
) -> None:
    session.run("mkfifo /tmp/gate")
    session.type("echo half")
    shows(session, r"# echo half\Z")
    beside = waypoint.session(session.name)
    runner = threading.Thread(target=lambda: _ignore_end(beside, "cat /tmp/gate"), daemon=True)
    runner.start()
    until(lambda: session.info.foreground == "cat /tmp/gate")
    revived = revive(session, session.checkpoint())
    revived.spawn(["sh", "-c", "echo opened >/tmp/gate"]).communicate()
    shows(revived, r"^opened\n.*# echo half\Z")
    revived.type(" done\r")
    shows(revived, "^half done")
    if revived.name != session.name:
        session.spawn(["sh", "-c", "echo opened >/tmp/gate"]).communicate()
    runner.join()


def _ignore_end(session: waypoint.Session, command: str) -> None:
    with contextlib.suppress(errors.SessionDead):
        session.run(command)


def test_the_screen_looks_the_same(session: waypoint.Session, revive: Revive) -> None:
    session.run("seq 1 30; printf '\\e[31mred\\e[0m \\e]2;title\\a'")
    session.type("printf '\\e[5;10Hhere'; sleep 1000\r")
    shows(session, "here")
    until(lambda: session.info.foreground == "sleep 1000")
    client = waypoint.Client()
    before = client.call("screen", {"session": session.name})
    point = session.checkpoint()
    session.type("\x03clear\r")
    until(lambda: "here" not in session.screen())
    revived = revive(session, point)
    assert client.call("screen", {"session": revived.name}) == before
    revived.type("\x03")
    until(lambda: revived.info.foreground is None)
    assert revived.run("stty size </dev/tty").output == "24 80\n"


def test_a_program_that_holds_dev_tty_open(session: waypoint.Session, revive: Revive) -> None:
    session.run("exec 8<>/dev/tty").check()
    session.type("python3 -c 'import getpass; print(len(getpass.getpass()))'\r")
    shows(session, r"^Password:\Z")
    session.type("sec")
    revived = revive(session, session.checkpoint())
    revived.type("ret\r")
    shows(revived, "^6$")
    until(lambda: revived.info.foreground is None)
    assert revived.run("echo through >&8").output == "through\n"


def test_a_terminal_in_raw_mode_stays_raw(session: waypoint.Session, revive: Revive) -> None:
    program = "import os, sys, tty; tty.setraw(0); print('raw', end='', flush=True)\n"
    program += "while (key := os.read(0, 1)) != b'q': os.write(1, b'<%02x>' % key[0])"
    session.run(f"cat >/tmp/keys.py <<'END'\n{program}\nEND").check()
    session.type("python3 /tmp/keys.py\r")
    shows(session, "^raw")
    revived = revive(session, session.checkpoint())
    revived.type("a\x03\x1a\r")
    shows(revived, "^raw<61><03><1a><0d>")
    revived.type("q")
    until(lambda: revived.info.foreground is None)
    assert revived.run("echo sane").output == "sane\n"


# ---- shells in shells ----------------------------------------------------------------------------


def test_nested_shells_keep_their_variables_each(session: waypoint.Session, revive: Revive) -> None:
    session.type("level=outer WAYPOINT_PROMPT=off; PS1='outer> '\r")
    shows(session, r"^outer> \Z|^outer>\Z")
    session.type("bash --norc\rlevel=inner; PS1='inner> '\r")
    shows(session, r"^inner>\Z")
    session.type("dash\r")
    shows(session, r"^#\s*\Z")
    session.type("level=innermost; PS1='dash> '; sleep 1000 &\r")
    shows(session, r"^dash>\Z")
    point = session.checkpoint()
    session.type("exit\rexit\r")
    until(lambda: session.info.foreground is None)
    revived = revive(session, point)
    revived.type("echo 1-$level; kill $! && echo job there\r")
    shows(revived, "^1-innermost\njob there")
    revived.type("exit\r")
    shows(revived, r"^inner>\Z")
    revived.type("echo 2-$level\r")
    shows(revived, "^2-inner$")
    revived.type("sleep 1000\r")
    until(lambda: revived.info.foreground == "sleep 1000")
    revived.type("\x1a")
    shows(revived, "Stopped")
    revived.type("fg\r")
    until(lambda: revived.info.foreground == "sleep 1000")
    revived.type("\x03")
    shows(revived, r"inner>\Z")
    revived.type("exit\r")
    until(lambda: revived.info.foreground is None)
    assert revived.run("echo 3-$level").output == "3-outer\n"


def test_vim_in_the_middle_of_an_insertion_in_a_nested_shell(
    session: waypoint.Session, revive: Revive
) -> None:
    session.type("bash --norc\r")
    until(lambda: session.info.foreground == "bash --norc")
    session.type("vim -u NONE -N /tmp/text\r")
    shows(session, '"/tmp/text"')
    session.type("ione\rtwo, begun")
    shows(session, "^two, begun")
    point = session.checkpoint()
    session.type("\x1b:q!\r")
    until(lambda: session.info.foreground == "bash --norc")
    revived = revive(session, point)
    shows(revived, "^one\ntwo, begun\n~")
    revived.type(" and ended\rthree\x1b:wq\r")
    until(lambda: revived.info.foreground == "bash --norc")
    revived.type("echo nested $?; tty; exit\r")
    shows(revived, "^nested 0\n/dev/pts/0")
    until(lambda: revived.info.foreground is None)
    assert revived.run("cat /tmp/text").output == "one\ntwo, begun and ended\nthree\n"
