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
        ("\x1b(B\x1b[mbold off", "bold off"),
        ("\x1bP1$r0m\x1b\\shown", "shown"),
    ],
)
def test_escape_sequences_are_stripped(text: str, plain: str) -> None:
    assert escapes.strip(text) == plain
    assert escapes.strip_bytes(text.encode()) == plain.encode()


def test_escape_sequences_are_stripped_however_the_stream_is_cut() -> None:
    text = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07and \x1b]8;;x\x1b\\link\x1b(B\x1b="
    for size in range(1, len(text)):
        stripper = escapes.Stripper()
        pieces = [stripper.feed(text[at : at + size]) for at in range(0, len(text), size)]
        assert b"".join(pieces) == b"red and link", size
