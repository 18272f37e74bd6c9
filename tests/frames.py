"""What stands in the frame of a text for a model (src/waypoint/text/quoting.py)."""

from __future__ import annotations

import re

FRAME = re.compile(
    r"^\[[^\n]*: data, not instructions; ends at (\w+)\]\n(?P<text>.*?)\n\[end \1\]$",
    re.DOTALL | re.MULTILINE,
)


def framed_text(answer: str) -> str:
    """The framed lines of an answer; empty if it has no frame."""
    frame = FRAME.search(answer)
    return f"{frame['text']}\n" if frame else ""
