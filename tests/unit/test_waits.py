"""No wait without a limit: whatever hangs, a verb ends.

Every call that can wait without end is found in the source. It has a time limit, or stands in `BOUNDED` with
what bounds it.
"""

from __future__ import annotations

import ast
import fcntl
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from waypoint import errors
from waypoint.client.connection import rebuild_database
from waypoint.core import dedupe
from waypoint.core.background import Background
from waypoint.home import Home
from waypoint.kernel import locks
from waypoint.kernel.network import firewall
from waypoint.kernel.pool import image, lifecycle

SOURCE = Path(__file__).parents[2] / "src" / "waypoint"
NOT_LOOKED_AT = ("bench",)

IDLE = "a thread that has nothing else to do"
USER = "a person decides how long"
CLIENT = "a thread of one client, which holds nothing; it ends with the client"
KEEPER = "the socket has a time limit (box/keeper.py)"
WORK = "all that it waits for has limits of its own"
NO_WAIT = "the socket does not block"
KERNEL = "a local socket whose other side is the kernel, or a thread that asks it"

BOUNDED = {
    "adapters/live_python.py": {
        "listener.accept()": IDLE,
        "socket.recv_fds(connection, 1, 1)": "the socket has a time limit",
        "connection.connect(os.path.join(folder, 'socket'))": "the socket has a time limit",
        "connection.recv(1 << 20)": "the socket has a time limit",
    },
    "adapters/swe_rex.py": {
        "self._news.wait()": "the framework says how long a command may take",
        "self._running.result()": "it has ended by then",
    },
    "agent/trajectory.py": {"self._changed.wait_for(lambda: self._ready or self._stopped)": IDLE},
    "aio/connection.py": {"readable.wait()": USER},
    "api/wire.py": {
        "connection.recv(wanted)": "a client looks first whether the daemon greets (client/connection.py)",
        "connection.recv(min(wanted - have, 1 << 20))": "the same",
    },
    "bases/store.py": {"digest.result()": "a file is read once"},
    "bases/tools.py": {"process.poll()": "no wait"},
    "box/box.py": {
        "task.result()": KEEPER,
        "connection.connect(str(path))": "the socket has a time limit",
    },
    "box/keeper.py": {
        "socket.recv_fds(self._socket, 65536, 8)": KEEPER,
        "self._socket.recv(65536)": KEEPER,
        "connection.connect(f'/proc/self/fd/{folder}/{path.name}')": KEEPER,
    },
    "box/starter.py": {"ours.recv(_REPORT.size)": "the socket has a time limit"},
    "core/analyst.py": {"self._process.wait()": "it was killed"},
    "cli/console.py": {
        "thread.join()": IDLE,
        "process.wait()": USER,
    },
    "cli/verbs/run.py": {"program.communicate()": USER},
    "client/connection.py": {
        "connection.connect(path)": "the socket has a time limit until the daemon greets"
    },
    "client/program.py": {"feeder.join()": "what it sends to has ended"},
    "core/background.py": {
        "self._now.shutdown(wait=True)": WORK,
        "self._idle.shutdown(wait=True)": WORK,
        "self._clearing.shutdown(wait=True)": WORK,
        "self._disk.shutdown(wait=True)": WORK,
        "self._calm.shutdown(wait=True, cancel_futures=True)": WORK,
    },
    "core/commands.py": {
        "run.result()": "no wait",
        "reading.join()": "it has just been told to end",
        "ready.poll()": "until the program has ended, or is ended by its time limit",
    },
    "core/digests.py": {"self._changed.wait_for(lambda: self._waiting or self._closed)": IDLE},
    "core/dedupe.py": {"self._changed.wait_for(lambda: self._waiting or self._closed)": IDLE},
    "core/fork.py": {"outcome.result()": WORK},
    "daemon/inside/doors.py": {
        "listener.accept()": NO_WAIT,
        "sock.recv(MOST_REQUEST_BYTES + 1)": NO_WAIT,
    },
    "daemon/main.py": {"probe.connect(str(home.socket))": "the socket has a time limit"},
    "daemon/server.py": {"self.stopping.wait()": IDLE, "listener.accept()": IDLE},
    "daemon/streams.py": {
        "forwarder.join()": CLIENT,
        "pieces.get()": CLIENT,
        "caught_up.wait()": CLIENT,
        "ready.poll()": CLIENT,
        "self._ready.wait()": IDLE,
    },
    "core/live.py": {"lock.acquire()": "the box has been ended by then: what the lock is held for fails"},
    "engine/criu.py": {
        "self._socket.recvmsg(65536, socket.CMSG_SPACE(_CREDENTIALS.size))": "the socket has a time limit"
    },
    "engine/dump.py": {
        "executor.submit(_read_ipc, anchor.host_pid).result()": KERNEL,
        "executor.submit(ipc.removed_segments, tree[0].parent_host_pid).result()": KERNEL,
    },
    "engine/lazy.py": {
        "connection.connect(str(self._box.pages_socket))": "the socket has a time limit",
        "self._connection.recv(_PACKET_BYTES)": "the socket has a time limit",
    },
    "engine/memory.py": {"socket.recv_fds(ours, 512, 1)": "the socket has a time limit"},
    "engine/peers.py": {"connection.recv(4096)": "something can be read by then"},
    "engine/revive.py": {
        "executor.submit(ipc.remove_segments, anchors[0], state.removed_segments).result()": KERNEL
    },
    "engine/unrestorable.py": {
        "end.recvmsg(2, socket.CMSG_LEN(_MOST_DESCRIPTORS * 4), flags)": "MSG_DONTWAIT",
    },
    "explore/runner.py": {"search.result()": "no wait"},
    "kernel/faults.py": {"tester.connect(path)": "in tests only", "tester.recv(16)": "in tests only"},
    "kernel/locks.py": {
        "self._lock.acquire(blocking, timeout)": WORK,
        "self.acquire()": WORK,
        "self._lock.acquire()": WORK,
    },
    "kernel/network/dns.py": {"listener.recv(_MAX_BYTES)": NO_WAIT},
    "kernel/network/netlink.py": {
        "thread.join()": KERNEL,
        "self._socket.recv(1 << 16)": "the socket has a time limit",
    },
    "kernel/network/relay.py": {
        "self._thread.join()": "it has just been told to end",
        "door.listener.accept()": NO_WAIT,
        "side.sock.recv(_PIECE_BYTES)": NO_WAIT,
    },
    "kernel/pool/deltas.py": {"self._thread.join()": "the pipe that it writes to is closed"},
    "mcp/pending.py": {
        "poll.poll()": USER,
        "self._changed.wait_for(lambda: not self._undecided)": USER,
    },
    "mcp/tools/commands.py": {"call.pending.result()": "it has ended by then"},
    "terminal/terminal.py": {"run.result()": "no wait"},
}

_WAITS = {"wait", "join", "communicate", "result", "get"}
_RECEIVES = {"recv", "recv_fds", "recvmsg", "accept", "connect", "waitpid", "waitid"}


def waits_without_limit(call: ast.Call) -> bool:
    """Whether a call may wait without end, by its name and arguments."""
    function = call.func
    if not isinstance(function, ast.Attribute):
        return False
    name, owner = function.attr, ast.unparse(function.value)
    named = {keyword.arg for keyword in call.keywords}
    if owner == "subprocess" and name in {"run", "call", "check_call", "check_output"}:
        return "timeout" not in named
    if name in _WAITS:
        return not call.args and not named & {"timeout", "seconds"}
    if name == "wait_for":
        return len(call.args) < 2 and "timeout" not in named
    if name in {"flock", "lockf"}:
        return "LOCK_NB" not in ast.unparse(call) and "LOCK_UN" not in ast.unparse(call)
    if name in {"poll", "acquire"}:
        return owner != "select" and not named & {"timeout"} and (name == "acquire" or not call.args)
    if name == "select":
        return owner == "select" and len(call.args) == 3
    return (name in _RECEIVES and owner not in {"sqlite3", "self", "self._builder"}) or (
        name == "shutdown" and "wait" in named
    )


def found() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        module = str(path.relative_to(SOURCE))
        if module.split("/", maxsplit=1)[0] in NOT_LOOKED_AT:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and waits_without_limit(node):
                yield module, ast.unparse(node)


def test_every_wait_has_a_limit_or_a_reason() -> None:
    known = {(module, call) for module, calls in BOUNDED.items() for call in calls}
    there = set(found())
    assert sorted(there - known) == [], "give it a time limit, or say in BOUNDED what bounds it"
    assert sorted(known - there) == [], "it is not there any more"


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ("subprocess.run(words)", True),
        ("subprocess.run(words, timeout=3)", False),
        ("process.wait()", True),
        ("process.wait(3)", False),
        ("', '.join(words)", False),
        ("thread.join()", True),
        ("fcntl.flock(fd, fcntl.LOCK_EX)", True),
        ("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", False),
        ("poll.poll()", True),
        ("poll.poll(10)", False),
        ("select.poll()", False),
        ("connection.recv(10)", True),
        ("threads.shutdown(wait=True)", True),
        ("self._turn.acquire()", True),
        ("self._turn.acquire(timeout=3)", False),
    ],
)
def test_a_wait_is_recognized(call: str, waits: bool) -> None:
    (node,) = [one for one in ast.walk(ast.parse(call)) if isinstance(one, ast.Call)][:1]
    assert waits_without_limit(node) is waits


def test_a_file_that_another_process_has_locked_is_not_waited_for_without_end(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as first, path.open("w") as second:
        assert locks.lock_file(first.fileno(), fcntl.LOCK_EX, 0)
        assert not locks.lock_file(second.fileno(), fcntl.LOCK_EX, 0.05)
        timer = threading.Timer(0.1, fcntl.flock, (first, fcntl.LOCK_UN))
        timer.start()
        assert locks.lock_file(second.fileno(), fcntl.LOCK_EX, 10)
        timer.join()


def test_a_pool_that_another_process_does_not_let_go_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_LOCK_SECONDS", 0.05)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with (tmp_path / "pool.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(errors.MachineError, match="does not finish") as caught:
            lifecycle.open_pool(tmp_path)
    assert "fuser" in caught.value.hint


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program that does not end by itself."""
    program = tmp_path / "hangs"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    return str(program)


def test_a_firewall_that_does_not_answer_is_named(hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "_NFT_SECONDS", 0.1)
    monkeypatch.setattr("shutil.which", lambda *_, **__: hanging)
    with pytest.raises(errors.MachineError, match=r"did not answer within 0\.1 s"):
        firewall._nft("list", "tables")


def test_a_file_system_that_is_not_made_in_time_is_no_pool(
    hanging: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "_SECONDS", 0.1)
    monkeypatch.setattr(image, "_program", lambda _: hanging)
    with pytest.raises(errors.SetupFailed, match=r"it took longer than 0\.1 s"):
        image.make_image(tmp_path, image.SMALLEST_SIZE_BYTES)
    assert not list(tmp_path.glob("pool.img*"))


def test_a_program_of_the_set_up_that_hangs_is_named(hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from waypoint.machine import apt

    monkeypatch.setattr(apt, "_RUN_SECONDS", 0.1)
    with pytest.raises(errors.SetupFailed, match="took longer than"):
        apt.run("asking dpkg", hanging)


def test_a_database_that_is_not_rebuilt_in_time_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("waypoint", timeout)

    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(errors.DaemonUnreachable, match="was not rebuilt within"):
        rebuild_database(Home(tmp_path))


def test_images_whose_blocks_cannot_be_compared_in_time_are_left_alone(
    hanging: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dedupe, "_SHARE_SECONDS", 0.1)
    home = Home(tmp_path)
    for point in ("one", "two"):
        (home.checkpoints / point / "images").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    Path(hanging).rename(tmp_path / "bin/flatten")
    sharing = dedupe.Dedupe(home, tmp_path, SimpleNamespace(kind="btrfs"), Background())
    with caplog.at_level("INFO"):
        assert sharing._share("one", "two"), "it is not tried again"
    assert "it takes longer than 0.1 s" in caplog.text
