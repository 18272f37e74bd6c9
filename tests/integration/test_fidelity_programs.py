"""Programs go on where they were, each with its memory, its time, its signals, its terminal and its place in
the world: through a restore of the session and in a fork of it.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import Revive, shows, until

import waypoint
from waypoint import errors


@pytest.fixture(params=["restore", "fork"])
def revive(request: pytest.FixtureRequest) -> Revive:
    """Brings a point back, as the session itself or as a fork: the session to look at."""

    def do(session: waypoint.Session, point: waypoint.Checkpoint) -> waypoint.Session:
        if request.param == "fork":
            return point.fork(name="copy")[0]
        session.restore(point, safety=False)
        return session

    return do


def write(session: waypoint.Session, path: str, text: str) -> None:
    """Puts a file into the session."""
    session.spawn(["tee", path]).communicate(text.encode())


class Answering:
    """A Python program in the session that answers questions: expressions, through a pair of fifos."""

    _SERVE = """
import json
while True:
    with open("/tmp/ask") as lines:
        for line in lines:
            with open("/tmp/answer", "w") as out:
                json.dump(eval(line), out)
"""

    def __init__(
        self, session: waypoint.Session, program: str, start: str = "python3 /tmp/program.py"
    ) -> None:
        write(session, "/tmp/program.py", program + self._SERVE)
        session.run("rm -f /tmp/ask /tmp/answer; mkfifo -m 666 /tmp/ask /tmp/answer").check()
        session.run(f"{start} 2>/tmp/program.err &").check()

    @staticmethod
    def ask(session: waypoint.Session, question: str) -> Any:
        script = """printf '%s\\n' "$0" >/tmp/ask; cat /tmp/answer"""
        asker = session.spawn(["timeout", "20", "sh", "-c", script, question])
        told, _ = asker.communicate()
        assert told, session.spawn(["cat", "/tmp/program.err"]).communicate()[0].decode()
        return json.loads(told)

    @classmethod
    def rising(cls, session: waypoint.Session, question: str, above: list[int]) -> list[int]:
        """Waits until each of the numbers that answer the question has risen."""
        deadline = time.monotonic() + 15
        while not all(now > then for now, then in zip(cls.ask(session, question), above, strict=True)):
            assert time.monotonic() < deadline, f"{question} does not rise above {above}"
            time.sleep(0.02)
        found: list[int] = cls.ask(session, question)
        return found


# ---- interactive ones ----------------------------------------------------------------------------


def test_a_python_repl_keeps_what_it_knows(session: waypoint.Session, revive: Revive) -> None:
    session.type("python3 -q\r")
    shows(session, r"^>>>\Z")
    session.type("import random; random.seed(7); known = {'a': [1]}; steps = iter(range(100)); next(steps)\r")
    shows(session, r"^0\n>>>\Z")
    session.type("def twice(x):\r    return 2 * x\r\r")
    shows(session, r"^\.\.\.\n>>>\Z")
    session.type("known['b'] = twi")
    shows(session, r"= twi\Z")
    point = session.checkpoint()
    session.type("\x15exit()\r")
    until(lambda: session.info.foreground is None)
    revived = revive(session, point)
    revived.type("ce(21)\rknown, next(steps), random.random()\r")
    shows(revived, r"^\(\{'a': \[1\], 'b': 42\}, 1, 0\.323832764")
    revived.type("\x1b[A\x1b[A\r")
    shows(revived, r"^>>> known\['b'\] = twice\(21\)\n>>>\Z")
    revived.type("exit()\r")
    until(lambda: revived.info.foreground is None)


def test_tmux_with_panes_and_an_editor_in_one_of_them(session: waypoint.Session, revive: Revive) -> None:
    write(session, "/tmp/tmux.conf", "set -g assume-paste-time 0\nset -g escape-time 0\n")
    session.type("tmux -f /tmp/tmux.conf new-session -s work 'bash --norc'\r")
    shows(session, r"^bash-[\d.]+# *$")
    session.type("kept=in-the-pane; cd /usr/share\r")
    shows(session, r"share\nbash-[\d.]+# *$")
    session.type('\x02"')
    shows(session, "─────")
    session.type("vim -u NONE -N /tmp/text\r")
    shows(session, '"/tmp/text"')
    session.type("ione, begun")
    shows(session, "^one, begun")
    point = session.checkpoint()
    session.type("\x1b:q!\r")
    until(lambda: "begun" not in session.screen())
    session.type("\x02d")
    until(lambda: session.info.foreground is None)
    revived = revive(session, point)
    shows(revived, "^one, begun")
    revived.type(" and ended\x1b:wq\r")
    until(lambda: revived.spawn(["cat", "/tmp/text"]).communicate()[0] == b"one, begun and ended\n")
    revived.type("\x02o")
    revived.type("clear; echo $kept $PWD; sleep 1000\r")
    shows(revived, "^in-the-pane /usr/share")
    revived.type("\x1a")
    shows(revived, r"^\[1\]\+  Stopped +sleep 1000")
    revived.type("echo to the terminal >/dev/tty; kill %1\r")
    shows(revived, "^to the terminal")
    revived.type("\x02d")
    until(lambda: revived.info.foreground is None)
    assert revived.run("tmux list-panes -s -t work | wc -l").output == "2\n"


def test_a_detached_tmux_is_a_daemon_like_others(session: waypoint.Session, revive: Revive) -> None:
    session.run("tmux -f /dev/null new-session -d -s back -x 80 -y 24 'bash --norc'").check()
    session.run("tmux send-keys -t back 'n=5; PS1=; clear' Enter").check()
    until(lambda: session.run("tmux capture-pane -p -t back").output.strip() == "")
    revived = revive(session, session.checkpoint())
    revived.run("tmux send-keys -t back 'echo n is $n; tty' Enter").check()
    until(lambda: "n is 5\n/dev/pts/1\n" in revived.run("tmux capture-pane -p -t back").output)
    revived.run("tmux new-window -t back 'sleep 1000'").check()
    assert revived.run("tmux list-windows -t back | wc -l").output == "2\n"


def test_script_goes_on_recording(session: waypoint.Session, revive: Revive) -> None:
    session.type("script -q -c 'bash --norc' /tmp/typescript\r")
    shows(session, r"^bash-[\d.]+#\Z")
    session.type("inner=1; echo before\r")
    shows(session, "^before")
    revived = revive(session, session.checkpoint())
    revived.type("echo after-$inner; tty\r")
    shows(revived, "^after-1\n/dev/pts/1")
    revived.type("exit\r")
    until(lambda: revived.info.foreground is None)
    assert "after-1" in revived.run("cat /tmp/typescript").output


# ---- servers -------------------------------------------------------------------------------------

_NODE = """
let count = 0;
require('http').createServer((request, response) => {
  response.end(`${++count} ${request.socket.remotePort}`);
}).listen(8123, '127.0.0.1');
"""
_CLIENT = """
import http.client
connection = http.client.HTTPConnection("127.0.0.1", 8123)
def get():
    connection.request("GET", "/")
    return connection.getresponse().read().decode()
"""


def test_a_node_server_keeps_its_counter_and_its_open_connection(
    session: waypoint.Session, revive: Revive
) -> None:
    write(session, "/tmp/server.js", _NODE)
    session.run("node /tmp/server.js &").check()
    until(lambda: session.run("curl -s 127.0.0.1:8123").ok)
    Answering(session, _CLIENT)
    count, port = Answering.ask(session, "get()").split()
    assert int(count) >= 2
    point = session.checkpoint()
    session.run("curl -s 127.0.0.1:8123; kill %1")
    revived = revive(session, point)
    assert Answering.ask(revived, "get()") == f"{int(count) + 1} {port}"
    assert revived.run("curl -s 127.0.0.1:8123").output.startswith(f"{int(count) + 2} ")


def test_a_daemonised_redis_keeps_its_data_and_its_clients(session: waypoint.Session, revive: Revive) -> None:
    session.run("redis-server --port 6400 --save '' --daemonize yes --dir /tmp").check()
    until(lambda: session.run("redis-cli -p 6400 ping").output == "PONG\n")
    session.run("redis-cli -p 6400 set key 'in memory only'; redis-cli -p 6400 rpush list a b c").check()
    session.run("redis-cli -p 6400 blpop queue 0 >/tmp/popped &")
    until(lambda: "blocked_clients:1" in session.run("redis-cli -p 6400 info clients").output)
    point = session.checkpoint()
    session.run("redis-cli -p 6400 flushall; redis-cli -p 6400 shutdown nosave")
    revived = revive(session, point)
    told = revived.run("redis-cli -p 6400 --raw get key; redis-cli -p 6400 --raw lrange list 0 -1")
    assert told.output == "in memory only\na\nb\nc\n"
    revived.run("redis-cli -p 6400 lpush queue job").check()
    until(lambda: revived.run("cat /tmp/popped").output == "queue\njob\n")
    # Whatever became of its parents, it belongs to the next checkpoint too.
    again = revived.checkpoint().fork(name="again")[0]
    assert again.run("redis-cli -p 6400 --raw get key").output == "in memory only\n"


# ---- threads, memory, processes ------------------------------------------------------------------


def test_threads_run_on_each_with_its_own_state(session: waypoint.Session, revive: Revive) -> None:
    program = """
import os, queue, threading, time
token = os.urandom(8).hex()
counts, local, jobs, done = [0] * 8, threading.local(), queue.Queue(), queue.Queue()
gate = threading.Event()
def count(number):
    local.name = f"thread {number}"
    while True:
        time.sleep(0.005)
        counts[number] += 1
def work():
    local.name = "worker"
    while True:
        done.put((local.name, 2 * jobs.get()))
def wait():
    gate.wait()
    done.put(("gate", threading.get_ident()))
for number in range(8):
    threading.Thread(target=count, args=(number,), daemon=True).start()
for target in (work, wait):
    threading.Thread(target=target, daemon=True).start()
"""
    Answering(session, program)
    token = Answering.ask(session, "token")
    before = Answering.rising(session, "counts", [0] * 8)
    tids = session.run("ls /proc/$!/task").output
    revived = revive(session, session.checkpoint())
    assert Answering.ask(revived, "token") == token
    assert revived.run("ls /proc/$!/task").output == tids
    Answering.rising(revived, "counts", before)
    assert Answering.ask(revived, "(jobs.put(21), done.get())[1]") == ["worker", 42]
    assert Answering.ask(revived, "(gate.set(), done.get())[1][0]") == "gate"


def test_a_pool_of_worker_processes_still_works(session: waypoint.Session, revive: Revive) -> None:
    program = """
import multiprocessing, os
shared, lock = multiprocessing.Value("i", 0), multiprocessing.Lock()
def work(n):
    with lock:
        shared.value += n
    return os.getpid()
pool = multiprocessing.Pool(3)
"""
    Answering(session, program)
    Answering.ask(session, "pool.map(work, [1] * 60, chunksize=1)")
    workers = Answering.ask(session, "[process.pid for process in pool._pool]")
    revived = revive(session, session.checkpoint())
    assert set(Answering.ask(revived, "pool.map(work, [1] * 60, chunksize=1)")) <= set(workers)
    assert Answering.ask(revived, "shared.value") == 120


@pytest.mark.parametrize(
    "how", ["setpriv --reuid=nobody --regid=nogroup --clear-groups", "su nobody -s /bin/bash -c"]
)
def test_a_process_of_another_user_stays_that_users(
    session: waypoint.Session, revive: Revive, how: str
) -> None:
    command = "/usr/bin/python3 /tmp/program.py"
    start = f"{how} '{command}'" if how.startswith("su") else f"{how} {command}"
    Answering(session, "import os\nhow = 'as before'\nown = open('/tmp/own', 'w')", start)
    user = Answering.ask(session, "os.getresuid() + os.getresgid()")
    assert user[0] == 65534
    assert set(user) == {65534}
    revived = revive(session, session.checkpoint())
    assert Answering.ask(revived, "how") == "as before"
    assert Answering.ask(revived, "os.getresuid() + os.getresgid()") == user
    assert Answering.ask(revived, "os.access('/etc/shadow', os.R_OK)") is False
    assert Answering.ask(revived, "(own.write('x'), own.flush(), os.stat('/tmp/own').st_uid)[2]") == 65534


def test_what_a_process_is_allowed_and_called_stays(session: waypoint.Session, revive: Revive) -> None:
    program = """
import ctypes, os, resource
libc = ctypes.CDLL(None)
os.nice(5); os.sched_setaffinity(0, {0}); os.umask(0o077); os.chdir("/usr/share"); os.setgroups([7, 9])
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300)); resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
libc.prctl(15, b"a new name"); libc.prctl(38, 1, 0, 0, 0); libc.prctl(4, 0, 0, 0, 0)
def kept():
    names = ("Name", "Umask", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Cpus_allowed")
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    limits = [line for line in open("/proc/self/limits") if line.startswith(("Max open", "Max core"))]
    return [lines[name].strip() for name in names] + limits + [
        os.getpid(), os.getsid(0), os.getpgrp(), os.nice(0), os.getcwd(), libc.prctl(3, 0, 0, 0, 0),
        open("/proc/self/cmdline").read(), os.readlink("/proc/self/exe"),
    ] + [open("/proc/self/environ").read() for _ in range(environ_is_own)]
"""
    # In a user namespace it may not be read any more: docs/limits.md.
    program += f"environ_is_own = {int(not session.info.options.userns)}"
    Answering(session, program, "MARK=x /usr/bin/python3 /tmp/program.py")
    before = Answering.ask(session, "kept()")
    revived = revive(session, session.checkpoint())
    assert Answering.ask(revived, "kept()") == before


def test_a_program_whose_file_was_deleted_and_a_child_nobody_waits_for(
    session: waypoint.Session, revive: Revive
) -> None:
    session.run(
        "cp /bin/sleep /tmp/my-sleep; /tmp/my-sleep 1000 & until pgrep -x my-sleep; do :; done"
    ).check()
    session.run("rm /tmp/my-sleep").check()
    Answering(session, "import os\nchild = os.fork() or os._exit(3)")
    until(lambda: Answering.ask(session, "open(f'/proc/{child}/stat').read().split()[2]") == "Z")
    revived = revive(session, session.checkpoint())
    assert revived.run("readlink /proc/$(pgrep my-sleep)/exe").output == "/tmp/my-sleep (deleted)\n"
    assert revived.run("ls /tmp/my-sleep").exit_code == 2
    assert Answering.ask(revived, "os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 3


# ---- time and signals ----------------------------------------------------------------------------


def test_a_sleeping_program_sleeps_on_for_the_time_that_was_left(
    session: waypoint.Session, revive: Revive
) -> None:
    session.run("(sleep 3; touch /tmp/awake) &").check()
    started = time.monotonic()
    session.run("sleep 1")
    point = session.checkpoint()
    slept = time.monotonic() - started
    session.run("sleep 1")  # while it lies in the store, no time passes for it
    revived = revive(session, point)
    again = time.monotonic()
    until(lambda: revived.run("ls /tmp/awake").ok)
    assert 3 - slept - 0.3 < time.monotonic() - again < 3 - slept + 1.0


def test_timers_of_every_kind_go_on(session: waypoint.Session, revive: Revive) -> None:
    program = """
import ctypes, os, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
beats = [0, 0]
def beat(number, _):
    beats[number == signal.SIGUSR1] += 1
signal.signal(signal.SIGALRM, beat); signal.signal(signal.SIGUSR1, beat)
signal.siginterrupt(signal.SIGALRM, False); signal.siginterrupt(signal.SIGUSR1, False)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
signal.setitimer(signal.ITIMER_VIRTUAL, 1000, 2000)
class Spec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                ("pad", ctypes.c_char * 48)]
posix, far = ctypes.c_void_p(), ctypes.c_void_p()
for timer, spec in ((posix, Spec(0, 50_000_000, 0, 50_000_000)), (far, Spec(0, 0, 1000, 0))):
    assert not libc.timer_create(1, ctypes.byref(Event(None, signal.SIGUSR1, 0)), ctypes.byref(timer))
    assert not libc.timer_settime(timer, 0, ctypes.byref(spec), None)
ticking, distant = libc.timerfd_create(1, 0o4000), libc.timerfd_create(1, 0)
libc.timerfd_settime(ticking, 0, ctypes.byref(Spec(0, 50_000_000, 0, 50_000_000)), None)
libc.timerfd_settime(distant, 0, ctypes.byref(Spec(0, 0, 1000, 0)), None)
def ticks():
    try:
        return struct.unpack("Q", os.read(ticking, 8))[0]
    except BlockingIOError:
        return 0
def left():
    spec, posix_spec = Spec(), Spec()
    libc.timerfd_gettime(distant, ctypes.byref(spec))
    libc.timer_gettime(far, ctypes.byref(posix_spec))
    return [spec.first_s, posix_spec.first_s, int(signal.getitimer(signal.ITIMER_VIRTUAL)[0])]
"""
    Answering(session, program)
    before = Answering.rising(session, "beats", [0, 0])
    revived = revive(session, session.checkpoint())
    Answering.rising(revived, "beats", before)
    Answering.ask(revived, "ticks()")
    until(lambda: Answering.ask(revived, "ticks()"))
    left = Answering.ask(revived, "left()")
    assert all(950 < seconds <= 1000 for seconds in left), left


def test_signal_handlers_masks_and_waiting_signals_are_kept(
    session: waypoint.Session, revive: Revive
) -> None:
    program = """
import os, signal
heard = []
signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGRTMIN})
for number in (signal.SIGUSR2, signal.SIGRTMIN, signal.SIGRTMIN, signal.SIGRTMIN):
    os.kill(os.getpid(), number)
def waiting(number):
    found = 0
    while signal.sigtimedwait({number}, 0):
        found += 1
    return found
"""
    Answering(session, program)
    assert Answering.ask(session, "len(signal.sigpending())") == 2
    revived = revive(session, session.checkpoint())
    revived.run("kill -HUP $!; kill -USR1 $!").check()
    until(lambda: Answering.ask(revived, "heard") == [10])
    assert Answering.ask(revived, "sorted(signal.sigpending())") == [12, 34]
    assert Answering.ask(revived, "[waiting(signal.SIGUSR2), waiting(signal.SIGRTMIN)]") == [1, 3]
    assert Answering.ask(revived, "sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))") == [12, 34]


def test_no_waiting_call_fails_because_of_a_checkpoint(session: waypoint.Session, revive: Revive) -> None:
    """What runs on does not notice either: a call that is waiting is not interrupted."""
    program = r"""
import ctypes, os, select, socket, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
pipe, pair, epoll = os.pipe(), socket.socketpair(), select.epoll()
class Poll(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]
fds = {name: os.pipe() for name in ("read", "poll", "select")}
outcomes = {}
def note(name, result):
    outcomes[name] = [result, ctypes.get_errno() if result < 0 else 0]
def with_read():
    note("read", libc.read(fds["read"][0], ctypes.create_string_buffer(1), 1))
def with_poll():
    note("poll", libc.poll(ctypes.byref(Poll(fds["poll"][0], 1, 0)), 1, -1))
def with_select():
    mask = (ctypes.c_ulong * 16)()
    mask[fds["select"][0] // 64] |= 1 << fds["select"][0] % 64
    note("select", libc.select(fds["select"][0] + 1, mask, None, None, None))
def with_receive():
    note("recv", libc.recv(pair[0].fileno(), ctypes.create_string_buffer(1), 1, 0))
for target in (with_read, with_poll, with_select, with_receive):
    threading.Thread(target=target, daemon=True).start()
def finish():
    for _, end in fds.values():
        os.write(end, b"x")
    pair[1].send(b"x")
"""
    Answering(session, program)
    assert Answering.ask(session, "outcomes") == {}
    point = session.checkpoint()
    revived = revive(session, point)
    for one in (session, revived):
        assert Answering.ask(one, "outcomes") == {}
    Answering.ask(revived, "finish()")
    until(lambda: len(Answering.ask(revived, "outcomes")) == 4)
    assert Answering.ask(revived, "outcomes") == {
        "read": [1, 0],
        "poll": [1, 0],
        "select": [1, 0],
        "recv": [1, 0],
    }


# ---- programs beside the shell -------------------------------------------------------------------


def test_a_program_started_beside_the_shell_goes_on(session: waypoint.Session, revive: Revive) -> None:
    beat = "n=0; while :; do n=$((n + 1)); echo $n; echo $n >&2; echo $n-$MARK >/tmp/beat; sleep 0.02; done"
    program = session.spawn(["sh", "-c", beat], env={"MARK": "own"}, cwd="/usr/share")
    events = program.events()
    assert next(events)[1]
    point = session.checkpoint()
    revived = revive(session, point)
    if revived.name == session.name:
        with pytest.raises(errors.SessionDead):
            list(events)
    else:
        seen = {stream for stream, _ in (next(events) for _ in range(10))}
        assert seen == {"stdout", "stderr"}
    program.close()
    said = revived.run("cat /tmp/beat").output
    assert said.endswith("-own\n")
    until(lambda: revived.run("cat /tmp/beat").output not in (said, ""))
    assert revived.run(f"readlink /proc/{program.pid}/cwd").output == "/usr/share\n"
    assert "MARK=own" in revived.run(f"tr '\\0' '\\n' </proc/{program.pid}/environ").output
    assert revived.run(f"kill {program.pid}").ok


def test_new_programs_of_a_revived_shell_have_its_environment(
    session: waypoint.Session, revive: Revive
) -> None:
    session.run("export GIVEN=value PATH=$PATH:/opt/nowhere; cd /usr/share; unset LANG").check()
    before = session.run("env | grep -v ^_= | sort").output
    revived = revive(session, session.checkpoint())
    now = revived.run("env | grep -v ^_= | sort").output
    assert f"WAYPOINT_SESSION={revived.name}\n" in now
    assert now == before.replace(f"WAYPOINT_SESSION={session.name}\n", f"WAYPOINT_SESSION={revived.name}\n")
    told = revived.spawn(["sh", "-c", "pwd; echo $GIVEN $PATH; echo ${LANG-none}"], shell_env=True)
    lines = told.communicate()[0].decode().splitlines()
    assert lines[0] == "/usr/share"
    assert lines[1].startswith("value ")
    assert lines[1].endswith(":/opt/nowhere")
    assert lines[2] == "none"


# ---- what cannot be saved ------------------------------------------------------------------------


def test_a_process_that_is_being_traced_is_refused_by_name(session: waypoint.Session) -> None:
    session.run("strace -o /dev/null sleep 1000 &").check()
    until(lambda: session.run("grep TracerPid /proc/$(pgrep sleep)/status").output.split()[-1] != "0")
    with pytest.raises(errors.CannotCheckpoint, match=r"sleep 1000\).*trace") as refused:
        session.checkpoint()
    assert refused.value.details["processes"][0]["command"] == "sleep 1000"
    assert session.run("pgrep sleep; kill %1").ok
    session.run("wait")
    session.checkpoint()


# ---- last, because the disk is busy for a while after it -----------------------------------------


@pytest.mark.slow
def test_a_gigabyte_of_memory_comes_back_bit_by_bit(session: waypoint.Session) -> None:
    free = int(re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())[1])  # type: ignore[index]
    if free < 4 << 20:
        pytest.skip("needs 4 GB of free memory")
    program = """
import os, zlib
memory = bytearray(os.urandom(1 << 20)) * (1 << 10)
for at in range(0, 1 << 30, 1 << 12):
    memory[at : at + 8] = at.to_bytes(8, "big")
"""
    Answering(session, program)
    checksum = Answering.ask(session, "zlib.crc32(memory)")
    point = session.checkpoint()
    assert point.info.size_bytes > 1 << 30
    Answering.ask(session, "memory.__setitem__(slice(0, 1 << 29), bytes(1 << 29))")
    fork = point.fork(name="copy")[0]
    assert Answering.ask(fork, "zlib.crc32(memory)") == checksum
    fork.remove()
    session.restore(point, safety=False)
    assert Answering.ask(session, "(zlib.crc32(memory), len(memory))") == [checksum, 1 << 30]
