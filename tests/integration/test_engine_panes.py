"""Terminals inside a session (tmux, screen, script): their programs keep them, with job control."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

import waypoint

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

TMUX = "tmux -f /dev/null"
SHELL = "'bash --norc -i'"


def eventually(found: Callable[[], str], wanted: str, seconds: float = 10.0) -> str:
    """What `found` returns once it holds `wanted`."""
    deadline = time.monotonic() + seconds
    while wanted not in (text := found()):
        assert time.monotonic() < deadline, f"no {wanted!r} in:\n{text}"
        time.sleep(0.02)
    return text


def processes(session: waypoint.Session) -> dict[str, list[str]]:
    """Every process on a terminal of its own: parent, group, session, terminal and its foreground group."""
    said, _ = session.spawn(["ps", "-eo", "pid=,ppid=,pgid=,sid=,tpgid=,tty=,comm="]).communicate()
    rows = {line.split()[0]: line.split()[1:] for line in said.decode().splitlines()}
    return {pid: row for pid, row in rows.items() if row[4] != "pts/0" and row[5] != "ps"}


def pane(session: waypoint.Session, target: str = "w") -> Callable[[], str]:
    return lambda: session.run(f"tmux capture-pane -p -t {target}").output


def keys(session: waypoint.Session, *words: str, target: str = "w") -> None:
    session.run(f"tmux send-keys -t {target} {' '.join(words)}").check()


def start(session: waypoint.Session, *commands: str) -> None:
    """A tmux of one window with a pane for each command, not attached."""
    first, *more = commands
    session.run(f"{TMUX} new-session -d -s w -x 100 -y 40 {first}").check()
    for command in more:
        session.run(f"tmux split-window -t w {command}").check()


def start_vim_and_jobs(session: waypoint.Session) -> None:
    start(session, SHELL, SHELL)
    keys(session, "'cd /tmp; vim -u NONE note'", "Enter", target="w.0")
    eventually(pane(session, "w.0"), "~")
    keys(session, "ihello", target="w.0")
    keys(session, "'sleep 1000 & sleep 2000 & echo star''ted'", "Enter", target="w.1")
    eventually(pane(session, "w.1"), "started")
    eventually(pane(session, "w.0"), "hello")


def check_vim_and_jobs(session: waypoint.Session, word: str) -> None:
    keys(session, f"' {word}'", "Escape", ":w", "Enter", target="w.0")
    eventually(lambda: session.run("cat /tmp/note").output, f"hello {word}")
    keys(session, "C-z", target="w.0")
    eventually(pane(session, "w.0"), "Stopped")
    keys(session, "'tty; tty </dev/tty; fg'", "Enter", target="w.0")
    keys(session, "A", "' back'", "Escape", ":wq", "Enter", target="w.0")
    eventually(lambda: session.run("cat /tmp/note").output, f"hello {word} back")
    assert "/dev/pts/1" in pane(session, "w.0")()
    keys(session, "'kill %1; fg %2'", "Enter", target="w.1")
    eventually(pane(session, "w.1"), "\nsleep 2000")
    keys(session, "C-z", target="w.1")
    eventually(pane(session, "w.1"), "Stopped")


def modes(session: waypoint.Session) -> str:
    tell = "for t in /dev/pts/[1-9]*; do stty -F $t size; stty -F $t -g; stat -c '%a %u %g' $t; done"
    return session.run(tell).check().output


def test_panes_of_two_forks_keep_terminal_jobs_size_and_mode(session: waypoint.Session) -> None:
    start_vim_and_jobs(session)
    before, modes_before = processes(session), modes(session)
    point = session.checkpoint()
    for number, fork in enumerate(point.fork(2)):
        assert processes(fork) == before
        assert modes(fork) == modes_before
        check_vim_and_jobs(fork, f"fork{number}")
    assert processes(session) == before
    check_vim_and_jobs(session, "original")


def test_panes_can_be_opened_and_closed_after_a_restore(session: waypoint.Session) -> None:
    start(session, SHELL, SHELL)
    session.restore(session.checkpoint())
    session.run(
        f"tmux split-window -t w {SHELL}; tmux kill-pane -t w.1; tmux new-window -t w {SHELL}"
    ).check()
    terminals = session.run("tmux list-panes -s -t w -F '#{pane_tty}'").output.split()
    assert len(set(terminals)) == 3
    # The keeper has let go of what it held for the restore: a pane that closes is gone.
    eventually(lambda: session.run("ls /dev/pts | wc -l").output, "5\n")
    session.restore(session.checkpoint())
    assert session.run("tmux list-panes -s -t w -F '#{pane_tty}'").output.split() == terminals


def test_forty_terminals(session: waypoint.Session) -> None:
    """CRIU itself opens no terminal that is more than 32 away."""
    start(session, SHELL)
    session.run(f"for i in $(seq 39); do tmux new-window -d -t w {SHELL}; done", timeout=60).check()
    before = processes(session)
    (fork,) = session.checkpoint().fork()
    assert processes(fork) == before
    keys(fork, "'cat </dev/tty'", "Enter", target="w:39")
    eventually(pane(fork, "w:39"), "cat </dev/tty\n")
    keys(fork, "C-z", target="w:39")
    eventually(pane(fork, "w:39"), "Stopped")


def test_an_attached_client_goes_on(session: waypoint.Session) -> None:
    session.type(f"{TMUX} new-session -s w {SHELL}\n")
    eventually(session.screen, "[w] 0:bash*")
    session.type("vim -u NONE /tmp/note\n")
    eventually(session.screen, "\n~\n")
    session.type("ihello")
    eventually(session.screen, "hello")
    (fork,) = session.checkpoint().fork()
    for one in (fork, session):
        one.type(" there\x1b")
        time.sleep(0.7)  # tmux waits as long for the rest of an escape sequence
        one.type(":wq\r")
        eventually(one.screen, "vim -u NONE")
        one.type("tput clear; cat /tmp/note; tmux list-clients\n")
        assert "hello there" in eventually(one.screen, "/dev/pts/0: w")
        one.type("\x02%")
        one.type("tty; echo sp''lit\n")
        eventually(one.screen, "split")
        one.type("\x02d")
        eventually(one.screen, "detached")
        eventually(lambda one=one: str(one.info.foreground), "None")  # type: ignore[misc]
        assert one.run("ps -o tty= -p $$").output == "pts/0\n"


@pytest.mark.parametrize(
    "command",
    [
        "script -q -c 'bash --norc -i' /tmp/typescript",
        'python3 -c \'import pty; pty.spawn(["bash", "--norc", "-i"])\'',
        "screen -c /dev/null bash --norc -i",
    ],
    ids=["script", "pty.spawn", "screen"],
)
def test_a_shell_in_a_terminal_within_the_terminal(session: waypoint.Session, command: str) -> None:
    session.type(f"export SCREENDIR=/tmp/screen; {command}\n")
    eventually(session.screen, "bash-" if "screen" not in command else "#")
    session.type("tput clear; sleep 500 & echo rea''dy; cat\n")
    eventually(session.screen, "ready")
    before = processes(session)
    (fork,) = session.checkpoint().fork()
    for one in (fork, session):
        assert processes(one) == before
        one.type("one line\n")
        eventually(one.screen, "one line\none line")
        one.type("\x1a")
        eventually(one.screen, "Stopped")
        one.type("tput clear; tty; jobs; fg\n")
        assert "Running" in eventually(one.screen, " cat\ncat")
        assert "/dev/pts/1" in one.screen()
        one.type("another\n")
        eventually(one.screen, "another\nanother")


def test_typed_ahead_input_is_neither_lost_nor_echoed_again(session: waypoint.Session) -> None:
    start(session, "'until [ -e /tmp/go ]; do sleep 0.1; done; cat -A'")
    keys(session, "'whole line'", "Enter", "partian")
    eventually(pane(session), "partian")
    before = pane(session)()
    (fork,) = session.checkpoint().fork()
    for one in (fork, session):
        assert pane(one)() == before
        one.run("touch /tmp/go").check()
        keys(one, "BSpace", "'l line'", "Enter")
        assert "whole line$\n" in eventually(pane(one), "\npartial line$")


def test_a_process_outlives_its_pane(session: waypoint.Session) -> None:
    """Its terminal is gone, its descriptors of it are not."""
    start(session, SHELL, SHELL)
    keys(session, "\"(trap '' HUP; exec sleep 888) & disown; echo star''ted\"", "Enter", target="w.1")
    eventually(pane(session, "w.1"), "started")
    session.run("tmux kill-pane -t w.1").check()
    open_files = "ls -l /proc/$(pgrep -x sleep)/fd | sed 's/.*-> //'"
    before = session.run(open_files).output
    assert "/dev/pts/2 (deleted)" in before
    (fork,) = session.checkpoint().fork()
    assert fork.run(open_files).output == before
    assert processes(fork) == processes(session)


STALE = """
import os, signal, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = os.fork()
if child == 0:
    signal.pause()
os.setpgid(child, child)
os.tcsetpgrp(0, child)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print("wait" + "ing", flush=True)
time.sleep(1000)
"""


def test_a_foreground_group_that_has_ended_does_not_hinder(session: waypoint.Session) -> None:
    session.run("cat > /tmp/stale.py", stdin=STALE).check()
    start(session, "'python3 /tmp/stale.py'")
    eventually(pane(session), "waiting")
    (fork,) = session.checkpoint().fork()
    assert "waiting" in pane(fork)()


def test_orphans_stay_in_the_tree(session: waypoint.Session) -> None:
    """Whose session leader has ended, and whose parent in a pane has: the next checkpoint must hold them."""
    session.run("setsid sh -c 'sleep 701 & exit'").check()
    start(session, SHELL)
    keys(session, "'(sleep 702 &); echo do''ne'", "Enter")
    eventually(pane(session), "done")
    orphans = "ps -eo ppid=,pgid=,sid=,tty=,args= | grep 'slee[p] 70'"
    before = session.run(orphans).check().output
    for _ in range(2):
        session.restore(session.checkpoint())
        assert session.run(orphans).check().output == before


POLL = """
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static void *wait_in_thread(void *none)
{
	(void)none;
	if (poll(NULL, 0, -1))
		puts("poll in a thread ended");
	fflush(stdout);
	return NULL;
}

int main(void)
{
	struct timespec left = { .tv_sec = 2 };
	pthread_t thread;

	pthread_create(&thread, NULL, wait_in_thread, NULL);
	puts("started");
	fflush(stdout);
	if (nanosleep(&left, &left))
		puts("sleep was cut short");
	puts("slept");
	fflush(stdout);
	if (poll(NULL, 0, -1))
		puts("poll ended");
	fflush(stdout);
	pause();
}
"""


def test_a_checkpoint_interrupts_no_call(session: waypoint.Session) -> None:
    """CRIU alone ends poll(2) and sleeps with EINTR, which a program without signal handlers never meets."""
    session.run("cat > /tmp/poll.c && cc -pthread -o /tmp/poll /tmp/poll.c", stdin=POLL).check()
    session.run("/tmp/poll > /tmp/said & until [ -s /tmp/said ]; do :; done").check()
    (asleep,) = session.checkpoint().fork()
    for one in (asleep, session):
        eventually(lambda one=one: str(one.run("cat /tmp/said").output), "slept")  # type: ignore[misc]
    (polling,) = session.checkpoint().fork()
    for one in (asleep, session, polling):
        assert one.run("cat /tmp/said").output == "started\nslept\n"
        assert one.run("jobs -r | wc -l").output == "1\n"


def test_a_program_with_pipes_goes_on_after_two_restores(session: waypoint.Session) -> None:
    """Nobody listens any more: it reads the end of file and writes into nothing."""
    loop = "read -t 0.01 line; echo out; echo err >&2 || exit 3; date +%s.%N >> /tmp/alive; sleep 0.05"
    program = session.spawn(["bash", "-c", f"while :; do {loop}; done"])
    eventually(lambda: session.run("cat /tmp/alive").output, ".")
    for _ in range(2):
        session.restore(session.checkpoint())
        session.run(": > /tmp/alive").check()
        eventually(lambda: session.run("cat /tmp/alive").output, ".")
    assert session.run(f"readlink /proc/{program.pid}/fd/1").output == "/dev/null\n"
    program.close()
