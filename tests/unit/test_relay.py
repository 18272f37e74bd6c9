"""The relay carries bytes between connections: all of them, in order, and no more than it can hold."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.waiting import until

from waypoint.kernel.network import relay
from waypoint.kernel.network.relay import Door, Relay


class Place:
    """A relay between a port and a server that the test plays."""

    def __init__(self) -> None:
        self.relay: Relay[str] = Relay()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(20)
        self.target = self.server.getsockname()
        self.room = True
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.door = Door(listener, self._accepted, lambda: self.room)
        self.relay.listen(self.door)
        self.opened: list[socket.socket] = []

    def _accepted(self, near: socket.socket) -> None:
        far = socket.socket()
        far.setblocking(False)
        far.connect_ex(self.target)
        self.relay.carry(near, far, "key")

    def connect(self) -> socket.socket:
        self.opened.append(socket.create_connection(self.address, timeout=20))
        return self.opened[-1]

    def accept(self) -> socket.socket:
        self.opened.append(self.server.accept()[0])
        self.opened[-1].settimeout(20)
        return self.opened[-1]

    def pair(self) -> tuple[socket.socket, socket.socket]:
        return self.connect(), self.accept()

    def close(self) -> None:
        for sock in (*self.opened, self.server):
            sock.close()
        self.relay.stop_listening(self.door)
        self.relay.close()


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def all_of(sock: socket.socket) -> bytes:
    data = bytearray()
    while piece := sock.recv(1 << 16):
        data += piece
    return bytes(data)


def test_each_direction_ends_by_itself(place: Place) -> None:
    client, server = place.pair()
    client.sendall(b"a question")
    client.shutdown(socket.SHUT_WR)
    assert all_of(server) == b"a question"
    assert place.relay.carried() == ["key"]
    server.sendall(b"an answer")
    server.close()
    assert all_of(client) == b"an answer"
    until(lambda: not place.relay.carried())


def test_all_bytes_arrive_in_order_and_few_are_held(place: Place) -> None:
    client, server = place.pair()
    data = os.urandom(24 << 20)
    sent = 0
    client.settimeout(0.5)
    with contextlib.suppress(TimeoutError):  # nothing is read: what the kernel and the relay hold is bounded
        while sent < len(data):
            sent += client.send(data[sent : sent + 65536])
    assert sent < len(data)

    def send_rest() -> None:
        client.settimeout(20)
        client.sendall(data[sent:])
        client.shutdown(socket.SHUT_WR)

    rest = threading.Thread(target=send_rest)
    rest.start()
    assert all_of(server) == data
    rest.join()


def test_a_reset_is_passed_on_in_both_directions(place: Place) -> None:
    for leaves in (0, 1):
        both = place.pair()
        both[0].sendall(b"x")
        assert both[1].recv(1) == b"x"
        relay.reset(both[leaves])
        with pytest.raises(ConnectionResetError):
            both[1 - leaves].recv(1)
    until(lambda: not place.relay.carried())


def test_what_is_cut_is_reset_at_both_ends_and_others_go_on(place: Place) -> None:
    client, server = place.pair()
    place.relay.cut(lambda key: key == "another")
    client.sendall(b"x")
    assert server.recv(1) == b"x"
    place.relay.cut(lambda key: key == "key")
    for sock in (client, server):
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_a_server_that_refuses_resets_the_client(place: Place) -> None:
    place.server.close()
    with pytest.raises(ConnectionResetError):
        place.connect().recv(1)


def test_connections_wait_while_there_is_no_room(place: Place) -> None:
    place.room = False
    client = place.connect()
    client.sendall(b"x")
    assert place.relay.carried() == []
    place.room = True
    assert place.accept().recv(1) == b"x"


@pytest.mark.parametrize("what", ["_HALF_CLOSED_SECONDS", "_CONNECT_SECONDS"])
def test_no_connection_waits_without_a_limit(
    place: Place, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(relay, what, 0.1)
    if what == "_HALF_CLOSED_SECONDS":
        client, server = place.pair()
        client.shutdown(socket.SHUT_WR)
        assert server.recv(1) == b""
    else:
        place.server.listen(0)
        full = [place.connect() for _ in range(4)]
        client = full[-1]
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_an_action_that_fails_ends_nothing_else(place: Place) -> None:
    def fail() -> None:
        raise ValueError("of a test")

    place.relay.call_later(0, fail)
    client, server = place.pair()
    client.sendall(b"x")
    assert server.recv(1) == b"x"


def test_timers_run_in_their_order() -> None:
    made: Relay[str] = Relay()
    ran: list[int] = []
    actions: list[tuple[float, Callable[[], None]]] = [
        (0.02, lambda: ran.append(2)),
        (0.0, lambda: ran.append(1)),
    ]
    for seconds, action in actions:
        made.call_later(seconds, action)
    until(lambda: ran == [1, 2])
    made.close()
