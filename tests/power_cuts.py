"""Power cuts: `python -m tests.power_cuts CUTS SEED FOLDER`, as root, in a mount namespace of its own.

The home lies on a disk that forgets what was not synced (tests/lossy_disk.py). While points are taken and
forgotten, the disk is asked several times what it would hold if the power failed now. Then each of these
disks is mounted and a daemon is started on it. Every point that was acknowledged as durable has to be there
and hold what it held, no forgotten one may be back, and what is offered beside them has to be whole.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.lossy_disk import LossyDisk

import waypoint
from waypoint.home import Home

DISK_BYTES = 2 << 30
MOST_EXAMINED = 12


@dataclass
class Acknowledged:
    """What a client was told."""

    durable: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    going: set[str] = field(default_factory=set)
    """Points that the client has asked to forget, whether that was answered or not."""


@contextlib.contextmanager
def mounted(disk: Path, folder: Path) -> Iterator[waypoint.Client]:
    """A home on a disk, with a client. At the end nothing runs, and the disk is unmounted."""
    subprocess.run(["mount", "-o", "loop", str(disk), str(folder)], check=True)
    client = waypoint.Client(folder)
    try:
        yield client
    finally:
        daemon = client.daemon.status().pid
        client.daemon.stop(sessions=True)
        client.close()
        while Path("/proc", str(daemon)).exists():
            time.sleep(0.01)
        shutil.copy(folder / "daemon.log", folder.parent)
        subprocess.run(["umount", str(folder)], check=True)
        shutil.rmtree(Home(folder).run, ignore_errors=True)  # as a reboot does


def work(client: waypoint.Client, chance: random.Random, told: Acknowledged, ended: threading.Event) -> None:
    """Takes points and forgets them until `ended`."""
    session = client.session("work")
    number = 0
    while not ended.is_set():
        number += 1
        session.run(f"n={number}; echo {number} > /number").check()
        durable = chance.random() < 0.4
        point = session.checkpoint(str(number), durable=durable, files_only=chance.random() < 0.2)
        assert point.info.durable >= durable
        if durable:
            told.durable.append(point.id)
        if number % 4 == 0:
            victim = chance.choice([old for old in session.log() if old.id != point.id])
            told.going.add(victim.id)
            with contextlib.suppress(waypoint.UsageError):  # a session stands on it, or undo goes there
                client.call("forget", {"session": "work", "refs": [victim.id], "force": True})
                told.forgotten.append(victim.id)


def examine(client: waypoint.Client, durable: set[str], forgotten: set[str], chance: random.Random) -> int:
    """Restores what a home offers after a cut, a dozen points at most. Returns how many these were."""
    points = [point for session in client.sessions() for point in session.log()]
    ids = {point.id for point in points}
    assert durable <= ids, "points that were said to be durable are lost"
    assert not forgotten & ids, "forgotten points are back"
    points.sort(key=lambda point: (point.id not in durable, chance.random()))
    del points[MOST_EXAMINED:]
    for point in points:
        session = client.session(point.info.session)
        session.restore(point, safety=False)
        number = point.info.intent
        in_memory = "" if point.info.files_only else number
        output = session.run("echo $n,$(cat /number)").output.strip()
        assert output == f"{in_memory},{number}", f"{point.info.label} does not hold what it held"
    return len(points)


def run(cuts: int, seed: int, folder: Path) -> None:
    chance = random.Random(seed)
    place = folder / "home"
    place.mkdir()
    disks: list[tuple[Path, set[str], set[str]]] = []
    with LossyDisk(folder / "lossy", DISK_BYTES) as disk, ThreadPoolExecutor(1) as threads:
        subprocess.run(["mkfs.ext4", "-q", str(disk.path)], check=True)
        with mounted(disk.path, place) as client:
            client.new("work")
            told, ended = Acknowledged(), threading.Event()
            worker = threads.submit(work, client, random.Random(seed), told, ended)
            try:
                for number in range(cuts):
                    time.sleep(chance.uniform(0.1, 1.0))
                    durable, forgotten = set(told.durable), set(told.forgotten)
                    disk.cut(image := folder / f"cut-{number}.img", seed + number)
                    disks.append((image, durable - told.going, forgotten))
            finally:
                ended.set()
                worker.result()
    points = durable_points = 0
    for image, durable, forgotten in disks:
        with mounted(image, place) as client:
            points += examine(client, durable, forgotten, chance)
        durable_points += len(durable)
        image.unlink()
    print(f"{len(disks)} cuts, {points} points offered and restored; {durable_points} had to be there")
    assert durable_points, "no point was acknowledged as durable before a cut"


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
