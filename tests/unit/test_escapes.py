"""What a terminal obeys is taken out of a text, and nothing else."""

from __future__ import annotations

import pytest

from waypoint.terminal import escapes


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("no sequences", "no sequences"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[?2004hls\x1b[K", "ls"),
        ("\x1b=a\x1bMb", "ab"),
        ("a\x1b\\b", "ab"),
    ],
)
def test_escape_sequences_are_stripped(text: str, plain: str) -> None:
    assert escapes.strip(text) == plain
    assert escapes.strip_bytes(text.encode()) == plain.encode()
