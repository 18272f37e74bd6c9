"""A keeper and a tree without a daemon: what the keeper refuses, and what does not stop it.

pid 1 of a box must answer whatever its clients do, and every wait for CRIU must end.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.waiting import until

from waypoint import errors
from waypoint.box.box import Box, socket_path
from waypoint.box.keeper import Keeper
from waypoint.engine import criu
from waypoint.engine.dump import Dump
from waypoint.engine.probe import build_box, temporary_home
from waypoint.engine.revive import hold
from waypoint.home import Home
from waypoint.kernel import cgroups, processes

ORPHANS = 2000
MAKE_ORPHANS = f"""
import os
for _ in range({ORPHANS}):
    child = os.fork()
    if not child:
        os.fork()
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture
def place() -> Iterator[tuple[Home, Path]]:
    with temporary_home() as (home, folder):
        yield home, folder


@pytest.fixture
def box(engine: Path, place: tuple[Home, Path]) -> Iterator[Box]:
    """One whose keeper has started an anchor."""
    home, folder = place
    box = build_box(home, engine, folder, "box")
    try:
        box.keeper.start_anchor()
        yield box
    finally:
        box.kill(home)


@pytest.fixture
def raw(place: tuple[Home, Path], box: Box) -> Iterator[socket.socket]:
    """A connection to the keeper that sends what it wants."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        connection.connect(str(socket_path(place[0], box.id)))
        connection.settimeout(10)
        connection.send(b"foreground?\0")
        assert connection.recv(4096).startswith(b"ok ")  # it has been accepted: its descriptor counts
        yield connection


def descriptors(box: Box) -> int:
    box.keeper.foreground()  # when it is answered, the request before is over
    return len(os.listdir(f"/proc/{box.pid}/fd"))


def start(box: Box, argv: Sequence[str], env: Sequence[str] = ("PATH=/usr/bin:/bin",)) -> int:
    null = os.open(f"/proc/{box.pid}/root/dev/null", os.O_RDWR)
    try:
        return box.keeper.start("program", "/", argv, env, (null, null, null))
    finally:
        os.close(null)


# ---- the keeper ---------------------------------------------------------------------------------


def test_a_plan_is_read_up_to_its_end_and_no_further(engine: Path) -> None:
    for plan, report in (
        (b"no-such-operation", "failed 38 no-such-operation -"),
        (b"hostname", "failed 22 hostname -"),
        (b"hostname\0", "failed 22 hostname -"),
    ):
        reader, writer = os.pipe()
        orders = os.memfd_create("plan")
        os.write(orders, plan)
        with os.fdopen(reader) as lines:
            fds = [orders, orders, writer]
            subprocess.run(
                ["keeper", *map(str, fds)], executable=engine / "bin" / "keeper", pass_fds=fds, check=False
            )
            os.close(writer)
            assert lines.read() == report + "\n"
        os.close(orders)


def test_a_client_that_does_not_read_its_events_does_not_stop_the_keeper(
    box: Box, raw: socket.socket
) -> None:
    raw.send(b"serve\0")
    assert raw.recv(4096).startswith(b"ok ")
    program = start(box, [sys.executable, "-I", "-S", "-c", MAKE_ORPHANS])
    while any(process.pid == program for process in processes.below(box.pid)):
        time.sleep(0.05)
        assert box.keeper.foreground() >= 0  # it answers all the time
    ended = [int(raw.recv(4096).split()[1]) for _ in range(ORPHANS + 1)]
    assert ended.count(program) == 1
    assert len(set(ended)) == ORPHANS + 1


def test_a_client_that_does_not_read_its_answers_is_disconnected(box: Box, raw: socket.socket) -> None:
    def send_without_end() -> None:
        while True:
            raw.send(b"foreground?\0")

    with pytest.raises(ConnectionError):
        send_without_end()
    assert box.keeper.foreground() >= 0


def test_a_tree_runs_on_when_its_daemon_has_died_and_criu_lets_go_of_it_later(
    box: Box, place: tuple[Home, Path]
) -> None:
    group = cgroups.create(place[0].tag, box.id)
    assert group.tree
    freeze_file = os.open(group.tree / cgroups.FREEZE_FILE, os.O_RDWR)
    try:
        box.use_group(group.tree)
        daemon = Keeper(socket_path(place[0], box.id))
        daemon.freeze()
        # As CRIU does, which has worked in a tree that was frozen: it freezes it again at its end.
        argv = ["/bin/sh", "-c", "read -r _ <&3; echo 1 >&4"]
        reader, writer = os.pipe()
        criu = daemon.run("keep", ["PATH=/usr/bin:/bin"], argv, [reader, freeze_file])
        os.close(reader)
        daemon.close()
        until(lambda: os.pread(freeze_file, 8, 0) == b"0\n")
        with os.fdopen(writer, "wb") as go:
            go.write(b"\n")
        until(lambda: box.host_pid(criu) is None)
        until(lambda: os.pread(freeze_file, 8, 0) == b"0\n")
    finally:
        os.close(freeze_file)
        group.remove()


@pytest.fixture
def frozen(engine: Path, place: tuple[Home, Path]) -> Iterator[Box]:
    """A box whose anchor runs in a group of its own, and stands still for good."""
    home, folder = place
    group = cgroups.create(home.tag, "frozen")
    if group.tree is None:
        pytest.skip("no control groups of version 2")
    box = build_box(home, engine, folder, "frozen")
    try:
        box.use_group(group.tree)
        box.keeper.start_anchor()
        start(box, ["sleep", "1000"])  # the anchor has been executed when it answers
        assert box.freeze(5)
        yield box
    finally:
        box.kill(home)
        group.remove()


def is_frozen(box: Box) -> bool:
    assert box.group
    return cgroups.is_frozen(box.group)


def test_a_frozen_tree_is_saved_and_stands_still_before_and_after(
    frozen: Box, place: tuple[Home, Path]
) -> None:
    for name in ("one", "two"):
        images = place[1] / name
        images.mkdir()
        with Dump(frozen, images, shell=0, stays_frozen=True) as dump:
            for _ in dump.pauses():
                pass
        assert is_frozen(frozen)
        assert list(images.glob("core-*.img"))
    frozen.thaw()
    assert not is_frozen(frozen)


def test_a_frozen_tree_stands_still_when_its_dump_fails_or_criu_is_killed(
    frozen: Box, place: tuple[Home, Path]
) -> None:
    images = place[1] / "images"
    images.mkdir()
    with (
        contextlib.suppress(InterruptedError),
        Dump(frozen, images, shell=0, stays_frozen=True) as dump,
    ):
        for _ in dump.pauses():
            raise InterruptedError
    assert is_frozen(frozen)
    with (
        contextlib.suppress(errors.CannotCheckpoint),
        Dump(frozen, images, shell=0, stays_frozen=True) as dump,
    ):
        for _ in dump.pauses():
            for one in find_criu(frozen):
                os.kill(one.host_pid, signal.SIGKILL)
    assert is_frozen(frozen)


def test_a_frozen_tree_stands_still_when_the_daemon_has_gone(frozen: Box, place: tuple[Home, Path]) -> None:
    frozen.keeper.close()
    with contextlib.closing(Keeper(socket_path(place[0], frozen.id))) as other:
        assert is_frozen(frozen)
        other.thaw()
        until(lambda: not is_frozen(frozen))


def test_more_outputs_than_the_keeper_can_hold_are_refused_and_none_is_lost(box: Box) -> None:
    pipes = [os.pipe() for _ in range(129)]
    readers = [reader for reader, _ in pipes]
    before = descriptors(box)
    box.keeper.keep_outputs(readers[:100])
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        box.keeper.keep_outputs(readers[100:])
    assert descriptors(box) == before + 100
    box.keeper.keep_outputs(readers[100:128])
    for fd in (fd for pipe in pipes for fd in pipe):
        os.close(fd)
    while descriptors(box) > before:
        time.sleep(0.01)


def test_a_request_that_was_cut_off_is_refused(box: Box, raw: socket.socket) -> None:
    before = descriptors(box)
    truncated = f"error {errno.EMSGSIZE} truncated".encode()
    raw.send(b"hostname\0" + b"x" * (1 << 18) + b"\0")
    assert raw.recv(4096) == truncated
    null = os.open("/dev/null", os.O_RDONLY)
    socket.send_fds(raw, [b"keep\0"], [null] * 253)
    os.close(null)
    assert raw.recv(4096) == truncated
    raw.send(b"\0" * ((1 << 18) - 1))
    assert raw.recv(4096).split()[:2] == [b"error", str(errno.E2BIG).encode()]
    assert descriptors(box) == before


def test_terminals_that_cannot_be_created_leave_nothing_open(box: Box) -> None:
    before = descriptors(box)
    limit = before + 20
    resource.prlimit(box.pid, resource.RLIMIT_NOFILE, (limit, limit))
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        box.keeper.hold_ptys([3, 60])
    assert descriptors(box) == before
    assert len(box.keeper.hold_ptys([3, 5])) == 2
    with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
        box.keeper.hold_ptys([4])
    box.keeper.drop_ptys()
    assert descriptors(box) == before


def test_the_anchor_keeps_no_path_of_an_earlier_program(box: Box) -> None:
    with tempfile.TemporaryDirectory(prefix="waypoint-path-", dir="/var/tmp") as folder:
        program = Path(folder) / "only-there"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        start(box, ["only-there"], [f"PATH={folder}"])
        for env in ([], ["PATH=/usr/bin:/bin"]):
            with pytest.raises(FileNotFoundError):
                start(box, ["only-there"], env)


# ---- CRIU's time limit --------------------------------------------------------------------------


_PTRACE_SEIZE, _PTRACE_INTERRUPT = 0x4206, 0x4207
_WALL = 0x40000000


def hold_still(host_pid: int) -> None:
    """Stops a process until it is killed. (A keeper continues what SIGSTOP has stopped.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (_PTRACE_SEIZE, _PTRACE_INTERRUPT):
        assert libc.ptrace(request, host_pid, None, None) == 0, os.strerror(ctypes.get_errno())


def stop_criu(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on CRIU is stopped in this box before it gets its request."""
    run = box.keeper.run

    def run_and_stop(ipc: str, env: Sequence[str], argv: Sequence[str], fds: Sequence[int]) -> int:
        pid = run(ipc, env, argv, fds)
        host_pid = box.host_pid(pid)
        assert host_pid
        hold_still(host_pid)
        return pid

    monkeypatch.setattr(box.keeper, "run", run_and_stop)
    monkeypatch.setattr(criu, "SILENCE_SECONDS", 1.0)


def dump(box: Box, images: Path) -> None:
    images.mkdir()
    with Dump(box, images, shell=0) as dump:
        for _ in dump.pauses():
            pass


def find_criu(box: Box) -> list[processes.Process]:
    """CRIU runs under the name of its loader."""
    return [one for one in processes.below(box.pid) if one.comm == "ld.so" and one.state != "Z"]


def assert_criu_is_gone(box: Box) -> None:
    with contextlib.suppress(ChildProcessError):  # it was traced, and is to be collected here too
        while os.WIFSTOPPED(os.waitpid(-1, _WALL)[1]):
            pass
    assert not find_criu(box)


def test_a_dump_in_which_criu_does_nothing_ends_and_the_tree_runs_on(
    box: Box, place: tuple[Home, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start(box, ["sleep", "1000"])
    stop_criu(box, monkeypatch)
    with pytest.raises(errors.CannotCheckpoint, match="did nothing for 1 s and was ended"):
        dump(box, place[1] / "refused")
    assert_criu_is_gone(box)
    monkeypatch.undo()
    dump(box, place[1] / "images")
    assert program in [process.pid for process in processes.below(box.pid) if process.state in "RS"]


def test_a_restore_in_which_criu_does_nothing_ends(
    engine: Path, box: Box, place: tuple[Home, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = place
    start(box, ["sleep", "1000"])
    dump(box, folder / "images")
    copy = build_box(home, engine, folder, "copy")
    try:
        stop_criu(copy, monkeypatch)
        with pytest.raises(errors.CannotRestore, match="did nothing for 1 s and was ended"):
            hold(copy, folder / "images")
        assert_criu_is_gone(copy)
    finally:
        copy.kill(home)


def test_a_held_tree_whose_criu_was_stopped_is_not_waited_for(
    engine: Path, box: Box, place: tuple[Home, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = place
    start(box, ["sleep", "1000"])
    dump(box, folder / "images")
    copy = build_box(home, engine, folder, "copy")
    try:
        monkeypatch.setattr(criu, "SILENCE_SECONDS", 1.0)
        held = hold(copy, folder / "images")
        (process,) = find_criu(copy)
        hold_still(process.host_pid)
        with pytest.raises(errors.CannotRestore, match="was ended"):
            held.release()
        assert not held.released
        assert_criu_is_gone(copy)
    finally:
        copy.kill(home)


def test_what_the_keeper_has_started_and_is_stopped_is_continued(
    engine: Path, box: Box, place: tuple[Home, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(box, ["sleep", "1000"])
    dump(box, place[1] / "images")
    copy = build_box(place[0], engine, place[1], "copy")
    try:
        held = hold(copy, place[1] / "images")
        (process,) = find_criu(copy)
        os.kill(process.host_pid, signal.SIGSTOP)
        held.release()
        assert held.released
    finally:
        copy.kill(place[0])
