"""Does this CRIU really work on this kernel?

`criu check` proves nothing: it passes where every tree with a TCP socket fails. So a small tree that holds a
connection, a pseudo terminal and a thread is saved and restored in real boxes, and must then still work.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from waypoint.box.box import Box, socket_path
from waypoint.box.keeper import Keeper
from waypoint.box.plan import KDAT_IN_BOX, BoxSpec
from waypoint.box.volume import make_volume
from waypoint.engine.dump import Dump
from waypoint.engine.revive import hold
from waypoint.errors import WaypointError
from waypoint.home import Home
from waypoint.kernel import readiness
from waypoint.model import BoxOptions, Size

_SECONDS = 20.0
_PROGRAM = r"""
import os, pty, signal, socket, threading, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
accepted, _ = server.accept()
master, slave = pty.openpty()
ticks = []
def tick():
    while True:
        ticks.append(1)
        time.sleep(0.005)
threading.Thread(target=tick, daemon=True).start()
print("up", flush=True)
input()
before = len(ticks)
client.sendall(b"over the wire")
os.write(slave, b"through the terminal")
time.sleep(0.05)
well = accepted.recv(64) == b"over the wire" and os.read(master, 64) == b"through the terminal"
well = well and len(ticks) > before > 0
print("well" if well else "ill", flush=True)
"""


@contextlib.contextmanager
def temporary_home() -> Iterator[tuple[Home, Path]]:
    """A home, and a folder for volumes of boxes, in memory."""
    folder = Path(tempfile.mkdtemp(prefix="waypoint-probe-", dir="/dev/shm"))
    home = Home(folder / "home")
    try:
        yield home, folder
    finally:
        shutil.rmtree(home.run, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            home.run.parent.rmdir()


def build_box(home: Home, engine: Path, folder: Path, name: str) -> Box:
    volume = folder / name
    volume.mkdir()
    make_volume(volume)
    options = BoxOptions(net="none", confined=False)
    return Box.build(BoxSpec(home, engine, volume, name, options, base=Path("/"), size=Size()))


@contextlib.contextmanager
def _terminal(home: Home, box: Box) -> Iterator[tuple[int, int]]:
    """Both ends of the box's terminal. While this connection serves it, the keeper does not read it."""
    hello = box.hello()
    events = Keeper(socket_path(home, box.id))
    try:
        events.serve()
        yield hello.master, hello.slave
    finally:
        events.close()
        os.close(hello.master)
        os.close(hello.slave)


def _expect(terminal: int, word: str) -> None:
    text = b""
    while word.encode() not in text:
        if not readiness.readable(terminal, _SECONDS):
            raise TimeoutError(
                f"expected {word!r} from the program, got {text.decode(errors='replace')[-300:]!r}"
            )
        text += os.read(terminal, 4096)


def _save_and_revive(home: Home, engine: Path, folder: Path) -> bytes:
    images = folder / "images"
    images.mkdir()
    first = build_box(home, engine, folder, "first")
    try:
        with _terminal(home, first) as (master, slave):
            first.keeper.start_anchor()
            argv = [sys.executable, "-I", "-S", "-c", _PROGRAM]
            shell = first.keeper.start("shell", "/", argv, ["PATH=/usr/bin:/bin"], (slave, slave, slave))
            _expect(master, "up")
            with Dump(first, images, shell=shell) as dump:
                for _ in dump.pauses():
                    pass
            os.write(master, b"\n")
            _expect(master, "well")
        kdat = Path(f"/proc/{first.pid}/root{KDAT_IN_BOX}").read_bytes()
    finally:
        first.kill(home)
    second = build_box(home, engine, folder, "second")
    try:
        with _terminal(home, second) as (master, _):
            hold(second, images).release()
            os.write(master, b"\n")
            _expect(master, "well")
    finally:
        second.kill(home)
    return kdat


def probe(engine: Path) -> str | None:
    """None when the engine in this folder saves and restores here; else the reason."""
    try:
        kernel_data(engine)
    except (OSError, WaypointError, TimeoutError) as error:
        return str(error)
    return None


def kernel_data(engine: Path) -> bytes:
    """What CRIU found out about this kernel, proven by a real dump and restore. Every box gets it as a file:
    without it CRIU would examine the kernel at each start (14 ms). It is taken from a box in which nothing
    but the probe has run."""
    with temporary_home() as (home, folder):
        return _save_and_revive(home, engine, folder)
