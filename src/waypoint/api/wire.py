"""What travels over the daemon's socket.

A frame is a kind (one byte), a length (four bytes, big endian) and a body. Kind "J" is JSON, kind "D" is
plain data: the terminal of an attached client, the streams of a spawned program.

    daemon  J {"api": 1, "version": "…"}          once, as a greeting
    client  J {"api": 1, "verb": "exec", "args": {"session": "work", "command": "ls"}}
    daemon  J {"event": {"output": "…"}}          as many as there are, on verbs that stream
    daemon  J {"result": {…}}                     or {"error": {"code", "message", "hint"}}, or
              {"again": true}                     from a daemon that is about to end and has not begun it

One request is under way on a connection at a time; whoever wants more opens more. A connection that
attached to a terminal or a program stays that program's until it closes.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

API = 1
"""Raised when a client of the old kind would misunderstand a daemon of the new one."""

JSON = b"J"
DATA = b"D"
_HEAD = struct.Struct(">cI")
_MOST_BYTES = 256 << 20

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


class Request(msgspec.Struct, frozen=True):
    """What a client asks for."""

    verb: str
    args: dict[str, Any] = {}
    api: int = API


_request_decoder = msgspec.json.Decoder(Request)


class Closed(Exception):
    """Raised when the other side has closed the connection."""


def _receive_exactly(connection: socket.socket, wanted: int) -> bytes:
    if wanted == 0:
        return b""
    data = connection.recv(wanted)
    if len(data) == wanted:
        return data
    if not data:
        raise Closed
    parts, have = [data], len(data)
    while have < wanted:
        part = connection.recv(min(wanted - have, 1 << 20))
        if not part:
            raise Closed
        parts.append(part)
        have += len(part)
    return b"".join(parts)


def receive(connection: socket.socket) -> tuple[bytes, bytes]:
    """The next frame: its kind and its body."""
    try:
        kind, length = _HEAD.unpack(_receive_exactly(connection, _HEAD.size))
        if length > _MOST_BYTES:
            raise Closed
        return kind, _receive_exactly(connection, length)
    except (ConnectionError, BrokenPipeError) as error:
        raise Closed from error


def send(connection: socket.socket, message: Any) -> None:
    """A JSON frame."""
    body = _encoder.encode(message)
    _send(connection, JSON, body)


def send_data(connection: socket.socket, data: bytes) -> None:
    """A data frame; an empty one says that no more will come."""
    _send(connection, DATA, data)


def _send(connection: socket.socket, kind: bytes, body: bytes) -> None:
    try:
        connection.sendall(_HEAD.pack(kind, len(body)) + body)
    except (ConnectionError, BrokenPipeError, OSError) as error:
        raise Closed from error


def decode(body: bytes) -> Any:
    return _decoder.decode(body)


def decode_request(body: bytes) -> Request:
    return _request_decoder.decode(body)
