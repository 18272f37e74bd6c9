"""waypointd: the one process that owns the sessions of a home while it runs.

Started by the first client that finds none, like tmux's server; may die at any time. It keeps no truth in
memory: boxes live on under their keepers, everything else is in the pool and the database, and the next
daemon takes over. Here it starts, claims the socket of its home and leaves the client that started it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from typing import IO

import msgspec

from waypoint.box.box import allow_many_files
from waypoint.core.adoption import BOOT_FILE
from waypoint.daemon.app import App, this_machine
from waypoint.daemon.server import Server
from waypoint.errors import DaemonError, InternalError, NotRoot, WaypointError, of_the_machine
from waypoint.home import Home, Settings, locate
from waypoint.kernel import faults
from waypoint.kernel.heap import use_one_heap
from waypoint.machine import access

log = logging.getLogger("waypoint")

_READY = "ready"
_CLAIM_SECONDS = 60
_HAND_OVER_SECONDS = 0.0005
"""After this time a thread that computes lets another one run. A verb waits dozens of times: for a keeper,
for CRIU, for the disk. After each wait it would stand behind a thread that writes a card, or a long answer
for another client: for 5 ms, if Python decides."""


def main() -> int:
    """Starts a daemon and returns when it serves; the daemon itself goes on in the background."""
    if os.geteuid() != 0:
        _write_error(sys.stdout, NotRoot("Waypoint needs root", hint="run it with sudo, or as root"))
        return 1
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return _wait_until_it_serves(reader)
    os.close(reader)
    os.setsid()
    with os.fdopen(writer, "w") as report, contextlib.ExitStack() as failed:
        try:
            home, settings = locate(), Settings.read()
            if settings.faults:
                faults.control(faults.ask(settings.faults))
            listener, _lock = claim(home)
            if listener is None:
                report.write(_READY)
                return 0
            if not (home.run / BOOT_FILE).exists():  # else an earlier daemon still needs it
                failed.callback(_remove_run_folder, home)
            home.log.touch(mode=0o600)
            logging.basicConfig(
                filename=home.log, format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO
            )
            allow_many_files()
            use_one_heap()
            sys.setswitchinterval(_HAND_OVER_SECONDS)
            server = Server(App(home, this_machine(home, settings), settings))
        except WaypointError as error:
            _write_error(report, error)
            return 1
        except Exception as error:
            log.exception("start-up failed")
            known = of_the_machine(error, "start the daemon") if isinstance(error, OSError) else None
            hint = "the daemon's log has it"
            _write_error(report, known or InternalError(f"{type(error).__name__}: {error}", hint=hint))
            return 1
        failed.pop_all()
        listener.listen(128)
        report.write(_READY)
    _detach()
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    log.info("daemon %s serves %s", os.getpid(), home.path)
    server.serve(listener)
    if server.torn_down:
        _remove_run_folder(home)
    log.info("daemon %s ends", os.getpid())
    logging.shutdown()
    os._exit(0)


def _wait_until_it_serves(reader: int) -> int:
    """In the process that was started: the daemon's report, passed on."""
    with os.fdopen(reader) as report:
        text = report.read()
    if text == _READY:
        return 0
    if text:
        sys.stdout.write(text)
    else:
        _write_error(sys.stdout, DaemonError("the daemon died at once"))
    return 1


def claim(home: Home) -> tuple[socket.socket | None, IO[str]]:
    """The socket of this home, for this daemon alone; (None, …) when another daemon serves already."""
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + _CLAIM_SECONDS
    while True:
        home.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = open(home.run / "daemon.lock", "w")  # noqa: SIM115 - held as long as the daemon lives
            os.fchmod(lock.fileno(), 0o600)
        except FileNotFoundError:
            continue  # a daemon that ended has just removed the folder
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name)):
                    break
        except BlockingIOError:
            # Another one starts or serves: as soon as it answers there is nothing left to do.
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(max(0.01, deadline - time.monotonic()))
                probe.connect(str(home.socket))
                return None, lock
            if time.monotonic() > deadline:
                raise DaemonError("another daemon holds the lock and does not answer") from None
            time.sleep(0.01)
    home.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(str(home.socket))
    access.apply(home)
    return listener, lock


_RUN_FILES = ("daemon.sock", "criu.kdat", "daemon.lock", BOOT_FILE)


def _remove_run_folder(home: Home) -> None:
    """Takes away what a daemon makes in the run folder, and the folder, unless a box has something in it.

    Only for the daemon that holds the lock, as its last act. The lock's file goes too: `claim` notices when
    the file that it has locked is no longer the one with that name.
    """
    with contextlib.suppress(OSError):
        if set(os.listdir(home.run)) <= {*_RUN_FILES, "root"}:
            with contextlib.suppress(FileNotFoundError):
                (home.run / "root").rmdir()
            for name in _RUN_FILES:
                (home.run / name).unlink(missing_ok=True)
            home.run.rmdir()


def _detach() -> None:
    """Leaves the terminal and the folder of the client that started the daemon."""
    os.chdir("/")
    nothing = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)


def _write_error(report: IO[str], error: WaypointError) -> None:
    report.write(msgspec.json.encode({"error": error.to_wire()}).decode() + "\n")


if __name__ == "__main__":
    sys.exit(main())
