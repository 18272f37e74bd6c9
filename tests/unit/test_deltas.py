"""The kernel's stream of differences, read byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from waypoint.kernel.pool import deltas
from waypoint.kernel.pool.deltas import CannotCompare, by_walk, parse_stream

HEADER = b"btrfs-stream\0" + struct.pack("<I", 1)


def command(number: int, *attributes: tuple[int, bytes]) -> bytes:
    body = b"".join(struct.pack("<HH", kind, len(data)) + data for kind, data in attributes)
    return struct.pack("<IHI", len(body), number, 0) + body


def in_pieces(stream: bytes, size: int) -> Callable[[], bytes]:
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    return lambda: pieces.pop(0) if pieces else b""


STREAM = (
    HEADER
    + command(deltas.C_SNAPSHOT, (deltas.A_PATH, b"new"), (1, bytes(16)))
    + command(deltas.C_MKFILE, (deltas.A_PATH, b"o257-1-0"), (3, bytes(8)))
    + command(deltas.C_RENAME, (deltas.A_PATH, b"o257-1-0"), (deltas.A_PATH_TO, b"d/\xff"))
    + command(
        deltas.C_UPDATE_EXTENT,
        (deltas.A_PATH, b"d/\xff"),
        (deltas.A_FILE_OFFSET, (4096).to_bytes(8, "little")),
        (deltas.A_SIZE, (77).to_bytes(8, "little")),
    )
    + command(deltas.C_SET_XATTR, (deltas.A_PATH, b"d"), (13, b"user.x"), (14, b"x" * 5000))
    + command(deltas.C_END)
)


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_a_stream_is_read_in_whatever_pieces_it_comes(size: int) -> None:
    assert list(parse_stream(in_pieces(STREAM, size))) == [
        (deltas.C_MKFILE, "o257-1-0", "", 0, 0),
        (deltas.C_RENAME, "o257-1-0", "d/\udcff", 0, 0),
        (deltas.C_UPDATE_EXTENT, "d/\udcff", "", 4096, 77),
        (deltas.C_SET_XATTR, "d", "", 0, 0),
    ]


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"not a stream at all, but long enough",
        HEADER[:-4] + struct.pack("<I", 2),
        HEADER,
        STREAM[:-20],
        HEADER + command(25, (deltas.A_PATH, b"x")) + command(deltas.C_END),
    ],
)
def test_what_cannot_be_understood_is_declined(stream: bytes) -> None:
    with pytest.raises(CannotCompare):
        list(parse_stream(in_pieces(stream, 100)))


def test_two_plain_folders_are_walked(tmp_path: Path) -> None:
    for name, text in (("one", "1"), ("two", "22")):
        (tmp_path / name / "d").mkdir(parents=True)
        (tmp_path / name / "d" / "f").write_text(text)
        (tmp_path / name / "d" / name).symlink_to("x")
        (tmp_path / name / "skipped").write_text(name)
    found = by_walk(tmp_path / "one", tmp_path / "two", skip=lambda name: name == "skipped")
    assert [
        (delta.path, delta.old_path, sorted(delta.what - {"times"})) for delta in found if delta.path
    ] == [
        *([("d", "d", [])] if "d" in [delta.path for delta in found] else []),
        ("d/f", "d/f", ["content"]),
        ("d/one", "d/one", []),
        ("d/two", None, []),
    ]
    assert not any(delta.renamed for delta in found)
