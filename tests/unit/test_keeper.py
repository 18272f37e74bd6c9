"""The daemon's end of a keeper's socket."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
