"""Sizes as people write them."""

from __future__ import annotations

import pytest

from waypoint.api.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        *(("512M", 512 << 20), ("2G", 2 << 30), ("2g", 2 << 30), ("1.5GiB", 3 << 29), ("64 kb", 65536)),
        *(("1048576", 1 << 20), ("1T", 1 << 40), ("10b", 10), (" 1k ", 1024)),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "M", "-1M", "1X", "1 2", "1e3", "nan", "infG", "½G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)
