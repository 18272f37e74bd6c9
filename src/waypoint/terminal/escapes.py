"""Escape sequences of terminals (ECMA-48): what a terminal obeys and does not show."""

from __future__ import annotations

import re

_SEQUENCE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[^\[\]])"
"""CSI sequences, strings (OSC, DCS and others) up to BEL or ST, choices of a character set, and sequences of
two characters."""
_IN_TEXT = re.compile(_SEQUENCE)
_IN_BYTES = re.compile(_SEQUENCE.encode())
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
_LONGEST_BYTES = 64 << 10


def strip(text: str) -> str:
    """The text without escape sequences."""
    return _IN_TEXT.sub("", text)


def strip_bytes(data: bytes) -> bytes:
    """The same for what a terminal was sent."""
    return _IN_BYTES.sub(b"", data)


class Stripper:
    """The same for a stream, however it is cut into pieces."""

    def __init__(self) -> None:
        self._held = b""
        """The beginning of what may become a sequence."""

    def feed(self, data: bytes) -> bytes:
        data, self._held = self._held + data, b""
        unfinished = _UNFINISHED.search(data)
        if unfinished and len(unfinished[0]) < _LONGEST_BYTES:
            data, self._held = data[: unfinished.start()], unfinished[0]
        return strip_bytes(data)
