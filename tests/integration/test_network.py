"""The network of boxes on the real kernel.

Each test has a machine of its own: a network namespace that stands for the host, with an uplink to another
one that stands for the world. What happens there cannot hurt the real host, and is checked to be gone from
it in the end.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import select
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from waypoint.errors import AlreadyExists, MachineError, UsageError
from waypoint.kernel.network import GATEWAY, firewall, resolver, rtnetlink, sockets
from waypoint.kernel.network.netlink import NETLINK_ROUTE, Netlink
from waypoint.kernel.network.resolver import Resolver, resolver_config
from waypoint.kernel.network.veth import BOX_IFINDEX, LOOPBACK_IFINDEX, Lease, Network
from waypoint.kernel.syscalls import CLONE_NEWNET, setns, unshare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

HOST_ADDRESS = "198.51.100.1"
WORLD_ADDRESS = "198.51.100.2"
TCP_REPAIR = 19
TCP_REPAIR_QUEUE = 20
TCP_QUEUE_SEQ = 21
TCP_RECV_QUEUE = 1
TCP_SEND_QUEUE = 2
NO_RESOLVER = Resolver(text="", nameservers=())

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def current_netns() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def within(netns_fd: int, act: Callable[[], T]) -> T:
    """Calls `act` inside another network namespace. Sockets it returns stay there."""
    results: list[T] = []

    def run() -> None:
        setns(netns_fd, CLONE_NEWNET)
        results.append(act())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results, "failed in the namespace"
    return results[0]


def new_netns() -> int:
    made: list[int] = []

    def run() -> None:
        unshare(CLONE_NEWNET)
        made.append(current_netns())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return made[0]


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def nft(*words: str, script: str | None = None) -> str:
    return subprocess.run(["nft", *words], check=True, capture_output=True, text=True, input=script).stdout


def forwarding() -> str:
    return Path("/proc/sys/net/ipv4/ip_forward").read_text().strip()


def traces() -> tuple[list[str], str, str]:
    """What Waypoint could have left on this machine."""
    links = [name for _, name in socket.if_nameindex() if name.startswith("wp-")]
    return links, nft("list", "tables"), forwarding()


def nothing_is_left() -> None:
    """Of the tests in this file, on the real host, where others' boxes come and go."""
    told = nft("list", "tables") + ip("-o", "link")  # with their aliases
    assert not re.findall("waypoint-test[0-9]{2}.*", told)


def boxes_of(tag: str) -> list[str]:
    """The boxes of a home that have a cable; for an interface without an alias, its name."""
    prefix = Network(tag).interface("one")[:-8]
    with Netlink(NETLINK_ROUTE) as host:
        own = [link for link in rtnetlink.links(host) if link.name.startswith(prefix)]
    return [link.alias.removeprefix(f"waypoint-{tag} ") or link.name for link in own]


def addresses(netns_fd: int) -> list[str]:
    """The IPv4 addresses of a box's eth0."""
    with Netlink(NETLINK_ROUTE, netns_fd) as box:
        listing = [*rtnetlink.addresses(box)]
    return [address for index, address in listing if index == BOX_IFINDEX and ":" not in address]


def set_loopback_up(netns_fd: int) -> None:
    with Netlink(NETLINK_ROUTE, netns_fd) as box:
        box.run(rtnetlink.set_up(LOOPBACK_IFINDEX))


class Machine:
    """The host of a test, and the world it is connected to."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.boxes: list[int] = []

    def box(self) -> int:
        self.boxes.append(new_netns())
        return self.boxes[-1]


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Puts the test into a machine of its own and fails it if Waypoint has left anything on any machine."""
    real = current_netns()
    unshare(CLONE_NEWNET)
    world = new_netns()
    made = Machine(world)
    try:
        # The kernel gives a new namespace the setting of the real host, where sessions may run just now.
        Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
        untouched = traces()
        ip("link", "set", "lo", "up")
        ip(*f"link add up0 type veth peer name up1 netns /proc/{os.getpid()}/fd/{world}".split())
        ip("address", "add", f"{HOST_ADDRESS}/24", "dev", "up0")
        ip("link", "set", "up0", "up")
        ip("route", "add", "default", "via", WORLD_ADDRESS)

        def furnish() -> str:
            ip("address", "add", f"{WORLD_ADDRESS}/24", "dev", "up1")
            ip("link", "set", "lo", "up")
            return ip("link", "set", "up1", "up")

        within(world, furnish)
        yield made
        left = traces()
    finally:
        for netns_fd in (*made.boxes, world):
            os.close(netns_fd)
        setns(real, CLONE_NEWNET)
        os.close(real)
    assert left == untouched, "left on the host of the test"
    links, tables, _ = traces()  # where others' boxes come and go
    tags = ("test01", "test02")
    cables = tuple(Network(tag).interface("one")[:-8] for tag in tags)
    assert not [link for link in links if link.startswith(cables)], "left on the real host"
    assert not [tag for tag in tags if tag in tables], "left on the real host"


@pytest.fixture
def net(machine: Machine) -> Iterator[Network]:
    made = Network("test01")
    made.prepare(NO_RESOLVER)
    yield made
    made.teardown()


@pytest.fixture
def other_net(machine: Machine) -> Iterator[Network]:
    """Another home on the same machine."""
    made = Network("test02")
    made.prepare(NO_RESOLVER)
    yield made
    made.teardown()


@contextlib.contextmanager
def listener(
    netns_fd: int | None, address: str, port: int = 0, kind: int = socket.SOCK_STREAM
) -> Iterator[socket.socket]:
    """A socket waiting on an address, in a namespace or in the host of the test."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        if kind == socket.SOCK_STREAM:
            made.listen()
        made.settimeout(5)
        return made

    with make() if netns_fd is None else within(netns_fd, make) as sock:
        yield sock


def connect(netns_fd: int | None, address: str, port: int, source: str = "") -> socket.socket:
    """A connection made from a namespace, or the OSError it failed with, raised here."""

    def make() -> socket.socket | OSError:
        try:
            return socket.create_connection(
                (address, port), timeout=5, source_address=(source, 0) if source else None
            )
        except OSError as failure:
            return failure

    made = make() if netns_fd is None else within(netns_fd, make)
    if isinstance(made, OSError):
        raise made
    return made


def refused(netns_fd: int, address: str, port: int) -> bool:
    """Whether a connection is refused by the firewall, at once."""
    try:
        connect(netns_fd, address, port).close()
    except TimeoutError:
        return False
    except OSError as failure:
        return failure.errno == errno.EHOSTUNREACH
    return False


class TestCable:
    def test_a_box_looks_the_same_in_every_incarnation(self, machine: Machine, net: Network) -> None:
        first, second = machine.box(), machine.box()
        leases = net.attach("one", first), net.attach("two", second)
        for netns_fd, lease in zip((first, second), leases, strict=True):
            assert within(netns_fd, socket.if_nameindex) == [(1, "lo"), (100, "eth0")]
            shown = within(netns_fd, lambda: ip("-4", "route"))
            assert (
                shown.strip()
                == f"default via 169.254.77.1 dev eth0 proto static src {lease.box_address} onlink"
            )
            assert addresses(netns_fd) == [lease.box_address]
            assert lease.interface.startswith("wp-")
            assert len(lease.interface) <= 15
        assert leases[0].box_address != leases[1].box_address

    def test_loopback_works_in_both_families_and_there_is_no_other_ipv6(
        self, machine: Machine, net: Network
    ) -> None:
        attached, alone = machine.box(), machine.box()
        lease = net.attach("one", attached)
        set_loopback_up(alone)
        for netns_fd, address in itertools.product((attached, alone), ("127.0.0.1", "::1")):
            with listener(netns_fd, address) as server:
                connect(netns_fd, address, server.getsockname()[1]).close()
        assert "inet6" not in ip("address", "show", "dev", lease.interface)
        assert within(attached, lambda: ip("-6", "address")).count("inet6") == 1
        with pytest.raises(OSError, match="unreachable"):
            connect(alone, WORLD_ADDRESS, 80)

    def test_the_mtu_is_that_of_the_uplink(self, machine: Machine, net: Network) -> None:
        ip("link", "set", "up0", "mtu", "1380")
        net.prepare(NO_RESOLVER)
        netns_fd = machine.box()
        net.attach("one", netns_fd)
        assert "mtu 1380" in within(netns_fd, lambda: ip("link", "show", "eth0"))

    def test_the_kernel_knows_whose_cable_it_is(self, machine: Machine, net: Network) -> None:
        assert boxes_of("test01") == []
        lease = net.attach("s1-box", machine.box())
        assert boxes_of("test01") == ["s1-box"]
        assert boxes_of("test02") == []
        assert "alias waypoint-test01 s1-box" in ip("link", "show", lease.interface)

    def test_detaching_is_idempotent(self, machine: Machine, net: Network) -> None:
        for name in ("one", "two"):
            net.attach(name, machine.box())
        for name in ("one", "two"):
            net.detach(name)
            net.detach(name)
        assert boxes_of("test01") == []

    def test_the_cable_goes_with_the_namespace(self, machine: Machine, net: Network) -> None:
        net.attach("one", machine.box())
        os.close(machine.boxes.pop())
        deadline = time.monotonic() + 10
        while boxes_of("test01") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert boxes_of("test01") == []
        net.detach("one")

    def test_a_box_is_attached_once(self, machine: Machine, net: Network) -> None:
        lease = net.attach("one", machine.box())
        with pytest.raises(AlreadyExists):
            net.attach("one", machine.box())
        assert boxes_of("test01") == ["one"]
        with listener(machine.world, WORLD_ADDRESS) as server:
            connect(machine.boxes[0], WORLD_ADDRESS, server.getsockname()[1]).close()
        assert addresses(machine.boxes[0]) == [lease.box_address]

    def test_a_failed_attach_leaves_nothing(
        self, machine: Machine, net: Network, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.ENOBUFS, "no room")

        netns_fd = machine.box()
        with pytest.raises(UsageError):
            net.attach("one", netns_fd, keep=["10.1.2.3.4"])
        with open("/dev/null") as no_namespace, pytest.raises(MachineError):
            net.attach("two", no_namespace.fileno())
        with monkeypatch.context() as patched:
            patched.setattr(rtnetlink, "add_neighbour", refuse)
            with pytest.raises(MachineError, match="no room"):
                net.attach("three", netns_fd)
        assert boxes_of("test01") == []
        net.attach("four", netns_fd)
        with pytest.raises(AlreadyExists):
            net.attach("five", netns_fd)
        assert boxes_of("test01") == ["four"]


class TestAddresses:
    def test_many_threads_and_two_homes_get_different_ones(
        self, machine: Machine, net: Network, other_net: Network
    ) -> None:
        # The worst case: both homes try the same addresses in the same order.
        net._indices = (1 + number % 60000 for number in itertools.count(500))
        other_net._indices = (1 + number % 60000 for number in itertools.count(500))
        boxes = [(home, f"box{number}", machine.box()) for number in range(12) for home in (net, other_net)]
        leases: list[Lease] = []
        threads = [
            threading.Thread(target=lambda home=home, name=name, fd=fd: leases.append(home.attach(name, fd)))
            for home, name, fd in boxes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({lease.box_address for lease in leases}) == len(boxes) == len(leases)
        other_net.teardown()
        assert len(boxes_of("test01")) == 12

    def test_the_range_is_one_that_the_machine_does_not_use(self, machine: Machine, net: Network) -> None:
        ip("route", "add", "10.0.0.0/8", "via", WORLD_ADDRESS)
        ip("address", "add", "172.20.5.5/32", "dev", "up0")
        net.prepare(Resolver(text="", nameservers=("172.21.0.53",)))
        assert net.attach("one", machine.box()).box_address.startswith("172.22.")

    def test_no_range_left_is_an_error_that_says_so(self, machine: Machine, net: Network) -> None:
        for taken in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"):
            ip("route", "add", taken, "via", WORLD_ADDRESS)
        with pytest.raises(MachineError, match="private range"):
            net.prepare(NO_RESOLVER)


class TestIsolation:
    def test_a_box_reaches_the_world_in_the_hosts_name(self, machine: Machine, net: Network) -> None:
        netns_fd = machine.box()
        net.attach("one", netns_fd)
        with (
            listener(machine.world, WORLD_ADDRESS) as server,
            connect(netns_fd, WORLD_ADDRESS, server.getsockname()[1]) as client,
        ):
            accepted, (peer, _) = server.accept()
            with accepted:
                assert peer == HOST_ADDRESS
                accepted.sendall(b"x" * 300_000)
                accepted.shutdown(socket.SHUT_WR)
                assert len(b"".join(iter(lambda: client.recv(1 << 16), b""))) == 300_000

    def test_a_box_does_not_fill_the_table_of_connections(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is one for all boxes and the host: who finds no room in it is cut off."""
        monkeypatch.setattr(firewall, "_MOST_CONNECTIONS", 40)
        net = Network("test01")
        net.prepare(NO_RESOLVER)
        try:
            hostile, honest = machine.box(), machine.box()
            net.attach("hostile", hostile)
            net.attach("honest", honest)
            with within(hostile, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
                refused_once = 0
                for port in range(2000, 2200):
                    try:
                        sender.sendto(b"x", (WORLD_ADDRESS, port))
                    except OSError:  # what the one before was answered
                        refused_once += 1
            tracked = int(Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text())
            assert tracked <= 60, f"{tracked} connections are tracked"
            with listener(machine.world, WORLD_ADDRESS) as server:
                connect(honest, WORLD_ADDRESS, server.getsockname()[1]).close()
        finally:
            net.teardown()

    def test_the_host_reaches_a_box(self, machine: Machine, net: Network) -> None:
        netns_fd = machine.box()
        lease = net.attach("one", netns_fd)
        with listener(netns_fd, "0.0.0.0") as server:
            connect(None, lease.box_address, server.getsockname()[1]).close()

    def test_boxes_do_not_meet(self, machine: Machine, net: Network, other_net: Network) -> None:
        boxes = [machine.box() for _ in range(3)]
        leases = [net.attach("one", boxes[0]), net.attach("two", boxes[1])]
        leases.append(other_net.attach("three", boxes[2]))
        for server_box, client_box in itertools.permutations(range(3), 2):
            with listener(boxes[server_box], "0.0.0.0") as server:
                address = leases[server_box].box_address
                assert refused(boxes[client_box], address, server.getsockname()[1])

    def test_the_world_does_not_reach_into_a_box(self, machine: Machine, net: Network) -> None:
        netns_fd = machine.box()
        lease = net.attach("one", netns_fd)
        within(machine.world, lambda: ip("route", "add", lease.box_address, "via", HOST_ADDRESS))
        with listener(netns_fd, "0.0.0.0", kind=socket.SOCK_DGRAM) as server, server:
            with listener(machine.world, WORLD_ADDRESS, kind=socket.SOCK_DGRAM) as sender:
                sender.sendto(b"hello", (lease.box_address, server.getsockname()[1]))
            assert not select.select([server], [], [], 0.3)[0]

    def test_services_of_the_host_are_refused_except_names(self, machine: Machine, net: Network) -> None:
        netns_fd = machine.box()
        net.attach("one", netns_fd)
        with listener(None, "0.0.0.0") as server:
            for address in (HOST_ADDRESS, GATEWAY):
                assert refused(netns_fd, address, server.getsockname()[1])
        with listener(None, HOST_ADDRESS, 53) as server:
            connect(netns_fd, HOST_ADDRESS, 53).close()

    def test_what_the_host_publishes_for_its_containers_is_refused(
        self, machine: Machine, net: Network
    ) -> None:
        netns_fd, container = machine.box(), machine.box()
        net.attach("one", netns_fd)
        ip("link", "add", "br9", "type", "bridge")
        ip("address", "add", "172.30.0.1/24", "dev", "br9")
        far = f"/proc/{os.getpid()}/fd/{container}"
        ip(*f"link add c0 master br9 type veth peer name eth0 netns {far}".split())
        ip("link", "set", "br9", "up")
        ip("link", "set", "c0", "up")

        def furnish() -> str:
            ip("address", "add", "172.30.0.2/24", "dev", "eth0")
            ip("link", "set", "eth0", "up")
            return ip("route", "add", "default", "via", "172.30.0.1")

        within(container, furnish)
        nft(
            "-f",
            "-",
            script="table ip nat {\n chain PREROUTING {\n type nat hook prerouting priority dstnat;\n"
            f" ip daddr {HOST_ADDRESS} tcp dport 8080 dnat to 172.30.0.2:80\n"
            f" ip daddr {HOST_ADDRESS} tcp dport 8081 dnat to {WORLD_ADDRESS}:80\n }}\n}}\n",
        )
        with listener(container, "0.0.0.0", 80), listener(machine.world, WORLD_ADDRESS, 80):
            connect(None, "172.30.0.2", 80).close()
            connect(machine.world, HOST_ADDRESS, 8080).close()
            connect(netns_fd, WORLD_ADDRESS, 80).close()
            assert refused(netns_fd, "172.30.0.2", 80)
            assert refused(netns_fd, HOST_ADDRESS, 8080)
            assert refused(netns_fd, HOST_ADDRESS, 8081)
        nft("delete", "table", "ip", "nat")
        ip("link", "delete", "br9")
        ip("link", "delete", "c0")

    def test_link_local_services_of_the_network_are_refused_except_names(
        self, machine: Machine, net: Network
    ) -> None:
        """169.254.169.254 hands out a cloud machine's credentials to whoever asks."""
        netns_fd = machine.box()
        net.attach("one", netns_fd)
        within(machine.world, lambda: ip("address", "add", "169.254.169.254/32", "dev", "up1"))
        with listener(machine.world, "169.254.169.254", 80), listener(machine.world, "169.254.169.254", 53):
            connect(None, "169.254.169.254", 80).close()
            assert refused(netns_fd, "169.254.169.254", 80)
            connect(netns_fd, "169.254.169.254", 53).close()

    def test_a_box_works_behind_a_firewall_that_drops_what_it_does_not_know(
        self, machine: Machine, net: Network
    ) -> None:
        nft(
            "-f",
            "-",
            script="table ip filter {\n"
            " chain FORWARD { type filter hook forward priority 0; policy drop; }\n"
            " chain INPUT { type filter hook input priority 0; policy drop; }\n}\n",
        )
        untouched = nft("list", "table", "ip", "filter")
        net.prepare(NO_RESOLVER)
        net.prepare(NO_RESOLVER)
        netns_fd = machine.box()
        net.attach("one", netns_fd)
        with listener(machine.world, WORLD_ADDRESS) as server, listener(None, HOST_ADDRESS, 53):
            connect(netns_fd, WORLD_ADDRESS, server.getsockname()[1]).close()
            connect(netns_fd, HOST_ADDRESS, 53).close()
            assert refused(netns_fd, HOST_ADDRESS, 54)
        net.teardown()
        assert nft("list", "table", "ip", "filter") == untouched
        nft("delete", "table", "ip", "filter")


class TestEarlierAddresses:
    def test_sockets_can_be_bound_to_a_kept_address_and_used_inside(
        self, machine: Machine, net: Network
    ) -> None:
        netns_fd = machine.box()
        lease = net.attach("one", netns_fd, keep=["10.99.1.2", "10.99.1.3", "10.99.1.2"])
        assert addresses(netns_fd) == [lease.box_address, "10.99.1.2", "10.99.1.3"]
        with (
            listener(netns_fd, "10.99.1.2") as server,
            connect(netns_fd, "10.99.1.2", server.getsockname()[1], source="10.99.1.3"),
        ):
            accepted, (peer, _) = server.accept()
            accepted.close()
            assert peer == "10.99.1.3"

    def test_what_a_box_sends_from_a_kept_address_stays_in_the_box(
        self, machine: Machine, net: Network
    ) -> None:
        netns_fd = machine.box()
        net.attach("one", netns_fd, keep=["10.99.1.2"])
        with listener(machine.world, WORLD_ADDRESS, kind=socket.SOCK_DGRAM) as receiver:
            target = receiver.getsockname()
            for source, arrives in (("10.99.1.2", False), ("0.0.0.0", True)):
                with listener(netns_fd, source, kind=socket.SOCK_DGRAM) as sender:
                    sender.sendto(source.encode(), target)
                    assert bool(select.select([receiver], [], [], 0.3)[0]) is arrives

    def test_a_forks_copy_of_a_connection_does_not_disturb_the_original(
        self, machine: Machine, net: Network
    ) -> None:
        origin, fork = machine.box(), machine.box()
        lease = net.attach("origin", origin)
        with listener(machine.world, WORLD_ADDRESS) as server:
            port = server.getsockname()[1]
            with connect(origin, WORLD_ADDRESS, port) as original:
                accepted, _ = server.accept()
                net.attach("fork", fork, keep=[lease.box_address])
                assert addresses(fork)[1:] == [lease.box_address]
                state = self._state(original)
                with within(
                    fork, lambda: self._restored(original.getsockname(), (WORLD_ADDRESS, port), state)
                ) as copy:
                    copy.send(b"from the fork")
                    time.sleep(0.3)
                    assert sockets.abort_outside_connections(fork) == 1
                    with pytest.raises(ConnectionAbortedError):
                        copy.recv(1)
                with accepted:
                    original.sendall(b"from the origin")
                    assert accepted.recv(100) == b"from the origin"
                    accepted.sendall(b"hello")
                    assert original.recv(100) == b"hello"

    @staticmethod
    def _state(sock: socket.socket) -> dict[int, int]:
        """The sequence numbers of a connection, as CRIU reads them."""
        sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        found = {}
        for queue in (TCP_RECV_QUEUE, TCP_SEND_QUEUE):
            sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
            found[queue] = struct.unpack("I", sock.getsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ, 4))[0]
        sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, -1)
        return found

    @staticmethod
    def _restored(source: tuple[str, int], peer: tuple[str, int], state: dict[int, int]) -> socket.socket:
        """A connection that never was made, as CRIU restores them."""
        made = socket.socket()
        made.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        for queue, number in state.items():
            made.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
            made.setsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ, struct.pack("I", number))
        made.bind(source)
        made.connect(peer)
        made.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 0)
        made.settimeout(5)
        return made


class TestSockets:
    def test_only_connections_that_leave_the_box_are_aborted(self, machine: Machine, net: Network) -> None:
        netns_fd = machine.box()
        lease = net.attach("one", netns_fd)
        with contextlib.ExitStack() as stack:
            inside = []
            for address in ("127.0.0.1", "::1", lease.box_address):
                server = stack.enter_context(listener(netns_fd, address))
                client = stack.enter_context(connect(netns_fd, address, server.getsockname()[1]))
                inside.append((client, stack.enter_context(server.accept()[0])))
            server = stack.enter_context(listener(machine.world, WORLD_ADDRESS))
            outside = stack.enter_context(connect(netns_fd, WORLD_ADDRESS, server.getsockname()[1]))
            mapped = stack.enter_context(
                within(netns_fd, lambda: self._connect6(f"::ffff:{WORLD_ADDRESS}", server.getsockname()[1]))
            )
            assert sockets.abort_outside_connections(netns_fd) == 2
            for sock in (outside, mapped):
                with pytest.raises(ConnectionAbortedError):
                    sock.recv(1)
            for client, accepted in inside:
                client.sendall(b"still here")
                assert accepted.recv(10) == b"still here"
            assert sockets.abort_outside_connections(netns_fd) == 0

    @staticmethod
    def _connect6(address: str, port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET6)
        made.connect((address, port))
        return made

    def test_listening_names_every_socket_that_waits(self, machine: Machine) -> None:
        netns_fd = machine.box()
        set_loopback_up(netns_fd)
        assert sockets.listening(netns_fd) == []
        with (
            listener(netns_fd, "127.0.0.1", 8000) as tcp,
            listener(netns_fd, "::", 8001) as tcp6,
            listener(netns_fd, "0.0.0.0", 8002, socket.SOCK_DGRAM) as udp,
            connect(netns_fd, "127.0.0.1", 8000),
        ):
            found = sockets.listening(netns_fd)
            assert [(one.protocol, one.address, one.port) for one in found] == [
                ("tcp", "127.0.0.1", 8000),
                ("tcp6", "::", 8001),
                ("udp", "0.0.0.0", 8002),
            ]
            assert [one.inode for one in found] == [
                os.fstat(sock.fileno()).st_ino for sock in (tcp, tcp6, udp)
            ]


class TestHost:
    def test_forwarding_is_turned_off_again_by_the_last_home_that_needed_it(self, machine: Machine) -> None:
        first, second = Network("test01"), Network("test02")
        assert forwarding() == "0"
        first.prepare(NO_RESOLVER)
        second.prepare(NO_RESOLVER)
        assert forwarding() == "1"
        first.teardown()
        assert forwarding() == "1"
        second.prepare(NO_RESOLVER)
        second.teardown()
        assert forwarding() == "0"

    def test_forwarding_stays_on_where_it_was_on(self, machine: Machine) -> None:
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        net = Network("test01")
        net.prepare(NO_RESOLVER)
        net.prepare(NO_RESOLVER)
        net.teardown()
        assert forwarding() == "1"
        Path("/proc/sys/net/ipv4/ip_forward").write_text("0")

    def test_forwarding_stays_on_for_somebody_who_came_later(self, machine: Machine, net: Network) -> None:
        nft("-f", "-", script="table ip nat {\n chain P { type nat hook postrouting priority 100; }\n}\n")
        net.teardown()
        assert forwarding() == "1"
        nft("delete", "table", "ip", "nat")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("0")

    def test_another_daemon_can_tear_down_what_a_dead_one_left(self, machine: Machine, net: Network) -> None:
        net.attach("one", machine.box())
        net.attach("two", machine.box())
        Network("test01").teardown()
        Network("test01").teardown()
        assert forwarding() == "0"

    def test_connections_survive_a_new_daemons_preparation(self, machine: Machine, net: Network) -> None:
        netns_fd = machine.box()
        net.attach("one", netns_fd)
        with (
            listener(machine.world, WORLD_ADDRESS) as server,
            connect(netns_fd, WORLD_ADDRESS, server.getsockname()[1]) as client,
        ):
            accepted, _ = server.accept()
            with accepted:
                Network("test01").prepare(NO_RESOLVER)
                client.sendall(b"hello")
                assert accepted.recv(5) == b"hello"


class TestNames:
    @pytest.fixture(autouse=True)
    def no_upstreams(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resolver, "UPSTREAM_RESOLV_CONFS", ())

    def test_servers_that_can_be_reached_are_taken_as_they_are(self, tmp_path: Path) -> None:
        conf = tmp_path / "resolv.conf"
        conf.write_text(
            "# a comment\nsearch lan\nnameserver 127.0.0.53\nnameserver 192.0.2.53\n"
            "nameserver fe80::1%eth0\nnameserver 192.0.2.54\noptions edns0\n"
        )
        found = resolver_config(conf)
        assert found.text == "search lan\noptions edns0\nnameserver 192.0.2.53\nnameserver 192.0.2.54\n"
        assert found.nameservers == ("192.0.2.53", "192.0.2.54")
        assert found.forwarded_to is None

    def test_a_stub_is_replaced_by_the_servers_it_asks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        conf, upstream = tmp_path / "resolv.conf", tmp_path / "upstream"
        conf.write_text("nameserver 127.0.0.53\nsearch lan\n")
        upstream.write_text("nameserver 192.0.2.53\n")
        monkeypatch.setattr(resolver, "UPSTREAM_RESOLV_CONFS", (tmp_path / "absent", upstream))
        assert resolver_config(conf).text == "search lan\nnameserver 192.0.2.53\n"

    @pytest.mark.parametrize("text", ["nameserver 127.0.0.53\n", "nameserver fd00::53\n", None])
    def test_it_is_said_when_names_cannot_be_had(
        self, text: str | None, tmp_path: Path, machine: Machine
    ) -> None:
        conf = tmp_path / "resolv.conf"
        if text is not None:
            conf.write_text(text)
        found = resolver_config(conf)
        assert found.nameservers == ()
        assert found.text == ""

    def test_a_stub_that_listens_on_the_loopback_device_only_is_not_counted_on(
        self, tmp_path: Path, machine: Machine
    ) -> None:
        conf = tmp_path / "resolv.conf"
        conf.write_text("nameserver 127.0.0.53\n")
        with listener(None, "127.0.0.53", 53, socket.SOCK_DGRAM) as stub:
            assert resolver_config(conf).forwarded_to == "127.0.0.53"
            stub.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
            assert resolver_config(conf).nameservers == ()

    def test_questions_are_led_to_a_server_on_the_hosts_loopback(
        self, tmp_path: Path, machine: Machine
    ) -> None:
        conf = tmp_path / "resolv.conf"
        conf.write_text("nameserver 127.0.0.1\n")
        net = Network("test01")
        netns_fd = machine.box()
        with (
            listener(None, "127.0.0.1", 53, socket.SOCK_DGRAM) as udp,
            listener(None, "127.0.0.1", 53) as tcp,
            listener(None, "127.0.0.1") as private,
            listener(netns_fd, "0.0.0.0", kind=socket.SOCK_DGRAM) as client,
        ):
            resolver = resolver_config(conf)
            assert resolver.text == "nameserver 169.254.77.1\n"
            net.prepare(resolver)
            net.attach("one", netns_fd)
            client.sendto(b"who?", (GATEWAY, 53))
            question, sender = udp.recvfrom(100)
            assert (question, sender[0]) == (b"who?", "127.0.0.1")
            udp.sendto(b"me", sender)
            assert client.recvfrom(100) == (b"me", (GATEWAY, 53))
            with connect(netns_fd, GATEWAY, 53) as asking:
                answering, _ = tcp.accept()
                with answering:
                    answering.sendall(b"me too")
                    assert asking.recv(100) == b"me too"
            assert refused(netns_fd, GATEWAY, private.getsockname()[1])
        net.teardown()


@pytest.mark.network
def test_software_can_be_installed_from_within_a_box(tmp_path: Path) -> None:
    """On the real host, through its real uplink: names resolve and the distribution's archive answers."""
    if subprocess.run(["apt-get", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("no apt here")
    net = Network("test99")
    netns_fd = new_netns()
    try:
        resolver = resolver_config()
        net.prepare(resolver)
        net.attach("one", netns_fd)
        (tmp_path / "lists" / "partial").mkdir(parents=True)
        os.chmod(tmp_path, 0o755)
        done = subprocess.run(
            [
                *("nsenter", f"--net=/proc/{os.getpid()}/fd/{netns_fd}"),
                *("apt-get", "update", "--error-on=any", "-o", f"Dir::State::Lists={tmp_path / 'lists'}"),
                *("-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert list((tmp_path / "lists").glob("*Release"))
    finally:
        os.close(netns_fd)
        net.teardown()
    nothing_is_left()
