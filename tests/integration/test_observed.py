"""What leaves sessions, as the host sees it: counted by the kernel, named by the name servers' answers."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration import test_network
from tests.integration.test_network import (
    NO_RESOLVER,
    WORLD_ADDRESS,
    Machine,
    connect,
    ip,
    listener,
    within,
)

import waypoint
from waypoint.kernel.network import GATEWAY, dns, flows
from waypoint.kernel.network.flows import Flow
from waypoint.kernel.network.resolver import resolver_config
from waypoint.kernel.network.veth import Network

machine = test_network.machine
net = test_network.net
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def exchange(server: socket.socket, client: socket.socket, out: int, back: int) -> None:
    """Sends so many bytes there and back over a connection that is being made."""
    served, _ = server.accept()
    with served, client:
        for source, target, amount in ((client, served, out), (served, client, back)):
            source.sendall(b"x" * amount)
            left = amount
            while left:
                left -= len(target.recv(left))


def of(net: Network, box: str) -> dict[tuple[str, int], Flow]:
    mine = [flow for flow in net.flows().flows if flow.interface == net.interface(box)]
    return {(flow.address, flow.port): flow for flow in mine}


class TestCounting:
    def test_each_place_is_counted_for_each_box(self, machine: Machine, net: Network) -> None:
        one, two = machine.box(), machine.box()
        net.attach("one", one)
        net.attach("two", two)
        assert net.not_counting == ""
        with listener(machine.world, WORLD_ADDRESS) as server:
            port = server.getsockname()[1]
            exchange(server, connect(one, WORLD_ADDRESS, port), 100_000, 30_000)
            exchange(server, connect(one, WORLD_ADDRESS, port), 1000, 1000)
            exchange(server, connect(two, WORLD_ADDRESS, port), 10, 20)
        first, second = of(net, "one")[WORLD_ADDRESS, port], of(net, "two")[WORLD_ADDRESS, port]
        assert first.protocol == "tcp"
        assert 101_000 < first.bytes_out < 115_000
        assert 31_000 < first.bytes_in < 36_000
        assert 10 < second.bytes_out < 1000
        assert 20 < second.bytes_in < 1000
        assert 0 <= first.last_seconds_ago <= first.first_seconds_ago < 60
        assert len(net.flows().flows) == 2
        assert not net.flows().missed

    def test_what_nobody_answers_and_what_has_no_ports_is_counted_too(
        self, machine: Machine, net: Network
    ) -> None:
        box = machine.box()
        net.attach("one", box)
        with within(box, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
            sender.sendto(b"x" * 72, ("203.0.113.9", 9999))
        with within(box, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)) as sender:
            sender.sendto(b"x" * 80, (WORLD_ADDRESS, 0))
        found = of(net, "one")
        assert (found["203.0.113.9", 9999].bytes_out, found["203.0.113.9", 9999].bytes_in) == (100, 0)
        assert (found[WORLD_ADDRESS, 0].protocol, found[WORLD_ADDRESS, 0].bytes_out) == ("253", 100)

    def test_what_stays_inside_or_is_refused_is_not(self, machine: Machine, net: Network) -> None:
        one, two = machine.box(), machine.box()
        net.attach("one", one)
        lease = net.attach("two", two)
        with listener(one, "127.0.0.1") as server:
            exchange(server, connect(one, "127.0.0.1", server.getsockname()[1]), 10, 10)
        for address in (lease.box_address, GATEWAY):
            with pytest.raises(OSError, match="route to host"):
                connect(one, address, 80)
        assert of(net, "one") == {}

    def test_a_box_that_goes_through_places_by_the_thousand_leaves_room_for_others(
        self, machine: Machine, net: Network
    ) -> None:
        busy, other = machine.box(), machine.box()
        net.attach("busy", busy)
        net.attach("other", other)
        with within(busy, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
            for port in range(1000, 7000):
                sender.sendto(b"x", (WORLD_ADDRESS, port))
        with listener(machine.world, WORLD_ADDRESS) as server:
            port = server.getsockname()[1]
            exchange(server, connect(other, WORLD_ADDRESS, port), 10, 10)
        assert 2000 <= len(of(net, "busy")) < 6000
        assert set(net.flows().missed) == {net.interface("busy")}
        assert (WORLD_ADDRESS, port) in of(net, "other")
        net.reset_counters("busy")
        assert of(net, "busy") == {}
        assert net.flows().missed == {}
        assert (WORLD_ADDRESS, port) in of(net, "other")

    def test_a_protocol_without_ports_has_the_same_pace(self, machine: Machine, net: Network) -> None:
        """Or a box could fill the set of all boxes with it, and what others send would not be counted."""
        busy = machine.box()
        net.attach("busy", busy)
        with within(busy, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)) as sender:
            for number in range(6000):
                sender.sendto(b"x", (f"203.0.{number >> 8}.{number & 255}", 0))
        assert 2000 <= len(of(net, "busy")) < 6000
        assert net.flows().missed[net.interface("busy")] >= 21 * (6000 - len(of(net, "busy")))

    def test_a_box_has_a_share_of_the_sets_however_slow_it_is(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flows, "_FLOWS_OF_A_BOX", 50)
        net = Network("test01")
        net.prepare(NO_RESOLVER)
        try:
            slow, other = machine.box(), machine.box()
            net.attach("slow", slow)
            net.attach("other", other)
            with within(slow, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
                for port in range(1000, 1200):
                    sender.sendto(b"x", (WORLD_ADDRESS, port))
            with within(other, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
                sender.sendto(b"x", (WORLD_ADDRESS, 9))
            counted = len(of(net, "slow"))
            assert 50 <= counted <= 55
            assert net.flows().missed == {net.interface("slow"): 29 * (200 - counted)}
            assert (WORLD_ADDRESS, 9) in of(net, "other")
        finally:
            net.teardown()

    def test_it_goes_on_when_nobody_looks_and_ends_with_the_table(
        self, machine: Machine, net: Network
    ) -> None:
        box = machine.box()
        net.attach("one", box)
        with listener(machine.world, WORLD_ADDRESS) as server:
            exchange(server, connect(box, WORLD_ADDRESS, server.getsockname()[1]), 10, 10)
        assert of(Network("test01"), "one"), "another daemon finds it"
        assert not Network("test02").flows().flows
        net.prepare(NO_RESOLVER)
        assert not net.flows().flows


def encoded(name: str) -> bytes:
    return b"".join(bytes((len(part),)) + part.encode() for part in name.split(".")) + b"\0"


def reply(question: bytes, address: str) -> bytes:
    """What a name server says: that address to a question for one, nothing to any other."""
    body = question[12:]
    kind = struct.unpack_from("!H", body, body.index(b"\0") + 1)[0]
    end = body.index(b"\0") + 5
    found = kind == 1
    head = question[:2] + struct.pack("!5H", 0x8180, 1, int(found), 0, 0)
    record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + socket.inet_aton(address)
    return head + body[:end] + (record if found else b"")


@contextlib.contextmanager
def name_server(machine: Machine, address: str, says: str) -> Iterator[None]:
    """Somewhere in the world, a server for which every name has the same address."""
    with listener(machine.world, address, 53, socket.SOCK_DGRAM) as server:
        ended = threading.Event()

        def serve() -> None:
            server.settimeout(0.1)
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    question, who = server.recvfrom(4096)
                    server.sendto(reply(question, says), who)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


class TestNames:
    def test_answers_on_their_way_to_the_box_are_heard_and_nothing_else(
        self, machine: Machine, net: Network
    ) -> None:
        box = machine.box()
        lease = net.attach("one", box)
        query = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + encoded("api.example.com") + b"\0\1\0\1"

        def from_port_53() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind(("", 53))
            return made

        with (
            contextlib.closing(dns.listen(lease.interface)) as heard,
            name_server(machine, WORLD_ADDRESS, "198.51.100.77"),
            within(box, from_port_53) as asker,
        ):
            asker.settimeout(20)
            # An answer that the box gives itself, or anybody else, does not come this way.
            asker.sendto(reply(query.replace(b"\3api", b"\3bad"), "192.0.2.1"), (WORLD_ADDRESS, 9999))
            asker.sendto(query, (WORLD_ADDRESS, 53))
            asker.recv(4096)
            found = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(dns.receive(heard))
        assert found == [dns.Answer(WORLD_ADDRESS, "api.example.com", ("198.51.100.77",))]


@pytest.fixture
def abroad(machine: Machine, small_home: Path) -> Iterator[waypoint.Client]:
    """A Waypoint that lives wholly in the machine of the test, so that the world is the test's."""
    client = waypoint.Client(small_home)
    client.call("ping")
    yield client
    client.close()


class TestSessions:
    SAY = "python3 -c 'import socket,sys; s=socket.create_connection((sys.argv[1], int(sys.argv[2]))); "
    SAY += 's.sendall(b"x" * int(sys.argv[3])); s.shutdown(1); s.recv(9)\' '

    def _serve(self, server: socket.socket) -> None:
        """Reads everything, says goodbye."""
        server.settimeout(0.2)
        while server.fileno() >= 0:
            with contextlib.suppress(TimeoutError):
                try:
                    one, _ = server.accept()
                except OSError:
                    if server.fileno() < 0:
                        return
                    continue
                with one:
                    one.settimeout(20)
                    while one.recv(65536):
                        pass
                    one.sendall(b"bye")

    def test_cards_and_plans_say_whom_a_session_has_talked_to(
        self,
        machine: Machine,
        abroad: waypoint.Client,
    ) -> None:
        [nameserver, *_] = resolver_config().nameservers
        within(machine.world, lambda: ip("address", "add", f"{nameserver}/32", "dev", "lo"))
        with (
            name_server(machine, nameserver, WORLD_ADDRESS),
            listener(machine.world, WORLD_ADDRESS) as server,
        ):
            port = server.getsockname()[1]
            thread = threading.Thread(target=self._serve, args=(server,))
            thread.start()
            session = waypoint.session("agent", home=abroad.home.path)
            quiet = session.checkpoint("nothing was said", name="quiet")
            session.run(f"{self.SAY} api.example.test {port} 20000").check()
            told = session.checkpoint("told them", name="told")
            where = f"api.example.test:{port}"

            assert "talked" not in quiet.card().summary
            assert f"talked to {where}" in told.card().summary
            [section] = [one for one in told.card().data["sections"] if one["name"] == "network"]
            assert (section["source"], section["lines"][0]["text"]) == ("observed", where)
            assert "20 KB out" in section["lines"][0]["detail"]
            [contact] = told.card().difference.data["difference"]["contacts"]  # type: ignore[union-attr]
            assert (contact["address"], contact["port"]) == (WORLD_ADDRESS, port)
            assert 20_000 < contact["bytes_out"] < 25_000
            assert not [one for one in session.diff("told").sections if one["name"] == "network"]

            # The present, in another daemon than the one that saw the beginning of it.
            session.run(f"{self.SAY} {WORLD_ADDRESS} {port} 500").check()
            daemon = abroad.call("ping")["pid"]
            os.kill(daemon, signal.SIGKILL)
            abroad.close()
            assert abroad.call("ping")["pid"] != daemon
            [contact] = session.diff("told").data["difference"]["contacts"]
            assert 500 < contact["bytes_out"] < 2000
            plan = session.preview("quiet")
            assert "not undone, it happened outside: talked to api.example.test" in str(plan)
            since_told = str(session.preview("told"))
            assert f"talked to {WORLD_ADDRESS}:{port}" in since_told
            assert "api.example.test" not in since_told

            # No restore takes it back, whatever line of history it was in.
            session.restore("quiet")
            assert "talked to" in str(session.preview("quiet"))
            assert not [one for one in session.diff("quiet").sections if one["name"] == "network"]
            [fork] = told.fork(name="other")
            fork.run(f"{self.SAY} {WORLD_ADDRESS} {port} 300").check()
            assert "talked" in fork.checkpoint("fork").card().summary
            verdict = quiet.verify(f"{self.SAY} {WORLD_ADDRESS} {port} 77")
            assert verdict is not None
            assert verdict.state == "passed"
            assert "talked" not in session.checkpoint("after a trial").card().summary
            server.close()
            thread.join()

    def test_contacts_of_a_box_that_died_while_no_daemon_ran_are_in_no_later_point(
        self, machine: Machine, abroad: waypoint.Client
    ) -> None:
        with listener(machine.world, WORLD_ADDRESS) as server:
            port = server.getsockname()[1]
            thread = threading.Thread(target=self._serve, args=(server,))
            thread.start()
            session = waypoint.session("agent", home=abroad.home.path)
            session.checkpoint("nothing was said", name="quiet")
            session.run(f"{self.SAY} {WORLD_ADDRESS} {port} 5000").check()
            assert session.diff("quiet").data["difference"]["contacts"]
            late = f"{self.SAY} {WORLD_ADDRESS} {port} 7000; touch /tmp/said"
            session.run(f"(until [ -e /tmp/go ]; do sleep 0.02; done; {late}) &").check()
            keeper, daemon = session.info.pid, abroad.call("ping")["pid"]
            assert keeper
            box = Path(f"/proc/{keeper}/root")
            os.kill(daemon, signal.SIGKILL)
            abroad.close()
            (box / "tmp/go").touch()
            deadline = time.monotonic() + 20
            while not (box / "tmp/said").exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            gone = os.pidfd_open(keeper)
            os.kill(keeper, signal.SIGKILL)
            assert select.select([gone], [], [], 10)[0]
            os.close(gone)

            assert session.info.state == "dead"
            session.restore("quiet")
            after = session.checkpoint("nothing was said in this box")
            assert "talked" not in after.card().summary
            assert f"talked to {WORLD_ADDRESS}:{port}" in str(session.preview("quiet"))
            contacts = abroad.call("effects", {"session": "agent", "ref": "quiet"})["contacts"]
            assert sum(contact["bytes_out"] for contact in contacts) > 12_000, "also what left with no daemon"
            server.close()
            thread.join()

    def test_a_session_on_the_hosts_network_says_that_nobody_watches(self, home: object) -> None:
        session = waypoint.session("open", net="host")
        try:
            point = session.checkpoint("here")
            assert [line for line in point.card().coverage if "not observed" in line]
        finally:
            session.remove()
