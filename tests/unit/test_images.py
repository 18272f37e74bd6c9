"""Reading and correcting CRIU's images, from images that are written here."""

from __future__ import annotations

import struct
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest

from waypoint import errors
from waypoint.engine import images
from waypoint.engine.images import Message, encode


def write_image(path: Path, *messages: Message) -> None:
    bodies = [encode(message) for message in messages]
    path.write_bytes(bytes(8) + b"".join(struct.pack("<I", len(body)) + body for body in bodies))


def test_messages_are_read_as_they_were_written() -> None:
    message: Message = {1: 300, 2: "text", 3: True, 4: {1: b"inner"}, 15: -1, 64: 1 << 63}
    fields = images.decode(encode(message))
    assert fields == {1: 300, 2: b"text", 3: 1, 4: encode({1: b"inner"}), 15: (1 << 64) - 1, 64: 1 << 63}
    assert list(images.fields(encode({1: ["a", "b"]}))) == [(1, b"a"), (1, b"b")]


def test_terminals_inside_a_tree(tmp_path: Path) -> None:
    write_image(tmp_path / "tty-info.img", {1: 2 * 3 + 1, 6: 40}, {1: 2 * 3, 6: 40}, {1: 2 * 5 + 1, 6: 0})
    assert images.inner_terminals(tmp_path) == {3: 40, 5: 0}
    assert images.inner_terminals(tmp_path / "nothing") == {}


def test_addresses_that_sockets_are_bound_to(tmp_path: Path) -> None:
    def socket_entry(address: str) -> Message:
        packed = ip_address(address).packed
        words = [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]
        return {1: 4, 2: 1, 4: b"".join(encode({11: word}) for word in words)}

    texts = ("10.9.8.7", "127.0.0.1", "0.0.0.0", "::ffff:10.9.8.6", "fe80::1", "10.9.8.7")
    write_image(tmp_path / "files.img", *map(socket_entry, texts), {1: 1, 2: 2})
    assert images.bound_addresses(tmp_path) == ["10.9.8.6", "10.9.8.7"]


@pytest.mark.parametrize(("remaps", "linked"), [([], False), ([{1: 1, 3: 1}], False), ([{1: 1, 3: 0}], True)])
def test_files_that_criu_has_linked(tmp_path: Path, remaps: list[Message], linked: bool) -> None:
    write_image(tmp_path / "remap-fpath.img", *remaps)
    assert images.has_link_remaps(tmp_path) is linked


def test_timers_are_corrected(tmp_path: Path) -> None:
    def timer(ticks: int, flags: int, left: tuple[int, int], period: tuple[int, int]) -> Message:
        numbers = dict(zip(range(5, 11), (ticks, flags, *left, *period), strict=True))
        return {1: 17, 2: 1, 12: encode({1: 1, **numbers})}

    expired, absolute, idle = (
        timer(3, 0, (0, 0), (0, 500)),
        timer(0, 1, (4, 7), (0, 0)),
        timer(0, 0, (0, 0), (0, 0)),
    )
    write_image(tmp_path / "files.img", expired, {1: 1, 2: 2}, absolute, idle)
    images.correct_timers(tmp_path)
    entries = list(images.read_image(tmp_path / "files.img"))
    assert [entry[1] for entry in entries] == [17, 1, 17, 17]
    timers = [images.decode(entry.get(12)) for entry in entries]
    assert (timers[0][7], timers[0][8]) == (0, 1)
    assert (timers[2][6], timers[2][7], timers[2][8]) == (0, 4, 7)
    assert timers[3] == images.decode(idle[12])  # type: ignore[arg-type]


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pages-1.img").write_bytes(bytes(4096))
    images.record_sizes(tmp_path)
    images.check_sizes(tmp_path)
    (tmp_path / "pages-1.img").write_bytes(bytes(4095))
    with pytest.raises(errors.CannotRestore, match=r"pages-1\.img is not what was written"):
        images.check_sizes(tmp_path)
    (tmp_path / "pages-1.img").unlink()
    with pytest.raises(errors.CannotRestore, match="damaged"):
        images.check_sizes(tmp_path)
