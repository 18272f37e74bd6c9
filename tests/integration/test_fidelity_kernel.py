"""What a process holds of the kernel survives: descriptors, sockets, locks, memory, identity, limits.

Each test gives a program to `survives`, which takes it through a checkpoint and a full restore, and through a
checkpoint and a fork. The program sets something up, calls `pause()`, and checks after it what it still has:
it sees nothing of the checkpoint but its consequences. In a fork the original is asked as well: it has to
go on as if nothing had happened.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pytest
from tests.fingerprint import difference, keeper_of, take

import waypoint
from waypoint.home import Home

PRELUDE = """
import ctypes, errno, fcntl, hashlib, mmap, os, re, select, signal, socket, struct, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
work = "/tmp/work"
os.mkdir(work)
os.chdir(work)

def pause():
    "Everything stands: the test may go on. Returns when it says so."
    open("/tmp/ready", "w").close()
    signal.sigwait({signal.SIGUSR1})

def child(run):
    "A child process that runs a function; its pid."
    pid = os.fork()
    if pid == 0:
        try:
            run()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(1)
    return pid

def succeeded(pid):
    assert os.waitpid(pid, 0)[1] == 0, "a child failed"

def call(result):
    "The result of a system call made through libc, or its error."
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def eventually(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)
"""
AWAIT = "until [ -e /tmp/ready ] || ! kill -0 $probe 2>/dev/null; do sleep 0.01; done"
GO = "kill -USR1 $probe; wait $probe; code=$?; cat /tmp/out; (exit $code)"
END = "kill -KILL -- -$probe; wait $probe; rm -rf /tmp/work /tmp/ready /tmp/out /dev/shm/*"


class Survives(Protocol):
    """Takes a program through a checkpoint. `changing`: what goes on changing while it pauses."""

    def __call__(self, source: str, *, changing: Sequence[str] = ()) -> None: ...


GOES_ON = ("private memory", "State", "system call")


def start(session: waypoint.Session, source: str) -> None:
    """Runs a program up to its `pause()`."""
    session.run("cat > /tmp/probe.py", stdin=PRELUDE + textwrap.dedent(source)).check()
    session.run("/usr/bin/python3 /tmp/probe.py >/tmp/out 2>&1 & probe=$!").check()
    session.run(AWAIT, timeout=20).check()
    assert session.run("ls /tmp/ready").ok, session.run("cat /tmp/out").output


def go_on(session: waypoint.Session) -> None:
    """Lets it go on to its end, which has to be a good one."""
    done = session.run(GO, timeout=20)
    assert done.exit_code == 0, done.output


def restored(session: waypoint.Session, point: waypoint.Checkpoint) -> None:
    """Ends what the point holds, so that nothing can be found again that was not brought back."""
    session.run(END)
    session.restore(point, safety=False)


@pytest.fixture(params=["restore", "fork"])
def survives(home: Home, fresh: waypoint.Session, request: pytest.FixtureRequest) -> Survives:
    """Takes a program through a checkpoint and what is grown from it. What the kernel tells of the copy is
    compared with what it told of the original."""

    def check(source: str, *, changing: Sequence[str] = ()) -> None:
        start(fresh, source)
        before = take(keeper_of(home, fresh.name))
        again = take(keeper_of(home, fresh.name))
        point = fresh.checkpoint()
        copy = point.fork(name="copy")[0] if request.param == "fork" else fresh
        if copy is fresh:
            restored(fresh, point)
        after = take(keeper_of(home, copy.name))
        restless = {(found.kind, found.place) for found in difference(before, again)}
        wrong = [
            str(found)
            for found in difference(before, after)
            if not found.declared and found.kind not in changing and (found.kind, found.place) not in restless
        ]
        assert not wrong, "\n".join(wrong)
        if copy is not fresh:
            go_on(copy)
        go_on(fresh)

    return check


# ---- files --------------------------------------------------------------------------------------


def test_an_unlinked_open_file_keeps_its_content_and_position(survives: Survives) -> None:
    survives("""
        file = open("gone", "w+b", buffering=0)
        file.write(b"0123456789" * 1000)
        file.seek(5)
        os.unlink("gone")
        pause()
        assert file.read(3) == b"567"
        assert os.fstat(file.fileno()).st_size == 10000 and os.fstat(file.fileno()).st_nlink == 0
        file.write(b"more")
        assert os.listdir(".") == []
    """)


def test_an_unlinked_file_of_the_base_stays_open(survives: Survives) -> None:
    survives("""
        file = open("/etc/os-release", "rb")
        before = file.read(10)
        os.unlink("/etc/os-release")
        os.unlink("/usr/lib/os-release")
        pause()
        assert file.read(4) and not os.path.lexists("/etc/os-release")
        file.seek(0)
        assert file.read(10) == before
    """)


def test_an_open_file_whose_name_is_gone_but_not_its_other_link(survives: Survives) -> None:
    survives("""
        file = open("one", "w+b", buffering=0)
        file.write(b"shared")
        os.link("one", "two")
        os.unlink("one")
        pause()
        file.write(b" still")
        assert open("two", "rb").read() == b"shared still"
        assert os.fstat(file.fileno()).st_ino == os.stat("two").st_ino
        assert os.listdir(".") == ["two"], os.listdir(".")
    """)


def test_an_open_file_that_was_replaced_by_another_of_its_name(survives: Survives) -> None:
    survives("""
        file = open("name", "w+b", buffering=0)
        file.write(b"old")
        open("new", "w").write("new")
        os.rename("new", "name")
        pause()
        file.seek(0)
        assert file.read() == b"old"
        assert open("name").read() == "new"
    """)


def test_a_working_folder_that_was_removed(survives: Survives) -> None:
    survives("""
        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir("../gone")
        pause()
        assert os.readlink("/proc/self/cwd") == "/tmp/work/gone (deleted)", os.readlink("/proc/self/cwd")
        assert not os.path.exists("/tmp/work/gone")
    """)


def test_open_flags_and_shared_offsets(survives: Survives) -> None:
    survives("""
        file = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o600)
        twin = os.dup(file)
        other = os.open("log", os.O_RDONLY | os.O_CLOEXEC)
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        path = os.open("log", os.O_PATH)
        os.write(file, b"abcdef")
        os.lseek(other, 2, 0)
        def flags():
            return [(fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECTORY, fcntl.fcntl(fd, fcntl.F_GETFD))
                    for fd in (file, twin, other, folder, path)]
        before = flags()
        pause()
        assert flags() == before
        os.write(twin, b"g")
        assert os.lseek(file, 0, 1) == os.lseek(twin, 0, 1) == 7
        assert os.read(other, 9) == b"cdefg"
        assert os.listdir(folder) == ["log"]
        assert os.stat(f"/proc/self/fd/{path}").st_ino == os.stat("log").st_ino
    """)


def test_open_files_of_proc_and_devices(survives: Survives) -> None:
    survives("""
        meminfo, own = open("/proc/meminfo"), open("/proc/self/status")
        null, random, full = (open(f"/dev/{name}", "r+b", 0) for name in ("null", "urandom", "full"))
        system = open("/sys/kernel/mm/transparent_hugepage/enabled")
        pause()
        assert meminfo.read().startswith("MemTotal")
        assert f"Pid:\\t{os.getpid()}\\n" in own.read()
        assert len(random.read(16)) == 16 and null.read() == b"" and "never" in system.read()
        try:
            full.write(b"x")
        except OSError as error:
            assert error.errno == errno.ENOSPC
        else:
            raise AssertionError("/dev/full took it")
    """)


def test_inotify_watches_still_fire_and_only_for_their_own_files(survives: Survives) -> None:
    survives("""
        IN_CREATE, IN_MODIFY, IN_NONBLOCK = 0x100, 0x2, 0o4000
        open("file", "w").close()
        watcher = call(libc.inotify_init1(IN_NONBLOCK))
        watches = {call(libc.inotify_add_watch(watcher, path.encode(), IN_CREATE | IN_MODIFY)): path
                   for path in ("/tmp/work", "/tmp/work/file", "/usr/share", "/etc/hostname", "/dev/shm")}
        assert len(watches) == 5

        def seen():
            try:
                data = os.read(watcher, 65536)
            except BlockingIOError:
                return []
            found = []
            while data:
                watch, mask, _, length = struct.unpack_from("iIII", data)
                found.append((watches[watch], data[16:16 + length].rstrip(b"\\0").decode()))
                data = data[16 + length:]
            return found

        pause()
        assert seen() == [], "of what the restore itself did"
        open("new", "w").close()
        open("/usr/share/made", "w").close()
        open("/dev/shm/made", "w").close()
        open("/etc/hostname", "a").write("x")
        assert seen() == [("/tmp/work", "new"), ("/usr/share", "made"), ("/dev/shm", "made"),
                          ("/etc/hostname", "")]
        open("file", "a").write("x")
        assert seen() == [("/tmp/work", "file"), ("/tmp/work/file", "")]
    """)


# ---- pipes and events ---------------------------------------------------------------------------


def test_a_pipe_between_processes_keeps_what_is_in_it(survives: Survives) -> None:
    survives("""
        reader, writer = os.pipe()
        answer_reader, answer_writer = os.pipe()
        os.write(writer, b"before ")
        def sum_up():
            os.close(writer)
            pause_over = os.read(go_reader, 1)
            total = b""
            while part := os.read(reader, 4096):
                total += part
            os.write(answer_writer, total)
        go_reader, go_writer = os.pipe()
        summer = child(sum_up)
        pause()
        os.write(writer, b"after")
        os.close(writer)
        os.write(go_writer, b"x")
        assert os.read(answer_reader, 100) == b"before after"
        succeeded(summer)
    """)


def test_a_full_pipe_of_a_megabyte_and_its_blocked_writer(survives: Survives) -> None:
    survives(
        """
        reader, writer = os.pipe()
        fcntl.fcntl(writer, 1031, 1 << 20)  # F_SETPIPE_SZ
        data = os.urandom(3 << 20)
        feeder = child(lambda: (os.close(reader), open(writer, "wb").write(data)))
        os.close(writer)
        eventually(lambda: struct.unpack("i", fcntl.ioctl(reader, 0x541B, b"1234"))[0] == 1 << 20)  # FIONREAD
        pause()
        assert fcntl.fcntl(reader, 1032) == 1 << 20
        assert open(reader, "rb").read() == data
        succeeded(feeder)
    """,
        changing=GOES_ON,
    )


def test_a_fifo_with_data_in_it(survives: Survives) -> None:
    survives("""
        os.mkfifo("fifo", 0o640)
        both = os.open("fifo", os.O_RDWR)
        os.write(both, b"in the fifo")
        pause()
        assert os.read(both, 100) == b"in the fifo"
        assert oct(os.stat("fifo").st_mode) == "0o10640"
    """)


def test_epoll_eventfd_and_signalfd(survives: Survives) -> None:
    survives("""
        counter = os.eventfd(5, os.EFD_NONBLOCK)
        SIGUSR2 = struct.pack("Q", 1 << (signal.SIGUSR2 - 1))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        signals = call(libc.signalfd(-1, SIGUSR2, 0o4000))
        quiet = os.eventfd(0)
        poller = select.epoll()
        for number, fd in enumerate((counter, signals, quiet)):
            poller.register(fd, select.EPOLLIN | (select.EPOLLET if fd == quiet else 0))
        os.kill(os.getpid(), signal.SIGUSR2)
        pause()
        assert {fd for fd, _ in poller.poll(0)} == {counter, signals}
        assert os.eventfd_read(counter) == 5
        assert struct.unpack_from("I", os.read(signals, 128))[0] == signal.SIGUSR2
        assert poller.poll(0) == []
        os.eventfd_write(quiet, 1)
        assert poller.poll(0) == [(quiet, select.EPOLLIN)]
        assert poller.poll(0) == [], "edge-triggered"
    """)


def test_timers_go_on_running(survives: Survives) -> None:
    survives(
        """
        CLOCK_MONOTONIC = 1
        def timer(value, interval=0.0):
            fd = call(libc.timerfd_create(CLOCK_MONOTONIC, 0o4000))
            parts = [int(interval), int(interval % 1 * 1e9), int(value), int(value % 1 * 1e9)]
            call(libc.timerfd_settime(fd, 0, struct.pack("4q", *parts), None))
            return fd
        def left(fd):
            told = ctypes.create_string_buffer(32)
            call(libc.timerfd_gettime(fd, told))
            return struct.unpack("4q", told.raw)
        far, ticking, expired = timer(1000), timer(0.01, 0.01), timer(0.001)
        eventually(lambda: select.select([expired], [], [], 0)[0])
        fired = []
        signal.signal(signal.SIGALRM, lambda *_: fired.append("itimer"))
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        class Event(ctypes.Structure):
            _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                        ("room", ctypes.c_char * 64)]
        made, event = ctypes.c_void_p(), Event(42, signal.SIGRTMIN, 0)
        signal.signal(signal.SIGRTMIN, lambda *_: fired.append("posix"))
        call(libc.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(made)))
        call(libc.timer_settime(made, 0, struct.pack("4q", 0, 20_000_000, 0, 20_000_000), None))
        pause()
        assert 900 < left(far)[2] <= 1000 and left(ticking)[1] == 10_000_000
        assert struct.unpack("Q", os.read(expired, 8)) == (1,)
        os.read(ticking, 8)
        assert select.select([ticking], [], [], 5)[0]
        before = fired.count("posix")
        eventually(lambda: "itimer" in fired and fired.count("posix") > before + 2)
        call(libc.timer_delete(made))  # Python gives its handlers up at the end: one more tick would kill it
    """,
        changing=(*GOES_ON, "ShdPnd", "SigPnd", "state"),
    )


def test_a_pidfd_still_means_its_process(survives: Survives) -> None:
    survives("""
        sleeper = child(lambda: time.sleep(1000))
        handle = os.pidfd_open(sleeper)
        pause()
        assert not select.select([handle], [], [], 0)[0]
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        assert select.select([handle], [], [], 10)[0]
        assert os.waitpid(sleeper, 0) == (sleeper, signal.SIGTERM)
    """)


def test_a_memfd_with_seals(survives: Survives) -> None:
    survives("""
        fd = os.memfd_create("secret", os.MFD_ALLOW_SEALING)
        os.write(fd, b"sealed")
        F_ADD_SEALS, F_GET_SEALS, SHRINK, GROW = 1033, 1034, 2, 4
        fcntl.fcntl(fd, F_ADD_SEALS, SHRINK | GROW)
        view = mmap.mmap(fd, 6)
        pause()
        assert view[:] == b"sealed" and fcntl.fcntl(fd, F_GET_SEALS) == SHRINK | GROW
        view[0:1] = b"S"
        assert os.pread(fd, 6, 0) == b"Sealed"
        try:
            os.ftruncate(fd, 100)
        except PermissionError:
            pass
        else:
            raise AssertionError("it could be resized")
    """)


# ---- sockets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "address"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")])
def test_an_idle_loopback_connection_and_its_listener(survives: Survives, family: str, address: str) -> None:
    survives(f"""
        server = socket.socket(socket.{family})
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("{address}", 7000))
        server.listen(3)
        client = socket.create_connection(("{address}", 7000))
        peer, name = server.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"on its way")
        assert peer.recv(2) == b"on"
        pause()
        assert peer.getpeername() == client.getsockname() == name
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert peer.recv(100) == b" its way"
        peer.sendall(b"back")
        assert client.recv(100) == b"back"
        another = socket.create_connection(("{address}", 7000))
        server.accept()[0].sendall(b"new")
        assert another.recv(3) == b"new"
        client.close()
        assert peer.recv(1) == b""
    """)


def test_a_connection_whose_buffers_are_full_loses_no_byte(survives: Survives) -> None:
    survives(
        """
        server = socket.create_server(("127.0.0.1", 7000))
        data = os.urandom(32 << 20)
        def send():
            connection = socket.create_connection(("127.0.0.1", 7000))
            connection.sendall(data)
            connection.close()
        sender = child(send)
        peer, _ = server.accept()
        def queued():
            SIOCINQ = 0x541B
            return struct.unpack("i", fcntl.ioctl(peer, SIOCINQ, b"1234"))[0]
        def stuck():
            before = queued()
            state = open(f"/proc/{sender}/stat").read().split()[2]
            return before > 1 << 16 and before == queued() and state == "S"
        eventually(stuck)
        pause()
        found = hashlib.sha256()
        while part := peer.recv(1 << 20):
            found.update(part)
        assert found.digest() == hashlib.sha256(data).digest()
        succeeded(sender)
    """,
        changing=(*GOES_ON, "unsent in a socket", "unread in a socket"),
    )


def test_a_half_closed_connection(survives: Survives) -> None:
    survives("""
        server = socket.create_server(("127.0.0.1", 7000))
        client = socket.create_connection(("127.0.0.1", 7000))
        peer, _ = server.accept()
        client.sendall(b"the end")
        client.shutdown(socket.SHUT_WR)
        pause()
        assert peer.recv(100) == b"the end" and peer.recv(1) == b""
        peer.sendall(b"answer")
        assert client.recv(100) == b"answer"
    """)


def test_udp_sockets_bound_and_connected(survives: Survives) -> None:
    survives("""
        bound = {}
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            server, client = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(2))
            server.bind((address, 7000))
            client.connect((address, 7000))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 50000)
            bound[address] = server, client, client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        pause()
        for server, client, room in bound.values():
            client.send(b"datagram")
            data, sender = server.recvfrom(100)
            assert data == b"datagram" and sender == client.getsockname()
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == room
    """)


def test_unix_stream_sockets_with_queued_data(survives: Survives) -> None:
    survives("""
        server = socket.socket(socket.AF_UNIX)
        server.bind("socket")
        os.chmod("socket", 0o600)
        server.listen()
        client = socket.socket(socket.AF_UNIX)
        client.connect("socket")
        peer, _ = server.accept()
        client.sendall(b"queued")
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.send(b"first")
        one.send(b"second")
        pause()
        assert peer.recv(100) == b"queued"
        peer.sendall(b"back")
        assert client.recv(100) == b"back"
        assert other.recv(100) == b"first" and other.recv(100) == b"second"
        assert server.getsockname() == "socket"
        assert oct(os.stat("socket").st_mode & 0o777) == "0o600"
        another = socket.socket(socket.AF_UNIX)
        another.connect("/tmp/work/socket")
        server.accept()
    """)


def test_unix_datagram_sockets_with_queued_data(survives: Survives) -> None:
    survives("""
        server, client = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
        server.bind("server")
        client.bind("client")
        client.connect("server")
        client.send(b"one")
        client.send(b"two")
        pause()
        assert server.recvfrom(100) == (b"one", "client"), "the sender is lost"
        assert server.recv(100) == b"two"
        server.sendto(b"back", "client")
        assert client.recv(100) == b"back"
    """)


def test_abstract_unix_sockets(survives: Survives) -> None:
    survives("""
        server = socket.socket(socket.AF_UNIX)
        server.bind("\\0waypoint-test")
        server.listen()
        client = socket.socket(socket.AF_UNIX)
        client.connect("\\0waypoint-test")
        peer, _ = server.accept()
        pause()
        client.sendall(b"x")
        assert peer.recv(1) == b"x"
        another = socket.socket(socket.AF_UNIX)
        another.connect("\\0waypoint-test")
        server.accept()
    """)


PEERS = """
    SO_PEERGROUPS = 59

    def peer(end):
        "Who is at the other end, as the kernel says, and what both ends are called."
        names = []
        for name in (end.getsockname, end.getpeername):
            try:
                names.append(name())
            except OSError:
                names.append(None)
        groups = end.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 400)
        return struct.unpack("iII", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)), groups, names

    def act_as(uid, *groups):
        os.setgroups(groups)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
"""


def test_an_unprivileged_client_of_a_unix_socket_is_not_root_to_its_server(survives: Survives) -> None:
    """Nor any other process than before: SO_PEERCRED, SO_PEERGROUPS and the names of both ends."""
    survives(
        PEERS
        + """
    USERS = {1001: (7, 8), 1002: (), 0: (4,)}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    ready = os.pipe()
    os.chmod(work, 0o777)

    def serve():
        "Three users are served by a fourth one. Each process looks at its own ends, before and after."
        act_as(1000, 9)
        listeners = []
        for name in ("/tmp/work/socket", "relative", "\\0waypoint-peers"):
            kind = socket.SOCK_SEQPACKET if name == "relative" else socket.SOCK_STREAM
            listener = socket.socket(socket.AF_UNIX, kind)
            listener.bind(name)
            listener.listen()
            listeners.append(listener)
            if name.isprintable():
                os.chmod(name, 0o777)
        os.write(ready[1], b"x")
        accepted = [listener.accept()[0] for listener in listeners for _ in USERS]
        before = [*map(peer, accepted), *map(peer, listeners)]
        assert {credentials[1] for credentials, _, _ in before[:9]} == set(USERS)
        os.write(ready[1], b"y")
        signal.sigwait({signal.SIGUSR2})
        after = [*map(peer, accepted), *map(peer, listeners)]
        assert after == before, (before, after)
        for end in accepted:
            end.sendall(end.recv(100))
        os.write(ready[1], b"z")
        for listener in listeners:
            assert peer(listener.accept()[0])[0][1] == 1003

    server = child(serve)
    os.read(ready[0], 1)

    def connect(kind, name):
        end = socket.socket(socket.AF_UNIX, kind)
        if name == "relative":
            end.bind("client-%d" % os.getpid())
        end.connect(name)
        return end

    ADDRESSES = [
        (socket.SOCK_STREAM, "/tmp/work/socket"),
        (socket.SOCK_SEQPACKET, "relative"),
        (socket.SOCK_STREAM, "\\0waypoint-peers"),
    ]

    def use():
        ends = [connect(*address) for address in ADDRESSES]
        before = [*map(peer, ends)]
        assert {credentials for credentials, _, _ in before} == {(server, 1000, 1000)}
        os.write(ready[1], b"c")
        signal.sigwait({signal.SIGUSR2})
        after = [*map(peer, ends)]
        assert after == before, (before, after)
        for end in ends:
            end.sendall(b"hello")
        for end in ends:
            assert end.recv(100) == b"hello"

    def user(uid, groups):
        act_as(uid, *groups)
        use()

    users = [child(lambda uid=uid, groups=groups: user(uid, groups)) for uid, groups in USERS.items()]
    done = b""
    while len(done) < len(USERS) + 1:
        done += os.read(ready[0], 10)
    pause()
    for pid in [server, *users]:
        os.kill(pid, signal.SIGUSR2)
    for pid in users:
        succeeded(pid)
    os.read(ready[0], 10)

    def come_late():
        act_as(1003)
        for address in ADDRESSES:
            assert peer(connect(*address))[0] == (server, 1000, 1000)

    succeeded(child(come_late))
    succeeded(server)
    """
    )


def test_pairs_of_sockets_keep_who_made_them(survives: Survives) -> None:
    """A process that has ended, another user, one that has become another user since."""
    survives(
        PEERS
        + """
    mine, kept = socket.socketpair(), []
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        def make():
            act_as(1001, 5, 6)
            ends = socket.socketpair(socket.AF_UNIX, kind)
            socket.send_fds(mine[0], [b"x"], [end.fileno() for end in ends])
        maker = child(make)
        _, fds, _, _ = socket.recv_fds(mine[1], 1, 2)
        succeeded(maker)
        kept += [socket.socket(fileno=fd) for fd in fds]
        assert peer(kept[-1])[0] == (maker, 1001, 1001)

    def listen():
        act_as(1001)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\\0waypoint-left")
        listener.listen()
        socket.send_fds(mine[0], [b"x"], [listener.fileno()])

    succeeded(child(listen))
    kept += [socket.socket(fileno=socket.recv_fds(mine[1], 1, 1)[1][0])]
    closed, other = socket.socketpair()
    closed.send(b"last words")
    closed.close()
    for name in ("/tmp/work/left", "left-too"):
        # Nothing listens any more, one of the ends is closed, and the file is still there.
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name)
        listener.listen()
        client = socket.socket(socket.AF_UNIX)
        client.connect(name)
        kept += [listener.accept()[0]]
        client.close()
        listener.close()
    kept += [*mine, other]
    unconnected = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    unconnected.bind("unconnected")
    before = [*map(peer, kept)]
    pause()
    after = [*map(peer, kept)]
    assert after == before, (before, after)
    assert os.path.exists("left") and os.path.exists("left-too")
    assert struct.unpack("iII", unconnected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    for index in (0, 2, 4):
        kept[index].send(b"x")
        assert kept[index + 1].recv(10) == b"x"
    """
    )


def test_a_unix_connection_with_names_at_both_ends_leaves_its_listener_its_own(survives: Survives) -> None:
    survives("""
        connections = []
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            server = socket.socket(socket.AF_UNIX, kind)
            server.bind(f"\\0server-{kind}")
            server.listen()
            client = socket.socket(socket.AF_UNIX, kind)
            client.bind(f"\\0client-{kind}")
            client.connect(server.getsockname())
            connections.append((server, client, server.accept()[0]))

        def names():
            return [(one.getsockname(), other.getsockname(), one.getpeername(), other.getpeername())
                    for _, one, other in connections]

        before = names()
        pause()
        assert names() == before, (names(), before)
        for server, client, accepted in connections:
            client.send(b"x")
            assert accepted.recv(1) == b"x"
            another = socket.socket(socket.AF_UNIX, server.type)
            another.connect(server.getsockname())
            server.accept()
    """)


def test_abstract_names_belong_to_the_ends_that_are_bound_to_them(survives: Survives) -> None:
    """An end that was accepted has its listener's name, and another socket may be bound to that."""
    survives("""
        kinds = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)

        def connection(kind, name, own=None):
            server = socket.socket(socket.AF_UNIX, kind)
            server.bind(name)
            server.listen()
            client = socket.socket(socket.AF_UNIX, kind)
            if own:
                client.bind(own)
            client.connect(name)
            return server, client, server.accept()[0]

        def is_free(kind, name):
            with socket.socket(socket.AF_UNIX, kind) as trial:
                try:
                    trial.bind(name)
                except OSError:
                    return False
            return True

        names = [f"\\0{number}" for number in range(10)]
        connected, left = [], []
        for kind in kinds:
            # Listeners of one name, one after the other, and clients with names.
            for own in names[1:3]:
                listener, *ends = connection(kind, names[0], own)
                listener.close()
                connected += ends
            # A name whose listener is closed is a client's.
            listener, *ends = connection(kind, names[3])
            listener.close()
            connected += [*ends, *connection(kind, names[4], names[3])[1:]]
            # The other end is closed.
            listener, client, accepted = connection(kind, names[5])
            listener.close()
            client.close()
            left.append(accepted)
            listener, client, accepted = connection(kind, f"gone-{kind}", names[6])
            listener.close()
            accepted.close()
            os.remove(f"gone-{kind}")
            left.append(client)
            # Nothing was accepted.
            for of_pair in (names[7:9], names[9:10]):
                ends = socket.socketpair(socket.AF_UNIX, kind)
                for end, name in zip(ends, of_pair):
                    end.bind(name)
                connected += ends

        def state():
            return (
                [end.getsockname() for end in connected + left],
                [end.getpeername() for end in connected],
                [[name for name in names if is_free(kind, name)] for kind in kinds],
            )

        before = state()
        assert before[2] == [[names[0], names[4], names[5]]] * 2
        pause()
        assert state() == before, (state(), before)
    """)


def test_a_descriptor_on_its_way_through_a_unix_socket(survives: Survives) -> None:
    survives("""
        one, other = socket.socketpair()
        file = open("sent", "w+b", buffering=0)
        file.write(b"through the socket")
        reader, writer = os.pipe()
        socket.send_fds(one, [b"x"], [file.fileno(), reader])
        os.close(reader)
        file.close()
        pause()
        _, (received, pipe), _, _ = socket.recv_fds(other, 1, 2)
        assert os.pread(received, 100, 0) == b"through the socket"
        os.write(writer, b"y")
        assert os.read(pipe, 1) == b"y"
    """)


def test_descriptors_on_their_way_through_unix_sockets_in_the_second_generation(
    fresh: waypoint.Session,
) -> None:
    start(
        fresh,
        """
        def made():
            "What is sent, and whether the process keeps it."
            for kept in (True, False):
                yield "a counter", os.eventfd(3), kept
                yield "a file", os.open("sent", os.O_RDWR | os.O_CREAT), kept
                yield "a pipe", os.pipe()[0], kept
                yield "a listener", socket.create_server(("127.0.0.1", 0)).detach(), kept
                yield "a memfd", os.memfd_create("sent"), kept
            yield "a timer", libc.timerfd_create(1, 0), True
            yield "a unix socket", socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach(), True

        waiting = []
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            for number, (name, sent, kept) in enumerate(made()):
                one, other = socket.socketpair(socket.AF_UNIX, kind)
                socket.send_fds(one, [b"x"], [sent])
                waiting.append((kind, name, kept, one, other))
                if not kept:
                    os.close(sent)
                if number % 2:
                    one.close()
        pause()
        for kind, name, kept, one, other in waiting:
            data, sent, _, _ = socket.recv_fds(other, 1, 4, socket.MSG_DONTWAIT)
            assert (data, len(sent)) == (b"x", 1), (kind, name, kept, data, sent)
        """,
    )
    for _ in range(2):
        restored(fresh, fresh.checkpoint())
    go_on(fresh)


def test_a_terminal_whose_slave_is_closed_controls_nothing(survives: Survives) -> None:
    survives("""
        import pty, termios
        ready = os.pipe()

        def lose():
            os.setsid()
            master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            os.close(slave)
            os.write(ready[1], b"x")
            signal.pause()

        child(lose)
        os.read(ready[0], 1)
        pause()
    """)


def test_inheritable_capabilities_outside_the_bounding_set(survives: Survives) -> None:
    survives("""
        header = struct.pack("Ii", 0x20080522, 0)
        data = ctypes.create_string_buffer(24)
        call(libc.capget(header, data))
        words = list(struct.unpack("6I", data.raw))
        words[2] |= 1 << 10  # CAP_NET_BIND_SERVICE
        call(libc.capset(header, struct.pack("6I", *words)))
        call(libc.prctl(24, 10, 0, 0, 0))  # PR_CAPBSET_DROP
        pause()
        call(libc.capget(header, data))
        assert list(struct.unpack("6I", data.raw)) == words
    """)


def test_a_child_from_before_setsid_below_a_daemon_whose_leader_has_ended(survives: Survives) -> None:
    survives("""
        ready = os.pipe()

        def leave():
            os.setsid()
            child(be_daemon)  # and its leader ends

        def be_daemon():
            child(fork_and_leave)
            os.write(ready[1], b"x")
            signal.pause()

        def fork_and_leave():
            child(rest)
            os.setsid()
            os.write(ready[1], b"y")
            signal.pause()

        def rest():
            os.write(ready[1], b"z")
            signal.pause()

        succeeded(child(leave))
        for _ in range(3):
            os.read(ready[0], 1)
        pause()
    """)


# ---- shared memory, queues, semaphores ----------------------------------------------------------


def test_system_v_shared_memory_semaphores_and_messages(survives: Survives) -> None:
    survives("""
        IPC_PRIVATE, IPC_CREAT, IPC_RMID, SETVAL, GETVAL, IPC_NOWAIT = 0, 0o1000, 0, 16, 12, 0o4000
        libc.shmat.restype = ctypes.c_void_p
        libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
        key = 0x5757
        memory = call(libc.shmget(key, 1 << 16, IPC_CREAT | 0o600))
        address = libc.shmat(memory, None, 0)
        doomed = call(libc.shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0o600))
        held = libc.shmat(doomed, None, 0)
        ctypes.memmove(address, b"in shared memory", 16)
        ctypes.memmove(held, b"marked to go", 12)
        call(libc.shmctl(doomed, IPC_RMID, None))
        semaphores = call(libc.semget(key, 2, IPC_CREAT | 0o600))
        call(libc.semctl(semaphores, 1, SETVAL, 7))
        queue = call(libc.msgget(key, IPC_CREAT | 0o600))
        for kind, text in ((3, b"three"), (5, b"five")):
            call(libc.msgsnd(queue, struct.pack("q8s", kind, text), 8, 0))
        pause()
        assert ctypes.string_at(address, 16) == b"in shared memory"
        assert ctypes.string_at(held, 12) == b"marked to go"
        assert call(libc.shmget(key, 0, 0)) == memory
        def other():
            there = libc.shmat(memory, None, 0)
            assert ctypes.string_at(there, 2) == b"in"
            ctypes.memmove(there, b"IN", 2)
        succeeded(child(other))
        assert ctypes.string_at(address, 2) == b"IN", "it is not shared any more"
        assert call(libc.semctl(call(libc.semget(key, 2, 0)), 1, GETVAL)) == 7
        room = ctypes.create_string_buffer(16)
        call(libc.msgrcv(call(libc.msgget(key, 0)), room, 8, 5, IPC_NOWAIT))
        assert room.raw[8:12] == b"five"
        call(libc.msgrcv(queue, room, 8, 0, IPC_NOWAIT))
        assert room.raw[8:13] == b"three"
    """)


def test_posix_shared_memory_and_semaphores(survives: Survives) -> None:
    survives("""
        from multiprocessing import shared_memory, resource_tracker
        block = shared_memory.SharedMemory("waypoint", create=True, size=8192)
        resource_tracker.unregister("/waypoint", "shared_memory")
        block.buf[:6] = b"shared"
        pthread = ctypes.CDLL("libpthread.so.0", use_errno=True)
        pthread.sem_open.restype = ctypes.c_void_p
        pthread.sem_open.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_uint)
        for name in ("sem_post", "sem_wait", "sem_trywait"):
            getattr(pthread, name).argtypes = (ctypes.c_void_p,)
        semaphore = pthread.sem_open(b"/waypoint", os.O_CREAT, 0o600, 2)
        call(pthread.sem_wait(semaphore))
        waiter = child(lambda: [call(pthread.sem_wait(semaphore)) for _ in range(3)])
        eventually(lambda: open(f"/proc/{waiter}/syscall").read().startswith("202 "))  # futex
        pause()
        assert sorted(os.listdir("/dev/shm")) == ["sem.waypoint", "waypoint"]
        twin = shared_memory.SharedMemory("waypoint")
        assert bytes(twin.buf[:6]) == b"shared"
        twin.buf[0:1] = b"S"
        assert bytes(block.buf[:6]) == b"Shared", "it is not shared any more"
        again = pthread.sem_open(b"/waypoint", 0, 0, 0)
        call(pthread.sem_post(again))
        call(pthread.sem_post(semaphore))
        succeeded(waiter)
        assert pthread.sem_trywait(semaphore) == -1
        os._exit(0)
    """)


# ---- memory -------------------------------------------------------------------------------------


def test_memory_mappings_of_all_kinds(survives: Survives) -> None:
    survives("""
        open("file", "wb").write(b"f" * 16384)
        file = open("file", "r+b")
        shared = mmap.mmap(file.fileno(), 16384, mmap.MAP_SHARED)
        private = mmap.mmap(file.fileno(), 16384, mmap.MAP_PRIVATE)
        gone = open("gone", "w+b")
        gone.write(b"g" * 8192)
        gone.flush()
        unlinked = mmap.mmap(gone.fileno(), 8192)
        os.unlink("gone")
        gone.close()
        family = mmap.mmap(-1, 1 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        alone = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        true = os.open("/bin/true", os.O_RDONLY)
        base = mmap.mmap(true, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        shared[0:1], private[1:2], unlinked[0:1], family[0:3], alone[0:5] = b"S", b"P", b"U", b"fam", b"alone"
        base[0:1] = b"!"
        reader, writer = os.pipe()
        def relative():
            os.read(reader, 1)
            assert family[0:3] == b"FAM" and unlinked[0:2] == b"UV" and alone[0:5] == b"alone", family[0:3]
            family[3:6] = b"ily"
        kin = child(relative)
        alone[0:5] = b"ALONE"
        pause()
        assert shared[0:2] == b"Sf" and private[1:2] == b"P"
        assert alone[0:5] == b"ALONE" and base[0:4] == b"!ELF"
        assert open("file", "rb").read(3) == b"Sff", "what is private has reached the file"
        shared[2:3] = b"T"
        assert private[2:3] == b"T" or private[2:3] == b"f"
        assert open("file", "rb").read(3) == b"SfT"
        family[0:3], unlinked[1:2] = b"FAM", b"V"
        os.write(writer, b"x")
        succeeded(kin)
        assert family[3:6] == b"ily"
        assert not os.path.exists("gone")
    """)


def test_protections_and_advice_of_mappings(survives: Survives) -> None:
    survives("""
        PROT_NONE, PROT_READ = 0, 1
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        for name in ("mprotect", "madvise", "mlock"):
            getattr(libc, name).argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        MAP_PRIVATE, MAP_ANONYMOUS, MAP_GROWSDOWN, MAP_NORESERVE = 2, 0x20, 0x100, 0x4000
        advice = {"huge": 14, "nohuge": 15, "dontfork": 10, "dontdump": 16, "wipeonfork": 18, "mergeable": 12}
        areas = {}
        def area(name, flags=0, size=4 << 20):
            areas[name] = libc.mmap(None, size, 3, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0)
            ctypes.memset(areas[name], len(areas), 4096)
            call(libc.mmap(None, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))  # a gap behind it
            return areas[name]
        for name, number in advice.items():
            call(libc.madvise(area(name), 4 << 20, number))
        call(libc.mprotect(area("none"), 4 << 20, PROT_NONE))
        call(libc.mprotect(area("readonly"), 4 << 20, PROT_READ))
        area("growsdown", MAP_GROWSDOWN)
        area("noreserve", MAP_NORESERVE)
        call(libc.mlock(area("locked", size=16384), 16384, 0))
        def flags():
            found, name = {}, None
            for line in open("/proc/self/smaps"):
                head = re.match("([0-9a-f]+)-[0-9a-f]+ (....)", line)
                if head:
                    name, mode = next((n for n, a in areas.items() if a == int(head[1], 16)), None), head[2]
                elif line.startswith("VmFlags:") and name:
                    # ac, sd, uw, um: notes of the kernel's about pages, not what the program asked for
                    found[name] = mode, set(line.split()[1:]) - {"ac", "sd", "um", "uw"}
            return found
        before = flags()
        assert len(before) == len(areas), set(areas) - set(before)
        pause()
        after = flags()
        assert after == before, [(n, before[n], after.get(n)) for n in before if before[n] != after.get(n)]
        for number, (name, address) in enumerate(areas.items(), 1):
            if name != "none":
                assert ctypes.string_at(address, 1)[0] == number, name
    """)


# ---- locks --------------------------------------------------------------------------------------

LOCKS = """
    OFD_GETLK, OFD_SETLK = 36, 37
    def region(kind, start, length):
        return struct.pack("hhqqi4x", kind, 0, start, length, 0)
    def refused(path, kind, start=0, length=0):
        "Whether another process is refused a POSIX lock there."
        def attempt():
            fd = os.open(path, os.O_RDWR)
            try:
                fcntl.fcntl(fd, fcntl.F_SETLK, region(kind, start, length))
            except OSError as error:
                assert error.errno in (errno.EAGAIN, errno.EACCES)
                os._exit(3)
        return os.waitstatus_to_exitcode(os.waitpid(child(attempt), 0)[1]) == 3
    def flock_refused(path, kind):
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
"""


@pytest.mark.parametrize("place", ["/tmp/work/made", "/etc/hostname", "/dev/shm/made"])
def test_file_locks_of_every_kind(survives: Survives, place: str) -> None:
    survives(
        textwrap.dedent(LOCKS)
        + textwrap.dedent(f"""
        place = {place!r}
        open(place, "a").write("some text that is long enough")
        posix, ofd = os.open(place, os.O_RDWR), os.open(place, os.O_RDWR)
        open(place + ".flock", "w").close()
        whole = os.open(place + ".flock", os.O_RDWR)
        fcntl.fcntl(posix, fcntl.F_SETLK, region(fcntl.F_WRLCK, 0, 2))
        fcntl.fcntl(posix, fcntl.F_SETLK, region(fcntl.F_RDLCK, 4, 2))
        fcntl.fcntl(ofd, OFD_SETLK, region(fcntl.F_WRLCK, 10, 0))
        fcntl.flock(whole, fcntl.LOCK_SH)
        def check():
            assert refused(place, fcntl.F_RDLCK, 0, 2), "the write lock is gone"
            assert not refused(place, fcntl.F_WRLCK, 2, 2), "more is locked than was"
            assert not refused(place, fcntl.F_RDLCK, 4, 2), "a read lock became a write lock"
            assert refused(place, fcntl.F_WRLCK, 4, 2), "the read lock is gone"
            assert refused(place, fcntl.F_RDLCK, 100, 1), "the OFD lock is gone"
            assert not refused(place, fcntl.F_WRLCK, 8, 2), "the OFD lock has grown"
            assert flock_refused(place + ".flock", fcntl.LOCK_EX), "the flock is gone"
            assert not flock_refused(place + ".flock", fcntl.LOCK_SH), "the flock is exclusive now"
        check()
        pause()
        check()
        os.close(ofd)
        assert not refused(place, fcntl.F_RDLCK, 100, 1), "the OFD lock has outlived its file"
        fcntl.flock(whole, fcntl.LOCK_UN)
        assert not flock_refused(place + ".flock", fcntl.LOCK_EX)
        """)
    )


def test_posix_locks_of_a_child_on_what_it_has_inherited(survives: Survives) -> None:
    survives(
        textwrap.dedent(LOCKS)
        + textwrap.dedent("""
        reader, writer = os.pipe()
        inherited = [
            os.open("inherited", os.O_RDWR | os.O_CREAT),
            os.open("/dev/null", os.O_RDWR),
            os.open("/dev/pts/ptmx", os.O_RDWR),
            socket.socket().detach(),
            writer,
        ]
        locked = os.pipe()

        def hold():
            for fd in inherited:
                fcntl.fcntl(fd, fcntl.F_SETLK, region(fcntl.F_WRLCK, 0, 2))
            os.write(locked[1], b"x")
            signal.pause()

        holder = child(hold)
        os.read(locked[0], 1)

        def check():
            for fd in inherited:
                answer = fcntl.fcntl(fd, fcntl.F_GETLK, region(fcntl.F_WRLCK, 0, 2))
                assert struct.unpack("hhqqi4x", answer)[4] == holder, (fd, answer)

        check()
        pause()
        check()
        os.kill(holder, signal.SIGKILL)
        """)
    )


def test_posix_locks_on_a_file_that_is_also_mapped(survives: Survives) -> None:
    survives(
        textwrap.dedent(LOCKS)
        + textwrap.dedent("""
        open("mapped", "wb").write(b"m" * 8192)
        fd = os.open("mapped", os.O_RDWR)
        view = mmap.mmap(fd, 8192)
        other = mmap.mmap(os.open("mapped", os.O_RDONLY), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
        fcntl.fcntl(fd, fcntl.F_SETLK, region(fcntl.F_WRLCK, 0, 0))
        pause()
        assert refused("mapped", fcntl.F_RDLCK), "the lock is gone"
        view[0:1] = b"M"
        assert other[0:1] == b"M"
        fcntl.fcntl(fd, fcntl.F_SETLK, region(fcntl.F_UNLCK, 0, 0))
        assert not refused("mapped", fcntl.F_WRLCK)
        """)
    )


def test_sqlite_in_wal_mode_admits_no_second_writer(survives: Survives) -> None:
    survives(
        """
        import sqlite3
        mine = sqlite3.connect("data.db", isolation_level=None)
        assert mine.execute("pragma journal_mode = wal").fetchone() == ("wal",)
        mine.execute("create table rows (id integer primary key, who text)")
        mine.execute("insert into rows (who) values ('first')")
        mine.execute("begin immediate")
        mine.execute("insert into rows (who) values ('mine')")
        def second_writer(expected):
            def attempt():
                theirs = sqlite3.connect("data.db", isolation_level=None, timeout=0)
                assert theirs.execute("select count(*) from rows").fetchone()[0] >= 1
                try:
                    theirs.execute("begin immediate")
                    theirs.execute("insert into rows (who) values ('theirs')")
                    theirs.execute("commit")
                    outcome = "admitted"
                except sqlite3.OperationalError as error:
                    outcome = str(error)
                assert outcome == expected, outcome
            succeeded(child(attempt))
        second_writer("database is locked")
        pause()
        second_writer("database is locked")
        mine.execute("commit")
        second_writer("admitted")
        found = [who for (who,) in mine.execute("select who from rows order by id")]
        assert found == ["first", "mine", "theirs"], found
        assert mine.execute("pragma integrity_check").fetchone() == ("ok",)
    """,
        changing=("private memory",),
    )  # its record of the file (engine/sqlite.py)


def test_a_file_lease_is_still_broken_by_an_opener(survives: Survives) -> None:
    survives("""
        os.setuid(65534) if os.stat(".").st_uid == 65534 else None
        fd = os.open("leased", os.O_RDWR | os.O_CREAT, 0o666)
        os.write(fd, b"a file that is opened to look into it")
        told = []
        signal.signal(signal.SIGIO, lambda *_: told.append("SIGIO"))
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            # Not every file system has leases; then there is nothing to keep.
            assert error.errno in (errno.EINVAL, errno.EAGAIN), error
            pause()
            sys.exit()
        pause()
        assert fcntl.fcntl(fd, fcntl.F_GETLEASE) == fcntl.F_WRLCK
        del told[:]
        opener = child(lambda: os.open("leased", os.O_RDONLY))
        eventually(lambda: told)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        succeeded(opener)
    """)


# ---- who a process is, and what it may do -------------------------------------------------------

TRAITS = """
import contextlib, resource

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})

def prctl(*words):
    return call(libc.prctl(*(ctypes.c_ulong(word) for word in (*words, 0, 0, 0, 0)[:5])))

PDEATHSIG, DUMPABLE, KEEPCAPS, SECUREBITS, SLACK, SUBREAPER, NO_NEW_PRIVS, NO_HUGE_PAGES, AMBIENT = (
    1, 4, 8, 28, 29, 36, 38, 41, 47)

def user():
    os.setgroups([20, 44])
    os.setresgid(1000, 1001, 1002)
    os.setresuid(1000, 1001, 1002)

def ambient():
    "A user with a capability of its own."
    prctl(KEEPCAPS, 1)
    os.setresuid(1000, 1000, 1000)
    header = struct.pack("Ii", 0x20080522, 0)
    bind = 1 << 10
    call(libc.capset(header, struct.pack("6I", bind, bind, bind, 0, 0, 0)))
    prctl(AMBIENT, 2, 10)

def fewer_capabilities():
    prctl(24, 13)  # PR_CAPBSET_DROP, CAP_NET_RAW
    prctl(SECUREBITS, 0x5)

def no_new_privileges():
    prctl(NO_NEW_PRIVS, 1)

def filtered():
    "A filter of its own on top of the box's: getppid is refused."
    prctl(NO_NEW_PRIVS, 1)
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, 110), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    call(libc.prctl(22, 2, struct.pack("H6xQ", len(code), ctypes.addressof(program))))

def nice():
    os.nice(7)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

def idle():
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

def one_processor():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

def quiet_disk():
    call(libc.syscall(251, 1, 0, 2 << 13 | 7))  # ioprio_set, best effort 7

def first_to_go():
    open("/proc/self/oom_score_adj", "w").write("500")

def limited():
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 24))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 30))

def odds():
    prctl(SLACK, 123456)
    prctl(PDEATHSIG, 10)
    prctl(SUBREAPER, 1)
    prctl(NO_HUGE_PAGES, 1)
    open("/proc/self/coredump_filter", "w").write("0x7f")
    libc.prctl(15, b"renamed")
    os.umask(0o27)

def private():
    prctl(DUMPABLE, 0)

def signals():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGRTMIN})
    os.kill(os.getpid(), signal.SIGTERM)
    for number in range(3):
        os.kill(os.getpid(), signal.SIGRTMIN)

def leader():
    os.setsid()

NOT_ASKED = ("Vm", "Rss", "Hugetlb", "SigQ", "voluntary", "nonvoluntary", "FDSize", "State", "untag")

def look(pid):
    status = {}
    for line in open(f"/proc/{pid}/status"):
        name, _, value = line.partition(":")
        if not name.startswith(NOT_ASKED):
            status[name] = value.strip()
    for name in ("limits", "oom_score_adj", "coredump_filter", "cgroup", "loginuid"):
        with contextlib.suppress(OSError):
            status[name] = open(f"/proc/{pid}/{name}").read()
    # The group is that of the box, and a restore and a fork make a new box.
    status["cgroup"] = re.sub("/waypoint-[0-9a-f-]+", "/BOX", status["cgroup"])
    stat = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    status |= {"nice": stat[16], "policy": stat[38], "ioprio": libc.syscall(252, 1, pid)}
    return status

reader, writer = os.pipe()
kinds = (user, ambient, fewer_capabilities, no_new_privileges, filtered, nice, idle, one_processor,
         quiet_disk, first_to_go, limited, odds, private, signals, leader)

def live(kind):
    kind()
    os.write(writer, b"x")
    if kind is odds:
        signal.sigwait({signal.SIGCONT})
        assert libc.prctl(30, 0, 0, 0, 0) == 123456, "the timer slack is gone"
    elif kind is filtered:
        signal.sigwait({signal.SIGCONT})
        try:
            call(libc.syscall(110))
        except PermissionError:
            return
        raise AssertionError("the filter is gone")
    else:
        time.sleep(1000)

pids = {}
for kind in kinds:
    pids[kind] = child(lambda: live(kind))
    os.read(reader, 1)
worker = threading.Thread(target=lambda: (one_processor(), time.sleep(1000)), daemon=True)
worker.start()
eventually(lambda: len(os.sched_getaffinity(worker.native_id)) == 1)
before = {kind: look(pid) for kind, pid in pids.items()}
pause()
for kind, pid in pids.items():
    after = look(pid)
    assert after == before[kind], [
        (kind.__name__, name, value, after.get(name)) for name, value in before[kind].items()
        if value != after.get(name)]
assert len(os.sched_getaffinity(worker.native_id)) == 1, "a thread may run elsewhere now"
for kind in (odds, filtered):
    os.kill(pids[kind], signal.SIGCONT)
    succeeded(pids[kind])
os._exit(0)
"""


def test_identity_privileges_priorities_and_limits(survives: Survives) -> None:
    survives(TRAITS)


CONFINED = "grep -E '^(Cap|NoNewPrivs|Seccomp)' /proc/self/status"


def test_walls_stand_after_a_restore_for_what_was_there_and_what_is_new(fresh: waypoint.Session) -> None:
    before = fresh.run(CONFINED).output
    assert "CapBnd:\t00000000a00425fb" in before
    assert "Seccomp:\t2" in before
    point = fresh.checkpoint()
    fork = point.fork(name="copy")[0]
    fresh.restore(point, safety=False)
    for copy in (fork, fresh):
        assert copy.run(CONFINED).output == before, "in what the restored shell starts"
        program = copy.spawn(["grep", "-E", "^(Cap|NoNewPrivs|Seccomp)", "/proc/self/status"])
        out, _ = program.communicate()
        assert out.decode() in before, "in what the restored anchor starts"
        for attempt in ("mount -t tmpfs x /mnt", "unshare -U true", "mknod /tmp/disk b 254 0", "dmesg"):
            assert copy.run(attempt).exit_code != 0, attempt


def test_limits_of_the_box_hold_after_a_restore_and_in_a_fork(
    sessions: Callable[..., waypoint.Session],
) -> None:
    session = sessions("limited", memory_bytes=256 << 20, cpus=0.5, pids=60)
    point = session.checkpoint()
    fork = point.fork(name="copy")[0]
    session.restore(point, safety=False)
    eat = "python3 -c 'x = bytearray(400 << 20)'"
    crowd = (
        "/usr/bin/python3 -c 'import os, signal\n"
        "made = []\n"
        "try:\n"
        "    while len(made) < 80: made.append(os.fork() or signal.pause())\n"
        "finally: [os.kill(pid, 9) for pid in made]'"
    )
    burn = (
        "/usr/bin/python3 -c 'import time; t = time.monotonic()\n"
        "while time.monotonic() < t + 1: pass\n"
        "print(time.process_time())'"
    )
    for copy in (fork, session):
        assert copy.run(eat).exit_code in (1, 137), "more memory than allowed"
        assert copy.info.state == "live"
        assert "Resource temporarily unavailable" in copy.run(crowd, timeout=30).output
        assert float(copy.run(burn).output) < 0.8, "more processor time than allowed"


# ---- the world outside --------------------------------------------------------------------------

WORLD, GATE = "198.51.100.2", "198.51.100.1"


@pytest.fixture
def world() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Somewhere outside all boxes, that boxes reach through the host: runs Python there."""
    name = f"wpt{os.getpid()}"
    link = [f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name]
    for words in (
        ["netns", "add", name],
        ["link", "add", *link],
        ["addr", "add", f"{GATE}/30", "dev", f"{name}a"],
        ["link", "set", f"{name}a", "up"],
        ["-n", name, "addr", "add", f"{WORLD}/30", "dev", f"{name}b"],
        ["-n", name, "link", "set", f"{name}b", "up"],
        ["-n", name, "link", "set", "lo", "up"],
    ):
        subprocess.run(["ip", *words], check=True)
    started: list[subprocess.Popen[str]] = []

    def run(source: str) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", name, sys.executable, "-u", "-c", textwrap.dedent(source)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    try:
        yield run
    finally:
        for process in started:
            process.kill()
            process.communicate()
        subprocess.run(["ip", "link", "del", f"{name}a"], check=True)
        subprocess.run(["ip", "netns", "del", name], check=True)


def test_a_connection_to_the_outside_ends_at_once_and_the_original_keeps_its_own(
    fresh: waypoint.Session, world: Callable[[str], subprocess.Popen[str]]
) -> None:
    server = world(f"""
        import socket, threading
        server = socket.create_server(("{WORLD}", 9000))
        print("listening")
        def serve(peer):
            while data := peer.recv(100):
                peer.sendall(data.upper())
        while True:
            threading.Thread(target=serve, args=server.accept()[:1]).start()
    """)
    assert server.stdout
    assert server.stdout.readline() == "listening\n"
    start(
        fresh,
        f"""
        outside = socket.create_connection(("{WORLD}", 9000))
        outside.sendall(b"before")
        assert outside.recv(100) == b"BEFORE"
        def wait():
            outside.settimeout(None)
            try:
                said.append(outside.recv(100))
            except OSError as error:
                said.append(errno.errorcode[error.errno])
        said = []
        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        pause()
        outside.sendall(b"after") if os.path.exists("/tmp/original") else None
        waiter.join(10)
        open("/tmp/said", "w").write(repr(said))
        os._exit(0)
        """,
    )
    point = fresh.checkpoint()
    fork = point.fork(name="copy")[0]
    go_on(fork)
    assert fork.run("cat /tmp/said").output == "['ECONNABORTED']"
    fresh.run("touch /tmp/original")
    go_on(fresh)
    assert fresh.run("cat /tmp/said").output == "[b'AFTER']", "the fork has disturbed the original"
    fresh.restore(point, safety=False)
    go_on(fresh)
    assert fresh.run("cat /tmp/said").output == "['ECONNABORTED']"
    started = time.monotonic()
    reached = f"import socket; socket.create_connection(('{WORLD}', 9000), timeout=10); print('reached')"
    assert fork.run(f'/usr/bin/python3 -c "{reached}"').output == "reached\n", (
        "a fork has a network of its own"
    )
    assert time.monotonic() - started < 5


# ---- names that are no text ---------------------------------------------------------------------


def test_names_that_are_no_utf8_keep_no_session_from_being_saved(survives: Survives) -> None:
    """The kernel cuts a process name after 15 bytes, in the middle of a letter if need be."""
    survives(r"""
        name = "fifteen-bytes-\N{LATIN SMALL LETTER E WITH ACUTE}".encode()
        call(libc.prctl(15, name))
        assert open("/proc/self/comm", "rb").read() == name[:15] + b"\n"
        folder = b"caf\xe9"
        os.mkdir(folder)
        os.chdir(folder)
        mapped = open(b"mapped\xff", "w+b", buffering=0)
        mapped.write(b"shared" * 1000)
        fcntl.lockf(mapped, fcntl.LOCK_EX)
        memory = mmap.mmap(mapped.fileno(), 4096)
        large = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # so that it is tracked
        large.write(os.urandom(1 << 20) * 32)
        worker = threading.Thread(target=threading.Event().wait, daemon=True)
        worker.start()
        gone = open(b"gone\xfe", "w+b")
        os.unlink(b"gone\xfe")
        server = socket.socket(socket.AF_UNIX)
        server.bind(b"socket\xfd")
        server.listen()
        pause()
        assert open("/proc/self/comm", "rb").read() == name[:15] + b"\n"
        assert os.getcwdb().endswith(folder) and memory[:6] == b"shared"
        assert server.getsockname().encode(errors="surrogateescape") == b"socket\xfd"
    """)


# ---- protocols that cannot be saved -------------------------------------------------------------


def test_a_server_that_asks_for_mptcp_falls_back_to_tcp_and_is_saved(survives: Survives) -> None:
    """Go's servers listen with MPTCP by default, which CRIU cannot save."""
    survives("""
        try:
            server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)  # IPPROTO_MPTCP
            raise SystemExit("MPTCP is available")
        except OSError as error:
            assert error.errno in (errno.ENOPROTOOPT, errno.EPROTONOSUPPORT), error
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        pause()
        client.sendall(b"still here")
        assert peer.recv(100) == b"still here"
    """)


# ---- sessions, programs and watches that CRIU alone would not restore --------------------------


def test_a_child_that_was_started_before_its_parent_called_setsid(survives: Survives) -> None:
    survives("""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        ready, go = os.pipe(), os.pipe()

        def has_left():
            first = child(lambda: signal.sigwait({signal.SIGUSR2}))
            os.setsid()
            second = child(lambda: signal.sigwait({signal.SIGUSR2}))
            os.write(ready[1], b"%d %d" % (first, second))
            os.read(go[0], 1)
            for pid in (first, second):
                os.kill(pid, signal.SIGUSR2)
                succeeded(pid)

        parent = child(has_left)
        tree = [os.getpid(), parent, *map(int, os.read(ready[0], 100).split())]

        def describe():
            stats = [open(f"/proc/{pid}/stat").read().split()[:7] for pid in tree]
            return [(pid, *numbers) for pid, _, _, *numbers in stats]

        before = describe()
        sessions = [one[3] for one in before]
        assert sessions[2] == sessions[0] != sessions[1] == sessions[3]
        pause()
        assert describe() == before, (describe(), before)
        os.write(go[1], b"x")
        succeeded(parent)
    """)


ORPHANS = """
import ctypes, os, signal, time

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER

def child(run, name):
    pid = os.fork()
    if not pid:
        open("/proc/self/comm", "w").write(name)
        run()
        os._exit(0)
    return pid

def leave(*runs):
    "A session of its own: a leader that starts these and ends."
    def lead():
        os.setsid()
        for number, run in enumerate(runs):
            child(run, f"left-{number}")
    return child(lead, "leader")

def job():
    os.setpgid(0, 0)
    signal.pause()

def parent():
    child(signal.pause, "inner")
    child(job, "inner-job")
    signal.pause()

def parent_that_leads():
    child(signal.pause, "before-setsid")
    os.setsid()
    child(signal.pause, "after-setsid")
    signal.pause()

def leader_beside():
    os.setsid()
    os.waitpid(child(lambda: child(signal.pause, "beside"), "between"), 0)
    signal.pause()

os.waitpid(leave(signal.pause), 0)
os.waitpid(leave(parent, signal.pause, job), 0)
leave(signal.pause)  # its leader stays a zombie
child(leader_beside, "leads")
child(parent_that_leads, "leads-late")
time.sleep(0.1)
while open("/proc/self/task/%d/children" % os.getpid()).read().count(" ") < 8:
    time.sleep(0.01)
open("/tmp/ready", "w").close()
signal.pause()
"""
SESSIONS = "ps -e -o pid=,ppid=,pgid=,sid=,comm= | grep -E 'python|left|lead|inner|beside|setsid'"


def test_daemons_of_a_subreaper_keep_their_sessions(fresh: waypoint.Session) -> None:
    """Leaders that have ended, that are zombies, and that live beside those they lead."""
    fresh.run("cat > /tmp/orphans.py", stdin=ORPHANS).check()
    fresh.run(
        "/usr/bin/python3 /tmp/orphans.py & reaper=$!; until [ -e /tmp/ready ]; do sleep 0.01; done"
    ).check()
    before = fresh.run(SESSIONS).check().output
    assert len([line for line in before.splitlines() if "left" in line]) == 5, before
    fresh.restore(fresh.checkpoint(), safety=False)
    assert fresh.run(SESSIONS).output == before
    point = fresh.checkpoint()
    assert point.fork(name="copy")[0].run(SESSIONS).output == before
    fresh.restore(point, safety=False)
    assert fresh.run(SESSIONS).output == before


def test_a_program_that_was_run_from_a_memfd(survives: Survives) -> None:
    survives("""
        program = os.memfd_create("program", 0)
        content = open("/usr/bin/cat", "rb").read()
        os.write(program, content)
        given, answered = os.pipe(), os.pipe()

        def run():
            os.dup2(given[0], 0)
            os.dup2(answered[1], 1)
            os.execve(program, ["cat"], os.environ)

        cat = child(run)
        eventually(lambda: "/memfd:program" in os.readlink(f"/proc/{cat}/exe"))
        os.write(given[1], b"before")
        assert os.read(answered[0], 100) == b"before"
        pause()
        os.write(given[1], b"after")
        assert os.read(answered[0], 100) == b"after"
        assert open(f"/proc/{cat}/exe", "rb").read() == content
        assert not [name for name in os.listdir("/") if name.startswith("#")]
        os.kill(cat, signal.SIGKILL)
    """)


def test_watches_on_the_paths_of_sockets(survives: Survives) -> None:
    """One that is bound, one that is bound through a link, and one that is left over."""
    survives("""
        left, server, linked = (socket.socket(socket.AF_UNIX) for _ in range(3))
        left.bind("/tmp/work/left")
        left.close()
        os.mkdir("folder")
        os.symlink("/tmp/work/folder", "link")
        server.bind("/tmp/work/server")
        linked.bind("/tmp/work/link/linked")
        fd = libc.inotify_init1(os.O_NONBLOCK)
        IN_ATTRIB = 4
        open("file", "w").close()
        names = [b"file", b"server", b"left", b"link/linked"]
        numbers = [call(libc.inotify_add_watch(fd, name, IN_ATTRIB)) for name in names]
        assert libc.inotify_rm_watch(fd, numbers[0]) == 0 and os.read(fd, 100)
        pause()
        for name, number in zip(names[1:], numbers[1:]):
            os.utime(name, (1, 1))
            assert struct.unpack_from("iI", os.read(fd, 1000)) == (number, IN_ATTRIB), name
        assert call(libc.inotify_add_watch(fd, b"file", IN_ATTRIB)) not in numbers[1:]
    """)


@pytest.mark.parametrize("target", ["file", "nowhere"])
def test_a_watch_on_a_symbolic_link(survives: Survives, target: str) -> None:
    survives(f"""
        target = {target!r}
        open("file", "w").close()
        os.symlink(target, "link")
        fd = libc.inotify_init1(os.O_NONBLOCK)
        IN_ATTRIB, IN_DONT_FOLLOW = 4, 0x02000000
        call(libc.inotify_add_watch(fd, b"file", IN_ATTRIB))
        watch = call(libc.inotify_add_watch(fd, b"link", IN_ATTRIB | IN_DONT_FOLLOW))
        pause()
        os.utime("link", (1, 1), follow_symlinks=False)
        assert struct.unpack_from("iI", os.read(fd, 1000)) == (watch, IN_ATTRIB)
        os.utime("file", (1, 1))
        assert struct.unpack_from("iI", os.read(fd, 1000)) == (watch - 1, IN_ATTRIB)
    """)


def test_exit_codes_of_eight_bits_that_were_not_waited_for(survives: Survives) -> None:
    survives("""
        def end(code):
            return child(lambda: os._exit(code))

        children = {end(code): code for code in (0, 1, 127, 128, 130, 137, 255)}
        for pid in children:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        pause()
        found = {pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children}
        assert found == children, (found, children)
    """)


def test_users_and_groups_of_processes_that_were_not_waited_for(survives: Survives) -> None:
    survives("""
        def end(ids, code):
            def act():
                os.setresgid(*ids)
                os.setresuid(*ids)
                libc.setfsuid(ids[2])
                os.kill(os.getpid(), signal.SIGTERM) if code is None else os._exit(code)
            pid = child(act)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            return pid

        def look(pid):
            lines = open(f"/proc/{pid}/status").read().splitlines()
            ids = [line for line in lines if line.startswith(("Uid", "Gid"))]
            seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            return ids, seen.si_uid, seen.si_code, seen.si_status

        children = [
            end(ids, code) for ids in ((0, 0, 0), (1000, 33, 0), (65534,) * 3) for code in (0, 200, None)
        ]
        before = [look(pid) for pid in children]
        pause()
        after = [look(pid) for pid in children]
        assert after == before, (before, after)
    """)


def test_a_pidfd_and_watches_with_flags_of_files(survives: Survives) -> None:
    survives("""
        first = child(signal.pause)
        pidfds = [os.pidfd_open(first) for _ in range(3)]
        fds = pidfds + [libc.inotify_init() for _ in range(3)]
        for fd in fds[3:]:
            assert libc.inotify_add_watch(fd, b"/tmp", 0x100) == 1
        # It needs rights over the object, and these are the kernel's own: root of a user namespace has none.
        may_not_touch = 0 if open("/proc/self/uid_map").read().split()[1] != "0" else os.O_NOATIME
        flags = [os.O_APPEND | os.O_NONBLOCK, may_not_touch, 0]
        for fd, more in zip(fds, flags * 2):
            fcntl.fcntl(fd, fcntl.F_SETFL, more)
        before = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in fds]
        assert before[0] & os.O_APPEND and before[1] & os.O_NOATIME == may_not_touch
        pause()
        assert [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in fds] == before
        for fd in pidfds:
            signal.pidfd_send_signal(fd, 0)
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
    """)


def test_an_eventfd_that_is_a_semaphore_stays_one(survives: Survives) -> None:
    survives("""
        semaphore = os.eventfd(5, os.EFD_SEMAPHORE | os.EFD_NONBLOCK)
        large = os.eventfd(2000000000, os.EFD_SEMAPHORE)
        counter = os.eventfd(5)
        pause()
        assert [os.eventfd_read(semaphore) for _ in range(5)] == [1] * 5
        try:
            raise AssertionError(os.eventfd_read(semaphore))
        except BlockingIOError:
            pass
        assert os.eventfd_read(large) == 1 and os.eventfd_read(counter) == 5
    """)


def test_socket_options_that_criu_does_not_know(survives: Survives) -> None:
    survives("""
        IP_RECVERR, IP_PKTINFO, IP_RECVTTL, IP_MTU_DISCOVER, SO_TIMESTAMP = 11, 8, 12, 10, 29
        TCP_USER_TIMEOUT, TCP_NOTSENT_LOWAT, TCP_FASTOPEN = 18, 25, 23
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("127.0.0.1", 0))
        for option, value in ((IP_PKTINFO, 1), (IP_RECVTTL, 1), (IP_RECVERR, 1), (IP_MTU_DISCOVER, 2)):
            server.setsockopt(socket.IPPROTO_IP, option, value)
        server.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 6)
        unused = socket.socket()
        for one in (listener, unused):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 90000)
        client.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, 9000)
        client.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 16)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 0)
        left, right = socket.socketpair()
        right.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)

        def options():
            wanted = (
                *((server, socket.IPPROTO_IP, one) for one in (IP_PKTINFO, IP_RECVTTL, IP_RECVERR)),
                (server, socket.IPPROTO_IP, IP_MTU_DISCOVER),
                *((end, socket.SOL_SOCKET, SO_TIMESTAMP) for end in (server, right, left)),
                *((end, socket.SOL_SOCKET, socket.SO_REUSEPORT) for end in (listener, client, accepted)),
                (listener, socket.IPPROTO_TCP, TCP_FASTOPEN),
                *((one, socket.IPPROTO_TCP, socket.TCP_CONGESTION) for one in (listener, unused, client)),
                (client, socket.IPPROTO_IP, socket.IP_TOS),
                (client, socket.SOL_SOCKET, socket.SO_PRIORITY),
                *((client, socket.IPPROTO_TCP, one) for one in (TCP_USER_TIMEOUT, TCP_NOTSENT_LOWAT)),
            )
            return [end.getsockopt(level, option) for end, level, option in wanted]

        before = options()
        pause()
        assert options() == before, (options(), before)
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", server.getsockname())
        _, control, _, _ = server.recvmsg(10, 1000)
        kinds = {(level, kind) for level, kind, _ in control}
        assert {(socket.IPPROTO_IP, IP_PKTINFO), (socket.SOL_SOCKET, SO_TIMESTAMP)} <= kinds, kinds
    """)


def test_options_of_sockets_that_are_no_streams(survives: Survives) -> None:
    survives("""
        for family, kind, protocol in (
            (socket.AF_INET, socket.SOCK_RAW, 123),
            (socket.AF_INET6, socket.SOCK_RAW, 123),
            (socket.AF_NETLINK, socket.SOCK_RAW, 0),
            (socket.AF_PACKET, socket.SOCK_RAW, 0),
            (socket.AF_UNIX, socket.SOCK_SEQPACKET, 0),
        ):
            end = socket.socket(family, kind, protocol)
            end.setsockopt(socket.SOL_SOCKET, 29, 1)  # SO_TIMESTAMP
            end.setsockopt(socket.SOL_SOCKET, 12, 3)  # SO_PRIORITY
            end.detach()
        pause()
    """)


def test_a_program_is_not_told_that_its_terminal_has_the_size_it_had(survives: Survives) -> None:
    survives("""
        import pty, struct, termios
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
        opened = os.pipe()

        def look():
            os.setsid()
            master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 44, 5, 6))
            signal.sigwait({signal.SIGWINCH})
            os.write(opened[1], b"x")
            signal.sigwait({signal.SIGUSR2})
            assert not signal.sigpending()
            assert struct.unpack("HHHH", fcntl.ioctl(slave, termios.TIOCGWINSZ, bytes(8))) == (33, 44, 5, 6)

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        pid = child(look)
        os.read(opened[0], 1)
        pause()
        os.kill(pid, signal.SIGUSR2)
        succeeded(pid)
    """)


def test_a_mapped_file_that_tells_a_process_group_of_events(survives: Survives) -> None:
    survives("""
        import contextlib
        opened = os.pipe()

        def hold():
            file = os.open("mapped", os.O_RDWR | os.O_CREAT)
            os.write(file, bytes(8192))
            view = mmap.mmap(file, 8192, mmap.MAP_PRIVATE)
            os.close(file)
            for number in map(int, os.listdir("/proc/self/fd")):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/self/fd/{number}") == work + "/mapped":
                        file = number  # the copy that the object of mmap has
            os.setpgid(0, 0)
            fcntl.fcntl(file, fcntl.F_SETOWN, -os.getpgrp())
            os.write(opened[1], b"x")
            signal.sigwait({signal.SIGUSR2})
            owner = fcntl.fcntl(file, 16, bytes(8))  # F_GETOWN_EX
            assert struct.unpack("ii", owner) == (2, os.getpgrp())

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        pid = child(hold)
        os.read(opened[0], 1)
        pause()
        os.kill(pid, signal.SIGUSR2)
        succeeded(pid)
    """)


def test_shared_memory_that_was_removed_goes_with_its_last_user(survives: Survives) -> None:
    survives("""
        libc.shmat.restype = ctypes.c_void_p
        segment = call(libc.shmget(0x77, 8192, 0o1600))
        address = libc.shmat(segment, None, 0)
        ctypes.memmove(address, b"still here", 10)
        call(libc.shmctl(segment, 0, None))  # IPC_RMID
        pause()
        assert ctypes.string_at(address, 10) == b"still here"
        call(libc.shmdt(ctypes.c_void_p(address)))
        assert len(open("/proc/sysvipc/shm").readlines()) == 1
    """)


def test_a_unix_connection_whose_other_end_and_name_are_gone(survives: Survives) -> None:
    survives("""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("name")
        listener.listen()
        client = socket.socket(socket.AF_UNIX)
        client.connect("name")
        accepted, _ = listener.accept()
        client.send(b"last words")
        client.close()
        listener.close()
        os.unlink("name")
        open("name", "w").write("another file")
        pause()
        assert accepted.recv(100) == b"last words" and accepted.recv(100) == b""
        assert open("name").read() == "another file"
    """)


def test_a_file_without_a_name_in_a_working_folder_that_was_removed(survives: Survives) -> None:
    survives("""
        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir("../gone")

        def hold():
            temporary = os.open(".", os.O_TMPFILE | os.O_RDWR)
            os.write(temporary, b"without a name")
            signal.sigwait({signal.SIGUSR2})
            assert os.pread(temporary, 100, 0) == b"without a name"
            os.chdir(".")

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        children = [child(lambda: signal.sigwait({signal.SIGUSR2})), child(hold)]
        time.sleep(0.2)
        pause()
        for pid in children:
            os.kill(pid, signal.SIGUSR2)
            assert os.waitpid(pid, 0) == (pid, 0)
        assert os.listdir(".") == [] and not os.path.exists("/tmp/work/gone")
    """)
