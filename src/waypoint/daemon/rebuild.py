"""`python -m waypoint.daemon.rebuild`: rebuilds the database of a home while no daemon serves it.

`waypoint recover` runs it when the daemon cannot start because its database is damaged. The result, or an
error, is one line of JSON.
"""

from __future__ import annotations

import logging
import os
import sys

import msgspec

from waypoint.box.box import keepers
from waypoint.core.rebuild import Rebuild, refuse_newer
from waypoint.daemon.main import claim
from waypoint.errors import DaemonError, InternalError, NotRoot, WaypointError
from waypoint.home import Home, Settings, locate
from waypoint.kernel import faults
from waypoint.kernel.pool.lifecycle import open_pool
from waypoint.model import Recovered


def main() -> int:
    try:
        if os.geteuid() != 0:
            raise NotRoot("Waypoint needs root", hint="run it with sudo, or as root")
        home, settings = locate(), Settings.read()
        if settings.faults:
            faults.control(faults.ask(settings.faults))
        home.log.touch(mode=0o600)
        logging.basicConfig(
            filename=home.log, format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO
        )
        sys.stdout.write(msgspec.json.encode(rebuild(home)).decode() + "\n")
    except WaypointError as error:
        sys.stdout.write(msgspec.json.encode({"error": error.to_wire()}).decode() + "\n")
        return 1
    except Exception as error:
        logging.getLogger("waypoint").exception("the database could not be rebuilt")
        wrapped = InternalError(f"{type(error).__name__}: {error}", hint="the daemon's log has it")
        sys.stdout.write(msgspec.json.encode({"error": wrapped.to_wire()}).decode() + "\n")
        return 1
    return 0


def rebuild(home: Home) -> Recovered:
    """The home is claimed meanwhile as by a daemon: a client that comes now starts one, which waits."""
    listener, lock = claim(home)
    if listener is None:
        raise DaemonError("a daemon runs", hint="stop it first; sessions live on")
    try:
        refuse_newer(home)
        pool = open_pool(home.path, size_bytes=Settings.read().pool_size_bytes)
        return Rebuild(home, pool, keepers(home)).run()
    finally:
        home.socket.unlink(missing_ok=True)
        listener.close()
        lock.close()


if __name__ == "__main__":
    sys.exit(main())
