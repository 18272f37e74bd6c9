"""Sizes as people write them, on the command line, in the environment and in a request."""

from __future__ import annotations

import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?\s*", re.IGNORECASE)
_UNITS = ("", *"kmgtp")


def parse_size(text: str) -> int:
    """The bytes that `512M`, `2G`, `1.5g`, `64KiB` or `1048576` stand for: units are powers of 1024.

    A ValueError for anything else.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no size")
    return int(float(match[1]) * 1024 ** _UNITS.index(match[2].lower()))
