"""Answers cut to a size for a model: the pages of a text together are the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from waypoint import errors
from waypoint.mcp.pages import Pages

LINES = some.lists(some.text(max_size=60), max_size=120).map("\n".join)


@given(LINES, some.integers(20, 400), some.integers(20, 400))
def test_pages_together_are_the_text(text: str, first: int, then: int) -> None:
    pages = Pages()
    page = pages.first(text, first)
    whole = page.text
    while page.cursor:
        assert len(page.text) <= max(first, then)
        page = pages.more(page.cursor, then)
        assert page.text
        whole += page.text
    assert whole == text


@given(LINES, some.integers(40, 400), some.integers(20, 400))
def test_the_part_left_out_of_the_middle_can_be_read(text: str, limit: int, then: int) -> None:
    pages = Pages()
    page = pages.ends(text, limit)
    if page.cursor is None:
        assert page.text == text
        return
    _, start, end = page.cursor.split(".")
    middle, cursor = "", page.cursor
    while cursor:
        next_page = pages.more(cursor, then)
        middle, cursor = middle + next_page.text, next_page.cursor or ""
    assert text[: int(start)] + middle + text[int(end) :] == text
    assert middle == text[int(start) : int(end)]
    assert len(page.text) <= limit + 60


@pytest.mark.parametrize("cursor", ["", "t1", "t1.0.5", "t9.0.1", "x.y.z", "t1.-1.2", "t1.5.2", "t1.0.99999"])
def test_an_invalid_cursor_is_refused_with_a_hint(cursor: str) -> None:
    pages = Pages()
    if cursor != "t1.0.5":
        pages.first("abc\n" * 30, 20)
    with pytest.raises(errors.NotFound) as refused:
        pages.more(cursor)
    assert "again" in refused.value.hint


def test_old_texts_are_dropped() -> None:
    pages = Pages()
    first = pages.first("old\n" * 100, 20).cursor
    assert first
    for _ in range(40):
        pages.first("new\n" * 100, 20)
    with pytest.raises(errors.NotFound):
        pages.more(first)
