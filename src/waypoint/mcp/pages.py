"""Answers sized for a model: what does not fit is cut, and a cursor leads to the rest.

A model pays for every line it is given, and forgets the middle of what is too long. So an answer has a
limit, a command's output shows its beginning and (mostly) its end, and `more` reads on where an answer was
cut. Texts are kept here as they were at that moment: a page of a difference must not be of another difference
than the page before. What was kept goes with the server; a cursor that leads nowhere says to ask again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from waypoint.errors import NotFound

PAGE_CHARACTERS = 12_000
"""What one answer shows, if nothing else was asked for."""
_MOST_TEXTS = 32
_MOST_CHARACTERS = 16 << 20
_HEAD_SHARE = 4
"""Of a command's output a fourth is its beginning: what went wrong is said at the end."""


class Page(NamedTuple):
    """What is shown of a text."""

    text: str
    cursor: str | None
    """Where `more` reads on; None when nothing was left out."""


class Shelf:
    """Texts that were cut, the last few of them."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._number = 0

    def first(self, text: str, limit: int = PAGE_CHARACTERS) -> Page:
        """The beginning of a text."""
        if len(text) <= limit:
            return Page(text, None)
        return self._page(self._keep(text), 0, len(text), limit)

    def ends(self, text: str, limit: int = PAGE_CHARACTERS) -> Page:
        """The beginning and the end of a text; the cursor leads to what is between them."""
        if len(text) <= limit:
            return Page(text, None)
        head = _line_end(text, limit // _HEAD_SHARE)
        tail = _line_start(text, len(text) - (limit - limit // _HEAD_SHARE))
        if tail <= head:
            return Page(text, None)
        left_out = f"… {tail - head:,} characters left out …"
        cursor = f"{self._keep(text)}.{head}.{tail}"
        shown = f"{text[:head].rstrip()}\n{left_out}\n{text[tail:]}"
        return Page(shown, cursor)

    def more(self, cursor: str, limit: int = PAGE_CHARACTERS) -> Page:
        """What follows."""
        key, _, rest = cursor.partition(".")
        start, _, end = rest.partition(".")
        text = self._texts.get(key)
        if text is None or not (start.isdigit() and end.isdigit() and int(start) <= int(end) <= len(text)):
            raise NotFound(
                f"nothing is kept for the cursor {cursor!r}",
                hint="it is from another run of the server, or too old: call the tool again that gave it",
            )
        self._texts.move_to_end(key)
        return self._page(key, int(start), int(end), limit)

    def _page(self, key: str, start: int, end: int, limit: int) -> Page:
        text = self._texts[key]
        stop = end if end - start <= limit else _line_end(text, start + limit, start)
        return Page(text[start:stop], f"{key}.{stop}.{end}" if stop < end else None)

    def _keep(self, text: str) -> str:
        self._number += 1
        key = f"t{self._number}"
        self._texts[key] = text
        while len(self._texts) > 1 and (
            len(self._texts) > _MOST_TEXTS or sum(map(len, self._texts.values())) > _MOST_CHARACTERS
        ):
            self._texts.popitem(last=False)
        return key


def _line_end(text: str, at: int, least: int = 0) -> int:
    """The end of the last whole line before; where lines are endless, the place itself."""
    found = text.rfind("\n", least, at)
    return found + 1 if found > least else at


def _line_start(text: str, at: int) -> int:
    found = text.find("\n", at)
    return found + 1 if 0 <= found < min(len(text) - 1, at + 400) else at
