"""Answers cut to a size for a model, with a cursor to the rest.

A model pays for every line, and forgets the middle of a long text. So an answer has a limit. The output of a
command shows its beginning and its end. `more` continues where an answer was cut. The texts are kept as they
were, so that all pages are of the same text. They are lost with the server; the error for an unknown cursor
says to call the tool again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from waypoint.errors import NotFound

PAGE_CHARACTERS = 12_000
"""The default size of an answer."""
_MAX_TEXTS = 32
_MAX_CHARACTERS = 16 << 20
_HEAD_SHARE = 4
"""A quarter of the shown output is its beginning, the rest its end: errors are mostly at the end."""


class Page(NamedTuple):
    """The shown part of a text."""

    text: str
    cursor: str | None
    """Where `more` continues; None if nothing was left out."""


class Pages:
    """The last texts that were cut."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._number = 0

    def first(self, text: str, limit: int = PAGE_CHARACTERS) -> Page:
        """The beginning of a text."""
        if len(text) <= limit:
            return Page(text, None)
        return self._page(self._keep(text), 0, len(text), limit)

    def ends(self, text: str, limit: int = PAGE_CHARACTERS) -> Page:
        """The beginning and the end of a text; the cursor leads to the part between them."""
        if len(text) <= limit:
            return Page(text, None)
        head = _line_end(text, limit // _HEAD_SHARE)
        tail = _line_start(text, len(text) - (limit - limit // _HEAD_SHARE))
        if tail <= head:
            return Page(text, None)
        left_out = f"… {tail - head:,} characters left out …"
        cursor = f"{self._keep(text)}.{head}.{tail}"
        return Page(f"{text[:head].rstrip()}\n{left_out}\n{text[tail:]}", cursor)

    def more(self, cursor: str, limit: int = PAGE_CHARACTERS) -> Page:
        """The part of a text that a cursor leads to."""
        key, _, rest = cursor.partition(".")
        start, _, end = rest.partition(".")
        text = self._texts.get(key)
        if text is None or not (start.isdigit() and end.isdigit() and int(start) <= int(end) <= len(text)):
            raise NotFound(
                f"there is no text for the cursor {cursor!r}",
                hint="it is from another run of the server, or too old: call the tool again that returned it",
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
            len(self._texts) > _MAX_TEXTS or sum(map(len, self._texts.values())) > _MAX_CHARACTERS
        ):
            self._texts.popitem(last=False)
        return key


def _line_end(text: str, at: int, start: int = 0) -> int:
    """The end of the last whole line before `at`; `at` itself in the middle of a very long line."""
    newline = text.rfind("\n", start, at)
    return newline + 1 if newline > start else at


def _line_start(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return newline + 1 if 0 <= newline < min(len(text) - 1, at + 400) else at
