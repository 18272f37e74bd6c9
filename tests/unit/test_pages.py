"""Answers sized for a model: pages of a text are the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from waypoint import errors
from waypoint.mcp.pages import Shelf

LINES = some.lists(some.text(max_size=60), max_size=120).map("\n".join)


@given(LINES, some.integers(20, 400), some.integers(20, 400))
def test_pages_together_are_the_text(text: str, first: int, then: int) -> None:
    shelf = Shelf()
    page = shelf.first(text, first)
    whole = page.text
    while page.cursor:
        assert len(page.text) <= max(first, then)
        page = shelf.more(page.cursor, then)
        assert page.text
        whole += page.text
    assert whole == text


@given(LINES, some.integers(40, 400), some.integers(20, 400))
def test_what_was_left_out_of_the_middle_can_be_read(text: str, limit: int, then: int) -> None:
    shelf = Shelf()
    page = shelf.ends(text, limit)
    if page.cursor is None:
        assert page.text == text
        return
    _, start, end = page.cursor.split(".")
    middle, cursor = "", page.cursor
    while cursor:
        found = shelf.more(cursor, then)
        middle, cursor = middle + found.text, found.cursor or ""
    assert text[: int(start)] + middle + text[int(end) :] == text
    assert middle == text[int(start) : int(end)]
    assert len(page.text) <= limit + 60


@pytest.mark.parametrize("cursor", ["", "t1", "t1.0.5", "t9.0.1", "x.y.z", "t1.-1.2", "t1.5.2", "t1.0.99999"])
def test_a_cursor_that_leads_nowhere_says_what_to_do(cursor: str) -> None:
    shelf = Shelf()
    if cursor != "t1.0.5":
        shelf.first("abc\n" * 30, 20)
    with pytest.raises(errors.NotFound) as refused:
        shelf.more(cursor)
    assert "again" in refused.value.hint


def test_old_texts_go() -> None:
    shelf = Shelf()
    first = shelf.first("old\n" * 100, 20).cursor
    assert first
    for _ in range(40):
        shelf.first("new\n" * 100, 20)
    with pytest.raises(errors.NotFound):
        shelf.more(first)
