"""Ports: what listens in a session, and how it is reached from this machine."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.waiting import until

import waypoint
from waypoint import errors

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

SERVER = textwrap.dedent(
    """
    import socket, sys, threading
    name, address, port = sys.argv[1:4]
    count = 0
    def serve(connection):
        global count
        try:
            while data := connection.recv(65536):
                if data.startswith(b"?"):
                    count += 1
                    connection.sendall(b"%s %d\\n" % (name.encode(), count))
                else:
                    connection.sendall(data)
            open("/tmp/ended", "a").write("end\\n")
            connection.close()
        except OSError as error:
            open("/tmp/ended", "a").write(f"{error.errno}\\n")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, int(port)), family=family)
    if "deaf" in sys.argv:
        import signal
        signal.pause()
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
    """
)


def serve(
    session: waypoint.Session, name: str, *, address: str = "127.0.0.1", port: int = 8000, more: str = ""
) -> None:
    session.write_file("/tmp/server.py", SERVER)
    session.run(f"python3 /tmp/server.py {name} {address} {port} {more} &> /tmp/log &").check()
    until(lambda: any(found.port == port for found in session.ports()))


LOST = (f"{errno.ECONNRESET}\n", f"{errno.ECONNABORTED}\n")


class Client:
    """A connection to a forwarded port."""

    def __init__(self, forward: waypoint.Forward) -> None:
        self.socket = socket.create_connection((forward.address, forward.local_port), timeout=20)
        self.file = self.socket.makefile("rb")

    def ask(self) -> str:
        self.socket.sendall(b"?")
        return self.file.readline().decode().strip()

    def is_reset(self) -> bool:
        try:
            self.socket.recv(1)
        except ConnectionResetError:
            return True
        return False

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def reach() -> Iterator[Callable[[waypoint.Forward], Client]]:
    made: list[Client] = []

    def connect(forward: waypoint.Forward) -> Client:
        made.append(Client(forward))
        return made[-1]

    yield connect
    for client in made:
        client.close()


def resets(forward: waypoint.Forward) -> bool:
    """Whether a new connection is accepted and reset."""
    try:
        # The reset may arrive before the client looks at the result of its connect(): then that reports it.
        with socket.create_connection((forward.address, forward.local_port), timeout=20) as client:
            client.recv(1)
    except ConnectionResetError:
        return True
    return False


def refused(forward: waypoint.Forward) -> bool:
    try:
        socket.create_connection((forward.address, forward.local_port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_forward_follows_a_restore_and_a_fork_has_none(
    fresh: waypoint.Session, reach: Callable[[waypoint.Forward], Client]
) -> None:
    serve(fresh, "one")
    forward = fresh.forward(8000, 0)
    assert forward.address == "127.0.0.1"
    assert fresh.info.forwards == (forward,)
    client = reach(forward)
    assert client.ask() == "one 1"
    point = fresh.checkpoint("a client is connected")
    assert client.ask() == "one 2"  # the connection goes on
    assert reach(forward).ask() == "one 3"

    fresh.restore(point)
    assert client.is_reset()
    assert fresh.info.forwards == (forward,)
    assert reach(forward).ask() == "one 2"
    until(lambda: fresh.run("cat /tmp/ended").output)
    assert fresh.run("cat /tmp/ended").output in LOST  # its client is not there any more

    (twin,) = point.fork()
    assert twin.info.forwards == ()
    until(lambda: twin.run("cat /tmp/ended").output)
    assert twin.run("cat /tmp/ended").output in LOST
    own = twin.forward(8000, 0)
    assert own.local_port != forward.local_port
    assert (reach(own).ask(), reach(forward).ask()) == ("one 2", "one 3")
    fresh.undo()
    assert reach(forward).ask() == "one 4"


def test_connections_that_a_program_has_not_accepted_prevent_no_checkpoint(
    fresh: waypoint.Session, reach: Callable[[waypoint.Forward], Client]
) -> None:
    serve(fresh, "one", more="deaf")
    forward = fresh.forward(8000, 0)
    count = "grep -c ':1F40 [0-9A-F:]* 01 ' /proc/net/tcp"
    waiting = reach(forward)
    waiting.socket.sendall(b"anything")
    until(lambda: fresh.run(count).output == "1\n")
    point = fresh.checkpoint("a client waits")
    fresh.restore(point)
    assert waiting.is_reset()
    again = reach(forward)
    own = fresh.spawn(["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000; read -t 600 <&3"])
    until(lambda: fresh.run(count).output == "2\n")
    with pytest.raises(errors.CannotCheckpoint) as refusal:  # one of the session's own is refused as before
        fresh.checkpoint()
    assert "waits to be accepted" in str(refusal.value)
    own.kill()
    again.close()


def test_two_sessions_have_the_same_port_and_any_address_of_theirs_is_reached(
    fresh: waypoint.Session,
    sessions: Callable[..., waypoint.Session],
    reach: Callable[[waypoint.Forward], Client],
) -> None:
    other = sessions("other", net="none")
    serve(fresh, "nat", address="::")
    serve(other, "none", address="::1")
    first, second = fresh.forward(8000, 0), other.forward(8000, 0)
    assert (reach(first).ask(), reach(second).ask()) == ("nat 1", "none 1")
    point = other.checkpoint()
    other.restore(point)
    assert reach(second).ask() == "none 2"

    address = fresh.run("hostname -I").output.split()[0]
    serve(fresh, "eth0", address=address, port=8001)
    assert reach(fresh.forward(8001, 0)).ask() == "eth0 1"

    # As much as goes through, in both directions at once.
    client = reach(first)
    data = os.urandom(8 << 20).replace(b"?", b"!")
    sender = threading.Thread(target=client.socket.sendall, args=(data,))
    sender.start()
    assert client.file.read(len(data)) == data
    sender.join()
    client.socket.shutdown(socket.SHUT_WR)
    assert client.file.read() == b""
    until(lambda: "end" in fresh.run("cat /tmp/ended").output)  # it was told, and nothing was reset


def test_forwards_outlive_the_daemon_and_end_with_the_session(
    fresh: waypoint.Session, reach: Callable[[waypoint.Forward], Client]
) -> None:
    serve(fresh, "one")
    forward = fresh.forward(8000, 0)
    client = reach(forward)
    assert client.ask() == "one 1"
    daemon = os.pidfd_open(int(waypoint.Client().call("ping")["pid"]))
    signal.pidfd_send_signal(daemon, signal.SIGKILL)
    assert select.select([daemon], [], [], 20)[0]
    os.close(daemon)
    assert client.is_reset() or not client.file.read()
    with socket.create_server((forward.address, forward.local_port)) as thief:
        (known,) = fresh.info.forwards
        assert known.problem == "another program has this port"
        thief.close()
        until(lambda: not fresh.info.forwards[0].problem)
    assert reach(forward).ask() == "one 2"

    fresh.park()
    assert fresh.info.forwards == ()
    assert refused(forward)
    fresh.restore("@")
    with pytest.raises(errors.NotFound):
        fresh.unforward(8000)
    forward = fresh.forward(8000, forward.local_port)
    client = reach(forward)
    assert client.ask() == "one 3"
    assert fresh.unforward(8000) == [forward]
    assert client.is_reset()
    assert refused(forward)
    again = fresh.forward(8000, 0)
    fresh.remove()
    assert refused(again)


def test_what_cannot_be_forwarded_is_refused(
    fresh: waypoint.Session,
    sessions: Callable[..., waypoint.Session],
) -> None:
    forward = fresh.forward(8000, 0)
    assert fresh.forward(8000) == forward  # it is there already
    with pytest.raises(errors.AlreadyExists, match="leads to port 8000 of session 't'"):
        fresh.forward(8001, forward.local_port)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(errors.AlreadyExists, match="another program"):
            fresh.forward(8001, port)
        assert fresh.forward(port).local_port != port
    for wrong in (0, 65536):
        with pytest.raises(errors.UsageError):
            fresh.forward(wrong)
    with pytest.raises(errors.UsageError, match="no address"):
        fresh.forward(8001, bind="localhost.example")
    with pytest.raises(errors.UsageError, match="no address"):
        fresh.forward(8001, bind="192.0.2.77")
    assert resets(forward)  # nothing listens there

    open_to_all = sessions("open", net="host")
    with pytest.raises(errors.UsageError, match="own network"):
        open_to_all.forward(8000)
    assert open_to_all.ports() == []  # what other programs of this machine listen on is not its
    fresh.park()
    with pytest.raises(errors.SessionDead):
        fresh.forward(8000)


def test_ports_on_the_command_line(
    wp: Callable[..., Any], fresh: waypoint.Session, reach: Callable[[waypoint.Forward], Client]
) -> None:
    serve(fresh, "one")
    fresh.checkpoint("it listens", name="up")
    words = wp("forward", "t", "8000:0", check=True).out.strip()
    host, _, port = words.rpartition(":")
    assert host == "127.0.0.1"
    table = wp("ports", "t", check=True).out.splitlines()
    assert table[0].split() == ["PROTOCOL", "ADDRESS", "PORT", "PROCESS", "FORWARDED", "FROM"]
    assert table[1].split()[:3] == ["tcp", "127.0.0.1", "8000"]
    assert "python3 /tmp/ser" in table[1]
    assert table[1].endswith(words)
    told = wp("--json", "ports", "t", check=True).json
    assert [found["port"] for found in told["ports"]] == [8000]
    assert told["forwards"] == [
        {"port": 8000, "address": "127.0.0.1", "local_port": int(port), "problem": ""}
    ]
    assert f"{words}→8000" in wp("ls", check=True).out
    assert f"{words} leads to port 8000" in wp("status", "t", check=True).out

    everywhere = wp("forward", "t", "8001:0", "--bind", "0.0.0.0", check=True)
    assert "every machine that reaches" in everywhere.err
    fresh.run("kill %1; wait").check()
    assert wp("ports", "t", check=True).out.count("nothing listens there now") == 2
    at = wp("--json", "ports", "t", "--at", "up", check=True).json
    assert [found["port"] for found in at["ports"]] == [8000]
    assert wp("unforward", "t", "8000", check=True).out == f"{words} leads to port 8000 of t no more\n"
    assert wp("unforward", "t", check=True).out.count("8001") == 1
    gone = wp("unforward", "t", "8000")
    assert gone.code == errors.NotFound.exit_status
    assert "not forwarded" in gone.err
    assert wp("ports", "t", check=True).out == ""
    assert wp("forward", "t", "70000").code == 2
