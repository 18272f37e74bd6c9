"""A hostile box, an honest one and the host side by side: what the honest one notices."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time

from tests.person import Person
from tests.redteam.attacks import Scene, attack, hostile

import waypoint

SECONDS = float(os.environ.get("WAYPOINT_REDTEAM_SECONDS", "60"))
"""How long the boxes stand side by side: a minute, ten for the record."""
_TIMES = 10
_MOST = 2.0

# It does everything at once: output that rewrites the screen, forks, memory, files, packets that go nowhere.
EVERYTHING = r"""
import os, socket, time
os.write(1, b"ready\n")
terminal = os.open("/dev/pts/0", os.O_WRONLY | os.O_NOCTTY)
output = b"\x1b[2J\x1b#8\x1b[?1049h\x1b[?1049l" * 256
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ended = []
def forks():
    while True:
        try:
            pid = os.fork()
            if not pid: os._exit(0)
            os.waitpid(pid, 0)
        except OSError: time.sleep(0.01)
def memory():
    while True:
        block = bytearray(64 << 20)
        del block
def files():
    while True:
        with open("/root/filler", "wb") as file:
            for _ in range(32): file.write(os.urandom(1 << 20))
        time.sleep(0.1)
def packets():
    port = 0
    while True:
        port += 1
        try: datagrams.sendto(b"x", ("127.0.0.1", 1 + port % 65000))
        except OSError: pass
        if not port % 50: time.sleep(0.01)
for act in (forks, memory, files, packets):
    if not os.fork():
        os.nice(10)
        act()
while True: os.write(terminal, output)
"""

COMPUTES = r"""
import os
os.write(1, b"ready\n")
for _ in range(4):
    if not os.fork():
        os.nice(10)
        break
while True: pass
"""
"""As many processes as that one has, of the same niceness."""


def _milliseconds(times: int, verb: str, session: waypoint.Session) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        session.run("true").check() if verb == "run" else session.screen()
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


def _typed_milliseconds(times: int, person: Person) -> float:
    """From a key to its echo, in a terminal that is attached."""
    taken = []
    person.sees(lambda shown: shown.rstrip().endswith("~#"))  # the prompt is there: readline echoes
    for number in range(times):
        began = time.perf_counter()
        person.type(b"y")
        while "y" * (number + 1) not in person.look(0.0005):
            assert time.perf_counter() - began < 30, "a key is not echoed"
        taken.append((time.perf_counter() - began) * 1000)
    person.type(b"\x15")
    person.sees(lambda shown: "yy" not in shown)
    return statistics.median(taken)


def _host_milliseconds(times: int = 200) -> float:
    """A fork on the host, which needs what boxes can exhaust: processes, memory, the scheduler."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


@attack("a hostile box, an honest one and the host side by side", "An honest session keeps its latency")
def side_by_side(scene: Scene) -> str:
    """Compared with the same honest session beside a box that only computes: the scheduler shares the
    processors, and that is all that the hostile one may take."""
    honest = scene.session("honest")
    person = Person([sys.executable, "-P", "-m", "waypoint", "shell", "honest"])
    person.sees("C-]")
    person.type(b"\n")
    person.look(5.0)  # the banner goes by itself
    busy = scene.session("busy")
    hostile(busy, COMPUTES)
    alone = {verb: _milliseconds(_TIMES, verb, honest) for verb in ("run", "screen")}
    alone["typed"] = _typed_milliseconds(_TIMES, person)
    host_alone = _host_milliseconds()
    waypoint.Client().call("rm", {"sessions": ["busy"]})
    bad = scene.limited("hostile")
    hostile(bad, EVERYTHING)
    watched = threading.Event()

    def checkpoints() -> None:
        """Of the hostile one, all the time: what its files and processes cost is its own."""
        while not watched.is_set():
            bad.checkpoint("under way")
            watched.wait(5)

    keeper = threading.Thread(target=checkpoints)
    keeper.start()
    seen: dict[str, list[float]] = {"run": [], "screen": [], "typed": [], "host": []}
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for verb in ("run", "screen"):
                seen[verb].append(_milliseconds(_TIMES, verb, honest))
            seen["typed"].append(_typed_milliseconds(_TIMES, person))
            seen["host"].append(_host_milliseconds())
    finally:
        watched.set()
        keeper.join()
        person.close()
    ratios = {verb: statistics.median(seen[verb]) / alone[verb] for verb in ("run", "screen", "typed")}
    ratios["host"] = statistics.median(seen["host"]) / host_alone
    told = ", ".join(f"{verb} {ratio:.1f}×" for verb, ratio in ratios.items())
    told += f" (alone: {', '.join(f'{verb} {value:.1f} ms' for verb, value in alone.items())})"
    assert all(ratio < _MOST for ratio in ratios.values()), f"{told} of its own latency"
    return f"{told} of its own latency in {SECONDS:.0f} s"
