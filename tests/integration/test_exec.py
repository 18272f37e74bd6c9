"""A command in the session's shell gives back exactly what it printed and how it ended, whatever it is and
whatever has been done to the shell; a program beside the shell has streams of its own.
"""

from __future__ import annotations

import re
import threading
import time

import pytest
from tests.waiting import until

import waypoint
from waypoint import errors

# ---- output and exit code ------------------------------------------------------------------------


def test_output_and_exit_code_are_those_of_the_command(session: waypoint.Session) -> None:
    done = session.run("echo out; echo err >&2; (exit 42)")
    assert (done.output, done.exit_code, done.ok) == ("out\nerr\n", 42, False)
    assert session.run("").output == ""
    assert session.run("true").exit_code == 0
    assert session.run("no-such-command-here").exit_code == 127
    assert session.run("kill -SEGV $BASHPID &>/dev/null | cat; sh -c 'kill -TERM $$'").exit_code == 143


def test_the_status_of_a_command_is_there_for_the_next(session: waypoint.Session) -> None:
    session.run("(exit 7)")
    assert session.run("echo $?").output == "7\n"


def test_no_final_newline_is_added_and_none_is_lost(session: waypoint.Session) -> None:
    assert session.run("printf x").output == "x"
    assert session.run(r"printf 'x\n\n'").output == "x\n\n"
    assert session.run(r"printf 'a\r\nb\r\r\n\r'").output_bytes == b"a\r\nb\r\r\n\r"


def test_commands_of_several_lines_and_here_documents_run_as_written(session: waypoint.Session) -> None:
    loop = "for i in 1 2; do\n  if [ $i = 2 ]; then\n    echo two\n  fi\ndone\n# the end\n"
    assert session.run(loop).output == "two\n"
    text = "cat <<'A' && cat <<B\nliteral $HOME `x`\nA\n\texpanded $((6 * 7))\nB\necho after"
    assert session.run(text).output == "literal $HOME `x`\n\texpanded 42\nafter\n"
    session.run('greet() {\n  echo "hello $1"\n}').check()
    assert session.run("greet you").output == "hello you\n"


@pytest.mark.parametrize(
    "broken", ["if then", "echo 'never closed", "echo $((", "for", "a | | b", ")", "{ echo"]
)
def test_a_syntax_error_is_an_error_with_its_message_and_nothing_more(
    session: waypoint.Session, broken: str
) -> None:
    done = session.run(broken, timeout=10)
    assert done.exit_code not in (0, None)
    assert "syntax error" in done.output or "unexpected EOF" in done.output
    assert session.run("echo usable").output == "usable\n"


def test_exit_ends_the_shell_with_that_code_and_the_next_command_has_a_new_one(
    session: waypoint.Session,
) -> None:
    session.run("cd /tmp; gone=1")
    done = session.run("echo bye; exit 3")
    assert done.exit_code == 3
    assert done.output.startswith("bye\n")
    assert done.notice is not None
    assert "new one" in done.notice
    assert session.run("echo [$gone]").output == "[]\n"
    assert session.run("kill -9 $$").exit_code == 137
    assert session.run("exec sh -c 'echo replaced; exit 4'").exit_code == 4
    assert session.run("echo usable").output == "usable\n"


def test_binary_output_is_exact(session: waypoint.Session) -> None:
    program = "import os; os.write(1, bytes(range(256)) * 3 + b'\\r\\n\\r\\r\\n\\x1b]133;D;0\\x07\\x1b]133;')"
    done = session.run(f'python3 -c "{program}"')
    assert done.output_bytes == bytes(range(256)) * 3 + b"\r\n\r\r\n\x1b]133;D;0\x07\x1b]133;"
    assert done.exit_code == 0
    assert session.run("echo usable").output == "usable\n"


def test_text_of_any_language_goes_both_ways(session: waypoint.Session) -> None:
    text = "Grüße, 日本語, עברית, 👩\u200d💻, e\u0301"
    assert session.run(f"echo '{text}'").output == text + "\n"
    assert session.run("cat", stdin=text).output == text


def test_quotes_exclamation_marks_backslashes_and_tabs_arrive_as_written(session: waypoint.Session) -> None:
    hard = 'it\'s "so" \\ \\\\ ! !! !$ !echo ^a^b $HOME `x` $(x) \t * ? [a] ~ # & | ; < > {a,b} \\n %s'
    assert session.run("cat <<'END'\n" + hard + "\nEND").output == hard + "\n"
    assert session.run("printf '%s|' \"a!b\" 'c\td' e\\ f $'g\\'h'").output == "a!b|c\td|e f|g'h|"


def test_a_very_long_command_runs(session: waypoint.Session) -> None:
    word = "0123456789" * 20_000
    assert session.run(f"printf %s {word}", timeout=50).output == word
    with pytest.raises(errors.UsageError, match="too much"):
        session.run(": " + "x" * (2 << 20))
    assert session.run("echo usable").output == "usable\n"


def test_a_flood_of_output_is_cut_in_the_middle_and_says_so(session: waypoint.Session) -> None:
    started = time.monotonic()
    done = session.run("seq 1 6500000", timeout=50)
    assert time.monotonic() - started < 20
    assert done.truncated
    assert done.exit_code == 0
    assert len(done.output) < 1_100_000
    head, notice, tail = done.output.partition("\n[waypoint: ")
    assert head.startswith("1\n2\n3\n")
    assert "bytes left out here]\n" in notice + tail
    assert tail.endswith("\n6499999\n6500000\n")
    small = session.run("seq 1 1000", max_output_bytes=100)
    assert small.truncated
    assert small.output.startswith("1\n2\n")
    assert small.output.endswith("999\n1000\n")


def test_output_is_streamed_in_order_while_the_command_runs(session: waypoint.Session) -> None:
    pieces: list[str] = []
    seen = threading.Event()

    def hear(piece: str) -> None:
        pieces.append(piece)
        if "first" in "".join(pieces) and not seen.is_set():
            seen.set()
            session_beside.spawn(["touch", "/tmp/go"]).communicate()

    session_beside = waypoint.session(session.name)
    done = session.run(
        "echo first; until [ -e /tmp/go ]; do :; done; seq 1 300000", on_output=hear, timeout=30
    )
    assert seen.is_set()
    assert done.exit_code == 0
    assert done.truncated
    assert "".join(pieces) == done.output


def test_standard_input_is_empty_unless_given(session: waypoint.Session) -> None:
    assert session.run("cat; echo end", timeout=10).output == "end\n"
    assert session.run("read line; echo $?", timeout=10).output == "1\n"
    assert session.run("cat", stdin="one\ntwo").output == "one\ntwo"
    raw = bytes(range(256)) + b"\\0001 \\n %s\r\n"
    assert session.run("cat", stdin=raw).output_bytes == raw
    assert session.run("read a; read b; echo $b-$a", stdin="1\n2\n").output == "2-1\n"
    assert session.run("wc -c", stdin="x" * 100_000, timeout=30).output == "100000\n"
    with pytest.raises(errors.UsageError, match="too much"):
        session.run("cat", stdin=b"x" * (2 << 20))


# ---- jobs and time -------------------------------------------------------------------------------


def test_git_log_returns_and_the_variables_of_the_shell_are_as_before(session: waypoint.Session) -> None:
    session.run("export PAGER=less; git init -q /srv/repo; cd /srv/repo; git config user.email a@b")
    session.run("git config user.name n; for i in {1..99}; do git commit -qm $i --allow-empty; done")
    session.checkpoint()
    log = session.run("git log --color=always; env", timeout=20, plain=True)
    assert not log.timed_out
    assert log.output.count("Author: n <a@b>") == 99
    assert "\x1b" not in log.output
    assert "\nPAGER=cat\n" in log.output
    assert "\nDEBIAN_FRONTEND=noninteractive\n" in log.output
    assert "\x1b[33mcommit" in session.run("git log -1 --color=always").output
    assert session.run("sh -c 'echo $PAGER'").output == "less\n"  # it is named: the shell's own
    assert session.run("compgen -e | grep -E '_PAGER|APT|DEBIAN'", tty=True).output == ""
    assert not session.changed()
    # For a terminal man prints what is bold twice, with a backspace between.
    session.write_file("/srv/man", "printf 'N\\bNA\\bA _\\bm \\033[1m–\\033[m\\n' | eval \"$MANPAGER\"")
    assert session.run("sh /srv/man").output == "NA m \x1b[1m–\x1b[m\n"


def test_git_starts_no_editor_and_what_it_starts_does_not_ask(session: waypoint.Session) -> None:
    session.run("export EDITOR=vi GIT_EDITOR=vi GIT_SEQUENCE_EDITOR=vi; git init -q /srv/repo; cd /srv/repo")
    session.run("git config user.email a@b; git config user.name n; git config core.editor vi")
    session.run("for i in 1 2; do git commit -qm $i --allow-empty; done").check()

    def ended(command: str) -> tuple[bool, str]:
        result = session.run(command, timeout=20)
        assert not result.timed_out, result.output
        return result.ok, result.output

    ok, said = ended("git commit --allow-empty")
    assert (ok, "empty commit message" in said) == (False, True), said
    assert ended("git commit -q --amend --allow-empty && git log -1 --format=%s") == (True, "2\n")
    ok, said = ended("git rebase -i HEAD~1")
    assert (ok, "problem with the editor" in said or "could not" in said.lower()) == (False, True), said
    assert ended("GIT_SEQUENCE_EDITOR=: git rebase -qi HEAD~1") == (True, "")
    session.run("git config --unset core.editor")
    program = session.spawn(["git", "commit", "--allow-empty"], cwd="/srv/repo")
    assert b"supply the message" in program.communicate(timeout=20)[1]
    session.run("ssh-keygen -q -N secret -f /tmp/key").check()
    ok, said = ended("ssh-keygen -y -f /tmp/key")
    assert (ok, "passphrase" in said) == (False, True), said
    session.run("printf '#!/bin/sh\\necho secret' > /tmp/ask; chmod +x /tmp/ask; export SSH_ASKPASS=/tmp/ask")
    ok, said = ended("ssh-keygen -y -f /tmp/key")
    assert (ok, said.startswith("ssh-")) == (True, True), said


def test_a_command_that_has_the_terminal_starts_its_pager(session: waypoint.Session) -> None:
    session.run("export DEBIAN_FRONTEND=noninteractive; unset PAGER")
    assert session.run("env", tty=True).output.count("DEBIAN_FRONTEND=noninteractive") == 1
    assert "GIT_PAGER" not in session.run("env", tty=True).output
    command = "seq 500 >/tmp/f; less /tmp/f; echo left"
    waiting = threading.Thread(target=lambda: session.run(command, tty=True))
    waiting.start()
    until(lambda: "less" in (session.info.foreground or ""))
    session.type("q")
    waiting.join(20)
    assert "left" in session.screen()


def test_a_job_that_prints_later_prints_to_the_terminal_not_into_a_result(session: waypoint.Session) -> None:
    start = "(until [ -e /tmp/go ]; do sleep 0.02; done; echo from-the-job; touch /tmp/done) &"
    assert session.run(start).output.startswith("[1] ")
    assert session.run("echo quick").output == "quick\n"
    until(lambda: session.screen().rstrip().endswith("#"))  # the prompt comes after the answer
    session.spawn(["touch", "/tmp/go"]).communicate()
    until(lambda: "# from-the-job" in session.screen())
    until(lambda: session.spawn(["ls", "/tmp/done"]).communicate()[0])
    assert session.run("sleep 0; echo next").output == "next\n"
    # The file is there a moment before the job is over.
    until(lambda: session.run(":").ok and "[1]+  Done" in session.screen())


def test_a_timeout_interrupts_the_command_and_says_so(session: waypoint.Session) -> None:
    session.run("kept=1")
    done = session.run("echo begun; sleep 1000; echo never", timeout=0.5)
    assert done.timed_out
    assert not done.ok
    assert done.exit_code == 130
    assert done.output.startswith("begun\n")
    assert "never" not in done.output
    assert session.run("echo $kept").output == "1\n"
    spinning = session.run("while :; do :; done", timeout=0.5)
    assert (spinning.timed_out, spinning.exit_code) == (True, 130)
    assert session.run("echo $kept; jobs").output == "1\n"


def test_a_program_that_ignores_the_interrupt_is_ended_all_the_same(session: waypoint.Session) -> None:
    session.run("kept=1")
    done = session.run("""sh -c 'trap "" INT TERM; sleep 1000; sleep 1000'""", timeout=0.3)
    assert (done.timed_out, done.exit_code) == (True, 137)
    assert session.run("echo $kept").output == "1\n"
    loop = session.run("""while :; do sh -c 'trap "" INT; sleep 1000'; done""", timeout=0.3)
    assert loop.timed_out
    assert session.run("pgrep -c sleep").output == "0\n"


def test_a_shell_that_hears_no_interrupt_is_replaced(session: waypoint.Session) -> None:
    done = session.run("trap '' INT; while :; do :; done", timeout=0.3)
    assert done.timed_out
    assert done.notice is not None
    assert "new one" in done.notice
    assert session.run("echo usable").output == "usable\n"


def test_commands_from_several_threads_take_turns(session: waypoint.Session) -> None:
    session.run("n=0")
    results: list[tuple[int, str]] = []

    def work(number: int) -> None:
        own = waypoint.session(session.name)
        done = own.run(f"echo {number}; n=$((n + 1)); sleep 0.03; echo {number}")
        results.append((number, done.output))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [(number, f"{number}\n{number}\n") for number in range(8)]
    assert session.run("echo $n").output == "8\n"


def test_a_command_waits_for_its_turn_no_longer_than_it_may_take(session: waypoint.Session) -> None:
    other = threading.Thread(target=lambda: waypoint.session(session.name).run("sleep 1000"))
    other.start()
    try:
        until(lambda: "sleep 1000" in session.screen())
        with pytest.raises(errors.SessionBusy, match="another command has run in the shell"):
            session.run("echo no", timeout=0.2)
    finally:
        session.interrupt()
        other.join()
    assert session.run("echo yes", timeout=20).output == "yes\n"


def test_a_full_screen_program_in_the_foreground_makes_the_session_busy(session: waypoint.Session) -> None:
    session.type("vim -u NONE /tmp/x\r")
    until(lambda: '"/tmp/x"' in session.screen())
    with pytest.raises(errors.SessionBusy, match="vim"):
        session.run("echo no")
    beside = session.spawn(["echo", "beside"])
    assert beside.communicate() == (b"beside\n", b"")
    session.type("\x1b:q!\r")
    until(lambda: session.info.foreground is None)
    assert session.run("echo yes").output == "yes\n"


def test_a_line_being_typed_is_put_aside_and_comes_back(session: waypoint.Session) -> None:
    session.type("echo half")
    until(lambda: session.screen().endswith("# echo half"))
    assert session.run("echo whole").output == "whole\n"
    until(lambda: session.screen().endswith("# echo half"))
    assert session.spawn(["true"], shell_env=True).communicate() == (b"", b"")
    until(lambda: session.screen().endswith("# echo half"))
    session.type("-typed\r")
    until(lambda: "\nhalf-typed\n" in session.screen())


def test_a_command_waits_for_one_that_was_typed_at_the_same_moment(session: waypoint.Session) -> None:
    for number in range(20):
        session.type(f"sleep 0.05; typed={number}\r")
        try:
            assert session.run("echo $typed", timeout=10).output == f"{number}\n"
        except errors.SessionBusy:  # it had begun
            until(lambda: session.info.foreground is None)


# ---- what people do to their shell ---------------------------------------------------------------


def test_set_u_and_set_x_and_set_v_in_the_session_do_no_harm(session: waypoint.Session) -> None:
    session.run("set -u").check()
    unbound = session.run("echo $not_set; echo never")
    assert unbound.exit_code == 1
    assert "unbound variable" in unbound.output
    assert session.run("echo usable", stdin="").output == "usable\n"
    session.run("set +u; set -x").check()
    assert session.run("echo traced").output == "++ echo traced\ntraced\n"
    assert session.run("false").exit_code == 1
    assert "syntax error" in session.run("if then").output
    assert session.run("set +x; echo quiet").output == "++ set +x\nquiet\n"
    session.run("set -v").check()
    assert session.run("echo seen").output == "echo seen\nseen\n"


def test_set_e_ends_the_shell_at_the_first_failure_and_not_before(session: waypoint.Session) -> None:
    session.run("set -e").check()
    assert session.run("false || echo saved").output == "saved\n"
    assert session.run("if false; then :; fi; echo on").output == "on\n"
    failed = session.run("echo before; false; echo never")
    assert (failed.output, failed.exit_code) == ("before\n", 1)
    assert failed.notice is not None
    assert session.run("echo new; false; echo on").output == "new\non\n"


def test_prompt_and_hooks_may_be_changed_at_will(session: waypoint.Session) -> None:
    for change in (
        "PS1='$ '",
        "PROMPT_COMMAND='PS1=\"> \"'",
        "PROMPT_COMMAND=(true 'PS1=\"% \"')",
        "PROMPT_COMMAND+=('PS1=\"+ \"')",
        "unset PROMPT_COMMAND; PS1='all gone '",
        "PROMPT_COMMAND=() PS1= PS0=",
        "unset PS0 PS1 PS2 PROMPT_COMMAND HISTIGNORE HISTCONTROL",
        "shopt -u promptvars; IFS=x; shopt -s nullglob; set -o posix",
    ):
        assert session.run(change, timeout=10).exit_code == 0, change
        done = session.run("echo works; (exit 5)", timeout=10)
        assert (done.output, done.exit_code, done.timed_out) == ("works\n", 5, False), change


def test_an_interrupted_command_that_removed_the_hooks_still_ends(session: waypoint.Session) -> None:
    done = session.run("unset PROMPT_COMMAND; sleep 1000", timeout=0.3)
    assert (done.timed_out, done.exit_code) == (True, 130)
    assert session.run("echo usable; (exit 6)", timeout=10).exit_code == 6


def test_traps_in_the_shell_do_no_harm(session: waypoint.Session) -> None:
    session.run("trap 'echo debug' DEBUG; trap 'echo failed' ERR").check()
    done = session.run("echo hello; (exit 9)", timeout=10)
    assert "\nhello\n" in done.output
    assert "failed\n" in done.output
    assert done.exit_code == 9
    assert "failed" not in session.run("trap - DEBUG; echo fine").output
    session.run("trap - ERR; trap 'echo goodbye' EXIT").check()
    ended = session.run("exit 2")
    assert ended.exit_code == 2
    assert ended.output.endswith("goodbye\n")


def test_history_has_the_commands_and_nothing_of_ours(session: waypoint.Session) -> None:
    session.run("history -c; HISTCONTROL=erasedups")
    for command in ("echo one", " echo two", "HISTIGNORE=ls", "echo one", "echo a\necho b"):
        session.run(command)
    shown = re.split(r"^ +\d+  ", session.run("history").output, flags=re.MULTILINE)
    assert shown == ["", " echo two\n", "HISTIGNORE=ls\n", "echo one\n", "echo a\necho b\n", "history\n"]
    session.run("set +o history; echo secret")
    session.run("echo secret too; set -o history")
    assert "secret too" not in session.run("history").output


def test_redirecting_the_shells_own_streams_redirects_them(session: waypoint.Session) -> None:
    session.run("exec >/tmp/out").check()
    assert session.run("echo to the file; (exit 4)").exit_code == 4
    assert session.run("echo said >&2").output == "said\n"
    assert session.run("exec >/dev/tty; cat /tmp/out").output == "to the file\n"
    assert session.run("exec 2>/tmp/err", timeout=10).exit_code == 0
    done = session.run("echo seen; no-such-command", timeout=10)
    assert (done.output, done.exit_code) == ("seen\n", 127)
    assert (
        session.run("exec 2>/dev/tty; grep -c 'no-such-command: command not found$' /tmp/err").output == "1\n"
    )
    assert "not found" in session.run("no-such-command", timeout=10).output


def test_vi_keys_make_no_difference(session: waypoint.Session) -> None:
    session.run("set -o vi").check()
    assert session.run("echo insert").output == "insert\n"
    session.type("echo half\x1b")
    until(lambda: session.screen().endswith("# echo half"))
    assert session.run("echo command").output == "command\n"
    assert session.run("set -o emacs; echo back").output == "back\n"


def test_a_folder_that_is_gone_is_no_reason_to_stop(session: waypoint.Session) -> None:
    session.run("mkdir /tmp/gone && cd /tmp/gone && rmdir /tmp/gone").check()
    assert session.run("echo here").output == "here\n"
    assert session.run("exit 1").exit_code == 1
    assert session.run("cd /tmp && pwd").output == "/tmp\n"


# ---- programs beside the shell -------------------------------------------------------------------


def test_a_program_has_streams_and_an_exit_code_of_its_own(session: waypoint.Session) -> None:
    program = session.spawn(["sh", "-c", "cat; echo wrong >&2; [ -t 0 ] || exit 5"])
    assert program.communicate(b"in") == (b"in", b"wrong\n")
    assert program.exit_code == 5
    killed = session.spawn(["sh", "-c", "kill -9 $$"])
    killed.communicate()
    assert killed.exit_code == 137
    there = session.spawn(["pwd"], cwd="/usr/share")
    assert there.communicate()[0] == b"/usr/share\n"
    told = session.spawn(["sh", "-c", "echo $A-$B"], env={"A": "1", "B": "x y"})
    assert told.communicate()[0] == b"1-x y\n"


def test_much_data_goes_through_a_program_whole(session: waypoint.Session) -> None:
    data = bytes(range(251)) * 40_000
    program = session.spawn(["tee", "/dev/stderr"])
    assert program.communicate(data) == (data, data)


def test_a_slow_reader_loses_nothing_of_an_ended_programs_output(session: waypoint.Session) -> None:
    program = session.spawn(["sh", "-c", "head -c 320000 /dev/zero; touch /tmp/all-written"])
    events = program.events()
    received = len(next(events)[1])
    # The rest waits in the buffers on the way: the program has ended by then, or waits itself.
    deadline = time.monotonic() + 2
    while not session.spawn(["ls", "/tmp/all-written"]).communicate()[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert received + sum(len(data) for _, data in events) == 320_000


def test_a_program_that_does_not_exist_is_an_error_that_says_so(session: waypoint.Session) -> None:
    with pytest.raises(errors.NotFound, match=r"no-such-program.*No such file"):
        session.spawn(["no-such-program"])
    with pytest.raises(errors.NotFound, match=r"/etc/passwd.*Permission denied"):
        session.spawn(["/etc/passwd"])
    with pytest.raises(errors.NotFound, match="in /no/such/folder"):
        session.spawn(["ls"], cwd="/no/such/folder")
    with pytest.raises(errors.UsageError):
        session.spawn([])


def test_a_program_can_have_the_shells_folder_and_exported_variables(session: waypoint.Session) -> None:
    session.run("cd /usr/share; export SAID='a b\nc'; unsaid=2").check()
    program = session.spawn(["bash", "-c", 'pwd; echo "$SAID-$unsaid"'], shell_env=True)
    assert program.communicate()[0] == b"/usr/share\na b\nc-\n"
    without = session.spawn(["bash", "-c", 'pwd; echo "$SAID"'])
    assert without.communicate()[0] == b"/root\n\n"


def test_a_daemon_started_by_a_program_stays_in_the_session_and_its_checkpoints(
    session: waypoint.Session,
) -> None:
    beat = "while :; do echo to the pipe; echo >>/tmp/beats; sleep 0.02; done"
    program = session.spawn(["sh", "-c", f"echo started; setsid sh -c '{beat}' &"])
    stdout, _ = program.communicate()
    assert stdout.startswith(b"started\n")
    assert program.exit_code == 0
    point = session.checkpoint()
    assert any("end at a restore" in said for said in point.info.coverage)
    fork = point.fork(name="copy")[0]
    beats = len(fork.run("cat /tmp/beats").output)
    until(lambda: len(fork.run("cat /tmp/beats").output) > beats + 3)  # it does not die of a broken pipe


def test_a_checkpoint_never_holds_half_a_command(session: waypoint.Session) -> None:
    results: list[waypoint.Result] = []
    command = f"n=$((n + 1)); : {'x' * 100_000}"
    session.run("n=0")
    runner = threading.Thread(
        target=lambda: results.extend(waypoint.session(session.name).run(command) for _ in range(4))
    )
    runner.start()
    points = []
    while runner.is_alive():
        points.append(session.checkpoint())
    runner.join()
    assert [done.exit_code for done in results] == [0] * 4
    for fork in (point.fork()[0] for point in points[:3]):
        until(lambda fork=fork: fork.info.foreground is None)  # type: ignore[misc]
        assert fork.run("echo $n", timeout=10).output.strip() in "01234"
