"""Escape sequences of terminals (ECMA-48): what a terminal obeys and does not show."""

from __future__ import annotations

import re

_SEQUENCE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[^\[\]])"
"""CSI sequences, OSC strings up to BEL or ST, and sequences of two characters."""
_IN_TEXT = re.compile(_SEQUENCE)
_IN_BYTES = re.compile(_SEQUENCE.encode())


def strip(text: str) -> str:
    """The text without escape sequences."""
    return _IN_TEXT.sub("", text)


def strip_bytes(data: bytes) -> bytes:
    """The same for what a terminal was sent."""
    return _IN_BYTES.sub(b"", data)
