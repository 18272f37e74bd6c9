"""What cannot be done is refused by name, in time, and leaves everything as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.waiting import until

import waypoint
from waypoint import errors
from waypoint.home import Home
from waypoint.kernel import processes

IO_URING = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(425, 8, ctypes.create_string_buffer(120)) >= 0, ctypes.get_errno()
open("/tmp/ready", "w").close()
time.sleep(1000)
"""
READY = "until [ -e /tmp/ready ]; do sleep 0.01; done"


def python(session: waypoint.Session, source: str) -> int:
    """Runs a program in the background until it has made /tmp/ready; its pid."""
    session.run("rm -f /tmp/ready; cat > /tmp/program.py", stdin=source).check()
    session.run("/usr/bin/python3 /tmp/program.py & program=$!").check()
    session.run(READY, timeout=20).check()
    return int(session.run("echo $program").output)


def culprit(error: errors.CannotCheckpoint) -> dict[str, object]:
    found = error.details["processes"][0]
    assert str(found["pid"]) in error.message
    assert found["command"] in error.message
    assert found["reason"] in error.message
    return dict(found)


@pytest.fixture
def privileged(sessions: Callable[..., waypoint.Session]) -> waypoint.Session:
    return sessions("privileged", confined=False)


# ---- processes that cannot be saved -------------------------------------------------------------


def test_io_uring_is_refused_by_name_and_files_can_still_be_had(privileged: waypoint.Session) -> None:
    pid = python(privileged, IO_URING)
    before = privileged.checkpoints()
    with pytest.raises(errors.CannotCheckpoint, match="io_uring") as refused:
        privileged.checkpoint("will not work", name="never")
    assert culprit(refused.value)["pid"] == pid
    assert "files_only=True" in refused.value.hint
    assert [point.id for point in privileged.checkpoints()] == [point.id for point in before]

    assert privileged.run("kill -0 $program && echo runs on").output == "runs on\n"
    privileged.run("echo kept > /tmp/file")
    point = privileged.checkpoint(files_only=True, name="never")
    privileged.run("kill $program; rm /tmp/file")
    privileged.restore(point)
    assert privileged.run("cat /tmp/file").output == "kept\n"


def test_io_uring_does_not_exist_in_a_confined_session(fresh: waypoint.Session) -> None:
    tried = fresh.run(f"/usr/bin/python3 -c '{IO_URING}'")
    assert "AssertionError: 38" in tried.output, "ENOSYS: programs fall back to what they did before"
    fresh.checkpoint()


def test_a_nested_pid_namespace_is_refused_by_name(privileged: waypoint.Session) -> None:
    privileged.run("unshare --pid --fork --mount-proc sleep 1000 &")
    until(lambda: privileged.run("pgrep -x sleep > /tmp/pid").ok)
    with pytest.raises(errors.CannotCheckpoint, match="namespace") as refused:
        privileged.checkpoint()
    found = culprit(refused.value)
    assert (found["command"], found["pid"]) == ("sleep 1000", int(privileged.run("cat /tmp/pid").output))
    assert privileged.run("pgrep -x sleep >/dev/null && echo runs on").output == "runs on\n"
    privileged.run("pkill -KILL -x sleep; wait")
    privileged.checkpoint()


SEIZE = "import ctypes; assert ctypes.CDLL(None).ptrace(0x4206, {}, 0, 0) == 0; "


def test_a_traced_process_is_refused_with_its_tracer_before_anything_stands_still(
    fresh: waypoint.Session,
) -> None:
    """CRIU would try to stop it for ten seconds, with all others stopped."""

    def refused() -> dict[str, object]:
        with pytest.raises(errors.CannotCheckpoint, match="it is being traced by process") as error:
            fresh.checkpoint()
        assert error.value.details["log"] == [], "CRIU was not asked"
        assert "end the process that traces it, or save the files alone" in error.value.hint
        return culprit(error.value)

    # By its parent, in the session.
    tracer = python(
        fresh,
        "import os, time\n"
        "traced = os.fork()\n"
        "if not traced:\n"
        "    time.sleep(1000)\n"
        f"{SEIZE.format('traced')}\n"
        "open('/tmp/ready', 'w').write(str(traced))\n"
        "time.sleep(1000)\n",
    )
    found = refused()
    assert found["pid"] == int(fresh.run("cat /tmp/ready").output)
    assert found["reason"] == f"it is being traced by process {tracer} (/usr/bin/python3 /tmp/program.py)"
    fresh.run(f"kill {tracer} $(cat /tmp/ready); wait")

    # One of its threads.
    pid = python(
        fresh,
        "import threading, time\n"
        "thread = threading.Thread(target=time.sleep, args=(1000,))\n"
        "thread.start()\n"
        "open('/tmp/ready', 'w').write(str(thread.native_id))\n",
    )
    seize = f"{SEIZE.format('$(cat /tmp/ready)')}open('/tmp/go', 'w'); import time; time.sleep(1000)"
    fresh.run(f'/usr/bin/python3 -c "{seize}" & tracer=$!')
    fresh.run("until [ -e /tmp/go ]; do sleep 0.01; done", timeout=20).check()
    found = refused()
    assert found["pid"] == pid
    tracer = int(fresh.run("echo $tracer").output)
    assert f"process {tracer} (/usr/bin/python3 -c import ctypes" in str(found["reason"])
    fresh.run("kill $tracer; wait $tracer")
    fresh.checkpoint()

    # From the host.
    anchor = fresh.info.pid
    host_pid = next(one.host_pid for one in processes.below(int(anchor or 0)) if one.pid == pid)
    with subprocess.Popen(
        [sys.executable, "-c", f"{SEIZE.format(host_pid)}print('ready', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as outside:
        assert outside.stdout
        assert outside.stdout.readline() == b"ready\n"
        found = refused()
        outside.kill()
    assert found["pid"] == pid
    assert f"process {outside.pid} outside the session (" in str(found["reason"])
    fresh.checkpoint()


def test_posix_message_queues_are_refused_by_name(fresh: waypoint.Session) -> None:
    make = (
        "import ctypes, os\n"
        "rt = ctypes.CDLL('librt.so.1', use_errno=True)\n"
        "queue = rt.mq_open(b'/jobs', os.O_CREAT | os.O_RDWR, 0o600, None)\n"
        "assert queue >= 0 and rt.mq_send(queue, b'work', 4, 1) == 0\n"
    )
    fresh.run(f'/usr/bin/python3 -c "{make}"').check()  # nobody has it open: it is there all the same
    with pytest.raises(errors.CannotCheckpoint, match="/jobs"):
        fresh.checkpoint()
    fresh.run("/usr/bin/python3 -c \"import ctypes; ctypes.CDLL('librt.so.1').mq_unlink(b'/jobs')\"").check()
    fresh.checkpoint()


def test_a_process_whose_session_cannot_be_restored_is_refused_not_acknowledged(
    fresh: waypoint.Session,
) -> None:
    """A subreaper has adopted it, and the leader of its session is neither beside it nor above it."""
    python(
        fresh,
        "import ctypes, os, signal, time\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"  # PR_SET_CHILD_SUBREAPER
        "if not os.fork():\n"
        "    if not os.fork():\n"
        "        os.setsid()\n"
        "        if not os.fork():\n"
        "            if not os.fork():\n"
        "                os.execlp('sleep', 'sleep', '1000')\n"
        "            os._exit(0)\n"
        "        os.wait()\n"
        "    signal.pause()\n"
        "children = f'/proc/self/task/{os.getpid()}/children'\n"
        "while len(open(children).read().split()) < 2:\n"
        "    time.sleep(0.01)\n"
        "open('/tmp/ready', 'w').close()\n"
        "time.sleep(1000)\n",
    )
    refused_and_runs_on(fresh, "session", "sleep 1000")


def test_a_socket_that_another_process_will_listen_on_is_told_in_the_coverage(
    fresh: waypoint.Session,
) -> None:
    """Its clients see who called listen(). After a restore that is the first process that holds it."""
    python(
        fresh,
        "import os, socket, time\n"
        "one, other = socket.socketpair()\n"
        "if not os.fork():\n"
        "    server = socket.socket(socket.AF_UNIX)\n"
        "    server.bind('/tmp/socket')\n"
        "    server.listen()\n"
        "    socket.send_fds(one, [b'x'], [server.fileno()])\n"
        "    time.sleep(1000)\n"
        "received = socket.recv_fds(other, 1, 1)\n"
        "open('/tmp/ready', 'w').close()\n"
        "time.sleep(1000)\n",
    )
    told = [line for line in fresh.checkpoint().info.coverage if "SO_PEERCRED" in line]
    assert len(told) == 1, told
    assert f"process {fresh.run('echo $program').output.strip()} " in told[0]
    fresh.run("kill $program; pkill -f program.py; wait; rm /tmp/socket")
    assert not any("SO_PEERCRED" in line for line in fresh.checkpoint().info.coverage)


CANNOT_BE_SAVED = {
    "its main thread has ended": """
import ctypes, threading
threading.Thread(target=time.sleep, args=(1000,)).start()
open("/tmp/ready", "w").close()
ctypes.CDLL(None).syscall(60, 0)
""",
    "a pipe in packet mode": """
pipe = os.pipe2(os.O_DIRECT)
""",
    "a named pipe in packet mode": """
import fcntl
os.mkfifo("/tmp/named")
pipe = os.open("/tmp/named", os.O_RDWR)
os.remove("/tmp/named")
fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_DIRECT)
""",
    "SECBIT_NO_CAP_AMBIENT_RAISE": """
import ctypes, struct
libc = ctypes.CDLL(None)
header, data = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
assert libc.capget(header, data) == 0
words = list(struct.unpack("6I", data.raw))
words[2] |= 1 << 10  # CAP_NET_BIND_SERVICE is inheritable
assert libc.capset(header, struct.pack("6I", *words)) == 0
assert libc.prctl(47, 2, 10, 0, 0) == 0  # PR_CAP_AMBIENT_RAISE
assert libc.prctl(28, 1 << 6, 0, 0, 0) == 0  # PR_SET_SECUREBITS
""",
    "UDP_CORK": """
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_UDP, 1, 1)
sender.sendto(b"half of it", ("127.0.0.1", 7))
""",
    "MSG_MORE": """
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.sendto(b"half of it", 0x8000, ("127.0.0.1", 7))
""",
    "waits to be accepted": """
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/socket")
server.listen()
client = socket.socket(socket.AF_UNIX)
client.connect("/tmp/socket")
client.sendall(b"not accepted")
""",
    "tell who sent them": """
one, other = socket.socketpair()
other.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
one.sendall(b"not read")
""",
    "vfork": """
import ctypes
open("/tmp/ready", "w").close()
# clone(CLONE_VM | CLONE_VFORK | SIGCHLD) of a function that never returns
stack = ctypes.create_string_buffer(1 << 20)
libc = ctypes.CDLL(None)
libc.clone(libc.pause, ctypes.c_void_p(ctypes.addressof(stack) + (1 << 20) - 64), 0x4111, None)
""",
}


LEASE = """
import fcntl, mmap
fd = os.open("/tmp/leased", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.write(fd, b"more than CRIU reads")
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
"""
CANNOT_BE_SAVED["on a file that is deleted"] = (
    LEASE
    + """
os.unlink("/tmp/leased")
"""
)
CANNOT_BE_SAVED["or mapped"] = (
    LEASE
    + """
memory = mmap.mmap(fd, 20)
"""
)
CANNOT_BE_SAVED["a connection to it"] = """
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/socket")
server.listen()
os.chmod("/tmp/socket", 0o777)
os.seteuid(65534)
client = socket.socket(socket.AF_UNIX)
client.connect("/tmp/socket")
"""


@pytest.mark.parametrize("reason", CANNOT_BE_SAVED)
def test_what_a_process_cannot_be_saved_with_is_refused_at_once_in_words(
    fresh: waypoint.Session, reason: str
) -> None:
    last = "open('/tmp/ready', 'w').close()\ntime.sleep(1000)\n"
    pid = python(fresh, "import os, socket, time\n" + CANNOT_BE_SAVED[reason] + last)
    time.sleep(0.2 if "ready" in CANNOT_BE_SAVED[reason] else 0)
    started = time.monotonic()
    with pytest.raises(errors.CannotCheckpoint, match=reason) as refused:
        fresh.checkpoint()
    assert time.monotonic() - started < 5
    assert culprit(refused.value)["pid"] == pid
    fresh.run("kill -KILL $program; pkill -KILL -f program.py; wait; rm -f /tmp/socket")
    fresh.checkpoint()


def test_a_terminal_open_only_at_its_slave_among_many_is_refused(fresh: waypoint.Session) -> None:
    for count in (20, 40):
        python(
            fresh,
            "import os, pty, time\n"
            f"pairs = [pty.openpty() for _ in range({count})]\n"
            "os.close(pairs[-1][0])\n"
            "open('/tmp/ready', 'w').close()\n"
            "time.sleep(1000)\n",
        )
        if count < 32:
            fresh.restore(fresh.checkpoint(), safety=False)
        else:
            with pytest.raises(errors.CannotCheckpoint, match="only at their slave"):
                fresh.checkpoint()
        fresh.run("kill -KILL $program; wait")
    fresh.checkpoint()


def test_a_process_in_its_own_network_namespace_is_refused_not_acknowledged(
    privileged: waypoint.Session,
) -> None:
    privileged.run("unshare --net sleep 1000 & program=$!")
    until(lambda: privileged.run("pgrep -x sleep").ok)
    refused_and_runs_on(privileged, "net namespace", "sleep 1000")


def test_a_mount_made_inside_the_session_is_refused_not_lost(privileged: waypoint.Session) -> None:
    privileged.run("mkdir /root/disk; mount -t tmpfs none /root/disk && echo kept > /root/disk/file").check()
    with pytest.raises(errors.CannotCheckpoint, match=r"/root/disk \(tmpfs\)"):
        privileged.checkpoint()
    assert privileged.run("cat /root/disk/file").output == "kept\n"
    coverage = privileged.checkpoint(files_only=True).info.coverage
    assert any("/root/disk" in line for line in coverage), coverage
    privileged.run("umount /root/disk").check()
    privileged.checkpoint()


def test_what_was_unmounted_or_mounted_again_is_told_in_the_coverage(privileged: waypoint.Session) -> None:
    assert not [line for line in privileged.checkpoint().info.coverage if "unmounted" in line]
    privileged.run("umount /dev/mqueue || umount /sys; mount -o remount,bind,noexec /dev/shm").check()
    told = [line for line in privileged.checkpoint().info.coverage if "unmounted" in line]
    assert len(told) == 2, told
    assert any("/dev/shm" in line for line in told)
    assert told == [
        line for line in privileged.checkpoint(files_only=True).info.coverage if "unmounted" in line
    ]
    privileged.restore("@", safety=False)
    assert not [line for line in privileged.checkpoint().info.coverage if "unmounted" in line]


def refused_and_runs_on(session: waypoint.Session, reason: str, command: str) -> None:
    """A checkpoint is refused because of the process with this command line, which notices nothing."""
    with pytest.raises(errors.CannotCheckpoint, match=reason) as refused:
        session.checkpoint()
    found = culprit(refused.value)
    assert command in str(found["command"])
    assert "files_only=True" in refused.value.hint
    assert session.run(f"kill -0 {found['pid']} && echo runs on").output == "runs on\n"
    with pytest.raises(errors.CannotCheckpoint, match=reason):
        session.park()
    session.run(f"pkill -KILL -f program.py; kill -KILL {found['pid']} $program; wait")
    session.checkpoint()


UNACCEPTED = """
import os, socket, sys, time
server = socket.create_server(("127.0.0.1", 7000))
client = socket.create_connection(("127.0.0.1", 7000))
client.sendall(b"anybody there?")
open("/tmp/ready", "w").close()
while not os.path.exists("/tmp/accept"):
    time.sleep(0.001)
time.sleep(float(open("/tmp/accept").read()))
peer, _ = server.accept()
assert peer.recv(100) == b"anybody there?"
time.sleep(1000)
"""


def test_a_connection_that_nobody_accepts_is_refused_by_name(fresh: waypoint.Session) -> None:
    pid = python(fresh, UNACCEPTED)
    with pytest.raises(errors.CannotCheckpoint, match="waits to be accepted") as refused:
        fresh.checkpoint()
    assert culprit(refused.value)["pid"] == pid
    assert fresh.run("kill -0 $program && echo runs on").output == "runs on\n"


def test_a_connection_that_is_accepted_a_moment_later_is_waited_for(fresh: waypoint.Session) -> None:
    python(fresh, UNACCEPTED)
    fresh.run("echo 0.1 > /tmp/later && mv /tmp/later /tmp/accept")
    point = fresh.checkpoint()
    assert point.fork(name="copy")[0].run("kill -0 $program && echo runs").output == "runs\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param(
            "import fcntl, os, time\n"
            "counter = os.eventfd(0)\n"
            "fcntl.lockf(counter, fcntl.LOCK_EX)\n"
            "open('/tmp/ready', 'w').close()\n"
            "time.sleep(1000)\n",
            "locked what is no file",
            id="a lock on an eventfd",
        ),
        pytest.param(
            "import os, socket, time\n"
            "sent = os.eventfd(0)\n"
            "if os.fork() == 0:\n"
            "    left, right = socket.socketpair()\n"
            "    socket.send_fds(left, [b'x'], [sent])\n"
            "    open('/tmp/ready', 'w').close()\n"
            "time.sleep(1000)\n",
            "other processes have too",
            id="a descriptor of two processes on its way",
        ),
        pytest.param(
            "import os, socket, time\n"
            "left, right = socket.socketpair()\n"
            "left.send(b'first')\n"
            "socket.send_fds(left, [b'x'], [os.eventfd(0)])\n"
            "open('/tmp/ready', 'w').close()\n"
            "time.sleep(1000)\n",
            "data in front of it",
            id="a descriptor on its way behind other data",
        ),
        pytest.param(
            "import os, socket, time\n"
            "left, right = socket.socketpair()\n"
            "os.mkfifo('/tmp/named')\n"
            "socket.send_fds(left, [b'x'], [os.open('/tmp/named', os.O_RDWR)])\n"
            "os.remove('/tmp/named')\n"
            "open('/tmp/ready', 'w').close()\n"
            "time.sleep(1000)\n",
            "a named pipe",
            id="a named pipe on its way",
        ),
        *(
            pytest.param(
                "import ctypes, os, socket, time\n"
                "libc = ctypes.CDLL(None)\n"
                "left, right = socket.socketpair()\n"
                f"sent = {made}\n"
                "socket.send_fds(left, [b'x'], [sent])\n"
                "os.close(sent)\n"
                "open('/tmp/ready', 'w').close()\n"
                "time.sleep(1000)\n",
                "that no process has",
                id=f"on its way and of no process: {made}",
            )
            for made in (
                "libc.timerfd_create(1, 0)",
                "libc.inotify_init()",
                "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach()",
            )
        ),
    ],
)
def test_what_was_saved_and_never_restored_is_refused(
    fresh: waypoint.Session, source: str, reason: str
) -> None:
    python(fresh, source)
    with pytest.raises(errors.CannotCheckpoint, match=reason):
        fresh.checkpoint()
    fresh.run("pkill -KILL -f program.py; wait")
    fresh.checkpoint()


def test_unread_file_notices_are_told_in_the_coverage(fresh: waypoint.Session) -> None:
    python(
        fresh,
        "import ctypes, time\n"
        "libc = ctypes.CDLL(None)\n"
        "fd = libc.inotify_init()\n"
        "libc.inotify_add_watch(fd, b'/tmp', 0x100)\n"
        "open('/tmp/ready', 'w').close()\n"
        "time.sleep(1000)\n",
    )
    assert any("inotify" in line and "program.py" in line for line in fresh.checkpoint().info.coverage)
    fresh.run("kill $program; wait")
    assert not any("inotify" in line for line in fresh.checkpoint().info.coverage)


def test_a_closed_descriptor_of_an_epoll_is_told_in_the_coverage(fresh: waypoint.Session) -> None:
    python(
        fresh,
        "import os, select, time\n"
        "watched, _ = os.pipe()\n"
        "epoll = select.epoll()\n"
        "epoll.register(watched)\n"
        "os.dup2(watched, 50)\n"
        "if os.fork() == 0:\n"
        "    os.close(watched)\n"
        "    open('/tmp/ready', 'w').close()\n"
        "time.sleep(1000)\n",
    )
    assert any("epoll" in line and "program.py" in line for line in fresh.checkpoint().info.coverage)
    fresh.run("pkill -f program.py; wait")
    assert not any("epoll" in line for line in fresh.checkpoint().info.coverage)


def test_what_a_process_loses_in_a_restore_is_told_in_the_coverage(fresh: waypoint.Session) -> None:
    python(
        fresh,
        "import ctypes, mmap, socket, struct, time\n"
        "libc = ctypes.CDLL(None)\n"
        "receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "receiver.bind(('127.0.0.1', 0))\n"
        "receiver.sendto(b'unread', receiver.getsockname())\n"
        "libc.inotify_add_watch(libc.inotify_init(), b'/etc', 0x80000000 | 0x100)\n"  # IN_ONESHOT
        "locked = mmap.mmap(-1, 1 << 20)\n"
        "where = ctypes.addressof(ctypes.c_char.from_buffer(locked))\n"
        "assert libc.mlock2(ctypes.c_void_p(where), 1 << 20, 1) == 0\n"  # MLOCK_ONFAULT
        "semaphore = libc.semget(0, 1, 0o1600)\n"
        "assert libc.semop(semaphore, struct.pack('HhH', 0, 1, 0x1000), 1) == 0\n"  # SEM_UNDO
        "assert libc.personality(0x0800000) != -1\n"
        "open('/tmp/ready', 'w').close()\n"
        "time.sleep(1000)\n",
    )
    lines = [line for line in fresh.checkpoint().info.coverage if "program.py" in line]
    for word in ("UDP datagrams", "IN_ONESHOT", "MLOCK_ONFAULT", "SEM_UNDO", "personality"):
        assert any(word in line for line in lines), (word, lines)
    fresh.run("kill $program; wait")
    assert not any("program.py" in line for line in fresh.checkpoint().info.coverage)


# ---- points that cannot be restored -------------------------------------------------------------


@pytest.mark.parametrize("damaged", ["pages-1.img", "core-*.img", "inventory.img", "tree.json", "terminal"])
def test_a_damaged_point_is_refused_and_the_session_runs_on(
    fresh: waypoint.Session, home: Home, damaged: str
) -> None:
    fresh.run("x=1; sleep 1000 &")
    point = fresh.checkpoint()
    fresh.run("x=2; echo present > /tmp/file")
    image = min((home.checkpoints / point.id / "images").glob(damaged))
    os.truncate(image, image.stat().st_size // 2)
    with pytest.raises(errors.CannotRestore):
        fresh.restore(point, safety=False)
    with pytest.raises(errors.CannotRestore):
        point.fork(2, name="copy")
    assert fresh.run("echo $x; cat /tmp/file; jobs -r | wc -l").output == "2\npresent\n1\n"
    assert [session.name for session in waypoint.sessions()] == ["seed", "t"]
    fresh.restore(point, files_only=True)
    assert fresh.run("ls /tmp/file").exit_code == 2


# ---- a pool that is full ------------------------------------------------------------------------


def test_a_full_pool_refuses_checkpoints_and_the_session_lives(small_home: Path) -> None:
    session = waypoint.session("full", home=small_home, net="none")
    first = session.checkpoint()
    session.run("x=1; dd if=/dev/urandom of=/root/big bs=1M; sync")
    with pytest.raises(errors.NoSpace):
        list(iter(session.checkpoint, None))  # until there is no room for another
    points = session.checkpoints()
    assert session.run("echo $x").output == "1\n"
    until(lambda: not list((small_home / "pool" / "staging").iterdir()))  # what failed takes no space
    session.run("rm /root/big; sync")
    session.restore(first, safety=False)
    assert session.run("echo [$x]").output == "[]\n"
    assert len(session.checkpoints()) == len(points)
    session.remove()


def test_a_pool_too_small_for_a_memory_image_refuses_it(small_home: Path) -> None:
    session = waypoint.session("full", home=small_home, net="none")
    hog = "import os, time; x = os.urandom(100 << 20); open('/tmp/ready', 'w').close(); time.sleep(1000)"
    pid = python(session, hog)
    with pytest.raises(errors.NoSpace):
        list(iter(session.checkpoint, None))
    assert session.run(f"kill -0 {pid} && echo runs on").output == "runs on\n"
    until(lambda: not list((small_home / "pool" / "staging").iterdir()))  # what failed takes no space
    session.remove()


# ---- many points, and violent ends --------------------------------------------------------------


def test_thirty_points_in_a_row_and_the_first_and_last_of_them(fresh: waypoint.Session) -> None:
    points = []
    for number in range(30):
        fresh.run(f"n={number}; mkdir -p /root/points; touch /root/points/{number}")
        points.append(fresh.checkpoint())
    for number in (0, 29):
        fresh.restore(points[number], safety=False)
        assert fresh.run("echo $n; ls /root/points | wc -l").output == f"{number}\n{number + 1}\n"


@pytest.mark.parametrize("victim", ["keeper", "anchor"])
def test_a_session_whose_tree_was_killed_is_dead_and_comes_back(fresh: waypoint.Session, victim: str) -> None:
    fresh.run("x=1; sleep 1000 &")
    fresh.checkpoint()
    keeper = fresh.info.pid
    assert keeper
    anchor = next(one for one in processes.below(keeper) if one.comm == "waypoint-anchor")
    os.kill(keeper if victim == "keeper" else anchor.host_pid, signal.SIGKILL)
    until(lambda: fresh.info.state == "dead")
    assert not os.path.exists(f"/proc/{keeper}/root/bin"), "something of it is left"
    with pytest.raises(errors.SessionDead, match="does not run"):
        fresh.run("true")
    fresh.restore("@")
    assert fresh.run("echo $x; jobs -r | wc -l").output == "1\n1\n"


def test_a_killed_shell_is_replaced_and_the_session_lives(fresh: waypoint.Session) -> None:
    fresh.run("x=1; setsid sleep 1000 & echo $$ > /tmp/shell")
    point = fresh.checkpoint()
    shell = int(fresh.run("echo $$").output)
    keeper = fresh.info.pid
    assert keeper
    os.kill(next(one.host_pid for one in processes.below(keeper) if one.pid == shell), signal.SIGKILL)
    until(lambda: _answers(fresh, shell))
    assert fresh.run("echo [$x]; pgrep -x sleep | wc -l").output == "[]\n1\n"
    fresh.restore(point)
    assert fresh.run("echo $x $$").output == f"1 {shell}\n"


def test_what_a_killed_shell_leaves_behind_does_not_take_the_terminal_from_the_next(
    fresh: waypoint.Session,
) -> None:
    """bash gives the terminal to its own process group after each command of a substitution, even when the
    shell that the substitution belongs to is gone: a prompt hook that takes its time is enough."""
    fresh.run("PROMPT_COMMAND+=('__slow=$(/bin/sleep 0.7; /bin/true)')").check()
    shell = int(fresh.run("echo $$").output)  # answered before the hook has ended
    keeper = fresh.info.pid
    assert keeper

    def members() -> list[processes.Process]:
        """All processes, once the hook runs."""
        running = processes.below(keeper)
        return running if any(one.group == shell and one.pid != shell for one in running) else []

    os.kill(next(one.host_pid for one in until(members) if one.pid == shell), signal.SIGKILL)
    until(lambda: _answers(fresh, shell))
    time.sleep(1)
    assert fresh.run("echo answered", timeout=20).output == "answered\n"
    assert {"icanon", "echo"} <= set(fresh.run("stty -a </dev/tty").output.split()), (
        "readline's modes are left"
    )


def _answers(session: waypoint.Session, old_shell: int) -> bool:
    try:
        return session.run("echo $$").output != f"{old_shell}\n"
    except errors.SessionError:
        return False
