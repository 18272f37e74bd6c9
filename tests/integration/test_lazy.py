"""A tree with much memory runs before its memory is there, and never takes what is missing for empty."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.test_memory import Subject, assert_holds
from tests.waiting import until

import waypoint
from waypoint import errors
from waypoint.engine import memory as tracking
from waypoint.engine.images import dump_stats
from waypoint.home import Home
from waypoint.kernel import processes

MB = 1 << 20
LARGE = 96 * MB
PROGRAM = rb"""
import hashlib, os, signal
data = bytearray(os.urandom(1 << 20) * 96)
for page in range(0, len(data), 4096):
    data[page : page + 8] = page.to_bytes(8, "little")
def write(name):
    with open("/tmp/new", "w") as file:
        file.write(hashlib.sha256(data).hexdigest())
    os.rename("/tmp/new", name)
signal.signal(signal.SIGUSR1, lambda *_: write("/tmp/again"))
signal.signal(signal.SIGUSR2, lambda *_: os.waitpid(os.fork() or (write("/tmp/child"), os._exit(0)), 0))
write("/tmp/hash")
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def large(home: Home, engine: Path, seed: waypoint.Checkpoint) -> waypoint.Checkpoint:
    """A point of a session whose program has so much memory that it comes later."""
    if not tracking.supported(engine):
        pytest.skip("this kernel does not tell what was written")
    session = seed.fork(name="large")[0]
    session.run("cat > /tmp/large.py", stdin=PROGRAM).check()
    session.run("python3 -B /tmp/large.py > /tmp/out 2>&1 & program=$!").check()
    session.run("until [ -s /tmp/hash ]; do sleep 0.01; done", timeout=60).check()
    return session.checkpoint("large")


@pytest.fixture
def copy(home: Home, large: waypoint.Checkpoint) -> Iterator[waypoint.Session]:
    """A fork of it, whose memory is still missing."""
    session = large.fork(name="copy")[0]
    assert servers(session), "its memory is there already"
    yield session
    if any(one.name == "copy" for one in waypoint.sessions()):
        session.remove()


def program_of(session: waypoint.Session) -> processes.Process:
    pid, box = int(session.run("echo $program").output), session.info.pid
    assert box
    return next(one for one in processes.below(box) if one.pid == pid)


def servers(session: waypoint.Session) -> list[int]:
    """The two processes of its page server: the guard and the server."""
    keeper = Path(f"/proc/{session.info.pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:
            continue
        if words == f"waypoint-pages {keeper.split()[2]}":
            found.append(int(entry.name))
    return sorted(found)


def reads_the_same(session: waypoint.Session, number: str = "USR1", name: str = "again") -> bool:
    """Whether the program finds in its memory what it had put there."""
    session.run(f"rm -f /tmp/{name}; kill -{number} $program").check()
    session.run(f"until [ -s /tmp/{name} ]; do sleep 0.01; done", timeout=60).check()
    return session.run(f"cmp /tmp/hash /tmp/{name}").exit_code == 0


def test_memory_comes_when_it_is_used_and_then_no_server_is_left(copy: waypoint.Session, home: Home) -> None:
    program = program_of(copy)
    assert processes.memory_bytes(program.host_pid)[0] < LARGE // 4
    assert reads_the_same(copy)
    until(lambda: not servers(copy))
    point = copy.checkpoint()
    images = home.checkpoints / point.id / "images"
    assert dump_stats(images).pages_in_parent > LARGE * 3 // 4 // 4096, "what it was restored from is known"
    assert assert_holds(images, program_of(copy)) > LARGE


def test_a_checkpoint_before_it_is_used_is_whole_and_copies_little(
    copy: waypoint.Session, home: Home
) -> None:
    point = copy.checkpoint()
    until(lambda: not servers(copy))  # all has come; they end a moment later
    images = home.checkpoints / point.id / "images"
    assert dump_stats(images).pages_in_parent > LARGE * 3 // 4 // 4096
    assert assert_holds(images, program_of(copy)) > LARGE
    again = point.fork(name="again")[0]
    try:
        assert servers(again), "its images do not say what may come later"
        assert reads_the_same(again)
    finally:
        again.remove()


def test_a_forked_process_has_what_was_missing_when_it_was_forked(copy: waypoint.Session) -> None:
    assert reads_the_same(copy, "USR2", "child")
    assert reads_the_same(copy)


def test_memory_that_is_missing_and_changed_in_every_way_is_right(
    home: Home, seed: waypoint.Checkpoint
) -> None:
    first = seed.fork(name="first")[0]
    made = [first]
    try:
        subject = Subject(first, home, 7, more_mb=64)
        point, _ = subject.save()
        for turn in range(2):
            subject.session = point.fork(name=f"turn-{turn}")[0]
            made.append(subject.session)
            assert servers(subject.session)
            subject.go()
            point, _ = subject.save()
            subject.go()
    finally:
        for session in made:
            session.remove()


@pytest.mark.parametrize("which", [0, 1], ids=["guard", "server"])
def test_a_page_server_that_is_killed_takes_the_box_along_before_anything_reads_zeros(
    copy: waypoint.Session, home: Home, which: int
) -> None:
    guard, server = servers(copy)
    keeper, program = copy.info.pid, program_of(copy)
    assert keeper
    copy.run("rm -f /tmp/again").check()
    os.kill(server, signal.SIGSTOP)
    os.kill(program.host_pid, signal.SIGUSR1)
    until(lambda: Path(f"/proc/{program.host_pid}/wchan").read_text() == "handle_userfault")
    os.kill((guard, server)[which], signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(server, signal.SIGCONT)
    until(lambda: processes.is_over(keeper))
    until(lambda: copy.info.state == "dead")
    with pytest.raises(errors.SessionDead):
        copy.checkpoint()
    assert not [*home.sessions.glob("*/*/tmp/again")], "it has read what was not there"
    assert "page server" in home.log.read_text().splitlines()[-1]
    until(lambda: not Path(f"/proc/{server}").exists() and not Path(f"/proc/{guard}").exists())


def test_the_next_daemon_finds_memory_that_is_missing(copy: waypoint.Session, home: Home) -> None:
    daemon = waypoint.Client(str(home.path)).call("ping")["pid"]
    os.kill(daemon, signal.SIGKILL)
    until(lambda: processes.is_over(daemon))
    assert servers(copy)
    assert reads_the_same(copy)
    until(lambda: not servers(copy))
    point = copy.checkpoint()
    assert dump_stats(home.checkpoints / point.id / "images").pages_in_parent > LARGE * 3 // 4 // 4096


def test_a_point_may_be_forgotten_while_memory_is_still_read_from_it(
    copy: waypoint.Session, home: Home
) -> None:
    point = copy.checkpoint("to be forgotten")
    copy.restore(point, safety=False)
    assert servers(copy)
    copy.checkpoint(files_only=True)
    point.forget()
    until(lambda: not (home.checkpoints / point.id).exists())
    assert servers(copy)
    assert reads_the_same(copy)
    assert assert_holds(home.checkpoints / copy.checkpoint().id / "images", program_of(copy)) > LARGE
