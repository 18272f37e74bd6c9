"""The conversation with CRIU, with a CRIU that is a socket."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import cast

import pytest

from waypoint.box.box import Box
from waypoint.engine import criu
from waypoint.engine.criu import Conversation, CriuFailed, CriuTimedOut, Stage
from waypoint.engine.images import decode, encode

NOTIFY = 6
CONTINUE, ABORT = (encode({1: NOTIFY, 3: answer}) for answer in (True, False))


class OneProcess:
    """A box in which CRIU is the process with this number."""

    def __init__(self, host_pid: int | None = None) -> None:
        self._host_pid = host_pid

    def host_pid(self, pid: int) -> int | None:
        return self._host_pid


def converse(connection: socket.socket, host_pid: int | None = None) -> Conversation:
    return Conversation(
        cast(Box, OneProcess(host_pid)), 17, connection, b"request", size_bytes=0, processes=0
    )


def report(stage: str) -> bytes:
    return encode({1: NOTIFY, 2: True, 5: {1: stage}})


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_criu_waits_in_a_stage_until_the_next_one_is_asked_for(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, peer = sockets
    stages = converse(ours).stages()
    assert peer.recv(100) == b"request"
    peer.send(report("pre-dump"))
    assert next(stages) == "pre-dump"
    with pytest.raises(BlockingIOError):
        peer.recv(100)
    peer.send(report("query-ext-files"))
    assert next(stages) == Stage.FROZEN
    assert peer.recv(100) == CONTINUE
    peer.send(encode({1: 1, 2: True}))
    assert list(stages) == []


def test_a_stage_is_answered_once(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = sockets
    conversation = converse(ours)
    peer.recv(100)
    peer.send(report("query-ext-files"))
    for _ in conversation.stages():
        break
    conversation.proceed()
    assert peer.recv(100) == CONTINUE
    peer.send(encode({1: 1, 2: True}))
    assert list(conversation.stages()) == []  # a loop that was left continues
    with pytest.raises(BlockingIOError):
        peer.recv(100)


def test_an_exception_aborts_the_work(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criu, "_ABORT_SECONDS", 0.05)
    ours, peer = sockets
    peer.send(report("query-ext-files"))
    with pytest.raises(ZeroDivisionError), converse(ours) as conversation:
        _ = [1 // 0 for _ in conversation.stages()]
    assert [peer.recv(100) for _ in range(2)] == [b"request", ABORT]


def test_a_criu_that_failed_has_ended_when_its_failure_is_looked_at() -> None:
    """A process that ends closes its socket before it lets go of those it traces."""
    source = """
import os, socket, sys, time
connection = socket.socket(fileno=int(sys.argv[1]))
connection.recv(100)
connection.send(bytes.fromhex(sys.argv[2]))
connection.close()
time.sleep(0.2)
"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        failure = encode({1: 1, 2: False}).hex()
        argv = [sys.executable, "-c", source, str(theirs.fileno()), failure]
        with subprocess.Popen(argv, pass_fds=[theirs.fileno()]) as process:
            theirs.close()
            with pytest.raises(CriuFailed), converse(ours) as conversation:
                list(conversation.stages())
            assert conversation.host_pid == process.pid
            assert process.poll() == 0


@pytest.mark.parametrize("answer", [encode({1: 1, 2: False}), b""], ids=["a failure", "no answer"])
def test_a_failure_is_reported(sockets: tuple[socket.socket, socket.socket], answer: bytes) -> None:
    ours, peer = sockets
    conversation = converse(ours)
    if answer:
        peer.send(answer)
    else:
        peer.close()
    with pytest.raises(CriuFailed):
        list(conversation.stages())


def test_a_criu_that_does_nothing_is_killed(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criu, "SILENCE_SECONDS", 0.05)
    with subprocess.Popen(["sleep", "100"]) as silent, pytest.raises(CriuTimedOut):
        list(converse(sockets[0], silent.pid).stages())
    assert silent.returncode == -signal.SIGKILL


def test_the_time_limit_grows_with_the_memory_to_copy_and_the_processes(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    """The restore of 2,000 processes was ended after 75 s on a machine with 70 others at work."""
    limits = []
    for size_bytes, processes in ((0, 0), (16 << 30, 0), (0, 2000)):
        Conversation(cast(Box, OneProcess()), 17, sockets[0], b"request", size_bytes, processes)
        limits.append(sockets[0].gettimeout())
    assert limits[0] == criu.SILENCE_SECONDS
    assert limits[1] == criu.SILENCE_SECONDS + 1024
    assert limits[2] == criu.SILENCE_SECONDS + 200


def test_requests_carry_what_was_asked_for() -> None:
    options = decode(decode(criu.dump_request(7, lock_network=True, track=True, with_parent=True))[2])
    assert (options[2], options[3], options[15], options[14]) == (7, 1, 1, b"/proc/self/fd/5")
    assert options[64] == 2
    plain = decode(decode(criu.dump_request(7, lock_network=False, track=False, with_parent=False))[2])
    assert 14 not in plain
    assert plain[64] == 3
    restore = decode(decode(criu.restore_request([("pipe:[1]", 5)], lock_network=False))[2])
    assert decode(restore[27]) == {1: b"pipe:[1]", 2: 5}
