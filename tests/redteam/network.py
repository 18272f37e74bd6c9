"""Packets, in a network of the attack's own: a machine and a world that are made for it."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.integration.test_network import HOST_ADDRESS, WORLD_ADDRESS, current_netns, ip, new_netns, within
from tests.integration.test_observed import reply
from tests.redteam.attacks import PYTHON, Scene, attack, hostile, printed
from tests.waiting import until

import waypoint
from waypoint.home import Home
from waypoint.kernel import homes
from waypoint.kernel.pool.lifecycle import close_pool
from waypoint.kernel.syscalls import CLONE_NEWNET, setns, unshare

DNS_FLOOD = r"""
import os, socket, struct, sys
os.write(1, b"ready\n")
server = (sys.argv[1], 53)
number = 0
while True:
    asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asker.setblocking(False)
    for _ in range(64):
        number += 1
        name = b"%08x" % number
        query = struct.pack("!6H", number & 0xFFFF, 0x100, 1, 0, 0, 0) + b"\x08" + name + b"\3com\0\0\1\0\1"
        try: asker.sendto(query, server)
        except OSError: pass
    asker.close()
    if not number % 65536: os.write(1, b"%d asked\n" % number)
"""

ASK = r"""
import socket, struct, sys, time
began = time.perf_counter()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
    asker.settimeout(0.5)
    for _ in range(20):
        query = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\6honest\7example\3com\0\0\1\0\1"
        asker.sendto(query, (sys.argv[1], 53))
        try: asker.recv(4096)
        except TimeoutError: continue
        break
    else: sys.exit("no answer")
print((time.perf_counter() - began) * 1000)
"""


@contextlib.contextmanager
def _world() -> Iterator[int]:
    """Puts the caller into a network namespace of its own, connected to another one: the world."""
    real = current_netns()
    unshare(CLONE_NEWNET)
    world = new_netns()
    try:
        ip("link", "set", "lo", "up")
        ip(*f"link add up0 type veth peer name up1 netns /proc/{os.getpid()}/fd/{world}".split())
        ip("address", "add", f"{HOST_ADDRESS}/24", "dev", "up0")
        ip("link", "set", "up0", "up")
        ip("route", "add", "default", "via", WORLD_ADDRESS)

        def furnish() -> str:
            ip("address", "add", f"{WORLD_ADDRESS}/24", "dev", "up1")
            return ip("link", "set", "up1", "up")

        within(world, furnish)
        yield world
    finally:
        os.close(world)
        setns(real, CLONE_NEWNET)
        os.close(real)


@contextlib.contextmanager
def _home_of_its_own() -> Iterator[waypoint.Client]:
    """A daemon that lives in the network namespace of the caller."""
    with tempfile.TemporaryDirectory(prefix="waypoint-redteam-net-", dir="/var/tmp") as folder:
        client = waypoint.Client(folder)
        try:
            yield client
        finally:
            client.call("daemon_stop", {"sessions": True})
            client.close()
            close_pool(Path(folder))
            homes.forget(Home(Path(folder)))


@contextlib.contextmanager
def _name_server(world: int) -> Iterator[list[int]]:
    """One that answers everything. What it yields counts the questions."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((WORLD_ADDRESS, 53))
        made.settimeout(0.1)
        return made

    asked, ended = [0], threading.Event()
    with within(world, make) as server:

        def serve() -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    question, who = server.recvfrom(4096)
                    asked[0] += 1
                    server.sendto(reply(question, "198.51.100.77"), who)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            ended.set()
            thread.join()


@attack("a DNS flood", "A session without options cannot take the machine from the others")
def dns_flood(_: Scene) -> str:
    """The host hears the answers, to know the names of what is contacted: a box that asks without end costs
    only itself. The other session still asks and is answered, and its latency stays."""
    with _world() as world, _name_server(world) as asked, _home_of_its_own() as client:
        honest = waypoint.session("honest", home=client.home.path)
        honest.write_file("/root/ask.py", ASK.encode())

        def ask() -> float:
            return float(honest.run(f"{PYTHON} /root/ask.py {WORLD_ADDRESS}", timeout=60).check().output)

        def run() -> float:
            began = time.perf_counter()
            honest.run("true").check()
            return (time.perf_counter() - began) * 1000

        busy = waypoint.session("busy", home=client.home.path)
        hostile(busy, "import os\nos.write(1, b'ready\\n')\nwhile True: pass")
        alone = statistics.median(run() for _ in range(20))
        client.call("rm", {"sessions": ["busy"]})
        bad = waypoint.session("hostile", home=client.home.path)
        hostile(bad, DNS_FLOOD, WORLD_ADDRESS)
        until(lambda: b"asked" in printed(bad), 60)
        beside = statistics.median(run() for _ in range(20))
        answered = ask()
        assert asked[0] > 1000, f"only {asked[0]} questions arrived"
        assert beside < 3 * alone, f"`true` takes {beside:.0f} ms, {alone:.0f} beside one that only computes"
        bad.restore(bad.checkpoint("flooding"))
        return (
            f"{asked[0]:,} questions; an honest one is answered in {answered:.0f} ms, `true` in"
            f" {beside:.0f} ms ({alone:.0f} beside a session that computes)"
        )
