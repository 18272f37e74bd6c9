"""The daemon's end of a keeper's socket."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from waypoint.box.keeper import PROTOCOL, Keeper


@contextmanager
def keeper(folder: Path, answer: str) -> Iterator[Keeper]:
    """A connection to a keeper that gives this answer to the first request, with two descriptors."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "k.sock"))
        listener.listen(1)

        def serve() -> None:
            client, _ = listener.accept()
            with client, open("/dev/null") as one, open("/dev/null") as other:
                client.recv(4096)
                socket.send_fds(client, [answer.encode()], [one.fileno(), other.fileno()])

        server = threading.Thread(target=serve)
        server.start()
        connection = Keeper(folder / "k.sock")
        try:
            yield connection
        finally:
            connection.close()
            server.join()


def test_hello_names_the_anchor_and_hands_over_the_terminal(tmp_path: Path) -> None:
    with keeper(tmp_path, f"ok {PROTOCOL} 7 4711") as connection:
        hello = connection.hello()
    assert (hello.anchor, hello.status_pipe) == (7, 4711)
    for fd in (hello.master, hello.slave):
        assert os.readlink(f"/proc/self/fd/{fd}") == "/dev/null"
        os.close(fd)


def test_a_keeper_of_another_protocol_is_refused_and_its_descriptors_are_closed(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with keeper(tmp_path, "ok 99 7 4711") as connection:
        with pytest.raises(OSError, match="protocol 99") as refused:
            connection.hello()
        assert refused.value.errno == errno.EPROTO
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_an_error_of_the_keeper_is_an_oserror(tmp_path: Path) -> None:
    with keeper(tmp_path, f"error {errno.ENOENT} start") as connection, pytest.raises(FileNotFoundError):
        connection.ask("start")


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waypoint.box.keeper._ANSWER_SECONDS", 0.2)
    timed_out, late = threading.Event(), threading.Event()

    def serve(listener: socket.socket) -> None:
        first, _ = listener.accept()
        with first:
            first.recv(4096)
            assert timed_out.wait(10)
            first.send(b"ok 1")
            late.set()
            first.settimeout(10)
            with suppress(ConnectionResetError):  # closed with that answer unread
                if first.recv(4096):
                    first.send(b"ok 2")
                    return
        second, _ = listener.accept()
        with second:
            second.recv(4096)
            second.send(b"ok 2")

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "k.sock"))
        listener.listen(2)
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        connection = Keeper(tmp_path / "k.sock")
        try:
            with pytest.raises(TimeoutError):
                connection.last_pid()
            timed_out.set()
            assert late.wait(10)
            monkeypatch.setattr("waypoint.box.keeper._ANSWER_SECONDS", 10.0)
            assert connection.last_pid() == 2
        finally:
            connection.close()
            server.join()
