"""Just enough of protocol buffers: CRIU speaks them on its socket and writes them into its images.

Only what is read or written here is known by number; everything else is skipped. A dependency and a
code generator for twenty fields would be the larger evil.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

Value = int | bytes | str | bool | list["Message"]
Message = dict[int, "Value | list[str] | Message"]


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode(message: Message) -> bytes:
    """Bool and int as varints, str and bytes as they are, a dict as a message, a list as repeated fields."""
    out = b""
    for number, value in message.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, (bool, int)):
                out += _varint(number << 3) + _varint(int(item))
                continue
            body = (
                encode(item) if isinstance(item, dict) else item.encode() if isinstance(item, str) else item
            )
            out += _varint(number << 3 | 2) + _varint(len(body)) + body
    return out


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: varints and fixed numbers as int, the rest as bytes."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            yield key >> 3, value
        elif kind == 2:
            length, at = _read_varint(data, at)
            yield key >> 3, data[at : at + length]
            at += length
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            yield key >> 3, int.from_bytes(data[at : at + size], "little")
            at += size
        else:
            raise ValueError(f"protobuf wire type {kind}")


def decode(data: bytes) -> dict[int, int | bytes]:
    """A message whose fields do not repeat: the last value of each."""
    return dict(fields(data))


def signed(number: int | bytes | None) -> int:
    """An int32 or int64 as it was meant."""
    assert isinstance(number, int)
    return number - (1 << 64) if number >= 1 << 63 else number


def read_image(path: Path) -> Iterator[dict[int, int | bytes]]:
    """The entries of one of CRIU's image files: two magic numbers, then length and message, over and over."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    at = 8
    while at + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, at)
        yield decode(data[at + 4 : at + 4 + length])
        at += 4 + length
