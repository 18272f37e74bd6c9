"""The socket of the daemon: connections, and which function answers a request.

A thread serves each connection. A request is decoded here, once, into its struct (api/requests.py).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from typing import Any

from waypoint import __version__
from waypoint.api import requests, wire
from waypoint.api.hints import Do, Hint
from waypoint.api.request import Request
from waypoint.daemon.app import App
from waypoint.daemon.connection import Answered, Connection
from waypoint.daemon.verbs import handler_of
from waypoint.errors import InternalError, NotRoot, UsageError, VersionMismatch, WaypointError, of_the_machine
from waypoint.kernel import locks
from waypoint.machine import access
from waypoint.model import MALFORMED

log = logging.getLogger("waypoint")

FOREGROUND_VERBS = frozenset(
    ("new", "exec", "checkpoint", "restore", "undo", "redo", "fork", "park", "forget")
)
"""Background work is deferred while one of these runs."""
WRITING_VERBS = frozenset(
    [
        "new",
        "park",
        "stop",
        "rm",
        "checkpoint",
        "restore",
        "undo",
        "redo",
        "fork",
        "verify",
        "bisect",
        "compare",
        "replay",
        "restore_files",
        "copy_in",
        "resume",
        "forget",
        "prune",
        "recover",
        "base_import",
        "base_rm",
    ]
)
"""Verbs that need a pool that takes writes. A pool that has stopped is opened again before them."""
_RETRY_SECONDS = 0.1
_CLOSE_SECONDS = 0.2


class Server:
    """Serves the clients of one home."""

    def __init__(self, app: App) -> None:
        self.app = app
        app.server = self
        self.stopping = threading.Event()
        self.torn_down = False
        """Whether nothing of this home is left that needs its run folder."""
        self._closing = False
        self._connections: set[Connection] = set()
        self._connections_lock = locks.lock("connections")

    def serve(self, listener: socket.socket) -> None:
        """Returns when the daemon is to end."""
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        self.stopping.wait()

    def _accept(self, listener: socket.socket) -> None:
        while not self.stopping.is_set():
            try:
                sock, _ = listener.accept()
            except OSError as error:
                # Too many open files, or no memory: it passes. The client waits in the kernel's queue.
                log.warning("a client could not be accepted: %s", error)
                self.stopping.wait(_RETRY_SECONDS)
            else:
                threading.Thread(target=self._serve_client, args=(sock,), daemon=True).start()

    def _serve_client(self, sock: socket.socket) -> None:
        with contextlib.closing(sock):
            connection = Connection(sock)
            with self._connections_lock:
                self._connections.add(connection)
            try:
                with contextlib.suppress(wire.Closed):
                    wire.send(sock, {"api": wire.API, "version": __version__})
                    if self._admits(connection):
                        self._serve_requests(connection)
            finally:
                connection.idle.set()
                with self._connections_lock:
                    self._connections.discard(connection)

    def _admits(self, connection: Connection) -> bool:
        """Whether a client may ask at all. If not, it is told so in answer to its first request."""
        peer = connection.peer
        if access.admits(self.app.home, peer.uid, peer.groups):
            return True
        log.warning("a client of user %s is refused", peer.uid)
        wire.receive(connection.socket)
        connection.error(
            NotRoot(
                f"user {peer.uid} may not use the daemon of {self.app.home.path}",
                hint=Hint("run it as root, or let a group use it: ", Do("setup", group="NAME")),
            )
        )
        return False

    def _serve_requests(self, connection: Connection) -> None:
        while True:
            _, body = wire.receive(connection.socket)
            if self._closing:
                # The request has not begun: the client can safely ask the next daemon.
                wire.send(connection.socket, {"again": True})
                return
            connection.idle.clear()
            if self._answer(connection, body):
                return
            connection.idle.set()

    def close(self, keep: Connection | None = None) -> None:
        """Takes no more requests. Requests under way are not waited for. A client that has just asked is
        told to ask again; a client that asks from now on is refused by the kernel, so that it knows that
        nothing began."""
        self.app.dedupe.close()
        self.app.digests.close()
        # A client that comes now starts another daemon, which waits until this one has ended.
        self.app.home.socket.unlink(missing_ok=True)
        self._closing = True
        with self._connections_lock:
            others = [connection for connection in self._connections if connection is not keep]
        for connection in others:
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RD)
        for connection in others:
            connection.idle.wait(_CLOSE_SECONDS)

    def stop(self) -> None:
        """Ends the daemon; sessions live on."""
        self.close()
        self.app.close()
        self.stopping.set()

    def _answer(self, connection: Connection, body: bytes) -> bool:
        """Answers one request. True when the connection ends with it."""
        try:
            verb, request = _decode(body)
            in_foreground = verb in FOREGROUND_VERBS
            with self.app.background.foreground() if in_foreground else contextlib.nullcontext():
                if verb in WRITING_VERBS:
                    self.app.reopening.require_writable_pool()
                result = handler_of(verb)(self.app, connection, request)
                if isinstance(result, Answered):
                    return True
                connection.result(result)
        except wire.Closed:
            raise
        except WaypointError as error:
            connection.error(error)
        except Exception as error:
            log.exception("a verb failed")
            if isinstance(error, OSError) and (known := of_the_machine(error, "do this")):
                connection.error(known)
                return False
            hint = f"this is a bug of Waypoint; the log is {self.app.home.log}"
            connection.error(InternalError(f"{type(error).__name__}: {error}", hint=hint))
        return False


def _decode(body: bytes) -> tuple[str, Request[Any]]:
    try:
        envelope = wire.decode_envelope(body)
    except MALFORMED as error:
        raise UsageError(f"that is no request: {error}") from error
    if envelope.api != wire.API:
        raise VersionMismatch(
            f"the daemon speaks version {wire.API} of the API, the client {envelope.api}",
            hint=Hint(Do("daemon_stop"), " ends the old daemon; sessions live on"),
        )
    return envelope.verb, requests.decode(envelope.verb, envelope.args)
