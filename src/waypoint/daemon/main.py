"""waypointd: the one process that owns the sessions of a home while it runs.

Started by the first client that finds none, like tmux's server; may die at any time. It keeps no truth in
memory: boxes live on under their keepers, everything else is in the pool and the database, and the next
daemon takes over. A thread serves each connection; verbs are plain functions of their arguments, found by
name.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import logging
import os
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from waypoint import __version__
from waypoint.api import wire
from waypoint.api.hints import Do, Hint
from waypoint.box.box import allow_many_files
from waypoint.core.capture import Wish
from waypoint.core.journal import packed_state
from waypoint.core.live import Live
from waypoint.core.trials import check_trial
from waypoint.daemon.app import App, this_machine
from waypoint.daemon.service import VERBS, Answered, Connection, actor_of, verb
from waypoint.daemon.verbs import agent, effects, files, history  # noqa: F401 - their verbs answer too
from waypoint.daemon.verbs.effects import asker_of
from waypoint.errors import (
    DaemonError,
    NotRoot,
    UsageError,
    VersionMismatch,
    WaypointError,
)
from waypoint.history.retention import RetentionPolicy, parse_duration
from waypoint.home import Home, locate
from waypoint.kernel.pool.lifecycle import close_pool
from waypoint.model import BoxOptions, Checkpoint, Size
from waypoint.policy.rules import check as check_policy
from waypoint.store.database import iso
from waypoint.terminal.recording import ProgramOutput
from waypoint.terminal.terminal import Watcher

log = logging.getLogger("waypoint")

_WATCHER_LIMIT_BYTES = 4 << 20
FOREGROUND_VERBS = frozenset(("new", "exec", "checkpoint", "restore", "undo", "redo", "fork", "park"))
"""Background work is deferred while one of these runs."""


class Daemon:
    """The socket, and what is behind it."""

    def __init__(self, app: App) -> None:
        self.app, self.home = app, app.home
        app.server = self
        self.stopping = threading.Event()
        self._closing = False
        self._connections: set[Connection] = set()
        self._connections_lock = threading.Lock()

    def serve(self, listener: socket.socket) -> None:
        """Until somebody says stop."""
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        self.stopping.wait()

    def _accept(self, listener: socket.socket) -> None:
        while not self.stopping.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_client, args=(sock,), daemon=True).start()

    def _serve_client(self, sock: socket.socket) -> None:
        with contextlib.closing(sock):
            connection = Connection(sock)
            with self._connections_lock:
                self._connections.add(connection)
            try:
                with contextlib.suppress(wire.Closed):
                    wire.send(sock, {"api": wire.API, "version": __version__})
                    self._serve_requests(connection)
            finally:
                connection.idle.set()
                with self._connections_lock:
                    self._connections.discard(connection)

    def _serve_requests(self, connection: Connection) -> None:
        while True:
            _, body = wire.receive(connection.socket)
            if self._closing:
                # Not begun, so whoever asked may safely ask the next daemon.
                wire.send(connection.socket, {"again": True})
                return
            connection.idle.clear()
            if self._answer(connection, body):
                return
            connection.idle.set()

    def close(self, asking: Connection | None = None) -> None:
        """Takes no more requests. Who is being served now is not waited for; who has just asked is told to
        ask again; who asks from now on is refused by the kernel, and knows that nothing was begun."""
        self.app.dedupe.close()
        self.home.socket.unlink(
            missing_ok=True
        )  # whoever comes now starts another daemon, which waits for us
        self._closing = True
        with self._connections_lock:
            others = [one for one in self._connections if one is not asking]
        for one in others:
            with contextlib.suppress(OSError):
                one.socket.shutdown(socket.SHUT_RD)
        for one in others:
            one.idle.wait(0.2)

    def _answer(self, connection: Connection, body: bytes) -> bool:
        """One request. True when the connection has served its purpose."""
        try:
            try:
                request = wire.decode_envelope(body)
            except msgspec.DecodeError as error:
                raise UsageError(f"that is no request: {error}") from error
            if request.api != wire.API:
                raise VersionMismatch(
                    f"the daemon speaks version {wire.API} of the API, the client {request.api}",
                    hint=Hint(Do("daemon_stop"), " ends the old daemon; sessions live on"),
                )
            function = VERBS.get(request.verb)
            if function is None:
                raise UsageError(f"there is no verb {request.verb!r}")
            waiting = (
                self.app.background.foreground()
                if request.verb in FOREGROUND_VERBS
                else contextlib.nullcontext()
            )
            with waiting:
                result = function(self.app, connection, msgspec.json.decode(request.args))
                if isinstance(result, Answered):
                    return True
                connection.result(result)
        except wire.Closed:
            raise
        except WaypointError as error:
            self._refuse(connection, error)
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            log.exception("bad arguments")
            self._refuse(connection, UsageError(f"bad arguments: {error!r}"))
        except Exception as error:
            log.exception("verb failed")
            self._refuse(
                connection,
                DaemonError(f"{type(error).__name__}: {error}", hint=f"the log is {self.home.log}"),
            )
        return False

    def _refuse(self, connection: Connection, error: WaypointError) -> None:
        with connection.lock:
            wire.send(connection.socket, {"error": error.to_wire()})


# ---- verbs ---------------------------------------------------------------------------------------


@verb
def ping(app: App, _: Connection, __: dict[str, Any]) -> Any:
    return {"version": __version__, "api": wire.API, "pid": os.getpid(), "started_at": iso(app.started_at)}


def _size(args: dict[str, Any]) -> Size:
    found = args.get("size") or {}
    rows, columns = int(found.get("rows") or 24), int(found.get("columns") or 80)
    if not (1 <= rows <= 1000 and 1 <= columns <= 1000):
        raise UsageError(f"a terminal of {rows} by {columns} cannot be")
    return Size(rows=rows, columns=columns)


@verb
def new(app: App, _: Connection, args: dict[str, Any]) -> Any:
    options = msgspec.convert(args.get("options") or {}, BoxOptions)
    own = args.get("policy")
    if own is not None:
        check_policy(own)  # before anything is made
        if args.get("join") and args.get("name") and app.store.sessions.find(args["name"]):
            own = None  # one that is there keeps the rules it has
    found = app.sessions.new(args.get("name"), options, _size(args), join=bool(args.get("join")))
    if own is not None:
        app.store.sessions.set_policy(found.id, own)
    if args.get("auto"):
        app.store.sessions.set_auto(found.id, auto=True)
        found = app.registry.describe(app.registry.find(found.id))
    return {"session": found}


@verb
def ls(app: App, _: Connection, __: dict[str, Any]) -> Any:
    return {"sessions": app.registry.describe_all()}


@verb
def session(app: App, _: Connection, args: dict[str, Any]) -> Any:
    return {"session": app.registry.describe(app.registry.find(args.get("session")))}


@verb
def exec_(app: App, connection: Connection, args: dict[str, Any]) -> Any:
    row = app.registry.find(args.get("session"))
    stdin = base64.b64decode(args["stdin"]) if args.get("stdin") is not None else None
    timeout = args.get("timeout")
    if timeout is not None and not timeout > 0:
        raise UsageError("a timeout must be more than 0 seconds")

    def run(on_output: Callable[[bytes], None] | None = None) -> Any:
        with app.gate.passing(row, args["command"], asker_of(connection, args), stdin=stdin) as passed:
            result = app.commands.run(
                row,
                args["command"],
                timeout=timeout,
                stdin=stdin,
                on_terminal=bool(args.get("on_terminal")),
                limit=args.get("limit"),
                on_output=on_output,
                actor=actor_of(args),
            )
            passed.ended(result.exit_code, timed_out=result.timed_out)
        if passed.warnings:
            result = msgspec.structs.replace(result, warnings=passed.warnings)
        # Before the answer: the next command must not be part of the point after this one.
        app.auto.after_command(row, args["command"])
        return result

    if not args.get("stream"):
        return run()
    pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    forwarder = threading.Thread(target=_forward, args=(connection, pieces), daemon=True)
    forwarder.start()
    try:
        return run(pieces.put)
    finally:
        pieces.put(None)
        forwarder.join()


@verb
def interrupt(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Ends the command that an `exec` waits for, as its timeout would; `command`: that one and no other."""
    live = app.registry.live(app.registry.find(args.get("session")))
    return {"interrupted": live.terminal.interrupt(args.get("command"))}


def _forward(connection: Connection, pieces: queue.SimpleQueue[bytes | None]) -> None:
    """Output to the client while the command runs; the terminal never waits for a slow client."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")()
    binary = False
    with contextlib.suppress(wire.Closed):
        while (piece := pieces.get()) is not None:
            if not binary:
                held, _ = decoder.getstate()
                try:
                    if text := decoder.decode(piece):
                        connection.event({"output": text})
                    continue
                except UnicodeDecodeError:
                    binary, piece = True, held + piece
            connection.event(
                {"output": piece.decode(errors="replace"), "base64": base64.b64encode(piece).decode()}
            )
        return
    while pieces.get() is not None:
        pass


@verb
def spawn(app: App, connection: Connection, args: dict[str, Any]) -> Any:
    row = app.registry.find(args.get("session"))
    with app.gate.passing(row, args["argv"], asker_of(connection, args)) as passed:
        program, pipes = app.commands.spawn(
            row, args["argv"], args.get("cwd"), args.get("env") or {}, shell_env=bool(args.get("shell_env"))
        )
        connection.result({"pid": program.pid, "warnings": passed.warnings})
        printed = ProgramOutput(args["argv"], args.get("cwd"))
        stdin, *outputs = pipes
        threading.Thread(target=_feed_program, args=(connection, stdin), daemon=True).start()
        ended = os.eventfd(0, os.EFD_CLOEXEC)
        caught_up = (threading.Event(), threading.Event())
        for fd, mark, done in zip(outputs, (b"1", b"2"), caught_up, strict=True):
            hear = (connection, fd, mark, ended, done, printed)
            threading.Thread(target=_hear_program, args=hear, daemon=True).start()
        program.ended.wait()
        passed.ended(program.exit_code)
    os.eventfd_write(ended, 1)
    for done in caught_up:
        done.wait()
    os.close(ended)
    event = printed.record(program.exit_code)
    with contextlib.suppress(WaypointError):
        live = app.registry.live(row)
        live.stream.add(event.kind, event.body, actor=actor_of(args), data=event.data)
    with contextlib.suppress(wire.Closed, OSError):
        if program.exit_code is not None:
            connection.result({"exit_code": program.exit_code})
        # The thread that feeds the program reads from here: a mere close would not be noticed on either side.
        connection.socket.shutdown(socket.SHUT_RDWR)
    return Answered()


def _feed_program(connection: Connection, stdin: int) -> None:
    with os.fdopen(stdin, "wb", buffering=0) as pipe, contextlib.suppress(wire.Closed, OSError):
        while True:
            kind, body = wire.receive(connection.socket)
            if kind != wire.DATA or not body:
                return
            pipe.write(body)


def _hear_program(
    connection: Connection,
    fd: int,
    mark: bytes,
    ended: int,
    caught_up: threading.Event,
    printed: ProgramOutput,
) -> None:
    """`caught_up` is set once the program has ended and all it wrote is on its way. A client that went away
    does not stop it, nor does its end stop children of its that hold the pipe: it is read on, and nobody
    hears it."""
    heard = True
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    ready.register(ended, select.POLLIN)
    with os.fdopen(fd, "rb", buffering=0) as pipe:
        while True:
            if all(which == ended for which, _ in ready.poll()):
                heard = False
                ready.unregister(ended)
                caught_up.set()
            elif not (data := pipe.read(1 << 16)):
                break
            elif heard:
                printed.add(data)
                try:
                    connection.data(mark + data)
                except wire.Closed:
                    heard = False
    caught_up.set()


@verb
def checkpoint(app: App, _: Connection, args: dict[str, Any]) -> Any:
    row = app.registry.find(args.get("session"))
    if args.get("verify") is not None:
        check_trial(args["verify"], files_only=bool(args.get("files_only")))
        app.gate.check_trial(row, args["verify"])
    wish = Wish(
        intent=args.get("intent") or "",
        name=args.get("name"),
        files_only=bool(args.get("files_only")),
        actor=actor_of(args),
        state=packed_state(args.get("agent_state"), args.get("agent_version")),
    )
    point = app.capture.checkpoint(row, wish)
    verdict = None
    if args.get("verify"):
        number = app.trials.verify(point, args["verify"])
        verdict = app.trials.wait(point, number) if args.get("wait") else None
    return {
        "checkpoint": app.store.points.find(point.id),
        "verdict": verdict,
        "warnings": app.space.warnings(telling=True),
    }


@verb
def restore(app: App, _: Connection, args: dict[str, Any]) -> Any:
    row = app.registry.find_for(args.get("session"), args.get("ref"))
    ref = args.get("ref")
    if args.get("plan"):
        ref = app.plans.check(row, args["plan"], files_only=bool(args.get("files_only")))
    if not ref:
        raise UsageError("where to?", hint="give a point, or the plan that leads to one")
    return app.restore.to(
        *(row, ref),
        safety=bool(args.get("safety", True)),
        files_only=bool(args.get("files_only")),
        actor=actor_of(args),
    )


@verb
def undo(app: App, _: Connection, args: dict[str, Any]) -> Any:
    return app.restore.undo(app.registry.find(args.get("session")), actor_of(args))


@verb
def fork(app: App, _: Connection, args: dict[str, Any]) -> Any:
    ref = args["ref"]
    row = app.registry.find_for(args.get("session"), ref)
    n = int(args.get("n", 1))
    return {"sessions": app.fork.grow(row, ref, n, args.get("name"), actor_of(args))}


@verb
def park(app: App, _: Connection, args: dict[str, Any]) -> Any:
    found, point = app.sessions.park(app.registry.find(args.get("session")))
    return {"session": found, "checkpoint": point}


@verb
def rm(app: App, _: Connection, args: dict[str, Any]) -> Any:
    rows = [app.registry.find(name) for name in args["sessions"]]
    for row in rows:
        app.sessions.remove(row)
    return {"removed": [row.name for row in rows]}


@verb
def type_(app: App, _: Connection, args: dict[str, Any]) -> Any:
    live = app.registry.live(app.registry.find(args.get("session")))
    live.terminal.write(base64.b64decode(args["data"]))
    return {}


@verb
def screen(app: App, _: Connection, args: dict[str, Any]) -> Any:
    terminal = app.registry.live(app.registry.find(args.get("session"))).terminal
    with terminal.lock:
        shown = terminal.screen
        return {
            "text": shown.text(),
            "rows": shown.rows,
            "columns": shown.columns,
            "cursor": list(shown.cursor),
            "title": shown.title,
        }


@verb
def attach(app: App, connection: Connection, args: dict[str, Any]) -> Any:
    row = app.registry.find(args.get("session"))
    live = app.registry.live(row)
    connection.result({"session": app.registry.describe(row)})
    outgoing = _Outgoing(connection)
    live.terminal.resize(_size({"size": {"rows": args.get("rows"), "columns": args.get("columns")}}))
    live.terminal.watch(outgoing.watcher)
    outgoing.start(lambda: _present(app, row.id))
    try:
        while True:
            kind, body = wire.receive(connection.socket)
            current = _present(app, row.id)
            if kind != wire.DATA or current is None:
                break
            if body[:1] == b"i":
                current.terminal.write(body[1:])
            elif body[:1] == b"d":
                outgoing.stop()
                with current.terminal.lock:
                    farewell = current.terminal.screen.leave()
                connection.data(farewell)
                connection.event({"detached": True})
                break
            elif body[:1] == b"r" and len(body) == 5:
                rows, columns = struct.unpack(">HH", body[1:])
                current.terminal.resize(_size({"size": {"rows": rows, "columns": columns}}))
    finally:
        outgoing.stop()
        current = _present(app, row.id)
        if current:
            current.terminal.unwatch(outgoing.watcher)
    return Answered()


def _present(app: App, session_id: str) -> Live | None:
    """The session as it is now: a restore puts another in its place."""
    with contextlib.suppress(WaypointError):
        return app.registry.live(app.registry.find(session_id))
    return None


class _Outgoing:
    """What an attached client is still to be sent. One that cannot keep up is redrawn, never waited for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ready = threading.Condition()
        self._waiting = bytearray()
        self._stale = False
        self._stopped = False
        self.watcher = Watcher(self._take, self._ended)

    def _take(self, data: bytes) -> None:
        with self._ready:
            if len(self._waiting) + len(data) > _WATCHER_LIMIT_BYTES:
                self._waiting.clear()
                self._stale = True
            else:
                self._waiting += data
            self._ready.notify()

    def _ended(self, why: str) -> None:
        with contextlib.suppress(wire.Closed):
            self._connection.event({"ended": why})
        with contextlib.suppress(OSError):
            self._connection.socket.shutdown(socket.SHUT_RDWR)

    def start(self, present: Callable[[], Live | None]) -> None:
        threading.Thread(target=self._work, args=(present,), daemon=True).start()

    def stop(self) -> None:
        with self._ready:
            self._stopped = True
            self._ready.notify()

    def _work(self, present: Callable[[], Live | None]) -> None:
        with contextlib.suppress(wire.Closed):
            while True:
                with self._ready:
                    while not (self._waiting or self._stale or self._stopped):
                        self._ready.wait()
                    if self._stopped:
                        return
                    data, self._waiting = bytes(self._waiting), bytearray()
                    stale, self._stale = self._stale, False
                if stale and (live := present()):
                    with live.terminal.lock:
                        data = live.terminal.screen.redraw()
                self._connection.data(data)


@verb
def base_import(app: App, connection: Connection, args: dict[str, Any]) -> Any:
    from waypoint.bases import store

    def progress(text: str) -> None:
        connection.event({"progress": text})

    return {"base": store.import_base(app.pool, args["name"], args["file"], progress)}


@verb
def base_ls(app: App, _: Connection, __: dict[str, Any]) -> Any:
    from waypoint.bases import store

    return {"bases": store.list_bases(app.pool)}


@verb
def base_rm(app: App, _: Connection, args: dict[str, Any]) -> Any:
    from waypoint.bases import store

    used = [row.name for row in app.store.sessions.all() if row.options.base == args["name"]]
    store.remove_base(app.pool, args["name"], used_by=used)
    return {}


@verb
def daemon_status(app: App, _: Connection, __: dict[str, Any]) -> Any:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "pid": os.getpid(),
        "version": __version__,
        "started_at": iso(app.started_at),
        "sessions": len(app.store.sessions.all()),
        "home": str(app.home.path),
        "pool": {"kind": app.pool.kind, **msgspec.to_builtins(app.pool.usage())},
        "warnings": app.space.warnings(telling=False),
        "spares": app.spares.held(),
        "rss_bytes": pages * os.sysconf("SC_PAGESIZE"),
    }


def _close_pool(home: Home) -> bool:
    """The mounts of a box that has ended are let go by the kernel in its own time."""
    deadline = time.monotonic() + 10
    while not (closed := close_pool(home.path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return closed


@verb
def daemon_stop(app: App, connection: Connection, args: dict[str, Any]) -> Any:
    assert app.server
    app.server.close(connection)
    closed = False
    if args.get("sessions"):
        app.sessions.stop_all()
    app.close()
    if args.get("sessions"):
        app.network.teardown()
        app.store.close()
        closed = _close_pool(app.home)
    connection.result({"pid": os.getpid(), "pool_closed": closed})
    app.server.stopping.set()
    return Answered()


# ---- room ----------------------------------------------------------------------------------------


def _points(app: App, args: dict[str, Any], given: list[str]) -> list[Checkpoint]:
    """The points that refs mean. `SESSION:REF` says by itself which session it is."""
    registry, name = app.registry, args.get("session")
    return [registry.point(registry.find_for(name, ref), ref) for ref in given]


@verb
def pin(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """Keeps a point whatever a policy says; `off`: no longer."""
    (point,) = _points(app, args, [args["ref"]])
    return {"checkpoint": app.space.pin(point, pinned=not args.get("off"))}


@verb
def forget(app: App, _: Connection, args: dict[str, Any]) -> Any:
    """The points in `refs`, or else what a `policy` does not keep; `only`: nothing but these."""
    dry_run, given = bool(args.get("dry_run")), dict(args.get("policy") or {})
    if args.get("refs"):
        if given:
            raise UsageError("either points or a policy", hint="leave the one or the other out")
        points = _points(app, args, args["refs"])
        return app.space.forget_points(points, force=bool(args.get("force")), dry_run=dry_run)
    if isinstance(given.get("older_than"), str):
        given["older_than"] = parse_duration(given["older_than"])
    policy = msgspec.convert(given, RetentionPolicy)
    policy.check()
    row = None if args.get("all") else app.registry.find(args.get("session"))
    return app.space.forget(row, policy, dry_run=dry_run, only=args.get("only"))


@verb
def prune(app: App, _: Connection, args: dict[str, Any]) -> Any:
    return app.space.prune(automatic=bool(args.get("auto")), dry_run=bool(args.get("dry_run")))


@verb
def du(app: App, _: Connection, args: dict[str, Any]) -> Any:
    return app.space.du(app.registry.find(args["session"]) if args.get("session") else None)


# ---- start ---------------------------------------------------------------------------------------


def _detach() -> None:
    """Away from the client that started us: its terminal, its session, its folder."""
    os.chdir("/")
    nothing = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)


def main() -> int:
    """Starts a daemon and returns when it serves; the daemon itself goes on in the background."""
    home = locate()
    if os.geteuid() != 0:
        return _complain(NotRoot("Waypoint needs root", hint="run it with sudo, or as root"))
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader) as told:
            answer = told.read()
        if answer == "ready":
            return 0
        sys.stdout.write(
            answer or '{"error": {"code": "daemon", "message": "the daemon died at once", "hint": ""}}\n'
        )
        return 1
    os.close(reader)
    os.setsid()
    with os.fdopen(writer, "w") as report:
        try:
            listener, _lock = _claim(home)
            if listener is None:
                report.write("ready")
                return 0
            logging.basicConfig(
                filename=home.log, format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO
            )
            allow_many_files()
            daemon = Daemon(App(home, this_machine(home)))
        except WaypointError as error:
            _write_error(report, error)
            return 1
        except Exception as error:
            logging.getLogger("waypoint").exception("start-up failed")
            _write_error(
                report, DaemonError(f"{type(error).__name__}: {error}", hint=f"the log is {home.log}")
            )
            return 1
        listener.listen(128)
        report.write("ready")
    _detach()
    signal.signal(signal.SIGTERM, lambda *_: _stop(daemon))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    log.info("daemon %s serves %s", os.getpid(), home.path)
    daemon.serve(listener)
    log.info("daemon %s ends", os.getpid())
    logging.shutdown()
    os._exit(0)


def _stop(daemon: Daemon) -> None:
    daemon.close()
    daemon.app.close()
    daemon.stopping.set()


def _claim(home: Home) -> tuple[socket.socket | None, Any]:
    """The socket of this home, ours alone; (None, …) when another daemon was faster."""
    home.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open(home.run / "daemon.lock", "w")  # noqa: SIM115 - held as long as the daemon lives
    deadline = time.monotonic() + 60
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # Another one starts or serves: as soon as it answers there is nothing left to do.
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knock:
                knock.connect(str(home.socket))
                return None, lock
            if time.monotonic() > deadline:
                raise DaemonError("another daemon holds the lock and does not answer") from None
            time.sleep(0.01)
    home.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(str(home.socket))
    home.socket.chmod(0o600)
    return listener, lock


def _write_error(report: Any, error: WaypointError) -> None:
    report.write(msgspec.json.encode({"error": error.to_wire()}).decode() + "\n")


def _complain(error: WaypointError) -> int:
    _write_error(sys.stdout, error)
    return 1


if __name__ == "__main__":
    sys.exit(main())
