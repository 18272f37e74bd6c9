"""Space, imported bases, the daemon itself."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from waypoint import __version__
from waypoint.api import machine as api
from waypoint.api import wire
from waypoint.api.request import Nothing
from waypoint.bases import dockerfile
from waypoint.bases import store as bases
from waypoint.core.dockerfiles import Build
from waypoint.core.gate import Asker
from waypoint.daemon.connection import Answered, Connection
from waypoint.daemon.verbs.points import find_point
from waypoint.errors import InternalError, UsageError, WaypointError, of_the_machine
from waypoint.history.redaction import Redactor
from waypoint.history.retention import RetentionPolicy, parse_duration
from waypoint.home import Home
from waypoint.kernel import faults
from waypoint.kernel.pool.holders import pool_holders
from waypoint.kernel.pool.lifecycle import close_pool
from waypoint.model import (
    Approval,
    Base,
    Checked,
    DiskUse,
    Forgotten,
    ImageConfig,
    Pruned,
    Recovered,
    from_plain,
)
from waypoint.store.database import iso

if TYPE_CHECKING:
    from waypoint.daemon.app import App

log = logging.getLogger("waypoint")

_POOL_SECONDS = 10


# ---- space ---------------------------------------------------------------------------------------


def forget(app: App, _: Connection, request: api.Forget) -> Forgotten:
    if request.refs:
        if request.policy not in (None, api.Retention()):
            raise UsageError("either points or a policy", hint="leave the one or the other out")
        points = [find_point(app, request.session, ref) for ref in request.refs]
        return app.space.forget_points(points, force=request.force, dry_run=request.dry_run)
    policy = _retention(request.policy or api.Retention())
    policy.check()
    row = None if request.all else app.registry.find(request.session)
    return app.space.forget(row, policy, dry_run=request.dry_run, only=request.only)


def _retention(policy: api.Retention) -> RetentionPolicy:
    age = policy.older_than
    rules = msgspec.to_builtins(policy)
    rules["older_than"] = parse_duration(age) if isinstance(age, str) else age
    return from_plain(rules, RetentionPolicy)


def prune(app: App, _: Connection, request: api.Prune) -> Pruned:
    return app.space.prune(automatic=request.auto, dry_run=request.dry_run)


def du(app: App, _: Connection, request: api.Du) -> DiskUse:
    return app.space.du(app.registry.find(request.session) if request.session else None)


# ---- whether all is well -------------------------------------------------------------------------


def check(app: App, connection: Connection, request: api.Check) -> Checked:
    points = None
    if request.refs:
        points = [find_point(app, request.session, ref) for ref in request.refs]
    elif request.session:
        points = app.store.points.all(app.registry.find(request.session).id)
    return app.check.run(
        points, deep=request.deep, progress=lambda text: connection.event({"progress": text})
    )


def recover(app: App, connection: Connection, request: api.Recover) -> Recovered:
    return app.repairs.run(lambda text: connection.event({"progress": text}), foreign=request.foreign)


# ---- bases ---------------------------------------------------------------------------------------


def base_import(app: App, connection: Connection, request: api.BaseImport) -> api.BaseImported:
    def progress(text: str) -> None:
        connection.event({"progress": text})

    file = Path(request.file)
    if not dockerfile.is_one(file):
        if request.context or request.arguments:
            raise UsageError(f"{file.name} is no Dockerfile", hint="only one has a context and arguments")
        return api.BaseImported(base=bases.import_base(app.pool, request.name, file, progress))

    def announce(approval: Approval) -> None:
        if approval.state == "waiting":
            progress(f"waiting for approval {approval.id} of: {approval.command}")

    build = Build(
        name=request.name,
        file=file,
        context=Path(request.context) if request.context else file.parent,
        arguments=request.arguments,
        asker=Asker(request.actor, connection.socket.fileno(), announce),
        progress=progress,
        builder=request.builder,
        gone=connection.is_gone,
    )
    return api.BaseImported(base=app.dockerfiles.build(build))


def base_ls(app: App, _: Connection, __: api.BaseLs) -> api.Bases:
    return api.Bases(bases=tuple(map(_without_secrets, bases.list_bases(app.pool))))


def base_info(app: App, _: Connection, request: api.BaseInfo) -> api.OneBase:
    base = bases.read_base(app.pool, request.name)
    return api.OneBase(base=_without_secrets(base), sessions=_users(app, request.name))


def _users(app: App, name: str) -> tuple[str, ...]:
    return tuple(row.name for row in app.store.sessions.all() if row.options.base == name)


def _without_secrets(base: Base) -> Base:
    image, _ = Redactor().redact_json(msgspec.to_builtins(base.image))
    return msgspec.structs.replace(base, image=from_plain(image, ImageConfig))


def base_rm(app: App, _: Connection, request: api.BaseRm) -> Nothing:
    users = _users(app, request.name)
    app.remains.delete(bases.remove_base(app.pool, request.name, used_by=users))
    return Nothing()


# ---- the daemon ----------------------------------------------------------------------------------


def ping(app: App, _: Connection, __: api.Ping) -> api.Pong:
    return api.Pong(version=__version__, api=wire.API, pid=os.getpid(), started_at=iso(app.started_at))


def daemon_status(app: App, _: Connection, __: api.DaemonStatus) -> api.DaemonStatusResult:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    use = app.pool.usage()
    return api.DaemonStatusResult(
        pid=os.getpid(),
        version=__version__,
        started_at=iso(app.started_at),
        sessions=len(app.store.sessions.all()),
        home=str(app.home.path),
        pool=api.PoolStatus(
            kind=app.pool.kind,
            total_bytes=use.total_bytes,
            used_bytes=use.used_bytes,
            free_bytes=use.free_bytes,
        ),
        warnings=tuple(app.space.warnings(telling=False)),
        spares=tuple(app.spares.held()),
        rss_bytes=pages * os.sysconf("SC_PAGESIZE"),
    )


def daemon_stop(app: App, connection: Connection, request: api.DaemonStop) -> Answered:
    """Ends the daemon, also when a step fails: it takes no requests any more, and the next one waits."""
    assert app.server
    app.server.close(keep=connection)
    try:
        closed = _tear_down(app, sessions=request.sessions)
    except (OSError, WaypointError) as error:
        log.exception("the daemon ends, and not all was done before")
        known = of_the_machine(error, "end everything") if isinstance(error, OSError) else error
        connection.error(known or InternalError(f"{type(error).__name__}: {error}"))
    else:
        connection.result(api.DaemonStopped(pid=os.getpid(), pool_closed=closed))
    app.server.stopping.set()
    return Answered()


def _tear_down(app: App, *, sessions: bool) -> bool:
    """Whether the pool is closed."""
    assert app.server
    if sessions:
        app.sessions.stop_all()
        faults.reach("teardown.stopped")
    app.close()
    if not sessions:
        return False
    faults.reach("teardown.quiet")
    app.network.teardown()
    faults.reach("teardown.network")
    app.durability.reach()  # without its run folder the next daemon cannot tell this end from a power cut
    faults.reach("teardown.durable")
    app.store.close()
    closed = _close_pool(app.home)
    faults.reach("teardown.closed")
    app.server.torn_down = True
    return closed


def _close_pool(home: Home) -> bool:
    """Closes the pool. The kernel lets go of the mounts of an ended box in its own time."""
    deadline = time.monotonic() + _POOL_SECONDS
    while not (closed := close_pool(home.path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if not closed:
        holders = ", ".join(map(str, pool_holders(home.path))) or "nothing that is known"
        log.warning("the pool is still in use after %d s, by %s", _POOL_SECONDS, holders)
    return closed
