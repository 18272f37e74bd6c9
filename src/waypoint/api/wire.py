"""What travels over the daemon's socket.

A frame is a kind (one byte), a length (four bytes, big endian) and a body. Kind "J" is JSON, kind "D" is
plain data: the terminal of an attached client, the streams of a spawned program, an exported file.

    daemon  J {"api": 1, "version": "…"}          once, as a greeting
    client  J {"api": 1, "verb": "exec", "args": {"session": "work", "command": "ls"}}
    daemon  J {"event": {"output": "…"}}          as many as there are, on verbs that stream
    daemon  J {"result": {…}}                     or {"error": {"code", "message", "hint"}}, or
              {"again": true}                     from a daemon that is about to end and has not begun it

One request is under way on a connection at a time; a client that wants more opens more connections. A
connection that attached to a terminal or a program belongs to it until it closes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from waypoint.model import json_decoder

API = 1
"""Raised when a client of the old kind would misunderstand a daemon of the new one."""

JSON = b"J"
DATA = b"D"
_CREDENTIALS = struct.Struct("3i")
_HEAD = struct.Struct(">cI")
_MOST_BYTES = 256 << 20

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


class Envelope(msgspec.Struct, frozen=True):
    """A request as it travels. The arguments are decoded when the verb is known (api/requests.py)."""

    verb: str
    args: msgspec.Raw = msgspec.Raw(b"{}")
    api: int = API


_envelope_decoder = json_decoder(Envelope)


class Closed(Exception):
    """Raised when the other side has closed the connection."""


class Unread(Closed):
    """Raised when the other side has ended without reading all that was sent to it: the kernel tells."""


class Frames:
    """Reads frames from bytes, without a socket: it says how many bytes it wants next."""

    def __init__(self) -> None:
        self.wanted = _HEAD.size
        self._kind: bytes | None = None

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Takes the `wanted` bytes. A frame when they complete one."""
        if self._kind is None:
            self._kind, self.wanted = _HEAD.unpack(data)
            if self.wanted > _MOST_BYTES:
                raise Closed
            return self.feed(b"") if self.wanted == 0 else None
        kind, self._kind, self.wanted = self._kind, None, _HEAD.size
        return kind, data


def frame(kind: bytes, body: bytes) -> bytes:
    return _HEAD.pack(kind, len(body)) + body


def frame_json(message: Any) -> bytes:
    return frame(JSON, _encoder.encode(message))


def receive_exactly(connection: socket.socket, wanted: int, wait: Callable[[], None] = lambda: None) -> bytes:
    """So many bytes; `Closed` when the connection ends before. `wait` is called before something is read."""
    try:
        wait()
        data = connection.recv(wanted)
        if len(data) == wanted:
            return data
        if not data:
            raise Closed
        parts, have = [data], len(data)
        while have < wanted:
            wait()
            part = connection.recv(min(wanted - have, 1 << 20))
            if not part:
                raise Closed
            parts.append(part)
            have += len(part)
    except ConnectionResetError as error:
        raise Unread from error
    except ConnectionError as error:
        raise Closed from error
    return b"".join(parts)


def receive(connection: socket.socket) -> tuple[bytes, bytes]:
    """The next frame: its kind and its body."""
    frames = Frames()
    while True:
        if complete := frames.feed(receive_exactly(connection, frames.wanted)):
            return complete


def send(connection: socket.socket, message: Any) -> None:
    """Sends a JSON frame."""
    send_bytes(connection, frame_json(message))


def send_data(connection: socket.socket, data: bytes) -> None:
    """Sends a data frame; an empty one says that no more will come."""
    send_bytes(connection, frame(DATA, data))


def send_bytes(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError as error:
        raise Closed from error


def peer_of(connection: socket.socket) -> int:
    """The process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def decode(body: bytes) -> Any:
    return _decoder.decode(body)


def decode_envelope(body: bytes) -> Envelope:
    return _envelope_decoder.decode(body)
